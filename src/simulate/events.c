#include "simulate/events.h"

#include <stdlib.h>

#include "base/assert.h"
#include "base/buf.h"

static bool event_before(const struct event *a, const struct event *b) {
    return a->at < b->at || (a->at == b->at && a->order < b->order);
}

void events_add(struct events *e, double at, enum event_kind kind, uint32_t who,
                uint32_t generation) {
    ARRAY_GROW(e->heap, e->n, e->cap);
    struct event new = {at, e->order++, kind, who, generation};
    size_t i = e->n++;
    while (i > 0 && event_before(&new, &e->heap[(i - 1) / 2])) {
        e->heap[i] = e->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    e->heap[i] = new;
}

const struct event *events_first(const struct events *e) {
    return e->n > 0 ? &e->heap[0] : NULL;
}

struct event events_take(struct events *e) {
    TARN_ASSERT(e->n > 0);
    struct event first = e->heap[0], last = e->heap[--e->n];
    size_t i = 0, child;
    while ((child = 2 * i + 1) < e->n) {
        if (child + 1 < e->n && event_before(&e->heap[child + 1], &e->heap[child])) child++;
        if (!event_before(&e->heap[child], &last)) break;
        e->heap[i] = e->heap[child];
        i = child;
    }
    e->heap[i] = last;
    return first;
}

void events_free(struct events *e) {
    free(e->heap);
    *e = (struct events){0};
}
