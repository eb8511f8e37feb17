/* Memory that is reserved first and used later. */
#include "../test.h"

#include "base/page_arena.h"

#define MB ((size_t)1 << 20)

static void check_arena(bool huge) {
    struct page_arena a;
    CHECK(page_arena_init(&a, 10 * MB, huge));
    CHECK(!huge || (uintptr_t)a.base % (2 * MB) == 0);
    CHECK(page_arena_grow(&a, 1));
    CHECK(a.base[0] == 0 && a.base[4095] == 0);
    a.base[0] = 1;
    CHECK(page_arena_grow(&a, 10 * MB));
    for (size_t i = 1; i < 10 * MB; i += 1000) CHECK(a.base[i] == 0);
    a.base[10 * MB - 1] = 3;
    CHECK(!page_arena_grow(&a, 10 * MB + 1));
    a.base[4096] = 2;
    page_arena_discard(&a, 4096, 4096);
    CHECK(a.base[0] == 1 && a.base[4096] == 0 && a.base[10 * MB - 1] == 3);
    page_arena_free(&a);
    CHECK(a.base == NULL);
    page_arena_free(&a);
}

TEST(grows_in_place_and_gives_back) {
    check_arena(false);
    check_arena(true);
}

TEST_MAIN()
