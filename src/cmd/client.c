/* Connections from accept to close. */
#include "cmd/client.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/assert.h"
#include "base/htab.h"
#include "base/log.h"
#include "cmd/core.h"
#include "cmd/stats.h"

struct client_block {
    struct client c;
    struct client_io io;
    struct htab_node by_id;
};

struct client_list clients;
static struct client_list ready_list;
static struct htab index_by_id;
static bool index_ready;
static struct {
    struct client **c;
    size_t n, cap;
} closing;
static uint64_t next_id;

/* --- lists ------------------------------------------------------------------------------------------------------------------ */

#define LIST_APPEND(list, client, field)                                                                     \
    do {                                                                                                     \
        (client)->io->field = (struct client_link){(list)->tail, NULL};                                      \
        if ((list)->tail != NULL)                                                                            \
            (list)->tail->io->field.next = (client);                                                         \
        else                                                                                                 \
            (list)->head = (client);                                                                         \
        (list)->tail = (client);                                                                             \
        (list)->n++;                                                                                         \
    } while (0)

#define LIST_REMOVE(list, client, field)                                                                     \
    do {                                                                                                     \
        struct client_link *l_ = &(client)->io->field;                                                       \
        if (l_->prev != NULL)                                                                                \
            l_->prev->io->field.next = l_->next;                                                             \
        else                                                                                                 \
            (list)->head = l_->next;                                                                         \
        if (l_->next != NULL)                                                                                \
            l_->next->io->field.prev = l_->prev;                                                             \
        else                                                                                                 \
            (list)->tail = l_->prev;                                                                         \
        (list)->n--;                                                                                         \
    } while (0)

static bool id_eq(const struct htab_node *node, const void *key) {
    return CONTAINER_OF(node, struct client_block, by_id)->c.id == *(const uint64_t *)key;
}

struct client *client_find(uint64_t id) {
    if (!index_ready) return NULL;
    struct htab_node *n = htab_find(&index_by_id, hash_u64(id), id_eq, &id);
    return n == NULL ? NULL : &CONTAINER_OF(n, struct client_block, by_id)->c;
}

bool client_may_run(const struct client *c) {
    return LIKELY(c->job == NULL &&
                  !(c->io->flags & (CLIENT_CLOSE_AFTER_REPLY | CLIENT_CLOSE_SOON | CLIENT_POSTPONED))) &&
           client_unsent(c) <= server.config->output_pause;
}

void client_ready(struct client *c) {
    if (c->io->flags & (CLIENT_READY | CLIENT_CLOSE_SOON)) return;
    c->io->flags |= CLIENT_READY;
    LIST_APPEND(&ready_list, c, ready);
}

bool clients_any_ready(void) {
    return ready_list.head != NULL;
}

void clients_run_ready(void) {
    for (size_t n = ready_list.n; n > 0 && ready_list.head != NULL; n--) {
        struct client *c = ready_list.head;
        LIST_REMOVE(&ready_list, c, ready);
        c->io->flags &= ~CLIENT_READY;
        core_stamp();
        client_run_input(c);
    }
}

/* --- accept --------------------------------------------------------------------------------------------------------------- */

