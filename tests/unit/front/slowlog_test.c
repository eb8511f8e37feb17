/* The slow log: what is noted, how much of it, and what is not. */
#include "front.h"
#include "front/introspect.h"

static struct client *c;
static int fd;

static void begin(void) {
    front_begin();
    fd = call(&c);
    front_values.slowlog_slower_than_us = -1; /* only what a test notes */
}

static void end(void) {
    close(fd);
    front_end();
    CHECK_EQ(slowlog_len(), 0);
}

static void note(const char *name, size_t argc, struct span *argv, uint64_t us) {
    c->cmd = table_find_full(span_str(name));
    CHECK(c->cmd != NULL);
    c->argv = argv;
    c->argc = argc;
    slowlog_note(c, us);
    c->argc = 0;
}

TEST(the_bound_and_the_length) {
    struct span argv[] = {SPAN("GET"), SPAN("k")};
    begin();
    note("get", 2, argv, 1000000);
    CHECK_EQ(slowlog_len(), 0);
    front_values.slowlog_slower_than_us = 100;
    note("get", 2, argv, 99);
    CHECK_EQ(slowlog_len(), 0);
    note("exec", 1, argv, 100); /* those within it are noted */
    CHECK_EQ(slowlog_len(), 0);
    note("get", 2, argv, 100);
    CHECK_EQ(slowlog_len(), 1);
    front_values.slowlog_max_len = 3;
    for (int i = 0; i < 5; i++) note("get", 2, argv, 200 + (uint64_t)i);
    CHECK_EQ(slowlog_len(), 3);
    front_values.slowlog_max_len = 1;
    slowlog_trim();
    CHECK_EQ(slowlog_len(), 1);
    front_values.slowlog_slower_than_us = -1;
    const char *newest = say(fd, "SLOWLOG GET -1");
    CHECK(strncmp(newest, "*1 *6 :5 :", 10) == 0 &&
          strstr(newest, " :204 *2 $3 GET $1 k ") != NULL);
    front_values.slowlog_max_len = 0;
    front_values.slowlog_slower_than_us = 0;
    note("get", 2, argv, 200);
    CHECK_EQ(slowlog_len(), 1);
    slowlog_trim();
    CHECK_EQ(slowlog_len(), 0);
    end();
}

TEST(what_is_asked_for) {
    struct span argv[] = {SPAN("GET"), SPAN("k")};
    begin();
    front_values.slowlog_slower_than_us = 100000000;
    for (int i = 0; i < 12; i++) note("get", 2, argv, 100000000);
    CHECK(strncmp(say(fd, "SLOWLOG GET"), "*10 *6 ", 7) == 0);
    CHECK(strncmp(say(fd, "SLOWLOG GET 2"), "*2 *6 ", 6) == 0);
    CHECK(strncmp(say(fd, "SLOWLOG GET -1"), "*12 *6 ", 7) == 0);
    CHECK_STR(say(fd, "SLOWLOG GET 0"), "*0");
    CHECK_STR(say(fd, "SLOWLOG GET -2"), "-ERR count should be greater than or equal to -1");
    CHECK_STR(say(fd, "SLOWLOG GET x"), "-ERR count should be greater than or equal to -1");
    CHECK_STR(say(fd, "SLOWLOG GET 1 2"),
              "-ERR wrong number of arguments for 'slowlog|get' command");
    end();
}

TEST(long_requests_are_cut_and_secrets_hidden) {
    static char text[300];
    struct span many[40], one[] = {SPAN("SET"), span_of(text, 200), span_of(NULL, 5000)},
                          secret[] = {SPAN("AUTH"), SPAN("ann"), SPAN("pa55")};
    begin();
    memset(text, 'x', sizeof(text));
    for (size_t i = 0; i < ARRAY_LEN(many); i++) many[i] = i == 0 ? SPAN("MGET") : SPAN("k");
    front_values.slowlog_slower_than_us = 100000000;
    note("mget", 40, many, 100000000);
    CHECK(strstr(say(fd, "SLOWLOG GET 1"), " *32 $4 MGET ") != NULL);
    CHECK(strstr(say(fd, "SLOWLOG GET 1"), " $1 k $22 ... (9 more arguments) ") != NULL);
    note("set", 3, one, 100000000);
    CHECK(strstr(say(fd, "SLOWLOG GET 1"), "xx... (72 more bytes) $16 ... (5000 bytes) ") != NULL);
    note("auth", 3, secret, 100000000);
    CHECK(strstr(say(fd, "SLOWLOG GET 1"), "pa55") == NULL);
    CHECK(strstr(say(fd, "SLOWLOG GET 1"), "(redacted)") != NULL);
    end();
}

TEST_MAIN()
