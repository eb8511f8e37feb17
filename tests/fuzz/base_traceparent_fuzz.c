/* Trace contexts: any bytes are refused, or read as a text that reads as itself. */
#include <stdint.h>

#include "base/assert.h"
#include "base/traceparent.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct traceparent first, second;
    if (!traceparent_read(span_of((const char *)data, size), &first)) return 0;
    TARN_ASSERT(size >= TRACEPARENT_LEN && strlen(first.text) == TRACEPARENT_LEN);
    TARN_ASSERT(traceparent_read(span_str(first.text), &second));
    TARN_ASSERT(strcmp(first.text, second.text) == 0);
    TARN_ASSERT(traceparent_is_sampled(&first) == traceparent_is_sampled(&second));
    return 0;
}
