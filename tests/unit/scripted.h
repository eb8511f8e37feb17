/* A server of RESP that does what a test says: it keeps a log of what it is asked, answers by
 * rules, hangs up in the middle, and hands on what no rule is about. A thread per connection;
 * everything is under one mutex. */
#ifndef TARN_TESTS_UNIT_SCRIPTED_H
#define TARN_TESTS_UNIT_SCRIPTED_H

#include <arpa/inet.h>
#include <ctype.h>
#include <fnmatch.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/clock.h"
#include "resp/resp.h"

#define SCRIPTED_CONNS   128
#define SCRIPTED_LINES   8192
#define SCRIPTED_RULES   24
#define SCRIPTED_WAIT_MS TEST_PATIENCE_MS

enum scripted_how {
    SCRIPTED_SAY,    /* does nothing, and says this; "": hangs up */
    SCRIPTED_UNSAID, /* does it, and hangs up instead of answering */
    SCRIPTED_CUT,    /* does it, answers half, hangs up */
};

struct scripted;
struct scripted_conn {
    struct scripted *s;
    int fd;
    pthread_t thread;
    void *own; /* of answer */
};

struct scripted {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    /* What no rule is about: its answer is appended. false: hang up. The mutex is not held. */
    bool (*answer)(struct scripted_conn *c, const struct span *argv, size_t argc, struct buf *out);
    void (*closed)(struct scripted_conn *c); /* NULL, or gives back c->own */
    int listen_fd;
    uint16_t port;
    char url[64];
    pthread_t acceptor;
    struct scripted_conn conn[SCRIPTED_CONNS];
    size_t n_conns;
    bool stop, deaf; /* deaf: hangs up on whoever calls */
    char *line[SCRIPTED_LINES];
    size_t lines, mark; /* scripted_saw looks from mark on */
    unsigned kicks;
    struct {
        char *pattern, *reply; /* RESP */
        unsigned after, times;
        enum scripted_how how;
    } rule[SCRIPTED_RULES];
    size_t n_rules;
};

/* Some time of waiting for s->changed. */
static inline void scripted_wait(struct scripted *s, uint64_t until_ms) {
    struct timespec ts = {.tv_sec = (time_t)(until_ms / 1000),
                          .tv_nsec = (long)(until_ms % 1000) * 1000000};
    pthread_cond_timedwait(&s->changed, &s->mutex, &ts);
}

/* --- answers --- */

static inline void put_bulk(struct buf *out, const char *s, size_t len) {
    resp_write_bulk(out, s, len);
}
static inline void put_field(struct buf *out, const char *name, uint64_t value) {
    resp_write_bulk(out, name, strlen(name));
    resp_write_int(out, (int64_t)value);
}

static inline void scripted_note(struct scripted *s, const struct span *argv, size_t argc) {
    struct buf line = {0};
    for (size_t i = 0; i < argc; i++) {
        if (i > 0) buf_append_char(&line, ' ');
        for (size_t k = 0; k < argv[i].len; k++)
            buf_append_char(&line, isprint((unsigned char)argv[i].data[k]) ? argv[i].data[k] : '?');
    }
    buf_append_char(&line, '\0');
    TARN_ASSERT(s->lines < SCRIPTED_LINES);
    s->line[s->lines++] = line.data;
    pthread_cond_broadcast(&s->changed);
}

/* The rule about the last line, which is used up; -1: none. */
static inline int scripted_take_rule(struct scripted *s) {
    for (size_t i = 0; i < s->n_rules; i++) {
        if (s->rule[i].times == 0 || fnmatch(s->rule[i].pattern, s->line[s->lines - 1], 0) != 0)
            continue;
        if (s->rule[i].after > 0) {
            s->rule[i].after--;
            return -1;
        }
        s->rule[i].times--;
        return (int)i;
    }
    return -1;
}

