/* Reading a trace line by line, and what is done with a whole one. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/assert.h"
#include "trace/reader.h"

static const char *const format_names[TRACE_FORMATS] = {"auto", "mooncake", "bailian", "burstgpt",
                                                        "azure"};

enum trace_format trace_format_of(const char *name) {
    unsigned i = 0;
    while (i < TRACE_FORMATS && strcmp(name, format_names[i]) != 0) i++;
    return (enum trace_format)i;
}

const char *trace_format_name(enum trace_format format) {
    return format_names[format];
}

void trace_add(struct trace *t, const struct trace_request *q) {
    ARRAY_GROW(t->requests, t->n, t->cap);
    t->requests[t->n++] = *q;
    if (q->n > t->longest) t->longest = q->n;
}

static bool span_holds(struct span s, const char *word) {
    return memmem(s.data, s.len, word, strlen(word)) != NULL;
}

static enum trace_format format_guess(struct span line) {
    if (line.data[strspn(line.data, " \t")] == '{')
        return span_holds(line, "\"chat_id\"") ? TRACE_BAILIAN : TRACE_MOONCAKE;
    if (span_holds(line, "ContextTokens")) return TRACE_AZURE;
    if (span_holds(line, "Request tokens")) return TRACE_BURSTGPT;
    return TRACE_AUTO;
}

static const char *reader_begin(struct trace_reader *r, struct span line) {
    r->format = r->o->format == TRACE_AUTO ? format_guess(line) : r->o->format;
    if (r->format == TRACE_AUTO)
        return "neither JSON nor the first line of a CSV that is known (burstgpt, azure)";
    r->t->format = r->format;
    uint32_t block = r->o->block != 0 ? r->o->block : TRACE_BLOCK;
    if (r->format == TRACE_MOONCAKE) block = TRACE_BLOCK;
    if (r->format == TRACE_BAILIAN) block = 16;
    r->t->block = block;
    share_init(&r->share, r->o->seed);
    return NULL;
}

/* line ends with a terminator that is not part of it. */
static const char *reader_line(struct trace_reader *r, struct span line) {
    if (strspn(line.data, " \t\r\n") >= line.len) return NULL;
    bool first = r->format == TRACE_AUTO;
    const char *error = first ? reader_begin(r, line) : NULL;
    if (error != NULL) return error;
    bool json = r->format == TRACE_MOONCAKE || r->format == TRACE_BAILIAN;
    if (!json && first) return trace_csv_head(r, line);
    return json ? trace_json_line(r, line) : trace_csv_line(r, line);
}

static void reader_free(struct trace_reader **r_p) {
    struct trace_reader *r = *r_p;
    dense_free(&r->chats);
    dense_free(&r->named_sessions);
    share_free(&r->share);
    free(r->sessions);
    free(r);
    *r_p = NULL;
}

static struct trace_reader *reader_open(struct trace *t, const struct trace_options *o) {
    struct trace_reader *r = xcalloc(1, sizeof(*r));
    r->t = t;
    r->o = o;
    return r;
}

static bool reader_full(const struct trace_reader *r) {
    size_t limit = r->o->limit > 0 ? r->o->limit : TRACE_REQUESTS_MAX;
    return r->t->n >= limit;
}

/* Appends to line up to its end, which is taken off. 1: there is one, 0: the file is over, -1: it
 * cannot be read, -2: it is too long, or has a zero byte. */
static int line_take(FILE *f, struct buf *line) {
    buf_clear(line);
    int c;
    while ((c = getc_unlocked(f)) != EOF) {
        if (c == '\0' || line->len == TRACE_LINE_MAX) return -2;
        buf_append_char(line, (char)c);
        if (c == '\n') break;
    }
    if (ferror(f)) return -1;
    if (line->len == 0) return 0;
    buf_append_char(line, '\0');
    line->len--;
    return 1;
}

