/* Gets of values with several replicas, some of which cannot be had: dead hosts, silent hosts,
 * damaged bytes, files. */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pool.h"
#include "client/client.h"
#include "client/outage.h"

#define MIB (1u << 20)

TEST(the_nearest_is_read) {
    begin("");
    CHECK_EQ(put_n("k", 20000, 2), TARN_OK);
    pool_nearest("k", 1);
    CHECK(pool_damage("k", 0, 5));
    CHECK_EQ(get("k", 20000), TARN_OK);
    CHECK_EQ(pool_reads(0), 0);
    CHECK_EQ(pool_reads(1), 1);
    CHECK_EQ(figures().failovers, 0);
    end();
}

TEST(a_dead_host_costs_one_failed_try) {
    begin("");
    for (int i = 0; i < 20; i++) {
        char key[16];
        snprintf(key, sizeof(key), "k%d", i);
        CHECK_EQ(put_n(key, 20000, 2), TARN_OK);
    }
    pool_mood(0, POOL_DEAD, 0);
    for (int i = 0; i < 20; i++) {
        char key[16];
        snprintf(key, sizeof(key), "k%d", i);
        CHECK_EQ(get(key, 20000), TARN_OK);
    }
    CHECK_EQ(figures().failovers, 1); /* then it is known */
    CHECK_EQ(figures().outages, 1);
    CHECK_EQ(figures().retries, 0);
    CHECK_EQ(pool_count("MGETREPLICAS *"), 20); /* no second look-up */
    end();
}

static void dies_midway(enum pool_mood mood, unsigned after) {
    begin(mood == POOL_SILENT ? "piece_bytes=1048576&" SOON : "piece_bytes=1048576");
    CHECK_EQ(put_n("k", 5 * MIB + 77, 2), TARN_OK);
    pool_mood(0, mood, after);
    CHECK_EQ(get("k", 5 * MIB + 77), TARN_OK);
    CHECK_EQ(figures().failovers, 1);
    CHECK_EQ(pool_count("MGETREPLICAS *"), 1);
    catch_up();
    CHECK_EQ(pool_count("REPLICA *"), 0);
    end();
}

TEST(reset_midway) {
    dies_midway(POOL_RESET, 3);
}
TEST(half_an_answer) {
    dies_midway(POOL_HALF, 2);
}
TEST(nonsense_midway) {
    dies_midway(POOL_NONSENSE, 2);
}
TEST(refused_midway) {
    dies_midway(POOL_STALE, 2);
}
TEST(silent_midway) {
    dies_midway(POOL_SILENT, 2);
}
TEST(never_says_hello) {
    begin("");
    CHECK_EQ(put_n("k", 20000, 2), TARN_OK);
    tarn_close(&client);
    pool_mood(0, POOL_SILENT, 0);
    CHECK_EQ(tarn_connect(pool_url(SOON), NULL, &client), TARN_OK);
    CHECK_EQ(get("k", 20000), TARN_OK);
    CHECK_EQ(figures().failovers, 1);
    end();
}

TEST(a_batch_with_a_host_that_dies) {
    begin("piece_bytes=1048576");
    enum { N = 40, LEN = 100000 };
    static char keys[N][16], *got[N];
    tarn_item items[N];
    memset(items, 0, sizeof(items));
    for (int i = 0; i < N; i++) {
        snprintf(keys[i], sizeof(keys[i]), "k%d", i);
        CHECK_EQ(put_n(keys[i], LEN, 2), TARN_OK);
        if (i % 2) pool_nearest(keys[i], 1);
        got[i] = malloc(LEN);
        items[i] = (tarn_item){
            .key = keys[i], .key_len = strlen(keys[i]), .buffer = got[i], .buffer_len = LEN};
    }
    pool_mood(1, POOL_RESET, 3);
    size_t hits = 0;
    CHECK_EQ(tarn_get_many(client, items, N, NULL, &hits), TARN_OK);
    CHECK_EQ(hits, N);
    for (int i = 0; i < N; i++) {
        char *v = value_of(keys[i], LEN);
        CHECK(memcmp(v, got[i], LEN) == 0);
        free(v);
        free(got[i]);
    }
    CHECK_EQ(pool_count("MGETREPLICAS *"), 1);
    end();
}

