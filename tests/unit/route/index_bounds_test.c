/* The index when there is more than it has room for, when names are not what they seem, and what is
 * asked for most. */
#include "../test.h"

#include <stdlib.h>
#include "base/rng.h"
#include "route/hash.h"
#include "route/index_run.h"

#define BLOCK 16u
#define MB    (UINT64_C(1) << 20)

static struct route_index *index_of(uint64_t max_bytes) {
    struct route_index_config config = {.max_bytes = max_bytes, .holders_max = 16};
    return route_index_create(&config);
}

struct prompt {
    size_t n;
    uint64_t local[512], rolling[512];
};

/* Blocks of two numbers: the first `shared` of one, the others of the other. */
static void prompt_make(struct prompt *p, uint64_t root, size_t shared, uint64_t own, size_t n) {
    p->n = n;
    for (size_t i = 0; i < n; i++) p->local[i] = (i < shared ? root : own) * 1000 + i + 1;
    route_hash_chain(NULL, p->local, n, 0, p->rolling);
}

static size_t prompt_store(struct route_index *ix, uint32_t holder, const struct prompt *p) {
    return route_index_stored(
        ix, &(struct route_stored){.holder = holder, .n = p->n, .rolling = p->rolling});
}

static uint32_t leading(struct route_index *ix, uint32_t holder, const struct prompt *p) {
    struct route_hit hits[16];
    struct route_chain c = {.block = BLOCK, .n = (uint32_t)p->n, .rolling = p->rolling};
    size_t n = route_index_match(ix, &c, 1, hits, 16);
    for (size_t i = 0; i < n; i++)
        if (hits[i].holder == holder) return hits[i].tokens[0] / BLOCK;
    return 0;
}

static struct route_index_figures stats(struct route_index *ix) {
    return route_index_stats(ix);
}

/* Prompts of `blocks` blocks that nobody asks for again, until the index has forgotten many. */
static void flood(struct route_index *ix, uint32_t holder, size_t blocks, uint64_t from) {
    static struct prompt p;
    uint64_t told = 0, until = 4 * ix->memory.max / 20;
    for (uint64_t i = from; told < until; i++) {
        prompt_make(&p, 0, 0, i, blocks);
        told += prompt_store(ix, holder, &p);
        CHECK(stats(ix).route_index_bytes <= ix->memory.max);
    }
    CHECK(stats(ix).route_forgotten > until / 2);
    route_index_check(ix);
}

TEST(a_flood_pushes_out_only_its_own) {
    static struct prompt p[20], last;
    for (size_t blocks = 1; blocks <= 300; blocks *= 17) {
        struct route_index *ix = index_of(4 * MB);
        uint32_t quiet = route_holder_add(ix, BLOCK, 10000);
        uint32_t loud = route_holder_add(ix, BLOCK, UINT64_C(1) << 40);
        for (uint64_t i = 0; i < 20; i++) {
            prompt_make(&p[i], 7, 10, 100 + i, 100);
            CHECK_EQ(prompt_store(ix, quiet, &p[i]), 100);
        }
        flood(ix, loud, blocks, 1000);
        for (size_t i = 0; i < 20; i++) CHECK_EQ(leading(ix, quiet, &p[i]), 100);
        prompt_make(&last, 0, 0, 5, blocks);
        CHECK_EQ(prompt_store(ix, loud, &last), blocks);
        CHECK_EQ(leading(ix, loud, &last), blocks);
        /* others have room, whatever the flood was made of */
        for (uint64_t i = 0; i < 20; i++) {
            prompt_make(&p[i], 8, 10, 200 + i, 200);
            CHECK_EQ(prompt_store(ix, quiet, &p[i]), 200);
        }
        for (size_t i = 0; i < 20; i++) CHECK_EQ(leading(ix, quiet, &p[i]), 200);
        route_index_check(ix);
        route_index_destroy(&ix);
    }
}

