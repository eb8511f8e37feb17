/* Random cases, and each cost function written out once more as its makers tell it: what EXPLAIN
 * says of every candidate must be that, and who is chosen must be as cheap as any that keeps the
 * times. Nothing is learnt here: all times are those of the engines' priors. */
#include <math.h>
#include "util.h"
#include "base/buf.h"
#include "base/draw.h"

#define ENGINES 6
#define BLOCKS  40u
#define SEEN    4096

/* What the test knows of an engine, by what it has told of it. */
struct plain_engine {
    char id[16];
    struct route_prior prior;
    uint32_t kv_blocks;
    uint32_t have[ROUTE_TIERS]; /* leading blocks there, by a tier and all faster ones */
    uint32_t coming;            /* leading blocks that an earlier request is about to compute */
    double shared;              /* tokens that this one found there */
    uint64_t reported_waiting;
    struct route_engine_view v;
    uint64_t queued, context; /* tokens */
    double waiting, running, wait;
    /* What follows for the request. */
    double hit, ahead, load, fetch, fresh, transfer, prefill, ttft, tbt, cost;
    double link_until; /* when all is there that was ever loaded for it */
};

/* One decision of before, for what comes in. */
struct plain_seen {
    double at, work, tokens, saved;
};

struct world {
    struct rng rng;
    struct route *r;
    struct route_options o;
    struct plain_engine e[ENGINES];
    int engines;
    uint64_t now_us;
    struct util_prompt prompt;
    struct route_pool_run run;
    struct route_request q;
    struct plain_seen seen[SEEN];
    int seen_count;
};

static double between(struct world *w, double least, double most) {
    return least + (most - least) * draw_unit(&w->rng);
}
static uint32_t below(struct world *w, uint32_t n) {
    return (uint32_t)rng_below(&w->rng, n);
}

/* --- making a world --- */

static void engine_make(struct world *w, int i) {
    struct plain_engine *e = &w->e[i];
    snprintf(e->id, sizeof(e->id), "e%d", i);
    struct route_engine_spec s = util_spec(e->id);
    e->prior = (struct route_prior){.prefill_start_us = between(w, 500, 5000),
                                    .prefill_token_us = between(w, 5, 50),
                                    .prefill_pair_us = between(w, 0.001, 0.02),
                                    .decode_step_us = between(w, 5000, 15000),
                                    .decode_sequence_us = between(w, 1, 500),
                                    .decode_context_us = between(w, 0.01, 0.5),
                                    .latency_us = {50, 100, between(w, 100, 2000)},
                                    .rate = {1000, 1000, between(w, 50, 2000)},
                                    .disk_rate = between(w, 50, 2000)};
    s.prior = e->prior;
    s.kv_blocks = e->kv_blocks = below(w, 2) ? 60 : 100000;
    CHECK_EQ(route_engine_add(w->r, &s, w->now_us), TARN_OK);
    if (below(w, 2)) {
        struct route_load load = {below(w, 3000), below(w, 6), below(w, 9), below(w, 300),
                                  ROUTE_UNKNOWN};
        CHECK_EQ(route_engine_load(w->r, s.id, 0, &load, w->now_us), TARN_OK);
        e->reported_waiting = load.waiting;
    }
    uint32_t n = 0;
    for (enum route_tier t = 0; t < ROUTE_TIERS; t++) {
        if (below(w, 2)) n += below(w, BLOCKS - n);
        if (n > 0) util_stored(w->r, e->id, &w->prompt, n, t);
        e->have[t] = n;
    }
}

/* On that engine and no other, by its id. */
static struct route_request at_engine(struct world *w, int i, const char *id, uint32_t tokens,
                                      struct span others[ENGINES]) {
    struct route_request q = util_request(id, tokens);
    q.output_tokens = 1 + below(w, 300);
    q.exclude = others;
    for (int k = 0; k < w->engines; k++)
        if (k != i) others[q.exclude_count++] = span_str(w->e[k].id);
    q.policy = "round-robin";
    return q;
}

static void engine_view(struct world *w, struct plain_engine *e) {
    e->v = util_view(w->r, e->id);
    e->running = e->v.decodes;
    e->context = e->v.context_tokens + e->v.foreign_kv_blocks * UTIL_BLOCK;
    e->wait = e->v.prefill_wait_us;
}

static double prefill_of(const struct plain_engine *e, double prompt, double prefix,
                         double *fresh_p) {
    double fresh = fmax(prompt - prefix, 1), before = prompt - fresh;
    *fresh_p = fresh;
    return e->prior.prefill_start_us + e->prior.prefill_token_us * fresh +
           e->prior.prefill_pair_us * fresh * (fresh + 2 * before) +
           (1 + fresh / 2048) * (e->prior.decode_sequence_us * e->running +
                                 e->prior.decode_context_us * (double)e->context);
}

