/* The words behind the module's file name: every option has its bounds, holds what it was given,
 * and does something. */
#include <sys/mman.h>

#include "../../fake_verbs/fake_verbs.h"
#include "../test.h"
#include "base/log.h"
#include "rdma/rdma.h"

static char error[300];

static tarn_status parse(const char *name, const char *value) {
    const char *argv[] = {name, value};
    error[0] = '\0';
    return rdma_options_parse(2, argv, error, sizeof(error));
}

enum kind { U16, UINT, U64, BYTES };

static uint64_t stored(const void *at, enum kind kind) {
    switch (kind) {
    case U16: return *(const uint16_t *)at;
    case UINT: return *(const unsigned *)at;
    default: return *(const uint64_t *)at;
    }
}

static const struct number {
    const char *name;
    enum kind kind;
    const void *at;
    uint64_t usual, min, max;
} numbers[] = {
    {"port", U16, &rdma_options.port, 0, 0, 65535},
    {"qps", UINT, &rdma_options.qps, 2, 1, 16},
    {"rails", UINT, &rdma_options.rails, 8, 1, 64},
    /* with the usual signal-every */
    {"send-queue", UINT, &rdma_options.send_queue, 128, 32, 16384},
    {"signal-every", UINT, &rdma_options.signal_every, 16, 1, 64}, /* with the usual send-queue */
    {"inline", UINT, &rdma_options.inline_bytes, 220, 0, 1024},
    {"slice", BYTES, &rdma_options.slice, 64 << 10, 4096, 1 << 20}, /* with the usual slice-max */
    {"slice-max", BYTES, &rdma_options.slice_max, 1 << 20, 64 << 10, 1 << 30},
    {"staging", BYTES, &rdma_options.staging_bytes, 16 << 20, 1 << 20, UINT64_C(1) << 34},
    {"max-connections", UINT, &rdma_options.max_connections, 1024, 1, 65536},
    {"max-rails", UINT, &rdma_options.max_rails, 256, 1, 65536},
    {"idle-timeout-ms", U64, &rdma_options.idle_ms, 60000, 100, 86400000},
    {"connect-timeout-ms", U64, &rdma_options.connect_ms, 1000, 10, 60000},
    {"retries", UINT, &rdma_options.retries, 3, 0, 100},
    {"qp-timeout", UINT, &rdma_options.qp_timeout, 14, 1, 31},
    {"qp-retry", UINT, &rdma_options.qp_retry, 5, 0, 7},
    {"poll-us", UINT, &rdma_options.poll_us, 0, 0, 1000000},
    {"register-threads", UINT, &rdma_options.register_threads, 4, 1, 64},
};

TEST(numbers_have_bounds) {
    char text[32];
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        const struct number *o = &numbers[i];
        rdma_options_free();
        CHECK_EQ(stored(o->at, o->kind), o->usual);
        const uint64_t good[] = {o->min, o->max};
        for (size_t k = 0; k < ARRAY_LEN(good); k++) {
            snprintf(text, sizeof(text), "%llu", (unsigned long long)good[k]);
            CHECK_EQ(parse(o->name, text), TARN_OK);
            CHECK_EQ(stored(o->at, o->kind), good[k]);
        }
        snprintf(text, sizeof(text), "%llu", (unsigned long long)o->max + 1);
        CHECK_EQ(parse(o->name, text), TARN_EINVAL);
        CHECK(strstr(error, o->name) != NULL); /* it says which */
        CHECK_EQ(stored(o->at, o->kind), o->usual);
        if (o->min == 0) continue;
        snprintf(text, sizeof(text), "%llu", (unsigned long long)o->min - 1);
        CHECK_EQ(parse(o->name, text), TARN_EINVAL);
        CHECK(strstr(error, o->name) != NULL);
    }
    rdma_options_free();
}

TEST(what_is_no_number) {
    static const char *const bad[] = {
        "", " 1", "-1", "1x", "0x10", "1.5", "99999999999999999999999", "yes"};
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
        for (size_t k = 0; k < ARRAY_LEN(bad); k++)
            CHECK_EQ(parse(numbers[i].name, bad[k]), TARN_EINVAL);
}

TEST(bytes_have_units) {
    CHECK_EQ(parse("slice", "128kb"), TARN_OK);
    CHECK_EQ(rdma_options.slice, 128 << 10);
    CHECK_EQ(parse("staging", "1gb"), TARN_OK);
    CHECK_EQ(rdma_options.staging_bytes, 1 << 30);
    CHECK_EQ(parse("qps", "1kb"), TARN_EINVAL);
    rdma_options_free();
}

TEST(yes_and_no) {
    CHECK_EQ(parse("relaxed-ordering", "NO"), TARN_OK);
    CHECK(!rdma_options.relaxed_ordering);
    CHECK_EQ(parse("relaxed-ordering", "yes"), TARN_OK);
    CHECK(rdma_options.relaxed_ordering);
    CHECK_EQ(parse("relaxed-ordering", "1"), TARN_EINVAL);
    rdma_options_free();
}

