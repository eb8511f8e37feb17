#include "slots/map.h"

#include "../test.h"
#include "base/rng.h"

#define HEAD "tarn-slots 1\nepoch 7\n"

static struct slot_map *read_ok(const char *text) {
    char error[SLOT_MAP_ERROR_SIZE] = "";
    struct slot_map *m = slot_map_read(span_str(text), error);
    CHECK_STR(error, "");
    CHECK(m != NULL);
    return m;
}

static void check_text(const struct slot_map *m, const char *text) {
    struct buf out = {NULL, 0, 0};
    slot_map_write(m, &out);
    buf_append_char(&out, '\0');
    CHECK_STR(out.data, text);
    buf_free(&out);
}

static const char *const three = HEAD "shard a 12 10.0.0.1:6479,10.0.0.2:6479 0-5460\n"
                                      "shard b 3 [::1]:6479 5461-10922\n"
                                      "shard c 3 - 10923-16383\n"
                                      "moving a c 100-200,300\n"
                                      "moving b a 5461\n";

TEST(a_map_is_read_and_written) {
    struct slot_map *m = read_ok(three);
    check_text(m, three);
    CHECK_EQ(m->epoch, 7);
    CHECK_EQ(m->shards, 3);
    CHECK_EQ(m->owner[0], 0);
    CHECK_EQ(m->owner[5461], 1);
    CHECK_EQ(m->owner[16383], 2);
    CHECK_EQ(m->target[99], SLOT_NOBODY);
    CHECK_EQ(m->target[100], 2);
    CHECK_EQ(m->target[300], 2);
    CHECK_EQ(m->target[5461], 0);
    CHECK_STR(m->shard[1].server[0].host, "::1");
    CHECK_EQ(m->shard[0].server[1].port, 6479);
    CHECK_EQ(slot_map_shard(m, SPAN("b")), 1);
    CHECK_EQ(slot_map_shard(m, SPAN("d")), SLOT_NOBODY);
    CHECK_EQ(slot_map_owned(m, 0), 5461);
    CHECK_EQ(slot_map_owner_of(m, SPAN("foo")), 2); /* 12182 */
    slot_map_destroy(&m);
}

/* Whatever the order of lines and ranges, and with nobody for some slots. */
TEST(equal_maps_have_equal_texts) {
    struct slot_map *m = read_ok(HEAD "shard z 1 h:1 9,3-4,5\nshard b.c_D-e 0 - -\n"
                                      "shard a 2 h:2 7,6\nmoving z a 9,3");
    check_text(m, HEAD "shard a 2 h:2 6-7\nshard b.c_D-e 0 - -\nshard z 1 h:1 3-5,9\n"
                       "moving z a 3,9\n");
    CHECK_EQ(m->owner[8], SLOT_NOBODY);
    slot_map_destroy(&m);
}

