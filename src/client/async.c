/* Asynchronous calls: a bounded queue of batches, worker threads that run them with the blocking
 * functions, completions behind an eventfd.
 *
 *   submit ─> queued ──worker──> running ─> completed ─> taken out (tarn_async_poll): the slot is free again
 *               └──cancel──────────────────────^
 *
 * The eventfd is readable exactly while completions wait: it is written when the first one comes
 * and read when the last one is taken out, both under the mutex. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "client/internal.h"

#define ASYNC_MAGIC  0x7a12a57cu
#define CAPACITY_MAX 65536

struct task {
    struct task *next;
    tarn_completion completion;
    bool running;
    tarn_call call;
    tarn_put_options put;
};

struct list {
    struct task *head, **tail;
};

struct tarn_async {
    uint32_t magic;
    tarn_client *client;
    pthread_mutex_t mutex;
    pthread_cond_t work, done;
    struct list queued, completed;
    struct task *running;     /* single linked, unordered */
    size_t capacity, pending; /* pending: queued, running and completed */
    uint64_t next_id;
    int event_fd;
    bool closing;
    pthread_t *workers;
    size_t n_workers;
};

static void list_init(struct list *l) {
    l->head = NULL;
    l->tail = &l->head;
}

static void list_push(struct list *l, struct task *t) {
    t->next = NULL;
    *l->tail = t;
    l->tail = &t->next;
}

static struct task *list_pop(struct list *l) {
    struct task *t = l->head;
    if (t == NULL) return NULL;
    l->head = t->next;
    if (l->head == NULL) l->tail = &l->head;
    return t;
}

static struct task *list_take_id(struct list *l, uint64_t id) {
    for (struct task **at = &l->head; *at != NULL; at = &(*at)->next) {
        struct task *t = *at;
        if (t->completion.id != id) continue;
        *at = t->next;
        if (*at == NULL) l->tail = at;
        return t;
    }
    return NULL;
}

/* --- completions, under the mutex --- */

static void complete(struct tarn_async *q, struct task *t) {
    bool first = q->completed.head == NULL;
    list_push(&q->completed, t);
    if (first) eventfd_write(q->event_fd, 1);
    pthread_cond_signal(&q->done);
}

static void cancel_task(struct tarn_async *q, struct task *t) {
    for (size_t i = 0; i < t->completion.n; i++) t->completion.items[i].status = TARN_ECANCELED;
    t->completion.status = TARN_ECANCELED;
    complete(q, t);
}

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

static void *worker(void *arg) {
    struct tarn_async *q = arg;
    pthread_mutex_lock(&q->mutex);
    for (;;) {
        struct task *t = list_pop(&q->queued);
        if (t == NULL) {
            if (q->closing) break;
            pthread_cond_wait(&q->work, &q->mutex);
            continue;
        }
        t->running = true;
        t->next = q->running;
        q->running = t;
        pthread_mutex_unlock(&q->mutex);
        run_task(q->client, t);
        pthread_mutex_lock(&q->mutex);
        struct task **at = &q->running;
        while (*at != t) at = &(*at)->next;
        *at = t->next;
        complete(q, t);
    }
    pthread_mutex_unlock(&q->mutex);
    return NULL;
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
    list_init(&q->queued);
    list_init(&q->completed);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&q->mutex, NULL);
    pthread_cond_init(&q->work, NULL);
    pthread_cond_init(&q->done, &attr);
    pthread_condattr_destroy(&attr);
    q->workers = xcalloc(client->options.workers, sizeof(*q->workers));
    for (size_t i = 0; i < client->options.workers; i++) {
        if (pthread_create(&q->workers[i], NULL, worker, q) != 0) break;
        q->n_workers++;
    }
    if (q->n_workers == 0) {
        tarn_async_close(&q);
        return fail(TARN_EIO, "cannot start a worker thread: %s", strerror(errno));
    }
    *queue_p = q;
    return TARN_OK;
}

void tarn_async_close(tarn_async **queue_p) {
    if (queue_p == NULL || *queue_p == NULL) return;
    struct tarn_async *q = *queue_p;
    TARN_ASSERT(q->magic == ASYNC_MAGIC);
    *queue_p = NULL;
    pthread_mutex_lock(&q->mutex);
    q->closing = true;
    struct task *t = NULL;
    while ((t = list_pop(&q->queued)) != NULL) cancel_task(q, t);
    pthread_cond_broadcast(&q->work);
    pthread_mutex_unlock(&q->mutex);
    for (size_t i = 0; i < q->n_workers; i++) pthread_join(q->workers[i], NULL);
    while ((t = list_pop(&q->completed)) != NULL) free(t);
    __atomic_sub_fetch(&q->client->async_pending, q->pending, __ATOMIC_RELAXED);
    close(q->event_fd);
    pthread_cond_destroy(&q->work);
    pthread_cond_destroy(&q->done);
    pthread_mutex_destroy(&q->mutex);
    free(q->workers);
    q->magic = 0;
    free(q);
}

/* --- submitting --- */

