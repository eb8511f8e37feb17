#include "../test.h"

#include "transport/transport.h"

TEST(found_by_scheme_and_uri) {
    CHECK(transport_find("tcp") == &transport_tcp);
    CHECK(transport_find("tcp://127.0.0.1:5") == &transport_tcp);
    CHECK(transport_find("shm:///x") == &transport_shm);
    CHECK(transport_find("tc") == NULL);
    CHECK(transport_find("tcpx://a") == NULL);
    CHECK(transport_find("tcps://a") == &transport_tcp);
    CHECK(transport_is_secure("tcps://a") && !transport_is_secure("tcp://a"));
    CHECK(!transport_is_secure("rdma://a") && !transport_is_secure("shm:///a"));
    CHECK(transport_find("rdma") == NULL);
}

TEST(bad_addresses_are_refused) {
    struct transport_domain_config config = {0};
    struct transport_domain *d;
    CHECK_EQ(transport_tcp.domain_open(&config, &d), TARN_OK);
    static const char *const bad[] = {"tcp://",    "tcp://host", "tcp://h:99999",
                                      "tcp://h:x", "tcp://h:",   "udp://h:1"};
    struct transport_endpoint *e;
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        CHECK(transport_tcp.connect(d, bad[i], 0, &e) != TARN_OK);
    transport_tcp.domain_close(&d);
    CHECK(d == NULL);
}

TEST(what_is_in_use_cannot_go) {
    struct transport_domain_config config = {0};
    const struct transport_ops *ops;
    struct transport_domain *d, *other;
    CHECK_EQ(transport_open("none", &config, &ops, &d), TARN_ENOTSUP);
    CHECK_EQ(transport_open("tcp", &config, &ops, &d), TARN_OK);
    CHECK(ops == &transport_tcp);
    CHECK_EQ(transport_open("tcp", &config, &ops, &other), TARN_OK);
    transport_close(ops, &d);
    CHECK_EQ(transport_unregister(&transport_tcp), TARN_EBUSY);
    CHECK(transport_find("tcp") == &transport_tcp);
    transport_close(ops, &other);
    CHECK_EQ(transport_unregister(&transport_tcp), TARN_OK);
    CHECK_EQ(transport_unregister(&transport_tcp), TARN_ENOTFOUND);
    CHECK(transport_find("tcp") == NULL && transport_find("shm") == &transport_shm);
    CHECK_EQ(transport_register(&transport_tcp), TARN_OK);
}

/* Figures are kept by slot: a scheme has the same one when its transport comes again. */
TEST(preferred_by_cost_numbered_for_good) {
    struct transport_ops dear = transport_tcp, cheap = transport_tcp;
    dear.scheme = "dear", dear.cost = 99;
    cheap.scheme = "cheap", cheap.cost = 1;
    CHECK_EQ(transport_register(&dear), TARN_OK);
    CHECK_EQ(transport_register(&cheap), TARN_OK);
    CHECK(transport_at(0) == &cheap && transport_at(1) == &transport_shm);
    CHECK(transport_at(2) == &transport_tcp && transport_at(3) == &dear && transport_at(4) == NULL);
    unsigned slot = transport_slot(&dear);
    CHECK(slot < TRANSPORTS_MAX && slot != transport_slot(&cheap));
    CHECK_EQ(transport_unregister(&dear), TARN_OK);
    CHECK_STR(transport_name(slot), "dear");
    CHECK(transport_at(3) == NULL && transport_find("dear") == NULL);
    CHECK_EQ(transport_register(&dear), TARN_OK);
    CHECK_EQ(transport_slot(&dear), slot);
    CHECK(transport_name(TRANSPORTS_MAX) == NULL);
    CHECK_EQ(transport_unregister(&dear), TARN_OK);
    CHECK_EQ(transport_unregister(&cheap), TARN_OK);
}

TEST_MAIN()
