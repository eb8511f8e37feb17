#include "route/index_table.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/buf.h"

#define SHARD_ENTRIES 2048u /* wanted in one: what one growth moves */
#define SHARD_BITS    14u   /* at most */
#define SHARD_HOMES   8u    /* of the smallest */
#define PAGE          4096u

/* --- memory --- */

uint64_t route_memory_size(size_t size) {
    return (size + 8 + 15) & ~(uint64_t)15;
}

bool route_memory_take(struct route_memory *m, uint64_t bytes) {
    if (bytes > m->max - m->bytes) {
        m->starved = true;
        return false;
    }
    m->bytes += bytes;
    return true;
}

void route_memory_give(struct route_memory *m, uint64_t bytes) {
    TARN_ASSERT(m->bytes >= bytes);
    m->bytes -= bytes;
}

void *route_memory_get(struct route_memory *m, size_t size) {
    return route_memory_take(m, route_memory_size(size)) ? xmalloc(size) : NULL;
}

void route_memory_put(struct route_memory *m, void *p, size_t size) {
    if (p == NULL) return;
    route_memory_give(m, route_memory_size(size));
    free(p);
}

/* --- shards --- */

static size_t shard_size(const struct route_shard *s) {
    return s->slot != NULL ? route_shard_slots(s) * sizeof(*s->slot) : 0;
}

/* Of what a shard has when it is small and the table has a base. */
static bool shard_is_base(const struct route_table *t, const struct route_shard *s) {
    return t->base_homes > 0 && s->homes == t->base_homes;
}

/* Empty slots for so many homes. false: no room. */
static bool shard_open(struct route_table *t, struct route_memory *m, size_t i,
                       struct route_shard *to) {
    if (shard_is_base(t, to)) {
        to->slot = (uint64_t *)(void *)t->base.base + i * route_shard_slots(to);
        return true;
    }
    size_t size = route_shard_slots(to) * sizeof(*to->slot);
    to->slot = route_memory_get(m, size);
    if (to->slot != NULL) memset(to->slot, 0, size);
    return to->slot != NULL;
}

static void shard_close(struct route_table *t, struct route_memory *m, struct route_shard *s) {
    if (shard_is_base(t, s))
        memset(s->slot, 0, shard_size(s));
    else
        route_memory_put(m, s->slot, shard_size(s));
}

/* Into `to`, whose slots are empty. false: at its end there is no room. */
static bool shard_fill(const struct route_table *t, const struct route_shard *from,
                       struct route_shard *to) {
    uint32_t slots = from->slot != NULL ? route_shard_slots(from) : 0, end = route_shard_slots(to);
    uint32_t next = 0;
    for (uint32_t i = 0; i < slots; i++) {
        if (from->slot[i] == 0) continue;
        uint32_t home = route_shard_home(t, to, (uint32_t)(from->slot[i] >> 32));
        if (home > next) next = home;
        if (next >= end) return false;
        to->slot[next++] = from->slot[i];
    }
    to->n = from->n;
    return true;
}

static uint32_t homes_least(const struct route_table *t) {
    return t->base_homes > 0 ? t->base_homes : SHARD_HOMES;
}

/* false: no room, and all is as it was. */
static bool shard_resize(struct route_table *t, struct route_memory *m, struct route_shard *s,
                         uint32_t homes) {
    struct route_shard to = {.homes = homes > homes_least(t) ? homes : homes_least(t)};
    for (;; to.homes += to.homes / 8 + 8) {
        if (!shard_open(t, m, (size_t)(s - t->shard), &to)) return false;
        if (shard_fill(t, s, &to)) break;
        shard_close(t, m, &to);
    }
    shard_close(t, m, s);
    *s = to;
    return true;
}

