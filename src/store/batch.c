/* Batches of keys: what a look-up, a read or a put of many keys tells the policies. */
#include "store/batch.h"
#include "store/books.h"

void store_batch_begin(struct store *s, struct store_batch *b, struct store_chain *chain,
                       enum store_batch_kind kind, uint32_t length) {
    batch_over(s); /* the one before may have ended early */
    *b = (struct store_batch){.chain = chain, .kind = kind, .length = length, .open = true};
}

uint32_t store_session(struct span id) {
    uint32_t session = (uint32_t)store_hash(id);
    return session != 0 ? session : 1;
}

/* --- which request a batch belongs to --- */

static struct batch_miss *miss_slot(struct store *s, uint64_t hash) {
    return &s->misses[hash % BATCH_MISSES];
}

/* The puts that begin with the first miss of a look-up, over whatever connection. */
static bool put_goes_on(struct store *s, struct store_batch *b, uint64_t hash) {
    const struct store_chain *c = b->chain;
    struct batch_miss *miss = miss_slot(s, hash);
    if (c->request && c->next_hash == hash) {
        b->request = c->request;
        b->base_depth = c->depth;
    } else if (miss->request && miss->hash == hash) {
        b->request = miss->request;
        b->base_depth = miss->depth;
    }
    if (miss->hash == hash) *miss = (struct batch_miss){0}; /* of that look-up, once */
    return b->request != 0;
}

/* The first key tells whether this batch goes on with an earlier look-up: a get of exactly the hits
 * of the connection's last one, or puts that begin with a first miss. */
static bool batch_goes_on(struct store *s, struct store_batch *b, uint64_t hash) {
    const struct store_chain *c = b->chain;
    if (!c) return false;
    if (b->kind == STORE_BATCH_PUT) return put_goes_on(s, b, hash);
    if (b->kind != STORE_BATCH_READ || !c->request || c->hits != b->length || c->first_hash != hash)
        return false;
    b->request = c->request;
    return true;
}

void batch_number(struct store *s, struct store_batch *b, uint64_t hash) {
    if (b->numbered) return;
    b->numbered = true;
    if (batch_goes_on(s, b, hash)) return;
    if (++s->next_request == 0) s->next_request = 1;
    b->request = s->next_request;
    s->stat.requests++;
    if (b->chain && b->kind != STORE_BATCH_PUT)
        *b->chain = (struct store_chain){.request = b->request, .first_hash = hash};
}

void batch_later(struct store_batch *b, uint64_t hash, const struct policy_event *e) {
    if (!b->chain || b->later) return; /* of several the first */
    b->later = true;
    *b->chain = (struct store_chain){.request = b->request, .depth = e->depth, .next_hash = hash};
}

/* --- what policies are told --- */

struct policy_event batch_event(const struct store *s, const struct store_batch *b, uint64_t hash) {
    return (struct policy_event){
        .now_ms = s->now_ms,
        .hash = hash,
        .request = b->request,
        .position = b->pos,
        .length = b->length,
        .depth = b->base_depth + b->pos,
        .hits = b->hits,
        .session = b->session,
        .return_ms = b->return_ms,
        .put = b->kind == STORE_BATCH_PUT,
    };
}

void batch_over(struct store *s) {
    if (LIKELY(!s->batch_open)) return;
    s->batch_open = false;
    for (unsigned i = 0; i < s->n_domains; i++)
        for (int inl = 0; inl < 2; inl++)
            if (s->domains[i].used)
                s->policy->prefix_done(&s->domains[i].policy[inl], &s->batch_last);
}

void batch_step(struct store *s, struct store_batch *b, const struct policy_event *e) {
    b->pos++;
    if (!s->policy->prefix_done) return;
    s->batch_last = *e;
    s->batch_open = true;
    if (b->pos == b->length) batch_over(s);
}

void store_batch_hit(struct store *s, struct store_batch *b, struct object *o, uint64_t hash) {
    batch_number(s, b, hash);
    if (b->open) {
        b->hits++;
        if (b->chain && b->kind != STORE_BATCH_PUT && b->chain->request == b->request &&
            b->chain->hits < b->hits)
            b->chain->hits = b->hits;
    }
    struct policy_event e = batch_event(s, b, hash);
    s->stat.hits++;
    if (story_notes(&s->story, hash) || s->n_domains > 1) story_hit(s, o, hash);
    s->story.curve->looks++;
    if (b->chain) object_set_depth(o, e.depth);
    if (b->kind != STORE_BATCH_LOOK) {
        e.again = book_request(s, o) == b->request;
        book_access(s, o, &e);
    }
    batch_step(s, b, &e);
}

void store_batch_seen(struct store *s, struct store_batch *b, uint32_t hits) {
    b->hits += hits;
    b->pos += hits;
    s->stat.hits += hits;
}

void store_batch_gap(struct store *s, uint64_t n) {
    s->stat.missed[STORE_MISS_GAP] += n;
}

void store_batch_miss(struct store *s, struct store_batch *b, struct span key, uint64_t hash) {
    batch_number(s, b, hash);
    s->stat.misses++;
    bool notes = story_notes(&s->story, hash); /* in any case: it counts */
    if (notes || story_follows(&s->story, hash)) story_miss(s, key, hash);
    s->story.curve->looks++;
    struct policy_event e = batch_event(s, b, hash);
    if (b->open && b->chain && b->kind != STORE_BATCH_PUT) {
        if (b->chain->request == b->request) {
            b->chain->next_hash = hash;
            b->chain->depth = e.depth;
        }
        *miss_slot(s, hash) = (struct batch_miss){hash, b->request, e.depth};
    }
    b->open = false;
    batch_step(s, b, &e);
}
