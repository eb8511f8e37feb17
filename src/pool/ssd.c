/* The ssd tier: opening a file or device, making a tier of it or finding the one that is there, and
 * closing it. */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "base/log.h"
#include "base/thread.h"
#include "pool/site.h"
#include "pool/ssd_internal.h"

/* --- the file --- */

/* O_DIRECT, if the file system means it. */
static bool disk_try_direct(struct ssd *s) {
    int flags = fcntl(s->fd, F_GETFL);
    if (flags < 0 || fcntl(s->fd, F_SETFL, flags | O_DIRECT) != 0) return false;
    void *block = ssd_blocks(SSD_BLOCK);
    bool works = pread(s->fd, block, SSD_BLOCK, 0) >= 0;
    free(block);
    if (!works) fcntl(s->fd, F_SETFL, flags);
    return works;
}

static tarn_status disk_open(struct ssd *s, const struct tier_config *config, uint64_t *bytes_p,
                             const char **why_p) {
    struct stat st;
    struct buf path = {0};
    buf_append_str(&path, config->path);
    bool folder = stat(config->path, &st) == 0 && S_ISDIR(st.st_mode);
    int create = folder || config->create ? O_CREAT : 0;
    if (folder) buf_append_str(&path, "/tarn.ssd");
    buf_append_char(&path, '\0');
    s->tier.path = path.data;
    /* O_EXCL without O_CREAT: not a device that is mounted. */
    bool device = stat(s->tier.path, &st) == 0 && S_ISBLK(st.st_mode);
    uint64_t until = clock_mono_ms() + TIER_PATIENCE_MS;
    while ((s->fd = open(s->tier.path, O_RDWR | O_CLOEXEC | (device ? O_EXCL : create | O_NOFOLLOW),
                         0600)) < 0) {
        if (errno == EBUSY && clock_mono_ms() < until) {
            usleep(20000);
            continue;
        }
        return status_fail(errno == EBUSY ? TARN_EBUSY : TARN_EIO, why_p, "%s: %s", s->tier.path,
                           strerror(errno));
    }
    if (fstat(s->fd, &st) != 0)
        return status_fail(TARN_EIO, why_p, "%s: %s", s->tier.path, strerror(errno));
    s->device = S_ISBLK(st.st_mode);
    if (!s->device && !S_ISREG(st.st_mode))
        return status_fail(TARN_EINVAL, why_p, "%s is neither a file nor a block device",
                           s->tier.path);
    /* Its transfers may outlive a killed process for a moment, and hold the lock. */
    tarn_status status = site_claim(s->fd, "", s->tier.path, TIER_PATIENCE_MS, why_p);
    if (status != TARN_OK) return status;
    *bytes_p = (uint64_t)st.st_size;
    if (s->device && ioctl(s->fd, BLKGETSIZE64, bytes_p) != 0) {
        return status_fail(TARN_EIO, why_p, "size of %s: %s", s->tier.path, strerror(errno));
    }
    s->direct = config->direct && disk_try_direct(s);
    if (config->direct && !s->direct) {
        log_notice("SSD tier %s: no O_DIRECT here, through the page cache", s->tier.path);
    }
    return TARN_OK;
}

/* Makes the file as long as the tier, with its blocks, so that the disk is full now or never. */
static tarn_status disk_reserve(struct ssd *s, uint64_t bytes, const char **why_p) {
    uint64_t size = ssd_region_base(s, s->regions);
    if (s->device || bytes >= size) return TARN_OK;
    if (fallocate(s->fd, 0, 0, (off_t)size) == 0) return TARN_OK;
    if (errno == EOPNOTSUPP || errno == ENOSYS) {
        log_notice("SSD tier %s: this file system cannot reserve space", s->tier.path);
        if (ftruncate(s->fd, (off_t)size) == 0) return TARN_OK;
    }
    int error = errno;
    /* What it could reserve before it failed goes back. */
    if (ftruncate(s->fd, (off_t)bytes) != 0)
        log_notice("SSD tier %s: %s", s->tier.path, strerror(errno));
    return status_fail(tier_error_status(error), why_p, "reserving %llu MiB for %s: %s",
                       (unsigned long long)(size >> 20), s->tier.path, strerror(error));
}

/* --- what is on it --- */

enum content { EMPTY, OURS, OURS_DAMAGED, UNKNOWN_VERSION, FOREIGN };

