/* What keeps a client's copies right: whatever is not remembered is told to be forgotten. */
#include "front.h"
#include "front/tracking.h"
#include "front/watch.h"

#define ALL ">2 $10 invalidate _"

static struct client *c[3];
static int fd[3];

static void begin(void) {
    front_begin();
    for (int i = 0; i < 3; i++) {
        fd[i] = call(&c[i]);
        c[i]->proto = 3;
        tracking_on(c[i]);
    }
}

static void end(void) {
    for (int i = 0; i < 3; i++) {
        close(fd[i]);
        if (tracking_count() > 0) tracking_off(c[i]);
    }
    CHECK_EQ(tracking_count(), 0);
    CHECK_EQ(tracking_keys(), 0);
    front_end();
}

/* GETs of count keys from first on, and whatever is heard beside the OKs. */
static const char *reads(int i, unsigned first, unsigned count) {
    static char heard_else[4096];
    heard_else[0] = '\0';
    for (unsigned k = first; k < first + count; k++) {
        char line[40];
        snprintf(line, sizeof(line), "GET key:%u", k);
        const char *answer = say(fd[i], line);
        if (strcmp(answer, "+OK") != 0) strcat(heard_else, answer);
    }
    return heard_else;
}

TEST(once_for_each_key_that_was_read) {
    begin();
    CHECK(tracking_listens() && tracking_count() == 3);
    tracking_on(c[0]); /* already */
    CHECK_EQ(tracking_count(), 3);
    CHECK_STR(say(fd[0], "MGET a b a"), "+OK");
    CHECK_STR(say(fd[1], "GET a"), "+OK");
    CHECK_STR(say(fd[1], "SET b v"), "+OK"); /* no reader of b */
    CHECK_STR(say(fd[1], "PING"), "+OK");
    CHECK_EQ(tracking_keys(), 3);
    CHECK(tracking_memory(c[0]) > tracking_memory(c[2]));
    watch_touch(SPAN("a"));
    CHECK_STR(heard(fd[0]), ">2 $10 invalidate *1 $1 a");
    CHECK_STR(heard(fd[1]), ">2 $10 invalidate *1 $1 a");
    watch_touch(SPAN("a"));
    CHECK_STR(heard(fd[0]), "");
    CHECK_EQ(tracking_keys(), 1);
    tracking_off(c[0]);
    tracking_off(c[0]); /* already */
    watch_touch(SPAN("b"));
    CHECK_STR(heard(fd[0]), "");
    CHECK_EQ(tracking_memory(c[0]), 0);
    end();
}

TEST(too_many_in_one_command) {
    static char line[20000];
    begin();
    CHECK_STR(say(fd[0], "GET before"), "+OK");
    size_t at = (size_t)sprintf(line, "MGET");
    for (unsigned i = 0; i <= TRACKING_COMMAND_MAX; i++)
        at += (size_t)sprintf(line + at, " key:%u", i);
    CHECK_STR(say(fd[0], line), "+OK " ALL); /* behind the reply */
    CHECK_EQ(tracking_keys(), 0);
    end();
}

TEST(too_many_of_one_client) {
    begin();
    front_values.tracking_table_max_keys = 0; /* no bound for all together */
    static char line[20000];
    for (unsigned k = 0; k < TRACKING_KEYS_MAX; k += 500) {
        size_t at = (size_t)sprintf(line, "MGET");
        for (unsigned i = k; i < k + 500; i++) at += (size_t)sprintf(line + at, " key:%u", i);
        CHECK_STR(say(fd[0], line), "+OK");
    }
    CHECK_EQ(tracking_keys(), TRACKING_KEYS_MAX);
    CHECK_STR(say(fd[0], "GET one-more"), ALL " +OK"); /* before the reply that it is not about */
    CHECK_EQ(tracking_keys(), 1);
    end();
}

TEST(too_many_of_all_together) {
    begin();
    front_values.tracking_table_max_keys = 8;
    CHECK_STR(reads(0, 0, 4), "");
    CHECK_STR(reads(1, 0, 4), "");
    CHECK_EQ(tracking_keys(), 8);
    CHECK_STR(reads(2, 0, 1), ""); /* one of the others makes room */
    const char *first = heard(fd[0]);
    bool told = strcmp(first, ALL) == 0;
    CHECK_STR(heard(fd[1]), told ? "" : ALL);
    CHECK_EQ(tracking_keys(), 5);
    CHECK_STR(reads(2, 1, 3), "");
    CHECK_STR(reads(2, 4, 1), ""); /* and then the next, who is not the same */
    CHECK_STR(heard(fd[told ? 1 : 0]), ALL);
    CHECK_EQ(tracking_keys(), 5);
    end();
}

TEST(keys_that_cannot_be_are_not_kept) {
    static char line[STORE_KEY_MAX + 20];
    begin();
    memset(line, 'k', sizeof(line) - 1);
    memcpy(line, "GET ", 4);
    CHECK_STR(say(fd[0], line), "+OK");
    CHECK_EQ(tracking_keys(), 0);
    end();
}

TEST(all_is_forgotten_when_the_books_are) {
    begin();
    CHECK_STR(say(fd[0], "GET a"), "+OK");
    tracking_news(&(struct store_news){.kind = STORE_NEWS_FLUSHED});
    CHECK_STR(heard(fd[0]), ALL);
    CHECK_STR(heard(fd[1]), ""); /* it has nothing to forget */
    tracking_news(&(struct store_news){.kind = STORE_NEWS_PROMOTED});
    CHECK_STR(heard(fd[0]), "");
    tracking_end(); /* books that go: they ask anew */
    turns(1);
    CHECK_EQ(clients.n, 0);
    CHECK_EQ(tracking_count(), 0);
    end();
}

TEST_MAIN()
