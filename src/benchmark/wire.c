/* A blocking RESP connection that costs this side little: requests are built by the caller in one
 * buffer, replies are skipped line by line. Any failure ends the program: a load generator has
 * nobody to hand it to. */
#include <stdio.h>
#include <stdlib.h>

#include "benchmark/bench.h"

#define IN_BYTES (256u << 10)

bool auth_request(const struct bench *b, struct buf *out) {
    if (b->password == NULL && b->user == NULL) return false;
    const char *password = b->password != NULL ? b->password : ""; /* of a user who needs none */
    buf_printf(out, "*%u\r\n$4\r\nAUTH\r\n", b->user != NULL ? 3 : 2);
    if (b->user != NULL) buf_printf(out, "$%zu\r\n%s\r\n", strlen(b->user), b->user);
    buf_printf(out, "$%zu\r\n%s\r\n", strlen(password), password);
    return true;
}

struct wire *wire_open(const struct bench *b) {
    struct wire *w = xcalloc(1, sizeof(*w));
    pipe_open(&w->pipe, b);
    w->cap = IN_BYTES;
    w->in = xmalloc(w->cap);
    if (auth_request(b, &w->out)) {
        wire_flush(w);
        wire_skip(w, 1);
        if (w->errors > 0)
            die("the server refused user and password: %s (-a PASSWORD, --user NAME)", w->error);
    }
    /* it refuses large requests of strangers with other words */
    buf_printf(&w->out, "*1\r\n$4\r\nPING\r\n");
    wire_flush(w);
    wire_skip(w, 1);
    if (w->errors > 0 && strncmp(w->error, "NOAUTH", 6) == 0)
        die("the server wants a password (-a PASSWORD, --user NAME): %s", w->error);
    w->errors = 0;
    w->error[0] = '\0';
    return w;
}

void wire_close(struct wire **wire_p) {
    struct wire *w = *wire_p;
    *wire_p = NULL;
    pipe_close(&w->pipe);
    buf_free(&w->out);
    free(w->in);
    free(w);
}

void wire_send(struct wire *w, const void *data, size_t len) {
    pipe_send(&w->pipe, data, len);
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
    ssize_t n = pipe_receive(&w->pipe, w->in + w->end, w->cap - w->end, true);
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
        ssize_t n = pipe_receive(&w->pipe, at, len, true);
        if (n <= 0) die("the server closed the connection");
        at += n;
        len -= (size_t)n;
    }
    skip_bytes(w, 2);
}
