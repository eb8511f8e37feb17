/* Gets: chunks of keys are located with a lease, read in groups that fit the lease, and released.
 * While the bytes of one chunk move, the request for the next is on its way. Passes repeat what a
 * lost lease, a moved segment or a broken connection left undone. */
#include "client/get.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/assert.h"
#include "base/errors.h"
#include "base/htab.h"
#include "base/log.h"

/* --- what becomes of an item --- */

static void item_finish(struct getting *g, size_t i, tarn_status status) {
    tarn_item *item = &g->b.items[i];
    struct want *w = &g->wants[i];
    TARN_ASSERT(status != TARN_OK || w->place.value != NULL || w->len == 0 ||
                (w->prepared && w->read.pos == w->read.to));
    batch_finish(&g->b, i, status, w->len);
    if (LIKELY(status == TARN_OK)) {
        COUNT(g->b.lane, get_hits, 1);
        COUNT(g->b.lane, bytes_read, w->len);
        return;
    }
    if (w->own_memory) {
        free(item->buffer);
        item->buffer = NULL;
        w->own_memory = false;
    }
    if (status == TARN_ENOTFOUND) {
        COUNT(g->b.lane, get_misses, 1);
    } else {
        COUNT(g->b.lane, get_failures, 1);
    }
}

static void item_decide(struct getting *g, size_t i, struct get_result result) {
    struct want *w = &g->wants[i];
    bool again = w->tries < result.limit && w->tries < (unsigned)g->b.lane->client->options.retries;
    if (result.next == GET_TURNED) {
        g->turns++;
    } else if (result.next == GET_AGAIN && again) {
        w->tries++;
        w->is.state = ITEM_WANTED;
        COUNT(g->b.lane, retries, 1);
    } else if (result.next == GET_GRANTS) {
        w->is.state = ITEM_WANTED;
    } else {
        item_finish(g, i, result.status);
    }
}

static inline void item_settle(struct getting *g, size_t i, struct get_result result) {
    if (result.next != GET_ON) item_decide(g, i, result);
}

/* --- locating --- */

bool get_locate_build(struct lane *lane, const tarn_item *items, const size_t *order, size_t n,
                      const struct get_options *o, bool batch) {
    struct ctl_request *r = &lane->request;
    bool ranges = false;
    request_begin(r);
    struct wire_look look = {.keys = {request_next(r), (uint32_t)n},
                             .lease_ms = o->lease_ms,
                             .packed = true,
                             .no_grant = lane_no_grant(lane),
                             .batch = batch};
    for (size_t k = 0; k < n; k++) {
        const tarn_item *item = &items[order != NULL ? order[k] : k];
        request_word(r, item->key, item->key_len);
        ranges = ranges || item->offset != 0 || item->want != 0;
    }
    look.crcs = ranges && lane->client->options.verify;
    hint_fill(r, o->hint, &look.hint);
    spread_fill(r, &o->spread, order, n, &look.spread);
    request_build(r, WIRE_mgetreplicas, &look);
    return look.no_grant;
}

static tarn_status locate_send(struct getting *g, struct chunk *c) {
    struct lane *lane = g->b.lane;
    if (g->located != NULL) {
        c->sent_ns = g->located->sent_ns;
        c->no_grant = g->located->no_grant;
        return TARN_OK;
    }
    c->batched = lane->numbers.leases;
    c->no_grant = get_locate_build(lane, g->b.items, c->order, c->n, g->options, c->batched);
    c->sent_ns =
        /* the lease counts from here, before the server can have seen the request */
        clock_boot_ns();
    return lane_send(lane, false);
}

static void locate_one(struct getting *g, size_t i, const struct answer *a, struct chunk *c) {
    struct want *w = &g->wants[i];
    const struct placement *p = &w->place;
    bool resumes = w->prepared;
    tarn_status status = placement_of_get(&g->b.lane->arena, a, c->no_grant, c->sent_ns, &w->place);
    if (batch_is_later(&g->b, i, status, a)) { /* stays WANTED */
        w->prepared = false;
        return;
    }
    if (status != TARN_OK) {
        w->prepared = false;
        item_finish(g, i, status);
        return;
    }
    if (p->value == NULL) {
        if (p->lease_end == 0) {
            item_finish(g, i, fail(TARN_ELEASE, "the server gave no lease"));
            return;
        }
        w->leased = true;
        c->leased += p->size;
        COUNT(g->b.lane, leases, 1);
    }
    /* Bytes that are in a device already were looked at under another lease, if at all. */
    w->prepared = resumes && p->value == NULL && !(w->device && p->must_verify) &&
                  placed_read_relocated(
                      &w->read, &(struct placed_value){p->version, p->size, p->crc, p->crcs, 0},
                      p->must_verify);
    w->is.state = ITEM_PLACED;
    if (!w->prepared) item_settle(g, i, get_prepare(g, i));
    if (w->is.state != ITEM_PLACED) return;
    c->bytes += w->read.to - w->read.pos;
    /* By what will move, not by what the server says: a size for which there is no memory costs no
     * time. */
    if (!resumes && g->options->extend_deadline)
        g->b.deadline = add_sat(g->b.deadline, (w->read.to - w->read.from) / BYTES_PER_MS);
}

