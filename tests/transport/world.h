/* A small world for tests and benchmarks of the data path: a host with its control thread, grants,
 * engines. The host runs in this process, or, to be killed, in a child. */
#ifndef TARN_TESTS_TRANSPORT_WORLD_H
#define TARN_TESTS_TRANSPORT_WORLD_H

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/segment_header.h"
#include "engine/engine.h"
#include "host/host.h"
#include "transport/transport.h"

#ifdef __SANITIZE_THREAD__
/* Hosts are forked and have threads, and so has who forks them: one watches shared memory. */
const char *__tsan_default_options(void);
__attribute__((visibility("default"))) const char *__tsan_default_options(void) {
    return "die_after_fork=0";
}
#endif

#define WORLD_KEY_MAX 4096u

struct world_key { /* what a host says of a slot to who would reach it by SUITE's transport */
    uint32_t id, epoch;
    char uri[128];
    uint8_t packed[2][WORLD_KEY_MAX];
    size_t packed_len[2];
};

struct world_state { /* shared with a child */
    uint16_t port;
    bool up; /* a child's host serves */
    char pool_path[128];
    uint8_t content[SEGMENT_CONTENT_SIZE]; /* of the segment */
    uint32_t key_turn;                     /* odd: key is being written */
    struct world_key key;
    uint64_t fenced, fenced_before; /* the last ones reported */
    uint64_t fence_wanted;          /* control thread: do host_fence of it */
    uint32_t fence_before_wanted;
    uint32_t authority_wanted;
    bool stats_wanted, stop;
    struct host_stats stats;
};

struct world {
    const char *scheme; /* of the transport that is tested */
    int state_fd;
    struct host *host; /* NULL: in a child */
    pid_t pid;
    pthread_t thread;
    struct world_state *state;
    char dir[64], shm_path[96];
    uint8_t key[GRANT_KEY_SIZE];
    uint64_t size;
    uint32_t master_epoch, segment_epoch;
    unsigned threads;
    uint64_t idle_timeout_ms;         /* of the host */
    uint64_t connect_timeout_ms;      /* of engines */
    const char *pool_path;            /* NULL: memfd */
    const uint8_t *content;           /* that world_tell says the segment has; NULL: says nothing */
    const struct host_reader *reader; /* a second segment that is not memory; NULL: none */
    uint64_t staging_bytes;
    unsigned slot, reader_slot;
    void (*call)(struct world *w); /* for the control thread, not in a child; atomic */
    bool key_changed;              /* the control thread's */
};

/* A program that defines WORLD_TLS has a host whose data port speaks TLS, and engines that do. */
#ifdef WORLD_TLS
#include "world_tls.h"
#else
#define WORLD_TLS_HOST   NULL
#define WORLD_TLS_ENGINE NULL
#endif

#define WORLD_PATIENCE_MS 300000u /* only failing tests wait so long */
#define WORLD_SEGMENT     7u
#define WORLD_READER      8u /* as large as the other, same epoch */

static inline void world_fenced(void *arg, uint64_t session) {
    __atomic_store_n(&((struct world *)arg)->state->fenced, session, __ATOMIC_RELEASE);
}
static inline void world_fenced_before(void *arg, uint32_t epoch) {
    __atomic_store_n(&((struct world *)arg)->state->fenced_before, epoch, __ATOMIC_RELEASE);
}
static inline void world_news_of_key(void *arg, unsigned slot) {
    struct world *w = arg;
    w->key_changed |= slot == w->slot;
}

/* Memory that is read while it may be written: whoever reads looks at key_turn again. */
__attribute__((no_sanitize("thread"), noinline, unused)) static void
world_key_copy(struct world_key *to, const struct world_key *from) {
    const volatile uint8_t *f = (const volatile uint8_t *)from;
    for (size_t i = 0; i < sizeof(*to); i++) ((volatile uint8_t *)to)[i] = f[i];
}

