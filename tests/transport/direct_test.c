/* Segments that are not memory, read by the process that has them: without a connection, and from
 * the same buffers as peers. */
#include "staged.h"

struct direct {
    struct object o;
    struct transport_part parts[8];
    struct iovec iov[3];
    struct transport_op op;
    uint8_t *data;
    uint32_t crcs[16];
    uint64_t deadline_ms; /* 0: none */
    tarn_status status;
    pthread_t thread;
};

/* Into three pieces of memory. */
static void direct_init(struct direct *d, uint64_t at, uint64_t size, size_t n) {
    *d = (struct direct){.data = malloc(size)};
    memset(d->data, 0xee, size);
    object_on_disk(&d->o, at, size, n, 1);
    for (size_t i = 0; i < d->o.n; i++)
        d->parts[i] = (struct transport_part){.extent = d->o.x[i], .sub_length = d->o.x[i].length};
    uint64_t first = size / 3, second = size / 2;
    d->iov[0] = (struct iovec){d->data, first};
    d->iov[1] = (struct iovec){d->data + first, second - first};
    d->iov[2] = (struct iovec){d->data + second, size - second};
    d->op = (struct transport_op){.kind = TRANSPORT_GET,
                                  .parts = d->parts,
                                  .n_parts = d->o.n,
                                  .iov = d->iov,
                                  .n_iov = 3,
                                  .crcs = d->crcs};
}

static void *direct_main(void *arg) {
    struct direct *d = arg;
    d->status = host_read(w.host, &d->op, d->deadline_ms);
    return NULL;
}

static void direct_begin(struct direct *d) {
    CHECK_EQ(pthread_create(&d->thread, NULL, direct_main, d), 0);
}

static tarn_status direct_end(struct direct *d) {
    pthread_join(d->thread, NULL);
    tarn_status status = d->status;
    if (status == TARN_OK && !object_right(&d->o, d->data)) status = TARN_ECORRUPT;
    free(d->data);
    return status;
}

static tarn_status direct_read(uint64_t at, uint64_t size) {
    struct direct d;
    direct_init(&d, at, size, 1);
    direct_begin(&d);
    return direct_end(&d);
}

static bool untouched(const struct direct *d) {
    for (uint64_t i = 0; i < d->o.size; i++)
        if (d->data[i] != 0xee) return false;
    return true;
}

static void direct_sizes(void) {
    static const uint64_t sizes[] = {1, 4097, PIECE - 1, PIECE + 1, 3 * PIECE + 4097, 12 * PIECE};
    static const uint64_t starts[] = {0, 4095, PIECE + 64};
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        for (size_t k = 0; k < ARRAY_LEN(starts); k++) {
            struct direct d;
            bool blocks = (i + k) % 2 != 0;
            direct_init(&d, starts[k], sizes[i], 1 + (i + k) % 4);
            if (blocks) d.op.crc_first = d.op.crc_block = PIECE;
            CHECK_EQ(host_read(w.host, &d.op, 0), TARN_OK);
            CHECK(object_right(&d.o, d.data));
            for (uint64_t at = 0, n = 0; at < sizes[i]; n++) {
                uint64_t len = blocks ? min_u64(PIECE, sizes[i] - at) : sizes[i];
                CHECK_EQ(d.crcs[n], crc32c(0, d.data + at, len));
                at += len;
            }
            memset(d.data, 0xee, sizes[i]);
            d.op.crcs = NULL;
            CHECK_EQ(host_read(w.host, &d.op, 0), TARN_OK);
            CHECK(object_right(&d.o, d.data));
            free(d.data);
        }
    }
}

TEST(its_own_process_reads_every_byte_without_a_connection) {
    for (int how = 0; how < 4; how++) {
        fake_begin(32u << 20, how == 3 ? PIECE : 0);
        FAKE((fake.inside = how == 0, fake.newest_first = how == 1, fake.busy = how == 2 ? 3 : 0));
        direct_sizes();
        struct host_stats s = world_stats(&w);
        CHECK_EQ(s.staged_reads, 2 * 6 * 3);
        CHECK(s.staged_bytes > 0 && s.staged_failures == 0);
        CHECK_EQ(s.reads + s.bytes_read + s.connections_total, 0);
        if (how == 3) CHECK(fake_look(&fake.most) == 1 && s.staging_waits > 0);
        if (how == 1) CHECK(fake_look(&fake.most) >= 2 && fake_look(&fake.most) <= 8);
        CHECK(staging_is_free());
        fake_end();
    }
}

