/* Who goes first, by policy. Pools of whole pages, one page an object. */
#include "util.h"

static const char *name(int i) {
    static char out[8][16];
    static int at;
    at = (at + 1) % 8;
    sprintf(out[at], "k%d", i);
    return out[at];
}

static void look_hit(struct store *s, struct store_batch *b, const char *key) {
    store_batch_hit(s, b, store_find(s, span_str(key)), store_hash(span_str(key)));
}

static void look_miss(struct store *s, struct store_batch *b, const char *key) {
    store_batch_miss(s, b, span_str(key), store_hash(span_str(key)));
}

static struct store *filled(const char *policy, int n) {
    struct store *s = util_store(policy, (uint64_t)n, NULL, NULL);
    for (int i = 0; i < n; i++) CHECK_EQ(util_put(s, name(i), 4096), TARN_OK);
    return s;
}

TEST(lru_evicts_the_least_recently_used) {
    struct store *s = filled("lru", 4);
    CHECK(util_read(s, "k0"));
    CHECK_EQ(util_put(s, "new", 4096), TARN_OK);
    CHECK(util_has(s, "k0") && !util_has(s, "k1") && util_has(s, "k2"));
    store_destroy(&s);
}

/* Keys that are there, and that are not: the order is what it was. */
TEST(what_comes_near_is_no_use) {
    static const char *const policies[] = {"lru", "fifo", "lfu", "sieve", "s3fifo", "chain"};
    for (size_t i = 0; i < ARRAY_LEN(policies); i++) {
        struct store *near = filled(policies[i], 8), *other = filled(policies[i], 8);
        for (int put = 8; put < 16; put++) {
            struct span keys[STORE_PREFETCH_MAX];
            uint64_t hashes[STORE_PREFETCH_MAX];
            char names[STORE_PREFETCH_MAX][16];
            for (int k = 0; k < (int)STORE_PREFETCH_MAX; k++) {
                sprintf(names[k], "k%d", k % 20);
                keys[k] = span_str(names[k]);
            }
            store_prefetch_single(near, keys, STORE_PREFETCH_MAX, hashes);
            CHECK_EQ(hashes[1], store_hash(SPAN("k1")));
            CHECK_EQ(util_put(near, name(put), 4096), TARN_OK);
            CHECK_EQ(util_put(other, name(put), 4096), TARN_OK);
            for (int k = 0; k <= put; k++)
                CHECK_EQ(util_has(near, name(k)), util_has(other, name(k)));
        }
        store_destroy(&near);
        store_destroy(&other);
    }
}

/* What was pinned when the policy changed is none of any policy. */
TEST(what_comes_near_may_have_no_policy) {
    struct store *s = filled("lru", 4);
    struct span keys[] = {SPAN("k0"), SPAN("k1")};
    uint64_t hashes[2];
    unsigned budget = 1000;
    CHECK_EQ(store_pin(s, keys[0], STORE_PIN_HARD, 0), TARN_OK);
    CHECK_EQ(store_set_policy(s, "chain"), TARN_OK);
    CHECK(!order_migrate(s, &budget));
    store_prefetch_single(s, keys, 2, hashes);
    CHECK(util_has(s, "k0") && util_has(s, "k1"));
    store_destroy(&s);
}

TEST(lru_look_ups_without_lease_do_not_count) {
    struct store *s = filled("lru", 4);
    struct store_batch b;
    store_batch_begin(s, &b, NULL, STORE_BATCH_LOOK, 1);
    store_batch_hit(s, &b, store_find(s, SPAN("k0")), store_hash(SPAN("k0")));
    CHECK_EQ(util_put(s, "new", 4096), TARN_OK);
    CHECK(!util_has(s, "k0"));
    store_destroy(&s);
}

TEST(fifo_evicts_the_oldest_used_or_not) {
    struct store *s = filled("fifo", 4);
    CHECK(util_read(s, "k0"));
    CHECK_EQ(util_put(s, "new", 4096), TARN_OK);
    CHECK(!util_has(s, "k0") && util_has(s, "k1"));
    store_destroy(&s);
}

TEST(sieve_spares_what_was_used_once_round) {
    struct store *s = filled("sieve", 4);
    CHECK(util_read(s, "k0") && util_read(s, "k1"));
    CHECK_EQ(util_put(s, "a", 4096), TARN_OK); /* the hand passes k0 and k1, takes k2 */
    CHECK(util_has(s, "k0") && util_has(s, "k1") && !util_has(s, "k2"));
    CHECK_EQ(util_put(s, "b", 4096), TARN_OK); /* and goes on from there */
    CHECK(util_has(s, "k0") && !util_has(s, "k3"));
    store_destroy(&s);
}

