/* Puts with one and more replicas whose hosts, or whose master, fail in the middle. */
#include "pool.h"
#include "base/clock.h"
#include "client/client.h"

#define MIB (1u << 20)

static uint32_t last_replicas;

static tarn_status put_item(const char *key, size_t len, unsigned replicas) {
    char *v = value_of(key, len);
    tarn_put_options o;
    tarn_put_options_init(&o);
    o.replicas = replicas;
    tarn_item item = {.key = key, .key_len = strlen(key), .buffer = v, .buffer_len = len};
    tarn_status status = tarn_put_many(client, &item, 1, &o, NULL);
    free(v);
    last_replicas = item.replicas;
    return status != TARN_OK ? status : (tarn_status)item.status;
}

static bool holds(const char *key, unsigned host, size_t len) {
    char *v = value_of(key, len);
    bool same = pool_holds(key, host, v, len);
    free(v);
    return same;
}

TEST(all_replicas_get_the_bytes) {
    begin("");
    static const size_t lens[] = {65, 5000, 20000, MIB, 3 * MIB + 17};
    for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        char key[16];
        snprintf(key, sizeof(key), "k%zu", i);
        CHECK_EQ(put_item(key, lens[i], 3), TARN_OK);
        CHECK_EQ(last_replicas, 3);
        for (unsigned h = 0; h < 3; h++) CHECK(holds(key, h, lens[i]));
        CHECK_EQ(get(key, lens[i]), TARN_OK);
    }
    CHECK_EQ(put_item("small", 64, 3), TARN_OK);
    CHECK_EQ(last_replicas, 0);
    CHECK_EQ(put_item("empty", 0, 3), TARN_OK);
    CHECK_EQ(get("small", 64), TARN_OK);
    CHECK_EQ(get("empty", 0), TARN_OK);
    CHECK_EQ(pool_count("*FAILED*"), 0);
    end();
}

TEST(fewer_hosts_than_replicas) {
    begin("");
    pool_epoch(3, UINT32_MAX);
    pool_epoch(2, UINT32_MAX);
    CHECK_EQ(put_item("k", 20000, 4), TARN_OK);
    CHECK_EQ(last_replicas, 2);
    CHECK_EQ(get("k", 20000), TARN_OK);
    end();
}

/* --- one of two fails, and it is certain that nothing more of it arrives --- */

static void one_fails(enum pool_mood mood, unsigned after, size_t len) {
    begin("piece_bytes=1048576");
    CHECK_EQ(put_item("first", 5000, 2), TARN_OK); /* connections are up */
    pool_mood(1, mood, after);
    CHECK_EQ(put_item("k", len, 2), TARN_OK);
    CHECK_EQ(last_replicas, 1);
    CHECK_EQ(pool_replica("k", 0), 0);
    CHECK_EQ(pool_replica("k", 1), -1);
    CHECK(holds("k", 0, len));
    CHECK_EQ(pool_count("MPUTEND 1 k * FAILEDS 2"), 1);
    CHECK_EQ(pool_count("MPUTREVOKE *"), 0);
    CHECK_EQ(figures().put_replicas_failed, 1);
    CHECK_EQ(get("k", len), TARN_OK);
    CHECK_EQ(pool_open_puts(), 0);
    end();
}

TEST(one_of_two_is_dead) {
    one_fails(POOL_DEAD, 0, 20000);
}
TEST(one_of_two_resets) {
    one_fails(POOL_RESET, 0, 20000);
}
TEST(one_of_two_resets_midway) {
    one_fails(POOL_RESET, 2, 5 * MIB);
}
TEST(one_of_two_closes_midway) {
    one_fails(POOL_HALF, 2, 5 * MIB);
}
TEST(one_of_two_refuses) {
    one_fails(POOL_STALE, 0, 20000);
}
TEST(one_of_two_never_says_hello) {
    begin(SOON_PUT);
    pool_mood(1, POOL_SILENT, 0);
    /* not a byte was sent: it counts as failed, not as lost */
    CHECK_EQ(put_item("k", 20000, 2), TARN_OK);
    CHECK_EQ(last_replicas, 1);
    CHECK_EQ(pool_count("*INSTEAD*"), 0);
    end();
}

