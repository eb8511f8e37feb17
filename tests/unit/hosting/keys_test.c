/* What a storage node tells its master of transports of modules: keys of segments, reports. */
#include "../test.h"

#include "master.h"
#include "../client/fake_transport.h"
#include "base/log.h"
#include "client/client.h"
#include "hosting/hosting.h"

/* --- a node and its master --- */

static struct master m;
static struct tarn_host *h;

static void start(unsigned generation, const char *report) {
    static const tarn_host_segment segments[] = {{.bytes = 1u << 20, .numa_node = -1}};
    tarn_host_options o;
    log_set_level(LOG_LEVEL_NOTHING);
    dev_set(generation, false);
    dev_report(report);
    far_register("far");
    master_start(&m);
    tarn_host_options_init(&o);
    o.name = "n1";
    o.segments = segments;
    o.n_segments = 1;
    o.shm_socket = "";
    CHECK_EQ(tarn_host_open(m.s.url, NULL, &o, &h), TARN_OK);
    CHECK(scripted_saw(&m.s, "NODE UP n1 *"));
}

static void stop(void) {
    CHECK_EQ(tarn_host_close(&h, 1, 0), TARN_OK);
    master_stop(&m);
    transport_unregister(&transport_far);
}

static void again(bool forgets, unsigned epoch) {
    pthread_mutex_lock(&m.s.mutex);
    m.epoch = epoch;
    if (forgets) {
        m.n_mounts = 0;
        m.first_segment_epoch += 10;
    }
    pthread_mutex_unlock(&m.s.mutex);
    scripted_kick(&m.s, false);
}

#define KEYS "SEGMENT KEYS n1 ???????????????????????????????? n1.0 "

/* --- keys --- */

TEST(keys_are_told_when_they_are_ready_when_they_change_and_when_they_are_lost) {
    start(0, "");
    CHECK(master_beats(&m, 3));
    CHECK_EQ(scripted_count(&m.s, "SEGMENT KEYS *"), 0);
    CHECK_EQ(scripted_count(&m.s, "SEGMENT MOUNT * KEYS *"), 0);
    dev_set(1, false);
    CHECK(scripted_saw(&m.s, KEYS "1 far://*:5 read-1-1 write-1-1"));
    dev_set(2, false);
    CHECK(scripted_saw(&m.s, KEYS "1 far://*:5 read-1-2 write-1-2"));
    dev_set(0, false);
    CHECK(scripted_saw(&m.s, KEYS "0"));
    dev_set(3, true); /* registered, and reached by nobody */
    CHECK(master_beats(&m, 3));
    CHECK_EQ(scripted_count(&m.s, "SEGMENT KEYS *"), 3);
    dev_set(4, false);
    CHECK(scripted_saw(&m.s, KEYS "1 far://*:5 read-1-4 write-1-4"));
    CHECK_EQ(scripted_count(&m.s, "SEGMENT KEYS *"), 4);
    stop();
}

TEST(a_node_that_comes_back_brings_its_keys) {
    start(7, "");
    CHECK(scripted_saw(&m.s, KEYS "1 far://*:5 read-1-7 write-1-7"));
    again(false, 7);
    CHECK(scripted_saw(&m.s, "SEGMENT MOUNT n1 * n1.0 * KEYS 1 far://*:5 read-1-7 write-1-7"));
    CHECK(scripted_saw(&m.s, "NODE UP *"));
    CHECK(master_beats(&m, 2));
    CHECK_EQ(scripted_count(&m.s, "SEGMENT KEYS *"), 1); /* nothing new */
    stop();
}

TEST(keys_of_another_masters_names_are_not_brought_along) {
    start(7, "");
    CHECK(scripted_saw(&m.s, KEYS "1 far://*:5 read-1-7 write-1-7"));
    again(true, 9);
    CHECK(scripted_saw(&m.s, "SEGMENT MOUNT n1 *"));
    CHECK(scripted_saw(&m.s, KEYS "1 far://*:5 read-1-7 write-1-7"));
    CHECK_EQ(scripted_count(&m.s, "SEGMENT MOUNT * KEYS *"), 0);
    stop();
}

