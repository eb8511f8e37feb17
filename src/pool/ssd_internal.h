/* The ssd tier from inside. ssd.c opens and closes it, ssd_recover.c finds what is there, ssd_log.c
 * gives out places in the log, ssd_write.c brings batches to disk, ssd_read.c reads, ssd_evict.c
 * chooses what goes and takes space back. One thread does all I/O (ssd_write.c).
 *
 * A unit's life (see ssd_format.h for what it is on disk):
 *
 *   FREE ─> OPEN ─> SEALED ─> GOING ──────> LEAVING ──────> CARRIED ──────────> ERASING ─> FREE
 *           written  full      handed out by  tier_evicted;   no reads; its notes   first header
 *                              poll_evict     reads end       are written again     is zeroes
 *
 * A batch's life:
 *
 *   OPEN ─> SEALED ─> DATA ─> READY ─> HEADER ─> done
 *   takes    placed    values   values   the header, when all
 *   puts               go out   on disk  before it are there
 *
 * One lock. Puts hold it to find a place and, after the copy, to say that they are through; never
 * during I/O or callbacks. What only the thread touches is marked so. */
#ifndef TARN_POOL_SSD_INTERNAL_H
#define TARN_POOL_SSD_INTERNAL_H

#include <pthread.h>
#include "base/rng.h"
#include "pool/ssd_format.h"
#include "pool/ssd_io.h"
#include "pool/tier_internal.h"

#define SSD_RESERVE                                                                                \
    1u /* regions that only notes may open: what is dropped stays dropped on a full disk */
#define SSD_BATCH_BYTES   (8ull << 20)
#define SSD_BATCH_RECORDS (256u << 10) /* bytes */
#define SSD_BATCH_AGE_MS  5u           /* a put waits so long for company */
#define SSD_NOTES_AGE_MS  50u          /* a drop so long for a batch to ride in */
#define SSD_RETRY_MS      1000u
#define SSD_SYNC_MS       1000u /* removals get through the disk's own cache after so long */
#define SSD_DEPTH         64u
#define SSD_WRITING_MAX   8u           /* batches under way */
#define SSD_WRITE_BYTES   (2ull << 20) /* of one transfer */
#define SSD_CHUNK_BYTES   (4ull << 20) /* large values go through these */
#define SSD_CHUNKS        3u
#define SSD_TOUCH_BYTES   (2ull << 20) /* a huge page: some milliseconds at worst */

enum ssd_unit_state { SSD_OPEN, SSD_SEALED, SSD_GOING, SSD_LEAVING, SSD_CARRIED, SSD_ERASING };

struct ssd_unit {
    TAILQ_ENTRY(ssd_unit) by_age;
    TAILQ_ENTRY(ssd_unit) leaving;
    enum ssd_unit_state state;
    bool broken; /* a header could not be written: nothing behind it would be found */
    bool bad;    /* it cannot be erased, and stays */
    uint64_t seq, nonce;
    uint64_t before_nonce;
    uint32_t before_batches;
    uint32_t region, regions; /* where it is */
    uint64_t base, end;       /* the same in bytes; end: what is given out */
    uint32_t batches;         /* given out */
    uint32_t unwritten;       /* of these, not yet done */
    /* records of written batches; dropped entries have the kind SSD_DROPPED, renamed ones the new
     * version */
    struct buf log;
    uint32_t *entries; /* positions of entries in log, in steps of 8 bytes; ascending by offset */
    size_t n_entries, cap_entries, live;
    uint64_t heat;       /* bytes read, halved each time it was passed over as a victim */
    double loss;         /* of one of its entries, in the mean; < 0: nobody knows */
    uint64_t weighed_ms; /* when that was said; 0: never */
    uint32_t first_prompt,
        last_prompt; /* of its first and last value; 0: of none, or from before we were opened */
    uint32_t reads;  /* under way */
    uint64_t notes_mark; /* CARRIED: until so many notes are written */
    struct ssd_op erase;
    struct ssd *owner;
};
TAILQ_HEAD(ssd_units, ssd_unit);