TEST(lists_have_an_end) {
    const char *argv[2 * (RDMA_BINDS_MAX + 1)];
    for (size_t i = 0; i < ARRAY_LEN(argv); i += 2) argv[i] = "bind", argv[i + 1] = "10.0.0.1";
    CHECK_EQ(rdma_options_parse(2 * RDMA_BINDS_MAX, argv, error, sizeof(error)), TARN_OK);
    CHECK_EQ(rdma_options.binds, RDMA_BINDS_MAX);
    CHECK_EQ(rdma_options_parse(ARRAY_LEN(argv), argv, error, sizeof(error)), TARN_EINVAL);
    CHECK_EQ(rdma_options.binds, 0);
    for (size_t i = 0; i < ARRAY_LEN(argv); i += 2) argv[i] = "device", argv[i + 1] = "mlx5_0";
    CHECK_EQ(rdma_options_parse(2 * RDMA_DEVICES_MAX, argv, error, sizeof(error)), TARN_OK);
    CHECK_EQ(rdma_options.devices, RDMA_DEVICES_MAX);
    CHECK_EQ(rdma_options_parse(2 * RDMA_DEVICES_MAX + 2, argv, error, sizeof(error)), TARN_EINVAL);
    CHECK_EQ(parse("device", "a-name-that-is-longer-than-any-device-has"), TARN_EINVAL);
    CHECK_EQ(parse("device", ""), TARN_EINVAL);
    CHECK_EQ(parse("bind", "::1"), TARN_OK);
    CHECK_EQ(parse("bind", "10.0.0.1:7000"), TARN_EINVAL);
    CHECK_EQ(parse("bind", "0.0.0"), TARN_EINVAL);
    rdma_options_free();
}

TEST(long_words_fit_in_the_error) {
    static char word[4000];
    memset(word, 'x', sizeof(word) - 1);
    char small[40];
    const char *argv[] = {word, word};
    CHECK_EQ(rdma_options_parse(2, argv, small, sizeof(small)), TARN_EINVAL);
    CHECK(strlen(small) < sizeof(small));
    argv[0] = "qps";
    CHECK_EQ(rdma_options_parse(2, argv, error, sizeof(error)), TARN_EINVAL);
    CHECK(strlen(error) < 200);
    CHECK_EQ(rdma_options_parse(0, NULL, error, sizeof(error)), TARN_OK);
}

/* --- what they do to devices --- */

static unsigned open_devices(const char *fake, size_t argc, const char *const *argv) {
    log_set_level(LOG_LEVEL_NOTHING);
    fake_configure(fake);
    CHECK_EQ(rdma_options_parse(argc, argv, error, sizeof(error)), TARN_OK);
    rdma_devices_open();
    return rdma_devices_count();
}

static void close_devices(void) {
    CHECK_EQ(rdma_devices_close(), TARN_OK);
    CHECK_EQ(fake_count_all(), 0);
    rdma_options_free();
}

TEST(devices_by_name) {
    const char *argv[] = {"device", "fake2", "device", "nobody", "device", "fake0"};
    CHECK_EQ(open_devices("devices=4", 6, argv), 2);
    CHECK_STR(rdma_device_at(0)->name, "fake0");
    CHECK_STR(rdma_device_at(1)->name, "fake2");
    close_devices();
}

TEST(addresses_by_bind) {
    struct rdma_address list[RDMA_ADDRESSES_MAX];
    /* the second is no device's */
    const char *argv[] = {"bind", "127.0.0.2", "bind", "127.0.0.99"};
    CHECK_EQ(open_devices("devices=3", 4, argv), 3);
    CHECK_EQ(rdma_device_addresses(rdma_device_at(0), list), 0);
    CHECK_EQ(rdma_device_addresses(rdma_device_at(1), list), 1);
    CHECK_STR(list[0].text, "127.0.0.2");
    CHECK_EQ(rdma_device_addresses(rdma_device_at(2), list), 0);
    close_devices();
}

TEST(relaxed_ordering_where_it_is) {
    const char *no[] = {"relaxed-ordering", "no"};
    CHECK_EQ(open_devices("", 0, NULL), 1);
    CHECK(rdma_device_at(0)->relaxed_ordering);
    close_devices();
    CHECK_EQ(open_devices("relaxed=0", 0, NULL), 1);
    CHECK(!rdma_device_at(0)->relaxed_ordering);
    close_devices();
    CHECK_EQ(open_devices("", 2, no), 1);
    CHECK(!rdma_device_at(0)->relaxed_ordering);
    close_devices();
}

TEST(ports_are_what_they_say) {
    CHECK_EQ(open_devices("speed=128,width=2,mtu=3", 0, NULL), 1);
    CHECK_EQ(rdma_device_at(0)->speed_mbps, 400000);
    CHECK_EQ(rdma_device_at(0)->mtu, 1024);
    CHECK_EQ(rdma_device_at(0)->numa_node, -1);
    close_devices();
}

TEST_MAIN()
