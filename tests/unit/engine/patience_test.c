/* How long a silent host is waited for: a transport may be tired of it long before the operation
 * is. */
#include "../test.h"

#include "base/clock.h"
#include "base/log.h"
#include "engine/engine_internal.h"
#include "transport/uri.h"

/* A host that says nothing `silences` times, and serves then: tcp, but for what goes to a peer. */
static struct silent {
    unsigned silences, tries;
    struct transport_op *under_way[2];
    size_t n;
} host;

static char nothing; /* an endpoint is a pointer to something */

static tarn_status silent_connect(struct transport_domain *d, const char *uri, uint64_t deadline_ms,
                                  struct transport_endpoint **endpoint_p) {
    *endpoint_p = (void *)&nothing;
    return TARN_OK;
}

static tarn_status silent_status(const struct transport_endpoint *e) {
    return TARN_OK;
}

static void silent_close(struct transport_endpoint **endpoint_p) {
    *endpoint_p = NULL;
}

static tarn_status silent_submit(struct transport_endpoint *e, struct transport_op *const *ops,
                                 size_t n, size_t *accepted_p) {
    host.under_way[host.n++] = ops[0];
    *accepted_p = 1;
    return TARN_OK;
}

static size_t silent_progress(struct transport_domain *d, uint64_t budget) {
    size_t n = host.n;
    host.n = 0;
    for (size_t i = 0; i < n; i++) {
        struct transport_op *op = host.under_way[i];
        op->status = host.tries++ < host.silences ? TARN_ETIMEOUT : TARN_OK;
        op->settled = true;
        op->done(op);
    }
    return n;
}

static struct transport_ops ops;

static struct engine *make(unsigned silences) {
    static const uint8_t grant[GRANT_SIZE];
    log_set_level(LOG_LEVEL_NOTHING);
    struct engine_config c;
    engine_config_init(&c);
    c.transport = "tcp";
    struct engine *e;
    CHECK_EQ(engine_create(&c, &e), TARN_OK);
    ops = transport_tcp;
    ops.connect = silent_connect;
    ops.endpoint_status = silent_status;
    ops.endpoint_close = silent_close;
    ops.submit = silent_submit;
    ops.progress = silent_progress;
    host = (struct silent){.silences = silences};
    struct engine_segment s = {
        .id = 1, .epoch = 1, .size = 1u << 20, .attach = {grant, grant}, .same_host = true};
    char *uri = uri_make(SPAN("tcp"), "10.0.0.1", 16479);
    CHECK(engine_segment_way(&s, uri) != NULL);
    CHECK_EQ(engine_segment_set(e, &s), TARN_OK);
    free(uri);
    e->kinds[transport_slot(&transport_tcp)].ops = &ops;
    return e;
}

static void destroy(struct engine *e) {
    struct engine_segment nowhere = {.id = 1, .epoch = 2, .size = 1u << 20};
    CHECK_EQ(engine_segment_set(e, &nowhere), TARN_OK); /* closes what only we know of */
    e->kinds[transport_slot(&transport_tcp)].ops = &transport_tcp;
    engine_destroy(&e);
}

/* Two values, which travel as one slice as long as nothing goes wrong. */
static tarn_status read_two(struct engine *e, uint64_t patience_ms, bool sole) {
    char data[200];
    uint8_t grant[GRANT_SIZE] = {0};
    struct iovec iov[2] = {{data, 100}, {data + 100, 100}};
    struct engine_part part[2] = {{{1, 1, 0, 100}, grant, 0, 100},
                                  {{1, 1, 100, 100}, grant, 0, 100}};
    struct engine_op op[2];
    for (int i = 0; i < 2; i++) {
        op[i] = (struct engine_op){.parts = &part[i],
                                   .n_parts = 1,
                                   .iov = &iov[i],
                                   .n_iov = 1,
                                   .patience_ms = patience_ms,
                                   .sole = sole};
    }
    CHECK_EQ(engine_run(e, op, 2, clock_boot_ms() + 120000), TARN_OK);
    CHECK_EQ(op[0].status, op[1].status);
    return op[0].status;
}

/* More often than a host is tried that closes the connection. */
TEST(the_only_host_may_be_silent_for_a_while) {
    struct engine *e = make(9);
    CHECK_EQ(read_two(e, 100000, true), TARN_OK);
    CHECK(host.tries > 9);
    struct engine_stats st;
    engine_get_stats(e, &st);
    CHECK(st.retries >= 8);
    CHECK_EQ(st.timeouts, 0);
    destroy(e);
}

TEST(but_not_for_longer_than_the_patience) {
    struct engine *e = make(UINT32_MAX);
    uint64_t began_ms = clock_boot_ms();
    CHECK_EQ(read_two(e, 250, true), TARN_ETIMEOUT);
    CHECK(clock_boot_ms() - began_ms < 60000); /* and not until the deadline */
    destroy(e);
}

TEST(where_others_have_the_bytes_a_silent_host_is_tried_once) {
    struct engine *e = make(9);
    CHECK_EQ(read_two(e, 100000, false), TARN_ETIMEOUT);
    CHECK_EQ(host.tries, 1);
    destroy(e);
}

TEST_MAIN()
