#include "inband/remote_write.h"

#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "base/crc32c.h"
#include "config/config.h"

struct slot { /* a piece */
    struct remote_write *writer;
    struct remote_op op;
    char *buffer;
    enum { SLOT_FREE, SLOT_FILLING, SLOT_RUNNING } state;
};

struct remote_write {
    struct span key;
    uint64_t token, size, grant_end_ms;
    struct store_replica replica;
    struct remote_session session;
    struct remote_claim *claim;
    void (*ready)(void *arg);
    void *arg;
    bool hurry, aborted;
    uint64_t taken, arrived; /* bytes */
    uint32_t crc, piece_crc; /* of all pieces before the one being filled; of that one so far */
    uint32_t *crcs;          /* NULL for values of one piece */
    tarn_status status;
    bool settled; /* nothing that failed can still arrive */
    unsigned running, slots;
    struct slot slot[REMOTE_WINDOW];
};

static uint64_t piece_count(uint64_t size) {
    return (size + REMOTE_PIECE - 1) / REMOTE_PIECE;
}

struct remote_write *remote_write_open(const struct store_put *put, struct span key, uint64_t size,
                                       struct remote_session *session, struct remote_claim *claim,
                                       bool hurry, void (*ready)(void *arg), void *arg) {
    static_assert(REMOTE_PIECE == STORE_CRC_BLOCK, "a CRC for each piece");
    struct store_layout layout;
    store_put_layout(books, put, &layout);
    TARN_ASSERT(layout.replicas == 1 && layout.replica[0].extents >= 1 && session->id != 0);
    struct remote_write *w = xcalloc(1, sizeof(*w));
    w->key = span_of(xmemdup(key.data, key.len), key.len);
    w->token = store_put_token(put);
    w->size = size;
    w->grant_end_ms = store_put_deadline_ms(put);
    w->replica = layout.replica[0];
    w->session = (struct remote_session){.id = session->id};
    session->id = 0;
    w->claim = remote_claim_ref(claim);
    w->ready = ready;
    w->arg = arg;
    w->hurry = hurry;
    w->settled = true;
    w->slots = (unsigned)min_u64(piece_count(size), REMOTE_WINDOW);
    for (unsigned i = 0; i < w->slots; i++) w->slot[i].writer = w;
    if (size > REMOTE_PIECE) w->crcs = xmalloc(piece_count(size) * sizeof(*w->crcs));
    return w;
}

static void writer_free(struct remote_write *w) {
    for (unsigned i = 0; i < w->slots; i++) free(w->slot[i].buffer);
    remote_claim_unref(&w->claim);
    free((char *)(uintptr_t)w->key.data);
    free(w->crcs);
    free(w);
}

/* The key must not stay taken until the put's time-out: an empty put takes the place of ours, if
 * that still stands, and goes. */
static void let_go_of_key(const struct remote_write *w) {
    struct store_put_options options = {.replicas = 1,
                                        .host = STORE_HOST_NONE,
                                        .replace = true,
                                        .instead = w->token,
                                        .local = true};
    struct store_batch batch;
    struct store_put *put;
    unsigned budget = job_quota();
    store_batch_begin(books, &batch, NULL, STORE_BATCH_PUT, 1);
    tarn_status status =
        store_put_start(books, &batch, w->key, 0, &options, w->session.id, &budget, &put);
    if (status == TARN_OK)
        store_put_revoke(books, w->key, store_put_token(put));
    else if (status == TARN_EAGAIN)
        store_put_abandon(books, &put);
}

/* Nothing of it is under way here any more. */
static void give_up(struct remote_write *w) {
    if (w->settled) {
        store_put_revoke(books, w->key, w->token);
    } else {
        let_go_of_key(w);
        remote_stats.inband_write_fenced++;
    }
    remote_session_give(&w->session, w->settled);
    writer_free(w);
}

static void fail(struct remote_write *w, tarn_status status) {
    if (w->status == TARN_OK) w->status = status;
}