static tarn_status locate_receive(struct getting *g, struct chunk *c) {
    struct answer *a = NULL;
    tarn_status status =
        g->located != NULL ? TARN_OK : batch_receive(&g->b, c->n + c->batched, "MGETREPLICAS", &a);
    if (status != TARN_OK) return status;
    if (c->batched && !answer_u64(&a->element[c->n], &c->batch))
        return fail(TARN_EPROTO, "MGETREPLICAS: the batch is no number");
    c->unfinished = g->b.unfinished;
    c->bytes = c->leased = 0;
    for (size_t k = 0; k < c->n; k++) {
        size_t i = c->order[k];
        locate_one(g, i, a != NULL ? &a->element[k] : g->located->of[i], c);
    }
    return TARN_OK;
}

/* Segments first seen in this chunk. One that cannot be had takes its items along, not the
 * batch. */
static tarn_status get_chunk_ensure(struct getting *g, const struct chunk *c) {
    g->b.ensured.any = false;
    for (size_t k = 0; k < c->n; k++) {
        struct want *w = &g->wants[c->order[k]];
        if (w->is.state != ITEM_PLACED || get_replica_is_sole(g, w)) continue;
        struct get_result result;
        tarn_status status = get_replica_ensure(g, c->order[k], &result);
        if (status != TARN_OK) return status;
        item_settle(g, c->order[k], result);
    }
    return TARN_OK;
}

/* All of it has been finished since it was located. */
static bool chunk_is_over(const struct getting *g, const struct chunk *c) {
    return c->unfinished - g->b.unfinished == c->n;
}

/* A connection has one lease per version, so of items with the same key only the last one ends it.
 * Within one chunk all reads come before the release, and it does not matter. Keys are told apart
 * by their hashes: two of the same only cost one its early end. */
static void keys_find_last(struct getting *g) {
    if (g->knows_last) return;
    g->knows_last = true;
    for (size_t i = 0; i < g->b.n; i++) g->wants[i].last_of_key = true;
    if (g->b.n <= lane_chunk_keys(g->b.lane, g->b.n)) return;
    size_t slots = 64;
    while (slots < 2 * g->b.n) slots *= 2;
    struct {
        uint64_t hash;
        size_t item; /* + 1, 0: a free slot */
    } *table = arena_alloc(&g->b.lane->arena, slots * sizeof(*table));
    memset(table, 0, slots * sizeof(*table));
    for (size_t i = 0; i < g->b.n; i++) {
        uint64_t hash = hash_bytes(g->b.items[i].key, g->b.items[i].key_len);
        size_t at = hash & (slots - 1);
        while (table[at].item != 0 && table[at].hash != hash) at = (at + 1) & (slots - 1);
        if (table[at].item != 0) g->wants[table[at].item - 1].last_of_key = false;
        table[at].hash = hash;
        table[at].item = i + 1;
    }
}

/* Returns how many. */
static uint32_t release_keys(struct getting *g, const struct chunk *c, struct ctl_request *r) {
    uint32_t n = 0;
    keys_find_last(g);
    for (size_t k = 0; k < c->n; k++) {
        const struct want *w = &g->wants[c->order[k]];
        const tarn_item *item = &g->b.items[c->order[k]];
        if (!w->leased || !w->last_of_key || w->is.state != ITEM_FINISHED) continue;
        request_word(r, item->key, item->key_len);
        request_number(r, (int64_t)w->place.version);
        n++;
    }
    return n;
}

/* Of what is finished. */
static uint64_t leased_bytes(const struct getting *g, const struct chunk *c) {
    uint64_t bytes = 0;
    for (size_t k = 0; k < c->n; k++) {
        const struct want *w = &g->wants[c->order[k]];
        if (w->is.state == ITEM_FINISHED && w->leased) bytes += w->place.size;
    }
    return bytes;
}