TEST(the_next_puts_go_elsewhere) {
    begin("");
    pool_mood(1, POOL_DEAD, 0);
    CHECK_EQ(put_item("k", 20000, 2), TARN_OK);
    CHECK_EQ(last_replicas, 1);
    for (int i = 0; i < 5; i++) {
        char key[16];
        snprintf(key, sizeof(key), "k%d", i);
        CHECK_EQ(put_item(key, 20000, 2), TARN_OK);
        CHECK_EQ(last_replicas, 2);
        CHECK_EQ(pool_replica(key, 1), 2);
    }
    CHECK_EQ(pool_count("MPUTSTART *AVOID n1.0*"), 5);
    end();
}

/* The server has nothing better: then nobody tries the dead one again so soon. */
TEST(a_replica_on_a_host_known_to_be_dead_is_not_tried) {
    begin("");
    pool_epoch(2, UINT32_MAX);
    pool_epoch(3, UINT32_MAX);
    pool_mood(1, POOL_DEAD, 0);
    CHECK_EQ(put_item("k", 20000, 2), TARN_OK);
    pool_mood(1, POOL_WELL, 0);
    for (int i = 0; i < 5; i++) {
        char key[16];
        snprintf(key, sizeof(key), "k%d", i);
        CHECK_EQ(put_item(key, 20000, 2), TARN_OK);
        CHECK_EQ(last_replicas, 1);
    }
    CHECK_EQ(pool_writes(1), 0);
    end();
}

TEST(a_batch_names_its_failures_in_one_request) {
    begin("");
    enum { N = 30, LEN = 20000 };
    static char keys[N][16], *values[N];
    tarn_item items[N];
    memset(items, 0, sizeof(items));
    for (int i = 0; i < N; i++) {
        snprintf(keys[i], sizeof(keys[i]), "k%d", i);
        values[i] = value_of(keys[i], LEN);
        items[i] = (tarn_item){
            .key = keys[i], .key_len = strlen(keys[i]), .buffer = values[i], .buffer_len = LEN};
    }
    tarn_put_options o;
    tarn_put_options_init(&o);
    o.replicas = 2;
    pool_mood(1, POOL_RESET, 4);
    size_t failed = 1;
    CHECK_EQ(tarn_put_many(client, items, N, &o, &failed), TARN_OK);
    CHECK_EQ(failed, 0);
    CHECK_EQ(pool_count("MPUTEND *"), 1);
    CHECK_EQ(pool_count("PUTEND *"), 0);
    for (int i = 0; i < N; i++) {
        CHECK(pool_holds(keys[i], 0, values[i], LEN));
        CHECK_EQ(items[i].replicas, pool_replica(keys[i], 1) < 0 ? 1 : 2);
        free(values[i]);
    }
    end();
}

/* --- the only one fails --- */

static void moves_on(enum pool_mood mood, unsigned after, size_t len) {
    begin("piece_bytes=1048576");
    CHECK_EQ(put_item("first", 5000, 1), TARN_OK);
    pool_mood(0, mood, after);
    CHECK_EQ(put_item("k", len, 1), TARN_OK);
    CHECK_EQ(pool_replica("k", 0), 1);
    CHECK(holds("k", 1, len));
    CHECK_EQ(pool_count("MPUTREVOKE 1 k *"), 1);
    CHECK_EQ(pool_open_puts(), 0);
    end();
}

TEST(a_dead_host_is_avoided) {
    moves_on(POOL_DEAD, 0, 20000);
}
TEST(a_host_that_dies_midway_is_avoided) {
    moves_on(POOL_RESET, 2, 5 * MIB);
}
TEST(a_host_that_refuses_is_avoided) {
    moves_on(POOL_STALE, 0, 20000);
}
TEST(there_is_only_one_and_it_refuses) {
    begin("");
    for (unsigned h = 1; h < POOL_HOSTS; h++) pool_epoch(h, UINT32_MAX);
    pool_mood(0, POOL_STALE, 0);
    CHECK_EQ(put_item("k", 20000, 1), TARN_ESTALE);
    catch_up();
    CHECK_EQ(pool_count("MPUTSTART *"), 4);
    CHECK_EQ(pool_count("MPUTREVOKE *"), 4);
    CHECK_EQ(pool_open_puts(), 0);
    end();
}

TEST(a_session_that_a_host_has_cut_off) {
    begin("");
    for (unsigned h = 1; h < POOL_HOSTS; h++) pool_epoch(h, UINT32_MAX);
    pool_mood(0, POOL_FENCED, 0);
    CHECK_EQ(put_item("k", 20000, 1), TARN_OK);
    CHECK_EQ(put_item("k2", 20000, 1), TARN_OK);
    CHECK_EQ(figures().reconnects, 1);
    CHECK_EQ(pool_count("MPUTREVOKE 1 k *"), 1);
    CHECK_EQ(pool_open_puts(), 0);
    end();
}

