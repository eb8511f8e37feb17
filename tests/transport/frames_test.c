/* The data port against peers that do not keep to the protocol: raw frames over a socket. */
#define SUITE "tcp"
#include "raw.h"

static bool others_are_served(void) {
    uint8_t data[4096] = {1};
    struct object o;
    object_init(&o, w.size - 8192, 4096, 1, 1);
    return move(engine, &o, true, data, NULL) == TARN_OK;
}

static bool reads(int fd, const struct object *o) {
    struct request r = request(o, false, 1);
    struct tcp_header reply = {0};
    char data[4096];
    put(fd, &r, sizeof(r));
    return get(fd, &reply, sizeof(reply)) && reply.status == TCP_OK &&
           reply.payload_length == o->size && get(fd, data, o->size);
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
    CHECK(reads(idle, &o));
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
    /* who has shown a grant may be silent between frames for as long as he likes */
    CHECK(reads(idle, &o));
    close(quiet), close(half), close(middle), close(idle);
    end();
}

static uint8_t byte_of(int fd, const struct object *o, uint64_t at) {
    struct request r = request(o, false, 1);
    struct tcp_header reply = {0};
    uint8_t byte = 0;
    r.part.sub_offset = at;
    r.part.sub_length = 1;
    put(fd, &r, sizeof(r));
    CHECK(get(fd, &reply, sizeof(reply)) && reply.payload_length == 1 && get(fd, &byte, 1));
    return byte;
}

/* A socket makes no event for the few bytes of a long payload that a slow peer sends at a time, but
 * they are news of it, and lie in place before the rest is there. */
