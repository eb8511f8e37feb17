/* Values as text: parsing with messages that say what is allowed, and printing. */
#include "cmd/config_table.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include "base/assert.h"

#define FIELD(type, row, c)  ((type *)(void *)((char *)(c) + (row)->offset))
#define CFIELD(type, row, c) ((const type *)(const void *)((const char *)(c) + (row)->offset))
#define STRING_MAX           4096u

static const char *const class_names[CONFIG_OUTPUT_CLASSES] = {"normal", "pubsub"};

char *config_text(const char *fmt, ...) {
    struct buf b = {NULL, 0, 0};
    va_list ap;
    va_start(ap, fmt);
    buf_vprintf(&b, fmt, ap);
    va_end(ap);
    buf_append_char(&b, '\0');
    return b.data;
}

int config_parse_ms(struct span s, uint64_t *ms_p) {
    static const struct {
        const char *unit;
        uint64_t ms;
    } units[] = {{"ms", 1},      {"s", 1000},    {"sec", 1000},  {"m", 60000},
                 {"min", 60000}, {"h", 3600000}, {"d", 86400000}};
    size_t digits = 0;
    while (digits < s.len && s.data[digits] >= '0' && s.data[digits] <= '9') digits++;
    uint64_t v, unit = 0;
    if (!span_to_u64(span_of(s.data, digits), &v)) return 0;
    struct span rest = span_of(s.data + digits, s.len - digits);
    if (rest.len == 0) unit = 1;
    for (size_t i = 0; i < ARRAY_LEN(units); i++)
        if (span_case_eq(rest, units[i].unit)) unit = units[i].ms;
    if (unit == 0 || v > UINT64_MAX / unit) return 0;
    *ms_p = v * unit;
    return 1;
}

/* --- parsing ------------------------------------------------------------------------------------------------------------------ */

static bool parse_bool(struct span s, bool *v_p) {
    if (span_case_eq(s, "yes"))
        *v_p = true;
    else if (span_case_eq(s, "no"))
        *v_p = false;
    else
        return false;
    return true;
}

static bool in_range(const struct config_row *row, uint64_t v) {
    return (row->min <= 0 || v >= (uint64_t)row->min) && v <= (uint64_t)row->max;
}

static bool parse_octal(const struct config_row *row, struct span s, int64_t *v_p) {
    int64_t v = 0;
    if (s.len == 0 || s.len > 4) return false;
    for (size_t i = 0; i < s.len; i++) {
        if (s.data[i] < '0' || s.data[i] > '7') return false;
        v = v * 8 + (s.data[i] - '0');
    }
    if (v < row->min || v > row->max) return false;
    *v_p = v;
    return true;
}

static bool parse_ratio(const struct config_row *row, struct span s, double *v_p) {
    char text[40], *end;
    if (s.len == 0 || s.len >= sizeof(text)) return false;
    memcpy(text, s.data, s.len);
    text[s.len] = '\0';
    for (size_t i = 0; i < s.len; i++)
        if (strchr("0123456789.eE+-", text[i]) == NULL) return false; /* no hex, inf, nan, blanks */
    double v = strtod(text, &end);
    if (*end != '\0' || !isfinite(v) || v < row->min_ratio || v > row->max_ratio) return false;
    *v_p = v;
    return true;
}

static void list_free(struct config_list *l) {
    for (size_t i = 0; i < l->n; i++) free(l->word[i]);
    l->n = 0;
}

static bool has_nul(struct span s) {
    return s.len > 0 && memchr(s.data, '\0', s.len) != NULL;
}
static char *to_string(struct span s) {
    char *p = xmalloc(s.len + 1);
    if (s.len > 0) memcpy(p, s.data, s.len);
    p[s.len] = '\0';
    return p;
}

/* Words may come as several arguments or, from CONFIG SET, as one with blanks. */
static size_t split_words(const struct span *words, size_t n, struct span *out, size_t cap) {
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        const char *s = words[i].data, *end = s + words[i].len;
        while (s < end) {
            while (s < end && *s == ' ') s++;
            const char *from = s;
            while (s < end && *s != ' ') s++;
            if (s == from) continue;
            if (k == cap) return cap + 1;
            out[k++] = span_of(from, (size_t)(s - from));
        }
    }
    return k;
}

static bool parse_list(const struct config_row *row, struct config *c, const struct span *words, size_t n) {
    struct span word[CONFIG_WORDS_MAX];
    size_t k = split_words(words, n, word, CONFIG_WORDS_MAX);
    if (k > CONFIG_WORDS_MAX) return false;
    for (size_t i = 0; i < k; i++)
        if (has_nul(word[i]) || word[i].len > 255) return false;
    struct config_list *l = FIELD(struct config_list, row, c);
    list_free(l);
    for (size_t i = 0; i < k; i++) l->word[l->n++] = to_string(word[i]);
    return true;
}

