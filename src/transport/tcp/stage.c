#include "transport/tcp/stage.h"

#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/log.h"

#define RETRY_MS 2u

/* --- the pool --- */

void tcp_stage_pool_init(struct tcp_stage_pool *p, uint64_t bytes) {
    *p = (struct tcp_stage_pool){0};
    if (bytes == 0) bytes = TCP_STAGE_DEFAULT_BYTES;
    p->max = (size_t)max_u64(bytes / TRANSPORT_STAGE_PIECE, 1);
    p->buffers = xcalloc(p->max, sizeof(*p->buffers));
    TAILQ_INIT(&p->free);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->back, NULL);
    TAILQ_INIT(&p->waiting);
}

void tcp_stage_pool_deinit(struct tcp_stage_pool *p) {
    TARN_ASSERT(TAILQ_EMPTY(&p->waiting));
    pthread_mutex_lock(&p->lock);
    while (p->n_free < p->made) pthread_cond_wait(&p->back, &p->lock);
    pthread_mutex_unlock(&p->lock);
    if (p->memory != NULL) munmap(p->memory, p->max * TRANSPORT_STAGE_PIECE);
    free(p->buffers);
    pthread_cond_destroy(&p->back);
    pthread_mutex_destroy(&p->lock);
}

uint64_t tcp_stage_pool_used(struct tcp_stage_pool *p) {
    pthread_mutex_lock(&p->lock);
    uint64_t used = (p->made - p->n_free) * TRANSPORT_STAGE_PIECE;
    pthread_mutex_unlock(&p->lock);
    return used;
}

bool tcp_stage_pool_short(const struct tcp_stage_pool *p) {
    return __atomic_load_n(&p->n_waiting, __ATOMIC_RELAXED) > 0;
}

/* The next five under the pool's lock. */
static bool is_turn(const struct tcp_stage_pool *p, const struct tcp_stager *s) {
    return TAILQ_EMPTY(&p->waiting) || TAILQ_FIRST(&p->waiting) == s;
}

static size_t buffers_left(const struct tcp_stage_pool *p) {
    return p->n_free + (p->max - p->made);
}

static void line_wake(const struct tcp_stage_pool *p) {
    const struct tcp_stager *first = TAILQ_FIRST(&p->waiting);
    if (first != NULL && buffers_left(p) > 0) (void)eventfd_write(first->wake_fd, 1);
}

static void line_enter(struct tcp_stage_pool *p, struct tcp_stager *s) {
    if (TAILQ_LINKED(s, link)) return;
    TAILQ_INSERT_TAIL(&p->waiting, s, link);
    __atomic_fetch_add(&p->n_waiting, 1, __ATOMIC_RELAXED);
}

static void line_leave(struct tcp_stage_pool *p, struct tcp_stager *s) {
    if (!TAILQ_LINKED(s, link)) return;
    TAILQ_UNLINK(&p->waiting, s, link);
    __atomic_fetch_sub(&p->n_waiting, 1, __ATOMIC_RELAXED);
    line_wake(p);
}

static void buffer_put(struct tcp_stage_pool *p, struct tcp_stage_buffer *b) {
    pthread_mutex_lock(&p->lock);
    if (--b->users == 0) {
        if (b->state != TCP_BUFFER_READ) b->has.mark = 0;
        if (b->has.mark != 0)
            TAILQ_INSERT_TAIL(&p->free, b, link);
        else
            TAILQ_INSERT_HEAD(&p->free, b, link);
        p->n_free++;
        line_wake(p);
        if (p->n_free == p->made) pthread_cond_signal(&p->back);
    }
    pthread_mutex_unlock(&p->lock);
}

/* One that nobody had yet. All lie in a row in huge pages, where there are any: a disk's transfer
 * pins its pages one by one. NULL: there is no memory. */
