/* A segment that is not memory: its reader here is a thread that holds back, reverses, fails and
 * refuses as a test wants it to; its bytes are a function of their offset. */
#ifndef TARN_TESTS_TRANSPORT_STAGED_H
#define TARN_TESTS_TRANSPORT_STAGED_H

#define SUITE "tcp"
#include "raw.h"

#define PIECE TRANSPORT_STAGE_PIECE
#define OTHER ((uint64_t)9) /* a session */
#define NEVER UINT64_MAX

struct asked {
    struct asked *next;
    uint64_t offset, length;
    void *buffer;
    void (*done)(void *done_arg, tarn_status status);
    void *done_arg;
};

static struct fake {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t news;
    struct asked *first; /* newest first */
    bool stop;
    /* What it is like. Under the lock. */
    bool inside, newest_first, held;
    unsigned busy;      /* of so many calls, all but one are answered TARN_EAGAIN */
    uint64_t hold_at;   /* asked for this byte, it waits while others go on */
    uint64_t fail_at;   /* the piece that holds this byte comes to nothing */
    uint64_t refuse_at; /* ... is refused at once */
    tarn_status failure;
    uint64_t mark; /* of all its bytes; 0: it has none */
    uint8_t life;  /* they are others with another one */
    /* What it has seen. */
    unsigned under_way, most, calls, finished;
    bool odd; /* a buffer or a length that is not as promised */
} fake;

static inline uint8_t byte_at(uint64_t offset) {
    return (uint8_t)(offset * 31 + (offset >> 8) * 7 + (offset >> 20));
}

static inline bool holds(uint64_t offset, uint64_t length, uint64_t at) {
    return at >= offset && at - offset < length;
}

/* Under the lock, which it lets go: done may call back. */
static inline void finish(struct asked *a) {
    tarn_status status = holds(a->offset, a->length, fake.fail_at) ? fake.failure : TARN_OK;
    uint8_t life = fake.life;
    pthread_mutex_unlock(&fake.lock);
    for (uint64_t i = 0; i < a->length && status == TARN_OK; i++)
        ((uint8_t *)a->buffer)[i] = (uint8_t)(byte_at(a->offset + i) + life);
    pthread_mutex_lock(&fake.lock);
    fake.under_way--;
    fake.finished++;
    pthread_mutex_unlock(&fake.lock);
    a->done(a->done_arg, status);
    free(a);
    pthread_mutex_lock(&fake.lock);
}

static inline tarn_status fake_read(void *arg, uint64_t offset, uint64_t length, void *buffer,
                                    void (*done)(void *done_arg, tarn_status status),
                                    void *done_arg) {
    (void)arg;
    pthread_mutex_lock(&fake.lock);
    fake.calls++;
    fake.odd |= (uintptr_t)buffer % 4096 != 0 || length == 0 || length > PIECE;
    tarn_status status = TARN_OK;
    if (fake.busy > 1 && fake.calls % fake.busy != 0) status = TARN_EAGAIN;
    if (holds(offset, length, fake.refuse_at)) status = fake.failure;
    if (status == TARN_OK) {
        struct asked *a = malloc(sizeof(*a));
        *a = (struct asked){fake.first, offset, length, buffer, done, done_arg};
        fake.under_way++;
        if (fake.under_way > fake.most) fake.most = fake.under_way;
        if (fake.inside) {
            finish(a);
        } else {
            fake.first = a;
            pthread_cond_signal(&fake.news);
        }
    }
    pthread_mutex_unlock(&fake.lock);
    return status;
}

static inline uint64_t fake_mark(void *arg, uint64_t offset, uint64_t length) {
    (void)arg;
    pthread_mutex_lock(&fake.lock);
    fake.odd |= length == 0 || length > PIECE;
    uint64_t mark = fake.mark;
    pthread_mutex_unlock(&fake.lock);
    return mark;
}

static inline struct asked *take(void) {
    struct asked **best = NULL;
    for (struct asked **p = &fake.first; *p != NULL && !fake.held; p = &(*p)->next) {
        if (holds((*p)->offset, (*p)->length, fake.hold_at)) continue;
        best = p;
        if (fake.newest_first) break;
    }
    if (best == NULL) return NULL;
    struct asked *a = *best;
    *best = a->next;
    return a;
}

static inline void *fake_main(void *arg) {
    (void)arg;
    pthread_mutex_lock(&fake.lock);
    while (!fake.stop || fake.first != NULL) {
        if (fake.stop) {
            fake.held = false;
            fake.hold_at = NEVER;
        }
        struct asked *a = take();
        if (a != NULL)
            finish(a);
        else
            pthread_cond_wait(&fake.news, &fake.lock);
    }
    pthread_mutex_unlock(&fake.lock);
    return NULL;
}

