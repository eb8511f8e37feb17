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
    hist_init(&row.sum.hist);
    uint64_t budget = (uint64_t)(min_u64((uint64_t)(run->seconds * 1000), 1000) * 1000000),
             start = clock_mono_ns(), at = start;
    for (uint64_t i = 0; at - start < budget || i == 0; i++) {
        memcpy(to + i % blocks * run->block_size, from + i % blocks * run->block_size,
               run->block_size);
        __asm__ volatile("" : : "r"(to) : "memory");
        uint64_t now = clock_mono_ns();
        hist_add(&row.sum.hist, (now - at) / 1000);
        at = now;
        row.sum.bytes += run->block_size;
    }
    row.gb_per_s = (double)row.sum.bytes / (double)(at - start);
    row.memcpy_gb_per_s = row.gb_per_s;
    data_print_row(run->b, &row);
    free(from);
    free(to);
    return row.gb_per_s;
}

void data_print_head(const struct bench *b) {
    if (b->json) return;
    printf("%-9s %-4s %6s %5s %9s %9s", "transport", "op", "block", "batch", "GB/s", "of memcpy");
    print_latencies(NULL, 9);
}

void data_print_row(const struct bench *b, const struct data_row *row) {
    const struct bench_thread *sum = &row->sum;
    double ratio = row->memcpy_gb_per_s > 0 ? row->gb_per_s / row->memcpy_gb_per_s : 0;
    char size[24];
    if (!b->json) {
        printf("%-9s %-4s %6s %5" PRIu64 " %9.3f %9.2f", row->transport, row->op,
               size_text(row->block_size, size), row->batch, row->gb_per_s, ratio);
        print_latencies(&sum->hist, 9);
        print_failures("calls", sum);
        fflush(stdout);
        return;
    }
    struct buf out = {0};
    json_add(&out,
             "transport:s op:s block_size:u batch:u gb_per_s:4 memcpy_gb_per_s:4 bytes:u calls:u "
             "failed:u mismatched_blocks:u",
             row->transport, row->op, row->block_size, row->batch, row->gb_per_s,
             row->memcpy_gb_per_s, sum->bytes, sum->hist.count, sum->failed, sum->mismatched);
    json_latency(&out, "", &sum->hist);
    buf_printf(&rows, "%s%.*s}", rows.len > 0 ? "," : "", (int)out.len, out.data);
    buf_free(&out);
}

void data_print_tail(const struct bench *b, const struct data_run *run) {
    if (!b->json) return;
    struct buf out = {0};
    json_add(&out, "threads:u seconds:3 verify:b check:b", run->threads, run->seconds, run->verify,
             run->check);
    buf_printf(&out, ",\"rows\":[%.*s]", (int)rows.len, rows.data);
    json_print(&out);
    buf_free(&rows);
}
