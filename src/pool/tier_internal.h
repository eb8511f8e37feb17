/* What the kinds of tiers share; inside src/pool only. tier.c counts, bounds what is on its way,
 * copies values and sums them, and says when something should go. A kind finds room, keeps what is
 * known of each entry, and moves the bytes. */
#ifndef TARN_POOL_TIER_INTERNAL_H
#define TARN_POOL_TIER_INTERNAL_H

#include <errno.h>
#include <pthread.h>
#include "base/assert.h"
#include "base/iov.h"
#include "pool/tier.h"

#define TIER_MAGIC       0x54494552u /* "TIER" */
#define TIER_KEY_MAX     1024u
#define TIER_PIECE       (1u << 20) /* what one of the checksums in item.crcs covers */
#define TIER_HIGH        0.95       /* share of the size from which on the oldest goes */
#define TIER_LOW         0.90       /* ... down to this */
#define TIER_PATIENCE_MS 2000u      /* for the lock of a process that is about to end */

enum tier_record_kind {
    TIER_ENTRY = 1,
    TIER_DROPPED = 2, /* an entry that is not there any more; on an ssd also a note that says so */
    TIER_RENAMED = 3, /* such a note only */
};

/* What is known of an entry, in memory and on an ssd (ssd_format.h). Checksums per MiB and the key
 * follow, then zeroes up to 8 bytes. */
struct tier_record {
    uint32_t size; /* of all of it */
    uint8_t kind;
    uint8_t zero;
    uint16_t key_size; /* 0 in notes */
    uint64_t offset;   /* of the value; notes: of the value they are about */
    uint64_t version;
    uint64_t value; /* entry: bytes of its value; notes: nonce of the unit it lies in */
    uint32_t crc;
    uint32_t n_crcs;
};
static_assert(offsetof(struct tier_record, offset) == 8, "record layout");
static_assert(sizeof(struct tier_record) == 40, "record layout");

static inline uint32_t tier_record_size(size_t key_size, size_t n_crcs) {
    return (uint32_t)(sizeof(struct tier_record) + n_crcs * sizeof(uint32_t) + key_size + 7) & ~7u;
}
static inline uint32_t *tier_record_crcs(const struct tier_record *r) {
    return (uint32_t *)(uintptr_t)(r + 1);
}
static inline struct span tier_record_key(const struct tier_record *r) {
    return span_of(tier_record_crcs(r) + r->n_crcs, r->key_size);
}
/* Is this byte in it? < 0: it is before, > 0: behind. */
static inline int tier_record_compare(uint64_t offset, const struct tier_record *r) {
    if (offset < r->offset) return -1;
    return offset > r->offset && offset - r->offset >= r->value;
}
/* The record of an entry at that offset: tier_record_size bytes. Its checksums are zero. */
void tier_record_write(struct tier_record *r, const struct tier_item *item, uint64_t offset);

/* Who waits for the end of a put or a read, and what it counts for until then. */
struct tier_put_end {
    void (*done)(void *arg, tarn_status status, uint64_t offset);
    void *arg;
    uint64_t queued, began_ns;
};
struct tier_read_end {
    void (*done)(void *arg, tarn_status status);
    void *arg;
    uint64_t length, began_ns;
};

struct tier_put {
    const struct tier_item *item;
    const struct iovec *iov;
    size_t n_iov, n_crcs;
    bool stream; /* larger than copy_max: read in the tier's thread */
    struct tier_put_end end;
    /* Where the kind wants the value, and what it needs to find that again. */
    void *to, *place;
    size_t index;
};

struct tier_ops {
    const char *kind, *name; /* as in tier_open; "SSD tier" */
    size_t size;             /* of its struct */
    /* Makes it, or finds the one that is there; fills in info and path. Then what is in it;
     * stats.damaged counts what is lost. Then its threads are started. */
    tarn_status (*open)(struct tier *t, const struct tier_config *config, const char **why_p);
    tarn_status (*recover)(struct tier *t, const char **why_p);
    tarn_status (*start)(struct tier *t, const char **why_p);
    /* Writes what is accepted; also where one of these has failed. */
    void (*close)(struct tier *t);
    /* info.content is the name from now on. An errno. */
    int (*rename_content)(struct tier *t);

