/* Gets: chunks of keys are located with a lease, read in groups that fit the lease, and released.
 * While the bytes of one chunk move, the request for the next is on its way. Passes repeat what a
 * lost lease, a moved segment or a broken connection left undone. */
#include "client/get.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/errors.h"
#include "base/htab.h"
#include "base/log.h"
#include "client/answer.h"
#include "client/arena.h"
#include "client/client.h"
#include "client/ctl.h"
#include "client/error.h"
#include "client/lane.h"
#include "client/placement.h"
#include "engine/engine.h"
#include "engine/placed.h"

struct chunk {
    const size_t *order;
    size_t n;
    uint64_t sent_ns;
};

/* --- what becomes of an item --- */

static void item_finish(struct getting *g, size_t i, tarn_status status) {
    tarn_item *item = &g->items[i];
    struct want *w = &g->wants[i];
    TARN_ASSERT(w->state != FINISHED);
    TARN_ASSERT(status != TARN_OK || w->place.value != NULL || w->len == 0 ||
                (w->prepared && w->read.pos == w->read.to));
    w->state = FINISHED;
    g->unfinished--;
    item->status = status;
    item->got = status == TARN_OK ? w->len : 0;
    if (status != TARN_OK && w->own_memory) {
        free(item->buffer);
        item->buffer = NULL;
        w->own_memory = false;
    }
    if (status == TARN_OK) {
        COUNT(g->lane, get_hits, 1);
        COUNT(g->lane, bytes_read, w->len);
    } else if (status == TARN_ENOTFOUND) {
        COUNT(g->lane, get_misses, 1);
    } else {
        COUNT(g->lane, get_failures, 1);
    }
}

static void item_settle(struct getting *g, size_t i, struct get_result result) {
    struct want *w = &g->wants[i];
    bool again = w->tries < result.limit && w->tries < (unsigned)g->lane->client->options.retries;
    if (result.next == GET_TURNED) {
        g->turns++;
    } else if (result.next == GET_AGAIN && again) {
        w->tries++;
        w->state = WANTED;
        COUNT(g->lane, retries, 1);
    } else if (result.next != GET_ON) {
        item_finish(g, i, result.status);
    }
}

/* --- locating --- */

static tarn_status send_locate(struct getting *g, struct chunk *c) {
    struct lane *lane = g->lane;
    bool ranges = false;
    struct ctl_request *r = &lane->request;
    request_begin(r);
    struct wire_look look = {.keys = {request_next(r), (uint32_t)c->n},
                             .lease_ms = g->options->lease_ms,
                             .packed = true};
    for (size_t k = 0; k < c->n; k++) {
        const tarn_item *item = &g->items[c->order[k]];
        request_word(r, item->key, item->key_len);
        ranges = ranges || item->offset != 0 || item->want != 0;
    }
    look.crcs = ranges && lane->client->options.verify;
    request_build(r, WIRE_mgetreplicas, &look);
    c->sent_ns =
        /* the lease counts from here, before the server can have seen the request */
        clock_boot_ns();
    return lane_send(lane, false);
}

static void locate_one(struct getting *g, size_t i, const struct answer *a, uint64_t sent_ns) {
    struct want *w = &g->wants[i];
    const struct placement *p = &w->place;
    bool resumes = w->prepared;
    tarn_status status = placement_of_get(&g->lane->arena, a, sent_ns, &w->place);
    if (error_act(status) == ERROR_LATER) { /* stays WANTED */
        w->prepared = false;
        w->later = status;
        g->later++;
        g->later_ms = max_u64(g->later_ms, answer_later_ms(a));
        return;
    }
    w->later = TARN_OK;
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
        COUNT(g->lane, leases, 1);
    }
    /* Bytes that are in a device already were looked at under another lease, if at all. */
    struct placed_value value = {p->version, p->size, p->crc, p->crcs, 0};
    w->prepared = resumes && p->value == NULL && !(w->device && p->must_verify) &&
                  placed_read_relocated(&w->read, &value, p->must_verify);
    w->state = PLACED;
    if (!w->prepared) item_settle(g, i, get_prepare(g, i));
    /* By what will move, not by what the server says: a size for which there is no memory costs no
     * time. */
    if (w->state == PLACED && !resumes && g->options->extend_deadline)
        g->deadline = add_sat(g->deadline, (w->read.to - w->read.from) / BYTES_PER_MS);
}

