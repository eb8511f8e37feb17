/* Between memory and far tiers: what was put goes to the disk of its node, what is used there comes
 * back to memory.
 *
 *   PUTEND         (ssd-offload all)        ─┬─> the books: it waits for its copy (store/await.c)
 *   a second use   (second-hit)             ─┤     ─> STORE task of the node that has the bytes
 *   copies, so that what a drain moves is    │           └─> a node with a disk and files: the
 *   on a disk again                         ─┘               other one's queue
 *
 *   a far object's second use, or a prefix with a lease that covers it; or, where the policy knows
 *   what objects are worth: one that is worth more in memory than who would go for it
 *     ─> COPY task to memory, next to where it is
 *
 * What waits is not evicted, so puts come no faster than disks take it: offload_wait says how long
 * one shall wait. A disk that is slower than that, stands still or fails makes nobody wait: then
 * the books let go of what waits, tails of prompts first.
 *
 * The queue of a second far tier holds keys and versions, no objects: these have a copy already.
 * When it is full the newest is left out. */
#include "cluster/internal.h"

#include <stdlib.h>
#include <string.h>

#define STORES_AHEAD    STORE_TAKEN_MAX       /* tasks per far segment ... */
#define STORING_BYTES   (UINT64_C(256) << 20) /* ... and what they may hold, but for the last one */
#define PROMOTIONS_MAX  1024u                 /* tasks */
#define DOORKEEPER_SIZE 65536u
#define RATE_WINDOW_MS  200u                  /* a disk's rate is measured in steps of so long */
#define RATE_GUESS      (UINT64_C(100) << 20) /* bytes per second, until then */
#define RATE_LEAST      (UINT64_C(1) << 20)
#define WAIT_LEAST_MS   5u
#define WAIT_MOST_MS    250u /* then a put asks again: there may be room sooner than it looks */
#define FAILURES_MAX    3u   /* in a row, then a disk rests */
#define REST_MS         1000u
#define FULL_MS         60000u /* so long a disk that let go of something counts as full */
#define FULL_GAP_MS     300u
#define REST_MAX_MS     60000u
#define DELAYED_SIZE    4096u /* puts whose waiting is remembered */
#define DELAYED_OVER_MS 5000u /* one that has not asked for so long gave up */

/* Objects that were used once, by a part of their hash: a small table that forgets. */
static uint16_t *doorkeeper;

/* Since when puts have been told to come later, by a part of their keys' hash. One that takes
 * another's place begins anew. */
struct delayed {
    uint32_t mark;
    uint64_t since_ms, seen_ms;
};
static struct delayed *delayed;

/* --- queues of weak references --- */

static void weak_push(struct weak_queue *q, struct span key, uint64_t version) {
    struct weak *w = xmalloc(sizeof(*w) + key.len);
    w->version = version;
    w->key_len = (uint32_t)key.len;
    memcpy(w->key, key.data, key.len);
    STAILQ_INSERT_TAIL(&q->all, w, link);
    q->n++;
}

static struct weak *weak_pop(struct weak_queue *q) {
    struct weak *w = STAILQ_TAKE(&q->all, link);
    q->n -= w != NULL;
    return w;
}

void offload_stop(struct node_segment *g) {
    TAILQ_UNLINK(&cluster.offloading, g, offloading);
    for (struct weak *w; (w = weak_pop(&g->offload)) != NULL;) free(w);
    drops_free(g);
}

/* --- use --- */

static bool second_time(uint64_t hash) {
    uint16_t *slot = &doorkeeper[hash & (DOORKEEPER_SIZE - 1)], mark = (uint16_t)(hash >> 48 | 1);
    bool again = *slot == mark;
    *slot = again ? 0 : mark;
    return again;
}

static void offload_promote(struct object *o) {
    struct span key = store_object_key(o);
    uint64_t version = store_object_version(o);
    struct cluster_task *t = task_for(key, version, CLUSTER_BY_PREFETCH, STORE_SEGMENT_ANY);
    if (t == NULL) t = task_for(key, version, CLUSTER_BY_USE, STORE_SEGMENT_ANY);
    if (t != NULL) {
        task_hurry(t);
        return;
    }
    if (cluster.by_reason[CLUSTER_BY_USE] >= PROMOTIONS_MAX) {
        cluster.figures.promote_overflow++;
        return;
    }
    if (task_create(CLUSTER_TASK_COPY, CLUSTER_BY_USE, o, STORE_SEGMENT_ANY, STORE_SEGMENT_ANY,
                    &t) == TARN_ELIMIT)
        cluster.figures.promote_overflow++;
}

