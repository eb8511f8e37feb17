/* The index against a model that keeps a bit for each block, holder, KV group and tier, with random
 * prompts that share prefixes, random events and random holders. With room for all, both give the
 * same answers; with a small quota the index may know less, and never more: no prefix is false. The
 * index checks itself all the while.
 *
 *     index_model_test [TEST...]        TARN_MODEL_SEEDS=20000 for more of them */
#include "../test.h"

#include <stdlib.h>
#include "base/assert.h"
#include "base/rng.h"
#include "route/hash.h"
#include "route/index.h"

#define HOLDERS 5
#define GROUPS  3
#define PROMPTS 10
#define LENGTH  200 /* blocks */
#define NODES   4096
#define LETTERS 3
#define BLOCK   16u
#define SIZES   2 /* of blocks: BLOCK, and twice that */

/* All prompts as a tree, of blocks of one size. */
struct tree {
    uint16_t child[NODES][LETTERS * LETTERS];
    unsigned nodes;
};
struct model_prompt {
    unsigned n;
    uint64_t local[LENGTH], rolling[LENGTH];
    uint16_t node[LENGTH];
};
struct model_holder {
    uint32_t id; /* 0: none */
    uint64_t salt;
    unsigned groups;
    struct route_group group[GROUPS];
    uint8_t tiers[GROUPS][NODES];
};
struct model {
    struct rng rng;
    struct route_index *ix;
    bool bounded; /* holders may have few blocks */
    struct tree tree[SIZES];
    struct model_prompt prompt[SIZES][PROMPTS];
    struct model_holder holder[HOLDERS];
    uint64_t hits, orphans, removed;
};
static struct model m;

static unsigned pick(unsigned n) {
    return (unsigned)rng_below(&m.rng, n);
}

static unsigned size_of(const struct route_group *g) {
    return g->block / BLOCK - 1;
}
static uint64_t scope_of(unsigned size) {
    return size * UINT64_C(0x123456789abcdef);
}

/* --- prompts --- */

static void prompt_hash(unsigned size, struct model_prompt *p) {
    struct tree *t = &m.tree[size];
    unsigned node = 0;
    for (unsigned i = 0; i < p->n; i++) {
        uint16_t *next = &t->child[node][p->local[i] - 1];
        if (*next == 0) *next = (uint16_t)++t->nodes;
        CHECK(t->nodes < NODES);
        p->node[i] = *next;
        node = *next;
    }
    route_hash_chain(NULL, p->local, p->n, 0, p->rolling);
}

/* Like another one up to somewhere. */
static void prompts_make(void) {
    for (unsigned i = 0; i < PROMPTS; i++) {
        struct model_prompt *p = &m.prompt[0][i], *wide = &m.prompt[1][i];
        unsigned same = 0;
        p->n = 2 + pick(pick(2) ? 20 : LENGTH - 2);
        if (i > 0) {
            const struct model_prompt *other = &m.prompt[0][pick(i)];
            same = pick((unsigned)min_u64(other->n, p->n) + 1);
            memcpy(p->local, other->local, same * sizeof(p->local[0]));
        }
        for (unsigned k = same; k < p->n; k++) p->local[k] = 1 + pick(LETTERS);
        wide->n = p->n / 2;
        for (unsigned k = 0; k < wide->n; k++)
            wide->local[k] = p->local[2 * k] + (p->local[2 * k + 1] - 1) * LETTERS;
        prompt_hash(0, p);
        prompt_hash(1, wide);
    }
}

/* --- holders --- */

static uint64_t own_of(const struct model_holder *h, unsigned size, uint64_t rolling) {
    (void)size; /* some engines call blocks of both sizes alike */
    return (rolling ^ h->salt) * UINT64_C(0x9e3779b97f4a7c15);
}

static void group_make(struct model_holder *h, unsigned g) {
    struct route_group *what = &h->group[g];
    *what = (struct route_group){.kind = (enum route_group_kind)pick(3), .block = BLOCK};
    if (what->kind == ROUTE_GROUP_WINDOW) what->window = 2 + pick(5 * BLOCK);
    if (pick(3) == 0) what->block = 2 * BLOCK;
    CHECK(route_holder_group(m.ix, h->id, g, what));
}

static void holder_make(struct model_holder *h) {
    memset(h, 0, sizeof(*h));
    h->id = route_holder_add(m.ix, BLOCK, m.bounded ? 20 + pick(100) : 100000);
    CHECK(h->id != ROUTE_HOLDER_NONE);
    h->salt = rng_next(&m.rng);
    h->groups = pick(2) ? 1 : 2 + pick(GROUPS - 1);
    h->group[0] = (struct route_group){.kind = ROUTE_GROUP_FULL, .block = BLOCK};
    for (unsigned g = 1; g < h->groups; g++) group_make(h, g);
}

