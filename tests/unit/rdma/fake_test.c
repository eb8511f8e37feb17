/* The fake verbs library itself: it forbids what a device forbids. Otherwise the tests over it
 * would prove nothing. Connections and what may be injected: fake_cm_test.c. */
#include "pair.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>

/* Does fn end the process with a message? */
static bool aborts(void (*fn)(void)) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        struct rlimit none = {0};
        setrlimit(RLIMIT_CORE, &none);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int null = open("/dev/null", O_WRONLY);
        dup2(null, 1);
        dup2(null, 2);
        signal(SIGABRT, SIG_DFL);
        fn();
        _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return (WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT) ||
           (WIFEXITED(status) && WEXITSTATUS(status) != 0);
}

/* --- bytes --- */

TEST(writes_and_reads_of_any_size) {
    static const uint32_t sizes[] = {0,     1,     63,     4096, 65535,
                                     65536, 65537, 131072, MIB,  3 * MIB + 11};
    begin(IBV_ACCESS_LOCAL_WRITE | RIGHT_WRITE, RIGHT_WRITE);
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        uint32_t n = sizes[i];
        fill(a.memory, n + 1, i + 1);
        memset(b.memory, 0, 4 * MIB);
        CHECK_EQ(post(&a, IBV_WR_RDMA_WRITE, i, IBV_SEND_SIGNALED, 0, n, there(5), b.mr->rkey), 0);
        expect_completion(&a, i, IBV_WC_SUCCESS);
        CHECK(memcmp(b.memory + 5, a.memory, n) == 0);
        CHECK_EQ(b.memory[4] | b.memory[5 + n], 0);
        memset(a.memory, 0, n + 1);
        CHECK_EQ(post(&a, IBV_WR_RDMA_READ, i, IBV_SEND_SIGNALED, 0, n, there(5), b.mr->rkey), 0);
        struct ibv_wc wc = completion(&a);
        CHECK_EQ(wc.status, IBV_WC_SUCCESS);
        CHECK_EQ(wc.opcode, IBV_WC_RDMA_READ);
        CHECK_EQ(wc.byte_len, n);
        CHECK(memcmp(b.memory + 5, a.memory, n) == 0);
        CHECK_EQ(a.memory[n], 0);
    }
    struct fake_served served = fake_served();
    CHECK(served.reads >= ARRAY_LEN(sizes) && served.writes >= ARRAY_LEN(sizes));
    over();
}

TEST(gathers_and_scatters) {
    begin(IBV_ACCESS_LOCAL_WRITE | RIGHT_WRITE, RIGHT_WRITE);
    fill(a.memory, MIB, 1);
    struct ibv_sge sge[4] = {{(uintptr_t)a.memory + 7, 100000, a.mr->lkey},
                             {(uintptr_t)a.memory + 300000, 1, a.mr->lkey},
                             {(uintptr_t)a.memory + 1, 0, a.mr->lkey},
                             {(uintptr_t)a.memory + 400000, 70000, a.mr->lkey}};
    struct ibv_send_wr *bad, wr = {.sg_list = sge,
                                   .num_sge = 4,
                                   .opcode = IBV_WR_RDMA_WRITE,
                                   .send_flags = IBV_SEND_SIGNALED,
                                   .wr.rdma = {there(0), b.mr->rkey}};
    CHECK_EQ(ibv_post_send(a.qp, &wr, &bad), 0);
    expect_completion(&a, 0, IBV_WC_SUCCESS);
    CHECK(memcmp(b.memory, a.memory + 7, 100000) == 0);
    CHECK(b.memory[100000] == a.memory[300000]);
    CHECK(memcmp(b.memory + 100001, a.memory + 400000, 70000) == 0);
    memset(a.memory, 0, MIB);
    wr.opcode = IBV_WR_RDMA_READ;
    CHECK_EQ(ibv_post_send(a.qp, &wr, &bad), 0);
    expect_completion(&a, 0, IBV_WC_SUCCESS);
    CHECK(memcmp(b.memory, a.memory + 7, 100000) == 0);
    CHECK(b.memory[100000] == a.memory[300000]);
    CHECK(memcmp(b.memory + 100001, a.memory + 400000, 70000) == 0);
    wr.num_sge = 5; /* more than was asked for */
    CHECK_EQ(ibv_post_send(a.qp, &wr, &bad), EINVAL);
    CHECK(bad == &wr);
    over();
}