TEST(lfu_keeps_what_is_used_often) {
    struct store *s = filled("lfu", 4);
    for (int i = 0; i < 200; i++) CHECK(util_read(s, "k0") && util_read(s, "k2"));
    CHECK_EQ(util_put(s, "a", 4096), TARN_OK);
    CHECK_EQ(util_put(s, "b", 4096), TARN_OK);
    CHECK(util_has(s, "k0") && util_has(s, "k2") && !util_has(s, "k1") && !util_has(s, "k3"));
    CHECK(store_object_freq(s, store_find(s, SPAN("k0"))) > 5);
    store_destroy(&s);
}

TEST(lfu_lets_old_fame_fade) {
    struct store *s = filled("lfu", 4);
    for (int i = 0; i < 50; i++) CHECK(util_read(s, "k0"));
    util_tick(s, 3600 * 1000);
    for (int i = 1; i < 4; i++) CHECK(util_read(s, name(i)));
    /* Every eviction looks at one more list; k0's turn has come long before this ends. */
    for (int i = 0; i < 600; i++) {
        CHECK_EQ(util_put(s, name(100 + i), 4096), TARN_OK);
        CHECK(util_read(s, name(100 + i)));
    }
    CHECK(!util_has(s, "k0"));
    store_destroy(&s);
}

TEST(s3fifo_resists_a_scan) {
    struct store *s = util_store("s3fifo", 100, NULL, NULL);
    for (int i = 0; i < 50; i++) CHECK_EQ(util_put(s, name(i), 4096), TARN_OK);
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 50; i++) CHECK(util_read(s, name(i)));
    for (int i = 0; i < 1000; i++) CHECK_EQ(util_put(s, name(1000 + i), 4096), TARN_OK);
    int kept = 0;
    for (int i = 0; i < 50; i++) kept += util_has(s, name(i));
    CHECK_EQ(kept, 50);
    store_destroy(&s);
}

/* A ghost goes straight to the main queue. */
TEST(s3fifo_remembers_ghosts) {
    struct store *s = util_store("s3fifo", 2000, NULL, NULL);
    for (int i = 0; i < 3000; i++) CHECK_EQ(util_put(s, name(i), 4096), TARN_OK);
    for (int i = 2500; i < 3000; i++) CHECK(store_remove(s, span_str(name(i))));
    int remembered = 0;
    for (int i = 0; i < 500; i++) {
        CHECK(!util_has(s, name(i)));
        CHECK_EQ(util_put(s, name(i), 4096), TARN_OK);
        remembered += (store_find(s, span_str(name(i)))->bits & OBJECT_Q1) != 0;
    }
    CHECK(remembered >= 480);
    CHECK(!(store_find(s, SPAN("k2000"))->bits & OBJECT_Q1));
    store_destroy(&s);
}

/* A look-up of three blocks that finds two, then a get of these. */
static void look_and_get(struct store *s, struct store_chain *c, enum store_batch_kind look) {
    struct store_batch b;
    store_batch_begin(s, &b, c, look, 3);
    look_hit(s, &b, "k0");
    look_hit(s, &b, "k1");
    look_miss(s, &b, "none");
    store_batch_begin(s, &b, c, STORE_BATCH_READ, 2);
    look_hit(s, &b, "k0");
    look_hit(s, &b, "k1");
}

TEST(a_request_counts_once) {
    struct store *s = filled("s3fifo", 4);
    struct store_chain c = {0};
    look_and_get(s, &c, STORE_BATCH_LEASE);
    CHECK_EQ(store_object_freq(s, store_find(s, SPAN("k0"))), 1u);
    look_and_get(s, &c, STORE_BATCH_LOOK);
    CHECK_EQ(store_object_freq(s, store_find(s, SPAN("k1"))), 2u);
    store_destroy(&s);
    /* but it is later all the same */
    s = filled("lru", 4);
    struct store_batch b;
    c = (struct store_chain){0};
    store_batch_begin(s, &b, &c, STORE_BATCH_LEASE, 2);
    look_hit(s, &b, "k0");
    look_miss(s, &b, "none");
    for (int i = 1; i < 4; i++) CHECK(util_read(s, name(i)));
    store_batch_begin(s, &b, &c, STORE_BATCH_READ, 1);
    look_hit(s, &b, "k0");
    CHECK_EQ(util_put(s, "new", 4096), TARN_OK);
    CHECK(util_has(s, "k0") && !util_has(s, "k1"));
    store_destroy(&s);
}

