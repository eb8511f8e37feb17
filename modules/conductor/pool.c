#include "conductor/pool.h"

#include <endian.h>
#include <string.h>
#include "base/assert.h"
#include "conductor/conductor.h"
#include "conductor/pool_names.h"

static struct pool_hashes hashes;

/* --- how engines call their blocks: texts that were read lately --- */

static struct names_read {
    struct buf text;
    struct pool_names names;
} lately[ROUTE_POOLS_MAX];

/* NULL: it is no such text; a later version has written it. */
static const struct pool_names *names_of(struct span text) {
    static unsigned oldest;
    for (size_t i = 0; i < ARRAY_LEN(lately); i++)
        if (lately[i].names.n > 0 &&
            span_eq(span_of(lately[i].text.data, lately[i].text.len), text))
            return &lately[i].names;
    struct names_read *x = &lately[oldest++ % ARRAY_LEN(lately)];
    buf_clear(&x->text);
    buf_append(&x->text, text.data, text.len);
    if (pool_names_read(span_of(x->text.data, x->text.len), &x->names)) return &x->names;
    x->names.n = 0;
    return NULL;
}

/* --- the prompt, as connectors hash it --- */

/* One entry of EXTRA, which is valid (route/hash.h). false: there is none left. */
static bool extra_next(struct span *extra, uint32_t *block_p, struct span *bytes_p) {
    uint32_t head[2];
    if (extra->len < sizeof(head)) return false;
    memcpy(head, extra->data, sizeof(head));
    *block_p = le32toh(head[0]);
    *bytes_p = span_of(extra->data + sizeof(head), le32toh(head[1]));
    size_t len = sizeof(head) + bytes_p->len;
    *extra = span_of(extra->data + len, extra->len - len);
    return true;
}

/* vLLM's salt is in EXTRA of block 0: an array of one string in msgpack. */
static bool extra_is_salt(uint32_t block, struct span bytes, struct span *salt_p) {
    const uint8_t *b = (const uint8_t *)bytes.data;
    size_t head = bytes.len > 2 && b[1] >> 5 == 5 ? 2 : bytes.len > 3 && b[1] == 0xd9 ? 3 : 0;
    if (block != 0 || head == 0 || b[0] != 0x91) return false;
    size_t len = head == 2 ? b[1] & 31u : b[2];
    *salt_p = span_of(bytes.data + head, bytes.len - head);
    return len == bytes.len - head;
}

/* What EXTRA has beside a salt (images) is hashed in ways that cannot be had from it: the prompt
 * ends there. */
static void prompt_take(const struct prompt_said *said, uint32_t block, struct pool_prompt *p) {
    struct span extra = said->extra, bytes, salt;
    uint32_t at;
    *p = (struct pool_prompt){.tokens = said->tokens};
    if (said->lora.len > 0) p->lora = said->lora;
    if (said->salt.len > 0) p->salt = said->salt;
    while (extra_next(&extra, &at, &bytes)) {
        if (p->salt.data == NULL && extra_is_salt(at, bytes, &salt)) {
            p->salt = salt;
            continue;
        }
        uint64_t before = (uint64_t)at * block * sizeof(uint32_t);
        if (before < p->tokens.len) p->tokens.len = before;
        return;
    }
}

/* --- the books --- */

static void runs_take(const struct tarn_pool_run *from, size_t n,
                      struct route_pool_run to[ROUTE_POOL_RUNS_MAX]) {
    for (size_t i = 0; i < n; i++)
        to[i] = (struct route_pool_run){
            .begin = from[i].begin,
            .tokens = from[i].tokens,
            .tier = from[i].disk ? ROUTE_TIER_DISK : ROUTE_TIER_HOST,
            .host = from[i].machine != NULL ? span_str(from[i].machine) : span_of(NULL, 0),
            .rack = from[i].rack != NULL ? span_str(from[i].rack) : span_of(NULL, 0),
            .bytes = from[i].bytes};
}

