/* tarn: what the whole system loses when the request goes there, in expected microseconds.
 *
 * Own. The request waits w, loads x meanwhile, and computes s: max(w, x) + s.
 *
 * Those who come later. An engine is a queue that is served first come, first served. What work v
 * that lies in it will cost its future arrivals, of which there are L a second with a load of R, is
 * L v^2 / (2 (1 - R)): the value function of M/G/1, for sizes and backlogs that are known
 * (Hyytiae, Penttinen and Aalto, "Size- and state-aware dispatching problem with queue-specific job
 * sizes", EJOR 2012; the idea is Krishnan's, "Joining the right queue", 1987). Adding s to w costs
 * them the difference, L s (2 w + s) / (2 (1 - R)). A decision by own time alone sends too much to
 * where a prefix is; one by work alone, too little. Which of both counts follows from the load.
 *
 * Those who decode there go on meanwhile, in longer steps. That is not weighed: until the limit of
 * the time between tokens, which admission keeps, nobody is served later by it, and to count each
 * of them sends work away from where its prefix is (5 to 15 % of TTFT on three traces).
 *
 * What the engine has not may come from the engine that has most of it, where that costs less.
 *
 * What goes from the cache. A full cache drops a block for each new one. What a block is worth is
 * learnt: the prefill time that hits have saved, for each block that was computed.
 *
 * Nothing here is tuned: arrivals, load, savings and times are observed, the rest follows. */
#include "route/internal.h"

static double later_us(const struct traffic_now *t, double wait, double work) {
    return t->arrivals * work * (2 * wait + work) / 2 * t->stretch;
}

static void weigh_one(struct cost_case *c, struct candidate *a, const struct traffic_now *t) {
    a->term[0] = most_of(a->wait_us, a->load_us) + a->prefill_us;
    a->term[1] = later_us(t, a->wait_us, a->prefill_us);
    a->term[2] = cache_full(c, a) ? a->new_tokens * t->token_worth_us : 0;
    a->cost = a->term[0] + a->term[1] + a->term[2];
}

/* The cheaper of both. */
static void weigh_fetched(struct cost_case *c, struct candidate *a, const struct candidate *best,
                          const struct traffic_now *t) {
    if (best->hit_tokens <= a->hit_tokens + a->ahead_tokens) return;
    struct candidate fetched = *a;
    candidate_fetch(c, &fetched, best);
    weigh_one(c, &fetched, t);
    if (fetched.cost < a->cost) *a = fetched;
}

static void weigh_tarn(struct cost_case *c) {
    const struct candidate best = *candidate_best_hit(c);
    for (uint32_t i = 0; i < c->count; i++) {
        struct candidate *a = &c->candidates[i];
        weigh_one(c, a, &c->traffic);
        if (c->route->options.fetch) weigh_fetched(c, a, &best, &c->traffic);
    }
}
const struct cost_ops cost_tarn = {
    .name = "tarn", .terms = {"own us", "later us", "cache us"}, .sums = true, .weigh = weigh_tarn};
