#include "route/ahead.h"
#include <stdbool.h>
#include <stdlib.h>
#include "base/buf.h"

void ahead_init(struct ahead *a, uint64_t requests) {
    uint64_t lines = 64;
    while (lines < requests && lines < AHEAD_LINES_MAX) lines *= 2;
    a->mask = lines - 1;
    a->lines = aligned_alloc(sizeof(*a->lines), lines * sizeof(*a->lines));
    if (a->lines == NULL) abort();
    memset(a->lines, 0, lines * sizeof(*a->lines));
}

size_t ahead_memory(const struct ahead *a) {
    return (a->mask + 1) * sizeof(*a->lines);
}

void ahead_deinit(struct ahead *a) {
    free(a->lines);
    a->lines = NULL;
}

/* Its own entry, or the one that ends first. */
void ahead_put(struct ahead *a, uint64_t hash, uint16_t worker, uint16_t birth, uint64_t now_ms,
               uint64_t until_ms) {
    struct ahead_entry *way = ((struct ahead_line *)ahead_line_of(a, hash))->way, *best = way;
    int32_t least = INT32_MAX;
    for (unsigned i = 0; i < AHEAD_WAYS; i++) {
        int32_t left = (int32_t)(way[i].until_ms - (uint32_t)now_ms);
        bool own = way[i].hash == hash && way[i].worker == worker;
        if (own || left < least) least = left, best = &way[i];
        if (own) break;
    }
    *best = (struct ahead_entry){hash, worker, birth, (uint32_t)until_ms};
}
