/* What modules keep, against a list of what was set: bounds, the digest, records, and a walk while
 * things change. */
#include "module/durable.h"

#include "../test.h"
#include "base/rng.h"

#define NAMES 200u

static struct durable *d;
static struct durable_space *s;
static struct rng rng;

static void start(void) {
    rng_seed(&rng, 7);
    d = durable_create();
    s = durable_space_of(d, SPAN("demo"));
    CHECK(s != NULL);
}

static tarn_status set(const char *name, const char *value) {
    return durable_set(s, span_str(name), span_str(value), 1 << 20);
}

static const char *get(const char *name) {
    static char text[64];
    struct span value;
    if (!durable_find(s, span_str(name), &value)) return "(nil)";
    snprintf(text, sizeof(text), "%.*s", (int)value.len, value.data);
    return text;
}

static bool same(const struct durable *a, const struct durable *b) {
    uint8_t x[16], y[16];
    durable_digest(a, x);
    durable_digest(b, y);
    return memcmp(x, y, sizeof(x)) == 0;
}

static bool nothing(const struct durable *a) {
    uint8_t x[16], zero[16] = {0};
    durable_digest(a, x);
    return memcmp(x, zero, sizeof(x)) == 0;
}

TEST(names_and_values) {
    start();
    CHECK(nothing(d));
    CHECK_EQ(set("a", "1"), TARN_OK);
    CHECK_EQ(set("b", ""), TARN_OK);
    CHECK_STR(get("a"), "1");
    CHECK_STR(get("b"), "");
    CHECK_STR(get("c"), "(nil)");
    CHECK_EQ(durable_entries(s), 2);
    CHECK_EQ(durable_bytes(s), 2 * DURABLE_ENTRY_OVERHEAD + 3);
    CHECK_EQ(set("a", "a value that does not fit where the first one was"), TARN_OK);
    CHECK_STR(get("a"), "a value that does not fit where the first one was");
    CHECK_EQ(set("a", "2"), TARN_OK);
    CHECK_STR(get("a"), "2");
    CHECK(durable_remove(s, SPAN("a")));
    CHECK(!durable_remove(s, SPAN("a")));
    CHECK(durable_remove(s, SPAN("b")));
    CHECK_EQ(durable_bytes(s), 0);
    CHECK(nothing(d));
    durable_destroy(&d);
    durable_destroy(&d);
}

TEST(bounds) {
    static char long_one[DURABLE_VALUE_MAX + 1];
    start();
    CHECK_EQ(durable_set(s, SPAN(""), SPAN("x"), 1 << 20), TARN_EINVAL);
    CHECK_EQ(durable_set(s, span_of(long_one, DURABLE_NAME_MAX + 1), SPAN("x"), 1 << 20),
             TARN_EINVAL);
    CHECK_EQ(durable_set(s, SPAN("x"), span_of(long_one, DURABLE_VALUE_MAX + 1), 1 << 20),
             TARN_EINVAL);
    CHECK_EQ(durable_set(s, span_of(long_one, DURABLE_NAME_MAX),
                         span_of(long_one, DURABLE_VALUE_MAX), 1 << 20),
             TARN_OK);
    durable_clear(d);
    CHECK_EQ(durable_bytes(s), 0);
    uint64_t two = 2 * (DURABLE_ENTRY_OVERHEAD + 2);
    CHECK_EQ(durable_set(s, SPAN("a"), SPAN("1"), two), TARN_OK);
    CHECK_EQ(durable_set(s, SPAN("b"), SPAN("1"), two), TARN_OK);
    CHECK_EQ(durable_set(s, SPAN("b"), SPAN("12"), two), TARN_ELIMIT);
    CHECK_EQ(durable_set(s, SPAN("c"), SPAN(""), two), TARN_ELIMIT);
    CHECK_EQ(durable_set(s, SPAN("b"), SPAN("2"), 1), TARN_OK); /* it does not grow by this */
    CHECK_EQ(durable_set(s, SPAN("b"), SPAN(""), 1), TARN_OK);
    CHECK_STR(get("a"), "1");
    durable_destroy(&d);
}

