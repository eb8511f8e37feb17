/* ACL LOG: what was refused lately, newest first. The same again within a minute is counted, not
 * listed. */
#include <stdlib.h>
#include "base/assert.h"
#include "front/acl_users.h"
#include "front/families.h"
#include "wire/options.h"
#include "front/table.h"
#include "config/config.h"

enum { TOGETHER_MS = 60 * 1000, LOOK_AT = 10, OBJECT_MAX = 256 };

struct refusal_entry {
    TAILQ_ENTRY(refusal_entry) link; /* the newest first */
    enum acl_verdict verdict;
    bool in_multi;
    uint64_t count, at_ms;
    char user[ACL_NAME_MAX + 1];
    size_t object_len;
    char object[OBJECT_MAX];
    struct buf client;
};

static TAILQ_HEAD(refusals, refusal_entry) entries = TAILQ_HEAD_INITIALIZER(entries);
static size_t len;

static void refusal_drop(struct refusal_entry *e) {
    TAILQ_REMOVE(&entries, e, link);
    buf_free(&e->client);
    free(e);
    len--;
}

void acl_log_trim(void) {
    while (len > (size_t)config->acllog_max_len) refusal_drop(TAILQ_LAST(&entries, refusals));
}

void acl_log_reset(void) {
    while (len > 0) refusal_drop(TAILQ_FIRST(&entries));
}

static bool refusal_same(const struct refusal_entry *a, const struct refusal_entry *b) {
    return a->verdict == b->verdict && a->in_multi == b->in_multi &&
           strcmp(a->user, b->user) == 0 && b->at_ms - a->at_ms <= TOGETHER_MS &&
           span_eq(span_of(a->object, a->object_len), span_of(b->object, b->object_len));
}

static void set_object(struct refusal_entry *e, struct span s) {
    e->object_len = min_u64(s.len, OBJECT_MAX);
    if (s.data == NULL) e->object_len = 0;
    if (e->object_len > 0) memcpy(e->object, s.data, e->object_len);
}

void acl_log_note(const struct client *c, enum acl_verdict verdict, const struct cmd *cmd,
                  size_t at, struct span user) {
    if (config->acllog_max_len == 0) return;
    struct refusal_entry *e = xcalloc(1, sizeof(*e));
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
    struct refusal_entry *old = TAILQ_FIRST(&entries);
    for (unsigned i = 1; i < LOOK_AT && old != NULL && !refusal_same(old, e); i++)
        old = TAILQ_NEXT(old, link);
    if (old != NULL && refusal_same(old, e)) {
        e->count += old->count;
        refusal_drop(old);
    }
    TAILQ_INSERT_HEAD(&entries, e, link);
    len++;
    acl_log_trim();
}

static const char *const reasons[] = {[ACL_DENIED_COMMAND] = "command",
                                      [ACL_DENIED_KEY] = "key",
                                      [ACL_DENIED_CHANNEL] = "channel",
                                      [ACL_DENIED_AUTH] = "auth"};

static void refusal_field(struct client *c, const char *name, struct span value) {
    reply_bulk_str(c, name);
    reply_bulk(c, value);
}

static void reply_entry(struct client *c, const struct refusal_entry *e) {
    reply_map(c, 7);
    reply_bulk_str(c, "count");
    reply_int(c, (int64_t)e->count);
    refusal_field(c, "reason", span_str(reasons[e->verdict]));
    refusal_field(c, "context", e->in_multi ? SPAN("multi") : SPAN("toplevel"));
    refusal_field(c, "object", span_of(e->object, e->object_len));
    refusal_field(c, "username", span_str(e->user));
    reply_bulk_str(c, "age-seconds");
    reply_double(c, (double)(turn.mono_ms - e->at_ms) / 1000);
    refusal_field(c, "client-info", span_of(e->client.data, e->client.len));
}

void cmd_acl_log(struct client *c) {
    struct wire_count args = {.n = 10};
    if (!arg_bind(c, &args)) return;
    if (args.which == WIRE_RESET) {
        acl_log_reset();
        reply_ok(c);
        return;
    }
    size_t shown = args.n < 0 ? 0 : min_u64((uint64_t)args.n, len);
    reply_array(c, shown);
    const struct refusal_entry *e = TAILQ_FIRST(&entries);
    for (; shown > 0; e = TAILQ_NEXT(e, link), shown--) reply_entry(c, e);
}
