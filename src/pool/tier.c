/* One face for slow tiers of any kind, and what they have in common. */
#include "pool/tier.h"

#include <errno.h>
#include <limits.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "pool/site.h"
#include "pool/tier_internal.h"

/* --- opening and closing --- */

static __thread char why_text[512];

tarn_status tier_fail(tarn_status status, const char **why_p, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why_text, sizeof(why_text), fmt, ap);
    va_end(ap);
    *why_p = why_text;
    return status;
}

/* Where it would not fill a disk that was not meant. */
static tarn_status check_site(const struct tier_config *c, bool file, const char **why_p) {
    char missing[PATH_MAX];
    struct stat st;
    if (site_unmounted(c->path, missing, sizeof(missing)))
        return tier_fail(TARN_EINVAL, why_p,
                         "it would lie below %s, which /etc/fstab names and where nothing is "
                         "mounted: mount it first",
                         missing);
    if (c->create || stat(c->path, &st) == 0 || errno != ENOENT) return TARN_OK;
    return tier_fail(
        TARN_EINVAL, why_p,
        "there is no %s of that name; make it first, or let it be made: --%s PATH:SIZE,create "
        "(%s_create in tarn_host_options)",
        file ? "directory" : "directory, device or file", file ? "file" : "ssd",
        file ? "file" : "ssd");
}

tarn_status tier_open(const char *kind, const struct tier_config *config, struct tier **tier_p,
                      const char **why_p) {
    struct tier_config c = *config;
    if (c.queue_bytes == 0) c.queue_bytes = TIER_QUEUE_BYTES;
    if (c.read_bytes == 0) c.read_bytes = TIER_READ_BYTES;
    if (c.high_watermark == 0) c.high_watermark = 0.95;
    if (c.low_watermark == 0) c.low_watermark = c.high_watermark < 0.90 ? c.high_watermark : 0.90;
    tarn_status s;
    bool file = strcmp(kind, "file") == 0;
    if (!file && strcmp(kind, "ssd") != 0) {
        s = tier_fail(TARN_EINVAL, why_p, "a tier is ssd or file, not %s", kind);
    } else if (c.path == NULL || c.path[0] == '\0') {
        s = tier_fail(TARN_EINVAL, why_p, "a tier needs a path");
    } else if (!(c.high_watermark > 0 && c.high_watermark <= 1 && c.low_watermark > 0 &&
                 c.low_watermark <= c.high_watermark)) {
        s = tier_fail(TARN_EINVAL, why_p,
                      "watermarks are shares of 1, the low one not above the high one");
    } else if (sodium_init() < 0) {
        s = tier_fail(TARN_EIO, why_p, "no source of random numbers");
    } else {
        s = check_site(&c, file, why_p);
        if (s == TARN_OK) s = (file ? files_open : ssd_open)(&c, tier_p, why_p);
    }
    if (s != TARN_OK) log_warning("Tier %s: %s", c.path != NULL ? c.path : "", *why_p);
    return s;
}

void tier_close(struct tier **tier_p) {
    struct tier *t = *tier_p;
    if (t == NULL) return;
    MAGIC_CHECK(t, TIER_MAGIC);
    *tier_p = NULL;
    t->ops->close(t);
}

const struct tier_info *tier_get_info(const struct tier *t) {
    MAGIC_CHECK(t, TIER_MAGIC);
    return &t->info;
}

void tier_content_new(uint8_t content[TIER_CONTENT_SIZE]) {
    randombytes_buf(content, TIER_CONTENT_SIZE);
}

tarn_status tier_renew(struct tier *t) {
    uint8_t content[TIER_CONTENT_SIZE];
    MAGIC_CHECK(t, TIER_MAGIC);
    tier_content_new(content);
    tarn_status status = t->ops->renew(t, content);
    if (status == TARN_OK) memcpy(t->info.content, content, sizeof(content));
    return status;
}

/* --- dispatch --- */

void tier_each(struct tier *t, void (*fn)(void *arg, const struct tier_item *item), void *arg) {
    MAGIC_CHECK(t, TIER_MAGIC);
    t->ops->each(t, fn, arg);
}

tarn_status tier_rename(struct tier *t, uint64_t offset, uint64_t version) {
    MAGIC_CHECK(t, TIER_MAGIC);
    return t->ops->rename(t, offset, version);
}

tarn_status tier_put(struct tier *t, struct tier_item *item, bool check_crc,
                     const struct iovec *iov, size_t n_iov,
                     void (*done)(void *arg, tarn_status status, uint64_t offset), void *arg) {
    MAGIC_CHECK(t, TIER_MAGIC);
    TARN_ASSERT(iov_total(iov, n_iov) == item->size);
    if (item->key.len == 0 || item->key.len > TIER_KEY_MAX) return TARN_EINVAL;
    if (item->size > t->info.value_max) return TARN_ENOSPACE;
    return t->ops->put(t, item, check_crc, iov, n_iov, done, arg);
}

void tier_drop(struct tier *t, uint64_t offset, uint64_t version) {
    MAGIC_CHECK(t, TIER_MAGIC);
    t->ops->drop(t, offset, version);
}

tarn_status tier_read(struct tier *t, uint64_t offset, uint64_t length, void *buffer,
                      void (*done)(void *arg, tarn_status status), void *arg) {
    MAGIC_CHECK(t, TIER_MAGIC);
    return t->ops->read(t, offset, length, buffer, done, arg);
}

uint64_t tier_poll_evict(struct tier *t, void (*fn)(void *arg, const struct tier_item *item),
                         void *arg) {
    MAGIC_CHECK(t, TIER_MAGIC);
    return t->ops->poll_evict(t, fn, arg);
}

void tier_evicted(struct tier *t, uint64_t ticket) {
    MAGIC_CHECK(t, TIER_MAGIC);
    t->ops->evicted(t, ticket);
}

void tier_get_stats(struct tier *t, struct tier_stats *stats_p) {
    MAGIC_CHECK(t, TIER_MAGIC);
    t->ops->get_stats(t, stats_p);
}

/* --- the event --- */

int tier_event_fd(const struct tier *t) {
    MAGIC_CHECK(t, TIER_MAGIC);
    return t->event_fd;
}

void tier_event_set(const struct tier *t) {
    uint64_t one = 1;
    /* It can only fail when it is readable anyway. */
    if (write(t->event_fd, &one, sizeof(one)) < 0) return;
}

void tier_event_clear(const struct tier *t) {
    uint64_t count;
    if (read(t->event_fd, &count, sizeof(count)) < 0) return;
}

/* --- values --- */

void tier_copy_start(struct tier_copy *c, const struct iovec *iov, size_t n_iov, uint32_t *crcs) {
    *c = (struct tier_copy){.at = iov_cursor(iov, n_iov), .crcs = crcs};
}

void tier_copy_next(struct tier_copy *c, void *to, uint64_t length) {
    char *out = to;
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
