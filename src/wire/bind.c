/* Requests into structs. One pass: what is fixed, in order; then options, in any.
 *
 * Errors name what is wrong as tarn's own commands do; those of Redis say what Redis says. */
#include "wire/wire.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "base/near.h"

enum { SHOWN_MAX = 64 };   /* bytes of a word in an error */
enum { OPTIONS_MAX = 16 }; /* bits of a plan */
enum { TOKEN_MAX = 16 };   /* bytes of an option's token: see token_eq */
_Static_assert(ARRAY_LEN(((struct wire_plan *)0)->token_len) == OPTIONS_MAX, "one of each");

struct binding {
    const struct wire_command *cmd; /* NULL: a block */
    const struct span *argv;
    size_t argc, at;
    size_t option; /* the word that began the latest; 0: none yet */
    const struct wire_limits *limits;
    char *options, *error;
    size_t blocks; /* of the first block: so many words have lists beside it */
    bool counted;  /* ... also none */
};

static bool bind_refuse(struct binding *b, const char *fmt, ...)
    __attribute__((cold, format(printf, 2, 3)));
static bool bind_refuse(struct binding *b, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(b->error, WIRE_ERROR_SIZE, fmt, ap);
    va_end(ap);
    return false;
}

/* The first letters tell most apart. */
static inline bool is_token(struct span word, const char *token) {
    return word.len > 0 && word.data != NULL && (word.data[0] | 0x20) == (token[0] | 0x20) &&
           span_case_eq(word, token);
}

static bool of_redis(const struct binding *b) {
    return b->cmd != NULL && strcmp(b->cmd->group, "pool") != 0;
}

/* The text of a declaration, where * stands for the word at fault. */
static bool refuse_as(struct binding *b, const char *text, size_t at) {
    struct span word = b->argv[at];
    const char *star = strchr(text, '*');
    if (star == NULL || word.data == NULL) return bind_refuse(b, "%s", text);
    return bind_refuse(b, "%.*s%.*s%s", (int)(star - text), text,
                       (int)(word.len < SHOWN_MAX ? word.len : SHOWN_MAX), word.data, star + 1);
}

static bool refuse_syntax(struct binding *b, const char *name, const char *what) {
    if (!of_redis(b)) return bind_refuse(b, "%s %s", name, what);
    if (b->option > 0 && b->cmd->unknown != NULL) return refuse_as(b, b->cmd->unknown, b->option);
    return bind_refuse(b, "syntax error");
}

/* What errors call it. */
static const char *shown_name(const struct wire_arg *a) {
    return a->token != NULL ? a->token : a->counted != NULL ? a->counted : a->name;
}

static void member_set(struct binding *b, const struct wire_arg *a, uint64_t value) {
    char *member = b->options + a->offset;
    uint32_t half = (uint32_t)value;
    if (a->kind == WIRE_FLAG && a->max != 0)
        *(uint32_t *)member |= (uint32_t)a->max;
    else if (a->size == sizeof(value))
        memcpy(member, &value, sizeof(value));
    else if (a->size == sizeof(half))
        memcpy(member, &half, sizeof(half));
    else if (a->size == sizeof(bool))
        *(bool *)member = value != 0;
    else
        TARN_ASSERT(a->size == 0);
}

/* Of what may be given several times: the next. */
static bool many_add(struct binding *b, const struct wire_arg *a, size_t at) {
    if (a->size == 0) return true;
    struct wire_many *many = (struct wire_many *)(b->options + a->offset);
    size_t max = (a->size - sizeof(*many)) / sizeof(many->at[0]);
    if (many->n == max)
        return bind_refuse(b, "%s may be given at most %zu times", shown_name(a), max);
    many->at[many->n++] = (uint32_t)at;
    return true;
}

/* --- values --- */

static uint64_t number_max(const struct binding *b, const struct wire_arg *a) {
    return a->max == WIRE_MAX_BATCH  ? b->limits->batch
           : a->max == WIRE_MAX_WAIT ? b->limits->wait_ms
                                     : (uint64_t)a->max;
}

