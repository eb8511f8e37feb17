/* What touches the disk in a file tier: writing, reading, renaming and removing files, each in
 * threads of its own. */
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
#include "pool/files_internal.h"
#include "pool/ssd_io.h"

/* A read waits so long for a name that is on its way. */
#define RENAME_TRIES    1000u
#define RENAME_PAUSE_US 1000u

static bool files_job_run(struct crew_job *crew);

void files_submit(struct files *f, struct files_job *job) {
    bool names = job->what != FILES_PUT && job->what != FILES_READ;
    job->files = f;
    job->crew = (struct crew_job){.run = files_job_run};
    crew_add(names ? &f->names : &f->workers, &job->crew);
}

static void job_free(struct files_job *job) {
    free(job->copy);
    free(job->iov);
    free(job);
}

static void count_failure(struct files *f, const char *what, int error) {
    uint64_t now = clock_mono_ms();
    if (now - f->log_failure_ms >= (f->read_only ? 60000 : 1000) || f->log_failure_ms == 0) {
        f->log_failure_ms = now;
        log_warning("File tier %s: %s: %s", f->root, what, strerror(error));
    }
}

/* --- writing --- */

/* 0, or an errno. */
static int write_all(int fd, const void *from, uint64_t size) {
    const char *p = from;
    while (size > 0) {
        ssize_t n = write(fd, p, min_u64(size, 1u << 30));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? errno : ENOSPC;
        p += n;
        size -= (uint64_t)n;
    }
    return 0;
}

/* A value that was too large to be copied when it was accepted. TARN_ECORRUPT: it has changed
 * since. */
static tarn_status write_stream(int fd, struct files_job *job, int *error_p) {
    struct files_entry *e = job->entry;
    char *chunk = xmalloc(FILES_CHUNK_BYTES);
    struct tier_copy copy;
    tier_copy_start(&copy, job->iov, job->n_iov, e->n_crcs > 0 ? e->data : NULL);
    while (copy.done < e->size && *error_p == 0) {
        uint64_t n = min_u64(FILES_CHUNK_BYTES, e->size - copy.done);
        tier_copy_next(&copy, chunk, n);
        *error_p = write_all(fd, chunk, n);
    }
    free(chunk);
    if (*error_p != 0) return TARN_EIO;
    return tier_copy_crc(&copy) == e->crc ? TARN_OK : TARN_ECORRUPT;
}

static int write_trailer(int fd, const struct files_entry *e) {
    size_t rest = e->n_crcs * sizeof(uint32_t) + e->key_size;
    struct files_trailer t = {.size = e->size,
                              .offset = e->offset,
                              .version = e->version,
                              .crc = e->crc,
                              .n_crcs = e->n_crcs,
                              .key_size = e->key_size};
    memcpy(t.magic, FILES_TRAILER_MAGIC, sizeof(t.magic));
    t.checksum = crc32c(crc32c(0, e->data, rest), &t, offsetof(struct files_trailer, checksum));
    int error = write_all(fd, e->data, rest);
    return error != 0 ? error : write_all(fd, &t, sizeof(t));
}

/* Renames, making the two directories if they are not there. */
static int put_in_place(struct files *f, const char *temporary, const char *path) {
    if (renameat(f->root_fd, temporary, f->root_fd, path) == 0) return 0;
    if (errno != ENOENT) return errno;
    char dir[8];
    snprintf(dir, sizeof(dir), "%.2s", path);
    if (mkdirat(f->root_fd, dir, f->folder_mode) != 0 && errno != EEXIST) return errno;
    snprintf(dir, sizeof(dir), "%.5s", path);
    if (mkdirat(f->root_fd, dir, f->folder_mode) != 0 && errno != EEXIST) return errno;
    return renameat(f->root_fd, temporary, f->root_fd, path) == 0 ? 0 : errno;
}

static tarn_status write_file(struct files *f, struct files_job *job, int *error_p) {
    tarn_status status = TARN_OK;
    int fd = openat(f->root_fd, job->old_path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                    f->file_mode);
    if (fd < 0) {
        *error_p = errno;
        return ssd_io_status(*error_p);
    }
    if (job->copy != NULL)
        *error_p = write_all(fd, job->copy, job->entry->size);
    else
        status = write_stream(fd, job, error_p);
    if (*error_p == 0 && status == TARN_OK) *error_p = write_trailer(fd, job->entry);
    if (close(fd) != 0 && *error_p == 0) *error_p = errno; /* network file systems tell then */
    return *error_p != 0 ? ssd_io_status(*error_p) : status;
}

static void put_failed(struct files *f, int error) {
    if (error == 0) return;
    count_failure(f, "writing a file", error);
    if (ssd_io_status(error) == TARN_ENOSPACE) {
        /* The file system is fuller than we thought: let something go. */
        f->capacity = f->used;
        files_evict_check(f);
        return;
    }
    if (++f->failures < FILES_FAILURES_MAX || f->read_only) return;
    f->read_only = true;
    log_warning(
        "File tier %s: %u failures in a row; it is read from, but takes nothing more until it is "
        "opened again",
        f->root, f->failures);
}

