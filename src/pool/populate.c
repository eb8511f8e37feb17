/* Touching every page of a pool before it serves: a page fault in the middle of a transfer costs
 * more than the copy, and a pool that cannot have its memory should say so at start. Threads take
 * pieces; how many help is a question of the cores, as zeroing a page is work for one of them. */
#include "pool/pool_internal.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mapping.h"
#include "base/progress.h"
#include "base/thread.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ  22
#define MADV_POPULATE_WRITE 23
#endif

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define CHUNK_BYTES                                                                                \
    (4ull << 20) /* short, as the address space is locked meanwhile: others allocate, too */
#define TAKEN_BYTES    (64ull << 20) /* by a thread at a time */
#define COLLAPSE_TRIES 8u
#define THREADS_MAX    32u
#define THREAD_BYTES   (128ull << 20) /* a thread more for each */

struct pool_populating {
    char *base;
    uint64_t size;
    bool keep;
    unsigned collapses; /* that may still fail; atomic */
    struct progress progress;
    uint64_t next, done; /* first byte no thread has taken, bytes that are there; atomic */
    int error;           /* errno of the first failure, atomic; ECANCELED: it is to end */
    bool over;           /* atomic */
    bool started;
    pthread_t thread; /* the first of them */
};

/* The add of nothing makes a page ours unchanged, whoever is at work on it. */
static void touch_page(char *at) {
    __atomic_fetch_add(at, 0, __ATOMIC_RELAXED);
}

/* A huge page is zeroed in a tenth of the time of its 512 small ones, and costs every process that
 * maps the pool one fault instead of 512. The kernel makes shared memory of them by itself only
 * where shmem_enabled says so, mostly nowhere; but whoever asks may have them where one page is
 * there already (MADV_COLLAPSE, Linux 6.1). Memory that is in too small pieces fails slowly: then
 * ordinary pages will do. In large pieces: each call waits for every processor to put its lists of
 * pages in order. */
static void collapse_taken(struct pool_populating *p, char *at, uint64_t len) {
    len -= len % HUGE_PAGE;
    if (len == 0 || __atomic_load_n(&p->collapses, __ATOMIC_RELAXED) == 0) return;
    for (uint64_t o = 0; o < len; o += HUGE_PAGE) touch_page(at + o);
    if (madvise(at, len, MADV_COLLAPSE) == 0) return;
    unsigned left = __atomic_load_n(&p->collapses, __ATOMIC_RELAXED);
    while (left > 0 &&
           !__atomic_compare_exchange_n(&p->collapses, &left, errno == EINVAL ? 0 : left - 1, false,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

static int touch_chunk(const struct pool_populating *p, char *at, uint64_t len) {
    if (madvise(at, len, p->keep ? MADV_POPULATE_READ : MADV_POPULATE_WRITE) == 0) return 0;
    if (errno != EINVAL) return errno;
    /* Before Linux 5.14. */
    for (uint64_t o = 0; o < len; o += 4096) {
        if (p->keep) {
            (void)*(volatile char *)(at + o);
        } else {
            touch_page(at + o);
        }
    }
    return 0;
}

/* The first one counts. */
static void populate_fail(struct pool_populating *p, int error) {
    int none = 0;
    __atomic_compare_exchange_n(&p->error, &none, error, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

static void *populate_part(void *arg) {
    struct pool_populating *p = arg;
    for (;;) {
        uint64_t at = __atomic_fetch_add(&p->next, TAKEN_BYTES, __ATOMIC_RELAXED);
        if (at >= p->size) return NULL;
        uint64_t end = at + min_u64(TAKEN_BYTES, p->size - at);
        collapse_taken(p, p->base + at, end - at);
        for (uint64_t len; at < end; at += len) {
            if (__atomic_load_n(&p->error, __ATOMIC_RELAXED) != 0) return NULL;
            len = min_u64(CHUNK_BYTES, end - at);
            int error = touch_chunk(p, p->base + at, len);
            if (error != 0) {
                populate_fail(p, error);
                return NULL;
            }
            __atomic_fetch_add(&p->done, len, __ATOMIC_RELAXED);
        }
    }
}

static void *populate_all(void *arg) {
    struct pool_populating *p = arg;
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    uint64_t threads = min_u64(cpus > 0 ? (uint64_t)cpus : 1, 1 + p->size / THREAD_BYTES);
    thread_run_together((unsigned)min_u64(threads, THREADS_MAX), "tarn-populate", populate_part, p);
    __atomic_store_n(&p->over, true, __ATOMIC_RELEASE);
    return NULL;
}

struct pool_populating *pool_populate_begin(void *base, uint64_t size, bool keep, bool huge) {
    struct pool_populating *p = xcalloc(1, sizeof(*p));
    bool collapse = huge && !keep && (uintptr_t)base % HUGE_PAGE == 0;
    *p = (struct pool_populating){
        .base = base, .size = size, .keep = keep, .collapses = collapse ? COLLAPSE_TRIES : 0};
    progress_log(&p->progress, "Populating the pool");
    p->started = thread_start(&p->thread, "tarn-populate", populate_all, p) == 0;
    if (!p->started) populate_all(p); /* then here, and before we return */
    return p;
}

bool pool_populate_over(struct pool_populating *p, struct pool_progress *progress_p) {
    bool over = __atomic_load_n(&p->over, __ATOMIC_ACQUIRE);
    struct pool_progress g = {.done = __atomic_load_n(&p->done, __ATOMIC_RELAXED),
                              .total = p->size};
    if (g.done > 0)
        g.left_ms = (uint64_t)((double)(clock_mono_ms() - p->progress.began_ms) *
                               (double)(g.total - g.done) / (double)g.done);
    if (!over)
        progress_say(&p->progress, g.done, g.total, "%llu of %llu MiB",
                     (unsigned long long)(g.done >> 20), (unsigned long long)(g.total >> 20));
    *progress_p = g;
    return over;
}

tarn_status pool_populate_end(struct pool_populating **p_p, bool cancel) {
    struct pool_populating *p = *p_p;
    if (p == NULL) return TARN_OK;
    *p_p = NULL;
    struct pool_progress progress;
    if (cancel) populate_fail(p, ECANCELED);
    for (unsigned us = 100; !pool_populate_over(p, &progress); us = us < 10000 ? 2 * us : us)
        usleep(us);
    if (p->started) pthread_join(p->thread, NULL);
    int error = p->done == p->size ? 0 : p->error;
    free(p);
    if (error == 0) return TARN_OK;
    if (error == ECANCELED) return TARN_ECANCELED;
    log_warning("Populating the pool failed: %s", strerror(error));
    return error == ENOMEM ? TARN_ENOMEM : TARN_EIO;
}
