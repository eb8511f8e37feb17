/* Books that follow: records in, objects, segments and quotas out.
 *
 * While they follow, blocks of memory segments are not linked with their neighbours and no free
 * space is known (space_detach): records say where things lie, in any order. store_lead sorts the
 * blocks of each segment and finds the space between. */
#include "store/effect.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "store/books.h"
#include "store/effect_codec.h"

/* Versions have 48 bits, and whoever leads gives out later ones: half of them cannot come from
 * others. */
#define VERSION_END (UINT64_C(1) << 47)

/* --- records of objects --- */

struct told { /* of an object, checked */
    uint64_t version, size;
    unsigned flags;
    uint32_t crc;
    struct span key, value, group, crcs;
    enum store_pin pin;
    uint64_t pin_ms, expire;
    uint32_t n_memory, n_far, n_extents;
    /* As many as these say; what is above is 0 where nothing was told. */
    uint8_t extents[STORE_REPLICAS_MAX];
    uint32_t segment[STORE_REPLICAS_MAX];
    struct {
        uint64_t offset;
        uint32_t len;
    } extent[PLACES_BLOCKS_MAX];
    struct far far[STORE_REPLICAS_MAX];
};

static const char *read_memory(const struct store *s, struct reader *r, struct told *t) {
    t->n_memory = take_u8(r);
    if (t->n_memory > STORE_REPLICAS_MAX) return "an object has too many replicas";
    for (uint32_t i = 0; i < t->n_memory; i++) {
        unsigned n = take_u8(r);
        t->segment[i] = take_u32(r);
        const struct segment *seg = space_segment(&s->space, t->segment[i]);
        if (r->bad || n == 0 || n > STORE_EXTENTS_MAX)
            return "a replica has no extents, or too many";
        if (!seg || seg->tier != STORE_TIER_MEMORY) return "a replica lies in no memory segment";
        t->extents[i] = (uint8_t)n;
        uint64_t units = 0;
        for (unsigned k = 0; k < n; k++) {
            uint64_t offset = take_u64(r);
            uint32_t len = take_u32(r);
            if (len == 0 || offset > seg->units || len > seg->units - offset)
                return "an extent lies outside of its segment";
            t->extent[t->n_extents].offset = offset;
            t->extent[t->n_extents++].len = len;
            units += len;
        }
        if (units != space_units(t->size))
            return "the extents of a replica are not as long as the object";
    }
    return NULL;
}

static const char *read_places(const struct store *s, struct reader *r, struct told *t) {
    if (t->size == 0 || t->size > STORE_SIZE_MAX) return "an object has an impossible size";
    const char *why = read_memory(s, r, t);
    if (why) return why;
    t->n_far = take_u8(r);
    if (t->n_memory + t->n_far == 0 || t->n_memory + t->n_far > STORE_REPLICAS_MAX)
        return "an object has no replicas, or too many";
    for (uint32_t i = 0; i < t->n_far; i++) {
        t->far[i].segment = take_u32(r);
        t->far[i].offset = take_u64(r);
        const struct segment *seg = space_segment(&s->space, t->far[i].segment);
        if (!seg || seg->tier == STORE_TIER_MEMORY) return "a far replica lies in no far segment";
    }
    return NULL;
}

static const char *read_extra(struct reader *r, struct told *t) {
    unsigned pin = take_u8(r);
    t->pin_ms = take_u64(r);
    t->expire = take_u64(r);
    t->group = take_span(r);
    uint32_t n = take_u32(r);
    if (pin > STORE_PIN_HARD) return "an object has an unknown pin";
    if (t->group.len > STORE_KEY_MAX) return "the name of a group is too long";
    if (!crcs_fit(t->size, n)) return "an object has a wrong number of CRCs";
    t->pin = (enum store_pin)pin;
    t->crcs = span_of(take_bytes(r, (size_t)n * sizeof(uint32_t)), n);
    return NULL;
}