TEST(inline_bytes_are_taken_at_once) {
    begin(IBV_ACCESS_LOCAL_WRITE | RIGHT_WRITE, RIGHT_WRITE);
    uint8_t mine[65] = "taken"; /* not registered */
    struct ibv_sge sge = {(uintptr_t)mine, 64, 0};
    struct ibv_send_wr *bad, wr = {.sg_list = &sge,
                                   .num_sge = 1,
                                   .opcode = IBV_WR_RDMA_WRITE,
                                   .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE,
                                   .wr.rdma = {there(0), b.mr->rkey}};
    CHECK_EQ(ibv_post_send(a.qp, &wr, &bad), 0);
    memset(mine, 'x', sizeof(mine));
    expect_completion(&a, 0, IBV_WC_SUCCESS);
    CHECK(memcmp(b.memory, "taken", 6) == 0);
    sge.length = 65;
    CHECK_EQ(ibv_post_send(a.qp, &wr, &bad), EINVAL);
    sge.length = 64;
    wr.opcode = IBV_WR_RDMA_READ;
    CHECK_EQ(ibv_post_send(a.qp, &wr, &bad), EINVAL);
    over();
}

TEST(one_queue_pair_keeps_the_order) {
    begin(IBV_ACCESS_LOCAL_WRITE | RIGHT_WRITE, RIGHT_WRITE);
    for (unsigned round = 0; round < 50; round++) {
        fill(a.memory, MIB, round + 1);
        for (unsigned i = 0; i < 8; i++) {
            uint32_t n = 100000, at = i * n;
            CHECK_EQ(post(&a, IBV_WR_RDMA_WRITE, i, 0, at, n, there(0), b.mr->rkey), 0);
            CHECK_EQ(post(&a, IBV_WR_RDMA_READ, i, i == 7 ? IBV_SEND_SIGNALED : 0, 2 * MIB + at, n,
                          there(0), b.mr->rkey),
                     0);
        }
        expect_completion(&a, 7, IBV_WC_SUCCESS);
        CHECK(memcmp(a.memory, a.memory + 2 * MIB, 800000) == 0);
    }
    over();
}

