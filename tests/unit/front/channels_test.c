/* Channels, patterns and their listeners. */
#include "front/channels.h"

#include "../test.h"

static char log_text[4096];

/* "owner" or "owner:pattern", one after the other. */
static void note(void *arg, struct subscriber *s, struct span pattern) {
    size_t n = strlen(log_text);
    snprintf(log_text + n, sizeof(log_text) - n, "%s%s%.*s ", (const char *)s->owner,
             pattern.data != NULL ? ":" : "", (int)pattern.len,
             pattern.data != NULL ? pattern.data : "");
}

static const char *publish(enum channel_kind kind, const char *name, size_t *n_p) {
    log_text[0] = '\0';
    *n_p = channel_publish(kind, span_str(name), note, NULL);
    return log_text;
}

static bool join(struct subscriber *s, enum channel_kind kind, const char *name) {
    return channel_subscribe(s, kind, span_str(name)) == CHANNEL_ADDED;
}

TEST(who_hears_what) {
    struct subscriber a = {.owner = "a"}, b = {.owner = "b"};
    size_t n;
    CHECK_STR(publish(CHANNEL_PLAIN, "x", &n), "");
    CHECK_EQ(n, 0);
    CHECK(join(&a, CHANNEL_PLAIN, "x") && join(&b, CHANNEL_PLAIN, "x") &&
          join(&b, CHANNEL_PATTERN, "x*"));
    CHECK(join(&a, CHANNEL_PATTERN, "*") && join(&b, CHANNEL_PATTERN, "*") &&
          join(&a, CHANNEL_SHARD, "x"));
    CHECK(channel_subscribe(&a, CHANNEL_PLAIN, SPAN("x")) == CHANNEL_KNOWN);
    CHECK_STR(publish(CHANNEL_PLAIN, "x", &n), "a b b:x* a:* b:* ");
    CHECK_EQ(n, 5);
    CHECK_STR(publish(CHANNEL_PLAIN, "y", &n), "a:* b:* ");
    CHECK_STR(publish(CHANNEL_SHARD, "x", &n), "a ");
    CHECK_EQ(channel_subscribers(CHANNEL_PLAIN, SPAN("x")), 2);
    CHECK_EQ(channel_subscribers(CHANNEL_SHARD, SPAN("x")), 1);
    CHECK_EQ(channel_subscribers(CHANNEL_PLAIN, SPAN("y")), 0);
    CHECK_EQ(channel_count(CHANNEL_PATTERN), 2);
    CHECK(channel_unsubscribe(&b, CHANNEL_PATTERN, SPAN("x*")));
    CHECK(!channel_unsubscribe(&b, CHANNEL_PATTERN, SPAN("x*")));
    CHECK(!channel_unsubscribe(&b, CHANNEL_SHARD, SPAN("x")));
    CHECK(channel_unsubscribe(&a, CHANNEL_PLAIN, SPAN("x")));
    CHECK_STR(publish(CHANNEL_PLAIN, "x", &n), "b a:* b:* ");
    channel_clear(&b);
    CHECK_STR(publish(CHANNEL_PLAIN, "x", &n), "a:* ");
    channel_clear(&a);
    CHECK_EQ(a.bytes + b.bytes, 0);
    for (int kind = 0; kind < CHANNEL_KINDS; kind++)
        CHECK_EQ(channel_count((enum channel_kind)kind), 0);
}

TEST(the_oldest_comes_first) {
    struct subscriber s = {.owner = "s"};
    struct span name;
    CHECK(!channel_first(&s, CHANNEL_PLAIN, &name));
    join(&s, CHANNEL_PLAIN, "one");
    join(&s, CHANNEL_PLAIN, "two");
    join(&s, CHANNEL_PLAIN, "three");
    CHECK(channel_first(&s, CHANNEL_PLAIN, &name) && span_eq(name, SPAN("one")));
    channel_unsubscribe(&s, CHANNEL_PLAIN, SPAN("two"));
    channel_unsubscribe(&s, CHANNEL_PLAIN, SPAN("one"));
    CHECK(channel_first(&s, CHANNEL_PLAIN, &name) && span_eq(name, SPAN("three")));
    join(&s, CHANNEL_PLAIN, "four");
    channel_unsubscribe(&s, CHANNEL_PLAIN, SPAN("three"));
    CHECK(channel_first(&s, CHANNEL_PLAIN, &name) && span_eq(name, SPAN("four")));
    channel_clear(&s);
}

TEST(bounds) {
    static char longest[CHANNEL_NAME_MAX + 1];
    struct subscriber s = {.owner = "s"}, other = {.owner = "o"};
    memset(longest, 'x', sizeof(longest));
    CHECK(channel_subscribe(&s, CHANNEL_PLAIN, span_of(longest, CHANNEL_NAME_MAX)) ==
          CHANNEL_ADDED);
    CHECK(channel_subscribe(&s, CHANNEL_PLAIN, span_of(longest, sizeof(longest))) ==
          CHANNEL_TOO_LONG);
    CHECK(channel_subscribe(&s, CHANNEL_PATTERN, span_of(longest, CHANNEL_PATTERN_MAX + 1)) ==
          CHANNEL_TOO_LONG);
    char name[16];
    for (unsigned i = 0; i < CHANNEL_PATTERNS_MAX; i++) {
        snprintf(name, sizeof(name), "p%u", i);
        CHECK(join(&s, CHANNEL_PATTERN, name));
    }
    CHECK(channel_subscribe(&other, CHANNEL_PATTERN, SPAN("new")) == CHANNEL_FULL);
    CHECK(join(&other, CHANNEL_PATTERN, "p7")); /* one that is there */
    for (unsigned i = CHANNEL_PATTERNS_MAX + 1; i < CHANNEL_PER_SUBSCRIBER; i++) {
        snprintf(name, sizeof(name), "c%u", i);
        CHECK(join(&s, CHANNEL_PLAIN, name));
    }
    CHECK(channel_subscribe(&s, CHANNEL_PLAIN, SPAN("new")) == CHANNEL_FULL);
    CHECK(join(&other, CHANNEL_PLAIN, "new"));
    channel_clear(&s);
    channel_clear(&other);
}

struct seen {
    unsigned char name[1000];
};

static void see(void *arg, struct span name) {
    struct seen *seen = arg;
    uint64_t i;
    CHECK(span_to_u64(name, &i) && i < 1000);
    seen->name[i]++;
}

TEST(a_walk_sees_every_name) {
    struct subscriber s = {.owner = "s"};
    struct seen seen = {{0}};
    char name[16];
    for (unsigned i = 0; i < 1000; i++) {
        snprintf(name, sizeof(name), "%u", i);
        join(&s, CHANNEL_PLAIN, name);
    }
    uint64_t cursor = 0;
    do cursor = channel_scan(CHANNEL_PLAIN, cursor, see, &seen);
    while (cursor != 0);
    for (unsigned i = 0; i < 1000; i++) CHECK_EQ(seen.name[i], 1);
    channel_clear(&s);
    CHECK(channel_scan(CHANNEL_PLAIN, 0, see, &seen) == 0);
}

TEST_MAIN()
