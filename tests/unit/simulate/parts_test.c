/* The parts of the simulation: the heap of events, caches of engines, links, the pool. */
#include "base/assert.h"
#include "base/rng.h"
#include "simulate/cache.h"
#include "simulate/network.h"
#include "simulate/pool.h"

#include "../test.h"

TEST(events_come_by_time_and_order) {
    struct events e = {0};
    struct rng r;
    rng_seed(&r, 5);
    for (uint32_t i = 0; i < 1000; i++) events_add(&e, (double)rng_below(&r, 50), EVENT_STEP, i, 0);
    double at = -1;
    uint32_t who = 0;
    for (int i = 0; i < 1000; i++) {
        CHECK(events_first(&e) != NULL);
        struct event x = events_take(&e);
        CHECK(x.at > at || (x.at == at && x.who > who));
        at = x.at;
        who = x.who;
    }
    CHECK(events_first(&e) == NULL);
    events_free(&e);
}

/* The same as a list that is searched. */
struct plain {
    uint32_t kept[64], n, evicted, last;
};

static void plain_evicted(void *arg, uint32_t id) {
    struct plain *p = arg;
    p->evicted++;
    p->last = id;
}

TEST(a_cache_evicts_the_least_recently_used) {
    struct cache c;
    struct plain p = {0};
    struct rng r;
    rng_seed(&r, 9);
    cache_open(&c, 32);
    c.evicted = plain_evicted;
    c.arg = &p;
    for (int round = 0; round < 20000; round++) {
        uint32_t id = (uint32_t)rng_below(&r, 80), at = 0;
        while (at < p.n && p.kept[at] != id) at++;
        CHECK_EQ(cache_has(&c, id), at < p.n);
        uint32_t evicted = p.evicted;
        CHECK_EQ(cache_keep(&c, id), at == p.n);
        if (at == p.n && p.n == 32) { /* the oldest is the first */
            CHECK_EQ(p.evicted, evicted + 1);
            CHECK_EQ(p.last, p.kept[0]);
            at = 0;
        } else {
            CHECK_EQ(p.evicted, evicted);
            if (at == p.n) p.n++;
        }
        memmove(p.kept + at, p.kept + at + 1, (p.n - at - 1) * sizeof(*p.kept));
        p.kept[p.n - 1] = id;
    }
    cache_close(&c);
}

TEST(what_is_held_or_private_is_not_evicted) {
    struct cache c;
    cache_open(&c, 4);
    CHECK(cache_reserve(&c, 4));
    CHECK(!cache_reserve(&c, 1));
    CHECK(cache_publish(&c, 7));
    CHECK(cache_publish(&c, 8));
    CHECK(!cache_publish(&c, 7)); /* computed twice: one of them is gone */
    CHECK_EQ(cache_room(&c), 1);
    CHECK(!cache_reserve(&c, 2));
    cache_drop(&c, 7);
    CHECK_EQ(cache_room(&c), 1);
    cache_drop(&c, 7);
    CHECK_EQ(cache_room(&c), 2);
    const uint64_t ids[] = {7, 8, 9};
    CHECK_EQ(cache_match(&c, ids, 3), 2);
    CHECK(cache_reserve(&c, 2));
    CHECK(!cache_has(&c, 7));
    CHECK(cache_has(&c, 8));
    cache_unreserve(&c, 3);
    CHECK_EQ(cache_room(&c), 3);
    cache_clear(&c);
    CHECK_EQ(cache_room(&c), 4);
    cache_close(&c);
}

/* Runs until all flows are over; ends[i] is when the one of owner i was. */
static void run_network(struct network *n, struct events *e, double *ends) {
    while (events_first(e) != NULL) {
        struct event x = events_take(e);
        uint32_t owner;
        if (network_ended(n, x.at, x.who, x.generation, &owner)) ends[owner] = x.at;
    }
}

#define CHECK_NEAR(a, b) CHECK((a) > (b)-1e-6 && (a) < (b) + 1e-6)

