/* Registration where devices, limits or the library will not: every place where it can fail, many
 * devices, memory of a device as a segment, devices that go while bytes move. */
#include "active.h"

#include <fcntl.h>

#define MB (UINT64_C(1) << 20)

static void register_again(bool dmabuf, int fd) {
    struct transport_memory_config config = {.addr = segment_data(),
                                             .length = a.size,
                                             .fd = fd,
                                             .fd_read = -1,
                                             .header_size = dmabuf ? 0 : SEGMENT_HEADER_SIZE,
                                             .segment = SEGMENT,
                                             .remote = true,
                                             .dmabuf = dmabuf,
                                             .dmabuf_offset = dmabuf ? 8192 : 0};
    close_keys();
    rdma_transport.memory_deregister(&a.segment);
    CHECK_EQ(rdma_transport.memory_register(a.host, &config, &a.segment), TARN_OK);
}

static unsigned whole(void) {
    unsigned n = 0;
    for (unsigned i = 0; i < rdma_devices_count(); i++) n += a.segment->region[i].whole;
    return n;
}

/* What the module counts is what the library has; nothing half made is kept. Staging buffers are
 * one region a device. */
static void expect_regions(unsigned devices, unsigned chunks) {
    uint64_t live = rdma_total(&rdma_totals.regions), segment = devices * (1 + 2 * chunks);
    CHECK_EQ(whole(), devices);
    CHECK_EQ(fake_count(FAKE_MRS), live);
    CHECK(live >= segment && live <= segment + rdma_devices_count());
    CHECK_EQ(fake_count(FAKE_PDS), rdma_devices_count() + devices);
}

static unsigned offered(void) {
    struct buf b = {0};
    struct rdma_key_header header = {0};
    if (rdma_transport.key_pack(a.segment, true, &b) == TARN_OK)
        memcpy(&header, b.data, sizeof(header));
    buf_free(&b);
    return header.n_devices;
}

static void works(uint64_t seed) {
    static char out[300000], in[sizeof(out)];
    fill(out, sizeof(out), seed);
    close_keys();
    open_keys();
    CHECK_EQ(move(true, 4000, out, sizeof(out)), TARN_OK);
    CHECK_EQ(move(false, 4000, in, sizeof(in)), TARN_OK);
    CHECK(memcmp(in, out, sizeof(in)) == 0);
}

static const char *const one_thread[] = {"register-threads",   "1",     "staging", "1mb",
                                         "connect-timeout-ms", "10000", NULL};
static const char *const threads[] = {"register-threads",   "8",     "staging", "1mb",
                                      "connect-timeout-ms", "10000", NULL};

/* --- every call that can fail --- */

static void one_call_fails(enum fake_call call, unsigned calls) {
    for (unsigned n = 0; n < calls; n++) {
        begin("devices=2,max_mr_size=2097152", 5 * MB, n % 2 ? threads : one_thread);
        close_keys();
        fake_fail(call, n, 1, ENOMEM);
        register_again(false, -1);
        CHECK(WAIT(a.segment->job == NULL));
        fake_fail(call, 0, 0, 0);
        CHECK_EQ(a.segment->failures, 1);
        CHECK(rdma_transport.memory_version(a.segment) != 0);
        CHECK_EQ(offered(), 1); /* the other device has it */
        expect_regions(1, 3);
        works(n);
        end();
    }
}
TEST(a_region_fails_at_any_place) {
    one_call_fails(FAKE_REG_MR, 14);
}
TEST(a_domain_fails_at_any_place) {
    one_call_fails(FAKE_ALLOC_PD, 2);
}

TEST(nothing_can_be_registered) {
    begin("devices=2,max_mr_size=2097152", 5 * MB, threads);
    struct buf b = {0};
    close_keys();
    fake_fail(FAKE_REG_MR, 0, 1000, ENOMEM);
    register_again(false, -1);
    CHECK(WAIT(a.segment->job == NULL));
    CHECK_EQ(rdma_transport.memory_version(a.segment), 0);
    CHECK_EQ(rdma_transport.key_pack(a.segment, true, &b), TARN_EAGAIN);
    CHECK_EQ(b.len, 0);
    expect_regions(0, 3);
    CHECK_EQ(fake_count(FAKE_PDS), 2);
    fake_fail(FAKE_REG_MR, 0, 0, 0);
    for (int i = 0; i < 50; i++) turn();
    CHECK_EQ(a.segment->generation, 0); /* nobody tries without a reason */
    fake_port("fake1", false);
    CHECK(WAIT(!rdma_device_usable(rdma_device_at(1))));
    fake_port("fake1", true);
    CHECK(WAIT(rdma_transport.memory_version(a.segment) != 0));
    CHECK_EQ(offered(), 1); /* the one that came up */
    works(1);
    end();
}

