/* What a client tells of itself: how long its calls take, its figures as text, spans, the summary
 * in the log. */
#ifndef TARN_CLIENT_TIMING_H
#define TARN_CLIENT_TIMING_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/hist.h"
#include "tarn.h"

struct lane;

/* The thread that logs the summary; without one, all zero. */
struct reporter {
    pthread_t thread;
    bool runs, ends; /* ends: under mutex */
    pthread_mutex_t mutex;
    pthread_cond_t wake;
};

/* A call on n keys is over: into the histogram of its kind (TARN_HIST_GET, _PUT or _LOOKUP), and
 * with several keys also into that of batches. By the lane's taker. */
void timing_add(struct lane *lane, int kind, size_t n, uint64_t started_us);
/* All lanes' histograms of a kind, added up. */
void timing_merge(struct tarn_client *client, int kind, struct hist *sum);

/* TARN_EINVAL: a label that cannot be one. */
tarn_status timing_check(const tarn_options *o);
/* Starts the reporter where log_figures_s asks for one; a failure is logged, no more. */
void timing_start(struct tarn_client *client);
void timing_stop(struct tarn_client *client);

#endif
