/* Transports of modules: the packed keys by which they reach our memory, which the master passes on
 * to clients, and what they report of this process, which it shows to people. Both are told anew
 * when they have changed, and in every session.
 *
 * Keys come late (memory is registered in the background) and may go: a device was lost, a new
 * epoch has made them void. */
#include <stdio.h>
#include <stdlib.h>

#include "base/assert.h"
#include "base/htab.h"
#include "base/log.h"
#include "client/answer.h"
#include "client/client.h"
#include "hosting/hosting.h"
#include "transport/transport.h"

#define REPORT_MAX TRANSPORT_REPORT_MAX

/* --- keys --- */

static uint64_t hash_more(uint64_t hash, const struct buf *b) {
    return hash_u64(hash ^ hash_bytes(b->data, b->len)) + b->len;
}

/* A segment's keys, as words of the request; what they come to is never 0, which is what stands for
 * no keys. */
static struct wire_list keys_put(struct tarn_host *h, struct hosting_link *l,
                                 const struct hosted *seg, uint64_t *hash_p) {
    const struct transport_ops *t;
    struct wire_list list = {request_next(&l->request), 0};
    uint64_t hash = 0;
    for (size_t i = 0; (t = transport_at(i)) != NULL && list.n < WIRE_KEYS_MAX; i++) {
        struct buf part[3] = {{0}, {0}, {0}}; /* URI, and keys to read and to write with */
        tarn_status status =
            host_slot_key(h->host, seg->slot, t->scheme, &part[0], &part[1], &part[2]);
        for (size_t w = 0; w < ARRAY_LEN(part); w++) {
            if (status == TARN_OK) {
                hash = hash_more(hash, &part[w]);
                link_word(l, part[w].data, part[w].len);
            }
            buf_free(&part[w]);
        }
        list.n += status == TARN_OK;
    }
    *hash_p = list.n > 0 && hash == 0 ? 1 : hash;
    return list.n > 0 ? list : (struct wire_list){0};
}

/* Those that are ready go along, so that no client asks in between: a node that comes back to its
 * master still has its keys. What another master has given other names to is not ready. */
struct wire_list keys_of_mount(struct tarn_host *h, struct hosting_link *l, struct hosted *seg) {
    seg->keys_due = true;
    seg->keys_told = 0;
    if (seg->mount_epoch != h->session.epoch) return (struct wire_list){0};
    return keys_put(h, l, seg, &seg->keys_told);
}

void keys_changed(void *arg, unsigned slot) {
    struct tarn_host *h = arg;
    for (unsigned i = 0; i < h->n_segments; i++) {
        struct hosted *seg = &h->segments[i];
        if (seg->kind == HOSTED_MEMORY && seg->slot == slot) seg->keys_due = true;
    }
    h->next_wake_ms = 0;
}

static void keys_answered(struct tarn_host *h, const struct answer *a, void *arg,
                          uint64_t sent_ms) {
    const struct hosted *seg = arg;
    /* On its way out; or the master has no room for keys, and there is tcp. */
    if (answer_is(a, TARN_ENOSEGMENT) || answer_is(a, TARN_ELIMIT)) {
        log_warning("Segment %s: the master does not pass its keys on: %s", seg->name, a->str);
        return;
    }
    session_accepts(h, a, "SEGMENT KEYS");
}

static void keys_tell(struct tarn_host *h, struct hosted *seg) {
    struct hosting_link *l = &h->reports;
    uint64_t hash;
    struct wire_mount m = {.node = link_node(h, l)};
    m.segment = request_str(&l->request, seg->name);
    m.keys = keys_put(h, l, seg, &hash);
    seg->keys_due = false;
    if (hash == seg->keys_told) return;
    log_verbose("Segment %s: %u keys for transports of modules", seg->name, m.keys.n);
    seg->keys_told = hash;
    link_send(h, l, WIRE_segment_keys, &m, keys_answered, seg);
}

void keys_turn(struct tarn_host *h) {
    if (!session_joined(&h->session)) return;
    for (unsigned i = 0; i < h->n_segments; i++) {
        struct hosted *seg = &h->segments[i];
        if (!seg->mounted || !seg->keys_due || seg->serve_until != 0) continue;
        if (link_room(&h->reports) <= LINK_PENDING_MAX / 2 || h->session.broken != TARN_OK) return;
        keys_tell(h, seg);
    }
}

size_t keys_count(const struct tarn_host *h) {
    size_t n = 0;
    for (unsigned i = 0; i < h->n_segments; i++)
        n += h->segments[i].mounted && h->segments[i].keys_told != 0;
    return n;
}

/* --- reports --- */

/* What was told of that scheme in this session; a place for it, NULL: there is none left. */
static struct reported *reported_of(struct tarn_host *h, const char *scheme) {
    struct reported *empty = NULL;
    for (size_t i = 0; i < ARRAY_LEN(h->reported); i++) {
        struct reported *r = &h->reported[i];
        if (strcmp(r->scheme, scheme) == 0) return r;
        if (r->scheme[0] == '\0' && empty == NULL) empty = r;
    }
    return empty;
}

static void report_put(struct hosting_link *l, struct wire_beat *beat, struct reported *r,
                       const char *scheme, const struct buf *text) {
    size_t len = min_u64(text->len, REPORT_MAX);
    while (len > 0 && len < text->len && text->data[len - 1] != '\n') len--; /* whole lines */
    uint64_t hash = len > 0 ? hash_bytes(text->data, len) | 1 : 0;
    if (hash == r->hash) return;
    r->hash = hash;
    beat->reports.at[beat->reports.n++] = link_word(l, scheme, strlen(scheme));
    link_word(l, text->data, len);
    snprintf(r->scheme, sizeof(r->scheme), "%s", hash != 0 ? scheme : "");
}

void keys_report(struct tarn_host *h, struct hosting_link *l, struct wire_beat *beat) {
    const struct transport_ops *t;
    static_assert(2 * ARRAY_LEN(h->reported) <= WIRE_REPORTS_MAX, "room for what goes and comes");
    /* Of transports that are gone there is nothing to say any more. */
    for (size_t i = 0; i < ARRAY_LEN(h->reported); i++) {
        struct reported *r = &h->reported[i];
        if (r->scheme[0] != '\0' && transport_find(r->scheme) == NULL)
            report_put(l, beat, r, r->scheme, &(struct buf){NULL, 0, 0});
    }
    for (size_t i = 0; (t = transport_at(i)) != NULL; i++) {
        bool announces = (t->flags & TRANSPORT_ANNOUNCES) != 0;
        struct reported *r = announces ? reported_of(h, t->scheme) : NULL;
        struct buf text = {NULL, 0, 0};
        if (r == NULL) continue;
        host_describe(h->host, t->scheme, &text);
        report_put(l, beat, r, t->scheme, &text);
        buf_free(&text);
    }
}

void keys_forget(struct tarn_host *h) {
    memset(h->reported, 0, sizeof(h->reported));
    for (unsigned i = 0; i < h->n_segments; i++) h->segments[i].keys_told = 0;
}