static tarn_status reader_lines(struct trace_reader *r, FILE *f, const char *name,
                                const char **why_p) {
    struct buf line = {0};
    tarn_status status = TARN_OK;
    size_t number = 0;
    int took = 1;
    while (status == TARN_OK && !reader_full(r) && (took = line_take(f, &line)) == 1) {
        number++;
        const char *error = reader_line(r, span_of(line.data, line.len));
        if (error != NULL)
            status = status_fail(TARN_EINVAL, why_p, "%s:%zu: %s", name, number, error);
    }
    if (took == -1) status = status_fail(TARN_EIO, why_p, "%s: %s", name, strerror(errno));
    if (took == -2)
        status =
            status_fail(TARN_ELIMIT, why_p, "%s:%zu: the line is no text, or longer than %llu MiB",
                        name, number + 1, (unsigned long long)TRACE_LINE_MAX >> 20);
    buf_free(&line);
    return status;
}

static tarn_status reader_run(struct trace *t, FILE *f, const char *name,
                              const struct trace_options *o, const char **why_p) {
    struct trace_reader *r = reader_open(t, o);
    tarn_status status = reader_lines(r, f, name, why_p);
    if (status == TARN_OK && t->n == 0)
        status = status_fail(TARN_EINVAL, why_p, "%s: no requests", name);
    reader_free(&r);
    return status;
}

tarn_status trace_load(struct trace *t, const char *path, const struct trace_options *o,
                       const char **why_p) {
    FILE *f = fopen(path, "re");
    if (f == NULL) return status_fail(TARN_EIO, why_p, "%s: %s", path, strerror(errno));
    tarn_status status = reader_run(t, f, path, o, why_p);
    fclose(f);
    return status;
}

tarn_status trace_parse(struct trace *t, struct span text, const char *name,
                        const struct trace_options *o, const char **why_p) {
    if (text.len == 0) return status_fail(TARN_EINVAL, why_p, "%s: no requests", name);
    FILE *f = fmemopen((void *)(uintptr_t)text.data, text.len, "r");
    if (f == NULL) return status_fail(TARN_EIO, why_p, "%s: %s", name, strerror(errno));
    tarn_status status = reader_run(t, f, name, o, why_p);
    fclose(f);
    return status;
}

void trace_free(struct trace *t) {
    free(t->requests);
    free(t->ids);
    *t = (struct trace){0};
}

static int request_order(const void *a, const void *b) {
    const struct trace_request *x = a, *y = b;
    if (x->timestamp_ms != y->timestamp_ms) return x->timestamp_ms < y->timestamp_ms ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}

void trace_sort(struct trace *t) {
    qsort(t->requests, t->n, sizeof(*t->requests), request_order);
}

uint64_t trace_number(struct trace *t) {
    struct dense ids = {0};
    bool new;
    for (size_t i = 0; i < t->n; i++) {
        const struct trace_request *q = &t->requests[i];
        for (uint32_t k = 0; k < q->n; k++)
            t->ids[q->first + k] = dense_of(&ids, t->ids[q->first + k], &new);
    }
    uint64_t n = ids.n;
    dense_free(&ids);
    return n;
}

void trace_write(const struct trace *t, size_t from, size_t to, struct buf *out) {
    for (size_t i = from; i < to; i++) {
        const struct trace_request *q = &t->requests[i];
        buf_printf(out, "{\"timestamp\": %llu, \"input_length\": %u, \"output_length\": %u, ",
                   (unsigned long long)q->timestamp_ms, q->input, q->output);
        buf_append_str(out, "\"hash_ids\": [");
        for (uint32_t k = 0; k < q->n; k++)
            buf_printf(out, "%s%llu", k > 0 ? ", " : "", (unsigned long long)t->ids[q->first + k]);
        buf_append_char(out, ']');
        if (q->session != TRACE_SESSION_NONE) buf_printf(out, ", \"session\": %u", q->session);
        buf_append_str(out, "}\n");
    }
}
