/* Which replica of a value is read: the nearest one, unless its host has just been found out of
 * reach. And what comes next when one fails: the others under the same lease, then a new
 * look-up. */
#include <inttypes.h>

#include "base/log.h"
#include "client/get.h"

static uint32_t bit(unsigned replica) {
    return UINT32_C(1) << replica;
}

/* Does this status say that the host cannot be reached, or makes no sense? */
static bool is_outage(tarn_status status) {
    return status == TARN_ECLOSED || status == TARN_ETIMEOUT || status == TARN_EIO ||
           status == TARN_ELIMIT || status == TARN_EPROTO || status == TARN_ENOTFOUND;
}

/* --- choosing --- */

static bool any_segment(struct lane *lane, const struct replica *r,
                        bool (*is)(struct lane *lane, uint32_t segment)) {
    for (size_t i = 0; i < r->n_parts; i++) {
        if (is(lane, r->parts[i].extent.segment)) return true;
    }
    return false;
}

/* The first that has not failed; those on hosts in outage only when there is nothing else.
 * replicas: none. */
static unsigned pick(struct getting *g, const struct want *w) {
    const struct placement *p = &w->place;
    unsigned last_resort = p->replicas;
    for (unsigned r = 0; r < p->replicas; r++) {
        if (w->given_up & bit(r)) continue;
        if (!any_segment(g->lane, &p->replica[r], outage_probe)) return r;
        if (last_resort == p->replicas) last_resort = r;
    }
    return last_resort;
}

static bool choose(struct getting *g, struct want *w) {
    w->chosen = outages_changes(&g->lane->client->outages);
    unsigned r = pick(g, w);
    if (r == w->place.replicas) return false;
    w->place.at = r;
    return true;
}

void get_replica_refresh(struct getting *g, size_t i) {
    struct want *w = &g->wants[i];
    struct outages *o = &g->lane->client->outages;
    if (w->place.replicas == 1 || w->chosen == outages_changes(o)) return;
    unsigned before = w->place.at;
    if (!any_segment(g->lane, get_replica(w), outage_listed)) return;
    choose(g, w);
    if (w->place.at != before) COUNT(g->lane, failovers, 1);
}

static bool has_alternative(struct getting *g, const struct want *w) {
    for (unsigned r = 0; r < w->place.replicas; r++) {
        if (r == w->place.at || (w->given_up & bit(r))) continue;
        if (!any_segment(g->lane, &w->place.replica[r], outage_listed)) return true;
    }
    return false;
}

/* The last one is waited for, though not as long as a lease lasts; but not again and again when its
 * host has just been out of reach: should it be back, it answers at once. */
void get_replica_bound(struct getting *g, size_t i, struct engine_op *op) {
    const struct want *w = &g->wants[i];
    uint64_t failover_ms = g->lane->client->options.failover_ms;
    if (has_alternative(g, w)) {
        op->patience_ms = failover_ms;
    } else if (any_segment(g->lane, get_replica(w), outage_listed)) {
        op->patience_ms = failover_ms / 8 + 1;
    } else {
        op->patience_ms = 3 * failover_ms;
        op->sole = true;
    }
}

/* --- segments --- */

static tarn_status ensure_parts(struct getting *g, const struct replica *r) {
    tarn_status status = TARN_OK;
    for (size_t i = 0; i < r->n_parts && status == TARN_OK; i++) {
        const struct grant_extent *e = &r->parts[i].extent;
        status = segment_ensure(g->lane, e->segment, e->segment_epoch, false, g->deadline);
    }
    return status;
}

/* We looked again because of w->why, and there is nothing but the host that this very call has
 * found out of reach. */
static bool just_failed(struct getting *g, const struct want *w) {
    if (w->tries == 0 || !is_outage(w->why)) return false;
    const struct replica *r = get_replica(w);
    for (size_t i = 0; i < r->n_parts; i++) {
        if (outage_noted(g->lane, r->parts[i].extent.segment, g->began_ms)) return true;
    }
    return false;
}

/* A replica in a file has no segment that clients see. */
static tarn_status fail_read(struct getting *g, const struct replica *r, tarn_status status) {
    const char *name = r->n_parts > 0 ? segment_name(g->lane, r->parts[0].extent.segment) : r->path;
    const char *kind = r->n_parts > 0 ? "segment" : "file";
    if (status == TARN_ESTALE || status == TARN_ENOSEGMENT)
        return fail(status, "the content of %s %s was replaced meanwhile", kind, name);
    if (status == TARN_EPERM)
        return fail(status, "the host of %s %s refused to serve the bytes (see its log)", kind,
                    name);
    return fail(status, "reading from %s %s failed: %s%s", kind, name, tarn_status_text(status),
                lane_hint(g->lane));
}