/* What the place of a superblock holds. */
static enum content super_classify(const char *block, struct ssd_superblock *super_p) {
    memcpy(super_p, block, sizeof(*super_p));
    if (ssd_super_valid(super_p)) return OURS;
    if (memcmp(super_p->magic, SSD_SUPER_MAGIC, sizeof(super_p->magic)) == 0) {
        bool whole = super_p->crc == crc32c(0, super_p, offsetof(struct ssd_superblock, crc));
        return whole ? UNKNOWN_VERSION : OURS_DAMAGED;
    }
    return EMPTY;
}

/* Reads both superblocks. OURS: *super_p is the newer good one. */
static tarn_status super_look(struct ssd *s, uint64_t bytes, enum content *content_p,
                              const char **why_p) {
    *content_p = EMPTY;
    if (bytes == 0) return TARN_OK;
    char *front = memset(ssd_blocks(SSD_DATA_START), 0, SSD_DATA_START);
    ssize_t n = pread(s->fd, front, SSD_DATA_START, 0);
    if (n < 0) {
        free(front);
        return status_fail(TARN_EIO, why_p, "reading %s: %s", s->tier.path, strerror(errno));
    }
    struct ssd_superblock super[2];
    enum content a = super_classify(front, &super[0]),
                 b = super_classify(front + SSD_BLOCK, &super[1]);
    /* All of the front: file systems leave some of it empty. */
    bool zero = span_is_zero(span_of(front, SSD_DATA_START));
    free(front);
    if (a == OURS || b == OURS) {
        bool second = a != OURS || (b == OURS && super[1].generation > super[0].generation);
        s->super = super[second];
        *content_p = OURS;
    } else {
        *content_p = a > b ? a : b; /* the worse */
        if (*content_p == EMPTY && !zero) *content_p = FOREIGN;
    }
    return TARN_OK;
}

/* --- making, finding --- */

/* Both copies. */
static int ssd_super_write(struct tier *t) {
    struct ssd *s = (struct ssd *)t;
    void *block = memset(ssd_blocks(SSD_BLOCK), 0, SSD_BLOCK);
    s->super.generation++;
    memcpy(s->super.content, t->info.content, sizeof(s->super.content));
    ssd_super_seal(&s->super);
    memcpy(block, &s->super, sizeof(s->super));
    /* One copy is whole at any time. */
    int error = 0;
    for (int copy = 1; copy >= 0 && error == 0; copy--) {
        ssize_t n = pwrite(s->fd, block, SSD_BLOCK, copy * (off_t)SSD_BLOCK);
        if (n != SSD_BLOCK)
            error = n < 0 ? errno : ENOSPC;
        else if (fdatasync(s->fd) != 0)
            error = errno;
    }
    free(block);
    return error;
}

static uint64_t region_size_for(uint64_t size) {
    uint64_t region = SSD_REGION_MAX;
    while (region > SSD_REGION_MIN && size / region < 32) region /= 2;
    return region;
}

static tarn_status super_make(struct ssd *s, uint64_t size, uint64_t bytes, const char **why_p) {
    s->region_size = region_size_for(size);
    uint64_t regions = size > SSD_DATA_START ? (size - SSD_DATA_START) / s->region_size : 0;
    if (regions < SSD_REGIONS_MIN || regions > SSD_REGIONS_MAX) {
        return status_fail(TARN_EINVAL, why_p, "an SSD tier has 3 MiB to 64 TiB, not %llu KiB",
                           (unsigned long long)(size >> 10));
    }
    s->regions = (uint32_t)regions;
    tarn_status status = disk_reserve(s, bytes, why_p);
    if (status != TARN_OK) return status;
    s->super = (struct ssd_superblock){.version = SSD_SUPER_VERSION,
                                       .region_size = s->region_size,
                                       .regions = regions,
                                       .created_wall_ms = clock_wall_ms()};
    memcpy(s->super.magic, SSD_SUPER_MAGIC, sizeof(s->super.magic));
    tier_content_new(&s->tier);
    /* What an earlier tier left in the regions has no good stamp under a new key. */
    randombytes_buf(s->super.key, sizeof(s->super.key));
    int error = ssd_super_write(&s->tier);
    if (error == 0) return TARN_OK;
    return status_fail(tier_error_status(error), why_p, "writing %s: %s", s->tier.path,
                       strerror(error));
}

