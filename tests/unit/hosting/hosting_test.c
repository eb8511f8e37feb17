/* A storage node against a master that plays a script, and a slow tier that does as it is told. */
#include "../test.h"

#include "master.h"
#include "base/log.h"
#include "hosting/hosting.h"
#include "fake_tier.h"
#include "base/assert.h"
#include "base/clock.h"
#include "client/client.h"
#include "client/error.h"
#include "host/host_internal.h"

/* --- a node and its master --- */

#define SEGMENT (1u << 20)

static struct master m;
static struct tarn_host *h;
static tarn_host_options o;
static tarn_host_segment segments[2];

static void prepare(void) {
    log_set_level(LOG_LEVEL_NOTHING);
    disk_reset();
    master_start(&m);
    tarn_host_options_init(&o);
    segments[0] = segments[1] = (tarn_host_segment){.bytes = SEGMENT, .numa_node = -1};
    o.name = "n1";
    o.segments = segments;
    o.n_segments = 1;
    o.shm_socket = "";
    h = NULL;
}

static void start(void) {
    tarn_status status = tarn_host_open(m.s.url, NULL, &o, &h);
    if (status != TARN_OK) printf("# %s\n", tarn_last_error());
    CHECK_EQ(status, TARN_OK);
}

static void stop(void) {
    CHECK_EQ(tarn_host_close(&h, 1, 0), TARN_OK);
    CHECK(h == NULL);
    master_stop(&m);
}

static tarn_host_info info(void) {
    tarn_host_info i = {.size = sizeof(i)};
    CHECK_EQ(tarn_host_get_info(h, &i), TARN_OK);
    return i;
}

static void wait_state(int state) {
    uint64_t until = clock_mono_ms() + MASTER_WAIT_MS;
    int now;
    while ((now = info().state) != state && clock_mono_ms() < until) usleep(1000);
    CHECK_EQ(now, state);
}

/* Of a file that is not there. */
static void pool_path(char path[256]) {
    const char *dir = getenv("TMPDIR");
    snprintf(path, 256, "%s/tarn-hosting-XXXXXX", dir != NULL ? dir : "/tmp");
    int fd = mkstemp(path);
    CHECK(fd >= 0);
    close(fd);
    unlink(path);
}

static char *memory(void) {
    return host_segment_base(h->host, h->segments[0].id);
}

/* --- joining --- */

TEST(joins_mounts_and_is_up) {
    prepare();
    static const char *const bind[] = {"127.0.0.1", "-::1"};
    o.rack = "r7";
    o.n_segments = 2;
    o.bind = bind;
    o.binds = 2;
    start();
    CHECK(scripted_saw(&m.s, "CLIENT SETNAME n1"));
    CHECK(scripted_saw(
        &m.s, "NODE JOIN n1 ???????????????????????????????? MACHINE * RACK r7 VERSION *"));
    char want[256];
    snprintf(
        want, sizeof(want),
        "SEGMENT MOUNT n1 * n1.0 TIER memory SIZE 1048576 CONTENT ???????????????????????????????? "
        "BACKING memfd "
        "HUGE no ENDPOINTS 2 tcp://127.0.0.1:%u tcp://?::1?:%u",
        info().data_port, info().data_port);
    CHECK(scripted_saw(&m.s, want));
    CHECK(scripted_saw(&m.s, "SEGMENT MOUNT n1 * n1.1 TIER memory *"));
    CHECK(scripted_saw(&m.s, "NODE UP n1 *"));
    wait_state(TARN_HOST_UP);
    tarn_host_info i = info();
    CHECK_EQ(i.segments, 2);
    CHECK_EQ(i.bytes, 2 * SEGMENT);
    CHECK_EQ(i.joins, 1);
    CHECK_STR(i.last_error, "");
    struct host_segment_info served;
    CHECK(host_segment_get(h->host, 2, &served));
    CHECK_EQ(served.segment_epoch, 101);
    CHECK(master_beats(&m, 3));
    CHECK(info().heartbeats >= 3);
    CHECK_EQ(tarn_host_wait(h, 0), TARN_ETIMEOUT);
    CHECK_EQ(tarn_host_reload_tls(h), TARN_OK); /* it has no TLS */
    CHECK_EQ(tarn_host_reload_tls(NULL), TARN_EINVAL);
    stop();
}

TEST(announces_what_it_is_told_to) {
    prepare();
    o.announce = "gpu7.example:1234";
    start();
    CHECK(scripted_saw(&m.s, "SEGMENT MOUNT * ENDPOINTS 1 tcp://gpu7.example:1234"));
    stop();
    prepare();
    o.announce = "fe80::1";
    start();
    char want[64];
    snprintf(want, sizeof(want), "SEGMENT MOUNT * ENDPOINTS 1 tcp://?fe80::1?:%u",
             info().data_port);
    CHECK(scripted_saw(&m.s, want));
    stop();
    prepare();
    o.announce = "a:b";
    CHECK_EQ(tarn_host_open(m.s.url, NULL, &o, &h), TARN_EINVAL);
    master_stop(&m);
}

