/* Who leads next: a Sentinel that has not heard of it, a replica that was promoted, and some that
 * only say so. */
#include "../test.h"

#include "base/assert.h"
#include "base/log.h"
#include "client/client.h"
#include "client/master.h"
#include "client/placement.h"
#include "../scripted.h"

#define SLAVE  "*5\r\n$5\r\nslave\r\n$9\r\n127.0.0.1\r\n:1\r\n$7\r\nconnect\r\n:-1\r\n"
#define MASTER "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n"

static struct scripted sentinel, replica;
static struct whereabouts m;
static tarn_options o;
static char named[100], replicas[200], info[100];

/* The master was at port 1, with epoch 7. */
static void begin(const char *role, unsigned epoch) {
    char url[100], port[8], line[40];
    log_set_level(LOG_LEVEL_NOTHING);
    scripted_start(&sentinel);
    scripted_start(&replica);
    snprintf(port, sizeof(port), "%u", replica.port);
    snprintf(named, sizeof(named), "*2\r\n$9\r\n127.0.0.1\r\n$1\r\n1\r\n");
    snprintf(replicas, sizeof(replicas),
             "*1\r\n*4\r\n$2\r\nip\r\n$9\r\n127.0.0.1\r\n$4\r\nport\r\n$%zu\r\n%s\r\n",
             strlen(port), port);
    int n = snprintf(line, sizeof(line), "x:1\r\nmaster_epoch:%u\r\n", epoch);
    snprintf(info, sizeof(info), "$%d\r\n%s\r\n", n, line);
    scripted_rule(&sentinel, "SENTINEL get-master*", 1000000, named);
    scripted_rule(&sentinel, "SENTINEL replicas*", 1000000, replicas);
    if (role != NULL) scripted_rule(&replica, "ROLE", 1000000, role);
    scripted_rule(&replica, "INFO server", 1000000, info);
    url_options_copy(&o, NULL);
    snprintf(url, sizeof(url), "tarn+sentinel://127.0.0.1:%u/pool", sentinel.port);
    CHECK_EQ(url_parse(url, &o, &m), TARN_OK);
    CHECK_EQ(master_check_epoch(&m, 7, "127.0.0.1", "1"), TARN_OK);
}

static void end(void) {
    master_free(&m);
    url_options_free(&o);
    scripted_stop(&replica);
    scripted_stop(&sentinel);
}

static bool leads_to(const char *port) {
    struct address at;
    CHECK_EQ(master_find(&m, now_ms() + SCRIPTED_WAIT_MS, &at), TARN_OK);
    return strcmp(at.port, port) == 0;
}

TEST(a_promoted_replica_is_known_before_the_sentinels_know) {
    struct address at, own = {.host = "127.0.0.1"}, gone = {.host = "127.0.0.1", .port = "1"};
    begin(NULL, 8);
    scripted_rule(&replica, "ROLE", 3, SLAVE);
    /* Sentinels have it hang up on everybody when they promote it */
    scripted_rule(&replica, "ROLE", 1, "");
    scripted_rule(&replica, "ROLE", 1000000, MASTER);
    snprintf(own.port, sizeof(own.port), "%u", replica.port);
    CHECK(leads_to("1"));
    scout_wait(&m, &o, now_ms() + SCRIPTED_WAIT_MS);
    CHECK(scout_known(m.scouts, &at));
    CHECK_STR(at.port, own.port);
    CHECK(leads_to(own.port));
    /* they name another, which is the one that is gone */
    CHECK(!master_moved(&m, &own));
    CHECK(scripted_count(&replica, "ROLE") >= 5);
    scout_rest(m.scouts);
    master_asked(&m, &gone); /* of another one */
    CHECK(leads_to(own.port));
    master_asked(&m, &own);
    CHECK(leads_to("1"));
    CHECK(master_moved(&m, &own));
    end();
}

/* Guarantee 1: a master that was deposed has a lower epoch, whatever it says of itself. */
TEST(guarantee_1_a_stale_master_is_not_followed) {
    struct address at;
    for (unsigned epoch = 6; epoch <= 7; epoch++) {
        begin(MASTER, epoch);
        scout_wait(&m, &o, now_ms() + 300);
        CHECK(scripted_saw(&replica, "INFO server"));
        CHECK(!scout_known(m.scouts, &at));
        CHECK(leads_to("1"));
        end();
    }
}

TEST(guarantee_1_a_master_of_an_older_epoch_is_refused) {
    begin(MASTER, 8);
    CHECK_EQ(master_check_epoch(&m, 7, "h", "1"), TARN_OK);
    CHECK_EQ(master_check_epoch(&m, 9, "h", "1"), TARN_OK);
    CHECK_EQ(master_check_epoch(&m, 8, "h", "1"), TARN_ECLOSED);
    CHECK_EQ(master_check_epoch(&m, 0, "h", "1"), TARN_OK); /* a user without +info */
    CHECK_EQ(master_check_epoch(&m, 9, "h", "1"), TARN_OK);
    end();
}

/* Who has met no master has nothing to compare with: the Sentinels' word is all there is. */
TEST(nobody_is_asked_before_a_master_was_met) {
    struct address at;
    begin(MASTER, 8);
    m.epoch = 0;
    scout_wait(&m, &o, now_ms() + 50);
    CHECK(!scout_known(m.scouts, &at));
    CHECK_EQ(scripted_count(&replica, "*"), 0);
    end();
}

TEST(nonsense_is_no_master) {
    static const char *const lists[] = {"*1\r\n:5\r\n", "*0\r\n", "$-1\r\n",
                                        "*1\r\n*2\r\n$2\r\nip\r\n:7\r\n", "-ERR no\r\n"};
    static const char *const roles[] = {"*0\r\n", "*1\r\n:7\r\n", "$6\r\nmaster\r\n",
                                        "-NOPERM no\r\n", ""};
    struct address at;
    for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
        begin(roles[i], 8);
        scout_wait(&m, &o, now_ms() + 60);
        scout_rest(m.scouts);
        snprintf(replicas, sizeof(replicas), "%s", lists[i]);
        scout_wait(&m, &o, now_ms() + 60);
        CHECK(!scout_known(m.scouts, &at));
        end();
    }
}

TEST_MAIN()
