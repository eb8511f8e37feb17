/* A host and a client in one process and one thread, over the fake verbs: what the tests of the
 * active side share. */
#ifndef TARN_TESTS_RDMA_ACTIVE_H
#define TARN_TESTS_RDMA_ACTIVE_H

#include <sys/mman.h>
#include <unistd.h>

#include "../../fake_verbs/fake_verbs.h"
#include "../test.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/segment_header.h"
#include "rdma/work.h"

#define SEGMENT 7u
#define EPOCH   3u
#define MASTER  11u

struct client_op {
    struct transport_op op;
    struct transport_part part;
    struct iovec iov;
    unsigned done;
    uint32_t crc;
};

static struct {
    struct transport_domain *host, *client;
    char *memory; /* header in front */
    uint64_t size;
    struct transport_memory *segment;
    struct transport_listener *listener;
    enum grant_verdict verdict;
    unsigned asked; /* times the gate was */
    struct transport_endpoint *endpoint;
    struct transport_key *key[2];
    bool host_stopped;
    struct buf uri, packed[2];
} a;

static inline struct segment_header *live_header(void) {
    return (struct segment_header *)(void *)a.memory;
}
static inline char *segment_data(void) {
    return a.memory + SEGMENT_HEADER_SIZE;
}

static inline enum grant_verdict gate_check(void *arg, const uint8_t grant[GRANT_SIZE],
                                            const struct grant_extent *x, enum grant_op want,
                                            uint64_t sub_offset, uint64_t sub_length,
                                            struct grant *g_p, void **addr_p) {
    (void)arg, (void)grant, (void)sub_offset, (void)sub_length;
    a.asked++;
    *g_p = (struct grant){want, MASTER, 1, UINT64_MAX, 0};
    *addr_p = segment_data();
    if (x->segment != SEGMENT || x->segment_epoch != EPOCH) return GRANT_BAD_EPOCH;
    return a.verdict;
}

static inline enum grant_verdict gate_recheck(void *arg, const struct grant *g,
                                              const struct grant_extent *x) {
    (void)arg, (void)g, (void)x;
    return a.verdict;
}

static inline size_t turn(void) {
    if (!a.host_stopped) rdma_transport.progress(a.host, 1u << 20);
    return rdma_transport.progress(a.client, 1u << 20);
}

/* Until expr, or a minute is over. */
#define WAIT(expr)                                                                                 \
    ({                                                                                             \
        uint64_t until_ms = clock_boot_ms() + 60000;                                               \
        while (!(expr) && clock_boot_ms() < until_ms) {                                            \
            turn();                                                                                \
            int wait_fd;                                                                           \
            if (rdma_transport.arm(a.client, &wait_fd) == TARN_OK) usleep(50);                     \
        }                                                                                          \
        (expr);                                                                                    \
    })

static inline void get_keys(void) {
    for (int w = 0; w < 2; w++) {
        buf_clear(&a.packed[w]);
        CHECK_EQ(rdma_transport.key_pack(a.segment, w, &a.packed[w]), TARN_OK);
    }
}

static inline tarn_status unpack(int writable, const void *packed, size_t len,
                                 struct transport_key **key_p) {
    static const uint8_t grant[GRANT_SIZE] = {1};
    struct transport_key_config config = {.segment = SEGMENT,
                                          .segment_epoch = EPOCH,
                                          .size = a.size,
                                          .writable = writable,
                                          .grant = grant,
                                          .packed = packed,
                                          .packed_len = len};
    return rdma_transport.key_unpack(a.endpoint, &config, key_p);
}

static inline void open_keys(void) {
    get_keys();
    for (int w = 0; w < 2; w++)
        CHECK_EQ(unpack(w, a.packed[w].data, a.packed[w].len, &a.key[w]), TARN_OK);
}

static inline void close_keys(void) {
    for (int w = 0; w < 2; w++) rdma_transport.key_close(&a.key[w]);
}

static inline void close_endpoint(void) {
    while (a.endpoint != NULL) {
        rdma_transport.endpoint_close(&a.endpoint);
        turn();
    }
}