TEST(three_of_four_are_dead) {
    begin("");
    for (unsigned h = 0; h < 3; h++) pool_mood(h, POOL_DEAD, 0);
    CHECK_EQ(put_item("k", 20000, 1), TARN_OK);
    CHECK_EQ(pool_replica("k", 0), 3);
    end();
}

TEST(all_are_dead) {
    begin("");
    for (unsigned h = 0; h < POOL_HOSTS; h++) pool_mood(h, POOL_DEAD, 0);
    CHECK_EQ(put_item("k", 20000, 2), TARN_ECLOSED);
    catch_up();
    CHECK_EQ(pool_open_puts(), 0);
    CHECK(!pool_exists("k"));
    pool_mood(2, POOL_WELL, 0);
    CHECK_EQ(put_item("k", 20000, 1), TARN_OK);
    end();
}

/* --- bytes that may still be on their way --- */

/* The put starts over under a new session, and what arrives late does no harm. */
static void silent_midway(unsigned replicas, size_t len) {
    begin("piece_bytes=1048576&" SOON_PUT);
    CHECK_EQ(put_item("first", 5000, replicas), TARN_OK);
    pool_mood(0, POOL_SILENT, len > MIB ? 2 : 0);
    CHECK_EQ(put_item("k", len, replicas), TARN_OK);
    CHECK_EQ(pool_count("PUTSTART k *AVOID n0.0 INSTEAD *"), 1);
    CHECK_EQ(pool_count("*PUTREVOKE *"), 0);
    CHECK_EQ(pool_count("MPUTEND 1 k *"), 1); /* with the new token, or there were no OK */
    CHECK_EQ(figures().put_restarts, 1);
    CHECK_EQ(figures().reconnects, 1);
    CHECK_EQ(last_replicas, replicas);
    CHECK_EQ(pool_replica("k", 0), 1);
    CHECK_EQ(pool_open_puts(), 0);
    pool_mood(0, POOL_WELL, 0); /* it reads what was sent to it, and finds the connection closed */
    for (unsigned r = 0; r < replicas; r++) CHECK(holds("k", 1 + r, len));
    CHECK_EQ(get("k", len), TARN_OK);
    end();
}

TEST(a_host_that_falls_silent) {
    silent_midway(1, 20000);
}
TEST(a_host_that_falls_silent_in_a_large_value) {
    silent_midway(1, 5 * MIB);
}
TEST(one_of_two_that_falls_silent) {
    silent_midway(2, 5 * MIB);
}

TEST(a_server_that_does_not_let_us_start_over) {
    begin(SOON_PUT);
    CHECK_EQ(put_item("first", 5000, 1), TARN_OK);
    pool_mood(0, POOL_SILENT, 0);
    pool_script("PUTSTART", 0, POOL_SAY, "-PUTBUSY by yourself\r\n");
    CHECK_EQ(put_item("k", 20000, 1), TARN_ETIMEOUT);
    CHECK_EQ(pool_count("*PUTREVOKE *"), 0);
    end();
}

TEST(with_no_retries_nobody_starts_over) {
    begin("retries=0&timeout_ms=2000");
    CHECK_EQ(put_item("first", 5000, 1), TARN_OK);
    pool_mood(0, POOL_SILENT, 0);
    CHECK_EQ(put_item("k", 20000, 1), TARN_ETIMEOUT);
    CHECK_EQ(pool_count("*PUTREVOKE *"), 0);
    CHECK_EQ(pool_count("*INSTEAD*"), 0);
    end();
}

