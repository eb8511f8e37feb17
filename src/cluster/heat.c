/* Hot objects get more replicas, and lose them when they cool.
 *
 * Accesses are counted for the heaviest hitters only, with the Space-Saving algorithm (Metwally,
 * Agrawal and El Abbadi, "Efficient computation of frequent and top-k elements in data streams",
 * 2005): COUNTERS counters; whoever has none takes the smallest, and its count as an error. count -
 * error is what an object was used at least. An object that gets more than 1/COUNTERS of all
 * accesses is never missed.
 *
 *   hit ─> counter ─(hot-threshold in a window)─> hot: a copy at a time, up to
 *            1 + accesses / hot-threshold replicas
 *              └─(a window with less than half the threshold)─> extra replicas dropped */
#include "cluster/internal.h"

#include <stdlib.h>
#include <string.h>

#define COUNTERS 1024u
#define SLOTS    4096u /* of the table over them; a power of two */
#define HOT_MAX  1024u

struct counter {
    uint64_t hash;
    uint32_t count, error;
    uint32_t place;  /* in the heap */
    uint32_t wanted; /* replicas asked for in this window */
};

static struct {
    struct counter counter[COUNTERS];
    uint16_t heap[COUNTERS]; /* the smallest count first */
    uint16_t slot[SLOTS];    /* index + 1, 0: empty; linear probing */
    uint32_t used;
} * top; /* NULL: switched off */

/* A hot object, by key and version; it may be gone. */
struct hot {
    struct htab_node node;
    TAILQ_ENTRY(hot) all, plan; /* plan: to be looked at */
    uint64_t hash, version;
    uint32_t wanted, used;                     /* used: accesses in the last window */
    uint32_t n_made, made[STORE_REPLICAS_MAX]; /* segments of the replicas that were made for it */
    bool stuck;                                /* no more copies before the next window */
    uint32_t key_len;
    char key[];
};
static struct htab hots;
static TAILQ_HEAD(, hot) all, plans;
static uint64_t window_end_ms;
static size_t cooling; /* of `all`, so many from the front are to be looked at */

/* --- counters --- */

static uint32_t counter_slot(uint64_t hash) {
    uint32_t at = (uint32_t)hash & (SLOTS - 1);
    while (top->slot[at] != 0 && top->counter[top->slot[at] - 1].hash != hash)
        at = (at + 1) & (SLOTS - 1);
    return at;
}

/* The slots behind it that would no longer be found move up. */
static void slot_clear(uint32_t at) {
    for (uint32_t next = at;;) {
        next = (next + 1) & (SLOTS - 1);
        if (top->slot[next] == 0) break;
        uint32_t home = (uint32_t)top->counter[top->slot[next] - 1].hash & (SLOTS - 1);
        if (((next - home) & (SLOTS - 1)) < ((next - at) & (SLOTS - 1))) continue;
        top->slot[at] = top->slot[next];
        at = next;
    }
    top->slot[at] = 0;
}

static void heap_put(uint32_t place, uint16_t index) {
    top->heap[place] = index;
    top->counter[index].place = place;
}

static void sift_down(uint32_t place) {
    uint16_t index = top->heap[place];
    uint32_t count = top->counter[index].count;
    for (;;) {
        uint32_t child = 2 * place + 1;
        if (child >= top->used) break;
        if (child + 1 < top->used &&
            top->counter[top->heap[child + 1]].count < top->counter[top->heap[child]].count)
            child++;
        if (top->counter[top->heap[child]].count >= count) break;
        heap_put(place, top->heap[child]);
        place = child;
    }
    heap_put(place, index);
}

static void sift_up(uint32_t place) {
    uint16_t index = top->heap[place];
    uint32_t count = top->counter[index].count;
    for (; place > 0; place = (place - 1) / 2) {
        uint16_t parent = top->heap[(place - 1) / 2];
        if (top->counter[parent].count <= count) break;
        heap_put(place, parent);
    }
    heap_put(place, index);
}