/* A decision for an engine, as that was before. */
static void seen_add(struct world *w, const struct plain_engine *e, double prompt, double fresh,
                     double transfer) {
    CHECK(w->seen_count < SEEN);
    double all, own = prefill_of(e, prompt, prompt - fresh, &all),
                whole = prefill_of(e, prompt, 0, &all);
    w->seen[w->seen_count++] = (struct plain_seen){
        (double)w->now_us, fmax(transfer - e->wait, 0) + own, fresh, whole - own};
}

/* Requests that wait or decode there already; some of them have first blocks of the prompt. */
static void engine_load(struct world *w, int i) {
    for (uint32_t k = below(w, 5); k > 0; k--) {
        char id[24];
        struct span others[ENGINES];
        struct route_decision d;
        snprintf(id, sizeof(id), "%d-%u", i, k);
        struct route_request q = at_engine(w, i, id, BLOCKS * UTIL_BLOCK + below(w, 2000), others);
        struct route_chain part = w->prompt.chain;
        if (k == 1 && below(w, 2)) {
            part.n = 1 + below(w, BLOCKS);
            q.chains = &part;
            q.chain_count = 1;
            w->e[i].coming = part.n;
        }
        engine_view(w, &w->e[i]);
        CHECK_EQ(route_decide(w->r, &q, w->now_us, &d), TARN_OK);
        double hit = q.chain_count ? UTIL_BLOCK * fmin(part.n, w->e[i].have[2]) : 0;
        seen_add(w, &w->e[i], q.length_tokens, q.length_tokens - hit, 0);
        w->e[i].shared = fmin(hit, q.length_tokens - 1);
        /* A first token at once teaches nothing. */
        if (k > 1 && below(w, 2)) CHECK_EQ(route_first(w->r, q.id, w->now_us), TARN_OK);
    }
}

static void options_make(struct world *w, uint64_t seed) {
    w->o = route_options_default;
    w->o.seed = seed;
    w->o.tenant_wait_ms = 0;
    w->o.silent_ms = 0;
    w->o.workers_max = 8; /* little to allocate: there are thousands of worlds */
    w->o.requests_max = 4096;
    w->o.decisions_max = 4;
    w->o.index_bytes = 8 << 20;
    w->o.fetch = below(w, 4) > 0;
    w->o.tree_rate = between(w, 0.1, 0.9);
    w->o.tree_gap = below(w, 8);
    w->o.tree_ratio = between(w, 1, 3);
    w->o.dynamo_scale = between(w, 0, 2);
    w->o.dynamo_credit[1] = between(w, 0, 1);
    w->o.mooncake_threshold = between(w, 1, 3);
    w->o.score_hit = between(w, 0, 1);
    w->o.score_load = between(w, 0, 1);
}

/* options NULL: random ones. */
static void world_begin(struct world *w, uint64_t seed, const struct route_options *options) {
    memset(w, 0, sizeof(*w));
    rng_seed(&w->rng, seed);
    options_make(w, seed);
    if (options != NULL) w->o = *options;
    w->r = route_create(&w->o);
    w->now_us = UTIL_BEGIN;
    w->engines = 1 + (int)below(w, ENGINES);
    util_prompt(&w->prompt, 1, BLOCKS);
    for (int i = 0; i < w->engines; i++) engine_make(w, i);
    for (int i = 0; i < w->engines; i++) engine_load(w, i);
    w->now_us += below(w, 30000); /* some of that is done */
}

static void request_make(struct world *w, const char *policy) {
    w->q = util_request("x", BLOCKS * UTIL_BLOCK + below(w, 1000));
    w->q.output_tokens = 1 + below(w, 300);
    w->q.policy = policy;
    if (below(w, 8) > 0) w->q.chains = &w->prompt.chain, w->q.chain_count = 1;
    w->run = (struct route_pool_run){.tokens = below(w, BLOCKS * UTIL_BLOCK),
                                     .tier = below(w, 2) ? ROUTE_TIER_HOST : ROUTE_TIER_DISK};
    w->q.pools[0].runs = &w->run;
    w->q.pools[0].run_count = below(w, 2);
    w->q.pools[0].tokens = w->q.pools[0].run_count ? w->run.tokens : 0;
    if (below(w, 3) == 0) w->q.ttft_ms = between(w, 5, 100);
    if (below(w, 6) == 0) w->q.tbt_ms = between(w, 5, 40);
}

