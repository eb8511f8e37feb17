/* Look-ups: GETREPLICAS, MGETREPLICAS, PREFIXLEN, EXISTS, MEXISTS. One job serves all: it walks
 * keys in groups whose cache lines are fetched ahead, and with WAIT first sleeps until they are
 * complete.
 *
 *   job_start ─> waiting ─────────────────────────────────────────> answering ─> done
 *                  │ sleeps at the first key that is not complete       ^
 *                  └── goes on when it is, or when the time is over ────┘ */
#include "cmd/families.h"

#include <stdlib.h>
#include "base/assert.h"
#include "cluster/cluster.h"
#include "cmd/client.h"
#include "cmd/config.h"
#include "cmd/keys.h"
#include "cmd/location.h"
#include "cmd/notify.h"
#include "cmd/reply.h"
#include "cmd/waiters.h"
#include "store/effect.h"
#include "transport/place.h"
#include "wire/options.h"

enum look_kind { LOOK_ONE, LOOK_MANY, LOOK_PREFIX, LOOK_COUNT, LOOK_FLAGS };

/* For who is not trusted: a host's thread that has looked at his grant and is just sending. */
#define LEASE_LATE_MS 1000u

struct look_job {
    struct job job;
    enum look_kind kind;
    bool waiting, begun;
    /* look-ups are accesses; not those that storage nodes make for their copies */
    bool counts;
    struct wire_look args;
    size_t pos;
    uint64_t late_ms; /* a lease holds for so much longer than is said */
    uint64_t count;
    struct waiter *waiter;
    struct store_batch batch;
    struct key_window window;
};

/* --- answers --- */

static void answer_crcs(struct text *t, struct client *c, const struct object *o, bool wanted) {
    size_t n = 0;
    const uint32_t *crcs = wanted ? store_object_crcs(server.store, o, &n) : NULL;
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
        .op = GRANT_READ, .session = c->id, .expiry_ms = server.mono_ms + granted_ms};
    c->io->flags |= CLIENT_GRANTED;
    struct place_packed place = {.number = store_object_version(o),
                                 .lease_ms = (uint32_t)granted_ms};
    size_t n = 0;
    if (granted_ms == 0 || granted_ms > UINT32_MAX) return false;
    if (crcs && store_object_crcs(server.store, o, &n) != NULL && n > 0) return false;
    if (store_object_crc(o, &place.crc)) place.flags |= PLACE_HAS_CRC;
    if (store_object_suspect(server.store, o)) place.flags |= PLACE_SUSPECT;
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
    if (!in_books) store_object_layout(server.store, o, &layout);
    if (packed && !in_books && answer_packed(c, o, granted_ms, &layout, crcs)) return;
    text_begin(&t);
    text_array(&t, 8);
    text_int(&t, (int64_t)store_object_version(o));
    text_int(&t, (int64_t)store_object_size(server.store, o));
    text_int(&t, (int64_t)granted_ms);
    text_int(&t, has_crc ? (int64_t)crc : -1);
    if (in_books) {
        text_array(&t, 0);
        text_bulk(&t, value.data, value.len);
    } else {
        struct location_grant grant = {.op = GRANT_READ,
                                       .session = c->id,
                                       .expiry_ms = granted_ms ? server.mono_ms + granted_ms : 0};
        c->io->flags |= CLIENT_GRANTED;
        if (layout.replicas > 1) cluster_order(&layout, location_host(c), span_str(c->rack));
        text_replicas(&t, &layout, store_object_key(o), store_object_version(o), &grant);
        text_null(&t, c->proto);
    }
    answer_crcs(&t, c, o, crcs);
    reply_int(c, !in_books && store_object_suspect(server.store, o) ? PLACE_SUSPECT : 0);
}

static void answer_found(struct client *c, struct look_job *l, struct object *o) {
    uint64_t granted_ms = 0;
    if (l->counts) store_batch_hit(server.store, &l->batch, o);
    if (l->args.lease_ms) {
        if (l->counts) cluster_hit(o, false);
        tarn_status status =
            store_lease(server.store, o, c->id, l->args.lease_ms + l->late_ms, &granted_ms);
        if (granted_ms > l->late_ms) granted_ms -= l->late_ms;
        if (status != TARN_OK) {
            reply_error(c,
                        "-LIMIT this client holds %llu leases, which is max-leases-per-client: "
                        "RELEASE some",
                        (unsigned long long)server.config->max_leases_per_client);
            return;
        }
    }
    answer_object(c, o, granted_ms, l->args.crcs, l->args.packed);
}

/* PREFIXLEN counts what it could protect: false ends the prefix. */
static bool prefix_goes_on(struct client *c, struct look_job *l, struct object *o) {
    uint64_t granted_ms;
    if (!o) return false;
    if (l->counts) {
        store_batch_hit(server.store, &l->batch, o);
        if (l->args.lease_ms) cluster_hit(o, true);
    }
    return !l->args.lease_ms ||
           store_lease(server.store, o, c->id, l->args.lease_ms, &granted_ms) == TARN_OK;
}