/* A batch in which some go to a silent host: the others are not delayed to their death. */
TEST(a_batch_with_a_silent_host) {
    begin(SOON_PUT);
    /* striped: all connections are up, or what waits for one would be failed, and not lost */
    CHECK_EQ(put_item("first", 9 * MIB, 2), TARN_OK);
    enum { N = 10, LEN = MIB + 5 }; /* none of them shares a request with another */
    static char keys[N][16], *values[N];
    tarn_item items[N];
    memset(items, 0, sizeof(items));
    for (int i = 0; i < N; i++) {
        snprintf(keys[i], sizeof(keys[i]), "k%d", i);
        values[i] = value_of(keys[i], LEN);
        items[i] = (tarn_item){
            .key = keys[i], .key_len = strlen(keys[i]), .buffer = values[i], .buffer_len = LEN};
    }
    tarn_put_options o;
    tarn_put_options_init(&o);
    o.replicas = 2;
    pool_mood(1, POOL_SILENT, 4);
    size_t failed = 1;
    CHECK_EQ(tarn_put_many(client, items, N, &o, &failed), TARN_OK);
    CHECK_EQ(failed, 0);
    CHECK_EQ(pool_count("MPUTEND 4 *"), 1);
    CHECK_EQ(pool_count("PUTSTART *INSTEAD*"), 6);
    for (int i = 0; i < N; i++) {
        CHECK(pool_holds(keys[i], 0, values[i], LEN));
        CHECK_EQ(items[i].replicas, 2);
        free(values[i]);
    }
    CHECK_EQ(pool_open_puts(), 0);
    end();
}

/* A key that a batch has twice: the second waits for the end of the first, however often that has
 * to be tried. */
static void twice(enum pool_mood mood, const char *again) {
    begin(SOON_PUT);
    CHECK_EQ(put_item("first", 5000, 1), TARN_OK);
    char *value = value_of("k", 20000);
    tarn_item items[2];
    memset(items, 0, sizeof(items));
    for (int i = 0; i < 2; i++)
        items[i] = (tarn_item){.key = "k", .key_len = 1, .buffer = value, .buffer_len = 20000};
    pool_mood(0, mood, 0);
    size_t failed = 0;
    CHECK_EQ(tarn_put_many(client, items, 2, NULL, &failed), TARN_OK);
    CHECK_EQ(items[0].status, TARN_OK);
    CHECK_EQ(items[1].status, TARN_EEXISTS);
    CHECK_EQ(pool_count(again), 1);
    CHECK(pool_holds("k", 1, value, 20000));
    CHECK_EQ(pool_open_puts(), 0);
    free(value);
    end();
}

TEST(a_key_twice_and_a_silent_host) {
    twice(POOL_SILENT, "PUTSTART k *INSTEAD *");
}
TEST(a_key_twice_and_a_dead_host) {
    twice(POOL_DEAD, "MPUTREVOKE 1 k *");
}

/* --- the control connection --- */

TEST(the_connection_breaks_before_the_end) {
    begin("");
    pool_script("MPUTEND", 0, POOL_DROP, NULL);
    CHECK_EQ(put_item("k", 20000, 2), TARN_OK);
    CHECK_EQ(pool_count("MPUTEND 0 BATCH *"), 1);
    CHECK_EQ(pool_count("MPUTEND 1 k *"), 1); /* the same token: the batch was of the connection */
    CHECK_EQ(pool_count("MPUTSTART *"), 1);
    end();
}

/* --- the puts of a request, ended by its number --- */

static tarn_status put_three(size_t len, tarn_item item[3]) {
    static char keys[3][2] = {"a", "b", "c"};
    char *v[3];
    for (unsigned i = 0; i < 3; i++) {
        v[i] = value_of(keys[i], len);
        item[i] = (tarn_item){.key = keys[i], .key_len = 1, .buffer = v[i], .buffer_len = len};
    }
    tarn_status status = tarn_put_many(client, item, 3, NULL, NULL);
    for (unsigned i = 0; i < 3; i++) free(v[i]);
    return status;
}

TEST(a_batch_is_ended_by_its_number) {
    begin("");
    tarn_item item[3];
    CHECK_EQ(put_item("b", 100, 1), TARN_OK);
    pool_forget_commands();
    CHECK_EQ(put_three(20000, item), TARN_OK);
    CHECK_EQ(item[0].status, TARN_OK);
    CHECK_EQ(item[1].status, TARN_EEXISTS);
    CHECK_EQ(pool_count("MPUTEND 0 BATCH * BATCHCRCS *"), 1);
    CHECK_EQ(pool_count("MPUTEND *"), 1);
    CHECK_EQ(get("a", 20000), TARN_OK); /* its CRC, too */
    CHECK_EQ(get("c", 20000), TARN_OK);
    end();
}

TEST(what_is_not_like_the_others_is_ended_by_its_key) {
    begin("");
    tarn_item item[3];
    CHECK_EQ(put_three(64, item), TARN_OK);           /* in the books */
    CHECK_EQ(put_item("large", MIB + 1, 1), TARN_OK); /* a CRC for each MiB */
    CHECK_EQ(pool_count("MPUTEND 3 a *VALUES *"), 1);
    CHECK_EQ(pool_count("MPUTEND 1 large * CRCS *"), 1);
    CHECK_EQ(pool_count("MPUTEND 0 *"), 0);
    end();
}

