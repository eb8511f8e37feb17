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

#define LOCK_PATIENCE_MS 2000u
#define COPY_MAX         (64ull << 20)
#define QUEUE_MIN        (1ull << 20)

/* --- the file --- */

/* Its transfers may outlive a killed process for a moment, and hold the lock. */
static bool lock_file(int fd) {
    uint64_t until = clock_mono_ms() + LOCK_PATIENCE_MS;
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK || clock_mono_ms() >= until) return false;
        usleep(20000);
    }
    return true;
}

/* O_DIRECT, if the file system means it. */
static bool try_direct(struct ssd *s) {
    int flags = fcntl(s->fd, F_GETFL);
    if (flags < 0 || fcntl(s->fd, F_SETFL, flags | O_DIRECT) != 0) return false;
    void *block = ssd_blocks(SSD_BLOCK);
    bool works = pread(s->fd, block, SSD_BLOCK, 0) >= 0;
    free(block);
    if (!works) fcntl(s->fd, F_SETFL, flags);
    return works;
}

static tarn_status open_file(struct ssd *s, const struct tier_config *config, uint64_t *bytes_p,
                             const char **why_p) {
    struct stat st;
    struct buf path = {0};
    buf_append_str(&path, config->path);
    bool folder = stat(config->path, &st) == 0 && S_ISDIR(st.st_mode);
    int create = folder || config->create ? O_CREAT : 0;
    if (folder) buf_append_str(&path, "/tarn.ssd");
    buf_append_char(&path, '\0');
    s->path = path.data;
    /* O_EXCL without O_CREAT: not a device that is mounted. */
    bool device = stat(s->path, &st) == 0 && S_ISBLK(st.st_mode);
    uint64_t until = clock_mono_ms() + LOCK_PATIENCE_MS;
    while ((s->fd = open(s->path, O_RDWR | O_CLOEXEC | (device ? O_EXCL : create | O_NOFOLLOW),
                         0600)) < 0) {
        if (errno == EBUSY && clock_mono_ms() < until) {
            usleep(20000);
            continue;
        }
        return tier_fail(errno == EBUSY ? TARN_EBUSY : TARN_EIO, why_p, "%s: %s", s->path,
                         strerror(errno));
    }
    if (fstat(s->fd, &st) != 0)
        return tier_fail(TARN_EIO, why_p, "%s: %s", s->path, strerror(errno));
    s->device = S_ISBLK(st.st_mode);
    if (!s->device && !S_ISREG(st.st_mode)) {
        return tier_fail(TARN_EINVAL, why_p, "%s is neither a file nor a block device", s->path);
    }
    if (!s->device && st.st_uid != geteuid()) {
        return tier_fail(TARN_EINVAL, why_p, "%s belongs to another user (uid %u)", s->path,
                         (unsigned)st.st_uid);
    }
    if (!lock_file(s->fd))
        return tier_fail(TARN_EBUSY, why_p, "%s is in use by another process%s", s->path,
                         file_holder_text(s->fd));
    *bytes_p = (uint64_t)st.st_size;
    if (s->device && ioctl(s->fd, BLKGETSIZE64, bytes_p) != 0) {
        return tier_fail(TARN_EIO, why_p, "size of %s: %s", s->path, strerror(errno));
    }
    s->tier.info.direct = config->direct && try_direct(s);
    if (config->direct && !s->tier.info.direct) {
        log_notice("SSD tier %s: no O_DIRECT here, through the page cache", s->path);
    }
    return TARN_OK;
}

/* Makes the file as long as the tier, with its blocks, so that the disk is full now or never. */
static tarn_status reserve_file(struct ssd *s, uint64_t bytes, const char **why_p) {
    uint64_t size = ssd_region_base(s, s->regions);
    if (s->device || bytes >= size) return TARN_OK;
    if (fallocate(s->fd, 0, 0, (off_t)size) == 0) return TARN_OK;
    if (errno == EOPNOTSUPP || errno == ENOSYS) {
        log_notice("SSD tier %s: this file system cannot reserve space", s->path);
        if (ftruncate(s->fd, (off_t)size) == 0) return TARN_OK;
    }
    int error = errno;
    /* What it could reserve before it failed goes back. */
    if (ftruncate(s->fd, (off_t)bytes) != 0)
        log_notice("SSD tier %s: %s", s->path, strerror(errno));
    return tier_fail(ssd_io_status(error), why_p, "reserving %llu MiB for %s: %s",
                     (unsigned long long)(size >> 20), s->path, strerror(error));
}

/* --- what is on it --- */

enum content { EMPTY, OURS, OURS_DAMAGED, UNKNOWN_VERSION, FOREIGN };

