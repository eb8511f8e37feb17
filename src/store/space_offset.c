/* The `offset` allocator: any size, good fit in constant time, free neighbours always merge. */
#include <stdlib.h>
#include "store/space.h"

static void offset_open(struct space *sp, struct segment *seg) {
    seg->own = xcalloc(1, sizeof(struct bins));
}

static void offset_close(struct space *sp, struct segment *seg) {
    free(seg->own);
}

static block_id offset_find(struct space *sp, struct segment *seg, uint32_t len, uint32_t align) {
    return bins_find(sp, seg->own, len, align);
}

static block_id offset_largest(struct space *sp, struct segment *seg) {
    return bins_largest(sp, seg->own);
}

static void offset_insert(struct space *sp, struct segment *seg, block_id b) {
    bins_insert(sp, seg->own, b);
}

static void offset_remove(struct space *sp, struct segment *seg, block_id b) {
    bins_remove(sp, seg->own, b);
}

static bool offset_may_merge(struct space *sp, struct segment *seg, block_id a, block_id b) {
    return true;
}

static uint64_t offset_cut(struct space *sp, struct segment *seg, uint64_t offset, uint64_t len) {
    return 0;
}

static void offset_used(struct space *sp, struct segment *seg, uint64_t offset, uint32_t len) {}

static void offset_unused(struct space *sp, struct segment *seg, uint64_t offset, uint32_t len) {}

static uint64_t offset_memory(const struct segment *seg) {
    return sizeof(struct bins);
}

const struct space_ops space_offset = {
    .name = "offset",
    .open = offset_open,
    .close = offset_close,
    .find = offset_find,
    .largest = offset_largest,
    .insert = offset_insert,
    .remove = offset_remove,
    .stays = bins_stays,
    .may_merge = offset_may_merge,
    .cut = offset_cut,
    .used = offset_used,
    .unused = offset_unused,
    .memory = offset_memory,
};
