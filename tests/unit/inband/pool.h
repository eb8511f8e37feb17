/* A server in a thread of its own with storage nodes around it, all in this process: what clients
 * see of a pool of many machines, with a hand on everything. Tests talk to it by hiredis; what
 * touches the books or a node runs in the server's thread (pool_call). */
#ifndef TARN_TESTS_UNIT_INBAND_POOL_H
#define TARN_TESTS_UNIT_INBAND_POOL_H

#include "../test.h"

#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <pthread.h>
#include <semaphore.h>
#include <sodium.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "cluster/cluster.h"
#include "front/client.h"
#include "front/core.h"
#include "inband/local_copy.h"
#include "inband/remote.h"
#include "front/waiters.h"
#include "../host_add.h"
#include "server/turn.h"
#include "front/embedded.h"

enum { POOL_NODES = 4 };

struct pool_node {
    char name[8], machine[16], path[64];
    uint8_t instance[CLUSTER_INSTANCE_SIZE];
    struct cluster_node *node;
    struct host *host;
    struct net_watch watch;
    uint32_t segment, epoch, disk, disk_epoch; /* ids; disk: of the ssd, if it has one */
    char *disk_bytes;
    unsigned disk_errs; /* so many of the next readings of it are wrong; atomic */
    bool silent;        /* confirms no fence */
};

static struct {
    struct config config;
    struct net_loop *loop;
    pthread_t thread;
    struct net_timer beat;
    struct net_watch calls;
    int call_fd;
    void (*fn)(void *arg);
    void *arg;
    sem_t done;
    struct net_watch own_host;
    struct pool_node node[POOL_NODES];
    unsigned fences; /* that were confirmed */
} pool;

/* --- in the server's thread --- */

static inline void pool_on_fence(void *arg, uint64_t session) {
    cluster_on_fence(session);
}
static inline void pool_on_complete(void *arg, struct span key) {
    waiters_notify(arg, key);
}
static inline void pool_on_awaits(void *arg, uint32_t far) {
    cluster_on_awaits(far);
}
static inline uint64_t pool_disk_wait(void *arg, uint32_t far, uint64_t hash, uint64_t bytes) {
    return cluster_disk_wait(far, hash, bytes);
}
static inline void pool_on_far_gone(void *arg, struct span key, uint64_t version, uint32_t segment,
                                    uint64_t offset) {
    cluster_on_far_gone(key, version, segment, offset);
}
static inline void pool_on_segment_gone(void *arg, uint32_t id) {
    cluster_on_segment_gone(id);
}
static inline void pool_poll_host(void *arg, unsigned events) {
    host_poll(*(struct host **)arg);
}
static inline void pool_fence_local(void *arg, uint64_t session) {
    host_fence(embedded.host, session, HOST_FENCE_FOR_EVER);
}
static inline void pool_fenced_local(void *arg, uint64_t session) {
    cluster_local_fenced(session);
}
static inline void pool_fenced_node(void *arg, uint64_t session) {
    struct pool_node *n = arg;
    pool.fences++;
    cluster_node_fenced(n->node, session);
}

static inline void pool_beat(void *arg) {
    for (unsigned i = 0; i < POOL_NODES; i++) {
        struct pool_node *n = &pool.node[i];
        struct cluster_work work;
        unsigned budget = 1000;
        if (n->node == NULL || n->silent || n->host == NULL) continue;
        cluster_node_alive(span_str(n->name), n->instance);
        while (cluster_work_next(n->node, &work, &budget))
            if (work.kind == CLUSTER_WORK_FENCE)
                host_fence(n->host, work.session, HOST_FENCE_FOR_EVER);
    }
    net_timer_start(&pool.beat, 5);
}

static inline void pool_called(void *arg, unsigned events) {
    uint64_t count;
    if (read(pool.call_fd, &count, sizeof(count)) < 0) return;
    core_stamp();
    pool.fn(pool.arg);
    sem_post(&pool.done);
}

/* Runs fn there and waits for it. */
static inline void pool_call(void (*fn)(void *arg), void *arg) {
    uint64_t one = 1;
    pool.fn = fn;
    pool.arg = arg;
    TARN_ASSERT(write(pool.call_fd, &one, sizeof(one)) == sizeof(one));
    sem_wait(&pool.done);
}

static inline void pool_set_up_own(uint64_t size) {
    static const char *const bind[] = {"127.0.0.1"};
    static const struct cluster_local_ops ops = {
        .start_copy = local_copy_start, .cancel = local_copy_cancel, .fence = pool_fence_local};
    struct host_config hc = {
        .bind = bind, .binds = 1, .threads = 1, .max_connections = 50, .fenced = pool_fenced_local};
    struct host_segment_config segment = {.name = "local", .size = size, .numa_node = -1};
    struct store_segment_config own = {.name = "local", .epoch = server.master_epoch, .size = size};
    const char *why;
    uint32_t id;
    TARN_ASSERT(host_create(&hc, &embedded.host) == TARN_OK);
    host_set_authority(embedded.host, embedded.grant_key, server.master_epoch);
    TARN_ASSERT(store_segment_add(books, &own, &id) == TARN_OK);
    TARN_ASSERT(host_segment_add(embedded.host, &segment, id, server.master_epoch, &why) ==
                TARN_OK);
    cluster_local_segment(id, embedded.grant_key, &ops);
    TARN_ASSERT(host_start(embedded.host) == TARN_OK);
    net_watch_init(&pool.own_host, pool.loop, host_event_fd(embedded.host), pool_poll_host,
                   &embedded.host);
    TARN_ASSERT(net_watch_set(&pool.own_host, NET_READ) == TARN_OK);
}

