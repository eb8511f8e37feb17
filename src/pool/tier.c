/* One face for slow tiers of any kind, and what they have in common. */
#include "pool/tier.h"

#include <limits.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "base/tsan.h"
#include "pool/site.h"
#include "pool/tier_internal.h"

#define QUEUE_BYTES  (256ull << 20)
#define QUEUE_MIN    (1ull << 20)
#define READ_BYTES   (64ull << 20)
#define COPY_MAX     (64ull << 20)
#define PUT_OVERHEAD 512u /* what a put counts for in the queue besides its value */
#define FAILURES_MAX 3u

/* --- opening and closing --- */

/* Where it would not fill a disk that was not meant. */
static tarn_status tier_check_site(const struct tier_config *c, bool file, const char **why_p) {
    char missing[PATH_MAX];
    struct stat st;
    if (site_unmounted(c->path, missing, sizeof(missing)))
        return status_fail(TARN_EINVAL, why_p,
                           "it would lie below %s, which /etc/fstab names and where nothing is "
                           "mounted: mount it first",
                           missing);
    if (c->create || stat(c->path, &st) == 0 || errno != ENOENT) return TARN_OK;
    return status_fail(
        TARN_EINVAL, why_p,
        "there is no %s of that name; make it first, or let it be made: --%s PATH:SIZE,create "
        "(%s_create in tarn_host_options)",
        file ? "directory" : "directory, device or file", file ? "file" : "ssd",
        file ? "file" : "ssd");
}

static tarn_status tier_find_again(struct tier *t, const char **why_p) {
    uint64_t start = clock_mono_ms();
    tarn_status s = t->ops->recover(t, why_p);
    if (s != TARN_OK) return s;
    t->stats.recovered = t->stats.entries;
    if (t->stats.damaged > 0) {
        log_warning("%s %s: damaged in %llu places; what was there is lost", t->ops->name, t->path,
                    (unsigned long long)t->stats.damaged);
        /* Who remembers what was here must ask again. */
        if (tier_renew(t) != TARN_OK)
            return status_fail(TARN_EIO, why_p, "writing %s: %s", t->path, strerror(errno));
    }
    if (t->info.recovered)
        log_notice("%s %s: found %llu objects in %llu ms", t->ops->name, t->path,
                   (unsigned long long)t->stats.entries,
                   (unsigned long long)(clock_mono_ms() - start));
    return TARN_OK;
}

static tarn_status tier_begin(struct tier *t, const struct tier_config *c, const char **why_p) {
    /* First: what closes the kind knows by it what there is to close. */
    tarn_status s = t->ops->open(t, c, why_p);
    if (s != TARN_OK) return s;
    t->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (t->event_fd < 0) return status_fail(TARN_EIO, why_p, "eventfd: %s", strerror(errno));
    s = tier_find_again(t, why_p);
    if (s == TARN_OK) s = t->ops->start(t, why_p);
    if (s != TARN_OK) return s;
    pthread_mutex_lock(&t->lock);
    tier_evict_check(t);
    log_notice("%s %s: %llu MiB, %llu in use", t->ops->name, t->path,
               (unsigned long long)(t->stats.size >> 20),
               (unsigned long long)(t->stats.used >> 20));
    pthread_mutex_unlock(&t->lock);
    return TARN_OK;
}

tarn_status tier_open(const char *kind, const struct tier_config *config, struct tier **tier_p,
                      const char **why_p) {
    bool file = strcmp(kind, files_ops.kind) == 0;
    const struct tier_ops *ops = file ? &files_ops : &ssd_ops;
    tarn_status s;
    if (strcmp(kind, ops->kind) != 0)
        s = status_fail(TARN_EINVAL, why_p, "a tier is ssd or file, not %s", kind);
    else if (config->path == NULL || config->path[0] == '\0')
        s = status_fail(TARN_EINVAL, why_p, "a tier needs a path");
    else if (sodium_init() < 0)
        s = status_fail(TARN_EIO, why_p, "no source of random numbers");
    else
        s = tier_check_site(config, file, why_p);
    if (s == TARN_OK) {
        struct tier *t = xcalloc(1, ops->size);
        uint64_t queue = config->queue_bytes != 0 ? config->queue_bytes : QUEUE_BYTES;
        *t = (struct tier){.magic = TIER_MAGIC, .ops = ops, .event_fd = -1};
        t->queue_bytes = max_u64(queue, QUEUE_MIN) & ~(uint64_t)4095;
        t->read_bytes = config->read_bytes != 0 ? config->read_bytes : READ_BYTES;
        t->info.copy_max = min_u64(t->queue_bytes / 4, COPY_MAX);
        pthread_mutex_init(&t->lock, NULL);
        pthread_mutex_init(&t->callbacks, NULL);
        s = tier_begin(t, config, why_p);
        if (s == TARN_OK)
            *tier_p = t;
        else
            tier_close(&t);
    }
    if (s != TARN_OK) log_warning("Tier %s: %s", config->path != NULL ? config->path : "", *why_p);
    return s;
}

