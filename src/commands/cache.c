/* CACHE: what the look-ups found and what they would find, by name, by tenant, by size of the pool,
 * and in words. The counts are the books' (store/story.c); nothing here walks them. */
#include "front/families.h"

#include <math.h>
#include <stdio.h>
#include "base/assert.h"
#include "config/config.h"
#include "base/hist.h"
#include "commands/info.h"
#include "commands/nodes.h"
#include "front/client.h"
#include "front/stats.h"
#include "store/curve.h"
#include "store/figures.h"
#include "store/top.h"
#include "wire/options.h"

enum { TENANTS_MAX = 256 };

static double ratio_of(uint64_t part, uint64_t whole) {
    return whole > 0 ? (double)part / (double)whole : 0;
}

/* --- CURVE --- */

static void reply_point(struct client *c, const struct curve_figures *f, bool known,
                        const struct curve_point *p) {
    reply_map(c, 4);
    field_double(c, "scale", p->scale);
    reply_bulk_str(c, "hit_ratio");
    if (known && f->looks > 0)
        reply_double(c, p->hit_ratio);
    else
        reply_null(c);
    field_double(c, "error", p->error);
    reply_bulk_str(c, "filled");
    reply_bool(c, p->filled);
}

void cmd_cache_curve(struct client *c) {
    struct curve_figures f;
    if (!store_get_curve(books, &f)) {
        reply_error(c, "this server had no memory for the curve");
        return;
    }
    reply_map(c, 7);
    field_int(c, "one_key_in", f.sample);
    field_int(c, "keys", f.keys);
    field_double(c, "looks", round(f.looks));
    field_int(c, "memory", f.memory_bytes);
    field_str(c, "policy", store_policy_name(books));
    for (unsigned order = 0; order < CURVE_ORDERS; order++) {
        reply_bulk_str(c, order == CURVE_LRU ? "by_lru" : "by_policy");
        reply_array(c, CURVE_SIZES);
        for (unsigned i = 0; i < CURVE_SIZES; i++)
            reply_point(c, &f, order == CURVE_LRU || f.policy_known, &f.point[order][i]);
    }
}

/* --- PREFIXES --- */

void cmd_cache_prefixes(struct client *c) {
    struct wire_count args = {0};
    struct top_entry top[TOP_SLOTS];
    if (!arg_bind(c, &args)) return;
    reply_map(c, STORE_TOPS);
    for (unsigned which = 0; which < STORE_TOPS; which++) {
        reply_bulk_str(c, store_top_name((enum store_top)which));
        size_t n = store_get_top(books, (enum store_top)which, top, (size_t)args.n);
        reply_array(c, n);
        for (size_t i = 0; i < n; i++) {
            reply_map(c, 3);
            reply_bulk_str(c, "prefix");
            reply_bulk(c, span_of(top[i].name, top[i].name_len));
            field_int(c, "count", top[i].count);
            field_int(c, "error", top[i].error);
        }
    }
}

/* --- TENANTS --- */

static void reply_tenant(struct client *c, const struct store_tenant *t) {
    reply_map(c, 8);
    reply_bulk_str(c, "prefix");
    reply_bulk(c, t->quota.prefix);
    field_int(c, "quota", t->quota.limit);
    field_int(c, "used", t->quota.used);
    field_int(c, "objects", t->quota.objects);
    field_int(c, "hits", t->hits);
    field_int(c, "misses", t->misses);
    reply_bulk_str(c, "misses_by_reason");
    reply_map(c, STORE_MISS_GAP);
    for (int why = 0; why < STORE_MISS_GAP; why++)
        field_int(c, store_miss_name((enum store_miss)why), t->missed[why]);
    field_int(c, "evicted", t->evicted);
}

void cmd_cache_tenants(struct client *c) {
    struct store_tenant tenants[TENANTS_MAX];
    size_t n = store_tenants(books, tenants, TENANTS_MAX);
    TARN_ASSERT(n <= TENANTS_MAX);
    reply_array(c, n);
    for (size_t i = 0; i < n; i++) reply_tenant(c, &tenants[i]);
}

/* --- DOCTOR --- */

/* What all sentences are made from. */
struct patient {
    struct store_stats s;
    struct store_story story;
    struct curve_figures curve;
    bool has_curve;
    uint64_t misses; /* with a reason: those of the keys that are followed */
    struct buf out;
};