/* --- what is known of each for the request, from what was told --- */

/* Until what is being loaded for it is there. */
static double link_of(const struct world *w, const struct plain_engine *e) {
    return fmax(e->link_until - (double)w->now_us, 0);
}

static double transfer_of(const struct plain_engine *e, double tokens, bool disk) {
    double bytes = 1000 * tokens;
    return e->prior.latency_us[ROUTE_FAR] + bytes / e->prior.rate[ROUTE_FAR] +
           (disk ? bytes / e->prior.disk_rate : 0);
}

/* Sums that fade with 120 s, over as much time. */
static void incoming(const struct world *w, double *arrivals_p, double *load_p, double *worth_p) {
    double n = 0, work = 0, tokens = 0, saved = 0, fade = 120e6, now = (double)w->now_us;
    double last = w->seen_count > 0 ? exp((now - w->seen[w->seen_count - 1].at) / fade) : 0;
    for (int i = 0; i < w->seen_count; i++) {
        double left = exp(-(now - w->seen[i].at) / fade);
        n += left;
        work += left * w->seen[i].work;
        tokens += left * w->seen[i].tokens;
        saved += left * w->seen[i].saved;
    }
    double time = 0;
    if (w->seen_count > 0) time = fade * (1 - exp(-(now - w->seen[0].at) / fade)) * w->engines;
    bool tells = time > 0 && n * last > 2 - 1e-9; /* as many as that, at the last one's time */
    *arrivals_p = tells ? n / time : 0;
    *load_p = tells ? fmin(work / time, 0.95) : 0;
    *worth_p = tells ? saved / tokens : 0;
}

static void engine_look(struct world *w, struct plain_engine *e) {
    double arrivals, load, worth, fresh, prompt = w->q.length_tokens;
    incoming(w, &arrivals, &load, &worth);
    engine_view(w, e);
    e->waiting = (double)(e->v.prefills + e->reported_waiting);
    e->queued = e->v.prefill_tokens + e->v.foreign_prefill_tokens;
    bool known = w->q.chain_count > 0;
    e->hit = known ? e->have[2] * UTIL_BLOCK : 0;
    e->ahead = known && e->coming > e->have[2] ? (e->coming - e->have[2]) * UTIL_BLOCK : 0;
    e->load = e->fetch = e->transfer = 0;
    e->prefill = prefill_of(e, prompt, e->hit + e->ahead, &e->fresh);
    e->ttft = e->wait + e->prefill;
    double pool = w->q.pools[0].tokens;
    if (pool > e->hit + e->ahead) {
        double us = link_of(w, e) +
                    transfer_of(e, pool - e->hit - e->ahead, w->run.tier == ROUTE_TIER_DISK);
        double after = prefill_of(e, prompt, pool, &fresh);
        if (fmax(e->wait, us) + after < e->ttft) {
            e->load = pool - e->hit - e->ahead;
            e->transfer = us, e->prefill = after, e->fresh = fresh;
            e->ttft = fmax(e->wait, us) + after;
        }
    }
    double half = w->q.output_tokens / 2.0;
    e->tbt = (e->prior.decode_step_us + e->prior.decode_sequence_us * (e->running + 1) +
              e->prior.decode_context_us * ((double)e->context + prompt + half)) /
             (1 - load);
}

/* Instead of the pool, from whoever has most. */
static void engine_fetch(struct world *w, struct plain_engine *e, double best) {
    e->load = 0;
    e->fetch = best - e->hit - e->ahead;
    e->transfer = link_of(w, e) + transfer_of(e, e->fetch, false);
    e->prefill = prefill_of(e, w->q.length_tokens, best, &e->fresh);
    e->ttft = fmax(e->wait, e->transfer) + e->prefill;
}

/* --- the cost functions --- */

/* By the memory that it holds; tokens that were found there count half. */
static double memory_cost(const struct world *w, const struct plain_engine *e) {
    double arrivals, load, worth, all = UTIL_BLOCK * (double)e->kv_blocks;
    incoming(w, &arrivals, &load, &worth);
    double held = (double)e->context - (e->v.prefills > 0 ? e->shared / 2 : 0);
    double needs = w->q.length_tokens - e->hit - e->ahead + w->q.output_tokens / 2.0;
    double over = fmax(held + needs - all, 0);
    double wait = over / all * e->tbt * w->o.output_tokens;
    double work = over > 0 ? needs / all * e->tbt * w->q.output_tokens : 0;
    return arrivals * (work * wait + work * work / 2) / (1 - load);
}

