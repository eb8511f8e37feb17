/* A decision, from the request to the reservation. */
#include <math.h>
#include <stdlib.h>
#include "route/plan.h"

static tarn_status request_check(struct route *r, const struct route_request *q) {
    if (q->id.len == 0 || q->id.len > ROUTE_NAME_MAX)
        return route_fail(r, TARN_EINVAL, "a request's id has 1 to %u bytes", ROUTE_NAME_MAX);
    if (q->model.len > ROUTE_NAME_MAX || q->lora.len > ROUTE_NAME_MAX ||
        q->tenant.len > ROUTE_NAME_MAX || q->session.len > ROUTE_NAME_MAX)
        return route_fail(r, TARN_EINVAL, "a model, adapter, tenant or session has up to %u bytes",
                          ROUTE_NAME_MAX);
    if (q->length_tokens == 0 || q->length_tokens > ROUTE_TOKENS_MAX ||
        q->output_tokens > ROUTE_TOKENS_MAX)
        return route_fail(r, TARN_EINVAL, "a prompt has 1 to %u tokens, an answer up to as many",
                          ROUTE_TOKENS_MAX);
    if (q->chain_count > ROUTE_CHAINS_MAX)
        return route_fail(r, TARN_EINVAL, "a request is hashed by up to %u sizes of blocks",
                          ROUTE_CHAINS_MAX);
    for (uint32_t i = 0; i < q->chain_count; i++)
        if ((uint64_t)q->chains[i].n * q->chains[i].block > q->length_tokens)
            return route_fail(r, TARN_EINVAL, "a prompt of %u tokens has no %u blocks of %u",
                              q->length_tokens, q->chains[i].n, q->chains[i].block);
    if (q->exclude_count > ROUTE_EXCLUDE_MAX)
        return route_fail(r, TARN_EINVAL, "up to %u engines can be excluded", ROUTE_EXCLUDE_MAX);
    for (uint32_t i = 0; i < ROUTE_POOLS_MAX; i++)
        if (q->pools[i].run_count > ROUTE_POOL_RUNS_MAX || q->pools[i].tokens > q->length_tokens)
            return route_fail(r, TARN_EINVAL,
                              "the pool's part of a prompt is not longer, and has up to %u runs",
                              ROUTE_POOL_RUNS_MAX);
    if (!(q->ttft_ms >= 0) || !(q->tbt_ms >= 0))
        return route_fail(r, TARN_EINVAL, "a TTFT or TBT is not negative");
    return TARN_OK;
}

static void link_take(const struct route *r, struct worker *w, double us) {
    w->link_until_us = max_u64(w->link_until_us, r->now_us) + (uint64_t)least_of(us, 3.6e9);
}

static struct route_reservation *request_make(const struct cost_case *c,
                                              const struct candidate *a) {
    struct span id = c->request->id;
    struct route_reservation *q = xcalloc(1, sizeof(*q) + id.len);
    memcpy(q->id, id.data, id.len);
    q->id_len = id.len;
    q->prefill = q->decode = a->worker;
    q->prefill_birth = c->route->workers[a->worker].birth;
    q->prompt_tokens = c->prompt_tokens;
    q->new_tokens = a->plan.new_tokens;
    q->prefix_tokens = c->prompt_tokens - a->plan.new_tokens;
    q->output_tokens = c->output_tokens;
    /* The last token of a prompt is computed in any case. */
    q->load_tokens =
        (uint32_t)min_u64((uint64_t)a->plan.load_tokens + a->plan.fetch_tokens, q->prefix_tokens);
    q->session = c->session;
    q->guessed = session_tokens(c, a) > 0;
    q->decided_us = c->route->now_us;
    q->prefill_us = plan_busy_us(a, &a->plan);
    q->beside_us = plan_beside_us(a, q->new_tokens);
    struct transfer t = candidate_transfer(c, a);
    q->load_us = t.us;
    if (t.bytes > 0) link_take(c->route, &c->route->workers[a->worker], t.us);
    q->load_bytes = t.bytes;
    q->load_place = t.place;
    q->load_disk = t.disk;
    q->load_mixed = t.mixed || a->link_us > 0;
    double n = q->new_tokens, p = q->prefix_tokens;
    q->term[0] = 1;
    q->term[1] = n;
    q->term[2] = n * (n + 2 * p);
    return q;
}

