/* What a client does with operations: slices, rails, and all that can happen to them. */
#include <errno.h>
#include <poll.h>

#include "active.h"

#define MB (1u << 20)

static bool all_zero(const void *at, uint64_t len) {
    const uint8_t *p = at;
    for (uint64_t i = 0; i < len; i++) {
        if (p[i] != 0) return false;
    }
    return true;
}

/* --- bytes --- */

static void round_trip(uint64_t len, uint64_t offset, uint8_t *out, uint8_t *in) {
    struct client_op c;
    fill(out, len, len + 1);
    memset(in, 0, len);
    op_fill(&c, true, offset, out, len);
    CHECK_EQ(op_run(&c), TARN_OK);
    CHECK_EQ(c.crc, crc32c(0, out, len));
    CHECK(memcmp(segment_data() + offset, out, len) == 0);
    op_fill(&c, false, offset, in, len);
    CHECK_EQ(op_run(&c), TARN_OK);
    CHECK_EQ(c.crc, crc32c(0, out, len));
    CHECK(memcmp(in, out, len) == 0);
}

static void round_trips(const char *fake, bool registered) {
    static const uint64_t sizes[] = {1, 220, 221, 4095, 4097, 65536, 65537, MB + 1, 6 * MB + 4099};
    begin(fake, 16 * MB, NULL);
    uint8_t *out = calloc(8, MB), *in = calloc(8, MB);
    struct transport_memory *m[2] = {NULL, NULL};
    for (int i = 0; registered && i < 2; i++) {
        struct transport_memory_config config = {
            .addr = i == 0 ? out : in, .length = 8 * MB, .fd = -1, .fd_read = -1};
        CHECK_EQ(rdma_transport.memory_register(a.client, &config, &m[i]), TARN_OK);
    }
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) round_trip(sizes[i], 4096 * i + i, out, in);
    CHECK_EQ(counters()->inlined > 0, strstr(fake, "max_inline=0") == NULL);
    CHECK_EQ(counters()->staged == 0, registered);
    CHECK_EQ(rdma_staging_used(a.client->work->staging), 0);
    for (int i = 0; i < 2; i++) rdma_transport.memory_deregister(&m[i]);
    free(out);
    free(in);
    end();
}

TEST(round_trips_of_registered_memory) {
    round_trips("devices=1", true);
}
TEST(round_trips_by_staging_buffers) {
    round_trips("devices=1", false);
}
TEST(round_trips_over_several_devices) {
    round_trips("devices=3", true);
    round_trips("devices=3", false);
}
TEST(round_trips_where_completions_are_late) {
    round_trips("devices=2,delay_us=300", false);
}
TEST(round_trips_on_short_queues) {
    round_trips("devices=1,max_qp_wr=4,max_sge=1,max_inline=0", true);
    round_trips("devices=2,max_qp_wr=2,max_sge=2,max_inline=64", false);
}

TEST(nothing_to_move) {
    begin(NULL, MB, NULL);
    CHECK_EQ(move(false, 100, NULL, 0), TARN_OK);
    CHECK_EQ(counters()->connects, 0);
    end();
}

/* Blocks' CRCs, odd pieces on both sides, and slices that end in any order. */
TEST(pieces_and_blocks) {
    enum { PARTS = 7, SIZE = 700001, BLOCK = 100000 };
    begin("devices=3,delay_us=100", 4 * MB, NULL);
    static uint8_t data[SIZE], in[SIZE];
    struct rng r;
    rng_seed(&r, 5);
    fill(data, SIZE, 6);
    struct transport_part parts[2][PARTS];
    uint64_t place[PARTS], at = 0, lens[PARTS];
    for (int i = 0; i < PARTS; i++) {
        lens[i] = i == PARTS - 1 ? SIZE - at : i == 3 ? 0 : 1 + rng_below(&r, SIZE / PARTS);
        at += lens[i];
        place[i] = (uint64_t)((i * 3) % PARTS) * 512 * 1024 + 17;
    }
    for (int put = 1; put >= 0; put--) {
        struct iovec iov[40];
        uint32_t crcs[8];
        size_t n = 0;
        for (at = 0; at < SIZE && n < 39; n++) {
            uint64_t len = n == 5 ? 0 : min_u64(SIZE - at, 1 + rng_below(&r, SIZE / 16));
            iov[n] = (struct iovec){(put ? data : in) + at, len};
            at += len;
        }
        iov[n++] = (struct iovec){(put ? data : in) + at, SIZE - at};
        for (int i = 0; i < PARTS; i++) {
            parts[put][i] =
                (struct transport_part){.extent = {SEGMENT, EPOCH, place[i], lens[i] + 10},
                                        .sub_offset = 5,
                                        .sub_length = lens[i],
                                        .key = a.key[put]};
        }
        struct client_op c = {.op = {.kind = put ? TRANSPORT_PUT : TRANSPORT_GET,
                                     .parts = parts[put],
                                     .n_parts = PARTS,
                                     .iov = iov,
                                     .n_iov = n,
                                     .crcs = crcs,
                                     .crc_first = 777,
                                     .crc_block = BLOCK,
                                     .done = op_done}};
        CHECK_EQ(op_run(&c), TARN_OK);
        CHECK_EQ(crcs[0], crc32c(0, data, 777));
        for (uint64_t i = 0; 777 + i * BLOCK < SIZE; i++)
            CHECK_EQ(crcs[1 + i],
                     crc32c(0, data + 777 + i * BLOCK, min_u64(BLOCK, SIZE - 777 - i * BLOCK)));
    }
    CHECK(memcmp(in, data, SIZE) == 0);
    for (int i = 0, from = 0; i < PARTS; from += (int)lens[i], i++)
        CHECK(memcmp(segment_data() + place[i] + 5, data + from, lens[i]) == 0);
    end();
}

