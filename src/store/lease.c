/* Leases, holds and quarantine.
 *
 * A refs counts what keeps one object version's space from being used again: leases, which end by
 * time or RELEASE, and holds of in-band replies, which end when the last byte is sent. When the
 * object goes first, its blocks move into the refs (quarantine) and become free when the count
 * falls to zero.
 *
 * Leases that one request takes or extends are a batch: they end at one time, and may be released
 * together, by the batch's id. A lease is of the last one that asked for it, if that can be named,
 * which then holds as long as it did before.
 *
 *   refs_get ─> lease_add ──────> of a batch ──RELEASE, batch's time──> lease_end ─> refs_put
 *                 another batch's ──┘    └── extended by another one: of that batch
 *
 * Most objects have one lease at a time, which is part of their refs; further ones have records of
 * their own. Records of both kinds are kept for those that come.
 *
 * RELEASE tells no host, so the grants that came with a lease go on to the time that was granted.
 * Who is not trusted with the whole segment leaves a guard behind: one for each version, however
 * many released it. */
#include <stdlib.h>
#include <string.h>
#include "base/rng.h"
#include "store/books.h"

#ifdef __SANITIZE_ADDRESS__
#define BATCH_SPARE false /* it is to see who uses one that is gone */
#else
#define BATCH_SPARE true
#endif
#define GROUP_RENEW_MAX 256u /* members whose leases one lease renews */

struct store_hold {
    struct refs *refs; /* NULL: the value was in the books */
    uint64_t seq;      /* of the last lot when it began */
};

static bool refs_have_version(const struct htab_node *node, const void *key) {
    return CONTAINER_OF(node, struct refs, node)->version == *(const uint64_t *)key;
}

/* Versions are numbers of these books' own. Those of a batch often follow one another: eight of
 * them have buckets in a row, a line of the cache. Whoever leases every eighth one makes chains
 * eight times as long, and no longer. */
static uint64_t version_hash(uint64_t version) {
    return mix64(version >> 3) << 3 | (version & 7);
}

struct refs *refs_find(const struct store *s, uint64_t version) {
    struct htab_node *n = htab_find(&s->refs, version_hash(version), refs_have_version, &version);
    return n ? CONTAINER_OF(n, struct refs, node) : NULL;
}

/* A burst must not keep its memory for ever. */
static bool pool_is_large(uint64_t pool, uint64_t used) {
    return pool > 1024 && pool > 4 * used;
}

/* Its count is 0, and nothing is in it. */
static struct refs *refs_new(struct store *s) {
    struct htab_node *n = s->free_refs;
    if (n == NULL) {
        s->refs_pool++;
        return xcalloc(1, sizeof(struct refs));
    }
    s->free_refs = n->next;
    return CONTAINER_OF(n, struct refs, node);
}

/* Its leases, holds and guard are over. */
static void refs_free(struct store *s, struct refs *r) {
    if (UNLIKELY(r->blocks != NULL)) {
        free(r->blocks);
        r->blocks = NULL;
        r->n_blocks = 0;
    }
    if (pool_is_large(s->refs_pool, s->refs.count)) {
        free(r);
        s->refs_pool--;
    } else {
        r->node.next = s->free_refs;
        s->free_refs = &r->node;
    }
}

static struct refs *refs_get(struct store *s, struct object *o) {
    uint64_t version = object_version(o);
    if (o->bits & OBJECT_REFS) return refs_find(s, version);
    struct refs *r = refs_new(s);
    r->version = version;
    r->object = record_ref(&s->records, o);
    htab_insert(&s->refs, &r->node, version_hash(version));
    bool was = book_protected(s, o);
    o->bits |= OBJECT_REFS;
    book_protect(s, o, was);
    return r;
}

static void quarantine_count(struct store *s, block_id id, int sign) {
    const struct block *b = block_get(&s->space, id);
    uint64_t units = (uint64_t)sign * b->len;
    s->quarantine_units += units;
    s->space.segments[block_segment(b)]->quarantine_units += units;
}

static void quarantine_begin(struct store *s, const block_id *blocks, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        block_assign(&s->space, blocks[i], BLOCK_HELD, 0, 0);
        quarantine_count(s, blocks[i], 1);
    }
}

static void quarantine_end(struct store *s, const block_id *blocks, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        quarantine_count(s, blocks[i], -1);
        space_part(s, &blocks[i], 1);
    }
}

