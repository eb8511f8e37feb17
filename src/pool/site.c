#include "pool/site.h"

#include <errno.h>
#include <limits.h>
#include <mntent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/file.h"

#define BLANK_BYTES (128u * 1024)

/* --- mount points --- */

/* The deepest folder of path that is there, without links, and behind it what is not. */
static bool site_resolve(const char *path, char out[PATH_MAX]) {
    char head[PATH_MAX], tail[PATH_MAX] = "", next[PATH_MAX];
    if (snprintf(head, sizeof(head), "%s%s", path[0] == '/' ? "" : "./", path) >= (int)sizeof(head))
        return false;
    while (realpath(head, out) == NULL) {
        char *slash = strrchr(head, '/');
        if (slash == NULL || (errno != ENOENT && errno != ENOTDIR)) return false;
        snprintf(next, sizeof(next), "%s", tail);
        if (snprintf(tail, sizeof(tail), "%s%s", slash, next) >= (int)sizeof(tail)) return false;
        slash[slash == head] = '\0';
        if (slash == head && realpath("/", out) == NULL) return false;
        if (slash == head) break;
    }
    size_t len = strlen(out);
    if (len == 1) len = 0; /* "/" */
    return snprintf(out + len, PATH_MAX - len, "%s", tail[0] != '\0' || len > 0 ? tail : "/") <
           (int)(PATH_MAX - len);
}

static bool site_is_below(const char *path, const char *folder) {
    size_t len = strlen(folder);
    return strncmp(path, folder, len) == 0 && (path[len] == '\0' || path[len] == '/');
}

static bool site_is_mounted(const char *mounts, const char *dir) {
    FILE *f = setmntent(mounts, "re");
    bool found = f == NULL; /* it does not tell */
    struct mntent e;
    char text[4 * PATH_MAX];
    while (!found && getmntent_r(f, &e, text, sizeof(text)) != NULL)
        found = strcmp(e.mnt_dir, dir) == 0;
    if (f != NULL) endmntent(f);
    return found;
}

bool site_unmounted_by(const char *fstab, const char *mounts, const char *path, char *missing,
                       size_t size) {
    char at[PATH_MAX], text[4 * PATH_MAX], real[PATH_MAX];
    struct mntent e;
    bool found = false;
    FILE *f = site_resolve(path, at) ? setmntent(fstab, "re") : NULL;
    if (f == NULL) return false;
    while (!found && getmntent_r(f, &e, text, sizeof(text)) != NULL) {
        if (e.mnt_dir[0] != '/' || e.mnt_dir[1] == '\0') continue; /* swap, the root */
        /* not even looked at: its server may be away */
        if (site_is_mounted(mounts, e.mnt_dir)) continue;
        const char *dir = realpath(e.mnt_dir, real) != NULL ? real : e.mnt_dir;
        found = site_is_below(at, dir) && !site_is_mounted(mounts, dir);
        if (found) snprintf(missing, size, "%s", dir);
    }
    endmntent(f);
    return found;
}

bool site_unmounted(const char *path, char *missing, size_t size) {
    return site_unmounted_by("/etc/fstab", "/proc/self/mounts", path, missing, size);
}

/* --- what is there --- */

bool site_blank(int fd) {
    char piece[4096];
    for (off_t at = 0; at < (off_t)BLANK_BYTES; at += (off_t)sizeof(piece)) {
        ssize_t n = pread(fd, piece, sizeof(piece), at);
        if (n < 0 || !span_is_zero(span_of(piece, (size_t)n))) return false;
        if (n < (ssize_t)sizeof(piece)) break;
    }
    return true;
}

tarn_status site_claim(int fd, const char *what, const char *path, unsigned patience_ms,
                       const char **why_p) {
    struct stat st;
    if (fstat(fd, &st) != 0)
        return status_fail(TARN_EIO, why_p, "%s%s: %s", what, path, strerror(errno));
    if (!S_ISBLK(st.st_mode) && st.st_uid != geteuid())
        return status_fail(TARN_EINVAL, why_p, "%s%s belongs to another user (uid %u)", what, path,
                           (unsigned)st.st_uid);
    if (!file_lock(fd, patience_ms))
        return status_fail(TARN_EBUSY, why_p, "%s%s is in use by another process%s", what, path,
                           file_holder_text(fd));
    return TARN_OK;
}
