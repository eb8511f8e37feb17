/* Inside the room: what a put and a look-up share of a batch. */
#ifndef TARN_STORE_BATCH_H
#define TARN_STORE_BATCH_H
#include "store/policy.h"

void batch_number(struct store *s, struct store_batch *b, uint64_t hash);
/* The put of this key, the event of which is given, has no room yet: the batch that begins with it
 * goes on with this one. */
void batch_later(struct store_batch *b, uint64_t hash, const struct policy_event *e);
/* One key more; the event is its own. */
void batch_step(struct store *s, struct store_batch *b, const struct policy_event *e);
/* The batch that was last gone on with has ended, if there is one that has not. */
void batch_over(struct store *s);
struct policy_event batch_event(const struct store *s, const struct store_batch *b, uint64_t hash);
#endif
