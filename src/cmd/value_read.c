#include "cmd/value_read.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "cmd/replica_check.h"

enum { FAILED_MAX = 2 * STORE_REPLICAS_MAX }; /* replicas may come while it reads */

struct slot { /* a piece */
    struct value_read *reader;
    struct remote_op op;
    struct iovec iov[STORE_EXTENTS_MAX];
    char *buffer;
    size_t cap;
    uint64_t piece;
    uint32_t segment; /* where it is read from */
    enum { SLOT_FREE, SLOT_RUNNING, SLOT_READY, SLOT_LENT } state;
};

struct value_read {
    uint64_t from, len;
    uint32_t only;
    bool sum;
    struct iovec into[STORE_EXTENTS_MAX];
    size_t n_into;
    void (*ready)(void *arg);
    void *arg;
    /* the object */
    struct span key;
    uint64_t version, size;
    struct store_hold *hold;
    struct store_layout layout;
    bool has_crc;
    uint32_t crc;
    uint32_t *crcs; /* of blocks from first_block on, NULL: none are known (yet) */
    uint64_t first_block;
    /* progress */
    bool summing;    /* the first of two passes: crcs are being made, all from one replica */
    bool redo;       /* that one failed in the middle: what it gave does not count */
    uint32_t source; /* its segment, STORE_SEGMENT_ANY: none yet */
    uint64_t start,
        /* range that is read in this pass: what was asked for, out to the borders of its CRCs */
        end;
    uint64_t piece_size, pieces, next_start, next_out;
    uint32_t failed[FAILED_MAX]; /* segments */
    unsigned n_failed;
    tarn_status status; /* no replica is left */
    bool corrupt, closed;
    unsigned running, lent;
    struct remote_claim *claim;
    unsigned slots;
    struct slot slot[];
};

/* --- which bytes, from where --- */

static uint64_t piece_at(const struct value_read *r, uint64_t piece) {
    return r->start + piece * r->piece_size;
}

static uint64_t piece_len(const struct value_read *r, uint64_t piece) {
    return min_u64(r->piece_size, r->end - piece_at(r, piece));
}

static void set_pass(struct value_read *r, uint64_t start, uint64_t end) {
    r->start = start;
    r->end = end;
    r->piece_size = min_u64(end - start, REMOTE_PIECE);
    r->pieces = (end - start + r->piece_size - 1) / r->piece_size;
    r->next_start = r->next_out = 0;
}

/* The pass that hands bytes out. */
static void set_reading(struct value_read *r) {
    uint64_t start = r->from, end = r->from + r->len;
    r->summing = false;
    if (r->has_crc && r->size <= STORE_CRC_BLOCK) {
        start = 0;
        end = r->size;
    } else if (r->crcs) {
        start -= start % STORE_CRC_BLOCK;
        end = min_u64(r->size, (end + STORE_CRC_BLOCK - 1) / STORE_CRC_BLOCK * STORE_CRC_BLOCK);
    }
    set_pass(r, start, end);
}

static void set_summing(struct value_read *r) {
    r->summing = true;
    set_pass(r, 0, r->size);
}

static void copy_crcs(struct value_read *r, const struct object *o) {
    size_t n;
    const uint32_t *crcs = store_object_crcs(server.store, o, &n);
    if (!crcs || n == 0) return;
    r->first_block = r->from / STORE_CRC_BLOCK;
    uint64_t last = (r->from + r->len - 1) / STORE_CRC_BLOCK;
    TARN_ASSERT(last < n);
    r->crcs = xmemdup(crcs + r->first_block, (last - r->first_block + 1) * sizeof(*crcs));
}

/* Replicas come and go. As long as the object is there the books know best; afterwards what is held
 * stays where it was, and far ones as long as their hosts wait for readers, which their lease
 * knows. */
static void refresh(struct value_read *r) {
    struct object *o = store_find(server.store, r->key);
    if (!o || store_object_version(o) != r->version) return;
    store_object_layout(server.store, o, &r->layout);
    remote_order(&r->layout);
}

static bool has_failed(const struct value_read *r, uint32_t segment) {
    for (unsigned i = 0; i < r->n_failed; i++)
        if (r->failed[i] == segment) return true;
    return false;
}

static bool usable(const struct value_read *r, const struct store_replica *replica) {
    if (replica->extents == 0) return false;
    uint32_t segment = replica->extent[0].segment;
    return !has_failed(r, segment) && (r->only == STORE_SEGMENT_ANY || r->only == segment);
}

