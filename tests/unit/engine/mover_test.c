/* What a mover does without a host: files, hosts that are not there, its queue. With one:
 * tests/transport/mover_test.c. */
#include "../test.h"

#include <poll.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "engine/mover.h"

static struct mover *m;
static unsigned done_count;

static void begin(unsigned threads, size_t queue) {
    log_set_level(LOG_LEVEL_NOTHING);
    struct mover_config c = {.threads = threads, .queue = queue};
    engine_config_init(&c.engine);
    c.engine.connect_timeout_ms = 500;
    CHECK_EQ(mover_create(&c, &m), TARN_OK);
    done_count = 0;
}

static void on_done(struct mover_job *job) {
    done_count++;
    if (job->arg != NULL) ++*(unsigned *)job->arg;
}

/* Polls until that many jobs came back, a minute at most. */
static bool await(unsigned n) {
    for (uint64_t end = clock_mono_ms() + TEST_PATIENCE_MS;
         done_count < n && clock_mono_ms() < end;) {
        struct pollfd p = {.fd = mover_event_fd(m), .events = POLLIN};
        poll(&p, 1, 100);
        mover_poll(m);
    }
    return done_count == n;
}

static const char *make_file(const char *data, size_t len) {
    static char path[64];
    strcpy(path, "/tmp/tarn-mover-XXXXXX");
    int fd = mkstemp(path);
    CHECK(fd >= 0);
    CHECK_EQ(write(fd, data, len), (ssize_t)len);
    close(fd);
    return path;
}

TEST(configurations) {
    struct mover_config c = {.threads = 0, .queue = 1};
    engine_config_init(&c.engine);
    CHECK_EQ(mover_create(&c, &m), TARN_EINVAL);
    c.threads = MOVER_THREADS_MAX + 1;
    CHECK_EQ(mover_create(&c, &m), TARN_EINVAL);
    c.threads = 1;
    c.queue = 0;
    CHECK_EQ(mover_create(&c, &m), TARN_EINVAL);
    begin(2, 4); /* no job, no thread */
    mover_session_end(m, 7);
    mover_poll(m);
    mover_destroy(&m);
    CHECK(m == NULL);
    mover_destroy(&m);
}

TEST(files) {
    static char data[10000], got[10000];
    for (size_t i = 0; i < sizeof(data); i++) data[i] = (char)(i * 7 + i / 256);
    const char *path = make_file(data, sizeof(data));
    begin(2, 16);
    uint32_t crcs[4];
    struct iovec iov[2] = {{got, 1000}, {got + 1000, 6000}};
    struct mover_job job = {
        .op = {.iov = iov, .n_iov = 2, .want_crc = true, .crcs = crcs, .crc_block = 2048},
        .file_path = path,
        .file_offset = 3000,
        .deadline_boot_ms = clock_boot_ms() + 60000,
        .done = on_done,
    };
    CHECK_EQ(mover_submit(m, &job), TARN_OK);
    CHECK(await(1));
    CHECK_EQ(job.op.status, TARN_OK);
    CHECK(memcmp(got, data + 3000, 7000) == 0);
    CHECK_EQ(job.op.crc, crc32c(0, data + 3000, 7000));
    for (size_t i = 0; i < 4; i++)
        CHECK_EQ(crcs[i], crc32c(0, data + 3000 + i * 2048, min_u64(2048, 7000 - i * 2048)));

    job.file_offset = 3001; /* a byte too few */
    CHECK_EQ(mover_submit(m, &job), TARN_OK);
    CHECK(await(2));
    CHECK_EQ(job.op.status, TARN_ECORRUPT);
    job.file_offset = 0;
    job.op.lease_end_boot_ms = 1;
    CHECK_EQ(mover_submit(m, &job), TARN_OK);
    CHECK(await(3));
    CHECK_EQ(job.op.status, TARN_ELEASE);
    job.op.lease_end_boot_ms = 0;
    job.deadline_boot_ms = 1;
    CHECK_EQ(mover_submit(m, &job), TARN_OK);
    CHECK(await(4));
    CHECK_EQ(job.op.status, TARN_ETIMEOUT);
    job.deadline_boot_ms = clock_boot_ms() + 60000;
    job.op.write = true;
    CHECK_EQ(mover_submit(m, &job), TARN_OK);
    CHECK(await(5));
    CHECK_EQ(job.op.status, TARN_EINVAL);
    job.op.write = false;
    unlink(path);
    CHECK_EQ(mover_submit(m, &job), TARN_OK);
    CHECK(await(6));
    CHECK_EQ(job.op.status, TARN_ENOTFOUND);
    job.file_root = "/tmp";
    CHECK_EQ(mover_submit(m, &job), TARN_OK);
    CHECK(await(7));
    CHECK_EQ(job.op.status, TARN_ENOTFOUND);
    job.file_root = "/tmp/tarn-no-such-mount";
    CHECK_EQ(mover_submit(m, &job), TARN_OK);
    CHECK(await(8));
    CHECK_EQ(job.op.status, TARN_EIO);
    struct mover_stats s;
    mover_get_stats(m, &s);
    CHECK_EQ(s.done, 8);
    CHECK_EQ(s.failed, 7);
    CHECK_EQ(s.bytes_read, 7000);
    CHECK_EQ(s.queued + s.running, 0);
    mover_destroy(&m);
}

