/* Batches: submitted by any thread, run by a worker on a lane of their peer, cancelled by anybody.
 *
 *   QUEUED ─given to a worker─> RUNNING ─> OVER ─release─> gone
 *      └──────cancel, peer broken───────────^
 *
 * Tasks are the worker's while the batch runs and the caller's afterwards. */
#include <stdio.h>
#include <stdlib.h>

#include "base/assert.h"
#include "base/thread.h"
#include "client/client.h"
#include "client/error.h"
#include "client/lane.h"
#include "transfer/transfer.h"

/* For a peer's memory to be registered, where nothing but RDMA will do. */
#define REGISTER_MS 2000u
/* Batches that are looked at to find a peer that has the least of the workers. */
#define SCAN_MAX 64u

/* --- workers --- */

/* Under the mutex. */
static void batch_finish(struct tarn_transfer_batch *b, tarn_status status, const char *why) {
    struct tarn_transfer *t = b->peer->end;
    for (size_t i = 0; i < b->n_tasks; i++) {
        tarn_transfer_task *task = &b->tasks[i];
        if (task->status == TARN_EAGAIN) { /* it never ran */
            task->status = status;
            task->settled = 1;
        }
        b->failed += task->status != TARN_OK;
        if (status == TARN_OK && task->status != TARN_OK) {
            status = (tarn_status)task->status;
            why = NULL;
        }
    }
    b->status = status;
    snprintf(b->why, sizeof(b->why), "%s", why != NULL ? why : tarn_status_text(status));
    b->state = TARN_TRANSFER_OVER;
    t->n_batches--;
    t->stats.operations += b->operations;
    t->stats.failed += b->failed;
    t->stats.bytes_read += b->moved[0];
    t->stats.bytes_written += b->moved[1];
    t->stats.shm_bytes += client_bytes_of(b->by, "shm");
    t->stats.tcp_bytes += client_bytes_of(b->by, "tcp");
    t->stats.rdma_bytes += client_bytes_of(b->by, "rdma");
    pthread_cond_broadcast(&b->changed);
}

static bool all_ok(const struct tarn_transfer_batch *b) {
    for (size_t i = 0; i < b->n_tasks; i++)
        if (b->tasks[i].status != TARN_OK) return false;
    return true;
}

/* After the bytes. Under the mutex, which is given up meanwhile. */
static tarn_status say_done(struct tarn_transfer_batch *b) {
    if (b->done == NULL || !all_ok(b)) return TARN_OK;
    const struct span args[] = {span_str(b->done), span_of(b->message, b->message_len)};
    return transfer_peer_call(b->peer, "DONE", args, 2, b->deadline, &b->cancelled, NULL);
}

/* What is broken, or was cancelled, says so itself: the engine only knows that it was stopped. */
static void set_reason(struct tarn_transfer_batch *b) {
    if (b->peer->broken == TARN_OK || b->cancelled) return;
    for (size_t i = 0; i < b->n_tasks; i++) {
        if (b->tasks[i].status != TARN_OK && b->tasks[i].status != TARN_EAGAIN)
            b->tasks[i].status = TARN_ECLOSED;
    }
}

/* Which of our own memory only RDMA reaches. The caller frees. */
static struct engine_buffer *devices_list(const struct tarn_transfer *t, size_t *n_p) {
    const struct transfer_region *r;
    struct engine_buffer *list = xcalloc(t->n_regions + 1, sizeof(*list));
    *n_p = 0;
    LIST_FOREACH(r, &t->regions, link) {
        if (r->memory.device) list[(*n_p)++] = r->memory;
    }
    return list;
}

static enum transfer_way find_way(struct tarn_transfer_batch *b, const struct transfer_map *map) {
    struct tarn_transfer *t = b->peer->end;
    size_t n;
    struct engine_buffer *list = devices_list(t, &n);
    pthread_mutex_unlock(&t->mutex);
    enum transfer_way way = transfer_batch_way(b, map, list, n);
    free(list);
    pthread_mutex_lock(&t->mutex);
    return way;
}

/* The peer's regions, asked for anew when they do not hold what the tasks name: those may be newer
 * than what we know. Where only RDMA will do they are asked for until they are registered over
 * there, for a while. */