struct ssd_note {
    /* what it says follows from the state of that entry when it is written */
    uint64_t nonce, offset;
};

struct ssd_put {
    struct tier_put_end end;
    bool gone;       /* its value was not what it should be: nobody waits */
    uint64_t rel;    /* where the value is in the batch's data */
    uint32_t record; /* where its record is in the batch's records */
    tarn_status status;
};

struct ssd_stream;

struct ssd_batch {
    TAILQ_ENTRY(ssd_batch) next;
    struct ssd *owner;
    struct ssd_unit *unit;
    enum {
        SSD_BATCH_OPEN,
        SSD_BATCH_SEALED,
        SSD_BATCH_DATA,
        SSD_BATCH_READY,
        SSD_BATCH_HEADER
    } state;
    uint64_t position; /* in the file */
    uint64_t header_size, data_size;
    uint32_t index;
    /* of entries; offsets are relative to the batch's data until the header is made */
    struct buf records;
    struct ssd_put *puts;
    size_t n_puts, cap_puts;
    unsigned copying;
    uint64_t opened_ms;
    struct buf note_records;
    uint64_t notes_upto;
    /* Values: in the ring (most), or taken from where they are (stream). */
    uint64_t ring_at, ring_end;
    struct ssd_stream *stream;
    /* The thread's: */
    struct ssd_op *ops;
    size_t ops_left;
    int error; /* of the data */
    struct ssd_op header_op;
    void *header;
};
TAILQ_HEAD(ssd_batches, ssd_batch);

/* A value that is not copied at once but goes through a few chunks. */
struct ssd_stream {
    struct iovec *iov;
    struct tier_copy copy;
    uint64_t size;
    uint32_t crc;
    void *chunks[SSD_CHUNKS];
    struct ssd_op ops[SSD_CHUNKS];
    unsigned under_way;
};

struct ssd_read;
STAILQ_HEAD(ssd_reads, ssd_read);

struct ssd {
    struct tier tier; /* first */
    int fd;
    bool device; /* a block device */
    bool direct; /* O_DIRECT */
    uint64_t region_size;
    uint32_t regions;
    struct ssd_superblock super;
    uint64_t batch_bytes;
    uint32_t free_start, free_stop; /* eviction begins below the one and ends at the other */
    struct ssd_io *io;
    pthread_t thread;
    bool started;
    void *zero_block;

    /* Under tier.lock, as all below: */
    bool closing;
    bool asleep, kicked;     /* the thread; it has something to do */
    struct ssd_unit **owner; /* by region; NULL: free */
    uint32_t free;
    uint32_t cursor;        /* where the search for a free region goes on */
    struct ssd_units units; /* oldest first */
    struct ssd_units leaving;
    struct ssd_unit *open_unit;
    uint64_t next_seq;
    struct rng rng;
    /* Large values need neighbours: regions [want_at, want_at + want) are kept for one until
     * want_until_ms. */
    uint32_t want, want_at;
    uint64_t want_until_ms;
    bool evicting;
    bool empty_hint; /* there may be units without a live entry */

    char *ring; /* of tier.queue_bytes */
    uint64_t ring_head, ring_tail;
    struct ssd_batch *open;     /* takes puts; not in batches yet */
    struct ssd_batches batches; /* sealed, not yet the thread's */
    struct ssd_batch *last;     /* sealed last and not done; NULL: none */

    struct buf notes; /* struct ssd_note: waiting for a batch */
    uint64_t notes_added, notes_taken, notes_done;
    uint64_t notes_due_ms;
    uint64_t sync_due_ms; /* 0: nothing was removed since */

    struct ssd_reads reads; /* to be started */

    /* The thread's: */
    struct ssd_batches writing;
    unsigned n_writing;
    struct ssd_reads reading_now; /* their pieces are not all under way */
    uint64_t bytes_reading;       /* of pieces under way, */
    uint64_t bytes_waiting;       /* ... and what of these reads is not */
    void **bounces;               /* free ones */
    size_t n_bounces, bounces_made, bounces_max;
    uint32_t erasing;
    uint64_t untouched; /* bytes at the end of the ring, if these are to be touched */
    bool syncing;
    struct ssd_op sync;
};

