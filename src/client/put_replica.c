/* Replicas of puts whose hosts fail: which ones a put can do without, and how it is tried again
 * elsewhere. */
#include "client/put.h"

uint32_t put_alive(const struct put *u) {
    uint64_t all = (UINT64_C(1) << u->place.replicas) - 1;
    return (uint32_t)all & ~u->failed;
}

/* --- failures --- */

void put_replica_failed(struct putting *p, size_t i, unsigned replica, tarn_status status) {
    struct put *u = &p->puts[i];
    const struct replica *r = &u->place.replica[replica];
    u->failed |= UINT32_C(1) << replica;
    u->reason = status;
    if (status == TARN_ESTALE || status == TARN_ENOSEGMENT) COUNT(p->lane, epoch_misses, 1);
    if (status == TARN_ETIMEOUT) COUNT(p->lane, timeouts, 1);
    for (size_t k = 0; k < r->n_parts; k++) {
        uint32_t segment = r->parts[k].extent.segment;
        /* also who refuses: others may not */
        if (status != TARN_EINVAL) outage_note(p->lane, segment);
        segment_forget(p->lane, segment); /* the host may be back, at another address */
    }
}

void put_again(struct putting *p, size_t i, tarn_status reason) {
    struct put *u = &p->puts[i];
    u->state = PUT_WANTED;
    u->reason = reason;
    u->last = u->tries >= p->lane->client->options.retries;
    u->tries++;
    if (p->most_tries < u->tries) p->most_tries = u->tries;
    if (!u->loose) {
        u->revoke = true;
        p->new_session |= reason == TARN_EPERM; /* the host may have cut this one off */
        return;
    }
    p->new_session = true;
    u->instead = u->place.token;
    if (u->last) {
        put_finish(p, i, reason);
    } else {
        COUNT(p->lane, put_restarts, 1);
    }
}

/* --- before the first byte --- */

static tarn_status ensure_replica(struct putting *p, const struct replica *r) {
    tarn_status status = TARN_OK;
    for (size_t k = 0; k < r->n_parts && status == TARN_OK; k++) {
        const struct grant_extent *e = &r->parts[k].extent;
        status = segment_ensure(p->lane, e->segment, e->segment_epoch, true, p->deadline);
    }
    return status;
}

static bool is_away(struct putting *p, const struct replica *r) {
    for (size_t k = 0; k < r->n_parts; k++) {
        if (outage_listed(p->lane, r->parts[k].extent.segment)) return true;
    }
    return false;
}

/* Replicas on hosts that were out of reach a moment ago are done without, if there are others. If
 * there are not, another place may be had: what has no name in AVOID yet has one now. */
static void pass_over(struct putting *p, size_t i) {
    struct put *u = &p->puts[i];
    uint32_t away = 0, alive = put_alive(u);
    for (unsigned r = 0; r < u->place.replicas; r++) {
        if (is_away(p, &u->place.replica[r])) away |= UINT32_C(1) << r;
    }
    if ((alive & ~away) != 0) {
        u->failed |= away;
    } else if (u->tries == 0 && p->lane->client->options.retries > 0) {
        put_again(p, i,
                  fail(TARN_ECLOSED,
                       "segment %s, which is to take the bytes, was out of reach a moment ago",
                       segment_name(p->lane, u->place.replica[0].parts[0].extent.segment)));
    }
}

tarn_status put_ensure(struct putting *p, size_t i) {
    struct put *u = &p->puts[i];
    for (unsigned r = 0; r < u->place.replicas; r++) {
        tarn_status status = ensure_replica(p, &u->place.replica[r]);
        if (status == TARN_OK) continue;
        if (p->lane->ctl.fd < 0) return status;
        put_replica_failed(p, i, r, status);
    }
    if (u->place.replicas > 0 && put_alive(u) == 0) {
        put_again(p, i, u->reason);
    } else if (outages_any(&p->lane->client->outages) && u->place.replicas > 0) {
        pass_over(p, i);
    }
    return TARN_OK;
}