static tarn_status find_map(struct tarn_transfer_batch *b, struct transfer_map **map_p) {
    struct tarn_transfer *t = b->peer->end;
    uint64_t until = min_u64(b->deadline, now_ms() + REGISTER_MS);
    for (;;) {
        bool new = b->peer->map == NULL; /* then they are asked for now */
        tarn_status status = transfer_peer_map(b->peer, b->deadline, &b->cancelled, map_p);
        if (status != TARN_OK) return status;
        enum transfer_way way = find_way(b, *map_p);
        if (way == TRANSFER_LEADS || b->cancelled || (way == TRANSFER_UNKNOWN && new))
            return TARN_OK;
        if (way == TRANSFER_LATER &&
            !transfer_cond_wait(t, &b->changed, min_u64(until, now_ms() + 20)))
            return TARN_OK;
        if (b->peer->map == *map_p) transfer_map_put(&b->peer->map);
        transfer_map_put(map_p);
    }
}

static void batch_bytes_move(struct tarn_transfer_batch *b, struct transfer_map *map) {
    struct tarn_transfer *t = b->peer->end;
    struct transfer_lane *lane = b->lane;
    size_t n_news;
    struct transfer_known *news = transfer_lane_news(t, lane, &n_news);
    bool fresh = transfer_lane_map(lane, map);
    pthread_mutex_unlock(&t->mutex);
    transfer_lane_tell(lane, news, n_news);
    transfer_batch_move(b, lane, map, fresh);
    pthread_mutex_lock(&t->mutex);
    b->lane = NULL;
    lane->busy = false;
    if (b->peer->broken != TARN_OK) transfer_lane_free(lane);
}

/* Under the mutex, which is given up while bytes move. */
static void batch_run_on_lane(struct tarn_transfer_batch *b) {
    struct tarn_transfer_peer *p = b->peer;
    struct transfer_map *map;
    tarn_status status = find_map(b, &map);
    if (status == TARN_OK) {
        if (b->cancelled)
            status = fail(TARN_ECANCELED, "cancelled");
        else if (p->broken != TARN_OK)
            status = fail(TARN_ECLOSED, "the peer is gone: %s", p->why);
        else
            status = transfer_lane_get(p, &b->lane);
        if (status == TARN_OK) {
            batch_bytes_move(b, map);
            set_reason(b);
            status = say_done(b);
        }
        transfer_map_put(&map);
    }
    p->running--;
    p->end->running--;
    batch_finish(b, status,
                 status != TARN_OK      ? tarn_last_error()
                 : p->broken != TARN_OK ? p->why
                                        : NULL);
}

/* The oldest of those whose peers have the least of the workers, and not all that one may have: a
 * peer that does not answer is not to keep the others waiting. */
static struct tarn_transfer_batch *batch_take(struct tarn_transfer *t) {
    struct tarn_transfer_batch *b, *best = NULL;
    unsigned looked = 0;
    STAILQ_FOREACH(b, &t->queue, link) {
        bool may = b->peer->running < t->options.workers;
        if (may && (best == NULL || b->peer->running < best->peer->running)) best = b;
        if (best != NULL && (best->peer->running == 0 || ++looked == SCAN_MAX)) break;
    }
    if (best != NULL) STAILQ_REMOVE(&t->queue, best, tarn_transfer_batch, link);
    return best;
}

/* What may run now goes to the workers. Under the mutex. */
static void workers_feed(struct tarn_transfer *t) {
    struct tarn_transfer_batch *b;
    while (t->running < TRANSFER_WORKERS_MAX && (b = batch_take(t)) != NULL) {
        b->state = TARN_TRANSFER_RUNNING;
        b->peer->running++;
        t->running++;
        crew_add(&t->workers, &b->job);
    }
}

/* In a worker. */
static bool worker_run(struct crew_job *job) {
    struct tarn_transfer_batch *b = CONTAINER_OF(job, struct tarn_transfer_batch, job);
    struct tarn_transfer *t = b->peer->end;
    pthread_mutex_lock(&t->mutex);
    batch_run_on_lane(b);
    workers_feed(t);
    pthread_mutex_unlock(&t->mutex);
    return false; /* it may have been released */
}

/* --- from above --- */

static void batch_stop(struct tarn_transfer_batch *b) {
    b->cancelled = true;
    transfer_peer_nudge(b->peer);
    if (b->lane != NULL) __atomic_store_n(&b->lane->stop, true, __ATOMIC_RELAXED);
}

