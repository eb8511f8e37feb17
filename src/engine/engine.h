/* Moving bytes: one engine per libtarn connection set. Given extents, grants and local memory it picks a transport per
 * segment (shm when the host is this machine and lets us, else tcp), batches, stripes, retries, watches deadlines, and
 * verifies what arrived.
 *
 * Thread rules: an engine is used by one thread at a time (its owner locks). Blocks inside engine_run only. */
#ifndef TARN_ENGINE_ENGINE_H
#define TARN_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>
#include "base/status.h"
#include "transport/grant.h"

struct engine;

enum engine_transport { ENGINE_AUTO, ENGINE_SHM, ENGINE_TCP };

struct engine_config {
    enum engine_transport transport; /* AUTO falls back at run time; the others never do */
    unsigned streams;                /* tcp connections per host */
    uint64_t stripe_min;             /* bytes from which one transfer is striped over streams */
    uint64_t connect_timeout_ms;
    uint64_t idle_close_ms;
    bool verify; /* a note for the owner, who sets want_crc in its reads; the engine does as each op says */
};
void engine_config_init(struct engine_config *c);

/* What SEGMENT INFO says of a segment: fetched once per epoch by the owner, kept by the engine. */
struct engine_segment {
    uint32_t id, epoch;
    uint64_t size;
    const char *tcp_host; /* NULL: no tcp endpoint */
    uint16_t tcp_port;
    const char *shm_path;       /* NULL: none, or another machine */
    const uint8_t *attach_read; /* grants (GRANT_SIZE bytes) to attach with, NULL: not allowed */
    const uint8_t *attach_write;
};

tarn_status engine_create(const struct engine_config *config, struct engine **engine_p);
void engine_destroy(struct engine **engine_p);
/* Adds or replaces. The strings are copied. */
tarn_status engine_segment_set(struct engine *e, const struct engine_segment *segment);
/* false: set it (again) before its extents are used: never set, another epoch, set for an earlier session, or a host has said
 * since that what we know is out of date. */
bool engine_segment_known(const struct engine *e, uint32_t id, uint32_t epoch);
/* The session changed (control connection was remade): data connections of the old one are closed, writable mappings given
 * up, so that the old session can be fenced; attach grants are forgotten. Pointers from engine_map(writable) lead into
 * private memory from here on, stores through them are lost. */
void engine_session_changed(struct engine *e);

struct engine_part {
    struct grant_extent extent;      /* whole, as granted */
    const uint8_t *grant;            /* GRANT_SIZE bytes, borrowed until engine_run returns */
    uint64_t sub_offset, sub_length; /* inside the extent */
};

/* One value, or a range of one. Parts in order of the value; iov holds exactly the sum of the sub_lengths. */
struct engine_op {
    bool write;
    const struct engine_part *parts;
    size_t n_parts;
    const struct iovec *iov;
    size_t n_iov;
    uint64_t
        lease_end_boot_ms; /* reads: bytes verified after this CLOCK_BOOTTIME are worthless. 0: no lease (writes) */
    bool want_crc;         /* writes: compute the CRC while sending. reads: compute and return it */
    /* results */
    tarn_status
        status;   /* TARN_OK, TARN_ELEASE, TARN_ESTALE, TARN_EGRANT_EXPIRED, TARN_EPERM, TARN_ETIMEOUT, ... */
    uint32_t crc; /* of the bytes of the range, when want_crc */
    uint32_t *crcs; /* caller's array for one CRC per crc_block bytes of the range, NULL: not wanted */
    uint64_t crc_block;
    enum engine_transport used;
};

/* Runs all to their end (each status is set) or to the deadline (CLOCK_BOOTTIME ms, 0: none). After it returns the engine
 * touches no caller memory. TARN_OK even when single ops failed. */
tarn_status engine_run(struct engine *e, struct engine_op *ops, size_t n_ops, uint64_t deadline_boot_ms);

/* Same-host pointer into a segment, for leased views and puts in place; NULL: shm cannot be used (writable asks for the
 * writable mapping). Valid while the engine lives and, if writable, until engine_session_changed. */
void *engine_map(struct engine *e, uint32_t segment, uint32_t segment_epoch, uint64_t offset, uint64_t length,
                 bool writable);
/* Reads both epochs from the segment header again, after a copy or a view: TARN_ESTALE when they changed. */
tarn_status engine_check_epoch(struct engine *e, uint32_t segment, uint32_t segment_epoch);

/* Caller memory that will be used often (RDMA registers it; shm and tcp only note it). */
tarn_status engine_register(struct engine *e, void *addr, size_t len);
tarn_status engine_unregister(struct engine *e, void *addr);

struct engine_stats {
    uint64_t shm_reads, shm_writes, shm_bytes_read, shm_bytes_written;
    uint64_t tcp_reads, tcp_writes, tcp_bytes_read, tcp_bytes_written;
    uint64_t connects, connect_failures, fallbacks, retries, lease_misses, epoch_misses, timeouts;
};
void engine_get_stats(const struct engine *e, struct engine_stats *stats_p);

#endif