/* Small values of a length share requests: what is wrong with one, or with the host of some, is
 * nothing to the others. */
static void check_small(unsigned n, size_t len, const char (*keys)[16], char *const *got,
                        const tarn_item *items) {
    for (unsigned i = 0; i < n; i++) {
        char *v = value_of(keys[i], len);
        CHECK_EQ(items[i].status, TARN_OK);
        CHECK(items[i].got == len && memcmp(v, got[i], len) == 0);
        free(v);
    }
}

TEST(many_small_values_and_one_that_is_damaged) {
    enum { N = 300, LEN = 4096 };
    begin(SOON "&streams=1");
    static char keys[N][16], *got[N];
    static tarn_item items[N];
    memset(items, 0, sizeof(items));
    for (int i = 0; i < N; i++) {
        snprintf(keys[i], sizeof(keys[i]), "k%d", i);
        got[i] = value_of(keys[i], LEN);
        items[i] = (tarn_item){
            .key = keys[i], .key_len = strlen(keys[i]), .buffer = got[i], .buffer_len = LEN};
    }
    tarn_put_options o;
    tarn_put_options_init(&o);
    o.replicas = 2;
    CHECK_EQ(tarn_put_many(client, items, N, &o, NULL), TARN_OK);
    unsigned before = pool_reads(0);
    CHECK_EQ(tarn_get_many(client, items, N, NULL, NULL), TARN_OK);
    check_small(N, LEN, keys, got, items);
    CHECK(pool_reads(0) - before < N / 10); /* they do share */
    CHECK(pool_damage("k77", 0, 100) && pool_damage("k299", 0, 0));
    CHECK_EQ(tarn_get_many(client, items, N, NULL, NULL), TARN_OK);
    check_small(N, LEN, keys, got, items);
    CHECK_EQ(figures().crc_mismatches, 2);
    catch_up();
    CHECK_EQ(pool_count("REPLICA REPORT *"), 2);
    static const enum pool_mood moods[] = {POOL_RESET, POOL_HALF, POOL_NONSENSE, POOL_STALE,
                                           POOL_SILENT};
    for (size_t m = 0; m < sizeof(moods) / sizeof(moods[0]); m++) {
        pool_mood(0, moods[m], 2);
        for (int i = 0; i < N; i++) memset(got[i], 0, LEN);
        CHECK_EQ(tarn_get_many(client, items, N, NULL, NULL), TARN_OK);
        check_small(N, LEN, keys, got, items);
        pool_mood(0, POOL_WELL, 0);
        tarn_close(&client);
        CHECK_EQ(tarn_connect(pool_url(SOON "&streams=1"), NULL, &client), TARN_OK);
    }
    for (int i = 0; i < N; i++) free(got[i]);
    end();
}

/* One lease for all items of a key, which is of the last request that asked for it: none but that
 * one's batch ends it. */
TEST(the_same_keys_all_over_a_batch) {
    enum { N = 1500, KEYS = 7, LEN = 4096 };
    begin("");
    static char keys[N][16], *got[N];
    static tarn_item items[N];
    memset(items, 0, sizeof(items));
    for (int i = 0; i < N; i++) {
        snprintf(keys[i], sizeof(keys[i]), "k%d", i % KEYS);
        if (i < KEYS) CHECK_EQ(put_n(keys[i], LEN, 1), TARN_OK);
        got[i] = malloc(LEN);
        items[i] = (tarn_item){
            .key = keys[i], .key_len = strlen(keys[i]), .buffer = got[i], .buffer_len = LEN};
    }
    CHECK_EQ(tarn_get_many(client, items, N, NULL, NULL), TARN_OK);
    check_small(N, LEN, keys, got, items);
    unsigned asked = pool_count("MGETREPLICAS *");
    CHECK(asked > 1);
    catch_up();
    CHECK_EQ(pool_count("RELEASE *"), asked);
    CHECK_EQ(pool_count("RELEASE 0 BATCH *"), asked);
    for (int i = 0; i < N; i++) free(got[i]);
    end();
}

