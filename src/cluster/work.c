/* What a node is asked to do, handed out when a heartbeat asks. Nothing is kept twice: the queues
 * are those of fences, tasks, unmounts and drops themselves, each with a bound of its own.
 *
 * What was handed out and never done (the connection broke) is planned anew when the node joins
 * again; only drops are not repeated: they save disk space and work after a restart, no more. */
#include "cluster/internal.h"

#include <stdlib.h>

#define STORES_PER_NODE 512u     /* handed out at a time */
#define DROPS_MAX       1000000u /* per far segment */

/* --- drops --- */

void drops_free(struct node_segment *g) {
    free(g->drops.ring);
    g->drops = (struct drop_queue){.ring = NULL};
}

static bool drops_grow(struct drop_queue *q) {
    if (q->n < q->cap) return true;
    if (q->cap >= DROPS_MAX) return false;
    size_t cap = q->cap > 0 ? min_u64(q->cap * 2, DROPS_MAX) : 64;
    struct cluster_drop *ring = xmalloc(cap * sizeof(*ring));
    for (size_t i = 0; i < q->n; i++) ring[i] = q->ring[(q->first + i) % q->cap];
    free(q->ring);
    *q = (struct drop_queue){.ring = ring, .cap = cap, .n = q->n};
    return true;
}

/* Called from inside the books. */
void cluster_on_far_gone(struct span key, uint64_t version, uint32_t segment, uint64_t offset) {
    struct node_segment *g = segment_at(segment);
    if (g == NULL || g->leaving) return;
    if (!drops_grow(&g->drops)) {
        g->drops_lost++;
        cluster.figures.drops_lost++;
        return;
    }
    struct drop_queue *q = &g->drops;
    q->ring[(q->first + q->n++) % q->cap] = (struct cluster_drop){version, offset};
    if (q->n == 1) node_wake(g->node);
}

/* Those that lie in one piece. */
static void take_drops(struct node_segment *g, struct cluster_work *w) {
    struct drop_queue *q = &g->drops;
    size_t n = min_u64(min_u64(q->n, q->cap - q->first), CLUSTER_DROPS_PER_ITEM);
    *w = (struct cluster_work){
        .kind = CLUSTER_WORK_DROP, .far = g->id, .drops = q->ring + q->first, .n_drops = n};
    q->first = (q->first + n) % q->cap;
    q->n -= n;
    cluster.figures.drops_sent += n;
}

static bool next_drops(struct cluster_node *n, struct cluster_work *w) {
    struct node_segment *g;
    TAILQ_FOREACH(g, &n->segments, of_node) {
        if (g->drops.n == 0 || g->leaving || g->join != n->joins) continue;
        take_drops(g, w);
        return true;
    }
    return false;
}

/* --- the rest --- */

static bool next_fence(struct cluster_node *n, struct cluster_work *w) {
    const struct fence *f = fence_send(n);
    if (f == NULL) return false;
    *w = (struct cluster_work){.kind = CLUSTER_WORK_FENCE, .session = f->session};
    return true;
}

static bool next_unmount(struct cluster_node *n, struct cluster_work *w) {
    struct unmount *u = STAILQ_TAKE(&n->unmounts, link);
    if (u == NULL) return false;
    *w = (struct cluster_work){.kind = CLUSTER_WORK_UNMOUNT, .segment = u->id, .epoch = u->epoch};
    free(u);
    return true;
}

static bool next_from(struct task_list *planned, struct cluster_work *w, unsigned *budget) {
    for (; *budget > 0 && planned->n > 0;) {
        --*budget;
        if (task_send(TAILQ_FIRST(&planned->all), w)) return true;
    }
    return false;
}

bool cluster_work_next(struct cluster_node *n, struct cluster_work *w, unsigned *budget) {
    if (*budget == 0) return false;
    --*budget;
    if (n->state == CLUSTER_NODE_LEFT) {
        if (n->leave_sent) return false;
        n->leave_sent = true;
        *w = (struct cluster_work){.kind = CLUSTER_WORK_LEAVE};
        return true;
    }
    if (next_fence(n, w) || task_next_cancel(n, w)) return true;
    if (n->state == CLUSTER_NODE_JOINING) return false; /* the rest is for those who are up */
    if (next_unmount(n, w)) return true;
    if (n->state != CLUSTER_NODE_UP) return false;
    if (n->sent_copies < cluster.config.tasks_per_node && next_from(&n->copies, w, budget))
        return true;
    if (n->sent_stores < STORES_PER_NODE && next_from(&n->stores, w, budget)) return true;
    return next_drops(n, w);
}
