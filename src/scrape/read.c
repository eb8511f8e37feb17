#include "scrape/read.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "base/assert.h"

static bool blank(char c) {
    return c == ' ' || c == '\t';
}

enum { VLLM, SGLANG };
static const struct {
    struct span name, label;
} engines[] = {
    [VLLM] = {SPAN("vllm"), SPAN("engine")}, [SGLANG] = {SPAN("sglang"), SPAN("dp_rank")}};

#define MEMBER(m) offsetof(struct scrape_seen, m)
#define CONFIG    SIZE_MAX /* its labels are what counts */
static const struct figure_name {
    int engine;
    struct span name;
    size_t member;
    double most;
} names[] = {
    {VLLM, SPAN("num_requests_running"), MEMBER(running), SCRAPE_MOST},
    {VLLM, SPAN("num_requests_waiting"), MEMBER(waiting), SCRAPE_MOST},
    {VLLM, SPAN("kv_cache_usage_perc"), MEMBER(usage), 1},
    {VLLM, SPAN("gpu_cache_usage_perc"), MEMBER(usage), 1},
    {VLLM, SPAN("cache_config_info"), CONFIG, 1},
    {SGLANG, SPAN("num_running_reqs"), MEMBER(running), SCRAPE_MOST},
    {SGLANG, SPAN("num_queue_reqs"), MEMBER(waiting), SCRAPE_MOST},
    {SGLANG, SPAN("num_used_tokens"), MEMBER(used_tokens), SCRAPE_MOST},
    {SGLANG, SPAN("kv_used_tokens"), MEMBER(kv_used_tokens), SCRAPE_MOST},
    {SGLANG, SPAN("token_usage"), MEMBER(usage), 1},
    {SGLANG, SPAN("max_total_num_tokens"), MEMBER(capacity_tokens), SCRAPE_MOST},
};

static void seen_init(struct scrape_seen *s, uint32_t rank) {
    *s = (struct scrape_seen){.rank = rank,
                              .waiting = -1,
                              .running = -1,
                              .usage = -1,
                              .used_tokens = -1,
                              .kv_used_tokens = -1,
                              .capacity_tokens = -1};
}

void scrape_reader_begin(struct scrape_reader *r) {
    seen_init(&r->all, SCRAPE_NO_RANK);
    r->count = 0;
    r->refused = 0;
    r->why[0] = '\0';
    r->len = 0;
    r->passing = false;
}

/* --- a line: name{label="value",...} number [time] --- */

static bool word_char(char c) {
    char l = ascii_lower(c);
    return (l >= 'a' && l <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == ':';
}

static struct span take_word(struct span *s) {
    size_t n = 0;
    while (n < s->len && word_char(s->data[n])) n++;
    struct span word = span_of(s->data, n);
    *s = span_of(s->data + n, s->len - n);
    return word;
}

static bool take_char(struct span *s, char c) {
    if (s->len == 0 || s->data[0] != c) return false;
    *s = span_of(s->data + 1, s->len - 1);
    return true;
}

static void take_blanks(struct span *s) {
    while (s->len > 0 && blank(s->data[0])) *s = span_of(s->data + 1, s->len - 1);
}

/* A value in quotes, in which \" is no end of it. None that counts has a backslash in it, so that
 * it may stay as it stands there. */
static bool take_value(struct span *s, struct span *value_p) {
    if (!take_char(s, '"')) return false;
    for (size_t n = 0; n < s->len; n++) {
        if (s->data[n] == '\\') {
            n++;
        } else if (s->data[n] == '"') {
            *value_p = span_of(s->data, n);
            *s = span_of(s->data + n + 1, s->len - n - 1);
            return true;
        }
    }
    return false;
}

/* Labels that count. */
struct labels {
    struct span rank, blocks, block, tokens;
};

static bool take_labels(struct span *s, struct span rank, struct labels *out) {
    *out = (struct labels){{NULL, 0}, {NULL, 0}, {NULL, 0}, {NULL, 0}};
    if (!take_char(s, '{')) return true;
    for (;;) {
        struct span name, value;
        take_blanks(s);
        if (take_char(s, '}')) return true;
        name = take_word(s);
        take_blanks(s);
        if (name.len == 0 || !take_char(s, '=')) return false;
        take_blanks(s);
        if (!take_value(s, &value)) return false;
        if (span_eq(name, rank)) out->rank = value;
        if (span_eq(name, SPAN("num_gpu_blocks"))) out->blocks = value;
        if (span_eq(name, SPAN("block_size"))) out->block = value;
        if (span_eq(name, SPAN("kv_cache_size_tokens"))) out->tokens = value;
        take_blanks(s);
        if (!take_char(s, ',') && (s->len == 0 || s->data[0] != '}')) return false;
    }
}

/* Digits, a point, an exponent: what strtod takes beyond that (names, hexadecimal) is no figure. */
static bool take_number(struct span *s, double *v_p) {
    char text[64], *end;
    size_t n = 0;
    for (; n < s->len && !blank(s->data[n]); n++) {
        if (n + 1 == sizeof(text) || memchr("0123456789+-.eE", s->data[n], 15) == NULL)
            return false;
        text[n] = s->data[n];
    }
    text[n] = '\0';
    *v_p = strtod(text, &end);
    *s = span_of(s->data + n, s->len - n);
    return n > 0 && *end == '\0';
}

/* --- figures --- */

static const struct figure_name *name_known(struct span word) {
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        struct span engine = engines[names[i].engine].name;
        if (word.len == engine.len + 1 + names[i].name.len && span_starts(word, engine) &&
            (word.data[engine.len] == ':' || word.data[engine.len] == '_') &&
            span_eq(span_of(word.data + engine.len + 1, names[i].name.len), names[i].name))
            return &names[i];
    }
    return NULL;
}

