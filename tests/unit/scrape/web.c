#include "web.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/assert.h"

static bool say(int fd, const char *text) {
    return send(fd, text, strlen(text), MSG_NOSIGNAL) == (ssize_t)strlen(text);
}

/* Until the peer has gone, or it is stopped. */
static void linger(struct web *w, int fd, const char *drop) {
    char block[256];
    while (!w->stop) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, 20) == 1 && recv(fd, block, sizeof(block), 0) <= 0) return;
        if (drop != NULL && !say(fd, drop)) return;
    }
}

/* A request's head. false: the peer has gone. */
static bool hear(struct web *w, int fd) {
    char head[2048];
    size_t n = 0;
    while (!w->stop && n + 1 < sizeof(head)) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, 20) != 1) continue;
        ssize_t got = recv(fd, head + n, sizeof(head) - 1 - n, 0);
        if (got <= 0) return false;
        n += (size_t)got;
        head[n] = '\0';
        if (strstr(head, "\r\n\r\n") != NULL) return true;
    }
    return false;
}

static void serve(struct web *w, int fd) {
    char head[256];
    enum web_mode mode = w->mode;
    w->requests++;
    switch (mode) {
    case WEB_ANSWERS:
    case WEB_CUT:
        snprintf(head, sizeof(head), "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n",
                 strlen(w->text) + (mode == WEB_CUT));
        (void)(say(fd, head) && say(fd, w->text));
        return;
    case WEB_NOT_FOUND: say(fd, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"); return;
    case WEB_REDIRECTS:
        snprintf(
            head, sizeof(head),
            "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:%u/\r\nContent-Length: 0\r\n\r\n",
            w->port);
        say(fd, head);
        return;
    case WEB_SILENT: linger(w, fd, NULL); return;
    case WEB_DRIPS:
        say(fd, "HTTP/1.1 200 OK\r\n\r\n");
        linger(w, fd, "#");
        return;
    case WEB_ENDLESS:
        say(fd, "HTTP/1.1 200 OK\r\n\r\n");
        while (!w->stop && say(fd, w->text)) continue;
        return;
    case WEB_HEADERS:
        say(fd, "HTTP/1.1 200 OK\r\n");
        while (!w->stop && say(fd, "X-More: and more, and more, and more of it\r\n")) continue;
        return;
    case WEB_GARBAGE: say(fd, "\x7f\x45\x4c\x46 this is no answer\n\n"); return;
    }
}

static void *web_run(void *arg) {
    struct web *w = arg;
    while (!w->stop) {
        struct pollfd p = {.fd = w->fd, .events = POLLIN};
        int fd = poll(&p, 1, 20) == 1 ? accept(w->fd, NULL, NULL) : -1;
        if (fd < 0) continue;
        if (hear(w, fd)) serve(w, fd);
        close(fd);
    }
    return NULL;
}

void web_start(struct web *w, enum web_mode mode, uint16_t port, const char *text) {
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
    socklen_t len = sizeof(a);
    int one = 1;
    *w = (struct web){.mode = mode};
    snprintf(w->text, sizeof(w->text), "%s", text);
    w->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    TARN_ASSERT(w->fd >= 0);
    setsockopt(w->fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    TARN_ASSERT(bind(w->fd, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(w->fd, 16) == 0);
    TARN_ASSERT(getsockname(w->fd, (struct sockaddr *)&a, &len) == 0);
    w->port = ntohs(a.sin_port);
    TARN_ASSERT(pthread_create(&w->thread, NULL, web_run, w) == 0);
}

void web_stop(struct web *w) {
    w->stop = true;
    pthread_join(w->thread, NULL);
    close(w->fd);
}
