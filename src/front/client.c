/* Connections from accept to close. */
#include "front/client.h"

#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/assert.h"
#include "base/htab.h"
#include "base/log.h"
#include "front/above.h"
#include "front/acl_users.h"
#include "front/core.h"
#include "front/multi.h"
#include "front/pubsub.h"
#include "front/stats.h"
#include "front/table.h"
#include "front/tracking.h"
#include "config/config.h"

struct client_block {
    struct client c;
    struct client_io io;
    struct htab_node by_id;
};

struct clients clients = {TAILQ_HEAD_INITIALIZER(clients.list), 0};
static struct client_list ready_list = TAILQ_HEAD_INITIALIZER(ready_list);
static struct htab index_by_id;
/* to be freed; leaving: threads move bytes of theirs yet */
static struct client_list closing = TAILQ_HEAD_INITIALIZER(closing);
static struct client_list leaving = TAILQ_HEAD_INITIALIZER(leaving);
static uint64_t next_id;

static bool id_eq(const struct htab_node *node, const void *key) {
    return CONTAINER_OF(node, struct client_block, by_id)->c.id == *(const uint64_t *)key;
}

struct client *client_find(uint64_t id) {
    struct htab_node *n = htab_find(&index_by_id, hash_u64(id), id_eq, &id);
    return n == NULL ? NULL : &CONTAINER_OF(n, struct client_block, by_id)->c;
}

bool client_is_deaf(const struct client *c) {
    return client_unsent(c) > config->output_pause;
}

bool client_may_run(const struct client *c) {
    return LIKELY(c->job == NULL && !(c->io->flags & (CLIENT_CLOSE_AFTER_REPLY | CLIENT_CLOSE_SOON |
                                                      CLIENT_POSTPONED))) &&
           !client_is_deaf(c);
}

void client_ready(struct client *c) {
    if (c->io->flags & (CLIENT_READY | CLIENT_CLOSE_SOON)) return;
    c->io->flags |= CLIENT_READY;
    TAILQ_INSERT_TAIL(&ready_list, c, io->ready);
}

bool clients_any_ready(void) {
    return !TAILQ_EMPTY(&ready_list);
}

void clients_run_ready(void) {
    const struct client *last = TAILQ_LAST(&ready_list, client_list);
    struct client *c = NULL;
    while (c != last && (c = TAILQ_TAKE(&ready_list, io->ready)) != NULL) {
        c->io->flags &= ~CLIENT_READY;
        core_stamp();
        client_run_input(c);
        if (UNLIKELY(c->io->tls != NULL) && !(c->io->flags & (CLIENT_READ_OFF | CLIENT_CLOSE_SOON)))
            client_on_event(c, NET_READ); /* its stream may hold more */
    }
}

uint64_t client_next_id(void) {
    return ++next_id;
}

/* --- accept --- */