/* Until the estimated end, and what the options grant on top of that. */
static uint32_t lease_ms_of(const struct route *r, const struct candidate *a) {
    return r->options.lease_ms + (uint32_t)least_of(a->plan.ttft_us / 1000, 3.6e6);
}

static void decision_fill(const struct cost_case *c, const struct candidate *a,
                          const struct route_reservation *q, struct route_decision *d) {
    const struct worker *w = &c->route->workers[q->prefill];
    *d = (struct route_decision){.prefill = w->engine->id,
                                 .prefill_rank = w->rank,
                                 .prefill_worker = q->prefill,
                                 .decode_worker = q->decode,
                                 .ahead_tokens = a->ahead_tokens - session_tokens(c, a),
                                 .session_tokens = session_tokens(c, a),
                                 .load_tokens = a->plan.load_tokens,
                                 .fetch_tokens = a->plan.fetch_tokens,
                                 .fetch_worker = a->plan.fetch_worker,
                                 .ttft_ms = a->plan.ttft_us / 1000,
                                 .tbt_ms = a->tbt_us / 1000};
    d->pool_tokens = a->pool_tokens;
    if (q->decode != q->prefill) {
        const struct worker *to = &c->route->workers[q->decode];
        d->decode = to->engine->id;
        d->decode_rank = to->rank;
    }
    if (a->plan.fetch_tokens > 0) {
        const struct worker *from = &c->route->workers[a->plan.fetch_worker];
        d->fetch = from->engine->id;
        d->fetch_rank = from->rank;
    }
    memcpy(d->hit_tokens, a->tier_tokens, sizeof(d->hit_tokens));
}

/* What it would have taken without a prefix is what the prefix saved. */
static void traffic_count(const struct cost_case *c, const struct candidate *a) {
    traffic_add(&c->model->traffic, c->route->now_us, plan_busy_us(a, &a->plan), a->plan.new_tokens,
                plan_prefill_us(a, c->prompt_tokens, 0) - a->plan.prefill_us);
}

static void figures_count(struct route *r, const struct cost_case *c, const struct candidate *a) {
    r->figures.route_decisions++;
    r->figures.route_prompt_tokens += c->prompt_tokens;
    r->figures.route_hit_tokens += a->hit_tokens;
    r->figures.route_device_tokens += a->tier_tokens[ROUTE_TIER_DEVICE];
    r->figures.route_host_tokens += a->tier_tokens[ROUTE_TIER_HOST];
    r->figures.route_disk_tokens += a->tier_tokens[ROUTE_TIER_DISK];
    r->figures.route_ahead_tokens += a->ahead_tokens - session_tokens(c, a);
    r->figures.route_session_tokens += session_tokens(c, a);
    r->figures.route_pool_tokens += a->pool_tokens;
    r->figures.route_load_tokens += a->plan.load_tokens;
    r->figures.route_fetch_tokens += a->plan.fetch_tokens;
    struct worker *w = &r->workers[a->worker];
    w->prompt_tokens += c->prompt_tokens;
    w->hit_tokens += a->hit_tokens;
}

/* Who could serve it, and at which cost; nobody where it fails. */
static tarn_status case_weigh(struct cost_case *c, const struct cost_ops *ops) {
    c->output_tokens = c->request->output_tokens > 0 ? c->request->output_tokens
                                                     : (uint32_t)most_of(c->route->output_mean, 1);
    tarn_status status = candidates_find(c);
    if (status != TARN_OK) {
        c->count = 0;
        return status;
    }
    candidates_estimate(c);
    ops->weigh(c);
    return TARN_OK;
}

