/* Tasks: replicas on their way to another place. The plan is made here, the bytes go from node to
 * node.
 *
 *               ┌──────────── again, a little later ───────────────┐
 *               v                                                  │
 *   created ─> ready ──> room (store_copy_*, in slices) ─> planned ┴─> sent ─> over
 *               └──────────── STORE needs no room here ──────^       (done, failed, canceled)
 *
 * A task refers to its object by key and version: whatever happens to it meanwhile, the worst is a
 * task that comes to nothing.
 *
 * The room of a copy that was sent is its node's until the node says that it is done. A node that
 * is down may be a stopped process in the middle of a write: its segments give out no space,
 * whatever is free there, until it has joined anew, and joining says that it runs none of its tasks
 * any more. So the room may be given back at once, and the task goes on elsewhere. */
#include "cluster/internal.h"

#include <stdlib.h>
#include <string.h>

#define FINISHED_MAX   512u
#define RESERVED_SHARE 4u /* of max-tasks, this part is for what users ask */
#define RETRY_MS       100u
#define RETRY_MAX_MS   5000u
#define LOCAL_RETRY_MS 20u
#define COPIES_AHEAD   2u /* room is held for so many times what nodes may do at once */
#define USE_BYTES      (UINT64_C(256) << 10) /* of promotions, for each of the tasks-per-node */

struct finished {
    struct cluster_task_info info;
    char key[CLUSTER_TASK_KEY_SHOWN];
    char node[CLUSTER_NODE_NAME_MAX + 1];
};
static struct finished *finished; /* a ring, newest at finished_next - 1 */
static size_t finished_next, finished_n;

const char *cluster_task_state_name(enum cluster_task_state state) {
    static const char *const names[] = {"queued", "room", "sent", "done", "failed", "canceled"};
    return names[state];
}
const char *cluster_task_kind_name(enum cluster_task_kind kind) {
    static const char *const names[] = {"copy", "move", "store"};
    return names[kind];
}
const char *cluster_task_reason_name(enum cluster_task_reason reason) {
    static const char *const names[] = {"user", "drain", "heat", "use", "offload", "prefetch"};
    return names[reason];
}

/* --- the set of all --- */

struct task_key {
    struct span key;
    uint64_t version;
    enum cluster_task_reason reason;
    uint32_t to;
};

static bool task_is_numbered(const struct htab_node *node, const void *key) {
    return CONTAINER_OF(node, const struct cluster_task, by_id)->id == *(const uint64_t *)key;
}

static bool task_has_key(const struct htab_node *node, const void *key) {
    const struct cluster_task *t = CONTAINER_OF(node, const struct cluster_task, by_key);
    const struct task_key *k = key;
    return t->version == k->version && t->reason == k->reason && t->asked_to == k->to &&
           span_eq(span_of(t->key, t->key_len), k->key);
}

static uint64_t hash_key(struct span key, uint64_t version) {
    return hash_bytes(key.data, key.len) ^ hash_u64(version);
}

static struct cluster_task *task_find(uint64_t id) {
    struct htab_node *h = htab_find(&cluster.tasks_by_id, hash_u64(id), task_is_numbered, &id);
    return h != NULL ? CONTAINER_OF(h, struct cluster_task, by_id) : NULL;
}

struct cluster_task *task_for(struct span key, uint64_t version, enum cluster_task_reason reason,
                              uint32_t to) {
    struct task_key k = {key, version, reason, to};
    if (cluster.by_reason[reason] == 0) return NULL;
    struct htab_node *h =
        htab_find(&cluster.tasks_by_key, hash_key(key, version), task_has_key, &k);
    return h != NULL ? CONTAINER_OF(h, struct cluster_task, by_key) : NULL;
}

static void task_enter(struct cluster_task *t, struct task_list *list) {
    if (t->in != NULL) {
        TAILQ_REMOVE(&t->in->all, t, link);
        t->in->n--;
    }
    t->in = list;
    if (list == NULL) return;
    if (list == &cluster.ready_use) /* its node may still have in a buffer what was used last */
        TAILQ_INSERT_HEAD(&list->all, t, link);
    else
        TAILQ_INSERT_TAIL(&list->all, t, link);
    list->n++;
}

