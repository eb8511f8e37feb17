/* The control port: what peers ask, and what they are told. A small RESP: every request is a name,
 * a number of the peer's own, and arguments; every answer an array of that number, a status, and
 * what there is to say. Answers come in any order: WAIT waits.
 *
 *   NEW ─HELLO─> GREETED ─AUTH─> OPEN          without a secret HELLO is enough
 *
 * Nothing that comes in is trusted. What makes no sense costs the sender its connection. */
#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/log.h"
#include "client/client.h"
#include "net/net.h"
#include "transfer/transfer.h"

#define IN_MAX (256u << 10) /* a request in the making */

static const struct resp_limits limits = {
    .max_args = 8, .max_bulk = TARN_TRANSFER_MESSAGE_MAX, .max_inline = 1024, .big_min = SIZE_MAX};
/* Before they have shown that they know the secret. */
static const struct resp_limits stranger_limits = {
    .max_args = 8, .max_bulk = 256, .max_inline = 256, .big_min = SIZE_MAX};

struct transfer_conn *transfer_conn_create(struct tarn_transfer *t, int fd, const char *address) {
    struct transfer_conn *c = xcalloc(1, sizeof(*c));
    c->end = t;
    c->fd = fd;
    snprintf(c->address, sizeof(c->address), "%s", address);
    transfer_party_init(&c->party[TRANSFER_SERVER], t);
    while (c->session == 0) randombytes_buf(&c->session, sizeof(c->session));
    LIST_INSERT_HEAD(&t->conns, c, link);
    t->n_conns++;
    return c;
}

void transfer_conn_destroy(struct transfer_conn **conn_p) {
    struct transfer_conn *c = *conn_p;
    struct tarn_transfer *t = c->end;
    *conn_p = NULL;
    transfer_timer_stop(t, &c->handshake);
    transfer_labels_conn_ended(c, c->granted);
    if (c->granted) host_fence(t->host, c->session, HOST_FENCE_FOR_EVER);
    if (c->fd >= 0) close(c->fd);
    LIST_REMOVE(c, link);
    t->n_conns--;
    buf_free(&c->in);
    buf_free(&c->out);
    resp_parser_free(&c->parser);
    free(c);
}

/* --- answers --- */

static void answer_head(struct transfer_conn *c, uint64_t id, tarn_status status) {
    resp_write_array(&c->out, 3);
    resp_write_int(&c->out, (int64_t)id);
    resp_write_int(&c->out, status);
}

void transfer_answer(struct transfer_conn *c, uint64_t id, tarn_status status, const void *text,
                     size_t len) {
    answer_head(c, id, status);
    resp_write_bulk(&c->out, len > 0 ? text : "", len);
    if (c->out.len > TRANSFER_OUT_MAX) c->doomed = true;
}

void transfer_regions_changed(struct tarn_transfer *t) {
    struct transfer_conn *c;
    LIST_FOREACH(c, &t->conns, link) {
        if (!c->wants_changes) continue;
        c->wants_changes = false; /* once: it asks again before it moves the next bytes */
        transfer_answer(c, 0, TARN_OK, "", 0);
    }
    transfer_wake(t);
}

/* --- requests --- */

static bool conn_refuse(struct transfer_conn *c, const char *why) {
    log_verbose("Transfer peer %s: %s", c->address, why);
    c->end->stats.refused++;
    resp_write_error(&c->out, why);
    return false;
}

static void conn_set_open(struct transfer_conn *c) {
    c->state = CONN_OPEN;
    transfer_timer_stop(c->end, &c->handshake);
}

/* HELLO id version nonce identity name -> version, nonce, identity, proof, name */
static bool do_hello(struct transfer_conn *c, uint64_t id, const struct span *argv) {
    const struct tarn_transfer *t = c->end;
    struct transfer_party *own = &c->party[TRANSFER_SERVER], *peer = &c->party[TRANSFER_CLIENT];
    if (!transfer_party_take(peer, argv[3], argv[4], argv[5]))
        return conn_refuse(c, "ERR HELLO makes no sense");
    if (t->has_secret && transfer_party_same(own, peer))
        return conn_refuse(
            c, "WRONGPASS this is the end that asks: an end with a secret does not let itself in");
    uint8_t proof[TRANSFER_PROOF];
    if (t->has_secret) transfer_proof_make(t->secret, TRANSFER_SERVER, c->party, proof);
    answer_head(c, id, TARN_OK);
    resp_write_array(&c->out, 5);
    resp_write_int(&c->out, TRANSFER_VERSION);
    resp_write_bulk(&c->out, own->nonce, TRANSFER_NONCE);
    resp_write_bulk(&c->out, own->identity, TRANSFER_IDENTITY);
    resp_write_bulk(&c->out, t->has_secret ? (const void *)proof : "",
                    t->has_secret ? sizeof(proof) : 0);
    resp_write_bulk(&c->out, own->name, strlen(own->name));
    c->state = CONN_GREETED;
    if (!t->has_secret) conn_set_open(c);
    return true;
}

/* Version 1 had one argument less: whoever speaks another version is told so, however many there
 * are. */
static bool is_other_version(const struct span *argv, size_t argc) {
    uint64_t version;
    return span_case_eq(argv[0], "HELLO") && argc > 2 && span_to_u64(argv[2], &version) &&
           version != TRANSFER_VERSION;
}