TEST(options_that_make_no_sense) {
    prepare();
    o.name = "not/good";
    CHECK_EQ(tarn_host_open(m.s.url, NULL, &o, &h), TARN_EINVAL);
    o.name = "n1";
    o.n_segments = 0;
    CHECK_EQ(tarn_host_open(m.s.url, NULL, &o, &h), TARN_EINVAL);
    o.n_segments = 1;
    segments[0].bytes = 4095;
    CHECK_EQ(tarn_host_open(m.s.url, NULL, &o, &h), TARN_EINVAL);
    segments[0].bytes = SEGMENT;
    o.ssd_path = "/broken";
    CHECK_EQ(tarn_host_open(m.s.url, NULL, &o, &h), TARN_EINVAL);
    o.ssd_bytes = 4096;
    CHECK_EQ(tarn_host_open(m.s.url, NULL, &o, &h), TARN_EIO);
    CHECK(strstr(tarn_last_error(), "no such disk") != NULL);
    CHECK_EQ(tarn_host_open("http://x", NULL, &o, &h), TARN_EINVAL);
    CHECK(h == NULL);
    master_stop(&m);
}

TEST(nobody_there) {
    prepare();
    master_stop(&m);
    CHECK_EQ(tarn_host_open(m.s.url, NULL, &o, &h), TARN_EIO);
    CHECK(strstr(tarn_last_error(), "cannot connect") != NULL);
}

TEST(refused) {
    static const struct {
        const char *pattern, *reply;
        tarn_status status;
    } refusals[] = {
        {"NODE JOIN *", "-BUSY a living node has this name\r\n", TARN_EBUSY},
        {"NODE JOIN *", "-ERR unknown command 'NODE'\r\n", TARN_EPROTO},
        {"NODE JOIN *", "-NOPERM no\r\n", TARN_EPERM},
        {"NODE JOIN *", "*2\r\n$7\r\nnode-id\r\n:1\r\n", TARN_EPROTO},
        {"NODE JOIN *", "+OK\r\n", TARN_EPROTO},
        {"SEGMENT MOUNT *", "-ERR too large\r\n", TARN_ERR},
        {"SEGMENT MOUNT *", ":5\r\n", TARN_EPROTO},
        {"PING", "-NOAUTH\r\n", TARN_EPERM},
        {"NODE UP *", "-ERR no\r\n", TARN_ERR},
    };
    for (size_t i = 0; i < ARRAY_LEN(refusals); i++) {
        prepare();
        scripted_rule(&m.s, refusals[i].pattern, 100, refusals[i].reply);
        CHECK_EQ(tarn_host_open(m.s.url, NULL, &o, &h), refusals[i].status);
        CHECK(strlen(tarn_last_error()) > 5 && h == NULL);
        master_stop(&m);
    }
}

TEST(up_when_the_master_is_ready) {
    prepare();
    scripted_rule(&m.s, "NODE UP *", 3, "-TRYAGAIN 50 fences are pending\r\n");
    start();
    wait_state(TARN_HOST_UP);
    CHECK_EQ(scripted_count(&m.s, "NODE UP *"), 4);
    stop();
}

/* --- coming back --- */

TEST(a_pool_file_is_kept) {
    char path[256];
    pool_path(path);
    prepare();
    segments[0].path = path;
    start();
    wait_state(TARN_HOST_UP);
    strcpy(memory() + 4096, "here");
    CHECK_EQ(tarn_host_close(&h, 1, 0), TARN_OK);
    CHECK_EQ(scripted_count(&m.s, "NODE LEAVE *"), 0);
    start();
    wait_state(TARN_HOST_UP);
    CHECK_EQ(m.n_mounts, 1); /* the same content */
    CHECK_STR(memory() + 4096, "here");
    stop();
    unlink(path);
}

/* The master of the first life takes it for what it was. */
TEST(a_pool_file_that_another_master_used_meanwhile) {
    char path[256];
    pool_path(path);
    prepare();
    segments[0].path = path;
    start();
    wait_state(TARN_HOST_UP);
    strcpy(memory() + 4096, "here");
    CHECK_EQ(tarn_host_close(&h, 1, 0), TARN_OK);
    m.first_segment_epoch = 200; /* so what it was served under last was given by somebody else */
    start();
    wait_state(TARN_HOST_UP);
    CHECK(memory()[4096] != 'h' && m.n_mounts == 2); /* given up, and mounted anew */
    stop();
    unlink(path);
}

