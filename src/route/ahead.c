#include "route/ahead.h"
#include <stdlib.h>
#include "base/buf.h"

void ahead_init(struct ahead *a) {
    a->lines = xcalloc(AHEAD_LINES, sizeof(*a->lines));
}

void ahead_deinit(struct ahead *a) {
    free(a->lines);
    a->lines = NULL;
}

/* Its own entry, or the one that ends first. */
void ahead_put(struct ahead *a, uint64_t hash, uint16_t worker, uint16_t birth, uint64_t now_ms,
               uint64_t until_ms) {
    struct ahead_line *line = (struct ahead_line *)ahead_line_of(a, hash);
    struct ahead_entry *best = &line->way[0];
    int32_t least = INT32_MAX;
    for (unsigned i = 0; i < AHEAD_WAYS; i++) {
        struct ahead_entry *e = &line->way[i];
        int32_t left = (int32_t)(e->until_ms - (uint32_t)now_ms);
        if (e->hash == hash && e->worker == worker) left = INT32_MIN;
        if (left < least) least = left, best = e;
    }
    *best = (struct ahead_entry){hash, worker, birth, (uint32_t)until_ms};
}
