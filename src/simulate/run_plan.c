/* Runs the cells of a plan, one after the other. What round-robin can bear is found once for each
 * deployment and pool. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/progress.h"
#include "simulate/plan.h"

struct plan_watch {
    struct progress bar;
    const struct sim_plan *plan;
    size_t cell;
};

static void cell_tell(void *arg, uint64_t done, uint64_t total) {
    struct plan_watch *w = arg;
    const struct cell *c = &w->plan->cells[w->cell];
    char load[32] = "";
    if (c->load > 0) snprintf(load, sizeof(load), " at load %.2f", c->load);
    progress_say(&w->bar, w->cell * 1000 + done * 1000 / total, w->plan->n * 1000,
                 "run %zu of %zu: %s%s", w->cell + 1, w->plan->n, c->route, load);
}

static struct sim_config cell_config(const struct sim_plan *p, const struct cell *c) {
    struct sim_config config = p->config;
    config.route = c->route;
    config.eviction = c->eviction;
    config.pool_blocks = c->pool_blocks;
    config.pace = c->pace;
    if (c->apart) {
        config.prefill = p->prefill;
        config.decode = p->decode;
    }
    return config;
}

static const char *limit_missing(const struct sim_plan *p, double limit) {
    const char *why;
    if (limit > 0) {
        status_fail(TARN_EINVAL, &why,
                    "--load: too few requests to tell what round-robin can bear: it keeps TTFT %g "
                    "ms even when all come within that time (more --requests or "
                    "--limit-requests, a lower --slo-ttft, or --rate)",
                    p->config.slo_ttft_s * 1e3);
        return why;
    }
    status_fail(
        TARN_EINVAL, &why,
        "--load: round-robin keeps TTFT %g ms and TBT %g ms for 9 of 10 requests at no pace "
        "(--slo-ttft, --slo-tbt, --chunk, or another deployment)",
        p->config.slo_ttft_s * 1e3, p->config.slo_tbt_s * 1e3);
    return why;
}

/* limit_p: of the setting of cell i. NULL, or why there is none. */
static const char *cell_limit(struct sim_plan *p, size_t i, struct plan_watch *w, double *limit_p) {
    const struct cell *c = &p->cells[i];
    if (i > 0 && cell_alike(c, &p->cells[i - 1])) return NULL;
    progress_say(&w->bar, i * 1000, p->n * 1000, "what round-robin can bear");
    struct sim_config config = cell_config(p, c);
    *limit_p = sim_pace_limit(&config, &p->trace, p->ids, p->limit_requests);
    return *limit_p > 0 && *limit_p < INFINITY ? NULL : limit_missing(p, *limit_p);
}

static const char *cells_check(const struct sim_plan *p) {
    for (size_t i = 0; i < p->n; i++) {
        struct sim_config config = cell_config(p, &p->cells[i]);
        const char *why = sim_config_check(&config, &p->trace);
        if (why != NULL) return why;
    }
    return NULL;
}

const char *plan_run(struct sim_plan *p) {
    struct plan_watch w = {.plan = p};
    const struct sim_progress progress = {cell_tell, &w};
    const char *why = cells_check(p);
    double limit = 0;
    progress_bar(&w.bar, p->json);
    for (size_t i = 0; why == NULL && i < p->n; i++) {
        struct cell *c = &p->cells[i];
        w.cell = i;
        if (c->load > 0) {
            why = cell_limit(p, i, &w, &limit);
            c->pace = limit * c->load;
        }
        if (why != NULL) break;
        struct sim_config config = cell_config(p, c);
        c->rate = p->trace_rate * c->pace;
        sim_run(&config, &p->trace, p->ids, &progress, &c->result);
    }
    progress_end(&w.bar);
    return why;
}
