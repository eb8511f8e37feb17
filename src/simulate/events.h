/* What will happen, by time: a heap. Of one time that comes first which was added first, so that a
 * run is the same each time. Events are not taken out again: whoever gets one that is of no use any
 * more knows it by its generation. */
#ifndef TARN_SIMULATE_EVENTS_H
#define TARN_SIMULATE_EVENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum event_kind { EVENT_STEP, EVENT_FLOW, EVENT_LOOKED_UP, EVENT_FAIL, EVENT_BACK };

struct event {
    double at; /* seconds */
    uint64_t order;
    enum event_kind kind;
    uint32_t who, generation;
};
/* Zeroed is empty. */
struct events {
    struct event *heap;
    size_t n, cap;
    uint64_t order;
};

void events_add(struct events *e, double at, enum event_kind kind, uint32_t who,
                uint32_t generation);
const struct event *events_first(const struct events *e); /* NULL: there is none */
struct event events_take(struct events *e);               /* the first */
void events_free(struct events *e);

#endif
