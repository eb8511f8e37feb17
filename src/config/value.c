/* Values as text: parsing with messages that say what is allowed, and printing. */
#include "config/table.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include "base/assert.h"
#include "config/notify_class.h"

#define FIELD(type, row, c)  ((type *)(void *)((char *)(c) + (row)->offset))
#define CFIELD(type, row, c) ((const type *)(const void *)((const char *)(c) + (row)->offset))
#define STRING_MAX           4096u

static const char *const class_names[CONFIG_OUTPUT_CLASSES] = {"normal", "slave",
                                                               "pubsub"}; /* as Redis shows them */

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

/* --- parsing --- */

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

static void words_free(struct config_list *l) {
    for (size_t i = 0; i < l->n; i++) free(l->word[i]);
    l->n = 0;
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

static bool parse_list(const struct config_row *row, struct config *c, const struct span *words,
                       size_t n) {
    struct span word[CONFIG_WORDS_MAX];
    size_t k = split_words(words, n, word, CONFIG_WORDS_MAX);
    if (k > CONFIG_WORDS_MAX) return false;
    for (size_t i = 0; i < k; i++)
        if (config_has_nul(word[i]) || word[i].len > 255) return false;
    struct config_list *l = FIELD(struct config_list, row, c);
    words_free(l);
    for (size_t i = 0; i < k; i++) l->word[l->n++] = span_dup(word[i]);
    return true;
}

/* "class hard soft seconds", any number of times; classes that are not named keep their limits.
 * NULL, or what is wrong. */
static const char *parse_output(const struct config_row *row, struct config *c,
                                const struct span *words, size_t n) {
    struct span word[CONFIG_OUTPUT_CLASSES * 4];
    size_t k = split_words(words, n, word, ARRAY_LEN(word));
    if (k == 0 || k > ARRAY_LEN(word) || k % 4 != 0)
        return "Wrong number of arguments in buffer limit configuration: class hard-limit "
               "soft-limit "
               "soft-seconds";
    struct config_output_limit new[CONFIG_OUTPUT_CLASSES];
    memcpy(new, FIELD(struct config_output_limit, row, c), sizeof(new));
    for (size_t i = 0; i < k; i += 4) {
        size_t class = 0;
        while (class < CONFIG_OUTPUT_CLASSES && !span_case_eq(word[i], class_names[class]))
            class ++;
        if (span_case_eq(word[i], "replica")) class = CONFIG_OUTPUT_REPLICA;
        if (class == CONFIG_OUTPUT_CLASSES)
            return "Invalid client class specified in buffer limit configuration: it must be "
                   "normal, replica "
                   "or pubsub";
        struct config_output_limit *l = &new[class];
        if (!span_to_bytes(word[i + 1], &l->hard))
            return "Error in hard setting in buffer limit configuration: it must be a size as "
                   "4096, 4kb, 1gb";
        if (!span_to_bytes(word[i + 2], &l->soft))
            return "Error in soft setting in buffer limit configuration: it must be a size as "
                   "4096, 4kb, 1gb";
        if (!span_to_u64(word[i + 3], &l->soft_s) || l->soft_s > INT32_MAX)
            return "Error in soft_seconds setting in buffer limit configuration: it must be a "
                   "number of "
                   "seconds";
    }
    memcpy(FIELD(struct config_output_limit, row, c), new, sizeof(new));
    return NULL;
}

bool config_save_add(struct config_save *to, const struct config_save *from) {
    if (from->n == 0) to->n = 0; /* save "" */
    if (to->n + from->n > CONFIG_SAVE_MAX) return false;
    for (size_t i = 0; i < from->n; i++) to->rule[to->n++] = from->rule[i];
    return true;
}

/* "seconds changes", any number of times; nothing at all: no rules. */
static bool parse_save(const struct config_row *row, struct config *c, const struct span *words,
                       size_t n) {
    struct span word[CONFIG_SAVE_MAX * 2];
    struct config_save save = {.n = 0};
    size_t k = split_words(words, n, word, ARRAY_LEN(word));
    if (n == 0 || k > ARRAY_LEN(word) || k % 2 != 0) return false;
    for (size_t i = 0; i < k; i += 2, save.n++) {
        uint64_t *seconds = &save.rule[save.n].seconds, *changes = &save.rule[save.n].changes;
        if (!span_to_u64(word[i], seconds) || !span_to_u64(word[i + 1], changes)) return false;
        if (*seconds == 0 || *seconds > INT32_MAX || *changes == 0 || *changes > INT64_MAX)
            return false;
    }
    *FIELD(struct config_save, row, c) = save;
    return true;
}

/* Any number of them, in any order; nothing at all: none. */
static bool parse_percentiles(const struct config_row *row, struct config *c,
                              const struct span *words, size_t n) {
    struct span word[CONFIG_PERCENTILES_MAX];
    struct config_percentiles new = {.n = split_words(words, n, word, ARRAY_LEN(word))};
    if (n == 0 || new.n > ARRAY_LEN(word)) return false;
    for (size_t i = 0; i < new.n; i++)
        if (!parse_ratio(row, word[i], &new.percent[i])) return false;
    *FIELD(struct config_percentiles, row, c) = new;
    return true;
}

/* Any of the words; the first is none of the others. save and nosave exclude each other. */
static bool parse_flags(const struct config_row *row, struct config *c, const struct span *words,
                        size_t n) {
    struct span word[8];
    size_t k = split_words(words, n, word, ARRAY_LEN(word));
    int flags = 0;
    if (k == 0 || k > ARRAY_LEN(word)) return false;
    for (size_t i = 0; i < k; i++) {
        int w = 0;
        while (row->words[w] != NULL && !span_case_eq(word[i], row->words[w])) w++;
        if (row->words[w] == NULL || (w == 0 && k > 1)) return false;
        if (w > 0) flags |= 1 << (w - 1);
    }
    if ((flags & 3) == 3) return false;
    *FIELD(int, row, c) = flags;
    return true;
}

static bool parse_ints(const struct config_row *row, struct config *c, const struct span *words,
                       size_t n) {
    struct span word[CONFIG_INTS_N];
    int64_t v[CONFIG_INTS_N];
    if (split_words(words, n, word, CONFIG_INTS_N) != CONFIG_INTS_N) return false;
    for (size_t i = 0; i < CONFIG_INTS_N; i++)
        if (!span_to_i64(word[i], &v[i]) || v[i] < row->min || v[i] > row->max) return false;
    memcpy(FIELD(int64_t, row, c), v, sizeof(v));
    return true;
}

/* Bytes, or "7%". */
static bool parse_share(const struct config_row *row, struct span s, int64_t *v_p) {
    uint64_t v;
    bool percent = s.len > 0 && s.data[s.len - 1] == '%';
    if (percent ? !span_to_u64(span_of(s.data, s.len - 1), &v) : !span_to_bytes(s, &v))
        return false;
    if (v > (percent ? 100 : (uint64_t)row->max)) return false;
    *v_p = percent ? -(int64_t)v : (int64_t)v;
    return true;
}

/* The number of a word of the list. */
static bool parse_enum(const char *const *list, struct span s, int *v_p) {
    for (int i = 0; list[i] != NULL; i++)
        if (span_case_eq(s, list[i])) {
            *v_p = i;
            return true;
        }
    return false;
}

void config_binary_set(struct config_binary *b, struct span s) {
    char *data = span_dup(s); /* s may be of b */
    free(b->data);
    *b = (struct config_binary){data, s.len};
}

static bool parse_one(const struct config_row *row, struct config *c, struct span s) {
    int64_t i;
    uint64_t u;
    int word;
    switch (row->type) {
    case CONFIG_BOOL:
        if (!parse_enum((const char *const[]){"no", "yes", NULL}, s, &word)) return false;
        *FIELD(bool, row, c) = word != 0;
        return true;
    case CONFIG_PORT_OR_AUTO:
        if (span_case_eq(s, "auto")) {
            *FIELD(int64_t, row, c) = -1;
            return true;
        }
        /* fall through */
    case CONFIG_INT:
        if (!span_to_i64(s, &i) || i < row->min || i > row->max) return false;
        *FIELD(int64_t, row, c) = i;
        return true;
    case CONFIG_OCTAL: return parse_octal(row, s, FIELD(int64_t, row, c));
    case CONFIG_BYTES:
    case CONFIG_COUNT:
    case CONFIG_MS:
        if (row->type == CONFIG_MS ? !config_parse_ms(s, &u) : !span_to_bytes(s, &u)) return false;
        if (u < (uint64_t)row->min || u > (uint64_t)row->max) return false;
        *FIELD(uint64_t, row, c) = u;
        return true;
    case CONFIG_RATIO: return parse_ratio(row, s, FIELD(double, row, c));
    case CONFIG_STRING:
        if (config_has_nul(s) || s.len > STRING_MAX) return false;
        free(*FIELD(char *, row, c));
        *FIELD(char *, row, c) = span_dup(s);
        return true;
    case CONFIG_BINARY:
        if (s.len > STRING_MAX) return false;
        config_binary_set(FIELD(struct config_binary, row, c), s);
        return true;
    case CONFIG_ENUM: return parse_enum(row->words, s, FIELD(int, row, c));
    case CONFIG_SHARE: return parse_share(row, s, FIELD(int64_t, row, c));
    case CONFIG_NOTIFY: return notify_parse(s, FIELD(unsigned, row, c));
    case CONFIG_ONLY: return span_case_eq(s, row->initial);
    default: return false;
    }
}

static bool value_begins(struct span s, const char *with) {
    size_t n = strlen(with);
    return s.len >= n && strncasecmp(s.data, with, n) == 0;
}

/* Whoever comes from Redis hears what to take instead. */
static void advise_policy(const struct config_row *row, struct span value, struct buf *out) {
    bool redis = strcmp(row->name, "maxmemory-policy") == 0;
    if (!redis && strcmp(row->name, "eviction-policy") != 0) return;
    const char *all = redis ? "allkeys-" : "";
    if (value_begins(value, "volatile-"))
        buf_printf(
            out,
            "; a TTL does not say who goes first, and keys without one go as well: take %slru, and "
            "PIN what has to stay",
            all);
    else if (value_begins(value, "allkeys-random") || value_begins(value, "random"))
        buf_printf(
            out, "; nothing goes at random: take %sfifo, which does not look at reads either", all);
    else if (value_begins(value, "allkeys-"))
        buf_append_str(out, "; Redis' names are for maxmemory-policy");
    else if (redis)
        buf_append_str(out, "; it is another name of eviction-policy, which leaves allkeys- out");
}

/* With min and max of the row. */
static const char *const allowed_values[] = {
    [CONFIG_BOOL] = "must be yes or no",
    [CONFIG_INT] = "must be a number from %lld to %lld",
    [CONFIG_BYTES] = "must be a size from %lld to %lld bytes, as 4096, 4kb, 1gb",
    [CONFIG_COUNT] = "must be a count from %lld to %lld",
    [CONFIG_MS] = "must be a time from %lld to %lld ms, as 500, 500ms, 10s, 5min, 1h, 1d",
    [CONFIG_STRING] = "must be text of up to 4096 bytes without NUL",
    [CONFIG_BINARY] = "must be up to 4096 bytes of any kind",
    [CONFIG_NOTIFY] = "must be letters of " NOTIFY_LETTERS ", or empty",
    [CONFIG_PORT_OR_AUTO] = "must be auto or a port from 0 to 65535",
    [CONFIG_INTS] = "must be 3 numbers; each must be between %lld and %lld",
    [CONFIG_SHARE] = "must be a size as 4096, 4kb, 1gb, or a share from 0%% to 100%%",
    [CONFIG_ONLY] = NULL, /* as many as there are types */
};
static_assert(CONFIG_INTS_N == 3, "the text says so");

/* number: it was one, but not this. */
static char *value_allowed(const struct config_row *row, struct span value, bool number) {
    struct buf b = {NULL, 0, 0};
    switch (row->type) {
    case CONFIG_INT:
    case CONFIG_PORT_OR_AUTO:
        if (!number) buf_append_str(&b, "argument couldn't be parsed into an integer: it ");
        break;
    case CONFIG_OCTAL:
        buf_printf(&b, "must be permissions from 0 to %llo, in octal",
                   (unsigned long long)row->max);
        break;
    case CONFIG_RATIO:
        buf_printf(&b, "must be a number from %g to %g", row->min_ratio, row->max_ratio);
        break;
    case CONFIG_LIST:
        buf_printf(&b, "must be up to %u words of up to 255 bytes", CONFIG_WORDS_MAX);
        break;
    case CONFIG_SAVE:
        buf_printf(&b, "must be up to %u times: seconds changes; or empty", CONFIG_SAVE_MAX);
        break;
    case CONFIG_PERCENTILES:
        buf_printf(&b, "must be up to %u numbers from 0 to 100", CONFIG_PERCENTILES_MAX);
        break;
    case CONFIG_ONLY: buf_printf(&b, "can only be '%s': %s", row->initial, row->words[0]); break;
    case CONFIG_FLAGS:
    case CONFIG_ENUM:
        buf_append_str(&b, "argument(s) must be one of the following:");
        for (int i = 0; row->words[i] != NULL; i++)
            buf_printf(&b, "%s %s", i > 0 ? "," : "", row->words[i]);
        if (row->type == CONFIG_FLAGS)
            buf_append_str(&b, "; or several of them that do not exclude each other");
        else
            advise_policy(row, value, &b);
        break;
    default: break; /* its text needs no more */
    }
    const char *text = allowed_values[row->type];
    if (text != NULL) buf_printf(&b, text, (long long)row->min, (long long)row->max);
    buf_append_char(&b, '\0');
    return b.data;
}

/* "no one" is nobody. */
static bool check_master(struct config *c, char **why_p) {
    struct config_list *l = &c->replicaof;
    uint64_t port;
    if (l->n == 2 && strcasecmp(l->word[0], "no") == 0 && strcasecmp(l->word[1], "one") == 0)
        words_free(l);
    if (l->n == 0) return true;
    if (l->n != 2)
        *why_p = config_text("wrong number of arguments: it must be a host and a port");
    else if (!span_to_u64(span_str(l->word[1]), &port) || port == 0 || port > UINT16_MAX)
        *why_p = config_text("Invalid master port: it must be a number from 1 to 65535");
    else
        return true;
    return false;
}

static bool check_shard(const struct config *c, char **why_p) {
    const struct config_list *l = &c->cluster_shard;
    struct span host;
    uint16_t port;
    bool ok = l->n != 1 && (l->n == 0 || span_is_name(span_str(l->word[0]), 64));
    for (size_t i = 1; i < l->n; i++)
        ok = ok && span_to_address(span_str(l->word[i]), &host, &port) && port > 0;
    if (!ok)
        *why_p = config_text("it must be the name of a shard and addresses of servers of other "
                             "shards, host:port");
    return ok;
}

/* Of values that may be several words. */
static bool (*const parse_words[])(const struct config_row *row, struct config *c,
                                   const struct span *words,
                                   size_t n) = {[CONFIG_LIST] = parse_list,
                                                [CONFIG_FLAGS] = parse_flags,
                                                [CONFIG_INTS] = parse_ints,
                                                [CONFIG_SAVE] = parse_save,
                                                [CONFIG_PERCENTILES] = parse_percentiles,
                                                [CONFIG_ONLY] = NULL};

bool config_row_takes_words(const struct config_row *row) {
    return row->type == CONFIG_OUTPUT || parse_words[row->type] != NULL;
}

bool config_row_parse(const struct config_row *row, struct config *c, const struct span *words,
                      size_t n, char **why_p) {
    bool ok;
    const char *why = NULL;
    if (row->type == CONFIG_OUTPUT)
        ok = (why = parse_output(row, c, words, n)) == NULL;
    else if (parse_words[row->type] != NULL)
        ok = parse_words[row->type](row, c, words, n);
    else
        ok = n == 1 && parse_one(row, c, words[0]);
    if (!ok && row->type == CONFIG_SHARE && n == 1 && words[0].len > 1 &&
        words[0].data[words[0].len - 1] == '%')
        why = "percentage argument must be less or equal to 100";
    int64_t v;
    if (!ok)
        *why_p = why != NULL ? xstrdup(why)
                             : value_allowed(row, n > 0 ? words[0] : SPAN(""),
                                             n != 1 || span_to_i64(words[0], &v));
    if (ok && row->offset == offsetof(struct config, replicaof)) return check_master(c, why_p);
    if (ok && row->offset == offsetof(struct config, cluster_shard)) return check_shard(c, why_p);
    return ok;
}

/* --- printing and copying --- */

/* The shortest that reads back as the same number. */
static void format_ratio(double v, struct buf *out) {
    char text[40];
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, v);
        if (strtod(text, NULL) == v) break;
    }
    buf_append_str(out, text);
}