static struct tcp_stage_buffer *buffer_make(struct tcp_stage_pool *p) {
    if (p->memory == NULL) {
        uint64_t size = p->max * TRANSPORT_STAGE_PIECE;
        void *m = mmap(NULL, size, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (m == MAP_FAILED) return NULL;
        (void)madvise(m, size, MADV_HUGEPAGE); /* a wish */
        p->memory = m;
    }
    struct tcp_stage_buffer *b = &p->buffers[p->made];
    b->pool = p;
    b->at = p->memory + p->made++ * TRANSPORT_STAGE_PIECE;
    TAILQ_INIT(&b->waiting);
    return b;
}

/* One that keeps nothing, if there is one. */
static struct tcp_stage_buffer *buffer_take(struct tcp_stage_pool *p) {
    struct tcp_stage_buffer *b = TAILQ_FIRST(&p->free);
    if ((b == NULL || b->has.mark != 0) && p->made < p->max) return buffer_make(p);
    TAILQ_REMOVE(&p->free, b, link);
    p->n_free--;
    b->has.mark = 0;
    return b;
}

/* TARN_EAGAIN: s is in line. */
static tarn_status buffer_get(struct tcp_stager *s, struct tcp_stage_buffer **buffer_p) {
    struct tcp_stage_pool *p = s->pool;
    pthread_mutex_lock(&p->lock);
    if (!is_turn(p, s) || buffers_left(p) == 0) {
        line_enter(p, s);
        pthread_mutex_unlock(&p->lock);
        return TARN_EAGAIN;
    }
    s->took = true;
    struct tcp_stage_buffer *b = buffer_take(p);
    if (b == NULL) line_wake(p);
    pthread_mutex_unlock(&p->lock);
    if (b == NULL) {
        log_warning("No memory for staging buffers");
        return TARN_ENOMEM;
    }
    *buffer_p = b;
    return TARN_OK;
}

/* --- a thread's stager --- */

void tcp_stager_init(struct tcp_stager *s, struct tcp_stage_pool *p,
                     const struct transport_gate *gate, int wake_fd,
                     struct transport_listener_stats *counters) {
    *s = (struct tcp_stager){.pool = p, .gate = gate, .wake_fd = wake_fd, .counters = counters};
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->news, NULL);
    TAILQ_INIT(&s->starved);
    TAILQ_INIT(&s->retry);
    TAILQ_INIT(&s->done);
}

static void piece_free(struct tcp_piece *piece) {
    buffer_put(piece->stager->pool, piece->held);
    free(piece);
}

static void take_done(struct tcp_stager *s, struct tcp_piece_list *list) {
    TAILQ_INIT(list);
    TAILQ_CONCAT(list, &s->done, done_link);
}

static void line_forget(struct tcp_stager *s) {
    TARN_ASSERT(TAILQ_EMPTY(&s->starved) && TAILQ_EMPTY(&s->retry));
    pthread_mutex_lock(&s->pool->lock);
    line_leave(s->pool, s);
    pthread_mutex_unlock(&s->pool->lock);
}

static void stager_end(struct tcp_stager *s) {
    pthread_cond_destroy(&s->news);
    pthread_mutex_destroy(&s->lock);
}

void tcp_stager_deinit(struct tcp_stager *s) {
    while (s->under_way > 0) {
        struct tcp_piece_list done;
        pthread_mutex_lock(&s->lock);
        while (TAILQ_EMPTY(&s->done)) pthread_cond_wait(&s->news, &s->lock);
        take_done(s, &done);
        pthread_mutex_unlock(&s->lock);
        struct tcp_piece *piece;
        while ((piece = TAILQ_TAKE(&done, done_link)) != NULL) {
            TARN_ASSERT(piece->owner == NULL);
            s->under_way--;
            piece_free(piece);
        }
    }
    line_forget(s);
    stager_end(s);
}

