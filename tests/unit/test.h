/* The harness of every unit test: one header, no library.
 *
 *     #include "../test.h"
 *     TEST(buf_grows) { ... CHECK(expr); CHECK_EQ(got, expected); ... }
 *     TEST_MAIN()
 *
 * A program runs its tests in the order of its file, or those named in argv (a name selects every
 * test that starts with it; -l lists them). It prints a line per test, closes with "N passed, M
 * failed" (", K skipped" where there are any), and exits with 1 if a test failed. A failed check
 * ends its test: whatever follows would only be noise. SKIP("why") ends it too. Checks may stand in
 * functions that a test calls; they do not return then. One thread runs the checks. */
#ifndef TARN_TESTS_TEST_H
#define TARN_TESTS_TEST_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How long a test waits for what must come: the machine may be busy with other work. Only failing
 * tests wait so long. */
#define TEST_PATIENCE_MS 300000u

struct test_case {
    const char *name;
    void (*run)(void);
    struct test_case *next;
};

static struct test_case *test_first, **test_last = &test_first;
static const char *test_running = "";
static jmp_buf test_end;
enum { TEST_FAILED = 1, TEST_SKIPPED };

static inline void test_register(struct test_case *t) {
    *test_last = t;
    test_last = &t->next;
}

#define TEST(test_name)                                                                            \
    static void test_run_##test_name(void);                                                        \
    __attribute__((constructor)) static void test_register_##test_name(void) {                     \
        static struct test_case test = {#test_name, test_run_##test_name, NULL};                   \
        test_register(&test);                                                                      \
    }                                                                                              \
    static void test_run_##test_name(void)

_Noreturn static inline void test_stop(int how, const char *file, int line, const char *text) {
    if (how == TEST_SKIPPED)
        printf("ok %s # SKIP %s\n", test_running, text);
    else
        printf("not ok %s: %s:%d: %s\n", test_running, file, line, text);
    fflush(stdout);
    longjmp(test_end, how);
}

/* How many of n rounds are run; ROUNDS in the environment: so many. ThreadSanitizer learns nothing
 * from work of one thread, and makes it many times slower. */
static inline int test_rounds(int n) {
    const char *rounds = getenv("ROUNDS");
    if (rounds) return atoi(rounds);
#if defined(__SANITIZE_THREAD__)
    return (n + 4) / 5;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
    return (n + 4) / 5;
#endif
#endif
    return n;
}

