#include "inband/value_read.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "base/crc32c.h"
#include "base/iov.h"
#include "base/log.h"
#include "front/client.h"
#include "front/core.h"
#include "inband/own_memory.h"
#include "inband/replica_check.h"
#include "engine/placed.h"

enum { PIECES_PER_TURN = 2 }; /* of own memory: some 200 us */

struct slot { /* a piece */
    struct value_read *reader;
    struct remote_op op; /* from, len: which bytes; crc: of those that have arrived */
    struct iovec iov[STORE_EXTENTS_MAX];
    char *buffer;     /* as large as its first piece: later ones are not larger */
    unsigned replica; /* it comes from: its number */
    enum { SLOT_FREE, SLOT_RUNNING, SLOT_ARRIVED, SLOT_READY, SLOT_LENT } state;
};

struct value_read {
    uint64_t from, len;
    uint32_t only;
    bool sum;
    struct iovec into[STORE_EXTENTS_MAX];
    size_t n_into;
    void (*ready)(void *arg);
    void (*done)(void *arg, tarn_status status);
    void *arg;
    struct net_timer timer; /* of one that runs by itself: its next turn */
    /* the object */
    struct span key;
    struct store_hold *hold;
    struct store_layout layout;
    uint32_t *crcs; /* known ones, or those that are learned; read.value says which */
    /* progress */
    struct placed_read read;
    bool proving; /* the first of two passes, whose bytes are dropped */
    uint64_t next_start, next_out;
    uint32_t number[PLACED_REPLICAS_MAX]; /* replicas' segments, by number */
    unsigned n_numbers;
    tarn_status why;    /* the last replica failed */
    tarn_status status; /* no replica is left */
    bool closed;
    unsigned running, lent;
    struct remote_claim *claim;
    unsigned slots;
    struct slot slot[];
};

/* --- which bytes, from where --- */

static bool is_buffered(const struct value_read *r) {
    return !r->sum && r->n_into == 0;
}

static void set_range(struct value_read *r) {
    placed_read_range(&r->read, r->from, r->len, PLACED_VERIFY | PLACED_IN_PIECES);
    r->proving = is_buffered(r) && r->read.check == PLACED_WHOLE && r->read.to > REMOTE_PIECE;
    r->next_start = r->next_out = r->read.from;
}

static struct slot *slot_of(struct value_read *r, uint64_t at) {
    return &r->slot[(at - r->read.from) / REMOTE_PIECE % r->slots];
}

static void copy_crcs(struct value_read *r, const struct object *o, struct placed_value *v) {
    size_t n;
    const uint32_t *crcs = store_object_crcs(books, o, &n);
    if (!crcs || n == 0) return;
    v->first_block = r->from / STORE_CRC_BLOCK;
    uint64_t last = (r->from + r->len - 1) / STORE_CRC_BLOCK;
    TARN_ASSERT(last < n);
    v->crcs = r->crcs = xmemdup(crcs + v->first_block, (last - v->first_block + 1) * sizeof(*crcs));
}

/* Replicas come and go. As long as the object is there the books know best; afterwards what is held
 * stays where it was, and far ones as long as their hosts wait for readers, which their lease
 * knows. */
static void layout_refresh(struct value_read *r) {
    struct object *o = store_find(books, r->key);
    if (!o || store_object_version(o) != r->read.value.version) return;
    store_object_layout(books, o, &r->layout);
    remote_order(&r->layout);
}

/* PLACED_REPLICAS_MAX: enough is enough. */
static unsigned number_of(struct value_read *r, uint32_t segment) {
    unsigned i = 0;
    while (i < r->n_numbers && r->number[i] != segment) i++;
    if (i == r->n_numbers && i < PLACED_REPLICAS_MAX) r->number[r->n_numbers++] = segment;
    return i;
}

static bool is_silent(void *arg, unsigned replica) {
    const struct value_read *r = arg;
    return remote_is_silent(r->number[replica]);
}