/* A reader has used it, whoever asked for it first. */
bool task_promotes(const struct cluster_task *t) {
    return t->reason == CLUSTER_BY_USE || (t->reason == CLUSTER_BY_PREFETCH && !t->ahead);
}

static struct task_list *ready_list(const struct cluster_task *t) {
    if (t->kind == CLUSTER_TASK_STORE) return &cluster.ready_stores;
    if (task_promotes(t)) return &cluster.ready_use;
    return t->ahead ? &cluster.ready_ahead : &cluster.ready;
}

void task_hurry(struct cluster_task *t) {
    if (t->counted) return;
    t->ahead = false;
    if (t->in == &cluster.ready_ahead || t->in == &cluster.ready_use)
        task_enter(t, &cluster.ready_use);
}

static void task_timer_due(struct timer *timer);

tarn_status task_create(enum cluster_task_kind kind, enum cluster_task_reason reason,
                        const struct object *o, uint32_t from, uint32_t to,
                        struct cluster_task **task_p) {
    struct span key = store_object_key(o);
    uint64_t max = cluster.config.max_tasks, version = store_object_version(o);
    if (reason != CLUSTER_BY_USER) max -= max / RESERVED_SHARE;
    if (cluster.tasks_by_id.count >= max) {
        cluster.figures.tasks_refused++;
        return TARN_ELIMIT;
    }
    if (reason != CLUSTER_BY_USER && task_for(key, version, reason, to) != NULL)
        return TARN_EEXISTS;
    struct cluster_task *t = xcalloc(1, sizeof(*t) + key.len);
    t->magic = TASK_MAGIC;
    t->id = ++cluster.next_task;
    t->kind = kind;
    t->reason = reason;
    t->version = version;
    t->size = store_object_size(cluster.store, o);
    t->from = from;
    t->to = t->asked_to = to;
    t->created_ms = cluster.now_ms;
    t->ahead = reason == CLUSTER_BY_PREFETCH;
    t->timer.due = task_timer_due;
    t->key_len = (uint32_t)key.len;
    memcpy(t->key, key.data, key.len);
    t->from_epoch = segment_at(from) != NULL ? segment_at(from)->epoch : 0;
    t->to_epoch = segment_at(to) != NULL ? segment_at(to)->epoch : 0;
    htab_insert(&cluster.tasks_by_id, &t->by_id, hash_u64(t->id));
    htab_insert(&cluster.tasks_by_key, &t->by_key, hash_key(key, version));
    TAILQ_INSERT_TAIL(&cluster.tasks, t, all);
    cluster.by_reason[reason]++;
    cluster.figures.tasks_created[reason]++;
    task_enter(t, ready_list(t));
    *task_p = t;
    return TARN_OK;
}

static void count_sent(struct cluster_task *t, bool sent) {
    size_t *n = t->kind == CLUSTER_TASK_STORE ? &t->node->sent_stores : &t->node->sent_copies;
    *n = sent ? *n + 1 : *n - 1;
}

/* Out of its node's hands. The room of a copy stays t's. */
static void task_leave_node(struct cluster_task *t) {
    if (t->state == CLUSTER_TASK_SENT) count_sent(t, false);
    TAILQ_UNLINK(&t->node->cancels, t, cancel_link);
    task_enter(t, NULL);
    t->node = NULL;
}

static void copy_over(struct cluster_task *t) {
    if (t->copy != NULL) store_copy_end(cluster.store, &t->copy, false);
}

static void set_copies(struct cluster_task *t, bool holds) {
    if (holds == t->counted) return;
    t->counted = holds;
    cluster.copies += holds ? 1 : (size_t)-1;
    if (t->ahead) cluster.copies_ahead += holds ? 1 : (size_t)-1;
    if (task_promotes(t)) cluster.use_bytes += holds ? t->size : -t->size;
}

static void task_describe(const struct cluster_task *t, struct cluster_task_info *info) {
    *info = (struct cluster_task_info){.id = t->id,
                                       .version = t->version,
                                       .bytes = t->size,
                                       .age_ms = cluster.now_ms - t->created_ms,
                                       .kind = t->kind,
                                       .reason = t->reason,
                                       .state = t->state,
                                       .key = t->key,
                                       .key_len = min_u64(t->key_len, CLUSTER_TASK_KEY_SHOWN),
                                       .from = t->from,
                                       .to = t->to,
                                       .node = t->node != NULL ? t->node->name : "",
                                       .tries = t->tries,
                                       .error = t->error};
}

