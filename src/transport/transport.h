/* Transports move bytes between local memory and extents of segments. shm and tcp are built in,
 * rdma is a module: all are one `struct transport_ops`, and one test suite (tests/transport) holds
 * for all of them.
 *
 *   domain      everything a transport owns in this process: devices, threads, event descriptor
 *    +- memory  local memory a passive side serves, or that operations use often
 *    +- listener    the passive side: serves memory to peers whose grants the gate accepts
 *    +- endpoint    the active side: one path to one listener
 *        +- key     remote memory as seen through an endpoint: what an operation names
 *
 *   endpoint:   connect --> (CONNECTING) --> UP --close--> gone
 *                                  \--> failed: submit answers, operations complete with it
 *   operation:  submit --> borrowed by the transport
 *                 --> done() inside progress, exactly once --> the caller's again
 *
 * Four rules make it safe:
 *
 * 1. Callbacks run only inside progress (or endpoint_close, for what it cancels); every accepted
 *    operation completes once.
 * 2. A PUT completes only when any later GET would see the bytes; PUTEND comes after that, never
 *    before.
 * 3. Buffers and keys stay borrowed until completion; a deadline does not give a buffer back: close
 *    the endpoint, await the cancellation, then reuse.
 * 4. Space a peer might still write to is given out again only after its key is revoked or its
 *    endpoint is down (listener_fence).
 *
 * Threads: a domain and what hangs on it is used by one thread at a time, except where a function
 * says otherwise. A listener may have threads of its own; the gate's functions are called from
 * them. */
#ifndef TARN_TRANSPORT_TRANSPORT_H
#define TARN_TRANSPORT_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>
#include "base/buf.h"
#include "base/hist.h"
#include "base/iov.h"
#include "base/program.h"
#include "base/queue.h"
#include "base/status.h"
#include "transport/grant.h"

#define TRANSPORT_ABI            10u
#define TRANSPORTS_MAX           8u  /* schemes that a process ever has */
#define TRANSPORT_SCHEME_MAX     15u /* bytes, of a-z */
#define TRANSPORT_SEAL_PARTS_MAX 512u

struct transport_domain;
struct transport_memory;
struct transport_listener;
struct transport_endpoint;
struct transport_key;

/* --- what a transport is --- */

/* Who is above the seam decides by these, never by a name. */
enum transport_flags {
    /* data operations carry grants, which the listener checks; else attaching was checked */
    TRANSPORT_GRANTED = 1,
    TRANSPORT_MAP = 2,     /* key_map gives a pointer: leased views, puts in place */
    TRANSPORT_STREAMS = 4, /* more endpoints to one listener make a large transfer faster */
    TRANSPORT_REMOTE = 8,  /* reaches other machines */
    /* operations on memory that was registered are faster than on other memory */
    TRANSPORT_REGISTERS = 16,
    /* A listener knows its own URI, and key_pack what else peers need (SEGMENT KEYS): hosts serve
     * by it where it is loaded, and go on without where it fails. Else a host is told where to
     * listen, and who configured that tells its peers. */
    TRANSPORT_ANNOUNCES = 32,
};

/* --- domain --- */

/* How connections are secured, where a transport can do so. Borrowed, like what it points to, by
 * whom it was given to. */
struct tls_context;
struct transport_tls {
    void *arg;
    /* What the next connection is made with; the caller puts it. NULL: there is none at the moment.
     * From any thread. On the active side the host of the URI is what certificates must be for,
     * unless the context says otherwise. */
    struct tls_context *(*context)(void *arg);
    /* From progress: a connection was not made or was lost because of TLS. NULL: nobody wants to
     * know. */
    void (*failed)(void *arg, const char *uri, const char *why);
};

struct transport_domain_config {
    const struct transport_tls *tls; /* for connections to tcps://; NULL: there are none */
};

/* --- memory --- */

struct transport_memory_config {
    void *addr;
    uint64_t length;
    /* descriptors of the memory file, -1: none. Transports that hand out memory need them. They map
     * the segment header first: addr is at header_size of the file */
    int fd, fd_read;
    /* bytes of segment header in front of addr; 0: plain memory, not a segment */
    uint64_t header_size;
    uint32_t segment; /* id, with header_size */
    bool remote;      /* peers reach it; else it is only for our own operations */
    /* fd is a dma-buf: memory of a device, length bytes from dmabuf_offset on. addr is what
     * operations call it by; the CPU does not touch it. TARN_ENOTSUP where the transport cannot. */
    bool dmabuf;
    uint64_t dmabuf_offset;
    /* Not 0: other domains of this process may register the very same memory under the same number,
     * which is never given to another: they can share what registering costs. */
    uint64_t identity;
};

