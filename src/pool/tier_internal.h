/* What the kinds of tiers share; inside src/pool only. */
#ifndef TARN_POOL_TIER_INTERNAL_H
#define TARN_POOL_TIER_INTERNAL_H

#include "base/iov.h"
#include "pool/tier.h"

#define TIER_MAGIC       0x54494552u /* "TIER" */
#define TIER_KEY_MAX     1024u
#define TIER_PIECE       (1u << 20) /* what one of the checksums in item.crcs covers */
#define TIER_QUEUE_BYTES (256ull << 20)
#define TIER_READ_BYTES  (64ull << 20)

struct tier_ops {
    void (*close)(struct tier *t);
    tarn_status (*renew)(struct tier *t, const uint8_t content[TIER_CONTENT_SIZE]);
    void (*each)(struct tier *t, void (*fn)(void *arg, const struct tier_item *item), void *arg);
    tarn_status (*rename)(struct tier *t, uint64_t offset, uint64_t version);
    tarn_status (*put)(struct tier *t, struct tier_item *item, bool check_crc,
                       const struct iovec *iov, size_t n_iov,
                       void (*done)(void *arg, tarn_status status, uint64_t offset), void *arg);
    void (*drop)(struct tier *t, uint64_t offset, uint64_t version);
    tarn_status (*read)(struct tier *t, uint64_t offset, uint64_t length, void *buffer,
                        void (*done)(void *arg, tarn_status status), void *arg);
    uint64_t (*poll_evict)(struct tier *t, void (*fn)(void *arg, const struct tier_item *item),
                           void *arg);
    void (*evicted)(struct tier *t, uint64_t ticket);
    void (*get_stats)(struct tier *t, struct tier_stats *stats_p);
};

/* First member of every kind. */
struct tier {
    uint32_t magic;
    const struct tier_ops *ops;
    struct tier_info info;
    int event_fd;
};

/* config is complete: no member is a default any more. */
tarn_status ssd_open(const struct tier_config *config, struct tier **tier_p, const char **why_p);
tarn_status files_open(const struct tier_config *config, struct tier **tier_p, const char **why_p);

/* Formats *why_p into thread-local text and returns status. */
tarn_status tier_fail(tarn_status status, const char **why_p, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* A random name for the content. */
void tier_content_new(uint8_t content[TIER_CONTENT_SIZE]);
/* The event descriptor becomes readable, or stops being so. Thread-safe. */
void tier_event_set(const struct tier *t);
void tier_event_clear(const struct tier *t);

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
