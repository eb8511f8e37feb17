/* What this node offers: SEGMENT MOUNT of each segment, and how clients are told to reach it. */
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/assert.h"
#include "base/log.h"
#include "client/answer.h"
#include "client/client.h"
#include "client/placement.h"
#include "hosting/hosting.h"

#define SERVE_PATIENCE_MS 5000u
#define SERVE_AGAIN_MS    20u

struct hosted *hosting_segment(struct tarn_host *h, uint64_t id) {
    for (unsigned i = 0; i < h->n_segments; i++) {
        if (h->segments[i].mounted && h->segments[i].id == id) return &h->segments[i];
    }
    return NULL;
}

/* A pool file that was lent to another master meanwhile still has the name that this one knows, and
 * other bytes. */
static bool segment_has_other_bytes(struct tarn_host *h, const struct hosted *seg) {
    struct host_segment_info info;
    if (seg->kind != HOSTED_MEMORY || !host_slot_get(h->host, seg->slot, &info)) return false;
    if (info.old_segment_epoch == 0) return false;
    return info.old_id != seg->id || info.old_segment_epoch != seg->epoch;
}

/* What was found on a disk is going to be another master's: the one that knew it before must not
 * take it for what it was, should the disk come back to it one day. true: to be mounted again,
 * under its new name. */
static bool segment_changes_hands(struct tarn_host *h, struct hosted *seg) {
    struct hosting_far *f = seg->far;
    if (f == NULL || f->renewed || !tier_get_info(f->tier)->recovered) return false;
    f->renewed = true;
    if (tier_renew(f->tier) == TARN_OK) return true;
    session_fail(h, TARN_EIO, "segment %s: its disk cannot be written to", seg->name);
    return false;
}

static void segment_mounted(struct tarn_host *h, const struct answer *a, void *arg,
                            uint64_t sent_ms) {
    struct hosting_session *s = &h->session;
    struct hosted *seg = arg;
    uint64_t id, epoch, kept;
    if (!session_accepts(h, a, "SEGMENT MOUNT")) return;
    if (!answer_u64(answer_field(a, "id"), &id) || !answer_u64(answer_field(a, "epoch"), &epoch) ||
        !answer_u64(answer_field(a, "kept"), &kept) || id > UINT32_MAX || epoch == 0 ||
        epoch > UINT32_MAX || hosting_segment(h, id) != NULL) {
        session_fail(h, TARN_EPROTO, "SEGMENT MOUNT: the answer of the master makes no sense");
        return;
    }
    seg->id = (uint32_t)id;
    seg->epoch = (uint32_t)epoch;
    if (kept != 0 && segment_has_other_bytes(h, seg)) {
        host_segment_retire(h->host, seg->slot, true); /* new content, which is another mount */
        session_fail(h, TARN_ESTALE,
                     "segment %s: what is in it is not of this master; it gets new memory",
                     seg->name);
        return;
    }
    if (kept == 0 && segment_changes_hands(h, seg)) {
        h->session.mounting--;
        mount_one(h, seg);
        return;
    }
    if (h->session.broken != TARN_OK) return;
    seg->mounted = true;
    seg->mount_epoch = s->epoch;
    seg->serve_until = 0;
    if (seg->kind != HOSTED_FILE) seg->serve_until = add_sat(now_ms(), SERVE_PATIENCE_MS);
    log_notice("Segment %s is mounted: id=%u epoch=%u, %s", seg->name, seg->id, seg->epoch,
               kept != 0 ? "with what was in it" : "empty");
    if (seg->far != NULL) offer_start(seg->far, kept == 0);
    s->mounting--;
    mount_turn(h);
}

/* A master that was started anew gives out its ids in another order: what another segment of ours
 * is still served under is an old name, and its new one is on its way. */
static void segment_take_id_over(struct tarn_host *h, const struct hosted *seg) {
    for (unsigned i = 0; i < h->n_segments; i++) {
        const struct hosted *other = &h->segments[i];
        struct host_segment_info info;
        if (other == seg || other->gone || other->kind == HOSTED_FILE ||
            (other->far != NULL && other->far->tier == NULL))
            continue;
        if (host_slot_get(h->host, other->slot, &info) && info.segment_epoch != 0 &&
            info.id == seg->id)
            host_segment_retire(h->host, other->slot, false);
    }
}

