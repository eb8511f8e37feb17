#include "conductor/enroll.h"

#include <stdarg.h>
#include <stdio.h>
#include "base/assert.h"
#include "conductor/conductor.h"
#include "conductor/kept.h"
#include "conductor/metrics.h"
#include "conductor/streams.h"

__attribute__((format(printf, 5, 6))) static bool refuse(struct refusal *why, const char *code,
                                                         tarn_status status,
                                                         enum engine_field field, const char *fmt,
                                                         ...) {
    va_list ap;
    va_start(ap, fmt);
    why->code = code;
    why->status = status;
    why->field = field;
    vsnprintf(why->text, sizeof(why->text), fmt, ap);
    va_end(ap);
    return false;
}

void enroll_refuse_kept(struct refusal *why, tarn_status status) {
    if (status == TARN_ELIMIT)
        (void)refuse(why, "LIMIT", status, ENGINE_FIELDS,
                     "there is no room to keep it: module-state-max");
    else
        (void)refuse(why, status == TARN_EREADONLY ? "READONLY" : "ERR", status, ENGINE_FIELDS,
                     "it cannot be kept: %s", tarn_status_text(status));
}

bool enroll_find(struct span id, uint32_t rank, struct registration *x, bool *two_ranks_p) {
    *two_ranks_p = false;
    if (kept_registration(id, rank, x)) return true;
    *two_ranks_p = true;
    for (uint32_t other = 0; other < ROUTE_RANKS_MAX; other++)
        if (other != rank && kept_registration(id, other, x)) return true;
    return false;
}

static bool endpoints_check(const struct registration *x, struct refusal *why) {
    struct span metrics = x->field[ENGINE_METRICS];
    for (enum engine_field f = ENGINE_EVENTS; f <= ENGINE_REPLAY; f++) {
        if (x->field[f].len == 0 || streams_endpoint_valid(x->field[f])) continue;
        return refuse(why, "ERR", TARN_EINVAL, f, "%s must be tcp://HOST:PORT or ipc://PATH",
                      engine_field_name(f));
    }
    if (x->field[ENGINE_EVENTS].len == 0 && x->field[ENGINE_REPLAY].len > 0)
        return refuse(why, "ERR", TARN_EINVAL, ENGINE_REPLAY, "REPLAY goes with EVENTS");
    if (metrics.len == 0 || scraper_url_valid(metrics)) return true;
    return refuse(why, "ERR", TARN_EINVAL, ENGINE_METRICS,
                  "METRICS must be http://HOST:PORT/PATH, https://..., or YES where url is such a "
                  "one");
}

static struct span shown(struct span s) {
    return s.len == 0 ? SPAN("nothing") : s;
}

/* An engine keeps its values for as long as it is registered: what is in the index, and what its
 * models have learnt, is of these. */
static bool refuse_differing(struct refusal *why, const struct registration *was,
                             const struct registration *now, enum engine_field f) {
    struct span a = shown(was->field[f]), b = shown(now->field[f]);
    conductor_figures.conductor_engines_differing++;
    return refuse(why, "ERR", TARN_EEXISTS, f,
                  "engine '%.*s' is registered with %s %.*s, not %.*s: CONDUCTOR.REMOVE it before "
                  "it comes back as another",
                  (int)now->id.len, now->id.data, engine_field_name(f), (int)a.len, a.data,
                  (int)b.len, b.data);
}

static bool enroll_keep(const struct registration *x, bool renewed, bool moved,
                        struct refusal *why) {
    bool by_route = false;
    tarn_status status = TARN_OK;
    if (!renewed)
        status = kept_register(x, &by_route);
    else if (moved)
        status = kept_follow_other(x);
    if (status == TARN_OK) return true;
    if (by_route)
        return refuse(why, status == TARN_ELIMIT ? "LIMIT" : "ERR", status, ENGINE_FIELDS, "%s",
                      route_error(conductor_route));
    enroll_refuse_kept(why, status);
    return false;
}

bool enroll(const struct registration *x, struct refusal *why) {
    struct registration was;
    bool two_ranks, moved = false;
    if (!endpoints_check(x, why)) return false;
    bool there = enroll_find(x->id, x->rank, &was, &two_ranks);
    if (there) {
        enum engine_field f = registration_differs(&was, x, two_ranks);
        if (f != ENGINE_FIELDS) return refuse_differing(why, &was, x, f);
        moved = registration_sources_differ(&was, x);
    }
    uint32_t worker = route_worker_find(conductor_route, x->id, x->rank);
    bool renewed = there && !two_ranks && worker != ROUTE_NO_WORKER;
    if (renewed) {
        struct route_engine_view v;
        conductor_figures.conductor_engines_renewed++;
        /* One that never says how loaded it is is not expected to be heard. */
        if (route_engine_next(conductor_route, &worker, conductor_now_us(), &v) && v.heard_us > 0)
            (void)route_engine_beat(conductor_route, x->id, conductor_now_us());
    }
    return enroll_keep(x, renewed, moved, why);
}