TEST(a_changed_policy_keeps_the_order_it_found) {
    struct store *s = filled("fifo", 6);
    CHECK_EQ(store_set_policy(s, "nonsense"), TARN_EINVAL);
    CHECK_EQ(store_set_policy(s, "lru"), TARN_OK);
    CHECK_EQ(store_set_policy(s, "lfu"), TARN_EBUSY);
    CHECK_EQ(util_put(s, "a", 4096), TARN_OK);
    CHECK(!util_has(s, "k0") && util_has(s, "k1"));
    util_tick(s, 1);
    struct store_stats st;
    store_get_stats(s, &st);
    CHECK_EQ(st.migrating_objects, 0u);
    CHECK(util_read(s, "k1"));
    CHECK_EQ(util_put(s, "b", 4096), TARN_OK);
    CHECK(!util_has(s, "a")); /* it came when the others had not been moved yet */
    CHECK_EQ(util_put(s, "c", 4096), TARN_OK);
    CHECK(util_has(s, "k1") && !util_has(s, "k2") && util_has(s, "k3") && util_has(s, "b"));
    store_check(s);
    store_destroy(&s);
}

/* --- what a policy is told --- */

static struct policy_event seen[32], done;
static int n_seen, n_done;

static void spy_insert(struct policy *p, struct object *o, const struct policy_event *e) {
    seen[n_seen++] = *e;
    policy_lru.insert(p, o, e);
}
static void spy_access(struct policy *p, struct object *o, const struct policy_event *e) {
    seen[n_seen++] = *e;
    policy_lru.access(p, o, e);
}
static void spy_done(struct policy *p, const struct policy_event *e) {
    n_done++;
    done = *e;
}

static struct store *spied_of(uint64_t pages) {
    static struct policy_ops spy;
    struct store *s = util_store("fifo", pages, NULL, NULL);
    spy = policy_lru;
    spy.insert = spy_insert;
    spy.access = spy_access;
    spy.prefix_done = spy_done;
    CHECK_EQ(order_set_policy(s, &spy), TARN_OK);
    n_seen = n_done = 0;
    return s;
}

static struct store *spied(void) {
    return spied_of(64);
}

static void put_sized(struct store *s, struct store_batch *b, const char *key, uint64_t size) {
    struct store_put_options o = {.replicas = 1};
    struct store_put *p;
    unsigned budget = 1000;
    CHECK_EQ(store_put_start(s, b, span_str(key), size, &o, 1, &budget, &p), TARN_OK);
    CHECK_EQ(store_put_end(s, span_str(key), store_put_token(p), 1, 0, NULL, 0, NULL), TARN_OK);
}

static void put_next(struct store *s, struct store_batch *b, const char *key) {
    put_sized(s, b, key, 4096);
}

TEST(a_policy_sees_the_chain) {
    struct store *s = spied();
    struct store_chain c = {0};
    struct store_batch b;
    /* A request of five blocks: nothing there yet, all are put. */
    store_batch_begin(s, &b, &c, STORE_BATCH_LEASE, 5);
    for (int i = 0; i < 5; i++) look_miss(s, &b, name(i));
    uint32_t first = b.request;
    CHECK_EQ(n_done, 2);
    store_batch_begin(s, &b, &c, STORE_BATCH_PUT, 3);
    for (int i = 0; i < 3; i++) put_next(s, &b, name(i));
    CHECK(n_done == 4 && done.put && done.request == first && done.depth == 2);
    CHECK(n_seen == 3 && seen[2].request == first && seen[2].depth == 2 && seen[2].put);
    /* The next one shares three, and its puts go on at depth 3. */
    n_seen = 0;
    store_batch_begin(s, &b, &c, STORE_BATCH_LEASE, 4);
    for (int i = 0; i < 3; i++) look_hit(s, &b, name(i));
    look_miss(s, &b, name(10));
    CHECK(n_seen == 3 && seen[2].hits == 3 && seen[2].position == 2 && seen[2].length == 4);
    CHECK(seen[2].hash == store_hash(SPAN("k2")) && !seen[2].again);
    uint32_t second = b.request;
    CHECK(second != first);
    /* Fetching exactly the hits is still the same request. */
    store_batch_begin(s, &b, &c, STORE_BATCH_READ, 3);
    for (int i = 0; i < 3; i++) look_hit(s, &b, name(i));
    CHECK(b.request == second && seen[5].again);
    store_batch_begin(s, &b, &c, STORE_BATCH_PUT, 1);
    put_next(s, &b, name(10));
    struct object *last = store_find(s, span_str(name(10)));
    CHECK(store_object_depth(last) == 3 && store_object_request(s, last) == second);
    store_destroy(&s);
}

