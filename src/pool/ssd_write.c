/* The tier's thread: whatever touches the disk after tier_open happens there. Here is how batches
 * come to disk: the values of several at once, then their headers one after the other.
 *
 * When values cannot be written, the header is written without them: the log goes on behind the
 * hole. When a header cannot be written, nothing behind it in this unit would ever be found: what
 * was given out there fails, and a new unit begins.
 *
 * Values are not synced: after a power failure the last may be missing, which is a miss. Removals
 * are, about every second: what comes back would be a value that somebody has replaced. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/log.h"
#include "pool/ssd_internal.h"

static void headers_go(struct ssd *s);

/* --- the end of a batch --- */

/* Its notes must be written with another batch. */
static void batch_note_again(struct ssd *s, const struct ssd_batch *b) {
    const struct tier_record *notes = (const void *)b->note_records.data;
    size_t n = b->note_records.len / sizeof(*notes);
    if (n == 0) return;
    if (s->closing) {
        log_warning("SSD tier %s: %zu removals are not on disk", s->tier.path, n);
        return;
    }
    for (size_t i = 0; i < n; i++) ssd_note_add(s, notes[i].value, notes[i].offset);
    s->notes_due_ms = clock_mono_ms() + SSD_RETRY_MS;
    struct ssd_unit *u;
    TAILQ_FOREACH(u, &s->leaving, leaving) {
        if (u->state == SSD_CARRIED) u->notes_mark = s->notes_added;
    }
}

static void batch_end(struct ssd *s, struct ssd_batch *b, int error) {
    struct ssd_unit *u = b->unit;
    const struct ssd_batch_header *h = b->header;
    uint64_t data = b->position + b->header_size;
    pthread_mutex_lock(&s->tier.lock);
    if (error == 0) {
        ssd_unit_append(s, u, (const char *)(h + 1), h->records_size);
        if (b->error == 0) s->tier.failures = 0;
        if (b->note_records.len > 0) ssd_sync_soon(s);
    } else {
        batch_note_again(s, b);
    }
    for (struct ssd_put *p = b->puts; p < b->puts + b->n_puts; p++) {
        if (error != 0) p->status = tier_error_status(error);
        if (!p->gone) tier_put_count(&s->tier, &p->end, p->status);
    }
    s->notes_done = b->notes_upto;
    s->ring_tail = b->ring_end;
    if (s->last == b) s->last = NULL;
    if (--u->unwritten == 0 && u->state == SSD_SEALED) {
        /* Nothing is added any more. */
        if (u->log.len > 0) u->log.data = xrealloc(u->log.data, u->log.cap = u->log.len);
        if (u->n_entries > 0)
            u->entries =
                xrealloc(u->entries, (u->cap_entries = u->n_entries) * sizeof(*u->entries));
        if (u->live == 0) s->empty_hint = true;
        tier_evict_check(&s->tier);
    }
    pthread_mutex_unlock(&s->tier.lock);

    for (const struct ssd_put *p = b->puts; p < b->puts + b->n_puts; p++)
        if (!p->gone) tier_put_ended(&s->tier, &p->end, p->status, data + p->rel);
    buf_free(&b->records);
    buf_free(&b->note_records);
    free(b->puts);
    free(b->ops);
    free(b->header);
    free(b);
}

/* --- headers --- */

static void header_make(struct ssd *s, struct ssd_batch *b) {
    const struct ssd_unit *u = b->unit;
    b->header = memset(ssd_blocks(b->header_size), 0, b->header_size);
    struct ssd_batch_header *h = b->header;
    memcpy(h->magic, SSD_BATCH_MAGIC, sizeof(h->magic));
    h->seq = u->seq;
    h->nonce = u->nonce;
    h->position = b->position;
    h->data_size = ssd_align(b->data_size, SSD_BLOCK);
    h->index = b->index;
    h->regions = u->regions;
    h->before_nonce = u->before_nonce;
    h->before_batches = u->before_batches;
    h->header_size = (uint32_t)b->header_size;
    char *out = (char *)(h + 1);
    for (size_t i = 0; i < b->n_puts; i++) {
        struct tier_record *r = (void *)(b->records.data + b->puts[i].record);
        if (r->kind != TIER_ENTRY) continue;
        memcpy(out, r, r->size);
        ((struct tier_record *)(void *)out)->offset += b->position + b->header_size;
        out += r->size;
        h->records++;
    }
    if (b->note_records.len > 0) memcpy(out, b->note_records.data, b->note_records.len);
    h->records += (uint32_t)(b->note_records.len / SSD_NOTE_SIZE);
    h->records_size = (uint32_t)(out - (char *)(h + 1) + b->note_records.len);
    ssd_batch_seal(h, s->super.key);
}