/* The best that is left; *others_p: how many more there are. */
static const struct store_replica *choose(const struct value_read *r, unsigned *others_p) {
    const struct store_replica *best = NULL;
    unsigned n = 0;
    for (uint32_t i = 0; i < r->layout.replicas; i++) {
        const struct store_replica *replica = &r->layout.replica[i];
        if (!usable(r, replica)) continue;
        if (n++ == 0 || (r->summing && replica->extent[0].segment == r->source)) best = replica;
    }
    *others_p = n > 0 ? n - 1 : 0;
    return best;
}

static void leave_replica(struct value_read *r, uint32_t segment, tarn_status why) {
    unsigned others;
    if (has_failed(r, segment)) return;
    if (r->n_failed == FAILED_MAX) { /* enough is enough */
        r->status = why;
        return;
    }
    r->failed[r->n_failed++] = segment;
    refresh(r);
    if (choose(r, &others))
        remote_stats.inband_failovers++;
    else
        r->status = why;
}

/* --- verifying --- */

static bool piece_is_right(struct value_read *r, uint64_t piece, uint32_t crc) {
    uint64_t block = piece_at(r, piece) / STORE_CRC_BLOCK;
    if (r->summing) {
        r->crcs[block] = crc; /* judged when all are there */
        return true;
    }
    if (r->crcs) return r->crcs[block - r->first_block] == crc;
    return !r->has_crc || r->size > STORE_CRC_BLOCK || r->crc == crc;
}

static bool sums_are_right(const struct value_read *r) {
    uint32_t all = 0;
    for (uint64_t i = 0; i < r->pieces; i++) all = crc32c_combine(all, r->crcs[i], piece_len(r, i));
    return all == r->crc;
}

static void found_corrupt(struct value_read *r, uint32_t segment) {
    remote_stats.inband_corrupt++;
    r->corrupt = true;
    log_warning("A replica in segment %u is not what was put: version %" PRIu64 ", %" PRIu64
                " bytes",
                segment, r->version, r->size);
}

/* --- pieces --- */

static void *slot_buffer(struct slot *s, uint64_t len) {
    if (s->cap < len) {
        free(s->buffer);
        s->buffer = xmalloc(len);
        s->cap = len;
    }
    return s->buffer;
}

/* Where [at, at + len) of the value belongs. */
static size_t slice_into(const struct value_read *r, uint64_t at, uint64_t len, struct iovec *out) {
    size_t n = 0;
    for (size_t i = 0; i < r->n_into && len > 0; i++) {
        if (at >= r->into[i].iov_len) {
            at -= r->into[i].iov_len;
            continue;
        }
        uint64_t take = min_u64(len, r->into[i].iov_len - at);
        out[n++] = (struct iovec){(char *)r->into[i].iov_base + at, take};
        len -= take;
        at = 0;
    }
    TARN_ASSERT(len == 0);
    return n;
}

/* From this process' own memory to the slot's, or nowhere. Returns the CRC. */
static uint32_t copy_local(const struct store_replica *replica, const struct slot *s, uint64_t from,
                           uint64_t len) {
    const struct remote_op *op = &s->op;
    uint32_t crc = 0;
    size_t piece = 0, offset = 0;
    for (uint32_t i = 0; i < replica->extents && len > 0; i++) {
        const struct store_extent *x = &replica->extent[i];
        if (from >= x->length) {
            from -= x->length;
            continue;
        }
        const char *src = extent_memory(x) + from;
        for (uint64_t left = min_u64(len, x->length - from); left > 0;) {
            uint64_t n = op->n_iov ? min_u64(left, op->iov[piece].iov_len - offset) : left;
            crc = op->n_iov ? crc32c_copy(crc, (char *)op->iov[piece].iov_base + offset, src, n)
                            : crc32c(crc, src, n);
            src += n;
            left -= n;
            len -= n;
            offset += n;
            if (op->n_iov && offset == op->iov[piece].iov_len) piece++, offset = 0;
        }
        from = 0;
    }
    return crc;
}

static void piece_failed(struct slot *s, tarn_status status) {
    struct value_read *r = s->reader;
    s->state = SLOT_FREE;
    r->redo = r->summing;
    leave_replica(r, s->segment, status);
}

static void piece_arrived(struct slot *s, uint32_t crc) {
    struct value_read *r = s->reader;
    if (piece_is_right(r, s->piece, crc)) {
        s->state = SLOT_READY;
        return;
    }
    found_corrupt(r, s->segment);
    piece_failed(s, TARN_ECORRUPT);
}

static void on_done(struct remote_op *op, tarn_status status);