TEST(a_batch_that_ends_early_ends_when_the_next_begins) {
    struct store *s = spied();
    struct store_chain c = {0};
    struct store_batch b;
    store_batch_begin(s, &b, &c, STORE_BATCH_LEASE, 5); /* as PREFIXLEN does */
    look_miss(s, &b, name(0));
    CHECK_EQ(n_done, 0);
    store_batch_begin(s, &b, &c, STORE_BATCH_PUT, 5);
    CHECK(n_done == 2 && !done.put && done.hash == store_hash(SPAN("k0")));
    put_next(s, &b, name(0));
    put_next(s, &b, name(1));
    CHECK_EQ(n_done, 2);
    store_batch_begin(s, &b, &c, STORE_BATCH_LEASE, 5);
    CHECK(n_done == 4 && done.put && done.position == 1 && done.length == 5);
    store_destroy(&s);
}

/* As libtarn does it, where the keys are many. */
TEST(gets_and_puts_of_a_request_may_be_several_batches) {
    struct store *s = spied();
    struct store_chain c = {0};
    struct store_batch b;
    for (int i = 0; i < 4; i++) CHECK_EQ(util_put(s, name(i), 4096), TARN_OK);
    store_batch_begin(s, &b, &c, STORE_BATCH_LOOK, 9);
    for (int i = 0; i < 4; i++) look_hit(s, &b, name(i));
    look_miss(s, &b, name(4));
    uint32_t request = b.request;
    for (int from = 0; from < 4; from += 2) {
        store_batch_begin(s, &b, &c, STORE_BATCH_READ, 2);
        look_hit(s, &b, name(from));
        look_hit(s, &b, name(from + 1));
        CHECK_EQ(b.request, request);
        CHECK_EQ(store_object_depth(store_find(s, span_str(name(from + 1)))), (uint32_t)from + 1);
    }
    for (int from = 4; from < 9; from += 3) {
        store_batch_begin(s, &b, &c, STORE_BATCH_PUT, from == 4 ? 3 : 2);
        for (int i = from; i < from + 3 && i < 9; i++) put_next(s, &b, name(i));
        CHECK_EQ(b.request, request);
    }
    CHECK_EQ(store_object_depth(store_find(s, SPAN("k8"))), 8u);
    /* All of it has come: what is put or read now is of another. */
    store_batch_begin(s, &b, &c, STORE_BATCH_PUT, 1);
    put_next(s, &b, name(20));
    CHECK(b.request != request);
    store_batch_begin(s, &b, &c, STORE_BATCH_READ, 1);
    look_hit(s, &b, name(0));
    CHECK(b.request != request);
    store_destroy(&s);
}

static void put_at(struct store *s, struct store_batch *b, uint32_t position, uint32_t length,
                   uint32_t depth) {
    store_batch_at(b, position, length);
    /* libtarn puts at most 1 GiB in a request: these are so large */
    put_sized(s, b, name((int)depth), UINT64_C(600) << 20);
    CHECK_EQ(store_object_depth(store_find(s, span_str(name((int)depth)))), depth);
}

