/* The file tier from inside: every object is a file of a directory that readers share (NFS, Lustre,
 * CephFS, ...), and reads it by itself. files.c keeps the books, files_work.c does what touches the
 * disk, files_scan.c finds what is there.
 *
 *   DIRECTORY/<cluster id, 32 hex>/tarn.tier     content id; locked while a process serves it
 *                                  tmp/<n>        being written
 *                                  ab/cd/<hash, 64 hex>.<version, 16 hex>
 *
 * A file is the value, then its checksums per MiB, the key, and a trailer with a checksum. It is
 * written under a name in tmp and renamed when it is whole, so that a name in its place is a
 * promise. The version in the name counts; that in the trailer is the first it had.
 *
 * Offsets are addresses in a log without end: each file gets the next [offset, offset + size),
 * rounded up to 4 KiB, so that ascending offsets are ascending age, and eviction takes the lowest:
 * FIFO, since nobody here sees who reads. The next free address after a restart is behind the
 * highest that is found.
 *
 * One lock for the books. Two kinds of threads: workers write and read; one more renames and
 * removes, in the order of the books, so that the file of a new object is never taken for that of
 * an old one with the same name. Callbacks come from all of these, but only one at a time. */
#ifndef TARN_POOL_FILES_INTERNAL_H
#define TARN_POOL_FILES_INTERNAL_H

#include <pthread.h>
#include "base/assert.h"
#include "base/crew.h"
#include "base/htab.h"
#include "pool/tier_internal.h"

#define FILES_BLOCK       4096u
#define FILES_WORKERS     4u
#define FILES_CHUNK_BYTES (4u << 20)
#define FILES_NAME_MAX    128u /* "ab/cd/" + 64 + "." + 16, "tmp/<n>" */
#define FILES_TICKET_MAX  1024u

#define FILES_TIER_MAGIC   "TARNFIL1"
#define FILES_TIER_VERSION 1u
/* Of DIRECTORY/<cluster>/tarn.tier. */
struct files_mark {
    char magic[8];
    uint32_t version;
    uint32_t features; /* unknown bits in the lower half: refuse */
    uint8_t content[TIER_CONTENT_SIZE];
    uint32_t zero;
    uint32_t crc; /* CRC-32C of all before it */
};
static_assert(sizeof(struct files_mark) == 40, "layout of tarn.tier");

#define FILES_TRAILER_MAGIC "TARNOBJ1"
/* The last bytes of a file; before it the key, before that the checksums, before these the
 * value. */
struct files_trailer {
    uint64_t size; /* of the value */
    uint64_t offset;
    uint64_t version;
    uint32_t crc; /* of the value */
    uint32_t n_crcs;
    uint32_t key_size;
    uint32_t features; /* as above */
    char magic[8];
    uint32_t zero;
    uint32_t checksum; /* CRC-32C of checksums, key, and the trailer before this field */
};
static_assert(offsetof(struct files_trailer, checksum) == 52, "trailer layout");
static_assert(sizeof(struct files_trailer) == 56, "trailer layout");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the structs above are what is on disk");

struct files_entry {
    struct htab_node by_name;  /* key and version: what a path follows from */
    uint64_t ticket;           /* handed out by poll_evict with this one; 0: not */
    struct tier_record record; /* TIER_DROPPED: only its place is still there. The last member */
};

enum files_what { FILES_PUT, FILES_PLACE, FILES_READ, FILES_REMOVE, FILES_RENAME };
struct files_job {
    struct crew_job crew;
    struct files *files;
    enum files_what what;
    struct files_entry *entry; /* put: not in the books yet */
    char *copy;                /* put: the value; NULL: it is read from where it is */
    struct iovec *iov;
    size_t n_iov;
    uint64_t bytes; /* put, remove: on disk */
    char path[FILES_NAME_MAX], old_path[FILES_NAME_MAX];
    uint64_t offset, at; /* read: whose bytes, and from where in the file */
    void *buffer;
    struct tier_put_end put;
    struct tier_read_end read;
};

struct files {
    struct tier tier; /* first. Its path: up to the cluster id */
    int root_fd, mark_fd;
    mode_t file_mode, folder_mode;
    struct crew workers, names; /* write and read; rename and remove, one after the other */

    /* Under tier.lock, as all below: */
    bool evicting;
    uint64_t wanted;              /* bytes of a put that was refused for want of room */
    unsigned renames;             /* that are on their way */
    struct files_entry **entries; /* by offset */
    size_t n_entries, cap_entries, gone;
    struct htab by_name;
    uint64_t next_offset, next_tmp;
    uint64_t going; /* of tier.stats.used: handed out by poll_evict */
    /* tier.stats.size, or what fitted when the file system was full; until eviction is through */
    uint64_t capacity;
};

/* What its file takes on disk. */
uint64_t files_entry_bytes(const struct files_entry *e);
/* The lock is held, as for the next. An entry with the same key and version is no more: its file
 * was replaced. */
void files_entry_add(struct files *f, struct files_entry *e);
/* It is not in the books any more; its file and the bytes it takes are left alone. */
void files_entry_remove(struct files *f, struct files_entry *e);
struct tier_record *files_find(struct tier *t, uint64_t offset);
/* What its file is called. */
void files_entry_path(const struct files_entry *e, char *path);
/* Frees the places of entries that are gone. */
void files_squeeze(struct files *f);

/* --- files_work.c --- */

/* The lock may be held. */
void files_submit(struct files *f, struct files_job *job);

/* --- files_scan.c --- */

/* Removes what is half-written and what is damaged, and fills the books. */
tarn_status files_scan(struct tier *t, const char **why_p);

#endif
