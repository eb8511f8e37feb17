/* Engines' events: what feed.c makes of a batch, and the way from an engine's sockets to the index,
 * with a loop that turns when it is told to. */
#include "../kvevents/engine.h"
#include "../test.h"
#include "base/assert.h"
#include "base/clock.h"
#include "conductor/conductor.h"
#include "conductor/streams.h"
#include "fake.h"
#include "route/hash.h"

#include <unistd.h>

static const char *const small[] = {"ranks", "8", "requests", "16", "index-size", "16mb", NULL};

/* --- batches --- */

#define BLOCKS_MAX 8192u
static struct route *route;
static struct feed feed;
static uint64_t own[BLOCKS_MAX], local[BLOCKS_MAX];

static void feed_begin(const char *lora, const char *salt) {
    struct route_options options = route_options_default;
    options.workers_max = 4;
    options.index_bytes = 16u << 20;
    route = route_create(&options);
    struct route_engine_spec spec = {.id = SPAN("e"),
                                     .model = SPAN("m"),
                                     .lora = span_str(lora),
                                     .salt = span_str(salt),
                                     .block_tokens = 16};
    CHECK_EQ(route_engine_add(route, &spec, 1), TARN_OK);
    feed_init(&feed, route_index(route), route_worker_holder(route, 0), &spec);
    for (size_t i = 0; i < BLOCKS_MAX; i++) {
        own[i] = 7 * i + 1;
        local[i] = 13 * i + 5;
    }
}
static void feed_end(void) {
    route_check(route);
    route_destroy(&route);
}

static struct kvevents_event stored(size_t from, size_t end) {
    return (struct kvevents_event){.kind = KVEVENTS_STORED,
                                   .spec = KVEVENTS_SPEC_FULL,
                                   .block = 16,
                                   .has_parent = from > 0,
                                   .parent = from > 0 ? own[from - 1] : 0,
                                   .n = end - from,
                                   .own = own + from,
                                   .local = local + from,
                                   .lora = SPAN(""),
                                   .salt = SPAN("")};
}
static const struct kvevents_event cleared = {.kind = KVEVENTS_CLEARED};

/* Returns in how many pieces. */
static unsigned take(const struct kvevents_event *events, size_t n) {
    struct kvevents_batch b = {.rank = -1, .n = n, .events = events};
    struct feed_place at = {0};
    for (unsigned pieces = 1;; pieces++)
        if (feed_take(&feed, &b, true, &at)) return pieces;
}
static void take_one(struct kvevents_event e) {
    take(&e, 1);
}
/* Tokens of the first blocks that the engine has. */
static uint32_t has(const char *lora, const char *salt, uint32_t block) {
    static uint64_t rolling[BLOCKS_MAX];
    struct route_hit hit;
    route_hash_chain(NULL, local, BLOCKS_MAX, 0, rolling);
    struct route_chain chain = {
        route_hash_scope(SPAN("m"), span_str(lora), SPAN(""), span_str(salt), block), block,
        BLOCKS_MAX, rolling};
    size_t n = route_index_match(route_index(route), &chain, 1, &hit, 1);
    return n == 0 ? 0 : hit.tokens[ROUTE_TIER_DEVICE];
}

TEST(a_long_event_is_taken_in_pieces) {
    feed_begin("", "");
    struct kvevents_event e = stored(0, BLOCKS_MAX);
    CHECK_EQ(take(&e, 1), BLOCKS_MAX / 512);
    CHECK_EQ(has("", "", 16), 16 * BLOCKS_MAX);
    e.kind = KVEVENTS_REMOVED;
    e.n = 1000;
    e.own = own + BLOCKS_MAX - 1000;
    CHECK_EQ(take(&e, 1), 2);
    CHECK_EQ(has("", "", 16), 16 * (BLOCKS_MAX - 1000));
    feed_end();
}

