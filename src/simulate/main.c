/* tarn-simulate: engines, pool and routing on traces, without any of them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/near.h"
#include "simulate/evict.h"
#include "simulate/plan.h"

static const char usage[] =
    "tarn-simulate run     --trace FILE | --generate KIND  --route POLICY[,POLICY...] ...\n"
    "tarn-simulate sweep   the same with several loads, pool sizes and evictions\n"
    "tarn-simulate compare ... colocated and, with --prefill and --decode, apart; tarn beside "
    "each\n"
    "tarn-simulate evict   --trace FILE,... | --generate KIND,...: prefix hits by eviction policy\n"
    "tarn-simulate trace   --generate KIND: writes the trace that is made, as Mooncake's lines\n"
    "\n"
    "Simulates engines, their pool (the real books) and their routing (the real policies).\n"
    "\n"
    "The trace:\n"
    "  --trace FILE         mooncake, bailian, burstgpt or azure, by its first line\n"
    "  --format NAME        one of these instead\n"
    "  --generate KIND      made by --seed: chat, agents, documents, hot, tools, branches, scan,\n"
    "                       regime, long, bursts, rag, nightly or tenants\n"
    "  --requests N         the first N; of a made trace so many (10000)\n"
    "  --block TOKENS       of a made trace, and of a CSV's made prefixes (512)\n"
    "How fast requests come (as in the trace; compare: --load 0.7,0.85,0.95):\n"
    "  --load F             share of what round-robin can just bear, which is searched for: where "
    "9\n"
    "                       of 10 requests keep both limits (of the first --limit-requests, "
    "20000)\n"
    "  --rate R, --speed F  R requests a second; F times as fast as in the trace\n"
    "Routing:\n"
    "  --route POLICY,...   or all (run: tarn; sweep, compare: all)\n"
    "  --admit              requests that cannot keep the limits are refused\n"
    "  --copies             prefixes that become hot are copied to more engines\n"
    "Engines:\n"
    "  --engines N          that do both (8)\n"
    "  --prefill P --decode D   so many of each instead\n"
    "  --model NAME         Llama-3-8B, Llama-3-70B, Qwen3-32B, DeepSeek-V3 (Llama-3-70B)\n"
    "  --gpu NAME           A800, H800, H100, H200, 910B (H100)\n"
    "  --gpus N             of an engine (8)\n"
    "  --chunk TOKENS       of a prefill in a step (2048)\n"
    "  --batch N            that decode at a time, at most (256)\n"
    "  --kv-blocks N        in device memory (as many as fit)\n"
    "  --host-blocks N      in the engine's own host memory (0)\n"
    "  --pipeline N, --sequence N   chunked pipeline or sequence parallelism over N hosts (1)\n"
    "  --utilization F, --efficiency F   of the GPUs' flops, of their bandwidth (0.5, 0.7)\n"
    "  --layer-us T, --step-us T   that each layer and each step takes besides (20, 2000)\n"
    "  --quadratic A,B,C    a prefill of t tokens takes A t^2 + B t + C ms instead\n"
    "  --table FILE         ... as measured: lines TOKENS,MILLISECONDS\n"
    "Pool and network:\n"
    "  --pool-blocks N,...  of all hosts together (0: none)\n"
    "  --eviction NAME,...  lru, fifo, lfu, sieve, s3fifo, chain (lru)\n"
    "  --masters N          that share the pool by slots; their look-ups take time (0: one, and "
    "none)\n"
    "  --lookup-us T, --key-us T   of a look-up: there and back, and for each key (200, 0.3)\n"
    "  --nic GBIT           of a host (100); --local GBYTE: a host's memory to its devices (40)\n"
    "  --rack-hosts N       hosts of a rack (0: all are in one)\n"
    "  --rack-us T, --far-us T   latency within a rack, and between two (200, 1000)\n"
    "  --no-overlap         nothing is computed while something is loaded for it\n"
    "Evict (beside --format, --requests, --block, --seed, --json):\n"
    "  --generate KIND,...  or all; --rate R: requests a second of made ones (5)\n"
    "  --policy NAME,...    all by default; belady and an unlimited pool stand beside them\n"
    "  --blocks N,...       the pool has room for (1000,2000,3000,5000,10000,20000,30000,50000)\n"
    "  --hints              requests say their session, where the trace tells it\n"
    "  --transform NAME,... whole, first-half, last-half, reversed-sessions, all (whole)\n"
    "Limits and failures:\n"
    "  --slo-ttft MS, --slo-tbt MS   (30000, 300)\n"
    "  --fail TIME:engine|host|master:N[:SECONDS],...   a host takes its part of the pool with "
    "it;\n"
    "                       a master's is gone until its replica is promoted (1.7)\n"
    "Output:\n"
    "  --json               one object with a row for each run\n"
    "  --html FILE          a page with plots, in one file\n"
    "  --seed N             the same one, the same result (1)\n"
    "  --help, --version\n"
    "\n"
    "docs/SIMULATION.md has the models, their numbers and sources, and what they reproduce.\n";

static int fail_with(const char *why) {
    fprintf(stderr, "tarn-simulate: %s\n", why);
    return 1;
}

static int page_failed(const struct sim_plan *p) {
    fprintf(stderr, "tarn-simulate: --html %s: %s\n", p->html, strerror(errno));
    return 1;
}

static int page_write(const struct sim_plan *p, FILE *f) {
    struct buf page = {0};
    report_html(p, &page);
    bool ok = ftruncate(fileno(f), 0) == 0 && fwrite(page.data, 1, page.len, f) == page.len;
    buf_free(&page);
    return ok && fflush(f) == 0 ? 0 : page_failed(p);
}

static int print_plan(const struct sim_plan *p) {
    struct buf out = {0};
    if (p->json)
        report_json(p, &out);
    else
        report_text(p, &out);
    if (!p->json && strcmp(p->command, "compare") == 0) report_compare(p, &out);
    bool ok = fwrite(out.data, 1, out.len, stdout) == out.len && fflush(stdout) == 0;
    buf_free(&out);
    return ok ? 0 : 1;
}

/* The page is opened first: it may be long until there is something to write, and one that is there
 * stays as it is until then. */
