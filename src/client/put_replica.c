/* Replicas of puts whose hosts fail: which ones a put can do without, and how it is tried again
 * elsewhere. */
#include "client/put.h"

/* --- failures --- */

void put_replica_failed(struct putting *p, size_t i, unsigned replica, tarn_status status) {
    struct put *u = &p->puts[i];
    u->failed |= UINT32_C(1) << replica;
    u->reason = status;
    p->b.ensured.any = false; /* its segment will be forgotten */
    if (status == TARN_EGRANT_EXPIRED && replica_lacks_grant(&u->place.replica[replica])) {
        u->needs_grant = true;
        lane_needs_grants(p->b.lane);
        return;
    }
    if (status == TARN_ETIMEOUT) COUNT(p->b.lane, timeouts, 1);
    /* also who refuses: others may not */
    replica_failed(p->b.lane, &u->place.replica[replica], status, status != TARN_EINVAL);
}

void put_again(struct putting *p, size_t i, tarn_status reason) {
    struct put *u = &p->puts[i];
    u->is.state = ITEM_WANTED;
    u->reason = reason;
    if (u->needs_grant && !u->loose) { /* that is no failure */
        u->revoke = true;
        u->last = false;
        return;
    }
    u->last = u->tries >= p->b.lane->client->options.retries;
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
        COUNT(p->b.lane, put_restarts, 1);
    }
}

/* --- before the first byte --- */

/* Replicas on hosts that were out of reach a moment ago are done without, if there are others. If
 * there are not, another place may be had: what has no name in AVOID yet has one now. */
static void pass_over(struct putting *p, size_t i) {
    struct put *u = &p->puts[i];
    uint32_t away = 0, alive = put_alive(u);
    for (unsigned r = 0; r < u->place.replicas; r++) {
        if (replica_is(p->b.lane, &u->place.replica[r], outage_listed)) away |= UINT32_C(1) << r;
    }
    if ((alive & ~away) != 0) {
        u->failed |= away;
    } else if (u->tries == 0 && p->b.lane->client->options.retries > 0) {
        put_again(p, i,
                  fail(TARN_ECLOSED,
                       "segment %s, which is to take the bytes, was out of reach a moment ago",
                       segment_name(p->b.lane, u->place.replica[0].parts[0].extent.segment)));
    }
}

tarn_status put_ensure(struct putting *p, size_t i) {
    struct put *u = &p->puts[i];
    for (unsigned r = 0; r < u->place.replicas; r++) {
        tarn_status status = batch_ensure(&p->b, &u->place.replica[r], true);
        if (status == TARN_OK) continue;
        if (p->b.lane->ctl.fd < 0) return status;
        put_replica_failed(p, i, r, status);
    }
    if (u->place.replicas > 0 && put_alive(u) == 0) {
        put_again(p, i, u->reason);
    } else if (outages_any(&p->b.lane->client->outages) && u->place.replicas > 0) {
        pass_over(p, i);
    }
    return TARN_OK;
}
