/* What the tests of values on other machines share: requests by one client, a look at the books and
 * at what is lent, second replicas, damaged bytes. */
#ifndef TARN_TESTS_UNIT_INBAND_VALUES_H
#define TARN_TESTS_UNIT_INBAND_VALUES_H

#include "pool.h"

#define KB UINT64_C(1024)
#define MB (1024 * KB)

static redisContext *c;
static redisReply *reply;

static inline void begin(uint64_t own) {
    pool_begin(own);
    c = pool_connect();
    CHECK(c != NULL && c->err == 0);
}

static inline void end(void) {
    if (reply != NULL) freeReplyObject(reply);
    reply = NULL;
    redisFree(c);
    pool_end();
}

static inline void ask(const char *fmt, ...) {
    va_list ap;
    if (reply != NULL) freeReplyObject(reply);
    va_start(ap, fmt);
    reply = redisvCommand(c, fmt, ap);
    va_end(ap);
}

static inline void check_value(const char *value, size_t len) {
    CHECK(reply != NULL);
    if (reply->type == REDIS_REPLY_ERROR) CHECK_STR(reply->str, "a value");
    CHECK_EQ(reply->type, REDIS_REPLY_STRING);
    CHECK_EQ(reply->len, len);
    CHECK(memcmp(reply->str, value, len) == 0);
}

static inline void check_ok(void) {
    CHECK(reply != NULL);
    CHECK(reply->type == REDIS_REPLY_STATUS || reply->type == REDIS_REPLY_ERROR);
    CHECK_STR(reply->str, "OK");
}

static inline void check_nil(void) {
    CHECK(reply != NULL);
    CHECK_EQ(reply->type, REDIS_REPLY_NIL);
}

static inline void check_int(long long v) {
    CHECK(reply != NULL);
    CHECK_EQ(reply->type, REDIS_REPLY_INTEGER);
    CHECK_EQ(reply->integer, v);
}

static inline char *make(size_t len, unsigned seed) {
    char *data = xmalloc(len + 1);
    for (size_t i = 0; i < len; i++)
        data[i] = (char)((i * 2654435761u + seed * 97 + i / 4096) >> 7);
    data[len] = 0;
    return data;
}

/* --- looking at the books, from the server's thread --- */

struct figures {
    struct remote_figures now;
    struct remote_stats stats;
};

static inline void get_figures(void *arg) {
    struct figures *f = arg;
    remote_get_figures(&f->now);
    f->stats = remote_stats;
}

static inline struct figures figures(void) {
    struct figures f;
    pool_call(get_figures, &f);
    return f;
}

/* All that was lent has come back. */
static inline bool nothing_claimed(void) {
    for (int i = 0; i < 30000; i++) {
        struct figures f = figures();
        if (f.now.claimed + f.now.claims + f.now.sessions == 0) return true;
        usleep(1000);
    }
    return false;
}

struct look {
    const char *key;
    struct store_layout layout;
    uint64_t version, size;
    bool there;
};

static inline void look_at(void *arg) {
    struct look *l = arg;
    struct object *o = store_find(books, span_str(l->key));
    struct span value;
    l->there = o != NULL;
    if (o == NULL) return;
    l->version = store_object_version(o);
    l->size = store_object_size(books, o);
    if (!store_object_inline(o, &value)) store_object_layout(books, o, &l->layout);
}

static inline struct look look(const char *key) {
    struct look l = {.key = key};
    pool_call(look_at, &l);
    return l;
}

static inline struct pool_node *node_of(const struct store_replica *r) {
    for (unsigned i = 0; i < POOL_NODES; i++)
        if (pool.node[i].host != NULL && pool.node[i].segment == r->extent[0].segment)
            return &pool.node[i];
    return NULL;
}

/* A second replica, which nobody asks for in-band: the test is the task that copies it. */
struct copying {
    const char *key;
    uint32_t to;
};

static inline void copy_replica(void *arg) {
    const struct copying *k = arg;
    struct object *o = store_find(books, span_str(k->key));
    struct store_layout layout;
    struct store_copy_options options = {
        .segment = k->to, .host = STORE_HOST_NONE, .from = STORE_SEGMENT_ANY, .evict = true};
    struct store_copy *copy;
    struct store_replica to;
    unsigned budget = 100000;
    store_object_layout(books, o, &layout);
    TARN_ASSERT(store_copy_start(books, span_str(k->key), store_object_version(o), &options,
                                 &budget, &copy) == TARN_OK);
    store_copy_layout(books, copy, &to);
    const struct store_replica *from = &layout.replica[0];
    TARN_ASSERT(from->extents == 1 && to.extents == 1);
    char *src = host_segment_base(node_of(from)->host, from->extent[0].segment);
    char *dst = host_segment_base(node_of(&to)->host, k->to);
    memcpy(dst + to.extent[0].offset, src + from->extent[0].offset, from->extent[0].length);
    TARN_ASSERT(store_copy_end(books, &copy, true) == TARN_OK);
}

static inline void add_replica(const char *key, unsigned node) {
    struct copying k = {key, pool.node[node].segment};
    pool_call(copy_replica, &k);
}

struct damage {
    const char *key;
    unsigned node;
    uint64_t at; /* of the value */
};

static inline void do_damage(void *arg) {
    const struct damage *d = arg;
    struct object *o = store_find(books, span_str(d->key));
    struct store_layout layout;
    store_object_layout(books, o, &layout);
    for (uint32_t i = 0; i < layout.replicas; i++) {
        const struct store_extent *x = &layout.replica[i].extent[0];
        if (x->segment != pool.node[d->node].segment) continue;
        char *base = host_segment_base(pool.node[d->node].host, x->segment);
        base[x->offset + d->at] ^= 1;
        return;
    }
    TARN_ASSERT(0);
}

static inline void damage(const char *key, unsigned node, uint64_t at) {
    struct damage d = {key, node, at};
    pool_call(do_damage, &d);
}

#endif
