/* Who is in the pool and who is alive.
 *
 * A node speaks through one control connection. Three things end its being up: silence for
 * node-timeout (a stopped machine, a cut cable), a connection that closed and is not replaced
 * within a heartbeat (a process that died: this is noticed at once), and its own or the
 * administrator's wish. A node that is down keeps its segments in the books for
 * node-forget-timeout: if it comes back with their content, nothing has to be copied. */
#include "cluster/internal.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"

const char *cluster_node_state_name(enum cluster_node_state state) {
    static const char *const names[] = {"joining", "up", "down", "leaving", "left"};
    return names[state];
}

/* --- the registry --- */

static bool node_has_name(const struct htab_node *node, const void *key) {
    const struct cluster_node *n = CONTAINER_OF(node, const struct cluster_node, by_name);
    return span_eq(span_str(n->name), *(const struct span *)key);
}

static bool node_has_session(const struct htab_node *node, const void *key) {
    return CONTAINER_OF(node, const struct cluster_node, by_session)->session ==
           *(const uint64_t *)key;
}

struct cluster_node *cluster_node_find(struct span name) {
    struct htab_node *h =
        htab_find(&cluster.nodes, hash_bytes(name.data, name.len), node_has_name, &name);
    return h != NULL ? CONTAINER_OF(h, struct cluster_node, by_name) : NULL;
}

struct cluster_node *cluster_node_next(uint32_t *cursor) {
    for (; *cursor < cluster.node_cap; ++*cursor)
        if (cluster.node_by_id[*cursor] != NULL) return cluster.node_by_id[(*cursor)++];
    return NULL;
}

static void number_node(struct cluster_node *n) {
    size_t i = 0;
    while (i < cluster.node_cap && cluster.node_by_id[i] != NULL) i++;
    if (i == cluster.node_cap) {
        size_t cap = i > 0 ? i * 2 : 16;
        cluster.node_by_id = xrealloc(cluster.node_by_id, cap * sizeof(struct cluster_node *));
        memset(cluster.node_by_id + i, 0, (cap - i) * sizeof(struct cluster_node *));
        cluster.node_cap = cap;
    }
    cluster.node_by_id[i] = n;
    n->id = (uint32_t)i + 1;
}

static void node_init(struct cluster_node *n) {
    n->magic = NODE_MAGIC;
    TAILQ_INIT(&n->segments);
    TAILQ_INIT(&n->fences_new);
    TAILQ_INIT(&n->fences_sent);
    TAILQ_INIT(&n->copies.all);
    TAILQ_INIT(&n->stores.all);
    TAILQ_INIT(&n->sent.all);
    TAILQ_INIT(&n->cancels);
    STAILQ_INIT(&n->unmounts);
}

static void node_timer_due(struct timer *t);

static struct cluster_node *node_create(struct span name, struct machine *machine) {
    struct cluster_node *n = xcalloc(1, sizeof(*n));
    node_init(n);
    memcpy(n->name, name.data, name.len);
    n->machine = machine;
    n->timer.due = node_timer_due;
    htab_insert(&cluster.nodes, &n->by_name, hash_bytes(name.data, name.len));
    number_node(n);
    return n;
}

void nodes_init(void) {
    struct cluster_node *local = &cluster.local;
    node_init(local);
    strcpy(local->name, "local");
    local->embedded = true;
    local->state = CLUSTER_NODE_UP;
}

static void unmounts_clear(struct cluster_node *n) {
    for (struct unmount *u; (u = STAILQ_TAKE(&n->unmounts, link)) != NULL;) free(u);
}

static void node_set_state(struct cluster_node *n, enum cluster_node_state state) {
    if (n->state == state) return;
    cluster.up += (state == CLUSTER_NODE_UP) - (n->state == CLUSTER_NODE_UP);
    if (n->awaited && state != CLUSTER_NODE_JOINING) {
        n->awaited = false;
        cluster.awaited--;
    }
    n->state = state;
    n->since_ms = cluster.now_ms;
    if (cluster.node_changed != NULL) cluster.node_changed(n->name, state);
}

