#include "kvevents/decode.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "kvevents/event.h"
#include "kvevents/unpack.h"
#include "route/hash.h"

/* An event of the batch at work: the numbers still move, the texts are the message's. */
struct decoded {
    struct kvevents_event event;
    size_t own_at, local_at; /* in scratch.number */
    char lora_number[21];
};

struct kvevents_decoder {
    uint64_t seed;
    size_t payload_max;
    struct event_scratch scratch;
    struct decoded *event;
    size_t events, events_cap;
    struct buf extra; /* EXTRA of the block at work */
    /* of the batch at work */
    struct kvevents_batch batch;
    size_t text_bytes;
    const char *why; /* it is refused; NULL: not yet */
};

struct kvevents_decoder *kvevents_decoder_create(uint64_t seed, size_t payload_max) {
    TARN_ASSERT(payload_max > 0);
    struct kvevents_decoder *d = xcalloc(1, sizeof(*d));
    d->seed = seed;
    d->payload_max = payload_max;
    return d;
}

void kvevents_decoder_destroy(struct kvevents_decoder **d_p) {
    struct kvevents_decoder *d = *d_p;
    *d_p = NULL;
    if (d == NULL) return;
    free(d->scratch.number);
    free(d->scratch.token);
    free(d->event);
    buf_free(&d->extra);
    free(d);
}

void kvevents_batch_destroy(struct kvevents_batch **batch_p) {
    free(*batch_p);
    *batch_p = NULL;
}

/* --- local hashes --- */

/* The next block's extra keys as EXTRA, in d->extra. */
static bool extra_take(struct kvevents_decoder *d, struct unpack *u, struct span lora) {
    struct unpack_value keys, key;
    buf_clear(&d->extra);
    if (!unpack_next(u, &keys)) return false;
    if (keys.type == UNPACK_NIL) return true;
    if (keys.type != UNPACK_ARRAY) return false;
    uint32_t n = keys.n;
    const char *from = u->at;
    for (uint32_t i = 0; i < keys.n; i++) {
        if (!unpack_next(u, &key) || !unpack_pass(u, &key)) return false;
        if (i > 0 || lora.len == 0 || key.type != UNPACK_STR || !span_eq(key.bytes, lora)) continue;
        n--;
        from = u->at;
    }
    if (n == 0) return true;
    /* msgpack's head of an array of n */
    uint8_t head[5] = {(uint8_t)(0x90 | n)};
    size_t head_len = 1;
    if (n > 15) {
        bool wide = n > UINT16_MAX;
        head[0] = wide ? 0xdd : 0xdc;
        for (int shift = wide ? 24 : 8; shift >= 0; shift -= 8)
            head[head_len++] = (uint8_t)(n >> shift);
    }
    buf_append(&d->extra, head, head_len);
    buf_append(&d->extra, from, (size_t)(u->at - from));
    return true;
}

/* NULL, or what is wrong with it. */
static const char *blocks_hash(struct kvevents_decoder *d, const struct event_raw *raw,
                               const struct kvevents_event *e) {
    struct event_scratch *s = &d->scratch;
    struct unpack extra = raw->extra;
    struct unpack_value v;
    bool has_extra = extra.at != NULL;
    if (has_extra && (!unpack_next(&extra, &v) || v.n != e->n))
        return "extra_keys are not one for each block";
    SCRATCH_ROOM(s->number, s->numbers, s->numbers_cap, e->n);
    for (size_t i = 0; i < e->n; i++) {
        buf_clear(&d->extra);
        if (has_extra && !extra_take(d, &extra, e->lora))
            return "extra_keys of a block are no list";
        s->number[s->numbers + i] = route_hash_local(s->token + i * e->block, e->block,
                                                     d->extra.data, d->extra.len, d->seed);
    }
    s->numbers += e->n;
    return NULL;
}

/* --- events --- */

/* NULL, or why it is left out. */
static const char *stored_add(struct kvevents_decoder *d, const struct event_raw *raw,
                              struct decoded *to) {
    struct kvevents_event *e = &to->event;
    size_t tokens = d->scratch.tokens;
    if (raw->bad != 0) return event_wrong(raw->bad);
    if (e->n == 0) return "a stored event names no block";
    if (tokens == 0) return NULL;
    if (e->block == 0 || tokens / e->block != e->n || tokens % e->block != 0)
        return "token_ids are not as many as the blocks have";
    to->local_at = d->scratch.numbers;
    return blocks_hash(d, raw, e);
}

/* Of what was read into `raw`. The numbers of an event that is left out are forgotten. */
static void event_add(struct kvevents_decoder *d, const struct event_raw *raw) {
    ARRAY_GROW(d->event, d->events, d->events_cap);
    struct decoded *to = &d->event[d->events];
    struct kvevents_event *e = &to->event;
    *to = (struct decoded){.own_at = raw->own_at, .local_at = SIZE_MAX};
    e->kind = raw->kind;
    if (raw->kind != KVEVENTS_CLEARED) {
        e->elsewhere = !event_tier(raw, &e->tier);
        e->spec = event_spec(raw);
        e->group = raw->group;
        e->window = raw->window;
        e->block = raw->block;
        e->has_parent = raw->has_parent;
        e->parent = raw->parent;
        e->n = raw->own_n;
        e->lora = raw->lora.len > 0 ? raw->lora : raw->lora_id;
        e->salt = raw->salt;
    }
    if (e->lora.len > 0 && e->lora.data == NULL) {
        memcpy(to->lora_number, raw->lora_number, sizeof(to->lora_number));
        e->lora.data = raw->lora_number; /* for the hashes; of ours in the end */
    }
    const char *left_out = raw->kind == KVEVENTS_STORED ? stored_add(d, raw, to) : NULL;
    if (raw->kind == KVEVENTS_REMOVED) {
        if (raw->bad != 0)
            d->why = event_wrong(raw->bad);
        else if (e->n == 0)
            d->why = "a removed event names no block";
    }
    if (left_out != NULL) {
        d->batch.left_out++;
        d->batch.why_left_out = left_out;
        d->scratch.numbers = raw->own_at;
        return;
    }
    d->batch.blocks += e->n;
    d->text_bytes += e->lora.len + e->salt.len;
    d->events++;
}