TEST(bytes_that_come_slowly_are_taken) {
    begin(4u << 20, false);
    struct object o;
    static uint8_t rest[2u << 20];
    object_init(&o, 0, sizeof(rest), 1, 9);
    int slow = dial(), look = dial();
    hello(slow, 1, 1);
    hello(look, 1, 1);
    struct request r = request(&o, true, 1);
    put(slow, &r, sizeof(r));
    uint64_t at = 0;
    for (uint8_t n = 1; n <= 4; n++, at++) {
        put(slow, &n, 1);
        CHECK(WORLD_WAIT(byte_of(look, &o, at) == n));
    }
    fill(rest, sizeof(rest), 5);
    put(slow, rest, sizeof(rest) - at);
    struct tcp_header reply = {0};
    CHECK(get(slow, &reply, sizeof(reply)));
    CHECK_EQ(reply.status, TCP_OK);
    for (uint64_t i = at; i < sizeof(rest); i += 99991)
        CHECK_EQ(byte_of(look, &o, i), rest[i - at]);
    /* and what follows a payload is not waited for until there is as much again */
    CHECK_EQ(byte_of(slow, &o, at), rest[0]);
    close(slow), close(look);
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

static void hello_as(int fd, uint32_t program) {
    struct {
        struct tcp_header h;
        struct tcp_hello hello;
    } f = {.h = {.magic = TCP_MAGIC, .type = TCP_HELLO, .meta_length = sizeof(struct tcp_hello)},
           .hello = {.version_min = 1, .version_max = 1, .program = program}};
    put(fd, &f, sizeof(f));
    CHECK(get(fd, &f, sizeof(f)));
    CHECK_EQ(f.h.status, TCP_OK);
}

static void nothing_done(struct transport_op *op) {
    (void)op;
}

/* HELLO as tarn 0.1 says it, from either side. */
static const uint8_t hello_0_1[] = {'T', 'N', 'R', 'D', 0, 1, 0,  0, 0, 0,    0, 0, 0, 0,
                                    0,   0,   0,   0,   0, 0, 24, 0, 0, 0,    0, 0, 0, 0,
                                    0,   0,   0,   0,   1, 0, 1,  0, 1, 0,    0, 0, 0, 16,
                                    0,   0,   0,   0,   0, 0, 0,  0, 0, 0x40, 0, 0, 0, 0};

TEST(clients_of_0_1_are_served_and_counted_as_such) {
    begin(1u << 20, false);
    struct object o;
    object_init(&o, 0, 4096, 1, 9);
    struct {
        struct tcp_header h;
        struct tcp_hello hello;
    } answer;
    int old = dial(), now = dial(), liar = dial();
    put(old, hello_0_1, sizeof(hello_0_1));
    CHECK(get(old, &answer, sizeof(answer)));
    CHECK_EQ(answer.h.status, TCP_OK);
    CHECK_EQ(answer.h.meta_length, sizeof(struct tcp_hello)); /* all that 0.1 has to understand */
    CHECK_EQ(answer.hello.program, program_own());
    answer.hello.program = 0;
    CHECK(memcmp(&answer, hello_0_1, sizeof(answer)) == 0);
    hello_as(now, program_own());
    hello_as(liar, UINT32_MAX);
    CHECK_EQ(peers_of(0) + peers_of(program_own()), 0); /* strangers may say what they like */
    CHECK(reads(old, &o));
    CHECK(reads(now, &o));
    CHECK(WORLD_WAIT(peers_of(0) == 1 && peers_of(program_own()) == 1));
    CHECK(reads(liar, &o));
    CHECK(WORLD_WAIT(peers_of(0) == 2));
    close(old);
    close(liar);
    close(now);
    CHECK(WORLD_WAIT(peers_of(0) + peers_of(program_own()) == 0));
    end();
}

/* A host of 0.1: its answer to HELLO, and to a READ. */
TEST(hosts_of_0_1_are_understood) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);
    char uri[64], got[4] = "";
    int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(listening, (struct sockaddr *)&at, sizeof(at)) == 0 && listen(listening, 1) == 0);
    CHECK_EQ(getsockname(listening, (struct sockaddr *)&at, &len), 0);
    snprintf(uri, sizeof(uri), "tcp://127.0.0.1:%u", ntohs(at.sin_port));
    struct transport_domain_config config = {0};
    struct transport_domain *d;
    struct transport_endpoint *e;
    CHECK_EQ(transport_tcp.domain_open(&config, &d), TARN_OK);
    CHECK_EQ(transport_tcp.connect(d, uri, clock_boot_ms() + 60000, &e), TARN_OK);
    int fd = accept(listening, NULL, NULL);
    uint8_t asked[sizeof(hello_0_1)];
    while (recv(fd, asked, sizeof(asked), MSG_PEEK | MSG_DONTWAIT) < (ssize_t)sizeof(asked))
        transport_tcp.progress(d, 1u << 20);
    CHECK(get(fd, asked, sizeof(asked)));
    uint32_t program;
    memcpy(&program, asked + 44, sizeof(program));
    CHECK_EQ(program, program_own());
    memset(asked + 44, 0, sizeof(program));
    CHECK(memcmp(asked, hello_0_1, sizeof(asked)) == 0); /* what 0.1 reads of it is as ever */
    put(fd, hello_0_1, sizeof(hello_0_1));
    while (transport_tcp.endpoint_status(e) == TARN_EAGAIN) transport_tcp.progress(d, 1u << 20);
    CHECK_EQ(transport_tcp.endpoint_status(e), TARN_OK);
    uint8_t grant[GRANT_SIZE] = {0};
    struct transport_part part = {.extent = {1, 1, 0, 4}, .grant = grant, .sub_length = 4};
    struct iovec iov = {got, 4};
    struct transport_op op = {.kind = TRANSPORT_GET,
                              .parts = &part,
                              .n_parts = 1,
                              .iov = &iov,
                              .n_iov = 1,
                              .done = nothing_done},
                        *ops = &op;
    size_t accepted;
    CHECK_EQ(transport_tcp.submit(e, &ops, 1, &accepted), TARN_OK);
    struct request asks;
    while (recv(fd, &asks, sizeof(asks), MSG_PEEK | MSG_DONTWAIT) < (ssize_t)sizeof(asks))
        transport_tcp.progress(d, 1u << 20);
    struct tcp_header reply = {.magic = TCP_MAGIC,
                               .version = TCP_VERSION,
                               .type = TCP_REPLY,
                               .request_id = asks.h.request_id,
                               .payload_length = 4};
    put(fd, &reply, sizeof(reply));
    put(fd, "tarn", 4);
    while (transport_tcp.progress(d, 1u << 20) == 0) usleep(100);
    CHECK_EQ(op.status, TARN_OK);
    CHECK(memcmp(got, "tarn", 4) == 0);
    transport_tcp.endpoint_close(&e);
    transport_tcp.domain_close(&d);
    close(fd);
    close(listening);
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
            struct grant g = {GRANT_WRITE, w.master_epoch, 9, expires_ms, 0};
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
                CHECK(
                    WORLD_WAIT(__atomic_load_n(&w.state->authority_wanted, __ATOMIC_ACQUIRE) == 0));
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

