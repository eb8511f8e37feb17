/* Prefixes of models with several KV groups: what libtarn asks, what it makes of each answer, and
 * of those that no server should give. tests/python/kv_groups_test.py has the real server. */
#include "../test.h"

#include "../scripted.h"
#include "tarn.h"

static struct scripted server;
static tarn_client *client;

/* Hash i is of (i + 1) * 16 tokens: 8 of them, 128 tokens. */
static const tarn_key hashes[] = {{"h0", 2}, {"h1", 2}, {"h2", 2}, {"h3", 2},
                                  {"h4", 2}, {"h5", 2}, {"h6", 2}, {"h7", 2}};
static const tarn_kv_group groups[] = {
    {"f@", 2, TARN_KV_FULL, 0, 32, 16, 0},
    {"w@", 2, TARN_KV_WINDOW, 1, 16, 0, 40},
    {"s@", 2, TARN_KV_STATE, 0, 64, 16, 0},
};
static tarn_kv_query query;
static uint64_t tokens;
static tarn_kv_parts parts[3];

static void begin(void) {
    char url[120];
    scripted_start(&server);
    scripted_rule(&server, "INFO server", 1000000, "$18\r\ntarn_version:0.1.0\r\n");
    snprintf(url, sizeof(url), "%s&timeout_ms=20000&retries=1&max_lanes=1", server.url);
    CHECK_EQ(tarn_connect(url, NULL, &client), TARN_OK);
    query = (tarn_kv_query){.size = sizeof(query),
                            .hashes = hashes,
                            .n_hashes = 8,
                            .unit = 16,
                            .align = 16,
                            .groups = groups,
                            .n_groups = 3};
    tokens = 77;
    memset(parts, 0x55, sizeof(parts));
}

static void end(void) {
    tarn_close(&client);
    scripted_stop(&server);
}

static void check_parts(size_t g, uint64_t first, uint64_t blocks, uint64_t tail) {
    CHECK_EQ(parts[g].first, first);
    CHECK_EQ(parts[g].blocks, blocks);
    CHECK_EQ(parts[g].tail, tail);
}

/* --- look-ups --- */

#define ASKED                                                                                      \
    "8 h0 h1 h2 h3 h4 h5 h6 h7 UNIT 16 ALIGN 16 "                                                  \
    "KVGROUPS 3 f@ FULL 32 16 0 0 w@ WINDOW 16 16 40 1 s@ STATE 64 16 0 0"
/* 80 tokens: blocks 0 and 1 and half of block 2; blocks 2, 3, 4; a state inside block 1. */
#define RIGHT                                                                                      \
    "*2\r\n:80\r\n*3\r\n*3\r\n:0\r\n:2\r\n:80\r\n*3\r\n:2\r\n:3\r\n:0\r\n*3\r\n:0\r\n:0\r\n:"      \
    "80\r\n"

TEST(one_round_trip) {
    begin();
    tarn_call call;
    tarn_call_init(&call);
    call.lease_ms = 500;
    call.wait_ms = 20;
    scripted_rule(&server, "PREFIXLEN " ASKED " LEASE 500 WAIT 20", 1, RIGHT);
    CHECK_EQ(tarn_kv_prefix(client, &query, &call, &tokens, parts), TARN_OK);
    CHECK_EQ(tokens, 80);
    check_parts(0, 0, 2, 80);
    check_parts(1, 2, 3, 0);
    check_parts(2, 0, 0, 80);
    scripted_rule(&server, "PREFIXLEN " ASKED, 1, RIGHT);
    CHECK_EQ(tarn_kv_prefix(client, &query, NULL, &tokens, parts), TARN_OK);
    CHECK_EQ(scripted_count(&server, "PREFIXLEN *"), 2);
    end();
}

TEST(no_hashes_no_question) {
    begin();
    query.n_hashes = 0;
    CHECK_EQ(tarn_kv_prefix(client, &query, NULL, &tokens, parts), TARN_OK);
    CHECK_EQ(tokens, 0);
    check_parts(2, 0, 0, 0);
    CHECK_EQ(scripted_count(&server, "PREFIXLEN *"), 0);
    end();
}

