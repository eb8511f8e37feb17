/* Random requests at a running server, well-formed and not, on many connections at once; and a
 * probe that is answered all the time, or this fails.
 *
 *     storm [--seed N] [--seconds S] [--connections C] [--auth USER PASSWORD]
 *           [--probe PASSWORD] [--patience MS] [--tls CERT KEY] PORT
 *
 * What the nth connection sends depends on the seed and on n only, never on what comes back or
 * when. Everything that comes back must be RESP. With --tls the port is one of TLS: some
 * connections do not speak it, or begin and do not go on, of others a byte of ciphertext is another
 * one on its way, or the rest never arrives. It lasts for S seconds, and for longer (not than MS)
 * where by then not even a thousand requests were made. Ends with one line of NAME=NUMBER:
 * connections, requests, sent, received, probes, probe_max_ms; the status is 1 when the probe was
 * not answered, or something was no RESP, with the reason and the seed on standard error. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../buf_splice.h"
#include "../tls_socket.h"
#include "base/assert.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/rng.h"

#define CONNECTIONS_MAX 512u
#define DEPTH_MAX       64u
#define DRAIN_MS        3000u /* for the last replies of a connection */
#define FEW_REQUESTS    1000u
#define FEW_PROBES      5u

static struct {
    uint64_t seed, seconds, connections, patience_ms;
    uint16_t port;
    const char *user, *password, *probe_password;
    struct tls_context *tls; /* NULL: plain text */
} options = {1, 3, 48, 30000, 0, NULL, NULL, NULL, NULL};

static struct {
    uint64_t connections, harmed, requests, sent, received, probes, probe_max_ms;
} sums;

_Noreturn static void fail(const char *what, const char *detail) {
    fprintf(stderr, "storm: %s%s%s (seed %llu)\n", what, detail[0] != '\0' ? ": " : "", detail,
            (unsigned long long)options.seed);
    exit(1);
}

/* --- replies --- */

/* Reads a stream of replies a byte at a time, and keeps nothing of it. */
struct reader {
    enum { TYPE, LINE, LINE_LF, BODY, BODY_CR, BODY_LF } at;
    char type;
    char line[64]; /* its beginning */
    size_t line_len, body_left;
    uint64_t left[DEPTH_MAX]; /* elements of the arrays that it is in */
    size_t depth;
    uint64_t whole; /* replies */
};

static void value_over(struct reader *r) {
    while (r->depth > 0) {
        if (--r->left[r->depth - 1] > 0) {
            r->at = TYPE;
            return;
        }
        r->depth--;
    }
    r->at = TYPE;
    r->whole++;
}

/* false: this is no RESP. */
static bool line_over(struct reader *r) {
    r->line[r->line_len < sizeof(r->line) ? r->line_len : sizeof(r->line) - 1] = '\0';
    char *end;
    long long n = strtoll(r->line, &end, 10);
    bool number = r->line_len > 0 && end == r->line + r->line_len;
    switch (r->type) {
    case '+':
    case '-':
    case ',':
    case '(':
    case '#': break;
    case ':':
        if (!number) return false;
        break;
    case '_':
        if (r->line_len != 0) return false;
        break;
    case '$':
    case '=':
    case '!':
        if (!number || n < -1 || n > (1LL << 32)) return false;
        if (n < 0) break;
        r->body_left = (size_t)n;
        r->at = n > 0 ? BODY : BODY_CR;
        return true;
    default: /* * ~ > % */
        if (!number || n < -1 || n > (1LL << 32) || r->depth == DEPTH_MAX) return false;
        if (n <= 0) break;
        r->left[r->depth++] = (uint64_t)n * (r->type == '%' ? 2 : 1);
        r->at = TYPE;
        return true;
    }
    value_over(r);
    return true;
}

