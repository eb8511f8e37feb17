/* Bringing batches to disk: the values of several at once, then their headers one after the other.
 * All of it runs in the tier's thread.
 *
 * When values cannot be written, the header is written without them: the log goes on behind the
 * hole. When a header cannot be written, nothing behind it in this unit would ever be found: what
 * was given out there fails, and a new unit begins. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "pool/ssd_internal.h"

static void headers_go(struct ssd *s);

/* --- the end of a batch --- */

static void count_failure(struct ssd *s, const struct ssd_batch *b, int error) {
    uint64_t now = clock_mono_ms();
    if (now - s->log_failure_ms >= (s->read_only ? 60000 : 1000) || s->log_failure_ms == 0) {
        s->log_failure_ms = now;
        log_warning("SSD tier %s: writing %zu objects at %llu failed: %s", s->path, b->n_puts,
                    (unsigned long long)b->position, strerror(error));
    }
    if (ssd_io_status(error) == TARN_ENOSPACE) return; /* there may be room again */
    if (++s->failures < SSD_FAILURES_MAX || s->read_only) return;
    s->read_only = true;
    log_warning("SSD tier %s: %u failures in a row; it is read from, but takes nothing more until "
                "it is opened again",
                s->path, s->failures);
}

/* Its notes must be written with another batch. */
static void note_again(struct ssd *s, const struct ssd_batch *b) {
    const struct ssd_note *notes = (const struct ssd_note *)(const void *)b->notes.data;
    size_t n = b->notes.len / sizeof(*notes);
    if (n == 0) return;
    if (s->closing) {
        log_warning("SSD tier %s: %zu removals are not on disk", s->path, n);
        return;
    }
    for (size_t i = 0; i < n; i++) ssd_note_add(s, notes[i].nonce, notes[i].offset);
    s->notes_due_ms = clock_mono_ms() + SSD_RETRY_MS;
    struct ssd_unit *u;
    TAILQ_FOREACH(u, &s->leaving, leaving) {
        if (u->state == SSD_CARRIED) u->notes_mark = s->notes_added;
    }
}

/* The records as they are in the header just written become what we know. */
static void learn(struct ssd *s, struct ssd_batch *b) {
    const struct ssd_batch_header *h = b->header;
    struct ssd_unit *u = b->unit;
    uint64_t bytes = 0;
    ssd_unit_append(s, u, (const char *)(h + 1), h->records_size);
    for (size_t i = 0; i < b->n_puts; i++) {
        const struct ssd_record *r =
            (const struct ssd_record *)(const void *)(b->records.data + b->puts[i].record);
        if (b->puts[i].done == NULL || b->puts[i].status != TARN_OK) continue;
        bytes += r->value;
        s->stats.puts++;
    }
    s->stats.put_bytes += bytes;
    s->stats.writes++;
    s->stats.write_us += clock_mono_us() - b->started_us;
}

static void finish(struct ssd *s, struct ssd_batch *b, int error) {
    struct ssd_unit *u = b->unit;
    uint64_t data = b->position + b->header_size;
    pthread_mutex_lock(&s->lock);
    if (error == 0) {
        learn(s, b);
        s->failures = b->error == 0 ? 0 : s->failures;
        if (b->note_records.len > 0) ssd_sync_soon(s);
    } else {
        note_again(s, b);
    }
    for (size_t i = 0; i < b->n_puts; i++) {
        struct ssd_put *p = &b->puts[i];
        if (error != 0) p->status = ssd_io_status(error);
        if (p->done != NULL && p->status != TARN_OK) s->stats.put_failures++;
    }
    s->notes_done = b->notes_upto;
    s->ring_tail = b->ring_end;
    s->queued -= b->queued;
    if (s->last == b) s->last = NULL;
    if (--u->unwritten == 0 && u->state == SSD_SEALED) {
        /* Nothing is added any more. */
        if (u->log.len > 0) u->log.data = xrealloc(u->log.data, u->log.cap = u->log.len);
        if (u->n_entries > 0)
            u->entries =
                xrealloc(u->entries, (u->cap_entries = u->n_entries) * sizeof(*u->entries));
        if (u->live == 0) s->empty_hint = true;
        ssd_evict_check(s);
    }
    pthread_mutex_unlock(&s->lock);

    for (size_t i = 0; i < b->n_puts; i++) {
        struct ssd_put *p = &b->puts[i];
        if (p->done != NULL) p->done(p->arg, p->status, p->status == TARN_OK ? data + p->rel : 0);
    }
    buf_free(&b->records);
    buf_free(&b->note_records);
    buf_free(&b->notes);
    free(b->puts);
    free(b->ops);
    free(b->header);
    free(b);
}