TEST(flows_share_their_links) {
    const struct network_config config = {
        .hosts = 4, .rack_hosts = 2, .nic = 100, .local = 1000, .rack_s = 0.5, .far_s = 2};
    struct events e = {0};
    struct network n;
    double ends[4] = {0};
    network_open(&n, &config, &e);
    network_start(&n, 0, 0, 1, 100, 0); /* alone: a second, and the rack's latency */
    run_network(&n, &e, ends);
    CHECK_NEAR(ends[0], 1.5);
    network_start(&n, 10, 0, 2, 100, 0); /* both come out of host 0 */
    network_start(&n, 10, 0, 3, 200, 1);
    network_start(&n, 10, 1, 0, 100, 2); /* the other way */
    network_start(&n, 10, 0, 0, 1000, 3);
    run_network(&n, &e, ends);
    CHECK_NEAR(ends[0], 14);
    CHECK_NEAR(ends[1], 15); /* 2 s at half, 1 s alone, 2 s of latency */
    CHECK_NEAR(ends[2], 11.5);
    CHECK_NEAR(ends[3], 11);
    CHECK_NEAR(n.moved, 500);
    CHECK_NEAR(n.local, 1000);
    network_close(&n);
    events_free(&e);
}

/* After months of simulated time, the clock's own steps are longer than a nanosecond. */
TEST(flows_end_late_in_a_long_run) {
    const struct network_config config = {.hosts = 2, .nic = 12.5e9, .local = 40e9};
    struct events e = {0};
    struct network n;
    uint32_t owner, looked = 0, ended = 0;
    network_open(&n, &config, &e);
    for (unsigned i = 0; i < 200; i++) {
        network_start(&n, 2e7 + 0.37 * i, 0, 1, 1e6 + 977 * i, i);
        while (events_first(&e) != NULL && looked++ < 10000) {
            struct event x = events_take(&e);
            ended += network_ended(&n, x.at, x.who, x.generation, &owner);
        }
    }
    CHECK_EQ(ended, 200);
    network_close(&n);
    events_free(&e);
}

TEST(the_pool_is_the_real_books) {
    struct sim_pool *p = pool_open(1, 2, 8, "lru");
    CHECK(p != NULL);
    CHECK(pool_open(1, 2, 8, "nonsense") == NULL);
    const uint64_t a[] = {1, 2, 3, 4}, b[] = {1, 2, 5, 6}, c[] = {10, 11, 12, 13, 14, 15};
    uint32_t hosts[8];
    struct store_chain first = {0}, second = {0}, third = {0};
    CHECK_EQ(pool_read(p, &first, a, 4, hosts), 0);
    pool_write(p, &first, a, 4, 0, 1);
    CHECK_EQ(pool_match(p, a, 4), 4);
    CHECK_EQ(pool_read(p, &second, b, 4, hosts), 2);
    CHECK_EQ(hosts[0], 1); /* with its writer */
    pool_write(p, &second, b, 4, 2, 0);
    CHECK_EQ(pool_match(p, b, 4), 4);
    pool_time(p, 5);
    pool_write(p, &third, c, 6, 0, 0); /* 8 blocks in all */
    CHECK_EQ(pool_match(p, c, 6), 6);
    CHECK_EQ(pool_count(p), 8);
    store_check(p->master[0].store);
    pool_host_gone(p, 0);
    CHECK(pool_count(p) < 8);
    pool_host_back(p, 0);
    pool_write(p, &third, c, 6, 0, 0);
    CHECK_EQ(pool_match(p, c, 6), 6);
    store_check(p->master[0].store);
    pool_close(&p);
}

/* Of what is deep in a prompt 64 blocks are one master's, and of all a quarter of what is before
 * them at most. */