static void session_forget(struct cluster_node *n) {
    if (n->session == 0) return;
    htab_remove(&cluster.sessions, &n->by_session);
    n->session = 0;
}

/* Whatever is still known of it goes; its segments leave the pool by themselves. */
static void node_remove(struct cluster_node *n) {
    effect_node_gone(n);
    node_wake(n);
    node_set_state(n, CLUSTER_NODE_LEFT);
    n->serving = false;
    tasks_replan(n);
    fences_lost(n);
    keys_of_node_clear(n);
    segments_orphan(n);
    unmounts_clear(n);
    session_forget(n);
    timer_clear(&n->timer);
    htab_remove(&cluster.nodes, &n->by_name);
    cluster.node_by_id[n->id - 1] = NULL;
    machine_put(&n->machine);
    free(n->stats);
    n->magic = 0;
    free(n);
}

void nodes_deinit(void) {
    struct cluster_node *n;
    for (uint32_t at = 0; (n = cluster_node_next(&at)) != NULL;) node_remove(n);
    segments_orphan(&cluster.local);
    fences_lost(&cluster.local);
    htab_free(&cluster.nodes);
    htab_free(&cluster.sessions);
    free(cluster.node_by_id);
}

/* --- waiting for work --- */

void cluster_wait(struct cluster_node *n, struct cluster_waiter *waiter) {
    TARN_ASSERT(waiter->node == NULL);
    node_wake(n);
    n->waiter = waiter;
    waiter->node = n;
}

void cluster_unwait(struct cluster_waiter *waiter) {
    if (waiter->node == NULL) return;
    waiter->node->waiter = NULL;
    waiter->node = NULL;
}

void node_wake(struct cluster_node *n) {
    struct cluster_waiter *w = n->waiter;
    if (w == NULL) return;
    cluster_unwait(w);
    w->wake(w);
}

/* --- life and death --- */

static bool node_is_alive(const struct cluster_node *n) {
    return n->state == CLUSTER_NODE_UP || n->state == CLUSTER_NODE_JOINING;
}

/* When silence will have lasted too long. */
static uint64_t silent_at(const struct cluster_node *n) {
    uint64_t at = n->seen_ms + cluster.config.node_timeout_ms;
    return n->session != 0 ? at : min_u64(at, n->closed_ms + cluster.config.heartbeat_ms);
}

static uint64_t due_at(const struct cluster_node *n) {
    if (n->hopeless) return 0;
    return n->state == CLUSTER_NODE_DOWN ? n->since_ms + cluster.config.forget_timeout_ms
                                         : silent_at(n);
}

void nodes_config_changed(void) {
    struct cluster_node *n;
    for (uint32_t at = 0; (n = cluster_node_next(&at)) != NULL;) {
        timer_set(&n->timer, due_at(n));
    }
}

void cluster_stood_still(uint64_t ms) {
    struct cluster_node *n;
    for (uint32_t at = 0; (n = cluster_node_next(&at)) != NULL;) {
        n->seen_ms = min_u64(n->seen_ms + ms, cluster.now_ms);
    }
}

static void refresh_segments(struct cluster_node *n) {
    struct node_segment *g, *next;
    TAILQ_FOREACH_SAFE(g, &n->segments, of_node, next) segment_refresh(g);
    offload_refresh_node(n);
}

static void node_down(struct cluster_node *n) {
    log_warning("Node %s is down: %s", n->name,
                n->session != 0 ? "nothing was heard of it for node-timeout"
                                : "its connection is closed");
    cluster.figures.node_downs++;
    node_set_state(n, CLUSTER_NODE_DOWN);
    n->serving = false;
    session_forget(n);
    keys_of_node_clear(n);
    refresh_segments(n); /* first: the room of its tasks must not be given out */
    tasks_replan(n);
    node_wake(n);
    timer_set(&n->timer, due_at(n));
}