TEST(what_is_asked_for_is_forgotten_last) {
    static struct prompt asked, p;
    struct route_index *ix = index_of(4 * MB);
    uint32_t a = route_holder_add(ix, BLOCK, 2000);
    prompt_make(&asked, 0, 0, 1, 150);
    CHECK_EQ(prompt_store(ix, a, &asked), 150);
    for (uint64_t i = 0; i < 500; i++) {
        prompt_make(&p, 0, 0, 10 + i, 60);
        CHECK_EQ(prompt_store(ix, a, &p), 60);
        CHECK_EQ(leading(ix, a, &asked), 150);
        CHECK(route_holder_blocks(ix, a) <= 2000);
    }
    CHECK(stats(ix).route_forgotten >= 500 * 60 + 150 - 2000);
    CHECK_EQ(stats(ix).route_refused, 0);
    route_index_check(ix);
    route_index_destroy(&ix);
}

TEST(more_than_a_holder_can_have_is_cut) {
    static struct prompt p;
    struct route_index *ix = index_of(4 * MB);
    uint32_t a = route_holder_add(ix, BLOCK, 100);
    prompt_make(&p, 0, 0, 1, 500);
    CHECK_EQ(prompt_store(ix, a, &p), 100);
    CHECK_EQ(leading(ix, a, &p), 100);
    CHECK_EQ(stats(ix).route_refused, 400);
    route_holder_raise(ix, a, 300);
    CHECK_EQ(prompt_store(ix, a, &p), 300);
    route_holder_raise(ix, a, 200);
    route_holder_clear(ix, a);
    CHECK_EQ(prompt_store(ix, a, &p), 300);
    route_holder_raise(ix, 7, 300); /* there is none */
    /* a billion blocks for one whose caches are said to hold as many, in an index that cannot */
    uint32_t b = route_holder_add(ix, BLOCK, UINT64_MAX);
    CHECK(b != ROUTE_HOLDER_NONE);
    uint64_t parent = 0;
    for (uint64_t i = 0; i < 2000; i++) {
        prompt_make(&p, 0, 0, i, 500);
        struct route_stored e = {.holder = b, .n = 500, .own = p.rolling, .local = p.local};
        e.has_parent = i > 0;
        e.parent = parent;
        if (route_index_stored(ix, &e) == 500) parent = p.rolling[499];
        CHECK(stats(ix).route_index_bytes <= 4 * MB);
    }
    route_index_check(ix);
    route_index_destroy(&ix);
}

TEST(ghosts_are_swept_in_slices) {
    static struct prompt p;
    struct route_index *ix = index_of(16 * MB);
    uint32_t a = route_holder_add(ix, BLOCK, 100000), b = route_holder_add(ix, BLOCK, 1000);
    for (uint64_t i = 0; i < 100; i++) {
        prompt_make(&p, 0, 0, i, 300);
        CHECK_EQ(prompt_store(ix, a, &p), 300);
    }
    CHECK_EQ(prompt_store(ix, b, &p), 300);
    route_holder_remove(ix, a);
    CHECK_EQ(stats(ix).route_ghosts, 30000);
    CHECK_EQ(leading(ix, a, &p), 0);
    CHECK_EQ(leading(ix, b, &p), 300);
    int slices = 0;
    for (; route_index_sweep(ix, 1000); slices++)
        CHECK_EQ(stats(ix).route_ghosts, 30000 - (uint64_t)(slices + 1) * 1000);
    CHECK(slices == 29 || slices == 30);
    CHECK_EQ(stats(ix).route_blocks, 300);
    CHECK_EQ(leading(ix, b, &p), 300);
    /* more clears than there are lives to spare: the oldest are swept at once */
    for (int i = 0; i < 100; i++) {
        CHECK_EQ(prompt_store(ix, b, &p), 300);
        route_holder_clear(ix, b);
    }
    route_index_check(ix);
    route_index_destroy(&ix);
}

