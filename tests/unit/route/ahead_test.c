/* What is on its way: groups of blocks that are kept by worker, and forgotten in time. */
#include "../test.h"

#include "base/buf.h"
#include "base/rng.h"
#include "route/ahead.h"
#include "route/hash.h"

#define NOW 1000u
#define END 5000u

struct prompt {
    uint64_t rolling[3 * AHEAD_GROUP];
    struct route_chain chain;
};

/* Alike with every other one in the blocks before `common`. */
static void prompt_make(struct prompt *p, uint64_t number, uint32_t common, uint32_t n) {
    p->chain = (struct route_chain){.scope = 7, .block = 16, .n = n, .rolling = p->rolling};
    for (uint32_t i = 0; i < n; i++) p->rolling[i] = i < common ? i : number << 32 | i;
    route_hash_chain(NULL, p->rolling, n, 0, p->rolling);
}

static void put(struct ahead *a, const struct prompt *p, uint32_t at, uint16_t worker,
                uint64_t until) {
    struct ahead_group g;
    ahead_group_of(&p->chain, at, &g);
    ahead_put(a, &g, worker, 1, NOW, until);
}

/* Blocks of the group at `at` that the worker has or will have at that time. */
static uint32_t known(const struct ahead *a, const struct prompt *p, uint32_t at, uint16_t worker,
                      uint64_t now) {
    struct ahead_group g;
    uint32_t most = 0;
    ahead_group_of(&p->chain, at, &g);
    const struct ahead_set *set = ahead_set_of(a, g.first);
    for (unsigned i = 0; i < AHEAD_WAYS; i++) {
        const struct ahead_entry *e = &set->way[i];
        uint32_t n = ahead_common(&e->group, &g);
        if (e->worker == worker && ahead_live(e, now) && n > most) most = n;
    }
    return most;
}

TEST(a_group_is_known_as_far_as_prompts_agree) {
    struct ahead a;
    struct prompt one, two, part;
    ahead_init(&a, 1);
    prompt_make(&one, 1, 20, 40);
    prompt_make(&two, 2, 20, 40);
    prompt_make(&part, 1, 20, 23);
    for (uint32_t at = 0; at < 40; at += AHEAD_GROUP) put(&a, &one, at, 3, END);
    CHECK_EQ(known(&a, &one, 0, 3, NOW), 16);
    CHECK_EQ(known(&a, &one, 16, 3, NOW), 16);
    CHECK_EQ(known(&a, &one, 32, 3, NOW), 8);
    CHECK_EQ(known(&a, &two, 0, 3, NOW), 16);
    CHECK_EQ(known(&a, &two, 16, 3, NOW), 4);
    CHECK_EQ(known(&a, &two, 32, 3, NOW), 0);
    CHECK_EQ(known(&a, &part, 16, 3, NOW), 7);
    CHECK_EQ(known(&a, &one, 0, 4, NOW), 0);
    CHECK_EQ(known(&a, &one, 0, 3, END), 0);
    ahead_deinit(&a);
}

/* A shorter prompt does not take away what a longer one told; one that goes on otherwise has a
 * place of its own; one that is told again ends later. */
TEST(groups_of_one_worker_do_not_push_each_other_out) {
    struct ahead a;
    struct prompt one, two, part;
    ahead_init(&a, 1);
    prompt_make(&one, 1, 5, 16);
    prompt_make(&two, 2, 5, 16);
    prompt_make(&part, 1, 5, 9);
    put(&a, &part, 0, 3, END);
    put(&a, &one, 0, 3, END);
    put(&a, &two, 0, 3, END);
    put(&a, &part, 0, 3, END + 1);
    CHECK_EQ(known(&a, &one, 0, 3, END), 16);
    CHECK_EQ(known(&a, &two, 0, 3, NOW), 16);
    CHECK_EQ(known(&a, &two, 0, 3, END), 5);
    /* Two entries have been enough: two more workers have room. */
    put(&a, &one, 0, 4, END);
    put(&a, &one, 0, 5, END);
    CHECK_EQ(known(&a, &two, 0, 3, NOW), 16);
    CHECK_EQ(known(&a, &one, 0, 3, NOW), 16);
    ahead_deinit(&a);
}

/* Of a full set the one goes that ends first. */
TEST(what_ends_first_makes_room) {
    struct ahead a;
    struct prompt p;
    ahead_init(&a, 1);
    prompt_make(&p, 1, 0, 16);
    for (uint16_t worker = 0; worker <= AHEAD_WAYS; worker++)
        put(&a, &p, 0, worker, worker == 2 ? END : END + 1000 + worker);
    for (uint16_t worker = 0; worker <= AHEAD_WAYS; worker++)
        CHECK_EQ(known(&a, &p, 0, worker, NOW), worker == 2 ? 0 : 16);
    CHECK_EQ(ahead_memory(&a), 64 * sizeof(struct ahead_set));
    ahead_deinit(&a);
}

TEST_MAIN()
