#include "front/acl_users.h"
#include "front/modules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "base/log.h"
#include "config/config.h"
#include "front/above.h"
#include "front/client.h"
#include "front/core.h"
#include "front/reach.h"
#include "front/table.h"
#include "host/host.h"
#include "module/loader.h"
#include "net/net.h"
#include "front/embedded.h"

/* --- commands --- */

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

static tarn_status command_add(const char *module, const struct tarn_command *its) {
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

static void command_remove(const struct tarn_command *its) {
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

static void its_error(struct tarn_call_context *k, const char *text) {
    struct client *c = answer_element(k, 0);
    if (c != NULL) reply_error(c, has_code(text) ? "-%s" : "%s", text);
}

static void its_text(struct tarn_call_context *k, struct span text) {
    struct client *c = answer_element(k, 0);
    if (c != NULL) reply_bulk(c, text);
}

static void its_int(struct tarn_call_context *k, int64_t value) {
    struct client *c = answer_element(k, 0);
    if (c != NULL) reply_int(c, value);
}

static void its_array(struct tarn_call_context *k, size_t elements) {
    struct client *c = answer_element(k, elements);
    if (c != NULL) reply_array(c, elements);
}

static void its_map(struct tarn_call_context *k, size_t pairs) {
    struct client *c = answer_element(k, pairs <= UINT32_MAX ? 2 * (uint64_t)pairs : UINT64_MAX);
    if (c != NULL) reply_map(c, pairs);
}

/* --- the loop --- */

struct tarn_watch {
    struct net_watch net;
    void (*fn)(void *arg, unsigned events);
    void *arg;
    bool inside, gone;
};
static_assert((int)TARN_WATCH_READ == (int)NET_READ && (int)TARN_WATCH_WRITE == (int)NET_WRITE,
              "events");

static void its_watch_fired(void *arg, unsigned events) {
    struct tarn_watch *w = arg;
    w->inside = true;
    w->fn(w->arg, events);
    w->inside = false;
    if (w->gone) free(w);
}

static tarn_status its_watch_create(int fd, void (*fn)(void *arg, unsigned events), void *arg,
                                    struct tarn_watch **watch_p) {
    if (fd < 0 || fn == NULL) return TARN_EINVAL;
    struct tarn_watch *w = xcalloc(1, sizeof(*w));
    w->fn = fn;
    w->arg = arg;
    net_watch_init(&w->net, core_loop(), fd, its_watch_fired, w);
    *watch_p = w;
    return TARN_OK;
}

static tarn_status its_watch_set(struct tarn_watch *w, unsigned events) {
    return net_watch_set(&w->net, events & (NET_READ | NET_WRITE));
}

static void its_watch_destroy(struct tarn_watch **watch_p) {
    struct tarn_watch *w = *watch_p;
    *watch_p = NULL;
    if (w == NULL) return;
    (void)net_watch_set(&w->net, 0);
    if (w->inside)
        w->gone = true;
    else
        free(w);
}

struct tarn_timer {
    struct net_timer net;
    void (*fn)(void *arg);
    void *arg;
    bool inside, gone;
};

static void its_timer_fired(void *arg) {
    struct tarn_timer *t = arg;
    t->inside = true;
    t->fn(t->arg);
    t->inside = false;
    if (t->gone) free(t);
}

static struct tarn_timer *its_timer_create(void (*fn)(void *arg), void *arg) {
    struct tarn_timer *t = xcalloc(1, sizeof(*t));
    t->fn = fn;
    t->arg = arg;
    net_timer_init(&t->net, core_loop(), its_timer_fired, t);
    return t;
}

static void its_timer_start(struct tarn_timer *t, uint64_t ms) {
    net_timer_start(&t->net, ms);
}

static void its_timer_destroy(struct tarn_timer **timer_p) {
    struct tarn_timer *t = *timer_p;
    *timer_p = NULL;
    if (t == NULL) return;
    net_timer_stop(&t->net);
    if (t->inside)
        t->gone = true;
    else
        free(t);
}

static tarn_status its_listen(const char *address, uint16_t port, int *fd_p, const char **why_p) {
    return net_listen_tcp(address, port, 128, fd_p, why_p);
}

static bool its_figures_next(struct tarn_figures_at *at, struct figure_walk *walk) {
    return above.figures_next(at, walk);
}

static enum tarn_state its_state(char *text, size_t cap) {
    return above.state(text, cap);
}

/* --- coming and going --- */

static void transport_added(const char *scheme) {
    /* it logs what is wrong */
    if (embedded.host != NULL) (void)host_transport_add(embedded.host, scheme);
}

static void transport_removing(const char *scheme) {
    if (embedded.host != NULL) host_transport_remove(embedded.host, scheme);
}

void modules_init(void) {
    static const struct tarn_services services = {
        .program = TARN_PROGRAM_SERVER,
        .reply_error = its_error,
        .reply_text = its_text,
        .reply_int = its_int,
        .reply_array = its_array,
        .reply_map = its_map,
        .each_segment = reach_each_segment,
        .each_report = reach_each_report,
        .watch_create = its_watch_create,
        .watch_set = its_watch_set,
        .watch_destroy = its_watch_destroy,
        .timer_create = its_timer_create,
        .timer_start = its_timer_start,
        .timer_destroy = its_timer_destroy,
        .listen = its_listen,
        .figures_next = its_figures_next,
        .state = its_state,
    };
    static const struct module_hooks hooks = {.command_add = command_add,
                                              .command_remove = command_remove,
                                              .transport_added = transport_added,
                                              .transport_removing = transport_removing};
    (void)module_init(&services, &hooks); /* again: nothing new */
}

bool modules_load(void) {
    char error[MODULE_ERROR_SIZE];
    for (size_t i = 0; i < config->modules.n; i++) {
        const struct config_line *m = &config->modules.line[i];
        if (module_load(m->word[0], m->n - 1, (const char *const *)m->word + 1, error,
                        sizeof(error)) == TARN_OK)
            continue;
        log_warning("%s", error);
        log_warning("Can't load module from %s: server aborting", m->word[0]);
        return false;
    }
    return true;
}

void modules_deinit(void) {
    module_unload_all();
    for (struct added *a = added, *next; a != NULL; a = next) {
        next = a->next;
        if (a->its == NULL) free(a); /* else its module is busy, and stays */
    }
    added = NULL;
}

/* --- INFO --- */

struct fields {
    struct figure_walk *walk;
    const char *module;
};

/* Whatever the module says, a line stays a line. */
static void one_field(void *arg, const char *name, const char *value) {
    struct fields *f = arg;
    struct buf line = {NULL, 0, 0};
    size_t len = strlen(f->module);
    if (strncmp(name, f->module, len) != 0 || name[len] != '_') buf_printf(&line, "%s_", f->module);
    for (; *name != '\0'; name++) {
        bool plain = (*name >= 'a' && *name <= 'z') || (*name >= 'A' && *name <= 'Z') ||
                     (*name >= '0' && *name <= '9');
        buf_append_char(&line, plain ? *name : '_');
    }
    buf_append_char(&line, '\0');
    size_t at = line.len;
    for (; *value != '\0'; value++)
        buf_append_char(&line, (unsigned char)*value < ' ' ? ' ' : *value);
    buf_append_char(&line, '\0');
    struct figure figure = {line.data, "told by the module", FIGURE_TEXT, 0};
    f->walk->show(f->walk, &figure, figure_text(line.data + at));
    buf_free(&line);
}

static bool one_module(void *arg, const struct module_info *m) {
    struct figure_walk *f = arg;
    struct fields fields = {f, m->name};
    figures_group(f, "module", "module", "");
    FIGURE(f, TEXT, name, "of the module", m->name);
    FIGURE(f, GAUGE, ver, "its version as a number", m->version_number);
    FIGURE(f, GAUGE, api, "the version of module.h it was built with", TARN_MODULE_VERSION);
    FIGURE(f, TEXT, version, "of the module", m->version);
    FIGURE(f, GAUGE, args, "words it was given", m->argc);
    FIGURE(f, GAUGE, transports, "that it adds", m->transports);
    FIGURE(f, GAUGE, commands, "that it adds", m->commands);
    figures_group_end(f);
    if (m->fields != NULL) m->fields(one_field, &fields);
    return true;
}

void info_modules(struct figure_walk *f) {
    module_each(one_module, f);
}