/* --- the job --- */

static struct object *look_at(struct client *c, struct look_job *l) {
    uint64_t hash = key_window_hash(&l->window, c, l->args.keys.at, 1, l->pos, l->args.keys.n);
    return store_find_hashed(server.store, c->argv[l->args.keys.at + l->pos], hash);
}

/* true: the prefix, or the array, is complete. */
static bool look_one(struct client *c, struct look_job *l) {
    struct span key = c->argv[l->args.keys.at + l->pos];
    if (l->kind == LOOK_MANY && !key_valid(c, key)) return false;
    struct object *o = look_at(c, l);
    if (!o && l->kind < LOOK_COUNT && l->counts)
        store_batch_miss(server.store, &l->batch, l->window.hash[l->pos - l->window.from]);
    if (!o) notify_key(NOTIFY_MISS, "keymiss", key);
    switch (l->kind) {
    case LOOK_ONE:
    case LOOK_MANY:
        if (o)
            answer_found(c, l, o);
        else
            reply_null(c);
        return false;
    case LOOK_PREFIX:
        if (!prefix_goes_on(c, l, o)) return true;
        l->count++;
        return false;
    case LOOK_COUNT: l->count += o != NULL; return false;
    case LOOK_FLAGS: reply_int(c, o != NULL); return false;
    }
    return true;
}

static void look_begin(struct client *c, struct look_job *l) {
    l->begun = true;
    l->pos = 0;
    /* what was prefetched before a sleep is cold, and the keys may have come */
    l->window.count = 0;
    if (l->kind < LOOK_COUNT && l->counts)
        store_batch_begin(server.store, &l->batch, &c->chain,
                          l->args.lease_ms ? STORE_BATCH_READ : STORE_BATCH_LOOK,
                          (uint32_t)l->args.keys.n);
    if (l->kind == LOOK_MANY || l->kind == LOOK_FLAGS) reply_array(c, l->args.keys.n);
}

/* true: go on with the answers. One waiter at a time is enough: each key is awaited until it was
 * complete once. */
static bool look_waited(struct client *c, struct look_job *l, unsigned *budget) {
    waiter_remove(&l->waiter);
    l->job.runnable = true;
    for (; l->pos < l->args.keys.n; l->pos++) {
        if (server.mono_ms >= l->job.deadline_ms) break;
        if (*budget == 0) return false;
        spend(budget, 1);
        struct span key = c->argv[l->args.keys.at + l->pos];
        if (key.len == 0 || key.len > STORE_KEY_MAX || look_at(c, l)) continue;
        l->waiter = waiter_add(&l->job, key);
        l->job.runnable = false;
        return false;
    }
    l->waiting = false;
    l->job.deadline_ms = 0;
    return true;
}

static bool look_step(struct client *c, struct job *job, unsigned *budget) {
    struct look_job *l = CONTAINER_OF(job, struct look_job, job);
    if (l->waiting && !look_waited(c, l, budget)) return false;
    if (!l->begun) look_begin(c, l);
    for (; l->pos < l->args.keys.n; l->pos++) {
        if (*budget == 0) return false;
        spend(budget, 1);
        if (look_one(c, l)) break;
    }
    if (l->kind == LOOK_PREFIX || l->kind == LOOK_COUNT) reply_int(c, (int64_t)l->count);
    return true;
}

static void look_close(struct client *c, struct job *job) {
    struct look_job *l = CONTAINER_OF(job, struct look_job, job);
    waiter_remove(&l->waiter);
}

/* --- commands --- */

static struct look_job *look_create(struct client *c, enum look_kind kind) {
    struct look_job *l = xcalloc(1, sizeof(*l));
    l->job = (struct job){.step = look_step, .close = look_close, .runnable = true};
    l->kind = kind;
    l->counts = !c->of_node && !(c->io->flags & CLIENT_NO_TOUCH);
    return l;
}

static void look_run(struct client *c, enum look_kind kind) {
    struct look_job *l = look_create(c, kind);
    struct wire_look *args = &l->args;
    if (!arg_bind(c, args) || (kind == LOOK_ONE && !arg_key(c, args->keys.at))) {
        free(l);
        return;
    }
    l->waiting = args->wait_ms > 0 && !(c->io->flags & CLIENT_EXEC);
    if (l->waiting) l->job.deadline_ms = server.mono_ms + args->wait_ms;
    /* More is granted as max-lease: the reply says so. */
    args->lease_ms = min_u64(args->lease_ms, store_config(server.store)->max_lease_ms);
    if (args->lease_ms > 0 && !location_trusted(c)) l->late_ms = LEASE_LATE_MS;
    job_start(c, &l->job);
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
        bool there = store_find(server.store, c->argv[1]) != NULL;
        if (UNLIKELY(!there)) notify_key(NOTIFY_MISS, "keymiss", c->argv[1]);
        reply_int(c, there);
        return;
    }
    struct look_job *l = look_create(c, LOOK_COUNT);
    l->args.keys = (struct wire_list){1, (uint32_t)c->argc - 1};
    job_start(c, &l->job);
}