static bool read_replies(struct reader *r, const char *data, size_t len) {
    for (size_t i = 0; i < len; i++) {
        char ch = data[i];
        switch (r->at) {
        case TYPE:
            if (ch == '\0' || strchr("+-:$*%~>_,#(=!", ch) == NULL) return false;
            r->type = ch;
            r->line_len = 0;
            r->at = LINE;
            break;
        case LINE:
            if (ch == '\n') return false;
            if (ch == '\r') {
                r->at = LINE_LF;
                break;
            }
            if (r->line_len < sizeof(r->line)) r->line[r->line_len] = ch;
            r->line_len++;
            break;
        case LINE_LF:
            if (ch != '\n' || !line_over(r)) return false;
            break;
        case BODY: {
            size_t take = r->body_left < len - i ? r->body_left : len - i;
            r->body_left -= take;
            i += take - 1;
            if (r->body_left == 0) r->at = BODY_CR;
            break;
        }
        case BODY_CR:
            if (ch != '\r') return false;
            r->at = BODY_LF;
            break;
        case BODY_LF:
            if (ch != '\n') return false;
            value_over(r);
            break;
        }
    }
    return true;
}

/* --- requests --- */

static const char *const commands[] = {
    "GET",          "SET",        "MGET",         "MSET",       "MSETNX",       "SETNX",
    "SETEX",        "PSETEX",     "GETSET",       "GETDEL",     "GETEX",        "GETRANGE",
    "SUBSTR",       "SETRANGE",   "STRLEN",       "APPEND",     "INCR",         "DECR",
    "INCRBY",       "DECRBY",     "INCRBYFLOAT",  "DEL",        "UNLINK",       "EXISTS",
    "TOUCH",        "TYPE",       "RENAME",       "RENAMENX",   "COPY",         "EXPIRE",
    "PEXPIRE",      "EXPIREAT",   "PEXPIREAT",    "EXPIRETIME", "PEXPIRETIME",  "TTL",
    "PTTL",         "PERSIST",    "SCAN",         "KEYS",       "RANDOMKEY",    "DBSIZE",
    "FLUSHALL",     "FLUSHDB",    "OBJECT",       "MEMORY",     "DUMP",         "RESTORE",
    "PUTSTART",     "MPUTSTART",  "PUTEND",       "MPUTEND",    "PUTREVOKE",    "GETREPLICAS",
    "MGETREPLICAS", "PREFIXLEN",  "RELEASE",      "MRELEASE",   "REMOVE",       "REMOVEMATCH",
    "EVICT",        "PIN",        "UNPIN",        "SEGMENT",    "NODE",         "REPLICA",
    "MULTI",        "EXEC",       "DISCARD",      "WATCH",      "UNWATCH",      "SUBSCRIBE",
    "UNSUBSCRIBE",  "PSUBSCRIBE", "PUNSUBSCRIBE", "SSUBSCRIBE", "SUNSUBSCRIBE", "PUBLISH",
    "SPUBLISH",     "PUBSUB",     "CLIENT",       "COMMAND",    "CONFIG",       "INFO",
    "PING",         "ECHO",       "HELLO",        "AUTH",       "SELECT",       "RESET",
    "QUIT",         "MONITOR",    "SLOWLOG",      "LATENCY",    "ACL",          "WAIT",
    "TIME",         "LASTSAVE",   "ROLE",         "KVEVENTS",   "FUNCTION",     "CLUSTER",
    "LOLWUT",       "SWAPDB",     "MOVE",         "SORT",       "LPUSH",        "HSET",
    "EVAL",         "BITCOUNT",   "LCS",          "MULTI",      "EXEC",         "MULTI",
    "EXEC",         "QUOTA",      "EXISTS",       "MEXISTS",    "KVEVENTS"};
