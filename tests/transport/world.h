/* A small world for tests and benchmarks of the data path: a host with its control thread, grants, engines. The host runs in
 * this process, or, to be killed, in a child. */
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
#include "engine/engine.h"
#include "host/host.h"
#include "transport/transport.h"

struct world_state { /* shared with a child */
    uint16_t port;
    uint64_t fenced, fenced_before; /* the last ones reported */
    uint64_t fence_wanted;          /* control thread: do host_fence of it */
    uint32_t fence_before_wanted;
    uint32_t authority_wanted;
    bool stats_wanted, stop;
    struct host_stats stats;
};

struct world {
    struct host *host; /* NULL: in a child */
    pid_t pid;
    pthread_t thread;
    struct world_state *state;
    char dir[64], shm_path[96];
    uint8_t key[GRANT_KEY_SIZE];
    uint64_t size;
    uint32_t master_epoch, segment_epoch;
    unsigned threads;
    uint64_t idle_timeout_ms;
};

#define WORLD_SEGMENT 7u

static inline void world_fenced(void *arg, uint64_t session) {
    __atomic_store_n(&((struct world_state *)arg)->fenced, session, __ATOMIC_RELEASE);
}
static inline void world_fenced_before(void *arg, uint32_t epoch) {
    __atomic_store_n(&((struct world_state *)arg)->fenced_before, epoch, __ATOMIC_RELEASE);
}

static inline void *world_control(void *arg) {
    struct world *w = arg;
    struct world_state *s = w->state;
    while (!__atomic_load_n(&s->stop, __ATOMIC_ACQUIRE)) {
        struct pollfd p = {.fd = host_event_fd(w->host), .events = POLLIN};
        poll(&p, 1, 2);
        uint32_t authority = __atomic_exchange_n(&s->authority_wanted, 0, __ATOMIC_ACQ_REL);
        if (authority != 0) host_set_authority(w->host, w->key, authority);
        uint64_t fence = __atomic_exchange_n(&s->fence_wanted, 0, __ATOMIC_ACQ_REL);
        if (fence != 0) host_fence(w->host, fence);
        uint32_t before = __atomic_exchange_n(&s->fence_before_wanted, 0, __ATOMIC_ACQ_REL);
        if (before != 0) host_fence_before(w->host, before);
        host_poll(w->host);
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
        .shm_path = w->shm_path,
        .shm_mode = 0600,
        .arg = w->state,
        .fenced = world_fenced,
        .fenced_before = world_fenced_before,
    };
    struct host_segment_config segment = {
        .name = "test", .size = w->size, .numa_node = -1, .huge = HOST_HUGE_NO};
    const char *why = "";
    TARN_ASSERT(host_create(&config, &w->host) == TARN_OK);
    TARN_ASSERT(host_segment_add(w->host, &segment, WORLD_SEGMENT, w->segment_epoch, &why) == TARN_OK);
    host_set_authority(w->host, w->key, w->master_epoch);
    TARN_ASSERT(host_start(w->host) == TARN_OK);
    __atomic_store_n(&w->state->port, host_data_port(w->host), __ATOMIC_RELEASE);
}

/* child: in a process of its own, so that it can be killed and stopped. */
static inline void world_start(struct world *w, bool child) {
    __atomic_store_n(&w->state->stop, false, __ATOMIC_RELEASE);
    if (!child) {
        world_host_up(w);
        TARN_ASSERT(pthread_create(&w->thread, NULL, world_control, w) == 0);
        return;
    }
    bool *up = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    w->pid = fork();
    TARN_ASSERT(w->pid >= 0);
    if (w->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        world_host_up(w);
        __atomic_store_n(up, true, __ATOMIC_RELEASE);
        world_control(w);
        host_destroy(&w->host);
        _exit(0);
    }
    while (!__atomic_load_n(up, __ATOMIC_ACQUIRE)) {
        TARN_ASSERT(waitpid(w->pid, NULL, WNOHANG) == 0);
        usleep(1000);
    }
    munmap(up, 4096);
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

static inline void world_init(struct world *w, uint64_t size) {
    *w = (struct world){.size = size,
                        .master_epoch = 3,
                        .segment_epoch = 5,
                        .threads = 2,
                        .idle_timeout_ms = 500,
                        .key = {1, 2, 3}};
    w->state = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    strcpy(w->dir, "/tmp/tarn-transport-XXXXXX");
    TARN_ASSERT(mkdtemp(w->dir) != NULL);
    snprintf(w->shm_path, sizeof(w->shm_path), "%s/shm.sock", w->dir);
}

static inline void world_deinit(struct world *w) {
    world_stop(w);
    unlink(w->shm_path);
    rmdir(w->dir);
    munmap(w->state, 4096);
}

static inline struct host_stats world_stats(struct world *w) {
    __atomic_store_n(&w->state->stats_wanted, true, __ATOMIC_RELEASE);
    while (__atomic_load_n(&w->state->stats_wanted, __ATOMIC_ACQUIRE)) usleep(200);
    return w->state->stats;
}

/* Waits for a condition on shared state, 5 s at most. */
#define WORLD_WAIT(cond)                                                                                     \
    __extension__({                                                                                          \
        bool world_true = false;                                                                             \
        for (int world_i = 0; world_i < 5000 && !(world_true = (cond)); world_i++) usleep(1000);             \
        world_true;                                                                                          \
    })

/* --- what a master would hand out --- */

static inline struct grant_extent world_extent(const struct world *w, uint64_t offset, uint64_t length) {
    return (struct grant_extent){WORLD_SEGMENT, w->segment_epoch, offset, length};
}

static inline void world_grant(const struct world *w, enum grant_op op, uint64_t session,
                               const struct grant_extent *x, uint8_t out[GRANT_SIZE]) {
    struct grant g = {op, w->master_epoch, session, clock_mono_ms() + 60000};
    grant_seal(w->key, &g, x, out);
}

static inline void world_tell(const struct world *w, struct engine *e, uint64_t session) {
    uint8_t attach[2][GRANT_SIZE];
    struct grant_extent whole = world_extent(w, 0, w->size);
    world_grant(w, GRANT_ATTACH_READ, session, &whole, attach[0]);
    world_grant(w, GRANT_ATTACH_WRITE, session, &whole, attach[1]);
    struct engine_segment s = {
        .id = WORLD_SEGMENT,
        .epoch = w->segment_epoch,
        .size = w->size,
        .tcp_host = "127.0.0.1",
        .tcp_port = __atomic_load_n(&w->state->port, __ATOMIC_ACQUIRE),
        .shm_path = w->shm_path,
        .attach_read = attach[0],
        .attach_write = attach[1],
    };
    TARN_ASSERT(engine_segment_set(e, &s) == TARN_OK);
}

static inline struct engine *world_engine(const struct world *w, enum engine_transport t, uint64_t session) {
    struct engine_config config;
    engine_config_init(&config);
    config.transport = t;
    config.connect_timeout_ms = 1000;
    struct engine *e;
    TARN_ASSERT(engine_create(&config, &e) == TARN_OK);
    world_tell(w, e, session);
    return e;
}

static inline enum engine_transport world_transport(const char *name) {
    return strcmp(name, "shm") == 0 ? ENGINE_SHM : strcmp(name, "tcp") == 0 ? ENGINE_TCP : ENGINE_AUTO;
}

#endif
