/* The suite over shm, and what there is to say of that alone. */
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define SUITE "shm"
#include "suite.h"
#include "transport/shm/shm.h"

/* The kernel stamps a message with its sender when it is sent, and only where somebody has asked
 * for that by then: who speaks between the host's accept and anything the host does next must be
 * known, too. */
TEST(who_asks_at_once_is_answered) {
    enum { PEERS = 20000 };
    begin(1u << 20, true);
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", w.shm_path);
    /* A grant that is none: the answer says so, and hands out nothing. */
    struct shm_request rq = {
        .magic = SHM_MAGIC, .version = SHM_VERSION, .type = SHM_ATTACH, .request_id = 1};
    unsigned answered = 0;
    for (unsigned i = 0; i < PEERS; i++) {
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        CHECK(connect(fd, (struct sockaddr *)&addr, sizeof(addr)) == 0);
        struct shm_reply reply;
        size_t expected = SHM_REPLY_SHORT; /* to clients of 0.1, */
        rq.program = i % 2 == 0 ? 0 : UINT32_MAX - i;
        if (rq.program != 0) expected = sizeof(reply); /* and to others, whatever they say */
        if (send(fd, &rq, sizeof(rq), MSG_NOSIGNAL) == (ssize_t)sizeof(rq))
            answered += recv(fd, &reply, sizeof(reply), 0) == (ssize_t)expected;
        close(fd);
    }
    CHECK_EQ(answered, PEERS);
    CHECK_EQ(world_stats(&w).bad_frames, 0);
    end();
}

TEST(clients_of_0_1_attach_and_are_counted_as_such) {
    begin(1u << 20, true);
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", w.shm_path);
    struct shm_request rq = {.magic = SHM_MAGIC,
                             .version = SHM_VERSION,
                             .type = SHM_ATTACH,
                             .extent = {WORLD_SEGMENT, w.segment_epoch, 0, w.size}};
    world_grant(&w, GRANT_ATTACH_READ, 1, &rq.extent, rq.grant);
    static const struct {
        uint32_t program, counted;
        size_t reply;
    } peers[] = {{0, 0, SHM_REPLY_SHORT},
                 {0x000300, 0x000300, sizeof(struct shm_reply)},
                 {UINT32_MAX, 0, sizeof(struct shm_reply)}};
    for (size_t i = 0; i < ARRAY_LEN(peers); i++) {
        struct shm_reply reply = {0};
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        CHECK(connect(fd, (struct sockaddr *)&addr, sizeof(addr)) == 0);
        rq.program = peers[i].program;
        CHECK_EQ(send(fd, &rq, sizeof(rq), MSG_NOSIGNAL), (ssize_t)sizeof(rq));
        CHECK_EQ(recv(fd, &reply, sizeof(reply), 0), (ssize_t)peers[i].reply);
        CHECK_EQ(reply.status, SHM_OK);
        CHECK_EQ(reply.program, i == 0 ? 0 : program_own());
        CHECK_EQ(peers_of(peers[i].counted), 1);
        close(fd);
        CHECK(WORLD_WAIT(peers_of(peers[i].counted) == 0));
    }
    end();
}

/* Passes requests on to the host, and its replies back, cut to what 0.1 sends. */
static void *host_of_0_1(void *arg) {
    const int *fds = arg;
    struct shm_request rq;
    struct shm_reply reply;
    ssize_t n;
    while ((n = recv(fds[0], &rq, sizeof(rq), 0)) > 0) {
        union {
            char space[CMSG_SPACE(sizeof(int))];
            struct cmsghdr align;
        } control;
        struct iovec iov = {&reply, sizeof(reply)};
        struct msghdr msg = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.space,
                             .msg_controllen = sizeof(control.space)};
        CHECK_EQ(n, (ssize_t)sizeof(rq));
        CHECK_EQ(rq.program, rq.type == SHM_ATTACH ? program_own() : 0);
        CHECK_EQ(send(fds[1], &rq, sizeof(rq), MSG_NOSIGNAL), n);
        if (rq.type != SHM_ATTACH) continue;
        CHECK_EQ(recvmsg(fds[1], &msg, 0), (ssize_t)sizeof(reply));
        int fd;
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(fd));
        iov.iov_len = SHM_REPLY_SHORT;
        CHECK_EQ(sendmsg(fds[0], &msg, MSG_NOSIGNAL), (ssize_t)SHM_REPLY_SHORT);
        close(fd);
    }
    return NULL;
}