static tarn_status receive_locate(struct getting *g, const struct chunk *c) {
    struct answer *a;
    tarn_status status = lane_receive(g->lane, &a, g->deadline);
    if (status == TARN_OK) status = lane_check(g->lane, a, "MGETREPLICAS");
    if (status != TARN_OK) return status;
    if (a->type != ANSWER_ARRAY || a->len != c->n) {
        return fail(TARN_EPROTO, "MGETREPLICAS: asked for %zu keys, got another number of answers",
                    c->n);
    }
    for (size_t k = 0; k < c->n; k++) locate_one(g, c->order[k], &a->element[k], c->sent_ns);
    return TARN_OK;
}

/* Segments first seen in this chunk. One that cannot be had takes its items along, not the
 * batch. */
static tarn_status ensure_segments(struct getting *g, const struct chunk *c) {
    for (size_t k = 0; k < c->n; k++) {
        if (g->wants[c->order[k]].state != PLACED) continue;
        struct get_result result;
        tarn_status status = get_replica_ensure(g, c->order[k], &result);
        if (status != TARN_OK) return status;
        item_settle(g, c->order[k], result);
    }
    return TARN_OK;
}

/* Ends the leases of what is finished; nobody waits for the answer. */
static void release(struct getting *g, const struct chunk *c) {
    struct lane *lane = g->lane;
    size_t n = 0;
    for (size_t k = 0; k < c->n; k++) {
        const struct want *w = &g->wants[c->order[k]];
        n += w->leased && w->last_of_key && w->state == FINISHED;
    }
    if (n == 0 || lane->ctl.fd < 0) return;
    struct ctl_request *r = &lane->request;
    request_begin(r);
    struct wire_release ends = {.keys = {request_next(r), (uint32_t)n}};
    for (size_t k = 0; k < c->n; k++) {
        struct want *w = &g->wants[c->order[k]];
        if (!w->leased || !w->last_of_key || w->state != FINISHED) continue;
        request_word(r, g->items[c->order[k]].key, g->items[c->order[k]].key_len);
        request_number(r, (int64_t)w->place.version);
        w->leased = false;
    }
    request_build(r, WIRE_release, &ends);
    /* a failure shows at the next request; the leases run out by themselves */
    lane_send(lane, true);
}

/* --- reading --- */

/* One engine_run: at most one piece per item. */
struct group {
    struct engine_op *ops;
    size_t *items;
    size_t n;
    uint64_t bytes;
    size_t last; /* position in the order of the last item */
};

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

static void run_group(struct getting *g, struct group *group) {
    struct lane *lane = g->lane;
    uint64_t started = now_ms(), lease_ms = g->wants[group->items[0]].place.lease_ms;
    bool lease_lost = false;
    engine_run(lane->engine, group->ops, group->n, g->deadline == DEADLINE_NONE ? 0 : g->deadline);
    for (size_t k = 0; k < group->n; k++) {
        const struct engine_op *op = &group->ops[k];
        lease_lost = lease_lost || op->status == TARN_ELEASE;
        item_settle(g, group->items[k], get_piece_result(g, group->items[k], op));
    }
    adapt_window(lane, now_ms() - started, lease_ms, lease_lost);
}

/* One window of items from order[*k_p] on. */
static void fill_group(struct getting *g, const size_t *order, size_t n, size_t *k_p,
                       struct group *group) {
    group->n = group->bytes = 0;
    for (; *k_p < n && group->bytes < g->lane->window; ++*k_p) {
        size_t i = order[*k_p];
        struct want *w = &g->wants[i];
        if (w->state != PLACED) continue;
        get_replica_refresh(g, i);
        if (get_replica(w)->tier == REPLICA_FILE) {
            item_settle(g, i, get_file(g, i));
            continue;
        }
        group->bytes += min_u64(w->read.to - w->read.pos, g->lane->window);
        get_piece(g, i, g->lane->window, &group->ops[group->n]);
        group->items[group->n++] = i;
        group->last = *k_p;
    }
}

