/* Look-ups over several masters: requests go out to all of them before the first answer is waited
 * for, by one thread. All of it may be repeated without harm. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/assert.h"
#include "base/errors.h"
#include "client/shards.h"

/* One master's share of the keys: order[from, to). */
struct leg {
    struct crew_job job; /* of connecting */
    struct shard *shard;
    struct lane *lane; /* NULL: it was not had */
    uint32_t from, to;
    uint64_t deadline, began_ms;
    tarn_status status;
    bool connects; /* its lane has no connection */
    char *why;     /* it could not be made, owned */
};

struct looking {
    const struct lookup *l;
    struct tarn_client *front;
    struct call_trace *trace;
    struct rounds rounds;
    uint8_t *there; /* by key: 1, 0 */
    /* of this round */
    struct split split;
    tarn_key *keys; /* as in split.order */
    uint8_t *kind;  /* likewise */
    struct leg leg[SLOT_SHARDS_MAX];
    unsigned legs;
    /* of the next one */
    uint32_t *todo;
    uint8_t *asks;
    size_t left;
    tarn_status failed; /* of the first shard that did not answer, and its text */
    char why[512];
    bool answered; /* some shard did */
};

/* --- requests of a leg --- */

/* From at on: so many keys, all of one kind. */
static uint32_t chunk_len(const struct looking *k, const struct leg *leg, uint32_t at) {
    uint32_t n = 1;
    if (k->kind[at] == SPLIT_SINGLE) return 1;
    while (n < LOOKUP_KEYS && at + n < leg->to && k->kind[at + n] == k->kind[at]) n++;
    return n;
}

static struct lookup chunk_lookup(const struct looking *k, uint32_t at, uint32_t n) {
    struct lookup part = *k->l;
    part.keys = k->keys + at;
    part.n = n;
    if (part.id == WIRE_prefixlen && n < k->l->n)
        part.spread = (struct call_spread){k->split.order + at, k->l->n};
    /* A master lets keys that come wake who waits, but those of a slot that moves may come to
     * another one. */
    if (k->kind[at] != SPLIT_PLAIN) part.wait_ms = 0;
    return part;
}

static tarn_status leg_send(struct looking *k, struct leg *leg) {
    struct lane *lane = leg->lane;
    tarn_status status = TARN_OK;
    for (uint32_t at = leg->from, n; at < leg->to && status == TARN_OK; at += n) {
        n = chunk_len(k, leg, at);
        const struct lookup part = chunk_lookup(k, at, n);
        lane->ctl.asking = k->kind[at] == SPLIT_ASKING;
        lookup_build(lane, &part);
        status = lane_send(lane, false);
    }
    lane->ctl.asking = false;
    return status;
}

/* --- answers --- */

static void key_again(struct looking *k, uint32_t at, bool asking) {
    k->todo[k->left] = k->split.order[at];
    k->asks[k->left++] = asking;
}

/* Of a key, or of all of a request. TARN_OK: they are asked for again. */
static tarn_status key_error(struct looking *k, struct leg *leg, uint32_t at, uint32_t n,
                             tarn_status status) {
    bool asking = k->kind[at] == SPLIT_ASKING;
    bool later = error_act(status) == ERROR_LATER;
    if (status != TARN_EMOVED && !later) return status;
    for (uint32_t i = at; i < at + n; i++) {
        uint32_t slot = slot_of_key(span_of(k->keys[i].data, k->keys[i].len));
        key_again(k, i, later ? asking : rounds_refused(&k->rounds, leg->shard, slot, asking));
    }
    k->rounds.later = k->rounds.later || later;
    return TARN_OK;
}

static tarn_status chunk_read(struct looking *k, struct leg *leg, uint32_t at, uint32_t n,
                              const struct answer *a) {
    const char *name = wire_commands[k->l->id].name;
    uint64_t count = 0;
    tarn_status status = answer_check(a, name);
    if (status != TARN_OK) return key_error(k, leg, at, n, status);
    if (k->l->id != WIRE_mexists) {
        if (!answer_u64(a, &count)) return fail(TARN_EPROTO, "%s: the answer is no number", name);
        for (uint32_t i = 0; i < n; i++) k->there[k->split.order[at + i]] = i < count;
        return TARN_OK;
    }
    if (a->type != ANSWER_ARRAY || a->len != n)
        return fail(TARN_EPROTO, "%s: wrong number of answers", name);
    for (uint32_t i = 0; i < n && status == TARN_OK; i++) {
        const struct answer *one = &a->element[i];
        k->there[k->split.order[at + i]] = one->type == ANSWER_INTEGER && one->integer == 1;
        if (UNLIKELY(one->type == ANSWER_ERROR))
            status = key_error(k, leg, at + i, 1, answer_error_status(one->str));
    }
    return status;
}