TEST(hosts_of_0_1_are_understood) {
    begin(1u << 20, true);
    struct sockaddr_un addr = {.sun_family = AF_UNIX}, between = addr;
    char uri[128];
    int fds[2], listening = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", w.shm_path);
    snprintf(between.sun_path, sizeof(between.sun_path), "%s/between", w.dir);
    snprintf(uri, sizeof(uri), "shm://%s", between.sun_path);
    CHECK(bind(listening, (struct sockaddr *)&between, sizeof(between)) == 0);
    CHECK_EQ(listen(listening, 1), 0);
    struct transport_domain_config config = {0};
    struct transport_domain *d;
    struct transport_endpoint *e;
    struct transport_key *k;
    const struct grant_extent whole = {WORLD_SEGMENT, w.segment_epoch, 0, w.size};
    CHECK_EQ(transport_shm.domain_open(&config, &d), TARN_OK);
    CHECK_EQ(transport_shm.connect(d, uri, 0, &e), TARN_OK);
    fds[0] = accept(listening, NULL, NULL);
    fds[1] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(connect(fds[1], (struct sockaddr *)&addr, sizeof(addr)) == 0);
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, host_of_0_1, fds), 0);
    for (int writable = 0; writable < 2; writable++) {
        uint8_t grant[GRANT_SIZE];
        world_grant(&w, writable ? GRANT_ATTACH_WRITE : GRANT_ATTACH_READ, 1, &whole, grant);
        struct transport_key_config key = {.segment = WORLD_SEGMENT,
                                           .segment_epoch = w.segment_epoch,
                                           .size = w.size,
                                           .writable = writable != 0,
                                           .grant = grant,
                                           .deadline_boot_ms = clock_boot_ms() + 60000};
        CHECK_EQ(transport_shm.key_unpack(e, &key, &k), TARN_OK);
        CHECK(transport_shm.key_map(k, 0, 4096) != NULL);
        CHECK_EQ(transport_shm.key_check(k), TARN_OK);
        transport_shm.key_close(&k);
    }
    transport_shm.endpoint_close(&e);
    pthread_join(thread, NULL);
    transport_shm.domain_close(&d);
    for (int i = 0; i < 2; i++) close(fds[i]);
    close(listening);
    unlink(between.sun_path);
    end();
}

/* Two hosts, one after the other at one address, under the same id and epoch, as two masters give
 * them that are started within a tenth of a second, or after a clock was set back. Nothing of the
 * first one is left, but its memory in our hands. */
TEST(the_memory_of_a_host_that_is_gone_is_not_that_of_the_next) {
    begin(1u << 20, true);
    uint8_t content[SEGMENT_CONTENT_SIZE];
    memcpy(content, w.state->content, sizeof(content));
    w.content = content;
    world_tell(&w, engine, 1);
    uint8_t before[4096] = {1}, after[4096] = {2}, got[4096];
    struct object o;
    object_init(&o, 0, sizeof(before), 1, 1);
    CHECK_EQ(move(engine, &o, true, before, NULL), TARN_OK);
    CHECK(
        /* reads have a mapping of their own */
        engine_attach(engine, WORLD_SEGMENT, w.segment_epoch, false));
    CHECK_EQ(move(engine, &o, false, got, NULL), TARN_OK);
    world_kill(&w);
    world_start(&w, true);
    CHECK(world_ready(&w, WORLD_SEGMENT, w.segment_epoch));
    engine_session_changed(engine);
    w.content = w.state->content;
    world_tell(&w, engine, 2);
    object_init(&o, 0, sizeof(after), 1, 2);
    CHECK_EQ(move(engine, &o, true, after, NULL), TARN_OK);
    CHECK_EQ(move(engine, &o, false, got, NULL), TARN_OK);
    CHECK(memcmp(got, after, sizeof(got)) == 0);
    /* Nor is the next one's memory what a master means that knows the first one only. */
    w.content = content;
    world_tell(&w, engine, 2);
    CHECK_EQ(move(engine, &o, false, got, NULL), TARN_ESTALE);
    end();
}

/* Is memory of a host at this address, writable? */
static bool maps_host(const void *at) {
    FILE *f = fopen("/proc/self/maps", "re");
    char line[512], rights[5], name[256];
    bool yes = false;
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        unsigned long from, to;
        name[0] = '\0';
        if (sscanf(line, "%lx-%lx %4s %*s %*s %*s %255s", &from, &to, rights, name) < 3) continue;
        if ((uintptr_t)at >= from && (uintptr_t)at < to) yes = rights[3] == 's';
    }
    if (f != NULL) fclose(f);
    return yes;
}

