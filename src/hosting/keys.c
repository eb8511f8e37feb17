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

#define KEYS_MAX   4u /* as the master takes */
#define REPORT_MAX TRANSPORT_REPORT_MAX

/* --- keys --- */

struct keys {
    struct {
        struct buf uri, key[2];
    } of[KEYS_MAX];
    size_t n;
};

static void keys_free(struct keys *k) {
    for (size_t i = 0; i < KEYS_MAX; i++) {
        buf_free(&k->of[i].uri);
        buf_free(&k->of[i].key[0]);
        buf_free(&k->of[i].key[1]);
    }
}

static void keys_of(struct tarn_host *h, const struct hosted *seg, struct keys *k) {
    const struct transport_ops *t;
    *k = (struct keys){.n = 0};
    if (seg->kind != HOSTED_MEMORY) return;
    for (size_t i = 0; (t = transport_at(i)) != NULL && k->n < KEYS_MAX; i++) {
        struct buf *uri = &k->of[k->n].uri, *key = k->of[k->n].key;
        k->n += host_slot_key(h->host, seg->slot, t->scheme, uri, &key[0], &key[1]) == TARN_OK;
    }
}

static uint64_t hash_more(uint64_t hash, const struct buf *b) {
    return hash_u64(hash ^ hash_bytes(b->data, b->len)) + b->len;
}

/* Never 0, which is what stands for no keys. */
static uint64_t keys_hash(const struct keys *k) {
    uint64_t hash = 0;
    for (size_t i = 0; i < k->n; i++) {
        hash = hash_more(hash, &k->of[i].uri);
        for (int w = 0; w < 2; w++) hash = hash_more(hash, &k->of[i].key[w]);
    }
    return k->n > 0 && hash == 0 ? 1 : hash;
}

static void add_keys(struct hosting_link *l, const struct keys *k) {
    link_u64(l, k->n);
    for (size_t i = 0; i < k->n; i++) {
        link_arg(l, k->of[i].uri.data, k->of[i].uri.len);
        for (int w = 0; w < 2; w++) link_arg(l, k->of[i].key[w].data, k->of[i].key[w].len);
    }
}

/* Those that are ready go along, so that no client asks in between: a node that comes back to its
 * master still has its keys. What another master has given other names to is not ready. */
void keys_mount_args(struct tarn_host *h, struct hosting_link *l, struct hosted *seg) {
    struct keys k = {.n = 0};
    seg->keys_due = true;
    seg->keys_told = 0;
    if (seg->mount_epoch != h->session.epoch) return;
    keys_of(h, seg, &k);
    seg->keys_told = keys_hash(&k);
    if (k.n > 0) {
        link_str(l, "KEYS");
        add_keys(l, &k);
    }
    keys_free(&k);
}

void keys_changed(void *arg, unsigned slot) {
    struct tarn_host *h = arg;
    for (unsigned i = 0; i < h->n_segments; i++) {
        struct hosted *seg = &h->segments[i];
        if (seg->kind == HOSTED_MEMORY && seg->slot == slot) seg->keys_due = true;
    }
    h->next_wake_ms = 0;
}

static void answered(struct tarn_host *h, const struct answer *a, void *arg, uint64_t sent_ms) {
    const struct hosted *seg = arg;
    /* On its way out; or the master has no room for keys, and there is tcp. */
    if (a != NULL && a->type == ANSWER_ERROR &&
        (strncmp(a->str, "NOSEGMENT", 9) == 0 || strncmp(a->str, "LIMIT", 5) == 0)) {
        log_warning("Segment %s: the master does not pass its keys on: %s", seg->name, a->str);
        return;
    }
    session_accepts(h, a, "SEGMENT KEYS");
}

static void tell(struct tarn_host *h, struct hosted *seg) {
    struct hosting_link *l = &h->reports;
    struct keys k;
    keys_of(h, seg, &k);
    uint64_t hash = keys_hash(&k);
    seg->keys_due = false;
    if (hash != seg->keys_told) {
        log_verbose("Segment %s: %zu keys for transports of modules", seg->name, k.n);
        seg->keys_told = hash;
        link_begin(l, "SEGMENT");
        link_str(l, "KEYS");
        link_str(l, h->name);
        link_str(l, h->instance);
        link_str(l, seg->name);
        add_keys(l, &k);
        link_send(h, l, h->options.timeout_ms, answered, seg);
    }
    keys_free(&k);
}

void keys_turn(struct tarn_host *h) {
    if (!session_joined(&h->session)) return;
    for (unsigned i = 0; i < h->n_segments; i++) {
        struct hosted *seg = &h->segments[i];
        if (!seg->mounted || !seg->keys_due || seg->serve_until != 0) continue;
        if (link_room(&h->reports) <= LINK_PENDING_MAX / 2 || h->session.broken != TARN_OK) return;
        tell(h, seg);
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

static void add_report(struct tarn_host *h, struct hosting_link *l, struct reported *r,
                       const char *scheme, const struct buf *text) {
    size_t len = min_u64(text->len, REPORT_MAX);
    while (len > 0 && len < text->len && text->data[len - 1] != '\n') len--; /* whole lines */
    uint64_t hash = len > 0 ? hash_bytes(text->data, len) | 1 : 0;
    if (hash == r->hash) return;
    r->hash = hash;
    snprintf(r->scheme, sizeof(r->scheme), "%s", hash != 0 ? scheme : "");
    link_str(l, "REPORT");
    link_str(l, scheme);
    link_arg(l, text->data, len);
}

void reports_args(struct tarn_host *h, struct hosting_link *l) {
    const struct transport_ops *t;
    /* Of transports that are gone there is nothing to say any more. */
    for (size_t i = 0; i < ARRAY_LEN(h->reported); i++) {
        struct reported *r = &h->reported[i];
        char scheme[sizeof(r->scheme)];
        if (r->scheme[0] == '\0' || transport_find(r->scheme) != NULL) continue;
        memcpy(scheme, r->scheme, sizeof(scheme));
        add_report(h, l, r, scheme, &(struct buf){NULL, 0, 0});
    }
    for (size_t i = 0; (t = transport_at(i)) != NULL; i++) {
        bool announces = (t->flags & TRANSPORT_ANNOUNCES) != 0;
        struct reported *r = announces ? reported_of(h, t->scheme) : NULL;
        struct buf text = {NULL, 0, 0};
        if (r == NULL) continue;
        host_describe(h->host, t->scheme, &text);
        add_report(h, l, r, t->scheme, &text);
        buf_free(&text);
    }
}

void keys_forget(struct tarn_host *h) {
    memset(h->reported, 0, sizeof(h->reported));
    for (unsigned i = 0; i < h->n_segments; i++) h->segments[i].keys_told = 0;
}
