/* Answers of any bytes, at once and in pieces: the same comes out, and it is within bounds. */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "scrape/read.h"

static void number_check(uint64_t v) {
    TARN_ASSERT(v <= SCRAPE_MOST || v == SCRAPE_UNKNOWN);
}

static bool read_pieces(const uint8_t *data, size_t size, size_t piece, struct scrape_load *load) {
    struct scrape_reader *r = malloc(sizeof(*r));
    char why[SCRAPE_WHY] = "";
    TARN_ASSERT(r != NULL);
    scrape_reader_begin(r);
    for (size_t at = 0; at < size; at += piece)
        scrape_reader_take(r, span_of(data + at, size - at < piece ? size - at : piece));
    bool any = scrape_reader_end(r, load, why);
    TARN_ASSERT(any == (load->count > 0) && any == (why[0] == '\0'));
    TARN_ASSERT(load->count <= SCRAPE_RANKS_MAX && (r->refused > 0) == (r->why[0] != '\0'));
    free(r);
    return any;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct scrape_load load, again;
    bool any = read_pieces(data, size, size + 1, &load);
    TARN_ASSERT(read_pieces(data, size, 1 + size % 61, &again) == any);
    TARN_ASSERT(load.count == again.count);
    for (uint32_t i = 0; i < load.count; i++) {
        const struct scrape_rank *a = &load.rank[i], *b = &again.rank[i];
        TARN_ASSERT(a->rank == b->rank && a->waiting == b->waiting && a->running == b->running &&
                    a->used_tokens == b->used_tokens && a->capacity_tokens == b->capacity_tokens);
        TARN_ASSERT(a->rank < SCRAPE_RANKS_MAX || (a->rank == SCRAPE_NO_RANK && load.count == 1));
        TARN_ASSERT(a->waiting != SCRAPE_UNKNOWN || a->running != SCRAPE_UNKNOWN);
        number_check(a->waiting);
        number_check(a->running);
        number_check(a->used_tokens);
        number_check(a->capacity_tokens);
        TARN_ASSERT(scrape_load_find(&load, a->rank, false) == a);
    }
    return 0;
}
