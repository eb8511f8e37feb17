/* Mappings that readers have pointers into: which one a pointer lies in, and which of the replaced
 * ones have to stay. */
#define SUITE "shm"
#include "fixture.h"

/* 1: at lies in the mapping that pointers lead into now. 0: in an older one. -1: in none. */
static int lent(const void *at, uint64_t offset) {
    const void *start = NULL;
    uint64_t size = 0;
    bool current = false;
    if (!engine_lent(engine, WORLD_SEGMENT, at, &start, &size, &current)) return -1;
    CHECK((const char *)at - (const char *)start == (ptrdiff_t)offset && size == w.size);
    return current;
}

static char *view_at(uint64_t offset) {
    char *view = engine_map(engine, WORLD_SEGMENT, w.segment_epoch, offset, 4096, false);
    CHECK(view != NULL);
    return view;
}

/* The host is another one from here on, with other memory. */
static void replace(void) {
    world_kill(&w);
    w.segment_epoch++;
    world_start(&w, true);
    world_tell(&w, engine, 1);
}

TEST(where_a_pointer_lies) {
    begin(1u << 20, true);
    char *view = view_at(4096);
    CHECK(lent(view, 4096) == 1 && lent(view + 4095, 8191) == 1 && lent(&view, 0) == -1);
    engine_session_changed(engine); /* a view is none of the session's */
    CHECK_EQ(lent(view, 4096), 1);
    char *end_of_it = view - 4096 + w.size;
    CHECK_EQ(lent(end_of_it, w.size), -1);
    world_tell(&w, engine, 1);
    replace();
    char *again = view_at(8192);
    CHECK(lent(view, 4096) == 0 && lent(again, 8192) == 1);
    engine_views_left(engine, NULL, NULL);
    CHECK(lent(view, 4096) == -1 && lent(again, 8192) == 1);
    end();
}

static bool holds(void *arg, const void *start, uint64_t size) {
    const char *at = *(char **)arg;
    return at != NULL && at >= (const char *)start && at < (const char *)start + size;
}

TEST(what_nobody_looks_at_is_let_go) {
    begin(1u << 20, true);
    char *view[3];
    for (int i = 0; i < 3; i++) {
        view[i] = view_at(4096);
        replace();
    }
    char *now = view_at(4096);
    for (int i = 0; i < 3; i++) CHECK_EQ(lent(view[i], 4096), 0);
    engine_views_left(engine, holds, &view[1]);
    CHECK(lent(view[0], 4096) == -1 && lent(view[1], 4096) == 0 && lent(view[2], 4096) == -1);
    CHECK_EQ(lent(now, 4096), 1);
    CHECK_EQ(*(volatile char *)view[1], 0); /* who still looks does not fault */
    char *none = NULL;
    engine_views_left(engine, holds, &none);
    CHECK(lent(view[1], 4096) == -1 && lent(now, 4096) == 1);
    end();
}

TEST_MAIN()
