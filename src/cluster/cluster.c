/* The life of the cluster: configuration, time, the order of background work; and the small things
 * that everything in this room is made of: timers, lists, machines. */
#include "cluster/internal.h"

#include <ctype.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

struct cluster cluster;
bool cluster_counts_hits;

/* --- timers --- */

void timer_set(struct timer *t, uint64_t due_ms) {
    wheel_set(cluster.wheel, &t->wheel, due_ms);
}

void timer_clear(struct timer *t) {
    wheel_remove(cluster.wheel, &t->wheel);
}

/* --- what is said --- */

bool bytes_within(struct span s, unsigned char least, unsigned char most) {
    for (size_t i = 0; i < s.len; i++)
        if ((unsigned char)s.data[i] < least || (unsigned char)s.data[i] > most) return false;
    return true;
}

bool valid_name(struct span s, size_t max) {
    for (size_t i = 0; i < s.len; i++)
        if (!isalnum((unsigned char)s.data[i]) && memchr("._-", s.data[i], 3) == NULL) return false;
    return s.len > 0 && s.len <= max;
}

bool valid_label(struct span s, size_t max) {
    return s.len <= max && bytes_within(s, '!', '~');
}

bool valid_text(struct span s, size_t max) {
    return s.len <= max && bytes_within(s, ' ', 0xff) &&
           (s.len == 0 || !memchr(s.data, 0x7f, s.len));
}

void text_set(char *to, size_t size, struct span s) {
    TARN_ASSERT(s.len < size);
    memset(to, 0, size);
    if (s.len > 0) memcpy(to, s.data, s.len);
}

struct object *object_readable(struct span key, uint64_t version) {
    struct object *o = store_find(cluster.store, key);
    return o != NULL && store_object_version(o) == version ? o : NULL;
}

/* --- machines --- */

static bool same_machine(const struct htab_node *node, const void *key) {
    const struct machine *m = CONTAINER_OF(node, const struct machine, node);
    return span_eq(span_str(m->name), *(const struct span *)key);
}

static struct machine *machine_find(struct span name) {
    struct htab_node *n =
        htab_find(&cluster.machines, hash_bytes(name.data, name.len), same_machine, &name);
    return n != NULL ? CONTAINER_OF(n, struct machine, node) : NULL;
}

/* The lowest number that nobody has. */
static uint32_t free_number(void) {
    size_t i = 0;
    while (i < cluster.machine_cap && cluster.machine_by_number[i] != NULL) i++;
    if (i == cluster.machine_cap) {
        size_t cap = cluster.machine_cap > 0 ? cluster.machine_cap * 2 : 16;
        cluster.machine_by_number =
            xrealloc(cluster.machine_by_number, cap * sizeof(struct machine *));
        memset(cluster.machine_by_number + i, 0, (cap - i) * sizeof(struct machine *));
        cluster.machine_cap = cap;
    }
    return (uint32_t)i;
}

struct machine *machine_get(struct span name) {
    TARN_ASSERT(name.len <= CLUSTER_LABEL_MAX);
    struct machine *m = machine_find(name);
    if (m == NULL) {
        uint32_t number = free_number();
        if (number >= STORE_HOSTS_MAX) return NULL;
        m = xcalloc(1, sizeof(*m));
        m->number = number;
        memcpy(m->name, name.data, name.len);
        cluster.machine_by_number[number] = m;
        htab_insert(&cluster.machines, &m->node, hash_bytes(name.data, name.len));
        cluster.machines_version++;
    }
    m->refs++;
    return m;
}

void machine_ref(struct machine *m) {
    m->refs++;
}

void machine_put(struct machine **machine_p) {
    struct machine *m = *machine_p;
    *machine_p = NULL;
    if (m == NULL || --m->refs > 0) return;
    htab_remove(&cluster.machines, &m->node);
    cluster.machine_by_number[m->number] = NULL;
    cluster.machines_version++;
    free(m);
}