static tarn_status submit(struct tarn_async *q, struct task *t, uint64_t *id_p) {
    tarn_status status = TARN_OK;
    pthread_mutex_lock(&q->mutex);
    if (q->pending == q->capacity) {
        status = fail(TARN_EAGAIN, "%zu submissions are pending: take completions out first",
                      q->capacity);
    } else {
        t->completion.id = q->next_id++;
        if (id_p != NULL) *id_p = t->completion.id;
        q->pending++;
        __atomic_add_fetch(&q->client->async_pending, 1, __ATOMIC_RELAXED);
        list_push(&q->queued, t);
        pthread_cond_signal(&q->work);
    }
    pthread_mutex_unlock(&q->mutex);
    if (status != TARN_OK) free(t);
    return status;
}

static tarn_status new_task(struct tarn_async *q, int op, tarn_item *items, size_t n, void *user,
                            struct task **task_p) {
    if (q == NULL || q->magic != ASYNC_MAGIC) return fail(TARN_EINVAL, "this is not an open queue");
    if (items == NULL && n > 0) return fail(TARN_EINVAL, "no items");
    struct task *t = xcalloc(1, sizeof(*t));
    t->completion = (tarn_completion){.user = user, .op = op, .items = items, .n = n};
    *task_p = t;
    return TARN_OK;
}

tarn_status tarn_async_get(tarn_async *queue, tarn_item *items, size_t n, const tarn_call *call,
                           void *user, uint64_t *id_p) {
    struct task *t = NULL;
    tarn_status status = new_task(queue, TARN_OP_GET, items, n, user, &t);
    if (status != TARN_OK) return status;
    client_call_copy(&t->call, call);
    t->call.size = sizeof(t->call);
    return submit(queue, t, id_p);
}

tarn_status tarn_async_put(tarn_async *queue, tarn_item *items, size_t n,
                           const tarn_put_options *options, void *user, uint64_t *id_p) {
    struct task *t = NULL;
    tarn_status status = new_task(queue, TARN_OP_PUT, items, n, user, &t);
    if (status != TARN_OK) return status;
    client_put_options_copy(&t->put, options);
    t->put.size = sizeof(t->put);
    return submit(queue, t, id_p);
}

tarn_status tarn_async_exists(tarn_async *queue, tarn_item *items, size_t n, void *user,
                              uint64_t *id_p) {
    struct task *t = NULL;
    tarn_status status = new_task(queue, TARN_OP_EXISTS, items, n, user, &t);
    return status == TARN_OK ? submit(queue, t, id_p) : status;
}

tarn_status tarn_async_remove(tarn_async *queue, tarn_item *items, size_t n, void *user,
                              uint64_t *id_p) {
    struct task *t = NULL;
    tarn_status status = new_task(queue, TARN_OP_REMOVE, items, n, user, &t);
    return status == TARN_OK ? submit(queue, t, id_p) : status;
}

/* --- taking out --- */

int tarn_async_fd(const tarn_async *queue) {
    return queue->event_fd;
}

static bool wait_done(struct tarn_async *q, uint64_t timeout_ms) {
    if (timeout_ms == 0) return false;
    if (timeout_ms > UINT64_C(86400000) * 365) {
        pthread_cond_wait(&q->done, &q->mutex);
        return true;
    }
    struct timespec ts;
    uint64_t until = clock_mono_ns() + timeout_ms * 1000000;
    ts.tv_sec = (time_t)(until / 1000000000);
    ts.tv_nsec = (long)(until % 1000000000);
    return pthread_cond_timedwait(&q->done, &q->mutex, &ts) == 0;
}

size_t tarn_async_poll(tarn_async *queue, tarn_completion *completions, size_t max,
                       uint64_t timeout_ms) {
    if (queue == NULL || queue->magic != ASYNC_MAGIC || max == 0) return 0;
    struct tarn_async *q = queue;
    size_t n = 0;
    uint64_t until = add_sat(clock_mono_ms(), timeout_ms);
    pthread_mutex_lock(&q->mutex);
    while (q->completed.head == NULL) {
        uint64_t now = clock_mono_ms();
        if (now >= until || !wait_done(q, until == UINT64_MAX ? UINT64_MAX : until - now)) break;
    }
    struct task *t = NULL;
    while (n < max && (t = list_pop(&q->completed)) != NULL) {
        completions[n++] = t->completion;
        free(t);
    }
    eventfd_t ignored;
    if (n > 0 && q->completed.head == NULL) eventfd_read(q->event_fd, &ignored);
    q->pending -= n;
    pthread_mutex_unlock(&q->mutex);
    __atomic_sub_fetch(&q->client->async_pending, n, __ATOMIC_RELAXED);
    return n;
}

tarn_status tarn_async_cancel(tarn_async *queue, uint64_t id) {
    if (queue == NULL || queue->magic != ASYNC_MAGIC)
        return fail(TARN_EINVAL, "this is not an open queue");
    struct tarn_async *q = queue;
    tarn_status status = TARN_ENOTFOUND;
    pthread_mutex_lock(&q->mutex);
    struct task *t = list_take_id(&q->queued, id);
    if (t != NULL) {
        cancel_task(q, t);
        status = TARN_OK;
    }
    for (t = q->running; t != NULL && status != TARN_OK; t = t->next) {
        if (t->completion.id == id) status = TARN_EAGAIN;
    }
    pthread_mutex_unlock(&q->mutex);
    if (status == TARN_ENOTFOUND) fail(status, "no such submission is queued or running");
    if (status == TARN_EAGAIN) fail(status, "it runs already, and will complete");
    return status;
}