TEST(what_its_own_process_cannot_read) {
    fake_begin(32u << 20, 4 * PIECE);
    static const uint64_t where[] = {0, PIECE + 5, 6 * PIECE};
    for (size_t i = 0; i < ARRAY_LEN(where); i++) {
        for (int how = 0; how < 4; how++) {
            FAKE({
                fake.failure = how % 2 == 0 ? TARN_EIO : TARN_ENOTFOUND;
                *(how < 2 ? &fake.fail_at : &fake.refuse_at) = where[i];
            });
            CHECK_EQ(direct_read(0, 7 * PIECE), how % 2 == 0 ? TARN_EIO : TARN_ENOTFOUND);
            FAKE(fake.fail_at = fake.refuse_at = NEVER);
            CHECK_EQ(direct_read(0, 7 * PIECE), TARN_OK);
        }
    }
    CHECK_EQ(world_stats(&w).staged_failures, 12);
    CHECK(staging_is_free());
    struct direct d;
    direct_init(&d, 0, 4096, 1);
    d.parts[0].extent.segment_epoch++;
    CHECK_EQ(host_read(w.host, &d.op, 0), TARN_ENOTFOUND);
    d.parts[0].extent = d.o.x[0];
    d.parts[0].extent.segment = WORLD_SEGMENT; /* that is memory */
    CHECK_EQ(host_read(w.host, &d.op, 0), TARN_ENOTFOUND);
    d.parts[0].extent = d.o.x[0];
    d.parts[0].extent.offset = UINT64_MAX - 4095;
    CHECK_EQ(host_read(w.host, &d.op, 0), TARN_ENOTFOUND);
    d.parts[0].extent = d.o.x[0];
    d.parts[0].sub_offset = 1; /* beyond it */
    CHECK_EQ(host_read(w.host, &d.op, 0), TARN_EINVAL);
    d.parts[0].sub_length--; /* less than there is memory for */
    CHECK_EQ(host_read(w.host, &d.op, 0), TARN_EINVAL);
    CHECK(untouched(&d));
    free(d.data);
    fake_end();
}

TEST(its_own_process_shares_what_is_read) {
    fake_begin(32u << 20, 0);
    FAKE(fake.mark = 7);
    CHECK_EQ(read_as(11, 5000, 2 * PIECE + 9), TARN_OK);
    unsigned once = calls();
    CHECK_EQ(direct_read(5000, 2 * PIECE + 9), TARN_OK);
    CHECK_EQ(calls(), once);
    CHECK_EQ(world_stats(&w).staging_shared, once);
    CHECK_EQ(direct_read(5000, 2 * PIECE + 9), TARN_OK); /* not the same reading twice */
    CHECK_EQ(calls(), 2 * once);
    FAKE(fake.held = true);
    struct direct d;
    direct_init(&d, 20 * PIECE, 2 * PIECE, 1);
    direct_begin(&d);
    CHECK(WORLD_WAIT(calls() == 2 * once + 2));
    int fd = dial_staged_as(12, 20 * PIECE, 2 * PIECE);
    CHECK(WORLD_WAIT(world_stats(&w).staging_shared == once + 2));
    FAKE(fake.held = false);
    CHECK_EQ(direct_end(&d), TARN_OK);
    uint8_t *data = malloc(2 * PIECE);
    CHECK(get_pieces(fd, 1, data, 2 * PIECE));
    CHECK(right(data, 20 * PIECE, 2 * PIECE));
    CHECK_EQ(calls(), 2 * once + 2);
    CHECK(staging_is_free());
    close(fd);
    free(data);
    fake_end();
}

