/* nodes: masters under the load of a big pool. So many simulated nodes (nodes_sim.c) join all of
 * them, while batches of metadata are put and looked up. Then nodes die, and it is measured for how
 * long a master still hands out what only they had, and what it takes the masters. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "benchmark/nodes.h"
#include "base/slot.h"

#define NODES_MAX    32768u
#define PROBE_KEY    "tarn-benchmark:nodes:probe"
#define PATIENCE_US  UINT64_C(120000000)
#define RESETSTAT    "*2\r\n$6\r\nCONFIG\r\n$9\r\nRESETSTAT\r\n"
#define SETTLE_US    200000u
#define ASKED_ROUNDS 5u

/* --- what it takes the masters --- */

struct cost {
    double cpu_s, longest_us;
};

static void cost_begin(const struct nodes *n, struct cost *c) {
    meta_masters_tell(&n->meta, RESETSTAT);
    c->cpu_s = meta_masters_cpu_s(&n->meta);
}

/* Sums of all masters, and the longest turn of any. */
static struct cost cost_end(const struct nodes *n, const struct cost *begin) {
    return (struct cost){.cpu_s = meta_masters_cpu_s(&n->meta) - begin->cpu_s,
                         .longest_us =
                             meta_masters_most(&n->meta, "server", "loop_longest_turn_usec")};
}

/* --- deaths --- */

