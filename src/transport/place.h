/* Where a value lies, packed: what MGETREPLICAS and MPUTSTART answer for the usual one (a single
 * replica in one piece of memory) when they were asked for PACKED. In RESP it is a bulk string of
 * these bytes, little-endian, with NOGRANT only of those before the grant; the long form of a batch
 * of thousands costs both sides as much as all the rest of a small value's look-up.
 * docs/COMMANDS.md has it in words. */
#ifndef TARN_TRANSPORT_PLACE_H
#define TARN_TRANSPORT_PLACE_H

#include <stddef.h>
#include "transport/grant.h"

#define PLACE_HAS_CRC 1u
#define PLACE_SUSPECT 2u /* of an object: verify it whatever you were asked for */

struct place_packed {
    uint64_t number; /* version of an object, token of a put */
    uint32_t lease_ms;
    uint32_t flags;
    uint32_t crc;
    uint32_t zero;
    struct grant_extent extent; /* its length is the value's */
    uint8_t grant[GRANT_SIZE];
};
#define PLACE_NO_GRANT_SIZE offsetof(struct place_packed, grant)
_Static_assert(sizeof(struct place_packed) == 88 && PLACE_NO_GRANT_SIZE == 48, "as it travels");

#endif
