#include "kvevents/event.h"

#include "base/assert.h"

#define BIT(field) (UINT32_C(1) << EVENT_##field)

/* Where arrays have their fields, behind the tag. */
static const enum event_field stored_order[] = {
    EVENT_HASHES, EVENT_PARENT, EVENT_TOKENS, EVENT_BLOCK, EVENT_LORA_ID, EVENT_MEDIUM,
    EVENT_LORA,   EVENT_EXTRA,  EVENT_GROUP,  EVENT_SPEC,  EVENT_WINDOW,
};
static const enum event_field removed_order[] = {EVENT_HASHES, EVENT_MEDIUM, EVENT_GROUP};

/* What maps call them, in the order in which vLLM sends them; Mooncake's names last. */
static const struct {
    struct span name;
    enum event_field field;
} keys[] = {
#define KEY(name, field)                                                                           \
    { {name, sizeof(name) - 1}, EVENT_##field }
    KEY("type", TAG),
    KEY("block_hashes", HASHES),
    KEY("parent_block_hash", PARENT),
    KEY("token_ids", TOKENS),
    KEY("block_size", BLOCK),
    KEY("lora_id", LORA_ID),
    KEY("medium", MEDIUM),
    KEY("lora_name", LORA),
    KEY("extra_keys", EXTRA),
    KEY("group_idx", GROUP),
    KEY("kv_cache_spec_kind", SPEC),
    KEY("kv_cache_spec_sliding_window", WINDOW),
    KEY("locality", LOCALITY),
    KEY("cache_salt", SALT),
    KEY("event_type", TAG),
    KEY("seq_hashes", HASHES),
    KEY("parent_hash", PARENT),
    KEY("group_id", GROUP),
#undef KEY
};

const char *event_wrong(uint32_t bad) {
#define EVENT_FIELD(name, text) text " has a value of a wrong kind",
    static const char *const texts[] = {EVENT_FIELDS(EVENT_FIELD)};
#undef EVENT_FIELD
    TARN_ASSERT(bad != 0);
    return texts[__builtin_ctz(bad)];
}

/* --- values --- */

/* vLLM makes an integer of a long hash in the same way, so both forms of one hash are equal. */
static bool value_hash(const struct unpack_value *v, uint64_t *hash_p) {
    if (v->type == UNPACK_UINT || v->type == UNPACK_SINT) {
        *hash_p = v->number;
        return true;
    }
    if (v->type != UNPACK_BIN || v->bytes.len == 0) return false;
    uint64_t hash = 0;
    for (size_t i = v->bytes.len > 8 ? v->bytes.len - 8 : 0; i < v->bytes.len; i++)
        hash = hash << 8 | (uint8_t)v->bytes.data[i];
    *hash_p = hash;
    return true;
}

static bool value_is_none(const struct unpack_value *v) {
    return v->type == UNPACK_NIL || (v->type == UNPACK_STR && v->bytes.len == 0);
}

/* None is left as it is. */
static bool value_u32(const struct unpack_value *v, uint64_t max, uint32_t *number_p) {
    uint64_t number = v->number;
    if (value_is_none(v)) return true;
    if (v->type != UNPACK_UINT && !(v->type == UNPACK_STR && span_to_u64(v->bytes, &number)))
        return false;
    if (number > max) return false;
    *number_p = (uint32_t)number;
    return true;
}

static bool value_text(const struct unpack_value *v, struct span *text) {
    if (v->type == UNPACK_STR) *text = v->bytes;
    return v->type == UNPACK_STR || v->type == UNPACK_NIL;
}

static bool value_lora_id(const struct unpack_value *v, struct event_raw *e) {
    if (v->type != UNPACK_UINT) return value_text(v, &e->lora_id);
    e->lora_id = span_of(NULL, u64_to_dec(v->number, e->lora_number));
    return true;
}

static bool value_tag(const struct unpack_value *v, struct event_raw *e) {
    static const struct {
        const char *name;
        enum kvevents_kind kind;
    } tags[] = {
        {"BlockStored", KVEVENTS_STORED},       {"stored", KVEVENTS_STORED},
        {"BlockRemoved", KVEVENTS_REMOVED},     {"removed", KVEVENTS_REMOVED},
        {"AllBlocksCleared", KVEVENTS_CLEARED}, {"cleared", KVEVENTS_CLEARED},
    };
    if (v->type != UNPACK_STR) return false;
    for (size_t i = 0; i < ARRAY_LEN(tags); i++) {
        if (!span_eq(v->bytes, span_str(tags[i].name))) continue;
        e->known = true;
        e->kind = tags[i].kind;
    }
    return true;
}

/* --- fields --- */

/* These two read what belongs to v, whatever it is. false: no msgpack. */
static bool hashes_read(struct unpack *u, const struct unpack_value *v, struct event_scratch *s,
                        struct event_raw *e) {
    e->own_at = s->numbers;
    if (v->type != UNPACK_ARRAY) {
        if (v->type != UNPACK_NIL) e->bad |= BIT(HASHES);
        return unpack_pass(u, v);
    }
    SCRATCH_ROOM(s->number, s->numbers, s->numbers_cap, v->n);
    for (uint32_t i = 0; i < v->n; i++) {
        struct unpack_value hash;
        if (!unpack_next(u, &hash) || !unpack_pass(u, &hash)) return false;
        if (!value_hash(&hash, &s->number[s->numbers++])) e->bad |= BIT(HASHES);
    }
    e->own_n = v->n;
    return true;
}

static bool tokens_read(struct unpack *u, const struct unpack_value *v, struct event_scratch *s,
                        struct event_raw *e) {
    s->tokens = 0;
    if (v->type != UNPACK_ARRAY) {
        if (v->type != UNPACK_NIL) e->bad |= BIT(TOKENS);
        return unpack_pass(u, v);
    }
    SCRATCH_ROOM(s->token, s->tokens, s->tokens_cap, v->n);
    s->tokens = unpack_u32s(u, s->token, v->n);
    if (s->tokens == v->n) return true;
    e->bad |= BIT(TOKENS);
    struct unpack_value rest = {.type = UNPACK_ARRAY, .n = v->n - (uint32_t)s->tokens};
    return unpack_pass(u, &rest);
}

static bool metadata_read(struct unpack *u, uint32_t pairs, struct event_raw *e);

/* A field whose value is v. The first of a name counts. false: no msgpack. */
static bool field_read(struct unpack *u, enum event_field field, const struct unpack_value *v,
                       struct event_scratch *s, struct event_raw *e) {
    if (e->seen >> field & 1) return unpack_pass(u, v);
    e->seen |= UINT32_C(1) << field;
    bool good = true;
    switch (field) {
    case EVENT_HASHES: return hashes_read(u, v, s, e);
    case EVENT_TOKENS: return tokens_read(u, v, s, e);
    case EVENT_LORA: /* SGLang's arrays have its metadata there */
        if (v->type == UNPACK_MAP) return metadata_read(u, v->n, e);
        good = value_text(v, &e->lora);
        break;
    case EVENT_TAG: good = value_tag(v, e); break;
    case EVENT_PARENT:
        e->has_parent = !value_is_none(v);
        good = !e->has_parent || value_hash(v, &e->parent);
        break;
    case EVENT_BLOCK: good = value_u32(v, KVEVENTS_BLOCK_MAX, &e->block); break;
    case EVENT_LORA_ID: good = value_lora_id(v, e); break;
    case EVENT_MEDIUM: good = value_text(v, &e->medium); break;
    case EVENT_EXTRA: good = v->type == UNPACK_ARRAY || v->type == UNPACK_NIL; break;
    case EVENT_GROUP: good = value_u32(v, UINT32_MAX, &e->group); break;
    case EVENT_SPEC: good = value_text(v, &e->spec); break;
    case EVENT_WINDOW: good = value_u32(v, UINT32_MAX, &e->window); break;
    case EVENT_LOCALITY: good = value_text(v, &e->locality); break;
    case EVENT_SALT: good = value_text(v, &e->salt); break;
    case EVENT_FIELD_COUNT: break;
    }
    if (!good) e->bad |= UINT32_C(1) << field;
    return unpack_pass(u, v);
}

/* The next value is that of the field. */
static bool field_next(struct unpack *u, enum event_field field, struct event_scratch *s,
                       struct event_raw *e) {
    struct unpack begin = *u;
    struct unpack_value v;
    if (!unpack_next(u, &v)) return false;
    if (field == EVENT_EXTRA && v.type == UNPACK_ARRAY && !(e->seen & BIT(EXTRA))) e->extra = begin;
    return field_read(u, field, &v, s, e);
}

static bool value_skip(struct unpack *u) {
    struct unpack_value v;
    return unpack_next(u, &v) && unpack_pass(u, &v);
}

/* *last: where the key before it is among ours; its successor is tried first. */
static enum event_field key_field(const struct unpack_value *key, size_t *last) {
    if (key->type != UNPACK_STR) return EVENT_FIELD_COUNT;
    for (size_t i = 1; i <= ARRAY_LEN(keys); i++) {
        size_t at = (*last + i) % ARRAY_LEN(keys);
        if (!span_eq(key->bytes, keys[at].name)) continue;
        *last = at;
        return keys[at].field;
    }
    return EVENT_FIELD_COUNT;
}

/* Of SGLang's metadata there is nothing but texts. */
static bool metadata_read(struct unpack *u, uint32_t pairs, struct event_raw *e) {
    size_t last = 0;
    for (uint32_t i = 0; i < pairs; i++) {
        struct unpack_value key;
        if (!unpack_next(u, &key) || !unpack_pass(u, &key)) return false;
        enum event_field field = key_field(&key, &last);
        if (field == EVENT_SALT ? !field_next(u, field, NULL, e) : !value_skip(u)) return false;
    }
    return true;
}

static bool map_read(struct unpack *u, uint32_t pairs, struct event_scratch *s,
                     struct event_raw *e) {
    size_t last = ARRAY_LEN(keys) - 1;
    for (uint32_t i = 0; i < pairs; i++) {
        struct unpack_value key;
        if (!unpack_next(u, &key) || !unpack_pass(u, &key)) return false;
        enum event_field field = key_field(&key, &last);
        if (field < EVENT_FIELD_COUNT ? !field_next(u, field, s, e) : !value_skip(u)) return false;
    }
    return true;
}

static bool array_read(struct unpack *u, uint32_t n, struct event_scratch *s, struct event_raw *e) {
    if (n > 0 && !field_next(u, EVENT_TAG, s, e)) return false;
    const enum event_field *order = e->kind == KVEVENTS_STORED ? stored_order : removed_order;
    size_t known = !e->known                     ? 0
                   : e->kind == KVEVENTS_STORED  ? ARRAY_LEN(stored_order)
                   : e->kind == KVEVENTS_REMOVED ? ARRAY_LEN(removed_order)
                                                 : 0;
    for (uint32_t i = 1; i < n; i++)
        if (i <= known ? !field_next(u, order[i - 1], s, e) : !value_skip(u)) return false;
    return true;
}

bool event_read(struct unpack *u, struct event_scratch *s, struct event_raw *e) {
    struct unpack_value v;
    *e = (struct event_raw){.own_at = s->numbers};
    s->tokens = 0;
    if (!unpack_next(u, &v)) return false;
    if (v.type == UNPACK_ARRAY) return array_read(u, v.n, s, e);
    if (v.type == UNPACK_MAP) return map_read(u, v.n, s, e);
    return unpack_pass(u, &v);
}

/* --- names --- */

bool event_tier(const struct event_raw *e, enum route_tier *tier_p) {
    /* A store is the engine's own where it says so; a disk, unless it says otherwise. */
    static const struct {
        const char *name;
        enum route_tier tier;
        bool store;
    } media[] = {
        {"GPU", ROUTE_TIER_DEVICE, false},      {"NPU", ROUTE_TIER_DEVICE, false},
        {"XPU", ROUTE_TIER_DEVICE, false},      {"CPU", ROUTE_TIER_HOST, false},
        {"CPU_PINNED", ROUTE_TIER_HOST, false}, {"CPU_TIER1", ROUTE_TIER_HOST, false},
        {"DISK", ROUTE_TIER_DISK, false},       {"CPU_TIER2", ROUTE_TIER_DISK, false},
        {"STORAGE", ROUTE_TIER_DISK, true},     {"FS", ROUTE_TIER_DISK, true},
        {"OBJ", ROUTE_TIER_DISK, true},
    };
    *tier_p = ROUTE_TIER_DEVICE;
    bool local = span_case_eq(e->locality, "LOCAL");
    if (e->locality.len > 0 && !local) return false;
    if (e->medium.len == 0) return true;
    for (size_t i = 0; i < ARRAY_LEN(media); i++) {
        if (!span_case_eq(e->medium, media[i].name)) continue;
        *tier_p = media[i].tier;
        return local || !media[i].store;
    }
    return false;
}

enum kvevents_spec event_spec(const struct event_raw *e) {
    static const struct {
        const char *name;
        enum kvevents_spec spec;
    } specs[] = {
        {"full_attention", KVEVENTS_SPEC_FULL},       {"mla_attention", KVEVENTS_SPEC_FULL},
        {"sink_full_attention", KVEVENTS_SPEC_FULL},  {"sliding_window", KVEVENTS_SPEC_WINDOW},
        {"sliding_window_mla", KVEVENTS_SPEC_WINDOW}, {"mamba", KVEVENTS_SPEC_STATE},
    };
    if (e->spec.len == 0) return KVEVENTS_SPEC_NONE;
    for (size_t i = 0; i < ARRAY_LEN(specs); i++)
        if (span_eq(e->spec, span_str(specs[i].name))) return specs[i].spec;
    return KVEVENTS_SPEC_OTHER;
}