#define AWAIT(condition)                                                                           \
    for (int waits = 0; !(condition); waits++) {                                                   \
        CHECK(waits < 60000);                                                                      \
        usleep(1000);                                                                              \
    }

TEST(guarantee_2_memory_of_a_host_that_hung_up_is_let_go_of_without_a_call) {
    begin(1u << 20, true);
    char *put = engine_map(engine, WORLD_SEGMENT, w.segment_epoch, 4096, 4096, true);
    const char *view = engine_map(engine, WORLD_SEGMENT, w.segment_epoch, 4096, 4096, false);
    CHECK(put != NULL && view != NULL && view != put);
    strcpy(put, "here");
    CHECK(maps_host(put) && maps_host(view));
    world_kill(&w);
    AWAIT(!maps_host(put));
    /* Who looks on does not fault, and sees what there was; who writes on does not fault either,
     * and nobody sees it. */
    CHECK(maps_host(view) && strcmp(view, "here") == 0);
    strcpy(put, "nowhere");
    CHECK(strcmp(view, "here") == 0);
    CHECK_EQ(engine_check(engine, WORLD_SEGMENT, w.segment_epoch, put), TARN_ESTALE);
    world_start(&w, true);
    engine_session_changed(engine);
    world_tell(&w, engine, 1);
    uint8_t data[4096] = {7}, got[4096];
    struct object o;
    object_init(&o, 0, sizeof(data), 1, 1);
    CHECK_EQ(move(engine, &o, true, data, NULL), TARN_OK);
    CHECK_EQ(move(engine, &o, false, got, NULL), TARN_OK);
    CHECK(memcmp(got, data, sizeof(got)) == 0);
    end();
}

struct mover_thread {
    pthread_t thread;
    struct engine *engine;
    const struct object *o;
    char *data;
    uint64_t ok;
    tarn_status failed;
};

static void *moves(void *arg) {
    struct mover_thread *m = arg;
    for (unsigned i = 0; m->failed == TARN_OK; i++) {
        tarn_status s = move(m->engine, m->o, i % 2 == 0, m->data, NULL);
        if (s == TARN_OK)
            __atomic_add_fetch(&m->ok, 1, __ATOMIC_RELAXED);
        else
            m->failed = s;
    }
    return NULL;
}

/* Copies run in one thread, hosts end, other threads fork; nothing faults, and no copy into nothing
 * counts. */
TEST(guarantee_1_copies_under_way_fail_when_their_host_hangs_up) {
    enum { SIZE = 8 << 20, ROUNDS = 12 / SCALE + 2 };
    begin(16u << 20, true);
    struct object o;
    object_init(&o, 0, SIZE, 1, 1);
    char *data = xcalloc(1, SIZE);
    for (int round = 0; round < ROUNDS; round++) {
        struct mover_thread m = {.engine = engine, .o = &o, .data = data, .failed = TARN_OK};
        CHECK_EQ(pthread_create(&m.thread, NULL, moves, &m), 0);
        AWAIT(__atomic_load_n(&m.ok, __ATOMIC_RELAXED) >= 2);
        pid_t child = fork(); /* with the watching thread anywhere */
        if (child == 0) _exit(0);
        world_kill(&w);
        pthread_join(m.thread, NULL);
        int status = -1;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        CHECK(m.failed != TARN_OK);
        w.segment_epoch++;
        world_start(&w, true);
        engine_session_changed(engine);
        world_tell(&w, engine, 1);
        object_init(&o, 0, SIZE, 1, 1);
    }
    free(data);
    end();
}

static long faults(void) {
    struct rusage u;
    CHECK_EQ(getrusage(RUSAGE_THREAD, &u), 0);
    return u.ru_minflt;
}

/* Filling a pool, a new client meets each page for the first time. */
TEST(pages_that_a_put_touches_first_come_many_at_a_time) {
    enum { SIZE = 8 << 20, TIMES = 4 };
    long page = sysconf(_SC_PAGESIZE);
    if (page > 4096) SKIP("one page is what the kernel maps at once");
    begin(SIZE, true);
    struct object o;
    object_init(&o, 0, SIZE, 1, 1);
    uint8_t *data = xcalloc(1, SIZE), *back = xcalloc(1, SIZE);
    fill(data, SIZE, 1);
    CHECK_EQ(move(engine, &o, true, data, NULL), TARN_OK); /* the host's memory is there */
    fill(data, SIZE, 2);
    engine_destroy(&engine);
    engine = world_engine(&w, SUITE, 1);
    long before = faults();
    CHECK_EQ(move(engine, &o, true, data, NULL), TARN_OK);
#ifndef __SANITIZE_THREAD__ /* whose own memory faults, too */
    CHECK(faults() - before < SIZE / page / TIMES);
#else
    (void)before;
#endif
    CHECK_EQ(move(engine, &o, false, back, NULL), TARN_OK);
    CHECK(memcmp(data, back, SIZE) == 0);
    free(data);
    free(back);
    end();
}

