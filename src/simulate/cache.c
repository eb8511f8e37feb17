#include "simulate/cache.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/buf.h"

void cache_open(struct cache *c, uint32_t capacity) {
    uint32_t slots = 16, bits = 4;
    for (; slots < 2 * (uint64_t)capacity; bits++) slots *= 2;
    *c = (struct cache){.capacity = capacity, .mask = slots - 1, .shift = 64 - bits};
    c->blocks = xcalloc((size_t)capacity + 1, sizeof(*c->blocks));
    c->table = xcalloc(slots, sizeof(*c->table));
    cache_clear(c);
}

void cache_close(struct cache *c) {
    free(c->blocks);
    free(c->table);
    *c = (struct cache){0};
}

void cache_clear(struct cache *c) {
    memset(c->table, 0, ((size_t)c->mask + 1) * sizeof(*c->table));
    c->blocks[0] = (struct cache_block){0};
    for (uint32_t i = 1; i <= c->capacity; i++)
        c->blocks[i] = (struct cache_block){.next = i < c->capacity ? i + 1 : 0};
    c->free = c->capacity > 0 ? 1 : 0;
    c->n = c->private = c->kept = 0;
}

static uint32_t slot_home(const struct cache *c, uint32_t id) {
    return (uint32_t)((id * UINT64_C(0x9e3779b97f4a7c15)) >> c->shift);
}

static uint32_t slot_of(const struct cache *c, uint32_t id) {
    uint32_t at = slot_home(c, id);
    while (c->table[at].block != 0 && c->table[at].id != id) at = (at + 1) & c->mask;
    return at;
}

/* 0: it is not there. */
static uint32_t block_of(const struct cache *c, uint32_t id) {
    return c->table[slot_of(c, id)].block;
}

/* What was moved out of its home by the one that goes moves up (Knuth 6.4, algorithm R). */
static void slot_free(struct cache *c, uint32_t at) {
    uint32_t hole = at;
    for (;;) {
        c->table[hole].block = 0;
        uint32_t home;
        do {
            at = (at + 1) & c->mask;
            if (c->table[at].block == 0) return;
            home = slot_home(c, c->table[at].id);
        } while (((at - home) & c->mask) < ((at - hole) & c->mask));
        c->table[hole] = c->table[at];
        hole = at;
    }
}

static void kept_link(struct cache *c, uint32_t i) {
    struct cache_block *b = &c->blocks[i], *ends = &c->blocks[0];
    b->prev = 0;
    b->next = ends->next;
    c->blocks[ends->next].prev = i;
    ends->next = i;
    c->kept++;
}

static void kept_unlink(struct cache *c, uint32_t i) {
    struct cache_block *b = &c->blocks[i];
    c->blocks[b->prev].next = b->next;
    c->blocks[b->next].prev = b->prev;
    c->kept--;
}

static void block_remove(struct cache *c, uint32_t i) {
    slot_free(c, slot_of(c, c->blocks[i].id));
    c->blocks[i].next = c->free;
    c->free = i;
    c->n--;
}

static void evict_last(struct cache *c) {
    uint32_t i = c->blocks[0].prev;
    kept_unlink(c, i);
    uint32_t next = c->blocks[0].prev; /* evictions come in rows: what the next one needs */
    __builtin_prefetch(&c->table[slot_home(c, c->blocks[next].id)]);
    __builtin_prefetch(&c->blocks[c->blocks[next].prev]);
    block_remove(c, i);
    if (c->evicted != NULL) c->evicted(c->arg, c->blocks[i].id);
}

static uint32_t block_add(struct cache *c, uint32_t id) {
    uint32_t i = c->free;
    TARN_ASSERT(i != 0);
    c->free = c->blocks[i].next;
    c->blocks[i] = (struct cache_block){.id = id};
    c->table[slot_of(c, id)] = (struct cache_slot){id, i};
    c->n++;
    return i;
}

bool cache_has(const struct cache *c, uint32_t id) {
    return block_of(c, id) != 0;
}

void cache_prefetch(const struct cache *c, const uint64_t *ids, uint32_t n) {
    for (uint32_t k = 0; k < n; k++) __builtin_prefetch(&c->table[slot_home(c, (uint32_t)ids[k])]);
}

uint32_t cache_match(const struct cache *c, const uint64_t *ids, uint32_t n) {
    uint32_t k = 0;
    while (k < n && cache_has(c, (uint32_t)ids[k])) k++;
    return k;
}

void cache_hold(struct cache *c, uint32_t id) {
    uint32_t i = block_of(c, id);
    TARN_ASSERT(i != 0);
    if (c->blocks[i].holds++ == 0) kept_unlink(c, i);
}

void cache_drop(struct cache *c, uint32_t id) {
    uint32_t i = block_of(c, id);
    TARN_ASSERT(i != 0 && c->blocks[i].holds > 0);
    if (--c->blocks[i].holds == 0) kept_link(c, i);
}

uint32_t cache_room(const struct cache *c) {
    return c->capacity - c->private - (c->n - c->kept);
}

bool cache_reserve(struct cache *c, uint32_t blocks) {
    if (cache_room(c) < blocks) return false;
    while (c->capacity - c->private - c->n < blocks) evict_last(c);
    c->private += blocks;
    return true;
}

void cache_unreserve(struct cache *c, uint32_t blocks) {
    TARN_ASSERT(c->private >= blocks);
    c->private -= blocks;
}

bool cache_publish(struct cache *c, uint32_t id) {
    TARN_ASSERT(c->private > 0);
    c->private --;
    if (cache_has(c, id)) {
        cache_hold(c, id);
        return false;
    }
    c->blocks[block_add(c, id)].holds = 1;
    return true;
}

bool cache_keep(struct cache *c, uint32_t id) {
    if (c->capacity == 0) return false;
    uint32_t i = block_of(c, id);
    if (i != 0) {
        if (c->blocks[i].holds > 0) return false;
        kept_unlink(c, i);
        kept_link(c, i);
        return false;
    }
    if (cache_room(c) == 0) return false;
    if (c->private + c->n == c->capacity) evict_last(c);
    kept_link(c, block_add(c, id));
    return true;
}