/* One READ for what is contiguous over there, however it lies here; and one header behind it. */
TEST(neighbours_travel_together) {
    begin(NULL, MB, NULL);
    static char in[65536];
    struct transport_memory *m;
    struct transport_memory_config config = {
        .addr = in, .length = sizeof(in), .fd = -1, .fd_read = -1};
    CHECK_EQ(rdma_transport.memory_register(a.client, &config, &m), TARN_OK);
    fill(segment_data(), MB, 1);
    struct transport_part parts[4];
    for (uint64_t i = 0; i < 4; i++) {
        parts[i] = (struct transport_part){
            .extent = {SEGMENT, EPOCH, i * 4096 + (i == 3 ? 4096 : 0), 4096},
            .sub_length = 4096,
            .key = a.key[0]};
    }
    struct iovec iov[3] = {
        {in, 4096}, {in + 8192, 4096}, {in + 20480, 8192}}; /* three blocks, then one apart */
    struct client_op c = {.op = {.kind = TRANSPORT_GET,
                                 .parts = parts,
                                 .n_parts = 4,
                                 .iov = iov,
                                 .n_iov = 3,
                                 .done = op_done}};
    uint64_t before = fake_served().reads;
    CHECK_EQ(op_run(&c), TARN_OK);
    CHECK_EQ(counters()->reads, 2);
    CHECK_EQ(fake_served().reads - before, 3);
    CHECK(memcmp(in, segment_data(), 4096) == 0);
    CHECK(memcmp(in + 8192, segment_data() + 4096, 4096) == 0);
    CHECK(memcmp(in + 20480, segment_data() + 8192, 4096) == 0);
    CHECK(memcmp(in + 24576, segment_data() + 16384, 4096) == 0);
    rdma_transport.memory_deregister(&m);
    end();
}

/* One operation by two keys, each with rails and headers of its own, and with trouble on one of
 * them. */
TEST(parts_of_several_keys) {
    enum { PARTS = 40, EACH = 50000 };
    begin("devices=2,delay_us=100", PARTS * EACH, NULL);
    static uint8_t data[PARTS * EACH];
    struct transport_key *keys[2][2];
    for (int w = 0; w < 2; w++) {
        for (int i = 0; i < 2; i++)
            CHECK_EQ(unpack(w, a.packed[w].data, a.packed[w].len, &keys[w][i]), TARN_OK);
    }
    for (int round = 0; round < 12; round++) {
        bool put = round % 2 == 0;
        struct transport_part parts[PARTS];
        for (int i = 0; i < PARTS; i++) {
            parts[i] = (struct transport_part){
                .extent = {SEGMENT, EPOCH, (uint64_t)(PARTS - 1 - i) * EACH, EACH},
                .sub_length = EACH,
                .key = keys[put][i / 3 % 2]};
        }
        struct client_op c = {.op = {.kind = put ? TRANSPORT_PUT : TRANSPORT_GET,
                                     .parts = parts,
                                     .n_parts = PARTS,
                                     .iov = &c.iov,
                                     .n_iov = 1,
                                     .crcs = &c.crc,
                                     .done = op_done},
                              .iov = {data, sizeof(data)}};
        if (put) fill(data, sizeof(data), (uint64_t)round);
        uint32_t crc = crc32c(0, data, sizeof(data));
        if (!put) memset(data, 0, sizeof(data));
        op_submit(&c);
        for (int i = 0; i < round; i++) turn();
        struct rdma_rail *r = rail_up(keys[put][round / 2 % 2]);
        if (r != NULL && round >= 4) fake_qp_error(r->qp_num, IBV_WC_RETRY_EXC_ERR);
        CHECK(WAIT(c.done == 1));
        CHECK_EQ(c.op.status, TARN_OK);
        CHECK_EQ(c.crc, crc);
        CHECK_EQ(crc32c(0, data, sizeof(data)), crc);
    }
    for (int i = 0; i < 4; i++) rdma_transport.key_close(&keys[i / 2][i % 2]);
    end();
}

