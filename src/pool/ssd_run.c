/* The thread of an ssd tier: whatever touches the disk after tier_open happens here.
 *
 * Values are not synced: after a power failure the last may be missing, which is a miss. Removals
 * are, about every second: what comes back would be a value that somebody has replaced. */
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "pool/ssd_internal.h"

/* Batches whose time has come go to the disk even if they are small. */
static void seal_what_is_due(struct ssd *s) {
    uint64_t now = clock_mono_ms();
    if (s->open != NULL && (s->closing || now >= s->open->opened_ms + SSD_BATCH_AGE_MS))
        ssd_seal(s);
    if (s->notes_due_ms != 0 && (s->closing || now >= s->notes_due_ms)) ssd_seal_notes(s);
    if (s->closing && s->n_notes > 0 && s->last == NULL) {
        log_warning("SSD tier %s: no room for %zu notes on removals", s->path, s->n_notes);
        s->n_notes = 0;
    }
}

void ssd_sync_soon(struct ssd *s) {
    if (s->sync_due_ms == 0) s->sync_due_ms = clock_mono_ms() + SSD_SYNC_MS;
}

static void synced(struct ssd_op *op) {
    struct ssd *s = op->arg;
    pthread_mutex_lock(&s->lock);
    s->syncing = false;
    if (op->error != 0) log_warning("SSD tier %s: syncing: %s", s->path, strerror(op->error));
    pthread_mutex_unlock(&s->lock);
}

static void sync_if_due(struct ssd *s) {
    if (s->sync_due_ms == 0 || s->syncing || s->closing || clock_mono_ms() < s->sync_due_ms) return;
    s->syncing = true;
    s->sync_due_ms = 0;
    s->sync = (struct ssd_op){.sync = true, .done = synced, .arg = s};
    ssd_io_submit(s->io, &s->sync);
}

static int next_timeout(const struct ssd *s) {
    uint64_t now = clock_mono_ms(), until = UINT64_MAX;
    if (s->kicked) return 0;
    if (s->open != NULL) until = s->open->opened_ms + SSD_BATCH_AGE_MS;
    if (s->notes_due_ms != 0) until = min_u64(until, s->notes_due_ms);
    if (s->sync_due_ms != 0 && !s->syncing) until = min_u64(until, s->sync_due_ms);
    if (until == UINT64_MAX) return -1;
    return until <= now ? 0 : (int)min_u64(until - now, 60000);
}

static bool is_idle(const struct ssd *s) {
    return s->open == NULL && TAILQ_EMPTY(&s->batches) && s->n_writing == 0 && s->n_reading == 0 &&
           s->erasing == 0 && !s->syncing && s->n_notes == 0;
}

void *ssd_run(void *arg) {
    struct ssd *s = arg;
    for (;;) {
        pthread_mutex_lock(&s->lock);
        s->asleep = s->kicked = false;
        ssd_evict_advance(s);
        seal_what_is_due(s);
        sync_if_due(s);
        pthread_mutex_unlock(&s->lock);
        ssd_read_start(s);
        ssd_write_start(s);
        pthread_mutex_lock(&s->lock);
        bool stop = s->closing && is_idle(s);
        int timeout = next_timeout(s);
        s->asleep = timeout != 0;
        pthread_mutex_unlock(&s->lock);
        if (stop) return NULL;
        ssd_io_wait(s->io, timeout);
    }
}
