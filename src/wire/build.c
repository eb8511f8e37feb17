/* Structs into requests: the inverse of bind.c. */
#include "wire/wire.h"

#include <string.h>
#include "base/assert.h"

struct building {
    const char *options;
    const struct span *words;
    const struct wire_sink *sink;
    size_t blocks; /* as in bind.c */
    bool counted;
};

static void put_str(const struct building *b, const char *word) {
    b->sink->word(b->sink->arg, span_str(word));
}

static uint64_t member_get(const struct building *b, const struct wire_arg *a) {
    const char *member = b->options + a->offset;
    uint64_t value;
    uint32_t half;
    if (a->kind == WIRE_FLAG && a->max != 0) {
        memcpy(&half, member, sizeof(half));
        return half & (uint32_t)a->max;
    }
    if (a->size == sizeof(bool)) return *(const bool *)member;
    if (a->size == sizeof(half)) {
        memcpy(&half, member, sizeof(half));
        return half;
    }
    memcpy(&value, member, sizeof(value)); /* of a list: whether it is not empty */
    return value;
}

/* Several of one option: the indices of their first words. */
static bool is_many(const struct wire_arg *a) {
    return a->many && a->token != NULL && a->counted == NULL && a->kind != WIRE_BITS &&
           a->kind != WIRE_VALUES && a->kind != WIRE_ONEOF;
}

static bool option_given(const struct building *b, const struct wire_arg *a) {
    if (a->size == 0 && (a->kind == WIRE_ONEOF || a->kind == WIRE_BLOCK)) {
        for (const struct wire_arg *i = a->args; i->kind != WIRE_END; i++)
            if (option_given(b, i)) return true;
        return false;
    }
    TARN_ASSERT(a->size != 0);
    if (is_many(a)) return ((const struct wire_many *)(b->options + a->offset))->n > 0;
    return member_get(b, a) != (uint64_t)a->absent;
}

static void words_put(const struct building *b, size_t at, size_t n) {
    for (size_t i = 0; i < n; i++) b->sink->word(b->sink->arg, b->words[at + i]);
}

static void arg_put(struct building *b, const struct wire_arg *a);
static void args_put(struct building *b, const struct wire_arg *args);

static void oneof_put(struct building *b, const struct wire_arg *a) {
    uint64_t which = a->size != 0 ? member_get(b, a) : 0;
    for (const struct wire_arg *i = a->args; i->kind != WIRE_END; i++)
        if (which == 0 ? option_given(b, i) : which == (uint64_t)(i - a->args) + 1) {
            arg_put(b, i);
            return;
        }
}

static void list_put(struct building *b, const struct wire_arg *a) {
    struct wire_list list;
    TARN_ASSERT(a->size == sizeof(list));
    memcpy(&list, b->options + a->offset, sizeof(list));
    if (b->blocks == 0) b->blocks = list.n;
    b->counted |= a->counted != NULL;
    if (a->counted != NULL) b->sink->number(b->sink->arg, list.n);
    words_put(b, list.at, list.n * wire_block_words(a));
}

/* What follows the token. */
static void value_put(struct building *b, const struct wire_arg *a) {
    switch (a->kind) {
    case WIRE_FLAG: break;
    case WIRE_ONEOF: oneof_put(b, a); break;
    case WIRE_NUMBER:
    case WIRE_UNSIGNED:
    case WIRE_SIZE: b->sink->number(b->sink->arg, (int64_t)member_get(b, a)); break;
    case WIRE_VALUES:
        words_put(b, member_get(b, a), b->blocks > 0 || b->counted ? b->blocks : 1);
        break;
    default:
        if (a->kind == WIRE_BLOCK && a->size == 0 && !a->many)
            args_put(b, a->args);
        else if (a->kind == WIRE_BLOCK || a->many || a->counted != NULL)
            list_put(b, a);
        else
            words_put(b, member_get(b, a), 1);
    }
}

static void many_put(struct building *b, const struct wire_arg *a) {
    const struct wire_many *many = (const struct wire_many *)(b->options + a->offset);
    for (uint32_t i = 0; i < many->n; i++) {
        put_str(b, a->token);
        words_put(b, many->at[i], wire_block_words(a));
    }
}

static void bits_put(struct building *b, const struct wire_arg *a) {
    uint64_t bits = member_get(b, a);
    for (int64_t i = 0; bits >> i != 0; i++) {
        if (!(bits >> i & 1)) continue;
        put_str(b, a->token);
        b->sink->number(b->sink->arg, i);
    }
}

/* Those that are given, each behind the token. */
static void some_put(struct building *b, const struct wire_arg *a) {
    for (const struct wire_arg *i = a->args; i->kind != WIRE_END; i++) {
        if (!option_given(b, i)) continue;
        put_str(b, a->token);
        arg_put(b, i);
    }
}

static void arg_put(struct building *b, const struct wire_arg *a) {
    if (is_many(a)) {
        many_put(b, a);
    } else if (a->kind == WIRE_ONEOF && a->many && a->token != NULL) {
        some_put(b, a);
    } else if (a->kind == WIRE_BITS) {
        bits_put(b, a);
    } else {
        if (a->token != NULL) put_str(b, a->token);
        value_put(b, a);
    }
}

static void args_put(struct building *b, const struct wire_arg *args) {
    for (const struct wire_arg *a = args; a != NULL && a->kind != WIRE_END; a++)
        if (!a->optional || option_given(b, a)) arg_put(b, a);
}

void wire_build(const struct wire_command *cmd, const void *options, const struct span *words,
                const struct wire_sink *sink) {
    struct building b = {.options = options, .words = words, .sink = sink};
    const char *bar = strchr(cmd->name, '|');
    if (bar != NULL) sink->word(sink->arg, span_of(cmd->name, (size_t)(bar - cmd->name)));
    put_str(&b, bar != NULL ? bar + 1 : cmd->name);
    args_put(&b, cmd->args);
}