static void refuse(int fd, const char *line) {
    /* A best effort; the socket's buffer is empty, so it fits. */
    if (send(fd, line, strlen(line), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        log_debug("A refusal could not be sent");
    close(fd);
}

/* Redis' rule: no password, and from another machine. */
static bool is_protected(const struct sockaddr_storage *peer) {
    return server.config->protected_mode && server.config->requirepass[0] == '\0' && !net_is_loopback(peer);
}

void client_accept(void *arg, int fd, const struct sockaddr_storage *peer) {
    stats.connections++;
    if (clients.n >= (size_t)server.config->maxclients) {
        stats.rejected_connections++;
        refuse(fd, "-ERR max number of clients reached\r\n");
        return;
    }
    if (arg == NULL && is_protected(peer)) {
        stats.denied_connections++;
        refuse(fd, "-DENIED tarn is running in protected mode because protected mode is enabled and no "
                   "password is set. "
                   "In this mode connections are only accepted from the loopback interface. Set a password "
                   "(requirepass), or turn protected mode off (CONFIG SET protected-mode no from the same "
                   "host) if the "
                   "network is trusted.\r\n");
        return;
    }
    struct client_block *b = xcalloc(1, sizeof(*b));
    struct client *c = &b->c;
    c->io = &b->io;
    c->magic = CLIENT_MAGIC;
    c->id = ++next_id;
    c->proto = 2;
    c->authenticated = server.config->requirepass[0] == '\0';
    c->io->created_ms = c->io->last_ms = server.mono_ms;
    if (arg != NULL) {
        c->io->flags |= CLIENT_UNIX;
    } else {
        net_tune(fd, (int)server.config->tcp_keepalive_s);
        if (peer->ss_family == AF_INET6)
            memcpy(&c->io->peer.in6, peer, sizeof(c->io->peer.in6));
        else
            memcpy(&c->io->peer.in4, peer, sizeof(c->io->peer.in4));
    }
    net_watch_init(&c->io->watch, core_loop(), fd, client_on_event, c);
    if (net_watch_set(&c->io->watch, NET_READ) != TARN_OK) {
        log_warning("A connection could not be watched");
        close(fd);
        free(b);
        return;
    }
    if (!index_ready) {
        htab_init(&index_by_id);
        index_ready = true;
    }
    htab_insert(&index_by_id, &b->by_id, hash_u64(c->id));
    LIST_APPEND(&clients, c, all);
}

/* --- close ---------------------------------------------------------------------------------------------------------------- */

void client_close_soon(struct client *c) {
    if (c->io->flags & CLIENT_CLOSE_SOON) return;
    c->io->flags |= CLIENT_CLOSE_SOON;
    if (closing.n == closing.cap) {
        closing.cap = closing.cap == 0 ? 64 : closing.cap * 2;
        closing.c = xrealloc(closing.c, closing.cap * sizeof(struct client *));
    }
    closing.c[closing.n++] = c;
}

void client_close_after_reply(struct client *c) {
    c->io->flags |= CLIENT_CLOSE_AFTER_REPLY;
}

static void client_free(struct client *c) {
    MAGIC_CHECK(c, CLIENT_MAGIC);
    struct client_block *b = CONTAINER_OF(c, struct client_block, c);
    struct client_io *io = c->io;
    job_cancel(c);
    client_set_monitor(c, false);
    client_free_input(c);
    client_free_output(c);
    if (io->flags & CLIENT_READY) LIST_REMOVE(&ready_list, c, ready);
    LIST_REMOVE(&clients, c, all);
    htab_remove(&index_by_id, &b->by_id);
    net_watch_set(&io->watch, 0);
    close(io->watch.fd);
    if (server.store != NULL) store_session_closed(server.store, c->id);
    free(io->name);
    free(io->lib_name);
    free(io->lib_ver);
    c->magic = 0;
    free(b);
}

void client_free_closed(void) {
    for (size_t i = 0; i < closing.n; i++)
        client_free(closing.c[i]); /* freeing one may list others at the end */
    closing.n = 0;
    if (closing.cap > 1024) {
        free(closing.c);
        closing.c = NULL;
        closing.cap = 0;
    }
}

void client_close_all(void) {
    for (struct client *c = clients.head; c != NULL; c = c->io->all.next) client_close_soon(c);
    client_free_closed();
    free(closing.c);
    closing.c = NULL;
    closing.cap = 0;
    if (index_ready) htab_free(&index_by_id);
    index_ready = false;
}

void client_reset(struct client *c) {
    struct client_io *io = c->io;
    client_set_monitor(c, false);
    free(io->name);
    io->name = NULL;
    io->flags &= ~(unsigned)(CLIENT_REPLY_OFF | CLIENT_REPLY_SKIP | CLIENT_REPLY_SKIP_NEXT | CLIENT_NO_EVICT |
                             CLIENT_NO_TOUCH);
    c->proto = 2;
    c->authenticated = server.config->requirepass[0] == '\0';
}

/* --- facts ---------------------------------------------------------------------------------------------------------------- */

void client_peer(const struct client *c, char *out, size_t size) {
    struct sockaddr_storage ss;
    memset(&ss, 0, sizeof(ss));
    memcpy(&ss, &c->io->peer, sizeof(c->io->peer));
    if (c->io->flags & CLIENT_UNIX) ss.ss_family = AF_UNIX;
    net_format(&ss, server.config->unixsocket, out, size);
}

void client_local(const struct client *c, char *out, size_t size) {
    struct sockaddr_storage ss;
    socklen_t len = sizeof(ss);
    memset(&ss, 0, sizeof(ss));
    if (c->io->flags & CLIENT_UNIX || getsockname(c->io->watch.fd, (struct sockaddr *)&ss, &len) != 0)
        ss.ss_family = AF_UNIX;
    net_format(&ss, server.config->unixsocket, out, size);
}

size_t client_memory(const struct client *c) {
    const struct client_io *io = c->io;
    return sizeof(struct client_block) + io->in.cap + io->out.bytes.cap + io->heap_bytes +
           io->out.insert_cap * sizeof(struct out_insert) +
           (io->parser != NULL ? sizeof(*io->parser) + io->parser->argv_cap * 2 * sizeof(struct span) : 0);
}

/* --- time ----------------------------------------------------------------------------------------------------------------- */

static void check(struct client *c) {
    if (client_unsent(c) > 0) client_output_limit(c);
    uint64_t idle_s = (server.mono_ms - c->io->last_ms) / 1000;
    if (server.config->timeout_s > 0 && c->job == NULL && !(c->io->flags & CLIENT_MONITOR) &&
        idle_s >= (uint64_t)server.config->timeout_s) {
        log_verbose("Closing idle client");
        stats.idle_closed++;
        client_close_soon(c);
    }
}

/* Every client about once a second. Those that were looked at move to the end of the list. */
void clients_cron(unsigned hz) {
    size_t n = clients.n / hz + 5;
    for (; n > 0 && clients.head != NULL; n--) {
        struct client *c = clients.head;
        LIST_REMOVE(&clients, c, all);
        LIST_APPEND(&clients, c, all);
        check(c);
    }
}
