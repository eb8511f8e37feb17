/* nodes: one master under the load of a big pool. So many simulated nodes join it, mount segments
 * that nobody will ever read, and send heartbeats from one thread, while batches of metadata are
 * put and looked up. Then nodes die, and it is measured for how long the master still hands out
 * what only they had. Nothing here moves a byte of a value.
 *
 * A heartbeat waits at the master until its interval is over or there is work, as those of
 * tarn-node do; after each comes one that does not wait, whose round trip is what is measured. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "benchmark/meta.h"
#include "benchmark/nodes.h"

#define NODES_MAX   4096u
#define PER_RACK    20u
#define PROBE_KEY   "tarn-benchmark:nodes:probe"
#define PATIENCE_US UINT64_C(120000000)

enum order { ORDER_NONE, ORDER_SILENCE, ORDER_CLOSE };

struct sim_node {
    char name[32], instance[33], content[33];
    struct ctl ctl;
    struct arena arena; /* of the last answer */
    bool probing;       /* the heartbeat under way does not wait */
    bool left;
    uint64_t sent_us;
    /* of the main thread to the thread of the heartbeats; ORDER_NONE: carried out */
    enum order order;
    bool dead;
    uint64_t died_us;
};

struct nodes {
    struct bench *b;
    uint64_t n, segment_bytes, keys, value_size, replicas, batch, clients;
    double seconds;
    struct sim_node *node;
    uint64_t heartbeat_ms, timeout_ms; /* as the master says */
    int epoll;
    pthread_t thread;
    bool stop;
    /* of the heartbeats; the main thread reads them when the other has ended, or resets them under
     * the lock */
    pthread_mutex_t lock;
    struct hist hist;
    uint64_t beats, since_us;
};

/* --- connections --- */

