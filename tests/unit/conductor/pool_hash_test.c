/* Hashes and names of blocks in the pool, as engines' connectors have them. */
#include "../test.h"
#include "base/assert.h"
#include "conductor/pool_hash.h"
#include "conductor/pool_names.h"

static struct pool_hashes hashes;
static uint32_t tokens[40];

static const char *hash_of(enum pool_hashing hashing, const struct pool_prompt *said, size_t i) {
    static char text[POOL_HASH_TEXT + 1];
    struct pool_prompt p = *said;
    for (uint32_t k = 0; k < 40; k++) tokens[k] = k;
    p.tokens = span_of(tokens, sizeof(tokens));
    CHECK_EQ(pool_hashes_begin(&hashes, hashing, 16, &p, 100), 2);
    pool_hashes_make(&hashes, i + 1);
    CHECK_EQ(hashes.made, i + 1);
    CHECK_EQ(hashes.text[i].len, POOL_HASH_TEXT);
    memcpy(text, hashes.text[i].data, POOL_HASH_TEXT);
    return text;
}

/* tests/python/chain_test.py has the first two; the others are of the same tarn.chain. */
TEST(known_answers_of_tarn_chain) {
    struct pool_prompt p = {.revision = span_of(NULL, 0)};
    CHECK_STR(hash_of(POOL_HASH_TARN, &p, 0),
              "2a4c097f6e7c08268e1d6fb3b1510b170ceac13259553f14f24c8fa151b02076");
    CHECK_STR(hash_of(POOL_HASH_TARN, &p, 1),
              "ec40c52dedbdfca2cf8919e748936091d77be51d7ca6f366c65df961c25ca8aa");
    p.revision = SPAN("");
    CHECK_STR(hash_of(POOL_HASH_TARN, &p, 0),
              "b48c69e0fdd7252a3faf5d6fa8942c83b41858da5063798a2ee7dc64c7167ade");
    p = (struct pool_prompt){
        .lora = SPAN("sql-7"), .salt = SPAN("tenant"), .revision = SPAN("main")};
    CHECK_STR(hash_of(POOL_HASH_TARN, &p, 0),
              "b2b168608037a7e72cc9bfa05c3e9039cc888e10042239ac1760966122b1f5dc");
    CHECK_STR(hash_of(POOL_HASH_TARN, &p, 1),
              "06e391bf29d561d42dc9eb1971e041e5da9905ecc0322a149d27897a3c3644fe");
}

/* By hashlib, as SGLang's get_hash_str has it; the salt is no part of it. */
TEST(known_answers_of_sglang) {
    struct pool_prompt p = {.salt = SPAN("tenant")};
    CHECK_STR(hash_of(POOL_HASH_SGLANG, &p, 0),
              "5d85718ec594b982c252d0279e5966ffca33a5eaf2a455038d3ab331fde70cea");
    CHECK_STR(hash_of(POOL_HASH_SGLANG, &p, 1),
              "4681c0107c38f402cd1bc30b0b09a65202dba31f98269d9d7f63f5e0dea6901a");
}

TEST(hashes_are_made_up_to_a_number) {
    struct pool_prompt p = {.tokens = span_of(tokens, sizeof(tokens))};
    CHECK_EQ(pool_hashes_begin(&hashes, POOL_HASH_TARN, 1, &p, 7), 7);
    CHECK_EQ(hashes.made, 0);
    pool_hashes_make(&hashes, 3);
    pool_hashes_make(&hashes, 2);
    CHECK_EQ(hashes.made, 3);
    CHECK_EQ(pool_hashes_begin(&hashes, POOL_HASH_TARN, 41, &p, 7), 0);
    pool_hashes_free(&hashes);
}

static const char *again(const char *text) {
    static struct buf out;
    struct pool_names x = {0};
    buf_clear(&out);
    if (!pool_names_read(span_str(text), &x)) {
        pool_names_free(&x);
        return NULL;
    }
    pool_names_write(&x, &out);
    pool_names_free(&x);
    buf_append_char(&out, '\0');
    return out.data;
}

TEST(names_as_text) {
    const char *good[] = {
        "TARN 16 16 - m@f@ FULL 16 16 0 0", "SGLANG 64 64 - a FULL 64 64 0 0 b WINDOW 64 64 129 0",
        "TARN 16 32 = m FULL 32 16 0 1 s STATE 32 16 0 0", "TARN 16 16 =main m FULL 16 16 0 0"};
    const char *bad[] = {"",
                         "TARN",
                         "TARN 16 16 -",
                         "MD5 16 16 - m FULL 16 16 0 0",
                         "TARN 0 16 - m FULL 16 16 0 0",
                         "TARN 16 16 - m FULL 16 16 0",
                         "TARN 16 16 - m HALF 16 16 0 0",
                         "TARN 16 16 - m FULL x 16 0 0",
                         "TARN 16 16  m FULL 16 16 0 0",
                         "TARN 16 16 - m FULL 16 4294967296 0 0"};
    for (size_t i = 0; i < ARRAY_LEN(good); i++) CHECK_STR(again(good[i]), good[i]);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) CHECK(again(bad[i]) == NULL);
}

TEST_MAIN()