TEST(wrong_operations_are_not_taken) {
    begin(NULL, MB, NULL);
    char data[16];
    struct client_op c;
    struct transport_op *op = &c.op;
    size_t accepted;
    op_fill(&c, true, 0, data, sizeof(data));
    c.part.key = a.key[0];
    CHECK_EQ(rdma_transport.submit(a.endpoint, &op, 1, &accepted), TARN_EPERM);
    op_fill(&c, false, MB - 8, data, sizeof(data));
    CHECK_EQ(rdma_transport.submit(a.endpoint, &op, 1, &accepted), TARN_EINVAL);
    op_fill(&c, false, UINT64_MAX - 8, data, sizeof(data));
    CHECK_EQ(rdma_transport.submit(a.endpoint, &op, 1, &accepted), TARN_EINVAL);
    op_fill(&c, false, 0, data, sizeof(data));
    c.iov.iov_len--;
    CHECK_EQ(rdma_transport.submit(a.endpoint, &op, 1, &accepted), TARN_EINVAL);
    op_fill(&c, false, 0, data, sizeof(data));
    c.part.sub_offset = 1;
    CHECK_EQ(rdma_transport.submit(a.endpoint, &op, 1, &accepted), TARN_EINVAL);
    op_fill(&c, false, 0, data, sizeof(data));
    c.part.extent.segment++;
    CHECK_EQ(rdma_transport.submit(a.endpoint, &op, 1, &accepted), TARN_EINVAL);
    op_fill(&c, false, 0, data, sizeof(data));
    c.part.extent.segment_epoch++;
    CHECK_EQ(op_run(&c), TARN_ESTALE);
    end();
}

/* --- many at once --- */

enum { MANY = 600 };
static struct client_op many[MANY];
static uint8_t many_out[MANY][5000], many_in[MANY][5000];

static unsigned many_done(void) {
    unsigned n = 0;
    for (int i = 0; i < MANY; i++) n += many[i].done;
    return n;
}

/* Nothing is complete before the buffers are used up, however slowly the operations are
 * submitted. */
static void use_up_buffers(void) {
    static struct client_op ops[MANY];
    fake_hold(true);
    for (int i = 0; i < MANY; i++) {
        op_fill(&ops[i], true, (uint64_t)i * 8192, many_out[i], sizeof(many_out[i]));
        op_submit(&ops[i]);
    }
    CHECK(WAIT(counters()->staging_waits > 0));
    fake_hold(false);
    for (int i = 0; i < MANY; i++) CHECK(WAIT(ops[i].done) && ops[i].op.status == TARN_OK);
}

static void run_many(bool put) {
    for (int i = 0; i < MANY; i++) {
        op_fill(&many[i], put, (uint64_t)i * 8192, put ? many_out[i] : many_in[i],
                1 + (uint64_t)i * 8 % 5000);
        op_submit(&many[i]);
    }
    CHECK(WAIT(many_done() == MANY));
    for (int i = 0; i < MANY; i++) {
        CHECK_EQ(many[i].op.status, TARN_OK);
        CHECK_EQ(many[i].crc, crc32c(0, many_out[i], many[i].iov.iov_len));
    }
}

/* before: writes that were made already. */
static void write_and_read_many(unsigned before) {
    run_many(true);
    run_many(false);
    for (int i = 0; i < MANY; i++) CHECK(memcmp(many_out[i], many_in[i], many[i].iov.iov_len) == 0);
    CHECK_EQ(counters()->writes, before + MANY);
    CHECK_EQ(counters()->reads, MANY);
    CHECK_EQ(rdma_staging_used(a.client->work->staging), 0);
}

TEST(many_operations_few_buffers) {
    static const char *const options[] = {"staging", "1mb", NULL};
    begin("devices=2", 8 * MB, options);
    fill(many_out, sizeof(many_out), 3);
    use_up_buffers();
    write_and_read_many(MANY);
    CHECK(counters()->signalled < 2 * MANY); /* of more than three times as many */
    end();
}

