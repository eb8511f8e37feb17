/* The command line of tarn-simulate. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/options.h"
#include "route/route.h"
#include "simulate/plan.h"

/* As they are typed; what is not given has its default here. */
struct typed {
    const char *trace, *format, *generate, *route, *model, *gpu, *pools, *eviction, *load, *fail,
        *quadratic, *table, *html;
    uint64_t requests, block, engines, prefill, decode, gpus, chunk, batch, kv_blocks, host_blocks,
        masters, rack_hosts, stages, parts, seed, limit_requests;
    double rate, speed, nic, local, rack_us, far_us, lookup_us, key_us, utilization, efficiency,
        layer_us, step_us, slo_ttft, slo_tbt;
    bool json, admit, copies, no_overlap;
};

static void typed_init(struct typed *t, const struct sim_config *c) {
    *t = (struct typed){
        .format = "auto",
        .route = "tarn",
        .model = c->speed.model->name,
        .gpu = c->speed.gpu->name,
        .pools = "0",
        .eviction = c->eviction,
        .rate = -1, /* not given */
        .speed = -1,
        .engines = c->engines,
        .gpus = c->speed.gpus,
        .chunk = c->speed.chunk,
        .batch = c->batch_max,
        .stages = 1,
        .parts = 1,
        .seed = 1,
        .limit_requests = 20000,
        .nic = c->nic * 8 / 1e9,
        .local = c->local / 1e9,
        .lookup_us = -1,
        .key_us = -1,
        .rack_us = c->rack_s * 1e6,
        .far_us = c->far_s * 1e6,
        .utilization = c->speed.utilization,
        .efficiency = c->speed.efficiency,
        .layer_us = c->speed.layer_us,
        .step_us = c->speed.step_us,
        .slo_ttft = c->slo_ttft_s * 1e3,
        .slo_tbt = c->slo_tbt_s * 1e3,
    };
}

static const char *typed_read(struct typed *t, int argc, char **argv) {
    const uint64_t most = UINT64_C(1) << 32;
    const struct option_spec specs[] = {
        {"--trace", OPT_STRING, &t->trace, 0, 0},
        {"--format", OPT_STRING, &t->format, 0, 0},
        {"--generate", OPT_STRING, &t->generate, 0, 0},
        {"--requests", OPT_U64, &t->requests, 1, TRACE_REQUESTS_MAX},
        {"--block", OPT_U64, &t->block, 1, 1 << 20},
        {"--rate", OPT_DOUBLE, &t->rate, 0, 1000000},
        {"--speed", OPT_DOUBLE, &t->speed, 0, 1000000},
        {"--load", OPT_STRING, &t->load, 0, 0},
        {"--limit-requests", OPT_U64, &t->limit_requests, 0, TRACE_REQUESTS_MAX},
        {"--route", OPT_STRING, &t->route, 0, 0},
        {"--engines", OPT_U64, &t->engines, 1, SIM_ENGINES_MAX},
        {"--prefill", OPT_U64, &t->prefill, 0, SIM_ENGINES_MAX},
        {"--decode", OPT_U64, &t->decode, 0, SIM_ENGINES_MAX},
        {"--model", OPT_STRING, &t->model, 0, 0},
        {"--gpu", OPT_STRING, &t->gpu, 0, 0},
        {"--gpus", OPT_U64, &t->gpus, 1, 1024},
        {"--chunk", OPT_U64, &t->chunk, 16, 1 << 20},
        {"--batch", OPT_U64, &t->batch, 1, 65536},
        {"--kv-blocks", OPT_U64, &t->kv_blocks, 0, most},
        {"--host-blocks", OPT_U64, &t->host_blocks, 0, most},
        {"--pool-blocks", OPT_STRING, &t->pools, 0, 0},
        {"--eviction", OPT_STRING, &t->eviction, 0, 0},
        {"--masters", OPT_U64, &t->masters, 0, SIM_MASTERS_MAX},
        {"--lookup-us", OPT_DOUBLE, &t->lookup_us, 0, 10000000},
        {"--key-us", OPT_DOUBLE, &t->key_us, 0, 1000000},
        {"--nic", OPT_DOUBLE, &t->nic, 0, 100000},
        {"--local", OPT_DOUBLE, &t->local, 0, 100000},
        {"--rack-hosts", OPT_U64, &t->rack_hosts, 0, SIM_ENGINES_MAX},
        {"--rack-us", OPT_DOUBLE, &t->rack_us, 0, 10000000},
        {"--far-us", OPT_DOUBLE, &t->far_us, 0, 10000000},
        {"--no-overlap", OPT_FLAG, &t->no_overlap, 0, 0},
        {"--utilization", OPT_DOUBLE, &t->utilization, 0, 1},
        {"--efficiency", OPT_DOUBLE, &t->efficiency, 0, 1},
        {"--layer-us", OPT_DOUBLE, &t->layer_us, 0, 1000000},
        {"--step-us", OPT_DOUBLE, &t->step_us, 0, 10000000},
        {"--pipeline", OPT_U64, &t->stages, 1, 64},
        {"--sequence", OPT_U64, &t->parts, 1, 64},
        {"--quadratic", OPT_STRING, &t->quadratic, 0, 0},
        {"--table", OPT_STRING, &t->table, 0, 0},
        {"--slo-ttft", OPT_DOUBLE, &t->slo_ttft, 0, 100000000},
        {"--slo-tbt", OPT_DOUBLE, &t->slo_tbt, 0, 100000000},
        {"--admit", OPT_FLAG, &t->admit, 0, 0},
        {"--copies", OPT_FLAG, &t->copies, 0, 0},
        {"--fail", OPT_STRING, &t->fail, 0, 0},
        {"--seed", OPT_U64, &t->seed, 0, UINT64_MAX},
        {"--json", OPT_FLAG, &t->json, 0, 0},
        {"--html", OPT_STRING, &t->html, 0, 0},
        {NULL, OPT_FLAG, NULL, 0, 0},
    };
    const struct option_spec *const tables[] = {specs, NULL};
    size_t plain;
    const char *why = options_read(tables, argc, argv, false, &plain, NULL);
    if (why == NULL && plain > 0)
        status_fail(TARN_EINVAL, &why, "\"%s\": all arguments have names (--trace FILE)", argv[0]);
    return why;
}