static const char *const what_to_do[STORE_MISS_GAP] = {
    [STORE_MISS_NEVER] =
        "nobody had put them, as far back as this server remembers. New prompts are so; if these "
        "are not new, readers and writers name their keys differently: compare CACHE PREFIXES, "
        "and the engines' model names, block sizes and hash seeds.",
    [STORE_MISS_EVICTED] = "they had been there and were evicted.",
    [STORE_MISS_EXPIRED] = "their time to live was over: a longer one, or none, keeps them.",
    [STORE_MISS_REMOVED] = "somebody removed them (DEL, REMOVEMATCH, FLUSHALL): an engine that "
                           "resets its cache does.",
    [STORE_MISS_AWAY] = "the node that has them is away, or went with them: NODE LIST. A second "
                        "replica (PUTSTART ... REPLICAS 2) outlives a node.",
};

static void text_duration(char *out, size_t cap, uint64_t ms) {
    if (ms < 1000) /* as exactly as the time of the last use is known */
        snprintf(out, cap, "1 s");
    else if (ms < 600000)
        snprintf(out, cap, "%llu s", (unsigned long long)(ms / 1000));
    else if (ms < 36000000)
        snprintf(out, cap, "%llu minutes", (unsigned long long)(ms / 60000));
    else
        snprintf(out, cap, "%llu hours", (unsigned long long)(ms / 3600000));
}

static void say_hits(struct patient *p) {
    uint64_t looks = p->s.hits + p->s.misses;
    buf_printf(&p->out,
               "%.1f %% of %llu look-ups hit, since the start or the last CONFIG RESETSTAT.\n",
               100 * ratio_of(p->s.hits, looks), (unsigned long long)looks);
}

/* Reasons that explain a tenth of the misses, or more; the largest first. */
static void say_misses(struct patient *p) {
    bool said[STORE_MISS_GAP] = {false};
    for (;;) {
        int most = -1;
        for (int why = 0; why < STORE_MISS_GAP; why++)
            if (!said[why] && (most < 0 || p->s.missed[why] > p->s.missed[most])) most = why;
        if (most < 0 || p->s.missed[most] * 10 < p->misses || p->s.missed[most] == 0) return;
        said[most] = true;
        buf_printf(&p->out, "- %.0f %% of the misses (%s): %s\n",
                   100 * ratio_of(p->s.missed[most], p->misses),
                   store_miss_name((enum store_miss)most), what_to_do[most]);
    }
}

static void say_evictions(struct patient *p) {
    char idle[32], again[32];
    uint64_t evictions = p->s.evicted_objects;
    if (p->story.idle->count > 0) {
        text_duration(idle, sizeof(idle), hist_percentile(p->story.idle, 0.5));
        buf_printf(&p->out, "- Half of what was evicted had not been used for %s or less", idle);
        if (p->story.asked_again->count > 0) {
            text_duration(again, sizeof(again), hist_percentile(p->story.asked_again, 0.5));
            buf_printf(&p->out, "; half of what was asked for again came back within %s", again);
        }
        buf_append_str(&p->out, ".\n");
    }
    if (p->s.evicted_for[STORE_EVICTION_MAXMEMORY] * 10 >= evictions && evictions > 0)
        buf_printf(&p->out,
                   "- %llu of %llu evictions were for maxmemory or max-objects, not for room in "
                   "the pool: raise them.\n",
                   (unsigned long long)p->s.evicted_for[STORE_EVICTION_MAXMEMORY],
                   (unsigned long long)evictions);
}

static const struct curve_point *point_at(const struct patient *p, enum curve_order order,
                                          double scale) {
    for (unsigned i = 0; i < CURVE_SIZES; i++)
        if (curve_scales[i] == scale) return &p->curve.point[order][i];
    return NULL;
}

/* Is a better than b by more than both may be wrong, and by more than two points? */
static bool is_better(const struct curve_point *a, const struct curve_point *b) {
    return a->hit_ratio - b->hit_ratio > fmax(0.02, a->error + b->error);
}