/* A client that got the pool file from a node before this one, and sleeps. */
TEST(a_process_that_does_not_let_go_of_a_pool_file) {
    char path[256];
    pool_path(path);
    prepare();
    segments[0].path = path;
    start();
    wait_state(TARN_HOST_UP);
    strcpy(memory() + 4096, "here");
    int held = dup(pool_fd(h->host->gate.slots[0].pool, true));
    CHECK_EQ(tarn_host_close(&h, 1, 0), TARN_OK);
    start(); /* of the same master: no matter */
    wait_state(TARN_HOST_UP);
    CHECK_EQ(m.n_mounts, 1);
    CHECK_EQ(tarn_host_close(&h, 1, 0), TARN_OK);
    m.epoch = 9;
    m.node_timeout_ms = 50;
    start();
    wait_state(TARN_HOST_UP);
    CHECK_EQ(m.n_mounts, 2); /* other content */
    memory()[4096] = 'x';
    char byte;
    CHECK(pread(held, &byte, 1, SEGMENT_HEADER_SIZE + 4096) == 1 && byte != 'x');
    close(held);
    stop();
    unlink(path);
}

/* The same, while the master waits for a fence of this node before it lets it in. */
TEST(a_process_that_holds_up_a_fence) {
    char path[256];
    pool_path(path);
    prepare();
    m.node_timeout_ms = 50;
    segments[0].path = path;
    start();
    wait_state(TARN_HOST_UP);
    int held = dup(pool_fd(h->host->gate.slots[0].pool, true));
    CHECK_EQ(tarn_host_close(&h, 1, 0), TARN_OK);
    master_fence(&m, 5);
    start();
    CHECK(scripted_saw(&m.s, "NODE FENCED n1 * 5"));
    wait_state(TARN_HOST_UP);
    CHECK_EQ(m.n_mounts, 2); /* other content */
    close(held);
    stop();
    unlink(path);
}

TEST(a_master_that_goes_before_the_node_is_up) {
    prepare();
    scripted_rule(&m.s, "NODE UP *", 1, "");
    start();
    wait_state(TARN_HOST_UP);
    stop();
}

TEST(joins_again_when_the_connection_is_lost) {
    prepare();
    start();
    wait_state(TARN_HOST_UP);
    strcpy(memory(), "still here");
    scripted_kick(&m.s, false);
    CHECK(scripted_saw(&m.s, "NODE JOIN n1 *"));
    CHECK(scripted_saw(&m.s, "SEGMENT MOUNT *"));
    CHECK(scripted_saw(&m.s, "NODE UP *"));
    wait_state(TARN_HOST_UP);
    CHECK_EQ(m.n_mounts, 1);
    CHECK_STR(memory(), "still here");
    CHECK_EQ(info().joins, 2);
    stop();
}

TEST(joins_again_when_it_is_stale) {
    prepare();
    start();
    wait_state(TARN_HOST_UP);
    scripted_rule(&m.s, "NODE HEARTBEAT *", 1, "-STALE join first\r\n");
    CHECK(scripted_saw(&m.s, "NODE UP *") && scripted_saw(&m.s, "NODE JOIN *") &&
          scripted_saw(&m.s, "NODE UP *"));
    wait_state(TARN_HOST_UP);
    stop();
}

TEST(survives_a_master_that_is_away) {
    prepare();
    start();
    wait_state(TARN_HOST_UP);
    scripted_kick(&m.s, true);
    wait_state(TARN_HOST_JOINING);
    CHECK(strlen(info().last_error) > 0);
    scripted_hear(&m.s);
    wait_state(TARN_HOST_UP);
    CHECK_STR(info().last_error, "");
    CHECK(info().heartbeat_failures > 0);
    stop();
}

TEST(another_has_taken_the_name) {
    prepare();
    start();
    wait_state(TARN_HOST_UP);
    scripted_rule(&m.s, "NODE JOIN *", 2, "-BUSY a living node has this name\r\n");
    scripted_kick(&m.s, false);
    CHECK(scripted_saw(&m.s, "NODE JOIN *") && scripted_saw(&m.s, "NODE JOIN *") &&
          scripted_saw(&m.s, "NODE UP *"));
    wait_state(TARN_HOST_UP);
    stop();
}

