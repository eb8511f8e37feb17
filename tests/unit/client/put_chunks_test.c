/* Batches of several requests: what is said of the end of a chunk when others are under way. */
#include "pool.h"

#define N   6 /* in three chunks */
#define LEN 20000

static char keys[N][16];
static tarn_item items[N];

static void begin_chunks(const char *options) {
    char all[64];
    snprintf(all, sizeof(all), "batch_keys=2%s", options);
    begin(all);
}

static tarn_status put_chunks(bool moving) {
    tarn_put_options o;
    tarn_put_options_init(&o);
    o.moving = moving;
    for (int i = 0; i < N; i++) {
        snprintf(keys[i], sizeof(keys[i]), "k%d", i);
        items[i] = (tarn_item){
            .key = keys[i], .key_len = 2, .buffer = value_of(keys[i], LEN), .buffer_len = LEN};
    }
    tarn_status status = tarn_put_many(client, items, N, &o, NULL);
    for (int i = 0; i < N; i++) free(items[i].buffer);
    return status;
}

static void are(int from, int to, tarn_status status) {
    for (int i = from; i <= to; i++) {
        CHECK_EQ(items[i].status, status);
        if (status == TARN_OK) CHECK_EQ(get(keys[i], LEN), TARN_OK);
    }
}

TEST(chunks_are_ended_in_turn) {
    begin_chunks("");
    CHECK_EQ(put_chunks(false), TARN_OK);
    are(0, 5, TARN_OK);
    CHECK_EQ(pool_count("MPUTSTART 2 *"), 3);
    CHECK_EQ(pool_count("MPUTEND 0 BATCH *"), 3);
    CHECK_EQ(pool_count("MPUTEND *"), 3);
    end();
}

/* How many had been ended when the bytes of each chunk were there. */
static int ended[N], chunks;

static void count_ended(void *arg, const tarn_item *const *written, size_t n, int *keep) {
    (void)arg, (void)written, (void)keep;
    CHECK_EQ(n, 2);
    for (int i = 0; i < N; i++) ended[chunks] += items[i].status == TARN_OK;
    chunks++;
}

/* The server ends a chunk while the next one is written. */
TEST(an_end_is_awaited_behind_the_bytes_of_the_next) {
    tarn_put_options o;
    begin_chunks("");
    CHECK_EQ(put_chunks(false), TARN_OK); /* it knows the segment */
    tarn_put_options_init(&o);
    o.replace = true;
    o.written = count_ended;
    for (int i = 0; i < N; i++) {
        items[i].status = TARN_EAGAIN;
        items[i].buffer = value_of(keys[i], LEN);
    }
    chunks = 0;
    memset(ended, 0, sizeof(ended));
    CHECK_EQ(tarn_put_many(client, items, N, &o, NULL), TARN_OK);
    CHECK_EQ(chunks, 3);
    CHECK(ended[0] == 0 && ended[1] == 0 && ended[2] == 2);
    for (int i = 0; i < N; i++) free(items[i].buffer);
    are(0, 5, TARN_OK);
    end();
}

/* What is written is ended over the next connection. */
TEST(the_connection_breaks_between_the_bytes_and_the_answer) {
    static const enum pool_action actions[] = {POOL_DROP, POOL_UNSAID, POOL_CUT};
    for (unsigned i = 0; i < 3; i++) {
        for (unsigned chunk = 0; chunk < 3; chunk++) {
            begin_chunks("");
            pool_script("MPUTEND", chunk, actions[i], NULL);
            CHECK_EQ(put_chunks(false), TARN_OK);
            are(0, 5, TARN_OK);
            CHECK_EQ(pool_count("MPUTSTART * k0 *"), 1);
            CHECK_EQ(pool_open_puts(), 0);
            end();
        }
    }
}

TEST(it_breaks_and_nothing_is_tried_again) {
    begin_chunks("&retries=0");
    pool_script("MPUTEND", 0, POOL_UNSAID, NULL);
    (void)put_chunks(false);
    are(0, 5, TARN_ECLOSED);
    CHECK(pool_exists("k0") && !pool_exists("k2"));
    end();
}

/* Once more, behind all others. */
TEST(an_end_is_refused) {
    begin_chunks("");
    pool_script("MPUTEND", 0, POOL_SAY, "*2\r\n+OK\r\n-BADTOKEN it took too long\r\n");
    pool_script("MPUTSTART", 3, POOL_SAY, "*2\r\n$-1\r\n:9\r\n");
    CHECK_EQ(put_chunks(false), TARN_OK);
    CHECK_EQ(items[0].status, TARN_OK);
    CHECK_EQ(items[1].status, TARN_EEXISTS);
    are(2, 5, TARN_OK);
    CHECK_EQ(pool_count("MPUTSTART 1 k1 *"), 1);
    end();
}

static void refused_for_good(const char *options, bool moving) {
    begin_chunks(options);
    pool_script("MPUTEND", 0, POOL_SAY, "*2\r\n+OK\r\n-BADTOKEN it took too long\r\n");
    CHECK_EQ(put_chunks(moving), TARN_OK);
    CHECK_EQ(items[0].status, TARN_OK);
    CHECK_EQ(items[1].status, TARN_ETOKEN);
    are(2, 5, TARN_OK);
    CHECK_EQ(pool_count("MPUTSTART *"), 3);
    end();
}

TEST(an_end_is_refused_and_nothing_is_tried_again) {
    refused_for_good("&retries=0", false);
}

/* Its key may have a newer value by now. */
TEST(what_moves_is_not_put_again) {
    refused_for_good("", true);
}

/* Another master has the key: it is not left open here. */
TEST(an_end_is_sent_elsewhere) {
    begin_chunks("");
    pool_script("MPUTEND", 2, POOL_SAY, "*2\r\n+OK\r\n-MOVED 5 h:1\r\n");
    CHECK_EQ(put_chunks(false), TARN_OK);
    CHECK_EQ(items[5].status, TARN_EMOVED);
    are(0, 3, TARN_OK);
    catch_up();
    CHECK_EQ(pool_count("MPUTREVOKE 1 k5 *"), 1);
    CHECK_EQ(pool_open_puts(), 1); /* k4 */
    end();
}

TEST_MAIN()
