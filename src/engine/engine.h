/* Moving bytes: one engine per libtarn connection set. Given extents, grants and local memory it
 * picks a transport per segment (the one of least cost that leads there), batches, stripes,
 * retries, watches deadlines, and verifies what arrived. It knows no transport by name.
 *
 * Thread rules: an engine is used by one thread at a time (its owner locks). Blocks inside
 * engine_run only. */
#ifndef TARN_ENGINE_ENGINE_H
#define TARN_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>
#include "base/buf.h"
#include "base/status.h"
#include "transport/transport.h"

struct engine;

struct engine_config {
    /* A scheme, borrowed: by that one only. NULL: where the best one fails, by another. */
    const char *transport;
    unsigned streams;    /* connections per host, of transports that are TRANSPORT_STREAMS */
    uint64_t stripe_min; /* bytes from which one transfer is striped over streams */
    uint64_t connect_timeout_ms;
    /* for a host's answer when its memory is asked for, while there is another transport */
    uint64_t attach_timeout_ms;
    uint64_t idle_close_ms;
    uint64_t busy_poll_us; /* looking before it sleeps, at most (base/spin.h); 0: not at all */
    /* Set by another thread (atomically) while engine_run runs: that ends soon, and what was not
     * over is TARN_ECANCELED. NULL: nobody does. */
    const bool *stop;
    /* borrowed; for hosts that are reached over TLS; NULL: they are not reached */
    const struct transport_tls *tls;
};
void engine_config_init(struct engine_config *c);

struct engine_way {  /* how a transport reaches a segment */
    const char *uri; /* NULL: it does not */
    /* what its host packed (key_pack), to read and to write with; empty: nothing, or not allowed */
    struct span key[2];
};

/* What SEGMENT INFO says of a segment: fetched once per epoch by the owner, kept by the engine. */
struct engine_segment {
    uint32_t id, epoch;
    uint64_t size;
    /* SEGMENT_CONTENT_SIZE bytes: another one is other memory, whatever its epoch; NULL: not known
     */
    const uint8_t *content;
    /* grants (GRANT_SIZE bytes) to attach with, to read and to write; NULL: not allowed */
    const uint8_t *attach[2];
    bool same_host;                        /* it is served on this machine */
    struct engine_way way[TRANSPORTS_MAX]; /* by slot (transport.h) */
};
/* By this URI, too, which is borrowed: where the way is. NULL: no use, there is no such transport
 * here, it does not reach other machines, or it has a way already. */
struct engine_way *engine_segment_way(struct engine_segment *s, const char *uri);

tarn_status engine_create(const struct engine_config *config, struct engine **engine_p);
void engine_destroy(struct engine **engine_p);
/* Adds or replaces. The strings are copied. */
tarn_status engine_segment_set(struct engine *e, const struct engine_segment *segment);
/* false: set it (again) before its extents are used: never set, another epoch, set for an earlier
 * session, or a host has said since that what we know is out of date. */
bool engine_segment_known(const struct engine *e, uint32_t id, uint32_t epoch);
/* Known, and by these endpoints. */
bool engine_segment_same(struct engine *e, const struct engine_segment *segment);
/* The session changed (control connection was remade): data connections of the old one are closed,
 * writable mappings given up, so that the old session can be fenced; attach grants are forgotten.
 * Pointers from engine_map(writable) lead into private memory from here on, stores through them are
 * lost. */
void engine_session_changed(struct engine *e);

struct engine_part {
    struct grant_extent extent; /* whole, as granted */
    /* GRANT_SIZE bytes, borrowed until engine_run returns; NULL: none, so it goes by transports
     * that need none, and where there is no such way its operation is TARN_EGRANT_EXPIRED. The
     * parts of an operation all have one, or none has */
    const uint8_t *grant;
    uint64_t sub_offset, sub_length; /* inside the extent */
};

/* One value, or a range of one. Parts in order of the value; iov holds exactly the sum of the
 * sub_lengths. */
