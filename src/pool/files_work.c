/* What touches the disk in a file tier: writing, reading, renaming and removing files, each in
 * threads of its own. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "base/file.h"
#include "pool/files_internal.h"

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

static void files_job_free(struct files_job *job) {
    free(job->copy);
    free(job->iov);
    free(job);
}

/* --- writing --- */

/* 0, or an errno. */
static int files_write_all(int fd, const void *from, uint64_t size) {
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
static tarn_status files_write_stream(int fd, struct files_job *job, int *error_p) {
    const struct tier_record *r = &job->entry->record;
    char *chunk = xmalloc(FILES_CHUNK_BYTES);
    struct tier_copy copy;
    tier_copy_start(&copy, job->iov, job->n_iov, r->n_crcs > 0 ? tier_record_crcs(r) : NULL);
    while (copy.done < r->value && *error_p == 0) {
        uint64_t n = min_u64(FILES_CHUNK_BYTES, r->value - copy.done);
        tier_copy_next(&copy, chunk, n);
        *error_p = files_write_all(fd, chunk, n);
    }
    free(chunk);
    if (*error_p != 0) return TARN_EIO;
    return tier_copy_crc(&copy) == r->crc ? TARN_OK : TARN_ECORRUPT;
}

static int files_write_trailer(int fd, const struct tier_record *r) {
    const uint32_t *data = tier_record_crcs(r);
    size_t rest = r->n_crcs * sizeof(uint32_t) + r->key_size;
    struct files_trailer t = {.size = r->value,
                              .offset = r->offset,
                              .version = r->version,
                              .crc = r->crc,
                              .n_crcs = r->n_crcs,
                              .key_size = r->key_size};
    memcpy(t.magic, FILES_TRAILER_MAGIC, sizeof(t.magic));
    t.checksum = crc32c(crc32c(0, data, rest), &t, offsetof(struct files_trailer, checksum));
    int error = files_write_all(fd, data, rest);
    return error != 0 ? error : files_write_all(fd, &t, sizeof(t));
}

/* Renames, making the two directories if they are not there. */
static int files_put_in_place(struct files *f, const char *temporary, const char *path) {
    if (renameat(f->root_fd, temporary, f->root_fd, path) == 0) return 0;
    if (errno != ENOENT) return errno;
    char dir[8];
    snprintf(dir, sizeof(dir), "%.2s", path);
    if (mkdirat(f->root_fd, dir, f->folder_mode) != 0 && errno != EEXIST) return errno;
    snprintf(dir, sizeof(dir), "%.5s", path);
    if (mkdirat(f->root_fd, dir, f->folder_mode) != 0 && errno != EEXIST) return errno;
    return renameat(f->root_fd, temporary, f->root_fd, path) == 0 ? 0 : errno;
}

static tarn_status files_write_file(struct files *f, struct files_job *job, int *error_p) {
    tarn_status status = TARN_OK;
    int fd = openat(f->root_fd, job->old_path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                    f->file_mode);
    if (fd < 0) {
        *error_p = errno;
        return tier_error_status(*error_p);
    }
    if (job->copy != NULL)
        *error_p = files_write_all(fd, job->copy, job->entry->record.value);
    else
        status = files_write_stream(fd, job, error_p);
    if (*error_p == 0 && status == TARN_OK) *error_p = files_write_trailer(fd, &job->entry->record);
    if (close(fd) != 0 && *error_p == 0) *error_p = errno; /* network file systems tell then */
    return *error_p != 0 ? tier_error_status(*error_p) : status;
}

/* The end of a put, one way or the other. */
static void files_put_end(struct files *f, struct files_job *job, tarn_status status, int error) {
    uint64_t offset = job->entry->record.offset;
    if (status != TARN_OK) unlinkat(f->root_fd, job->old_path, 0);
    pthread_mutex_lock(&f->tier.lock);
    tier_put_count(&f->tier, &job->put, status);
    if (status == TARN_OK) {
        f->tier.failures = 0;
        files_entry_add(f, job->entry);
    } else {
        f->tier.stats.used -= job->bytes;
        free(job->entry);
        if (error != 0) tier_write_failed(&f->tier, "writing a file", error);
        if (status == TARN_ENOSPACE) {
            /* The file system is fuller than we thought: let something go. */
            f->capacity = f->tier.stats.used;
            tier_evict_check(&f->tier);
        }
    }
    pthread_mutex_unlock(&f->tier.lock);
    tier_put_ended(&f->tier, &job->put, status, offset);
    files_job_free(job);
}

static void files_run_put(struct files *f, struct files_job *job) {
    int error = 0;
    tarn_status status = files_write_file(f, job, &error);
    if (status != TARN_OK) {
        files_put_end(f, job, status, error);
        return;
    }
    job->what = FILES_PLACE;
    files_submit(f, job);
}

static void files_run_place(struct files *f, struct files_job *job) {
    int error = files_put_in_place(f, job->old_path, job->path);
    files_put_end(f, job, error == 0 ? TARN_OK : tier_error_status(error), error);
}

/* --- reading --- */

static tarn_status files_read_file(struct files *f, const struct files_job *job) {
    int fd = openat(f->root_fd, job->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return errno == ENOENT ? TARN_ENOTFOUND : TARN_EIO;
    tarn_status status =
        tier_error_status(file_read_at(fd, job->buffer, job->read.length, job->at));
    close(fd);
    return status;
}

/* Whoever looked the file's name up may be ahead of, or behind, those who rename it. false: it is
 * gone. *last_p: nobody renames anything, so this is the last name to try. */
static bool files_name_again(struct files *f, struct files_job *job, bool *last_p) {
    pthread_mutex_lock(&f->tier.lock);
    *last_p = f->renames == 0;
    struct tier_record *r = files_find(&f->tier, job->offset);
    bool there = r != NULL && r->offset == job->offset;
    if (there) tier_file_path(tier_record_key(r), r->version, job->path, FILES_NAME_MAX);
    pthread_mutex_unlock(&f->tier.lock);
    return there;
}

static void files_run_read(struct files *f, struct files_job *job) {
    tarn_status status = files_read_file(f, job);
    bool last = false;
    for (unsigned i = 0; status == TARN_ENOTFOUND && !last && i < RENAME_TRIES; i++) {
        if (!files_name_again(f, job, &last)) break;
        if (!last) usleep(RENAME_PAUSE_US);
        status = files_read_file(f, job);
    }
    tier_read_ended(&f->tier, &job->read, status);
    files_job_free(job);
}

/* --- names --- */

static void files_run_remove(struct files *f, struct files_job *job) {
    int error = unlinkat(f->root_fd, job->path, 0) == 0 ? 0 : errno;
    pthread_mutex_lock(&f->tier.lock);
    if (error != 0 && error != ENOENT) tier_trouble(&f->tier, "removing a file", error);
    f->tier.stats.used -= job->bytes;
    pthread_mutex_unlock(&f->tier.lock);
    files_job_free(job);
}

static void files_run_rename(struct files *f, struct files_job *job) {
    int error = renameat(f->root_fd, job->old_path, f->root_fd, job->path) == 0 ? 0 : errno;
    pthread_mutex_lock(&f->tier.lock);
    f->renames--;
    if (error != 0) tier_trouble(&f->tier, "renaming a file", error);
    pthread_mutex_unlock(&f->tier.lock);
    files_job_free(job);
}

/* --- threads --- */

static bool files_job_run(struct crew_job *crew) {
    static void (*const runs[])(struct files * f, struct files_job * job) = {
        [FILES_PUT] = files_run_put,       [FILES_PLACE] = files_run_place,
        [FILES_READ] = files_run_read,     [FILES_REMOVE] = files_run_remove,
        [FILES_RENAME] = files_run_rename,
    };
    struct files_job *job = CONTAINER_OF(crew, struct files_job, crew);
    runs[job->what](job->files, job);
    return false; /* it is freed, or on its way to its name */
}
