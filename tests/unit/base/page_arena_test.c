/* Memory that is reserved first and used later. */
#include "../test.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/page_arena.h"

#define MB ((size_t)1 << 20)

static void check_arena(bool huge) {
    struct page_arena a;
    CHECK(page_arena_init(&a, 10 * MB, huge ? PAGES_HUGE : 0));
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

static bool is_there(char *at) {
    unsigned char there[64] = {0}; /* an emulator's pages may be larger than those it tells of */
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    CHECK_EQ(mincore(at - (uintptr_t)at % page, page, there), 0);
    return there[0] & 1;
}

static bool system_touches(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *p = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bool does = !is_there(p) && madvise(p, page, MADV_POPULATE_WRITE) == 0 && is_there(p);
    munmap(p, page);
    return does;
}

static bool init_both(struct page_arena *a, struct page_arena *b) {
    return page_arena_init(a, 64 * MB, PAGES_HUGE | PAGES_AHEAD) &&
           page_arena_init(b, 64 * MB, PAGES_AHEAD);
}

/* Of what was never written: in a large page it is there as far as that one goes. */
static size_t resident_behind(const struct page_arena *a, size_t used) {
    size_t n = 0;
    for (size_t at = used; at < a->ready; at += 65536) n += is_there(a->base + at) ? 65536 : 0;
    return n;
}

TEST(a_growing_one_is_touched_ahead) {
    struct page_arena a, b;
    if (!system_touches()) SKIP("this system touches no pages when it is asked to");
    CHECK(init_both(&a, &b));
    for (size_t size = 4096; size <= 7 * MB; size += 4096) CHECK(page_arena_grow(&a, size));
    CHECK_EQ(a.touched, 0u);                     /* a small one is not */
    for (size_t round = 0; round < 2; round++) { /* the thread ends, and is there again */
        for (size_t size = 8 * MB; size <= 40 * MB; size += 4096) {
            CHECK(page_arena_grow(&a, size) && page_arena_grow(&b, size));
            CHECK(a.touched <= size + 8 * MB && a.touched <= a.ready);
        }
        while (!is_there(a.base + a.touched - 1) || !is_there(b.base + b.touched - 1)) usleep(1000);
        CHECK(a.touched > 8 * MB && a.ready <= 60 * MB);
        CHECK(resident_behind(&a, 40 * MB) <= 10 * MB && resident_behind(&b, 40 * MB) <= 8 * MB);
        CHECK(page_arena_grow(&a, 64 * MB) && !page_arena_grow(&a, 64 * MB + 1));
        page_arena_free(&a);
        page_arena_free(&b);
        CHECK(init_both(&a, &b));
    }
    page_arena_free(&a);
    page_arena_free(&b);
}

TEST(one_that_is_not_to_be_is_not_touched) {
    struct page_arena a;
    CHECK(page_arena_init(&a, 64 * MB, 0));
    for (size_t size = 4096; size <= 40 * MB; size += 4096) CHECK(page_arena_grow(&a, size));
    CHECK(a.touched == 0 && a.ready == 40 * MB && resident_behind(&a, 0) == 0);
    page_arena_free(&a);
}

/* Whatever the size of a page: what is around the range stays. */
TEST(any_range_is_given_back) {
    struct page_arena a;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), n = 4 * page;
    CHECK(page_arena_init(&a, n, 0) && page_arena_grow(&a, n));
    for (size_t from = 0; from < n; from += page / 2 - 8)
        for (size_t to = from; to <= n; to += page / 4) {
            memset(a.base, 7, n);
            page_arena_discard(&a, from, to - from);
            size_t wrong = 0;
            for (size_t i = 0; i < n; i++) wrong += a.base[i] != (i >= from && i < to ? 0 : 7);
            CHECK_EQ(wrong, 0u);
        }
    page_arena_free(&a);
}

TEST(a_reservation_of_any_size) {
    struct page_arena a;
    CHECK(page_arena_init(&a, 5000, PAGES_HUGE) && page_arena_grow(&a, 5000));
    CHECK(!page_arena_grow(&a, 5001));
    CHECK_EQ(a.reserved, 5000u); /* users count it */
    a.base[4999] = 1;
    page_arena_free(&a);
}

TEST(a_limited_address_space_is_shared) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    SKIP("a sanitizer has taken more than the limit already");
#endif
    pid_t child = fork();
    if (child == 0) {
        struct page_arena a, b;
        struct rlimit limit, want = {.rlim_cur = 16384 * MB, .rlim_max = RLIM_INFINITY};
        bool is = setrlimit(RLIMIT_AS, &want) == 0 && getrlimit(RLIMIT_AS, &limit) == 0 &&
                  limit.rlim_cur == want.rlim_cur;
        bool ok = page_arena_init(&a, 32768 * MB, PAGES_HUGE) &&
                  page_arena_init(&b, 32768 * MB, PAGES_HUGE) && page_arena_grow(&a, 1024 * MB) &&
                  !page_arena_grow(&a, 1025 * MB);
        _exit(!is ? 77 : ok ? 0 : 1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) SKIP("an emulator keeps the limit to itself");
    CHECK_EQ(WEXITSTATUS(status), 0);
}

TEST_MAIN()
