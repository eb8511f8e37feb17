/* Batches over several masters: their keys apart by slot, one part for each master, all parts at
 * once, and the results together in the caller's order. The caller's thread runs a part, and after
 * it those that no other thread has begun with. */
#include <poll.h>
#include <stdlib.h>

#include "base/assert.h"
#include "client/shards.h"

#define PART_THREADS 64u
/* So many bytes are got sooner by one thread, which has asked all masters first, than others are
 * woken. */
#define AHEAD_BYTES (UINT64_C(1) << 20)
#define AHEAD_MS    50u /* until a master that has not answered is left to a thread */

/* --- apart --- */

static unsigned bucket_of(const struct slot_map *map, uint32_t slot, bool ask, bool singles) {
    unsigned owner = map->owner[slot], target = map->target[slot];
    if (ask && target != SLOT_NOBODY) return split_bucket(target, SPLIT_ASKING);
    if (owner == SLOT_NOBODY) return SPLIT_NOBODY;
    return split_bucket(owner, singles && target != SLOT_NOBODY ? SPLIT_SINGLE : SPLIT_PLAIN);
}

/* A counting sort: each bucket has its keys in the caller's order. */
void split_init(struct split *s, const struct slot_map *map, struct keys_of keys,
                const uint32_t *todo, const uint8_t *asks, size_t n, bool singles) {
    uint32_t at[SPLIT_NOBODY + 1] = {0}, sum = 0;
    struct slot_last last = {0};
    TARN_ASSERT(n < UINT32_MAX);
    s->n = n;
    s->order = xmalloc(n * (sizeof(*s->order) + 1) + 1);
    s->bucket = (uint8_t *)(s->order + n);
    for (size_t i = 0; i < n; i++) {
        uint32_t slot = slot_of_next(&last, keys_at(keys, todo != NULL ? todo[i] : i));
        s->bucket[i] = (uint8_t)bucket_of(map, slot, asks != NULL && asks[i], singles);
        at[s->bucket[i]]++;
    }
    for (unsigned b = 0; b <= SPLIT_NOBODY; b++) {
        s->begin[b] = sum;
        sum += at[b];
        at[b] = s->begin[b];
    }
    s->begin[SPLIT_NOBODY + 1] = sum;
    for (size_t i = 0; i < n; i++)
        s->order[at[s->bucket[i]]++] = todo != NULL ? todo[i] : (uint32_t)i;
}

void split_free(struct split *s) {
    free(s->order);
    s->order = NULL;
}

unsigned split_only(const struct split *s) {
    unsigned b = s->n > 0 ? s->bucket[0] : SPLIT_NOBODY;
    return s->begin[b + 1] - s->begin[b] == s->n ? b : SPLIT_NOBODY;
}

/* --- parts --- */

/* Gets (get), or puts (put, until the deadline). */
struct items_call {
    struct tarn_client *front;
    tarn_item *items;
    size_t n;
    const struct get_options *get;
    const tarn_put_options *put;
    struct rounds rounds;
    uint32_t *todo; /* positions for the next round; NULL in the first one: all */
    uint8_t *asks;
    size_t left;
    size_t answered;    /* parts that were tried */
    tarn_status failed; /* of the first part that was not; why: its text, owned */
    char *why;
    struct trace_context context;
};

struct split_part {
    struct crew_job job;
    struct items_call *call;
    struct shard *shard;
    bool asking;
    tarn_item *items;      /* where they lie while it runs */
    const uint32_t *order; /* of each its place in the call; NULL: they are all of it */
    size_t n;
    uint64_t began_ms, deadline;
    struct get_call get;
    struct put_call put;
    tarn_put_options put_options; /* the call's, of its items */
    uint32_t *depths;             /* owned */
    bool begun;                   /* its get or put is */
    tarn_status status;
    char *why; /* owned; NULL: TARN_OK */
};

static struct keys_of keys_of_items(const tarn_item *items) {
    static_assert(offsetof(tarn_item, key) == 0 &&
                      offsetof(tarn_item, key_len) == offsetof(tarn_key, len),
                  "an item begins as a key");
    return (struct keys_of){items, sizeof(*items)};
}

