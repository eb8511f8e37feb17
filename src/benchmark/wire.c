/* A plain blocking RESP connection that costs this side little: requests are built by the caller in one buffer, replies are
 * skipped line by line. Any failure ends the program: a load generator has nobody to hand it to. */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "benchmark/bench.h"

#define IN_BYTES (256u << 10)

static int connect_to(const struct bench *b) {
    char port[8];
    snprintf(port, sizeof(port), "%u", b->port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list;
    int rc = getaddrinfo(b->host, port, &hints, &list), fd = -1;
    if (rc != 0) die("cannot resolve %s: %s", b->host, gai_strerror(rc));
    for (struct addrinfo *ai = list; ai != NULL && fd < 0; ai = ai->ai_next) {
        fd = socket(ai->ai_family, ai->ai_socktype | SOCK_CLOEXEC, ai->ai_protocol);
        if (fd >= 0 && connect(fd, ai->ai_addr, ai->ai_addrlen) != 0) {
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(list);
    if (fd < 0) die("cannot connect to %s:%s: %s", b->host, port, strerror(errno));
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return fd;
}

struct wire *wire_open(const struct bench *b) {
    struct wire *w = xcalloc(1, sizeof(*w));
    w->fd = connect_to(b);
    w->cap = IN_BYTES;
    w->in = xmalloc(w->cap);
    if (b->password != NULL) {
        if (b->user != NULL) {
            buf_printf(&w->out, "*3\r\n$4\r\nAUTH\r\n$%zu\r\n%s\r\n", strlen(b->user), b->user);
        } else {
            buf_printf(&w->out, "*2\r\n$4\r\nAUTH\r\n");
        }
        buf_printf(&w->out, "$%zu\r\n%s\r\n", strlen(b->password), b->password);
        wire_flush(w);
        wire_skip(w, 1);
        if (w->errors > 0) die("the server refused the password: %s", w->error);
    }
    return w;
}

void wire_close(struct wire **wire_p) {
    struct wire *w = *wire_p;
    *wire_p = NULL;
    close(w->fd);
    buf_free(&w->out);
    free(w->in);
    free(w);
}

void wire_send(struct wire *w, const void *data, size_t len) {
    for (const char *at = data; len > 0;) {
        ssize_t n = send(w->fd, at, len, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) die("sending to the server: %s", strerror(errno));
        at += n;
        len -= (size_t)n;
    }
}

void wire_flush(struct wire *w) {
    wire_send(w, w->out.data, w->out.len);
    buf_clear(&w->out);
}

static void fill(struct wire *w) {
    if (w->start == w->end) w->start = w->end = 0;
    if (w->end == w->cap) {
        if (w->start == 0) {
            w->cap *= 2;
            w->in = xrealloc(w->in, w->cap);
        } else {
            memmove(w->in, w->in + w->start, w->end - w->start);
            w->end -= w->start;
            w->start = 0;
        }
    }
    ssize_t n;
    do {
        n = recv(w->fd, w->in + w->end, w->cap - w->end, 0);
    } while (n < 0 && errno == EINTR);
    if (n <= 0) die("the server closed the connection%s%s", w->error[0] ? ": " : "", w->error);
    w->end += (size_t)n;
}

const char *wire_line(struct wire *w, size_t *len_p) {
    size_t seen = 0;
    for (;;) {
        const char *from = w->in + w->start + seen;
        const char *lf = memchr(from, '\n', w->end - w->start - seen);
        if (lf != NULL) {
            const char *line = w->in + w->start;
            *len_p = (size_t)(lf - line) - 1;
            w->start += (size_t)(lf - line) + 1;
            return line;
        }
        seen = w->end - w->start;
        fill(w);
    }
}

int64_t wire_int(struct wire *w, const char *line, size_t len) {
    int64_t v;
    if (len < 2 || !span_to_i64(span_of(line + 1, len - 1), &v))
        die("the server does not speak RESP: \"%.*s\"", (int)len, line);
    return v;
}

void wire_note_error(struct wire *w, const char *line, size_t len) {
    if (w->errors++ == 0) snprintf(w->error, sizeof(w->error), "%.*s", (int)len - 1, line + 1);
}

static void skip_bytes(struct wire *w, size_t n) {
    while (n > w->end - w->start) {
        n -= w->end - w->start;
        w->start = w->end;
        fill(w);
    }
    w->start += n;
}

/* How many replies still have to follow because of this line. */
static size_t open_line(struct wire *w, const char *line, size_t len) {
    int64_t n;
    switch (line[0]) {
    case '$':
        n = wire_int(w, line, len);
        if (n >= 0) skip_bytes(w, (size_t)n + 2);
        return 0;
    case '*': n = wire_int(w, line, len); return n > 0 ? (size_t)n : 0;
    case '-': wire_note_error(w, line, len); return 0;
    default: return 0;
    }
}

void wire_skip(struct wire *w, size_t n) {
    while (n > 0) {
        size_t len;
        const char *line = wire_line(w, &len);
        n += open_line(w, line, len);
        n--;
    }
}

void wire_skip_rest(struct wire *w, const char *line) {
    size_t len = strcspn(line, "\r");
    wire_skip(w, open_line(w, line, len));
}

void wire_bulk(struct wire *w, void *to, size_t len) {
    size_t have = w->end - w->start, take = have < len ? have : len;
    memcpy(to, w->in + w->start, take);
    w->start += take;
    char *at = (char *)to + take;
    for (len -= take; len > 0;) {
        ssize_t n = recv(w->fd, at, len, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) die("the server closed the connection");
        at += n;
        len -= (size_t)n;
    }
    skip_bytes(w, 2);
}