static inline void world_key_set(struct world_state *s, const struct world_key *key) {
    __atomic_fetch_add(&s->key_turn, 1, __ATOMIC_ACQ_REL);
    world_key_copy(&s->key, key);
    __atomic_fetch_add(&s->key_turn, 1, __ATOMIC_ACQ_REL);
}

static inline void world_key_get(const struct world *w, struct world_key *key) {
    uint32_t turn;
    do {
        while (((turn = __atomic_load_n(&w->state->key_turn, __ATOMIC_ACQUIRE)) & 1u) != 0)
            usleep(10);
        world_key_copy(key, &w->state->key);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
    } while (__atomic_load_n(&w->state->key_turn, __ATOMIC_ACQUIRE) != turn);
}

static inline void world_key_publish(struct world *w) {
    struct world_key key = {0};
    struct host_segment_info info;
    struct buf uri = {0}, packed[2] = {{0}, {0}};
    if (host_slot_get(w->host, w->slot, &info) &&
        host_slot_key(w->host, w->slot, w->scheme, &uri, &packed[0], &packed[1]) == TARN_OK) {
        TARN_ASSERT(uri.len < sizeof(key.uri) && packed[0].len <= WORLD_KEY_MAX &&
                    packed[1].len <= WORLD_KEY_MAX);
        key.id = info.id;
        key.epoch = info.segment_epoch;
        memcpy(key.uri, uri.data, uri.len);
        for (int i = 0; i < 2; i++) {
            key.packed_len[i] = packed[i].len;
            if (packed[i].len > 0) memcpy(key.packed[i], packed[i].data, packed[i].len);
        }
    }
    world_key_set(w->state, &key);
    buf_free(&uri);
    buf_free(&packed[0]);
    buf_free(&packed[1]);
}

static inline bool world_key_changed(const struct world *w,
                                     const struct host_segment_info *before) {
    struct host_segment_info now;
    return host_slot_get(w->host, w->slot, &now) &&
           (now.id != before->id || now.segment_epoch != before->segment_epoch);
}

static inline void *world_control(void *arg) {
    struct world *w = arg;
    struct world_state *s = w->state;
    struct host_segment_info info = {0};
    while (!__atomic_load_n(&s->stop, __ATOMIC_ACQUIRE)) {
        struct pollfd p = {.fd = host_event_fd(w->host), .events = POLLIN};
        poll(&p, 1, 2);
        uint32_t authority = __atomic_load_n(&s->authority_wanted, __ATOMIC_ACQUIRE);
        if (authority != 0) {
            host_set_authority(w->host, w->key, authority);
            /* 0 says: it is in force */
            __atomic_store_n(&s->authority_wanted, 0, __ATOMIC_RELEASE);
        }
        uint64_t fence = __atomic_exchange_n(&s->fence_wanted, 0, __ATOMIC_ACQ_REL);
        if (fence != 0) host_fence(w->host, fence, HOST_FENCE_FOR_EVER);
        uint32_t before = __atomic_exchange_n(&s->fence_before_wanted, 0, __ATOMIC_ACQ_REL);
        if (before != 0) host_fence_before(w->host, before);
        host_poll(w->host);
        if (w->key_changed || world_key_changed(w, &info)) {
            w->key_changed = false;
            (void)host_slot_get(w->host, w->slot, &info);
            world_key_publish(w);
        }
        void (*call)(struct world *) = __atomic_load_n(&w->call, __ATOMIC_ACQUIRE);
        if (call != NULL) {
            call(w);
            __atomic_store_n(&w->call, NULL, __ATOMIC_RELEASE);
        }
        if (__atomic_load_n(&s->stats_wanted, __ATOMIC_ACQUIRE)) {
            host_get_stats(w->host, &s->stats);
            __atomic_store_n(&s->stats_wanted, false, __ATOMIC_RELEASE);
        }
    }
    return NULL;
}

