#include "store/arena.h"

#include <sys/mman.h>
#include "base/assert.h"

#define GROW_STEP ((size_t)4 << 20)

bool arena_init(struct page_arena *a, size_t reserve) {
    void *p = mmap(NULL, reserve, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return false;
    /* Random records are read all the time; large pages save most of the TLB misses. Advice
     * only. */
    madvise(p, reserve, MADV_HUGEPAGE);
    *a = (struct page_arena){.base = p, .reserved = reserve};
    return true;
}

void arena_free(struct page_arena *a) {
    if (a->base) munmap(a->base, a->reserved);
    *a = (struct page_arena){0};
}

bool arena_grow(struct page_arena *a, size_t size) {
    if (size <= a->ready) return true;
    size_t want = (size + GROW_STEP - 1) / GROW_STEP * GROW_STEP;
    if (want > a->reserved) return false;
    if (mprotect(a->base + a->ready, want - a->ready, PROT_READ | PROT_WRITE) != 0) return false;
    a->ready = want;
    return true;
}

void arena_discard(struct page_arena *a, size_t offset, size_t size) {
    TARN_ASSERT(offset + size <= a->ready);
    madvise(a->base + offset, size, MADV_DONTNEED);
}