static void on_done(struct remote_op *op, tarn_status status) {
    struct slot *s = op->arg;
    struct remote_write *w = s->writer;
    w->running--;
    s->state = SLOT_FREE;
    w->settled &= op->settled;
    if (status == TARN_OK)
        w->arrived += op->len;
    else
        fail(w, status);
    if (!w->aborted)
        w->ready(w->arg);
    else if (w->running == 0)
        give_up(w);
}

static void send_piece(struct remote_write *w, struct slot *s, uint64_t from, uint64_t len) {
    s->op = (struct remote_op){.replica = &w->replica,
                               .key = w->key,
                               .version = w->token,
                               .from = from,
                               .len = len,
                               .memory = s->buffer,
                               .write = true,
                               .session = w->session.id,
                               .grant_end_ms = w->grant_end_ms,
                               .hurry = w->hurry,
                               .done = on_done,
                               .arg = s};
    tarn_status status = remote_start(&s->op);
    if (status != TARN_OK) {
        s->state = SLOT_FREE;
        fail(w, status);
        return;
    }
    s->state = SLOT_RUNNING;
    w->running++;
}

static void piece_complete(struct remote_write *w, struct slot *s) {
    uint64_t piece = (w->taken - 1) / REMOTE_PIECE, from = piece * REMOTE_PIECE,
             len = w->taken - from;
    if (w->crcs) w->crcs[piece] = w->piece_crc;
    w->crc = piece == 0 ? w->piece_crc : crc32c_combine(w->crc, w->piece_crc, len);
    w->piece_crc = 0;
    send_piece(w, s, from, len);
}

size_t remote_write_add(struct remote_write *w, const char *data, size_t len) {
    TARN_ASSERT(!w->aborted && len <= w->size - w->taken);
    size_t done = 0;
    while (done < len && w->status == TARN_OK) {
        uint64_t piece = w->taken / REMOTE_PIECE, at = w->taken % REMOTE_PIECE;
        uint64_t piece_len = min_u64(REMOTE_PIECE, w->size - piece * REMOTE_PIECE);
        struct slot *s = &w->slot[piece % w->slots];
        if (s->state == SLOT_RUNNING) break;
        if (!s->buffer) /* the first piece is the largest */
            s->buffer = xmalloc(min_u64(REMOTE_PIECE, w->size));
        s->state = SLOT_FILLING;
        size_t n = min_u64(len - done, piece_len - at);
        if (data) {
            w->piece_crc = crc32c_copy(w->piece_crc, s->buffer + at, data + done, n);
        } else {
            memset(s->buffer + at, 0, n);
            w->piece_crc = crc32c(w->piece_crc, s->buffer + at, n);
        }
        w->taken += n;
        done += n;
        if (at + n == piece_len) piece_complete(w, s);
    }
    return done;
}

tarn_status remote_write_status(const struct remote_write *w) {
    if (w->status != TARN_OK) return w->status;
    return w->arrived == w->size ? TARN_OK : TARN_EAGAIN;
}

uint32_t remote_write_segment(const struct remote_write *w) {
    return w->replica.extent[0].segment;
}

tarn_status remote_write_end(struct remote_write **w_p) {
    struct remote_write *w = *w_p;
    *w_p = NULL;
    TARN_ASSERT(remote_write_status(w) == TARN_OK && w->running == 0);
    size_t blocks = w->crcs ? piece_count(w->size) : 0;
    tarn_status status = store_put_end(books, w->key, w->token, w->crc, 0, w->crcs, blocks, NULL);
    if (status == TARN_OK) {
        remote_session_give(&w->session, true);
        writer_free(w);
        return TARN_OK;
    }
    give_up(w); /* for want of a record, or of its segment, the put may still be open */
    return status == TARN_EBUSY ? TARN_ETOKEN : status;
}

void remote_write_abort(struct remote_write **w_p) {
    struct remote_write *w = *w_p;
    *w_p = NULL;
    if (!w) return;
    w->aborted = true;
    for (unsigned i = 0; i < w->slots; i++)
        if (w->slot[i].state == SLOT_RUNNING) remote_cancel(&w->slot[i].op);
    if (w->running == 0) give_up(w);
}