/* Words with blanks between them, none of which is empty. skip: nobody will ask for the answer. */
static void node_tell(struct sim_node *s, bool skip, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void node_tell(struct sim_node *s, bool skip, const char *fmt, ...) {
    char text[2000], *rest = NULL;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    ctl_begin(&s->ctl, "the master");
    for (char *w = strtok_r(text, " ", &rest); w != NULL; w = strtok_r(NULL, " ", &rest))
        ctl_arg_str(&s->ctl, w);
    if (ctl_commit(&s->ctl, skip) != TARN_OK) die("%s: %s", s->name, tarn_last_error());
}

/* The next answer, until the arena is reset; NULL: it is not there yet (not when waiting). */
static const struct answer *node_hear(struct sim_node *s, bool wait) {
    struct answer *a = NULL;
    tarn_status status = wait ? ctl_receive(&s->ctl, &s->arena, &a, UINT64_MAX)
                              : ctl_try_receive(&s->ctl, &s->arena, &a);
    if (status != TARN_OK && status != TARN_EAGAIN) die("%s: %s", s->name, tarn_last_error());
    return a;
}

static const struct answer *node_ask(struct sim_node *s) {
    const struct answer *a = node_hear(s, true);
    if (a->type == ANSWER_ERROR) die("%s: %s", s->name, a->str);
    return a;
}

static int64_t map_number(const struct answer *map, const char *name) {
    const struct answer *v = answer_field(map, name);
    if (v == NULL) die("the master's answer has no field %s", name);
    return v->type == ANSWER_INTEGER  ? v->integer
           : v->type == ANSWER_STRING ? strtoll(v->str, NULL, 10)
                                      : 0;
}

/* --- joining --- */

static void random_hex(uint64_t seed, char out[33]) {
    u64_to_hex(mix64(seed), 16, out);
    u64_to_hex(mix64(~seed), 16, out + 16);
}

static void node_work(struct sim_node *s, const struct answer *a);

/* Until the master says that the node is up; it may first want to know that writers were cut
 * off. */
static void node_come_up(struct sim_node *s) {
    for (bool again = true; again; arena_reset(&s->arena)) {
        node_tell(s, false, "NODE UP %s %s", s->name, s->instance);
        const struct answer *up = node_hear(s, true);
        again = up->type == ANSWER_ERROR && strncmp(up->str, "AGAIN", 5) == 0;
        if (up->type == ANSWER_ERROR && !again) die("%s: %s", s->name, up->str);
        if (!again) continue;
        node_tell(s, false, "NODE HEARTBEAT %s %s", s->name, s->instance);
        node_work(s, node_ask(s));
    }
}

/* Returns the replicas' fate: 1: the master took the segment's replicas back. */
static int64_t node_join(struct nodes *n, struct sim_node *s) {
    uint64_t i = (uint64_t)(s - n->node);
    bench_connect(n->b, &s->ctl, &s->arena);
    node_tell(s, false,
              "NODE JOIN %s %s MACHINE sim-machine-%" PRIu64 " RACK sim-rack-%" PRIu64
              " VERSION simulated",
              s->name, s->instance, i, i / PER_RACK);
    const struct answer *joined = node_ask(s);
    if (n->heartbeat_ms == 0) {
        n->heartbeat_ms = (uint64_t)map_number(joined, "heartbeat");
        n->timeout_ms = (uint64_t)map_number(joined, "node-timeout");
    }
    node_tell(s, false,
              "SEGMENT MOUNT %s %s %s.0 TIER memory SIZE %" PRIu64
              " CONTENT %s BACKING memfd ENDPOINTS 1 tcp://192.0.2.%" PRIu64 ":9",
              s->name, s->instance, s->name, n->segment_bytes, s->content, i % 250 + 1);
    int64_t kept = map_number(node_ask(s), "kept");
    node_come_up(s);
    return kept;
}

static void node_leave(struct sim_node *s) {
    ctl_close(&s->ctl);
    arena_free(&s->arena);
}

/* --- heartbeats --- */

/* Writers are cut off at once here, and nothing is ever copied. */
static void node_work(struct sim_node *s, const struct answer *a) {
    const struct answer *items = answer_at(a, 1);
    if (items == NULL || items->type != ANSWER_ARRAY) die("%s: no answer to a heartbeat", s->name);
    for (size_t i = 0; i < items->len; i++) {
        const struct answer *name = answer_at(&items->element[i], 0),
                            *id = answer_at(&items->element[i], 1);
        if (name == NULL || name->type != ANSWER_STRING) continue;
        if (strcmp(name->str, "fence") == 0 && id != NULL)
            node_tell(s, true, "NODE FENCED %s %s %" PRId64, s->name, s->instance, id->integer);
        else if ((strcmp(name->str, "copy") == 0 || strcmp(name->str, "store") == 0) && id != NULL)
            node_tell(s, true, "NODE DONE %s %s 1 %" PRId64 " %d 0 -1", s->name, s->instance,
                      id->integer, TARN_ECANCELED);
        else if (strcmp(name->str, "leave") == 0)
            s->left = true;
    }
}

static void node_beat(struct nodes *n, struct sim_node *s) {
    s->sent_us = clock_mono_us();
    if (s->probing)
        node_tell(s, false, "NODE HEARTBEAT %s %s", s->name, s->instance);
    else
        node_tell(s, false,
                  "NODE HEARTBEAT %s %s WAIT %" PRIu64
                  " STATS 3 load-percent 100 memory-available 1000000000 reads %" PRIu64,
                  s->name, s->instance, n->heartbeat_ms, n->beats);
}

static void node_answered(struct nodes *n, struct sim_node *s, const struct answer *a) {
    if (a->type == ANSWER_ERROR && !s->dead) die("%s: %s", s->name, a->str);
    if (s->dead || s->left) return;
    node_work(s, a);
    pthread_mutex_lock(&n->lock);
    n->beats++;
    if (s->probing) hist_add(&n->hist, clock_mono_us() - s->sent_us);
    pthread_mutex_unlock(&n->lock);
    s->probing = !s->probing;
    node_beat(n, s);
}

static void node_carry_out(struct sim_node *s) {
    enum order order = __atomic_load_n(&s->order, __ATOMIC_ACQUIRE);
    if (order == ORDER_NONE) return;
    s->dead = true;
    s->died_us = clock_mono_us();
    if (order == ORDER_CLOSE) node_leave(s);
    __atomic_store_n(&s->order, ORDER_NONE, __ATOMIC_RELEASE);
}

static void node_watch(struct nodes *n, struct sim_node *s) {
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = s};
    s->probing = false;
    node_beat(n, s);
    if (epoll_ctl(n->epoll, EPOLL_CTL_ADD, s->ctl.fd, &e) != 0) die("epoll: %s", strerror(errno));
}

