/* POST /query and /query_by_hash: CONDUCTOR.MATCH in two forms, one beside the other, as two
 * generations of routers read it:
 *
 *     {TENANT:      {ENGINE: {"longest_matched", "GPU", "DP": {RANK: n}, "CPU", "DISK", ...}},
 *      "instances": {ENGINE: {"longest_matched", "gpu", "dp": {RANK: n}, "cpu", "disk", ...}}}
 *
 * In the first, tokens are told where they are fastest to be had; in the second, each tier counts
 * all faster ones, and a rank what is in its device. What the pool has is told beside it ("POOL",
 * "pool"): it is no reason for one engine rather than another. */
#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "conductor/asked.h"
#include "conductor/conductor.h"
#include "conductor/http.h"
#include "conductor/pool.h"
#include "conductor/prompt.h"
#include "route/hash.h"

#define NUMBERS_KEPT 65536u /* of a request; the room for more is given back */

struct query {
    struct http_member model, lora, tenant, instance, salt;
    uint64_t block; /* 0: not said */
};

/* Token ids, or hashes. */
static uint64_t *numbers;
static size_t n_numbers, cap_numbers;
static struct prompt prompt;

static void numbers_free(void) {
    free(numbers);
    numbers = NULL;
    cap_numbers = 0;
}

/* --- who is asked about --- */

struct asked_rank {
    const char *id;
    uint32_t rank, worker;
    uint32_t tokens[ROUTE_TIERS]; /* each tier counts all faster ones */
    uint32_t pool_tokens;
};

static struct asked_rank *ranks;
static size_t n_ranks, cap_ranks;

static bool is_wanted(const struct query *q, const struct route_engine_view *v) {
    struct span tenant = span_str(v->tenant), lora = span_str(v->lora);
    struct span instance = http_member_of(&q->instance);
    if (v->state != ROUTE_UP || v->role == ROUTE_DECODE) return false;
    if (q->block != 0 && v->block_tokens != q->block) return false;
    if (!span_eq(span_str(v->model), http_member_of(&q->model))) return false;
    if (!span_eq(lora, http_member_of(&q->lora)) && !span_eq(lora, SPAN("*"))) return false;
    if (tenant.len > 0 && !span_eq(tenant, http_tenant_of(&q->tenant))) return false;
    return instance.len == 0 || span_eq(instance, span_str(v->id));
}

/* In the order of their workers. */
static void ranks_collect(const struct query *q) {
    struct route_engine_view v;
    uint64_t now_us = conductor_now_us();
    n_ranks = 0;
    for (uint32_t at = 0; route_engine_next(conductor_route, &at, now_us, &v);) {
        if (!is_wanted(q, &v)) continue;
        ARRAY_GROW(ranks, n_ranks, cap_ranks);
        ranks[n_ranks++] = (struct asked_rank){.id = v.id, .rank = v.rank, .worker = v.worker};
    }
}

static int by_worker(const void *a, const void *b) {
    const struct asked_rank *x = a, *y = b;
    return (x->worker > y->worker) - (x->worker < y->worker);
}

static int by_engine(const void *a, const void *b) {
    const struct asked_rank *x = a, *y = b;
    int order = strcmp(x->id, y->id);
    return order != 0 ? order : (x->rank > y->rank) - (x->rank < y->rank);
}

void http_query_free(void) {
    numbers_free();
    prompt_free(&prompt);
    free(ranks);
    ranks = NULL;
    cap_ranks = 0;
}

/* --- what they have --- */

static void ranks_match(const struct query *q, struct route_request *request) {
    request->model = http_member_of(&q->model);
    request->lora = http_member_of(&q->lora);
    size_t cap = route_figures_get(conductor_route)->route_workers;
    struct route_matched *m = xcalloc(cap + 1, sizeof(*m));
    size_t n = min_u64(route_match(conductor_route, request, m, cap), cap);
    for (size_t i = 0; i < n; i++) {
        const struct asked_rank key = {.worker = m[i].worker};
        struct asked_rank *found =
            n_ranks > 0 ? bsearch(&key, ranks, n_ranks, sizeof(key), by_worker) : NULL;
        if (found == NULL) continue;
        found->pool_tokens = (uint32_t)max_u64(found->pool_tokens, m[i].pool_tokens);
        if (found->tokens[ROUTE_TIERS - 1] >= m[i].tokens[ROUTE_TIERS - 1]) continue;
        memcpy(found->tokens, m[i].tokens, sizeof(found->tokens));
    }
    free(m);
}

/* What vLLM hashes of it: of block 0, an array of one string in msgpack. Returns its length. */
static size_t salt_extra(struct span salt, char out[8 + 3 + ROUTE_NAME_MAX]) {
    bool longer = salt.len > 31;
    size_t head = 2 + longer;
    const uint32_t of[2] = {htole32(0), htole32((uint32_t)(head + salt.len))};
    memcpy(out, of, sizeof(of));
    out[8] = (char)0x91;
    out[9] = longer ? (char)0xd9 : (char)(0xa0 | salt.len);
    if (longer) out[10] = (char)salt.len;
    memcpy(out + 8 + head, salt.data, salt.len);
    return 8 + head + salt.len;
}