void config_row_format(const struct config_row *row, const struct config *c, struct buf *out) {
    switch (row->type) {
    case CONFIG_BOOL: buf_append_str(out, *CFIELD(bool, row, c) ? "yes" : "no"); break;
    case CONFIG_PORT_OR_AUTO:
        if (*CFIELD(int64_t, row, c) < 0) {
            buf_append_str(out, "auto");
            break;
        }
        /* fall through */
    case CONFIG_INT: buf_printf(out, "%lld", (long long)*CFIELD(int64_t, row, c)); break;
    case CONFIG_OCTAL: buf_printf(out, "%llo", (unsigned long long)*CFIELD(int64_t, row, c)); break;
    case CONFIG_BYTES:
    case CONFIG_COUNT:
    case CONFIG_MS: buf_printf(out, "%llu", (unsigned long long)*CFIELD(uint64_t, row, c)); break;
    case CONFIG_RATIO: format_ratio(*CFIELD(double, row, c), out); break;
    case CONFIG_PERCENTILES: {
        const struct config_percentiles *p = CFIELD(struct config_percentiles, row, c);
        for (size_t i = 0; i < p->n; i++) {
            if (i > 0) buf_append_char(out, ' ');
            format_ratio(p->percent[i], out);
        }
        break;
    }
    case CONFIG_STRING: buf_append_str(out, *CFIELD(char *, row, c)); break;
    case CONFIG_BINARY:
        buf_append(out, CFIELD(struct config_binary, row, c)->data,
                   CFIELD(struct config_binary, row, c)->len);
        break;
    case CONFIG_FLAGS: {
        int flags = *CFIELD(int, row, c);
        if (flags == 0) buf_append_str(out, row->words[0]);
        for (int i = 1; row->words[i] != NULL; flags &= ~(1 << (i++ - 1)))
            if (flags & 1 << (i - 1))
                buf_printf(out, "%s%s", row->words[i], flags >> i != 0 ? " " : "");
        break;
    }
    case CONFIG_INTS:
        for (size_t i = 0; i < CONFIG_INTS_N; i++)
            buf_printf(out, "%s%lld", i > 0 ? " " : "", (long long)CFIELD(int64_t, row, c)[i]);
        break;
    case CONFIG_SHARE: {
        long long v = *CFIELD(int64_t, row, c);
        buf_printf(out, "%lld", v < 0 ? -v : v);
        if (v < 0) buf_append_char(out, '%');
        break;
    }
    case CONFIG_NOTIFY: notify_format(*CFIELD(unsigned, row, c), out); break;
    case CONFIG_ONLY: buf_append_str(out, row->initial); break;
    case CONFIG_LIST:
        for (size_t i = 0; i < CFIELD(struct config_list, row, c)->n; i++)
            buf_printf(out, "%s%s", i > 0 ? " " : "", CFIELD(struct config_list, row, c)->word[i]);
        break;
    case CONFIG_ENUM: buf_append_str(out, row->words[*CFIELD(int, row, c)]); break;
    case CONFIG_SAVE: {
        const struct config_save *s = CFIELD(struct config_save, row, c);
        for (size_t i = 0; i < s->n; i++)
            buf_printf(out, "%s%llu %llu", i > 0 ? " " : "", (unsigned long long)s->rule[i].seconds,
                       (unsigned long long)s->rule[i].changes);
        break;
    }
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

bool config_row_equal(const struct config_row *row, const struct config *a,
                      const struct config *b) {
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
    } else if (row->type == CONFIG_BINARY) {
        free(FIELD(struct config_binary, row, c)->data);
        *FIELD(struct config_binary, row, c) = (struct config_binary){NULL, 0};
    } else if (row->type == CONFIG_LIST) {
        words_free(FIELD(struct config_list, row, c));
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

/* --- proc-title-template --- */

static const char *const title_variables[] = {"title",    "listen-addr", "server-mode", "port",
                                              "tls-port", "unixsocket",  "config-file", NULL};

bool config_title(const struct config *c,
                  void (*append)(const struct config *c, const char *name, struct buf *out),
                  struct buf *out) {
    const char *t = c->proc_title_template;
    while (*t != '\0') {
        size_t plain = strcspn(t, "{");
        buf_append(out, t, plain);
        t += plain;
        if (*t == '\0') break;
        const char *close = strchr(t, '}');
        if (close == NULL) return false;
        struct span name = span_of(t + 1, (size_t)(close - t - 1));
        size_t i = 0;
        while (title_variables[i] != NULL && !span_eq(name, span_str(title_variables[i]))) i++;
        if (title_variables[i] == NULL) return false;
        if (append != NULL) append(c, title_variables[i], out);
        t = close + 1;
    }
    while (out->len > 0 && out->data[out->len - 1] == ' ') out->len--;
    return true;
}

bool config_title_valid(const struct config *c) {
    struct buf out = {NULL, 0, 0};
    bool ok = config_title(c, NULL, &out);
    buf_free(&out);
    return ok;
}
