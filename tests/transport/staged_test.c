/* Segments that are not memory: what the data port asks of a reader, and what becomes of that. */
#include "staged.h"

#include <sys/eventfd.h>

#include "transport/tcp/stage.h"

/* --- bytes --- */

static void all_sizes(void) {
    static const uint64_t sizes[] = {1,         4095,          4096,      65537,
                                     PIECE - 1, PIECE,         PIECE + 1, 3 * PIECE + 4097,
                                     9u << 20,  (9u << 20) + 5};
    static const uint64_t starts[] = {0, 1, 4095, PIECE - 1, PIECE + 64};
    uint8_t *data = malloc(10u << 20);
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        for (size_t k = 0; k < ARRAY_LEN(starts); k++) {
            struct object o;
            object_on_disk(&o, starts[k], sizes[i], 1 + (i + k) % 4, 1);
            CHECK_EQ(read_right(engine, &o, data), TARN_OK);
        }
    }
    struct object o; /* a range of it */
    object_on_disk(&o, 777, 5 * PIECE, 3, 1);
    struct engine_part parts[8];
    struct iovec iov = {data, 2 * PIECE + 11};
    struct engine_op op = {.parts = parts,
                           .n_parts = object_parts(&o, false, PIECE + 13, iov.iov_len, parts),
                           .iov = &iov,
                           .n_iov = 1};
    CHECK_EQ(engine_run(engine, &op, 1, 0), TARN_OK);
    CHECK_EQ(op.status, TARN_OK);
    uint8_t *whole = malloc(o.size);
    CHECK_EQ(read_right(engine, &o, whole), TARN_OK);
    CHECK(memcmp(whole + PIECE + 13, data, iov.iov_len) == 0);
    free(whole);
    free(data);
}

TEST(every_byte_comes_whatever_the_order) {
    for (int how = 0; how < 4; how++) {
        fake_begin(32u << 20, how == 3 ? PIECE : 0);
        FAKE((fake.inside = how == 0, fake.newest_first = how == 1, fake.busy = how == 2 ? 3 : 0));
        all_sizes();
        struct host_stats s = world_stats(&w);
        CHECK(s.staged_reads > 50 && s.staged_reads == s.reads);
        CHECK_EQ(s.staged_bytes, s.bytes_read);
        CHECK_EQ(s.staged_failures, 0);
        if (how == 3) CHECK(fake_look(&fake.most) == 1 && s.staging_waits > 0);
        if (how == 1) CHECK(fake_look(&fake.most) >= 2); /* the disk is ahead of the socket */
        CHECK(staging_is_free());
        fake_end();
    }
}

TEST(thousands_of_small_ones_in_a_batch) {
    enum { OPS = 2000 };
    fake_begin(64u << 20, 0);
    FAKE(fake.newest_first = true);
    static struct object o[OPS];
    static struct engine_part parts[OPS][8];
    static struct iovec iov[OPS];
    static struct engine_op ops[OPS];
    static uint8_t in[OPS][5000];
    for (int i = 0; i < OPS; i++) { /* every third is in memory */
        object_init_in(&o[i], i % 3 == 0 ? WORLD_SEGMENT : WORLD_READER,
                       (uint64_t)i * 16384 + (unsigned)i % 100, 1 + (uint64_t)i * 7 % 5000,
                       1 + (size_t)i % 2, 1);
        ops[i] = whole_op(&o[i], false, parts[i], &iov[i], in[i]);
        memset(in[i], 0xee, sizeof(in[i]));
    }
    CHECK_EQ(engine_run(engine, ops, OPS, 0), TARN_OK);
    for (int i = 0; i < OPS; i++) {
        CHECK_EQ(ops[i].status, TARN_OK);
        if (i % 3 != 0) CHECK(object_right(&o[i], in[i]));
        for (uint64_t k = 0; k < o[i].size && i % 3 == 0; k++) CHECK_EQ(in[i][k], 0);
    }
    CHECK(fake_look(&fake.most) > 2); /* small ones overlap, too */
    fake_end();
}

/* --- trouble --- */

