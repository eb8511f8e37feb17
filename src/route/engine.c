/* The engines: who there is, who is alive. */
#include <math.h>
#include <stdlib.h>
#include "route/internal.h"

static bool engine_same(const struct htab_node *node, const void *key) {
    const struct route_engine *e = CONTAINER_OF(node, const struct route_engine, node);
    return span_eq(span_str(e->id), *(const struct span *)key);
}

struct route_engine *engine_find(const struct route *r, struct span id) {
    struct htab_node *node = htab_find(&r->engines, hash_bytes(id.data, id.len), engine_same, &id);
    return node == NULL ? NULL : CONTAINER_OF(node, struct route_engine, node);
}

/* --- coming --- */

static bool text_fits(struct span s, size_t most) {
    return s.len <= most && memchr(s.data != NULL ? s.data : "", '\0', s.len) == NULL;
}

static bool prior_sane(const struct route_prior *p) {
    const double *v = (const double *)p;
    for (size_t i = 0; i < sizeof(*p) / sizeof(double); i++)
        if (!isfinite(v[i]) || v[i] < 0) return false;
    return true;
}

static tarn_status spec_check(struct route *r, const struct route_engine_spec *s) {
    const struct span names[] = {s->model, s->lora, s->tenant, s->salt, s->host, s->rack};
    if (!span_is_name(s->id, ROUTE_NAME_MAX))
        return route_fail(r, TARN_EINVAL, "an engine's id is 1 to %u of A-Z a-z 0-9 . _ -",
                          ROUTE_NAME_MAX);
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (!text_fits(names[i], ROUTE_NAME_MAX))
            return route_fail(r, TARN_EINVAL,
                              "a model, adapter, tenant, salt, host or rack has up to %u bytes",
                              ROUTE_NAME_MAX);
    if (!text_fits(s->url, ROUTE_URL_MAX))
        return route_fail(r, TARN_EINVAL, "a URL has up to %u bytes", ROUTE_URL_MAX);
    if (s->block_tokens == 0 || s->block_tokens > 1u << 20)
        return route_fail(r, TARN_EINVAL, "a block has 1 to %u tokens", 1u << 20);
    if (s->ranks > ROUTE_RANKS_MAX || s->rank >= ROUTE_RANKS_MAX)
        return route_fail(r, TARN_EINVAL, "an engine has up to %u ranks", ROUTE_RANKS_MAX);
    if (s->role > ROUTE_DECODE || !prior_sane(&s->prior))
        return route_fail(r, TARN_EINVAL, "a role or a prior time is out of range");
    return TARN_OK;
}

static double prior_or(double given, double otherwise) {
    return given > 0 ? given : otherwise;
}

static void prior_fill(struct route_prior *p, const struct route_prior *given) {
    const double *from = (const double *)given;
    const double *otherwise = (const double *)&route_prior_default;
    double *to = (double *)p;
    for (size_t i = 0; i < sizeof(*p) / sizeof(double); i++)
        to[i] = prior_or(from[i], otherwise[i]);
}
static_assert(sizeof(struct route_prior) == 13 * sizeof(double), "nothing but numbers");

static void engine_models(struct route_engine *e) {
    const struct route_prior *p = &e->prior;
    model_init(&e->prefill,
               (double[MODEL_TERMS]){p->prefill_start_us, p->prefill_token_us, p->prefill_pair_us});
    model_init(&e->decode, (double[MODEL_TERMS]){p->decode_step_us, p->decode_sequence_us,
                                                 p->decode_context_us});
    for (unsigned i = 0; i < ROUTE_PLACES; i++)
        model_init(&e->transfer[i],
                   (double[MODEL_TERMS]){p->latency_us[i], 1 / p->rate[i], 1 / p->disk_rate});
}

static void worker_init(struct route *r, struct worker *w, struct route_engine *e, uint32_t rank,
                        uint32_t holder) {
    uint16_t birth = (uint16_t)(w->birth + 1);
    memset(w, 0, sizeof(*w));
    w->birth = birth;
    w->engine = e;
    w->rank = rank;
    w->holder = holder;
    w->sends_to = ROUTE_FAR;
    TAILQ_INIT(&w->prefills);
    TAILQ_INIT(&w->decodes);
    w->area_us = w->report_us = r->now_us;
}

static tarn_status no_room(struct route *r) {
    return route_fail(r, TARN_ELIMIT,
                      "there are %u ranks at most, and those that left count until their blocks "
                      "are swept",
                      r->options.workers_max);
}

