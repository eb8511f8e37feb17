/* Reservations as bytes: what one route reserved, another has. */
#include "util.h"

struct story {
    struct buf ended;
};
static void on_end(void *arg, struct span request) {
    struct story *s = arg;
    buf_append(&s->ended, request.data, request.len);
    buf_append_char(&s->ended, ' ');
}

static struct span exported(struct route *r, const char *id, struct buf *out) {
    buf_clear(out);
    CHECK_EQ(route_request_export(r, span_str(id), out), TARN_OK);
    CHECK(out->len <= ROUTE_RECORD_MAX);
    return span_of(out->data, out->len);
}

TEST(every_end_is_told_once) {
    struct route *r = util_route("round-robin", 2);
    struct story s = {{NULL, 0, 0}};
    route_ended_set(r, on_end, &s);
    for (int i = 0; i < 6; i++) {
        char id[2] = {(char)('a' + i), 0};
        util_decide(r, id, 100, UTIL_BEGIN);
    }
    CHECK_EQ(s.ended.len, 0);
    CHECK_EQ(route_done(r, SPAN("b"), 0, false, UTIL_BEGIN), TARN_OK);
    util_decide(r, "c", 100, UTIL_BEGIN); /* anew */
    CHECK(span_eq(span_of(s.ended.data, s.ended.len), SPAN("b c ")));
    CHECK_EQ(route_engine_remove(r, SPAN("e0"), UTIL_BEGIN), TARN_OK);
    route_tick(r, UTIL_BEGIN + 1000 * UTIL_BEGIN);
    util_decide(r, "g", 100, UTIL_BEGIN + 1000 * UTIL_BEGIN);
    route_requests_clear(r);
    CHECK_EQ(s.ended.len, 2 * 8); /* seven requests, one of them twice */
    CHECK_EQ(route_figures_get(r)->route_reserved, 0);
    route_check(r);
    route_destroy(&r);
    buf_free(&s.ended);
}

TEST(a_reservation_goes_on_in_another_route) {
    struct route *r = util_route("round-robin", 2), *other = util_route("round-robin", 2);
    struct buf record = {NULL, 0, 0};
    struct route_request q = util_request("x", 1000);
    struct route_decision d;
    q.tenant = SPAN("anna");
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    struct span bytes = exported(r, "x", &record);
    CHECK_EQ(route_request_import(other, q.id, bytes, 50, 7 * UTIL_BEGIN), TARN_OK);
    CHECK_EQ(util_view(other, d.prefill).prefill_tokens, 1000);
    CHECK_EQ(util_view(other, d.prefill).context_tokens, 1050);
    const void *cursor = NULL;
    struct route_tenant_view who;
    CHECK(route_tenant_next(other, &cursor, &who));
    CHECK(span_eq(who.name, q.tenant) && who.waiting == 1);
    /* Again is the same; its first token teaches nothing. */
    CHECK_EQ(route_request_import(other, q.id, bytes, 50, 7 * UTIL_BEGIN), TARN_OK);
    CHECK_EQ(route_figures_get(other)->route_reserved, 1);
    CHECK_EQ(route_first(other, q.id, 8 * UTIL_BEGIN), TARN_OK);
    CHECK_EQ(util_view(other, d.prefill).prefill_seen, 0);
    CHECK_EQ(util_view(other, d.prefill).decodes, 1);
    route_check(other);
    /* The decode's part likewise; its prefill engine need not be there. */
    bytes = exported(other, "x", &record);
    CHECK_EQ(route_request_import(r, q.id, bytes, 0, UTIL_BEGIN), TARN_OK);
    CHECK_EQ(util_view(r, d.prefill).decodes, 1);
    CHECK_EQ(util_view(r, d.prefill).prefill_tokens, 0);
    route_check(r);
    CHECK_EQ(route_done(r, q.id, 50, false, UTIL_BEGIN + UTIL_MS), TARN_OK);
    CHECK_EQ(util_view(r, d.prefill).decode_seen, 0);
    struct route *third = util_route("round-robin", 0);
    CHECK_EQ(route_request_import(third, q.id, bytes, 0, UTIL_BEGIN), TARN_OK);
    CHECK_EQ(route_first(third, q.id, UTIL_BEGIN), TARN_OK);
    util_add(third, "e0");
    util_add(third, "e1");
    CHECK_EQ(route_decide(third, &q, UTIL_BEGIN, &d), TARN_OK); /* all anew */
    CHECK_EQ(util_view(third, d.prefill).prefill_tokens, 1000);
    route_check(third);
    route_destroy(&third);
    route_destroy(&r);
    route_destroy(&other);
    buf_free(&record);
}

TEST(a_record_that_is_over_or_odd_is_refused) {
    struct route *r = util_route("round-robin", 1), *other = util_route("round-robin", 1);
    struct buf record = {NULL, 0, 0};
    struct route_decision d = util_decide(r, "x", 1000, UTIL_BEGIN);
    struct span bytes = exported(r, "x", &record);
    CHECK_EQ(route_request_import(other, SPAN("x"), bytes, d.lease_ms, UTIL_BEGIN), TARN_ENOTFOUND);
    for (size_t n = 0; n < bytes.len; n++)
        CHECK_EQ(route_request_import(other, SPAN("x"), span_of(bytes.data, n), 0, UTIL_BEGIN),
                 TARN_EPROTO);
    CHECK_EQ(route_request_import(other, SPAN(""), bytes, 0, UTIL_BEGIN), TARN_EPROTO);
    CHECK_EQ(route_engine_remove(other, SPAN("e0"), UTIL_BEGIN), TARN_OK);
    CHECK_EQ(route_request_import(other, SPAN("x"), bytes, 0, UTIL_BEGIN), TARN_ENOTFOUND);
    CHECK_EQ(route_figures_get(other)->route_reserved, 0);
    /* What is left of the lease goes on. */
    util_add(other, "e0");
    CHECK_EQ(route_request_import(other, SPAN("x"), bytes, d.lease_ms - 10, UTIL_BEGIN), TARN_OK);
    route_tick(other, UTIL_BEGIN + 9 * UTIL_MS);
    CHECK_EQ(route_figures_get(other)->route_reserved, 1);
    route_tick(other, UTIL_BEGIN + 12 * UTIL_MS);
    CHECK_EQ(route_figures_get(other)->route_reserved, 0);
    route_check(other);
    route_destroy(&r);
    route_destroy(&other);
    buf_free(&record);
}

TEST_MAIN()
