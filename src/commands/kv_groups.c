/* PREFIXLEN and MGETREPLICAS with KVGROUPS: the longest prefix of a model with several KV groups.
 * What has to be looked for base/kv_groups.h says, part by part; a part's key is the name of its
 * group and the hash at its end. The walk goes over parts in slices, and the pool may change
 * between them:
 *
 *   kv_await ─> kv_probe ─ LEASE ─> kv_lease ─ all are leased ─> answer
 *                  ^   └─ none, and the boundary is known ─────────^
 *                  └─ shorter ─ kv_undo <─┘ one is gone
 *
 * Leases are taken once it is known what will be read, and uses are counted once all are leased:
 * look-ups of parts that are of no use keep nothing from eviction. */
#include "commands/look.h"

#include <stdlib.h>
#include "base/assert.h"
#include "cluster/cluster.h"
#include "front/each.h"
#include "front/notify.h"
#include "front/waiters.h"
#include "store/kv_find.h"

/* of a search are as much work as a look-up */
enum { SEARCH_STEPS = 16 };

static_assert(KV_GROUPS_MAX == WIRE_KV_GROUPS_MAX, "one limit");

struct kv_look {
    struct each each;
    struct look_terms terms;
    bool replicas; /* MGETREPLICAS */
    struct wire_list hashes;
    uint32_t names; /* of the first group; index of an argument */
    uint32_t alignment;
    struct kv_group *groups;
    size_t n;
    struct kv_search search;
    uint64_t longest; /* the boundary if all parts were there */

    /* the walk over parts: part number `part` of group number `group` */
    size_t group;
    uint32_t part;
    struct kv_parts parts;
    struct waiter *waiter;
    struct buf fresh; /* versions, uint64_t, that were leased so far and were not before */
    uint64_t limit;   /* of the boundary that is looked for next */
    bool refused;     /* there are too many leases: none is kept */
    uint64_t named;   /* parts that are read */

    /* the first part that was missing */
    bool missed;
    struct kv_want miss;

    struct kv_finder finder;
};

static struct kv_look *look_of(struct each *each) {
    return CONTAINER_OF(each, struct kv_look, each);
}

/* --- keys --- */

/* Arguments may have moved while the look-up slept. */
static struct kv_finder *finder_of(const struct client *c, struct kv_look *l) {
    l->finder.groups = l->groups;
    l->finder.names = &c->argv[l->names];
    l->finder.hashes = &c->argv[l->hashes.at];
    return &l->finder;
}

/* NULL: it is not there. */
static struct object *part_find(const struct client *c, struct kv_look *l, const struct kv_want *w,
                                struct span *key_p, uint64_t *hash_p) {
    return kv_find_part(finder_of(c, l), books, w, key_p, hash_p);
}

/* --- the walk over parts --- */

static void parts_enter(struct kv_look *l, size_t group, uint64_t boundary, bool awaited) {
    l->group = group;
    l->part = 0;
    if (group == l->n) return;
    l->parts = awaited ? kv_group_needs(&l->groups[group], l->alignment, boundary)
                       : kv_search_parts(&l->search, group);
}

static struct kv_want part_want(const struct kv_look *l) {
    const struct kv_group *g = &l->groups[l->group];
    bool tail = l->part == l->parts.blocks;
    return (struct kv_want){.group = l->group,
                            .place = kv_parts_place(g, &l->parts, l->part),
                            .step = (int32_t)(g->block / g->unit),
                            .row = tail ? 1 : l->parts.blocks - l->part};
}

static void note_miss(struct kv_look *l, const struct kv_want *w) {
    if (l->missed) return;
    l->missed = true;
    l->miss = *w;
}

static bool parts_over(const struct kv_look *l) {
    return l->part == kv_parts_count(&l->parts);
}

/* --- what is counted --- */

static void count_begin(struct client *c, struct kv_look *l) {
    uint64_t n = l->missed;
    for (size_t i = 0; i < l->n; i++) {
        struct kv_parts p = kv_search_parts(&l->search, i);
        n += kv_parts_count(&p);
    }
    look_terms_begin(c, &l->terms, n);
    l->named = n - l->missed;
}

