#include "route/ahead.h"
#include <stdbool.h>
#include <stdlib.h>
#include "base/buf.h"

void ahead_init(struct ahead *a, uint64_t requests) {
    uint64_t sets = 64;
    while (sets < requests && sets < AHEAD_SETS_MAX) sets *= 2;
    a->mask = sets - 1;
    a->sets = aligned_alloc(sizeof(struct ahead_entry), sets * sizeof(*a->sets));
    if (a->sets == NULL) abort();
    memset(a->sets, 0, sets * sizeof(*a->sets));
}

size_t ahead_memory(const struct ahead *a) {
    return (a->mask + 1) * sizeof(*a->sets);
}

void ahead_deinit(struct ahead *a) {
    free(a->sets);
    a->sets = NULL;
}

/* Is one of them how the other one begins? */
static bool group_same(const struct ahead_group *a, const struct ahead_group *b) {
    return a->n > 0 && ahead_common(a, b) == (a->n < b->n ? a->n : b->n);
}

/* Its own entry, which may reach further already, or the one that ends first. */
void ahead_put(struct ahead *a, const struct ahead_group *group, uint16_t worker, uint16_t birth,
               uint64_t now_ms, uint64_t until_ms) {
    struct ahead_entry *way = ahead_set_of(a, group->first)->way, *best = way;
    int32_t least = INT32_MAX;
    bool further = false;
    for (unsigned i = 0; i < AHEAD_WAYS; i++) {
        struct ahead_entry *e = &way[i];
        int32_t left = (int32_t)(e->until_ms - (uint32_t)now_ms);
        bool own = e->worker == worker && e->birth == birth && group_same(&e->group, group);
        if (own || left < least) least = left, best = e;
        further = own && left > 0 && e->group.n > group->n;
        if (own) break;
    }
    if (!further) best->group = *group;
    best->worker = worker;
    best->birth = birth;
    best->until_ms = (uint32_t)until_ms;
}