TEST(a_look_up_is_repeated_after_a_lost_connection) {
    begin();
    scripted_rule(&server, "PREFIXLEN *", 1, "");
    scripted_rule(&server, "PREFIXLEN *", 1, "-TRYAGAIN 1 a failover\r\n");
    scripted_rule(&server, "PREFIXLEN *", 1, RIGHT);
    CHECK_EQ(tarn_kv_prefix(client, &query, NULL, &tokens, parts), TARN_OK);
    CHECK_EQ(tokens, 80);
    CHECK_EQ(scripted_count(&server, "PREFIXLEN *"), 3);
    end();
}

TEST(a_try_that_the_deadline_cuts_off_names_the_reason_before_it) {
    begin();
    tarn_call call;
    tarn_call_init(&call);
    call.timeout_ms = 300;
    scripted_rule(&server, "PREFIXLEN *", 1, "-TRYAGAIN 1 a failover\r\n");
    scripted_rule(&server, "PREFIXLEN *", 1, "*2\r\n"); /* and no more */
    CHECK_EQ(tarn_kv_prefix(client, &query, &call, &tokens, parts), TARN_ETIMEOUT);
    CHECK(strstr(tarn_last_error(), "the try before said: ") != NULL);
    CHECK(strstr(tarn_last_error(), "a failover") != NULL);
    end();
}

TEST(what_cannot_be_asked) {
    begin();
    tarn_kv_group g[3];
    memcpy(g, groups, sizeof(g));
    query.groups = g;
#define REFUSED(change)                                                                            \
    do {                                                                                           \
        memcpy(g, groups, sizeof(g));                                                              \
        change;                                                                                    \
        CHECK_EQ(tarn_kv_prefix(client, &query, NULL, &tokens, parts), TARN_EINVAL);               \
    } while (0)
    REFUSED(g[1].kind = 0);
    REFUSED(g[1].kind = 4);
    REFUSED(g[2].block = 0);
    REFUSED(g[2].unit = 24);
    REFUSED(g[0].unit = 8);
    REFUSED(query.align = 24);
    query.align = 16;
    REFUSED(g[0].name_len = 0);
    REFUSED(g[0].name = NULL);
    CHECK(strstr(tarn_last_error(), "KV group 1 of 3: it has no name") != NULL);
    REFUSED(query.unit = 0);
    query.unit = 16;
    REFUSED(query.align = 0);
    query.align = 16;
    REFUSED(query.n_groups = 0);
    query.n_groups = 3;
    REFUSED(query.size = 0);
    query.size = sizeof(query);
    CHECK_EQ(scripted_count(&server, "PREFIXLEN *"), 0);
    CHECK_EQ(tokens, 77);
    scripted_rule(&server, "PREFIXLEN *", 1, "-LIMIT too many KV groups\r\n");
    memcpy(g, groups, sizeof(g));
    CHECK_EQ(tarn_kv_prefix(client, &query, NULL, &tokens, parts), TARN_ELIMIT);
    end();
}

/* --- answers that no server should give --- */