static void events_read(struct kvevents_decoder *d, struct unpack *u,
                        const struct unpack_value *list) {
    if (list->type != UNPACK_ARRAY) {
        d->why = "the events are no list";
        return;
    }
    for (uint32_t i = 0; i < list->n && d->why == NULL; i++) {
        struct event_raw raw;
        size_t numbers = d->scratch.numbers;
        if (!event_read(u, &d->scratch, &raw)) {
            d->why = "an event is no msgpack, or is cut short";
        } else if (!raw.known) {
            d->batch.unknown++;
            d->scratch.numbers = numbers;
        } else if (d->events == KVEVENTS_EVENTS_MAX) {
            d->why = "more events in one batch than may be";
        } else {
            event_add(d, &raw);
        }
    }
}

/* --- the batch --- */

enum batch_field { BATCH_TS, BATCH_EVENTS, BATCH_RANK, BATCH_FIELDS };

static void batch_value(struct kvevents_decoder *d, struct unpack *u, uint32_t field, bool *has) {
    struct unpack_value v;
    if (!unpack_next(u, &v)) {
        d->why = "the batch is no msgpack, or is cut short";
        return;
    }
    if (field == BATCH_EVENTS && !*has) {
        *has = true;
        events_read(d, u, &v);
        return;
    }
    if (field == BATCH_RANK && v.type == UNPACK_UINT && v.number <= INT32_MAX)
        d->batch.rank = (int64_t)v.number;
    if (!unpack_pass(u, &v)) d->why = "the batch is cut short";
}

static uint32_t batch_key(struct kvevents_decoder *d, struct unpack *u) {
    static const struct {
        const char *name;
        enum batch_field field;
    } names[] = {
        {"events", BATCH_EVENTS}, {"data_parallel_rank", BATCH_RANK}, {"attn_dp_rank", BATCH_RANK}};
    struct unpack_value key;
    if (!unpack_next(u, &key) || !unpack_pass(u, &key)) {
        d->why = "the batch is no msgpack, or is cut short";
        return BATCH_FIELDS;
    }
    for (size_t i = 0; key.type == UNPACK_STR && i < ARRAY_LEN(names); i++)
        if (span_eq(key.bytes, span_str(names[i].name))) return names[i].field;
    return BATCH_FIELDS;
}

static void batch_read(struct kvevents_decoder *d, struct unpack *u) {
    struct unpack_value v;
    bool has_events = false;
    if (!unpack_next(u, &v) || (v.type != UNPACK_ARRAY && v.type != UNPACK_MAP)) {
        d->why = "no batch of events: neither a list nor a map";
        return;
    }
    for (uint32_t i = 0; i < v.n && d->why == NULL; i++) {
        uint32_t field = v.type == UNPACK_MAP ? batch_key(d, u) : i;
        if (d->why == NULL) batch_value(d, u, field, &has_events);
    }
    if (d->why != NULL) return;
    if (!has_events)
        d->why = "the batch has no events";
    else if (u->left > 0)
        d->why = "something follows the batch";
}

static struct span text_move(struct span text, char **to) {
    struct span moved = {*to, text.len};
    if (text.len > 0) memcpy(*to, text.data, text.len);
    *to += text.len;
    return moved;
}

/* The batch in one piece of memory: the struct, its events, their numbers, their texts. */
static struct kvevents_batch *batch_build(const struct kvevents_decoder *d) {
    size_t events_bytes = d->events * sizeof(struct kvevents_event);
    size_t number_bytes = d->scratch.numbers * sizeof(uint64_t);
    size_t bytes = sizeof(struct kvevents_batch) + events_bytes + number_bytes + d->text_bytes;
    struct kvevents_batch *b = xmalloc(bytes);
    struct kvevents_event *events = (struct kvevents_event *)(b + 1);
    uint64_t *number = (uint64_t *)(events + d->events);
    char *text = (char *)(number + d->scratch.numbers);
    *b = d->batch;
    b->n = d->events;
    b->events = events;
    b->bytes = bytes;
    if (number_bytes > 0) memcpy(number, d->scratch.number, number_bytes);
    for (size_t i = 0; i < d->events; i++) {
        const struct decoded *from = &d->event[i];
        struct kvevents_event *e = &events[i];
        *e = from->event;
        if (from->lora_number[0] != '\0') e->lora.data = from->lora_number;
        e->own = number + from->own_at;
        e->local = from->local_at != SIZE_MAX ? number + from->local_at : NULL;
        e->lora = text_move(e->lora, &text);
        e->salt = text_move(e->salt, &text);
    }
    return b;
}

tarn_status kvevents_decode(struct kvevents_decoder *d, struct span payload,
                            struct kvevents_batch **batch_p, const char **why_p) {
    struct unpack u = {payload.data, payload.len};
    d->batch = (struct kvevents_batch){.rank = -1};
    d->scratch.numbers = d->events = d->text_bytes = 0;
    d->why = payload.len > d->payload_max ? "longer than a message may be" : NULL;
    if (d->why == NULL) batch_read(d, &u);
    if (d->why != NULL) {
        *why_p = d->why;
        return TARN_EPROTO;
    }
    *batch_p = batch_build(d);
    return TARN_OK;
}
