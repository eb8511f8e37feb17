/* What hard pins may hold: nothing but their owners takes them away, so a share of the pool and of
 * the memory of the books is all that they get together, and a smaller one each of those who pin.
 * An owner is a number that the caller knows, 0 nobody in particular: what was pinned before owners
 * were kept counts for all, and for none of them.
 *
 *   PUTSTART reserves ─┬─> PUTEND counts what the object has ─> unpinned, removed, replaced:
 *                      │                                        given back
 *                      └─> revoked, timed out: given back
 *
 * Replicas that are made later are not counted: nobody but the pool's own administrator asks for
 * those. */
#include <stdlib.h>
#include "store/books.h"

struct hard_owner {
    struct htab_node node;
    uint64_t owner, pins; /* of objects and of open puts; it goes with the last one */
    struct hard_sum sum;
};

static bool same_owner(const struct htab_node *node, const void *key) {
    return CONTAINER_OF(node, struct hard_owner, node)->owner == *(const uint64_t *)key;
}

static struct hard_owner *owner_find(const struct store *s, uint64_t owner) {
    struct htab_node *n = htab_find(&s->hard_owners, hash_u64(owner), same_owner, &owner);
    return n == NULL ? NULL : CONTAINER_OF(n, struct hard_owner, node);
}

struct hard_sum hard_of(const struct store *s, const struct object *o) {
    struct hard_sum sum = {.books = book_record_size(o)};
    if (!(o->bits & OBJECT_INLINE)) sum.pool = book_charge(s, o);
    return sum;
}

void hard_add(struct store *s, uint64_t owner, const struct hard_sum *sum) {
    struct hard_owner *w = owner_find(s, owner);
    if (w == NULL) {
        w = xcalloc(1, sizeof(*w));
        w->owner = owner;
        htab_insert(&s->hard_owners, &w->node, hash_u64(owner));
        s->extra_bytes += sizeof(*w);
    }
    w->pins++;
    w->sum.pool += sum->pool;
    w->sum.books += sum->books;
    s->hard.pool += sum->pool;
    s->hard.books += sum->books;
}

void hard_take(struct store *s, uint64_t owner, const struct hard_sum *sum) {
    struct hard_owner *w = owner_find(s, owner);
    TARN_ASSERT(w != NULL && w->pins > 0 && w->sum.pool >= sum->pool && w->sum.books >= sum->books);
    s->hard.pool -= sum->pool;
    s->hard.books -= sum->books;
    w->sum.pool -= sum->pool;
    w->sum.books -= sum->books;
    if (--w->pins > 0) return;
    htab_remove(&s->hard_owners, &w->node);
    s->extra_bytes -= sizeof(*w);
    free(w);
}

static uint64_t pool_bytes(const struct store *s) {
    uint64_t bytes = 0;
    for (const struct segment *seg = NULL; (seg = space_next(&s->space, seg));) {
        if (seg->tier == STORE_TIER_MEMORY) bytes += seg->units * UNIT;
    }
    return bytes;
}

static bool hard_sum_fits(const struct store *s, const struct hard_sum *now,
                          const struct hard_sum *more, double ratio,
                          struct store_pin_share *share_p) {
    struct store_pin_share share = {.used = now->pool, .more = more->pool};
    if (ratio >= 1) return true;
    double limit = more->pool > 0 ? ratio * (double)pool_bytes(s) : 0;
    bool ok = more->pool == 0 || (double)(now->pool + more->pool) <= limit;
    if (ok) {
        uint64_t books = s->config.max_memory;
        limit = ratio * (double)books;
        ok = books == 0 || (double)(now->books + more->books) <= limit;
        share = (struct store_pin_share){.of_books = true, .used = now->books, .more = more->books};
    }
    share.limit = (uint64_t)limit;
    *share_p = share;
    return ok;
}

static bool hard_share_fits(const struct store *s, uint64_t owner, const struct hard_sum *sum,
                            struct store_pin_share *share_p) {
    const struct hard_owner *w = owner_find(s, owner);
    static const struct hard_sum none;
    if (!hard_sum_fits(s, &s->hard, sum, s->config.hard_pin_ratio, share_p)) return false;
    if (owner == 0 ||
        hard_sum_fits(s, w != NULL ? &w->sum : &none, sum, s->config.hard_pin_user_ratio, share_p))
        return true;
    share_p->of_owner = true;
    return false;
}

bool hard_allowed(const struct store *s, uint64_t owner, const struct hard_sum *sum) {
    struct store_pin_share share;
    return hard_share_fits(s, owner, sum, &share);
}

bool store_pin_refused(struct store *s, struct span key, uint64_t bytes, uint64_t owner,
                       struct store_pin_share *share_p) {
    struct hard_sum sum = {.pool = bytes, .books = key.len};
    if (bytes == STORE_PIN_OBJECT) {
        const struct object *o = store_find(s, key);
        if (o == NULL) return false;
        sum = hard_of(s, o);
    }
    return !hard_share_fits(s, owner, &sum, share_p);
}
