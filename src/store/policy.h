/* Eviction order behind one interface. A policy looks after objects of the books: it links them
 * through object.prev/next (helpers below), keeps its own 8-bit counter and a flag bit in each, and
 * sees more than single keys: every event carries the time and the chain, i.e. the batch the key
 * came in: its place there, how long the hit prefix is so far. prefix_done tells of the whole
 * batch. A policy that learns from sessions needs no other source.
 *
 *   insert ─> linked ──pop──> popped ──evicted──> gone from memory
 *               │  ^            ├─────unlink────> gone, or to where the policy does not see it
 *            unlink│            └──────held─────> held: leased, so it is not evicted now
 *            evicted                                ├──unlink, evicted──>
 *               v  └────────────give_back───────────┴──(popped or held)
 *
 *   linked, popped, held ──park──> parked ──insert──> linked
 *                                    └─────forget───> gone, or to where the policy does not see it
 *
 * An object is the policy's from insert until unlink or evicted. Every pop is followed by exactly
 * one of evicted, give_back, unlink and held, and held by one of the first three. object.prev is 0
 * while it is popped or held, and not 0 while it is linked: the books look at that, and at nothing
 * else of what the policy keeps in it. They do not write object.request of one that is the
 * policy's, which has to be the number of its last request again once unlink or evicted returns.
 *
 * There is one instance per quota domain and kind (objects with space, objects in the books), at an
 * address that changes. One that is replaced lives on until the books have moved its objects: it
 * pops, and the new one inserts. What is hard- or soft-pinned, waits for a copy on a disk, or lies
 * on a disk only is in no policy. The first three are parked, where a policy was told of them: they
 * are in memory, so one that knows chains still wants what is before them. */
#ifndef TARN_STORE_POLICY_H
#define TARN_STORE_POLICY_H

#include "store/record.h"

struct policy;

struct policy_event {
    uint64_t now_ms;
    uint64_t hash;     /* store_hash of the key; 0: there is no key */
    uint32_t request;  /* number of the batch, or of the one that this one goes on with; 0: none */
    uint32_t position; /* of the key in the batch */
    uint32_t length;   /* keys of the batch; 0: there is none, and nobody knows */
    uint32_t depth;    /* blocks before it in its chain */
    uint32_t hits;     /* leading hits so far */
    /* hints of the client (struct store_batch), 0: none. Anything may stand in them */
    uint32_t session, return_ms;
    bool put;
    /* access: the request that used it last uses it again, which is later, but not one use more.
     * Who has a request() of his own is not told. */
    bool again;
    /* insert: as the next to go, with the counter and the flag bit that it has. It came from
     * another policy or domain, its pin is over, or its space is needed before a disk has it. */
    bool next;
};

