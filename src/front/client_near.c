/* CLIENT NEAR: a connection from this machine goes on over a unix socket, which is faster than tcp
 * to the same machine.
 *
 *   CLIENT NEAR and both ends' addresses over tcp ─> two names and a word, drawn for this: an offer
 *     └─ it binds a socket to the second and connects it to the first
 *          └─ +WORD comes by the new connection, with memory for a ring; the old one is closed
 *               ├─ a first byte of 0: it has that mapped, all goes through it (base/ring.h)
 *               └─ any other: by the socket, the memory is given back
 *
 * It stays the same client: id, user, leases, puts and what CLIENT LIST says of its address. Nobody
 * else comes in its place: everybody on the machine sees the first name and may connect there, but
 * only who was told the second has it, and from when it can be seen it is taken. Who comes first
 * ends the offer, whoever it is, and so does the next CLIENT NEAR: a client that was kept out has
 * it withdrawn before it gives the second name back. Nor does anybody answer in our place when the
 * first name is free again: they do not know the word.
 *
 * The names are in the abstract namespace, which is that of the machine's network, as the loopback
 * interface is. A client stays where it is when this fails, and when the addresses are not those
 * that we see: then there is a proxy or a tunnel between us, which somebody wants there. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sodium.h>

#include "base/fd_pass.h"
#include "base/log.h"
#include "front/client.h"
#include "front/core.h"
#include "front/families.h"
#include "net/net.h"
#include "config/config.h"

#define NEAR_WAIT_MS 5000u /* for it to come */
#define RINGS_MAX    256u  /* clients */

/* An offer. */
struct client_near {
    struct client *client;
    struct net_listener *listener;
    struct net_timer timer; /* it did not come, or somebody has: the offer is over */
    bool came;
    char name[NET_ABSTRACT_MAX], bound[NET_ABSTRACT_MAX], word[NET_ABSTRACT_MAX];
};

static unsigned pending, rings;

static void near_end(struct client *c) {
    struct client_near *near = c->io->near;
    if (near == NULL) return;
    c->io->near = NULL;
    net_timer_stop(&near->timer);
    net_listener_close(&near->listener);
    pending--;
    free(near);
}

static void ring_end(struct client *c) {
    if (c->io->ring == NULL) return;
    net_ring_destroy(&c->io->ring);
    rings--;
}

void client_near_free(struct client *c) {
    near_end(c);
    ring_end(c);
    free(c->io->local);
    c->io->local = NULL;
}

size_t client_near_memory(const struct client *c) {
    return (c->io->near != NULL ? sizeof(*c->io->near) : 0) +
           (c->io->local != NULL ? sizeof(*c->io->local) : 0) +
           (c->io->ring != NULL ? net_ring_memory() : 0);
}

static void on_over(void *arg) {
    struct client_near *near = arg;
    near_end(near->client);
}

