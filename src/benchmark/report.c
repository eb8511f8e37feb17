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

/* --- JSON --- */

static void json_name(struct buf *out, const char *prefix, const char *name, size_t len) {
    buf_printf(out, "%s\"%s%.*s\":", out->len == 0 ? "{" : ",", prefix, (int)len, name);
}

void json_add(struct buf *out, const char *spec, ...) {
    va_list ap;
    va_start(ap, spec);
    for (const char *at = spec; *at != '\0';) {
        size_t len = strcspn(at, ":");
        char kind = at[len + 1];
        json_name(out, "", at, len);
        if (kind == 's')
            buf_printf(out, "\"%s\"", va_arg(ap, const char *));
        else if (kind == 'u')
            buf_printf(out, "%" PRIu64, va_arg(ap, uint64_t));
        else if (kind == 'b')
            buf_append_str(out, va_arg(ap, int) ? "true" : "false");
        else
            buf_printf(out, "%.*f", kind - '0', va_arg(ap, double));
        at += len + 2;
        at += strspn(at, " ");
    }
    va_end(ap);
}

static const struct {
    const char *name, *json;
    double rank;
} percentiles[] = {{"p50", "p50_us", 0.50},
                   {"p90", "p90_us", 0.90},
                   {"p95", "p95_us", 0.95},
                   {"p99", "p99_us", 0.99},
                   {"p999", "p999_us", 0.999}};

void json_latency(struct buf *out, const char *prefix, const struct hist *h) {
    json_name(out, prefix, "avg_us", 6);
    buf_printf(out, "%.1f", hist_mean(h));
    for (size_t i = 0; i < ARRAY_LEN(percentiles); i++) {
        json_name(out, prefix, percentiles[i].json, strlen(percentiles[i].json));
        buf_printf(out, "%" PRIu64, hist_percentile(h, percentiles[i].rank));
    }
    json_name(out, prefix, "max_us", 6);
    buf_printf(out, "%" PRIu64, h->max);
}

void json_print(struct buf *out) {
    printf("%.*s}\n", (int)out->len, out->data);
    buf_free(out);
}

/* --- text --- */

void print_latencies(const struct hist *h, int width) {
    if (h == NULL)
        printf(" %*s", width, "avg us");
    else
        printf(" %*.0f", width, hist_mean(h));
    for (size_t i = 0; i < ARRAY_LEN(percentiles); i++) {
        if (h == NULL)
            printf(" %*s", width, percentiles[i].name);
        else
            printf(" %*" PRIu64, width, hist_percentile(h, percentiles[i].rank));
    }
    putchar('\n');
}

void print_latency(const struct hist *h) {
    printf("avg %.0f us", hist_mean(h));
    for (size_t i = 0; i < ARRAY_LEN(percentiles); i++)
        printf(", %s %" PRIu64, percentiles[i].name, hist_percentile(h, percentiles[i].rank));
    printf(", max %" PRIu64 "\n", h->max);
}

void print_failures(const char *what, const struct bench_thread *sum) {
    if (sum->failed + sum->mismatched > 0)
        printf("  %" PRIu64 " %s failed, %" PRIu64 " blocks had wrong bytes\n", sum->failed, what,
               sum->mismatched);
}

/* --- patterns --- */

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

double info_field(const char *info, const char *field) {
    char needle[80];
    int n = snprintf(needle, sizeof(needle), "\n%s:", field);
    const char *at = strstr(info, needle);
    return at == NULL ? -1 : strtod(at + n, NULL);
}

double info_number(tarn_client *c, const char *field) {
    const char *argv[] = {"INFO", "everything"};
    char *text;
    if (tarn_command(c, 2, argv, NULL, &text, NULL) != TARN_OK) return -1;
    double v = info_field(text, field);
    tarn_free(text);
    return v;
}
