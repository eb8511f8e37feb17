/* What round-robin can just bear: the pace at which nine of ten requests still keep both limits. */
#include <math.h>

#include "simulate/sim.h"

#define PACE_MAX   (1 << 20)
#define PACE_MIN   (1.0 / (1 << 20))
#define PACE_STEPS 8u /* of the bisection: the limit is known within 1.02 */

static bool pace_kept(struct sim_config *c, const struct trace *t, uint64_t ids, double pace) {
    struct sim_result r;
    c->pace = pace;
    sim_run(c, t, ids, NULL, &r);
    return (double)r.kept >= SIM_KEPT_SHARE * (double)r.requests;
}

double sim_pace_limit(const struct sim_config *config, const struct trace *trace, uint64_t ids,
                      uint64_t limit) {
    struct sim_config c = *config;
    struct trace t = *trace;
    c.route = "round-robin";
    c.admit = false;
    c.n_failures = 0;
    if (limit > 0 && t.n > limit) t.n = limit;
    /* Twice as fast, or as slow, until the limit is between. */
    double low = c.pace;
    bool kept = pace_kept(&c, &t, ids, low);
    if (kept)
        while (low < PACE_MAX && pace_kept(&c, &t, ids, 2 * low)) low *= 2;
    else
        while (low >= PACE_MIN && !pace_kept(&c, &t, ids, low /= 2)) continue;
    if (low < PACE_MIN) return 0;
    double high = 2 * low;
    for (unsigned i = 0; i < PACE_STEPS; i++) {
        double middle = sqrt(low * high);
        *(pace_kept(&c, &t, ids, middle) ? &low : &high) = middle;
    }
    double span_ms = (double)(t.requests[t.n - 1].timestamp_ms - t.requests[0].timestamp_ms);
    return span_ms / 1e3 / low > c.slo_ttft_s ? low : INFINITY;
}