TEST(a_new_epoch_is_fenced_before_anything_is_mounted) {
    prepare();
    start();
    wait_state(TARN_HOST_UP);
    m.epoch = 9;
    memset(m.key, 'k', 16);
    m.n_mounts = 0; /* it knows nothing */
    scripted_kick(&m.s, false);
    CHECK(scripted_saw(&m.s, "NODE JOIN *") && scripted_saw(&m.s, "SEGMENT MOUNT *") &&
          scripted_saw(&m.s, "NODE UP *"));
    wait_state(TARN_HOST_UP);
    CHECK_EQ(h->session.served_epoch, 9);
    struct host_segment_info served;
    CHECK(host_segment_get(h->host, 1, &served));
    /* An older one is refused until it is newer. */
    m.epoch = 8;
    scripted_kick(&m.s, false);
    CHECK(scripted_saw(&m.s, "NODE JOIN *") && scripted_saw(&m.s, "NODE JOIN *"));
    CHECK(strstr(info().last_error, "epoch 8") != NULL);
    CHECK_EQ(scripted_count(&m.s, "SEGMENT MOUNT *"), 2);
    m.epoch = 9;
    wait_state(TARN_HOST_UP);
    stop();
}

/* --- work --- */

TEST(fences_are_confirmed) {
    prepare();
    start();
    master_fence(&m, 77);
    master_fence(&m, 78);
    CHECK(scripted_saw(&m.s, "NODE FENCED n1 * 7[78]"));
    CHECK(scripted_saw(&m.s, "NODE FENCED n1 * 7[78]"));
    CHECK_EQ(scripted_count(&m.s, "NODE FENCED n1 * 77"), 1);
    stop();
}

TEST(copies) {
    prepare();
    start();
    wait_state(TARN_HOST_UP);
    master_object(&m, "a", 5, "hello, world");
    master_work(&m, "copy 1 a 5 12 1 [[8192 5] [4096 7]]");
    CHECK(scripted_saw(&m.s, "NODE DONE n1 * 1 1 0 0 -1"));
    CHECK(memcmp(memory() + 8192, "hello", 5) == 0 && memcmp(memory() + 4096, ", world", 7) == 0);
    CHECK_EQ(scripted_count(&m.s, "CLIENT SETINFO tarn-node n1"), 1);
    master_work(&m, "copy 2 a 4 12 1 [[0 12]]"); /* another version */
    CHECK(scripted_saw(&m.s, "NODE DONE n1 * 1 2 -14 0 -1"));
    master_work(&m, "copy 3 a 5 4 1 [[0 4]]"); /* another size */
    CHECK(scripted_saw(&m.s, "NODE DONE n1 * 1 3 -14 0 -1"));
    master_work(&m, "copy 4 none 5 12 1 [[0 12]]");
    CHECK(scripted_saw(&m.s, "NODE DONE n1 * 1 4 -9 0 -1"));
    master_work(&m, "copy 5 a 5 12 9 [[0 12]]"); /* not our segment */
    CHECK(scripted_saw(&m.s, "NODE DONE n1 * 1 5 -14 0 -1"));
    master_work(&m, "copy 6 a 5 12 1 [[1048570 12]]"); /* past its end */
    CHECK(scripted_saw(&m.s, "NODE DONE n1 * 1 6 -3 0 -1"));
    master_work(&m, "copy 7 a 5 12 1 [[0 11]]"); /* too little */
    CHECK(scripted_saw(&m.s, "NODE DONE n1 * 1 7 -3 0 -1"));
    CHECK_EQ(info().copies_done, 1);
    CHECK_EQ(info().copies_failed, 3);
    CHECK_EQ(info().copy_bytes, 12);
    stop();
}

TEST(many_copies_at_a_time) {
    prepare();
    start();
    wait_state(TARN_HOST_UP);
    master_object(&m, "a", 5, "0123456789");
    char work[64];
    for (int i = 0; i < 50; i++) {
        snprintf(work, sizeof(work), "copy %d a 5 10 1 [[%d 10]]", i, 4096 * i);
        master_work(&m, work);
    }
    uint64_t until = clock_mono_ms() + MASTER_WAIT_MS;
    while (info().copies_done < 50 && clock_mono_ms() < until) usleep(1000);
    CHECK_EQ(info().copies_done, 50);
    for (int i = 0; i < 50; i++) CHECK(memcmp(memory() + 4096 * i, "0123456789", 10) == 0);
    stop();
}

TEST(items_that_make_no_sense) {
    static const char *const items[] = {"copy",
                                        "copy 1",
                                        "copy x y z",
                                        "store 1 k 2 3",
                                        "fence x",
                                        "fence 0",
                                        "drop 1 99 1",
                                        "drop 9 1 1 1",
                                        "unmount",
                                        "unmount 99",
                                        "cancel",
                                        "cancel 12345",
                                        "[copy] 1 2",
                                        "make coffee",
                                        "7 8",
                                        "copy 1 k 2 0 1 [[0 1]]",
                                        "copy 1 k -2 4 1 [[0 4]]"};
    prepare();
    start();
    wait_state(TARN_HOST_UP);
    for (size_t i = 0; i < ARRAY_LEN(items); i++) master_work(&m, items[i]);
    CHECK(master_beats(&m, 3));
    CHECK_EQ(info().state, TARN_HOST_UP);
    CHECK_EQ(info().joins, 1);
    stop();
}

