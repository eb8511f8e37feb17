#include "kvevents/follow.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/wake.h"
#include "kvevents/stream.h"

#define FOLLOW_MAGIC UINT32_C(0x6b766677)

struct kvevents_follow {
    uint32_t magic;
    struct kvevents_follow_config config;
    void *context;
    pthread_t thread;
    int wake_fd;  /* the thread has something to look at */
    int ready_fd; /* there is something to take; written and read under the lock */

    pthread_mutex_t lock; /* held for a moment only; nothing else is locked under it */
    bool stop;
    uint32_t last_id, count;               /* count: streams that are not removed */
    TAILQ_HEAD(, kvevents_stream) streams; /* removed ones until the thread sees it */
    struct kvevents_stream **known;        /* `count` that are not, by id */
    size_t known_cap;
    TAILQ_HEAD(, kvevents_stream) ready; /* with something to take, the longest untaken first */

    /* --- the thread's --- */
    struct kvevents_decoder *decoder;
    zmq_pollitem_t *poll;
    struct kvevents_stream **served; /* whose poll[2 i + 1] and poll[2 i + 2] are */
    size_t polled_cap;
    uint64_t trouble_ms; /* log_is_news */
};

#define ROW(...) FIGURE_ROW(struct kvevents_figures, __VA_ARGS__)
const struct figure kvevents_figures[] = {KVEVENTS_FIGURES(ROW){.name = NULL}};

const char *kvevents_state_name(enum kvevents_state state) {
    static const char *const names[] = {"connecting", "replaying", "live"};
    return names[state];
}

void kvevents_follow_defaults(struct kvevents_follow_config *config) {
    *config = (struct kvevents_follow_config){
        .message_max_bytes = 4u << 20,
        .queue_max_bytes = 16u << 20,
        .streams_max = 1024,
        .replay_timeout_ms = 5000,
        .replay_tries = 3,
        .replay_pause_ms = 500,
        .broken_ms = 60000,
        .verify_ms = 10000,
        .reconnect_max_ms = 5000,
    };
}

/* --- what a stream asks for --- */

void *follow_context(struct kvevents_follow *f) {
    return f->context;
}

const struct kvevents_follow_config *follow_config(const struct kvevents_follow *f) {
    return &f->config;
}

bool follow_full(const struct kvevents_stream *s) {
    pthread_mutex_lock(&s->follow->lock);
    bool full = s->full;
    pthread_mutex_unlock(&s->follow->lock);
    return full;
}

static void item_free(struct stream_item *item) {
    kvevents_batch_destroy(&item->item.batch);
    free(item);
}

/* Under the lock. */
static void follow_push(struct kvevents_stream *s, struct stream_item *item) {
    struct kvevents_follow *f = s->follow;
    if (s->removed) {
        item_free(item);
        return;
    }
    if (item->item.batch != NULL) s->queued_bytes += item->item.batch->bytes + sizeof(*item);
    if (STAILQ_EMPTY(&s->items)) {
        if (TAILQ_EMPTY(&f->ready)) wake_say(f->ready_fd);
        TAILQ_INSERT_TAIL(&f->ready, s, ready);
    }
    STAILQ_INSERT_TAIL(&s->items, item, link);
}

/* Under the lock. */
static void follow_drop(struct kvevents_stream *s) {
    struct stream_item *item;
    if (!STAILQ_EMPTY(&s->items)) TAILQ_REMOVE(&s->follow->ready, s, ready);
    while ((item = STAILQ_TAKE(&s->items, link)) != NULL) item_free(item);
    s->queued_bytes = 0;
    s->full = false;
}

tarn_status follow_decode(struct kvevents_stream *s, struct span payload,
                          struct kvevents_batch **batch_p, const char **why_p) {
    return kvevents_decode(s->follow->decoder, payload, batch_p, why_p);
}

