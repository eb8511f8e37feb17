/* Several hosts in one run of an engine: those that are dead, silent or stopped cost their own
 * operations only. */
#define SUITE "auto"
#include "fixture.h"
#include "transport/uri.h"

#define REFUSES 100u /* segments */
#define SILENT  101u
#define STOPPED 102u
#define LIVE    20

static int listening(uint16_t *port_p, bool listens) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0 && (!listens || listen(fd, 5) == 0));
    CHECK(getsockname(fd, (struct sockaddr *)&a, &len) == 0);
    *port_p = ntohs(a.sin_port);
    return fd;
}

static void tell(uint32_t id, uint16_t port, const char *shm_path) {
    static const uint8_t grant[GRANT_SIZE];
    struct engine_segment s = {.id = id,
                               .epoch = w.segment_epoch,
                               .size = w.size,
                               .attach = {grant, grant},
                               .same_host = true};
    char *data = uri_make(SPAN("tcp"), "127.0.0.1", port);
    char *shm = shm_path != NULL ? uri_of_path("shm", shm_path) : NULL;
    CHECK(engine_segment_way(&s, data) != NULL);
    if (shm != NULL) CHECK(engine_segment_way(&s, shm) != NULL);
    CHECK_EQ(engine_segment_set(engine, &s), TARN_OK);
    free(data);
    free(shm);
}

/* LIVE operations of a host that lives, and after every fifth one of each other segment. */
static void run_mixed(const uint32_t *others, size_t n_others, const tarn_status *expected,
                      bool write) {
    enum { OPS = 2 * LIVE };
    static struct object o[OPS];
    static struct engine_part parts[OPS][8];
    static struct iovec iov[OPS];
    static struct engine_op ops[OPS];
    static uint8_t data[OPS][5000];
    size_t n = 0, others_at[8];
    for (unsigned i = 0; i < LIVE; i++, n++) {
        object_init(&o[n], i * 8192ull, 5000, 1, 1);
        memset(data[n], (int)i + 1, sizeof(data[n]));
        ops[n] = whole_op(&o[n], write, parts[n], &iov[n], data[n]);
        ops[n].patience_ms = 15000;
        if (i % 5 != 0 || i / 5 >= n_others) continue;
        others_at[i / 5] = ++n;
        object_init_in(&o[n], others[i / 5], 0, 5000, 1, 1);
        ops[n] = whole_op(&o[n], write, parts[n], &iov[n], data[n]);
        ops[n].patience_ms = 300;
    }
    uint64_t start = clock_boot_ms();
    CHECK_EQ(engine_run(engine, ops, n, start + 60000), TARN_OK);
    CHECK(clock_boot_ms() - start <
          20000); /* far from the deadline, and from all time-outs one after the other */
    for (size_t i = 0, k = 0; i < n; i++) {
        if (k < n_others && others_at[k] == i)
            CHECK_EQ(ops[i].status, expected[k++]);
        else
            CHECK_EQ(ops[i].status, TARN_OK);
    }
}

TEST(dead_hosts_cost_their_own_operations_only) {
    begin(1u << 20, false);
    uint16_t refuses, silent;
    int refuses_fd = listening(&refuses, false), silent_fd = listening(&silent, true);
    tell(REFUSES, refuses, "/nonexistent/s");
    tell(SILENT, silent, NULL);
    static const uint32_t others[] = {REFUSES, SILENT, REFUSES, SILENT};
    static const tarn_status expected[] = {TARN_ECLOSED, TARN_ETIMEOUT, TARN_ECLOSED,
                                           TARN_ETIMEOUT};
    run_mixed(others, 4, expected, true);
    run_mixed(others, 4, expected, false);
    close(refuses_fd);
    close(silent_fd);
    end();
}

TEST(a_stopped_host_costs_its_own_operations_only) {
    static struct world stopped;
    world_init(&stopped, "tcp", 1u << 20);
    world_start(&stopped, true); /* first: the child must not have the other's threads */
    begin(1u << 20, false);
    world_pause(&stopped);
    tell(STOPPED, stopped.state->port, stopped.shm_path);
    static const uint32_t others[] = {STOPPED, STOPPED};
    static const tarn_status expected[] = {TARN_ETIMEOUT, TARN_ETIMEOUT};
    run_mixed(others, 2, expected, true);
    run_mixed(others, 2, expected, false);
    kill(stopped.pid, SIGCONT);
    end();
    world_deinit(&stopped);
}

TEST_MAIN()