/* --- those who show no good grant --- */

TEST(guarantee_4_who_shows_no_grant_makes_room_for_others) {
    for (unsigned threads = 1; threads <= 3; threads++) {
        begin_threads = threads;
        begin(1u << 20, false);
        struct object o;
        object_init(&o, 0, 4000, 1, 9);
        CHECK(others_are_served());
        int fds[420], kept = dial();
        hello(kept, 1, 1);
        CHECK(reads(kept, &o));
        for (int i = 0; i < 420; i++) {
            fds[i] = dial();
            if (i % 2 == 0) hello(fds[i], 1, 1);
            if (i % 100 == 99) {
                int fresh = dial(); /* gets in, and is served, although all places are taken */
                hello(fresh, 1, 1);
                CHECK(reads(fresh, &o));
                close(fresh);
            }
        }
        CHECK(WORLD_WAIT(world_stats(&w).connections_ousted >= 200));
        CHECK_EQ(world_stats(&w).connections_refused, 0);
        CHECK(world_stats(&w).connections <= 200);
        CHECK(others_are_served()); /* who has shown a grant stays in */
        CHECK(reads(kept, &o));
        CHECK(is_closed(fds[0])); /* the oldest went first */
        for (int i = 0; i < 420; i++) close(fds[i]);
        close(kept);
        CHECK(WORLD_WAIT(world_stats(&w).connections <= 1));
        CHECK(WORLD_WAIT(world_stats(&w).connections_new == 0));
        end();
    }
    begin_threads = 2;
}

TEST(who_has_shown_a_grant_is_not_driven_out) {
    begin(1u << 20, false);
    struct object o;
    object_init(&o, 0, 4000, 1, 9);
    int fds[200], n = 0;
    /* All places, but for the one that the world itself may have. */
    for (; n < 200; n++) {
        fds[n] = dial();
        hello(fds[n], 1, 1);
        if (!reads(fds[n], &o)) break;
        if (world_stats(&w).connections == 200) break;
    }
    int more[30];
    for (int i = 0; i < 30; i++) more[i] = dial();
    CHECK(WORLD_WAIT(world_stats(&w).connections_refused >= 30));
    CHECK(reads(fds[0], &o));
    CHECK_EQ(world_stats(&w).connections_ousted, 0);
    for (int i = 0; i < 30; i++) close(more[i]);
    for (int i = 0; i <= n && i < 200; i++) close(fds[i]);
    end();
}

TEST(guarantee_4_who_shows_no_grant_has_little_time) {
    begin_idle_ms = 700;
    begin(1u << 20, false);
    begin_idle_ms = 0;
    struct object o;
    object_init(&o, 0, 4000, 1, 9);
    int silent = dial(), greeted = dial(), slow = dial(), bad = dial(), good = dial();
    hello(greeted, 1, 1);
    hello(slow, 1, 1);
    hello(bad, 1, 1);
    hello(good, 1, 1);
    CHECK(reads(good, &o));
    /* A byte now and then, and requests that are refused, are no reason to stay. */
    struct request r = request(&o, false, 1);
    r.part.grant[3] ^= 1;
    for (size_t at = 0; world_stats(&w).connections_new > 0; at++) {
        (void)!send(slow, (const char *)&r + at % (sizeof(r) - 1), at % sizeof(r) < sizeof(r) - 1,
                    MSG_NOSIGNAL);
        (void)!send(bad, &r, sizeof(r), MSG_NOSIGNAL);
        usleep(20000);
    }
    CHECK(is_closed(silent));
    CHECK(is_closed(greeted));
    CHECK(is_closed(slow));
    CHECK(is_closed(bad));
    CHECK(world_stats(&w).timeouts >= 4);
    CHECK(reads(good, &o)); /* silent for as long, between two frames */
    close(silent), close(greeted), close(slow), close(bad), close(good);
    end();
}

