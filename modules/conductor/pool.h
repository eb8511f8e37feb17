/* What the pool has of a request's prompt, for each way in which the model's engines call their
 * blocks there (CONDUCTOR.KEYS). */
#ifndef TARN_CONDUCTOR_POOL_H
#define TARN_CONDUCTOR_POOL_H

#include "conductor/prompt.h"
#include "route/route.h"

enum pool_answer {
    POOL_NO_KEYS,   /* no engine has said how it calls its blocks */
    POOL_NO_TOKENS, /* nor can a prompt be found whose tokens nobody says */
    POOL_NOTHING,
    POOL_FOUND
};
/* Fills in pools of the request, whose runs are borrowed until it is called again. block: the
 * smallest of the sizes by which the prompt was hashed: EXTRA counts in these. */
enum pool_answer pool_ask(const struct prompt_said *said, uint32_t block,
                          struct route_pool pools[ROUTE_POOLS_MAX]);
/* What of them lies only on disks comes to memory, for an engine that will read it. pools: as
 * pool_ask has filled them in. false: nothing does. */
bool pool_prefetch(const struct prompt_said *said, uint32_t block,
                   const struct route_pool pools[ROUTE_POOLS_MAX]);
void pool_free(void);

#endif