TEST(a_master_has_a_stretch) {
    enum { N = 1024, MASTERS = 8 };
    struct sim_pool *p = pool_open(MASTERS, 2, 20 * N, "lru");
    struct store_chain chain[SIM_MASTERS_MAX] = {0};
    uint64_t ids[N];
    uint32_t has[MASTERS] = {0}, of[N] = {0};
    for (uint32_t i = 0; i < N; i++) ids[i] = i;
    for (uint32_t i = 0; i < N; i++) { /* who has it now that did not before? */
        pool_write(p, chain, ids, i + 1, i, 0);
        for (uint32_t m = 0; m < MASTERS; m++) {
            uint32_t now = (uint32_t)store_count(p->master[m].store);
            if (now > has[m]) of[i] = m;
            has[m] = now;
        }
    }
    for (uint32_t i = 257; i < N; i++) CHECK(i % 64 == 0 || of[i] == of[i - 1]);
    uint32_t changes = 0;
    for (uint32_t i = 1; i < 128; i++) changes += of[i] != of[i - 1];
    CHECK(changes > 8 && changes < 24);
    pool_close(&p);
}

/* A prefix ends at the first block whose master is away, and is whole again when it is back;
 * look-ups wait for the master with most of the keys, and for those before. */
TEST(several_masters_share_a_pool) {
    enum { N = 1024, MASTERS = 4 };
    struct sim_pool *p = pool_open(MASTERS, 2, 20 * N, "lru");
    uint64_t ids[N];
    uint32_t hosts[N], most = 0, least = N;
    struct store_chain chain[5][SIM_MASTERS_MAX] = {0};
    for (uint32_t i = 0; i < N; i++) ids[i] = i;
    pool_write(p, chain[0], ids, N, 0, 1);
    CHECK_EQ(pool_count(p), N);
    CHECK_EQ(pool_read(p, chain[1], ids, N, hosts), N);
    for (uint32_t i = 0; i < N; i++) CHECK_EQ(hosts[i], 1);
    for (uint32_t m = 0; m < MASTERS; m++) {
        uint32_t has = (uint32_t)store_count(p->master[m].store);
        store_check(p->master[m].store);
        CHECK(has > N / 16);
        if (has > most) most = has;
        pool_master_gone(p, m);
        uint32_t left = pool_match(p, ids, N);
        struct store_chain mine[SIM_MASTERS_MAX] = {0};
        CHECK_EQ(pool_read(p, mine, ids, N, hosts), left);
        CHECK(left < N);
        if (left < least) least = left;
        pool_master_back(p, m);
    }
    CHECK_EQ(least, 0); /* one of them has the first block */
    CHECK_EQ(pool_match(p, ids, N), N);
    double alone = pool_lookup_s(p, ids, N, 10, 1, 0.001);
    double behind = pool_lookup_s(p, ids, N, 10, 1, 0.001);
    double later = pool_lookup_s(p, ids, N, 100, 1, 0.001);
    pool_put_load(p, ids, N, 0, 200.5, 0.001); /* its message is there at once */
    double behind_put = pool_lookup_s(p, ids, N, 200, 1, 0.001);
    CHECK_NEAR(alone, 1 + 0.001 * most);
    CHECK_NEAR(behind, 1 + 0.002 * most);
    CHECK_NEAR(later, alone);
    CHECK_NEAR(behind_put, behind);
    /* What its master was not there for is put when somebody computes it again. */
    uint64_t more[N];
    for (uint32_t i = 0; i < N; i++) more[i] = N + i;
    pool_master_gone(p, 2);
    pool_write(p, chain[2], more, N, 0, 0);
    pool_master_back(p, 2);
    uint32_t had = pool_read(p, chain[3], more, N, hosts);
    CHECK(had < N);
    pool_write(p, chain[3], more, N, had, 0);
    CHECK_EQ(pool_match(p, more, N), N);
    CHECK_EQ(pool_count(p), 2 * N);
    pool_host_gone(p, 1);
    CHECK_EQ(pool_count(p), N);
    pool_close(&p);
}

TEST_MAIN()
