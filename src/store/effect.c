/* Telling what changes: records of objects, segments, quotas; walks that tell everything. */
#include "store/effect.h"

#include <string.h>
#include <xxhash.h>

#include "base/buf.h"
#include "store/books.h"
#include "store/effect_codec.h"

struct teller { /* of what is told now */
    struct store *s;
    void (*emit)(void *arg, const void *record, size_t len);
    void *arg;
    uint64_t objects;
    unsigned n;
};

static void teller_tell(struct teller *t) {
    t->emit(t->arg, t->s->record.data, t->s->record.len);
    t->n++;
}

static bool effect_heard(const struct store *s) {
    return s->telling && (!s->following || s->leading);
}

/* To whoever hears of changes. */
static struct teller teller_of_changes(struct store *s) {
    return (struct teller){.s = s, .emit = s->events.effect, .arg = s->events.arg};
}

static bool effect_wanted(struct store *s) {
    s->changes += !s->following;
    return effect_heard(s);
}

#define TELL(t, kind, ...)                                                                         \
    do {                                                                                           \
        put_##kind(&(t)->s->record, &(struct kind){__VA_ARGS__});                                  \
        teller_tell(t);                                                                            \
    } while (0)
/* A change, where somebody listens. */
#define TELL_CHANGE(s, kind, ...)                                                                  \
    do {                                                                                           \
        if (!effect_wanted(s)) break;                                                              \
        struct teller t_ = teller_of_changes(s);                                                   \
        TELL(&t_, kind, __VA_ARGS__);                                                              \
    } while (0)

void store_tell(struct store *s, bool on) {
    s->telling = on && s->events.effect;
}

uint64_t store_changes(const struct store *s) {
    return s->changes;
}

/* --- objects --- */

static void put_blocks(const struct store *s, struct buf *b, const block_id *blocks, unsigned n) {
    put_u8(b, n);
    put_u32(b, replica_segment(s, blocks[0]));
    for (unsigned i = 0; i < n; i++) {
        const struct block *k = block_get(&s->space, blocks[i]);
        put_u64(b, block_offset(k));
        put_u32(b, k->len);
    }
}

static void put_places(const struct store *s, struct buf *b, const struct object *o) {
    struct places p;
    places_read(s, o, &p);
    put_u8(b, p.n_memory);
    const block_id *at = p.block;
    for (uint32_t i = 0; i < p.n_memory; at += p.extents[i++]) put_blocks(s, b, at, p.extents[i]);
    put_u8(b, p.n_far);
    for (uint32_t i = 0; i < p.n_far; i++) {
        put_u32(b, p.far[i].segment);
        put_u64(b, p.far[i].offset);
    }
}

static void encode_object(const struct store *s, struct buf *b, const struct object *o) {
    const struct extra *x = extra_find(s, o);
    struct span key = store_object_key(o), value;
    record_begin(b, EFFECT_OBJECT);
    put_u64(b, object_version(o));
    put_u64(b, store_object_size(s, o));
    put_u8(b, (o->bits & OBJECT_INLINE ? CODEC_INLINE : 0) |
                  (o->bits & OBJECT_CRC ? CODEC_CRC : 0) | (x ? CODEC_EXTRA : 0) |
                  (x && x->group && x->group->boundary ? CODEC_BOUNDARY : 0));
    put_u32(b, o->bits & OBJECT_CRC ? o->crc : 0);
    put_span(b, key);
    if (store_object_inline(o, &value))
        put_span(b, value);
    else
        put_places(s, b, o);
    if (x) {
        put_u8(b, x->pin);
        put_u64(b, x->pin_ms);
        put_u64(b, x->expire);
        put_span(b, x->group ? span_of(x->group->name, x->group->name_len) : span_of("", 0));
        put_u32(b, x->n_crcs);
        if (x->n_crcs) buf_append(b, x->crcs, x->n_crcs * sizeof(uint32_t));
    }
    record_end(b);
}

void effect_object(struct store *s, const struct object *o) {
    if (!effect_wanted(s)) return;
    struct teller t = teller_of_changes(s);
    encode_object(s, &s->record, o);
    teller_tell(&t);
}

void effect_gone(struct store *s, const struct object *o) {
    TELL_CHANGE(s, gone_record, object_version(o), store_object_key(o));
}

/* --- the rest --- */

void effect_flush(struct store *s) {
    TELL_CHANGE(s, flush_record, s->flush_version);
}

static void teller_segment(struct teller *t, const struct segment *g) {
    TELL(t, segment_record, g->id, g->epoch, g->host, g->tier, g->state, g->units,
         span_str(g->name));
}

