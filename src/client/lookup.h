/* What is asked of keys without their bytes. */
#ifndef TARN_CLIENT_LOOKUP_H
#define TARN_CLIENT_LOOKUP_H

#include "client/client.h"

#define LOOKUP_KEYS 32768u /* keys in one request */

struct lookup {
    enum wire_id id; /* MEXISTS, PREFIXLEN, DEL */
    const tarn_key *keys;
    size_t n;
    uint64_t lease_ms, wait_ms;
    struct call_hint hint;
    struct call_spread spread;
    struct answer *answer;
};
void lookup_build(struct lane *lane, const struct lookup *l);
/* In its figures. */
void lookup_count(struct lane *lane, const struct lookup *l);

#endif
