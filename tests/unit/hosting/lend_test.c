/* Memory that comes and goes while a node runs, against a master that plays a script. */
#include "../test.h"

#include "master.h"
#include "base/clock.h"
#include "base/log.h"
#include "host/host_internal.h"
#include "hosting/hosting.h"

#define SEGMENT (1u << 20)

static struct master m;
static struct tarn_host *h;
static tarn_host_segment segment = {.bytes = SEGMENT, .numa_node = -1};
static char why[256];

static void start(void) {
    tarn_host_options o;
    log_set_level(LOG_LEVEL_NOTHING);
    master_start(&m);
    tarn_host_options_init(&o);
    o.name = "n1";
    o.segments = &segment;
    o.n_segments = 1;
    o.shm_socket = "";
    CHECK_EQ(tarn_host_open(m.s.url, NULL, &o, &h), TARN_OK);
}

static void stop(void) {
    CHECK_EQ(tarn_host_close(&h, 1, 0), TARN_OK);
    master_stop(&m);
}

static void wait_lent(enum lend_state state) {
    uint64_t until = clock_mono_ms() + MASTER_WAIT_MS;
    enum lend_state now;
    while ((now = lend_look(h, why, sizeof(why))) != state && clock_mono_ms() < until) usleep(1000);
    CHECK_EQ(now, state);
}

static uint64_t lent_bytes(void) {
    tarn_host_info i = {.size = sizeof(i)};
    CHECK_EQ(tarn_host_get_info(h, &i), TARN_OK);
    return i.bytes;
}

TEST(a_segment_more_and_one_less) {
    start();
    lend_add(h, 5, &segment);
    wait_lent(LEND_DONE);
    CHECK(scripted_saw(&m.s, "SEGMENT MOUNT n1 * n1.5 TIER memory SIZE 1048576 *"));
    CHECK_EQ(lent_bytes(), 2 * SEGMENT);
    CHECK(host_segment_base(h->host, 2) != NULL);
    lend_take(h, 5);
    CHECK(scripted_saw(&m.s, "SEGMENT DRAIN n1.5"));
    CHECK_EQ(lend_look(h, why, sizeof(why)), LEND_TAKE);
    CHECK_EQ(lent_bytes(), 2 * SEGMENT); /* until the master lets go of it */
    master_work(&m, "unmount 2 101");
    wait_lent(LEND_DONE);
    CHECK_EQ(lent_bytes(), SEGMENT);
    CHECK(host_segment_base(h->host, 2) == NULL);
    /* Its place is free for another. */
    lend_add(h, 9, &segment);
    wait_lent(LEND_DONE);
    CHECK_EQ(h->n_segments, 2);
    CHECK_STR(h->segments[1].name, "n1.9");
    stop();
}

TEST(a_copy_keeps_its_segment_mapped) {
    start();
    lend_add(h, 5, &segment);
    wait_lent(LEND_DONE);
    pthread_mutex_lock(&h->reader_mutex); /* copies do not begin */
    master_object(&m, "key", 9, "abcd");
    master_work(&m, "copy 5 key 9 4 2 [[0 4096]]");
    CHECK(master_beats(&m, 2));
    lend_take(h, 5);
    CHECK(scripted_saw(&m.s, "SEGMENT DRAIN n1.5"));
    master_work(&m, "unmount 2 101");
    CHECK(master_beats(&m, 2));
    CHECK_EQ(lend_look(h, why, sizeof(why)), LEND_TAKE);
    pthread_mutex_unlock(&h->reader_mutex);
    wait_lent(LEND_DONE);
    stop();
}

TEST(a_session_that_ends_is_asked_again) {
    start();
    lend_add(h, 5, &segment);
    wait_lent(LEND_DONE);
    lend_take(h, 5);
    CHECK(scripted_saw(&m.s, "SEGMENT DRAIN n1.5"));
    scripted_kick(&m.s, false);
    uint64_t until = clock_mono_ms() + MASTER_WAIT_MS;
    while (scripted_count(&m.s, "SEGMENT DRAIN n1.5") < 2 && clock_mono_ms() < until) usleep(1000);
    CHECK_EQ(scripted_count(&m.s, "SEGMENT MOUNT n1 * n1.5 *"), 2);
    master_work(&m, "unmount 2 101");
    wait_lent(LEND_DONE);
    stop();
}

TEST(what_cannot_be_had_or_given) {
    start();
    tarn_host_segment bad = {.bytes = SEGMENT, .numa_node = -1, .path = "/no/such/place/pool"};
    lend_add(h, 5, &bad);
    wait_lent(LEND_FAILED);
    CHECK(why[0] != '\0');
    CHECK_EQ(lent_bytes(), SEGMENT);
    scripted_rule(&m.s, "SEGMENT DRAIN *", 1, "-NOPERM you may not\r\n");
    lend_take(h, 0);
    wait_lent(LEND_FAILED);
    CHECK(strstr(why, "NOPERM") != NULL);
    CHECK_EQ(lent_bytes(), SEGMENT);
    lend_take(h, 77); /* it has none of that number */
    wait_lent(LEND_DONE);
    for (unsigned i = 1; i < HOSTED_MAX; i++) {
        lend_add(h, i, &(tarn_host_segment){.bytes = 4096, .numa_node = -1});
        wait_lent(LEND_DONE);
    }
    lend_add(h, 100, &segment);
    wait_lent(LEND_FAILED);
    stop();
}

TEST(what_the_master_says_of_its_need) {
    struct hosting_standing s;
    start();
    lend_standing(h, &s);
    CHECK(s.evicted_idle_ms == -1 && s.map_epoch == 0);
    pthread_mutex_lock(&m.s.mutex);
    m.standing =
        "*10\r\n$8\r\ndraining\r\n:0\r\n$11\r\nmaintenance\r\n:0\r\n$4\r\nused\r\n:4096\r\n"
        "$12\r\nevicted-idle\r\n:1500\r\n$9\r\nmap-epoch\r\n:7\r\n";
    pthread_mutex_unlock(&m.s.mutex);
    uint64_t until = clock_mono_ms() + MASTER_WAIT_MS;
    do {
        lend_standing(h, &s);
    } while ((s.map_epoch != 7 || !s.up) && clock_mono_ms() < until);
    CHECK(s.up);
    CHECK_EQ(s.used, 4096);
    CHECK_EQ(s.evicted_idle_ms, 1500);
    CHECK_EQ(s.map_epoch, 7);
    stop();
}

TEST_MAIN()
