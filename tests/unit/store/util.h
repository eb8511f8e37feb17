/* Small helpers of the books' tests. */
#ifndef TARN_TESTS_STORE_UTIL_H
#define TARN_TESTS_STORE_UTIL_H

#include "../test.h"

#include "store/books.h"

static uint64_t util_now = 1000;

static inline struct store *util_store(const char *policy, uint64_t pages,
                                       struct store_config *config, struct store_events *events) {
    struct store_config c;
    store_config_init(&c);
    c.high_watermark = 1;
    util_now = 1000;
    struct store *s =
        store_create(config ? config : &c, events, policy, "offset", util_now, 5000000);
    uint32_t id;
    CHECK(s &&
          store_segment_add(
              s, &(struct store_segment_config){.name = "s0", .epoch = 1, .size = pages * 4096},
              &id) == TARN_OK);
    return s;
}

static inline void util_tick(struct store *s, uint64_t ms) {
    util_now += ms;
    store_tick(s, util_now, 5000000 + util_now - 1000);
    unsigned budget = 100000;
    while (store_background(s, &budget)) budget = 100000;
}

static inline tarn_status util_put_as(struct store *s, const char *key, uint64_t size,
                                      const struct store_put_options *o, uint64_t session,
                                      uint64_t *token_p) {
    struct store_batch b;
    struct store_put *p;
    unsigned budget = 1000000;
    store_batch_begin(s, &b, NULL, STORE_BATCH_PUT, 1);
    tarn_status st = store_put_start(s, &b, span_str(key), size, o, session, &budget, &p);
    if (st == TARN_OK) *token_p = store_put_token(p);
    return st;
}

static inline tarn_status util_put_with(struct store *s, const char *key, uint64_t size,
                                        const struct store_put_options *o) {
    uint64_t token;
    tarn_status st = util_put_as(s, key, size, o, 1, &token);
    if (st != TARN_OK) return st;
    char zero[STORE_INLINE_MAX] = {0};
    struct span v = span_of(zero, size);
    return store_put_end(s, span_str(key), token, 1, 0, NULL, 0,
                         size <= STORE_INLINE_MAX ? &v : NULL);
}

static inline tarn_status util_put(struct store *s, const char *key, uint64_t size) {
    struct store_put_options o = {.replicas = 1};
    return util_put_with(s, key, size, &o);
}

static inline bool util_read(struct store *s, const char *key) {
    struct store_batch b;
    store_batch_begin(s, &b, NULL, STORE_BATCH_READ, 1);
    struct object *o = store_find(s, span_str(key));
    if (o)
        store_batch_hit(s, &b, o, store_hash(store_object_key(o)));
    else
        store_batch_miss(s, &b, span_str(key), store_hash(span_str(key)));
    return o != NULL;
}

static inline bool util_has(struct store *s, const char *key) {
    return store_find(s, span_str(key)) != NULL;
}

static inline bool util_lease(struct store *s, const char *key, uint64_t session, uint64_t ms) {
    uint64_t granted;
    struct object *o = store_find(s, span_str(key));
    return o && store_lease(s, o, session, ms, &granted) == TARN_OK && granted == ms;
}

#endif
