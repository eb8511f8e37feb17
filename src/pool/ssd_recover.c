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

/* What was found at the start of a region. */
struct ssd_found {
    uint64_t seq, nonce, before_nonce, end;
    uint32_t before_batches, batches, regions; /* batches 0: nothing */
    bool damaged;                              /* it ended with something that had been a header */
    struct buf records;
};

struct ssd_scan {
    struct ssd *s;
    struct ssd_found *found; /* by region */
    uint32_t next;           /* first region that no thread has taken; atomic */
    uint32_t done;           /* atomic */
    int error;               /* atomic: errno of a read that failed */
    struct progress progress;
    uint32_t errors; /* atomic: regions that could not be read */
};

/* The whole header at position into *block (grown as needed), of which the caller has seen nothing
 * yet. 0: here it ends; 1: there it is; -1: damaged. */
static int scan_header(const struct ssd *s, const struct ssd_found *f, uint64_t position,
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
static int scan_region(const struct ssd *s, uint32_t region, struct ssd_found *f, char **block,
                       uint64_t *block_size) {
    uint64_t base = ssd_region_base(s, region), disk_end = ssd_region_base(s, s->regions);
    uint64_t position = base, end = disk_end;
    int error = 0;
    while (position < end) {
        int got = scan_header(s, f, position, end, block, block_size, &error);
        if (got < 0) f->damaged = true;
        if (got <= 0) break;
        const struct ssd_batch_header *h = (const struct ssd_batch_header *)(const void *)*block;
        uint64_t unit_end = base + h->regions * s->region_size,
                 next = position + h->header_size + h->data_size;
        if (h->regions == 0 || h->regions > s->regions - region || next > unit_end ||
            (f->batches > 0 && h->regions != f->regions)) {
            f->damaged = true;
            break;
        }
        if (f->batches == 0) {
            f->seq = h->seq;
            f->nonce = h->nonce;
            f->before_nonce = h->before_nonce;
            f->before_batches = h->before_batches;
            f->regions = h->regions;
            end = unit_end;
        }
        f->batches++;
        buf_append(&f->records, h + 1, h->records_size);
        position = next;
    }
    f->end = position;
    return error;
}

static void scan_progress(struct ssd_scan *scan, uint32_t done) {
    progress_say(&scan->progress, done, scan->s->regions, "read %u of %u regions", done,
                 scan->s->regions);
}

static void *scan_run(void *arg) {
    struct ssd_scan *scan = arg;
    struct ssd *s = scan->s;
    uint64_t block_size = FIRST_BYTES;
    char *block = ssd_blocks(block_size);
    uint32_t region;
    while ((region = __atomic_fetch_add(&scan->next, 1, __ATOMIC_RELAXED)) < s->regions) {
        int error = scan_region(s, region, &scan->found[region], &block, &block_size);
        if (error != 0) {
            __atomic_store_n(&scan->error, error, __ATOMIC_RELAXED);
            __atomic_fetch_add(&scan->errors, 1, __ATOMIC_RELAXED);
        }
        scan_progress(scan, __atomic_add_fetch(&scan->done, 1, __ATOMIC_RELAXED));
    }
    free(block);
    return NULL;
}

/* --- putting it together --- */

static int found_compare(const void *a, const void *b, void *arg) {
    const struct ssd_found *found = arg;
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    if (found[x].seq != found[y].seq) return found[x].seq < found[y].seq ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* Of two units that claim the same region the younger one is right: the other was given up before,
 * and the zeroes that should have said so did not get to the disk. They do now. */
static uint32_t found_drop_overlapped(struct ssd *s, struct ssd_found *found, const uint32_t *order,
                                      uint32_t n) {
    bool *taken = xcalloc(s->regions, sizeof(*taken));
    uint32_t dropped = 0;
    while (n-- > 0) {
        uint32_t region = order[n];
        struct ssd_found *f = &found[region];
        bool free_still = true;
        for (uint32_t r = region; r < region + f->regions; r++)
            free_still = free_still && !taken[r];
        if (!free_still) {
            dropped++;
            f->batches = 0;
            if (pwrite(s->fd, s->zero_block, SSD_BLOCK, (off_t)ssd_region_base(s, region)) !=
                SSD_BLOCK) {
                log_warning("SSD tier %s: cannot write at %llu: %s", s->tier.path,
                            (unsigned long long)ssd_region_base(s, region), strerror(errno));
            }
            continue;
        }
        for (uint32_t r = region; r < region + f->regions; r++) taken[r] = true;
    }
    free(taken);
    return dropped;
}

static void unit_found(struct ssd *s, uint32_t region, struct ssd_found *f) {
    struct ssd_unit *u = ssd_unit_create(s, region, f->regions);
    u->state = SSD_SEALED;
    u->seq = f->seq;
    u->nonce = f->nonce;
    u->before_nonce = f->before_nonce;
    u->before_batches = f->before_batches;
    u->batches = f->batches;
    u->end = f->end;
    TAILQ_INSERT_TAIL(&s->units, u, by_age);
    ssd_unit_append(s, u, f->records.data, f->records.len);
    s->next_seq = f->seq + 1;
    s->cursor = region + f->regions;
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
static uint32_t units_assemble(struct ssd *s, struct ssd_found *found) {
    uint32_t n = 0, damaged = 0;
    uint32_t *order = xcalloc(s->regions, sizeof(*order));
    for (uint32_t r = 0; r < s->regions; r++) {
        damaged += found[r].damaged;
        if (found[r].batches > 0) order[n++] = r;
    }
    qsort_r(order, n, sizeof(*order), found_compare, found);
    damaged += found_drop_overlapped(s, found, order, n);
    const struct ssd_unit *u, *before = NULL;
    for (uint32_t i = 0; i < n; i++) {
        if (found[order[i]].batches > 0) unit_found(s, order[i], &found[order[i]]);
    }
    free(order);
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
    tarn_status status = TARN_OK;
    if (scan.errors == s->regions)
        status = status_fail(TARN_EIO, why_p, "reading %s: %s", t->path, strerror(scan.error));
    else
        t->stats.damaged += units_assemble(s, scan.found) + scan.errors;
    for (uint32_t r = 0; r < s->regions; r++) buf_free(&scan.found[r].records);
    free(scan.found);
    return status;
}
