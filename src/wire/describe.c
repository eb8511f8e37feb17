/* What follows from a declaration without a request: arity, key specs, the synopsis. */
#include "wire/wire.h"

#include <string.h>
#include "base/assert.h"

#define ARGS_EACH(a, list)                                                                         \
    for (const struct wire_arg *a = (list); a != NULL && a->kind != WIRE_END; a++)

/* --- arity --- */

/* The words that there must be; *fixed_p turns false when there may be more. */
static int words_min(const struct wire_arg *a, bool *fixed_p) {
    int inner = a->kind == WIRE_FLAG ? 0 : 1;
    if (a->kind == WIRE_BLOCK) {
        inner = 0;
        ARGS_EACH(i, a->args) inner += words_min(i, fixed_p);
    } else if (a->kind == WIRE_ONEOF) {
        int most = 0;
        inner = 0;
        ARGS_EACH(i, a->args) {
            int words = words_min(i, fixed_p);
            inner = i == a->args || words < inner ? words : inner;
            most = words > most ? words : most;
        }
        if (most != inner) *fixed_p = false;
    }
    if (a->counted != NULL) inner = a->min == 0 ? 1 : inner + 1;
    if (a->many || a->optional) *fixed_p = false;
    return a->optional ? 0 : inner + (a->token != NULL);
}

int wire_arity(const struct wire_command *cmd) {
    bool fixed = !cmd->container;
    int words = cmd->container || strchr(cmd->name, '|') != NULL ? 2 : 1;
    ARGS_EACH(a, cmd->args) words += words_min(a, &fixed);
    return fixed ? words : -words;
}

/* --- keys --- */

void wire_keys(const struct wire_command *cmd, struct cmd_key_spec keys[WIRE_KEY_SPECS]) {
    int at = strchr(cmd->name, '|') != NULL ? 2 : 1, n = 0;
    memset(keys, 0, WIRE_KEY_SPECS * sizeof(*keys));
    ARGS_EACH(a, cmd->args) {
        const struct wire_arg *key = a->kind == WIRE_BLOCK ? a->args : a;
        bool known = !a->optional && !a->many;
        if (key->kind == WIRE_KEY) {
            TARN_ASSERT(n < WIRE_KEY_SPECS);
            keys[n++] = (struct cmd_key_spec){.flags = key->keys,
                                              .begin_index = at,
                                              .keynum = a->counted != NULL,
                                              .last = a->many && a->counted == NULL ? -1 : 0,
                                              .step = a->many ? (int)wire_block_words(a) : 1,
                                              .keyword = a->token};
        } else if (!known) {
            continue; /* behind it only what has a token has keys */
        }
        bool fixed = true;
        at += known ? words_min(a, &fixed) : 0;
    }
}

const struct wire_arg *wire_block(const struct wire_command *cmd) {
    ARGS_EACH(a, cmd->args)
        if (a->kind == WIRE_BLOCK) return a;
    return NULL;
}

static const struct wire_arg *named_in(const struct wire_arg *args, const char *token) {
    ARGS_EACH(a, args) {
        const struct wire_arg *inner = a->counted == NULL ? named_in(a->args, token) : NULL;
        if (a->token != NULL && strcmp(a->token, token) == 0) return a;
        if (inner != NULL) return inner;
    }
    return NULL;
}

const struct wire_arg *wire_named(const struct wire_command *cmd, const char *token) {
    return named_in(cmd->args, token);
}

size_t wire_block_words(const struct wire_arg *block) {
    size_t n = 0;
    if (block->kind != WIRE_BLOCK) return 1;
    ARGS_EACH(a, block->args) n++;
    return n;
}

/* --- synopsis --- */

static void append_arg(struct buf *out, const struct wire_arg *a);

static void append_inner(struct buf *out, const struct wire_arg *a) {
    const char *between = a->kind == WIRE_ONEOF ? " | " : " ";
    bool angles = a->kind == WIRE_ONEOF && (a->token != NULL || !a->optional);
    if (a->kind != WIRE_ONEOF && a->kind != WIRE_BLOCK) {
        if (a->name != NULL) buf_append_str(out, a->name);
        return;
    }
    if (angles) buf_append_char(out, '<');
    ARGS_EACH(i, a->args) {
        if (i != a->args) buf_append_str(out, between);
        append_arg(out, i);
    }
    if (angles) buf_append_char(out, '>');
}

/* With its token, unless the token goes before the number of all. */
static void append_once(struct buf *out, const struct wire_arg *a) {
    if (a->token != NULL && a->counted == NULL) {
        buf_append_str(out, a->token);
        if (a->kind != WIRE_FLAG) buf_append_char(out, ' ');
    }
    append_inner(out, a);
}

/* "[HINT SESSION id] [HINT RETURN ms]" */
static void append_some(struct buf *out, const struct wire_arg *a) {
    ARGS_EACH(i, a->args) {
        buf_printf(out, "%s[%s ", i == a->args ? "" : " ", a->token);
        append_arg(out, i);
        buf_append_char(out, ']');
    }
}

static void append_arg(struct buf *out, const struct wire_arg *a) {
    if (a->kind == WIRE_ONEOF && a->many && a->token != NULL) {
        append_some(out, a);
        return;
    }
    if (a->optional) buf_append_char(out, '[');
    if (a->counted != NULL && a->token != NULL) buf_printf(out, "%s ", a->token);
    if (a->counted != NULL) buf_printf(out, "%s %s", a->counted, a->min == 0 ? "[" : "");
    append_once(out, a);
    if (a->kind == WIRE_VALUES && a->many) {
        buf_printf(out, " [%s ...]", a->name);
    } else if (a->many) {
        buf_append_str(out, " [");
        append_once(out, a);
        buf_append_str(out, " ...]");
    }
    if (a->counted != NULL && a->min == 0) buf_append_char(out, ']');
    if (a->optional) buf_append_char(out, ']');
}

void wire_synopsis(const struct wire_command *cmd, struct buf *out) {
    ARGS_EACH(a, cmd->args) {
        if (a != cmd->args) buf_append_char(out, ' ');
        append_arg(out, a);
    }
}
