/* Look-ups: GETREPLICAS, MGETREPLICAS, PREFIXLEN, EXISTS, MEXISTS. One walk serves all; with WAIT
 * it goes over the keys twice:
 *
 *   look_await ─ all were complete once, or the time is over ─> look_one: answers
 *     └── sleeps at a key that is not complete, goes on when it is */
#include "front/families.h"

#include <stdlib.h>
#include "base/assert.h"
#include "cluster/cluster.h"
#include "front/client.h"
#include "config/config.h"
#include "front/each.h"
#include "front/location.h"
#include "front/notify.h"
#include "front/reply.h"
#include "front/waiters.h"
#include "store/effect.h"
#include "transport/place.h"
#include "wire/options.h"

enum look_kind { LOOK_ONE, LOOK_MANY, LOOK_PREFIX, LOOK_COUNT, LOOK_FLAGS };

/* For who is not trusted: a host's thread that has looked at his grant and is just sending. */
#define LEASE_LATE_MS 1000u

struct look {
    struct each each;
    enum look_kind kind;
    /* look-ups are accesses; not those that storage nodes make for their copies */
    bool counts;
    struct wire_look args;
    uint64_t late_ms; /* a lease holds for so much longer than is said */
    uint64_t count;
    struct waiter *waiter;
    struct store_batch request;
};

/* --- answers --- */

static void answer_crcs(struct text *t, struct client *c, const struct object *o, bool wanted) {
    size_t n = 0;
    const uint32_t *crcs = wanted ? store_object_crcs(books, o, &n) : NULL;
    if (!crcs || n == 0) {
        text_null(t, c->proto);
        text_send(c, t);
        return;
    }
    text_send(c, t);
    unsigned char *packed = xmalloc(n * sizeof(uint32_t));
    for (size_t i = 0; i < n; i++)
        for (unsigned b = 0; b < 4; b++) packed[i * 4 + b] = (unsigned char)(crcs[i] >> (8 * b));
    reply_bulk(c, span_of(packed, n * sizeof(uint32_t)));
    free(packed);
}

/* The short form. false: it has none, and nothing is answered. */
static bool answer_packed(struct client *c, struct object *o, uint64_t granted_ms,
                          const struct store_layout *layout, bool crcs) {
    struct location_grant grant = {
        .op = GRANT_READ, .session = c->id, .expiry_ms = turn.mono_ms + granted_ms};
    c->io->flags |= CLIENT_GRANTED;
    struct place_packed place = {.number = store_object_version(o),
                                 .lease_ms = (uint32_t)granted_ms};
    size_t n = 0;
    if (granted_ms == 0 || granted_ms > UINT32_MAX) return false;
    if (crcs && store_object_crcs(books, o, &n) != NULL && n > 0) return false;
    if (store_object_crc(o, &place.crc)) place.flags |= PLACE_HAS_CRC;
    if (store_object_suspect(books, o)) place.flags |= PLACE_SUSPECT;
    struct text t;
    text_begin(&t);
    if (!text_packed(&t, layout, &grant, &place)) return false;
    text_send(c, &t);
    return true;
}

/* [version, size, lease-ms, crc, [replica, ...], value or nil, crcs or nil, flags] */
static void answer_object(struct client *c, struct object *o, uint64_t granted_ms, bool crcs,
                          bool packed) {
    struct store_layout layout;
    struct span value;
    uint32_t crc = 0;
    bool has_crc = store_object_crc(o, &crc), in_books = store_object_inline(o, &value);
    struct text t;
    if (!in_books) store_object_layout(books, o, &layout);
    if (packed && !in_books && answer_packed(c, o, granted_ms, &layout, crcs)) return;
    text_begin(&t);
    text_array(&t, 8);
    text_int(&t, (int64_t)store_object_version(o));
    text_int(&t, (int64_t)store_object_size(books, o));
    text_int(&t, (int64_t)granted_ms);
    text_int(&t, has_crc ? (int64_t)crc : -1);
    if (in_books) {
        text_array(&t, 0);
        text_bulk(&t, value.data, value.len);
    } else {
        struct location_grant grant = {.op = GRANT_READ,
                                       .session = c->id,
                                       .expiry_ms = granted_ms ? turn.mono_ms + granted_ms : 0};
        c->io->flags |= CLIENT_GRANTED;
        if (layout.replicas > 1) cluster_order(&layout, location_host(c), span_str(c->rack));
        text_replicas(&t, &layout, store_object_key(o), store_object_version(o), &grant);
        text_null(&t, c->proto);
    }
    answer_crcs(&t, c, o, crcs);
    reply_int(c, !in_books && store_object_suspect(books, o) ? PLACE_SUSPECT : 0);
}

static void answer_found(struct client *c, struct look *l, struct object *o) {
    uint64_t granted_ms = 0;
    if (l->counts) store_batch_hit(books, &l->request, o);
    if (l->args.lease_ms) {
        if (l->counts) cluster_hit(o, false);
        tarn_status status =
            store_lease(books, o, c->id, l->args.lease_ms + l->late_ms, &granted_ms);
        if (granted_ms > l->late_ms) granted_ms -= l->late_ms;
        if (status != TARN_OK) {
            reply_error(c,
                        "-LIMIT this client holds %llu leases, which is max-leases-per-client: "
                        "RELEASE some",
                        (unsigned long long)config->max_leases_per_client);
            return;
        }
    }
    answer_object(c, o, granted_ms, l->args.crcs, l->args.packed);
}