#define FAIL_FORM "TIME:engine|host|master:N[:SECONDS][,...]"

static bool failing_of(const char *kind, enum sim_failing *what_p) {
    static const char *const kinds[] = {"engine", "host", "master"};
    for (unsigned i = 0; i < ARRAY_LEN(kinds); i++) {
        if (strcmp(kind, kinds[i]) != 0) continue;
        *what_p = (enum sim_failing)i;
        return true;
    }
    return false;
}

static const char *fail_read(struct sim_config *c, const char *text) {
    for (const char *s = text; *s != '\0';) {
        struct sim_failure f = {0};
        char kind[8];
        int digit = 0, len = 0;
        if (sscanf(s, "%lf:%7[a-z]:%n%u%n", &f.at_s, kind, &digit, &f.who, &len) != 3 ||
            s[digit] == '-' || !(f.at_s >= 0) || isinf(f.at_s) || !failing_of(kind, &f.what))
            return option_refuse("--fail", text, "is not " FAIL_FORM);
        s += len;
        if (*s == ':') {
            if (sscanf(s, ":%lf%n", &f.for_s, &len) != 1 || !(f.for_s > 0) || isinf(f.for_s))
                return option_refuse("--fail", text, "has no seconds behind the number");
            s += len;
        }
        if (*s != ',' && *s != '\0') return option_refuse("--fail", text, "is not " FAIL_FORM);
        if (c->n_failures == SIM_FAILURES_MAX) return option_refuse("--fail", text, "has too many");
        c->failures[c->n_failures++] = f;
        s += *s == ',';
    }
    return NULL;
}

static const char *hardware_read(struct sim_plan *p, const struct typed *t) {
    struct sim_speed *s = &p->config.speed;
    const char *known[16];
    size_t n = 0;
    s->gpu = sim_gpu_find(t->gpu);
    for (const struct sim_gpu *g = sim_gpus; g->name != NULL; g++) known[n++] = g->name;
    if (s->gpu == NULL) return name_refuse("--gpu", t->gpu, known, n);
    s->model = sim_model_find(t->model);
    n = 0;
    for (const struct sim_model *m = sim_models; m->name != NULL; m++) known[n++] = m->name;
    if (s->model == NULL) return name_refuse("--model", t->model, known, n);
    s->gpus = (unsigned)t->gpus;
    s->chunk = (uint32_t)t->chunk;
    s->stages = (unsigned)t->stages;
    s->parts = (unsigned)t->parts;
    s->utilization = t->utilization;
    s->efficiency = t->efficiency;
    s->layer_us = t->layer_us;
    s->step_us = t->step_us;
    if (s->utilization <= 0 || s->efficiency <= 0)
        return "--utilization and --efficiency must be above 0";
    if (t->quadratic != NULL) {
        struct numbers q = {0};
        const char *why = numbers_read(&q, "--quadratic", t->quadratic, 0, 1e6);
        if (why != NULL) return why;
        if (q.n != 3)
            return option_refuse("--quadratic", t->quadratic, "is not A,B,C of A t^2 + B t + C ms");
        s->quadratic = true;
        memcpy(s->q, q.v, sizeof(s->q));
    }
    const char *why = NULL;
    if (t->table == NULL) return NULL;
    s->table = &p->table;
    if (sim_table_load(&p->table, t->table, &why) != TARN_OK) return option_named("--table", why);
    return NULL;
}