TEST(many_events_are_taken_in_pieces_and_in_their_order) {
    static struct kvevents_event events[3000];
    feed_begin("", "");
    for (size_t i = 0; i < 1000; i++) {
        events[3 * i] = stored(0, 1);
        events[3 * i + 1] = cleared;
        events[3 * i + 2] = stored(0, 1 + i % 4);
    }
    CHECK(take(events, 3000) >= 1000); /* clearing costs the most */
    CHECK_EQ(has("", "", 16), 64);
    CHECK_EQ(route_holder_blocks(feed.index, feed.holder), 4);
    for (size_t i = 0; i < 3000; i++) {
        events[i] = stored(i, i + 1);
        events[i].elsewhere = i >= 50;
    }
    CHECK_EQ(take(events, 3000), 3);
    CHECK_EQ(has("", "", 16), 50 * 16);
    CHECK_EQ(feed.figures.conductor_events_elsewhere, 2950);
    feed_end();
}

TEST(salts_and_adapters_are_of_the_block) {
    feed_begin("l", "s");
    struct kvevents_event e = stored(0, 2);
    take_one(e); /* of the model alone, with the engine's salt */
    CHECK_EQ(has("", "s", 16), 32);
    CHECK_EQ(feed.figures.conductor_events_adapter, 1);
    CHECK_EQ(has("l", "s", 16) + has("", "", 16), 0);
    e.lora = SPAN("l");
    e.salt = SPAN("t");
    e.own = own + 10;
    take_one(e);
    CHECK_EQ(has("l", "t", 16), 32);
    CHECK_EQ(has("l", "s", 16), 0);
    CHECK_EQ(feed.figures.conductor_events_adapter, 1);
    CHECK_EQ(feed.figures.conductor_events_salted, 1);
    feed_end();
}

TEST(blocks_of_another_size_are_found_by_that_size_alone) {
    feed_begin("", "");
    struct kvevents_event e = stored(0, 3);
    e.block = 32;
    take_one(e);
    CHECK_EQ(has("", "", 16), 0);
    CHECK_EQ(has("", "", 32), 96);
    CHECK_EQ(feed.figures.conductor_events_misfitting, 1);
    CHECK_EQ(feed.odd_block, 32);
    /* it becomes another: not before all is cleared */
    take_one(stored(0, 3));
    CHECK_EQ(has("", "", 16), 0);
    CHECK_EQ(feed.figures.conductor_events_groups, 1);
    take_one(cleared);
    take_one(stored(0, 3));
    CHECK_EQ(has("", "", 16), 48);
    CHECK_EQ(has("", "", 32), 0);
    feed_end();
}

TEST(what_cannot_be_placed_is_left_out) {
    feed_begin("", "");
    struct kvevents_event e = stored(0, 3);
    e.local = NULL;
    take_one(e);
    CHECK_EQ(feed.figures.conductor_events_nameless, 1);
    take_one(stored(0, 3));
    e.block = 32; /* of another size than that of which blocks are known */
    take_one(e);
    CHECK_EQ(feed.figures.conductor_events_nameless, 2);
    e.block = 0;
    e.tier = ROUTE_TIER_HOST;
    take_one(e);
    CHECK_EQ(feed.figures.conductor_events_nameless, 2);
    CHECK_EQ(route_index_stats(feed.index).route_stored, 6);
    take_one(cleared);
    struct kvevents_batch b = {.rank = 3, .n = 1, .events = &e};
    struct feed_place at = {0};
    e = stored(0, 3);
    CHECK(feed_take(&feed, &b, false, &at)); /* of another rank */
    CHECK_EQ(feed.figures.conductor_events_rank, 1);
    CHECK_EQ(route_holder_blocks(feed.index, feed.holder), 0);
    at = (struct feed_place){0};
    CHECK(feed_take(&feed, &b, true, &at)); /* it is registered as the only one */
    CHECK_EQ(has("", "", 16), 48);
    /* Of a group that there is no room for, in the midst of others. */
    struct kvevents_event events[] = {stored(3, 4), stored(0, 1), stored(4, 5)};
    events[1].group = ROUTE_GROUPS_MAX;
    take(events, 3);
    CHECK_EQ(has("", "", 16), 0);
    take_one(cleared);
    take_one(stored(0, 3));
    CHECK_EQ(has("", "", 16), 0);
    feed_end();
}