/* vLLM's cache_salt is hashed with the first block, SGLang's is a salt of the whole: which of the
 * two an engine has is not said, and the prompt can be in one of the forms only. */
static void ranks_match_tokens(const struct query *q, const uint32_t *sizes, uint32_t n_sizes) {
    char error[PROMPT_ERROR_SIZE], extra[8 + 3 + ROUTE_NAME_MAX];
    struct span salt = http_member_of(&q->salt);
    struct prompt_said said = {.model = http_member_of(&q->model),
                               .lora = http_member_of(&q->lora),
                               .salt = salt,
                               .tokens = span_of(numbers, n_numbers * sizeof(uint32_t))};
    if (n_numbers == 0) return;
    for (int form = 0; form < (salt.len > 0 ? 2 : 1); form++) {
        if (form == 1) {
            said.salt = SPAN("");
            said.extra = span_of(extra, salt_extra(salt, extra));
        }
        enum prompt_fault fault =
            prompt_make(&prompt, &said, sizes, n_sizes, conductor_seed(), error);
        TARN_ASSERT(fault == PROMPT_RIGHT);
        struct route_request request = {
            .chains = prompt.chains, .chain_count = prompt.n, .length_tokens = prompt.length};
        if (form == 0) (void)pool_ask(&said, 1, request.pools);
        ranks_match(q, &request);
    }
}

static void ranks_match_hashes(const struct query *q, const uint32_t *sizes, uint32_t n_sizes) {
    if (n_numbers == 0 || n_sizes != 1) return;
    const struct route_chain chain = {.scope = route_hash_scope(http_member_of(&q->model),
                                                                http_member_of(&q->lora), SPAN(""),
                                                                http_member_of(&q->salt), sizes[0]),
                                      .block = sizes[0],
                                      .n = (uint32_t)n_numbers,
                                      .rolling = numbers};
    uint64_t length = min_u64((uint64_t)sizes[0] * n_numbers, ROUTE_TOKENS_MAX);
    struct route_request request = {
        .chains = &chain, .chain_count = 1, .length_tokens = (uint32_t)length};
    ranks_match(q, &request);
}

/* --- the answer --- */

static void put(struct http_answer *a, const char *name, uint64_t n) {
    http_name(a, span_str(name));
    http_number(a, n);
}

static void put_ranks(struct http_answer *a, const char *name, const struct asked_rank *r, size_t n,
                      enum route_tier tier) {
    char rank[24];
    http_name(a, span_str(name));
    http_map(a, n);
    for (size_t i = 0; i < n; i++) {
        http_name(a, span_of(rank, u64_to_dec(r[i].rank, rank)));
        http_number(a, r[i].tokens[tier]);
    }
    http_map_end(a);
}

/* The most that any of its ranks has, by tier; alone: without what faster tiers have. */
static void put_engine(struct http_answer *a, const struct asked_rank *r, size_t n, bool alone) {
    uint32_t most[ROUTE_TIERS] = {0}, longest = 0, pool = 0;
    for (size_t i = 0; i < n; i++) {
        for (size_t t = 0; t < ROUTE_TIERS; t++) {
            uint32_t faster = alone && t > 0 ? r[i].tokens[t - 1] : 0;
            most[t] = (uint32_t)max_u64(most[t], r[i].tokens[t] - faster);
        }
        longest = (uint32_t)max_u64(longest, r[i].tokens[ROUTE_TIERS - 1]);
        pool = (uint32_t)max_u64(pool, r[i].pool_tokens);
    }
    http_map(a, 6);
    put(a, "longest_matched", longest);
    put(a, alone ? "GPU" : "gpu", most[ROUTE_TIER_DEVICE]);
    put_ranks(a, alone ? "DP" : "dp", r, n, alone ? ROUTE_TIERS - 1 : ROUTE_TIER_DEVICE);
    put(a, alone ? "CPU" : "cpu", most[ROUTE_TIER_HOST]);
    put(a, alone ? "DISK" : "disk", most[ROUTE_TIER_DISK]);
    put(a, alone ? "POOL" : "pool", pool);
    http_map_end(a);
}

/* How many ranks the engine of ranks[at] has. */
static size_t ranks_of(size_t at) {
    size_t n = 1;
    while (at + n < n_ranks && strcmp(ranks[at].id, ranks[at + n].id) == 0) n++;
    return n;
}

static void put_engines(struct http_answer *a, struct span name, bool alone) {
    size_t engines = 0;
    for (size_t at = 0; at < n_ranks; at += ranks_of(at)) engines++;
    http_name(a, name);
    http_map(a, engines);
    for (size_t at = 0; at < n_ranks; at += ranks_of(at)) {
        http_name(a, span_str(ranks[at].id));
        put_engine(a, &ranks[at], ranks_of(at), alone);
    }
    http_map_end(a);
}

