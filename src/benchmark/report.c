/* Latencies, patterns, and clients for the subcommands. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "benchmark/bench.h"

_Noreturn void die(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fputs("tarn-benchmark: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    exit(1);
}

struct latency latency_of(const struct hist *h) {
    return (struct latency){
        .avg = hist_mean(h),
        .p50 = (double)hist_percentile(h, 0.50),
        .p90 = (double)hist_percentile(h, 0.90),
        .p95 = (double)hist_percentile(h, 0.95),
        .p99 = (double)hist_percentile(h, 0.99),
        .p999 = (double)hist_percentile(h, 0.999),
        .max = (double)h->max,
    };
}

void json_latency(struct buf *out, const char *prefix, const struct latency *l) {
    buf_printf(out,
               ",\"%savg_us\":%.1f,\"%sp50_us\":%.0f,\"%sp90_us\":%.0f,\"%sp95_us\":%.0f,\"%sp99_"
               "us\":%.0f,"
               "\"%sp999_us\":%.0f,\"%smax_us\":%.0f",
               prefix, l->avg, prefix, l->p50, prefix, l->p90, prefix, l->p95, prefix, l->p99,
               prefix, l->p999, prefix, l->max);
}

void pattern_fill(uint64_t seed, void *data, size_t len) {
    char *at = data;
    uint64_t base = mix64(seed), i = 0;
    for (; len >= 8; len -= 8, at += 8) {
        uint64_t word = mix64(base + i++);
        memcpy(at, &word, 8);
    }
    uint64_t word = mix64(base + i);
    memcpy(at, &word, len);
}

bool pattern_check(uint64_t seed, const void *data, size_t len) {
    const char *at = data;
    uint64_t base = mix64(seed), i = 0, wrong = 0;
    for (; len >= 8; len -= 8, at += 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        wrong |= word ^ mix64(base + i++);
    }
    uint64_t word = mix64(base + i);
    return wrong == 0 && memcmp(at, &word, len) == 0;
}

tarn_client *client_open(const struct bench *b, const char *transport, bool verify) {
    tarn_options o;
    tarn_options_init(&o);
    o.transport = transport;
    o.verify = verify;
    o.max_lanes = 1;
    o.user = b->user;
    o.password = b->password;
    o.name = "tarn-benchmark";
    o.tls_ca_file = b->ca_file;
    o.tls_ca_dir = b->ca_dir;
    o.tls_cert_file = b->cert;
    o.tls_key_file = b->key;
    o.tls_server_name = b->sni;
    o.tls_verify = !b->insecure;
    o.tls_verify_name = bench_verifies_name(b);
    char url[512];
    snprintf(url, sizeof(url), strchr(b->host, ':') != NULL ? "%s://[%s]:%u" : "%s://%s:%u",
             b->tls ? "tarns" : "tarn", b->host, b->port);
    tarn_client *c;
    if (tarn_connect(url, &o, &c) != TARN_OK) die("%s", tarn_last_error());
    return c;
}

double info_number(tarn_client *c, const char *field) {
    const char *argv[] = {"INFO", "everything"};
    char *text, needle[80];
    size_t len;
    if (tarn_command(c, 2, argv, NULL, &text, &len) != TARN_OK) return -1;
    int n = snprintf(needle, sizeof(needle), "\n%s:", field);
    const char *at = strstr(text, needle);
    double v = at == NULL ? -1 : strtod(at + n, NULL);
    tarn_free(text);
    return v;
}
