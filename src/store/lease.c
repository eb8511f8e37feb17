/* Leases, holds and quarantine.
 *
 * A refs counts what keeps one object version's space from being used again: leases, which end by time or RELEASE, and
 * holds of in-band replies, which end when the last byte is sent. When the object goes first, its blocks move into the refs
 * (quarantine) and become free when the count falls to zero. */
#include <stdlib.h>
#include <string.h>
#include "store/books.h"

#define GROUP_RENEW_MAX 256u /* members whose leases one lease renews */

struct store_hold {
    struct refs *refs; /* NULL: the value was in the books */
};

static bool same_version(const struct htab_node *node, const void *key) {
    return CONTAINER_OF(node, struct refs, node)->version == *(const uint64_t *)key;
}

struct refs *refs_find(const struct store *s, uint64_t version) {
    struct htab_node *n = htab_find(&s->refs, hash_u64(version), same_version, &version);
    return n ? CONTAINER_OF(n, struct refs, node) : NULL;
}

static struct refs *refs_get(struct store *s, struct object *o) {
    uint64_t version = object_version(o);
    if (o->bits & OBJECT_REFS) return refs_find(s, version);
    struct refs *r = xcalloc(1, sizeof(*r));
    r->version = version;
    r->object = record_ref(&s->records, o);
    htab_insert(&s->refs, &r->node, hash_u64(version));
    bool was = book_protected(s, o);
    o->bits |= OBJECT_REFS;
    book_protect(s, o, was);
    return r;
}

static void refs_put(struct store *s, struct refs *r) {
    if (--r->count > 0) return;
    htab_remove(&s->refs, &r->node);
    struct object *o = record_get(&s->records, r->object);
    for (uint32_t i = 0; i < r->n_blocks; i++) {
        s->quarantine_units -= block_get(&s->space, r->blocks[i])->len;
        space_release(&s->space, r->blocks[i]);
        s->room_changes++;
    }
    free(r);
    if (!o) return;
    bool was = book_protected(s, o);
    o->bits &= ~(uint32_t)OBJECT_REFS;
    book_protect(s, o, was);
}

void refs_object_gone(struct store *s, struct object *o, const block_id *blocks, uint32_t n) {
    struct refs *r = refs_find(s, object_version(o));
    r->object = 0;
    r->n_blocks = n;
    for (uint32_t i = 0; i < n; i++) {
        r->blocks[i] = blocks[i];
        block_assign(&s->space, blocks[i], BLOCK_HELD, 0, 0);
        s->quarantine_units += block_get(&s->space, blocks[i])->len;
    }
}

/* --- leases ---------------------------------------------------------------------------------------------------------------- */

struct lease_key {
    uint64_t session, version;
};

static uint64_t lease_hash(uint64_t session, uint64_t version) {
    return hash_u64(version * 0x9e3779b97f4a7c15u ^ session);
}

static bool same_lease(const struct htab_node *node, const void *key) {
    const struct lease *l = CONTAINER_OF(node, struct lease, node);
    const struct lease_key *k = key;
    return l->session->id == k->session && l->refs->version == k->version;
}

static struct lease *lease_find(const struct store *s, uint64_t session, uint64_t version) {
    struct lease_key k = {session, version};
    struct htab_node *n = htab_find(&s->leases, lease_hash(session, version), same_lease, &k);
    return n ? CONTAINER_OF(n, struct lease, node) : NULL;
}

static struct lease *lease_new(struct store *s) {
    struct lease *l = s->free_leases;
    if (l) {
        s->free_leases = l->next;
        memset(l, 0, sizeof(*l));
    } else {
        l = xcalloc(1, sizeof(*l));
        s->lease_pool++;
    }
    return l;
}

static void lease_end(struct store *s, struct lease *l) {
    struct refs *r = l->refs;
    struct session *ss = l->session;
    wheel_remove(s->lease_wheel, &l->wheel);
    htab_remove(&s->leases, &l->node);
    if (l->prev)
        l->prev->next = l->next;
    else
        r->leases = l->next;
    if (l->next) l->next->prev = l->prev;
    l->next = s->free_leases;
    s->free_leases = l;
    /* A burst of leases must not keep its memory for ever. */
    if (s->lease_pool > 1024 && s->lease_pool > 4 * s->leases.count) {
        s->free_leases = l->next;
        free(l);
        s->lease_pool--;
    }
    ss->leases--;
    session_trim(s, ss);
    refs_put(s, r);
}

void lease_over(struct store *s, struct wheel_node *node) {
    s->stat.leases_expired++;
    lease_end(s, CONTAINER_OF(node, struct lease, wheel));
}

