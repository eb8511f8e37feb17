/* Watched keys: who is told, and that nothing is left. */
#include "front/watch.h"

#include "../test.h"

static uint64_t version;

static uint64_t version_of(struct span key) {
    return span_eq(key, SPAN("other")) ? 7 : version;
}

TEST(a_touched_key_marks_its_watchers) {
    struct watcher a = {0}, b = {0};
    CHECK(watch_add(&a, SPAN("k"), 1) == WATCH_ADDED);
    CHECK(watch_add(&b, SPAN("k"), 1) == WATCH_ADDED);
    CHECK(watch_add(&b, SPAN("l"), 1) == WATCH_ADDED);
    CHECK_EQ(watch_count, 3);
    watch_touch(SPAN("nobody's"));
    CHECK(!a.touched && !b.touched);
    watch_touch(SPAN("l"));
    CHECK(!a.touched && b.touched);
    watch_touch(SPAN("k"));
    CHECK(a.touched);
    watch_clear(&a);
    CHECK(!a.touched && a.count == 0 && a.bytes == 0);
    CHECK_EQ(watch_count, 2);
    watch_touch(SPAN("k"));
    CHECK(!a.touched);
    watch_clear(&b);
    CHECK_EQ(watch_count, 0);
    watch_touch_key(SPAN("k"), false); /* nobody is there */
}

static unsigned told;

static void tell(struct watcher *w, struct span key) {
    CHECK(span_eq(key, SPAN("k")));
    CHECK(w->count > 0);
    told++;
}

TEST(who_is_told_hears_of_a_key_once_and_when_it_has_gone) {
    struct watcher marked = {0}, a = {.tell = tell}, b = {.tell = tell};
    CHECK(watch_add(&a, SPAN("first"), 0) == WATCH_ADDED);
    CHECK(watch_add(&a, SPAN("k"), 0) == WATCH_ADDED);
    CHECK(watch_add(&a, SPAN("last"), 0) == WATCH_ADDED);
    CHECK(watch_add(&marked, SPAN("k"), 1) == WATCH_ADDED);
    CHECK(watch_add(&b, SPAN("k"), 0) == WATCH_ADDED);
    size_t bytes = a.bytes;
    watch_touch_key(SPAN("k"), true);
    CHECK_EQ(told, 2);
    CHECK(!marked.touched && a.count == 2 && b.count == 0 && b.bytes == 0 && a.bytes < bytes);
    watch_touch_key(SPAN("k"), false);
    CHECK_EQ(told, 2);
    CHECK(marked.touched);
    CHECK(watch_add(&a, SPAN("k"), 0) == WATCH_ADDED);
    watch_clear(&marked);
    watch_touch_key(SPAN("k"), true); /* its last watcher */
    CHECK_EQ(told, 3);
    CHECK(a.tell == tell && a.count == 2);
    watch_clear(&a);
    CHECK(a.tell == tell && a.count == 0 && a.bytes == 0);
    CHECK_EQ(watch_count, 0);
}

TEST(versions_are_those_of_the_first_watch) {
    struct watcher w = {0};
    version = 5;
    watch_add(&w, SPAN("k"), 5);
    watch_add(&w, SPAN("other"), 7);
    CHECK(watch_add(&w, SPAN("k"), 6) == WATCH_KNOWN);
    CHECK_EQ(w.count, 2);
    CHECK(!watch_differs(&w, version_of));
    version = 6;
    CHECK(watch_differs(&w, version_of));
    version = 0;
    CHECK(watch_differs(&w, version_of));
    watch_clear(&w);
    CHECK(!watch_differs(&w, version_of));
}

TEST(the_empty_key_is_one) {
    struct watcher w = {0};
    CHECK(watch_add(&w, SPAN(""), 0) == WATCH_ADDED);
    CHECK(watch_add(&w, SPAN(""), 0) == WATCH_KNOWN);
    watch_touch(SPAN(""));
    CHECK(w.touched);
    watch_clear(&w);
}

TEST(there_is_a_bound_for_each) {
    struct watcher w = {0}, other = {0};
    char key[16];
    for (unsigned i = 0; i < WATCHES_MAX; i++) {
        size_t n = (size_t)snprintf(key, sizeof(key), "%u", i);
        CHECK(watch_add(&w, span_of(key, n), i) == WATCH_ADDED);
    }
    CHECK(watch_add(&w, SPAN("more"), 1) == WATCH_FULL);
    CHECK(watch_add(&w, SPAN("77"), 1) == WATCH_KNOWN);
    CHECK(watch_add(&other, SPAN("77"), 1) == WATCH_ADDED);
    CHECK(w.bytes > WATCHES_MAX * 32);
    watch_touch(SPAN("77"));
    CHECK(w.touched && other.touched);
    watch_clear(&w);
    CHECK_EQ(watch_count, 1);
    watch_clear(&other);
    CHECK_EQ(watch_count, 0);
}

TEST_MAIN()