static void items_set(tarn_item *items, size_t n, tarn_status status) {
    for (size_t i = 0; i < n; i++) {
        items[i].status = status;
        items[i].got = 0;
    }
}

static uint64_t part_bytes(const struct split_part *p) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < p->n; i++) {
        const tarn_item *item = &p->items[i];
        bytes =
            add_sat(bytes, item->n_iov > 0 ? iov_total(item->iov, item->n_iov) : item->buffer_len);
    }
    return bytes;
}

static const tarn_key *keys_pick(const tarn_key *of, const struct split_part *p) {
    if (of == NULL || p->order == NULL) return of;
    tarn_key *picked = xmalloc(p->n * sizeof(*picked) + 1);
    for (size_t i = 0; i < p->n; i++) picked[i] = of[p->order[i]];
    return picked;
}

/* NULL: there are none, or they are the part's as they are. */
static uint32_t *depths_pick(const uint32_t *of, const struct split_part *p) {
    if (of == NULL || p->order == NULL) return NULL;
    uint32_t *picked = xmalloc(p->n * sizeof(*picked) + 1);
    for (size_t i = 0; i < p->n; i++) picked[i] = of[p->order[i]];
    return picked;
}

/* Its master learns where in the whole its keys are, and so the order and depth of a prefix. */
static struct call_spread part_spread(const struct split_part *p) {
    return (struct call_spread){p->order, p->call->n};
}

static void part_put_begin(struct split_part *p, bool ahead) {
    const tarn_put_options *all = p->call->put;
    tarn_put_options *o = &p->put_options;
    *o = *all;
    o->groups = keys_pick(all->groups, p);
    o->boundaries = keys_pick(all->boundaries, p);
    p->depths = depths_pick(all->depths, p);
    if (p->depths != NULL) o->depths = p->depths;
    p->put = (struct put_call){.client = p->shard->client,
                               .items = p->items,
                               .n = p->n,
                               .o = o,
                               .spread = o->depths != NULL ? put_spread(o, p->n) : part_spread(p),
                               .deadline = p->deadline,
                               .asking = p->asking};
    client_put_begin(&p->put, ahead);
}

static tarn_status part_put_end(struct split_part *p) {
    const tarn_put_options *all = p->call->put, *o = &p->put_options;
    tarn_status status = client_put_end(&p->put);
    free(p->depths);
    if (o->groups != all->groups) free((void *)(uintptr_t)o->groups);
    if (o->boundaries != all->boundaries) free((void *)(uintptr_t)o->boundaries);
    return status;
}

/* false: the shard is away. */
static bool part_begin(struct split_part *p) {
    p->began_ms = now_ms();
    p->deadline = p->call->rounds.deadline;
    p->status = shard_use(p->call->front, p->shard, part_bytes(p), &p->deadline);
    if (p->status == TARN_OK) return true;
    items_set(p->items, p->n, p->status);
    p->why = xstrdup(tarn_last_error());
    return false;
}

static void part_get_begin(struct split_part *p, bool ahead) {
    p->get = (struct get_call){
        .client = p->shard->client, .items = p->items, .n = p->n, .o = *p->call->get};
    p->get.o.deadline = p->deadline;
    p->get.o.wait_ms = 0;
    p->get.o.asking = p->asking;
    p->get.o.spread = part_spread(p);
    client_get_begin(&p->get, ahead);
}

static void part_move_begin(struct split_part *p, bool ahead) {
    if (p->call->get != NULL)
        part_get_begin(p, ahead);
    else
        part_put_begin(p, ahead);
}

static void part_end(struct split_part *p) {
    p->status = p->call->get != NULL ? client_get_end(&p->get) : part_put_end(p);
    shard_used(p->call->front, p->shard, p->status, p->began_ms);
    if (p->status != TARN_OK) p->why = xstrdup(tarn_last_error());
}

static void part_do(struct split_part *p) {
    if (!p->begun && !part_begin(p)) return;
    if (!p->begun) part_move_begin(p, false);
    part_end(p);
}

static bool part_run(struct crew_job *job) {
    struct split_part *p = CONTAINER_OF(job, struct split_part, job);
    trace_context_use(&p->call->context);
    part_do(p);
    trace_context_clear();
    return true;
}

static void part_here(struct crew_job *job) {
    part_do(CONTAINER_OF(job, struct split_part, job));
}

