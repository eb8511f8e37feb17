/* The space of segments as blocks that tile it: every byte belongs to exactly one block, used or
 * free, and each block knows its neighbours in address order. So freeing merges without a search,
 * and making room can look at what lies beside a victim. Lengths and offsets here are in units of
 * 64 bytes.
 *
 * Where a new block goes is the allocator's choice (struct space_ops): `offset` keeps free runs in
 * bins by size (two-level segregated fit, Masmano et al. 2004); `slab` keeps runs of one size
 * together in pages. */
#ifndef TARN_STORE_SPACE_H
#define TARN_STORE_SPACE_H

#include <stdbool.h>
#include <stdint.h>
#include "base/assert.h"
#include "base/htab.h"
#include "base/queue.h"
#include "base/page_arena.h"
#include "store/store.h"

#define UNIT       64u /* bytes */
#define PAGE_UNITS 64u /* 4 KiB */

typedef uint32_t block_id; /* 0: none */

enum block_state {
    BLOCK_FREE,
    BLOCK_OBJECT, /* owner: the object; may be evicted when nothing else speaks against it */
    BLOCK_HELD,   /* of a put, in quarantine, or reserved: stays */
};

/* where: offset 38 bits (16 TiB), segment 16, state 2, quota domain 8. len: units; a free block's
 * length follows from its neighbours, and the field links it in its bin, as owner does. */
struct block {
    uint64_t where;
    uint32_t len;
    block_id prev, next; /* neighbours by address */
    uint32_t owner;
};
_Static_assert(sizeof(struct block) == 24, "one per object");

#define SPACE_BINS 320u

struct segment {
    uint32_t id, epoch, host;
    enum store_tier tier;
    enum store_segment_state state; /* space_segment_set_state changes it */
    struct htab_node by_name;       /* unless it is LEAVING */
    char name[64];
    uint64_t units; /* size; far segments have no blocks */
    uint64_t free_units;
    uint64_t evictable_units;  /* of objects that nothing protects */
    uint64_t quarantine_units; /* of objects that are gone, under leases and holds */
    uint64_t ghost_units;      /* of what went under leases that these books do not know */
    uint64_t free_runs;
    uint64_t blocks_in_objects;
    block_id first;
    void *own; /* the allocator's */
    /* Memory: the far segment that its objects are copied to, STORE_SEGMENT_ANY: none; the last one
     * that was; what waits for that and may not be evicted before (await.c). */
    uint32_t disk, awaits_at;
    uint64_t awaiting_units;
    /* Far: what waits for a copy here, oldest first, and before which there is nothing to be taken;
     * NULL: nothing at all. */
    TAILQ_HEAD(chain_list, chain) chains;
    struct chain *chains_next;
    uint64_t far_replicas, far_bytes;
    /* LEAVING: how far its objects have been removed */
    bool swept;
    struct store_walk *sweep;
};

/* What a segment's space is, for figures. In books that follow, ghosts lie under one another and
 * under objects, as the leader uses space again before they are over here: free_units is what a
 * sum of all lengths leaves, and may be below 0. */
struct segment_share {
    uint64_t free, ghosts; /* units; ghosts: what no object has taken since */
};
static inline struct segment_share segment_share(const struct segment *seg) {
    uint64_t others = min_u64(seg->units - seg->free_units - seg->ghost_units, seg->units);
    uint64_t ghosts = min_u64(seg->ghost_units, seg->units - others);
    return (struct segment_share){.free = seg->units - others - ghosts, .ghosts = ghosts};
}

struct space;

