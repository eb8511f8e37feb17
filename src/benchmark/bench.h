/* What the files of tarn-benchmark share. */
#ifndef TARN_BENCHMARK_BENCH_H
#define TARN_BENCHMARK_BENCH_H

#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "base/assert.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/hist.h"
#include "base/options.h"
#include "base/progress.h"
#include "base/rng.h"
#include "client/ctl.h"
#include "client/secure.h"
#include "tarn.h"

struct bench {
    const char *host, *user, *password; /* the last two may be NULL */
    uint16_t port;
    bool json;
    /* TLS; the strings may be NULL */
    bool tls, insecure;
    const char *ca_file, *ca_dir, *cert, *key, *sni, *verify_name;
    struct secure secure; /* of these */
};
#define BENCH_INIT                                                                                 \
    { .host = "127.0.0.1", .port = 6479 }

/* Says why on stderr and ends the program with 1. */
_Noreturn void die(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* --- options.c --- */

/* Takes specs (ended by a NULL name) and the global options; an unknown one ends the program.
 * Returns the number of plain arguments, which are moved to the front of argv. stop_at_plain: the
 * first plain argument ends the parsing (and counts 1). */
size_t options_parse(struct bench *b, const struct option_spec *specs, int argc, char **argv,
                     bool stop_at_plain, int *used_p);
/* "4k", "1m", "1536". */
const char *size_text(uint64_t bytes, char out[24]);

/* --- connect.c: to the server; any failure ends the program --- */

/* Makes b->secure. */
void bench_secure(struct bench *b);
/* A connection that is logged in. */
struct server_numbers bench_connect(const struct bench *b, struct ctl *c, struct arena *arena);
/* A client of one lane. */
tarn_client *client_open(const struct bench *b, const char *transport, bool verify);

/* --- wire.c: a blocking RESP connection, cheap on this side --- */

struct wire {
    int fd;
    struct tcp_secure secure;
    struct ring ring; /* memory NULL: none */
    struct buf out;
    char *in;
    size_t start, end, cap; /* unread bytes: in[start .. end) */
    struct server_numbers numbers;
    uint64_t errors;
    char error[200]; /* the first one */
};
/* Connects and authenticates, or ends the program. */
struct wire *wire_open(const struct bench *b);
void wire_close(struct wire **wire_p);
void wire_flush(struct wire *w);
/* Are there bytes that were read and that nobody has taken? The socket does not tell of those. */
bool wire_buffered(struct wire *w);
void wire_send(struct wire *w, const void *data, size_t len); /* at once; flush before */
/* Before and after fd is polled together with others: is there something to be read already, or
 * then? Without a ring nobody knows before. */
bool wire_sleep(struct wire *w);
bool wire_woke(struct wire *w, bool called);
/* A line without its CRLF; valid until the next read. */
const char *wire_line(struct wire *w, size_t *len_p);
/* Takes text if that is what comes next. */
bool wire_take(struct wire *w, struct span text);
/* So many bytes, whatever they are; valid until the next read. */
const char *wire_bytes(struct wire *w, size_t len);
/* Skips n whole replies; error replies are counted. */
void wire_skip(struct wire *w, size_t n);
/* Skips what belongs to the reply whose first line was line (an element of the array, say). */
void wire_skip_rest(struct wire *w, const char *line);
/* The bytes of a bulk whose header was read, and its CRLF. */
void wire_bulk(struct wire *w, void *to, size_t len);
int64_t wire_int(struct wire *w, const char *line, size_t len); /* of ":5", "*5", "$5" */
void wire_note_error(struct wire *w, const char *line, size_t len);

/* --- threads.c: those that measure --- */

/* What each of them counts, at the beginning of what its subcommand keeps of it. */
struct bench_thread {
    pthread_t thread;
    struct hist hist; /* of calls, in us */
    uint64_t bytes;   /* moved; atomic */
    uint64_t busy_ns; /* in calls: what making and checking patterns takes is not theirs */
    uint64_t failed, mismatched;
    char error[300]; /* one of them; "": none */
    bool over;       /* atomic: it has ended by itself */
};
struct bench_crew {
    void *of; /* n of size bytes each, struct bench_thread first */
    size_t size;
    uint64_t n;
    bool stop; /* atomic: they shall end */
};
void threads_open(struct bench_crew *t, uint64_t n, size_t size);
static inline struct bench_thread *threads_at(const struct bench_crew *t, uint64_t i) {
    return (struct bench_thread *)(void *)((char *)t->of + i * t->size);
}
static inline bool threads_stop(const struct bench_crew *t) {
    return __atomic_load_n(&t->stop, __ATOMIC_RELAXED);
}
void threads_start(struct bench_crew *t, void *(*work)(void *));
/* For so long, with a bar; then they shall end. */
void threads_wait(struct bench_crew *t, const struct bench *b, double seconds, const char *what);
/* When all have ended: their sum, their errors on stderr. Returns GB/s of the time in calls. */
double threads_join(struct bench_crew *t, struct bench_thread *sum);
void threads_close(struct bench_crew *t);
/* A call that began then is over. */
void thread_called(struct bench_thread *k, uint64_t start_ns);

/* --- report.c --- */

/* Adds members of an object to out, which is begun where it is empty: for each word of spec,
 * "NAME:KIND", an argument: s a string, u a uint64_t, b an int that is true or false, a digit a
 * double with so many decimals. */
void json_add(struct buf *out, const char *spec, ...);
/* PREFIXavg_us and so on. */
void json_latency(struct buf *out, const char *prefix, const struct hist *h);
/* Ends it, prints it on a line, and frees it. */
void json_print(struct buf *out);
/* Columns of that width: the latencies, or their names where h is NULL; then the line ends. */
void print_latencies(const struct hist *h, int width);
/* A line, if something went wrong; what: "calls". */
void print_failures(const char *what, const struct bench_thread *sum);
/* "avg 5 us, p50 4, ..., max 9". */
void print_latency(const struct hist *h);
/* Bytes that follow from a number. */
void pattern_fill(uint64_t seed, void *data, size_t len);
bool pattern_check(uint64_t seed, const void *data, size_t len);

/* A number from INFO; -1: it is not there. */
double info_number(tarn_client *c, const char *field);
double info_field(const char *info, const char *field); /* of its text */

/* --- the subcommands: argv begins behind the subcommand's name --- */

int meta_main(struct bench *b, int argc, char **argv);
int data_main(struct bench *b, int argc, char **argv);
int nodes_main(struct bench *b, int argc, char **argv);
int replay_main(struct bench *b, int argc, char **argv);
int transfer_main(struct bench *b, int argc, char **argv);

#endif