static void refs_put(struct store *s, struct refs *r) {
    if (--r->count > 0) return;
    htab_remove(&s->refs, &r->node);
    struct object *o = record_get(&s->records, r->object);
    quarantine_end(s, r->blocks, r->n_blocks);
    refs_free(s, r);
    if (!o) return;
    bool was = book_protected(s, o);
    o->bits &= ~(uint32_t)OBJECT_REFS;
    book_protect(s, o, was);
}

void refs_object_gone(struct store *s, struct object *o, const block_id *blocks, uint32_t n) {
    struct refs *r = refs_find(s, object_version(o));
    r->object = 0;
    r->n_blocks = n;
    r->blocks = n ? xmemdup(blocks, n * sizeof(*blocks)) : NULL;
    quarantine_begin(s, blocks, n);
}

/* --- lots: the space of a replica that its object has lost --- */

/* Readers from before may be reading it until their leases end; those that come later are told of
 * the other replicas only, so they, and extensions, do not matter. */
void refs_replica_gone(struct store *s, const struct object *o, const block_id *blocks,
                       uint32_t n) {
    const struct refs *r = refs_find(s, object_version(o));
    struct lot *lot = xcalloc(1, sizeof(*lot));
    TARN_ASSERT(n <= STORE_EXTENTS_MAX);
    lot->version = r->version;
    lot->seq = ++s->lot_seq;
    uint64_t until = s->now_ms;
    const struct lease *l;
    LIST_FOREACH(l, &r->leases, link) {
        until = max_u64(until, l->batch->wheel.due);
        lot->leases++;
    }
    bool guarded = wheel_pending(&r->guard);
    if (guarded) until = max_u64(until, r->guard.due);
    lot->guarded = guarded;
    lot->holds = r->count - lot->leases - guarded;
    lot->n_blocks = n;
    memcpy(lot->blocks, blocks, n * sizeof(*blocks));
    quarantine_begin(s, blocks, n);
    htab_insert(&s->lots, &lot->node, hash_u64(lot->version));
    wheel_set(s->wheel[WHEEL_LOT], &lot->wheel, until);
}

static void lot_free(struct store *s, struct lot *lot) {
    htab_remove(&s->lots, &lot->node);
    wheel_remove(s->wheel[WHEEL_LOT], &lot->wheel);
    quarantine_end(s, lot->blocks, lot->n_blocks);
    free(lot);
}

static void lot_check(struct store *s, struct lot *lot) {
    if (lot->holds == 0 && (lot->over || (lot->leases == 0 && !lot->guarded))) lot_free(s, lot);
}

void lot_over(struct store *s, struct wheel_node *node) {
    struct lot *lot = CONTAINER_OF(node, struct lot, wheel);
    lot->over = true;
    lot_check(s, lot);
}

struct ended {
    uint64_t version, seq, walk;
};

/* One that came after the claim and has not been met in this walk. */
static bool same_lot(const struct htab_node *node, const void *key) {
    const struct lot *lot = CONTAINER_OF(node, struct lot, node);
    const struct ended *e = key;
    return lot->version == e->version && lot->seq > e->seq && lot->walk != e->walk;
}

/* The lots that came after a lease or hold wait for it. */
static void lots_claim_ended(struct store *s, uint64_t version, uint64_t seq, bool hold) {
    struct ended key = {version, seq, ++s->lot_walks};
    for (struct htab_node *node; (node = htab_find(&s->lots, hash_u64(version), same_lot, &key));) {
        struct lot *lot = CONTAINER_OF(node, struct lot, node);
        lot->walk = key.walk;
        uint32_t *left = hold ? &lot->holds : &lot->leases;
        TARN_ASSERT(*left > 0);
        --*left;
        lot_check(s, lot);
    }
}

/* --- batches --- */

static bool batch_has_id(const struct htab_node *node, const void *key) {
    return CONTAINER_OF(node, struct lease_batch, node)->id == *(const uint64_t *)key;
}

static struct lease_batch *batch_find(const struct store *s, uint64_t session, uint64_t id) {
    struct htab_node *n = htab_find(&s->batches, mix64(id), batch_has_id, &id);
    struct lease_batch *b = n ? CONTAINER_OF(n, struct lease_batch, node) : NULL;
    return b != NULL && b->session->id == session ? b : NULL;
}

static struct lease_batch *batch_new(struct store *s, uint64_t session, uint64_t id) {
    struct lease_batch *b = s->spare_batch != NULL ? s->spare_batch : xmalloc(sizeof(*b));
    s->spare_batch = NULL;
    *b = (struct lease_batch){.id = id, .session = session_get(s, session)};
    if (id != 0) htab_insert(&s->batches, &b->node, mix64(id));
    s->batch_count++;
    return b;
}