static void *beats(void *arg) {
    struct nodes *n = arg;
    struct epoll_event events[256];
    while (!__atomic_load_n(&n->stop, __ATOMIC_RELAXED)) {
        int got = epoll_wait(n->epoll, events, (int)ARRAY_LEN(events), 5);
        for (uint64_t i = 0; i < n->n; i++) node_carry_out(&n->node[i]);
        for (int i = 0; i < got; i++) {
            struct sim_node *s = events[i].data.ptr;
            const struct answer *a;
            while (s->ctl.fd >= 0 && (a = node_hear(s, false)) != NULL) {
                node_answered(n, s, a);
                arena_reset(&s->arena);
            }
        }
    }
    return NULL;
}

static void beats_start(struct nodes *n) {
    n->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (n->epoll < 0) die("epoll: %s", strerror(errno));
    for (uint64_t i = 0; i < n->n; i++) node_watch(n, &n->node[i]);
    if (pthread_create(&n->thread, NULL, beats, n) != 0) die("cannot start a thread");
}

static void beats_stop(struct nodes *n) {
    __atomic_store_n(&n->stop, true, __ATOMIC_RELAXED);
    pthread_join(n->thread, NULL);
    close(n->epoll);
}

static void beats_reset(struct nodes *n) {
    pthread_mutex_lock(&n->lock);
    hist_init(&n->hist);
    n->beats = 0;
    n->since_us = clock_mono_us();
    pthread_mutex_unlock(&n->lock);
}

static struct beat_figures beats_so_far(struct nodes *n) {
    pthread_mutex_lock(&n->lock);
    struct beat_figures f = {.per_s =
                                 (double)n->beats / ((double)(clock_mono_us() - n->since_us) / 1e6),
                             .hist = n->hist};
    pthread_mutex_unlock(&n->lock);
    return f;
}

/* --- deaths --- */

static void put_probe(struct nodes *n, tarn_client *c, const struct sim_node *s) {
    char size[24], prefer[40], *text;
    snprintf(size, sizeof(size), "%" PRIu64, n->value_size > 64 ? n->value_size : 4096);
    snprintf(prefer, sizeof(prefer), "%s.0", s->name);
    const char *start[] = {"PUTSTART", PROBE_KEY, size, "PREFER", prefer, "REPLACE"};
    if (tarn_command(c, ARRAY_LEN(start), start, NULL, &text, NULL) != TARN_OK)
        die("%s", tarn_last_error());
    text[strcspn(text, "\n")] = '\0';
    const char *end[] = {"PUTEND", PROBE_KEY, text, "-1"};
    char *ok;
    if (tarn_command(c, ARRAY_LEN(end), end, NULL, &ok, NULL) != TARN_OK)
        die("%s", tarn_last_error());
    tarn_free(ok);
    tarn_free(text);
}

/* From the node's death to the answer of the last look-up that still found its object, in ms. */
static double death(struct nodes *n, tarn_client *c, struct sim_node *s, enum order order) {
    put_probe(n, c, s);
    if (tarn_exists(c, PROBE_KEY, strlen(PROBE_KEY)) != TARN_OK) die("the probe is not there");
    __atomic_store_n(&s->order, order, __ATOMIC_RELEASE);
    while (__atomic_load_n(&s->order, __ATOMIC_ACQUIRE) != ORDER_NONE) usleep(100);
    uint64_t last = s->died_us;
    for (;;) {
        tarn_status status = tarn_exists(c, PROBE_KEY, strlen(PROBE_KEY));
        uint64_t now = clock_mono_us();
        if (status == TARN_ENOTFOUND) return (double)(last - s->died_us) / 1000;
        if (status != TARN_OK) die("%s", tarn_last_error());
        if (now - s->died_us > PATIENCE_US)
            die("the master does not notice that %s is dead", s->name);
        last = now;
        usleep(200);
    }
}

/* The same process again, with the same memory: its replicas must be there. In ms. The other thread
 * has let go of it. */
static double comeback(struct nodes *n, tarn_client *c, struct sim_node *s) {
    uint64_t start = clock_mono_us();
    if (node_join(n, s) != 1)
        die("%s came back with its content, but the master did not keep it", s->name);
    if (tarn_exists(c, PROBE_KEY, strlen(PROBE_KEY)) != TARN_OK)
        die("%s came back, but its object did not", s->name);
    double ms = (double)(clock_mono_us() - start) / 1000;
    s->dead = false;
    node_watch(n, s);
    return ms;
}

/* --- the whole --- */

