/* Quotas: the bytes that the keys of a prefix may hold. Each quota is a domain with an eviction
 * order of its own, so that a full one evicts among its own objects; domain 0 is all keys without.
 * An object knows its domain (book_domain); when quotas change, a background walk moves objects to
 * where they belong now. */
#include <stdlib.h>
#include <string.h>
#include "store/books.h"

void domain_open(struct store *s, unsigned n) {
    struct domain *d = &s->domains[n];
    *d = (struct domain){.used = true};
    for (int inl = 0; inl < 2; inl++) {
        policy_open(&d->policy[inl], policy_of(s->policy, inl), &s->records, &s->config);
        d->soft[inl] = list_new(&s->records);
    }
    d->far = list_new(&s->records);
    if (n >= s->n_domains) s->n_domains = n + 1;
}

static void domain_close(struct store *s, unsigned n) {
    struct domain *d = &s->domains[n];
    for (int inl = 0; inl < 2; inl++) {
        policy_close(&d->policy[inl]);
        list_free(&s->records, d->soft[inl]);
        policy_close(&d->legacy[inl]);
    }
    list_free(&s->records, d->far);
    free(d->prefix);
    *d = (struct domain){0};
    while (s->n_domains > 1 && !s->domains[s->n_domains - 1].used) s->n_domains--;
}

void quota_free_all(struct store *s) {
    for (unsigned i = DOMAINS; i-- > 0;)
        if (s->domains[i].used) domain_close(s, i);
}

/* The longest prefix wins. */
unsigned quota_find_domain(const struct store *s, struct span key) {
    unsigned best = 0;
    size_t best_len = 0;
    for (unsigned i = 1; i < s->n_domains; i++) {
        const struct domain *d = &s->domains[i];
        if (!d->used || d->leaving || d->prefix_len > key.len || d->prefix_len < best_len) continue;
        if (memcmp(d->prefix, key.data, d->prefix_len) != 0) continue;
        best = i;
        best_len = d->prefix_len;
    }
    return best;
}

static struct domain *quota_find(const struct store *s, struct span prefix) {
    for (unsigned i = 1; i < s->n_domains; i++) {
        const struct domain *d = &s->domains[i];
        if (d->used && !d->leaving && span_eq(span_of(d->prefix, d->prefix_len), prefix))
            return (struct domain *)d;
    }
    return NULL;
}

static void start_recount(struct store *s) {
    if (s->recount) s->recount_again = true;
    s->recount = true;
}

tarn_status store_quota_set(struct store *s, struct span prefix, uint64_t bytes) {
    if (prefix.len == 0 || prefix.len > STORE_KEY_MAX || bytes == 0) return TARN_EINVAL;
    struct domain *d = quota_find(s, prefix);
    if (d) {
        d->limit = bytes;
        effect_quota(s, prefix, bytes);
        return TARN_OK;
    }
    unsigned n = 1;
    while (n < DOMAINS && s->domains[n].used) n++;
    if (n == DOMAINS) return TARN_ELIMIT;
    domain_open(s, n);
    d = &s->domains[n];
    d->prefix = xmemdup(prefix.data, prefix.len);
    d->prefix_len = prefix.len;
    d->limit = bytes;
    effect_quota(s, prefix, bytes);
    start_recount(s);
    return TARN_OK;
}

bool store_quota_del(struct store *s, struct span prefix) {
    struct domain *d = quota_find(s, prefix);
    if (!d) return false;
    effect_quota(s, prefix, 0);
    d->leaving = true;
    start_recount(s);
    return true;
}

static void quota_fill(const struct store *s, const struct domain *d, struct store_quota *q) {
    *q = (struct store_quota){span_of(d->prefix, d->prefix_len), d->limit, d->bytes, d->objects,
                              s->recount};
}

bool store_quota_get(const struct store *s, struct span prefix, struct store_quota *quota_p) {
    const struct domain *d = quota_find(s, prefix);
    if (d) quota_fill(s, d, quota_p);
    return d != NULL;
}

bool store_quota_of(const struct store *s, struct span key, struct store_quota *quota_p) {
    unsigned domain = quota_domain(s, key);
    if (domain != 0) quota_fill(s, &s->domains[domain], quota_p);
    return domain != 0;
}

size_t store_quota_list(const struct store *s, struct store_quota *quotas, size_t cap) {
    size_t n = 0;
    for (unsigned i = 1; i < s->n_domains; i++) {
        if (!s->domains[i].used || s->domains[i].leaving) continue;
        if (n < cap) quota_fill(s, &s->domains[i], &quotas[n]);
        n++;
    }
    return n;
}

size_t store_tenants(const struct store *s, struct store_tenant *tenants, size_t cap) {
    size_t n = 0;
    for (unsigned i = 0; i < s->n_domains; i++) {
        const struct domain *d = &s->domains[i];
        if (!d->used || d->leaving) continue;
        if (n++ >= cap) continue;
        struct store_tenant *t = &tenants[n - 1];
        *t = (struct store_tenant){.hits = d->hits, .evicted = d->evicted};
        quota_fill(s, d, &t->quota);
        memcpy(t->missed, d->missed, sizeof(t->missed));
        if (s->n_domains == 1) { /* it is everything */
            t->hits = s->stat.hits;
            t->evicted = s->stat.evicted_objects;
            memcpy(t->missed, s->stat.missed, sizeof(t->missed));
        }
        for (unsigned why = 0; why < STORE_MISS_GAP; why++) t->misses += t->missed[why];
    }
    return n;
}

void quota_stats_reset(struct store *s) {
    for (unsigned i = 0; i < s->n_domains; i++) {
        struct domain *d = &s->domains[i];
        d->hits = d->evicted = 0;
        memset(d->missed, 0, sizeof(d->missed));
    }
}

static void move_object(void *arg, struct object *o) {
    struct store *s = arg;
    unsigned from = book_domain(s, o), to = quota_domain(s, store_object_key(o));
    if (from == to) return;
    bool awaits = (o->bits & OBJECT_AWAITS) != 0;
    book_unlink(s, o);
    uint64_t size = book_charge(s, o);
    s->domains[from].bytes -= size;
    s->domains[from].objects--;
    s->domains[from].awaiting -= awaits;
    s->domains[to].bytes += size;
    s->domains[to].objects++;
    s->domains[to].awaiting += awaits;
    if (o->bits & OBJECT_INLINE) {
        o->block = to;
    } else {
        uint32_t n;
        const block_id *blocks = book_blocks(s, o, &n);
        for (uint32_t i = 0; i < n; i++)
            block_assign(&s->space, blocks[i], BLOCK_OBJECT, record_ref(&s->records, o), to);
        if (o->bits & OBJECT_PLACES) places_set_domain(s, o, to);
    }
    if (!awaits) book_relink(s, o);
}

/* Puts learn their domain at PUTEND, so a domain that is leaving gets no new objects: one walk
 * empties it. */
bool quota_recount(struct store *s, unsigned *budget) {
    if (!s->recount || !index_walk(&s->index, &s->recount_cursor, move_object, s, budget))
        return s->recount;
    s->recount = s->recount_again;
    s->recount_again = false;
    for (unsigned i = 1; i < DOMAINS && !s->recount; i++)
        if (s->domains[i].used && s->domains[i].leaving && s->domains[i].objects == 0)
            domain_close(s, i);
    return s->recount;
}
