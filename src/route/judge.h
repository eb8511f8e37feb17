/* Whether an engine may take part in serving a request. Here, and not behind a call, because a
 * decision asks all of them. */
#ifndef TARN_ROUTE_JUDGE_H
#define TARN_ROUTE_JUDGE_H

#include "route/internal.h"

/* By names, which few engines and requests ask for. In candidate.c. */
enum engine_verdict engine_judge_names(const struct route_request *q, const struct route_engine *e);

/* Of any role. always_inline: hundreds of engines are judged in a decision. */
__attribute__((always_inline)) static inline enum engine_verdict
engine_judge(const struct cost_case *c, const struct route_engine *e) {
    if (e == NULL || e->model != c->model || (e->lora != c->lora && !e->any_lora))
        return ENGINE_OF_OTHERS;
    if (e->of_tenant || c->request->exclude_count > 0) {
        enum engine_verdict by_names = engine_judge_names(c->request, e);
        if (by_names != ENGINE_MAY) return by_names;
    }
    switch (engine_state(c->route, e)) {
    case ROUTE_UP: return ENGINE_MAY;
    case ROUTE_DRAINS: return ENGINE_DRAINS;
    case ROUTE_SILENT: return ENGINE_SILENT;
    case ROUTE_BACKS_OFF: return ENGINE_BACKS_OFF;
    }
    return ENGINE_OF_OTHERS;
}

#endif