/* --- events --- */

static bool model_knows(const struct model_holder *h, unsigned size, unsigned node) {
    for (unsigned g = 0; g < h->groups; g++)
        if (size_of(&h->group[g]) == size && h->tiers[g][node] != 0) return true;
    return false;
}

static void step_store(struct model_holder *h) {
    unsigned g = pick(h->groups), size = size_of(&h->group[g]);
    enum route_tier tier = (enum route_tier)(pick(3) ? 0 : pick(ROUTE_TIERS));
    const struct model_prompt *p = &m.prompt[size][pick(PROMPTS)];
    if (p->n == 0) return;
    unsigned from = pick(2) ? 0 : pick(p->n), n = 1 + pick(p->n - from);
    uint64_t own[LENGTH] = {0};
    for (unsigned i = 0; i < p->n; i++) own[i] = own_of(h, size, p->rolling[i]);
    bool knows = from == 0 || model_knows(h, size, p->node[from - 1]);
    /* What the index lost, it need not know; what it has not heard of, it must not. */
    struct route_stored e = {.holder = h->id,
                             .group = g,
                             .tier = tier,
                             .scope = scope_of(size),
                             .has_parent = from > 0,
                             .parent = from > 0 ? own[from - 1] : 0,
                             .n = n,
                             .own = own + from};
    if (pick(2))
        e.local = p->local + from;
    else
        e.rolling = p->rolling + from;
    size_t done = route_index_stored(m.ix, &e);
    CHECK(done <= n && (knows || done == 0));
    if (!m.bounded) CHECK_EQ(done, knows ? n : 0);
    m.orphans += !knows;
    for (size_t i = 0; i < done; i++) h->tiers[g][p->node[from + i]] |= (uint8_t)(1u << tier);
}

static void step_remove(struct model_holder *h) {
    unsigned g = pick(h->groups), size = size_of(&h->group[g]), n = 0, there = 0;
    enum route_tier tier = (enum route_tier)(pick(3) ? 0 : pick(ROUTE_TIERS));
    const struct model_prompt *p = &m.prompt[size][pick(PROMPTS)];
    uint64_t own[LENGTH];
    bool tail = pick(2);
    unsigned from = pick(p->n + 1);
    for (unsigned i = p->n; i-- > 0;) {
        if (tail ? i < from : pick(4) != 0) continue;
        own[n++] = own_of(h, size, p->rolling[i]);
        there += h->tiers[g][p->node[i]] >> tier & 1;
        h->tiers[g][p->node[i]] &= (uint8_t) ~(1u << tier);
    }
    size_t removed = route_index_removed(m.ix, h->id, g, tier, own, n);
    CHECK(removed <= there);
    if (!m.bounded) CHECK_EQ(removed, there);
    m.removed += removed;
}

static void step_holder(struct model_holder *h) {
    if (pick(2)) {
        route_holder_clear(m.ix, h->id);
        memset(h->tiers, 0, sizeof(h->tiers));
    } else {
        route_holder_remove(m.ix, h->id);
        CHECK_EQ(route_holder_blocks(m.ix, h->id), 0);
        holder_make(h);
    }
}

/* --- look-ups --- */

static bool model_has(const struct model_holder *h, unsigned g, unsigned tiers,
                      const struct model_prompt *p, uint64_t block) {
    return (h->tiers[g][p->node[block]] & tiers) != 0;
}

/* By the definition: what the group needs for a prefix of so many tokens. */
static bool model_serves(const struct model_holder *h, unsigned g, unsigned tiers, unsigned prompt,
                         uint64_t tokens) {
    const struct route_group *what = &h->group[g];
    const struct model_prompt *p = &m.prompt[size_of(what)][prompt];
    uint64_t end = tokens / what->block, from = 0;
    if (tokens % what->block != 0 || end > p->n) return false;
    if (what->kind == ROUTE_GROUP_STATE) from = end - 1;
    if (what->kind == ROUTE_GROUP_WINDOW)
        while ((end - from) * what->block >= what->window - 1 + (uint64_t)what->block) from++;
    for (uint64_t i = from; i < end; i++)
        if (!model_has(h, g, tiers, p, i)) return false;
    return true;
}

static uint32_t model_longest(const struct model_holder *h, unsigned groups, unsigned tiers,
                              unsigned prompt) {
    for (uint64_t tokens = m.prompt[0][prompt].n * BLOCK; tokens > 0; tokens -= BLOCK) {
        bool served = true;
        for (unsigned g = 0; g < h->groups && served; g++)
            if (groups >> g & 1) served = model_serves(h, g, tiers, prompt, tokens);
        if (served) return (uint32_t)tokens;
    }
    return 0;
}

