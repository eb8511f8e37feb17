/* The parts of a boundary, read with one look-up, from a pool in which hosts die in the middle, the
 * server hangs up, and bytes are wrong. */
#include "pool.h"

#define MIB (1u << 20)

enum { HASHES = 8, PARTS = 7 };
static const tarn_kv_group kv_groups[] = {
    {"f@", 2, TARN_KV_FULL, 0, 16, 0, 0},
    {"w@", 2, TARN_KV_WINDOW, 0, 16, 0, 20},
    {"s@", 2, TARN_KV_STATE, 0, 64, 0, 0},
};
/* 64 tokens: four blocks, two blocks, one state. */
static const char *const keys[PARTS] = {"f@h0", "f@h1", "f@h2", "f@h3", "w@h2", "w@h3", "s@h3"};
static size_t lens[PARTS] = {20000, 0, 65, 3 * MIB + 5, 50, 70000, 2 * MIB};
static tarn_item items[PARTS];
static unsigned placed;
static size_t from[PARTS], want[PARTS]; /* of each part; 0: all of it */

static void put_parts(unsigned replicas) {
    for (size_t i = 0; i < PARTS; i++) CHECK_EQ(put_n(keys[i], lens[i], replicas), TARN_OK);
}

static tarn_item *place_parts(void *arg, uint64_t tokens, const tarn_kv_parts *parts, size_t n) {
    (void)arg, (void)parts;
    placed++;
    if (tokens != 64 || n != PARTS) return NULL;
    for (size_t i = 0; i < n; i++)
        items[i] = (tarn_item){.buffer = malloc(lens[i] + 1),
                               .buffer_len = lens[i] + 1,
                               .offset = from[i],
                               .want = want[i]};
    return items;
}

/* What is delivered is right; how many are not. */
static size_t get_parts(tarn_status expected) {
    static const tarn_key hashes[HASHES] = {{"h0", 2}, {"h1", 2}, {"h2", 2}, {"h3", 2},
                                            {"h4", 2}, {"h5", 2}, {"h6", 2}, {"h7", 2}};
    const tarn_kv_query q = {sizeof(q), hashes, HASHES, 16, 64, kv_groups, 3};
    tarn_kv_parts parts[3];
    uint64_t tokens;
    size_t failed = 0, wrong = 0;
    placed = 0;
    CHECK_EQ(tarn_kv_get(client, &q, NULL, place_parts, NULL, &tokens, parts, &failed), expected);
    for (size_t i = 0; i < PARTS && placed > 0; i++) {
        char *right = value_of(keys[i], lens[i]);
        if (items[i].status == TARN_OK)
            wrong += items[i].got != (want[i] ? want[i] : lens[i]) ||
                     memcmp(right + from[i], items[i].buffer, items[i].got) != 0;
        free(right);
        free(items[i].buffer);
        items[i].buffer = NULL;
    }
    CHECK_EQ(wrong, 0);
    return failed;
}

TEST(all_parts_with_one_look_up) {
    begin("");
    put_parts(1);
    CHECK_EQ(get_parts(TARN_OK), 0);
    uint64_t before = figures().round_trips;
    CHECK_EQ(get_parts(TARN_OK), 0);
    CHECK_EQ(figures().round_trips, before + 1);
    CHECK_EQ(pool_count("MGETREPLICAS 8 * KVGROUPS *"), 2);
    CHECK_EQ(pool_count("*PREFIXLEN*"), 0);
    catch_up();
    /* what lay in the books needs no lease */
    CHECK_EQ(pool_count("RELEASE 5 *"), 2);
    end();
}

/* Which of the two is read first, the server chooses: at some time the one that dies. */
TEST(a_host_dies_in_the_middle) {
    uint64_t failovers = 0;
    const int moods = POOL_STALE - POOL_RESET + 1;
    for (int i = 0; i < moods || (failovers == 0 && i < 16 * moods); i++) {
        begin("piece_bytes=1048576");
        put_parts(2);
        pool_mood(0, (enum pool_mood)(POOL_RESET + i % moods), 1);
        CHECK_EQ(get_parts(TARN_OK), 0);
        failovers += figures().failovers;
        end();
    }
    CHECK(failovers > 0);
}

TEST(the_server_hangs_up) {
    static const enum pool_action actions[] = {POOL_DROP, POOL_UNSAID, POOL_CUT};
    for (size_t i = 0; i < 3; i++) {
        begin("");
        put_parts(1);
        pool_script("MGETREPLICAS", 0, actions[i], NULL);
        CHECK_EQ(get_parts(TARN_OK), 0);
        CHECK_EQ(placed, 1);
        CHECK_EQ(pool_count("MGETREPLICAS *"), 2);
        end();
    }
}

/* Its grants are refused: what is left is asked for again by its keys, under a new session. */
TEST(a_session_is_cut_off) {
    begin("piece_bytes=1048576");
    put_parts(1);
    pool_mood(0, POOL_FENCED, 1);
    CHECK_EQ(get_parts(TARN_OK), 0);
    CHECK(pool_count("MGETREPLICAS *[fws]@h*") > 0);
    CHECK(figures().reconnects > 0);
    end();
}

TEST(guarantee_1_wrong_bytes_are_one_parts_loss) {
    begin("");
    put_parts(1);
    CHECK(pool_damage("f@h3", 0, 2 * MIB));
    CHECK_EQ(get_parts(TARN_OK), 1);
    CHECK_EQ(items[3].status, TARN_ECORRUPT);
    end();
    begin("");
    put_parts(2);
    CHECK(pool_damage("f@h3", 0, 2 * MIB));
    CHECK_EQ(get_parts(TARN_OK), 0);
    end();
}

/* By the CRCs of its blocks, and not by that of the whole value, which would be read for it. */
TEST(guarantee_1_wrong_bytes_of_a_range) {
    begin("");
    put_parts(1);
    from[3] = MIB;
    want[3] = MIB + 100;
    CHECK_EQ(get_parts(TARN_OK), 0);
    CHECK_EQ(pool_count("MGETREPLICAS * CRCS*"), 1);
    CHECK(pool_damage("f@h3", 0, 0));
    CHECK_EQ(get_parts(TARN_OK), 0);
    CHECK(pool_damage("f@h3", 0, 2 * MIB));
    CHECK_EQ(get_parts(TARN_OK), 1);
    CHECK_EQ(items[3].status, TARN_ECORRUPT);
    end();
    begin("verify=0");
    put_parts(1);
    CHECK_EQ(get_parts(TARN_OK), 0);
    CHECK_EQ(pool_count("MGETREPLICAS *"), 1);
    from[3] = want[3] = 0;
    end();
}

/* Between the look-up and the next one, by its key. */
TEST(a_part_that_goes) {
    begin("");
    put_parts(1);
    pool_mood(0, POOL_FENCED, 0);
    pool_script("MGETREPLICAS", 1, POOL_SAY, "*6\r\n$-1\r\n$-1\r\n$-1\r\n$-1\r\n$-1\r\n:0\r\n");
    CHECK_EQ(get_parts(TARN_OK), 5);
    for (size_t i = 0; i < PARTS; i++)
        CHECK_EQ(items[i].status, lens[i] <= 64 ? TARN_OK : TARN_ENOTFOUND);
    end();
}

TEST_MAIN()
