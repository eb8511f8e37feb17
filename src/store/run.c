/* Runs of space that are free or are going to be: what room.c and window.c look for. */
#include <string.h>
#include "store/room.h"

uint64_t run_aligned(const struct run *r, uint32_t align, uint64_t *start_p) {
    return run_usable(r->start, r->len, align, start_p);
}

/* The block that contains address at, looking onwards from block id, whose offset is not behind it;
 * 0: the books have changed too much. */
block_id run_block_at(const struct store *s, block_id id, uint64_t at) {
    if (!id || block_offset(block_get(&s->space, id)) > at) return 0;
    while (id && block_offset(block_get(&s->space, id)) + block_len(&s->space, id) <= at)
        id = block_get(&s->space, id)->next;
    return id;
}

/* Keeps the n longest (by what is usable of them), longest first. */
void runs_keep_longest(struct run *best, unsigned *n, struct run r, uint32_t align) {
    uint64_t start, len = run_aligned(&r, align, &start);
    if (len == 0) return;
    unsigned i = *n;
    while (i > 0 && run_aligned(&best[i - 1], align, &start) < len) i--;
    if (i == STORE_EXTENTS_MAX) return;
    if (*n < STORE_EXTENTS_MAX) ++*n;
    memmove(&best[i + 1], &best[i], (*n - i - 1) * sizeof(*best));
    best[i] = r;
}

uint64_t runs_total(const struct run *best, unsigned n, uint32_t align) {
    uint64_t start, sum = 0;
    for (unsigned i = 0; i < n; i++) sum += run_aligned(&best[i], align, &start);
    return sum;
}

/* Cuts the runs down to exactly units. Returns how many are used. */
unsigned runs_cut(struct run *best, unsigned n, uint32_t align, uint64_t units) {
    unsigned used = 0;
    for (; used < n && units > 0; used++) {
        uint64_t start, len = min_u64(run_aligned(&best[used], align, &start), units);
        best[used].start = start;
        best[used].len = len;
        units -= len;
    }
    return used;
}

/* Takes a run that is all free by now. 0: no memory for the block. */
block_id run_take(struct store *s, const struct run *r) {
    block_id id = run_block_at(s, r->block, r->start);
    TARN_ASSERT(id && block_state(block_get(&s->space, id)) == BLOCK_FREE);
    uint64_t end = block_offset(block_get(&s->space, id)) + block_len(&s->space, id);
    block_id held = space_carve(&s->space, id, r->start,
                                (uint32_t)(min_u64(end, r->start + r->len) - r->start));
    if (!held) return 0;
    while (block_get(&s->space, held)->len < r->len) space_absorb(&s->space, held);
    return space_trim(&s->space, held, r->start, (uint32_t)r->len);
}

bool runs_hold(const struct store *s, const struct object *o, uint32_t segment,
               const struct run *runs, unsigned n) {
    uint32_t n_blocks;
    const block_id *blocks = book_blocks(s, o, &n_blocks);
    for (uint32_t i = 0; i < n_blocks; i++) {
        const struct block *b = block_get(&s->space, blocks[i]);
        if (block_segment(b) != segment) continue;
        for (unsigned k = 0; k < n; k++)
            if (block_offset(b) < runs[k].start + runs[k].len &&
                block_offset(b) + b->len > runs[k].start)
                return true;
    }
    return false;
}
