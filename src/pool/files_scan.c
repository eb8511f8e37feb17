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

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "base/progress.h"
#include "pool/files_internal.h"

#define CRCS_MAX (1u << 20) /* a TiB */

struct files_scan {
    struct files *f;
    uint64_t seen, damaged;
    struct progress progress;
};

static bool is_hex(const char *s, size_t n) {
    return strspn(s, "0123456789abcdef") >= n;
}

static bool read_exactly(int fd, void *to, uint64_t size, uint64_t offset) {
    char *p = to;
    while (size > 0) {
        ssize_t n = pread(fd, p, size, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        p += n;
        size -= (uint64_t)n;
        offset += (uint64_t)n;
    }
    return true;
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
static struct files_entry *read_entry(int fd, uint64_t file_size) {
    struct files_trailer t;
    if (file_size < sizeof(t) || !read_exactly(fd, &t, sizeof(t), file_size - sizeof(t)))
        return NULL;
    if (!trailer_makes_sense(&t, file_size)) return NULL;
    size_t crcs = t.n_crcs * sizeof(uint32_t), rest = crcs + t.key_size;
    struct files_entry *e = xcalloc(1, sizeof(*e) + rest);
    bool whole = read_exactly(fd, e->data, rest, t.size);
    uint32_t checksum = crc32c(0, e->data, rest);
    checksum = crc32c(checksum, &t, offsetof(struct files_trailer, checksum));
    if (!whole || checksum != t.checksum) {
        free(e);
        return NULL;
    }
    e->offset = t.offset;
    e->version = t.version;
    e->size = t.size;
    e->crc = t.crc;
    e->n_crcs = t.n_crcs;
    e->key_size = t.key_size;
    return e;
}

static void take_file(struct files_scan *scan, int dir_fd, const char *dir, const char *name) {
    struct files *f = scan->f;
    struct stat st;
    int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        if (fd >= 0) close(fd);
        scan->damaged++;
        return;
    }
    struct files_entry *e = read_entry(fd, (uint64_t)st.st_size);
    close(fd);
    if (e != NULL) {
        struct tier_item item;
        char path[FILES_NAME_MAX], expected[FILES_NAME_MAX];
        e->version = strtoull(name + 65, NULL, 16);
        files_entry_item(e, &item);
        tier_file_path(item.key, e->version, expected, sizeof(expected));
        snprintf(path, sizeof(path), "%s/%s", dir, name);
        if (strcmp(path, expected) == 0) {
            files_entry_add(f, e);
            f->used += files_disk_bytes(e->size, e->n_crcs, e->key_size);
            f->next_offset =
                max_u64(f->next_offset, e->offset + max_u64(e->size, 1) + FILES_BLOCK - 1);
            return;
        }
        free(e);
    }
    scan->damaged++;
    if (unlinkat(dir_fd, name, 0) != 0)
        log_notice("%s/%s/%s: %s", f->root, dir, name, strerror(errno));
}

static void report(struct files_scan *scan) {
    progress_say(&scan->progress, 0, 0, "looked at %llu files", (unsigned long long)scan->seen);
}

/* Calls fn for the names of a directory below root; a directory that is not there has none. */
static void each_name(struct files_scan *scan, const char *dir,
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

static void on_file(struct files_scan *scan, int fd, const char *dir, const char *name) {
    /* Other names are somebody else's. */
    if (strlen(name) != 64 + 1 + 16 || !is_hex(name, 64) || name[64] != '.' ||
        !is_hex(name + 65, 16))
        return;
    scan->seen++;
    take_file(scan, fd, dir, name);
    report(scan);
}

static void on_directory(struct files_scan *scan, int fd, const char *dir, const char *name) {
    (void)fd;
    char path[16];
    if (strlen(name) != 2 || !is_hex(name, 2)) return;
    snprintf(path, sizeof(path), "%s%s%.2s", strcmp(dir, ".") == 0 ? "" : dir,
             strcmp(dir, ".") == 0 ? "" : "/", name);
    each_name(scan, path, strcmp(dir, ".") == 0 ? on_directory : on_file);
}

static void on_temporary(struct files_scan *scan, int fd, const char *dir, const char *name) {
    if (unlinkat(fd, name, 0) != 0)
        log_notice("%s/%s/%s: %s", scan->f->root, dir, name, strerror(errno));
}

static int compare_offset(const void *a, const void *b) {
    uint64_t x = (*(struct files_entry *const *)a)->offset,
             y = (*(struct files_entry *const *)b)->offset;
    return x < y ? -1 : x > y;
}

/* Two files at one address: copies that somebody made. Each must have an address of its own. */
static void separate(struct files *f, struct files_scan *scan) {
    uint64_t end = 0;
    for (size_t i = 0; i < f->n_entries; i++) {
        struct files_entry *e = f->entries[i];
        if (e->offset < end) {
            scan->damaged++;
            struct tier_item item;
            char path[FILES_NAME_MAX];
            files_entry_item(e, &item);
            tier_file_path(item.key, e->version, path, sizeof(path));
            if (unlinkat(f->root_fd, path, 0) != 0)
                log_notice("%s/%s: %s", f->root, path, strerror(errno));
            f->used -= files_disk_bytes(e->size, e->n_crcs, e->key_size);
            files_entry_remove(f, e);
            continue;
        }
        end = e->offset + max_u64(e->size, 1);
    }
    files_squeeze(f);
}

tarn_status files_scan(struct files *f, const char **why_p) {
    uint64_t start = clock_mono_ms();
    struct files_scan scan = {.f = f};
    progress_log(&scan.progress, "File tier %s", f->root);
    (void)why_p;
    each_name(&scan, "tmp", on_temporary);
    each_name(&scan, ".", on_directory);
    if (f->n_entries > 0) qsort(f->entries, f->n_entries, sizeof(f->entries[0]), compare_offset);
    separate(f, &scan);
    f->next_offset = (f->next_offset + FILES_BLOCK - 1) / FILES_BLOCK * FILES_BLOCK;
    f->stats.damaged = scan.damaged;
    f->stats.recovered = f->stats.entries;
    if (scan.damaged > 0) {
        log_warning("File tier %s: %llu files were damaged and are removed", f->root,
                    (unsigned long long)scan.damaged);
    }
    if (scan.seen > 0) {
        log_notice("File tier %s: found %llu objects in %llu ms", f->root,
                   (unsigned long long)f->stats.entries,
                   (unsigned long long)(clock_mono_ms() - start));
    }
    return TARN_OK;
}