uint32_t cluster_host_of(struct span machine) {
    if (machine.len == 0) return STORE_HOST_NONE;
    struct machine *m = machine_find(machine);
    return m != NULL ? m->number : STORE_HOST_NONE;
}

uint32_t cluster_machines_version(void) {
    return cluster.machines_version;
}

/* --- nearness --- */

enum { NEAR_MACHINE, NEAR_RACK, NEAR_NOT, NEAR_DEGREES };

static unsigned replica_nearness(const struct store_replica *r, uint32_t client_host,
                                 struct span client_rack) {
    const struct node_segment *g = r->extents > 0 ? segment_at(r->extent[0].segment) : NULL;
    if (g == NULL) return NEAR_NOT;
    if (g->machine->number == client_host) return NEAR_MACHINE;
    if (client_rack.len > 0 && g->node != NULL && span_eq(client_rack, span_str(g->node->rack)))
        return NEAR_RACK;
    return NEAR_NOT;
}

void cluster_order(struct store_layout *layout, uint32_t client_host, struct span client_rack) {
    if (layout->replicas < 2) return;
    uint64_t weight[STORE_REPLICAS_MAX];
    for (uint32_t i = 0; i < layout->replicas; i++) {
        const struct store_replica *r = &layout->replica[i];
        uint64_t degree =
            (uint64_t)r->tier * NEAR_DEGREES + replica_nearness(r, client_host, client_rack);
        weight[i] = degree << 32 | (uint32_t)rng_next(&cluster.rng);
    }
    for (uint32_t i = 1; i < layout->replicas; i++) {
        if (weight[i - 1] <= weight[i]) continue;
        uint64_t w = weight[i];
        struct store_replica r = layout->replica[i];
        uint32_t at = i;
        for (; at > 0 && weight[at - 1] > w; at--) {
            weight[at] = weight[at - 1];
            layout->replica[at] = layout->replica[at - 1];
        }
        weight[at] = w;
        layout->replica[at] = r;
    }
}

/* --- life --- */

void cluster_config_init(struct cluster_config *c) {
    *c = (struct cluster_config){.node_timeout_ms = 10000,
                                 .heartbeat_ms = 1000,
                                 .forget_timeout_ms = 3600000,
                                 .max_nodes = 1024,
                                 .max_tasks = 10000,
                                 .tasks_per_node = 4,
                                 .task_retries = 3,
                                 .task_timeout_ms = 30000,
                                 .task_rate = 10000000,
                                 .hot_replicas = 0,
                                 .hot_window_ms = 10000,
                                 .hot_threshold = 1000,
                                 .offload_queue = 65536,
                                 .offload_wait_ms = 5000,
                                 .offload = CLUSTER_OFFLOAD_ALL};
}

struct cluster_config *cluster_config(void) {
    return &cluster.config;
}

void cluster_config_changed(void) {
    nodes_config_changed();
    heat_config_changed();
    offload_refresh();
}

const uint8_t *cluster_id(void) {
    return cluster.id;
}

void cluster_init(const struct cluster_options *options, const struct cluster_config *config) {
    memset(&cluster, 0, sizeof(cluster));
    cluster.store = options->store;
    cluster.config = *config;
    cluster.master_epoch = options->master_epoch;
    cluster.next_epoch = options->master_epoch + 1;
    cluster.now_ms = options->mono_ms;
    cluster.following = options->following;
    cluster.effect = options->effect;
    cluster.node_changed = options->node_changed;
    cluster.wheel = wheel_create(options->mono_ms);
    uint64_t seed;
    randombytes_buf(&seed, sizeof(seed));
    rng_seed(&cluster.rng, seed);
    if (options->cluster_id != NULL)
        memcpy(cluster.id, options->cluster_id, sizeof(cluster.id));
    else
        randombytes_buf(cluster.id, sizeof(cluster.id));
    size_t len = strnlen(options->machine, CLUSTER_LABEL_MAX);
    cluster.local.machine = machine_get(span_of(options->machine, len));
    TARN_ASSERT(cluster.local.machine->number == 0);
    nodes_init();
    fences_init();
    tasks_init();
    TAILQ_INIT(&cluster.drains);
    heat_init();
    offload_init();
    cluster_config_changed();
}

