/* Puts in three steps, as they are made where several masters are asked before the first answer is
 * awaited: what fails in one of the first two is made good in the last. */
#include "pool.h"

#define N 3u

static const char *const names[N] = {"block", "note", "empty"};
static const size_t lens[N] = {5000, 20, 0};
static tarn_item items[N];
static tarn_put_options options;
static struct put_call call;

/* On a lane that is connected, and that has moved nothing. */
static void begin_with(bool fails, enum pool_action action, const char *text) {
    begin("");
    CHECK_EQ(get("block", 1), TARN_ENOTFOUND);
    tarn_put_options_init(&options);
    options.replicas = 2;
    for (unsigned i = 0; i < N; i++)
        items[i] = (tarn_item){.key = names[i],
                               .key_len = strlen(names[i]),
                               .buffer = value_of(names[i], lens[i]),
                               .buffer_len = lens[i]};
    call = (struct put_call){.client = client,
                             .items = items,
                             .n = N,
                             .o = &options,
                             .spread = put_spread(&options, N),
                             .deadline = DEADLINE_NONE};
    if (fails) pool_script("MPUTSTART", 0, action, text);
    client_put_begin(&call, true);
    CHECK(call.asked);
}

static void ahead_begin(void) {
    begin_with(false, POOL_DROP, NULL);
}

static void ahead_end(tarn_status status) {
    CHECK_EQ(client_put_end(&call), TARN_OK);
    for (unsigned i = 0; i < N; i++) {
        CHECK_EQ(items[i].status, status);
        CHECK_EQ(get(names[i], lens[i]), status == TARN_OK ? TARN_OK : TARN_ENOTFOUND);
        free(items[i].buffer);
    }
    if (status != TARN_EBUSY) CHECK_EQ(pool_open_puts(), 0);
    end();
}

TEST(a_put_in_three_steps) {
    ahead_begin();
    CHECK_EQ(pool_writes(0), 0);
    client_put_write(&call);
    CHECK_EQ(pool_count("MPUTSTART 3 *"), 1);
    CHECK(call.asked && call.written);
    CHECK_EQ(pool_writes(0), 1);
    ahead_end(TARN_OK);
}

TEST(two_steps_are_enough) {
    ahead_begin();
    ahead_end(TARN_OK);
}

/* What one put moved over the network keeps the next one of that lane from being asked ahead. */
TEST(who_writes_to_other_machines_is_left_to_threads) {
    ahead_begin();
    client_put_write(&call);
    CHECK_EQ(client_put_end(&call), TARN_OK);
    for (unsigned i = 0; i < N; i++) CHECK(pool_exists(names[i]));
    CHECK_EQ(tarn_remove(client, "note", 4), TARN_OK);
    client_put_begin(&call, true);
    CHECK(!call.asked);
    CHECK_EQ(client_put_end(&call), TARN_OK);
    CHECK_EQ(items[0].status, TARN_EEXISTS);
    CHECK_EQ(items[1].status, TARN_OK);
    for (unsigned i = 0; i < N; i++) free(items[i].buffer);
    end();
}

static void start_fails(enum pool_action action, const char *text, tarn_status status) {
    begin_with(true, action, text);
    client_put_write(&call);
    CHECK(!call.asked && !call.written);
    ahead_end(status);
}

TEST(the_connection_breaks_before_there_are_places) {
    start_fails(POOL_DROP, NULL, TARN_OK);
    start_fails(POOL_UNSAID, NULL, TARN_EBUSY); /* by its own first attempt */
    start_fails(POOL_CUT, NULL, TARN_EBUSY);
    start_fails(POOL_SAY, "$7\r\nnothing\r\n", TARN_OK);
}

TEST(it_breaks_behind_the_bytes) {
    static const enum pool_action actions[] = {POOL_DROP, POOL_UNSAID, POOL_CUT};
    for (unsigned i = 0; i < 3; i++) {
        ahead_begin();
        pool_script("MPUTEND", 0, actions[i], NULL);
        client_put_write(&call);
        CHECK(call.written);
        ahead_end(TARN_OK);
    }
}

TEST(a_host_is_dead) {
    ahead_begin();
    pool_mood(0, POOL_DEAD, 0);
    pool_mood(1, POOL_DEAD, 0);
    client_put_write(&call);
    ahead_end(TARN_OK);
}

