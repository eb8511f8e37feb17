/* An engine's load, out of its /metrics: Prometheus' text format, of which only the names below are
 * looked at. Pure, and piece by piece as it comes; an answer of any length takes no more memory
 * than a line.
 *
 *     vllm     num_requests_running  requests that run, prefills under way included
 *              num_requests_waiting  ... that have not begun
 *              kv_cache_usage_perc   0 to 1, of the blocks that running requests hold;
 *                                    gpu_cache_usage_perc up to 0.9, and beside it for a while
 *              cache_config_info     labels: num_gpu_blocks and block_size, and in versions of 2026
 *                                    kv_cache_size_tokens; "None" where it is not known
 *              label engine          the data-parallel rank; older versions had none, and
 *                                    cache_config_info need not have it
 *     sglang   num_running_reqs, num_queue_reqs
 *              num_used_tokens, later kv_used_tokens; token_usage, 0 to 1
 *              max_total_num_tokens  of the KV cache
 *              label dp_rank         where there are several; beside them may stand a sum without
 *              labels tp_rank, pp_rank, priority
 *                                    the same for each rank of a tensor or pipeline; parts of what
 *                                    stands with priority="", too: so the largest counts
 *
 * as in vllm/v1/metrics/loggers.py, vllm/engine/metrics.py (before 0.11) and
 * python/sglang/srt/{metrics/collector,observability/metrics_collector}.py of 2024 to 2026;
 * vllm-ascend is vLLM here. Behind vllm and sglang stands a colon, or an underscore where something
 * between (OpenTelemetry, Ray) has renamed them. */
#ifndef TARN_SCRAPE_READ_H
#define TARN_SCRAPE_READ_H

#include <stdbool.h>
#include "base/buf.h"

#define SCRAPE_RANKS_MAX 64u
#define SCRAPE_LINE_MAX  4096u /* bytes; longer ones are comments, or are passed over */
#define SCRAPE_WHY       160u  /* bytes of a reason */
#define SCRAPE_UNKNOWN   UINT64_MAX
#define SCRAPE_MOST      (UINT64_C(1) << 40) /* of any number */
#define SCRAPE_NO_RANK   UINT32_MAX

/* Of one data-parallel rank. */
struct scrape_rank {
    uint32_t rank;             /* SCRAPE_NO_RANK: nobody says */
    uint64_t waiting, running; /* requests, or SCRAPE_UNKNOWN */
    uint64_t used_tokens;      /* of KV, or SCRAPE_UNKNOWN */
    uint64_t capacity_tokens;  /* likewise */
};
struct scrape_load {
    uint32_t count; /* above 0 */
    struct scrape_rank rank[SCRAPE_RANKS_MAX];
};

/* What it says of that rank. alone: nobody asks there for another, so that an answer which is of
 * one rank is of this one, whatever it calls it. NULL: nothing. */
const struct scrape_rank *scrape_load_find(const struct scrape_load *load, uint32_t rank,
                                           bool alone);

/* What was read of one rank so far. */
struct scrape_seen {
    uint32_t rank;
    double waiting, running, usage, used_tokens, kv_used_tokens, capacity_tokens; /* below 0: not */
};
struct scrape_reader {
    struct scrape_seen all; /* of no rank */
    struct scrape_seen rank[SCRAPE_RANKS_MAX];
    uint32_t count;
    uint64_t refused;     /* figures that were looked for, and were none */
    char why[SCRAPE_WHY]; /* the first of them; "": none */
    size_t len;           /* of the line */
    bool passing;         /* the line is too long */
    char line[SCRAPE_LINE_MAX];
};

void scrape_reader_begin(struct scrape_reader *r);
void scrape_reader_take(struct scrape_reader *r, struct span piece);
/* The answer is whole. false: it has no load in it; why: SCRAPE_WHY bytes. */
bool scrape_reader_end(struct scrape_reader *r, struct scrape_load *load, char *why);

#endif
