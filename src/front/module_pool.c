/* What the pool has of a prompt, for modules: the search of PREFIXLEN with KVGROUPS, in one go. Who
 * asks only wants to know, so nothing counts as used. */
#include "base/assert.h"
#include "cluster/cluster.h"
#include "front/core.h"
#include "front/module_parts.h"
#include "store/kv_find.h"

static_assert((int)TARN_POOL_FULL == KV_GROUP_FULL && (int)TARN_POOL_STATE == KV_GROUP_STATE &&
                  (int)TARN_POOL_WINDOW == KV_GROUP_WINDOW,
              "one order");

/* --- what is asked --- */

/* NULL, and *limit_p: the most tokens that so many look-ups reach; or what is wrong. */
static const char *groups_take(const struct tarn_pool_question *q, struct kv_group *groups,
                               uint64_t *limit_p) {
    uint64_t parts = 0; /* from boundary to boundary */
    if (q->unit == 0 || q->align == 0) return "UNIT and ALIGN must be above 0";
    if (q->n_groups == 0 || q->n_groups > KV_GROUPS_MAX) return "there must be 1 to 1024 KV groups";
    for (size_t i = 0; i < q->n_groups; i++) {
        const struct tarn_pool_group *g = &q->groups[i];
        groups[i] = (struct kv_group){.kind = (enum kv_group_kind)g->kind,
                                      .drops_last = g->drop,
                                      .block = g->block,
                                      .unit = g->unit,
                                      .window = g->window};
        const char *why = kv_group_fault(&groups[i], q->align);
        if (why == NULL && g->unit % q->unit != 0) why = "unit must be a multiple of UNIT";
        if (why != NULL) return why;
        parts += q->align / g->unit;
    }
    static_assert(TARN_POOL_LOOKUPS_MAX == 16384, "as the text has it");
    if (parts > TARN_POOL_LOOKUPS_MAX)
        return "ALIGN must be at most 16384 parts, of all KV groups together";
    *limit_p = TARN_POOL_LOOKUPS_MAX / parts * q->align;
    /* Who drops its last part looks behind the boundary for it, but not as far as the next one. */
    for (size_t i = 0; i < q->n_groups; i++) {
        uint64_t reach = *limit_p + (groups[i].drops_last ? q->align : 0);
        groups[i].places =
            (uint32_t)(min_u64((uint64_t)q->n_hashes * q->unit, reach) / groups[i].unit);
    }
    return NULL;
}

/* --- where its parts lie --- */

struct run_set {
    struct tarn_pool_run *run;
    size_t n, max;
    /* of the last part */
    size_t at;
    uint32_t segment;
    const char *machine, *rack;
};

/* Memory before disks. NULL: it lies in the books. */
static const struct store_replica *replica_of(const struct store_layout *layout) {
    const struct store_replica *found = NULL;
    for (uint32_t i = 0; i < layout->replicas; i++) {
        const struct store_replica *r = &layout->replica[i];
        if (r->extents == 0) continue;
        if (found == NULL || r->tier < found->tier) found = r;
    }
    return found;
}

static void place_find(struct run_set *set, uint32_t segment) {
    struct cluster_segment g;
    if (segment == set->segment) return;
    bool known = cluster_segment_get(segment, &g);
    set->segment = segment;
    set->machine = known ? g.machine : NULL;
    set->rack = known && g.rack[0] != '\0' ? g.rack : NULL;
}

/* Names of machines and racks are kept once each. */
static bool run_is(const struct run_set *set, size_t i, const struct tarn_pool_run *x) {
    const struct tarn_pool_run *run = &set->run[i];
    return run->kind == x->kind && run->disk == x->disk && run->machine == x->machine &&
           run->rack == x->rack;
}

static void run_add(struct run_set *set, const struct tarn_pool_run *x) {
    size_t i = set->at;
    if (i >= set->n || !run_is(set, i, x))
        for (i = 0; i < set->n && !run_is(set, i, x);) i++;
    if (i == set->n && set->n < set->max) {
        set->run[set->n++] = *x;
    } else {
        struct tarn_pool_run *run = &set->run[i < set->n ? i : --i];
        uint32_t begin = run->begin < x->begin ? run->begin : x->begin;
        uint64_t end = max_u64((uint64_t)run->begin + run->tokens, (uint64_t)x->begin + x->tokens);
        if (!run_is(set, i, x)) run->machine = run->rack = NULL;
        run->disk |= x->disk;
        run->bytes += x->bytes;
        run->begin = begin;
        run->tokens = (uint32_t)(end - begin);
    }
    set->at = i;
}