/* With no retries all is over before the last step; and the server gets back the space. */
TEST(bytes_are_on_their_way_for_ever) {
    const size_t len = (size_t)5 << 20;
    begin("retries=0&piece_bytes=1048576&" SOON_PUT);
    CHECK_EQ(get("large", 1), TARN_ENOTFOUND);
    tarn_put_options_init(&options);
    items[0] = (tarn_item){
        .key = "large", .key_len = 5, .buffer = value_of("large", len), .buffer_len = len};
    call = (struct put_call){
        .client = client, .items = items, .n = 1, .o = &options, .deadline = now_ms() + 1000};
    pool_mood(0, POOL_SILENT, 2);
    client_put_begin(&call, true);
    CHECK(call.asked);
    CHECK(client_put_write(&call));
    CHECK_EQ(client_put_end(&call), TARN_OK);
    CHECK_EQ(items[0].status, TARN_ETIMEOUT);
    CHECK_EQ(pool_count("*PUTREVOKE *"), 0);
    CHECK_EQ(get("large", 1), TARN_ENOTFOUND);
    CHECK_EQ(figures().reconnects, 1);
    free(items[0].buffer);
    end();
}

/* Both of a key that the batch has twice. */
TEST(a_key_twice) {
    ahead_begin();
    CHECK_EQ(client_put_end(&call), TARN_OK);
    CHECK_EQ(tarn_remove(client, "note", 4), TARN_OK);
    CHECK_EQ(tarn_remove(client, "block", 5), TARN_OK);
    items[0].key = items[1].key, items[0].key_len = items[1].key_len;
    items[0].buffer_len = items[1].buffer_len;
    tarn_close(&client);
    CHECK_EQ(tarn_connect(pool_url(""), NULL, &client), TARN_OK);
    CHECK_EQ(get("nothing", 1), TARN_ENOTFOUND);
    call.client = client;
    client_put_begin(&call, true);
    CHECK(call.asked);
    client_put_write(&call);
    CHECK(call.written);
    CHECK_EQ(client_put_end(&call), TARN_OK);
    CHECK_EQ(items[0].status + items[1].status, TARN_EEXISTS);
    CHECK_EQ(items[2].status, TARN_EEXISTS);
    for (unsigned i = 0; i < N; i++) free(items[i].buffer);
    end();
}

/* What was put already: no answer is awaited that does not come. */
TEST(nothing_has_to_be_ended) {
    ahead_begin();
    CHECK_EQ(client_put_end(&call), TARN_OK);
    tarn_close(&client);
    CHECK_EQ(tarn_connect(pool_url(""), NULL, &client), TARN_OK);
    CHECK_EQ(get("nothing", 1), TARN_ENOTFOUND);
    call.client = client;
    client_put_begin(&call, true);
    CHECK(call.asked);
    CHECK(client_put_write(&call));
    CHECK(!call.asked);
    CHECK_EQ(client_put_end(&call), TARN_OK);
    for (unsigned i = 0; i < N; i++) {
        CHECK_EQ(items[i].status, TARN_EEXISTS);
        free(items[i].buffer);
    }
    end();
}

static void keep_none(void *arg, const tarn_item *const *written, size_t n, int *keep) {
    (void)arg;
    (void)written;
    for (size_t i = 0; i < n; i++) keep[i] = 0;
}

TEST(they_are_not_wanted_any_more) {
    ahead_begin();
    options.written = keep_none;
    client_put_write(&call);
    ahead_end(TARN_ECANCELED);
}

TEST(more_than_one_request_is_not_asked_ahead) {
    begin("batch_keys=2");
    CHECK_EQ(get("block", 1), TARN_ENOTFOUND);
    tarn_put_options_init(&options);
    for (unsigned i = 0; i < N; i++)
        items[i] = (tarn_item){.key = names[i], .key_len = strlen(names[i])};
    call = (struct put_call){
        .client = client, .items = items, .n = N, .o = &options, .deadline = DEADLINE_NONE};
    client_put_begin(&call, true);
    CHECK(!call.asked);
    CHECK_EQ(client_put_end(&call), TARN_OK);
    for (unsigned i = 0; i < N; i++) CHECK_EQ(items[i].status, TARN_OK);
    end();
}

TEST_MAIN()