TEST(what_cannot_be_read_is_refused_and_the_connection_stays) {
    fake_begin(32u << 20, 0);
    uint8_t *data = malloc(9u << 20);
    struct object bad, good;
    object_on_disk(&bad, 0, 7u << 20, 2,
                   1); /* not striped: giving up on the rest of it costs no connection */
    object_on_disk(&good, 20u << 20, 2 * PIECE, 1, 1);
    static const uint64_t where[] = {0, PIECE + 5, 6u << 20};
    unsigned failures = 0;
    CHECK_EQ(read_right(engine, &good, data), TARN_OK);
    uint64_t connections = world_stats(&w).connections_total;
    for (size_t i = 0; i < ARRAY_LEN(where); i++) {
        for (int how = 0; how < 4; how++) {
            FAKE({
                fake.failure = how % 2 == 0 ? TARN_EIO : TARN_ENOTFOUND;
                *(how < 2 ? &fake.fail_at : &fake.refuse_at) = where[i];
            });
            CHECK_EQ(read_right(engine, &bad, data), how % 2 == 0 ? TARN_EIO : TARN_ENOTFOUND);
            FAKE(fake.fail_at = fake.refuse_at = NEVER);
            CHECK_EQ(read_right(engine, &good, data), TARN_OK);
            failures++;
        }
    }
    struct host_stats s = world_stats(&w);
    CHECK(s.staged_failures >= failures);
    CHECK(s.connections_total <= connections + 4); /* streams of one engine */
    CHECK_EQ(read_right(engine, &bad, data), TARN_OK);
    CHECK(staging_is_free());
    free(data);
    fake_end();
}

TEST(one_that_fails_does_not_take_others_along) {
    enum { OPS = 40 };
    fake_begin(64u << 20, 0);
    FAKE((fake.failure = TARN_ENOTFOUND, fake.fail_at = (10u << 20) + 70000,
          fake.refuse_at = (30u << 20) + 70000));
    static struct object o[OPS];
    static struct engine_part parts[OPS][8];
    static struct iovec iov[OPS];
    static struct engine_op ops[OPS];
    static uint8_t in[OPS][100000];
    for (unsigned i = 0; i < OPS; i++) {
        object_on_disk(&o[i], (uint64_t)i << 20, 100000, 1, 1);
        ops[i] = whole_op(&o[i], false, parts[i], &iov[i], in[i]);
        ops[i].alone = true;
    }
    CHECK_EQ(engine_run(engine, ops, OPS, 0), TARN_OK);
    for (unsigned i = 0; i < OPS; i++) {
        CHECK_EQ(ops[i].status, i == 10 || i == 30 ? TARN_ENOTFOUND : TARN_OK);
        if (ops[i].status == TARN_OK) CHECK(object_right(&o[i], in[i]));
    }
    CHECK_EQ(world_stats(&w).staged_failures, 2);
    fake_end();
}

static struct request staged_request(uint64_t at, uint64_t size, uint64_t id) {
    struct object o;
    object_on_disk(&o, at, size, 1, OTHER);
    return request(&o, false, id);
}

static int dial_staged(uint64_t at, uint64_t size) {
    return dial_staged_as(OTHER, at, size);
}

TEST(a_closed_connection_leaves_nothing_behind) {
    fake_begin(32u << 20, 4 * PIECE);
    FAKE(fake.held = true);
    int fds[6];
    for (int i = 0; i < 6; i++) fds[i] = dial_staged((uint64_t)i << 22, 3 * PIECE);
    CHECK(WORLD_WAIT(fake_look(&fake.under_way) == 4)); /* all there are */
    for (int i = 0; i < 6; i++) close(fds[i]);
    CHECK(WORLD_WAIT(world_stats(&w).connections == 0));
    CHECK_EQ(world_stats(&w).staging_used, 4 * PIECE); /* the disk still writes to them */
    FAKE(fake.held = false);
    CHECK(staging_is_free());
    uint8_t *data = malloc(4u << 20);
    struct object o;
    object_on_disk(&o, 5, 4u << 20, 1, 1);
    CHECK_EQ(read_right(engine, &o, data), TARN_OK);
    free(data);
    fake_end();
}