void follow_hand_over(struct kvevents_stream *s, uint64_t number, struct kvevents_batch *batch) {
    struct kvevents_follow *f = s->follow;
    struct stream_item *item = xcalloc(1, sizeof(*item));
    item->item = (struct kvevents_item){.id = s->id, .number = number, .batch = batch};
    pthread_mutex_lock(&f->lock);
    follow_push(s, item);
    bool full = s->queued_bytes >= f->config.queue_max_bytes;
    s->info.figures.kvevents_stalls += full && !s->full;
    s->full = full;
    s->shown = stream_info(s);
    pthread_mutex_unlock(&f->lock);
}

void follow_lost(struct kvevents_stream *s, const char *why) {
    struct stream_item *item = xcalloc(1, sizeof(*item));
    item->item.id = s->id;
    snprintf(item->item.why, KVEVENTS_WHY, "%s", why);
    pthread_mutex_lock(&s->follow->lock);
    follow_drop(s);
    follow_push(s, item);
    s->shown = stream_info(s);
    pthread_mutex_unlock(&s->follow->lock);
}

/* --- the thread --- */

/* NULL: nothing is waited for there. */
static void follow_poll(struct kvevents_follow *f, size_t at, void *socket) {
    f->poll[at] = (zmq_pollitem_t){.socket = socket, .events = ZMQ_POLLIN};
    if (socket == NULL) f->poll[at] = (zmq_pollitem_t){.fd = f->wake_fd};
}

/* What is to be waited for, and until when; the streams that were removed are gone then. Returns
 * how many are served. */
static size_t follow_gather(struct kvevents_follow *f, uint64_t *due_p) {
    struct kvevents_stream *s, *next, *gone = NULL;
    size_t n = 0;
    pthread_mutex_lock(&f->lock);
    QUEUE_FOREACH_SAFE(TAILQ, s, &f->streams, link, next) {
        if (!s->removed) {
            if (n == f->polled_cap) {
                f->polled_cap = 2 * n + 8;
                f->served = xrealloc(f->served, f->polled_cap * sizeof(*f->served));
                f->poll = xrealloc(f->poll, (2 * f->polled_cap + 1) * sizeof(*f->poll));
            }
            f->served[n++] = s;
            continue;
        }
        TAILQ_REMOVE(&f->streams, s, link);
        s->link.tqe_next = gone;
        gone = s;
    }
    pthread_mutex_unlock(&f->lock);
    while (gone != NULL) {
        s = gone;
        gone = s->link.tqe_next;
        stream_destroy(&s);
    }
    f->poll[0] = (zmq_pollitem_t){.fd = f->wake_fd, .events = ZMQ_POLLIN};
    *due_p = UINT64_MAX;
    for (size_t i = 0; i < n; i++) {
        follow_poll(f, 2 * i + 1, f->served[i]->monitor);
        follow_poll(f, 2 * i + 2, stream_socket(f->served[i]));
        *due_p = min_u64(*due_p, stream_due(f->served[i]));
    }
    return n;
}

static void follow_wait(struct kvevents_follow *f, size_t n, uint64_t due_ms) {
    uint64_t now_ms = clock_mono_ms();
    long timeout = due_ms == UINT64_MAX ? -1 : due_ms > now_ms ? (long)(due_ms - now_ms) : 0;
    if (zmq_poll(f->poll, (int)(2 * n + 1), timeout) >= 0) return;
    for (size_t i = 0; i < 2 * n + 1; i++) f->poll[i].revents = 0;
    if (zmq_errno() == EINTR) return;
    now_ms = clock_mono_ms();
    if (log_is_news(&f->trouble_ms, now_ms))
        log_warning("KV events: waiting for engines failed: %s", zmq_strerror(zmq_errno()));
    /* Perhaps it passes; all are looked at meanwhile. */
    for (size_t i = 0; i < n; i++) f->poll[2 * i + 1].revents = ZMQ_POLLIN;
    usleep(100000);
}