static bool number_takes_any(const struct wire_arg *a) {
    return a->min == 0 && a->max == 0;
}

static __attribute__((noinline)) bool number_refuse(struct binding *b, const struct wire_arg *a) {
    uint64_t max = number_max(b, a);
    if (of_redis(b)) return bind_refuse(b, "value is not an integer or out of range");
    if (number_takes_any(a)) return bind_refuse(b, "%s must be a number", shown_name(a));
    if (a->min < 0)
        return bind_refuse(b, "%s must be -1 or a number from 0 to %" PRIu64, shown_name(a), max);
    return bind_refuse(b, "%s must be a number from %" PRId64 " to %" PRIu64, shown_name(a), a->min,
                       max);
}

static inline bool number_bind(struct binding *b, const struct wire_arg *a, int64_t *value_p) {
    int64_t v;
    bool fits =
        span_to_i64(b->argv[b->at], &v) &&
        ((v >= a->min && (v < 0 || (uint64_t)v <= number_max(b, a))) || number_takes_any(a));
    if (UNLIKELY(!fits)) {
        (void)number_refuse(b, a);
        return false;
    }
    *value_p = v;
    b->at++;
    return true;
}

bool wire_ratio(struct span s, double *ratio_p) {
    char text[40], *end;
    if (s.len == 0 || s.len >= sizeof(text)) return false;
    memcpy(text, s.data, s.len);
    text[s.len] = '\0';
    double ratio = strtod(text, &end);
    if (end != text + s.len || !(ratio > 0 && ratio <= 1)) return false;
    *ratio_p = ratio;
    return true;
}

static bool is_hex(struct span s) {
    for (size_t i = 0; i < s.len; i++)
        if (memchr("0123456789abcdefABCDEF", s.data[i], 22) == NULL) return false;
    return true;
}

/* Redis' look-ups of keys that cannot be there are misses like others. */
static bool key_must_fit(const struct binding *b, const struct wire_arg *a) {
    return !of_redis(b) || a->keys & KEY_OW || (b->cmd->flags & CMD_DENYOOM && !(a->keys & KEY_RO));
}

static bool word_bind(struct binding *b, const struct wire_arg *a) {
    struct span s = b->argv[b->at];
    if (a->kind == WIRE_KEY && s.len - 1 >= WIRE_KEY_MAX && key_must_fit(b, a))
        return bind_refuse(b, "key must be 1 to %u bytes", WIRE_KEY_MAX);
    double ratio;
    if (a->kind == WIRE_RATIO && !wire_ratio(s, &ratio))
        return bind_refuse(b, "%s must be a number above 0 and up to 1", shown_name(a));
    if (a->kind == WIRE_HEX && (s.len != (size_t)a->max || !is_hex(s)))
        return bind_refuse(b, "%s must be %" PRId64 " hex digits, chosen at random", shown_name(a),
                           a->max);
    if (a->kind == WIRE_WORD && a->max > 0 && (s.len < (size_t)a->min || s.len > (size_t)a->max))
        return a->min == 0
                   ? bind_refuse(b, "%s may have at most %" PRId64 " bytes", shown_name(a), a->max)
                   : bind_refuse(b, "%s must be %" PRId64 " to %" PRId64 " bytes", shown_name(a),
                                 a->min, a->max);
    if (a->many) {
        if (!many_add(b, a, b->at)) return false;
    } else {
        member_set(b, a, b->at);
    }
    b->at++;
    return true;
}

/* n words that lie in a row. */
static bool row_bind(struct binding *b, const struct wire_arg *a, size_t n) {
    if (b->argc - b->at >= n) {
        b->at += n;
        return true;
    }
    return n == 1 ? refuse_syntax(b, shown_name(a), "needs a value")
                  : bind_refuse(b, "%s needs %zu values", shown_name(a), n);
}

