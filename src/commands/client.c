/* CLIENT: connections as others see them. */
#include <stdlib.h>
#include "base/assert.h"
#include "front/acl_users.h"
#include "front/client.h"
#include "front/families.h"
#include "front/multi.h"
#include "front/pubsub.h"
#include "ha/replication.h"
#include "front/table.h"

/* What a client is to TYPE filters. The master is none: its link is this server's own connection.
 * -1: unknown. */
enum client_type { TYPE_NORMAL, TYPE_MASTER, TYPE_REPLICA, TYPE_PUBSUB };
static int type_of_word(struct span s) {
    if (span_case_eq(s, "normal")) return TYPE_NORMAL;
    if (span_case_eq(s, "master")) return TYPE_MASTER;
    if (span_case_eq(s, "replica") || span_case_eq(s, "slave")) return TYPE_REPLICA;
    if (span_case_eq(s, "pubsub")) return TYPE_PUBSUB;
    return -1;
}

static enum client_type type_of(const struct client *c) {
    return c->io->flags & CLIENT_REPLICA  ? TYPE_REPLICA
           : c->io->flags & CLIENT_PUBSUB ? TYPE_PUBSUB
                                          : TYPE_NORMAL;
}

static void reply_unknown_type(struct client *c, struct span s) {
    reply_error(c, "Unknown client type '%.*s'", (int)min_u64(s.len, 64),
                s.data != NULL ? s.data : "");
}

void cmd_client_id(struct client *c) {
    reply_int(c, (int64_t)c->id);
}

void cmd_client_info(struct client *c) {
    struct buf out = {NULL, 0, 0};
    client_describe(c, &out);
    reply_verbatim(c, "txt", span_of(out.data, out.len));
    buf_free(&out);
}

void cmd_client_list(struct client *c) {
    struct buf out = {NULL, 0, 0};
    if (c->argc == 2) {
        CLIENTS_EACH (o) client_describe(o, &out);
    } else if (c->argc == 4 && arg_is(c, 2, "TYPE")) {
        int type = type_of_word(c->argv[3]);
        if (type < 0) {
            reply_unknown_type(c, c->argv[3]);
            return;
        }
        CLIENTS_EACH (o)
            if ((int)type_of(o) == type) client_describe(o, &out);
    } else if (c->argc > 3 && arg_is(c, 2, "ID")) {
        for (size_t i = 3; i < c->argc; i++) {
            uint64_t id;
            if (!span_to_u64(c->argv[i], &id) || id == 0) {
                reply_error(c, "Invalid client ID");
                buf_free(&out);
                return;
            }
            const struct client *o = client_find(id);
            if (o != NULL) client_describe(o, &out);
        }
    } else {
        reply_syntax(c);
        return;
    }
    reply_verbatim(c, "txt", span_of(out.data != NULL ? out.data : "", out.len));
    buf_free(&out);
}

/* --- KILL --- */

struct filter {
    uint64_t id; /* 0: any */
    int type;    /* -1: any */
    struct span addr, laddr;
    const struct acl_user *user; /* NULL: any */
    bool skip_me;
};

static bool filter_match(const struct filter *f, const struct client *o, const struct client *me) {
    char text[128];
    if (f->skip_me && o == me) return false;
    if ((f->id != 0 && o->id != f->id) || (f->type >= 0 && f->type != (int)type_of(o)))
        return false;
    if (f->user != NULL && o->user != f->user) return false;
    if (f->addr.data != NULL) {
        client_peer(o, text, sizeof(text));
        if (!span_eq(f->addr, span_str(text))) return false;
    }
    if (f->laddr.data != NULL) {
        client_local(o, text, sizeof(text));
        if (!span_eq(f->laddr, span_str(text))) return false;
    }
    return true;
}

static size_t kill_matching(const struct filter *f, struct client *me) {
    size_t n = 0;
    CLIENTS_EACH (o) {
        if (!filter_match(f, o, me) ||
            o->io->flags & (CLIENT_CLOSE_SOON | CLIENT_CLOSE_AFTER_REPLY))
            continue;
        n++;
        if (o == me)
            client_close_after_reply(o);
        else
            client_close_soon(o);
    }
    return n;
}

