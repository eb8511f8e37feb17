/* CONDUCTOR.KEYS, and what the pool has of a request's prompt (fake.h). */
#include "../test.h"
#include "conductor/prompt.h"
#include "fake.h"

#define KEYS(id, name)                                                                             \
    "conductor.keys " id " HASH TARN UNIT 16 ALIGN 16 KVGROUPS 1 " name " FULL 16 16 0 0"

static void begin(void) {
    fake_load(NULL);
    fake.pool_name = "m@";
    fake.pool_blocks = 10;
    fake.pool_asked = 0;
    SAYS("conductor.add e1 http://e1 MODEL m HOST h1 RACK r1 BYTES 1", "OK");
    SAYS("conductor.add e2 http://e2 MODEL m HOST h2 RACK r2 BYTES 1", "OK");
}

/* 400 tokens of which none were there before, with EXTRA where there is any. */
static const char *ask(const char *command, struct span extra) {
    static uint32_t tokens[400], from;
    struct span word[9] = {span_str(command), SPAN("q")};
    size_t n = strcmp(command, "conductor.match") == 0 ? 1 : 2;
    for (uint32_t i = 0; i < 400; i++) tokens[i] = from++;
    word[n++] = SPAN("MODEL");
    word[n++] = SPAN("m");
    word[n++] = SPAN("TOKENS");
    word[n++] = span_of(tokens, sizeof(tokens));
    if (extra.len > 0) word[n++] = SPAN("EXTRA");
    if (extra.len > 0) word[n++] = extra;
    return fake_call_words(word, n);
}
#define STARTS(text, words) CHECK(strncmp(text, words, sizeof(words) - 1) == 0)
#define NO_EXTRA            span_of(NULL, 0)

TEST(what_the_pool_has_counts_for_who_calls_it_so) {
    begin();
    STARTS(ask("conductor.route", NO_EXTRA), "*7 ");
    CHECK_EQ(fake.pool_asked, 0); /* nobody has told */
    SAYS("conductor.done q", "OK");
    SAYS(KEYS("e2", "m@f@"), "OK");
    STARTS(ask("conductor.route", NO_EXTRA), "*7 e2 nil *3 0 0 0 160 ");
    CHECK_EQ(fake.pool_asked, 1);
    HAS("conductor.explain q", "pool-tokens 160 load-tokens 160");
    CHECK_STR(ask("conductor.match", NO_EXTRA),
              "*1 %6 id e2 rank 0 device 0 host 0 disk 0 pool 160");
    /* One question for both; the one that is near what it loads is chosen. */
    SAYS(KEYS("e1", "m@f@"), "OK");
    SAYS("conductor.done q", "OK");
    STARTS(ask("conductor.route", NO_EXTRA), "*7 e1 nil *3 0 0 0 160 ");
    CHECK_EQ(fake.pool_asked, 3);
    /* Of other names there is nothing. */
    SAYS("conductor.done q", "OK");
    SAYS(KEYS("e1", "other@"), "OK");
    STARTS(ask("conductor.route", NO_EXTRA), "*7 e2 nil *3 0 0 0 160 ");
    CHECK_EQ(fake.pool_asked, 5);
    SAYS("conductor.keys e2", "OK");
    SAYS("conductor.done q", "OK");
    CHECK(strstr(ask("conductor.route", NO_EXTRA), " *3 0 0 0 0 ") != NULL);
    fake_end();
}

