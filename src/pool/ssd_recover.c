/* Finding again what is on the disk: from the start of every region the headers of its unit, one
 * after the other. Values are not read. What was torn when the process ended is the end of its
 * unit; what is damaged is counted and lost, and so is what lies behind it in that unit. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/thread.h"
#include "pool/ssd_internal.h"

#define THREADS_MAX    8u
#define THREAD_REGIONS 64u         /* a thread more for each */
#define FIRST_BYTES    (16u << 10) /* most headers are not larger */

struct ssd_scan {
    struct ssd *s;
    struct ssd_unit **found; /* by the region that they begin with */
    /* All atomic: the first region that no thread has taken, those that are done, that could not be
     * read, whose unit ended with something that had been a header; errno of such a read. */
    uint32_t next, done, errors, damaged;
    int error;
    struct progress progress;
};

/* The whole header at position into *block (grown as needed), of which the caller has seen nothing
 * yet. 0: here it ends; 1: there it is; -1: damaged. */
static int scan_header(const struct ssd *s, const struct ssd_unit *f, uint64_t position,
                       uint64_t end, char **block, uint64_t *block_size, int *error_p) {
    uint64_t first = min_u64(FIRST_BYTES, end - position);
    *error_p = file_read_at(s->fd, *block, first, position);
    if (*error_p != 0) return 0;
    struct ssd_batch_header *h = (struct ssd_batch_header *)(void *)*block;
    if (!ssd_batch_expected(h, f->seq, f->nonce, f->batches, position)) return 0;
    uint64_t size = h->header_size;
    if (size < SSD_BLOCK || size % SSD_BLOCK != 0 || size > SSD_HEADER_MAX + SSD_BLOCK ||
        size > end - position) {
        return -1;
    }
    if (size > *block_size) {
        char *larger = ssd_blocks(size);
        memcpy(larger, *block, first);
        free(*block);
        *block = larger;
        *block_size = size;
        h = (struct ssd_batch_header *)(void *)larger;
    }
    if (size > first)
        *error_p = file_read_at(s->fd, *block + first, size - first, position + first);
    if (*error_p != 0) return 0;
    return ssd_batch_valid(h, s->super.key, end) ? 1 : -1;
}

/* The unit that begins with this region, if one does. */
static void scan_region(struct ssd_scan *scan, uint32_t region, char **block,
                        uint64_t *block_size) {
    const struct ssd *s = scan->s;
    uint64_t base = ssd_region_base(s, region), end = ssd_region_base(s, s->regions);
    struct ssd_unit *u = ssd_unit_new(s, region, 0);
    int error = 0, got = 0;
    while (u->end < end && (got = scan_header(s, u, u->end, end, block, block_size, &error)) > 0) {
        const struct ssd_batch_header *h = (const void *)*block;
        uint64_t unit_end = base + h->regions * s->region_size,
                 next = u->end + h->header_size + h->data_size;
        if (h->regions == 0 || h->regions > s->regions - region || next > unit_end ||
            (u->batches > 0 && h->regions != u->regions)) {
            got = -1;
            break;
        }
        if (u->batches++ == 0) {
            u->seq = h->seq;
            u->nonce = h->nonce;
            u->before_nonce = h->before_nonce;
            u->before_batches = h->before_batches;
            u->regions = h->regions;
            end = unit_end;
        }
        buf_append(&u->log, h + 1, h->records_size);
        u->end = next;
    }
    if (got < 0) __atomic_fetch_add(&scan->damaged, 1, __ATOMIC_RELAXED);
    if (error != 0) {
        __atomic_store_n(&scan->error, error, __ATOMIC_RELAXED);
        __atomic_fetch_add(&scan->errors, 1, __ATOMIC_RELAXED);
    }
    if (u->batches == 0) ssd_unit_free(&u);
    scan->found[region] = u;
}

static void *scan_run(void *arg) {
    struct ssd_scan *scan = arg;
    uint64_t block_size = FIRST_BYTES;
    char *block = ssd_blocks(block_size);
    uint32_t region, regions = scan->s->regions;
    while ((region = __atomic_fetch_add(&scan->next, 1, __ATOMIC_RELAXED)) < regions) {
        scan_region(scan, region, &block, &block_size);
        uint32_t done = __atomic_add_fetch(&scan->done, 1, __ATOMIC_RELAXED);
        progress_say(&scan->progress, done, regions, "read %u of %u regions", done, regions);
    }
    free(block);
    return NULL;
}

