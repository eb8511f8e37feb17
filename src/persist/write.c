#include "persist/persist.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <lz4.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/crew.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "base/log.h"
#include "persist/format.h"

#define WRITER_MAGIC 0x50575254u         /* "PWRT" */
#define KEEP_BYTES   (UINT64_C(4) << 20) /* of buffer, between flushes */

struct persist_writer {
    uint32_t magic;
    int fd;
    char *path, *tmp;   /* tmp: NULL once it is under its name */
    struct buf out;     /* from byte `written` of the file on */
    size_t done;        /* of out */
    uint64_t written;   /* in the kernel */
    bool dirty;         /* ... and perhaps not on the disk */
    struct crew syncer; /* one thread; made when first needed */
    struct crew_job sync;
    int sync_errno; /* atomic; 0: no sync has failed */
};

static bool sync_run(struct crew_job *job) {
    struct persist_writer *w = CONTAINER_OF(job, struct persist_writer, sync);
    if (fdatasync(w->fd) != 0) __atomic_store_n(&w->sync_errno, errno, __ATOMIC_RELEASE);
    return true;
}

static struct persist_writer *writer_new(const char *path) {
    struct persist_writer *w = xcalloc(1, sizeof(*w));
    w->magic = WRITER_MAGIC;
    w->fd = -1;
    w->path = xstrdup(path);
    w->sync.run = sync_run;
    return w;
}

static void fill_header(struct persist_disk_header *d, const struct persist_header *h) {
    *d = (struct persist_disk_header){.version = h->packed ? PERSIST_VERSION : 1,
                                      .header_size = sizeof(*d),
                                      .offset = h->offset,
                                      .wall_ms = h->wall_ms,
                                      .master_epoch = h->master_epoch};
    memcpy(d->magic, PERSIST_MAGIC, sizeof(d->magic));
    memcpy(d->cluster_id, h->cluster_id, sizeof(d->cluster_id));
    memcpy(d->replid, h->replid, sizeof(d->replid));
    d->crc = crc32c(0, d, offsetof(struct persist_disk_header, crc));
}

/* For one writer, as long as it is open. A file system without locks has none to keep off
 * others. */
static bool writer_lock(int fd, unsigned patience_ms) {
    return file_lock(fd, patience_ms) || errno != EWOULDBLOCK;
}

const char *persist_path(const struct persist_writer *w) {
    return w->path;
}

const char *persist_holder(const char *path, unsigned patience_ms) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return NULL;
    bool is_free = writer_lock(fd, patience_ms);
    const char *holder = is_free ? NULL : file_holder_text(fd);
    close(fd);
    return holder;
}

tarn_status persist_create(const char *path, const struct persist_header *header,
                           struct persist_writer **w_p) {
    struct persist_writer *w = writer_new(path);
    size_t size = strlen(path) + 32;
    w->tmp = xmalloc(size);
    snprintf(w->tmp, size, "%s.%ld.tmp", path, (long)getpid());
    w->fd = file_open_new(w->tmp, 0600);
    if (w->fd < 0) {
        int e = errno;
        free(w->tmp);
        w->tmp = NULL;
        persist_close(&w);
        errno = e;
        return TARN_EIO;
    }
    writer_lock(w->fd, 0);
    struct persist_disk_header d;
    fill_header(&d, header);
    buf_append(&w->out, &d, sizeof(d));
    *w_p = w;
    return TARN_OK;
}

tarn_status persist_open(const char *path, uint64_t size, struct persist_writer **w_p) {
    struct persist_writer *w = writer_new(path);
    w->fd = open(path, O_WRONLY | O_CLOEXEC);
    if (w->fd >= 0 && !writer_lock(w->fd, 0)) {
        persist_close(&w);
        return TARN_EBUSY;
    }
    if (w->fd < 0 || ftruncate(w->fd, (off_t)size) != 0 ||
        lseek(w->fd, (off_t)size, SEEK_SET) < 0) {
        int e = errno;
        persist_close(&w);
        errno = e;
        return TARN_EIO;
    }
    w->written = size;
    w->dirty = true;
    *w_p = w;
    return TARN_OK;
}

void persist_lacks(struct persist_writer *w) {
    static const struct timespec never[2] = {{0, UTIME_OMIT}, {0, 0}};
    if (futimens(w->fd, never) != 0)
        log_warning("%s lacks records, and cannot be marked so: %s", w->path, strerror(errno));
}

uint64_t persist_pending(const struct persist_writer *w) {
    return w->out.len - w->done;
}

uint64_t persist_size(const struct persist_writer *w) {
    return w->written + persist_pending(w);
}

void persist_write(struct persist_writer *w, struct span records) {
    MAGIC_CHECK(w, WRITER_MAGIC);
    TARN_ASSERT(records.len > 0 && records.len <= PERSIST_FRAME_MAX);
    struct persist_frame f = {.length = (uint32_t)records.len};
    f.crc = persist_frame_crc(persist_size(w), records);
    buf_append(&w->out, &f, sizeof(f));
    buf_append(&w->out, records.data, records.len);
}

/* What LZ4 makes of it goes straight behind the frame's header, where there is room for the worst
 * case. */
