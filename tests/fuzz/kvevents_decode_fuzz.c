/* Batches of KV events of any bytes. What comes out is read to its last number, and is no larger
 * than promised. */
#include <stdlib.h>

#include "base/assert.h"
#include "kvevents/decode.h"

static uint64_t sum;

static void event_check(const struct kvevents_event *e) {
    TARN_ASSERT((e->n == 0) == (e->kind == KVEVENTS_CLEARED));
    TARN_ASSERT((unsigned)e->tier < ROUTE_TIERS && e->block <= KVEVENTS_BLOCK_MAX);
    TARN_ASSERT(e->has_parent || e->parent == 0);
    for (size_t i = 0; i < e->n; i++) sum += e->own[i] + (e->local != NULL ? e->local[i] : 0);
    for (size_t i = 0; i < e->lora.len; i++) sum += (uint8_t)e->lora.data[i];
    for (size_t i = 0; i < e->salt.len; i++) sum += (uint8_t)e->salt.data[i];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct kvevents_decoder *d = kvevents_decoder_create(1, 65536);
    /* Twice: the second time with the memory of the first. */
    for (int i = 0; i < 2; i++) {
        struct kvevents_batch *b = NULL;
        const char *why = NULL;
        tarn_status rc = kvevents_decode(d, span_of(data, size), &b, &why);
        TARN_ASSERT((rc == TARN_OK) == (b != NULL) && (rc == TARN_OK) == (why == NULL));
        if (b == NULL) continue;
        uint64_t blocks = 0;
        for (size_t k = 0; k < b->n; k++) {
            event_check(&b->events[k]);
            blocks += b->events[k].n;
        }
        TARN_ASSERT(b->blocks == blocks && b->n <= KVEVENTS_EVENTS_MAX);
        TARN_ASSERT((b->left_out > 0) == (b->why_left_out != NULL));
        TARN_ASSERT(b->bytes <= sizeof(*b) + KVEVENTS_BLOWUP * size);
        kvevents_batch_destroy(&b);
    }
    kvevents_decoder_destroy(&d);
    return 0;
}
