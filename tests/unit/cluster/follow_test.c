/* A cluster made of another one's records leads: its nodes come back with what they hold. */
#include "store/effect.h"
#include "store/figures.h"
#include "util.h"

static struct buf told;

static void note(void *arg, const void *record, size_t len) {
    (void)arg;
    buf_append(&told, record, len);
}

/* As util_begin, but heard, or listening. */
static void begin(bool following, uint32_t epoch) {
    log_set_level(LOG_LEVEL_WARNING);
    static const struct store_events events = {.awaits = util_awaits,
                                               .disk_wait = util_disk_wait,
                                               .fence = util_fence,
                                               .far_gone = util_far_gone,
                                               .segment_gone = util_segment_gone,
                                               .effect = note};
    struct store_config sc;
    struct cluster_config cc;
    store_config_init(&sc);
    sc.high_watermark = 1;
    util_now = 1000;
    util_store = store_create(&sc, &events, "lru", "offset", util_now, 5000000);
    if (following) store_follow(util_store);
    cluster_config_init(&cc);
    struct cluster_options options = {.store = util_store,
                                      .master_epoch = epoch,
                                      .machine = following ? "other" : "master",
                                      .mono_ms = util_now,
                                      .following = following,
                                      .effect = note};
    cluster_init(&options, &cc);
    store_tell(util_store, !following);
    cluster_tell(!following);
}

static tarn_status apply(struct span record, enum effect_kind kind, const char **why) {
    return kind < EFFECT_OTHERS ? store_effect_apply(util_store, record, why)
                                : cluster_effect_apply(record, why);
}

/* The next record of *data, which goes on behind it. false: there is none. */
static bool next_record(struct span *data, enum effect_kind *kind, struct span *record) {
    if (data->len == 0) return false;
    CHECK_EQ(effect_next(*data, kind, record), TARN_OK);
    *data = span_of(data->data + record->len, data->len - record->len);
    return true;
}

static void catch_up(struct span data) {
    enum effect_kind kind;
    struct span record;
    while (next_record(&data, &kind, &record)) {
        const char *why = "";
        tarn_status st = apply(record, kind, &why);
        if (st != TARN_OK) fprintf(stderr, "%s\n", why);
        CHECK_EQ(st, TARN_OK);
    }
}

static void lead(uint32_t epoch) {
    struct store_lead_options o = {.first_version = (uint64_t)epoch << 14,
                                   .alive = STORE_SEGMENT_ANY};
    struct store_lead_stats stats;
    store_lead(util_store, &o, &stats);
    cluster_lead(epoch, STORE_SEGMENT_ANY);
    util_run();
}

static void put(const char *key, uint64_t size) {
    struct store_batch b;
    struct store_put *p;
    unsigned budget = 1000;
    struct store_put_options o = {.replicas = 1, .host = STORE_HOST_NONE};
    store_batch_begin(util_store, &b, NULL, STORE_BATCH_PUT, 1);
    CHECK_EQ(store_put_start(util_store, &b, span_str(key), size, &o, 77, &budget, &p), TARN_OK);
    CHECK_EQ(store_put_end(util_store, span_str(key), store_put_token(p), 5, 0, NULL, 0, NULL),
             TARN_OK);
}

static bool has(const char *key) {
    return store_find(util_store, span_str(key)) != NULL;
}

/* What goes with the process is no change. */
static void silent_end(void) {
    store_tell(util_store, false);
    cluster_tell(false);
    util_end();
}

static void two_nodes(struct util_node *a, struct util_node *b) {
    util_up_with(a, 1, 11, 16, 0xa1);
    util_up_with(b, 2, 12, 16, 0xb2);
    for (int i = 0; i < 20; i++) {
        char key[16];
        snprintf(key, sizeof(key), "k%d", i);
        put(key, 4096);
    }
}

