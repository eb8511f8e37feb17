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

#define SIZE_MIN (1ull << 20)

/* --- entries --- */

uint64_t files_entry_bytes(const struct files_entry *e) {
    const struct tier_record *r = &e->record;
    uint64_t bytes =
        r->value + r->n_crcs * sizeof(uint32_t) + r->key_size + sizeof(struct files_trailer);
    return (bytes + FILES_BLOCK - 1) / FILES_BLOCK * FILES_BLOCK;
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
    return (struct name){tier_record_key(&e->record), e->record.version};
}

static bool name_eq(const struct htab_node *node, const void *key) {
    const struct name *name = key;
    struct name other = entry_name(CONTAINER_OF(node, struct files_entry, by_name));
    return other.version == name->version && span_eq(other.key, name->key);
}

/* The entry that had this name so far is no more: its file is about to be replaced, or has been. */
static void name_supersede(struct files *f, struct name name) {
    struct htab_node *node = htab_find(&f->by_name, name_hash(name), name_eq, &name);
    if (node == NULL) return;
    struct files_entry *old = CONTAINER_OF(node, struct files_entry, by_name);
    f->tier.stats.used -= files_entry_bytes(old);
    files_entry_remove(f, old);
}

void files_entry_path(const struct files_entry *e, char *path) {
    struct name name = entry_name(e);
    tier_file_path(name.key, name.version, path, FILES_NAME_MAX);
}

static bool entry_is_gone(const struct files_entry *e) {
    return e->record.kind == TIER_DROPPED;
}

void files_squeeze(struct files *f) {
    size_t n = 0;
    for (size_t i = 0; i < f->n_entries; i++) {
        if (entry_is_gone(f->entries[i]))
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
        for (; at > 0 && f->entries[at - 1]->record.offset > e->record.offset; at--)
            f->entries[at] = f->entries[at - 1];
    }
    f->entries[at] = e;
    f->tier.stats.entries++;
    name_supersede(f, entry_name(e));
    htab_insert(&f->by_name, &e->by_name, name_hash(entry_name(e)));
}

void files_entry_remove(struct files *f, struct files_entry *e) {
    TARN_ASSERT(!entry_is_gone(e));
    e->record.kind = TIER_DROPPED;
    f->gone++;
    f->tier.stats.entries--;
    if (e->ticket != 0) f->going -= files_entry_bytes(e);
    htab_remove(&f->by_name, &e->by_name);
}

static int files_entry_compare(const void *offset, const void *entry) {
    return tier_record_compare(*(const uint64_t *)offset,
                               &(*(struct files_entry *const *)entry)->record);
}

struct tier_record *files_find(struct tier *t, uint64_t offset) {
    const struct files *f = (const struct files *)t;
    struct files_entry **at =
        bsearch(&offset, f->entries, f->n_entries, sizeof(*at), files_entry_compare);
    return at != NULL && !entry_is_gone(*at) ? &(*at)->record : NULL;
}

static struct files_entry *files_entry_of(struct tier_record *r) {
    return CONTAINER_OF(r, struct files_entry, record);
}

/* --- puts --- */

static tarn_status files_place(struct tier *t, struct tier_put *put) {
    struct files *f = (struct files *)t;
    const struct tier_item *item = put->item;
    uint32_t record = tier_record_size(item->key.len, put->n_crcs);
    struct files_entry *e = xcalloc(1, offsetof(struct files_entry, record) + record);
    tier_record_write(&e->record, item, f->next_offset);
    uint64_t bytes = files_entry_bytes(e);
    if (t->stats.used + bytes > f->capacity) {
        /* it may not fit though there is less than the high watermark */
        f->wanted = max_u64(f->wanted, bytes);
        tier_evict_check(t);
        free(e);
        return TARN_EAGAIN;
    }
    struct files_job *job = put->place = xcalloc(1, sizeof(*job));
    *job = (struct files_job){.what = FILES_PUT, .put = put->end, .entry = e, .bytes = bytes};
    f->next_offset += max_u64((item->size + FILES_BLOCK - 1) / FILES_BLOCK, 1) * FILES_BLOCK;
    t->stats.used += bytes;
    files_entry_path(e, job->path);
    snprintf(job->old_path, sizeof(job->old_path), "tmp/%llu", (unsigned long long)f->next_tmp++);
    if (put->stream) {
        job->iov = xmemdup(put->iov, put->n_iov * sizeof(*put->iov));
        job->n_iov = put->n_iov;
        files_submit(f, job);
    } else {
        put->to = job->copy = xmalloc(item->size);
    }
    tier_evict_check(t);
    return TARN_OK;
}

static void files_placed(struct tier *t, struct tier_put *put, tarn_status status,
                         const uint32_t *crcs) {
    struct files_job *job = put->place;
    struct tier_record *r = &job->entry->record;
    if (status != TARN_OK) {
        t->stats.used -= job->bytes;
        free(job->copy);
        free(job->entry);
        free(job);
        return;
    }
    r->crc = put->item->crc;
    if (crcs != NULL) memcpy(tier_record_crcs(r), crcs, put->n_crcs * sizeof(*crcs));
    files_submit((struct files *)t, job);
}