static void accept_refuse(int fd, const char *line) {
    /* A best effort; the socket's buffer is empty, so it fits. */
    if (send(fd, line, strlen(line), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        log_debug("A refusal could not be sent");
    close(fd);
}

const char client_denied_text[] = "-DENIED tarn is running in protected mode because protected "
                                  "mode is enabled and no password is set. In "
                                  "this "
                                  "mode connections are only accepted from the loopback interface. "
                                  "Set a password (requirepass), or turn "
                                  "protected mode off (CONFIG SET protected-mode no from the same "
                                  "host) if the network is trusted.\r\n";

/* Redis' rule: no password, and from another machine. */
static bool is_protected(const struct sockaddr_storage *peer) {
    return config->protected_mode && acl_user_nopass(acl_default(acl_users)) &&
           !net_is_loopback(peer);
}

void client_accept(void *arg, int fd, const struct sockaddr_storage *peer) {
    enum client_port port = *(const enum client_port *)arg;
    stats.total_connections_received++;
    if (clients.n >= (size_t)config->maxclients) {
        stats.rejected_connections++;
        /* Through TLS nothing can be said before the handshake, and there is no place for it. */
        accept_refuse(fd, port == CLIENT_PORT_TLS ? "" : "-ERR max number of clients reached\r\n");
        return;
    }
    bool denied = port != CLIENT_PORT_UNIX && is_protected(peer);
    stats.denied_connections += denied;
    if (denied && port == CLIENT_PORT_TCP) {
        accept_refuse(fd, client_denied_text);
        return;
    }
    struct client_block *b = xcalloc(1, sizeof(*b));
    struct client *c = &b->c;
    c->io = &b->io;
    c->magic = CLIENT_MAGIC;
    c->id = client_next_id();
    c->proto = 2;
    acl_client_reset(c);
    c->io->created_ms = c->io->last_ms = turn.mono_ms;
    if (denied) c->io->flags |= CLIENT_DENIED;
    if (port == CLIENT_PORT_UNIX) {
        c->io->flags |= CLIENT_UNIX;
    } else {
        net_tune(fd, (int)config->tcp_keepalive_s);
        net_tune_local(fd, peer);
        if (peer->ss_family == AF_INET6)
            memcpy(&c->io->peer.in6, peer, sizeof(c->io->peer.in6));
        else
            memcpy(&c->io->peer.in4, peer, sizeof(c->io->peer.in4));
    }
    net_watch_init(&c->io->watch, core_loop(), fd, client_on_event, c);
    if ((port == CLIENT_PORT_TLS && !client_tls_begin(c)) ||
        net_watch_set(&c->io->watch, NET_READ) != TARN_OK) {
        log_warning("A connection could not be watched");
        tls_stream_destroy(&c->io->tls);
        close(fd);
        free(b);
        return;
    }
    htab_insert(&index_by_id, &b->by_id, hash_u64(c->id));
    TAILQ_INSERT_TAIL(&clients.list, c, io->all);
    clients.n++;
}

/* --- close --- */

void client_close_soon(struct client *c) {
    if (c->io->flags & CLIENT_CLOSE_SOON) return;
    c->io->flags |= CLIENT_CLOSE_SOON;
    TAILQ_INSERT_TAIL(&closing, c, io->closing);
}

void client_close_because(struct client *c, enum log_level level, const char *why, ...) {
    char peer[80], text[192];
    va_list ap;
    va_start(ap, why);
    vsnprintf(text, sizeof(text), why, ap);
    va_end(ap);
    client_peer(c, peer, sizeof(peer));
    log_write(level, "Client id=%llu addr=%s closed: %s", (unsigned long long)c->id, peer, text);
    client_close_soon(c);
}

void client_close_after_reply(struct client *c) {
    c->io->flags |= CLIENT_CLOSE_AFTER_REPLY;
}

/* It does nothing any more, and nobody hears of it. */
static void client_part(struct client *c) {
    MAGIC_CHECK(c, CLIENT_MAGIC);
    client_unweigh(c);
    job_cancel(c);
    client_set_monitor(c, false);
    multi_reset(c);
    pubsub_drop(c);
    tracking_off(c);
    above.replica_gone(c);
}

static void client_free(struct client *c) {
    client_part(c);
    struct client_block *b = CONTAINER_OF(c, struct client_block, c);
    struct client_io *io = c->io;
    client_free_input(c);
    client_free_output(c);
    if (io->flags & CLIENT_READY) TAILQ_REMOVE(&ready_list, c, io->ready);
    TAILQ_REMOVE(&clients.list, c, io->all);
    clients.n--;
    htab_remove(&index_by_id, &b->by_id);
    net_watch_set(&io->watch, 0);
    if (UNLIKELY(io->tls != NULL)) client_tls_free(c);
    client_near_free(c);
    close(io->watch.fd);
    if (books != NULL) store_session_closed(books, c->id);
    cluster_session_closed(c->id);
    free(io->name);
    free(io->lib_name);
    free(io->lib_ver);
    free(io->traceparent);
    c->magic = 0;
    free(b);
}

void client_free_closed(void) {
    struct client *c, *next;
    while ((c = TAILQ_TAKE(&closing, io->closing)) != NULL) { /* freeing one may list others */
        if (LIKELY(c->io->away == NULL)) {
            client_free(c);
            continue;
        }
        client_part(c);
        net_watch_set(&c->io->watch, 0);
        client_away_cut(c);
        TAILQ_INSERT_TAIL(&leaving, c, io->closing);
    }
    TAILQ_FOREACH_SAFE(c, &leaving, io->closing, next) {
        if (c->io->away != NULL) continue;
        TAILQ_REMOVE(&leaving, c, io->closing);
        client_free(c);
    }
}

void client_free_closed_now(void) {
    do {
        struct client *c;
        client_free_closed();
        TAILQ_FOREACH(c, &leaving, io->closing) client_away_wait(c);
    } while (!TAILQ_EMPTY(&leaving) || !TAILQ_EMPTY(&closing));
}

void client_close_all(void) {
    CLIENTS_EACH(c) client_close_soon(c);
    client_away_deinit();
    client_free_closed_now();
    htab_free(&index_by_id);
}

void client_reset(struct client *c) {
    struct client_io *io = c->io;
    client_set_monitor(c, false);
    multi_reset(c);
    pubsub_drop(c);
    tracking_off(c);
    free(io->name);
    io->name = NULL;
    free(io->traceparent);
    io->traceparent = NULL;
    io->flags &= ~(unsigned)(CLIENT_REPLY_OFF | CLIENT_REPLY_SKIP | CLIENT_REPLY_SKIP_NEXT |
                             CLIENT_NO_EVICT | CLIENT_NO_TOUCH | CLIENT_ASKING | CLIENT_READONLY);
    c->proto = 2;
    c->db = 0;
    acl_client_reset(c);
}

/* --- facts --- */

struct sockaddr_storage client_peer_address(const struct client *c) {
    struct sockaddr_storage ss = {0};
    memcpy(&ss, &c->io->peer, sizeof(c->io->peer));
    if (c->io->flags & CLIENT_UNIX) ss.ss_family = AF_UNIX;
    return ss;
}

void client_peer(const struct client *c, char *out, size_t size) {
    struct sockaddr_storage ss = client_peer_address(c);
    net_format(&ss, config->unixsocket, out, size);
}

void client_trace_put(const struct client *c, struct buf *out) {
    buf_printf(out, "(traceparent %s)", c->io->traceparent);
}

bool client_allowed(const struct client *c, int mode) {
    struct sockaddr_storage ss = client_peer_address(c);
    return mode == CONFIG_PROTECTED_YES || (mode == CONFIG_PROTECTED_LOCAL && net_is_loopback(&ss));
}

void client_local(const struct client *c, char *out, size_t size) {
    struct sockaddr_storage ss;
    socklen_t len = sizeof(ss);
    memset(&ss, 0, sizeof(ss));
    if (c->io->local != NULL)
        ss = *c->io->local;
    else if (c->io->flags & CLIENT_UNIX ||
             getsockname(c->io->watch.fd, (struct sockaddr *)&ss, &len) != 0)
        ss.ss_family = AF_UNIX;
    net_format(&ss, config->unixsocket, out, size);
}

size_t client_memory(const struct client *c) {
    const struct client_io *io = c->io;
    return sizeof(struct client_block) + io->in.cap + client_output_memory(c) + io->heap_bytes +
           multi_memory(c) + pubsub_memory(c) + tracking_memory(c) + client_near_memory(c) +
           (io->tls != NULL ? tls_memory(io->tls) : 0) +
           (io->parser != NULL
                ? sizeof(*io->parser) + io->parser->argv_cap * 2 * sizeof(struct span)
                : 0);
}

/* --- time --- */

/* Does it keep space of the pool from others, with a value that its socket is to take or give? Or a
 * connection that its peer may have left, for it sends no more? */
static bool client_holds_space(const struct client *c) {
    const struct client_io *io = c->io;
    if (io->away != NULL) return true;
    if (io->watch.events & NET_WRITE) return io->out.insert_bytes > 0 || io->flags & CLIENT_HALF;
    if (c->job != NULL || io->flags & CLIENT_POSTPONED) return false;
    for (const struct big_arg *b = io->big; b != NULL; b = b->next)
        if (b->sink != NULL) return true;
    return c->big != NULL;
}

/* A lease ends by time; so does this, unless bytes move. */
static void check_hold(struct client *c) {
    struct client_io *io = c->io;
    uint64_t moved = io->bytes_in + io->bytes_out, limit_ms = config->inband_hold_timeout_ms;
    if (moved != io->moved) {
        io->moved = moved;
        io->moved_ms = turn.mono_ms;
    }
    if (limit_ms == 0 || turn.mono_ms - io->moved_ms < limit_ms) return;
    client_close_because(c, LOG_LEVEL_WARNING,
                         "no byte of a value that it reads or writes has moved for %llu ms "
                         "(inband-hold-timeout)",
                         (unsigned long long)(turn.mono_ms - io->moved_ms));
    stats.inband_hold_timeouts++;
}

/* Of one that is not read from at present: the end of its input would not be seen behind what waits
 * there. */
static bool peer_left(const struct client *c) {
    struct pollfd p = {.fd = c->io->watch.fd, .events = POLLRDHUP};
    if (poll(&p, 1, 0) <= 0) return false;
    return p.revents & (POLLERR | POLLHUP) || (p.revents & POLLRDHUP && job_awaits(c));
}

/* Whose request waits to be read is not idle. */
static bool has_input(const struct client *c) {
    struct pollfd p = {.fd = c->io->watch.fd, .events = POLLIN};
    if (c->io->watch.ring != NULL) return net_ring_readable(c->io->watch.ring);
    return poll(&p, 1, 0) > 0;
}

static void client_check(struct client *c) {
    if (c->io->flags & CLIENT_CLOSE_SOON) return;
    if (UNLIKELY(c->io->away != NULL)) client_away_look(c);
    if (UNLIKELY(c->io->flags & CLIENT_READ_OFF || client_is_deaf(c)) && peer_left(c)) {
        client_close_soon(c);
        return;
    }
    if (client_unsent(c) > 0) client_output_limit(c);
    if (UNLIKELY(config->maxmemory_clients != 0)) client_weigh(c);
    if (UNLIKELY(client_holds_space(c)))
        check_hold(c);
    else
        c->io->moved = UINT64_MAX;
    if (UNLIKELY(c->io->tls != NULL) && client_tls_late(c)) return;
    uint64_t idle_s = (turn.mono_ms - c->io->last_ms) / 1000;
    if (config->timeout_s > 0 && c->job == NULL &&
        !(c->io->flags & (CLIENT_MONITOR | CLIENT_PUBSUB | CLIENT_REPLICA)) &&
        idle_s >= (uint64_t)config->timeout_s && !has_input(c)) {
        log_verbose("Closing idle client");
        stats.idle_connections_closed++;
        client_close_soon(c);
    }
}

/* Every client about once a second. Those that were looked at move to the end of the list. */
void clients_cron(unsigned hz) {
    size_t n = min_u64(clients.n / hz + 5, clients.n); /* nobody twice */
    for (; n > 0; n--) {
        struct client *c = TAILQ_TAKE(&clients.list, io->all);
        TAILQ_INSERT_TAIL(&clients.list, c, io->all);
        client_check(c);
    }
}

void client_describe(const struct client *c, struct buf *out) {
    const struct client_io *io = c->io;
    char peer[128], local[128], flags[16];
    size_t n = 0, channels, patterns, shard;
    bool in_multi = (io->flags & (CLIENT_MULTI | CLIENT_EXEC)) != 0;
    pubsub_counts(c, &channels, &patterns, &shard);
    client_peer(c, peer, sizeof(peer));
    client_local(c, local, sizeof(local));
    if (io->flags & CLIENT_REPLICA) flags[n++] = 'S';
    if (io->flags & CLIENT_MONITOR) flags[n++] = 'O';
    if (io->flags & CLIENT_PUBSUB) flags[n++] = 'P';
    if (io->tracker != NULL) flags[n++] = 't';
    if (in_multi) flags[n++] = 'x';
    bool waits = c->job != NULL && !(io->flags & (CLIENT_RUNNING | CLIENT_REPLICA));
    if (waits || io->flags & CLIENT_POSTPONED) flags[n++] = 'b';
    if (io->multi != NULL && io->multi->watcher.touched) flags[n++] = 'd';
    if (io->flags & CLIENT_CLOSE_AFTER_REPLY) flags[n++] = 'c';
    if (io->flags & CLIENT_CLOSE_SOON) flags[n++] = 'A';
    if (io->flags & CLIENT_UNIX || io->local != NULL) flags[n++] = 'U';
    if (io->watch.ring != NULL) flags[n++] = 'm';
    if (io->flags & CLIENT_NO_EVICT) flags[n++] = 'e';
    if (io->flags & CLIENT_NO_TOUCH) flags[n++] = 'T';
    if (io->flags & CLIENT_READONLY) flags[n++] = 'r';
    if (n == 0) flags[n++] = 'N';
    flags[n] = '\0';
    char events[3];
    n = 0;
    if (io->watch.events & NET_READ) events[n++] = 'r';
    if (io->watch.events & NET_WRITE) events[n++] = 'w';
    events[n] = '\0';
    buf_printf(
        out,
        "id=%llu addr=%s laddr=%s fd=%d name=%s age=%llu idle=%llu flags=%s db=%d sub=%zu psub=%zu "
        "ssub=%zu multi=%lld",
        (unsigned long long)c->id, peer, local, io->watch.fd, io->name != NULL ? io->name : "",
        (unsigned long long)(turn.mono_ms - io->created_ms) / 1000,
        (unsigned long long)(turn.mono_ms - io->last_ms) / 1000, flags, c->db, channels, patterns,
        shard, in_multi ? (long long)io->multi->count : -1);
    buf_printf(
        out,
        " qbuf=%zu qbuf-free=%zu argv-mem=%zu multi-mem=%zu rbs=0 rbp=0 obl=%zu oll=%u omem=%zu "
        "tot-mem=%zu events=%s",
        client_input_held(c), io->in.cap - io->in.len, io->heap_bytes, multi_memory(c),
        io->out.bytes.len - io->out.sent, io->out.inserts - io->out.first_insert,
        client_output_memory(c), client_memory(c), events);
    buf_printf(out,
               " cmd=%s user=%s redir=%d resp=%d lib-name=%s lib-ver=%s tarn-host=%s tarn-rack=%s "
               "tarn-traceparent=%s tot-net-in=%llu tot-net-out=%llu tot-cmds=%llu\n",
               io->last_cmd != NULL ? table_stat(io->last_cmd)->name : "NULL",
               acl_user_name(c->user), io->tracker != NULL ? 0 : -1, c->proto,
               io->lib_name != NULL ? io->lib_name : "", io->lib_ver != NULL ? io->lib_ver : "",
               c->host_name, c->rack, io->traceparent != NULL ? io->traceparent : "",
               (unsigned long long)io->bytes_in, (unsigned long long)io->bytes_out,
               (unsigned long long)io->commands);
}