static bool job_is(const struct crew_job *job, const void *other) {
    return job == other;
}

static struct crew *shards_crew(struct tarn_client *front) {
    struct shards *s = front->shards;
    pthread_mutex_lock(&s->mutex);
    if (s->crew.threads == NULL)
        (void)crew_start(&s->crew, "tarn-shards",
                         (unsigned)min_u64(front->options.max_lanes * 3, PART_THREADS), NULL, NULL);
    bool has = s->crew.threads != NULL;
    pthread_mutex_unlock(&s->mutex);
    return has ? &s->crew : NULL; /* without a thread all is done by this one */
}

void shards_together(struct tarn_client *front, struct crew_job **jobs, size_t n,
                     void (*here)(struct crew_job *job)) {
    struct crew *crew = n > 1 ? shards_crew(front) : NULL;
    for (size_t i = 1; i < n && crew != NULL; i++) crew_add(crew, jobs[i]);
    if (n > 0) here(jobs[0]);
    /* The last ones are begun last by others. */
    for (size_t i = n; i-- > 1;) {
        if (crew == NULL || crew_cancel(crew, job_is, jobs[i]) > 0)
            here(jobs[i]);
        else
            crew_wait(crew, jobs[i]);
    }
}

static void parts_run(struct items_call *c, struct split_part **parts, size_t n) {
    struct crew_job *jobs[SPLIT_NOBODY];
    if (n > 1) trace_context_take(&c->context, c->front);
    for (size_t i = 0; i < n; i++) {
        parts[i]->job.run = part_run;
        jobs[i] = &parts[i]->job;
    }
    shards_together(c->front, jobs, n, part_here);
}

/* --- few bytes --- */

/* Each part one request, and of another master: of two calls that wait for lanes of each other's
 * masters none would have them. */
static bool parts_go_ahead(const struct items_call *c, struct split_part **parts, size_t n) {
    uint64_t bytes = 0;
    if (n < 2 || (c->get != NULL && c->get->allocate)) return false;
    for (size_t i = 0; i < n; i++) {
        bytes = add_sat(bytes, part_bytes(parts[i]));
        if (parts[i]->asking || parts[i]->n > c->front->options.batch_keys) return false;
    }
    return bytes <= AHEAD_BYTES;
}

/* Where its answer is awaited; NULL: none is. */
static struct ctl *part_ctl(const struct split_part *p) {
    bool get = p->call->get != NULL, asked = get ? p->get.asked : p->put.asked;
    struct ctl *ctl = asked ? &(get ? p->get.lane : p->put.lane)->ctl : NULL;
    return ctl != NULL && ctl->fd >= 0 ? ctl : NULL;
}

/* Its answer has come. true: it was the last one, and all is done. */
static bool part_answered(struct split_part *p) {
    if (p->call->get == NULL && !p->put.written && !client_put_write(&p->put)) return false;
    part_end(p);
    return true;
}

/* Ends those whose answers have come until then; the others are moved to the front. */
static size_t parts_end_ready(struct split_part **parts, size_t n, uint64_t until_ms) {
    struct pollfd fds[SLOT_SHARDS_MAX];
    for (uint64_t now = now_ms(); n > 0 && now < until_ms; now = now_ms()) {
        size_t asked = 0, left = 0;
        bool sleeps = true;
        for (size_t i = 0; i < n; i++) {
            struct ctl *ctl = part_ctl(parts[i]);
            fds[i] = (struct pollfd){.fd = ctl != NULL ? ctl->fd : -1, .events = POLLIN};
            asked += ctl != NULL;
            sleeps = (ctl == NULL || ctl_sleep(ctl)) && sleeps;
        }
        if (asked == 0) break;
        bool late = poll(fds, (nfds_t)n, sleeps ? (int)(until_ms - now) : 0) < 0;
        for (size_t i = 0; i < n; i++) {
            struct ctl *ctl = part_ctl(parts[i]);
            bool there = ctl != NULL && ctl_woke(ctl, late ? 0 : fds[i].revents);
            if (!there || !part_answered(parts[i])) parts[left++] = parts[i];
        }
        n = left;
        if (late) break;
    }
    return n;
}

