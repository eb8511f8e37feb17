/* A master that plays a script: answers what a storage node asks, keeps a log of it, hands out the
 * work that a test gives it, and misbehaves where a rule says so. A thread per connection;
 * everything is under one mutex. */
#ifndef TARN_TESTS_FAKE_MASTER_H
#define TARN_TESTS_FAKE_MASTER_H

#include <arpa/inet.h>
#include <ctype.h>
#include <fnmatch.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/clock.h"
#include "client/client.h"
#include "resp/resp.h"

#define MASTER_CONNS   64
#define MASTER_LINES   4096
#define MASTER_RULES   16
#define MASTER_WAIT_MS TEST_PATIENCE_MS

struct master {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int listen_fd;
    uint16_t port;
    char url[64];
    pthread_t acceptor, threads[MASTER_CONNS];
    int fds[MASTER_CONNS];
    size_t n_conns;
    bool stop, deaf; /* deaf: hangs up on whoever calls */
    char *line[MASTER_LINES];
    size_t lines, mark; /* master_saw looks from mark on */
    unsigned beats, kicks;
    /* what it says */
    uint32_t epoch;
    char key[17], cluster[33];
    unsigned heartbeat_ms, max_lease_ms, node_timeout_ms, first_segment_epoch;
    char *work[64]; /* RESP of an item each */
    size_t n_work;
    struct {
        const char *pattern, *reply; /* RESP; "" hangs up */
        int times;
    } rules[MASTER_RULES];
    size_t n_rules;
    struct {
        char name[64], content[40];
    } mounts[32]; /* id is the index and 1 */
    size_t n_mounts;
    struct {
        char key[64], value[65];
        unsigned version;
    } objects[16];
    size_t n_objects;
    /* not confirmed: handed out after each JOIN, before that NODE UP is AGAIN */
    uint64_t fences[8];
    size_t n_fences, fences_told;
    size_t offer_forget; /* answers to the offers of so many entries that come first: 0 */
    unsigned offer_add;  /* added to the versions of the others */
};

static __thread int master_fd; /* of the connection that the thread serves */

static inline void master_note(struct master *m, const char *line) {
    if (m->lines == MASTER_LINES) return;
    m->line[m->lines++] = xstrdup(line);
    pthread_cond_broadcast(&m->changed);
}

static inline void master_wait(struct master *m, uint64_t until_ms) {
    struct timespec ts = {.tv_sec = (time_t)(until_ms / 1000),
                          .tv_nsec = (long)(until_ms % 1000) * 1000000};
    pthread_cond_timedwait(&m->changed, &m->mutex, &ts);
}

/* --- answers --- */

static inline void put_bulk(struct buf *out, const char *s, size_t len) {
    buf_printf(out, "$%zu\r\n", len);
    buf_append(out, s, len);
    buf_append_str(out, "\r\n");
}

static inline void put_field(struct buf *out, const char *name, uint64_t value) {
    put_bulk(out, name, strlen(name));
    buf_printf(out, ":%llu\r\n", (unsigned long long)value);
}

static inline void answer_join(struct master *m, struct buf *out) {
    m->fences_told = 0;
    buf_append_str(out, "*16\r\n");
    put_field(out, "node-id", 1);
    put_field(out, "master-epoch", m->epoch);
    put_bulk(out, "grant-key", 9);
    put_bulk(out, m->key, 16);
    put_field(out, "clock", clock_mono_ms());
    put_field(out, "heartbeat", m->heartbeat_ms);
    put_field(out, "node-timeout", m->node_timeout_ms);
    put_field(out, "max-lease", m->max_lease_ms);
    put_bulk(out, "cluster-id", 10);
    put_bulk(out, m->cluster, 32);
}