/* With not even a descriptor to turn a peer away with, a listener does not look; it looks again
 * though nothing else happens in its domain. */
TEST(a_listener_without_descriptors_accepts_again_by_itself) {
    char path[108];
    snprintf(path, sizeof(path), "%s/tarn-shm-%d",
             getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp", (int)getpid());
    char uri[128];
    snprintf(uri, sizeof(uri), "shm://%s", path);
    const char *const uris[] = {uri};
    struct transport_listen_config config = {.uris = uris, .n_uris = 1};
    struct transport_domain *d = NULL;
    struct transport_listener *l = NULL;
    CHECK_EQ(transport_shm.domain_open(&(struct transport_domain_config){0}, &d), TARN_OK);
    CHECK_EQ(transport_shm.listen(d, &config, &l), TARN_OK);
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(connect(fd, (struct sockaddr *)&addr, sizeof(addr)) == 0);
    struct rlimit old, none;
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &old), 0);
    none = (struct rlimit){1, old.rlim_max};
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    transport_shm.progress(d, 1);
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
    struct transport_listener_stats stats;
    transport_shm.listener_stats(l, &stats);
    CHECK_EQ(stats.connections_total, 0);
    struct pollfd p = {.events = POLLIN};
    CHECK_EQ(transport_shm.arm(d, &p.fd), TARN_OK);
    for (int turn = 0; turn < 10 && stats.connections_total == 0; turn++) {
        CHECK_EQ(poll(&p, 1, 60000), 1);
        transport_shm.progress(d, 1);
        transport_shm.listener_stats(l, &stats);
    }
    CHECK_EQ(stats.connections_total, 1);
    CHECK_EQ(poll(&p, 1, 0), 0); /* and rests */
    close(fd);
    transport_shm.listener_close(&l);
    transport_shm.domain_close(&d);
}

/* Any process of a user that the socket lets may connect. */
static int shm_dial(void) {
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", w.shm_path);
    struct timeval limit = {.tv_sec = 60};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    CHECK(connect(fd, (struct sockaddr *)&addr, sizeof(addr)) == 0);
    return fd;
}

TEST(guarantee_4_who_shows_no_grant_makes_room_for_others) {
    begin(1u << 20, false);
    char data[4096] = "", c;
    struct object o;
    object_init(&o, 0, sizeof(data), 1, 9);
    CHECK_EQ(move(engine, &o, true, data, NULL), TARN_OK); /* it is in */
    int fds[300];
    for (int i = 0; i < 300; i++) fds[i] = shm_dial();
    CHECK(WORLD_WAIT(world_stats(&w).connections_ousted >= 100));
    CHECK_EQ(world_stats(&w).connections_refused, 0);
    CHECK_EQ(recv(fds[0], &c, 1, 0), 0); /* the oldest went first */
    struct engine *late = world_engine(&w, SUITE, 2);
    object_init(&o, 8192, sizeof(data), 1, 10);
    CHECK_EQ(move(late, &o, true, data, NULL), TARN_OK);
    engine_destroy(&late);
    object_init(&o, 16384, sizeof(data), 1, 9);
    CHECK_EQ(move(engine, &o, true, data, NULL), TARN_OK);
    for (int i = 0; i < 300; i++) close(fds[i]);
    CHECK(WORLD_WAIT(world_stats(&w).connections_new == 0));
    end();
}

TEST(guarantee_4_who_shows_no_grant_has_little_time) {
    begin_idle_ms = 700;
    begin(1u << 20, false);
    begin_idle_ms = 0;
    char data[4096] = "", c;
    struct object o;
    object_init(&o, 0, sizeof(data), 1, 9);
    CHECK_EQ(move(engine, &o, true, data, NULL), TARN_OK);
    int fds[5];
    for (int i = 0; i < 5; i++) fds[i] = shm_dial();
    for (int i = 0; i < 5; i++) CHECK_EQ(recv(fds[i], &c, 1, 0), 0);
    CHECK(world_stats(&w).timeouts >= 5);
    CHECK_EQ(world_stats(&w).shm_peers, 1); /* who has shown one stays */
    for (int i = 0; i < 5; i++) close(fds[i]);
    end();
}

TEST_MAIN()