/* true: it is served under its present name. */
static bool segment_serve(struct tarn_host *h, struct hosted *seg) {
    if (seg->serve_until == 0) return true;
    segment_take_id_over(h, seg);
    tarn_status status = host_segment_serve(h->host, seg->slot, seg->id, seg->epoch);
    if (status == TARN_OK) {
        seg->serve_until = 0;
        return true;
    }
    if (status == TARN_EAGAIN && now_ms() < seg->serve_until) {
        hosting_wake_at(h, now_ms() + SERVE_AGAIN_MS);
        return false;
    }
    /* A process that has it mapped does not let go. New memory, then, which is new content, which
     * is another mount. */
    if (status == TARN_EAGAIN) session_new_memory(h, seg);
    session_fail(h, status, "segment %s cannot be served: %s", seg->name,
                 status == TARN_EAGAIN ? "a process writes to it still; it gets new memory"
                                       : tarn_status_text(status));
    return false;
}

void mount_turn(struct tarn_host *h) {
    struct hosting_session *s = &h->session;
    bool all = s->mounting == 0;
    for (unsigned i = 0; i < h->n_segments && s->broken == TARN_OK; i++) {
        if (h->segments[i].mounted) all &= segment_serve(h, &h->segments[i]);
    }
    if (all && s->broken == TARN_OK && s->phase == PHASE_MOUNTING) session_mounted(h);
}

void mount_one(struct tarn_host *h, struct hosted *seg) {
    struct hosting_link *l = &h->reports;
    const struct tier_info *tier = seg->far != NULL ? tier_get_info(seg->far->tier) : NULL;
    struct host_segment_info info = {.backing = hosted_tiers[seg->kind], .numa_node = -1};
    char content[2 * TIER_CONTENT_SIZE + 1];
    static_assert(sizeof(info.content) == TIER_CONTENT_SIZE, "one size of content id");
    if (tier == NULL) TARN_ASSERT(host_slot_get(h->host, seg->slot, &info));
    sodium_bin2hex(content, sizeof(content), tier != NULL ? tier->content : info.content,
                   TIER_CONTENT_SIZE);

    h->session.mounting++;
    struct wire_mount m = {
        .node = link_node(h, l), .tier = 1 + seg->kind, .size = seg->size, .numa = info.numa_node};
    struct ctl_request *r = &l->request;
    m.segment = request_str(r, seg->name);
    m.content = request_str(r, content);
    m.backing = request_str(r, info.backing);
    if (tier == NULL) m.huge = info.huge ? WIRE_YES : WIRE_NO;
    if (seg->kind == HOSTED_FILE) m.directory = request_str(r, tier->directory);
    size_t n = seg->kind == HOSTED_MEMORY ? h->n_endpoints
               : seg->kind == HOSTED_SSD  ? h->n_tcp_endpoints
                                          : 0;
    m.endpoints = (struct wire_list){request_next(r), (uint32_t)n};
    for (size_t i = 0; i < n; i++) request_str(r, h->endpoints[i]);
    if (seg->kind == HOSTED_MEMORY) m.keys = keys_of_mount(h, l, seg);
    link_send(h, l, WIRE_segment_mount, &m, segment_mounted, seg);
}

void mount_all(struct tarn_host *h) {
    struct hosting_session *s = &h->session;
    TARN_ASSERT(s->mounting == 0);
    for (unsigned i = 0; i < h->n_segments && s->broken == TARN_OK; i++) {
        struct hosted *seg = &h->segments[i];
        if (!seg->gone && !seg->populating && (seg->far == NULL || far_tier(seg->far) != NULL))
            mount_one(h, seg);
    }
    mount_turn(h); /* none: there is nothing left to offer */
}

bool hosting_iov(struct tarn_host *h, const struct hosted *s, const struct answer *extents,
                 uint64_t size, struct iovec *iov, size_t *n_p) {
    if (s == NULL || s->kind != HOSTED_MEMORY || extents == NULL || extents->type != ANSWER_ARRAY)
        return false;
    if (extents->len == 0 || extents->len > EXTENTS_MAX) return false;
    char *base = host_segment_base(h->host, s->id);
    size_t n = 0;
    if (base == NULL) return false;
    for (; n < extents->len && size > 0; n++) {
        uint64_t offset, length;
        if (!answer_u64(answer_at(&extents->element[n], 0), &offset) ||
            !answer_u64(answer_at(&extents->element[n], 1), &length) || offset > s->size ||
            length > s->size - offset || length == 0)
            return false;
        iov[n] = (struct iovec){base + offset, (size_t)min_u64(length, size)};
        size -= iov[n].iov_len;
    }
    *n_p = n;
    return size == 0;
}
