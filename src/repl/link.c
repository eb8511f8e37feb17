#include "repl/link.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "repl/conn.h"
#include "resp/resp.h"

#define READ_SIZE   (64u * 1024)
#define SLICE_US    500u
#define RETRY_MS    1000u
#define ACK_MS      1000u
#define ANSWER_MAX  1024u        /* of an answer in the handshake */
#define OUT_MAX     (64u * 1024) /* a master that does not read gets no more acknowledgements */
#define INPUT_MAX   (REPL_EFFECTS_MAX + READ_SIZE + 64u)
#define DRAIN_READS 64u
#define RECORDS_MAX (16u * 1024) /* bytes of records handed up at once, unless one is larger */

/* What is awaited next. */
enum step {
    STEP_NONE, /* waiting, or the connection is on its way */
    STEP_PONG,
    STEP_AUTH,
    STEP_PORT,
    STEP_IP,
    STEP_CAPA,
    STEP_PSYNC,
    STEP_MARK,
    STEP_HEAD,
    STEP_RECORDS,
    STEP_END_MARK,
    STEP_STREAM,
};

/* The wish that the other one leads. */
enum lead { LEAD_NONE, LEAD_WANTED, LEAD_ASKED };

struct repl_link {
    char *host, *user, *announce_ip;
    struct buf password;
    struct tls_context *tls_context; /* of the next connection; NULL: plain text */
    uint16_t port, announce_port;
    uint64_t timeout_ms;
    const struct repl_link_ops *ops;
    void *arg;
    enum step step;
    enum lead lead;
    uint64_t suspect_below; /* of the wish */
    struct repl_conn conn;
    bool end_seen;  /* the snapshot's END */
    size_t applied; /* of the records of the command at in_pos */
    char mark[REPL_MARK_LEN];
    char id[REPL_ID_LEN + 1];
    uint64_t begin_offset; /* of FULLRESYNC */
    uint64_t end_offset;   /* of the snapshot */
    uint64_t now_ms, retry_ms, ack_ms, down_since_ms, snapshot_bytes;
};

/* --- sending --- */

static bool link_fail(struct repl_link *l, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static void link_say(struct repl_link *l, unsigned n, const char *const *words) {
    resp_write_array(&l->conn.out, n);
    for (unsigned i = 0; i < n; i++) resp_write_bulk(&l->conn.out, words[i], strlen(words[i]));
    repl_conn_flush(&l->conn);
}

static void link_say_password(struct repl_link *l) {
    resp_write_array(&l->conn.out, l->user[0] != '\0' ? 3 : 2);
    resp_write_bulk(&l->conn.out, "AUTH", 4);
    if (l->user[0] != '\0') resp_write_bulk(&l->conn.out, l->user, strlen(l->user));
    resp_write_bulk(&l->conn.out, l->password.data, l->password.len);
    repl_conn_flush(&l->conn);
}

#define SAY(l, ...)                                                                                \
    do {                                                                                           \
        const char *const words_[] = {__VA_ARGS__};                                                \
        link_say((l), ARRAY_LEN(words_), words_);                                                  \
    } while (0)

static void link_acknowledge(struct repl_link *l) {
    char text[24];
    if (l->conn.out.len > OUT_MAX) return;
    text[u64_to_dec(l->ops->offset(l->arg), text)] = '\0';
    SAY(l, "REPLCONF", "ACK", text);
    l->ack_ms = l->now_ms + ACK_MS;
}

/* --- beginning and end of a connection --- */

static void link_disconnect(struct repl_link *l) {
    if (l->step == STEP_STREAM || l->down_since_ms == 0) l->down_since_ms = l->now_ms;
    l->step = STEP_NONE;
    l->retry_ms = l->now_ms + RETRY_MS;
    l->end_seen = false;
    l->applied = 0;
    repl_conn_end(&l->conn);
}

static void lead_answered(struct repl_link *l, bool agreed, const char *why) {
    if (l->lead == LEAD_NONE) return;
    l->lead = LEAD_NONE;
    l->ops->asked_to_lead(l->arg, agreed, why);
}

/* The connection is over, for a reason that the next one may not have. false. */
static bool link_fail(struct repl_link *l, const char *fmt, ...) {
    char why[320];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof(why), fmt, ap);
    va_end(ap);
    log_warning("The link to the master %s:%u ends: %s", l->host, l->port, why);
    link_disconnect(l);
    if (l->lead == LEAD_WANTED) lead_answered(l, false, why);
    return false;
}