/* The lowest free number, and one in the index. */
static tarn_status worker_take(struct route *r, struct route_engine *e, uint32_t rank) {
    if (r->figures.route_workers >= r->options.workers_max) return no_room(r);
    uint32_t at = 0;
    uint32_t holder = route_holder_add(r->index, e->block_tokens, e->cache_blocks);
    if (holder == ROUTE_HOLDER_NONE) return no_room(r);
    while (r->workers[at].engine != NULL) at++;
    worker_init(r, &r->workers[at], e, rank, holder);
    e->workers[rank] = at;
    e->ranks++;
    r->worker_of[holder] = at;
    if (at >= r->workers_used) r->workers_used = at + 1;
    r->figures.route_workers++;
    return TARN_OK;
}

static void engine_free(struct route *r, struct route_engine *e) {
    name_put(r, &e->model);
    name_put(r, &e->lora);
    free(e->id);
    free(e->url);
    free(e->tenant);
    free(e->salt);
    name_put(r, &e->host);
    name_put(r, &e->rack);
    name_put(r, &e->keys);
    free(e);
}

static struct route_engine *engine_make(struct route *r, const struct route_engine_spec *s) {
    struct route_engine *e = xcalloc(1, sizeof(*e));
    e->id = span_dup(s->id);
    e->url = span_dup(s->url);
    e->tenant = span_dup(span_eq(s->tenant, SPAN("default")) ? SPAN("") : s->tenant);
    e->of_tenant = e->tenant[0] != '\0';
    e->salt = span_dup(s->salt);
    e->host = name_get(r, s->host);
    e->rack = name_get(r, s->rack);
    e->keys = name_get(r, SPAN(""));
    e->model = name_get(r, s->model);
    e->any_lora = span_eq(s->lora, SPAN("*"));
    e->lora = name_get(r, s->lora);
    e->role = s->role;
    for (uint32_t i = 0; i < ROUTE_RANKS_MAX; i++) e->workers[i] = ROUTE_NO_WORKER;
    e->block_tokens = s->block_tokens;
    e->kv_blocks = s->kv_blocks;
    e->bytes_per_token = s->bytes_per_token;
    e->cache_blocks = s->cache_blocks != 0 ? s->cache_blocks : s->kv_blocks;
    e->batch_max = s->batch_max;
    prior_fill(&e->prior, &s->prior);
    engine_models(e);
    return e;
}

/* --- going --- */

/* Requests whose decode alone was here go on: their prefill is not touched, and when it ends they
 * ask again. Until then they have no decode reservation. */
static void worker_clear(struct route *r, struct worker *w) {
    struct route_reservation *q, *next;
    TAILQ_FOREACH_SAFE(q, &w->prefills, prefill_link, next) {
        r->figures.route_removals++;
        request_release(r, &q);
    }
    TAILQ_FOREACH_SAFE(q, &w->decodes, decode_link, next) {
        r->figures.route_removals++;
        if (q->state == REQUEST_PREFILL)
            request_move_decode(r, q, ROUTE_NO_WORKER);
        else
            request_release(r, &q);
    }
    route_holder_remove(r->index, w->holder);
    w->engine = NULL;
}

static void worker_drop(struct route *r, struct route_engine *e, uint32_t rank) {
    worker_clear(r, &r->workers[e->workers[rank]]);
    e->workers[rank] = ROUTE_NO_WORKER;
    e->ranks--;
    r->figures.route_workers--;
    while (r->workers_used > 0 && r->workers[r->workers_used - 1].engine == NULL) r->workers_used--;
}

static void engine_drop(struct route *r, struct route_engine *e) {
    for (uint32_t rank = 0; rank < ROUTE_RANKS_MAX; rank++)
        if (e->workers[rank] != ROUTE_NO_WORKER) worker_drop(r, e, rank);
    r->figures.route_engines--;
    htab_remove(&r->engines, &e->node);
    engine_free(r, e);
}

/* --- by name --- */

