/* Guarantee 1 under stress: no wrong bytes, whatever happens.
 *
 * Processes of several threads put, replace, remove, get and look at values in a pool much smaller
 * than the key space, over shared memory and tcp, half of the readers without checking CRCs, so
 * that leases, epochs and fencing alone must do it. Leases are short, and some readers sleep past
 * them in the middle of a view. A controller stops, continues and kills processes at random. Every
 * value says which key and generation it is, and all of its bytes follow from those; whatever a
 * reader is handed as good is checked byte by byte, and its generation must have been issued by a
 * writer.
 *
 *     verify_stress [--seconds S] [--seed N] [--url tarn://...] [--pool BYTES] [--masters N]
 *
 * Without --url it starts the server that TARN_SERVER names; then three of them, each with a part
 * of the slots, which are stopped and killed as well (--masters: only so many). Each time it says
 * "0 wrong bytes"; it ends with "2 passed, 0 failed". */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/rng.h"
#include "tarn.h"
#include "value.h"

#define KEYS        400
#define THREADS     2
#define PROCESSES   8
#define WRITERS_MAX 4096 /* writer ids over all lives of all processes */
#define VALUE_MAX   (3u << 20)
#define BATCH_MAX   24
#define MASTERS_MAX 8
#define SLOTS       16384u
#define PATIENCE_MS 300000 /* what must come may take its time on a busy machine */

enum figure {
    GETS,
    HITS,
    VIEWS,
    VIEWS_LATE,
    RANGES,
    PUTS,
    EXISTED,
    IN_PLACE,
    ABORTS,
    REMOVES,
    FAILURES,
    LOST_LEASES,
    KILLS,
    STOPS,
    CRASHES,
    FIGURES
};
static const char *const figure_names[] = {"gets",
                                           "hits",
                                           "views",
                                           "views past their lease",
                                           "ranges",
                                           "puts",
                                           "existed",
                                           "in place",
                                           "aborts",
                                           "removes",
                                           "failures",
                                           "lost leases",
                                           "kills",
                                           "stops",
                                           "crashes of masters"};

/* Shared by all processes. */
struct shared {
    uint64_t stop, wrong, next_writer;
    uint64_t figures[FIGURES];
    uint64_t issued[WRITERS_MAX]; /* generations each writer has begun to put */
    char complaint[400];
};
static struct shared *shared;

struct role {
    bool writer;
    const char *transport;
    int verify;
};
static const struct role roles[PROCESSES] = {
    {true, "shm", 1},  {true, "tcp", 1},  {true, "auto", 1}, {false, "shm", 0},
    {false, "tcp", 0}, {false, "shm", 1}, {false, "tcp", 1}, {true, "tcp", 1},
};

struct settings {
    const char *url;
    uint64_t seconds, seed, pool, masters;
};

/* The servers that were started here. */
static struct server {
    pid_t pid;
    int port;
    char dir[300];
} servers[MASTERS_MAX];

static void count(enum figure f, uint64_t n) {
    __atomic_add_fetch(&shared->figures[f], n, __ATOMIC_RELAXED);
}
static bool stopping(void) {
    return __atomic_load_n(&shared->stop, __ATOMIC_RELAXED) != 0;
}

/* --- values --- */

static size_t size_of(uint64_t key, uint64_t generation) {
    static const uint32_t limits[] = {64,    200,    4096,     5000,     65536,
                                      70000, 300000, 1u << 20, VALUE_MAX};
    uint64_t r = value_mix(key * 77 + generation);
    uint32_t limit = limits[r % 32 < 30 ? r % 32 % 7 : r % ARRAY_LEN(limits)];
    size_t size = VALUE_HEAD + (r >> 8) % (limit - VALUE_HEAD + 1);
    return (r & 64) != 0 && limit > VALUE_HEAD ? limit : size;
}