/* Blocks of the group, wherever the parts before this one were: its depth in its own prefix. */
static void count_depth(struct kv_look *l, const struct kv_want *w) {
    const struct kv_group *g = &l->groups[w->group];
    l->terms.request.base_depth = w->place / (g->block / g->unit) - l->terms.request.pos;
}

/* The part that ended the prefix is the miss, with which puts of this client may go on. */
static void count_end(struct client *c, struct kv_look *l) {
    char text[STORE_KEY_MAX];
    if (!l->missed) return;
    struct span key = kv_find_key(finder_of(c, l), l->miss.group, l->miss.place, text);
    notify_key(NOTIFY_MISS, "keymiss", key);
    if (!l->terms.counts) return;
    count_depth(l, &l->miss);
    store_batch_miss(books, &l->terms.request, key, store_hash(key));
}

/* --- the reply --- */

/* Where the parts lie is an array of its own behind it, and not in those of the groups: readers of
 * RESP bound how deep arrays may be (hiredis: 7), and a place with several replicas has five. */
static void answer_boundary(struct client *c, const struct kv_look *l) {
    reply_array(c, l->replicas ? 3 : 2);
    reply_int(c, (int64_t)l->search.boundary);
    reply_array(c, l->n);
    for (size_t i = 0; i < l->n; i++) {
        struct kv_parts p = kv_search_parts(&l->search, i);
        reply_array(c, 3);
        reply_int(c, p.first);
        reply_int(c, p.blocks);
        reply_int(c, (int64_t)p.tail);
    }
}

/* Part by part: MGETREPLICAS says where it lies, PREFIXLEN only counts it as used. */
static void answer_part(struct client *c, struct kv_look *l, struct object *o, uint64_t hash) {
    if (l->replicas) {
        look_answer(c, &l->terms, o, hash);
    } else {
        store_batch_hit(books, &l->terms.request, o, hash);
        cluster_hit(o, true);
    }
}

static void answer_gone(struct client *c, struct kv_look *l, struct span key, uint64_t hash) {
    if (l->terms.counts) store_batch_miss(books, &l->terms.request, key, hash);
    notify_key(NOTIFY_MISS, "keymiss", key);
    if (l->replicas) reply_null(c);
}

static enum each_next kv_answer(struct client *c, struct each *each, unsigned *budget) {
    struct kv_look *l = look_of(each);
    struct span key;
    uint64_t hash;
    if (parts_over(l)) {
        parts_enter(l, l->group + 1, 0, false);
        if (l->group < l->n) return EACH_ON;
        if (!l->replicas) answer_boundary(c, l); /* once all is counted */
        count_end(c, l);
        return EACH_OVER;
    }
    struct kv_want w = part_want(l);
    struct object *o = part_find(c, l, &w, &key, &hash);
    l->part++;
    count_depth(l, &w);
    if (o)
        answer_part(c, l, o, hash);
    else
        answer_gone(c, l, key, hash);
    return EACH_ON;
}

/* What is read is known; with LEASE it is leased. PREFIXLEN without one touches no object. */
static enum each_next answer_begin(struct client *c, struct kv_look *l) {
    bool leased = l->terms.lease_ms > 0;
    count_begin(c, l);
    if (l->replicas) {
        answer_boundary(c, l);
        reply_array(c, l->named);
    } else if (!leased || !l->terms.counts) {
        if (l->terms.counts) store_batch_seen(books, &l->terms.request, (uint32_t)l->named);
        answer_boundary(c, l);
        count_end(c, l);
        return EACH_OVER;
    }
    l->each.one = kv_answer;
    parts_enter(l, 0, 0, false);
    return EACH_ON;
}

/* --- leases --- */

static enum each_next kv_probe(struct client *c, struct each *each, unsigned *budget);

static void probe_begin(struct kv_look *l, uint64_t limit) {
    kv_search_begin(&l->search, l->groups, l->n, l->alignment, limit);
    l->each.one = kv_probe;
    l->finder.ahead_n = 0;
}

/* Of one that is missing nothing longer can be read: the boundary before it, or before this one,
 * as an unfinished block may have a shorter one instead. */