TEST(a_host_goes_when_its_reader_has_let_go) {
    fake_begin(32u << 20, 0);
    FAKE(fake.held = true);
    int fd = dial_staged(0, 3 * PIECE);
    CHECK(WORLD_WAIT(fake_look(&fake.under_way) == 3));
    fds_before++; /* ours */
    fake_end();   /* the reader goes on when it is told to stop */
    CHECK_EQ(fake.finished, 3);
    CHECK(is_closed(fd));
    close(fd);
}

TEST(buffers_are_bounded) {
    fake_begin(64u << 20, 3 * PIECE);
    FAKE(fake.newest_first = true);
    int fds[40];
    uint8_t *data = malloc(3 * PIECE);
    for (int i = 0; i < 40; i++) fds[i] = dial_staged((uint64_t)i * 4096, 3 * PIECE);
    for (int i = 0; i < 40; i++) { /* nobody is forgotten */
        CHECK(get_pieces(fds[i], 1, data, 3 * PIECE));
        CHECK(right(data, (uint64_t)i * 4096, 3 * PIECE));
    }
    CHECK(fake_look(&fake.most) <= 3);
    CHECK(world_stats(&w).staging_waits > 0);
    CHECK(staging_is_free());
    for (int i = 0; i < 40; i++) close(fds[i]);
    free(data);
    fake_end();
}

TEST(who_waits_for_a_disk_costs_nobody_else_anything) {
    begin_threads = 1;
    begin_idle_ms = 3000;
    fake_begin(64u << 20, 0);
    begin_threads = 2;
    begin_idle_ms = 0;
    FAKE(fake.hold_at = 100);
    int waits = dial_staged(0, 2 * PIECE);
    /* its second piece is there, its first is not */
    CHECK(WORLD_WAIT(fake_look(&fake.finished) == 1));
    uint8_t *data = malloc(4u << 20);
    for (int i = 0; i < 20; i++) {
        struct object o;
        object_init(&o, 4096, 4096, 1, 1);
        CHECK_EQ(move(engine, &o, true, data, NULL), TARN_OK);
        object_on_disk(&o, 8u << 20, 4u << 20, 2, 1);
        CHECK_EQ(read_right(engine, &o, data), TARN_OK);
    }
    usleep(4000000); /* longer than the idle timeout: it is not the peer who is silent */
    CHECK_EQ(world_stats(&w).timeouts, 0);
    FAKE(fake.hold_at = NEVER);
    CHECK(get_pieces(waits, 1, data, 2 * PIECE));
    CHECK(right(data, 0, 2 * PIECE));
    close(waits);
    free(data);
    fake_end();
}

TEST(who_does_not_read_does_not_keep_the_buffers) {
    begin_idle_ms = 1500;
    fake_begin(64u << 20, 4 * PIECE);
    begin_idle_ms = 0;
    int fds[8];
    uint8_t *data = malloc(4u << 20);
    for (int i = 0; i < 8; i++) fds[i] = dial_staged(0, 16u << 20);
    struct object o;
    object_on_disk(&o, 8u << 20, 4u << 20, 2, 1);
    for (int i = 0; i < 3; i++) CHECK_EQ(read_right(engine, &o, data), TARN_OK);
    CHECK(WORLD_WAIT(world_stats(&w).timeouts >= 8));
    CHECK(staging_is_free());
    for (int i = 0; i < 8; i++) {
        CHECK(is_closed(fds[i]));
        close(fds[i]);
    }
    free(data);
    fake_end();
}

