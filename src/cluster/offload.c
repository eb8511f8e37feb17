/* Between memory and far tiers: what was put goes to the disk of its node, what is used there comes back to memory.
 *
 *   PUTEND ─> news ─> the queue of a far segment of the node that has the bytes ─> STORE task      (ssd-offload all)
 *   a second use ─^                                                                                 (second-hit)
 *   copies ───────^  (so that what a drain moves is on a disk again in the end)
 *
 *   a far object's second use, or a prefix with a lease that covers it ─> COPY task to memory, next to where it is
 *
 * Queues hold keys and versions, no objects: what is evicted on the way is simply gone. When they are full the newest is left
 * out: it will not survive its eviction, and eviction never waits. */
#include "cluster/internal.h"

#include <stdlib.h>
#include <string.h>

#define NEWS_MAX        65536u
#define STORES_AHEAD    64u   /* tasks per far segment */
#define PROMOTIONS_MAX  1024u /* tasks */
#define DOORKEEPER_SIZE 65536u

/* Objects that were used once, by a part of their hash: a small table that forgets. */
static uint16_t *doorkeeper;
static struct weak_queue news;

/* --- queues of weak references --------------------------------------------------------------------------------------------------- */

struct weak *weak_new(struct span key, uint64_t version) {
    struct weak *w = xmalloc(sizeof(*w) + key.len);
    w->next = NULL;
    w->version = version;
    w->key_len = (uint32_t)key.len;
    memcpy(w->key, key.data, key.len);
    return w;
}

void weak_push(struct weak_queue *q, struct weak *w) {
    w->next = NULL;
    if (q->last != NULL)
        q->last->next = w;
    else
        q->first = w;
    q->last = w;
    q->n++;
}

struct weak *weak_pop(struct weak_queue *q) {
    struct weak *w = q->first;
    if (w == NULL) return NULL;
    q->first = w->next;
    if (q->first == NULL) q->last = NULL;
    q->n--;
    return w;
}

void weak_clear(struct weak_queue *q) {
    for (struct weak *w; (w = weak_pop(q)) != NULL;) free(w);
}

/* --- news ------------------------------------------------------------------------------------------------------------------------- */

void offload_note(struct span key, uint64_t version) {
    if (cluster.far_usable == 0) return;
    if (news.n >= NEWS_MAX) {
        cluster.figures.offload_overflow++;
        return;
    }
    weak_push(&news, weak_new(key, version));
}

/* Called from inside the books. */
void cluster_on_complete(struct span key) {
    if (cluster.far_usable > 0 && cluster.config.offload == CLUSTER_OFFLOAD_ALL && !cluster.offering)
        offload_note(key, 0);
}

static bool second_time(uint64_t hash) {
    uint16_t *slot = &doorkeeper[hash & (DOORKEEPER_SIZE - 1)], mark = (uint16_t)(hash >> 48 | 1);
    bool again = *slot == mark;
    *slot = again ? 0 : mark;
    return again;
}

static void promote(struct object *o) {
    if (cluster.by_reason[CLUSTER_BY_USE] >= PROMOTIONS_MAX) {
        cluster.figures.promote_overflow++;
        return;
    }
    struct task_order order = {.kind = CLUSTER_TASK_COPY,
                               .reason = CLUSTER_BY_USE,
                               .key = store_object_key(o),
                               .version = store_object_version(o),
                               .size = store_object_size(cluster.store, o),
                               .from = STORE_SEGMENT_ANY,
                               .to = STORE_SEGMENT_ANY};
    if (task_create(&order, NULL) == TARN_ELIMIT) cluster.figures.promote_overflow++;
}

static void far_hit(struct object *o, uint64_t hash, bool ahead) {
    if (!store_object_in_memory(cluster.store, o)) {
        if (ahead || store_object_far_hits(o) >= 2) promote(o);
    } else if (cluster.config.offload == CLUSTER_OFFLOAD_SECOND_HIT && second_time(hash)) {
        offload_note(store_object_key(o), store_object_version(o));
    }
}

void cluster_hit_slow(struct object *o, bool ahead) {
    uint64_t hash = store_hash(store_object_key(o));
    if (!ahead) heat_hit(o, hash); /* the reads themselves follow */
    if (cluster.far_usable > 0) far_hit(o, hash, ahead);
}

/* --- from news to the queue of a far segment ---------------------------------------------------------------------------------------- */

static struct segment *far_of(const struct node *n, enum store_tier tier) {
    for (struct link *k = list_first(&n->segments); k != NULL; k = list_next(&n->segments, k)) {
        struct segment *g = CONTAINER_OF(k, struct segment, of_node);
        if (g->tier == tier && segment_stays(g)) return g;
    }
    return NULL;
}

static bool in_tier(const struct store_layout *l, enum store_tier tier) {
    for (uint32_t i = 0; i < l->replicas; i++) {
        const struct segment *g =
            l->replica[i].extents > 0 ? segment_at(l->replica[i].extent[0].segment) : NULL;
        if (l->replica[i].tier == tier && g != NULL && segment_stays(g)) return true;
    }
    return false;
}