void cluster_deinit(void) {
    if (cluster.wheel == NULL) return;
    tasks_deinit();
    drains_deinit();
    heat_deinit();
    offload_deinit();
    nodes_deinit();
    segments_deinit();
    fences_deinit();
    machine_put(&cluster.local.machine);
    TARN_ASSERT(cluster.machines.count == 0 && cluster.told_bytes == 0);
    htab_free(&cluster.machines);
    free(cluster.machine_by_number);
    buf_free(&cluster.record);
    wheel_destroy(&cluster.wheel);
    cluster_counts_hits = false;
    memset(&cluster, 0, sizeof(cluster));
}

/* --- time --- */

void cluster_tick(uint64_t mono_ms) {
    cluster.now_ms = mono_ms;
}

static bool timers_run(unsigned *budget) {
    bool more = false;
    for (struct wheel_node *w;
         (w = wheel_pop(cluster.wheel, cluster.now_ms, budget, &more)) != NULL;) {
        struct timer *t = CONTAINER_OF(w, struct timer, wheel);
        t->due(t);
    }
    return more;
}

/* What keeps space from being used again goes first; those who make tasks go before the tasks. */
bool cluster_background(unsigned *budget) {
    if (cluster.following) return false;
    bool more = timers_run(budget);
    more |= fences_background(budget);
    more |= offload_background(budget);
    more |= drains_background(budget);
    more |= heat_background(budget);
    more |= tasks_background(budget);
    return more;
}

uint64_t cluster_next_ms(uint64_t limit_ms) {
    if (cluster.following) return limit_ms;
    if (limit_ms == 0 || !STAILQ_EMPTY(&cluster.fences_done) || offload_runnable()) return 0;
    limit_ms = tasks_next_ms(limit_ms);
    limit_ms = wheel_next_ms(cluster.wheel, cluster.now_ms, limit_ms);
    limit_ms = drains_next_ms(limit_ms);
    return heat_next_ms(limit_ms);
}

/* --- figures --- */

static void count_nodes(struct cluster_figures *f) {
    struct cluster_node *n;
    for (uint32_t at = 0; (n = cluster_node_next(&at)) != NULL;) {
        f->nodes++;
        f->nodes_by_state[n->state]++;
        f->nodes_maintenance += n->maintenance;
        f->nodes_draining += n->draining;
    }
}

static void count_segments(struct cluster_figures *f) {
    for (uint32_t id = 0; id < cluster.segment_cap; id++) {
        const struct node_segment *g = cluster.segments[id];
        if (g == NULL || g->leaving) continue;
        f->drops_waiting += g->drops.n;
        f->offload_waiting += g->offload.n;
        if (segment_is_far(g))
            f->far_segments++;
        else
            /* as told: a node may go first */
            f->memory_segments_up += g->node != NULL && g->node->serving;
    }
}

#define ROW(...) FIGURE_ROW(struct cluster_figures, __VA_ARGS__)
const struct figure cluster_figures[] = {CLUSTER_FIGURES(ROW){.name = NULL}};

void cluster_get_figures(struct cluster_figures *figures_p) {
    struct cluster_figures *f = figures_p;
    *f = cluster.figures;
    count_nodes(f);
    count_segments(f);
    f->max_nodes = cluster.config.max_nodes;
    f->max_tasks = cluster.config.max_tasks;
    f->machines = cluster.machines.count;
    f->node_fences_pending = cluster.fences.count;
    f->segment_keys = cluster.keys;
    f->node_reports = cluster.reports;
    f->keys_and_reports_bytes = cluster.told_bytes;
    f->tasks = cluster.tasks_by_id.count;
    tasks_count(f->tasks_by_state);
    const struct drain *d;
    TAILQ_FOREACH(d, &cluster.drains, link) f->drains++;
    f->hot_objects = heat_objects();
    f->promote_waiting = cluster.by_reason[CLUSTER_BY_USE];
    f->prefetch_waiting = cluster.by_reason[CLUSTER_BY_PREFETCH];
}