/* Moves what is in the way to the right. false: no gap up to the end. */
static bool shard_insert(const struct route_table *t, struct route_shard *s, uint64_t entry) {
    uint32_t at = route_shard_home(t, s, (uint32_t)(entry >> 32)), end = route_shard_slots(s), gap;
    while (at < end && s->slot[at] != 0 && s->slot[at] >> 32 <= entry >> 32) at++;
    for (gap = at; gap < end && s->slot[gap] != 0;) gap++;
    if (gap == end) return false;
    memmove(&s->slot[at + 1], &s->slot[at], (gap - at) * sizeof(*s->slot));
    s->slot[at] = entry;
    s->n++;
    return true;
}

bool route_table_add(struct route_table *t, struct route_memory *m, uint32_t print,
                     uint32_t value) {
    struct route_shard *s = route_table_shard(t, print);
    uint64_t entry = (uint64_t)print << 32 | value;
    TARN_ASSERT(value > 0);
    /* Without room for more slots those that are there fill up. */
    if (s->slot == NULL || s->n >= s->homes - s->homes / 4) {
        if (!shard_resize(t, m, s, s->homes + s->homes / 5) && s->slot == NULL) return false;
    }
    while (!shard_insert(t, s, entry))
        if (!shard_resize(t, m, s, s->homes + s->homes / 5)) return false;
    t->n++;
    return true;
}

void route_table_remove(struct route_table *t, struct route_memory *m, struct route_spot place) {
    struct route_shard *s = place.shard;
    uint32_t at = place.at, end = route_shard_slots(s), next = at + 1;
    TARN_ASSERT(s->slot[at] != 0);
    /* those behind it that are not at home come nearer */
    while (next < end && s->slot[next] != 0 &&
           route_shard_home(t, s, (uint32_t)(s->slot[next] >> 32)) < next)
        next++;
    memmove(&s->slot[at], &s->slot[at + 1], (next - at - 1) * sizeof(*s->slot));
    s->slot[next - 1] = 0;
    s->n--;
    t->n--;
    if (s->n == 0 && !shard_is_base(t, s)) {
        shard_close(t, m, s);
        *s = (struct route_shard){0};
    } else if (s->homes > homes_least(t) && s->n < s->homes * 2 / 5) {
        shard_resize(t, m, s, s->n + s->n / 2); /* without room for that it stays as it is */
    }
}

/* --- tables --- */

bool route_table_init(struct route_table *t, struct route_memory *m, uint64_t expected) {
    *t = (struct route_table){0};
    while (t->bits < SHARD_BITS && expected >> t->bits > SHARD_ENTRIES) t->bits++;
    t->shard = route_memory_get(m, sizeof(*t->shard) << t->bits);
    if (t->shard == NULL) return false;
    memset(t->shard, 0, sizeof(*t->shard) << t->bits);
    return true;
}

bool route_table_lay_base(struct route_table *t, struct route_memory *m, uint64_t expected,
                          bool huge) {
    struct route_shard s = {.homes = (uint32_t)max_u64(expected >> t->bits, SHARD_HOMES)};
    size_t size = (sizeof(*s.slot) * route_shard_slots(&s)) << t->bits;
    size = (size + PAGE - 1) / PAGE * PAGE;
    if (!route_memory_take(m, size)) return false;
    if (!page_arena_init(&t->base, size, huge ? PAGES_HUGE : 0) || !page_arena_grow(&t->base, size))
        return false;
    t->base_homes = s.homes;
    return true;
}

void route_table_deinit(struct route_table *t, struct route_memory *m) {
    if (t->shard == NULL) return;
    for (uint32_t i = 0; i < UINT32_C(1) << t->bits; i++) shard_close(t, m, &t->shard[i]);
    route_memory_give(m, t->base.reserved);
    page_arena_free(&t->base);
    route_memory_put(m, t->shard, sizeof(*t->shard) << t->bits);
    *t = (struct route_table){0};
}

uint64_t route_table_memory(const struct route_table *t) {
    uint64_t bytes = route_memory_size(sizeof(*t->shard) << t->bits) + t->base.reserved;
    for (uint32_t i = 0; i < UINT32_C(1) << t->bits; i++)
        if (t->shard[i].slot != NULL && !shard_is_base(t, &t->shard[i]))
            bytes += route_memory_size(shard_size(&t->shard[i]));
    return bytes;
}