TEST(guarantee_4_a_long_frame_begins_with_a_good_grant) {
    begin(1u << 20, false);
    struct object o;
    object_init(&o, 0, 4000, 1, 9);
    struct {
        struct tcp_header h;
        struct tcp_part part[4096];
    } *f = xcalloc(1, sizeof(*f));
    for (int way = 0; way < 3; way++) {
        struct request r = request(&o, false, 7);
        f->h = r.h;
        f->h.meta_length = sizeof(f->part);
        for (int i = 0; i < 4096; i++) {
            f->part[i] = r.part;
            f->part[i].sub_length = 0;
        }
        f->part[4095].sub_length = o.size;
        if (way == 0) f->part[0].grant[3] ^= 1;
        if (way == 1) f->part[1].grant[3] ^= 1;
        int fd = dial();
        hello(fd, 1, 1);
        struct tcp_header reply = {0};
        if (way == 0) { /* the rest is not waited for */
            put(fd, f, sizeof(f->h) + sizeof(f->part[0]));
            CHECK(get(fd, &reply, sizeof(reply)));
            CHECK_EQ(reply.status, GRANT_BAD_MAC);
            CHECK(is_closed(fd));
        } else {
            put(fd, f, sizeof(*f));
            CHECK(get(fd, &reply, sizeof(reply)));
            CHECK_EQ(reply.request_id, 7);
            CHECK_EQ(reply.status, way == 1 ? GRANT_BAD_MAC : TCP_OK);
            char data[4096];
            if (way == 2) CHECK(get(fd, data, o.size));
            CHECK(reads(fd, &o)); /* and it goes on */
        }
        close(fd);
    }
    free(f);
    end();
}

static bool done;
static void note_done(struct transport_op *op) {
    done = op->status == TARN_OK;
}

/* A client that was not run for a while: the reply had come by then. */
TEST(what_came_before_anyone_looked_is_not_late) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    int at = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(at, (struct sockaddr *)&a, len) == 0 && listen(at, 5) == 0);
    CHECK(getsockname(at, (struct sockaddr *)&a, &len) == 0);
    char uri[64];
    snprintf(uri, sizeof(uri), "tcp://127.0.0.1:%u", ntohs(a.sin_port));
    const struct transport_domain_config config = {0};
    struct transport_domain *d;
    struct transport_endpoint *e;
    CHECK_EQ(transport_tcp.domain_open(&config, &d), TARN_OK);
    CHECK_EQ(transport_tcp.connect(d, uri, clock_boot_ms() + WORLD_PATIENCE_MS, &e), TARN_OK);
    int fd = accept(at, NULL, NULL);
    struct {
        struct tcp_header h;
        struct tcp_hello hello;
    } hello = {
        .h = {.magic = TCP_MAGIC, .type = TCP_HELLO, .meta_length = sizeof(struct tcp_hello)},
        .hello = {.version_min = TCP_VERSION, .version_max = TCP_VERSION}};
    put(fd, &hello, sizeof(hello));
    CHECK(WORLD_WAIT(
        (transport_tcp.progress(d, 1u << 20), transport_tcp.endpoint_status(e) == TARN_OK)));
    CHECK(get(fd, &hello, sizeof(hello)));

    struct transport_part part = {.grant = (const uint8_t[GRANT_SIZE]){0}, .sub_length = 8};
    char bytes[8];
    struct iovec iov = {bytes, sizeof(bytes)};
    struct transport_op op = {.kind = TRANSPORT_GET,
                              .parts = &part,
                              .n_parts = 1,
                              .iov = &iov,
                              .n_iov = 1,
                              .done = note_done,
                              .patience_ms = WORLD_PATIENCE_MS};
    struct transport_op *ops = &op;
    size_t accepted;
    done = false;
    CHECK_EQ(transport_tcp.submit(e, &ops, 1, &accepted), TARN_OK);
    struct request r;
    transport_tcp.progress(d, 1u << 20);
    CHECK(get(fd, &r, sizeof(r)));
    op.patience_ms = 1; /* from the next look on */
    transport_tcp.progress(d, 1u << 20);
    struct {
        struct tcp_header h;
        char bytes[8];
    } reply = {.h = {.magic = TCP_MAGIC,
                     .version = TCP_VERSION,
                     .type = TCP_REPLY,
                     .payload_length = sizeof(bytes)}};
    put(fd, &reply, sizeof(reply));
    usleep(50000);
    transport_tcp.progress(d, 1u << 20);
    CHECK_EQ(op.status, TARN_OK);
    CHECK(done);
    transport_tcp.endpoint_close(&e);
    transport_tcp.domain_close(&d);
    close(fd);
    close(at);
}

