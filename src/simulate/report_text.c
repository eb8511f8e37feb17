/* Tables for people. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "simulate/plan.h"

const char *cell_deployment(const struct sim_plan *p, const struct cell *c, char out[64]) {
    if (c->apart)
        snprintf(out, 64, "%u prefill + %u decode", p->prefill, p->decode);
    else
        snprintf(out, 64, "%u engines", p->config.engines);
    return out;
}

void cell_words(const struct sim_plan *p, const struct cell *c, struct buf *out) {
    char where[64];
    buf_printf(out, "%s, ", cell_deployment(p, c, where));
    if (c->pool_blocks > 0)
        buf_printf(out, "a pool of %llu blocks (%s)", (unsigned long long)c->pool_blocks,
                   c->eviction);
    else
        buf_append_str(out, "no pool");
    if (c->pool_blocks > 0 && p->config.masters > 0)
        buf_printf(out, " of %u masters", p->config.masters);
}

bool cell_alike(const struct cell *a, const struct cell *b) {
    return a->apart == b->apart && a->pool_blocks == b->pool_blocks &&
           strcmp(a->eviction, b->eviction) == 0;
}

void report_setting(const struct sim_plan *p, struct buf *out) {
    const struct sim_config *c = &p->config;
    buf_printf(out, "%s, engines of %u x %s, chunks of %u tokens", c->speed.model->name,
               c->speed.gpus * c->speed.stages * c->speed.parts, c->speed.gpu->name,
               c->speed.chunk);
    if (c->kv_blocks > 0)
        buf_printf(out, ", %llu KV blocks each", (unsigned long long)c->kv_blocks);
    buf_printf(out, "; %zu requests of %s, blocks of %u tokens, %.3g a second in the trace",
               p->trace.n, p->trace_name, p->trace.block, p->trace_rate);
    buf_printf(out, "; limits TTFT %g ms, TBT %g ms; seed %llu", c->slo_ttft_s * 1e3,
               c->slo_tbt_s * 1e3, (unsigned long long)c->seed);
}

static void table_head(const struct sim_plan *p, const struct cell *c, struct buf *out) {
    buf_append_char(out, '\n');
    cell_words(p, c, out);
    if (c->load > 0)
        buf_printf(out,
                   "; load 1, where round-robin can just keep both limits for %.0f %% of the "
                   "requests: %.3g requests a second",
                   100 * SIM_KEPT_SHARE, c->rate / c->load);
    buf_append_str(
        out, "\n\n  load  req/s  route         TTFT mean    p50    p90    p99  TBT mean  "
             "p90   p99    good/s  rejected  device  host  pool  saved s  moved GB  preempted\n");
}

static void table_row(const struct cell *c, struct buf *out) {
    const struct sim_result *r = &c->result;
    char load[16] = "-";
    if (c->load > 0) snprintf(load, sizeof(load), "%.2f", c->load);
    buf_printf(out, "%6s %6.3g  %-13s %8.0f %6.0f %6.0f %6.0f  %8.1f %5.0f %5.0f  %8.3f   %5.1f %%",
               load, c->rate, c->route, r->ttft.mean * 1e3, r->ttft.p50 * 1e3, r->ttft.p90 * 1e3,
               r->ttft.p99 * 1e3, r->tbt.mean * 1e3, r->tbt.p90 * 1e3, r->tbt.p99 * 1e3, r->goodput,
               100 * cell_rejected(c));
    buf_printf(out, "  %6.3f %5.3f %5.3f %8.0f  %8.0f  %9llu\n", r->device, r->host, r->pool,
               r->saved_s, r->moved_bytes / 1e9, (unsigned long long)r->preempted);
}

static void rare_things(const struct sim_plan *p, struct buf *out) {
    for (size_t i = 0; i < p->n; i++) {
        const struct sim_result *r = &p->cells[i].result;
        if (r->refused + r->too_long + r->lost + r->restarted == 0) continue;
        buf_printf(
            out,
            "\n  %s at %.3g requests a second: %llu refused, %llu too long for an engine, %llu "
            "left without one, %llu begun anew after a failure",
            p->cells[i].route, p->cells[i].rate, (unsigned long long)r->refused,
            (unsigned long long)r->too_long, (unsigned long long)r->lost,
            (unsigned long long)r->restarted);
    }
    for (size_t i = 0; i < p->n; i++) {
        const struct sim_result *r = &p->cells[i].result;
        if (r->copies == 0) continue;
        buf_printf(out, "\n  %s at %.3g requests a second: %llu copies of hot prefixes, %.1f GB",
                   p->cells[i].route, p->cells[i].rate, (unsigned long long)r->copies,
                   r->copied_bytes / 1e9);
    }
    for (size_t i = 0; i < p->n && p->config.masters > 0; i++) {
        const struct sim_times *t = &p->cells[i].result.lookup;
        if (p->cells[i].pool_blocks > 0)
            buf_printf(out, "\n  %s at %.3g requests a second: look-ups of %.2f ms, p99 %.2f ms",
                       p->cells[i].route, p->cells[i].rate, t->mean * 1e3, t->p99 * 1e3);
    }
    if (p->trace.skipped + p->trace.clipped > 0)
        buf_printf(out,
                   "\n  of the trace: %llu rows left out, %llu ids beyond their prompts dropped",
                   (unsigned long long)p->trace.skipped, (unsigned long long)p->trace.clipped);
    buf_append_str(out, "\n");
}

void report_text(const struct sim_plan *p, struct buf *out) {
    report_setting(p, out);
    buf_append_str(out,
                   "\nTimes in ms. TBT: the mean of the longest tenth of a request's gaps. "
                   "good/s: requests a second within both limits. device, host, pool: shares of "
                   "the prompts' tokens found there.\n");
    for (size_t i = 0; i < p->n; i++) {
        if (i == 0 || !cell_alike(&p->cells[i], &p->cells[i - 1])) table_head(p, &p->cells[i], out);
        table_row(&p->cells[i], out);
    }
    rare_things(p, out);
}

/* --- compare: the first policy beside each other one --- */