TEST(renewing_fails_at_any_place) {
    struct transport_fence fence = {.kind = TRANSPORT_FENCE_BEFORE, .master_epoch = MASTER};
    for (unsigned n = 0; n < 14; n += 3) {
        begin("devices=2,max_mr_size=2097152", 5 * MB, one_thread);
        uint64_t before = a.segment->generation;
        works(n);
        fake_fail(FAKE_REG_MR, n, 1, ENOMEM);
        CHECK_EQ(rdma_transport.listener_fence(a.listener, &fence), TARN_OK);
        CHECK_EQ(rdma_transport.memory_version(a.segment), 0); /* the old keys are nobody's */
        CHECK(WAIT(a.segment->job == NULL));
        fake_fail(FAKE_REG_MR, 0, 0, 0);
        CHECK(a.segment->generation != 0 && a.segment->generation != before);
        expect_regions(1, 3);
        close_keys();
        works(n + 1);
        close_keys();
        /* and all is tried again */
        CHECK_EQ(rdma_transport.listener_fence(a.listener, &fence), TARN_OK);
        CHECK(WAIT(a.segment->job == NULL));
        expect_regions(2, 3);
        works(n + 2);
        end();
    }
}

TEST(fences_faster_than_registration) {
    struct transport_fence fence = {.kind = TRANSPORT_FENCE_BEFORE, .master_epoch = MASTER};
    begin("devices=2,max_mr_size=2097152", 8 * MB, threads);
    close_keys();
    for (int i = 0; i < 100; i++) {
        CHECK_EQ(rdma_transport.listener_fence(a.listener, &fence), TARN_OK);
        CHECK_EQ(rdma_transport.memory_version(a.segment), 0);
        if (i % 3 == 0) turn();
    }
    CHECK(WAIT(rdma_transport.memory_version(a.segment) != 0));
    expect_regions(2, 4);
    works(1);
    end();
}

/* One device has it and the other is tried again: keys die then, too, and both begin anew. */
TEST(a_fence_while_a_device_catches_up) {
    struct transport_fence fence = {.kind = TRANSPORT_FENCE_BEFORE, .master_epoch = MASTER};
    begin("devices=2,max_mr_size=2097152", 5 * MB, one_thread);
    fake_fail(FAKE_ALLOC_PD, 1, 1, ENOMEM);
    register_again(false, -1);
    CHECK(WAIT(rdma_transport.memory_version(a.segment) != 0));
    uint64_t before = a.segment->generation;
    uint32_t rkey = a.segment->region[0].chunk[0].write->rkey;
    fake_port("fake1", false);
    CHECK(WAIT(!rdma_device_usable(rdma_device_at(1))));
    fake_port("fake1", true);
    CHECK(WAIT(a.segment->job != NULL));
    CHECK_EQ(a.segment->generation, before);
    CHECK_EQ(rdma_transport.listener_fence(a.listener, &fence), TARN_OK);
    CHECK_EQ(rdma_transport.memory_version(a.segment), 0);
    CHECK(WAIT(rdma_transport.memory_version(a.segment) != 0 && a.segment->job == NULL));
    CHECK(a.segment->generation != before);
    CHECK(a.segment->region[0].chunk[0].write->rkey != rkey);
    expect_regions(2, 3);
    works(1);
    end();
}

/* --- memory of our own operations --- */

