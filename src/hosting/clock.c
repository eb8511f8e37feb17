/* The upper bound of the master's clock.
 *
 * A reply that says "it is m" was made after its request had been sent, at s of our clock: so the
 * master's clock is ahead by less than m + 1 - s (m is a floor). Replies that were long in coming,
 * because the heartbeat waited for work, bound it loosely; the least bound of all holds. Two clocks
 * drift: the bound grows until a better one comes.
 *
 * CLOCK_BOOTTIME, because it goes on while this machine sleeps, as the master's clock does. */
#include "base/assert.h"
#include "hosting/hosting.h"

#define DRIFT_DIVISOR 1000 /* 0.1 % */

int64_t hosting_clock_bound(const struct hosting_clock *c, uint64_t now) {
    TARN_ASSERT(c->known);
    uint64_t age = now > c->best_at ? now - c->best_at : 0;
    return c->best + (int64_t)((age + DRIFT_DIVISOR - 1) / DRIFT_DIVISOR);
}

void hosting_clock_feed(struct hosting_clock *c, uint64_t master_ms, uint64_t sent_ms,
                        uint64_t now) {
    int64_t bound = (int64_t)(master_ms + 1 - sent_ms);
    /* It held when the request was sent, and drifts from there on. */
    if (c->known &&
        bound + (int64_t)((now - sent_ms) / DRIFT_DIVISOR) > hosting_clock_bound(c, now))
        return;
    *c = (struct hosting_clock){.known = true, .best = bound, .best_at = sent_ms};
}