void tier_close(struct tier **tier_p) {
    struct tier *t = *tier_p;
    if (t == NULL) return;
    MAGIC_CHECK(t, TIER_MAGIC);
    *tier_p = NULL;
    t->ops->close(t);
    TARN_ASSERT(t->stats.queued_bytes == 0 && t->n_reading == 0);
    if (t->event_fd >= 0) close(t->event_fd);
    pthread_mutex_destroy(&t->callbacks);
    pthread_mutex_destroy(&t->lock);
    free(t->path);
    t->magic = 0;
    free(t);
}

const struct tier_info *tier_get_info(const struct tier *t) {
    MAGIC_CHECK(t, TIER_MAGIC);
    return &t->info;
}

void tier_get_stats(struct tier *t, struct tier_stats *stats_p) {
    MAGIC_CHECK(t, TIER_MAGIC);
    pthread_mutex_lock(&t->lock);
    *stats_p = t->stats;
    pthread_mutex_unlock(&t->lock);
}

void tier_get_times(struct tier *t, struct tier_times *times_p) {
    MAGIC_CHECK(t, TIER_MAGIC);
    pthread_mutex_lock(&t->lock);
    *times_p = t->times;
    pthread_mutex_unlock(&t->lock);
}

void tier_content_new(struct tier *t) {
    randombytes_buf(t->info.content, sizeof(t->info.content));
}

tarn_status tier_renew(struct tier *t) {
    uint8_t before[TIER_CONTENT_SIZE];
    MAGIC_CHECK(t, TIER_MAGIC);
    memcpy(before, t->info.content, sizeof(before));
    tier_content_new(t);
    errno = t->ops->rename_content(t);
    if (errno == 0) return TARN_OK;
    memcpy(t->info.content, before, sizeof(before));
    return TARN_EIO;
}

/* --- entries --- */

void tier_record_write(struct tier_record *r, const struct tier_item *item, uint64_t offset) {
    size_t n_crcs = tier_pieces(item->size);
    uint32_t size = tier_record_size(item->key.len, n_crcs);
    memset(r, 0, size);
    *r = (struct tier_record){
        .size = size,
        .kind = TIER_ENTRY,
        .key_size = (uint16_t)item->key.len,
        .offset = offset,
        .version = item->version,
        .value = item->size,
        .crc = item->crc,
        .n_crcs = (uint32_t)n_crcs,
    };
    memcpy(tier_record_crcs(r) + n_crcs, item->key.data, item->key.len);
}

static void tier_show(const struct buf *records,
                      void (*fn)(void *arg, const struct tier_item *item), void *arg) {
    for (size_t at = 0; at < records->len;) {
        const struct tier_record *r = (const void *)(records->data + at);
        at += r->size;
        if (r->kind != TIER_ENTRY) continue;
        struct tier_item item = {.key = tier_record_key(r),
                                 .version = r->version,
                                 .size = r->value,
                                 .crc = r->crc,
                                 .crcs = r->n_crcs > 0 ? tier_record_crcs(r) : NULL,
                                 .n_crcs = r->n_crcs,
                                 .offset = r->offset};
        fn(arg, &item);
    }
}

