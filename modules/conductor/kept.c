#include "conductor/kept.h"

#include <endian.h>
#include <stdio.h>
#include <string.h>
#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "conductor/command.h"
#include "conductor/metrics.h"
#include "conductor/streams.h"

static struct tarn_durable *kept;
static struct buf record;  /* a reservation, while it is written */
static struct buf touched; /* ids of requests, each with a byte for its length in front */

static void kept_touch(struct span request) {
    if (!conductor_services->leads()) return;
    buf_append_char(&touched, (char)request.len);
    buf_append(&touched, request.data, request.len);
}

static void on_end(void *arg, struct span request) {
    kept_touch(request);
}

tarn_status kept_open(void) {
    tarn_status status = conductor_services->durable_open(&kept);
    if (status == TARN_OK) route_ended_set(conductor_route, on_end, NULL);
    return status;
}

/* "d/" and the like, before an engine's id or a request's. */
#define PREFIX   2u
#define NAME_MAX (PREFIX + ROUTE_NAME_MAX)
static struct span name_with(const char prefix[PREFIX + 1], struct span id, char out[NAME_MAX]) {
    TARN_ASSERT(id.len <= ROUTE_NAME_MAX);
    memcpy(out, prefix, PREFIX);
    if (id.len > 0) memcpy(out + PREFIX, id.data, id.len);
    return span_of(out, PREFIX + id.len);
}

static struct span name_behind(struct span name) {
    return span_of(name.data + PREFIX, name.len - PREFIX);
}

/* --- the route follows --- */

/* A rank that comes anew may be the engine's first. */
static void route_take_keys(struct span id) {
    char name[NAME_MAX];
    struct span keys;
    if (conductor_services->durable_get(kept, name_with("k/", id, name), &keys) == TARN_OK)
        (void)route_engine_keys(conductor_route, id, keys, conductor_now_us());
}

static tarn_status route_take(const struct registration *x) {
    struct route_engine_spec spec;
    registration_spec(x, &spec);
    tarn_status status = route_engine_add(conductor_route, &spec, conductor_now_us());
    if (status == TARN_EEXISTS)
        status = route_rank_add(conductor_route, x->id, x->rank, conductor_now_us());
    if (status == TARN_OK) route_take_keys(x->id);
    return status;
}

/* Its streams and figures. */
static void sources_follow(const struct registration *x) {
    streams_follow(x);
    metrics_follow(x);
}

/* With these. */
static void route_drop(struct span id, uint32_t rank) {
    uint32_t worker = route_worker_find(conductor_route, id, rank);
    streams_leave(worker);
    metrics_leave(worker);
    (void)route_rank_remove(conductor_route, id, rank, conductor_now_us());
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
        route_drop(x.id, x.rank);
        return;
    }
    if (!registration_read(*value, &x)) {
        log_warning("Conductor: a registration of engine %.*s is not readable, and left out",
                    (int)x.id.len, x.id.data);
        return;
    }
    if (!route_has(&x)) {
        route_drop(x.id, x.rank);
        if (route_take(&x) != TARN_OK)
            log_warning("Conductor: engine %.*s is registered, but %s", (int)x.id.len, x.id.data,
                        route_error(conductor_route));
    }
    sources_follow(&x);
}

static void follow_drain(struct span name, const struct span *value) {
    (void)route_engine_drain(conductor_route, name_behind(name), value != NULL, conductor_now_us());
}

static void follow_keys(struct span name, const struct span *value) {
    (void)route_engine_keys(conductor_route, name_behind(name),
                            value != NULL ? *value : span_of(NULL, 0), conductor_now_us());
}

static void follow_learnt(struct span name, const struct span *value) {
    if (value != NULL && value->len == ROUTE_LEARNT_SIZE)
        (void)route_learnt_import(conductor_route, name_behind(name), (const uint8_t *)value->data);
}

/* Clocks of two machines may differ: a reservation that seems to come from the future is new. */
static void follow_request(struct span name, const struct span *value) {
    struct span id = name_behind(name);
    uint64_t then, now = clock_wall_ms();
    if (value == NULL) {
        (void)route_done(conductor_route, id, 0, false, conductor_now_us());
        return;
    }
    if (value->len < sizeof(then)) return;
    memcpy(&then, value->data, sizeof(then));
    then = le64toh(then);
    (void)route_request_import(conductor_route, id,
                               span_of(value->data + sizeof(then), value->len - sizeof(then)),
                               now > then ? now - then : 0, conductor_now_us());
}

/* In the order in which one needs the other. */
enum { REQUESTS = 4, KINDS };
static const struct {
    const char *prefix;
    void (*follow)(struct span name, const struct span *value);
} kinds[KINDS] = {{"e/", follow_registration},
                  {"d/", follow_drain},
                  {"k/", follow_keys},
                  {"l/", follow_learnt},
                  [REQUESTS] = {"r/", follow_request}};

/* Names of what is kept and not yet followed, by kind, each with u16 for its length in front. */
static struct {
    struct buf names;
    size_t at;
} ahead[KINDS];

