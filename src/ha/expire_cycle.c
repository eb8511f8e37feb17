#include "ha/expire_cycle.h"

#include "base/clock.h"
#include "front/cmd.h"
#include "config/config.h"
#include "front/latency.h"
#include "front/stats.h"

/* Redis' share of each 1/hz second, and what every step of active-expire-effort adds, in per
 * cent. */
#define SHARE_MIN  25
#define SHARE_STEP 2

static bool off, capped; /* capped: until the end of this period */
static uint64_t period_ms, spent_ns;

static uint64_t period_length_ms(void) {
    return (uint64_t)(1000 / config->hz);
}

static uint64_t share_ns(void) {
    uint64_t percent = SHARE_MIN + SHARE_STEP * (uint64_t)(config->active_expire_effort - 1);
    return period_length_ms() * 1000000 * percent / 100;
}

bool expire_cycle_turn(void) {
    if (off || store_expire_next_ms(books, 1) > 0) return false;
    if (turn.mono_ms - period_ms >= period_length_ms()) {
        period_ms = turn.mono_ms;
        spent_ns = 0;
        capped = false;
    }
    if (capped) return false;
    unsigned budget = job_quota();
    uint64_t began = clock_mono_ns();
    bool more = store_expire_due(books, &budget);
    uint64_t took = clock_mono_ns() - began;
    latency_note(LATENCY_EXPIRE_CYCLE, took);
    stats.expire_cycle_ns += took;
    spent_ns += took;
    if (!more || spent_ns < share_ns()) return more;
    capped = true;
    stats.expired_time_cap_reached_count++;
    return false;
}

uint64_t expire_cycle_next_ms(uint64_t limit_ms) {
    if (off) return limit_ms;
    uint64_t next = store_expire_next_ms(books, limit_ms), over = period_ms + period_length_ms();
    if (!capped || over <= turn.mono_ms) return next;
    return min_u64(limit_ms, max_u64(next, over - turn.mono_ms));
}

void expire_cycle_cron(void) {
    enum { SAMPLES = 20 };
    struct store_ttl_sample sample;
    store_sample_ttl(books, SAMPLES, &sample);
    double percent = sample.seen > 0 ? 100.0 * (double)sample.stale / (double)sample.seen : 0;
    stats.expired_stale_percent += (percent - stats.expired_stale_percent) * 0.05;
}

void expire_cycle_enable(bool on) {
    off = !on;
}
