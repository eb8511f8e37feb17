/* Inside the room: what a put and a look-up share of a batch. */
#ifndef TARN_STORE_BATCH_H
#define TARN_STORE_BATCH_H
#include "store/policy.h"

void batch_number(struct store *s, struct store_batch *b, uint64_t hash);
struct policy_event batch_event(const struct store *s, const struct store_batch *b);
#endif