static bool ahead_add(void *arg, struct span name, struct span value) {
    uint16_t len = (uint16_t)name.len;
    for (size_t kind = 0; kind < KINDS; kind++) {
        if (!span_starts(name, span_str(kinds[kind].prefix))) continue;
        buf_append(&ahead[kind].names, &len, sizeof(len));
        buf_append(&ahead[kind].names, name.data, name.len);
    }
    return true;
}

static void ahead_clear(size_t kind) {
    buf_free(&ahead[kind].names);
    ahead[kind].at = 0;
}

/* Up to n of a kind. What is gone meanwhile was followed then. true: there are more. */
static bool ahead_follow(size_t kind, size_t n) {
    const struct buf *names = &ahead[kind].names;
    for (; n > 0 && ahead[kind].at < names->len; n--) {
        uint16_t len;
        struct span value;
        const char *at = names->data + ahead[kind].at;
        memcpy(&len, at, sizeof(len));
        struct span name = span_of(at + sizeof(len), len);
        ahead[kind].at += sizeof(len) + len;
        if (conductor_services->durable_get(kept, name, &value) == TARN_OK)
            kinds[kind].follow(name, &value);
    }
    if (ahead[kind].at < names->len) return true;
    ahead_clear(kind);
    return false;
}

#define FOLLOW_MOST 256u /* requests in one turn of the loop: half a millisecond */

