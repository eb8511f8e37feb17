/* ACL LOG: what was refused lately, newest first. The same again within a minute is counted, not
 * listed. */
#include <stdlib.h>
#include "base/assert.h"
#include "front/acl_users.h"
#include "front/families.h"
#include "front/table.h"
#include "config/config.h"

enum { TOGETHER_MS = 60 * 1000, LOOK_AT = 10, OBJECT_MAX = 256 };

struct entry {
    struct entry *next; /* the one before it */
    enum acl_verdict verdict;
    bool in_multi;
    uint64_t count, at_ms;
    char user[ACL_NAME_MAX + 1];
    size_t object_len;
    char object[OBJECT_MAX];
    struct buf client;
};

static struct entry *newest;
static size_t len;

static void entry_free(struct entry *e) {
    buf_free(&e->client);
    free(e);
}

void acl_log_trim(void) {
    size_t max = (size_t)config->acllog_max_len, n = 0;
    struct entry **at = &newest;
    while (*at != NULL && n < max) at = &(*at)->next, n++;
    while (*at != NULL) {
        struct entry *e = *at;
        *at = e->next;
        entry_free(e);
        len--;
    }
}

void acl_log_reset(void) {
    while (newest != NULL) {
        struct entry *e = newest;
        newest = e->next;
        entry_free(e);
    }
    len = 0;
}

static bool same(const struct entry *a, const struct entry *b) {
    return a->verdict == b->verdict && a->in_multi == b->in_multi &&
           strcmp(a->user, b->user) == 0 && b->at_ms - a->at_ms <= TOGETHER_MS &&
           span_eq(span_of(a->object, a->object_len), span_of(b->object, b->object_len));
}

static void set_object(struct entry *e, struct span s) {
    e->object_len = min_u64(s.len, OBJECT_MAX);
    if (s.data == NULL) e->object_len = 0;
    if (e->object_len > 0) memcpy(e->object, s.data, e->object_len);
}

void acl_log_note(const struct client *c, enum acl_verdict verdict, const struct cmd *cmd,
                  size_t at, struct span user) {
    if (config->acllog_max_len == 0) return;
    struct entry *e = xcalloc(1, sizeof(*e));
    e->verdict = verdict;
    e->in_multi = (c->io->flags & (CLIENT_MULTI | CLIENT_EXEC)) != 0;
    e->count = 1;
    e->at_ms = turn.mono_ms;
    if (cmd == NULL) {
        if (user.data != NULL) memcpy(e->user, user.data, min_u64(user.len, ACL_NAME_MAX));
        set_object(e, c->argv[0]);
    } else {
        strcpy(e->user, acl_user_name(c->user));
        set_object(e, verdict == ACL_DENIED_COMMAND
                          ? span_str(acl_denied_name(c->user, cmd, c->argv, c->argc))
                      : at < c->argc ? c->argv[at]
                                     : SPAN("*"));
    }
    client_describe(c, &e->client);
    if (e->client.len > 0) e->client.len--; /* the end of its line */
    struct entry **old = &newest;
    for (unsigned i = 0; i < LOOK_AT && *old != NULL; i++, old = &(*old)->next) {
        struct entry *o = *old;
        if (!same(o, e)) continue;
        e->count += o->count;
        *old = o->next;
        entry_free(o);
        len--;
        break;
    }
    e->next = newest;
    newest = e;
    len++;
    acl_log_trim();
}

static const char *reason_of(const struct entry *e) {
    switch (e->verdict) {
    case ACL_DENIED_COMMAND: return "command";
    case ACL_DENIED_KEY: return "key";
    case ACL_DENIED_CHANNEL: return "channel";
    case ACL_DENIED_AUTH: return "auth";
    case ACL_GRANTED: break;
    }
    return "unknown";
}

static void field(struct client *c, const char *name, struct span value) {
    reply_bulk_str(c, name);
    reply_bulk(c, value);
}

static void reply_entry(struct client *c, const struct entry *e) {
    reply_map(c, 7);
    reply_bulk_str(c, "count");
    reply_int(c, (int64_t)e->count);
    field(c, "reason", span_str(reason_of(e)));
    field(c, "context", e->in_multi ? SPAN("multi") : SPAN("toplevel"));
    field(c, "object", span_of(e->object, e->object_len));
    field(c, "username", span_str(e->user));
    reply_bulk_str(c, "age-seconds");
    reply_double(c, (double)(turn.mono_ms - e->at_ms) / 1000);
    field(c, "client-info", span_of(e->client.data, e->client.len));
}

/* ACL LOG [count | RESET] */
void cmd_acl_log(struct client *c) {
    int64_t n = 10;
    if (c->argc > 3) {
        reply_arity(c);
        return;
    }
    if (c->argc == 3 && arg_is(c, 2, "RESET")) {
        acl_log_reset();
        reply_ok(c);
        return;
    }
    if (c->argc == 3 && !arg_i64(c, 2, &n)) return;
    size_t shown = n < 0 ? 0 : min_u64((uint64_t)n, len);
    reply_array(c, shown);
    for (const struct entry *e = newest; shown > 0; e = e->next, shown--) reply_entry(c, e);
}