TEST(many_operations_short_queues) {
    static const char *const options[] = {"signal-every", "4", "send-queue", "16", NULL};
    begin("devices=2", 8 * MB, options);
    fill(many_out, sizeof(many_out), 3);
    write_and_read_many(0);
    CHECK(counters()->queue_full > 0);
    end();
}

TEST(only_so_many_are_taken) {
    begin(NULL, MB, NULL);
    static struct client_op ops[RDMA_OUTSTANDING_MAX + 1];
    static struct transport_op *list[RDMA_OUTSTANDING_MAX + 1];
    static char byte[RDMA_OUTSTANDING_MAX + 1];
    for (size_t i = 0; i < ARRAY_LEN(ops); i++) {
        op_fill(&ops[i], false, i, byte + i, 1);
        list[i] = &ops[i].op;
    }
    size_t accepted = 0;
    CHECK_EQ(rdma_transport.submit(a.endpoint, list, ARRAY_LEN(list), &accepted), TARN_OK);
    CHECK_EQ(accepted, RDMA_OUTSTANDING_MAX);
    CHECK(WAIT(ops[RDMA_OUTSTANDING_MAX - 1].done));
    CHECK(WAIT(a.endpoint->n_tasks == 0));
    op_submit(&ops[RDMA_OUTSTANDING_MAX]);
    CHECK(WAIT(ops[RDMA_OUTSTANDING_MAX].done));
    end();
}

/* Whoever sleeps until the descriptor says that there is something is woken for everything. */
static void sleep_and_move(const char *fake, const char *const *options) {
    begin(fake, 4 * MB, options);
    static uint8_t data[2 * MB];
    unsigned overslept = 0, slept = 0;
    for (int i = 0; i < 300; i++) {
        struct client_op c;
        op_fill(&c, i % 2 == 0, 0, data, i % 10 == 0 ? sizeof(data) : 100);
        op_submit(&c);
        while (!c.done && overslept == 0) {
            turn();
            struct pollfd p[2] = {{.events = POLLIN}, {.events = POLLIN}};
            if (c.done || rdma_transport.arm(a.client, &p[0].fd) != TARN_OK) continue;
            if (rdma_transport.arm(a.host, &p[1].fd) != TARN_OK) continue;
            slept++;
            overslept += poll(p, 2, 2000) == 0;
        }
        CHECK_EQ(overslept, 0);
        CHECK_EQ(c.op.status, TARN_OK);
    }
    CHECK(slept > 0);
    CHECK(counters()->events > 0);
    end();
}

TEST(sleeping_until_there_is_something) {
    static const char *const options[] = {"poll-us", "200", NULL};
    sleep_and_move("devices=2", NULL);
    sleep_and_move("devices=2,delay_us=1000", NULL);
    sleep_and_move("devices=1,delay_us=1000", options);
}

TEST(polling_before_sleeping) {
    static const char *const options[] = {"poll-us", "1000000", NULL};
    begin("devices=1,delay_us=2000", MB, options);
    char data[300];
    CHECK_EQ(move(false, 0, data, sizeof(data)), TARN_OK);
    uint64_t events = counters()->events;
    for (int i = 0; i < 20; i++) {
        struct client_op c;
        op_fill(&c, false, 0, data, sizeof(data));
        op_submit(&c);
        int fd;
        while (!c.done) {
            turn();
            CHECK(c.done || rdma_transport.arm(a.client, &fd) == TARN_EAGAIN);
        }
    }
    CHECK(counters()->events <= events + 1); /* it was armed before */
    CHECK(counters()->empty_polls > 100);
    end();
}

/* --- what goes wrong --- */

/* An operation of len bytes that has been posted and does not end: its completions are held back,
 * or not a byte of it gets through. */
static void begin_stuck(struct client_op *c, bool put, void *data, uint64_t len, bool cut) {
    static char byte;
    CHECK(WAIT(move(put, 0, &byte, 1) == TARN_OK)); /* a rail is up */
    if (cut)
        fake_cut(rail_up(a.key[put])->qp_num);
    else
        fake_hold(true);
    op_fill(c, put, 0, data, len);
    op_submit(c);
    for (int i = 0; i < 20; i++) turn();
    CHECK(a.client->work->posted > 0);
    CHECK_EQ(c->done, 0);
}

static const char *const one_rail[] = {"rails", "1", NULL};