/* false: answered. */
static bool parse_filter(struct client *c, struct filter *f) {
    for (size_t i = 2; i < c->argc; i += 2) {
        if (i + 1 >= c->argc) return reply_syntax(c), false;
        struct span v = c->argv[i + 1];
        if (arg_is(c, i, "ID")) {
            if (!span_to_u64(v, &f->id) || f->id == 0)
                return reply_error(c, "client-id should be greater than 0"), false;
        } else if (arg_is(c, i, "TYPE")) {
            f->type = type_of_word(v);
            if (f->type < 0) return reply_unknown_type(c, v), false;
        } else if (arg_is(c, i, "ADDR")) {
            f->addr = v;
        } else if (arg_is(c, i, "LADDR")) {
            f->laddr = v;
        } else if (arg_is(c, i, "USER")) {
            f->user = acl_find(acl_users, v);
            if (f->user == NULL)
                return reply_error(c, "No such user '%.*s'", (int)min_u64(v.len, 64), v.data),
                       false;
        } else if (arg_is(c, i, "SKIPME")) {
            if (!span_case_eq(v, "yes") && !span_case_eq(v, "no")) return reply_syntax(c), false;
            f->skip_me = span_case_eq(v, "yes");
        } else {
            return reply_syntax(c), false;
        }
    }
    return true;
}

void cmd_client_kill(struct client *c) {
    struct filter f = {.type = -1, .skip_me = true};
    if (c->argc == 3) { /* the old form */
        f.addr = c->argv[2];
        f.skip_me = false;
        if (kill_matching(&f, c) > 0)
            reply_ok(c);
        else
            reply_error(c, "No such client");
        return;
    }
    if (!parse_filter(c, &f)) return;
    if (f.type == TYPE_MASTER) {
        reply_int(c, replication.link != NULL && repl_link_reconnect(replication.link));
        return;
    }
    reply_int(c, (int64_t)kill_matching(&f, c));
}

/* --- the rest --- */

void cmd_client_pause(struct client *c) {
    enum pause_what what = PAUSE_ALL;
    uint64_t ms;
    if (c->argc > 4) {
        reply_arity(c);
        return;
    }
    if (c->argc == 4) {
        if (arg_is(c, 3, "WRITE")) {
            what = PAUSE_WRITE;
        } else if (!arg_is(c, 3, "ALL")) {
            reply_error(c, "CLIENT PAUSE mode must be WRITE or ALL");
            return;
        }
    }
    if (!span_to_u64(c->argv[2], &ms) || ms > UINT64_C(1) << 50) {
        reply_error(c, "timeout is not an integer or out of range");
        return;
    }
    pause_set(PAUSE_BY_CLIENT, what, turn.mono_ms + ms);
    reply_ok(c);
}

void cmd_client_unpause(struct client *c) {
    pause_set(PAUSE_BY_CLIENT, PAUSE_NONE, 0);
    reply_ok(c);
}

void cmd_client_reply(struct client *c) {
    unsigned *flags = &c->io->flags;
    if (arg_is(c, 2, "ON")) {
        *flags &= ~(unsigned)(CLIENT_REPLY_OFF | CLIENT_REPLY_SKIP);
        reply_ok(c);
    } else if (arg_is(c, 2, "OFF")) {
        *flags |= CLIENT_REPLY_OFF;
    } else if (arg_is(c, 2, "SKIP")) {
        if (!(*flags & CLIENT_REPLY_OFF)) *flags |= CLIENT_REPLY_SKIP_NEXT;
    } else {
        reply_syntax(c);
    }
}

static void on_off(struct client *c, unsigned flag) {
    if (arg_is(c, 2, "ON")) {
        c->io->flags |= flag;
        reply_ok(c);
    } else if (arg_is(c, 2, "OFF")) {
        c->io->flags &= ~flag;
        reply_ok(c);
    } else {
        reply_syntax(c);
    }
}

void cmd_client_no_evict(struct client *c) {
    on_off(c, CLIENT_NO_EVICT);
}
void cmd_client_no_touch(struct client *c) {
    on_off(c, CLIENT_NO_TOUCH);
}

void cmd_client_unblock(struct client *c) {
    uint64_t id;
    bool error = c->argc == 4 && arg_is(c, 3, "ERROR");
    if (c->argc > 4) {
        reply_arity(c);
        return;
    }
    if (c->argc == 4 && !error && !arg_is(c, 3, "TIMEOUT")) {
        reply_error(c, "CLIENT UNBLOCK reason should be TIMEOUT or ERROR");
        return;
    }
    if (!span_to_u64(c->argv[2], &id)) {
        reply_error(c, "value is not an integer or out of range");
        return;
    }
    struct client *o = client_find(id);
    reply_int(c, o != NULL && o != c && job_unblock(o, error));
}
