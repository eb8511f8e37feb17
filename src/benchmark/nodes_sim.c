/* The nodes that `nodes` simulates: each has a session with every master, joins, mounts segments
 * that nobody will ever read, and beats, from one thread for all. Nothing here moves a byte of a
 * value.
 *
 * A heartbeat waits at the master until its interval is over or there is work, as those of
 * tarn-node do; after every fourth comes one that does not wait, whose round trip is what is
 * measured. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "benchmark/nodes.h"

#define PER_RACK    20u
#define PROBE_BEATS 4u

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

static uint64_t node_number(const struct nodes *n, const struct sim_node *s) {
    return (uint64_t)(s - n->node) / n->meta.n_masters;
}

static void random_hex(uint64_t seed, char out[33]) {
    u64_to_hex(mix64(seed), 16, out);
    u64_to_hex(mix64(~seed), 16, out + 16);
}

void nodes_name(struct nodes *n) {
    uint64_t run = clock_wall_us();
    n->sessions = n->n * n->meta.n_masters;
    n->node = xcalloc(n->sessions, sizeof(*n->node));
    for (uint64_t i = 0; i < n->sessions; i++) {
        struct sim_node *s = &n->node[i];
        s->master = &n->meta.masters[i % n->meta.n_masters];
        snprintf(s->name, sizeof(s->name), "sim-%" PRIu64, node_number(n, s));
        random_hex(run + 2 * i, s->instance);
        random_hex(run + 2 * i + 1, s->content);
        ctl_init(&s->ctl);
    }
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

/* One round trip for all. Returns how many of them the master knew, with what is in them. */
static uint64_t node_mount(struct nodes *n, struct sim_node *s) {
    uint64_t kept = 0;
    for (uint64_t k = 0; k < n->segments; k++)
        node_tell(s, false,
                  "SEGMENT MOUNT %s %s %s.%" PRIu64 " TIER memory SIZE %" PRIu64
                  " CONTENT %s BACKING memfd ENDPOINTS 1 tcp://192.0.2.%" PRIu64 ":9",
                  s->name, s->instance, s->name, k, n->segment_bytes, s->content,
                  node_number(n, s) % 250 + 1);
    for (uint64_t k = 0; k < n->segments; k++) kept += (uint64_t)map_number(node_ask(s), "kept");
    return kept;
}

uint64_t node_join(struct nodes *n, struct sim_node *s) {
    uint64_t i = node_number(n, s);
    bench_connect(s->master, &s->ctl, &s->arena);
    node_tell(s, false,
              "NODE JOIN %s %s MACHINE sim-machine-%" PRIu64 " RACK sim-rack-%" PRIu64
              " VERSION simulated",
              s->name, s->instance, i, i / PER_RACK);
    const struct answer *joined = node_ask(s);
    if (n->heartbeat_ms == 0) {
        n->heartbeat_ms = (uint64_t)map_number(joined, "heartbeat");
        n->timeout_ms = (uint64_t)map_number(joined, "node-timeout");
    }
    uint64_t kept = node_mount(n, s);
    node_come_up(s);
    return kept;
}

void node_leave(struct sim_node *s) {
    if (s->ctl.fd < 0) return;
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
    s->probing = ++s->beats % PROBE_BEATS == 0;
    node_beat(n, s);
}

/* Those from `first` on, `count` of them, die. */
static void orders_carry_out(struct nodes *n) {
    enum order order = __atomic_load_n(&n->order, __ATOMIC_ACQUIRE);
    if (order == ORDER_NONE) return;
    n->died_us = clock_mono_us();
    for (uint64_t i = n->first; i < n->first + n->count; i++) {
        n->node[i].dead = true;
        if (order == ORDER_CLOSE) node_leave(&n->node[i]);
    }
    __atomic_store_n(&n->order, ORDER_NONE, __ATOMIC_RELEASE);
}

void nodes_order(struct nodes *n, uint64_t first, uint64_t count, enum order order) {
    n->first = first;
    n->count = count;
    __atomic_store_n(&n->order, order, __ATOMIC_RELEASE);
    while (__atomic_load_n(&n->order, __ATOMIC_ACQUIRE) != ORDER_NONE) usleep(100);
}

void node_watch(struct nodes *n, struct sim_node *s) {
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
        orders_carry_out(n);
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

void beats_start(struct nodes *n) {
    n->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (n->epoll < 0) die("epoll: %s", strerror(errno));
    if (pthread_create(&n->thread, NULL, beats, n) != 0) die("cannot start a thread");
}

void beats_stop(struct nodes *n) {
    __atomic_store_n(&n->stop, true, __ATOMIC_RELAXED);
    pthread_join(n->thread, NULL);
    close(n->epoll);
}

void beats_reset(struct nodes *n) {
    pthread_mutex_lock(&n->lock);
    hist_init(&n->hist);
    n->beats = 0;
    n->since_us = clock_mono_us();
    pthread_mutex_unlock(&n->lock);
}

struct beat_figures beats_so_far(struct nodes *n) {
    pthread_mutex_lock(&n->lock);
    struct beat_figures f = {.per_s =
                                 (double)n->beats / ((double)(clock_mono_us() - n->since_us) / 1e6),
                             .hist = n->hist};
    pthread_mutex_unlock(&n->lock);
    return f;
}