TEST(of_a_batch_only_some_are_ended) {
    begin("");
    tarn_item item[3];
    pool_script("MPUTEND", 0, POOL_SAY, "*3\r\n+OK\r\n-BADTOKEN it took too long\r\n+OK\r\n");
    pool_script("MPUTSTART", 1, POOL_SAY, "*2\r\n$-1\r\n:9\r\n");
    CHECK_EQ(put_three(20000, item), TARN_OK);
    CHECK_EQ(item[0].status, TARN_OK);
    CHECK_EQ(item[1].status, TARN_EEXISTS); /* once more from the start */
    CHECK_EQ(item[2].status, TARN_OK);
    CHECK_EQ(pool_count("MPUTSTART 1 b *"), 1);
    end();
}

TEST(a_batch_that_is_over_is_put_again) {
    begin("");
    tarn_item item[3];
    pool_script("MPUTEND", 0, POOL_SAY, "-BADTOKEN all of it is over\r\n");
    pool_script("MPUTSTART", 1, POOL_SAY, "*4\r\n$-1\r\n$-1\r\n$-1\r\n:9\r\n");
    CHECK_EQ(put_three(20000, item), TARN_OK);
    for (unsigned i = 0; i < 3; i++) CHECK_EQ(item[i].status, TARN_EEXISTS);
    end();
}

TEST(ends_of_a_batch_that_make_no_sense) {
    static const char *const bad[] = {":3\r\n", "$-1\r\n", "*2\r\n+OK\r\n+OK\r\n",
                                      "*4\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        begin("");
        tarn_item item[3];
        pool_script("MPUTEND", 0, POOL_SAY, bad[i]);
        (void)put_three(20000, item);
        for (unsigned k = 0; k < 3; k++) CHECK_EQ(item[k].status, TARN_EPROTO);
        end();
    }
}

TEST(the_connection_breaks_after_the_end) {
    begin("");
    pool_script("MPUTEND", 0, POOL_UNSAID, NULL);
    CHECK_EQ(put_item("k", 20000, 2), TARN_OK);
    CHECK_EQ(pool_count("MPUTSTART *"), 1);
    CHECK(pool_exists("k"));
    end();
}

TEST(the_connection_breaks_with_failures_to_tell) {
    begin("");
    pool_mood(1, POOL_DEAD, 0);
    pool_script("MPUTEND", 0, POOL_CUT, NULL);
    CHECK_EQ(put_item("k", 20000, 2), TARN_OK);
    CHECK_EQ(pool_count("MPUTEND 1 k * FAILEDS 2"), 2);
    CHECK_EQ(last_replicas, 1);
    end();
}

TEST(the_token_is_not_known_any_more) {
    begin("");
    pool_script("MPUTEND", 0, POOL_SAY, "*1\r\n-BADTOKEN what\r\n");
    CHECK_EQ(put_item("k", 20000, 1), TARN_EBUSY); /* the first one is open still */
    end();
    begin("");
    pool_script("MPUTEND", 0, POOL_SAY, "*1\r\n-STALE no replica is left\r\n");
    pool_script("MPUTSTART", 1, POOL_SAY, "*2\r\n*-1\r\n:9\r\n");
    CHECK_EQ(put_item("k", 20000, 1), TARN_EEXISTS); /* it was asked again */
    CHECK_EQ(pool_count("MPUTSTART *"), 2);
    end();
}

TEST(answers_that_make_no_sense) {
    static const char far_away[] = "*2\r\n*2\r\n:7\r\n*1\r\n*2\r\n$6\r\nmemory\r\n*1\r\n"
                                   "*5\r\n:1\r\n:7\r\n:0\r\n:19999\r\n$3\r\nabc\r\n:9\r\n";
    static const char *const bad[] = {
        ":7\r\n",
        "*2\r\n$-1\r\n$-1\r\n",
        "*1\r\n$-1\r\n",
        "*2\r\n*1\r\n:7\r\n:9\r\n",
        "*2\r\n*2\r\n:7\r\n*0\r\n:9\r\n",
        "*2\r\n*2\r\n:7\r\n*1\r\n*2\r\n$3\r\nssd\r\n*0\r\n:9\r\n",
        far_away,
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        begin("");
        pool_script("MPUTSTART", 0, POOL_SAY, bad[i]);
        CHECK_EQ(put_item("k", 20000, 1), TARN_EPROTO);
        CHECK_EQ(put_item("k", 20000, 1), TARN_OK);
        end();
    }
}

