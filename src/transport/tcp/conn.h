/* One connection of the data port, server side: a state machine over a non-blocking socket. No threads, no epoll: its owner
 * says what the socket is ready for and gives it turns. That makes it easy to fuzz, too (tests/fuzz/frame_fuzz.c).
 *
 *   wait for HELLO --> idle --frame--> replies queued --sent--> idle
 *                       |  \--WRITE--> receiving (or draining, once refused) --> reply queued
 *                       +--malformed frame, silence in the middle of one, fence--> closed
 *
 * Memory is bounded: one frame, one batch of replies. A peer that does not read its replies is not read from. */
#ifndef TARN_TRANSPORT_TCP_CONN_H
#define TARN_TRANSPORT_TCP_CONN_H

#include <sys/queue.h>
#include <sys/uio.h>

#include "transport/tcp/frame.h"
#include "transport/transport.h"

/* One writer, any reader: relaxed atomics. */
struct tcp_counters {
    uint64_t reads, writes, bytes_read, bytes_written;
    uint64_t refused[GRANT_VERDICTS];
    uint64_t bad_frames, timeouts;
};
static inline void tcp_count(uint64_t *counter, uint64_t n) {
    __atomic_store_n(counter, __atomic_load_n(counter, __ATOMIC_RELAXED) + n, __ATOMIC_RELAXED);
}

#define TCP_REPLIES_MAX   64u
#define TCP_RX_BYTES      (16u << 10)
#define TCP_RX_BUSY_BYTES (64u << 10) /* for who sends many small frames at once */

/* Where a part of a WRITE goes, and by what right. */
struct tcp_target {
    char *addr;
    uint64_t length;
    struct grant grant;
    struct grant_extent extent;
};

struct tcp_conn {
    uint32_t magic;
    int fd;
    TAILQ_ENTRY(tcp_conn) link;     /* the owner's: all */
    TAILQ_ENTRY(tcp_conn) run_link; /* the owner's: those with work */
    bool queued;
    bool readable, writable; /* what epoll said, until the socket says EAGAIN */
    bool hello_done, closing;
    bool bound; /* to session, by the first good grant */
    uint64_t session;
    uint32_t epoch;   /* of the last good grant */
    uint64_t last_ms; /* bytes moved */

    uint8_t *rx; /* received, not consumed: [rx_pos, rx_len) */
    uint32_t rx_pos, rx_len, rx_cap, rx_need;
    bool rx_busy; /* the last receive filled it */

    struct {
        bool active;
        enum tcp_wire_status status; /* not TCP_OK: the rest is drained */
        uint64_t request_id, bytes, left;
        struct tcp_target *targets;
        uint32_t n_targets, cap_targets, at;
        uint64_t at_offset;
    } in;

    struct iovec *out; /* to be sent: [out_at, out_n) */
    uint32_t out_at, out_n, out_cap;
    struct tcp_header replies[TCP_REPLIES_MAX];
    uint32_t n_replies;
    struct {
        struct tcp_hello hello;
        char text[TCP_TEXT_MAX];
    } greeting;
};

enum tcp_turn {
    TCP_TURN_WAIT,  /* for readable or writable */
    TCP_TURN_MORE,  /* budget used up */
    TCP_TURN_CLOSE, /* destroy it */
};

/* Takes fd, which is non-blocking. */
struct tcp_conn *tcp_conn_create(int fd, uint64_t now_ms);
void tcp_conn_destroy(struct tcp_conn **conn_p);
/* Moves about budget bytes. */
enum tcp_turn tcp_conn_turn(struct tcp_conn *c, const struct transport_gate *gate,
                            struct tcp_counters *counters, uint64_t now_ms, uint64_t budget);
/* In the middle of something the peer should be quick with? */
bool tcp_conn_midway(const struct tcp_conn *c);

#endif