/* NULL: none is left. *hurry_p: there are others. */
static const struct store_replica *replica_choose(struct value_read *r, bool *hurry_p) {
    const struct store_replica *found[STORE_REPLICAS_MAX];
    uint8_t order[STORE_REPLICAS_MAX];
    unsigned n = 0, before = r->read.at;
    for (uint32_t i = 0; i < r->layout.replicas; i++) {
        const struct store_replica *replica = &r->layout.replica[i];
        if (replica->extents == 0) continue;
        uint32_t segment = replica->extent[0].segment;
        unsigned number = number_of(r, segment);
        if (number == PLACED_REPLICAS_MAX) continue;
        if (r->only != STORE_SEGMENT_ANY && r->only != segment) continue;
        found[n] = replica;
        order[n++] = (uint8_t)number;
    }
    unsigned i = placed_read_choose(&r->read, order, n, is_silent, r);
    *hurry_p = placed_read_has_other(&r->read, order, n, NULL, NULL);
    if (i == n) return NULL;
    if (r->why != TARN_ENOSEGMENT && r->read.at != before) remote_stats.inband_failovers++;
    return found[i];
}

/* --- pieces --- */

/* From this process' own memory to the slot's, or nowhere. */
static void copy_local(struct slot *s) {
    struct remote_op *op = &s->op;
    struct iovec from[STORE_EXTENTS_MAX];
    size_t n = replica_pieces(op->replica, op->from, op->len, from);
    struct iov_cursor to = iov_cursor(op->iov, op->n_iov);
    op->crc = 0;
    for (size_t i = 0; i < n; i++) {
        const char *data = from[i].iov_base, *end = data + from[i].iov_len;
        for (size_t k; data < end; data += k) {
            char *here = op->n_iov > 0 ? iov_here(&to).iov_base : NULL;
            k = here ? min_u64((uint64_t)(end - data), iov_here(&to).iov_len)
                     : (size_t)(end - data);
            op->crc = here ? crc32c_copy(op->crc, here, data, k) : crc32c(op->crc, data, k);
            iov_advance(&to, here ? k : 0);
        }
    }
    s->state = SLOT_ARRIVED;
}

static void on_piece(struct remote_op *op, tarn_status status);

static void piece_prepare(struct slot *s, const struct store_replica *replica, uint64_t at,
                          bool hurry) {
    struct value_read *r = s->reader;
    uint64_t len = min_u64(REMOTE_PIECE, r->read.to - at);
    s->replica = r->read.at;
    s->op = (struct remote_op){.replica = replica,
                               .key = r->key,
                               .version = r->read.value.version,
                               .from = at,
                               .len = len,
                               .iov = s->iov,
                               .hurry = hurry,
                               .sum = r->read.check != PLACED_UNCHECKED,
                               .done = on_piece,
                               .arg = s};
    if (r->n_into > 0) {
        s->op.n_iov = iov_slice(r->into, r->n_into, at, len, s->iov);
    } else if (!(r->sum && replica_is_local(replica))) {
        if (!s->buffer) s->buffer = xmalloc(len);
        s->iov[0] = (struct iovec){s->buffer, len};
        s->op.n_iov = 1;
    }
}

static void leave_replica(struct value_read *r, tarn_status why) {
    r->why = why;
    layout_refresh(r);
}

/* Takes the piece from a replica, and from the next where that does not even begin. true: it was
 * there at once. */
static bool begin_piece(struct slot *s, uint64_t at) {
    struct value_read *r = s->reader;
    bool hurry;
    while (r->status == TARN_OK) {
        const struct store_replica *replica = replica_choose(r, &hurry);
        if (!replica) {
            r->status = r->why;
            return false;
        }
        piece_prepare(s, replica, at, hurry);
        if (replica_is_local(replica)) {
            copy_local(s);
            return true;
        }
        tarn_status status = remote_start(&s->op);
        if (status == TARN_OK) {
            s->state = SLOT_RUNNING;
            r->running++;
            return false;
        }
        placed_read_failed(&r->read, s->replica);
        leave_replica(r, status);
    }
    return false;
}

