/* The index as a whole: its memory, its holders and their lives. */
#include "route/index.h"

#include <stdlib.h>
#include <string.h>

#include "route/index_run.h"

#define QUOTA_DEFAULT 65536u
#define RUN_BYTES     700u /* of an average run with all that belongs to it */
#define HUGE_PAGE     (UINT64_C(2) << 20)
#define NAMES_MAX     (1u << 21) /* expected of one holder, when its table is made */

#define ROW(...) FIGURE_ROW(struct route_index_figures, __VA_ARGS__)
const struct figure route_index_figures[] = {ROUTE_INDEX_FIGURES(ROW){.name = NULL}};

/* --- life cycle --- */

/* The arrays that are there from the start, in one piece. */
static size_t fixed_layout(struct route_index *ix, char *base) {
    uint32_t lives = ix->lives, holders = ix->config.holders_max + 1;
    size_t at = 0;
#define PLACE(member, n)                                                                           \
    do {                                                                                           \
        if (base != NULL) ix->member = (void *)(base + at);                                        \
        at += ((n) * sizeof(*ix->member) + 63) & ~(size_t)63;                                      \
    } while (0)
    PLACE(chunk, ix->chunks_max);
    PLACE(step, PATH_RUNS * ROUTE_CHAINS_MAX);
    PLACE(life, lives);
    PLACE(brief, lives);
    PLACE(holder, holders);
    PLACE(several, lives);
    PLACE(row_life, lives);
#undef PLACE
    return at;
}

/* Large pages save most of the TLB misses of look-ups. Of the last one a part is not yet in use,
 * which is too much for a small index. */
static bool index_is_large(const struct route_index *ix) {
    return ix->memory.max >= 32 * HUGE_PAGE;
}

static bool runs_reserve(struct route_index *ix) {
    if (index_is_large(ix)) ix->memory.bytes += HUGE_PAGE;
    return page_arena_init(&ix->runs, ix->chunks_max * CHUNK_BYTES,
                           index_is_large(ix) ? PAGES_HUGE : 0);
}

/* The table of the runs' first blocks. */
static bool firsts_init(struct route_index *ix) {
    uint64_t expected = ix->memory.max / RUN_BYTES;
    return route_table_init(&ix->firsts, &ix->memory, expected) &&
           route_table_lay_base(&ix->firsts, &ix->memory, expected, index_is_large(ix));
}

struct route_index *route_index_create(const struct route_index_config *config) {
    if (config->max_bytes < ROUTE_INDEX_BYTES_MIN || config->holders_max == 0 ||
        config->holders_max > ROUTE_HOLDERS_MAX)
        return NULL;
    struct route_index *ix = xcalloc(1, sizeof(*ix));
    ix->config = *config;
    ix->memory.max = config->max_bytes;
    ix->memory.bytes = route_memory_size(sizeof(*ix));
    ix->lives = 2 * config->holders_max + 1;
    uint64_t chunks = config->max_bytes / (CHUNK_RUNS * sizeof(struct route_run)) + 2;
    ix->chunks_max = (uint32_t)min_u64(chunks, RUN_ID_MAX / CHUNK_RUNS);
    if (!runs_reserve(ix)) {
        free(ix);
        return NULL;
    }
    size_t size = fixed_layout(ix, NULL);
    char *fixed = route_memory_get(&ix->memory, size);
    if (fixed != NULL) {
        memset(fixed, 0, size);
        fixed_layout(ix, fixed);
        for (uint32_t i = 0; i < ix->chunks_max; i++) ix->chunk[i].free = UINT64_MAX;
    }
    ix->fixed_bytes = ix->memory.bytes;
    if (fixed == NULL || !firsts_init(ix) || ix->memory.bytes > config->max_bytes / 2)
        route_index_destroy(&ix);
    return ix;
}

void route_index_destroy(struct route_index **ix_p) {
    struct route_index *ix = *ix_p;
    if (ix == NULL) return;
    if (ix->chunk != NULL) {
        for (uint32_t i = 1; i < ix->lives; i++)
            route_table_deinit(&ix->life[i].names, &ix->memory);
        route_table_deinit(&ix->firsts, &ix->memory);
        route_runs_free(ix);
        free(ix->chunk); /* and all arrays behind it */
    }
    page_arena_free(&ix->runs);
    free(ix);
    *ix_p = NULL;
}

struct route_index_figures route_index_stats(const struct route_index *ix) {
    struct route_index_figures f = ix->figures;
    f.route_index_bytes = ix->memory.bytes;
    f.route_index_max_bytes = ix->memory.max;
    for (uint32_t i = 1; i < ix->lives; i++) {
        f.route_pairs += ix->life[i].names.n;
        if (ix->life[i].dead) f.route_ghosts += ix->life[i].names.n;
    }
    for (uint32_t i = 1; i <= ix->config.holders_max; i++)
        f.route_holders += ix->holder[i].life != 0;
    return f;
}

/* --- lives --- */