TEST(local_memory_fails) {
    begin("devices=2", MB, one_thread);
    char *p = malloc(MB);
    struct transport_memory_config config = {.addr = p, .length = MB, .fd = -1, .fd_read = -1};
    struct transport_memory *m = NULL;
    fake_fail(FAKE_REG_MR, 0, 100, ENOMEM);
    CHECK_EQ(rdma_transport.memory_register(a.client, &config, &m), TARN_ENOMEM);
    fake_fail(FAKE_REG_MR, 0, 100, EIO);
    CHECK_EQ(rdma_transport.memory_register(a.client, &config, &m), TARN_EIO);
    CHECK(m == NULL);
    fake_fail(FAKE_REG_MR, 0, 1, ENOMEM); /* one device has it, the other goes by staging buffers */
    CHECK_EQ(rdma_transport.memory_register(a.client, &config, &m), TARN_OK);
    CHECK_EQ(rdma_total(&rdma_totals.regions), fake_count(FAKE_MRS));
    fill(p, MB, 1);
    for (int i = 0; i < 8; i++) CHECK_EQ(move(true, 0, p, MB), TARN_OK);
    CHECK(memcmp(p, segment_data(), MB) == 0);
    rdma_transport.memory_deregister(&m);
    free(p);
    end();
}

TEST(memory_that_may_only_be_read_is_a_source) {
    begin("devices=1", MB, NULL);
    char *p = mmap(NULL, MB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fill(p, MB, 1);
    CHECK_EQ(mprotect(p, MB, PROT_READ), 0);
    struct transport_memory_config config = {.addr = p, .length = MB, .fd = -1, .fd_read = -1};
    struct transport_memory *m;
    fake_fail(FAKE_REG_MR, 0, 1, EFAULT); /* what a device says of it when it is to write there */
    CHECK_EQ(rdma_transport.memory_register(a.client, &config, &m), TARN_OK);
    CHECK_EQ(move(true, 0, p, MB), TARN_OK);
    CHECK(memcmp(p, segment_data(), MB) == 0);
    rdma_transport.memory_deregister(&m);
    munmap(p, MB);
    end();
}

TEST(staging_buffers_fail) {
    begin("devices=1", MB, NULL);
    static char data[100000];
    fill(data, sizeof(data), 1);
    fake_fail(FAKE_REG_MR, 0, 1000, ENOMEM);
    struct client_op c;
    op_fill(&c, true, 0, data, sizeof(data));
    CHECK(op_run(&c) != TARN_OK);
    CHECK(c.op.settled); /* not a byte was sent */
    fake_fail(FAKE_REG_MR, 0, 0, 0);
    CHECK(WAIT(move(true, 0, data, sizeof(data)) == TARN_OK));
    CHECK(memcmp(data, segment_data(), sizeof(data)) == 0);
    end();
}

/* --- memory of a device --- */

TEST(a_segment_of_dma_buf_memory) {
    begin("devices=2,max_mr_size=2097152", 5 * MB, threads);
    int fd = memfd_create("gpu", MFD_CLOEXEC);
    CHECK_EQ(ftruncate(fd, (off_t)(8192 + a.size)), 0);
    char *gpu = mmap(NULL, 8192 + a.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    register_again(true, fd);
    CHECK(WAIT(rdma_transport.memory_version(a.segment) != 0));
    open_keys();
    char *out = malloc(3 * MB), *in = malloc(3 * MB);
    fill(out, 3 * MB, 1);
    CHECK_EQ(move(true, MB + 5, out, 3 * MB), TARN_OK); /* over the border of a chunk */
    CHECK(memcmp(gpu + 8192 + MB + 5, out, 3 * MB) == 0);
    for (uint64_t i = 0; i < a.size; i += 4096)
        CHECK_EQ(segment_data()[i], 0); /* its address is only a name */
    CHECK_EQ(move(false, MB + 5, in, 3 * MB), TARN_OK);
    CHECK(memcmp(in, out, 3 * MB) == 0);
    free(out);
    free(in);
    munmap(gpu, 8192 + a.size);
    close(fd);
    end();
}

TEST(a_device_without_dma_buf) {
    begin("devices=1,dmabuf=0", MB, NULL);
    int fd = memfd_create("gpu", MFD_CLOEXEC);
    CHECK_EQ(ftruncate(fd, (off_t)(8192 + a.size)), 0);
    struct transport_memory_config config = {
        .addr = segment_data(), .length = MB, .fd = fd, .fd_read = -1, .dmabuf = true};
    struct transport_memory *m = NULL;
    CHECK_EQ(rdma_transport.memory_register(a.client, &config, &m), TARN_ENOTSUP);
    config.fd = -1;
    CHECK_EQ(rdma_transport.memory_register(a.client, &config, &m), TARN_EINVAL);
    register_again(true, fd);
    CHECK(WAIT(a.segment->job == NULL));
    CHECK_EQ(rdma_transport.memory_version(a.segment), 0);
    CHECK_EQ(offered(), 0);
    close(fd);
    end();
}

/* --- many devices --- */

TEST(more_devices_than_there_is_room_for) {
    begin("devices=12", 2 * MB, NULL);
    CHECK_EQ(rdma_devices_count(), RDMA_DEVICES_MAX);
    CHECK_EQ(offered(), RDMA_DEVICES_MAX);
    CHECK_EQ(whole(), RDMA_DEVICES_MAX);
    static char out[2 * 1024 * 1024], in[sizeof(out)];
    for (int i = 0; i < 10; i++) {
        fill(out, sizeof(out), (uint64_t)i);
        CHECK_EQ(move(true, 0, out, sizeof(out)), TARN_OK);
        CHECK_EQ(move(false, 0, in, sizeof(in)), TARN_OK);
        CHECK(memcmp(in, out, sizeof(in)) == 0);
    }
    end();
}

/* Devices go, one after the other, while much is under way. Every operation ends, what ended well
 * has its bytes, and the last device does what the others did. */
static void devices_go(bool silent) {
    enum { OPS = 48, SIZE = 256 << 10 };
    static struct client_op put[OPS], get[OPS];
    static char out[OPS][SIZE], in[OPS][SIZE];
    static const char *const patient[] = {"qp-timeout", "8", "qp-retry", "1", "retries", "8", NULL};
    begin("devices=4,stall_ms=100", (uint64_t)OPS * SIZE, patient);
    fill(out, sizeof(out), 1);
    fill(segment_data(), a.size, 2);
    static char before[OPS][SIZE];
    memcpy(before, segment_data(), sizeof(before));
    unsigned good = 0;
    for (int round = 0; round < 3; round++) {
        char name[24];
        fake_delay_us(2000);
        for (unsigned i = 0; i < OPS; i++) {
            op_fill(&put[i], true, (uint64_t)i * SIZE, out[i], SIZE);
            op_submit(&put[i]);
        }
        for (int i = 0; i < 5 + round * 7; i++) turn();
        snprintf(name, sizeof(name), "fake%d", round);
        fake_device_remove(name, silent);
        for (unsigned i = 0; i < OPS; i++) CHECK(WAIT(put[i].done == 1));
        fake_delay_us(0);
        for (unsigned i = 0; i < OPS; i++) {
            op_fill(&get[i], false, (uint64_t)i * SIZE, in[i], SIZE);
            op_submit(&get[i]);
        }
        for (unsigned i = 0; i < OPS; i++) {
            CHECK(WAIT(get[i].done == 1));
            CHECK_EQ(put[i].done, 1); /* and no more */
            if (get[i].op.status != TARN_OK || put[i].op.status != TARN_OK) continue;
            CHECK(memcmp(in[i], out[i], SIZE) == 0);
            good++;
        }
    }
    CHECK(good > OPS); /* the fourth device was there all the time */
    CHECK(WAIT(move(true, 0, out[1], SIZE) == TARN_OK));
    CHECK(memcmp(segment_data(), out[1], SIZE) == 0);
    end();
}
TEST(devices_break_under_load) {
    devices_go(false);
}
TEST(devices_vanish_under_load) {
    devices_go(true);
}

TEST(short_queues_and_single_pieces) {
    static const char *const options[] = {"send-queue", "4", "signal-every", "2", "qps", "1", NULL};
    begin("devices=3,max_qp_wr=4,max_sge=1,max_inline=0,max_rd_atom=1,max_cqe=16", 4 * MB, options);
    static char out[4 << 20], in[sizeof(out)];
    for (int i = 0; i < 4; i++) {
        fill(out, sizeof(out), (uint64_t)i);
        CHECK_EQ(move(true, 0, out, sizeof(out)), TARN_OK);
        CHECK_EQ(move(false, 0, in, sizeof(in)), TARN_OK);
        CHECK(memcmp(in, out, sizeof(in)) == 0);
    }
    end();
}

TEST_MAIN()