/* A file whose disk does not answer for a while: its bytes are read by this. */
static atomic_bool disk_hangs;
ssize_t preadv(int fd, const struct iovec *iov, int n, off_t offset) {
    while (atomic_load(&disk_hangs)) usleep(1000);
    return syscall(SYS_preadv, fd, iov, n, offset, 0L);
}

static const char *hanging_file(void) {
    const char *path = make_file("x", 1);
    atomic_store(&disk_hangs, true);
    return path;
}

static void disk_let_go(void) {
    atomic_store(&disk_hangs, false);
}

static struct mover_job file_job(const char *path, struct iovec *iov, unsigned *count) {
    return (struct mover_job){.op = {.iov = iov, .n_iov = 1},
                              .file_path = path,
                              .deadline_boot_ms = clock_boot_ms() + 60000,
                              .done = on_done,
                              .arg = count};
}

static bool running(unsigned n) {
    struct mover_stats s;
    for (int i = 0; i < 60000; i++) {
        mover_get_stats(m, &s);
        if (s.running == n) return true;
        usleep(1000);
    }
    return false;
}

TEST(a_place_that_hangs_leaves_a_thread_for_others_and_the_queue_is_bounded) {
    const char *path = hanging_file();
    begin(2, 4);
    char byte;
    struct iovec iov = {&byte, 1};
    unsigned hung = 0, others = 0;
    struct mover_job jobs[4];
    for (int i = 0; i < 3; i++) {
        jobs[i] = file_job(path, &iov, &hung);
        CHECK_EQ(mover_submit(m, &jobs[i]), TARN_OK);
    }
    CHECK(running(1)); /* not two of them */
    uint8_t grant[GRANT_SIZE] = {0};
    struct engine_segment segment = {.id = 4, .epoch = 2, .size = 4096};
    CHECK(engine_segment_way(&segment, "tcp://127.0.0.1:1") != NULL);
    const struct engine_segment *segments[1] = {&segment};
    struct engine_part part = {{4, 2, 0, 1}, grant, 0, 1};
    jobs[3] = (struct mover_job){
        .op = {.parts = &part, .n_parts = 1, .iov = &iov, .n_iov = 1},
        .session = 9,
        .segments = segments,
        .deadline_boot_ms = clock_boot_ms() + 300,
        .done = on_done,
        .arg = &others,
    };
    CHECK_EQ(mover_submit(m, &jobs[3]), TARN_OK);
    struct mover_job more = file_job(path, &iov, NULL);
    CHECK_EQ(mover_submit(m, &more), TARN_EAGAIN);
    CHECK(await(1)); /* the queue is as long as before, and this one passed it */
    CHECK_EQ(others, 1);
    CHECK(jobs[3].op.status == TARN_ECLOSED || jobs[3].op.status == TARN_ETIMEOUT);

    mover_cancel(m, &jobs[2]); /* had not begun */
    mover_cancel(m, &jobs[0]); /* or this one */
    mover_cancel(m, &jobs[2]); /* once is enough */
    CHECK(await(2));
    CHECK(jobs[2].op.status == TARN_ECANCELED);
    disk_let_go();
    CHECK(await(4));
    CHECK_EQ(hung, 3);
    struct mover_stats s;
    mover_get_stats(m, &s);
    CHECK_EQ(s.refused, 1);
    CHECK_EQ(s.done, 4);
    CHECK_EQ(s.sessions, 1);
    mover_session_end(m, 9);
    for (unsigned i = 0; i < TEST_PATIENCE_MS && s.sessions > 0; i++) {
        usleep(1000);
        mover_get_stats(m, &s);
    }
    CHECK_EQ(s.sessions, 0);
    unlink(path);
    mover_destroy(&m);
}