static void node_timer_due(struct timer *t) {
    struct cluster_node *n = CONTAINER_OF(t, struct cluster_node, timer);
    uint64_t at = due_at(n);
    if (at > cluster.now_ms) { /* heard of it meanwhile */
        timer_set(t, at);
    } else if (n->hopeless) {
        log_warning(
            "Node %s is given up: too many writers wait for it to confirm that they are cut off",
            n->name);
        node_remove(n);
    } else if (node_is_alive(n)) {
        node_down(n);
    } else {
        if (n->state == CLUSTER_NODE_DOWN) {
            log_warning("Node %s was down for node-forget-timeout: its segments leave the pool",
                        n->name);
            cluster.figures.nodes_forgotten++;
        }
        node_remove(n);
    }
}

void cluster_session_closed(uint64_t session) {
    if (session == 0 || cluster.sessions.count == 0) return;
    for (struct htab_node *h; (h = htab_find(&cluster.sessions, hash_u64(session), node_has_session,
                                             &session)) != NULL;) {
        struct cluster_node *n = CONTAINER_OF(h, struct cluster_node, by_session);
        session_forget(n);
        n->closed_ms = cluster.now_ms;
        node_wake(n);
        timer_set(&n->timer, due_at(n));
    }
}

struct cluster_node *cluster_node_check(struct span name,
                                        const uint8_t instance[CLUSTER_INSTANCE_SIZE]) {
    struct cluster_node *n = cluster_node_find(name);
    bool current = n != NULL && n->state != CLUSTER_NODE_DOWN &&
                   memcmp(n->instance, instance, CLUSTER_INSTANCE_SIZE) == 0;
    return current ? n : NULL;
}

struct cluster_node *cluster_node_alive(struct span name,
                                        const uint8_t instance[CLUSTER_INSTANCE_SIZE]) {
    struct cluster_node *c = cluster_node_check(name, instance);
    cluster.figures.node_heartbeats++;
    if (c != NULL)
        c->seen_ms = cluster.now_ms;
    else
        cluster.figures.node_stale++;
    return c;
}

/* --- JOIN and UP --- */

static tarn_status check_join(const struct cluster_join *j, const char **why_p) {
    if (!valid_name(j->name, CLUSTER_NODE_NAME_MAX))
        return cluster_refuse(why_p, TARN_EINVAL,
                              "a node's name must be 1 to 48 of A-Z a-z 0-9 . _ -");
    if (span_eq(j->name, span_str(cluster.local.name)))
        return cluster_refuse(why_p, TARN_EINVAL,
                              "the name local belongs to the server itself: choose another one");
    if (j->machine.len == 0 || !valid_label(j->machine, CLUSTER_LABEL_MAX))
        return cluster_refuse(why_p, TARN_EINVAL,
                              "MACHINE must be a host name of 1 to 63 printable characters");
    if (!valid_label(j->rack, CLUSTER_LABEL_MAX))
        return cluster_refuse(why_p, TARN_EINVAL,
                              "RACK must be a label of up to 63 printable characters");
    if (!valid_label(j->version, sizeof(((struct cluster_node *)0)->version) - 1))
        return cluster_refuse(why_p, TARN_EINVAL, "VERSION must be up to 31 printable characters");
    return TARN_OK;
}

/* Another process under this name: what the old one was given is worth nothing to it, and the other
 * way round. */
static void new_instance(struct cluster_node *n, const struct cluster_join *j) {
    memcpy(n->instance, j->instance, sizeof(n->instance));
    randombytes_buf(n->key, sizeof(n->key));
    n->serving = false;
    n->n_stats = 0;
    unmounts_clear(n);
    refresh_segments(n);
}