static void complain(const char *what, uint64_t key, uint64_t generation, size_t at, size_t size,
                     const char *how) {
    if (__atomic_fetch_add(&shared->wrong, 1, __ATOMIC_RELAXED) > 0) return;
    snprintf(shared->complaint, sizeof(shared->complaint),
             "%s (%s): key %llu generation %llx size %zu, at byte %zu", what, how,
             (unsigned long long)key, (unsigned long long)generation, size, at);
}

/* Bytes [offset, offset + len) of a value whose generation is known. */
static bool right_bytes(const char *data, uint64_t key, uint64_t generation, size_t size,
                        size_t offset, size_t len, const char *how) {
    int64_t at = value_wrong_at(data, key, generation, size, offset, len);
    if (at >= 0) complain("wrong bytes", key, generation, (size_t)at, size, how);
    return at < 0;
}

static bool check(const char *data, size_t len, uint64_t key, const char *how) {
    uint64_t head[3];
    if (len < VALUE_HEAD) {
        complain("too short", key, 0, 0, len, how);
        return false;
    }
    memcpy(head, data, sizeof(head));
    uint64_t writer = head[1] >> 32, number = head[1] & UINT32_MAX;
    bool issued =
        writer < WRITERS_MAX && number < __atomic_load_n(&shared->issued[writer], __ATOMIC_ACQUIRE);
    if (head[0] != key || !issued || head[2] != len || size_of(key, head[1]) != len) {
        complain(head[0] != key ? "another key's value" : "no value that was ever put", head[0],
                 head[1], 0, len, how);
        return false;
    }
    return right_bytes(data, key, head[1], len, 0, len, how);
}

/* --- what a thread has --- */

struct actor {
    tarn_client *client;
    struct rng rng;
    uint64_t writer; /* id */
    char *memory;    /* BATCH_MAX values */
    char names[BATCH_MAX][24];
    const char *how;
};

static void name_key(struct actor *a, size_t slot, uint64_t key) {
    snprintf(a->names[slot], sizeof(a->names[slot]), "stress:%llu", (unsigned long long)key);
}

static void failed(tarn_status status) {
    switch (status) {
    case TARN_OK:
    case TARN_ENOTFOUND:
    case TARN_EEXISTS:
    case TARN_EBUSY: break;
    case TARN_ELEASE: count(LOST_LEASES, 1); break;
    case TARN_ECORRUPT: /* not wrong bytes, but a sign that something let them come to be */
    default:
        if (getenv("STRESS_VERBOSE"))
            fprintf(stderr, "%s: %s\n", tarn_strerror(status), tarn_last_error());
        count(FAILURES, 1);
    }
}

/* A few keys are used much, most are not. */
static uint64_t any_key(struct actor *a) {
    return rng_below(&a->rng, 2) == 0 ? rng_below(&a->rng, 20) : rng_below(&a->rng, KEYS);
}

static void sleep_ms(uint64_t ms) {
    usleep((useconds_t)(ms * 1000));
}

/* --- readers --- */

static void short_call(struct actor *a, tarn_call *call) {
    tarn_call_init(call);
    call->lease_ms = 15 + rng_below(&a->rng, 200);
    call->timeout_ms = 20000;
}

static void read_batch(struct actor *a) {
    tarn_item items[BATCH_MAX] = {0};
    uint64_t keys[BATCH_MAX];
    size_t n = 1 + rng_below(&a->rng, BATCH_MAX);
    tarn_call call;
    short_call(a, &call);
    for (size_t i = 0; i < n; i++) {
        keys[i] = any_key(a);
        name_key(a, i, keys[i]);
        items[i] = (tarn_item){.key = a->names[i],
                               .key_len = strlen(a->names[i]),
                               .buffer = a->memory + i * VALUE_MAX,
                               .buffer_len = VALUE_MAX};
    }
    tarn_get_many(a->client, items, n, &call, NULL);
    count(GETS, n);
    for (size_t i = 0; i < n; i++) {
        failed((tarn_status)items[i].status);
        if (items[i].status != TARN_OK) continue;
        count(HITS, 1);
        check(items[i].buffer, items[i].got, keys[i], a->how);
    }
}

