/* Asynchronous calls: a bounded queue of batches, a crew that runs them with the blocking
 * functions, completions behind an eventfd.
 *
 *   submit ─> queued ──worker──> running ─> completed ─> taken out (tarn_async_poll):
 *               └──cancel──────────────────────^            the slot is free again
 *
 * The eventfd is readable exactly while completions wait: it is written when the first one comes
 * and read when the last one is taken out, both under the mutex. The crew's lock comes first. */
#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/crew.h"
#include "client/client.h"

#define ASYNC_MAGIC  0x7a12a57cu
#define CAPACITY_MAX 65536

struct task {
    struct crew_job job; /* its link: in completed */
    struct tarn_async *queue;
    LIST_ENTRY(task) under_way;
    tarn_completion completion;
    tarn_call call;
    tarn_put_options put;
    struct trace_context context; /* of who submitted it */
};

struct tarn_async {
    uint32_t magic;
    tarn_client *client;
    struct crew workers;
    pthread_mutex_t mutex;
    pthread_cond_t done;
    struct crew_jobs completed;
    LIST_HEAD(, task) under_way; /* queued or running */
    size_t capacity, pending;    /* pending: queued, running and completed */
    uint64_t next_id;
    int event_fd;
};

/* --- workers --- */

static void run_keys(tarn_client *client, tarn_completion *c) {
    tarn_key *keys = xmalloc((c->n + 1) * sizeof(*keys));
    uint8_t *found = xcalloc(c->n + 1, 1);
    for (size_t i = 0; i < c->n; i++) keys[i] = (tarn_key){c->items[i].key, c->items[i].key_len};
    if (c->op == TARN_OP_EXISTS) {
        c->status = tarn_exists_many(client, keys, c->n, found);
        for (size_t i = 0; i < c->n; i++) {
            c->items[i].status = c->status != TARN_OK ? c->status
                                 : found[i]           ? TARN_OK
                                                      : TARN_ENOTFOUND;
            c->done += c->items[i].status == TARN_OK;
        }
    } else {
        c->status = tarn_remove_many(client, keys, c->n, &c->done);
        for (size_t i = 0; i < c->n; i++) c->items[i].status = c->status;
    }
    free(keys);
    free(found);
}

static void run_task(tarn_client *client, struct task *t) {
    tarn_completion *c = &t->completion;
    size_t failed = 0;
    switch (c->op) {
    case TARN_OP_GET: c->status = tarn_get_many(client, c->items, c->n, &t->call, &c->done); break;
    case TARN_OP_PUT:
        c->status = tarn_put_many(client, c->items, c->n, &t->put, &failed);
        c->done = c->status == TARN_OK ? c->n - failed : 0;
        break;
    default: run_keys(client, c);
    }
}

static bool task_run(struct crew_job *job) {
    struct task *t = CONTAINER_OF(job, struct task, job);
    trace_context_use(&t->context);
    run_task(t->queue->client, t);
    trace_context_clear();
    return true;
}

static void task_finished(void *arg, struct crew_job *job) {
    struct tarn_async *q = arg;
    struct task *t = CONTAINER_OF(job, struct task, job);
    if (job->cancelled) {
        for (size_t i = 0; i < t->completion.n; i++) t->completion.items[i].status = TARN_ECANCELED;
        t->completion.status = TARN_ECANCELED;
    }
    pthread_mutex_lock(&q->mutex);
    LIST_REMOVE(t, under_way);
    if (TAILQ_EMPTY(&q->completed)) eventfd_write(q->event_fd, 1);
    TAILQ_INSERT_TAIL(&q->completed, job, link);
    pthread_cond_signal(&q->done);
    pthread_mutex_unlock(&q->mutex);
}

/* --- opening and closing --- */

tarn_status tarn_async_open(tarn_client *client, size_t capacity, tarn_async **queue_p) {
    tarn_status status = client_usable(client);
    if (status != TARN_OK) return status;
    if (capacity == 0 || capacity > CAPACITY_MAX)
        return fail(TARN_EINVAL, "capacity is 1 to %d", CAPACITY_MAX);
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0) return fail(TARN_EIO, "eventfd: %s", strerror(errno));
    struct tarn_async *q = xcalloc(1, sizeof(*q));
    *q = (struct tarn_async){
        .magic = ASYNC_MAGIC, .client = client, .capacity = capacity, .event_fd = fd, .next_id = 1};
    TAILQ_INIT(&q->completed);
    pthread_mutex_init(&q->mutex, NULL);
    thread_cond_init(&q->done);
    int error = crew_start(&q->workers, "tarn-async", client->options.workers, task_finished, q);
    if (error != 0) {
        tarn_async_close(&q);
        return fail(TARN_EIO, "cannot start a worker thread: %s", strerror(error));
    }
    *queue_p = q;
    return TARN_OK;
}

void tarn_async_close(tarn_async **queue_p) {
    if (queue_p == NULL || *queue_p == NULL) return;
    struct tarn_async *q = *queue_p;
    TARN_ASSERT(q->magic == ASYNC_MAGIC);
    *queue_p = NULL;
    crew_cancel(&q->workers, NULL, NULL);
    crew_stop(&q->workers);
    struct crew_job *job;
    while ((job = TAILQ_FIRST(&q->completed)) != NULL) {
        TAILQ_REMOVE(&q->completed, job, link);
        free(CONTAINER_OF(job, struct task, job));
    }
    __atomic_sub_fetch(&q->client->async_pending, q->pending, __ATOMIC_RELAXED);
    close(q->event_fd);
    pthread_cond_destroy(&q->done);
    pthread_mutex_destroy(&q->mutex);
    q->magic = 0;
    free(q);
}