TEST(dma_buf_memory_on_both_sides) {
    begin(IBV_ACCESS_LOCAL_WRITE | RIGHT_WRITE, RIGHT_WRITE);
    int fd = memfd_create("gpu", MFD_CLOEXEC);
    CHECK_EQ(ftruncate(fd, MIB), 0);
    uint8_t *gpu = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    uint64_t iova = 0x700000000000u;
    struct ibv_mr *mine =
        ibv_reg_dmabuf_mr(a.pd, 4096 + 10, 200000, iova, fd, IBV_ACCESS_LOCAL_WRITE);
    CHECK(mine != NULL);
    fill(gpu, MIB, 1);
    struct ibv_sge sge = {iova, 200000, mine->lkey};
    struct ibv_send_wr *bad, wr = {.sg_list = &sge,
                                   .num_sge = 1,
                                   .opcode = IBV_WR_RDMA_WRITE,
                                   .send_flags = IBV_SEND_SIGNALED,
                                   .wr.rdma = {there(0), b.mr->rkey}};
    CHECK_EQ(ibv_post_send(a.qp, &wr, &bad), 0);
    expect_completion(&a, 0, IBV_WC_SUCCESS);
    CHECK(memcmp(b.memory, gpu + 4106, 200000) == 0);
    struct ibv_mr *theirs =
        ibv_reg_dmabuf_mr(b.pd, 0, MIB, iova, fd, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
    CHECK(theirs != NULL);
    CHECK_EQ(post(&a, IBV_WR_RDMA_READ, 1, IBV_SEND_SIGNALED, 0, 1000, iova + 999, theirs->rkey),
             0);
    expect_completion(&a, 1, IBV_WC_SUCCESS);
    CHECK(memcmp(a.memory, gpu + 999, 1000) == 0);
    errno = 0;
    CHECK(ibv_reg_dmabuf_mr(b.pd, MIB - 10, 20, iova, fd, 0) == NULL);
    CHECK_EQ(errno, EINVAL);
    CHECK_EQ(ibv_dereg_mr(mine), 0);
    CHECK_EQ(ibv_dereg_mr(theirs), 0);
    munmap(gpu, MIB);
    close(fd);
    over();
}

/* --- what is refused --- */

static void expect_refused(uint64_t remote, uint32_t rkey, enum ibv_wr_opcode opcode,
                           uint32_t len) {
    uint64_t refused = fake_served().refused;
    memset(b.memory, 7, 4 * MIB);
    /* errors are told of unsignalled ones, too */
    CHECK_EQ(post(&a, opcode, 1, 0, 0, len, remote, rkey), 0);
    CHECK_EQ(post(&a, IBV_WR_RDMA_READ, 2, 0, 0, 8, there(0), b.mr->rkey), 0);
    expect_completion(&a, 1, IBV_WC_REM_ACCESS_ERR);
    expect_completion(&a, 2, IBV_WC_WR_FLUSH_ERR);
    CHECK_EQ(post(&a, IBV_WR_RDMA_READ, 3, 0, 0, 8, there(0), b.mr->rkey), 0);
    expect_completion(&a, 3, IBV_WC_WR_FLUSH_ERR);
    CHECK_EQ(fake_served().refused, refused + 1);
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    CHECK_EQ(ibv_query_qp(b.qp, &attr, IBV_QP_STATE, &init), 0);
    CHECK_EQ(attr.qp_state, IBV_QPS_ERR);
    CHECK_EQ(ibv_query_qp(a.qp, &attr, IBV_QP_STATE, &init), 0);
    CHECK_EQ(attr.qp_state, IBV_QPS_ERR);
    struct ibv_async_event event;
    CHECK_EQ(ibv_get_async_event(b.verbs, &event), 0);
    enum ibv_event_type type = event.event_type;
    bool mine = event.element.qp == b.qp;
    ibv_ack_async_event(&event);
    CHECK(mine);
    CHECK_EQ(type, IBV_EVENT_QP_ACCESS_ERR);
    for (size_t i = 0; i < 4 * MIB; i += 1000) CHECK_EQ(b.memory[i], 7);
}

TEST(a_reader_cannot_write_with_the_writers_key) {
    begin(IBV_ACCESS_LOCAL_WRITE | RIGHT_WRITE, RIGHT_READ);
    expect_refused(there(0), b.mr->rkey, IBV_WR_RDMA_WRITE, 300000);
    over();
}
TEST(a_key_for_reading_does_not_write) {
    begin(IBV_ACCESS_LOCAL_WRITE | RIGHT_READ, RIGHT_WRITE);
    expect_refused(there(0), b.mr->rkey, IBV_WR_RDMA_WRITE, 10);
    over();
}
TEST(a_queue_pair_without_rights_is_of_no_use) {
    begin(IBV_ACCESS_LOCAL_WRITE | RIGHT_WRITE, 0);
    expect_refused(there(0), b.mr->rkey, IBV_WR_RDMA_READ, 10);
    over();
}
TEST(a_range_ends_where_it_ends) {
    begin(IBV_ACCESS_LOCAL_WRITE | RIGHT_WRITE, RIGHT_WRITE);
    CHECK_EQ(
        post(&a, IBV_WR_RDMA_WRITE, 0, IBV_SEND_SIGNALED, 0, 100, there(4 * MIB - 100), b.mr->rkey),
        0);
    expect_completion(&a, 0, IBV_WC_SUCCESS);
    expect_refused(there(4 * MIB - 200000), b.mr->rkey, IBV_WR_RDMA_WRITE, 200001);
    over();
}
TEST(addresses_before_a_region_are_outside) {
    begin(IBV_ACCESS_LOCAL_WRITE | RIGHT_WRITE, RIGHT_WRITE);
    expect_refused(there(0) - 1, b.mr->rkey, IBV_WR_RDMA_READ, 1);
    over();
}
TEST(keys_of_another_domain_are_strange) {
    begin(IBV_ACCESS_LOCAL_WRITE | RIGHT_WRITE, RIGHT_WRITE);
    struct ibv_pd *other = ibv_alloc_pd(b.verbs);
    struct ibv_mr *mr = ibv_reg_mr(other, b.memory, 4096, IBV_ACCESS_LOCAL_WRITE | RIGHT_WRITE);
    CHECK_EQ(ibv_dealloc_pd(other), EBUSY);
    expect_refused(there(0), mr->rkey, IBV_WR_RDMA_READ, 10);
    CHECK_EQ(ibv_dereg_mr(mr), 0);
    CHECK_EQ(ibv_dealloc_pd(other), 0);
    over();
}
TEST(a_stale_key_is_refused) {
    begin(IBV_ACCESS_LOCAL_WRITE | RIGHT_WRITE, RIGHT_WRITE);
    uint32_t stale = b.mr->rkey;
    CHECK_EQ(ibv_dereg_mr(b.mr), 0);
    b.mr = ibv_reg_mr(b.pd, b.memory, b.size, IBV_ACCESS_LOCAL_WRITE | RIGHT_WRITE);
    CHECK(b.mr->rkey != stale);
    expect_refused(there(0), stale, IBV_WR_RDMA_WRITE, 10);
    over();
}
/* Of forty writes; false: all of them were faster than this thread. */
static bool region_goes_midway(void) {
    begin(IBV_ACCESS_LOCAL_WRITE | RIGHT_WRITE, RIGHT_WRITE);
    for (unsigned i = 0; i < 40; i++)
        CHECK_EQ(post(&a, IBV_WR_RDMA_WRITE, i, i == 39 ? IBV_SEND_SIGNALED : 0, 0, 2 * MIB,
                      there(0), b.mr->rkey),
                 0);
    usleep(1000);
    CHECK_EQ(ibv_dereg_mr(b.mr), 0);
    memset(b.memory, 9, b.size); /* from here on nobody else writes there */
    struct ibv_wc wc = completion(&a);
    bool midway = wc.status != IBV_WC_SUCCESS;
    if (midway) {
        CHECK_EQ(wc.status, IBV_WC_REM_ACCESS_ERR);
        for (uint64_t i = wc.wr_id + 1; i < 40; i++) expect_completion(&a, i, IBV_WC_WR_FLUSH_ERR);
    }
    for (size_t i = 0; i < b.size; i++) CHECK_EQ(b.memory[i], 9);
    b.mr = NULL;
    over();
    return midway;
}

TEST(a_region_that_goes_in_the_middle_of_a_write) {
    bool midway = false;
    for (unsigned i = 0; i < 50 && !midway; i++) midway = region_goes_midway();
    CHECK(midway);
}
TEST(local_keys_are_checked) {
    begin(IBV_ACCESS_LOCAL_WRITE | RIGHT_WRITE, RIGHT_WRITE);
    struct ibv_mr *mr = a.mr;
    a.mr = ibv_reg_mr(a.pd, a.memory, 4096, 0); /* to read from only */
    CHECK(a.mr != NULL);
    CHECK_EQ(post(&a, IBV_WR_RDMA_WRITE, 1, IBV_SEND_SIGNALED, 0, 4096, there(0), b.mr->rkey), 0);
    expect_completion(&a, 1, IBV_WC_SUCCESS);
    CHECK_EQ(post(&a, IBV_WR_RDMA_READ, 2, IBV_SEND_SIGNALED, 0, 4096, there(0), b.mr->rkey), 0);
    expect_completion(&a, 2, IBV_WC_LOC_PROT_ERR);
    CHECK_EQ(ibv_dereg_mr(a.mr), 0);
    a.mr = mr;
    over();
}
TEST(registration_has_rules) {
    begin_with("max_mr=2,relaxed=0,dmabuf=0");
    int n;
    struct ibv_context **list = rdma_get_devices(&n);
    CHECK_EQ(n, 1);
    end_verbs(&a, list[0], 8192, IBV_ACCESS_LOCAL_WRITE);
    errno = 0;
    /* needs LOCAL_WRITE */
    CHECK(ibv_reg_mr(a.pd, a.memory, 4096, IBV_ACCESS_REMOTE_WRITE) == NULL);
    CHECK_EQ(errno, EINVAL);
    CHECK(ibv_reg_mr(a.pd, a.memory, 1u << 30, IBV_ACCESS_LOCAL_WRITE) == NULL);
    CHECK_EQ(errno, EFAULT);
    CHECK(ibv_reg_mr(a.pd, a.memory, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING) ==
          NULL);
    CHECK_EQ(errno, EINVAL);
    CHECK(ibv_reg_dmabuf_mr(a.pd, 0, 1, 0, 0, 0) == NULL);
    CHECK_EQ(errno, EOPNOTSUPP);
    struct ibv_mr *second = ibv_reg_mr(a.pd, a.memory, 4096, 0);
    CHECK(second != NULL);
    CHECK(ibv_reg_mr(a.pd, a.memory, 4096, 0) == NULL);
    CHECK_EQ(errno, ENOMEM);
    ibv_dereg_mr(second);
    rdma_free_devices(list);
    over();
}

/* --- queues --- */

TEST(places_in_the_queue_come_back_with_completions) {
    begin_with("");
    a.depth = 4;
    pair_up(&a, &b, MIB, IBV_ACCESS_LOCAL_WRITE | RIGHT_WRITE, RIGHT_WRITE);
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 0; i < 4; i++)
            CHECK_EQ(post(&a, IBV_WR_RDMA_WRITE, i, i == 2 ? IBV_SEND_SIGNALED : 0, 0, 1, there(i),
                          b.mr->rkey),
                     0);
        CHECK_EQ(post(&a, IBV_WR_RDMA_WRITE, 9, 0, 0, 1, there(0), b.mr->rkey), ENOMEM);
        usleep(20000); /* done long ago, and still nobody has polled */
        CHECK_EQ(post(&a, IBV_WR_RDMA_WRITE, 9, 0, 0, 1, there(0), b.mr->rkey), ENOMEM);
        /* gives back three, and keeps the unsignalled one */
        expect_completion(&a, 2, IBV_WC_SUCCESS);
        for (unsigned i = 0; i < 3; i++)
            CHECK_EQ(post(&a, IBV_WR_RDMA_WRITE, 10 + i, i == 2 ? IBV_SEND_SIGNALED : 0, 0, 1,
                          there(0), b.mr->rkey),
                     0);
        CHECK_EQ(post(&a, IBV_WR_RDMA_WRITE, 9, 0, 0, 1, there(0), b.mr->rkey), ENOMEM);
        expect_completion(&a, 12, IBV_WC_SUCCESS);
    }
    over();
}