static void batch_unqueue(struct tarn_transfer_batch *b, tarn_status status, const char *why) {
    STAILQ_REMOVE(&b->peer->end->queue, b, tarn_transfer_batch, link);
    batch_finish(b, status, why);
}

void transfer_batches_stop(struct tarn_transfer_peer *p, tarn_status status, const char *why) {
    struct tarn_transfer *t = p->end;
    struct tarn_transfer_batch *b, *next;
    STAILQ_FOREACH_SAFE(b, &t->queue, link, next) {
        if (b->peer == p) batch_unqueue(b, status, why);
    }
    struct transfer_lane *lane;
    LIST_FOREACH(lane, &p->lanes, link) {
        if (lane->busy) __atomic_store_n(&lane->stop, true, __ATOMIC_RELAXED);
    }
}

void tarn_transfer_call_init(tarn_transfer_call *call) {
    *call = (tarn_transfer_call){.size = sizeof(*call)};
}

static tarn_status batch_tasks_check(const tarn_transfer_task *tasks, size_t n, uint64_t *bytes_p) {
    if (tasks == NULL || n == 0 || n > TARN_TRANSFER_TASKS_MAX)
        return fail(TARN_EINVAL, "a batch has 1 to %d tasks", TARN_TRANSFER_TASKS_MAX);
    for (size_t i = 0; i < n; i++) {
        const tarn_transfer_task *task = &tasks[i];
        bool op = task->op == TARN_TRANSFER_READ || task->op == TARN_TRANSFER_WRITE;
        if (!op || (task->local == NULL && task->length > 0) ||
            (uintptr_t)task->local + task->length < (uintptr_t)task->local)
            return fail(TARN_EINVAL, "task %zu: READ or WRITE, and local memory of that length", i);
        *bytes_p = add_sat(*bytes_p, task->length);
    }
    return TARN_OK;
}

static struct tarn_transfer_batch *batch_create(struct tarn_transfer_peer *p,
                                                tarn_transfer_task *tasks, size_t n,
                                                const tarn_transfer_call *c, uint64_t bytes) {
    struct tarn_transfer_batch *b = xcalloc(1, sizeof(*b));
    b->magic = TRANSFER_BATCH_MAGIC;
    b->job.run = worker_run;
    b->peer = p;
    b->tasks = tasks;
    b->n_tasks = n;
    b->deadline = transfer_deadline(p->end, c->timeout_ms, bytes);
    thread_cond_init(&b->changed);
    if (c->done != NULL) {
        b->done = xstrdup(c->done);
        b->message = c->message_len > 0 ? xmemdup(c->message, c->message_len) : NULL;
        b->message_len = c->message_len;
    }
    for (size_t i = 0; i < n; i++) {
        tasks[i].status = TARN_EAGAIN;
        tasks[i].done = 0;
        tasks[i].settled = 1;
    }
    return b;
}

static void batch_free(struct tarn_transfer_batch *b) {
    pthread_cond_destroy(&b->changed);
    free(b->done);
    free(b->message);
    b->magic = 0;
    free(b);
}

tarn_status tarn_transfer_submit(tarn_transfer_peer *p, tarn_transfer_task *tasks, size_t n,
                                 const tarn_transfer_call *call, tarn_transfer_batch **batch_p) {
    tarn_status status = transfer_peer_usable(p);
    if (status != TARN_OK) return status;
    uint64_t bytes = 0;
    status = batch_tasks_check(tasks, n, &bytes);
    if (status != TARN_OK) return status;
    tarn_transfer_call c;
    tarn_transfer_call_init(&c);
    if (call != NULL) memcpy(&c, call, min_u64(call->size, sizeof(c)));
    bool done_ok =
        c.done == NULL || (c.done[0] != '\0' && strlen(c.done) <= TARN_TRANSFER_LABEL_MAX);
    if (!done_ok || batch_p == NULL || c.message_len > TARN_TRANSFER_MESSAGE_MAX ||
        (c.message == NULL && c.message_len > 0))
        return fail(TARN_EINVAL,
                    "a label or a message is too long, or there is no place for the batch");
    struct tarn_transfer *t = p->end;
    struct tarn_transfer_batch *b = batch_create(p, tasks, n, &c, bytes);
    pthread_mutex_lock(&t->mutex);
    if (p->broken != TARN_OK) {
        status = fail(TARN_ECLOSED, "the peer is gone: %s", p->why);
    } else if (t->n_batches >= TRANSFER_BATCHES_MAX) {
        status = fail(TARN_EAGAIN, "%u batches are under way", TRANSFER_BATCHES_MAX);
    } else {
        STAILQ_INSERT_TAIL(&t->queue, b, link);
        t->n_batches++;
        p->batches++;
        t->stats.batches_total++;
        t->stats.tasks += n;
        workers_feed(t);
    }
    pthread_mutex_unlock(&t->mutex);
    if (status == TARN_OK)
        *batch_p = b;
    else
        batch_free(b);
    return status;
}