static inline tarn_status pool_read_disk(void *arg, uint64_t offset, uint64_t length, void *buffer,
                                         void (*done)(void *done_arg, tarn_status status),
                                         void *done_arg) {
    struct pool_node *n = arg;
    memcpy(buffer, n->disk_bytes + offset, length);
    if (__atomic_load_n(&n->disk_errs, __ATOMIC_RELAXED) > 0) {
        __atomic_sub_fetch(&n->disk_errs, 1, __ATOMIC_RELAXED);
        *(char *)buffer ^= 1;
    }
    done(done_arg, TARN_OK);
    return TARN_OK;
}

static inline void pool_mount(struct pool_node *n, enum store_tier tier, const char *name,
                              uint64_t size, uint32_t *id_p, uint32_t *epoch_p) {
    char uris[2][128];
    snprintf(uris[0], sizeof(uris[0]), "tcp://127.0.0.1:%u", host_data_port(n->host));
    snprintf(uris[1], sizeof(uris[1]), "shm://%s", n->path);
    struct span endpoints[2] = {span_str(uris[0]), span_str(uris[1])};
    struct cluster_mount mount = {.name = span_str(name),
                                  .tier = tier,
                                  .size = size,
                                  .backing = SPAN("memfd"),
                                  .numa_node = -1,
                                  .endpoints = endpoints,
                                  .n_endpoints = tier == STORE_TIER_MEMORY ? 2 : 1};
    struct cluster_mounted mounted;
    const char *why = "";
    randombytes_buf(mount.content, sizeof(mount.content));
    TARN_ASSERT(cluster_segment_mount(n->node, &mount, &mounted, &why) == TARN_OK);
    *id_p = mounted.id;
    *epoch_p = mounted.epoch;
}

struct pool_node_config {
    unsigned number;
    uint64_t size, disk; /* disk: 0 none */
    bool own_machine;    /* shared memory */
};

static inline void pool_node_up(void *arg) {
    static const char *const bind[] = {"127.0.0.1"};
    const struct pool_node_config *c = arg;
    struct pool_node *n = &pool.node[c->number];
    const char *why = "";
    snprintf(n->name, sizeof(n->name), "n%u", c->number);
    snprintf(n->machine, sizeof(n->machine), "machine-%u", c->number);
    snprintf(n->path, sizeof(n->path), "/tmp/tarn-unit-%d-%u.sock", (int)getpid(), c->number);
    randombytes_buf(n->instance, sizeof(n->instance));
    struct cluster_join join = {.name = span_str(n->name),
                                .machine = span_str(c->own_machine ? core_machine() : n->machine),
                                .rack = SPAN(""),
                                .version = SPAN("test"),
                                .address = "127.0.0.1",
                                .session = client_next_id()};
    memcpy(join.instance, n->instance, sizeof(join.instance));
    TARN_ASSERT(cluster_node_join(&join, &n->node, &why) == TARN_OK);
    struct cluster_node_info info;
    cluster_node_get(n->node, &info);
    struct host_config hc = {.bind = bind,
                             .binds = 1,
                             .threads = 1,
                             .max_connections = 50,
                             .shm_path = n->path,
                             .shm_mode = 0600,
                             .arg = n,
                             .fenced = pool_fenced_node};
    struct host_segment_config segment = {.name = "memory", .size = c->size, .numa_node = -1};
    struct host_reader reader = {.arg = n, .read = pool_read_disk};
    unsigned slot, disk_slot;
    char name[16];
    TARN_ASSERT(host_create(&hc, &n->host) == TARN_OK);
    host_set_authority(n->host, info.key, server.master_epoch);
    TARN_ASSERT(host_segment_open(n->host, &segment, &slot, &why) == TARN_OK);
    if (c->disk) TARN_ASSERT(host_reader_open(n->host, c->disk, &reader, &disk_slot) == TARN_OK);
    TARN_ASSERT(host_start(n->host) == TARN_OK);
    snprintf(name, sizeof(name), "%s.0", n->name);
    pool_mount(n, STORE_TIER_MEMORY, name, c->size, &n->segment, &n->epoch);
    TARN_ASSERT(host_segment_serve(n->host, slot, n->segment, n->epoch) == TARN_OK);
    if (c->disk) {
        n->disk_bytes = xcalloc(1, c->disk);
        snprintf(name, sizeof(name), "%s.ssd", n->name);
        pool_mount(n, STORE_TIER_SSD, name, c->disk, &n->disk, &n->disk_epoch);
        TARN_ASSERT(host_segment_serve(n->host, disk_slot, n->disk, n->disk_epoch) == TARN_OK);
    }
    TARN_ASSERT(cluster_node_up(n->node) == TARN_OK);
    net_watch_init(&n->watch, pool.loop, host_event_fd(n->host), pool_poll_host, &n->host);
    TARN_ASSERT(net_watch_set(&n->watch, NET_READ) == TARN_OK);
}

