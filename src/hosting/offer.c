/* What lies on a slow tier and the master does not know of is offered to it: everything after a
 * mount that kept nothing, and single entries ("orphans") that were stored when the session broke,
 * so that nobody knows whether the master heard of it.
 *
 * Everything can be much, so it goes in passes over the tier: each collects a part of the entries,
 * by a hash of their place. Meanwhile stores wait, so that no entry is on its way by NODE DONE and
 * by NODE OFFER at the same time. */
#include <stdlib.h>

#include "base/assert.h"
#include "base/htab.h"
#include "base/log.h"
#include "client/answer.h"
#include "client/client.h"
#include "hosting/hosting.h"

#define OFFER_BATCH  500u
#define OFFER_BYTES  (1u << 20)
#define PASS_ENTRIES 200000u
#define ORPHANS_MAX  (64u << 20) /* bytes */

void entries_add(struct buf *entries, const struct tier_item *item) {
    struct far_entry entry = {.version = item->version,
                              .size = item->size,
                              .offset = item->offset,
                              .crc = item->crc,
                              .key_len = (uint32_t)item->key.len,
                              .n_crcs = item->crcs != NULL ? (uint32_t)item->n_crcs : 0};
    buf_append(entries, &entry, sizeof(entry));
    buf_append(entries, item->key.data, item->key.len);
    for (uint32_t i = 0; i < entry.n_crcs; i++) {
        uint32_t c = item->crcs[i];
        uint8_t le[4] = {(uint8_t)c, (uint8_t)(c >> 8), (uint8_t)(c >> 16), (uint8_t)(c >> 24)};
        buf_append(entries, le, sizeof(le));
    }
}

struct far_entry entries_next(const struct buf *entries, size_t *at_p, const char **key_p) {
    struct far_entry entry;
    memcpy(&entry, entries->data + *at_p, sizeof(entry));
    *key_p = entries->data + *at_p + sizeof(entry);
    *at_p += sizeof(entry) + entry.key_len + (size_t)entry.n_crcs * 4;
    return entry;
}

void offer_add_orphan(struct hosting_far *f, const struct hosting_task *t) {
    struct tier_item item = {.key = span_of(t->key, t->key_len),
                             .version = t->version,
                             .size = t->size,
                             .crc = t->crc,
                             .crcs = t->crcs,
                             .n_crcs = t->n_crcs,
                             .offset = t->offset};
    if (f->orphans.len < ORPHANS_MAX) {
        entries_add(&f->orphans, &item);
    } else {
        tier_drop(f->tier, t->offset, t->version);
    }
}

/* --- collecting --- */

static void offer_collect(void *arg, const struct tier_item *item) {
    struct offering *o = arg;
    if (o->passes == 1 || hash_u64(item->offset) % o->passes == o->pass)
        entries_add(&o->entries, item);
}

static void offer_next_pass(struct hosting_far *f) {
    struct offering *o = &f->offering;
    buf_clear(&o->entries);
    o->at = 0;
    tier_each(f->tier, offer_collect, o);
    o->pass++;
}

void offer_start(struct hosting_far *f, bool everything) {
    struct offering *o = &f->offering;
    struct tier_stats stats;
    TARN_ASSERT(!o->active && !o->in_flight);
    o->needed = o->needed || everything;
    o->pass = o->passes = 0;
    o->at = 0;
    o->offered = o->kept = 0;
    if (o->needed) {
        tier_get_stats(f->tier, &stats);
        o->passes = stats.entries / PASS_ENTRIES + 1;
        buf_clear(&f->orphans); /* they are among the others */
        evict_restart(f);       /* so are the evicted ones */
        offer_next_pass(f);
    } else {
        struct buf empty = o->entries;
        o->entries = f->orphans;
        f->orphans = empty;
        buf_clear(&f->orphans);
    }
    o->active = true;
    crew_pause(&f->stores, true);
}

/* --- offering --- */

static bool offer_is_over(const struct offering *o) {
    return o->at == o->entries.len && o->pass >= o->passes;
}

static void offer_finish(struct hosting_far *f) {
    struct offering *o = &f->offering;
    if (o->offered > 0)
        log_notice("Segment %s: %llu objects offered to the master, %llu taken", f->segment->name,
                   (unsigned long long)o->offered, (unsigned long long)o->kept);
    buf_free(&o->entries);
    o->active = o->needed = false;
    crew_pause(&f->stores, false);
}

static void offer_answered(struct tarn_host *h, const struct answer *a, void *arg,
                           uint64_t sent_ms) {
    struct hosting_far *f = arg;
    struct offering *o = &f->offering;
    o->in_flight = false;
    if (!o->active) return;
    if (answer_is(a, TARN_ENOSEGMENT)) { /* on its way out */
        offer_finish(f);
        return;
    }
    if (!session_accepts(h, a, "NODE OFFER")) return;
    for (size_t i = 0; i < o->sent_n; i++) {
        const char *key;
        struct far_entry entry = entries_next(&o->entries, &o->at, &key);
        o->offered++;
        uint64_t version;
        if (!answer_u64(answer_at(a, i), &version)) continue;
        if (version == 0) {
            tier_drop(f->tier, entry.offset, entry.version);
            continue;
        }
        o->kept++;
        if (version != entry.version && tier_rename(f->tier, entry.offset, version) != TARN_OK)
            log_verbose("Segment %s: an entry went while it was offered", f->segment->name);
    }
    if (offer_is_over(o)) offer_finish(f);
}

static void offer_send(struct hosting_far *f) {
    struct offering *o = &f->offering;
    struct tarn_host *h = f->host;
    struct hosting_link *l = &h->reports;
    struct wire_node node = link_node(h, l);
    struct ctl_request *r = &l->request;
    node.segment = f->segment->id;
    node.keys.at = request_next(r);
    for (size_t at = o->at; at < o->entries.len && at - o->at < OFFER_BYTES; node.keys.n++) {
        if (node.keys.n == OFFER_BATCH) break;
        const char *key;
        struct far_entry entry = entries_next(&o->entries, &at, &key);
        request_word(r, key, entry.key_len);
        request_number(r, (int64_t)entry.version);
        request_number(r, (int64_t)entry.size);
        request_number(r, entry.crc);
        request_number(r, (int64_t)entry.offset);
        request_word(r, key + entry.key_len, (size_t)entry.n_crcs * 4);
    }
    o->sent_n = node.keys.n;
    o->in_flight = true;
    link_send(h, l, WIRE_node_offer, &node, offer_answered, f);
}

void offer_turn(struct hosting_far *f) {
    struct offering *o = &f->offering;
    struct hosting_session *s = &f->host->session;
    if (!o->active || o->in_flight || !session_joined(s) || s->phase < PHASE_MOUNTED) return;
    while (o->at == o->entries.len && o->pass < o->passes) offer_next_pass(f);
    if (offer_is_over(o)) {
        offer_finish(f);
    } else if (link_room(&f->host->reports) > LINK_PENDING_MAX / 2) {
        offer_send(f);
    }
}

void offer_stop(struct hosting_far *f) {
    struct offering *o = &f->offering;
    if (!o->active) return;
    o->active = false;
    if (!o->needed) buf_append(&f->orphans, o->entries.data + o->at, o->entries.len - o->at);
    buf_free(&o->entries);
    crew_pause(&f->stores, false);
}
