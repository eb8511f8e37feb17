/* How fast engines' batches of KV events are decoded, local hashes included: docs/BENCHMARKS.md has
 * its numbers.
 *
 *     kvevents_decode [BLOCKS [TOKENS]]        4096 blocks a batch, of 16 tokens
 *
 * By form of the messages: vLLM's, a request in one event; SGLang's, an event for each block;
 * removed blocks. CPU time of the thread, the best of nine rounds. */
#include <stdio.h>
#include <stdlib.h>

#include "../kvevents_pack.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/rng.h"
#include "kvevents/decode.h"

static size_t blocks = 4096;
static uint32_t tokens = 16;
static uint64_t *hash;
static uint32_t *token;

enum form { ONE_EVENT, EVENT_A_BLOCK, REMOVED, FORMS };
static const char *const names[] = {"stored, one event", "stored, an event a block", "removed"};

static void batch_make(struct buf *b, enum form form) {
    pack_batch(b, 1.5, form == EVENT_A_BLOCK ? blocks : 1, true);
    if (form == ONE_EVENT) pack_stored(b, NULL, hash, blocks, token, tokens);
    for (size_t i = 0; form == EVENT_A_BLOCK && i < blocks; i++)
        pack_stored(b, i > 0 ? &hash[i - 1] : NULL, &hash[i], 1, token + i * tokens, tokens);
    if (form == REMOVED) pack_removed(b, hash, blocks);
    pack_uint(b, 0);
}

static void form_measure(enum form form) {
    struct buf b = {0};
    batch_make(&b, form);
    struct kvevents_decoder *d = kvevents_decoder_create(0, b.len);
    double best = 1e9;
    size_t times = 2000000 / blocks + 1, memory = 0;
    for (int round = 0; round < 9; round++) {
        uint64_t start = clock_ns(CLOCK_THREAD_CPUTIME_ID);
        for (size_t i = 0; i < times; i++) {
            struct kvevents_batch *batch = NULL;
            const char *why;
            TARN_ASSERT(kvevents_decode(d, span_of(b.data, b.len), &batch, &why) == TARN_OK);
            TARN_ASSERT(batch->blocks == blocks);
            memory = batch->bytes;
            kvevents_batch_destroy(&batch);
        }
        double ns = (double)(clock_ns(CLOCK_THREAD_CPUTIME_ID) - start);
        if (ns < best) best = ns;
    }
    double done = (double)(times * blocks);
    printf("%-26s %6.1f M blocks/s  %6.0f MB/s  %5.1f bytes a block, %5.1f decoded\n", names[form],
           done / best * 1e3, (double)(b.len * times) / best * 1e3, (double)b.len / (double)blocks,
           (double)memory / (double)blocks);
    kvevents_decoder_destroy(&d);
    buf_free(&b);
}

int main(int argc, char **argv) {
    if (argc > 1) blocks = strtoul(argv[1], NULL, 10);
    if (argc > 2) tokens = (uint32_t)strtoul(argv[2], NULL, 10);
    if (blocks == 0 || tokens == 0 || blocks > 1000000 || tokens > 1024) {
        fprintf(stderr, "kvevents_decode [BLOCKS [TOKENS]]\n");
        return 2;
    }
    hash = xcalloc(blocks, sizeof(*hash));
    token = xcalloc(blocks * tokens, sizeof(*token));
    struct rng r;
    rng_seed(&r, 1);
    for (size_t i = 0; i < blocks; i++) hash[i] = rng_next(&r);
    for (size_t i = 0; i < blocks * tokens; i++) token[i] = (uint32_t)rng_below(&r, 150000);
    for (int form = 0; form < FORMS; form++) form_measure((enum form)form);
    free(hash);
    free(token);
    return 0;
}