/* These come by the thousand: of them, only what went wrong is worth remembering. */
static void task_remember(const struct cluster_task *t) {
    bool many = t->reason == CLUSTER_BY_OFFLOAD || t->reason == CLUSTER_BY_PREFETCH;
    if (many && t->state != CLUSTER_TASK_FAILED) return;
    struct finished *f = &finished[finished_next];
    finished_next = (finished_next + 1) % FINISHED_MAX;
    if (finished_n < FINISHED_MAX) finished_n++;
    task_describe(t, &f->info);
    memcpy(f->key, f->info.key, f->info.key_len);
    memset(f->node, 0, sizeof(f->node));
    memcpy(f->node, f->info.node, strlen(f->info.node));
    f->info.key = f->key;
    f->info.node = f->node;
}

static void task_tell(struct cluster_task *t, tarn_status status) {
    switch (t->reason) {
    case CLUSTER_BY_DRAIN: drain_task_ended(t, status); break;
    case CLUSTER_BY_HEAT: heat_task_ended(t, status); break;
    case CLUSTER_BY_OFFLOAD: offload_task_ended(t, status); break;
    default: break;
    }
}

static void task_over(struct cluster_task *t, tarn_status status) {
    copy_over(t);
    set_copies(t, false);
    if (t->hold != NULL) store_unhold(cluster.store, &t->hold);
    enum cluster_task_state state = status == TARN_OK          ? CLUSTER_TASK_DONE
                                    : status == TARN_ECANCELED ? CLUSTER_TASK_CANCELED
                                                               : CLUSTER_TASK_FAILED;
    struct cluster_node *node = t->node;
    if (node != NULL) task_leave_node(t);
    task_enter(t, NULL);
    t->node = node; /* for the list */
    t->state = state;
    t->error = status == TARN_OK ? TARN_OK : status;
    task_remember(t);
    t->node = NULL;
    if (state == CLUSTER_TASK_DONE) {
        cluster.figures.tasks_done[t->reason]++;
        cluster.figures.bytes_done[t->reason] += t->size;
    } else if (state == CLUSTER_TASK_FAILED) {
        cluster.figures.tasks_failed[t->reason]++;
    } else {
        cluster.figures.tasks_canceled++;
    }
    timer_clear(&t->timer);
    htab_remove(&cluster.tasks_by_id, &t->by_id);
    htab_remove(&cluster.tasks_by_key, &t->by_key);
    TAILQ_REMOVE(&cluster.tasks, t, all);
    cluster.by_reason[t->reason]--;
    task_tell(t, status);
    if (node != NULL && node->waiter != NULL && node->copies.n + node->stores.n > 0)
        node_wake(node);
    t->magic = 0;
    free(t);
}

/* --- tries --- */

/* Trying again would not change it, or is somebody else's business (the next pass of a drain, the
 * next hit). */
static bool is_final(const struct cluster_task *t, tarn_status status) {
    switch (status) {
    case TARN_ENOTFOUND: /* the object is gone or replaced */
    case TARN_EEXISTS:
    case TARN_EINVAL:
    case TARN_ECANCELED: return true;
    case TARN_ENOSPACE:
    case TARN_ENOSEGMENT: return t->reason != CLUSTER_BY_USER;
    /* the bytes were evicted on the way */
    case TARN_ECORRUPT: return t->kind == CLUSTER_TASK_STORE;
    default: return false;
    }
}

static void task_again(struct cluster_task *t) {
    if (t->node != NULL) task_leave_node(t);
    task_enter(t, NULL);
    set_copies(t, false);
    if (t->hold != NULL) store_unhold(cluster.store, &t->hold);
    t->state = CLUSTER_TASK_QUEUED;
    t->timed_out = false;
    t->to = t->asked_to;
}

