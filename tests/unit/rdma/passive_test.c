/* The passive side against clients that are made of bare verbs here, so that they can do what ours
 * never would. */
#include <arpa/inet.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../fake_verbs/fake_verbs.h"
#include "../test.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/segment_header.h"
#include "rdma/passive.h"

#define EPOCH  3u
#define MASTER 11u
#define SIZE   (8u << 20)

/* --- a host --- */

struct segment {
    uint32_t id;
    char *memory; /* header in front */
    struct transport_memory *it;
};

static struct {
    struct transport_domain *d;
    struct transport_listener *l;
    struct segment segment[2];
    enum grant_verdict verdict;
    uint64_t session;
    uint32_t master_epoch;
} h;

static char *data_of(const struct segment *s) {
    return s->memory + SEGMENT_HEADER_SIZE;
}

/* A grant here is its operation and session. */
static enum grant_verdict gate_check(void *arg, const uint8_t grant[GRANT_SIZE],
                                     const struct grant_extent *x, enum grant_op want,
                                     uint64_t sub_offset, uint64_t sub_length, struct grant *g_p,
                                     void **addr_p) {
    (void)arg, (void)sub_offset, (void)sub_length;
    if (grant[0] != want) return GRANT_BAD_OP;
    if (x->segment_epoch != EPOCH) return GRANT_BAD_EPOCH;
    if (x->offset != 0 || x->length != SIZE) return GRANT_BAD_RANGE;
    if (h.verdict != GRANT_OK) return h.verdict;
    *g_p = (struct grant){want, h.master_epoch, grant[1], UINT64_MAX, 0};
    for (size_t i = 0; i < ARRAY_LEN(h.segment); i++) {
        if (h.segment[i].id == x->segment) *addr_p = data_of(&h.segment[i]);
    }
    return GRANT_OK;
}

static enum grant_verdict gate_recheck(void *arg, const struct grant *g,
                                       const struct grant_extent *x) {
    (void)arg, (void)g, (void)x;
    return GRANT_OK;
}

static void turn(void) {
    rdma_transport.progress(h.d, 1u << 20);
}

#define WAIT(expr)                                                                                 \
    ({                                                                                             \
        uint64_t until_ms = clock_boot_ms() + 60000;                                               \
        bool wait_true;                                                                            \
        while (!(wait_true = (expr)) && clock_boot_ms() < until_ms) {                              \
            turn();                                                                                \
            usleep(200);                                                                           \
        }                                                                                          \
        wait_true;                                                                                 \
    })

