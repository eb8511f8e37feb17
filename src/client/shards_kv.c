/* Prefixes of models with several KV groups, over several masters. The parts of one boundary lie
 * with any of them, so the search that a single master does in its books goes on here
 * (base/kv_groups.h), and asks for a row of parts at a time. */
#include <poll.h>
#include <stdlib.h>

#include "base/assert.h"
#include "base/kv_groups.h"
#include "client/kv_groups.h"
#include "client/shards.h"

#define ROW_FIRST 64u /* parts asked for at once, at first; four times as many each time, up to */
#define ROW_MAX   16384u
#define PAUSE_MS  10u /* between two looks for parts that are waited for */

/* The row that was asked for last, of each group. */
struct kv_row {
    int64_t from;
    int32_t step;
    uint32_t n, next; /* next: how long the next one is to be */
    uint8_t *there;
};

struct kv_looking {
    struct tarn_client *front;
    const tarn_kv_query *q;
    uint64_t deadline;
    struct call_hint hint;
    struct arena arena;
    struct kv_group *groups;
    struct kv_row *rows;
    struct kv_search search;
};

static tarn_status kv_groups_make(struct kv_looking *k) {
    static const enum kv_group_kind kinds[] = {[TARN_KV_FULL] = KV_GROUP_FULL,
                                               [TARN_KV_WINDOW] = KV_GROUP_WINDOW,
                                               [TARN_KV_STATE] = KV_GROUP_STATE};
    const tarn_kv_query *q = k->q;
    uint64_t places = 0;
    if (q->n_groups > KV_GROUPS_MAX)
        return fail(TARN_ELIMIT, "%zu KV groups, at most %u may be", q->n_groups, KV_GROUPS_MAX);
    k->groups = xcalloc(q->n_groups, sizeof(*k->groups));
    k->rows = xcalloc(q->n_groups, sizeof(*k->rows));
    for (size_t i = 0; i < q->n_groups; i++) {
        const tarn_kv_group *g = &q->groups[i];
        uint64_t n = (uint64_t)q->n_hashes * q->unit / kv_group_unit(g);
        k->groups[i] = (struct kv_group){.kind = kinds[g->kind],
                                         .drops_last = g->drops_last != 0,
                                         .block = g->block,
                                         .unit = kv_group_unit(g),
                                         .window = g->window,
                                         .places = (uint32_t)n};
        places += n;
        const char *fault = kv_group_fault(&k->groups[i], q->align);
        if (fault != NULL)
            return fail(TARN_EINVAL, "KV group %zu of %zu: %s", i + 1, q->n_groups, fault);
    }
    if (places <= KV_PLACES_MAX) return TARN_OK;
    return fail(TARN_ELIMIT, "these hashes and KV groups are %llu parts, at most %llu may be",
                (unsigned long long)places, (unsigned long long)KV_PLACES_MAX);
}

static void kv_looking_free(struct kv_looking *k) {
    for (size_t i = 0; k->rows != NULL && i < k->q->n_groups; i++) free(k->rows[i].there);
    free(k->rows);
    free(k->groups);
    arena_free(&k->arena);
}

/* --- the search --- */

static tarn_status kv_ask(struct kv_looking *k, const tarn_key *keys, size_t n, uint8_t *there) {
    const struct lookup l = {.id = WIRE_mexists, .keys = keys, .n = n};
    size_t count;
    return shards_lookup(k->front, &l, k->deadline, there, &count);
}

static tarn_status kv_row_fetch(struct kv_looking *k, const struct kv_want *w) {
    struct kv_row *row = &k->rows[w->group];
    const tarn_kv_group *g = &k->q->groups[w->group];
    uint32_t most = min_u64(w->row, row->next == 0 ? ROW_FIRST : row->next), n = 0;
    tarn_key *keys = xmalloc(most * sizeof(*keys));
    for (int64_t place = w->place; n < most && place >= 0 && place < k->groups[w->group].places;
         place += w->step)
        keys[n++] =
            kv_key_make(&k->arena, k->q, g, ((uint64_t)place + 1) * k->groups[w->group].unit);
    free(row->there);
    *row = (struct kv_row){.from = w->place, .step = w->step, .n = n};
    row->next = min_u64(most * 4, ROW_MAX);
    row->there = xmalloc(n);
    tarn_status status = kv_ask(k, keys, n, row->there);
    if (status != TARN_OK) row->n = 0;
    arena_reset(&k->arena);
    free(keys);
    return status;
}

static bool kv_row_has(const struct kv_row *row, const struct kv_want *w, uint32_t *at_p) {
    int64_t off = (int64_t)w->place - row->from;
    if (row->n == 0 || row->step != w->step || off % row->step != 0) return false;
    int64_t at = off / row->step;
    if (at < 0 || at >= row->n) return false;
    *at_p = (uint32_t)at;
    return true;
}