/* "class hard soft seconds", any number of times; classes that are not named keep their limits. */
static bool parse_output(const struct config_row *row, struct config *c, const struct span *words, size_t n) {
    struct span word[CONFIG_OUTPUT_CLASSES * 4];
    size_t k = split_words(words, n, word, ARRAY_LEN(word));
    if (k == 0 || k > ARRAY_LEN(word) || k % 4 != 0) return false;
    struct config_output_limit new[CONFIG_OUTPUT_CLASSES];
    memcpy(new, FIELD(struct config_output_limit, row, c), sizeof(new));
    for (size_t i = 0; i < k; i += 4) {
        size_t class = 0;
        while (class < CONFIG_OUTPUT_CLASSES && !span_case_eq(word[i], class_names[class])) class ++;
        if (class == CONFIG_OUTPUT_CLASSES) return false;
        struct config_output_limit *l = &new[class];
        if (!span_to_bytes(word[i + 1], &l->hard) || !span_to_bytes(word[i + 2], &l->soft) ||
            !span_to_u64(word[i + 3], &l->soft_s) || l->soft_s > INT32_MAX)
            return false;
    }
    memcpy(FIELD(struct config_output_limit, row, c), new, sizeof(new));
    return true;
}

static bool parse_enum(const struct config_row *row, struct span s, int *v_p) {
    for (int i = 0; row->words[i] != NULL; i++)
        if (span_case_eq(s, row->words[i])) {
            *v_p = i;
            return true;
        }
    return false;
}

static bool parse_port_or_auto(const struct config_row *row, struct span s, int64_t *v_p) {
    int64_t v = -1;
    if (!span_case_eq(s, "auto") && (!span_to_i64(s, &v) || v < row->min || v > row->max)) return false;
    *v_p = v;
    return true;
}

static bool parse_one(const struct config_row *row, struct config *c, struct span s) {
    int64_t i;
    uint64_t u;
    switch (row->type) {
    case CONFIG_BOOL: return parse_bool(s, FIELD(bool, row, c));
    case CONFIG_INT:
        if (!span_to_i64(s, &i) || i < row->min || i > row->max) return false;
        *FIELD(int64_t, row, c) = i;
        return true;
    case CONFIG_OCTAL: return parse_octal(row, s, FIELD(int64_t, row, c));
    case CONFIG_BYTES:
    case CONFIG_COUNT:
        if (!span_to_bytes(s, &u) || !in_range(row, u)) return false;
        *FIELD(uint64_t, row, c) = u;
        return true;
    case CONFIG_MS:
        if (!config_parse_ms(s, &u) || !in_range(row, u)) return false;
        *FIELD(uint64_t, row, c) = u;
        return true;
    case CONFIG_RATIO: return parse_ratio(row, s, FIELD(double, row, c));
    case CONFIG_STRING:
        if (has_nul(s) || s.len > STRING_MAX) return false;
        free(*FIELD(char *, row, c));
        *FIELD(char *, row, c) = to_string(s);
        return true;
    case CONFIG_ENUM: return parse_enum(row, s, FIELD(int, row, c));
    case CONFIG_PORT_OR_AUTO: return parse_port_or_auto(row, s, FIELD(int64_t, row, c));
    case CONFIG_LIST:
    case CONFIG_OUTPUT: break;
    }
    return false;
}

static char *allowed(const struct config_row *row) {
    struct buf b = {NULL, 0, 0};
    const long long min = row->min, max = row->max;
    switch (row->type) {
    case CONFIG_BOOL: buf_append_str(&b, "must be yes or no"); break;
    case CONFIG_INT: buf_printf(&b, "must be a number from %lld to %lld", min, max); break;
    case CONFIG_OCTAL:
        buf_printf(&b, "must be permissions from 0 to %llo, in octal", (unsigned long long)max);
        break;
    case CONFIG_BYTES:
        buf_printf(&b, "must be a size from %lld to %lld bytes, as 4096, 4kb, 1gb", min, max);
        break;
    case CONFIG_COUNT: buf_printf(&b, "must be a count from %lld to %lld", min, max); break;
    case CONFIG_MS:
        buf_printf(&b, "must be a time from %lld to %lld ms, as 500, 500ms, 10s, 5min, 1h, 1d", min, max);
        break;
    case CONFIG_RATIO:
        buf_printf(&b, "must be a number from %g to %g", row->min_ratio, row->max_ratio);
        break;
    case CONFIG_STRING: buf_append_str(&b, "must be text of up to 4096 bytes without NUL"); break;
    case CONFIG_LIST: buf_printf(&b, "must be up to %u addresses", CONFIG_WORDS_MAX); break;
    case CONFIG_OUTPUT:
        buf_append_str(&b, "must be: normal|pubsub hard-limit soft-limit soft-seconds");
        break;
    case CONFIG_PORT_OR_AUTO:
        buf_append_str(&b, "must be auto (port + 10000) or a port from 0 to 65535");
        break;
    case CONFIG_ENUM:
        buf_append_str(&b, "must be one of");
        for (int i = 0; row->words[i] != NULL; i++) buf_printf(&b, " %s", row->words[i]);
        break;
    }
    buf_append_char(&b, '\0');
    return b.data;
}

