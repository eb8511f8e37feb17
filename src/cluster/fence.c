/* Cutting writers off. The books ask for it once per session; every host that could hold a write of
 * that session is told, and only when the last one has confirmed do the books hear of it: no clock
 * stops a late one-sided write.
 *
 * A node that is down keeps its fences pending; it is not up again before it has confirmed them. A
 * node that is given up confirms by being gone: its segments are, too. */
#include "cluster/internal.h"

#include <stdlib.h>

#define FENCES_PER_NODE 65536u /* unconfirmed ones; beyond, the node is given up */

static bool fence_of_session(const struct htab_node *node, const void *key) {
    return CONTAINER_OF(node, const struct fence, node)->session == *(const uint64_t *)key;
}

void fences_init(void) {
    STAILQ_INIT(&cluster.fences_done);
}

static void fence_free(struct fence *f) {
    htab_remove(&cluster.fences, &f->node);
    free(f);
}

/* Without telling the books, which are going away. */
void fences_deinit(void) {
    for (struct fence *f; (f = STAILQ_TAKE(&cluster.fences_done, done)) != NULL;) fence_free(f);
    TARN_ASSERT(cluster.fences.count == 0);
    htab_free(&cluster.fences);
}

static void fence_confirm(struct fence *f) {
    TARN_ASSERT(f->left > 0);
    if (--f->left == 0) STAILQ_INSERT_TAIL(&cluster.fences_done, f, done);
}

static void fence_ask(struct cluster_node *n, struct fence *f) {
    struct fence_link *l = xcalloc(1, sizeof(*l));
    l->fence = f;
    l->join = n->joins;
    TAILQ_INSERT_TAIL(&n->fences_new, l, link);
    f->left++;
    if (++n->n_fences > FENCES_PER_NODE && !n->embedded && !n->hopeless) {
        n->hopeless = true;
        timer_set(&n->timer, cluster.now_ms); /* not now: this is called from inside the books */
    }
    node_wake(n);
}

const struct fence *fence_send(struct cluster_node *n) {
    struct fence_link *l = TAILQ_TAKE(&n->fences_new, link);
    if (l == NULL) return NULL;
    TAILQ_INSERT_TAIL(&n->fences_sent, l, link);
    return l->fence;
}

void cluster_on_fence(uint64_t session) {
    if (htab_find(&cluster.fences, hash_u64(session), fence_of_session, &session) != NULL) return;
    struct fence *f = xcalloc(1, sizeof(*f));
    f->session = session;
    f->left = 1; /* until all were asked */
    htab_insert(&cluster.fences, &f->node, hash_u64(session));
    cluster.figures.node_fences++;
    if (cluster.local.n_segments > 0 && cluster.ops.fence != NULL) fence_ask(&cluster.local, f);
    struct cluster_node *n;
    for (uint32_t at = 0; (n = cluster_node_next(&at)) != NULL;) {
        if (n->n_segments > 0) fence_ask(n, f);
    }
    fence_confirm(f);
    if (fence_send(&cluster.local) != NULL) cluster.ops.fence(cluster.ops.arg, session);
}

static void fence_confirmed_by(struct cluster_node *n, struct fence_list *list,
                               struct fence_link *l) {
    TAILQ_REMOVE(list, l, link);
    n->n_fences--;
    fence_confirm(l->fence);
    free(l);
}

/* Only what it was asked for counts. */
void cluster_node_fenced(struct cluster_node *n, uint64_t session) {
    struct fence_link *l;
    TAILQ_FOREACH(l, &n->fences_sent, link) {
        if (l->fence->session == session) return fence_confirmed_by(n, &n->fences_sent, l);
    }
}

void cluster_local_fenced(uint64_t session) {
    cluster_node_fenced(&cluster.local, session);
}

/* Its process may be another one now, which knows nothing of them. */
void fences_resend(struct cluster_node *n) {
    TAILQ_CONCAT(&n->fences_new, &n->fences_sent, link);
}

void fences_lost(struct cluster_node *n) {
    fences_resend(n);
    while (!TAILQ_EMPTY(&n->fences_new))
        fence_confirmed_by(n, &n->fences_new, TAILQ_FIRST(&n->fences_new));
}

static bool fences_any_before(const struct fence_list *list, uint64_t join) {
    const struct fence_link *l;
    TAILQ_FOREACH(l, list, link) {
        if (l->join < join) return true;
    }
    return false;
}

bool fences_before_join(const struct cluster_node *n) {
    return fences_any_before(&n->fences_sent, n->joins) ||
           fences_any_before(&n->fences_new, n->joins);
}

bool fences_background(unsigned *budget) {
    for (struct fence *f; (f = STAILQ_FIRST(&cluster.fences_done)) != NULL;) {
        if (*budget == 0) return true;
        --*budget;
        uint64_t session = f->session;
        STAILQ_REMOVE_HEAD(&cluster.fences_done, done);
        fence_free(f);
        store_session_fenced(cluster.store, session);
    }
    return false;
}