void cluster_figures_reset(void) {
    memset(&cluster.figures, 0, sizeof(cluster.figures));
}

/* --- what must hold --- */

static size_t check_tasks(const struct task_list *list, const struct cluster_node *n, bool sent) {
    size_t count = 0;
    const struct cluster_task *t;
    TAILQ_FOREACH(t, &list->all, link) {
        MAGIC_CHECK(t, TASK_MAGIC);
        TARN_ASSERT(t->in == list && t->node == n);
        TARN_ASSERT(t->state == (sent ? CLUSTER_TASK_SENT : CLUSTER_TASK_ROOM));
        TARN_ASSERT(t->kind == CLUSTER_TASK_STORE || (t->copy != NULL && t->counted));
        count++;
    }
    return count;
}

static void check_node(const struct cluster_node *n) {
    MAGIC_CHECK(n, NODE_MAGIC);
    TARN_ASSERT(check_tasks(&n->copies, n, false) == n->copies.n);
    TARN_ASSERT(check_tasks(&n->stores, n, false) == n->stores.n);
    TARN_ASSERT(check_tasks(&n->sent, n, true) == n->sent.n);
    TARN_ASSERT(n->sent_copies + n->sent_stores == n->sent.n);
    TARN_ASSERT(n->serving || n->sent.n + n->copies.n + n->stores.n == 0);
    size_t segments = 0;
    const struct node_segment *g;
    TAILQ_FOREACH(g, &n->segments, of_node) {
        TARN_ASSERT(g->node == n);
        segments++;
    }
    TARN_ASSERT(segments == n->n_segments);
}

static void check_segment(const struct node_segment *g) {
    struct store_segment_info info;
    MAGIC_CHECK(g, SEGMENT_MAGIC);
    bool there = store_segment_get(cluster.store, g->id, &info);
    TARN_ASSERT(there && info.epoch == g->epoch && info.tier == g->tier &&
                info.host == g->machine->number);
    TARN_ASSERT(g->leaving == (info.state == SEGMENT_LEAVING));
    if (g->leaving) return;
    TARN_ASSERT(g->node != NULL);
    bool readonly = g->node->maintenance || g->drain != NULL || g->drained;
    enum store_segment_state want = !g->node->serving ? SEGMENT_DOWN
                                    : readonly        ? SEGMENT_READONLY
                                                      : SEGMENT_UP;
    TARN_ASSERT(info.state == want);
}

void cluster_check(void) {
    size_t up = 0, segments = 0, copies = 0, ahead = 0;
    uint64_t by_reason[CLUSTER_REASONS] = {0}, use_bytes = 0;
    struct cluster_node *n;
    check_node(&cluster.local);
    for (uint32_t at = 0; (n = cluster_node_next(&at)) != NULL;) {
        check_node(n);
        up += n->state == CLUSTER_NODE_UP;
    }
    for (uint32_t id = 0; id < cluster.segment_cap; id++) {
        if (cluster.segments[id] == NULL) continue;
        check_segment(cluster.segments[id]);
        segments++;
    }
    const struct cluster_task *t;
    TAILQ_FOREACH(t, &cluster.tasks, all) {
        copies += t->counted;
        ahead += t->counted && t->ahead;
        use_bytes += t->counted && task_promotes(t) ? t->size : 0;
        by_reason[t->reason]++;
    }
    TARN_ASSERT(up == cluster.up && copies == cluster.copies);
    TARN_ASSERT(ahead == cluster.copies_ahead && use_bytes == cluster.use_bytes);
    TARN_ASSERT(segments == store_segment_count(cluster.store));
    TARN_ASSERT(memcmp(by_reason, cluster.by_reason, sizeof(by_reason)) == 0);
}
