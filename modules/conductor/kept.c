#include "conductor/kept.h"

#include <stdio.h>
#include <string.h>
#include "base/assert.h"
#include "base/log.h"
#include "conductor/command.h"

static struct tarn_durable *kept;

tarn_status kept_open(void) {
    return conductor_services->durable_open(&kept);
}

/* "d/" and the like before an engine's id. */
static struct span name_with(const char *prefix, struct span id, char out[REGISTRATION_NAME_MAX]) {
    TARN_ASSERT(id.len <= ROUTE_NAME_MAX);
    int len = snprintf(out, REGISTRATION_NAME_MAX, "%s%.*s", prefix, (int)id.len, id.data);
    return span_of(out, (size_t)len);
}

static struct span name_behind(struct span name, size_t prefix) {
    return span_of(name.data + prefix, name.len - prefix);
}

/* --- the route follows --- */

static tarn_status route_take(const struct registration *x) {
    struct route_engine_spec spec;
    registration_spec(x, &spec);
    tarn_status status = route_engine_add(conductor_route, &spec, conductor_now_us());
    if (status == TARN_EEXISTS)
        status = route_rank_add(conductor_route, x->id, x->rank, conductor_now_us());
    return status;
}

/* Has the route what was registered? Its blocks may have been told by reports since. */
static bool route_has(const struct registration *x) {
    struct route_engine_view v;
    struct route_engine_spec spec;
    uint32_t at = route_worker_find(conductor_route, x->id, x->rank);
    if (at == ROUTE_NO_WORKER || !route_engine_next(conductor_route, &at, 0, &v)) return false;
    registration_spec(x, &spec);
    struct span tenant = span_eq(spec.tenant, SPAN("default")) ? SPAN("") : spec.tenant;
    return v.role == spec.role && span_eq(span_str(v.model), spec.model) &&
           span_eq(span_str(v.lora), spec.lora) && span_eq(span_str(v.tenant), tenant) &&
           span_eq(span_str(v.salt), spec.salt) && span_eq(span_str(v.host), spec.host) &&
           span_eq(span_str(v.rack), spec.rack) && v.block_tokens == spec.block_tokens &&
           v.bytes_per_token == spec.bytes_per_token;
}

static void follow_registration(struct span name, const struct span *value) {
    struct registration x;
    if (!registration_named(name, &x.id, &x.rank)) return;
    if (value == NULL) {
        (void)route_rank_remove(conductor_route, x.id, x.rank, conductor_now_us());
        return;
    }
    if (!registration_read(*value, &x)) {
        log_warning("Conductor: a registration of engine %.*s is not readable, and left out",
                    (int)x.id.len, x.id.data);
        return;
    }
    if (route_has(&x)) return;
    (void)route_rank_remove(conductor_route, x.id, x.rank, conductor_now_us());
    if (route_take(&x) != TARN_OK)
        log_warning("Conductor: engine %.*s is registered, but %s", (int)x.id.len, x.id.data,
                    route_error(conductor_route));
}

static void follow_drain(struct span name, const struct span *value) {
    (void)route_engine_drain(conductor_route, name_behind(name, 2), value != NULL,
                             conductor_now_us());
}

static const struct {
    const char *prefix;
    void (*follow)(struct span name, const struct span *value);
} kinds[] = {{"e/", follow_registration}, {"d/", follow_drain}};

/* What one kind has, when what it is about is there already. */
static bool follow_each(void *arg, struct span name, struct span value) {
    size_t kind = *(const size_t *)arg;
    if (span_starts(name, span_str(kinds[kind].prefix))) kinds[kind].follow(name, &value);
    return true;
}

/* One that is not kept. false: there is none. */
static bool engine_unkept(char id[ROUTE_NAME_MAX + 1], uint32_t *rank_p) {
    struct route_engine_view v;
    struct registration x;
    for (uint32_t at = 0; route_engine_next(conductor_route, &at, 0, &v);) {
        if (kept_registration(span_str(v.id), v.rank, &x)) continue;
        snprintf(id, ROUTE_NAME_MAX + 1, "%s", v.id);
        *rank_p = v.rank;
        return true;
    }
    return false;
}