static inline void world_host_up(struct world *w) {
    static const char *const bind[] = {"127.0.0.1"};
    struct host_config config = {
        .bind = bind,
        .binds = 1,
        .data_port = w->state->port, /* a restarted host comes back where it was */
        .threads = w->threads,
        .max_connections = 200,
        .idle_timeout_ms = w->idle_timeout_ms,
        .staging_bytes = w->staging_bytes,
        .shm_path = w->shm_path,
        .shm_mode = 0600,
        .tls = WORLD_TLS_HOST,
        .arg = w,
        .fenced = world_fenced,
        .fenced_before = world_fenced_before,
        .key_changed = world_news_of_key,
    };
    struct host_segment_config segment = {.name = "test",
                                          .size = w->size,
                                          .numa_node = -1,
                                          .huge = HOST_HUGE_NO,
                                          .pool_path = w->pool_path};
    const char *why = "";
    TARN_ASSERT(host_create(&config, &w->host) == TARN_OK);
    TARN_ASSERT(host_segment_open(w->host, &segment, &w->slot, &why) == TARN_OK);
    TARN_ASSERT(host_segment_serve(w->host, w->slot, WORLD_SEGMENT, w->segment_epoch) == TARN_OK);
    if (w->reader != NULL) {
        TARN_ASSERT(host_reader_open(w->host, w->size, w->reader, &w->reader_slot) == TARN_OK);
        TARN_ASSERT(host_segment_serve(w->host, w->reader_slot, WORLD_READER, w->segment_epoch) ==
                    TARN_OK);
    }
    host_set_authority(w->host, w->key, w->master_epoch);
    TARN_ASSERT(host_start(w->host) == TARN_OK);
    struct host_segment_info info;
    TARN_ASSERT(host_slot_get(w->host, w->slot, &info));
    memcpy(w->state->content, info.content, sizeof(info.content));
    __atomic_store_n(&w->state->port, host_data_port(w->host), __ATOMIC_RELEASE);
}

static inline void world_forget_key(struct world *w) {
    world_key_set(w->state, &(struct world_key){0});
}

/* The child's part. */
static inline void world_child(struct world *w) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    world_host_up(w);
    __atomic_store_n(&w->state->up, true, __ATOMIC_RELEASE);
    world_control(w);
    host_destroy(&w->host);
    _exit(0);
}

/* Devices that a program has opened are no good in a child of it: where the transport has some, the
 * child is this program, started anew, which calls world_child_main first. */
static inline void world_exec(struct world *w) {
    char fd[16], size[24], epochs[2][16];
    /* before anything that takes time: it outlives exec */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    snprintf(fd, sizeof(fd), "%d", dup(w->state_fd)); /* without close-on-exec */
    snprintf(size, sizeof(size), "%llu", (unsigned long long)w->size);
    snprintf(epochs[0], sizeof(epochs[0]), "%u", w->master_epoch);
    snprintf(epochs[1], sizeof(epochs[1]), "%u", w->segment_epoch);
    execl("/proc/self/exe", "world-host", fd, w->dir, size, epochs[0], epochs[1], (char *)NULL);
    _exit(127);
}

static inline void world_defaults(struct world *w, const char *scheme, uint64_t size) {
    *w = (struct world){.scheme = scheme,
                        .size = size,
                        .master_epoch = 3,
                        .segment_epoch = 5,
                        .threads = 2,
                        .idle_timeout_ms = 60000,
                        .connect_timeout_ms = WORLD_PATIENCE_MS,
                        .key = {1, 2, 3}};
}

static inline void world_map_state(struct world *w) {
    w->state = mmap(NULL, sizeof(*w->state), PROT_READ | PROT_WRITE, MAP_SHARED, w->state_fd, 0);
    TARN_ASSERT(w->state != MAP_FAILED);
    snprintf(w->shm_path, sizeof(w->shm_path), "%s/shm.sock", w->dir);
}

/* From main: does not return in such a child. */
static inline void world_child_main(int argc, char **argv, const char *scheme) {
    static struct world w;
    if (argc != 6 || strcmp(argv[0], "world-host") != 0) return;
    world_defaults(&w, scheme, strtoull(argv[3], NULL, 10));
    w.state_fd = atoi(argv[1]);
    snprintf(w.dir, sizeof(w.dir), "%s", argv[2]);
    w.master_epoch = (uint32_t)atoi(argv[4]);
    w.segment_epoch = (uint32_t)atoi(argv[5]);
    world_map_state(&w);
    if (w.state->pool_path[0] != '\0') w.pool_path = w.state->pool_path;
    world_child(&w);
}

