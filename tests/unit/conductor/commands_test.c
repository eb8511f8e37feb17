/* Commands with what only a test can arrange: blocks that engines have, what is kept but odd, and
 * changes that are refused. */
#include "../test.h"
#include "conductor/conductor.h"
#include "conductor/kept.h"
#include "fake.h"
#include "route/hash.h"

/* The first `blocks` blocks of the tokens 0, 1, 2, ... are with that engine. */
static void blocks_store(const char *id, uint32_t rank, uint32_t blocks, enum route_tier tier,
                         struct span salt) {
    uint32_t tokens[1024];
    uint64_t rolling[64];
    for (uint32_t i = 0; i < 1024; i++) tokens[i] = i;
    size_t n = route_hash_prompt(tokens, blocks * 16, 16, NULL, 0, 0, rolling, 64);
    uint32_t worker = route_worker_find(conductor_route, span_str(id), rank);
    struct route_stored e = {.holder = route_worker_holder(conductor_route, worker),
                             .tier = tier,
                             .scope = route_hash_scope(SPAN("m"), SPAN(""), SPAN(""), salt, 16),
                             .n = n,
                             .rolling = rolling};
    CHECK_EQ(route_index_stored(route_index(conductor_route), &e), n);
}

static const char *call_tokens(const char *command, uint32_t n, bool odd_address) {
    char bytes[4096 + 1];
    struct span word[] = {span_str(command), SPAN("q"),      SPAN("MODEL"),
                          SPAN("m"),         SPAN("TOKENS"), span_of(bytes + odd_address, 4 * n)};
    bool match = strcmp(command, "conductor.match") == 0;
    for (uint32_t i = 0; i < n; i++) memcpy(bytes + odd_address + 4 * i, &i, 4);
    if (match) word[1] = word[0];
    return fake_call_words(word + match, 6 - match);
}

/* As many blocks are known as it was ever said to have. */
TEST(reports_raise_how_much_is_known_of_an_engine) {
    fake_begin();
    SAYS("conductor.add e1 http://e1 MODEL m KVBLOCKS 10", "OK");
    blocks_store("e1", 0, 10, ROUTE_TIER_DEVICE, SPAN(""));
    SAYS("conductor.load e1 KVBLOCKS 20", "OK");
    blocks_store("e1", 0, 20, ROUTE_TIER_DEVICE, SPAN(""));
    SAYS("conductor.load e1 KVBLOCKS 5", "OK");
    CHECK(strstr(call_tokens("conductor.match", 400, false), "device 320 ") != NULL);
    SAYS("conductor.load e1 KVBLOCKS 4294967295", "OK");
    SAYS("conductor.load e1 KVBLOCKS 1099511627776", "OK");
    fake_end();
}

TEST(hits_are_told_by_tier) {
    fake_begin();
    SAYS("conductor.add e1 http://e1 MODEL m", "OK");
    SAYS("conductor.add e2 http://e2 MODEL m RANK 3", "OK");
    blocks_store("e1", 0, 10, ROUTE_TIER_DEVICE, SPAN(""));
    blocks_store("e1", 0, 20, ROUTE_TIER_HOST, SPAN(""));
    blocks_store("e2", 3, 5, ROUTE_TIER_DISK, SPAN(""));
    for (int odd = 0; odd < 2; odd++) {
        const char *said = call_tokens("conductor.match", 400, odd);
        CHECK(strstr(said, "%6 id e1 rank 0 device 160 host 320 disk 320 pool 0") != NULL);
        CHECK(strstr(said, "%6 id e2 rank 3 device 0 host 0 disk 80 pool 0") != NULL);
    }
    CHECK(strncmp(call_tokens("conductor.route", 400, true), "*7 e1 nil *3 160 160 0 0 ", 24) == 0);
    HAS("conductor.explain q", "why chosen");
    HAS("conductor.info e1", " blocks 20");
    /* The rank of another engine is told with it, as it is not 0. */
    SAYS("conductor.drain e1", "OK");
    CHECK(strncmp(call_tokens("conductor.route", 400, false), "*7 *2 e2 3 nil *3 0 0 80", 24) == 0);
    SAYS("conductor.remove e1", "OK");
    SAYS("conductor.remove e2", "OK");
    SAYS("conductor.match MODEL m LENGTH 400", "*0");
    fake_end();
}

/* The same blocks under another salt are no hit, and DOCTOR says why nobody hits. */
TEST(hashes_of_another_salt_or_seed) {
    fake_begin();
    SAYS("conductor.add e1 http://e1 MODEL m SALT s", "OK");
    blocks_store("e1", 0, 10, ROUTE_TIER_DEVICE, SPAN("s"));
    CHECK_STR(call_tokens("conductor.match", 400, false), "*0");
    HAS("conductor.match MODEL m SALT s HASHES 1 1 LENGTH 400", "*0");
    for (int i = 0; i < 20; i++) {
        HAS("conductor.route q MODEL m SALT s HASHES 1 77 LENGTH 400", "*7 e1 nil *3 0 0 0 0 ");
        CHECK_STR(fake_call("conductor.done q"), "OK");
    }
    HAS("conductor.doctor", "None of 20 prompts for model m had a block anywhere");
    fake_end();
}

