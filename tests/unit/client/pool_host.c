/* Proxies of the hosts' data ports: frames go to and fro, request by request, as the mood is. */
#include "pool.h"

#include <errno.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include "base/assert.h"
#include "pool_host.h"
#include "transport/tcp/frame.h"

#define LINKS_MAX 256

struct host {
    uint16_t real_port, port;
    int listener; /* -1: it is dead */
    pthread_t acceptor;
    bool accepting;
    enum pool_mood mood;
    unsigned after, reads, writes;
};

/* A connection, and the one to the real host. */
struct link {
    struct host *host;
    pthread_t thread;
    int fd, up;
    uint64_t session; /* of its grants; 0: none was shown */
    bool busy;        /* takes a request, or hands it on */
    bool ended;
};

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed; /* a mood */
    struct host host[POOL_HOSTS];
    struct link link[LINKS_MAX];
    unsigned links, violations;
    uint64_t first_session;
    bool stop;
} hosts = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

/* --- sockets --- */

static bool receive_all(int fd, void *data, size_t len) {
    for (size_t done = 0; done < len;) {
        ssize_t n = recv(fd, (char *)data + done, len - done, 0);
        if (n <= 0) return false;
        done += (size_t)n;
    }
    return true;
}

static bool send_all(int fd, const void *data, size_t len) {
    for (size_t done = 0; done < len;) {
        ssize_t n = send(fd, (const char *)data + done, len - done, MSG_NOSIGNAL);
        if (n <= 0) return false;
        done += (size_t)n;
    }
    return true;
}

/* A loopback address that no other test has: the port of a dead host is free, and whoever listened
 * there next would be it. */
static uint32_t own_address(void) {
    uint32_t pid = (uint32_t)getpid();
    return UINT32_C(127) << 24 | (1 + (pid >> 16 & 63)) << 16 | (pid & 0xffff);
}

const char *pool_host_address(void) {
    static char text[16];
    struct in_addr own = {htonl(own_address())};
    return inet_ntop(AF_INET, &own, text, sizeof(text));
}

static int listen_at(uint16_t *port_p) {
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(own_address()), .sin_port = htons(*port_p)};
    socklen_t len = sizeof(a);
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)); /* and what is accepted */
    TARN_ASSERT(fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(fd, 64) == 0);
    TARN_ASSERT(getsockname(fd, (struct sockaddr *)&a, &len) == 0);
    *port_p = ntohs(a.sin_port);
    return fd;
}

static int connect_to(uint16_t port) {
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0) return fd;
    close(fd);
    return -1;
}

/* --- a connection --- */