static inline uint32_t world_flags(const struct world *w) {
    const struct transport_ops *t = transport_find(w->scheme);
    return t != NULL ? t->flags : 0; /* "auto" */
}

/* child: in a process of its own, so that it can be killed and stopped. */
static inline void world_start(struct world *w, bool child) {
    __atomic_store_n(&w->state->stop, false, __ATOMIC_RELEASE);
    __atomic_store_n(&w->state->up, false, __ATOMIC_RELEASE);
    world_forget_key(w);
    if (!child) {
        world_host_up(w);
        w->key_changed = true;
        TARN_ASSERT(pthread_create(&w->thread, NULL, world_control, w) == 0);
        return;
    }
    bool exec = (world_flags(w) & TRANSPORT_REGISTERS) != 0;
    TARN_ASSERT(!exec || w->reader == NULL);
    snprintf(w->state->pool_path, sizeof(w->state->pool_path), "%s",
             w->pool_path != NULL ? w->pool_path : "");
    w->pid = fork();
    TARN_ASSERT(w->pid >= 0);
    if (w->pid == 0) {
        w->key_changed = true;
        if (exec) world_exec(w);
        world_child(w);
    }
    while (!__atomic_load_n(&w->state->up, __ATOMIC_ACQUIRE)) {
        TARN_ASSERT(waitpid(w->pid, NULL, WNOHANG) == 0);
        usleep(1000);
    }
}

static inline void world_stop(struct world *w) {
    __atomic_store_n(&w->state->stop, true, __ATOMIC_RELEASE);
    if (w->pid > 0) {
        waitpid(w->pid, NULL, 0);
        w->pid = 0;
    } else if (w->host != NULL) {
        pthread_join(w->thread, NULL);
        host_destroy(&w->host);
    }
}

static inline void world_kill(struct world *w) {
    kill(w->pid, SIGKILL);
    waitpid(w->pid, NULL, 0);
    w->pid = 0;
}

/* Returns when it has come to a stop. Undone by SIGCONT. */
static inline void world_pause(struct world *w) {
    kill(w->pid, SIGSTOP);
    waitpid(w->pid, NULL, WUNTRACED);
}

static inline void world_init(struct world *w, const char *scheme, uint64_t size) {
    world_defaults(w, scheme, size);
    strcpy(w->dir, "/tmp/tarn-transport-XXXXXX");
    TARN_ASSERT(mkdtemp(w->dir) != NULL);
    w->state_fd = memfd_create("tarn-world", MFD_CLOEXEC);
    TARN_ASSERT(w->state_fd >= 0 && ftruncate(w->state_fd, sizeof(*w->state)) == 0);
    world_map_state(w);
}

static inline void world_deinit(struct world *w) {
    world_stop(w);
    unlink(w->shm_path);
    rmdir(w->dir);
    munmap(w->state, sizeof(*w->state));
    close(w->state_fd);
}

/* Runs fn in the control thread. */
static inline void world_call(struct world *w, void (*fn)(struct world *w)) {
    __atomic_store_n(&w->call, fn, __ATOMIC_RELEASE);
    while (__atomic_load_n(&w->call, __ATOMIC_ACQUIRE) != NULL) usleep(200);
}

static inline struct host_stats world_stats(struct world *w) {
    __atomic_store_n(&w->state->stats_wanted, true, __ATOMIC_RELEASE);
    while (__atomic_load_n(&w->state->stats_wanted, __ATOMIC_ACQUIRE)) usleep(200);
    return w->state->stats;
}

/* Waits for a condition on shared state, a minute at most. */
#define WORLD_WAIT(cond)                                                                           \
    __extension__({                                                                                \
        bool world_true = false;                                                                   \
        uint64_t world_end_ms = clock_mono_ms() + WORLD_PATIENCE_MS;                               \
        while (!(world_true = (cond)) && clock_mono_ms() < world_end_ms) usleep(1000);             \
        world_true;                                                                                \
    })

