#include "route/index.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/buf.h"
#include "route/hash.h"

struct plain_block {
    uint64_t hash, own;
    uint32_t block;
    uint8_t tiers[ROUTE_GROUPS_MAX]; /* bits */
};
struct plain_holder {
    bool there;
    uint64_t blocks_max;
    struct route_group group[ROUTE_GROUPS_MAX];
    struct plain_block *block;
    size_t n, cap;
};
struct route_index {
    struct route_index_config config;
    struct plain_holder *holder;
    struct route_index_figures figures;
};

#define ROW(...) FIGURE_ROW(struct route_index_figures, __VA_ARGS__)
const struct figure route_index_figures[] = {ROUTE_INDEX_FIGURES(ROW){.name = NULL}};

struct route_index *route_index_create(const struct route_index_config *config) {
    if (config->max_bytes < ROUTE_INDEX_BYTES_MIN || config->holders_max == 0 ||
        config->holders_max > ROUTE_HOLDERS_MAX)
        return NULL;
    struct route_index *ix = xcalloc(1, sizeof(*ix));
    ix->config = *config;
    ix->holder = xcalloc(config->holders_max + 1, sizeof(*ix->holder));
    return ix;
}

void route_index_destroy(struct route_index **ix_p) {
    struct route_index *ix = *ix_p;
    if (ix == NULL) return;
    for (uint32_t i = 1; i <= ix->config.holders_max; i++) free(ix->holder[i].block);
    free(ix->holder);
    free(ix);
    *ix_p = NULL;
}

struct route_index_figures route_index_stats(const struct route_index *ix) {
    struct route_index_figures f = ix->figures;
    f.route_index_max_bytes = ix->config.max_bytes;
    for (uint32_t i = 1; i <= ix->config.holders_max; i++) {
        f.route_holders += ix->holder[i].there;
        f.route_pairs += ix->holder[i].n;
        f.route_index_bytes += ix->holder[i].cap * sizeof(struct plain_block);
    }
    return f;
}

static struct plain_holder *plain_holder_find(const struct route_index *ix, uint32_t holder) {
    if (holder == 0 || holder > ix->config.holders_max || !ix->holder[holder].there) return NULL;
    return &ix->holder[holder];
}

uint32_t route_holder_add(struct route_index *ix, uint32_t block, uint64_t blocks_max) {
    for (uint32_t i = 1; i <= ix->config.holders_max; i++) {
        struct plain_holder *h = &ix->holder[i];
        if (h->there) continue;
        *h = (struct plain_holder){.there = true, .blocks_max = blocks_max ? blocks_max : 65536};
        h->group[0].block = block;
        return i;
    }
    return ROUTE_HOLDER_NONE;
}

void route_holder_clear(struct route_index *ix, uint32_t holder) {
    struct plain_holder *h = plain_holder_find(ix, holder);
    if (h == NULL) return;
    h->n = 0;
    ix->figures.route_cleared++;
}

void route_holder_remove(struct route_index *ix, uint32_t holder) {
    struct plain_holder *h = plain_holder_find(ix, holder);
    if (h == NULL) return;
    free(h->block);
    *h = (struct plain_holder){0};
}

bool route_holder_group(struct route_index *ix, uint32_t holder, uint32_t group,
                        const struct route_group *what) {
    struct plain_holder *h = plain_holder_find(ix, holder);
    if (h == NULL || group >= ROUTE_GROUPS_MAX || what->block == 0 ||
        (what->kind == ROUTE_GROUP_WINDOW ? what->window < 2 : what->window != 0))
        return false;
    struct route_group *g = &h->group[group];
    if (g->block != 0 && memcmp(g, what, sizeof(*g)) != 0) route_holder_clear(ix, holder);
    *g = *what;
    return true;
}

uint64_t route_holder_blocks(const struct route_index *ix, uint32_t holder) {
    struct plain_holder *h = plain_holder_find(ix, holder);
    return h != NULL ? h->n : 0;
}

static struct plain_block *plain_find(struct plain_holder *h, uint64_t own, uint32_t block) {
    for (size_t i = 0; i < h->n; i++)
        if (h->block[i].own == own && h->block[i].block == block) return &h->block[i];
    return NULL;
}

static struct plain_block *plain_find_hash(const struct plain_holder *h, uint64_t hash,
                                           uint32_t block) {
    for (size_t i = 0; i < h->n; i++)
        if (h->block[i].hash == hash && h->block[i].block == block) return &h->block[i];
    return NULL;
}

size_t route_index_stored(struct route_index *ix, const struct route_stored *e) {
    struct plain_holder *h = plain_holder_find(ix, e->holder);
    if (h == NULL || e->group >= ROUTE_GROUPS_MAX || h->group[e->group].block == 0 ||
        (unsigned)e->tier >= ROUTE_TIERS) {
        ix->figures.route_strays += e->n;
        return 0;
    }
    uint32_t block = h->group[e->group].block;
    struct plain_block *b = e->has_parent ? plain_find(h, e->parent, block) : NULL;
    if (e->has_parent && b == NULL) {
        ix->figures.route_orphans += e->n;
        return 0;
    }
    uint64_t rolling = b != NULL ? b->hash ^ e->scope : 0;
    for (size_t i = 0; i < e->n; i++) {
        if (e->rolling != NULL)
            rolling = e->rolling[i];
        else
            rolling = i > 0 || e->has_parent
                          ? route_hash_next(rolling, e->local[i], ix->config.seed)
                          : e->local[i];
        b = plain_find_hash(h, rolling ^ e->scope, block);
        if (b == NULL) {
            if (h->n >= h->blocks_max) {
                ix->figures.route_refused += e->n - i;
                return i;
            }
            ARRAY_GROW(h->block, h->n, h->cap);
            b = &h->block[h->n++];
            *b = (struct plain_block){rolling ^ e->scope, 0, block, {0}};
        }
        b->own = e->own != NULL ? e->own[i] : rolling;
        if (b->tiers[e->group] & 1u << e->tier) ix->figures.route_repeated++;
        b->tiers[e->group] |= (uint8_t)(1u << e->tier);
        ix->figures.route_stored++;
    }
    return e->n;
}

