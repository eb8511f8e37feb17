/* What waits for its copy on a disk, and may not be evicted before.
 *
 *   put ─> waiting ──(store_await_take)──> taken ──(store_far_add)──> in the order of eviction,
 *             ^ └───────────────┐            │                        as one that is new there
 *             │                 v            ├─(store_await_again: the disk did not take it)
 *             │         in the order of      │    ─> waiting
 *        store_await    eviction, next to    └─(store_await_end: it never will)
 *                       go: a put needs            ──> in the order of eviction
 *                       its space, and the
 *                       disk does not keep up
 *
 * These objects are in no order of eviction, but in the queue of the far segment that is to have
 * them, by the request that put them: a chain. Chains are copied oldest first, the head of each
 * before its tail; and where space is needed that the disk will not give in time, it is the last of
 * the oldest chain that goes. So a prompt loses its end, and no other loses anything.
 *
 * An object does not know its chain: the end of a list is a record without key that has the chain's
 * names, and whoever leaves a list as its last finds it beside itself. */
#include <stdlib.h>
#include "store/books.h"

struct chain {
    struct htab_node node; /* by request and far segment */
    TAILQ_ENTRY(chain) link;
    uint64_t age; /* grows along the queue */
    uint32_t request, far;
    object_ref waiting, taken; /* lists, by their heads */
};

struct chain_key {
    uint32_t request, far;
};

static uint64_t chain_hash(uint32_t request, uint32_t far) {
    return hash_u64((uint64_t)far << 32 | request);
}

static bool same_chain(const struct htab_node *node, const void *key) {
    const struct chain *c = CONTAINER_OF(node, const struct chain, node);
    const struct chain_key *k = key;
    return c->request == k->request && c->far == k->far;
}

static struct chain *chain_find(const struct store *s, uint32_t request, uint32_t far) {
    struct chain_key k = {request, far};
    struct htab_node *n = htab_find(&s->chains, chain_hash(request, far), same_chain, &k);
    return n ? CONTAINER_OF(n, struct chain, node) : NULL;
}

static object_ref head_new(struct store *s, uint32_t request, uint32_t far) {
    object_ref ref = list_new(&s->records);
    struct object *head = record_get(&s->records, ref);
    head->request = request;
    head->crc = far;
    return ref;
}

static bool chain_list_empty(const struct store *s, object_ref head) {
    return record_get(&s->records, head)->next == head;
}

static struct chain *chain_new(struct store *s, uint32_t request, uint32_t far, bool first) {
    struct segment *seg = s->space.segments[far];
    struct chain *c = xcalloc(1, sizeof(*c));
    c->request = request;
    c->far = far;
    c->waiting = head_new(s, request, far);
    c->taken = head_new(s, request, far);
    htab_insert(&s->chains, &c->node, chain_hash(request, far));
    const struct chain *beside =
        first ? TAILQ_FIRST(&seg->chains) : TAILQ_LAST(&seg->chains, chain_list);
    c->age = !beside ? UINT64_C(1) << 63 : first ? beside->age - 1 : beside->age + 1;
    if (first)
        TAILQ_INSERT_HEAD(&seg->chains, c, link);
    else
        TAILQ_INSERT_TAIL(&seg->chains, c, link);
    s->extra_bytes += sizeof(*c);
    return c;
}

static void chain_free(struct store *s, struct chain *c) {
    struct segment *seg = s->space.segments[c->far];
    if (seg->chains_next == c) seg->chains_next = TAILQ_NEXT(c, link);
    TAILQ_REMOVE(&seg->chains, c, link);
    htab_remove(&s->chains, &c->node);
    list_free(&s->records, c->waiting);
    list_free(&s->records, c->taken);
    s->extra_bytes -= sizeof(*c);
    free(c);
}

/* Something waits in c. */
static void chain_waits(struct store *s, struct chain *c) {
    struct segment *seg = s->space.segments[c->far];
    bool none = !seg->chains_next;
    if (none || c->age < seg->chains_next->age) seg->chains_next = c;
    if (none && s->events.awaits) s->events.awaits(s->events.arg, c->far);
}

/* The oldest in which something waits. Those before it are not looked at again until something
 * waits there. */
static struct chain *chain_next(struct store *s, uint32_t far) {
    struct segment *seg = s->space.segments[far];
    while (seg->chains_next && chain_list_empty(s, seg->chains_next->waiting))
        seg->chains_next = TAILQ_NEXT(seg->chains_next, link);
    return seg->chains_next;
}

/* --- coming and going --- */

uint32_t await_disk(const struct store *s, const struct object *o) {
    uint32_t n, disk = STORE_SEGMENT_ANY;
    const block_id *blocks = book_blocks(s, o, &n);
    for (uint32_t i = 0; i < n && disk == STORE_SEGMENT_ANY; i++)
        disk = s->space.segments[replica_segment(s, blocks[i])]->disk;
    return disk;
}