/* A window of unknown length needs all, as does a kind that is unknown here. */
TEST(groups_are_what_they_say) {
    feed_begin("", "");
    take_one(stored(0, 8));
    struct kvevents_event e = stored(4, 8);
    e.has_parent = true;
    e.group = 1;
    e.spec = KVEVENTS_SPEC_WINDOW;
    e.window = 32;
    take_one(e);
    CHECK_EQ(has("", "", 16), 128);
    e.group = 2;
    e.window = 0;
    take_one(e);
    CHECK_EQ(has("", "", 16), 0);
    feed_end();
}

/* --- streams --- */

static struct engine engine;

static void streams_begin(bool watches) {
    fake.watches = watches;
    fake_load(small);
    engine_start(&engine, REPLAY_TWO);
}
static void streams_end(void) {
    route_check(conductor_route);
    fake_unload();
    CHECK(fake.watch[0].ready == NULL);
    fake_kept_clear();
    engine_free(&engine);
}
static const char *add_engine(const char *id, bool replay) {
    char line[512];
    snprintf(line, sizeof(line), "conductor.add %s http://%s MODEL m BLOCK 4 EVENTS %s%s%s", id, id,
             engine.endpoint, replay ? " REPLAY " : "", replay ? engine.replay : "");
    return fake_call(line);
}
/* Blocks that are known of e1. */
static uint64_t known(void) {
    uint32_t worker = route_worker_find(conductor_route, SPAN("e1"), 0);
    return route_holder_blocks(route_index(conductor_route),
                               route_worker_holder(conductor_route, worker));
}
static struct streams_view view(void) {
    struct streams_view v;
    streams_get(route_worker_find(conductor_route, SPAN("e1"), 0), &v);
    return v;
}

#define TURN_UNTIL(expr)                                                                           \
    do {                                                                                           \
        uint64_t until_ = clock_mono_ms() + TEST_PATIENCE_MS;                                      \
        while (!(expr)) {                                                                          \
            engine_pump(&engine);                                                                  \
            if (!fake_turn()) usleep(500);                                                         \
            CHECK(clock_mono_ms() < until_);                                                       \
        }                                                                                          \
    } while (0)

TEST(events_reach_the_index) {
    streams_begin(true);
    for (int i = 0; i < 3; i++) engine_make(&engine);
    CHECK_STR(add_engine("e1", true), "OK");
    TURN_UNTIL(known() == 3 && view().info.state == KVEVENTS_LIVE && engine.subscribers > 0);
    engine_publish(&engine);
    TURN_UNTIL(known() == 4);
    CHECK(!view().partial);
    static const uint32_t tokens[] = {1, 2, 3, 4};
    struct span words[] = {SPAN("conductor.match"), SPAN("MODEL"), SPAN("m"), SPAN("TOKENS"),
                           span_of((const char *)tokens, sizeof(tokens))};
    CHECK_STR(fake_call_words(words, 5), "*1 %6 id e1 rank 0 device 4 host 4 disk 4 pool 0");
    /* The same again changes nothing; without REPLAY it is another stream. */
    CHECK_STR(add_engine("e1", true), "OK");
    CHECK_EQ(known(), 4);
    CHECK_STR(add_engine("e1", false), "OK");
    CHECK_EQ(known(), 0);
    CHECK(view().partial);
    streams_end();
}

/* A prompt of four blocks that nobody has, in a session of four: what is told of it. */
static bool session_counts(uint32_t token) {
    const uint32_t tokens[16] = {token};
    struct span words[] = {SPAN("conductor.route"), SPAN("y"),
                           SPAN("MODEL"),           SPAN("m"),
                           SPAN("SESSION"),         SPAN("s"),
                           SPAN("TOKENS"),          span_of((const char *)tokens, sizeof(tokens))};
    uint64_t before = route_figures_get(conductor_route)->route_session_tokens;
    CHECK(strncmp(fake_call_words(words, 8), "*7 e1 ", 6) == 0);
    CHECK_STR(fake_call("conductor.done y"), "OK");
    uint64_t more = route_figures_get(conductor_route)->route_session_tokens - before;
    CHECK(more == 0 || more == 12);
    return more > 0;
}