static void figure_refuse(struct scrape_reader *r, struct span line, const char *what) {
    if (r->refused++ > 0) return;
    size_t n = line.len < 80 ? line.len : 80;
    snprintf(r->why, sizeof(r->why), "%s: %.*s", what, (int)n, line.data);
    for (char *c = r->why; *c != '\0'; c++)
        if (*c < ' ' || *c > '~') *c = '?';
}

/* NULL: there are too many. */
static struct scrape_seen *seen_of(struct scrape_reader *r, struct span rank) {
    uint64_t number;
    if (!span_to_u64(rank, &number)) return &r->all;
    for (uint32_t i = 0; i < r->count; i++)
        if (r->rank[i].rank == number) return &r->rank[i];
    if (r->count == SCRAPE_RANKS_MAX || number >= SCRAPE_RANKS_MAX) return NULL;
    seen_init(&r->rank[r->count], (uint32_t)number);
    return &r->rank[r->count++];
}

static void seen_config(struct scrape_seen *s, const struct labels *l) {
    uint64_t tokens, block;
    if (!span_to_u64(l->tokens, &tokens)) {
        if (!span_to_u64(l->blocks, &tokens) || !span_to_u64(l->block, &block) ||
            block > SCRAPE_MOST || tokens > SCRAPE_MOST / (block + 1))
            return;
        tokens *= block;
    }
    if (tokens > 0 && tokens <= SCRAPE_MOST)
        s->capacity_tokens = fmax(s->capacity_tokens, (double)tokens);
}

static void read_line(struct scrape_reader *r, struct span line) {
    struct span rest = line;
    const struct figure_name *its = name_known(take_word(&rest));
    struct labels labels;
    double v;
    if (its == NULL) return;
    take_blanks(&rest);
    if (!take_labels(&rest, engines[its->engine].label, &labels)) {
        figure_refuse(r, line, "labels that are none");
        return;
    }
    take_blanks(&rest);
    if (!take_number(&rest, &v) || !(v >= 0) || v > its->most) {
        figure_refuse(r, line, "no figure that can be");
        return;
    }
    struct scrape_seen *s = seen_of(r, labels.rank);
    if (s == NULL) {
        figure_refuse(r, line, "no rank that can be");
    } else if (its->member == CONFIG) {
        seen_config(s, &labels);
    } else {
        double *member = (double *)(void *)((char *)s + its->member);
        *member = fmax(*member, v);
    }
}

static void line_end(struct scrape_reader *r) {
    struct span line = span_of(r->line, r->len);
    if (r->passing) {
        struct span rest = line;
        if (name_known(take_word(&rest)) != NULL) figure_refuse(r, line, "a line that is too long");
    } else {
        if (line.len > 0 && line.data[line.len - 1] == '\r') line.len--;
        read_line(r, line);
    }
    r->len = 0;
    r->passing = false;
}

void scrape_reader_take(struct scrape_reader *r, struct span piece) {
    while (piece.len > 0) {
        const char *end = memchr(piece.data, '\n', piece.len);
        size_t n = end == NULL ? piece.len : (size_t)(end - piece.data);
        size_t room = SCRAPE_LINE_MAX - r->len;
        memcpy(r->line + r->len, piece.data, n < room ? n : room);
        r->passing = r->passing || n > room;
        r->len += n < room ? n : room;
        if (end == NULL) return;
        line_end(r);
        piece = span_of(piece.data + n + 1, piece.len - n - 1);
    }
}

/* --- the whole --- */

static uint64_t whole(double v) {
    return v < 0 ? SCRAPE_UNKNOWN : (uint64_t)(v + 0.5);
}

static double used_tokens(const struct scrape_seen *s) {
    double used = fmax(s->used_tokens, s->kv_used_tokens);
    return used < 0 && s->usage >= 0 && s->capacity_tokens > 0 ? s->usage * s->capacity_tokens
                                                               : used;
}

static void load_add(struct scrape_load *load, const struct scrape_seen *s) {
    if (s->running < 0 && s->waiting < 0) return;
    load->rank[load->count++] = (struct scrape_rank){.rank = s->rank,
                                                     .waiting = whole(s->waiting),
                                                     .running = whole(s->running),
                                                     .used_tokens = whole(used_tokens(s)),
                                                     .capacity_tokens = whole(s->capacity_tokens)};
}

bool scrape_reader_end(struct scrape_reader *r, struct scrape_load *load, char *why) {
    if (r->len > 0 || r->passing) line_end(r);
    load->count = 0;
    for (uint32_t i = 0; i < r->count; i++) {
        struct scrape_seen *s = &r->rank[i];
        if (s->capacity_tokens < 0) s->capacity_tokens = r->all.capacity_tokens;
        load_add(load, s);
    }
    if (load->count == 0) load_add(load, &r->all);
    if (load->count > 0) return true;
    snprintf(why, SCRAPE_WHY, "%s",
             r->why[0] != '\0' ? r->why : "it has no load of vLLM or SGLang in it");
    return false;
}

const struct scrape_rank *scrape_load_find(const struct scrape_load *load, uint32_t rank,
                                           bool alone) {
    for (uint32_t i = 0; i < load->count; i++)
        if (load->rank[i].rank == rank) return &load->rank[i];
    return alone && load->count == 1 ? &load->rank[0] : NULL;
}
