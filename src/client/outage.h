/* Hosts that could not be reached a moment ago. */
#ifndef TARN_CLIENT_OUTAGE_H
#define TARN_CLIENT_OUTAGE_H

#include <stdbool.h>
#include <stdint.h>
#include "client/arena.h"
#include "tarn.h"

struct lane;

#define OUTAGES_MAX      64u
#define OUTAGE_NAMES_MAX 8u

struct outage {
    uint64_t home; /* as in segment_entry */
    uint64_t noted_ms, until_ms;
    unsigned failures;
    char name[OUTAGE_NAMES_MAX][64]; /* of its segments, as far as they were met */
    unsigned names;
};
/* All lanes share it: what one learned at the cost of a time-out the others need not. Under
 * client->mutex, but for the two counters, which are also read without it. */
struct outages {
    unsigned n;
    uint64_t changes; /* grows when a host is added */
    struct outage list[OUTAGES_MAX];
};
/* The host of this segment did not let us connect, fell silent, broke the protocol, or takes no
 * bytes of ours. */
void outage_note(struct lane *lane, uint32_t segment);
/* It has served something. */
void outage_over(struct lane *lane, uint32_t segment);
/* Its host is better left alone. Its name is remembered for outage_names. */
bool outage_listed(struct lane *lane, uint32_t segment);
/* It was noted since then, and has not served since. */
bool outage_noted(struct lane *lane, uint32_t segment, uint64_t since_ms);
/* As outage_listed, but when the time has come to try that host again, the first one who asks is
 * told so (false). */
bool outage_probe(struct lane *lane, uint32_t segment);
/* Names of segments on such hosts that were noted since then (0: on all), in the lane's arena. */
size_t outage_names(struct lane *lane, uint64_t since_ms, const char **names, size_t max);
static inline bool outages_any(const struct outages *o) {
    return __atomic_load_n(&o->n, __ATOMIC_RELAXED) > 0;
}
static inline uint64_t outages_changes(const struct outages *o) {
    return __atomic_load_n(&o->changes, __ATOMIC_RELAXED);
}

#endif