/* Rule 3: when it gives up nobody writes to its memory any more, whatever the disk does later. */
TEST(its_own_process_does_not_wait_for_a_disk_that_hangs) {
    fake_begin(32u << 20, 4 * PIECE);
    FAKE(fake.held = true);
    struct direct d[2];
    for (int i = 0; i < 2; i++) {
        direct_init(&d[i], (uint64_t)i * 8 * PIECE, 2 * PIECE, 1);
        if (i == 0) d[i].op.patience_ms = 30;
        if (i == 1) d[i].deadline_ms = clock_boot_ms() + 30;
        direct_begin(&d[i]);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(d[i].thread, NULL);
        CHECK_EQ(d[i].status, TARN_ETIMEOUT);
    }
    CHECK_EQ(world_stats(&w).staging_used, 4 * PIECE); /* the disk still writes to them */
    struct direct late;                                /* and there is no buffer */
    direct_init(&late, 0, PIECE, 1);
    late.op.patience_ms = 30;
    CHECK_EQ(host_read(w.host, &late.op, 0), TARN_ETIMEOUT);
    FAKE(fake.held = false);
    CHECK(staging_is_free());
    CHECK(untouched(&d[0]) && untouched(&d[1]) && untouched(&late));
    late.op.patience_ms = 0;
    CHECK_EQ(host_read(w.host, &late.op, 0), TARN_OK);
    CHECK(object_right(&late.o, late.data));
    for (int i = 0; i < 2; i++) free(d[i].data);
    free(late.data);
    fake_end();
}

TEST(a_host_goes_when_its_reader_has_let_go_of_its_own_reads) {
    fake_begin(32u << 20, 0);
    FAKE(fake.held = true);
    struct direct d;
    direct_init(&d, 0, 3 * PIECE, 1);
    d.op.patience_ms = 20;
    CHECK_EQ(host_read(w.host, &d.op, 0), TARN_ETIMEOUT);
    free(d.data);
    fake_end();
    CHECK_EQ(fake.finished, 3);
}

static void resize_reader(struct world *world) {
    served = host_reader_resize(world->host, world->reader_slot, 4u << 20);
}

TEST(a_retired_reader_waits_for_its_own_process) {
    fake_begin(8u << 20, 0);
    struct direct d, again;
    direct_init(&d, 0, 4 * PIECE, 1);
    direct_init(&again, 0, 4096, 1);
    FAKE(fake.held = true);
    direct_begin(&d);
    CHECK(WORLD_WAIT(fake_look(&fake.under_way) == 4));
    CHECK(host_reads(w.host, &d.o.x[0]));
    world_call(&w, retire_reader);
    CHECK(!host_reads(w.host, &d.o.x[0]));
    CHECK_EQ(host_read(w.host, &again.op, 0), TARN_ENOTFOUND);
    for (int i = 0; i < 20; i++) {
        world_call(&w, resize_reader);
        CHECK_EQ(served, TARN_EAGAIN);
    }
    FAKE(fake.held = false);
    CHECK_EQ(direct_end(&d), TARN_OK); /* its bytes were there when it asked */
    CHECK(WORLD_WAIT((world_call(&w, resize_reader), served == TARN_OK)));
    world_call(&w, serve_reader_again);
    CHECK_EQ(served, TARN_OK);
    CHECK_EQ(host_read(w.host, &again.op, 0), TARN_ENOTFOUND); /* it has another name */
    again.parts[0].extent.segment_epoch++;
    CHECK_EQ(host_read(w.host, &again.op, 0), TARN_OK);
    again.parts[0].extent.length = 5u << 20; /* and is smaller */
    CHECK_EQ(host_read(w.host, &again.op, 0), TARN_ENOTFOUND);
    free(again.data);
    fake_end();
}

TEST(many_of_its_own_process_and_peers_share_a_few_buffers) {
    enum { THREADS = 12, PEERS = 6 };
    fake_begin(64u << 20, 3 * PIECE);
    FAKE((fake.mark = 7, fake.newest_first = true));
    static struct direct d[THREADS];
    int fds[PEERS];
    uint8_t *data = malloc(3 * PIECE);
    for (int round = 0; round < 4; round++) {
        for (unsigned i = 0; i < THREADS; i++) {
            direct_init(&d[i], (i % 5) * PIECE + (i % 2) * 100, 5 * PIECE, 2);
            direct_begin(&d[i]);
        }
        for (unsigned i = 0; i < PEERS; i++) fds[i] = dial_staged_as(100 + i, i * PIECE, 3 * PIECE);
        for (unsigned i = 0; i < PEERS; i++) {
            CHECK(get_pieces(fds[i], 1, data, 3 * PIECE));
            CHECK(right(data, i * PIECE, 3 * PIECE));
            close(fds[i]);
        }
        for (unsigned i = 0; i < THREADS; i++) CHECK_EQ(direct_end(&d[i]), TARN_OK);
    }
    CHECK(fake_look(&fake.most) <= 3);
    CHECK(staging_is_free());
    free(data);
    fake_end();
}

TEST_MAIN()