static struct counter *counter_hit(uint64_t hash) {
    uint32_t at = counter_slot(hash);
    if (top->slot[at] != 0) {
        struct counter *c = &top->counter[top->slot[at] - 1];
        c->count++;
        sift_down(c->place);
        return c;
    }
    uint16_t index;
    if (top->used < COUNTERS) {
        index = (uint16_t)top->used++;
        top->counter[index] = (struct counter){.hash = hash, .count = 1};
        top->slot[at] = (uint16_t)(index + 1);
        heap_put(index, index);
        sift_up(index);
    } else {
        index = top->heap[0];
        struct counter *c = &top->counter[index];
        slot_clear(counter_slot(c->hash));
        *c = (struct counter){.hash = hash, .count = c->count + 1, .error = c->count};
        top->slot[counter_slot(hash)] = (uint16_t)(index + 1);
        heap_put(0, index);
        sift_down(0);
    }
    return &top->counter[index];
}

static uint32_t counter_get(uint64_t hash) {
    uint32_t at = counter_slot(hash);
    if (top->slot[at] == 0) return 0;
    const struct counter *c = &top->counter[top->slot[at] - 1];
    return c->count - c->error;
}

static void counters_reset(void) {
    memset(top, 0, sizeof(*top));
}

/* --- hot objects --- */

static bool hot_has_version(const struct htab_node *node, const void *key) {
    return CONTAINER_OF(node, const struct hot, node)->version == *(const uint64_t *)key;
}

static struct hot *hot_find(uint64_t version) {
    struct htab_node *n = htab_find(&hots, hash_u64(version), hot_has_version, &version);
    return n != NULL ? CONTAINER_OF(n, struct hot, node) : NULL;
}

static void hot_free(struct hot *h) {
    htab_remove(&hots, &h->node);
    TAILQ_REMOVE(&all, h, all);
    TAILQ_UNLINK(&plans, h, plan);
    free(h);
}

static void hot_plan_later(struct hot *h) {
    if (!TAILQ_LINKED(h, plan) && !h->stuck) TAILQ_INSERT_TAIL(&plans, h, plan);
}

static void hot_note(struct object *o, uint64_t hash, uint32_t wanted) {
    struct span key = store_object_key(o), value;
    uint64_t version = store_object_version(o);
    struct hot *h = hot_find(version);
    if (h == NULL) {
        if (hots.count >= HOT_MAX || store_object_inline(o, &value)) return;
        h = xcalloc(1, sizeof(*h) + key.len);
        h->hash = hash;
        h->version = version;
        h->key_len = (uint32_t)key.len;
        memcpy(h->key, key.data, key.len);
        htab_insert(&hots, &h->node, hash_u64(version));
        TAILQ_INSERT_TAIL(&all, h, all);
    }
    h->wanted = wanted;
    hot_plan_later(h);
}

void heat_hit(struct object *o, uint64_t hash) {
    if (top == NULL) return;
    struct counter *c = counter_hit(hash);
    uint64_t times = (c->count - c->error) / max_u64(cluster.config.hot_threshold, 1);
    uint32_t wanted =
        (uint32_t)min_u64(times + 1, min_u64(cluster.config.hot_replicas, STORE_REPLICAS_MAX));
    if (times == 0 || wanted <= c->wanted) return;
    c->wanted = wanted;
    hot_note(o, hash, wanted);
}

size_t heat_objects(void) {
    return hots.count;
}

/* --- copies --- */

static struct object *hot_object(const struct hot *h) {
    return object_readable(span_of(h->key, h->key_len), h->version);
}

static uint32_t in_memory(const struct object *o) {
    struct store_layout layout;
    uint32_t n = 0;
    store_object_layout(cluster.store, o, &layout);
    for (uint32_t i = 0; i < layout.replicas; i++) n += layout.replica[i].tier == STORE_TIER_MEMORY;
    return n;
}