/* The process is gone; the master does not know yet. */
static inline void pool_node_kill(void *arg) {
    struct pool_node *n = &pool.node[*(unsigned *)arg];
    if (n->host == NULL) return;
    net_watch_set(&n->watch, 0);
    host_destroy(&n->host);
}

static inline void *pool_run(void *arg) {
    net_loop_run(pool.loop);
    return NULL;
}

static inline void pool_stop(void *arg) {
    net_loop_stop(pool.loop);
}

/* --- the test's side --- */

static inline void pool_add_node(unsigned number, uint64_t size) {
    struct pool_node_config c = {.number = number, .size = size};
    pool_call(pool_node_up, &c);
}

static inline void pool_kill(unsigned number) {
    pool_call(pool_node_kill, &number);
}

/* own: bytes of the embedded segment, 0: none. */
static inline void pool_begin(uint64_t own) {
    static const struct net_hooks hooks = {.woke = turn_woke, .turn = turn_run};
    static const struct store_events events = {.complete = pool_on_complete,
                                               .fence = pool_on_fence,
                                               .far_gone = pool_on_far_gone,
                                               .awaits = pool_on_awaits,
                                               .disk_wait = pool_disk_wait,
                                               .segment_gone = pool_on_segment_gone};
    log_set_level(LOG_LEVEL_NOTHING);
    TARN_ASSERT(sodium_init() >= 0);
    memset(&pool, 0, sizeof(pool));
    memset(&server, 0, sizeof(server));
    memset(&remote_stats, 0, sizeof(remote_stats));
    config_init(&pool.config);
    pool.config.inband_threads = 2;
    config = &pool.config;
    server.master_epoch = 7;
    randombytes_buf(embedded.grant_key, sizeof(embedded.grant_key));
    pool.loop = net_loop_create(&hooks);
    turn_init(pool.loop);
    struct store_config sc;
    store_config_init(&sc);
    core_store_config(&pool.config, &sc);
    books = store_create(&sc, &events, "lru", "offset", turn.mono_ms, turn.wall_ms);
    struct cluster_config cc;
    cluster_config_init(&cc);
    cc.node_timeout_ms = 3600000;
    struct cluster_options options = {.store = books,
                                      .master_epoch = server.master_epoch,
                                      .machine = core_machine(),
                                      .mono_ms = turn.mono_ms};
    cluster_init(&options, &cc);
    if (own > 0) pool_set_up_own(own);
    sem_init(&pool.done, 0, 0);
    pool.call_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    net_watch_init(&pool.calls, pool.loop, pool.call_fd, pool_called, NULL);
    TARN_ASSERT(net_watch_set(&pool.calls, NET_READ) == TARN_OK);
    net_timer_init(&pool.beat, pool.loop, pool_beat, NULL);
    net_timer_start(&pool.beat, 5);
    TARN_ASSERT(pthread_create(&pool.thread, NULL, pool_run, NULL) == 0);
}

static inline void pool_end(void) {
    pool_call(pool_stop, NULL);
    pthread_join(pool.thread, NULL);
    net_timer_stop(&pool.beat);
    net_watch_set(&pool.calls, 0);
    close(pool.call_fd);
    turn_deinit();
    for (unsigned i = 0; i < POOL_NODES; i++) {
        pool_node_kill(&i);
        free(pool.node[i].disk_bytes);
        if (pool.node[i].path[0]) unlink(pool.node[i].path);
    }
    if (embedded.host != NULL) net_watch_set(&pool.own_host, 0);
    cluster_deinit();
    host_destroy(&embedded.host);
    store_destroy(&books);
    net_loop_destroy(&pool.loop);
    sem_destroy(&pool.done);
    config_deinit(&pool.config);
}

/* In the server's thread, as accept would be: libevent tells the kernel of closed descriptors a
 * little later. */
static inline void pool_accept(void *arg) {
    struct sockaddr_storage nobody = {.ss_family = AF_UNIX};
    int fd[2];
    TARN_ASSERT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) == 0);
    TARN_ASSERT(fcntl(fd[1], F_SETFL, fcntl(fd[1], F_GETFL) | O_NONBLOCK) == 0);
    client_accept(&pool, fd[1], &nobody);
    *(int *)arg = fd[0];
}

static inline redisContext *pool_connect(void) {
    int fd;
    struct timeval patience = {TEST_PATIENCE_MS / 1000, 0};
    pool_call(pool_accept, &fd);
    TARN_ASSERT(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) == 0);
    return redisConnectFd(fd);
}

#endif
