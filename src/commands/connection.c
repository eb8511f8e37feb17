/* PING, ECHO, AUTH, HELLO, SELECT, QUIT, RESET. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "base/traceparent.h"
#include "front/acl_users.h"
#include "front/client.h"
#include "front/families.h"
#include "front/shard.h"
#include "ha/replication.h"
#include "front/stats.h"
#include "front/tracking.h"
#include "config/config.h"
#include "wire/options.h"

#define REDIS_VERSION "7.0.15"

void cmd_ping(struct client *c) {
    if (c->argc > 2) {
        reply_arity(c);
    } else if (c->io->flags & CLIENT_PUBSUB && c->proto == 2) { /* as if it were a message */
        reply_array(c, 2);
        reply_bulk_str(c, "pong");
        reply_bulk(c, c->argc == 2 ? c->argv[1] : SPAN(""));
    } else if (c->argc == 1)
        reply_simple(c, "PONG");
    else
        reply_bulk(c, c->argv[1]);
}

void cmd_echo(struct client *c) {
    reply_bulk(c, c->argv[1]);
}

void cmd_select(struct client *c) {
    int64_t db;
    if (!span_to_i64(c->argv[1], &db))
        reply_error(c, "value is not an integer or out of range");
    else if (db < 0 || db >= config->databases)
        reply_error(c, "DB index is out of range");
    else {
        c->db = (int)db;
        reply_ok(c);
    }
}

void cmd_quit(struct client *c) {
    reply_ok(c);
    client_close_after_reply(c);
}

void cmd_reset(struct client *c) {
    client_reset(c);
    reply_simple(c, "RESET");
}

/* --- AUTH and HELLO --- */

static bool client_authenticate(struct client *c, struct span user, struct span password) {
    if (acl_client_login(c, user, password)) return true;
    stats.total_auth_failures++;
    acl_log_note(c, ACL_DENIED_AUTH, NULL, 0, user);
    char peer[80];
    client_peer(c, peer, sizeof(peer));
    log_verbose("Wrong password from %s", peer);
    reply_error(c, "-WRONGPASS invalid username-password pair or user is disabled.");
    return false;
}

void cmd_auth(struct client *c) {
    if (c->argc > 3) {
        reply_syntax(c);
        return;
    }
    if (c->argc == 2 && acl_user_nopass(acl_default(acl_users))) {
        reply_error(c, "AUTH <password> called without any password configured for the default "
                       "user. Are you sure your configuration is correct?");
        return;
    }
    struct span user = c->argc == 3 ? c->argv[1] : SPAN("default");
    if (client_authenticate(c, user, c->argv[c->argc - 1])) reply_ok(c);
}

/* Names are shown in lists, so they hold no blanks and no special characters. */
static bool name_ok(struct client *c, struct span name, const char *text) {
    for (size_t i = 0; i < name.len; i++)
        if (name.data == NULL || name.data[i] < '!' || name.data[i] > '~') {
            reply_error(c, "%s", text);
            return false;
        }
    return true;
}

static void set_name(char **field, struct span name) {
    free(*field);
    *field = NULL;
    if (name.len == 0) return;
    *field = xmalloc(name.len + 1);
    memcpy(*field, name.data, name.len);
    (*field)[name.len] = '\0';
}

static void reply_hello(struct client *c) {
    reply_map(c, 7);
    reply_bulk_str(c, "server");
    reply_bulk_str(c, "redis");
    reply_bulk_str(c, "version");
    reply_bulk_str(c, REDIS_VERSION);
    reply_bulk_str(c, "proto");
    reply_int(c, c->proto);
    reply_bulk_str(c, "id");
    reply_int(c, (int64_t)c->id);
    reply_bulk_str(c, "mode");
    reply_bulk_str(c, shard_map != NULL ? "cluster" : "standalone");
    reply_bulk_str(c, "role");
    reply_bulk_str(c, replication_is_replica() ? "replica" : "master");
    reply_bulk_str(c, "modules");
    cmd_module_list(c);
}

#define BAD_NAME "Client names cannot contain spaces, newlines or special characters."

