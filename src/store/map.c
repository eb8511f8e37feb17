#include "store/map.h"

#include <stdlib.h>
#include "store/books.h"

enum { REFS_COST = 8 }; /* of a bucket of leases, in blocks */

struct mapped {
    uint32_t id, epoch;
    uint64_t units, bucket_units;
    uint64_t *cell; /* MAP_KINDS times buckets, units */
};

struct store_map {
    enum { MAP_OF_BLOCKS, MAP_OF_REFS, MAP_OF_LOTS, MAP_DONE } part;
    uint64_t at; /* the next block, or bucket of a table */
    unsigned stride, buckets;
    bool detached; /* all blocks look alike then */
    uint32_t n;
    uint32_t *index; /* of a segment's number: 1 + which of mapped, 0: none */
    uint32_t n_index;
    struct mapped mapped[MAP_SEGMENTS_MAX];
    uint64_t cells[];
};

/* What the page can show: many of few segments, few of many. */
static unsigned buckets_for(uint32_t segments) {
    unsigned part = segments <= 8 ? 1 : segments <= 64 ? 2 : 4;
    return MAP_BUCKETS_MAX / part;
}

struct store_map *store_map_create(const struct store *s, uint64_t blocks_max) {
    const struct space *sp = &s->space;
    uint32_t n = 0;
    for (const struct segment *seg = NULL; (seg = space_next(sp, seg)) && n < MAP_SEGMENTS_MAX;)
        n += seg->tier == STORE_TIER_MEMORY;
    unsigned buckets = buckets_for(n);
    struct store_map *m =
        xcalloc(1, sizeof(*m) + (size_t)n * buckets * MAP_KINDS * sizeof(uint64_t));
    m->buckets = buckets;
    m->stride = (unsigned)(sp->live / blocks_max) | 1u; /* odd: pairs have numbers side by side */
    m->at = 1;
    m->detached = sp->detached;
    m->n_index = sp->n_segments;
    m->index = xcalloc(m->n_index + 1, sizeof(*m->index));
    for (const struct segment *seg = NULL; (seg = space_next(sp, seg)) && m->n < n;) {
        if (seg->tier != STORE_TIER_MEMORY) continue;
        m->mapped[m->n] = (struct mapped){.id = seg->id,
                                          .epoch = seg->epoch,
                                          .units = seg->units,
                                          .bucket_units = (seg->units + buckets - 1) / buckets,
                                          .cell = m->cells + (size_t)m->n * buckets * MAP_KINDS};
        m->index[seg->id] = ++m->n;
    }
    return m;
}

void store_map_destroy(struct store_map **m_p) {
    if (*m_p == NULL) return;
    free((*m_p)->index);
    free(*m_p);
    *m_p = NULL;
}

/* A block, `times` over. It may lie across buckets. */
static void map_count(struct store_map *m, const struct block *b, enum map_kind kind,
                      unsigned times) {
    uint32_t id = block_segment(b), i = id < m->n_index ? m->index[id] : 0;
    if (i == 0) return;
    struct mapped *g = &m->mapped[i - 1];
    uint64_t at = block_offset(b), end = min_u64(at + b->len, g->units);
    while (at < end) {
        uint64_t bucket = at / g->bucket_units, part = (bucket + 1) * g->bucket_units;
        part = min_u64(part, end) - at;
        g->cell[kind * m->buckets + bucket] += part * times;
        at += part;
    }
}

static bool map_blocks(struct store_map *m, const struct store *s, unsigned budget) {
    const struct space *sp = &s->space;
    for (; m->at < sp->blocks && budget > 0; m->at += m->stride, budget--) {
        const struct block *b = block_get(sp, (block_id)m->at);
        if (block_state(b) == BLOCK_FREE) continue; /* or none at all */
        bool object = block_state(b) == BLOCK_OBJECT || m->detached;
        map_count(m, b, object ? MAP_USED : MAP_WRITTEN, m->stride);
    }
    return m->at >= sp->blocks;
}