TEST(replies_keep_the_order_of_requests) {
    fake_begin(64u << 20, 0);
    FAKE(fake.newest_first = true);
    memset(host_segment_base(w.host, WORLD_SEGMENT), 0x55, 4096);
    int fd = dial();
    hello_with(fd, 1, 1, TCP_FEATURE_PIECES);
    struct object mem;
    object_init(&mem, 0, 4096, 1, OTHER);
    uint8_t *data = malloc(3 * PIECE);
    enum { ROUNDS = 60 };
    for (uint64_t i = 0; i < ROUNDS; i++) {
        struct request r = i % 3 == 0   ? staged_request(i * 5000, 3 * PIECE - i, i)
                           : i % 3 == 1 ? request(&mem, false, i)
                                        : request(&mem, i % 4 == 0, i);
        if (i == 7) r.part.grant[39] ^= 1;
        put(fd, &r, sizeof(r));
        memset(data, 0x55, 4096);
        if (r.h.type == TCP_WRITE) put(fd, data, 4096);
    }
    for (uint64_t i = 0; i < ROUNDS; i++) {
        uint64_t size = i % 3 == 0 ? 3 * PIECE - i : i % 3 == 2 && i % 4 == 0 ? 0 : 4096;
        if (i == 7) {
            struct tcp_header h;
            CHECK(get(fd, &h, sizeof(h)));
            CHECK(h.request_id == 7 && h.status == GRANT_BAD_MAC && h.payload_length == 0);
            continue;
        }
        CHECK(get_pieces(fd, i, data, size));
        if (i % 3 == 0) CHECK(right(data, i * 5000, size));
        for (uint64_t k = 0; k < size && i % 3 != 0; k++) CHECK_EQ(data[k], 0x55);
    }
    close(fd);
    free(data);
    fake_end();
}

/* Parts of memory and of disk in one request, an empty one among them. */
TEST(mixed_parts) {
    fake_begin(64u << 20, 0);
    memset(host_segment_base(w.host, WORLD_SEGMENT), 0x55, 1u << 20);
    struct {
        struct tcp_header h;
        struct tcp_part parts[6];
    } r = {.h = {.magic = TCP_MAGIC, .version = TCP_VERSION, .type = TCP_READ, .request_id = 3}};
    r.h.meta_length = sizeof(r.parts);
    static const uint64_t sizes[6] = {100, 2 * PIECE, 70000, 0, 33, 1};
    uint8_t *data = malloc(3 * PIECE);
    for (int i = 0; i < 6; i++) {
        struct object o;
        object_init_in(&o, i % 2 == 0 ? WORLD_SEGMENT : WORLD_READER, 8192, sizes[i] + 1, 1, OTHER);
        r.parts[i] = (struct tcp_part){.extent = o.x[0], .sub_length = sizes[i]};
        memcpy(r.parts[i].grant, o.grant[0][0], GRANT_SIZE);
    }
    int fd = dial();
    hello_with(fd, 1, 1, TCP_FEATURE_PIECES);
    put(fd, &r, sizeof(r));
    uint64_t at = 0;
    CHECK(get_pieces(fd, 3, data, 100 + 2 * PIECE + 70000 + 33 + 1));
    for (int i = 0; i < 6; at += sizes[i++]) {
        if (i % 2 != 0) CHECK(right(data + at, 8192, sizes[i]));
        for (uint64_t k = 0; k < sizes[i] && i % 2 == 0; k++) CHECK_EQ(data[at + k], 0x55);
    }
    close(fd);
    free(data);
    fake_end();
}

/* --- what was just read --- */

TEST(what_somebody_has_just_read_is_not_read_again) {
    fake_begin(32u << 20, 0);
    FAKE(fake.mark = 7);
    CHECK_EQ(read_as(11, 5000, 2 * PIECE + 9), TARN_OK);
    unsigned once = calls();
    CHECK_EQ(read_as(12, 5000, 2 * PIECE + 9), TARN_OK);
    CHECK_EQ(calls(), once);
    struct host_stats s = world_stats(&w);
    CHECK_EQ(s.staging_shared, once);
    CHECK(s.staged_reads == s.reads && s.staged_bytes == s.bytes_read);
    CHECK_EQ(read_as(13, 5000, PIECE / 2), TARN_OK); /* the beginning of it */
    CHECK_EQ(calls(), once);
    CHECK_EQ(read_as(13, 6000, PIECE / 2), TARN_OK); /* nobody asked just so */
    CHECK_EQ(read_as(13, 4000, 4096), TARN_OK);
    CHECK_EQ(calls(), once + 2);
    CHECK(staging_is_free());
    fake_end();
}

