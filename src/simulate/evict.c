#include "simulate/evict.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/options.h"
#include "base/progress.h"

#define REQUESTS 10000u /* of a made trace */
#define SIZES    "1000,2000,3000,5000,10000,20000,30000,50000"

struct evict_typed {
    const char *traces, *format, *kinds, *policies, *sizes, *transforms;
    uint64_t requests, block, seed;
    double rate;
    bool hints, json;
};

static const char *typed_read(struct evict_typed *t, int argc, char **argv) {
    const struct option_spec specs[] = {
        {"--trace", OPT_STRING, &t->traces, 0, 0},
        {"--format", OPT_STRING, &t->format, 0, 0},
        {"--generate", OPT_STRING, &t->kinds, 0, 0},
        {"--requests", OPT_U64, &t->requests, 1, TRACE_REQUESTS_MAX},
        {"--block", OPT_U64, &t->block, 1, 1 << 20},
        {"--policy", OPT_STRING, &t->policies, 0, 0},
        {"--blocks", OPT_STRING, &t->sizes, 0, 0},
        {"--transform", OPT_STRING, &t->transforms, 0, 0},
        {"--rate", OPT_DOUBLE, &t->rate, 0, 1000000},
        {"--seed", OPT_U64, &t->seed, 0, UINT64_MAX},
        {"--hints", OPT_FLAG, &t->hints, 0, 0},
        {"--json", OPT_FLAG, &t->json, 0, 0},
        {NULL, OPT_FLAG, NULL, 0, 0},
    };
    const struct option_spec *const tables[] = {specs, NULL};
    size_t plain;
    const char *why = options_read(tables, argc, argv, false, &plain, NULL);
    if (why == NULL && plain > 0)
        status_fail(TARN_EINVAL, &why, "\"%s\": all arguments have names (--trace FILE)", argv[0]);
    return why;
}

/* text NULL: all of them. */
static const char *list_read(struct names *list, const char *option, const char *text,
                             const char *const *known, size_t n) {
    if (text != NULL && strcmp(text, "all") != 0) return names_read(list, option, text, known, n);
    for (size_t i = 0; i < n && i < PLAN_LIST_MAX; i++) list->v[list->n++] = xstrdup(known[i]);
    return NULL;
}

static const char *plan_read(struct evict_plan *p, int argc, char **argv) {
    struct evict_typed t = {
        .format = "auto", .sizes = SIZES, .transforms = "whole", .seed = 1, .rate = 5};
    const char *kinds[TRACE_KINDS], *transforms[TRACE_TRANSFORMS], *formats[TRACE_FORMATS];
    for (unsigned k = 0; k < TRACE_KINDS; k++) kinds[k] = trace_kind_name(k);
    for (unsigned k = 0; k < TRACE_TRANSFORMS; k++) transforms[k] = trace_transform_name(k);
    for (unsigned k = 0; k < TRACE_FORMATS; k++) formats[k] = trace_format_name(k);
    const char *why = typed_read(&t, argc, argv);
    if (why != NULL) return why;
    if (t.traces == NULL && t.kinds == NULL)
        return "--trace FILE,... or --generate KIND,... is needed";
    if (t.rate <= 0) return "--rate must be above 0";
    p->rate = t.rate;
    p->hints = t.hints;
    p->json = t.json;
    p->how = (struct trace_options){.format = trace_format_of(t.format),
                                    .limit = t.requests,
                                    .block = (uint32_t)t.block,
                                    .seed = t.seed};
    if (p->how.format == TRACE_FORMATS)
        return name_refuse("--format", t.format, formats, TRACE_FORMATS);
    sim_speed_init(&p->speed);
    if (t.traces != NULL) why = names_read(&p->traces, "--trace", t.traces, NULL, 0);
    if (why == NULL && t.kinds != NULL)
        why = list_read(&p->kinds, "--generate", t.kinds, kinds, TRACE_KINDS);
    if (why == NULL)
        why = list_read(&p->policies, "--policy", t.policies, eviction_names, eviction_count);
    if (why == NULL)
        why = list_read(&p->transforms, "--transform", t.transforms, transforms, TRACE_TRANSFORMS);
    return why == NULL ? blocks_read(&p->sizes, "--blocks", t.sizes, 1, 1e8) : why;
}

static void plan_free(struct evict_plan *p) {
    names_free(&p->policies);
    names_free(&p->traces);
    names_free(&p->kinds);
    names_free(&p->transforms);
    for (size_t i = 0; i < p->n; i++) free(p->sheets[i].rows);
    free(p->sheets);
}