static void after(bool by_snapshot) {
    struct util_node a = {.name = "na", .machine = "machine-a"},
                     b = {.name = "nb", .machine = "master"};
    begin(false, 100);
    two_nodes(&a, &b);
    CHECK_EQ(cluster_node_maintenance(b.n, true), TARN_OK);
    if (by_snapshot) {
        struct store_snapshot x = {0};
        buf_clear(&told);
        unsigned budget = 1;
        (void)store_snapshot_step(util_store, &x, note, NULL, &budget); /* the frame */
        cluster_snapshot(note, NULL);
        for (budget = 10; !store_snapshot_step(util_store, &x, note, NULL, &budget);) budget = 10;
    }
    uint32_t id = 0, epoch = 0;
    struct store_segment_info info;
    CHECK(store_segment_by_name(util_store, span_str("na.0"), &info));
    id = info.id;
    epoch = info.epoch;
    silent_end();

    struct buf stream = told;
    told = (struct buf){0};
    begin(true, 1);
    catch_up(span_of(stream.data, stream.len));
    buf_free(&stream);
    CHECK_EQ(store_count(util_store), 20);
    CHECK(has("k0")); /* as the master saw it last */
    /* whoever leads now is above who led before */
    if (by_snapshot) CHECK(cluster_next_epoch() > 100);
    lead(200);
    CHECK(cluster_next_epoch() > 200);
    CHECK(!has("k0")); /* nobody is there */
    CHECK(store_is_away(util_store, SPAN("k0")) && !store_is_away(util_store, SPAN("nothing")));
    CHECK(cluster_awaits_nodes());
    CHECK_EQ(store_count(util_store), 20);
    struct store_room room;
    store_get_room(util_store, &room);
    CHECK_EQ(room.up, 0);
    CHECK(room.others > 0);
    /* One comes back with its content, one with new memory. */
    CHECK_EQ(util_join_as(&a, 1, 21), TARN_OK);
    struct cluster_mounted m = util_mount(&a, "na.0", STORE_TIER_MEMORY, 16 * 4096, 0xa1);
    CHECK_EQ(m.kept, 1);
    CHECK_EQ(m.id, id);
    CHECK_EQ(m.epoch, epoch);
    CHECK_EQ(cluster_node_up(a.n), TARN_OK);
    CHECK_EQ(util_join_as(&b, 9, 22), TARN_OK);
    m = util_mount(&b, "nb.0", STORE_TIER_MEMORY, 16 * 4096, 0xcc);
    CHECK_EQ(m.kept, 0);
    CHECK(m.epoch > epoch);
    CHECK_EQ(cluster_node_up(b.n), TARN_OK);
    struct cluster_node_info ni;
    cluster_node_get(b.n, &ni);
    CHECK(ni.maintenance);
    CHECK(!cluster_awaits_nodes());
    util_run();
    unsigned there = 0;
    for (int i = 0; i < 20; i++) {
        char key[16];
        snprintf(key, sizeof(key), "k%d", i);
        there += has(key);
    }
    CHECK_EQ(there, store_count(util_store));
    CHECK(there > 0 && there < 20);
    util_tick(20000);
    CHECK_EQ(util_join_as(&a, 1, 31), TARN_OK);
    silent_end();
    buf_free(&told);
}

TEST(nodes_come_back_to_another_master) {
    after(false);
}

TEST(from_a_snapshot) {
    after(true);
}

TEST(nodes_that_never_come_back_are_forgotten) {
    struct util_node a = {.name = "na", .machine = "machine-a"},
                     b = {.name = "nb", .machine = "machine-b"};
    begin(false, 100);
    two_nodes(&a, &b);
    silent_end();
    struct buf stream = told;
    told = (struct buf){0};
    begin(true, 1);
    catch_up(span_of(stream.data, stream.len));
    buf_free(&stream);
    lead(200);
    util_tick(3600001);
    CHECK(cluster_node_find(span_str("na")) == NULL);
    CHECK_EQ(store_count(util_store), 0);
    CHECK_EQ(store_segment_count(util_store), 0);
    silent_end();
    buf_free(&told);
}

/* The stream may end, or be looked at, behind any record: also between the end of a node and those
 * of its segments. */
TEST(figures_behind_every_record) {
    struct util_node a = {.name = "na", .machine = "machine-a"},
                     b = {.name = "nb", .machine = "machine-b"};
    struct cluster_figures f;
    begin(false, 100);
    two_nodes(&a, &b);
    cluster_node_leave(a.n);
    util_run();
    util_tick(20000);
    util_tick(3600001);
    CHECK(cluster_node_find(span_str("na")) == NULL);
    silent_end();
    struct buf stream = told;
    told = (struct buf){0};
    begin(true, 1);
    uint64_t most = 0;
    struct span data = span_of(stream.data, stream.len), record;
    enum effect_kind kind;
    const char *why;
    while (next_record(&data, &kind, &record)) {
        CHECK_EQ(apply(record, kind, &why), TARN_OK);
        cluster_get_figures(&f);
        most = max_u64(most, f.nodes);
    }
    CHECK_EQ(most, 2);
    buf_free(&stream);
    silent_end();
    buf_free(&told);
}