/* A whole value, then ranges of it: they may be of another generation by then, which the version
 * tells. */
static void read_range(struct actor *a) {
    uint64_t key = any_key(a);
    name_key(a, 0, key);
    tarn_call call;
    short_call(a, &call);
    tarn_item whole = {.key = a->names[0],
                       .key_len = strlen(a->names[0]),
                       .buffer = a->memory,
                       .buffer_len = VALUE_MAX};
    tarn_get_many(a->client, &whole, 1, &call, NULL);
    failed((tarn_status)whole.status);
    if (whole.status != TARN_OK || !check(a->memory, whole.got, key, a->how)) return;
    uint64_t generation;
    memcpy(&generation, a->memory + 8, 8);
    for (int i = 0; i < 4; i++) {
        tarn_item part = whole;
        part.buffer = a->memory + VALUE_MAX;
        part.offset = rng_below(&a->rng, whole.got);
        part.want = 1 + rng_below(&a->rng, whole.got - part.offset);
        tarn_get_many(a->client, &part, 1, &call, NULL);
        if (part.status != TARN_EINVAL)
            failed((tarn_status)part.status); /* the value may be shorter by now */
        if (part.status != TARN_OK || part.version != whole.version) continue;
        count(RANGES, 1);
        right_bytes(part.buffer, key, generation, whole.got, part.offset, part.got, a->how);
    }
}

/* Reads through a view, slowly; what it saw counts only if the check afterwards says so. */
static void read_view(struct actor *a) {
    uint64_t key = any_key(a);
    name_key(a, 0, key);
    tarn_call call;
    short_call(a, &call);
    tarn_view *view;
    tarn_status status = tarn_view_open(a->client, a->names[0], strlen(a->names[0]), &call, &view);
    if (status != TARN_OK) {
        failed(status);
        return;
    }
    const struct iovec *pieces;
    size_t n = tarn_view_pieces(view, &pieces), at = 0;
    bool sleeps = rng_below(&a->rng, 3) == 0, renews = rng_below(&a->rng, 3) == 0;
    for (size_t i = 0; i < n; i++) {
        size_t half = pieces[i].iov_len / 2;
        memcpy(a->memory + at, pieces[i].iov_base, half);
        if (sleeps) sleep_ms(rng_below(&a->rng, 300));
        if (renews) failed(tarn_view_renew(view, call.lease_ms));
        memcpy(a->memory + at + half, (char *)pieces[i].iov_base + half, pieces[i].iov_len - half);
        at += pieces[i].iov_len;
    }
    if (tarn_view_check(view) == TARN_OK) {
        count(VIEWS, 1);
        check(a->memory, at, key, "view");
    } else {
        count(VIEWS_LATE, 1);
    }
    tarn_view_release(&view);
}

static void read_something(struct actor *a, bool views) {
    uint64_t what = rng_below(&a->rng, 10);
    if (what < 5) {
        read_batch(a);
    } else if (what < 8 || !views) {
        read_range(a);
    } else {
        read_view(a);
    }
}

/* --- writers --- */

static uint64_t new_generation(struct actor *a) {
    return a->writer << 32 | __atomic_fetch_add(&shared->issued[a->writer], 1, __ATOMIC_RELEASE);
}