static void reset(struct link *l) {
    struct linger hard = {1, 0};
    setsockopt(l->fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
}

/* What is done with this request. */
static enum pool_mood mood_now(struct link *l, const struct tcp_header *rq, const char *meta) {
    struct tcp_part part;
    uint64_t session;
    memcpy(&part, meta, sizeof(part));
    memcpy(&session, part.grant + 8, sizeof(session));
    pthread_mutex_lock(&hosts.mutex);
    struct host *h = l->host;
    if (hosts.first_session == 0) hosts.first_session = session;
    if (l->session == 0) l->session = session;
    if (l->session != session) hosts.violations++;
    rq->type == TCP_WRITE ? h->writes++ : h->reads++;
    /* another connection may have brought the last one that it takes */
    while (h->mood == POOL_SILENT && h->after == 0 && !hosts.stop && !l->ended)
        pthread_cond_wait(&hosts.changed, &hosts.mutex);
    enum pool_mood mood = h->mood;
    if (mood != POOL_WELL && h->after > 0) {
        h->after--;
        mood = POOL_WELL;
    }
    if (mood == POOL_FENCED && session != hosts.first_session) mood = POOL_WELL;
    pthread_mutex_unlock(&hosts.mutex);
    return mood;
}

/* Nothing of its request is on its way any more: before it hears so. */
static void is_quiet(struct link *l) {
    pthread_mutex_lock(&hosts.mutex);
    l->busy = false;
    pthread_mutex_unlock(&hosts.mutex);
}

/* The answer, or its frames; half: of the first one's bytes only a half. */
static bool relay(struct link *l, bool half) {
    struct tcp_header h;
    do {
        if (!receive_all(l->up, &h, sizeof(h))) return false;
        is_quiet(l);
        size_t len = h.meta_length + h.payload_length, told = half ? len / 2 : len;
        char *body = xmalloc(len + 1);
        bool ok = receive_all(l->up, body, len) && send_all(l->fd, &h, sizeof(h)) &&
                  send_all(l->fd, body, told);
        free(body);
        if (!ok || half) return false;
    } while (h.flags & TCP_FLAG_MORE && h.status == TCP_OK);
    return true;
}

static bool refuse(struct link *l, const struct tcp_header *rq, uint32_t status) {
    struct tcp_header h = {.magic = TCP_MAGIC,
                           .version = TCP_VERSION,
                           .type = TCP_REPLY,
                           .request_id = rq->request_id,
                           .status = status};
    return send_all(l->fd, &h, sizeof(h));
}

/* false: the connection is over. */
static bool answer(struct link *l, const struct tcp_header *rq, const char *body, size_t len) {
    static const char nonsense[] = "This is not what you think it is, whatever it may be.";
    enum pool_mood mood = rq->type == TCP_HELLO ? POOL_WELL : mood_now(l, rq, body);
    bool half = mood == POOL_HALF, write = rq->type == TCP_WRITE;
    if (mood != POOL_WELL && !half) is_quiet(l);
    switch (mood) {
    case POOL_RESET: reset(l); return false;
    case POOL_NONSENSE: return send_all(l->fd, nonsense, sizeof(nonsense) - 1);
    case POOL_STALE: return refuse(l, rq, GRANT_BAD_EPOCH);
    case POOL_FENCED: return refuse(l, rq, GRANT_FENCED);
    default: break;
    }
    if (half && write) len = rq->meta_length + rq->payload_length / 2;
    if (!send_all(l->up, rq, sizeof(*rq)) || !send_all(l->up, body, len)) return false;
    return !(half && write) && relay(l, half);
}

/* Waits while the host is silent. */
static bool may_take(struct link *l) {
    pthread_mutex_lock(&hosts.mutex);
    while (l->host->mood == POOL_SILENT && l->host->after == 0 && !hosts.stop && !l->ended)
        pthread_cond_wait(&hosts.changed, &hosts.mutex);
    bool ok = !hosts.stop && !l->ended;
    l->busy = ok;
    pthread_mutex_unlock(&hosts.mutex);
    return ok;
}

static void *serve(void *arg) {
    struct link *l = arg;
    struct tcp_header rq;
    char byte;
    /* the first byte is left where it is until it is known that the host takes requests */
    while (recv(l->fd, &byte, 1, MSG_PEEK) == 1 && may_take(l)) {
        if (!receive_all(l->fd, &rq, sizeof(rq))) break;
        size_t len = rq.meta_length + rq.payload_length;
        char *body = xmalloc(len + 1);
        bool ok = receive_all(l->fd, body, len) && answer(l, &rq, body, len);
        free(body);
        if (!ok) break;
    }
    pthread_mutex_lock(&hosts.mutex);
    l->busy = false;
    l->ended = true;
    close(l->fd);
    if (l->up >= 0) close(l->up);
    l->fd = l->up = -1;
    pthread_mutex_unlock(&hosts.mutex);
    return NULL;
}

static void *accept_all(void *arg) {
    struct host *h = arg;
    pthread_mutex_lock(&hosts.mutex);
    int listener = h->listener;
    pthread_mutex_unlock(&hosts.mutex);
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0) return NULL;
        pthread_mutex_lock(&hosts.mutex);
        bool take = !hosts.stop && h->listener == listener && hosts.links < LINKS_MAX;
        if (take) {
            struct link *l = &hosts.link[hosts.links++];
            *l = (struct link){.host = h, .fd = fd, .up = connect_to(h->real_port)};
            TARN_ASSERT(pthread_create(&l->thread, NULL, serve, l) == 0);
        }
        pthread_mutex_unlock(&hosts.mutex);
        if (!take) close(fd);
    }
}

