/* The fake's thread: connections in and out, its beginning and its end, and what tests say of
 * hosts. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fake_internal.h"
#include "base/assert.h"
#include "client/client.h"

struct fake_pool fake = {.mutex = PTHREAD_MUTEX_INITIALIZER};

void fake_lock(void) {
    pthread_mutex_lock(&fake.mutex);
}
void fake_unlock(void) {
    pthread_mutex_unlock(&fake.mutex);
    uint64_t one = 1;
    ssize_t n = write(fake.wake, &one, sizeof(one));
    (void)n;
}

/* --- connections --- */

/* A loopback address that no other test has: the port of a dead host is free, and whoever listened
 * there next would be it. */
static uint32_t own_address(void) {
    uint32_t pid = (uint32_t)getpid();
    return UINT32_C(127) << 24 | (1 + (pid >> 16 & 63)) << 16 | (pid & 0xffff);
}

static int listen_at(uint16_t *port_p) {
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(own_address()), .sin_port = htons(*port_p)};
    socklen_t len = sizeof(a);
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    TARN_ASSERT(fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(fd, 64) == 0);
    TARN_ASSERT(getsockname(fd, (struct sockaddr *)&a, &len) == 0);
    *port_p = ntohs(a.sin_port);
    return fd;
}

void fake_close(struct fake_conn *c, bool reset) {
    struct linger hard = {1, 0};
    if (reset) setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
    close(c->fd);
    if (c->reader != NULL) redisReaderFree(c->reader);
    buf_free(&c->in);
    buf_free(&c->out);
    *c = (struct fake_conn){0};
}

static void accept_from(int listener, int host) {
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    for (unsigned i = 0; i < CONNS; i++) {
        struct fake_conn *c = &fake.conn[i];
        if (c->fd != 0) continue;
        *c = (struct fake_conn){.fd = fd, .host = host};
        if (host < 0) {
            c->reader = redisReaderCreate();
            c->session = ++fake.next_session;
        }
        return;
    }
    close(fd);
}

void fake_say(struct fake_conn *c, const char *fmt, ...) {
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    TARN_ASSERT(n >= 0 && (size_t)n < sizeof(text));
    buf_append(&c->out, text, (size_t)n);
}

void fake_say_bulk(struct fake_conn *c, const void *data, size_t len) {
    fake_say(c, "$%zu\r\n", len);
    buf_append(&c->out, data, len);
    buf_append(&c->out, "\r\n", 2);
}

/* --- the loop --- */