/* The far segment of that tier next to a memory replica, and which one that is. */
static struct segment *choose(const struct store_layout *l, enum store_tier tier, uint32_t *from_p) {
    for (uint32_t i = 0; i < l->replicas; i++) {
        const struct store_replica *r = &l->replica[i];
        if (r->tier != STORE_TIER_MEMORY || r->extents == 0) continue;
        const struct segment *g = segment_at(r->extent[0].segment);
        if (g == NULL || g->node == NULL) continue;
        struct segment *far = far_of(g->node, tier);
        if (far == NULL) continue;
        *from_p = g->id;
        return far;
    }
    return NULL;
}

static struct object *object_of(const struct weak *w) {
    struct object *o = store_find(cluster.store, span_of(w->key, w->key_len));
    return o != NULL && (w->version == 0 || store_object_version(o) == w->version) ? o : NULL;
}

static void distribute(const struct weak *w) {
    struct store_layout layout;
    struct span value;
    uint32_t from;
    const struct object *o = object_of(w);
    if (o == NULL || store_object_inline(o, &value)) return;
    /* Disks know nothing of TTLs: found again by another master, it would live for ever. */
    if (store_object_expire(cluster.store, o) != 0) return;
    store_object_layout(cluster.store, o, &layout);
    for (int tier = STORE_TIER_SSD; tier <= STORE_TIER_FILE; tier++) {
        if (in_tier(&layout, (enum store_tier)tier)) continue;
        struct segment *far = choose(&layout, (enum store_tier)tier, &from);
        if (far == NULL) continue;
        if (far->offload.n >= cluster.config.offload_queue) {
            cluster.figures.offload_overflow++;
            continue;
        }
        weak_push(&far->offload, weak_new(span_of(w->key, w->key_len), store_object_version(o)));
        if (!link_in(&far->offloading)) list_add(&cluster.offloading, &far->offloading);
    }
}

/* --- from there to tasks -------------------------------------------------------------------------------------------------------------- */

static tarn_status store_task(struct segment *far, const struct weak *w) {
    struct store_layout layout;
    struct object *o = object_of(w);
    uint32_t from = STORE_SEGMENT_ANY;
    if (o == NULL) return TARN_ENOTFOUND;
    store_object_layout(cluster.store, o, &layout);
    if (choose(&layout, far->tier, &from) != far) return TARN_ENOTFOUND;
    struct task_order order = {.kind = CLUSTER_TASK_STORE,
                               .reason = CLUSTER_BY_OFFLOAD,
                               .key = store_object_key(o),
                               .version = store_object_version(o),
                               .size = store_object_size(cluster.store, o),
                               .from = from,
                               .to = far->id};
    tarn_status status = task_create(&order, NULL);
    if (status == TARN_OK) far->storing++;
    return status;
}

void offload_task_ended(struct task *t, tarn_status status) {
    struct segment *far = segment_at(t->asked_to);
    if (far != NULL && far->epoch == t->to_epoch && far->storing > 0) far->storing--;
    if (far != NULL && far->offload.n > 0 && !link_in(&far->offloading) && !far->leaving)
        list_add(&cluster.offloading, &far->offloading);
}

/* Fills one segment's tasks up. */
static void fill(struct segment *far, unsigned *budget) {
    while (*budget > 0 && far->offload.n > 0 && far->storing < STORES_AHEAD) {
        --*budget;
        if (cluster.tasks.n >= cluster.config.max_tasks / 2) break; /* others come first */
        struct weak *w = weak_pop(&far->offload);
        if (store_task(far, w) == TARN_ELIMIT) cluster.figures.offload_overflow++;
        free(w);
    }
}

bool offload_background(unsigned *budget) {
    /* A segment with all the tasks it may have waits outside of the list until one of them ends. */
    for (size_t n = cluster.offloading.n; n > 0 && *budget > 0; n--) {
        struct segment *far = CONTAINER_OF(list_first(&cluster.offloading), struct segment, offloading);
        list_remove(&cluster.offloading, &far->offloading);
        fill(far, budget);
        if (far->offload.n > 0 && far->storing < STORES_AHEAD)
            list_add(&cluster.offloading, &far->offloading);
    }
    for (struct weak *w; *budget > 0 && (w = weak_pop(&news)) != NULL; --*budget) {
        distribute(w);
        free(w);
    }
    return offload_runnable();
}

bool offload_runnable(void) {
    return news.n > 0 || (cluster.offloading.n > 0 && cluster.tasks.n < cluster.config.max_tasks / 2);
}

size_t offload_incoming(void) {
    return news.n;
}

void offload_refresh(void) {
    cluster.far_usable = 0;
    for (uint32_t id = 0; id < cluster.segment_cap; id++) {
        const struct segment *g = cluster.segments[id];
        cluster.far_usable += g != NULL && segment_is_far(g) && segment_usable(g);
    }
    cluster_counts_hits = cluster.config.hot_replicas > 1 || cluster.far_usable > 0;
}

void offload_init(void) {
    doorkeeper = xcalloc(DOORKEEPER_SIZE, sizeof(*doorkeeper));
    news = (struct weak_queue){.first = NULL};
    list_init(&cluster.offloading);
}

void offload_deinit(void) {
    weak_clear(&news);
    free(doorkeeper);
    doorkeeper = NULL;
}
