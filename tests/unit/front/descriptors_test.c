/* Who gets how many open files: nobody more than he wants, all together no more than there are,
 * and none left over that are wanted. */
#include "front/descriptors.h"

#include "base/assert.h"
#include "../test.h"

static struct descriptors shared(const struct descriptors *wanted, uint64_t limit) {
    struct descriptors d = descriptors_of(wanted, limit);
    CHECK(d.hosts <= wanted->hosts && d.data <= wanted->data && d.clients <= wanted->clients);
    CHECK(descriptors_sum(&d) <= max_u64(limit, wanted->fixed));
    return d;
}

TEST(a_small_limit_is_shared) {
    struct config c;
    config_init(&c);
    struct descriptors wanted = descriptors_wanted(&c);
    CHECK_EQ(wanted.clients, 10000);
    struct descriptors d = shared(&wanted, 256);
    CHECK(d.clients > 100 && d.data > 50 && d.hosts > 50);
    CHECK_EQ(descriptors_sum(&d), 256);
    d = shared(&wanted, 128);
    CHECK(d.clients >= DESCRIPTORS_CLIENTS_MIN);
    d = shared(&wanted, 20);
    CHECK_EQ(d.clients + d.data + d.hosts, 0);
    config_deinit(&c);
}

TEST(what_one_does_not_need_others_get) {
    struct descriptors few = {.fixed = 40, .hosts = 256, .data = 4096, .clients = 10};
    struct descriptors d = shared(&few, 300);
    CHECK_EQ(d.clients, 10);
    CHECK_EQ(descriptors_sum(&d), 300);
    struct descriptors no_pool = {.fixed = 40, .hosts = 16, .data = 0, .clients = 10000};
    d = shared(&no_pool, 300);
    CHECK_EQ(d.hosts, 16);
    CHECK_EQ(d.clients, 300 - 40 - 16);
}

TEST(with_enough_all_is_as_configured) {
    for (uint64_t limit = 0; limit < 20000; limit += 37) {
        struct descriptors wanted = {.fixed = 42, .hosts = 256, .data = 4096, .clients = 10000};
        struct descriptors d = shared(&wanted, limit);
        CHECK_EQ(descriptors_sum(&d) == descriptors_sum(&wanted),
                 limit >= descriptors_sum(&wanted));
        if (limit > 42) CHECK_EQ(descriptors_sum(&d), min_u64(limit, descriptors_sum(&wanted)));
    }
}

TEST_MAIN()
