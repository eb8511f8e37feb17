/* COMMAND: the table, for programs and for people. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "front/client.h"
#include "front/families.h"
#include "base/glob.h"
#include "front/modules.h"
#include "front/table.h"
#include "wire/options.h"

struct counted {
    struct client *c;
    size_t n;
};

static void add_simple(void *arg, const char *name) {
    struct counted *k = arg;
    reply_simple(k->c, name);
    k->n++;
}

static void reply_names(struct client *c, const struct cmd *cmd,
                        void (*each)(const struct cmd *cmd, void (*fn)(void *arg, const char *name),
                                     void *arg)) {
    struct counted k = {c, 0};
    void *cookie = reply_deferred(c);
    each(cmd, add_simple, &k);
    reply_deferred_set(c, cookie, k.n);
}

/* --- INFO --- */

static const struct {
    unsigned flag;
    const char *name;
} key_flags[] = {{KEY_RO, "RO"},         {KEY_RW, "RW"},         {KEY_OW, "OW"},
                 {KEY_RM, "RM"},         {KEY_ACCESS, "access"}, {KEY_UPDATE, "update"},
                 {KEY_INSERT, "insert"}, {KEY_DELETE, "delete"}, {KEY_VARIABLE, "variable_flags"}};

static void reply_key_flags(struct client *c, unsigned flags) {
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(key_flags); i++) n += (flags & key_flags[i].flag) != 0;
    reply_set(c, n);
    for (size_t i = 0; i < ARRAY_LEN(key_flags); i++)
        if (flags & key_flags[i].flag) reply_simple(c, key_flags[i].name);
}

static void reply_field_int(struct client *c, const char *name, int64_t v) {
    reply_bulk_str(c, name);
    reply_int(c, v);
}

static void reply_begin_search(struct client *c, const struct cmd_key_spec *k) {
    reply_map(c, 2);
    reply_bulk_str(c, "type");
    reply_bulk_str(c, k->keyword != NULL ? "keyword" : "index");
    reply_bulk_str(c, "spec");
    if (k->keyword != NULL) {
        reply_map(c, 2);
        reply_bulk_str(c, "keyword");
        reply_bulk_str(c, k->keyword);
        reply_field_int(c, "startfrom", k->begin_index);
    } else {
        reply_map(c, 1);
        reply_field_int(c, "index", k->begin_index);
    }
}

static void reply_find_keys(struct client *c, const struct cmd_key_spec *k) {
    reply_map(c, 2);
    reply_bulk_str(c, "type");
    reply_bulk_str(c, k->keynum ? "keynum" : "range");
    reply_bulk_str(c, "spec");
    reply_map(c, 3);
    if (k->keynum) {
        reply_field_int(c, "keynumidx", 0);
        reply_field_int(c, "firstkey", 1);
        reply_field_int(c, "keystep", k->step);
    } else {
        reply_field_int(c, "lastkey", k->last);
        reply_field_int(c, "keystep", k->step);
        reply_field_int(c, "limit", k->limit);
    }
}

static void reply_key_specs(struct client *c, const struct cmd *cmd) {
    size_t n = 0;
    while (n < ARRAY_LEN(cmd->keys) && cmd->keys[n].flags != 0) n++;
    reply_array(c, n);
    for (size_t i = 0; i < n; i++) {
        reply_map(c, 3);
        reply_bulk_str(c, "flags");
        reply_key_flags(c, cmd->keys[i].flags);
        reply_bulk_str(c, "begin_search");
        reply_begin_search(c, &cmd->keys[i]);
        reply_bulk_str(c, "find_keys");
        reply_find_keys(c, &cmd->keys[i]);
    }
}

