/* Transports move bytes between local memory and extents of segments. shm and tcp are built in, rdma is a
 * module: all are one `struct transport_ops`, and one test suite (tests/transport) holds for all of them.
 *
 *   domain      everything a transport owns in this process: devices, threads, event descriptor
 *    +- memory  local memory a passive side serves, or that operations use often
 *    +- listener    the passive side: serves memory to peers whose grants the gate accepts
 *    +- endpoint    the active side: one path to one listener
 *        +- key     remote memory as seen through an endpoint: what an operation names
 *
 *   endpoint:  connect --> (CONNECTING) --> UP --close--> gone          failed: submit answers, operations
 * complete with it operation: submit --> borrowed by the transport --> done() inside progress, exactly once
 * --> the caller's again
 *
 * Four rules make it safe:
 *
 * 1. Callbacks run only inside progress (or endpoint_close, for what it cancels); every accepted operation
 * completes once.
 * 2. A PUT completes only when any later GET would see the bytes; PUTEND comes after that, never before.
 * 3. Buffers and keys stay borrowed until completion; a deadline does not give a buffer back: close the
 * endpoint, await the cancellation, then reuse.
 * 4. Space a peer might still write to is given out again only after its key is revoked or its endpoint is
 * down (listener_fence).
 *
 * Threads: a domain and what hangs on it is used by one thread at a time, except where a function says
 * otherwise. A listener may have threads of its own; the gate's functions are called from them. */
#ifndef TARN_TRANSPORT_TRANSPORT_H
#define TARN_TRANSPORT_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>
#include "base/buf.h"
#include "base/status.h"
#include "transport/grant.h"

#define TRANSPORT_ABI 1u

struct transport_domain;
struct transport_memory;
struct transport_listener;
struct transport_endpoint;
struct transport_key;

/* --- domain --- */

enum transport_flags {
    TRANSPORT_GRANTED =
        1, /* data operations carry grants, which the listener checks; else attaching was checked */
    TRANSPORT_MAP = 2,       /* key_map gives a pointer: leased views, puts in place */
    TRANSPORT_STREAMS = 4,   /* more endpoints to one listener make a large transfer faster */
    TRANSPORT_ONE_SIDED = 8, /* the listener's CPU does nothing */
    TRANSPORT_REMOTE = 16,   /* reaches other machines */
};

struct transport_limits {
    uint32_t flags;
    size_t max_parts;       /* per operation */
    uint64_t max_bytes;     /* per operation */
    size_t max_outstanding; /* operations per endpoint; submit accepts no more */
    uint64_t crc_chunk;     /* bytes that are checked while still in cache; 0: no matter */
};

struct transport_domain_config {
    const char *device; /* NULL: the transport's choice */
};

/* --- memory --- */

struct transport_memory_config {
    void *addr;
    uint64_t length;
    int fd, fd_read; /* descriptors of the memory file, -1: none. Transports that hand out memory need them.
                      * They map the segment header first: addr is at header_size of the file */
    uint64_t header_size; /* bytes of segment header in front of addr; 0: plain memory, not a segment */
    uint32_t segment;     /* id, with header_size */
    bool remote;          /* peers reach it; else it is only for our own operations */
};

/* --- passive side --- */

/* What a listener asks its owner. Called from the listener's threads; must be thread-safe and must not block.
 */
struct transport_gate {
    void *arg;
    /* Is this transfer allowed, and where is it? *addr_p is the first byte of the sub-range. g_p as from
     * grant_check. */
    enum grant_verdict (*check)(void *arg, const uint8_t grant[GRANT_SIZE], const struct grant_extent *extent,
                                enum grant_op want, uint64_t sub_offset, uint64_t sub_length,
                                struct grant *g_p, void **addr_p);
    /* Is a grant that was accepted earlier still good? Asked again before every receive into segment memory.
     */
    enum grant_verdict (*recheck)(void *arg, const struct grant *g, const struct grant_extent *extent);
};

struct transport_listen_config {
    /* "tcp://127.0.0.1:0", "shm:///run/tarn.sock". tcp takes several: port 0 means any, for later ones that
     * of the first; a host of "*" or "::*" is every address of its family, and one that starts with "-" may
     * fail. */
    const char *const *uris;
    size_t n_uris;
    unsigned threads;         /* >= 1; transports without data threads ignore it */
    unsigned max_connections; /* 0: the transport's default */
    uint64_t idle_timeout_ms; /* silence in the middle of a frame; 0: 30 s */
    unsigned mode;            /* permissions of a unix socket; 0: 0600 */
    struct transport_gate gate;
};

/* Counters since listen or the last reset. */
struct transport_listener_stats {
    uint64_t connections, connections_total, connections_refused; /* the first is a gauge */
    uint64_t attaches_total;                                      /* memory handed out */
    uint64_t reads, writes, bytes_read, bytes_written;
    uint64_t refused[GRANT_VERDICTS];
    uint64_t bad_frames, timeouts;
};

/* --- active side --- */

/* What a key is made from: what SEGMENT INFO said. */
struct transport_key_config {
    uint32_t segment, segment_epoch;
    uint64_t size; /* advertised bytes */
    bool writable;
    const void
        *packed; /* from key_pack, or GRANT_SIZE bytes of attach grant for transports that hand out memory */
    size_t packed_len;
    uint64_t deadline_boot_ms; /* for those that must ask the peer; 0: none */
};

enum transport_kind { TRANSPORT_GET, TRANSPORT_PUT };

struct transport_part {
    struct grant_extent extent;
    const uint8_t *grant; /* GRANT_SIZE bytes, NULL when the transport is not TRANSPORT_GRANTED */
    uint64_t sub_offset, sub_length;
    struct transport_key *key; /* of this extent's segment, on the endpoint that takes the operation */
};

