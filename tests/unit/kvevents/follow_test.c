/* Streams of real ZeroMQ sockets: gaps, replays in every form, engines that start anew, that lie,
 * that flood, that say nothing. What a consumer sees has no hole that it was not told of: engine.c
 * checks every number. */
#include "../test.h"

#include <poll.h>
#include <unistd.h>
#include <zmq.h>

#include "base/clock.h"
#include "base/rng.h"
#include "engine.h"

static struct engine e;
static struct kvevents_follow *f;
static struct seen seen;

static void begin(enum engine_replay how, bool replay, struct kvevents_follow_config *c) {
    engine_start(&e, how);
    f = follow_start(c);
    seen = (struct seen){.id = follow_engine(f, &e, replay)};
}

static void end(void) {
    kvevents_follow_destroy(&f);
    engine_free(&e);
}

/* It is there, what it kept is known, and what it says now arrives. */
static void settle(void) {
    FOLLOW_HEARD(f, &e, &seen);
}

static void publish(unsigned n) {
    while (n-- > 0) engine_publish(&e);
}

#define UNTIL(expr) FOLLOW_UNTIL(f, &e, &seen, expr)

static void short_times(struct kvevents_follow_config *c) {
    kvevents_follow_defaults(c);
    c->replay_timeout_ms = 30;
    c->replay_pause_ms = 1;
    c->verify_ms = 20;
    c->reconnect_max_ms = 20;
}

/* --- replays --- */

TEST(history_and_live) {
    begin(REPLAY_TWO, true, NULL);
    for (int i = 0; i < 5; i++) engine_make(&e);
    settle();
    UNTIL(seen.batches == 5);
    CHECK(follow_info(f, seen.id).whole);
    publish(5);
    UNTIL(seen.batches == 10);
    CHECK_EQ(seen.last_block, BLOCK_OF(&e, 9));
    CHECK_EQ(seen.lost, 0);
    struct kvevents_info i = follow_info(f, seen.id);
    CHECK(i.whole && i.connected && i.begun);
    CHECK_EQ(i.last, 9);
    CHECK_EQ(i.figures.kvevents_batches, 10);
    CHECK_EQ(i.figures.kvevents_blocks, 10);
    CHECK(i.figures.kvevents_replayed >= 5);
    CHECK(i.message_ms > 0);
    end();
}

TEST(replays_in_every_form) {
    for (enum engine_replay how = REPLAY_TWO; how <= REPLAY_OLDEST; how++) {
        begin(how, true, NULL);
        for (int i = 0; i < 3; i++) engine_make(&e);
        settle();
        publish(1);
        for (int i = 0; i < 3; i++) engine_make(&e); /* nobody hears of these */
        publish(1);
        UNTIL(seen.batches == 8);
        CHECK(follow_info(f, seen.id).whole);
        CHECK_EQ(seen.lost, 0);
        end();
    }
}

/* Nothing comes after what was missed: found out when it is quiet. */
TEST(gap_before_a_silence) {
    begin(REPLAY_THREE, true, NULL);
    settle();
    publish(2);
    UNTIL(seen.batches == 2);
    engine_make(&e);
    engine_make(&e);
    unsigned asked = e.asked;
    engine_greet(&e); /* it is quiet from now on */
    UNTIL(seen.batches == 4 && e.asked > asked);
    CHECK_EQ(seen.lost, 0);
    end();
}

TEST(gap_that_is_not_kept) {
    begin(REPLAY_TWO, true, NULL);
    settle();
    publish(3);
    UNTIL(seen.batches == 3);
    for (int i = 0; i < 10; i++) engine_make(&e);
    e.first = 10;
    publish(1);
    UNTIL(seen.lost == 1 && seen.batches == 4);
    struct kvevents_info i = follow_info(f, seen.id);
    CHECK(!i.whole);
    CHECK(strstr(seen.why, "batches 3 to 9 are missing") != NULL);
    CHECK_STR(i.why_partial, seen.why);
    /* The engine forgets all: everything is known again. */
    uint64_t cleared = engine_make_cleared(&e);
    engine_say(&e, cleared, cleared);
    UNTIL(seen.cleared == 1);
    i = follow_info(f, seen.id);
    CHECK(i.whole);
    CHECK_STR(i.why_partial, "");
    CHECK_EQ(i.figures.kvevents_lost, 1);
    end();
}

