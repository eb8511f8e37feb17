/* Batches of which other masters have other keys: AT position ... OF length. */
#ifndef TARN_COMMANDS_SPREAD_H
#define TARN_COMMANDS_SPREAD_H

#include "front/cmd.h"
#include "wire/options.h"

/* Are its n positions below its length? false: answered. */
static inline bool spread_check(struct client *c, const struct wire_spread *s, size_t n) {
    uint64_t position;
    for (size_t i = 0; s->at != 0 && i < n; i++) {
        if (span_to_u64(c->argv[s->at + i], &position) && position < s->of) continue;
        reply_error(c, "AT must be numbers below OF, one for each key");
        return false;
    }
    return true;
}

/* Tells the batch where in the whole its key number i is. */
static inline void spread_at(const struct client *c, const struct wire_spread *s, size_t i,
                             struct store_batch *b) {
    uint64_t position;
    if (s->at != 0 && span_to_u64(c->argv[s->at + i], &position))
        store_batch_at(b, (uint32_t)position, s->of);
}

#endif
