#include "commands/minute.h"

#include <stdbool.h>

static bool began_anew(const struct minute_counts *before, const struct minute_counts *now) {
    return now->hits < before->hits || now->misses < before->misses ||
           now->failed_puts < before->failed_puts || now->evicted < before->evicted ||
           now->aged < before->aged || now->young < before->young;
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
                                        .young = now.young - first->young};
    m->second[m->next] = now;
    m->next = (m->next + 1) % MINUTE_SECONDS;
    if (m->n < MINUTE_SECONDS) m->n++;
    return gained;
}