/* false: the object is gone. */
static bool hot_plan(struct hot *h) {
    struct object *o = hot_object(h);
    if (o == NULL) return false;
    uint32_t n = in_memory(o);
    if (n == 0 || n >= h->wanted || h->n_made == STORE_REPLICAS_MAX) return true;
    struct cluster_task *t;
    h->stuck = !store_object_worth_memory(cluster.store, o, true);
    if (h->stuck) return true;
    h->stuck = task_create(CLUSTER_TASK_COPY, CLUSTER_BY_HEAT, o, STORE_SEGMENT_ANY,
                           STORE_SEGMENT_ANY, &t) == TARN_ELIMIT;
    return true;
}

void heat_task_ended(struct cluster_task *t, tarn_status status) {
    struct hot *h = hot_find(t->version);
    if (h == NULL) {
        /* It has cooled, or the heat was switched off: nobody would take this replica away
         * again. */
        struct object *o = object_readable(span_of(t->key, t->key_len), t->version);
        if (status == TARN_OK && o != NULL) store_replica_drop(cluster.store, o, t->to, false);
        return;
    }
    if (status != TARN_OK) {
        h->stuck = true; /* no room, or no machine left */
        return;
    }
    if (h->n_made < STORE_REPLICAS_MAX) h->made[h->n_made++] = t->to;
    hot_plan_later(h);
}

static void hot_cool(struct hot *h) {
    struct object *o = hot_object(h);
    for (uint32_t i = 0; o != NULL && i < h->n_made; i++)
        store_replica_drop(cluster.store, o, h->made[i], false);
    hot_free(h);
}

/* --- windows --- */

static void end_window(void) {
    struct hot *h;
    TAILQ_FOREACH(h, &all, all) {
        h->used = counter_get(h->hash);
        h->stuck = false;
    }
    counters_reset();
    cooling = hots.count;
    window_end_ms = cluster.now_ms + max_u64(cluster.config.hot_window_ms, 1);
}

static void cool_some(unsigned *budget) {
    for (; cooling > 0 && *budget > 0; cooling--) {
        struct hot *h = TAILQ_FIRST(&all);
        --*budget;
        if (top == NULL || h->used < (cluster.config.hot_threshold + 1) / 2 ||
            hot_object(h) == NULL) {
            hot_cool(h);
            continue;
        }
        TAILQ_REMOVE(&all, h, all);
        TAILQ_INSERT_TAIL(&all, h, all);
        hot_plan_later(h); /* replicas may have gone */
    }
}

bool heat_background(unsigned *budget) {
    if (top != NULL && cluster.now_ms >= window_end_ms && *budget > 0) end_window();
    cool_some(budget);
    for (struct hot *h; (h = TAILQ_FIRST(&plans)) != NULL && *budget > 0;) {
        --*budget;
        TAILQ_UNLINK(&plans, h, plan);
        if (!hot_plan(h) && cooling == 0)
            hot_free(h); /* while some cool, that is left to them: the count must hold */
    }
    return cooling > 0 || !TAILQ_EMPTY(&plans);
}

uint64_t heat_next_ms(uint64_t limit_ms) {
    if (cooling > 0 || !TAILQ_EMPTY(&plans)) return 0;
    if (top == NULL || (top->used == 0 && hots.count == 0)) return limit_ms;
    return window_end_ms <= cluster.now_ms ? 0 : min_u64(limit_ms, window_end_ms - cluster.now_ms);
}

void heat_config_changed(void) {
    bool on = cluster.config.hot_replicas > 1;
    if (on && top == NULL) {
        top = xcalloc(1, sizeof(*top));
        window_end_ms = cluster.now_ms + max_u64(cluster.config.hot_window_ms, 1);
    } else if (!on && top != NULL) {
        free(top);
        top = NULL;
        cooling = hots.count; /* all of them */
    }
}

void heat_init(void) {
    TAILQ_INIT(&all);
    TAILQ_INIT(&plans);
    cooling = 0;
}

void heat_deinit(void) {
    while (!TAILQ_EMPTY(&all)) hot_free(TAILQ_FIRST(&all));
    htab_free(&hots);
    free(top);
    top = NULL;
    cooling = 0;
}
