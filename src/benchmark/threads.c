#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/thread.h"
#include "benchmark/bench.h"

void threads_open(struct bench_crew *t, uint64_t n, size_t size) {
    *t = (struct bench_crew){.of = xcalloc(n, size), .size = size, .n = n};
    for (uint64_t i = 0; i < n; i++) hist_init(&threads_at(t, i)->hist);
}

void threads_start(struct bench_crew *t, void *(*work)(void *)) {
    for (uint64_t i = 0; i < t->n; i++) {
        if (thread_start(&threads_at(t, i)->thread, "tarn-bench", work, threads_at(t, i)) != 0)
            die("cannot start a thread");
    }
}

void threads_wait(struct bench_crew *t, const struct bench *b, double seconds, const char *what) {
    struct progress bar;
    progress_bar(&bar, b->json);
    uint64_t start = clock_mono_us(), total = (uint64_t)(seconds * 1e6), now;
    while ((now = clock_mono_us()) - start < total) {
        uint64_t bytes = 0, over = 0;
        for (uint64_t i = 0; i < t->n; i++) {
            bytes += __atomic_load_n(&threads_at(t, i)->bytes, __ATOMIC_RELAXED);
            over += __atomic_load_n(&threads_at(t, i)->over, __ATOMIC_RELAXED);
        }
        if (over == t->n) break;
        if (bytes > 0)
            progress_say(&bar, now - start, total, "%s: %" PRIu64 " MB", what, bytes / 1000000);
        else
            progress_say(&bar, now - start, total, "%s", what);
        usleep((unsigned)min_u64(total - (now - start), 100000));
    }
    progress_end(&bar);
    __atomic_store_n(&t->stop, true, __ATOMIC_RELAXED);
}

double threads_join(struct bench_crew *t, struct bench_thread *sum) {
    double rate = 0;
    *sum = (struct bench_thread){.bytes = 0};
    hist_init(&sum->hist);
    for (uint64_t i = 0; i < t->n; i++) {
        struct bench_thread *k = threads_at(t, i);
        pthread_join(k->thread, NULL);
        hist_merge(&sum->hist, &k->hist);
        sum->bytes += k->bytes;
        sum->failed += k->failed;
        sum->mismatched += k->mismatched;
        if (k->busy_ns > 0) rate += (double)k->bytes / (double)k->busy_ns;
        if (k->error[0] != '\0') fprintf(stderr, "tarn-benchmark: %s\n", k->error);
    }
    return rate;
}

void threads_close(struct bench_crew *t) {
    free(t->of);
    *t = (struct bench_crew){.of = NULL};
}

void thread_called(struct bench_thread *k, uint64_t start_ns) {
    uint64_t took_ns = clock_mono_ns() - start_ns;
    k->busy_ns += took_ns;
    hist_add(&k->hist, took_ns / 1000);
}