/* --- passive side --- */

/* What a listener asks its owner. Called from the listener's threads; must be thread-safe and must
 * not block.
 */
struct transport_gate {
    void *arg;
    /* Is this transfer allowed, and where is it? *addr_p is the first byte of the sub-range. g_p as
     * from grant_check. */
    enum grant_verdict (*check)(void *arg, const uint8_t grant[GRANT_SIZE],
                                const struct grant_extent *extent, enum grant_op want,
                                uint64_t sub_offset, uint64_t sub_length, struct grant *g_p,
                                void **addr_p);
    /* Is a grant that was accepted earlier still good? Asked again before every receive into
     * segment memory.
     */
    enum grant_verdict (*recheck)(void *arg, const struct grant *g,
                                  const struct grant_extent *extent);
    /* Grants WRITE_ONCE. begin: somebody is about to receive by it: GRANT_OK and *put_p, else why
     * not. end: nothing more will be received, and `length` bytes from `offset` of the extent on
     * are there (0: none that counts). seal: it writes nothing from now on: GRANT_OK and the host's
     * word on it, also when it was sealed before; GRANT_LATER: somebody is receiving. NULL: such
     * grants are refused. */
    enum grant_verdict (*put_begin)(void *arg, const struct grant *g,
                                    const struct grant_extent *extent, void **put_p);
    void (*put_end)(void *arg, void *put, uint64_t offset, uint64_t length);
    enum grant_verdict (*put_seal)(void *arg, const struct grant *g,
                                   const struct grant_extent *extent,
                                   uint8_t receipt[GRANT_RECEIPT_SIZE]);
    /* For segments that are not memory: check says GRANT_OK with *addr_p NULL, and the bytes are
     * asked for here, in pieces of at most TRANSPORT_STAGE_PIECE into buffers of the listener's,
     * which start at a page; offset is inside the extent. done must be called, once, from any
     * thread, also from inside: the listener does not close before. TARN_EAGAIN: again a little
     * later. Other errors: done is not called. TARN_ENOTFOUND: the bytes are not there any more.
     * NULL: there are no such segments. */
    tarn_status (*stage)(void *arg, const struct grant_extent *extent, uint64_t offset,
                         uint64_t length, void *buffer,
                         void (*done)(void *done_arg, tarn_status status), void *done_arg);
    /* Of such bytes: as long as this says the same, so does what is read there. So what was read
     * after it was asked may be given to others, too. 0: nobody knows, or they are not there. NULL:
     * always 0. */
    uint64_t (*mark)(void *arg, const struct grant_extent *extent, uint64_t offset,
                     uint64_t length);
};
#define TRANSPORT_STAGE_PIECE (UINT64_C(1) << 20)

struct transport_listen_config {
    /* "tcp://127.0.0.1:0", "tcps://...", "shm:///run/tarn.sock". tcp takes several, all with TLS or
     * none: port 0 means any, for later ones that of the first; a host of "*" or "::*" is every
     * address of its family, and one that starts with "-" may fail. */
    const char *const *uris;
    size_t n_uris;
    unsigned threads;         /* >= 1; transports without data threads ignore it */
    unsigned max_connections; /* 0: the transport's default */
    /* silence in the middle of a frame, or time until the first good grant; 0: 30 s */
    uint64_t idle_timeout_ms;
    uint64_t staging_bytes; /* bound of the buffers for gate.stage; 0: 64 MiB; at least one piece */
    uint64_t busy_poll_us;  /* of data threads before they sleep, at most (base/spin.h); 0: none */
    unsigned mode;          /* permissions of a unix socket; 0: 0600 */
    struct transport_gate gate;
    const struct transport_tls *tls; /* with URIs of tcps://, which speak nothing else */
};

/* Counters since listen; all are uint64_t. */
struct transport_listener_stats {
    uint64_t connections, connections_total, connections_refused; /* the first is a gauge */
    uint64_t attaches_total;                                      /* memory handed out */
    uint64_t reads, writes, bytes_read, bytes_written;
    uint64_t refused[GRANT_VERDICTS];
    uint64_t bad_frames, timeouts;
    /* Reads by way of gate.stage, all of them counted in reads, too; used is a gauge, waits: for a
     * buffer, shared: pieces that somebody else had asked for. */
    uint64_t staged_reads, staged_bytes, staged_failures, staging_used, staging_waits,
        staging_shared;
    /* Peers that have shown no good grant yet (a gauge), and those of them that made room for
     * others. */
    uint64_t connections_new, connections_ousted;
};
/* How long the listener had requests in hand, in nanoseconds, since listen: from when it looked at
 * one until its last byte was with the kernel (reads), or its last byte had come (writes). */