static void task_failed(struct cluster_task *t, tarn_status status) {
    copy_over(t);
    t->error = status;
    if (t->cancel || is_final(t, status) || t->tries > cluster.config.task_retries) {
        task_over(t, t->cancel ? TARN_ECANCELED : status);
        return;
    }
    uint64_t wait = min_u64((uint64_t)RETRY_MS << min_u64(t->tries, 10), RETRY_MAX_MS);
    task_again(t);
    cluster.figures.tasks_retried++;
    timer_set(&t->timer, cluster.now_ms + wait + rng_below(&cluster.rng, wait / 2));
}

/* The end of a task that was sent: its node may still be writing, so it is asked to stop, and says
 * so. */
static void ask_to_stop(struct cluster_task *t) {
    if (t->node->embedded) {
        if (cluster.ops.cancel != NULL) cluster.ops.cancel(cluster.ops.arg, t->id);
    } else if (!TAILQ_LINKED(t, cancel_link)) {
        TAILQ_INSERT_TAIL(&t->node->cancels, t, cancel_link);
        node_wake(t->node);
    }
}

/* Of a backoff, or of a try that takes too long. */
static void task_timer_due(struct timer *timer) {
    struct cluster_task *t = CONTAINER_OF(timer, struct cluster_task, timer);
    MAGIC_CHECK(t, TASK_MAGIC);
    if (t->state == CLUSTER_TASK_QUEUED) {
        task_enter(t, ready_list(t));
    } else if (t->state == CLUSTER_TASK_SENT && !t->timed_out) {
        cluster.figures.tasks_timed_out++;
        t->timed_out = true;
        t->error = TARN_ETIMEOUT;
        ask_to_stop(t);
    }
}

static uint64_t try_ms(const struct cluster_task *t) {
    uint64_t rate = max_u64(cluster.config.task_rate, 1);
    return cluster.config.task_timeout_ms + t->size / rate * 1000;
}

/* --- planning --- */

static struct object *task_object(const struct cluster_task *t) {
    return object_readable(span_of(t->key, t->key_len), t->version);
}

/* The replica of o in that segment; false: there is none that can be read. */
static bool replica_in(const struct object *o, uint32_t segment, struct store_replica *replica_p) {
    struct store_layout layout;
    store_object_layout(cluster.store, o, &layout);
    for (uint32_t i = 0; i < layout.replicas; i++) {
        const struct store_replica *r = &layout.replica[i];
        if (r->extents == 0 || r->extent[0].segment != segment) continue;
        *replica_p = *r;
        return true;
    }
    return false;
}

/* It goes before those that nobody waits for, which are few. */
static void overtake(struct cluster_task *t) {
    struct cluster_task *before;
    while (!t->ahead && (before = TAILQ_PREV(t, task_list_heads, link)) != NULL && before->ahead) {
        TAILQ_REMOVE(&t->in->all, before, link);
        TAILQ_INSERT_AFTER(&t->in->all, t, before, link);
    }
}

static void task_plan(struct cluster_task *t, struct cluster_node *n) {
    t->node = n;
    t->state = CLUSTER_TASK_ROOM;
    task_enter(t, t->kind == CLUSTER_TASK_STORE ? &n->stores : &n->copies);
    overtake(t);
    if (n->embedded)
        cluster.local_due_ms = cluster.now_ms;
    else
        node_wake(n);
}

static void copy_opened(struct cluster_task *t) {
    store_copy_layout(cluster.store, t->copy, &t->at);
    struct node_segment *g = t->at.extents > 0 ? segment_at(t->at.extent[0].segment) : NULL;
    if (g == NULL || !segment_usable(g) || (g->node->embedded && cluster.ops.start_copy == NULL)) {
        task_failed(t, TARN_ENOSEGMENT);
        return;
    }
    t->to = g->id;
    task_plan(t, g->node);
}

static void copy_step(struct cluster_task *t, tarn_status status) {
    if (status == TARN_EAGAIN) {
        t->state = CLUSTER_TASK_ROOM;
        if (t->in != &cluster.rooms) task_enter(t, &cluster.rooms);
    } else if (status == TARN_OK) {
        copy_opened(t);
    } else {
        t->copy = NULL; /* the books have let it go */
        task_failed(t, status);
    }
}

