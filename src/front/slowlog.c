/* The slow log: a bounded ring of commands that took long, trimmed as Redis trims them. */
#include "front/introspect.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "front/client.h"
#include "front/families.h"
#include "front/table.h"
#include "config/config.h"

#define ARGS_MAX 32u
#define ARG_MAX  128u

struct entry {
    struct entry *next; /* the one before it in time */
    uint64_t id, wall_s, us;
    char peer[80];
    char *name;
    size_t argc;
    char *argv[]; /* xstrdup'ed with their lengths in front */
};

static struct entry *newest;
static size_t len;
static uint64_t next_id;

size_t slowlog_len(void) {
    return len;
}

static void entry_free(struct entry *e) {
    for (size_t i = 0; i < e->argc; i++) free(e->argv[i]);
    free(e->name);
    free(e);
}

static char *counted(const char *data, size_t n) {
    char *p = xmalloc(sizeof(size_t) + n + 1);
    memcpy(p, &n, sizeof(n));
    if (n > 0) memcpy(p + sizeof(n), data, n);
    return p;
}

static char *argument(const struct client *c, const struct table_secrets *secrets, size_t i) {
    char text[64];
    const struct span *a = &c->argv[i];
    if (table_is_secret(secrets, i)) return counted("(redacted)", 10);
    if (a->data == NULL && a->len > 0)
        return counted(text, (size_t)snprintf(text, sizeof(text), "... (%zu bytes)", a->len));
    if (a->len <= ARG_MAX) return counted(a->data, a->len);
    struct buf b = {NULL, 0, 0};
    buf_append(&b, a->data, ARG_MAX);
    buf_printf(&b, "... (%zu more bytes)", a->len - ARG_MAX);
    char *p = counted(b.data, b.len);
    buf_free(&b);
    return p;
}

void slowlog_trim(void) {
    size_t max = (size_t)config->slowlog_max_len, n = 0;
    struct entry **at = &newest;
    while (*at != NULL && n < max) at = &(*at)->next, n++;
    while (*at != NULL) {
        struct entry *e = *at;
        *at = e->next;
        entry_free(e);
        len--;
    }
}

void slowlog_note(struct client *c, uint64_t us) {
    int64_t bound = config->slowlog_slower_than_us;
    if (bound < 0 || us < (uint64_t)bound || c->cmd->flags & CMD_SKIP_SLOWLOG ||
        config->slowlog_max_len == 0)
        return;
    size_t argc = c->argc < ARGS_MAX ? c->argc : ARGS_MAX;
    struct table_secrets secrets = table_secrets(c->argv, c->argc);
    struct entry *e = xcalloc(1, sizeof(*e) + argc * sizeof(char *));
    e->id = next_id++;
    e->wall_s = turn.wall_ms / 1000;
    e->us = us;
    client_peer(c, e->peer, sizeof(e->peer));
    e->name = xstrdup(c->io->name != NULL ? c->io->name : "");
    e->argc = argc;
    for (size_t i = 0; i < argc; i++) {
        if (argc < c->argc && i == argc - 1) {
            char text[64];
            int n = snprintf(text, sizeof(text), "... (%zu more arguments)", c->argc - argc + 1);
            e->argv[i] = counted(text, (size_t)n);
        } else {
            e->argv[i] = argument(c, &secrets, i);
        }
    }
    e->next = newest;
    newest = e;
    len++;
    slowlog_trim();
}

void slowlog_reset(void) {
    while (newest != NULL) {
        struct entry *e = newest;
        newest = e->next;
        entry_free(e);
    }
    len = 0;
}

void cmd_slowlog_get(struct client *c) {
    int64_t n = 10;
    if (c->argc > 3) {
        reply_arity(c);
        return;
    }
    if (c->argc == 3 && (!span_to_i64(c->argv[2], &n) || n < -1)) {
        reply_error(c, "count should be greater than or equal to -1");
        return;
    }
    size_t shown = n < 0 || (uint64_t)n > len ? len : (size_t)n;
    reply_array(c, shown);
    for (struct entry *e = newest; shown > 0; e = e->next, shown--) {
        reply_array(c, 6);
        reply_int(c, (int64_t)e->id);
        reply_int(c, (int64_t)e->wall_s);
        reply_int(c, (int64_t)e->us);
        reply_array(c, e->argc);
        for (size_t i = 0; i < e->argc; i++) {
            size_t k;
            memcpy(&k, e->argv[i], sizeof(k));
            reply_bulk(c, span_of(e->argv[i] + sizeof(k), k));
        }
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