tarn_status route_engine_add(struct route *r, const struct route_engine_spec *spec,
                             uint64_t now_us) {
    route_tick(r, now_us);
    tarn_status status = spec_check(r, spec);
    if (status != TARN_OK) return status;
    if (engine_find(r, spec->id) != NULL)
        return route_fail(r, TARN_EEXISTS, "engine %.*s is there already", (int)spec->id.len,
                          spec->id.data);
    uint32_t first = spec->ranks == 0 ? spec->rank : 0;
    uint32_t end = spec->ranks == 0 ? spec->rank + 1 : spec->ranks;
    if (r->figures.route_workers + end - first > r->options.workers_max) return no_room(r);
    struct route_engine *e = engine_make(r, spec);
    htab_insert(&r->engines, &e->node, hash_bytes(spec->id.data, spec->id.len));
    r->figures.route_engines++;
    for (uint32_t rank = first; status == TARN_OK && rank < end; rank++)
        status = worker_take(r, e, rank);
    if (status != TARN_OK) engine_drop(r, e);
    return status;
}

tarn_status route_rank_add(struct route *r, struct span id, uint32_t rank, uint64_t now_us) {
    route_tick(r, now_us);
    struct route_engine *e = engine_find(r, id);
    if (e == NULL) return route_fail(r, TARN_ENOTFOUND, "no such engine");
    if (rank >= ROUTE_RANKS_MAX)
        return route_fail(r, TARN_EINVAL, "an engine has up to %u ranks", ROUTE_RANKS_MAX);
    if (e->workers[rank] != ROUTE_NO_WORKER)
        return route_fail(r, TARN_EEXISTS, "rank %u of engine %s is there already", rank, e->id);
    return worker_take(r, e, rank);
}

tarn_status route_rank_remove(struct route *r, struct span id, uint32_t rank, uint64_t now_us) {
    route_tick(r, now_us);
    struct route_engine *e = engine_find(r, id);
    if (e == NULL) return route_fail(r, TARN_ENOTFOUND, "no such engine");
    if (rank >= ROUTE_RANKS_MAX || e->workers[rank] == ROUTE_NO_WORKER)
        return route_fail(r, TARN_ENOTFOUND, "engine %s has no rank %u", e->id, rank);
    if (e->ranks == 1)
        engine_drop(r, e);
    else
        worker_drop(r, e, rank);
    return TARN_OK;
}

tarn_status route_engine_remove(struct route *r, struct span id, uint64_t now_us) {
    route_tick(r, now_us);
    struct route_engine *e = engine_find(r, id);
    if (e == NULL) return route_fail(r, TARN_ENOTFOUND, "no such engine");
    engine_drop(r, e);
    return TARN_OK;
}

tarn_status route_engine_drain(struct route *r, struct span id, bool drain, uint64_t now_us) {
    route_tick(r, now_us);
    struct route_engine *e = engine_find(r, id);
    if (e == NULL) return route_fail(r, TARN_ENOTFOUND, "no such engine");
    e->drains = drain;
    return TARN_OK;
}

tarn_status route_engine_keys(struct route *r, struct span id, struct span keys, uint64_t now_us) {
    route_tick(r, now_us);
    struct route_engine *e = engine_find(r, id);
    if (e == NULL) return route_fail(r, TARN_ENOTFOUND, "no such engine");
    if (!text_fits(keys, ROUTE_KEYS_MAX))
        return route_fail(r, TARN_EINVAL, "what names its blocks in the pool has up to %u bytes",
                          ROUTE_KEYS_MAX);
    struct route_name *name = name_get(r, keys);
    name_put(r, &e->keys);
    e->keys = name;
    return TARN_OK;
}

/* --- being alive --- */

tarn_status route_engine_beat(struct route *r, struct span id, uint64_t now_us) {
    route_tick(r, now_us);
    struct route_engine *e = engine_find(r, id);
    if (e == NULL) return route_fail(r, TARN_ENOTFOUND, "no such engine");
    e->heard_us = max_u64(r->now_us, 1);
    return TARN_OK;
}

/* One failure may be the request's own. From the second in a row on the engine rests, twice as long
 * each time. */
void engine_failed(struct route *r, struct route_engine *e) {
    e->failed++;
    if (e->failed_in_row < 32) e->failed_in_row++;
    if (e->failed_in_row < 2) return;
    e->rests++;
    uint64_t rest_ms = (uint64_t)r->options.backoff_ms << (e->failed_in_row - 2);
    e->back_until_us = r->now_us + 1000 * min_u64(rest_ms, r->options.backoff_max_ms);
}

/* --- showing --- */

static void view_learnt(const struct route_engine *e, struct route_engine_view *v) {
    v->prefill_token_us = e->prefill.each[1];
    v->prefill_error = e->prefill.noise;
    v->prefill_seen = e->prefill.seen;
    v->decode_step_us = e->decode.each[0];
    v->decode_error = e->decode.noise;
    v->decode_seen = e->decode.seen;
}

