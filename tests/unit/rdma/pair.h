/* Two ends of a connection over the fake verbs, in one process or in two: what tests of the fake
 * itself start from. */
#ifndef TARN_TESTS_RDMA_PAIR_H
#define TARN_TESTS_RDMA_PAIR_H

#include "../test.h"

#pragma GCC diagnostic ignored "-Wunused-function" /* each program uses some of it */

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../fake_verbs/fake_verbs.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/rng.h"
#include <rdma/rdma_cma.h>

#define RIGHT_READ  IBV_ACCESS_REMOTE_READ
#define RIGHT_WRITE (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE)

struct end { /* one side of a connection, and memory of its own */
    struct rdma_event_channel *channel;
    struct rdma_cm_id *listener, *id;
    struct ibv_context *verbs;
    struct ibv_pd *pd;
    struct ibv_comp_channel *comp;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    uint8_t *memory;
    size_t size;
    unsigned depth, sge;
};

static int open_fds(void) {
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (readdir(d) != NULL) n++;
    closedir(d);
    return n;
}

static struct sockaddr_storage address(const char *text, uint16_t port) {
    struct sockaddr_storage a = {0};
    struct sockaddr_in *v4 = (void *)&a;
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    if (inet_pton(AF_INET, text, &v4->sin_addr) != 1) abort();
    return a;
}

/* The next event, 5 s at most. The caller acknowledges it. */
static struct rdma_cm_event *next_event(struct rdma_event_channel *channel) {
    struct pollfd p = {.fd = channel->fd, .events = POLLIN};
    struct rdma_cm_event *e = NULL;
    if (poll(&p, 1, 5000) == 1) rdma_get_cm_event(channel, &e);
    return e;
}

static void expect_event(struct rdma_event_channel *channel, enum rdma_cm_event_type type,
                         int status) {
    struct rdma_cm_event *e = next_event(channel);
    CHECK(e != NULL);
    enum rdma_cm_event_type got = e->event;
    int got_status = e->status;
    rdma_ack_cm_event(e);
    CHECK_STR(rdma_event_str(got), rdma_event_str(type));
    CHECK_EQ(got_status, status);
}

static void end_verbs(struct end *e, struct ibv_context *verbs, size_t size, unsigned mr_access) {
    e->verbs = verbs;
    e->pd = ibv_alloc_pd(verbs);
    CHECK(e->pd != NULL);
    e->comp = ibv_create_comp_channel(verbs);
    CHECK(e->comp != NULL);
    fcntl(e->comp->fd, F_SETFL, O_NONBLOCK);
    e->cq = ibv_create_cq(verbs, 512, e, e->comp, 0);
    CHECK(e->cq != NULL);
    e->size = size;
    e->memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(e->memory != MAP_FAILED);
    e->mr = ibv_reg_mr(e->pd, e->memory, size, mr_access);
    CHECK(e->mr != NULL);
}

static void end_qp(struct end *e) {
    struct ibv_qp_init_attr init = {
        .send_cq = e->cq,
        .recv_cq = e->cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = e->depth != 0 ? e->depth : 64,
                .max_send_sge = e->sge != 0 ? e->sge : 4,
                .max_inline_data = 64},
    };
    e->qp = ibv_create_qp(e->pd, &init);
    CHECK(e->qp != NULL);
}

/* Through INIT to RTR and, where asked for, RTS. Returns the first error. */
static int end_ready(struct end *e, unsigned access, bool rts) {
    static const enum ibv_qp_state states[] = {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS};
    for (int i = 0; i < (rts ? 3 : 2); i++) {
        struct ibv_qp_attr a = {.qp_state = states[i]};
        int mask = 0;
        if (rdma_init_qp_attr(e->id, &a, &mask) != 0) return errno;
        if (i == 0) a.qp_access_flags = access;
        if (i == 2) a.timeout = 8, a.retry_cnt = 1; /* 2 ms */
        int error = ibv_modify_qp(e->qp, &a, mask);
        if (error != 0) return error;
    }
    return 0;
}

