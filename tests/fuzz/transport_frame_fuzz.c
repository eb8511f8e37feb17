/* The data port's server side, fed with whatever: a connection over a socketpair, a gate over a
 * little memory and, as segment 2, over a disk that is slow, busy and broken by turns. The first
 * byte of the input says how it is cut into pieces; the rest is what a client sends, HELLO included
 * or not. Grants in the seeds are good under a key of zeroes, so that mutations get past the MAC
 * often enough. */
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/log.h"
#include "transport/tcp/conn.h"

#define MEMORY_BYTES (64u << 10)
#define DISK         2u
#define LATER_MAX    64u

static char memory[MEMORY_BYTES];

struct later {
    void (*done)(void *done_arg, tarn_status status);
    void *done_arg;
};

static struct world {
    unsigned calls, asks;
    struct later later[LATER_MAX];
    unsigned n_later;
    bool wanted;      /* the connection was named */
    unsigned writers; /* by grants for one put */
} world;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static enum grant_verdict check(void *arg, const uint8_t grant[GRANT_SIZE],
                                const struct grant_extent *x, enum grant_op want,
                                uint64_t sub_offset, uint64_t sub_length, struct grant *g_p,
                                void **addr_p) {
    (void)arg;
    static const uint8_t key[GRANT_KEY_SIZE];
    enum grant_verdict v = grant_check(key, grant, x, want, sub_offset, sub_length, 1, 1, 0, g_p);
    if (v == GRANT_BAD_MAC &&
        (grant[39] & 1) != 0) { /* half of the forged ones pass: what follows needs testing, too */
        bool once = want == GRANT_WRITE && (grant[0] & 1) != 0;
        *g_p = (struct grant){once ? GRANT_WRITE_ONCE : want, 1, grant[8], 1, 0};
        bool inside = sub_offset <= x->length && sub_length <= x->length - sub_offset;
        v = inside ? GRANT_OK : GRANT_BAD_RANGE;
    }
    if (v != GRANT_OK) return v;
    if (x->offset > MEMORY_BYTES || x->length > MEMORY_BYTES - x->offset) return GRANT_BAD_RANGE;
    *addr_p = x->segment != DISK ? memory + x->offset + sub_offset : NULL;
    return GRANT_OK;
}

static enum grant_verdict recheck(void *arg, const struct grant *g, const struct grant_extent *x) {
    (void)g, (void)x;
    return ++((struct world *)arg)->calls % 7 == 0 ? GRANT_EXPIRED : GRANT_OK;
}

static enum grant_verdict put_begin(void *arg, const struct grant *g, const struct grant_extent *x,
                                    void **put_p) {
    struct world *w = arg;
    (void)x;
    TARN_ASSERT(g->op == GRANT_WRITE_ONCE);
    if (++w->calls % 5 == 0) return w->calls % 2 == 0 ? GRANT_OVER : GRANT_LATER;
    w->writers++;
    *put_p = w;
    return GRANT_OK;
}

static void put_end(void *arg, void *put, uint64_t offset, uint64_t length) {
    struct world *w = arg;
    (void)offset, (void)length;
    TARN_ASSERT(put == w && w->writers > 0);
    w->writers--;
}

static enum grant_verdict put_seal(void *arg, const struct grant *g, const struct grant_extent *x,
                                   uint8_t receipt[GRANT_RECEIPT_SIZE]) {
    struct world *w = arg;
    (void)x;
    TARN_ASSERT(g->op == GRANT_WRITE_ONCE && w->writers == 0);
    memset(receipt, 1, GRANT_RECEIPT_SIZE);
    return ++w->calls % 6 == 0 ? GRANT_LATER : GRANT_OK;
}

static uint64_t mark(void *arg, const struct grant_extent *extent, uint64_t offset,
                     uint64_t length) {
    return offset % 3;
}

