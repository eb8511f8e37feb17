/* Shares of tenants by themselves: whose turn it is, and when it will be. */
#include "../test.h"
#include "base/rng.h"
#include "route/tenant.h"

#define MS  1000.0
#define NOW 1000000u

static struct tenants begin(void) {
    struct tenants t = {.most = 8};
    tenants_init(&t, 8);
    return t;
}

static struct tenant *named(struct tenants *t, const char *name) {
    return tenant_get(t, span_str(name), NOW);
}

/* Over its share where the shortest queue is twice as long as anybody should wait? */
static bool over(const struct tenants *t, const struct tenant *who, uint32_t workers,
                 double *retry_us_p) {
    return tenant_over_share(t, who, workers, 2 * MS, 1 * MS, NOW, retry_us_p);
}

/* a has 10 ms, where 1 ms for each of 2 workers is allowed: 8 of them are work of 4 ms. With b, of
 * three times the weight, a has a fourth of both: 9.5 of its virtual time are work of 19 ms. */
TEST(when_it_is_a_tenant_s_turn_follows_from_the_work) {
    struct tenants t = begin();
    struct tenant *a = named(&t, "a"), *b = named(&t, "b");
    double retry_us = 0;
    tenant_admit(&t, a, 10 * MS);
    CHECK(over(&t, a, 2, &retry_us));
    CHECK_EQ(retry_us, 4 * MS);
    CHECK(!over(&t, b, 2, &retry_us));
    tenant_set_weight(&t, b, 3);
    tenant_admit(&t, b, 100 * MS);
    tenant_admit(&t, b, 19 * 2 * MS);
    CHECK(over(&t, a, 2, &retry_us));
    CHECK_EQ(retry_us, 19 * MS);
    /* So it is: when both have worked for so long, a is not over any more. */
    tenant_done(&t, b, 19 * 2 * MS - 1);
    CHECK(over(&t, a, 2, &retry_us));
    CHECK_EQ(retry_us, 1 * MS); /* no sooner than that */
    tenant_admit(&t, b, 1);
    tenant_done(&t, b, 1);
    CHECK(!over(&t, a, 2, &retry_us));
    tenant_done(&t, a, 10 * MS);
    tenant_done(&t, b, 100 * MS);
    CHECK_EQ(t.weights, 0);
    tenants_deinit(&t);
}

TEST(nobody_is_held_back_where_nobody_waits) {
    struct tenants t = begin();
    struct tenant *a = named(&t, "a");
    double retry_us;
    tenant_admit(&t, a, 1000 * MS);
    CHECK(!over(&t, a, 1, &retry_us)); /* it is alone */
    named(&t, "b");
    CHECK(over(&t, a, 1, &retry_us));
    CHECK(!tenant_over_share(&t, a, 1, 1 * MS, 1 * MS, NOW, &retry_us)); /* an engine is idle */
    CHECK(!tenant_over_share(&t, a, 1, 2 * MS, 0, NOW, &retry_us));      /* the option says so */
    tenant_done(&t, a, 1000 * MS);
    tenants_deinit(&t);
}

/* Whoever was quiet while others worked has its share of now, and nothing for the time before. */
TEST(idleness_is_no_credit) {
    struct tenants t = begin();
    struct tenant *a = named(&t, "a"), *b = named(&t, "b");
    double retry_us;
    tenant_admit(&t, b, 1 * MS);
    tenant_done(&t, b, 1 * MS);
    for (int i = 0; i < 1000; i++) {
        tenant_admit(&t, a, 10 * MS);
        tenant_done(&t, a, 10 * MS);
    }
    tenant_admit(&t, b, 10 * MS);
    CHECK(over(&t, b, 1, &retry_us));
    tenant_done(&t, b, 10 * MS);
    tenants_deinit(&t);
}

/* Three that always want more get work by their weights, whatever the sizes of their requests. */
TEST(work_is_shared_by_weight) {
    static const char *const names[] = {"a", "b", "c"};
    static const double weights[] = {1, 2, 5};
    struct tenants t = begin();
    struct tenant *who[3];
    struct rng r;
    double work[512], got[3] = {0}, queued = 0, retry_us;
    uint32_t owner[512], head = 0, tail = 0;
    rng_seed(&r, 1);
    for (int i = 0; i < 3; i++) {
        who[i] = named(&t, names[i]);
        tenant_set_weight(&t, who[i], weights[i]);
    }
    for (int i = 0; i < 100000; i++) {
        uint32_t k = (uint32_t)rng_below(&r, 3);
        if (!tenant_over_share(&t, who[k], 1, queued, 100 * MS, NOW, &retry_us) &&
            tail - head < 512) {
            work[tail % 512] = (1 + (double)rng_below(&r, 5 * (k + 1))) * MS;
            owner[tail % 512] = k;
            queued += work[tail % 512];
            tenant_admit(&t, who[k], work[tail++ % 512]);
        }
        if (i % 8 != 0 || head == tail) continue; /* less is done than is asked for */
        queued -= work[head % 512];
        got[owner[head % 512]] += work[head % 512];
        tenant_done(&t, who[owner[head % 512]], work[head % 512]);
        head++;
    }
    double all = got[0] + got[1] + got[2];
    for (int i = 0; i < 3; i++) CHECK(got[i] / all > 0.9 * weights[i] / 8);
    tenants_deinit(&t);
}

/* Of those that come and go the ones that are used stay, and whose work is not done. */
TEST(the_longest_unused_is_forgotten) {
    struct tenants t = begin();
    char name[16];
    struct tenant *busy = named(&t, "busy");
    tenant_admit(&t, busy, 1);
    for (int i = 0; i < 50; i++) {
        snprintf(name, sizeof(name), "%d", i);
        CHECK(named(&t, name) != NULL);
        named(&t, "used")->admitted++;
    }
    CHECK_EQ(t.table.count, 8);
    CHECK_EQ(named(&t, "used")->admitted, 50);
    CHECK(named(&t, "busy") == busy);
    for (int i = 0; i < 50; i++) {
        snprintf(name, sizeof(name), "%d", i);
        struct tenant *who = named(&t, name);
        CHECK_EQ(who == NULL, i >= 7);
        if (who != NULL) tenant_admit(&t, who, 1); /* there is no room but theirs */
    }
    tenants_deinit(&t);
}

TEST_MAIN()