/* What it sent cannot be used. false. */
static bool link_damaged(struct repl_link *l, const char *why) {
    log_warning("What the master %s:%u sent cannot be used: %s. All of it will be asked for anew.",
                l->host, l->port, why);
    l->ops->damaged(l->arg);
    link_disconnect(l);
    return false;
}

static void link_begin(struct repl_link *l) {
    log_notice("Connecting to MASTER %s:%u", l->host, l->port);
    repl_conn_begin(&l->conn, l->host, l->port, l->tls_context, l->timeout_ms, l->now_ms);
}

/* --- handshake --- */

static void handshake_say(struct repl_link *l) {
    char text[24], id[REPL_ID_LEN + 1];
    uint64_t next;
    if (l->step == STEP_AUTH && l->password.len == 0) l->step++;
    if (l->step == STEP_IP && l->announce_ip[0] == '\0') l->step++;
    switch (l->step) {
    case STEP_PONG: SAY(l, "PING"); break;
    case STEP_AUTH: link_say_password(l); break;
    case STEP_PORT:
        snprintf(text, sizeof(text), "%u", l->announce_port);
        SAY(l, "REPLCONF", "listening-port", text);
        break;
    case STEP_IP: SAY(l, "REPLCONF", "ip-address", l->announce_ip); break;
    case STEP_CAPA:
        SAY(l, "REPLCONF", "capa", "eof", "capa", "psync2", "capa", REPL_CAPA, "capa",
            REPL_CAPA_MODERN, "capa", REPL_CAPA_VERSION TARN_VERSION);
        break;
    case STEP_PSYNC:
        if (l->ops->wanted(l->arg, id, &next)) {
            text[u64_to_dec(next, text)] = '\0';
            log_notice("Trying a partial resynchronization (request %s:%s)", id, text);
            if (l->lead == LEAD_NONE) {
                SAY(l, "PSYNC", id, text);
            } else {
                l->lead = LEAD_ASKED;
                char suspect[24];
                suspect[u64_to_dec(l->suspect_below, suspect)] = '\0';
                SAY(l, "PSYNC", id, text, "FAILOVER", suspect);
            }
        } else {
            TARN_ASSERT(l->lead == LEAD_NONE); /* what is handed over is a stream */
            SAY(l, "PSYNC", "?", "-1");
        }
        break;
    default: TARN_ASSERT(false);
    }
}

/* "word rest": whether line begins with that word; *rest_p is what follows the blank. */
static bool line_begins(struct span line, struct span word, struct span *rest_p) {
    if (!span_starts(line, word)) return false;
    *rest_p = span_of(line.data + word.len, line.len - word.len);
    if (rest_p->len > 0 && *rest_p->data != ' ') return false;
    if (rest_p->len > 0) *rest_p = span_of(rest_p->data + 1, rest_p->len - 1);
    return true;
}

/* It ends, and so does the wish that the other one leads. */
static bool lead_refused(struct repl_link *l, const char *why) {
    if (l->lead == LEAD_ASKED) l->lead = LEAD_WANTED;
    return link_fail(l, "%s", why);
}

/* Who leads goes on under a new id. One that does not know the wish follows on under the old one:
 * each would follow the other. */
static bool lead_check_id(struct repl_link *l, const char *id) {
    char mine[REPL_ID_LEN + 1];
    uint64_t next;
    if (l->lead == LEAD_NONE) return true;
    if (id[0] != '\0' && (!l->ops->wanted(l->arg, mine, &next) || strcmp(mine, id) != 0)) {
        lead_answered(l, true, NULL);
        return true;
    }
    return lead_refused(l, "it does not lead: its version does not know PSYNC FAILOVER");
}

static void handshake_psync(struct repl_link *l, struct span line) {
    struct span rest;
    if (line_begins(line, SPAN("+CONTINUE"), &rest)) {
        char id[REPL_ID_LEN + 1] = "";
        bool given = repl_id_valid(rest.data, (unsigned)rest.len);
        if (rest.len > 0 && !given) {
            link_fail(l, "its +CONTINUE makes no sense");
            return;
        }
        if (given) memcpy(id, rest.data, REPL_ID_LEN);
        if (!lead_check_id(l, id)) return;
        log_notice("Successful partial resynchronization with master.");
        l->step = STEP_STREAM;
        l->conn.next_address = 0;
        l->ops->resumed(l->arg, given ? id : NULL);
        link_acknowledge(l);
    } else if (line_begins(line, SPAN("+FULLRESYNC"), &rest)) {
        if (rest.len < REPL_ID_LEN + 2 || !repl_id_valid(rest.data, REPL_ID_LEN) ||
            rest.data[REPL_ID_LEN] != ' ' ||
            !span_to_u64(span_of(rest.data + REPL_ID_LEN + 1, rest.len - REPL_ID_LEN - 1),
                         &l->begin_offset)) {
            link_fail(l, "its +FULLRESYNC makes no sense");
            return;
        }
        memcpy(l->id, rest.data, REPL_ID_LEN);
        if (!lead_check_id(l, l->id)) return;
        log_notice("Full resync from master: %s:%llu", l->id, (unsigned long long)l->begin_offset);
        l->step = STEP_MARK;
        l->conn.next_address = 0;
    } else {
        char text[256];
        snprintf(text, sizeof(text), "its answer to PSYNC: %.*s",
                 (int)(line.len < 200 ? line.len : 200), line.data);
        lead_refused(l, text);
    }
}

