/* lru that checks what it is told: the protocol of store/policy.h. It keeps a number of its own in
 * object.request of each of its objects, so that nobody else's use of it goes unnoticed. */
#ifndef TARN_TESTS_STORE_RECORDER_H
#define TARN_TESTS_STORE_RECORDER_H

#include "../test.h"

#include <stdlib.h>
#include "store/books.h"

enum recorded { RECORDED_LINKED, RECORDED_POPPED, RECORDED_HELD };

struct recorded_object {
    struct htab_node node; /* by address */
    const struct object *object;
    const struct policy *inner; /* of whom it is */
    enum recorded state;
    uint32_t request, mark;
};

struct recorder {
    struct policy inner; /* lru */
    uint64_t owned;
};

static struct {
    struct htab objects; /* of all recorders */
    uint32_t marks;
    uint64_t popped; /* and not answered yet */
    bool ending;     /* the books go: what policies have is not taken from them */
    uint64_t pops, holds, returns, unlinked_out, evictions, batches;
} recorded;

static bool recorded_same(const struct htab_node *node, const void *key) {
    return CONTAINER_OF(node, const struct recorded_object, node)->object == key;
}

static struct recorded_object *recorded_find(const struct object *o) {
    struct htab_node *n = htab_find(&recorded.objects, hash_u64((uintptr_t)o), recorded_same, o);
    return n ? CONTAINER_OF(n, struct recorded_object, node) : NULL;
}

/* Of this very policy, and nobody has touched what it keeps. */
static struct recorded_object *recorded_of(const struct policy *p, const struct object *o) {
    struct recorded_object *x = recorded_find(o);
    CHECK(x && x->inner == p->state);
    CHECK_EQ(o->request, x->mark);
    CHECK_EQ(list_linked(o), x->state == RECORDED_LINKED);
    return x;
}

static struct policy *recorder_inner(struct policy *p) {
    return &((struct recorder *)p->state)->inner;
}

static void recorder_mark(struct policy *p, struct recorded_object *x, struct object *o,
                          uint32_t request) {
    x->request = request;
    o->request = x->mark = ++recorded.marks | 0x80000000u;
    p->count = recorder_inner(p)->count;
}

static void recorder_open(struct policy *p) {
    policy_open(recorder_inner(p), &policy_lru, p->records, p->config);
}

static void recorder_close(struct policy *p) {
    CHECK(recorded.ending || ((struct recorder *)p->state)->owned == 0);
    policy_close(recorder_inner(p));
}

static void recorder_insert(struct policy *p, struct object *o, const struct policy_event *e) {
    CHECK(!recorded_find(o) && !list_linked(o));
    CHECK_EQ(e->hash, store_hash(store_object_key(o)));
    CHECK(!e->again);
    struct recorded_object *x = xcalloc(1, sizeof(*x));
    x->object = o;
    x->inner = p->state;
    htab_insert(&recorded.objects, &x->node, hash_u64((uintptr_t)o));
    ((struct recorder *)p->state)->owned++;
    policy_lru.insert(recorder_inner(p), o, e);
    recorder_mark(p, x, o, e->request);
}

static void recorder_access(struct policy *p, struct object *o, const struct policy_event *e) {
    struct recorded_object *x = recorded_of(p, o);
    CHECK_EQ(x->state, RECORDED_LINKED);
    CHECK_EQ(e->hash, store_hash(store_object_key(o)));
    CHECK(e->length > 0 && !e->next);
    if (e->request != 0) CHECK_EQ(e->again, e->request == x->request);
    policy_lru.access(recorder_inner(p), o, e);
    recorder_mark(p, x, o, e->request);
}

/* It is nobody's from now on. */
static void recorder_let_go(struct policy *p, struct object *o) {
    struct recorded_object *x = recorded_of(p, o);
    recorded.popped -= x->state == RECORDED_POPPED;
    policy_lru.unlink(recorder_inner(p), o);
    p->count = recorder_inner(p)->count;
    o->request = x->request;
    ((struct recorder *)p->state)->owned--;
    htab_remove(&recorded.objects, &x->node);
    free(x);
}

static void recorder_unlink(struct policy *p, struct object *o) {
    recorded.unlinked_out += recorded_of(p, o)->state != RECORDED_LINKED;
    recorder_let_go(p, o);
}

static void recorder_evicted(struct policy *p, struct object *o, uint64_t hash) {
    CHECK_EQ(hash, store_hash(store_object_key(o)));
    recorded.evictions++;
    recorder_let_go(p, o);
}

static struct object *recorder_pop(struct policy *p, uint64_t now_ms) {
    struct object *next = list_back(p->records, *(object_ref *)recorder_inner(p)->state);
    if (!next) return NULL;
    struct recorded_object *x = recorded_of(p, next);
    CHECK(policy_lru.pop(recorder_inner(p), now_ms) == next);
    x->state = RECORDED_POPPED;
    p->count = recorder_inner(p)->count;
    recorded.popped++;
    recorded.pops++;
    return next;
}

static void recorder_held(struct policy *p, struct object *o) {
    struct recorded_object *x = recorded_of(p, o);
    CHECK(x->state == RECORDED_POPPED && (o->bits & OBJECT_REFS));
    x->state = RECORDED_HELD;
    recorded.popped--;
    recorded.holds++;
}

static void recorder_give_back(struct policy *p, struct object *o) {
    struct recorded_object *x = recorded_of(p, o);
    CHECK(x->state != RECORDED_LINKED);
    recorded.popped -= x->state == RECORDED_POPPED;
    recorded.returns += x->state == RECORDED_HELD;
    x->state = RECORDED_LINKED;
    policy_lru.give_back(recorder_inner(p), o);
    p->count = recorder_inner(p)->count;
}

static void recorder_prefix_done(struct policy *p, const struct policy_event *last) {
    CHECK(last->length > 0 && last->hash != 0 && last->request != 0);
    recorded.batches++;
}

static uint32_t recorder_request(const struct policy *p, const struct object *o) {
    return recorded_of(p, o)->request;
}

static uint64_t recorder_memory(const struct policy *p) {
    return sizeof(struct recorder);
}

static const struct policy_ops policy_recorder = {
    .name = "recorder",
    .state_size = sizeof(struct recorder),
    .open = recorder_open,
    .close = recorder_close,
    .insert = recorder_insert,
    .access = recorder_access,
    .unlink = recorder_unlink,
    .pop = recorder_pop,
    .held = recorder_held,
    .give_back = recorder_give_back,
    .evicted = recorder_evicted,
    .prefix_done = recorder_prefix_done,
    .request = recorder_request,
    .memory = recorder_memory,
};

static void recorded_forget(void *arg, struct htab_node *node) {
    free(CONTAINER_OF(node, struct recorded_object, node));
}

/* The end of books in which it was used. */
static inline void recorder_destroy(struct store **store_p) {
    CHECK_EQ(recorded.popped, 0u);
    recorded.ending = true;
    store_destroy(store_p);
    htab_each(&recorded.objects, recorded_forget, NULL);
    htab_free(&recorded.objects);
    recorded.objects = (struct htab){0};
    recorded.ending = false;
}

#endif