static void answer(const struct tarn_http_request *r, const struct query *q) {
    struct http_answer a;
    struct span tenant = http_member_of(&q->tenant);
    if (tenant.len == 0) tenant = SPAN("default");
    bool both = !span_eq(tenant, SPAN("instances")); /* a tenant of that name has the second form */
    http_answer_begin(&a, r);
    http_map(&a, 1 + both);
    if (both) put_engines(&a, tenant, true);
    put_engines(&a, SPAN("instances"), false);
    http_map_end(&a);
    http_answer_send(&a, 200);
}

/* --- the request --- */

static void count(const struct query *q) {
    struct asked *a = asked_get(http_member_of(&q->model), http_member_of(&q->lora),
                                http_member_of(&q->salt), conductor_now_us());
    bool hit = false;
    for (size_t i = 0; i < n_ranks; i++) hit |= ranks[i].tokens[ROUTE_TIERS - 1] > 0;
    a->requests++;
    a->unserved += n_ranks == 0;
    a->hashed += n_ranks > 0 && n_numbers > 0;
    a->hits += hit;
}

/* The sizes of blocks that the prompt is hashed by. */
static uint32_t sizes_wanted(const struct query *q, uint32_t sizes[ROUTE_CHAINS_MAX]) {
    uint32_t n = route_block_sizes(conductor_route, http_member_of(&q->model),
                                   http_member_of(&q->lora), sizes);
    if (q->block == 0 || n == 0) return n;
    for (uint32_t i = 0; i < n; i++) {
        if (sizes[i] != q->block) continue;
        sizes[0] = sizes[i];
        return 1;
    }
    conductor_figures.conductor_prompts_misfitting++;
    return 0;
}

/* 8 bytes of each become 4. */
static void numbers_narrow(void) {
    char *to = (char *)numbers;
    for (size_t i = 0; i < n_numbers; i++) {
        uint32_t id = (uint32_t)numbers[i];
        memcpy(to + i * sizeof(id), &id, sizeof(id));
    }
}

static void query(const struct tarn_http_request *r, bool by_hash) {
    struct query q;
    char error[JSON_ERROR_SIZE];
    uint32_t sizes[ROUTE_CHAINS_MAX];
    struct json_u64s list = {&numbers, &n_numbers, &cap_numbers,
                             by_hash ? PROMPT_BLOCKS_MAX : PROMPT_TOKENS_MAX};
    struct json_field fields[] = {
        {by_hash ? "seq_hashes" : "token_ids", JSON_WHOLES, &list, by_hash ? 0 : UINT32_MAX,
         by_hash, false},
        HTTP_NEEDED("model", q.model, ROUTE_NAME_MAX),
        HTTP_MAYBE("lora_name", q.lora, ROUTE_NAME_MAX),
        HTTP_MAYBE("tenant_id", q.tenant, ROUTE_NAME_MAX),
        HTTP_MAYBE("instance_id", q.instance, ROUTE_URL_MAX),
        HTTP_MAYBE("cache_salt", q.salt, ROUTE_NAME_MAX),
        {"block_size", JSON_WHOLE, &q.block, 1u << 20, true, false},
        {"block_hash", JSON_WHOLES, &list, 0, true, false}}; /* as seq_hashes was called */
    enum { OLD_NAME = ARRAY_LEN(fields) - 1 };
    q.block = 0;
    n_numbers = 0;
    const char *wrong = http_body_read(r, fields, OLD_NAME + by_hash, error);
    if (wrong == NULL && by_hash && fields[0].seen == fields[OLD_NAME].seen)
        wrong = fields[0].seen ? "seq_hashes: block_hash is the same, and one of them is enough"
                               : "seq_hashes: it is missing";
    uint32_t n_sizes = wrong == NULL ? sizes_wanted(&q, sizes) : 0;
    if (wrong == NULL && by_hash && n_sizes > 1)
        wrong = "block_size: it is missing, and engines of this model have several";
    if (wrong != NULL) {
        http_refuse(r, 400, "%s", wrong);
        return;
    }
    ranks_collect(&q);
    if (by_hash) {
        ranks_match_hashes(&q, sizes, n_sizes);
    } else {
        numbers_narrow();
        ranks_match_tokens(&q, sizes, n_sizes);
    }
    count(&q);
    if (n_ranks > 0) qsort(ranks, n_ranks, sizeof(*ranks), by_engine);
    answer(r, &q);
}

static void query_run(const struct tarn_http_request *r, bool by_hash) {
    query(r, by_hash);
    if (cap_numbers > NUMBERS_KEPT) numbers_free();
}

void http_run_query(const struct tarn_http_request *r) {
    query_run(r, false);
}

void http_run_query_by_hash(const struct tarn_http_request *r) {
    query_run(r, true);
}
