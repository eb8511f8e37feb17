/* The sockets that clients come through. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/buf.h"
#include "base/file.h"
#include "base/log.h"
#include "front/client.h"
#include "front/core.h"
#include "front/process.h"
#include "server/server.h"
#include "config/config.h"

struct listener {
    int fd; /* until it is open */
    struct net_listener *net;
    enum client_port kind;
    char address[256];
};
struct set {
    struct listener l[LISTENERS_MAX];
    size_t n;
    uint16_t port[CLIENT_PORT_TLS + 1]; /* by kind; 0: none */
    bool quiet;                         /* there is another way if it fails */
};
static struct set current;
static uint16_t any_port[CLIENT_PORT_TLS + 1]; /* what port 0 has turned out to be */
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

/* "*" is every IPv4 address, "::*" every IPv6 one; "-addr" is used where this machine has it. */
static const char *address_of(const char *word) {
    const char *addr = word[0] == '-' ? word + 1 : word;
    return strcmp(addr, "*") == 0 ? "0.0.0.0" : strcmp(addr, "::*") == 0 ? "::" : addr;
}

static bool bind_one(const struct config *c, struct set *s, enum client_port kind, const char *word,
                     const char **why_p) {
    const char *addr = word[0] == '-' ? word + 1 : word;
    struct listener *l = &s->l[s->n];
    tarn_status status = net_listen_tcp(addr, s->port[kind], (int)c->tcp_backlog, &l->fd, why_p);
    if (status == TARN_ENOTFOUND && word[0] == '-') return true;
    if (status != TARN_OK) {
        if (!s->quiet)
            log_warning("Could not create server TCP listening socket %s:%u: %s", addr,
                        s->port[kind], *why_p);
        return false;
    }
    l->net = NULL;
    l->kind = kind;
    snprintf(l->address, sizeof(l->address), "%s", address_of(word));
    if (s->port[kind] == 0) s->port[kind] = any_port[kind] = net_port(l->fd);
    s->n++;
    return true;
}

static bool has(const struct set *s, enum client_port kind, const char *word) {
    for (size_t i = 0; i < s->n; i++)
        if (s->l[i].kind == kind && strcmp(s->l[i].address, address_of(word)) == 0) return true;
    return false;
}

/* Port 0 is none, as in Redis; only where nothing else would listen it is any. Without addresses
 * there is neither. */
static bool wants(const struct config *c, enum client_port kind) {
    if (kind == CLIENT_PORT_UNIX) return c->unixsocket[0] != '\0';
    if (c->bind.n == 0) return false;
    return kind == CLIENT_PORT_TLS ? c->tls_port != 0
                                   : c->port != 0 || (c->tls_port == 0 && c->unixsocket[0] == '\0');
}

/* Is the port that is there the one that is wanted, where one is? */
static bool same_port(const struct config *c, const struct set *s, enum client_port kind) {
    int64_t wanted = kind == CLIENT_PORT_TLS ? c->tls_port : c->port;
    return s->port[kind] != 0 && (wanted <= 0 || wanted == s->port[kind]);
}

/* What is wanted and not in *s yet. */
static bool bind_all(const struct config *c, struct set *s, const char **why_p) {
    for (enum client_port kind = CLIENT_PORT_TCP; kind <= CLIENT_PORT_TLS; kind++) {
        size_t n = 0;
        if (!wants(c, kind)) continue;
        if (s->port[kind] == 0) {
            int64_t wanted = kind == CLIENT_PORT_TLS ? c->tls_port : c->port;
            s->port[kind] = wanted > 0 ? (uint16_t)wanted : any_port[kind];
        }
        for (size_t i = 0; i < c->bind.n; i++) {
            if (!has(s, kind, c->bind.word[i]) && !bind_one(c, s, kind, c->bind.word[i], why_p))
                return false;
            n += has(s, kind, c->bind.word[i]);
        }
        if (n > 0) continue;
        *why_p = "none of the addresses can be bound";
        return false;
    }
    return true;
}

uint16_t listeners_port(enum client_port kind) {
    return current.port[kind];
}

/* Without a port there is at least its number, for names that contain it. */
static void tell_ports(void) {
    uint16_t plain = current.port[CLIENT_PORT_TCP], tls = current.port[CLIENT_PORT_TLS];
    core_endpoints.port = plain != 0 ? plain
                          : tls != 0 ? tls
                                     : (uint16_t)(config->port > 0 ? config->port : 0);
    core_endpoints.tls_port = tls;
}

bool listeners_bind(void) {
    const char *why;
    if (!bind_all(config, &current, &why)) {
        bool tls = !wants(config, CLIENT_PORT_TCP) || current.port[CLIENT_PORT_TLS] != 0;
        int64_t port = tls ? config->tls_port : config->port;
        log_warning(
            "Failed listening on port %lld (%s), aborting. --%s and --bind say where to listen",
            (long long)(port > 0 ? port : 0), tls ? "TLS" : "TCP", tls ? "tls-port" : "port");
        set_close(&current);
        return false;
    }
    tell_ports();
    if (config->unixsocket[0] == '\0') return true;
    struct listener *l = &current.l[current.n];
    if (net_listen_unix(config->unixsocket, (unsigned)config->unixsocketperm,
                        (int)config->tcp_backlog, &l->fd, &why) != TARN_OK) {
        log_warning("Failed listening on unix socket %s: %s, aborting.", config->unixsocket, why);
        set_close(&current);
        return false;
    }
    l->net = NULL;
    l->kind = CLIENT_PORT_UNIX;
    current.n++;
    return true;
}