static void prepare(struct slot *s, const struct store_replica *replica, uint64_t piece,
                    bool hurry) {
    struct value_read *r = s->reader;
    uint64_t at = piece_at(r, piece), len = piece_len(r, piece);
    bool local = replica_is_local(replica);
    s->piece = piece;
    s->segment = r->source = replica->extent[0].segment;
    s->op = (struct remote_op){.replica = replica,
                               .key = r->key,
                               .version = r->version,
                               .from = at,
                               .len = len,
                               .iov = s->iov,
                               .hurry = hurry,
                               .sum = r->has_crc || r->crcs,
                               .done = on_done,
                               .arg = s};
    if (r->n_into) {
        s->op.n_iov = slice_into(r, at, len, s->iov);
    } else if (!(r->sum && local)) {
        s->iov[0] = (struct iovec){slot_buffer(s, len), len};
        s->op.n_iov = 1;
    }
}

/* Takes the piece from the best replica, and from the next where that does not even begin.
 * *local_p: it was there at once. */
static void begin_piece(struct slot *s, uint64_t piece, bool *local_p) {
    struct value_read *r = s->reader;
    unsigned others;
    while (r->status == TARN_OK && !r->redo) {
        const struct store_replica *replica = choose(r, &others);
        if (!replica) {
            r->status = TARN_ENOSEGMENT;
            return;
        }
        prepare(s, replica, piece, others > 0);
        if (replica_is_local(replica)) {
            *local_p = true;
            piece_arrived(s, copy_local(replica, s, s->op.from, s->op.len));
            if (s->state == SLOT_READY) return;
            continue;
        }
        tarn_status status = remote_start(&s->op);
        if (status == TARN_OK) {
            s->state = SLOT_RUNNING;
            r->running++;
            return;
        }
        piece_failed(s, status);
    }
}

static struct slot *slot_of(struct value_read *r, uint64_t piece) {
    return &r->slot[piece % r->slots];
}

/* A first pass begins anew, once what is under way has ended. */
static void restart_summing(struct value_read *r) {
    if (r->running > 0) return;
    for (unsigned i = 0; i < r->slots; i++) r->slot[i].state = SLOT_FREE;
    r->next_start = r->next_out = 0;
    r->source = STORE_SEGMENT_ANY;
    r->redo = false;
}

/* Begins pieces as far as there are slots; of those that are copied here and now, one at a time. */
static void pump(struct value_read *r) {
    bool local = false;
    if (!remote_claim_granted(r->claim)) return;
    if (r->redo) restart_summing(r);
    if (r->next_start < r->pieces && r->status == TARN_OK) refresh(r);
    while (r->status == TARN_OK && !r->redo && r->next_start < r->pieces && !local) {
        struct slot *s = slot_of(r, r->next_start);
        if (s->state != SLOT_FREE) return;
        begin_piece(s, r->next_start, &local);
        if (s->state != SLOT_FREE) r->next_start++;
    }
}

static void sums_complete(struct value_read *r) {
    if (!sums_are_right(r)) {
        uint32_t segment = slot_of(r, r->pieces - 1)->segment;
        found_corrupt(r, segment);
        leave_replica(r, segment, TARN_ECORRUPT);
        restart_summing(r);
        return;
    }
    r->first_block = 0;
    if (r->n_into || r->sum)
        r->summing = false; /* read is read; next_out says so */
    else
        set_reading(r);
}

static void reader_free(struct value_read *r) {
    if (!r->closed || r->running > 0 || r->lent > 0) return;
    for (unsigned i = 0; i < r->slots; i++) free(r->slot[i].buffer);
    remote_claim_unref(&r->claim);
    free((char *)(uintptr_t)r->key.data);
    free(r->crcs);
    free(r);
}

static bool worth_telling(struct value_read *r) {
    return r->status != TARN_OK || r->running == 0 || r->summing || r->next_out == r->pieces ||
           slot_of(r, r->next_out)->state == SLOT_READY;
}

static void on_done(struct remote_op *op, tarn_status status) {
    struct slot *s = op->arg;
    struct value_read *r = s->reader;
    r->running--;
    if (r->closed) {
        s->state = SLOT_FREE;
        reader_free(r);
        return;
    }
    bool local = false;
    if (status == TARN_OK)
        piece_arrived(s, op->crc);
    else
        piece_failed(s, status);
    if (s->state == SLOT_FREE)
        begin_piece(s, s->piece, &local); /* from the next replica; not in a first pass */
    if (worth_telling(r)) r->ready(r->arg);
}

/* --- the caller's side --- */

static void on_claim(void *arg) {
    struct value_read *r = arg;
    r->ready(r->arg);
}