void cmd_hello(struct client *c) {
    struct wire_hello args = {0};
    int64_t proto;
    /* one that is yet to come may have options that are not known here */
    if (c->argc > 1 && span_to_i64(c->argv[1], &proto) && (proto < 2 || proto > 3)) {
        reply_error(c, "-NOPROTO unsupported protocol version");
        return;
    }
    if (!arg_bind(c, &args)) return;
    if (args.name > 0 && !name_ok(c, c->argv[args.name], BAD_NAME)) return;
    if (args.user > 0 && !client_authenticate(c, c->argv[args.user], c->argv[args.password]))
        return;
    if (!c->authenticated) {
        reply_error(c,
                    "-NOAUTH HELLO must be called with the client already authenticated, otherwise "
                    "the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the "
                    "client and select the RESP protocol version at the same time");
        return;
    }
    if (args.name > 0) set_name(&c->io->name, c->argv[args.name]);
    if (args.proto != 0) c->proto = (int)args.proto;
    if (args.proto == 2) tracking_off(c);
    reply_hello(c);
}

/* --- names (of the CLIENT family) --- */

void cmd_client_setname(struct client *c) {
    if (!name_ok(c, c->argv[2], BAD_NAME)) return;
    set_name(&c->io->name, c->argv[2]);
    reply_ok(c);
}

void cmd_client_getname(struct client *c) {
    if (c->io->name == NULL)
        reply_null(c);
    else
        reply_bulk_str(c, c->io->name);
}

/* What clients say about where they are: shown in lists, compared with what hosts say. */
static bool set_label(struct client *c, const char *name, struct span value, char *field,
                      size_t size) {
    char text[96];
    snprintf(text, sizeof(text), "%s cannot contain spaces, newlines or special characters.", name);
    if (!name_ok(c, value, text)) return false;
    if (value.len >= size) {
        reply_error(c, "%s must be a name of up to %zu bytes", name, size - 1);
        return false;
    }
    if (value.len > 0) memcpy(field, value.data, value.len);
    field[value.len] = '\0';
    return true;
}

static void set_traceparent(struct client *c, struct span value) {
    struct traceparent trace = {""};
    if (value.len > 0 && !traceparent_read(value, &trace)) {
        reply_error(c, "tarn-traceparent must be " TRACEPARENT_FORM);
        return;
    }
    set_name(&c->io->traceparent, span_str(trace.text));
    reply_ok(c);
}

/* The client knows a map of that epoch. What it is not told here is no key of its own. */
static void answer_map_known(struct client *c, struct span value) {
    uint64_t epoch;
    if (!span_to_u64(value, &epoch))
        reply_error(c, "tarn-map must be the epoch of a map of slots");
    else if (shard_is_ignorant(epoch))
        reply_error(c, SHARD_IGNORANT);
    else
        reply_ok(c);
}

void cmd_client_setinfo(struct client *c) {
    struct span value = c->argv[3];
    if (value.data == NULL && value.len > 0) {
        reply_syntax(c);
    } else if (arg_is(c, 2, "LIB-NAME") || arg_is(c, 2, "LIB-VER")) {
        bool is_name = arg_is(c, 2, "LIB-NAME");
        if (!name_ok(c, value,
                     is_name ? "lib-name cannot contain spaces, newlines or special characters."
                             : "lib-ver cannot contain spaces, newlines or special characters."))
            return;
        set_name(is_name ? &c->io->lib_name : &c->io->lib_ver, value);
        reply_ok(c);
    } else if (arg_is(c, 2, "TARN-HOST")) {
        if (!set_label(c, "tarn-host", value, c->host_name, sizeof(c->host_name))) return;
        c->machines_version = 0; /* location_host looks it up again */
        reply_ok(c);
    } else if (arg_is(c, 2, "TARN-RACK")) {
        if (set_label(c, "tarn-rack", value, c->rack, sizeof(c->rack))) reply_ok(c);
    } else if (arg_is(c, 2, "TARN-NODE")) {
        char node[64]; /* which one does not matter: its look-ups are no accesses */
        if (!set_label(c, "tarn-node", value, node, sizeof(node))) return;
        c->of_node = node[0] != '\0';
        reply_ok(c);
    } else if (arg_is(c, 2, "TARN-MAP")) {
        answer_map_known(c, value);
    } else if (arg_is(c, 2, "TARN-TRACEPARENT")) {
        set_traceparent(c, value);
    } else {
        reply_error(c, "Unrecognized option '%.*s'",
                    (int)(c->argv[2].len < 64 ? c->argv[2].len : 64), c->argv[2].data);
    }
}