TEST(answers_that_make_no_sense_end_the_session) {
    static const char *const answers[] = {
        "+OK\r\n", "*2\r\n:1\r\n:2\r\n", "*0\r\n", "$-1\r\n", "-ERR x\r\n", "", "garbage\r\n"};
    prepare();
    start();
    for (size_t i = 0; i < ARRAY_LEN(answers); i++) {
        wait_state(TARN_HOST_UP);
        scripted_rule(&m.s, "NODE HEARTBEAT *", 1, answers[i]);
        CHECK(scripted_saw(&m.s, "NODE JOIN *") && scripted_saw(&m.s, "NODE UP *"));
    }
    wait_state(TARN_HOST_UP);
    stop();
}

TEST(a_segment_is_unmounted) {
    prepare();
    o.n_segments = 2;
    start();
    wait_state(TARN_HOST_UP);
    strcpy((char *)host_segment_base(h->host, 1), "bytes");
    master_work(&m, "unmount 1 99"); /* of another epoch */
    master_work(&m, "unmount 2");
    CHECK(master_beats(&m, 3));
    struct host_segment_info served;
    CHECK_EQ(info().segments, 1);
    CHECK(host_segment_get(h->host, 1, &served) && !host_segment_get(h->host, 2, &served));
    scripted_kick(&m.s, false);
    CHECK(scripted_saw(&m.s, "NODE UP *"));
    CHECK_EQ(scripted_count(&m.s, "SEGMENT MOUNT * n1.0 *"), 2);
    CHECK_EQ(scripted_count(&m.s, "SEGMENT MOUNT * n1.1 *"), 1);
    stop();
}

/* --- slow tiers --- */

static void start_ssd(void) {
    prepare();
    o.ssd_path = "/ssd";
    o.ssd_bytes = 1u << 20;
    start();
    wait_state(TARN_HOST_UP);
    strcpy(memory() + 4096, "hello, world");
}

static char *store(int task, const char *key, const char *crc) {
    static char text[128];
    snprintf(text, sizeof(text), "store %d %s 5 12 %s ~ 1 100 [[4096 12]] 2", task, key, crc);
    return text;
}

TEST(stores) {
    start_ssd();
    CHECK(scripted_saw(&m.s,
                       "SEGMENT MOUNT n1 * n1.ssd TIER ssd SIZE 1048576 CONTENT 0101* BACKING "
                       "ssd ENDPOINTS 1 tcp://*"));
    char want[128], crc[16];
    uint32_t sum = crc32c(0, "hello, world", 12);
    snprintf(crc, sizeof(crc), "%u", sum);
    master_work(&m, store(1, "a", crc));
    CHECK(scripted_saw(&m.s, "NODE DONE n1 * 1 1 0 4096 -1"));
    CHECK_STR(disk.entry[0].key, "a");
    CHECK_STR(disk.entry[0].bytes, "hello, world");
    CHECK_EQ(disk.entry[0].version, 5);
    master_work(&m, store(2, "b", "-1")); /* without a CRC: ours goes back */
    snprintf(want, sizeof(want), "NODE DONE n1 * 1 2 0 8192 %u", sum);
    CHECK(scripted_saw(&m.s, want));
    master_work(&m, store(3, "c", "12345")); /* the bytes have changed */
    CHECK(scripted_saw(&m.s, "NODE DONE n1 * 1 3 -18 0 -1"));
    master_work(&m, "store 4 d 5 12 -1 ~ 1 99 [[4096 12]] 2"); /* memory of another epoch */
    CHECK(scripted_saw(&m.s, "NODE DONE n1 * 1 4 -14 0 -1"));
    master_work(&m, "store 5 e 5 12 -1 ~ 1 100 [[4096 12]] 1"); /* not a tier */
    CHECK(scripted_saw(&m.s, "NODE DONE n1 * 1 5 -3 0 -1"));
    master_work(&m, "store 6 e 5 12 -1 abc 1 100 [[4096 12]] 2"); /* odd CRCs */
    CHECK(scripted_saw(&m.s, "NODE DONE n1 * 1 6 -3 0 -1"));
    CHECK_EQ(info().stored, 2);
    CHECK_EQ(info().store_failures, 1);
    stop();
}