/* NULL: told, and good to take. */
static const char *read_object(const struct store *s, struct reader *r, struct told *t) {
    const char *why = NULL;
    t->version = take_u64(r);
    t->size = take_u64(r);
    t->flags = take_u8(r);
    t->crc = take_u32(r);
    t->key = take_span(r);
    if (t->key.len == 0 || t->key.len > STORE_KEY_MAX) return "a key has no bytes, or too many";
    if (t->version == 0 || t->version >= VERSION_END) return "an object has an impossible version";
    if (t->flags & CODEC_INLINE) {
        t->value = take_span(r);
        if (t->value.len > STORE_INLINE_MAX || t->value.len != t->size)
            return "an inline value is too long";
    } else {
        why = read_places(s, r, t);
    }
    if (!why && (t->flags & CODEC_EXTRA)) why = read_extra(r, t);
    if (!why && !record_read(r)) why = "the record of an object has a wrong length";
    return why;
}

static tarn_status take_places(struct store *s, struct object *o, const struct told *t) {
    struct places p = {.size = t->size,
                       .domain = quota_domain(s, t->key),
                       .n_memory = t->n_memory,
                       .n_far = t->n_far};
    unsigned k = 0;
    for (uint32_t i = 0; i < t->n_memory; i++) {
        p.extents[i] = t->extents[i];
        for (unsigned n = 0; n < t->extents[i]; n++, k++) {
            block_id b =
                space_detached(&s->space, t->segment[i], t->extent[k].offset, t->extent[k].len);
            if (!b) {
                while (p.n_blocks > 0) space_release(&s->space, p.block[--p.n_blocks]);
                return TARN_ENOMEM;
            }
            block_assign(&s->space, b, BLOCK_OBJECT, record_ref(&s->records, o), p.domain);
            p.block[p.n_blocks++] = b;
        }
    }
    memcpy(p.far, t->far, t->n_far * sizeof(t->far[0]));
    places_first(s, o, &p);
    return TARN_OK;
}

static void take_extra(struct store *s, struct object *o, const struct told *t) {
    if (t->crcs.len) {
        uint32_t *crcs =
            xmemdup(t->crcs.data, t->crcs.len * sizeof(uint32_t)); /* the record may lie anywhere */
        object_set_crcs(s, o, crcs, t->crcs.len);
        free(crcs);
    }
    bool boundary = (t->flags & CODEC_BOUNDARY) != 0;
    if (t->group.len) group_join(s, o, group_get(s, t->group, boundary));
    if (t->expire) extra_set_expire(s, o, t->expire);
    if (t->pin != STORE_PIN_NONE) extra_set_pin(s, o, t->pin, t->pin_ms);
}

/* Nothing to tell beyond the value. */
static bool told_plain(const struct told *t) {
    return (t->flags & (CODEC_INLINE | CODEC_CRC | CODEC_EXTRA)) == (CODEC_INLINE | CODEC_CRC);
}

static void told_version(struct store *s, uint64_t version) {
    if (version >= s->next_version) s->next_version = version + 1;
}

static tarn_status apply_object(struct store *s, struct reader *r, const char **why_p) {
    struct told t;
    memset(&t, 0, offsetof(struct told, extents));
    if ((*why_p = read_object(s, r, &t)) != NULL) return TARN_EPROTO;
    if (t.version <= s->flush_version) return TARN_OK; /* it went before it came */
    uint64_t hash = store_hash(t.key);
    struct policy_event e = {.now_ms = s->now_ms, .hash = hash, .length = 1};
    bool in_books = (t.flags & CODEC_INLINE) != 0;
    struct object *old = index_find(&s->index, t.key, hash);
    if (old && told_plain(&t) && book_rewrite_inline(s, old, t.value, t.version, &e)) {
        object_set_crc(old, t.crc);
        told_version(s, t.version);
        return TARN_OK;
    }
    struct object *o = record_new(s, t.key, in_books ? &t.value : NULL, t.version, &e);
    if (!o) return TARN_ENOMEM;
    if (old) book_forget(s, old, object_version(old) == t.version);
    tarn_status st = TARN_OK;
    if (in_books)
        o->block = quota_domain(s, t.key);
    else
        st = take_places(s, o, &t);
    if (st != TARN_OK) {
        record_free(&s->records, o, book_record_size(o));
        return st;
    }
    if (t.flags & CODEC_CRC) object_set_crc(o, t.crc);
    put_key_taken(s, t.key, hash);
    book_insert(s, o, hash, &e);
    take_extra(s, o, &t);
    told_version(s, t.version);
    return TARN_OK;
}