static void released(unsigned times) {
    for (int i = 0; i < 5000 && pool_count("RELEASE *") < times; i++) usleep(1000);
    CHECK_EQ(pool_count("RELEASE *"), times);
}

/* A small one with the next request of its lane, or its end; a large one by itself. */
TEST(releases_go_with_the_next_request_or_at_once) {
    begin("");
    CHECK_EQ(put_n("small", 4096, 1), TARN_OK);
    CHECK_EQ(put_n("large", (1 << 20) + 1, 1), TARN_OK);
    for (int i = 1; i <= 3; i++) {
        CHECK_EQ(get("small", 4096), TARN_OK);
        CHECK_EQ(pool_count("RELEASE *"), i - 1);
    }
    CHECK_EQ(get("large", (1 << 20) + 1), TARN_OK);
    released(4);
    CHECK_EQ(get("small", 4096), TARN_OK);
    CHECK_EQ(pool_count("RELEASE *"), 4);
    tarn_close(&client);
    released(5);
    end();
}

TEST(all_hosts_dead_is_an_error_and_no_hang) {
    begin("");
    CHECK_EQ(put_n("k", 20000, 2), TARN_OK);
    pool_mood(0, POOL_DEAD, 0);
    pool_mood(1, POOL_DEAD, 0);
    tarn_status status = get("k", 20000);
    CHECK(status == TARN_ECLOSED || status == TARN_ETIMEOUT);
    pool_mood(1, POOL_WELL, 0); /* back: nothing else is left to try */
    CHECK_EQ(get("k", 20000), TARN_OK);
    CHECK_EQ(figures().outages, 1);
    end();
}

/* --- damaged bytes --- */

TEST(a_damaged_replica_is_reported_and_passed_over) {
    begin("");
    CHECK_EQ(put_n("k", 20000, 2), TARN_OK);
    CHECK(pool_damage("k", 0, 19999));
    CHECK_EQ(get("k", 20000), TARN_OK);
    CHECK_EQ(figures().crc_mismatches, 1);
    catch_up();
    CHECK_EQ(pool_count("REPLICA REPORT k *"), 1);
    CHECK_EQ(pool_count("MGETREPLICAS *"), 1);
    end();
}

TEST(no_good_replica_is_no_value) {
    begin("");
    CHECK_EQ(put_n("k", 20000, 2), TARN_OK);
    CHECK(pool_damage("k", 0, 1));
    CHECK(pool_damage("k", 1, 1));
    CHECK_EQ(get("k", 20000), TARN_ECORRUPT);
    catch_up();
    CHECK_EQ(pool_count("REPLICA REPORT k *"), 1);
    CHECK_EQ(put_n("one", 20000, 1), TARN_OK);
    CHECK(pool_damage("one", 0, 1));
    CHECK_EQ(get("one", 20000), TARN_ECORRUPT);
    catch_up();
    CHECK_EQ(pool_count("REPLICA REPORT one *"), 1);
    end();
}

/* The first pieces come from a damaged replica, the others from a good one: together they are
 * wrong, and it cannot be told which. */
TEST(a_value_pieced_together_is_read_again_from_one) {
    begin("piece_bytes=1048576");
    CHECK_EQ(put_n("k", 4 * MIB, 2), TARN_OK);
    CHECK(pool_damage("k", 0, 5));
    pool_mood(0, POOL_RESET, 2);
    CHECK_EQ(get("k", 4 * MIB), TARN_OK);
    CHECK_EQ(figures().crc_mismatches, 1);
    CHECK_EQ(pool_count("MGETREPLICAS *"), 1);
    catch_up();
    CHECK_EQ(pool_count("REPLICA REPORT k *"), 1);
    end();
}

