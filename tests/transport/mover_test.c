/* A mover and a real host: jobs of several sessions at once, a host that is killed or stopped, a
 * fence. */
#include "../unit/test.h"

#include "base/crc32c.h"
#include "base/log.h"
#include "base/rng.h"
#include "engine/mover.h"
#include "world.h"

#define SESSION 77u
#define BLOCK   (64u << 10)

static struct world w;
static struct mover *m;
static unsigned done_count;
static struct engine_segment segment;
static struct world_uris uris;
static uint8_t attach[2][GRANT_SIZE];

static void know_segment(uint64_t session) {
    struct grant_extent whole = world_extent(&w, 0, w.size);
    world_grant(&w, GRANT_ATTACH_READ, session, &whole, attach[0]);
    world_grant(&w, GRANT_ATTACH_WRITE, session, &whole, attach[1]);
    segment = (struct engine_segment){
        .id = WORLD_SEGMENT,
        .epoch = w.segment_epoch,
        .size = w.size,
        .attach = {attach[0], attach[1]},
        .same_host = true,
    };
    world_ways(&w, &segment, &uris);
    segment.way[transport_slot(&transport_shm)].uri = NULL;
}

static void begin(bool child, unsigned threads) {
    log_set_level(LOG_LEVEL_NOTHING);
    world_init(&w, "tcp", 8u << 20);
    world_start(&w, child);
    struct mover_config c = {.threads = threads, .queue = 1000};
    engine_config_init(&c.engine);
    c.engine.connect_timeout_ms = 1000;
    CHECK_EQ(mover_create(&c, &m), TARN_OK);
    know_segment(SESSION);
    done_count = 0;
}

static void end(void) {
    mover_destroy(&m);
    if (w.pid > 0) world_kill(&w);
    world_deinit(&w);
}

static void on_done(struct mover_job *job) {
    done_count++;
}

static bool await(unsigned n) {
    for (uint64_t until = clock_mono_ms() + TEST_PATIENCE_MS;
         done_count < n && clock_mono_ms() < until;) {
        struct pollfd p = {.fd = mover_event_fd(m), .events = POLLIN};
        poll(&p, 1, 100);
        mover_poll(m);
    }
    return done_count == n;
}

/* A transfer with all that it borrows. */
struct transfer {
    struct mover_job job;
    struct engine_part part;
    struct iovec iov;
    uint8_t grant[GRANT_SIZE];
    const struct engine_segment *segments[1];
    uint8_t *data;
};

static void transfer_init(struct transfer *t, bool write, uint64_t session, uint64_t offset,
                          uint64_t length) {
    struct grant_extent x = world_extent(&w, offset, length);
    t->data = malloc(length);
    t->iov = (struct iovec){t->data, length};
    world_grant(&w, write ? GRANT_WRITE : GRANT_READ, session, &x, t->grant);
    t->part = (struct engine_part){x, t->grant, 0, length};
    t->segments[0] = &segment;
    t->job = (struct mover_job){
        .op = {.write = write,
               .parts = &t->part,
               .n_parts = 1,
               .iov = &t->iov,
               .n_iov = 1,
               .want_crc = true},
        .session = session,
        .segments = t->segments,
        .deadline_boot_ms = clock_boot_ms() + WORLD_PATIENCE_MS,
        .done = on_done,
    };
}

TEST(bytes_of_many_sessions_at_once) {
    enum { N = 64 };
    static struct transfer out[N], in[N];
    begin(false, 4);
    struct rng r;
    rng_seed(&r, 1);
    for (unsigned i = 0; i < N; i++) {
        transfer_init(&out[i], true, SESSION + i % 5, i * BLOCK, i % 3 ? BLOCK : 100);
        for (size_t k = 0; k < out[i].iov.iov_len; k++)
            out[i].data[k] = (uint8_t)rng_below(&r, 256);
        CHECK_EQ(mover_submit(m, &out[i].job), TARN_OK);
    }
    CHECK(await(N));
    for (unsigned i = 0; i < N; i++) {
        CHECK_EQ(out[i].job.op.status, TARN_OK);
        transfer_init(&in[i], false, SESSION, i * BLOCK, out[i].iov.iov_len);
        CHECK_EQ(mover_submit(m, &in[i].job), TARN_OK);
    }
    CHECK(await(2 * N));
    for (unsigned i = 0; i < N; i++) {
        CHECK_EQ(in[i].job.op.status, TARN_OK);
        CHECK(memcmp(in[i].data, out[i].data, in[i].iov.iov_len) == 0);
        CHECK_EQ(in[i].job.op.crc, crc32c(0, out[i].data, out[i].iov.iov_len));
        free(in[i].data);
        free(out[i].data);
    }
    struct mover_stats s;
    mover_get_stats(m, &s);
    CHECK_EQ(s.done, 2 * N);
    CHECK_EQ(s.failed, 0);
    CHECK(s.batches <= s.done);
    CHECK_EQ(s.bytes_read, s.bytes_written);
    CHECK(s.sessions >= 5 && s.sessions <= 4 * 5);
    end();
}

