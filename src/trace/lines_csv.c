/* Lines of BurstGPT's and Azure's CSVs. Their columns are found by name; none of them has quotes.
 * */
#include <stdio.h>

#include "base/assert.h"
#include "trace/reader.h"

static const char *const column_names[TRACE_FORMATS][COLUMNS] = {
    [TRACE_BURSTGPT] = {"Timestamp", "Request tokens", "Response tokens", "Session ID"},
    [TRACE_AZURE] = {"TIMESTAMP", "ContextTokens", "GeneratedTokens", NULL},
};

static struct span span_trim(struct span s) {
    while (s.len > 0 && strchr(" \t\r\n", s.data[0]) != NULL) s = span_of(s.data + 1, s.len - 1);
    while (s.len > 0 && strchr(" \t\r\n", s.data[s.len - 1]) != NULL) s.len--;
    return s;
}

/* The next cell of a line; false: there is none. */
static bool cell_next(struct span *rest, bool *more, struct span *cell) {
    if (!*more) return false;
    const char *comma = memchr(rest->data, ',', rest->len);
    size_t len = comma != NULL ? (size_t)(comma - rest->data) : rest->len;
    *cell = span_trim(span_of(rest->data, len));
    *more = comma != NULL;
    if (*more) *rest = span_of(comma + 1, rest->len - len - 1);
    return true;
}

const char *trace_csv_head(struct trace_reader *r, struct span line) {
    struct span cell;
    bool more = true;
    for (unsigned k = 0; k < COLUMNS; k++) r->column[k] = COLUMN_ABSENT;
    for (r->columns = 0; cell_next(&line, &more, &cell); r->columns++) {
        for (unsigned k = 0; k < COLUMNS; k++) {
            const char *name = column_names[r->format][k];
            if (name != NULL && span_eq(cell, span_str(name))) r->column[k] = r->columns;
        }
    }
    for (unsigned k = 0; k < COLUMN_SESSION; k++) {
        if (r->column[k] != COLUMN_ABSENT) continue;
        snprintf(r->error, sizeof(r->error), "%s: there is no such column",
                 column_names[r->format][k]);
        return r->error;
    }
    return NULL;
}

static const char *cell_error(struct trace_reader *r, enum trace_column k, const char *what) {
    snprintf(r->error, sizeof(r->error), "%s: %s", column_names[r->format][k], what);
    return r->error;
}

/* So many digits; false: there are others. */
static bool cell_digits(struct span *s, size_t n, uint64_t *v) {
    *v = 0;
    if (s->len < n) return false;
    for (size_t i = 0; i < n; i++) {
        if (s->data[i] < '0' || s->data[i] > '9') return false;
        *v = *v * 10 + (uint64_t)(s->data[i] - '0');
    }
    *s = span_of(s->data + n, s->len - n);
    return true;
}

static bool cell_char(struct span *s, char want) {
    if (s->len == 0 || s->data[0] != want) return false;
    *s = span_of(s->data + 1, s->len - 1);
    return true;
}

/* ".6805900" is 680 ms; nothing at all is 0. */
static bool cell_fraction(struct span *s, uint64_t *ms) {
    *ms = 0;
    if (!cell_char(s, '.')) return true;
    uint64_t digit;
    unsigned unit = 100;
    if (s->len == 0) return false;
    while (cell_digits(s, 1, &digit)) {
        *ms += digit * unit;
        unit /= 10;
    }
    return true;
}

