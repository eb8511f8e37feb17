#include "route/session.h"
#include <stdlib.h>
#include "route/internal.h"

#define SESSION_US (15 * 60 * 1000000ull)

void sessions_init(struct sessions *t) {
    TAILQ_INIT(&t->by_use);
}

static void session_forget(struct sessions *t, struct route_session *s) {
    TAILQ_REMOVE(&t->by_use, s, by_use);
    htab_remove(&t->table, &s->node);
    free(s);
}

void sessions_deinit(struct sessions *t) {
    struct route_session *s;
    while ((s = TAILQ_FIRST(&t->by_use)) != NULL) session_forget(t, s);
    htab_free(&t->table);
}

size_t sessions_memory(const struct sessions *t) {
    return htab_memory(&t->table) + t->table.count * sizeof(struct route_session);
}

/* --- finding them --- */

static uint64_t mix_name(uint64_t h, struct span name) {
    return mix64(h ^ hash_bytes(name.data, name.len));
}

/* 0: the request names none. One of another model, adapter or tenant is another one. */
static uint64_t session_name(const struct route_request *q) {
    if (q->session.len == 0) return 0;
    uint64_t h = mix_name(0, q->tenant.len == 0 ? SPAN("default") : q->tenant);
    h = mix_name(mix_name(mix_name(h, q->model), q->lora), q->session);
    return h != 0 ? h : 1;
}

static bool session_same(const struct htab_node *node, const void *key) {
    return node->hash == *(const uint64_t *)key;
}

static struct route_session *session_find(const struct route *r, uint64_t name) {
    struct htab_node *node = htab_find(&r->sessions.table, name, session_same, &name);
    return node == NULL ? NULL : CONTAINER_OF(node, struct route_session, node);
}

/* Made if need be, without tokens. */
static struct route_session *session_get(struct route *r, uint64_t name) {
    struct sessions *t = &r->sessions;
    struct route_session *s = session_find(r, name);
    if (s != NULL) return s;
    if (t->table.count >= r->options.sessions_max)
        session_forget(t, TAILQ_LAST(&t->by_use, session_list));
    s = xcalloc(1, sizeof(*s));
    htab_insert(&t->table, &s->node, name);
    TAILQ_INSERT_HEAD(&t->by_use, s, by_use);
    r->figures.route_sessions = t->table.count;
    return s;
}

/* --- what is left of one --- */

/* Tokens that its worker probably still has. */
static uint64_t session_left(const struct route *r, const struct route_session *s) {
    if (!worker_still(r, s->worker, s->birth) || r->now_us - s->at_us > SESSION_US) return 0;
    const struct worker *w = &r->workers[s->worker];
    const struct route_engine *e = w->engine;
    if (e->rests != s->rests) return 0;
    uint64_t cache = min_u64(max_u64(e->kv_blocks, e->cache_blocks), UINT32_MAX) * e->block_tokens;
    uint64_t since = w->taken_tokens - s->taken_tokens;
    if (cache == 0) return s->tokens;
    return since < cache ? min_u64(s->tokens, cache - since) : 0;
}

/* Does the index know what this one has of the prompt? */
static bool index_tells(const struct cost_case *c, const struct candidate *a) {
    return c->route->workers[a->worker].followed && chain_of(c->request, a->engine) != NULL;
}

void session_match(struct cost_case *c) {
    struct route *r = c->route;
    c->session = session_name(c->request);
    struct route_session *s = c->session != 0 ? session_find(r, c->session) : NULL;
    if (s == NULL) return;
    TAILQ_REMOVE(&r->sessions.by_use, s, by_use);
    TAILQ_INSERT_HEAD(&r->sessions.by_use, s, by_use);
    struct candidate *a = candidate_of(c, s->worker);
    if (a == NULL || index_tells(c, a)) return;
    /* In whole blocks, and the last one is computed. */
    uint32_t block = a->engine->block_tokens, there = a->hit_tokens + a->ahead_tokens;
    uint32_t most = c->prompt_tokens > block ? c->prompt_tokens - block : 0;
    uint32_t tokens = (uint32_t)min_u64(session_left(r, s), most) / block * block;
    if (tokens <= there) return;
    c->session_worker = a->worker;
    c->session_tokens = tokens - there;
    a->ahead_tokens += c->session_tokens;
}

/* --- what is told of requests --- */

void session_told(struct route *r, const struct route_reservation *q, uint32_t output_tokens) {
    if (q->session == 0 || !request_prefill_there(r, q)) return;
    const struct worker *w = &r->workers[q->prefill];
    struct route_session *s = session_get(r, q->session);
    uint32_t tokens = q->prompt_tokens + (q->decode == q->prefill ? output_tokens : 0);
    /* A short one beside it, to have the conversation's title, say, does not move it. */
    if (tokens < session_left(r, s)) return;
    s->worker = q->prefill;
    s->birth = q->prefill_birth;
    s->rests = w->engine->rests;
    s->tokens = tokens;
    s->taken_tokens = w->taken_tokens;
    s->at_us = r->now_us;
}

void session_failed(struct route *r, const struct route_reservation *q, uint32_t worker) {
    struct route_session *s = q->session != 0 ? session_find(r, q->session) : NULL;
    if (s == NULL || s->worker != worker) return;
    session_forget(&r->sessions, s);
    r->figures.route_sessions = r->sessions.table.count;
}
