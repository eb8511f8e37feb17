#include "inband/value_write.h"

#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "base/crc32c.h"
#include "base/iov.h"
#include "config/config.h"
#include "front/embedded.h"
#include "inband/own_memory.h"

struct write_piece {
    struct value_write *write;
    struct remote_op op;
    char *buffer;
};

struct value_write {
    struct span key;
    uint64_t token, size, taken, arrived; /* bytes */
    uint32_t crc, block_crc; /* of all blocks before the one being taken; of that one so far */
    uint32_t *crcs;          /* NULL for values of one block */
    struct store_replica replica;
    /* in this process */
    struct iovec memory[STORE_EXTENTS_MAX];
    struct iov_cursor to;
    /* elsewhere: a block is a piece */
    struct remote_session session;
    struct value_way way;
    uint64_t grant_end_ms;
    tarn_status status;
    bool aborted, settled; /* settled: nothing that failed can still arrive */
    unsigned running, pieces;
    struct write_piece piece[]; /* and the key */
};

static uint64_t block_count(uint64_t size) {
    return (size + STORE_CRC_BLOCK - 1) / STORE_CRC_BLOCK;
}

struct store_put_options value_write_options(uint64_t size, uint64_t expire_wall_ms) {
    static const struct span local = {"local", 5};
    bool choice = size > STORE_INLINE_MAX && embedded.host && store_segment_count(books) > 1;
    return (struct store_put_options){.replicas = 1,
                                      .host = 0,
                                      .expire_wall_ms = expire_wall_ms,
                                      .prefer = &local,
                                      .prefers = choice,
                                      .replace = true,
                                      .supersede = true,
                                      .local = true};
}

struct value_write *value_write_open(const struct store_put *put, struct span key, uint64_t size,
                                     const struct value_way *way) {
    static_assert(REMOTE_PIECE == STORE_CRC_BLOCK, "a CRC for each piece");
    struct store_layout layout;
    store_put_layout(books, put, &layout);
    TARN_ASSERT(layout.replicas >= 1 && layout.replica[0].extents >= 1);
    bool local = replica_is_local(&layout.replica[0]);
    if (!local && way == NULL) return NULL;
    unsigned pieces = local ? 0 : (unsigned)min_u64(block_count(size), REMOTE_WINDOW);
    struct value_write *w = xcalloc(1, sizeof(*w) + pieces * sizeof(w->piece[0]) + key.len);
    w->key = span_of(memcpy(&w->piece[pieces], key.data, key.len), key.len);
    w->token = store_put_token(put);
    w->size = size;
    w->replica = layout.replica[0];
    w->settled = true;
    if (size > STORE_CRC_BLOCK) w->crcs = xmalloc(block_count(size) * sizeof(*w->crcs));
    if (local) {
        w->to = iov_cursor(w->memory, replica_pieces(&w->replica, 0, size, w->memory));
        return w;
    }
    TARN_ASSERT(layout.replicas == 1 && way->session->id != 0);
    w->way = *way;
    w->session.id = way->session->id;
    way->session->id = 0;
    remote_claim_ref(way->claim);
    w->grant_end_ms = store_put_deadline_ms(put);
    w->pieces = pieces;
    for (unsigned i = 0; i < pieces; i++) w->piece[i].write = w;
    return w;
}

bool value_write_is_local(const struct value_write *w) {
    return w->pieces == 0;
}

uint64_t value_write_size(const struct value_write *w) {
    return w->size;
}

uint64_t value_write_left(const struct value_write *w) {
    return w->size - w->taken;
}

uint32_t value_write_segment(const struct value_write *w) {
    return w->replica.extent[0].segment;
}

static void write_free(struct value_write *w) {
    for (unsigned i = 0; i < w->pieces; i++) free(w->piece[i].buffer);
    remote_claim_unref(&w->way.claim);
    free(w->crcs);
    free(w);
}

/* The key must not stay taken until the put's time-out: an empty put takes the place of ours, if
 * that still stands, and goes. */
