/* What pool.c and backing.c share: the memory file behind a segment. */
#ifndef TARN_POOL_POOL_INTERNAL_H
#define TARN_POOL_POOL_INTERNAL_H

#include "pool/pool.h"

struct pool_backing {
    int fd, fd_read; /* what peers are given copies of, -1: none */
    /* of a pool file: holds its lock, and is nobody else's, lest the lock outlive us */
    int lock_fd;
    char *map; /* the header; the advertised bytes are SEGMENT_HEADER_SIZE behind it */
    uint64_t map_size;
    bool huge;
    bool fresh; /* every byte is zero */
    /* Of a pool file that was not fresh. */
    struct segment_header header;
    uint32_t instance;  /* which process this is to open it, from 1 */
    uint64_t file_size; /* larger than map_size: it held a larger pool */
};

/* Opens and maps the file that config asks for; at: in place of the mapping there, which has
 * map_size bytes, and anew: a pool file is replaced by an empty one. On an error nothing is open,
 * and what was at `at` is still there. */
tarn_status pool_backing_open(const struct pool_config *c, char *at, uint64_t map_size, bool anew,
                              struct pool_backing *b_p, const char **why_p);
/* Closes the descriptors, which drops the file's lock; the mapping is its owner's. */
void pool_backing_close(struct pool_backing *b);
/* Gives back what is behind the header. */
void pool_backing_punch(struct pool_backing *b);
/* A file that was punched: room for all of it, so that no store can fail for want of it. */
tarn_status pool_backing_refill(struct pool_backing *b, const char *path, const char **why_p);
/* Gives back what is behind map_size, once the header says that the pool ends there. */
void pool_backing_trim(struct pool_backing *b);
bool pool_backing_strangers(const struct pool_backing *b);

/* Is this header of this start of the machine? */
bool pool_same_boot(const struct segment_header *h);

/* Touches [base, base + size) with several threads; the memory may be used meanwhile. keep: the
 * bytes are not zero and must stay clean on disk. huge: in huge pages, where that can be done; of
 * memory that is all zeroes only. over: the threads are through; otherwise it logs
 * how far they are. end waits for them, or has them stop first (TARN_ECANCELED, where they are not
 * through). */
struct pool_populating *pool_populate_begin(void *base, uint64_t size, bool keep, bool huge);
bool pool_populate_over(struct pool_populating *p, struct pool_progress *progress_p);
tarn_status pool_populate_end(struct pool_populating **p_p, bool cancel);

#endif
