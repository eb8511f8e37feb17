#include "store/space.h"

#include <stdlib.h>
#include <string.h>
#include "base/assert.h"

#define RESERVE      ((size_t)48 << 30) /* two billion blocks */
#define ATTACH_AHEAD 8u                 /* blocks: they lie anywhere in the arena */

/* --- block numbers --- */

static block_id id_new(struct space *sp) {
    block_id id = sp->free_ids;
    if (id) {
        sp->free_ids = block_get(sp, id)->next;
        /* the next to be handed out lies anywhere */
        __builtin_prefetch(block_get(sp, sp->free_ids), 1);
    } else {
        if (!page_arena_grow(&sp->arena, ((size_t)sp->blocks + 1) * sizeof(struct block))) return 0;
        id = sp->blocks++;
    }
    sp->live++;
    return id;
}

static void id_free(struct space *sp, block_id id, block_id heir) {
    for (unsigned i = 0; i < sp->n_cursors; i++)
        if (*sp->cursors[i] == id) *sp->cursors[i] = heir;
    *block_get(sp, id) = (struct block){.next = sp->free_ids};
    sp->free_ids = id;
    sp->live--;
}

static void block_set_where(struct block *b, uint64_t offset, uint32_t segment,
                            enum block_state state, unsigned domain) {
    b->where = offset | (uint64_t)segment << BLOCK_OFFSET_BITS | (uint64_t)state << 54 |
               (uint64_t)domain << 56;
}

static void block_set_state(struct block *b, enum block_state state) {
    block_set_where(b, block_offset(b), block_segment(b), state, 0);
}

static uint64_t end_of(const struct space *sp, const struct block *b) {
    return b->next ? block_offset(block_get(sp, b->next)) : sp->segments[block_segment(b)]->units;
}

/* Lengths of more than 2^32 - 1 units (256 GiB) are cut: a free run may be longer than a block
 * field can tell, and then the rest is simply not used by this allocation. */
static uint32_t len_of(uint64_t units) {
    return (uint32_t)min_u64(units, UINT32_MAX - PAGE_UNITS);
}

uint32_t block_len(const struct space *sp, block_id id) {
    const struct block *b = block_get(sp, id);
    if (block_state(b) != BLOCK_FREE) return b->len;
    return len_of(end_of(sp, b) - block_offset(b));
}

void block_assign(struct space *sp, block_id id, enum block_state state, uint32_t owner,
                  unsigned domain) {
    struct block *b = block_get(sp, id);
    TARN_ASSERT(block_state(b) != BLOCK_FREE && state != BLOCK_FREE);
    uint64_t *objects = &sp->segments[block_segment(b)]->blocks_in_objects;
    *objects += (state == BLOCK_OBJECT) - (uint64_t)(block_state(b) == BLOCK_OBJECT);
    block_set_where(b, block_offset(b), block_segment(b), state, domain);
    b->owner = owner;
}

uint64_t run_usable(uint64_t offset, uint64_t len, uint32_t align, uint64_t *start_p) {
    uint64_t part = align - 1, start = (offset + part) & ~part, end = (offset + len) & ~part;
    *start_p = start;
    return end > start ? end - start : 0;
}

/* --- segments --- */

static void segment_open(struct space *sp, struct segment *seg) {
    sp->ops->open(sp, seg);
    sp->segments_bytes += sp->ops->memory(seg);
}

static void segment_close(struct space *sp, struct segment *seg) {
    sp->segments_bytes -= sp->ops->memory(seg);
    sp->ops->close(sp, seg);
}

bool space_init(struct space *sp, const char *allocator) {
    memset(sp, 0, sizeof(*sp));
    if (strcmp(allocator, space_offset.name) == 0)
        sp->ops = &space_offset;
    else if (strcmp(allocator, space_slab.name) == 0)
        sp->ops = &space_slab;
    else
        return false;
    sp->blocks = 1;
    return page_arena_init(&sp->arena, RESERVE, PAGES_HUGE | PAGES_AHEAD) &&
           page_arena_grow(&sp->arena, sizeof(struct block));
}

