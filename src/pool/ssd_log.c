/* The log of an ssd tier: which unit and batch a value goes into, what is known of every entry, and
 * the notes about them. Places are given out when a value is accepted, so whoever gets TARN_OK has
 * one and whoever does not is told at once. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "pool/ssd_internal.h"

void ssd_kick(struct ssd *s) {
    s->kicked = true;
    if (!s->asleep) return;
    s->asleep = false;
    ssd_io_wake(s->io);
}

void *ssd_blocks(uint64_t size) {
    void *blocks;
    TARN_ASSERT(size > 0 && size % SSD_BLOCK == 0);
    if (posix_memalign(&blocks, SSD_BLOCK, size) != 0) {
        log_warning("Out of memory allocating %llu bytes", (unsigned long long)size);
        abort();
    }
    return blocks;
}

/* --- units --- */

struct ssd_unit *ssd_unit_new(const struct ssd *s, uint32_t region, uint32_t regions) {
    struct ssd_unit *u = xcalloc(1, sizeof(*u));
    u->region = region;
    u->regions = regions;
    u->base = u->end = ssd_region_base(s, region);
    return u;
}

void ssd_unit_free(struct ssd_unit **u_p) {
    struct ssd_unit *u = *u_p;
    buf_free(&u->log);
    free(u->entries);
    free(u);
    *u_p = NULL;
}

void ssd_unit_claim(struct ssd *s, struct ssd_unit *u) {
    u->owner = s;
    for (uint32_t r = u->region; r < u->region + u->regions; r++) {
        TARN_ASSERT(s->owner[r] == NULL);
        s->owner[r] = u;
    }
    TARN_ASSERT(s->free >= u->regions);
    s->free -= u->regions;
    s->tier.stats.used += u->regions * s->region_size;
    TAILQ_INSERT_TAIL(&s->units, u, by_age);
}

void ssd_unit_destroy(struct ssd *s, struct ssd_unit *u) {
    TARN_ASSERT(u->reads == 0 && u->unwritten == 0 && u != s->open_unit);
    for (uint32_t r = u->region; r < u->region + u->regions; r++) {
        TARN_ASSERT(s->owner[r] == u);
        s->owner[r] = NULL;
    }
    s->free += u->regions;
    s->tier.stats.entries -= u->live;
    s->tier.stats.used -= u->regions * s->region_size;
    TAILQ_REMOVE(&s->units, u, by_age);
    ssd_unit_free(&u);
}

void ssd_unit_append(struct ssd *s, struct ssd_unit *u, const char *records, uint64_t size) {
    uint64_t at = u->log.len, end = at + size;
    buf_append(&u->log, records, size);
    while (at < end) {
        struct tier_record *r = (void *)(u->log.data + at);
        if (r->kind == TIER_ENTRY) {
            if (u->n_entries == u->cap_entries) {
                u->cap_entries = u->cap_entries < 16 ? 16 : u->cap_entries + u->cap_entries / 2;
                u->entries = xrealloc(u->entries, u->cap_entries * sizeof(*u->entries));
            }
            u->entries[u->n_entries++] = (uint32_t)(at / 8);
            u->live++;
            s->tier.stats.entries++;
        }
        at += r->size;
    }
    TARN_ASSERT(at == end && at / 8 <= UINT32_MAX);
}

struct ssd_unit *ssd_unit_at(const struct ssd *s, uint64_t offset) {
    if (offset < SSD_DATA_START) return NULL;
    uint64_t region = (offset - SSD_DATA_START) / s->region_size;
    return region < s->regions ? s->owner[region] : NULL;
}

/* What an entry is looked for by. */
struct entry_key {
    const struct ssd_unit *unit;
    uint64_t offset;
};

static int unit_entry_compare(const void *key, const void *entry) {
    const struct entry_key *k = key;
    return tier_record_compare(k->offset,
                               (const void *)(k->unit->log.data + *(const uint32_t *)entry * 8ull));
}

struct tier_record *ssd_unit_find(const struct ssd_unit *u, uint64_t offset) {
    struct entry_key key = {u, offset};
    const uint32_t *at = bsearch(&key, u->entries, u->n_entries, sizeof(*at), unit_entry_compare);
    return at != NULL ? ssd_unit_entry(u, (size_t)(at - u->entries)) : NULL;
}

struct tier_record *ssd_find(struct tier *t, uint64_t offset) {
    const struct ssd_unit *u = ssd_unit_at((struct ssd *)t, offset);
    return u != NULL ? ssd_unit_find(u, offset) : NULL;
}