/* false: hang up. */
static inline bool scripted_answer(struct scripted_conn *c, const struct span *argv, size_t argc,
                                   struct buf *out) {
    struct scripted *s = c->s;
    enum scripted_how how = SCRIPTED_SAY;
    pthread_mutex_lock(&s->mutex);
    scripted_note(s, argv, argc);
    int rule = scripted_take_rule(s);
    if (rule >= 0) how = s->rule[rule].how;
    if (rule >= 0 && how == SCRIPTED_SAY) buf_append_str(out, s->rule[rule].reply);
    pthread_mutex_unlock(&s->mutex);
    if (rule >= 0 && how == SCRIPTED_SAY) return out->len > 0;
    bool ok = true;
    if (s->answer != NULL)
        ok = s->answer(c, argv, argc, out);
    else
        buf_append_str(out, "+OK\r\n");
    if (rule < 0) return ok;
    out->len = how == SCRIPTED_CUT ? out->len / 2 : 0;
    return false;
}

static inline bool scripted_send(int fd, const void *data, size_t len) {
    for (size_t done = 0; done < len;) {
        ssize_t n = send(fd, (const char *)data + done, len - done, MSG_NOSIGNAL);
        if (n <= 0) return false;
        done += (size_t)n;
    }
    return true;
}

static inline void *scripted_serve(void *arg) {
    struct scripted_conn *c = arg;
    struct resp_parser parser = {0};
    struct resp_limits limits = {1000000, 1u << 29, 1u << 16, SIZE_MAX, false};
    struct buf in = {0}, out = {0};
    char bytes[16384];
    bool ok = true;
    while (ok) {
        ssize_t n = recv(c->fd, bytes, sizeof(bytes), 0);
        if (n <= 0) break;
        buf_append(&in, bytes, (size_t)n);
        size_t used;
        while (ok && resp_parse(&parser, &limits, in.data, in.len, &used) == RESP_REQUEST) {
            if (parser.argc > 0) ok = scripted_answer(c, parser.argv, parser.argc, &out);
            buf_consume(&in, used);
            ok = scripted_send(c->fd, out.data, out.len) && ok;
            buf_clear(&out);
        }
    }
    shutdown(c->fd, SHUT_RDWR);
    if (c->s->closed != NULL) c->s->closed(c);
    resp_parser_free(&parser);
    buf_free(&in);
    buf_free(&out);
    return NULL;
}

static inline void *scripted_accept(void *arg) {
    struct scripted *s = arg;
    for (;;) {
        int fd = accept(s->listen_fd, NULL, NULL);
        if (fd < 0) return NULL;
        pthread_mutex_lock(&s->mutex);
        bool take = !s->stop && !s->deaf && s->n_conns < SCRIPTED_CONNS;
        if (take) {
            struct scripted_conn *c = &s->conn[s->n_conns++];
            *c = (struct scripted_conn){.s = s, .fd = fd};
            pthread_create(&c->thread, NULL, scripted_serve, c);
        }
        pthread_mutex_unlock(&s->mutex);
        if (!take) close(fd);
    }
}

/* --- for tests --- */

static inline void scripted_start(struct scripted *s) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    pthread_condattr_t attr;
    *s = (struct scripted){.answer = s->answer, .closed = s->closed};
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->changed, &attr);
    pthread_condattr_destroy(&attr);
    s->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int one = 1; /* for what is accepted, too: else pieces of an answer wait 40 ms for each other */
    CHECK(setsockopt(s->listen_fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) == 0);
    CHECK(bind(s->listen_fd, (struct sockaddr *)&a, len) == 0 && listen(s->listen_fd, 64) == 0);
    CHECK(getsockname(s->listen_fd, (struct sockaddr *)&a, &len) == 0);
    s->port = ntohs(a.sin_port);
    snprintf(s->url, sizeof(s->url), "tarn://127.0.0.1:%u?backoff_min_ms=1&backoff_max_ms=20",
             s->port);
    pthread_create(&s->acceptor, NULL, scripted_accept, s);
}

