/* Grants that are good for one put (GRANT_WRITE_ONCE): what was written by each of them, by whom it
 * is being written now, and whether it was sealed. A sealed one is remembered until its grant has
 * expired, so that it cannot begin anew.
 *
 *   unknown ─begin─> open ─end─> open ... ─seal, when nobody writes─> sealed
 *      ^                                                                │
 *      └────────── its grant has expired ───────────────────────────────┘
 *
 * Data threads ask; the control thread of a master's own host closes grants of puts that are over.
 * One lock, for moments. */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "host/host_internal.h"

#define RANGES_MAX                                                                                 \
    256u /* of a put that is written in pieces in any order; with more it is never whole */
#define LATE_MS  10000u /* our idea of the master's clock may be corrected by less than this */
#define REAP_MAX 64u    /* steps of the wheel in one call */

struct range {
    uint64_t from, to;
};

struct host_put {
    struct htab_node node;
    struct wheel_node wheel; /* its grant has expired, or soon after */
    struct grant_extent extent;
    uint64_t session, number;
    uint32_t writers;
    bool sealed, whole;
    bool scattered; /* there were more ranges than are noted */
    uint32_t n_ranges;
    struct range *ranges; /* in order, with gaps between; not of sealed ones */
};

struct put_key {
    const struct grant *grant;
    const struct grant_extent *extent;
};

static bool put_eq(const struct htab_node *node, const void *key) {
    const struct host_put *p = CONTAINER_OF(node, const struct host_put, node);
    const struct put_key *k = key;
    return p->session == k->grant->session && p->number == k->grant->put &&
           memcmp(&p->extent, k->extent, sizeof(p->extent)) == 0;
}

static uint64_t put_hash(const struct put_key *k) {
    return hash_u64(hash_u64(k->grant->session) ^ k->grant->put) ^ hash_u64(k->extent->offset);
}

void host_puts_init(struct host_puts *t) {
    pthread_mutex_init(&t->lock, NULL);
    t->wheel = wheel_create(clock_mono_ms());
}

static void drop_ranges(struct host_puts *t, struct host_put *p) {
    t->ranges -= p->n_ranges;
    free(p->ranges);
    p->ranges = NULL;
    p->n_ranges = 0;
}

static void put_forget(struct host_puts *t, struct host_put *p) {
    htab_remove(&t->table, &p->node);
    wheel_remove(t->wheel, &p->wheel);
    drop_ranges(t, p);
    free(p);
    __atomic_store_n(&t->count, t->table.count, __ATOMIC_RELAXED);
}

static void puts_reap(struct host_puts *t, uint64_t now_ms, unsigned budget) {
    bool more;
    struct wheel_node *n;
    while (budget > 0 && (n = wheel_pop(t->wheel, now_ms, &budget, &more)) != NULL) {
        struct host_put *p = CONTAINER_OF(n, struct host_put, wheel);
        if (p->writers > 0)
            wheel_set(t->wheel, n, now_ms + LATE_MS); /* draining what is refused */
        else
            put_forget(t, p);
    }
}

static void put_forget_node(void *arg, struct htab_node *node) {
    put_forget(arg, CONTAINER_OF(node, struct host_put, node));
}

void host_puts_deinit(struct host_puts *t) {
    htab_each(&t->table, put_forget_node, t);
    htab_free(&t->table);
    wheel_destroy(&t->wheel);
    pthread_mutex_destroy(&t->lock);
}

static struct host_put *put_find(struct host_puts *t, const struct put_key *k) {
    struct htab_node *n = htab_find(&t->table, put_hash(k), put_eq, k);
    return n != NULL ? CONTAINER_OF(n, struct host_put, node) : NULL;
}

/* NULL: there are max already. */
static struct host_put *find_or_add(struct host_gate *gate, const struct put_key *k, unsigned max) {
    struct host_puts *t = &gate->puts;
    struct host_put *p = put_find(t, k);
    if (p != NULL) return p;
    uint64_t mono_ms = clock_mono_ms(), now_ms = host_gate_now_ms(gate),
             expiry_ms = k->grant->expiry_ms;
    puts_reap(t, mono_ms, REAP_MAX);
    if (t->table.count >= max) return NULL;
    p = xcalloc(1, sizeof(*p));
    p->extent = *k->extent;
    p->session = k->grant->session;
    p->number = k->grant->put;
    htab_insert(&t->table, &p->node, put_hash(k));
    wheel_set(t->wheel, &p->wheel,
              mono_ms + (expiry_ms > now_ms ? expiry_ms - now_ms : 0) + LATE_MS);
    __atomic_store_n(&t->count, t->table.count, __ATOMIC_RELAXED);
    return p;
}