void ssd_entry_drop(struct ssd *s, struct ssd_unit *u, struct tier_record *r) {
    r->kind = TIER_DROPPED;
    u->live--;
    s->tier.stats.entries--;
}

/* Is this region kept for a large value? */
static bool region_is_wanted(const struct ssd *s, uint32_t region, uint32_t count,
                             uint64_t now_ms) {
    return s->want > count && now_ms < s->want_until_ms && region >= s->want_at &&
           region < s->want_at + s->want && s->want_at < s->regions;
}

/* First of `count` free neighbours; false: there are none. */
static bool region_find_run(const struct ssd *s, uint32_t count, uint32_t *region_p) {
    uint64_t now = clock_mono_ms();
    uint32_t run = 0;
    /* Round the disk from the cursor on: neighbours in space were written one after the other, and
     * go so, too. */
    for (uint32_t i = 0; i < s->regions + count; i++) {
        uint32_t r = (s->cursor + i) % s->regions;
        if (r == 0) run = 0; /* a run does not reach over the end */
        run = s->owner[r] == NULL && !region_is_wanted(s, r, count, now) ? run + 1 : 0;
        if (run == count) {
            *region_p = r + 1 - count;
            return true;
        }
    }
    return false;
}

/* Opens a unit in which `need` bytes fit, leaving `reserve` regions. Values that are large beside a
 * region get a unit for several of them, so that not half of it stays empty. */
static bool unit_open(struct ssd *s, uint64_t need, uint32_t reserve) {
    uint64_t least = (need + s->region_size - 1) / s->region_size;
    uint64_t wish = (8 * need + s->region_size - 1) / s->region_size;
    wish = max_u64(least, min_u64(wish, s->regions / 16));
    uint32_t region, count;
    bool found = false;
    for (;; wish = max_u64(least, wish / 2)) {
        count = (uint32_t)wish;
        found = s->free >= wish + reserve && region_find_run(s, count, &region);
        if (found || wish == least) break;
    }
    if (!found) {
        if (least > 1 && least > s->want) {
            s->want = (uint32_t)least;
            s->want_at = UINT32_MAX; /* not chosen yet */
            s->want_until_ms = clock_mono_ms() + 60000;
        }
        tier_evict_check(&s->tier);
        return false;
    }
    if (count >= s->want) s->want = 0;
    struct ssd_unit *before = s->open_unit, *u = ssd_unit_new(s, region, count);
    u->seq = s->next_seq++;
    do u->nonce = rng_next(&s->rng);
    while (u->nonce == 0);
    if (before != NULL) {
        before->state = SSD_SEALED;
        u->before_nonce = before->broken ? 0 : before->nonce;
        u->before_batches = before->broken ? 0 : before->batches;
    }
    ssd_unit_claim(s, u);
    s->cursor = region + count;
    s->open_unit = u;
    tier_evict_check(&s->tier);
    return true;
}

/* --- notes --- */

struct tier_record *ssd_note_target(const struct ssd *s, uint64_t nonce, uint64_t offset) {
    struct ssd_unit *u = ssd_unit_at(s, offset);
    if (u == NULL || u->nonce != nonce) return NULL;
    struct tier_record *r = ssd_unit_find(u, offset);
    return r != NULL && r->offset == offset ? r : NULL;
}

void ssd_note_add(struct ssd *s, uint64_t nonce, uint64_t offset) {
    struct ssd_note note = {nonce, offset};
    buf_append(&s->notes, &note, sizeof(note));
    s->notes_added++;
    if (s->notes_due_ms == 0) {
        s->notes_due_ms = clock_mono_ms() + SSD_NOTES_AGE_MS;
        ssd_kick(s);
    }
}

