/* What counters of the books have gained in the last minute. */
#ifndef TARN_COMMANDS_MINUTE_H
#define TARN_COMMANDS_MINUTE_H

#include <stdint.h>

enum { MINUTE_SECONDS = 60 };

struct minute_counts {
    uint64_t hits, misses, failed_puts, evicted;
    uint64_t aged, young; /* of evictions, by a sample: how old is known, and it was not old */
    uint64_t idle_ms;     /* ... how old all of them were together */
};

/* Zeroed: nothing is known yet. */
struct minute {
    struct minute_counts second[MINUTE_SECONDS]; /* totals, at the end of each */
    unsigned n, next;
};

/* Each second, with the totals of now: what was gained since the oldest that is kept, which is
 * forgotten. All are, when counters began anew (CONFIG RESETSTAT). */
struct minute_counts minute_until(struct minute *m, struct minute_counts now);
/* Of what was evicted in the last seconds (fewer than MINUTE_SECONDS), the mean time since it was
 * used; -1: nothing was. */
int64_t minute_evicted_idle(const struct minute *m, unsigned seconds);

#endif
