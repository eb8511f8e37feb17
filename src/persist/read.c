#include "persist/persist.h"

#include <errno.h>
#include <fcntl.h>
#include <lz4.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "persist/format.h"

#define PROGRESS_BYTES (UINT64_C(1) << 20)

struct reading {
    int fd;
    const struct persist_visitor *visitor;
    struct persist_found *found;
    uint64_t told; /* of progress */
    char *frame, *unpacked;
    size_t cap, unpacked_cap;
};

/* Exactly n bytes. TARN_EAGAIN: the file ends before. */
static tarn_status read_bytes(int fd, void *to, size_t n) {
    for (size_t at = 0; at < n;) {
        ssize_t got = read(fd, (char *)to + at, n - at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return TARN_EIO;
        if (got == 0) return TARN_EAGAIN;
        at += (size_t)got;
    }
    return TARN_OK;
}

static tarn_status reading_damaged(struct reading *r, const char *what) {
    r->found->damage = what;
    return TARN_ECORRUPT;
}

static tarn_status reading_header(struct reading *r) {
    struct persist_disk_header d;
    struct persist_header *h = &r->found->header;
    tarn_status s = read_bytes(r->fd, &d, sizeof(d));
    if (s == TARN_EAGAIN ||
        (s == TARN_OK && memcmp(d.magic, PERSIST_MAGIC, sizeof(d.magic)) != 0)) {
        r->found->damage = "this is no file of tarn's books";
        return TARN_EPROTO;
    }
    if (s != TARN_OK) return s;
    if (d.version < 1 || d.version > PERSIST_VERSION || d.header_size != sizeof(d)) {
        r->found->damage = "the file has another version than this program knows";
        return TARN_EPROTO;
    }
    if (d.crc != crc32c(0, &d, offsetof(struct persist_disk_header, crc)) || d.replid[40] != '\0')
        return reading_damaged(r, "the header does not match its checksum");
    memcpy(h->cluster_id, d.cluster_id, sizeof(h->cluster_id));
    memcpy(h->replid, d.replid, sizeof(h->replid));
    h->offset = d.offset;
    h->wall_ms = d.wall_ms;
    h->master_epoch = d.master_epoch;
    h->packed = d.version > 1;
    r->found->whole = sizeof(d);
    return TARN_OK;
}

/* All of a frame's bytes are here and right; are its records? */
static tarn_status reading_visit(struct reading *r, struct span data) {
    while (data.len > 0) {
        uint32_t len;
        if (data.len < 5) return reading_damaged(r, "a record is cut off inside of a frame");
        memcpy(&len, data.data, 4);
        if (len == 0 || len > data.len - 4)
            return reading_damaged(r, "a record is longer than its frame");
        struct span record = span_of(data.data, 4 + (size_t)len);
        unsigned kind = (uint8_t)data.data[4];
        if (kind == PERSIST_END_KIND) {
            if (len != 9 || r->found->snapshot_whole)
                return reading_damaged(r, "the snapshot ends twice, or wrongly");
            memcpy(&r->found->objects, data.data + 5, 8);
            r->found->snapshot_whole = true;
        } else if (r->visitor->record != NULL) {
            tarn_status s = r->visitor->record(r->visitor->arg, kind, record);
            if (s != TARN_OK) return s;
        }
        r->found->records++;
        data = span_of(data.data + record.len, data.len - record.len);
    }
    return TARN_OK;
}

/* A file system that lost its power may leave zeroes where the end was to be. */
static tarn_status rest_is_zero(struct reading *r, bool *zero_p) {
    char block[4096];
    *zero_p = true;
    if (lseek(r->fd, (off_t)r->found->whole, SEEK_SET) < 0) return TARN_EIO;
    for (uint64_t left = r->found->size - r->found->whole; left > 0 && *zero_p;) {
        size_t n = left < sizeof(block) ? (size_t)left : sizeof(block);
        tarn_status s = read_bytes(r->fd, block, n);
        if (s != TARN_OK) return s == TARN_EAGAIN ? TARN_OK : s;
        *zero_p = span_is_zero(span_of(block, n));
        left -= n;
    }
    return TARN_OK;
}

/* What the checksum has found right may still be no block of LZ4: whoever wrote it was wrong. */
static tarn_status frame_unpack(struct reading *r, struct span *data) {
    uint32_t raw;
    if (data->len <= sizeof(raw)) return reading_damaged(r, "a packed frame is too short");
    memcpy(&raw, data->data, sizeof(raw));
    if (raw == 0 || raw > PERSIST_FRAME_MAX)
        return reading_damaged(r, "a packed frame has an impossible size");
    if (r->unpacked_cap < raw) {
        free(r->unpacked);
        r->unpacked_cap = raw;
        r->unpacked = xmalloc(raw);
    }
    int n = LZ4_decompress_safe(data->data + sizeof(raw), r->unpacked,
                                (int)(data->len - sizeof(raw)), (int)raw);
    if (n < 0 || (uint32_t)n != raw) return reading_damaged(r, "a packed frame cannot be unpacked");
    *data = span_of(r->unpacked, raw);
    return TARN_OK;
}

/* TARN_EAGAIN: the end, whole or torn. */
static tarn_status read_frame(struct reading *r) {
    struct persist_frame f;
    struct persist_found *found = r->found;
    uint64_t left = found->size - found->whole;
    if (left == 0) return TARN_EAGAIN;
    found->torn = true;
    tarn_status s = read_bytes(r->fd, &f, sizeof(f));
    if (s != TARN_OK) return s;
    bool packed = f.length & PERSIST_PACKED && found->header.packed;
    if (packed) f.length &= ~PERSIST_PACKED;
    if (f.length == 0 || f.length > PERSIST_FRAME_MAX) {
        bool zero = false;
        if (f.length == 0 && f.crc == 0 && (s = rest_is_zero(r, &zero)) != TARN_OK) return s;
        return zero ? TARN_EAGAIN : reading_damaged(r, "a frame has an impossible length");
    }
    if (f.length > left - sizeof(f)) return TARN_EAGAIN;
    if (r->cap < f.length) {
        free(r->frame);
        r->cap = f.length;
        r->frame = xmalloc(r->cap);
    }
    s = read_bytes(r->fd, r->frame, f.length);
    if (s != TARN_OK) return s;
    struct span data = span_of(r->frame, f.length);
    if (persist_frame_crc(found->whole, data) != f.crc)
        return f.length == left - sizeof(f)
                   ? TARN_EAGAIN
                   : reading_damaged(r, "a frame does not match its checksum");
    found->torn = false;
    bool appended = found->snapshot_whole;
    if (packed && (s = frame_unpack(r, &data)) != TARN_OK) return s;
    if ((s = reading_visit(r, data)) != TARN_OK) return s;
    found->whole += sizeof(f) + f.length;
    found->frames++;
    found->appended += appended;
    if (r->visitor->progress != NULL && found->whole - r->told >= PROGRESS_BYTES) {
        r->told = found->whole;
        r->visitor->progress(r->visitor->arg, found->whole, found->size);
    }
    return TARN_OK;
}

static tarn_status read_all(struct reading *r) {
    tarn_status s = reading_header(r);
    while (s == TARN_OK) s = read_frame(r);
    if (s != TARN_EAGAIN) return s;
    if (!r->found->snapshot_whole)
        return reading_damaged(r, "the snapshot at the start is not whole");
    return TARN_OK;
}

tarn_status persist_read(const char *path, const struct persist_visitor *visitor,
                         struct persist_found *found_p) {
    struct stat st;
    struct reading r = {.visitor = visitor, .found = found_p};
    /* a FIFO would wait for who writes to it */
    r.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (r.fd < 0) return errno == ENOENT ? TARN_ENOTFOUND : TARN_EIO;
    *found_p = (struct persist_found){0};
    tarn_status s = TARN_EIO;
    bool known = fstat(r.fd, &st) == 0;
    if (known && S_ISREG(st.st_mode)) {
        found_p->size = (uint64_t)st.st_size;
        found_p->lacks = st.st_mtim.tv_sec == 0;
        (void)posix_fadvise(r.fd, 0, 0, POSIX_FADV_SEQUENTIAL);
        s = read_all(&r);
    } else if (known) {
        errno = S_ISDIR(st.st_mode) ? EISDIR : ENOTSUP;
    }
    int e = errno;
    free(r.frame);
    free(r.unpacked);
    close(r.fd);
    errno = e;
    return s;
}
