/* What was asked for lately: models with adapters and salts, each with how often it was asked, what
 * came of it, for CONDUCTOR.DOCTOR. A few of them; the one longest unasked goes for a new one.
 * Pure. */
#ifndef TARN_CONDUCTOR_ASKED_H
#define TARN_CONDUCTOR_ASKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "route/route.h"

#define ASKED_MAX 16u

struct asked {
    char model[ROUTE_NAME_MAX + 1], lora[ROUTE_NAME_MAX + 1], salt[ROUTE_NAME_MAX + 1];
    uint64_t requests, unserved, hashed, hits; /* hashed: with hashes of blocks; hits: of those */
    /* Of which the pool was asked, had something, could not be asked: without tokens. */
    uint64_t pool_asked, pool_hits, pool_untold;
    uint64_t at_us;
};

/* NULL: no more. */
const struct asked *asked_at(size_t i);
struct asked *asked_get(struct span model, struct span lora, struct span salt, uint64_t now_us);
void asked_clear(void);

#endif