TEST(a_queue_pair_in_error_in_the_middle_of_a_write) {
    begin("devices=2", 8 * MB, one_rail);
    static uint8_t data[4 * MB];
    fill(data, sizeof(data), 9);
    struct client_op c;
    begin_stuck(&c, true, data, sizeof(data), true);
    fake_qp_error(rail_up(a.key[1])->qp_num, IBV_WC_RETRY_EXC_ERR);
    CHECK(WAIT(c.done == 1));
    CHECK_EQ(c.op.status, TARN_OK);
    CHECK_EQ(c.crc, crc32c(0, data, sizeof(data)));
    CHECK(memcmp(segment_data(), data, sizeof(data)) == 0);
    CHECK(counters()->rail_failures >= 1);
    CHECK(counters()->slice_retries >= 1);
    end();
}

TEST(a_queue_pair_in_error_in_the_middle_of_a_read) {
    begin("devices=2", 8 * MB, one_rail);
    static uint8_t in[4 * MB];
    fill(segment_data(), sizeof(in), 9);
    struct client_op c;
    begin_stuck(&c, false, in, sizeof(in), true);
    fake_qp_error(rail_up(a.key[0])->qp_num, IBV_WC_RETRY_EXC_ERR);
    CHECK(WAIT(c.done == 1));
    CHECK_EQ(c.op.status, TARN_OK);
    CHECK_EQ(c.crc, crc32c(0, segment_data(), sizeof(in)));
    CHECK(memcmp(segment_data(), in, sizeof(in)) == 0);
    end();
}

/* The host does not answer: nobody can say whether bytes still arrive, and the operation says
 * so. */
TEST(a_write_in_doubt) {
    static const char *const options[] = {"retries", "1", "rails", "1", NULL};
    begin("devices=1", 8 * MB, options);
    static uint8_t data[MB];
    struct client_op c;
    begin_stuck(&c, true, data, sizeof(data), true);
    a.host_stopped = true;
    fake_qp_error(rail_up(a.key[1])->qp_num, IBV_WC_RETRY_EXC_ERR);
    CHECK(WAIT(c.done == 1));
    CHECK(c.op.status != TARN_OK);
    CHECK(!c.op.settled);
    a.host_stopped = false;
    CHECK_EQ(rdma_staging_used(a.client->work->staging), 0);
    CHECK(WAIT(move(true, 0, data, sizeof(data)) == TARN_OK)); /* it is back */
    end();
}

/* A read is never in doubt. */
TEST(a_read_that_failed_is_settled) {
    static const char *const options[] = {"retries", "0", "rails", "1", NULL};
    begin("devices=1", 8 * MB, options);
    static uint8_t data[MB];
    struct client_op c;
    begin_stuck(&c, false, data, sizeof(data), true);
    fake_qp_error(rail_up(a.key[0])->qp_num, IBV_WC_RETRY_EXC_ERR);
    CHECK(WAIT(c.done == 1));
    CHECK_EQ(c.op.status, TARN_ETIMEOUT);
    CHECK(c.op.settled);
    end();
}

TEST(the_host_disconnects) {
    begin("devices=1", 8 * MB, one_rail);
    static uint8_t data[4 * MB];
    fill(data, sizeof(data), 4);
    struct client_op c;
    begin_stuck(&c, true, data, sizeof(data), true);
    struct transport_fence fence = {.kind = TRANSPORT_FENCE_SESSION, .session = 1, .ticket = 1};
    CHECK_EQ(rdma_transport.listener_fence(a.listener, &fence), TARN_OK);
    fake_disconnect(rail_up(a.key[1])->qp_num); /* its goodbye gets through */
    CHECK(WAIT(c.done == 1));
    CHECK_EQ(c.op.status, TARN_OK);
    CHECK(memcmp(segment_data(), data, sizeof(data)) == 0);
    end();
}

TEST(a_device_is_removed) {
    for (int put = 0; put < 2; put++) {
        begin("devices=2", 16 * MB, one_rail);
        static uint8_t data[8 * MB];
        fill(put ? (char *)data : segment_data(), sizeof(data), 4);
        struct client_op c;
        begin_stuck(&c, put, data, sizeof(data), true);
        fake_device_remove(rail_up(a.key[put])->device->name, false);
        CHECK(WAIT(c.done == 1));
        CHECK_EQ(c.op.status, TARN_OK);
        CHECK(memcmp(segment_data(), data, sizeof(data)) == 0);
        end();
    }
}

TEST(the_last_device_is_removed) {
    begin("devices=1", 8 * MB, one_rail);
    static uint8_t data[MB];
    struct client_op c;
    begin_stuck(&c, true, data, sizeof(data), true);
    fake_device_remove("fake0", false);
    CHECK(WAIT(c.done == 1));
    CHECK(c.op.status != TARN_OK);
    CHECK(WAIT(rdma_transport.endpoint_status(a.endpoint) == TARN_ECLOSED));
    struct transport_endpoint *e;
    CHECK_EQ(rdma_transport.connect(a.client, a.uri.data, 0, &e), TARN_ECLOSED);
    end();
}

