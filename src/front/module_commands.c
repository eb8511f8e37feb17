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
#include "front/watch.h"
#include "module/loader.h"

/* A row of the table for a command of a module. It stays when the module goes, for whoever has
 * looked it up, and is used again when the command comes back. */
struct added {
    struct cmd cmd;
    char name[40], module[MODULE_NAME_MAX + 1], categories[128];
    const struct tarn_command_declaration *its; /* NULL: it is gone */
    struct added *next;
};
static struct added *added;
static const struct added *running; /* whose code has the loop now; NULL: no command's */

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

/* What was written under these keys is another than before, for WATCH and CLIENT TRACKING. */
static void touch_key(void *arg, struct cmd_key_ref key) {
    const struct client *c = arg;
    if (key.flags & (KEY_UPDATE | KEY_DELETE)) watch_touch(c->argv[key.index]);
}

static void answer_mend(struct client *c, const struct added *a, struct tarn_call_context *k) {
    if (k->missing == 0 && !k->broken) return;
    log_warning("Module %s: %s gave an answer that does not add up", a->module, a->name);
    if (!k->begun)
        reply_error(c, "%s gave no answer", a->name);
    else if (k->missing > NILS_MAX)
        client_close_soon(c);
    else
        for (; k->missing > 0; k->missing--) reply_null(c);
}

static void run_added(struct client *c) {
    const struct added *a = added_of(c->cmd), *outer = running;
    struct tarn_call_context k = {c, 1, false, false};
    if (a->its == NULL) {
        reply_error(c, "unknown command '%s': its module was unloaded", a->name);
        return;
    }
    if (a->cmd.flags & CMD_DENYOOM && store_takes_nothing(books)) {
        reply_status(c, TARN_EOOM, NULL);
        dispatch_turned_away(c);
        return;
    }
    running = a;
    a->its->run(&k, c->argv, c->argc);
    running = outer;
    answer_mend(c, a, &k);
    if (watch_count > 0 && a->cmd.flags & CMD_WRITE && !(c->io->flags & CLIENT_FAILED))
        table_keys(&a->cmd, c->argv, c->argc, touch_key, c);
}

