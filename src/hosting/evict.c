/* A slow tier that is nearly full lets go of a part of what it holds:
 *
 *   tier_weigh ─> NODE WEIGH (some entries of a part that could go) ─> tier_weighed
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
    entries_add(arg, &named);
}

/* --- what the parts are worth --- */

static void weigh_told(struct tarn_host *h, const struct answer *a, void *arg, uint64_t sent_ms) {
    struct hosting_far *f = arg;
    uint64_t ticket = f->weighing;
    f->weighing = 0;
    if (a == NULL || ticket == 0 || far_tier(f) == NULL) return;
    double loss = 0;
    size_t known = 0;
    for (size_t i = 0; a->type == ANSWER_ARRAY && i < a->len; i++) {
        const struct answer *one = answer_at(a, i);
        if (one->type != ANSWER_INTEGER || one->integer < 0) continue;
        loss += (double)one->integer;
        known++;
    }
    /* a master that knows no such command says so each time */
    tier_weighed(f->tier, ticket, known > 0 ? loss / (double)known : -1);
}

static void weigh_ask(struct hosting_far *f, const struct buf *entries) {
    struct tarn_host *h = f->host;
    struct hosting_link *l = &h->reports;
    struct wire_node node = link_node(h, l);
    node.segment = f->segment->id;
    node.keys.at = request_next(&l->request);
    for (size_t at = 0; at < entries->len; node.keys.n++) {
        const char *key;
        struct far_entry entry = entries_next(entries, &at, &key);
        request_word(&l->request, key, entry.key_len);
        request_number(&l->request, (int64_t)entry.version);
    }
    link_send(h, l, WIRE_node_weigh, &node, weigh_told, f);
}

/* true: the master is asked, and what goes depends on the answer. */
static bool evictions_weigh(struct hosting_far *f) {
    struct buf entries = {0};
    if (f->weighing == 0 && link_room(&f->host->reports) > 0 &&
        (f->weighing = tier_weigh(f->tier, eviction_collect, &entries)) != 0)
        weigh_ask(f, &entries);
    buf_free(&entries);
    return f->weighing != 0;
}

/* --- what goes --- */

static void evictions_take(struct hosting_far *f) {
    while (f->n_evictions < EVICTIONS_MAX) {
        struct eviction *e = xcalloc(1, sizeof(*e));
        e->ticket = tier_poll_evict(f->tier, eviction_collect, &e->entries);
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
    /* What is being offered must not be evicted in the same breath: the offer might come last. */
    bool may_tell =
        seg->mounted && session_joined(&h->session) && !f->offering.active && !f->offering.needed;
    if (!may_tell || !evictions_weigh(f)) evictions_take(f);
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
    f->weighing = 0;
}