/* Two names of one holder with the same fingerprint. */
static void names_alike(uint64_t *a, uint64_t *b) {
    enum { MANY = 400000 };
    static uint64_t seen[1 << 20];
    for (uint64_t v = 1; v < MANY; v++) {
        uint32_t print = route_name_print(v, BLOCK), at = print >> 12;
        while (seen[at] != 0 && route_name_print(seen[at], BLOCK) != print)
            at = (at + 1) & ((1u << 20) - 1);
        if (seen[at] != 0) {
            *a = seen[at];
            *b = v;
            return;
        }
        seen[at] = v;
    }
    CHECK(!"of so many some are alike");
}

TEST(names_that_look_alike_are_given_up) {
    static struct prompt p, q;
    struct route_index *ix = index_of(2 * MB);
    uint32_t a = route_holder_add(ix, BLOCK, 1000);
    uint64_t one, two, next = 99;
    names_alike(&one, &two);
    prompt_make(&p, 0, 0, 1, 2);
    prompt_make(&q, 0, 0, 2, 2);
    struct route_stored e = {.holder = a, .n = 1, .own = &one, .local = p.local};
    CHECK_EQ(route_index_stored(ix, &e), 1);
    e.own = &two;
    e.local = q.local;
    CHECK_EQ(route_index_stored(ix, &e), 1);
    /* whose child is it? */
    struct route_stored child = {.holder = a, .has_parent = true, .parent = two, .n = 1};
    child.own = &next;
    child.local = q.local + 1;
    CHECK_EQ(route_index_stored(ix, &child), 0);
    CHECK_EQ(leading(ix, a, &p) + leading(ix, a, &q), 2);
    CHECK_EQ(route_index_removed(ix, a, 0, ROUTE_TIER_DEVICE, &one, 1), 1);
    CHECK_EQ(leading(ix, a, &p) + leading(ix, a, &q), 0);
    CHECK_EQ(stats(ix).route_alike, 2);
    route_index_check(ix);
    route_index_destroy(&ix);
}

TEST(a_block_that_is_called_something_else) {
    static struct prompt p;
    struct route_index *ix = index_of(2 * MB);
    uint32_t a = route_holder_add(ix, BLOCK, 1000);
    uint64_t first[3] = {1, 2, 3}, second[3] = {4, 5, 6};
    prompt_make(&p, 0, 0, 1, 3);
    struct route_stored e = {.holder = a, .n = 3, .own = first, .local = p.local};
    CHECK_EQ(route_index_stored(ix, &e), 3);
    e.own = second;
    CHECK_EQ(route_index_stored(ix, &e), 3);
    CHECK_EQ(stats(ix).route_repeated, 3);
    CHECK_EQ(route_index_removed(ix, a, 0, ROUTE_TIER_DEVICE, &first[2], 1), 1);
    CHECK_EQ(leading(ix, a, &p), 2);
    CHECK_EQ(route_index_removed(ix, a, 0, ROUTE_TIER_DEVICE, &second[2], 1), 0);
    CHECK_EQ(route_index_removed(ix, a, 0, ROUTE_TIER_DEVICE, second, 2), 2);
    CHECK_EQ(stats(ix).route_runs, 0);
    CHECK_EQ(route_index_removed(ix, a, 0, ROUTE_TIER_DEVICE, first, 3),
             0); /* left over, nothing */
    route_index_check(ix);
    route_index_destroy(&ix);
}

/* More prompts go on from a run than it can count, and then it is gone. When its blocks are told of
 * again, they lead to all that is still there. */