#define FAKE(statement)                                                                            \
    do {                                                                                           \
        pthread_mutex_lock(&fake.lock);                                                            \
        statement;                                                                                 \
        pthread_cond_signal(&fake.news);                                                           \
        pthread_mutex_unlock(&fake.lock);                                                          \
    } while (0)

static inline unsigned fake_look(const unsigned *what) {
    pthread_mutex_lock(&fake.lock);
    unsigned v = *what;
    pthread_mutex_unlock(&fake.lock);
    return v;
}

static inline void fake_begin(uint64_t size, uint64_t staging) {
    static const struct host_reader reader = {.read = fake_read, .mark = fake_mark};
    fake = (struct fake){.hold_at = NEVER, .fail_at = NEVER, .refuse_at = NEVER};
    pthread_mutex_init(&fake.lock, NULL);
    pthread_cond_init(&fake.news, NULL);
    begin_reader = &reader;
    begin_staging = staging;
    begin(size, false);
    CHECK_EQ(pthread_create(&fake.thread, NULL, fake_main, NULL), 0);
}

static inline void fake_end(void) {
    CHECK(!fake.odd);
    FAKE(fake.stop = true);
    end();
    pthread_join(fake.thread, NULL);
    CHECK_EQ(fake.under_way, 0);
}

static inline bool staging_is_free(void) {
    return WORLD_WAIT(world_stats(&w).staging_used == 0);
}

static inline bool right(const uint8_t *data, uint64_t offset, uint64_t length) {
    for (uint64_t i = 0; i < length; i++) {
        if (data[i] != (uint8_t)(byte_at(offset + i) + fake.life)) return false;
    }
    return true;
}

static inline void object_on_disk(struct object *o, uint64_t at, uint64_t size, size_t n,
                                  uint64_t session) {
    object_init_in(o, WORLD_READER, at, size, n, session);
}

static inline bool object_right(const struct object *o, const uint8_t *data) {
    for (size_t i = 0; i < o->n; data += o->x[i++].length) {
        if (!right(data, o->x[i].offset, o->x[i].length)) return false;
    }
    return true;
}

static inline int dial_staged_as(uint64_t session, uint64_t at, uint64_t size) {
    int fd = dial();
    CHECK_EQ(hello_with(fd, 1, 1, TCP_FEATURE_PIECES).status, TCP_OK);
    struct object o;
    object_on_disk(&o, at, size, 1, session);
    struct request r = request(&o, false, 1);
    put(fd, &r, sizeof(r));
    return fd;
}

/* The rest of a reply that may come in pieces; false: a refusal, or not in order. */
static inline bool get_pieces(int fd, uint64_t id, uint8_t *data, uint64_t size) {
    struct tcp_header h;
    uint64_t at = 0;
    do {
        if (!get(fd, &h, sizeof(h)) || h.type != TCP_REPLY || h.request_id != id ||
            h.status != TCP_OK)
            return false;
        if (h.payload_length > size - at || !get(fd, data + at, h.payload_length)) return false;
        at += h.payload_length;
    } while (h.flags == TCP_FLAG_MORE);
    return at == size;
}

static inline unsigned calls(void) {
    return fake_look(&fake.calls);
}

static inline void retire_reader(struct world *world) {
    host_segment_retire(world->host, world->reader_slot, false);
}
static tarn_status served;
static inline void serve_reader_again(struct world *world) {
    served =
        host_segment_serve(world->host, world->reader_slot, WORLD_READER, world->segment_epoch + 1);
}

/* Reads the object and looks at every byte. */
static inline tarn_status read_right(struct engine *e, const struct object *o, uint8_t *data) {
    uint32_t crc;
    memset(data, 0xee, o->size);
    tarn_status s = move(e, o, false, data, &crc);
    if (s != TARN_OK) return s;
    if (!object_right(o, data) || crc != crc32c(0, data, o->size)) return TARN_ECORRUPT;
    return TARN_OK;
}

static inline tarn_status read_as(uint64_t session, uint64_t at, uint64_t size) {
    struct engine *e = world_engine(&w, "tcp", session);
    uint8_t *data = malloc(size);
    struct object o;
    object_on_disk(&o, at, size, 1, session);
    tarn_status status = read_right(e, &o, data);
    free(data);
    engine_destroy(&e);
    return status;
}

#endif