enum grant_verdict host_puts_begin(void *arg, const struct grant *g,
                                   const struct grant_extent *extent, void **put_p) {
    struct host_gate *gate = arg;
    struct host_puts *t = &gate->puts;
    enum grant_verdict v = GRANT_OK;
    pthread_mutex_lock(&t->lock);
    struct host_put *p = find_or_add(gate, &(struct put_key){g, extent}, HOST_PUTS_MAX);
    if (p == NULL) {
        v = GRANT_LATER;
    } else if (p->sealed) {
        v = GRANT_OVER;
    } else {
        p->writers++;
        *put_p = p;
    }
    pthread_mutex_unlock(&t->lock);
    return v;
}

/* Notes [from, to), which joins what it touches. */
static void add_range(struct host_puts *t, struct host_put *p, uint64_t from, uint64_t to) {
    uint32_t at = 0, end;
    while (at < p->n_ranges && p->ranges[at].to < from) at++;
    for (end = at; end < p->n_ranges && p->ranges[end].from <= to; end++) {
        from = min_u64(from, p->ranges[end].from);
        to = max_u64(to, p->ranges[end].to);
    }
    if (end == at) {
        if (p->n_ranges == RANGES_MAX || t->ranges == HOST_PUT_RANGES_MAX) {
            p->scattered = true;
            return;
        }
        p->ranges = xrealloc(p->ranges, (p->n_ranges + 1) * sizeof(*p->ranges));
        memmove(p->ranges + at + 1, p->ranges + at, (p->n_ranges - at) * sizeof(*p->ranges));
        p->n_ranges++;
        t->ranges++;
    } else {
        memmove(p->ranges + at + 1, p->ranges + end, (p->n_ranges - end) * sizeof(*p->ranges));
        p->n_ranges -= end - at - 1;
        t->ranges -= end - at - 1;
    }
    p->ranges[at] = (struct range){from, to};
}

void host_puts_end(void *arg, void *put, uint64_t offset, uint64_t length) {
    struct host_puts *t = &((struct host_gate *)arg)->puts;
    struct host_put *p = put;
    pthread_mutex_lock(&t->lock);
    TARN_ASSERT(p->writers > 0);
    p->writers--;
    if (length > 0 && !p->sealed) add_range(t, p, offset, offset + length);
    pthread_mutex_unlock(&t->lock);
}

static void put_shut(struct host_puts *t, struct host_put *p) {
    if (p->sealed) return;
    p->sealed = true;
    p->whole = !p->scattered && p->n_ranges == 1 && p->ranges[0].from == 0 &&
               p->ranges[0].to == p->extent.length;
    drop_ranges(t, p);
}

enum grant_verdict host_puts_seal(void *arg, const struct grant *g,
                                  const struct grant_extent *extent,
                                  uint8_t receipt[GRANT_RECEIPT_SIZE]) {
    struct host_gate *gate = arg;
    struct host_puts *t = &gate->puts;
    const struct host_authority *a = host_gate_authority(gate);
    if (a == NULL || a->master_epoch != g->master_epoch) return GRANT_BAD_EPOCH;
    enum grant_verdict v = GRANT_LATER;
    pthread_mutex_lock(&t->lock);
    struct host_put *p = find_or_add(gate, &(struct put_key){g, extent}, HOST_PUTS_MAX);
    if (p != NULL && p->writers == 0) {
        put_shut(t, p);
        grant_receipt(a->key, g, extent, p->whole, receipt);
        v = GRANT_OK;
    }
    pthread_mutex_unlock(&t->lock);
    return v;
}

bool host_put_close(struct host *h, const struct grant *g, const struct grant_extent *extent) {
    MAGIC_CHECK(h, HOST_MAGIC);
    struct host_puts *t = &h->gate.puts;
    pthread_mutex_lock(&t->lock);
    /* Who opens puts and revokes them has half of the table: the other is for those who write. */
    struct host_put *p = find_or_add(&h->gate, &(struct put_key){g, extent}, HOST_PUTS_MAX / 2);
    bool quiet = p != NULL && p->writers == 0;
    if (p != NULL) put_shut(t, p);
    pthread_mutex_unlock(&t->lock);
    return quiet;
}