TEST(the_good_one_came_first_in_a_value_pieced_together) {
    begin("piece_bytes=1048576");
    CHECK_EQ(put_n("k", 4 * MIB, 3), TARN_OK);
    CHECK(pool_damage("k", 1, 3 * MIB));
    pool_mood(0, POOL_RESET, 2);
    CHECK_EQ(get("k", 4 * MIB), TARN_OK); /* from the third: the first is gone, the second is bad */
    end();
}

TEST(ranges_check_their_own_blocks) {
    begin("");
    CHECK_EQ(put_n("k", 4 * MIB + 5, 2), TARN_OK);
    CHECK(pool_damage("k", 0, 2 * MIB + 10));
    CHECK_EQ(get_range("k", 4 * MIB + 5, 100, 5000), TARN_OK);
    CHECK_EQ(figures().crc_mismatches, 0);
    CHECK_EQ(get_range("k", 4 * MIB + 5, MIB + 100, 2 * MIB), TARN_OK);
    CHECK_EQ(figures().crc_mismatches, 1);
    catch_up();
    CHECK_EQ(pool_count("REPLICA REPORT k *"), 1);
    end();
}

/* One item was bad and is looked for again, the other one finds the host gone: that says nothing of
 * the first one's bytes. */
TEST(a_failure_of_another_item) {
    begin("piece_bytes=1048576");
    CHECK_EQ(put_n("a", MIB, 1), TARN_OK);
    CHECK_EQ(put_n("b", MIB, 1), TARN_OK);
    CHECK(pool_damage("a", 0, 5));
    pool_mood(0, POOL_RESET, 1);
    char *memory = malloc(2 * MIB);
    tarn_item items[2] = {{.key = "a", .key_len = 1, .buffer = memory, .buffer_len = MIB},
                          {.key = "b", .key_len = 1, .buffer = memory + MIB, .buffer_len = MIB}};
    size_t hits = 7;
    CHECK_EQ(tarn_get_many(client, items, 2, NULL, &hits), TARN_OK);
    CHECK_EQ(hits, 0);
    CHECK(items[0].status < 0 && items[1].status < 0);
    free(memory);
    end();
}

/* --- segments --- */

TEST(segments_that_are_gone_or_changed) {
    begin("");
    CHECK_EQ(put_n("k", 20000, 3), TARN_OK);
    tarn_close(&client); /* forgets what it knows */
    pool_epoch(0, UINT32_MAX);
    pool_epoch(1, 1);
    CHECK_EQ(tarn_connect(pool_url(""), NULL, &client), TARN_OK);
    CHECK_EQ(get("k", 20000), TARN_OK);
    CHECK_EQ(pool_reads(2), 1);
    CHECK_EQ(pool_count("MGETREPLICAS *"), 1);
    pool_drop_replica("k", 2);
    CHECK_EQ(get("k", 20000), TARN_ESTALE);
    CHECK_EQ(pool_count("MGETREPLICAS *"), 3); /* looked again: once */
    end();
}

TEST(a_host_that_comes_back_elsewhere) {
    begin("");
    CHECK_EQ(put_n("k", 20000, 1), TARN_OK);
    pool_move(0);
    CHECK_EQ(get("k", 20000), TARN_OK);
    CHECK_EQ(figures().outages, 0);
    end();
}

TEST(refusals_make_us_look_again) {
    begin("");
    CHECK_EQ(put_n("k", 20000, 1), TARN_OK);
    pool_mood(0, POOL_STALE, 0);
    CHECK_EQ(get("k", 20000), TARN_ESTALE);
    unsigned asked = pool_count("SEGMENT INFO *");
    pool_mood(0, POOL_WELL, 0);
    CHECK_EQ(get("k", 20000), TARN_OK);
    CHECK(pool_count("SEGMENT INFO *") > asked); /* what we knew counts no more */
    end();
}

/* --- tiers --- */

static char dir[64];

static void make_dir(void) {
    strcpy(dir, "/tmp/tarn-client-XXXXXX");
    CHECK(mkdtemp(dir) != NULL);
}

static const char *in_dir(const char *name) {
    static char paths[4][128];
    static unsigned turn;
    char *path = paths[turn++ % 4];
    snprintf(path, sizeof(paths[0]), "%s/%s", dir, name);
    return path;
}