static void let_go_of_key(const struct value_write *w) {
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
static void write_give_up(struct value_write *w) {
    if (w->settled) {
        store_put_revoke(books, w->key, w->token);
    } else {
        let_go_of_key(w);
        remote_stats.inband_write_fenced++;
    }
    remote_session_give(&w->session, w->settled);
    write_free(w);
}

static void write_fail(struct value_write *w, tarn_status status) {
    if (w->status == TARN_OK) w->status = status;
}

/* --- pieces on their way elsewhere --- */

static void on_sent(struct remote_op *op, tarn_status status) {
    struct value_write *w = ((struct write_piece *)op->arg)->write;
    w->running--;
    w->settled &= op->settled;
    if (status == TARN_OK)
        w->arrived += op->len;
    else
        write_fail(w, status);
    if (!w->aborted)
        w->way.ready(w->way.arg);
    else if (w->running == 0)
        write_give_up(w);
}

static struct write_piece *piece_at(struct value_write *w, uint64_t at) {
    return &w->piece[at / REMOTE_PIECE % w->pieces];
}

static void piece_send(struct value_write *w, uint64_t from, uint64_t len) {
    struct write_piece *p = piece_at(w, from);
    p->op = (struct remote_op){.replica = &w->replica,
                               .key = w->key,
                               .version = w->token,
                               .from = from,
                               .len = len,
                               .memory = p->buffer,
                               .write = true,
                               .session = w->session.id,
                               .grant_end_ms = w->grant_end_ms,
                               .hurry = w->way.hurry,
                               .done = on_sent,
                               .arg = p};
    tarn_status status = remote_start(&p->op);
    if (status == TARN_OK)
        w->running++;
    else
        write_fail(w, status);
}

/* --- taking bytes --- */

/* The memory of the next bytes, not beyond a block; of length 0: there is none now. */
static struct iovec write_room(struct value_write *w) {
    uint64_t at = w->taken % STORE_CRC_BLOCK;
    uint64_t block_left = min_u64(STORE_CRC_BLOCK - at, w->size - w->taken);
    if (w->pieces == 0) {
        struct iovec here = iov_here(&w->to);
        return (struct iovec){here.iov_base, min_u64(here.iov_len, block_left)};
    }
    struct write_piece *p = piece_at(w, w->taken);
    if (remote_under_way(&p->op)) return (struct iovec){NULL, 0};
    if (!p->buffer) /* the first piece is the largest */
        p->buffer = xmalloc(min_u64(REMOTE_PIECE, w->size));
    return (struct iovec){p->buffer + at, block_left};
}

static void write_advance(struct value_write *w, size_t n) {
    w->taken += n;
    if (w->pieces == 0) {
        w->arrived += n;
        iov_advance(&w->to, n);
    }
    if (w->taken < w->size && w->taken % STORE_CRC_BLOCK != 0) return;
    uint64_t block = (w->taken - 1) / STORE_CRC_BLOCK, from = block * STORE_CRC_BLOCK,
             len = w->taken - from;
    if (w->crcs) w->crcs[block] = w->block_crc;
    w->crc = block == 0 ? w->block_crc : crc32c_combine(w->crc, w->block_crc, len);
    w->block_crc = 0;
    if (w->pieces > 0) piece_send(w, from, len);
}

size_t value_write_add(struct value_write *w, const char *data, size_t len) {
    TARN_ASSERT(!w->aborted && len <= w->size - w->taken);
    size_t done = 0;
    while (done < len && w->status == TARN_OK) {
        struct iovec room = write_room(w);
        size_t n = min_u64(len - done, room.iov_len);
        if (n == 0) break;
        if (data) {
            w->block_crc = crc32c_copy(w->block_crc, room.iov_base, data + done, n);
        } else {
            memset(room.iov_base, 0, n);
            w->block_crc = crc32c(w->block_crc, room.iov_base, n);
        }
        write_advance(w, n);
        done += n;
    }
    return done;
}

size_t value_write_next(const struct value_write *w, struct iovec iov[STORE_EXTENTS_MAX]) {
    return iov_gather(w->to, UINT64_MAX, iov, STORE_EXTENTS_MAX);
}

void value_write_filled(struct value_write *w, size_t len) {
    for (size_t n; len > 0; len -= n) {
        struct iovec room = write_room(w);
        n = min_u64(len, room.iov_len);
        w->block_crc = crc32c(w->block_crc, room.iov_base, n);
        write_advance(w, n);
    }
}

/* --- the end --- */

tarn_status value_write_status(const struct value_write *w) {
    if (w->status != TARN_OK) return w->status;
    return w->arrived == w->size ? TARN_OK : TARN_EAGAIN;
}

tarn_status value_write_end(struct value_write **w_p) {
    struct value_write *w = *w_p;
    *w_p = NULL;
    TARN_ASSERT(value_write_status(w) == TARN_OK && w->running == 0);
    size_t blocks = w->crcs ? block_count(w->size) : 0;
    tarn_status status = store_put_end(books, w->key, w->token, w->crc, 0, w->crcs, blocks, NULL);
    if (status != TARN_OK) {
        write_give_up(w); /* for want of a record, or of its segment, the put may still be open */
        return status == TARN_EBUSY ? TARN_ETOKEN : status;
    }
    remote_session_give(&w->session, true);
    write_free(w);
    return TARN_OK;
}

void value_write_abort(struct value_write **w_p) {
    struct value_write *w = *w_p;
    *w_p = NULL;
    if (!w) return;
    w->aborted = true;
    for (unsigned i = 0; i < w->pieces; i++) remote_cancel(&w->piece[i].op);
    if (w->running == 0) write_give_up(w);
}