/* A false or damaged stream: nothing is kept that could not go again. */
TEST(segments_that_the_books_do_not_know_are_refused) {
    struct util_node a = {.name = "na", .machine = "machine-a"},
                     b = {.name = "nb", .machine = "machine-b"};
    begin(false, 100);
    two_nodes(&a, &b);
    buf_clear(&told);
    cluster_snapshot(note, NULL);
    silent_end();
    struct buf stream = told;
    told = (struct buf){0};
    begin(true, 1);
    unsigned refused = 0;
    struct span data = span_of(stream.data, stream.len), record;
    enum effect_kind kind;
    const char *why;
    while (next_record(&data, &kind, &record)) refused += apply(record, kind, &why) == TARN_EPROTO;
    CHECK_EQ(refused, 2);
    buf_free(&stream);
    silent_end();
    buf_free(&told);
}

TEST(damaged_records) {
    struct util_node a = {.name = "na", .machine = "machine-a"},
                     b = {.name = "nb", .machine = "machine-b"};
    struct rng r;
    rng_seed(&r, 3);
    begin(false, 100);
    two_nodes(&a, &b);
    cluster_node_leave(a.n);
    silent_end();
    struct buf stream = told;
    told = (struct buf){0};
    for (int round = 0; round < 1500; round++) {
        begin(true, 1);
        struct span data = span_of(stream.data, stream.len), record;
        enum effect_kind kind;
        struct buf one = {0};
        while (next_record(&data, &kind, &record)) {
            const char *why;
            buf_clear(&one);
            buf_append(&one, record.data, record.len);
            if (rng_below(&r, 4) == 0)
                one.data[5 + rng_below(&r, one.len - 5)] ^= (char)(1u << rng_below(&r, 8));
            if (rng_below(&r, 16) == 0) one.len -= rng_below(&r, one.len - 5);
            (void)apply(span_of(one.data, one.len), kind, &why);
        }
        lead(200);
        buf_free(&one);
        silent_end();
    }
    buf_free(&stream);
    buf_free(&told);
}

static unsigned visible(void) {
    unsigned n = 0;
    for (int i = 0; i < 20; i++) {
        char key[16];
        snprintf(key, sizeof(key), "k%d", i);
        n += has(key);
    }
    return n;
}

/* Whoever led, and follows others that never come: the nodes are as they were told of. */
TEST(there_and_back) {
    struct util_node a = {.name = "na", .machine = "machine-a"},
                     b = {.name = "nb", .machine = "master"};
    begin(false, 100);
    two_nodes(&a, &b);
    CHECK_EQ(cluster_node_drain(b.n, true), TARN_OK);
    util_run(); /* it has tasks */
    struct store_segment_info info;
    CHECK(store_segment_by_name(util_store, span_str("na.0"), &info));
    struct store_put *put;
    CHECK_EQ(util_open_put("open", 4096, 1, "na.0", 55, &put), TARN_OK);
    store_session_closed(util_store, 55);
    cluster_session_closed(a.session);
    util_now += store_config(util_store)->put_timeout_ms + 60000;
    store_tick(util_store, util_now, 5000000 + util_now);
    unsigned budget = 1000;
    while (store_background(util_store, &budget)) budget = 1000; /* a fence */
    struct cluster_figures f;
    unsigned there = visible();
    CHECK(there > 0 && there == store_count(util_store));
    cluster_get_figures(&f);
    CHECK(f.tasks > 0 && f.drains == 1 && f.node_fences_pending == 1);
    buf_clear(&told);
    cluster_step_down();
    store_step_down(util_store);
    CHECK_EQ(told.len, 0);
    CHECK_EQ(visible(), there);
    CHECK_EQ(cluster_next_ms(777), 777);
    cluster_session_closed(a.session);
    cluster_session_closed(b.session);
    /* Without words of others nothing happens. */
    util_now += 100 * UINT64_C(86400000);
    cluster_tick(util_now);
    store_tick(util_store, util_now, 5000000 + util_now);
    CHECK(!cluster_background(&budget));
    CHECK_EQ(visible(), there);
    lead(200);
    CHECK(visible() == 0 && store_count(util_store) == there && cluster_awaits_nodes());
    util_up_with(&a, 2, 21, 16, 0xa1);
    CHECK(util_there(info.id, info.epoch));
    util_up_with(&b, 3, 22, 16, 0xb2);
    util_run();
    CHECK(!cluster_awaits_nodes() && util_state(info.id) == SEGMENT_UP);
    CHECK_EQ(visible(), there);
    cluster_get_figures(&f);
    CHECK_EQ(f.drains, 1); /* it is still wanted */
    silent_end();
}

TEST_MAIN()
