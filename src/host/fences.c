/* Fences: making sure that somebody can no longer write to this host's memory. The gate refuses
 * them first; then every listener is asked until it says that nobody of them is left. Three kinds:
 *
 *   a session               its writer has vanished in the middle of a put. The gate forgets it
 *                           when its grants are over
 *   before a master epoch   a failover: all that the old master let in
 *   a segment               ours: the memory is about to be served under another name (slots.c)
 *
 * A pool file has one more party: processes that had it from the host process before us, of whom
 * nobody told us who they are. They count as every session of the master epoch that was in force
 * then, until the last of them has let go. */
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>

#include "base/assert.h"
#include "base/log.h"
#include "host/host_internal.h"

#define STRANGERS_MS 100u /* how often we look whether they have gone: nothing tells */

static struct host_fence *fence_add(struct host *h, const struct transport_fence *what) {
    for (size_t i = 0; i < h->n_fences; i++) {
        if (transport_fence_same(&h->fences[i].what, what)) return &h->fences[i];
    }
    ARRAY_GROW(h->fences, h->n_fences, h->cap_fences);
    h->fences[h->n_fences] = (struct host_fence){.what = *what};
    (void)eventfd_write(h->kick_fd, 1);
    return &h->fences[h->n_fences++];
}

void host_fence(struct host *h, uint64_t session, uint64_t keep_ms) {
    MAGIC_CHECK(h, HOST_MAGIC);
    TARN_ASSERT(session != 0);
    struct host_fence *f = fence_add(
        h, &(struct transport_fence){.kind = TRANSPORT_FENCE_SESSION, .session = session});
    f->keep_ms = keep_ms;
    f->refused = host_gate_fence(&h->gate, session, keep_ms);
}

void host_fence_before(struct host *h, uint32_t master_epoch) {
    MAGIC_CHECK(h, HOST_MAGIC);
    fence_add(
        h, &(struct transport_fence){.kind = TRANSPORT_FENCE_BEFORE, .master_epoch = master_epoch});
}

void host_fence_slot(struct host *h, unsigned slot, uint32_t id) {
    struct host_slot *s = &h->gate.slots[slot];
    s->idle = false;
    s->ticket = ++h->last_ticket;
    struct transport_fence what = {
        .kind = TRANSPORT_FENCE_SEGMENT, .segment = id, .ticket = s->ticket};
    fence_add(h, &what)->slot = slot;
}

/* --- are they gone? --- */

static bool strangers_matter(const struct host *h, const struct transport_fence *what) {
    for (unsigned i = 0; i < h->gate.n_slots; i++) {
        const struct host_slot *s = &h->gate.slots[i];
        if (s->pool == NULL || s->discarded) continue;
        if (what->kind == TRANSPORT_FENCE_BEFORE &&
            pool_get_info(s->pool)->old_peers_epoch >= what->master_epoch) {
            continue;
        }
        if (pool_strangers(s->pool)) return true;
    }
    return false;
}

static void ask_paths(struct host *h, struct host_fence *f) {
    for (unsigned i = 0; i < h->n_paths; i++) {
        struct host_path *p = &h->paths[i];
        if ((f->paths_done & 1u << i) != 0) continue;
        if (p->listener == NULL || p->ops->listener_fence(p->listener, &f->what) == TARN_OK)
            f->paths_done |= 1u << i;
    }
}

static bool is_done(struct host *h, struct host_fence *f, bool *look_again_p) {
    /* First: what is refused from there on need not be looked for. */
    if (f->what.kind == TRANSPORT_FENCE_SESSION && !f->refused &&
        !(f->refused = host_gate_fence(&h->gate, f->what.session, f->keep_ms))) {
        *look_again_p = true;
        return false;
    }
    ask_paths(h, f);
    if (f->paths_done != (1u << h->n_paths) - 1) return false;
    if (f->what.kind == TRANSPORT_FENCE_SEGMENT) {
        struct host_slot *s = &h->gate.slots[f->slot];
        s->idle |= s->ticket == f->what.ticket; /* else there was another life since */
        return true;
    }
    if (!strangers_matter(h, &f->what)) return true;
    *look_again_p = true;
    return false;
}

/* For whoever serves our pool files after us. */
static void note_peers_epoch(struct host *h, uint32_t master_epoch) {
    for (unsigned i = 0; i < h->gate.n_slots; i++) {
        struct pool *p = h->gate.slots[i].pool;
        if (p != NULL && pool_header(p)->peers_epoch < master_epoch)
            pool_set_peers_epoch(p, master_epoch);
    }
}

static void fences_set_timer(struct host *h, bool on) {
    if (h->ticking == on) return;
    struct itimerspec every = {0};
    if (on) every.it_interval.tv_nsec = every.it_value.tv_nsec = (long)STRANGERS_MS * 1000000;
    TARN_ASSERT(timerfd_settime(h->timer_fd, 0, &every, NULL) == 0);
    h->ticking = on;
}

void host_report_fences(struct host *h) {
    bool look_again = false;
    for (size_t i = 0; i < h->n_fences;) {
        struct transport_fence what = h->fences[i].what;
        if (!is_done(h, &h->fences[i], &look_again)) {
            i++;
            continue;
        }
        h->fences[i] = h->fences[--h->n_fences];
        /* Last: the callback may fence others. */
        if (what.kind == TRANSPORT_FENCE_SESSION && h->config.fenced != NULL)
            h->config.fenced(h->config.arg, what.session);
        if (what.kind == TRANSPORT_FENCE_BEFORE) {
            note_peers_epoch(h, what.master_epoch);
            if (h->config.fenced_before != NULL)
                h->config.fenced_before(h->config.arg, what.master_epoch);
        }
    }
    fences_set_timer(h, look_again);
}

uint64_t host_fences_pending(const struct host *h) {
    uint64_t n = 0;
    for (size_t i = 0; i < h->n_fences; i++) n += h->fences[i].what.kind != TRANSPORT_FENCE_SEGMENT;
    return n;
}
