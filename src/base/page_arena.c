#include "base/page_arena.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#include "base/assert.h"
#include "base/mapping.h"

#define GROW_STEP ((size_t)4 << 20)
#define AHEAD_MAX ((size_t)8 << 20)
#define STEP_MAX  ((size_t)64 << 20)

/* The thread that touches pages ahead, while there are arenas that have asked for it. */
static struct {
    pthread_mutex_t lock;
    unsigned arenas;
    struct crew crew;
} ahead = {.lock = PTHREAD_MUTEX_INITIALIZER};

static size_t page_bytes(void) {
    return (size_t)sysconf(_SC_PAGESIZE);
}

static size_t page_up(size_t size) {
    size_t page = page_bytes();
    return (size + page - 1) / page * page;
}

static size_t share_of_addresses(void) {
    struct rlimit limit;
    bool limited = getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    return limited ? limit.rlim_cur / 16 : SIZE_MAX;
}

bool page_arena_init(struct page_arena *a, size_t reserve, unsigned how) {
    bool huge = how & PAGES_HUGE;
    reserve = min_u64(reserve, share_of_addresses());
    size_t whole = page_up(reserve);
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
    *a = (struct page_arena){.base = p, .reserved = reserve, .ahead = (how & PAGES_AHEAD) != 0};
    return true;
}

/* A large page at a time, as the address space is locked meanwhile. It is a wish: where it fails
 * the page comes when it is used. */
static bool touch_piece(struct crew_job *job) {
    const struct page_arena *a = CONTAINER_OF(job, struct page_arena, touching);
    for (size_t at = a->touch_from; at < a->touch_to; at += HUGE_PAGE) {
        size_t size = min_u64(HUGE_PAGE, a->touch_to - at);
        if (madvise(a->base + at, size, MADV_POPULATE_WRITE) != 0) break;
    }
    return true;
}

static bool ahead_join(struct page_arena *a) {
    if (a->touched > 0) return true;
    pthread_mutex_lock(&ahead.lock);
    bool runs = ahead.arenas > 0 || crew_start(&ahead.crew, "tarn-pages", 1, NULL, NULL) == 0;
    ahead.arenas += runs;
    pthread_mutex_unlock(&ahead.lock);
    a->touching.run = touch_piece;
    return runs;
}

static void ahead_leave(struct page_arena *a) {
    if (a->touched == 0) return;
    crew_wait(&ahead.crew, &a->touching);
    pthread_mutex_lock(&ahead.lock);
    if (--ahead.arenas == 0) crew_stop(&ahead.crew);
    pthread_mutex_unlock(&ahead.lock);
}

/* Of what is usable the next so many bytes behind what is used. A piece that is still being touched
 * is not waited for: the next growth tells of the rest. */
static void touch_ahead(struct page_arena *a, size_t used, size_t more) {
    size_t from = max_u64(a->touched, page_up(used)), to = min_u64(page_up(used + more), a->ready);
    if (from >= to || !ahead_join(a)) return;
    enum crew_state state = crew_job_state(&ahead.crew, &a->touching);
    if (state == CREW_QUEUED || state == CREW_RUNNING) return;
    a->touch_from = from;
    a->touch_to = a->touched = to;
    crew_add(&ahead.crew, &a->touching);
}

void page_arena_free(struct page_arena *a) {
    ahead_leave(a);
    if (a->base) munmap(a->base, a->reserved);
    *a = (struct page_arena){0};
}

/* Each step waits for the page that is being touched, so that there are to be few. */
static bool make_ready(struct page_arena *a, size_t size) {
    size_t step = a->ahead ? max_u64(min_u64(size / 4, STEP_MAX), GROW_STEP) : GROW_STEP;
    step -= step % GROW_STEP;
    size_t want = (size + step - 1) / step * step;
    if (want > a->reserved) want = a->reserved;
    if (want <= a->ready) return true;
    if (mprotect(a->base + a->ready, want - a->ready, PROT_READ | PROT_WRITE) != 0) return false;
    a->ready = want;
    return true;
}

bool page_arena_grow(struct page_arena *a, size_t size) {
    if (size <= a->quiet) return true;
    if (size > a->reserved) return false;
    size_t more = a->ahead ? min_u64(size / 4 / HUGE_PAGE * HUGE_PAGE, AHEAD_MAX) : 0;
    bool both = make_ready(a, size + more);
    if (!both && !make_ready(a, size)) return false;
    bool last = !both || a->ready == a->reserved;
    a->quiet = last ? a->ready : a->ready - more;
    if (more > 0) {
        touch_ahead(a, size, more);
        a->quiet = min_u64(a->quiet, size + more / 2);
    }
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