static void disk_lend(uint64_t bytes, enum lend_state state) {
    char why[256];
    uint64_t until = clock_mono_ms() + MASTER_WAIT_MS;
    enum lend_state now;
    lend_disk(h, "/ssd", bytes);
    CHECK(scripted_saw(&m.s, "SEGMENT UNMOUNT n1.ssd"));
    master_work(&m, "unmount 2 101");
    while ((now = lend_look(h, why, sizeof(why))) == LEND_DISK && clock_mono_ms() < until)
        usleep(1000);
    CHECK_EQ(now, state);
    CHECK_STR(why, state == LEND_FAILED ? "no such disk" : "");
}

TEST(a_disk_that_cannot_get_another_size_stays_as_it_is) {
    start_ssd();
    disk.largest = 3u << 20;
    disk_lend(2u << 20, LEND_DONE);
    disk_lend(4u << 20, LEND_FAILED);
    CHECK_EQ(scripted_count(&m.s, "SEGMENT MOUNT n1 * n1.ssd TIER ssd SIZE 2097152 *"), 2);
    master_work(&m, store(1, "a", "-1"));
    CHECK(scripted_saw(&m.s, "NODE DONE n1 * 1 1 0 4096 *"));
    stop();
}

TEST(a_disk_gets_another_size_whatever_else_is_stored) {
    prepare();
    o.ssd_path = "/ssd";
    o.ssd_bytes = 1u << 20;
    o.file_path = "/shared";
    o.file_bytes = 1u << 20;
    start();
    wait_state(TARN_HOST_UP);
    disk.hold = true;
    master_work(&m, "store 1 a 5 12 -1 ~ 1 100 [[4096 12]] 3");
    CHECK(master_beats(&m, 2));
    disk_lend(2u << 20, LEND_DONE);
    stop();
}

static bool none_is_there(void) {
    return !disk.entry[0].there;
}

TEST(a_store_that_comes_too_late_is_forgotten) {
    start_ssd();
    scripted_rule(&m.s, "NODE DONE *", 1, "*1\r\n:0\r\n");
    master_work(&m, store(1, "a", "-1"));
    CHECK(scripted_saw(&m.s, "NODE DONE n1 * 1 1 0 4096 *"));
    disk_wait(none_is_there);
    stop();
}

TEST(drops) {
    start_ssd();
    master_work(&m, store(1, "a", "-1"));
    CHECK(scripted_saw(&m.s, "NODE DONE *"));
    master_work(&m, "drop 2 1 5 4096");
    disk_wait(none_is_there);
    stop();
}

TEST(a_full_queue_makes_stores_wait) {
    start_ssd();
    pthread_mutex_lock(&disk.mutex);
    disk.full = 3;
    pthread_mutex_unlock(&disk.mutex);
    master_work(&m, store(1, "a", "-1"));
    CHECK(scripted_saw(&m.s, "NODE DONE n1 * 1 1 0 4096 *"));
    stop();
}

static bool one_is_held(void) {
    return disk.n_held > 0;
}

TEST(cancelled_stores) {
    start_ssd();
    pthread_mutex_lock(&disk.mutex);
    disk.full = UINT32_MAX;
    pthread_mutex_unlock(&disk.mutex);
    master_work(&m, store(1, "a", "-1")); /* runs, and waits for room */
    master_work(&m, store(2, "b", "-1"));
    master_work(&m, "cancel 2");
    CHECK(scripted_saw(&m.s, "NODE DONE n1 * 1 2 -25 0 -1"));
    stop(); /* 1 gives up */
}

TEST(a_store_whose_report_was_lost_is_offered) {
    start_ssd();
    char crc[16];
    snprintf(crc, sizeof(crc), "%u", crc32c(0, "hello, world", 12));
    disk.hold = true;
    master_work(&m, store(1, "a", crc));
    disk_wait(one_is_held);
    scripted_kick(&m.s, false);
    CHECK(scripted_saw(&m.s, "NODE UP *"));
    disk_release();
    CHECK(master_beats(&m, 2));
    scripted_kick(&m.s, false);
    CHECK(scripted_saw(&m.s, "NODE OFFER n1 * 2 1 a 5 12 * 4096 "));
    CHECK_EQ(scripted_count(&m.s, "NODE DONE *"), 0);
    stop();
}

TEST(an_unproven_store_whose_report_was_lost_is_dropped) {
    start_ssd();
    disk.hold = true;
    master_work(&m, store(1, "a", "-1"));
    disk_wait(one_is_held);
    scripted_kick(&m.s, false);
    CHECK(scripted_saw(&m.s, "NODE UP *"));
    disk_release();
    disk_wait(none_is_there);
    stop();
}

static bool first_is_gone_second_renamed(void) {
    return !disk.entry[0].there && disk.entry[1].renamed;
}