TEST(joined_late) {
    begin(REPLAY_TWO, true, NULL);
    e.next = e.first = 20;
    publish(2);
    UNTIL(seen.batches == 2);
    struct kvevents_info i = follow_info(f, seen.id);
    CHECK(!i.whole);
    CHECK(strstr(i.why_partial, "before batch 20") != NULL);
    CHECK_EQ(seen.lost, 0); /* nothing was known */
    end();
}

/* An answer without batches: there were none since the engine's start. */
TEST(nothing_published_yet) {
    for (enum engine_replay how = REPLAY_TWO; how <= REPLAY_OLDEST; how++) {
        begin(how, true, NULL);
        UNTIL(i.whole && i.state == KVEVENTS_LIVE);
        CHECK(!follow_info(f, seen.id).begun);
        settle();
        publish(2);
        UNTIL(seen.batches == 2);
        CHECK(follow_info(f, seen.id).whole);
        engine_stop(&e);
        UNTIL(!i.connected);
        engine_again(&e, true);
        UNTIL(seen.lost == 1 && i.whole);
        struct kvevents_info i = follow_info(f, seen.id);
        CHECK(!i.begun);
        CHECK_STR(i.why_partial, "");
        end();
    }
}

/* While it is connected, who does not answer takes nothing back. */
TEST(nothing_published_then_mute) {
    struct kvevents_follow_config c;
    short_times(&c);
    c.broken_ms = 5; /* on a busy machine it may be too late at first */
    begin(REPLAY_TWO, true, &c);
    UNTIL(i.whole);
    e.how = REPLAY_MUTE;
    settle();
    uint64_t errors = follow_info(f, seen.id).figures.kvevents_replay_errors;
    UNTIL(i.figures.kvevents_replay_errors >= errors + c.replay_tries && i.state == KVEVENTS_LIVE);
    CHECK(follow_info(f, seen.id).whole);
    engine_stop(&e);
    engine_again(&e, false);
    UNTIL(!i.whole);
    end();
}

/* Answers of a publisher that keeps nothing prove nothing, once it is known for that. */
TEST(keeps_nothing) {
    begin(REPLAY_TWO, true, NULL);
    settle();
    engine_publish(&e);
    UNTIL(seen.batches == 1);
    e.first = e.next;
    engine_greet(&e); /* it is quiet from now on */
    UNTIL(seen.lost == 1 && i.figures.kvevents_connects >= 2 && i.state == KVEVENTS_LIVE);
    CHECK(!follow_info(f, seen.id).whole);
    settle();
    CHECK(!follow_info(f, seen.id).whole);
    end();
}

/* --- without a replay endpoint --- */

TEST(no_replay_endpoint) {
    begin(REPLAY_TWO, false, NULL);
    settle();
    CHECK(!follow_info(f, seen.id).whole);
    publish(3);
    UNTIL(seen.batches == 3);
    CHECK(follow_info(f, seen.id).whole);
    engine_make(&e);
    publish(2);
    UNTIL(seen.lost == 1 && seen.batches == 2);
    CHECK(strstr(seen.why, "batches 3 to 3 are missing") != NULL);
    CHECK(strstr(seen.why, "no replay endpoint") != NULL);
    CHECK_EQ(follow_info(f, seen.id).figures.kvevents_replays, 0);
    /* numbers that begin again */
    engine_stop(&e);
    engine_again(&e, true);
    settle();
    publish(1);
    UNTIL(seen.lost == 2 && seen.batches == 1);
    CHECK(follow_info(f, seen.id).whole);
    CHECK_EQ(seen.last_block, BLOCK_OF(&e, 0));
    end();
}

/* --- engines that go and come --- */

TEST(started_anew) {
    begin(REPLAY_TWO, true, NULL);
    settle();
    publish(5);
    UNTIL(seen.batches == 5);
    engine_stop(&e);
    UNTIL(!i.connected && i.state == KVEVENTS_CONNECTING);
    engine_again(&e, true);
    for (int i = 0; i < 3; i++) engine_make(&e);
    UNTIL(seen.lost == 1 && seen.batches == 3);
    CHECK(strstr(seen.why, "started anew") != NULL);
    CHECK(follow_info(f, seen.id).whole);
    CHECK_EQ(follow_info(f, seen.id).figures.kvevents_restarts, 1);
    end();
}