/* The machine that has the bytes on a far tier reads them fastest. */
static uint32_t near_host(const struct object *o) {
    struct store_layout layout;
    store_object_layout(cluster.store, o, &layout);
    for (uint32_t i = 0; i < layout.replicas; i++) {
        const struct node_segment *g =
            layout.replica[i].extents > 0 ? segment_at(layout.replica[i].extent[0].segment) : NULL;
        if (g != NULL && segment_is_far(g)) return g->machine->number;
    }
    return STORE_HOST_NONE;
}

static void start_copy(struct cluster_task *t, unsigned *budget) {
    struct object *o = task_object(t);
    if (o == NULL) {
        task_failed(t, TARN_ENOTFOUND);
        return;
    }
    const struct node_segment *to = segment_at(t->asked_to);
    if (t->asked_to != STORE_SEGMENT_ANY && (to == NULL || to->epoch != t->to_epoch)) {
        task_over(t, TARN_ENOSEGMENT);
        return;
    }
    bool near = (t->reason == CLUSTER_BY_USE || t->reason == CLUSTER_BY_PREFETCH) &&
                t->asked_to == STORE_SEGMENT_ANY; /* to what it is to be */
    if (near && store_object_in_memory(cluster.store, o)) {
        task_over(t, TARN_EEXISTS);
        return;
    }
    struct store_copy_options options = {.segment = t->asked_to,
                                         .host = near ? near_host(o) : STORE_HOST_NONE,
                                         .from = t->kind == CLUSTER_TASK_MOVE ? t->from
                                                                              : STORE_SEGMENT_ANY,
                                         .evict = t->reason != CLUSTER_BY_HEAT,
                                         .ahead_ms = t->ahead ? t->created_ms : 0,
                                         .by_worth = t->reason == CLUSTER_BY_USE};
    set_copies(t, true);
    copy_step(t, store_copy_start(cluster.store, span_of(t->key, t->key_len), t->version, &options,
                                  budget, &t->copy));
}

static void start_store(struct cluster_task *t) {
    const struct node_segment *from = segment_at(t->from), *to = segment_at(t->asked_to);
    if (from == NULL || to == NULL || from->epoch != t->from_epoch || to->epoch != t->to_epoch ||
        !segment_stays(to) || from->node != to->node || task_object(t) == NULL)
        task_over(t, TARN_ENOTFOUND);
    else
        task_plan(t, to->node);
}

static size_t copies_limit(void) {
    return (size_t)(COPIES_AHEAD * cluster.config.tasks_per_node * (cluster.up + 1));
}

static bool ready_may_start(void) {
    return cluster.ready.n > 0 && cluster.copies < copies_limit();
}

/* What is promoted is being read from the same disk, by somebody who waits for it: so at most one
 * large object of each node is on its way at a time, or a few small ones. */
static bool use_may_start(void) {
    uint64_t most = USE_BYTES * cluster.config.tasks_per_node * max_u64(cluster.up, 1);
    return cluster.ready_use.n > 0 && cluster.copies < copies_limit() && cluster.use_bytes < most;
}

static bool ahead_may_start(void) {
    return cluster.ready_ahead.n > 0 && cluster.ready.n == 0 && !use_may_start() &&
           cluster.copies < copies_limit() && cluster.copies_ahead < copies_limit() / 2;
}

static void budget_spend(unsigned *budget, unsigned units) {
    *budget = *budget > units ? *budget - units : 0;
}

static struct cluster_task *take_ready(struct task_list *list, unsigned *budget) {
    struct cluster_task *t = TAILQ_FIRST(&list->all);
    budget_spend(budget, 1);
    task_enter(t, NULL);
    t->tries++;
    return t;
}

static bool start_ready(unsigned *budget) {
    while (cluster.ready_stores.n > 0) {
        if (*budget == 0) return true;
        start_store(take_ready(&cluster.ready_stores, budget));
    }
    while (ready_may_start()) {
        if (*budget == 0) return true;
        start_copy(take_ready(&cluster.ready, budget), budget);
    }
    while (use_may_start()) {
        if (*budget == 0) return true;
        start_copy(take_ready(&cluster.ready_use, budget), budget);
    }
    while (ahead_may_start()) {
        if (*budget == 0) return true;
        start_copy(take_ready(&cluster.ready_ahead, budget), budget);
    }
    return false;
}