static tarn_status kv_search_run(struct kv_looking *k, uint64_t limit) {
    struct kv_want w;
    tarn_status status = TARN_OK;
    for (size_t i = 0; i < k->q->n_groups; i++) k->rows[i].n = k->rows[i].next = 0;
    kv_search_begin(&k->search, k->groups, k->q->n_groups, k->q->align, limit);
    while (status == TARN_OK && kv_search_next(&k->search, &w)) {
        uint32_t at = 0;
        if (!kv_row_has(&k->rows[w.group], &w, &at)) status = kv_row_fetch(k, &w);
        if (status == TARN_OK) kv_search_tell(&k->search, k->rows[w.group].there[at]);
    }
    return status;
}

static size_t kv_parts_take(const struct kv_looking *k, tarn_kv_parts *parts) {
    size_t n = 0;
    for (size_t i = 0; i < k->q->n_groups; i++) {
        struct kv_parts p = kv_search_parts(&k->search, i);
        parts[i] = (tarn_kv_parts){.first = p.first, .blocks = p.blocks, .tail = p.tail};
        n += kv_parts_count(&p);
    }
    return n;
}

static tarn_status kv_search_wait(struct kv_looking *k, uint64_t wait_ms) {
    uint64_t longest = kv_groups_longest(k->groups, k->q->n_groups, k->q->align);
    uint64_t until = add_sat(now_ms(), wait_ms);
    tarn_status status = kv_search_run(k, longest);
    while (status == TARN_OK && k->search.boundary < longest && now_ms() + PAUSE_MS < until) {
        poll(NULL, 0, PAUSE_MS);
        status = kv_search_run(k, longest);
    }
    return status;
}

/* So that they stay readable; one that has gone meanwhile makes the boundary another one. */
static tarn_status kv_lease(struct kv_looking *k, uint64_t lease_ms, const tarn_key *keys, size_t n,
                            bool *all_p) {
    const struct lookup l = {
        .id = WIRE_prefixlen, .keys = keys, .n = n, .lease_ms = lease_ms, .hint = k->hint};
    size_t count = 0;
    tarn_status status = shards_lookup(k->front, &l, k->deadline, NULL, &count);
    *all_p = count == n;
    return status;
}

/* --- reading --- */

static tarn_status kv_parts_read(struct kv_looking *k, const tarn_call *call, struct kv_reading *r,
                                 uint64_t tokens, const tarn_kv_parts *parts, const tarn_key *keys,
                                 size_t n) {
    tarn_item *items = r->place(r->arg, tokens, parts, n);
    if (items == NULL) return fail(TARN_ECANCELED, "the parts are not wanted");
    const struct get_options o = {.deadline = k->deadline,
                                  .extend_deadline = r->extend_deadline,
                                  .lease_ms = call->lease_ms,
                                  .hint = k->hint};
    for (size_t i = 0; i < n; i++) {
        items[i].key = keys[i].data;
        items[i].key_len = keys[i].len;
    }
    tarn_status status = shards_get(k->front, items, n, &o);
    for (size_t i = 0; i < n; i++) {
        items[i].key = NULL;
        items[i].key_len = 0;
        r->failed += items[i].status != TARN_OK;
    }
    return status;
}

static tarn_status kv_run(struct kv_looking *k, const tarn_call *call, struct kv_reading *r,
                          uint64_t *tokens_p, tarn_kv_parts *parts) {
    tarn_status status = kv_groups_make(k);
    if (status == TARN_OK) status = kv_search_wait(k, call->wait_ms);
    bool all = status != TARN_OK;
    while (!all && status == TARN_OK) {
        size_t n = kv_parts_take(k, parts);
        uint64_t tokens = k->search.boundary;
        tarn_key *keys = xmalloc(n * sizeof(*keys) + 1);
        kv_parts_name(&k->arena, k->q, parts, keys);
        all = true;
        if (r != NULL && n > 0)
            status = kv_parts_read(k, call, r, tokens, parts, keys, n);
        else if (call->lease_ms > 0 && n > 0)
            status = kv_lease(k, call->lease_ms, keys, n, &all);
        free(keys);
        arena_reset(&k->arena);
        if (status == TARN_OK && all) *tokens_p = tokens;
        if (status == TARN_OK && !all)
            status = now_ms() < k->deadline
                         ? kv_search_run(k, tokens)
                         : fail(TARN_ETIMEOUT, "the parts went while they were being leased");
    }
    return status;
}

tarn_status shards_kv(struct tarn_client *front, const tarn_kv_query *q, const tarn_call *call,
                      struct kv_reading *reading, uint64_t deadline, uint64_t *tokens_p,
                      tarn_kv_parts *parts) {
    struct kv_looking k = {.front = front, .q = q, .deadline = deadline, .hint = HINT_OF(call)};
    tarn_kv_parts *found = xcalloc(q->n_groups, sizeof(*found));
    uint64_t tokens = 0;
    tarn_status status = kv_run(&k, call, reading, &tokens, found);
    if (status == TARN_OK) {
        *tokens_p = tokens;
        memcpy(parts, found, q->n_groups * sizeof(*found));
    }
    free(found);
    kv_looking_free(&k);
    return status;
}