TEST(limits_of_queues) {
    begin_with("max_qp_wr=8,max_sge=1,max_inline=16,max_qp=1,max_cqe=600");
    struct ibv_context **list = rdma_get_devices(NULL);
    end_verbs(&a, list[0], 8192, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_qp_init_attr good = {
        .send_cq = a.cq,
        .recv_cq = a.cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 8, .max_send_sge = 1, .max_inline_data = 16}};
    struct ibv_qp_init_attr bad = good;
    bad.cap.max_send_wr = 9;
    CHECK(ibv_create_qp(a.pd, &bad) == NULL && errno == EINVAL);
    bad = good;
    bad.cap.max_send_sge = 2;
    CHECK(ibv_create_qp(a.pd, &bad) == NULL && errno == EINVAL);
    bad = good;
    bad.cap.max_inline_data = 17;
    CHECK(ibv_create_qp(a.pd, &bad) == NULL && errno == EINVAL);
    a.qp = ibv_create_qp(a.pd, &good);
    CHECK(a.qp != NULL);
    CHECK(ibv_create_qp(a.pd, &good) == NULL && errno == ENOMEM);
    CHECK(ibv_create_cq(list[0], 601, NULL, NULL, 0) == NULL && errno == EINVAL);
    CHECK_EQ(ibv_destroy_cq(a.cq), EBUSY);
    rdma_free_devices(list);
    over();
}

