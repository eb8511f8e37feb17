/* One connection of the data port, server side: a state machine over a non-blocking socket. No
 * threads, no epoll: its owner says what the socket is ready for and gives it turns. That makes it
 * easy to fuzz, too (tests/fuzz/transport_frame_fuzz.c).
 *
 *   wait for HELLO --> idle --frame--> replies queued --sent--> idle
 *                       |  \--WRITE--> receiving (or draining, once refused) --> reply queued
 *                       |  \--READ of what is not memory--> reads queued (reads.c)
 *                       |                                     --> pieces sent as they come
 *                       +--malformed frame, silence in the middle of one, fence--> closed
 *
 * Memory is bounded: one frame, one batch of replies, TCP_READS_MAX queued reads and a few staging
 * buffers. A peer that does not read its replies is not read from. */
#ifndef TARN_TRANSPORT_TCP_CONN_H
#define TARN_TRANSPORT_TCP_CONN_H

#include <sys/uio.h>

#include "base/clock.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/secure.h"
#include "transport/tcp/stage.h"
#include "transport/transport.h"

#define TCP_REPLIES_MAX  64u
#define TCP_SEGMENTS_MAX 4u
#define TCP_READS_MAX    32u
#define TCP_PIECES_MAX   16u /* under way, ready, and being sent, of one connection */
#define TCP_PIECES_SHORT 2u  /* while others wait for buffers: one goes out, one comes in */
#define TCP_AHEAD_BYTES                                                                            \
    (16ull << 20) /* of these; a disk is at its best with eight large reads under way */
#define TCP_RX_FIRST                                                                               \
    512u /* before the first good grant; what comes makes it grow, not what is announced */
#define TCP_RX_BYTES      (16u << 10)
#define TCP_RX_BUSY_BYTES (64u << 10) /* for who sends many small frames at once */

/* Where a part of a request lies, and by what right. */
struct tcp_range {
    char *addr; /* NULL: to be asked for */
    struct grant grant;
    struct grant_extent extent;
    uint64_t sub_offset, length;
    void *put; /* of a WRITE by a grant WRITE_ONCE: we have begun. NULL: it is none */
};

/* The meta of a reply, until it is sent. */
struct tcp_receipts {
    SLIST_ENTRY(tcp_receipts) link;
    uint8_t data[];
};

/* A READ whose reply waits for pieces, or for one that does. */
struct tcp_read {
    STAILQ_ENTRY(tcp_read) link;
    uint64_t request_id, total, began_ns;
    bool staged;      /* not all of it is memory */
    uint32_t refusal; /* not TCP_OK: all there is to say */
    uint32_t n_parts;
    uint32_t ask_at, put_at; /* parts: the next to ask for, the next to send */
    uint64_t ask_offset, put_offset;
    struct tcp_range parts[];
};

struct tcp_conn {
    uint32_t magic;
    int fd;
    TAILQ_ENTRY(tcp_conn) link;     /* the owner's: all */
    TAILQ_ENTRY(tcp_conn) run_link; /* the owner's: those with work */
    struct tcp_place {              /* the owner's: places.h */
        TAILQ_ENTRY(tcp_conn) link;
        /* under the lock of places */
        enum { TCP_PLACE_NEW, TCP_PLACE_LEAVING, TCP_PLACE_KEPT } state;
        /* the thread's own notes */
        bool kept, arrived;
        unsigned thread;
        uint32_t counted; /* KEPT: as program_drop wants it */
        uint64_t peer;    /* alike for connections of one machine */
    } place;
    bool readable, writable; /* what epoll said, until the socket says EAGAIN */
    bool hello_done, closing;
    bool lingers;     /* closing, but what it still sends is taken, so that it can read why */
    bool pieces_ok;   /* the client has TCP_FEATURE_PIECES */
    uint32_t program; /* as the client's HELLO told it */
    bool bound;       /* to session, by the first good grant */
    uint64_t session;
    uint32_t epoch;   /* of the last good grant */
    uint64_t last_ms; /* bytes moved */
    uint64_t since_ms;
    struct tcp_secure secure;

    uint8_t *rx; /* received, not consumed: [rx_pos, rx_len) */
    uint32_t rx_pos, rx_len, rx_cap, rx_need;
    bool rx_busy; /* the last receive filled it */

    struct {
        bool active;
        bool seal;                   /* TCP_FLAG_SEAL */
        enum tcp_wire_status status; /* not TCP_OK: the rest is drained */
        const struct transport_gate *gate;
        uint64_t request_id, bytes, left, began_ns;
        struct tcp_range *targets;
        uint32_t n_targets, cap_targets, at;
        uint64_t at_offset;
    } in;