/* Segments keep the machine that they were mounted with. */
static bool set_machine(struct cluster_node *n, struct span name) {
    if (n->machine != NULL && span_eq(span_str(n->machine->name), name)) return true;
    struct machine *m = machine_get(name);
    if (m == NULL) return false;
    machine_put(&n->machine);
    n->machine = m;
    return true;
}

static tarn_status find_or_create(const struct cluster_join *j, struct cluster_node **node_p,
                                  const char **why_p) {
    struct cluster_node *n = cluster_node_find(j->name);
    bool same = n != NULL && memcmp(n->instance, j->instance, sizeof(n->instance)) == 0;
    if (n != NULL && !same) {
        if (n->session != 0 && n->state != CLUSTER_NODE_DOWN)
            return cluster_refuse(
                why_p, TARN_EBUSY,
                "a living node has this name: choose another one, or stop that node");
        if (!node_is_alive(n) &&
            n->state != CLUSTER_NODE_DOWN) { /* it was leaving: this is a new start */
            node_remove(n);
            n = NULL;
        }
    }
    if (n == NULL && cluster.nodes.count >= cluster.config.max_nodes)
        return cluster_refuse(
            why_p, TARN_ELIMIT,
            "max-nodes are in the pool already: raise it with CONFIG SET max-nodes");
    if (n == NULL) {
        struct machine *m = machine_get(j->machine);
        if (m == NULL) return cluster_refuse(why_p, TARN_ELIMIT, "there are too many machines");
        n = node_create(j->name, m);
        n->since_ms = cluster.now_ms;
    } else if (!set_machine(n, j->machine)) {
        return cluster_refuse(why_p, TARN_ELIMIT, "there are too many machines");
    }
    if (!same) new_instance(n, j);
    *node_p = n;
    return TARN_OK;
}

tarn_status cluster_node_join(const struct cluster_join *j, struct cluster_node **node_p,
                              const char **why_p) {
    struct cluster_node *n;
    tarn_status status = check_join(j, why_p);
    if (status == TARN_OK) status = find_or_create(j, &n, why_p);
    if (status != TARN_OK) return status;
    text_set(n->rack, sizeof(n->rack), j->rack);
    text_set(n->version, sizeof(n->version), j->version);
    text_set(n->address, sizeof(n->address),
             span_of(j->address, strnlen(j->address, sizeof(n->address) - 1)));
    node_wake(n);
    session_forget(n);
    keys_of_node_clear(n);
    n->session = j->session;
    if (n->session != 0) htab_insert(&cluster.sessions, &n->by_session, hash_u64(n->session));
    n->closed_ms = cluster.now_ms;
    n->joins++;
    n->seen_ms = cluster.now_ms;
    if (node_is_alive(n) || n->state == CLUSTER_NODE_DOWN) node_set_state(n, CLUSTER_NODE_JOINING);
    tasks_replan(n);
    fences_resend(n);
    n->leave_sent = false;
    timer_set(&n->timer, due_at(n));
    cluster.figures.node_joins++;
    effect_node(n);
    log_notice("Node %s joins from %s, machine %s", n->name, n->address, n->machine->name);
    *node_p = n;
    return TARN_OK;
}

tarn_status cluster_node_up(struct cluster_node *n) {
    if (n->state == CLUSTER_NODE_UP) return TARN_OK;
    /* What it has to do first, or that it is to leave, its heartbeats tell. */
    if (n->state != CLUSTER_NODE_JOINING || fences_before_join(n)) return TARN_EAGAIN;
    node_set_state(n, CLUSTER_NODE_UP);
    n->serving = true;
    segments_settle(n);
    refresh_segments(n);
    log_notice("Node %s is up with %zu segments", n->name, n->n_segments);
    node_check_empty(n);
    return TARN_OK;
}

/* --- following: nodes that are known from records --- */