static bool extend(struct store *s, struct lease *l, uint64_t until) {
    if (l->wheel.due >= until) return false;
    wheel_set(s->lease_wheel, &l->wheel, until);
    return true;
}

static void renew_group(struct store *s, struct object *o, uint64_t session, uint64_t until) {
    const struct extra *x = extra_find(s, o);
    if (!x || !x->group) return;
    unsigned left = GROUP_RENEW_MAX;
    for (struct extra *m = x->group->members; m && left > 0; m = m->group_next, left--) {
        struct object *other = record_get(&s->records, m->object);
        struct lease *l = other->bits & OBJECT_REFS ? lease_find(s, session, object_version(other)) : NULL;
        if (l) extend(s, l, until);
    }
}

tarn_status store_lease(struct store *s, struct object *o, uint64_t session, uint64_t ms,
                        uint64_t *granted_ms_p) {
    if (ms > s->config.max_lease_ms) ms = s->config.max_lease_ms;
    if (o->bits & OBJECT_INLINE) {
        *granted_ms_p = ms;
        return TARN_OK;
    }
    uint64_t until = s->now_ms + ms, version = object_version(o);
    struct lease *l = o->bits & OBJECT_REFS ? lease_find(s, session, version) : NULL;
    if (l) {
        extend(s, l, until);
        s->stat.leases_extended++;
    } else {
        struct session *ss = session_get(s, session);
        if (ss->leases >= s->config.max_leases_per_session) {
            session_trim(s, ss);
            return TARN_ELIMIT;
        }
        ss->leases++;
        l = lease_new(s);
        l->session = ss;
        l->refs = refs_get(s, o);
        l->refs->count++;
        l->next = l->refs->leases;
        if (l->next) l->next->prev = l;
        l->refs->leases = l;
        htab_insert(&s->leases, &l->node, lease_hash(session, version));
        wheel_set(s->lease_wheel, &l->wheel, until);
        s->stat.leases_granted++;
    }
    if (o->bits & OBJECT_EXTRA) renew_group(s, o, session, until);
    *granted_ms_p = ms;
    return TARN_OK;
}

bool store_release(struct store *s, struct span key, uint64_t session, uint64_t version) {
    struct lease *l = lease_find(s, session, version);
    if (!l) return false;
    struct object *o = record_get(&s->records, l->refs->object);
    if (o && !span_eq(store_object_key(o), key)) return false;
    s->stat.leases_released++;
    lease_end(s, l);
    return true;
}

/* --- holds -------------------------------------------------------------------------------------------------------------------- */

struct store_hold *store_hold(struct store *s, struct object *o) {
    struct store_hold *h = xcalloc(1, sizeof(*h));
    s->hold_count++;
    if (o->bits & OBJECT_INLINE) return h;
    h->refs = refs_get(s, o);
    h->refs->count++;
    return h;
}

void store_unhold(struct store *s, struct store_hold **hold_p) {
    struct store_hold *h = *hold_p;
    if (!h) return;
    if (h->refs) refs_put(s, h->refs);
    s->hold_count--;
    free(h);
    *hold_p = NULL;
}

static void end_one(void *arg, struct htab_node *node) {
    struct lease **list = arg;
    struct lease *l = CONTAINER_OF(node, struct lease, node);
    l->prev = *list;
    *list = l;
}

static void collect_refs(void *arg, struct htab_node *node) {
    struct refs **list = arg, *r = CONTAINER_OF(node, struct refs, node);
    r->leases = (struct lease *)(void *)*list; /* only for this walk: the refs are freed next */
    *list = r;
}

/* The end of the books: nobody is left to end leases or holds. */
void lease_free_all(struct store *s) {
    struct lease *list = NULL;
    uint64_t cursor = 0;
    do cursor = htab_scan(&s->leases, cursor, end_one, &list);
    while (cursor);
    while (list) {
        struct lease *l = list;
        list = l->prev;
        wheel_remove(s->lease_wheel, &l->wheel);
        htab_remove(&s->leases, &l->node);
        l->session->leases--;
        session_trim(s, l->session);
        free(l);
    }
    while (s->free_leases) {
        struct lease *l = s->free_leases;
        s->free_leases = l->next;
        free(l);
    }
    struct refs *refs = NULL;
    do cursor = htab_scan(&s->refs, cursor, collect_refs, &refs);
    while (cursor);
    while (refs) {
        struct refs *r = refs;
        refs = (struct refs *)(void *)r->leases;
        htab_remove(&s->refs, &r->node);
        free(r);
    }
}
