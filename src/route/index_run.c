/* Runs: their memory, their hashes, and who has which of their blocks. */
#include "route/index_run.h"

#include <stdlib.h>
#include <string.h>

/* --- chunks: runs by 64, with a number each --- */

static void chunk_link(struct route_index *ix, uint32_t c) {
    ix->chunk[c].prev = 0;
    ix->chunk[c].next = ix->chunk_partly;
    if (ix->chunk_partly != 0) ix->chunk[ix->chunk_partly].prev = c;
    ix->chunk_partly = c;
}

static void chunk_unlink(struct route_index *ix, uint32_t c) {
    struct route_chunk *k = &ix->chunk[c];
    if (k->next != 0) ix->chunk[k->next].prev = k->prev;
    if (k->prev != 0)
        ix->chunk[k->prev].next = k->next;
    else
        ix->chunk_partly = k->next;
}

static bool chunk_open(struct route_index *ix) {
    uint32_t c = ix->chunk_unused;
    if (c == 0 && ix->chunks + 1 >= ix->chunks_max) return false;
    if (!route_memory_take(&ix->memory, CHUNK_BYTES)) return false;
    if (c == 0 && !page_arena_grow(&ix->runs, (ix->chunks + 2) * CHUNK_BYTES)) {
        route_memory_give(&ix->memory, CHUNK_BYTES);
        return false;
    }
    if (c != 0)
        ix->chunk_unused = ix->chunk[c].next;
    else
        c = ++ix->chunks;
    ix->chunk[c] = (struct route_chunk){.free = UINT64_MAX};
    chunk_link(ix, c);
    ix->runs_free += CHUNK_RUNS;
    return true;
}

static void chunk_close(struct route_index *ix, uint32_t c) {
    chunk_unlink(ix, c);
    ix->runs_free -= CHUNK_RUNS;
    page_arena_discard(&ix->runs, c * CHUNK_BYTES, CHUNK_BYTES);
    route_memory_give(&ix->memory, CHUNK_BYTES);
    ix->chunk[c] = (struct route_chunk){.free = UINT64_MAX, .next = ix->chunk_unused};
    ix->chunk_unused = c;
}

/* A zeroed run; 0: no room. */
static uint32_t chunk_take(struct route_index *ix) {
    if (ix->chunk_partly == 0 && !chunk_open(ix)) return 0;
    uint32_t c = ix->chunk_partly, i = (uint32_t)__builtin_ctzll(ix->chunk[c].free);
    ix->chunk[c].free &= ~(UINT64_C(1) << i);
    ix->runs_free--;
    if (ix->chunk[c].free == 0) chunk_unlink(ix, c);
    *route_run_at(ix, c * CHUNK_RUNS + i) = (struct route_run){0};
    return c * CHUNK_RUNS + i;
}

static void chunk_give(struct route_index *ix, uint32_t id) {
    struct route_chunk *k = &ix->chunk[id / CHUNK_RUNS];
    if (k->free == 0) chunk_link(ix, id / CHUNK_RUNS);
    k->free |= UINT64_C(1) << id % CHUNK_RUNS;
    ix->runs_free++;
    if (k->free == UINT64_MAX) chunk_close(ix, id / CHUNK_RUNS);
}

/* --- hashes --- */

/* A little more than asked for: sizes that allocators have. */
static uint32_t hash_room(uint32_t n) {
    uint32_t step = n <= 16 ? 2 : n <= 32 ? 4 : 8;
    return (n + step - 1) / step * step;
}

static bool hashes_resize(struct route_index *ix, struct route_run *r, uint32_t cap) {
    uint64_t *hash = route_memory_get(&ix->memory, cap * sizeof(*hash));
    if (hash == NULL) return false;
    if (r->hash != NULL) {
        memcpy(hash, r->hash, r->len * sizeof(*hash));
    } else {
        hash[0] = r->first;
        if (r->len > 1) hash[1] = r->last;
    }
    route_memory_put(&ix->memory, r->hash, r->cap * sizeof(*hash));
    r->hash = hash;
    r->cap = (uint8_t)cap;
    return true;
}

bool route_run_append(struct route_index *ix, struct route_run *r, uint64_t hash) {
    TARN_ASSERT(r->len < RUN_BLOCKS);
    if (r->len >= 2 && r->len >= r->cap && !hashes_resize(ix, r, hash_room(r->len + 1u)))
        return false;
    if (r->hash != NULL) r->hash[r->len] = hash;
    r->last = hash;
    r->len++;
    ix->figures.route_blocks++;
    return true;
}

bool route_run_reserve(struct route_index *ix, struct route_run *r, uint32_t len) {
    return len <= 2 || len <= r->cap || hashes_resize(ix, r, hash_room(len));
}

static void run_shorten(struct route_index *ix, struct route_run *r, uint32_t len) {
    if (len == r->len) return;
    ix->figures.route_blocks -= r->len - len;
    r->last = route_run_hash(r, len - 1);
    r->len = (uint8_t)len;
    if (len <= 2) {
        route_memory_put(&ix->memory, r->hash, r->cap * sizeof(*r->hash));
        r->hash = NULL;
        r->cap = 0;
    } else if (len <= r->cap / 2u) {
        hashes_resize(ix, r, hash_room(len)); /* without room for that it stays as it is */
    }
}

