/* Which engine decodes what another has computed.
 *
 * What the system loses by each: the time to bring the KV there, the request's own steps, and by
 * how much it makes the steps of those that decode there longer, for as long as these go on. One
 * that cannot keep the TBT comes behind those that can; one that has no room for the context, or no
 * place in its batch, comes last: somebody would be preempted. */
#include <math.h>
#include "route/judge.h"

/* Above any sum of times. */
#define TOO_SLOW_US 1e14
#define NO_ROOM_US  1e15

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

static struct decode_cost decode_weigh(const struct cost_case *c, const struct worker *w,
                                       const struct route_engine *prefill) {
    const struct route_engine *e = w->engine;
    double running = (double)(w->decodes_reserved + w->foreign_running);
    double before = (double)worker_context(w);
    double after = before + c->prompt_tokens + c->output_tokens / 2.0;
    double step = step_with(c, w);
    double slower = running * most_of(step - step_us(e, running, before), 0);
    double others_left = least_of(c->output_tokens, c->route->output_mean / 2);
    return (struct decode_cost){.transfer_us = transfer_between(prefill, e, c->prompt_tokens).us,
                                .steps_us = step * c->output_tokens,
                                .others_us = slower * others_left,
                                .tbt_us = step,
                                .late = step > c->tbt_bound_us,
                                .no_room = !room_left(c, w, after)};
}

static double decode_sum(const struct decode_cost *k) {
    return k->transfer_us + k->steps_us + k->others_us + (k->late ? TOO_SLOW_US : 0) +
           (k->no_room ? NO_ROOM_US : 0);
}

struct decode_choice decode_choose(struct cost_case *c, uint32_t prefill) {
    struct route *r = c->route;
    const struct route_engine *from = r->workers[prefill].engine;
    struct decode_choice best = {.worker = ROUTE_NO_WORKER};
    double least = INFINITY;
    if (from->role == ROUTE_BOTH)
        return (struct decode_choice){prefill, step_with(c, &r->workers[prefill])};
    r->passed_count = r->passed_prefills; /* it may be looked for twice in a decision */
    explain_decodes_begin(r);
    for (uint32_t i = 0; i < r->workers_used; i++) {
        const struct worker *w = &r->workers[i];
        if (w->engine == NULL || w->engine->role != ROUTE_DECODE) continue;
        enum engine_verdict verdict = engine_judge(c, w->engine);
        if (verdict > ENGINE_DECODES) engine_passed(r, i, verdict);
        if (verdict != ENGINE_MAY) continue;
        struct decode_cost k = decode_weigh(c, w, from);
        explain_decode(r, i, &k);
        if (decode_sum(&k) < least)
            least = decode_sum(&k), best = (struct decode_choice){i, k.tbt_us};
    }
    return best;
}