struct transport_times {
    struct hist read, write;
    struct hist staged; /* reads by way of gate.stage, until the last piece is handed on */
};
static inline void transport_times_add(struct transport_times *sum,
                                       const struct transport_times *more) {
    hist_merge(&sum->read, &more->read);
    hist_merge(&sum->write, &more->write);
    hist_merge(&sum->staged, &more->staged);
}
/* One writer, any reader. */
static inline void transport_count(uint64_t *counter, uint64_t n) {
    __atomic_store_n(counter, __atomic_load_n(counter, __ATOMIC_RELAXED) + n, __ATOMIC_RELAXED);
}
static inline void transport_stats_add(struct transport_listener_stats *sum,
                                       const struct transport_listener_stats *more) {
    uint64_t *to = (uint64_t *)sum;
    const uint64_t *from = (const uint64_t *)more;
    for (size_t i = 0; i < sizeof(*sum) / sizeof(*to); i++)
        to[i] += __atomic_load_n(&from[i], __ATOMIC_RELAXED);
}

/* Who is to be cut off. The gate must refuse them already. */
struct transport_fence {
    enum {
        TRANSPORT_FENCE_SESSION, /* peers of this session */
        TRANSPORT_FENCE_BEFORE,  /* peers whose grants are older than this master epoch */
        TRANSPORT_FENCE_SEGMENT, /* the listener's own threads, from this segment's memory */
    } kind;
    uint64_t session;
    uint32_t master_epoch;
    uint32_t segment;
    uint64_t ticket; /* tells fences apart that are otherwise the same */
};
static inline bool transport_fence_same(const struct transport_fence *a,
                                        const struct transport_fence *b) {
    return a->kind == b->kind && a->session == b->session && a->master_epoch == b->master_epoch &&
           a->segment == b->segment && a->ticket == b->ticket;
}
/* Is it for who came by a grant of that session and epoch? */
static inline bool transport_fence_hits(const struct transport_fence *f, uint64_t session,
                                        uint32_t master_epoch) {
    return (f->kind == TRANSPORT_FENCE_SESSION && session == f->session) ||
           (f->kind == TRANSPORT_FENCE_BEFORE && master_epoch < f->master_epoch);
}

/* --- active side --- */

/* What a key is made from: what SEGMENT INFO said. */
struct transport_key_config {
    uint32_t segment, segment_epoch;
    uint64_t size; /* advertised bytes */
    /* SEGMENT_CONTENT_SIZE bytes that the memory's header must have; NULL: any */
    const uint8_t *content;
    bool writable;
    /* GRANT_SIZE bytes of attach grant, for writable or not, as above; NULL: none */
    const uint8_t *grant;
    const void *packed; /* what key_pack appended over there; may be nothing */
    size_t packed_len;
    uint64_t deadline_boot_ms; /* for those that must ask the peer; 0: none */
};

enum transport_kind { TRANSPORT_GET, TRANSPORT_PUT };

struct transport_part {
    struct grant_extent extent;
    const uint8_t *grant; /* GRANT_SIZE bytes, NULL when the transport is not TRANSPORT_GRANTED */
    uint64_t sub_offset, sub_length;
    /* of this extent's segment, on the endpoint that takes the operation */
    struct transport_key *key;
};

struct transport_op {
    enum transport_kind kind;
    const struct transport_part *parts;
    size_t n_parts;
    const struct iovec *iov; /* holds exactly the sum of the sub_lengths; read only for a PUT */
    size_t n_iov;
    /* CRC-32C of what moves, computed in the same pass: one for the first crc_first bytes, then one
     * for each crc_block, the last one shorter. crc_block 0: a single one. NULL: none. */
    uint32_t *crcs;
    uint64_t crc_first, crc_block;
    /* PUT: not NULL: the grants are sealed behind the bytes, and here goes the host's word on each
     * part (GRANT_RECEIPT_SIZE bytes), where the transport is TRANSPORT_GRANTED. Then there are at
     * most TRANSPORT_SEAL_PARTS_MAX parts. */
    uint8_t *receipts;
    /* Called once. op may be submitted again, or freed, in it. */
    void (*done)(struct transport_op *op);
    void *arg;
    /* Result. TARN_OK; TARN_EPERM, TARN_EGRANT_EXPIRED, TARN_ESTALE: refused by the listener.
     * TARN_ESTALE also when the epochs that a GET reads after its last byte are not the key's.
     * TARN_ECANCELED: the endpoint was closed. TARN_ECLOSED (by the peer, or never up), TARN_EIO,
     * TARN_ETIMEOUT, TARN_EPROTO: the path failed; whether the bytes of a PUT arrived is
     * unknown. */
    tarn_status status;
    /* Result of a PUT that failed. true: not a byte of it will get to the peer's memory from now on
     * (it was refused, never sent, or the peer has closed the connection). false: some may still be
     * on their way. */
    bool settled;
    /* Where a peer has to answer: one that moves no byte for so long while this is what it owes has
     * failed (TARN_ETIMEOUT). 0: the transport's own idea. */
    uint64_t patience_ms;
    /* The transport's own while it has the operation. */
    STAILQ_ENTRY(transport_op) link;
    uint64_t scratch[10];
};

