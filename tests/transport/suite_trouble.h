/* Part of the suite: hosts that are silent, stopped, killed or not there, and leases that end. */
#include "fixture.h"

TEST(a_lease_that_is_over_is_over) {
    begin(1u << 20, false);
    uint8_t data[4096] = {1};
    struct object o;
    object_init(&o, 0, 4096, 1, 1);
    struct engine_part parts[8];
    struct iovec iov;
    struct engine_op op = whole_op(&o, false, parts, &iov, data);
    op.lease_end_boot_ms = clock_boot_ms();
    CHECK_EQ(engine_run(engine, &op, 1, 0), TARN_OK);
    CHECK_EQ(op.status, TARN_ELEASE);
    op.lease_end_boot_ms = clock_boot_ms() + 60000;
    CHECK_EQ(engine_run(engine, &op, 1, 0), TARN_OK);
    CHECK_EQ(op.status, TARN_OK);
    end();
}

/* Listens where the host should, and says nothing. */
static int silent_peer(void) {
    int fd;
    log_set_level(LOG_LEVEL_NOTHING);
    fds_before = open_fds();
    world_init(&w, SUITE, 1u << 20);
    if (strcmp(SUITE, "shm") == 0) {
        struct sockaddr_un a = {.sun_family = AF_UNIX};
        snprintf(a.sun_path, sizeof(a.sun_path), "%s", w.shm_path);
        fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        CHECK(bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(fd, 5) == 0);
    } else if (strcmp(SUITE, "tcp") == 0) {
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t len = sizeof(a);
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK(bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(fd, 5) == 0);
        CHECK(getsockname(fd, (struct sockaddr *)&a, &len) == 0);
        w.state->port = ntohs(a.sin_port);
    } else {
        world_start(&w, true);
        CHECK(world_ready(&w, WORLD_SEGMENT, w.segment_epoch));
        world_pause(&w);
        fd = -1;
    }
    engine = world_engine(&w, SUITE, 1);
    return fd;
}

static void silent_peer_end(int fd) {
    if (fd >= 0) close(fd);
    if (w.pid > 0) kill(w.pid, SIGCONT);
    end();
}

TEST(a_silent_peer_meets_the_deadline) {
    int fd = silent_peer();
    uint8_t data[4096] = {1};
    struct object o;
    object_init(&o, 0, 4096, 1, 1);
    struct engine_part parts[8];
    struct iovec iov;
    struct engine_op op = whole_op(&o, true, parts, &iov, data);
    uint64_t start = clock_boot_ms();
    CHECK_EQ(engine_run(engine, &op, 1, start + 200), TARN_OK);
    CHECK_EQ(op.status, TARN_ETIMEOUT);
    CHECK(clock_boot_ms() - start >= 200);
    CHECK(clock_boot_ms() - start < 15000); /* to connect it would take longer */
    CHECK(op.settled);                      /* it never got as far as to send */
    silent_peer_end(fd);
}

/* Who could read elsewhere does not wait for the deadline. */
TEST(patience_with_a_silent_peer) {
    int fd = silent_peer();
    uint8_t data[4096] = {1};
    struct object o;
    object_init(&o, 0, 4096, 1, 1);
    struct engine_part parts[8];
    struct iovec iov;
    struct engine_op op = whole_op(&o, false, parts, &iov, data);
    op.patience_ms = 50;
    uint64_t start = clock_boot_ms();
    CHECK_EQ(engine_run(engine, &op, 1, start + 60000), TARN_OK);
    CHECK_EQ(op.status, TARN_ETIMEOUT);
    CHECK(clock_boot_ms() - start < 30000);
    silent_peer_end(fd);
}

static void write_and_signal(int signal, struct engine_op *op, uint64_t size) {
    uint8_t *out = malloc(size);
    fill(out, size, 6);
    struct object o;
    struct engine_part parts[8];
    struct iovec iov;
    object_init(&o, 0, size, 2, 1);
    CHECK_EQ(move(engine, &o, true, out, NULL), TARN_OK); /* connections are up */
    kill(w.pid, signal);
    waitpid(w.pid, NULL, WUNTRACED);
    *op = whole_op(&o, true, parts, &iov, out);
    op->patience_ms = 500;
    CHECK_EQ(engine_run(engine, op, 1, clock_boot_ms() + 60000), TARN_OK);
    free(out);
}

/* Its space may be given to others when the host is dead, and not while it is only silent. */
TEST(what_may_be_on_its_way) {
    NEEDS(TRANSPORT_GRANTED);
    struct engine_op op;
    begin(64u << 20, true);
    write_and_signal(SIGSTOP, &op, 32u << 20);
    CHECK_EQ(op.status, TARN_ETIMEOUT);
    CHECK(!op.settled);
    kill(w.pid, SIGCONT);
    end();
    begin(64u << 20, true);
    write_and_signal(SIGKILL, &op, 32u << 20);
    CHECK_EQ(op.status, TARN_ECLOSED);
    CHECK(op.settled);
    w.pid = 0;
    end();
}