/* By the time it is connected again it has come further than it was: its numbers fit, its batches
 * do not. */
TEST(started_anew_and_overtaken) {
    begin(REPLAY_THREE, true, NULL);
    settle();
    publish(5);
    UNTIL(seen.batches == 5);
    engine_stop(&e);
    engine_again(&e, true);
    for (int i = 0; i < 9; i++) engine_make(&e);
    UNTIL(seen.lost == 1 && seen.batches == 9);
    CHECK_EQ(seen.last_block, BLOCK_OF(&e, 8));
    CHECK(follow_info(f, seen.id).whole);
    end();
}

/* The replay reaches another life than what is heard, whose number would follow. */
TEST(started_anew_before_the_replay) {
    for (int heard_first = 0; heard_first < 2; heard_first++) {
        begin(REPLAY_TWO, true, NULL);
        settle();
        for (int i = 0; i < 5; i++) engine_make(&e);
        if (heard_first) engine_say(&e, 4, 4);
        e.life++;
        e.next = 0;
        for (int i = 0; i < 4; i++) engine_make(&e);
        if (!heard_first) {
            engine_greet(&e); /* it is quiet from now on */
            UNTIL(seen.batches == 4);
            engine_say(&e, 4, 4); /* of the life before */
        }
        UNTIL(seen.lost == 1 && seen.batches == 4);
        CHECK_EQ(seen.life, e.life);
        settle();
        publish(1);
        UNTIL(seen.batches == 5 || seen.lost > 1);
        CHECK_EQ(seen.lost, 1);
        end();
    }
}

/* The network, not the engine: nothing is lost. */
TEST(connection_lost_and_back) {
    begin(REPLAY_TWO, true, NULL);
    settle();
    publish(5);
    UNTIL(seen.batches == 5);
    engine_stop(&e);
    engine_again(&e, false);
    for (int i = 0; i < 3; i++) engine_make(&e);
    UNTIL(seen.batches == 8 && i.figures.kvevents_connects >= 2);
    CHECK_EQ(seen.lost, 0);
    CHECK(follow_info(f, seen.id).whole);
    end();
}

TEST(nobody_there_yet) {
    begin(REPLAY_TWO, true, NULL);
    kvevents_follow_remove(f, seen.id);
    engine_stop(&e);
    seen.id = follow_engine(f, &e, true);
    CHECK_EQ(follow_info(f, seen.id).state, KVEVENTS_CONNECTING);
    engine_again(&e, true);
    engine_make(&e);
    UNTIL(seen.batches == 1 && i.whole);
    end();
}

/* --- replays that fail --- */

TEST(mute_at_the_replay_endpoint) {
    struct kvevents_follow_config c;
    short_times(&c);
    begin(REPLAY_MUTE, true, &c);
    engine_make(&e);
    UNTIL(i.figures.kvevents_replay_errors >= c.replay_tries && i.state == KVEVENTS_LIVE);
    CHECK(strstr(follow_info(f, seen.id).why_replay, "does not answer") != NULL);
    settle();
    publish(2);
    UNTIL(seen.batches == 2);
    struct kvevents_info i = follow_info(f, seen.id);
    CHECK(!i.whole);
    CHECK(strstr(i.why_partial, "before batch 1") != NULL);
    /* Not asked for a while; a gap is a loss at once. */
    unsigned asked = e.asked;
    engine_make(&e);
    publish(1);
    UNTIL(seen.lost == 1 && seen.batches == 1);
    CHECK_EQ(e.asked, asked);
    end();
}

TEST(replays_that_lie) {
    static const struct {
        enum engine_replay how;
        const char *why;
    } lies[] = {{REPLAY_BACK, "goes back"},
                {REPLAY_OTHERS, "before what was asked"},
                {REPLAY_ODD, "another form"}};
    for (size_t k = 0; k < sizeof(lies) / sizeof(lies[0]); k++) {
        struct kvevents_follow_config c;
        short_times(&c);
        c.replay_timeout_ms = 5000; /* it does answer */
        begin(REPLAY_TWO, true, &c);
        settle();
        publish(4);
        UNTIL(seen.batches == 4);
        e.how = lies[k].how;
        engine_make(&e);
        engine_make(&e);
        publish(1);
        UNTIL(seen.lost == 1 && seen.batches == 1);
        struct kvevents_info i = follow_info(f, seen.id);
        CHECK(strstr(i.why_replay, lies[k].why) != NULL);
        CHECK(!i.whole);
        CHECK_EQ(seen.last_block, BLOCK_OF(&e, 6));
        end();
    }
}