static void list_set(struct binding *b, const struct wire_arg *a, size_t at, size_t n) {
    struct wire_list list = {(uint32_t)at, (uint32_t)n};
    TARN_ASSERT(a->size == sizeof(list) || a->size == 0);
    if (a->size != 0) memcpy(b->options + a->offset, &list, sizeof(list));
    if (b->blocks == 0) b->blocks = n;
    b->counted |= a->counted != NULL;
}

/* A block, once, counted, or the rest. Words within are not looked at. */
static bool block_bind(struct binding *b, const struct wire_arg *a) {
    size_t step = wire_block_words(a), at = b->at;
    int64_t n = 1;
    if (a->counted != NULL) {
        if (at >= b->argc) return refuse_syntax(b, shown_name(a), "needs a value");
        if (!number_bind(b, a, &n)) return false;
        at = b->at;
        if (a->exact && b->argc - at != (size_t)n * step)
            return bind_refuse(b, "%s is %" PRId64 ": %zu arguments must follow, and %zu do",
                               shown_name(a), n, (size_t)n * step, b->argc - at);
        if ((b->argc - at) / step < (size_t)n)
            return bind_refuse(b, "%s is %" PRId64 ", but fewer than %" PRId64 " arguments follow",
                               shown_name(a), n, n * (int64_t)step);
    } else if (a->many && a->token != NULL) {
        return row_bind(b, a, step) && many_add(b, a, at);
    } else if (a->many) {
        n = (int64_t)((b->argc - at) / step);
    }
    list_set(b, a, at, (size_t)n);
    return row_bind(b, a, (size_t)n * step);
}

static inline bool value_bind(struct binding *b, const struct wire_arg *a);

static void names_join(const struct wire_arg *args, const char *last, bool required,
                       struct buf *out) {
    size_t n = 0, i = 0;
    bool with_values = strcmp(last, " or ") == 0;
    for (const struct wire_arg *a = args; a->kind != WIRE_END; a++)
        n += !required || (a->token != NULL && !a->optional);
    for (const struct wire_arg *a = args; a->kind != WIRE_END; a++) {
        if (required && (a->token == NULL || a->optional)) continue;
        buf_printf(out, "%s%s",
                   i == 0       ? ""
                   : i + 1 == n ? last
                                : ", ",
                   a->token != NULL ? a->token : a->name);
        if (with_values && a->token != NULL && a->name != NULL) buf_printf(out, " %s", a->name);
        i++;
    }
}

static bool refuse_list(struct binding *b, const char *name, const char *verb,
                        const struct wire_arg *args, const char *last, bool required,
                        const char *tail) {
    struct buf list = {NULL, 0, 0};
    names_join(args, last, required, &list);
    bind_refuse(b, "%s%s%.*s%s", name, verb, (int)list.len, list.data, tail);
    buf_free(&list);
    return false;
}

/* Whether the next word is one that a begins with. What begins with no token begins with any. */
static bool may_begin(const struct binding *b, const struct wire_arg *a, bool token_only) {
    if (a->token != NULL) return is_token(b->argv[b->at], a->token);
    if (a->kind == WIRE_BLOCK && a->counted == NULL) return may_begin(b, a->args, token_only);
    if (a->kind != WIRE_ONEOF) return !token_only;
    for (const struct wire_arg *i = a->args; i->kind != WIRE_END; i++)
        if (may_begin(b, i, token_only)) return true;
    return false;
}

/* The alternative that the next word begins: by its token rather than without. NULL: none. */
static const struct wire_arg *alternative_find(const struct binding *b, const struct wire_arg *a) {
    for (int any = 0; any < 2 && b->at < b->argc; any++)
        for (const struct wire_arg *i = a->args; i->kind != WIRE_END; i++)
            if (may_begin(b, i, any == 0)) return i;
    return NULL;
}

/* Of what is given once: not again. Its member is 0 before. */
static bool once_check(struct binding *b, const struct wire_arg *outer, const struct wire_arg *a) {
    uint32_t given = 0;
    if (!a->once) return true;
    TARN_ASSERT(a->size == sizeof(given) && a->min > 0);
    memcpy(&given, b->options + a->offset, sizeof(given));
    return given == 0 || bind_refuse(b, "%s %s may be given once", outer->token, a->token);
}