/* PREFIXLEN counts what it could protect: false ends the prefix. */
static bool prefix_goes_on(struct client *c, struct look *l, struct object *o) {
    uint64_t granted_ms;
    if (!o) return false;
    if (l->counts) {
        store_batch_hit(books, &l->request, o);
        if (l->args.lease_ms) cluster_hit(o, true);
    }
    return !l->args.lease_ms ||
           store_lease(books, o, c->id, l->args.lease_ms, &granted_ms) == TARN_OK;
}

/* --- one after the other --- */

static enum each_next look_one(struct client *c, struct each *each, unsigned *budget) {
    struct look *l = CONTAINER_OF(each, struct look, each);
    struct span key = *each_args(c, each);
    if (l->kind == LOOK_MANY && !key_valid(c, key)) return EACH_ON;
    uint64_t hash = each_hash(c, each, each->at);
    struct object *o = store_find_hashed(books, key, hash);
    if (!o && l->kind < LOOK_COUNT && l->counts) store_batch_miss(books, &l->request, hash);
    if (!o) notify_key(NOTIFY_MISS, "keymiss", key);
    switch (l->kind) {
    case LOOK_ONE:
    case LOOK_MANY:
        if (o)
            answer_found(c, l, o);
        else
            reply_null(c);
        break;
    case LOOK_PREFIX:
        if (!prefix_goes_on(c, l, o)) return EACH_OVER;
        l->count++;
        break;
    case LOOK_COUNT: l->count += o != NULL; break;
    case LOOK_FLAGS: reply_int(c, o != NULL); break;
    }
    return EACH_ON;
}

static void look_end(struct client *c, struct each *each) {
    struct look *l = CONTAINER_OF(each, struct look, each);
    if (l->kind == LOOK_PREFIX || l->kind == LOOK_COUNT) reply_int(c, (int64_t)l->count);
}

static void look_begin(struct client *c, struct look *l) {
    l->each.one = look_one;
    l->each.at = 0;
    /* what was prefetched before a sleep is cold, and the keys may have come */
    l->each.count = 0;
    l->each.job.deadline_ms = 0;
    if (l->kind < LOOK_COUNT && l->counts)
        store_batch_begin(books, &l->request, &c->chain,
                          l->args.lease_ms ? STORE_BATCH_READ : STORE_BATCH_LOOK,
                          (uint32_t)l->args.keys.n);
    if (l->kind == LOOK_MANY || l->kind == LOOK_FLAGS) reply_array(c, l->args.keys.n);
}

/* One waiter at a time is enough: each key is awaited until it was complete once. */
static enum each_next look_await(struct client *c, struct each *each, unsigned *budget) {
    struct look *l = CONTAINER_OF(each, struct look, each);
    struct span key = *each_args(c, each);
    waiter_remove(&l->waiter);
    each->job.runnable = true;
    if (turn.mono_ms < each->job.deadline_ms) {
        if (key.len > 0 && key.len <= STORE_KEY_MAX &&
            !store_find_hashed(books, key, each_hash(c, each, each->at))) {
            l->waiter = waiter_add(&each->job, key);
            each->job.runnable = false;
            return EACH_AGAIN;
        }
        if (each->at + 1 < each->n) return EACH_ON;
    }
    look_begin(c, l);
    return look_one(c, each, budget);
}

static void look_close(struct client *c, struct job *job) {
    waiter_remove(&CONTAINER_OF(job, struct look, each.job)->waiter);
}

/* --- commands --- */

static void look_keys(struct client *c, struct look *l) {
    l->each.job.close = look_close;
    l->each.end = look_end;
    l->counts = !c->of_node && !(c->io->flags & CLIENT_NO_TOUCH);
    each_keys(&l->each, l->args.keys, 1);
    if (l->each.job.deadline_ms > 0) { /* a waiter points to it */
        struct look *kept = xmemdup(l, sizeof(*l));
        kept->each.one = look_await;
        each_start(c, &kept->each);
    } else {
        look_begin(c, l);
        each_run(c, &l->each, sizeof(*l));
    }
}

static void look_run(struct client *c, enum look_kind kind) {
    struct look l = {.kind = kind};
    struct wire_look *args = &l.args;
    if (!arg_bind(c, args) || (kind == LOOK_ONE && !arg_key(c, args->keys.at))) return;
    if (args->wait_ms > 0 && !(c->io->flags & CLIENT_EXEC))
        l.each.job.deadline_ms = turn.mono_ms + args->wait_ms;
    /* More is granted as max-lease: the reply says so. */
    args->lease_ms = min_u64(args->lease_ms, store_config(books)->max_lease_ms);
    if (args->lease_ms > 0 && !location_trusted(c)) l.late_ms = LEASE_LATE_MS;
    look_keys(c, &l);
}

void cmd_getreplicas(struct client *c) {
    look_run(c, LOOK_ONE);
}
void cmd_mgetreplicas(struct client *c) {
    look_run(c, LOOK_MANY);
}
void cmd_prefixlen(struct client *c) {
    look_run(c, LOOK_PREFIX);
}
void cmd_mexists(struct client *c) {
    look_run(c, LOOK_FLAGS);
}

void cmd_exists(struct client *c) {
    if (c->argc == 2) {
        bool there = store_find(books, c->argv[1]) != NULL;
        if (UNLIKELY(!there)) notify_key(NOTIFY_MISS, "keymiss", c->argv[1]);
        reply_int(c, there);
        return;
    }
    struct look l = {.kind = LOOK_COUNT, .args.keys = {1, (uint32_t)c->argc - 1}};
    look_keys(c, &l);
}