/* As many as fit into the batch's header. */
static void batch_take_notes(struct ssd *s, struct ssd_batch *b) {
    uint64_t left = ssd_unit_limit(s, b->unit) - b->position - ssd_align(b->data_size, SSD_BLOCK);
    TARN_ASSERT(left >= ssd_header_size(b->records.len));
    uint64_t room =
        min_u64(left - sizeof(struct ssd_batch_header) - b->records.len, SSD_BATCH_RECORDS);
    size_t taken = 0;
    for (; taken < s->notes.len && b->note_records.len + SSD_NOTE_SIZE <= room;
         taken += sizeof(struct ssd_note)) {
        struct ssd_note note;
        memcpy(&note, s->notes.data + taken, sizeof(note));
        s->notes_taken++;
        const struct tier_record *target = ssd_note_target(s, note.nonce, note.offset);
        if (target == NULL) continue; /* it went the way of its unit */
        struct tier_record r = {
            .size = SSD_NOTE_SIZE,
            .kind = target->kind == TIER_DROPPED ? TIER_DROPPED : TIER_RENAMED,
            .offset = note.offset,
            .version = target->version,
            .value = note.nonce,
        };
        buf_append(&b->note_records, &r, sizeof(r));
    }
    buf_consume(&s->notes, taken);
    if (s->notes.len == 0) s->notes_due_ms = 0;
}

void ssd_drop(struct tier *t, struct tier_record *r) {
    struct ssd *s = (struct ssd *)t;
    struct ssd_unit *u = ssd_unit_at(s, r->offset);
    ssd_entry_drop(s, u, r);
    ssd_note_add(s, u->nonce, r->offset);
    if (u->live > 0) return;
    s->empty_hint = true;
    tier_evict_check(t);
}

void ssd_rename(struct tier *t, struct tier_record *r, uint64_t version) {
    struct ssd *s = (struct ssd *)t;
    r->version = version;
    ssd_note_add(s, ssd_unit_at(s, r->offset)->nonce, r->offset);
}

/* --- batches --- */

/* Where `need` contiguous bytes of the ring begin; false: not now. */
static bool ring_place(const struct ssd *s, uint64_t need, uint64_t *at_p) {
    uint64_t at = s->ring_head;
    if (at % s->tier.queue_bytes + need > s->tier.queue_bytes)
        at += s->tier.queue_bytes - at % s->tier.queue_bytes;
    if (at + need - s->ring_tail > s->tier.queue_bytes) return false;
    *at_p = at;
    return true;
}

/* A batch that begins with such a value; for notes only: record and size are 0. */
static struct ssd_batch *batch_open(struct ssd *s, uint64_t record, uint64_t size, bool stream,
                                    bool notes) {
    uint64_t data = notes ? 0 : ssd_align(ssd_value_end(0, size), SSD_BLOCK), ring_at;
    uint64_t need = ssd_header_size(record) + data;
    if (!ring_place(s, stream ? 0 : data, &ring_at)) return NULL;
    struct ssd_unit *u = s->open_unit;
    bool fits = u != NULL && !u->broken && need <= ssd_unit_limit(s, u) - u->end;
    uint32_t reserve = notes ? 0 : SSD_RESERVE;
    if (s->free < reserve) {
        tier_evict_check(&s->tier);
        return NULL;
    }
    if (!fits && !unit_open(s, need, reserve)) return NULL;
    struct ssd_batch *b = xcalloc(1, sizeof(*b));
    b->owner = s;
    b->unit = s->open_unit;
    b->position = b->unit->end;
    b->ring_at = s->ring_head = ring_at;
    b->opened_ms = clock_mono_ms();
    s->open = b;
    ssd_kick(s);
    return b;
}

/* Does the value go into this batch, too? */
static bool batch_takes(const struct ssd *s, const struct ssd_batch *b, uint64_t record,
                        uint64_t size) {
    uint64_t end = ssd_value_end(ssd_value_start(b->data_size, size), size);
    uint64_t records = b->records.len + record, blocks = ssd_align(end, SSD_BLOCK);
    if (b->n_puts > 0 && (end > s->batch_bytes || records > SSD_BATCH_RECORDS)) return false;
    if (b->ring_at % s->tier.queue_bytes + blocks > s->tier.queue_bytes) return false;
    if (b->ring_at + blocks - s->ring_tail > s->tier.queue_bytes) return false;
    return ssd_header_size(records) + blocks <= ssd_unit_limit(s, b->unit) - b->position;
}