static void *follow_run(void *arg) {
    struct kvevents_follow *f = arg;
    for (;;) {
        uint64_t due_ms;
        size_t n = follow_gather(f, &due_ms);
        follow_wait(f, n, due_ms);
        if (f->poll[0].revents != 0) wake_empty(f->wake_fd);
        pthread_mutex_lock(&f->lock);
        bool stop = f->stop;
        pthread_mutex_unlock(&f->lock);
        if (stop) return NULL;
        uint64_t now_ms = clock_mono_ms();
        for (size_t i = 0; i < n; i++) {
            struct kvevents_stream *s = f->served[i];
            if (f->poll[2 * i + 1].revents == 0 && f->poll[2 * i + 2].revents == 0 &&
                stream_due(s) > now_ms)
                continue;
            stream_serve(s, now_ms);
            struct kvevents_info info = stream_info(s);
            pthread_mutex_lock(&f->lock);
            s->shown = info;
            pthread_mutex_unlock(&f->lock);
        }
    }
}

/* --- from outside --- */

static void follow_free(struct kvevents_follow *f) {
    struct kvevents_stream *s;
    while ((s = TAILQ_TAKE(&f->streams, link)) != NULL) {
        follow_drop(s);
        stream_destroy(&s);
    }
    if (f->context != NULL)
        while (zmq_ctx_term(f->context) != 0 && zmq_errno() == EINTR) {
        }
    if (f->wake_fd >= 0) close(f->wake_fd);
    if (f->ready_fd >= 0) close(f->ready_fd);
    kvevents_decoder_destroy(&f->decoder);
    pthread_mutex_destroy(&f->lock);
    free(f->poll);
    free(f->served);
    free(f->known);
    free(f);
}

static bool follow_open(struct kvevents_follow *f) {
    f->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (f->wake_fd < 0) return false;
    f->ready_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (f->ready_fd < 0) return false;
    f->context = zmq_ctx_new();
    /* Of each stream: sub, the two ends of its monitor, a replay; closed ones count for a while. */
    int sockets = (int)min_u64(8 * (uint64_t)f->config.streams_max + 1024, INT32_MAX);
    return f->context != NULL && zmq_ctx_set(f->context, ZMQ_MAX_SOCKETS, sockets) == 0;
}

tarn_status kvevents_follow_create(const struct kvevents_follow_config *config,
                                   struct kvevents_follow **f_p) {
    TARN_ASSERT(config->message_max_bytes > 0 && config->queue_max_bytes > 0 &&
                config->streams_max > 0 && config->replay_timeout_ms > 0 &&
                config->replay_tries > 0 && config->reconnect_max_ms > 0);
    struct kvevents_follow *f = xcalloc(1, sizeof(*f));
    f->magic = FOLLOW_MAGIC;
    f->config = *config;
    f->decoder = kvevents_decoder_create(config->seed, config->message_max_bytes);
    f->poll = xcalloc(1, sizeof(*f->poll));
    TAILQ_INIT(&f->streams);
    TAILQ_INIT(&f->ready);
    pthread_mutex_init(&f->lock, NULL);
    f->wake_fd = f->ready_fd = -1;
    if (!follow_open(f)) {
        log_warning("KV events of engines cannot be followed: %s", zmq_strerror(zmq_errno()));
        follow_free(f);
        return TARN_EIO;
    }
    int error = thread_start(&f->thread, "kvevents", follow_run, f);
    if (error != 0) {
        log_warning("KV events of engines cannot be followed: no thread: %s", strerror(error));
        follow_free(f);
        return TARN_ENOMEM;
    }
    *f_p = f;
    return TARN_OK;
}

void kvevents_follow_destroy(struct kvevents_follow **f_p) {
    struct kvevents_follow *f = *f_p;
    *f_p = NULL;
    if (f == NULL) return;
    MAGIC_CHECK(f, FOLLOW_MAGIC);
    pthread_mutex_lock(&f->lock);
    f->stop = true;
    pthread_mutex_unlock(&f->lock);
    wake_say(f->wake_fd);
    pthread_join(f->thread, NULL);
    f->magic = 0;
    follow_free(f);
}