/* vLLM's socket drops what is more than a thousand batches ahead of who reads. */
TEST(replays_with_holes_are_asked_for_again) {
    begin(REPLAY_CUT, true, NULL);
    for (int i = 0; i < 1000; i++) engine_make(&e);
    UNTIL(seen.batches == 1000);
    CHECK(follow_info(f, seen.id).whole);
    CHECK_EQ(seen.lost, 0);
    settle();
    for (int i = 0; i < 500; i++) engine_make(&e); /* nobody hears of these */
    publish(1);
    UNTIL(seen.batches == 1501);
    CHECK_EQ(seen.lost, 0);
    CHECK(e.asked < 16);
    end();
}

TEST(replays_without_an_end) {
    struct kvevents_follow_config c;
    short_times(&c);
    c.broken_ms = 50;
    begin(REPLAY_ENDLESS, true, &c);
    for (int i = 0; i < 3; i++) engine_make(&e);
    UNTIL(i.figures.kvevents_replay_errors >= c.replay_tries && seen.batches == 3);
    CHECK_EQ(seen.lost, 0);
    settle();
    publish(1);
    UNTIL(seen.last_block == BLOCK_OF(&e, 3));
    end();
}

/* Once it answers all is known, though it has nothing new to say. */
TEST(mute_for_a_while) {
    struct kvevents_follow_config c;
    short_times(&c);
    c.broken_ms = 50;
    begin(REPLAY_MUTE, true, &c);
    engine_make(&e);
    UNTIL(i.figures.kvevents_replay_errors >= c.replay_tries && i.state == KVEVENTS_LIVE);
    CHECK(!follow_info(f, seen.id).whole);
    e.how = REPLAY_TWO;
    UNTIL(seen.batches == 1 && i.whole);
    /* ... and when it is mute at a time when something is heard */
    e.how = REPLAY_MUTE;
    settle();
    uint64_t errors = follow_info(f, seen.id).figures.kvevents_replay_errors;
    UNTIL(i.figures.kvevents_replay_errors >= errors + c.replay_tries && i.state == KVEVENTS_LIVE);
    engine_make(&e); /* nobody hears of it */
    engine_greet(&e);
    e.how = REPLAY_TWO;
    UNTIL(seen.batches == 2);
    CHECK_EQ(seen.lost, 0);
    end();
}

/* A number out of the blue: what leads to it is asked for, and does not exist. */
TEST(numbers_that_jump) {
    struct kvevents_follow_config c;
    short_times(&c);
    c.replay_timeout_ms = 5000;
    c.verify_ms = 60000; /* that would find out */
    begin(REPLAY_TWO, true, &c);
    settle();
    publish(2);
    UNTIL(seen.batches == 2);
    engine_make(&e);
    engine_say(&e, 2, UINT64_C(1) << 62);
    UNTIL(seen.lost == 1 && seen.batches == 1);
    CHECK(strstr(seen.why, "did not bring them") != NULL);
    engine_say(&e, 2, 7);
    UNTIL(seen.lost >= 2 && i.state == KVEVENTS_LIVE);
    end();
}

/* --- what is no batch --- */

TEST(garbage) {
    begin(REPLAY_TWO, true, NULL);
    settle();
    publish(2);
    UNTIL(seen.batches == 2);
    uint64_t bad = engine_make_garbage(&e);
    engine_say(&e, bad, bad);
    publish(1);
    UNTIL(seen.lost == 1 && seen.batches == 1);
    struct kvevents_info i = follow_info(f, seen.id);
    CHECK(!i.whole);
    CHECK_EQ(i.figures.kvevents_decode_errors, 1);
    CHECK_STR(i.why_decode, "batch 2: no batch of events: neither a list nor a map");
    /* messages of other forms; greetings were earlier */
    uint64_t others = i.figures.kvevents_bad_messages;
    zmq_send(e.pub, "x", 1, 0);
    for (int k = 0; k < 9; k++) zmq_send(e.pub, "xxxxxxxx", 8, k < 8 ? ZMQ_SNDMORE : 0);
    UNTIL(i.figures.kvevents_bad_messages == others + 2);
    publish(1);
    UNTIL(seen.batches == 2);
    CHECK_EQ(seen.lost, 1);
    end();
}