void tier_each(struct tier *t, void (*fn)(void *arg, const struct tier_item *item), void *arg) {
    MAGIC_CHECK(t, TIER_MAGIC);
    /* A few at a time, in copies: puts go on between them. */
    struct buf records = {0};
    uint64_t from = 0;
    do {
        buf_clear(&records);
        pthread_mutex_lock(&t->lock);
        from = t->ops->each(t, from, &records);
        pthread_mutex_unlock(&t->lock);
        tier_show(&records, fn, arg);
    } while (from != 0);
    buf_free(&records);
}

/* The entry that begins there. */
static struct tier_record *tier_entry(struct tier *t, uint64_t offset) {
    struct tier_record *r = t->ops->find(t, offset);
    return r != NULL && r->offset == offset && r->kind == TIER_ENTRY ? r : NULL;
}

void tier_drop(struct tier *t, uint64_t offset, uint64_t version) {
    MAGIC_CHECK(t, TIER_MAGIC);
    pthread_mutex_lock(&t->lock);
    struct tier_record *r = tier_entry(t, offset);
    if (r != NULL && r->version == version) {
        t->stats.dropped++;
        t->ops->drop(t, r);
    }
    pthread_mutex_unlock(&t->lock);
}

tarn_status tier_rename(struct tier *t, uint64_t offset, uint64_t version) {
    MAGIC_CHECK(t, TIER_MAGIC);
    pthread_mutex_lock(&t->lock);
    struct tier_record *r = tier_entry(t, offset);
    if (r != NULL && r->version != version) t->ops->rename(t, r, version);
    pthread_mutex_unlock(&t->lock);
    return r != NULL ? TARN_OK : TARN_ENOTFOUND;
}

/* --- puts --- */

/* The value to p->to, or nowhere. */
static tarn_status tier_put_copy(const struct tier_put *p, struct tier_item *item, bool check_crc,
                                 uint32_t *crcs) {
    struct tier_copy copy;
    tier_copy_start(&copy, p->iov, p->n_iov, crcs);
    tier_copy_next(&copy, p->to, item->size);
    uint32_t crc = tier_copy_crc(&copy);
    if (check_crc && crc != item->crc) return TARN_ECORRUPT;
    item->crc = crc;
    return TARN_OK;
}

tarn_status tier_put(struct tier *t, struct tier_item *item, bool check_crc,
                     const struct iovec *iov, size_t n_iov,
                     void (*done)(void *arg, tarn_status status, uint64_t offset), void *arg) {
    MAGIC_CHECK(t, TIER_MAGIC);
    TARN_ASSERT(iov_total(iov, n_iov) == item->size);
    if (item->key.len == 0 || item->key.len > TIER_KEY_MAX) return TARN_EINVAL;
    if (item->size > t->info.value_max) return TARN_ENOSPACE;
    struct tier_put p = {
        .item = item,
        .iov = iov,
        .n_iov = n_iov,
        .n_crcs = tier_pieces(item->size),
        .stream = item->size > t->info.copy_max,
        /* A stream takes no memory of the queue, but its turn. */
        .end = {done, arg, min_u64(item->size, t->info.copy_max) + PUT_OVERHEAD, clock_mono_ns()}};
    if (p.stream && !check_crc) tier_put_copy(&p, item, false, NULL);
    tarn_status s = TARN_EAGAIN;
    pthread_mutex_lock(&t->lock);
    uint64_t queued = t->stats.queued_bytes;
    if (t->stats.read_only)
        s = TARN_EIO;
    else if (queued == 0 || queued + p.end.queued <= t->queue_bytes)
        s = t->ops->place(t, &p);
    if (s == TARN_OK)
        t->stats.queued_bytes += p.end.queued;
    else if (s == TARN_EAGAIN)
        t->stats.queue_full++;
    pthread_mutex_unlock(&t->lock);
    if (s != TARN_OK || p.stream) return s;

    uint32_t *crcs = p.n_crcs > 0 ? xmalloc(p.n_crcs * sizeof(*crcs)) : NULL;
    s = tier_put_copy(&p, item, check_crc, crcs);
    pthread_mutex_lock(&t->lock);
    if (s != TARN_OK) t->stats.queued_bytes -= p.end.queued;
    t->ops->placed(t, &p, s, crcs);
    pthread_mutex_unlock(&t->lock);
    free(crcs);
    return s;
}