static uint64_t boundary_without(const struct kv_look *l) {
    const struct kv_group *g = &l->groups[l->group];
    if (g->kind != KV_GROUP_FULL || l->part == l->parts.blocks) return l->search.boundary - 1;
    return ((uint64_t)l->parts.first + l->part) * g->block;
}

/* Gives back what this look-up has leased, and only that. */
static enum each_next kv_undo(struct client *c, struct each *each, unsigned *budget) {
    struct kv_look *l = look_of(each);
    if (l->fresh.len > 0) {
        uint64_t version;
        l->fresh.len -= sizeof(version);
        memcpy(&version, l->fresh.data + l->fresh.len, sizeof(version));
        store_lease_undo(books, c->id, version);
        return EACH_ON;
    }
    if (!l->refused) {
        probe_begin(l, l->limit);
        return EACH_ON;
    }
    look_refuse_lease(c);
    return EACH_OVER;
}

static enum each_next undo_begin(struct kv_look *l) {
    l->each.one = kv_undo;
    return EACH_ON;
}

static enum each_next kv_lease(struct client *c, struct each *each, unsigned *budget) {
    struct kv_look *l = look_of(each);
    struct span key;
    uint64_t hash, granted_ms;
    if (parts_over(l)) {
        parts_enter(l, l->group + 1, 0, false);
        return l->group == l->n ? answer_begin(c, l) : EACH_ON;
    }
    struct kv_want w = part_want(l);
    struct object *o = part_find(c, l, &w, &key, &hash);
    if (!o) {
        note_miss(l, &w);
        l->limit = boundary_without(l);
        return undo_begin(l);
    }
    bool had = store_leased(books, o, c->id);
    l->refused =
        store_lease(books, o, c->id, l->terms.lease_ms + l->terms.late_ms, &granted_ms) != TARN_OK;
    if (l->refused) return undo_begin(l);
    if (!had && store_leased(books, o, c->id)) {
        uint64_t version = store_object_version(o);
        buf_append(&l->fresh, &version, sizeof(version));
    }
    l->part++;
    return EACH_ON;
}

/* --- the search --- */

static enum each_next kv_probe(struct client *c, struct each *each, unsigned *budget) {
    struct kv_look *l = look_of(each);
    struct kv_want w;
    struct span key;
    uint64_t hash;
    uint64_t steps = l->search.steps;
    bool wants = kv_search_next(&l->search, &w);
    spend(budget, (l->search.steps - steps) / SEARCH_STEPS);
    if (!wants) {
        /* a longer one would have been served but for what was missing */
        l->missed = l->missed && l->search.boundary < l->longest;
        if (l->terms.lease_ms == 0) return answer_begin(c, l);
        l->each.one = kv_lease;
        parts_enter(l, 0, 0, false);
        return EACH_ON;
    }
    bool there = part_find(c, l, &w, &key, &hash) != NULL;
    if (!there && server.awaits_nodes && store_is_away(books, key)) {
        reply_error(c, "-LOADING the node that has this key has not joined this master yet");
        return EACH_OVER;
    }
    if (!there) note_miss(l, &w);
    kv_search_tell(&l->search, there);
    return EACH_ON;
}

/* --- WAIT: the parts of the longest boundary, until each was complete once --- */

static enum each_next await_end(struct kv_look *l) {
    l->each.job.deadline_ms = 0;
    probe_begin(l, UINT64_MAX);
    return EACH_ON;
}

static enum each_next kv_await(struct client *c, struct each *each, unsigned *budget) {
    struct kv_look *l = look_of(each);
    struct span key;
    uint64_t hash;
    waiter_remove(&l->waiter);
    each->job.runnable = true;
    if (turn.mono_ms >= each->job.deadline_ms) return await_end(l);
    if (parts_over(l)) {
        parts_enter(l, l->group + 1, l->longest, true);
        return l->group == l->n ? await_end(l) : EACH_ON;
    }
    struct kv_want w = part_want(l);
    if (part_find(c, l, &w, &key, &hash) == NULL) {
        l->waiter = waiter_add(&each->job, key);
        each->job.runnable = false;
        return EACH_AGAIN;
    }
    l->part++;
    return EACH_ON;
}

/* --- the request --- */