static int plan_results(struct sim_plan *p) {
    FILE *page = p->html != NULL ? fopen(p->html, "ae") : NULL;
    if (p->html != NULL && page == NULL) return page_failed(p);
    const char *why = plan_run(p);
    int status = why != NULL ? fail_with(why) : print_plan(p);
    if (status == 0 && page != NULL) status = page_write(p, page);
    if (page != NULL) fclose(page);
    return status;
}

static int trace_print(const struct sim_plan *p) {
    struct buf out = {0};
    if (p->trace.block != TRACE_BLOCK)
        return fail_with("trace: Mooncake's lines have blocks of 512 tokens (--block 512)");
    bool ok = true;
    for (size_t i = 0; ok && i < p->trace.n; i++) {
        buf_clear(&out);
        trace_write(&p->trace, i, i + 1, &out);
        ok = fwrite(out.data, 1, out.len, stdout) == out.len;
    }
    ok = fflush(stdout) == 0 && ok;
    buf_free(&out);
    return ok ? 0 : fail_with(strerror(errno));
}

static int plan_main(const char *command, int argc, char **argv) {
    struct sim_plan *p = xcalloc(1, sizeof(*p));
    const char *why = plan_read(p, command, argc, argv);
    int status = why != NULL ? fail_with(why) : 0;
    if (status == 0) status = strcmp(command, "trace") == 0 ? trace_print(p) : plan_results(p);
    plan_free(p);
    free(p);
    return status;
}

int main(int argc, char **argv) {
    static const char *const commands[] = {"run", "sweep", "compare", "trace", "evict"};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--version") == 0) {
            printf("tarn-simulate %s\n", TARN_VERSION);
            return 0;
        }
        if (strcmp(argv[i], "--help") != 0 && strcmp(argv[i], "-h") != 0) continue;
        fputs(usage, stdout);
        return 0;
    }
    if (argc < 2) {
        fputs(usage, stderr);
        return 2;
    }
    struct near near;
    near_begin(&near, span_str(argv[1]));
    if (strcmp(argv[1], "evict") == 0) return evict_main(argc - 2, argv + 2);
    for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
        if (strcmp(argv[1], commands[i]) == 0) return plan_main(commands[i], argc - 2, argv + 2);
        near_offer(&near, commands[i]);
    }
    if (near.word != NULL)
        fprintf(stderr, "tarn-simulate: there is no subcommand %s, did you mean %s?\n", argv[1],
                near.word);
    else
        fprintf(stderr, "tarn-simulate: there is no subcommand \"%s\"\n\n%s", argv[1], usage);
    return 2;
}