static void reply_info(struct client *c, const struct cmd *cmd) {
    const struct cmd_key_spec *k = &cmd->keys[0];
    bool range = k->flags != 0 && !k->keynum && k->keyword == NULL;
    reply_array(c, 10);
    reply_bulk_str(c, table_stat(cmd)->name);
    reply_int(c, cmd->arity);
    reply_names(c, cmd, table_flags);
    reply_int(c, range ? k->begin_index : 0);
    reply_int(c, !range ? 0 : k->last < 0 ? k->last : k->begin_index + k->last);
    reply_int(c, range ? k->step : 0);
    reply_names(c, cmd, table_categories);
    reply_array(c, 0); /* tips */
    reply_key_specs(c, cmd);
    size_t subs = 0;
    for (const struct cmd *s = cmd->sub; s != NULL && s->name != NULL; s++) subs++;
    reply_array(c, subs);
    for (size_t i = 0; i < subs; i++) reply_info(c, &cmd->sub[i]);
}

void cmd_command(struct client *c) {
    reply_array(c, table_count());
    for (size_t i = 0; i < table_count(); i++) reply_info(c, table_at(i));
}

void cmd_command_info(struct client *c) {
    if (c->argc == 2) {
        cmd_command(c);
        return;
    }
    reply_array(c, c->argc - 2);
    for (size_t i = 2; i < c->argc; i++) {
        const struct cmd *cmd = table_find_full(c->argv[i]);
        if (cmd != NULL)
            reply_info(c, cmd);
        else
            reply_null_array(c);
    }
}

void cmd_command_count(struct client *c) {
    reply_int(c, (int64_t)table_count());
}

/* --- LIST --- */

struct category {
    struct span wanted; /* without the @ */
    bool found;
};
static void match_category(void *arg, const char *name) {
    struct category *k = arg;
    k->found |= span_case_eq(k->wanted, name + 1);
}

static bool command_listed(struct client *c, const struct cmd *cmd, const struct wire_filtered *f) {
    struct category k = {arg_word(c, f->word), false};
    switch ((enum wire_filter)f->by) {
    case WIRE_BY_MODULE: return modules_owns(k.wanted, cmd);
    case WIRE_BY_PATTERN: return glob_match_once(k.wanted, span_str(table_stat(cmd)->name), true);
    case WIRE_BY_CATEGORY: table_categories(cmd, match_category, &k); return k.found;
    }
    return true;
}

void cmd_command_list(struct client *c) {
    struct wire_filtered filter = {0};
    if (!arg_bind(c, &filter)) return;
    size_t n = 0;
    void *cookie = reply_deferred(c);
    for (size_t i = 0; i < table_stat_count(); i++) {
        const struct cmd *cmd = table_stat_at(i)->cmd;
        if (!command_listed(c, cmd, &filter)) continue;
        reply_bulk_str(c, table_stat_at(i)->name);
        n++;
    }
    reply_deferred_array(c, cookie, n);
}

/* --- DOCS --- */

static const char *type_name(const struct wire_arg *a) {
    switch (a->kind) {
    case WIRE_KEY: return "key";
    case WIRE_NUMBER:
    case WIRE_LATE:
    case WIRE_UNSIGNED:
    case WIRE_SIZE:
    case WIRE_BITS: return strncmp(a->name, "unix-time", 9) == 0 ? "unix-time" : "integer";
    case WIRE_RATIO: return "double";
    case WIRE_FLAG: return "pure-token";
    case WIRE_ONEOF: return "oneof";
    case WIRE_BLOCK: return "block";
    default: return strcmp(a->name, "pattern") == 0 ? "pattern" : "string";
    }
}

static size_t reply_arguments(struct client *c, const struct wire_arg *args, bool count_only);

