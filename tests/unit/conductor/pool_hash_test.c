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
              "{1ca2}fdc64fd7c3f72efa116d6506297ecd233446c94561b609f4f6024c4bdd47");
    CHECK_STR(hash_of(POOL_HASH_TARN, &p, 1),
              "{1e40}dab4dbd3e183513ba88e0876bda2de17c40de1f8265905d255eec54c38e0");
    p.revision = SPAN("");
    CHECK_STR(hash_of(POOL_HASH_TARN, &p, 0),
              "{4298}b73ac94ea32279f90c2ec090d4d03533f289f8e4084a9bdbf6ddf05aaa2f");
    p = (struct pool_prompt){
        .lora = SPAN("sql-7"), .salt = SPAN("tenant"), .revision = SPAN("main")};
    CHECK_STR(hash_of(POOL_HASH_TARN, &p, 0),
              "{1ff2}b16c910ce0ba1333deb66d87040de7aac8505efd0991548866d4e7b1f3a2");
    CHECK_STR(hash_of(POOL_HASH_TARN, &p, 1),
              "{4882}5d4554d2c9e62ab839a802db5716670afb6787ca682581c4f609b15fc3cc");
}

/* By hashlib, as SGLang's get_hash_str has it; the salt is no part of it. */
TEST(known_answers_of_sglang) {
    struct pool_prompt p = {.salt = SPAN("tenant")};
    CHECK_STR(hash_of(POOL_HASH_SGLANG, &p, 0),
              "{5d85}718ec594b982c252d0279e5966ffca33a5eaf2a455038d3ab331fde70cea");
    CHECK_STR(hash_of(POOL_HASH_SGLANG, &p, 1),
              "{4681}c0107c38f402cd1bc30b0b09a65202dba31f98269d9d7f63f5e0dea6901a");
}

/* As chain_test.py has them, of two tokens each; SGLang's pages have no stretches. */
TEST(a_stretch_begins_alike) {
    static const struct {
        size_t at;
        const char *text;
    } known[] = {{0, "{e6e9}e055049d"},
                 {8, "{1f37}a95e655b"},
                 {9, "{1f37}a1c247f2"},
                 {703, "{139a}c69e9118"},
                 {704, "{fb5a}83c912fa"}};
    uint32_t many[1420];
    for (uint32_t k = 0; k < 1420; k++) many[k] = k;
    struct pool_prompt p = {.tokens = span_of((const char *)many, sizeof(many))};
    CHECK_EQ(pool_hashes_begin(&hashes, POOL_HASH_TARN, 2, &p, 1000), 710);
    pool_hashes_make(&hashes, 710);
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        CHECK(span_starts(hashes.text[known[i].at], span_str(known[i].text)));
    CHECK_EQ(pool_hashes_begin(&hashes, POOL_HASH_SGLANG, 2, &p, 1000), 710);
    pool_hashes_make(&hashes, 10);
    CHECK(!span_starts(hashes.text[9], span_of(hashes.text[8].data, 6)));
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