static void far_hit(struct object *o, uint64_t hash, bool ahead) {
    if (!store_object_in_memory(cluster.store, o)) {
        bool often = ahead || store_object_far_hits(o) >= 2;
        if (store_object_worth_memory(cluster.store, o, often)) offload_promote(o);
    } else if (cluster.config.offload == CLUSTER_OFFLOAD_ALL ||
               (cluster.config.offload == CLUSTER_OFFLOAD_SECOND_HIT && second_time(hash))) {
        store_await(cluster.store, o); /* ALL: it was there before its node had a disk, or we led */
    }
}

void cluster_hit_slow(struct object *o, bool ahead) {
    uint64_t hash = store_hash(store_object_key(o));
    if (!ahead) heat_hit(o, hash); /* the reads themselves follow */
    if (cluster.far_usable > 0) far_hit(o, hash, ahead);
}

/* --- where to --- */

static struct node_segment *far_of(const struct cluster_node *n, enum store_tier tier) {
    struct node_segment *g;
    TAILQ_FOREACH(g, &n->segments, of_node) {
        if (g->tier == tier && segment_stays(g)) return g;
    }
    return NULL;
}

static bool in_tier(const struct store_layout *l, enum store_tier tier) {
    for (uint32_t i = 0; i < l->replicas; i++) {
        const struct node_segment *g =
            l->replica[i].extents > 0 ? segment_at(l->replica[i].extent[0].segment) : NULL;
        if (l->replica[i].tier == tier && g != NULL && segment_stays(g)) return true;
    }
    return false;
}

/* The far segment of that tier next to a memory replica, and which one that is. */
static struct node_segment *far_beside(const struct store_layout *l, enum store_tier tier,
                                       uint32_t *from_p) {
    for (uint32_t i = 0; i < l->replicas; i++) {
        const struct store_replica *r = &l->replica[i];
        if (r->tier != STORE_TIER_MEMORY || r->extents == 0) continue;
        const struct node_segment *g = segment_at(r->extent[0].segment);
        if (g == NULL || g->node == NULL) continue;
        struct node_segment *far = far_of(g->node, tier);
        if (far == NULL) continue;
        *from_p = g->id;
        return far;
    }
    return NULL;
}

static void offload_later(struct node_segment *far) {
    if (!TAILQ_LINKED(far, offloading) && !far->leaving)
        TAILQ_INSERT_TAIL(&cluster.offloading, far, offloading);
}

/* It has a copy on its node's disk: it gets one among its node's files as well. */
static void second_tier(const struct object *o, const struct node_segment *first) {
    struct store_layout layout;
    uint32_t from;
    enum store_tier tier = first->tier == STORE_TIER_SSD ? STORE_TIER_FILE : STORE_TIER_SSD;
    store_object_layout(cluster.store, o, &layout);
    struct node_segment *far = in_tier(&layout, tier) ? NULL : far_beside(&layout, tier, &from);
    if (far == NULL) return;
    if (far->offload.n >= cluster.config.offload_queue) {
        cluster.figures.offload_overflow++;
        return;
    }
    weak_push(&far->offload, store_object_key(o), store_object_version(o));
    offload_later(far);
}

/* Called from inside the books. */
void cluster_on_awaits(uint32_t segment) {
    struct node_segment *far = segment_at(segment);
    if (far != NULL) offload_later(far);
}

/* --- how fast a disk is --- */

static void rate_begin(struct pace *p) {
    p->window_ms = p->progress_ms = cluster.now_ms;
    p->window_bytes = 0;
}

static void rate_stored(struct pace *p, uint64_t bytes) {
    p->window_bytes += bytes;
    p->progress_ms = cluster.now_ms;
    p->failures = 0;
    uint64_t ms = cluster.now_ms - p->window_ms;
    if (ms < RATE_WINDOW_MS) return;
    uint64_t now = p->window_bytes * 1000 / ms;
    p->rate = max_u64(p->rate > 0 ? (3 * p->rate + now) / 4 : now, RATE_LEAST);
    rate_begin(p);
}

static uint64_t rate_of(const struct pace *p) {
    return p->rate > 0 ? p->rate : RATE_GUESS;
}

static bool disk_rests(const struct node_segment *far) {
    return far->pace.rest_until_ms > cluster.now_ms;
}

static void rest_over(struct timer *timer) {
    offload_later(CONTAINER_OF(timer, struct node_segment, pace.timer));
}