/* All of them, not only the one that will be read: later there may be an answer on its way, and no
 * time to ask. */
tarn_status get_replica_ensure(struct getting *g, size_t i) {
    struct want *w = &g->wants[i];
    tarn_status why = TARN_OK;
    for (unsigned r = 0; r < w->place.replicas; r++) {
        tarn_status status = ensure_parts(g, &w->place.replica[r]);
        if (status == TARN_OK) continue;
        if (g->lane->ctl.fd < 0) return status;
        if (status == TARN_ESTALE) COUNT(g->lane, epoch_misses, 1);
        w->given_up |= bit(r);
        why = status;
    }
    if (!choose(g, w)) {
        get_again(g, i, why, 1);
    } else if (just_failed(g, w)) {
        get_finish(g, i, fail_read(g, get_replica(w), w->why));
    }
    return TARN_OK;
}

static void forget_segments(struct getting *g, const struct replica *r) {
    for (size_t i = 0; i < r->n_parts; i++) segment_forget(g->lane, r->parts[i].extent.segment);
}

/* --- failures --- */

/* true: the item goes on there. */
static bool turn_to_next(struct getting *g, size_t i) {
    struct want *w = &g->wants[i];
    w->given_up |= bit(w->place.at);
    if (!choose(g, w)) return false;
    g->turns++;
    COUNT(g->lane, failovers, 1);
    return true;
}

static void report(struct getting *g, size_t i) {
    const tarn_item *item = &g->items[i];
    if (!g->wants[i].reported) lane_report(g->lane, item->key, item->key_len, item->version);
    g->wants[i].reported = true;
}

void get_replica_failed(struct getting *g, size_t i, tarn_status status) {
    struct want *w = &g->wants[i];
    const struct replica *r = get_replica(w);
    fail_read(g, r, status);
    if (status == TARN_ESTALE || status == TARN_ENOSEGMENT) COUNT(g->lane, epoch_misses, 1);
    if (is_outage(status) || status == TARN_EPERM) {
        for (size_t k = 0; k < r->n_parts; k++) outage_note(g->lane, r->parts[k].extent.segment);
    }
    /* its host, or its directory, is there and it is not */
    if (status == TARN_ENOTFOUND) report(g, i);
    forget_segments(g, r); /* the host may be back at another address */
    w->why = status;
    if (turn_to_next(g, i)) return;
    if (status == TARN_EPERM) g->new_session = true;
    get_again(g, i, status, 1);
}

void get_replica_worked(struct getting *g, size_t i) {
    if (!outages_any(&g->lane->client->outages)) return;
    const struct replica *r = get_replica(&g->wants[i]);
    for (size_t k = 0; k < r->n_parts; k++) outage_over(g->lane, r->parts[k].extent.segment);
}

static void log_mismatch(const tarn_item *item) {
    struct buf quoted = {0};
    buf_append_quoted(&quoted, span_of(item->key, item->key_len));
    log_warning("%.*s version %" PRIu64 ": the bytes do not match their CRC; treated as lost",
                (int)quoted.len, quoted.data, item->version);
    buf_free(&quoted);
}

void get_replica_bad(struct getting *g, size_t i) {
    struct want *w = &g->wants[i];
    log_mismatch(&g->items[i]);
    COUNT(g->lane, crc_mismatches, 1);
    w->mismatches++;
    bool first = w->mismatches == 1;
    if (w->place.replicas > 1 || !first) report(g, i);
    /* Of several that have contributed any may be the bad one: the present one has to do it
     * alone. */
    bool mixed = w->check == CHECK_WHOLE && (w->sources & ~bit(w->place.at)) != 0;
    if (w->check == CHECK_WHOLE) {
        w->pos = w->from;
        w->crc = 0;
        w->sources = 0;
    }
    fail(TARN_ECORRUPT, "the bytes do not match their CRC");
    bool enough = w->mismatches > w->place.replicas + 1;
    if (mixed && !enough) {
        g->turns++;
    } else if (enough || !turn_to_next(g, i)) {
        w->prepared = false;
        get_again(g, i, TARN_ECORRUPT, first ? 1 : 0);
    }
}