static const char *const nonsense[] = {
    ":5\r\n",
    "$-1\r\n",
    "+OK\r\n",
    "*0\r\n",
    "*1\r\n:80\r\n",
    "*2\r\n:80\r\n*0\r\n",
    "*2\r\n:80\r\n:3\r\n",
    "*2\r\n:80\r\n*3\r\n:1\r\n:2\r\n:3\r\n",
    "*2\r\n:80\r\n*2\r\n*3\r\n:0\r\n:2\r\n:80\r\n*3\r\n:2\r\n:3\r\n:0\r\n",
    /* tokens that were not asked for, or are not aligned, or none at all */
    "*2\r\n:144\r\n*3\r\n*3\r\n:0\r\n:4\r\n:144\r\n*3\r\n:6\r\n:3\r\n:0\r\n*3\r\n:0\r\n:0\r\n:"
    "144\r\n",
    "*2\r\n:81\r\n*3\r\n*3\r\n:0\r\n:2\r\n:80\r\n*3\r\n:2\r\n:3\r\n:0\r\n*3\r\n:0\r\n:0\r\n:80\r\n",
    "*2\r\n:-16\r\n*3\r\n*3\r\n:0\r\n:0\r\n:0\r\n*3\r\n:0\r\n:0\r\n:0\r\n*3\r\n:0\r\n:0\r\n:0\r\n",
    "*2\r\n:9223372036854775807\r\n*3\r\n*3\r\n:0\r\n:2\r\n:80\r\n*3\r\n:2\r\n:3\r\n:0\r\n*3\r\n:"
    "0\r\n:"
    "0\r\n:80\r\n",
    /* more than the kind needs: four blocks of a window of 40 and two states, for which the caller
     * may have no memory; and blocks that do not reach the boundary */
    "*2\r\n:80\r\n*3\r\n*3\r\n:0\r\n:2\r\n:80\r\n*3\r\n:1\r\n:4\r\n:0\r\n*3\r\n:0\r\n:0\r\n:80\r\n",
    "*2\r\n:128\r\n*3\r\n*3\r\n:0\r\n:4\r\n:0\r\n*3\r\n:5\r\n:3\r\n:0\r\n*3\r\n:0\r\n:2\r\n:0\r\n",
    "*2\r\n:80\r\n*3\r\n*3\r\n:0\r\n:2\r\n:80\r\n*3\r\n:1\r\n:3\r\n:0\r\n*3\r\n:0\r\n:0\r\n:80\r\n",
    "*2\r\n:80\r\n*3\r\n*3\r\n:0\r\n:2\r\n:80\r\n*3\r\n:2\r\n:3\r\n:0\r\n*3\r\n:0\r\n:1\r\n:80\r\n",
    /* blocks behind the boundary, and sums that overflow */
    "*2\r\n:80\r\n*3\r\n*3\r\n:0\r\n:3\r\n:80\r\n*3\r\n:2\r\n:3\r\n:0\r\n*3\r\n:0\r\n:0\r\n:80\r\n",
    "*2\r\n:80\r\n*3\r\n*3\r\n:0\r\n:2\r\n:80\r\n*3\r\n:3\r\n:3\r\n:0\r\n*3\r\n:0\r\n:0\r\n:80\r\n",
    "*2\r\n:80\r\n*3\r\n*3\r\n:0\r\n:2\r\n:80\r\n*3\r\n:9223372036854775807\r\n:"
    "9223372036854775807\r\n:0\r\n*3\r\n:0\r\n:0\r\n:80\r\n",
    "*2\r\n:0\r\n*3\r\n*3\r\n:0\r\n:1\r\n:0\r\n*3\r\n:0\r\n:0\r\n:0\r\n*3\r\n:0\r\n:0\r\n:0\r\n",
    /* tails in a block that is whole, in another one, between two places, and behind the hashes */
    "*2\r\n:64\r\n*3\r\n*3\r\n:0\r\n:2\r\n:80\r\n*3\r\n:1\r\n:3\r\n:0\r\n*3\r\n:0\r\n:1\r\n:0\r\n",
    "*2\r\n:80\r\n*3\r\n*3\r\n:0\r\n:2\r\n:64\r\n*3\r\n:2\r\n:3\r\n:0\r\n*3\r\n:0\r\n:0\r\n:80\r\n",
    "*2\r\n:80\r\n*3\r\n*3\r\n:0\r\n:2\r\n:112\r\n*3\r\n:2\r\n:3\r\n:0\r\n*3\r\n:0\r\n:0\r\n:"
    "80\r\n",
    "*2\r\n:80\r\n*3\r\n*3\r\n:0\r\n:2\r\n:81\r\n*3\r\n:2\r\n:3\r\n:0\r\n*3\r\n:0\r\n:0\r\n:80\r\n",
    "*2\r\n:80\r\n*3\r\n*3\r\n:0\r\n:2\r\n:80\r\n*3\r\n:2\r\n:3\r\n:80\r\n*3\r\n:0\r\n:0\r\n:"
    "80\r\n",
    "*2\r\n:80\r\n*3\r\n*3\r\n:0\r\n:2\r\n:80\r\n*3\r\n:2\r\n:3\r\n:0\r\n*3\r\n:0\r\n:0\r\n:-"
    "80\r\n",
    "*2\r\n:80\r\n*3\r\n*2\r\n:0\r\n:2\r\n*3\r\n:2\r\n:3\r\n:0\r\n*3\r\n:0\r\n:0\r\n:80\r\n",
    "*2\r\n:80\r\n*3\r\n*3\r\n$1\r\n0\r\n:2\r\n:80\r\n*3\r\n:2\r\n:3\r\n:0\r\n*3\r\n:0\r\n:0\r\n:"
    "80\r\n",
};