static void set_open(struct set *s) {
    static enum client_port kinds[] = {CLIENT_PORT_TCP, CLIENT_PORT_TLS, CLIENT_PORT_UNIX};
    for (size_t i = 0; i < s->n; i++)
        if (s->l[i].net == NULL)
            s->l[i].net = net_listener_open(loop, s->l[i].fd, client_accept, &kinds[s->l[i].kind]);
}

void listeners_open(struct net_loop *l) {
    loop = l;
    set_open(&current);
}

void listeners_close(void) {
    for (size_t i = 0; i < current.n; i++)
        if (current.l[i].kind == CLIENT_PORT_UNIX) unlink(config->unixsocket);
    set_close(&current);
}

/* --- changes while the server runs --- */

/* Closing a listener refuses who has connected to it and was not accepted yet. */
static void retire(struct set *s) {
    for (size_t i = 0; i < s->n; i++)
        if (s->l[i].net != NULL) net_listener_drain(s->l[i].net);
    set_close(s);
}

/* What the configuration still wants moves to *kept, the rest to *gone. */
static void sort_out(const struct config *c, const struct set *from, struct set *kept,
                     struct set *gone) {
    for (size_t i = 0; i < from->n; i++) {
        enum client_port kind = from->l[i].kind;
        bool wanted = kind == CLIENT_PORT_UNIX;
        for (size_t k = 0; k < c->bind.n && !wanted; k++)
            wanted = wants(c, kind) && same_port(c, from, kind) &&
                     strcmp(from->l[i].address, address_of(c->bind.word[k])) == 0;
        struct set *to = wanted ? kept : gone;
        to->l[to->n++] = from->l[i];
    }
    for (enum client_port kind = CLIENT_PORT_TCP; kind <= CLIENT_PORT_TLS; kind++)
        kept->port[kind] = wants(c, kind) && same_port(c, from, kind) ? from->port[kind] : 0;
    memcpy(gone->port, from->port, sizeof(gone->port));
}

/* Takes back what was bound behind the first n. */
static void unbind(struct set *s, size_t n) {
    while (s->n > n) close(s->l[--s->n].fd);
}

/* Where a new address is covered by an old one of the same port ("*" and 127.0.0.1) it cannot be
 * bound beside it: the old go first, and come back if the new cannot be. */
static bool bind_instead(const struct config *c, struct set *kept, struct set *gone,
                         const char **why_p) {
    struct set again = {.n = 0};
    size_t had = kept->n;
    const char *why;
    memcpy(again.port, gone->port, sizeof(again.port));
    retire(gone);
    kept->quiet = false;
    struct set before = *kept;
    if (bind_all(c, kept, why_p)) return true;
    unbind(kept, had);
    *kept = before;
    /* The addresses are still in gone->l, which is empty but for them. */
    for (size_t i = 0; i < LISTENERS_MAX && gone->l[i].address[0] != '\0'; i++)
        (void)bind_one(c, &again, gone->l[i].kind, gone->l[i].address, &why);
    *gone = again;
    return false;
}

/* A port that spoke plain text is to speak TLS, or the other way round. */
static bool turned(const struct config *c, const struct set *gone) {
    for (size_t i = 0; i < gone->n; i++) {
        bool tls = gone->l[i].kind == CLIENT_PORT_TLS;
        int64_t other = tls ? c->port : c->tls_port;
        if (gone->l[i].kind != CLIENT_PORT_UNIX && other == gone->port[gone->l[i].kind])
            return true;
    }
    return false;
}

bool listeners_rebind(const char **why_p) {
    const struct config *c = config;
    struct set kept = {.n = 0}, gone = {.n = 0};
    sort_out(c, &current, &kept, &gone);
    size_t had = kept.n;
    bool moved = false; /* to another port */
    for (enum client_port kind = CLIENT_PORT_TCP; kind <= CLIENT_PORT_TLS; kind++)
        moved |= wants(c, kind) && kept.port[kind] == 0;
    bool instead = gone.n > 0 && (!moved || turned(c, &gone));
    kept.quiet = instead;
    struct set before = kept;
    bool ok = bind_all(c, &kept, why_p);
    if (!ok) {
        unbind(&kept, had);
        kept = before;
        if (instead) ok = bind_instead(c, &kept, &gone, why_p);
    }
    if (ok) {
        retire(&gone);
    } else {
        for (size_t i = 0; i < gone.n; i++) kept.l[kept.n++] = gone.l[i];
        memcpy(kept.port, gone.port, sizeof(kept.port));
        *why_p = moved ? "Unable to listen on this port: see the log"
                       : "Failed to bind to specified addresses: see the log";
    }
    current = kept;
    set_open(&current);
    uint16_t port = core_endpoints.port;
    tell_ports();
    process_title_update();
    if (core_endpoints.port != port && c->port_file[0] != '\0')
        file_write_number(c->port_file, core_endpoints.port);
    return ok;
}

/* Both ports have the same ones. */
size_t listeners_addresses(const char *out[LISTENERS_MAX]) {
    enum client_port kind = current.port[CLIENT_PORT_TCP] != 0 ? CLIENT_PORT_TCP : CLIENT_PORT_TLS;
    size_t n = 0;
    for (size_t i = 0; i < current.n; i++)
        if (current.l[i].kind == kind) out[n++] = current.l[i].address;
    return n;
}