static bool oneof_bind(struct binding *b, const struct wire_arg *a) {
    const struct wire_arg *i = alternative_find(b, a);
    if (i == NULL) {
        if (a->error != NULL && b->at < b->argc) return refuse_as(b, a->error, b->at);
        return of_redis(b) ? bind_refuse(b, "syntax error")
                           : refuse_list(b, shown_name(a), " must be ", a->args, " or ", false, "");
    }
    do {
        member_set(b, a, (uint64_t)(i - a->args) + 1);
        if (!once_check(b, a, i)) return false;
        if (i->token != NULL) b->at++;
        if (!value_bind(b, i)) return false;
    } while (a->many && a->token == NULL && (i = alternative_find(b, a)) != NULL);
    return true;
}

static bool unsigned_bind(struct binding *b, const struct wire_arg *a) {
    uint64_t value;
    if (!span_to_u64(b->argv[b->at], &value))
        return bind_refuse(b, "%s must be a number", shown_name(a));
    b->at++;
    member_set(b, a, value);
    return true;
}

static bool size_bind(struct binding *b, const struct wire_arg *a) {
    uint64_t size;
    if (!span_to_bytes(b->argv[b->at], &size) || size > INT64_MAX)
        return bind_refuse(b, "%s must be a size, as 1000000 or 10gb", shown_name(a));
    b->at++;
    member_set(b, a, size);
    return true;
}

/* One word. */
static bool scalar_bind(struct binding *b, const struct wire_arg *a) {
    int64_t number;
    uint32_t bits;
    switch (a->kind) {
    case WIRE_UNSIGNED: return unsigned_bind(b, a);
    case WIRE_SIZE: return size_bind(b, a);
    case WIRE_NUMBER:
        if (!number_bind(b, a, &number)) return false;
        member_set(b, a, (uint64_t)number);
        return true;
    case WIRE_BITS:
        if (!number_bind(b, a, &number)) return false;
        memcpy(&bits, b->options + a->offset, sizeof(bits));
        member_set(b, a, bits | UINT64_C(1) << number);
        return true;
    default: return word_bind(b, a);
    }
}

static bool group_bind(struct binding *b, const struct wire_arg *args);

/* All but the plainest. */
static __attribute__((noinline)) bool value_bind_any(struct binding *b, const struct wire_arg *a) {
    size_t at = b->at;
    if (a->kind == WIRE_ONEOF) return oneof_bind(b, a);
    if (a->kind == WIRE_BLOCK && a->size == 0 && !a->many) return group_bind(b, a->args);
    if (a->kind == WIRE_BLOCK || (a->many && a->token == NULL) || a->counted != NULL)
        return block_bind(b, a);
    if (a->kind == WIRE_VALUES) {
        member_set(b, a, at);
        return row_bind(b, a, b->blocks > 0 || b->counted ? b->blocks : max_u64(b->argc - at, 1));
    }
    if (at >= b->argc) return refuse_syntax(b, shown_name(a), "needs a value");
    return scalar_bind(b, a) || (a->error != NULL && refuse_as(b, a->error, at));
}

/* What follows its token. */
static inline bool value_bind(struct binding *b, const struct wire_arg *a) {
    int64_t number;
    if (a->kind == WIRE_FLAG) {
        member_set(b, a, 1);
        return true;
    }
    if (a->kind != WIRE_NUMBER || a->many || a->error != NULL || b->at >= b->argc)
        return value_bind_any(b, a);
    if (!number_bind(b, a, &number)) return false;
    member_set(b, a, (uint64_t)number);
    return true;
}

/* --- the whole --- */

/* In the command itself what must be there and has a token may stand among the options. */
static bool is_fixed(const struct wire_arg *a, bool whole) {
    return a->kind != WIRE_END && !a->optional && (a->token == NULL || !whole) &&
           (!a->many || a->counted != NULL);
}

