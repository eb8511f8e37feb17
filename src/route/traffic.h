/* What comes in for a model, as seen over the last minutes: how often, how much work it is, and
 * how much work its prefixes save. Sums that fade, so that the load of now counts. */
#ifndef TARN_ROUTE_TRAFFIC_H
#define TARN_ROUTE_TRAFFIC_H

#include <stdint.h>

struct traffic {
    double requests, work_us, computed_tokens, saved_us; /* faded sums */
    double time_us;                                      /* of the time they are over */
    uint64_t at_us;
};

/* For each of so many workers among which it is spread. */
struct traffic_now {
    double arrivals; /* a microsecond */
    double stretch;  /* how much longer it takes what is not urgent: 1 / (1 - load), bounded */
    double token_worth_us; /* that a token which was computed has saved later ones */
};

/* A decision: work that it makes, tokens that it computes, work that hits have saved it. */
void traffic_add(struct traffic *t, uint64_t now_us, double work_us, double tokens,
                 double saved_us);
struct traffic_now traffic_of(const struct traffic *t, uint64_t now_us, uint32_t workers);

#endif
