#include "commands/minute.h"

#include <stdbool.h>
#include "base/assert.h"

static bool began_anew(const struct minute_counts *before, const struct minute_counts *now) {
    return now->hits < before->hits || now->misses < before->misses ||
           now->failed_puts < before->failed_puts || now->evicted < before->evicted ||
           now->aged < before->aged || now->young < before->young || now->idle_ms < before->idle_ms;
}

struct minute_counts minute_until(struct minute *m, struct minute_counts now) {
    const struct minute_counts *first = &m->second[m->n < MINUTE_SECONDS ? 0 : m->next];
    if (m->n > 0 && began_anew(first, &now)) m->n = m->next = 0;
    struct minute_counts gained = {0};
    if (m->n > 0)
        gained = (struct minute_counts){.hits = now.hits - first->hits,
                                        .misses = now.misses - first->misses,
                                        .failed_puts = now.failed_puts - first->failed_puts,
                                        .evicted = now.evicted - first->evicted,
                                        .aged = now.aged - first->aged,
                                        .young = now.young - first->young,
                                        .idle_ms = now.idle_ms - first->idle_ms};
    m->second[m->next] = now;
    m->next = (m->next + 1) % MINUTE_SECONDS;
    if (m->n < MINUTE_SECONDS) m->n++;
    return gained;
}

int64_t minute_evicted_idle(const struct minute *m, unsigned seconds) {
    if (m->n < 2) return -1;
    unsigned back = (unsigned)min_u64(seconds, m->n - 1);
    unsigned last = (m->next + MINUTE_SECONDS - 1) % MINUTE_SECONDS;
    const struct minute_counts *now = &m->second[last];
    const struct minute_counts *then = &m->second[(last + MINUTE_SECONDS - back) % MINUTE_SECONDS];
    uint64_t aged = now->aged - then->aged;
    return aged == 0 ? -1 : (int64_t)((now->idle_ms - then->idle_ms) / aged);
}