/* --- submitting --- */

/* call is for gets, put for puts; NULL: all defaults. */
static tarn_status async_submit(struct tarn_async *q, int op, tarn_item *items, size_t n,
                                const tarn_call *call, const tarn_put_options *put, void *user,
                                uint64_t *id_p) {
    if (q == NULL || q->magic != ASYNC_MAGIC) return fail(TARN_EINVAL, "this is not an open queue");
    if (items == NULL && n > 0) return fail(TARN_EINVAL, "no items");
    struct task *t = xcalloc(1, sizeof(*t));
    t->job.run = task_run;
    t->queue = q;
    client_call_copy(&t->call, call);
    client_put_options_copy(&t->put, put);
    t->call.size = sizeof(t->call);
    t->put.size = sizeof(t->put);
    trace_context_take(&t->context, q->client);
    pthread_mutex_lock(&q->mutex);
    bool full = q->pending == q->capacity;
    if (!full) {
        t->completion =
            (tarn_completion){.id = q->next_id++, .user = user, .op = op, .items = items, .n = n};
        if (id_p != NULL) *id_p = t->completion.id;
        q->pending++;
        __atomic_add_fetch(&q->client->async_pending, 1, __ATOMIC_RELAXED);
        LIST_INSERT_HEAD(&q->under_way, t, under_way);
    }
    pthread_mutex_unlock(&q->mutex);
    if (!full) {
        crew_add(&q->workers, &t->job);
        return TARN_OK;
    }
    free(t);
    return fail(TARN_EAGAIN, "%zu submissions are pending: take completions out first",
                q->capacity);
}

tarn_status tarn_async_get(tarn_async *queue, tarn_item *items, size_t n, const tarn_call *call,
                           void *user, uint64_t *id_p) {
    return async_submit(queue, TARN_OP_GET, items, n, call, NULL, user, id_p);
}

tarn_status tarn_async_put(tarn_async *queue, tarn_item *items, size_t n,
                           const tarn_put_options *options, void *user, uint64_t *id_p) {
    return async_submit(queue, TARN_OP_PUT, items, n, NULL, options, user, id_p);
}

tarn_status tarn_async_exists(tarn_async *queue, tarn_item *items, size_t n, void *user,
                              uint64_t *id_p) {
    return async_submit(queue, TARN_OP_EXISTS, items, n, NULL, NULL, user, id_p);
}

tarn_status tarn_async_remove(tarn_async *queue, tarn_item *items, size_t n, void *user,
                              uint64_t *id_p) {
    return async_submit(queue, TARN_OP_REMOVE, items, n, NULL, NULL, user, id_p);
}

/* --- taking out --- */

int tarn_async_fd(const tarn_async *queue) {
    return queue->event_fd;
}

size_t tarn_async_poll(tarn_async *queue, tarn_completion *completions, size_t max,
                       uint64_t timeout_ms) {
    if (queue == NULL || queue->magic != ASYNC_MAGIC || max == 0) return 0;
    struct tarn_async *q = queue;
    size_t n = 0;
    uint64_t until = add_sat(clock_mono_ms(), timeout_ms);
    pthread_mutex_lock(&q->mutex);
    while (TAILQ_EMPTY(&q->completed)) {
        uint64_t now = clock_mono_ms();
        if (now >= until || !thread_cond_wait(&q->done, &q->mutex, until - now)) break;
    }
    struct crew_job *job;
    while (n < max && (job = TAILQ_FIRST(&q->completed)) != NULL) {
        struct task *t = CONTAINER_OF(job, struct task, job);
        TAILQ_REMOVE(&q->completed, job, link);
        completions[n++] = t->completion;
        free(t);
    }
    eventfd_t ignored;
    if (n > 0 && TAILQ_EMPTY(&q->completed)) eventfd_read(q->event_fd, &ignored);
    q->pending -= n;
    pthread_mutex_unlock(&q->mutex);
    __atomic_sub_fetch(&q->client->async_pending, n, __ATOMIC_RELAXED);
    return n;
}

static bool async_has_id(const struct crew_job *job, const void *arg) {
    return CONTAINER_OF(job, const struct task, job)->completion.id == *(const uint64_t *)arg;
}

tarn_status tarn_async_cancel(tarn_async *queue, uint64_t id) {
    if (queue == NULL || queue->magic != ASYNC_MAGIC)
        return fail(TARN_EINVAL, "this is not an open queue");
    struct tarn_async *q = queue;
    if (crew_cancel(&q->workers, async_has_id, &id) > 0) return TARN_OK;
    bool runs = false;
    struct task *t;
    pthread_mutex_lock(&q->mutex);
    LIST_FOREACH(t, &q->under_way, under_way) runs |= t->completion.id == id;
    pthread_mutex_unlock(&q->mutex);
    if (runs) return fail(TARN_EAGAIN, "it runs already, and will complete");
    return fail(TARN_ENOTFOUND, "no such submission is queued or running");
}