struct engine_op {
    bool write;
    const struct engine_part *parts;
    size_t n_parts;
    const struct iovec *iov;
    size_t n_iov;
    /* reads: bytes verified after this CLOCK_BOOTTIME are worthless. 0: no lease (writes) */
    uint64_t lease_end_boot_ms;
    bool want_crc; /* writes: compute the CRC while sending. reads: compute and return it */
    /* Not 0: somebody else has the bytes, or can take them. A host that needs longer than this to
     * let us connect, or then moves no byte for so long, is given up (TARN_ETIMEOUT); one that
     * closes the connection gets one more try, at once. */
    uint64_t patience_ms;
    /* Not to share a request with others that are like it: its bytes come from a disk, in their own
     * time. */
    bool alone;
    /* With patience_ms: nobody else has them after all. A host that closes the connection is tried
     * as often as without, and a silent one again and again until patience_ms are over: what was
     * lost on the way there may have been all that was wrong. */
    bool sole;
    /* Writes by grants that are to be sealed: that is done behind these bytes, which may be none,
     * and here goes their host's word on each part, GRANT_RECEIPT_SIZE bytes. Such an operation is
     * not cut into slices that travel side by side. NULL: they are not sealed. */
    uint8_t *receipts;
    /* results */
    /* TARN_OK, TARN_ELEASE, TARN_ESTALE, TARN_EGRANT_EXPIRED, TARN_EPERM, TARN_ETIMEOUT, ... */
    tarn_status status;
    /* Writes: false: bytes of it may still be on their way, so its space must not be given to
     * others. True whenever the status is TARN_OK. */
    bool settled;
    uint32_t crc; /* of the bytes of the range, when want_crc */
    /* caller's array for one CRC per crc_block bytes of the range, NULL: not wanted */
    uint32_t *crcs;
    uint64_t crc_block;
    unsigned used; /* slot of the transport; TRANSPORT_NONE: it did not come to that */
};

/* Runs all to their end (each status is set) or to the deadline (CLOCK_BOOTTIME ms, 0: none). After
 * it returns the engine touches no caller memory. TARN_OK even when single ops failed. */
tarn_status engine_run(struct engine *e, struct engine_op *ops, size_t n_ops,
                       uint64_t deadline_boot_ms);

/* Closes connections that were not used for idle_close_ms. engine_run does the same; this is for
 * engines that rest. */
void engine_rest(struct engine *e);

/* Same-host pointer into a segment, for leased views and puts in place; NULL: nothing can map it
 * (writable asks for the writable mapping). Valid while the engine lives and, if writable, until
 * engine_session_changed. */
void *engine_map(struct engine *e, uint32_t segment, uint32_t segment_epoch, uint64_t offset,
                 uint64_t length, bool writable);
/* Gets ready for that, and for transfers, without giving out a pointer: what was only attached can
 * be let go sooner. false as for NULL above. */
bool engine_attach(struct engine *e, uint32_t segment, uint32_t segment_epoch, bool writable);
/* at came from engine_map. Is the memory there still what it was then? Reads the epochs from the
 * segment header again, after a copy or a view: TARN_ESTALE when they changed, or when that mapping
 * is gone. */
tarn_status engine_check(struct engine *e, uint32_t segment, uint32_t segment_epoch,
                         const void *at);
/* at came from engine_map(not writable). The mapping that it lies in: all of its segment's memory,
 * which begins at *start_p. *current_p: later pointers lead there, too; else a newer mapping has
 * taken its place, and it stays for those who have pointers into it. false: it is gone. */
bool engine_lent(const struct engine *e, uint32_t segment, const void *at, const void **start_p,
                 uint64_t *size_p, bool *current_p);
/* Some pointers from engine_map(not writable) are not used any more: mappings that were kept for
 * them alone go, and with them the memory of hosts that have died. A mapping stays if used(arg, its
 * first byte, its size) says so, or if it is current. used NULL: no pointer is used. */
void engine_views_left(struct engine *e, bool (*used)(void *arg, const void *start, uint64_t size),
                       void *arg);

struct engine_buffer {
    void *address;
    size_t len;
    uint64_t identity; /* as in transport_memory_config; 0: none */
    /* Memory of a device, which address only names: nobody but a NIC touches it, so that operations
     * on it want no CRCs and go by a transport that has registered it, or fail with TARN_ENOTSUP.
     * fd: its dma-buf, which holds it from offset on. */
    bool device;
    int fd;
    uint64_t offset;
};
/* Is any of [at, at + len) in it? */
static inline bool engine_buffer_meets(const struct engine_buffer *b, const void *at, size_t len) {
    const char *from = b->address;
    return (const char *)at < from + b->len && from < (const char *)at + len;
}
/* Caller memory that will be used often: transports that move registered memory faster are told of
 * it. One that cannot have it does without; TARN_ENOTSUP: none can have a device's, which is
 * registered even so, and operations on it fail. TARN_EINVAL; TARN_EEXISTS: part of it is
 * registered already. fd is not needed any more when it returns. */
tarn_status engine_register(struct engine *e, const struct engine_buffer *buffer);
/* TARN_ENOTFOUND: nothing is registered from address on. */
tarn_status engine_unregister(struct engine *e, void *address);

struct engine_stats {
    uint64_t bytes_read[TRANSPORTS_MAX], bytes_written[TRANSPORTS_MAX]; /* by slot */
    uint64_t connects, connect_failures, fallbacks, retries, lease_misses, epoch_misses, timeouts;
};
void engine_get_stats(const struct engine *e, struct engine_stats *stats_p);

#endif
