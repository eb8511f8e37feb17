/* Emptying a segment: what is only there is moved, what can be read elsewhere, too, is dropped.
 *
 * A drain makes passes over the segment. It stands still while it has tasks enough, and before a
 * new pass it waits for those of the last one. Objects that come behind a pass' back (puts that
 * were open, copies under way), and those for which there was no room, are found by the next. Only
 * when the segment is empty it leaves; so a drain loses nothing, and may take for ever where there
 * is no room: it says why. */
#include "cluster/internal.h"

#include <stdlib.h>
#include "base/log.h"

#define TASKS_PER_DRAIN 64u   /* under way */
#define PASS_AGAIN_MS   1000u /* after a pass that got nowhere */
#define WAIT_MS         50u   /* for what is under way */

void drain_begin(struct node_segment *g) {
    if (g->drain != NULL || g->leaving) return;
    struct drain *d = xcalloc(1, sizeof(*d));
    d->segment = g;
    d->due_ms = cluster.now_ms;
    d->rested = true;
    progress_log(&d->progress, "Draining segment %s", g->name);
    g->drain = d;
    g->drained = false;
    TAILQ_INSERT_TAIL(&cluster.drains, d, link);
}

static void drain_free(struct drain *d) {
    if (d->walk != NULL) store_walk_end(cluster.store, &d->walk);
    TAILQ_REMOVE(&cluster.drains, d, link);
    d->segment->drain = NULL;
    free(d);
}

/* What is under way ends as it may. */
void drain_stop(struct node_segment *g) {
    if (g->drain != NULL) drain_free(g->drain);
}

void drains_deinit(void) {
    while (!TAILQ_EMPTY(&cluster.drains)) drain_free(TAILQ_FIRST(&cluster.drains));
}

/* Another replica that can be read and is to stay. */
static bool safe_elsewhere(const struct object *o, const struct node_segment *here) {
    struct store_layout layout;
    store_object_layout(cluster.store, o, &layout);
    for (uint32_t i = 0; i < layout.replicas; i++) {
        const struct store_replica *r = &layout.replica[i];
        if (r->extents == 0) continue;
        const struct node_segment *g = segment_at(r->extent[0].segment);
        if (g != NULL && g != here && segment_stays(g)) return true;
    }
    return false;
}

static void drain_settled(struct drain *d, uint64_t size) {
    d->settled++;
    d->objects++;
    d->bytes += size;
    cluster.figures.drained_objects++;
    cluster.figures.drained_bytes += size;
}

static void drain_visit(void *arg, struct object *o) {
    struct drain *d = arg;
    uint64_t size = store_object_size(cluster.store, o);
    if (safe_elsewhere(o, d->segment)) {
        if (store_replica_drop(cluster.store, o, d->segment->id, false) == TARN_OK) {
            drain_settled(d, size);
            cluster.figures.drain_dropped++;
        }
        return;
    }
    struct cluster_task *t;
    if (task_create(CLUSTER_TASK_MOVE, CLUSTER_BY_DRAIN, o, d->segment->id, STORE_SEGMENT_ANY,
                    &t) == TARN_OK)
        d->pending++;
}

void drain_task_ended(struct cluster_task *t, tarn_status status) {
    struct node_segment *g = segment_at(t->from);
    if (g == NULL || g->epoch != t->from_epoch || g->drain == NULL) return;
    struct drain *d = g->drain;
    /* 0: it belongs to a drain that was canceled and begun again */
    if (d->pending > 0) d->pending--;
    if (d->pending < TASKS_PER_DRAIN / 2 && d->walk != NULL) d->due_ms = cluster.now_ms;
    if (status == TARN_OK)
        drain_settled(d, t->size);
    else if (status != TARN_ENOTFOUND && status != TARN_EEXISTS)
        d->error = status;
}

/* Nothing in it that anybody could still read or write. Drops of a far segment are to be sent
 * first. */
static bool drain_is_empty(const struct node_segment *g) {
    struct store_segment_info info;
    return store_segment_get(cluster.store, g->id, &info) && info.replicas == 0 && info.used == 0 &&
           g->drops.n == 0;
}

static void drain_finish(struct drain *d) {
    struct node_segment *g = d->segment;
    log_notice("Segment %s is drained: %llu objects, %llu bytes", g->name,
               (unsigned long long)d->objects, (unsigned long long)d->bytes);
    drain_free(d);
    if (g->node->embedded) {
        g->drained = true;
        effect_node_segment(g);
        return;
    }
    segment_leave(g);
}

static void drain_pass(struct drain *d) {
    d->walk = store_walk_begin(cluster.store, d->segment->id);
    if (d->walk == NULL) d->due_ms = cluster.now_ms + WAIT_MS; /* too many at a time */
    d->settled = 0;
    d->rested = false;
}

/* The last pass got nowhere: there is no room, or what is left has to end by itself. */
static void drain_rest(struct drain *d) {
    d->rested = true;
    d->due_ms = cluster.now_ms + PASS_AGAIN_MS;
}

static void drain_say(struct drain *d) {
    struct store_segment_info info;
    if (!store_segment_get(cluster.store, d->segment->id, &info)) return;
    progress_say(&d->progress, d->bytes, d->bytes + info.used,
                 "%llu objects and %llu MiB are left%s%s", (unsigned long long)info.replicas,
                 (unsigned long long)(info.used >> 20),
                 d->error != TARN_OK ? ", the last that could not be moved: " : "",
                 d->error != TARN_OK ? tarn_status_text(d->error) : "");
}

/* true: it is over, and d is gone. */
static bool drain_step(struct drain *d, unsigned *budget) {
    drain_say(d);
    if (!d->segment->node->serving) {
        d->due_ms = cluster.now_ms + PASS_AGAIN_MS;
    } else if (d->pending >= (d->walk != NULL ? TASKS_PER_DRAIN : 1)) {
        d->due_ms = cluster.now_ms + WAIT_MS;
    } else if (d->walk != NULL) {
        unsigned share = (unsigned)min_u64(*budget, TASKS_PER_DRAIN - d->pending), left = share;
        bool over = store_walk_step(cluster.store, d->walk, drain_visit, d, &left);
        *budget -= share - left;
        if (over) store_walk_end(cluster.store, &d->walk);
    } else if (drain_is_empty(d->segment)) {
        drain_finish(d);
        return true;
    } else if (d->settled == 0 && !d->rested) {
        drain_rest(d);
    } else {
        drain_pass(d);
    }
    return false;
}

/* Each in turn gets a small share; the first that got one moves to the end. */
bool drains_background(unsigned *budget) {
    bool more = false;
    struct drain *d, *last = TAILQ_LAST(&cluster.drains, drain_heads);
    for (bool over = last == NULL; !over && *budget > 0;) {
        d = TAILQ_FIRST(&cluster.drains);
        TAILQ_REMOVE(&cluster.drains, d, link);
        TAILQ_INSERT_TAIL(&cluster.drains, d, link);
        --*budget;
        over = d == last;
        if (d->due_ms <= cluster.now_ms)
            more |= !drain_step(d, budget) && d->due_ms <= cluster.now_ms;
    }
    return more || (*budget == 0 && !TAILQ_EMPTY(&cluster.drains));
}

uint64_t drains_next_ms(uint64_t limit_ms) {
    const struct drain *d;
    TAILQ_FOREACH(d, &cluster.drains, link) {
        limit_ms = d->due_ms <= cluster.now_ms ? 0 : min_u64(limit_ms, d->due_ms - cluster.now_ms);
    }
    return limit_ms;
}