static const char *config_read(struct sim_plan *p, const struct typed *t) {
    struct sim_config *c = &p->config;
    if (t->nic <= 0 || t->local <= 0) return "--nic and --local must be above 0";
    c->engines = (uint32_t)t->engines;
    p->prefill = (uint32_t)t->prefill;
    p->decode = (uint32_t)t->decode;
    if ((p->prefill == 0) != (p->decode == 0)) return "--prefill and --decode go together";
    c->batch_max = (uint32_t)t->batch;
    c->kv_blocks = t->kv_blocks;
    c->host_blocks = t->host_blocks;
    c->masters = (uint32_t)t->masters;
    if (t->lookup_us >= 0) c->lookup_s = t->lookup_us / 1e6;
    if (t->key_us >= 0) c->key_s = t->key_us / 1e6;
    c->nic = t->nic / 8 * 1e9;
    c->speed.network = c->nic;
    c->local = t->local * 1e9;
    c->rack_s = t->rack_us / 1e6;
    c->far_s = t->far_us / 1e6;
    c->rack_hosts = (uint32_t)t->rack_hosts;
    c->overlap = !t->no_overlap;
    c->slo_ttft_s = t->slo_ttft / 1e3;
    c->slo_tbt_s = t->slo_tbt / 1e3;
    c->admit = t->admit;
    c->copies = t->copies;
    c->seed = t->seed;
    return t->fail != NULL ? fail_read(c, t->fail) : NULL;
}

/* --- the trace --- */

static const char *trace_make(struct sim_plan *p, const struct typed *t) {
    const char *known[TRACE_KINDS];
    for (unsigned k = 0; k < TRACE_KINDS; k++) known[k] = trace_kind_name(k);
    struct trace_recipe recipe = {.kind = trace_kind_of(t->generate),
                                  .requests = t->requests > 0 ? t->requests : 10000,
                                  .rate = 1,
                                  .seed = t->seed,
                                  .block = (uint32_t)t->block};
    if (recipe.kind == TRACE_KINDS)
        return name_refuse("--generate", t->generate, known, TRACE_KINDS);
    const char *why = NULL;
    p->trace_name = t->generate;
    trace_generate(&p->trace, &recipe, &why);
    return why;
}

static const char *trace_read(struct sim_plan *p, const struct typed *t) {
    const char *why = NULL, *known[TRACE_FORMATS];
    struct trace_options o = {.format = trace_format_of(t->format),
                              .limit = t->requests,
                              .block = (uint32_t)t->block,
                              .seed = t->seed};
    for (unsigned k = 0; k < TRACE_FORMATS; k++) known[k] = trace_format_name(k);
    if (o.format == TRACE_FORMATS) return name_refuse("--format", t->format, known, TRACE_FORMATS);
    if ((t->trace == NULL) == (t->generate == NULL))
        return "either --trace FILE or --generate KIND is needed (--help has the kinds)";
    if (t->generate != NULL) return trace_make(p, t);
    p->trace_name = t->trace;
    if (trace_load(&p->trace, t->trace, &o, &why) != TARN_OK) return option_named("--trace", why);
    trace_sort(&p->trace);
    return NULL;
}

static void trace_measure(struct sim_plan *p) {
    const struct trace *t = &p->trace;
    p->ids = trace_number(&p->trace);
    double span = (double)(t->requests[t->n - 1].timestamp_ms - t->requests[0].timestamp_ms) / 1e3;
    p->trace_rate = span > 0 ? (double)t->n / span : 0;
}

/* --- the cells --- */

static const char *pace_read(struct sim_plan *p, const struct typed *t) {
    if (t->rate == 0 || t->speed == 0) return "--rate and --speed must be above 0";
    if ((t->load != NULL) + (t->rate > 0) + (t->speed > 0) > 1)
        return "--load, --rate and --speed: one of them";
    if (t->rate > 0 && p->trace_rate <= 0) return "--rate: all requests of this trace come at once";
    p->config.pace = t->speed > 0 ? t->speed : t->rate > 0 ? t->rate / p->trace_rate : 1;
    const char *load = t->load;
    if (load == NULL && strcmp(p->command, "compare") == 0 && t->rate <= 0 && t->speed <= 0)
        load = "0.7,0.85,0.95";
    return load != NULL ? numbers_read(&p->loads, "--load", load, 0.01, 100) : NULL;
}