void space_free_all(struct space *sp) {
    for (struct segment *seg, *next = space_next(sp, NULL); (seg = next);) {
        next = space_next(sp, seg);
        if (seg->tier == STORE_TIER_MEMORY) segment_close(sp, seg);
        free(seg);
    }
    free(sp->segments);
    htab_free(&sp->names);
    page_arena_free(&sp->arena);
    memset(sp, 0, sizeof(*sp));
}

static block_id split_at(struct space *sp, block_id id, uint64_t offset);

/* A free run enters the allocator's bins, in pieces where the allocator wants borders. */
static void free_insert(struct space *sp, struct segment *seg, block_id id) {
    for (;;) {
        struct block *b = block_get(sp, id);
        block_set_state(b, BLOCK_FREE);
        uint64_t cut = sp->ops->cut(sp, seg, block_offset(b), end_of(sp, b) - block_offset(b));
        block_id right = cut ? split_at(sp, id, cut) : 0;
        seg->free_runs++;
        sp->changes++;
        sp->ops->insert(sp, seg, id);
        if (!right) return;
        id = right;
    }
}

static void free_remove(struct space *sp, struct segment *seg, block_id id) {
    seg->free_runs--;
    sp->changes++;
    sp->ops->remove(sp, seg, id);
}

static uint64_t name_hash(struct span name) {
    return hash_bytes(name.data, name.len);
}

static bool has_name(const struct htab_node *node, const void *key) {
    const struct segment *seg = CONTAINER_OF(node, const struct segment, by_name);
    return span_eq(span_str(seg->name), *(const struct span *)key);
}

struct segment *space_segment_named(const struct space *sp, struct span name) {
    struct htab_node *node = htab_find(&sp->names, name_hash(name), has_name, &name);
    return node ? CONTAINER_OF(node, struct segment, by_name) : NULL;
}

/* The sums of those that are UP, with it or without. */
static void count_up(struct space *sp, const struct segment *seg, int sign) {
    if (!segment_counts_up(seg)) return;
    sp->up.units += (uint64_t)sign * seg->units;
    sp->up.free += (uint64_t)sign * seg->free_units;
    sp->up.evictable += (uint64_t)sign * seg->evictable_units;
}

void space_segment_set_state(struct space *sp, struct segment *seg,
                             enum store_segment_state state) {
    bool was_leaving = seg->state == SEGMENT_LEAVING;
    count_up(sp, seg, -1);
    seg->state = state;
    count_up(sp, seg, 1);
    sp->changes++;
    if (was_leaving == (state == SEGMENT_LEAVING)) return;
    if (was_leaving)
        htab_insert(&sp->names, &seg->by_name, name_hash(span_str(seg->name)));
    else
        htab_remove(&sp->names, &seg->by_name);
}

uint32_t space_segment_free_id(const struct space *sp) {
    uint32_t i = 0;
    while (i < sp->n_segments && sp->segments[i]) i++;
    return i;
}

static void free_units_set(struct space *sp, struct segment *seg, uint64_t units) {
    sp->free_units += units - seg->free_units;
    if (segment_counts_up(seg)) sp->up.free += units - seg->free_units;
    seg->free_units = units;
}

/* One block, all of it free. */
static bool open_blocks(struct space *sp, struct segment *seg) {
    block_id first = id_new(sp);
    if (!first) return false;
    *block_get(sp, first) = (struct block){0};
    block_set_where(block_get(sp, first), 0, seg->id, BLOCK_FREE, 0);
    seg->first = first;
    free_units_set(sp, seg, seg->units);
    segment_open(sp, seg);
    free_insert(sp, seg, first);
    return true;
}

