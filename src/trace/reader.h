/* What the files that read a format share: the trace that is being made, and what one line must
 * know of those before it. */
#ifndef TARN_TRACE_READER_H
#define TARN_TRACE_READER_H

#include "trace/dense.h"
#include "trace/share.h"
#include "trace/trace.h"

/* The columns of a CSV that are used; where they are is said by its first line. */
enum trace_column { COLUMN_TIME, COLUMN_INPUT, COLUMN_OUTPUT, COLUMN_SESSION, COLUMNS };
#define COLUMN_ABSENT UINT32_MAX

struct trace_reader {
    struct trace *t;
    const struct trace_options *o;
    enum trace_format format;
    /* bailian: chats have numbers, by which sessions[] is the conversation they belong to */
    struct dense chats;
    uint32_t *sessions;
    size_t n_sessions, cap_sessions;
    uint32_t conversations;
    /* CSVs */
    uint32_t column[COLUMNS], columns;
    struct dense named_sessions;
    struct share_model share;
    uint64_t zero_ms; /* of the first row */
    bool began;
    char error[160];
};

/* One line each, which is not blank. NULL, or "FIELD: what is wrong", and then nothing was added;
 * the text is static or lies in r->error. */
const char *trace_json_line(struct trace_reader *r, struct span line);
const char *trace_csv_head(struct trace_reader *r, struct span line);
const char *trace_csv_line(struct trace_reader *r, struct span line);

/* Adds a request whose n ids are the last of t->ids. */
void trace_add(struct trace *t, const struct trace_request *q);

#endif