/* Ends the leases of what is finished; nobody waits for the answer. As a batch if that is all of
 * the chunk: of a key that was looked up again meanwhile, the lease is of the later batch. */
static void chunk_release(struct getting *g, const struct chunk *c) {
    struct lane *lane = g->b.lane;
    bool over = chunk_is_over(g, c);
    uint64_t bytes = over ? c->leased : leased_bytes(g, c);
    if (bytes == 0 || lane->ctl.fd < 0) return;
    struct ctl_request *r = &lane->request;
    request_begin(r);
    struct wire_release ends = {.keys = {request_next(r), 0}};
    if (c->batch != 0 && over)
        ends.batch = c->batch;
    else if ((ends.keys.n = release_keys(g, c, r)) == 0)
        return;
    request_build(r, WIRE_release, &ends);
    /* a failure shows at the next request; the leases run out by themselves */
    if (bytes <= LEASES_LEFT_MAX && lane->client->node == NULL) /* nodes have no next call */
        lane_leave(lane);
    else
        lane_send(lane, true);
}

/* --- reading --- */

/* The window follows the speed of the path: a group should take a small share of the lease. */
static void adapt_window(struct lane *lane, uint64_t took_ms, uint64_t lease_ms, bool lease_lost) {
    if (lease_lost) {
        lane->window = max_u64(lane->window / 4 / CRC_BLOCK * CRC_BLOCK, CRC_BLOCK);
    } else if (took_ms > lease_ms / 4) {
        lane->window = max_u64(lane->window / 2 / CRC_BLOCK * CRC_BLOCK, CRC_BLOCK);
    } else if (took_ms < lease_ms / 16) {
        lane->window = min_u64(lane->window * 2, lane->client->options.piece_bytes);
    }
}

/* All of it has come, and is right. */
static inline bool piece_is_all(struct getting *g, struct want *w, const struct engine_op *op) {
    if (op->status != TARN_OK || op->n_iov != 1 || w->proving ||
        !placed_read_took_whole(&w->read, w->read.at, op->iov->iov_len, op->crc))
        return false;
    w->tries = 0;
    replica_worked(g->b.lane, get_replica(w));
    return true;
}

static void get_group_run(struct getting *g, struct group *group) {
    struct lane *lane = g->b.lane;
    uint64_t started = now_ms(), lease_ms = g->wants[group->items[0]].place.lease_ms;
    bool lease_lost = false;
    batch_move(&g->b, group);
    for (size_t k = 0; k < group->n; k++) {
        const struct engine_op *op = &group->ops[k];
        size_t i = group->items[k];
        if (LIKELY(piece_is_all(g, &g->wants[i], op))) {
            item_finish(g, i, TARN_OK);
            continue;
        }
        lease_lost = lease_lost || op->status == TARN_ELEASE;
        item_settle(g, i, get_piece_result(g, i, op));
    }
    adapt_window(lane, now_ms() - started, lease_ms, lease_lost);
}

/* One window of items from order[*k_p] on. */
static void fill_group(struct getting *g, const size_t *order, size_t n, size_t *k_p,
                       struct group *group) {
    group->n = group->bytes = 0;
    for (; *k_p < n && group->bytes < g->b.lane->window; ++*k_p) {
        size_t i = order[*k_p];
        struct want *w = &g->wants[i];
        if (w->is.state != ITEM_PLACED) continue;
        if (w->place.replicas > 1) get_replica_refresh(g, i);
        if (get_replica(w)->tier == REPLICA_FILE) {
            item_settle(g, i, get_file(g, i));
            continue;
        }
        if (get_is_home(g, i)) {
            item_settle(g, i, get_home(g, i));
            continue;
        }
        group->bytes += min_u64(w->read.to - w->read.pos, g->b.lane->window);
        get_piece(g, i, g->b.lane->window, &group->ops[group->n]);
        group->items[group->n++] = i;
        group->last = *k_p;
    }
}

/* Goes through all once. true: some turned to another replica and may go on under the leases they
 * have. */
static bool group_sweep(struct getting *g, const size_t *order, size_t n, struct group *group,
                        bool *ran_p) {
    uint64_t before = g->turns;
    for (size_t k = 0; k < n;) {
        fill_group(g, order, n, &k, group);
        if (group->n == 0) break;
        if (*ran_p && get_lease_is_short(&g->wants[group->items[0]].place)) return false;
        get_group_run(g, group);
        *ran_p = true;
        k = group_next(&g->b, group, k);
    }
    return g->turns != before;
}