size_t route_index_removed(struct route_index *ix, uint32_t holder, uint32_t group,
                           enum route_tier tier, const uint64_t *own, size_t n) {
    struct plain_holder *h = plain_holder_find(ix, holder);
    size_t removed = 0;
    if (h == NULL || group >= ROUTE_GROUPS_MAX || h->group[group].block == 0 ||
        (unsigned)tier >= ROUTE_TIERS) {
        ix->figures.route_strays += n;
        return 0;
    }
    for (size_t i = 0; i < n; i++) {
        struct plain_block *b = plain_find(h, own[i], h->group[group].block);
        if (b == NULL || !(b->tiers[group] & 1u << tier)) {
            ix->figures.route_unknown++;
            continue;
        }
        b->tiers[group] &= (uint8_t) ~(1u << tier);
        removed++;
        bool any = false;
        for (uint32_t g = 0; g < ROUTE_GROUPS_MAX; g++) any |= b->tiers[g] != 0;
        if (!any) *b = h->block[--h->n];
    }
    ix->figures.route_removed += removed;
    return removed;
}

bool route_index_sweep(struct route_index *ix, size_t budget) {
    return false;
}

/* --- look-ups --- */

static const struct route_chain *plain_chain(const struct route_chain *chains, size_t n,
                                             uint32_t block) {
    for (size_t i = 0; i < n; i++)
        if (chains[i].block == block) return &chains[i];
    return NULL;
}

static bool plain_has(const struct plain_holder *h, uint32_t group, unsigned tiers,
                      const struct route_chain *c, uint64_t i) {
    const struct plain_block *b = plain_find_hash(h, c->rolling[i] ^ c->scope, c->block);
    return b != NULL && (b->tiers[group] & tiers) != 0;
}

/* Whether the group has what it needs for a prefix of that many tokens. */
static bool plain_serves(const struct plain_holder *h, uint32_t group, unsigned tiers,
                         const struct route_chain *c, uint64_t tokens) {
    const struct route_group *g = &h->group[group];
    uint64_t end = tokens / g->block, from = 0;
    if (tokens % g->block != 0 || c == NULL || end > c->n) return false;
    if (g->kind == ROUTE_GROUP_STATE) from = end - 1;
    if (g->kind == ROUTE_GROUP_WINDOW) {
        uint64_t need = ((uint64_t)g->window - 1 + g->block - 1) / g->block;
        from = end - min_u64(need, end);
    }
    for (uint64_t i = from; i < end; i++)
        if (!plain_has(h, group, tiers, c, i)) return false;
    return true;
}

static uint32_t plain_longest(const struct plain_holder *h, uint32_t groups, unsigned tiers,
                              const struct route_chain *chains, size_t n) {
    uint64_t tokens = 0;
    for (size_t i = 0; i < n; i++)
        tokens = max_u64(tokens, (uint64_t)chains[i].n * chains[i].block);
    for (; tokens > 0; tokens--) {
        bool served = true;
        for (uint32_t g = 0; g < ROUTE_GROUPS_MAX && served; g++)
            if (h->group[g].block != 0 && (groups & 1u << g) != 0)
                served =
                    plain_serves(h, g, tiers, plain_chain(chains, n, h->group[g].block), tokens);
        if (served) return (uint32_t)tokens;
    }
    return 0;
}

size_t route_index_match(struct route_index *ix, const struct route_chain *chains, size_t chains_n,
                         struct route_hit *hits, size_t cap) {
    size_t n = 0;
    ix->figures.route_matches++;
    for (uint32_t i = 1; i <= ix->config.holders_max; i++) {
        struct plain_holder *h = plain_holder_find(ix, i);
        struct route_hit hit = {.holder = i};
        if (h == NULL) continue;
        for (unsigned t = 0; t < ROUTE_TIERS; t++)
            hit.tokens[t] = plain_longest(h, UINT32_MAX, (2u << t) - 1, chains, chains_n);
        if (hit.tokens[ROUTE_TIERS - 1] == 0) continue;
        if (n++ < cap) hits[n - 1] = hit;
    }
    return n;
}

size_t route_index_match_groups(struct route_index *ix, const struct route_chain *chains,
                                size_t chains_n, uint32_t holder,
                                struct route_group_hit groups[ROUTE_GROUPS_MAX]) {
    struct plain_holder *h = plain_holder_find(ix, holder);
    size_t n = 0;
    for (uint32_t g = 0; h != NULL && g < ROUTE_GROUPS_MAX; g++) {
        if (h->group[g].block == 0) continue;
        groups[n].group = g;
        groups[n].what = h->group[g];
        for (unsigned t = 0; t < ROUTE_TIERS; t++)
            groups[n].tokens[t] = plain_longest(h, 1u << g, (2u << t) - 1, chains, chains_n);
        n++;
    }
    return n;
}