void persist_write_packed(struct persist_writer *w, struct span records) {
    MAGIC_CHECK(w, WRITER_MAGIC);
    TARN_ASSERT(records.len > 0 && records.len <= PERSIST_FRAME_MAX);
    uint32_t raw = (uint32_t)records.len;
    size_t at = w->out.len, head = sizeof(struct persist_frame) + sizeof(raw);
    uint64_t place = persist_size(w);
    int room = LZ4_compressBound((int)raw);
    buf_reserve(&w->out, head + (size_t)room);
    char *packed = w->out.data + at + head;
    int n = LZ4_compress_default(records.data, packed, (int)raw, room);
    if (n <= 0 || (size_t)n + sizeof(raw) >= raw) {
        persist_write(w, records);
        return;
    }
    memcpy(packed - sizeof(raw), &raw, sizeof(raw));
    struct span bytes = span_of(packed - sizeof(raw), (size_t)n + sizeof(raw));
    struct persist_frame f = {.length = (uint32_t)bytes.len | PERSIST_PACKED,
                              .crc = persist_frame_crc(place, bytes)};
    memcpy(w->out.data + at, &f, sizeof(f));
    w->out.len = at + sizeof(f) + bytes.len;
}

/* The disk took a part of a frame only. The file ends with the one before, as if nothing had been
 * tried: a torn end is what a crash leaves, and is looked at before the file is used
 * (aof-load-truncated). errno is kept. */
static void cut_torn(struct persist_writer *w) {
    size_t at = 0, next = 0;
    int error = errno;
    while (next <= w->done) {
        struct persist_frame f;
        at = next;
        if (w->out.len - at < sizeof(f)) break;
        memcpy(&f, w->out.data + at, sizeof(f));
        next = at + sizeof(f) + (f.length & ~PERSIST_PACKED);
    }
    uint64_t whole = w->written - (w->done - at);
    if (at < w->done && ftruncate(w->fd, (off_t)whole) == 0 &&
        lseek(w->fd, (off_t)whole, SEEK_SET) >= 0) {
        w->done = at;
        w->written = whole;
    }
    errno = error;
}

tarn_status persist_flush(struct persist_writer *w) {
    MAGIC_CHECK(w, WRITER_MAGIC);
    while (w->done < w->out.len) {
        ssize_t n = write(w->fd, w->out.data + w->done, w->out.len - w->done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            if (w->tmp == NULL) cut_torn(w); /* one in the making goes as a whole */
            return TARN_EIO;
        }
        w->done += (size_t)n;
        w->written += (uint64_t)n;
        w->dirty = true;
    }
    buf_clear(&w->out);
    w->done = 0;
    if (w->out.cap > KEEP_BYTES) buf_free(&w->out);
    return TARN_OK;
}

/* Once a sync has failed the kernel may have dropped what it could not write: it is not asked
 * again, this file has a hole. */
static tarn_status sync_failed(struct persist_writer *w, int error) {
    __atomic_store_n(&w->sync_errno, error, __ATOMIC_RELEASE);
    errno = error;
    return TARN_EIO;
}

tarn_status persist_sync(struct persist_writer *w) {
    tarn_status s = persist_flush(w);
    if (s != TARN_OK) return s;
    crew_wait(&w->syncer, &w->sync);
    if (persist_sync_status(w) != TARN_OK) return TARN_EIO;
    if (w->dirty && fdatasync(w->fd) != 0) return sync_failed(w, errno);
    w->dirty = false;
    return TARN_OK;
}

/* --- syncing later --- */

void persist_sync_later(struct persist_writer *w) {
    MAGIC_CHECK(w, WRITER_MAGIC);
    if (!w->dirty) return;
    if (w->syncer.threads == NULL && crew_start(&w->syncer, "tarn-sync", 1, NULL, NULL) != 0) {
        (void)persist_sync(w); /* then by ourselves; persist_sync_status tells */
        return;
    }
    enum crew_state state = crew_job_state(&w->syncer, &w->sync);
    if (state == CREW_RUNNING) return; /* it may have passed our last bytes */
    if (state != CREW_QUEUED) crew_add(&w->syncer, &w->sync);
    w->dirty = false;
}

tarn_status persist_sync_status(const struct persist_writer *w) {
    errno = __atomic_load_n(&w->sync_errno, __ATOMIC_ACQUIRE);
    return errno != 0 ? TARN_EIO : TARN_OK;
}

bool persist_syncing(const struct persist_writer *c) {
    struct persist_writer *w = (struct persist_writer *)(uintptr_t)c;
    enum crew_state state = crew_job_state(&w->syncer, &w->sync);
    return state == CREW_QUEUED || state == CREW_RUNNING;
}

/* --- under its name --- */

static int open_directory(const char *path) {
    char *copy = xstrdup(path);
    int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(copy);
    return fd;
}

tarn_status persist_publish(struct persist_writer *w) {
    TARN_ASSERT(w->tmp != NULL);
    tarn_status s = persist_sync(w);
    if (s != TARN_OK) return s;
    int directory =
        /* before, so that nothing can go wrong afterwards that we could undo */
        open_directory(w->path);
    if (directory < 0) return TARN_EIO;
    if (rename(w->tmp, w->path) != 0) {
        int error = errno;
        close(directory);
        errno = error;
        return TARN_EIO;
    }
    free(w->tmp);
    w->tmp = NULL;
    /* It has the name now, whatever comes. Some file systems cannot sync a directory. */
    if (fsync(directory) != 0 && errno != EINVAL && errno != EBADF)
        log_warning(
            "The folder of %s cannot be synced: %s. After a power cut the former file may be there",
            w->path, strerror(errno));
    close(directory);
    return TARN_OK;
}

void persist_close(struct persist_writer **w_p) {
    struct persist_writer *w = *w_p;
    if (w == NULL) return;
    MAGIC_CHECK(w, WRITER_MAGIC);
    *w_p = NULL;
    crew_stop(&w->syncer);
    if (w->fd >= 0) close(w->fd);
    if (w->tmp != NULL) unlink(w->tmp);
    buf_free(&w->out);
    free(w->tmp);
    free(w->path);
    w->magic = 0;
    free(w);
}