/* What the place of a superblock holds. */
static enum content classify(const char *block, struct ssd_superblock *super_p) {
    memcpy(super_p, block, sizeof(*super_p));
    if (ssd_super_valid(super_p)) return OURS;
    if (memcmp(super_p->magic, SSD_SUPER_MAGIC, sizeof(super_p->magic)) == 0) {
        bool whole = super_p->crc == crc32c(0, super_p, offsetof(struct ssd_superblock, crc));
        return whole ? UNKNOWN_VERSION : OURS_DAMAGED;
    }
    return EMPTY;
}

static bool is_zero(const char *p, size_t n) {
    return n == 0 || (p[0] == 0 && memcmp(p, p + 1, n - 1) == 0);
}

/* Reads both superblocks. OURS: *super_p is the newer good one. */
static tarn_status look(struct ssd *s, uint64_t bytes, enum content *content_p,
                        const char **why_p) {
    *content_p = EMPTY;
    if (bytes == 0) return TARN_OK;
    char *front = memset(ssd_blocks(SSD_DATA_START), 0, SSD_DATA_START);
    ssize_t n = pread(s->fd, front, SSD_DATA_START, 0);
    if (n < 0) {
        free(front);
        return tier_fail(TARN_EIO, why_p, "reading %s: %s", s->path, strerror(errno));
    }
    struct ssd_superblock super[2];
    enum content a = classify(front, &super[0]), b = classify(front + SSD_BLOCK, &super[1]);
    /* All of the front: file systems leave some of it empty. */
    bool zero = is_zero(front, SSD_DATA_START);
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

static uint64_t choose_region_size(uint64_t size) {
    uint64_t region = SSD_REGION_MAX;
    while (region > SSD_REGION_MIN && size / region < 32) region /= 2;
    return region;
}

static tarn_status make(struct ssd *s, uint64_t size, uint64_t bytes, const char **why_p) {
    s->region_size = choose_region_size(size);
    uint64_t regions = size > SSD_DATA_START ? (size - SSD_DATA_START) / s->region_size : 0;
    if (regions < SSD_REGIONS_MIN || regions > SSD_REGIONS_MAX) {
        return tier_fail(TARN_EINVAL, why_p, "an SSD tier has 3 MiB to 64 TiB, not %llu KiB",
                         (unsigned long long)(size >> 10));
    }
    s->regions = (uint32_t)regions;
    tarn_status status = reserve_file(s, bytes, why_p);
    if (status != TARN_OK) return status;
    s->super = (struct ssd_superblock){.version = SSD_SUPER_VERSION,
                                       .region_size = s->region_size,
                                       .regions = regions,
                                       .created_wall_ms = clock_wall_ms()};
    memcpy(s->super.magic, SSD_SUPER_MAGIC, sizeof(s->super.magic));
    tier_content_new(s->super.content);
    /* What an earlier tier left in the regions has no good stamp under a new key. */
    randombytes_buf(s->super.key, sizeof(s->super.key));
    if (ssd_super_write(s) != TARN_OK) {
        return tier_fail(ssd_io_status(errno), why_p, "writing %s: %s", s->path, strerror(errno));
    }
    return TARN_OK;
}

/* The tier that is there, made larger or smaller when the size changed. */
static tarn_status adopt(struct ssd *s, uint64_t size, uint64_t bytes, const char **why_p) {
    s->region_size = s->super.region_size;
    uint64_t regions = size > SSD_DATA_START ? (size - SSD_DATA_START) / s->region_size : 0;
    regions = min_u64(regions, SSD_REGIONS_MAX);
    if (regions < SSD_REGIONS_MIN) {
        return tier_fail(TARN_EINVAL, why_p,
                         "%s was made with regions of %llu MiB; %llu MiB are too few for them",
                         s->path, (unsigned long long)(s->region_size >> 20),
                         (unsigned long long)(size >> 20));
    }
    s->regions = (uint32_t)regions;
    s->tier.info.recovered = true;
    if (!s->device && bytes < ssd_region_base(s, (uint32_t)s->super.regions))
        s->stats.damaged++; /* cut off */
    tarn_status status = reserve_file(s, bytes, why_p);
    if (status != TARN_OK || regions == s->super.regions) return status;
    log_notice("SSD tier %s: %llu regions instead of %llu", s->path, (unsigned long long)regions,
               (unsigned long long)s->super.regions);
    if (regions < s->super.regions) tier_content_new(s->super.content);
    s->super.regions = regions;
    if (ssd_super_write(s) != TARN_OK)
        return tier_fail(TARN_EIO, why_p, "writing %s: %s", s->path, strerror(errno));
    uint64_t end = ssd_region_base(s, s->regions);
    if (!s->device && bytes > end && ftruncate(s->fd, (off_t)end) != 0) {
        log_notice("SSD tier %s: %s", s->path, strerror(errno));
    }
    return TARN_OK;
}

static tarn_status make_or_adopt(struct ssd *s, const struct tier_config *config, uint64_t bytes,
                                 const char **why_p) {
    uint64_t size = config->size;
    if (s->device) size = size == 0 ? bytes : min_u64(size, bytes);
    enum content content;
    tarn_status status = look(s, bytes, &content, why_p);
    if (status != TARN_OK) return status;
    switch (content) {
    case OURS: return adopt(s, size, bytes, why_p);
    case FOREIGN:
        return tier_fail(TARN_EINVAL, why_p, "%s holds something else; clear it first", s->path);
    case UNKNOWN_VERSION:
        return tier_fail(TARN_EINVAL, why_p, "%s was written by another version of tarn", s->path);
    case OURS_DAMAGED:
        log_warning("SSD tier %s: both superblocks are damaged; all that was on it is lost",
                    s->path);
        s->stats.damaged = 1;
        break;
    case EMPTY: break;
    }
    return make(s, size, bytes, why_p);
}

static void set_limits(struct ssd *s, const struct tier_config *config) {
    struct tier_info *info = &s->tier.info;
    s->queue_bytes = ssd_align(max_u64(config->queue_bytes, QUEUE_MIN), SSD_BLOCK);
    s->read_bytes = config->read_bytes;
    s->batch_bytes = min_u64(min_u64(SSD_BATCH_BYTES, s->region_size / 8), s->queue_bytes / 4);
    info->size = ssd_region_base(s, s->regions);
    info->copy_max = min_u64(s->queue_bytes / 4, COPY_MAX);
    /* Half of the disk for one value, with its header. */
    uint64_t most = s->regions / 2 * s->region_size;
    info->value_max = most - most / 1024 - 4 * SSD_BLOCK;
    /* One region is for notes, and one at least must be left for the next put when eviction
     * begins. */
    uint64_t high = (uint64_t)(config->high_watermark * s->regions),
             low = (uint64_t)(config->low_watermark * s->regions);
    s->free_start = (uint32_t)max_u64(s->regions - high, SSD_RESERVE + 1);
    s->free_stop = (uint32_t)max_u64(s->regions - low, s->free_start + 1);
    s->bounces_max = (size_t)max_u64(min_u64(s->read_bytes, 16ull << 20) >> 18, 4);
    s->bounces = xcalloc(s->bounces_max, sizeof(*s->bounces));
}

static tarn_status set_up(struct ssd *s, const char **why_p) {
    s->owner = xcalloc(s->regions, sizeof(*s->owner));
    s->free = s->regions;
    s->ring_size = s->queue_bytes;
    void *ring = mmap(NULL, s->ring_size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (ring == MAP_FAILED) return tier_fail(TARN_ENOMEM, why_p, "no memory for the queue");
    s->ring = ring;
    madvise(ring, s->ring_size, MADV_DONTDUMP);
    /* a wish: fewer faults, and pages to pin for a transfer */
    madvise(ring, s->ring_size, MADV_HUGEPAGE);
    s->zero_block = memset(ssd_blocks(SSD_BLOCK), 0, SSD_BLOCK);
    uint64_t seed;
    randombytes_buf(&seed, sizeof(seed));
    rng_seed(&s->rng, seed);
    s->next_seq = s->next_ticket = 1;
    s->tier.event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->tier.event_fd < 0) return tier_fail(TARN_EIO, why_p, "eventfd: %s", strerror(errno));
    if (s->tier.info.recovered) return ssd_recover(s, why_p);
    return TARN_OK;
}

static tarn_status start(struct ssd *s, const char **why_p) {
    if (ssd_io_open(s->fd, SSD_DEPTH, &s->io) != TARN_OK)
        return tier_fail(TARN_EIO, why_p, "no way to do disk I/O");
    int error = thread_start(&s->thread, "tarn-ssd", ssd_run, s);
    if (error != 0) return tier_fail(TARN_EIO, why_p, "starting a thread: %s", strerror(error));
    s->started = true;
    return TARN_OK;
}

static void release(struct ssd *s) {
    for (struct ssd_unit *u; (u = TAILQ_TAKE(&s->units, by_age)) != NULL;) {
        buf_free(&u->log);
        free(u->entries);
        free(u);
    }
    ssd_io_close(&s->io);
    ssd_read_free(s);
    if (s->ring != NULL) munmap(s->ring, s->ring_size);
    if (s->tier.event_fd >= 0) close(s->tier.event_fd);
    if (s->fd >= 0) close(s->fd);
    pthread_mutex_destroy(&s->lock);
    free(s->owner);
    free(s->notes);
    free(s->zero_block);
    free(s->path);
    s->tier.magic = 0;
    free(s);
}

static void ssd_close(struct tier *t) {
    struct ssd *s = (struct ssd *)t;
    pthread_mutex_lock(&s->lock);
    s->closing = true;
    ssd_kick(s);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    TARN_ASSERT(s->queued == 0 && s->reading == 0);
    if (fdatasync(s->fd) != 0) log_warning("SSD tier %s: %s", s->path, strerror(errno));
    release(s);
}

/* --- what is known --- */

static void ssd_each(struct tier *t, void (*fn)(void *arg, const struct tier_item *item),
                     void *arg) {
    struct ssd *s = (struct ssd *)t;
    /* Puts go on between units: each is looked at in a copy. Units are found again by their age. */
    uint64_t seen = 0;
    for (;;) {
        struct buf log = {0};
        struct ssd_unit *u;
        pthread_mutex_lock(&s->lock);
        TAILQ_FOREACH(u, &s->units, by_age) {
            if (u->seq > seen && u->state <= SSD_SEALED) break;
        }
        if (u != NULL) {
            seen = u->seq;
            buf_append(&log, u->log.data, u->log.len);
        }
        pthread_mutex_unlock(&s->lock);
        if (u == NULL) return;
        for (size_t at = 0; at < log.len;) {
            const struct ssd_record *r = (const struct ssd_record *)(const void *)(log.data + at);
            struct tier_item item;
            at += r->size;
            if (r->kind != SSD_ENTRY) continue;
            ssd_record_item(r, &item);
            fn(arg, &item);
        }
        buf_free(&log);
    }
}

static void ssd_get_stats(struct tier *t, struct tier_stats *stats_p) {
    struct ssd *s = (struct ssd *)t;
    pthread_mutex_lock(&s->lock);
    struct tier_stats stats = s->stats;
    stats.size = s->regions * s->region_size;
    stats.used = (s->regions - s->free) * s->region_size;
    stats.queued_bytes = s->queued;
    stats.read_only = s->read_only;
    stats.memory = s->regions * sizeof(*s->owner) + s->cap_notes * sizeof(*s->notes);
    const struct ssd_unit *u;
    TAILQ_FOREACH(u, &s->units, by_age) {
        stats.memory += sizeof(*u) + u->log.cap + u->cap_entries * sizeof(*u->entries);
    }
    pthread_mutex_unlock(&s->lock);
    *stats_p = stats;
}

static tarn_status ssd_renew(struct tier *t, const uint8_t content[TIER_CONTENT_SIZE]) {
    struct ssd *s = CONTAINER_OF(t, struct ssd, tier);
    memcpy(s->super.content, content, TIER_CONTENT_SIZE);
    return ssd_super_write(s);
}

static const struct tier_ops ssd_ops = {
    .close = ssd_close,
    .renew = ssd_renew,
    .each = ssd_each,
    .rename = ssd_rename,
    .put = ssd_put,
    .drop = ssd_drop,
    .read = ssd_read_submit,
    .poll_evict = ssd_poll_evict,
    .evicted = ssd_evicted,
    .get_stats = ssd_get_stats,
};

tarn_status ssd_open(const struct tier_config *config, struct tier **tier_p, const char **why_p) {
    struct ssd *s = xcalloc(1, sizeof(*s));
    s->tier = (struct tier){.magic = TIER_MAGIC, .ops = &ssd_ops, .event_fd = -1};
    s->tier.info.kind = "ssd";
    s->fd = -1;
    pthread_mutex_init(&s->lock, NULL);
    TAILQ_INIT(&s->units);
    TAILQ_INIT(&s->leaving);
    TAILQ_INIT(&s->batches);
    TAILQ_INIT(&s->writing);
    STAILQ_INIT(&s->reads);
    STAILQ_INIT(&s->reading_now);
    uint64_t bytes = 0;
    tarn_status status = open_file(s, config, &bytes, why_p);
    if (status == TARN_OK) status = make_or_adopt(s, config, bytes, why_p);
    if (status == TARN_OK) {
        set_limits(s, config);
        status = set_up(s, why_p);
    }
    if (status == TARN_OK) status = start(s, why_p);
    if (status != TARN_OK) {
        release(s);
        return status;
    }
    memcpy(s->tier.info.content, s->super.content, sizeof(s->tier.info.content));
    pthread_mutex_lock(&s->lock);
    ssd_evict_check(s);
    pthread_mutex_unlock(&s->lock);
    log_notice("SSD tier %s: %llu MiB in %u regions of %llu KiB, %s%s", s->path,
               (unsigned long long)(s->tier.info.size >> 20), s->regions,
               (unsigned long long)(s->region_size >> 10), ssd_io_name(s->io),
               s->tier.info.direct ? ", O_DIRECT" : "");
    *tier_p = &s->tier;
    return TARN_OK;
}