TEST(a_port_goes_down_and_up) {
    begin("devices=2", 8 * MB, NULL);
    static uint8_t data[4 * MB];
    fill(data, sizeof(data), 4);
    CHECK_EQ(move(true, 0, data, sizeof(data)), TARN_OK);
    fake_port("fake0", false);
    CHECK(WAIT(!rdma_device_usable(rdma_device_at(0))));
    CHECK(WAIT(count_rails("up", "fake0") == 0));
    CHECK_EQ(move(true, 0, data, sizeof(data)), TARN_OK);
    CHECK_EQ(count_rails("up", "fake0"), 0);
    fake_port("fake0", true);
    CHECK(WAIT(rdma_device_usable(rdma_device_at(0))));
    CHECK(WAIT(move(true, 0, data, sizeof(data)) == TARN_OK && count_rails("up", "fake0") > 0));
    end();
}

/* Not a byte gets through, and nobody says so. */
TEST(patience) {
    begin("devices=1,stall_ms=60000", 8 * MB, NULL);
    static uint8_t data[MB];
    struct client_op c;
    for (int put = 0; put < 2; put++) {
        CHECK_EQ(move(put, 0, data, 100), TARN_OK);
        fake_hold(true);
        op_fill(&c, put, 0, data, sizeof(data));
        c.op.patience_ms = 100;
        uint64_t start_ms = clock_boot_ms();
        CHECK_EQ(op_run(&c), TARN_ETIMEOUT);
        CHECK(clock_boot_ms() - start_ms >= 100);
        CHECK(clock_boot_ms() - start_ms < 30000); /* not when the peer is given up */
        CHECK_EQ(c.op.settled, !put);
        fake_hold(false);
    }
    CHECK_EQ(counters()->timeouts, 2);
    CHECK_EQ(rdma_staging_used(a.client->work->staging), 0);
    end();
}

/* Buffers come back when no device can touch them any more: their queue pair is gone. */
TEST(cancelling) {
    begin("devices=1", 8 * MB, NULL);
    static uint8_t data[2 * MB];
    struct client_op c, waiting;
    for (int put = 0; put < 2; put++) {
        begin_stuck(&c, put, data, sizeof(data), false);
        op_fill(&waiting, put, 0, data, 100);
        op_submit(&waiting);
        uint64_t start_ms = clock_boot_ms();
        rdma_transport.endpoint_close(&a.endpoint);
        CHECK(a.endpoint != NULL); /* it has a moment */
        CHECK_EQ(waiting.done, 1); /* was never sent */
        CHECK(waiting.op.settled);
        CHECK_EQ(c.done, 0);
        close_endpoint();
        CHECK(clock_boot_ms() - start_ms < 30000);
        CHECK_EQ(c.done, 1);
        CHECK_EQ(c.op.status, TARN_ECANCELED);
        CHECK_EQ(c.op.settled, !put);
        CHECK_EQ(a.client->work->posted, 0);
        CHECK_EQ(rdma_staging_used(a.client->work->staging), 0);
        fake_hold(false);
        /* The key outlives its endpoint. */
        CHECK_EQ(rdma_transport.connect(a.client, a.uri.data, 0, &a.endpoint), TARN_OK);
        CHECK(WAIT(move(put, 0, data, sizeof(data)) == TARN_OK));
    }
    end();
}

TEST(what_ends_in_time_is_settled) {
    begin("devices=1", 8 * MB, NULL);
    static uint8_t data[2 * MB];
    struct client_op c;
    begin_stuck(&c, true, data, sizeof(data), false);
    rdma_transport.endpoint_close(&a.endpoint);
    CHECK(a.endpoint != NULL);
    fake_hold(false);
    CHECK(WAIT(c.done == 1));
    CHECK_EQ(c.op.status, TARN_ECANCELED);
    CHECK(c.op.settled);
    CHECK_EQ(counters()->rail_failures, 0);
    end();
}

/* --- epochs and refusals --- */

