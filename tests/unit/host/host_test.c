#include "../test.h"

#include <poll.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "../host_add.h"
#include "host/host_internal.h"

static uint64_t fenced_session;
static unsigned fenced_calls;
static void on_fenced(void *arg, uint64_t session) {
    (void)arg;
    fenced_session = session;
    fenced_calls++;
}

static const uint8_t key[GRANT_KEY_SIZE] = {1}, next_key[GRANT_KEY_SIZE] = {2};

static struct host *make(const char *shm_path) {
    log_set_level(LOG_LEVEL_NOTHING);
    static const char *const bind[] = {"127.0.0.1", "-::1", "-203.0.113.77"};
    struct host_config config = {
        .bind = bind, .binds = 3, .threads = 3, .shm_path = shm_path, .fenced = on_fenced};
    struct host *h;
    const char *why;
    CHECK_EQ(host_create(&config, &h), TARN_OK);
    struct host_segment_config s = {.name = "a", .size = 1u << 20, .numa_node = -1};
    CHECK_EQ(host_segment_add(h, &s, 1, 5, &why), TARN_OK);
    CHECK_EQ(host_segment_add(h, &s, 1, 5, &why), TARN_EINVAL);
    CHECK_EQ(host_segment_add(h, &s, 2, 0, &why), TARN_EINVAL);
    s.size = 5;
    CHECK_EQ(host_segment_add(h, &s, 2, 5, &why), TARN_EINVAL);
    CHECK(strlen(why) > 0);
    s.size = 8192;
    CHECK_EQ(host_segment_add(h, &s, 2, 6, &why), TARN_OK);
    return h;
}

static enum grant_verdict ask(struct host *h, const uint8_t *k, struct grant g,
                              struct grant_extent x) {
    uint8_t wire[GRANT_SIZE];
    void *addr;
    grant_seal(k, &g, &x, wire);
    return host_gate_check(&h->gate, wire, &x, g.op, 0, x.length, &g, &addr);
}

#define HOUR_MS 3600000u

/* As many fenced sessions as the gate takes: the first `brief` of them for no time at all. */
static struct host *make_full(uint64_t brief) {
    struct host *h = make(NULL);
    host_set_authority(h, key, 3);
    for (uint64_t session = 1; session <= HOST_FENCED_MAX; session++)
        CHECK(host_gate_fence(&h->gate, session, session <= brief ? 0 : HOUR_MS));
    return h;
}

static bool is_fenced(struct host *h, uint64_t session) {
    struct grant g = {GRANT_WRITE, 3, session, clock_mono_ms() + HOUR_MS, 0};
    return ask(h, key, g, (struct grant_extent){1, 5, 4096, 4096}) == GRANT_FENCED;
}

TEST(guarantee_4_a_gate_that_is_full_of_fences_confirms_no_more) {
    struct host *h = make_full(0);
    CHECK(is_fenced(h, 1));
    CHECK(!host_gate_fence(&h->gate, HOST_FENCED_MAX + 1, 0));
    CHECK(host_gate_fence(&h->gate, 7, HOUR_MS)); /* it is there */
    CHECK_EQ(h->gate.fenced.count, HOST_FENCED_MAX);
    host_destroy(&h);
}

TEST(guarantee_4_fenced_sessions_are_forgotten_when_their_grants_are_over) {
    /* Three make room, a moment later or (on a slow machine) at once. */
    struct host *h = make_full(3);
    bool taken = false;
    for (unsigned i = 0; i < TEST_PATIENCE_MS; i++) {
        taken = host_gate_fence(&h->gate, HOST_FENCED_MAX + 1, HOUR_MS);
        if (taken && h->gate.fenced.count == HOST_FENCED_MAX - 2) break;
        usleep(1000);
    }
    CHECK(taken);
    CHECK_EQ(h->gate.fenced.count, HOST_FENCED_MAX - 2);
    CHECK(is_fenced(h, 4));
    host_destroy(&h);
}