static inline void answer_mount(struct master *m, const struct span *argv, size_t argc,
                                struct buf *out) {
    char name[64], content[40] = "";
    bool kept = false;
    size_t id = m->n_mounts;
    snprintf(name, sizeof(name), "%.*s", (int)argv[4].len, argv[4].data);
    for (size_t i = 5; i + 1 < argc; i++)
        if (span_eq(argv[i], SPAN("CONTENT")))
            snprintf(content, sizeof(content), "%.*s", (int)argv[i + 1].len, argv[i + 1].data);
    for (size_t i = 0; i < m->n_mounts; i++)
        if (strcmp(m->mounts[i].name, name) == 0 && strcmp(m->mounts[i].content, content) == 0) {
            id = i;
            kept = true;
        }
    if (id == m->n_mounts && m->n_mounts < 32) m->n_mounts++;
    snprintf(m->mounts[id].name, sizeof(m->mounts[id].name), "%s", name);
    snprintf(m->mounts[id].content, sizeof(m->mounts[id].content), "%s", content);
    buf_append_str(out, "*6\r\n");
    put_field(out, "id", id + 1);
    put_field(out, "epoch", m->first_segment_epoch + id);
    put_field(out, "kept", kept);
}

static inline void answer_beat(struct master *m, const struct span *argv, size_t argc,
                               struct buf *out) {
    uint64_t wait = 0;
    if (argc > 5 && span_eq(argv[4], SPAN("WAIT"))) span_to_u64(argv[5], &wait);
    uint64_t until = clock_mono_ms() + wait;
    m->beats++;
    pthread_cond_broadcast(&m->changed);
    unsigned kicks = m->kicks;
    while (m->n_work + m->n_fences - m->fences_told == 0 && m->kicks == kicks &&
           clock_mono_ms() < until)
        master_wait(m, until);
    char byte;
    if (m->kicks != kicks || recv(master_fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
        return; /* nobody is there */
    size_t fences = m->n_fences - m->fences_told;
    buf_printf(out, "*2\r\n:%llu\r\n*%zu\r\n", (unsigned long long)clock_mono_ms(),
               m->n_work + fences);
    for (; m->fences_told < m->n_fences; m->fences_told++)
        buf_printf(out, "*2\r\n$5\r\nfence\r\n:%llu\r\n",
                   (unsigned long long)m->fences[m->fences_told]);
    for (size_t i = 0; i < m->n_work; i++) {
        buf_append_str(out, m->work[i]);
        free(m->work[i]);
    }
    m->n_work = 0;
}

static inline void answer_offer(struct master *m, const struct span *argv, size_t argc,
                                struct buf *out) {
    uint64_t n = 0, version = 0;
    span_to_u64(argv[5], &n);
    buf_printf(out, "*%llu\r\n", (unsigned long long)n);
    for (size_t i = 0; i < n && 6 + 6 * i + 5 < argc; i++) {
        span_to_u64(argv[6 + 6 * i + 1], &version);
        bool forget = m->offer_forget > 0;
        if (forget) m->offer_forget--;
        buf_printf(out, ":%llu\r\n", forget ? 0 : (unsigned long long)version + m->offer_add);
    }
}

/* [version, size, lease, crc, [], value, crcs], nil */
static inline void answer_get(struct master *m, const struct span *argv, struct buf *out) {
    uint64_t n = 0;
    span_to_u64(argv[1], &n);
    buf_printf(out, "*%llu\r\n", (unsigned long long)n);
    for (size_t i = 0; i < n; i++) {
        size_t k = 0;
        while (k < m->n_objects && !span_eq(argv[2 + i], span_str(m->objects[k].key))) k++;
        if (k == m->n_objects) {
            buf_append_str(out, "$-1\r\n");
            continue;
        }
        size_t len = strlen(m->objects[k].value);
        buf_printf(out, "*7\r\n:%u\r\n:%zu\r\n:0\r\n:-1\r\n*0\r\n", m->objects[k].version, len);
        put_bulk(out, m->objects[k].value, len);
        buf_append_str(out, "$-1\r\n");
    }
}

static inline void answer_fenced(struct master *m, struct span session, struct buf *out) {
    uint64_t v = 0;
    span_to_u64(session, &v);
    for (size_t i = 0; i < m->n_fences; i++) {
        if (m->fences[i] != v) continue;
        m->fences[i] = m->fences[--m->n_fences];
        m->fences_told--; /* it was told, all of them were */
    }
    buf_append_str(out, "+OK\r\n");
}

static inline void answer_default(struct master *m, const struct span *argv, size_t argc,
                                  struct buf *out) {
    struct span verb = argc > 1 ? argv[1] : SPAN("");
    bool node = span_eq(argv[0], SPAN("NODE"));
    if (node && span_eq(verb, SPAN("JOIN"))) {
        answer_join(m, out);
    } else if (node && span_eq(verb, SPAN("HEARTBEAT"))) {
        answer_beat(m, argv, argc, out);
    } else if (node && span_eq(verb, SPAN("DONE"))) {
        buf_printf(out, "*%.*s\r\n", (int)argv[4].len, argv[4].data);
        for (size_t i = 5; i + 3 < argc; i += 4) buf_append_str(out, ":1\r\n");
    } else if (node && span_eq(verb, SPAN("FENCED"))) {
        answer_fenced(m, argv[4], out);
    } else if (node && span_eq(verb, SPAN("UP")) && m->n_fences > 0) {
        buf_append_str(out, "-TRYAGAIN 50 there are fences\r\n");
    } else if (node && span_eq(verb, SPAN("OFFER"))) {
        answer_offer(m, argv, argc, out);
    } else if (node && span_eq(verb, SPAN("EVICTED"))) {
        buf_printf(out, ":%.*s\r\n", (int)argv[5].len, argv[5].data);
    } else if (span_eq(argv[0], SPAN("SEGMENT")) && span_eq(verb, SPAN("MOUNT"))) {
        answer_mount(m, argv, argc, out);
    } else if (span_eq(argv[0], SPAN("MGETREPLICAS"))) {
        answer_get(m, argv, out);
    } else if (span_eq(argv[0], SPAN("INFO"))) {
        put_bulk(out, "tarn_version:0.1.0\r\n", 20);
    } else {
        buf_append_str(out, "+OK\r\n");
    }
}

/* --- connections --- */

static inline void join_line(const struct span *argv, size_t argc, struct buf *line) {
    for (size_t i = 0; i < argc; i++) {
        if (i > 0) buf_append_char(line, ' ');
        for (size_t k = 0; k < argv[i].len; k++)
            buf_append_char(line, isprint((unsigned char)argv[i].data[k]) ? argv[i].data[k] : '?');
    }
    buf_append_char(line, '\0');
}

/* false: hang up. */
static inline bool master_answer(struct master *m, const struct span *argv, size_t argc,
                                 struct buf *out) {
    struct buf line = {0};
    bool ok = true, ruled = false;
    join_line(argv, argc, &line);
    pthread_mutex_lock(&m->mutex);
    if (strncmp(line.data, "NODE HEARTBEAT", 14) != 0 || strstr(line.data, " REPORT ") != NULL)
        master_note(m, line.data);
    for (size_t i = 0; i < m->n_rules && !ruled; i++) {
        if (m->rules[i].times == 0 || fnmatch(m->rules[i].pattern, line.data, 0) != 0) continue;
        m->rules[i].times--;
        ruled = true;
        ok = m->rules[i].reply[0] != '\0';
        buf_append_str(out, m->rules[i].reply);
    }
    if (!ruled) answer_default(m, argv, argc, out);
    pthread_mutex_unlock(&m->mutex);
    buf_free(&line);
    return ok;
}

struct master_conn {
    struct master *m;
    int fd;
};

static inline void *master_serve(void *arg) {
    struct master_conn c = *(struct master_conn *)arg;
    struct resp_parser parser = {0};
    struct resp_limits limits = {1000000, 1u << 29, 1u << 16, SIZE_MAX, false};
    struct buf in = {0}, out = {0};
    char bytes[16384];
    bool ok = true;
    master_fd = c.fd;
    free(arg);
    while (ok) {
        ssize_t n = recv(c.fd, bytes, sizeof(bytes), 0);
        if (n <= 0) break;
        buf_append(&in, bytes, (size_t)n);
        size_t used;
        while (ok && resp_parse(&parser, &limits, in.data, in.len, &used) == RESP_REQUEST) {
            if (parser.argc > 0) ok = master_answer(c.m, parser.argv, parser.argc, &out);
            buf_consume(&in, used);
            for (size_t done = 0; ok && done < out.len;) {
                ssize_t sent = send(c.fd, out.data + done, out.len - done, MSG_NOSIGNAL);
                if (sent <= 0) ok = false;
                done += sent > 0 ? (size_t)sent : 0;
            }
            buf_clear(&out);
        }
    }
    shutdown(c.fd, SHUT_RDWR);
    resp_parser_free(&parser);
    buf_free(&in);
    buf_free(&out);
    return NULL;
}

static inline void *master_accept(void *arg) {
    struct master *m = arg;
    for (;;) {
        int fd = accept(m->listen_fd, NULL, NULL);
        if (fd < 0) return NULL;
        pthread_mutex_lock(&m->mutex);
        bool take = !m->stop && !m->deaf && m->n_conns < MASTER_CONNS;
        if (take) {
            struct master_conn *c = xmalloc(sizeof(*c));
            *c = (struct master_conn){m, fd};
            m->fds[m->n_conns] = fd;
            pthread_create(&m->threads[m->n_conns++], NULL, master_serve, c);
        }
        pthread_mutex_unlock(&m->mutex);
        if (!take) close(fd);
    }
}

/* --- for tests --- */

static inline void master_start(struct master *m) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    pthread_condattr_t attr;
    *m = (struct master){.epoch = 7,
                         .heartbeat_ms = 100,
                         .max_lease_ms = 1,
                         .node_timeout_ms = 10000,
                         .first_segment_epoch = 100};
    strcpy(m->key, "0123456789abcdef");
    strcpy(m->cluster, "00112233445566778899aabbccddeeff");
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&m->mutex, NULL);
    pthread_cond_init(&m->changed, &attr);
    pthread_condattr_destroy(&attr);
    m->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(m->listen_fd, (struct sockaddr *)&a, len) == 0 && listen(m->listen_fd, 64) == 0);
    CHECK(getsockname(m->listen_fd, (struct sockaddr *)&a, &len) == 0);
    m->port = ntohs(a.sin_port);
    snprintf(m->url, sizeof(m->url), "tarn://127.0.0.1:%u?backoff_min_ms=1&backoff_max_ms=20",
             m->port);
    pthread_create(&m->acceptor, NULL, master_accept, m);
}