TEST(a_killed_host) {
    begin(64u << 20, true);
    const uint64_t size = 32u << 20;
    uint8_t *out = malloc(size), *in = malloc(size);
    fill(out, size, 6);
    struct object o;
    object_init(&o, 0, size, 2, 1);
    CHECK_EQ(move(engine, &o, true, out, NULL), TARN_OK);
    pid_t killer = fork();
    if (killer == 0) {
        usleep(30000);
        kill(w.pid, SIGKILL);
        _exit(0);
    }
    bool failed = false;
    for (bool dead = false; !failed && !dead;) {
        dead = waitpid(killer, NULL, WNOHANG) == killer;
        if (dead) waitpid(w.pid, NULL, 0); /* this one fails for certain */
        struct engine_part parts[8];
        struct iovec iov;
        struct engine_op op = whole_op(&o, false, parts, &iov, in);
        memset(in, 0, size);
        CHECK_EQ(engine_run(engine, &op, 1, clock_boot_ms() + WORLD_PATIENCE_MS), TARN_OK);
        failed = op.status != TARN_OK;
        if (!failed) CHECK(memcmp(in, out, size) == 0); /* all, or nothing that counts */
    }
    waitpid(killer, NULL, 0);
    waitpid(w.pid, NULL, 0);
    /* a mapping may outlive its host for a moment */
    CHECK(failed || (suite_flags() & TRANSPORT_MAP) != 0);
    /* It comes back with nothing in its memory. */
    struct object stale = o;
    uint32_t old_epoch = w.segment_epoch;
    w.segment_epoch++;
    w.master_epoch++;
    world_start(&w, true);
    CHECK(world_ready(&w, WORLD_SEGMENT, w.segment_epoch));
    tarn_status gone = move(engine, &stale, false, in, NULL);
    /* its URI is another one now */
    bool elsewhere = gone == TARN_ECLOSED && (suite_flags() & TRANSPORT_ANNOUNCES) != 0;
    CHECK((suite_flags() & TRANSPORT_MAP) != 0 || gone == TARN_ESTALE || elsewhere);
    engine_session_changed(engine);
    w.segment_epoch = old_epoch; /* the owner has not noticed */
    world_tell(&w, engine, 2);
    CHECK_EQ(move(engine, &stale, true, out, NULL), TARN_ESTALE);
    w.segment_epoch++;
    world_tell(&w, engine, 2);
    CHECK_EQ(move(engine, &stale, false, in, NULL), TARN_ESTALE);
    object_init(&o, 0, size, 2, 2);
    CHECK_EQ(move(engine, &o, true, out, NULL), TARN_OK);
    CHECK_EQ(move(engine, &o, false, in, NULL), TARN_OK);
    CHECK(memcmp(in, out, size) == 0);
    free(out);
    free(in);
    end();
}

TEST(no_host_at_all) {
    begin(1u << 20, false);
    world_stop(&w);
    uint8_t data[4096] = {1};
    struct object o;
    object_init(&o, 0, 4096, 1, 1);
    uint64_t start = clock_boot_ms();
    CHECK_EQ(move(engine, &o, true, data, NULL), TARN_ECLOSED);
    CHECK(clock_boot_ms() - start < 15000); /* after its retries */
    o.x[0].segment = 99;
    CHECK_EQ(move(engine, &o, true, data, NULL), TARN_ENOSEGMENT);
    end();
}

TEST(auto_falls_back) {
    NEEDS(TRANSPORT_MAP);
    begin(1u << 20, false);
    engine_destroy(&engine);
    char path[96];
    memcpy(path, w.shm_path, sizeof(path));
    snprintf(w.shm_path, sizeof(w.shm_path), "/nonexistent/shm");
    engine = world_engine(&w, NULL, 1);
    memcpy(w.shm_path, path, sizeof(path));
    uint8_t data[4096] = {1};
    struct object o;
    object_init(&o, 0, 4096, 1, 1);
    CHECK_EQ(move(engine, &o, true, data, NULL), TARN_OK);
    struct engine_stats s;
    engine_get_stats(engine, &s);
    CHECK_EQ(s.fallbacks, 1);
    CHECK_EQ(s.bytes_written[transport_slot(&transport_tcp)], 4096);
    world_tell(&w, engine, 1); /* now we know better */
    CHECK_EQ(move(engine, &o, true, data, NULL), TARN_OK);
    engine_get_stats(engine, &s);
    CHECK_EQ(s.bytes_written[transport_slot(&transport_shm)], 4096);
    end();
}