static void view_load(const struct route *r, const struct worker *w, struct route_engine_view *v) {
    v->prefills = (uint32_t)w->waiting.now;
    v->prefill_tokens = (uint32_t)w->prefill_tokens.now;
    v->prefill_wait_us = worker_wait_us(r, w);
    v->decodes = (uint32_t)worker_running(w);
    v->context_tokens = w->context_tokens.now;
    v->foreign_prefill_tokens = w->foreign_prefill_tokens;
    v->foreign_decodes = w->foreign_running;
    v->foreign_kv_blocks = w->foreign_kv_blocks;
    v->routed = w->routed;
    v->reports = w->reports;
    v->prompt_tokens = w->prompt_tokens;
    v->hit_tokens = w->hit_tokens;
}

bool route_engine_next(struct route *r, uint32_t *cursor_p, uint64_t now_us,
                       struct route_engine_view *view_p) {
    uint32_t at = *cursor_p;
    while (at < r->workers_used && r->workers[at].engine == NULL) at++;
    if (at >= r->workers_used) return false;
    route_clock(r, now_us);
    const struct worker *w = &r->workers[at];
    const struct route_engine *e = w->engine;
    *view_p = (struct route_engine_view){.id = e->id,
                                         .url = e->url,
                                         .model = e->model->text,
                                         .lora = e->lora->text,
                                         .tenant = e->tenant,
                                         .salt = e->salt,
                                         .host = e->host->text,
                                         .rack = e->rack->text,
                                         .keys = e->keys->text,
                                         .role = e->role,
                                         .state = engine_state(r, e),
                                         .rank = w->rank,
                                         .ranks = e->ranks,
                                         .worker = at,
                                         .block_tokens = e->block_tokens,
                                         .kv_blocks = e->kv_blocks,
                                         .bytes_per_token = e->bytes_per_token,
                                         .failed = e->failed,
                                         .heard_us = e->heard_us};
    view_load(r, w, view_p);
    view_learnt(e, view_p);
    *cursor_p = at + 1;
    return true;
}

uint32_t route_worker_find(const struct route *r, struct span id, uint32_t rank) {
    const struct route_engine *e = engine_find(r, id);
    return e == NULL || rank >= ROUTE_RANKS_MAX ? ROUTE_NO_WORKER : e->workers[rank];
}

void route_worker_followed(struct route *r, uint32_t worker, bool followed) {
    if (worker < r->workers_used) r->workers[worker].followed = followed;
}

uint32_t route_worker_holder(const struct route *r, uint32_t worker) {
    return worker < r->workers_used && r->workers[worker].engine != NULL ? r->workers[worker].holder
                                                                         : ROUTE_HOLDER_NONE;
}

static bool size_known(const uint32_t *sizes, uint32_t n, uint32_t size) {
    for (uint32_t i = 0; i < n; i++)
        if (sizes[i] == size) return true;
    return false;
}

uint32_t route_block_sizes(const struct route *r, struct span model, struct span lora,
                           uint32_t sizes[ROUTE_CHAINS_MAX]) {
    const struct route_name *m = name_find(r, model), *l = name_find(r, lora);
    uint32_t n = 0;
    for (uint32_t i = 0; m != NULL && i < r->workers_used && n < ROUTE_CHAINS_MAX; i++) {
        const struct route_engine *e = r->workers[i].engine;
        if (e == NULL || e->model != m || (e->lora != l && !e->any_lora)) continue;
        if (!size_known(sizes, n, e->block_tokens)) sizes[n++] = e->block_tokens;
    }
    return n;
}

static bool keys_known(const struct span *keys, uint32_t n, const char *text) {
    for (uint32_t i = 0; i < n; i++)
        if (keys[i].data == text) return true; /* names are kept once */
    return false;
}

uint32_t route_keys(const struct route *r, struct span model, struct span lora,
                    struct span keys[ROUTE_POOLS_MAX]) {
    const struct route_name *m = name_find(r, model), *l = name_find(r, lora);
    uint32_t n = 0;
    for (uint32_t i = 0; m != NULL && i < r->workers_used && n < ROUTE_POOLS_MAX; i++) {
        const struct route_engine *e = r->workers[i].engine;
        if (e == NULL || e->model != m || (e->lora != l && !e->any_lora)) continue;
        if (e->role == ROUTE_DECODE || e->keys->text[0] == '\0') continue;
        if (!keys_known(keys, n, e->keys->text)) keys[n++] = span_str(e->keys->text);
    }
    return n;
}
