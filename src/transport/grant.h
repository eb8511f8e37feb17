/* A grant: a capability for one host, signed by the master with that host's key. The host needs
 * nothing else to decide whether a transfer is allowed, and the holder cannot change what it
 * allows.
 *
 * The MAC is SipHash-2-4 with a 128-bit result (Aumasson and Bernstein 2012, libsodium) over the
 * grant's fields and the extent they are for. In RESP a grant is a bulk string of GRANT_SIZE bytes;
 * on the data port it travels beside its extent. */
#ifndef TARN_TRANSPORT_GRANT_H
#define TARN_TRANSPORT_GRANT_H

#include <stdbool.h>
#include <stdint.h>
#include "base/status.h"

#define GRANT_SIZE         40u
#define GRANT_KEY_SIZE     16u
#define GRANT_RECEIPT_SIZE 16u
#define GRANT_PUT_MASK     ((UINT64_C(1) << 36) - 1)

enum grant_op {
    GRANT_READ = 1,
    GRANT_WRITE = 2,
    /* shm: hand out the read-only descriptor; offset 0, length of the segment */
    GRANT_ATTACH_READ = 3,
    GRANT_ATTACH_WRITE = 4, /* shm: hand out the writable one */
    GRANT_WRITE_ONCE = 5,   /* WRITE until it is sealed, for one put: asked for as GRANT_WRITE */
};

struct grant_extent {
    uint32_t segment, segment_epoch;
    uint64_t offset, length;
};

struct grant {
    enum grant_op op;
    uint32_t master_epoch;
    /* of the client it was given to; a data connection belongs to one session */
    uint64_t session;
    uint64_t expiry_ms; /* the master's monotonic clock */
    /* WRITE_ONCE: which put it is for, by the low bits of its token (GRANT_PUT_MASK); else 0 */
    uint64_t put;
};

enum grant_verdict {
    GRANT_OK,
    GRANT_BAD_MAC, /* forged, damaged, for another extent or another host */
    GRANT_BAD_OP,
    GRANT_BAD_RANGE, /* the wanted sub-range is not inside the extent */
    GRANT_BAD_EPOCH,
    GRANT_EXPIRED,
    GRANT_FENCED, /* the session was cut off */
    GRANT_OVER,   /* WRITE_ONCE: it was sealed */
    /* WRITE_ONCE: not at the moment: the host has too many of them, or it is to be sealed and
       somebody writes */
    GRANT_LATER,
    GRANT_VERDICTS,
};
const char *grant_verdict_name(enum grant_verdict v);
/* What a refusal is to the client. TARN_EPROTO: it is no verdict. */
static inline tarn_status grant_verdict_status(uint32_t v) {
    switch (v) {
    case GRANT_OK: return TARN_OK;
    case GRANT_BAD_EPOCH: return TARN_ESTALE;
    case GRANT_EXPIRED:
    case GRANT_OVER: return TARN_EGRANT_EXPIRED;
    case GRANT_LATER: return TARN_ELIMIT;
    default: return v < GRANT_VERDICTS ? TARN_EPERM : TARN_EPROTO;
    }
}

void grant_seal(const uint8_t key[GRANT_KEY_SIZE], const struct grant *g,
                const struct grant_extent *e, uint8_t out[GRANT_SIZE]);
/* The same for the extents of a batch, whose grants say the same: what their MACs begin with is
 * computed once, which is a third of each. */
struct grant_sealer {
    uint8_t fields[GRANT_SIZE - 16];
    uint64_t state[4]; /* of SipHash, behind the fields */
};
void grant_sealer_init(struct grant_sealer *s, const uint8_t key[GRANT_KEY_SIZE],
                       const struct grant *g);
void grant_sealer_seal(const struct grant_sealer *s, const struct grant_extent *e,
                       uint8_t out[GRANT_SIZE]);
/* Checks everything but fencing, constant-time where it compares MACs. g_p is written when the MAC
 * is right.
 */
enum grant_verdict grant_check(const uint8_t key[GRANT_KEY_SIZE], const uint8_t in[GRANT_SIZE],
                               const struct grant_extent *e, enum grant_op want,
                               uint64_t sub_offset, uint64_t sub_length, uint32_t master_epoch,
                               uint32_t segment_epoch, uint64_t now_ms, struct grant *g_p);
/* A host's word on a grant WRITE_ONCE: from now on it writes nothing more, and all of its extent
 * has been written by it (whole), or not. The MAC is over another number of bytes than a grant's,
 * so that neither passes for the other. */
void grant_receipt(const uint8_t key[GRANT_KEY_SIZE], const struct grant *g,
                   const struct grant_extent *e, bool whole, uint8_t out[GRANT_RECEIPT_SIZE]);
bool grant_receipt_check(const uint8_t key[GRANT_KEY_SIZE], const struct grant *g,
                         const struct grant_extent *e, bool whole,
                         const uint8_t in[GRANT_RECEIPT_SIZE]);
/* Is it a grant WRITE_ONCE, by what it says itself? For its holder, who must have it sealed. */
bool grant_is_once(const uint8_t in[GRANT_SIZE]);
/* What in claims its master epoch is, unchecked: only good for telling a stale grant from a forged
 * one in a refusal. */
uint32_t grant_claimed_epoch(const uint8_t in[GRANT_SIZE]);

#endif