static void batch_trim(struct store *s, struct lease_batch *b) {
    if (!LIST_EMPTY(&b->leases)) return;
    wheel_remove(s->wheel[WHEEL_LEASE], &b->wheel);
    if (b->id != 0) htab_remove(&s->batches, &b->node);
    if (s->batch == b) s->batch = NULL;
    session_trim(s, b->session);
    s->batch_count--;
    if (!BATCH_SPARE || s->spare_batch != NULL) {
        free(b);
        return;
    }
    s->spare_batch = b;
}

/* The one of that id, for leases until then; id 0: any that nobody can name. */
static struct lease_batch *batch_get(struct store *s, uint64_t session, uint64_t id,
                                     uint64_t until) {
    struct lease_batch *b = s->batch;
    bool same = b != NULL && b->id == id && b->session->id == session;
    if (!same || (id == 0 && b->wheel.due != until)) {
        b = id != 0 && !same ? batch_find(s, session, id) : NULL;
        if (b == NULL) b = batch_new(s, session, id);
        s->batch = b;
    }
    if (!wheel_pending(&b->wheel) || b->wheel.due < until)
        wheel_set(s->wheel[WHEEL_LEASE], &b->wheel, until);
    return b;
}

/* --- leases --- */

struct lease_key {
    uint64_t session, version;
};

static uint64_t lease_hash(uint64_t session, uint64_t version) {
    return hash_u64(version * 0x9e3779b97f4a7c15u ^ session);
}

static bool same_lease(const struct htab_node *node, const void *key) {
    const struct lease *l = CONTAINER_OF(node, struct lease, node);
    const struct lease_key *k = key;
    return l->batch->session->id == k->session && l->refs->version == k->version;
}

static struct lease *lease_of(const struct store *s, struct refs *r, uint64_t session) {
    if (r->own.batch && r->own.batch->session->id == session) return &r->own;
    struct lease_key k = {session, r->version};
    struct htab_node *n = htab_find(&s->leases, lease_hash(session, r->version), same_lease, &k);
    return n ? CONTAINER_OF(n, struct lease, node) : NULL;
}

static struct lease *lease_find(const struct store *s, uint64_t session, uint64_t version) {
    struct refs *r = refs_find(s, version);
    return r ? lease_of(s, r, session) : NULL;
}

static struct lease *lease_new(struct store *s) {
    struct lease *l = LIST_TAKE(&s->free_leases, link);
    if (l) {
        memset(l, 0, sizeof(*l));
    } else {
        l = xcalloc(1, sizeof(*l));
        s->lease_pool++;
    }
    return l;
}

static void lease_add(struct store *s, struct refs *r, struct lease_batch *b) {
    bool own = r->own.batch == NULL;
    struct lease *l = own ? &r->own : lease_new(s);
    l->refs = r;
    l->batch = b;
    l->seq = s->lot_seq;
    if (!own) htab_insert(&s->leases, &l->node, lease_hash(b->session->id, r->version));
    LIST_INSERT_HEAD(&r->leases, l, link);
    LIST_INSERT_HEAD(&b->leases, l, in_batch);
    r->count++;
    b->session->leases++;
    s->lease_count++;
}

static void lease_free(struct store *s, struct lease *l) {
    if (l == &l->refs->own) {
        l->batch = NULL;
        return;
    }
    htab_remove(&s->leases, &l->node);
    if (pool_is_large(s->lease_pool, s->leases.count)) {
        free(l);
        s->lease_pool--;
    } else {
        LIST_INSERT_HEAD(&s->free_leases, l, link);
    }
}

/* granted: what was granted with it goes on, so that the lots that came after it wait for their
 * time. Its batch stays, even an empty one. */
static void lease_leave(struct store *s, struct lease *l, bool granted) {
    struct refs *r = l->refs;
    if (UNLIKELY(s->lots.count) && !granted) lots_claim_ended(s, r->version, l->seq, false);
    LIST_REMOVE(l, link);
    LIST_REMOVE(l, in_batch);
    l->batch->session->leases--;
    s->lease_count--;
    lease_free(s, l);
    refs_put(s, r);
}

static void lease_end(struct store *s, struct lease *l, bool granted) {
    struct lease_batch *b = l->batch;
    lease_leave(s, l, granted);
    batch_trim(s, b);
}

