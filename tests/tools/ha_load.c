/* A client that remembers what it was promised: the load of tests/ha.
 *
 *     ha_load [OPTION]... URL PREFIX SERVER...
 *
 * It puts, replaces, removes and reads PREFIX0 ... by libtarn through URL, and after a change asks
 * the SERVERs (HOST:PORT) in turn, on one connection, for STRLEN of the key (which tells versions
 * apart), a SET and WAIT: when a server has the change, takes a write after it, and says that
 * enough replicas have that, the change is acknowledged and must never be lost. What was not
 * acknowledged may be there or not, but whole.
 *
 * Commands are lines on standard input, each answered by one line of NAME=NUMBER:
 *     go, stop     works, rests
 *     wait N       replicas that must have a change from now on
 *     lenient N    1: what a put that is not acknowledged was to replace may be gone: a master that
 *                  does not know that it is deposed, and whose nodes do not know either, gives its
 *                  space to others. Never wrong, but gone
 *     mark         from now on: puts, acked, hits, misses (of acknowledged objects), errors, gap_ms
 *                  (the longest time in which no put succeeded), and
 *     stats        tells them
 *     check        reads everything: keys, visible, lost (acknowledged and not there), stale (older
 *                  than acknowledged), ghosts (there and removed, or never put), wrong (bytes)
 * The end of the input ends it.
 *
 * Options: --keys N, --size FROM-TO, --seed N, --replicas N, --host NAME, --transport NAME,
 * --timeout MS, --wait N (replicas). */
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/rng.h"
#include "tarn.h"

#define SERVERS_MAX 8u
#define ANSWER_MS   2500
#define WAIT_MS     1500

/* What is known of one key. Versions count its changes, removals too; what is there now is acked or
 * later. */
struct known {
    uint64_t acked, last;
    bool acked_gone, maybe_gone; /* the acknowledged change was a removal; one was tried since */
};

struct server {
    char host[100], port[8];
    int fd;
};

struct load {
    tarn_client *client;
    const char *prefix;
    struct server servers[SERVERS_MAX];
    unsigned n, first;
    struct known *known;
    uint64_t keys, size_from, size_to, seed, wait, markers;
    tarn_put_options put;
    struct rng rng;
    bool going, lenient;
    uint64_t last_put_ms, gap_ms;
    tarn_status last_error;
    uint64_t puts, acked, hits, misses, errors, visible, lost, stale, ghosts, wrong;
    char *data;
};

_Noreturn static void die(const char *what, const char *detail) {
    fprintf(stderr, "ha_load: %s: %s\n", what, detail);
    exit(1);
}

static uint64_t number(const char *name, const char *text) {
    uint64_t v;
    if (text == NULL || !span_to_u64(span_str(text), &v)) die(name, "needs a number");
    return v;
}

/* --- values: version, then words that follow from key and version --- */

static uint64_t mix(uint64_t x) {
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static uint64_t hash_of(const struct load *l, uint64_t key, uint64_t version) {
    uint64_t h = mix(l->seed);
    for (const char *p = l->prefix; *p != '\0'; p++) h = mix(h ^ (uint8_t)*p);
    return mix(mix(h ^ key) ^ version);
}

static size_t size_of(const struct load *l, uint64_t key, uint64_t version) {
    return (size_t)(l->size_from + hash_of(l, key, version) % (l->size_to - l->size_from + 1));
}

static size_t fill(const struct load *l, uint64_t key, uint64_t version, char *data) {
    uint64_t h = hash_of(l, key, version);
    size_t size = size_of(l, key, version);
    memcpy(data, &version, sizeof(version));
    for (size_t at = 8; at < size; at += 8) {
        uint64_t w = mix(h + at);
        memcpy(data + at, &w, min_u64(8, size - at));
    }
    return size;
}

/* --- acknowledgement --- */

static void hang_up(struct server *s) {
    if (s->fd >= 0) close(s->fd);
    s->fd = -1;
}

static bool dial(struct server *s) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    if (s->fd >= 0) return true;
    if (getaddrinfo(s->host, s->port, &hints, &found) != 0) return false;
    s->fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct timeval limit = {.tv_sec = ANSWER_MS / 1000, .tv_usec = ANSWER_MS % 1000 * 1000};
    setsockopt(s->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(s->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)); /* of connect, too */
    bool connected = s->fd >= 0 && connect(s->fd, found->ai_addr, found->ai_addrlen) == 0;
    freeaddrinfo(found);
    if (!connected) hang_up(s);
    return connected;
}