/* fake: text for fake_configure. options: words for the module, NULL at the end. */
static inline void begin(const char *fake, uint64_t size, const char *const *options) {
    char error[256];
    size_t n = 0;
    log_set_level(getenv("VERBOSE") != NULL ? LOG_LEVEL_VERBOSE : LOG_LEVEL_NOTHING);
    while (options != NULL && options[n] != NULL) n++;
    memset(&a, 0, sizeof(a));
    a.size = size;
    fake_configure(fake);
    CHECK_EQ(rdma_options_parse(n, options, error, sizeof(error)), TARN_OK);
    rdma_devices_open();
    struct transport_domain_config config = {0};
    CHECK_EQ(rdma_transport.domain_open(&config, &a.host), TARN_OK);
    CHECK_EQ(rdma_transport.domain_open(&config, &a.client), TARN_OK);
    a.memory = mmap(NULL, SEGMENT_HEADER_SIZE + size, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(a.memory != MAP_FAILED);
    *live_header() =
        (struct segment_header){.master_epoch = MASTER, .segment_epoch = EPOCH, .instance = 1};
    struct transport_listen_config listen = {
        .gate = {.check = gate_check, .recheck = gate_recheck}};
    CHECK_EQ(rdma_transport.listen(a.host, &listen, &a.listener), TARN_OK);
    struct transport_memory_config memory = {.addr = segment_data(),
                                             .length = size,
                                             .fd = -1,
                                             .fd_read = -1,
                                             .header_size = SEGMENT_HEADER_SIZE,
                                             .segment = SEGMENT,
                                             .remote = true};
    CHECK_EQ(rdma_transport.memory_register(a.host, &memory, &a.segment), TARN_OK);
    CHECK(WAIT(rdma_transport.memory_version(a.segment) != 0));
    CHECK_EQ(rdma_transport.listener_uri(a.listener, &a.uri), TARN_OK);
    buf_append_char(&a.uri, '\0');
    CHECK_EQ(rdma_transport.connect(a.client, a.uri.data, 0, &a.endpoint), TARN_OK);
    open_keys();
}

/* And nothing may be left of it. */
static inline void end(void) {
    fake_hold(false);
    close_endpoint();
    close_keys();
    turn();
    rdma_transport.memory_deregister(&a.segment);
    rdma_transport.listener_close(&a.listener);
    rdma_transport.domain_close(&a.client);
    rdma_transport.domain_close(&a.host);
    CHECK_EQ(rdma_total(&rdma_totals.regions), 0);
    CHECK_EQ(rdma_devices_close(), TARN_OK);
    rdma_options_free();
    munmap(a.memory, SEGMENT_HEADER_SIZE + a.size);
    buf_free(&a.uri);
    buf_free(&a.packed[0]);
    buf_free(&a.packed[1]);
    CHECK_EQ(fake_count_all(), 0);
}

static inline void op_done(struct transport_op *op) {
    struct client_op *c = CONTAINER_OF(op, struct client_op, op);
    c->done++;
}

static inline void op_fill(struct client_op *c, bool put, uint64_t offset, void *data,
                           uint64_t len) {
    *c = (struct client_op){
        .op = {.kind = put ? TRANSPORT_PUT : TRANSPORT_GET,
               .n_parts = 1,
               .n_iov = 1,
               .done = op_done},
        .part = {.extent = {SEGMENT, EPOCH, offset, len}, .sub_length = len, .key = a.key[put]},
        .iov = {data, len},
    };
    c->op.parts = &c->part;
    c->op.iov = &c->iov;
    c->op.crcs = &c->crc;
}

static inline void op_submit(struct client_op *c) {
    struct transport_op *op = &c->op;
    size_t accepted = 0;
    CHECK_EQ(rdma_transport.submit(a.endpoint, &op, 1, &accepted), TARN_OK);
    CHECK_EQ(accepted, 1);
}

static inline tarn_status op_run(struct client_op *c) {
    op_submit(c);
    CHECK(WAIT(c->done == 1));
    return c->op.status;
}

static inline tarn_status move(bool put, uint64_t offset, void *data, uint64_t len) {
    struct client_op c;
    op_fill(&c, put, offset, data, len);
    return op_run(&c);
}

static inline void fill(void *at, uint64_t len, uint64_t seed) {
    struct rng r;
    rng_seed(&r, seed);
    uint8_t *p = at;
    for (uint64_t i = 0; i < len; i++) p[i] = (uint8_t)rng_next(&r);
}

static inline struct rdma_counters *counters(void) {
    return &a.client->counters;
}

/* How many rails are in this state? NULL: any; device NULL: any. */
static inline unsigned count_rails(const char *state, const char *device) {
    struct buf b = {0};
    char want[64], on[64];
    unsigned n = 0;
    snprintf(want, sizeof(want), "state=%s ", state != NULL ? state : "");
    snprintf(on, sizeof(on), "device=%s ", device != NULL ? device : "");
    rdma_work_describe(a.client, &b);
    buf_append_char(&b, '\0');
    char *save = NULL;
    for (char *line = strtok_r(b.data, "\n", &save); line != NULL;
         line = strtok_r(NULL, "\n", &save)) {
        if ((state == NULL || strstr(line, want) != NULL) &&
            (device == NULL || strstr(line, on) != NULL))
            n++;
    }
    buf_free(&b);
    return n;
}

/* The client's rail with that index that is up, NULL: there is none. */
static inline struct rdma_rail *rail_up(const struct transport_key *k) {
    struct rdma_rail *r;
    TAILQ_FOREACH(r, &k->rails, link) {
        if (rdma_rail_ready(r)) return r;
    }
    return NULL;
}

#endif