tarn_status space_segment_add(struct space *sp, const struct store_segment_config *config,
                              uint32_t id) {
    TARN_ASSERT(!space_segment(sp, id));
    uint64_t units = config->size / 4096 * PAGE_UNITS;
    bool memory = config->tier == STORE_TIER_MEMORY;
    if (units == 0 || (memory && units >> BLOCK_OFFSET_BITS)) return TARN_EINVAL;
    if (strlen(config->name) >= sizeof(((struct segment *)0)->name) || !*config->name)
        return TARN_EINVAL;
    if (id >= STORE_SEGMENTS_MAX) return TARN_ELIMIT;
    if (id >= sp->n_segments) {
        sp->segments = xrealloc(sp->segments, ((size_t)id + 1) * sizeof(struct segment *));
        while (id >= sp->n_segments) sp->segments[sp->n_segments++] = NULL;
    }
    struct segment *seg = xcalloc(1, sizeof(*seg));
    seg->disk = seg->awaits_at = STORE_SEGMENT_ANY;
    TAILQ_INIT(&seg->chains);
    seg->id = id;
    seg->epoch = config->epoch;
    seg->host = config->host;
    seg->tier = config->tier;
    seg->units = units;
    memcpy(seg->name, config->name, strlen(config->name));
    sp->segments[id] = seg;
    if (memory && sp->detached) {
        free_units_set(sp, seg, seg->units);
        segment_open(sp, seg);
    } else if (memory && !open_blocks(sp, seg)) {
        sp->segments[id] = NULL;
        free(seg);
        return TARN_ENOMEM;
    }
    sp->segments_bytes += sizeof(*seg);
    if (memory) sp->up.units += units; /* what is free is counted already */
    htab_insert(&sp->names, &seg->by_name, name_hash(span_str(seg->name)));
    return TARN_OK;
}

block_id space_detached(struct space *sp, uint32_t segment, uint64_t offset, uint32_t len) {
    TARN_ASSERT(sp->detached);
    block_id id = id_new(sp);
    if (!id) return 0;
    struct block *b = block_get(sp, id);
    *b = (struct block){.len = len};
    block_set_where(b, offset, segment, BLOCK_HELD, 0);
    struct segment *seg = sp->segments[segment];
    free_units_set(sp, seg, seg->free_units - len);
    return id;
}

void space_segment_remove(struct space *sp, uint32_t id) {
    struct segment *seg = sp->segments[id];
    space_segment_set_state(sp, seg, SEGMENT_LEAVING); /* its name is free, and no sum has it */
    if (seg->tier == STORE_TIER_MEMORY) {
        TARN_ASSERT(seg->free_units == seg->units);
        free_units_set(sp, seg, 0);
        for (block_id b = seg->first, next; b; b = next) {
            next = block_get(sp, b)->next;
            free_remove(sp, seg, b); /* detached: there is none */
            id_free(sp, b, 0);
        }
        segment_close(sp, seg);
    }
    sp->segments_bytes -= sizeof(*seg);
    sp->segments[id] = NULL;
    free(seg);
}

/* --- splitting and merging --- */

/* Cuts block id at offset (strictly inside); returns the right part. Neither is in a bin. The right
 * part's len is set for used blocks. */
static block_id split_at(struct space *sp, block_id id, uint64_t offset) {
    block_id right = id_new(sp);
    if (!right) return 0;
    struct block *b = block_get(sp, id), *r = block_get(sp, right);
    *r = *b;
    block_set_where(r, offset, block_segment(b), block_state(b), block_domain(b));
    if (block_state(b) != BLOCK_FREE) {
        r->len = (uint32_t)(block_offset(b) + b->len - offset);
        b->len -= r->len;
    }
    r->prev = id;
    r->next = b->next;
    if (b->next) block_get(sp, b->next)->prev = right;
    b->next = right;
    return right;
}