/* A master of three: some blocks of a prompt of 20, of which it was asked for the keys 1, 4, 7. */
TEST(puts_of_a_spread_batch_may_be_several_batches) {
    struct store *s = spied_of(UINT64_C(4) << 20);
    struct store_chain c = {0};
    struct store_batch b;
    CHECK_EQ(util_put(s, name(1), 4096), TARN_OK);
    store_batch_begin(s, &b, &c, STORE_BATCH_LOOK, 20);
    store_batch_at(&b, 1, 20);
    look_hit(s, &b, name(1));
    store_batch_at(&b, 4, 20);
    look_miss(s, &b, name(4));
    uint32_t request = b.request;
    /* three that all of them have, twice: that is another request, of the same blocks */
    for (int i = 0; i < 2; i++) {
        store_batch_begin(s, &b, &c, STORE_BATCH_READ, 1);
        store_batch_at(&b, 1, 3);
        look_hit(s, &b, name(1));
        CHECK_EQ(store_object_depth(store_find(s, SPAN("k1"))), 1u);
        CHECK((b.request == request) == (i == 0));
    }
    store_batch_begin(s, &b, &c, STORE_BATCH_LOOK, 20);
    store_batch_at(&b, 1, 20);
    look_hit(s, &b, name(1));
    store_batch_at(&b, 4, 20);
    look_miss(s, &b, name(4));
    request = b.request;
    /* what was missing from block 2 on, six of them, in two requests */
    store_batch_begin(s, &b, &c, STORE_BATCH_PUT, 1);
    put_at(s, &b, 2, 6, 4);
    CHECK_EQ(b.request, request);
    store_batch_begin(s, &b, &c, STORE_BATCH_PUT, 2);
    put_at(s, &b, 3, 6, 5);
    put_at(s, &b, 5, 6, 7);
    CHECK_EQ(b.request, request);
    /* then six more, which begin at block 8 */
    store_batch_begin(s, &b, &c, STORE_BATCH_PUT, 2);
    put_at(s, &b, 1, 6, 9);
    put_at(s, &b, 4, 6, 12);
    CHECK_EQ(b.request, request);
    /* all others have come elsewhere: this is of another prompt */
    store_batch_begin(s, &b, &c, STORE_BATCH_PUT, 1);
    put_at(s, &b, 3, 9, 3);
    CHECK(b.request != request);
    store_destroy(&s);
}

/* A master of eight has few blocks of each prompt, and any of them may be its first. */
TEST(spread_puts_of_two_prompts_of_equal_length_are_two) {
    struct store *s = spied();
    struct store_chain c = {0};
    struct store_batch b;
    store_batch_begin(s, &b, &c, STORE_BATCH_LOOK, 20);
    store_batch_at(&b, 0, 20);
    look_miss(s, &b, "p0.0");
    uint32_t request = 0;
    for (uint32_t i = 0; i < 3; i++) { /* the others without a look-up of their own */
        store_batch_begin(s, &b, &c, STORE_BATCH_PUT, 2);
        for (uint32_t k = 0; k < 2; k++) {
            char key[32];
            snprintf(key, sizeof(key), "p%u.%u", i, k);
            store_batch_at(&b, 5 * i + k, 20);
            put_next(s, &b, key);
            CHECK_EQ(store_object_depth(store_find(s, span_str(key))), 5 * i + k);
        }
        CHECK(b.request != request);
        CHECK(i > 0 || b.request == c.request);
        request = b.request;
    }
    store_destroy(&s);
}

static void get_at(struct store *s, struct store_batch *b, struct store_chain *c, uint32_t from,
                   uint32_t n, uint32_t length) {
    store_batch_begin(s, b, c, STORE_BATCH_READ, n);
    for (uint32_t i = from; i < from + 2 * n; i += 2) {
        store_batch_at(b, i, length);
        look_hit(s, b, name((int)i));
        CHECK_EQ(store_object_depth(store_find(s, span_str(name((int)i)))), i);
    }
}

/* A master of two, with every other block: libtarn cuts a long get. */
TEST(gets_of_a_spread_batch_may_be_several_batches) {
    struct store *s = util_store("lru", 64, NULL, NULL);
    struct store_chain c = {0};
    struct store_batch b;
    for (int i = 0; i < 600; i += 2) CHECK_EQ(util_put(s, name(i), 64), TARN_OK);
    for (int looks = 0; looks < 2; looks++) {
        uint32_t request = 0;
        if (looks) {
            store_batch_begin(s, &b, &c, STORE_BATCH_LOOK, 300);
            for (uint32_t i = 0; i < 600; i += 2) {
                store_batch_at(&b, i, 600);
                look_hit(s, &b, name((int)i));
            }
            request = b.request;
        }
        get_at(s, &b, &c, 0, 128, 600);
        CHECK(!looks || b.request == request);
        request = b.request;
        get_at(s, &b, &c, 256, 128, 600);
        CHECK_EQ(b.request, request);
        get_at(s, &b, &c, 512, 44, 600); /* its last */
        CHECK_EQ(b.request, request);
        get_at(s, &b, &c, 0, 3, 600);
        CHECK(b.request != request);
        request = b.request;
        get_at(s, &b, &c, 10, 3, 600); /* nobody cuts one so short */
        CHECK(b.request != request);
        request = b.request;
        get_at(s, &b, &c, 2, 128, 600);
        get_at(s, &b, &c, 300, 3, 500); /* another prompt */
        CHECK(b.request != request + 1);
    }
    store_destroy(&s);
}