static bool make_room(unsigned *budget) {
    for (size_t n = cluster.rooms.n; n > 0; n--) {
        if (*budget == 0) return true;
        budget_spend(budget, 1);
        struct cluster_task *t = TAILQ_FIRST(&cluster.rooms.all);
        task_enter(t, &cluster.rooms); /* at the end */
        copy_step(t, store_copy_continue(cluster.store, t->copy, budget));
    }
    return cluster.rooms.n > 0;
}

/* --- sending --- */

static void task_sent(struct cluster_task *t) {
    t->state = CLUSTER_TASK_SENT;
    task_enter(t, &t->node->sent);
    count_sent(t, true);
    timer_set(&t->timer, cluster.now_ms + try_ms(t));
}

static bool store_described(struct cluster_task *t, struct cluster_work *w) {
    const struct object *o = task_object(t);
    uint32_t crc;
    if (o == NULL || !replica_in(o, t->from, &t->at) ||
        t->at.extent[0].segment_epoch != t->from_epoch)
        return false;
    bool has_crc = store_object_crc(o, &crc);
    w->kind = CLUSTER_WORK_STORE;
    w->far = t->to;
    w->prompt = store_object_request(cluster.store, o);
    w->crc = has_crc ? (int64_t)crc : -1;
    w->crcs = store_object_crcs(cluster.store, o, &w->n_crcs);
    if (w->crcs == NULL) w->n_crcs = 0;
    return true;
}

bool task_send(struct cluster_task *t, struct cluster_work *w) {
    *w = (struct cluster_work){.kind = CLUSTER_WORK_COPY, .crc = -1};
    if (t->kind == CLUSTER_TASK_STORE ? !store_described(t, w) : task_object(t) == NULL) {
        task_failed(t, TARN_ENOTFOUND);
        return false;
    }
    /* Nothing else would tell whether its bytes were still the same when they were read. */
    if (t->kind == CLUSTER_TASK_STORE && w->crc < 0)
        t->hold = store_hold(cluster.store, task_object(t));
    w->task = t->id;
    w->version = t->version;
    w->size = t->size;
    w->key = span_of(t->key, t->key_len);
    w->at = t->at;
    task_sent(t);
    return true;
}

bool task_next_cancel(struct cluster_node *n, struct cluster_work *w) {
    struct cluster_task *t = TAILQ_FIRST(&n->cancels);
    if (t == NULL) return false;
    TAILQ_UNLINK(&n->cancels, t, cancel_link);
    *w = (struct cluster_work){.kind = CLUSTER_WORK_CANCEL, .task = t->id};
    return true;
}

/* Copies to the embedded segment. */
static void start_local(unsigned *budget) {
    struct cluster_node *n = &cluster.local;
    if (n->copies.n == 0 || cluster.local_due_ms > cluster.now_ms) return;
    while (*budget > 0 && n->sent_copies < cluster.config.tasks_per_node && n->copies.n > 0) {
        budget_spend(budget, 1);
        struct cluster_task *t = TAILQ_FIRST(&n->copies.all);
        uint64_t id = t->id;
        task_sent(t); /* it may answer at once */
        tarn_status status = cluster.ops.start_copy(
            cluster.ops.arg, t->id, span_of(t->key, t->key_len), t->version, t->size, &t->at);
        if (status == TARN_OK) continue;
        TARN_ASSERT(task_find(id) == t);
        if (status == TARN_EAGAIN) {
            task_leave_node(t);
            timer_clear(&t->timer);
            t->node = n;
            t->state = CLUSTER_TASK_ROOM;
            task_enter(t, &n->copies);
            cluster.local_due_ms = cluster.now_ms + LOCAL_RETRY_MS;
            return;
        }
        task_failed(t, status);
    }
}

static bool local_may_start(void) {
    const struct cluster_node *n = &cluster.local;
    return n->copies.n > 0 && n->sent_copies < cluster.config.tasks_per_node;
}

bool tasks_background(unsigned *budget) {
    bool more = make_room(budget);
    more |= start_ready(budget);
    start_local(budget);
    return more;
}

uint64_t tasks_next_ms(uint64_t limit_ms) {
    if (cluster.rooms.n > 0 || cluster.ready_stores.n > 0 || ready_may_start() || use_may_start() ||
        ahead_may_start())
        return 0;
    if (!local_may_start()) return limit_ms;
    uint64_t at = cluster.local_due_ms;
    return at <= cluster.now_ms ? 0 : min_u64(limit_ms, at - cluster.now_ms);
}