/* --- what is run --- */

struct evict_watch {
    struct progress bar;
    uint64_t done, total;
};

static void sheet_tell(struct evict_watch *w, const struct evict_sheet *s,
                       const struct evict_row *row) {
    progress_say(&w->bar, w->done++, w->total, "%s: %s, %llu blocks", s->name, row->policy,
                 (unsigned long long)row->blocks);
}

static void sheet_rows(const struct evict_plan *p, struct evict_sheet *s, const struct trace *t,
                       struct evict_watch *w) {
    struct evict_row *row = s->rows = xcalloc(evict_rows(p), sizeof(*s->rows));
    for (size_t i = 0; i <= p->policies.n; i++) {
        for (size_t k = 0; k < p->sizes.n; k++, row++) {
            bool known = i < p->policies.n;
            row->policy = known ? p->policies.v[i] : "belady";
            row->blocks = (uint64_t)p->sizes.v[k];
            sheet_tell(w, s, row);
            if (known)
                evict_replay(t, row->policy, row->blocks, p->hints, &p->speed, &row->score);
            else
                evict_belady(t, s->ids, row->blocks, &p->speed, &row->score);
        }
    }
}

static void sheet_run(struct evict_plan *p, const char *name, const struct trace *whole,
                      enum trace_transform transform, struct evict_watch *w) {
    struct evict_sheet *s = &p->sheets[p->n++];
    struct trace t;
    trace_transform(&t, whole, transform);
    *s = (struct evict_sheet){.name = name, .transform = transform, .requests = t.n};
    s->ids = trace_number(&t);
    for (size_t r = 0; r < t.n; r++) {
        s->blocks += t.requests[r].n;
        s->prefill_s += sim_chunk_s(&p->speed, t.requests[r].input, 0);
    }
    if (t.n > 0)
        s->span_s = (double)(t.requests[t.n - 1].timestamp_ms - t.requests[0].timestamp_ms) / 1e3;
    evict_unlimited(&t, s->ids, &p->speed, &s->unlimited);
    sheet_rows(p, s, &t, w);
    trace_free(&t);
}

static const char *trace_get(const struct evict_plan *p, size_t i, struct trace *t) {
    const char *why = NULL;
    if (i < p->traces.n) {
        if (trace_load(t, p->traces.v[i], &p->how, &why) != TARN_OK)
            return option_named("--trace", why);
        trace_sort(t);
        return NULL;
    }
    const struct trace_recipe recipe = {.kind = trace_kind_of(p->kinds.v[i - p->traces.n]),
                                        .requests = p->how.limit > 0 ? p->how.limit : REQUESTS,
                                        .rate = p->rate,
                                        .seed = p->how.seed,
                                        .block = p->how.block};
    trace_generate(t, &recipe, &why);
    return why;
}

static const char *plan_run(struct evict_plan *p) {
    size_t traces = p->traces.n + p->kinds.n, sheets = traces * p->transforms.n;
    struct evict_watch w = {.total = sheets * evict_rows(p)};
    const char *why = NULL;
    p->sheets = xcalloc(sheets, sizeof(*p->sheets));
    progress_bar(&w.bar, p->json);
    for (size_t i = 0; why == NULL && i < traces; i++) {
        struct trace t = {0};
        const char *name = i < p->traces.n ? p->traces.v[i] : p->kinds.v[i - p->traces.n];
        why = trace_get(p, i, &t);
        for (size_t k = 0; why == NULL && k < p->transforms.n; k++)
            sheet_run(p, name, &t, trace_transform_of(p->transforms.v[k]), &w);
        trace_free(&t);
    }
    progress_end(&w.bar);
    return why;
}

static int plan_print(const struct evict_plan *p) {
    struct buf out = {0};
    (p->json ? evict_json : evict_text)(p, &out);
    bool ok = fwrite(out.data, 1, out.len, stdout) == out.len && fflush(stdout) == 0;
    buf_free(&out);
    return ok ? 0 : 1;
}

int evict_main(int argc, char **argv) {
    struct evict_plan p = {0};
    const char *why = plan_read(&p, argc, argv);
    if (why == NULL) why = plan_run(&p);
    if (why != NULL) fprintf(stderr, "tarn-simulate: %s\n", why);
    int status = why != NULL ? 1 : plan_print(&p);
    plan_free(&p);
    return status;
}
