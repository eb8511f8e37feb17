/* Look-ups that follow each other share a reading of the clock: each is counted, and their times
 * are those that passed. */
#include "front.h"
#include "front/introspect.h"

#define STILL_NS 3000000u
#define BRIEF_NS 1000000u /* what takes longer stands for those before it */

static struct client *c;
/* The n-th GET stands still, ends the connection, or is the last one that is not refused. */
static int fd, ran, still_at, close_at, refuse_at;

static void on_get(struct client *client) {
    ran++;
    if (ran == still_at) nanosleep(&(struct timespec){.tv_nsec = STILL_NS}, NULL);
    reply_ok(client);
    if (ran == close_at) client_close_after_reply(client);
    if (ran == refuse_at) front_refusal = "-LOADING";
}

static void begin(void) {
    front_functions[WIRE_get] = on_get;
    ran = still_at = close_at = refuse_at = 0;
    front_begin();
    fd = call(&c);
}

static void end(void) {
    close(fd);
    front_end();
}

static const struct cmd_stat *stat_of(const char *name) {
    return table_stat(table_find_full(span_str(name)));
}

static void check_counts(const char *name, uint64_t n) {
    const struct cmd_stat *stat = stat_of(name);
    CHECK_EQ(stat->calls, n);
    CHECK_EQ(stat->latency->count, n);
    CHECK_EQ(stat->latency->sum, stat->ns);
}

TEST(each_counts_with_its_share) {
    begin();
    CHECK_STR(say(fd, "GET a\r\nGET b\r\nGET c\r\nEXISTS a\r\nEXISTS b\r\nSET a v\r\nGET a"),
              "+OK +OK +OK +OK +OK +OK +OK");
    check_counts("get", 4);
    check_counts("exists", 2);
    check_counts("set", 1);
    CHECK(stat_of("get")->ns > 0 && stat_of("exists")->ns > 0);
    /* none of them took no time, unless this process stood still */
    CHECK(stat_of("get")->latency->min > 0 || stat_of("get")->latency->max >= BRIEF_NS);
    end();
}

TEST(more_than_are_parsed_ahead) {
    static char many[40 * 7 + 1];
    begin();
    for (int i = 0; i < 40; i++) memcpy(many + i * 7, "GET k\r\n", 7);
    say(fd, many);
    check_counts("get", 40);
    end();
}

TEST(what_stood_still_is_told_once) {
    begin();
    front_values.slowlog_slower_than_us = 2000;
    still_at = 2;
    say(fd, "GET a\r\nGET b\r\nGET c\r\nGET d");
    check_counts("get", 4);
    CHECK(stat_of("get")->ns >= STILL_NS);
    CHECK(stat_of("get")->latency->max >= STILL_NS);
    CHECK_EQ(slowlog_len(), 1);
    end();
}

TEST(a_low_limit_is_held_against_each) {
    begin();
    front_values.slowlog_slower_than_us = 0;
    say(fd, "GET a\r\nGET b\r\nGET c");
    CHECK_EQ(slowlog_len(), 3);
    front_values.slowlog_slower_than_us = -1;
    CHECK(strstr(say(fd, "SLOWLOG GET 3"), " *2 $3 GET $1 a ") != NULL);
    end();
}

TEST(those_that_do_not_follow_are_not_waited_for) {
    begin();
    close_at = 2;
    say(fd, "GET a\r\nGET b\r\nGET c\r\nGET d");
    check_counts("get", 2);
    CHECK_EQ(ran, 2);
    end();
    begin();
    refuse_at = 2;
    say(fd, "GET a\r\nGET b\r\nGET c");
    CHECK_EQ(stat_of("get")->rejected, 1);
    check_counts("get", 2);
    end();
}

TEST_MAIN()
