/* The data port's server side, fed with whatever: a connection over a socketpair, a gate over a little memory. The first byte
 * of the input says how it is cut into pieces; the rest is what a client sends, HELLO included or not. Grants in the seeds are
 * good under a key of zeroes, so that mutations get past the MAC often enough. */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/log.h"
#include "transport/tcp/conn.h"

#define MEMORY_BYTES (64u << 10)

static char memory[MEMORY_BYTES];

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static enum grant_verdict check(void *arg, const uint8_t grant[GRANT_SIZE], const struct grant_extent *x,
                                enum grant_op want, uint64_t sub_offset, uint64_t sub_length,
                                struct grant *g_p, void **addr_p) {
    (void)arg;
    static const uint8_t key[GRANT_KEY_SIZE];
    enum grant_verdict v = grant_check(key, grant, x, want, sub_offset, sub_length, 1, 1, 0, g_p);
    if (v == GRANT_BAD_MAC &&
        (grant[39] & 1) != 0) { /* half of the forged ones pass: what follows needs testing, too */
        *g_p = (struct grant){want, 1, grant[8], 1};
        bool inside = sub_offset <= x->length && sub_length <= x->length - sub_offset;
        v = inside ? GRANT_OK : GRANT_BAD_RANGE;
    }
    if (v != GRANT_OK) return v;
    if (x->offset > MEMORY_BYTES || x->length > MEMORY_BYTES - x->offset) return GRANT_BAD_RANGE;
    *addr_p = memory + x->offset + sub_offset;
    return GRANT_OK;
}

static enum grant_verdict recheck(void *arg, const struct grant *g, const struct grant_extent *x) {
    (void)g, (void)x;
    return ++*(unsigned *)arg % 7 == 0 ? GRANT_EXPIRED : GRANT_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    log_set_level(LOG_LEVEL_NOTHING);
    int fds[2];
    if (size < 1 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0) return 0;
    unsigned calls = data[0];
    size_t piece = 1 + (size_t)data[0] * 37, at = 1;
    struct transport_gate gate = {&calls, check, recheck};
    struct tcp_counters counters = {0};
    struct tcp_conn *c = tcp_conn_create(fds[0], 0);
    char sink[4096];
    enum tcp_turn turn = TCP_TURN_WAIT;
    for (int rounds = 0; rounds < 10000 && turn != TCP_TURN_CLOSE; rounds++) {
        if (at < size) {
            ssize_t n = send(fds[1], data + at, piece < size - at ? piece : size - at, MSG_NOSIGNAL);
            if (n > 0) at += (size_t)n;
            if (at == size) shutdown(fds[1], SHUT_WR);
        } else if (turn == TCP_TURN_WAIT && recv(fds[1], sink, 1, MSG_PEEK) < 0 && rounds > 100) {
            break;
        }
        while (recv(fds[1], sink, sizeof(sink), 0) > 0) {
        }
        c->readable = c->writable = true;
        turn = tcp_conn_turn(c, &gate, &counters, (uint64_t)rounds, 4096);
        TARN_ASSERT(c->rx_cap <= sizeof(struct tcp_header) + TCP_PARTS_MAX * sizeof(struct tcp_part));
        TARN_ASSERT(c->out_n <= 1024 + TCP_PARTS_MAX + 1);
    }
    tcp_conn_destroy(&c);
    close(fds[1]);
    return 0;
}
