/* The data port against peers that do not keep to the protocol: raw frames over a socket. */
#define SUITE "tcp"
#include "raw.h"

static bool others_are_served(void) {
    uint8_t data[4096] = {1};
    struct object o;
    object_init(&o, w.size - 8192, 4096, 1, 1);
    return move(engine, &o, true, data, NULL) == TARN_OK;
}

TEST(half_a_frame_then_silence) {
    begin_idle_ms = 1500;
    begin(1u << 20, false);
    begin_idle_ms = 0;
    struct object o;
    object_init(&o, 0, 4096, 1, 9);
    int quiet = dial(), half = dial(), middle = dial(), idle = dial();
    hello(half, 1, 1);
    hello(middle, 1, 1);
    hello(idle, 1, 1);
    struct request r = request(&o, true, 1);
    put(half, &r, 40);
    put(middle, &r, sizeof(r));
    put(middle, "abc", 3);
    uint64_t start = clock_boot_ms();
    CHECK(is_closed(half));
    CHECK(is_closed(middle));
    CHECK(is_closed(quiet)); /* not even HELLO */
    CHECK(clock_boot_ms() - start < 30000);
    CHECK_EQ(world_stats(&w).timeouts, 3);
    CHECK(others_are_served());
    r = request(&o, false, 2); /* between frames one may be silent for as long as one likes */
    put(idle, &r, sizeof(r));
    struct tcp_header reply;
    CHECK(get(idle, &reply, sizeof(reply)) && reply.status == TCP_OK && reply.payload_length == 4096);
    close(quiet), close(half), close(middle), close(idle);
    end();
}

TEST(garbage_costs_the_connection_only) {
    begin(1u << 20, false);
    struct rng r;
    rng_seed(&r, 7);
    for (int i = 0; i < 300 / SCALE; i++) {
        int fd = dial();
        uint8_t junk[300];
        fill(junk, sizeof(junk), (uint64_t)i);
        if (i % 2) { /* after a good start, and with a good magic */
            hello(fd, 1, 1);
            memcpy(junk, &(uint32_t){TCP_MAGIC}, 4);
            if (i % 4 == 3) junk[4] = TCP_VERSION;
        }
        put(fd, junk, sizeof(junk));
        CHECK(is_closed(fd));
        close(fd);
    }
    CHECK(world_stats(&w).bad_frames >= 300 / SCALE);
    CHECK(others_are_served());
    end();
}

TEST(lengths_that_lie) {
    begin(1u << 20, false);
    struct object o;
    object_init(&o, 0, 4096, 1, 1);
    for (int i = 0; i < 8; i++) {
        struct request r = request(&o, i < 4, 1);
        switch (i) {
        case 0: r.h.payload_length = 4097; break; /* not the sum of its parts */
        case 1: r.h.payload_length = UINT64_MAX; break;
        case 2: r.part.sub_length = r.h.payload_length = UINT64_MAX; break;
        case 3: r.h.meta_length = 81; break;
        case 4: r.h.meta_length = 0xfffffff0; break;
        case 5: r.part.sub_length = 1ull << 40; break;
        case 6: r.h.meta_length = 0; break;
        case 7: r.h.payload_length = 5; break; /* a READ has none */
        }
        int fd = dial();
        hello(fd, 1, 1);
        put(fd, &r, sizeof(r));
        CHECK(is_closed(fd));
        close(fd);
    }
    CHECK_EQ(world_stats(&w).bad_frames, 8);
    int fd = dial(); /* inside the frame's limits, outside the extent's */
    hello(fd, 1, 1);
    struct request r = request(&o, false, 5);
    r.part.sub_offset = UINT64_MAX;
    put(fd, &r, sizeof(r));
    struct tcp_header reply;
    CHECK(get(fd, &reply, sizeof(reply)));
    CHECK_EQ(reply.status, GRANT_BAD_RANGE);
    close(fd);
    end();
}

TEST(versions_are_negotiated_or_refused) {
    begin(1u << 20, false);
    int fd = dial();
    CHECK_EQ(hello(fd, 1, 9).status, TCP_OK);
    close(fd);
    fd = dial();
    CHECK_EQ(hello(fd, 2, 9).status, TCP_BAD_VERSION);
    CHECK(is_closed(fd));
    close(fd);
    end();
}