static tarn_status leg_receive(struct looking *k, struct leg *leg) {
    size_t left = k->left;
    tarn_status status = TARN_OK;
    struct answer *a;
    for (uint32_t at = leg->from, n; at < leg->to && status == TARN_OK; at += n) {
        n = chunk_len(k, leg, at);
        status = lane_receive(leg->lane, &a, leg->deadline);
        if (status == TARN_OK) status = chunk_read(k, leg, at, n, a);
    }
    if (status == TARN_OK) return status;
    k->left = left; /* all of it again, or none */
    ctl_abandon(&leg->lane->ctl);
    return status;
}

static tarn_status leg_once(struct lane *lane, void *arg, uint64_t deadline) {
    struct looking *k = arg;
    unsigned i = 0;
    (void)deadline;
    while (k->leg[i].lane != lane) i++;
    tarn_status status = leg_send(k, &k->leg[i]);
    return status == TARN_OK ? leg_receive(k, &k->leg[i]) : status;
}

/* --- legs --- */

static void leg_failed(struct looking *k, const struct leg *leg) {
    if (k->failed == TARN_OK) {
        k->failed = leg->status;
        snprintf(k->why, sizeof(k->why), "%s", tarn_last_error());
    }
    for (uint32_t i = leg->from; i < leg->to; i++) {
        k->there[k->split.order[i]] = 0;
        key_again(k, i, k->kind[i] == SPLIT_ASKING);
    }
}

static void leg_begin(struct looking *k, struct leg *leg) {
    leg->began_ms = now_ms();
    leg->deadline = k->rounds.deadline;
    leg->status = shard_use(k->front, leg->shard, 0, &leg->deadline);
    if (leg->status == TARN_OK)
        leg->status = lane_take(leg->shard->client, k->trace, leg->deadline, &leg->lane);
    if (leg->status != TARN_OK) return;
    lookup_count(leg->lane, &(struct lookup){.id = k->l->id, .n = leg->to - leg->from});
    leg->connects = leg->lane->ctl.fd < 0;
    if (leg->connects) return;
    leg->status = lane_ready(leg->lane, leg->deadline);
    if (leg->status == TARN_OK) leg->status = leg_send(k, leg);
}

static void leg_connect(struct crew_job *job) {
    struct leg *leg = CONTAINER_OF(job, struct leg, job);
    leg->status = lane_run(leg->lane, leg->deadline, NULL, NULL);
    if (leg->status != TARN_OK) leg->why = xstrdup(tarn_last_error());
}

static bool leg_connect_run(struct crew_job *job) {
    leg_connect(job);
    return true;
}

/* Those that have to connect, all at once: that may take its time. */
static void legs_connect(struct looking *k) {
    struct crew_job *jobs[SLOT_SHARDS_MAX];
    uint64_t began_ns = k->trace->on && k->trace->spans ? clock_mono_ns() : 0;
    size_t n = 0;
    for (unsigned i = 0; i < k->legs; i++) {
        if (!k->leg[i].connects) continue;
        k->leg[i].job.run = leg_connect_run;
        k->leg[i].lane->trace = NULL; /* which is for one thread */
        jobs[n++] = &k->leg[i].job;
    }
    if (n > 0) shards_together(k->front, jobs, n, leg_connect);
    for (unsigned i = 0; i < k->legs; i++) {
        struct leg *leg = &k->leg[i];
        if (!leg->connects) continue;
        leg->lane->trace = k->trace->on ? k->trace : NULL;
        trace_connected(leg->lane, began_ns, leg->status);
        lane_tell_trace(leg->lane);
        if (leg->status == TARN_OK) leg->status = leg_send(k, leg);
    }
}

static void leg_end(struct looking *k, struct leg *leg) {
    if (leg->why != NULL)
        fail(leg->status, "%s", leg->why);
    else if (leg->lane != NULL && leg->status != TARN_OK && status_is_lost(leg->status))
        leg->status = lane_run(leg->lane, leg->deadline, leg_once, k);
    free(leg->why);
    if (leg->lane != NULL) shard_used(k->front, leg->shard, leg->status, leg->began_ms);
    if (leg->status != TARN_OK)
        leg_failed(k, leg);
    else
        k->answered = true;
    if (leg->lane != NULL) lane_give(leg->lane);
}