static tarn_status overloaded(struct route *r, struct route_decision *d, double retry_us,
                              const char *what) {
    d->retry_ms = admit_retry_ms(retry_us);
    r->figures.route_overloaded++;
    if (d->retry_ms == 0)
        return route_fail(r, TARN_ELATER, "no engine can keep the %s, not even an idle one", what);
    return route_fail(r, TARN_ELATER, "no engine can keep the %s before %u ms have passed", what,
                      d->retry_ms);
}

/* Is it the turn of others? */
static tarn_status turn_check(struct cost_case *c, const struct tenant *who,
                              struct route_decision *d) {
    struct route *r = c->route;
    double retry_us;
    if (who == NULL || c->request->priority > 0) return TARN_OK;
    if (!tenant_over_share(&r->tenants, who, c->count, c->shortest_wait_us,
                           1000.0 * r->options.tenant_wait_ms, r->now_us, &retry_us))
        return TARN_OK;
    d->retry_ms = admit_retry_ms(retry_us);
    r->figures.route_over_share++;
    return route_fail(r, TARN_ELATER,
                      "the tenant has more waiting than its share while others are there; its turn "
                      "comes in %u ms",
                      d->retry_ms);
}

/* Who computes the prompt, by its place among the candidates, and who decodes. */
struct engines_chosen {
    uint32_t place;
    struct decode_choice to;
};

static void choose(struct cost_case *c, const struct cost_ops *ops, struct engines_chosen *x) {
    x->place = cost_choose(c, ops);
    x->to = decode_choose(c, c->candidates[x->place].worker);
}

static tarn_status decode_check(struct cost_case *c, uint32_t prefill,
                                const struct decode_choice *to, struct route_decision *d) {
    struct route *r = c->route;
    if (to->worker == ROUTE_NO_WORKER)
        return route_fail(r, TARN_ENOTFOUND,
                          "engine %s only computes prompts, and none that decodes may take it",
                          r->workers[prefill].engine->id);
    double retry_us = admit_decode_retry_us(c, prefill, to);
    return retry_us > 0 ? overloaded(r, d, retry_us, "TBT") : TARN_OK;
}

/* Whose turn it is, who keeps the times, the choice, and who decodes; nothing is reserved yet. */
static tarn_status case_decide(struct cost_case *c, const struct cost_ops *ops, struct tenant *who,
                               struct engines_chosen *x, struct route_decision *d) {
    double retry_us;
    bool any = admit_candidates(c, &retry_us); /* by what is fetched, too */
    explain_begin(c, ops);
    tarn_status status = turn_check(c, who, d);
    if (status != TARN_OK) {
        who->refused++;
        return status;
    }
    if (!any) return overloaded(c->route, d, retry_us, "TTFT or TBT");
    choose(c, ops, x);
    double decode_us = admit_decode_retry_us(c, c->candidates[x->place].worker, &x->to);
    if (decode_us > 0 && admit_decoders(c, &retry_us)) {
        explain_decoders(c->route);
        choose(c, ops, x);
    } else if (decode_us > retry_us) {
        return overloaded(c->route, d, retry_us, "TTFT or TBT");
    }
    struct candidate *a = &c->candidates[x->place];
    status = decode_check(c, a->worker, &x->to, d);
    if (status == TARN_OK && x->to.worker != a->worker) a->tbt_us = x->to.tbt_us;
    return status;
}

static void decision_reserve(struct cost_case *c, struct tenant *who,
                             const struct engines_chosen *x, struct route_decision *d) {
    struct route *r = c->route;
    const struct candidate *a = &c->candidates[x->place];
    struct route_reservation *made = request_make(c, a);
    made->decode = x->to.worker;
    made->tenant = who;
    request_reserve(r, made);
    decision_fill(c, a, made, d);
    d->lease_ms = lease_ms_of(r, a);
    request_lease(r, made, d->lease_ms);
    match_ahead_put(c, a);
    traffic_count(c, a);
    hot_count(c, a);
    figures_count(r, c, a);
}

