/* Eviction order behind one interface. A policy links the objects it looks after through
 * object.prev/next (helpers below), keeps its own 8-bit counter and a flag bit in each, and sees
 * more than single keys: every event carries the time and the chain, i.e. the batch the key came
 * in: its place there, how long the hit prefix is so far, which earlier request this one extends.
 * prefix_done tells of the whole batch. A policy that learns from sessions needs no other source.
 *
 * There is one instance per quota domain and kind (objects with space, objects in the books).
 * Objects that may not go (leased, held, hard-pinned) are taken out by the books when pop meets
 * them, and come back with give_back. */
#ifndef TARN_STORE_POLICY_H
#define TARN_STORE_POLICY_H

#include "store/record.h"

struct policy;

struct policy_event {
    uint64_t now_ms;
    uint32_t request; /* number of the batch */
    /* the request in which the last key of the hit prefix was last seen, 0: none */
    uint32_t extends;
    uint32_t position; /* of the key in the batch */
    uint32_t length;   /* keys of the batch */
    uint32_t depth;    /* blocks before it in its chain */
    uint32_t hits;     /* leading hits so far */
    /* hints of the client (struct store_batch), 0: none. Anything may stand in them */
    uint32_t session, return_ms;
    bool put;
};

struct policy_ops {
    const char *name;
    size_t state_size;
    void (*open)(struct policy *p);
    void (*close)(struct policy *p);
    void (*insert)(struct policy *p, struct object *o, const struct policy_event *e); /* links it */
    void (*access)(struct policy *p, struct object *o, const struct policy_event *e); /* linked */
    /* Leaves without being evicted (removed, parked, pinned). */
    void (*unlink)(struct policy *p, struct object *o);
    /* Unlinks and returns who goes next; NULL: nobody left. Amortised constant time. */
    struct object *(*pop)(struct policy *p, uint64_t now_ms);
    /* One that was popped or unlinked stays after all: next in line again. */
    void (*give_back)(struct policy *p, struct object *o);
    /* One that was popped is really gone; its hash, for policies that remember. */
    void (*evicted)(struct policy *p, struct object *o, uint64_t hash);
    /* A look-up batch has ended: its chain as far as it was there. */
    void (*prefix_done)(struct policy *p, const struct policy_event *last);
    /* Moves all objects, next to go last, to the back of another list: the policy is being
     * replaced. Constant time. */
    void (*drain)(struct policy *p, object_ref into);
    /* for OBJECT FREQ, NULL: keeps none */
    unsigned (*freq)(const struct policy *p, const struct object *o);
    uint64_t (*memory)(const struct policy *p);
    bool keeps; /* nobody goes to make room: a put that finds none fails; the order is for EVICT */
};

struct policy {
    const struct policy_ops *ops;
    struct records *records;
    const struct store_config *config;
    uint64_t count; /* linked objects */
    uint32_t seed;  /* of the policy's own random numbers */
    void *state;
};

/* ops NULL: unknown name. */
const struct policy_ops *policy_find(const char *name);
#define POLICY(name) extern const struct policy_ops policy_##name;
STORE_POLICIES(POLICY)
POLICY(noeviction)
#undef POLICY

bool policy_open(struct policy *p, const struct policy_ops *ops, struct records *records,
                 const struct store_config *config);
void policy_close(struct policy *p);

/* --- lists: the head is a record without key, so that unlinking needs to know neither list nor end
 * --- */

object_ref list_new(struct records *r);
void list_free(struct records *r, object_ref head);
static inline bool list_linked(const struct object *o) {
    return o->prev != 0;
}
static inline void list_insert_after(struct records *r, object_ref at, struct object *o) {
    struct object *a = record_get(r, at);
    object_ref ref = record_ref(r, o);
    o->prev = at;
    o->next = a->next;
    record_get(r, a->next)->prev = ref;
    a->next = ref;
}
static inline void list_push_front(struct records *r, object_ref head, struct object *o) {
    list_insert_after(r, head, o);
}
static inline void list_push_back(struct records *r, object_ref head, struct object *o) {
    list_insert_after(r, record_get(r, head)->prev, o);
}
static inline void list_unlink(struct records *r, struct object *o) {
    record_get(r, o->prev)->next = o->next;
    record_get(r, o->next)->prev = o->prev;
    o->prev = o->next = 0;
}
static inline struct object *list_back(struct records *r, object_ref head) {
    object_ref ref = record_get(r, head)->prev;
    return ref == head ? NULL : record_get(r, ref);
}
/* Appends all of from behind into, in order; from is empty afterwards. O(1). */
void list_splice_back(struct records *r, object_ref into, object_ref from);

#endif
