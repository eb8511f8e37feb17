/* The file tier: its books, and opening and closing it. See files_internal.h. */
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "base/log.h"
#include "pool/site.h"
#include "pool/files_internal.h"

#define COPY_MAX         (64ull << 20)
#define SIZE_MIN         (1ull << 20)
#define LOCK_PATIENCE_MS 2000u

/* --- entries --- */

uint64_t files_disk_bytes(uint64_t size, size_t n_crcs, size_t key_size) {
    uint64_t bytes = size + n_crcs * sizeof(uint32_t) + key_size + sizeof(struct files_trailer);
    return (bytes + FILES_BLOCK - 1) / FILES_BLOCK * FILES_BLOCK;
}

static uint64_t entry_bytes(const struct files_entry *e) {
    return files_disk_bytes(e->size, e->n_crcs, e->key_size);
}

struct files_entry *files_entry_create(const struct tier_item *item, size_t n_crcs) {
    size_t crcs = n_crcs * sizeof(uint32_t);
    struct files_entry *e = xcalloc(1, sizeof(*e) + crcs + item->key.len);
    e->offset = item->offset;
    e->version = item->version;
    e->size = item->size;
    e->crc = item->crc;
    e->n_crcs = (uint32_t)n_crcs;
    e->key_size = (uint32_t)item->key.len;
    memcpy((char *)e->data + crcs, item->key.data, item->key.len);
    return e;
}

void files_entry_item(const struct files_entry *e, struct tier_item *item_p) {
    *item_p = (struct tier_item){.key = span_of(e->data + e->n_crcs, e->key_size),
                                 .version = e->version,
                                 .size = e->size,
                                 .crc = e->crc,
                                 .crcs = e->n_crcs > 0 ? e->data : NULL,
                                 .n_crcs = e->n_crcs,
                                 .offset = e->offset};
}

/* --- by name --- */

struct name {
    struct span key;
    uint64_t version;
};

static uint64_t name_hash(struct name name) {
    return hash_bytes(name.key.data, name.key.len) ^ hash_u64(name.version);
}

static struct name entry_name(const struct files_entry *e) {
    return (struct name){span_of(e->data + e->n_crcs, e->key_size), e->version};
}

static bool name_eq(const struct htab_node *node, const void *key) {
    const struct name *name = key;
    struct name other = entry_name(CONTAINER_OF(node, struct files_entry, by_name));
    return other.version == name->version && span_eq(other.key, name->key);
}

/* The entry that had this name so far is no more: its file is about to be replaced, or has been. */
static void supersede(struct files *f, struct name name) {
    struct htab_node *node = htab_find(&f->by_name, name_hash(name), name_eq, &name);
    if (node == NULL) return;
    struct files_entry *old = CONTAINER_OF(node, struct files_entry, by_name);
    f->used -= entry_bytes(old);
    files_entry_remove(f, old);
}

void files_entry_path(const struct files_entry *e, char *path) {
    struct tier_item item;
    files_entry_item(e, &item);
    tier_file_path(item.key, item.version, path, FILES_NAME_MAX);
}

void files_squeeze(struct files *f) {
    size_t n = 0;
    for (size_t i = 0; i < f->n_entries; i++) {
        if (f->entries[i]->gone)
            free(f->entries[i]);
        else
            f->entries[n++] = f->entries[i];
    }
    f->n_entries = n;
    f->gone = 0;
}

void files_entry_add(struct files *f, struct files_entry *e) {
    if (f->gone > 64 && f->gone > f->n_entries / 2) files_squeeze(f);
    ARRAY_GROW(f->entries, f->n_entries, f->cap_entries);
    size_t at = f->n_entries++;
    if (f->names.n_threads > 0) { /* else a scan, which sorts them at its end */
        /* Files are nearly done in the order they were accepted in. */
        for (; at > 0 && f->entries[at - 1]->offset > e->offset; at--)
            f->entries[at] = f->entries[at - 1];
    }
    f->entries[at] = e;
    f->stats.entries++;
    supersede(f, entry_name(e));
    htab_insert(&f->by_name, &e->by_name, name_hash(entry_name(e)));
}