static void write_file(const char *path, const char *key, size_t len, size_t extra, bool bad) {
    char *v = value_of(key, len);
    if (bad) v[len / 2] ^= 1;
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fwrite(v, 1, len, file) == len);
    for (size_t i = 0; i < extra; i++) fputc('x', file);
    fclose(file);
    free(v);
}

static void remove_dir(void) {
    char command[100];
    snprintf(command, sizeof(command), "rm -rf '%s'", dir);
    CHECK_EQ(system(command), 0);
}

TEST(ssd_replicas_come_from_their_host) {
    begin("");
    CHECK_EQ(put_n("k", 20000, 2), TARN_OK);
    pool_tier(0, "ssd");
    CHECK_EQ(get("k", 20000), TARN_OK);
    CHECK_EQ(pool_reads(0), 1);
    tarn_view *view = NULL;
    CHECK_EQ(tarn_view_open(client, "k", 1, NULL, &view), TARN_ESTALE);
    end();
}

TEST(files_are_read_by_ourselves) {
    make_dir();
    begin("");
    CHECK_EQ(put_n("k", 3 * MIB + 1, 1), TARN_OK);
    /* a host may keep more behind the value */
    write_file(in_dir("k"), "k", 3 * MIB + 1, 1000, false);
    pool_add_file("k", in_dir("k"));
    CHECK_EQ(get("k", 3 * MIB + 1), TARN_OK);
    CHECK_EQ(pool_reads(0), 0);
    CHECK_EQ(get_range("k", 3 * MIB + 1, MIB + 17, MIB), TARN_OK);
    CHECK_EQ(pool_reads(0), 0);
    /* In many pieces of memory, none as long as a CRC's block. */
    static char pieces[100][40000];
    struct iovec iov[100];
    for (int i = 0; i < 100; i++) iov[i] = (struct iovec){pieces[i], sizeof(pieces[i])};
    size_t n = 0;
    CHECK_EQ(tarn_getv(client, "k", 1, iov, 100, &n, NULL), TARN_OK);
    char *v = value_of("k", 3 * MIB + 1);
    CHECK(memcmp(pieces, v, n) == 0);
    free(v);
    end();
    remove_dir();
}

TEST(files_that_are_not_what_they_should_be) {
    make_dir();
    begin("");
    CHECK_EQ(put_n("k", 20000, 1), TARN_OK);
    unsigned reads = 0;
    const char *names[] = {"missing", "short", "link", "fifo", "directory", "bad", "/../k"};
    write_file(in_dir("short"), "k", 19999, 0, false);
    write_file(in_dir("bad"), "k", 20000, 0, true);
    write_file(in_dir("good"), "k", 20000, 0, false);
    CHECK_EQ(symlink(in_dir("good"), in_dir("link")), 0);
    CHECK_EQ(mkfifo(in_dir("fifo"), 0600), 0);
    CHECK_EQ(mkdir(in_dir("directory"), 0700), 0);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        pool_add_file("k", in_dir(names[i]));
        CHECK_EQ(get("k", 20000), TARN_OK);
        CHECK_EQ(pool_reads(0), ++reads);
        pool_drop_replica("k", POOL_FILE);
    }
    catch_up();
    /* What is missing, too short or no file, and the bad one: the server looks for itself. */
    CHECK_EQ(pool_count("REPLICA REPORT *"), 5);
    /* With nothing else left it is a miss, or corrupt, and never bytes. */
    pool_add_file("k", in_dir("missing"));
    pool_drop_replica("k", 0);
    CHECK_EQ(get("k", 20000), TARN_ENOTFOUND);
    pool_drop_replica("k", POOL_FILE);
    pool_add_file("k", in_dir("bad"));
    CHECK_EQ(get("k", 20000), TARN_ECORRUPT);
    end();
    remove_dir();
}