static bool group_bind(struct client *c, struct kv_look *l, size_t i, struct kv_group *g) {
    static const enum kv_group_kind kinds[] = {[WIRE_KV_FULL] = KV_GROUP_FULL,
                                               [WIRE_KV_WINDOW] = KV_GROUP_WINDOW,
                                               [WIRE_KV_STATE] = KV_GROUP_STATE};
    const struct wire_arg *block = wire_named(c->cmd->declared, "KVGROUPS");
    char error[WIRE_ERROR_SIZE];
    const char *why = error;
    struct wire_kv_group args = {0};
    TARN_ASSERT(wire_block_words(block) == WIRE_KV_GROUP_WORDS);
    if (!wire_bind_block(block, c->argv, l->names + i * WIRE_KV_GROUP_WORDS, &args, error))
        goto refuse;
    *g = (struct kv_group){.kind = kinds[args.kind],
                           .drops_last = args.drop != 0,
                           .block = args.block,
                           .unit = args.unit,
                           .window = args.window,
                           .places =
                               (uint32_t)((uint64_t)l->hashes.n * l->finder.hash_unit / args.unit)};
    why = args.unit % l->finder.hash_unit != 0 ? "unit must be a multiple of UNIT"
                                               : kv_group_fault(g, l->alignment);
    if (why == NULL) return true;
refuse:
    reply_error(c, "KV group %zu of %zu: %s", i + 1, l->n, why);
    return false;
}

/* So that every name and hash are a key. */
static bool hashes_fit(struct client *c, const struct kv_look *l) {
    size_t longest = 0;
    for (size_t i = 0; i < l->n; i++)
        longest = max_u64(longest, c->argv[l->names + i * WIRE_KV_GROUP_WORDS].len);
    for (size_t i = 0; i < l->hashes.n; i++) {
        size_t len = c->argv[l->hashes.at + i].len;
        if (len > 0 && longest + len <= STORE_KEY_MAX) continue;
        reply_error(c, "hash %zu of %zu must be 1 to %zu bytes, with a name of %zu", i + 1,
                    (size_t)l->hashes.n, STORE_KEY_MAX - longest, longest);
        return false;
    }
    return true;
}

static bool groups_bind(struct client *c, struct kv_look *l) {
    uint64_t places = 0;
    for (size_t i = 0; i < l->n; i++) {
        if (!group_bind(c, l, i, &l->groups[i])) return false;
        places += l->groups[i].places;
    }
    if (places > KV_PLACES_MAX) {
        reply_error(c, "-LIMIT these hashes and KV groups are %llu parts, at most %llu may be",
                    (unsigned long long)places, (unsigned long long)KV_PLACES_MAX);
        return false;
    }
    l->longest = kv_groups_longest(l->groups, l->n, l->alignment);
    return hashes_fit(c, l);
}

static void kv_close(struct client *c, struct job *job) {
    struct kv_look *l = CONTAINER_OF(job, struct kv_look, each.job);
    waiter_remove(&l->waiter);
    buf_free(&l->fresh);
    free(l->groups);
}

void look_kv_groups(struct client *c, const struct wire_look *args, bool replicas) {
    struct kv_look l = {
        .each = {.job = {.close = kv_close, .deadline_ms = look_deadline_ms(c, args)},
                 .one = kv_await,
                 .n = EACH_ENDLESS},
        .replicas = replicas,
        .hashes = args->keys,
        .names = args->kv_groups.at,
        .finder = {.names_step = WIRE_KV_GROUP_WORDS * sizeof(struct span),
                   .hash_unit = args->unit},
        .alignment = args->align,
        .n = args->kv_groups.n,
        .groups = xcalloc(args->kv_groups.n, sizeof(*l.groups)),
    };
    look_terms_init(c, &l.terms, args);
    l.terms.gets = replicas;
    if (!groups_bind(c, &l)) {
        free(l.groups);
        return;
    }
    if (l.each.job.deadline_ms > 0) { /* a waiter points to it */
        parts_enter(&l, 0, l.longest, true);
        each_start(c, &((struct kv_look *)xmemdup(&l, sizeof(l)))->each);
    } else {
        probe_begin(&l, UINT64_MAX);
        each_run(c, &l.each, sizeof(l));
    }
}
