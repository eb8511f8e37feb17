#include "check/down.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "persist/persist.h"

#define FRAME_BYTES (UINT32_C(1) << 20)

/* One pass over a file. Without a writer it only counts. */
struct down {
    struct persist_writer *w;
    const struct persist_found *found;
    struct buf frame;
    bool ended;       /* its snapshot */
    uint64_t dropped; /* records that 0.1 does not know */
};

static void frame_end(struct down *d) {
    if (d->frame.len == 0) return;
    if (d->found->header.packed)
        persist_write_packed(d->w, span_of(d->frame.data, d->frame.len));
    else
        persist_write(d->w, span_of(d->frame.data, d->frame.len));
    buf_clear(&d->frame);
}

static void snapshot_end(struct down *d) {
    uint32_t len = 9;
    buf_append(&d->frame, &len, sizeof(len));
    buf_append_char(&d->frame, (char)PERSIST_END_KIND);
    buf_append(&d->frame, &d->found->objects, sizeof(d->found->objects));
    frame_end(d);
    d->ended = true;
}

static tarn_status record_down(void *arg, unsigned kind, struct span record) {
    struct down *d = arg;
    bool known = persist_kind_in_0_1(kind);
    d->dropped += !known;
    if (d->w == NULL) return TARN_OK;
    if (d->found->snapshot_whole && !d->ended) snapshot_end(d);
    if (known) buf_append(&d->frame, record.data, record.len);
    if (d->frame.len < FRAME_BYTES) return TARN_OK;
    frame_end(d);
    return persist_flush(d->w);
}

static int cannot(const char *path, const char *why) {
    fprintf(stderr, "tarn-check: %s stays as it is: %s\n", path, why);
    return 2;
}

/* Torn ends are cut by the server; what is damaged otherwise is not copied. */
static tarn_status file_pass(const char *path, struct down *d, struct persist_found *found) {
    struct persist_visitor v = {.arg = d, .record = record_down};
    d->found = found;
    return persist_read(path, &v, found);
}

static int file_rewrite(const char *path, struct down *d, struct persist_found *found) {
    char kept[4096];
    if (snprintf(kept, sizeof(kept), "%s.0.2", path) >= (int)sizeof(kept))
        return cannot(path, "the name is too long");
    struct persist_header header = found->header;
    tarn_status s = persist_create(path, &header, &d->w);
    if (s == TARN_OK) s = file_pass(path, d, found);
    if (s == TARN_OK && !d->ended) snapshot_end(d);
    if (s == TARN_OK) {
        frame_end(d);
        s = persist_flush(d->w);
    }
    if (s == TARN_OK && link(path, kept) != 0) s = TARN_EIO;
    if (s == TARN_OK && (s = persist_publish(d->w)) != TARN_OK) unlink(kept);
    int answer = s == TARN_OK ? 0 : cannot(path, strerror(errno));
    buf_free(&d->frame);
    if (d->w != NULL) persist_close(&d->w);
    if (answer == 0)
        printf("%s is for tarn 0.1 now, without %llu records; %s is as it was\n", path,
               (unsigned long long)d->dropped, kept);
    return answer;
}

int file_down(const char *path) {
    struct down look = {0}, d = {0};
    struct persist_found found;
    tarn_status s = file_pass(path, &look, &found);
    if (s == TARN_ENOTFOUND || s == TARN_EIO) return cannot(path, strerror(errno));
    if (s != TARN_OK)
        return cannot(path, found.damage != NULL ? found.damage : tarn_status_text(s));
    if (look.dropped == 0) {
        printf("%s has nothing that tarn 0.1 does not read\n", path);
        return 0;
    }
    return file_rewrite(path, &d, &found);
}
