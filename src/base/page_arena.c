#include "base/page_arena.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#include "base/assert.h"
#include "base/mapping.h"

#define GROW_STEP ((size_t)4 << 20)

static size_t page_bytes(void) {
    return (size_t)sysconf(_SC_PAGESIZE);
}

static size_t share_of_addresses(void) {
    struct rlimit limit;
    bool limited = getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    return limited ? limit.rlim_cur / 16 : SIZE_MAX;
}

bool page_arena_init(struct page_arena *a, size_t reserve, bool huge) {
    reserve = min_u64(reserve, share_of_addresses());
    size_t whole = (reserve + page_bytes() - 1) / page_bytes() * page_bytes();
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    size_t more = huge ? HUGE_PAGE : 0;
    char *p = mmap(NULL, whole + more, PROT_NONE, flags, -1, 0);
    if (p == MAP_FAILED) return false;
    if (huge) {
        size_t before = -(uintptr_t)p % HUGE_PAGE;
        if (before > 0) munmap(p, before);
        p += before;
        munmap(p + whole, more - before);
        /* Random records are read all the time; large pages save most of the TLB misses. Advice
         * only. */
        madvise(p, whole, MADV_HUGEPAGE);
    }
    *a = (struct page_arena){.base = p, .reserved = reserve};
    return true;
}

void page_arena_free(struct page_arena *a) {
    if (a->base) munmap(a->base, a->reserved);
    *a = (struct page_arena){0};
}

bool page_arena_grow(struct page_arena *a, size_t size) {
    if (size <= a->ready) return true;
    size_t want = (size + GROW_STEP - 1) / GROW_STEP * GROW_STEP;
    if (size > a->reserved) return false;
    if (want > a->reserved) want = a->reserved;
    if (mprotect(a->base + a->ready, want - a->ready, PROT_READ | PROT_WRITE) != 0) return false;
    a->ready = want;
    return true;
}

void page_arena_discard(struct page_arena *a, size_t offset, size_t size) {
    TARN_ASSERT(offset + size <= a->ready);
    /* Pages may be larger than what is given back. */
    size_t page = page_bytes(), end = offset + size;
    size_t from = min_u64((offset + page - 1) / page * page, end);
    size_t to = max_u64(end / page * page, from);
    memset(a->base + offset, 0, from - offset);
    memset(a->base + to, 0, end - to);
    if (to > from) madvise(a->base + from, to - from, MADV_DONTNEED);
}