/* The three answers are a line each: ":1", "+OK" (or an error), ":2". */
static bool three_lines(int fd, char text[512]) {
    size_t len = 0;
    unsigned lines = 0;
    while (lines < 3 && len < 511) {
        ssize_t n = recv(fd, text + len, 511 - len, 0);
        if (n <= 0) return false;
        for (ssize_t i = 0; i < n; i++) lines += text[len + (size_t)i] == '\n';
        len += (size_t)n;
    }
    text[len] = '\0';
    return lines == 3;
}

static bool confirmed_by(struct load *l, struct server *s, uint64_t key, size_t size) {
    char request[600], answer[512];
    unsigned long long len, replicas;
    if (!dial(s)) return false;
    int n =
        snprintf(request, sizeof(request), "STRLEN %s%llu\r\nSET ha:%s %llu\r\nWAIT %llu %d\r\n",
                 l->prefix, (unsigned long long)key, l->prefix, (unsigned long long)++l->markers,
                 (unsigned long long)l->wait, WAIT_MS);
    if (send(s->fd, request, (size_t)n, MSG_NOSIGNAL) != n || !three_lines(s->fd, answer)) {
        hang_up(s); /* late answers would be taken for those to the next question */
        return false;
    }
    return sscanf(answer, ":%llu\r\n+OK\r\n:%llu", &len, &replicas) == 2 && len == size &&
           replicas >= l->wait;
}

static bool confirmed(struct load *l, uint64_t key, size_t size) {
    for (unsigned i = 0; i < l->n; i++) {
        unsigned k = (l->first + i) % l->n;
        if (!confirmed_by(l, &l->servers[k], key, size)) continue;
        l->first = k;
        return true;
    }
    return false;
}

/* Each kind once after a mark. */
static void note_error(struct load *l, const char *what, tarn_status status) {
    l->errors++;
    if (status == l->last_error) return;
    l->last_error = status;
    printf("# %s%s: %s\n", l->prefix, what, tarn_last_error());
}

/* --- what it does --- */

static void measure_gap(struct load *l) {
    uint64_t now = clock_boot_ms();
    if (now - l->last_put_ms > l->gap_ms) l->gap_ms = now - l->last_put_ms;
}

static void put(struct load *l, uint64_t key) {
    struct known *k = &l->known[key];
    char name[200];
    uint64_t version = ++k->last;
    int n = snprintf(name, sizeof(name), "%s%llu", l->prefix, (unsigned long long)key);
    size_t size = fill(l, key, version, l->data);
    if (l->lenient) k->maybe_gone = true;
    tarn_status status = tarn_put(l->client, name, (size_t)n, l->data, size, &l->put);
    if (status != TARN_OK) {
        note_error(l, "put", status);
        return;
    }
    l->puts++;
    measure_gap(l);
    l->last_put_ms = clock_boot_ms();
    if (!confirmed(l, key, size)) return;
    l->acked++;
    *k = (struct known){.acked = version, .last = version};
}

static void take_away(struct load *l, uint64_t key) {
    struct known *k = &l->known[key];
    char name[200];
    uint64_t version = ++k->last;
    int n = snprintf(name, sizeof(name), "%s%llu", l->prefix, (unsigned long long)key);
    k->maybe_gone = true;
    tarn_status status = tarn_remove(l->client, name, (size_t)n);
    if (status != TARN_OK && status != TARN_ENOTFOUND) {
        note_error(l, "remove", status);
        return;
    }
    if (!confirmed(l, key, 0)) return;
    l->acked++;
    *k = (struct known){.acked = version, .last = version, .acked_gone = true};
}

