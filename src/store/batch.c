/* Batches of keys: what a look-up, a read or a put of many keys tells the policies. */
#include "store/batch.h"
#include "store/books.h"

/* A spread batch of fewer keys, and a put of fewer bytes, is not cut into several requests: another
 * one at later places is another, though it may be as long. */
#define CUT_KEYS  128u
#define CUT_BYTES (UINT64_C(1) << 30)
/* So many requests later a session's puts, of which no look-up tells, are those of another one. */
#define PUTS_APART 128u

void store_batch_begin(struct store *s, struct store_batch *b, struct store_chain *chain,
                       enum store_batch_kind kind, uint32_t length) {
    batch_over(s); /* the one before may have ended early */
    *b = (struct store_batch){
        .chain = chain, .kind = kind, .length = length, .own = length, .open = true};
}

/* Leading keys that are others' count as hits: what is missing there ends the prefix there. */
void store_batch_at(struct store_batch *b, uint32_t position, uint32_t length) {
    b->spread = true;
    b->pos = position;
    b->length = length;
    if (b->open) b->hits = position;
}

uint32_t store_session(struct span id) {
    uint32_t session = (uint32_t)store_hash(id);
    return session != 0 ? session : 1;
}

/* --- which request a batch belongs to --- */

static struct batch_end *end_slot(struct store *s, uint64_t key) {
    return &s->ends[key % BATCH_ENDS];
}

static const struct batch_end *end_find(struct store *s, uint64_t key) {
    const struct batch_end *x = end_slot(s, key);
    return x->request && x->key == key ? x : NULL;
}

static void end_note(struct store *s, uint64_t key, const struct store_batch *b, uint32_t depth) {
    *end_slot(s, key) = (struct batch_end){key, b->request, depth, b->base_depth + b->length};
}

/* Under which the end of a session's last look-up is noted, or (chain) of a connection's puts. */
static uint64_t session_key(uint32_t session, const struct store_chain *chain) {
    return hash_u64(hash_u64(session) ^ (uintptr_t)chain);
}

/* Puts of a session that begin elsewhere: behind those that this connection did for its last
 * look-up, or where that ended; or behind its last ones, if there was none. */
static const struct batch_end *session_end(struct store *s, const struct store_batch *b) {
    if (b->session == 0) return NULL;
    const struct batch_end *look = end_find(s, session_key(b->session, NULL)),
                           *put = end_find(s, session_key(b->session, b->chain));
    if (!look) return put && s->next_request - put->request < PUTS_APART ? put : NULL;
    return put && put->request == look->request ? put : look;
}

/* A client that puts its part of a batch in several requests tells places in the whole. */
static bool put_is_rest(const struct store_batch *b) {
    const struct store_chain *c = b->chain;
    bool cut = c->put_keys >= CUT_KEYS || c->put_bytes + b->bytes > CUT_BYTES;
    return cut && b->spread && c->put_spread == b->length && b->pos > c->put_last;
}

/* The puts that begin with the first miss of a look-up, over whatever connection; and those that
 * have their place behind them, where a client puts many keys in several batches. */
static bool put_goes_on(struct store *s, struct store_batch *b, uint64_t hash) {
    struct store_chain *c = b->chain;
    struct batch_end own = {hash, c->next_hash == hash ? c->request : 0, c->depth, c->length},
                     more = {0, c->put_request, c->put_depth + b->pos, c->put_end};
    bool fits = more.request && b->length <= c->put_end - c->put_depth;
    if (more.request && put_is_rest(b)) {
        more.depth -= b->length;
        fits = true;
    }
    const struct batch_end *miss = end_find(s, hash), *x = own.request ? &own
                                                           : miss      ? miss
                                                           : fits      ? &more
                                                                       : session_end(s, b);
    c->put_spread = 0;
    if (!x) return false;
    b->request = x->request;
    b->base_depth = x->depth - (uint32_t)min_u64(x->depth, b->pos);
    c->put_request = x->request;
    c->put_depth = b->base_depth + b->length;
    c->put_end = (uint32_t)max_u64(x->end, c->put_depth);
    c->put_spread = b->spread ? b->length : 0;
    c->put_keys = b->own;
    if (miss) *end_slot(s, hash) = (struct batch_end){0}; /* once */
    return true;
}