struct cluster_node *node_told(struct span name, struct span machine) {
    struct cluster_node *n = cluster_node_find(name);
    if (n != NULL) return set_machine(n, machine) ? n : NULL;
    struct machine *m = machine_get(machine);
    if (m == NULL) return NULL;
    n = node_create(name, m);
    node_set_state(n, CLUSTER_NODE_DOWN);
    randombytes_buf(n->key, sizeof(n->key));
    return n;
}

void node_untold(struct cluster_node *n) {
    while (!TAILQ_EMPTY(&n->segments)) segment_detach(TAILQ_FIRST(&n->segments));
    node_remove(n);
}

void nodes_lead(void) {
    struct cluster_node *n;
    for (uint32_t at = 0; (n = cluster_node_next(&at)) != NULL;) {
        n->since_ms = cluster.now_ms;
        timer_set(&n->timer, due_at(n));
        n->awaited = n->state == CLUSTER_NODE_DOWN && n->n_segments > 0;
        cluster.awaited += n->awaited;
    }
    cluster.awaited_until_ms = cluster.now_ms + cluster.config.node_timeout_ms;
}

void nodes_step_down(void) {
    struct cluster_node *n;
    for (uint32_t at = 0; (n = cluster_node_next(&at)) != NULL;) {
        node_wake(n);
        node_set_state(n, CLUSTER_NODE_DOWN);
        n->serving = n->awaited = n->hopeless = n->leave_sent = false;
        fences_lost(n);
        keys_of_node_clear(n);
        unmounts_clear(n);
        session_forget(n);
        timer_clear(&n->timer);
    }
    cluster.awaited = 0;
}

bool cluster_awaits_nodes(void) {
    return cluster.awaited > 0 && cluster.now_ms < cluster.awaited_until_ms;
}

/* --- maintenance, drain, leave --- */

static bool is_leaving(const struct cluster_node *n) {
    return n->state == CLUSTER_NODE_LEAVING || n->state == CLUSTER_NODE_LEFT;
}

tarn_status cluster_node_maintenance(struct cluster_node *n, bool on) {
    if (is_leaving(n)) return TARN_ESTALE;
    n->maintenance = on;
    effect_node(n);
    refresh_segments(n);
    return TARN_OK;
}

tarn_status cluster_node_drain(struct cluster_node *n, bool on) {
    if (is_leaving(n)) return TARN_ESTALE;
    if (n->draining == on) return TARN_OK;
    n->draining = on;
    effect_node(n);
    log_notice("Node %s: drain %s", n->name, on ? "begins" : "is canceled");
    struct node_segment *g, *next;
    TAILQ_FOREACH_SAFE(g, &n->segments, of_node, next) {
        if (on)
            drain_begin(g);
        else if (!g->drain_wanted)
            drain_stop(g);
    }
    refresh_segments(n);
    node_check_empty(n);
    return TARN_OK;
}

static void node_empty(struct cluster_node *n) {
    node_set_state(n, CLUSTER_NODE_LEFT);
    keys_of_node_clear(n);
    log_notice("Node %s has left the pool", n->name);
    timer_set(&n->timer, due_at(n));
    node_wake(n);
}

/* May be called from inside the books. */
void node_check_empty(struct cluster_node *n) {
    if (n->embedded || n->n_segments > 0) return;
    if (n->state == CLUSTER_NODE_LEAVING || (n->draining && n->state == CLUSTER_NODE_UP))
        node_empty(n);
}

void cluster_node_leave(struct cluster_node *n) {
    if (is_leaving(n)) return;
    log_notice("Node %s leaves", n->name);
    bool down = n->state == CLUSTER_NODE_DOWN;
    node_set_state(n, CLUSTER_NODE_LEAVING);
    if (down) {
        node_remove(n);
        return;
    }
    struct node_segment *g, *next;
    TAILQ_FOREACH_SAFE(g, &n->segments, of_node, next) segment_leave(g);
    tasks_replan(n);
    timer_set(&n->timer, due_at(n));
    node_check_empty(n);
}