void tier_put_count(struct tier *t, const struct tier_put_end *end, tarn_status status) {
    t->stats.queued_bytes -= end->queued;
    (*(status == TARN_OK ? &t->stats.puts : &t->stats.put_failures))++;
    if (status == TARN_OK) hist_add(&t->times.write, clock_mono_ns() - end->began_ns);
}

void tier_put_ended(struct tier *t, const struct tier_put_end *end, tarn_status status,
                    uint64_t offset) {
    pthread_mutex_lock(&t->callbacks);
    end->done(end->arg, status, status == TARN_OK ? offset : 0);
    pthread_mutex_unlock(&t->callbacks);
}

/* --- reads --- */

/* The lock is held. The entry that has all of these bytes; NULL: none. */
static struct tier_record *find_range(struct tier *t, uint64_t offset, uint64_t length) {
    struct tier_record *r = t->ops->find(t, offset);
    return r != NULL && length <= r->value - (offset - r->offset) ? r : NULL;
}

uint64_t tier_mark(struct tier *t, uint64_t offset, uint64_t length) {
    MAGIC_CHECK(t, TIER_MAGIC);
    if (t->ops->mark == NULL) return 0;
    pthread_mutex_lock(&t->lock);
    const struct tier_record *r = find_range(t, offset, length);
    uint64_t mark = r != NULL ? t->ops->mark(t, r) : 0;
    pthread_mutex_unlock(&t->lock);
    return mark;
}

tarn_status tier_read(struct tier *t, uint64_t offset, uint64_t length, void *buffer,
                      void (*done)(void *arg, tarn_status status), void *arg) {
    struct tier_read_end end = {done, arg, length, clock_mono_ns()};
    MAGIC_CHECK(t, TIER_MAGIC);
    pthread_mutex_lock(&t->lock);
    struct tier_record *r = find_range(t, offset, length);
    tarn_status s = TARN_ENOTFOUND;
    if (r != NULL)
        s = t->n_reading > 0 && t->reading + length > t->read_bytes
                ? TARN_EAGAIN
                : t->ops->read(t, r, offset, buffer, &end);
    if (s == TARN_OK) {
        t->reading += length;
        if (t->n_reading++ == 0) t->busy_ns = end.began_ns;
    }
    pthread_mutex_unlock(&t->lock);
    return s;
}

void tier_read_ended(struct tier *t, const struct tier_read_end *end, tarn_status status) {
    pthread_mutex_lock(&t->lock);
    t->reading -= end->length;
    t->n_reading--;
    t->stats.reads++;
    uint64_t now_ns = clock_mono_ns(), busy_us = (now_ns - t->busy_ns) / 1000;
    t->stats.read_us += busy_us;
    t->busy_ns += busy_us * 1000;
    if (status == TARN_OK) {
        t->stats.read_bytes += end->length;
        hist_add(&t->times.read, now_ns - end->began_ns);
    } else {
        t->stats.read_failures++;
    }
    pthread_mutex_unlock(&t->lock);
    pthread_mutex_lock(&t->callbacks);
    end->done(end->arg, status);
    pthread_mutex_unlock(&t->callbacks);
}

/* --- trouble --- */

void tier_trouble(struct tier *t, const char *what, int error) {
    uint64_t now = clock_mono_ms();
    if (t->log_failure_ms != 0 && now - t->log_failure_ms < (t->stats.read_only ? 60000 : 1000))
        return;
    t->log_failure_ms = now;
    log_warning("%s %s: %s: %s", t->ops->name, t->path, what, strerror(error));
}

void tier_write_failed(struct tier *t, const char *what, int error) {
    tier_trouble(t, what, error);
    if (tier_error_status(error) == TARN_ENOSPACE) return; /* there may be room again */
    if (++t->failures < FAILURES_MAX || t->stats.read_only) return;
    t->stats.read_only = true;
    log_warning("%s %s: %u failures in a row; it is read from, but takes nothing more until it is "
                "opened again",
                t->ops->name, t->path, t->failures);
}

/* --- making room --- */

void tier_evict_check(struct tier *t) {
    if (t->event_set || !t->ops->too_full(t)) return;
    t->event_set = true;
    eventfd_write(t->event_fd, 1);
}