/* Gets of the hits of the connection's last look-up, in one batch or several. Of a spread one the
 * hits end at the first miss that was seen here, or a little before. */
static bool read_goes_on(struct store_batch *b, uint64_t hash) {
    struct store_chain *c = b->chain;
    uint32_t hits = !b->spread ? c->hits : c->next_hash ? c->depth : c->length;
    if (b->spread && c->read_spread == b->length && b->pos > c->put_last) {
        b->request = c->request;
        b->base_depth = c->read_depth;
        return true;
    }
    if (!c->request || c->gets || c->read > hits || b->length > hits - c->read) return false;
    if ((c->read == 0) != (c->first_hash == hash)) return false;
    b->request = c->request;
    b->base_depth = c->read;
    c->read += b->length;
    return true;
}

/* The first key tells whether this batch goes on with an earlier look-up. */
static bool batch_goes_on(struct store *s, struct store_batch *b, uint64_t hash) {
    if (!b->chain) return false;
    if (b->kind == STORE_BATCH_PUT) return put_goes_on(s, b, hash);
    return b->kind == STORE_BATCH_READ && read_goes_on(b, hash);
}

static void batch_number_new(struct store *s, struct store_batch *b, uint64_t hash) {
    if (++s->next_request == 0) s->next_request = 1;
    b->request = s->next_request;
    s->stat.requests++;
    if (b->chain && b->kind != STORE_BATCH_PUT)
        *b->chain = (struct store_chain){.request = b->request,
                                         .length = b->length,
                                         .gets = b->kind == STORE_BATCH_READ,
                                         .first_hash = hash};
}

void batch_number(struct store *s, struct store_batch *b, uint64_t hash) {
    if (b->numbered) return;
    b->numbered = true;
    if (!batch_goes_on(s, b, hash)) batch_number_new(s, b, hash);
    if (!b->chain || b->kind != STORE_BATCH_READ) return;
    b->chain->read_spread = b->spread && b->own >= CUT_KEYS ? b->length : 0;
    b->chain->read_depth = b->base_depth;
}

void batch_later(struct store_batch *b, uint64_t hash, const struct policy_event *e) {
    if (!b->chain || b->later) return; /* of several the first */
    b->later = true;
    *b->chain = (struct store_chain){.request = b->request,
                                     .depth = e->depth,
                                     .length = b->base_depth + b->length,
                                     .next_hash = hash};
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
            if (s->domains[i].used && s->domains[i].policy[inl].ops->prefix_done)
                s->domains[i].policy[inl].ops->prefix_done(&s->domains[i].policy[inl],
                                                           &s->batch_last);
}

/* A look-up of a session found all; a get of some of it is shorter, and is no end. */
static void session_found(struct store *s, const struct store_batch *b, uint32_t depth) {
    uint64_t key = session_key(b->session, NULL);
    const struct batch_end *x = end_find(s, key);
    if (!x || x->depth <= depth) end_note(s, key, b, depth);
}

static void session_step(struct store *s, const struct store_batch *b, uint32_t depth) {
    if (b->kind == STORE_BATCH_PUT)
        end_note(s, session_key(b->session, b->chain), b, depth);
    else if (b->open && b->pos == b->length)
        session_found(s, b, depth);
}

void batch_step(struct store *s, struct store_batch *b, const struct policy_event *e) {
    if (b->spread && b->chain) b->chain->put_last = b->pos;
    if (b->chain && b->kind == STORE_BATCH_PUT) b->chain->put_bytes = b->bytes;
    b->pos++;
    if (b->session && b->chain) session_step(s, b, e->depth + 1);
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
        if (!s->policy->request || book_far_only(o)) e.again = book_request(s, o) == b->request;
        book_access(s, o, &e);
    } else if (b->open) {
        b->last = record_ref(&s->records, o);
        b->last_version = object_version(o);
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

/* Other commands may have come between two of its keys. */
static void look_ends(struct store *s, const struct store_batch *b, const struct policy_event *e) {
    if (!b->last) return;
    struct object *o = record_get(&s->records, b->last);
    if (object_version(o) == b->last_version) book_found(s, o, e);
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
        end_note(s, hash, b, e.depth);
        if (b->session) end_note(s, session_key(b->session, NULL), b, e.depth);
        look_ends(s, b, &e);
    }
    b->open = false;
    batch_step(s, b, &e);
}