bool kept_follow_some(void) {
    return ahead_follow(REQUESTS, FOLLOW_MOST);
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

/* What is not kept any more. */
static void engines_undrain(void) {
    struct route_engine_view v;
    char name[NAME_MAX];
    struct span value;
    for (uint32_t at = 0; route_engine_next(conductor_route, &at, 0, &v);)
        if (v.state == ROUTE_DRAINS &&
            conductor_services->durable_get(kept, name_with("d/", span_str(v.id), name), &value) !=
                TARN_OK)
            (void)route_engine_drain(conductor_route, span_str(v.id), false, conductor_now_us());
}

static void engines_forget_keys(void) {
    struct route_engine_view v;
    char name[NAME_MAX];
    struct span value;
    for (uint32_t at = 0; route_engine_next(conductor_route, &at, 0, &v);)
        if (v.keys[0] != '\0' &&
            conductor_services->durable_get(kept, name_with("k/", span_str(v.id), name), &value) !=
                TARN_OK)
            (void)route_engine_keys(conductor_route, span_str(v.id), SPAN(""), conductor_now_us());
}

void kept_follow_all(void) {
    char id[ROUTE_NAME_MAX + 1];
    uint32_t rank;
    route_ended_set(conductor_route, NULL, NULL);
    route_requests_clear(conductor_route);
    route_ended_set(conductor_route, on_end, NULL);
    while (engine_unkept(id, &rank)) route_drop(span_str(id), rank);
    for (size_t kind = 0; kind < KINDS; kind++) ahead_clear(kind);
    conductor_services->durable_each(kept, ahead_add, NULL);
    for (size_t kind = 0; kind < REQUESTS; kind++) ahead_follow(kind, SIZE_MAX);
    engines_undrain();
    engines_forget_keys();
    if (conductor_services->leads()) ahead_follow(REQUESTS, SIZE_MAX);
}

void kept_changed(const struct span *name, const struct span *value) {
    if (name == NULL) {
        kept_follow_all();
        return;
    }
    for (size_t kind = 0; kind < KINDS; kind++)
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

tarn_status kept_follow_other(const struct registration *x) {
    char name[REGISTRATION_NAME_MAX];
    struct buf value = {NULL, 0, 0};
    registration_write(x, &value);
    tarn_status status = conductor_services->durable_set(
        kept, registration_name(x->id, x->rank, name), span_of(value.data, value.len));
    buf_free(&value);
    if (status == TARN_OK) sources_follow(x);
    return status;
}

tarn_status kept_register(const struct registration *x, bool *route_p) {
    tarn_status status = route_take(x);
    *route_p = status != TARN_OK;
    if (*route_p) return status;
    status = kept_follow_other(x);
    if (status != TARN_OK) route_drop(x->id, x->rank);
    return status;
}

bool kept_engine_there(struct span id) {
    for (uint32_t rank = 0; rank < ROUTE_RANKS_MAX; rank++)
        if (route_worker_find(conductor_route, id, rank) != ROUTE_NO_WORKER) return true;
    return false;
}

/* The route may have had no room for it. */
static bool engine_kept(struct span id) {
    char name[REGISTRATION_NAME_MAX];
    struct span value;
    for (uint32_t rank = 0; rank < ROUTE_RANKS_MAX; rank++)
        if (conductor_services->durable_get(kept, registration_name(id, rank, name), &value) ==
            TARN_OK)
            return true;
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
        route_drop(id, i);
        any = TARN_OK;
    }
    if (any == TARN_OK && !engine_kept(id)) {
        (void)conductor_services->durable_delete(kept, name_with("d/", id, name));
        (void)conductor_services->durable_delete(kept, name_with("k/", id, name));
        (void)conductor_services->durable_delete(kept, name_with("l/", id, name));
    }
    return any;
}

tarn_status kept_drain(struct span id, bool drain) {
    char name[NAME_MAX];
    if (!span_is_name(id, ROUTE_NAME_MAX) || !kept_engine_there(id)) return TARN_ENOTFOUND;
    struct span key = name_with("d/", id, name);
    tarn_status status = drain ? conductor_services->durable_set(kept, key, SPAN(""))
                               : conductor_services->durable_delete(kept, key);
    if (status != TARN_OK && status != TARN_ENOTFOUND) return status;
    return route_engine_drain(conductor_route, id, drain, conductor_now_us());
}

tarn_status kept_keys(struct span id, struct span keys) {
    char name[NAME_MAX];
    if (!span_is_name(id, ROUTE_NAME_MAX) || !kept_engine_there(id)) return TARN_ENOTFOUND;
    struct span key = name_with("k/", id, name), was;
    /* Connectors say it again every now and then. */
    if (conductor_services->durable_get(kept, key, &was) == TARN_OK && span_eq(was, keys))
        return TARN_OK;
    tarn_status status = keys.len > 0 ? conductor_services->durable_set(kept, key, keys)
                                      : conductor_services->durable_delete(kept, key);
    if (status != TARN_OK && (keys.len > 0 || status != TARN_ENOTFOUND)) return status;
    return route_engine_keys(conductor_route, id, keys, conductor_now_us());
}

/* --- reservations --- */

#define WRITE_MOST      256u /* requests in one call */
#define LEARNT_EVERY_US 1000000u

static bool room_left(void) {
    uint64_t most, used = conductor_services->durable_bytes(kept, &most);
    return used < most / 4 * 3;
}

/* As it is now: there, or not any more. */
static tarn_status request_write(struct span request) {
    char name[NAME_MAX];
    struct span key = name_with("r/", request, name);
    uint64_t now = htole64(clock_wall_ms());
    buf_clear(&record);
    buf_append(&record, &now, sizeof(now));
    if (route_request_export(conductor_route, request, &record) != TARN_OK)
        return conductor_services->durable_delete(kept, key);
    tarn_status status =
        room_left() ? conductor_services->durable_set(kept, key, span_of(record.data, record.len))
                    : TARN_ELIMIT;
    conductor_figures.conductor_requests_unkept += status == TARN_ELIMIT;
    return status;
}

/* Not now, as writes are held back, or what runs may not write. */
static bool comes_again(tarn_status status) {
    return status == TARN_ELATER || status == TARN_EPERM;
}

void kept_tell(struct span request) {
    if (conductor_services->leads() && comes_again(request_write(request))) kept_touch(request);
}

bool kept_write(void) {
    size_t at = 0;
    for (size_t n = 0; at < touched.len && n < WRITE_MOST; n++) {
        size_t len = (uint8_t)touched.data[at];
        if (comes_again(request_write(span_of(touched.data + at + 1, len)))) break;
        at += 1 + len;
    }
    buf_consume(&touched, at);
    return touched.len > 0;
}

/* --- what was learnt --- */

void kept_write_learnt(void) {
    static uint32_t cursor;
    static uint64_t round_us;
    struct route_engine_view v;
    uint8_t learnt[ROUTE_LEARNT_SIZE];
    char name[NAME_MAX];
    uint64_t now_us = conductor_now_us();
    if (!conductor_services->leads() || (cursor == 0 && now_us - round_us < LEARNT_EVERY_US))
        return;
    if (cursor == 0) round_us = now_us;
    if (!route_engine_next(conductor_route, &cursor, now_us, &v)) {
        cursor = 0;
        return;
    }
    struct span id = span_str(v.id);
    if (v.prefill_seen + v.decode_seen > 0 &&
        route_learnt_export(conductor_route, id, learnt) == TARN_OK)
        (void)conductor_services->durable_set(kept, name_with("l/", id, name),
                                              span_of(learnt, sizeof(learnt)));
}

/* --- whose it is --- */

static bool touch_ended(void *arg, struct span name, struct span value) {
    struct buf ignored = {NULL, 0, 0};
    if (!span_starts(name, SPAN("r/"))) return true;
    if (route_request_export(conductor_route, name_behind(name), &ignored) != TARN_OK)
        kept_touch(name_behind(name));
    buf_free(&ignored);
    return true;
}

/* Leases that have ended here before the former master told of it. */
void kept_role(bool leads) {
    buf_clear(&touched);
    if (leads) ahead_follow(REQUESTS, SIZE_MAX);
    if (leads) conductor_services->durable_each(kept, touch_ended, NULL);
}

/* Requests that ended and are not written would be there again when the module comes back. Those
 * that cannot be written now (writes are held back) end with their leases. */
static void kept_write_rest(void) {
    size_t left;
    do left = touched.len;
    while (kept_write() && touched.len < left);
}

void kept_close(void) {
    if (conductor_route != NULL) route_ended_set(conductor_route, NULL, NULL);
    kept_write_rest();
    for (size_t kind = 0; kind < KINDS; kind++) ahead_clear(kind);
    buf_free(&touched);
    buf_free(&record);
}