static const char *const words[] = {"EX",
                                    "PX",
                                    "NX",
                                    "XX",
                                    "GT",
                                    "LT",
                                    "GET",
                                    "KEEPTTL",
                                    "PERSIST",
                                    "EXAT",
                                    "PXAT",
                                    "MATCH",
                                    "COUNT",
                                    "TYPE",
                                    "string",
                                    "LEASE",
                                    "WAIT",
                                    "REPLICAS",
                                    "REPLACE",
                                    "PREFER",
                                    "AVOID",
                                    "GROUP",
                                    "BOUNDARY",
                                    "BOUNDARIES",
                                    "TTL",
                                    "PINNED",
                                    "SOFT",
                                    "HARD",
                                    "CRC",
                                    "VERSION",
                                    "local",
                                    "ASYNC",
                                    "SYNC",
                                    "USAGE",
                                    "SAMPLES",
                                    "DOCTOR",
                                    "STATS",
                                    "HELP",
                                    "ENCODING",
                                    "FREQ",
                                    "IDLETIME",
                                    "REFCOUNT",
                                    "LIST",
                                    "INFO",
                                    "ID",
                                    "SETNAME",
                                    "GETNAME",
                                    "SETINFO",
                                    "LIB-NAME",
                                    "REPLY",
                                    "ON",
                                    "OFF",
                                    "SKIP",
                                    "TRACKING",
                                    "CACHING",
                                    "UNBLOCK",
                                    "NO-TOUCH",
                                    "NO-EVICT",
                                    "CHANNELS",
                                    "NUMSUB",
                                    "NUMPAT",
                                    "SHARDCHANNELS",
                                    "SHARDNUMSUB",
                                    "DOCS",
                                    "GETKEYS",
                                    "GETKEYSANDFLAGS",
                                    "LEN",
                                    "RESET",
                                    "HISTORY",
                                    "LATEST",
                                    "GRAPH",
                                    "HISTOGRAM",
                                    "WHOAMI",
                                    "CAT",
                                    "GENPASS",
                                    "USERS",
                                    "READ",
                                    "BLOCK",
                                    "TOKEN",
                                    "everything",
                                    "all",
                                    "3",
                                    "2",
                                    "KEYS",
                                    "JOIN",
                                    "BEAT",
                                    "LEAVE",
                                    "MOUNT",
                                    "UNMOUNT",
                                    "FLUSH",
                                    "*",
                                    "k*",
                                    "k[0-9]?",
                                    "\\",
                                    "["};
static const char *const numbers[] = {"0",
                                      "-1",
                                      "1",
                                      "2",
                                      "10",
                                      "100",
                                      "65536",
                                      "1048576",
                                      "2147483647",
                                      "2147483648",
                                      "4294967295",
                                      "4294967296",
                                      "536870912",
                                      "9223372036854775807",
                                      "-9223372036854775808",
                                      "9223372036854775808",
                                      "18446744073709551615",
                                      "1e3",
                                      "-0",
                                      "007",
                                      "0.5",
                                      "nan",
                                      "inf",
                                      "-inf",
                                      "+1",
                                      " 1",
                                      "0x10",
                                      "99999999999999999999999999"};

#define PICK(r, list) ((list)[rng_below((r), ARRAY_LEN(list))])

static void put_argument(struct buf *b, struct rng *r) {
    char text[64];
    switch (rng_below(r, 10)) {
    case 0:
    case 1:
    case 2:
    case 3: snprintf(text, sizeof(text), "k%u", (unsigned)rng_below(r, 64)); break;
    case 4:
    case 5: snprintf(text, sizeof(text), "%s", PICK(r, numbers)); break;
    case 6:
    case 7: snprintf(text, sizeof(text), "%s", PICK(r, words)); break;
    case 8: { /* a value: small ones mostly, now and then one that goes to the pool, or straight to
                 it */
        uint64_t kind = rng_below(r, 40), len = kind == 0  ? rng_below(r, 300000)
                                                : kind < 6 ? rng_below(r, 20000)
                                                           : rng_below(r, 100);
        buf_printf(b, "$%llu\r\n", (unsigned long long)len);
        buf_reserve(b, len + 2);
        memset(b->data + b->len, (int)rng_below(r, 256), len);
        b->len += len;
        buf_append(b, "\r\n", 2);
        return;
    }
    default: { /* any bytes */
        uint64_t len = rng_below(r, 24);
        for (uint64_t i = 0; i < len; i++) text[i] = (char)rng_next(r);
        buf_printf(b, "$%llu\r\n", (unsigned long long)len);
        buf_append(b, text, len);
        buf_append(b, "\r\n", 2);
        return;
    }
    }
    buf_printf(b, "$%zu\r\n%s\r\n", strlen(text), text);
}