static void engines_undrain(void) {
    struct route_engine_view v;
    char name[REGISTRATION_NAME_MAX];
    struct span value;
    for (uint32_t at = 0; route_engine_next(conductor_route, &at, 0, &v);)
        if (v.state == ROUTE_DRAINS &&
            conductor_services->durable_get(kept, name_with("d/", span_str(v.id), name), &value) !=
                TARN_OK)
            (void)route_engine_drain(conductor_route, span_str(v.id), false, conductor_now_us());
}

void kept_follow_all(void) {
    char id[ROUTE_NAME_MAX + 1];
    uint32_t rank;
    while (engine_unkept(id, &rank))
        (void)route_rank_remove(conductor_route, span_str(id), rank, conductor_now_us());
    for (size_t kind = 0; kind < ARRAY_LEN(kinds); kind++)
        conductor_services->durable_each(kept, follow_each, &kind);
    engines_undrain();
}

void kept_changed(const struct span *name, const struct span *value) {
    if (name == NULL) {
        kept_follow_all();
        return;
    }
    for (size_t kind = 0; kind < ARRAY_LEN(kinds); kind++)
        if (span_starts(*name, span_str(kinds[kind].prefix))) kinds[kind].follow(*name, value);
}

/* --- by command --- */

bool kept_registration(struct span id, uint32_t rank, struct registration *x) {
    char name[REGISTRATION_NAME_MAX];
    struct span value;
    if (!span_is_name(id, ROUTE_NAME_MAX) ||
        conductor_services->durable_get(kept, registration_name(id, rank, name), &value) != TARN_OK)
        return false;
    x->id = id;
    x->rank = rank;
    return registration_read(value, x);
}

tarn_status kept_register(const struct registration *x, bool *route_p) {
    char name[REGISTRATION_NAME_MAX];
    struct buf value = {NULL, 0, 0};
    tarn_status status = route_take(x);
    *route_p = status != TARN_OK;
    if (*route_p) return status;
    registration_write(x, &value);
    status = conductor_services->durable_set(kept, registration_name(x->id, x->rank, name),
                                             span_of(value.data, value.len));
    buf_free(&value);
    if (status != TARN_OK)
        (void)route_rank_remove(conductor_route, x->id, x->rank, conductor_now_us());
    return status;
}

static bool any_rank(struct span id) {
    for (uint32_t rank = 0; rank < ROUTE_RANKS_MAX; rank++)
        if (route_worker_find(conductor_route, id, rank) != ROUTE_NO_WORKER) return true;
    return false;
}

tarn_status kept_unregister(struct span id, uint64_t rank) {
    char name[REGISTRATION_NAME_MAX];
    tarn_status status, any = TARN_ENOTFOUND;
    if (!span_is_name(id, ROUTE_NAME_MAX)) return TARN_ENOTFOUND;
    for (uint32_t i = 0; i < ROUTE_RANKS_MAX; i++) {
        if (rank != CONDUCTOR_UNTOLD && rank != i) continue;
        status = conductor_services->durable_delete(kept, registration_name(id, i, name));
        if (status == TARN_ENOTFOUND) continue;
        if (status != TARN_OK) return status;
        (void)route_rank_remove(conductor_route, id, i, conductor_now_us());
        any = TARN_OK;
    }
    if (any == TARN_OK && !any_rank(id))
        (void)conductor_services->durable_delete(kept, name_with("d/", id, name));
    return any;
}

tarn_status kept_drain(struct span id, bool drain) {
    char name[REGISTRATION_NAME_MAX];
    if (!span_is_name(id, ROUTE_NAME_MAX) || !any_rank(id)) return TARN_ENOTFOUND;
    struct span key = name_with("d/", id, name);
    tarn_status status = drain ? conductor_services->durable_set(kept, key, SPAN(""))
                               : conductor_services->durable_delete(kept, key);
    if (status != TARN_OK && status != TARN_ENOTFOUND) return status;
    return route_engine_drain(conductor_route, id, drain, conductor_now_us());
}