TEST(guarantee_6_parts_that_were_not_asked_for) {
    begin();
    for (size_t i = 0; i < sizeof(nonsense) / sizeof(nonsense[0]); i++) {
        scripted_rule(&server, "PREFIXLEN *", 1, nonsense[i]);
        CHECK_EQ(tarn_kv_prefix(client, &query, NULL, &tokens, parts), TARN_EPROTO);
    }
    /* the block that the boundary is in does not end within the hashes */
    query.n_hashes = 5;
    scripted_rule(
        &server, "PREFIXLEN *", 1,
        "*2\r\n:80\r\n*3\r\n*3\r\n:0\r\n:2\r\n:96\r\n*3\r\n:2\r\n:3\r\n:0\r\n*3\r\n:0\r\n:"
        "0\r\n:80\r\n");
    CHECK_EQ(tarn_kv_prefix(client, &query, NULL, &tokens, parts), TARN_EPROTO);
    CHECK_EQ(tokens, 77);
    check_parts(0, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555);
    end();
}

/* --- gets --- */

/* A value of two bytes that lies in the books. */
#define VALUE(text) "*6\r\n:9\r\n:2\r\n:0\r\n:-1\r\n*0\r\n$2\r\n" text "\r\n"
/* 32 tokens: block 0, blocks 0 and 1. */
#define PARTS                         "*2\r\n*3\r\n:0\r\n:1\r\n:0\r\n*3\r\n:0\r\n:2\r\n:0\r\n"
#define LOCATED(first, second, third) "*3\r\n:32\r\n" PARTS "*3\r\n" first second third

static struct placing {
    tarn_item items[3];
    char bytes[3][8];
    size_t n;
    unsigned calls;
    bool refuses;
} placing;

static tarn_item *place(void *arg, uint64_t boundary, const tarn_kv_parts *p, size_t n) {
    struct placing *to = arg;
    to->calls++;
    to->n = n;
    if (to->refuses || boundary != 32 || p[1].blocks != 2 || n != 3) return NULL;
    for (size_t i = 0; i < n; i++)
        to->items[i] = (tarn_item){.buffer = to->bytes[i], .buffer_len = sizeof(to->bytes[i])};
    return to->items;
}

static tarn_status kv_get(size_t *failed_p) {
    placing = (struct placing){.refuses = placing.refuses};
    query.n_groups = 2;
    return tarn_kv_get(client, &query, NULL, place, &placing, &tokens, parts, failed_p);
}

TEST(a_get_is_one_round_trip) {
    begin();
    size_t failed = 7;
    scripted_rule(&server, "MGETREPLICAS 8 h0 * KVGROUPS 2 f@ * w@ * LEASE 5000 PACKED", 1,
                  LOCATED(VALUE("aa"), VALUE("bb"), VALUE("cc")));
    CHECK_EQ(kv_get(&failed), TARN_OK);
    CHECK_EQ(failed, 0);
    CHECK_EQ(tokens, 32);
    check_parts(0, 0, 1, 0);
    check_parts(1, 0, 2, 0);
    CHECK_EQ(placing.calls, 1);
    for (size_t i = 0; i < 3; i++) {
        CHECK_EQ(placing.items[i].status, TARN_OK);
        CHECK_EQ(placing.items[i].got, 2);
        CHECK_EQ(placing.bytes[i][1], "abc"[i]);
        CHECK(placing.items[i].key == NULL);
    }
    CHECK_EQ(scripted_count(&server, "MGETREPLICAS *") + scripted_count(&server, "PREFIXLEN *"), 1);
    end();
}

TEST(a_part_that_went_is_missing_and_one_for_later_is_asked_for_by_its_key) {
    begin();
    size_t failed = 7;
    scripted_rule(&server, "MGETREPLICAS 8 *", 1,
                  LOCATED("$-1\r\n", VALUE("bb"), "-TRYAGAIN 1 soon\r\n"));
    scripted_rule(&server, "MGETREPLICAS 1 w@h1 *", 1, "*1\r\n" VALUE("dd"));
    CHECK_EQ(kv_get(&failed), TARN_OK);
    CHECK_EQ(failed, 1);
    CHECK_EQ(placing.items[0].status, TARN_ENOTFOUND);
    CHECK_EQ(placing.items[1].status, TARN_OK);
    CHECK_EQ(placing.items[2].status, TARN_OK);
    CHECK(memcmp(placing.bytes[2], "dd", 2) == 0);
    end();
}