/* There are more words than it takes, of which none is an option. */
static bool refuse_more(struct binding *b) {
    char name[64];
    size_t n = strlen(b->cmd->name);
    TARN_ASSERT(n < sizeof(name));
    for (size_t i = 0; i <= n; i++) name[i] = (char)tolower(b->cmd->name[i]);
    return bind_refuse(b, "wrong number of arguments for '%s' command", name);
}

/* One that belongs to a group of options, and stands without what begins the group. */
static bool refuse_within(struct binding *b, const struct wire_arg *args) {
    for (const struct wire_arg *a = args; a->kind != WIRE_END; a++)
        for (const struct wire_arg *i = a->kind == WIRE_BLOCK && !a->many ? a->args : NULL;
             i != NULL && i->kind != WIRE_END; i++)
            if (i->token != NULL && a->args->token != NULL && is_token(b->argv[b->at], i->token))
                return bind_refuse(b, "%s must stand before %s", a->args->token, i->token);
    return true;
}

static bool refuse_option(struct binding *b, const struct wire_arg *args) {
    bool options = false;
    for (const struct wire_arg *a = b->cmd->args; a != NULL && a->kind != WIRE_END; a++)
        options |= a->token != NULL || a->kind == WIRE_ONEOF || a->kind == WIRE_BLOCK;
    struct span word = b->argv[b->at];
    struct near near;
    if (b->cmd->unknown != NULL) return refuse_as(b, b->cmd->unknown, b->at);
    if (of_redis(b)) return options ? bind_refuse(b, "syntax error") : refuse_more(b);
    if (!refuse_within(b, args)) return false;
    near_begin(&near, word);
    for (const struct wire_arg *a = args; a->kind != WIRE_END; a++) {
        if (a->token != NULL) near_offer(&near, a->token);
        for (const struct wire_arg *i = a->kind == WIRE_ONEOF && a->token == NULL ? a->args : NULL;
             i != NULL && i->kind != WIRE_END; i++)
            if (i->token != NULL) near_offer(&near, i->token);
    }
    return bind_refuse(b, "unknown option '%.*s'%s%s%s",
                       (int)(word.len < SHOWN_MAX ? word.len : SHOWN_MAX),
                       word.len > 0 ? word.data : "", near.word != NULL ? ", did you mean '" : "",
                       near.word != NULL ? near.word : "", near.word != NULL ? "'?" : "");
}

static unsigned letter_of(const char *word) {
    return (unsigned char)word[0] & 31;
}

static inline uint64_t word_load(const char *p, size_t n) {
    uint64_t w = 0;
    memcpy(&w, p, n);
    return w;
}

/* Are these n bytes of a word those of the token? It has letters, digits and '-': where bit 6 is
 * set there is a letter, whose case, bit 5, does not matter. */
static inline bool bytes_eq(const char *word, const char *token, size_t n) {
    uint64_t t = word_load(token, n), letters = t >> 1 & UINT64_C(0x2020202020202020);
    return ((word_load(word, n) ^ t) & ~letters) == 0;
}

/* The first bytes and the last may overlap. */
static inline bool token_eq(const char *word, const char *token, size_t len) {
    if (len >= 8) return bytes_eq(word, token, 8) && bytes_eq(word + len - 8, token + len - 8, 8);
    if (len >= 4) return bytes_eq(word, token, 4) && bytes_eq(word + len - 4, token + len - 4, 4);
    for (size_t i = 0; i < len; i++)
        if (!bytes_eq(word + i, token + i, 1)) return false;
    return true;
}

/* Which of those options the next word begins; -1: none. One without a token is there once. */
static __attribute__((noinline)) int option_find_of(const struct binding *b,
                                                    const struct wire_arg *args, unsigned those,
                                                    const uint8_t *given) {
    for (; those != 0; those &= those - 1) {
        int i = __builtin_ctz(those);
        if (may_begin(b, &args[i], given[i] != 0)) return i;
    }
    return -1;
}

