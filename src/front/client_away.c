/* Values of megabytes move in threads of their own (io-threads): the commands run here, as ever,
 * and what they leave to be copied between a socket and the pool is handed to a thread, which says
 * when it is through.
 *
 *   SET   read_big ──> away ──> (thread: recv to the pool, CRC) ──> client_big_read
 *           ──> the command runs
 *   GET   the command runs ──> flush ──> away ──> (thread: send from the pool) ──> flush ──> ...
 *
 * Meanwhile the client is like any other: while a thread sends, its next requests are read and run,
 * and their replies wait. It is freed only when the thread is back, so its room in the pool and its
 * holds on objects last as long as somebody uses them. What is small, or encrypted, or comes while
 * its thread is busy with the other direction, moves on the loop. */
#include "front/client.h"

#include <stdlib.h>
#include <sys/socket.h>
#include "base/assert.h"
#include "base/log.h"
#include "front/above.h"
#include "front/core.h"
#include "front/stats.h"
#include "net/transfer.h"
#include "config/config.h"

#define AWAY_MIN (256u * 1024) /* what is shorter is done before a thread is awake */
#define SEND_MAX (8u << 20)    /* then the loop has a look at it: more is to be said, perhaps */
#define BETWEEN  4096u         /* bytes between values that are sent along */

struct client_away {
    struct net_transfer transfer;
    struct client *client;
    struct value_write *sink; /* receiving */
    size_t seen;              /* of transfer.moved */
    char between[BETWEEN];
};

static struct net_transfers *threads;

void client_away_init(void) {
    /* the loop is one of them, as in Redis */
    unsigned others = (unsigned)config->io_threads - 1;
    if (others == 0) return;
    threads = net_transfers_create(core_loop(), others);
    if (threads == NULL)
        log_warning(
            "No threads could be started (io-threads): large values move on the event loop");
}

void client_away_deinit(void) {
    net_transfers_destroy(&threads);
}

bool client_away_active(void) {
    return threads != NULL;
}

bool client_away_receives(const struct client *c) {
    return UNLIKELY(c->io->away != NULL) && c->io->away->transfer.receive;
}

void client_away_look(struct client *c) {
    struct client_io *io = c->io;
    struct client_away *a = io->away;
    size_t moved = atomic_load_explicit(&a->transfer.moved, memory_order_acquire),
           n = moved - a->seen;
    a->seen = moved;
    if (n == 0) return;
    io->last_ms = turn.mono_ms;
    if (a->transfer.receive) {
        io->bytes_in += n;
        stats.total_net_input_bytes += n;
        client_big_read(c, n);
    } else {
        io->bytes_out += n;
        stats.total_net_output_bytes += n;
        client_output_sent(c, n);
    }
}

/* A thread that receives reads on until nothing is there any more, and the peer is not told that
 * there is room again: who waits for that in send() would wait on after close(), which only resets
 * what has unread bytes. */
void client_away_cut(struct client *c) {
    const struct linger reset = {.l_onoff = 1, .l_linger = 0};
    if (client_away_receives(c))
        (void)setsockopt(c->io->watch.fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    (void)shutdown(c->io->watch.fd, SHUT_RDWR);
}

void client_away_wait(struct client *c) {
    if (c->io->away != NULL) net_transfer_wait(threads, &c->io->away->transfer);
}

/* --- there and back --- */

static struct client_away *away_create(struct client *c, bool receive) {
    struct client_away *a = xcalloc(1, sizeof(*a));
    a->client = c;
    a->transfer.fd = c->io->watch.fd;
    a->transfer.receive = receive;
    return a;
}

static void away_go(struct client *c, struct client_away *a) {
    c->io->away = a;
    net_transfer_start(threads, &a->transfer);
    client_update_interest(c);
}

/* false: it is over with the client. */
static bool away_back(struct client_away *a) {
    struct client *c = a->client;
    MAGIC_CHECK(c, CLIENT_MAGIC);
    core_stamp();
    client_away_look(c);
    c->io->away = NULL;
    if (a->transfer.error != 0) client_close_soon(c);
    free(a);
    return !(c->io->flags & CLIENT_CLOSE_SOON);
}

static void away_sent(struct net_transfer *t) {
    struct client_away *a = CONTAINER_OF(t, struct client_away, transfer);
    struct client *c = a->client;
    stats.total_writes_processed++;
    if (!away_back(a)) return;
    client_on_writable(c);
    if (config->maxmemory_clients != 0) client_weigh(c);
}

bool client_send_away(struct client *c) {
    struct client_io *io = c->io;
    if (io->away != NULL && !io->away->transfer.receive) return true; /* one after the other */
    if (threads == NULL || io->away != NULL || io->out.insert_bytes < AWAY_MIN ||
        io->watch.ring != NULL)
        return false;
    struct client_away *a = away_create(c, false);
    struct net_transfer *t = &a->transfer;
    t->done = away_sent;
    t->pieces = client_output_pieces(c, SEND_MAX, t->piece, a->between, BETWEEN, &t->left);
    if (t->left < AWAY_MIN) {
        free(a);
        return false;
    }
    stats.io_threaded_writes_processed++;
    away_go(c, a);
    return true;
}

/* In the thread. */
static void away_placed(struct net_transfer *t, size_t n) {
    above.big_filled(CONTAINER_OF(t, struct client_away, transfer)->sink, n);
}

static void away_received(struct net_transfer *t) {
    struct client_away *a = CONTAINER_OF(t, struct client_away, transfer);
    struct client *c = a->client;
    bool ended = t->ended;
    stats.total_reads_processed++;
    if (!away_back(a)) return;
    client_update_interest(c);
    if (ended) client_input_ended(c);
    /* the end of the request is there, most likely */
    else
        client_on_event(c, NET_READ);
}

bool client_receive_away(struct client *c, struct big_arg *b) {
    size_t left = b->len - b->got;
    if (threads == NULL || !config->io_threads_do_reads || c->io->away != NULL ||
        c->io->tls != NULL || c->io->watch.ring != NULL || b->sink == NULL || left < AWAY_MIN)
        return false;
    struct client_away *a = away_create(c, true);
    struct net_transfer *t = &a->transfer;
    a->sink = b->sink;
    t->received = away_placed;
    t->done = away_received;
    t->pieces = (unsigned)above.big_next(b->sink, t->piece);
    t->left = left;
    stats.io_threaded_reads_processed++;
    away_go(c, a);
    return true;
}