static void set_awaits(struct store *s, struct object *o, bool awaits) {
    book_count_evictable(s, o, -1);
    o->bits = awaits ? o->bits | OBJECT_AWAITS : o->bits & ~(uint32_t)OBJECT_AWAITS;
    book_count_evictable(s, o, 1);
    s->awaiting += awaits ? 1 : (uint64_t)-1;
    s->domains[book_domain(s, o)].awaiting += awaits ? 1 : (uint64_t)-1;
}

/* The disk that is to have it and has not; STORE_SEGMENT_ANY: none. */
static uint32_t wanted_at(const struct store *s, const struct object *o) {
    return object_has_far(s, o) || store_object_expire(s, o) ? STORE_SEGMENT_ANY : await_disk(s, o);
}

bool await_due(const struct store *s, const struct object *o) {
    return wanted_at(s, o) != STORE_SEGMENT_ANY;
}

void await_enter(struct store *s, struct object *o) {
    uint32_t disk = wanted_at(s, o);
    TARN_ASSERT(!list_linked(o) && !(o->bits & OBJECT_AWAITS));
    struct chain *c = chain_find(s, o->request, disk);
    if (!c) c = chain_new(s, o->request, disk, false);
    set_awaits(s, o, true);
    list_push_back(&s->records, c->waiting, o);
    chain_waits(s, c);
}

static void leave_list(struct store *s, struct object *o) {
    const struct object *head = o->prev == o->next ? record_get(&s->records, o->prev) : NULL;
    list_unlink(&s->records, o);
    struct chain *c = head ? chain_find(s, head->request, head->crc) : NULL;
    if (c && chain_list_empty(s, c->waiting) && chain_list_empty(s, c->taken)) chain_free(s, c);
}

void await_leave(struct store *s, struct object *o) {
    leave_list(s, o);
    set_awaits(s, o, false);
}

void await_end(struct store *s, struct object *o) {
    struct policy_event e = order_event(s, o);
    e.put = true;
    await_leave(s, o);
    s->room_changes++;
    object_set_freq(o, 0);
    book_enter_policy(s, o, &e);
}

bool store_await(struct store *s, struct object *o) {
    if ((o->bits & (OBJECT_AWAITS | OBJECT_INLINE)) || book_far_only(o) || s->following)
        return false;
    if (!await_due(s, o)) return false;
    book_park(s, o);
    await_enter(s, o);
    return true;
}

void store_await_end(struct store *s, struct object *o) {
    if (o->bits & OBJECT_AWAITS) await_end(s, o);
}

bool store_object_awaits(const struct object *o) {
    return (o->bits & OBJECT_AWAITS) != 0;
}

/* In the order of the puts. What is taken was behind all that is taken, unless it had come back;
 * what comes back was before all that waits, unless that had: at most as many steps as are under
 * way. */
static void enter_taken(struct store *s, struct chain *c, struct object *o) {
    object_ref at = record_get(&s->records, c->taken)->prev;
    while (at != c->taken && object_version(record_get(&s->records, at)) > object_version(o))
        at = record_get(&s->records, at)->prev;
    list_insert_after(&s->records, at, o);
}

static void enter_again(struct store *s, struct chain *c, struct object *o) {
    object_ref at = c->waiting, next = record_get(&s->records, at)->next;
    for (; next != c->waiting && object_version(record_get(&s->records, next)) < object_version(o);
         at = next)
        next = record_get(&s->records, next)->next;
    list_insert_after(&s->records, at, o);
}

struct object *store_await_take(struct store *s, uint32_t far) {
    struct chain *c = chain_next(s, far);
    if (!c) return NULL;
    struct object *o = record_get(&s->records, record_get(&s->records, c->waiting)->next);
    list_unlink(&s->records, o);
    enter_taken(s, c, o);
    return o;
}

bool store_await_waiting(struct store *s, uint32_t far) {
    return space_segment(&s->space, far) && chain_next(s, far);
}

void store_await_again(struct store *s, struct object *o, uint32_t far) {
    if (!(o->bits & OBJECT_AWAITS)) return;
    leave_list(s, o);
    struct chain *c = chain_find(s, o->request, far);
    if (!c) c = chain_new(s, o->request, far, true);
    enter_again(s, c, o);
    chain_waits(s, c);
}

void store_segment_copies(struct store *s, uint32_t memory, uint32_t far) {
    struct segment *seg = space_segment(&s->space, memory);
    if (!seg || seg->tier != STORE_TIER_MEMORY) return;
    s->copying += (far != STORE_SEGMENT_ANY) - (seg->disk != STORE_SEGMENT_ANY);
    seg->disk = far;
    if (far != STORE_SEGMENT_ANY) seg->awaits_at = far;
}

void await_segment_gone(struct store *s, struct segment *seg) {
    if (seg->tier == STORE_TIER_MEMORY && seg->disk != STORE_SEGMENT_ANY)
        store_segment_copies(s, seg->id, STORE_SEGMENT_ANY);
}