struct verdict {
    double mean, p90, good; /* the worst ratios: above 1 the first is worse */
    double best_p90;        /* where it is ahead the most */
};

static double ratio_of(double a, double b) {
    return b > 0 ? a / b : a > 0 ? INFINITY : 1;
}

static struct verdict verdict_of(const struct sim_plan *p, const char *first, const char *other) {
    struct verdict v = {0, 0, 0, INFINITY};
    for (size_t i = 0; i < p->n; i++) {
        if (strcmp(p->cells[i].route, first) != 0) continue;
        for (size_t k = 0; k < p->n; k++) {
            const struct cell *a = &p->cells[i], *b = &p->cells[k];
            if (strcmp(b->route, other) != 0 || a->load != b->load || !cell_alike(a, b)) continue;
            v.mean = fmax(v.mean, ratio_of(a->result.ttft.mean, b->result.ttft.mean));
            v.p90 = fmax(v.p90, ratio_of(a->result.ttft.p90, b->result.ttft.p90));
            v.good = fmax(v.good, ratio_of(b->result.goodput, a->result.goodput));
            v.best_p90 = fmin(v.best_p90, ratio_of(a->result.ttft.p90, b->result.ttft.p90));
        }
    }
    return v;
}

void report_compare(const struct sim_plan *p, struct buf *out) {
    const char *first = p->routes.v[0];
    for (size_t i = 0; i < p->routes.n; i++)
        if (strcmp(p->routes.v[i], "tarn") == 0) first = "tarn";
    buf_printf(
        out,
        "\n%s beside the others, over all loads, deployments and pools: how much worse it is "
        "at worst (%% of mean and p90 TTFT, of goodput), and by how much less its p90 TTFT is "
        "at best.\n\n  beside          mean   p90  good/s   best p90\n",
        first);
    for (size_t i = 0; i < p->routes.n; i++) {
        if (strcmp(p->routes.v[i], first) == 0) continue;
        struct verdict v = verdict_of(p, first, p->routes.v[i]);
        buf_printf(out, "  %-13s %+5.1f %+5.1f  %+6.1f   %+8.1f %%\n", p->routes.v[i],
                   100 * (v.mean - 1), 100 * (v.p90 - 1), 100 * (v.good - 1),
                   100 * (v.best_p90 - 1));
    }
}