static void handshake_mark(struct repl_link *l, struct span line) {
    if (line.len != 5 + REPL_MARK_LEN || memcmp(line.data, "$EOF:", 5) != 0) {
        link_fail(l, "its snapshot has no frame that is known here");
        return;
    }
    memcpy(l->mark, line.data + 5, REPL_MARK_LEN);
    l->step = STEP_HEAD;
    l->snapshot_bytes = 0;
}

static void handshake_answer(struct repl_link *l, struct span line) {
    bool bad = line.data[0] == '-';
    int n = (int)min_u64(line.len, 200);
    if (l->step == STEP_PONG) { /* who wants a password first says so, and is there */
        if (line.data[0] != '+' && !span_starts(line, SPAN("-NOAUTH")) &&
            !span_starts(line, SPAN("-NOPERM"))) {
            link_fail(l, "its answer to PING: %.*s", n, line.data);
            return;
        }
    } else if (l->step == STEP_AUTH && bad) {
        link_fail(l, "Unable to AUTH to MASTER (masterauth): %.*s", n, line.data);
        return;
    } else if (bad) {
        log_notice("The master does not understand REPLCONF: %.*s", n, line.data);
    }
    l->step++;
    handshake_say(l);
}

/* One line of the handshake. false: there is none yet, or the link is over. */
static bool handshake_line(struct repl_link *l) {
    const char *at = l->conn.in.data + l->conn.in_pos;
    size_t have = l->conn.in.len - l->conn.in_pos;
    const char *lf = have > 0 ? memchr(at, '\n', have) : NULL;
    if (lf == NULL) {
        return have > ANSWER_MAX && link_fail(l, "it does not speak as a master does");
    }
    size_t len = (size_t)(lf - at);
    l->conn.in_pos += len + 1;
    if (len > 0 && at[len - 1] == '\r') len--;
    if (len == 0) return true; /* it says that it is still there */
    if (l->step == STEP_PSYNC)
        handshake_psync(l, span_of(at, len));
    else if (l->step == STEP_MARK)
        handshake_mark(l, span_of(at, len));
    else
        handshake_answer(l, span_of(at, len));
    return l->conn.fd >= 0;
}

/* --- snapshot --- */

/* The whole records that data begins with, up to RECORDS_MAX bytes; stops in front of those that
 * are the frame's. */
static size_t whole_records(struct span data, enum effect_kind *kind_p, tarn_status *status_p) {
    size_t n = 0;
    for (;;) {
        struct span record;
        tarn_status s = effect_next(span_of(data.data + n, data.len - n), kind_p, &record);
        *status_p = s;
        if (s != TARN_OK) return n;
        if (*kind_p >= (enum effect_kind)REPL_RECORD_HEAD) return n;
        n += record.len;
        if (n >= RECORDS_MAX) return n;
    }
}

static bool snapshot_head(struct repl_link *l) {
    enum effect_kind kind;
    struct span record = {NULL, 0};
    const char *why = "the snapshot is not tarn's";
    struct span data = span_of(l->conn.in.data + l->conn.in_pos, l->conn.in.len - l->conn.in_pos);
    tarn_status s = effect_next(data, &kind, &record);
    if (s == TARN_EAGAIN && data.len < 64) return false;
    s = s == TARN_OK ? repl_read_head(record, &why) : TARN_EPROTO;
    if (s != TARN_OK) return link_damaged(l, why);
    l->conn.in_pos += record.len;
    l->step = STEP_RECORDS;
    l->end_seen = false;
    l->ops->full(l->arg, l->id, l->begin_offset);
    return true;
}