static void put_probe(const struct nodes *n, tarn_client *c, const struct sim_node *s) {
    char size[24], prefer[40], *text;
    snprintf(size, sizeof(size), "%" PRIu64,
             n->meta.value_size > 64 ? n->meta.value_size : UINT64_C(4096));
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

/* From the session's death to the answer of the last look-up that still found its object, in ms. */
static double death(struct nodes *n, tarn_client *c, struct sim_node *s, enum order order) {
    put_probe(n, c, s);
    if (tarn_exists(c, PROBE_KEY, strlen(PROBE_KEY)) != TARN_OK) die("the probe is not there");
    nodes_order(n, (uint64_t)(s - n->node), 1, order);
    uint64_t last = n->died_us;
    for (;;) {
        tarn_status status = tarn_exists(c, PROBE_KEY, strlen(PROBE_KEY));
        uint64_t now = clock_mono_us();
        if (status == TARN_ENOTFOUND) return (double)(last - n->died_us) / 1000;
        if (status != TARN_OK) die("%s", tarn_last_error());
        if (now - n->died_us > PATIENCE_US)
            die("the master does not notice that %s is dead", s->name);
        last = now;
        usleep(200);
    }
}

/* The same process again, with the same memory: its replicas must be there. The other thread has
 * let go of it. */
static void comeback(struct nodes *n, struct sim_node *s) {
    if (node_join(n, s) != n->segments)
        die("%s came back with its content, but the master did not keep it", s->name);
    s->dead = false;
    node_watch(n, s);
}

static double comeback_ms(struct nodes *n, tarn_client *c, struct sim_node *s) {
    uint64_t start = clock_mono_us();
    comeback(n, s);
    if (tarn_exists(c, PROBE_KEY, strlen(PROBE_KEY)) != TARN_OK)
        die("%s came back, but its object did not", s->name);
    return (double)(clock_mono_us() - start) / 1000;
}

static void await_down(const struct nodes *n, uint64_t sessions) {
    uint64_t start = clock_mono_us();
    while (meta_masters_sum(&n->meta, "nodes", "nodes_down") < (double)sessions) {
        if (clock_mono_us() - start > PATIENCE_US)
            die("the masters do not notice that nodes are dead");
        usleep(SETTLE_US);
    }
}

/* So many nodes at once, with all their sessions; and back. */
static void deaths_at_once(struct nodes *n, struct nodes_figures *f) {
    uint64_t sessions = n->dying * n->meta.n_masters;
    double masters = n->meta.n_masters;
    struct cost begin, cost;
    cost_begin(n, &begin);
    nodes_order(n, 0, sessions, ORDER_CLOSE);
    await_down(n, sessions);
    cost = cost_end(n, &begin);
    f->dying_cpu_ms = cost.cpu_s * 1000 / masters;
    f->dying_longest_ms = cost.longest_us / 1000;
    cost_begin(n, &begin);
    for (uint64_t i = 0; i < sessions; i++) comeback(n, &n->node[i]);
    cost = cost_end(n, &begin);
    f->back_cpu_ms = cost.cpu_s * 1000 / masters;
    f->back_longest_ms = cost.longest_us / 1000;
}

/* At the master that has the probe. */
static void deaths(struct nodes *n, struct nodes_figures *f) {
    unsigned m = n->meta.owner != NULL ? n->meta.owner[slot_of_key(span_str(PROBE_KEY))] : 0;
    tarn_client *c = client_open(&n->meta.masters[m], "tcp", true);
    struct sim_node *closing = &n->node[m], *silent = &n->node[(n->n - 1) * n->meta.n_masters + m];
    f->closed_ms = death(n, c, closing, ORDER_CLOSE);
    f->back_ms = comeback_ms(n, c, closing);
    if (n->dying > 0) deaths_at_once(n, f);
    f->silent_ms = death(n, c, silent, ORDER_SILENCE);
    tarn_close(&c);
}

/* --- the whole --- */

static void join_all(struct nodes *n, struct nodes_figures *f) {
    double bytes = meta_masters_sum(&n->meta, "memory", "used_memory"),
           rss = meta_masters_sum(&n->meta, "memory", "used_memory_rss");
    struct cost begin, cost;
    cost_begin(n, &begin);
    uint64_t start = clock_mono_us();
    for (uint64_t i = 0; i < n->sessions; i++) {
        node_join(n, &n->node[i]);
        node_watch(n, &n->node[i]);
    }
    f->join_ms = (double)(clock_mono_us() - start) / 1000;
    cost = cost_end(n, &begin);
    double sessions = (double)n->sessions;
    f->join_cpu_us = cost.cpu_s * 1e6 / sessions;
    f->join_longest_ms = cost.longest_us / 1000;
    f->bytes_per_session = (meta_masters_sum(&n->meta, "memory", "used_memory") - bytes) / sessions;
    f->rss_per_session = (meta_masters_sum(&n->meta, "memory", "used_memory_rss") - rss) / sessions;
}

/* Nothing else is asked meanwhile. */
static void beats_alone(struct nodes *n, struct nodes_figures *f) {
    struct cost begin;
    usleep(2 * SETTLE_US); /* the first of all have waited for the joins of others */
    cost_begin(n, &begin);
    beats_reset(n);
    usleep((useconds_t)(n->meta.seconds * 1e6));
    f->beats = beats_so_far(n);
    double cpu_s = cost_end(n, &begin).cpu_s;
    f->beats_share = cpu_s / n->meta.seconds / n->meta.n_masters;
    f->beat_cpu_us = cpu_s * 1e6 / (f->beats.per_s * n->meta.seconds);
}

static void ask_for_all(struct nodes *n, struct nodes_figures *f) {
    static const struct {
        const char *name, *request;
    } asks[NODES_ASKED] = {
        {"SEGMENT LIST", "*2\r\n$7\r\nSEGMENT\r\n$4\r\nLIST\r\n"},
        {"NODE LIST", "*2\r\n$4\r\nNODE\r\n$4\r\nLIST\r\n"},
        {"INFO ALL", "*2\r\n$4\r\nINFO\r\n$3\r\nALL\r\n"},
        {"INFO nodes", "*2\r\n$4\r\nINFO\r\n$5\r\nnodes\r\n"},
    };
    struct meta one = n->meta;
    one.n_masters = 1;
    struct wire *w = wire_open(one.masters);
    for (unsigned i = 0; i < NODES_ASKED; i++) {
        meta_masters_tell(&one, RESETSTAT);
        double cpu_s = meta_masters_cpu_s(&one);
        uint64_t start = clock_mono_us();
        for (unsigned k = 0; k < ASKED_ROUNDS; k++) {
            wire_send(w, asks[i].request, strlen(asks[i].request));
            wire_skip(w, 1);
        }
        double beside = f->beats_share * (double)(clock_mono_us() - start) / 1e6;
        f->asked[i] = (struct nodes_asked){
            .name = asks[i].name,
            .cpu_ms = (meta_masters_cpu_s(&one) - cpu_s - beside) * 1000 / ASKED_ROUNDS,
            .longest_ms = meta_masters_most(&one, "server", "loop_longest_turn_usec") / 1000};
    }
    wire_close(&w);
}

static void objects_load(struct nodes *n, struct nodes_figures *f) {
    struct meta *m = &n->meta;
    double before = meta_masters_sum(m, "memory", "used_memory"), cpu_s = meta_masters_cpu_s(m);
    uint64_t start = clock_mono_us();
    meta_fill(m);
    f->put_seconds = (double)(clock_mono_us() - start) / 1e6;
    f->objects = (m->keys + m->batch - 1) / m->batch * m->batch;
    f->put_cpu_ns = (meta_masters_cpu_s(m) - cpu_s) * 1e9 / (double)f->objects;
    f->bytes_per_object =
        (meta_masters_sum(m, "memory", "used_memory") - before) / (double)f->objects;
}

static void measure(struct nodes *n, struct nodes_figures *f) {
    beats_reset(n);
    beats_start(n);
    join_all(n, f);
    beats_alone(n, f);
    ask_for_all(n, f);
    beats_reset(n);
    objects_load(n, f);
    f->beats_loading = beats_so_far(n);
    beats_reset(n);
    meta_measure(&n->meta, &f->gets);
    f->beats_reading = beats_so_far(n);
    deaths(n, f);
    f->heartbeat_ms = n->heartbeat_ms;
    f->timeout_ms = n->timeout_ms;
    beats_stop(n);
}

int nodes_main(struct bench *b, int argc, char **argv) {
    struct nodes n = {.b = b,
                      .n = 200,
                      .segments = 1,
                      .segment_bytes = UINT64_C(1) << 38,
                      .lock = PTHREAD_MUTEX_INITIALIZER,
                      .meta = {.b = b,
                               .op = META_GET,
                               .batch = 128,
                               .keys = 5000000,
                               .value_size = 4096,
                               .key_size = 64,
                               .replicas = 2,
                               .clients = 1,
                               .threads = 1,
                               .pipeline = 2,
                               .lease_ms = 5000,
                               .seconds = 5}};
    struct meta *m = &n.meta;
    const struct option_spec specs[] = {
        {"--nodes", OPT_U64, &n.n, 2, NODES_MAX},
        {"--segments", OPT_U64, &n.segments, 1, 64},
        {"--segment", OPT_BYTES, &n.segment_bytes, 1 << 20, UINT64_C(1) << 40},
        {"--dying", OPT_U64, &n.dying, 0, NODES_MAX},
        {"--keys", OPT_U64, &m->keys, 1, 1000000000},
        {"--value-size", OPT_BYTES, &m->value_size, 1, UINT64_C(1) << 40},
        {"--replicas", OPT_U64, &m->replicas, 1, 8},
        {"--batch", OPT_U64, &m->batch, 1, 65536},
        {"--clients", OPT_U64, &m->clients, 1, 10000},
        {"--seconds", OPT_DOUBLE, &m->seconds, 0, 86400},
        {NULL, OPT_FLAG, NULL, 0, 0},
    };
    if (options_parse(b, specs, argc, argv, false, NULL) > 0)
        die("nodes takes no argument \"%s\"", argv[0]);
    if (n.dying >= n.n) die("--dying must be below --nodes, %" PRIu64 ": one has to stay", n.n);
    meta_masters_open(m);
    struct nodes_figures f = {.nodes = n.n,
                              .masters = m->n_masters,
                              .segments = n.segments,
                              .replicas = m->replicas,
                              .dying = n.dying};
    nodes_name(&n);
    measure(&n, &f);
    nodes_print(b, &f);
    for (uint64_t i = 0; i < n.sessions; i++) node_leave(&n.node[i]);
    free(n.node);
    meta_masters_close(m);
    return f.gets.errors > 0 || f.gets.hits < f.gets.done_keys;
}