TEST(spaces_are_apart) {
    start();
    struct durable_space *other = durable_space_of(d, SPAN("other"));
    CHECK(other != NULL && other != s);
    CHECK(durable_space_of(d, SPAN("demo")) == s);
    static const char *const bad[] = {"", "Upper", "with space", "dot.ted",
                                      "longer-than-any-name-of-a-module-can-be"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        CHECK(durable_space_of(d, span_str(bad[i])) == NULL);
    set("a", "1");
    struct span value;
    CHECK(!durable_find(other, SPAN("a"), &value));
    for (unsigned i = 2; i < DURABLE_SPACES_MAX; i++) {
        char name[16];
        snprintf(name, sizeof(name), "m%u", i);
        CHECK(durable_space_of(d, span_str(name)) != NULL);
    }
    CHECK(durable_space_of(d, SPAN("toomany")) == NULL);
    CHECK(durable_space_of(d, SPAN("demo")) == s);
    durable_destroy(&d);
}

TEST(the_digest_is_of_what_is_there_and_not_of_how_it_came) {
    start();
    struct durable *other = durable_create();
    struct durable_space *t = durable_space_of(other, SPAN("demo"));
    (void)durable_space_of(other, SPAN("empty"));
    for (unsigned i = 0; i < NAMES; i++) {
        char name[16];
        snprintf(name, sizeof(name), "%u", i);
        set(name, "first");
        set(name, name);
        snprintf(name, sizeof(name), "%u", NAMES - 1 - i);
        durable_set(t, span_str(name), span_str(name), 1 << 20);
    }
    CHECK(same(d, other));
    set("5", "x");
    CHECK(!same(d, other));
    set("5", "5");
    CHECK(same(d, other));
    /* the same name and value of another module */
    durable_clear(d);
    durable_clear(other);
    set("a", "1");
    durable_set(durable_space_of(other, SPAN("empty")), SPAN("a"), SPAN("1"), 1 << 20);
    CHECK(!same(d, other));
    durable_destroy(&other);
    durable_destroy(&d);
}

/* --- records --- */

static void apply_all(struct durable *to, const struct buf *records) {
    for (size_t at = 0; at < records->len;) {
        uint32_t len;
        struct durable_change x;
        const char *why;
        memcpy(&len, records->data + at, 4);
        CHECK_EQ(durable_apply(to, span_of(records->data + at, len + 4), &x, &why), TARN_OK);
        at += len + 4;
    }
}

TEST(a_record_is_read_as_it_was_written) {
    struct buf b = {NULL, 0, 0};
    struct durable_change x;
    const char *why = "";
    durable_record_write(
        &b, &(struct durable_change){DURABLE_SET, SPAN("demo"), SPAN("name"), SPAN("value")});
    CHECK_EQ(durable_record_read(span_of(b.data, b.len), &x, &why), TARN_OK);
    CHECK(x.what == DURABLE_SET && span_eq(x.module, SPAN("demo")) &&
          span_eq(x.name, SPAN("name")) && span_eq(x.value, SPAN("value")));
    b.data[5] = 2;
    CHECK_EQ(durable_record_read(span_of(b.data, b.len), &x, &why), TARN_EPROTO);
    CHECK(strstr(why, "another version") != NULL);
    b.data[5] = DURABLE_FORMAT;
    for (size_t n = 5; n < 10 + 8; n++)
        CHECK_EQ(durable_record_read(span_of(b.data, n), &x, &why), TARN_EPROTO);
    static const struct {
        size_t at;
        char byte;
    } wrong[] = {{6, 0}, {6, 3}, {6, DURABLE_GONE}, {7, 0}, {7, 40}, {8, 0}, {9, 5}, {10, 'X'}};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        char was = b.data[wrong[i].at];
        b.data[wrong[i].at] = wrong[i].byte;
        CHECK_EQ(durable_record_read(span_of(b.data, b.len), &x, &why), TARN_EPROTO);
        b.data[wrong[i].at] = was;
    }
    CHECK_EQ(durable_record_read(span_of(b.data, b.len), &x, &why), TARN_OK);
    buf_free(&b);
}

static void change(struct buf *told) {
    char name[16], value[64];
    snprintf(name, sizeof(name), "%u", (unsigned)(rng_next(&rng) % NAMES));
    memset(value, 'v', sizeof(value));
    struct durable_change x = {DURABLE_SET, durable_space_module(s), span_str(name),
                               span_of(value, (size_t)(rng_next(&rng) % sizeof(value)))};
    if (rng_next(&rng) % 3 == 0) {
        x.what = DURABLE_GONE;
        if (!durable_remove(s, x.name)) return;
    } else {
        CHECK_EQ(durable_set(s, x.name, x.value, 1 << 20), TARN_OK);
    }
    durable_record_write(told, &x);
}

TEST(a_walk_while_everything_changes_tells_all_of_it) {
    for (unsigned round = 0; round < 50; round++) {
        struct buf told = {NULL, 0, 0};
        struct durable_walk x = {0};
        start();
        rng_seed(&rng, round);
        for (unsigned i = 0; i < 2 * NAMES; i++) change(&told);
        buf_clear(&told);
        unsigned budget = 5, steps = 0;
        while (!durable_walk_step(d, &x, &told, &budget)) {
            for (unsigned i = 0; i < round % 7; i++) change(&told);
            budget = 5;
            CHECK(++steps < 10000);
        }
        CHECK(steps > 1);
        struct durable *other = durable_create();
        apply_all(other, &told);
        CHECK(same(d, other));
        CHECK_EQ(durable_entries(durable_space_of(other, SPAN("demo"))), durable_entries(s));
        CHECK_EQ(durable_bytes(durable_space_of(other, SPAN("demo"))), durable_bytes(s));
        durable_destroy(&other);
        durable_destroy(&d);
        buf_free(&told);
    }
}

TEST_MAIN()