/* What came was not what was put. The piece comes again from elsewhere, or all of it. */
static void found_corrupt(struct slot *s, uint64_t at) {
    struct value_read *r = s->reader;
    remote_stats.inband_corrupt++;
    log_warning("A replica in segment %u is not what was put: version %" PRIu64 ", %" PRIu64
                " bytes",
                r->number[s->replica], r->read.value.version, r->read.value.size);
    leave_replica(r, TARN_ECORRUPT);
    s->state = SLOT_FREE;
    if (r->read.pos == at)
        begin_piece(s, at);
    else
        r->next_start = r->next_out = r->read.pos;
}

/* Those that have arrived, in order. */
static void pieces_verify(struct value_read *r) {
    while (r->read.pos < r->read.to) {
        struct slot *s = slot_of(r, r->read.pos);
        uint64_t at = s->op.from;
        if (s->state != SLOT_ARRIVED || at != r->read.pos) return;
        enum placed_next next = placed_read_took(&r->read, s->replica, s->op.len, &s->op.crc);
        if (next == PLACED_WRONG) {
            found_corrupt(s, at);
            continue;
        }
        s->state = is_buffered(r) && !r->proving ? SLOT_READY : SLOT_FREE;
        if (next == PLACED_DONE && r->proving) set_range(r);
    }
}

static bool can_begin(struct value_read *r) {
    return r->status == TARN_OK && remote_claim_granted(r->claim) && r->next_start < r->read.to &&
           slot_of(r, r->next_start)->state == SLOT_FREE;
}

/* Begins pieces as far as there are slots; of those that are copied here and now, one at a time. */
static void pieces_begin(struct value_read *r) {
    bool local = false;
    if (can_begin(r)) layout_refresh(r);
    while (!local && can_begin(r)) {
        struct slot *s = slot_of(r, r->next_start);
        local = begin_piece(s, r->next_start);
        if (r->status == TARN_OK) r->next_start += s->op.len;
    }
    pieces_verify(r);
}

/* There is something to do, or to take. */
static void go_on(void *arg) {
    struct value_read *r = arg;
    if (is_buffered(r))
        r->ready(r->arg);
    else if (!r->timer.pending)
        net_timer_start(&r->timer, 0);
}

static void reader_free(struct value_read *r) {
    if (!r->closed || r->running > 0 || r->lent > 0) return;
    for (unsigned i = 0; i < r->slots; i++) free(r->slot[i].buffer);
    remote_claim_unref(&r->claim);
    free((char *)(uintptr_t)r->key.data);
    free(r->crcs);
    free(r);
}

/* There is a piece to take, or this is the end. */
static bool can_take(const struct value_read *r) {
    return !r->proving && (r->read.pos > r->next_out || r->next_out == r->read.to);
}

static void on_piece(struct remote_op *op, tarn_status status) {
    struct slot *s = op->arg;
    struct value_read *r = s->reader;
    r->running--;
    s->state = status == TARN_OK ? SLOT_ARRIVED : SLOT_FREE;
    if (r->closed) {
        reader_free(r);
        return;
    }
    if (status != TARN_OK) {
        placed_read_failed(&r->read, s->replica);
        leave_replica(r, status);
        begin_piece(s, op->from);
    }
    pieces_verify(r);
    if (r->status != TARN_OK || r->running == 0 || r->proving || can_take(r)) go_on(r);
}

/* --- the caller's side --- */

static void read_turn(void *arg);