TEST(segments_that_nobody_knows) {
    begin("");
    pool_script("SEGMENT", 1, POOL_SAY, "-NOSEGMENT none\r\n"); /* of the second replica */
    CHECK_EQ(put_item("k", 20000, 2), TARN_OK);
    CHECK_EQ(pool_count("MPUTEND * FAILEDS 2"), 1);
    pool_script("SEGMENT", 0, POOL_DROP, NULL);
    CHECK_EQ(put_item("k2", 20000, 2), TARN_OK);
    end();
}

/* In place is for one replica in reach; others go through private memory. */
TEST(a_writer_with_two_replicas) {
    begin("");
    tarn_put_options o;
    tarn_put_options_init(&o);
    o.replicas = 2;
    tarn_writer *w = NULL;
    CHECK_EQ(tarn_writer_open(client, "k", 1, 20000, &o, &w), TARN_OK);
    CHECK_EQ(tarn_writer_in_place(w), 0);
    char *v = value_of("k", 20000);
    memcpy(tarn_writer_data(w), v, 20000);
    free(v);
    pool_mood(1, POOL_DEAD, 0);
    CHECK_EQ(tarn_writer_commit(&w), TARN_OK);
    CHECK(holds("k", 0, 20000));
    CHECK_EQ(get("k", 20000), TARN_OK);
    end();
}

/* --- not now, but soon --- */

TEST(what_comes_later_is_waited_for) {
    begin("");
    uint64_t began = clock_boot_ms();
    pool_script("MPUTSTART", 0, POOL_SAY, "*2\r\n-TRYAGAIN 120 ghosts\r\n:9\r\n");
    pool_script("MPUTSTART", 0, POOL_SAY, "-TRYAGAIN 80 all of it\r\n");
    for (unsigned i = 2; i < 12; i++) /* more often than anything else is tried again */
        pool_script("MPUTSTART", 0, POOL_SAY, "*2\r\n-LOADING nodes are awaited\r\n:9\r\n");
    CHECK_EQ(put_item("k", 20000, 1), TARN_OK);
    CHECK(clock_boot_ms() - began >= 200);
    pool_script("MGETREPLICAS", 0, POOL_SAY, "*2\r\n-TRYAGAIN 50 x\r\n:0\r\n");
    for (unsigned i = 1; i < 9; i++) pool_script("MGETREPLICAS", 0, POOL_SAY, "-LOADING x\r\n");
    CHECK_EQ(get("k", 20000), TARN_OK);
    end();
}

/* Only those that were told so; the others are not held up. */
TEST(of_a_batch_only_some_come_later) {
    begin("");
    char *v = value_of("k", 5000);
    tarn_item item[2] = {{.key = "a", .key_len = 1, .buffer = v, .buffer_len = 40},
                         {.key = "b", .key_len = 1, .buffer = v, .buffer_len = 41}};
    pool_script("MPUTSTART", 0, POOL_SAY, "*3\r\n*2\r\n:77\r\n*0\r\n-TRYAGAIN 30 x\r\n:9\r\n");
    pool_script("MPUTEND", 0, POOL_SAY, "*1\r\n+OK\r\n");
    CHECK_EQ(tarn_put_many(client, item, 2, NULL, NULL), TARN_OK);
    CHECK_EQ(item[0].status, TARN_OK);
    CHECK_EQ(item[1].status, TARN_OK);
    CHECK_EQ(pool_count("MPUTSTART 2 *"), 1);
    CHECK_EQ(pool_count("MPUTSTART 1 b 41 *"), 1);
    CHECK(!pool_exists("a") && pool_exists("b"));
    free(v);
    end();
}

TEST(later_than_the_call_may_take_is_said_at_once) {
    begin("timeout_ms=3000");
    uint64_t began = clock_boot_ms();
    pool_script("MPUTSTART", 0, POOL_SAY, "*2\r\n-TRYAGAIN 50000 x\r\n:9\r\n");
    CHECK_EQ(put_item("k", 20000, 1), TARN_ELATER);
    pool_script("MGETREPLICAS", 0, POOL_SAY, "*2\r\n-TRYAGAIN 50000 x\r\n:0\r\n");
    CHECK_EQ(get("k", 20000), TARN_ELATER);
    CHECK(clock_boot_ms() - began < 3000);
    end();
}

TEST_MAIN()