/* Nothing of it is under way, so nothing can be lost with the old socket. */
static bool is_at_rest(const struct client *c) {
    const struct client_io *io = c->io;
    const unsigned busy = CLIENT_CLOSE_SOON | CLIENT_CLOSE_AFTER_REPLY | CLIENT_HALF |
                          CLIENT_POSTPONED | CLIENT_READY | CLIENT_READ_OFF | CLIENT_REPLICA |
                          CLIENT_FLUSH;
    char byte;
    return !(io->flags & busy) && c->job == NULL && io->away == NULL && io->parser == NULL &&
           !io->big_reading && io->in.len == io->in_pos && client_unsent(c) == 0 &&
           io->late.len == 0 && recv(io->watch.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 &&
           (errno == EAGAIN || errno == EWOULDBLOCK); /* and not: it is dead */
}

/* Memory for a ring, which goes to the peer with the word; -1: it goes on without one. Who is told
 * things without having asked gets none: they would come by the socket. Nor does anybody who would
 * be closed for having it, soon (maxmemory-clients). */
static int ring_begin(struct client *c) {
    int memory;
    if (rings >= RINGS_MAX || c->io->tracker != NULL ||
        c->io->flags & (CLIENT_MONITOR | CLIENT_PUBSUB) || !clients_have_room(net_ring_memory()))
        return -1;
    c->io->ring = net_ring_create(&memory);
    if (c->io->ring == NULL) {
        log_verbose("Client id=%llu goes on without shared memory: %s", (unsigned long long)c->id,
                    strerror(errno));
        return -1;
    }
    rings++;
    return memory;
}

static bool word_send(int fd, const char *word, int memory) {
    char line[NET_ABSTRACT_MAX + 4];
    int len = snprintf(line, sizeof(line), "+%s\r\n", word);
    return fd_pass_send(fd, line, (size_t)len, memory) == len;
}

/* What comes first tells whether it has taken the ring: its first call, or a request. */
static void on_first(void *arg, unsigned events) {
    struct client *c = arg;
    struct net_watch *w = &c->io->watch;
    char first = 1;
    if (c->io->flags & CLIENT_CLOSE_SOON ||
        (recv(w->fd, &first, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN))
        return;
    w->fn = client_on_event;
    if (first == '\0') {
        if (net_watch_ring(w, c->io->ring) != TARN_OK) client_close_soon(c);
        return;
    }
    ring_end(c);
    client_on_event(c, events);
}

static bool move_to(struct client *c, int fd, const char *word) {
    struct client_io *io = c->io;
    struct sockaddr_storage local = {0};
    socklen_t len = sizeof(local);
    if (!is_at_rest(c) || getsockname(io->watch.fd, (struct sockaddr *)&local, &len) != 0)
        return false;
    int memory = ring_begin(c);
    bool sent = word_send(fd, word, memory);
    if (memory >= 0) close(memory);
    if (!sent) {
        ring_end(c);
        return false;
    }
    io->local = xmemdup(&local, sizeof(local));
    if (config->maxmemory_clients != 0) client_weigh(c);
    net_watch_set(&io->watch, 0);
    close(io->watch.fd);
    net_watch_init(&io->watch, core_loop(), fd, io->ring != NULL ? on_first : client_on_event, c);
    if (net_watch_set(&io->watch, NET_READ) != TARN_OK) client_close_soon(c);
    return true;
}

static void on_near(void *arg, int fd, const struct sockaddr_storage *peer) {
    struct client_near *near = arg;
    bool first = !near->came;
    (void)peer;
    near->came = true;
    if (first) net_timer_start(&near->timer, 0); /* begun again it would never be over */
    if (!first || !net_peer_is_abstract(fd, near->bound) || !move_to(near->client, fd, near->word))
        close(fd);
}

static void name_draw(char name[NET_ABSTRACT_MAX]) {
    unsigned char random[16];
    char hex[2 * sizeof(random) + 1];
    randombytes_buf(random, sizeof(random));
    snprintf(name, NET_ABSTRACT_MAX, "tarn-%s",
             sodium_bin2hex(hex, sizeof(hex), random, sizeof(random)));
}

/* NULL, or why not: there is no descriptor for it, or none left for who comes. */
static const char *near_open(struct client_near *near) {
    const char *why;
    int fd, spare;
    name_draw(near->name);
    name_draw(near->bound);
    name_draw(near->word);
    if (net_listen_abstract(near->name, &fd, &why) != TARN_OK) return why;
    if ((spare = dup(fd)) < 0) {
        why = strerror(errno);
        close(fd);
        return why;
    }
    close(spare);
    near->listener = net_listener_open(core_loop(), fd, on_near, near);
    return NULL;
}

/* false: an error was answered. */
static bool may_move(struct client *c) {
    struct sockaddr_storage peer = client_peer_address(c);
    char address[128], local[128];
    client_peer(c, address, sizeof(address));
    client_local(c, local, sizeof(local));
    if (c->io->tls != NULL || c->io->flags & CLIENT_UNIX || !net_is_loopback(&peer))
        reply_error(c, "CLIENT NEAR is for a connection over the loopback interface, without TLS");
    else if (!span_eq(c->argv[2], span_str(address)) || !span_eq(c->argv[3], span_str(local)))
        reply_error(c, "this connection is from %s to %s: stay, there is something in between",
                    address, local);
    else if (c->io->local != NULL)
        reply_error(c, "this connection has moved already");
    else if (pending >= CLIENT_NEAR_MAX)
        reply_error(c, "-LIMIT %u connections are on their way to a unix socket: ask again",
                    CLIENT_NEAR_MAX);
    else
        return true;
    return false;
}

void cmd_client_near(struct client *c) {
    near_end(c);
    if (!may_move(c)) return;
    struct client_near *near = xcalloc(1, sizeof(*near));
    near->client = c;
    net_timer_init(&near->timer, core_loop(), on_over, near);
    const char *why = near_open(near);
    if (why != NULL) {
        free(near);
        reply_error(c, "a unix socket cannot be opened: %s", why);
        return;
    }
    pending++;
    c->io->near = near;
    net_timer_start(&near->timer, NEAR_WAIT_MS);
    reply_array(c, 3);
    reply_bulk_str(c, near->name);
    reply_bulk_str(c, near->bound);
    reply_bulk_str(c, near->word);
}
