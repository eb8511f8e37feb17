#include "base/thread.h"

#include <errno.h>
#include <signal.h>

#include "base/assert.h"
#include "base/clock.h"

int thread_start(pthread_t *thread_p, const char *name, void *(*run)(void *arg), void *arg) {
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    sigset_t deaf, before;
    sigfillset(&deaf);
    /* blocked, these would end the process without a word in the log */
    for (size_t i = 0; i < ARRAY_LEN(faults); i++) sigdelset(&deaf, faults[i]);
    pthread_sigmask(SIG_SETMASK, &deaf, &before);
    int error = pthread_create(thread_p, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0) pthread_setname_np(*thread_p, name);
    return error;
}

void thread_run_together(unsigned threads, const char *name, void *(*run)(void *arg), void *arg) {
    enum { MAX = 64 };
    pthread_t thread[MAX];
    unsigned others = 0;
    while (others < MAX && others + 1 < threads &&
           thread_start(&thread[others], name, run, arg) == 0)
        others++;
    run(arg);
    for (unsigned i = 0; i < others; i++) pthread_join(thread[i], NULL);
}

void thread_cond_init(pthread_cond_t *cond) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

bool thread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex, uint64_t ms) {
    if (ms > UINT64_C(365) * 86400 * 1000) return pthread_cond_wait(cond, mutex) == 0;
    uint64_t ns = clock_mono_ns() + ms * 1000000;
    struct timespec until = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    return pthread_cond_timedwait(cond, mutex, &until) != ETIMEDOUT;
}
