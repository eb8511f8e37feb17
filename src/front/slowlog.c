/* The slow log: a bounded ring of commands that took long, trimmed as Redis trims them. */
#include "front/introspect.h"

#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "front/client.h"
#include "front/families.h"
#include "wire/options.h"
#include "front/table.h"
#include "config/config.h"

#define ARGS_MAX 32u
#define ARG_MAX  128u

struct slow_entry {
    TAILQ_ENTRY(slow_entry) link; /* the newest first */
    uint64_t id, wall_s, us;
    char peer[80];
    char *name;
    size_t argc;
    struct span argv[]; /* their bytes are its own */
};

static TAILQ_HEAD(slow_entries, slow_entry) entries = TAILQ_HEAD_INITIALIZER(entries);
static size_t len;
static uint64_t next_id;

size_t slowlog_len(void) {
    return len;
}

static void slow_drop(struct slow_entry *e) {
    TAILQ_REMOVE(&entries, e, link);
    for (size_t i = 0; i < e->argc; i++) free((void *)(uintptr_t)e->argv[i].data);
    free(e->name);
    free(e);
    len--;
}

void slowlog_trim(void) {
    while (len > (size_t)config->slowlog_max_len) slow_drop(TAILQ_LAST(&entries, slow_entries));
}

void slowlog_reset(void) {
    while (len > 0) slow_drop(TAILQ_FIRST(&entries));
}

/* What is shown of argument i; more: it is the last that is shown, and others follow. */
static struct span argument_shown(const struct client *c, const struct table_secrets *secrets,
                                  size_t i, bool more) {
    const struct span *a = &c->argv[i];
    struct buf b = {NULL, 0, 0};
    if (more)
        buf_printf(&b, "... (%zu more arguments)", c->argc - i);
    else if (table_is_secret(secrets, i))
        buf_append_str(&b, "(redacted)");
    else if (a->data == NULL && a->len > 0)
        buf_printf(&b, "... (%zu bytes)", a->len);
    else
        buf_append(&b, a->data, min_u64(a->len, ARG_MAX));
    if (!more && b.len == ARG_MAX && a->len > ARG_MAX)
        buf_printf(&b, "... (%zu more bytes)", a->len - ARG_MAX);
    return span_of(b.data, b.len);
}

static struct span trace_shown(const struct client *c) {
    struct buf b = {NULL, 0, 0};
    client_trace_put(c, &b);
    return span_of(b.data, b.len);
}

void slowlog_note(struct client *c, uint64_t us) {
    int64_t bound = config->slowlog_slower_than_us;
    if (bound < 0 || us < (uint64_t)bound || c->cmd->flags & CMD_SKIP_SLOWLOG ||
        config->slowlog_max_len == 0)
        return;
    size_t argc = c->argc < ARGS_MAX ? c->argc : ARGS_MAX, more = c->io->traceparent != NULL;
    struct table_secrets secrets = table_secrets(c->argv, c->argc);
    struct slow_entry *e = xcalloc(1, sizeof(*e) + (argc + more) * sizeof(struct span));
    e->id = next_id++;
    e->wall_s = turn.wall_ms / 1000;
    e->us = us;
    client_peer(c, e->peer, sizeof(e->peer));
    e->name = xstrdup(c->io->name != NULL ? c->io->name : "");
    e->argc = argc + more;
    for (size_t i = 0; i < argc; i++)
        e->argv[i] = argument_shown(c, &secrets, i, argc < c->argc && i == argc - 1);
    if (more > 0) e->argv[argc] = trace_shown(c);
    TAILQ_INSERT_HEAD(&entries, e, link);
    len++;
    slowlog_trim();
}

void cmd_slowlog_get(struct client *c) {
    struct wire_count args = {0};
    if (!arg_bind(c, &args)) return;
    size_t shown = args.n < 0 ? len : min_u64((uint64_t)args.n, len);
    reply_array(c, shown);
    const struct slow_entry *e = TAILQ_FIRST(&entries);
    for (; shown > 0; e = TAILQ_NEXT(e, link), shown--) {
        reply_array(c, 6);
        reply_int(c, (int64_t)e->id);
        reply_int(c, (int64_t)e->wall_s);
        reply_int(c, (int64_t)e->us);
        reply_array(c, e->argc);
        for (size_t i = 0; i < e->argc; i++) reply_bulk(c, e->argv[i]);
        reply_bulk_str(c, e->peer);
        reply_bulk_str(c, e->name);
    }
}

void cmd_slowlog_len(struct client *c) {
    reply_int(c, (int64_t)len);
}

void cmd_slowlog_reset(struct client *c) {
    slowlog_reset();
    reply_ok(c);
}
