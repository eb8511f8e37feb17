/* Admission: who can keep the times that a request asks for, and when somebody will. */
#include <math.h>
#include "route/internal.h"

double bound_us(double asked_ms, double otherwise_ms, int32_t priority) {
    double ms = asked_ms > 0 ? asked_ms : otherwise_ms;
    if (ms <= 0) return INFINITY;
    /* Below 0: a half, a third, a quarter of the time; so these are the first to be refused. */
    return 1000 * ms / (priority < 0 ? 1 - (double)priority : 1);
}

/* Until enough sequences have ended for a step to be short enough; INFINITY: one alone is not. */
static double until_step_fits(const struct cost_case *c, const struct worker *w, double step,
                              double bound) {
    const struct model *m = &w->engine->decode;
    double running = most_of((double)worker_running(w), 1);
    double context = (double)worker_context(w) / running;
    double each = m->each[1] + m->each[2] * context;
    double ends = ceil((step - bound) / most_of(each, 1e-9));
    if (ends > running) return INFINITY;
    return ends * step * c->route->output_mean / running;
}

/* Until this one could keep both times; 0: it can. */
static double until_fits(const struct cost_case *c, const struct candidate *a) {
    const struct worker *w = &c->route->workers[a->worker];
    double until = 0;
    if (a->plan.ttft_us > c->ttft_bound_us)
        until = a->plan.prefill_us + a->plan.load_us > c->ttft_bound_us
                    ? INFINITY
                    : a->plan.ttft_us - c->ttft_bound_us;
    if (w->engine->role == ROUTE_BOTH && a->tbt_us > c->tbt_bound_us)
        until = most_of(until, until_step_fits(c, w, a->tbt_us, c->tbt_bound_us));
    return until;
}

uint32_t admit_retry_ms(double us) {
    if (!isfinite(us)) return 0;
    return (uint32_t)least_of(most_of(ceil(us / 1000), 1), 3.6e6);
}

bool admit_candidates(struct cost_case *c, double *retry_us_p) {
    double soonest = INFINITY, ttft_us = c->ttft_bound_us, tbt_us = c->tbt_bound_us;
    uint32_t late = 0;
    for (struct candidate *a = c->candidates, *end = a + c->count; a < end; a++) {
        bool in_time = a->plan.ttft_us <= ttft_us && a->tbt_us <= tbt_us;
        double until = in_time ? 0 : until_fits(c, a);
        a->late = until > 0;
        late += a->late;
        soonest = least_of(soonest, until);
    }
    c->late = late;
    *retry_us_p = soonest;
    return late < c->count;
}

bool admit_decoders(struct cost_case *c, double *retry_us_p) {
    double soonest = INFINITY;
    c->late = 0;
    for (uint32_t i = 0; i < c->count; i++) {
        struct candidate *a = &c->candidates[i];
        if (a->engine->role == ROUTE_PREFILL)
            a->late = true;
        else
            soonest = least_of(soonest, until_fits(c, a));
        c->late += a->late;
    }
    *retry_us_p = soonest;
    return c->late < c->count;
}

double admit_decode_retry_us(const struct cost_case *c, uint32_t prefill,
                             const struct decode_choice *to) {
    if (to->worker == prefill) return 0;
    if (to->worker == ROUTE_NO_WORKER) return INFINITY;
    if (to->tbt_us <= c->tbt_bound_us) return 0;
    return until_step_fits(c, &c->route->workers[to->worker], to->tbt_us, c->tbt_bound_us);
}