/* Who asks again may have found that it was not right. */
TEST(guarantee_1_nobody_is_given_one_reading_twice) {
    fake_begin(32u << 20, 0);
    FAKE((fake.mark = 7, fake.life = 1));
    CHECK_EQ(read_as(11, 0, PIECE), TARN_OK);
    FAKE(fake.life = 0); /* that is what it is: the disk erred */
    CHECK_EQ(read_as(12, 0, PIECE), TARN_ECORRUPT);
    CHECK_EQ(calls(), 1);
    CHECK_EQ(read_as(12, 0, PIECE), TARN_OK);
    CHECK_EQ(calls(), 2);
    CHECK_EQ(read_as(11, 0, PIECE), TARN_OK);
    CHECK_EQ(calls(), 2);
    fake_end();
}

TEST(one_reading_is_for_a_few_sessions) {
    fake_begin(32u << 20, 0);
    FAKE(fake.mark = 7);
    for (uint64_t i = 0; i < 3 * TCP_STAGE_GIVEN_MAX; i++) {
        CHECK_EQ(read_as(20 + i, 0, PIECE), TARN_OK);
        CHECK_EQ(calls(), 1 + i / TCP_STAGE_GIVEN_MAX);
    }
    fake_end();
}

TEST(guarantee_1_other_bytes_in_the_same_place) {
    fake_begin(32u << 20, 0);
    FAKE(fake.mark = 7);
    CHECK_EQ(read_as(11, 0, PIECE), TARN_OK);
    FAKE((fake.mark = 8, fake.life = 3));
    CHECK_EQ(read_as(12, 0, PIECE), TARN_OK);
    FAKE((fake.mark = 0, fake.life = 5)); /* nobody knows */
    CHECK_EQ(read_as(13, 0, PIECE), TARN_OK);
    CHECK_EQ(read_as(14, 0, PIECE), TARN_OK);
    CHECK_EQ(calls(), 4);
    CHECK_EQ(world_stats(&w).staging_shared, 0);
    fake_end();
}

TEST(who_asks_meanwhile_waits_for_the_same_reading) {
    fake_begin(32u << 20, 0);
    FAKE((fake.mark = 7, fake.held = true));
    uint8_t *data = malloc(3 * PIECE);
    int fds[3];
    for (unsigned i = 0; i < 3; i++) {
        fds[i] = dial_staged_as(30 + i, 0, 3 * PIECE);
        CHECK(WORLD_WAIT(fake_look(&fake.calls) == 3 && world_stats(&w).staging_shared == 3 * i));
    }
    close(fds[0]); /* who asked first wants it no more */
    CHECK(WORLD_WAIT(world_stats(&w).connections == 2));
    FAKE(fake.held = false);
    for (int i = 1; i < 3; i++) {
        CHECK(get_pieces(fds[i], 1, data, 3 * PIECE));
        CHECK(right(data, 0, 3 * PIECE));
        close(fds[i]);
    }
    CHECK_EQ(calls(), 3);
    CHECK(staging_is_free());
    free(data);
    fake_end();
}

TEST(a_reading_that_fails_fails_for_all_who_wait_for_it_and_is_forgotten) {
    fake_begin(32u << 20, 0);
    FAKE((fake.mark = 7, fake.held = true, fake.fail_at = 100, fake.failure = TARN_EIO));
    int fds[2];
    for (unsigned i = 0; i < 2; i++) {
        fds[i] = dial_staged_as(30 + i, 0, PIECE);
        CHECK(WORLD_WAIT(fake_look(&fake.calls) == 1 && world_stats(&w).staging_shared == i));
    }
    FAKE(fake.held = false);
    for (int i = 0; i < 2; i++) {
        struct tcp_header h;
        CHECK(get(fds[i], &h, sizeof(h)));
        CHECK_EQ(h.status, TCP_FAILED);
        close(fds[i]);
    }
    FAKE(fake.fail_at = NEVER);
    CHECK_EQ(read_as(12, 0, PIECE), TARN_OK);
    CHECK_EQ(calls(), 2);
    FAKE((fake.refuse_at = 5u << 20, fake.failure = TARN_ENOTFOUND));
    CHECK_EQ(read_as(12, 5u << 20, PIECE), TARN_ENOTFOUND);
    FAKE(fake.refuse_at = NEVER);
    CHECK_EQ(read_as(13, 5u << 20, PIECE), TARN_OK);
    CHECK_EQ(calls(), 4);
    CHECK(staging_is_free());
    fake_end();
}