static void name_nodes(struct nodes *n) {
    uint64_t run = clock_wall_us();
    n->node = xcalloc(n->n, sizeof(*n->node));
    for (uint64_t i = 0; i < n->n; i++) {
        struct sim_node *s = &n->node[i];
        snprintf(s->name, sizeof(s->name), "sim-%" PRIu64, i);
        random_hex(run + 2 * i, s->instance);
        random_hex(run + 2 * i + 1, s->content);
        ctl_init(&s->ctl);
    }
}

static void join_all(struct nodes *n, struct nodes_figures *f) {
    uint64_t start = clock_mono_us();
    for (uint64_t i = 0; i < n->n; i++) node_join(n, &n->node[i]);
    f->join_ms = (double)(clock_mono_us() - start) / 1000;
}

static void objects_load(struct meta *m, tarn_client *c, struct nodes_figures *f) {
    double before = info_number(c, "used_memory");
    uint64_t start = clock_mono_us();
    meta_fill(m);
    f->put_seconds = (double)(clock_mono_us() - start) / 1e6;
    f->objects = (m->keys + m->batch - 1) / m->batch * m->batch;
    f->bytes_per_object = (info_number(c, "used_memory") - before) / (double)f->objects;
}

static void deaths(struct nodes *n, tarn_client *c, struct nodes_figures *f) {
    struct sim_node *closing = &n->node[0], *silent = &n->node[n->n - 1];
    f->closed_ms = death(n, c, closing, ORDER_CLOSE);
    f->back_ms = comeback(n, c, closing);
    f->silent_ms = death(n, c, silent, ORDER_SILENCE);
}

int nodes_main(struct bench *b, int argc, char **argv) {
    struct nodes n = {.b = b,
                      .n = 200,
                      .segment_bytes = UINT64_C(1) << 38,
                      .keys = 5000000,
                      .value_size = 4096,
                      .replicas = 2,
                      .batch = 128,
                      .clients = 1,
                      .seconds = 5,
                      .lock = PTHREAD_MUTEX_INITIALIZER};
    const struct option_spec specs[] = {
        {"--nodes", OPT_U64, &n.n, 2, NODES_MAX},
        {"--segment", OPT_BYTES, &n.segment_bytes, 1 << 20, UINT64_C(1) << 40},
        {"--keys", OPT_U64, &n.keys, 1, 1000000000},
        {"--value-size", OPT_BYTES, &n.value_size, 1, UINT64_C(1) << 40},
        {"--replicas", OPT_U64, &n.replicas, 1, 8},
        {"--batch", OPT_U64, &n.batch, 1, 65536},
        {"--clients", OPT_U64, &n.clients, 1, 10000},
        {"--seconds", OPT_DOUBLE, &n.seconds, 0, 86400},
        {NULL, OPT_FLAG, NULL, 0, 0},
    };
    if (options_parse(b, specs, argc, argv, false, NULL) > 0)
        die("nodes takes no argument \"%s\"", argv[0]);
    struct meta m = {.b = b,
                     .masters = b,
                     .n_masters = 1,
                     .op = META_GET,
                     .batch = n.batch,
                     .keys = n.keys,
                     .value_size = n.value_size,
                     .key_size = 64,
                     .replicas = n.replicas,
                     .clients = n.clients,
                     .threads = 1,
                     .pipeline = 2,
                     .lease_ms = 5000,
                     .seconds = n.seconds};
    struct nodes_figures f = {.nodes = n.n, .replicas = n.replicas};
    tarn_client *c = client_open(b, "tcp", true);
    name_nodes(&n);
    join_all(&n, &f);
    beats_reset(&n);
    beats_start(&n);
    objects_load(&m, c, &f);
    f.beats_loading = beats_so_far(&n);
    beats_reset(&n);
    meta_measure(&m, &f.gets);
    f.beats_reading = beats_so_far(&n);
    deaths(&n, c, &f);
    f.heartbeat_ms = n.heartbeat_ms;
    f.timeout_ms = n.timeout_ms;
    beats_stop(&n);
    nodes_print(b, &f);
    for (uint64_t i = 0; i < n.n; i++) {
        if (n.node[i].ctl.fd >= 0) node_leave(&n.node[i]);
    }
    free(n.node);
    tarn_close(&c);
    return f.gets.errors > 0 || f.gets.hits < f.gets.done_keys;
}