struct transport_op {
    enum transport_kind kind;
    const struct transport_part *parts;
    size_t n_parts;
    const struct iovec *iov; /* holds exactly the sum of the sub_lengths; read only for a PUT */
    size_t n_iov;
    /* CRC-32C of what moves, computed in the same pass: one for the first crc_first bytes, then one for each
     * crc_block, the last one shorter. crc_block 0: a single one. NULL: none. */
    uint32_t *crcs;
    uint64_t crc_first, crc_block;
    /* Called once. op may be submitted again, or freed, in it. */
    void (*done)(struct transport_op *op);
    void *arg;
    /* Result. TARN_OK; TARN_EPERM, TARN_EGRANT_EXPIRED, TARN_ESTALE: refused by the listener. TARN_ESTALE
     * also when the epochs that a GET reads after its last byte are not the key's. TARN_ECANCELED: the
     * endpoint was closed. TARN_ECLOSED, TARN_ETIMEOUT, TARN_EPROTO: the path failed; whether the bytes of a
     * PUT arrived is unknown. */
    tarn_status status;
    /* The transport's own while it has the operation. */
    struct transport_op *next;
    uint64_t scratch[10];
};

/* --- the table: every function is required --- */

struct transport_ops {
    uint32_t abi;       /* TRANSPORT_ABI */
    const char *scheme; /* "tcp" */

    tarn_status (*domain_open)(const struct transport_domain_config *config,
                               struct transport_domain **domain_p);
    void (*domain_query)(const struct transport_domain *d, struct transport_limits *limits_p);
    /* Everything that hangs on it must be gone. Nulls. */
    void (*domain_close)(struct transport_domain **domain_p);

    tarn_status (*memory_register)(struct transport_domain *d, const struct transport_memory_config *config,
                                   struct transport_memory **memory_p);
    /* Appends what a peer needs to reach the memory; may be nothing. */
    tarn_status (*key_pack)(struct transport_memory *m, bool writable, struct buf *out);
    /* May block until the config's deadline where the peer must be asked. */
    tarn_status (*key_unpack)(struct transport_endpoint *e, const struct transport_key_config *config,
                              struct transport_key **key_p);
    /* Pointer into the remote memory, NULL when the transport is not TRANSPORT_MAP or the range is not
     * inside. */
    void *(*key_map)(struct transport_key *k, uint64_t offset, uint64_t length);
    /* Do the epochs in the segment's header still have the values they had at key_unpack? TARN_OK where
     * nobody can tell from here, because the listener checks; else TARN_ESTALE. */
    tarn_status (*key_check)(struct transport_key *k);
    /* Keys may outlive their endpoint; what they map stays mapped. */
    void (*key_close)(struct transport_key **key_p);
    void (*memory_deregister)(struct transport_memory **memory_p);

    tarn_status (*listen)(struct transport_domain *d, const struct transport_listen_config *config,
                          struct transport_listener **listener_p);
    uint16_t (*listener_port)(const struct transport_listener *l); /* 0: has none */
    void (*listener_stats)(const struct transport_listener *l, struct transport_listener_stats *stats_p);
    void (*listener_stats_reset)(struct transport_listener *l);
    /* Cuts off the peers of a session, or with session 0 those whose grants are older than below_epoch. The
     * gate must refuse them already. TARN_OK: none of them can write any more. TARN_EAGAIN: ask again after
     * the domain's event; asking again is how one waits. Never blocks. */
    tarn_status (*listener_fence)(struct transport_listener *l, uint64_t session, uint32_t below_epoch);
    void (*listener_close)(struct transport_listener **listener_p);

    /* Starts to connect; blocks for name resolution only. Operations may be submitted at once. Past the
     * deadline (CLOCK_BOOTTIME ms, 0: 5 s from now) the connection has failed. */
    tarn_status (*connect)(struct transport_domain *d, const char *uri, uint64_t deadline_boot_ms,
                           struct transport_endpoint **endpoint_p);
    /* TARN_OK: up. TARN_EAGAIN: still connecting. Else why it failed; close it then. */
    tarn_status (*endpoint_status)(const struct transport_endpoint *e);
    /* Operations in flight complete with TARN_ECANCELED, at once or in later progress; *endpoint_p is NULL
     * only when none is left, so: close, progress, close until it is. Never from inside done(). */
    void (*endpoint_close)(struct transport_endpoint **endpoint_p);

    /* Takes the first *accepted_p operations, in order; fewer than n when max_outstanding is reached. Does
     * not block. On an error none was taken. */
    tarn_status (*submit)(struct transport_endpoint *e, struct transport_op *const *ops, size_t n,
                          size_t *accepted_p);
    /* Moves bytes, calls back. At most about budget bytes, at least something. Returns how many operations
     * completed. */
    size_t (*progress)(struct transport_domain *d, uint64_t budget);
    /* TARN_OK: *fd_p turns readable when progress has something to do. TARN_EAGAIN: it has something now.
     * Serves both sides: a listener's owner polls the same descriptor. */
    tarn_status (*arm)(struct transport_domain *d, int *fd_p);
};

/* --- registry --- */

/* Asserts that every pointer is there and that the scheme is new. Not thread-safe: at start, or from the
 * module loader. */
void transport_register(const struct transport_ops *ops);
/* By scheme ("tcp") or URI ("tcp://..."). NULL: not built in, not loaded. */
const struct transport_ops *transport_find(const char *scheme_or_uri);
/* shm and tcp. Idempotent, thread-safe. */
void transport_register_builtin(void);

extern const struct transport_ops transport_tcp;
extern const struct transport_ops transport_shm;

#endif