/* --- odds and ends --- */

/* May be called from inside the books. */
void node_unmount_later(struct cluster_node *n, const struct node_segment *g) {
    if (n->embedded) return;
    struct unmount *u = xcalloc(1, sizeof(*u));
    u->id = g->id;
    u->epoch = g->epoch;
    STAILQ_INSERT_TAIL(&n->unmounts, u, link);
    node_wake(n);
}

/* The id was given to another segment of the node. */
void node_unmount_forget(struct cluster_node *n, uint32_t id) {
    struct unmount *u, *next;
    STAILQ_FOREACH_SAFE(u, &n->unmounts, link, next) {
        if (u->id != id) continue;
        STAILQ_REMOVE(&n->unmounts, u, unmount, link);
        free(u);
    }
}

bool node_loopback(const struct cluster_node *n) {
    return n->address[0] == '\0' || n->address[0] == '/' || strncmp(n->address, "127.", 4) == 0 ||
           strcmp(n->address, "::1") == 0 || strncmp(n->address, "::ffff:127.", 11) == 0;
}

static uint64_t node_stat(const struct cluster_node *n, const char *name) {
    for (size_t i = 0; i < n->n_stats; i++) {
        if (strcmp(n->stats[i].name, name) == 0) return n->stats[i].value;
    }
    return 0;
}

/* A little of what was read since it said so last, among all that nodes have read. */
static void disk_was_read(uint64_t bytes, uint64_t us) {
    if (bytes == 0 || us == 0) return;
    double *rate = &store_config(cluster.store)->disk_read_rate;
    double now = (double)bytes * 1e6 / (double)us;
    *rate = *rate > 0 ? *rate + (now - *rate) / 16 : now;
}

void cluster_node_stats(struct cluster_node *n, const struct cluster_stat *stats, size_t count) {
    TARN_ASSERT(count <= CLUSTER_NODE_STATS_MAX);
    uint64_t bytes = node_stat(n, "ssd-read-bytes"), us = node_stat(n, "ssd-read-us");
    if (n->stats == NULL) n->stats = xcalloc(CLUSTER_NODE_STATS_MAX, sizeof(*stats));
    memcpy(n->stats, stats, count * sizeof(*stats));
    n->n_stats = count;
    uint64_t bytes_now = node_stat(n, "ssd-read-bytes"), us_now = node_stat(n, "ssd-read-us");
    if (bytes_now > bytes && us_now > us) disk_was_read(bytes_now - bytes, us_now - us);
}

void cluster_node_get(const struct cluster_node *n, struct cluster_node_info *info_p) {
    static uint32_t ids[4 * CLUSTER_NODE_SEGMENTS]; /* leaving ones are beyond the limit */
    size_t n_ids = 0;
    *info_p = (struct cluster_node_info){.id = n->id,
                                         .name = n->name,
                                         .machine = n->machine->name,
                                         .rack = n->rack,
                                         .version = n->version,
                                         .address = n->address,
                                         .instance = n->instance,
                                         .key = n->key,
                                         .state = n->state,
                                         .maintenance = n->maintenance,
                                         .draining = n->draining,
                                         .connected = n->session != 0,
                                         .joins = n->joins,
                                         .seen_ms = n->seen_ms,
                                         .since_ms = n->since_ms,
                                         .tasks_sent = n->sent.n,
                                         .tasks_waiting = n->copies.n + n->stores.n,
                                         .fences_pending = n->n_fences,
                                         .stats = n->stats,
                                         .n_stats = n->n_stats,
                                         .segments = ids};
    const struct node_segment *g;
    TAILQ_FOREACH(g, &n->segments, of_node) {
        info_p->drops_pending += g->drops.n;
        info_p->drops_lost += g->drops_lost;
        if (n_ids < ARRAY_LEN(ids)) ids[n_ids++] = g->id;
    }
    info_p->n_segments = n_ids;
}
