#include "base/crc32c.h"

#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../test.h"
#include "base/buf.h"
#include "base/rng.h"

#define DATA (1u << 20)

static const char *const impls[] = {"vpclmulqdq", "sse4.2", "pmull", "crc32", "table"};
static uint8_t *data;

/* Straight from the definition: one bit at a time. */
static uint32_t bitwise(uint32_t crc, const uint8_t *p, size_t len) {
    crc = ~crc;
    while (len-- > 0) {
        crc ^= *p++;
        for (int i = 0; i < 8; i++) crc = (crc >> 1) ^ (crc & 1 ? 0x82F63B78u : 0);
    }
    return ~crc;
}

static void fill(struct rng *r) {
    rng_seed(r, 20);
    if (data == NULL) data = xmalloc(DATA);
    for (size_t i = 0; i < DATA; i++) data[i] = (uint8_t)rng_next(r);
}

static size_t some_length(struct rng *r) {
    switch (rng_below(r, 4)) {
    case 0: return rng_below(r, 80);
    case 1: return rng_below(r, 700);
    case 2: return rng_below(r, 8000);
    default: return 256 * rng_below(r, 30) + rng_below(r, 3);
    }
}

/* Runs body for each implementation that this CPU has, and puts the best back. */
#define FOR_EACH_IMPL(body)                                                                        \
    do {                                                                                           \
        const char *best = crc32c_impl();                                                          \
        for (size_t impl = 0; impl < sizeof(impls) / sizeof(impls[0]); impl++) {                   \
            if (!crc32c_force(impls[impl])) continue;                                              \
            CHECK_STR(crc32c_impl(), impls[impl]);                                                 \
            body;                                                                                  \
        }                                                                                          \
        crc32c_force(best);                                                                        \
    } while (0)

static void check_vectors(void) {
    uint8_t b[32];
    CHECK_EQ(crc32c(0, "123456789", 9), 0xE3069283u);
    CHECK_EQ(crc32c(0, NULL, 0), 0u);
    memset(b, 0, 32);
    CHECK_EQ(crc32c(0, b, 32), 0x8A9136AAu);
    memset(b, 0xff, 32);
    CHECK_EQ(crc32c(0, b, 32), 0x62A8AB43u);
    for (int i = 0; i < 32; i++) b[i] = (uint8_t)i;
    CHECK_EQ(crc32c(0, b, 32), 0x46DD794Eu);
    for (int i = 0; i < 32; i++) b[i] = (uint8_t)(31 - i);
    CHECK_EQ(crc32c(0, b, 32), 0x113FDB5Cu);
    static const uint8_t scsi_read[48] = {0x01, 0xC0, 0, 0,    0,    0, 0, 0,    0,    0, 0,    0,
                                          0,    0,    0, 0,    0x14, 0, 0, 0,    0,    0, 0x04, 0,
                                          0,    0,    0, 0x14, 0,    0, 0, 0x18, 0x28, 0, 0,    0,
                                          0,    0,    0, 0,    0x02, 0, 0, 0,    0,    0, 0,    0};
    CHECK_EQ(crc32c(0, scsi_read, 48), 0xD9963A56u);
}

TEST(crc32c_vectors_of_rfc_3720) {
    FOR_EACH_IMPL(check_vectors());
}

static void check_random(void) {
    struct rng r;
    fill(&r);
    for (int i = 0; i < 2000; i++) {
        size_t len = some_length(&r), at = rng_below(&r, 200);
        uint32_t start = (uint32_t)rng_next(&r);
        CHECK_EQ(crc32c(start, data + at, len), bitwise(start, data + at, len));
    }
}

TEST(crc32c_is_the_definition) {
    FOR_EACH_IMPL(check_random());
}

static void check_splits(void) {
    struct rng r;
    fill(&r);
    for (int i = 0; i < 500; i++) {
        size_t len = some_length(&r) + some_length(&r), at = rng_below(&r, 200);
        uint32_t whole = crc32c(0, data + at, len), parts = 0;
        for (size_t done = 0; done < len;) {
            size_t n = 1 + rng_below(&r, len - done);
            parts = crc32c(parts, data + at + done, n);
            done += n;
        }
        CHECK_EQ(parts, whole);
    }
}