/* The tier that is there, made larger or smaller when the size changed. */
static tarn_status super_adopt(struct ssd *s, uint64_t size, uint64_t bytes, const char **why_p) {
    s->region_size = s->super.region_size;
    uint64_t regions = size > SSD_DATA_START ? (size - SSD_DATA_START) / s->region_size : 0;
    regions = min_u64(regions, SSD_REGIONS_MAX);
    if (regions < SSD_REGIONS_MIN) {
        return status_fail(TARN_EINVAL, why_p,
                           "%s was made with regions of %llu MiB, %u of which are the least, and "
                           "%llu MiB are fewer: make it (or each master's share of it) larger, or "
                           "remove it, with what is in it",
                           s->tier.path, (unsigned long long)(s->region_size >> 20),
                           SSD_REGIONS_MIN, (unsigned long long)(size >> 20));
    }
    s->regions = (uint32_t)regions;
    s->tier.info.recovered = true;
    memcpy(s->tier.info.content, s->super.content, sizeof(s->super.content));
    if (!s->device && bytes < ssd_region_base(s, (uint32_t)s->super.regions))
        s->tier.stats.damaged++; /* cut off */
    tarn_status status = disk_reserve(s, bytes, why_p);
    if (status != TARN_OK || regions == s->super.regions) return status;
    log_notice("SSD tier %s: %llu regions instead of %llu", s->tier.path,
               (unsigned long long)regions, (unsigned long long)s->super.regions);
    if (regions < s->super.regions) tier_content_new(&s->tier);
    s->super.regions = regions;
    int error = ssd_super_write(&s->tier);
    if (error != 0)
        return status_fail(TARN_EIO, why_p, "writing %s: %s", s->tier.path, strerror(error));
    uint64_t end = ssd_region_base(s, s->regions);
    if (!s->device && bytes > end && ftruncate(s->fd, (off_t)end) != 0) {
        log_notice("SSD tier %s: %s", s->tier.path, strerror(errno));
    }
    return TARN_OK;
}

static tarn_status super_make_or_adopt(struct ssd *s, const struct tier_config *config,
                                       uint64_t bytes, const char **why_p) {
    uint64_t size = config->size;
    if (s->device) size = size == 0 ? bytes : min_u64(size, bytes);
    enum content content;
    tarn_status status = super_look(s, bytes, &content, why_p);
    if (status != TARN_OK) return status;
    switch (content) {
    case OURS: return super_adopt(s, size, bytes, why_p);
    case FOREIGN:
        return status_fail(TARN_EINVAL, why_p, "%s holds something else; clear it first",
                           s->tier.path);
    case UNKNOWN_VERSION:
        return status_fail(TARN_EINVAL, why_p, "%s was written by another version of tarn",
                           s->tier.path);
    case OURS_DAMAGED:
        log_warning("SSD tier %s: both superblocks are damaged; all that was on it is lost",
                    s->tier.path);
        s->tier.stats.damaged = 1;
        break;
    case EMPTY: break;
    }
    return super_make(s, size, bytes, why_p);
}

static void ssd_set_limits(struct ssd *s) {
    struct tier *t = &s->tier;
    s->batch_bytes = min_u64(min_u64(SSD_BATCH_BYTES, s->region_size / 8), t->queue_bytes / 4);
    t->info.size = ssd_region_base(s, s->regions);
    t->stats.size = s->regions * s->region_size;
    /* Half of the disk for one value, with its header. */
    uint64_t most = s->regions / 2 * s->region_size;
    t->info.value_max = most - most / 1024 - 4 * SSD_BLOCK;
    /* One region is for notes, and one at least must be left for the next put when eviction
     * begins. */
    uint64_t high = (uint64_t)(TIER_HIGH * s->regions), low = (uint64_t)(TIER_LOW * s->regions);
    s->free_start = (uint32_t)max_u64(s->regions - high, SSD_RESERVE + 1);
    s->free_stop = (uint32_t)max_u64(s->regions - low, s->free_start + 1);
    s->bounces_max = (size_t)max_u64(min_u64(t->read_bytes, 16ull << 20) >> 18, 4);
    s->bounces = xcalloc(s->bounces_max, sizeof(*s->bounces));
}