TEST(engines_that_rest_are_closed) {
    log_set_level(LOG_LEVEL_NOTHING);
    struct mover_config c = {.threads = 2, .queue = 4};
    engine_config_init(&c.engine);
    c.engine.idle_close_ms = 20;
    CHECK_EQ(mover_create(&c, &m), TARN_OK);
    done_count = 0;
    char byte;
    struct iovec iov = {&byte, 1};
    uint8_t grant[GRANT_SIZE] = {0};
    struct engine_segment segment = {.id = 4, .epoch = 2, .size = 4096};
    CHECK(engine_segment_way(&segment, "tcp://127.0.0.1:1") != NULL);
    const struct engine_segment *segments[1] = {&segment};
    struct engine_part part = {{4, 2, 0, 1}, grant, 0, 1};
    struct mover_job job = {
        .op = {.write = true,
               .parts = &part,
               .n_parts = 1,
               .iov = &iov,
               .n_iov = 1,
               .patience_ms = 50},
        .session = 9,
        .segments = segments,
        .deadline_boot_ms = clock_boot_ms() + 60000,
        .done = on_done,
    };
    CHECK_EQ(mover_submit(m, &job), TARN_OK);
    CHECK(await(1));
    struct mover_stats s = {.sessions = 1};
    for (unsigned i = 0; i < TEST_PATIENCE_MS && s.sessions > 0; i++) {
        usleep(1000);
        mover_get_stats(m, &s);
    }
    CHECK_EQ(s.sessions, 0);
    mover_destroy(&m);
}

static struct mover_job again_job;
static void submit_again(struct mover_job *job) {
    done_count++;
    if (*(unsigned *)job->arg == 0) return;
    --*(unsigned *)job->arg;
    tarn_status status = mover_submit(m, job);
    if (status != TARN_OK) job->op.status = status;
}

TEST(a_job_may_be_submitted_again_from_its_end) {
    const char *path = make_file("x", 1);
    begin(1, 1);
    char byte = 0;
    struct iovec iov = {&byte, 1};
    unsigned left = 9;
    again_job = file_job(path, &iov, &left);
    again_job.done = submit_again;
    CHECK_EQ(mover_submit(m, &again_job), TARN_OK);
    CHECK(await(10));
    CHECK_EQ(again_job.op.status, TARN_OK);
    CHECK_EQ(byte, 'x');
    mover_destroy(&m);
    unlink(path);
}

TEST(destroying_ends_every_job) {
    const char *path = hanging_file();
    begin(1, 10);
    char byte;
    struct iovec iov = {&byte, 1};
    struct mover_job jobs[5];
    for (int i = 0; i < 5; i++) {
        jobs[i] = file_job(path, &iov, NULL);
        CHECK_EQ(mover_submit(m, &jobs[i]), TARN_OK);
    }
    CHECK(running(1));
    disk_let_go();
    mover_destroy(&m);
    CHECK_EQ(done_count, 5);
    unsigned canceled = 0;
    for (int i = 0; i < 5; i++) canceled += jobs[i].op.status == TARN_ECANCELED;
    CHECK(canceled <= 4);
    unlink(path);
}

TEST_MAIN()