static tarn_status apply_gone(struct store *s, struct reader *r, const char **why_p) {
    struct gone_record x;
    *why_p = "the record of a removal has a wrong length";
    if (!take_gone_record(r, &x)) return TARN_EPROTO;
    struct object *o = index_find(&s->index, x.key, store_hash(x.key));
    if (o && object_version(o) == x.version) book_forget(s, o, false);
    return TARN_OK;
}

static void count_stale(void *arg, struct object *o) {
    struct store *s = arg;
    s->stale += book_stale(s, o);
}

static tarn_status apply_flush(struct store *s, struct reader *r, const char **why_p) {
    struct flush_record x;
    *why_p = "the record of a flush makes no sense";
    if (!take_flush_record(r, &x) || x.version >= VERSION_END) return TARN_EPROTO;
    if (x.version <= s->flush_version) return TARN_OK;
    s->flush_version = x.version;
    s->sweep_cursor = s->stale = 0;
    if (x.version + 1 >= s->next_version) { /* as it is when it comes from who leads */
        s->next_version = x.version + 1;
        s->stale = s->index.count;
        return TARN_OK;
    }
    index_each(&s->index, count_stale, s);
    return TARN_OK;
}

/* --- records of the rest --- */

/* It is shown in lists. */
static bool is_name(struct span s, size_t max) {
    for (size_t i = 0; i < s.len; i++)
        if (s.data[i] < '!' || s.data[i] > '~') return false;
    return s.len > 0 && s.len <= max;
}

static tarn_status apply_segment_record(struct store *s, struct reader *r, const char **why_p) {
    char name[sizeof(((struct segment *)0)->name)];
    struct segment_record x;
    *why_p = "the record of a segment makes no sense";
    if (!take_segment_record(r, &x) || x.id >= STORE_SEGMENTS_MAX || x.tier > STORE_TIER_FILE ||
        x.state > SEGMENT_LEAVING || !is_name(x.name, sizeof(name) - 1) || x.units == 0 ||
        x.units > (UINT64_C(1) << 50))
        return TARN_EPROTO;
    memcpy(name, x.name.data, x.name.len);
    name[x.name.len] = '\0';
    struct segment *seg = space_segment(&s->space, x.id);
    if (seg) seg->host = x.host;
    bool resized = seg && seg->units != x.units && x.tier == STORE_TIER_MEMORY &&
                   seg->state != SEGMENT_LEAVING;
    if (seg && (seg->epoch != x.epoch || seg->tier != x.tier ||
                (seg->units != x.units && !resized) || strcmp(seg->name, name) != 0)) {
        *why_p = "a segment comes under the number of another one";
        return TARN_EPROTO;
    }
    uint64_t objects;
    if (resized &&
        (x.units % PAGE_UNITS != 0 || segment_resize(s, seg, x.units, true, &objects) != TARN_OK))
        return TARN_EPROTO;
    if (!seg) {
        struct store_segment_config config = {.name = name,
                                              .epoch = x.epoch,
                                              .tier = (enum store_tier)x.tier,
                                              .size = x.units * UNIT,
                                              .host = x.host};
        tarn_status st = space_segment_add(&s->space, &config, x.id);
        if (st != TARN_OK) return st;
        seg = space_segment(&s->space, x.id);
        if (x.tier != STORE_TIER_MEMORY) far_remember(s);
    }
    s->hidden += segment_hides((enum store_segment_state)x.state) - segment_hides(seg->state);
    space_segment_set_state(&s->space, seg, (enum store_segment_state)x.state);
    placement_changed(s);
    return TARN_OK;
}

struct dwellers { /* objects that still have something in a segment */
    struct store *s;
    uint32_t segment;
};

static void forget_dweller(void *arg, struct object *o) {
    struct dwellers *w = arg;
    if (object_lies_in(w->s, o, w->segment)) book_forget(w->s, o, false);
}

/* Who leads has told of every object before; a snapshot that was cut may not have. */
static void segment_empty(struct store *s, const struct segment *seg) {
    struct dwellers w = {s, seg->id};
    while (seg->blocks_in_objects + seg->far_replicas > 0)
        index_each(&s->index, forget_dweller, &w);
    ghosts_leave(s, seg->id, true);
}

