/* The sockets that clients come through. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/buf.h"
#include "base/log.h"
#include "cmd/client.h"
#include "cmd/core.h"
#include "server/server.h"

struct listener {
    int fd; /* until it is open */
    struct net_listener *net;
    bool is_unix;
    char address[256];
};
struct set {
    struct listener l[LISTENERS_MAX];
    size_t n;
    uint16_t port;
};
static struct set current;
static struct net_loop *loop;

static void set_close(struct set *s) {
    for (size_t i = 0; i < s->n; i++) {
        if (s->l[i].net != NULL)
            net_listener_close(&s->l[i].net);
        else
            close(s->l[i].fd);
    }
    s->n = 0;
}

/* "-addr" is used where this machine has it; "*" is every IPv4 address, "::*" every IPv6 one. An empty list is "*". */
static bool bind_one(const struct config *c, struct set *s, const char *word, const char **why_p) {
    bool optional = word[0] == '-';
    const char *addr = optional ? word + 1 : word;
    struct listener *l = &s->l[s->n];
    uint16_t port = s->port != 0 ? s->port : (uint16_t)c->port;
    tarn_status status = net_listen_tcp(addr, port, (int)c->tcp_backlog, &l->fd, why_p);
    if (status == TARN_ENOTFOUND && optional) return true;
    if (status != TARN_OK) {
        log_warning("Could not create server TCP listening socket %s:%u: %s", addr, port, *why_p);
        return false;
    }
    l->net = NULL;
    l->is_unix = false;
    const char *shown = strcmp(addr, "*") == 0 ? "0.0.0.0" : strcmp(addr, "::*") == 0 ? "::" : addr;
    size_t len = strlen(shown);
    memcpy(l->address, shown, len < sizeof(l->address) ? len + 1 : sizeof(l->address));
    l->address[sizeof(l->address) - 1] = '\0';
    if (s->port == 0) s->port = net_port(l->fd);
    s->n++;
    return true;
}

static bool bind_all(const struct config *c, struct set *s, const char **why_p) {
    *why_p = "none of the addresses can be bound";
    for (size_t i = 0; i < c->bind.n; i++)
        if (!bind_one(c, s, c->bind.word[i], why_p)) return false;
    if (c->bind.n == 0 && !bind_one(c, s, "*", why_p)) return false;
    return s->n > 0;
}

bool listeners_bind(const struct config *config) {
    const char *why;
    if (!bind_all(config, &current, &why)) {
        log_warning("Failed listening on port %lld (TCP), aborting.", (long long)config->port);
        set_close(&current);
        return false;
    }
    core_endpoints.port = current.port;
    if (config->unixsocket[0] == '\0') return true;
    struct listener *l = &current.l[current.n];
    if (net_listen_unix(config->unixsocket, (unsigned)config->unixsocketperm, (int)config->tcp_backlog,
                        &l->fd, &why) != TARN_OK) {
        log_warning("Failed listening on unix socket %s: %s, aborting.", config->unixsocket, why);
        set_close(&current);
        return false;
    }
    l->net = NULL;
    l->is_unix = true;
    current.n++;
    return true;
}

static void set_open(struct set *s) {
    static char is_unix; /* its address says so to client_accept */
    for (size_t i = 0; i < s->n; i++)
        if (s->l[i].net == NULL)
            s->l[i].net =
                net_listener_open(loop, s->l[i].fd, client_accept, s->l[i].is_unix ? &is_unix : NULL);
}

void listeners_open(struct net_loop *l) {
    loop = l;
    set_open(&current);
}

void listeners_close(void) {
    for (size_t i = 0; i < current.n; i++)
        if (current.l[i].is_unix) unlink(server.config->unixsocket);
    set_close(&current);
}

/* The old sockets go first, because an address that stays cannot be bound twice; if the new ones fail they come back. */
bool listeners_rebind(const char **why_p) {
    struct set next = {.n = 0}, tcp = {.n = 0}, kept = {.n = 0};
    for (size_t i = 0; i < current.n; i++) {
        struct set *to = current.l[i].is_unix ? &kept : &tcp;
        to->l[to->n++] = current.l[i];
    }
    set_close(&tcp);
    bool ok = bind_all(server.config, &next, why_p);
    if (!ok) set_close(&next);
    for (size_t i = 0; i < kept.n; i++) next.l[next.n++] = kept.l[i];
    current = next;
    if (current.port != 0) core_endpoints.port = current.port;
    set_open(&current);
    return ok;
}

size_t listeners_addresses(const char *out[LISTENERS_MAX]) {
    size_t n = 0;
    for (size_t i = 0; i < current.n; i++)
        if (!current.l[i].is_unix) out[n++] = current.l[i].address;
    return n;
}
