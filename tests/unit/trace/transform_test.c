/* Halves of a trace, and its sessions in the other order. */
#include "trace/trace.h"

#include "../test.h"

static const char *why;

static void parse(struct trace *t, const char *text) {
    const struct trace_options o = {.format = TRACE_MOONCAKE, .lengths_apart = true};
    *t = (struct trace){0};
    CHECK_EQ(trace_parse(t, span_str(text), "t", &o, &why), TARN_OK);
    trace_sort(t);
}

static void request_is(const struct trace *t, size_t at, uint64_t ms, uint64_t last_id) {
    const struct trace_request *q = &t->requests[at];
    CHECK_EQ(q->timestamp_ms, ms);
    CHECK_EQ(t->ids[q->first + q->n - 1], last_id);
}

#define LINE(ms, ids) "{\"timestamp\":" #ms ",\"hash_ids\":[" ids "]}\n"
/* Two conversations, the second within the first, and a prompt that shares the system prompt. */
#define TALKS                                                                                      \
    LINE(1000, "1,2,3")                                                                            \
    LINE(2000, "1,7,8")                                                                            \
    LINE(3000, "1,2,3,4")                                                                          \
    LINE(4000, "1,7,8,9") LINE(6000, "1,2,3,5,6") LINE(9000, "1,11") LINE(9000, "20")

TEST(halves_are_of_requests) {
    struct trace t, half;
    parse(&t, TALKS);
    trace_transform(&half, &t, TRACE_FIRST_HALF);
    CHECK_EQ(half.n, 3);
    request_is(&half, 2, 3000, 4);
    trace_free(&half);
    trace_transform(&half, &t, TRACE_LAST_HALF);
    CHECK_EQ(half.n, 4);
    request_is(&half, 0, 4000, 9);
    request_is(&half, 3, 9000, 20);
    CHECK_EQ(trace_number(&half), 10);
    trace_free(&half);
    request_is(&t, 0, 1000, 3); /* it is as it was */
    trace_free(&t);
}

TEST(sessions_change_their_order_and_keep_that_of_their_requests) {
    struct trace t, turned;
    parse(&t, TALKS);
    trace_transform(&turned, &t, TRACE_REVERSED_SESSIONS);
    CHECK_EQ(turned.n, 7);
    request_is(&turned, 0, 1000, 11);
    request_is(&turned, 1, 1000, 20);
    request_is(&turned, 2, 4000, 3);
    request_is(&turned, 3, 6000, 8);
    request_is(&turned, 4, 6000, 4);
    request_is(&turned, 5, 8000, 9);
    request_is(&turned, 6, 9000, 6);
    CHECK_EQ(turned.requests[2].session, turned.requests[6].session);
    CHECK_EQ(turned.requests[3].session, turned.requests[5].session);
    CHECK(turned.requests[0].session != turned.requests[1].session);
    CHECK(turned.requests[2].session != turned.requests[3].session);
    trace_free(&turned);
    trace_free(&t);
}

TEST(sessions_that_are_told_are_taken) {
    const struct trace_recipe recipe = {.kind = TRACE_CHAT, .requests = 900, .rate = 4, .seed = 3};
    struct trace t = {0}, turned, again;
    CHECK_EQ(trace_generate(&t, &recipe, &why), TARN_OK);
    trace_transform(&turned, &t, TRACE_REVERSED_SESSIONS);
    trace_transform(&again, &turned, TRACE_REVERSED_SESSIONS);
    CHECK_EQ(again.n, t.n);
    uint64_t moved = 0;
    for (size_t i = 0; i < t.n; i++) {
        CHECK_EQ(again.requests[i].timestamp_ms, t.requests[i].timestamp_ms);
        moved += turned.requests[i].session != t.requests[i].session;
    }
    CHECK(moved > 800);
    trace_free(&again);
    trace_free(&turned);
    trace_free(&t);
}

TEST(nothing_is_turned_to_nothing) {
    struct trace t = {0}, out;
    for (unsigned k = 0; k < TRACE_TRANSFORMS; k++) {
        trace_transform(&out, &t, k);
        CHECK_EQ(out.n, 0);
        CHECK_EQ(trace_transform_of(trace_transform_name(k)), k);
        trace_free(&out);
    }
    CHECK_EQ(trace_transform_of("half"), TRACE_TRANSFORMS);
}

TEST_MAIN()
