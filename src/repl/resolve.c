#include "repl/resolve.h"

#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/thread.h"

struct repl_resolve {
    atomic_int users; /* the thread, and who asked */
    int event_fd;     /* the thread has finished */
    struct net_watch watch;
    repl_resolve_fn done;
    void *arg;
    char *host;
    uint16_t port;
    struct repl_addresses found;
    const char *why;
};

size_t repl_address_size(const struct sockaddr_storage *a) {
    return a->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

static int resolve_host(const char *host, uint16_t port, int flags, struct repl_addresses *out) {
    char service[8];
    snprintf(service, sizeof(service), "%u", port);
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | flags};
    struct addrinfo *found = NULL;
    out->n = 0;
    int rc = getaddrinfo(host, service, &hints, &found);
    for (struct addrinfo *a = found; a != NULL && out->n < REPL_ADDRESSES_MAX; a = a->ai_next)
        if (a->ai_addrlen <= sizeof(out->at[0]))
            memcpy(&out->at[out->n++], a->ai_addr, a->ai_addrlen);
    if (found != NULL) freeaddrinfo(found);
    return rc;
}

bool repl_resolve_digits(const char *host, uint16_t port, struct repl_addresses *out) {
    return resolve_host(host, port, AI_NUMERICHOST, out) == 0 && out->n > 0;
}

static void resolve_unref(struct repl_resolve *r) {
    if (atomic_fetch_sub(&r->users, 1) > 1) return;
    close(r->event_fd);
    free(r->host);
    free(r);
}

static void *resolve_run(void *arg) {
    struct repl_resolve *r = arg;
    int rc = resolve_host(r->host, r->port, 0, &r->found);
    r->why = rc != 0 ? gai_strerror(rc) : "it has no address";
    eventfd_write(r->event_fd, 1);
    resolve_unref(r);
    return NULL;
}

static void resolve_done(void *arg, unsigned events) {
    struct repl_resolve *r = arg;
    eventfd_t ignored;
    net_watch_set(&r->watch, 0);
    eventfd_read(r->event_fd, &ignored); /* behind it comes what the thread wrote before */
    r->done(r->arg, &r->found, r->why);
}

struct repl_resolve *repl_resolve_start(struct net_loop *loop, const char *host, uint16_t port,
                                        repl_resolve_fn done, void *arg) {
    pthread_t thread;
    struct repl_resolve *r = xcalloc(1, sizeof(*r));
    r->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    r->host = xstrdup(host);
    r->port = port;
    r->done = done;
    r->arg = arg;
    atomic_init(&r->users, 2);
    net_watch_init(&r->watch, loop, r->event_fd, resolve_done, r);
    bool ok = r->event_fd >= 0 && net_watch_set(&r->watch, NET_READ) == TARN_OK;
    if (ok && thread_start(&thread, "tarn-resolve", resolve_run, r) == 0) {
        pthread_detach(thread);
        return r;
    }
    if (ok) net_watch_set(&r->watch, 0);
    atomic_store(&r->users, 1);
    resolve_unref(r);
    return NULL;
}

void repl_resolve_drop(struct repl_resolve **r_p) {
    struct repl_resolve *r = *r_p;
    *r_p = NULL;
    if (r == NULL) return;
    if (r->watch.events != 0) net_watch_set(&r->watch, 0);
    resolve_unref(r);
}