/* --- the end of a try --- */

/* The bytes that were read are those of the object only if it never left that place. */
static tarn_status store_arrived(struct cluster_task *t, uint64_t offset, int64_t crc) {
    struct object *o = task_object(t);
    struct store_replica now;
    const struct node_segment *far = segment_at(t->to);
    if (o == NULL || far == NULL || far->epoch != t->to_epoch || far->leaving)
        return TARN_ENOTFOUND;
    if (!replica_in(o, t->from, &now) || now.extents != t->at.extents) return TARN_ENOTFOUND;
    for (uint32_t i = 0; i < now.extents; i++)
        if (now.extent[i].offset != t->at.extent[i].offset ||
            now.extent[i].segment_epoch != t->at.extent[i].segment_epoch)
            return TARN_ENOTFOUND;
    if (store_object_expire(cluster.store, o) != 0) return TARN_ENOTFOUND; /* disks know no TTL */
    /* One without a CRC was held meanwhile. From now on it is told from what may lie there
     * later. */
    if (crc >= 0) store_object_set_crc(cluster.store, o, (uint32_t)crc);
    if (!store_object_crc(o, &(uint32_t){0})) return TARN_EINVAL;
    return store_far_add(cluster.store, o, t->to, offset);
}

static tarn_status copy_arrived(struct cluster_task *t) {
    tarn_status status = store_copy_end(cluster.store, &t->copy, true);
    t->copy = NULL;
    if (status != TARN_OK) return status;
    struct object *o = task_object(t);
    if (o == NULL) return TARN_ENOTFOUND;
    if (t->kind == CLUSTER_TASK_MOVE) {
        const struct node_segment *from = segment_at(t->from);
        if (from != NULL && from->epoch == t->from_epoch)
            store_replica_drop(cluster.store, o, t->from, false);
    }
    if (cluster.config.offload != CLUSTER_OFFLOAD_NONE) store_await(cluster.store, o);
    return TARN_OK;
}

static bool task_try_ended(struct cluster_task *t, tarn_status status, uint64_t offset,
                           int64_t crc) {
    timer_clear(&t->timer);
    if (status == TARN_ECANCELED && !t->cancel) status = t->timed_out ? TARN_ETIMEOUT : TARN_EAGAIN;
    if (status == TARN_OK) {
        status = t->kind == CLUSTER_TASK_STORE ? store_arrived(t, offset, crc) : copy_arrived(t);
        if (status == TARN_OK) {
            task_over(t, TARN_OK);
            return true;
        }
    }
    task_failed(t, status);
    return false;
}

bool cluster_task_done(struct cluster_node *n, uint64_t id, tarn_status status, uint64_t offset,
                       int64_t crc) {
    struct cluster_task *t = task_find(id);
    if (t == NULL || t->node != n || t->state != CLUSTER_TASK_SENT) return false;
    bool accepted = task_try_ended(t, status, offset, crc);
    if (n->copies.n + n->stores.n > 0) node_wake(n);
    return accepted;
}

void cluster_local_done(uint64_t id, tarn_status status) {
    struct cluster_task *t = task_find(id);
    if (t != NULL && t->node == &cluster.local && t->state == CLUSTER_TASK_SENT)
        task_try_ended(t, status, 0, -1);
}

static void task_requeue(struct cluster_task *t) {
    timer_clear(&t->timer);
    if (t->cancel) {
        task_over(t, TARN_ECANCELED);
        return;
    }
    task_again(t);
    task_enter(t, ready_list(t));
}

static void requeue_all(struct task_list *list) {
    for (size_t n = list->n; n > 0; n--) {
        struct cluster_task *t = TAILQ_FIRST(&list->all);
        copy_over(t);
        task_requeue(t);
    }
}

/* Whether these came to be on its disk it will find out, and offer them: by then their key may have
 * had another value, of which nothing is left. */
static void orphan_stores(const struct cluster_node *n) {
    const struct cluster_task *t;
    TAILQ_FOREACH(t, &n->sent.all, link) {
        if (t->kind == CLUSTER_TASK_STORE)
            store_far_supersede(cluster.store, span_of(t->key, t->key_len), t->version);
    }
}