static bool snapshot_records(struct repl_link *l) {
    enum effect_kind kind;
    struct span record = {NULL, 0},
                data = span_of(l->conn.in.data + l->conn.in_pos, l->conn.in.len - l->conn.in_pos);
    tarn_status s;
    const char *why = "a record of the snapshot is not whole";
    size_t n = whole_records(data, &kind, &s);
    if (n > 0) {
        s = l->ops->records(l->arg, span_of(data.data, n), &l->end_seen, &why);
        if (s != TARN_OK) return link_damaged(l, why);
        l->conn.in_pos += n;
        l->snapshot_bytes += n;
        return true;
    }
    if (s == TARN_EAGAIN) return false;
    if (s == TARN_OK) s = effect_next(data, &kind, &record);
    if (s == TARN_OK && (kind != (enum effect_kind)REPL_RECORD_OFFSET || !l->end_seen))
        s = TARN_EPROTO;
    if (s != TARN_OK || repl_read_offset(record, &l->end_offset, &why) != TARN_OK)
        return link_damaged(l, why);
    l->conn.in_pos += record.len;
    l->step = STEP_END_MARK;
    return true;
}

static bool snapshot_end_mark(struct repl_link *l) {
    if (l->conn.in.len - l->conn.in_pos < REPL_MARK_LEN) return false;
    if (memcmp(l->conn.in.data + l->conn.in_pos, l->mark, REPL_MARK_LEN) != 0)
        return link_damaged(l, "the snapshot does not end where it should");
    l->conn.in_pos += REPL_MARK_LEN;
    l->step = STEP_STREAM;
    l->ops->synced(l->arg, l->end_offset);
    link_acknowledge(l);
    return true;
}

/* --- stream --- */

/* A piece of the records of EFFECTS. false: it was the last one, or the link is over. */
static bool stream_records(struct repl_link *l, const struct repl_read *r) {
    enum effect_kind kind;
    tarn_status s;
    const char *why = "a record of the stream is not whole";
    struct span left = span_of(r->records.data + l->applied, r->records.len - l->applied);
    if (left.len == 0) return false;
    size_t n = whole_records(left, &kind, &s);
    s = n > 0 ? l->ops->records(l->arg, span_of(left.data, n), NULL, &why) : TARN_EPROTO;
    if (s != TARN_OK) return link_damaged(l, why);
    l->applied += n;
    return true;
}

static bool stream_command(struct repl_link *l) {
    struct repl_read r;
    const char *why;
    struct span data = span_of(l->conn.in.data + l->conn.in_pos, l->conn.in.len - l->conn.in_pos);
    tarn_status s = repl_stream_read(data, &r, &why);
    if (s == TARN_EAGAIN && data.len > 0 && data.len >= INPUT_MAX - READ_SIZE)
        s = TARN_EPROTO, why = "a command is too long";
    if (s == TARN_EAGAIN) return false;
    if (s != TARN_OK) return link_damaged(l, why);
    if (r.command == REPL_COMMAND_EFFECTS && stream_records(l, &r)) return true;
    if (l->conn.fd < 0) return false;
    l->applied = 0;
    l->conn.in_pos += r.used;
    l->ops->passed(l->arg, span_of(data.data, r.used));
    if (r.command == REPL_COMMAND_GETACK) link_acknowledge(l);
    return true;
}

/* --- the run of it --- */

static bool link_step(struct repl_link *l) {
    switch (l->step) {
    case STEP_NONE: return false;
    case STEP_HEAD: return snapshot_head(l);
    case STEP_RECORDS: return snapshot_records(l);
    case STEP_END_MARK: return snapshot_end_mark(l);
    case STEP_STREAM: return stream_command(l);
    default: return handshake_line(l);
    }
}

/* limit_us 0: until there is nothing whole left. */
static void link_run(struct repl_link *l, uint64_t limit_us) {
    uint64_t start = clock_mono_us();
    l->conn.more = false;
    while (l->conn.fd >= 0 && link_step(l)) {
        if (limit_us == 0 || clock_mono_us() - start < limit_us) continue;
        l->conn.more = true;
        break;
    }
    if (l->conn.fd < 0) return;
    if (l->conn.in_pos == l->conn.in.len) {
        buf_clear(&l->conn.in);
        l->conn.in_pos = 0;
        if (l->conn.in.cap > 4 * READ_SIZE) buf_free(&l->conn.in);
    } else if (l->conn.in_pos > l->conn.in.len / 2) {
        buf_consume(&l->conn.in, l->conn.in_pos);
        l->conn.in_pos = 0;
    }
    if (l->conn.ended && !l->conn.more) {
        const char *torn = repl_conn_torn(&l->conn);
        link_fail(l, "%s%s", torn != NULL ? "TLS: " : "",
                  torn != NULL ? torn : "the master has closed it");
        return;
    }
    repl_conn_update(&l->conn);
}

