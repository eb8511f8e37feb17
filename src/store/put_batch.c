/* Puts that one request opened, by their order in it: so that they can be ended together by a
 * number, without their keys and tokens. A batch is there as long as one of its puts is. */
#include <stdlib.h>
#include "base/rng.h"
#include "store/books.h"

static bool put_batch_has_id(const struct htab_node *node, const void *key) {
    return CONTAINER_OF(node, struct put_batch, node)->id == *(const uint64_t *)key;
}

static struct put_batch *put_batch_find(struct store *s, uint64_t session, uint64_t id) {
    struct put_batch *b = s->put_batch;
    if (b == NULL || b->id != id) {
        struct htab_node *n = htab_find(&s->put_batches, mix64(id), put_batch_has_id, &id);
        b = n != NULL ? CONTAINER_OF(n, struct put_batch, node) : NULL;
    }
    if (b == NULL || b->session != session) return NULL;
    return s->put_batch = b;
}

static struct put_batch *put_batch_new(struct store *s, uint64_t session, uint64_t id) {
    struct put_batch *b = xcalloc(1, sizeof(*b));
    b->id = id;
    b->session = session;
    htab_insert(&s->put_batches, &b->node, mix64(id));
    s->put_bytes += sizeof(*b);
    return s->put_batch = b;
}

static void put_batch_grow(struct store *s, struct put_batch *b, uint32_t n) {
    uint32_t cap = b->cap > 0 ? b->cap : 16;
    while (cap < n) cap *= 2;
    if (cap != b->cap) {
        s->put_bytes += (cap - b->cap) * sizeof(*b->put);
        b->put = xrealloc(b->put, cap * sizeof(*b->put));
        b->cap = cap;
    }
    while (b->n < n) b->put[b->n++] = NULL;
}

void store_put_join(struct store *s, struct store_put *p, uint64_t id, uint32_t place) {
    struct put_batch *b = put_batch_find(s, p->session->id, id);
    if (b == NULL) b = put_batch_new(s, p->session->id, id);
    put_batch_grow(s, b, place + 1);
    TARN_ASSERT(p->batch == NULL && b->put[place] == NULL);
    b->put[place] = p;
    b->left++;
    p->batch = b;
    p->place = place;
}

void put_batch_leave(struct store *s, struct store_put *p) {
    struct put_batch *b = p->batch;
    p->batch = NULL;
    b->put[p->place] = NULL;
    if (--b->left > 0) return;
    if (s->put_batch == b) s->put_batch = NULL;
    htab_remove(&s->put_batches, &b->node);
    s->put_bytes -= sizeof(*b) + b->cap * sizeof(*b->put);
    free(b->put);
    free(b);
}

uint32_t store_put_batch_size(struct store *s, uint64_t session, uint64_t id) {
    const struct put_batch *b = put_batch_find(s, session, id);
    return b != NULL ? b->n : 0;
}

/* The puts that are most likely asked for next come near, then their space and where they go in the
 * index. */
static void put_batch_ahead(const struct store *s, const struct put_batch *b, uint32_t place) {
    const struct store_put *soon = place + 2 < b->n ? b->put[place + 2] : NULL,
                           *next = place + 4 < b->n ? b->put[place + 4] : NULL,
                           *later = place + 8 < b->n ? b->put[place + 8] : NULL;
    if (soon != NULL) index_prefetch_more(&s->index, soon->node.hash);
    if (next != NULL) {
        index_prefetch_bucket(&s->index, next->node.hash);
        if (next->n_spots > 0) __builtin_prefetch(block_get(&s->space, next->spots[0].blocks[0]));
    }
    if (later == NULL) return;
    __builtin_prefetch(later);
    __builtin_prefetch(&later->n_spots);
    __builtin_prefetch(later->spots);
    __builtin_prefetch(later->key);
}

struct store_put *store_put_at(struct store *s, uint64_t session, uint64_t id, uint32_t place) {
    const struct put_batch *b = put_batch_find(s, session, id);
    if (b != NULL) put_batch_ahead(s, b, place);
    struct store_put *p = b != NULL && place < b->n ? b->put[place] : NULL;
    if (p != NULL && put_ends(s, p)) return p;
    if (p != NULL)
        (void)store_put_revoke(s, store_put_key(p), p->token); /* nothing of it is on its way */
    else
        s->stat.bad_tokens++;
    return NULL;
}
