/* The latency monitor: what held the loop up for latency-monitor-threshold or more. Off (0) it
 * costs a comparison with a time that was measured anyhow, or one before a clock is read. One
 * thread, the loop's. */
#ifndef TARN_FRONT_LATENCY_H
#define TARN_FRONT_LATENCY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/assert.h"
#include "base/buf.h"
#include "base/clock.h"

/* Redis' names where they mean the same; docs/COMMANDS.md says what each is. */
enum latency_event {
    LATENCY_COMMAND,        /* a command, or one slice of it */
    LATENCY_FAST_COMMAND,   /* the same of a command that is said to be fast */
    LATENCY_EXPIRE_CYCLE,   /* removing what is past its time */
    LATENCY_EVICTION_CYCLE, /* background work that evicted */
    LATENCY_BOOKS_CYCLE,    /* other background work of the books */
    LATENCY_SNAPSHOT_CYCLE, /* a slice of a snapshot that is being written */
    /* handing a batch to the kernel; one of the next three has it as well */
    LATENCY_AOF_WRITE,
    LATENCY_AOF_WRITE_PENDING_FSYNC,
    LATENCY_AOF_WRITE_ACTIVE_CHILD,
    LATENCY_AOF_WRITE_ALONE,
    LATENCY_AOF_FSYNC_ALWAYS, /* appendfsync always: handing over and syncing a batch */
    LATENCY_AOF_RENAME,       /* a new append-only file takes its name */
    LATENCY_RDB_RENAME,       /* the same of a snapshot */
    LATENCY_EVENTS
};

#define LATENCY_SAMPLES 160u

struct latency_sample {
    uint64_t wall_s, ms;
};
struct latency_series {
    const char *name;
    size_t n; /* samples that are kept, at most LATENCY_SAMPLES; 0: nothing has happened */
    uint64_t max_ms;
    size_t next; /* private */
    struct latency_sample sample[LATENCY_SAMPLES];
};

/* latency-monitor-threshold was set. */
void latency_apply_config(void);
extern uint64_t latency_threshold_ns; /* UINT64_MAX: off */

void latency_add(enum latency_event event, uint64_t ns);
void latency_add_at(enum latency_event event, uint64_t ns, uint64_t now_s); /* wall time */
static inline void latency_note(enum latency_event event, uint64_t ns) {
    if (UNLIKELY(ns >= latency_threshold_ns)) latency_add(event, ns);
}
/* Around what is not measured anyhow. 0: the monitor is off. */
static inline uint64_t latency_begin(void) {
    return LIKELY(latency_threshold_ns == UINT64_MAX) ? 0 : clock_mono_ns();
}
static inline void latency_end(enum latency_event event, uint64_t began_ns) {
    if (UNLIKELY(began_ns != 0)) latency_note(event, clock_mono_ns() - began_ns);
}

const struct latency_series *latency_series(enum latency_event event);
/* NULL: no event has this name (any case). */
const struct latency_series *latency_find(struct span name);
/* The i-th sample, oldest first; i < n. */
struct latency_sample latency_sample(const struct latency_series *s, size_t i);
/* Whether there was something to forget. */
bool latency_reset(const struct latency_series *s);

#endif