tarn_status module_command_write_status(void) {
    uint64_t until_ms;
    if (running != NULL) return running->cmd.flags & CMD_WRITE ? TARN_OK : TARN_EPERM;
    return pause_get(&until_ms) == PAUSE_NONE ? TARN_OK : TARN_ELATER;
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

#define FLAGS_KNOWN                                                                                \
    (unsigned)(TARN_COMMAND_ADMIN | TARN_COMMAND_FAST | TARN_COMMAND_WRITE |                       \
               TARN_COMMAND_DENYOOM | TARN_COMMAND_MASTER | TARN_COMMAND_LOADING |                 \
               TARN_COMMAND_STALE | TARN_COMMAND_ALL_KEYS)
#define KEY_FLAGS_KNOWN (unsigned)(TARN_KEY_READ | TARN_KEY_WRITE | TARN_KEY_DELETE)

static unsigned table_flags_of(unsigned its) {
    return CMD_MODULE | (its & TARN_COMMAND_WRITE ? CMD_WRITE : CMD_READONLY) |
           (its & TARN_COMMAND_ADMIN ? CMD_ADMIN | CMD_NOSCRIPT : 0u) |
           (its & TARN_COMMAND_FAST ? CMD_FAST : 0u) |
           (its & TARN_COMMAND_DENYOOM ? CMD_DENYOOM : 0u) |
           (its & TARN_COMMAND_MASTER ? CMD_MASTER : 0u) |
           (its & TARN_COMMAND_LOADING ? CMD_LOADING : 0u) |
           (its & TARN_COMMAND_STALE ? CMD_STALE : 0u) |
           (its & TARN_COMMAND_ALL_KEYS ? CMD_ALL_KEYS : 0u);
}

static unsigned key_flags_of(unsigned its) {
    switch (its) {
    case 0: return KEY_RO;
    case TARN_KEY_READ: return KEY_RO | KEY_ACCESS;
    case TARN_KEY_WRITE: return KEY_OW | KEY_UPDATE;
    case TARN_KEY_DELETE: return KEY_RM | KEY_DELETE;
    default:
        return KEY_RW | (its & TARN_KEY_READ ? KEY_ACCESS : 0u) |
               (its & TARN_KEY_WRITE ? KEY_UPDATE : 0u) | (its & TARN_KEY_DELETE ? KEY_DELETE : 0u);
    }
}

/* Requests that are long enough for the command are long enough for its first key: what has a
 * keyword in front may be missing, and else nobody could say what a short one's keys are. */
static bool key_spec_ok(const struct tarn_key_spec *k, int arity) {
    int words = arity < 0 ? -arity : arity;
    return !(k->flags & ~KEY_FLAGS_KNOWN) && k->first >= 1 && k->step >= 1 &&
           (k->keyword != NULL ? k->keyword[0] != '\0' : k->first < words);
}

/* Its keys into the row. false: they make no sense. */
static bool keys_declare(struct cmd *cmd, const struct tarn_command_declaration *its) {
    static_assert((unsigned)TARN_KEY_SPECS_MAX == (unsigned)WIRE_KEY_SPECS, "as many");
    if (its->n_keys > TARN_KEY_SPECS_MAX) return false;
    for (unsigned i = 0; i < its->n_keys; i++) {
        const struct tarn_key_spec *k = &its->keys[i];
        if (!key_spec_ok(k, its->arity)) return false;
        cmd->keys[i] = (struct cmd_key_spec){.flags = key_flags_of(k->flags),
                                             .begin_index = k->first,
                                             .keynum = k->counted,
                                             .last = k->counted ? 0 : k->last,
                                             .step = k->step,
                                             .keyword = k->keyword};
    }
    return true;
}

/* "@demo @string": the module's own first, if there is a bit for it. false: one does not exist. */
static bool categories_declare(struct added *a, const char *given) {
    size_t n = 0;
    unsigned i;
    a->categories[0] = '\0';
    if (acl_category_add(a->module) == TARN_OK)
        n = (size_t)snprintf(a->categories, sizeof(a->categories), "@%s ", a->module);
    for (const char *p = given; p != NULL && *p != '\0';) {
        size_t len = strcspn(p, " ");
        if (*p != '@' || !acl_category_find(span_of(p + 1, len - 1), &i)) return false;
        p += len + strspn(p + len, " ");
    }
    if (given == NULL) return true;
    return n + strlen(given) < sizeof(a->categories) && strcpy(a->categories + n, given) != NULL;
}

/* The row of a command that was there before, or a new one, without what it declares. NULL: a
 * module that is there has it. */
static struct added *row_of(const char *module, const char *name) {
    struct added *a = added;
    while (a != NULL && strcmp(a->name, name) != 0) a = a->next;
    if (a != NULL) return a->its == NULL ? a : NULL;
    a = xcalloc(1, sizeof(*a));
    snprintf(a->name, sizeof(a->name), "%s", name);
    snprintf(a->module, sizeof(a->module), "%s", module);
    a->next = added;
    added = a;
    return a;
}

tarn_status module_command_add(const char *module, const struct tarn_command_declaration *its) {
    if (strlen(its->name) >= sizeof(added->name) || !syntax_ok(its->syntax) ||
        its->flags & ~FLAGS_KNOWN)
        return TARN_EINVAL;
    struct added *a = row_of(module, its->name);
    if (a == NULL) return TARN_EEXISTS;
    a->cmd = (struct cmd){.name = a->name,
                          .run = run_added,
                          .arity = its->arity,
                          .flags = table_flags_of(its->flags),
                          .categories = a->categories,
                          .group = "module",
                          .since = its->since,
                          .summary = its->summary,
                          .complexity = its->complexity,
                          .syntax = its->syntax,
                          .reply = its->reply,
                          .errors = its->errors};
    if (!keys_declare(&a->cmd, its) || !categories_declare(a, its->categories)) return TARN_EINVAL;
    tarn_status status = table_add(&a->cmd);
    if (status == TARN_OK) a->its = its;
    acl_users_table_changed();
    return status;
}

void module_command_remove(const struct tarn_command_declaration *its) {
    struct added *a = added;
    while (a != NULL && a->its != its) a = a->next;
    if (a == NULL) return;
    a->its = NULL;
    a->cmd.summary = a->cmd.syntax = "";
    a->cmd.since = a->cmd.complexity = a->cmd.reply = a->cmd.errors = NULL;
    memset(a->cmd.keys, 0, sizeof(a->cmd.keys)); /* their keywords are the module's texts */
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

static void reply_its_simple(struct tarn_call_context *k, const char *text) {
    struct client *c = answer_element(k, 0);
    if (c == NULL) return;
    if (strpbrk(text, "\r\n") == NULL)
        reply_simple(c, text);
    else
        reply_bulk_str(c, text);
}

static void reply_its_null(struct tarn_call_context *k) {
    struct client *c = answer_element(k, 0);
    if (c != NULL) reply_null(c);
}

static void reply_its_double(struct tarn_call_context *k, double value) {
    struct client *c = answer_element(k, 0);
    if (c != NULL) reply_double(c, value);
}

static void reply_its_bool(struct tarn_call_context *k, bool value) {
    struct client *c = answer_element(k, 0);
    if (c != NULL) reply_bool(c, value);
}

void module_commands_services(struct tarn_services *s) {
    s->reply_error = reply_its_error;
    s->reply_text = reply_its_text;
    s->reply_int = reply_its_int;
    s->reply_array = reply_its_array;
    s->reply_map = reply_its_map;
    s->reply_simple = reply_its_simple;
    s->reply_null = reply_its_null;
    s->reply_double = reply_its_double;
    s->reply_bool = reply_its_bool;
}

void module_commands_deinit(void) {
    for (struct added *a = added, *next; a != NULL; a = next) {
        next = a->next;
        if (a->its == NULL) free(a); /* else its module is busy, and stays */
    }
    added = NULL;
}
