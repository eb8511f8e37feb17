/* Which engine decodes what another has computed.
 *
 * What the system loses by each: the time to bring the KV there, the request's own steps, and by
 * how much it makes the steps of those that decode there longer, for as long as these go on. One
 * that cannot keep the TBT comes behind those that can; one that has no room for the context, or no
 * place in its batch, comes last: somebody would be preempted. */
#include <math.h>
#include "route/internal.h"

/* Above any sum of times. */
#define TOO_SLOW_US 1e14
#define NO_ROOM_US  1e15

static bool decodes_for(const struct cost_case *c, const struct route_engine *e,
                        const struct route_engine *prefill, const struct route_name *lora) {
    const struct route_request *q = c->request;
    if (e->role != ROUTE_DECODE || e->model != prefill->model) return false;
    if (e->lora != lora && !e->any_lora) return false;
    if (e->of_tenant && !span_eq(span_str(e->tenant), q->tenant)) return false;
    for (uint32_t i = 0; i < q->exclude_count; i++)
        if (span_eq(span_str(e->id), q->exclude[i])) return false;
    return engine_state(c->route, e) == ROUTE_UP;
}

static bool room_left(const struct cost_case *c, const struct worker *w, double context) {
    const struct route_engine *e = w->engine;
    if (e->kv_blocks > 0 && context > (double)e->kv_blocks * e->block_tokens) return false;
    return e->batch_max == 0 || w->decodes_reserved + w->foreign_running < e->batch_max;
}

/* A step with this request in it. Those that were promised to it will run, too, when this one
 * does. */
static double step_with(const struct cost_case *c, const struct worker *w) {
    return step_us(w->engine, (double)(w->decodes_reserved + w->foreign_running) + 1,
                   (double)worker_context(w) + c->prompt_tokens + c->output_tokens / 2.0);
}

static double decode_cost(const struct cost_case *c, const struct worker *w,
                          const struct route_engine *prefill, double *tbt_us_p) {
    const struct route_engine *e = w->engine;
    double running = (double)(w->decodes_reserved + w->foreign_running);
    double before = (double)worker_context(w);
    double after = before + c->prompt_tokens + c->output_tokens / 2.0;
    double step = step_with(c, w);
    double slower = running * most_of(step - step_us(e, running, before), 0);
    double others_left = least_of(c->output_tokens, c->route->output_mean / 2);
    *tbt_us_p = step;
    return transfer_between(prefill, e, c->prompt_tokens).us + step * c->output_tokens +
           slower * others_left + (step > c->tbt_bound_us ? TOO_SLOW_US : 0) +
           (room_left(c, w, after) ? 0 : NO_ROOM_US);
}

struct decode_choice decode_choose(struct cost_case *c, uint32_t prefill) {
    struct route *r = c->route;
    const struct route_engine *from = r->workers[prefill].engine;
    struct decode_choice best = {.worker = ROUTE_NO_WORKER};
    double least = INFINITY;
    if (from->role == ROUTE_BOTH)
        return (struct decode_choice){prefill, step_with(c, &r->workers[prefill])};
    const struct route_name *lora = name_find(r, c->request->lora);
    for (uint32_t i = 0; i < r->workers_used; i++) {
        const struct worker *w = &r->workers[i];
        if (w->engine == NULL || !decodes_for(c, w->engine, from, lora)) continue;
        double tbt, cost = decode_cost(c, w, from, &tbt);
        if (cost < least) least = cost, best = (struct decode_choice){i, tbt};
    }
    return best;
}