TEST(what_was_read_first_makes_room) {
    fake_begin(32u << 20, 4 * PIECE);
    FAKE(fake.mark = 7);
    for (uint64_t i = 0; i < 5; i++) CHECK_EQ(read_as(11, i * PIECE, PIECE), TARN_OK);
    CHECK_EQ(read_as(12, 4 * PIECE, PIECE), TARN_OK);
    CHECK_EQ(read_as(12, 1 * PIECE, PIECE), TARN_OK);
    CHECK_EQ(calls(), 5);
    CHECK_EQ(read_as(12, 0, PIECE), TARN_OK);
    CHECK_EQ(calls(), 6);
    CHECK(fake_look(&fake.most) <= 4);
    fake_end();
}

TEST(many_that_share_a_few_buffers) {
    enum { FDS = 24 };
    fake_begin(64u << 20, 3 * PIECE);
    FAKE((fake.mark = 7, fake.newest_first = true));
    int fds[FDS];
    uint8_t *data = malloc(3 * PIECE);
    for (int round = 0; round < 4; round++) {
        for (unsigned i = 0; i < FDS; i++)
            fds[i] = dial_staged_as(100 + i, (i % 3) * PIECE, 3 * PIECE);
        for (unsigned i = 0; i < FDS; i++) {
            CHECK(get_pieces(fds[i], 1, data, 3 * PIECE));
            CHECK(right(data, (i % 3) * PIECE, 3 * PIECE));
            close(fds[i]);
        }
    }
    CHECK(world_stats(&w).staging_shared > 0);
    CHECK(fake_look(&fake.most) <= 3);
    CHECK(staging_is_free());
    free(data);
    fake_end();
}

static tarn_status stage_at_once(void *arg, const struct grant_extent *extent, uint64_t offset,
                                 uint64_t length, void *buffer,
                                 void (*done)(void *done_arg, tarn_status status), void *done_arg) {
    done(done_arg, TARN_OK);
    return TARN_OK;
}

static uint64_t mark_of_all(void *arg, const struct grant_extent *extent, uint64_t offset,
                            uint64_t length) {
    return 7;
}

static void went_on(void *arg, struct tcp_stage_wait *owner) {
    *(struct tcp_stage_wait **)arg = owner;
}

TEST(who_is_in_line_comes_before_who_finds_his_bytes_there) {
    const struct transport_gate gate = {.stage = stage_at_once, .mark = mark_of_all};
    const struct grant_extent extent = {.length = 2 * PIECE};
    struct transport_listener_stats counters = {0};
    struct tcp_stage_wait first = {0}, waits = {0}, late = {0}, *next = NULL;
    struct tcp_stage_pool pool;
    struct tcp_stager s;
    struct tcp_piece *piece;
    int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    tcp_stage_pool_init(&pool, PIECE);
    tcp_stager_init(&s, &pool, &gate, wake_fd, &counters);
    CHECK_EQ(tcp_stager_ask(&s, &first, 1, &extent, 0, PIECE, 0, &piece), TARN_OK);
    tcp_stager_collect(&s, 0, went_on, &next);
    CHECK_EQ(tcp_stager_ask(&s, &waits, 2, &extent, PIECE, PIECE, 0, &(struct tcp_piece *){0}),
             TARN_EAGAIN);
    tcp_stager_settle(&s, 0);
    tcp_piece_release(&piece);
    CHECK_EQ(tcp_stager_ask(&s, &late, 3, &extent, 0, PIECE, 0, &piece), TARN_EAGAIN);
    tcp_stager_collect(&s, 0, went_on, &next);
    CHECK(next == &waits);
    CHECK_EQ(tcp_stager_ask(&s, &waits, 2, &extent, PIECE, PIECE, 0, &piece), TARN_OK);
    tcp_stager_collect(&s, 0, went_on, &next);
    tcp_piece_release(&piece);
    tcp_stager_forget(&s, &late);
    tcp_stager_deinit(&s);
    tcp_stage_pool_deinit(&pool);
    close(wake_fd);
}