static void write_batch(struct actor *a) {
    tarn_item items[BATCH_MAX] = {0};
    size_t n = 1 + rng_below(&a->rng, BATCH_MAX);
    tarn_put_options o;
    tarn_put_options_init(&o);
    o.replace = rng_below(&a->rng, 2) == 0;
    o.timeout_ms = 20000;
    if (rng_below(&a->rng, 8) == 0) o.ttl_ms = 1 + rng_below(&a->rng, 500);
    for (size_t i = 0; i < n; i++) {
        uint64_t key = any_key(a), generation = new_generation(a);
        size_t size = size_of(key, generation);
        name_key(a, i, key);
        value_fill(a->memory + i * VALUE_MAX, key, generation, size);
        items[i] = (tarn_item){.key = a->names[i],
                               .key_len = strlen(a->names[i]),
                               .buffer = a->memory + i * VALUE_MAX,
                               .buffer_len = size};
    }
    tarn_put_many(a->client, items, n, &o, NULL);
    for (size_t i = 0; i < n; i++) {
        failed((tarn_status)items[i].status);
        if (items[i].status == TARN_OK) count(PUTS, 1);
        if (items[i].status == TARN_EEXISTS) count(EXISTED, 1);
    }
}

static void write_in_place(struct actor *a) {
    uint64_t key = any_key(a), generation = new_generation(a);
    size_t size = size_of(key, generation);
    name_key(a, 0, key);
    value_fill(a->memory, key, generation, size);
    tarn_put_options o;
    tarn_put_options_init(&o);
    o.replace = 1;
    o.timeout_ms = 20000;
    tarn_writer *w;
    tarn_status status =
        tarn_writer_open(a->client, a->names[0], strlen(a->names[0]), size, &o, &w);
    if (status != TARN_OK) {
        failed(status);
        return;
    }
    const struct iovec *pieces;
    size_t n = tarn_writer_pieces(w, &pieces), at = 0;
    for (size_t i = 0; i < n; i++) {
        memcpy(pieces[i].iov_base, a->memory + at, pieces[i].iov_len);
        at += pieces[i].iov_len;
        if (rng_below(&a->rng, 4) == 0) sleep_ms(rng_below(&a->rng, 50));
    }
    count(IN_PLACE, tarn_writer_in_place(w) != 0);
    if (rng_below(&a->rng, 5) == 0) {
        failed(tarn_writer_abort(&w));
        count(ABORTS, 1);
    } else {
        status = tarn_writer_commit(&w);
        failed(status);
        count(PUTS, status == TARN_OK);
    }
}

static void remove_some(struct actor *a) {
    tarn_key keys[4];
    size_t n = 1 + rng_below(&a->rng, 4);
    for (size_t i = 0; i < n; i++) {
        name_key(a, i, any_key(a));
        keys[i] = (tarn_key){a->names[i], strlen(a->names[i])};
    }
    size_t removed = 0;
    failed(tarn_remove_many(a->client, keys, n, &removed));
    count(REMOVES, removed);
}

static void write_something(struct actor *a) {
    uint64_t what = rng_below(&a->rng, 10);
    if (what < 6) {
        write_batch(a);
    } else if (what < 9) {
        write_in_place(a);
    } else {
        remove_some(a);
    }
}

/* --- processes --- */

struct life {
    const struct role *role;
    tarn_client *client;
    uint64_t seed;
};

static void *act(void *arg) {
    const struct life *life = arg;
    struct actor a = {.client = life->client, .how = life->role->transport};
    rng_seed(&a.rng, life->seed ^ (uint64_t)(uintptr_t)pthread_self());
    a.writer = __atomic_fetch_add(&shared->next_writer, 1, __ATOMIC_RELAXED);
    a.memory = malloc((size_t)BATCH_MAX * VALUE_MAX);
    if (a.memory == NULL || a.writer >= WRITERS_MAX) {
        free(a.memory);
        return NULL;
    }
    bool views = strcmp(life->role->transport, "tcp") != 0;
    while (!stopping()) {
        if (life->role->writer && rng_below(&a.rng, 8) > 0) {
            write_something(&a);
        } else {
            read_something(&a, views);
        }
    }
    free(a.memory);
    return NULL;
}

static void no_log(void *arg, int level, const char *text) {
    if (getenv("STRESS_VERBOSE")) fprintf(stderr, "libtarn: %s\n", text);
}