uint64_t tier_poll_evict(struct tier *t, void (*fn)(void *arg, const struct tier_item *item),
                         void *arg) {
    MAGIC_CHECK(t, TIER_MAGIC);
    struct buf records = {0}; /* copies: they may be dropped while the owner looks at them */
    eventfd_t ignored;
    pthread_mutex_lock(&t->lock);
    uint64_t ticket = t->ops->choose(t, &records);
    if (ticket == 0 && t->event_set) {
        eventfd_read(t->event_fd, &ignored);
        t->event_set = false;
    }
    pthread_mutex_unlock(&t->lock);
    tier_show(&records, fn, arg);
    buf_free(&records);
    return ticket;
}

void tier_evicted(struct tier *t, uint64_t ticket) {
    MAGIC_CHECK(t, TIER_MAGIC);
    pthread_mutex_lock(&t->lock);
    t->ops->evicted(t, ticket);
    pthread_mutex_unlock(&t->lock);
}

uint64_t tier_weigh(struct tier *t, void (*fn)(void *arg, const struct tier_item *item),
                    void *arg) {
    MAGIC_CHECK(t, TIER_MAGIC);
    struct buf records = {0};
    if (!t->ops->weigh) return 0;
    pthread_mutex_lock(&t->lock);
    uint64_t ticket = t->ops->weigh(t, &records);
    pthread_mutex_unlock(&t->lock);
    tier_show(&records, fn, arg);
    buf_free(&records);
    return ticket;
}

void tier_weighed(struct tier *t, uint64_t ticket, double loss) {
    MAGIC_CHECK(t, TIER_MAGIC);
    pthread_mutex_lock(&t->lock);
    t->ops->weighed(t, ticket, loss);
    pthread_mutex_unlock(&t->lock);
}

int tier_event_fd(const struct tier *t) {
    MAGIC_CHECK(t, TIER_MAGIC);
    return t->event_fd;
}

/* --- values --- */

void tier_copy_start(struct tier_copy *c, const struct iovec *iov, size_t n_iov, uint32_t *crcs) {
    *c = (struct tier_copy){.at = iov_cursor(iov, n_iov), .crcs = crcs};
}

/* The bytes are the pool's, and may be another value's by now: who takes the copy finds out. */
void tier_copy_next(struct tier_copy *c, void *to, uint64_t length) {
    char *out = to;
    TSAN_POOL_BEGIN();
    while (length > 0) {
        struct iovec v = iov_here(&c->at);
        TARN_ASSERT(v.iov_len > 0);
        uint64_t n = min_u64(min_u64(length, v.iov_len), TIER_PIECE - c->done % TIER_PIECE);
        c->piece_crc = out != NULL ? crc32c_copy(c->piece_crc, out, v.iov_base, n)
                                   : crc32c(c->piece_crc, v.iov_base, n);
        if (out != NULL) out += n;
        length -= n;
        c->done += n;
        iov_advance(&c->at, n);
        if (c->done % TIER_PIECE == 0) {
            c->crc = crc32c_combine(c->crc, c->piece_crc, TIER_PIECE);
            if (c->crcs != NULL) c->crcs[c->done / TIER_PIECE - 1] = c->piece_crc;
            c->piece_crc = 0;
        }
    }
    TSAN_POOL_END();
}

uint32_t tier_copy_crc(const struct tier_copy *c) {
    uint64_t rest = c->done % TIER_PIECE;
    if (rest == 0) return c->crc;
    if (c->crcs != NULL) c->crcs[c->done / TIER_PIECE] = c->piece_crc;
    return crc32c_combine(c->crc, c->piece_crc, rest);
}

/* --- names of files --- */

void tier_file_path(struct span key, uint64_t version, char *out, size_t size) {
    uint8_t hash[32];
    char hex[2 * sizeof(hash) + 1];
    crypto_generichash(hash, sizeof(hash), (const uint8_t *)key.data, key.len, NULL, 0);
    sodium_bin2hex(hex, sizeof(hex), hash, sizeof(hash));
    int n =
        snprintf(out, size, "%.2s/%.2s/%s.%016llx", hex, hex + 2, hex, (unsigned long long)version);
    TARN_ASSERT(n > 0 && (size_t)n < size);
}