TEST(what_is_on_disk_is_offered) {
    prepare();
    disk_add("a", 3, "aaaa");
    disk_add("b", 4, "bbbb");
    m.offer_forget = 1;
    m.offer_add = 10;
    o.ssd_path = "/ssd";
    o.ssd_bytes = 1u << 20;
    start();
    CHECK(scripted_saw(&m.s, "NODE OFFER n1 * 2 2 a 3 4 * 4096  b 4 4 * 8192 "));
    disk_wait(first_is_gone_second_renamed);
    CHECK_EQ(disk.entry[1].version, 14);
    /* Known now: it is not offered again. */
    scripted_kick(&m.s, false);
    CHECK(scripted_saw(&m.s, "NODE UP *"));
    CHECK(master_beats(&m, 3));
    CHECK_EQ(scripted_count(&m.s, "NODE OFFER *"), 1);
    stop();
}

/* So that the master that knew it before does not take it for what it was, should the disk come
 * back to it. */
TEST(a_disk_that_changes_hands_gets_another_name) {
    prepare();
    disk_add("a", 3, "aaaa");
    disk.recovered = true;
    o.ssd_path = "/ssd";
    o.ssd_bytes = 1u << 20;
    start();
    wait_state(TARN_HOST_UP);
    CHECK(scripted_saw(&m.s, "NODE OFFER n1 * 3 1 a 3 4 * 4096 "));
    CHECK_EQ(disk.content, 2);
    CHECK_EQ(scripted_count(&m.s, "SEGMENT MOUNT n1 * n1.ssd *"), 2);
    CHECK_EQ(tarn_host_close(&h, 1, 0), TARN_OK);
    start(); /* to the same master */
    wait_state(TARN_HOST_UP);
    CHECK_EQ(disk.content, 2);
    CHECK_EQ(m.n_mounts, 4);
    stop();
}

TEST(an_offer_that_was_interrupted_is_made_again) {
    prepare();
    disk_add("a", 3, "aaaa");
    o.ssd_path = "/ssd";
    o.ssd_bytes = 1u << 20;
    scripted_rule(&m.s, "NODE OFFER *", 1, "");
    start();
    CHECK(scripted_saw(&m.s, "NODE OFFER *") &&
          scripted_saw(&m.s, "NODE OFFER n1 * 2 1 a 3 4 * 4096 "));
    stop();
}

static bool is_evicted(void) {
    return disk.evicted == 42;
}

TEST(evictions) {
    prepare();
    disk_add("a", 3, "aaaa");
    disk_add("b", 4, "bbbb");
    o.ssd_path = "/ssd";
    o.ssd_bytes = 1u << 20;
    start();
    wait_state(TARN_HOST_UP);
    pthread_mutex_lock(&disk.mutex);
    disk.evict = 42;
    eventfd_write(disk.open->event_fd, 1);
    pthread_mutex_unlock(&disk.mutex);
    CHECK(scripted_saw(&m.s, "NODE EVICTED n1 * 2 2 a 3 b 4"));
    disk_wait(is_evicted);
    stop();
}

/* What goes depends on what the master says; one that knows no such command says nothing. */
static void weigh(const char *answer, double loss) {
    prepare();
    disk_add("a", 3, "aaaa");
    disk_add("b", 4, "bbbb");
    disk_add("c", 5, "cccc");
    o.ssd_path = "/ssd";
    o.ssd_bytes = 1u << 20;
    scripted_rule(&m.s, "NODE WEIGH *", 1, answer);
    start();
    wait_state(TARN_HOST_UP);
    pthread_mutex_lock(&disk.mutex);
    disk.weigh = 41;
    eventfd_write(disk.open->event_fd, 1);
    pthread_mutex_unlock(&disk.mutex);
    CHECK(scripted_saw(&m.s, "NODE WEIGH n1 * 2 3 a 3 b 4 c 5"));
    disk_wait(is_evicted);
    CHECK(disk.loss == loss);
    stop();
}

TEST(what_goes_depends_on_what_the_master_says) {
    weigh("*3\r\n:100\r\n:-1\r\n:300\r\n", 200);
    weigh("*3\r\n:-1\r\n:-1\r\n:-1\r\n", -1);
    weigh("-ERR unknown command 'NODE|WEIGH'\r\n", -1);
}