/* --- the table: every function is required, unless its comment names what has none --- */

struct transport_ops {
    uint32_t abi; /* TRANSPORT_ABI */
    uint32_t flags;
    uint32_t cost;             /* the way that costs least is taken: shm 10, rdma 20, tcp 30 */
    const char *scheme;        /* "tcp" */
    const char *secure_scheme; /* "tcps": the same transport, over TLS. NULL: it has none */

    tarn_status (*domain_open)(const struct transport_domain_config *config,
                               struct transport_domain **domain_p);
    /* Everything that hangs on it must be gone. Nulls. */
    void (*domain_close)(struct transport_domain **domain_p);

    /* This and memory_deregister: none of those that are GRANTED and announce nothing, which ask
     * their gate where memory is. */
    tarn_status (*memory_register)(struct transport_domain *d,
                                   const struct transport_memory_config *config,
                                   struct transport_memory **memory_p);
    /* This, memory_version and listener_uri: of those that are ANNOUNCES only. Appends what a peer
     * needs to reach the memory, TRANSPORT_PACKED_MAX bytes at most; may be nothing. TARN_EAGAIN:
     * it cannot be reached yet, or not at the moment; memory_version changes when it can. */
    tarn_status (*key_pack)(struct transport_memory *m, bool writable, struct buf *out);
    /* Changes whenever key_pack would say something else; the domain's event tells that it is worth
     * a look. 0: key_pack has nothing to say now. */
    uint64_t (*memory_version)(const struct transport_memory *m);
    /* Keys: none of those that are GRANTED. May block until the config's deadline where the peer
     * must be asked. What packed says is not trusted: TARN_EPROTO. */
    tarn_status (*key_unpack)(struct transport_endpoint *e,
                              const struct transport_key_config *config,
                              struct transport_key **key_p);
    /* Of those that are MAP only: a pointer into the remote memory, NULL when the range is not
     * inside. */
    void *(*key_map)(struct transport_key *k, uint64_t offset, uint64_t length);
    /* Do the epochs in the segment's header still have the values they had at key_unpack? TARN_OK;
     * else TARN_ESTALE. */
    tarn_status (*key_check)(struct transport_key *k);
    /* Keys may outlive their endpoint; what they map stays mapped. */
    void (*key_close)(struct transport_key **key_p);
    /* Nobody can reach it any more; or, where that cannot be taken back (listener_lent), what peers
     * reach is nobody's from here on: fences do not wait for it. */
    void (*memory_deregister)(struct transport_memory **memory_p);

    tarn_status (*listen)(struct transport_domain *d, const struct transport_listen_config *config,
                          struct transport_listener **listener_p);
    /* Of those that have ports. */
    uint16_t (*listener_port)(const struct transport_listener *l);
    /* A URI that peers reach it by. TARN_EAGAIN: nobody reaches it at the moment (no device). */
    tarn_status (*listener_uri)(const struct transport_listener *l, struct buf *out);
    void (*listener_stats)(const struct transport_listener *l,
                           struct transport_listener_stats *stats_p);
    /* TARN_OK: none of them can write any more; nor do the threads read, with FENCE_SEGMENT.
     * TARN_EAGAIN: ask again after the domain's event; asking again, until the answer is TARN_OK,
     * is how one waits. Never blocks. */
    tarn_status (*listener_fence)(struct transport_listener *l,
                                  const struct transport_fence *fence);
    /* Can a peer whose grant is older than below_epoch (UINT32_MAX: any peer) still write to this
     * memory without asking? None of those that are GRANTED. */
    bool (*listener_lent)(const struct transport_listener *l, const struct transport_memory *m,
                          uint32_t below_epoch);
    void (*listener_close)(struct transport_listener **listener_p);

