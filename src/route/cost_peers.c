/* The cost functions of other routers, as they are described by their makers. */
#include "route/plan.h"

static double requests_of(const struct candidate *a) {
    return (double)a->waiting + a->running;
}

static void requests_range(const struct cost_case *c, double *least_p, double *most_p) {
    *least_p = *most_p = requests_of(&c->candidates[0]);
    for (uint32_t i = 1; i < c->count; i++) {
        *least_p = least_of(*least_p, requests_of(&c->candidates[i]));
        *most_p = most_of(*most_p, requests_of(&c->candidates[i]));
    }
}

/* prefix-tree: SGLang's cache_aware. Its tree holds what was sent where, so what is on its way
 * counts as being there. */
static void weigh_tree(struct cost_case *c) {
    const struct route_options *o = &c->route->options;
    double least, most, best = 0;
    requests_range(c, &least, &most);
    for (uint32_t i = 0; i < c->count; i++) {
        const struct candidate *a = &c->candidates[i];
        best = most_of(best, (double)a->hit_tokens + a->ahead_tokens);
    }
    bool imbalanced = most - least > o->tree_gap && most > o->tree_ratio * least;
    bool matched = best > o->tree_rate * c->prompt_tokens;
    for (uint32_t i = 0; i < c->count; i++) {
        struct candidate *a = &c->candidates[i];
        a->term[0] = requests_of(a);
        a->term[1] = (double)a->hit_tokens + a->ahead_tokens;
        /* Of equal matches the less loaded one: no load is worth a token. */
        a->cost = imbalanced || !matched ? a->term[0] : a->term[0] / (most + 1) - a->term[1];
    }
}
const struct cost_ops cost_prefix_tree = {
    .name = "prefix-tree", .terms = {"requests", "matched tokens"}, .weigh = weigh_tree};

/* dynamo: NVIDIA Dynamo's KV router. */
static void weigh_dynamo(struct cost_case *c) {
    const struct route_options *o = &c->route->options;
    for (uint32_t i = 0; i < c->count; i++) {
        struct candidate *a = &c->candidates[i];
        double block = a->engine->block_tokens, credit = 0;
        for (unsigned t = 0; t < ROUTE_TIERS; t++)
            credit += o->dynamo_credit[t] * a->tier_tokens[t];
        double here = a->tier_tokens[ROUTE_TIER_DEVICE];
        a->term[0] =
            most_of(a->queued_tokens + c->prompt_tokens - credit, 0) / block * o->dynamo_scale;
        a->term[1] = a->context_tokens / block;
        a->term[2] = (c->prompt_tokens - least_of(here, c->prompt_tokens)) / block;
        a->cost = a->term[0] + a->term[1] + a->term[2];
    }
}
static double dynamo_temperature(const struct route *r) {
    return r->options.dynamo_temperature;
}
const struct cost_ops cost_dynamo = {.name = "dynamo",
                                     .terms = {"prefill blocks", "active blocks", "new blocks"},
                                     .sums = true,
                                     .weigh = weigh_dynamo,
                                     .temperature = dynamo_temperature};

/* mooncake: FAST'25, algorithm 1. Where the best match is longer than an engine's own by more than
 * the threshold, the engine fetches the rest from its holder. */
static void weigh_mooncake(struct cost_case *c) {
    const struct route_options *o = &c->route->options;
    const struct candidate *best = &c->candidates[c->best];
    for (uint32_t i = 0; i < c->count; i++) {
        struct candidate *a = &c->candidates[i];
        if (o->fetch && best->hit_tokens > o->mooncake_threshold * a->hit_tokens &&
            plan_may_fetch(a, best))
            plan_fetch(c, a, best, &a->plan);
        a->term[0] = a->plan.load_us;
        a->term[1] = a->wait_us;
        a->term[2] = a->plan.prefill_us;
        a->cost = a->term[0] + a->term[1] + a->term[2];
    }
}
const struct cost_ops cost_mooncake = {.name = "mooncake",
                                       .terms = {"transfer us", "queue us", "prefill us"},
                                       .sums = true,
                                       .weigh = weigh_mooncake};

/* score: the form in Mooncake's documents. Load is the share of the most loaded one's. */
static void weigh_score(struct cost_case *c) {
    const struct route_options *o = &c->route->options;
    double least, most;
    requests_range(c, &least, &most);
    for (uint32_t i = 0; i < c->count; i++) {
        struct candidate *a = &c->candidates[i];
        a->term[0] = o->score_hit * a->hit_tokens / c->prompt_tokens;
        a->term[1] = o->score_load * (1 - requests_of(a) / most_of(most, 1));
        a->cost = -(a->term[0] + a->term[1]);
    }
}
const struct cost_ops cost_score = {
    .name = "score", .terms = {"hit score", "idle score"}, .weigh = weigh_score};

/* lmetric: the product of two loads, which needs no weights. */
static void weigh_lmetric(struct cost_case *c) {
    for (uint32_t i = 0; i < c->count; i++) {
        struct candidate *a = &c->candidates[i];
        a->term[0] = a->plan.new_tokens;
        a->term[1] = requests_of(a) + 1;
        a->cost = a->term[0] * a->term[1];
    }
}
const struct cost_ops cost_lmetric = {
    .name = "lmetric", .terms = {"new tokens", "batch"}, .weigh = weigh_lmetric};
