/* memcpy of the same blocks, and the table (or JSON) of the data subcommand. */
#include <stdio.h>
#include <stdlib.h>

#include "benchmark/data.h"

const char *const data_op_names[] = {"get", "put", "mix"};

static struct buf rows; /* JSON */

double data_memcpy_row(const struct data_run *run, uint64_t region_bytes) {
    uint64_t blocks = max_u64(region_bytes / run->block_size, 1), bytes = blocks * run->block_size;
    char *from, *to;
    if (posix_memalign((void **)&from, 4096, bytes) != 0 ||
        posix_memalign((void **)&to, 4096, bytes) != 0)
        die("no memory");
    pattern_fill(1, from, bytes);
    memset(to, 1, bytes);
    struct data_row row = {
        .transport = "memcpy", .op = "copy", .block_size = run->block_size, .batch = 1};
    hist_init(&row.hist);
    uint64_t budget = (uint64_t)(min_u64((uint64_t)(run->seconds * 1000), 1000) * 1000000),
             start = clock_mono_ns(), at = start;
    for (uint64_t i = 0; at - start < budget || i == 0; i++) {
        memcpy(to + i % blocks * run->block_size, from + i % blocks * run->block_size,
               run->block_size);
        __asm__ volatile("" : : "r"(to) : "memory");
        uint64_t now = clock_mono_ns();
        hist_add(&row.hist, (now - at) / 1000);
        at = now;
        row.bytes += run->block_size;
    }
    row.gb_per_s = (double)row.bytes / (double)(at - start);
    row.memcpy_gb_per_s = row.gb_per_s;
    data_print_row(run->b, &row);
    free(from);
    free(to);
    return row.gb_per_s;
}

void data_print_head(const struct bench *b) {
    if (b->json) return;
    printf("%-9s %-4s %6s %5s %9s %9s %9s %9s %9s %9s %9s %9s\n", "transport", "op", "block",
           "batch", "GB/s", "of memcpy", "avg us", "p50", "p90", "p95", "p99", "p999");
}

void data_print_row(const struct bench *b, const struct data_row *row) {
    struct latency l = latency_of(&row->hist);
    double ratio = row->memcpy_gb_per_s > 0 ? row->gb_per_s / row->memcpy_gb_per_s : 0;
    char size[24];
    if (!b->json) {
        printf("%-9s %-4s %6s %5llu %9.3f %9.2f %9.0f %9.0f %9.0f %9.0f %9.0f %9.0f\n",
               row->transport, row->op, size_text(row->block_size, size),
               (unsigned long long)row->batch, row->gb_per_s, ratio, l.avg, l.p50, l.p90, l.p95,
               l.p99, l.p999);
        if (row->failed + row->mismatched > 0) {
            printf("  %llu calls failed, %llu blocks had wrong bytes\n",
                   (unsigned long long)row->failed, (unsigned long long)row->mismatched);
        }
        fflush(stdout);
        return;
    }
    buf_printf(&rows,
               "%s{\"transport\":\"%s\",\"op\":\"%s\",\"block_size\":%llu,\"batch\":%llu,\"gb_per_"
               "s\":%.4f,"
               "\"memcpy_gb_per_s\":%.4f,\"bytes\":%llu,\"calls\":%llu,\"failed\":%llu,"
               "\"mismatched_blocks\":%llu",
               rows.len > 0 ? "," : "", row->transport, row->op,
               (unsigned long long)row->block_size, (unsigned long long)row->batch, row->gb_per_s,
               row->memcpy_gb_per_s, (unsigned long long)row->bytes,
               (unsigned long long)row->hist.count, (unsigned long long)row->failed,
               (unsigned long long)row->mismatched);
    json_latency(&rows, "", &l);
    buf_append_char(&rows, '}');
}

void data_print_tail(const struct bench *b, const struct data_run *run) {
    if (!b->json) return;
    printf("{\"threads\":%llu,\"seconds\":%.3f,\"verify\":%s,\"check\":%s,\"rows\":[%.*s]}\n",
           (unsigned long long)run->threads, run->seconds, run->verify ? "true" : "false",
           run->check ? "true" : "false", (int)rows.len, rows.data);
    buf_free(&rows);
}