TEST(nothing_is_posted_before_it_is_ready) {
    begin_with("");
    end_listen(&b, "127.0.0.1");
    end_connect(&a, "127.0.0.1", "127.0.0.1", ntohs(rdma_get_src_port(b.listener)), MIB);
    CHECK_EQ(post(&a, IBV_WR_RDMA_WRITE, 1, 0, 0, 1, 0, 0), EINVAL); /* RESET */
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS};
    CHECK_EQ(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE), EINVAL);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 1};
    /* something is missing */
    CHECK_EQ(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE | IBV_QP_PORT), EINVAL);
    attr.port_num = 2;
    int all = IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS;
    CHECK_EQ(ibv_modify_qp(a.qp, &attr, all), EINVAL);
    int mask;
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR};
    CHECK(rdma_init_qp_attr(a.id, &attr, &mask) == -1 && errno == EINVAL); /* nobody has answered */
    end_accept(&b, MIB, IBV_ACCESS_LOCAL_WRITE | RIGHT_WRITE, RIGHT_WRITE);
    expect_event(a.channel, RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
    CHECK_EQ(end_ready(&a, 0, false), 0);
    CHECK_EQ(post(&a, IBV_WR_RDMA_WRITE, 1, 0, 0, 1, there(0), b.mr->rkey), EINVAL); /* RTR */
    over();
}