#define CHECK(expr)                                                                                \
    do {                                                                                           \
        if (!(expr)) test_stop(TEST_FAILED, __FILE__, __LINE__, #expr);                            \
    } while (0)

/* Numbers of any kind, compared in their common type and printed as both. A string is compared with
 * CHECK_STR. */
#define CHECK_EQ(a, b)                                                                             \
    do {                                                                                           \
        __auto_type test_a = (a);                                                                  \
        __auto_type test_b = (b);                                                                  \
        if (!TEST_SAME(test_a, test_b))                                                            \
            test_differ(__FILE__, __LINE__, #a " == " #b, TEST_SHOWN(test_a), TEST_SHOWN(test_b)); \
    } while (0)

/* A number from low to high. */
#define CHECK_WITHIN(x, low, high)                                                                 \
    do {                                                                                           \
        double test_x = (x);                                                                       \
        if (!(test_x >= (low) && test_x <= (high)))                                                \
            test_differ(__FILE__, __LINE__, #x, TEST_SHOWN(test_x), #low " to " #high);            \
    } while (0)

#define CHECK_STR(a, b)                                                                            \
    do {                                                                                           \
        const char *test_a = (a), *test_b = (b);                                                   \
        if (test_a == NULL || test_b == NULL || strcmp(test_a, test_b) != 0)                       \
            test_differ(__FILE__, __LINE__, #a " is " #b, test_show_str(test_a),                   \
                        test_show_str(test_b));                                                    \
    } while (0)

/* len bytes at a against a literal. */
#define CHECK_BYTES(a, len, literal)                                                               \
    do {                                                                                           \
        const char *test_a = (a);                                                                  \
        size_t test_len = (len);                                                                   \
        if (test_len != sizeof(literal) - 1 || memcmp(test_a, literal, test_len) != 0)             \
            test_differ(__FILE__, __LINE__, #a " holds " #literal,                                 \
                        test_show_bytes(test_a, test_len),                                         \
                        test_show_bytes(literal, sizeof(literal) - 1));                            \
    } while (0)

#define SKIP(why) test_stop(TEST_SKIPPED, __FILE__, __LINE__, (why))

/* Warnings about signedness would only come from literals here: 5 against a size_t of 5. */
#define TEST_SAME(a, b)                                                                            \
    __extension__({                                                                                \
        _Pragma("GCC diagnostic push")                                                             \
            _Pragma("GCC diagnostic ignored \"-Wsign-compare\"") bool test_same = (a) == (b);      \
        _Pragma("GCC diagnostic pop") test_same;                                                   \
    })

/* _Generic sees every branch, whatever the type: so hand over the address and say what lies
 * there. */
#define TEST_SHOWN(v)                                                                              \
    test_show(_Generic((v), char                                                                   \
                       : 'i', signed char                                                          \
                       : 'i', short                                                                \
                       : 'i', int                                                                  \
                       : 'i', long                                                                 \
                       : 'i', long long                                                            \
                       : 'i', bool                                                                 \
                       : 'u', unsigned char                                                        \
                       : 'u', unsigned short                                                       \
                       : 'u', unsigned                                                             \
                       : 'u', unsigned long                                                        \
                       : 'u', unsigned long long                                                   \
                       : 'u', float                                                                \
                       : 'd', double                                                               \
                       : 'd', default                                                              \
                       : 'p'),                                                                     \
              &(v), sizeof(v))

static inline char *test_slot(void) {
    static char slots[2][512];
    static unsigned turn;
    return slots[turn++ & 1];
}
__attribute__((unused)) static inline const char *test_show(char kind, const void *p, size_t size) {
    char *s = test_slot();
    uint64_t u = 0;
    memcpy(&u, p, size < 8 ? size : 8);
    unsigned unused_bits = size < 8 ? 64 - 8 * (unsigned)size : 0;
    double d = 0;
    if (kind == 'd' && size == sizeof(float)) {
        float f;
        memcpy(&f, p, sizeof(f));
        d = (double)f;
    } else {
        memcpy(&d, &u, sizeof(d));
    }
    switch (kind) {
    case 'i': snprintf(s, 512, "%lld", (long long)(u << unused_bits) >> unused_bits); break;
    case 'u': snprintf(s, 512, "%llu", (unsigned long long)u); break;
    case 'd': snprintf(s, 512, "%.17g", d); break;
    default: snprintf(s, 512, "0x%llx", (unsigned long long)u);
    }
    return s;
}
__attribute__((unused)) static inline const char *test_show_bytes(const char *p, size_t len) {
    char *s = test_slot();
    size_t at = 0;
    for (size_t i = 0; i < len && at < 500; i++) {
        unsigned char c = (unsigned char)p[i];
        at += (size_t)snprintf(s + at, 512 - at, c >= 0x20 && c < 0x7f ? "%c" : "\\x%02x", c);
    }
    s[at] = '\0';
    return s;
}
__attribute__((unused)) static inline const char *test_show_str(const char *p) {
    return p == NULL ? "NULL" : test_show_bytes(p, strlen(p));
}

__attribute__((unused)) _Noreturn static inline void
test_differ(const char *file, int line, const char *text, const char *got, const char *expected) {
    static char whole[2048];
    snprintf(whole, sizeof(whole), "%s: got %s, expected %s", text, got, expected);
    test_stop(TEST_FAILED, file, line, whole);
}

static inline bool test_selected(const struct test_case *t, int argc, char **argv) {
    if (argc < 2) return true;
    for (int i = 1; i < argc; i++) {
        if (strncmp(t->name, argv[i], strlen(argv[i])) == 0) return true;
    }
    return false;
}

static inline int test_main(int argc, char **argv) {
    /* Kept out of registers that longjmp would set back. */
    static unsigned passed, failed, skipped;
    static struct test_case *t;
    bool list = argc == 2 && strcmp(argv[1], "-l") == 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (t = test_first; t != NULL; t = t->next) {
        if (list) puts(t->name);
        if (list || !test_selected(t, argc, argv)) continue;
        test_running = t->name;
        switch (setjmp(test_end)) {
        case 0:
            t->run();
            printf("ok %s\n", t->name);
            passed++;
            break;
        case TEST_SKIPPED: skipped++; break;
        default: failed++;
        }
    }
    if (list) return 0;
    printf("%u passed, %u failed", passed, failed);
    if (skipped > 0) printf(", %u skipped", skipped);
    printf("\n");
    return failed > 0;
}

#define TEST_MAIN()                                                                                \
    int main(int argc, char **argv) {                                                              \
        return test_main(argc, argv);                                                              \
    }

#endif