void tcp_stager_leave(struct tcp_stager **stager_p) {
    struct tcp_stager *s = *stager_p;
    struct tcp_piece *piece;
    *stager_p = NULL;
    line_forget(s);
    pthread_mutex_lock(&s->lock);
    while ((piece = TAILQ_TAKE(&s->done, done_link)) != NULL) {
        TARN_ASSERT(piece->owner == NULL);
        s->under_way--;
        pthread_mutex_unlock(&s->lock);
        piece_free(piece);
        pthread_mutex_lock(&s->lock);
    }
    s->left = true;
    bool over = s->under_way == 0;
    pthread_mutex_unlock(&s->lock);
    if (!over) return;
    stager_end(s);
    free(s);
}

/* Of a stager that was left; its lock is held, and let go. Without that it may be gone, but for who
 * ends it. */
static void piece_end(struct tcp_piece *piece) {
    struct tcp_stager *s = piece->stager;
    struct tcp_stage_pool *p = s->pool;
    bool over = --s->under_way == 0;
    pthread_mutex_unlock(&s->lock);
    if (over) {
        stager_end(s);
        free(s);
    }
    buffer_put(p, piece->held);
    free(piece);
}

/* Once the lock is let go the stager may be gone. */
static void piece_done(struct tcp_piece *piece, tarn_status status) {
    struct tcp_stager *s = piece->stager;
    piece->status = status;
    pthread_mutex_lock(&s->lock);
    if (s->left) {
        piece_end(piece);
        return;
    }
    bool first = TAILQ_EMPTY(&s->done);
    TAILQ_INSERT_TAIL(&s->done, piece, done_link);
    if (first) (void)eventfd_write(s->wake_fd, 1);
    pthread_cond_signal(&s->news);
    pthread_mutex_unlock(&s->lock);
}

/* From any thread. */
static void stage_done(void *arg, tarn_status status) {
    struct tcp_stage_buffer *b = arg;
    struct tcp_stage_pool *p = b->pool;
    struct tcp_piece_list waiting = TAILQ_HEAD_INITIALIZER(waiting);
    struct tcp_piece *piece;
    pthread_mutex_lock(&p->lock);
    b->state = status == TARN_OK ? TCP_BUFFER_READ : TCP_BUFFER_FAILED;
    TAILQ_CONCAT(&waiting, &b->waiting, done_link);
    pthread_mutex_unlock(&p->lock);
    while ((piece = TAILQ_TAKE(&waiting, done_link)) != NULL) piece_done(piece, status);
}

static void owner_waits(struct tcp_stager *s, struct tcp_stage_wait *owner, bool starved,
                        uint64_t now_ms) {
    owner->state = starved ? TCP_STAGE_STARVED : TCP_STAGE_RETRY;
    s->short_of |= starved;
    if (!starved && TAILQ_EMPTY(&s->retry)) s->retry_ms = now_ms + RETRY_MS;
    TAILQ_INSERT_TAIL(starved ? &s->starved : &s->retry, owner, link);
}

void tcp_stager_forget(struct tcp_stager *s, struct tcp_stage_wait *owner) {
    if (owner->state == TCP_STAGE_STARVED) TAILQ_REMOVE(&s->starved, owner, link);
    if (owner->state == TCP_STAGE_RETRY) TAILQ_REMOVE(&s->retry, owner, link);
    owner->state = TCP_STAGE_IDLE;
}

static struct tcp_piece *piece_create(struct tcp_stager *s, struct tcp_stage_wait *owner,
                                      struct tcp_stage_buffer *b, uint64_t length) {
    struct tcp_piece *piece = xcalloc(1, sizeof(*piece));
    *piece = (struct tcp_piece){
        .stager = s, .owner = owner, .held = b, .buffer = b->at, .length = length};
    return piece;
}