/* --- removing, renaming --- */

static void entry_remove_file(struct files *f, struct files_entry *e) {
    struct files_job *job = xcalloc(1, sizeof(*job));
    job->what = FILES_REMOVE;
    job->bytes = files_entry_bytes(e);
    files_entry_path(e, job->path);
    files_submit(f, job);
    files_entry_remove(f, e);
}

static void files_drop(struct tier *t, struct tier_record *r) {
    entry_remove_file((struct files *)t, files_entry_of(r));
}

static void files_rename(struct tier *t, struct tier_record *r, uint64_t version) {
    struct files *f = (struct files *)t;
    struct files_entry *e = files_entry_of(r);
    struct files_job *job = xcalloc(1, sizeof(*job));
    job->what = FILES_RENAME;
    files_entry_path(e, job->old_path);
    name_supersede(f, (struct name){tier_record_key(r), version});
    htab_remove(&f->by_name, &e->by_name);
    r->version = version;
    htab_insert(&f->by_name, &e->by_name, name_hash(entry_name(e)));
    files_entry_path(e, job->path);
    f->renames++;
    files_submit(f, job);
}

/* --- reads --- */

static tarn_status files_read(struct tier *t, struct tier_record *r, uint64_t offset, void *buffer,
                              const struct tier_read_end *end) {
    struct files_job *job = xcalloc(1, sizeof(*job));
    *job = (struct files_job){.what = FILES_READ,
                              .offset = r->offset,
                              .at = offset - r->offset,
                              .buffer = buffer,
                              .read = *end};
    files_entry_path(files_entry_of(r), job->path);
    files_submit((struct files *)t, job);
    return TARN_OK;
}

/* --- eviction --- */

/* Between the watermarks it depends on where we come from. */
static bool files_too_full(struct tier *t) {
    struct files *f = (struct files *)t;
    uint64_t staying = t->stats.used - f->going;
    bool fits = staying + f->wanted <= f->capacity;
    if (staying > (uint64_t)((double)f->capacity * TIER_HIGH) || !fits) f->evicting = true;
    if (staying <= (uint64_t)((double)f->capacity * TIER_LOW) && fits) {
        f->evicting = false;
        f->wanted = 0;
        f->capacity = t->stats.size; /* it may fit again */
    }
    return f->evicting;
}

/* The ticket is the offset of the last one that goes by it. */
static uint64_t files_choose(struct tier *t, struct buf *records) {
    struct files *f = (struct files *)t;
    struct files_entry *chosen[FILES_TICKET_MAX];
    size_t n = 0;
    for (size_t i = 0; i < f->n_entries && n < FILES_TICKET_MAX && files_too_full(t); i++) {
        struct files_entry *e = f->entries[i];
        if (entry_is_gone(e) || e->ticket != 0) continue;
        f->going += files_entry_bytes(e);
        buf_append(records, &e->record, e->record.size);
        chosen[n++] = e;
    }
    t->stats.evicted += n;
    uint64_t ticket = n > 0 ? chosen[n - 1]->record.offset : 0;
    while (n > 0) chosen[--n]->ticket = ticket;
    return ticket;
}

static void files_evicted(struct tier *t, uint64_t ticket) {
    struct files *f = (struct files *)t;
    for (size_t i = 0; i < f->n_entries && f->entries[i]->record.offset <= ticket; i++) {
        struct files_entry *e = f->entries[i];
        if (e->ticket == ticket && !entry_is_gone(e)) entry_remove_file(f, e);
    }
}

/* --- what is known --- */

static uint64_t files_each(struct tier *t, uint64_t from, struct buf *records) {
    const struct files *f = (const struct files *)t;
    unsigned n = 0;
    for (size_t i = 0; i < f->n_entries; i++) {
        const struct files_entry *e = f->entries[i];
        if (e->record.offset <= from || entry_is_gone(e) || e->ticket != 0) continue;
        buf_append(records, &e->record, e->record.size);
        if (++n == 256) return e->record.offset;
    }
    return 0;
}

/* --- opening and closing --- */

static void files_close(struct tier *t) {
    struct files *f = (struct files *)t;
    crew_stop(&f->workers); /* what they still write needs its name */
    crew_stop(&f->names);
    for (size_t i = 0; i < f->n_entries; i++) free(f->entries[i]);
    free(f->entries);
    htab_free(&f->by_name);
    if (f->mark_fd >= 0) close(f->mark_fd);
    if (f->root_fd >= 0) close(f->root_fd);
}