static double tarn_cost(const struct world *w, const struct plain_engine *e) {
    double arrivals, load, worth;
    incoming(w, &arrivals, &load, &worth);
    double used = UTIL_BLOCK * e->have[2] + (double)e->queued + e->fresh;
    bool full = used >= UTIL_BLOCK * (double)e->kv_blocks;
    double busy = e->ttft - e->wait; /* those that come later wait for bytes, too */
    return e->wait + e->transfer + e->prefill +
           arrivals * (busy * e->wait + busy * busy / 2) / (1 - load) + memory_cost(w, e) +
           0.1 * e->running * e->prefill + (full ? e->fresh * worth : 0);
}

static void engine_cost(struct world *w, struct plain_engine *e, double best, double most_requests,
                        double least_requests, double best_match) {
    const struct route_options *o = &w->o;
    const char *policy = w->q.policy;
    double prompt = w->q.length_tokens, requests = e->waiting + e->running;
    if (strcmp(policy, "least-loaded") == 0) e->cost = requests;
    if (strcmp(policy, "random") == 0) e->cost = 0;
    if (strcmp(policy, "prefix-tree") == 0) {
        bool skewed = most_requests - least_requests > o->tree_gap &&
                      most_requests > o->tree_ratio * least_requests;
        e->cost = skewed || best_match / prompt <= o->tree_rate
                      ? requests
                      : requests / (most_requests + 1) - e->hit - e->ahead;
    }
    if (strcmp(policy, "dynamo") == 0) {
        double device = UTIL_BLOCK * e->have[0], host = UTIL_BLOCK * (e->have[1] - e->have[0]),
               disk = UTIL_BLOCK * (e->have[2] - e->have[1]);
        if (w->q.chain_count == 0) device = host = disk = 0;
        double credit = device + o->dynamo_credit[1] * host + 0.25 * disk;
        e->cost = o->dynamo_scale * fmax((double)e->queued + prompt - credit, 0) / UTIL_BLOCK +
                  (double)e->context / UTIL_BLOCK + (prompt - device) / UTIL_BLOCK;
    }
    if (strcmp(policy, "mooncake") == 0) {
        bool far_better = e->hit == 0 ? best > 0 : best / e->hit > o->mooncake_threshold;
        if (o->fetch && far_better && best > e->hit + e->ahead) engine_fetch(w, e, best);
        e->cost = e->transfer + e->wait + e->prefill;
    }
    if (strcmp(policy, "score") == 0) {
        double busy = most_requests > 0 ? requests / most_requests : 0;
        e->cost = -(o->score_hit * e->hit / prompt + o->score_load * (1 - busy));
    }
    if (strcmp(policy, "lmetric") == 0) e->cost = e->fresh * (requests + 1);
    if (strcmp(policy, "tarn") == 0) {
        struct plain_engine fetched = *e;
        e->cost = tarn_cost(w, e);
        if (!o->fetch || best <= e->hit + e->ahead) return;
        engine_fetch(w, &fetched, best);
        fetched.cost = tarn_cost(w, &fetched);
        if (fetched.cost < e->cost) *e = fetched;
    }
}

static bool engine_late(const struct world *w, const struct plain_engine *e) {
    return (w->q.ttft_ms > 0 && e->ttft > 1000 * w->q.ttft_ms) ||
           (w->q.tbt_ms > 0 && e->tbt > 1000 * w->q.tbt_ms);
}

static void world_look(struct world *w) {
    route_tick(w->r, w->now_us);
    double best = 0, most = 0, least = INFINITY, match = 0;
    for (int i = 0; i < w->engines; i++) {
        struct plain_engine *e = &w->e[i];
        engine_look(w, e);
        best = fmax(best, e->hit);
        match = fmax(match, e->hit + e->ahead);
        most = fmax(most, e->waiting + e->running);
        least = fmin(least, e->waiting + e->running);
    }
    for (int i = 0; i < w->engines; i++) engine_cost(w, &w->e[i], best, most, least, match);
}

/* --- comparing --- */

static bool same(double a, double b) {
    return fabs(a - b) <= 1e-4 * fabs(b) + 1e-6;
}

