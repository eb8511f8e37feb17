/* What tests of a transport start from: a host, an engine, objects. SUITE is the transport's
 * scheme. */
#ifndef TARN_TESTS_TRANSPORT_FIXTURE_H
#define TARN_TESTS_TRANSPORT_FIXTURE_H

#include "../unit/test.h"

#pragma GCC diagnostic ignored "-Wunused-function" /* each program uses some of it */

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/crc32c.h"
#include "base/log.h"
#include "base/rng.h"
#include "transport/tcp/frame.h"
#include "world.h"

#ifdef __SANITIZE_THREAD__
#define SCALE 8 /* times slower */
#else
#define SCALE 1
#endif

static uint32_t suite_flags(void) {
    const struct world any = {.scheme = SUITE};
    return world_flags(&any);
}

/* Is what a test needs true of this transport? */
#define NEEDS(flag)                                                                                \
    if ((suite_flags() & (flag)) == 0) SKIP("not for " SUITE)

static int open_fds(void) {
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (readdir(d) != NULL) n++;
    closedir(d);
    return n;
}

static struct world w;
static struct engine *engine;
static int fds_before;
static unsigned begin_threads = 2; /* of the host */
static const struct host_reader *begin_reader;
static const char *begin_pool;
static uint64_t begin_staging;
static uint64_t begin_idle_ms, begin_connect_ms; /* 0: longer than any test should take */

static void begin(uint64_t size, bool child) {
    log_set_level(getenv("TARN_TEST_LOG") != NULL ? LOG_LEVEL_DEBUG : LOG_LEVEL_NOTHING);
    fds_before = open_fds();
    world_init(&w, SUITE, size);
    w.threads = begin_threads;
    w.reader = begin_reader;
    w.pool_path = begin_pool;
    w.staging_bytes = begin_staging;
    if (begin_idle_ms != 0) w.idle_timeout_ms = begin_idle_ms;
    if (begin_connect_ms != 0) w.connect_timeout_ms = begin_connect_ms;
    world_start(&w, child);
    CHECK(world_ready(&w, WORLD_SEGMENT, w.segment_epoch));
    engine = world_engine(&w, SUITE, 1);
}

static void end(void) {
    engine_destroy(&engine);
    world_deinit(&w);
    CHECK_EQ(open_fds(), fds_before);
}

static void fill(uint8_t *p, size_t n, uint64_t seed) {
    struct rng r;
    rng_seed(&r, seed);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint64_t v = rng_next(&r);
        memcpy(p + i, &v, 8);
    }
    for (; i < n; i++) p[i] = (uint8_t)rng_next(&r);
}

/* An object of `size` bytes in `n` extents, scattered over the segment from `at` on, with grants
 * for both directions. */
struct object {
    uint64_t size;
    size_t n;
    struct grant_extent x[8];
    uint8_t grant[2][8][GRANT_SIZE];
};

static void object_init_in(struct object *o, uint32_t segment, uint64_t at, uint64_t size, size_t n,
                           uint64_t session) {
    *o = (struct object){.size = size};
    uint64_t left = size;
    for (size_t i = 0; i < n && left > 0; i++) {
        uint64_t len = i + 1 == n ? left : min_u64(left, size / n + 1);
        o->x[i] = world_extent(&w, at, len);
        o->x[i].segment = segment;
        world_grant(&w, GRANT_READ, session, &o->x[i], o->grant[0][i]);
        world_grant(&w, GRANT_WRITE, session, &o->x[i], o->grant[1][i]);
        at += (len + 4095) / 4096 * 4096 + 4096; /* a gap: extents are not neighbours */
        left -= len;
        o->n = i + 1;
    }
}

static void object_init(struct object *o, uint64_t at, uint64_t size, size_t n, uint64_t session) {
    object_init_in(o, WORLD_SEGMENT, at, size, n, session);
}

/* The parts for [from, from + len) of the object. */
static size_t object_parts(const struct object *o, bool write, uint64_t from, uint64_t len,
                           struct engine_part out[8]) {
    size_t n = 0;
    uint64_t pos = 0;
    for (size_t i = 0; i < o->n; pos += o->x[i++].length) {
        uint64_t a = max_u64(from, pos), b = min_u64(from + len, pos + o->x[i].length);
        if (a < b) out[n++] = (struct engine_part){o->x[i], o->grant[write][i], a - pos, b - a};
    }
    return n;
}

static struct engine_op whole_op(const struct object *o, bool write, struct engine_part parts[8],
                                 struct iovec *iov, void *data) {
    *iov = (struct iovec){data, o->size};
    return (struct engine_op){.write = write,
                              .parts = parts,
                              .n_parts = object_parts(o, write, 0, o->size, parts),
                              .iov = iov,
                              .n_iov = 1,
                              .want_crc = true};
}

static tarn_status move(struct engine *e, const struct object *o, bool write, void *data,
                        uint32_t *crc_p) {
    struct engine_part parts[8];
    struct iovec iov;
    struct engine_op op = whole_op(o, write, parts, &iov, data);
    CHECK_EQ(engine_run(e, &op, 1, clock_boot_ms() + WORLD_PATIENCE_MS), TARN_OK);
    if (crc_p != NULL) *crc_p = op.crc;
    return op.status;
}

/* With other figures for each kind of transport. */
static uint64_t peers(void) {
    struct host_stats s = world_stats(&w);
    return s.connections + s.shm_peers + s.module_peers;
}

static bool fenced(uint64_t session) {
    return __atomic_load_n(&w.state->fenced, __ATOMIC_ACQUIRE) == session;
}
static void fence(uint64_t session) {
    __atomic_store_n(&w.state->fence_wanted, session, __ATOMIC_RELEASE);
}

/* A look at memory that the host's threads are writing. */
__attribute__((no_sanitize("thread"), noinline)) static uint8_t peek(const volatile uint8_t *p) {
    return *p;
}

/* Of that version, as the host counts them. */
static uint32_t peers_of(uint32_t program) {
    struct program_counts c = world_stats(&w).programs;
    uint32_t peers = 0;
    for (unsigned i = 0; i <= PROGRAM_COUNTS; i++)
        if (c.of[i].program == program) peers += c.of[i].peers;
    return peers;
}

#endif
