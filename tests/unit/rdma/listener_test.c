/* The listener against strangers: requests of any bytes, clients that go at any moment, more of
 * them than it takes, calls that fail under it. Grants are real here. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../fake_verbs/fake_verbs.h"
#include "../test.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/segment_header.h"
#include "rdma/passive.h"

#define SEGMENT 7u
#define EPOCH   3u
#define MASTER  11u
#define SIZE    (1u << 20)

static const uint8_t key[GRANT_KEY_SIZE] = {4, 8, 15, 16, 23, 42};

static struct {
    struct transport_domain *d;
    struct transport_listener *l;
    struct transport_memory *m;
    char *memory; /* header in front */
} h;

static enum grant_verdict gate_check(void *arg, const uint8_t grant[GRANT_SIZE],
                                     const struct grant_extent *x, enum grant_op want,
                                     uint64_t sub_offset, uint64_t sub_length, struct grant *g_p,
                                     void **addr_p) {
    (void)arg;
    enum grant_verdict v =
        grant_check(key, grant, x, want, sub_offset, sub_length, MASTER, EPOCH, 1000, g_p);
    if (v == GRANT_OK) *addr_p = h.memory + SEGMENT_HEADER_SIZE;
    return v;
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
            usleep(100);                                                                           \
        }                                                                                          \
        wait_true;                                                                                 \
    })

static struct transport_listener_stats stats(void) {
    struct transport_listener_stats s;
    rdma_transport.listener_stats(h.l, &s);
    return s;
}