/* Goes through all once. true: some turned to another replica and may go on under the leases they
 * have. */
static bool sweep(struct getting *g, const size_t *order, size_t n, struct group *group,
                  bool *ran_p) {
    uint64_t before = g->turns;
    for (size_t k = 0; k < n;) {
        fill_group(g, order, n, &k, group);
        if (group->n == 0) break;
        if (*ran_p && get_lease_is_short(&g->wants[group->items[0]].place)) return false;
        run_group(g, group);
        *ran_p = true;
        /* An item of several pieces stays PLACED: it is the last of its group, so begin there
         * again. */
        if (g->wants[group->items[group->n - 1]].state == PLACED) k = group->last;
    }
    return g->turns != before;
}

/* Those whose lease gets short are WANTED afterwards: with a new one, in the next pass. */
static void read_chunk(struct getting *g, const struct chunk *c) {
    struct group group = {0};
    group.ops = arena_alloc(&g->lane->arena, c->n * sizeof(*group.ops));
    group.items = arena_alloc(&g->lane->arena, c->n * sizeof(*group.items));
    bool ran = false;
    while (sweep(g, c->order, c->n, &group, &ran)) {
    }
    for (size_t k = 0; k < c->n; k++) {
        struct want *w = &g->wants[c->order[k]];
        if (w->state != PLACED) continue;
        w->state = WANTED;
        COUNT(g->lane, lease_renewals, 1);
    }
}

/* --- passes --- */

static uint64_t chunk_bytes(const struct getting *g, const struct chunk *c) {
    uint64_t bytes = 0;
    for (size_t k = 0; k < c->n; k++) {
        const struct want *w = &g->wants[c->order[k]];
        if (w->state == PLACED) bytes += w->read.to - w->read.pos;
    }
    return bytes;
}

static bool next_chunk(const struct getting *g, const size_t *order, size_t n, size_t *at,
                       struct chunk *c) {
    size_t limit = lane_chunk_keys(g->lane, g->n);
    *c = (struct chunk){.order = order + *at, .n = n - *at < limit ? n - *at : limit};
    *at += c->n;
    return c->n > 0;
}

/* What the chunk's look-up and reads took of the arena, unless an item goes on with it. Returns the
 * next chunk's mark. */
static struct arena_mark forget(struct getting *g, const struct chunk *c, struct arena_mark mark) {
    struct arena *arena = &g->lane->arena;
    bool over = g->n_scratch == 0;
    for (size_t k = 0; k < c->n && over; k++) over = g->wants[c->order[k]].state == FINISHED;
    if (!over) return arena_mark(arena);
    arena_rewind(arena, mark);
    return mark;
}

/* Tries all that are WANTED once. Not TARN_OK: the control connection failed. */
static tarn_status pass(struct getting *g) {
    size_t *order = arena_alloc(&g->lane->arena, g->n * sizeof(*order));
    size_t n = 0, at = 0;
    for (size_t i = 0; i < g->n; i++) {
        if (g->wants[i].state == FINISHED) continue;
        g->wants[i].state = WANTED;
        order[n++] = i;
    }
    struct chunk now, next;
    tarn_status status = lane_ready(g->lane, g->deadline);
    bool more = status == TARN_OK && next_chunk(g, order, n, &at, &now);
    if (more) status = send_locate(g, &now);
    struct arena_mark mark = arena_mark(&g->lane->arena);
    while (more && status == TARN_OK) {
        status = receive_locate(g, &now);
        if (status == TARN_OK) status = ensure_segments(g, &now);
        if (status != TARN_OK) break;
        /* The lease of the next chunk ticks while this one moves: ask ahead only if that is soon
         * over. */
        more = next_chunk(g, order, n, &at, &next);
        bool ahead = more && chunk_bytes(g, &now) <= g->lane->window;
        if (ahead) status = send_locate(g, &next);
        read_chunk(g, &now);
        release(g, &now);
        if (status == TARN_OK && more && !ahead) status = send_locate(g, &next);
        mark = forget(g, &now, mark);
        now = next;
    }
    if (status != TARN_OK) ctl_abandon(&g->lane->ctl);
    if (g->new_session) ctl_close(&g->lane->ctl);
    g->new_session = false;
    return status;
}

