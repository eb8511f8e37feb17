#include "transport/tcp/direct.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/clock.h"
#include "transport/crc_track.h"
#include "transport/tcp/conn.h"

#define PAGE          4096u
#define DIRECT_PIECES 8u /* under way: a disk is at its best then */
#define DIRECT_SELF   0u /* the session of us all: no peer has it */

struct direct {
    struct tcp_stager *stager;
    struct tcp_stage_wait wait;
    struct tcp_piece_list pieces; /* in order */
    unsigned n_pieces;
    struct transport_op *op;
    size_t ask_at; /* the part to ask for next, */
    uint64_t ask_offset;
    struct iov_cursor to;
    uint64_t left;
    struct crc_track sums;
};

static void direct_ask_one(struct direct *d, const struct transport_part *p,
                           tarn_status *status_p) {
    uint64_t at = p->sub_offset + d->ask_offset,
             length = TRANSPORT_STAGE_PIECE - (p->extent.offset + at) % PAGE;
    struct tcp_piece *piece;
    length = min_u64(length, p->sub_length - d->ask_offset);
    *status_p = tcp_stager_ask(d->stager, &d->wait, DIRECT_SELF, &p->extent, at, length,
                               clock_mono_ms(), &piece);
    if (*status_p != TARN_OK) return;
    TAILQ_INSERT_TAIL(&d->pieces, piece, link);
    d->n_pieces++;
    d->ask_offset += length;
}

/* As far as it may. TARN_EAGAIN: the stager wakes us when it may go on. */
static tarn_status direct_ask(struct direct *d) {
    unsigned max = tcp_stage_pool_short(d->stager->pool) ? TCP_PIECES_SHORT : DIRECT_PIECES;
    tarn_status status = TARN_OK;
    while (d->ask_at < d->op->n_parts && d->n_pieces < max && status == TARN_OK) {
        const struct transport_part *p = &d->op->parts[d->ask_at];
        if (d->ask_offset < p->sub_length) {
            direct_ask_one(d, p, &status);
            continue;
        }
        d->ask_at++;
        d->ask_offset = 0;
    }
    return status;
}

static void direct_drop(struct direct *d, struct tcp_piece *piece) {
    TAILQ_REMOVE(&d->pieces, piece, link);
    d->n_pieces--;
    tcp_piece_release(&piece);
}

static void direct_copy(struct direct *d, const char *from, uint64_t length) {
    while (length > 0) {
        struct iovec to = iov_here(&d->to);
        size_t n = (size_t)min_u64(length, to.iov_len);
        if (d->op->crcs != NULL)
            crc_track_feed(&d->sums, d->op, to.iov_base, from, n);
        else
            memcpy(to.iov_base, from, n);
        iov_advance(&d->to, n);
        d->left -= n;
        from += n;
        length -= n;
    }
}

/* Those that have come. */
static tarn_status direct_take(struct direct *d) {
    struct tcp_piece *piece;
    while ((piece = TAILQ_FIRST(&d->pieces)) != NULL && piece->ready) {
        if (piece->status != TARN_OK) return piece->status;
        direct_copy(d, piece->buffer, piece->length);
        direct_drop(d, piece);
    }
    return TARN_OK;
}

static void direct_go_on(void *arg, struct tcp_stage_wait *owner) {
    (void)arg, (void)owner; /* there is but one, and it looks anyway */
}

/* Until the stager has news; false: there is none until then. */
static bool direct_wait(struct direct *d, uint64_t until_boot_ms) {
    uint64_t now_ms = clock_boot_ms();
    int staging_ms = tcp_stager_settle(d->stager, clock_mono_ms());
    if (now_ms >= until_boot_ms) return false;
    uint64_t ms = min_u64(until_boot_ms - now_ms, INT32_MAX);
    if (staging_ms >= 0) ms = min_u64(ms, (uint64_t)staging_ms);
    struct pollfd p = {.fd = d->stager->wake_fd, .events = POLLIN};
    eventfd_t ignored;
    if (poll(&p, 1, (int)ms) > 0) (void)eventfd_read(d->stager->wake_fd, &ignored);
    tcp_stager_collect(d->stager, clock_mono_ms(), direct_go_on, NULL);
    return true;
}

static uint64_t direct_until(const struct direct *d, uint64_t deadline_boot_ms) {
    uint64_t until = deadline_boot_ms != 0 ? deadline_boot_ms : UINT64_MAX;
    if (d->op->patience_ms == 0) return until;
    return min_u64(until, clock_boot_ms() + d->op->patience_ms);
}

static tarn_status direct_run(struct direct *d, uint64_t deadline_boot_ms) {
    uint64_t until = direct_until(d, deadline_boot_ms);
    for (;;) {
        uint64_t before = d->left;
        tarn_status status = direct_take(d);
        if (status != TARN_OK || d->left == 0) return status;
        if (d->left < before) until = direct_until(d, deadline_boot_ms);
        status = direct_ask(d);
        if (status != TARN_OK && status != TARN_EAGAIN) return status;
        const struct tcp_piece *first = TAILQ_FIRST(&d->pieces);
        bool ready = first != NULL && first->ready;
        if (!ready && !direct_wait(d, until)) return TARN_ETIMEOUT;
    }
}

/* Pieces that are under way still are nobody's: a disk that hangs keeps their buffers, not us. */
static void direct_end(struct direct *d) {
    struct tcp_piece *piece;
    int wake_fd = d->stager->wake_fd;
    while ((piece = TAILQ_FIRST(&d->pieces)) != NULL) direct_drop(d, piece);
    tcp_stager_forget(d->stager, &d->wait);
    tcp_stager_leave(&d->stager);
    close(wake_fd);
}

tarn_status tcp_direct_read(struct tcp_stage_pool *pool, const struct transport_gate *gate,
                            struct transport_listener_stats *counters, struct transport_op *op,
                            uint64_t deadline_boot_ms) {
    TARN_ASSERT(op->kind == TRANSPORT_GET && op->receipts == NULL);
    if (gate->stage == NULL) return TARN_ENOTSUP;
    int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_fd < 0) return TARN_EIO;
    struct direct d = {.op = op,
                       .stager = xmalloc(sizeof(*d.stager)),
                       .to = iov_cursor(op->iov, op->n_iov),
                       .left = iov_total(op->iov, op->n_iov)};
    tcp_stager_init(d.stager, pool, gate, wake_fd, counters);
    TAILQ_INIT(&d.pieces);
    crc_track_init(&d.sums, op);
    tarn_status status = direct_run(&d, deadline_boot_ms);
    direct_end(&d);
    return status;
}
