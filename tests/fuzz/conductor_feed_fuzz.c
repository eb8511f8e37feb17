/* Batches of KV events of any bytes, taken into an index in pieces: each is taken to its end, and
 * the index adds up. The same batch comes again, and once more after all was lost. */
#include "base/assert.h"
#include "conductor/feed.h"
#include "kvevents/decode.h"

static void batch_take(struct feed *f, const struct kvevents_batch *b) {
    struct feed_place at = {0};
    bool done = false;
    for (uint64_t left = b->n + b->blocks + 1; !done; left--) {
        struct feed_place was = at;
        TARN_ASSERT(left > 0);
        done = feed_take(f, b, true, &at);
        TARN_ASSERT(done || at.event > was.event || at.block > was.block);
    }
    (void)route_index_check(f->index);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct route_options options = route_options_default;
    struct route_engine_spec spec = {
        .id = SPAN("e"), .model = SPAN("m"), .lora = SPAN("*"), .block_tokens = 16};
    struct feed feed;
    options.workers_max = 2;
    options.index_bytes = 1u << 20;
    struct route *route = route_create(&options);
    TARN_ASSERT(route_engine_add(route, &spec, 1) == TARN_OK);
    feed_init(&feed, route_index(route), route_worker_holder(route, 0), &spec);
    struct kvevents_decoder *d = kvevents_decoder_create(1, 65536);
    struct kvevents_batch *b = NULL;
    const char *why;
    if (kvevents_decode(d, span_of(data, size), &b, &why) == TARN_OK) {
        batch_take(&feed, b);
        batch_take(&feed, b);
        feed_lose(&feed);
        TARN_ASSERT(route_holder_blocks(feed.index, feed.holder) == 0);
        batch_take(&feed, b);
        kvevents_batch_destroy(&b);
    }
    route_check(route);
    route_destroy(&route);
    kvevents_decoder_destroy(&d);
    return 0;
}