static void check_hit(const struct model_holder *h, unsigned groups, unsigned prompt,
                      const uint32_t *tokens) {
    for (unsigned t = 0; t < ROUTE_TIERS; t++) {
        uint32_t expected = model_longest(h, groups, (2u << t) - 1, prompt);
        CHECK(tokens[t] <= expected);
        if (!m.bounded) CHECK_EQ(tokens[t], expected);
    }
    m.hits += tokens[ROUTE_TIERS - 1] > 0;
}

static void step_match(void) {
    static const uint32_t nothing[ROUTE_TIERS];
    unsigned prompt = pick(PROMPTS);
    struct route_chain chains[SIZES];
    struct route_hit hits[HOLDERS];
    for (unsigned s = 0; s < SIZES; s++) {
        const struct model_prompt *p = &m.prompt[s][prompt];
        chains[s] = (struct route_chain){scope_of(s), (s + 1) * BLOCK, p->n, p->rolling};
    }
    size_t n = route_index_match(m.ix, chains, SIZES, hits, HOLDERS);
    CHECK(n <= HOLDERS);
    for (unsigned i = 0; i < HOLDERS; i++) {
        const uint32_t *tokens = nothing;
        for (size_t k = 0; k < n; k++) {
            if (hits[k].holder != m.holder[i].id) continue;
            CHECK(tokens == nothing && hits[k].tokens[ROUTE_TIERS - 1] > 0);
            tokens = hits[k].tokens;
        }
        check_hit(&m.holder[i], UINT32_MAX, prompt, tokens);
    }
    const struct model_holder *h = &m.holder[pick(HOLDERS)];
    struct route_group_hit groups[ROUTE_GROUPS_MAX];
    CHECK_EQ(route_index_match_groups(m.ix, chains, SIZES, h->id, groups), h->groups);
    for (unsigned g = 0; g < h->groups; g++) {
        CHECK_EQ(groups[g].group, g);
        CHECK_EQ(groups[g].what.kind, h->group[g].kind);
        /* Behind what anybody knows of the prompt, a lone window or state is not looked for. */
        if (h->group[g].kind == ROUTE_GROUP_FULL) check_hit(h, 1u << g, prompt, groups[g].tokens);
    }
}

static void run_seed(uint64_t seed, bool bounded, unsigned steps) {
    struct route_index_config config = {.max_bytes = 2 << 20, .holders_max = HOLDERS};
    memset(&m, 0, sizeof(m));
    rng_seed(&m.rng, seed);
    m.bounded = bounded;
    m.ix = route_index_create(&config);
    prompts_make();
    for (unsigned i = 0; i < HOLDERS; i++) holder_make(&m.holder[i]);
    for (unsigned i = 0; i < steps; i++) {
        struct model_holder *h = &m.holder[pick(HOLDERS)];
        unsigned what = pick(40);
        if (what < 20)
            step_store(h);
        else if (what < 28)
            step_remove(h);
        else if (what < 29)
            step_holder(h);
        else if (what < 30)
            route_index_sweep(m.ix, pick(300));
        else
            step_match();
        if (pick(16) == 0) route_index_check(m.ix);
    }
    for (unsigned i = 0; i < HOLDERS; i++) route_holder_remove(m.ix, m.holder[i].id);
    while (route_index_sweep(m.ix, 1000)) continue;
    struct route_index_figures f = route_index_stats(m.ix);
    CHECK(f.route_runs == 0 && f.route_blocks == 0 && f.route_pairs == 0 && f.route_holders == 0);
    route_index_check(m.ix);
    route_index_destroy(&m.ix);
}

static void run_seeds(uint64_t first, bool bounded) {
    const char *more = getenv("TARN_MODEL_SEEDS");
    int seeds = more != NULL ? atoi(more) : test_rounds(400);
    uint64_t hits = 0, orphans = 0, removed = 0;
    for (int i = 0; i < seeds; i++) {
        run_seed(first + (uint64_t)i, bounded, 200);
        hits += m.hits;
        orphans += m.orphans;
        removed += m.removed;
    }
    /* it is no test when nothing was there */
    CHECK(hits > (uint64_t)seeds * 20 && orphans > (uint64_t)seeds &&
          removed > (uint64_t)seeds * 5);
}

TEST(the_same_answers_as_the_model) {
    run_seeds(1, false);
}

TEST(no_more_than_the_model_knows) {
    run_seeds(1000000, true);
}

TEST_MAIN()
