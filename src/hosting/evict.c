/* A slow tier that is nearly full lets go of a part of what it holds:
 *
 *   tier_poll_evict ─> NODE EVICTED (in batches) ─> the master hands out no new lease
 *     ─> those there are end ─> tier_evicted
 *
 * While the master is away the parts wait. One that knows nothing of this tier is offered all that
 * is on disk, and is told of the parts after that, from the start. */
#include <stdlib.h>

#include "base/assert.h"
#include "base/log.h"
#include "client/answer.h"
#include "client/client.h"
#include "hosting/hosting.h"

#define EVICTED_BATCH   500u
#define LEASE_MARGIN_MS 1000u

static void eviction_collect(void *arg, const struct tier_item *item) {
    struct tier_item named = {.key = item->key, .version = item->version};
    entries_add(&((struct eviction *)arg)->entries, &named);
}

static void evictions_take(struct hosting_far *f) {
    while (f->n_evictions < EVICTIONS_MAX) {
        struct eviction *e = xcalloc(1, sizeof(*e));
        e->ticket = tier_poll_evict(f->tier, eviction_collect, e);
        if (e->ticket == 0) {
            buf_free(&e->entries);
            free(e);
            return;
        }
        TAILQ_INSERT_TAIL(&f->evictions, e, link);
        f->n_evictions++;
    }
}

static void eviction_wait(struct hosting_far *f, struct eviction *e) {
    e->wait_until = add_sat(now_ms(), add_sat(f->host->session.max_lease_ms, LEASE_MARGIN_MS));
}

static void eviction_told(struct tarn_host *h, const struct answer *a, void *arg,
                          uint64_t sent_ms) {
    struct hosting_far *f = arg;
    struct eviction *e = f->telling;
    f->telling = NULL;
    if (e == NULL) return; /* freed meanwhile */
    /* of a segment that the master does not know it need not know */
    if (!answer_is(a, TARN_ENOSEGMENT) && !session_accepts(h, a, "NODE EVICTED")) return;
    e->told += f->telling_bytes;
    if (e->told == e->entries.len) eviction_wait(f, e);
}

static void eviction_tell(struct hosting_far *f, struct eviction *e) {
    struct tarn_host *h = f->host;
    struct hosting_link *l = &h->reports;
    struct wire_node node = link_node(h, l);
    size_t at = e->told;
    node.segment = f->segment->id;
    node.keys.at = request_next(&l->request);
    for (; at < e->entries.len && node.keys.n < EVICTED_BATCH; node.keys.n++) {
        const char *key;
        struct far_entry entry = entries_next(&e->entries, &at, &key);
        request_word(&l->request, key, entry.key_len);
        request_number(&l->request, (int64_t)entry.version);
    }
    f->telling = e;
    f->telling_bytes = at - e->told;
    link_send(h, l, WIRE_node_evicted, &node, eviction_told, f);
}

static void eviction_free(struct hosting_far *f, struct eviction *e) {
    TAILQ_REMOVE(&f->evictions, e, link);
    f->n_evictions--;
    buf_free(&e->entries);
    free(e);
}

void evict_turn(struct hosting_far *f) {
    struct tarn_host *h = f->host;
    const struct hosted *seg = f->segment;
    evictions_take(f);
    /* What is being offered must not be evicted in the same breath: the offer might come last. */
    bool may_tell =
        seg->mounted && session_joined(&h->session) && !f->offering.active && !f->offering.needed;
    struct eviction *e, *next;
    TAILQ_FOREACH_SAFE(e, &f->evictions, link, next) {
        if (e->wait_until == 0 && (e->entries.len == 0 || seg->gone)) eviction_wait(f, e);
        if (e->wait_until != 0 && now_ms() >= e->wait_until) {
            tier_evicted(f->tier, e->ticket);
            eviction_free(f, e);
        } else if (e->wait_until != 0) {
            hosting_wake_at(h, e->wait_until);
        } else if (may_tell && f->telling == NULL && link_room(&h->reports) > 0) {
            eviction_tell(f, e);
        }
    }
}

void evict_restart(struct hosting_far *f) {
    TARN_ASSERT(f->telling == NULL);
    struct eviction *e;
    TAILQ_FOREACH(e, &f->evictions, link) {
        e->told = 0;
        e->wait_until = 0;
    }
}

void evict_free(struct hosting_far *f) {
    while (!TAILQ_EMPTY(&f->evictions)) eviction_free(f, TAILQ_FIRST(&f->evictions));
    f->telling = NULL;
}
