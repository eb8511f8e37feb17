#include "base/crew.h"

#include <stdlib.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/thread.h"

static void end_job(struct crew *c, struct crew_job *job) {
    job->state = CREW_DONE;
    if (c->finished != NULL) c->finished(c->arg, job);
    pthread_cond_broadcast(&c->rest);
}

static void *crew_main(void *arg) {
    struct crew *c = arg;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        struct crew_job *job = c->paused && !c->stopping ? NULL : TAILQ_FIRST(&c->queue);
        if (job == NULL) {
            if (c->stopping) break;
            c->idle++;
            pthread_cond_wait(&c->work, &c->lock);
            c->idle--;
            continue;
        }
        TAILQ_REMOVE(&c->queue, job, link);
        c->queued--;
        job->state = CREW_RUNNING;
        pthread_mutex_unlock(&c->lock);
        bool over = job->run(job);
        pthread_mutex_lock(&c->lock);
        if (over) end_job(c, job);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

static int one_more(struct crew *c) {
    int error = thread_start(&c->threads[c->n_threads], c->name, crew_main, c);
    c->n_threads += error == 0;
    return error;
}

int crew_start(struct crew *c, const char *name, unsigned threads, crew_finished_fn finished,
               void *arg) {
    *c = (struct crew){.finished = finished, .arg = arg, .name = name, .max_threads = threads};
    TAILQ_INIT(&c->queue);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->work, NULL);
    pthread_cond_init(&c->rest, NULL);
    c->threads = xcalloc(threads, sizeof(*c->threads));
    pthread_mutex_lock(&c->lock);
    int error = one_more(c);
    pthread_mutex_unlock(&c->lock);
    if (error != 0) crew_stop(c);
    return error;
}

void crew_add(struct crew *c, struct crew_job *job) {
    pthread_mutex_lock(&c->lock);
    TARN_ASSERT(!c->stopping && (job->state == CREW_IDLE || job->state == CREW_DONE));
    job->state = CREW_QUEUED;
    job->cancelled = false;
    TAILQ_INSERT_TAIL(&c->queue, job, link);
    if (++c->queued > c->idle && c->n_threads < c->max_threads) (void)one_more(c);
    pthread_cond_signal(&c->work);
    pthread_mutex_unlock(&c->lock);
}

void crew_pause(struct crew *c, bool paused) {
    pthread_mutex_lock(&c->lock);
    c->paused = paused;
    pthread_cond_broadcast(&c->work);
    pthread_mutex_unlock(&c->lock);
}

size_t crew_cancel(struct crew *c, bool (*match)(const struct crew_job *job, const void *arg),
                   const void *arg) {
    size_t n = 0;
    struct crew_job *job, *next;
    if (c->threads == NULL) return 0;
    pthread_mutex_lock(&c->lock);
    TAILQ_FOREACH_SAFE(job, &c->queue, link, next) {
        if (match != NULL && !match(job, arg)) continue;
        TAILQ_REMOVE(&c->queue, job, link);
        c->queued--;
        job->cancelled = true;
        end_job(c, job);
        n++;
    }
    pthread_mutex_unlock(&c->lock);
    return n;
}

enum crew_state crew_job_state(struct crew *c, const struct crew_job *job) {
    if (c->threads == NULL) return job->state;
    pthread_mutex_lock(&c->lock);
    enum crew_state state = job->state;
    pthread_mutex_unlock(&c->lock);
    return state;
}

void crew_wait(struct crew *c, const struct crew_job *job) {
    if (c->threads == NULL) return;
    pthread_mutex_lock(&c->lock);
    while (job->state == CREW_QUEUED || job->state == CREW_RUNNING)
        pthread_cond_wait(&c->rest, &c->lock);
    pthread_mutex_unlock(&c->lock);
}

void crew_stop(struct crew *c) {
    if (c->threads == NULL) return;
    pthread_mutex_lock(&c->lock);
    c->stopping = true;
    pthread_cond_broadcast(&c->work);
    pthread_mutex_unlock(&c->lock);
    for (unsigned i = 0; i < c->n_threads; i++) pthread_join(c->threads[i], NULL);
    TARN_ASSERT(TAILQ_EMPTY(&c->queue));
    pthread_cond_destroy(&c->work);
    pthread_cond_destroy(&c->rest);
    pthread_mutex_destroy(&c->lock);
    free(c->threads);
    *c = (struct crew){0};
}