/* --- the search --- */

/* A part that is there. They are asked for once each, and of all that are found those count that
 * the prefix needs in the end. */
struct part {
    uint32_t group, place;
    uint32_t segment; /* PART_IN_BOOKS: of none */
    bool disk;
    uint64_t bytes;
    const struct object *object;
};
#define PART_IN_BOOKS UINT32_MAX

static void part_note(struct buf *found, const struct kv_want *w, const struct object *o) {
    struct part x = {.group = (uint32_t)w->group,
                     .place = w->place,
                     .segment = PART_IN_BOOKS,
                     .bytes = store_object_size(books, o),
                     .object = o};
    struct store_layout layout;
    struct span value;
    if (!store_object_inline(o, &value)) {
        store_object_layout(books, o, &layout);
        const struct store_replica *r = replica_of(&layout);
        if (r != NULL) x.segment = r->extent[0].segment;
        x.disk = r != NULL && r->tier != STORE_TIER_MEMORY;
    }
    buf_append(found, &x, sizeof(x));
}

static void search_all(struct kv_finder *f, struct kv_search *s, struct buf *found) {
    struct kv_want w;
    struct span key;
    uint64_t hash;
    while (kv_search_next(s, &w)) {
        const struct object *o = kv_find_part(f, books, &w, &key, &hash);
        if (o != NULL) part_note(found, &w, o);
        kv_search_tell(s, o != NULL);
    }
}

static bool part_is_of(const struct kv_group *g, const struct kv_parts *p, uint64_t end) {
    uint64_t block = end / g->block;
    return end == p->tail ||
           (end % g->block == 0 && block > p->first && block <= p->first + p->blocks);
}

static void parts_add(const struct kv_search *s, const struct buf *found, bool prefetch,
                      struct run_set *set) {
    const struct part *parts = (const struct part *)(const void *)found->data;
    for (size_t i = 0; i < found->len / sizeof(*parts); i++) {
        const struct part *x = &parts[i];
        const struct kv_group *g = &s->groups[x->group];
        struct kv_parts p = kv_search_parts(s, x->group);
        uint64_t end = ((uint64_t)x->place + 1) * g->unit;
        if (!part_is_of(g, &p, end)) continue;
        if (prefetch && x->disk) (void)cluster_prefetch(x->object, STORE_SEGMENT_ANY, 0);
        uint32_t begin = (uint32_t)((end - 1) / g->block * g->block);
        place_find(set, x->segment);
        run_add(set, &(struct tarn_pool_run){.kind = (enum tarn_pool_kind)g->kind,
                                             .begin = begin,
                                             .tokens = (uint32_t)end - begin,
                                             .disk = x->disk,
                                             .machine = set->machine,
                                             .rack = set->rack,
                                             .bytes = x->bytes});
    }
}

static tarn_status its_pool_prefix(const struct tarn_pool_question *q, uint64_t *tokens_p,
                                   struct tarn_pool_run *runs, size_t *n_runs_p,
                                   const char **why_p) {
    static struct kv_group groups[KV_GROUPS_MAX];
    static struct buf found;
    uint64_t limit;
    const char *why =
        *n_runs_p > 0 ? groups_take(q, groups, &limit) : "there must be room for a run";
    if (why != NULL) {
        *why_p = why;
        return TARN_EINVAL;
    }
    struct kv_finder f = {.groups = groups,
                          .names = q->names,
                          .names_step = sizeof(*q->names),
                          .hashes = q->hashes,
                          .hash_unit = q->unit,
                          .make = q->make,
                          .arg = q->arg};
    struct run_set set = {.run = runs, .max = *n_runs_p, .segment = UINT32_MAX};
    struct kv_search s;
    kv_search_begin(&s, groups, q->n_groups, q->align, limit);
    buf_clear(&found);
    search_all(&f, &s, &found);
    if (s.boundary > 0) parts_add(&s, &found, q->prefetch, &set);
    *tokens_p = s.boundary;
    *n_runs_p = set.n;
    return TARN_OK;
}

void module_pool_services(struct tarn_services *s) {
    s->pool_prefix = its_pool_prefix;
}