struct space_ops {
    const char *name;
    void (*open)(struct space *sp, struct segment *seg);
    void (*close)(struct space *sp, struct segment *seg);
    /* A free block that can hold len units from an aligned start, preferring a good fit; 0: none
     * found quickly. */
    block_id (*find)(struct space *sp, struct segment *seg, uint32_t len, uint32_t align);
    /* The largest free block, or one near it, for values in several extents; 0: no free block at
     * all. */
    block_id (*largest)(struct space *sp, struct segment *seg);
    void (*insert)(struct space *sp, struct segment *seg, block_id b); /* b became free */
    void (*remove)(struct space *sp, struct segment *seg,
                   block_id b); /* b is about to be used, split or merged */
    /* May a free block of so many units, the first len of which are about to be used, or len of
     * which were used until now, stay where it is? For those that may, used and
     * unused need not be called. NULL: never, or it wants to know of each. */
    bool (*stays)(uint64_t units, uint32_t len);
    bool (*may_merge)(struct space *sp, struct segment *seg, block_id a,
                      block_id b); /* neighbours, both free */
    /* Where a free run must be cut into two, strictly inside it; 0: nowhere. */
    uint64_t (*cut)(struct space *sp, struct segment *seg, uint64_t offset, uint64_t len);
    /* A used block came (before what is left beside it is inserted) or went (after it merged with
     * what may_merge allowed while it was counted). */
    void (*used)(struct space *sp, struct segment *seg, uint64_t offset, uint32_t len);
    void (*unused)(struct space *sp, struct segment *seg, uint64_t offset, uint32_t len);
    uint64_t (*memory)(const struct segment *seg);
};

struct space {
    const struct space_ops *ops;
    struct page_arena arena;
    uint32_t blocks; /* ever used, with the unused block 0 */
    block_id free_ids;
    uint64_t live;
    struct segment **segments; /* by id; NULL: gone */
    uint32_t n_segments;       /* ids in use are below */
    struct htab names;         /* of those that are not LEAVING */
    uint64_t free_units;       /* of all of them; as theirs, perhaps below 0 in books that follow */
    struct {
        uint64_t units, free, evictable;
    } up;                         /* sums of those in memory that are UP */
    uint64_t segments_bytes;      /* that they take here */
    uint64_t changes;             /* grows whenever a free run or the state of a segment changes */
    uint64_t largest, largest_at; /* free run of those that are UP, when changes was that */
    block_id *cursors[64]; /* block numbers that outside walks hold; kept valid across merges */
    unsigned n_cursors;
    /* blocks know nothing of their neighbours, and no free space is known (follow.c) */
    bool detached;
};

bool space_init(struct space *sp, const char *allocator); /* false: unknown name or no memory */
void space_free_all(struct space *sp);
/* Under that number, which nobody has. While detached its memory has no blocks. */
tarn_status space_segment_add(struct space *sp, const struct store_segment_config *config,
                              uint32_t id);
uint32_t space_segment_free_id(const struct space *sp);
static inline bool segment_counts_up(const struct segment *seg) {
    return seg->tier == STORE_TIER_MEMORY && seg->state == SEGMENT_UP;
}
static inline void space_evictable_add(struct space *sp, struct segment *seg, uint64_t units) {
    seg->evictable_units += units;
    if (segment_counts_up(seg)) sp->up.evictable += units;
}
/* One that is not LEAVING; NULL: none. */
struct segment *space_segment_named(const struct space *sp, struct span name);
void space_segment_set_state(struct space *sp, struct segment *seg, enum store_segment_state state);
/* A used block, BLOCK_HELD, at that place, whatever else lies there; only while detached. 0: no
 * memory. */
block_id space_detached(struct space *sp, uint32_t segment, uint64_t offset, uint32_t len);
struct used_block {
    uint64_t offset;
    uint32_t len;
    block_id id;
};
struct used_blocks { /* of a segment */
    struct used_block *block;
    size_t n;
};
/* All used blocks of detached space: by segment, n_segments of them, and there by their offsets.
 * The caller frees it. */
struct used_blocks *space_used(const struct space *sp);
void space_used_free(const struct space *sp, struct used_blocks **used_p);
/* These, which do not overlap, are all used blocks of a segment whose blocks know nothing of their
 * neighbours: what lies between is free from here on. */
void space_attach(struct space *sp, uint32_t segment, const struct used_blocks *used);
/* The way back: blocks forget their neighbours, free ones go. All segments at once. */
void space_detach(struct space *sp);
/* Another size, of whole pages. false: something that is used lies beyond, or it would be too
 * large. Cursors go on behind free blocks. */