/* Breaks all connections; deaf: and takes no others until master_hear. */
static inline void master_kick(struct master *m, bool deaf) {
    pthread_mutex_lock(&m->mutex);
    m->deaf = deaf;
    m->kicks++;
    for (size_t i = 0; i < m->n_conns; i++) shutdown(m->fds[i], SHUT_RDWR);
    m->mark = m->lines;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->mutex);
}

static inline void master_hear(struct master *m) {
    pthread_mutex_lock(&m->mutex);
    m->deaf = false;
    pthread_mutex_unlock(&m->mutex);
}

static inline void master_stop(struct master *m) {
    pthread_mutex_lock(&m->mutex);
    m->stop = true;
    pthread_mutex_unlock(&m->mutex);
    master_kick(m, true);
    shutdown(m->listen_fd, SHUT_RDWR);
    pthread_join(m->acceptor, NULL);
    for (size_t i = 0; i < m->n_conns; i++) {
        pthread_join(m->threads[i], NULL);
        close(m->fds[i]);
    }
    close(m->listen_fd);
    for (size_t i = 0; i < m->lines; i++) free(m->line[i]);
    for (size_t i = 0; i < m->n_work; i++) free(m->work[i]);
    pthread_mutex_destroy(&m->mutex);
    pthread_cond_destroy(&m->changed);
}

