/* What the files of tarn-benchmark share. */
#ifndef TARN_BENCHMARK_BENCH_H
#define TARN_BENCHMARK_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "base/assert.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/hist.h"
#include "base/progress.h"
#include "tarn.h"

struct bench {
    const char *host, *user, *password; /* the last two may be NULL */
    uint16_t port;
    bool json;
    /* TLS; the strings may be NULL */
    bool tls, insecure;
    const char *ca_file, *ca_dir, *cert, *key, *sni, *verify_name;
    struct tls_context *context; /* NULL: plain */
};
#define BENCH_INIT                                                                                 \
    { .host = "127.0.0.1", .port = 6479 }

/* Says why on stderr and ends the program with 1. */
_Noreturn void die(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* --- options.c --- */

enum option_kind {
    OPT_FLAG,
    OPT_STRING,
    OPT_U64,
    OPT_BYTES,
    OPT_DOUBLE,
    OPT_U64_LIST,
    OPT_BYTES_LIST
};
#define LIST_MAX 32
struct number_list {
    uint64_t v[LIST_MAX];
    size_t n;
};
struct option_spec {
    const char *name; /* "--batch" */
    enum option_kind kind;
    void *value; /* bool, const char *, uint64_t, double, struct number_list */
    uint64_t min, max;
    const char *help;
};
/* Takes specs (ended by a NULL name) and the global options; an unknown one ends the program.
 * Returns the number of plain arguments, which are moved to the front of argv. stop_at_plain: the
 * first plain argument ends the parsing (and counts 1). */
size_t options_parse(struct bench *b, const struct option_spec *specs, int argc, char **argv,
                     bool stop_at_plain, int *used_p);
/* "4k" and "4kb" are both 4096 here, as in other block benchmarks. 0: no size. */
int parse_block_size(const char *s, size_t len, uint64_t *bytes_p);
/* "4k", "1m", "1536". */
const char *size_text(uint64_t bytes, char out[24]);

/* --- pipe.c: connections, plain or over TLS --- */

struct pipe {
    int fd;
    struct tls_stream *tls; /* NULL: plain */
};
bool bench_verifies_name(const struct bench *b);
/* Makes b->context if the options say so, or ends the program. */
void bench_secure(struct bench *b);
void pipe_open(struct pipe *p, const struct bench *b);
void pipe_close(struct pipe *p);
void pipe_send(struct pipe *p, const void *data, size_t len);
/* Bytes, 0: the server has closed the connection, -1 (not when waiting): none now. */
ssize_t pipe_receive(struct pipe *p, void *to, size_t len, bool wait);

/* --- wire.c: a blocking RESP connection, cheap on this side --- */

struct wire {
    struct pipe pipe;
    struct buf out;
    char *in;
    size_t start, end, cap; /* unread bytes: in[start .. end) */
    uint64_t errors;
    char error[200]; /* the first one */
};
/* AUTH, if there is a user or a password; then true: an answer comes. */
bool auth_request(const struct bench *b, struct buf *out);
/* Connects and authenticates, or ends the program. */
struct wire *wire_open(const struct bench *b);
void wire_close(struct wire **wire_p);
void wire_flush(struct wire *w);
void wire_send(struct wire *w, const void *data, size_t len); /* at once; flush before */
/* A line without its CRLF; valid until the next read. */
const char *wire_line(struct wire *w, size_t *len_p);
/* Skips n whole replies; error replies are counted. */
void wire_skip(struct wire *w, size_t n);
/* Skips what belongs to the reply whose first line was line (an element of the array, say). */
void wire_skip_rest(struct wire *w, const char *line);
/* The bytes of a bulk whose header was read, and its CRLF. */
void wire_bulk(struct wire *w, void *to, size_t len);
int64_t wire_int(struct wire *w, const char *line, size_t len); /* of ":5", "*5", "$5" */
void wire_note_error(struct wire *w, const char *line, size_t len);

/* --- report.c --- */

struct latency {
    double avg, p50, p90, p95, p99, p999, max;
};
struct latency latency_of(const struct hist *h);
/* ,"PREFIXp50_us":... */
void json_latency(struct buf *out, const char *prefix, const struct latency *l);
/* --- pattern.c: bytes that follow from a number --- */

static inline uint64_t mix64(uint64_t x) { /* splitmix64's finalizer (Steele, Lea, Flood 2014) */
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}
void pattern_fill(uint64_t seed, void *data, size_t len);
bool pattern_check(uint64_t seed, const void *data, size_t len);

/* A client of one lane, or the end of the program. */
tarn_client *client_open(const struct bench *b, const char *transport, bool verify);
/* A number from INFO; -1: it is not there. */
double info_number(tarn_client *c, const char *field);

/* --- the subcommands: argv begins behind the subcommand's name --- */

int meta_main(struct bench *b, int argc, char **argv);
int data_main(struct bench *b, int argc, char **argv);
int nodes_main(struct bench *b, int argc, char **argv);
int replay_main(struct bench *b, int argc, char **argv);
int transfer_main(struct bench *b, int argc, char **argv);

#endif