    SLIST_HEAD(, tcp_receipts) receipts; /* in out */
    struct iovec *out;                   /* to be sent: [out_at, out_n) */
    uint32_t out_at, out_n, out_cap;
    uint32_t out_segments[TCP_SEGMENTS_MAX]; /* whose memory is in out; more than these: any */
    uint32_t out_n_segments;
    bool out_memory;        /* there is segment memory in out, and by what right: */
    struct grant out_grant; /* the one that ends first */
    struct grant_extent out_extent;
    struct tcp_header replies[TCP_REPLIES_MAX];
    uint32_t n_replies;
    uint32_t out_reads; /* READs of memory that out answers; */
    uint64_t out_ns;    /* when the first was looked at */
    struct {
        struct tcp_hello hello;
        char text[TCP_TEXT_MAX];
    } greeting;

    STAILQ_HEAD(, tcp_read) reads; /* in the order of their replies, all behind what is in out */
    unsigned n_reads, n_read_parts;
    struct tcp_read *asking; /* the first that is not asked for to its end; NULL: none */
    TAILQ_HEAD(tcp_pieces, tcp_piece) pieces, sending; /* in their order; sending: of out */
    unsigned n_pieces;
    uint64_t piece_bytes;      /* of both lists */
    struct tcp_stager *stager; /* of the thread it belongs to, once it had a turn there */
    struct tcp_stage_wait wait;
};

enum tcp_turn {
    TCP_TURN_WAIT,  /* for readable or writable */
    TCP_TURN_MORE,  /* budget used up */
    TCP_TURN_CLOSE, /* destroy it */
};

/* fd is non-blocking; whoever destroys the connection closes it. tls is taken, NULL: it is
 * plain. */
struct tcp_conn *tcp_conn_create(int fd, struct tls_stream *tls, uint64_t now_ms);
void tcp_conn_destroy(struct tcp_conn **conn_p);
/* Of the thread that gives the turns. */
struct tcp_figures {
    struct transport_listener_stats *counters;
    struct transport_times *times;
};
/* Moves about budget bytes. stager: always the same one, NULL: there are no segments but memory.
 * Whatever it collects for c->wait wants a turn. *now_ns is read, and moved on where the clock was
 * asked. */
enum tcp_turn tcp_conn_turn(struct tcp_conn *c, const struct transport_gate *gate,
                            struct tcp_stager *stager, const struct tcp_figures *figures,
                            uint64_t *now_ns, uint64_t budget);
/* Has it bytes of this segment's memory yet to send? */
bool tcp_conn_sends(const struct tcp_conn *c, uint32_t segment);
/* In the middle of something the peer should be quick with? */
bool tcp_conn_midway(const struct tcp_conn *c);
/* Does it hold staging buffers that only its peer can free, by reading? */
bool tcp_conn_holds_pieces(const struct tcp_conn *c);

/* --- between conn.c and reads.c --- */

struct tcp_turn_state {
    const struct transport_gate *gate;
    struct tcp_stager *stager;
    struct transport_listener_stats *counters;
    struct transport_times *times;
    uint64_t now_ms, now_ns, spent;
};
/* Asks the clock, and notes how often that time has passed since began_ns. */
static inline void tcp_time_add(struct tcp_turn_state *t, struct hist *h, uint64_t began_ns,
                                uint32_t times) {
    t->now_ns = clock_mono_ns();
    hist_add_many(h, t->now_ns - began_ns, times);
}

void tcp_out_add(struct tcp_conn *c, const void *data, size_t len);
/* Bytes of this extent's memory were added, by that right. */
void tcp_out_note(struct tcp_conn *c, const struct grant *g, const struct grant_extent *extent);
bool tcp_out_has_room(const struct tcp_conn *c);
struct tcp_header *tcp_reply_add(struct tcp_conn *c, uint64_t request_id, uint32_t status);
/* Of a struct tcp_part, not aligned: its grant's verdict, and whether this connection is that
 * session's. */
uint32_t tcp_admit(struct tcp_conn *c, struct tcp_turn_state *t, const uint8_t *part,
                   enum grant_op op, struct tcp_range *range_p);

bool tcp_reads_have_room(const struct tcp_conn *c);
/* Queues a READ, its refusal if that is what it gets. */
void tcp_reads_add(struct tcp_conn *c, struct tcp_turn_state *t, const struct tcp_header *h,
                   const uint8_t *meta, uint64_t bytes);
/* Asks for pieces as far as it may. */
void tcp_reads_ask(struct tcp_conn *c, struct tcp_turn_state *t);
/* Makes a batch of those that are there. */
void tcp_reads_put(struct tcp_conn *c, struct tcp_turn_state *t);
/* An iovec of out that ended here is with the peer. */
void tcp_reads_sent(struct tcp_conn *c, const char *end);
bool tcp_reads_have(const struct tcp_conn *c, uint32_t segment);
void tcp_reads_drop(struct tcp_conn *c);

#endif
