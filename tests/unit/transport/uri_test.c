#include "../test.h"

#include "base/assert.h"
#include "transport/uri.h"

static bool parse(const char *text, struct uri *u) {
    return uri_parse(span_str(text), u);
}

TEST(what_is_a_uri) {
    static const char *const bad[] = {"",
                                      "tcp",
                                      "tcp:/h:1",
                                      "tcp://h",
                                      "tcp://h:0",
                                      "://h:1",
                                      "tcp://h:x",
                                      "T://h:1",
                                      "tcp://a b:1",
                                      "shm:///",
                                      "t1://h:1",
                                      "tcp://h:65536",
                                      "abcdefghijklmnop://h:1"};
    struct uri u;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) CHECK(!parse(bad[i], &u));
    CHECK(parse("tcp://[::1]:5", &u));
    CHECK(span_eq(u.scheme, SPAN("tcp")) && span_eq(u.host, SPAN("[::1]")) && u.port == 5);
    CHECK(parse("shm:///run/x.sock", &u) && span_eq(u.scheme, SPAN("shm")) && u.port == 0);
}

TEST(hosts_that_listen_everywhere) {
    static const char *const any[] = {"tcp://*:5", "tcp://0.0.0.0:5", "tcp://[::]:5", "tcp://:5"};
    struct uri u;
    char *uri;
    for (size_t i = 0; i < ARRAY_LEN(any); i++) {
        CHECK(parse(any[i], &u) && uri_is_wildcard(&u));
        CHECK_STR(uri = uri_resolve(span_str(any[i]), &u, "fe80::1"), "tcp://[fe80::1]:5");
        free(uri);
    }
    CHECK(parse("tcp://h:5", &u) && !uri_is_wildcard(&u));
    CHECK_STR(uri = uri_resolve(SPAN("tcp://h:5"), &u, "x"), "tcp://h:5");
    free(uri);
    CHECK_STR(uri = uri_make(SPAN("tcps"), "-::1", 7), "tcps://-[::1]:7");
    free(uri);
    CHECK_STR(uri = uri_make(SPAN("tcp"), "[::1]", 7), "tcp://[::1]:7");
    free(uri);
}

TEST_MAIN()