/* All masters are asked before the first answer is awaited; those that are slow, or have to be
 * connected to, are left to threads. */
static size_t parts_run_ahead(struct split_part **parts, size_t n) {
    size_t begun = 0;
    for (size_t i = 0; i < n; i++) {
        if (!part_begin(parts[i])) continue;
        part_move_begin(parts[i], true);
        parts[i]->begun = true;
        parts[begun++] = parts[i];
    }
    return parts_end_ready(parts, begun, now_ms() + AHEAD_MS);
}

/* --- together --- */

/* Whatever another master may have, or may have by now. */
static void part_rest(struct items_call *c, const struct split_part *p) {
    bool failed = status_is_lost(p->status);
    for (size_t i = 0; i < p->n; i++) {
        const tarn_item *item = &p->items[i];
        bool refused = item->status == TARN_EMOVED;
        if (!refused && !(failed && item->status == p->status)) continue;
        if (c->todo == NULL) {
            c->todo = xmalloc(c->n * (sizeof(*c->todo) + 1));
            c->asks = (uint8_t *)(c->todo + c->n);
        }
        uint32_t slot = slot_of_key(keys_at(keys_of_items(item), 0));
        c->asks[c->left] = refused && rounds_refused(&c->rounds, p->shard, slot, p->asking);
        c->todo[c->left++] = p->order != NULL ? p->order[i] : (uint32_t)i;
    }
}

static void part_settle(struct items_call *c, struct split_part *p) {
    if (p->order != NULL) {
        for (size_t i = 0; i < p->n; i++) c->items[p->order[i]] = p->items[i];
    }
    part_rest(c, p);
    c->answered += p->status == TARN_OK;
    if (p->status != TARN_OK && c->failed == TARN_OK) {
        c->failed = p->status;
        c->why = p->why;
        p->why = NULL;
    }
    free(p->why);
}

static void nobody_settle(struct items_call *c, const struct split *s) {
    uint32_t from = s->begin[SPLIT_NOBODY], to = s->begin[SPLIT_NOBODY + 1];
    if (from == to) return;
    tarn_status status = fail(TARN_ELOADING, "no master has the key's slot (CLUSTER MAP)");
    for (uint32_t i = from; i < to; i++) items_set(&c->items[s->order[i]], 1, status);
    if (c->failed == TARN_OK) c->why = xstrdup(tarn_last_error());
    c->failed = status;
}

static struct split_part part_of(struct items_call *c, unsigned bucket) {
    return (struct split_part){.call = c,
                               .shard = c->rounds.map->shard[bucket / SPLIT_KINDS],
                               .asking = bucket % SPLIT_KINDS == SPLIT_ASKING};
}

/* All of the call is one master's: nothing is copied. */
static void whole_run(struct items_call *c, unsigned bucket) {
    struct split_part p = part_of(c, bucket);
    p.items = c->items;
    p.n = c->n;
    struct split_part *one = &p;
    parts_run(c, &one, 1);
    part_settle(c, &p);
}

static void split_run(struct items_call *c, const struct split *s) {
    tarn_item *sorted = xmalloc(s->n * sizeof(*sorted) + 1);
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) sorted[i] = c->items[s->order[i]];
    for (unsigned b = 0; b < SPLIT_NOBODY; b++) n += s->begin[b] != s->begin[b + 1];
    struct split_part *parts = xcalloc(n + 1, sizeof(*parts)),
                      **run = xcalloc(n + 1, sizeof(struct split_part *));
    n = 0;
    for (unsigned b = 0; b < SPLIT_NOBODY; b++) {
        if (s->begin[b] == s->begin[b + 1]) continue;
        parts[n] = part_of(c, b);
        parts[n].items = sorted + s->begin[b];
        parts[n].order = s->order + s->begin[b];
        parts[n].n = s->begin[b + 1] - s->begin[b];
        run[n] = &parts[n];
        n++;
    }
    parts_run(c, run, parts_go_ahead(c, run, n) ? parts_run_ahead(run, n) : n);
    for (size_t i = 0; i < n; i++) part_settle(c, &parts[i]);
    nobody_settle(c, s);
    free(run);
    free(parts);
    free(sorted);
}

