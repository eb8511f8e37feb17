/* Answers by answer_scan.c and by hiredis' reader alone: the same bytes, in the same pieces, are
 * the same answers, or the same refusal, at the same time. The first byte says how long the pieces
 * are. */
#include <hiredis/read.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/assert.h"
#include "client/answer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool same(const struct answer *a, const struct answer *b) {
    if (a->type != b->type || a->len != b->len || a->integer != b->integer) return false;
    if (a->type == ANSWER_ARRAY) {
        for (size_t i = 0; i < a->len; i++)
            if (!same(&a->element[i], &b->element[i])) return false;
        return true;
    }
    return (a->str == NULL) == (b->str == NULL) &&
           (a->str == NULL || memcmp(a->str, b->str, a->len + 1) == 0);
}

/* All that are whole. false: what came is refused. */
static bool compare(struct redisReader **scanned, struct answer_scan *scan,
                    struct redisReader *alone) {
    for (;;) {
        void *a = NULL, *b = NULL;
        int status = answer_reader_next(scanned, scan, &a);
        TARN_ASSERT(status == redisReaderGetReply(alone, &b));
        if (status != REDIS_OK) return false;
        TARN_ASSERT((a == NULL) == (b == NULL));
        if (a == NULL) return true;
        TARN_ASSERT(same(a, b));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    struct arena arenas[2] = {{0}, {0}};
    struct redisReader *scanned = answer_reader_create(), *alone = answer_reader_create();
    struct answer_scan scan = {.root = NULL};
    size_t piece = 1 + data[0];
    answer_reader_set_arena(scanned, &arenas[0]);
    answer_reader_set_arena(alone, &arenas[1]);
    for (size_t at = 1; at < size; at += piece) {
        size_t n = size - at < piece ? size - at : piece;
        TARN_ASSERT(redisReaderFeed(scanned, (const char *)data + at, n) == REDIS_OK);
        TARN_ASSERT(redisReaderFeed(alone, (const char *)data + at, n) == REDIS_OK);
        if (!compare(&scanned, &scan, alone)) break;
    }
    redisReaderFree(scanned);
    redisReaderFree(alone);
    for (int i = 0; i < 2; i++) arena_free(&arenas[i]);
    return 0;
}