/* AUTH id proof */
static bool do_auth(struct transfer_conn *c, uint64_t id, const struct span *argv) {
    uint8_t proof[TRANSFER_PROOF];
    if (c->end->has_secret) transfer_proof_make(c->end->secret, TRANSFER_CLIENT, c->party, proof);
    if (!c->end->has_secret || !transfer_proof_same(proof, argv[2].data, argv[2].len))
        return conn_refuse(c, "WRONGPASS the peer has another secret");
    conn_set_open(c);
    transfer_answer(c, id, TARN_OK, "", 0);
    return true;
}

/* REGIONS id */
static bool do_regions(struct transfer_conn *c, uint64_t id, const struct span *argv) {
    (void)argv;
    c->granted = c->wants_changes = true;
    answer_head(c, id, TARN_OK);
    transfer_write_regions(c->end, c->session, &c->out);
    if (c->out.len > TRANSFER_OUT_MAX) c->doomed = true;
    return true;
}

static bool label_of(struct span arg, char out[TARN_TRANSFER_LABEL_MAX + 1]) {
    if (arg.len == 0 || arg.len > TARN_TRANSFER_LABEL_MAX ||
        memchr(arg.data, '\0', arg.len) != NULL)
        return false;
    memcpy(out, arg.data, arg.len);
    out[arg.len] = '\0';
    return true;
}

/* WAIT id label milliseconds -> what goes with it */
static bool do_wait(struct transfer_conn *c, uint64_t id, const struct span *argv) {
    char label[TARN_TRANSFER_LABEL_MAX + 1];
    uint64_t timeout_ms;
    if (!label_of(argv[2], label) || !span_to_u64(argv[3], &timeout_ms))
        return conn_refuse(c, "ERR WAIT makes no sense");
    transfer_label_wait(c, id, label, timeout_ms);
    return true;
}

/* DONE id label message, GIVEUP id label reason */
static bool conn_label_done(struct transfer_conn *c, uint64_t id, const struct span *argv,
                            bool gave_up) {
    char label[TARN_TRANSFER_LABEL_MAX + 1];
    if (!label_of(argv[2], label)) return conn_refuse(c, "ERR a label has 1 to 255 bytes");
    tarn_status status = transfer_label_done(c, label, gave_up, argv[3].data, argv[3].len);
    transfer_answer(c, id, status, "", 0);
    return true;
}
static bool do_done(struct transfer_conn *c, uint64_t id, const struct span *argv) {
    return conn_label_done(c, id, argv, false);
}
static bool do_give_up(struct transfer_conn *c, uint64_t id, const struct span *argv) {
    return conn_label_done(c, id, argv, true);
}

/* NOTIFY id message */
static bool do_notify(struct transfer_conn *c, uint64_t id, const struct span *argv) {
    bool full = transfer_events_full(c->end);
    if (!full)
        transfer_event_add(c->end, TARN_TRANSFER_MESSAGE, transfer_conn_name(c), "", argv[2].data,
                           argv[2].len);
    transfer_answer(c, id, full ? TARN_EAGAIN : TARN_OK, "", 0);
    return true;
}

static const struct {
    const char *name;
    size_t argc; /* with the name and the number */
    int state;   /* in which it may come */
    bool (*run)(struct transfer_conn *c, uint64_t id, const struct span *argv);
} commands[] = {
    {"HELLO", 6, CONN_NEW, do_hello},      {"AUTH", 3, CONN_GREETED, do_auth},
    {"REGIONS", 2, CONN_OPEN, do_regions}, {"WAIT", 4, CONN_OPEN, do_wait},
    {"DONE", 4, CONN_OPEN, do_done},       {"GIVEUP", 4, CONN_OPEN, do_give_up},
    {"NOTIFY", 3, CONN_OPEN, do_notify},
};

static bool request_run(struct transfer_conn *c, const struct span *argv, size_t argc) {
    uint64_t id;
    if (argc < 2 || !span_to_u64(argv[1], &id) || id == 0 || id > INT64_MAX)
        return conn_refuse(c, "ERR a request begins with its name and a number");
    if (is_other_version(argv, argc))
        return conn_refuse(
            c,
            "NOPROTO this end speaks version 2 of the transfer protocol only: both ends need the "
            "same version of libtarn");
    for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
        if (!span_case_eq(argv[0], commands[i].name)) continue;
        if (argc != commands[i].argc) return conn_refuse(c, "ERR wrong number of arguments");
        if ((int)c->state != commands[i].state)
            return conn_refuse(c, "NOAUTH say HELLO, once, and AUTH where there is a secret");
        return commands[i].run(c, id, argv);
    }
    return conn_refuse(c, "ERR unknown command");
}

bool transfer_serve_bytes(struct transfer_conn *c, const void *data, size_t len) {
    buf_append(&c->in, data, len);
    size_t at = 0;
    bool goes_on = true;
    while (goes_on && !c->doomed && at < c->in.len) {
        size_t used = 0;
        const struct resp_limits *l = c->state == CONN_OPEN ? &limits : &stranger_limits;
        enum resp_result r = resp_parse(&c->parser, l, c->in.data + at, c->in.len - at, &used);
        if (r == RESP_MORE) break;
        if (r == RESP_REQUEST) {
            if (c->parser.argc > 0) goes_on = request_run(c, c->parser.argv, c->parser.argc);
            at += used;
        } else {
            goes_on = conn_refuse(c, "ERR Protocol error");
        }
    }
    buf_consume(&c->in, at);
    if (c->in.len > IN_MAX) goes_on = false;
    return goes_on && !c->doomed;
}