/* The end of a put, one way or the other. */
static void end_put(struct files *f, struct files_job *job, tarn_status status, int error) {
    uint64_t offset = job->entry->offset;
    if (status != TARN_OK) unlinkat(f->root_fd, job->old_path, 0);
    pthread_mutex_lock(&f->lock);
    f->queued -= job->queued;
    if (status == TARN_OK) {
        f->failures = 0;
        f->stats.puts++;
        f->stats.put_bytes += job->entry->size;
        f->stats.writes++;
        f->stats.write_us += clock_mono_us() - job->started_us;
        files_entry_add(f, job->entry);
    } else {
        f->used -= job->bytes;
        f->stats.put_failures++;
        free(job->entry);
        put_failed(f, error);
    }
    pthread_mutex_unlock(&f->lock);
    pthread_mutex_lock(&f->callbacks);
    job->put_done(job->arg, status, status == TARN_OK ? offset : 0);
    pthread_mutex_unlock(&f->callbacks);
    job_free(job);
}

static void run_put(struct files *f, struct files_job *job) {
    int error = 0;
    job->started_us = clock_mono_us();
    tarn_status status = write_file(f, job, &error);
    if (status != TARN_OK) {
        end_put(f, job, status, error);
        return;
    }
    job->what = FILES_PLACE;
    files_submit(f, job);
}

static void run_place(struct files *f, struct files_job *job) {
    int error = put_in_place(f, job->old_path, job->path);
    end_put(f, job, error == 0 ? TARN_OK : ssd_io_status(error), error);
}

/* --- reading --- */

static tarn_status read_file(struct files *f, const struct files_job *job) {
    int fd = openat(f->root_fd, job->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return errno == ENOENT ? TARN_ENOTFOUND : TARN_EIO;
    char *to = job->buffer;
    uint64_t at = job->at, left = job->length;
    tarn_status status = TARN_OK;
    while (left > 0 && status == TARN_OK) {
        ssize_t n = pread(fd, to, min_u64(left, 1u << 30), (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            status = TARN_EIO;
        } else {
            to += n;
            at += (uint64_t)n;
            left -= (uint64_t)n;
        }
    }
    close(fd);
    return status;
}

/* Whoever looked the file's name up may be ahead of, or behind, those who rename it. false: it is
 * gone. *last_p: nobody renames anything, so this is the last name to try. */
static bool name_again(struct files *f, struct files_job *job, bool *last_p) {
    pthread_mutex_lock(&f->lock);
    *last_p = f->renames == 0;
    const struct files_entry *e = files_entry_at(f, job->offset);
    bool there = e != NULL && e->offset == job->offset;
    if (there) files_entry_path(e, job->path);
    pthread_mutex_unlock(&f->lock);
    return there;
}

static void run_read(struct files *f, struct files_job *job) {
    tarn_status status = read_file(f, job);
    bool last = false;
    for (unsigned i = 0; status == TARN_ENOTFOUND && !last && i < RENAME_TRIES; i++) {
        if (!name_again(f, job, &last)) break;
        if (!last) usleep(RENAME_PAUSE_US);
        status = read_file(f, job);
    }
    pthread_mutex_lock(&f->lock);
    f->reading -= job->length;
    f->n_reading--;
    f->stats.reads++;
    if (status == TARN_OK)
        f->stats.read_bytes += job->length;
    else
        f->stats.read_failures++;
    pthread_mutex_unlock(&f->lock);
    pthread_mutex_lock(&f->callbacks);
    job->read_done(job->arg, status);
    pthread_mutex_unlock(&f->callbacks);
    job_free(job);
}

/* --- names --- */

static void run_remove(struct files *f, struct files_job *job) {
    int error = unlinkat(f->root_fd, job->path, 0) == 0 ? 0 : errno;
    pthread_mutex_lock(&f->lock);
    if (error != 0 && error != ENOENT) count_failure(f, "removing a file", error);
    f->used -= job->bytes;
    pthread_mutex_unlock(&f->lock);
    job_free(job);
}

static void run_rename(struct files *f, struct files_job *job) {
    int error = renameat(f->root_fd, job->old_path, f->root_fd, job->path) == 0 ? 0 : errno;
    pthread_mutex_lock(&f->lock);
    f->renames--;
    if (error != 0) count_failure(f, "renaming a file", error);
    pthread_mutex_unlock(&f->lock);
    job_free(job);
}

/* --- threads --- */

static bool files_job_run(struct crew_job *crew) {
    struct files_job *job = CONTAINER_OF(crew, struct files_job, crew);
    struct files *f = job->files;
    switch (job->what) {
    case FILES_PUT: run_put(f, job); break;
    case FILES_PLACE: run_place(f, job); break;
    case FILES_READ: run_read(f, job); break;
    case FILES_REMOVE: run_remove(f, job); break;
    case FILES_RENAME: run_rename(f, job); break;
    }
    return false; /* it is freed, or on its way to its name */
}
