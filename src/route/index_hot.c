/* Hot prefixes: the runs through which most of a sample of the look-ups went (Space-Saving,
 * Metwally 2005: a run that is new takes the place and the count of the one with the lowest). */
#include "route/index_run.h"

#define HOT_EVERY 16u   /* look-ups */
#define HOT_HALVE 4096u /* samples */

static struct route_hot_run *hot_entry(struct route_index *ix, uint32_t run) {
    struct route_hot_run *lowest = &ix->hot[0];
    for (uint32_t i = 0; i < ROUTE_HOT_MAX; i++) {
        if (ix->hot[i].run == run) return &ix->hot[i];
        if (ix->hot[i].count < lowest->count) lowest = &ix->hot[i];
    }
    return lowest;
}

static void hot_halve(struct route_index *ix) {
    for (uint32_t i = 0; i < ROUTE_HOT_MAX; i++)
        if ((ix->hot[i].count /= 2) == 0) ix->hot[i] = (struct route_hot_run){0};
}

void route_hot_touch(struct route_index *ix, const struct route_path *path) {
    if (path->steps == 0 || ix->figures.route_matches % HOT_EVERY != 0) return;
    if (++ix->hot_samples % HOT_HALVE == 0) hot_halve(ix);
    for (uint32_t i = 0; i < path->steps && i < ROUTE_HOT_MAX / 4; i++) {
        const struct route_step *s = &path->step[i];
        struct route_hot_run *hot = hot_entry(ix, s->id);
        uint32_t count = hot->count + 1;
        *hot = (struct route_hot_run){.run = s->id, .at = s->at, .count = count};
        hot->block = path->chain->block;
        hot->first = s->run->first;
        hot->scope = path->chain->scope;
    }
}

/* NULL: what was hot is no longer known. */
static const struct route_run *hot_run(const struct route_index *ix,
                                       const struct route_hot_run *hot) {
    const struct route_run *r = hot->run != 0 ? route_run_live(ix, hot->run) : NULL;
    return r != NULL && r->first == hot->first ? r : NULL;
}

static uint32_t run_holders(const struct route_index *ix, const struct route_run *r) {
    const struct route_lane *lane = route_run_lanes(r);
    uint32_t n = 0, last = 0;
    for (uint32_t i = 0; i < r->lanes; i++) {
        uint32_t life = lane[i].key >> 16;
        if (!(lane_bits(&lane[i]) >> (r->len - 1) & 1) || ix->brief[life].holder == 0) continue;
        n += life != last;
        last = life;
    }
    return n;
}

size_t route_index_hot(const struct route_index *ix, struct route_hot *hot, size_t cap) {
    size_t n = 0;
    for (uint32_t i = 0; i < ROUTE_HOT_MAX; i++) {
        const struct route_hot_run *from = &ix->hot[i];
        const struct route_run *r = hot_run(ix, from);
        if (r == NULL) continue;
        uint64_t matches = (uint64_t)from->count * HOT_EVERY;
        size_t at = n < cap ? n++ : cap;
        for (; at > 0 && hot[at - 1].matches < matches; at--)
            if (at < cap) hot[at] = hot[at - 1];
        if (at == cap) continue;
        hot[at] = (struct route_hot){.scope = from->scope,
                                     .last = r->last ^ from->scope,
                                     .block = from->block,
                                     .blocks = from->at + r->len,
                                     .holders = run_holders(ix, r),
                                     .matches = matches};
    }
    return n;
}

size_t route_index_hot_chain(const struct route_index *ix, const struct route_hot *hot,
                             uint64_t *rolling, size_t cap) {
    const struct route_run *r = NULL;
    for (uint32_t i = 0; i < ROUTE_HOT_MAX && r == NULL; i++) {
        const struct route_run *one = hot_run(ix, &ix->hot[i]);
        if (one != NULL && ix->hot[i].scope == hot->scope &&
            (one->last ^ hot->scope) == hot->last && ix->hot[i].at + one->len == hot->blocks)
            r = one;
    }
    if (r == NULL || hot->blocks > cap) return 0;
    for (uint32_t left = hot->blocks, n = r->len; n <= left;) {
        left -= n;
        for (uint32_t i = 0; i < n; i++) rolling[left + i] = route_run_hash(r, i) ^ hot->scope;
        if (left == 0) return hot->blocks;
        n = r->parent % RUN_BLOCKS + 1;
        r = route_run_parent(ix, r);
        if (r == NULL) return 0;
    }
    return 0;
}