TEST(nothing_is_placed_without_a_boundary_or_against_the_callers_will) {
    begin();
    size_t failed = 7;
    scripted_rule(&server, "MGETREPLICAS *", 1,
                  "*3\r\n:0\r\n*2\r\n*3\r\n:0\r\n:0\r\n:0\r\n*3\r\n:0\r\n:0\r\n:0\r\n*0\r\n");
    CHECK_EQ(kv_get(&failed), TARN_OK);
    CHECK_EQ(placing.calls, 0);
    CHECK_EQ(tokens, 0);
    CHECK_EQ(failed, 0);
    placing.refuses = true;
    scripted_rule(&server, "MGETREPLICAS *", 1, LOCATED(VALUE("aa"), VALUE("bb"), VALUE("cc")));
    CHECK_EQ(kv_get(NULL), TARN_ECANCELED);
    CHECK_EQ(placing.calls, 1);
    placing.refuses = false;
    CHECK_EQ(tarn_kv_get(client, &query, NULL, NULL, NULL, &tokens, parts, NULL), TARN_EINVAL);
    end();
}

/* A lease that is given before the wait is over would be too. */
TEST(a_get_waits_before_it_takes_a_lease) {
    begin();
    tarn_call call;
    tarn_call_init(&call);
    call.wait_ms = 40;
    query.n_groups = 2;
    scripted_rule(&server, "PREFIXLEN *", 1,
                  "*2\r\n:0\r\n*2\r\n*3\r\n:0\r\n:0\r\n:0\r\n*3\r\n:0\r\n:0\r\n:0\r\n");
    scripted_rule(&server, "MGETREPLICAS *", 1, LOCATED(VALUE("aa"), VALUE("bb"), VALUE("cc")));
    placing = (struct placing){0};
    CHECK_EQ(tarn_kv_get(client, &query, &call, place, &placing, &tokens, parts, NULL), TARN_OK);
    CHECK_EQ(scripted_count(&server, "PREFIXLEN * WAIT 40"), 1);
    CHECK_EQ(scripted_count(&server, "PREFIXLEN *LEASE*"), 0);
    CHECK_EQ(scripted_count(&server, "MGETREPLICAS *WAIT*"), 0);
    CHECK_EQ(tokens, 32);
    end();
}

TEST(guarantee_6_places_that_were_not_asked_for) {
    static const char *const answers[] = {
        "*2\r\n:32\r\n" PARTS,
        "*3\r\n:32\r\n" PARTS "*0\r\n",
        "*3\r\n:32\r\n" PARTS "*2\r\n$-1\r\n$-1\r\n",
        "*3\r\n:32\r\n" PARTS "*4\r\n$-1\r\n$-1\r\n$-1\r\n$-1\r\n",
        "*3\r\n:32\r\n" PARTS ":3\r\n",
        "*3\r\n:32\r\n" PARTS "$3\r\nabc\r\n",
    };
    begin();
    for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
        scripted_rule(&server, "MGETREPLICAS *", 1, answers[i]);
        CHECK_EQ(kv_get(NULL), TARN_EPROTO);
        CHECK_EQ(placing.calls, 0);
    }
    for (size_t i = 0; i < sizeof(nonsense) / sizeof(nonsense[0]); i++) {
        scripted_rule(&server, "MGETREPLICAS *", 1, nonsense[i]);
        CHECK_EQ(kv_get(NULL), TARN_EPROTO);
    }
    /* what lies where makes no sense: of one part */
    size_t failed = 0;
    scripted_rule(&server, "MGETREPLICAS *", 1, LOCATED(":5\r\n", VALUE("bb"), "$3\r\nxyz\r\n"));
    CHECK_EQ(kv_get(&failed), TARN_OK);
    CHECK_EQ(failed, 2);
    CHECK_EQ(placing.items[0].status, TARN_EPROTO);
    CHECK_EQ(placing.items[1].status, TARN_OK);
    CHECK_EQ(placing.items[2].status, TARN_EPROTO);
    end();
}

TEST_MAIN()