struct value_read *value_read_open(struct object *o, const struct value_read_options *options) {
    static_assert(PLACED_BLOCK == STORE_CRC_BLOCK && REMOTE_PIECE == PLACED_BLOCK,
                  "a CRC for each piece");
    uint64_t size = store_object_size(books, o);
    TARN_ASSERT(options->len > 0 && options->from <= size && options->len <= size - options->from);
    TARN_ASSERT(options->n_into <= STORE_EXTENTS_MAX && (!options->into || options->len == size));
    struct value_read *r = xcalloc(1, sizeof(*r) + REMOTE_WINDOW * sizeof(struct slot));
    r->from = options->from;
    r->len = options->len;
    r->only = options->only;
    r->sum = options->sum;
    r->n_into = options->into ? options->n_into : 0;
    if (r->n_into) memcpy(r->into, options->into, r->n_into * sizeof(*r->into));
    r->ready = options->ready;
    r->done = options->done;
    r->arg = options->arg;
    r->why = TARN_ENOSEGMENT;
    struct span key = store_object_key(o);
    r->key = span_of(xmemdup(key.data, key.len), key.len);
    struct placed_value value = {.version = store_object_version(o), .size = size, .crc = -1};
    uint32_t crc;
    if (store_object_crc(o, &crc)) value.crc = crc;
    copy_crcs(r, o, &value);
    r->hold = store_hold(books, o);
    store_object_layout(books, o, &r->layout);
    remote_order(&r->layout);
    placed_read_init(&r->read, &value);
    set_range(r);
    uint64_t pieces = (r->read.to - r->read.from + REMOTE_PIECE - 1) / REMOTE_PIECE;
    if (r->proving) {
        r->crcs = xcalloc(pieces, sizeof(*r->crcs));
        placed_read_learn(&r->read, r->crcs);
    }
    r->slots = (unsigned)min_u64(pieces, REMOTE_WINDOW);
    for (unsigned i = 0; i < r->slots; i++) r->slot[i].reader = r;
    uint64_t room = r->n_into > 0 ? 0 : remote_window(r->read.to - r->read.from);
    r->claim = options->claim ? remote_claim_ref(options->claim)
                              : remote_claim_new(room, options->client, go_on, r);
    if (is_buffered(r)) return r;
    net_timer_init(&r->timer, core_loop(), read_turn, r);
    go_on(r);
    return r;
}

/* As far as it goes without handing anything out. */
tarn_status value_read_peek(struct value_read *r) {
    do {
        pieces_begin(r);
        if (can_take(r)) return TARN_OK;
    } while (r->running == 0 && can_begin(r));
    if (r->status != TARN_OK) return r->status;
    if (r->running == 0 && r->lent > 0) remote_claim_stalled(r->claim, true);
    return TARN_EAGAIN;
}

tarn_status value_read_next(struct value_read *r, struct value_piece *piece_p) {
    tarn_status status = value_read_peek(r);
    if (status != TARN_OK) return status;
    *piece_p = (struct value_piece){.bytes = span_of(NULL, 0)};
    if (r->next_out == r->read.to) return TARN_OK;
    struct slot *s = slot_of(r, r->next_out);
    uint64_t first = max_u64(r->next_out, r->from);
    r->next_out += s->op.len;
    piece_p->bytes =
        span_of(s->buffer + (first - s->op.from), min_u64(r->next_out, r->from + r->len) - first);
    piece_p->token = s;
    s->state = SLOT_LENT;
    r->lent++;
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
    if (r->next_start < r->read.to) go_on(r);
}

static void cancel_pieces(struct value_read *r) {
    for (unsigned i = 0; i < r->slots; i++)
        if (r->slot[i].state == SLOT_RUNNING) remote_cancel(&r->slot[i].op);
}

void value_read_close(struct value_read **r_p) {
    struct value_read *r = *r_p;
    *r_p = NULL;
    if (!r) return;
    r->closed = true;
    net_timer_stop(&r->timer);
    cancel_pieces(r);
    store_unhold(books, &r->hold);
    if (r->read.mismatches > 0 && r->only == STORE_SEGMENT_ANY)
        replica_suspect(r->key, r->read.value.version);
    if (r->lent > 0) remote_claim_stalled(r->claim, true); /* all it waits for is the client */
    reader_free(r);
}

/* --- those that run by themselves --- */

static void read_turn(void *arg) {
    struct value_read *r = arg;
    core_stamp();
    for (int i = 0; i < PIECES_PER_TURN; i++) {
        tarn_status status = value_read_peek(r);
        if (status == TARN_EAGAIN) return;
        if (status != TARN_OK || r->next_out == r->read.to) {
            if (r->running == 0) r->done(r->arg, status); /* else the last piece goes on here */
            return;
        }
        r->next_out = r->read.pos;
    }
    go_on(r);
}

void value_read_cancel(struct value_read *r) {
    if (r->status == TARN_OK) r->status = TARN_ECANCELED;
    cancel_pieces(r);
    go_on(r);
}