TEST(starts_listens_and_goes) {
    char dir[] = "/tmp/tarn-host-XXXXXX", path[64];
    CHECK(mkdtemp(dir) != NULL);
    snprintf(path, sizeof(path), "%s/s", dir);
    struct host *h = make(path);
    CHECK_EQ(host_start(h), TARN_OK);
    CHECK(host_data_port(h) != 0);
    struct stat st;
    CHECK_EQ(stat(path, &st), 0);
    CHECK_EQ(st.st_mode & 0777, 0600);
    CHECK(host_segment_base(h, 1) != NULL && host_segment_base(h, 3) == NULL);
    struct host_segment_info info;
    CHECK(host_segment_get(h, 2, &info) && !host_segment_get(h, 9, &info));
    CHECK_EQ(info.size, 8192);
    struct host *second; /* the socket is taken, by someone who lives */
    struct host_config config = {.threads = 1, .shm_path = path};
    CHECK_EQ(host_create(&config, &second), TARN_OK);
    CHECK_EQ(host_start(second), TARN_EIO);
    host_destroy(&second);
    CHECK_EQ(stat(path, &st), 0);
    host_destroy(&h);
    CHECK(stat(path, &st) != 0);
    h = make(path);
    CHECK_EQ(host_start(h), TARN_OK);
    host_destroy(&h);
    rmdir(dir);
}

TEST(the_gate) {
    struct host *h = make(NULL);
    struct grant g = {GRANT_READ, 3, 8, clock_mono_ms() + 60000, 0};
    struct grant_extent x = {1, 5, 4096, 4096};
    CHECK_EQ(ask(h, key, g, x), GRANT_BAD_EPOCH); /* no authority yet */
    host_set_authority(h, key, 3);
    CHECK_EQ(ask(h, key, g, x), GRANT_OK);
    CHECK_EQ(ask(h, next_key, g, x), GRANT_BAD_MAC);
    CHECK_EQ(ask(h, key, g, (struct grant_extent){9, 5, 0, 1}), GRANT_BAD_EPOCH);
    CHECK_EQ(ask(h, key, g, (struct grant_extent){1, 4, 0, 1}), GRANT_BAD_EPOCH);
    CHECK_EQ(ask(h, key, g, (struct grant_extent){1, 5, 1u << 20, 1}), GRANT_BAD_RANGE);
    CHECK_EQ(ask(h, key, g, (struct grant_extent){1, 5, UINT64_MAX, 4096}), GRANT_BAD_RANGE);
    host_set_clock_offset(h, 70000); /* the master's clock is ahead */
    CHECK_EQ(ask(h, key, g, x), GRANT_EXPIRED);
    CHECK_EQ(host_gate_recheck(&h->gate, &g, &x), GRANT_EXPIRED);
    host_set_clock_offset(h, 0);
    CHECK_EQ(host_gate_recheck(&h->gate, &g, &x), GRANT_OK);
    host_set_authority(h, next_key, 4);
    CHECK_EQ(ask(h, key, g, x), GRANT_BAD_EPOCH); /* not "forged": it was good once */
    CHECK_EQ(host_gate_recheck(&h->gate, &g, &x), GRANT_BAD_EPOCH);
    host_destroy(&h);
}

TEST(fences) {
    struct host *h = make(NULL);
    host_set_authority(h, key, 3);
    CHECK_EQ(host_start(h), TARN_OK);
    struct grant g = {GRANT_WRITE, 3, 8, clock_mono_ms() + 60000, 0};
    struct grant_extent x = {1, 5, 4096, 4096};
    CHECK_EQ(ask(h, key, g, x), GRANT_OK);
    fenced_calls = 0;
    host_fence(h, 8, HOST_FENCE_FOR_EVER);
    host_fence(h, 8, HOST_FENCE_FOR_EVER);
    CHECK_EQ(ask(h, key, g, x), GRANT_FENCED);
    CHECK_EQ(host_gate_recheck(&h->gate, &g, &x), GRANT_FENCED);
    for (unsigned i = 0; i < TEST_PATIENCE_MS && fenced_calls == 0; i++) {
        struct pollfd p = {.fd = host_event_fd(h), .events = POLLIN};
        poll(&p, 1, 1000);
        host_poll(h);
    }
    CHECK_EQ(fenced_calls, 1);
    CHECK_EQ(fenced_session, 8);
    g.session = 9;
    CHECK_EQ(ask(h, key, g, x), GRANT_OK);
    /* Remembered over one change of epoch, forgotten at the next. */
    host_set_authority(h, key, 4);
    CHECK_EQ(h->gate.fenced.count, 1);
    host_set_authority(h, key, 5);
    CHECK_EQ(h->gate.fenced.count, 0);
    struct host_stats s;
    host_get_stats(h, &s);
    CHECK_EQ(s.fences_pending, 0);
    host_destroy(&h);
}

TEST_MAIN()