TEST(what_is_kept_but_odd_is_left_out) {
    fake_begin();
    SAYS("conductor.add e1 http://e1 MODEL m", "OK");
    fake_unload();
    fake_keep(SPAN("e/e2/0"), SPAN("m"));            /* cut off */
    fake_keep(SPAN("e/e3/64"), SPAN("u\1\0x"));      /* no such rank */
    fake_keep(SPAN("e//0"), SPAN(""));               /* no id */
    fake_keep(SPAN("e/"), SPAN(""));                 /* nothing at all */
    fake_keep(SPAN("e"), SPAN(""));                  /* of no kind */
    fake_keep(SPAN("d/none"), SPAN(""));             /* no engine */
    fake_keep(SPAN("l/e1"), SPAN("short"));          /* nothing that could be learnt */
    fake_keep(SPAN("r/q"), SPAN("12345678garbage")); /* no reservation */
    fake_keep(SPAN("r/"), SPAN(""));                 /* no name */
    fake_begin();
    CHECK(strncmp(fake_call("conductor.list"), "*1 %16 id e1 ", 13) == 0);
    fake_tick();
    CHECK(fake_find(SPAN("r/q")) == NULL); /* it leads, and nothing has it */
    /* A tag of a later version is passed over. */
    fake_keep(SPAN("e/e4/0"), SPAN("u\1\0xm\1\0mb\2\00016?\3\0new"));
    tarn_module_v1.durable_changed(NULL, NULL);
    HAS("conductor.info e4", "block 16");
    /* One that is another now: the route takes it as it is. */
    fake_keep(SPAN("e/e4/0"), SPAN("u\1\0xm\1\0mb\2\00032"));
    tarn_module_v1.durable_changed(NULL, NULL);
    HAS("conductor.info e4", "block 32");
    fake_end();
}

/* A server with fewer ranks than its master had: what did not fit is not said to be there. */
TEST(what_is_kept_but_has_no_room_is_no_engine) {
    static const char *const one[] = {"ranks", "1", "index-size", "1mb", NULL};
    fake_begin();
    SAYS("conductor.add e1 http://e1 MODEL m", "OK");
    SAYS("conductor.add e2 http://e2 MODEL m", "OK");
    fake_unload();
    fake_load(one);
    bool first = route_worker_find(conductor_route, SPAN("e1"), 0) != ROUTE_NO_WORKER;
    const char *there = first ? "e1" : "e2", *left_out = first ? "e2" : "e1";
    char line[64];
    snprintf(line, sizeof(line), "conductor.add %s http://%s MODEL m", left_out, left_out);
    HAS(line, "-LIMIT there are 1 ranks at most");
    snprintf(line, sizeof(line), "conductor.remove %s", there);
    SAYS(line, "OK");
    for (int i = 0; i < 4; i++) fake_tick(); /* its place is swept */
    snprintf(line, sizeof(line), "conductor.add %s http://%s MODEL m", left_out, left_out);
    SAYS(line, "OK");
    CHECK(strncmp(fake_call("conductor.list"), "*1 ", 3) == 0);
    fake_end();
}

/* Of a rank that is registered, and found no room, an engine's drain and keys stay. */
TEST(what_an_engine_has_stays_for_its_other_ranks) {
    static const char *const one[] = {"ranks", "1", "index-size", "1mb", NULL};
    fake_begin();
    SAYS("conductor.add e1 http://e1 MODEL m", "OK");
    SAYS("conductor.add e1 http://e1 MODEL m RANK 1", "OK");
    SAYS("conductor.drain e1", "OK");
    SAYS("conductor.keys e1 HASH TARN UNIT 16 ALIGN 16 KVGROUPS 1 m@ FULL 16 16 0 0", "OK");
    fake_keep(SPAN("l/e1"), SPAN("something learnt"));
    fake_unload();
    fake_load(one);
    bool first = route_worker_find(conductor_route, SPAN("e1"), 0) != ROUTE_NO_WORKER;
    SAYS(first ? "conductor.remove e1 RANK 0" : "conductor.remove e1 RANK 1", "OK");
    CHECK_EQ(fake.entries, 4);
    SAYS(first ? "conductor.remove e1 RANK 1" : "conductor.remove e1 RANK 0", "OK");
    CHECK_EQ(fake.entries, 0);
    fake_end();
}

TEST(changes_that_are_held_back_come_again) {
    fake_begin();
    SAYS("conductor.add e1 http://e1 MODEL m", "OK");
    CHECK(fake_call("conductor.route q MODEL m LENGTH 100")[0] == '*');
    CHECK(fake_find(SPAN("r/q")) != NULL);
    fake.refuse = TARN_ELATER;
    SAYS("conductor.done q", "OK");
    fake_tick();
    CHECK(fake_find(SPAN("r/q")) != NULL);
    fake.refuse = TARN_OK;
    fake_tick();
    CHECK(fake_find(SPAN("r/q")) == NULL);
    fake.refuse = TARN_ELIMIT;
    SAYS("conductor.add e2 http://e2 MODEL m",
         "-LIMIT there is no room to keep it: module-state-max");
    CHECK_EQ(route_worker_find(conductor_route, SPAN("e2"), 0), ROUTE_NO_WORKER);
    fake_end();
}