static tarn_status apply_segment_gone(struct store *s, struct reader *r, const char **why_p) {
    struct segment_gone_record x;
    *why_p = "the record of a segment's end has a wrong length";
    if (!take_segment_gone_record(r, &x)) return TARN_EPROTO;
    struct segment *seg = space_segment(&s->space, x.id);
    if (!seg) return TARN_OK;
    segment_empty(s, seg);
    s->hidden -= segment_hides(seg->state);
    space_segment_remove(&s->space, x.id);
    placement_changed(s);
    if (s->events.segment_gone) s->events.segment_gone(s->events.arg, x.id);
    return TARN_OK;
}

static tarn_status apply_quota(struct store *s, struct reader *r, const char **why_p) {
    struct quota_record x;
    *why_p = "the record of a quota makes no sense";
    if (!take_quota_record(r, &x) || x.prefix.len == 0 || x.prefix.len > STORE_KEY_MAX)
        return TARN_EPROTO;
    if (x.bytes == 0) {
        store_quota_del(s, x.prefix);
        return TARN_OK;
    }
    tarn_status st = store_quota_set(s, x.prefix, x.bytes);
    if (st == TARN_ELIMIT) {
        /* Those that went wait for the background, which does not run while a file is loaded. */
        unsigned budget = UINT_MAX;
        while (quota_recount(s, &budget)) budget = UINT_MAX;
        st = store_quota_set(s, x.prefix, x.bytes);
    }
    return st == TARN_ELIMIT ? TARN_EPROTO : st;
}

static tarn_status apply_superseded(struct store *s, struct reader *r, const char **why_p) {
    struct superseded_record x;
    *why_p = "the record of a superseded version makes no sense";
    if (!take_superseded_record(r, &x) || x.slot >= SUPERSEDED_SLOTS || x.version >= VERSION_END)
        return TARN_EPROTO;
    far_remember(s);
    s->superseded[x.slot] = max_u64(s->superseded[x.slot], x.version);
    return TARN_OK;
}

static tarn_status apply_leases(struct store *s, struct reader *r, const char **why_p) {
    struct leases_record x;
    *why_p = "the record of leases has a wrong length";
    if (!take_leases_record(r, &x)) return TARN_EPROTO;
    s->told_elsewhere = x.clock_id != s->config.clock_id || x.clock_id == 0;
    s->told_ms = s->told_elsewhere ? UINT64_MAX : x.until_ms;
    return TARN_OK;
}

/* Version, size, flags and CRC come before the key: read_object. */
#define OBJECT_KEY_AT (5u + 8u + 8u + 1u + 4u)

size_t store_effects_prefetch(const struct store *s, struct span records) {
    struct span key[EFFECTS_AHEAD];
    uint64_t hash[EFFECTS_AHEAD];
    size_t n = 0, keys = 0;
    enum effect_kind kind;
    struct span record;
    for (; n < EFFECTS_AHEAD && effect_next(records, &kind, &record) == TARN_OK; n++) {
        records = span_of(records.data + record.len, records.len - record.len);
        if (kind != EFFECT_OBJECT || record.len < OBJECT_KEY_AT) continue;
        struct reader r = {record.data + OBJECT_KEY_AT, record.data + record.len, false};
        key[keys] = take_span(&r);
        keys += !r.bad;
    }
    if (keys > 1) store_prefetch(s, key, keys, hash);
    return n;
}

tarn_status store_effect_apply(struct store *s, struct span record, const char **why_p) {
    TARN_ASSERT(s->following);
    if (record.len < 5) {
        *why_p = "a record has no kind";
        return TARN_EPROTO;
    }
    struct reader r = record_reader(record);
    switch ((uint8_t)record.data[4]) {
    case EFFECT_OBJECT: return apply_object(s, &r, why_p);
    case EFFECT_GONE: return apply_gone(s, &r, why_p);
    case EFFECT_FLUSH: return apply_flush(s, &r, why_p);
    case EFFECT_SEGMENT: return apply_segment_record(s, &r, why_p);
    case EFFECT_SEGMENT_GONE: return apply_segment_gone(s, &r, why_p);
    case EFFECT_QUOTA: return apply_quota(s, &r, why_p);
    case EFFECT_SUPERSEDED: return apply_superseded(s, &r, why_p);
    case EFFECT_LEASES: return apply_leases(s, &r, why_p);
    default: *why_p = "a record is of an unknown kind"; return TARN_EPROTO;
    }
}