static void segment_open(struct segment *s, uint32_t id) {
    s->id = id;
    s->memory = mmap(NULL, SEGMENT_HEADER_SIZE + SIZE, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(s->memory != MAP_FAILED);
    *(struct segment_header *)(void *)s->memory =
        (struct segment_header){.master_epoch = MASTER, .segment_epoch = EPOCH, .instance = 9};
    struct transport_memory_config config = {.addr = data_of(s),
                                             .length = SIZE,
                                             .fd = -1,
                                             .fd_read = -1,
                                             .header_size = SEGMENT_HEADER_SIZE,
                                             .segment = id,
                                             .remote = true};
    CHECK_EQ(rdma_transport.memory_register(h.d, &config, &s->it), TARN_OK);
}

static const char *down_at_first; /* a device whose port is */

static void begin(const char *fake, const char *const *options) {
    char error[200];
    size_t n = 0;
    log_set_level(getenv("VERBOSE") != NULL ? LOG_LEVEL_VERBOSE : LOG_LEVEL_NOTHING);
    while (options != NULL && options[n] != NULL) n++;
    memset(&h, 0, sizeof(h));
    h.master_epoch = MASTER;
    fake_configure(fake);
    if (down_at_first != NULL) fake_port(down_at_first, false);
    down_at_first = NULL;
    CHECK_EQ(rdma_options_parse(n, options, error, sizeof(error)), TARN_OK);
    rdma_devices_open();
    struct transport_domain_config config = {0};
    CHECK_EQ(rdma_transport.domain_open(&config, &h.d), TARN_OK);
    struct transport_listen_config listen = {
        .gate = {.check = gate_check, .recheck = gate_recheck}};
    CHECK_EQ(rdma_transport.listen(h.d, &listen, &h.l), TARN_OK);
    for (uint32_t i = 0; i < ARRAY_LEN(h.segment); i++) segment_open(&h.segment[i], 7 + i);
}

static uint64_t version(unsigned i) {
    return rdma_transport.memory_version(h.segment[i].it);
}

static void begin_ready(const char *fake, const char *const *options) {
    begin(fake, options);
    CHECK(WAIT(version(0) != 0 && version(1) != 0));
}

/* Nothing is left, of this module or of the library below it. */
static void end(void) {
    rdma_transport.listener_close(&h.l);
    for (size_t i = 0; i < ARRAY_LEN(h.segment); i++) {
        rdma_transport.memory_deregister(&h.segment[i].it);
        munmap(h.segment[i].memory, SEGMENT_HEADER_SIZE + SIZE);
    }
    CHECK_EQ(rdma_devices_close(), TARN_EBUSY);
    rdma_transport.domain_close(&h.d);
    CHECK_EQ(rdma_devices_close(), TARN_OK);
    CHECK_EQ(rdma_total(&rdma_totals.regions), 0);
    CHECK_EQ(rdma_totals.bytes, 0);
    CHECK_EQ(rdma_totals.connections, 0);
    CHECK_EQ(fake_count_all(), 0);
    rdma_options_free();
}

static struct transport_listener_stats stats(void) {
    struct transport_listener_stats s;
    rdma_transport.listener_stats(h.l, &s);
    return s;
}

/* --- keys --- */

struct keys {
    struct rdma_key_header header;
    struct rdma_key_device device;
    uint32_t rkey;
};

static struct keys keys_of(unsigned segment, bool writable) {
    struct buf b = {0};
    struct keys k;
    CHECK_EQ(rdma_transport.key_pack(h.segment[segment].it, writable, &b), TARN_OK);
    CHECK(b.len >= sizeof(k.header) + sizeof(k.device) + 4 && b.len <= TRANSPORT_PACKED_MAX);
    memcpy(&k.header, b.data, sizeof(k.header));
    memcpy(&k.device, b.data + sizeof(k.header), sizeof(k.device));
    memcpy(&k.rkey, b.data + sizeof(k.header) + sizeof(k.device), sizeof(k.rkey));
    buf_free(&b);
    return k;
}

/* --- a client --- */

struct client {
    struct rdma_event_channel *channel;
    struct rdma_cm_id *id;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    char *buffer;
    struct ibv_mr *mr;
    unsigned refusal; /* of a rejection; UINT32_MAX: none of ours */
    struct rdma_accept accept;
};

/* The next event of its channel; the host goes on meanwhile. */
static enum rdma_cm_event_type next_event(struct client *c, struct rdma_cm_event *copy, void *data,
                                          size_t *len) {
    uint64_t until_ms = clock_boot_ms() + 60000;
    while (clock_boot_ms() < until_ms) {
        struct pollfd p = {.fd = c->channel->fd, .events = POLLIN};
        turn();
        if (poll(&p, 1, 1) != 1) continue;
        struct rdma_cm_event *e;
        CHECK_EQ(rdma_get_cm_event(c->channel, &e), 0);
        enum rdma_cm_event_type type = e->event;
        if (copy != NULL) *copy = *e;
        if (data != NULL) {
            *len = min_u64(*len, e->param.conn.private_data_len);
            if (*len > 0) memcpy(data, e->param.conn.private_data, *len);
        }
        rdma_ack_cm_event(e);
        return type;
    }
    return RDMA_CM_EVENT_TIMEWAIT_EXIT;
}

static void move_to(struct client *c, enum ibv_qp_state state) {
    struct ibv_qp_attr attr = {.qp_state = state};
    int mask = 0;
    CHECK_EQ(rdma_init_qp_attr(c->id, &attr, &mask), 0);
    CHECK_EQ(ibv_modify_qp(c->qp, &attr, mask), 0);
}

static struct rdma_request request_for(unsigned segment, bool writable, uint8_t session) {
    struct rdma_request rq = {.magic = RDMA_WIRE_MAGIC,
                              .version = RDMA_WIRE_VERSION,
                              .right = writable ? RDMA_WRITE : RDMA_READ,
                              .segment = h.segment[segment].id,
                              .segment_epoch = EPOCH};
    rq.grant[0] = writable ? GRANT_ATTACH_WRITE : GRANT_ATTACH_READ;
    rq.grant[1] = session;
    return rq;
}

static void client_open(struct client *c, uint16_t port) {
    *c = (struct client){.refusal = UINT32_MAX};
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    c->channel = rdma_create_event_channel();
    CHECK(c->channel != NULL);
    CHECK_EQ(rdma_create_id(c->channel, &c->id, NULL, RDMA_PS_TCP), 0);
    CHECK_EQ(rdma_resolve_addr(c->id, NULL, (struct sockaddr *)&to, 1000), 0);
    CHECK_EQ(next_event(c, NULL, NULL, NULL), RDMA_CM_EVENT_ADDR_RESOLVED);
    CHECK_EQ(rdma_resolve_route(c->id, 1000), 0);
    CHECK_EQ(next_event(c, NULL, NULL, NULL), RDMA_CM_EVENT_ROUTE_RESOLVED);
    c->pd = ibv_alloc_pd(c->id->verbs);
    c->cq = ibv_create_cq(c->id->verbs, 16, NULL, NULL, 0);
    struct ibv_qp_init_attr init = {
        .send_cq = c->cq,
        .recv_cq = c->cq,
        .cap = {.max_send_wr = 8, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
    };
    c->qp = ibv_create_qp(c->pd, &init);
    CHECK(c->pd != NULL && c->cq != NULL && c->qp != NULL);
    c->buffer = calloc(1, 4096);
    c->mr = ibv_reg_mr(c->pd, c->buffer, 4096, IBV_ACCESS_LOCAL_WRITE);
    CHECK(c->mr != NULL);
    move_to(c, IBV_QPS_INIT);
}

static void client_close(struct client *c) {
    ibv_destroy_qp(c->qp);
    rdma_destroy_id(c->id);
    ibv_dereg_mr(c->mr);
    ibv_dealloc_pd(c->pd);
    ibv_destroy_cq(c->cq);
    rdma_destroy_event_channel(c->channel);
    free(c->buffer);
}

/* true: the host has accepted, and waits for establish(). */
static bool client_ask(struct client *c, const void *request, size_t len) {
    struct rdma_conn_param param = {.private_data = request,
                                    .private_data_len = (uint8_t)len,
                                    .initiator_depth = 4,
                                    .retry_count = 1, /* what is not answered fails in 2 s */
                                    .qp_num = c->qp->qp_num};
    char answer[256] = {0};
    size_t n = sizeof(answer);
    CHECK_EQ(rdma_connect(c->id, &param), 0);
    enum rdma_cm_event_type type = next_event(c, NULL, answer, &n);
    if (type == RDMA_CM_EVENT_REJECTED && n >= sizeof(struct rdma_reject)) {
        struct rdma_reject r;
        memcpy(&r, answer, sizeof(r));
        CHECK_EQ(r.magic, RDMA_WIRE_MAGIC);
        c->refusal = r.refusal;
    }
    if (type != RDMA_CM_EVENT_CONNECT_RESPONSE) return false;
    CHECK(n >= sizeof(c->accept));
    memcpy(&c->accept, answer, sizeof(c->accept));
    return true;
}

static void client_establish(struct client *c) {
    move_to(c, IBV_QPS_RTR);
    move_to(c, IBV_QPS_RTS);
    CHECK_EQ(rdma_establish(c->id), 0);
}

/* GRANT_OK: connected. Else the refusal. */
static unsigned client_connect(struct client *c, const struct rdma_request *rq) {
    client_open(c, rdma_transport.listener_port(h.l));
    if (!client_ask(c, rq, sizeof(*rq))) return c->refusal;
    client_establish(c);
    return GRANT_OK;
}

static unsigned refusal_of(const void *request, size_t len) {
    struct client c;
    client_open(&c, rdma_transport.listener_port(h.l));
    bool accepted = client_ask(&c, request, len);
    unsigned refusal = c.refusal;
    client_close(&c);
    return accepted ? GRANT_OK : refusal;
}

static enum ibv_wc_status transfer(struct client *c, bool write, uint64_t address, uint32_t rkey) {
    struct ibv_sge sge = {(uintptr_t)c->buffer, 64, c->mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge,
                             .num_sge = 1,
                             .opcode = write ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr.rdma = {address, rkey}},
                       *bad;
    struct ibv_wc wc;
    CHECK_EQ(ibv_post_send(c->qp, &wr, &bad), 0);
    CHECK(WAIT(ibv_poll_cq(c->cq, 1, &wc) == 1));
    return wc.status;
}

/* --- options --- */

static void option_error(const char *name, const char *value, const char *expected) {
    const char *argv[] = {name, value};
    char error[200] = "";
    CHECK_EQ(rdma_options_parse(value != NULL ? 2 : 1, argv, error, sizeof(error)), TARN_EINVAL);
    CHECK_STR(error, expected);
    CHECK_EQ(rdma_options.qps, 2); /* nothing of it stays */
}

TEST(options_say_what_is_wrong_with_them) {
    option_error("qps", NULL, "option 'qps' has no value");
    option_error("qps", "0", "qps is a number from 1 to 16, not '0'");
    option_error("qps", "many", "qps is a number from 1 to 16, not 'many'");
    option_error("colour", "red", "unknown option 'colour'");
    option_error("bind", "n1.example", "bind takes an IPv4 or IPv6 address, not 'n1.example'");
    option_error("device", "a/b", "device takes the name of an RDMA device, not 'a/b'");
    option_error("relaxed-ordering", "maybe", "relaxed-ordering is 'yes' or 'no', not 'maybe'");
    option_error("slice", "2mb", "slice is larger than slice-max");
    option_error("signal-every", "100", "signal-every is more than half of send-queue");
    const char *argv[] = {"bind",  "127.0.0.1", "bind",  "::1",  "device",
                          "fake0", "slice",     "128kb", "port", "7000"};
    char error[200];
    CHECK_EQ(rdma_options_parse(ARRAY_LEN(argv), argv, error, sizeof(error)), TARN_OK);
    CHECK_EQ(rdma_options.binds, 2);
    CHECK_EQ(rdma_options.slice, 128 << 10);
    CHECK_EQ(rdma_options.port, 7000);
    rdma_options_free();
    CHECK_EQ(rdma_options.binds, 0);
}

/* --- regions --- */

TEST(a_segment_is_registered_beside_what_else_goes_on) {
    begin(NULL, NULL);
    CHECK_EQ(version(0), 0);
    struct buf b = {0};
    CHECK_EQ(rdma_transport.key_pack(h.segment[0].it, false, &b), TARN_EAGAIN);
    CHECK_EQ(b.len, 0);
    CHECK(WAIT(version(0) != 0 && version(1) != 0));
    struct keys r = keys_of(0, false), w = keys_of(0, true);
    CHECK_EQ(r.header.address, (uint64_t)(uintptr_t)data_of(&h.segment[0]));
    CHECK_EQ(r.header.header_address, (uint64_t)(uintptr_t)h.segment[0].memory);
    CHECK_EQ(r.header.segment_epoch, EPOCH);
    CHECK_EQ(r.header.n_devices, 1);
    CHECK_EQ(r.device.port, rdma_transport.listener_port(h.l));
    CHECK_EQ(r.header.generation, w.header.generation);
    CHECK(r.rkey != w.rkey && r.header.right == RDMA_READ && w.header.right == RDMA_WRITE);
    CHECK_EQ(rdma_total(&rdma_totals.regions), 2 * 3); /* header, to read, to write */
    CHECK_EQ(rdma_transport.listener_uri(h.l, &b), TARN_OK);
    buf_append_char(&b, '\0');
    CHECK(strncmp(b.data, "rdma://127.0.0.1:", 17) == 0);
    buf_free(&b);
    end();
}

TEST(memory_that_goes_while_it_is_registered) {
    for (int i = 0; i < 20; i++) {
        begin("devices=3", NULL);
        if (i % 2) usleep((useconds_t)i * 20);
        end();
    }
}

TEST(chunks_are_as_small_as_the_device_wants) {
    begin_ready("max_mr_size=2097152", NULL);
    struct keys k = keys_of(0, true);
    CHECK_EQ(k.header.chunk_size, 2u << 20);
    CHECK_EQ(k.header.n_chunks, 4);
    CHECK_EQ(rdma_total(&rdma_totals.regions), 2 * (1 + 2 * 4));
    end();
}

TEST(a_device_that_cannot_register_is_done_without) {
    const char *const one[] = {"register-threads", "1", NULL};
    begin_ready("devices=2", one);
    CHECK_EQ(keys_of(0, true).header.n_devices, 2);
    end();
    fake_configure("devices=2,max_mr=10"); /* segments want 2 x 3 each */
    begin("devices=2,max_mr=10", one);
    CHECK(WAIT(h.segment[0].it->job == NULL && h.segment[1].it->job == NULL));
    CHECK(version(0) != 0 || version(1) != 0);
    end();
}

TEST(what_failed_is_tried_again_when_the_port_comes_up) {
    begin("max_mr=4", NULL);
    CHECK(WAIT(h.segment[0].it->job == NULL && h.segment[1].it->job == NULL));
    CHECK(version(0) == 0 || version(1) == 0);
    unsigned sick = version(0) == 0 ? 0 : 1;
    CHECK_EQ(h.segment[sick].it->failures, 1);
    fake_port("fake0", false);
    CHECK(WAIT(!rdma_device_usable(rdma_device_at(0))));
    fake_port("fake0", true);
    CHECK(WAIT(h.segment[sick].it->failures == 2)); /* and has failed again: nothing has changed */
    end();
}

TEST(domains_share_local_registrations_of_the_same_memory) {
    begin_ready(NULL, NULL);
    struct transport_domain *d2;
    struct transport_domain_config config = {0};
    CHECK_EQ(rdma_transport.domain_open(&config, &d2), TARN_OK);
    uint64_t live = rdma_total(&rdma_totals.regions), len = 100000;
    char *p = malloc(100000);
    struct transport_memory_config c = {
        .addr = p, .length = len, .fd = -1, .fd_read = -1, .identity = 5};
    struct transport_memory *m[3];
    CHECK_EQ(rdma_transport.memory_register(h.d, &c, &m[0]), TARN_OK);
    CHECK_EQ(rdma_transport.memory_register(d2, &c, &m[1]), TARN_OK);
    CHECK_EQ(rdma_total(&rdma_totals.regions), live + 1);
    c.identity = 6; /* other memory, for all that is known */
    CHECK_EQ(rdma_transport.memory_register(d2, &c, &m[2]), TARN_OK);
    CHECK_EQ(rdma_total(&rdma_totals.regions), live + 2);
    struct ibv_mr *mr = rdma_memory_local(h.d, rdma_device_at(0), p + 99000, &len);
    CHECK(mr != NULL && len == 1000);
    CHECK(rdma_memory_local(h.d, rdma_device_at(0), p + 100000, &len) == NULL);
    rdma_transport.memory_deregister(&m[0]);
    CHECK_EQ(rdma_total(&rdma_totals.regions), live + 2);
    for (int i = 1; i < 3; i++) rdma_transport.memory_deregister(&m[i]);
    CHECK_EQ(rdma_total(&rdma_totals.regions), live);
    rdma_transport.domain_close(&d2);
    free(p);
    end();
}

/* --- who may connect --- */

TEST(requests_are_judged) {
    begin_ready(NULL, NULL);
    struct rdma_request good = request_for(0, true, 1), rq;
    CHECK_EQ(refusal_of(&good, sizeof(good)), GRANT_OK);
    CHECK_EQ(refusal_of("short", 5), RDMA_REFUSED_REQUEST);
    rq = good, rq.magic = 0;
    CHECK_EQ(refusal_of(&rq, sizeof(rq)), RDMA_REFUSED_REQUEST);
    rq = good, rq.right = 3;
    CHECK_EQ(refusal_of(&rq, sizeof(rq)), RDMA_REFUSED_REQUEST);
    rq = good, rq.version = 0;
    CHECK_EQ(refusal_of(&rq, sizeof(rq)), RDMA_REFUSED_VERSION);
    rq = good, rq.version = 200; /* newer: we agree on what both know */
    CHECK_EQ(refusal_of(&rq, sizeof(rq)), GRANT_OK);
    rq = good, rq.segment = 99;
    CHECK_EQ(refusal_of(&rq, sizeof(rq)), RDMA_REFUSED_SEGMENT);
    rq = good, rq.segment_epoch++;
    CHECK_EQ(refusal_of(&rq, sizeof(rq)), GRANT_BAD_EPOCH);
    rq = good, rq.right = RDMA_READ; /* a grant to write is none to read */
    CHECK_EQ(refusal_of(&rq, sizeof(rq)), GRANT_BAD_OP);
    h.verdict = GRANT_FENCED;
    CHECK_EQ(refusal_of(&good, sizeof(good)), GRANT_FENCED);
    struct transport_listener_stats s = stats();
    CHECK_EQ(s.refused[GRANT_FENCED], 1);
    CHECK_EQ(s.refused[GRANT_BAD_EPOCH], 1);
    CHECK_EQ(s.refused[GRANT_BAD_OP], 1);
    CHECK_EQ(s.bad_frames, 3);
    CHECK_EQ(s.connections_refused, 8);
    CHECK_EQ(s.connections_total, 2);
    CHECK(WAIT(stats().connections == 0)); /* they went away */
    end();
}

TEST(a_connection_reaches_its_segment_by_its_right) {
    begin_ready(NULL, NULL);
    struct keys read = keys_of(0, false), write = keys_of(0, true), other = keys_of(1, true);
    struct client c;
    struct rdma_request rq = request_for(0, true, 1);
    CHECK_EQ(client_connect(&c, &rq), GRANT_OK);
    CHECK_EQ(c.accept.generation, write.header.generation);
    CHECK_EQ(c.accept.master_epoch, MASTER);
    CHECK_EQ(c.accept.segment_epoch, EPOCH);
    CHECK_EQ(c.accept.instance, 9);
    CHECK(c.accept.slice_max > 0);
    strcpy(c.buffer, "written");
    CHECK_EQ(transfer(&c, true, write.header.address + 100, write.rkey), IBV_WC_SUCCESS);
    CHECK_STR(data_of(&h.segment[0]) + 100, "written");
    CHECK_EQ(transfer(&c, false, read.header.header_address, read.device.header_rkey),
             IBV_WC_SUCCESS);
    CHECK_EQ(transfer(&c, true, other.header.address, other.rkey), IBV_WC_REM_ACCESS_ERR);
    client_close(&c);

    CHECK_EQ(client_connect(&c, &rq), GRANT_OK); /* nobody writes the header, */
    CHECK_EQ(transfer(&c, true, read.header.header_address, read.device.header_rkey),
             IBV_WC_REM_ACCESS_ERR);
    client_close(&c);
    rq = request_for(0, false, 1);
    CHECK_EQ(client_connect(&c, &rq), GRANT_OK); /* nor a reader anything, with whatever key */
    CHECK_EQ(transfer(&c, false, read.header.address + 100, read.rkey), IBV_WC_SUCCESS);
    CHECK_STR(c.buffer, "written");
    CHECK_EQ(transfer(&c, true, write.header.address, write.rkey), IBV_WC_REM_ACCESS_ERR);
    client_close(&c);
    CHECK(WAIT(stats().connections == 0));
    end();
}

TEST(who_never_completes_does_not_stay) {
    static const char *const soon[] = {"connect-timeout-ms", "20", NULL};
    begin_ready(NULL, soon);
    struct client c;
    struct rdma_request rq = request_for(0, true, 1);
    client_open(&c, rdma_transport.listener_port(h.l));
    CHECK(client_ask(&c, &rq, sizeof(rq)));
    CHECK_EQ(stats().connections, 1);
    CHECK(rdma_transport.listener_lent(h.l, h.segment[0].it, UINT32_MAX));
    CHECK(WAIT(stats().connections == 0));
    CHECK_EQ(stats().timeouts, 1);
    client_close(&c);
    end();
}

TEST(connections_have_a_bound) {
    static const char *const two[] = {"max-connections", "2", NULL};
    begin_ready(NULL, two);
    struct client c[3];
    struct rdma_request rq = request_for(0, false, 1);
    for (int i = 0; i < 2; i++) CHECK_EQ(client_connect(&c[i], &rq), GRANT_OK);
    CHECK_EQ(refusal_of(&rq, sizeof(rq)), RDMA_REFUSED_TOO_MANY);
    rq.replaces = c[0].qp->qp_num; /* a number of ours means nothing there */
    CHECK_EQ(refusal_of(&rq, sizeof(rq)), RDMA_REFUSED_TOO_MANY);
    client_close(&c[0]);
    CHECK(WAIT(stats().connections == 1));
    rq.replaces = 0;
    CHECK_EQ(client_connect(&c[0], &rq), GRANT_OK);
    for (int i = 0; i < 2; i++) client_close(&c[i]);
    end();
}

TEST(the_dead_make_room) {
    static const char *const few[] = {"max-connections", "2", "idle-timeout-ms", "100", NULL};
    begin_ready(NULL, few);
    struct client c[3];
    struct rdma_request rq = request_for(0, false, 1);
    for (int i = 0; i < 2; i++) CHECK_EQ(client_connect(&c[i], &rq), GRANT_OK);
    CHECK(WAIT(TAILQ_EMPTY(&h.l->pending)));
    CHECK_EQ(refusal_of(&rq, sizeof(rq)), RDMA_REFUSED_TOO_MANY); /* looks at them, */
    usleep(310000);
    CHECK_EQ(client_connect(&c[2], &rq), GRANT_OK); /* and again: here nobody ever says anything */
    CHECK_EQ(stats().connections, 2);
    for (int i = 0; i < 3; i++) client_close(&c[i]);
    end();
}

/* --- cutting off --- */

static uint32_t host_qp(unsigned nth) {
    struct rdma_peer *p = TAILQ_FIRST(&h.l->peers);
    while (nth-- > 0) p = TAILQ_NEXT(p, link);
    return p->qp->qp_num;
}

TEST(a_connection_takes_the_place_of_another) {
    begin_ready(NULL, NULL);
    struct client old, other, fresh;
    struct keys k = keys_of(0, true);
    struct rdma_request rq = request_for(0, true, 1), theirs = request_for(0, true, 2);
    CHECK_EQ(client_connect(&old, &rq), GRANT_OK);
    CHECK_EQ(client_connect(&other, &theirs), GRANT_OK);
    rq.replaces = host_qp(1); /* of another session: not ours to replace */
    CHECK_EQ(client_connect(&fresh, &rq), GRANT_OK);
    CHECK_EQ(stats().connections, 3);
    client_close(&fresh);
    CHECK(WAIT(stats().connections == 2));
    rq.replaces = host_qp(0);
    CHECK_EQ(client_connect(&fresh, &rq), GRANT_OK);
    CHECK_EQ(stats().connections, 2);
    CHECK_EQ(transfer(&fresh, true, k.header.address, k.rkey), IBV_WC_SUCCESS);
    CHECK_EQ(transfer(&other, true, k.header.address, k.rkey), IBV_WC_SUCCESS);
    CHECK(transfer(&old, true, k.header.address, k.rkey) != IBV_WC_SUCCESS);
    client_close(&old);
    client_close(&other);
    client_close(&fresh);
    end();
}

static uint32_t peers_of(uint32_t program) {
    struct program_counts c = {0};
    uint32_t peers = 0;
    rdma_transport.listener_programs(h.l, &c);
    for (unsigned i = 0; i <= PROGRAM_COUNTS; i++)
        if (c.of[i].program == program) peers += c.of[i].peers;
    return peers;
}

TEST(clients_tell_their_version_where_there_is_room) {
    begin_ready(NULL, NULL);
    struct client old, now, mends, lost;
    struct rdma_request rq = request_for(0, true, 1);
    CHECK_EQ(client_connect(&old, &rq), GRANT_OK); /* as one of 0.1 */
    CHECK_EQ(peers_of(0), 1);
    rq = request_for(0, true, 2);
    rq.replaces = RDMA_PROGRAM | 0x000300;
    CHECK_EQ(client_connect(&now, &rq), GRANT_OK);
    CHECK_EQ(now.accept.program, program_own());
    CHECK_EQ(peers_of(0x000300), 1);
    rq.replaces = host_qp(1);
    CHECK_EQ(client_connect(&mends, &rq), GRANT_OK); /* its session has told it */
    CHECK_EQ(stats().connections, 2);
    CHECK_EQ(peers_of(0x000300), 1);
    rq = request_for(0, true, 3);
    rq.replaces = 0xfffff; /* nobody's */
    CHECK_EQ(client_connect(&lost, &rq), GRANT_OK);
    CHECK_EQ(peers_of(PROGRAM_OTHER), 1);
    CHECK_EQ(peers_of(0), 1);
    struct buf report = {0};
    rdma_transport.describe(h.d, &report);
    buf_append_char(&report, '\0');
    CHECK(strstr(report.data, " version=0.1\n") != NULL);
    CHECK(strstr(report.data, " version=0.3.0\n") != NULL);
    buf_free(&report);
    client_close(&old);
    client_close(&now);
    client_close(&mends);
    client_close(&lost);
    CHECK(WAIT(stats().connections == 0));
    CHECK_EQ(peers_of(0) + peers_of(0x000300) + peers_of(PROGRAM_OTHER), 0);
    end();
}

TEST(a_fenced_session_is_gone_and_nobody_else) {
    begin_ready(NULL, NULL);
    struct client bad, good;
    struct keys k = keys_of(0, true);
    struct rdma_request rq = request_for(0, true, 1);
    CHECK_EQ(client_connect(&bad, &rq), GRANT_OK);
    rq = request_for(0, true, 2);
    CHECK_EQ(client_connect(&good, &rq), GRANT_OK);
    struct transport_fence fence = {.kind = TRANSPORT_FENCE_SESSION, .session = 1};
    CHECK_EQ(rdma_transport.listener_fence(h.l, &fence), TARN_OK);
    memset(bad.buffer, 'x', 64);
    CHECK(transfer(&bad, true, k.header.address, k.rkey) != IBV_WC_SUCCESS);
    CHECK_EQ(data_of(&h.segment[0])[0], 0);
    CHECK_EQ(next_event(&bad, NULL, NULL, NULL), RDMA_CM_EVENT_DISCONNECTED);
    CHECK_EQ(transfer(&good, true, k.header.address, k.rkey), IBV_WC_SUCCESS);
    CHECK_EQ(keys_of(0, true).header.generation, k.header.generation);
    client_close(&bad);
    client_close(&good);
    end();
}

TEST(a_new_master_epoch_makes_old_keys_worthless) {
    begin_ready(NULL, NULL);
    struct client c;
    struct keys old = keys_of(0, true);
    struct rdma_request rq = request_for(0, true, 1);
    CHECK_EQ(client_connect(&c, &rq), GRANT_OK);
    CHECK(rdma_transport.listener_lent(h.l, h.segment[0].it, MASTER + 1));
    CHECK(!rdma_transport.listener_lent(h.l, h.segment[0].it, MASTER));
    CHECK(!rdma_transport.listener_lent(h.l, h.segment[1].it, MASTER + 1));
    h.master_epoch = MASTER + 1;
    struct transport_fence fence = {.kind = TRANSPORT_FENCE_BEFORE, .master_epoch = MASTER + 1};
    CHECK_EQ(rdma_transport.listener_fence(h.l, &fence), TARN_OK);
    CHECK_EQ(stats().connections, 0);
    CHECK(!rdma_transport.listener_lent(h.l, h.segment[0].it, UINT32_MAX));
    CHECK_EQ(version(0), 0);
    CHECK(transfer(&c, true, old.header.address, old.rkey) != IBV_WC_SUCCESS);
    client_close(&c);
    CHECK(WAIT(version(0) != 0));
    struct keys k = keys_of(0, true);
    CHECK(k.header.generation != old.header.generation);
    CHECK_EQ(client_connect(&c, &rq), GRANT_OK);
    CHECK_EQ(c.accept.generation, k.header.generation);
    CHECK_EQ(transfer(&c, true, k.header.address, k.rkey), IBV_WC_SUCCESS);
    CHECK_EQ(transfer(&c, true, old.header.address, old.rkey), IBV_WC_REM_ACCESS_ERR);
    client_close(&c);
    end();
}

TEST(a_segment_that_goes_takes_its_clients_along) {
    begin_ready(NULL, NULL);
    struct client c[2];
    struct keys k = keys_of(1, true);
    for (unsigned i = 0; i < 2; i++) {
        struct rdma_request rq = request_for(i, true, 1);
        CHECK_EQ(client_connect(&c[i], &rq), GRANT_OK);
    }
    struct transport_fence fence = {.kind = TRANSPORT_FENCE_SEGMENT, .segment = 7};
    CHECK_EQ(rdma_transport.listener_fence(h.l, &fence), TARN_OK);
    CHECK_EQ(stats().connections, 1);
    CHECK(transfer(&c[0], true, keys_of(0, true).header.address, keys_of(0, true).rkey) !=
          IBV_WC_SUCCESS);
    CHECK_EQ(transfer(&c[1], true, k.header.address, k.rkey), IBV_WC_SUCCESS);
    rdma_transport.memory_deregister(&h.segment[1].it);
    CHECK_EQ(stats().connections, 0);
    CHECK(transfer(&c[1], true, k.header.address, k.rkey) != IBV_WC_SUCCESS);
    struct rdma_request rq = request_for(1, true, 1);
    CHECK_EQ(refusal_of(&rq, sizeof(rq)), RDMA_REFUSED_SEGMENT);
    for (unsigned i = 0; i < 2; i++) client_close(&c[i]);
    end();
}

/* --- devices that come and go --- */

TEST(without_a_device_all_is_well_and_nobody_is_served) {
    begin("devices=0", NULL);
    struct buf b = {0};
    for (int i = 0; i < 5; i++) turn();
    CHECK_EQ(version(0), 0);
    CHECK_EQ(rdma_transport.listener_uri(h.l, &b), TARN_EAGAIN);
    rdma_summary(&b);
    CHECK(memmem(b.data, b.len, "no device", 9) != NULL);
    buf_free(&b);
    end();
}

TEST(a_port_that_comes_up_late_is_listened_at) {
    down_at_first = "fake1";
    begin_ready("devices=2", NULL);
    CHECK(!rdma_device_usable(rdma_device_at(1)));
    CHECK_EQ(keys_of(0, false).header.n_devices, 1);
    uint64_t before = version(0);
    fake_port("fake1", true);
    CHECK(WAIT(version(0) != before));
    CHECK_EQ(keys_of(0, false).header.n_devices, 2);
    uint64_t with_both = version(0), generation = keys_of(0, false).header.generation;
    fake_port("fake1", false); /* for a moment: nobody needs to learn new keys */
    CHECK(WAIT(!rdma_device_usable(rdma_device_at(1))));
    fake_port("fake1", true);
    CHECK(WAIT(rdma_device_usable(rdma_device_at(1))));
    for (int i = 0; i < 20; i++) turn();
    CHECK_EQ(version(0), with_both);
    CHECK_EQ(keys_of(0, false).header.generation, generation);
    end();
}

/* What a client may conclude from finding nobody listening. */
TEST(an_address_that_goes_takes_its_clients_along) {
    begin_ready("devices=2", NULL);
    struct client c;
    struct rdma_request rq = request_for(0, true, 1);
    CHECK_EQ(client_connect(&c, &rq), GRANT_OK);
    CHECK(WAIT(stats().connections == 1));
    fake_fail(FAKE_BIND_ADDR, 0, 100, EADDRNOTAVAIL);
    fake_port("fake1", false); /* a reason to look at addresses */
    CHECK(WAIT(stats().connections == 0));
    fake_fail(FAKE_BIND_ADDR, 0, 0, 0);
    CHECK_EQ(next_event(&c, NULL, NULL, NULL), RDMA_CM_EVENT_DISCONNECTED);
    client_close(&c);
    end();
}

TEST(a_device_that_is_taken_away_is_left_out) {
    begin_ready("devices=2", NULL);
    struct client c;
    struct rdma_request rq = request_for(0, true, 1);
    uint64_t before = version(0);
    CHECK_EQ(client_connect(&c, &rq), GRANT_OK);
    client_close(&c);
    CHECK_EQ(client_connect(&c, &rq), GRANT_OK);
    fake_device_remove("fake0", false);
    CHECK(WAIT(stats().connections == 0));
    CHECK(WAIT(version(0) != before && version(0) != 0));
    struct keys k = keys_of(0, true);
    CHECK_EQ(k.header.n_devices, 1);
    CHECK_STR(k.device.name, "fake1");
    client_close(&c);
    end();
}

/* --- reports --- */

TEST(a_report_is_made_of_whole_lines) {
    begin_ready("devices=2", NULL);
    struct client c;
    struct rdma_request rq = request_for(0, true, 5);
    CHECK_EQ(client_connect(&c, &rq), GRANT_OK);
    struct buf b = {0};
    CHECK(WAIT((buf_clear(&b), rdma_transport.describe(h.d, &b), buf_append_char(&b, '\0'),
                strstr(b.data, "state=up age_s") != NULL)));
    CHECK(strstr(b.data, "stats connections=1 connections_total=1 refused=0") == b.data);
    CHECK(strstr(b.data, "\ndevice name=fake0 state=up ") != NULL);
    CHECK(strstr(b.data, "\ndevice name=fake1 state=up ") != NULL);
    CHECK(strstr(b.data, "\nregion segment=7 generation=") != NULL);
    CHECK(strstr(b.data, "\npeer session=5 segment=7 right=write device=fake0 address=127.0.0.1") !=
          NULL);
    CHECK(b.len <= TRANSPORT_REPORT_MAX && b.data[b.len - 2] == '\n');
    buf_free(&b);
    client_close(&c);
    end();
}

TEST_MAIN()