/* What is asked of it is pointless for a while. Each time for twice as long. */
static void rate_failed(struct node_segment *far) {
    struct pace *p = &far->pace;
    if (++p->failures < FAILURES_MAX || disk_rests(far)) return;
    uint64_t ms =
        min_u64((uint64_t)REST_MS << min_u64(p->failures - FAILURES_MAX, 10), REST_MAX_MS);
    p->rest_until_ms = cluster.now_ms + ms;
    p->timer.due = rest_over;
    timer_set(&p->timer, p->rest_until_ms);
    cluster.figures.offload_rests++;
}

/* Has work and gets nowhere. One that is full takes more only as it lets go of something and the
 * last leases on that end: where this makes it stop, it has no room. */
static bool stands_still(const struct node_segment *far) {
    const struct pace *p = &far->pace;
    bool full = p->evicted_ms > 0 && cluster.now_ms - p->evicted_ms < FULL_MS;
    uint64_t ms = full ? FULL_GAP_MS
                       : cluster.config.offload_wait_ms +
                             far->storing_bytes * 1000 / (rate_of(&far->pace) / 2);
    return far->storing > 0 && cluster.now_ms - p->progress_ms > ms;
}

/* For how long this put has been told to come later. */
static uint64_t delayed_ms(uint64_t hash) {
    struct delayed *d = &delayed[hash % DELAYED_SIZE];
    if (d->mark != (uint32_t)(hash >> 32) || cluster.now_ms - d->seen_ms > DELAYED_OVER_MS)
        *d = (struct delayed){.mark = (uint32_t)(hash >> 32), .since_ms = cluster.now_ms};
    d->seen_ms = cluster.now_ms;
    return cluster.now_ms - d->since_ms;
}

uint64_t cluster_disk_wait(uint32_t segment, uint64_t hash, uint64_t bytes) {
    struct node_segment *far = segment_at(segment);
    if (far == NULL || !segment_stays(far) || disk_rests(far) || stands_still(far)) return 0;
    if (delayed_ms(hash) >= cluster.config.offload_wait_ms) return 0;
    /* Those who are told to wait are told to do so one after the other. */
    struct pace *p = &far->pace;
    uint64_t rate = rate_of(p), passed = (cluster.now_ms - p->promised_ms) * rate / 1000;
    p->promised = p->promised > passed ? p->promised - passed : 0;
    p->promised_ms = cluster.now_ms;
    p->promised = min_u64(p->promised + bytes, rate / 1000 * WAIT_MOST_MS);
    return max_u64(p->promised * 1000 / rate, WAIT_LEAST_MS);
}

/* --- from the books to tasks --- */

static tarn_status store_task(struct node_segment *far, const struct object *o) {
    struct store_layout layout;
    uint32_t from = STORE_SEGMENT_ANY;
    store_object_layout(cluster.store, o, &layout);
    if (far_beside(&layout, far->tier, &from) != far) return TARN_ENOTFOUND;
    struct cluster_task *t;
    tarn_status status = task_create(CLUSTER_TASK_STORE, CLUSTER_BY_OFFLOAD, o, from, far->id, &t);
    if (status != TARN_OK) return status;
    if (far->storing++ == 0) rate_begin(&far->pace);
    far->storing_bytes += t->size;
    return TARN_OK;
}

static bool is_of_the_object(tarn_status status) {
    return status == TARN_ENOSPACE || status == TARN_EINVAL || status == TARN_ECORRUPT ||
           status == TARN_EEXISTS || status == TARN_ELIMIT;
}

void offload_task_ended(struct cluster_task *t, tarn_status status) {
    struct node_segment *far = segment_at(t->asked_to);
    const struct object *seen = store_find(cluster.store, span_of(t->key, t->key_len));
    struct object *o = store_find_version(cluster.store, span_of(t->key, t->key_len), t->version);
    if (far == NULL || far->epoch != t->to_epoch || far->leaving) {
        if (o != NULL) store_await_end(cluster.store, o);
        return;
    }
    if (far->storing > 0) far->storing--;
    far->storing_bytes -= min_u64(far->storing_bytes, t->size);
    if (status == TARN_OK) {
        rate_stored(&far->pace, t->size);
        if (o != NULL) second_tier(o, far);
    } else if (status == TARN_EIO || status == TARN_ENOSPACE || status == TARN_ETIMEOUT) {
        rate_failed(far);
    }
    if (status != TARN_OK && o != NULL &&
        (is_of_the_object(status) || (o != seen && segment_usable(far))))
        store_await_end(cluster.store, o);
    else if (status != TARN_OK && o != NULL)
        store_await_again(cluster.store, o, far->id);
    offload_later(far);
}