/* --- room --- */

static struct object *chain_last(struct store *s, const struct chain *c) {
    struct object *w = list_back(&s->records, c->waiting), *t = list_back(&s->records, c->taken);
    return !t || (w && object_version(w) > object_version(t)) ? w : t;
}

/* Who goes when somebody must: the end of the oldest chain. */
static struct object *await_last(struct store *s, const struct segment *far) {
    return TAILQ_EMPTY(&far->chains) ? NULL : chain_last(s, TAILQ_FIRST(&far->chains));
}

static void let_one_go(struct store *s, struct object *o) {
    await_leave(s, o);
    s->room_changes++;
    if (object_pin(s, o) != STORE_PIN_HARD) book_relink(s, o);
}

static bool chain_let_go(struct store *s, uint32_t far, unsigned *budget) {
    struct segment *seg = space_segment(&s->space, far);
    struct object *o = seg ? await_last(s, seg) : NULL;
    if (!o) return false;
    if (*budget > 0) --*budget;
    let_one_go(s, o);
    return true;
}

bool await_sweep(struct store *s, struct segment *far, unsigned *budget) {
    struct object *o;
    for (; *budget > 0 && (o = await_last(s, far)); --*budget) await_end(s, o);
    return !await_last(s, far);
}

void await_end_all(struct store *s) {
    unsigned budget = UINT32_MAX;
    for (struct segment *seg = NULL; (seg = space_next(&s->space, seg));) {
        if (seg->tier != STORE_TIER_MEMORY) await_sweep(s, seg, &budget);
        await_segment_gone(s, seg);
    }
}

bool await_let_go_any(struct store *s, unsigned *budget) {
    for (uint32_t i = 0; s->awaiting > 0 && i < s->space.n_segments; i++)
        if (s->space.segments[i] && chain_let_go(s, i, budget)) return true;
    return false;
}

static uint64_t wait_for(struct store *s, uint32_t far, const struct store_put *p, uint64_t bytes) {
    uint64_t hash = store_hash(span_of(p->key, p->key_len));
    return s->events.disk_wait ? s->events.disk_wait(s->events.arg, far, hash, bytes) : 0;
}

static tarn_status await_later(struct store *s, uint64_t ms) {
    s->later_ms = ms;
    s->later_for_disk = true;
    s->stat.put_delayed++;
    return TARN_ELATER;
}

static bool would_fit(const struct room_want *w, const struct segment *seg) {
    return seg->awaiting_units > 0 && room_may_use(w, seg) &&
           seg->free_units + seg->evictable_units + seg->awaiting_units >= w->units;
}

tarn_status await_room(struct store *s, const struct store_put *p, unsigned *budget) {
    const struct room_want *w = &p->want;
    uint64_t ms, least = UINT64_MAX;
    struct segment *chosen = NULL;
    if (s->policy->keeps) return TARN_ENOSPACE;
    for (struct segment *seg = NULL; (seg = space_next(&s->space, seg));) {
        if (!would_fit(w, seg)) continue;
        if (ghosts_hold(s)) return TARN_ELATER; /* what goes would not be free */
        chosen = chosen ? chosen : seg;
        if ((ms = wait_for(s, seg->awaits_at, p, w->units * UNIT)) > 0) least = min_u64(least, ms);
    }
    if (!chosen) return TARN_ENOSPACE;
    if (least != UINT64_MAX) return await_later(s, least);
    uint64_t units = 0; /* at least so much anew: what may be evicted already lay badly */
    while (units < w->units || chosen->free_units + chosen->evictable_units < w->units) {
        uint64_t before = s->awaiting_units;
        if (*budget == 0) return TARN_EAGAIN;
        if (!chain_let_go(s, chosen->awaits_at, budget) &&
            !await_let_go_any(s, budget)) /* another replica's disk */
            return units > 0 ? TARN_OK : TARN_ENOSPACE;
        units += before - s->awaiting_units;
    }
    return TARN_OK;
}

tarn_status await_quota(struct store *s, const struct store_put *p, unsigned *budget) {
    unsigned domain = quota_domain(s, span_of(p->key, p->key_len));
    uint64_t bytes = p->size * p->replicas;
    if (s->policy->keeps || s->domains[domain].awaiting == 0 || bytes > s->domains[domain].limit)
        return TARN_EQUOTA;
    for (struct segment *seg = NULL; (seg = space_next(&s->space, seg));) {
        if (!await_last(s, seg)) continue;
        uint64_t ms = wait_for(s, seg->id, p, bytes);
        if (ms > 0) return await_later(s, ms);
        const struct chain *c;
        TAILQ_FOREACH(c, &seg->chains, link) { /* only its own */
            /* a later slice would begin here again */
            if (*budget > 0) --*budget;
            struct object *o = chain_last(s, c);
            if (book_domain(s, o) != domain) continue;
            let_one_go(s, o);
            return TARN_OK;
        }
    }
    return TARN_EQUOTA;
}