TEST(a_new_epoch_shows_in_what_was_read) {
    begin("devices=2", MB, NULL);
    char data[100];
    for (int put = 0; put < 2; put++) {
        CHECK_EQ(move(put, 0, data, sizeof(data)), TARN_OK);
        uint32_t *epochs[] = {&live_header()->master_epoch, &live_header()->segment_epoch,
                              &live_header()->instance};
        for (size_t i = 0; i < ARRAY_LEN(epochs); i++) {
            __atomic_add_fetch(epochs[i], 1, __ATOMIC_RELEASE);
            CHECK_EQ(move(put, 0, data, sizeof(data)), TARN_ESTALE);
            __atomic_sub_fetch(epochs[i], 1, __ATOMIC_RELEASE);
            CHECK_EQ(move(put, 0, data, sizeof(data)), TARN_ESTALE); /* the key is spent */
            CHECK_EQ(rdma_transport.key_check(a.key[put]), TARN_ESTALE);
            close_keys();
            open_keys();
            CHECK_EQ(move(put, 0, data, sizeof(data)), TARN_OK);
        }
    }
    CHECK_EQ(counters()->stale, 6);
    end();
}

/* Registered afresh: who kept the old keys is told when he connects, and cannot use them where he
 * is. */
TEST(old_keys_after_a_new_registration) {
    begin("devices=1", MB, NULL);
    char data[100] = {1};
    CHECK_EQ(move(true, 0, data, sizeof(data)), TARN_OK);
    CHECK_EQ(move(false, 0, data, sizeof(data)), TARN_OK);
    rdma_memory_renew(a.segment);
    memset(segment_data(), 0, MB);
    CHECK(move(true, 0, data, sizeof(data)) != TARN_OK); /* not ready, or of another generation */
    CHECK(WAIT(rdma_transport.memory_version(a.segment) != 0));
    CHECK_EQ(move(true, 0, data, sizeof(data)), TARN_ESTALE);
    CHECK_EQ(move(false, 0, data, sizeof(data)), TARN_ESTALE);
    CHECK(all_zero(segment_data(), MB));
    close_keys();
    open_keys();
    CHECK_EQ(move(true, 0, data, sizeof(data)), TARN_OK);
    end();
}

TEST(what_refusals_say) {
    static const struct {
        enum grant_verdict verdict;
        tarn_status status;
    } cases[] = {
        {GRANT_BAD_MAC, TARN_EPERM},          {GRANT_BAD_OP, TARN_EPERM},
        {GRANT_BAD_RANGE, TARN_EPERM},        {GRANT_BAD_EPOCH, TARN_ESTALE},
        {GRANT_EXPIRED, TARN_EGRANT_EXPIRED}, {GRANT_FENCED, TARN_EPERM},
    };
    begin("devices=1", MB, NULL);
    char data[100];
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        for (int put = 0; put < 2; put++) {
            a.verdict = cases[i].verdict;
            struct client_op c;
            op_fill(&c, put, 0, data, sizeof(data));
            CHECK_EQ(op_run(&c), cases[i].status);
            CHECK(c.op.settled);
            CHECK_EQ(rdma_transport.key_check(a.key[put]), TARN_ESTALE);
            a.verdict = GRANT_OK;
            CHECK_EQ(move(put, 0, data, sizeof(data)), cases[i].status); /* it is remembered */
        }
        close_keys();
        open_keys();
    }
    CHECK_EQ(move(true, 0, data, sizeof(data)), TARN_OK);
    end();
}

TEST(too_many_connections_is_no_verdict) {
    static const char *const options[] = {"max-connections", "1", NULL};
    begin("devices=1", MB, options);
    char data[100];
    CHECK_EQ(move(true, 0, data, sizeof(data)), TARN_OK);
    CHECK_EQ(move(false, 0, data, sizeof(data)), TARN_ELIMIT);
    CHECK_EQ(rdma_transport.key_check(a.key[0]), TARN_OK);
    rdma_transport.key_close(&a.key[1]);
    CHECK(WAIT(move(false, 0, data, sizeof(data)) == TARN_OK));
    end();
}

TEST(nobody_listens) {
    begin("devices=1", MB, NULL);
    char data[100];
    rdma_transport.listener_close(&a.listener);
    for (int put = 0; put < 2; put++) {
        struct client_op c;
        op_fill(&c, put, 0, data, sizeof(data));
        CHECK_EQ(op_run(&c), TARN_ECLOSED);
        CHECK(c.op.settled);
        CHECK_EQ(rdma_transport.key_check(a.key[put]), TARN_OK);
    }
    end();
}

/* The fence of the host takes what was on its way; the client hears of it and is refused from then
 * on. */