/* The pool's lock is held for the next two. */
static bool may_share(const struct tcp_stage_buffer *b, const struct tcp_stage_bytes *bytes,
                      uint64_t session) {
    const struct tcp_stage_bytes *has = &b->has;
    if (has->mark != bytes->mark || has->offset != bytes->offset || has->length < bytes->length ||
        has->segment != bytes->segment || has->segment_epoch != bytes->segment_epoch ||
        b->state == TCP_BUFFER_FAILED || b->n_given == TCP_STAGE_GIVEN_MAX)
        return false;
    for (unsigned i = 0; i < b->n_given; i++)
        if (b->given[i] == session) return false;
    return true;
}

/* kept: also of those that nobody uses. */
static struct tcp_stage_buffer *buffer_find(struct tcp_stage_pool *p,
                                            const struct tcp_stage_bytes *bytes, uint64_t session,
                                            bool kept) {
    for (size_t i = 0; i < p->made; i++) {
        struct tcp_stage_buffer *b = &p->buffers[i];
        /* in this order: of one that is about to be asked for, which has no mark, the rest is not
         * under the lock */
        if (may_share(b, bytes, session) && (kept || b->users > 0)) return b;
    }
    return NULL;
}

/* NULL: nobody has read that, or is about to. Buffers that nobody uses are for those in line. */
static struct tcp_piece *piece_share(struct tcp_stager *s, struct tcp_stage_wait *owner,
                                     const struct tcp_stage_bytes *bytes, uint64_t session,
                                     bool may) {
    struct tcp_stage_pool *p = s->pool;
    struct tcp_piece *piece = NULL;
    if (bytes->mark == 0) return NULL;
    pthread_mutex_lock(&p->lock);
    struct tcp_stage_buffer *b = buffer_find(p, bytes, session, may && is_turn(p, s));
    if (b != NULL) {
        piece = piece_create(s, owner, b, bytes->length);
        piece->ready = b->state == TCP_BUFFER_READ;
        if (b->users++ == 0) {
            TAILQ_REMOVE(&p->free, b, link);
            p->n_free--;
            s->took = true;
        }
        b->given[b->n_given++] = session;
        if (!piece->ready) TAILQ_INSERT_TAIL(&b->waiting, piece, done_link);
    }
    pthread_mutex_unlock(&p->lock);
    if (piece == NULL) return NULL;
    if (!piece->ready) s->under_way++;
    transport_count(&s->counters->staging_shared, 1);
    return piece;
}

/* Into a buffer that is ours alone, as it has no mark, until the gate has taken it. */
static tarn_status piece_read(struct tcp_stager *s, struct tcp_stage_wait *owner,
                              struct tcp_stage_buffer *b, const struct grant_extent *extent,
                              const struct tcp_stage_bytes *bytes, uint64_t session,
                              struct tcp_piece **piece_p) {
    struct tcp_piece *piece = piece_create(s, owner, b, bytes->length);
    b->users = 1;
    b->state = TCP_BUFFER_READING;
    b->given[0] = session;
    b->n_given = 1;
    TAILQ_INSERT_TAIL(&b->waiting, piece, done_link);
    tarn_status status = s->gate->stage(s->gate->arg, extent, bytes->offset - extent->offset,
                                        bytes->length, b->at, stage_done, b);
    if (status != TARN_OK) {
        TAILQ_REMOVE(&b->waiting, piece, done_link);
        piece_free(piece);
        return status;
    }
    s->under_way++;
    pthread_mutex_lock(&s->pool->lock);
    b->has = *bytes;
    pthread_mutex_unlock(&s->pool->lock);
    *piece_p = piece;
    return TARN_OK;
}