/* --- a host comes and goes --- */

static void open_host(struct host *h) {
    h->listener = listen_at(&h->port);
    TARN_ASSERT(pthread_create(&h->acceptor, NULL, accept_all, h) == 0);
}

static void close_host(struct host *h) {
    pthread_mutex_lock(&hosts.mutex);
    int listener = h->listener;
    h->listener = -1;
    for (unsigned i = 0; i < hosts.links; i++) {
        struct link *l = &hosts.link[i];
        if (l->host != h || l->ended) continue;
        l->ended = true;
        reset(l);
        shutdown(l->fd, SHUT_RDWR);
        shutdown(l->up, SHUT_RDWR);
    }
    pthread_cond_broadcast(&hosts.changed);
    pthread_mutex_unlock(&hosts.mutex);
    if (listener < 0) return;
    shutdown(listener, SHUT_RDWR);
    pthread_join(h->acceptor, NULL);
    close(listener);
}

void pool_hosts_start(void) {
    hosts.stop = false;
    hosts.links = hosts.violations = 0;
    hosts.first_session = 0;
    for (unsigned i = 0; i < POOL_HOSTS; i++) {
        struct host *h = &hosts.host[i];
        *h = (struct host){.real_port = h->real_port};
        open_host(h);
    }
}

void pool_hosts_stop(void) {
    pthread_mutex_lock(&hosts.mutex);
    hosts.stop = true;
    pthread_mutex_unlock(&hosts.mutex);
    for (unsigned i = 0; i < POOL_HOSTS; i++) close_host(&hosts.host[i]);
    for (unsigned i = 0; i < hosts.links; i++) pthread_join(hosts.link[i].thread, NULL);
}

void pool_host_set_port(unsigned host, uint16_t port) {
    hosts.host[host].real_port = port;
}
uint16_t pool_host_port(unsigned host) {
    return hosts.host[host].port;
}

void pool_host_must_be_quiet(unsigned host) {
    pthread_mutex_lock(&hosts.mutex);
    for (unsigned i = 0; i < hosts.links; i++) {
        const struct link *l = &hosts.link[i];
        int unread = 0;
        if (l->host != &hosts.host[host] || l->ended || l->session == 0) continue;
        ioctl(l->fd, FIONREAD, &unread);
        if (l->busy || unread > 0) hosts.violations++;
    }
    pthread_mutex_unlock(&hosts.mutex);
}

/* --- what a test says --- */

void pool_mood(unsigned host, enum pool_mood mood, unsigned after) {
    struct host *h = &hosts.host[host];
    pthread_mutex_lock(&hosts.mutex);
    h->mood = mood;
    h->after = after;
    pthread_cond_broadcast(&hosts.changed);
    pthread_mutex_unlock(&hosts.mutex);
    if (mood == POOL_DEAD)
        close_host(h);
    else if (h->listener < 0)
        open_host(h);
}

void pool_move(unsigned host) {
    pool_mood(host, POOL_DEAD, 0);
    hosts.host[host].port = 0;
    pool_mood(host, POOL_WELL, 0);
}

static unsigned figure(const unsigned *of) {
    pthread_mutex_lock(&hosts.mutex);
    unsigned n = *of;
    pthread_mutex_unlock(&hosts.mutex);
    return n;
}
unsigned pool_reads(unsigned host) {
    return figure(&hosts.host[host].reads);
}
unsigned pool_writes(unsigned host) {
    return figure(&hosts.host[host].writes);
}
unsigned pool_violations(void) {
    return figure(&hosts.violations);
}