/* A connection has one lease per version, so of items with the same key only the last one ends it.
 * Within one chunk all reads come before the release, and it does not matter. Keys are told apart
 * by their hashes: two of the same only cost one its early end. */
static void find_last_of_keys(struct getting *g) {
    for (size_t i = 0; i < g->n; i++) g->wants[i].last_of_key = true;
    if (g->n <= lane_chunk_keys(g->lane, g->n)) return;
    size_t slots = 64;
    while (slots < 2 * g->n) slots *= 2;
    struct {
        uint64_t hash;
        size_t item; /* + 1, 0: a free slot */
    } *table = arena_alloc(&g->lane->arena, slots * sizeof(*table));
    memset(table, 0, slots * sizeof(*table));
    for (size_t i = 0; i < g->n; i++) {
        uint64_t hash = hash_bytes(g->items[i].key, g->items[i].key_len);
        size_t at = hash & (slots - 1);
        while (table[at].item != 0 && table[at].hash != hash) at = (at + 1) & (slots - 1);
        if (table[at].item != 0) g->wants[table[at].item - 1].last_of_key = false;
        table[at].hash = hash;
        table[at].item = i + 1;
    }
}

static tarn_status wait_first(struct getting *g) {
    tarn_key *keys = arena_alloc(&g->lane->arena, g->n * sizeof(*keys));
    for (size_t i = 0; i < g->n; i++) keys[i] = (tarn_key){g->items[i].key, g->items[i].key_len};
    size_t length;
    return wait_for_keys(g->lane, keys, g->n, g->options->wait_ms, g->deadline, &length);
}

/* Those that could not be had within the call's time. */
static void give_up(struct getting *g) {
    for (size_t i = 0; i < g->n; i++) {
        struct want *w = &g->wants[i];
        if (w->state == FINISHED || w->later == TARN_OK) continue;
        item_finish(g, i,
                    fail(w->later, "the server could not serve it within the call's time (%s): %s",
                         error_code(w->later), tarn_status_text(w->later)));
    }
}

tarn_status get_run(struct lane *lane, tarn_item *items, size_t n,
                    const struct get_options *options) {
    struct getting *g = arena_alloc(&lane->arena, sizeof(*g));
    *g = (struct getting){.lane = lane,
                          .items = items,
                          .n = n,
                          .options = options,
                          .deadline = options->deadline,
                          .unfinished = n,
                          .began_ms = now_ms()};
    g->wants = arena_alloc(&lane->arena, n * sizeof(*g->wants));
    memset(g->wants, 0, n * sizeof(*g->wants));
    COUNT(lane, gets, n);
    for (size_t i = 0; i < n; i++) {
        items[i].got = items[i].value_size = items[i].version = 0;
        items[i].replicas = 0;
        tarn_status status = client_check_key(items[i].key, items[i].key_len);
        if (status != TARN_OK) item_finish(g, i, status);
    }
    find_last_of_keys(g);

    struct attempts attempts = {0};
    tarn_status status = TARN_OK;
    /* without a lease: its clock would run while we wait */
    if (options->wait_ms > 0) status = wait_first(g);
    if (status == TARN_ECLOSED || status == TARN_EIO) status = TARN_OK; /* the passes reconnect */
    unsigned waited = 0;
    while (g->unfinished > 0 && status == TARN_OK) {
        g->later = g->later_ms = 0;
        status = pass(g);
        if (status == TARN_OK && g->later > 0 &&
            !lane_later(lane, waited++, g->later_ms, g->deadline))
            give_up(g);
        if (status != TARN_OK && lane_retry(lane, &attempts, status, g->deadline)) status = TARN_OK;
        if (status == TARN_OK && g->unfinished > 0 && now_ms() >= g->deadline) {
            status = fail(TARN_ETIMEOUT, "the deadline passed before all bytes were there");
            COUNT(lane, timeouts, 1);
        }
    }
    for (size_t i = 0; i < n && status != TARN_OK; i++) {
        if (g->wants[i].state != FINISHED) item_finish(g, i, status);
    }
    for (size_t i = 0; i < g->n_scratch; i++) free(g->scratch[i]);
    return status;
}