TEST(a_transport_that_is_gone_has_no_keys) {
    start(7, "");
    CHECK(scripted_saw(&m.s, KEYS "1 far://*:5 *"));
    stop(); /* it was the host's; the next one has no such module */
    log_set_level(LOG_LEVEL_NOTHING);
    master_start(&m);
    tarn_host_options o;
    tarn_host_options_init(&o);
    const tarn_host_segment segment = {.bytes = 1u << 20, .numa_node = -1};
    o.name = "n1";
    o.segments = &segment;
    o.n_segments = 1;
    o.shm_socket = "";
    CHECK_EQ(tarn_host_open(m.s.url, NULL, &o, &h), TARN_OK);
    CHECK(scripted_saw(&m.s, "NODE UP n1 *"));
    CHECK(master_beats(&m, 3));
    CHECK_EQ(scripted_count(&m.s, "* KEYS *"), 0);
    CHECK_EQ(tarn_host_close(&h, 1, 0), TARN_OK);
    master_stop(&m);
}

TEST(a_master_that_has_no_room_for_keys_keeps_the_node) {
    start(0, "");
    scripted_rule(&m.s, "SEGMENT KEYS *", 1, "-LIMIT too much\r\n");
    dev_set(1, false);
    CHECK(scripted_saw(&m.s, KEYS "1 *"));
    scripted_rule(&m.s, "SEGMENT KEYS *", 1, "-NOSEGMENT on its way out\r\n");
    dev_set(2, false);
    CHECK(scripted_saw(&m.s, KEYS "1 far://*:5 read-1-2 *"));
    CHECK(master_beats(&m, 3));
    CHECK_EQ(scripted_count(&m.s, "NODE JOIN *"), 1);
    /* Any other refusal means that one of the two has lost the thread. */
    scripted_rule(&m.s, "SEGMENT KEYS *", 1, "-STALE who are you\r\n");
    dev_set(3, false);
    CHECK(scripted_saw(&m.s, KEYS "1 far://*:5 read-1-3 *"));
    CHECK(scripted_saw(&m.s, "NODE JOIN *"));
    CHECK(scripted_saw(&m.s, "SEGMENT MOUNT * KEYS 1 far://*:5 read-1-3 *"));
    stop();
}

/* --- reports --- */

TEST(reports_go_with_heartbeats_when_they_have_changed) {
    start(0, "device name=x");
    CHECK(master_beats(&m, 2));
    CHECK_EQ(scripted_count(&m.s, "NODE HEARTBEAT n1 * REPORT far device name=x"), 1);
    CHECK(master_beats(&m, 4));
    CHECK_EQ(scripted_count(&m.s, "NODE HEARTBEAT * REPORT *"), 1);
    dev_report("device name=y");
    CHECK(scripted_saw(&m.s, "NODE HEARTBEAT n1 * REPORT far device name=y"));
    dev_report("");
    CHECK(scripted_saw(&m.s, "NODE HEARTBEAT n1 * REPORT far "));
    CHECK(master_beats(&m, 4));
    CHECK_EQ(scripted_count(&m.s, "NODE HEARTBEAT * REPORT *"), 3);
    dev_report("device name=z");
    CHECK(scripted_saw(&m.s, "NODE HEARTBEAT n1 * REPORT far device name=z"));
    again(false, 7); /* in every session */
    CHECK(scripted_saw(&m.s, "NODE JOIN *"));
    CHECK(scripted_saw(&m.s, "NODE HEARTBEAT n1 * REPORT far device name=z"));
    stop();
}

TEST(a_long_report_is_cut_at_a_line) {
    char text[40000];
    for (size_t i = 0; i < sizeof(text) - 1; i++)
        text[i] = i % 1000 == 999 ? '\n' : 'a' + (char)(i / 1000 % 26);
    text[sizeof(text) - 1] = '\0';
    start(0, text);
    CHECK(master_beats(&m, 2));
    pthread_mutex_lock(&m.s.mutex);
    size_t len = 0;
    for (size_t i = 0; i < m.s.lines; i++) {
        const char *at = strstr(m.s.line[i], " REPORT far ");
        if (at != NULL) len = strlen(at + strlen(" REPORT far "));
    }
    pthread_mutex_unlock(&m.s.mutex);
    CHECK_EQ(len, 32000);
    stop();
}

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
