/* Request traces in the public Mooncake format: one JSON object a line, with timestamp (ms),
 * input_length, output_length and hash_ids (one per block of 512 tokens, a prefix shares its
 * ids). */
#ifndef TARN_BENCHMARK_TRACE_H
#define TARN_BENCHMARK_TRACE_H

#include <stddef.h>
#include <stdint.h>

#define TRACE_BLOCK 512u /* tokens */

struct trace_request {
    uint64_t timestamp_ms;
    size_t first, n; /* into trace.ids */
};
struct trace {
    struct trace_request *requests;
    size_t n, cap;
    uint64_t *ids;
    size_t n_ids, cap_ids;
    size_t longest; /* most blocks of one request */
};

/* Adds one line. NULL, or what is wrong with it (static). Unknown fields are skipped; timestamp and
 * hash_ids must be there. */
const char *trace_add_line(struct trace *t, const char *line, size_t len);
/* Reads a file, up to limit requests (0: all). Ends the program with file and line on an error. */
void trace_load(struct trace *t, const char *path, size_t limit);
void trace_free(struct trace *t);

#endif