tarn_status kvevents_follow_add(struct kvevents_follow *f, const struct kvevents_source *source,
                                uint32_t *id_p) {
    MAGIC_CHECK(f, FOLLOW_MAGIC);
    tarn_status rc = TARN_ELIMIT;
    if (f->count == f->config.streams_max || f->last_id == UINT32_MAX) return rc;
    struct kvevents_stream *s = stream_create(f, ++f->last_id, source, &rc);
    if (s == NULL) return rc;
    /* The thread has its sockets from here on; the lock is the fence that libzmq asks for. */
    pthread_mutex_lock(&f->lock);
    ARRAY_GROW(f->known, f->count, f->known_cap);
    f->known[f->count++] = s; /* the highest id there ever was */
    TAILQ_INSERT_TAIL(&f->streams, s, link);
    *id_p = s->id;
    pthread_mutex_unlock(&f->lock);
    wake_say(f->wake_fd);
    return TARN_OK;
}

/* Under the lock. Where it is in `known`; count: unknown, or removed. */
static uint32_t follow_find(const struct kvevents_follow *f, uint32_t id) {
    uint32_t first = 0, end = f->count;
    while (first < end) {
        uint32_t middle = first + (end - first) / 2;
        if (f->known[middle]->id == id) return middle;
        if (f->known[middle]->id < id)
            first = middle + 1;
        else
            end = middle;
    }
    return f->count;
}

void kvevents_follow_remove(struct kvevents_follow *f, uint32_t id) {
    MAGIC_CHECK(f, FOLLOW_MAGIC);
    pthread_mutex_lock(&f->lock);
    uint32_t at = follow_find(f, id);
    bool there = at < f->count;
    if (there) {
        follow_drop(f->known[at]);
        f->known[at]->removed = true;
        f->count--;
        memmove(f->known + at, f->known + at + 1, (f->count - at) * sizeof(*f->known));
    }
    pthread_mutex_unlock(&f->lock);
    if (there) wake_say(f->wake_fd);
}

bool kvevents_follow_info(struct kvevents_follow *f, uint32_t id, struct kvevents_info *info) {
    MAGIC_CHECK(f, FOLLOW_MAGIC);
    pthread_mutex_lock(&f->lock);
    uint32_t at = follow_find(f, id);
    bool there = at < f->count;
    if (there) {
        *info = f->known[at]->shown;
        info->figures.kvevents_queued_bytes = f->known[at]->queued_bytes;
    }
    pthread_mutex_unlock(&f->lock);
    return there;
}

bool kvevents_follow_take(struct kvevents_follow *f, struct kvevents_item *item) {
    MAGIC_CHECK(f, FOLLOW_MAGIC);
    bool wake = false;
    pthread_mutex_lock(&f->lock);
    struct kvevents_stream *s = TAILQ_FIRST(&f->ready);
    struct stream_item *taken = NULL;
    if (s == NULL) {
        wake_empty(f->ready_fd);
    } else {
        taken = STAILQ_TAKE(&s->items, link);
        TAILQ_REMOVE(&f->ready, s, ready);
        if (!STAILQ_EMPTY(&s->items)) TAILQ_INSERT_TAIL(&f->ready, s, ready);
        if (taken->item.batch != NULL) s->queued_bytes -= taken->item.batch->bytes + sizeof(*taken);
        wake = s->full && s->queued_bytes <= f->config.queue_max_bytes / 2;
        if (wake) s->full = false;
    }
    pthread_mutex_unlock(&f->lock);
    if (wake) wake_say(f->wake_fd);
    if (taken == NULL) return false;
    *item = taken->item;
    free(taken);
    return true;
}

int kvevents_follow_fd(const struct kvevents_follow *f) {
    MAGIC_CHECK(f, FOLLOW_MAGIC);
    return f->ready_fd;
}