/* --- lanes --- */

/* Room for so many; two are in the run itself. */
static uint32_t lanes_room(uint32_t n) {
    uint32_t room = n <= 2 ? 2 : n <= 4 ? 4 : 8;
    while (room < n) room += room / 2;
    return room;
}

static struct route_lane *lanes_of(struct route_run *r) {
    return r->lanes > 2 ? r->out : r->in;
}

static size_t lanes_size(const struct route_run *r) {
    return r->lanes > 2 ? lanes_room(r->lanes) * sizeof(struct route_lane) : 0;
}

uint32_t route_lane_find(const struct route_run *r, uint32_t key) {
    const struct route_lane *lane = route_run_lanes(r);
    uint32_t low = 0, n = r->lanes;
    while (n > 0) {
        uint32_t half = n / 2;
        if (lane[low + half].key < key) {
            low += half + 1;
            n -= half + 1;
        } else {
            n = half;
        }
    }
    return low;
}

/* Lanes are `n` from now on, with a gap or without the one at `at`. */
static bool lanes_resize(struct route_index *ix, struct route_run *r, uint32_t at, uint32_t n) {
    struct route_lane *from = lanes_of(r), *to = from, in[2] = {{0}};
    uint32_t more = n > r->lanes, behind = (more ? r->lanes : n) - at;
    size_t size = lanes_size(r);
    bool moves = lanes_room(n) != lanes_room(r->lanes);
    if (moves) {
        to = n > 2 ? route_memory_get(&ix->memory, lanes_room(n) * sizeof(*to)) : in;
        if (to == NULL) return false;
        memcpy(to, from, at * sizeof(*to));
    }
    memmove(to + at + more, from + at + !more, behind * sizeof(*to));
    if (moves) {
        if (size > 0) route_memory_put(&ix->memory, from, size);
        if (n > 2)
            r->out = to;
        else
            memcpy(r->in, in, sizeof(in));
    }
    r->lanes = (uint16_t)n;
    return true;
}

static void lane_set(struct route_lane *l, uint64_t bits) {
    l->bits[0] = (uint32_t)bits;
    l->bits[1] = (uint32_t)(bits >> 32);
}

bool route_run_mark(struct route_index *ix, struct route_run *r, uint32_t key, uint64_t mask,
                    uint64_t *new_p) {
    uint32_t at = route_lane_find(r, key);
    if (at == r->lanes || lanes_of(r)[at].key != key) {
        if (r->lanes == UINT16_MAX || !lanes_resize(ix, r, at, r->lanes + 1u)) return false;
        lanes_of(r)[at] = (struct route_lane){.key = key};
    }
    struct route_lane *l = &lanes_of(r)[at];
    *new_p = mask & ~lane_bits(l);
    lane_set(l, lane_bits(l) | mask);
    return true;
}

uint64_t route_life_bits(const struct route_run *r, uint32_t life, uint32_t but_key) {
    const struct route_lane *lane = route_run_lanes(r);
    uint64_t bits = 0;
    for (uint32_t i = route_lane_find(r, LANE_KEY(life, 0, 0));
         i < r->lanes && lane[i].key >> 16 == life; i++)
        if (lane[i].key != but_key) bits |= lane_bits(&lane[i]);
    return bits;
}

uint64_t route_lane_bits(const struct route_run *r, uint32_t key) {
    uint32_t at = route_lane_find(r, key);
    const struct route_lane *lane = &route_run_lanes(r)[at];
    return at < r->lanes && lane->key == key ? lane_bits(lane) : 0;
}

/* --- runs --- */

uint32_t route_run_find(const struct route_index *ix, uint64_t first) {
    struct route_spot place;
    uint32_t print = route_print(first), id = route_table_find(&ix->firsts, print, &place);
    while (id != 0 && route_run_at(ix, id)->first != first) id = route_table_next(&place, print);
    return id;
}

struct route_run *route_run_parent(const struct route_index *ix, const struct route_run *r) {
    struct route_run *parent = r->parent != 0 ? route_run_live(ix, r->parent / RUN_BLOCKS) : NULL;
    uint32_t at = r->parent % RUN_BLOCKS;
    bool same = parent != NULL && at < parent->len &&
                (uint16_t)route_run_hash(parent, at) == r->parent_check;
    return same ? parent : NULL;
}

static void run_hang(struct route_index *ix, struct route_run *r, route_pos parent) {
    struct route_run *p = parent != 0 ? route_run_at(ix, parent / RUN_BLOCKS) : NULL;
    r->parent = parent;
    r->parent_check = p != NULL ? (uint16_t)route_run_hash(p, parent % RUN_BLOCKS) : 0;
    if (p == NULL) return;
    if (p->children < UINT8_MAX) p->children++;
    p->fork = (uint8_t)max_u64(p->fork, parent % RUN_BLOCKS);
}