/* As in vLLM, whose scheduler looks up and whose workers put. */
TEST(puts_of_another_connection_go_on_with_a_look_up) {
    struct store *s = spied();
    struct store_chain scheduler = {0}, worker = {0};
    struct store_batch b;
    for (int i = 0; i < 2; i++) CHECK_EQ(util_put(s, name(i), 4096), TARN_OK);
    store_batch_begin(s, &b, &scheduler, STORE_BATCH_LOOK, 4);
    look_hit(s, &b, name(0));
    look_hit(s, &b, name(1));
    look_miss(s, &b, name(2));
    uint32_t request = b.request;
    CHECK(!util_read(s, "other")); /* another request meanwhile */
    store_batch_begin(s, &b, &worker, STORE_BATCH_PUT, 2);
    put_next(s, &b, name(2));
    put_next(s, &b, name(3));
    struct object *last = store_find(s, SPAN("k3"));
    CHECK_EQ(store_object_request(s, last), request);
    CHECK_EQ(store_object_depth(last), 3u);
    /* That was it: the next one that begins there is of another. */
    CHECK(store_remove(s, SPAN("k2")));
    store_batch_begin(s, &b, &worker, STORE_BATCH_PUT, 1);
    put_next(s, &b, name(2));
    CHECK(b.request != request);
    CHECK_EQ(store_object_depth(store_find(s, SPAN("k2"))), 0u);
    store_destroy(&s);
}

TEST(puts_of_a_session_go_on_with_each_other) {
    struct store *s = spied();
    struct store_chain scheduler = {0}, worker[2] = {0};
    struct store_batch b;
    uint32_t session = store_session(SPAN("a session")), request;
    CHECK_EQ(util_put(s, name(0), 4096), TARN_OK);
    store_batch_begin(s, &b, &scheduler, STORE_BATCH_LEASE, 4);
    b.session = session;
    look_hit(s, &b, name(0));
    look_miss(s, &b, name(1));
    request = b.request;
    CHECK(!util_read(s, "other"));
    for (int i = 1; i < 4; i++) /* one batch each: as they are computed */
        for (int w = 0; w < 2; w++) {
            store_batch_begin(s, &b, &worker[w], STORE_BATCH_PUT, 1);
            b.session = session;
            put_next(s, &b, name(i + 100 * w));
            CHECK_EQ(b.request, request);
            CHECK_EQ(b.base_depth, (uint32_t)i);
        }
    /* What it comes back with is found; it goes on behind that. A get of some of it is no end. */
    store_batch_begin(s, &b, &scheduler, STORE_BATCH_LEASE, 4);
    b.session = session;
    for (int i = 0; i < 4; i++) look_hit(s, &b, name(i));
    CHECK(b.request != request);
    request = b.request;
    store_batch_begin(s, &b, &scheduler, STORE_BATCH_READ, 2);
    b.session = session;
    for (int i = 0; i < 2; i++) look_hit(s, &b, name(i));
    store_batch_begin(s, &b, &worker[0], STORE_BATCH_PUT, 1);
    b.session = session;
    put_next(s, &b, name(4));
    CHECK(b.request == request && b.base_depth == 4);
    store_batch_begin(s, &b, &worker[0], STORE_BATCH_PUT, 1); /* of no session */
    put_next(s, &b, name(5));
    CHECK(b.request != request && b.base_depth == 0);
    store_destroy(&s);
}

TEST(a_policy_is_told_the_hints_of_a_batch) {
    struct store *s = spied();
    struct store_batch b;
    uint32_t session = store_session(SPAN("a session"));
    CHECK(session != 0 && session == store_session(SPAN("a session")));
    CHECK(session != store_session(SPAN("another")));
    for (int i = 0; i < 2; i++) {
        store_batch_begin(s, &b, NULL, STORE_BATCH_PUT, 1);
        if (i == 0) b.session = session, b.return_ms = 7000;
        put_next(s, &b, name(i));
    }
    CHECK(n_seen == 2 && seen[0].session == session && seen[0].return_ms == 7000);
    CHECK(seen[1].session == 0 && seen[1].return_ms == 0);
    store_batch_begin(s, &b, NULL, STORE_BATCH_READ, 1);
    b.session = session;
    look_hit(s, &b, name(1));
    CHECK(n_seen == 3 && seen[2].session == session && seen[2].return_ms == 0);
    store_destroy(&s);
}

TEST_MAIN()