/* Longer than a message may be: libzmq ends the connection; in a replay as well. */
TEST(giants) {
    struct kvevents_follow_config c;
    short_times(&c);
    c.message_max_bytes = 4096;
    begin(REPLAY_TWO, true, &c);
    settle();
    publish(2);
    UNTIL(seen.batches == 2);
    uint64_t connects = follow_info(f, seen.id).figures.kvevents_connects;
    uint64_t giant = engine_make_long(&e, 5000);
    engine_say(&e, giant, giant);
    UNTIL(i.figures.kvevents_connects > connects);
    settle();
    publish(1);
    UNTIL(seen.lost == 1 && seen.batches == 1);
    CHECK_EQ(seen.last_block, BLOCK_OF(&e, 3));
    end();
}

/* --- floods, and slow consumers --- */

TEST(flood) {
    struct kvevents_follow_config c;
    short_times(&c);
    c.replay_timeout_ms = 5000;
    c.queue_max_bytes = 20000;
    begin(REPLAY_TWO, true, &c);
    settle();
    /* Nobody takes: it stops to read, and the publisher drops. */
    struct kvevents_info info;
    unsigned messages = (unsigned)test_rounds(1500);
    for (unsigned n = 0; n < messages; n++) {
        uint64_t number = engine_make_long(&e, 1000);
        engine_say(&e, number, number);
    }
    uint64_t until = clock_mono_ms() + TEST_PATIENCE_MS;
    do {
        engine_pump(&e);
        info = follow_info(f, seen.id);
        CHECK(clock_mono_ms() < until);
        usleep(500);
    } while (info.figures.kvevents_stalls == 0);
    CHECK(info.figures.kvevents_queued_bytes < c.queue_max_bytes + 1000);
    publish(1);
    /* Taken again: the gap is filled. */
    UNTIL(seen.batches == messages + 1);
    CHECK_EQ(seen.lost, 0);
    CHECK(follow_info(f, seen.id).whole);
    end();
}

/* One stream that nobody bounds takes nothing from another. */
TEST(flood_beside_another) {
    static struct engine other;
    struct kvevents_follow_config c;
    short_times(&c);
    c.replay_timeout_ms = 5000;
    c.queue_max_bytes = 20000;
    begin(REPLAY_TWO, true, &c);
    engine_start(&other, REPLAY_THREE);
    settle();
    for (int n = 0; n < 300; n++) engine_publish(&e);
    uint64_t until = clock_mono_ms() + TEST_PATIENCE_MS;
    while (follow_info(f, seen.id).figures.kvevents_stalls == 0) {
        engine_pump(&e);
        CHECK(clock_mono_ms() < until);
        usleep(500);
    }
    uint32_t id = follow_engine(f, &other, true);
    engine_make(&other);
    while (!follow_info(f, id).whole) {
        engine_pump(&other);
        CHECK(clock_mono_ms() < until);
        usleep(500);
    }
    /* It is the second that is taken. */
    struct kvevents_item item;
    CHECK(kvevents_follow_take(f, &item));
    kvevents_batch_destroy(&item.batch);
    CHECK(kvevents_follow_take(f, &item));
    CHECK_EQ(item.id, id);
    kvevents_batch_destroy(&item.batch);
    end();
    engine_free(&other);
}

/* --- from outside --- */

TEST(descriptor_to_watch) {
    begin(REPLAY_TWO, false, NULL); /* nobody would answer while it is waited for */
    settle();
    struct pollfd p = {.fd = kvevents_follow_fd(f), .events = POLLIN};
    CHECK_EQ(poll(&p, 1, 0), 0);
    publish(1);
    CHECK_EQ(poll(&p, 1, (int)TEST_PATIENCE_MS), 1);
    UNTIL(seen.batches == 1);
    CHECK_EQ(poll(&p, 1, 0), 0);
    end();
}