void ssd_seal(struct ssd *s) {
    struct ssd_batch *b = s->open;
    TARN_ASSERT(b != NULL && b->state == SSD_BATCH_OPEN);
    s->open = NULL;
    batch_take_notes(s, b);
    if (b->n_puts == 0 && b->note_records.len == 0) {
        /* Notes about nothing count as written when those before them are. */
        if (s->last != NULL)
            s->last->notes_upto = s->notes_taken;
        else
            s->notes_done = s->notes_taken;
        free(b);
        return;
    }
    struct ssd_unit *u = b->unit;
    b->header_size = ssd_header_size(b->records.len + b->note_records.len);
    b->notes_upto = s->notes_taken;
    u->end = b->position + b->header_size + ssd_align(b->data_size, SSD_BLOCK);
    TARN_ASSERT(u->end <= ssd_unit_limit(s, u));
    b->index = u->batches++;
    u->unwritten++;
    b->ring_end = b->ring_at + (b->stream == NULL ? ssd_align(b->data_size, SSD_BLOCK) : 0);
    s->ring_head = b->ring_end;
    b->state = SSD_BATCH_SEALED;
    TAILQ_INSERT_TAIL(&s->batches, b, next);
    s->last = b;
    ssd_kick(s);
}

void ssd_seal_notes(struct ssd *s) {
    if (s->open == NULL && batch_open(s, SSD_NOTE_SIZE, 0, false, true) == NULL) {
        s->notes_due_ms = clock_mono_ms() + SSD_RETRY_MS;
        return;
    }
    ssd_seal(s);
}

/* --- puts --- */

static struct ssd_batch *batch_place(struct ssd *s, uint64_t record, uint64_t size, bool stream) {
    /* A stream has a batch of its own. Others may find the open batch full, but never a fresh
     * one. */
    if (s->open != NULL && (stream || !batch_takes(s, s->open, record, size))) ssd_seal(s);
    if (s->open == NULL) batch_open(s, record, size, stream, false);
    TARN_ASSERT(s->open == NULL || stream || batch_takes(s, s->open, record, size));
    return s->open;
}

static void batch_start_stream(struct ssd *s, struct ssd_batch *b, const struct tier_put *put) {
    struct ssd_stream *stream = xcalloc(1, sizeof(*stream));
    stream->iov = xmemdup(put->iov, put->n_iov * sizeof(*put->iov));
    stream->size = put->item->size;
    stream->crc = put->item->crc;
    /* Nothing is added to this batch any more: the record stays where it is. */
    uint32_t *crcs = tier_record_crcs((void *)b->records.data);
    tier_copy_start(&stream->copy, stream->iov, put->n_iov, put->n_crcs > 0 ? crcs : NULL);
    b->stream = stream;
    ssd_seal(s);
}

tarn_status ssd_place(struct tier *t, struct tier_put *put) {
    struct ssd *s = (struct ssd *)t;
    const struct tier_item *item = put->item;
    uint32_t record = tier_record_size(item->key.len, put->n_crcs);
    TARN_ASSERT(!s->closing);
    struct ssd_batch *b = batch_place(s, record, item->size, put->stream);
    if (b == NULL) return TARN_EAGAIN;
    uint64_t from = b->data_size, rel = ssd_value_start(from, item->size);
    b->data_size = ssd_value_end(rel, item->size);
    ARRAY_GROW(b->puts, b->n_puts, b->cap_puts);
    put->place = b;
    put->index = b->n_puts++;
    b->puts[put->index] =
        (struct ssd_put){.end = put->end, .rel = rel, .record = (uint32_t)b->records.len};
    if (b->unit->batches == 0 && put->index == 0) b->unit->first_prompt = item->prompt;
    b->unit->last_prompt = item->prompt;
    buf_reserve(&b->records, record);
    tier_record_write((void *)(b->records.data + b->records.len), item, rel);
    b->records.len += record;
    if (put->stream) {
        batch_start_stream(s, b, put);
        return TARN_OK;
    }
    /* Zeroes around the value: what was there before is somebody else's. */
    char *data = s->ring + b->ring_at % s->tier.queue_bytes;
    memset(data + from, 0, rel - from);
    memset(data + rel + item->size, 0, b->data_size - rel - item->size);
    put->to = data + rel;
    b->copying++;
    return TARN_OK;
}

void ssd_placed(struct tier *t, struct tier_put *put, tarn_status status, const uint32_t *crcs) {
    struct ssd_batch *b = put->place;
    struct ssd_put *p = &b->puts[put->index];
    struct tier_record *r = (void *)(b->records.data + p->record);
    r->crc = put->item->crc;
    if (crcs != NULL) memcpy(tier_record_crcs(r), crcs, put->n_crcs * sizeof(*crcs));
    if (status != TARN_OK) {
        r->kind = 0; /* left out when the header is made */
        p->gone = true;
    }
    if (--b->copying == 0 && b->state != SSD_BATCH_OPEN) ssd_kick((struct ssd *)t);
}