static void complain(const struct load *l, const char *what, uint64_t key, uint64_t seen) {
    const struct known *k = &l->known[key];
    printf("# %s: %s%llu, version %llu of %llu, acknowledged %llu%s\n", what, l->prefix,
           (unsigned long long)key, (unsigned long long)seen, (unsigned long long)k->last,
           (unsigned long long)k->acked, k->acked_gone ? " (removed)" : "");
}

/* What was read is right, for what is known. */
static void judge(struct load *l, uint64_t key, const char *data, size_t size) {
    const struct known *k = &l->known[key];
    uint64_t version = 0;
    if (size >= sizeof(version)) memcpy(&version, data, sizeof(version));
    if (version == 0 || version > k->last) {
        complain(l, version == 0 ? "wrong bytes" : "never put", key, version);
        l->wrong += version == 0;
        l->ghosts += version != 0;
        return;
    }
    if (size != fill(l, key, version, l->data) || memcmp(data, l->data, size) != 0) {
        complain(l, "wrong bytes", key, version);
        l->wrong++;
    } else if (version < k->acked) {
        complain(l, "stale", key, version);
        l->stale++;
    } else if (version == k->acked && k->acked_gone) {
        complain(l, "removed", key, version);
        l->ghosts++;
    }
}

static tarn_status look(struct load *l, uint64_t key) {
    char name[200];
    void *data;
    size_t size;
    int n = snprintf(name, sizeof(name), "%s%llu", l->prefix, (unsigned long long)key);
    tarn_status status = tarn_get_alloc(l->client, name, (size_t)n, &data, &size, NULL);
    if (status == TARN_OK) {
        judge(l, key, data, size);
        tarn_free(data);
    }
    return status;
}

static bool must_be_there(const struct known *k) {
    return k->acked > 0 && !k->acked_gone && !k->maybe_gone;
}

static void step(struct load *l) {
    uint64_t key = rng_below(&l->rng, l->keys), dice = rng_below(&l->rng, 16);
    if (dice < 5) {
        put(l, key);
    } else if (dice == 5) {
        take_away(l, key);
    } else {
        tarn_status status = look(l, key);
        if (status == TARN_OK) {
            l->hits++;
        } else if (status != TARN_ENOTFOUND) {
            note_error(l, "get", status);
        } else if (must_be_there(&l->known[key])) {
            l->misses++;
        }
    }
}

/* Errors are asked again: the pool is whole, whoever says `check` says so. */
static void check(struct load *l) {
    l->visible = l->lost = 0;
    for (uint64_t key = 0; key < l->keys; key++) {
        tarn_status status = look(l, key);
        for (int tries = 0; status != TARN_OK && status != TARN_ENOTFOUND && tries < 5; tries++)
            status = look(l, key);
        if (status == TARN_OK) {
            l->visible++;
        } else if (status != TARN_ENOTFOUND || must_be_there(&l->known[key])) {
            complain(l, status == TARN_ENOTFOUND ? "lost" : tarn_last_error(), key, 0);
            l->lost++;
        }
    }
    printf("keys=%llu visible=%llu lost=%llu stale=%llu ghosts=%llu wrong=%llu\n",
           (unsigned long long)l->keys, (unsigned long long)l->visible, (unsigned long long)l->lost,
           (unsigned long long)l->stale, (unsigned long long)l->ghosts,
           (unsigned long long)l->wrong);
}

static void mark(struct load *l) {
    l->last_put_ms = clock_boot_ms();
    l->last_error = TARN_OK;
    l->gap_ms = l->puts = l->acked = l->hits = l->misses = l->errors = 0;
}

/* false: it is over. */
static bool obey(struct load *l, const char *command) {
    if (strcmp(command, "go") == 0) {
        l->going = true;
        printf("going=1\n");
    } else if (strcmp(command, "stop") == 0) {
        l->going = false;
        printf("going=0\n");
    } else if (strcmp(command, "mark") == 0) {
        mark(l);
        printf("marked=1\n");
    } else if (strncmp(command, "wait ", 5) == 0) {
        l->wait = number("wait", command + 5);
        printf("wait=%llu\n", (unsigned long long)l->wait);
    } else if (strncmp(command, "lenient ", 8) == 0) {
        l->lenient = number("lenient", command + 8) > 0;
        printf("lenient=%d\n", l->lenient);
    } else if (strcmp(command, "stats") == 0) {
        measure_gap(l);
        printf("puts=%llu acked=%llu hits=%llu misses=%llu errors=%llu gap_ms=%llu\n",
               (unsigned long long)l->puts, (unsigned long long)l->acked,
               (unsigned long long)l->hits, (unsigned long long)l->misses,
               (unsigned long long)l->errors, (unsigned long long)l->gap_ms);
    } else if (strcmp(command, "check") == 0) {
        check(l);
    } else {
        return false;
    }
    fflush(stdout);
    return true;
}

