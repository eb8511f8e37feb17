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
#include "wire/options.h"

/* Of TYPE filters. The master is no client: its link is this server's own connection. */
static bool type_fits(const struct client *c, uint32_t type) {
    unsigned kind = c->io->flags & (CLIENT_REPLICA | CLIENT_PUBSUB);
    switch ((enum wire_client_type)type) {
    case WIRE_CLIENT_NORMAL: return kind == 0;
    case WIRE_CLIENT_MASTER: return false;
    case WIRE_CLIENT_REPLICA:
    case WIRE_CLIENT_SLAVE: return kind & CLIENT_REPLICA;
    case WIRE_CLIENT_PUBSUB: return kind == CLIENT_PUBSUB;
    }
    return true; /* any */
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
    struct wire_clients args = {0};
    if (!arg_bind(c, &args)) return;
    for (size_t i = args.ids; args.ids > 0 && i < c->argc; i++) {
        uint64_t id;
        if (!span_to_u64(c->argv[i], &id) || id == 0) {
            reply_error(c, "Invalid client ID");
            buf_free(&out);
            return;
        }
        const struct client *o = client_find(id);
        if (o != NULL) client_describe(o, &out);
    }
    CLIENTS_EACH(o)
        if (args.ids == 0 && type_fits(o, args.type)) client_describe(o, &out);
    reply_verbatim(c, "txt", span_of(out.data != NULL ? out.data : "", out.len));
    buf_free(&out);
}

/* --- KILL --- */

/* at 0: any */
static bool address_fits(const struct client *me, uint32_t at, const struct client *o,
                         void (*address)(const struct client *c, char *out, size_t size)) {
    char text[128];
    if (at == 0) return true;
    address(o, text, sizeof(text));
    return span_eq(me->argv[at], span_str(text));
}

static bool filter_fits(const struct wire_clients *f, const struct acl_user *user,
                        const struct client *o, const struct client *me) {
    if (f->me != WIRE_NO && o == me) return false;
    return (f->id == 0 || o->id == f->id) && type_fits(o, f->type) &&
           (user == NULL || o->user == user) && address_fits(me, f->addr, o, client_peer) &&
           address_fits(me, f->laddr, o, client_local);
}

static size_t kill_matching(const struct wire_clients *f, const struct acl_user *user,
                            struct client *me) {
    size_t n = 0;
    CLIENTS_EACH(o) {
        if (!filter_fits(f, user, o, me) ||
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

void cmd_client_kill(struct client *c) {
    struct wire_clients f = {0};
    const struct acl_user *user = NULL;
    if (!arg_bind(c, &f)) return;
    if (f.alone > 0) { /* the old form */
        f.addr = f.alone;
        f.me = WIRE_NO;
    }
    if (f.user > 0 && (user = acl_find(acl_users, c->argv[f.user])) == NULL)
        reply_error(c, "No such user '%.*s'", (int)min_u64(c->argv[f.user].len, 64),
                    c->argv[f.user].data);
    else if (f.type == WIRE_CLIENT_MASTER)
        reply_int(c, replication.link != NULL && repl_link_reconnect(replication.link));
    else {
        size_t n = kill_matching(&f, user, c);
        if (f.alone == 0)
            reply_int(c, (int64_t)n);
        else if (n > 0)
            reply_ok(c);
        else
            reply_error(c, "No such client");
    }
}

/* --- the rest --- */

void cmd_client_pause(struct client *c) {
    struct wire_choice args = {0};
    if (!arg_bind(c, &args)) return;
    pause_set(PAUSE_BY_CLIENT, args.which == 1 ? PAUSE_WRITE : PAUSE_ALL,
              turn.mono_ms + (uint64_t)args.number);
    reply_ok(c);
}

void cmd_client_unpause(struct client *c) {
    pause_set(PAUSE_BY_CLIENT, PAUSE_NONE, 0);
    reply_ok(c);
}

void cmd_client_reply(struct client *c) {
    unsigned *flags = &c->io->flags;
    struct wire_choice args = {0};
    if (!arg_bind(c, &args)) return;
    if (args.which == WIRE_ON) {
        *flags &= ~(unsigned)(CLIENT_REPLY_OFF | CLIENT_REPLY_SKIP);
        reply_ok(c);
    } else if (args.which == WIRE_OFF) {
        *flags |= CLIENT_REPLY_OFF;
    } else if (!(*flags & CLIENT_REPLY_OFF)) {
        *flags |= CLIENT_REPLY_SKIP_NEXT;
    }
}

static void on_off(struct client *c, unsigned flag) {
    struct wire_choice args = {0};
    if (!arg_bind(c, &args)) return;
    c->io->flags = args.which == WIRE_ON ? c->io->flags | flag : c->io->flags & ~flag;
    reply_ok(c);
}

void cmd_client_no_evict(struct client *c) {
    on_off(c, CLIENT_NO_EVICT);
}
void cmd_client_no_touch(struct client *c) {
    on_off(c, CLIENT_NO_TOUCH);
}

void cmd_client_unblock(struct client *c) {
    struct wire_choice args = {0};
    if (!arg_bind(c, &args)) return;
    struct client *o = args.number > 0 ? client_find((uint64_t)args.number) : NULL;
    reply_int(c, o != NULL && o != c && job_unblock(o, args.which == 2));
}