TEST(the_file_tier_belongs_to_the_cluster) {
    prepare();
    o.file_path = "/shared";
    o.file_bytes = 1u << 20;
    start();
    CHECK(scripted_saw(
        &m.s, "SEGMENT MOUNT n1 * n1.file TIER file SIZE 1048576 CONTENT * BACKING file DIRECTORY "
              "/shared/of/cluster ENDPOINTS 0"));
    CHECK_STR(disk.cluster, m.cluster);
    wait_state(TARN_HOST_UP);
    scripted_kick(&m.s, false);
    CHECK(scripted_saw(&m.s, "NODE UP *"));
    CHECK_EQ(disk.opened, 1);
    m.cluster[0] = 'f';
    scripted_kick(&m.s, false);
    CHECK(scripted_saw(&m.s, "NODE UP *"));
    CHECK_EQ(disk.opened, 2);
    CHECK_STR(disk.cluster, m.cluster);
    stop();
    prepare();
    o.file_path = "/broken";
    o.file_bytes = 1u << 20;
    CHECK_EQ(tarn_host_open(m.s.url, NULL, &o, &h), TARN_EIO);
    CHECK(strstr(tarn_last_error(), "no such disk") != NULL);
    master_stop(&m);
}

/* --- leaving --- */

TEST(leaves_when_it_is_told_to) {
    prepare();
    start();
    wait_state(TARN_HOST_UP);
    master_work(&m, "leave");
    CHECK_EQ(tarn_host_wait(h, MASTER_WAIT_MS), TARN_OK);
    CHECK_EQ(info().state, TARN_HOST_LEFT);
    CHECK_EQ(tarn_host_close(&h, 0, 1000), TARN_OK);
    CHECK_EQ(scripted_count(&m.s, "NODE LEAVE *"), 0);
    master_stop(&m);
}

TEST(drains) {
    prepare();
    start();
    wait_state(TARN_HOST_UP);
    CHECK_EQ(tarn_host_drain(h), TARN_OK);
    CHECK(scripted_saw(&m.s, "NODE DRAIN n1"));
    wait_state(TARN_HOST_LEAVING);
    scripted_kick(&m.s, false); /* a new session knows it still */
    CHECK(scripted_saw(&m.s, "NODE DRAIN n1"));
    master_work(&m, "leave");
    CHECK_EQ(tarn_host_wait(h, MASTER_WAIT_MS), TARN_OK);
    CHECK_EQ(tarn_host_close(&h, 0, 0), TARN_OK);
    master_stop(&m);
}

static void *close_it(void *arg) {
    tarn_host_close(&h, 0, MASTER_WAIT_MS);
    return NULL;
}

TEST(closing_waits_for_readers) {
    prepare();
    start();
    wait_state(TARN_HOST_UP);
    pthread_t t;
    pthread_create(&t, NULL, close_it, NULL);
    CHECK(scripted_saw(&m.s, "NODE LEAVE n1"));
    master_work(&m, "fence 5"); /* it goes on working */
    CHECK(scripted_saw(&m.s, "NODE FENCED n1 * 5"));
    master_work(&m, "leave");
    pthread_join(t, NULL);
    CHECK(h == NULL);
    master_stop(&m);
}

TEST(closing_does_not_wait_for_a_master_that_knows_nothing) {
    prepare();
    start();
    wait_state(TARN_HOST_UP);
    scripted_rule(&m.s, "NODE LEAVE *", 1, "-ERR no such node\r\n");
    scripted_rule(&m.s, "NODE HEARTBEAT * WAIT *", 100, "-STALE join first\r\n");
    CHECK_EQ(tarn_host_close(&h, 0, MASTER_WAIT_MS), TARN_OK);
    master_stop(&m);
    prepare();
    start();
    scripted_kick(&m.s, true);
    CHECK_EQ(tarn_host_close(&h, 0, MASTER_WAIT_MS), TARN_OK);
    master_stop(&m);
}

/* --- the clock --- */

TEST(the_bound_of_the_masters_clock) {
    struct hosting_clock c = {0};
    hosting_clock_feed(&c, 5000, 1000, 1010); /* a fast answer: ahead by 3990 to 4001 */
    CHECK_EQ(hosting_clock_bound(&c, 1010), 4002);
    hosting_clock_feed(&c, 6000, 1010, 2005); /* a slow one says less */
    CHECK_EQ(hosting_clock_bound(&c, 2000), 4002);
    CHECK_EQ(hosting_clock_bound(&c, 61000), 4061); /* it drifts */
    hosting_clock_feed(&c, 64999, 61000, 61001);    /* and is made better */
    CHECK_EQ(hosting_clock_bound(&c, 61000), 4000);
    hosting_clock_feed(&c, 64000, 61000, 61001); /* by any lower one */
    CHECK_EQ(hosting_clock_bound(&c, 61000), 3001);
    struct hosting_clock behind = {0};
    hosting_clock_feed(&behind, 10, 100000, 100001);
    CHECK_EQ(hosting_clock_bound(&behind, 100000), -99989);
}

TEST_MAIN()
