#include "route/traffic.h"
#include <math.h>
#include "base/buf.h"

/* Long beside the gaps between requests, short beside the hours of a day. */
#define FADE_US 120e6
/* The estimate of the load is not better than this, and the queues of an overloaded engine grow
 * without end in theory only. */
#define LOAD_MOST 0.95

static double faded(const struct traffic *t, uint64_t now_us) {
    return t->at_us == 0 ? 1 : exp(-(double)(now_us - t->at_us) / FADE_US);
}

void traffic_add(struct traffic *t, uint64_t now_us, double work_us, double tokens,
                 double saved_us) {
    double keep = faded(t, now_us);
    if (t->at_us != 0) t->time_us = t->time_us * keep + FADE_US * (1 - keep);
    t->requests = t->requests * keep + 1;
    t->work_us = t->work_us * keep + work_us;
    t->computed_tokens = t->computed_tokens * keep + tokens;
    t->saved_us = t->saved_us * keep + saved_us;
    t->at_us = now_us;
}

struct traffic_now traffic_of(const struct traffic *t, uint64_t now_us, uint32_t workers) {
    double keep = faded(t, now_us);
    double time = (t->time_us * keep + FADE_US * (1 - keep)) * workers;
    /* Less than two requests tell of no rate. */
    if (time <= 0 || t->requests < 2) return (struct traffic_now){.stretch = 1};
    double load = fmin(t->work_us * keep / time, LOAD_MOST);
    return (struct traffic_now){.arrivals = t->requests * keep / time,
                                .stretch = 1 / (1 - load),
                                .token_worth_us =
                                    t->computed_tokens > 0 ? t->saved_us / t->computed_tokens : 0};
}