TEST(what_many_go_on_from_is_lost_first) {
    static struct prompt p[600];
    struct route_index *ix = index_of(4 * MB);
    uint32_t holder = route_holder_add(ix, BLOCK, 10000);
    for (uint64_t i = 0; i < 600; i++) {
        prompt_make(&p[i], 7, 10, 100 + i, 14);
        CHECK_EQ(prompt_store(ix, holder, &p[i]), 14);
    }
    CHECK_EQ(route_index_removed(ix, holder, 0, ROUTE_TIER_DEVICE, p[0].rolling, 10), 10);
    route_index_check(ix);
    for (size_t i = 0; i < 600; i++) CHECK_EQ(leading(ix, holder, &p[i]), 0);
    for (size_t i = 0; i < 300; i++)
        CHECK_EQ(route_index_removed(ix, holder, 0, ROUTE_TIER_DEVICE, p[i].rolling, 14), 4);
    route_index_check(ix);
    CHECK_EQ(prompt_store(ix, holder, &p[599]), 14);
    for (size_t i = 300; i < 600; i++) CHECK_EQ(leading(ix, holder, &p[i]), 14);
    route_index_check(ix);
    route_index_destroy(&ix);
}

TEST(holders_max_that_does_not_fit) {
    struct route_index_config c = {.max_bytes = MB, .holders_max = ROUTE_HOLDERS_MAX};
    CHECK(route_index_create(&c) == NULL);
    c.max_bytes = 8 * MB;
    struct route_index *ix = route_index_create(&c);
    CHECK(ix != NULL);
    CHECK_EQ(route_index_check(ix), stats(ix).route_index_bytes);
    route_index_destroy(&ix);
}

TEST(hot_prefixes) {
    static struct prompt hot, cold;
    struct route_index *ix = index_of(8 * MB);
    uint32_t a = route_holder_add(ix, BLOCK, 100000), b = route_holder_add(ix, BLOCK, 100000);
    uint64_t rolling[512];
    for (uint64_t i = 0; i < 400; i++) {
        prompt_make(&cold, 7, 30, 100 + i, 100);
        prompt_store(ix, a, &cold);
    }
    prompt_make(&hot, 7, 30, 3, 200);
    prompt_store(ix, a, &hot);
    prompt_store(ix, b, &hot);
    for (uint64_t i = 0; i < 20000; i++) {
        prompt_make(&cold, 7, 30, 100 + i % 400, 100);
        CHECK_EQ(leading(ix, a, i % 3 == 0 ? &cold : &hot), i % 3 == 0 ? 100 : 200);
    }
    struct route_hot found[ROUTE_HOT_MAX], few[2];
    size_t n = route_index_hot(ix, found, ROUTE_HOT_MAX);
    CHECK(n > 3 && n <= ROUTE_HOT_MAX);
    CHECK_EQ(route_index_hot(ix, few, 2), 2);
    CHECK(few[0].last == found[0].last && few[1].last == found[1].last);
    CHECK_EQ(route_index_hot(ix, NULL, 0), 0);
    for (size_t i = 1; i < n; i++) CHECK(found[i].matches <= found[i - 1].matches);
    bool seen = false;
    for (size_t i = 0; i < n; i++) {
        size_t blocks = route_index_hot_chain(ix, &found[i], rolling, 512);
        CHECK_EQ(blocks, found[i].blocks);
        CHECK_EQ(rolling[blocks - 1], found[i].last);
        if (blocks != 200) continue;
        CHECK(memcmp(rolling, hot.rolling, sizeof(rolling[0]) * 200) == 0);
        CHECK(found[i].holders == 2 && found[i].block == BLOCK);
        CHECK(found[i].matches > 20000 / 3 && found[i].matches < 20000);
        seen = true;
        CHECK_EQ(route_index_hot_chain(ix, &found[i], rolling, 199), 0);
    }
    CHECK(seen);
    route_holder_remove(ix, a);
    route_holder_remove(ix, b);
    while (route_index_sweep(ix, 1000)) continue;
    CHECK_EQ(route_index_hot(ix, few, 2), 0);
    CHECK_EQ(route_index_hot_chain(ix, &found[0], rolling, 512), 0);
    route_index_destroy(&ix);
}

TEST_MAIN()
