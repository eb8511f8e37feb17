/* Cutting writers off. The books ask for it once per session; every host that could hold a write of
 * that session is told, and only when the last one has confirmed do the books hear of it: no clock
 * stops a late one-sided write.
 *
 * A node that is down keeps its fences pending; it is not up again before it has confirmed them. A
 * node that is given up confirms by being gone: its segments are, too. */
#include "cluster/internal.h"

#include <stdlib.h>

#define FENCES_PER_NODE 65536u /* unconfirmed ones; beyond, the node is given up */

static bool same_session(const struct htab_node *node, const void *key) {
    return CONTAINER_OF(node, const struct fence, node)->session == *(const uint64_t *)key;
}

void fences_init(void) {
    htab_init(&cluster.fences);
    list_init(&cluster.fences_done);
}

static void fence_free(struct fence *f) {
    htab_remove(&cluster.fences, &f->node);
    free(f);
}

/* Without telling the books, which are going away. */
void fences_deinit(void) {
    for (struct link *k; (k = list_first(&cluster.fences_done)) != NULL;) {
        list_remove(&cluster.fences_done, k);
        fence_free(CONTAINER_OF(k, struct fence, done));
    }
    TARN_ASSERT(cluster.fences.count == 0);
    htab_free(&cluster.fences);
}

static void confirm(struct fence *f) {
    TARN_ASSERT(f->left > 0);
    if (--f->left == 0) list_add(&cluster.fences_done, &f->done);
}

static void ask(struct cluster_node *n, struct fence *f) {
    struct fence_link *l = xcalloc(1, sizeof(*l));
    l->fence = f;
    l->join = n->joins;
    list_add(&n->fences_new, &l->link);
    f->left++;
    if (n->fences_new.n + n->fences_sent.n > FENCES_PER_NODE && !n->embedded && !n->hopeless) {
        n->hopeless = true;
        timer_set(&n->timer, cluster.now_ms); /* not now: this is called from inside the books */
    }
    node_wake(n);
}

void cluster_on_fence(uint64_t session) {
    if (htab_find(&cluster.fences, hash_u64(session), same_session, &session) != NULL) return;
    struct fence *f = xcalloc(1, sizeof(*f));
    f->session = session;
    f->left = 1; /* until all were asked */
    htab_insert(&cluster.fences, &f->node, hash_u64(session));
    cluster.figures.node_fences++;
    if (cluster.local.segments.n > 0 && cluster.ops.fence != NULL) ask(&cluster.local, f);
    struct cluster_node *n;
    for (uint32_t at = 0; (n = cluster_node_next(&at)) != NULL;) {
        if (n->segments.n > 0) ask(n, f);
    }
    confirm(f);
    if (cluster.local.fences_new.n > 0) {
        struct link *k = list_first(&cluster.local.fences_new);
        list_remove(&cluster.local.fences_new, k);
        list_add(&cluster.local.fences_sent, k);
        cluster.ops.fence(cluster.ops.arg, session);
    }
}

static bool confirm_in(struct list *list, uint64_t session) {
    for (struct link *k = list_first(list); k != NULL; k = list_next(list, k)) {
        struct fence_link *l = CONTAINER_OF(k, struct fence_link, link);
        if (l->fence->session != session) continue;
        list_remove(list, k);
        confirm(l->fence);
        free(l);
        return true;
    }
    return false;
}

/* Only what it was asked for counts. */
void cluster_node_fenced(struct cluster_node *c, uint64_t session) {
    confirm_in(&c->fences_sent, session);
}

void cluster_local_fenced(uint64_t session) {
    confirm_in(&cluster.local.fences_sent, session);
}

/* Its process may be another one now, which knows nothing of them. */
void fences_resend(struct cluster_node *n) {
    for (struct link *k; (k = list_first(&n->fences_sent)) != NULL;) {
        list_remove(&n->fences_sent, k);
        list_add(&n->fences_new, k);
    }
}

void fences_lost(struct cluster_node *n) {
    fences_resend(n);
    for (struct link *k; (k = list_first(&n->fences_new)) != NULL;) {
        struct fence_link *l = CONTAINER_OF(k, struct fence_link, link);
        list_remove(&n->fences_new, k);
        confirm(l->fence);
        free(l);
    }
}

static bool any_before(const struct list *list, uint64_t join) {
    for (struct link *k = list_first(list); k != NULL; k = list_next(list, k))
        if (CONTAINER_OF(k, const struct fence_link, link)->join < join) return true;
    return false;
}

bool fences_before_join(const struct cluster_node *n) {
    return any_before(&n->fences_sent, n->joins) || any_before(&n->fences_new, n->joins);
}

bool fences_background(unsigned *budget) {
    for (struct link *k; (k = list_first(&cluster.fences_done)) != NULL;) {
        if (*budget == 0) return true;
        --*budget;
        struct fence *f = CONTAINER_OF(k, struct fence, done);
        uint64_t session = f->session;
        list_remove(&cluster.fences_done, k);
        fence_free(f);
        store_session_fenced(cluster.store, session);
    }
    return false;
}
