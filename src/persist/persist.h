/* Files of the books: snapshots and append-only files, in one format. Records (store/effect.h) in
 * frames with checksums; what the records mean is not this room's business, but for the one that
 * ends a snapshot.
 *
 *   header 128 bytes | frame ... | frame with EFFECT_END: the snapshot is whole
 *                    | frame ...: what happened since
 *   frame: u32 bytes, u32 CRC-32C of the frame's place in the file (u64) and its bytes, records
 *   packed frame: the top bit of the bytes is set; u32 bytes of the records, the records as an LZ4
 *                 block
 *
 * Little-endian. A file is written beside its name and renamed when its snapshot is whole, so a
 * name always leads to a whole one. A process that dies in the middle of an append leaves a torn
 * frame at the end: what was not acknowledged. It is cut; anything else that does not fit is
 * damage, and nobody guesses.
 *
 * Threads: a writer belongs to one thread; it has one of its own that syncs. */
#ifndef TARN_PERSIST_PERSIST_H
#define TARN_PERSIST_PERSIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/status.h"

#define PERSIST_VERSION   2u /* 1 had no packed frames; files without them still say 1 */
#define PERSIST_FRAME_MAX (UINT32_C(16) << 20)
#define PERSIST_END_KIND  64u /* record: u64 objects in the snapshot */

/* Does tarn 0.1 read records of this kind? It has not: promises of leases, what modules keep. */
static inline bool persist_kind_in_0_1(unsigned kind) {
    return (kind >= 1 && kind <= 7) || (kind >= 32 && kind <= 35) || kind == PERSIST_END_KIND ||
           kind == 65;
}

struct persist_header {
    uint8_t cluster_id[16];
    char replid[41]; /* replication id and offset that the snapshot ends at; "" : none */
    uint64_t offset;
    uint64_t wall_ms; /* when it was begun */
    uint32_t master_epoch;
    bool packed; /* written: there may be packed frames */
};

/* --- writing --- */

struct persist_writer;

/* A new file beside path, mode 0600, with that header. TARN_EIO with errno set. */
tarn_status persist_create(const char *path, const struct persist_header *header,
                           struct persist_writer **w_p);
/* Goes on with a file, behind its first `size` bytes (persist_read: whole); what is behind them is
 * cut. TARN_EBUSY: another process writes to it. Else TARN_EIO with errno set. */
tarn_status persist_open(const char *path, uint64_t size, struct persist_writer **w_p);
/* As it was given; the writer's. */
const char *persist_path(const struct persist_writer *w);
/* The writer that has this file, of whatever process: " (pid 17)", or "" if that cannot be seen (of
 * this thread, until the next call). NULL: it has none, or none any more within patience_ms. */
const char *persist_holder(const char *path, unsigned patience_ms);
/* Whole records; a frame of their own. Only noted down. */
void persist_write(struct persist_writer *w, struct span records);
/* The same, packed if that makes them smaller; of a file whose header says so. */
void persist_write_packed(struct persist_writer *w, struct span records);
/* To the kernel, which keeps it when this process dies. TARN_EIO with errno set: the rest is kept,
 * and tried again by the next flush; a file that has its name ends with a whole frame meanwhile. */
tarn_status persist_flush(struct persist_writer *w);
/* To the disk, now. TARN_EIO also when an earlier sync has failed. */
tarn_status persist_sync(struct persist_writer *w);
/* To the disk, soon, by the writer's thread; nothing happens while that is at it.
 * persist_sync_status: once one has failed, TARN_EIO for good, the file may have a hole. */
void persist_sync_later(struct persist_writer *w);
tarn_status persist_sync_status(const struct persist_writer *w);
bool persist_syncing(const struct persist_writer *w);
/* Flushed, synced, and under its name; when it fails, what had the name still has it. For files
 * from persist_create, once. */
tarn_status persist_publish(struct persist_writer *w);
uint64_t persist_size(const struct persist_writer *w);    /* with what is only noted down */
uint64_t persist_pending(const struct persist_writer *w); /* bytes that are only noted down */
/* The file lacks what should be in it, and cannot be told so: its time of change says it
 * (persist_found.lacks), until the next write. */
void persist_lacks(struct persist_writer *w);
/* Waits for its thread. What was not published goes. Nulls. */
void persist_close(struct persist_writer **w_p);

/* --- reading --- */

struct persist_found {
    struct persist_header header;
    uint64_t size;                      /* of the file */
    uint64_t whole;                     /* bytes up to the end of the last whole frame */
    uint64_t frames, records, appended; /* appended: frames behind the snapshot */
    uint64_t objects;                   /* that the snapshot says it has */
    bool snapshot_whole;
    bool lacks;         /* persist_lacks */
    bool torn;          /* the end was cut off in the middle of a frame */
    const char *damage; /* NULL, or what is wrong, at byte `whole` (static) */
};
struct persist_visitor {
    void *arg;
    /* One record, with its length in front. Not TARN_OK: reading ends with that status. NULL: only
     * look. */
    tarn_status (*record)(void *arg, unsigned kind, struct span record);
    /* After about every 64 MiB. NULL: nobody wants to know. */
    void (*progress)(void *arg, uint64_t bytes, uint64_t of);
};
/* TARN_OK: whole, or torn only behind a whole snapshot. TARN_ENOTFOUND: no such file.
 * TARN_ECORRUPT: see found. TARN_EPROTO: another version, or no file of ours. TARN_EIO with errno
 * set. found_p is written in every case but TARN_ENOTFOUND. */
tarn_status persist_read(const char *path, const struct persist_visitor *visitor,
                         struct persist_found *found_p);

#endif