TEST(crc32c_of_parts_is_that_of_the_whole) {
    FOR_EACH_IMPL(check_splits());
}

static void check_copy(void) {
    struct rng r;
    fill(&r);
    uint8_t *dst = xmalloc(DATA + 256);
    for (int i = 0; i < 700; i++) {
        /* Now and then long enough for the stores that go around the cache. */
        size_t len = i % 50 == 0 ? 260000 + rng_below(&r, 20000) : some_length(&r);
        size_t from = rng_below(&r, 130), to = 64 + rng_below(&r, 130);
        uint32_t start = (uint32_t)rng_next(&r);
        memset(dst, 0xAA, to + len + 64);
        CHECK_EQ(crc32c_copy(start, dst + to, data + from, len), bitwise(start, data + from, len));
        CHECK(memcmp(dst + to, data + from, len) == 0);
        for (size_t k = 0; k < 64; k++) CHECK(dst[to - 1 - k] == 0xAA && dst[to + len + k] == 0xAA);
        memset(dst, 0xAA, to + len + 64);
        CHECK_EQ(crc32c_copy_past(start, dst + to, data + from, len, i % 2 ? data : NULL),
                 bitwise(start, data + from, len));
        CHECK(memcmp(dst + to, data + from, len) == 0);
        for (size_t k = 0; k < 64; k++) CHECK(dst[to - 1 - k] == 0xAA && dst[to + len + k] == 0xAA);
    }
    free(dst);
}

TEST(crc32c_copy_copies_and_checks) {
    FOR_EACH_IMPL(check_copy());
}

static void check_page_ends(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *m = mmap(NULL, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(m != MAP_FAILED);
    CHECK(mprotect(m, page, PROT_NONE) == 0 && mprotect(m + 2 * page, page, PROT_NONE) == 0);
    uint8_t *p = m + page, copy[600];
    for (size_t i = 0; i < page; i++) p[i] = (uint8_t)(i * 7);
    for (size_t len = 0; len < sizeof(copy); len++) {
        CHECK_EQ(crc32c(0, p, len), bitwise(0, p, len));
        CHECK_EQ(crc32c(0, p + page - len, len), bitwise(0, p + page - len, len));
        CHECK_EQ(crc32c_copy(0, copy, p + page - len, len), bitwise(0, p + page - len, len));
        CHECK_EQ(crc32c_copy(0, p + page - len, copy, len), bitwise(0, copy, len));
    }
    munmap(m, 3 * page);
}

TEST(crc32c_touches_nothing_outside) {
    FOR_EACH_IMPL(check_page_ends());
}

TEST(crc32c_combine_joins_any_two) {
    struct rng r;
    fill(&r);
    for (int i = 0; i < 500; i++) {
        size_t len = some_length(&r), cut = rng_below(&r, len + 1);
        CHECK_EQ(crc32c_combine(crc32c(0, data, cut), crc32c(0, data + cut, len - cut), len - cut),
                 crc32c(0, data, len));
    }
    /* Lengths that nobody can compute the long way: joining is associative. */
    uint32_t a = 0x12345678, b = 0x9abcdef0, c = 0x0badcafe;
    uint64_t nb = 1ull << 40, nc = (1ull << 62) + 12345;
    CHECK_EQ(crc32c_combine(crc32c_combine(a, b, nb), c, nc),
             crc32c_combine(a, crc32c_combine(b, c, nc), nb + nc));
}

TEST(crc32c_takes_the_instructions_that_are_there) {
#if defined(__x86_64__)
    bool has = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
#elif defined(__aarch64__)
    bool has = (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#else
    bool has = false;
#endif
    CHECK_EQ(strcmp(crc32c_impl(), "table") != 0, has);
}

TEST(crc32c_refuses_an_unknown_implementation) {
    const char *before = crc32c_impl();
    CHECK(!crc32c_force("abacus"));
    CHECK_STR(crc32c_impl(), before);
}

TEST_MAIN()
