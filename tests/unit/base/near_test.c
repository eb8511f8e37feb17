/* "Did you mean ...": the banded table against the plain definition, its limits, and what it
 * must not take. */
#include "base/near.h"

#include <string.h>
#include "base/buf.h"
#include "base/rng.h"
#include "../test.h"

static const char *nearest(const char *typed, const char *const *words) {
    struct near n;
    near_begin(&n, span_str(typed));
    for (; *words != NULL; words++) near_offer(&n, *words);
    return n.word;
}

TEST(mistakes_of_one_hand) {
    static const char *const words[] = {"port", "pool-size", "pool-path", "maxmemory",
                                        "get",  "set",       "putstart",  NULL};
    CHECK_STR(nearest("prot", words), "port");
    CHECK_STR(nearest("POOL_SIZE", words), "pool-size");
    CHECK_STR(nearest("poolsize", words), "pool-size");
    CHECK_STR(nearest("max-memory", words), "maxmemory");
    CHECK_STR(nearest("PUTSTRAT", words), "putstart");
    CHECK_STR(nearest("ge", words), "get");
    CHECK(nearest("gxx", words) == NULL);
    CHECK(nearest("bgsave", words) == NULL);
    CHECK(nearest("", words) == NULL);
}

TEST(the_nearest_wins) {
    static const char *const words[] = {"expiretime", "expires", "expire", "expired", NULL};
    CHECK_STR(nearest("expir", words), "expire");
    CHECK_STR(nearest("expired", words), "expired");
}

TEST(long_words_are_near_to_nothing) {
    char typed[4096], word[NEAR_LEN_MAX + 2];
    const char *const words[] = {word, NULL};
    memset(typed, 'a', sizeof(typed));
    memset(word, 'a', sizeof(word));
    typed[NEAR_LEN_MAX] = word[NEAR_LEN_MAX] = '\0';
    CHECK(nearest(typed, words) == word);
    typed[NEAR_LEN_MAX] = 'a', typed[NEAR_LEN_MAX + 1] = '\0';
    CHECK(nearest(typed, words) == NULL);
    typed[NEAR_LEN_MAX - 1] = word[NEAR_LEN_MAX + 1] = '\0';
    word[NEAR_LEN_MAX] = 'a';
    CHECK(nearest(typed, words) == NULL);
    struct near n;
    near_begin(&n, span_of("a\0b", 3)); /* any bytes */
    near_offer(&n, "ab");
    CHECK_STR(n.word, "ab");
}

static unsigned least(unsigned a, unsigned b) {
    return a < b ? a : b;
}

/* By the definition. */
static unsigned plain(const char *a, const char *b) {
    unsigned d[16][16];
    size_t n = strlen(a), m = strlen(b);
    for (unsigned i = 0; i <= n; i++)
        for (unsigned j = 0; j <= m; j++) {
            d[i][j] = i == 0 ? j : j == 0 ? i : d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            if (i == 0 || j == 0) continue;
            d[i][j] = least(d[i][j], least(d[i - 1][j], d[i][j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                d[i][j] = least(d[i][j], d[i - 2][j - 2] + 1);
        }
    return d[n][m];
}

static void random_word(struct rng *rng, char *out) {
    size_t n = 1 + rng_next(rng) % 12;
    for (size_t i = 0; i < n; i++) out[i] = (char)('a' + rng_next(rng) % 2);
    out[n] = '\0';
}

TEST(as_the_definition_says) {
    struct rng rng;
    char a[16], b[16];
    unsigned near = 0;
    rng_seed(&rng, 7);
    for (unsigned i = 0; i < 20000; i++) {
        random_word(&rng, a);
        random_word(&rng, b);
        size_t n = strlen(a);
        const char *const words[] = {b, NULL};
        bool taken = plain(a, b) < (n < 5 ? 2u : n < 10 ? 3u : 4u);
        CHECK_EQ(nearest(a, words) != NULL, taken);
        near += taken;
    }
    CHECK(near > 1000 && near < 19000);
}

TEST_MAIN()