/* The next so many commands like this are answered with that; "" hangs up. */
static inline void master_rule(struct master *m, const char *pattern, int times,
                               const char *reply) {
    pthread_mutex_lock(&m->mutex);
    size_t i = 0;
    while (i < m->n_rules && m->rules[i].times > 0) i++;
    CHECK(i < MASTER_RULES);
    if (i == m->n_rules) m->n_rules++;
    m->rules[i].pattern = pattern;
    m->rules[i].reply = reply;
    m->rules[i].times = times;
    pthread_mutex_unlock(&m->mutex);
}

/* An item of work, words as for a redis-cli: digits become integers, [ and ] nest, ~ is nil, the
 * rest are strings. */
static inline size_t work_array(const char **s, struct buf *out);
static inline void work_value(const char **s, struct buf *out) {
    size_t len = strcspn(*s, " ]");
    bool number = len > 0 && strspn(*s + (**s == '-'), "0123456789") == len - (**s == '-');
    if (**s == '[') {
        struct buf inner = {0};
        ++*s;
        size_t n = work_array(s, &inner);
        buf_printf(out, "*%zu\r\n", n);
        buf_append(out, inner.data, inner.len);
        buf_free(&inner);
        return;
    }
    if (number) {
        buf_printf(out, ":%.*s\r\n", (int)len, *s);
    } else if (**s == '~') {
        buf_append_str(out, "$-1\r\n");
    } else {
        put_bulk(out, *s, len);
    }
    *s += len;
}
static inline size_t work_array(const char **s, struct buf *out) {
    for (size_t n = 0;; n++) {
        *s += strspn(*s, " ");
        if (**s == '\0') return n;
        if (**s == ']') {
            ++*s;
            return n;
        }
        work_value(s, out);
    }
}