TEST(what_is_no_map_is_refused) {
    static const struct {
        const char *text, *error;
    } bad[] = {
        {"", "a map begins with"},
        {"tarn-slots 2\n", "a map begins with"},
        {"tarn-slots 1\n", "no shard"},
        {"tarn-slots 1\nepoch 0\nshard a 1 - -\n", "epoch"},
        {"tarn-slots 1\nepoch 9223372036854775808\nshard a 1 - -\n", "epoch"},
        {"tarn-slots 1\nshard a 1 - -\n", "epoch"},
        {HEAD, "no shard"},
        {HEAD "\n", "neither"},
        {HEAD "shard a 1 -\n", "must be: shard"},
        {HEAD "shard a 1 - - -\n", "must be: shard"},
        {HEAD "shard  1 - -\n", "name"},
        {HEAD "shard - 1 - -\n", "name"},
        {HEAD "shard . 1 - -\n", "name"},
        {HEAD "shard .. 1 - -\n", "name"},
        {HEAD "shard a/b 1 - -\n", "name"},
        {HEAD "shard a x - -\n", "master epoch"},
        {HEAD "shard a 1 - -\nshard a 1 - -\n", "twice"},
        {HEAD "shard a 1 h -\n", "host:port"},
        {HEAD "shard a 1 h:0 -\n", "host:port"},
        {HEAD "shard a 1 h:65536 -\n", "host:port"},
        {HEAD "shard a 1 h;i:1 -\n", "host:port"},
        {HEAD "shard a 1 h:1,h:1 -\n", "twice"},
        {HEAD "shard a 1 h:1,h:2,h:3,h:4,h:5,h:6,h:7,h:8,h:9 -\n", "at most 8 servers"},
        {HEAD "shard a 1 - 16384\n", "ranges"},
        {HEAD "shard a 1 - 5-4\n", "ranges"},
        {HEAD "shard a 1 - 1-2-3\n", "ranges"},
        {HEAD "shard a 1 - 1,\n", "ranges"},
        {HEAD "shard a 1 - 01\n", "ranges"},
        {HEAD "shard a 1 - 1,1\n", "twice"},
        {HEAD "shard a 1 - 1-5\nshard b 1 - 5\n", "twice"},
        {HEAD "shard a 1 - 1\nshard b 1 - 2\nmoving a b\n", "must be: moving"},
        {HEAD "shard a 1 - 1\nshard b 1 - 2\nmoving a c 1\n", "names no shard"},
        {HEAD "shard a 1 - 1\nshard b 1 - 2\nmoving a a 1\n", "another shard"},
        {HEAD "shard a 1 - 1\nshard b 1 - 2\nmoving a b 2\n", "does not own"},
        {HEAD "shard a 1 - 1\nshard b 1 - 2\nmoving a b -\n", "ranges"},
        {HEAD "shard a 1 - 1\nshard b 1 - 2\nmoving a b 1\nmoving a b 1\n", "twice"},
        {HEAD "shard a 1 - 1\nslots\n", "neither"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char error[SLOT_MAP_ERROR_SIZE] = "";
        CHECK(slot_map_read(span_str(bad[i].text), error) == NULL);
        if (strstr(error, bad[i].error) == NULL) CHECK_STR(error, bad[i].error);
    }
}

TEST(maps_have_bounds) {
    char error[SLOT_MAP_ERROR_SIZE];
    struct buf text = {NULL, 0, 0};
    buf_append_str(&text, HEAD);
    for (unsigned i = 0; i < SLOT_SHARDS_MAX; i++) buf_printf(&text, "shard s%02u 1 - %u\n", i, i);
    buf_append_char(&text, '\0');
    struct slot_map *m = read_ok(text.data);
    CHECK_EQ(m->shards, SLOT_SHARDS_MAX);
    check_text(m, text.data);
    slot_map_destroy(&m);
    text.len--;
    buf_append_str(&text, "shard t 1 - -\n");
    CHECK(slot_map_read(span_of(text.data, text.len), error) == NULL);
    while (text.len <= SLOT_MAP_TEXT_MAX) buf_append_char(&text, 'x');
    CHECK(slot_map_read(span_of(text.data, text.len), error) == NULL);
    CHECK(strstr(error, "longer") != NULL);
    buf_free(&text);
}

TEST(the_later_of_two_maps_counts) {
    struct slot_map *old = read_ok("tarn-slots 1\nepoch 6\nshard a 20 h:9,h:1 0-9\nshard b 3 h:3 "
                                   "10-19\n"),
                    *new = read_ok("tarn-slots 1\nepoch 7\nshard a 12 h:1,h:9 0-8\nshard b 5 h:4 "
                                   "9-19\nshard c 1 h:5 -\n"),
                    *kept = xmemdup(new, sizeof(*new));
    static const char both[] = "tarn-slots 1\nepoch 7\nshard a 20 h:9,h:1 0-8\nshard b 5 h:4 "
                               "9-19\nshard c 1 h:5 -\n";
    CHECK(!slot_map_same_slots(old, new));
    CHECK(slot_map_merge(old, new));
    check_text(old, both);
    CHECK(slot_map_merge(kept, old));
    check_text(kept, both);
    CHECK(!slot_map_merge(kept, old));
    CHECK(slot_map_same_slots(kept, old));
    slot_map_destroy(&old);
    slot_map_destroy(&new);
    slot_map_destroy(&kept);
}

/* The same slots under other numbers are the same. */
TEST(slots_are_compared_by_names) {
    struct slot_map *x = read_ok(HEAD "shard b 1 - 1-5\nshard c 1 - 6\nmoving b c 2\n"),
                    *y = read_ok(HEAD "shard a 1 - -\nshard b 9 h:1 1-5\nshard c 1 - 6\nmoving b c "
                                      "2\n"),
                    *z = read_ok(HEAD "shard b 1 - 1-5\nshard c 1 - 6\n");
    CHECK(slot_map_same_slots(x, y));
    CHECK(!slot_map_same_slots(x, z));
    slot_map_destroy(&x);
    slot_map_destroy(&y);
    slot_map_destroy(&z);
}

TEST(ids_are_hex_and_differ) {
    struct slot_map *m = read_ok(three);
    char a[SLOT_ID_LEN + 1], b[SLOT_ID_LEN + 1];
    slot_id(&m->shard[0], NULL, a);
    CHECK_EQ(strlen(a), SLOT_ID_LEN);
    CHECK_EQ(strspn(a, "0123456789abcdef"), SLOT_ID_LEN);
    slot_id(&m->shard[0], &m->shard[0].server[1], b);
    CHECK(strcmp(a, b) != 0);
    slot_id(&m->shard[1], NULL, b);
    CHECK(strcmp(a, b) != 0);
    slot_map_destroy(&m);
}

TEST(servers_are_told_alone_and_learnt_by_epoch) {
    struct slot_map *m = read_ok(three);
    struct slot_shard row;
    struct buf text = {NULL, 0, 0};
    uint64_t epoch = m->shard[0].master_epoch;
    slot_servers_write(&m->shard[0], &text);
    CHECK(slot_servers_read(SPAN("5000"), span_of(text.data, text.len), &row));
    CHECK_EQ(row.servers, m->shard[0].servers);
    CHECK(slot_server_same(&row.server[1], &m->shard[0].server[1]));
    CHECK(!slot_servers_read(SPAN("x"), SPAN("h:1"), &row));
    CHECK(!slot_servers_read(SPAN("9223372036854775808"), SPAN("h:1"), &row));
    CHECK(!slot_servers_read(SPAN("1"), SPAN("h"), &row));
    CHECK(!slot_servers_read(SPAN("1"), SPAN(""), &row));
    CHECK(slot_servers_read(SPAN("7"), SPAN("-"), &row));
    CHECK_EQ(row.servers, 0);
    row.master_epoch = epoch;
    CHECK(!slot_map_learn(m, 0, &row));
    CHECK(m->shard[0].servers > 0);
    row.master_epoch = epoch + 1;
    CHECK(slot_map_learn(m, 0, &row));
    CHECK_EQ(m->shard[0].servers, 0);
    CHECK_EQ(slot_map_owned(m, 0), 5461);
    slot_map_destroy(&m);
    buf_free(&text);
}

TEST(who_leads_comes_first_at_a_higher_epoch) {
    struct slot_shard s = {.master_epoch = 5};
    struct slot_server x = {.host = "x", .port = 1};
    slot_shard_lead(&s, &x, 3);
    CHECK_EQ(s.servers, 1);
    CHECK_EQ(s.master_epoch, 6);
    for (uint16_t port = 2; port < 20; port++) {
        struct slot_server other = {.host = "x", .port = port};
        slot_shard_lead(&s, &other, 100);
        CHECK(slot_server_same(&s.server[0], &other));
        CHECK_EQ(s.servers, port < SLOT_SERVERS_MAX ? port : SLOT_SERVERS_MAX);
    }
    CHECK_EQ(s.master_epoch, 117);
    slot_shard_lead(&s, &s.server[3], 1000);
    CHECK_EQ(s.master_epoch, 1000);
    const uint16_t ports[] = {16, 19, 18, 17, 15, 14, 13, 12};
    for (unsigned i = 0; i < SLOT_SERVERS_MAX; i++) CHECK_EQ(s.server[i].port, ports[i]);
    slot_shard_lead(&s, &s.server[0], 0);
    CHECK_EQ(s.server[0].port, 16);
    CHECK_EQ(s.servers, SLOT_SERVERS_MAX);
}

TEST(no_later_epoch_than_can_be_read) {
    struct slot_map *m = read_ok(HEAD "shard a 9223372036854775807 h:1,h:2 0-16383\n"),
                    *again = NULL;
    struct buf text = {NULL, 0, 0};
    slot_shard_lead(&m->shard[0], &m->shard[0].server[1], 5);
    slot_map_write(m, &text);
    buf_append_char(&text, '\0');
    again = read_ok(text.data);
    CHECK_EQ(again->shard[0].server[0].port, 2);
    buf_free(&text);
    slot_map_destroy(&again);
    slot_map_destroy(&m);
}

/* Drawn at random: what is written is read as the same. */
TEST(any_map_is_its_text) {
    struct rng r;
    rng_seed(&r, 3);
    for (int round = 0; round < 50; round++) {
        struct slot_map *m = xcalloc(1, sizeof(*m));
        m->epoch = 1 + rng_below(&r, 1000);
        m->shards = 1 + (unsigned)rng_below(&r, SLOT_SHARDS_MAX);
        for (unsigned i = 0; i < m->shards; i++) {
            struct slot_shard *s = &m->shard[i];
            snprintf(s->name, sizeof(s->name), "n%03u", i);
            s->master_epoch = rng_below(&r, 1000);
            s->servers = (unsigned)rng_below(&r, SLOT_SERVERS_MAX + 1);
            for (unsigned k = 0; k < s->servers; k++) {
                snprintf(s->server[k].host, sizeof(s->server[k].host), "h%u", k);
                s->server[k].port = (uint16_t)(1 + rng_below(&r, 65535));
            }
        }
        unsigned owner = SLOT_NOBODY, target = SLOT_NOBODY;
        for (uint32_t slot = 0; slot < SLOT_COUNT; slot++) {
            if (rng_below(&r, 100) == 0) {
                owner = (unsigned)rng_below(&r, m->shards + 1);
                if (owner == m->shards) owner = SLOT_NOBODY;
                target = (unsigned)rng_below(&r, m->shards);
                if (target == owner || owner == SLOT_NOBODY || rng_below(&r, 2) == 0)
                    target = SLOT_NOBODY;
            }
            m->owner[slot] = (uint8_t)owner;
            m->target[slot] = (uint8_t)target;
        }
        struct buf text = {NULL, 0, 0};
        slot_map_write(m, &text);
        buf_append_char(&text, '\0');
        struct slot_map *again = read_ok(text.data);
        CHECK(memcmp(again, m, sizeof(*m)) == 0);
        buf_free(&text);
        slot_map_destroy(&again);
        slot_map_destroy(&m);
    }
}

TEST_MAIN()
