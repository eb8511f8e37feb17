/* Touching every page of a pool before it serves: a page fault in the middle of a transfer costs more than
 * the copy, and a pool that cannot have its memory should say so at start. */
#include "pool/pool.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ  22
#define MADV_POPULATE_WRITE 23
#endif

#define CHUNK_BYTES    (64ull << 20)
#define THREADS_MAX    8
#define THREAD_BYTES   (1ull << 30) /* a thread more for each */
#define PROGRESS_BYTES (4ull << 30) /* speak above this */
#define PROGRESS_MS    2000

struct populate_job {
    char *base;
    uint64_t size;
    bool keep;
    uint64_t next; /* first byte no thread has taken, atomic */
    uint64_t done; /* atomic */
    int error;     /* errno of the first failure, atomic */
    uint64_t log_ms;
};

static int touch_chunk(const struct populate_job *job, char *at, uint64_t len) {
    if (madvise(at, len, job->keep ? MADV_POPULATE_READ : MADV_POPULATE_WRITE) == 0) return 0;
    if (errno != EINVAL) return errno;
    /* Before Linux 5.14. Nobody else is at work on these pages yet; the add of nothing makes them ours
     * unchanged. */
    for (uint64_t o = 0; o < len; o += 4096) {
        if (job->keep) {
            (void)*(volatile char *)(at + o);
        } else {
            __atomic_fetch_add(at + o, 0, __ATOMIC_RELAXED);
        }
    }
    return 0;
}

static void report(struct populate_job *job, uint64_t done) {
    if (job->size < PROGRESS_BYTES) return;
    uint64_t now = clock_mono_ms(), last = __atomic_load_n(&job->log_ms, __ATOMIC_RELAXED);
    if (now - last < PROGRESS_MS) return;
    if (!__atomic_compare_exchange_n(&job->log_ms, &last, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return;
    log_notice("Populating the pool: %llu of %llu MiB", (unsigned long long)(done >> 20),
               (unsigned long long)(job->size >> 20));
}

static void *populate_thread(void *arg) {
    struct populate_job *job = arg;
    for (;;) {
        uint64_t at = __atomic_fetch_add(&job->next, CHUNK_BYTES, __ATOMIC_RELAXED);
        if (at >= job->size || __atomic_load_n(&job->error, __ATOMIC_RELAXED) != 0) return NULL;
        uint64_t len = min_u64(CHUNK_BYTES, job->size - at);
        int error = touch_chunk(job, job->base + at, len);
        if (error != 0) {
            __atomic_store_n(&job->error, error, __ATOMIC_RELAXED);
            return NULL;
        }
        report(job, __atomic_add_fetch(&job->done, len, __ATOMIC_RELAXED));
    }
}

tarn_status pool_populate(void *base, uint64_t size, bool keep) {
    struct populate_job job = {.base = base, .size = size, .keep = keep, .log_ms = clock_mono_ms()};
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    uint64_t wanted = min_u64(min_u64((uint64_t)(cpus > 0 ? cpus : 1), THREADS_MAX), 1 + size / THREAD_BYTES);
    pthread_t threads[THREADS_MAX];
    unsigned helpers = 0;
    while (helpers + 1 < wanted && pthread_create(&threads[helpers], NULL, populate_thread, &job) == 0)
        helpers++;
    populate_thread(&job);
    for (unsigned i = 0; i < helpers; i++) pthread_join(threads[i], NULL);
    if (job.error == 0) return TARN_OK;
    log_warning("Populating the pool failed: %s", strerror(job.error));
    return job.error == ENOMEM ? TARN_ENOMEM : TARN_EIO;
}