static int live(const struct role *role, const char *url, uint64_t seed) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    tarn_set_log(no_log, NULL);
    tarn_options o;
    tarn_options_init(&o);
    o.transport = role->transport;
    o.verify = role->verify;
    o.max_lanes = THREADS;
    struct life life = {.role = role, .seed = seed};
    while (tarn_connect(url, &o, &life.client) != TARN_OK) {
        if (stopping()) return 0;
        failed(TARN_ERR);
        sleep_ms(100);
    }
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, act, &life);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    tarn_close(&life.client);
    return 0;
}

static pid_t spawn(size_t i, const struct settings *s, struct rng *rng) {
    uint64_t seed = rng_next(rng);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        int rc = live(&roles[i], s->url, seed);
        exit(rc);
    }
    return pid;
}

static int free_port(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, len) != 0 ||
        getsockname(fd, (struct sockaddr *)&a, &len) != 0)
        return -1;
    close(fd);
    return ntohs(a.sin_port);
}

static void server_spawn(struct server *v, const struct settings *s) {
    const char *path = getenv("TARN_SERVER");
    if (path == NULL) path = "src/tarn-server";
    char port[16], pool[32], log[400];
    snprintf(port, sizeof(port), "%d", v->port);
    snprintf(pool, sizeof(pool), "%llu", (unsigned long long)s->pool);
    snprintf(log, sizeof(log), "%s/log", v->dir);
    fflush(NULL);
    v->pid = fork();
    if (v->pid != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int fd = open(log, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0644);
    if (fd >= 0) dup2(fd, 1), dup2(fd, 2);
    execl(path, path, "--bind", "127.0.0.1", "--port", port, "--data-port", "0", "--pool-size",
          pool, "--dir", v->dir, "--put-timeout", "500ms", "--put-release-timeout", "2s",
          /* so that a master that was killed has its map again */
          "--appendonly", s->masters > 1 ? "yes" : "no", (char *)NULL);
    fprintf(stderr, "cannot start %s: %s\n", path, strerror(errno));
    _exit(127);
}

/* url: any of them. */
static void servers_start(struct settings *s, char *url, size_t cap) {
    const char *tmp = getenv("TMPDIR");
    size_t n = (size_t)snprintf(url, cap, "tarn://");
    for (uint64_t i = 0; i < s->masters; i++) {
        struct server *v = &servers[i];
        v->port = free_port();
        snprintf(v->dir, sizeof(v->dir), "%s/verify_stress.%d", tmp != NULL ? tmp : "/tmp",
                 v->port);
        mkdir(v->dir, 0700);
        server_spawn(v, s);
        n += (size_t)snprintf(url + n, cap - n, "%s127.0.0.1:%d", i > 0 ? "," : "", v->port);
    }
    s->url = url;
}

static void servers_stop(const struct settings *s) {
    for (uint64_t i = 0; i < s->masters; i++) {
        kill(servers[i].pid, SIGTERM);
        waitpid(servers[i].pid, NULL, 0);
    }
}

static bool server_answers(const char *url, uint64_t ms) {
    uint64_t until = clock_mono_ms() + ms;
    tarn_client *c;
    while (clock_mono_ms() < until) {
        if (tarn_connect(url, NULL, &c) == TARN_OK) {
            tarn_close(&c);
            return true;
        }
        sleep_ms(50);
    }
    fprintf(stderr, "%s\n", tarn_last_error());
    return false;
}

/* Gives the servers a map, with equal shares. */
static bool masters_map(const struct settings *s) {
    char map[1024], url[64], name[2] = "a", *text;
    size_t n = (size_t)snprintf(map, sizeof(map), "tarn-slots 1\nepoch 1\n");
    for (uint64_t i = 0; i < s->masters; i++)
        n += (size_t)snprintf(map + n, sizeof(map) - n, "shard %c 0 127.0.0.1:%d %u-%u\n",
                              (char)('a' + i), servers[i].port, (unsigned)(SLOTS * i / s->masters),
                              (unsigned)(SLOTS * (i + 1) / s->masters - 1));
    for (uint64_t i = 0; i < s->masters; i++) {
        tarn_client *c;
        name[0] = (char)('a' + i);
        const char *argv[] = {"CLUSTER", "SETMAP", name, map};
        snprintf(url, sizeof(url), "tarn://127.0.0.1:%d", servers[i].port);
        if (!server_answers(url, PATIENCE_MS) || tarn_connect(url, NULL, &c) != TARN_OK)
            return false;
        tarn_status status;
        while ((status = tarn_command(c, 4, argv, NULL, &text, NULL)) == TARN_ELOADING)
            sleep_ms(20);
        if (status == TARN_OK) tarn_free(text);
        tarn_close(&c);
        if (status != TARN_OK) fprintf(stderr, "%s\n", tarn_last_error());
        if (status != TARN_OK) return false;
    }
    return true;
}

/* One of several masters is stopped for a while, or crashes and starts again. */
static void master_disturb(const struct settings *s, struct rng *rng) {
    struct server *v = &servers[rng_below(rng, s->masters)];
    if (rng_below(rng, 2) == 0) {
        kill(v->pid, SIGSTOP);
        sleep_ms(rng_below(rng, 700));
        kill(v->pid, SIGCONT);
        return;
    }
    kill(v->pid, SIGKILL);
    waitpid(v->pid, NULL, 0);
    sleep_ms(rng_below(rng, 300));
    server_spawn(v, s);
    count(CRASHES, 1);
}

/* Kills, stops and continues at random until the time is over. */
static void disturb(pid_t *pids, const struct settings *s, struct rng *rng) {
    uint64_t until = clock_mono_ms() + s->seconds * 1000;
    while (clock_mono_ms() < until && __atomic_load_n(&shared->wrong, __ATOMIC_RELAXED) == 0) {
        sleep_ms(50 + rng_below(rng, 200));
        if (s->masters > 1 && rng_below(rng, 3) == 0) master_disturb(s, rng);
        size_t i = rng_below(rng, PROCESSES);
        uint64_t what = rng_below(rng, 10);
        int status;
        if (waitpid(pids[i], &status, WNOHANG) == pids[i]) {
            bool bad = !WIFEXITED(status) || WEXITSTATUS(status) != 0;
            if (bad)
                complain("a process died by itself", 0, 0, 0, (size_t)status, roles[i].transport);
            pids[i] = spawn(i, s, rng);
        } else if (what < 3) {
            kill(pids[i], SIGSTOP);
            sleep_ms(rng_below(rng, 500));
            /* Sometimes it dies while it is stopped. */
            if (what == 0) kill(pids[i], SIGKILL);
            kill(pids[i], SIGCONT);
            count(STOPS, 1);
            if (what > 0) continue;
            waitpid(pids[i], NULL, 0);
            pids[i] = spawn(i, s, rng);
        } else if (what < 6) {
            kill(pids[i], SIGKILL);
            waitpid(pids[i], NULL, 0);
            pids[i] = spawn(i, s, rng);
            count(KILLS, 1);
        }
    }
}

/* All writers are gone, so their space must come back: a value of half the pool fits. */
static bool room_returns(const struct settings *s) {
    tarn_client *c;
    if (tarn_connect(s->url, NULL, &c) != TARN_OK) {
        fprintf(stderr, "%s\n", tarn_last_error());
        return false;
    }
    size_t size = (size_t)s->pool / 2;
    char *data = calloc(1, size);
    tarn_status status = TARN_ERR;
    uint64_t until = clock_mono_ms() + PATIENCE_MS;
    while (data != NULL && (status = tarn_put(c, "stress:room", 11, data, size, NULL)) != TARN_OK &&
           clock_mono_ms() < until) {
        sleep_ms(100);
    }
    if (status != TARN_OK) fprintf(stderr, "room does not come back: %s\n", tarn_last_error());
    free(data);
    tarn_close(&c);
    return status == TARN_OK;
}

static void end_children(pid_t *pids) {
    __atomic_store_n(&shared->stop, 1, __ATOMIC_RELAXED);
    for (size_t i = 0; i < PROCESSES; i++) {
        uint64_t until = clock_mono_ms() + PATIENCE_MS;
        while (waitpid(pids[i], NULL, WNOHANG) == 0) {
            if (clock_mono_ms() > until) {
                complain("a process does not end", 0, 0, 0, 0, roles[i].transport);
                kill(pids[i], SIGKILL);
                waitpid(pids[i], NULL, 0);
                break;
            }
            sleep_ms(20);
        }
    }
}

static bool servers_live(const struct settings *s) {
    bool live = true;
    for (uint64_t i = 0; i < s->masters && live; i++)
        live = waitpid(servers[i].pid, NULL, WNOHANG) != servers[i].pid;
    if (!live) fprintf(stderr, "a server died: verify_stress.*/log in TMPDIR\n");
    return live;
}

static bool run(struct settings s) {
    char url[300];
    bool own = s.url == NULL;
    if (own) servers_start(&s, url, sizeof(url));
    bool ok = s.masters > 1 && own ? masters_map(&s) : server_answers(s.url, PATIENCE_MS);
    if (ok) {
        struct rng rng;
        rng_seed(&rng, s.seed);
        pid_t pids[PROCESSES];
        for (size_t i = 0; i < PROCESSES; i++) pids[i] = spawn(i, &s, &rng);
        disturb(pids, &s, &rng);
        end_children(pids);
        ok = room_returns(&s) && shared->wrong == 0 && shared->figures[HITS] > 0 &&
             shared->figures[PUTS] > 0;
    }
    if (own) ok = servers_live(&s) && ok;
    if (own) servers_stop(&s);
    return ok;
}

/* false: something was wrong. */
static bool run_and_tell(const struct settings *s) {
    memset(shared, 0, sizeof(*shared));
    bool ok = run(*s);
    for (int i = 0; i < FIGURES; i++)
        printf("%llu %s%s", (unsigned long long)shared->figures[i], figure_names[i],
               i + 1 < FIGURES ? ", " : "\n");
    if (shared->wrong > 0) printf("%s\n", shared->complaint);
    printf("%llu masters: %llu wrong bytes (seed %llu)\n", (unsigned long long)s->masters,
           (unsigned long long)shared->wrong, (unsigned long long)s->seed);
    return ok;
}

int main(int argc, char **argv) {
    const char *seconds = getenv("STRESS_SECONDS");
    struct settings s = {.seconds = seconds != NULL ? strtoull(seconds, NULL, 10) : 10,
                         .seed = 1,
                         .pool = 24u << 20};
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seconds") == 0) s.seconds = strtoull(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--seed") == 0) s.seed = strtoull(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--url") == 0) s.url = argv[i + 1];
        if (strcmp(argv[i], "--pool") == 0) s.pool = strtoull(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--masters") == 0) s.masters = strtoull(argv[i + 1], NULL, 10);
    }
    if (s.masters > MASTERS_MAX) return 2;
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 1;
    static const uint64_t each[] = {1, 3};
    bool all = s.masters == 0 && s.url == NULL;
    unsigned passed = 0, n = all ? ARRAY_LEN(each) : 1;
    for (unsigned i = 0; i < n; i++) {
        if (all || s.masters == 0) s.masters = each[i];
        passed += run_and_tell(&s);
        if (all) s.masters = 0;
    }
    printf("%u passed, %u failed\n", passed, n - passed);
    return passed == n ? 0 : 1;
}