/* Breaks all connections; deaf: and takes no others until scripted_hear. */
static inline void scripted_kick(struct scripted *s, bool deaf) {
    pthread_mutex_lock(&s->mutex);
    s->deaf = deaf;
    s->kicks++;
    for (size_t i = 0; i < s->n_conns; i++) shutdown(s->conn[i].fd, SHUT_RDWR);
    s->mark = s->lines;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
}

static inline void scripted_hear(struct scripted *s) {
    pthread_mutex_lock(&s->mutex);
    s->deaf = false;
    pthread_mutex_unlock(&s->mutex);
}

static inline void scripted_stop(struct scripted *s) {
    pthread_mutex_lock(&s->mutex);
    s->stop = true;
    pthread_mutex_unlock(&s->mutex);
    scripted_kick(s, true);
    shutdown(s->listen_fd, SHUT_RDWR);
    pthread_join(s->acceptor, NULL);
    for (size_t i = 0; i < s->n_conns; i++) {
        pthread_join(s->conn[i].thread, NULL);
        close(s->conn[i].fd);
    }
    close(s->listen_fd);
    for (size_t i = 0; i < s->lines; i++) free(s->line[i]);
    for (size_t i = 0; i < s->n_rules; i++) {
        free(s->rule[i].pattern);
        free(s->rule[i].reply);
    }
    pthread_mutex_destroy(&s->mutex);
    pthread_cond_destroy(&s->changed);
}

/* What is done with commands like this: after so many others, so many times. */
static inline void scripted_script(struct scripted *s, const char *pattern, unsigned after,
                                   unsigned times, enum scripted_how how, const char *reply) {
    pthread_mutex_lock(&s->mutex);
    size_t i = 0;
    while (i < s->n_rules && s->rule[i].times > 0) i++;
    CHECK(i < SCRIPTED_RULES);
    if (i == s->n_rules) s->n_rules++;
    free(s->rule[i].pattern);
    free(s->rule[i].reply);
    s->rule[i].pattern = xstrdup(pattern);
    s->rule[i].reply = xstrdup(reply != NULL ? reply : "");
    s->rule[i].after = after;
    s->rule[i].times = times;
    s->rule[i].how = how;
    pthread_mutex_unlock(&s->mutex);
}
/* The next so many are answered with that; "" hangs up. */
static inline void scripted_rule(struct scripted *s, const char *pattern, unsigned times,
                                 const char *reply) {
    scripted_script(s, pattern, 0, times, SCRIPTED_SAY, reply);
}

/* Waits for a command like this; later calls look behind it. */
static inline bool scripted_saw(struct scripted *s, const char *pattern) {
    uint64_t until = clock_mono_ms() + SCRIPTED_WAIT_MS;
    bool seen = false;
    pthread_mutex_lock(&s->mutex);
    size_t i = s->mark;
    while (!seen) {
        for (; i < s->lines && !seen; i++) {
            seen = fnmatch(pattern, s->line[i], 0) == 0;
            if (seen) s->mark = i + 1;
        }
        if (seen || clock_mono_ms() >= until) break;
        scripted_wait(s, until);
    }
    if (!seen) {
        printf("# nothing like \"%s\"; since the last match it was asked:\n", pattern);
        for (i = s->mark; i < s->lines; i++) printf("#   %s\n", s->line[i]);
    }
    pthread_mutex_unlock(&s->mutex);
    return seen;
}

/* How many commands were like this, as in fnmatch: "PUTSTART k 100 *AVOID n1.0*". Bytes that are
 * not text are '?'. */
static inline unsigned scripted_count(struct scripted *s, const char *pattern) {
    unsigned n = 0;
    pthread_mutex_lock(&s->mutex);
    for (size_t i = 0; i < s->lines; i++) n += fnmatch(pattern, s->line[i], 0) == 0;
    pthread_mutex_unlock(&s->mutex);
    return n;
}

#endif