static void end_listen(struct end *e, const char *at) {
    struct sockaddr_storage a = address(at, 0);
    e->channel = rdma_create_event_channel();
    CHECK(e->channel != NULL);
    CHECK_EQ(rdma_create_id(e->channel, &e->listener, e, RDMA_PS_TCP), 0);
    CHECK_EQ(rdma_bind_addr(e->listener, (struct sockaddr *)&a), 0);
    CHECK_EQ(rdma_listen(e->listener, 16), 0);
}

/* Up to where it can send its request. */
static void end_route(struct end *e, const char *from, const char *to, uint16_t port) {
    struct sockaddr_storage src = address(from, 0), dst = address(to, port);
    if (e->channel == NULL) e->channel = rdma_create_event_channel();
    CHECK(e->channel != NULL);
    CHECK_EQ(rdma_create_id(e->channel, &e->id, e, RDMA_PS_TCP), 0);
    CHECK_EQ(rdma_resolve_addr(e->id, (struct sockaddr *)&src, (struct sockaddr *)&dst, 1000), 0);
    expect_event(e->channel, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
    CHECK_EQ(rdma_resolve_route(e->id, 1000), 0);
    expect_event(e->channel, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
}

static struct rdma_conn_param param_of(const struct end *e, const void *data, uint8_t len) {
    return (struct rdma_conn_param){
        .private_data = data,
        .private_data_len = len,
        .responder_resources = 4,
        .initiator_depth = 4,
        .retry_count = 1,
        .rnr_retry_count = 7,
        .qp_num = e->qp->qp_num,
    };
}

/* The passive side of one connection: takes the request that is next. */
static void end_accept(struct end *e, size_t size, unsigned mr_access, unsigned qp_access) {
    struct rdma_cm_event *event = next_event(e->channel);
    CHECK(event != NULL);
    CHECK_EQ(event->event, RDMA_CM_EVENT_CONNECT_REQUEST);
    e->id = event->id;
    rdma_ack_cm_event(event);
    end_verbs(e, e->id->verbs, size, mr_access);
    end_qp(e);
    CHECK_EQ(end_ready(e, qp_access, true), 0);
    struct rdma_conn_param p = param_of(e, NULL, 0);
    CHECK_EQ(rdma_accept(e->id, &p), 0);
}

static void end_connect(struct end *e, const char *from, const char *to, uint16_t port,
                        size_t size) {
    end_route(e, from, to, port);
    end_verbs(e, e->id->verbs, size, IBV_ACCESS_LOCAL_WRITE);
    end_qp(e);
    struct rdma_conn_param p = param_of(e, NULL, 0);
    CHECK_EQ(rdma_connect(e->id, &p), 0);
}

static void end_establish(struct end *e) {
    expect_event(e->channel, RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
    CHECK_EQ(end_ready(e, 0, true), 0);
    CHECK_EQ(rdma_establish(e->id), 0);
}

/* a asks, b serves: everything that is alive is theirs. */
static void pair_up(struct end *a, struct end *b, size_t size, unsigned mr_access,
                    unsigned qp_access) {
    end_listen(b, "127.0.0.1");
    end_connect(a, "127.0.0.1", "127.0.0.1", ntohs(rdma_get_src_port(b->listener)), size);
    end_accept(b, size, mr_access, qp_access);
    end_establish(a);
    expect_event(b->channel, RDMA_CM_EVENT_ESTABLISHED, 0);
}

static void end_down(struct end *e) {
    struct ibv_async_event event;
    struct pollfd p = {.events = POLLIN};
    if (e->verbs != NULL) {
        p.fd = e->verbs->async_fd;
        while (poll(&p, 1, 0) == 1 && ibv_get_async_event(e->verbs, &event) == 0)
            ibv_ack_async_event(&event);
    }
    if (e->id != NULL) CHECK_EQ(rdma_destroy_id(e->id), 0);
    if (e->qp != NULL) CHECK_EQ(ibv_destroy_qp(e->qp), 0);
    if (e->listener != NULL) CHECK_EQ(rdma_destroy_id(e->listener), 0);
    if (e->channel != NULL) rdma_destroy_event_channel(e->channel);
    if (e->mr != NULL) CHECK_EQ(ibv_dereg_mr(e->mr), 0);
    if (e->cq != NULL) CHECK_EQ(ibv_destroy_cq(e->cq), 0);
    if (e->comp != NULL) CHECK_EQ(ibv_destroy_comp_channel(e->comp), 0);
    if (e->pd != NULL) CHECK_EQ(ibv_dealloc_pd(e->pd), 0);
    if (e->memory != NULL) munmap(e->memory, e->size);
    *e = (struct end){0};
}

/* --- requests --- */

static int post(struct end *e, enum ibv_wr_opcode opcode, uint64_t id, unsigned flags, size_t at,
                uint32_t len, uint64_t remote, uint32_t rkey) {
    struct ibv_sge sge = {(uintptr_t)e->memory + at, len, e->mr->lkey};
    struct ibv_send_wr *bad, wr = {.wr_id = id,
                                   .sg_list = &sge,
                                   .num_sge = len > 0,
                                   .opcode = opcode,
                                   .send_flags = flags,
                                   .wr.rdma = {remote, rkey}};
    return ibv_post_send(e->qp, &wr, &bad);
}

/* The next completion, a minute at most; wr_id UINT64_MAX: none came. */
static struct ibv_wc completion(struct end *e) {
    struct ibv_wc wc = {.wr_id = UINT64_MAX};
    uint64_t until = clock_mono_ms() + TEST_PATIENCE_MS;
    while (ibv_poll_cq(e->cq, 1, &wc) == 0 && clock_mono_ms() < until) usleep(50);
    return wc;
}

static void expect_completion(struct end *e, uint64_t id, enum ibv_wc_status status) {
    struct ibv_wc wc = completion(e);
    CHECK_STR(ibv_wc_status_str(wc.status), ibv_wc_status_str(status));
    CHECK_EQ(wc.wr_id, id);
    CHECK_EQ(wc.qp_num, e->qp->qp_num);
}

/* Until expr, or a minute is over. */
#define SOON(expr)                                                                                 \
    ({                                                                                             \
        uint64_t soon_ms = clock_mono_ms() + TEST_PATIENCE_MS;                                     \
        bool soon_true;                                                                            \
        while (!(soon_true = (expr)) && clock_mono_ms() < soon_ms) usleep(100);                    \
        soon_true;                                                                                 \
    })

/* A look at memory that a device may be writing. */
__attribute__((no_sanitize("thread"), noinline, unused)) static uint8_t
peek(const volatile uint8_t *p) {
    return *p;
}

static void expect_nothing(struct end *e, unsigned ms) {
    struct ibv_wc wc;
    for (unsigned i = 0; i < ms; i++) {
        CHECK_EQ(ibv_poll_cq(e->cq, 1, &wc), 0);
        usleep(1000);
    }
}

static void fill(uint8_t *p, size_t n, uint64_t seed) {
    struct rng r;
    rng_seed(&r, seed);
    for (size_t i = 0; i < n; i++) p[i] = (uint8_t)rng_next(&r);
}

/* --- a test: a asks, b serves --- */

#define MIB (1u << 20)

static struct end a, b;
static int fds;

static void begin_with(const char *options) {
    a = b = (struct end){0};
    fake_configure(options);
    fds = open_fds();
}
static void begin(unsigned mr_access, unsigned qp_access) {
    begin_with("");
    pair_up(&a, &b, 4 * MIB, mr_access, qp_access);
}
static void over(void) {
    end_down(&a);
    end_down(&b);
    CHECK_EQ(fake_count_all(), 0);
    fake_configure("");
    CHECK_EQ(open_fds(), fds);
}
static uint64_t there(size_t at) {
    return (uintptr_t)b.memory + at;
}

#endif