void tasks_replan(struct cluster_node *n) {
    orphan_stores(n);
    requeue_all(&n->sent);
    requeue_all(&n->copies);
    requeue_all(&n->stores);
    TARN_ASSERT(n->sent_copies == 0 && n->sent_stores == 0 && TAILQ_EMPTY(&n->cancels));
}

/* --- what users ask --- */

static tarn_status by_user(enum cluster_task_kind kind, struct object *o, uint32_t from,
                           uint32_t to, uint64_t *task_p) {
    struct span value;
    struct store_replica r;
    struct cluster_task *t;
    if (store_object_inline(o, &value)) return TARN_EINVAL;
    if (to != STORE_SEGMENT_ANY) {
        const struct node_segment *g = segment_at(to);
        if (g == NULL || g->leaving) return TARN_ENOSEGMENT;
        if (segment_is_far(g) || to == from) return TARN_EINVAL;
        if (replica_in(o, to, &r)) return TARN_EEXISTS;
    }
    if (kind == CLUSTER_TASK_MOVE && !replica_in(o, from, &r)) return TARN_ENOTFOUND;
    tarn_status status = task_create(kind, CLUSTER_BY_USER, o, from, to, &t);
    if (status == TARN_OK) *task_p = t->id;
    return status;
}

tarn_status cluster_replica_copy(struct object *o, uint32_t to, uint64_t *task_p) {
    return by_user(CLUSTER_TASK_COPY, o, STORE_SEGMENT_ANY, to, task_p);
}

tarn_status cluster_replica_move(struct object *o, uint32_t from, uint32_t to, uint64_t *task_p) {
    return by_user(CLUSTER_TASK_MOVE, o, from, to, task_p);
}

bool cluster_task_cancel(uint64_t id) {
    struct cluster_task *t = task_find(id);
    if (t == NULL) return false;
    if (t->state != CLUSTER_TASK_SENT) {
        task_over(t, TARN_ECANCELED);
        return true;
    }
    if (t->cancel) return true;
    t->cancel = true;
    ask_to_stop(t);
    return true;
}

bool cluster_task_get(uint64_t id, struct cluster_task_info *info_p) {
    const struct cluster_task *t = task_find(id);
    if (t != NULL) task_describe(t, info_p);
    for (size_t i = 0; t == NULL && i < finished_n; i++) {
        if (finished[i].info.id != id) continue;
        *info_p = finished[i].info;
        return true;
    }
    return t != NULL;
}

void cluster_tasks_each(uint64_t skip, bool (*fn)(void *arg, const struct cluster_task_info *info),
                        void *arg) {
    struct cluster_task_info info;
    const struct cluster_task *t;
    TAILQ_FOREACH_REVERSE(t, &cluster.tasks, task_heads, all) {
        if (skip > 0) {
            skip--;
            continue;
        }
        task_describe(t, &info);
        if (!fn(arg, &info)) return;
    }
    for (size_t i = skip; i < finished_n; i++) {
        const struct finished *f = &finished[(finished_next + FINISHED_MAX - 1 - i) % FINISHED_MAX];
        info = f->info;
        if (!fn(arg, &info)) return;
    }
}

void tasks_count(uint64_t by_state[CLUSTER_TASK_STATES]) {
    const struct cluster_task *t;
    TAILQ_FOREACH(t, &cluster.tasks, all) by_state[t->state]++;
}

void tasks_init(void) {
    TAILQ_INIT(&cluster.tasks);
    TAILQ_INIT(&cluster.ready.all);
    TAILQ_INIT(&cluster.ready_stores.all);
    TAILQ_INIT(&cluster.ready_use.all);
    TAILQ_INIT(&cluster.ready_ahead.all);
    TAILQ_INIT(&cluster.rooms.all);
    finished = xcalloc(FINISHED_MAX, sizeof(*finished));
    finished_n = finished_next = 0;
}

void tasks_deinit(void) {
    while (!TAILQ_EMPTY(&cluster.tasks)) task_over(TAILQ_FIRST(&cluster.tasks), TARN_ECANCELED);
    htab_free(&cluster.tasks_by_id);
    htab_free(&cluster.tasks_by_key);
    free(finished);
    finished = NULL;
}
