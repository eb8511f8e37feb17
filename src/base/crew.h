/* A crew: threads that take jobs from one queue, in order, and hand them back.
 *
 *   job:  idle ─add─> queued ─taken─> running ─> done ─add─> ...
 *                       └─────cancel─────────────^
 *
 * Who adds jobs bounds their number. The crew's lock comes before those that `finished` takes. */
#ifndef TARN_BASE_CREW_H
#define TARN_BASE_CREW_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include "base/queue.h"

enum crew_state { CREW_IDLE, CREW_QUEUED, CREW_RUNNING, CREW_DONE };

/* Part of what is to be done; zeroed but for run before its first time. */
struct crew_job {
    /* On a thread of the crew. false: the job is somebody else's now, and perhaps no more; it does
     * not become done. */
    bool (*run)(struct crew_job *job);
    TAILQ_ENTRY(crew_job) link; /* the crew's while it is queued, then the owner's */
    enum crew_state state;      /* see crew_job_state */
    bool cancelled;             /* it was never run */
};
TAILQ_HEAD(crew_jobs, crew_job);

/* Under the crew's lock, on any thread: the job is done, and what it says may be freed once the
 * owner knows. Must not block, nor call the crew. */
typedef void (*crew_finished_fn)(void *arg, struct crew_job *job);

struct crew {
    crew_finished_fn finished;
    void *arg;
    pthread_mutex_t lock;
    pthread_cond_t work, rest; /* something to do; something is done */
    struct crew_jobs queue;    /* under lock, as the rest but what is fixed */
    bool paused, stopping;
    size_t queued;
    unsigned n_threads, idle;
    const char *name;     /* fixed, as */
    pthread_t *threads;   /* NULL: it was never started */
    unsigned max_threads; /* of them */
};

/* The first thread is started now, others, up to so many, when jobs would wait. name is static,
 * finished may be NULL. 0, or an errno: not one could be started. With fewer than asked for it goes
 * slower. */
int crew_start(struct crew *c, const char *name, unsigned threads, crew_finished_fn finished,
               void *arg);
void crew_add(struct crew *c, struct crew_job *job);
/* While paused, jobs that have not begun wait. */
void crew_pause(struct crew *c, bool paused);

/* A crew that was never started is fine with these: */
/* Cancels the queued jobs that match says yes to (NULL: all). Returns how many. */
size_t crew_cancel(struct crew *c, bool (*match)(const struct crew_job *job, const void *arg),
                   const void *arg);
enum crew_state crew_job_state(struct crew *c, const struct crew_job *job);
/* Until the job is neither queued nor running. */
void crew_wait(struct crew *c, const struct crew_job *job);
/* Waits for what is queued and for what runs. */
void crew_stop(struct crew *c);

#endif
