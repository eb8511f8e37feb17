/* The front by itself: connections over socket pairs, books, turns of the loop one at a time, and
 * commands that a test chooses. Nothing above this room is there. */
#ifndef TARN_TESTS_UNIT_FRONT_H
#define TARN_TESTS_UNIT_FRONT_H

#include "../test.h"

#include <fcntl.h>
#include <poll.h>
#include <sodium.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/log.h"
#include "cluster/cluster.h"
#include "front/above.h"
#include "front/acl_users.h"
#include "front/client.h"
#include "front/core.h"
#include "front/families.h"
#include "front/table.h"

static struct config front_values;
static struct net_loop *front_loop;
static cmd_fn front_functions[WIRE_COMMANDS];
static const char *front_refusal, *front_write_refusal; /* of the room above */

/* --- the room above, which has nothing to say --- */

static inline void front_ok(struct client *c) {
    reply_ok(c);
}
static inline bool front_restricts(void) {
    return front_refusal != NULL;
}
static inline const char *front_refuses(const struct client *c, const struct cmd *cmd) {
    return front_refusal;
}
static inline bool front_is_early(const struct client *c, const struct cmd *cmd) {
    return false;
}
static inline bool front_wait(struct client *c, const struct cmd *cmd) {
    return false;
}
static inline const char *front_refuses_writes(void) {
    return front_write_refusal;
}
static inline const char *front_master_refusal(void) {
    return NULL;
}
static inline const char *front_unwritten(void) {
    return NULL;
}
static inline void front_replica(struct client *c) {}
static inline void front_relisten(void) {}
static inline struct value_write *front_big_begin(struct client *c, const struct span *argv,
                                                  size_t argc, size_t len) {
    return NULL;
}

/* Which never runs: turns() does what it would. */
static inline void front_woke(void *arg) {}
static inline uint64_t front_turn(void *arg) {
    return 0;
}

/* --- for tests --- */

/* Every command answers OK but those of the front itself; a test may put others in their place
 * before. */
static inline void front_begin(void) {
    static const struct net_hooks hooks = {.woke = front_woke, .turn = front_turn};
    struct cluster_config nodes;
    struct store_config sc;
    for (size_t i = 0; i < WIRE_COMMANDS; i++)
        if (front_functions[i] == NULL) front_functions[i] = front_ok;
    front_functions[WIRE_multi] = cmd_multi;
    front_functions[WIRE_exec] = cmd_exec;
    front_functions[WIRE_discard] = cmd_discard;
    front_functions[WIRE_watch] = cmd_watch;
    front_functions[WIRE_unwatch] = cmd_unwatch;
    front_functions[WIRE_slowlog_get] = cmd_slowlog_get;
    above = (struct above){.functions = front_functions,
                           .restricts = front_restricts,
                           .refusal = front_refuses,
                           .is_early = front_is_early,
                           .wait = front_wait,
                           .write_refusal = front_refuses_writes,
                           .master_refusal = front_master_refusal,
                           .unwritten = front_unwritten,
                           .replica_gone = front_replica,
                           .replica_drained = front_replica,
                           .relisten = front_relisten,
                           .big_begin = front_big_begin};
    front_refusal = front_write_refusal = NULL;
    log_set_level(LOG_LEVEL_NOTHING);
    TARN_ASSERT(sodium_init() >= 0);
    config_init(&front_values);
    config = &front_values;
    front_loop = net_loop_create(&hooks);
    core_init(front_loop);
    store_config_init(&sc);
    core_store_config(config, &sc);
    books = store_create(&sc, NULL, "lru", "offset", turn.mono_ms, turn.wall_ms);
    cluster_config_init(&nodes);
    nodes.node_timeout_ms = 3600000;
    cluster_init(
        &(struct cluster_options){
            .store = books, .master_epoch = 7, .machine = core_machine(), .mono_ms = turn.mono_ms},
        &nodes);
}

static inline void front_end(void) {
    client_close_all();
    core_deinit();
    cluster_deinit();
    store_destroy(&books);
    net_loop_destroy(&front_loop);
    config_deinit(&front_values);
    config = NULL;
}

static inline void turns(unsigned n) {
    for (; n > 0; n--) {
        core_stamp_wall();
        CLIENTS_EACH(c) {
            const struct net_watch *w = &c->io->watch;
            struct pollfd p = {.fd = w->fd,
                               .events = (short)((w->events & NET_READ ? POLLIN : 0) |
                                                 (w->events & NET_WRITE ? POLLOUT : 0))};
            if (w->events == 0 || poll(&p, 1, 0) <= 0) continue;
            client_on_event(c, (p.revents & ~POLLOUT ? NET_READ : 0u) |
                                   (p.revents & POLLOUT ? NET_WRITE : 0u));
        }
        core_stamp();
        clients_run_ready();
        jobs_run();
        pause_tick();
        clients_flush();
        client_free_closed();
    }
}

/* One end of a connection; *client_p: what the server makes of the other. */
static inline int call(struct client **client_p) {
    struct sockaddr_storage nobody = {.ss_family = AF_UNIX};
    enum client_port port = CLIENT_PORT_UNIX;
    int fd[2];
    TARN_ASSERT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fd) == 0);
    client_accept(&port, fd[1], &nobody);
    *client_p = TAILQ_LAST(&clients.list, client_list);
    return fd[0];
}

/* Says it, and returns what has been answered after some turns, as far as it is read: whether there
 * are line ends or not is of no matter, so "\r\n" is a blank. */
static inline const char *heard(int fd) {
    static char text[65536];
    size_t len = 0, kept = 0;
    turns(4);
    for (ssize_t n;
         len + 1 < sizeof(text) && (n = read(fd, text + len, sizeof(text) - 1 - len)) > 0;)
        len += (size_t)n;
    for (size_t i = 0; i < len; i++)
        if (text[i] != '\r') text[kept++] = text[i] == '\n' ? ' ' : text[i];
    if (kept > 0 && text[kept - 1] == ' ') kept--;
    text[kept] = '\0';
    return text;
}
static inline const char *say(int fd, const char *line) {
    TARN_ASSERT(write(fd, line, strlen(line)) == (ssize_t)strlen(line));
    TARN_ASSERT(write(fd, "\r\n", 2) == 2);
    return heard(fd);
}

#endif
