/* Engines of one model that call their blocks in the pool by different names. */
#include "util.h"

static struct route *r;
static struct util_prompt prompt;
static struct route_request q;
static struct route_decision d;
static struct route_pool_run run_a, run_b;

static void keys_set(const char *id, const char *keys) {
    CHECK_EQ(route_engine_keys(r, span_str(id), span_str(keys), UTIL_BEGIN), TARN_OK);
}

/* e0 calls blocks a, e1 b, e2 none; the pool has 960 tokens under a, and 320 under b. */
static void begin(void) {
    r = util_route("tarn", 3);
    util_prompt(&prompt, 1, 60);
    q = util_prompt_request("x", &prompt);
    keys_set("e0", "a");
    keys_set("e1", "b");
    run_a = (struct route_pool_run){.tokens = 960};
    run_b = (struct route_pool_run){.tokens = 320};
    q.pools[0] = (struct route_pool){SPAN("b"), 320, &run_b, 1};
    q.pools[2] = (struct route_pool){SPAN("a"), 960, &run_a, 1};
}

static uint32_t pool_of(const char *id) {
    struct route_matched m[4];
    size_t n = route_match(r, &q, m, 4);
    for (size_t i = 0; i < n; i++)
        if (strcmp(m[i].engine, id) == 0) return m[i].pool_tokens;
    return 0;
}

TEST(what_the_pool_has_counts_for_those_that_call_it_so) {
    struct route_explained e;
    struct route_explained_candidate c;
    begin();
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    CHECK_STR(d.prefill, "e0");
    CHECK_EQ(d.pool_tokens, 960);
    CHECK_EQ(d.load_tokens, 960);
    CHECK_EQ(route_explain(r, q.id, &e), TARN_OK);
    const uint32_t pool[] = {960, 320, 0};
    for (uint32_t i = 0; i < 3; i++) {
        route_explain_candidate(r, &e, i, &c);
        CHECK_EQ(c.pool_tokens, pool[i]);
        CHECK_EQ(c.load_tokens, pool[i]);
    }
    CHECK_EQ(route_figures_get(r)->route_pool_tokens, 960);
    q.id = SPAN("y");
    q.exclude = &(struct span){"e0", 2};
    q.exclude_count = 1;
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    CHECK_STR(d.prefill, "e1");
    CHECK_EQ(d.pool_tokens, 320);
    route_destroy(&r);
}

TEST(match_tells_of_engines_for_which_only_the_pool_has_something) {
    begin();
    util_stored(r, "e1", &prompt, 2, ROUTE_TIER_DEVICE);
    util_stored(r, "e2", &prompt, 3, ROUTE_TIER_DEVICE);
    struct route_matched m[4];
    CHECK_EQ(route_match(r, &q, m, 4), 3);
    CHECK_EQ(pool_of("e0"), 960);
    CHECK_EQ(pool_of("e1"), 320);
    CHECK_EQ(pool_of("e2"), 0);
    CHECK_EQ(route_match(r, &q, m, 1), 3);
    q.pools[2].tokens = 0;
    CHECK_EQ(route_match(r, &q, m, 4), 2);
    route_destroy(&r);
}

TEST(engines_change_what_they_call_blocks) {
    begin();
    struct span keys[ROUTE_POOLS_MAX];
    CHECK_EQ(route_keys(r, SPAN("m"), SPAN(""), keys), 2);
    CHECK(span_eq(keys[0], SPAN("a")) && span_eq(keys[1], SPAN("b")));
    CHECK_EQ(route_keys(r, SPAN("m"), SPAN("lora"), keys), 0);
    keys_set("e2", "b");
    keys_set("e0", "b");
    CHECK_EQ(route_keys(r, SPAN("m"), SPAN(""), keys), 1);
    CHECK_EQ(pool_of("e2"), 320);
    keys_set("e0", "");
    keys_set("e1", "");
    keys_set("e2", "");
    CHECK_EQ(route_keys(r, SPAN("m"), SPAN(""), keys), 0);
    CHECK_EQ(pool_of("e0"), 0);
    CHECK_EQ(route_engine_keys(r, SPAN("e7"), SPAN("a"), UTIL_BEGIN), TARN_ENOTFOUND);
    CHECK_EQ(route_engine_keys(r, SPAN("e0"), span_of("a\0b", 3), UTIL_BEGIN), TARN_EINVAL);
    route_check(r);
    route_destroy(&r);
}

/* Its last token is computed, and not loaded, too. */
TEST(a_prompt_that_the_pool_has_wholly_is_reserved_as_any_other) {
    struct buf record = {NULL, 0, 0};
    begin();
    q.length_tokens = 960;
    q.output_tokens = 1;
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    CHECK_STR(d.prefill, "e0");
    route_check(r);
    CHECK_EQ(route_request_export(r, q.id, &record), TARN_OK);
    struct span bytes = span_of(record.data, record.len);
    CHECK_EQ(route_request_import(r, q.id, bytes, 0, UTIL_BEGIN), TARN_OK);
    route_check(r);
    buf_free(&record);
    route_destroy(&r);
}

TEST_MAIN()
