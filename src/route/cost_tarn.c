/* tarn: what the whole system loses when the request goes there, in expected microseconds.
 *
 * Own. The request waits w, loads x meanwhile, and computes s. What goes on there is in both: in s
 * the contexts that are read in each step for those that decode (plan.h), in x what is being loaded
 * already. It is late by max(w, x) + s, but w + x + s counts: what it loads while it waits costs
 * itself nothing, and holds links for which others' bytes wait. Without that, bursts spread
 * prefixes over all engines, as loading seems free wherever there is a queue, and it is the queues
 * that grow (chat near the limit: a fifth of p90 TTFT).
 *
 * Those who come later. An engine is a queue that is served first come, first served. What work v
 * that lies in it will cost its future arrivals, of which there are L a second with a load of R, is
 * L v^2 / (2 (1 - R)): the value function of M/G/1, for sizes and backlogs that are known
 * (Hyytiae, Penttinen and Aalto, "Size- and state-aware dispatching problem with queue-specific job
 * sizes", EJOR 2012; the idea is Krishnan's, "Joining the right queue", 1987). Adding s to w costs
 * them the difference, L s (2 w + s) / (2 (1 - R)). A decision by own time alone sends too much to
 * where a prefix is; one by work alone, too little. Which of both counts follows from the load.
 *
 * Its work also is the time for which bytes that it loads keep its engine from others.
 *
 * Those who decode there go on meanwhile, in longer steps: b of them, each later by the time s. Of
 * one that decodes the longest tenth of the gaps between its tokens are what TBT is about, so a
 * tenth of that time counts. As a whole it would send work away from where its prefix is (5 to 15 %
 * of TTFT on three traces); not at all, engines full of those that decode are computed on as if
 * they were idle, and miss their TBT (2 % of goodput, and 4 % of TTFT, on the agents' trace).
 *
 * Apart, it is the request itself that decodes later: its KV is handed over first, behind that of
 * others that were computed there, and that is its longest gap. Where a prefix is, many prompts are
 * computed at once, and each has all of its KV to send over one link. The same tenth of that time
 * counts. Not at all, TBT is missed (agents near the limit: 1 to 3 % of goodput); with three tenths
 * and more, TTFT grows.
 *
 * KV memory is a queue, too, where those who decode hold all of it: a prompt waits until there is
 * room, and all behind it. Its work there is the time for which it holds its share of the memory,
 * of what it does not find. What is there is held once for all: full engines are for requests that
 * share. Only what that costs later ones counts. As a wait of its own it would send requests to
 * where they share less, and the memory of all fills up (15 to 30 % of TTFT).
 *
 * What the engine has not may come from the engine that has most of it, where that costs less.
 *
 * What goes from the cache. A full cache drops a block for each new one. What a block is worth is
 * learnt: the prefill time that hits have saved, for each block that was computed.
 *
 * Nothing else here is tuned: arrivals, load, savings and times are observed, the rest follows. */
#include "route/plan.h"

static inline double later_us(const struct traffic_now *t, double wait, double work) {
    return t->arrivals * work * (2 * wait + work) / 2 * t->stretch;
}

/* Not inline: few engines are full. */
__attribute__((noinline)) static double full_us(const struct cost_case *c,
                                                const struct candidate *a, double all) {
    double needs = real(c->prompt_tokens) - candidate_there(a) + c->output_tokens / 2.0;
    double over = worker_held(&c->route->workers[a->worker]) + needs - all;
    if (over <= 0) return 0;
    double wait = over / all * a->tbt_us * c->route->output_mean;
    return later_us(&c->traffic, wait, needs / all * a->tbt_us * c->output_tokens);
}

static inline double memory_us(const struct cost_case *c, const struct candidate *a,
                               double growth) {
    const struct route_engine *e = a->engine;
    double all = real(e->kv_blocks) * e->block_tokens;
    bool full = a->context_tokens + growth > all; /* at most */
    return full && e->role == ROUTE_BOTH && e->kv_blocks > 0 ? full_us(c, a, all) : 0;
}

#define DECODE_SHARE 0.1

struct weighed {
    double own, later, decodes, cache, sum;
};

static inline struct weighed weigh_plan(const struct traffic_now *t, const struct candidate *a,
                                        double room, const struct prefill_plan *p) {
    struct weighed w = {.own = a->wait_us + p->load_us + p->prefill_us,
                        .later = later_us(t, a->wait_us, plan_busy_us(a, p))};
    w.decodes = DECODE_SHARE *
                (a->engine->role == ROUTE_BOTH ? a->running * p->prefill_us : plan_hand_us(a, p));
    w.cache = p->new_tokens >= room ? p->new_tokens * t->token_worth_us : 0;
    w.sum = w.own + w.later + w.decodes + w.cache;
    return w;
}

static void weigh_tarn(struct cost_case *c) {
    const struct candidate *best = &c->candidates[c->best];
    const struct traffic_now t = c->traffic;
    bool fetch = c->route->options.fetch;
    double growth = c->prompt_tokens + c->output_tokens / 2.0;
    for (struct candidate *a = c->candidates, *end = a + c->count; a < end; a++) {
        /* Where most of what is fetched comes from; nothing has read that model before. */
        if (fetch && end - a > 4) __builtin_prefetch(&a[4].engine->transfer[ROUTE_FAR]);
        double room = candidate_room(c, a);
        struct weighed w = weigh_plan(&t, a, room, &a->plan);
        if (fetch && plan_may_fetch(a, best)) {
            struct prefill_plan fetching;
            plan_fetch(c, a, best, &fetching);
            struct weighed other = weigh_plan(&t, a, room, &fetching);
            if (other.sum < w.sum) plan_set(&a->plan, &fetching), w = other;
        }
        double memory = memory_us(c, a, growth);
        a->term[0] = w.own;
        a->term[1] = w.later + memory;
        a->term[2] = w.decodes;
        a->term[3] = w.cache;
        a->cost = w.sum + memory;
    }
}
const struct cost_ops cost_tarn = {.name = "tarn",
                                   .terms = {"own us", "later us", "decodes us", "cache us"},
                                   .sums = true,
                                   .weigh = weigh_tarn};