TEST(a_fenced_session) {
    begin("devices=2", 8 * MB, NULL);
    static uint8_t data[4 * MB];
    fill(data, sizeof(data), 8);
    CHECK_EQ(move(true, 0, data, 1000), TARN_OK);
    a.verdict = GRANT_FENCED;
    struct transport_fence fence = {.kind = TRANSPORT_FENCE_SESSION, .session = 1, .ticket = 1};
    CHECK(WAIT(rdma_transport.listener_fence(a.listener, &fence) == TARN_OK));
    memset(segment_data(), 0, a.size);
    CHECK_EQ(move(true, 0, data, sizeof(data)), TARN_EPERM);
    CHECK(all_zero(segment_data(), a.size));
    end();
}

/* --- bounds --- */

TEST(idle_rails_are_closed) {
    static const char *const options[] = {"idle-timeout-ms", "100", NULL};
    begin("devices=1", MB, options);
    char data[100];
    CHECK_EQ(move(true, 0, data, sizeof(data)), TARN_OK);
    CHECK_EQ(count_rails("up", NULL), 1);
    CHECK(WAIT(count_rails(NULL, NULL) == 0));
    CHECK_EQ(counters()->reaped, 1);
    struct transport_listener_stats st;
    CHECK(WAIT((rdma_transport.listener_stats(a.listener, &st), st.connections == 0)));
    CHECK_EQ(move(true, 0, data, sizeof(data)), TARN_OK);
    end();
}

TEST(only_so_many_rails) {
    static const char *const options[] = {"max-rails", "2", "rails", "2", NULL};
    begin("devices=1", 8 * MB, options);
    static uint8_t data[4 * MB];
    struct transport_key *keys[4];
    for (int i = 0; i < 4; i++)
        CHECK_EQ(unpack(0, a.packed[0].data, a.packed[0].len, &keys[i]), TARN_OK);
    for (int i = 0; i < 12; i++) {
        struct client_op c;
        op_fill(&c, false, 0, data, i < 8 ? 100 : sizeof(data));
        c.part.key = keys[i % 4];
        CHECK_EQ(op_run(&c), TARN_OK);
        CHECK(a.client->work->n_rails <= 2);
    }
    CHECK(counters()->reaped >= 3);
    for (int i = 0; i < 4; i++) rdma_transport.key_close(&keys[i]);
    end();
}

/* Every step of coming up may fail; the operation is answered, and the next one works. */
TEST(steps_that_fail) {
    static const enum fake_call calls[] = {
        FAKE_CREATE_ID, FAKE_RESOLVE_ADDR, FAKE_RESOLVE_ROUTE, FAKE_CREATE_QP, FAKE_CONNECT,
        FAKE_ESTABLISH, FAKE_INIT_QP_ATTR, FAKE_MODIFY_QP,     FAKE_POST_SEND, FAKE_ACCEPT};
    begin("devices=1", MB, NULL);
    char data[300];
    for (size_t i = 0; i < ARRAY_LEN(calls); i++) {
        for (int put = 0; put < 2; put++) {
            fake_fail(calls[i], 0, 2, EIO);
            struct client_op c;
            op_fill(&c, put, 0, data, sizeof(data));
            (void)op_run(&c);
            fake_fail(calls[i], 0, 0, 0);
            CHECK(WAIT(move(put, 0, data, sizeof(data)) == TARN_OK));
        }
        close_keys();
        open_keys();
    }
    end();
}

/* Memory of a device: only in place, never looked at. */
TEST(dma_buf_memory) {
    begin("devices=1", MB, NULL);
    int fd = memfd_create("dma-buf", MFD_CLOEXEC);
    CHECK(fd >= 0 && ftruncate(fd, 65536) == 0);
    char *view = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    struct transport_memory_config config = {
        .addr = view, .length = 65536, .fd = fd, .fd_read = -1, .dmabuf = true};
    struct transport_memory *m;
    CHECK_EQ(rdma_transport.memory_register(a.client, &config, &m), TARN_OK);
    fill(view, 65536, 3);
    struct client_op c;
    struct transport_op *op = &c.op;
    size_t accepted;
    op_fill(&c, true, 0, view, 65536);
    CHECK_EQ(rdma_transport.submit(a.endpoint, &op, 1, &accepted), TARN_ENOTSUP);
    for (uint64_t len = 8; len <= 65536; len *= 8192) {
        op_fill(&c, true, 0, view, len);
        c.op.crcs = NULL;
        CHECK_EQ(op_run(&c), TARN_OK);
        CHECK(memcmp(segment_data(), view, len) == 0);
    }
    CHECK_EQ(counters()->staged, 0);
    CHECK_EQ(counters()->inlined, 0);
    rdma_transport.memory_deregister(&m);
    munmap(view, 65536);
    close(fd);
    end();
}

TEST_MAIN()
