#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"

int file_open_new(const char *path, mode_t mode) {
    for (int i = 0; i < 2; i++) {
        int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
        if (fd >= 0 || errno != EEXIST) return fd;
        if (i == 0 && unlink(path) != 0 && errno != ENOENT) return -1;
    }
    return -1;
}

int file_read_at(int fd, void *to, uint64_t size, uint64_t offset) {
    for (char *p = to; size > 0;) {
        ssize_t n = pread(fd, p, min_u64(size, 1u << 30), (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? errno : EIO;
        p += n;
        size -= (uint64_t)n;
        offset += (uint64_t)n;
    }
    return 0;
}

void file_fill_standard(void) {
    int fd;
    do fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0) close(fd);
}

void file_boot_id(char out[40]) {
    memset(out, 0, 40);
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (f == NULL) return;
    if (fread(out, 1, 36, f) != 36) memset(out, 0, 40);
    fclose(f);
}

bool file_write_number(const char *path, long number) {
    char *tmp = xmalloc(strlen(path) + 32);
    sprintf(tmp, "%s.%ld.tmp", path, (long)getpid());
    int fd = file_open_new(tmp, 0644);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    bool ok = f != NULL && fprintf(f, "%ld\n", number) > 0;
    if (f != NULL && fclose(f) != 0) ok = false;
    ok = ok && rename(tmp, path) == 0;
    if (!ok) {
        log_warning("Failed to write %s: %s", path, strerror(errno));
        unlink(tmp);
    }
    free(tmp);
    return ok;
}

void file_unlink_number(const char *path, long number) {
    long there = -1;
    FILE *f = fopen(path, "re");
    if (f == NULL) return;
    if (fscanf(f, "%ld", &there) == 1 && there == number) unlink(path);
    fclose(f);
}

/* --- locks --- */

bool file_lock(int fd, unsigned patience_ms) {
    uint64_t until = clock_mono_ms() + patience_ms;
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK || clock_mono_ms() >= until) return false;
        usleep(20000);
    }
    return true;
}

pid_t file_lock_holder(int fd) {
    struct stat st;
    unsigned major, minor;
    unsigned long long inode;
    long pid, holder = 0;
    char line[256], kind[16];
    FILE *f = fstat(fd, &st) == 0 ? fopen("/proc/locks", "re") : NULL;
    if (f == NULL) return 0;
    while (holder == 0 && fgets(line, sizeof(line), f) != NULL)
        if (sscanf(line, "%*s %15s %*s %*s %ld %x:%x:%llu", kind, &pid, &major, &minor, &inode) ==
                5 &&
            strcmp(kind, "FLOCK") == 0 && inode == st.st_ino && makedev(major, minor) == st.st_dev)
            holder = pid;
    fclose(f);
    return holder > 0 ? (pid_t)holder : 0;
}

const char *file_holder_text(int fd) {
    static __thread char text[32];
    pid_t pid = file_lock_holder(fd);
    if (pid == 0) return "";
    snprintf(text, sizeof(text), " (pid %ld)", (long)pid);
    return text;
}

bool file_read_all(FILE *f, size_t max, struct buf *text) {
    char piece[65536];
    size_t n;
    while ((n = fread(piece, 1, sizeof(piece), f)) > 0) {
        buf_append(text, piece, n);
        if (text->len > max) {
            errno = EFBIG;
            return false;
        }
    }
    return !ferror(f);
}
