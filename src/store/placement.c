#include "store/placement.h"

#include <stdlib.h>
#include <string.h>
#include "store/books.h"

static double free_ratio(const struct store *s, uint32_t id) {
    const struct segment *seg = s->space.segments[id];
    return (double)seg->free_units / (double)seg->units;
}

static void order_as_drawn(const struct store *s, uint32_t *id, unsigned n) {}

/* Few enough for insertion. Taking the best of some that were drawn, instead of the best of all,
 * keeps writers that decide at the same moment from all going to the same place (Mitzenmacher
 * 2001). */
static void order_by_free_ratio(const struct store *s, uint32_t *id, unsigned n) {
    for (unsigned i = 1; i < n; i++)
        for (unsigned k = i; k > 0 && free_ratio(s, id[k]) > free_ratio(s, id[k - 1]); k--) {
            uint32_t t = id[k];
            id[k] = id[k - 1];
            id[k - 1] = t;
        }
}

static const struct placement_ops strategies[] = {
    {"local-first", true, order_by_free_ratio},
    {"free-ratio-first", false, order_by_free_ratio},
    {"random", false, order_as_drawn},
};

const struct placement_ops *placement_find(const char *name) {
    for (size_t i = 0; i < ARRAY_LEN(strategies); i++)
        if (strcmp(strategies[i].name, name) == 0) return &strategies[i];
    return NULL;
}

tarn_status store_set_placement(struct store *s, const char *name) {
    const struct placement_ops *ops = placement_find(name);
    if (!ops) return TARN_EINVAL;
    s->placement = ops;
    return TARN_OK;
}

const char *store_placement_name(const struct store *s) {
    return s->placement->name;
}

/* --- the table --- */

void placement_changed(struct store *s) {
    s->placement_table.valid = false;
}

void placement_free(struct store *s) {
    free(s->placement_table.id);
    free(s->placement_table.upto);
    free(s->placement_table.first);
    free(s->placement_table.next);
    s->placement_table = (struct placement_table){0};
}

static uint32_t host_at(const struct store *s, uint32_t i) {
    return s->space.segments[s->placement_table.id[i]]->host;
}

/* A machine that has nothing here has no entry, or 0. */
static void by_host(const struct store *s, struct placement_table *t) {
    for (uint32_t i = 0; i < t->n; i++)
        if (host_at(s, i) < STORE_HOSTS_MAX)
            t->hosts = (uint32_t)max_u64(t->hosts, (uint64_t)host_at(s, i) + 1);
    t->first = xcalloc((size_t)t->hosts + 1, sizeof(*t->first));
    t->next = xcalloc((size_t)t->n + 1, sizeof(*t->next));
    for (uint32_t i = t->n; i-- > 0;) {
        uint32_t host = host_at(s, i);
        if (host >= t->hosts) continue;
        t->next[i] = t->first[host];
        t->first[host] = i + 1;
    }
}

static void placement_build(struct store *s) {
    struct placement_table *t = &s->placement_table;
    placement_free(s);
    t->id = xcalloc(s->space.n_segments + 1, sizeof(*t->id));
    t->upto = xcalloc(s->space.n_segments + 1, sizeof(*t->upto));
    uint64_t sum = 0;
    for (const struct segment *seg = NULL; (seg = space_next(&s->space, seg));) {
        if (seg->tier != STORE_TIER_MEMORY || seg->state != SEGMENT_UP) continue;
        t->id[t->n] = seg->id;
        t->upto[t->n++] = sum += seg->units;
    }
    by_host(s, t);
    t->valid = true;
}

static uint32_t placement_draw(struct store *s) {
    const struct placement_table *t = &s->placement_table;
    uint64_t at = rng_below(&s->rng, t->upto[t->n - 1]);
    uint32_t low = 0, high = t->n - 1;
    while (low < high) {
        uint32_t mid = (low + high) / 2;
        if (t->upto[mid] > at)
            high = mid;
        else
            low = mid + 1;
    }
    return t->id[low];
}

static void draw_some(struct store *s, const struct room_want *w, struct placement_iter *it) {
    for (unsigned tries = 0; tries < 2 * PLACEMENT_DRAWS && it->n_drawn < PLACEMENT_DRAWS;
         tries++) {
        uint32_t id = placement_draw(s);
        bool twice = !room_may_use(w, s->space.segments[id]);
        for (unsigned i = 0; i < it->n_drawn; i++) twice = twice || it->drawn[i] == id;
        if (!twice) it->drawn[it->n_drawn++] = id;
    }
    s->placement->order(s, it->drawn, it->n_drawn);
}

/* --- the run --- */

void placement_begin(struct store *s, uint32_t most, struct placement_iter *it) {
    if (!s->placement_table.valid) placement_build(s);
    *it = (struct placement_iter){.phase = PLACEMENT_PREFER, .most = most};
}

static void next_phase(struct store *s, const struct room_want *w, struct placement_iter *it) {
    const struct placement_table *t = &s->placement_table;
    it->phase++;
    it->at = 0;
    if (t->n < 2 && it->phase < PLACEMENT_ALL) {
        it->phase = PLACEMENT_ALL;
        return;
    }
    if (it->phase == PLACEMENT_LOCAL && (!s->placement->local || w->host == STORE_HOST_NONE))
        it->phase++;
    if (it->phase == PLACEMENT_LOCAL) it->local = w->host < t->hosts ? t->first[w->host] : 0;
    if (it->phase == PLACEMENT_DRAWN) draw_some(s, w, it);
    if (it->phase == PLACEMENT_ALL) it->start = (uint32_t)rng_below(&s->rng, t->n);
}

bool placement_next(struct store *s, const struct room_want *w, struct placement_iter *it,
                    uint32_t *id_p) {
    const struct placement_table *t = &s->placement_table;
    for (;;) {
        uint32_t n = 0, id = 0, at = it->at++;
        switch (it->phase) {
        case PLACEMENT_PREFER:
            n = w->n_prefer;
            if (at < n) id = w->prefer[at];
            break;
        case PLACEMENT_LOCAL:
            if (it->local == 0) break;
            n = at + 1;
            id = t->id[it->local - 1];
            it->local = t->next[it->local - 1];
            break;
        case PLACEMENT_ALL:
            n = (uint32_t)min_u64(t->n, it->most);
            if (at < n) id = t->id[it->start + at < t->n ? it->start + at : it->start + at - t->n];
            break;
        case PLACEMENT_DRAWN:
            n = it->n_drawn;
            if (at < n) id = it->drawn[at];
            break;
        case PLACEMENT_END: return false;
        }
        if (at >= n) {
            next_phase(s, w, it);
            continue;
        }
        const struct segment *seg = space_segment(&s->space, id);
        if (!seg || !room_may_use(w, seg)) continue;
        *id_p = id;
        return true;
    }
}