static void map_memory(void) {
    h.memory = mmap(NULL, SEGMENT_HEADER_SIZE + SIZE, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(h.memory != MAP_FAILED);
    *(struct segment_header *)(void *)h.memory =
        (struct segment_header){.master_epoch = MASTER, .segment_epoch = EPOCH, .instance = 9};
}

static tarn_status open_host(void) {
    struct transport_domain_config config = {0};
    struct transport_listen_config listen = {
        .gate = {.check = gate_check, .recheck = gate_recheck}};
    struct transport_memory_config memory = {.addr = h.memory + SEGMENT_HEADER_SIZE,
                                             .length = SIZE,
                                             .fd = -1,
                                             .fd_read = -1,
                                             .header_size = SEGMENT_HEADER_SIZE,
                                             .segment = SEGMENT,
                                             .remote = true};
    rdma_devices_open();
    tarn_status s = rdma_transport.domain_open(&config, &h.d);
    if (s == TARN_OK) s = rdma_transport.listen(h.d, &listen, &h.l);
    if (s == TARN_OK) s = rdma_transport.memory_register(h.d, &memory, &h.m);
    return s;
}

static void close_host(void) {
    if (h.d != NULL) {
        if (h.m != NULL) rdma_transport.memory_deregister(&h.m);
        if (h.l != NULL) rdma_transport.listener_close(&h.l);
        rdma_transport.domain_close(&h.d);
    }
    CHECK_EQ(rdma_devices_close(), TARN_OK);
    CHECK_EQ(rdma_total(&rdma_totals.regions), 0);
    CHECK_EQ(rdma_totals.connections, 0);
    CHECK_EQ(fake_count_all(), 0);
    rdma_options_free();
}

static void set_up(const char *fake, const char *const *options) {
    char error[200];
    size_t n = 0;
    log_set_level(getenv("VERBOSE") != NULL ? LOG_LEVEL_VERBOSE : LOG_LEVEL_NOTHING);
    while (options != NULL && options[n] != NULL) n++;
    memset(&h, 0, sizeof(h));
    fake_configure(fake);
    CHECK_EQ(rdma_options_parse(n, options, error, sizeof(error)), TARN_OK);
    map_memory();
}

static void begin(const char *fake, const char *const *options) {
    set_up(fake, options);
    CHECK_EQ(open_host(), TARN_OK);
    CHECK(WAIT(rdma_transport.memory_version(h.m) != 0));
}

static void end(void) {
    close_host();
    munmap(h.memory, SEGMENT_HEADER_SIZE + SIZE);
}

/* --- a stranger: an id, and a queue pair that is only a number --- */

struct stranger {
    struct rdma_event_channel *channel;
    struct rdma_cm_id *id;
};

static enum rdma_cm_event_type answer(struct stranger *s, void *data, size_t *len) {
    uint64_t until_ms = clock_boot_ms() + 60000;
    while (clock_boot_ms() < until_ms) {
        struct pollfd p = {.fd = s->channel->fd, .events = POLLIN};
        if (poll(&p, 1, 0) != 1) {
            turn();
            usleep(20);
            continue;
        }
        struct rdma_cm_event *e;
        CHECK_EQ(rdma_get_cm_event(s->channel, &e), 0);
        enum rdma_cm_event_type type = e->event;
        if (data != NULL) {
            *len = min_u64(*len, e->param.conn.private_data_len);
            memcpy(data, e->param.conn.private_data, *len);
        }
        rdma_ack_cm_event(e);
        return type;
    }
    return RDMA_CM_EVENT_MULTICAST_ERROR; /* none came */
}

static void stranger_open(struct stranger *s) {
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons(rdma_transport.listener_port(h.l)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    s->channel = rdma_create_event_channel();
    CHECK_EQ(rdma_create_id(s->channel, &s->id, NULL, RDMA_PS_TCP), 0);
    CHECK_EQ(rdma_resolve_addr(s->id, NULL, (struct sockaddr *)&to, 1000), 0);
    CHECK_EQ(answer(s, NULL, NULL), RDMA_CM_EVENT_ADDR_RESOLVED);
    CHECK_EQ(rdma_resolve_route(s->id, 1000), 0);
    CHECK_EQ(answer(s, NULL, NULL), RDMA_CM_EVENT_ROUTE_RESOLVED);
}

static void stranger_ask(struct stranger *s, const void *data, size_t len) {
    struct rdma_conn_param p = {.private_data = data,
                                .private_data_len = (uint8_t)len,
                                .initiator_depth = 4,
                                .retry_count = 7,
                                .qp_num = 5};
    stranger_open(s);
    CHECK_EQ(rdma_connect(s->id, &p), 0);
}

static void stranger_close(struct stranger *s) {
    rdma_destroy_id(s->id);
    rdma_destroy_event_channel(s->channel);
}

/* GRANT_OK: accepted. UINT32_MAX: refused without a word. */
static unsigned verdict(struct stranger *s) {
    uint8_t data[256];
    size_t len = sizeof(data);
    enum rdma_cm_event_type type = answer(s, data, &len);
    if (type == RDMA_CM_EVENT_CONNECT_RESPONSE) {
        struct rdma_accept a;
        memcpy(&a, data, sizeof(a));
        CHECK(len >= sizeof(a) && a.magic == RDMA_WIRE_MAGIC && a.segment_epoch == EPOCH);
        return GRANT_OK;
    }
    CHECK_EQ(type, RDMA_CM_EVENT_REJECTED);
    struct rdma_reject r;
    memcpy(&r, data, sizeof(r));
    if (len < sizeof(r) || r.magic != RDMA_WIRE_MAGIC) return UINT32_MAX;
    CHECK(r.refusal != GRANT_OK && r.refusal <= RDMA_REFUSED_DEVICE);
    return r.refusal;
}

static struct rdma_request good_request(bool write, uint64_t session) {
    struct rdma_request rq = {.magic = RDMA_WIRE_MAGIC,
                              .version = RDMA_WIRE_VERSION,
                              .right = write ? RDMA_WRITE : RDMA_READ,
                              .segment = SEGMENT,
                              .segment_epoch = EPOCH};
    struct grant g = {write ? GRANT_ATTACH_WRITE : GRANT_ATTACH_READ, MASTER, session, 2000, 0};
    struct grant_extent x = {SEGMENT, EPOCH, 0, SIZE};
    grant_seal(key, &g, &x, rq.grant);
    return rq;
}

static unsigned ask(const void *data, size_t len) {
    struct stranger s;
    stranger_ask(&s, data, len);
    unsigned v = verdict(&s);
    stranger_close(&s);
    return v;
}

static bool idle(void) {
    return stats().connections == 0;
}

/* --- bytes --- */

static void mutate(struct rng *r, uint8_t *p, size_t *len_p) {
    switch (rng_below(r, 5)) {
    case 0: p[rng_below(r, *len_p)] ^= (uint8_t)(1u << rng_below(r, 8)); break;
    case 1: p[rng_below(r, *len_p)] = (uint8_t)rng_next(r); break;
    case 2: *len_p = 1 + rng_below(r, *len_p); break;
    case 3: {
        size_t from = rng_below(r, *len_p), n = rng_below(r, *len_p - from + 1);
        memset(p + from, rng_below(r, 2) ? 0xff : 0, n);
        break;
    }
    default:
        for (size_t i = 0; i < *len_p; i++) p[i] = (uint8_t)rng_next(r);
    }
}

/* Is it what a client may ask, whatever was done to it? Versions that are newer are agreed on, and
 * what it replaces is its own affair. */
static bool still_good(const uint8_t *p, const struct rdma_request *good) {
    struct rdma_request rq;
    memcpy(&rq, p, sizeof(rq));
    if (rq.version == 0) return false;
    rq.version = good->version;
    rq.replaces = good->replaces;
    return memcmp(&rq, good, sizeof(rq)) == 0;
}

TEST(requests_of_any_bytes) {
    begin(NULL, NULL);
    struct rng r;
    rng_seed(&r, 20);
    unsigned accepted = 0, refused = 0, seen[32] = {0};
    const char *env = getenv("FUZZ_MUTATIONS");
    unsigned rounds = env != NULL ? (unsigned)atoi(env) : 3000;
    for (unsigned i = 0; i < rounds; i++) {
        struct rdma_request good = good_request(i % 2, i % 7 + 1);
        uint8_t data[56];
        size_t len = sizeof(data);
        memcpy(data, &good, sizeof(data));
        for (uint64_t n = rng_below(&r, 3); n > 0; n--) mutate(&r, data, &len);
        if (i % 50 == 0) data[offsetof(struct rdma_request, version)] = (uint8_t)(i / 50 % 4);
        unsigned v = ask(data, len);
        memset(data + len, 0, sizeof(data) - len); /* it travels in 56 bytes whatever was given */
        CHECK_EQ(v == GRANT_OK, still_good(data, &good));
        CHECK(v < ARRAY_LEN(seen));
        seen[v]++;
        if (v == GRANT_OK)
            accepted++;
        else
            refused++;
    }
    CHECK(accepted > rounds / 10 && refused > rounds / 10);
    CHECK(seen[RDMA_REFUSED_VERSION] > 0 && seen[GRANT_BAD_MAC] > 0 &&
          seen[RDMA_REFUSED_REQUEST] > 0 && seen[RDMA_REFUSED_SEGMENT] > 0);
    struct transport_listener_stats s = stats();
    CHECK_EQ(s.connections_total, accepted);
    CHECK_EQ(s.connections_refused, refused);
    CHECK_EQ(s.bad_frames, seen[RDMA_REFUSED_REQUEST]);
    CHECK(WAIT(idle()));
    CHECK_EQ(fake_count(FAKE_QPS), 0);
    end();
}

TEST(grants_of_others) {
    begin(NULL, NULL);
    struct rdma_request rq = good_request(false, 1);
    struct grant_extent x = {SEGMENT, EPOCH, 0, SIZE};
    struct grant g = {GRANT_ATTACH_READ, MASTER, 1, 2000, 0};
    rq.right = RDMA_WRITE;
    CHECK_EQ(ask(&rq, sizeof(rq)), GRANT_BAD_OP);
    rq = good_request(true, 1);
    g.expiry_ms = 999;
    g.op = GRANT_ATTACH_WRITE;
    grant_seal(key, &g, &x, rq.grant);
    CHECK_EQ(ask(&rq, sizeof(rq)), GRANT_EXPIRED);
    g.expiry_ms = 2000;
    g.master_epoch = MASTER - 1;
    grant_seal(key, &g, &x, rq.grant);
    CHECK_EQ(ask(&rq, sizeof(rq)), GRANT_BAD_EPOCH);
    g.master_epoch = MASTER;
    x.length = SIZE / 2; /* for a part of it */
    grant_seal(key, &g, &x, rq.grant);
    CHECK_EQ(ask(&rq, sizeof(rq)), GRANT_BAD_MAC);
    g.op = GRANT_WRITE; /* for an object, not for the segment */
    x.length = SIZE;
    grant_seal(key, &g, &x, rq.grant);
    CHECK_EQ(ask(&rq, sizeof(rq)), GRANT_BAD_OP);
    CHECK(WAIT(idle()));
    end();
}

/* What it takes the place of is another session's, another right's, or nobody's: it stays. */
TEST(only_ones_own_is_replaced) {
    begin(NULL, NULL);
    struct stranger writer, reader;
    struct rdma_request rq = good_request(true, 1);
    stranger_ask(&writer, &rq, sizeof(rq));
    CHECK_EQ(verdict(&writer), GRANT_OK);
    uint32_t num = TAILQ_FIRST(&h.l->peers)->qp->qp_num;
    rq = good_request(true, 2);
    rq.replaces = num;
    CHECK_EQ(ask(&rq, sizeof(rq)), GRANT_OK);
    rq = good_request(false, 1);
    rq.replaces = num;
    stranger_ask(&reader, &rq, sizeof(rq));
    CHECK_EQ(verdict(&reader), GRANT_OK);
    CHECK(TAILQ_FIRST(&h.l->peers)->qp->qp_num == num);
    rq = good_request(true, 1);
    rq.replaces = num;
    rq.grant[3] ^= 1; /* refused: then nothing happens to the old one either */
    CHECK(ask(&rq, sizeof(rq)) != GRANT_OK);
    CHECK(TAILQ_FIRST(&h.l->peers)->qp->qp_num == num);
    rq.grant[3] ^= 1;
    CHECK_EQ(ask(&rq, sizeof(rq)), GRANT_OK);
    struct rdma_peer *p;
    TAILQ_FOREACH(p, &h.l->peers, link) CHECK(p->qp->qp_num != num);
    stranger_close(&writer);
    stranger_close(&reader);
    CHECK(WAIT(idle()));
    end();
}

/* --- clients that go --- */

TEST(clients_go_at_any_moment) {
    begin(NULL, NULL);
    struct rng r;
    rng_seed(&r, 7);
    for (unsigned i = 0; i < 400; i++) {
        struct stranger s;
        struct rdma_request rq = good_request(i % 2, 1);
        stranger_ask(&s, &rq, sizeof(rq));
        if (i % 4 == 1) usleep((useconds_t)rng_below(&r, 300));
        if (i % 4 == 2) turn();
        if (i % 4 == 3) {
            CHECK_EQ(verdict(&s), GRANT_OK);
            CHECK_EQ(rdma_establish(s.id), 0);
            if (i % 8 == 3) turn();
        }
        stranger_close(&s);
    }
    CHECK(WAIT(idle() && fake_count(FAKE_QPS) == 0));
    struct rdma_request rq = good_request(true, 1);
    CHECK_EQ(ask(&rq, sizeof(rq)), GRANT_OK);
    CHECK(WAIT(idle()));
    end();
}

TEST(more_than_it_takes) {
    enum { CROWD = 200 };
    static const char *const few[] = {"max-connections", "16", NULL};
    static struct stranger s[CROWD];
    begin(NULL, few);
    struct rdma_request rq = good_request(true, 1);
    for (unsigned i = 0; i < CROWD; i++) {
        struct sockaddr_in to = {.sin_family = AF_INET,
                                 .sin_port = htons(rdma_transport.listener_port(h.l)),
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        struct rdma_conn_param p = {
            .private_data = &rq, .private_data_len = sizeof(rq), .initiator_depth = 4, .qp_num = 5};
        struct rdma_cm_event *e;
        s[i].channel = rdma_create_event_channel();
        CHECK_EQ(rdma_create_id(s[i].channel, &s[i].id, NULL, RDMA_PS_TCP), 0);
        CHECK_EQ(rdma_resolve_addr(s[i].id, NULL, (struct sockaddr *)&to, 1000), 0);
        CHECK_EQ(rdma_get_cm_event(s[i].channel, &e), 0); /* the host sleeps through all this */
        rdma_ack_cm_event(e);
        CHECK_EQ(rdma_resolve_route(s[i].id, 1000), 0);
        CHECK_EQ(rdma_get_cm_event(s[i].channel, &e), 0);
        rdma_ack_cm_event(e);
        CHECK_EQ(rdma_connect(s[i].id, &p), 0);
    }
    unsigned accepted = 0, many = 0, silent = 0, told = 0;
    for (unsigned ms = 0; ms < 5000 && told == 0;
         ms++) { /* until the backlog is full and somebody was turned away */
        struct pollfd p[CROWD];
        for (unsigned i = 0; i < CROWD; i++)
            p[i] = (struct pollfd){.fd = s[i].channel->fd, .events = POLLIN};
        int n = poll(p, CROWD, 1);
        told = n > 0 ? (unsigned)n : 0;
    }
    for (unsigned i = 0; i < CROWD; i++) {
        unsigned v = verdict(&s[i]);
        accepted += v == GRANT_OK;
        many += v == RDMA_REFUSED_TOO_MANY;
        silent += v == UINT32_MAX; /* what did not fit in the backlog */
    }
    CHECK_EQ(accepted, 16);
    CHECK_EQ(accepted + many + silent, CROWD);
    CHECK(many > 0 && silent > 0);
    CHECK_EQ(fake_count(FAKE_QPS), 16);
    for (unsigned i = 0; i < CROWD; i++) stranger_close(&s[i]);
    CHECK(WAIT(idle()));
    CHECK_EQ(ask(&rq, sizeof(rq)), GRANT_OK);
    CHECK(WAIT(idle()));
    end();
}

/* --- calls that fail --- */

TEST(accepting_fails_at_any_place) {
    static const struct {
        enum fake_call call;
        unsigned times;
    } steps[] = {
        {FAKE_CREATE_QP, 1}, {FAKE_INIT_QP_ATTR, 3}, {FAKE_MODIFY_QP, 3}, {FAKE_ACCEPT, 1}};
    begin("devices=2", NULL);
    struct rdma_request rq = good_request(true, 1);
    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        for (unsigned n = 0; n < steps[i].times; n++) {
            fake_fail(steps[i].call, n, 1, ENOMEM);
            CHECK_EQ(ask(&rq, sizeof(rq)), RDMA_REFUSED_DEVICE);
            CHECK_EQ(stats().connections, 0);
            CHECK_EQ(fake_count(FAKE_QPS), 0);
            CHECK_EQ(ask(&rq, sizeof(rq)), GRANT_OK); /* it was that once */
            CHECK(WAIT(idle()));
        }
    }
    end();
}

TEST(opening_fails_at_any_place) {
    static const enum fake_call calls[] = {
        FAKE_ALLOC_PD,  FAKE_REG_MR,    FAKE_CREATE_CQ, FAKE_QUERY_DEVICE,        FAKE_QUERY_PORT,
        FAKE_CREATE_ID, FAKE_BIND_ADDR, FAKE_LISTEN,    FAKE_CREATE_EVENT_CHANNEL};
    struct rdma_request rq = good_request(true, 1);
    for (size_t i = 0; i < ARRAY_LEN(calls); i++) {
        for (unsigned n = 0; n < 6; n++) {
            set_up("devices=2", NULL);
            fake_fail(calls[i], n, 1, EMFILE);
            tarn_status s = open_host();
            for (int t = 0; s == TARN_OK && t < 20; t++) turn();
            fake_fail(calls[i], 0, 0, 0);
            if (s == TARN_OK && rdma_transport.listener_port(h.l) != 0 &&
                WAIT(rdma_transport.memory_version(h.m) != 0)) {
                /* Where it came up it works. An address that could not be had is another's. */
                const struct rdma_listening *at = TAILQ_FIRST(&h.l->listening);
                if (at != NULL && strcmp(at->address.text, "127.0.0.1") == 0 &&
                    h.m->region[at->device->index].whole)
                    CHECK_EQ(ask(&rq, sizeof(rq)), GRANT_OK);
                CHECK(WAIT(idle()));
            }
            end();
        }
    }
}

/* --- devices --- */

static unsigned listens_at(void) {
    const struct rdma_listening *at;
    unsigned n = 0;
    TAILQ_FOREACH(at, &h.l->listening, link) n++;
    return n;
}

TEST(every_device_is_listened_at) {
    begin("devices=5,addresses=127.0.0.1;127.0.0.7;::1;127.0.0.9;127.0.0.11", NULL);
    struct buf b = {0};
    CHECK_EQ(rdma_transport.key_pack(h.m, false, &b), TARN_OK);
    struct rdma_key_header header;
    memcpy(&header, b.data, sizeof(header));
    CHECK_EQ(header.n_devices, 5);
    struct rdma_key_device third;
    memcpy(&third, b.data + sizeof(header) + 2 * (sizeof(third) + 4), sizeof(third));
    CHECK_STR(third.name, "fake2");
    CHECK(memcmp(third.address, &in6addr_loopback, 16) == 0);
    buf_free(&b);
    fake_device_remove("fake0", false);
    fake_device_remove("fake3", true);
    CHECK(WAIT(rdma_transport.key_pack(h.m, false, &b) == TARN_OK &&
               (memcpy(&header, b.data, sizeof(header)), buf_clear(&b), header.n_devices == 3)));
    CHECK(WAIT(listens_at() == 3));
    CHECK_EQ(rdma_transport.listener_uri(h.l, &b), TARN_OK);
    buf_append_char(&b, '\0');
    CHECK(strstr(b.data, "//127.0.0.7:") != NULL);
    buf_free(&b);
    end();
}

static void device_goes(bool silent) {
    begin("devices=2", NULL);
    struct rdma_request rq = good_request(true, 1);
    struct stranger s[20];
    for (unsigned i = 0; i < 10; i++) {
        stranger_ask(&s[i], &rq, sizeof(rq));
        CHECK_EQ(verdict(&s[i]), GRANT_OK);
        CHECK_EQ(rdma_establish(s[i].id), 0);
    }
    CHECK(WAIT(TAILQ_EMPTY(&h.l->pending)));
    /* these are on their way */
    for (unsigned i = 10; i < 20; i++) stranger_ask(&s[i], &rq, sizeof(rq));
    fake_device_remove("fake0", silent);
    CHECK(WAIT(listens_at() == 1 && idle()));
    CHECK_EQ(fake_count(FAKE_QPS), 0);
    CHECK_STR(TAILQ_FIRST(&h.l->listening)->device->name, "fake1");
    for (unsigned i = 0; i < 20; i++) stranger_close(&s[i]);
    end();
}
TEST(a_device_breaks_while_clients_come) {
    device_goes(false);
}
TEST(a_device_vanishes_while_clients_come) {
    device_goes(true);
}

TEST_MAIN()