/* Days since 1970-01-01 (Hinnant, "chrono-compatible low-level date algorithms"). */
static int64_t days_of(int64_t year, unsigned month, unsigned day) {
    year -= month <= 2;
    int64_t era = year / 400, of_era = year - era * 400;
    int64_t of_year = (153 * ((int64_t)month + (month > 2 ? -3 : 9)) + 2) / 5 + (int64_t)day - 1;
    return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

/* "2023-11-16 18:15:46.6805900", with T for the blank or a zone behind it ("+00:00", "Z"), which is
 * the same in all rows. */
static bool cell_date(struct span s, uint64_t *ms) {
    uint64_t year, month, day, hour, minute, second, fraction;
    if (!cell_digits(&s, 4, &year) || !cell_char(&s, '-') || !cell_digits(&s, 2, &month) ||
        !cell_char(&s, '-') || !cell_digits(&s, 2, &day))
        return false;
    if (!cell_char(&s, ' ') && !cell_char(&s, 'T')) return false;
    if (!cell_digits(&s, 2, &hour) || !cell_char(&s, ':') || !cell_digits(&s, 2, &minute) ||
        !cell_char(&s, ':') || !cell_digits(&s, 2, &second) || !cell_fraction(&s, &fraction))
        return false;
    if (s.len > 0 && !span_eq(s, SPAN("Z")) && !span_eq(s, SPAN("+00:00"))) return false;
    if (year < 1970 || month < 1 || month > 12 || day < 1 || day > 31 || hour > 23 || minute > 59 ||
        second > 60)
        return false;
    uint64_t days = (uint64_t)days_of((int64_t)year, (unsigned)month, (unsigned)day);
    *ms = (((days * 24 + hour) * 60 + minute) * 60 + second) * 1000 + fraction;
    return true;
}

static bool cell_seconds(struct span s, uint64_t *ms) {
    size_t n = 0;
    while (n < s.len && s.data[n] >= '0' && s.data[n] <= '9') n++;
    uint64_t whole, fraction;
    if (!span_to_u64(span_of(s.data, n), &whole) || whole > TRACE_TIME_MAX_MS / 1000) return false;
    s = span_of(s.data + n, s.len - n);
    if (!cell_fraction(&s, &fraction) || s.len > 0) return false;
    *ms = whole * 1000 + fraction;
    return true;
}

/* Of a Session ID, whatever it looks like (FNV-1a: the same on every machine). */
static uint64_t session_key(struct span s) {
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < s.len; i++) h = (h ^ (unsigned char)s.data[i]) * UINT64_C(0x100000001b3);
    return h;
}

static const char *row_lengths(struct trace_reader *r, const struct span cells[COLUMNS],
                               struct trace_request *q) {
    uint64_t input, output;
    if (!span_to_u64(cells[COLUMN_INPUT], &input) || input == 0 || input > TRACE_TOKENS_MAX)
        return cell_error(r, COLUMN_INPUT, "no number of tokens");
    if (!span_to_u64(cells[COLUMN_OUTPUT], &output) || output > TRACE_TOKENS_MAX)
        return cell_error(r, COLUMN_OUTPUT, "no number of tokens");
    q->input = (uint32_t)input;
    q->output = (uint32_t)output;
    return NULL;
}

static const char *row_time(struct trace_reader *r, struct span cell, struct trace_request *q) {
    bool azure = r->format == TRACE_AZURE;
    uint64_t ms = 0;
    if (!(azure ? cell_date : cell_seconds)(cell, &ms))
        return cell_error(r, COLUMN_TIME, azure ? "no date and time" : "no time in seconds");
    if (!r->began) r->zero_ms = azure ? ms : 0;
    r->began = true;
    if (ms < r->zero_ms) return cell_error(r, COLUMN_TIME, "earlier than the first row");
    q->timestamp_ms = ms - r->zero_ms;
    return NULL;
}

const char *trace_csv_line(struct trace_reader *r, struct span line) {
    struct span cell, cells[COLUMNS] = {{0}};
    bool more = true;
    uint32_t n = 0;
    for (; cell_next(&line, &more, &cell); n++)
        for (unsigned k = 0; k < COLUMNS; k++)
            if (r->column[k] == n) cells[k] = cell;
    if (n != r->columns) {
        snprintf(r->error, sizeof(r->error), "the line has %u columns, the first one %u", n,
                 r->columns);
        return r->error;
    }
    struct trace_request q = {.session = TRACE_SESSION_NONE};
    const char *error = row_time(r, cells[COLUMN_TIME], &q);
    if (error == NULL) error = row_lengths(r, cells, &q);
    if (error != NULL) return error;
    if (r->format == TRACE_BURSTGPT && q.output == 0) {
        r->t->skipped++;
        return NULL;
    }
    uint32_t named = UINT32_MAX;
    bool new;
    if (cells[COLUMN_SESSION].len > 0)
        named = dense_of(&r->named_sessions, session_key(cells[COLUMN_SESSION]), &new);
    if (!share_ids(&r->share, r->t, named, &q)) return "too many blocks in all";
    trace_add(r->t, &q);
    return NULL;
}