void files_entry_remove(struct files *f, struct files_entry *e) {
    TARN_ASSERT(!e->gone);
    e->gone = true;
    f->gone++;
    f->stats.entries--;
    if (e->going) f->going -= entry_bytes(e);
    htab_remove(&f->by_name, &e->by_name);
}

struct files_entry *files_entry_at(const struct files *f, uint64_t offset) {
    size_t low = 0, high = f->n_entries; /* the last that begins at or before offset */
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (f->entries[middle]->offset <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    struct files_entry *e = low > 0 ? f->entries[low - 1] : NULL;
    if (e == NULL || e->gone) return NULL;
    return offset == e->offset || offset - e->offset < e->size ? e : NULL;
}

/* --- puts --- */

static struct files_job *put_job(struct files *f, const struct tier_item *item, size_t n_crcs,
                                 uint64_t queued, uint64_t bytes) {
    struct files_job *job = xcalloc(1, sizeof(*job));
    struct tier_item at = *item;
    job->what = FILES_PUT;
    job->queued = queued;
    job->bytes = bytes;
    at.offset = f->next_offset;
    f->next_offset += max_u64((item->size + FILES_BLOCK - 1) / FILES_BLOCK, 1) * FILES_BLOCK;
    job->entry = files_entry_create(&at, n_crcs);
    snprintf(job->old_path, sizeof(job->old_path), "tmp/%llu", (unsigned long long)f->next_tmp++);
    f->queued += queued;
    f->used += bytes;
    return job;
}

/* Nothing was written: it gives back what put_job took. */
static void cancel_put(struct files *f, struct files_job *job) {
    pthread_mutex_lock(&f->lock);
    f->queued -= job->queued;
    f->used -= job->bytes;
    pthread_mutex_unlock(&f->lock);
    free(job->copy);
    free(job->entry);
    free(job);
}

static tarn_status files_put(struct tier *t, struct tier_item *item, bool check_crc,
                             const struct iovec *iov, size_t n_iov,
                             void (*done)(void *arg, tarn_status status, uint64_t offset),
                             void *arg) {
    struct files *f = (struct files *)t;
    size_t n_crcs = tier_pieces(item->size);
    bool stream = item->size > t->info.copy_max;
    uint64_t queued = (stream ? t->info.copy_max : item->size) + FILES_PUT_OVERHEAD;
    uint64_t bytes = files_disk_bytes(item->size, n_crcs, item->key.len);
    tarn_status status = TARN_OK;
    struct files_job *job = NULL;
    pthread_mutex_lock(&f->lock);
    if (f->read_only) {
        status = TARN_EIO;
    } else if ((f->queued > 0 && f->queued + queued > f->queue_bytes) ||
               f->used + bytes > f->capacity) {
        /* it may not fit though there is less than the high watermark */
        if (f->used + bytes > f->capacity) f->wanted = max_u64(f->wanted, bytes);
        files_evict_check(f);
        status = TARN_EAGAIN;
        files_evict_check(f);
    } else {
        job = put_job(f, item, n_crcs, queued, bytes);
    }
    if (status != TARN_OK) f->stats.queue_full++;
    pthread_mutex_unlock(&f->lock);
    if (status != TARN_OK) return status;

    struct tier_copy copy;
    job->put_done = done;
    job->arg = arg;
    files_entry_path(job->entry, job->path);
    tier_copy_start(&copy, iov, n_iov, stream || n_crcs == 0 ? NULL : job->entry->data);
    if (!stream) job->copy = xmalloc(max_u64(item->size, 1));
    if (stream) job->iov = xmemdup(iov, n_iov * sizeof(*iov));
    job->n_iov = n_iov;
    if (!stream || !check_crc) {
        tier_copy_next(&copy, job->copy, item->size);
        uint32_t crc = tier_copy_crc(&copy);
        if (check_crc && crc != item->crc) {
            cancel_put(f, job);
            return TARN_ECORRUPT;
        }
        job->entry->crc = item->crc = crc;
    }
    pthread_mutex_lock(&f->lock);
    files_submit(f, job);
    files_evict_check(f);
    pthread_mutex_unlock(&f->lock);
    return TARN_OK;
}

/* --- removing, renaming --- */

static void submit_remove(struct files *f, const struct files_entry *e) {
    struct files_job *job = xcalloc(1, sizeof(*job));
    job->what = FILES_REMOVE;
    job->bytes = entry_bytes(e);
    files_entry_path(e, job->path);
    files_submit(f, job);
}

static void files_drop(struct tier *t, uint64_t offset, uint64_t version) {
    struct files *f = (struct files *)t;
    pthread_mutex_lock(&f->lock);
    struct files_entry *e = files_entry_at(f, offset);
    if (e != NULL && e->offset == offset && e->version == version) {
        submit_remove(f, e);
        files_entry_remove(f, e);
        f->stats.dropped++;
    }
    pthread_mutex_unlock(&f->lock);
}

static tarn_status files_rename(struct tier *t, uint64_t offset, uint64_t version) {
    struct files *f = (struct files *)t;
    pthread_mutex_lock(&f->lock);
    struct files_entry *e = files_entry_at(f, offset);
    bool found = e != NULL && e->offset == offset;
    if (found && e->version != version) {
        struct files_job *job = xcalloc(1, sizeof(*job));
        job->what = FILES_RENAME;
        files_entry_path(e, job->old_path);
        supersede(f, (struct name){entry_name(e).key, version});
        htab_remove(&f->by_name, &e->by_name);
        e->version = version;
        htab_insert(&f->by_name, &e->by_name, name_hash(entry_name(e)));
        files_entry_path(e, job->path);
        f->renames++;
        files_submit(f, job);
    }
    pthread_mutex_unlock(&f->lock);
    return found ? TARN_OK : TARN_ENOTFOUND;
}

/* --- reads --- */

static tarn_status files_read(struct tier *t, uint64_t offset, uint64_t length, void *buffer,
                              void (*done)(void *arg, tarn_status status), void *arg) {
    struct files *f = (struct files *)t;
    tarn_status status = TARN_OK;
    pthread_mutex_lock(&f->lock);
    struct files_entry *e = files_entry_at(f, offset);
    if (e == NULL || length > e->size - (offset - e->offset)) {
        status = TARN_ENOTFOUND;
    } else if (f->n_reading > 0 && f->reading + length > f->read_bytes) {
        status = TARN_EAGAIN;
    } else {
        struct files_job *job = xcalloc(1, sizeof(*job));
        job->what = FILES_READ;
        job->offset = e->offset;
        job->at = offset - e->offset;
        job->length = length;
        job->buffer = buffer;
        job->read_done = done;
        job->arg = arg;
        files_entry_path(e, job->path);
        f->reading += length;
        f->n_reading++;
        files_submit(f, job);
    }
    pthread_mutex_unlock(&f->lock);
    return status;
}

/* --- eviction --- */

/* Is there too much? Between the watermarks it depends on where we come from. */
static bool too_full(struct files *f) {
    uint64_t staying = f->used - f->going;
    bool fits = staying + f->wanted <= f->capacity;
    if (staying > (uint64_t)((double)f->capacity * f->high) || !fits) f->evicting = true;
    if (staying <= (uint64_t)((double)f->capacity * f->low) && fits) {
        f->evicting = false;
        f->wanted = 0;
        f->capacity = f->size; /* it may fit again */
    }
    return f->evicting;
}

void files_evict_check(struct files *f) {
    if (f->event_set || !too_full(f)) return;
    f->event_set = true;
    tier_event_set(&f->tier);
}

static uint64_t files_poll_evict(struct tier *t,
                                 void (*fn)(void *arg, const struct tier_item *item), void *arg) {
    struct files *f = (struct files *)t;
    struct files_ticket *ticket = xcalloc(1, sizeof(*ticket));
    struct files_entry *victims[FILES_TICKET_MAX];
    pthread_mutex_lock(&f->lock);
    for (size_t i = 0; i < f->n_entries && ticket->n < FILES_TICKET_MAX && too_full(f); i++) {
        struct files_entry *e = f->entries[i];
        if (e->gone || e->going) continue;
        e->going = true;
        f->going += entry_bytes(e);
        /* A copy: it may be dropped while the owner looks at it. */
        victims[ticket->n] = xmemdup(e, sizeof(*e) + e->n_crcs * sizeof(uint32_t) + e->key_size);
        ticket->offsets[ticket->n++] = e->offset;
    }
    if (ticket->n == 0) {
        if (f->event_set) tier_event_clear(t);
        f->event_set = false;
        pthread_mutex_unlock(&f->lock);
        free(ticket);
        return 0;
    }
    uint64_t number = ticket->number = f->next_ticket++;
    size_t n = ticket->n;
    f->stats.evicted += n;
    STAILQ_INSERT_TAIL(&f->tickets, ticket, next);
    pthread_mutex_unlock(&f->lock);
    for (size_t i = 0; i < n; i++) {
        struct tier_item item;
        files_entry_item(victims[i], &item);
        fn(arg, &item);
        free(victims[i]);
    }
    return number;
}

static void files_evicted(struct tier *t, uint64_t number) {
    struct files *f = (struct files *)t;
    struct files_ticket *ticket;
    pthread_mutex_lock(&f->lock);
    STAILQ_FOREACH(ticket, &f->tickets, next) {
        if (ticket->number == number) break;
    }
    TARN_ASSERT(ticket != NULL);
    STAILQ_REMOVE(&f->tickets, ticket, files_ticket, next);
    for (size_t i = 0; i < ticket->n; i++) {
        struct files_entry *e = files_entry_at(f, ticket->offsets[i]);
        if (e == NULL) continue; /* it was dropped meanwhile */
        submit_remove(f, e);
        files_entry_remove(f, e);
    }
    pthread_mutex_unlock(&f->lock);
    free(ticket);
}

/* --- what is known --- */

static void files_each(struct tier *t, void (*fn)(void *arg, const struct tier_item *item),
                       void *arg) {
    struct files *f = (struct files *)t;
    uint64_t next = 0;
    for (;;) {
        /* A few at a time, in copies: puts go on between them. */
        struct files_entry *some[256];
        size_t n = 0;
        pthread_mutex_lock(&f->lock);
        for (size_t i = 0; i < f->n_entries && n < ARRAY_LEN(some); i++) {
            const struct files_entry *e = f->entries[i];
            if (e->offset < next || e->gone || e->going) continue;
            some[n++] = xmemdup(e, sizeof(*e) + e->n_crcs * sizeof(uint32_t) + e->key_size);
        }
        pthread_mutex_unlock(&f->lock);
        if (n == 0) return;
        next = some[n - 1]->offset + 1;
        for (size_t i = 0; i < n; i++) {
            struct tier_item item;
            files_entry_item(some[i], &item);
            fn(arg, &item);
            free(some[i]);
        }
    }
}

static void files_get_stats(struct tier *t, struct tier_stats *stats_p) {
    struct files *f = (struct files *)t;
    pthread_mutex_lock(&f->lock);
    struct tier_stats stats = f->stats;
    stats.size = f->size;
    stats.used = f->used;
    stats.queued_bytes = f->queued;
    stats.read_only = f->read_only;
    stats.memory = f->cap_entries * sizeof(*f->entries);
    for (size_t i = 0; i < f->n_entries; i++) {
        stats.memory += sizeof(struct files_entry) + f->entries[i]->n_crcs * sizeof(uint32_t) +
                        f->entries[i]->key_size;
    }
    pthread_mutex_unlock(&f->lock);
    *stats_p = stats;
}

/* --- opening and closing --- */

static void release(struct files *f) {
    struct files_ticket *ticket;
    crew_stop(&f->workers); /* what they still write needs its name */
    crew_stop(&f->names);
    while ((ticket = STAILQ_FIRST(&f->tickets)) != NULL) {
        STAILQ_REMOVE_HEAD(&f->tickets, next);
        free(ticket);
    }
    for (size_t i = 0; i < f->n_entries; i++) free(f->entries[i]);
    free(f->entries);
    htab_free(&f->by_name);
    if (f->mark_fd >= 0) close(f->mark_fd);
    if (f->root_fd >= 0) close(f->root_fd);
    if (f->tier.event_fd >= 0) close(f->tier.event_fd);
    pthread_mutex_destroy(&f->callbacks);
    pthread_mutex_destroy(&f->lock);
    free(f->root);
    f->tier.magic = 0;
    free(f);
}

static void files_close(struct tier *t) {
    struct files *f = (struct files *)t;
    release(f); /* the threads end when there is nothing left to do */
}

static tarn_status open_root(struct files *f, const struct tier_config *config,
                             const char **why_p) {
    char hex[2 * 16 + 1];
    struct buf root = {0};
    sodium_bin2hex(hex, sizeof(hex), config->cluster, 16);
    buf_printf(&root, "%s/%s", config->path, hex);
    buf_append_char(&root, '\0');
    f->root = root.data;
    f->tier.info.directory = f->root;
    if (config->create && mkdir(config->path, f->folder_mode) != 0 && errno != EEXIST) {
        return tier_fail(TARN_EIO, why_p, "%s: %s", config->path, strerror(errno));
    }
    if (mkdir(f->root, f->folder_mode) != 0 && errno != EEXIST) {
        return tier_fail(TARN_EIO, why_p, "%s: %s", f->root, strerror(errno));
    }
    f->root_fd = open(f->root, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (f->root_fd < 0) return tier_fail(TARN_EIO, why_p, "%s: %s", f->root, strerror(errno));
    if (mkdirat(f->root_fd, "tmp", f->folder_mode) != 0 && errno != EEXIST) {
        return tier_fail(TARN_EIO, why_p, "%s/tmp: %s", f->root, strerror(errno));
    }
    return TARN_OK;
}

static tarn_status write_mark(struct files *f, const char **why_p) {
    struct files_mark mark = {.version = FILES_TIER_VERSION};
    memcpy(mark.magic, FILES_TIER_MAGIC, sizeof(mark.magic));
    memcpy(mark.content, f->tier.info.content, sizeof(mark.content));
    mark.crc = crc32c(0, &mark, offsetof(struct files_mark, crc));
    if (pwrite(f->mark_fd, &mark, sizeof(mark), 0) == sizeof(mark)) return TARN_OK;
    return tier_fail(TARN_EIO, why_p, "writing %s/tarn.tier: %s", f->root, strerror(errno));
}

/* Locks the directory and reads its content id. */
static tarn_status open_mark(struct files *f, const char **why_p) {
    struct files_mark mark;
    f->mark_fd =
        openat(f->root_fd, "tarn.tier", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, f->file_mode);
    if (f->mark_fd < 0)
        return tier_fail(TARN_EIO, why_p, "%s/tarn.tier: %s", f->root, strerror(errno));
    uint64_t until = clock_mono_ms() + LOCK_PATIENCE_MS;
    while (flock(f->mark_fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK || clock_mono_ms() >= until) {
            return tier_fail(TARN_EBUSY, why_p, "%s is in use by another process%s", f->root,
                             file_holder_text(f->mark_fd));
        }
        usleep(20000);
    }
    ssize_t n = pread(f->mark_fd, &mark, sizeof(mark), 0);
    bool whole = n == sizeof(mark) &&
                 memcmp(mark.magic, FILES_TIER_MAGIC, sizeof(mark.magic)) == 0 &&
                 mark.crc == crc32c(0, &mark, offsetof(struct files_mark, crc));
    if (whole && (mark.version != FILES_TIER_VERSION || (mark.features & 0xffff) != 0)) {
        return tier_fail(TARN_EINVAL, why_p, "%s was written by another version of tarn", f->root);
    }
    f->tier.info.recovered = whole;
    if (whole) {
        memcpy(f->tier.info.content, mark.content, sizeof(mark.content));
        return TARN_OK;
    }
    tier_content_new(f->tier.info.content);
    return write_mark(f, why_p);
}

static tarn_status find_files(struct files *f, const char **why_p) {
    tarn_status status = files_scan(f, why_p);
    if (status != TARN_OK || f->stats.damaged == 0) return status;
    tier_content_new(f->tier.info.content); /* who remembers what was here must ask again */
    return write_mark(f, why_p);
}

static tarn_status start(struct files *f, const char **why_p) {
    int error = crew_start(&f->names, "tarn-files", 1, NULL, NULL);
    if (error == 0) error = crew_start(&f->workers, "tarn-files", FILES_WORKERS, NULL, NULL);
    if (error != 0) return tier_fail(TARN_EIO, why_p, "starting threads: %s", strerror(error));
    return TARN_OK;
}

static tarn_status files_renew(struct tier *t, const uint8_t content[TIER_CONTENT_SIZE]) {
    struct files *f = CONTAINER_OF(t, struct files, tier);
    const char *why;
    memcpy(f->tier.info.content, content, TIER_CONTENT_SIZE);
    return write_mark(f, &why);
}

static const struct tier_ops files_ops = {
    .close = files_close,
    .renew = files_renew,
    .each = files_each,
    .rename = files_rename,
    .put = files_put,
    .drop = files_drop,
    .read = files_read,
    .poll_evict = files_poll_evict,
    .evicted = files_evicted,
    .get_stats = files_get_stats,
};

static struct files *create(const struct tier_config *config) {
    struct files *f = xcalloc(1, sizeof(*f));
    f->tier = (struct tier){.magic = TIER_MAGIC, .ops = &files_ops, .event_fd = -1};
    f->root_fd = f->mark_fd = -1;
    f->size = f->capacity = config->size;
    f->queue_bytes = config->queue_bytes;
    f->read_bytes = config->read_bytes;
    f->file_mode = config->mode != 0 ? config->mode & 0666 : 0600;
    f->folder_mode = f->file_mode | 0700 | (f->file_mode & 0444) >> 2; /* who may read may enter */
    f->high = config->high_watermark;
    f->low = config->low_watermark;
    f->next_offset = FILES_BLOCK;
    f->next_ticket = 1;
    f->tier.info.kind = "file";
    f->tier.info.size = config->size;
    f->tier.info.copy_max = min_u64(config->queue_bytes / 4, COPY_MAX);
    f->tier.info.value_max = config->size / 2;
    pthread_mutex_init(&f->lock, NULL);
    pthread_mutex_init(&f->callbacks, NULL);
    htab_init(&f->by_name);
    STAILQ_INIT(&f->tickets);
    return f;
}

tarn_status files_open(const struct tier_config *config, struct tier **tier_p, const char **why_p) {
    if (config->cluster == NULL)
        return tier_fail(TARN_EINVAL, why_p, "a file tier needs the cluster's id");
    if (config->size < SIZE_MIN)
        return tier_fail(TARN_EINVAL, why_p, "a file tier has at least 1 MiB");
    struct files *f = create(config);
    tarn_status status = open_root(f, config, why_p);
    if (status == TARN_OK) status = open_mark(f, why_p);
    if (status == TARN_OK) status = find_files(f, why_p);
    if (status == TARN_OK) {
        f->tier.event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (f->tier.event_fd < 0)
            status = tier_fail(TARN_EIO, why_p, "eventfd: %s", strerror(errno));
    }
    if (status == TARN_OK) status = start(f, why_p);
    if (status != TARN_OK) {
        release(f);
        return status;
    }
    pthread_mutex_lock(&f->lock);
    files_evict_check(f);
    pthread_mutex_unlock(&f->lock);
    log_notice("File tier %s: %llu MiB, %llu in use", f->root, (unsigned long long)(f->size >> 20),
               (unsigned long long)(f->used >> 20));
    *tier_p = &f->tier;
    return TARN_OK;
}
