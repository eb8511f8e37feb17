/* Counters, rates, memory. */
#include "front/stats.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "base/hist.h"
#include "cluster/cluster.h"
#include "front/client.h"
#include "base/heap.h"
#include "front/reply.h"
#include "front/table.h"
#include "store/figures.h"

#define SAMPLE_MS 100

struct stats stats;
#define ROW(...) FIGURE_ROW(struct stats, __VA_ARGS__)
const struct figure stats_figures[] = {STATS_FIGURES(ROW){.name = NULL}};

static void rate_sample(struct stats_rate *r, uint64_t count) {
    uint64_t ms = turn.mono_ms - r->last_ms;
    if (ms < SAMPLE_MS) return;
    uint64_t grown = count >= r->last_count ? count - r->last_count : 0;
    r->sample[r->next++ % STATS_SAMPLES] = grown * 1000 / ms;
    r->last_count = count;
    r->last_ms = turn.mono_ms;
}

void stats_sample(void) {
    rate_sample(&stats.ops, stats.total_commands_processed);
    rate_sample(&stats.in, stats.total_net_input_bytes);
    rate_sample(&stats.out, stats.total_net_output_bytes);
    uint64_t used = stats_used_memory();
    if (used > stats.peak_memory) stats.peak_memory = used;
}

uint64_t stats_rate(const struct stats_rate *r) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < STATS_SAMPLES; i++) sum += r->sample[i];
    return sum / STATS_SAMPLES;
}

void stats_reset(void) {
    uint64_t start = stats.start_mono_ms;
    memset(&stats, 0, sizeof(stats));
    stats.start_mono_ms = start;
    stats.peak_memory = stats_used_memory();
    table_stat_reset();
    reply_errorstats_reset();
    store_stats_reset(books);
    cluster_figures_reset();
}

/* Records and blocks lie in memory that the books map themselves, past the allocator. */
static uint64_t mapped_memory(void) {
    return books != NULL ? store_mapped_memory(books) : 0;
}

static uint64_t heap_memory(void) {
    struct heap_figures f;
    heap_get_figures(&f);
    return f.allocated;
}

uint64_t stats_used_memory(void) {
    return heap_memory() + mapped_memory() + client_big_mapped();
}
