/* Threads of our own: with a name, and deaf to signals, which are for the program's own. */
#ifndef TARN_BASE_THREAD_H
#define TARN_BASE_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* 0, or an errno. name: up to 15 bytes. */
int thread_start(pthread_t *thread_p, const char *name, void *(*run)(void *arg), void *arg);

/* Calls run(arg) in up to that many threads, of which this is one, and returns when all have ended.
 * Where threads cannot be started fewer do it. */
void thread_run_together(unsigned threads, const char *name, void *(*run)(void *arg), void *arg);

/* A condition for thread_cond_wait. */
void thread_cond_init(pthread_cond_t *cond);
/* For ms at most by the monotonic clock. false: they have passed. */
bool thread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex, uint64_t ms);

#endif
