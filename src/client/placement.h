/* What PUTSTART and GETREPLICAS answer. */
#ifndef TARN_CLIENT_PLACEMENT_H
#define TARN_CLIENT_PLACEMENT_H

#include <stdbool.h>
#include <stdint.h>
#include "client/answer.h"
#include "client/arena.h"
#include "engine/engine.h"
#include "engine/placed.h"
#include "tarn.h"
#include "transport/grant.h"

#define INLINE_MAX  64u
#define VALUE_MAX   (UINT64_C(1) << 40)
#define EXTENTS_MAX 8u

#define REPLICAS_MAX PLACED_REPLICAS_MAX /* a server sends fewer */

enum replica_tier { REPLICA_MEMORY, REPLICA_SSD, REPLICA_FILE };
struct placed_replica {
    enum replica_tier tier;
    struct engine_part *parts;
    size_t n_parts;
    const char *path; /* REPLICA_FILE: the value is what this file begins with */
};

struct placement {
    uint64_t version, size;
    uint64_t lease_ms, lease_end; /* lease_end: CLOCK_BOOTTIME ms, already shortened; 0: no lease */
    int64_t crc;                  /* -1: none */
    /* its memory may have been given to others without the server knowing */
    bool suspect;
    bool must_verify; /* that, or it may come from a disk: whatever the options say */
    uint64_t token;
    struct placed_replica *replica; /* nearest first */
    unsigned replicas;
    const char *value;   /* inline */
    const uint8_t *crcs; /* packed, NULL: none */
    size_t n_crcs;
};
/* The end of a lease granted by an answer to a request that was sent at sent_ns
 * (CLOCK_BOOTTIME). */
uint64_t placement_lease_end(uint64_t sent_ns, uint64_t lease_ms);
/* TARN_ENOTFOUND for nil. Replicas that make no sense to us are left out; if there are no others,
 * it says why. no_grant: none were asked for, and parts may have NULL. */
tarn_status placement_of_get(struct arena *arena, const struct answer *a, bool no_grant,
                             uint64_t sent_ns, struct placement *p);
/* TARN_EEXISTS for nil. All replicas, in the server's numbering. */
tarn_status placement_of_put(struct arena *arena, const struct answer *a, bool no_grant,
                             uint64_t size, struct placement *p);
/* Are its grants to be sealed? Of a put. */
static inline bool placement_is_once(const struct placement *p) {
    const uint8_t *grant = p->replicas > 0 ? p->replica[0].parts[0].grant : NULL;
    return grant != NULL && grant_is_once(grant);
}
/* Room, zeroes, for the hosts' word on the grants of a put that are to be sealed:
 * GRANT_RECEIPT_SIZE for each extent. NULL: they need not be. */
uint8_t *placement_receipts(struct arena *arena, const struct placement *p, size_t *n_p);
uint8_t *placement_receipts_of(const struct placement *p, uint8_t *receipts, unsigned replica);

#endif
