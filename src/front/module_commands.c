/* Commands of modules as rows of the table, one call of them, and what they answer. */
#include "front/module_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "base/log.h"
#include "front/acl_users.h"
#include "front/client.h"
#include "front/modules.h"
#include "front/table.h"
#include "module/loader.h"

/* A row of the table for a command of a module. It stays when the module goes, for whoever has
 * looked it up, and is used again when the command comes back. */
struct added {
    struct cmd cmd;
    char name[40], module[MODULE_NAME_MAX + 1];
    const struct tarn_command *its; /* NULL: it is gone */
    struct added *next;
};
static struct added *added;

static const struct added *added_of(const struct cmd *cmd) {
    return cmd->flags & CMD_MODULE ? (const struct added *)(const void *)cmd : NULL;
}
static_assert(offsetof(struct added, cmd) == 0, "added_of");

const char *modules_name_of(const struct cmd *cmd) {
    const struct added *a = added_of(cmd);
    return a != NULL ? a->module : NULL;
}

bool modules_owns(struct span module, const struct cmd *cmd) {
    const struct added *a = added_of(cmd);
    return a != NULL && span_eq(module, span_str(a->module));
}

/* One call. A module that answers too little or too much must not put the connection out of step:
 * what is too much is left out, what is missing is nil. */
struct tarn_call_context {
    struct client *c;
    uint64_t missing; /* elements of the answer */
    bool begun, broken;
};
#define NILS_MAX 65536u

static void run_added(struct client *c) {
    const struct added *a = added_of(c->cmd);
    struct tarn_call_context k = {c, 1, false, false};
    if (a->its == NULL) {
        reply_error(c, "unknown command '%s': its module was unloaded", a->name);
        return;
    }
    a->its->run(&k, c->argv, c->argc);
    if (k.missing == 0 && !k.broken) return;
    log_warning("Module %s: %s gave an answer that does not add up", a->module, a->name);
    if (!k.begun)
        reply_error(c, "%s gave no answer", a->name);
    else if (k.missing > NILS_MAX)
        client_close_soon(c);
    else
        for (; k.missing > 0; k.missing--) reply_null(c);
}

/* People read it, and they count brackets. */
static bool syntax_ok(const char *text) {
    char open[16];
    size_t depth = 0;
    for (; *text != '\0'; text++) {
        if (*text == '[' || *text == '<') {
            if (depth == sizeof(open)) return false;
            open[depth++] = *text == '[' ? ']' : '>';
        } else if (*text == ']' || *text == '>') {
            if (depth == 0 || open[--depth] != *text) return false;
        }
    }
    return depth == 0;
}

tarn_status module_command_add(const char *module, const struct tarn_command *its) {
    if (strlen(its->name) >= sizeof(added->name) || !syntax_ok(its->syntax)) return TARN_EINVAL;
    struct added *a = added;
    while (a != NULL && strcmp(a->name, its->name) != 0) a = a->next;
    if (a != NULL && a->its != NULL) return TARN_EEXISTS;
    if (a == NULL) {
        a = xcalloc(1, sizeof(*a));
        snprintf(a->name, sizeof(a->name), "%s", its->name);
        snprintf(a->module, sizeof(a->module), "%s", module);
        a->next = added;
        added = a;
    }
    bool admin = (its->flags & TARN_COMMAND_ADMIN) != 0,
         fast = (its->flags & TARN_COMMAND_FAST) != 0;
    a->cmd = (struct cmd){.name = a->name,
                          .run = run_added,
                          .arity = its->arity,
                          .flags = CMD_MODULE | CMD_READONLY |
                                   (admin ? CMD_ADMIN | CMD_NOSCRIPT : 0u) | (fast ? CMD_FAST : 0u),
                          .group = "module",
                          .summary = its->summary,
                          .syntax = its->syntax};
    tarn_status status = table_add(&a->cmd);
    if (status == TARN_OK) a->its = its;
    acl_users_table_changed();
    return status;
}

void module_command_remove(const struct tarn_command *its) {
    struct added *a = added;
    while (a != NULL && a->its != its) a = a->next;
    if (a == NULL) return;
    a->its = NULL;
    a->cmd.summary = a->cmd.syntax = "";
    table_remove(&a->cmd);
    acl_users_table_changed();
    CLIENTS_EACH(c)
        if (c->io->last_cmd == &a->cmd) c->io->last_cmd = NULL;
}

/* --- replies --- */

/* One element of the answer, with `more` inside. NULL: there is no place for it. */
static struct client *answer_element(struct tarn_call_context *k, uint64_t more) {
    if (k->missing == 0 || more > UINT32_MAX) {
        k->broken = true;
        return NULL;
    }
    k->missing += more - 1;
    k->begun = true;
    return k->c;
}

static bool has_code(const char *text) {
    size_t n = strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ");
    return n > 0 && text[n] == ' ';
}

static void reply_its_error(struct tarn_call_context *k, const char *text) {
    struct client *c = answer_element(k, 0);
    if (c != NULL) reply_error(c, has_code(text) ? "-%s" : "%s", text);
}

static void reply_its_text(struct tarn_call_context *k, struct span text) {
    struct client *c = answer_element(k, 0);
    if (c != NULL) reply_bulk(c, text);
}

static void reply_its_int(struct tarn_call_context *k, int64_t value) {
    struct client *c = answer_element(k, 0);
    if (c != NULL) reply_int(c, value);
}

static void reply_its_array(struct tarn_call_context *k, size_t elements) {
    struct client *c = answer_element(k, elements);
    if (c != NULL) reply_array(c, elements);
}

static void reply_its_map(struct tarn_call_context *k, size_t pairs) {
    struct client *c = answer_element(k, pairs <= UINT32_MAX ? 2 * (uint64_t)pairs : UINT64_MAX);
    if (c != NULL) reply_map(c, pairs);
}

void module_commands_services(struct tarn_services *s) {
    s->reply_error = reply_its_error;
    s->reply_text = reply_its_text;
    s->reply_int = reply_its_int;
    s->reply_array = reply_its_array;
    s->reply_map = reply_its_map;
}

void module_commands_deinit(void) {
    for (struct added *a = added, *next; a != NULL; a = next) {
        next = a->next;
        if (a->its == NULL) free(a); /* else its module is busy, and stays */
    }
    added = NULL;
}