/* --- what a master would hand out --- */

static inline struct grant_extent world_extent(const struct world *w, uint64_t offset,
                                               uint64_t length) {
    return (struct grant_extent){WORLD_SEGMENT, w->segment_epoch, offset, length};
}

static inline void world_grant(const struct world *w, enum grant_op op, uint64_t session,
                               const struct grant_extent *x, uint8_t out[GRANT_SIZE]) {
    struct grant g = {op, w->master_epoch, session, clock_mono_ms() + 60000, 0};
    grant_seal(w->key, &g, x, out);
}

static inline void world_nothing(struct world *w) {
    (void)w;
}

/* Transports that register memory are not ready when the segment is served, and not at once after a
 * change of epochs: waits until they are, for that segment. Others always are. */
static inline bool world_ready(struct world *w, uint32_t id, uint32_t epoch) {
    struct world_key key;
    if ((world_flags(w) & TRANSPORT_ANNOUNCES) == 0) return true;
    if (w->host != NULL)
        world_call(w, world_nothing); /* whatever it was told has been done */
    else
        usleep(20000);
    return WORLD_WAIT((world_key_get(w, &key), key.id == id && key.epoch == epoch));
}

struct world_uris {
    char data[64], shm[128];
};
/* By the transports that are told where to listen. */
static inline void world_ways(const struct world *w, struct engine_segment *s,
                              struct world_uris *uris) {
    snprintf(uris->data, sizeof(uris->data), "%s://127.0.0.1:%u",
             WORLD_TLS_HOST != NULL ? "tcps" : "tcp",
             __atomic_load_n(&w->state->port, __ATOMIC_ACQUIRE));
    snprintf(uris->shm, sizeof(uris->shm), "shm://%s", w->shm_path);
    (void)engine_segment_way(s, uris->data);
    (void)engine_segment_way(s, uris->shm);
}

static inline void world_tell_of(const struct world *w, struct engine *e, uint64_t session,
                                 uint32_t id, uint32_t epoch) {
    struct world_key key;
    world_key_get(w, &key);
    uint8_t attach[2][GRANT_SIZE];
    struct grant_extent whole = {id, epoch, 0, w->size};
    world_grant(w, GRANT_ATTACH_READ, session, &whole, attach[0]);
    world_grant(w, GRANT_ATTACH_WRITE, session, &whole, attach[1]);
    struct engine_segment s = {
        .id = id,
        .epoch = epoch,
        .size = w->size,
        .content = w->content,
        .attach = {attach[0], attach[1]},
        .same_host = true,
    };
    struct world_uris uris = {.data = ""};
    world_ways(w, &s, &uris);
    struct engine_way *way = engine_segment_way(&s, key.uri);
    for (int i = 0; i < 2 && way != NULL; i++)
        way->key[i] = span_of(key.packed[i], key.packed_len[i]);
    TARN_ASSERT(engine_segment_set(e, &s) == TARN_OK);
}

static inline void world_tell(const struct world *w, struct engine *e, uint64_t session) {
    world_tell_of(w, e, session, WORLD_SEGMENT, w->segment_epoch);
    if (w->reader != NULL) world_tell_of(w, e, session, WORLD_READER, w->segment_epoch);
}

/* scheme: NULL, "auto": by any transport. */
static inline struct engine *world_engine(const struct world *w, const char *scheme,
                                          uint64_t session) {
    struct engine_config config;
    engine_config_init(&config);
    config.transport = scheme != NULL && strcmp(scheme, "auto") != 0 ? scheme : NULL;
    config.connect_timeout_ms = w->connect_timeout_ms;
    config.tls = WORLD_TLS_ENGINE;
    struct engine *e;
    TARN_ASSERT(engine_create(&config, &e) == TARN_OK);
    world_tell(w, e, session);
    return e;
}

#endif