/* --- a data port with a gate of ours, which takes its time --- */

#define LATE_BYTES 4096u /* of a WRITE's place */

/* Places of the WRITEs, by their extent's offset. */
enum { LATE_HOLDS = 0, LATE_ENDS = LATE_BYTES, LATE_MIDWAY = 2 * LATE_BYTES };

static struct {
    uint8_t memory[3 * LATE_BYTES];
    bool held, go_on; /* atomic; the data thread is in the gate, and may leave it */
} late;

static enum grant_verdict late_check(void *arg, const uint8_t grant[GRANT_SIZE],
                                     const struct grant_extent *extent, enum grant_op want,
                                     uint64_t sub_offset, uint64_t sub_length, struct grant *g_p,
                                     void **addr_p) {
    (void)arg, (void)grant, (void)sub_length;
    *g_p = (struct grant){.op = want};
    *addr_p = late.memory + extent->offset + sub_offset;
    return GRANT_OK;
}

static enum grant_verdict late_recheck(void *arg, const struct grant *g,
                                       const struct grant_extent *extent) {
    (void)arg, (void)g;
    if (extent->offset == LATE_HOLDS) {
        __atomic_store_n(&late.held, true, __ATOMIC_RELEASE);
        TARN_ASSERT(WORLD_WAIT(__atomic_load_n(&late.go_on, __ATOMIC_ACQUIRE)));
    } else if (extent->offset == LATE_ENDS) {
        usleep(5000); /* the next one's turn begins later than the round */
    }
    return GRANT_OK;
}

static struct request late_request(uint64_t offset, uint64_t size) {
    struct object o = {.size = size, .x[0] = {.offset = offset, .length = LATE_BYTES}};
    return request(&o, true, 1);
}

/* A connection in the middle of a WRITE of three bytes. */
static int late_begun(uint64_t offset) {
    struct request r = late_request(offset, 3);
    int fd = dial();
    hello(fd, 1, 1);
    put(fd, &r, sizeof(r));
    put(fd, "a", 1);
    CHECK(WORLD_WAIT(peek(late.memory + offset) == 'a'));
    return fd;
}

static void late_written(int fd) {
    struct tcp_header reply = {0};
    CHECK(get(fd, &reply, sizeof(reply)));
    CHECK_EQ(reply.status, TCP_OK);
    close(fd);
}

/* In one round, in which silence is looked for, too, one WRITE ends and bytes of another arrive
 * behind it, by a later clock than the round's. */
TEST(who_moves_later_in_a_round_is_not_silent) {
    world_init(&w, SUITE, 1u << 20);
    const struct transport_domain_config domain = {0};
    const struct transport_listen_config config = {
        .uris = (const char *const[]){"tcp://127.0.0.1:0"},
        .n_uris = 1,
        .threads = 1,
        .idle_timeout_ms = WORLD_PATIENCE_MS,
        .gate = {.check = late_check, .recheck = late_recheck}};
    struct transport_domain *d;
    struct transport_listener *l;
    CHECK_EQ(transport_tcp.domain_open(&domain, &d), TARN_OK);
    CHECK_EQ(transport_tcp.listen(d, &config, &l), TARN_OK);
    w.state->port = transport_tcp.listener_port(l);
    int ends = late_begun(LATE_ENDS), midway = late_begun(LATE_MIDWAY), holds = dial();
    hello(holds, 1, 1);
    struct request r = late_request(LATE_HOLDS, 1);
    put(holds, &r, sizeof(r));
    put(holds, "a", 1);
    CHECK(WORLD_WAIT(__atomic_load_n(&late.held, __ATOMIC_ACQUIRE)));
    put(ends, "bc", 2);
    put(midway, "b", 1);
    usleep(500000); /* so long that the next round looks for silence */
    __atomic_store_n(&late.go_on, true, __ATOMIC_RELEASE);
    late_written(holds);
    late_written(ends);
    CHECK(WORLD_WAIT(peek(late.memory + LATE_MIDWAY + 1) == 'b'));
    put(midway, "c", 1);
    late_written(midway);
    struct transport_listener_stats stats;
    transport_tcp.listener_stats(l, &stats);
    CHECK_EQ(stats.timeouts, 0);
    transport_tcp.listener_close(&l);
    transport_tcp.domain_close(&d);
    world_deinit(&w);
}

TEST_MAIN()