    /* Starts to connect; blocks for name resolution only. Operations may be submitted at once. Past
     * the deadline (CLOCK_BOOTTIME ms, 0: 5 s from now) the connection has failed. */
    tarn_status (*connect)(struct transport_domain *d, const char *uri, uint64_t deadline_boot_ms,
                           struct transport_endpoint **endpoint_p);
    /* TARN_OK: up. TARN_EAGAIN: still connecting. Else why it failed; close it then. */
    tarn_status (*endpoint_status)(const struct transport_endpoint *e);
    /* Operations in flight complete with TARN_ECANCELED, at once or in later progress; *endpoint_p
     * is NULL only when none is left, so: close, progress, close until it is. Never from inside
     * done(). */
    void (*endpoint_close)(struct transport_endpoint **endpoint_p);

    /* Takes the first *accepted_p operations, in order; fewer than n when it has enough for now.
     * Does not block. On an error none was taken. */
    tarn_status (*submit)(struct transport_endpoint *e, struct transport_op *const *ops, size_t n,
                          size_t *accepted_p);
    /* Moves bytes, calls back. At most about budget bytes, at least something. Returns how many
     * operations completed. */
    size_t (*progress)(struct transport_domain *d, uint64_t budget);
    /* TARN_OK: *fd_p turns readable when progress has something to do. TARN_EAGAIN: it has
     * something now. Serves both sides: a listener's owner polls the same descriptor. */
    tarn_status (*arm)(struct transport_domain *d, int *fd_p);
    /* Appends what this domain has to report of itself, for people and for the master: lines of
     * "kind field=value ...\n", values without blanks; TRANSPORT_REPORT_MAX bytes at most, and
     * whole lines. Of those that have something. */
    void (*describe)(const struct transport_domain *d, struct buf *out);
    /* Adds to sum. Of those whose listener serves reads and writes itself. */
    void (*listener_times)(const struct transport_listener *l, struct transport_times *sum);
    /* Adds to sum: of which version those peers are that have shown a good grant. Of those whose
     * handshake tells it. */
    void (*listener_programs)(const struct transport_listener *l, struct program_counts *sum);
    /* Of those that ask gate.stage: such bytes for somebody of this very process, who needs no
     * grant, and waits here: op is a GET whose parts are of such segments, with no keys. Returns
     * its status; done is not called. Any thread, not during listener_close. TARN_ENOTFOUND: the
     * bytes are not there any more; TARN_ETIMEOUT: the deadline (CLOCK_BOOTTIME ms, 0: none) has
     * passed, or op->patience_ms without a byte. Nothing is written to op's memory afterwards. */
    tarn_status (*listener_read)(struct transport_listener *l, struct transport_op *op,
                                 uint64_t deadline_boot_ms);
};
#define TRANSPORT_PACKED_MAX (64u << 10)
#define TRANSPORT_REPORT_MAX (32u << 10)

/* --- registry --- */

/* Are the functions there that its flags promise? */
bool transport_is_whole(const struct transport_ops *ops);
/* Asserts that it is whole. TARN_EEXISTS: there is one of that scheme. TARN_EPROTO: of
 * another ABI. TARN_ELIMIT: there were TRANSPORTS_MAX schemes. Thread-safe, like the rest. */
tarn_status transport_register(const struct transport_ops *ops);
/* TARN_EBUSY: somebody has a domain of it (transport_open). TARN_ENOTFOUND. */
tarn_status transport_unregister(const struct transport_ops *ops);
/* All there are, in the order of preference; NULL: no more. */
const struct transport_ops *transport_at(size_t i);
/* By scheme ("tcp") or URI ("tcp://...", "tcps://..."). NULL: not built in, not loaded. */
const struct transport_ops *transport_find(const char *scheme_or_uri);
/* Is the URI one of a secure_scheme? */
bool transport_is_secure(const char *uri);
/* A number below TRANSPORTS_MAX that a scheme has as long as the process lives, for arrays by
 * transport. */
unsigned transport_slot(const struct transport_ops *ops);
#define TRANSPORT_NONE TRANSPORTS_MAX
/* The scheme of a slot, also when its transport is gone: for figures. NULL: nobody has it yet. */
const char *transport_name(unsigned slot);
/* A domain, of which the registry knows: until it is closed by transport_close the transport cannot
 * be unregistered, nor its module unloaded, whichever thread tries. TARN_ENOTSUP: there is none of
 * that scheme; else what domain_open says. */
tarn_status transport_open(const char *scheme, const struct transport_domain_config *config,
                           const struct transport_ops **ops_p, struct transport_domain **domain_p);
void transport_close(const struct transport_ops *ops, struct transport_domain **domain_p);
/* These are there from the start. */
extern const struct transport_ops transport_tcp;
extern const struct transport_ops transport_shm;

#endif