    /* The lock is held for these. The entry that holds this byte, or what a reader may still find
     * of it; NULL: none. */
    struct tier_record *(*find)(struct tier *t, uint64_t offset);
    void (*drop)(struct tier *t, struct tier_record *r);
    void (*rename)(struct tier *t, struct tier_record *r, uint64_t version);
    /* Finds room: TARN_OK or TARN_EAGAIN. What is no stream is then copied without the lock, and
     * `placed` told: how that went, and its checksums. */
    tarn_status (*place)(struct tier *t, struct tier_put *put);
    void (*placed)(struct tier *t, struct tier_put *put, tarn_status status, const uint32_t *crcs);
    tarn_status (*read)(struct tier *t, struct tier_record *r, uint64_t offset, void *buffer,
                        const struct tier_read_end *end);
    /* As tier_mark; NULL: always 0. */
    uint64_t (*mark)(struct tier *t, const struct tier_record *r);
    /* Appends the records of some entries, those behind `from` (0: all), and returns from where to
     * go on; 0: there are no more. */
    uint64_t (*each)(struct tier *t, uint64_t from, struct buf *records);
    /* Should something go? And what: as tier_poll_evict. */
    bool (*too_full)(struct tier *t);
    uint64_t (*choose)(struct tier *t, struct buf *records);
    void (*evicted)(struct tier *t, uint64_t ticket);
    /* As tier_weigh; NULL: what goes does not depend on it. */
    uint64_t (*weigh)(struct tier *t, struct buf *records);
    void (*weighed)(struct tier *t, uint64_t ticket, double loss);
};

/* First member of every kind. */
struct tier {
    uint32_t magic;
    const struct tier_ops *ops;
    struct tier_info info;
    char *path; /* for the log; freed with it */
    uint64_t queue_bytes, read_bytes;
    int event_fd;
    pthread_mutex_t callbacks; /* held while one runs; taken before lock or alone */

    pthread_mutex_t lock; /* of all below, and of the kind's books */
    bool event_set;
    uint64_t reading, n_reading; /* bytes and reads under way */
    uint64_t busy_ns;            /* stats.read_us has all reading up to then */
    unsigned failures;           /* of writes, in a row */
    uint64_t log_failure_ms;
    struct tier_stats stats;
    struct tier_times times;
};

extern const struct tier_ops ssd_ops, files_ops;

/* A random name for the content. */
void tier_content_new(struct tier *t);
/* Something may be too full now; the lock is held. */
void tier_evict_check(struct tier *t);
/* A put is over: what it counts for, the lock is held; and then, without the lock, who waits. */
void tier_put_count(struct tier *t, const struct tier_put_end *end, tarn_status status);
void tier_put_ended(struct tier *t, const struct tier_put_end *end, tarn_status status,
                    uint64_t offset);
/* A read is: both, without the lock. */
void tier_read_ended(struct tier *t, const struct tier_read_end *end, tarn_status status);
/* The lock is held: a line in the log, unless there was one just now. */
void tier_trouble(struct tier *t, const char *what, int error);
/* The same of a write: after a few in a row the tier takes nothing more. */
void tier_write_failed(struct tier *t, const char *what, int error);
static inline tarn_status tier_error_status(int error) {
    return error == 0 ? TARN_OK : error == ENOSPC || error == EDQUOT ? TARN_ENOSPACE : TARN_EIO;
}

/* Checksums that a value of this size carries besides its own. */
static inline size_t tier_pieces(uint64_t size) {
    return size > TIER_PIECE ? (size_t)((size + TIER_PIECE - 1) / TIER_PIECE) : 0;
}

/* Copies a value out of memory that others may be changing, piece by piece, and sums what was
 * written (not what is read a second time). crcs has room for tier_pieces of the value, or is NULL
 * when there are none. */
struct tier_copy {
    struct iov_cursor at;
    uint64_t done; /* bytes of the value */
    uint32_t crc;  /* of these, as soon as they end a piece or the value */
    uint32_t piece_crc;
    uint32_t *crcs;
};
void tier_copy_start(struct tier_copy *c, const struct iovec *iov, size_t n_iov, uint32_t *crcs);
/* to NULL: sums only. length is at most what iov has left. */
void tier_copy_next(struct tier_copy *c, void *to, uint64_t length);
/* The checksum of what was copied. */
uint32_t tier_copy_crc(const struct tier_copy *c);

#endif