TEST(a_refused_write_is_drained) {
    begin(4u << 20, false);
    struct object o;
    object_init(&o, 0, 1u << 20, 1, 9);
    int fd = dial();
    hello(fd, 1, 1);
    uint8_t *data = malloc(1u << 20);
    memset(data, 0xaa, 1u << 20);
    struct request r = request(&o, true, 1);
    r.part.grant[39] ^= 1;
    put(fd, &r, sizeof(r));
    put(fd, data, 1u << 20);
    r = request(&o, true, 2);
    put(fd, &r, sizeof(r));
    memset(data, 0xbb, 1u << 20);
    put(fd, data, 1u << 20);
    struct tcp_header reply[2];
    CHECK(get(fd, reply, sizeof(reply)));
    CHECK_EQ(reply[0].status, GRANT_BAD_MAC);
    CHECK_EQ(reply[1].status, TCP_OK);
    CHECK_EQ(reply[1].request_id, 2);
    CHECK(memcmp(host_segment_base(w.host, WORLD_SEGMENT), data, 1u << 20) == 0);
    free(data);
    close(fd);
    end();
}

/* Half of a WRITE is here when its right to be here ends. */
static int half_written(const struct object *o, uint8_t *data) {
    int fd = dial();
    hello(fd, 1, 1);
    struct request r = request(o, true, 1);
    put(fd, &r, sizeof(r));
    put(fd, data, o->size / 2);
    const uint8_t *base = host_segment_base(w.host, WORLD_SEGMENT);
    CHECK(WORLD_WAIT(peek(base + o->size / 2 - 1) == 0xaa));
    return fd;
}

TEST(a_write_loses_its_right_midway) {
    for (int how = 0; how < 3; how++) {
        begin(1u << 20, false);
        struct object o;
        uint8_t data[65536];
        memset(data, 0xaa, sizeof(data));
        object_init(&o, 0, sizeof(data), 1, 9);
        uint64_t expires_ms = clock_mono_ms() + 3000; /* half of it must be there by then */
        if (how == 2) {
            struct grant g = {GRANT_WRITE, w.master_epoch, 9, expires_ms};
            grant_seal(w.key, &g, &o.x[0], o.grant[1][0]);
        }
        int fd = half_written(&o, data);
        if (how == 0) {
            fence(9);
            CHECK(WORLD_WAIT(fenced(9)));
            CHECK(is_closed(fd));
        } else {
            if (how == 1) {
                __atomic_store_n(&w.state->authority_wanted, w.master_epoch + 1, __ATOMIC_RELEASE);
                CHECK(WORLD_WAIT(__atomic_load_n(&w.state->authority_wanted, __ATOMIC_ACQUIRE) == 0));
            } else {
                while (clock_mono_ms() <= expires_ms) usleep(10000);
            }
            put(fd, data, o.size / 2);
            struct tcp_header reply;
            CHECK(get(fd, &reply, sizeof(reply)));
            CHECK_EQ(reply.status, how == 1 ? GRANT_BAD_EPOCH : GRANT_EXPIRED);
        }
        const uint8_t *base = host_segment_base(w.host, WORLD_SEGMENT);
        CHECK_EQ(base[o.size / 2], 0);
        close(fd);
        end();
    }
}

TEST(one_that_does_not_read_stalls_nobody) {
    begin_threads = 1;
    begin(64u << 20, false);
    begin_threads = 2;
    struct object o;
    object_init(&o, 0, 32u << 20, 1, 9);
    int fds[20];
    for (int i = 0; i < 20; i++) {
        fds[i] = dial();
        hello(fds[i], 1, 1);
        struct request r = request(&o, false, 1);
        put(fds[i], &r, sizeof(r));
    }
    for (int i = 0; i < 20; i++) CHECK(others_are_served());
    for (int i = 0; i < 20; i++) close(fds[i]);
    end();
}

TEST(too_many_connections) {
    begin(1u << 20, false);
    CHECK(others_are_served());
    int fds[220];
    for (int i = 0; i < 220; i++) fds[i] = dial();
    CHECK(WORLD_WAIT(world_stats(&w).connections_refused >= 20));
    CHECK(others_are_served()); /* who is in stays in */
    for (int i = 0; i < 220; i++) close(fds[i]);
    CHECK(WORLD_WAIT(world_stats(&w).connections <= 1));
    end();
}

TEST_MAIN()