/* How many leading keys are there; else how many. */
static size_t look_count(const struct looking *k) {
    size_t count = 0;
    if (k->l->id == WIRE_prefixlen) {
        while (count < k->l->n && k->there[count]) count++;
        return count;
    }
    for (size_t i = 0; i < k->l->n; i++) count += k->there[i];
    return count;
}

/* Ends the leases of its keys from place gap on; nobody waits for the answer. */
static void leg_release(struct looking *k, struct leg *leg, size_t gap) {
    struct ctl_request *r = &leg->lane->request;
    for (uint32_t i = leg->from; i < leg->to;) {
        request_begin(r);
        struct wire_release ends = {.keys = {request_next(r), 0}};
        for (; i < leg->to && ends.keys.n < LOOKUP_KEYS; i++) {
            uint32_t place = k->split.order[i];
            if (place < gap || !k->there[place]) continue;
            request_word(r, k->keys[i].data, k->keys[i].len);
            request_number(r, 0);
            ends.keys.n++;
        }
        if (ends.keys.n == 0) return;
        request_build(r, WIRE_release, &ends);
        lane_send(leg->lane, true);
    }
}

/* A master leases the keys up to its own first miss; the prefix ends at the first of all. */
static void legs_release(struct looking *k) {
    bool all = k->left == 0 && k->split.begin[SPLIT_NOBODY] == k->split.begin[SPLIT_NOBODY + 1];
    for (unsigned i = 0; i < k->legs; i++) all = all && k->leg[i].status == TARN_OK;
    if (!all || k->l->id != WIRE_prefixlen || k->l->lease_ms == 0) return;
    size_t gap = look_count(k);
    for (unsigned i = 0; i < k->legs; i++) leg_release(k, &k->leg[i], gap);
}

/* In the order of the map, which is that of their names: of two calls that wait for lanes of each
 * other's masters none would have them. */
static void legs_cut(struct looking *k) {
    k->legs = 0;
    for (unsigned shard = 0; shard < k->rounds.map->slots->shards; shard++) {
        uint32_t from = k->split.begin[split_bucket(shard, 0)],
                 to = k->split.begin[split_bucket(shard, SPLIT_KINDS)];
        if (from == to) continue;
        k->leg[k->legs++] =
            (struct leg){.shard = k->rounds.map->shard[shard], .from = from, .to = to};
    }
}

static void legs_run(struct looking *k) {
    for (unsigned i = 0; i < k->legs; i++) leg_begin(k, &k->leg[i]);
    legs_connect(k);
    for (unsigned i = 0; i < k->legs; i++)
        if (k->leg[i].status == TARN_OK) k->leg[i].status = leg_receive(k, &k->leg[i]);
    legs_release(k);
    for (unsigned i = 0; i < k->legs; i++) leg_end(k, &k->leg[i]);
}

static void nobody_has(struct looking *k) {
    struct leg none = {.from = k->split.begin[SPLIT_NOBODY],
                       .to = k->split.begin[SPLIT_NOBODY + 1]};
    if (none.from == none.to) return;
    none.status = fail(TARN_ELOADING, "no master has the key's slot (CLUSTER MAP)");
    leg_failed(k, &none);
}

static void round_look(struct looking *k, const uint32_t *todo, const uint8_t *asks, size_t n) {
    bool singles = k->l->id != WIRE_mexists;
    split_init(&k->split, k->rounds.map->slots, (struct keys_of){k->l->keys, sizeof(tarn_key)},
               todo, asks, n, singles);
    k->keys = xmalloc(n * (sizeof(*k->keys) + sizeof(*k->todo) + 2) + 1);
    k->todo = (uint32_t *)(void *)(k->keys + n);
    k->asks = (uint8_t *)(k->todo + n);
    k->kind = k->asks + n;
    k->left = 0;
    k->failed = TARN_OK;
    for (unsigned b = 0; b < SPLIT_NOBODY; b++) {
        for (uint32_t i = k->split.begin[b]; i < k->split.begin[b + 1]; i++) {
            k->keys[i] = k->l->keys[k->split.order[i]];
            k->kind[i] = (uint8_t)(b % SPLIT_KINDS);
        }
    }
    legs_cut(k);
    legs_run(k);
    nobody_has(k);
    split_free(&k->split);
}

/* --- calls --- */