struct counting {
    struct store_map *map;
    const struct store *store;
};

static void map_runs(const struct counting *c, const block_id *blocks, uint32_t n,
                     enum map_kind kind) {
    for (uint32_t i = 0; i < n; i++)
        map_count(c->map, block_get(&c->store->space, blocks[i]), kind, 1);
}

static void one_refs(void *arg, struct htab_node *node) {
    const struct counting *c = arg;
    const struct refs *r = CONTAINER_OF(node, struct refs, node);
    map_runs(c, r->blocks, r->n_blocks, MAP_QUARANTINED);
    const struct object *o = r->object != 0 ? record_get(&c->store->records, r->object) : NULL;
    uint32_t n;
    const block_id *blocks = o != NULL ? book_blocks(c->store, o, &n) : NULL;
    if (blocks != NULL) map_runs(c, blocks, n, MAP_LEASED);
}

static void one_lot(void *arg, struct htab_node *node) {
    const struct lot *lot = CONTAINER_OF(node, struct lot, node);
    map_runs(arg, lot->blocks, lot->n_blocks, MAP_QUARANTINED);
}

static bool map_table(struct store_map *m, const struct store *s, unsigned budget) {
    struct counting c = {m, s};
    bool refs = m->part == MAP_OF_REFS;
    do m->at = htab_scan(refs ? &s->refs : &s->lots, m->at, refs ? one_refs : one_lot, &c);
    while (m->at != 0 && (budget = budget > REFS_COST ? budget - REFS_COST : 0) > 0);
    return m->at == 0;
}

static uint64_t take_part(uint64_t *from, uint64_t most) {
    uint64_t n = min_u64(*from, most);
    *from -= n;
    return n;
}

/* What is leased was counted as used, too, and what is in quarantine as held. All of them were
 * counted at different times, or estimated: a bucket is never more than full. */
static void map_settle(struct store_map *m) {
    for (uint32_t i = 0; i < m->n; i++) {
        struct mapped *g = &m->mapped[i];
        for (unsigned b = 0; b < m->buckets; b++) {
            uint64_t *used = &g->cell[MAP_USED * m->buckets + b],
                     *leased = &g->cell[MAP_LEASED * m->buckets + b],
                     *gone = &g->cell[MAP_QUARANTINED * m->buckets + b],
                     *written = &g->cell[MAP_WRITTEN * m->buckets + b];
            uint64_t begin = b * g->bucket_units,
                     left = g->units > begin ? min_u64(g->bucket_units, g->units - begin) : 0;
            *used -= min_u64(*used, *leased);
            *written -= min_u64(*written, *gone);
            *leased = take_part(&left, *leased);
            *gone = take_part(&left, *gone);
            *written = take_part(&left, *written);
            *used = take_part(&left, *used);
        }
    }
}

bool store_map_step(struct store_map *m, const struct store *s, unsigned budget) {
    if (m->part == MAP_DONE) return true;
    if (!(m->part == MAP_OF_BLOCKS ? map_blocks : map_table)(m, s, budget)) return false;
    m->at = 0;
    if (++m->part == MAP_DONE) map_settle(m);
    return m->part == MAP_DONE;
}

unsigned store_map_one_in(const struct store_map *m) {
    return m->stride;
}

unsigned store_map_row(const struct store_map *m, uint32_t id, uint32_t epoch, enum map_kind kind,
                       uint8_t *share, uint64_t *bytes_p) {
    const struct mapped *g =
        id < m->n_index && m->index[id] != 0 ? &m->mapped[m->index[id] - 1] : NULL;
    *bytes_p = 0;
    if (g == NULL || g->epoch != epoch) return 0;
    for (unsigned b = 0; b < m->buckets; b++) {
        uint64_t units = g->cell[kind * m->buckets + b];
        share[b] = (uint8_t)min_u64((units * 255 + g->bucket_units - 1) / g->bucket_units, 255);
        *bytes_p += units * UNIT;
    }
    return m->buckets;
}