static tarn_status files_open_root(struct files *f, const struct tier_config *config,
                                   const char **why_p) {
    char hex[2 * 16 + 1];
    struct buf root = {0};
    sodium_bin2hex(hex, sizeof(hex), config->cluster, 16);
    buf_printf(&root, "%s/%s", config->path, hex);
    buf_append_char(&root, '\0');
    f->tier.path = root.data;
    f->tier.info.directory = f->tier.path;
    if (config->create && mkdir(config->path, f->folder_mode) != 0 && errno != EEXIST) {
        return status_fail(TARN_EIO, why_p, "%s: %s", config->path, strerror(errno));
    }
    if (mkdir(f->tier.path, f->folder_mode) != 0 && errno != EEXIST) {
        return status_fail(TARN_EIO, why_p, "%s: %s", f->tier.path, strerror(errno));
    }
    f->root_fd = open(f->tier.path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (f->root_fd < 0)
        return status_fail(TARN_EIO, why_p, "%s: %s", f->tier.path, strerror(errno));
    if (mkdirat(f->root_fd, "tmp", f->folder_mode) != 0 && errno != EEXIST) {
        return status_fail(TARN_EIO, why_p, "%s/tmp: %s", f->tier.path, strerror(errno));
    }
    return TARN_OK;
}

static int files_write_mark(struct tier *t) {
    struct files_mark mark = {.version = FILES_TIER_VERSION};
    memcpy(mark.magic, FILES_TIER_MAGIC, sizeof(mark.magic));
    memcpy(mark.content, t->info.content, sizeof(mark.content));
    mark.crc = crc32c(0, &mark, offsetof(struct files_mark, crc));
    ssize_t n = pwrite(((struct files *)t)->mark_fd, &mark, sizeof(mark), 0);
    return n == sizeof(mark) ? 0 : n < 0 ? errno : ENOSPC;
}

/* Locks the directory and reads its content id. */
static tarn_status files_open_mark(struct files *f, const char **why_p) {
    struct files_mark mark;
    f->mark_fd =
        openat(f->root_fd, "tarn.tier", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, f->file_mode);
    if (f->mark_fd < 0)
        return status_fail(TARN_EIO, why_p, "%s/tarn.tier: %s", f->tier.path, strerror(errno));
    if (!file_lock(f->mark_fd, TIER_PATIENCE_MS))
        return status_fail(TARN_EBUSY, why_p, "%s is in use by another process%s", f->tier.path,
                           file_holder_text(f->mark_fd));
    ssize_t n = pread(f->mark_fd, &mark, sizeof(mark), 0);
    bool whole = n == sizeof(mark) &&
                 memcmp(mark.magic, FILES_TIER_MAGIC, sizeof(mark.magic)) == 0 &&
                 mark.crc == crc32c(0, &mark, offsetof(struct files_mark, crc));
    if (whole && (mark.version != FILES_TIER_VERSION || (mark.features & 0xffff) != 0)) {
        return status_fail(TARN_EINVAL, why_p, "%s was written by another version of tarn",
                           f->tier.path);
    }
    f->tier.info.recovered = whole;
    if (whole) {
        memcpy(f->tier.info.content, mark.content, sizeof(mark.content));
        return TARN_OK;
    }
    tier_content_new(&f->tier);
    int error = files_write_mark(&f->tier);
    if (error == 0) return TARN_OK;
    return status_fail(TARN_EIO, why_p, "writing %s/tarn.tier: %s", f->tier.path, strerror(error));
}

static tarn_status files_open(struct tier *t, const struct tier_config *config,
                              const char **why_p) {
    struct files *f = (struct files *)t;
    f->root_fd = f->mark_fd = -1;
    f->file_mode = config->mode != 0 ? config->mode & 0666 : 0600;
    f->folder_mode = f->file_mode | 0700 | (f->file_mode & 0444) >> 2; /* who may read may enter */
    f->next_offset = FILES_BLOCK;
    f->capacity = t->stats.size = t->info.size = config->size;
    t->info.value_max = config->size / 2;
    if (config->cluster == NULL)
        return status_fail(TARN_EINVAL, why_p, "a file tier needs the cluster's id");
    if (config->size < SIZE_MIN)
        return status_fail(TARN_EINVAL, why_p, "a file tier has at least 1 MiB");
    tarn_status s = files_open_root(f, config, why_p);
    return s == TARN_OK ? files_open_mark(f, why_p) : s;
}

static tarn_status files_start(struct tier *t, const char **why_p) {
    struct files *f = (struct files *)t;
    int error = crew_start(&f->names, "tarn-files", 1, NULL, NULL);
    if (error == 0) error = crew_start(&f->workers, "tarn-files", FILES_WORKERS, NULL, NULL);
    if (error != 0) return status_fail(TARN_EIO, why_p, "starting threads: %s", strerror(error));
    return TARN_OK;
}

const struct tier_ops files_ops = {
    .kind = "file",
    .name = "File tier",
    .size = sizeof(struct files),
    .open = files_open,
    .recover = files_scan,
    .start = files_start,
    .close = files_close,
    .rename_content = files_write_mark,
    .find = files_find,
    .drop = files_drop,
    .rename = files_rename,
    .place = files_place,
    .placed = files_placed,
    .read = files_read,
    .each = files_each,
    .too_full = files_too_full,
    .choose = files_choose,
    .evicted = files_evicted,
};