/* The right neighbour becomes part of id; it is in no bin. */
static void swallow_next(struct space *sp, block_id id) {
    struct block *b = block_get(sp, id);
    block_id gone = b->next;
    b->next = block_get(sp, gone)->next;
    if (b->next) block_get(sp, b->next)->prev = id;
    id_free(sp, gone, id);
}

/* Joins free neighbours of the free block id (which is in no bin) as far as the allocator lets
 * them. */
static block_id merge_around(struct space *sp, struct segment *seg, block_id id) {
    for (block_id n; (n = block_get(sp, id)->next) != 0 &&
                     block_state(block_get(sp, n)) == BLOCK_FREE &&
                     sp->ops->may_merge(sp, seg, id, n);) {
        free_remove(sp, seg, n);
        swallow_next(sp, id);
    }
    for (block_id p; (p = block_get(sp, id)->prev) != 0 &&
                     block_state(block_get(sp, p)) == BLOCK_FREE &&
                     sp->ops->may_merge(sp, seg, p, id);) {
        free_remove(sp, seg, p);
        swallow_next(sp, p);
        id = p;
    }
    return id;
}

/* The front of a free run: it begins later, and that is all. Most values of a pool that is not full
 * are carved like this. 0: no memory. */
static block_id carve_front(struct space *sp, struct segment *seg, block_id id, uint32_t len) {
    block_id front = id_new(sp);
    if (!front) return 0;
    struct block *b = block_get(sp, id), *f = block_get(sp, front);
    uint64_t offset = block_offset(b);
    *f = (struct block){.prev = b->prev, .next = id, .len = len};
    block_set_where(f, offset, seg->id, BLOCK_HELD, 0);
    block_set_where(b, offset + len, seg->id, BLOCK_FREE, 0);
    if (b->prev)
        block_get(sp, b->prev)->next = front;
    else
        seg->first = front;
    b->prev = front;
    sp->changes++;
    free_units_set(sp, seg, seg->free_units - len);
    return front;
}

block_id space_carve(struct space *sp, block_id id, uint64_t start, uint32_t len) {
    struct block *b = block_get(sp, id);
    struct segment *seg = sp->segments[block_segment(b)];
    uint64_t offset = block_offset(b), end = end_of(sp, b);
    TARN_ASSERT(block_state(b) == BLOCK_FREE && start >= offset && start + len <= end && len > 0);
    /* walks that are at the run would miss what comes before it */
    if (start == offset && sp->n_cursors == 0 && sp->ops->stays &&
        sp->ops->stays(end - offset, len))
        return carve_front(sp, seg, id, len);
    free_remove(sp, seg, id);
    block_id left = 0, right = 0;
    if (start > offset) {
        block_id mid = split_at(sp, id, start);
        if (!mid) goto no_memory;
        left = id;
        id = mid;
    }
    if (start + len < end && !(right = split_at(sp, id, start + len))) goto no_memory;
    b = block_get(sp, id);
    block_set_state(b, BLOCK_HELD);
    b->len = len;
    b->owner = 0;
    free_units_set(sp, seg, seg->free_units - len);
    sp->ops->used(sp, seg, start, len);
    if (left) free_insert(sp, seg, left);
    if (right) free_insert(sp, seg, right);
    return id;
no_memory:
    if (left) {
        swallow_next(sp, left);
        id = left;
    }
    free_insert(sp, seg, id);
    return 0;
}

/* Right beside one free run, which stays in its bin: it begins earlier, or ends later, and that is
 * all. Most of what goes lies beside what went before. false: it is not like that. */
