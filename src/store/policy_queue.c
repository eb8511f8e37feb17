/* lru, fifo, sieve and noeviction: one queue, new objects at its front, victims from its back.
 *
 * lru moves an object to the front when it is used. fifo never does. sieve (Zhang et al., NSDI
 * 2024) only marks it, and a hand that walks from back to front takes the first unmarked one,
 * clearing marks on its way. */
#include "base/assert.h"
#include "store/policy.h"

struct queue {
    object_ref head;
    object_ref hand; /* sieve: next candidate; 0: start at the back */
};

static void queue_open(struct policy *p) {
    ((struct queue *)p->state)->head = list_new(p->records);
}

static void queue_close(struct policy *p) {
    struct queue *q = p->state;
    list_free(p->records, q->head);
}

static void queue_give_back(struct policy *p, struct object *o) {
    struct queue *q = p->state;
    list_push_back(p->records, q->head, o);
    p->count++;
}

static void queue_insert(struct policy *p, struct object *o, const struct policy_event *e) {
    struct queue *q = p->state;
    o->request = e->request;
    if (e->next) {
        queue_give_back(p, o);
        return;
    }
    object_set_freq(o, 0);
    list_push_front(p->records, q->head, o);
    p->count++;
}

static void queue_unlink(struct policy *p, struct object *o) {
    struct queue *q = p->state;
    if (!list_linked(o)) return;
    if (q->hand == record_ref(p->records, o)) q->hand = o->prev == q->head ? 0 : o->prev;
    list_unlink(p->records, o);
    p->count--;
}

static struct object *queue_pop(struct policy *p, uint64_t now_ms) {
    struct queue *q = p->state;
    struct object *o = list_back(p->records, q->head);
    if (!o) return NULL;
    /* Victims lie anywhere. The one after the next was brought near by the last call, so its link
     * costs nothing. */
    const char *later = (const char *)record_get(p->records, record_get(p->records, o->prev)->prev);
    __builtin_prefetch(later);
    __builtin_prefetch(later + 64);
    queue_unlink(p, o);
    return o;
}

static struct object *queue_peek(struct policy *p) {
    const struct queue *q = p->state;
    return list_back(p->records, q->head);
}

static void queue_evicted(struct policy *p, struct object *o, uint64_t hash) {
    queue_unlink(p, o);
}

static uint64_t queue_memory(const struct policy *p) {
    return sizeof(struct queue);
}

static void lru_access(struct policy *p, struct object *o, const struct policy_event *e) {
    struct queue *q = p->state;
    o->request = e->request;
    list_unlink(p->records, o);
    list_push_front(p->records, q->head, o);
}

static void fifo_access(struct policy *p, struct object *o, const struct policy_event *e) {
    o->request = e->request;
}

static void sieve_access(struct policy *p, struct object *o, const struct policy_event *e) {
    o->request = e->request;
    object_set_freq(o, 1);
}

/* Each step clears a mark that one access set, so the walk is paid for by the accesses. */
static struct object *sieve_pop(struct policy *p, uint64_t now_ms) {
    struct queue *q = p->state;
    if (p->count == 0) return NULL;
    for (;;) {
        struct object *o =
            q->hand ? record_get(p->records, q->hand) : list_back(p->records, q->head);
        if (!object_freq(o)) {
            q->hand = record_ref(p->records, o);
            queue_unlink(p, o);
            return o;
        }
        object_set_freq(o, 0);
        q->hand = o->prev == q->head ? 0 : o->prev;
    }
}

/* Next in line is where the hand is. */
static void sieve_give_back(struct policy *p, struct object *o) {
    struct queue *q = p->state;
    object_set_freq(o, 0);
    if (q->hand)
        list_insert_after(p->records, q->hand, o);
    else
        list_push_back(p->records, q->head, o);
    q->hand = record_ref(p->records, o);
    p->count++;
}

static void sieve_insert(struct policy *p, struct object *o, const struct policy_event *e) {
    if (!e->next) {
        queue_insert(p, o, e);
        return;
    }
    o->request = e->request;
    sieve_give_back(p, o);
}

#define QUEUE_OPS                                                                                  \
    .state_size = sizeof(struct queue), .open = queue_open, .close = queue_close,                  \
    .unlink = queue_unlink, .evicted = queue_evicted, .memory = queue_memory

const struct policy_ops policy_lru = {.name = "lru",
                                      QUEUE_OPS,
                                      .insert = queue_insert,
                                      .access = lru_access,
                                      .pop = queue_pop,
                                      .peek = queue_peek,
                                      .give_back = queue_give_back};
/* In lru's order all the same: for EVICT, and for the policy that comes after it. */
const struct policy_ops policy_noeviction = {.name = "noeviction",
                                             QUEUE_OPS,
                                             .insert = queue_insert,
                                             .access = lru_access,
                                             .pop = queue_pop,
                                             .peek = queue_peek,
                                             .give_back = queue_give_back,
                                             .keeps = true};
const struct policy_ops policy_fifo = {.name = "fifo",
                                       QUEUE_OPS,
                                       .insert = queue_insert,
                                       .access = fifo_access,
                                       .pop = queue_pop,
                                       .peek = queue_peek,
                                       .give_back = queue_give_back};
const struct policy_ops policy_sieve = {.name = "sieve",
                                        QUEUE_OPS,
                                        .insert = sieve_insert,
                                        .access = sieve_access,
                                        .pop = sieve_pop,
                                        .give_back = sieve_give_back};