static inline uint64_t ssd_region_base(const struct ssd *s, uint32_t region) {
    return SSD_DATA_START + region * s->region_size;
}
static inline uint64_t ssd_unit_limit(const struct ssd *s, const struct ssd_unit *u) {
    return u->base + u->regions * s->region_size;
}
static inline struct tier_record *ssd_unit_entry(const struct ssd_unit *u, size_t i) {
    return (void *)(u->log.data + (uint64_t)u->entries[i] * 8);
}

/* --- ssd_log.c; the lock is held --- */

struct ssd_unit *ssd_unit_new(const struct ssd *s, uint32_t region, uint32_t regions);
void ssd_unit_free(struct ssd_unit **u_p);
/* The youngest one now. Its regions are free, and theirs no more. */
void ssd_unit_claim(struct ssd *s, struct ssd_unit *u);
/* Its regions are free again. */
void ssd_unit_destroy(struct ssd *s, struct ssd_unit *u);
/* Takes over the records of a written batch. */
void ssd_unit_append(struct ssd *s, struct ssd_unit *u, const char *records, uint64_t size);
/* The unit of regions that this byte of the file lies in; NULL: none. */
struct ssd_unit *ssd_unit_at(const struct ssd *s, uint64_t offset);
/* The entry that holds this byte; NULL: none. */
struct tier_record *ssd_unit_find(const struct ssd_unit *u, uint64_t offset);
/* The entry that note is about, if it still is there. */
struct tier_record *ssd_note_target(const struct ssd *s, uint64_t nonce, uint64_t offset);
void ssd_note_add(struct ssd *s, uint64_t nonce, uint64_t offset);
/* No more puts into the open batch; it goes to the thread. Takes along what notes there are. */
void ssd_seal(struct ssd *s);
/* A batch for notes alone, if there are any and there is room. */
void ssd_seal_notes(struct ssd *s);
/* Whole blocks for O_DIRECT; free() takes them. */
void *ssd_blocks(uint64_t size);
/* The thread has something to do. */
void ssd_kick(struct ssd *s);
/* It is not there any more. */
void ssd_entry_drop(struct ssd *s, struct ssd_unit *u, struct tier_record *r);
struct tier_record *ssd_find(struct tier *t, uint64_t offset);
void ssd_drop(struct tier *t, struct tier_record *r);
void ssd_rename(struct tier *t, struct tier_record *r, uint64_t version);
tarn_status ssd_place(struct tier *t, struct tier_put *put);
void ssd_placed(struct tier *t, struct tier_put *put, tarn_status status, const uint32_t *crcs);

/* --- ssd_write.c --- */

/* The thread. */
void *ssd_run(void *arg);
/* A removal was written; the lock is held. */
void ssd_sync_soon(struct ssd *s);

/* --- ssd_read.c --- */

tarn_status ssd_read(struct tier *t, struct tier_record *r, uint64_t offset, void *buffer,
                     const struct tier_read_end *end);
uint64_t ssd_mark(struct tier *t, const struct tier_record *r);
/* The thread's: starts what was asked for. */
void ssd_read_start(struct ssd *s);
void ssd_read_free(struct ssd *s);

/* --- ssd_evict.c; the lock is held --- */

bool ssd_too_full(struct tier *t);
uint64_t ssd_choose(struct tier *t, struct buf *records);
void ssd_evicted(struct tier *t, uint64_t ticket);
uint64_t ssd_weigh(struct tier *t, struct buf *records);
void ssd_weighed(struct tier *t, uint64_t ticket, double loss);
/* The thread's: brings what was given up nearer to being free. */
void ssd_evict_advance(struct ssd *s);

/* --- ssd_recover.c --- */

/* Reads headers only. */
tarn_status ssd_recover(struct tier *t, const char **why_p);

#endif