tarn_status tcp_stager_ask(struct tcp_stager *s, struct tcp_stage_wait *owner, uint64_t session,
                           const struct grant_extent *extent, uint64_t offset, uint64_t length,
                           uint64_t now_ms, struct tcp_piece **piece_p) {
    TARN_ASSERT(length > 0 && length <= TRANSPORT_STAGE_PIECE);
    if (owner->state == TCP_STAGE_STARVED || owner->state == TCP_STAGE_RETRY) return TARN_EAGAIN;
    /* Who is in line comes first, within this thread, too. */
    bool may = owner->state == TCP_STAGE_FED || TAILQ_EMPTY(&s->starved);
    owner->state = TCP_STAGE_IDLE;
    const struct transport_gate *g = s->gate;
    struct tcp_stage_bytes bytes = {extent->segment, extent->segment_epoch, extent->offset + offset,
                                    length,
                                    g->mark != NULL ? g->mark(g->arg, extent, offset, length) : 0};
    *piece_p = piece_share(s, owner, &bytes, session, may);
    if (*piece_p != NULL) return TARN_OK;
    struct tcp_stage_buffer *b;
    tarn_status status = may ? buffer_get(s, &b) : TARN_EAGAIN;
    if (status == TARN_EAGAIN) {
        transport_count(&s->counters->staging_waits, 1);
        owner_waits(s, owner, true, now_ms);
    }
    if (status != TARN_OK) return status;
    status = piece_read(s, owner, b, extent, &bytes, session, piece_p);
    if (status == TARN_EAGAIN) owner_waits(s, owner, false, now_ms);
    return status;
}

void tcp_piece_release(struct tcp_piece **piece_p) {
    struct tcp_piece *piece = *piece_p;
    *piece_p = NULL;
    if (piece->ready)
        piece_free(piece);
    else
        piece->owner = NULL;
}

/* Those in line go on in their order, as many as there are buffers for. */
static void feed_starved(struct tcp_stager *s,
                         void (*go_on)(void *arg, struct tcp_stage_wait *owner), void *arg) {
    pthread_mutex_lock(&s->pool->lock);
    size_t n = TAILQ_FIRST(&s->pool->waiting) == s ? buffers_left(s->pool) : 0;
    pthread_mutex_unlock(&s->pool->lock);
    for (; n > 0 && !TAILQ_EMPTY(&s->starved); n--) {
        struct tcp_stage_wait *owner = TAILQ_FIRST(&s->starved);
        tcp_stager_forget(s, owner);
        owner->state = TCP_STAGE_FED;
        go_on(arg, owner);
    }
}

void tcp_stager_collect(struct tcp_stager *s, uint64_t now_ms,
                        void (*go_on)(void *arg, struct tcp_stage_wait *owner), void *arg) {
    if (s->under_way > 0) {
        struct tcp_piece_list list;
        pthread_mutex_lock(&s->lock);
        take_done(s, &list);
        pthread_mutex_unlock(&s->lock);
        struct tcp_piece *piece;
        while ((piece = TAILQ_TAKE(&list, done_link)) != NULL) {
            s->under_way--;
            piece->ready = true;
            if (piece->owner != NULL)
                go_on(arg, piece->owner);
            else
                piece_free(piece);
        }
    }
    if (!TAILQ_EMPTY(&s->starved)) feed_starved(s, go_on, arg);
    struct tcp_stage_wait *owner;
    while (now_ms >= s->retry_ms && (owner = TAILQ_FIRST(&s->retry)) != NULL) {
        tcp_stager_forget(s, owner);
        go_on(arg, owner);
    }
}

int tcp_stager_settle(struct tcp_stager *s, uint64_t now_ms) {
    bool again = false;
    if (s->short_of) {
        struct tcp_stage_pool *p = s->pool;
        pthread_mutex_lock(&p->lock);
        s->short_of = !TAILQ_EMPTY(&s->starved);
        if (s->took || !s->short_of) line_leave(p, s); /* it was its turn */
        if (s->short_of) line_enter(p, s);
        again = TAILQ_FIRST(&p->waiting) == s && buffers_left(p) > 0;
        pthread_mutex_unlock(&p->lock);
    }
    s->took = false;
    if (again) return 0;
    if (TAILQ_EMPTY(&s->retry)) return -1;
    return s->retry_ms > now_ms ? (int)(s->retry_ms - now_ms) : 0;
}