TEST(a_file_without_a_crc_is_not_trusted) {
    make_dir();
    begin("");
    CHECK_EQ(put_n("k", 20000, 1), TARN_OK);
    write_file(in_dir("bad"), "k", 20000, 0, true);
    pool_add_file("k", in_dir("bad"));
    pool_drop_crc("k");
    CHECK_EQ(get("k", 20000), TARN_OK);
    CHECK_EQ(pool_reads(0), 1);
    pool_drop_replica("k", 0);
    CHECK_EQ(get("k", 20000), TARN_ENOTFOUND);
    end();
    remove_dir();
}

TEST(a_damaged_file_in_the_middle_of_a_large_value) {
    make_dir();
    begin("");
    CHECK_EQ(put_n("k", 5 * MIB, 1), TARN_OK);
    write_file(in_dir("bad"), "k", 5 * MIB, 0, true);
    pool_add_file("k", in_dir("bad"));
    CHECK_EQ(get("k", 5 * MIB), TARN_OK);
    CHECK_EQ(get_range("k", 5 * MIB, MIB, 3 * MIB), TARN_OK);
    CHECK_EQ(figures().crc_mismatches, 2);
    end();
    remove_dir();
}

TEST(tiers_of_a_later_version_are_left_out) {
    begin("");
    CHECK_EQ(put_n("k", 20000, 1), TARN_OK);
    pool_add_tier("k", "tape");
    CHECK_EQ(get("k", 20000), TARN_OK);
    pool_drop_replica("k", 0);
    CHECK_EQ(get("k", 20000), TARN_ENOTFOUND);
    end();
}

/* --- the control connection --- */

TEST(answers_cut_short_are_asked_for_again) {
    begin("");
    CHECK_EQ(put_n("k", 20000, 2), TARN_OK);
    pool_script("MGETREPLICAS", 0, POOL_CUT, NULL);
    CHECK_EQ(get("k", 20000), TARN_OK);
    pool_script("MGETREPLICAS", 0, POOL_DROP, NULL);
    CHECK_EQ(get("k", 20000), TARN_OK);
    tarn_close(&client);
    CHECK_EQ(tarn_connect(pool_url(""), NULL, &client), TARN_OK);
    pool_script("SEGMENT", 0, POOL_UNSAID, NULL);
    CHECK_EQ(get("k", 20000), TARN_OK);
    CHECK_EQ(figures().reconnects, 1);
    end();
}

TEST(answers_that_make_no_sense) {
    static const char *const bad[] = {
        "$3\r\nabc\r\n",
        "*2\r\n$-1\r\n$-1\r\n",
        "*1\r\n*3\r\n:1\r\n:2\r\n:3\r\n",
        "*1\r\n*5\r\n:1\r\n:20000\r\n:5000\r\n:1\r\n*1\r\n*2\r\n$6\r\nmemory\r\n*0\r\n",
        "*1\r\n*5\r\n:1\r\n:20000\r\n:5000\r\n:1\r\n*1\r\n*2\r\n$4\r\nfile\r\n*1\r\n*2\r\n$"
        "8\r\netc/"
        "name\r\n:20000\r\n",
        "*1\r\n*5\r\n:1\r\n:20000\r\n:5000\r\n:1\r\n*1\r\n*2\r\n$4\r\nfile\r\n*1\r\n*2\r\n$9\r\n/"
        "etc/"
        "name\r\n:20001\r\n",
        "*1\r\n*5\r\n:1\r\n:20000\r\n:5000\r\n:1\r\n*0\r\n",
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        begin("");
        CHECK_EQ(put_n("k", 20000, 2), TARN_OK);
        pool_script("MGETREPLICAS", 0, POOL_SAY, bad[i]);
        CHECK_EQ(get("k", 20000), TARN_EPROTO);
        end();
    }
}

TEST(who_and_where_we_are) {
    begin("rack=r1");
    CHECK_EQ(tarn_ping(client), TARN_OK);
    CHECK_EQ(pool_count("CLIENT SETINFO tarn-rack r1"), 1);
    CHECK_EQ(pool_count("CLIENT SETINFO tarn-host here"), 1);
    end();
}

TEST_MAIN()