static void put_request(struct buf *b, struct rng *r) {
    uint64_t argc = rng_below(r, rng_below(r, 16) == 0 ? 200 : 6);
    const char *name = PICK(r, commands);
    if (strncmp(name, "FLUSH", 5) == 0 && rng_below(r, 100) != 0)
        name = "SET"; /* or nothing would ever be there */
    sums.requests++;
    switch (rng_below(r, 24)) {
    case 0: /* inline */
        buf_append_str(b, name);
        for (uint64_t i = 0; i < argc; i++)
            buf_printf(b, rng_below(r, 8) ? " %s" : " \"%s\\x00\"",
                       rng_below(r, 2) ? PICK(r, words) : PICK(r, numbers));
        buf_append_str(b, rng_below(r, 2) ? "\r\n" : "\n");
        return;
    case 1: /* what other types of RESP look like */
        buf_printf(b, "%c%s\r\n", "+-:$*%~>_,#(=!|"[rng_below(r, 15)], PICK(r, numbers));
        return;
    case 2: /* a length, and not what it announces */
        buf_printf(b, "*%s\r\n$%s\r\n", PICK(r, numbers), PICK(r, numbers));
        return;
    default: break;
    }
    buf_printf(b, "*%llu\r\n$%zu\r\n%s\r\n", (unsigned long long)argc + 1, strlen(name), name);
    for (uint64_t i = 0; i < argc; i++) put_argument(b, r);
}

static void mutate(struct buf *b, struct rng *r) {
    size_t at = rng_below(r, b->len), run = 1 + rng_below(r, b->len - at < 40 ? b->len - at : 40);
    switch (rng_below(r, 6)) {
    case 0: b->data[at] = (char)(b->data[at] ^ (1 << rng_below(r, 8))); break;
    case 1: b->data[at] = (char)rng_next(r); break;
    case 2: buf_splice(b, at, run, "", 0); break;
    case 3: {
        char *copy = xmemdup(b->data + at, run);
        buf_splice(b, rng_below(r, b->len + 1), 0, copy, run);
        free(copy);
        break;
    }
    case 4: { /* a number becomes another */
        const char *text = PICK(r, numbers);
        size_t digits = 0;
        while (at > 0 && b->data[at - 1] >= '0' && b->data[at - 1] <= '9') at--;
        while (at + digits < b->len && b->data[at + digits] >= '0' && b->data[at + digits] <= '9')
            digits++;
        buf_splice(b, at, digits, text, strlen(text));
        break;
    }
    default: {
        uint64_t bits = rng_next(r);
        buf_splice(b, at, 0, &bits, 1 + rng_below(r, 8));
    }
    }
}

/* --- connections --- */

enum ending { END_CLOSE, END_RESET, END_HALF, END_KINDS };

/* What is wrong with its TLS. In plain text there is nothing of it. */
enum harm { HARM_NO, HARM_FLIP, HARM_CUT, HARM_STALL, HARM_PLAIN, HARM_NOISE, HARM_KINDS };

struct connection {
    struct tls_socket socket; /* fd -1: none */
    enum harm harm;
    struct rng rng;
    struct buf out;
    size_t sent;
    unsigned chunks; /* still to be made */
    bool deaf, half;
    enum ending ending;
    uint64_t half_ms;
    struct reader reader;
};