static const char *lists_read(struct sim_plan *p, const struct typed *t) {
    size_t n = 0;
    while (route_policies[n] != NULL) n++;
    const char *all = strcmp(t->route, "all") == 0 ? NULL : t->route;
    for (size_t i = 0; all == NULL && i < n && i < PLAN_LIST_MAX; i++)
        p->routes.v[p->routes.n++] = xstrdup(route_policies[i]);
    const char *why =
        all != NULL ? names_read(&p->routes, "--route", all, route_policies, n) : NULL;
    if (why == NULL)
        why = names_read(&p->evictions, "--eviction", t->eviction, eviction_names, eviction_count);
    if (why == NULL) why = blocks_read(&p->pools, "--pool-blocks", t->pools, 0, 1e9);
    bool run = strcmp(p->command, "run") == 0;
    if (why == NULL && run && (p->pools.n > 1 || p->loads.n > 1 || p->evictions.n > 1))
        return "run has one --load, --pool-blocks and --eviction; sweep has several";
    return why;
}

/* What is about a pool's masters has no effect without them. */
static const char *masters_check(const struct sim_plan *p, const struct typed *t) {
    const struct sim_config *c = &p->config;
    bool pool = false, fails = false;
    for (size_t i = 0; i < p->pools.n; i++) pool |= p->pools.v[i] > 0;
    for (size_t i = 0; i < c->n_failures; i++) fails |= c->failures[i].what == SIM_FAILS_MASTER;
    if (!pool && c->masters > 0)
        return "--masters share a pool, and there is none: --pool-blocks N";
    if (!pool && fails) return "--fail: a master has a pool, and there is none: --pool-blocks N";
    if (c->masters == 0 && (t->lookup_us >= 0 || t->key_us >= 0))
        return "--lookup-us and --key-us are of masters: --masters N";
    return NULL;
}

static void cells_of_pool(struct sim_plan *p, bool apart, uint64_t pool, const char *eviction) {
    for (size_t l = 0; l < (p->loads.n > 0 ? p->loads.n : 1); l++)
        for (size_t r = 0; r < p->routes.n; r++)
            p->cells[p->n++] = (struct cell){.route = p->routes.v[r],
                                             .eviction = eviction,
                                             .apart = apart,
                                             .pool_blocks = pool,
                                             .load = p->loads.n > 0 ? p->loads.v[l] : 0,
                                             .pace = p->config.pace};
}

static const char *cells_make(struct sim_plan *p) {
    size_t n = 2 * p->pools.n * p->evictions.n * (p->loads.n + 1) * p->routes.n;
    if (n > PLAN_CELLS_MAX) return "these are too many runs";
    p->cells = xcalloc(n, sizeof(*p->cells));
    for (unsigned apart = 0; apart < 2; apart++) {
        if (!(apart ? p->apart : p->colocated)) continue;
        for (size_t i = 0; i < p->pools.n; i++)
            for (size_t k = 0; k < (p->pools.v[i] > 0 ? p->evictions.n : 1); k++)
                cells_of_pool(p, apart, (uint64_t)p->pools.v[i], p->evictions.v[k]);
    }
    return NULL;
}

const char *plan_read(struct sim_plan *p, const char *command, int argc, char **argv) {
    struct typed t;
    *p = (struct sim_plan){.command = command};
    sim_config_init(&p->config);
    typed_init(&t, &p->config);
    if (strcmp(command, "run") != 0) t.route = "all";
    const char *why = typed_read(&t, argc, argv);
    if (why == NULL) why = hardware_read(p, &t);
    if (why == NULL) why = config_read(p, &t);
    if (why == NULL) why = trace_read(p, &t);
    if (why != NULL) return why;
    trace_measure(p);
    p->json = t.json;
    p->html = t.html;
    p->limit_requests = t.limit_requests;
    p->apart = p->prefill > 0;
    p->colocated = p->prefill == 0 || strcmp(command, "compare") == 0;
    why = pace_read(p, &t);
    if (why == NULL) why = lists_read(p, &t);
    if (why == NULL) why = masters_check(p, &t);
    return why == NULL ? cells_make(p) : why;
}

void plan_free(struct sim_plan *p) {
    names_free(&p->routes);
    names_free(&p->evictions);
    trace_free(&p->trace);
    free(p->cells);
    p->cells = NULL;
    p->n = 0;
}