static tarn_status stage(void *arg, const struct grant_extent *x, uint64_t offset, uint64_t length,
                         void *buffer, void (*done)(void *done_arg, tarn_status status),
                         void *done_arg) {
    struct world *w = arg;
    TARN_ASSERT(length > 0 && length <= TRANSPORT_STAGE_PIECE && (uintptr_t)buffer % 4096 == 0);
    TARN_ASSERT(offset <= x->length && length <= x->length - offset);
    memset(buffer, 1, length);
    switch (++w->asks % 9) {
    case 0: return TARN_EAGAIN;
    case 1: return TARN_ENOTFOUND;
    case 2:
    case 3: done(done_arg, w->asks % 2 == 0 ? TARN_EIO : TARN_OK); return TARN_OK;
    default:
        TARN_ASSERT(w->n_later < LATER_MAX);
        w->later[w->n_later++] = (struct later){done, done_arg};
        return TARN_OK;
    }
}

static void finish_one(unsigned i) {
    struct later l = world.later[i];
    world.later[i] = world.later[--world.n_later];
    l.done(l.done_arg, world.calls % 11 == 0 ? TARN_EIO : TARN_OK);
}

static void named(void *arg, struct tcp_stage_wait *owner) {
    (void)arg, (void)owner;
    world.wanted = true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    log_set_level(LOG_LEVEL_NOTHING);
    int fds[2];
    if (size < 1 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0)
        return 0;
    world = (struct world){.calls = data[0], .asks = data[0]};
    size_t piece = 1 + (size_t)data[0] * 37, at = 1;
    struct transport_gate gate = {.arg = &world,
                                  .check = check,
                                  .recheck = recheck,
                                  .put_begin = put_begin,
                                  .put_end = put_end,
                                  .put_seal = put_seal,
                                  .stage = stage,
                                  .mark = mark};
    struct transport_listener_stats counters = {0};
    struct transport_times times = {0};
    struct tcp_figures figures = {&counters, &times};
    struct tcp_stage_pool pool;
    struct tcp_stager stager;
    int wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    tcp_stage_pool_init(&pool, (1 + data[0] % 5) * TRANSPORT_STAGE_PIECE);
    tcp_stager_init(&stager, &pool, &gate, wake_fd, &counters);
    struct tcp_conn *c = tcp_conn_create(fds[0], NULL, 0);
    char sink[4096];
    enum tcp_turn turn = TCP_TURN_WAIT;
    for (unsigned rounds = 0; rounds < 10000 && turn != TCP_TURN_CLOSE; rounds++) {
        if (at < size) {
            ssize_t n =
                send(fds[1], data + at, piece < size - at ? piece : size - at, MSG_NOSIGNAL);
            if (n > 0) at += (size_t)n;
            if (at == size && data[0] % 2 != 0) shutdown(fds[1], SHUT_WR);
        } else if (turn == TCP_TURN_WAIT && recv(fds[1], sink, 1, MSG_PEEK) < 0 && rounds > 100 &&
                   world.n_later == 0 && !world.wanted) {
            break;
        }
        while (recv(fds[1], sink, sizeof(sink), 0) > 0) {
        }
        if (world.n_later > 0 && rounds % 3 == 0) finish_one(rounds % world.n_later);
        world.wanted = false;
        tcp_stager_collect(&stager, rounds, named, NULL);
        c->readable = c->writable = true;
        uint64_t now_ns = clock_mono_ns();
        turn = tcp_conn_turn(c, &gate, &stager, &figures, &now_ns, 4096);
        tcp_stager_settle(&stager, rounds);
        TARN_ASSERT(c->rx_cap <=
                    sizeof(struct tcp_header) + TCP_PARTS_MAX * sizeof(struct tcp_part));
        TARN_ASSERT(c->out_n <= 1024 + TCP_PARTS_MAX + 1);
        TARN_ASSERT(c->n_reads <= TCP_READS_MAX && c->n_read_parts <= 2 * TCP_PARTS_MAX);
        TARN_ASSERT(tcp_stage_pool_used(&pool) <= pool.max * TRANSPORT_STAGE_PIECE);
    }
    /* Whatever came to its end, what was asked for is answered or given up. */
    tcp_conn_destroy(&c);
    TARN_ASSERT(world.writers == 0);
    while (world.n_later > 0) finish_one(0);
    tcp_stager_deinit(&stager);
    TARN_ASSERT(tcp_stage_pool_used(&pool) == 0);
    tcp_stage_pool_deinit(&pool);
    close(wake_fd);
    close(fds[0]);
    close(fds[1]);
    return 0;
}
