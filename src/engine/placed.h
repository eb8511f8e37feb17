/* Reading a value, or a range of one, that lies in one or more replicas: which bytes have to be
 * read so that those that are wanted can be verified, which replica they come from, whether they
 * are what was put, and where it goes on after a replica that was not there, or not right.
 *
 *   init, range ─> choose ─> [the next piece is moved] ─┬─> took: PLACED_MORE ─> the next piece
 *                    ^                                  ├─> took: PLACED_DONE
 *                    │                                  ├─> took: PLACED_WRONG ─┐
 *                    └── goes on at pos, elsewhere <────┴─> failed ─────────────┘
 *
 * Where the next replica has what is missing, the read goes on in the middle: every byte is checked
 * anyhow, by its block's CRC or in the end by the value's.
 *
 * Nothing moves here, and nothing is waited for: libtarn drives a batch of these with engine_run,
 * the server one for each value on its way with a mover. They know about leases, hosts and
 * deadlines, and what to do when no replica is left. A replica is a number below
 * PLACED_REPLICAS_MAX, given by the owner. */
#ifndef TARN_ENGINE_PLACED_H
#define TARN_ENGINE_PLACED_H

#include "base/assert.h"
#include "engine/engine.h"

#define PLACED_BLOCK        (UINT64_C(1) << 20) /* bytes that a CRC of a block covers */
#define PLACED_REPLICAS_MAX 32u                 /* bits of a mask */

struct placed_value {
    uint64_t version, size;
    int64_t crc; /* of all of it; -1: none */
    /* uint32_t for each block from first_block on, not necessarily aligned; borrowed. NULL: none */
    const void *crcs;
    uint64_t first_block;
};

/* What a range is verified by. */
enum placed_check { PLACED_UNCHECKED, PLACED_WHOLE, PLACED_BLOCKS };

struct placed_read {
    struct placed_value value;
    enum placed_check check;
    uint64_t from, to;   /* bytes to read, out to the borders of what is checked */
    uint64_t pos;        /* read, and counted in sum, so far */
    uint32_t sum;        /* PLACED_WHOLE */
    uint32_t *learned;   /* placed_read_learn */
    uint32_t given_up;   /* bit i: replica i */
    uint32_t sources;    /* bit i: bytes of replica i are counted in sum */
    unsigned at;         /* the replica that is read now */
    unsigned replicas;   /* there were at the last choice */
    unsigned mismatches; /* how often a CRC was wrong */
};

/* All replicas are as good as before the first try. A range has to be set. */
void placed_read_init(struct placed_read *r, const struct placed_value *value);

/* The same, and then placed_read_range, for all of one that is no longer than a block and has a
 * CRC. */
static inline void placed_read_whole(struct placed_read *r, const struct placed_value *value,
                                     bool verify) {
    TARN_ASSERT(value->size > 0 && value->size <= PLACED_BLOCK && value->crc >= 0);
    *r = (struct placed_read){
        .value = *value, .check = verify ? PLACED_WHOLE : PLACED_UNCHECKED, .to = value->size};
}

enum placed_how {
    PLACED_VERIFY = 1, /* else bytes are taken as they come, as where there is no CRC */
    /* Bytes are handed on before the last one is there: by blocks, where their CRCs are known */
    PLACED_IN_PIECES = 2,
};
/* Reads [from, from + len) from here on; what is known of replicas stays. Pieces end with a block,
 * or with the range. */
void placed_read_range(struct placed_read *r, uint64_t from, uint64_t len, unsigned how);
/* Takes down the CRC of each block while all of the value is read, a block at a time; after
 * PLACED_DONE ranges are verified by them. Room for all blocks, borrowed. Only for PLACED_WHOLE. */
void placed_read_learn(struct placed_read *r, uint32_t *room);
/* It was located anew, and its replicas may have other numbers. false: it is another value now, or
 * must be verified and what was read was not: begin anew. A version has one size and one CRC: a
 * server that says otherwise is wrong, now or before, and nothing that was made for the one may be
 * used with the other. */
bool placed_read_relocated(struct placed_read *r, const struct placed_value *now, bool verify);
/* No other replica will do: this one has been looked at. */
void placed_read_only(struct placed_read *r, unsigned replica);

/* Something speaks against this replica, as long as there is another. */
typedef bool (*placed_avoid_fn)(void *arg, unsigned replica);
/* true: there is one replica, number 0, which has not failed, and it is chosen. */
static inline bool placed_read_choose_sole(struct placed_read *r, unsigned n) {
    r->replicas = n;
    return n == 1 && r->at == 0 && r->given_up == 0;
}
extern const uint8_t placed_in_order[PLACED_REPLICAS_MAX]; /* 0, 1, 2, ... */
/* The replica to read from (at): the one before, or the first that will do; one to be avoided only
 * when there is nothing else. order: their numbers, best first. Returns its place in order, n: none
 * is left. avoid is asked about no more of them than needed; NULL: about none. */
unsigned placed_read_choose(struct placed_read *r, const uint8_t *order, unsigned n,
                            placed_avoid_fn avoid, void *arg);
/* Is there another one that will do, and is not to be avoided? */
bool placed_read_has_other(const struct placed_read *r, const uint8_t *order, unsigned n,
                           placed_avoid_fn avoid, void *arg);

enum placed_next {
    PLACED_MORE,  /* right as far as one can tell, which is all the way for PLACED_BLOCKS */
    PLACED_DONE,  /* all of the range is there, and right */
    PLACED_WRONG, /* not what was put: it goes on at pos, which may be the beginning again */
};
/* The next len bytes have come from that replica. crcs: of all of them, or by blocks for
 * PLACED_BLOCKS; not looked at where nothing is checked. */
enum placed_next placed_read_took(struct placed_read *r, unsigned replica, uint64_t len,
                                  const uint32_t *crcs);
/* All of the range at once, which one CRC verifies. false: it is not so, or not right, and nothing
 * was noted. */
static inline bool placed_read_took_whole(struct placed_read *r, unsigned replica, uint64_t len,
                                          uint32_t crc) {
    if (r->check != PLACED_WHOLE || r->pos != 0 || len != r->to || r->learned != NULL ||
        crc != (uint32_t)r->value.crc)
        return false;
    r->sum = crc;
    r->sources |= UINT32_C(1) << replica;
    r->pos = len;
    return true;
}
/* They have not, and shall come from another one. */
void placed_read_failed(struct placed_read *r, unsigned replica);

/* The bytes [from, from + len) of what the parts hold: out gets up to n parts, returns how many. */
size_t placed_parts(const struct engine_part *parts, size_t n, uint64_t from, uint64_t len,
                    struct engine_part *out);

/* A replica in a file of at least size bytes. TARN_ENOTFOUND: there is none; TARN_EIO. */
tarn_status placed_file_open(const char *path, uint64_t size, int *fd_p);
/* Fills op->iov with what is in it from offset on, with the CRCs that op asks
 * for. Blocks. Returns TARN_OK, TARN_EIO, TARN_ECORRUPT (the file is too short: no better than
 * wrong bytes), or TARN_ELEASE as engine_run would. */
tarn_status placed_file_read(int fd, uint64_t offset, struct engine_op *op);

#endif