/* The same of all. Nearly all have a token. */
static inline int option_find(const struct binding *b, const struct wire_arg *args,
                              const struct wire_plan *plan, const uint8_t *given) {
    struct span word = b->argv[b->at];
    if (word.len == 0 || word.data == NULL) return option_find_of(b, args, plan->begins[0], given);
    for (unsigned those = plan->begins[letter_of(word.data)]; those != 0; those &= those - 1) {
        int i = __builtin_ctz(those);
        size_t len = plan->token_len[i];
        if (len == 0) return option_find_of(b, args, those, given);
        if (word.len == len && token_eq(word.data, args[i].token, len)) return i;
    }
    return -1;
}

/* The counted block that it is, or has; NULL: none. */
static const struct wire_arg *counted_within(const struct wire_arg *a) {
    if (a->counted != NULL) return a;
    for (const struct wire_arg *i = a->kind == WIRE_BLOCK ? a->args : NULL;
         i != NULL && i->kind != WIRE_END; i++)
        if (i->counted != NULL) return i;
    return NULL;
}

/* One that was given before, then and now as which of ONEOF. */
static __attribute__((noinline)) bool again_check(struct binding *b, const struct wire_arg *a,
                                                  uint8_t before, uint8_t which) {
    if (b->cmd->once) return bind_refuse(b, "syntax error");
    if (before != which)
        return of_redis(b) ? bind_refuse(b, "syntax error")
                           : refuse_list(b, "", "", a->args, " and ", false, " exclude each other");
    /* whoever asks for the keys of a request looks behind the first */
    const struct wire_arg *counted = counted_within(a);
    return counted == NULL || bind_refuse(b, "%s may be given once", counted->token);
}

/* given: by what came before, 0, or which of ONEOF without a token, or 1. */
static inline bool option_bind(struct binding *b, const struct wire_arg *a, uint8_t *given) {
    uint8_t which = 1;
    b->option = b->at;
    if (a->token == NULL && a->kind == WIRE_ONEOF && !a->many)
        which = (uint8_t)(alternative_find(b, a) - a->args + 1);
    if (UNLIKELY(*given != 0) && !again_check(b, a, *given, which)) return false;
    *given = which;
    if (a->token != NULL) b->at++;
    return value_bind(b, a);
}

static bool refuse_missing(struct binding *b, const struct wire_arg *args) {
    char name[64];
    if (of_redis(b)) return bind_refuse(b, "syntax error");
    snprintf(name, sizeof(name), "%s", b->cmd->name);
    for (char *bar = strchr(name, '|'); bar != NULL; bar = strchr(bar, '|')) *bar = ' ';
    return refuse_list(b, name, " needs ", args, " and ", true, "");
}

/* --- the plan --- */

static void plan_begin(struct wire_plan *plan, uint16_t bit, const struct wire_arg *a) {
    if (a->token != NULL) {
        plan->begins[letter_of(a->token)] |= bit;
    } else if (a->kind == WIRE_BLOCK && a->counted == NULL) {
        plan_begin(plan, bit, a->args);
    } else if (a->kind != WIRE_ONEOF) {
        for (size_t i = 0; i < ARRAY_LEN(plan->begins); i++) plan->begins[i] |= bit;
    } else {
        for (const struct wire_arg *i = a->args; i->kind != WIRE_END; i++) plan_begin(plan, bit, i);
    }
}

static void plan_make(const struct wire_arg *args, bool whole, struct wire_plan *plan) {
    *plan = (struct wire_plan){.ends = 0};
    while (is_fixed(&args[plan->fixed], whole)) plan->fixed++;
    args += plan->fixed;
    for (size_t i = 0; args[i].kind != WIRE_END; i++) {
        const struct wire_arg *a = &args[i];
        size_t len = a->token != NULL ? strlen(a->token) : 0;
        TARN_ASSERT(i < OPTIONS_MAX && len <= TOKEN_MAX);
        plan->token_len[i] = (uint8_t)len;
        plan_begin(plan, (uint16_t)(1u << i), a);
        if (a->absent != 0 || (!a->optional && a->token != NULL)) plan->ends |= (uint16_t)(1u << i);
    }
}