/* A replica follows by what it is told, and says nothing itself; promoted, it clears up. */
TEST(a_replica_follows_and_takes_over) {
    fake_begin();
    SAYS("conductor.add e1 http://e1 MODEL m", "OK");
    CHECK(fake_call("conductor.route q MODEL m LENGTH 100")[0] == '*');
    fake_unload();
    fake_begin();
    fake.leads = false;
    tarn_module_v1.role_changed(false);
    CHECK_EQ(route_figures_get(conductor_route)->route_reserved, 1);
    struct span name = SPAN("r/q");
    struct fake_entry *e = fake_find(name);
    struct span value = span_of(e->value, e->value_len);
    tarn_module_v1.durable_changed(&name, NULL);
    CHECK_EQ(route_figures_get(conductor_route)->route_reserved, 0);
    tarn_module_v1.durable_changed(&name, &value);
    CHECK_EQ(route_figures_get(conductor_route)->route_reserved, 1);
    route_requests_clear(conductor_route); /* as if its lease had ended here first */
    fake_tick();
    CHECK(fake_find(name) != NULL);
    fake.leads = true;
    tarn_module_v1.role_changed(true);
    fake_tick();
    CHECK(fake_find(name) == NULL);
    fake_end();
}

static const char *const many[] = {"ranks", "8", "requests", "2000", "index-size", "1mb", NULL};

/* Engine e1 has 1000 requests, q0 to q999. */
static void begin_with_many(void) {
    fake_load(many);
    SAYS("conductor.add e1 http://e1 MODEL m", "OK");
    for (int i = 0; i < 1000; i++) {
        char line[64];
        snprintf(line, sizeof(line), "conductor.route q%d MODEL m LENGTH 100", i);
        CHECK(fake_call(line)[0] == '*');
    }
}

TEST(ends_in_great_number_are_written_in_parts) {
    begin_with_many();
    CHECK_EQ(fake.entries, 1001);
    SAYS("conductor.remove e1", "OK");
    CHECK(fake.entries > 0);
    for (int i = 0; i < 4; i++) fake_tick();
    CHECK_EQ(fake.entries, 0);
    fake_end();
}

/* All at once would hold the loop for a tenth of a second. */
TEST(a_replica_takes_up_many_reservations_in_parts) {
    begin_with_many();
    const uint64_t *reserved = &route_figures_get(conductor_route)->route_reserved;
    fake.leads = false;
    tarn_module_v1.role_changed(false);
    tarn_module_v1.durable_changed(NULL, NULL);
    CHECK_EQ(*reserved, 0);
    fake_tick();
    CHECK_EQ(*reserved, 256);
    /* What changes meanwhile, followed or not yet, is followed once. */
    for (int i = 0; i < 1000; i += 2) {
        char text[16];
        snprintf(text, sizeof(text), "r/q%d", i);
        struct span name = span_str(text);
        struct fake_entry *e = fake_find(name);
        struct span value = span_of(e->value, e->value_len);
        if (i % 4 == 0) fake_forget(e);
        tarn_module_v1.durable_changed(&name, i % 4 == 0 ? NULL : &value);
    }
    fake_tick();
    CHECK(*reserved < 750);
    fake.leads = true;
    tarn_module_v1.role_changed(true);
    CHECK_EQ(*reserved, 750);
    fake_tick();
    CHECK_EQ(*reserved, 750);
    CHECK_EQ(fake.entries, 751);
    /* Who leads has all of it at once. */
    tarn_module_v1.durable_changed(NULL, NULL);
    CHECK_EQ(*reserved, 750);
    fake_end();
}

/* However much waits to be written. */
TEST(a_reservation_is_kept_before_it_is_told) {
    begin_with_many();
    SAYS("conductor.add e2 http://e2 MODEL m", "OK");
    SAYS("conductor.remove e1", "OK");
    CHECK(fake_find(SPAN("r/q999")) != NULL); /* not written yet */
    CHECK(fake_call("conductor.route mine MODEL m LENGTH 100")[0] == '*');
    CHECK(fake_find(SPAN("r/mine")) != NULL);
    SAYS("conductor.done mine", "OK");
    CHECK(fake_find(SPAN("r/mine")) == NULL);
    for (int i = 0; i < 8; i++) fake_tick();
    CHECK_EQ(fake.entries, 1); /* e2 */
    fake_end();
}

/* Requests of an engine that left do not come back with the module, whatever was not written. */
TEST(what_ended_has_ended_when_the_module_comes_back) {
    begin_with_many();
    SAYS("conductor.remove e1", "OK");
    CHECK(fake_find(SPAN("r/q999")) != NULL); /* not written yet */
    SAYS("conductor.add e1 http://e1 MODEL m", "OK");
    fake_unload();
    fake_load(many);
    CHECK_EQ(route_figures_get(conductor_route)->route_reserved, 0);
    CHECK_EQ(fake.entries, 1); /* e1 */
    fake_end();
}

TEST_MAIN()