static void link_connected(void *arg) {
    struct repl_link *l = arg;
    l->step = STEP_PONG;
    handshake_say(l); /* through TLS it leaves when the handshake is over */
}

static void link_came(void *arg) {
    link_run(arg, SLICE_US);
}

static void link_failed(void *arg, const char *why) {
    link_fail(arg, "%s", why);
}

static const struct repl_conn_ops conn_ops = {
    .connected = link_connected, .came = link_came, .failed = link_failed};

void repl_link_drain(struct repl_link *l) {
    for (unsigned i = 0;
         i < DRAIN_READS && l->step == STEP_STREAM && !l->conn.ended && repl_conn_take(&l->conn);
         i++)
        link_run(l, 0);
    if (l->step == STEP_STREAM) link_run(l, 0);
}

bool repl_link_turn(struct repl_link *l) {
    if (l->conn.more) link_run(l, SLICE_US);
    return l->conn.more;
}

void repl_link_cron(struct repl_link *l, uint64_t now_ms) {
    l->now_ms = now_ms;
    if (!repl_conn_open(&l->conn)) {
        if (now_ms >= l->retry_ms) link_begin(l);
    } else if (now_ms > l->conn.last_io_ms && now_ms - l->conn.last_io_ms > l->timeout_ms &&
               !l->conn.more) {
        link_fail(l, "it says nothing (repl-timeout)");
    } else if (l->step == STEP_STREAM && now_ms >= l->ack_ms) {
        link_acknowledge(l);
        repl_conn_update(&l->conn);
    }
}

static void link_set_text(char **field, const char *text) {
    free(*field);
    *field = xstrdup(text);
}

void repl_link_reconfigure(struct repl_link *l, const struct repl_link_config *c) {
    link_set_text(&l->user, c->user);
    buf_clear(&l->password);
    buf_append(&l->password, c->password.data, c->password.len);
    link_set_text(&l->announce_ip, c->announce_ip);
    l->announce_port = c->announce_port;
    tls_context_put(&l->tls_context);
    if (c->tls != NULL) l->tls_context = tls_context_get(c->tls);
    l->timeout_ms = c->timeout_ms;
}

bool repl_link_reconnect(struct repl_link *l) {
    if (l->conn.fd < 0) return false;
    if (l->step == STEP_STREAM) link_run(l, 0);
    if (l->conn.fd < 0) return true;
    link_fail(l, "it was asked to end");
    return true;
}

struct repl_link *repl_link_open(struct net_loop *loop, const struct repl_link_config *config,
                                 const struct repl_link_ops *ops, void *arg, uint64_t now_ms) {
    struct repl_link *l = xcalloc(1, sizeof(*l));
    l->ops = ops;
    l->arg = arg;
    repl_conn_init(&l->conn, loop, &conn_ops, l);
    l->now_ms = l->retry_ms = now_ms;
    link_set_text(&l->host, config->host);
    l->port = config->port;
    l->lead = config->lead ? LEAD_WANTED : LEAD_NONE;
    l->suspect_below = config->suspect_below;
    repl_link_reconfigure(l, config);
    return l;
}

void repl_link_close(struct repl_link **l_p) {
    struct repl_link *l = *l_p;
    if (l == NULL) return;
    if (l->conn.fd >= 0 && l->step == STEP_STREAM) link_run(l, 0);
    *l_p = NULL;
    link_disconnect(l);
    free(l->host);
    free(l->user);
    buf_free(&l->password);
    free(l->announce_ip);
    tls_context_put(&l->tls_context);
    free(l);
}

/* --- figures --- */

bool repl_link_local(const struct repl_link *l, char *host, size_t size) {
    return repl_conn_local(&l->conn, host, size);
}

enum repl_link_state repl_link_state(const struct repl_link *l) {
    switch (l->step) {
    case STEP_NONE: return repl_conn_open(&l->conn) ? REPL_LINK_CONNECTING : REPL_LINK_WAITING;
    case STEP_HEAD:
    case STEP_RECORDS:
    case STEP_END_MARK: return REPL_LINK_SNAPSHOT;
    case STEP_STREAM: return REPL_LINK_STREAMING;
    default: return REPL_LINK_HANDSHAKE;
    }
}

bool repl_link_within(const struct repl_link *l) {
    return l->applied > 0;
}

void repl_link_get_figures(const struct repl_link *l, struct repl_link_figures *f) {
    *f = (struct repl_link_figures){.last_io_ms = l->conn.last_io_ms,
                                    .down_since_ms = l->down_since_ms,
                                    .snapshot_bytes = l->snapshot_bytes};
}