void route_run_adopt(struct route_index *ix, struct route_run *r, route_pos parent) {
    if (r->parent == 0 || parent == 0 || route_run_parent(ix, r) != NULL) return;
    run_hang(ix, r, parent);
    if (ix->loose > 0) ix->loose--;
}

uint32_t route_run_make(struct route_index *ix, uint64_t first, route_pos parent) {
    uint32_t id = chunk_take(ix);
    if (id == 0) return 0;
    if (id > RUN_ID_MAX || !route_table_add(&ix->firsts, &ix->memory, route_print(first), id)) {
        chunk_give(ix, id);
        return 0;
    }
    struct route_run *r = route_run_at(ix, id);
    r->first = r->last = first;
    r->len = 1;
    run_hang(ix, r, parent);
    ix->figures.route_blocks++;
    ix->figures.route_runs++;
    return id;
}

/* It is no child of anybody any more, and its own are loose. A count that was full is never
 * lowered, and says nothing: there are loose ones from then on until the index is empty. That costs
 * new blocks a look in vain. */
static void run_let_go(struct route_index *ix, const struct route_run *r) {
    struct route_run *parent = route_run_parent(ix, r);
    if (parent != NULL && parent->children > 0 && parent->children < UINT8_MAX) {
        if (--parent->children == 0) parent->fork = 0;
    }
    if (parent == NULL && r->parent != 0 && ix->loose > 0) ix->loose--;
    ix->loose += r->children < UINT8_MAX ? r->children : UINT32_MAX;
}

static void run_drop(struct route_index *ix, uint32_t id) {
    struct route_run *r = route_run_at(ix, id);
    struct route_spot place;
    uint32_t print = route_print(r->first), found = route_table_find(&ix->firsts, print, &place);
    while (found != id) found = route_table_next(&place, print);
    route_table_remove(&ix->firsts, &ix->memory, place);
    run_let_go(ix, r);
    route_memory_put(&ix->memory, r->hash, r->cap * sizeof(*r->hash));
    if (r->lanes > 2) route_memory_put(&ix->memory, r->out, lanes_size(r));
    ix->figures.route_blocks -= r->len;
    if (--ix->figures.route_runs == 0) ix->loose = 0;
    chunk_give(ix, id);
}

/* Blocks up to the last one that somebody has, or others hang on. */
static uint32_t run_needed(const struct route_run *r, uint64_t bits) {
    uint32_t len = 64u - (uint32_t)__builtin_clzll(bits);
    return r->children > 0 ? (uint32_t)max_u64(len, r->fork + 1u) : len;
}

void route_run_trim(struct route_index *ix, uint32_t id) {
    struct route_run *r = route_run_at(ix, id);
    const struct route_lane *lane = route_run_lanes(r);
    uint64_t bits = 0, end = UINT64_C(1) << (r->len - 1);
    for (uint32_t i = 0; i < r->lanes && (bits & end) == 0; i++) bits |= lane_bits(&lane[i]);
    if (bits == 0)
        run_drop(ix, id);
    else if ((bits & end) == 0)
        run_shorten(ix, r, run_needed(r, bits));
}

/* Of the lane at `at`; true: that lane is no more. */
static bool lane_unmark(struct route_index *ix, struct route_run *r, uint32_t at, uint64_t mask) {
    struct route_lane *l = &lanes_of(r)[at];
    lane_set(l, lane_bits(l) & ~mask);
    /* an empty lane stays where there is no room for shorter ones; the next one takes it along */
    return lane_bits(l) == 0 && lanes_resize(ix, r, at, r->lanes - 1u);
}

void route_run_unmark(struct route_index *ix, uint32_t id, uint32_t key, uint64_t mask) {
    struct route_run *r = route_run_at(ix, id);
    uint32_t at = route_lane_find(r, key);
    if (at == r->lanes || lanes_of(r)[at].key != key) return;
    lane_unmark(ix, r, at, mask);
    route_run_trim(ix, id);
}

void route_run_unmark_life(struct route_index *ix, uint32_t id, uint32_t life, uint64_t mask) {
    struct route_run *r = route_run_at(ix, id);
    uint32_t at = route_lane_find(r, LANE_KEY(life, 0, 0));
    while (at < r->lanes && lanes_of(r)[at].key >> 16 == life)
        if (!lane_unmark(ix, r, at, mask)) at++;
    route_run_trim(ix, id);
}

uint64_t route_run_memory(const struct route_run *r) {
    size_t lanes = lanes_size(r);
    return (r->hash != NULL ? route_memory_size(r->cap * sizeof(*r->hash)) : 0) +
           (lanes > 0 ? route_memory_size(lanes) : 0);
}

void route_runs_free(struct route_index *ix) {
    for (uint32_t c = 1; c <= ix->chunks; c++) {
        for (uint64_t used = ~ix->chunk[c].free; used != 0; used &= used - 1) {
            struct route_run *r =
                route_run_at(ix, c * CHUNK_RUNS + (uint32_t)__builtin_ctzll(used));
            free(r->hash);
            if (r->lanes > 2) free(r->out);
        }
    }
}