bool config_row_parse(const struct config_row *row, struct config *c, const struct span *words, size_t n,
                      char **why_p) {
    bool ok;
    if (row->type == CONFIG_LIST)
        ok = parse_list(row, c, words, n);
    else if (row->type == CONFIG_OUTPUT)
        ok = parse_output(row, c, words, n);
    else
        ok = n == 1 && parse_one(row, c, words[0]);
    if (!ok) *why_p = allowed(row);
    return ok;
}

/* --- printing and copying -------------------------------------------------------------------------------------------------------- */

void config_row_format(const struct config_row *row, const struct config *c, struct buf *out) {
    switch (row->type) {
    case CONFIG_BOOL: buf_append_str(out, *CFIELD(bool, row, c) ? "yes" : "no"); break;
    case CONFIG_INT: buf_printf(out, "%lld", (long long)*CFIELD(int64_t, row, c)); break;
    case CONFIG_OCTAL: buf_printf(out, "%llo", (unsigned long long)*CFIELD(int64_t, row, c)); break;
    case CONFIG_BYTES:
    case CONFIG_COUNT:
    case CONFIG_MS: buf_printf(out, "%llu", (unsigned long long)*CFIELD(uint64_t, row, c)); break;
    case CONFIG_RATIO: {
        char text[40];
        for (int digits = 6; digits <= 17; digits++) { /* the shortest that reads back as the same number */
            snprintf(text, sizeof(text), "%.*g", digits, *CFIELD(double, row, c));
            if (strtod(text, NULL) == *CFIELD(double, row, c)) break;
        }
        buf_append_str(out, text);
        break;
    }
    case CONFIG_STRING: buf_append_str(out, *CFIELD(char *, row, c)); break;
    case CONFIG_LIST:
        for (size_t i = 0; i < CFIELD(struct config_list, row, c)->n; i++)
            buf_printf(out, "%s%s", i > 0 ? " " : "", CFIELD(struct config_list, row, c)->word[i]);
        break;
    case CONFIG_ENUM: buf_append_str(out, row->words[*CFIELD(int, row, c)]); break;
    case CONFIG_PORT_OR_AUTO:
        if (*CFIELD(int64_t, row, c) < 0)
            buf_append_str(out, "auto");
        else
            buf_printf(out, "%lld", (long long)*CFIELD(int64_t, row, c));
        break;
    case CONFIG_OUTPUT:
        for (size_t i = 0; i < CONFIG_OUTPUT_CLASSES; i++) {
            const struct config_output_limit *l = &CFIELD(struct config_output_limit, row, c)[i];
            buf_printf(out, "%s%s %llu %llu %llu", i > 0 ? " " : "", class_names[i],
                       (unsigned long long)l->hard, (unsigned long long)l->soft,
                       (unsigned long long)l->soft_s);
        }
        break;
    }
}

bool config_row_equal(const struct config_row *row, const struct config *a, const struct config *b) {
    struct buf x = {NULL, 0, 0}, y = {NULL, 0, 0};
    config_row_format(row, a, &x);
    config_row_format(row, b, &y);
    bool same = span_eq(span_of(x.data, x.len), span_of(y.data, y.len));
    buf_free(&x);
    buf_free(&y);
    return same;
}

void config_row_free(const struct config_row *row, struct config *c) {
    if (row->type == CONFIG_STRING) {
        free(*FIELD(char *, row, c));
        *FIELD(char *, row, c) = NULL;
    } else if (row->type == CONFIG_LIST) {
        list_free(FIELD(struct config_list, row, c));
    }
}

void config_row_copy(const struct config_row *row, struct config *to, const struct config *from) {
    struct buf text = {NULL, 0, 0};
    char *why = NULL;
    config_row_format(row, from, &text);
    struct span s = span_of(text.data, text.len);
    bool ok = config_row_parse(row, to, &s, 1, &why);
    TARN_ASSERT(ok);
    buf_free(&text);
}