struct value_read *value_read_open(struct object *o, const struct value_read_options *options) {
    uint64_t size = store_object_size(server.store, o);
    TARN_ASSERT(options->len > 0 && options->from <= size && options->len <= size - options->from);
    TARN_ASSERT(options->n_into <= STORE_EXTENTS_MAX && (!options->into || options->len == size));
    struct value_read *r = xcalloc(1, sizeof(*r) + REMOTE_WINDOW * sizeof(struct slot));
    r->from = options->from;
    r->len = options->len;
    r->only = options->only;
    r->sum = options->sum;
    r->source = STORE_SEGMENT_ANY;
    r->n_into = options->into ? options->n_into : 0;
    if (r->n_into) memcpy(r->into, options->into, r->n_into * sizeof(*r->into));
    r->ready = options->ready;
    r->arg = options->arg;
    struct span key = store_object_key(o);
    r->key = span_of(xmemdup(key.data, key.len), key.len);
    r->version = store_object_version(o);
    r->size = size;
    r->has_crc = store_object_crc(o, &r->crc);
    copy_crcs(r, o);
    r->hold = store_hold(server.store, o);
    store_object_layout(server.store, o, &r->layout);
    remote_order(&r->layout);
    if (r->has_crc && !r->crcs && size > STORE_CRC_BLOCK) {
        r->crcs = xcalloc((size + STORE_CRC_BLOCK - 1) / STORE_CRC_BLOCK, sizeof(*r->crcs));
        set_summing(r);
    } else {
        set_reading(r);
    }
    r->slots = (unsigned)min_u64(r->pieces, REMOTE_WINDOW);
    for (unsigned i = 0; i < r->slots; i++) r->slot[i].reader = r;
    r->claim = options->claim ? remote_claim_ref(options->claim)
                              : remote_claim_new(r->n_into ? 0 : remote_window(r->end - r->start),
                                                 options->client, on_claim, r);
    return r;
}

/* What was asked for of a piece that is ready. */
static struct span wanted(const struct value_read *r, const struct slot *s) {
    uint64_t at = piece_at(r, s->piece), end = at + piece_len(r, s->piece);
    uint64_t first = max_u64(at, r->from), last = min_u64(end, r->from + r->len);
    bool buffered = !r->sum && !r->n_into;
    return span_of(buffered ? s->buffer + (first - at) : NULL, last - first);
}

/* As far as it goes without handing anything out. TARN_OK: a piece is ready, or this is the end. */
static tarn_status advance(struct value_read *r) {
    for (;;) {
        pump(r);
        if (r->next_out == r->pieces && r->summing) {
            sums_complete(r);
            continue;
        }
        if (r->next_out == r->pieces) return TARN_OK;
        struct slot *s = slot_of(r, r->next_out);
        if (s->state != SLOT_READY || s->piece != r->next_out) break;
        if (!r->summing || r->n_into || r->sum) return TARN_OK;
        s->state = SLOT_FREE; /* its sum is all that was wanted */
        r->next_out++;
    }
    if (r->status != TARN_OK) return r->status;
    if (r->running == 0 && r->lent > 0) remote_claim_stalled(r->claim, true);
    return TARN_EAGAIN;
}

tarn_status value_read_peek(struct value_read *r) {
    return advance(r);
}

tarn_status value_read_next(struct value_read *r, struct value_piece *piece_p) {
    tarn_status status = advance(r);
    if (status != TARN_OK) return status;
    *piece_p = (struct value_piece){.bytes = span_of(NULL, 0)};
    if (r->next_out == r->pieces) return TARN_OK;
    struct slot *s = slot_of(r, r->next_out++);
    piece_p->bytes = wanted(r, s);
    if (r->sum || r->n_into) {
        s->state = SLOT_FREE;
        return TARN_OK;
    }
    s->state = SLOT_LENT;
    r->lent++;
    piece_p->token = s;
    return TARN_OK;
}

void value_read_give_back(void *token) {
    struct slot *s = token;
    struct value_read *r = s->reader;
    TARN_ASSERT(s->state == SLOT_LENT);
    s->state = SLOT_FREE;
    r->lent--;
    if (r->closed) {
        if (r->lent > 0) remote_claim_stalled(r->claim, true); /* since now: it does read */
        reader_free(r);
        return;
    }
    remote_claim_stalled(r->claim, false);
    if (r->next_start < r->pieces) r->ready(r->arg);
}

void value_read_close(struct value_read **r_p) {
    struct value_read *r = *r_p;
    *r_p = NULL;
    if (!r) return;
    r->closed = true;
    for (unsigned i = 0; i < r->slots; i++)
        if (r->slot[i].state == SLOT_RUNNING) remote_cancel(&r->slot[i].op);
    store_unhold(server.store, &r->hold);
    if (r->corrupt && r->only == STORE_SEGMENT_ANY) replica_suspect(r->key, r->version);
    if (r->lent > 0) remote_claim_stalled(r->claim, true); /* all it waits for is the client */
    reader_free(r);
}

bool value_read_idle(const struct value_read *r) {
    return r->running == 0;
}

bool value_read_found_corrupt(const struct value_read *r) {
    return r->corrupt;
}