static int open_socket(void) {
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons(options.port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    if (fd < 0) fail("socket", strerror(errno));
    if (connect(fd, (struct sockaddr *)&to, sizeof(to)) != 0)
        fail("the server cannot be reached", strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (fcntl(fd, F_SETFL, O_NONBLOCK) != 0) fail("fcntl", strerror(errno));
    return fd;
}

/* Where in its ciphertext: in the handshake as often as behind it. */
static void choose_harm(struct connection *c) {
    uint64_t at = rng_below(&c->rng, rng_below(&c->rng, 2) == 0 ? 700 : 100000);
    c->harm = rng_below(&c->rng, 4) != 0 ? HARM_NO : (enum harm)rng_below(&c->rng, HARM_KINDS);
    if (c->harm == HARM_FLIP) c->socket.flip_at = at;
    if (c->harm == HARM_CUT || c->harm == HARM_STALL) c->socket.cut_at = at;
    if (c->harm >= HARM_PLAIN) tls_stream_destroy(&c->socket.tls);
    sums.harmed += c->harm != HARM_NO;
    if (c->harm != HARM_NOISE) return;
    /* It begins as TLS does. */
    buf_append(&c->out, "\x16\x03\x01", 3);
    for (uint64_t n = rng_below(&c->rng, 20000); n > 0; n--)
        buf_append_char(&c->out, (char)rng_next(&c->rng));
}

static void begin(struct connection *c) {
    struct buf out = c->out;
    buf_clear(&out);
    *c = (struct connection){.out = out};
    if (!tls_socket_init(&c->socket, open_socket(), options.tls)) fail("no memory for TLS", "");
    rng_seed(&c->rng, options.seed * UINT64_C(1000000007) + sums.connections++);
    if (options.tls != NULL) choose_harm(c);
    c->chunks = 1 + (unsigned)rng_below(&c->rng, 40);
    c->deaf = rng_below(&c->rng, 12) == 0;
    c->ending = (enum ending)rng_below(&c->rng, END_KINDS);
    if (options.user != NULL && rng_below(&c->rng, 8) != 0) /* others come without */
        buf_printf(&c->out, "AUTH %s %s\r\n", options.user, options.password);
    if (rng_below(&c->rng, 3) == 0) buf_append_str(&c->out, "HELLO 3\r\n");
}

static void end(struct connection *c) {
    struct linger now = {1, 0};
    if (c->ending == END_RESET) setsockopt(c->socket.fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    if (c->ending == END_CLOSE &&
        c->socket.tls != NULL) { /* with a goodbye, if there is room for it */
        tls_close(c->socket.tls);
        (void)tls_socket_flush(&c->socket);
    }
    tls_socket_close(&c->socket);
}

/* What it sends next. false: that was all. */
static bool make_chunk(struct connection *c) {
    if (c->chunks == 0) return false;
    c->chunks--;
    buf_clear(&c->out);
    c->sent = 0;
    for (uint64_t n = 1 + rng_below(&c->rng, 24); n > 0; n--) put_request(&c->out, &c->rng);
    if (rng_below(&c->rng, 4) == 0)
        for (uint64_t n = 1 + rng_below(&c->rng, 4); n > 0 && c->out.len > 0; n--)
            mutate(&c->out, &c->rng);
    return true;
}

/* It has no more to say. */
static void fall_silent(struct connection *c) {
    if (c->harm != HARM_STALL && (c->ending != END_HALF || c->deaf)) {
        end(c);
        return;
    }
    if (c->harm != HARM_STALL) shutdown(c->socket.fd, SHUT_WR);
    c->half = true;
    c->half_ms = clock_mono_ms();
}

static void send_some(struct connection *c) {
    if (c->sent == c->out.len && !make_chunk(c)) {
        fall_silent(c);
        return;
    }
    size_t most = rng_below(&c->rng, 3) == 0 ? 1 + rng_below(&c->rng, 2000) : c->out.len;
    size_t left = c->out.len - c->sent;
    ssize_t n = tls_socket_send(&c->socket, c->out.data + c->sent, left < most ? left : most);
    if (n < 0 && errno == EPIPE && c->socket.sent >= c->socket.cut_at) {
        fall_silent(c);
        return;
    }
    if (n < 0 && errno != EAGAIN) {
        end(c); /* it was closed: so be it */
        return;
    }
    if (n > 0) c->sent += (size_t)n, sums.sent += (uint64_t)n;
}

static void receive_some(struct connection *c) {
    static char bytes[256 * 1024];
    ssize_t n = tls_socket_recv(&c->socket, bytes, sizeof(bytes));
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
        end(c);
        return;
    }
    sums.received += (uint64_t)n;
    if (c->harm == HARM_NOISE) return; /* it gets an alert of TLS */
    if (!read_replies(&c->reader, bytes, (size_t)n)) fail("the server sent what is no RESP", "");
}

/* --- the probe --- */

static struct {
    struct tls_socket socket;
    uint64_t asked_ms, number, due_ms;
    char answer[64];
    size_t answer_len, got;
} probe;

static void probe_say(const char *text) {
    if (tls_socket_send(&probe.socket, text, strlen(text)) != (ssize_t)strlen(text))
        fail("the probe cannot send", strerror(errno));
}

/* How many bytes of its answer came; 0: none yet. */
static size_t probe_hear(const char *want, size_t want_len) {
    static char bytes[2 * TLS_IN_MAX];
    ssize_t n = tls_socket_recv(&probe.socket, bytes, sizeof(bytes));
    if (n < 0 && errno == EAGAIN) return 0;
    if (n <= 0) fail("the probe's connection ended", n < 0 ? strerror(errno) : "");
    if ((size_t)n > want_len || memcmp(bytes, want, (size_t)n) != 0)
        fail("the probe got another answer than its own", "");
    return (size_t)n;
}

static void probe_turn(bool readable, uint64_t now_ms) {
    char text[64];
    if (probe.asked_ms == 0 && now_ms >= probe.due_ms) {
        snprintf(text, sizeof(text), "ECHO probe%llu\r\n", (unsigned long long)++probe.number);
        probe_say(text);
        size_t len = strlen(text) - 7;
        probe.answer_len = (size_t)snprintf(probe.answer, sizeof(probe.answer), "$%zu\r\n%.*s\r\n",
                                            len, (int)len, text + 5);
        probe.got = 0;
        probe.asked_ms = now_ms;
        return;
    }
    if (probe.asked_ms == 0) return;
    if (readable) probe.got += probe_hear(probe.answer + probe.got, probe.answer_len - probe.got);
    uint64_t took = now_ms - probe.asked_ms;
    if (took > options.patience_ms) fail("the probe is not answered", "");
    if (probe.got < probe.answer_len) return;
    if (took > sums.probe_max_ms) sums.probe_max_ms = took;
    sums.probes++;
    probe.asked_ms = 0;
    probe.due_ms = now_ms + 10;
}

static void probe_wait(short events) {
    struct pollfd p = {.fd = probe.socket.fd, .events = events};
    if (poll(&p, 1, (int)options.patience_ms) != 1) fail("the probe is not answered", "");
}

static void probe_begin(void) {
    if (!tls_socket_init(&probe.socket, open_socket(), options.tls)) fail("no memory for TLS", "");
    if (options.tls != NULL) tls_handshake(probe.socket.tls);
    while (tls_socket_shaking(&probe.socket)) {
        if (tls_socket_flush(&probe.socket) != 0) fail("the probe cannot send", strerror(errno));
        probe_wait(POLLIN);
        (void)probe_hear("", 0);
    }
    if (options.probe_password == NULL) return;
    static const char ok[] = "+OK\r\n";
    char text[300];
    snprintf(text, sizeof(text), "AUTH %s\r\n", options.probe_password);
    probe_say(text);
    for (size_t got = 0; got < 5;) {
        probe_wait(POLLIN);
        got += probe_hear(&ok[got], 5 - got);
    }
}

/* --- the run --- */

static struct connection connections[CONNECTIONS_MAX];

/* Who does not listen needs the answers of a handshake all the same; and who shakes hands has
 * nothing to say before the answer. */
static short events_of(const struct connection *c) {
    bool shaking = tls_socket_shaking(&c->socket);
    bool asked = shaking && c->socket.sent > 0 && !tls_socket_unsent(&c->socket);
    return (short)((c->deaf && !shaking ? 0 : POLLIN) | (c->half || asked ? 0 : POLLOUT));
}

static void turn(uint64_t now_ms, bool more) {
    struct pollfd set[CONNECTIONS_MAX + 1];
    size_t n = options.connections;
    for (size_t i = 0; i < n; i++) {
        struct connection *c = &connections[i];
        if (c->socket.fd < 0 && more) begin(c);
        set[i] = (struct pollfd){.fd = c->socket.fd, .events = c->socket.fd < 0 ? 0 : events_of(c)};
    }
    set[n] = (struct pollfd){.fd = probe.socket.fd, .events = POLLIN};
    if (poll(set, n + 1, 10) < 0 && errno != EINTR) fail("poll", strerror(errno));
    probe_turn(set[n].revents != 0, clock_mono_ms());
    for (size_t i = 0; i < n; i++) {
        struct connection *c = &connections[i];
        short seen = set[i].revents, gone = seen & (POLLERR | POLLHUP);
        if (c->socket.fd < 0) continue;
        bool deaf = c->deaf && !tls_socket_shaking(&c->socket);
        if (deaf && gone)
            end(c);
        else if (!deaf && (seen & POLLIN || gone))
            receive_some(c);
        if (c->socket.fd >= 0 && seen & POLLOUT && !c->half) send_some(c);
        if (c->socket.fd >= 0 && c->half && now_ms - c->half_ms > DRAIN_MS) end(c);
        if (c->socket.fd >= 0 && deaf && c->sent < c->out.len && !(seen & POLLOUT) && !more) end(c);
    }
}

static bool number_option(int argc, char **argv, int *i, const char *name, uint64_t *value_p) {
    if (strcmp(argv[*i], name) != 0) return false;
    if (++*i == argc || !span_to_u64(span_str(argv[*i]), value_p)) fail("wants a number", name);
    return true;
}

static void read_options(int argc, char **argv) {
    uint64_t port = 0;
    for (int i = 1; i < argc; i++) {
        if (number_option(argc, argv, &i, "--seed", &options.seed) ||
            number_option(argc, argv, &i, "--seconds", &options.seconds) ||
            number_option(argc, argv, &i, "--connections", &options.connections) ||
            number_option(argc, argv, &i, "--patience", &options.patience_ms))
            continue;
        if (strcmp(argv[i], "--auth") == 0 && i + 2 < argc) {
            options.user = argv[++i];
            options.password = argv[++i];
        } else if (strcmp(argv[i], "--tls") == 0 && i + 2 < argc) {
            struct tls_options tls = {
                .cert_file = argv[i + 1], .key_file = argv[i + 2], .no_verify = true};
            char why[TLS_WHY_MAX];
            options.tls = tls_context_create(TLS_CLIENT, &tls, why);
            if (options.tls == NULL) fail("--tls", why);
            i += 2;
        } else if (strcmp(argv[i], "--probe") == 0 && i + 1 < argc) {
            options.probe_password = argv[++i];
        } else if (!span_to_u64(span_str(argv[i]), &port)) {
            fail("what is this?", argv[i]);
        }
    }
    if (port == 0 || port > 65535 || options.connections == 0 ||
        options.connections > CONNECTIONS_MAX)
        fail("usage: storm [OPTION]... PORT, with 1 to 512 connections", "");
    options.port = (uint16_t)port;
}

/* Not even what a busy machine gets done. */
static bool few(void) {
    return sums.requests <= FEW_REQUESTS || sums.probes <= FEW_PROBES;
}

int main(int argc, char **argv) {
    read_options(argc, argv);
    for (size_t i = 0; i < CONNECTIONS_MAX; i++) connections[i].socket.fd = -1;
    probe_begin();
    uint64_t end_ms = clock_mono_ms() + options.seconds * 1000, now_ms;
    while ((now_ms = clock_mono_ms()) < end_ms || (few() && now_ms < end_ms + options.patience_ms))
        turn(now_ms, true);
    for (size_t i = 0; i < options.connections; i++) { /* cut where they are */
        if (connections[i].socket.fd >= 0) end(&connections[i]);
        buf_free(&connections[i].out);
    }
    while (probe.asked_ms != 0) turn(clock_mono_ms(), false); /* its last answer */
    tls_socket_close(&probe.socket);
    tls_context_put(&options.tls);
    printf("connections=%llu harmed=%llu requests=%llu sent=%llu received=%llu probes=%llu "
           "probe_max_ms=%llu\n",
           (unsigned long long)sums.connections, (unsigned long long)sums.harmed,
           (unsigned long long)sums.requests, (unsigned long long)sums.sent,
           (unsigned long long)sums.received, (unsigned long long)sums.probes,
           (unsigned long long)sums.probe_max_ms);
    return 0;
}