static tarn_status ssd_set_up(struct ssd *s, bool populate, const char **why_p) {
    s->owner = xcalloc(s->regions, sizeof(*s->owner));
    s->free = s->regions;
    uint64_t size = s->tier.queue_bytes;
    void *ring = mmap(NULL, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (ring == MAP_FAILED) return status_fail(TARN_ENOMEM, why_p, "no memory for the queue");
    s->ring = ring;
    madvise(ring, size, MADV_DONTDUMP);
    /* a wish: fewer faults, and pages to pin for a transfer */
    madvise(ring, size, MADV_HUGEPAGE);
    s->untouched = populate ? size : 0;
    s->zero_block = memset(ssd_blocks(SSD_BLOCK), 0, SSD_BLOCK);
    uint64_t seed;
    randombytes_buf(&seed, sizeof(seed));
    rng_seed(&s->rng, seed);
    s->next_seq = 1;
    return TARN_OK;
}

static tarn_status ssd_start(struct tier *t, const char **why_p) {
    struct ssd *s = (struct ssd *)t;
    if (ssd_io_open(s->fd, SSD_DEPTH, &s->io) != TARN_OK)
        return status_fail(TARN_EIO, why_p, "no way to do disk I/O");
    log_notice("SSD tier %s: %u regions of %llu KiB, %s%s", t->path, s->regions,
               (unsigned long long)(s->region_size >> 10), ssd_io_name(s->io),
               s->direct ? ", O_DIRECT" : "");
    int error = thread_start(&s->thread, "tarn-ssd", ssd_run, s);
    if (error != 0) return status_fail(TARN_EIO, why_p, "starting a thread: %s", strerror(error));
    s->started = true;
    return TARN_OK;
}

static void ssd_close(struct tier *t) {
    struct ssd *s = (struct ssd *)t;
    if (s->started) {
        pthread_mutex_lock(&t->lock);
        s->closing = true;
        ssd_kick(s);
        pthread_mutex_unlock(&t->lock);
        pthread_join(s->thread, NULL);
        if (fdatasync(s->fd) != 0) log_warning("SSD tier %s: %s", t->path, strerror(errno));
    }
    for (struct ssd_unit *u; (u = TAILQ_TAKE(&s->units, by_age)) != NULL;) ssd_unit_free(&u);
    ssd_io_close(&s->io);
    ssd_read_free(s);
    if (s->ring != NULL) munmap(s->ring, t->queue_bytes);
    if (s->fd >= 0) close(s->fd);
    buf_free(&s->notes);
    free(s->owner);
    free(s->zero_block);
}

/* --- what is known --- */

static uint64_t ssd_each(struct tier *t, uint64_t from, struct buf *records) {
    const struct ssd *s = (const struct ssd *)t;
    const struct ssd_unit *u;
    TAILQ_FOREACH(u, &s->units, by_age) {
        if (u->seq <= from || u->state > SSD_SEALED) continue;
        buf_append(records, u->log.data, u->log.len);
        return u->seq;
    }
    return 0;
}

static tarn_status ssd_open(struct tier *t, const struct tier_config *config, const char **why_p) {
    struct ssd *s = (struct ssd *)t;
    s->fd = -1;
    TAILQ_INIT(&s->units);
    TAILQ_INIT(&s->leaving);
    TAILQ_INIT(&s->batches);
    TAILQ_INIT(&s->writing);
    STAILQ_INIT(&s->reads);
    STAILQ_INIT(&s->reading_now);
    uint64_t bytes = 0;
    tarn_status status = disk_open(s, config, &bytes, why_p);
    if (status == TARN_OK) status = super_make_or_adopt(s, config, bytes, why_p);
    if (status != TARN_OK) return status;
    ssd_set_limits(s);
    return ssd_set_up(s, config->populate, why_p);
}

const struct tier_ops ssd_ops = {
    .kind = "ssd",
    .name = "SSD tier",
    .size = sizeof(struct ssd),
    .open = ssd_open,
    .recover = ssd_recover,
    .start = ssd_start,
    .close = ssd_close,
    .rename_content = ssd_super_write,
    .find = ssd_find,
    .drop = ssd_drop,
    .rename = ssd_rename,
    .place = ssd_place,
    .placed = ssd_placed,
    .read = ssd_read,
    .mark = ssd_mark,
    .each = ssd_each,
    .too_full = ssd_too_full,
    .choose = ssd_choose,
    .evicted = ssd_evicted,
    .weigh = ssd_weigh,
    .weighed = ssd_weighed,
};