static void reply_argument(struct client *c, const struct wire_arg *a) {
    bool nested = a->kind == WIRE_ONEOF || a->kind == WIRE_BLOCK, key = a->kind == WIRE_KEY;
    bool flags = a->optional || a->many;
    bool token_too = a->many && a->token != NULL && a->kind != WIRE_VALUES,
         leaf = !nested && a->kind != WIRE_FLAG;
    const char *name = a->name != NULL         ? a->name
                       : a->kind == WIRE_ONEOF ? "choice"
                       : a->kind == WIRE_BLOCK ? "group"
                                               : a->token;
    char lower[64];
    snprintf(lower, sizeof(lower), "%s", name);
    for (char *p = lower; *p != '\0'; p++) *p = (char)tolower(*p);
    reply_map(c, 2u + leaf + key + (a->token != NULL) + flags + nested);
    reply_bulk_str(c, "name");
    reply_bulk_str(c, lower);
    reply_bulk_str(c, "type");
    reply_bulk_str(c, type_name(a));
    if (leaf) {
        reply_bulk_str(c, "display_text");
        reply_bulk_str(c, name);
    }
    if (key) reply_field_int(c, "key_spec_index", 0);
    if (a->token != NULL) {
        reply_bulk_str(c, "token");
        reply_bulk_str(c, a->token);
    }
    if (flags) {
        reply_bulk_str(c, "flags");
        reply_set(c, (size_t)a->optional + a->many + token_too);
        if (a->optional) reply_simple(c, "optional");
        if (a->many) reply_simple(c, "multiple");
        if (token_too) reply_simple(c, "multiple_token");
    }
    if (!nested) return;
    reply_bulk_str(c, "arguments");
    reply_array(c, reply_arguments(c, a->args, true));
    reply_arguments(c, a->args, false);
}

/* A counted block is two arguments, or one with both inside when it has a token. */
static size_t reply_counted(struct client *c, const struct wire_arg *a, bool count_only) {
    bool single = a->kind != WIRE_BLOCK || a->args[1].kind == WIRE_END;
    struct wire_arg part[] = {{.kind = WIRE_NUMBER, .name = a->counted},
                              a->kind == WIRE_BLOCK && single ? a->args[0] : *a,
                              {.kind = WIRE_END}};
    part[1].counted = part[1].token = NULL;
    part[1].optional = false;
    part[1].many = true;
    const struct wire_arg both = {
        .kind = WIRE_BLOCK, .token = a->token, .optional = a->optional, .args = part};
    if (a->token == NULL) return reply_arguments(c, part, count_only);
    if (!count_only) reply_argument(c, &both);
    return 1;
}

/* Returns how many there are. */
static size_t reply_arguments(struct client *c, const struct wire_arg *args, bool count_only) {
    size_t n = 0;
    for (const struct wire_arg *a = args; a->kind != WIRE_END; a++) {
        if (a->counted != NULL) {
            n += reply_counted(c, a, count_only);
        } else if (a->kind == WIRE_BLOCK && !a->many && !a->optional && a->token == NULL) {
            n += reply_arguments(c, a->args, count_only);
        } else {
            if (!count_only) reply_argument(c, a);
            n++;
        }
    }
    return n;
}

/* The syntax of a module's command is a text. Its words and brackets are told as arguments, one by
 * one, so that who types them (redis-cli) is shown what is left. */
#define TEXT_ARGS_MAX 32u
struct text_args {
    struct wire_arg arg[TEXT_ARGS_MAX + 1];
    size_t n;
    char *text; /* with a NUL behind each word */
};

/* The end of a word, or of what is in brackets: that they match was seen when it was declared. */
static char *part_end(char *p) {
    unsigned depth = 0;
    for (; *p != '\0' && (depth > 0 || *p != ' '); p++)
        depth = depth + (*p == '[' || *p == '<') - (*p == ']' || *p == '>');
    return p;
}