TEST(error_state_flushes) {
    begin(IBV_ACCESS_LOCAL_WRITE | RIGHT_WRITE, RIGHT_WRITE);
    fake_cut(a.qp->qp_num); /* so that nothing of it ends by itself */
    for (unsigned i = 0; i < 5; i++)
        CHECK_EQ(post(&a, IBV_WR_RDMA_WRITE, i, 0, 0, 100000, there(0), b.mr->rkey), 0);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    CHECK_EQ(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE), 0);
    for (unsigned i = 0; i < 5; i++) expect_completion(&a, i, IBV_WC_WR_FLUSH_ERR);
    memset(a.memory, 1, a.size); /* nobody reads it any more */
    CHECK_EQ(post(&a, IBV_WR_RDMA_WRITE, 6, 0, 0, 1, there(0), b.mr->rkey), 0);
    expect_completion(&a, 6, IBV_WC_WR_FLUSH_ERR);
    over();
}

TEST(reads_need_depth) {
    begin_with("");
    end_listen(&b, "127.0.0.1");
    end_route(&a, "127.0.0.1", "127.0.0.1", ntohs(rdma_get_src_port(b.listener)));
    end_verbs(&a, a.id->verbs, MIB, IBV_ACCESS_LOCAL_WRITE);
    end_qp(&a);
    struct rdma_conn_param p = param_of(&a, NULL, 0);
    p.initiator_depth = 17;
    CHECK(rdma_connect(a.id, &p) == -1 && errno == EINVAL);
    p.initiator_depth = 0;
    CHECK_EQ(rdma_connect(a.id, &p), 0);
    struct rdma_cm_event *e = next_event(b.channel);
    CHECK(e != NULL);
    CHECK_EQ(e->param.conn.responder_resources, 0);
    CHECK_EQ(e->param.conn.initiator_depth, 4);
    b.id = e->id;
    rdma_ack_cm_event(e);
    end_verbs(&b, b.id->verbs, MIB, IBV_ACCESS_LOCAL_WRITE | RIGHT_WRITE);
    end_qp(&b);
    CHECK_EQ(end_ready(&b, RIGHT_WRITE, true), 0);
    p = param_of(&b, NULL, 0);
    p.responder_resources = 0;
    CHECK_EQ(rdma_accept(b.id, &p), 0);
    end_establish(&a);
    CHECK_EQ(post(&a, IBV_WR_RDMA_READ, 1, 0, 0, 1, there(0), b.mr->rkey), 0);
    expect_completion(&a, 1, IBV_WC_LOC_QP_OP_ERR);
    over();
}

TEST(more_reads_than_depth_wait) {
    begin(IBV_ACCESS_LOCAL_WRITE | RIGHT_WRITE, RIGHT_WRITE);
    fill(b.memory, 3 * MIB, 1);
    for (unsigned i = 0; i < 12; i++) /* four at a time: the other side would refuse a fifth */
        CHECK_EQ(post(&a, IBV_WR_RDMA_READ, i, i == 11 ? IBV_SEND_SIGNALED : 0, i * 262144, 262144,
                      there(i * 262144), b.mr->rkey),
                 0);
    expect_completion(&a, 11, IBV_WC_SUCCESS);
    CHECK(memcmp(a.memory, b.memory, 3 * MIB) == 0);
    over();
}

