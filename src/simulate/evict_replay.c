#include "simulate/evict.h"

#include <stdlib.h>

#include "base/assert.h"
#include "base/htab.h"
#include "store/figures.h"

#define PAGE     4096u
#define BIRTH_MS UINT64_C(1000)
#define WALL_MS  UINT64_C(1000000)
#define LEASE_MS 50u /* as replay's; they are given back before */
/* keys of a batch: of many a quarter, within these bounds (client/lane.c) */
#define CHUNK_MIN 128u
#define CHUNK_MAX 512u
#define SESSION   1u
#define AHEAD     32u

/* A request's keys and what is known of each. */
struct evict_books {
    struct store *store;
    struct store_chain chain;
    struct span *key;
    uint64_t *hash, *version, *token, *text;
    uint32_t session; /* that the request says it belongs to, 0: it says none */
};

static void replay_open(struct evict_books *r, const struct trace *t, const char *policy,
                        uint64_t blocks) {
    struct store_config config;
    store_config_init(&config);
    config.high_watermark = 1;
    config.seed = 1;
    hash_set_seed(1); /* the same each time */
    *r = (struct evict_books){
        .store = store_create(&config, NULL, policy, "offset", BIRTH_MS, WALL_MS),
        .key = xcalloc(t->longest + 1, sizeof(*r->key)),
        .hash = xcalloc(t->longest + 1, sizeof(*r->hash)),
        .version = xcalloc(t->longest + 1, sizeof(*r->version)),
        .token = xcalloc(t->longest + 1, sizeof(*r->token)),
        .text = xcalloc(t->longest + 1, sizeof(*r->text)),
    };
    TARN_ASSERT(r->store != NULL);
    const struct store_segment_config segment = {
        .name = "pool", .epoch = 1, .tier = STORE_TIER_MEMORY, .size = blocks * PAGE};
    uint32_t id;
    tarn_status status = store_segment_add(r->store, &segment, &id);
    TARN_ASSERT(status == TARN_OK);
}

static void replay_close(struct evict_books *r) {
    store_destroy(&r->store);
    free(r->key);
    free(r->hash);
    free(r->version);
    free(r->token);
    free(r->text);
}

static void request_keys(struct evict_books *r, const uint64_t *ids, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        r->text[i] = ids[i];
        r->key[i] = span_of(&r->text[i], sizeof(r->text[i]));
    }
    for (uint32_t i = 0; i < n; i += AHEAD)
        store_prefetch(r->store, r->key + i, n - i < AHEAD ? n - i : AHEAD, r->hash + i);
}

static void batch_begin(struct evict_books *r, struct store_batch *batch,
                        enum store_batch_kind kind, uint32_t n) {
    store_settle(r->store);
    store_batch_begin(r->store, batch, &r->chain, kind, n);
    batch->session = r->session;
}

/* Looks keys up, and takes leases, to the first that is not there: which one that is, or `to`. */
static uint32_t keys_read(struct evict_books *r, enum store_batch_kind kind, uint32_t from,
                          uint32_t to) {
    struct store_batch batch;
    uint64_t granted;
    batch_begin(r, &batch, kind, to - from);
    for (uint32_t i = from; i < to; i++) {
        struct object *o = store_find_hashed(r->store, r->key[i], r->hash[i]);
        if (o == NULL) {
            store_batch_miss(r->store, &batch, r->key[i], r->hash[i]);
            store_batch_gap(r->store, to - i - 1);
            return i;
        }
        store_batch_hit(r->store, &batch, o, r->hash[i]);
        r->version[i] = store_object_version(o);
        tarn_status status = store_lease(r->store, o, SESSION, LEASE_MS, &granted);
        TARN_ASSERT(status == TARN_OK);
    }
    return to;
}

/* A block that is there already, or that no room can be made for, has no token. */
static void keys_open(struct evict_books *r, uint32_t from, uint32_t to) {
    const struct store_put_options options = {
        .replicas = 1, .host = STORE_HOST_NONE, .local = true};
    struct store_batch batch;
    batch_begin(r, &batch, STORE_BATCH_PUT, to - from);
    for (uint32_t i = from; i < to; i++) {
        struct store_put *put;
        unsigned budget = 1000000;
        tarn_status status =
            store_put_start(r->store, &batch, r->key[i], PAGE, &options, SESSION, &budget, &put);
        r->token[i] = status == TARN_OK ? store_put_token(put) : 0;
        if (status == TARN_EAGAIN) store_put_abandon(r->store, &put);
    }
}

/* --- as libtarn does it: many keys are several batches --- */

static uint32_t chunk_end(uint32_t from, uint32_t at, uint32_t to) {
    uint32_t most = (to - from) / 4 + 1;
    most = most < CHUNK_MIN ? CHUNK_MIN : most > CHUNK_MAX ? CHUNK_MAX : most;
    return to - at < most ? to : at + most;
}

static void request_get(struct evict_books *r, uint32_t hits) {
    for (uint32_t at = 0, end; at < hits; at = end) {
        end = chunk_end(0, at, hits);
        keys_read(r, STORE_BATCH_READ, at, end);
        for (uint32_t i = at; i < end; i++)
            store_release(r->store, r->key[i], SESSION, r->version[i], false);
    }
}

static void keys_end(struct evict_books *r, uint32_t from, uint32_t to) {
    for (uint32_t i = from; i < to; i++)
        if (r->token[i] != 0) store_put_end(r->store, r->key[i], r->token[i], -1, 0, NULL, 0, NULL);
}

/* A chunk is opened before the one before it ends. */
static void request_put(struct evict_books *r, uint32_t from, uint32_t n) {
    for (uint32_t ended = from, at = from, end; ended < n; ended = at, at = end) {
        end = chunk_end(from, at, n);
        if (at < n) keys_open(r, at, end);
        keys_end(r, ended, at);
    }
}

static void replay_time(struct evict_books *r, uint64_t ms) {
    unsigned budget = 1000000;
    store_tick(r->store, BIRTH_MS + ms, WALL_MS + ms);
    store_background(r->store, &budget);
    store_settle(r->store);
}

static uint32_t replay_request(struct evict_books *r, const uint64_t *ids, uint32_t n) {
    request_keys(r, ids, n);
    uint32_t hits = n > 0 ? keys_read(r, STORE_BATCH_LEASE, 0, n) : 0;
    request_get(r, hits);
    request_put(r, hits, n);
    return hits;
}

static void request_hints(struct evict_books *r, const struct trace_request *q, bool hints) {
    r->session = 0;
    if (hints && q->session != TRACE_SESSION_NONE)
        r->session = store_session(span_of(&q->session, sizeof(q->session)));
}

void evict_replay(const struct trace *t, const char *policy, uint64_t blocks, bool hints,
                  const struct sim_speed *speed, struct evict_score *score) {
    struct evict_books r;
    replay_open(&r, t, policy, blocks);
    *score = (struct evict_score){0};
    for (size_t i = 0; i < t->n; i++) {
        const struct trace_request *q = &t->requests[i];
        replay_time(&r, q->timestamp_ms - t->requests[0].timestamp_ms);
        request_hints(&r, q, hints);
        evict_count(score, speed, t, q, replay_request(&r, t->ids + q->first, q->n));
    }
    score->evictions = store_evictions(r.store);
    replay_close(&r);
}

void evict_count(struct evict_score *score, const struct sim_speed *speed, const struct trace *t,
                 const struct trace_request *q, uint32_t hits) {
    uint64_t tokens = (uint64_t)hits * t->block;
    score->hits += hits;
    score->saved_s += sim_chunk_s(speed, (double)(tokens < q->input ? tokens : q->input), 0);
}