TEST(shared_memory_where_there_is_some) {
    static struct transfer out, in;
    begin(false, 2);
    CHECK(engine_segment_way(&segment, uris.shm) != NULL);
    transfer_init(&out, true, SESSION, 0, BLOCK);
    memset(out.data, 7, BLOCK);
    CHECK_EQ(mover_submit(m, &out.job), TARN_OK);
    CHECK(await(1));
    CHECK_EQ(out.job.op.status, TARN_OK);
    CHECK_EQ(out.job.op.used, transport_slot(&transport_shm));
    transfer_init(&in, false, SESSION, 0, BLOCK);
    CHECK_EQ(mover_submit(m, &in.job), TARN_OK);
    CHECK(await(2));
    CHECK_EQ(in.job.op.used, transport_slot(&transport_shm));
    CHECK(memcmp(in.data, out.data, BLOCK) == 0);
    free(in.data);
    free(out.data);
    end();
}

/* Its connections gone and its mappings given up, a session can be fenced, while the others go
 * on. */
TEST(an_ended_session_can_be_fenced) {
    static struct transfer a, b;
    begin(false, 3);
    CHECK(engine_segment_way(&segment, uris.shm) != NULL);
    transfer_init(&a, true, SESSION, 0, BLOCK);
    memset(a.data, 1, BLOCK);
    CHECK_EQ(mover_submit(m, &a.job), TARN_OK);
    CHECK(await(1));
    CHECK_EQ(a.job.op.used, transport_slot(&transport_shm));
    mover_session_end(m, SESSION);
    __atomic_store_n(&w.state->fence_wanted, SESSION, __ATOMIC_RELEASE);
    CHECK(WORLD_WAIT(__atomic_load_n(&w.state->fenced, __ATOMIC_ACQUIRE) == SESSION));
    transfer_init(&b, true, SESSION, 0, BLOCK);
    memset(b.data, 2, BLOCK);
    segment.way[transport_slot(&transport_shm)].uri = NULL;
    CHECK_EQ(mover_submit(m, &b.job), TARN_OK);
    CHECK(await(2));
    CHECK(b.job.op.status != TARN_OK);
    CHECK_EQ(*(uint8_t *)host_segment_base(w.host, WORLD_SEGMENT), 1);
    free(b.data);
    transfer_init(&b, true, SESSION + 1, 0, BLOCK);
    memset(b.data, 3, BLOCK);
    CHECK_EQ(mover_submit(m, &b.job), TARN_OK);
    CHECK(await(3));
    CHECK_EQ(b.job.op.status, TARN_OK);
    free(a.data);
    free(b.data);
    end();
}

TEST(a_host_that_dies_and_one_that_stops) {
    static struct transfer t[8];
    static struct world successor; /* forked before there are threads */
    world_init(&successor, "tcp", 8u << 20);
    world_start(&successor, true);
    begin(true, 2);
    for (unsigned i = 0; i < 8; i++) {
        transfer_init(&t[i], true, SESSION, i * BLOCK, BLOCK);
        memset(t[i].data, (int)i, BLOCK);
    }
    for (unsigned i = 0; i < 4; i++) CHECK_EQ(mover_submit(m, &t[i].job), TARN_OK);
    CHECK(await(4));
    int state;
    kill(w.pid, SIGSTOP);
    CHECK_EQ(waitpid(w.pid, &state, WUNTRACED), w.pid); /* all its threads */
    for (unsigned i = 4; i < 8; i++) {
        t[i].job.deadline_boot_ms = clock_boot_ms() + 300;
        CHECK_EQ(mover_submit(m, &t[i].job), TARN_OK);
    }
    CHECK(await(8));
    for (unsigned i = 0; i < 8; i++) CHECK_EQ(t[i].job.op.status, i < 4 ? TARN_OK : TARN_ETIMEOUT);
    world_kill(&w);
    t[0].job.deadline_boot_ms = clock_boot_ms() + WORLD_PATIENCE_MS;
    CHECK_EQ(mover_submit(m, &t[0].job), TARN_OK);
    CHECK(await(9));
    CHECK_EQ(t[0].job.op.status, TARN_ECLOSED);
    /* A new process at another port, under the same id: known by its new address. */
    w.state->port = successor.state->port;
    know_segment(SESSION);
    t[0].job.deadline_boot_ms = clock_boot_ms() + WORLD_PATIENCE_MS;
    CHECK_EQ(mover_submit(m, &t[0].job), TARN_OK);
    CHECK(await(10));
    CHECK_EQ(t[0].job.op.status, TARN_OK);
    for (unsigned i = 0; i < 8; i++) free(t[i].data);
    end();
    world_deinit(&successor);
}

TEST_MAIN()