TEST(sessions_count_where_no_stream_tells) {
    streams_begin(true);
    CHECK_STR(fake_call("conductor.add e1 http://e1 MODEL m BLOCK 4"), "OK");
    fake_call("conductor.route x MODEL m LENGTH 16 SESSION s");
    CHECK_STR(fake_call("conductor.done x"), "OK");
    CHECK(session_counts(100));
    engine_make(&engine);
    CHECK_STR(add_engine("e1", true), "OK");
    TURN_UNTIL(known() > 0);
    CHECK(!session_counts(200));
    CHECK_STR(fake_call("conductor.add e1 http://e1 MODEL m BLOCK 4"), "OK");
    CHECK(session_counts(300));
    streams_end();
}

/* --- a batch that is longer than what one turn takes of it --- */

#define LONG_BATCH 50000u
static void midst_begin(void) {
    streams_begin(true);
    engine_make_blocks(&engine, LONG_BATCH);
    CHECK_STR(add_engine("e1", true), "OK");
    TURN_UNTIL(known() > 0);
    CHECK(known() < LONG_BATCH);
}

TEST(a_batch_is_gone_on_with_in_the_next_turn) {
    midst_begin();
    TURN_UNTIL(known() == LONG_BATCH);
    streams_end();
}

TEST(a_stream_is_removed_in_the_midst_of_a_batch) {
    midst_begin();
    CHECK_STR(fake_call("conductor.remove e1"), "OK");
    while (fake_turn()) continue;
    for (int i = 0; i < 100; i++) fake_tick(); /* its place is swept */
    CHECK_EQ(route_index_stats(route_index(conductor_route)).route_blocks, 0);
    CHECK_STR(add_engine("e1", true), "OK"); /* from its beginning again */
    TURN_UNTIL(known() == LONG_BATCH);
    streams_end();
}

TEST(a_stream_becomes_another_in_the_midst_of_a_batch) {
    midst_begin();
    CHECK_STR(add_engine("e1", false), "OK");
    while (fake_turn()) continue;
    CHECK_EQ(known(), 0);
    streams_end();
}

TEST(the_module_goes_in_the_midst_of_a_batch) {
    midst_begin();
    fake_unload();
    fake_load(small);
    CHECK_EQ(known(), 0);
    TURN_UNTIL(known() == LONG_BATCH);
    streams_end();
}

TEST(a_replica_follows_what_it_is_told) {
    streams_begin(true);
    engine_make(&engine);
    CHECK_STR(add_engine("e1", true), "OK");
    fake_unload();
    fake_load(small);
    fake.leads = false;
    tarn_module_v1.role_changed(false);
    TURN_UNTIL(known() == 1);
    struct span name = SPAN("e/e1/0");
    tarn_module_v1.durable_changed(&name, NULL);
    struct streams_sum sum;
    streams_sum(&sum);
    CHECK_EQ(sum.conductor_streams, 0);
    CHECK_EQ(sum.events.kvevents_batches, 1); /* counts stay */
    tarn_module_v1.durable_changed(NULL, NULL);
    TURN_UNTIL(known() == 1);
    fake.leads = true;
    tarn_module_v1.role_changed(true);
    CHECK_EQ(known(), 1);
    streams_end();
}

/* Where nothing can be followed now, an engine registers all the same, and it is tried again. */
TEST(what_cannot_be_followed_is_tried_again) {
    streams_begin(false);
    engine_make(&engine);
    CHECK_STR(add_engine("e1", true), "OK");
    CHECK_STR(view().state, "none");
    CHECK(view().partial && view().why[0] != '\0');
    CHECK(strstr(fake_call("conductor.doctor"), "event streams of e1 cannot be followed") != NULL);
    struct streams_sum sum;
    streams_sum(&sum);
    CHECK_EQ(sum.conductor_streams_refused, 1);
    fake_services.watch_create = fake_watch;
    fake_tick();
    TURN_UNTIL(known() == 1);
    streams_sum(&sum);
    CHECK_EQ(sum.conductor_streams_refused, 0);
    streams_end();
}

TEST_MAIN()