static bool grow_beside(struct space *sp, struct segment *seg, block_id id) {
    struct block *b = block_get(sp, id), *p = block_get(sp, b->prev), *n = block_get(sp, b->next);
    bool behind = b->prev && block_state(p) == BLOCK_FREE,
         before = b->next && block_state(n) == BLOCK_FREE;
    if (behind == before || !sp->ops->stays) return false;
    uint64_t units = behind ? end_of(sp, b) - block_offset(p) : end_of(sp, n) - block_offset(b);
    if (!sp->ops->stays(units, b->len)) return false;
    block_id run = behind ? b->prev : b->next;
    if (block_get(sp, run)->len != 0) return false; /* not the first of its bin, which it becomes */
    sp->changes++;
    if (behind) {
        swallow_next(sp, run);
        return true;
    }
    block_set_where(n, block_offset(b), seg->id, BLOCK_FREE, 0);
    n->prev = b->prev;
    if (b->prev)
        p->next = run;
    else
        seg->first = run;
    id_free(sp, id, run);
    return true;
}

void space_release(struct space *sp, block_id id) {
    struct block *b = block_get(sp, id);
    struct segment *seg = sp->segments[block_segment(b)];
    TARN_ASSERT(block_state(b) != BLOCK_FREE);
    uint64_t offset = block_offset(b);
    uint32_t len = b->len;
    free_units_set(sp, seg, seg->free_units + len);
    seg->blocks_in_objects -= block_state(b) == BLOCK_OBJECT;
    if (sp->detached) {
        id_free(sp, id, 0);
        return;
    }
    if (grow_beside(sp, seg, id)) return;
    block_set_state(b, BLOCK_FREE);
    id = merge_around(sp, seg, id);
    sp->ops->unused(sp, seg, offset, len);
    id = merge_around(sp, seg, id);
    free_insert(sp, seg, id);
}

void space_absorb(struct space *sp, block_id held) {
    struct block *b = block_get(sp, held);
    struct segment *seg = sp->segments[block_segment(b)];
    block_id n = b->next;
    TARN_ASSERT(n && block_state(b) == BLOCK_HELD && block_state(block_get(sp, n)) == BLOCK_FREE);
    uint64_t offset = block_offset(block_get(sp, n));
    uint32_t len = block_len(sp, n);
    free_remove(sp, seg, n);
    swallow_next(sp, held);
    block_get(sp, held)->len += len;
    free_units_set(sp, seg, seg->free_units - len);
    sp->ops->used(sp, seg, offset, len);
}

block_id space_trim(struct space *sp, block_id held, uint64_t start, uint32_t len) {
    struct block *b = block_get(sp, held);
    uint64_t offset = block_offset(b), end = offset + b->len;
    TARN_ASSERT(block_state(b) == BLOCK_HELD && start >= offset && start + len <= end);
    if (start + len < end) {
        block_id right = split_at(sp, held, start + len);
        /* else it stays in the block: nothing is lost but the rest */
        if (right) space_release(sp, right);
    }
    if (start > offset) {
        block_id mid = split_at(sp, held, start);
        if (!mid) return held;
        space_release(sp, held);
        held = mid;
    }
    return held;
}

/* --- detached blocks find their neighbours --- */

/* A free block in front of next (0: at the end), behind prev (0: at the start). Not in a bin
 * yet. */
static block_id gap_new(struct space *sp, uint32_t segment, uint64_t offset, block_id prev) {
    block_id id = id_new(sp);
    TARN_ASSERT(id); /* the arena is reserved for two billion */
    *block_get(sp, id) = (struct block){.prev = prev};
    block_set_where(block_get(sp, id), offset, segment, BLOCK_FREE, 0);
    if (prev) block_get(sp, prev)->next = id;
    return id;
}