static const struct wire_arg *args_of(const struct wire_command *cmd) {
    static const struct wire_arg none = {.kind = WIRE_END};
    return cmd->args != NULL ? cmd->args : &none;
}

void wire_plan(const struct wire_command *cmd, struct wire_plan *plan) {
    plan_make(args_of(cmd), true, plan);
    plan->first = strchr(cmd->name, '|') != NULL ? 2 : 1;
}

static bool fixed_bind(struct binding *b, const struct wire_arg *a) {
    if (a->token != NULL) {
        if (b->at >= b->argc || !is_token(b->argv[b->at], a->token))
            return refuse_syntax(b, a->token, "is missing");
        b->at++;
    }
    return value_bind(b, a);
}

/* Of those options the ones that were not given. */
static __attribute__((noinline)) bool absent_bind(struct binding *b, const struct wire_arg *args,
                                                  unsigned those, const uint8_t *given) {
    for (; those != 0; those &= those - 1) {
        int i = __builtin_ctz(those);
        if (given[i] != 0) continue;
        if (args[i].absent != 0) member_set(b, &args[i], (uint64_t)args[i].absent);
        if (!args[i].optional && args[i].token != NULL) return refuse_missing(b, args);
    }
    return true;
}

/* All that is left of the request, or a group within it: as far as its options go. */
static bool args_bind(struct binding *b, const struct wire_arg *args, const struct wire_plan *plan,
                      bool whole) {
    uint8_t given[OPTIONS_MAX] = {0};
    for (unsigned i = 0; i < plan->fixed; i++)
        if (!fixed_bind(b, args++)) return false;
    while (b->at < b->argc) {
        int i = option_find(b, args, plan, given);
        if (i < 0 && whole) return refuse_option(b, args);
        if (i < 0) break;
        if (!option_bind(b, &args[i], &given[i])) return false;
    }
    return plan->ends == 0 || absent_bind(b, args, plan->ends, given);
}

static bool group_bind(struct binding *b, const struct wire_arg *args) {
    struct wire_plan plan;
    plan_make(args, false, &plan);
    return args_bind(b, args, &plan, false);
}

bool wire_bind(const struct wire_command *cmd, const struct wire_plan *plan,
               const struct span *argv, size_t argc, const struct wire_limits *limits,
               void *options, char error[WIRE_ERROR_SIZE]) {
    struct wire_plan made;
    if (plan == NULL) {
        wire_plan(cmd, &made);
        plan = &made;
    }
    struct binding b = {.cmd = cmd,
                        .argv = argv,
                        .argc = argc,
                        .at = plan->first,
                        .limits = limits,
                        .options = options,
                        .error = error};
    return args_bind(&b, args_of(cmd), plan, true);
}

/* From the argument on that is out of the ordinary. */
static bool block_bind_slowly(const struct wire_arg *a, const struct span *argv, size_t at,
                              void *element, char error[WIRE_ERROR_SIZE]) {
    struct binding b = {
        .argv = argv, .argc = SIZE_MAX, .at = at, .options = element, .error = error};
    for (; a->kind != WIRE_END; a++)
        if (!value_bind(&b, a)) return false;
    return true;
}

/* This runs for each key of a batch. */
bool wire_bind_block(const struct wire_arg *block, const struct span *argv, size_t at,
                     void *element, char error[WIRE_ERROR_SIZE]) {
    for (const struct wire_arg *a = block->args; a->kind != WIRE_END; a++, at++) {
        char *member = (char *)element + a->offset;
        int64_t number;
        if (a->kind == WIRE_KEY && argv[at].len - 1 < WIRE_KEY_MAX && a->size == sizeof(uint32_t))
            *(uint32_t *)member = (uint32_t)at;
        else if (a->kind == WIRE_NUMBER && a->size == sizeof(number) &&
                 span_to_i64(argv[at], &number) && number >= a->min && number <= a->max)
            memcpy(member, &number, sizeof(number));
        else
            return block_bind_slowly(a, argv, at, element, error);
    }
    return true;
}
