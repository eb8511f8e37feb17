/* The readers of traces: any text in any format, named by the first byte. What is taken keeps its
 * promises, and Mooncake's lines, written again, are read as the same. */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "trace/trace.h"

static void check_trace(const struct trace *t) {
    uint64_t ids = 0;
    for (size_t i = 0; i < t->n; i++) {
        const struct trace_request *q = &t->requests[i];
        TARN_ASSERT(q->first + q->n <= t->n_ids && q->n <= t->longest);
        TARN_ASSERT(q->input > 0 && q->input <= TRACE_TOKENS_MAX && q->output <= TRACE_TOKENS_MAX);
        TARN_ASSERT(q->n <= (q->input + t->block - 1) / t->block);
        TARN_ASSERT(q->timestamp_ms <= TRACE_TIME_MAX_MS + 1000);
        ids += q->n;
    }
    TARN_ASSERT(ids == t->n_ids);
}

static void read_again(const struct trace *t) {
    struct buf text = {0};
    struct trace again = {0};
    const struct trace_options o = {.format = TRACE_MOONCAKE};
    const char *why;
    trace_write(t, 0, t->n, &text);
    TARN_ASSERT(trace_parse(&again, span_of(text.data, text.len), "again", &o, &why) == TARN_OK);
    TARN_ASSERT(again.n == t->n && again.n_ids == t->n_ids);
    TARN_ASSERT(t->n_ids == 0 || memcmp(again.ids, t->ids, t->n_ids * sizeof(*t->ids)) == 0);
    for (size_t i = 0; i < t->n; i++)
        TARN_ASSERT(again.requests[i].session == t->requests[i].session);
    buf_free(&text);
    trace_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    /* Lengths of up to 2^26 tokens are blocks of 512, of which a CSV's lines make ids. */
    const struct trace_options o = {
        .format = (enum trace_format)(data[0] % TRACE_FORMATS), .limit = 64, .block = 1u << 16};
    struct trace t = {0};
    const char *why = NULL;
    struct span text = span_of(data + 1, size - 1);
    if (trace_parse(&t, text, "fuzz", &o, &why) == TARN_OK) {
        check_trace(&t);
        if (t.format == TRACE_MOONCAKE) read_again(&t);
        trace_sort(&t);
        TARN_ASSERT(trace_number(&t) <= t.n_ids);
    } else {
        TARN_ASSERT(why != NULL && strlen(why) > 0);
    }
    trace_free(&t);
    return 0;
}