static uint32_t life_free(const struct route_index *ix) {
    for (uint32_t i = 1; i < ix->lives; i++)
        if (ix->life[i].holder == 0 && !ix->life[i].dead) return i;
    return 0;
}

/* 0: no room for its table. */
static uint32_t life_begin(struct route_index *ix, uint32_t holder, uint32_t quota) {
    uint32_t life = life_free(ix);
    /* Each holder has another life to spare. */
    while (life == 0 && route_index_sweep(ix, SIZE_MAX)) continue;
    if (life == 0) life = life_free(ix);
    TARN_ASSERT(life != 0);
    route_forget_for(ix);
    struct route_life *l = &ix->life[life];
    *l = (struct route_life){.holder = holder, .quota = quota};
    if (!route_table_init(&l->names, &ix->memory, min_u64(quota, NAMES_MAX))) {
        *l = (struct route_life){0};
        return 0;
    }
    return life;
}

/* What it has is ghosts from now on. */
static void life_retire(struct route_index *ix, uint32_t life) {
    ix->life[life].holder = 0;
    ix->life[life].dead = true;
    ix->brief[life] = (struct route_brief){0};
    ix->lives_dead++;
}

/* After its life or its groups have changed. */
static void brief_update(struct route_index *ix, uint32_t holder) {
    const struct route_holder *h = &ix->holder[holder];
    bool plain = h->groups == 1 && h->group[0].block != 0 && h->group[0].kind == ROUTE_GROUP_FULL;
    ix->brief[h->life] = (struct route_brief){
        .holder = holder,
        .block = plain ? h->group[0].block : 0,
    };
}

/* --- holders --- */

static struct route_holder *holder_known(const struct route_index *ix, uint32_t holder) {
    if (holder == 0 || holder > ix->config.holders_max || ix->holder[holder].life == 0) return NULL;
    return &ix->holder[holder];
}

/* Each takes 8 bytes at least. */
static uint32_t quota_of(const struct route_index *ix, uint64_t blocks_max) {
    return (uint32_t)min_u64(min_u64(blocks_max, ix->memory.max / 8), UINT32_MAX);
}

uint32_t route_holder_add(struct route_index *ix, uint32_t block, uint64_t blocks_max) {
    uint32_t holder = 1;
    TARN_ASSERT(block > 0);
    while (holder <= ix->config.holders_max && ix->holder[holder].life != 0) holder++;
    if (holder > ix->config.holders_max) return ROUTE_HOLDER_NONE;
    if (blocks_max == 0) blocks_max = QUOTA_DEFAULT;
    struct route_holder *h = &ix->holder[holder];
    *h = (struct route_holder){.life = life_begin(ix, holder, quota_of(ix, blocks_max)),
                               .groups = 1};
    if (h->life == 0) return ROUTE_HOLDER_NONE;
    h->group[0] = (struct route_group){.kind = ROUTE_GROUP_FULL, .block = block};
    brief_update(ix, holder);
    return holder;
}

void route_holder_raise(struct route_index *ix, uint32_t holder, uint64_t blocks_max) {
    const struct route_holder *h = holder_known(ix, holder);
    if (h == NULL) return;
    uint32_t *quota = &ix->life[h->life].quota;
    *quota = (uint32_t)max_u64(*quota, quota_of(ix, blocks_max));
}

void route_holder_remove(struct route_index *ix, uint32_t holder) {
    struct route_holder *h = holder_known(ix, holder);
    if (h == NULL) return;
    life_retire(ix, h->life);
    *h = (struct route_holder){0};
}

void route_holder_clear(struct route_index *ix, uint32_t holder) {
    struct route_holder *h = holder_known(ix, holder);
    if (h == NULL) return;
    uint32_t quota = ix->life[h->life].quota;
    life_retire(ix, h->life);
    h->life = life_begin(ix, holder, quota);
    if (h->life == 0) { /* at least as much as the table of the life before had is free then */
        while (route_index_sweep(ix, SIZE_MAX)) continue;
        h->life = life_begin(ix, holder, quota);
        TARN_ASSERT(h->life != 0);
    }
    brief_update(ix, holder);
    ix->figures.route_cleared++;
}

bool route_holder_group(struct route_index *ix, uint32_t holder, uint32_t group,
                        const struct route_group *what) {
    struct route_holder *h = holder_known(ix, holder);
    if (h == NULL || group >= ROUTE_GROUPS_MAX || what->block == 0 ||
        (unsigned)what->kind > ROUTE_GROUP_STATE ||
        (what->kind == ROUTE_GROUP_WINDOW ? what->window < 2 : what->window != 0))
        return false;
    struct route_group *g = &h->group[group];
    bool other = g->kind != what->kind || g->block != what->block || g->window != what->window;
    if (g->block == 0)
        h->groups++;
    else if (other)
        route_holder_clear(ix, holder);
    *g = *what;
    brief_update(ix, holder);
    return true;
}

uint64_t route_holder_blocks(const struct route_index *ix, uint32_t holder) {
    const struct route_holder *h = holder_known(ix, holder);
    return h != NULL ? ix->life[h->life].names.n : 0;
}
