/* Whether everything adds up; for tests. */
#include <math.h>
#include "route/internal.h"

static void check_prefills(const struct worker *w, uint32_t number) {
    uint64_t tokens = 0, count = 0;
    double us = 0, send_us = 0;
    const struct route_reservation *q;
    TAILQ_FOREACH(q, &w->prefills, prefill_link) {
        TARN_ASSERT(q->state == REQUEST_PREFILL && q->prefill == number);
        tokens += q->new_tokens;
        us += q->prefill_us;
        send_us += q->send_us;
        count++;
    }
    TARN_ASSERT(tokens == w->prefill_tokens.now && count == w->waiting.now);
    TARN_ASSERT(fabs(us - w->prefill_us) <= 1e-6 * (us + 1));
    TARN_ASSERT(fabs(send_us - w->send_us) <= 1e-6 * (send_us + 1));
}

static void check_decodes(const struct worker *w, uint32_t number) {
    uint64_t running = 0, context = 0, alone = 0, count = 0;
    const struct route_reservation *q;
    TAILQ_FOREACH(q, &w->decodes, decode_link) {
        TARN_ASSERT(q->decode == number);
        running += q->state == REQUEST_DECODE;
        context += q->prompt_tokens + q->output_tokens / 2;
        alone += (q->decode == q->prefill ? q->new_tokens + q->load_tokens : q->prompt_tokens) +
                 q->output_tokens / 2;
        count++;
    }
    TARN_ASSERT(running == w->running.now && context == w->context_tokens.now);
    TARN_ASSERT(alone == w->alone_tokens && alone <= context);
    TARN_ASSERT(count == w->decodes_reserved);
}

/* What tenants have waiting is theirs of what workers have. */
static void check_tenants(const struct route *r, uint64_t of_tenants) {
    const struct tenant *who;
    uint64_t waiting = 0;
    double weights = 0;
    TAILQ_FOREACH(who, &r->tenants.by_use, by_use) {
        waiting += who->waiting;
        weights += who->waiting > 0 ? who->weight : 0;
    }
    TARN_ASSERT(waiting == of_tenants);
    TARN_ASSERT(fabs(weights - r->tenants.weights) <= 1e-6 * (weights + 1));
}

static void check_sessions(const struct route *r) {
    const struct route_session *s;
    uint64_t count = 0;
    TAILQ_FOREACH(s, &r->sessions.by_use, by_use) count++;
    TARN_ASSERT(count == r->sessions.table.count && count == r->figures.route_sessions);
    TARN_ASSERT(count <= r->options.sessions_max);
}

void route_check(const struct route *r) {
    uint64_t workers = 0, of_tenants = 0;
    const struct route_reservation *q;
    for (uint32_t i = 0; i < r->workers_used; i++) {
        const struct worker *w = &r->workers[i];
        if (w->engine == NULL) continue;
        workers++;
        TARN_ASSERT(w->engine->workers[w->rank] == i);
        check_prefills(w, i);
        check_decodes(w, i);
        TAILQ_FOREACH(q, &w->prefills, prefill_link) of_tenants += q->tenant != NULL;
    }
    check_tenants(r, of_tenants);
    check_sessions(r);
    TARN_ASSERT(workers == r->figures.route_workers);
    TARN_ASSERT(r->requests.count == r->figures.route_reserved);
    TARN_ASSERT(r->engines.count == r->figures.route_engines);
}