static bool may_store(const struct node_segment *far) {
    return segment_usable(far) && !disk_rests(far) && far->storing < STORES_AHEAD &&
           far->storing_bytes < STORING_BYTES &&
           cluster.tasks_by_id.count < cluster.config.max_tasks / 2; /* others come first */
}

static void store_waiting(struct node_segment *far, struct object *o) {
    tarn_status status = store_task(far, o);
    if (status == TARN_ELIMIT)
        store_await_again(cluster.store, o, far->id);
    else if (status != TARN_OK && status != TARN_EEXISTS)
        store_await_end(cluster.store, o);
}

static bool has_work(const struct node_segment *far) {
    return far->offload.n > 0 || store_await_waiting(cluster.store, far->id);
}

/* Fills one segment's tasks up. */
static void offload_fill(struct node_segment *far, unsigned *budget) {
    struct object *o;
    struct weak *w;
    while (*budget > 0 && may_store(far)) {
        --*budget;
        if ((o = store_await_take(cluster.store, far->id)) != NULL) {
            store_waiting(far, o);
        } else if ((w = weak_pop(&far->offload)) != NULL) {
            o = object_readable(span_of(w->key, w->key_len), w->version);
            if (o != NULL && store_task(far, o) == TARN_ELIMIT) cluster.figures.offload_overflow++;
            free(w);
        } else {
            return;
        }
    }
}

/* A segment with all the tasks it may have waits outside of the list until one of them ends, its
 * node is back, or its rest is over. */
bool offload_background(unsigned *budget) {
    struct node_segment *far, *last = TAILQ_LAST(&cluster.offloading, offloading_heads);
    for (bool over = last == NULL; !over && *budget > 0;) {
        far = TAILQ_FIRST(&cluster.offloading); /* last comes back behind itself, if at all */
        TAILQ_UNLINK(&cluster.offloading, far, offloading);
        over = far == last;
        offload_fill(far, budget);
        bool idle = far->storing == 0 && segment_usable(far) && !disk_rests(far);
        if (has_work(far) && (may_store(far) || idle)) offload_later(far);
    }
    return offload_runnable();
}

bool offload_runnable(void) {
    return !TAILQ_EMPTY(&cluster.offloading) &&
           cluster.tasks_by_id.count < cluster.config.max_tasks / 2;
}

/* Where what is put into a memory segment is copied to. */
static uint32_t disk_of(const struct node_segment *g) {
    if (cluster.following || cluster.config.offload == CLUSTER_OFFLOAD_NONE || !segment_usable(g))
        return STORE_SEGMENT_ANY;
    struct node_segment *far = far_of(g->node, STORE_TIER_SSD);
    if (far == NULL) far = far_of(g->node, STORE_TIER_FILE);
    return far != NULL ? far->id : STORE_SEGMENT_ANY;
}

void offload_count(struct node_segment *g, bool usable) {
    cluster.far_usable += usable - g->far_usable;
    g->far_usable = usable;
    cluster_counts_hits = cluster.config.hot_replicas > 1 || cluster.far_usable > 0;
}

static void refresh_one(struct node_segment *g) {
    offload_count(g, segment_is_far(g) && segment_usable(g));
    if (g->leaving) return;
    if (!segment_is_far(g))
        store_segment_copies(cluster.store, g->id, disk_of(g));
    else if (g->far_usable && has_work(g) && !cluster.following)
        offload_later(g);
}

void offload_refresh_node(struct cluster_node *n) {
    struct node_segment *g;
    TAILQ_FOREACH(g, &n->segments, of_node) refresh_one(g);
}

void offload_refresh(void) {
    store_config(cluster.store)->copies_all = cluster.config.offload == CLUSTER_OFFLOAD_ALL;
    cluster_counts_hits = cluster.config.hot_replicas > 1 || cluster.far_usable > 0;
    for (uint32_t id = 0; id < cluster.segment_cap; id++)
        if (cluster.segments[id] != NULL) refresh_one(cluster.segments[id]);
}

void offload_init(void) {
    doorkeeper = xcalloc(DOORKEEPER_SIZE, sizeof(*doorkeeper));
    delayed = xcalloc(DELAYED_SIZE, sizeof(*delayed));
    TAILQ_INIT(&cluster.offloading);
}

void offload_deinit(void) {
    free(doorkeeper);
    free(delayed);
    doorkeeper = NULL;
    delayed = NULL;
}
