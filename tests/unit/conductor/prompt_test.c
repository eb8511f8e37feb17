/* A prompt by the sizes of its engines' blocks, and all that can be wrong with it. */
#include "conductor/prompt.h"
#include "../test.h"
#include "conductor/engines.h"
#include "route/hash.h"

static struct prompt prompt;
static char error[PROMPT_ERROR_SIZE];
static const uint32_t sizes[] = {16, 32, 64};

static struct prompt_said said_tokens(const uint32_t *tokens, size_t n) {
    return (struct prompt_said){.model = SPAN("m"), .tokens = span_of(tokens, 4 * n)};
}

TEST(tokens_are_hashed_by_each_size) {
    uint32_t tokens[100];
    uint64_t rolling[8];
    for (uint32_t i = 0; i < 100; i++) tokens[i] = 7 * i;
    struct prompt_said said = said_tokens(tokens, 100);
    CHECK_EQ(prompt_make(&prompt, &said, sizes, 3, 5, error), PROMPT_RIGHT);
    CHECK(prompt.n == 3 && prompt.length == 100);
    for (uint32_t i = 0; i < 3; i++) {
        const struct route_chain *c = &prompt.chains[i];
        CHECK(c->block == sizes[i] && c->n == 100 / sizes[i]);
        CHECK_EQ(c->scope, route_hash_scope(SPAN("m"), SPAN(""), SPAN(""), SPAN(""), sizes[i]));
        route_hash_prompt(tokens, 100, sizes[i], NULL, 0, 5, rolling, 8);
        CHECK(memcmp(c->rolling, rolling, c->n * sizeof(*rolling)) == 0);
    }
    said.lora = SPAN("l");
    said.salt = SPAN("s");
    CHECK_EQ(prompt_make(&prompt, &said, sizes, 1, 5, error), PROMPT_RIGHT);
    CHECK_EQ(prompt.chains[0].scope,
             route_hash_scope(SPAN("m"), SPAN("l"), SPAN(""), SPAN("s"), 16));
    CHECK_EQ(prompt_make(&prompt, &said, sizes, 0, 5, error), PROMPT_RIGHT);
    CHECK(prompt.n == 0 && prompt.length == 100);
    said.length = 99;
    CHECK_EQ(prompt_make(&prompt, &said, sizes, 1, 5, error), PROMPT_CUT);
    said.length = 0;
    said.tokens.len--;
    CHECK_EQ(prompt_make(&prompt, &said, sizes, 1, 5, error), PROMPT_CUT);
    prompt_free(&prompt);
}

TEST(no_more_blocks_than_there_may_be) {
    size_t n = PROMPT_TOKENS_MAX;
    uint32_t *tokens = xcalloc(n, sizeof(*tokens));
    struct prompt_said said = said_tokens(tokens, n);
    CHECK_EQ(prompt_make(&prompt, &said, sizes, 3, 0, error), PROMPT_RIGHT);
    CHECK_EQ(prompt.chains[0].n, PROMPT_BLOCKS_MAX);
    CHECK_EQ(prompt.chains[2].n, n / 64);
    CHECK_EQ(prompt.length, n);
    free(tokens);
    prompt_free(&prompt);
}

TEST(the_block_of_hashes_is_said_or_told) {
    const struct span hashes[] = {SPAN("1"), SPAN("2"), SPAN("3"), SPAN("x")};
    struct prompt_said said = {.model = SPAN("m"), .hashes = hashes, .n_hashes = 3, .length = 100};
    CHECK_EQ(prompt_make(&prompt, &said, sizes, 3, 0, error), PROMPT_RIGHT);
    CHECK(prompt.n == 1 && prompt.chains[0].block == 32 && prompt.chains[0].rolling[2] == 3);
    CHECK_EQ(prompt_make(&prompt, &said, sizes, 1, 0, error), PROMPT_RIGHT);
    CHECK_EQ(prompt.chains[0].block, 16); /* the only one; more blocks than hashes are no matter */
    said.n_hashes = 2;
    CHECK_EQ(prompt_make(&prompt, &said, sizes, 3, 0, error), PROMPT_MISFIT);
    CHECK(strstr(error, "16, 32, 64") != NULL);
    said.block = 16;
    CHECK_EQ(prompt_make(&prompt, &said, sizes, 3, 0, error), PROMPT_RIGHT);
    said.block = 48;
    CHECK_EQ(prompt_make(&prompt, &said, sizes, 3, 0, error), PROMPT_MISFIT);
    CHECK_EQ(prompt_make(&prompt, &said, sizes, 0, 0, error), PROMPT_RIGHT); /* nobody has any */
    said.block = 64;
    CHECK_EQ(prompt_make(&prompt, &said, sizes, 3, 0, error), PROMPT_MISFIT); /* 2 x 64 > 100 */
    said.block = 16;
    said.n_hashes = 4;
    CHECK_EQ(prompt_make(&prompt, &said, sizes, 3, 0, error), PROMPT_WRONG);
    CHECK(strstr(error, "hash 4") != NULL);
    said.length = 0;
    CHECK_EQ(prompt_make(&prompt, &said, sizes, 3, 0, error), PROMPT_WRONG);
    prompt_free(&prompt);
}

TEST(registrations_as_bytes) {
    struct registration x = {.id = SPAN("e1"), .rank = 63}, y;
    char name[REGISTRATION_NAME_MAX];
    struct buf out = {NULL, 0, 0};
    x.field[ENGINE_URL] = SPAN("http://e1");
    x.field[ENGINE_MODEL] = SPAN("m");
    x.field[ENGINE_BLOCK] = SPAN("16");
    x.field[ENGINE_ROLE] = SPAN("decode");
    registration_write(&x, &out);
    CHECK(registration_read(span_of(out.data, out.len), &y));
    CHECK_EQ(registration_differs(&x, &y, false), ENGINE_FIELDS);
    y.field[ENGINE_URL] = SPAN("http://e2");
    CHECK_EQ(registration_differs(&x, &y, false), ENGINE_URL);
    CHECK_EQ(registration_differs(&x, &y, true), ENGINE_FIELDS);
    for (size_t n = 0; n < out.len; n++) { /* one that is cut off is none, or has a field less */
        bool whole = registration_read(span_of(out.data, n), &y);
        CHECK(!whole || registration_differs(&x, &y, false) != ENGINE_FIELDS);
    }
    struct span key = registration_name(x.id, x.rank, name);
    CHECK(span_eq(key, SPAN("e/e1/63")));
    CHECK(registration_named(key, &y.id, &y.rank) && span_eq(y.id, x.id) && y.rank == 63);
    CHECK(!registration_named(SPAN("e/e1/64"), &y.id, &y.rank));
    CHECK(!registration_named(SPAN("e/e1"), &y.id, &y.rank));
    CHECK(!registration_named(SPAN("e//1"), &y.id, &y.rank));
    CHECK(!registration_named(SPAN("d/e1/1"), &y.id, &y.rank));
    struct route_engine_spec spec;
    registration_spec(&x, &spec);
    CHECK(spec.role == ROUTE_DECODE && spec.block_tokens == 16 && spec.rank == 63);
    buf_free(&out);
}

TEST_MAIN()