/* One key, as most calls have: nothing is sorted. */
static void single_run(struct items_call *c, bool asking) {
    const struct slot_map *slots = c->rounds.map->slots;
    uint32_t slot = slot_of_key(keys_at(keys_of_items(c->items), 0));
    unsigned b = bucket_of(slots, slot, asking, false);
    if (b != SPLIT_NOBODY) {
        whole_run(c, b);
        return;
    }
    items_set(c->items, 1,
              c->failed = fail(TARN_ELOADING, "no master has slot %u of the key", slot));
    c->why = xstrdup(tarn_last_error());
}

static void round_run(struct items_call *c) {
    uint32_t *todo = c->todo;
    uint8_t *asks = c->asks;
    size_t n = todo != NULL ? c->left : c->n;
    c->todo = NULL;
    c->left = c->answered = 0;
    c->failed = TARN_OK;
    free(c->why);
    c->why = NULL;
    bool moving = todo == NULL && c->put != NULL && c->put->moving;
    if (c->n == 1) {
        single_run(c, moving || (asks != NULL && asks[0]));
    } else {
        struct split s;
        uint8_t *all = moving ? memset(xmalloc(n), 1, n) : NULL;
        split_init(&s, c->rounds.map->slots, keys_of_items(c->items), todo, moving ? all : asks, n,
                   false);
        free(all);
        unsigned only = split_only(&s);
        if (todo == NULL && only != SPLIT_NOBODY)
            whole_run(c, only);
        else
            split_run(c, &s);
        split_free(&s);
    }
    free(todo);
}

/* Those that no master took: what failed keeps its status. */
static void rest_settle(struct items_call *c) {
    for (size_t i = 0; i < c->left; i++) {
        tarn_item *item = &c->items[c->todo[i]];
        if (item->status == TARN_EMOVED) item->status = fail(TARN_ELATER, ROUNDS_OVER);
    }
    free(c->todo);
}

/* TARN_OK: every key was tried, but for those of some shards. */
static tarn_status items_run(struct items_call *c, uint64_t deadline) {
    bool all_failed = true;
    rounds_begin(&c->rounds, c->front, deadline);
    do {
        round_run(c);
        all_failed = all_failed && c->answered == 0;
    } while (c->left > 0 && rounds_next(&c->rounds));
    tarn_status status = all_failed ? c->failed : TARN_OK;
    if (c->why != NULL) fail(c->failed, "%s", c->why);
    rest_settle(c);
    free(c->why);
    rounds_end(&c->rounds);
    return status;
}

/* --- keys that nobody can have --- */

static bool items_have_keys(tarn_item *items, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (items[i].key == NULL || items[i].key_len == 0 || items[i].key_len > TARN_KEY_MAX)
            return false;
    return true;
}

/* --- calls --- */

/* Before anything is leased: its clock would run while we wait. */
static tarn_status items_wait(struct tarn_client *front, const tarn_item *items, size_t n,
                              const struct get_options *o) {
    tarn_key *keys = xmalloc(n * sizeof(*keys) + 1);
    for (size_t i = 0; i < n; i++) keys[i] = (tarn_key){items[i].key, items[i].key_len};
    const struct lookup l = {.id = WIRE_prefixlen, .keys = keys, .n = n, .wait_ms = o->wait_ms};
    size_t length;
    tarn_status status = shards_lookup(front, &l, o->deadline, NULL, &length);
    free(keys);
    return status;
}

tarn_status shards_get(struct tarn_client *front, tarn_item *items, size_t n,
                       const struct get_options *o) {
    struct items_call c = {.front = front, .items = items, .n = n, .get = o};
    uint64_t started = clock_mono_us();
    if (o->wait_ms > 0 && items_have_keys(items, n)) (void)items_wait(front, items, n, o);
    tarn_status status = items_run(&c, o->deadline);
    shards_timing(front, TARN_HIST_GET, n, started);
    return status;
}

tarn_status shards_put(struct tarn_client *front, tarn_item *items, size_t n,
                       const tarn_put_options *o, uint64_t deadline) {
    struct items_call c = {.front = front, .items = items, .n = n, .put = o};
    uint64_t started = clock_mono_us();
    tarn_status status = items_run(&c, deadline);
    shards_timing(front, TARN_HIST_PUT, n, started);
    return status;
}