static bool is_token(const char *word) {
    size_t n = strspn(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZ");
    return n > 1 && word[n] == '\0';
}

/* "[name ...]": more of the one before it. */
static bool repeats_last(const struct text_args *t, const char *inner) {
    size_t n = strlen(inner);
    if (t->n == 0 || n < 4 || strcmp(inner + n - 4, " ...") != 0) return false;
    const char *name = t->arg[t->n - 1].name;
    return strlen(name) == n - 4 && strncmp(name, inner, n - 4) == 0;
}

static void text_args_add(struct text_args *t, char *part, size_t len) {
    bool optional = part[0] == '[' && part[len - 1] == ']';
    if (optional) part++, len -= 2;
    part[len] = '\0';
    if (optional && repeats_last(t, part)) {
        t->arg[t->n - 1].many = true;
        return;
    }
    struct wire_arg a = {.kind = WIRE_WORD, .name = part, .optional = optional};
    char *blank = strchr(part, ' ');
    if (blank != NULL) *blank = '\0';
    if (is_token(part)) {
        a.token = part;
        a.kind = blank != NULL ? WIRE_WORD : WIRE_FLAG;
        a.name = blank != NULL ? blank + 1 : part;
    } else if (blank != NULL) {
        *blank = ' ';
    }
    t->arg[t->n++] = a;
}

static const struct wire_arg *text_args_read(struct text_args *t, const char *syntax) {
    t->n = 0;
    t->text = xstrdup(syntax);
    for (char *p = t->text, *end; *p != '\0' && t->n < TEXT_ARGS_MAX; p = end) {
        end = part_end(p);
        bool more = *end != '\0';
        if (end > p) text_args_add(t, p, (size_t)(end - p));
        end += more;
    }
    t->arg[t->n] = (struct wire_arg){.kind = WIRE_END};
    return t->n > 0 ? t->arg : NULL;
}

/* What Redis does not tell: clients pass over keys that they do not know. */
static void reply_contract(struct client *c, const struct cmd *cmd) {
    struct buf text = {NULL, 0, 0};
    const struct wire_command *w = cmd->declared;
    const char *errors = w != NULL ? w->errors : cmd->errors;
    if (w != NULL)
        wire_synopsis(w, &text);
    else
        buf_append_str(&text, cmd->syntax);
    reply_bulk_str(c, "synopsis");
    reply_bulk(c, span_of(text.data, text.len));
    buf_free(&text);
    reply_bulk_str(c, "reply");
    reply_bulk_str(c, w != NULL ? w->reply : cmd->reply);
    reply_bulk_str(c, "errors");
    reply_bulk_str(c, errors != NULL ? errors : "");
}

static void reply_docs(struct client *c, const struct cmd *cmd) {
    struct text_args text = {.text = NULL};
    const struct wire_command *w = cmd->declared;
    const struct wire_arg *args = w != NULL ? w->args : text_args_read(&text, cmd->syntax);
    bool contract = w != NULL ? !w->container : cmd->reply != NULL;
    size_t subs = 0;
    for (const struct cmd *s = cmd->sub; s != NULL && s->name != NULL; s++) subs++;
    reply_bulk_str(c, table_stat(cmd)->name);
    const char *module = modules_name_of(cmd);
    reply_map(c, 2u + (cmd->since != NULL) + (cmd->complexity != NULL) + (module != NULL) +
                     (args != NULL) + (contract ? 3u : 0u) + (subs > 0));
    reply_bulk_str(c, "summary");
    reply_bulk_str(c, cmd->summary);
    if (cmd->since != NULL) {
        reply_bulk_str(c, "since");
        reply_bulk_str(c, cmd->since);
    }
    reply_bulk_str(c, "group");
    reply_bulk_str(c, cmd->group);
    if (cmd->complexity != NULL) {
        reply_bulk_str(c, "complexity");
        reply_bulk_str(c, cmd->complexity);
    }
    if (module != NULL) {
        reply_bulk_str(c, "module");
        reply_bulk_str(c, module);
    }
    if (args != NULL) {
        reply_bulk_str(c, "arguments");
        reply_array(c, reply_arguments(c, args, true));
        reply_arguments(c, args, false);
    }
    if (contract) reply_contract(c, cmd);
    free(text.text);
    if (subs == 0) return;
    reply_bulk_str(c, "subcommands");
    reply_map(c, subs);
    for (size_t i = 0; i < subs; i++) reply_docs(c, &cmd->sub[i]);
}

void cmd_command_docs(struct client *c) {
    if (c->argc == 2) {
        reply_map(c, table_count());
        for (size_t i = 0; i < table_count(); i++) reply_docs(c, table_at(i));
        return;
    }
    size_t n = 0;
    void *cookie = reply_deferred(c);
    for (size_t i = 2; i < c->argc; i++) {
        const struct cmd *cmd = table_find_full(c->argv[i]);
        if (cmd == NULL) continue;
        reply_docs(c, cmd);
        n++;
    }
    reply_deferred_map(c, cookie, n);
}

/* --- GETKEYS --- */

struct command_keys {
    struct cmd_key_ref *ref;
    size_t n, cap;
};
static void add_key(void *arg, struct cmd_key_ref key) {
    struct command_keys *k = arg;
    ARRAY_GROW(k->ref, k->n, k->cap);
    k->ref[k->n++] = key;
}

/* false: answered. */
static bool find_keys(struct client *c, struct command_keys *k) {
    const struct span *argv = c->argv + 2;
    size_t argc = c->argc - 2;
    const struct cmd *cmd = table_find(argv[0]);
    if (cmd != NULL && cmd->sub != NULL && argc > 1) {
        const struct cmd *sub = table_find_sub(cmd, argv[1]);
        if (sub != NULL) cmd = sub;
    }
    if (cmd == NULL)
        reply_error(c, "Invalid command specified");
    else if (cmd->keys[0].flags == 0)
        reply_error(c, "The command has no key arguments");
    else if (cmd->arity > 0 ? argc != (size_t)cmd->arity : argc < (size_t)-cmd->arity)
        reply_error(c, "Invalid number of arguments specified for command");
    else if (table_keys(cmd, argv, argc, add_key, k) < 0)
        reply_error(c, "Invalid arguments specified for command");
    else if (k->n == 0)
        reply_error(c, "The command has no key arguments");
    else
        return true;
    return false;
}

static void reply_getkeys(struct client *c, bool flags) {
    struct command_keys k = {NULL, 0, 0};
    if (find_keys(c, &k)) {
        reply_array(c, k.n);
        for (size_t i = 0; i < k.n; i++) {
            if (flags) reply_array(c, 2);
            struct span key = c->argv[2 + k.ref[i].index];
            reply_bulk(c, key.data != NULL ? key : SPAN(""));
            if (flags) reply_key_flags(c, k.ref[i].flags);
        }
    }
    free(k.ref);
}

void cmd_command_getkeys(struct client *c) {
    reply_getkeys(c, false);
}
void cmd_command_getkeysandflags(struct client *c) {
    reply_getkeys(c, true);
}

/* --- HELP of every container --- */

void cmd_help(struct client *c) {
    const struct cmd *parent = table_stat(c->cmd)->parent;
    size_t lines = 1;
    for (const struct cmd *s = parent->sub; s->name != NULL; s++) lines += 2;
    reply_array(c, lines);
    struct buf line = {NULL, 0, 0};
    buf_printf(&line, "%s <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
               parent->declared->name);
    reply_bulk(c, span_of(line.data, line.len));
    for (const struct cmd *s = parent->sub; s->name != NULL; s++) {
        const struct wire_command *w = s->declared;
        buf_clear(&line);
        buf_printf(&line, "%s%s", strchr(w->name, '|') + 1, w->args != NULL ? " " : "");
        wire_synopsis(w, &line);
        reply_bulk(c, span_of(line.data, line.len));
        buf_clear(&line);
        buf_printf(&line, "    %s", s->summary);
        reply_bulk(c, span_of(line.data, line.len));
    }
    buf_free(&line);
}