void effect_segment(struct store *s, const struct segment *seg) {
    if (!effect_wanted(s)) return;
    struct teller t = teller_of_changes(s);
    teller_segment(&t, seg);
}

void effect_segment_gone(struct store *s, uint32_t id) {
    TELL_CHANGE(s, segment_gone_record, id);
}

void effect_quota(struct store *s, struct span prefix, uint64_t bytes) {
    TELL_CHANGE(s, quota_record, bytes, prefix);
}

void effect_superseded(struct store *s, uint32_t slot, uint64_t version) {
    TELL_CHANGE(s, superseded_record, slot, version);
}

/* It changes no object, and is told before the reply that grants a lease leaves. */
void effect_leases(struct store *s) {
    struct teller t = teller_of_changes(s);
    if (effect_heard(s)) TELL(&t, leases_record, s->config.clock_id, s->lease_promise_ms);
}

tarn_status effect_next(struct span data, enum effect_kind *kind_p, struct span *record_p) {
    uint32_t len;
    if (data.len < 4) return TARN_EAGAIN;
    memcpy(&len, data.data, 4);
    if (len == 0 || len > EFFECT_RECORD_MAX) return TARN_EPROTO;
    if (data.len - 4 < len) return TARN_EAGAIN;
    *kind_p = (enum effect_kind)(uint8_t)data.data[4];
    *record_p = span_of(data.data, 4 + (size_t)len);
    return TARN_OK;
}

/* --- everything --- */

static void teller_object(void *arg, struct object *o) {
    struct teller *t = arg;
    if (t->s->stale && book_stale(t->s, o)) return;
    encode_object(t->s, &t->s->record, o);
    t->objects++;
    teller_tell(t);
}

/* What there is little of: segments, quotas, the last flush. */
static void teller_frame(struct teller *t) {
    struct store *s = t->s;
    for (const struct segment *seg = NULL; (seg = space_next(&s->space, seg));)
        teller_segment(t, seg);
    for (unsigned i = 1; i < s->n_domains; i++) {
        const struct domain *d = &s->domains[i];
        if (!d->used || d->leaving) continue;
        TELL(t, quota_record, d->limit, span_of(d->prefix, d->prefix_len));
    }
    TELL(t, flush_record, s->flush_version);
    if (s->following) return; /* of our own leases only */
    TELL(t, leases_record, s->config.clock_id, s->lease_promise_ms);
}

#define SUPERSEDED_STEP 256u

bool store_snapshot_step(struct store *s, struct store_snapshot *x,
                         void (*emit)(void *arg, const void *record, size_t len), void *arg,
                         unsigned *budget) {
    enum { FRAME, SUPERSEDED, OBJECTS, OVER };
    while (*budget > 0 && x->phase != OVER) {
        struct teller t = {.s = s, .emit = emit, .arg = arg};
        switch (x->phase) {
        case FRAME:
            teller_frame(&t);
            x->phase = SUPERSEDED;
            break;
        case SUPERSEDED: {
            uint64_t upto =
                min_u64(x->cursor + SUPERSEDED_STEP, s->superseded ? SUPERSEDED_SLOTS : 0);
            for (; x->cursor < upto; x->cursor++)
                if (s->superseded[x->cursor])
                    TELL(&t, superseded_record, (uint32_t)x->cursor, s->superseded[x->cursor]);
            if (s->superseded && x->cursor < SUPERSEDED_SLOTS) break;
            x->cursor = 0;
            x->phase = OBJECTS;
            break;
        }
        default:
            if (index_walk(&s->index, &x->cursor, teller_object, &t, budget)) x->phase = OVER;
            x->objects += t.objects;
            continue;
        }
        *budget -= min_u64(*budget, t.n + 1);
    }
    return x->phase == OVER;
}

struct digesting {
    struct store *s;
    struct store_digest *d;
};

static void digest_object(void *arg, struct object *o) {
    struct digesting *g = arg;
    if (g->s->stale && book_stale(g->s, o)) return;
    encode_object(g->s, &g->s->record, o);
    XXH128_canonical_t one;
    XXH128_canonicalFromHash(&one, XXH3_128bits(g->s->record.data, g->s->record.len));
    for (unsigned i = 0; i < sizeof(g->d->sum); i++) g->d->sum[i] ^= one.digest[i];
    g->d->objects++;
}

bool store_digest_step(struct store *s, struct store_digest *d, unsigned *budget) {
    struct digesting g = {s, d};
    return d->over = d->over || index_walk(&s->index, &d->cursor, digest_object, &g, budget);
}