/* Those whose lease gets short are WANTED afterwards: with a new one, in the next pass. */
static void chunk_read(struct getting *g, const struct chunk *c) {
    struct group group = group_of(g->b.lane, c->n);
    bool ran = false;
    while (group_sweep(g, c->order, c->n, &group, &ran)) {
    }
    if (chunk_is_over(g, c)) return;
    for (size_t k = 0; k < c->n; k++) {
        struct want *w = &g->wants[c->order[k]];
        if (w->is.state != ITEM_PLACED) continue;
        w->is.state = ITEM_WANTED;
        COUNT(g->b.lane, lease_renewals, 1);
    }
}

/* --- passes --- */

/* What the chunk's look-up and reads took of the arena, unless an item goes on with it. Returns the
 * next chunk's mark. */
static struct arena_mark chunk_forget(struct getting *g, const struct chunk *c,
                                      struct arena_mark mark) {
    struct arena *arena = &g->b.lane->arena;
    if (g->n_scratch > 0 || !chunk_is_over(g, c)) return arena_mark(arena);
    arena_rewind(arena, mark);
    return mark;
}

/* Tries all that are WANTED once. Not TARN_OK: the control connection failed. */
static tarn_status get_pass(struct item_batch *b) {
    struct getting *g = CONTAINER_OF(b, struct getting, b);
    const struct chunk rest = batch_rest(b);
    size_t at = 0;
    for (size_t k = 0; k < rest.n; k++) g->wants[rest.order[k]].is.state = ITEM_WANTED;
    struct chunk now, next;
    tarn_status status = lane_ready(g->b.lane, g->b.deadline);
    bool more = status == TARN_OK && batch_chunk(b, &rest, &at, &now);
    if (more) status = locate_send(g, &now);
    struct arena_mark mark = arena_mark(&g->b.lane->arena);
    while (more && status == TARN_OK) {
        status = locate_receive(g, &now);
        if (status == TARN_OK) status = get_chunk_ensure(g, &now);
        if (status != TARN_OK) break;
        /* The lease of the next chunk ticks while this one moves: ask ahead only if that is soon
         * over. */
        more = batch_chunk(b, &rest, &at, &next);
        bool ahead = more && now.bytes <= g->b.lane->window;
        if (ahead) status = locate_send(g, &next);
        chunk_read(g, &now);
        chunk_release(g, &now);
        if (status == TARN_OK && more && !ahead) status = locate_send(g, &next);
        mark = chunk_forget(g, &now, mark);
        now = next;
    }
    if (status != TARN_OK) ctl_abandon(&g->b.lane->ctl);
    if (g->new_session) ctl_close(&g->b.lane->ctl);
    g->new_session = false;
    g->located = NULL;
    return status;
}

static tarn_status keys_wait(struct getting *g) {
    tarn_key *keys = arena_alloc(&g->b.lane->arena, g->b.n * sizeof(*keys));
    for (size_t i = 0; i < g->b.n; i++)
        keys[i] = (tarn_key){g->b.items[i].key, g->b.items[i].key_len};
    size_t length;
    return wait_for_keys(g->b.lane, keys, g->b.n, g->options->wait_ms, g->b.deadline, &length);
}

static void get_give_up(struct item_batch *b, size_t i, tarn_status status) {
    item_finish(CONTAINER_OF(b, struct getting, b), i, status);
}

tarn_status get_run(struct lane *lane, tarn_item *items, size_t n,
                    const struct get_options *options) {
    struct getting *g = arena_alloc(&lane->arena, sizeof(*g));
    *g = (struct getting){.options = options, .located = options->located};
    batch_init(&g->b, lane, items, n, sizeof(struct want), options->deadline);
    g->wants = (struct want *)(void *)g->b.of;
    COUNT(lane, gets, n);
    for (size_t i = 0; i < n; i++) {
        tarn_status status = client_check_key(items[i].key, items[i].key_len);
        if (status != TARN_OK) item_finish(g, i, status);
    }

    /* without a lease: its clock would run while we wait */
    tarn_status status = options->wait_ms > 0 ? keys_wait(g) : TARN_OK;
    bool goes_on = status == TARN_OK || status == TARN_ECLOSED || status == TARN_EIO;
    if (goes_on) {
        status = batch_run(&g->b, get_pass, get_give_up); /* the passes reconnect */
    } else {
        batch_fail(&g->b, status, get_give_up);
    }
    for (size_t i = 0; i < g->n_scratch; i++) free(g->scratch[i]);
    return status;
}