static int by_offset(const void *a, const void *b) {
    const struct used_block *x = a, *y = b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* One after the other as they lie in the arena, not by way of those who own them: these are
 * anywhere. Numbers that nobody has are free blocks of segment 0. */
struct used_blocks *space_used(const struct space *sp) {
    TARN_ASSERT(sp->detached);
    struct used_blocks *used = xcalloc(sp->n_segments + 1, sizeof(*used));
    for (block_id id = 1; id < sp->blocks; id++) {
        const struct block *b = block_get(sp, id);
        used[block_segment(b)].n += block_state(b) != BLOCK_FREE;
    }
    for (uint32_t i = 0; i < sp->n_segments; i++) {
        used[i].block = xmalloc((used[i].n + 1) * sizeof(struct used_block));
        used[i].n = 0;
    }
    for (block_id id = 1; id < sp->blocks; id++) {
        const struct block *b = block_get(sp, id);
        if (block_state(b) == BLOCK_FREE) continue;
        struct used_blocks *u = &used[block_segment(b)];
        u->block[u->n++] = (struct used_block){block_offset(b), b->len, id};
    }
    for (uint32_t i = 0; i < sp->n_segments; i++)
        qsort(used[i].block, used[i].n, sizeof(struct used_block), by_offset);
    return used;
}

void space_used_free(const struct space *sp, struct used_blocks **used_p) {
    for (uint32_t i = 0; i < sp->n_segments; i++) free((*used_p)[i].block);
    free(*used_p);
    *used_p = NULL;
}

void space_attach(struct space *sp, uint32_t segment, const struct used_blocks *blocks) {
    struct segment *seg = sp->segments[segment];
    uint64_t at = 0, used = 0;
    block_id prev = 0;
    TARN_ASSERT(!seg->first);
    for (size_t i = 0; i <= blocks->n; i++) {
        const struct used_block *u = &blocks->block[i];
        uint64_t start = i < blocks->n ? u->offset : seg->units;
        TARN_ASSERT(start >= at);
        if (start > at) {
            prev = gap_new(sp, segment, at, prev);
            if (!seg->first) seg->first = prev;
        }
        if (i == blocks->n) break;
        if (i + ATTACH_AHEAD < blocks->n) __builtin_prefetch(block_get(sp, u[ATTACH_AHEAD].id), 1);
        struct block *b = block_get(sp, u->id);
        b->prev = prev;
        b->next = 0;
        if (prev) block_get(sp, prev)->next = u->id;
        if (!seg->first) seg->first = u->id;
        sp->ops->used(sp, seg, start, u->len);
        prev = u->id;
        at = start + u->len;
        used += u->len;
    }
    TARN_ASSERT(seg->free_units == seg->units - used);
    for (block_id id = seg->first, next; id; id = next) {
        next = block_get(sp, id)->next;
        if (block_state(block_get(sp, id)) == BLOCK_FREE) free_insert(sp, seg, id);
    }
}

static bool used_beyond(const struct space *sp, const struct segment *seg, uint64_t units) {
    for (block_id id = 1; sp->detached && id < sp->blocks; id++) {
        const struct block *b = block_get(sp, id);
        if (block_state(b) != BLOCK_FREE && block_segment(b) == seg->id &&
            block_offset(b) + b->len > units)
            return true;
    }
    for (block_id id = seg->first; id; id = block_get(sp, id)->next) {
        const struct block *b = block_get(sp, id);
        if (block_state(b) != BLOCK_FREE && block_offset(b) + b->len > units) return true;
    }
    return false;
}

/* The allocator learns of all that is used anew. */
bool space_segment_resize(struct space *sp, uint32_t id, uint64_t units) {
    struct segment *seg = sp->segments[id];
    TARN_ASSERT(seg->tier == STORE_TIER_MEMORY && units > 0);
    if (units >> BLOCK_OFFSET_BITS || (units < seg->units && used_beyond(sp, seg, units)))
        return false;
    struct used_blocks used = {.block = NULL};
    size_t cap = 0;
    for (block_id b = seg->first, next; b; b = next) {
        struct block *k = block_get(sp, b);
        next = k->next;
        if (block_state(k) == BLOCK_FREE) {
            id_free(sp, b, next);
            continue;
        }
        ARRAY_GROW(used.block, used.n, cap);
        used.block[used.n++] = (struct used_block){block_offset(k), k->len, b};
    }
    count_up(sp, seg, -1);
    sp->free_units += units - seg->units;
    seg->free_units += units - seg->units;
    seg->units = units;
    count_up(sp, seg, 1);
    sp->changes++;
    seg->first = 0;
    seg->free_runs = 0;
    segment_close(sp, seg);
    segment_open(sp, seg);
    if (!sp->detached) space_attach(sp, id, &used);
    free(used.block);
    return true;
}

void space_detach(struct space *sp) {
    TARN_ASSERT(!sp->detached);
    for (uint32_t i = 0; i < sp->n_segments; i++) {
        struct segment *seg = sp->segments[i];
        if (!seg || seg->tier != STORE_TIER_MEMORY) continue;
        for (block_id id = seg->first, next; id; id = next) {
            struct block *b = block_get(sp, id);
            next = b->next;
            b->prev = b->next = 0;
            if (block_state(b) == BLOCK_FREE) id_free(sp, id, 0);
        }
        seg->first = 0;
        seg->free_runs = 0;
        segment_close(sp, seg); /* what it knows of free space */
        segment_open(sp, seg);
    }
    sp->detached = true;
}

/* --- allocation --- */

unsigned space_alloc(struct space *sp, uint32_t segment, uint64_t len, uint32_t align,
                     unsigned most, block_id *out) {
    struct segment *seg = sp->segments[segment];
    unsigned n = 0;
    if (len > seg->free_units) return 0;
    while (len > 0 && n < most) {
        block_id id = len <= UINT32_MAX ? sp->ops->find(sp, seg, (uint32_t)len, align) : 0;
        if (!id && most > 1) id = sp->ops->largest(sp, seg);
        if (!id) break;
        uint64_t start,
            usable = run_usable(block_offset(block_get(sp, id)), block_len(sp, id), align, &start);
        if (usable == 0) break;
        uint32_t take = (uint32_t)min_u64(usable, len);
        if (!(out[n] = space_carve(sp, id, start, take))) break;
        n++;
        len -= take;
    }
    if (len == 0) return n;
    while (n > 0) space_release(sp, out[--n]);
    return 0;
}

void space_cursor_add(struct space *sp, block_id *cursor) {
    TARN_ASSERT(sp->n_cursors < ARRAY_LEN(sp->cursors));
    sp->cursors[sp->n_cursors++] = cursor;
}

void space_cursor_remove(struct space *sp, block_id *cursor) {
    for (unsigned i = 0; i < sp->n_cursors; i++)
        if (sp->cursors[i] == cursor) {
            sp->cursors[i] = sp->cursors[--sp->n_cursors];
            return;
        }
}

uint64_t space_largest(struct space *sp, uint32_t segment) {
    block_id id = sp->ops->largest(sp, sp->segments[segment]);
    return id ? block_len(sp, id) : 0;
}

uint64_t space_spare(const struct space *sp) {
    return (sp->blocks - sp->live) * sizeof(struct block);
}

uint64_t space_memory(const struct space *sp) {
    return sp->live * sizeof(struct block) + htab_memory(&sp->names) + sp->segments_bytes;
}

void space_check(const struct space *sp) {
    uint64_t live = 0, all_free = 0, up_units = 0, up_free = 0, up_evictable = 0;
    for (uint32_t i = 0; i < sp->n_segments; i++) {
        const struct segment *seg = sp->segments[i];
        if (!seg || seg->tier != STORE_TIER_MEMORY) continue;
        all_free += seg->free_units;
        if (seg->state == SEGMENT_UP) {
            up_units += seg->units;
            up_free += seg->free_units;
            up_evictable += seg->evictable_units;
        }
        uint64_t at = 0, free_units = 0, runs = 0;
        block_id prev = 0;
        for (block_id id = seg->first; id; id = block_get(sp, id)->next) {
            const struct block *b = block_get(sp, id);
            TARN_ASSERT(block_offset(b) == at && b->prev == prev && block_segment(b) == i);
            uint64_t len = end_of(sp, b) - at;
            TARN_ASSERT(len > 0);
            if (block_state(b) == BLOCK_FREE) {
                free_units += len;
                runs++;
            } else {
                TARN_ASSERT(b->len == len);
            }
            at += len;
            prev = id;
            live++;
        }
        TARN_ASSERT(at == seg->units && free_units == seg->free_units && runs == seg->free_runs);
    }
    TARN_ASSERT(live == sp->live && all_free == sp->free_units);
    TARN_ASSERT(up_units == sp->up.units && up_free == sp->up.free &&
                up_evictable == sp->up.evictable);
}

/* --- bins --- */

/* Bin of a length, rounded down: a bin holds lengths from its own bound up to the next one's. */
static unsigned bin_of(uint32_t len) {
    if (len < 16) return len;
    unsigned log = 31 - (unsigned)__builtin_clz(len);
    return 16 + (log - 4) * 8 + (len >> (log - 3) & 7);
}

void bins_insert(struct space *sp, struct bins *b, block_id id) {
    unsigned bin = bin_of(block_len(sp, id));
    struct block *blk = block_get(sp, id);
    blk->len = 0; /* previous in the bin */
    blk->owner = b->head[bin];
    if (b->head[bin]) block_get(sp, b->head[bin])->len = id;
    b->head[bin] = id;
    b->map[bin / 64] |= UINT64_C(1) << (bin % 64);
}

void bins_remove(struct space *sp, struct bins *b, block_id id) {
    struct block *blk = block_get(sp, id);
    if (blk->owner) block_get(sp, blk->owner)->len = blk->len;
    if (blk->len) {
        block_get(sp, blk->len)->owner = blk->owner;
        return;
    }
    unsigned bin = bin_of(block_len(sp, id));
    TARN_ASSERT(b->head[bin] == id);
    b->head[bin] = blk->owner;
    if (!b->head[bin]) b->map[bin / 64] &= ~(UINT64_C(1) << (bin % 64));
}

static unsigned next_bin(const struct bins *b, unsigned from) {
    for (unsigned w = from / 64; w < ARRAY_LEN(b->map); w++) {
        uint64_t bits = b->map[w];
        if (w == from / 64) bits &= ~UINT64_C(0) << (from % 64);
        if (bits) return w * 64 + (unsigned)__builtin_ctzll(bits);
    }
    return SPACE_BINS;
}

bool bins_stays(uint64_t units, uint32_t len) {
    return units > len && bin_of(len_of(units)) == bin_of(len_of(units - len));
}

block_id bins_find(struct space *sp, const struct bins *b, uint32_t len, uint32_t align) {
    /* Its own bin holds shorter runs too: look at a few. Every run of the later bins is long
     * enough; from len + align on whatever its start. */
    unsigned tries = 16;
    for (unsigned bin = next_bin(b, bin_of(len)); bin < SPACE_BINS; bin = next_bin(b, bin + 1)) {
        for (block_id id = b->head[bin]; id; id = block_get(sp, id)->owner) {
            uint64_t start;
            if (run_usable(block_offset(block_get(sp, id)), block_len(sp, id), align, &start) >=
                len)
                return id;
            if (tries == 0) break;
            tries--;
        }
    }
    return 0;
}

block_id bins_largest(struct space *sp, const struct bins *b) {
    for (unsigned w = ARRAY_LEN(b->map); w-- > 0;) {
        if (!b->map[w]) continue;
        unsigned bin = w * 64 + 63 - (unsigned)__builtin_clzll(b->map[w]), looked = 0;
        block_id best = 0;
        for (block_id id = b->head[bin]; id && looked < 64; id = block_get(sp, id)->owner, looked++)
            if (!best || block_len(sp, id) > block_len(sp, best)) best = id;
        return best;
    }
    return 0;
}