static tarn_status batch_usable(const struct tarn_transfer_batch *b) {
    if (b == NULL || b->magic != TRANSFER_BATCH_MAGIC)
        return fail(TARN_EINVAL, "this is not a batch");
    return transfer_usable(b->peer->end);
}

tarn_status tarn_transfer_wait(tarn_transfer_batch *b, uint64_t timeout_ms) {
    tarn_status status = batch_usable(b);
    if (status != TARN_OK) return status;
    struct tarn_transfer *t = b->peer->end;
    uint64_t deadline =
        timeout_ms == TARN_NO_TIMEOUT ? DEADLINE_NONE : add_sat(now_ms(), timeout_ms);
    pthread_mutex_lock(&t->mutex);
    while (b->state != TARN_TRANSFER_OVER && timeout_ms > 0 &&
           transfer_cond_wait(t, &b->changed, deadline))
        continue;
    if (b->state != TARN_TRANSFER_OVER)
        status = TARN_EAGAIN;
    else if (b->status != TARN_OK)
        status = fail(b->status, "%s", b->why);
    pthread_mutex_unlock(&t->mutex);
    return status;
}

void tarn_transfer_cancel(tarn_transfer_batch *b) {
    if (batch_usable(b) != TARN_OK) return;
    struct tarn_transfer *t = b->peer->end;
    pthread_mutex_lock(&t->mutex);
    if (b->state == TARN_TRANSFER_QUEUED) batch_unqueue(b, TARN_ECANCELED, "cancelled");
    if (b->state == TARN_TRANSFER_RUNNING) batch_stop(b);
    while (b->state != TARN_TRANSFER_OVER) pthread_cond_wait(&b->changed, &t->mutex);
    pthread_mutex_unlock(&t->mutex);
}

void tarn_transfer_release(tarn_transfer_batch **batch_p) {
    if (batch_p == NULL || *batch_p == NULL) return;
    struct tarn_transfer_batch *b = *batch_p;
    *batch_p = NULL;
    if (batch_usable(b) != TARN_OK) return;
    struct tarn_transfer *t = b->peer->end;
    tarn_transfer_cancel(b);
    pthread_mutex_lock(&t->mutex);
    b->peer->batches--;
    pthread_mutex_unlock(&t->mutex);
    batch_free(b);
}

tarn_status tarn_transfer_get_batch(const tarn_transfer_batch *b, tarn_transfer_batch_info *info) {
    tarn_status status = batch_usable(b);
    if (status != TARN_OK) return status;
    if (info == NULL || info->size < sizeof(info->size))
        return fail(TARN_EINVAL, "info begins with its size");
    struct tarn_transfer *t = b->peer->end;
    tarn_transfer_batch_info i = {.size = info->size, .tasks = b->n_tasks};
    pthread_mutex_lock(&t->mutex);
    i.state = b->state;
    i.status = TARN_EAGAIN;
    if (b->state == TARN_TRANSFER_OVER) {
        i.status = b->status;
        i.operations = b->operations;
        i.failed = b->failed;
        i.bytes = b->bytes;
        memcpy(i.transport, b->transport, sizeof(i.transport));
    }
    pthread_mutex_unlock(&t->mutex);
    memcpy(info, &i, min_u64(info->size, sizeof(i)));
    return TARN_OK;
}

tarn_status tarn_transfer_run(tarn_transfer_peer *p, tarn_transfer_task *tasks, size_t n,
                              const tarn_transfer_call *call) {
    tarn_transfer_batch *b;
    tarn_status status = tarn_transfer_submit(p, tasks, n, call, &b);
    if (status != TARN_OK) return status;
    status = tarn_transfer_wait(b, TARN_NO_TIMEOUT);
    tarn_transfer_release(&b);
    return status;
}
