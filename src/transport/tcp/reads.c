/* READs whose bytes are not memory: queued, asked for ahead of the socket, sent as they come.
 *
 *   request ─> reads ─asked for, TCP_AHEAD_BYTES ahead─> pieces ─ready, in order─> a frame in out
 *                                                                       ─sent─> buffers back
 *
 * Replies keep the order of their requests, so while one waits those behind it wait, too, but their
 * pieces are under way: small reads overlap as well as the pieces of a large one. A reply goes out
 * in several frames (TCP_FLAG_MORE), each of which holds the pieces that were ready at that moment.
 * One that fails in the middle ends with a refusal, and the connection goes on. */
#include <stdlib.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/log.h"
#include "transport/tcp/conn.h"

#define PAGE 4096u

bool tcp_reads_have_room(const struct tcp_conn *c) {
    return c->n_reads < TCP_READS_MAX && c->n_read_parts < TCP_PARTS_MAX;
}

static struct tcp_read *read_create(const struct tcp_header *h, uint64_t bytes, uint64_t now_ns) {
    uint32_t n = h->meta_length / (uint32_t)sizeof(struct tcp_part);
    struct tcp_read *r = xcalloc(1, sizeof(*r) + n * sizeof(r->parts[0]));
    r->request_id = h->request_id;
    r->total = bytes;
    r->began_ns = now_ns;
    r->n_parts = n;
    return r;
}

/* All or nothing, like reads of memory. */
static uint32_t admit_all(struct tcp_conn *c, struct tcp_turn_state *t, struct tcp_read *r,
                          const uint8_t *meta) {
    for (uint32_t i = 0; i < r->n_parts; i++) {
        struct tcp_range *part = &r->parts[i];
        uint32_t status = tcp_admit(c, t, meta + i * sizeof(struct tcp_part), GRANT_READ, part);
        if (status != TCP_OK) return status;
        r->staged |= part->addr == NULL && part->length > 0;
    }
    if (!r->staged) return TCP_OK;
    if (t->stager != NULL && t->gate->stage != NULL) return c->pieces_ok ? TCP_OK : TCP_NO_PIECES;
    transport_count(&t->counters->refused[GRANT_BAD_OP], 1);
    return GRANT_BAD_OP;
}

/* In place of the bytes that do not come: a piece that is ready and says so. */
static void add_failure(struct tcp_conn *c, struct tcp_read *r, tarn_status status) {
    struct tcp_piece *piece = xcalloc(1, sizeof(*piece));
    *piece = (struct tcp_piece){.request = r, .ready = true, .status = status};
    TAILQ_INSERT_TAIL(&c->pieces, piece, link);
    c->n_pieces++;
    r->ask_at = r->n_parts;
}

void tcp_reads_add(struct tcp_conn *c, struct tcp_turn_state *t, const struct tcp_header *h,
                   const uint8_t *meta, uint64_t bytes) {
    struct tcp_read *r = read_create(h, bytes, t->now_ns);
    uint32_t status = admit_all(c, t, r, meta);
    if (status != TCP_OK) { /* its place in the order stays */
        r->n_parts = 0;
        r->refusal = status;
    }
    STAILQ_INSERT_TAIL(&c->reads, r, link);
    c->n_reads++;
    c->n_read_parts += r->n_parts;
    if (c->asking == NULL) c->asking = r;
}

/* --- asking --- */

/* The next range of r that has to be asked for. NULL: none, r is asked for to its end. */
static struct tcp_range *next_to_ask(struct tcp_read *r) {
    for (; r->ask_at < r->n_parts; r->ask_at++, r->ask_offset = 0) {
        struct tcp_range *p = &r->parts[r->ask_at];
        if (p->addr == NULL && r->ask_offset < p->length) return p;
    }
    return NULL;
}

void tcp_reads_ask(struct tcp_conn *c, struct tcp_turn_state *t) {
    if (c->asking == NULL) return;
    unsigned max = t->stager != NULL && tcp_stage_pool_short(t->stager->pool) ? TCP_PIECES_SHORT
                                                                              : TCP_PIECES_MAX;
    while (c->asking != NULL && c->n_pieces < max && c->piece_bytes < TCP_AHEAD_BYTES) {
        struct tcp_read *r = c->asking;
        struct tcp_range *p = next_to_ask(r);
        if (p == NULL) {
            c->asking = STAILQ_NEXT(r, link);
            continue;
        }
        /* Pieces end where pages of the segment end: disks like that. */
        uint64_t at = p->sub_offset + r->ask_offset;
        uint64_t length = TRANSPORT_STAGE_PIECE - (p->extent.offset + at) % PAGE;
        length = min_u64(length, p->length - r->ask_offset);
        struct tcp_piece *piece;
        tarn_status status = tcp_stager_ask(t->stager, &c->wait, p->grant.session, &p->extent, at,
                                            length, t->now_ms, &piece);
        if (status == TARN_EAGAIN) return;
        if (status != TARN_OK) {
            add_failure(c, r, status);
            continue;
        }
        piece->request = r;
        TAILQ_INSERT_TAIL(&c->pieces, piece, link);
        c->n_pieces++;
        c->piece_bytes += length;
        r->ask_offset += length;
    }
}

static void piece_drop(struct tcp_conn *c, struct tcp_pieces *list, struct tcp_piece *piece) {
    TAILQ_REMOVE(list, piece, link);
    c->n_pieces--;
    c->piece_bytes -= piece->length;
    if (piece->stager != NULL)
        tcp_piece_release(&piece);
    else
        free(piece);
}

