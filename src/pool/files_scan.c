/* Finding the files of a file tier again. Every name and trailer is checked: the key must hash to
 * the name. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "base/file.h"
#include "base/log.h"
#include "base/progress.h"
#include "pool/files_internal.h"

#define CRCS_MAX (1u << 20) /* a TiB */

struct files_scan {
    struct files *f;
    uint64_t seen;
    struct progress progress;
};

static bool scan_is_hex(const char *s, size_t n) {
    return strspn(s, "0123456789abcdef") >= n;
}

static bool trailer_makes_sense(const struct files_trailer *t, uint64_t file_size) {
    if (memcmp(t->magic, FILES_TRAILER_MAGIC, sizeof(t->magic)) != 0 || (t->features & 0xffff) != 0)
        return false;
    if (t->key_size == 0 || t->key_size > TIER_KEY_MAX || t->size > 1ull << 60) return false;
    if (t->n_crcs != tier_pieces(t->size) || t->n_crcs > CRCS_MAX) return false;
    if (t->offset == 0 || t->offset % FILES_BLOCK != 0 || t->offset > 1ull << 61) return false;
    return file_size == t->size + t->n_crcs * sizeof(uint32_t) + t->key_size + sizeof(*t);
}

/* The entry of an open file; NULL: it is damaged. */
static struct files_entry *scan_read_entry(int fd, uint64_t file_size) {
    struct files_trailer t;
    if (file_size < sizeof(t) || file_read_at(fd, &t, sizeof(t), file_size - sizeof(t)) != 0)
        return NULL;
    if (!trailer_makes_sense(&t, file_size)) return NULL;
    uint32_t size = tier_record_size(t.key_size, t.n_crcs);
    struct files_entry *e = xcalloc(1, offsetof(struct files_entry, record) + size);
    e->record = (struct tier_record){.size = size,
                                     .kind = TIER_ENTRY,
                                     .key_size = (uint16_t)t.key_size,
                                     .offset = t.offset,
                                     .version = t.version,
                                     .value = t.size,
                                     .crc = t.crc,
                                     .n_crcs = t.n_crcs};
    uint32_t *data = tier_record_crcs(&e->record);
    size_t rest = t.n_crcs * sizeof(uint32_t) + t.key_size;
    bool whole = file_read_at(fd, data, rest, t.size) == 0;
    uint32_t checksum = crc32c(crc32c(0, data, rest), &t, offsetof(struct files_trailer, checksum));
    if (whole && checksum == t.checksum) return e;
    free(e);
    return NULL;
}

static void scan_take_file(struct files_scan *scan, int dir_fd, const char *dir, const char *name) {
    struct files *f = scan->f;
    struct stat st;
    int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        if (fd >= 0) close(fd);
        scan->f->tier.stats.damaged++;
        return;
    }
    struct files_entry *e = scan_read_entry(fd, (uint64_t)st.st_size);
    close(fd);
    if (e != NULL) {
        char path[FILES_NAME_MAX], expected[FILES_NAME_MAX];
        e->record.version = strtoull(name + 65, NULL, 16);
        files_entry_path(e, expected);
        snprintf(path, sizeof(path), "%s/%s", dir, name);
        if (strcmp(path, expected) == 0) {
            files_entry_add(f, e);
            f->tier.stats.used += files_entry_bytes(e);
            f->next_offset = max_u64(
                f->next_offset, e->record.offset + max_u64(e->record.value, 1) + FILES_BLOCK - 1);
            return;
        }
        free(e);
    }
    scan->f->tier.stats.damaged++;
    if (unlinkat(dir_fd, name, 0) != 0)
        log_notice("%s/%s/%s: %s", f->tier.path, dir, name, strerror(errno));
}

/* Calls fn for the names of a directory below root; a directory that is not there has none. */
static void scan_each_name(struct files_scan *scan, const char *dir,
                           void (*fn)(struct files_scan *scan, int fd, const char *dir,
                                      const char *name)) {
    int fd = openat(scan->f->root_fd, dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (d == NULL) {
        if (fd >= 0) close(fd);
        return;
    }
    struct dirent *e;
    while ((e = readdir(d)) != NULL) {
        if (e->d_name[0] != '.') fn(scan, dirfd(d), dir, e->d_name);
    }
    closedir(d);
}

static void scan_on_file(struct files_scan *scan, int fd, const char *dir, const char *name) {
    /* Other names are somebody else's. */
    if (strlen(name) != 64 + 1 + 16 || !scan_is_hex(name, 64) || name[64] != '.' ||
        !scan_is_hex(name + 65, 16))
        return;
    scan->seen++;
    scan_take_file(scan, fd, dir, name);
    progress_say(&scan->progress, 0, 0, "looked at %llu files", (unsigned long long)scan->seen);
}

static void scan_on_directory(struct files_scan *scan, int fd, const char *dir, const char *name) {
    (void)fd;
    char path[16];
    if (strlen(name) != 2 || !scan_is_hex(name, 2)) return;
    snprintf(path, sizeof(path), "%s%s%.2s", strcmp(dir, ".") == 0 ? "" : dir,
             strcmp(dir, ".") == 0 ? "" : "/", name);
    scan_each_name(scan, path, strcmp(dir, ".") == 0 ? scan_on_directory : scan_on_file);
}

static void scan_on_temporary(struct files_scan *scan, int fd, const char *dir, const char *name) {
    if (unlinkat(fd, name, 0) != 0)
        log_notice("%s/%s/%s: %s", scan->f->tier.path, dir, name, strerror(errno));
}

static int scan_compare_offset(const void *a, const void *b) {
    uint64_t x = (*(struct files_entry *const *)a)->record.offset,
             y = (*(struct files_entry *const *)b)->record.offset;
    return x < y ? -1 : x > y;
}

/* Two files at one address: copies that somebody made. Each must have an address of its own. */
static void scan_separate(struct files *f) {
    uint64_t end = 0;
    for (size_t i = 0; i < f->n_entries; i++) {
        struct files_entry *e = f->entries[i];
        if (e->record.offset >= end) {
            end = e->record.offset + max_u64(e->record.value, 1);
            continue;
        }
        char path[FILES_NAME_MAX];
        files_entry_path(e, path);
        if (unlinkat(f->root_fd, path, 0) != 0)
            log_notice("%s/%s: %s", f->tier.path, path, strerror(errno));
        f->tier.stats.damaged++;
        f->tier.stats.used -= files_entry_bytes(e);
        files_entry_remove(f, e);
    }
    files_squeeze(f);
}

tarn_status files_scan(struct tier *t, const char **why_p) {
    struct files *f = (struct files *)t;
    struct files_scan scan = {.f = f};
    (void)why_p;
    progress_log(&scan.progress, "File tier %s", t->path);
    scan_each_name(&scan, "tmp", scan_on_temporary);
    scan_each_name(&scan, ".", scan_on_directory);
    if (f->n_entries > 0)
        qsort(f->entries, f->n_entries, sizeof(f->entries[0]), scan_compare_offset);
    scan_separate(f);
    f->next_offset = (f->next_offset + FILES_BLOCK - 1) / FILES_BLOCK * FILES_BLOCK;
    return TARN_OK;
}
