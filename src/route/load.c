/* How much a worker has to do: what is reserved on it, what its reports have beyond that, and how
 * long that takes. */
#include "route/internal.h"

void level_add(struct level *l, uint64_t n) {
    l->now += n;
    l->most = max_u64(l->most, l->now);
}

void level_sub(struct level *l, uint64_t n) {
    TARN_ASSERT(l->now >= n);
    l->now -= n;
}

/* Beyond the most that was reserved since the last report: the engine may have counted before the
 * latest reservations reached it, and before the latest ends were told. */
static uint64_t level_foreign(struct level *l, uint64_t reported, uint64_t before) {
    if (reported == ROUTE_UNKNOWN) return before;
    uint64_t foreign = reported > l->most ? reported - l->most : 0;
    l->most = l->now;
    return foreign;
}

void worker_clock(struct route *r, struct worker *w) {
    double passed = (double)(r->now_us - w->area_us);
    w->area_us = r->now_us;
    w->running_area += passed * (double)worker_running(w);
    w->context_area += passed * (double)worker_context(w);
    if (!TAILQ_EMPTY(&w->prefills)) w->busy_area += passed;
}

/* Tokens that nobody says more of: as if none of their prompts had a prefix, and all were alike. */
static double foreign_prefill_us(const struct worker *w) {
    double prompts = real(w->foreign_prompts);
    double n = prompts == 0 ? 0 : real(w->foreign_prefill_tokens) / prompts;
    return n == 0
               ? 0
               : prompts * model_predict(&w->engine->prefill, (double[MODEL_TERMS]){1, n, n * n});
}

/* Nobody has so much; it keeps sums of nonsense from overflowing. */
#define REPORT_MOST (1ull << 40)

static uint64_t report_bound(uint64_t v) {
    return v == ROUTE_UNKNOWN ? v : min_u64(v, REPORT_MOST);
}

/* Requests of others. Engines count a prefill that is under way among the running: ours are those
 * that do not wait there. */
static void report_requests(struct worker *w, const struct route_load *load) {
    uint64_t waiting = report_bound(load->waiting), running = report_bound(load->running);
    if (waiting < w->waiting.now && running != ROUTE_UNKNOWN)
        running -= min_u64(running, w->waiting.now - waiting);
    w->foreign_waiting = level_foreign(&w->waiting, waiting, w->foreign_waiting);
    w->foreign_running = level_foreign(&w->running, running, w->foreign_running);
}

/* Of a model that nobody has asked for yet. */
#define PROMPT_TOKENS 512.0
/* Tokens that an engine tells itself are not guessed for so long. */
#define TOLD_US 5000000u

/* Tokens of others' prompts; where only their number is told, they are as those that were sent to
 * that model lately. */
static void report_prefills(struct route *r, struct worker *w, const struct route_load *load) {
    const struct traffic *t = &w->engine->model->traffic;
    if (load->prefill_tokens != ROUTE_UNKNOWN) {
        w->foreign_prefill_tokens = level_foreign(
            &w->prefill_tokens, report_bound(load->prefill_tokens), w->foreign_prefill_tokens);
        w->foreign_prompts = 1;
        w->told_us = r->now_us;
    } else if (load->waiting != ROUTE_UNKNOWN &&
               (w->told_us == 0 || r->now_us - w->told_us > TOLD_US)) {
        double each = t->requests > 0 ? t->computed_tokens / t->requests : PROMPT_TOKENS;
        w->foreign_prompts = w->foreign_waiting;
        w->foreign_prefill_tokens = (uint64_t)(each * real(w->foreign_waiting));
    }
}

static void worker_report(struct route *r, struct worker *w, const struct route_load *load) {
    const struct route_engine *e = w->engine;
    worker_clock(r, w);
    report_requests(w, load);
    report_prefills(r, w, load);
    if (load->kv_blocks_used != ROUTE_UNKNOWN) {
        uint64_t tokens = report_bound(load->kv_blocks_used) * e->block_tokens;
        w->foreign_kv_blocks = level_foreign(&w->context_tokens, tokens, 0) / e->block_tokens;
    }
    w->foreign_us = foreign_prefill_us(w);
    w->report_us = r->now_us;
    w->reports++;
}

tarn_status route_engine_load(struct route *r, struct span id, uint32_t rank,
                              const struct route_load *load, uint64_t now_us) {
    route_tick(r, now_us);
    struct route_engine *e = engine_find(r, id);
    if (e == NULL) return route_fail(r, TARN_ENOTFOUND, "no such engine");
    if (rank >= ROUTE_RANKS_MAX || e->workers[rank] == ROUTE_NO_WORKER)
        return route_fail(r, TARN_ENOTFOUND, "engine %s has no rank %u", e->id, rank);
    e->heard_us = max_u64(r->now_us, 1);
    struct worker *w = &r->workers[e->workers[rank]];
    if (load->kv_blocks != ROUTE_UNKNOWN && load->kv_blocks <= UINT32_MAX) {
        e->kv_blocks = (uint32_t)load->kv_blocks;
        route_holder_raise(r->index, w->holder, load->kv_blocks);
    }
    worker_report(r, w, load);
    return TARN_OK;
}

static bool engine_reports(const struct route *r, const struct route_engine *e) {
    for (uint32_t rank = 0; rank < ROUTE_RANKS_MAX; rank++)
        if (e->workers[rank] != ROUTE_NO_WORKER && r->workers[e->workers[rank]].reports > 0)
            return true;
    return false;
}

tarn_status route_load_forget(struct route *r, struct span id, uint32_t rank, uint64_t now_us) {
    static const struct route_load nothing = {0};
    route_tick(r, now_us);
    uint32_t worker = route_worker_find(r, id, rank);
    if (worker == ROUTE_NO_WORKER) return route_fail(r, TARN_ENOTFOUND, "no such engine or rank");
    struct worker *w = &r->workers[worker];
    worker_report(r, w, &nothing);
    w->told_us = w->reports = 0;
    if (!engine_reports(r, w->engine)) w->engine->heard_us = 0;
    return TARN_OK;
}