static void header_written(struct ssd_op *op) {
    struct ssd_batch *b = op->arg;
    struct ssd *s = b->owner;
    int error = op->error;
    TAILQ_REMOVE(&s->writing, b, next);
    s->n_writing--;
    if (error != 0) {
        pthread_mutex_lock(&s->tier.lock);
        tier_write_failed(&s->tier, "writing a batch", error);
        b->unit->broken = true;
        pthread_mutex_unlock(&s->tier.lock);
    }
    batch_end(s, b, error);
    headers_go(s);
}

/* The next header, when all before it are there. */
static void headers_go(struct ssd *s) {
    struct ssd_batch *b;
    while ((b = TAILQ_FIRST(&s->writing)) != NULL && b->state == SSD_BATCH_READY) {
        if (b->unit->broken) {
            TAILQ_REMOVE(&s->writing, b, next);
            s->n_writing--;
            batch_end(s, b, EIO);
            continue;
        }
        header_make(s, b);
        b->state = SSD_BATCH_HEADER;
        b->header_op = (struct ssd_op){.write = true,
                                       .buffer = b->header,
                                       .offset = b->position,
                                       .length = b->header_size,
                                       .done = header_written,
                                       .arg = b};
        ssd_io_submit(s->io, &b->header_op);
        return;
    }
}

/* --- values --- */

/* Leaves out the values of this batch: they are not on disk, or not what they should be. */
static void batch_leave_out(struct ssd_batch *b, tarn_status status) {
    for (size_t i = 0; i < b->n_puts; i++) {
        struct tier_record *r = (void *)(b->records.data + b->puts[i].record);
        r->kind = 0;
        b->puts[i].status = status;
    }
}

static void batch_values_written(struct ssd *s, struct ssd_batch *b) {
    if (b->error != 0) {
        pthread_mutex_lock(&s->tier.lock);
        tier_write_failed(&s->tier, "writing a batch", b->error);
        pthread_mutex_unlock(&s->tier.lock);
        batch_leave_out(b, tier_error_status(b->error));
    }
    b->state = SSD_BATCH_READY;
    headers_go(s);
}

static void batch_piece_written(struct ssd_op *op) {
    struct ssd_batch *b = op->arg;
    if (op->error != 0) b->error = op->error;
    if (--b->ops_left == 0) batch_values_written(b->owner, b);
}

static void batch_start_values(struct ssd *s, struct ssd_batch *b) {
    uint64_t size = ssd_align(b->data_size, SSD_BLOCK);
    char *data = s->ring + b->ring_at % s->tier.queue_bytes;
    memset(data + b->data_size, 0, size - b->data_size);
    size_t n = (size_t)((size + SSD_WRITE_BYTES - 1) / SSD_WRITE_BYTES);
    if (n == 0) { /* only notes */
        batch_values_written(s, b);
        return;
    }
    b->ops = xcalloc(n, sizeof(*b->ops));
    b->ops_left = n;
    for (size_t i = 0; i < n; i++) {
        uint64_t at = i * SSD_WRITE_BYTES;
        b->ops[i] = (struct ssd_op){.write = true,
                                    .buffer = data + at,
                                    .offset = b->position + b->header_size + at,
                                    .length = min_u64(SSD_WRITE_BYTES, size - at),
                                    .done = batch_piece_written,
                                    .arg = b};
        ssd_io_submit(s->io, &b->ops[i]);
    }
}

/* --- streams --- */

static void stream_chunk_written(struct ssd_op *op);

/* Fills a chunk and sends it off; false: there is nothing left. */
static bool stream_send_chunk(struct ssd *s, struct ssd_batch *b, unsigned i) {
    struct ssd_stream *st = b->stream;
    uint64_t at = st->copy.done, n = min_u64(SSD_CHUNK_BYTES, st->size - at);
    if (n == 0 || b->error != 0) return false;
    if (st->chunks[i] == NULL) st->chunks[i] = ssd_blocks(SSD_CHUNK_BYTES);
    tier_copy_next(&st->copy, st->chunks[i], n);
    uint64_t blocks = ssd_align(n, SSD_BLOCK);
    memset((char *)st->chunks[i] + n, 0, blocks - n);
    st->ops[i] = (struct ssd_op){.write = true,
                                 .buffer = st->chunks[i],
                                 .offset = b->position + b->header_size + b->puts[0].rel + at,
                                 .length = blocks,
                                 .done = stream_chunk_written,
                                 .arg = b};
    st->under_way++;
    ssd_io_submit(s->io, &st->ops[i]);
    return true;
}

static void stream_end(struct ssd *s, struct ssd_batch *b) {
    struct ssd_stream *st = b->stream;
    bool whole = st->copy.done == st->size && tier_copy_crc(&st->copy) == st->crc;
    if (b->error == 0 && !whole) batch_leave_out(b, TARN_ECORRUPT);
    for (unsigned i = 0; i < SSD_CHUNKS; i++) free(st->chunks[i]);
    free(st->iov);
    free(st);
    b->stream = NULL;
    batch_values_written(s, b);
}