/* --- sending --- */

static void read_finish(struct tcp_conn *c, struct tcp_read *r) {
    TARN_ASSERT(r == STAILQ_FIRST(&c->reads));
    struct tcp_piece *piece;
    while ((piece = TAILQ_FIRST(&c->pieces)) != NULL && piece->request == r)
        piece_drop(c, &c->pieces, piece);
    if (c->asking == r) c->asking = STAILQ_NEXT(r, link);
    STAILQ_REMOVE_HEAD(&c->reads, link);
    c->n_reads--;
    c->n_read_parts -= r->n_parts;
    free(r);
}

static void count_read(struct tcp_turn_state *t, const struct tcp_read *r) {
    transport_count(&t->counters->reads, 1);
    transport_count(&t->counters->bytes_read, r->total);
    tcp_time_add(t, r->staged ? &t->times->staged : &t->times->read, r->began_ns, 1);
    if (!r->staged) return;
    transport_count(&t->counters->staged_reads, 1);
    transport_count(&t->counters->staged_bytes, r->total);
}

/* Adds what there is of r to out, as far as it goes: 0: nothing. */
static uint64_t put_bytes(struct tcp_conn *c, struct tcp_read *r) {
    uint64_t bytes = 0;
    while (r->put_at < r->n_parts && tcp_out_has_room(c)) {
        struct tcp_range *p = &r->parts[r->put_at];
        if (p->addr != NULL) {
            tcp_out_add(c, p->addr, p->length);
            tcp_out_note(c, &p->grant, &p->extent);
            bytes += p->length;
            r->put_offset = p->length;
        }
        if (r->put_offset == p->length) {
            r->put_at++;
            r->put_offset = 0;
            continue;
        }
        struct tcp_piece *piece = TAILQ_FIRST(&c->pieces);
        if (piece == NULL || piece->request != r || !piece->ready || piece->status != TARN_OK)
            break;
        TAILQ_REMOVE(&c->pieces, piece, link);
        TAILQ_INSERT_TAIL(&c->sending, piece, link);
        tcp_out_add(c, piece->buffer, piece->length);
        bytes += piece->length;
        r->put_offset += piece->length;
    }
    return bytes;
}

/* Is the next thing to say of r that it failed? */
static bool read_has_failed(const struct tcp_conn *c, const struct tcp_read *r,
                            tarn_status *status_p) {
    const struct tcp_piece *piece = TAILQ_FIRST(&c->pieces);
    if (piece == NULL || piece->request != r || !piece->ready || piece->status == TARN_OK)
        return false;
    *status_p = piece->status;
    return true;
}

/* A frame of the first reply. false: its bytes are not here yet. */
static bool put_frame(struct tcp_conn *c, struct tcp_turn_state *t) {
    struct tcp_read *r = STAILQ_FIRST(&c->reads);
    tarn_status status;
    uint32_t first = c->out_n;
    if (r->refusal != TCP_OK) {
        tcp_reply_add(c, r->request_id, r->refusal);
        read_finish(c, r);
        return true;
    }
    if (read_has_failed(c, r, &status)) {
        log_verbose("A staged read failed: %s", tarn_status_text(status));
        transport_count(&t->counters->staged_failures, 1);
        tcp_reply_add(c, r->request_id, status == TARN_ENOTFOUND ? TCP_GONE : TCP_FAILED);
        read_finish(c, r);
        return true;
    }
    struct tcp_header *h = tcp_reply_add(c, r->request_id, TCP_OK);
    h->payload_length = put_bytes(c, r);
    if (r->put_at == r->n_parts) {
        count_read(t, r);
        read_finish(c, r);
        return true;
    }
    h->flags = TCP_FLAG_MORE;
    if (h->payload_length > 0) return true;
    c->n_replies--;
    c->out_n = first;
    return false;
}

void tcp_reads_put(struct tcp_conn *c, struct tcp_turn_state *t) {
    TARN_ASSERT(c->out_n == 0);
    while (!STAILQ_EMPTY(&c->reads) && tcp_out_has_room(c) && put_frame(c, t)) {
    }
    if (c->out_n > 0) t->spent += 1; /* the peer's time begins now */
}

void tcp_reads_sent(struct tcp_conn *c, const char *end) {
    struct tcp_piece *piece = TAILQ_FIRST(&c->sending);
    if (piece != NULL && end == (const char *)piece->buffer + piece->length)
        piece_drop(c, &c->sending, piece);
}

bool tcp_reads_have(const struct tcp_conn *c, uint32_t segment) {
    const struct tcp_read *r;
    STAILQ_FOREACH(r, &c->reads, link) {
        for (uint32_t i = r->put_at; i < r->n_parts; i++) {
            if (r->parts[i].extent.segment == segment) return true;
        }
    }
    return false;
}

void tcp_reads_drop(struct tcp_conn *c) {
    struct tcp_piece *piece;
    while ((piece = TAILQ_FIRST(&c->sending)) != NULL) piece_drop(c, &c->sending, piece);
    while (!STAILQ_EMPTY(&c->reads)) read_finish(c, STAILQ_FIRST(&c->reads));
    TARN_ASSERT(TAILQ_EMPTY(&c->pieces) && c->n_pieces == 0);
    if (c->stager != NULL) tcp_stager_forget(c->stager, &c->wait);
}