struct policy_ops {
    const char *name;
    size_t state_size;
    void (*open)(struct policy *p);
    void (*close)(struct policy *p); /* objects may be left: the books go */
    /* Becomes the policy's, and is linked. */
    void (*insert)(struct policy *p, struct object *o, const struct policy_event *e);
    /* Used; it is linked. The books set its access time after this. */
    void (*access)(struct policy *p, struct object *o, const struct policy_event *e);
    /* One may soon be used: what access will look at comes near. NULL: nothing to do. */
    void (*near)(const struct policy *p, const struct object *o);
    /* Leaves without being evicted (removed, moved): linked, popped or held. */
    void (*unlink)(struct policy *p, struct object *o);
    /* Leaves the order, but stays in memory, until insert or forget. Its fields are the books'
     * until then, as after unlink, which is done if this is NULL; then the two below are, too. */
    void (*park)(struct policy *p, struct object *o);
    /* One that may be parked is used. */
    void (*parked_access)(struct policy *p, struct object *o, const struct policy_event *e);
    /* One that may be parked goes. */
    void (*forget)(struct policy *p, const struct object *o);
    /* Unlinks and returns who goes next; NULL: nobody left. Amortised constant time. */
    struct object *(*pop)(struct policy *p, uint64_t now_ms);
    /* Who most likely is popped next, NULL: nobody knows, or that is not known without a search. */
    struct object *(*peek)(struct policy *p);
    /* One that was popped is in use, so it stays out of the order until give_back or unlink. NULL:
     * nothing to do. */
    void (*held)(struct policy *p, struct object *o);
    /* One that was popped or held stays after all: next in line again. In any order. */
    void (*give_back)(struct policy *p, struct object *o);
    /* Of two that are popped: the first lies behind the other one in its chain, so that it would be
     * kept in vain. NULL: never. */
    bool (*behind)(const struct policy *p, const struct object *o, const struct object *other);
    /* Unlinks and returns the last that it finds behind one which is linked or held and goes out of
     * its turn; NULL: none. If this is NULL, there never is one. */
    struct object *(*pop_behind)(struct policy *p, const struct object *o, unsigned *budget);
    /* Leaves memory by eviction, most often popped, but linked or held where it goes with another
     * or by name. Its hash, for policies that remember. */
    void (*evicted)(struct policy *p, struct object *o, uint64_t hash);
    /* A batch of look-ups, reads or puts has ended, with its last key or when the next begins: its
     * last event, and so its chain as far as it was there. What PUTSTART began is inserted when it
     * is whole, which is later. A batch that goes on after another has begun meanwhile ends again.
     * NULL: nothing to do. */
    void (*prefix_done)(struct policy *p, const struct policy_event *last);
    /* The number of the request in which one of its objects was last inserted or accessed; NULL: it
     * is object.request. */
    uint32_t (*request)(const struct policy *p, const struct object *o);
    /* A look-up without an access has found a prefix that ends with this object, linked or held
     * or one that may be parked, and no more: what that request puts comes behind it. The event is
     * that of the first miss. NULL: nothing to do. */
    void (*found)(struct policy *p, struct object *o, bool parked, const struct policy_event *e);
    /* Of one of its objects: uses that it may expect for each request for which it is kept, which
     * compares it with those of another policy of this kind. NULL: who was unused for longer goes
     * first. */
    float (*worth)(const struct policy *p, const struct object *o);
    /* An object that lies on disks only is used, which is no hit of an object of the policy's; it
     * may be inserted soon, as part of that request. NULL: nothing to do. */
    void (*far_access)(struct policy *p, const struct policy_event *e);
    /* What such an object, last used by that request, would be worth as one of the policy's. again:
     * it was used there; < 0: it is not known. NULL: it never is. */
    float (*far_worth)(struct policy *p, uint32_t request, bool again);
    /* for OBJECT FREQ, NULL: keeps none */
    unsigned (*freq)(const struct policy *p, const struct object *o);
    uint64_t (*memory)(const struct policy *p);
    uint64_t (*mapped)(
        const struct policy *p); /* NULL: none. Of that, what lies past the allocator */
    /* Has its place for values in the books, which are in no chains; NULL: it does that itself. */
    const struct policy_ops *for_small;
    bool chains; /* who goes next depends on what is behind it: of single keys it says nothing */
    bool keeps;  /* nobody goes to make room: a put that finds none fails; the order is for EVICT */
};

struct policy {
    const struct policy_ops *ops; /* NULL: there is none */
    struct records *records;
    const struct store_config *config;
    uint64_t count; /* linked objects: the policy's to keep */
    uint64_t out;   /* popped and held ones: the books' */
    uint32_t seed;  /* of the policy's own random numbers */
    void *state;
};

/* ops NULL: unknown name. */
const struct policy_ops *policy_find(const char *name);
#define POLICY(name) extern const struct policy_ops policy_##name;
STORE_POLICIES(POLICY)
POLICY(noeviction)
#undef POLICY

/* Of objects with space (small: in the books) when that is the policy in use. */
static inline const struct policy_ops *policy_of(const struct policy_ops *ops, bool small) {
    return small && ops->for_small ? ops->for_small : ops;
}
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

#endif
