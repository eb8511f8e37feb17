#include "cmd/value_fetch.h"

#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "cmd/keys.h"
#include "cmd/pool_writer.h"

/* About a microsecond of copying. */
#define BYTES_PER_UNIT UINT64_C(8192)

static void on_ready(void *arg) {
    struct value_fetch *f = arg;
    job_wake(f->job);
}

void value_fetch_open(struct value_fetch *f, const struct client *c, struct object *o, uint64_t from,
                      uint64_t len, struct job *job) {
    struct span value;
    TARN_ASSERT(len > 0);
    *f = (struct value_fetch){.bytes = xmalloc(len), .len = len, .job = job, .runnable = true};
    if (store_object_inline(o, &value)) { /* the books may move it: now */
        memcpy(f->bytes, value.data + from, len);
        f->at = len;
        return;
    }
    f->n_pieces = pool_pieces(o, from, len, f->pieces);
    if (f->n_pieces > 0) {
        f->hold = store_hold(server.store, o);
        return;
    }
    struct value_read_options options = {
        .from = from, .len = len, .only = STORE_SEGMENT_ANY, .client = c->id, .ready = on_ready, .arg = f};
    f->read = value_read_open(o, &options);
}

static void from_here(struct value_fetch *f, unsigned *budget) {
    struct span s = f->pieces[f->piece];
    size_t n = min_u64(s.len - f->piece_at, *budget * BYTES_PER_UNIT);
    memcpy(f->bytes + f->at, s.data + f->piece_at, n);
    spend(budget, (n + BYTES_PER_UNIT - 1) / BYTES_PER_UNIT);
    f->at += n;
    f->piece_at += n;
    if (f->piece_at == s.len) {
        f->piece++;
        f->piece_at = 0;
    }
}

/* false: it has to wait. */
static bool from_elsewhere(struct value_fetch *f, unsigned *budget) {
    struct value_piece piece;
    tarn_status status = value_read_next(f->read, &piece);
    if (status == TARN_EAGAIN) return false;
    if (status != TARN_OK || piece.bytes.len == 0 || piece.bytes.len > f->len - f->at) {
        f->failed = true;
        return true;
    }
    memcpy(f->bytes + f->at, piece.bytes.data, piece.bytes.len);
    spend(budget, piece.bytes.len / BYTES_PER_UNIT + 1);
    f->at += piece.bytes.len;
    value_read_give_back(piece.token);
    return true;
}

bool value_fetch_step(struct value_fetch *f, unsigned *budget) {
    f->runnable = true;
    while (f->at < f->len && !f->failed) {
        if (*budget == 0) return false;
        if (!f->read) {
            from_here(f, budget);
        } else if (!from_elsewhere(f, budget)) {
            f->runnable = false;
            return false;
        }
    }
    return true;
}

struct span value_fetch_bytes(const struct value_fetch *f) {
    return f->failed || f->at < f->len ? span_of(NULL, 0) : span_of(f->bytes, f->len);
}

void value_fetch_close(struct value_fetch *f) {
    value_read_close(&f->read);
    if (f->hold) store_unhold(server.store, &f->hold);
    free(f->bytes);
    f->bytes = NULL;
    f->len = f->at = 0;
}
