/* Look-ups: GETREPLICAS, MGETREPLICAS, PREFIXLEN, EXISTS, MEXISTS. One walk serves all but those
 * of KV groups (kv_groups.c); with WAIT it goes over the keys twice:
 *
 *   look_await ─ all were complete once, or the time is over ─> look_one: answers
 *     └── sleeps at a key that is not complete, goes on when it is */
#include "front/families.h"

#include <stdlib.h>
#include "base/assert.h"
#include "cluster/cluster.h"
#include "commands/look.h"
#include "commands/spread.h"
#include "front/each.h"
#include "front/notify.h"
#include "front/shard.h"
#include "front/waiters.h"

enum look_kind { LOOK_ONE, LOOK_MANY, LOOK_PREFIX, LOOK_COUNT, LOOK_FLAGS };

struct look {
    struct each each;
    enum look_kind kind;
    struct look_terms terms;
    bool batch; /* the reply ends with that of the leases */
    uint64_t count;
    struct waiter *waiter;
};

/* --- one after the other --- */

/* PREFIXLEN counts what it could protect: false ends the prefix. */
static bool prefix_goes_on(struct client *c, struct look *l, struct object *o, uint64_t hash) {
    uint64_t granted_ms;
    if (!o) return false;
    if (l->terms.counts) {
        store_batch_hit(books, &l->terms.request, o, hash);
        if (l->terms.lease_ms) cluster_hit(o, true);
    }
    return !l->terms.lease_ms ||
           store_lease(books, o, c->id, l->terms.lease_ms, &granted_ms) == TARN_OK;
}

static enum each_next look_one(struct client *c, struct each *each, unsigned *budget) {
    struct look *l = CONTAINER_OF(each, struct look, each);
    struct span key = *each_args(c, each);
    if (l->kind == LOOK_MANY && !key_valid(c, key)) return EACH_ON;
    if (l->kind != LOOK_PREFIX && l->kind != LOOK_COUNT && shard_refuses(c, key)) return EACH_ON;
    spread_at(c, &l->terms.spread, each->at, &l->terms.request);
    uint64_t hash = each_hash(c, each, each->at);
    struct object *o = store_find_hashed(books, key, hash);
    if (!o && l->kind < LOOK_COUNT && l->terms.counts)
        store_batch_miss(books, &l->terms.request, key, hash);
    if (!o && l->kind == LOOK_PREFIX && l->terms.counts)
        store_batch_gap(books, each->n - each->at - 1);
    if (!o) notify_key(NOTIFY_MISS, "keymiss", key);
    switch (l->kind) {
    case LOOK_ONE:
    case LOOK_MANY:
        if (o)
            look_answer(c, &l->terms, o, hash);
        else
            reply_null(c);
        break;
    case LOOK_PREFIX:
        if (!prefix_goes_on(c, l, o, hash)) return EACH_OVER;
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
    if (l->batch) reply_int(c, (int64_t)l->terms.batch);
}

static void look_begin(struct client *c, struct look *l) {
    l->each.one = look_one;
    l->each.at = 0;
    /* what was prefetched before a sleep is cold, and the keys may have come */
    l->each.count = 0;
    l->each.job.deadline_ms = 0;
    if (l->kind < LOOK_COUNT) look_terms_begin(c, &l->terms, l->each.n);
    if (l->kind == LOOK_MANY || l->kind == LOOK_FLAGS) reply_array(c, l->each.n + l->batch);
}

/* One waiter at a time is enough: each key is awaited until it was complete once. */
static enum each_next look_await(struct client *c, struct each *each, unsigned *budget) {
    struct look *l = CONTAINER_OF(each, struct look, each);
    struct span key = *each_args(c, each);
    waiter_remove(&l->waiter);
    each->job.runnable = true;
    if (turn.mono_ms < each->job.deadline_ms) {
        if (key.len > 0 && key.len <= STORE_KEY_MAX && !shard_lost(key) &&
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

static void look_keys(struct client *c, struct look *l, struct wire_list keys) {
    l->each.job.close = look_close;
    l->each.end = look_end;
    each_keys(&l->each, keys, 1);
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
    struct wire_look args = {0};
    if (!arg_bind(c, &args) || (kind == LOOK_ONE && !arg_key(c, args.keys.at))) return;
    if (!spread_check(c, &args.spread, args.keys.n)) return;
    if (args.kv_groups.n > 0 && args.batch) {
        reply_error(c, "BATCH is not for KVGROUPS");
        return;
    }
    if (args.kv_groups.n > 0 && args.spread.at != 0) {
        reply_syntax(c); /* parts of groups have no order among each other */
        return;
    }
    if (args.kv_groups.n > 0) {
        look_kv_groups(c, &args, kind == LOOK_MANY);
        return;
    }
    look_terms_init(c, &l.terms, &args);
    l.terms.gets = kind != LOOK_PREFIX;
    l.batch = args.batch;
    l.each.job.deadline_ms = look_deadline_ms(c, &args);
    look_keys(c, &l, args.keys);
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
    struct look l = {.kind = LOOK_COUNT};
    look_keys(c, &l, (struct wire_list){1, (uint32_t)c->argc - 1});
}
