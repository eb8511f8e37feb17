/* What the command line asks for: cells, of which each is a run, and the words around them. */
#ifndef TARN_SIMULATE_PLAN_H
#define TARN_SIMULATE_PLAN_H

#include "base/buf.h"
#include "simulate/lists.h"
#include "simulate/sim.h"

#define PLAN_CELLS_MAX 4096u

/* A run and what came of it. */
struct cell {
    const char *route, *eviction;
    bool apart;
    uint64_t pool_blocks;
    double load; /* of round-robin's limit, 0: the pace is given */
    double pace, rate;
    struct sim_result result;
};

struct sim_plan {
    struct sim_config config; /* what all cells have in common */
    struct names routes, evictions;
    struct numbers loads, pools;
    bool colocated, apart; /* deployments that are compared */
    uint32_t prefill, decode;
    struct trace trace;
    uint64_t ids, limit_requests;
    const char *trace_name, *command;
    bool json;
    const char *html;  /* a file, NULL: none */
    double trace_rate; /* requests a second, as they are in the trace */
    struct cell *cells;
    size_t n;
    struct sim_table table;
};

/* --- options.c --- */

/* Reads the arguments behind the subcommand, loads or makes the trace, lays out the cells. NULL, or
 * what is wrong. */
const char *plan_read(struct sim_plan *p, const char *command, int argc, char **argv);
void plan_free(struct sim_plan *p);

/* --- run_plan.c --- */

/* Runs all cells, with a bar. NULL, or why that cannot be. */
const char *plan_run(struct sim_plan *p);

/* --- report_*.c --- */

void report_text(const struct sim_plan *p, struct buf *out);
void report_compare(const struct sim_plan *p, struct buf *out);
void report_json(const struct sim_plan *p, struct buf *out);
void report_html(const struct sim_plan *p, struct buf *out);
/* "16 x 8 H100, Llama-3-70B, ..." */
void report_setting(const struct sim_plan *p, struct buf *out);
const char *cell_deployment(const struct sim_plan *p, const struct cell *c, char out[64]);
/* "16 engines, a pool of 50000 blocks (lru)" */
void cell_words(const struct sim_plan *p, const struct cell *c, struct buf *out);
/* They differ in load and policy alone. */
bool cell_alike(const struct cell *a, const struct cell *b);
static inline double cell_rejected(const struct cell *c) {
    const struct sim_result *r = &c->result;
    return r->requests > 0 ? (double)(r->refused + r->too_long + r->lost) / (double)r->requests : 0;
}

#endif
