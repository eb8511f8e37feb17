#include "conductor/engines.h"

#include <stdio.h>
#include <string.h>
#include "base/assert.h"
#include "kvevents/follow.h"
#include "scrape/scraper.h"

static const struct {
    char tag;
    const char *name;
    uint64_t most; /* of numbers; 0: it is a text */
    size_t len;    /* of texts, at most */
} fields[ENGINE_FIELDS] = {
    [ENGINE_URL] = {'u', "url", 0, ROUTE_URL_MAX},
    [ENGINE_EVENTS] = {'e', "EVENTS", 0, KVEVENTS_ENDPOINT - 1},
    [ENGINE_REPLAY] = {'p', "REPLAY", 0, KVEVENTS_ENDPOINT - 1},
    [ENGINE_METRICS] = {'x', "METRICS", 0, SCRAPER_URL - 1},
    [ENGINE_ROLE] = {'r', "ROLE", 0, ROUTE_NAME_MAX},
    [ENGINE_MODEL] = {'m', "MODEL", 0, ROUTE_NAME_MAX},
    [ENGINE_LORA] = {'l', "LORA", 0, ROUTE_NAME_MAX},
    [ENGINE_TENANT] = {'t', "TENANT", 0, ROUTE_NAME_MAX},
    [ENGINE_SALT] = {'s', "SALT", 0, ROUTE_NAME_MAX},
    [ENGINE_BLOCK] = {'b', "BLOCK", 1u << 20, 0},
    [ENGINE_KVBLOCKS] = {'k', "KVBLOCKS", UINT32_MAX, 0},
    [ENGINE_HOST] = {'h', "HOST", 0, ROUTE_NAME_MAX},
    [ENGINE_RACK] = {'c', "RACK", 0, ROUTE_NAME_MAX},
    [ENGINE_BYTES] = {'y', "BYTES", UINT32_MAX, 0},
};

const char *engine_field_name(enum engine_field f) {
    return fields[f].name;
}

/* --- as bytes --- */

void registration_write(const struct registration *x, struct buf *out) {
    for (size_t f = 0; f < ENGINE_FIELDS; f++) {
        struct span s = x->field[f];
        if (s.len == 0) continue;
        const char head[3] = {fields[f].tag, (char)(s.len & 0xff), (char)(s.len >> 8)};
        buf_append(out, head, sizeof(head));
        buf_append(out, s.data, s.len);
    }
}

static bool field_fits(size_t f, struct span s) {
    uint64_t number;
    if (s.len == 0) return f != ENGINE_URL && f != ENGINE_MODEL && f != ENGINE_BLOCK;
    if (fields[f].most == 0) return s.len <= fields[f].len;
    return span_to_u64(s, &number) && number <= fields[f].most;
}

bool registration_read(struct span value, struct registration *x) {
    memset(x->field, 0, sizeof(x->field));
    while (value.len > 0) {
        if (value.len < 3) return false;
        size_t len = (uint8_t)value.data[1] | (size_t)(uint8_t)value.data[2] << 8, f = 0;
        if (value.len - 3 < len) return false;
        while (f < ENGINE_FIELDS && fields[f].tag != value.data[0]) f++;
        if (f < ENGINE_FIELDS) x->field[f] = span_of(value.data + 3, len);
        value = span_of(value.data + 3 + len, value.len - 3 - len);
    }
    for (size_t f = 0; f < ENGINE_FIELDS; f++)
        if (!field_fits(f, x->field[f])) return false;
    return true;
}

struct span registration_name(struct span id, uint32_t rank, char out[REGISTRATION_NAME_MAX]) {
    TARN_ASSERT(id.len <= ROUTE_NAME_MAX && rank < ROUTE_RANKS_MAX);
    int len = snprintf(out, REGISTRATION_NAME_MAX, "e/%.*s/%u", (int)id.len, id.data, rank);
    return span_of(out, (size_t)len);
}

bool registration_named(struct span name, struct span *id_p, uint32_t *rank_p) {
    uint64_t rank;
    if (!span_starts(name, SPAN("e/"))) return false;
    const char *slash = memrchr(name.data + 1, '/', name.len - 1);
    *id_p = span_of(name.data + 2, slash > name.data + 1 ? (size_t)(slash - name.data - 2) : 0);
    struct span last = span_of(slash + 1, (size_t)(name.data + name.len - slash - 1));
    if (!span_is_name(*id_p, ROUTE_NAME_MAX) || !span_to_u64(last, &rank)) return false;
    *rank_p = (uint32_t)rank;
    return rank < ROUTE_RANKS_MAX;
}

/* --- what it means --- */

static bool field_is_source(size_t f) {
    return f == ENGINE_EVENTS || f == ENGINE_REPLAY || f == ENGINE_METRICS;
}

enum engine_field registration_differs(const struct registration *a, const struct registration *b,
                                       bool two_ranks) {
    for (size_t f = two_ranks ? ENGINE_OF_ALL : 0; f < ENGINE_FIELDS; f++)
        if (!field_is_source(f) && !span_eq(a->field[f], b->field[f])) return (enum engine_field)f;
    return ENGINE_FIELDS;
}

bool registration_sources_differ(const struct registration *a, const struct registration *b) {
    for (size_t f = 0; f < ENGINE_FIELDS; f++)
        if (field_is_source(f) && !span_eq(a->field[f], b->field[f])) return true;
    return false;
}

static uint32_t number_of(struct span s) {
    uint64_t number = 0;
    (void)span_to_u64(s, &number);
    return (uint32_t)number;
}

void registration_spec(const struct registration *x, struct route_engine_spec *spec) {
    const struct span *f = x->field;
    *spec =
        (struct route_engine_spec){.id = x->id,
                                   .rank = x->rank,
                                   .url = f[ENGINE_URL],
                                   .role = span_eq(f[ENGINE_ROLE], SPAN("prefill"))  ? ROUTE_PREFILL
                                           : span_eq(f[ENGINE_ROLE], SPAN("decode")) ? ROUTE_DECODE
                                                                                     : ROUTE_BOTH,
                                   .model = f[ENGINE_MODEL],
                                   .lora = f[ENGINE_LORA],
                                   .tenant = f[ENGINE_TENANT],
                                   .salt = f[ENGINE_SALT],
                                   .host = f[ENGINE_HOST],
                                   .rack = f[ENGINE_RACK],
                                   .block_tokens = number_of(f[ENGINE_BLOCK]),
                                   .kv_blocks = number_of(f[ENGINE_KVBLOCKS]),
                                   .bytes_per_token = number_of(f[ENGINE_BYTES])};
}