static bool hear(struct load *l) {
    char line[64];
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    while (poll(&p, 1, l->going ? 0 : -1) > 0) {
        if (fgets(line, sizeof(line), stdin) == NULL) return false;
        line[strcspn(line, "\r\n")] = '\0';
        if (!obey(l, line)) return false;
    }
    return true;
}

/* --- command line --- */

static void option(struct load *l, tarn_options *o, const char *name, const char *value) {
    const struct {
        const char *name;
        uint64_t *to;
    } numbers[] = {{"--keys", &l->keys},
                   {"--seed", &l->seed},
                   {"--wait", &l->wait},
                   {"--timeout", &o->timeout_ms}};
    if (value == NULL) die(name, "needs a value");
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        if (strcmp(name, numbers[i].name) != 0) continue;
        *numbers[i].to = number(name, value);
        return;
    }
    const char *dash = strchr(value, '-');
    if (strcmp(name, "--size") == 0 && dash != NULL) {
        if (!span_to_u64(span_of(value, (size_t)(dash - value)), &l->size_from)) die(name, value);
        l->size_to = number(name, dash + 1);
    } else if (strcmp(name, "--replicas") == 0) {
        l->put.replicas = (unsigned)number(name, value);
    } else if (strcmp(name, "--host") == 0) {
        o->host_name = value;
    } else if (strcmp(name, "--transport") == 0) {
        o->transport = value;
    } else {
        die("there is no option", name);
    }
}

static void add_server(struct load *l, const char *text) {
    const char *colon = strrchr(text, ':');
    if (colon == NULL || l->n == SERVERS_MAX) die(text, "up to 8 times HOST:PORT");
    struct server *s = &l->servers[l->n++];
    s->fd = -1;
    snprintf(s->host, sizeof(s->host), "%.*s", (int)(colon - text), text);
    snprintf(s->port, sizeof(s->port), "%s", colon + 1);
}

static void no_log(void *arg, int level, const char *text) {}

int main(int argc, char **argv) {
    struct load l = {.keys = 100, .size_from = 100, .size_to = 1000, .wait = 1};
    tarn_options o;
    int at = 1;
    tarn_options_init(&o);
    tarn_put_options_init(&l.put);
    l.put.replace = 1;
    for (; at < argc && argv[at][0] == '-'; at += 2) option(&l, &o, argv[at], argv[at + 1]);
    if (argc - at < 3) die("usage", "ha_load [OPTION]... URL PREFIX SERVER...");
    if (l.keys == 0 || l.size_from < 16 || l.size_to < l.size_from)
        die("--keys, --size", "at least 1 key, 16 bytes");
    l.prefix = argv[at + 1];
    for (int i = at + 2; i < argc; i++) add_server(&l, argv[i]);
    rng_seed(&l.rng, l.seed);
    l.known = xcalloc((size_t)l.keys, sizeof(*l.known));
    l.data = xmalloc((size_t)l.size_to + 8);
    setvbuf(stdin, NULL, _IONBF, 0); /* poll knows of every line */
    tarn_set_log(no_log, NULL);
    if (tarn_connect(argv[at], &o, &l.client) != TARN_OK) die(argv[at], tarn_last_error());
    while (hear(&l))
        if (l.going) step(&l);
    tarn_close(&l.client);
    for (unsigned i = 0; i < l.n; i++) hang_up(&l.servers[i]);
    free(l.known);
    free(l.data);
    return l.wrong + l.stale + l.ghosts > 0 ? 3 : 0;
}