static void stream_chunk_written(struct ssd_op *op) {
    struct ssd_batch *b = op->arg;
    struct ssd_stream *st = b->stream;
    if (op->error != 0) b->error = op->error;
    st->under_way--;
    if (!stream_send_chunk(b->owner, b, (unsigned)(op - st->ops)) && st->under_way == 0)
        stream_end(b->owner, b);
}

/* --- the beginning --- */

/* Starts what was sealed. */
static void batches_start(struct ssd *s) {
    while (s->n_writing < SSD_WRITING_MAX) {
        pthread_mutex_lock(&s->tier.lock);
        struct ssd_batch *b = TAILQ_FIRST(&s->batches);
        bool go = b != NULL && b->copying == 0;
        if (go) TAILQ_REMOVE(&s->batches, b, next);
        pthread_mutex_unlock(&s->tier.lock);
        if (!go) return;
        TAILQ_INSERT_TAIL(&s->writing, b, next);
        s->n_writing++;
        b->state = SSD_BATCH_DATA;
        if (b->stream == NULL) {
            batch_start_values(s, b);
            continue;
        }
        for (unsigned i = 0; i < SSD_CHUNKS; i++) stream_send_chunk(s, b, i);
        TARN_ASSERT(b->stream->under_way > 0);
    }
}

/* --- the thread --- */

/* Batches whose time has come go to the disk even if they are small. */
static void batch_seal_due(struct ssd *s) {
    uint64_t now = clock_mono_ms();
    if (s->open != NULL && (s->closing || now >= s->open->opened_ms + SSD_BATCH_AGE_MS))
        ssd_seal(s);
    if (s->notes_due_ms != 0 && (s->closing || now >= s->notes_due_ms)) ssd_seal_notes(s);
    if (s->closing && s->notes.len > 0 && s->last == NULL) {
        log_warning("SSD tier %s: no room for %zu notes on removals", s->tier.path,
                    s->notes.len / sizeof(struct ssd_note));
        buf_clear(&s->notes);
    }
}

void ssd_sync_soon(struct ssd *s) {
    if (s->sync_due_ms == 0) s->sync_due_ms = clock_mono_ms() + SSD_SYNC_MS;
}

static void disk_synced(struct ssd_op *op) {
    struct ssd *s = op->arg;
    pthread_mutex_lock(&s->tier.lock);
    s->syncing = false;
    if (op->error != 0) log_warning("SSD tier %s: syncing: %s", s->tier.path, strerror(op->error));
    pthread_mutex_unlock(&s->tier.lock);
}

static void disk_sync_if_due(struct ssd *s) {
    if (s->sync_due_ms == 0 || s->syncing || s->closing || clock_mono_ms() < s->sync_due_ms) return;
    s->syncing = true;
    s->sync_due_ms = 0;
    s->sync = (struct ssd_op){.sync = true, .done = disk_synced, .arg = s};
    ssd_io_submit(s->io, &s->sync);
}

static int ssd_next_timeout(const struct ssd *s) {
    uint64_t now = clock_mono_ms(), until = UINT64_MAX;
    if (s->kicked || s->untouched > 0) return 0;
    if (s->open != NULL) until = s->open->opened_ms + SSD_BATCH_AGE_MS;
    if (s->notes_due_ms != 0) until = min_u64(until, s->notes_due_ms);
    if (s->sync_due_ms != 0 && !s->syncing) until = min_u64(until, s->sync_due_ms);
    if (until == UINT64_MAX) return -1;
    return until <= now ? 0 : (int)min_u64(until - now, 60000);
}

/* The next pages of the ring. Fresh ones can cost more than the disk: a virtual machine may have to
 * ask its host for each. */
static void ring_touch(struct ssd *s) {
    if (s->untouched == 0) return;
    uint64_t n = min_u64(s->untouched, SSD_TOUCH_BYTES);
    char *at = s->ring + s->tier.queue_bytes - s->untouched;
    /* before Linux 5.14, or there is no memory: then the puts find out */
    s->untouched = madvise(at, n, MADV_POPULATE_WRITE) != 0 ? 0 : s->untouched - n;
}

static bool ssd_is_idle(const struct ssd *s) {
    return s->open == NULL && TAILQ_EMPTY(&s->batches) && s->n_writing == 0 &&
           s->tier.n_reading == 0 && s->erasing == 0 && !s->syncing && s->notes.len == 0;
}

void *ssd_run(void *arg) {
    struct ssd *s = arg;
    for (;;) {
        pthread_mutex_lock(&s->tier.lock);
        s->asleep = s->kicked = false;
        ssd_evict_advance(s);
        batch_seal_due(s);
        disk_sync_if_due(s);
        pthread_mutex_unlock(&s->tier.lock);
        ssd_read_start(s);
        batches_start(s);
        pthread_mutex_lock(&s->tier.lock);
        bool stop = s->closing && ssd_is_idle(s);
        int timeout = ssd_next_timeout(s);
        s->asleep = timeout != 0;
        pthread_mutex_unlock(&s->tier.lock);
        if (stop) return NULL;
        ring_touch(s);
        ssd_io_wait(s->io, timeout);
    }
}