static void say_curve(struct patient *p) {
    if (!p->has_curve || p->curve.looks < 1000) return;
    bool known = p->curve.policy_known;
    enum curve_order order = known ? CURVE_POLICY : CURVE_LRU;
    const char *under = known ? "" : "With lru (the curve cannot tell of the policy in use): ";
    const struct curve_point *half = point_at(p, order, 0.5), *now = point_at(p, order, 1),
                             *twice = point_at(p, order, 2), *four = point_at(p, order, 4),
                             *lru = point_at(p, CURVE_LRU, 1);
    if (is_better(twice, now) || is_better(four, now))
        buf_printf(&p->out,
                   "- %sA pool twice as large would hit %.0f %%, one four times as large %.0f %%, "
                   "where this size hits %.0f %% (CACHE CURVE).\n",
                   under, 100 * twice->hit_ratio, 100 * four->hit_ratio, 100 * now->hit_ratio);
    else if (now->filled && !is_better(now, half))
        buf_printf(&p->out,
                   "- %sA larger pool would hit no more; half of this one would hit %.0f %%, where "
                   "this size hits %.0f %%.\n",
                   under, 100 * half->hit_ratio, 100 * now->hit_ratio);
    if (is_better(lru, now))
        buf_printf(&p->out,
                   "- With CONFIG SET eviction-policy lru this pool would hit %.0f %%, instead of "
                   "%.0f %% with %s.\n",
                   100 * lru->hit_ratio, 100 * now->hit_ratio, store_policy_name(books));
}

static void say_tenants(struct patient *p) {
    struct store_tenant tenants[TENANTS_MAX];
    size_t n = store_tenants(books, tenants, TENANTS_MAX);
    if (p->s.evicted_for[STORE_EVICTION_QUOTA] == 0) return;
    for (size_t i = 0, said = 0; i < n && i < TENANTS_MAX && said < 5; i++) {
        const struct store_tenant *t = &tenants[i];
        if (t->quota.limit == 0 || t->evicted == 0 || t->quota.used < t->quota.limit / 10 * 9)
            continue;
        said++;
        buf_append_str(&p->out, "- The tenant ");
        buf_append_quoted(&p->out, t->quota.prefix);
        buf_printf(&p->out,
                   " has used its quota of %llu bytes: %llu of its objects were evicted, and it "
                   "hits %.0f %% (QUOTA SET, CACHE TENANTS).\n",
                   (unsigned long long)t->quota.limit, (unsigned long long)t->evicted,
                   100 * ratio_of(t->hits, t->hits + t->misses));
    }
}

static void say_pool(struct patient *p) {
    const struct store_stats *s = &p->s;
    if (s->pool_down > 0)
        buf_printf(&p->out,
                   "- %llu bytes of the pool are in segments that are away or leaving: NODE LIST, "
                   "SEGMENT LIST.\n",
                   (unsigned long long)s->pool_down);
    if (s->put_nospace > 0)
        buf_printf(&p->out,
                   "- %llu puts were refused for want of room: all that could go was leased or "
                   "pinned, or eviction is off (eviction-policy %s).\n",
                   (unsigned long long)s->put_nospace, store_policy_name(books));
    if (s->hard_pinned_bytes > s->pool_size / 2)
        buf_printf(&p->out,
                   "- Hard pins hold %llu of the pool's %llu bytes; nothing evicts those.\n",
                   (unsigned long long)s->hard_pinned_bytes, (unsigned long long)s->pool_size);
    if (s->pool_quarantined > s->pool_size / 5)
        buf_printf(&p->out,
                   "- %llu bytes wait for readers of objects that are gone: shorter leases, or "
                   "RELEASE, would give them back sooner.\n",
                   (unsigned long long)s->pool_quarantined);
}

void info_doctor(struct buf *out) {
    struct patient p = {.out = {NULL, 0, 0}};
    store_get_stats(books, &p.s);
    store_get_story(books, &p.story);
    p.has_curve = store_get_curve(books, &p.curve);
    for (int why = 0; why < STORE_MISS_GAP; why++) p.misses += p.s.missed[why];
    if (p.s.hits + p.s.misses == 0)
        buf_append_str(&p.out, "Nobody has looked anything up, since the start or the last CONFIG "
                               "RESETSTAT. PREFIXLEN, MGETREPLICAS ... LEASE and GET count.\n");
    else
        say_hits(&p);
    say_misses(&p);
    say_evictions(&p);
    say_curve(&p);
    say_tenants(&p);
    say_pool(&p);
    *out = p.out;
}

void cmd_cache_doctor(struct client *c) {
    struct buf out;
    info_doctor(&out);
    reply_verbatim(c, "txt", span_of(out.data, out.len));
    buf_free(&out);
}