static tarn_status decide_anew(struct route *r, const struct route_request *q,
                               struct route_decision *d) {
    struct cost_case c = {.route = r,
                          .request = q,
                          .prompt_tokens = q->length_tokens,
                          .ttft_bound_us = bound_us(q->ttft_ms, r->options.ttft_ms, q->priority),
                          .tbt_bound_us = bound_us(q->tbt_ms, r->options.tbt_ms, q->priority)};
    struct engines_chosen x = {.place = ROUTE_NOBODY, .to = {.worker = ROUTE_NO_WORKER}};
    struct tenant *who = NULL;
    const struct cost_ops *ops = q->policy == NULL ? r->policy : cost_find(q->policy);
    if (ops == NULL) return route_fail(r, TARN_EINVAL, "there is no policy '%.64s'", q->policy);
    if (r->figures.route_reserved >= r->options.requests_max)
        return route_fail(r, TARN_ELIMIT, "%u requests are reserved, which is the most",
                          r->options.requests_max);
    tarn_status status = case_weigh(&c, ops);
    if (status == TARN_OK) {
        who = tenant_named(r, q->tenant);
        status = case_decide(&c, ops, who, &x, d);
    } else {
        explain_begin(&c, ops);
    }
    explain_end(r, x.place, x.to.worker, status, status == TARN_ELATER ? d->retry_ms : 0);
    if (status == TARN_OK) decision_reserve(&c, who, &x, d);
    return status;
}

/* The prefill has ended, and the KV lies with its engine: who goes on with it is chosen by what is
 * known now. */
static tarn_status decide_decode(struct route *r, const struct route_request *q,
                                 struct route_reservation *made, struct route_decision *d) {
    const struct route_engine *from = r->workers[made->prefill].engine;
    struct cost_case c = {.route = r,
                          .request = q,
                          .model = from->model,
                          .lora = name_find(r, q->lora),
                          .prompt_tokens = made->prompt_tokens,
                          .output_tokens = made->output_tokens,
                          .tbt_bound_us = bound_us(q->tbt_ms, r->options.tbt_ms, q->priority)};
    uint32_t before = made->decode;
    r->passed_prefills = r->pools_count = 0; /* nobody is asked */
    request_move_decode(r, made, ROUTE_NO_WORKER);
    if (from->role == ROUTE_PREFILL) explain_begin(&c, NULL);
    struct decode_choice to = decode_choose(&c, made->prefill);
    struct candidate a = {.worker = made->prefill, .tbt_us = to.tbt_us};
    tarn_status status = decode_check(&c, made->prefill, &to, d);
    if (from->role == ROUTE_PREFILL)
        explain_end(r, ROUTE_NOBODY, to.worker, status, status == TARN_ELATER ? d->retry_ms : 0);
    if (status != TARN_OK) {
        request_move_decode(r, made, before);
        return status;
    }
    request_move_decode(r, made, to.worker);
    learn_decode_begins(r, made);
    decision_fill(&c, &a, made, d);
    d->lease_ms = request_lease_decode(r, made);
    r->figures.route_redecisions++;
    return TARN_OK;
}

/* Has its prefill ended, on an engine that is still there? */
static bool prefill_there(const struct route *r, const struct route_reservation *q) {
    return q->state == REQUEST_DECODE && request_prefill_there(r, q);
}

tarn_status route_decide(struct route *r, const struct route_request *q, uint64_t now_us,
                         struct route_decision *d) {
    route_tick(r, now_us);
    tarn_status status = request_check(r, q);
    struct route_reservation *old = status == TARN_OK ? request_find(r, q->id) : NULL;
    if (old != NULL && prefill_there(r, old)) {
        status = decide_decode(r, q, old, d);
    } else {
        if (old != NULL) request_release(r, &old);
        if (status == TARN_OK) status = decide_anew(r, q, d);
    }
    if (status != TARN_OK && status != TARN_ELATER) r->figures.route_unserved++;
    return status;
}
