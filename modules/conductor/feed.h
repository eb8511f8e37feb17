/* What an engine's events say, into the index: batches (kvevents/decode.h) become blocks of the
 * holder that stands for a rank of it. Pure.
 *
 * It errs to the side of the index (route/index.h): what cannot be placed is left out and counted,
 * which costs hits. In particular
 *
 *   - blocks are of the adapter and the salt that the event names; without a salt of the engine's
 *     registration. (vLLM's salt is among the extra keys of the first block, and so in its hash.)
 *   - a KV group is what its first event says. Its blocks are of that size, also where the engine
 *     is registered with another: prompts that are hashed by another have nothing there.
 *   - a group that becomes another one, until all is lost or cleared, is left out; where there is a
 *     group that the index has no room for, nothing is known of that engine at all, as a prefix
 *     without it would be a false one. */
#ifndef TARN_CONDUCTOR_FEED_H
#define TARN_CONDUCTOR_FEED_H

#include "base/figures.h"
#include "kvevents/decode.h"
#include "route/route.h"

#define FEED_FIGURES(X)                                                                            \
    X(COUNTER, conductor_events_misfitting,                                                        \
      "events of blocks of another size than their engine is registered with")                     \
    X(COUNTER, conductor_events_adapter,                                                           \
      "events of blocks of an adapter that their engine is not registered for")                    \
    X(COUNTER, conductor_events_nameless,                                                          \
      "events of blocks by names alone that no others go with, left out")                          \
    X(COUNTER, conductor_events_elsewhere,                                                         \
      "events of blocks that are in no tier of the engine itself, left out")                       \
    X(COUNTER, conductor_events_groups,                                                            \
      "events of KV groups that became others, or of too many, left out")                          \
    X(COUNTER, conductor_events_rank, "batches of another rank of the engine, left out")           \
    X(COUNTER, conductor_events_salted, "events of blocks with a salt of their own")
struct feed_figures {
    FEED_FIGURES(FIGURE_MEMBER)
};

struct feed {
    struct route_index *index;
    uint32_t holder;
    uint32_t rank;
    uint32_t block; /* as registered */
    char model[ROUTE_NAME_MAX + 1], lora[ROUTE_NAME_MAX + 1], salt[ROUTE_NAME_MAX + 1];

    bool unusable; /* too many groups; for good */
    struct feed_group {
        bool told;
        struct route_group what;
        uint64_t scope; /* of blocks without adapter and salt of their own */
    } group[ROUTE_GROUPS_MAX];
    struct feed_figures figures;
    /* the last of those that are counted */
    uint32_t odd_block;
    char odd_lora[ROUTE_NAME_MAX + 1];
    int64_t odd_rank;
};

/* The registration's values; the holder has nothing yet. */
void feed_init(struct feed *f, struct route_index *index, uint32_t holder,
               const struct route_engine_spec *spec);
/* All that was told counts for nothing: LOST, or the engine has cleared its cache. */
void feed_lose(struct feed *f);

/* Where in a batch it goes on; zeroed: at its beginning. */
struct feed_place {
    size_t event, block;
};
/* Takes some hundred blocks of the batch. true: that was the last of it. lone: the engine has no
 * other ranks. */
bool feed_take(struct feed *f, const struct kvevents_batch *b, bool lone, struct feed_place *at);

#endif