/* --- headers --- */

static void make_header(struct ssd *s, struct ssd_batch *b) {
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
        struct ssd_record *r = (struct ssd_record *)(void *)(b->records.data + b->puts[i].record);
        if (r->kind != SSD_ENTRY) continue;
        memcpy(out, r, r->size);
        ((struct ssd_record *)(void *)out)->offset += b->position + b->header_size;
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
        pthread_mutex_lock(&s->lock);
        count_failure(s, b, error);
        b->unit->broken = true;
        pthread_mutex_unlock(&s->lock);
    }
    finish(s, b, error);
    headers_go(s);
}

/* The next header, when all before it are there. */
static void headers_go(struct ssd *s) {
    struct ssd_batch *b;
    while ((b = TAILQ_FIRST(&s->writing)) != NULL && b->state == SSD_BATCH_READY) {
        if (b->unit->broken) {
            TAILQ_REMOVE(&s->writing, b, next);
            s->n_writing--;
            finish(s, b, EIO);
            continue;
        }
        make_header(s, b);
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
static void leave_out(struct ssd_batch *b, tarn_status status) {
    for (size_t i = 0; i < b->n_puts; i++) {
        struct ssd_record *r = (struct ssd_record *)(void *)(b->records.data + b->puts[i].record);
        r->kind = 0;
        b->puts[i].status = status;
    }
}

static void values_written(struct ssd *s, struct ssd_batch *b) {
    if (b->error != 0) {
        pthread_mutex_lock(&s->lock);
        count_failure(s, b, b->error);
        pthread_mutex_unlock(&s->lock);
        leave_out(b, ssd_io_status(b->error));
    }
    b->state = SSD_BATCH_READY;
    headers_go(s);
}

static void piece_written(struct ssd_op *op) {
    struct ssd_batch *b = op->arg;
    if (op->error != 0) b->error = op->error;
    if (--b->ops_left == 0) values_written(b->owner, b);
}

static void start_values(struct ssd *s, struct ssd_batch *b) {
    uint64_t size = ssd_align(b->data_size, SSD_BLOCK);
    char *data = s->ring + b->ring_at % s->ring_size;
    memset(data + b->data_size, 0, size - b->data_size);
    size_t n = (size_t)((size + SSD_WRITE_BYTES - 1) / SSD_WRITE_BYTES);
    if (n == 0) { /* only notes */
        values_written(s, b);
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
                                    .done = piece_written,
                                    .arg = b};
        ssd_io_submit(s->io, &b->ops[i]);
    }
}

/* --- streams --- */

static void chunk_written(struct ssd_op *op);

/* Fills a chunk and sends it off; false: there is nothing left. */
static bool send_chunk(struct ssd *s, struct ssd_batch *b, unsigned i) {
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
                                 .done = chunk_written,
                                 .arg = b};
    st->under_way++;
    ssd_io_submit(s->io, &st->ops[i]);
    return true;
}

static void end_stream(struct ssd *s, struct ssd_batch *b) {
    struct ssd_stream *st = b->stream;
    bool whole = st->copy.done == st->size && tier_copy_crc(&st->copy) == st->crc;
    if (b->error == 0 && !whole) leave_out(b, TARN_ECORRUPT);
    for (unsigned i = 0; i < SSD_CHUNKS; i++) free(st->chunks[i]);
    free(st->iov);
    free(st);
    b->stream = NULL;
    values_written(s, b);
}

static void chunk_written(struct ssd_op *op) {
    struct ssd_batch *b = op->arg;
    struct ssd_stream *st = b->stream;
    if (op->error != 0) b->error = op->error;
    st->under_way--;
    if (!send_chunk(b->owner, b, (unsigned)(op - st->ops)) && st->under_way == 0)
        end_stream(b->owner, b);
}

/* --- the beginning --- */

void ssd_write_start(struct ssd *s) {
    while (s->n_writing < SSD_WRITING_MAX) {
        pthread_mutex_lock(&s->lock);
        struct ssd_batch *b = TAILQ_FIRST(&s->batches);
        bool go = b != NULL && b->copying == 0;
        if (go) TAILQ_REMOVE(&s->batches, b, next);
        pthread_mutex_unlock(&s->lock);
        if (!go) return;
        TAILQ_INSERT_TAIL(&s->writing, b, next);
        s->n_writing++;
        b->state = SSD_BATCH_DATA;
        b->started_us = clock_mono_us();
        if (b->stream == NULL) {
            start_values(s, b);
            continue;
        }
        for (unsigned i = 0; i < SSD_CHUNKS; i++) send_chunk(s, b, i);
        TARN_ASSERT(b->stream->under_way > 0);
    }
}