TEST(removed) {
    begin(REPLAY_TWO, true, NULL);
    settle();
    publish(20);
    UNTIL(seen.batches > 0);
    publish(20);
    kvevents_follow_remove(f, seen.id);
    struct kvevents_item item;
    struct kvevents_info info;
    CHECK(!kvevents_follow_take(f, &item));
    CHECK(!kvevents_follow_info(f, seen.id, &info));
    kvevents_follow_remove(f, seen.id);
    uint32_t id = follow_engine(f, &e, true);
    CHECK(id > seen.id);
    seen = (struct seen){.id = id};
    UNTIL(seen.batches == 40);
    end();
}

TEST(refused) {
    struct kvevents_follow_config c;
    short_times(&c);
    c.streams_max = 2;
    begin(REPLAY_TWO, true, &c);
    static const char *const wrong[] = {"",          "inproc://a", "tcp://",       "tcp://*:1",
                                        "udp://a:1", "tcp://a",    "tcp://a:70000"};
    uint32_t id = 0;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct kvevents_source source = {.endpoint = wrong[i]};
        CHECK_EQ(kvevents_follow_add(f, &source, &id), TARN_EINVAL);
    }
    struct kvevents_source odd = {.endpoint = e.endpoint, .replay = "inproc://a"};
    CHECK_EQ(kvevents_follow_add(f, &odd, &id), TARN_EINVAL);
    follow_engine(f, &e, true);
    struct kvevents_source third = {.endpoint = e.endpoint};
    CHECK_EQ(kvevents_follow_add(f, &third, &id), TARN_ELIMIT);
    CHECK_EQ(id, 0);
    end();
}

TEST(topics) {
    begin(REPLAY_TWO, false, NULL);
    kvevents_follow_remove(f, seen.id);
    struct kvevents_source source = {.endpoint = e.endpoint, .topic = "kv@"};
    CHECK_EQ(kvevents_follow_add(f, &source, &seen.id), TARN_OK);
    settle();
    uint64_t wire = 0;
    zmq_send(e.pub, "other", 5, ZMQ_SNDMORE);
    zmq_send(e.pub, &wire, 8, ZMQ_SNDMORE);
    zmq_send(e.pub, "x", 1, 0);
    publish(1);
    UNTIL(seen.batches == 1);
    struct kvevents_figures figures = follow_info(f, seen.id).figures;
    CHECK_EQ(figures.kvevents_messages - figures.kvevents_bad_messages, 1);
    end();
}

/* --- anything, in any order --- */

static void anything(struct rng *r) {
    switch (rng_below(r, 12)) {
    case 0: engine_make(&e); break; /* nobody hears of it */
    case 1: e.first += (e.next - e.first) / 2; break;
    case 2:
        engine_stop(&e);
        engine_again(&e, rng_below(r, 2) == 0);
        break;
    case 3: {
        uint64_t bad = engine_make_garbage(&e);
        engine_say(&e, bad, bad);
        break;
    }
    case 4:
        if (e.next > e.first) engine_say(&e, e.first, rng_below(r, e.next + 3));
        break;
    case 5: e.how = (enum engine_replay)rng_below(r, REPLAY_ODD + 1); break;
    default: publish(1 + (unsigned)rng_below(r, 5));
    }
}

/* Whatever an engine does, in the end what is there is of one life, without a hole, up to its last
 * batch; and all of it, where the stream says that it is whole. */
TEST(anything_in_any_order) {
    struct kvevents_follow_config c;
    struct rng r;
    short_times(&c);
    c.broken_ms = 5;
    const char *env = getenv("TARN_MODEL_SEEDS");
    int rounds = env != NULL ? atoi(env) : test_rounds(15);
    for (int round = 0; round < rounds; round++) {
        rng_seed(&r, (uint64_t)round);
        begin(REPLAY_TWO, rng_below(&r, 4) > 0, &c);
        for (int i = 0; i < 40; i++) {
            anything(&r);
            engine_pump(&e);
            if (rng_below(&r, 3) == 0) seen_take(f, &seen, 1);
            if (rng_below(&r, 4) == 0) usleep((unsigned)rng_below(&r, 3000));
        }
        e.how = REPLAY_THREE;
        settle();
        uint64_t last = e.next;
        /* A number that was made up is taken for true until a true one is less. */
        UNTIL(engine_publish(&e) > last + 3);
        UNTIL(seen.last_block == BLOCK_OF(&e, e.next - 1));
        if (follow_info(f, seen.id).whole) CHECK_EQ(seen.expected, e.next);
        CHECK_EQ(seen.life, e.life);
        end();
    }
}

TEST_MAIN()