/* --- putting it together --- */

static int unit_compare_age(const void *a, const void *b) {
    const struct ssd_unit *x = *(struct ssd_unit *const *)a, *y = *(struct ssd_unit *const *)b;
    if (x->seq != y->seq) return x->seq < y->seq ? -1 : 1;
    return x->region < y->region ? -1 : x->region > y->region;
}

/* Of two units that claim the same region the younger one is right: the other was given up before,
 * and the zeroes that should have said so did not get to the disk. They do now. units: the youngest
 * last; some become NULL. */
static uint32_t units_drop_overlapped(struct ssd *s, struct ssd_unit **units, uint32_t n) {
    bool *taken = xcalloc(s->regions, sizeof(*taken));
    uint32_t dropped = 0;
    while (n-- > 0) {
        struct ssd_unit *u = units[n];
        bool whole = true;
        for (uint32_t r = u->region; r < u->region + u->regions; r++) whole = whole && !taken[r];
        if (whole) {
            memset(&taken[u->region], true, u->regions);
            continue;
        }
        dropped++;
        if (pwrite(s->fd, s->zero_block, SSD_BLOCK, (off_t)u->base) != SSD_BLOCK)
            log_warning("SSD tier %s: cannot write at %llu: %s", s->tier.path,
                        (unsigned long long)u->base, strerror(errno));
        ssd_unit_free(&units[n]);
    }
    free(taken);
    return dropped;
}

static void unit_take_over(struct ssd *s, struct ssd_unit *u) {
    struct buf log = u->log;
    u->log = (struct buf){0};
    u->state = SSD_SEALED;
    ssd_unit_claim(s, u);
    ssd_unit_append(s, u, log.data, log.len);
    buf_free(&log);
    s->next_seq = u->seq + 1;
    s->cursor = u->region + u->regions;
}

static void unit_apply_notes(struct ssd *s, const struct ssd_unit *from) {
    for (size_t at = 0; at < from->log.len;) {
        const struct tier_record *note = (const void *)(from->log.data + at);
        at += note->size;
        if (note->key_size > 0) continue;
        struct tier_record *r = ssd_note_target(s, note->value, note->offset);
        if (r == NULL || r->kind != TIER_ENTRY) continue;
        if (note->kind == TIER_RENAMED) {
            r->version = note->version;
            continue;
        }
        ssd_entry_drop(s, ssd_unit_at(s, note->offset), r);
    }
}

/* Units from what was found, and what the notes in them say. Returns how many places are
 * damaged. */
static uint32_t units_assemble(struct ssd *s, struct ssd_unit **units) {
    uint32_t n = 0;
    for (uint32_t r = 0; r < s->regions; r++)
        if (units[r] != NULL) units[n++] = units[r];
    qsort(units, n, sizeof(struct ssd_unit *), unit_compare_age);
    uint32_t damaged = units_drop_overlapped(s, units, n);
    for (uint32_t i = 0; i < n; i++)
        if (units[i] != NULL) unit_take_over(s, units[i]);
    const struct ssd_unit *u, *before = NULL;
    TAILQ_FOREACH(u, &s->units, by_age) {
        unit_apply_notes(s, u);
        /* The end of a unit looks like any other; whoever wrote the next one knew where it is. */
        if (before != NULL && u->before_nonce == before->nonce &&
            before->batches < u->before_batches)
            damaged++;
        before = u;
    }
    s->empty_hint = true;
    return damaged;
}

tarn_status ssd_recover(struct tier *t, const char **why_p) {
    struct ssd *s = (struct ssd *)t;
    if (!t->info.recovered) return TARN_OK;
    struct ssd_scan scan = {.s = s, .found = xcalloc(s->regions, sizeof(*scan.found))};
    progress_log(&scan.progress, "SSD tier %s", t->path);
    thread_run_together(1 + (unsigned)min_u64(s->regions / THREAD_REGIONS, THREADS_MAX),
                        "tarn-scan", scan_run, &scan);
    uint64_t lost = scan.errors + scan.damaged + units_assemble(s, scan.found);
    free(scan.found);
    if (scan.errors == s->regions)
        return status_fail(TARN_EIO, why_p, "reading %s: %s", t->path, strerror(scan.error));
    t->stats.damaged += lost;
    return TARN_OK;
}