bool space_segment_resize(struct space *sp, uint32_t id, uint64_t units);
/* All of it must be free. */
void space_segment_remove(struct space *sp, uint32_t id);
static inline struct segment *space_segment(const struct space *sp, uint32_t id) {
    return id < sp->n_segments ? sp->segments[id] : NULL;
}
/* The one behind seg, by number; seg NULL: the first. NULL: that was the last. */
static inline struct segment *space_next(const struct space *sp, const struct segment *seg) {
    for (uint32_t id = seg ? seg->id + 1 : 0; id < sp->n_segments; id++)
        if (sp->segments[id]) return sp->segments[id];
    return NULL;
}

static inline struct block *block_get(const struct space *sp, block_id id) {
    return (struct block *)(void *)sp->arena.base + id;
}
#define BLOCK_OFFSET_BITS 38
static inline uint64_t block_offset(const struct block *b) {
    return b->where & ((UINT64_C(1) << BLOCK_OFFSET_BITS) - 1);
}
static inline uint32_t block_segment(const struct block *b) {
    return (uint32_t)(b->where >> BLOCK_OFFSET_BITS) & 0xffff;
}
static inline enum block_state block_state(const struct block *b) {
    return (enum block_state)(b->where >> 54 & 3);
}
static inline unsigned block_domain(const struct block *b) {
    return (unsigned)(b->where >> 56);
}
uint32_t block_len(const struct space *sp, block_id id);
/* A used block changes hands. */
void block_assign(struct space *sp, block_id id, enum block_state state, uint32_t owner,
                  unsigned domain);
/* What of a run of len units from offset can be used for values of this alignment, a power of two:
 * aligned start, aligned length. */
uint64_t run_usable(uint64_t offset, uint64_t len, uint32_t align, uint64_t *start_p);

static inline uint32_t space_align(uint64_t units) {
    return units >= PAGE_UNITS ? PAGE_UNITS : 1;
}
/* Units that a value of this many bytes takes. */
static inline uint64_t space_units(uint64_t bytes) {
    uint64_t round = bytes >= 4096 ? 4096 : UNIT;
    return (bytes + round - 1) / round * (round / UNIT);
}

/* Up to so many runs that together are len units, BLOCK_HELD; the count, 0: not found. */
unsigned space_alloc(struct space *sp, uint32_t segment, uint64_t len, uint32_t align,
                     unsigned most, block_id *out);
/* Back to free, merged with its neighbours. */
void space_release(struct space *sp, block_id id);
/* Takes len units from start out of free block id: what is left on both sides stays free.
 * BLOCK_HELD. */
block_id space_carve(struct space *sp, block_id id, uint64_t start, uint32_t len);
/* A held block takes over the free block right behind it. */
void space_absorb(struct space *sp, block_id held);
/* Gives back what lies before start and behind start + len. */
block_id space_trim(struct space *sp, block_id held, uint64_t start, uint32_t len);

void space_cursor_add(struct space *sp, block_id *cursor);
void space_cursor_remove(struct space *sp, block_id *cursor);

/* What blocks take; and what is held for those to come. */
uint64_t space_memory(const struct space *sp);
uint64_t space_spare(const struct space *sp);
uint64_t space_largest(struct space *sp, uint32_t segment); /* units, of the largest free run */
void space_check(const struct space *sp);

extern const struct space_ops space_offset, space_slab;

/* --- for allocators --- */

/* Free runs in bins: eight linear steps per power of two, a bitmap over the bins. */
struct bins {
    uint64_t map[SPACE_BINS / 64];
    block_id head[SPACE_BINS];
};
void bins_insert(struct space *sp, struct bins *b, block_id id);
void bins_remove(struct space *sp, struct bins *b, block_id id);
/* Is a run of units in the same bin without len of them, and does that leave something? */
bool bins_stays(uint64_t units, uint32_t len);
block_id bins_find(struct space *sp, const struct bins *b, uint32_t len, uint32_t align);
block_id bins_largest(struct space *sp, const struct bins *b);

#endif