static void rounds_look(struct looking *k) {
    tarn_key *before = NULL;
    round_look(k, NULL, NULL, k->l->n);
    while (k->left > 0 && rounds_next(&k->rounds)) {
        before = k->keys;
        round_look(k, k->todo, k->asks, k->left);
        free(before);
    }
    if (k->left > 0 && k->failed == TARN_OK) {
        k->failed = fail(TARN_ELATER, ROUNDS_OVER);
        snprintf(k->why, sizeof(k->why), "%s", tarn_last_error());
    }
    free(k->keys);
}

/* Of a shard that is away no key is there, as long as another one answers; what was to be removed
 * is not. */
static tarn_status look_status(const struct looking *k) {
    bool matters = !k->answered || k->l->id == WIRE_del || k->failed == TARN_ELATER;
    if (k->failed == TARN_OK || !matters) return TARN_OK;
    return fail(k->failed, "%s", k->why);
}

/* What moves is not waited for by the masters. */
static void look_wait(struct looking *k) {
    static const uint64_t pause_ms = 10;
    uint64_t until = add_sat(now_ms(), k->l->wait_ms);
    rounds_look(k);
    while (k->l->wait_ms > 0 && k->failed == TARN_OK && look_count(k) < k->l->n &&
           now_ms() + pause_ms < until) {
        poll(NULL, 0, (int)pause_ms);
        struct lookup again = *k->l;
        const struct lookup *l = k->l;
        again.wait_ms = until - now_ms();
        k->l = &again;
        k->rounds.made = 0;
        rounds_look(k);
        k->l = l;
    }
}

tarn_status shards_lookup(struct tarn_client *front, const struct lookup *l, uint64_t deadline,
                          uint8_t *found, size_t *count_p) {
    uint64_t started = clock_mono_us();
    struct call_trace trace;
    struct looking k = {.l = l, .front = front, .trace = &trace};
    size_t count = 0;
    k.there = found != NULL ? found : xmalloc(l->n + 1);
    memset(k.there, 0, l->n);
    trace_begin(&trace, front, l->id == WIRE_del ? "remove" : "lookup", l->n);
    rounds_begin(&k.rounds, front, deadline);
    look_wait(&k);
    rounds_end(&k.rounds);
    tarn_status status = look_status(&k);
    if (status == TARN_OK) *count_p = count = look_count(&k);
    if (l->id != WIRE_del) shards_timing(front, TARN_HIST_LOOKUP, l->n, started);
    trace_end(&trace, status, count, 0);
    if (found == NULL) free(k.there);
    return status;
}

/* --- one key, or none --- */

static tarn_status one_try(struct tarn_client *front, struct shard *shard, bool asking,
                           uint64_t deadline, shard_fn fn, void *arg) {
    uint64_t began_ms = now_ms();
    tarn_status status = shard_use(front, shard, 0, &deadline);
    if (status != TARN_OK) return status;
    status = fn(shard->client, asking, deadline, arg);
    shard_used(front, shard, status, began_ms);
    return status;
}

tarn_status shards_one(struct tarn_client *front, const void *key, size_t key_len,
                       uint64_t deadline, shard_fn fn, void *arg) {
    struct rounds r;
    uint32_t slot = slot_of_key(span_of(key, key_len));
    bool asking = false;
    tarn_status status;
    rounds_begin(&r, front, deadline);
    do {
        const struct slot_map *slots = r.map->slots;
        asking = asking && slots->target[slot] != SLOT_NOBODY;
        unsigned owner = asking ? slots->target[slot] : slots->owner[slot];
        if (owner == SLOT_NOBODY) {
            status = fail(TARN_ELOADING, "no master has slot %u of the key", slot);
            break;
        }
        status = one_try(front, r.map->shard[owner], asking, deadline, fn, arg);
        if (status == TARN_EMOVED) asking = rounds_refused(&r, r.map->shard[owner], slot, asking);
    } while ((status == TARN_EMOVED || status_is_lost(status)) && rounds_next(&r));
    if (status == TARN_EMOVED) status = fail(TARN_ELATER, ROUNDS_OVER);
    rounds_end(&r);
    return status;
}

tarn_status shards_any(struct tarn_client *front, uint64_t deadline, shard_fn fn, void *arg) {
    struct rounds r;
    tarn_status status = fail(TARN_ELOADING, "the slot map has no master");
    rounds_begin(&r, front, deadline);
    for (unsigned i = 0; i < r.map->slots->shards; i++) {
        if (r.map->shard[i]->client->master.n == 0) continue;
        status = one_try(front, r.map->shard[i], false, deadline, fn, arg);
        if (!status_is_lost(status)) break;
    }
    rounds_end(&r);
    return status;
}
