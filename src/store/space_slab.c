/* The `slab` allocator: values of one size share pages, so that sizes do not fragment each other
 * (Bonwick 1994, and memcached's use of it). Pools of KV blocks know few sizes; each rounded size
 * gets a class of its own, there are no size steps to waste. Pages that become empty serve any
 * class again. Values larger than half a page take runs of whole pages. When no page of the class
 * and no empty page is left, runs in other pages are used before anything is evicted. */
#include <stdlib.h>
#include "base/assert.h"
#include "store/space.h"

#define CLASSES    64u
#define PAGES      256u     /* of a segment, within the bounds below */
#define PAGE_MIN   4096u    /* 256 KiB */
#define PAGE_MAX   1048576u /* 64 MiB */
#define CLASS_MISC 0u       /* partly used by a large value, or no class was left */

struct slab_page {
    uint32_t used;  /* units in used blocks; 0: the page is empty and part of a free run of pages */
    uint32_t class; /* while used */
};

struct slab_class {
    uint32_t len; /* units */
    uint32_t pages;
    struct bins bins; /* free runs inside pages of this class */
};

struct slab {
    uint64_t page_units, n_pages;
    uint32_t want;     /* class for pages that the block being carved opens */
    struct bins whole; /* runs of empty pages */
    struct slab_class class[CLASSES];
    struct slab_page page[];
};

static void slab_open(struct space *sp, struct segment *seg) {
    uint64_t page = PAGE_MIN;
    while (page < PAGE_MAX && page * PAGES < seg->units) page *= 2;
    uint64_t n = (seg->units + page - 1) / page;
    struct slab *s = xcalloc(1, sizeof(*s) + n * sizeof(s->page[0]));
    s->page_units = page;
    s->n_pages = n;
    seg->own = s;
}

static void slab_close(struct space *sp, struct segment *seg) {
    free(seg->own);
}

static struct slab_page *page_of(struct slab *s, uint64_t offset) {
    return &s->page[offset / s->page_units];
}

/* Where a free run belongs: it lies in one used page, or covers empty pages. */
static struct bins *bins_for(struct slab *s, uint64_t offset) {
    struct slab_page *p = page_of(s, offset);
    return p->used ? &s->class[p->class].bins : &s->whole;
}

static uint32_t slab_class_of(struct slab *s, uint32_t len) {
    if (len > s->page_units / 2) return CLASS_MISC;
    uint32_t unused = CLASS_MISC;
    for (uint32_t i = 1; i < CLASSES; i++) {
        if (s->class[i].len == len) return i;
        if (!unused && s->class[i].pages == 0) unused = i;
    }
    if (unused) s->class[unused].len = len;
    return unused;
}

static block_id slab_find(struct space *sp, struct segment *seg, uint32_t len, uint32_t align) {
    struct slab *s = seg->own;
    s->want = slab_class_of(s, len);
    block_id id = s->want != CLASS_MISC ? bins_find(sp, &s->class[s->want].bins, len, align) : 0;
    if (!id) id = bins_find(sp, &s->whole, len, align);
    for (uint32_t i = 0; !id && i < CLASSES; i++) id = bins_find(sp, &s->class[i].bins, len, align);
    return id;
}

static block_id slab_largest(struct space *sp, struct segment *seg) {
    struct slab *s = seg->own;
    s->want = CLASS_MISC;
    block_id best = bins_largest(sp, &s->whole);
    for (uint32_t i = 0; i < CLASSES; i++) {
        block_id id = bins_largest(sp, &s->class[i].bins);
        if (id && (!best || block_len(sp, id) > block_len(sp, best))) best = id;
    }
    return best;
}

static void slab_insert(struct space *sp, struct segment *seg, block_id b) {
    bins_insert(sp, bins_for(seg->own, block_offset(block_get(sp, b))), b);
}

static void slab_remove(struct space *sp, struct segment *seg, block_id b) {
    bins_remove(sp, bins_for(seg->own, block_offset(block_get(sp, b))), b);
}

static bool slab_may_merge(struct space *sp, struct segment *seg, block_id a, block_id b) {
    struct slab *s = seg->own;
    uint64_t border = block_offset(block_get(sp, b));
    if (border % s->page_units != 0) return true;
    return page_of(s, border - 1)->used == 0 && page_of(s, border)->used == 0;
}

static uint64_t slab_cut(struct space *sp, struct segment *seg, uint64_t offset, uint64_t len) {
    struct slab *s = seg->own;
    uint64_t first = offset / s->page_units, last = (offset + len - 1) / s->page_units;
    if (first == last) return 0;
    if (s->page[first].used) return (first + 1) * s->page_units;
    if (s->page[last].used) return last * s->page_units;
    return 0;
}

static void slab_used(struct space *sp, struct segment *seg, uint64_t offset, uint32_t len) {
    struct slab *s = seg->own;
    for (uint64_t at = offset, end = offset + len; at < end;) {
        struct slab_page *p = page_of(s, at);
        uint64_t page_end = (at / s->page_units + 1) * s->page_units,
                 upto = page_end < end ? page_end : end;
        if (p->used == 0) {
            p->class = s->want;
            s->class[p->class].pages++;
        }
        p->used += (uint32_t)(upto - at);
        at = upto;
    }
}

static void slab_unused(struct space *sp, struct segment *seg, uint64_t offset, uint32_t len) {
    struct slab *s = seg->own;
    for (uint64_t at = offset, end = offset + len; at < end;) {
        struct slab_page *p = page_of(s, at);
        uint64_t page_end = (at / s->page_units + 1) * s->page_units,
                 upto = page_end < end ? page_end : end;
        TARN_ASSERT(p->used >= upto - at);
        p->used -= (uint32_t)(upto - at);
        if (p->used == 0) s->class[p->class].pages--;
        at = upto;
    }
}

static uint64_t slab_memory(const struct segment *seg) {
    const struct slab *s = seg->own;
    return sizeof(*s) + s->n_pages * sizeof(s->page[0]);
}

const struct space_ops space_slab = {
    .name = "slab",
    .open = slab_open,
    .close = slab_close,
    .find = slab_find,
    .largest = slab_largest,
    .insert = slab_insert,
    .remove = slab_remove,
    .may_merge = slab_may_merge,
    .cut = slab_cut,
    .used = slab_used,
    .unused = slab_unused,
    .memory = slab_memory,
};
