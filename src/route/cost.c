/* Choosing by cost, and the baselines. */
#include "route/cost.h"
#include <math.h>
#include "base/draw.h"
#include "route/internal.h"

static const struct cost_ops *const cost_all[] = {
#define ROW(c_name, name) &cost_##c_name,
    COST_POLICIES(ROW)
#undef ROW
};
const char *const route_policies[] = {
#define ROW(c_name, name) name,
    COST_POLICIES(ROW)
#undef ROW
        NULL,
};

const struct cost_ops *cost_find(const char *name) {
    for (size_t i = 0; i < ARRAY_LEN(cost_all); i++)
        if (strcmp(cost_all[i]->name, name) == 0) return cost_all[i];
    return NULL;
}

/* The least; among those that are as low, each has the same chance. */
static uint32_t choose_least(struct cost_case *c) {
    uint32_t best = 0, ties = 1, count = c->count;
    double least = c->candidates[0].cost;
    for (uint32_t i = 1; i < count; i++) {
        double cost = c->candidates[i].cost;
        if (cost > least) continue;
        if (cost < least)
            least = cost, best = i, ties = 1;
        else if (rng_below(&c->route->rng, ++ties) == 0)
            best = i;
    }
    return best;
}

/* A chance of exp(-cost / temperature), costs as shares of their range. */
static uint32_t choose_softmax(struct cost_case *c, double temperature) {
    double least = INFINITY, most = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < c->count; i++) {
        if (isinf(c->candidates[i].cost)) continue;
        least = least_of(least, c->candidates[i].cost);
        most = most_of(most, c->candidates[i].cost);
    }
    double unit = temperature * (most > least ? most - least : 1);
    for (uint32_t i = 0; i < c->count; i++) sum += exp((least - c->candidates[i].cost) / unit);
    double left = draw_unit(&c->route->rng) * sum;
    for (uint32_t i = 0; i < c->count; i++) {
        left -= exp((least - c->candidates[i].cost) / unit);
        if (left < 0) return i;
    }
    return choose_least(c);
}

/* Those that are late are out while there are others. */
static void late_last(struct cost_case *c) {
    if (c->late == 0 || c->late == c->count) return;
    for (uint32_t i = 0; i < c->count; i++)
        if (c->candidates[i].late) c->candidates[i].cost = INFINITY;
}

uint32_t cost_choose(struct cost_case *c, const struct cost_ops *ops) {
    late_last(c);
    double temperature = ops->temperature == NULL ? 0 : ops->temperature(c->route);
    uint32_t chosen = temperature > 0 ? choose_softmax(c, temperature) : choose_least(c);
    if (ops->chosen != NULL) ops->chosen(c->route, &c->candidates[chosen]);
    return chosen;
}

/* round-robin: the next one after the last, by number of the worker. */
static void weigh_turn(struct cost_case *c) {
    uint32_t most = c->route->options.workers_max, turn = c->route->turn;
    for (uint32_t i = 0; i < c->count; i++) {
        struct candidate *a = &c->candidates[i];
        a->cost = a->term[0] = (a->worker + most - turn) % most;
    }
}
static void turn_goes_on(struct route *r, const struct candidate *a) {
    r->turn = (a->worker + 1) % r->options.workers_max;
}
const struct cost_ops cost_round_robin = {.name = "round-robin",
                                          .terms = {"places behind the turn"},
                                          .sums = true,
                                          .weigh = weigh_turn,
                                          .chosen = turn_goes_on};

/* least-loaded: the fewest requests, waiting or decoding. */
static void weigh_load(struct cost_case *c) {
    for (uint32_t i = 0; i < c->count; i++) {
        struct candidate *a = &c->candidates[i];
        a->term[0] = a->waiting;
        a->term[1] = a->running;
        a->cost = a->term[0] + a->term[1];
    }
}
const struct cost_ops cost_least_loaded = {
    .name = "least-loaded", .terms = {"waiting", "decoding"}, .sums = true, .weigh = weigh_load};

static void weigh_nothing(struct cost_case *c) {
    for (uint32_t i = 0; i < c->count; i++) c->candidates[i].cost = 0;
}
const struct cost_ops cost_random = {.name = "random", .weigh = weigh_nothing};