TEST(completions_go_with_their_queue_pair) {
    begin(IBV_ACCESS_LOCAL_WRITE | RIGHT_WRITE, RIGHT_WRITE);
    struct ibv_wc wc;
    for (unsigned i = 0; i < 4; i++)
        CHECK_EQ(post(&a, IBV_WR_RDMA_WRITE, i, IBV_SEND_SIGNALED, 0, 1, there(0), b.mr->rkey), 0);
    expect_completion(&a, 0, IBV_WC_SUCCESS);
    usleep(20000);
    CHECK_EQ(ibv_destroy_qp(a.qp), 0);
    a.qp = NULL;
    CHECK_EQ(ibv_poll_cq(a.cq, 1, &wc), 0);
    over();
}

TEST(completions_wake_once) {
    begin(IBV_ACCESS_LOCAL_WRITE | RIGHT_WRITE, RIGHT_WRITE);
    struct ibv_cq *cq;
    void *context;
    struct pollfd p = {.fd = a.comp->fd, .events = POLLIN};
    CHECK_EQ(post(&a, IBV_WR_RDMA_WRITE, 1, IBV_SEND_SIGNALED, 0, 1, there(0), b.mr->rkey), 0);
    CHECK(SOON(fake_completions(a.cq) == 1));
    CHECK_EQ(poll(&p, 1, 0), 0); /* nobody has asked */
    CHECK_EQ(ibv_req_notify_cq(a.cq, 0), 0);
    CHECK_EQ(poll(&p, 1, 20), 0); /* of what was there before nobody is told */
    CHECK_EQ(post(&a, IBV_WR_RDMA_WRITE, 2, IBV_SEND_SIGNALED, 0, 1, there(0), b.mr->rkey), 0);
    CHECK_EQ(post(&a, IBV_WR_RDMA_WRITE, 3, IBV_SEND_SIGNALED, 0, 1, there(0), b.mr->rkey), 0);
    CHECK_EQ(poll(&p, 1, 60000), 1);
    CHECK_EQ(ibv_get_cq_event(a.comp, &cq, &context), 0);
    CHECK(cq == a.cq && context == &a);
    usleep(20000);
    CHECK(ibv_get_cq_event(a.comp, &cq, &context) == -1 && errno == EAGAIN);
    ibv_ack_cq_events(a.cq, 1);
    for (unsigned i = 1; i <= 3; i++) expect_completion(&a, i, IBV_WC_SUCCESS);
    CHECK_EQ(ibv_req_notify_cq(a.cq, 1), 0); /* solicited only: failures are */
    CHECK_EQ(post(&a, IBV_WR_RDMA_WRITE, 4, IBV_SEND_SIGNALED, 0, 1, there(0), b.mr->rkey), 0);
    expect_completion(&a, 4, IBV_WC_SUCCESS);
    CHECK_EQ(poll(&p, 1, 0), 0);
    CHECK_EQ(post(&a, IBV_WR_RDMA_WRITE, 5, 0, 0, 1, there(0), 1), 0);
    CHECK_EQ(poll(&p, 1, 60000), 1); /* left in the channel: destroying the queue takes it along */
    over();
}

