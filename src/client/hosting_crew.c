/* Threads that do what may block, so that the control thread need not. */
#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "client/hosting.h"

void hosting_wake(struct tarn_host *h) {
    eventfd_write(h->wake_fd, 1); /* full means awake already */
}

void hosting_post(struct tarn_host *h, struct job *job) {
    job->next = NULL;
    pthread_mutex_lock(&h->mutex);
    *h->posted_tail = job;
    h->posted_tail = &job->next;
    pthread_mutex_unlock(&h->mutex);
    hosting_wake(h);
}

void hosting_run_posted(struct tarn_host *h) {
    pthread_mutex_lock(&h->mutex);
    struct job *list = h->posted;
    h->posted = NULL;
    h->posted_tail = &h->posted;
    pthread_mutex_unlock(&h->mutex);
    while (list != NULL) {
        struct job *job = list;
        list = job->next;
        job->done(h, job);
    }
}

static void *crew_thread(void *arg) {
    struct crew *c = arg;
    pthread_mutex_lock(&c->mutex);
    while (!c->stopping) {
        struct job *job = c->paused ? NULL : c->head;
        if (job == NULL) {
            pthread_cond_wait(&c->work, &c->mutex);
            continue;
        }
        c->head = job->next;
        if (c->head == NULL) c->tail = &c->head;
        pthread_mutex_unlock(&c->mutex);
        if (job->run(job)) hosting_post(c->host, job);
        pthread_mutex_lock(&c->mutex);
    }
    pthread_mutex_unlock(&c->mutex);
    return NULL;
}

tarn_status crew_start(struct crew *c, struct tarn_host *h, unsigned threads) {
    *c = (struct crew){.host = h};
    c->tail = &c->head;
    pthread_mutex_init(&c->mutex, NULL);
    pthread_cond_init(&c->work, NULL);
    c->threads = xcalloc(threads, sizeof(*c->threads));
    for (unsigned i = 0; i < threads; i++) {
        int err = pthread_create(&c->threads[i], NULL, crew_thread, c);
        if (err != 0) return fail(TARN_EIO, "cannot start a thread: %s", strerror(err));
        c->n_threads++;
    }
    return TARN_OK;
}

void crew_add(struct crew *c, struct job *job) {
    job->next = NULL;
    pthread_mutex_lock(&c->mutex);
    TARN_ASSERT(!c->stopping);
    *c->tail = job;
    c->tail = &job->next;
    pthread_cond_signal(&c->work);
    pthread_mutex_unlock(&c->mutex);
}

void crew_pause(struct crew *c, bool paused) {
    pthread_mutex_lock(&c->mutex);
    c->paused = paused;
    if (!paused) pthread_cond_broadcast(&c->work);
    pthread_mutex_unlock(&c->mutex);
}

size_t crew_cancel(struct crew *c, bool (*match)(const struct job *job, const void *arg),
                   const void *arg) {
    struct job *out = NULL;
    size_t n = 0;
    pthread_mutex_lock(&c->mutex);
    for (struct job **at = &c->head; *at != NULL;) {
        struct job *job = *at;
        if (match != NULL && !match(job, arg)) {
            at = &job->next;
            continue;
        }
        *at = job->next;
        job->next = out;
        out = job;
    }
    c->tail = &c->head;
    while (*c->tail != NULL) c->tail = &(*c->tail)->next;
    pthread_mutex_unlock(&c->mutex);
    while (out != NULL) {
        struct job *job = out;
        out = job->next;
        __atomic_store_n(&job->cancelled, true, __ATOMIC_RELAXED);
        hosting_post(c->host, job);
        n++;
    }
    return n;
}

void crew_stop(struct crew *c) {
    if (c->host == NULL) return;
    crew_cancel(c, NULL, NULL);
    pthread_mutex_lock(&c->mutex);
    c->stopping = true;
    pthread_cond_broadcast(&c->work);
    pthread_mutex_unlock(&c->mutex);
    for (unsigned i = 0; i < c->n_threads; i++) pthread_join(c->threads[i], NULL);
    TARN_ASSERT(c->head == NULL);
    pthread_cond_destroy(&c->work);
    pthread_mutex_destroy(&c->mutex);
    free(c->threads);
    *c = (struct crew){0};
}