void lease_over(struct store *s, struct wheel_node *node) {
    struct lease_batch *b = CONTAINER_OF(node, struct lease_batch, wheel);
    wheel_set(s->wheel[WHEEL_LEASE], node, node->due); /* its turn is still now */
    s->stat.leases_expired++;
    lease_end(s, LIST_FIRST(&b->leases), false);
}

static void guard_set(struct store *s, struct refs *r, uint64_t until) {
    bool is_new = !wheel_pending(&r->guard);
    if (!is_new && r->guard.due >= until) return;
    r->count += is_new;
    if (is_new) {
        const struct object *o = record_get(&s->records, r->object);
        for (uint32_t i = 0; i < r->n_blocks; i++)
            r->guard_units += block_get(&s->space, r->blocks[i])->len;
        if (o)
            r->guard_units =
                s->policy->keeps || object_pin(s, o) == STORE_PIN_HARD ? 0 : book_units(s, o);
        s->guarded_units += r->guard_units;
    }
    wheel_set(s->wheel[WHEEL_GUARD], &r->guard, until);
}

void guard_over(struct store *s, struct wheel_node *node) {
    struct refs *r = CONTAINER_OF(node, struct refs, guard);
    wheel_remove(s->wheel[WHEEL_GUARD], node);
    s->guarded_units -= r->guard_units;
    r->guard_units = 0;
    s->room_changes++;
    refs_put(s, r);
}

static void lease_extend(struct store *s, struct lease *l, struct lease_batch *b) {
    struct lease_batch *before = l->batch;
    if (before == b) return;
    LIST_REMOVE(l, in_batch);
    LIST_INSERT_HEAD(&b->leases, l, in_batch);
    l->batch = b;
    batch_trim(s, before);
}

/* With its whole batch: who asked for that is to find it there when he is done with it. */
static void renew_group(struct store *s, struct object *o, uint64_t session, uint64_t until) {
    const struct extra *x = extra_find(s, o);
    if (!x || !x->group || x->group->boundary) return;
    unsigned left = GROUP_RENEW_MAX;
    const struct extra *m;
    TAILQ_FOREACH(m, &x->group->members, of_group) {
        if (left-- == 0) return;
        struct object *other = record_get(&s->records, m->object);
        struct lease *l =
            other->bits & OBJECT_REFS ? lease_find(s, session, object_version(other)) : NULL;
        if (l && l->batch->wheel.due < until)
            wheel_set(s->wheel[WHEEL_LEASE], &l->batch->wheel, until);
    }
}

#define PROMISE_STEP_MS 1000u /* so often at most it is told */

/* Before it is granted: whoever leads after a crash knows until when all leases are over. */
static void lease_promise(struct store *s, uint64_t until) {
    s->lease_promise_ms = max_u64(until, s->now_ms + s->config.max_lease_ms) + PROMISE_STEP_MS;
    effect_leases(s);
}

uint64_t store_batch_id(struct store *s) {
    return ++s->batch_ids;
}

tarn_status store_lease_in(struct store *s, struct object *o, uint64_t session, uint64_t batch,
                           uint64_t ms, uint64_t *granted_ms_p) {
    if (ms > s->config.max_lease_ms) ms = s->config.max_lease_ms;
    if (o->bits & OBJECT_INLINE) {
        *granted_ms_p = ms;
        return TARN_OK;
    }
    uint64_t until = s->now_ms + ms;
    if (UNLIKELY(until > s->lease_promise_ms)) lease_promise(s, until);
    struct refs *r = o->bits & OBJECT_REFS ? refs_find(s, object_version(o)) : NULL;
    struct lease *l = r ? lease_of(s, r, session) : NULL;
    if (l) {
        uint64_t due = l->batch->wheel.due;
        if (batch != 0 || due < until)
            lease_extend(s, l, batch_get(s, session, batch, max_u64(until, due)));
        s->stat.leases_extended++;
    } else {
        struct lease_batch *b = batch_get(s, session, batch, until);
        if (b->session->leases >= s->config.max_leases_per_session) {
            batch_trim(s, b);
            return TARN_ELIMIT;
        }
        lease_add(s, r ? r : refs_get(s, o), b);
        s->stat.leases_granted++;
    }
    if (o->bits & OBJECT_EXTRA) renew_group(s, o, session, until);
    *granted_ms_p = ms;
    return TARN_OK;
}

