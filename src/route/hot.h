/* Prefixes that so many requests begin with that one engine cannot serve them all.
 *
 * Of each request the blocks at depths of 1, 2, 4, 8 ... are counted, with the work of the request
 * as faded sums: what a prefix's requests take of an engine's time. The table has a fixed size; of
 * a full line the least goes. Where the share of each of a prefix's holders is above the options'
 * copy_share, the longest such prefix is to be copied to the engine with the least to do. */
#ifndef TARN_ROUTE_HOT_H
#define TARN_ROUTE_HOT_H

#include <stdint.h>

#define HOT_LINES  1024u
#define HOT_WAYS   4u
#define HOT_ORDERS 64u /* waiting for the caller */

struct hot_entry {
    uint64_t hash;
    double work_us; /* faded sum */
    uint64_t at_us, begun_us;
    uint64_t ordered_us; /* of the last copy */
};
struct hot_prefixes {
    struct hot_entry *entries;
};
#define HOT_BYTES (HOT_LINES * HOT_WAYS * sizeof(struct hot_entry))

void hot_init(struct hot_prefixes *h);
void hot_deinit(struct hot_prefixes *h);
/* Adds work; the share of time that this prefix's work takes now, of one worker. */
struct hot_entry *hot_add(struct hot_prefixes *h, uint64_t hash, double work_us, uint64_t now_us,
                          double *share_p);

#endif