/* false: it is closed. */
static bool receive(struct fake_conn *c) {
    static char bytes[256 << 10];
    ssize_t n = recv(c->fd, bytes, sizeof(bytes), 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    bool alive = n > 0;
    if (alive && c->host < 0) alive = fake_control_input(c, bytes, (size_t)n);
    if (alive && c->host >= 0) {
        buf_append(&c->in, bytes, (size_t)n);
        if (!fake_data_input(c)) return false;
    }
    if (!alive) fake_close(c, false);
    return alive;
}

static void send_out(struct fake_conn *c) {
    ssize_t n = c->out.len == 0 ? 0 : send(c->fd, c->out.data, c->out.len, MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN) {
        fake_close(c, false);
        return;
    }
    if (n > 0) buf_consume(&c->out, (size_t)n);
    if (c->out.len == 0 && c->close_when_sent) fake_close(c, false);
}

static void serve(const struct pollfd *p, const int *what, unsigned n) {
    for (unsigned i = 0; i < n; i++) {
        if (p[i].revents == 0) continue;
        if (what[i] == -1) {
            accept_from(fake.listener, -1);
        } else if (what[i] < -1) {
            int host = -2 - what[i];
            if (fake.host[host].listener == p[i].fd) accept_from(p[i].fd, host);
        } else {
            struct fake_conn *c = &fake.conn[what[i]];
            if (c->fd != p[i].fd) continue;
            bool alive = true;
            if (p[i].revents & (POLLIN | POLLHUP | POLLERR) && !c->close_when_sent)
                alive = receive(c);
            if (alive) send_out(c);
        }
    }
}

static unsigned gather(struct pollfd *p, int *what) {
    unsigned n = 0;
    p[n] = (struct pollfd){.fd = fake.listener, .events = POLLIN};
    what[n++] = -1;
    for (unsigned h = 0; h < FAKE_HOSTS; h++) {
        if (fake.host[h].listener < 0) continue;
        p[n] = (struct pollfd){.fd = fake.host[h].listener, .events = POLLIN};
        what[n++] = -2 - (int)h;
    }
    for (unsigned i = 0; i < CONNS; i++) {
        struct fake_conn *c = &fake.conn[i];
        if (c->fd == 0) continue;
        if (c->host >= 0 && c->silent) { /* it may be about to wake up */
            if (!fake_data_input(c)) continue;
            if (c->silent) continue;
        }
        short out = c->out.len > 0 || c->close_when_sent ? POLLOUT : 0;
        p[n] = (struct pollfd){.fd = c->fd, .events = (short)(POLLIN | out)};
        what[n++] = (int)i;
    }
    return n;
}

static void *run(void *arg) {
    (void)arg;
    struct pollfd p[CONNS + FAKE_HOSTS + 2];
    int what[CONNS + FAKE_HOSTS + 2];
    pthread_mutex_lock(&fake.mutex);
    while (!fake.stop) {
        unsigned n = gather(p, what);
        p[n] = (struct pollfd){.fd = fake.wake, .events = POLLIN};
        pthread_mutex_unlock(&fake.mutex);
        poll(p, n + 1, 1000);
        uint64_t ignored;
        if (p[n].revents != 0 && read(fake.wake, &ignored, sizeof(ignored)) < 0) abort();
        pthread_mutex_lock(&fake.mutex);
        serve(p, what, n);
    }
    pthread_mutex_unlock(&fake.mutex);
    return NULL;
}

void fake_start(void) {
    fake.stop = false;
    fake.lines = fake.scripts = fake.violations = 0;
    fake.next_token = fake.next_session = 0;
    fake.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct in_addr own = {htonl(own_address())};
    TARN_ASSERT(inet_ntop(AF_INET, &own, fake.address, sizeof(fake.address)) != NULL);
    fake.port = 0;
    fake.listener = listen_at(&fake.port);
    for (unsigned h = 0; h < FAKE_HOSTS; h++) {
        fake.host[h] = (struct fake_host){.memory = xcalloc(1, FAKE_BYTES)};
        strcpy(fake.host[h].tier, "memory");
        snprintf(fake.host[h].machine, sizeof(fake.host[h].machine), "m%u", h);
        fake.host[h].listener = listen_at(&fake.host[h].port);
    }
    TARN_ASSERT(pthread_create(&fake.thread, NULL, run, NULL) == 0);
}

void fake_stop(void) {
    fake_lock();
    fake.stop = true;
    fake_unlock();
    pthread_join(fake.thread, NULL);
    for (unsigned i = 0; i < CONNS; i++) {
        if (fake.conn[i].fd != 0) fake_close(&fake.conn[i], false);
    }
    for (unsigned h = 0; h < FAKE_HOSTS; h++) {
        if (fake.host[h].listener >= 0) close(fake.host[h].listener);
        free(fake.host[h].memory);
    }
    for (unsigned i = 0; i < OBJECTS; i++) {
        if (fake.object[i].used) fake_forget(&fake.object[i]);
    }
    buf_free(&fake.info);
    fake.info_fields = 0;
    close(fake.listener);
    close(fake.wake);
}

const char *fake_url(const char *options) {
    static char url[300];
    snprintf(
        url, sizeof(url),
        "tarn://"
        "%s:%u?failover_ms=60000&backoff_min_ms=2&backoff_max_ms=10&max_lanes=2&timeout_ms=20000&"
        "host_name=here%s%s",
        fake.address, fake.port, *options == '\0' ? "" : "&", options);
    return url;
}

/* --- what a test says --- */

void fake_mood(unsigned host, enum fake_mood mood, unsigned after) {
    fake_lock();
    struct fake_host *h = &fake.host[host];
    h->mood = mood;
    h->after = after;
    if (mood == FAKE_DEAD && h->listener >= 0) {
        close(h->listener);
        h->listener = -1;
        for (unsigned i = 0; i < CONNS; i++) {
            if (fake.conn[i].fd != 0 && fake.conn[i].host == (int)host)
                fake_close(&fake.conn[i], true);
        }
    }
    if (mood != FAKE_DEAD && h->listener < 0) h->listener = listen_at(&h->port);
    fake_unlock();
}

void fake_move(unsigned host) {
    fake_mood(host, FAKE_DEAD, 0);
    fake_lock();
    fake.host[host].port = 0;
    fake_unlock();
    fake_mood(host, FAKE_WELL, 0);
}

void fake_tier(unsigned host, const char *tier) {
    fake_lock();
    snprintf(fake.host[host].tier, sizeof(fake.host[host].tier), "%s", tier);
    fake_unlock();
}

void fake_epoch(unsigned host, uint32_t ahead) {
    fake_lock();
    fake.host[host].ahead = ahead;
    fake_unlock();
}

void fake_info(unsigned fields, const char *text, size_t len) {
    fake_lock();
    buf_clear(&fake.info);
    buf_append(&fake.info, text, len);
    fake.info_fields = fields;
    fake_unlock();
}

void fake_real(unsigned host, uint16_t port, const char *shm_path, const char *machine,
               const uint8_t key[GRANT_KEY_SIZE], uint32_t master_epoch) {
    fake_lock();
    struct fake_host *h = &fake.host[host];
    h->real = true;
    h->real_port = port;
    snprintf(h->shm, sizeof(h->shm), "%s", shm_path);
    snprintf(h->machine, sizeof(h->machine), "%s", machine);
    memcpy(h->key, key, GRANT_KEY_SIZE);
    h->master_epoch = master_epoch;
    fake_unlock();
}

unsigned fake_reads(unsigned host) {
    fake_lock();
    unsigned n = fake.host[host].reads;
    fake_unlock();
    return n;
}

unsigned fake_writes(unsigned host) {
    fake_lock();
    unsigned n = fake.host[host].writes;
    fake_unlock();
    return n;
}

unsigned fake_violations(void) {
    fake_lock();
    unsigned n = fake.violations;
    fake_unlock();
    return n;
}
