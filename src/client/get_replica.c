/* Which replica of a value is read: the nearest one, unless its host has just been found out of
 * reach. And what comes next when one fails: the others under the same lease, then a new
 * look-up. */
#include <inttypes.h>

#include "base/log.h"
#include "client/get.h"

/* Does this status say that the host cannot be reached, or makes no sense? */
static bool is_outage(tarn_status status) {
    return status == TARN_ECLOSED || status == TARN_ETIMEOUT || status == TARN_EIO ||
           status == TARN_ELIMIT || status == TARN_EPROTO || status == TARN_ENOTFOUND;
}

/* --- choosing --- */

/* What placed_avoid_fn is asked with. */
struct replica_look {
    struct lane *lane;
    const struct placed_replica *replica;
    bool (*is)(struct lane *lane, uint32_t segment);
};

static bool looks_like(void *arg, unsigned replica) {
    const struct replica_look *look = arg;
    return replica_is(look->lane, &look->replica[replica], look->is);
}

/* NULL: no host is out of reach, and there is nothing to look at. */
static placed_avoid_fn replica_avoided(const struct getting *g) {
    return outages_any(&g->b.lane->client->outages) ? looks_like : NULL;
}

static bool choose_replica(struct getting *g, struct want *w) {
    if (placed_read_choose_sole(&w->read, w->place.replicas)) return true;
    struct replica_look look = {g->b.lane, w->place.replica, outage_probe};
    w->chosen = outages_changes(&g->b.lane->client->outages);
    return placed_read_choose(&w->read, placed_in_order, w->place.replicas, replica_avoided(g),
                              &look) < w->place.replicas;
}

void get_replica_refresh(struct getting *g, size_t i) {
    struct want *w = &g->wants[i];
    if (w->chosen == outages_changes(&g->b.lane->client->outages)) return;
    unsigned before = w->read.at;
    choose_replica(g, w);
    if (w->read.at != before) COUNT(g->b.lane, failovers, 1);
}

static bool has_other(const struct getting *g, const struct want *w) {
    struct replica_look look = {g->b.lane, w->place.replica, outage_listed};
    return placed_read_has_other(&w->read, placed_in_order, w->place.replicas, replica_avoided(g),
                                 &look);
}

/* The last one is waited for, though not as long as a lease lasts; but not again and again when its
 * host has just been out of reach: should it be back, it answers at once. */
void get_replica_bound(struct getting *g, size_t i, struct engine_op *op) {
    const struct want *w = &g->wants[i];
    uint64_t failover_ms = g->b.lane->client->options.failover_ms;
    if (w->place.replicas > 1 && has_other(g, w)) {
        op->patience_ms = failover_ms;
    } else if (replica_avoided(g) != NULL && replica_is(g->b.lane, get_replica(w), outage_listed)) {
        op->patience_ms = failover_ms / 8 + 1;
    } else {
        get_replica_bound_last(g, op);
    }
}

/* --- segments --- */

/* We looked again because of w->why, and there is nothing but the host that this very call has
 * found out of reach. */
static bool just_failed(struct getting *g, const struct want *w) {
    if (w->tries == 0 || !is_outage(w->why)) return false;
    const struct placed_replica *r = get_replica(w);
    for (size_t i = 0; i < r->n_parts; i++) {
        if (outage_noted(g->b.lane, r->parts[i].extent.segment, g->b.began_ms)) return true;
    }
    return false;
}

/* A replica in a file has no segment that clients see. */
static tarn_status fail_read(struct getting *g, const struct placed_replica *r,
                             tarn_status status) {
    const char *name =
        r->n_parts > 0 ? segment_name(g->b.lane, r->parts[0].extent.segment) : r->path;
    const char *kind = r->n_parts > 0 ? "segment" : "file";
    if (status == TARN_ESTALE || status == TARN_ENOSEGMENT)
        return fail(status, "the content of %s %s was replaced meanwhile", kind, name);
    if (status == TARN_EPERM)
        return fail(status, "the host of %s %s refused to serve the bytes (see its log)", kind,
                    name);
    return fail(status, "reading from %s %s failed: %s%s", kind, name, tarn_status_text(status),
                lane_hint(g->b.lane));
}

/* All of them, not only the one that will be read: later there may be an answer on its way, and no
 * time to ask. */
tarn_status get_replica_ensure(struct getting *g, size_t i, struct get_result *result_p) {
    struct want *w = &g->wants[i];
    tarn_status why = TARN_OK;
    for (unsigned r = 0; r < w->place.replicas; r++) {
        tarn_status status = batch_ensure(&g->b, &w->place.replica[r], false);
        if (status == TARN_OK) continue;
        if (g->b.lane->ctl.fd < 0) return status;
        if (status == TARN_ESTALE) COUNT(g->b.lane, epoch_misses, 1);
        placed_read_failed(&w->read, r);
        why = status;
    }
    *result_p = (struct get_result){.next = GET_ON};
    if (!choose_replica(g, w))
        *result_p = get_again(why, 1);
    else if (just_failed(g, w))
        *result_p = get_over(fail_read(g, get_replica(w), w->why));
    return TARN_OK;
}

/* --- failures --- */

static void want_report(struct getting *g, size_t i) {
    const tarn_item *item = &g->b.items[i];
    if (!g->wants[i].reported) lane_report(g->b.lane, item->key, item->key_len, item->version);
    g->wants[i].reported = true;
}

struct get_result get_replica_failed(struct getting *g, size_t i, tarn_status status) {
    struct want *w = &g->wants[i];
    const struct placed_replica *r = get_replica(w);
    fail_read(g, r, status);
    replica_failed(g->b.lane, r, status, is_outage(status) || status == TARN_EPERM);
    /* its host, or its directory, is there and it is not */
    if (status == TARN_ENOTFOUND) want_report(g, i);
    w->why = status;
    placed_read_failed(&w->read, w->read.at);
    if (choose_replica(g, w)) {
        COUNT(g->b.lane, failovers, 1);
        return (struct get_result){.next = GET_TURNED};
    }
    if (status == TARN_EPERM) g->new_session = true;
    return get_again(status, 1);
}

static void log_mismatch(const tarn_item *item) {
    struct buf quoted = {0};
    buf_append_quoted(&quoted, span_of(item->key, item->key_len));
    log_warning("%.*s version %" PRIu64 ": the bytes do not match their CRC; treated as lost",
                (int)quoted.len, quoted.data, item->version);
    buf_free(&quoted);
}

struct get_result get_replica_bad(struct getting *g, size_t i) {
    struct want *w = &g->wants[i];
    bool first = !w->damaged;
    unsigned before = w->read.at;
    log_mismatch(&g->b.items[i]);
    COUNT(g->b.lane, crc_mismatches, 1);
    w->damaged = true;
    if (w->place.replicas > 1 || !first) want_report(g, i);
    fail(TARN_ECORRUPT, "the bytes do not match their CRC");
    if (choose_replica(g, w)) {
        if (w->read.at != before) COUNT(g->b.lane, failovers, 1);
        return (struct get_result){.next = GET_TURNED};
    }
    w->prepared = false;
    return get_again(TARN_ECORRUPT, first ? 1 : 0);
}
