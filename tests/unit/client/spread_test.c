/* What is sent with a batch of which other masters have other keys, and that nothing is where there
 * is one master. */
#include "client/lookup.h"
#include "pool.h"

static char bytes[8];
static tarn_item items[3];
static const uint32_t at[3] = {2, 5, 11};
static const struct call_spread spread = {at, 12};

static void items_make(void) {
    for (unsigned i = 0; i < 3; i++)
        items[i] =
            (tarn_item){.key = &"abc"[i], .key_len = 1, .buffer = &bytes[i], .buffer_len = 1};
}

static void put_them(struct call_spread of) {
    tarn_put_options o;
    tarn_put_options_init(&o);
    items_make();
    struct put_call p = {
        .client = client, .items = items, .n = 3, .o = &o, .spread = of, .deadline = DEADLINE_NONE};
    client_put_begin(&p, false);
    CHECK_EQ(client_put_end(&p), TARN_OK);
    for (unsigned i = 0; i < 3; i++) CHECK_EQ(items[i].status, TARN_OK);
}

static void get_them(struct call_spread of) {
    const struct get_options o = {.deadline = DEADLINE_NONE, .lease_ms = 1000, .spread = of};
    items_make();
    CHECK_EQ(client_get(client, items, 3, &o), TARN_OK);
    for (unsigned i = 0; i < 3; i++) CHECK_EQ(items[i].status, TARN_OK);
}

TEST(parts_tell_their_places) {
    begin("");
    put_them(spread);
    CHECK_EQ(pool_count("MPUTSTART 3 a 1 b 1 c 1 AT 2 5 11 OF 12 PACKED BATCH"), 1);
    get_them(spread);
    CHECK_EQ(pool_count("MGETREPLICAS 3 a b c AT 2 5 11 OF 12 LEASE 1000 *"), 1);
    end();
}

/* In several requests, each those of its own keys. */
TEST(parts_of_many_keys) {
    begin("batch_keys=2");
    put_them(spread);
    CHECK_EQ(pool_count("MPUTSTART 2 a 1 b 1 AT 2 5 OF 12 PACKED BATCH"), 1);
    CHECK_EQ(pool_count("MPUTSTART 1 c 1 AT 11 OF 12 PACKED BATCH"), 1);
    get_them(spread);
    CHECK_EQ(pool_count("MGETREPLICAS 2 a b AT 2 5 OF 12 LEASE 1000 *"), 1);
    CHECK_EQ(pool_count("MGETREPLICAS 1 c AT 11 OF 12 LEASE 1000 *"), 1);
    end();
}

TEST(a_mover_tells_depths) {
    tarn_put_options o;
    begin("");
    tarn_put_options_init(&o);
    o.depths = at;
    items_make();
    CHECK_EQ(tarn_put_many(client, items, 3, &o, NULL), TARN_OK);
    CHECK_EQ(pool_count("MPUTSTART 3 a 1 b 1 c 1 AT 2 5 11 OF 12 PACKED BATCH"), 1);
    end();
}

/* One master is asked as ever. */
TEST(a_plain_client_tells_none) {
    tarn_put_options o;
    size_t n;
    const tarn_key keys[] = {{"a", 1}, {"b", 1}, {"c", 1}};
    begin("");
    tarn_put_options_init(&o);
    items_make();
    CHECK_EQ(tarn_put_many(client, items, 3, &o, NULL), TARN_OK);
    CHECK_EQ(tarn_get_many(client, items, 3, NULL, NULL), TARN_OK);
    CHECK_EQ(tarn_prefix_length(client, keys, 3, NULL, &n), TARN_OK);
    CHECK_EQ(n, 3);
    CHECK_EQ(pool_count("MPUTSTART 3 a 1 b 1 c 1 PACKED BATCH"), 1);
    CHECK_EQ(pool_count("PREFIXLEN 3 a b c"), 1);
    CHECK_EQ(pool_count("* AT *"), 0);
    end();
}

TEST_MAIN()