/* --- rights --- */

TEST(reading_is_all_one_may) {
    fake_begin(8u << 20, 0);
    uint8_t data[4096] = {1};
    struct object o;
    object_on_disk(&o, 0, 4096, 1, 1);
    CHECK_EQ(move(engine, &o, true, data, NULL), TARN_EPERM);
    CHECK_EQ(world_stats(&w).refused[GRANT_BAD_OP], 1);
    struct engine *shm = world_engine(&w, "shm", 1);
    CHECK_EQ(move(shm, &o, false, data, NULL), TARN_EPERM);
    CHECK(engine_map(shm, WORLD_READER, w.segment_epoch, 0, 4096, false) == NULL);
    engine_destroy(&shm);
    struct engine *any = world_engine(&w, NULL, 1); /* finds its way */
    CHECK_EQ(read_right(any, &o, data), TARN_OK);
    engine_destroy(&any);
    object_on_disk(&o, (8u << 20) - 4096, 8192, 1, 1); /* signed, but not inside */
    CHECK_EQ(move(engine, &o, false, (uint8_t[8192]){0}, NULL), TARN_EPERM);
    int fd = dial(); /* one that does not know of pieces */
    hello(fd, 1, 1);
    struct request r = staged_request(0, 4096, 1);
    put(fd, &r, sizeof(r));
    struct tcp_header h;
    CHECK(get(fd, &h, sizeof(h)));
    CHECK_EQ(h.status, TCP_NO_PIECES);
    close(fd);
    fake_end();
}

TEST(a_retired_reader_is_asked_no_more) {
    fake_begin(8u << 20, 0);
    uint8_t data[4096];
    struct object o;
    object_on_disk(&o, 0, 4096, 1, 1);
    CHECK_EQ(read_right(engine, &o, data), TARN_OK);
    FAKE(fake.held = true);
    int fd = dial_staged(0, 4 * PIECE);
    CHECK(WORLD_WAIT(fake_look(&fake.under_way) == 4));
    world_call(&w, retire_reader);
    CHECK(is_closed(fd)); /* under its name nothing comes any more */
    unsigned calls = fake_look(&fake.calls);
    FAKE(fake.held = false);
    CHECK_EQ(read_right(engine, &o, data), TARN_ESTALE);
    CHECK_EQ(fake_look(&fake.calls), calls);
    for (served = TARN_EAGAIN; served == TARN_EAGAIN;) world_call(&w, serve_reader_again);
    CHECK_EQ(served, TARN_OK);
    CHECK_EQ(read_right(engine, &o, data), TARN_ESTALE);
    world_tell_of(&w, engine, 1, WORLD_READER, w.segment_epoch + 1);
    o.x[0].segment_epoch++;
    world_grant(&w, GRANT_READ, 1, &o.x[0], o.grant[0][0]);
    CHECK_EQ(read_right(engine, &o, data), TARN_OK);
    close(fd);
    fake_end();
}

TEST(a_fence_ends_staged_reads) {
    fake_begin(8u << 20, 0);
    FAKE(fake.held = true);
    int fd = dial_staged(0, 4 * PIECE);
    CHECK(WORLD_WAIT(fake_look(&fake.under_way) == 4));
    fence(OTHER);
    CHECK(WORLD_WAIT(fenced(OTHER)));
    CHECK(is_closed(fd));
    FAKE(fake.held = false);
    CHECK(staging_is_free());
    close(fd);
    fake_end();
}

TEST_MAIN()