/* As far as look-ups can reach: each part of the smallest unit may need several hashes. */
static size_t hashes_max(const struct pool_names *x) {
    uint32_t unit = UINT32_MAX;
    for (size_t i = 0; i < x->n; i++) unit = (uint32_t)min_u64(unit, x->group[i].unit);
    return min_u64((uint64_t)TARN_POOL_LOOKUPS_MAX * unit / x->unit, PROMPT_BLOCKS_MAX);
}

/* Tokens that the pool has. */
static uint32_t names_ask(const struct pool_names *x, const struct pool_prompt *said, bool prefetch,
                          struct route_pool_run runs[ROUTE_POOL_RUNS_MAX], uint32_t *n_runs_p) {
    struct tarn_pool_run found[ROUTE_POOL_RUNS_MAX];
    struct pool_prompt p = *said;
    const char *why;
    uint64_t tokens = 0;
    size_t n_runs = ROUTE_POOL_RUNS_MAX;
    /* SGLang's names of pages do not tell adapters and salts apart, or do so in ways of their own:
     * what is there may be another's, or not to be read. */
    if (x->hashing == POOL_HASH_SGLANG && (p.lora.data != NULL || p.salt.data != NULL)) return 0;
    p.revision = x->revision;
    size_t n = pool_hashes_begin(&hashes, x->hashing, x->unit, &p, hashes_max(x));
    struct tarn_pool_question q = {.size = sizeof(q),
                                   .unit = x->unit,
                                   .align = x->align,
                                   .n_hashes = n,
                                   .hashes = hashes.text,
                                   .make = pool_hashes_make,
                                   .arg = &hashes,
                                   .n_groups = x->n,
                                   .names = x->name,
                                   .groups = x->group,
                                   .prefetch = prefetch};
    if (conductor_services->pool_prefix(&q, &tokens, found, &n_runs, &why) != TARN_OK) return 0;
    runs_take(found, n_runs, runs);
    *n_runs_p = (uint32_t)n_runs;
    return (uint32_t)tokens;
}

enum pool_answer pool_ask(const struct prompt_said *said, uint32_t block,
                          struct route_pool pools[ROUTE_POOLS_MAX]) {
    static struct route_pool_run runs[ROUTE_POOLS_MAX][ROUTE_POOL_RUNS_MAX];
    struct span keys[ROUTE_POOLS_MAX];
    struct pool_prompt p;
    enum pool_answer answer = POOL_NOTHING;
    uint32_t n = route_keys(conductor_route, said->model, said->lora, keys);
    if (n == 0) return POOL_NO_KEYS;
    if (said->tokens.len == 0) return POOL_NO_TOKENS;
    prompt_take(said, block, &p);
    for (uint32_t i = 0; i < n; i++) {
        const struct pool_names *x = names_of(keys[i]);
        pools[i] = (struct route_pool){.keys = keys[i], .runs = runs[i]};
        if (x != NULL) pools[i].tokens = names_ask(x, &p, false, runs[i], &pools[i].run_count);
        if (pools[i].tokens > 0) answer = POOL_FOUND;
    }
    return answer;
}

static bool any_on_disk(const struct route_pool *pool) {
    for (uint32_t i = 0; i < pool->run_count; i++)
        if (pool->runs[i].tier == ROUTE_TIER_DISK) return true;
    return false;
}

bool pool_prefetch(const struct prompt_said *said, uint32_t block,
                   const struct route_pool pools[ROUTE_POOLS_MAX]) {
    struct route_pool_run runs[ROUTE_POOL_RUNS_MAX];
    struct pool_prompt p;
    uint32_t n_runs;
    bool asked = false;
    prompt_take(said, block, &p);
    for (uint32_t i = 0; i < ROUTE_POOLS_MAX; i++) {
        const struct pool_names *x = any_on_disk(&pools[i]) ? names_of(pools[i].keys) : NULL;
        if (x != NULL) asked |= names_ask(x, &p, true, runs, &n_runs) > 0;
    }
    return asked;
}

void pool_free(void) {
    for (size_t i = 0; i < ARRAY_LEN(lately); i++) {
        buf_free(&lately[i].text);
        pool_names_free(&lately[i].names);
    }
    pool_hashes_free(&hashes);
}