static void overrun(void) {
    begin_with("");
    pair_up(&a, &b, MIB, IBV_ACCESS_LOCAL_WRITE | RIGHT_WRITE, RIGHT_WRITE);
    struct ibv_wc wc;
    for (unsigned i = 0; i < 600; i++) {
        while (post(&a, IBV_WR_RDMA_WRITE, i, i % 8 == 0 ? IBV_SEND_SIGNALED : 0, 0, 1, there(0),
                    b.mr->rkey) != 0)
            ibv_poll_cq(a.cq, 1, &wc);
    }
    struct ibv_cq *small = ibv_create_cq(a.verbs, 1, NULL, NULL, 0);
    struct ibv_qp_init_attr init = {.send_cq = small,
                                    .recv_cq = small,
                                    .qp_type = IBV_QPT_RC,
                                    .cap = {.max_send_wr = 8, .max_send_sge = 1}};
    struct ibv_qp *qp = ibv_create_qp(a.pd, &init);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    ibv_modify_qp(qp, &attr, IBV_QP_STATE);
    struct ibv_send_wr *bad, wr = {.opcode = IBV_WR_RDMA_WRITE};
    ibv_post_send(qp, &wr, &bad);
    ibv_post_send(qp, &wr, &bad);
}
static void unacknowledged(void) {
    begin_with("");
    end_listen(&b, "127.0.0.1");
    end_connect(&a, "127.0.0.1", "127.0.0.1", ntohs(rdma_get_src_port(b.listener)), MIB);
    next_event(b.channel);
    rdma_destroy_id(b.listener);
}
static void too_early(void) {
    begin_with("");
    end_listen(&b, "127.0.0.1");
    rdma_destroy_event_channel(b.channel);
}
static void twice(void) {
    begin_with("");
    pair_up(&a, &b, MIB, IBV_ACCESS_LOCAL_WRITE | RIGHT_WRITE, RIGHT_WRITE);
    struct ibv_mr copy = *a.mr;
    ibv_dereg_mr(a.mr);
    ibv_dereg_mr(&copy);
}
TEST(what_would_hang_or_corrupt_ends_with_a_message) {
    CHECK(aborts(overrun));
    CHECK(aborts(unacknowledged));
    CHECK(aborts(too_early));
    CHECK(aborts(twice));
}

TEST(held_and_late_completions) {
    begin(IBV_ACCESS_LOCAL_WRITE | RIGHT_WRITE, RIGHT_WRITE);
    fake_hold(true);
    a.memory[0] = 42;
    for (unsigned i = 0; i < 3; i++)
        CHECK_EQ(post(&a, IBV_WR_RDMA_WRITE, i, IBV_SEND_SIGNALED, 0, 1, there(0), b.mr->rkey), 0);
    CHECK(SOON(peek(b.memory) == 42)); /* it has happened */
    expect_nothing(&a, 20);
    fake_hold(false);
    for (unsigned i = 0; i < 3; i++) expect_completion(&a, i, IBV_WC_SUCCESS);
    fake_delay_us(30000);
    uint64_t from = clock_mono_ms();
    for (unsigned i = 0; i < 3; i++)
        CHECK_EQ(post(&a, IBV_WR_RDMA_READ, i, IBV_SEND_SIGNALED, 0, 1, there(0), b.mr->rkey), 0);
    for (unsigned i = 0; i < 3; i++) expect_completion(&a, i, IBV_WC_SUCCESS);
    CHECK(clock_mono_ms() - from >= 29 && clock_mono_ms() - from < 30000);
    over();
}

TEST(fast_enough) {
    begin(IBV_ACCESS_LOCAL_WRITE | RIGHT_WRITE, RIGHT_WRITE);
    uint64_t from = clock_mono_us();
    unsigned posted = 0, done = 0;
    while (done < 2048) { /* 128 MiB, half of it there and half back */
        struct ibv_wc wc[16];
        while (posted < 2048 && posted - done < 64 &&
               post(&a, posted % 2 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, posted,
                    IBV_SEND_SIGNALED, posted % 32 * 65536, 65536, there(posted % 32 * 65536),
                    b.mr->rkey) == 0)
            posted++;
        int n = ibv_poll_cq(a.cq, 16, wc);
        for (int i = 0; i < n; i++) CHECK_EQ(wc[i].status, IBV_WC_SUCCESS);
        done += (unsigned)n;
        if (n == 0) sched_yield();
    }
    uint64_t us = clock_mono_us() - from;
    printf("# 128 MiB in %u ms\n", (unsigned)(us / 1000));
    from = clock_mono_us();
    for (posted = done = 0; done < 20000;) {
        struct ibv_wc wc[16];
        while (posted < 20000 && posted - done < 64 &&
               post(&a, IBV_WR_RDMA_WRITE, posted, IBV_SEND_SIGNALED, 0, 64, there(0),
                    b.mr->rkey) == 0)
            posted++;
        done += (unsigned)ibv_poll_cq(a.cq, 16, wc);
    }
    printf("# 20000 small ones in %u ms\n", (unsigned)((clock_mono_us() - from) / 1000));
    CHECK(us < 20000000);
    over();
}

TEST_MAIN()
