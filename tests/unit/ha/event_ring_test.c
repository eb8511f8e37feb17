/* The ring of events against a list of everything that was ever added. */
#include "ha/event_ring.h"

#include "../test.h"
#include "base/rng.h"

#define EVENTS_MAX 20000u

static struct event_ring *ring;
static struct rng rng;
static uint32_t len_of[EVENTS_MAX + 1]; /* of event seq; its bytes follow from seq */
static uint64_t last;

static char byte_of(uint64_t seq, size_t i) {
    return (char)(seq * 31 + i * 7);
}

static void add(size_t len) {
    static char event[EVENT_RING_EVENT];
    CHECK(last < EVENTS_MAX);
    for (size_t i = 0; i < len; i++) event[i] = byte_of(last + 1, i);
    len_of[++last] = (uint32_t)len;
    CHECK_EQ(event_ring_add(ring, event, len), last);
}

/* Everything from seq on is there, in order, and nothing else. */
static void check_from(uint64_t seq) {
    struct event_cursor c;
    struct span event;
    CHECK(event_ring_seek(ring, seq, &c));
    for (; seq <= last; seq++) {
        CHECK_EQ(c.seq, seq);
        CHECK(event_ring_next(ring, &c, &event));
        CHECK_EQ(event.len, len_of[seq]);
        for (size_t i = 0; i < event.len; i += 97) CHECK(event.data[i] == byte_of(seq, i));
        CHECK(event.data[event.len - 1] == byte_of(seq, event.len - 1));
    }
    CHECK(!event_ring_next(ring, &c, &event));
    CHECK(!event_ring_next(ring, &c, &event));
}

static void begin(uint64_t bytes) {
    rng_seed(&rng, 42);
    last = 0;
    ring = event_ring_create(bytes);
}

static void end(void) {
    event_ring_destroy(&ring);
    CHECK(ring == NULL);
    event_ring_destroy(&ring);
}

TEST(empty) {
    struct event_cursor c;
    struct span event;
    begin(1);
    CHECK_EQ(event_ring_last(ring), 0);
    CHECK_EQ(event_ring_first(ring), 1);
    CHECK(event_ring_seek(ring, 1, &c));
    CHECK(!event_ring_next(ring, &c, &event));
    CHECK(!event_ring_seek(ring, 0, &c));
    CHECK(!event_ring_seek(ring, 2, &c));
    end();
}

TEST(every_place_can_be_found) {
    begin(UINT64_C(1) << 20);
    for (unsigned i = 0; i < 3000; i++) add(1 + rng_next(&rng) % 300);
    CHECK_EQ(event_ring_first(ring), 1);
    for (uint64_t seq = 1; seq <= last + 1; seq += 1 + rng_next(&rng) % 50) check_from(seq);
    check_from(last + 1);
    struct event_cursor c;
    CHECK(!event_ring_seek(ring, last + 2, &c));
    end();
}

/* The oldest go, so many that the rest fits; what is left is whole. */
TEST(oldest_go_first) {
    const uint64_t size = 4 * EVENT_RING_PIECE;
    begin(size);
    uint64_t before = 1;
    for (unsigned round = 0; round < 200; round++) {
        for (unsigned i = 0; i < 60; i++)
            add(1 + rng_next(&rng) % (round % 3 ? 500 : EVENT_RING_EVENT));
        uint64_t first = event_ring_first(ring), bytes = 0;
        CHECK(first >= before);
        before = first;
        for (uint64_t seq = first; seq <= last; seq++) bytes += len_of[seq] + 4;
        CHECK(bytes <= size);
        CHECK(last < 2000 || bytes >= size / 2); /* it is not emptied more than it must be */
        check_from(first);
        struct event_cursor c;
        CHECK(first == 1 || !event_ring_seek(ring, first - 1, &c));
        CHECK(event_ring_bytes(ring) < size + size / 8);
    }
    CHECK(before > 1);
    end();
}

TEST(memory_is_taken_as_it_is_used) {
    begin(UINT64_C(1) << 40);
    add(1);
    CHECK(event_ring_bytes(ring) < 2 * EVENT_RING_PIECE);
    for (unsigned i = 0; i < 100; i++) add(EVENT_RING_EVENT);
    CHECK_EQ(event_ring_first(ring), 1);
    check_from(1);
    end();
}

TEST(sizes_change_while_it_is_used) {
    begin(UINT64_C(1) << 20);
    for (unsigned round = 0; round < 300; round++) {
        for (unsigned i = 0; i < 50; i++) add(1 + rng_next(&rng) % 2000);
        uint64_t first = event_ring_first(ring);
        uint64_t size = rng_next(&rng) % (UINT64_C(1) << 20);
        event_ring_resize(ring, size);
        CHECK(event_ring_first(ring) >= first);
        CHECK(event_ring_bytes(ring) <= size + 4 * EVENT_RING_PIECE);
        check_from(event_ring_first(ring));
    }
    event_ring_resize(ring, 0); /* still two pieces */
    uint64_t first = event_ring_first(ring);
    CHECK(first <= last);
    check_from(first);
    end();
}

/* Events that fill a piece to its last byte, and the largest ones. */
TEST(edges) {
    begin(2 * EVENT_RING_PIECE);
    for (unsigned i = 0; i < 100; i++) add(EVENT_RING_EVENT - 4);
    check_from(event_ring_first(ring));
    CHECK_EQ(last - event_ring_first(ring) + 1, 8 + 4); /* 8 fill a piece, and 100 is 12 * 8 + 4 */
    end();
}

TEST_MAIN()