static void compare_candidates(struct world *w) {
    struct route_explained e;
    struct route_explained_candidate c;
    CHECK_EQ(route_explain(w->r, w->q.id, &e), TARN_OK);
    CHECK_EQ(e.count, w->engines);
    for (uint32_t i = 0; i < e.count; i++) {
        route_explain_candidate(w->r, &e, i, &c);
        const struct plain_engine *p = &w->e[c.engine[1] - '0'];
        CHECK(c.hit_tokens == p->hit && c.ahead_tokens == p->ahead);
        CHECK(c.load_tokens == p->load && c.fetch_tokens == p->fetch);
        CHECK(same(c.ttft_ms * 1000, p->ttft) && same(c.tbt_ms * 1000, p->tbt));
        CHECK(isinf(c.cost) ? engine_late(w, p) : same(c.cost, p->cost));
    }
}

static void decide_once(struct world *w, const char *policy) {
    struct route_decision d;
    double least = INFINITY;
    bool any = false;
    request_make(w, policy);
    world_look(w);
    for (int i = 0; i < w->engines; i++) {
        if (engine_late(w, &w->e[i])) continue;
        any = true;
        least = fmin(least, w->e[i].cost);
    }
    tarn_status status = route_decide(w->r, &w->q, w->now_us, &d);
    CHECK_EQ(status, any ? TARN_OK : TARN_ELATER);
    if (!any) return;
    const struct plain_engine *chosen = &w->e[d.prefill[1] - '0'];
    CHECK(!engine_late(w, chosen) && same(chosen->cost, least));
    compare_candidates(w);
    seen_add(w, chosen, w->q.length_tokens, chosen->fresh, chosen->transfer);
    if (chosen->transfer > 0)
        w->e[d.prefill[1] - '0'].link_until = (double)w->now_us + chosen->transfer;
    CHECK_EQ(route_done(w->r, w->q.id, 0, false, w->now_us), TARN_OK);
}

static void all_cases(const char *policy) {
    for (int seed = 0; seed < test_rounds(200); seed++) {
        struct world *w = calloc(1, sizeof(*w));
        world_begin(w, (uint64_t)seed, NULL);
        for (int i = 0; i < 10; i++) {
            decide_once(w, policy);
            w->now_us += 10000000; /* what was about to come is forgotten, and some of the rest */
            for (int k = 0; k < w->engines; k++) w->e[k].coming = 0;
        }
        route_destroy(&w->r);
        free(w);
    }
}

TEST(least_loaded_is_as_written) {
    all_cases("least-loaded");
}
TEST(random_is_as_written) {
    all_cases("random");
}
TEST(prefix_tree_is_as_written) {
    all_cases("prefix-tree");
}
TEST(dynamo_is_as_written) {
    all_cases("dynamo");
}
TEST(mooncake_is_as_written) {
    all_cases("mooncake");
}
TEST(score_is_as_written) {
    all_cases("score");
}
TEST(lmetric_is_as_written) {
    all_cases("lmetric");
}
TEST(tarn_is_as_written) {
    all_cases("tarn");
}

/* The chance of each is exp(-cost / temperature), costs as shares of their range. */
TEST(a_temperature_spreads_by_cost) {
    for (uint64_t seed = 0; seed < 10; seed++) {
        struct world *w = calloc(1, sizeof(*w));
        struct route_decision d;
        double least = INFINITY, most = -INFINITY, sum = 0, chance[ENGINES] = {0};
        int drawn[ENGINES] = {0}, draws = 4000;
        world_begin(w, seed, NULL);
        request_make(w, "dynamo");
        w->q.ttft_ms = w->q.tbt_ms = 0;
        struct route_options o = w->o;
        struct world *again = calloc(1, sizeof(*w)); /* the same, but for the temperature */
        o.dynamo_temperature = 0.2 + 0.1 * (double)seed;
        world_begin(again, seed, &o);
        world_look(w);
        for (int i = 0; i < w->engines; i++) {
            least = fmin(least, w->e[i].cost);
            most = fmax(most, w->e[i].cost);
        }
        for (int i = 0; i < w->engines; i++) {
            double share = most > least ? (w->e[i].cost - least) / (most - least) : 0;
            sum += chance[i] = exp(-share / o.dynamo_temperature);
        }
        for (int i = 0; i < draws; i++) {
            CHECK_EQ(route_decide(again->r, &w->q, w->now_us, &d), TARN_OK);
            drawn[d.prefill[1] - '0']++;
            CHECK_EQ(route_done(again->r, w->q.id, 0, false, w->now_us), TARN_OK);
        }
        for (int i = 0; i < w->engines; i++) {
            double p = chance[i] / sum, spread = sqrt(p * (1 - p) / draws);
            CHECK(fabs((double)drawn[i] / draws - p) < 5 * spread + 1e-6);
        }
        route_destroy(&again->r);
        route_destroy(&w->r);
        free(again);
        free(w);
    }
}

TEST_MAIN()