/* For example: master_work(m, "copy 5 key 9 4 1 [[0 4096]]") */
static inline void master_work(struct master *m, const char *text) {
    struct buf out = {0};
    char whole[1024];
    snprintf(whole, sizeof(whole), "[%s]", text);
    const char *s = whole;
    work_value(&s, &out);
    buf_append_char(&out, '\0');
    pthread_mutex_lock(&m->mutex);
    CHECK(m->n_work < 64);
    m->work[m->n_work++] = out.data;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->mutex);
}

/* A session that every node has to cut off before it may be up. */
static inline void master_fence(struct master *m, uint64_t session) {
    pthread_mutex_lock(&m->mutex);
    CHECK(m->n_fences < 8);
    m->fences[m->n_fences++] = session;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->mutex);
}

static inline void master_object(struct master *m, const char *key, unsigned version,
                                 const char *value) {
    pthread_mutex_lock(&m->mutex);
    size_t i = m->n_objects++;
    snprintf(m->objects[i].key, sizeof(m->objects[i].key), "%s", key);
    snprintf(m->objects[i].value, sizeof(m->objects[i].value), "%s", value);
    m->objects[i].version = version;
    pthread_mutex_unlock(&m->mutex);
}

/* Waits for a command like this; later calls look behind it. */
static inline bool master_saw(struct master *m, const char *pattern) {
    uint64_t until = clock_mono_ms() + MASTER_WAIT_MS;
    bool seen = false;
    pthread_mutex_lock(&m->mutex);
    size_t i = m->mark;
    while (!seen) {
        for (; i < m->lines && !seen; i++) {
            seen = fnmatch(pattern, m->line[i], 0) == 0;
            if (seen) m->mark = i + 1;
        }
        if (seen || clock_mono_ms() >= until) break;
        master_wait(m, until);
    }
    if (!seen) {
        printf("# nothing like \"%s\"; since the last match it was asked:\n", pattern);
        for (i = m->mark; i < m->lines; i++) printf("#   %s\n", m->line[i]);
    }
    pthread_mutex_unlock(&m->mutex);
    return seen;
}

/* So many heartbeats more: what was sent before them has been seen to. */
static inline bool master_beats(struct master *m, unsigned n) {
    uint64_t until = clock_mono_ms() + MASTER_WAIT_MS;
    pthread_mutex_lock(&m->mutex);
    unsigned want = m->beats + n;
    while ((int)(m->beats - want) < 0 && clock_mono_ms() < until) master_wait(m, until);
    bool ok = (int)(m->beats - want) >= 0;
    pthread_mutex_unlock(&m->mutex);
    return ok;
}

static inline size_t master_count(struct master *m, const char *pattern) {
    size_t n = 0;
    pthread_mutex_lock(&m->mutex);
    for (size_t i = 0; i < m->lines; i++) n += fnmatch(pattern, m->line[i], 0) == 0;
    pthread_mutex_unlock(&m->mutex);
    return n;
}

#endif
