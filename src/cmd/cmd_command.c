/* COMMAND: the table, for programs and for people. */
#include <stdio.h>
#include <stdlib.h>
#include "base/assert.h"
#include "cmd/client.h"
#include "cmd/families.h"
#include "base/glob.h"
#include "cmd/modules.h"
#include "cmd/syntax.h"
#include "cmd/table.h"

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
    bool range = k->flags != 0 && !k->keynum;
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

static bool listed(struct client *c, const struct cmd *cmd, bool by_category) {
    if (c->argc == 2) return true;
    if (!by_category) return glob_match_once(c->argv[4], span_str(table_stat(cmd)->name), true);
    struct category k = {c->argv[4], false};
    table_categories(cmd, match_category, &k);
    return k.found;
}

void cmd_command_list(struct client *c) {
    bool by_category = false, by_module = false;
    if (c->argc != 2) {
        bool ok = c->argc == 5 && arg_is(c, 2, "FILTERBY");
        by_category = ok && arg_is(c, 3, "ACLCAT");
        by_module = ok && arg_is(c, 3, "MODULE");
        if (!ok || !(by_category || by_module || arg_is(c, 3, "PATTERN"))) {
            reply_syntax(c);
            return;
        }
    }
    size_t n = 0;
    void *cookie = reply_deferred(c);
    for (size_t i = 0; i < table_stat_count(); i++) {
        const struct cmd *cmd = table_stat_at(i)->cmd;
        if (by_module ? !modules_owns(c->argv[4], cmd) : !listed(c, cmd, by_category)) continue;
        reply_bulk_str(c, table_stat_at(i)->name);
        n++;
    }
    reply_deferred_array(c, cookie, n);
}

/* --- DOCS --- */

static void reply_lower(struct client *c, struct span s) {
    char text[64];
    size_t n = min_u64(s.len, sizeof(text));
    for (size_t i = 0; i < n; i++)
        text[i] = (char)(s.data[i] >= 'A' && s.data[i] <= 'Z' ? s.data[i] + 32 : s.data[i]);
    reply_bulk(c, span_of(text, n));
}

static void reply_arguments(struct client *c, const struct syntax_node *first) {
    size_t n = 0;
    for (const struct syntax_node *i = first; i != NULL; i = i->next) n++;
    reply_array(c, n);
    for (const struct syntax_node *i = first; i != NULL; i = i->next) {
        bool key = strcmp(syntax_type_name(i), "key") == 0, flags = i->optional || i->multiple;
        reply_map(c, 2 + (i->type == SYNTAX_ARGUMENT) + key + (i->token.len > 0) + flags +
                         (i->child != NULL));
        reply_bulk_str(c, "name");
        reply_lower(c, i->name);
        reply_bulk_str(c, "type");
        reply_bulk_str(c, syntax_type_name(i));
        if (i->type == SYNTAX_ARGUMENT) {
            reply_bulk_str(c, "display_text");
            reply_bulk(c, i->name);
        }
        if (key) reply_field_int(c, "key_spec_index", 0);
        if (i->token.len > 0) {
            reply_bulk_str(c, "token");
            reply_bulk(c, i->token);
        }
        if (flags) {
            bool token_too = i->multiple && i->token.len > 0;
            reply_bulk_str(c, "flags");
            reply_set(c, (size_t)i->optional + i->multiple + token_too);
            if (i->optional) reply_simple(c, "optional");
            if (i->multiple) reply_simple(c, "multiple");
            if (token_too) reply_simple(c, "multiple_token");
        }
        if (i->child != NULL) {
            reply_bulk_str(c, "arguments");
            reply_arguments(c, i->child);
        }
    }
}

static void reply_docs(struct client *c, const struct cmd *cmd) {
    struct syntax *syntax = xmalloc(sizeof(*syntax));
    bool ok = syntax_parse(syntax, cmd->syntax);
    TARN_ASSERT(ok); /* unit-tested for the whole table; modules_init for the others */
    size_t subs = 0;
    for (const struct cmd *s = cmd->sub; s != NULL && s->name != NULL; s++) subs++;
    reply_bulk_str(c, table_stat(cmd)->name);
    const char *module = modules_name_of(cmd);
    reply_map(c,
              2 + (cmd->since != NULL) + (module != NULL) + (syntax->first != NULL) + (subs > 0));
    reply_bulk_str(c, "summary");
    reply_bulk_str(c, cmd->summary);
    if (cmd->since != NULL) {
        reply_bulk_str(c, "since");
        reply_bulk_str(c, cmd->since);
    }
    reply_bulk_str(c, "group");
    reply_bulk_str(c, cmd->group);
    if (module != NULL) {
        reply_bulk_str(c, "module");
        reply_bulk_str(c, module);
    }
    if (syntax->first != NULL) {
        reply_bulk_str(c, "arguments");
        reply_arguments(c, syntax->first);
    }
    free(syntax);
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

struct keys {
    struct cmd_key_ref *ref;
    size_t n, cap;
};
static void add_key(void *arg, struct cmd_key_ref key) {
    struct keys *k = arg;
    if (k->n == k->cap) {
        k->cap = k->cap == 0 ? 16 : k->cap * 2;
        k->ref = xrealloc(k->ref, k->cap * sizeof(*k->ref));
    }
    k->ref[k->n++] = key;
}

/* false: answered. */
static bool find_keys(struct client *c, struct keys *k) {
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

static void getkeys(struct client *c, bool flags) {
    struct keys k = {NULL, 0, 0};
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
    getkeys(c, false);
}
void cmd_command_getkeysandflags(struct client *c) {
    getkeys(c, true);
}

/* --- HELP of every container --- */

void cmd_help(struct client *c) {
    const struct cmd *parent = table_stat(c->cmd)->parent;
    char upper[64];
    size_t n = 0, lines = 1;
    for (const struct cmd *s = parent->sub; s->name != NULL; s++) lines += 2;
    reply_array(c, lines);
    struct buf line = {NULL, 0, 0};
    for (; parent->name[n] != '\0' && n + 1 < sizeof(upper); n++)
        upper[n] = (char)(parent->name[n] - 32);
    upper[n] = '\0';
    buf_printf(&line, "%s <subcommand> [<arg> [value] [opt] ...]. Subcommands are:", upper);
    reply_bulk(c, span_of(line.data, line.len));
    for (const struct cmd *s = parent->sub; s->name != NULL; s++) {
        for (n = 0; s->name[n] != '\0' && n + 1 < sizeof(upper); n++)
            upper[n] =
                (char)(s->name[n] >= 'a' && s->name[n] <= 'z' ? s->name[n] - 32 : s->name[n]);
        upper[n] = '\0';
        buf_clear(&line);
        buf_printf(&line, "%s%s%s", upper, s->syntax[0] != '\0' ? " " : "", s->syntax);
        reply_bulk(c, span_of(line.data, line.len));
        buf_clear(&line);
        buf_printf(&line, "    %s", s->summary);
        reply_bulk(c, span_of(line.data, line.len));
    }
    buf_free(&line);
}
