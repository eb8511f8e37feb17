/* What gets, puts, views and writers do with a replica, which may lie in several extents. */
#include "client/client.h"

tarn_status replica_ensure(struct lane *lane, const struct placed_replica *r, bool write,
                           uint64_t deadline) {
    tarn_status status = TARN_OK;
    for (size_t i = 0; i < r->n_parts && status == TARN_OK; i++) {
        const struct grant_extent *e = &r->parts[i].extent;
        status = segment_ensure(lane, e->segment, e->segment_epoch, write, deadline);
    }
    return status;
}

bool replica_map(struct lane *lane, const struct placed_replica *r, bool write,
                 struct iovec pieces[EXTENTS_MAX]) {
    for (size_t i = 0; i < r->n_parts; i++) {
        const struct grant_extent *e = &r->parts[i].extent;
        pieces[i].iov_base =
            engine_map(lane->engine, e->segment, e->segment_epoch, e->offset, e->length, write);
        pieces[i].iov_len = e->length;
        if (pieces[i].iov_base == NULL) return false;
    }
    return true;
}

bool replica_is(struct lane *lane, const struct placed_replica *r,
                bool (*is)(struct lane *lane, uint32_t segment)) {
    for (size_t i = 0; i < r->n_parts; i++) {
        if (is(lane, r->parts[i].extent.segment)) return true;
    }
    return false;
}

bool replica_lacks_grant(const struct placed_replica *r) {
    return r->n_parts > 0 && r->parts[0].grant == NULL;
}

void replica_worked(struct lane *lane, const struct placed_replica *r) {
    if (!outages_any(&lane->client->outages)) return;
    for (size_t i = 0; i < r->n_parts; i++) outage_over(lane, r->parts[i].extent.segment);
}

void replica_failed(struct lane *lane, const struct placed_replica *r, tarn_status status,
                    bool away) {
    if (status == TARN_ESTALE || status == TARN_ENOSEGMENT) COUNT(lane, epoch_misses, 1);
    for (size_t i = 0; i < r->n_parts; i++) {
        uint32_t segment = r->parts[i].extent.segment;
        if (away) outage_note(lane, segment);
        segment_forget(lane, segment); /* the host may be back, at another address */
    }
}