#define ENTRY(block, bytes)                                                                        \
    ((char[8]){(block), 0, 0, 0, sizeof(bytes) - 1, 0, 0, 0}), 8), buf_append(&extra, bytes,       \
                                                                              sizeof(bytes) - 1

TEST(a_prompt_ends_for_the_pool_where_extra_begins) {
    struct buf extra = {NULL, 0, 0};
    begin();
    SAYS(KEYS("e1", "m@f@"), "OK");
    buf_append(&extra, ENTRY(0, "\x91\xa4salt"));
    STARTS(ask("conductor.route", span_of(extra.data, extra.len)), "*7 e1 nil *3 0 0 0 160 ");
    buf_append(&extra, ENTRY(3, "an image"));
    STARTS(ask("conductor.route", span_of(extra.data, extra.len)), "*7 e1 nil *3 0 0 0 48 ");
    buf_clear(&extra);
    buf_append(&extra, ENTRY(0, "an image"));
    CHECK(strstr(ask("conductor.route", span_of(extra.data, extra.len)), " *3 0 0 0 0 ") != NULL);
    buf_free(&extra);
    fake_end();
}

/* As many hashes as the parts that may be looked for need, of which each may be of several. */
TEST(long_prompts_are_asked_about_as_far_as_parts_reach) {
    static uint32_t tokens[40000];
    struct span word[] = {SPAN("conductor.match"), SPAN("MODEL"), SPAN("m"), SPAN("TOKENS"),
                          span_of(tokens, sizeof(tokens))};
    begin();
    SAYS(
        "conductor.keys e1 HASH TARN UNIT 1 ALIGN 4 KVGROUPS 2 m@f@ FULL 4 2 0 0 m@g@ FULL 4 4 0 0",
        "OK");
    fake_call_words(word, ARRAY_LEN(word));
    CHECK_EQ(fake.pool_hashes, PROMPT_BLOCKS_MAX);
    SAYS("conductor.keys e1 HASH TARN UNIT 1 ALIGN 4 KVGROUPS 1 m@f@ FULL 4 1 0 0", "OK");
    fake_call_words(word, ARRAY_LEN(word));
    CHECK_EQ(fake.pool_hashes, TARN_POOL_LOOKUPS_MAX);
    SAYS("conductor.keys e1 HASH TARN UNIT 2 ALIGN 4 KVGROUPS 1 m@f@ FULL 4 4 0 0", "OK");
    fake_call_words(word, ARRAY_LEN(word));
    CHECK_EQ(fake.pool_hashes, 20000);
    fake_end();
}

/* Whose names of pages do not tell these, or do so by ways that only later versions have. */
TEST(requests_with_salt_or_lora_find_none_of_sglangs_pages) {
    static uint32_t tokens[400];
    struct span word[] = {SPAN("conductor.match"),
                          SPAN("MODEL"),
                          SPAN("m"),
                          SPAN("SALT"),
                          SPAN("s"),
                          SPAN("TOKENS"),
                          span_of(tokens, sizeof(tokens))};
    begin();
    SAYS("conductor.add e3 http://e3 MODEL m LORA *", "OK");
    SAYS("conductor.keys e3 HASH SGLANG UNIT 16 ALIGN 16 KVGROUPS 1 m@ FULL 16 16 0 0", "OK");
    CHECK_STR(fake_call_words(word, ARRAY_LEN(word)), "*0");
    word[3] = SPAN("LORA");
    CHECK_STR(fake_call_words(word, ARRAY_LEN(word)), "*0");
    SAYS("conductor.keys e3 HASH TARN UNIT 16 ALIGN 16 KVGROUPS 1 m@ FULL 16 16 0 0", "OK");
    CHECK_STR(fake_call_words(word, ARRAY_LEN(word)),
              "*1 %6 id e3 rank 0 device 0 host 0 disk 0 pool 160");
    fake_end();
}

TEST(what_is_wrong_with_keys) {
    begin();
    HAS(KEYS("e7", "m@"), "-ERR no engine 'e7'");
    HAS("conductor.keys e1 HASH TARN UNIT 16 ALIGN 16 KVGROUPS 1 m@ HALF 16 16 0 0",
        "-ERR KV group 1 of 1: kind must be");
    HAS("conductor.keys e1 HASH TARN UNIT 16 ALIGN 8 KVGROUPS 1 m@ FULL 16 16 0 0",
        "-ERR KVGROUPS: ALIGN must be");
    HAS("conductor.keys e1 HASH SGLANG UNIT 16 ALIGN 16 KVGROUPS 1 m@ FULL 16 16 0 0 REVISION a",
        "-ERR REVISION goes with");
    HAS(KEYS("e1", "m\tn@"), "-ERR the name of KV group 1");
    HAS("conductor.info e1", "keys  block");
    fake_end();
}

TEST(keys_survive_and_are_followed) {
    begin();
    SAYS(KEYS("e1", "m@f@") " REVISION r1", "OK");
    fake_unload();
    fake_load(NULL);
    HAS("conductor.info e1", "keys TARN 16 16 =r1 m@f@ FULL 16 16 0 0 block");
    /* A replica is told of others, and that there are none any more. */
    const struct span name = SPAN("k/e1"), text = SPAN("SGLANG 16 16 - m@ FULL 16 16 0 0");
    fake_keep(name, text);
    tarn_module_v1.durable_changed(&name, &text);
    HAS("conductor.info e1", "keys SGLANG 16 16 - m@ FULL 16 16 0 0 block");
    fake_forget(fake_find(name));
    tarn_module_v1.durable_changed(NULL, NULL);
    HAS("conductor.info e1", "keys  block");
    /* The same again is not written. */
    SAYS(KEYS("e1", "m@f@"), "OK");
    fake.refuse = TARN_ELATER;
    SAYS(KEYS("e1", "m@f@"), "OK");
    HAS(KEYS("e1", "m@g@"), "-");
    fake.refuse = TARN_OK;
    /* They go with the engine; what a later version writes is of no use, and does no harm. */
    SAYS(KEYS("e1", "m@f@"), "OK");
    SAYS("conductor.remove e1", "OK");
    CHECK(fake_find(name) == NULL);
    SAYS("conductor.add e1 http://e1 MODEL m", "OK");
    HAS("conductor.info e1", "keys  block");
    const struct span later = SPAN("BLAKE9 what ever");
    tarn_module_v1.durable_changed(&name, &later);
    CHECK(strstr(ask("conductor.route", NO_EXTRA), " *3 0 0 0 0 ") != NULL);
    fake_end();
}

TEST(doctor_tells_of_pools_that_are_of_no_use) {
    begin();
    fake.pool_name = NULL;
    SAYS(KEYS("e1", "m@f@"), "OK");
    for (int i = 0; i < 20; i++) ask("conductor.route", NO_EXTRA);
    HAS("conductor.doctor", "None of 20 prompts for model m had a beginning in the pool. If there "
                            "are no keys that begin with m@f@ (SCAN");
    /* Who only decodes loads nothing. */
    SAYS("conductor.add d http://d MODEL m ROLE DECODE", "OK");
    HAS("conductor.doctor", "What the pool has for e2, which serve model m, is not known");
    fake.pool_name = "m@";
    ask("conductor.route", NO_EXTRA);
    CHECK(strstr(fake_call("conductor.doctor"), "had a beginning") == NULL);
    for (int i = 0; i < 20; i++) fake_call("conductor.route q MODEL m LENGTH 400");
    HAS("conductor.doctor", "20 requests for model m came without TOKENS");
    fake_end();
}

/* Written by a later version, by a master of which this one is a replica. */
TEST(keys_that_cannot_be_read_are_none) {
    const struct span name = SPAN("k/e1"), later = SPAN("BLAKE9");
    begin();
    tarn_module_v1.durable_changed(&name, &later);
    for (int i = 0; i < 20; i++) ask("conductor.route", NO_EXTRA);
    HAS("conductor.doctor", "What the pool has for e1, e2, which serve model m, is not known");
    CHECK(strstr(fake_call("conductor.doctor"), "had a beginning") == NULL);
    fake_end();
}

TEST_MAIN()