tarn_status store_lease(struct store *s, struct object *o, uint64_t session, uint64_t ms,
                        uint64_t *granted_ms_p) {
    return store_lease_in(s, o, session, 0, ms, granted_ms_p);
}

bool store_leased(const struct store *s, const struct object *o, uint64_t session) {
    return o->bits & OBJECT_REFS && lease_find(s, session, object_version(o)) != NULL;
}

void store_lease_undo(struct store *s, uint64_t session, uint64_t version) {
    struct lease *l = lease_find(s, session, version);
    if (!l) return;
    s->stat.leases_released++;
    lease_end(s, l, false);
}

bool store_release(struct store *s, struct span key, uint64_t session, uint64_t version,
                   bool guarded) {
    struct lease *l = lease_find(s, session, version);
    if (!l) return false;
    struct object *o = record_get(&s->records, l->refs->object);
    if (o && !span_eq(store_object_key(o), key)) return false;
    s->stat.leases_released++;
    if (guarded) guard_set(s, l->refs, l->batch->wheel.due);
    lease_end(s, l, guarded);
    return true;
}

uint64_t store_release_batch(struct store *s, uint64_t session, uint64_t batch, bool guarded,
                             unsigned *budget) {
    struct lease_batch *b = batch_find(s, session, batch);
    uint64_t n = 0;
    if (b == NULL) return 0;
    for (struct lease *l; *budget > 0 && (l = LIST_FIRST(&b->leases)); --*budget, n++) {
        if (guarded) guard_set(s, l->refs, b->wheel.due);
        lease_leave(s, l, guarded);
    }
    batch_trim(s, b);
    s->stat.leases_released += n;
    return n;
}

/* --- holds --- */

struct store_hold *store_hold(struct store *s, struct object *o) {
    struct store_hold *h = xcalloc(1, sizeof(*h));
    s->hold_count++;
    if (o->bits & OBJECT_INLINE) return h;
    h->refs = refs_get(s, o);
    h->refs->count++;
    h->seq = s->lot_seq;
    return h;
}

void store_unhold(struct store *s, struct store_hold **hold_p) {
    struct store_hold *h = *hold_p;
    if (!h) return;
    if (h->refs && s->lots.count) lots_claim_ended(s, h->refs->version, h->seq, true);
    if (h->refs) refs_put(s, h->refs);
    s->hold_count--;
    free(h);
    *hold_p = NULL;
}

/* With the last one the refs goes. */
static void end_leases(void *arg, struct htab_node *node) {
    struct store *s = arg;
    struct refs *r = CONTAINER_OF(node, struct refs, node);
    /* keeps it until we are done with it */
    if (!wheel_pending(&r->guard)) guard_set(s, r, s->now_ms);
    for (struct lease *l; (l = LIST_FIRST(&r->leases));) lease_end(s, l, false);
    guard_over(s, &r->guard);
}

/* That waits for grants: the ghost it becomes lasts longer. */
static void end_lot(void *arg, struct htab_node *node) {
    lot_free(arg, CONTAINER_OF(node, struct lot, node));
}

void lease_end_all(struct store *s) {
    TARN_ASSERT(s->hold_count == 0);
    htab_each(&s->refs, end_leases, s);
    htab_each(&s->lots, end_lot, s);
    TARN_ASSERT(s->lease_count == 0 && s->batch_count == 0 && s->refs.count == 0 &&
                s->lots.count == 0);
}

static void free_refs(void *arg, struct htab_node *node) {
    struct store *s = arg;
    struct refs *r = CONTAINER_OF(node, struct refs, node);
    for (struct lease *l; (l = LIST_TAKE(&r->leases, link));) {
        struct lease_batch *b = l->batch;
        LIST_REMOVE(l, in_batch);
        b->session->leases--;
        if (l != &r->own) free(l);
        batch_trim(s, b);
    }
    free(r->blocks);
    free(r);
}

static void free_lot(void *arg, struct htab_node *node) {
    free(CONTAINER_OF(node, struct lot, node));
}

/* The end of the books: nobody is left to end leases or holds. The tables and wheels are only freed
 * after this, never looked at, but those of sessions and batches. */
void lease_free_all(struct store *s) {
    htab_each(&s->refs, free_refs, s);
    htab_each(&s->lots, free_lot, s);
    free(s->spare_batch);
    for (struct lease *l; (l = LIST_TAKE(&s->free_leases, link));) free(l);
    for (struct htab_node *n; (n = s->free_refs); free(CONTAINER_OF(n, struct refs, node)))
        s->free_refs = n->next;
}
