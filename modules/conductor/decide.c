/* CONDUCTOR.ROUTE, FIRST, DONE, MATCH: from a request to an engine, and what came of it. */
#include <stdio.h>
#include <stdlib.h>
#include "conductor/asked.h"
#include "conductor/command.h"
#include "conductor/kept.h"
#include "conductor/pool.h"
#include "conductor/prompt.h"

#define PRIORITY_MOST 100

static struct prompt prompt;

void conductor_prompt_free(void) {
    prompt_free(&prompt);
    pool_free();
}

/* --- what is asked --- */

static void prompt_fail(struct tarn_call_context *c, enum prompt_fault fault, const char *error) {
    conductor_figures.conductor_prompts_cut += fault == PROMPT_CUT;
    conductor_figures.conductor_prompts_misfitting += fault == PROMPT_MISFIT;
    conductor_fail(c, "%s", error);
}

static struct prompt_said prompt_said_of(const struct conductor_ask *args,
                                         const struct span *argv) {
    return (struct prompt_said){.model = argv[args->model],
                                .lora = word_at(argv, args->lora),
                                .salt = word_at(argv, args->salt),
                                .tokens = word_at(argv, args->tokens),
                                .extra = word_at(argv, args->extra),
                                .hashes = argv + args->hashes.at,
                                .n_hashes = args->hashes.n,
                                .block = (uint32_t)args->block,
                                .length = (uint32_t)args->length};
}

/* The prompt is in `prompt` then. false: it has answered what is wrong. */
static bool prompt_read(struct tarn_call_context *c, const struct prompt_said *said) {
    uint32_t sizes[ROUTE_CHAINS_MAX];
    char error[PROMPT_ERROR_SIZE];
    uint32_t n = route_block_sizes(conductor_route, said->model, said->lora, sizes);
    enum prompt_fault fault = prompt_make(&prompt, said, sizes, n, conductor_seed(), error);
    if (fault != PROMPT_RIGHT) prompt_fail(c, fault, error);
    return fault == PROMPT_RIGHT;
}

struct asking {
    struct route_request request;
    struct span exclude[ROUTE_EXCLUDE_MAX];
    char policy[32];
};

static void asking_fill(struct asking *a, const struct conductor_ask *args,
                        const struct span *argv) {
    struct span policy = word_at(argv, args->policy);
    span_to_text(policy, a->policy, sizeof(a->policy));
    for (uint32_t i = 0; i < args->exclude.n; i++) a->exclude[i] = argv[args->exclude.at[i]];
    a->request = (struct route_request){.id = word_at(argv, args->request),
                                        .model = argv[args->model],
                                        .lora = word_at(argv, args->lora),
                                        .tenant = word_at(argv, args->tenant),
                                        .session = word_at(argv, args->session),
                                        .policy = policy.len > 0 ? a->policy : NULL,
                                        .chains = prompt.chains,
                                        .chain_count = prompt.n,
                                        .length_tokens = prompt.length,
                                        .output_tokens = (uint32_t)args->output,
                                        .priority = (int32_t)args->priority,
                                        .ttft_ms = (double)args->ttft_ms,
                                        .tbt_ms = (double)args->tbt_ms,
                                        .exclude = a->exclude,
                                        .exclude_count = args->exclude.n};
}

static uint32_t smallest_block(void) {
    uint32_t block = prompt.n > 0 ? prompt.chains[0].block : 1;
    for (uint32_t i = 1; i < prompt.n; i++)
        if (prompt.chains[i].block < block) block = prompt.chains[i].block;
    return block;
}

/* What the pool has of it. */
static enum pool_answer asking_pool(struct asking *a, const struct prompt_said *said) {
    return pool_ask(said, smallest_block(), a->request.pools);
}

/* The engine will read from the pool what it has not itself. */
static void asking_prefetch(const struct asking *a, const struct prompt_said *said,
                            const struct route_decision *d) {
    uint64_t own = 0;
    for (size_t t = 0; t < ROUTE_TIERS; t++) own += d->hit_tokens[t];
    if (d->pool_tokens > own && pool_prefetch(said, smallest_block(), a->request.pools))
        conductor_figures.conductor_pool_prefetched++;
}

/* --- ROUTE --- */

/* One of several ranks is (id, rank). */
static void reply_engine(struct tarn_call_context *c, const char *id, uint32_t rank,
                         uint32_t worker) {
    struct route_engine_view v;
    bool many = route_engine_next(conductor_route, &worker, 0, &v) && (v.ranks > 1 || rank > 0);
    if (many) conductor_services->reply_array(c, 2);
    conductor_services->reply_text(c, span_str(id));
    if (many) conductor_services->reply_int(c, rank);
}

static void reply_decision(struct tarn_call_context *c, const struct route_decision *d) {
    conductor_services->reply_array(c, 7);
    reply_engine(c, d->prefill, d->prefill_rank, d->prefill_worker);
    if (d->decode == NULL)
        conductor_services->reply_null(c);
    else
        reply_engine(c, d->decode, d->decode_rank, d->decode_worker);
    conductor_services->reply_array(c, ROUTE_TIERS);
    for (size_t t = 0; t < ROUTE_TIERS; t++) conductor_services->reply_int(c, d->hit_tokens[t]);
    conductor_services->reply_int(c, d->pool_tokens);
    conductor_services->reply_double(c, d->ttft_ms);
    conductor_services->reply_double(c, d->tbt_ms);
    conductor_services->reply_int(c, d->lease_ms);
}

static void reply_overloaded(struct tarn_call_context *c, uint32_t retry_ms) {
    char text[640];
    snprintf(text, sizeof(text), "OVERLOADED %u %s", retry_ms, route_error(conductor_route));
    conductor_services->reply_error(c, text);
}

static void pool_count(struct asked *a, enum pool_answer pool) {
    bool asked = pool == POOL_NOTHING || pool == POOL_FOUND;
    a->pool_asked += asked;
    a->pool_hits += pool == POOL_FOUND;
    a->pool_untold += pool == POOL_NO_TOKENS;
    conductor_figures.conductor_pool_asked += asked;
    conductor_figures.conductor_pool_hits += pool == POOL_FOUND;
    conductor_figures.conductor_pool_untold += pool == POOL_NO_TOKENS;
}

static void asked_count(const struct route_request *q, struct span salt, enum pool_answer pool,
                        tarn_status status, const struct route_decision *d) {
    struct asked *a = asked_get(q->model, q->lora, salt, conductor_now_us());
    a->requests++;
    a->unserved += status == TARN_ENOTFOUND;
    pool_count(a, pool);
    if (status != TARN_OK || q->chain_count == 0) return;
    a->hashed++;
    for (size_t t = 0; t < ROUTE_TIERS; t++)
        if (d->hit_tokens[t] > 0) {
            a->hits++;
            return;
        }
}

void cmd_route(struct tarn_call_context *c, const struct span *argv, size_t argc) {
    struct conductor_ask args = {0};
    struct route_decision d = {0};
    struct asking a;
    if (!conductor_bind(c, CONDUCTOR_ROUTE, argv, argc, &args)) return;
    if (args.priority < -PRIORITY_MOST || args.priority > PRIORITY_MOST) {
        conductor_fail(c, "PRIORITY must be a number from -%d to %d", PRIORITY_MOST, PRIORITY_MOST);
        return;
    }
    const struct prompt_said said = prompt_said_of(&args, argv);
    if (!prompt_read(c, &said)) return;
    asking_fill(&a, &args, argv);
    enum pool_answer pool = asking_pool(&a, &said);
    tarn_status status = route_decide(conductor_route, &a.request, conductor_now_us(), &d);
    asked_count(&a.request, said.salt, pool, status, &d);
    if (status == TARN_OK) {
        kept_tell(a.request.id);
        asking_prefetch(&a, &said, &d);
        reply_decision(c, &d);
    } else if (status == TARN_ELATER) {
        reply_overloaded(c, d.retry_ms);
    } else {
        conductor_figures.conductor_requests_unserved += status == TARN_ENOTFOUND;
        conductor_fail_route(c, status);
    }
    (void)kept_write();
}

/* --- FIRST and DONE --- */

static void reply_told(struct tarn_call_context *c, struct span request, tarn_status status) {
    if (status == TARN_OK) {
        kept_tell(request);
        conductor_services->reply_simple(c, "OK");
    } else {
        conductor_figures.conductor_requests_unknown++;
        conductor_services->reply_error(c, "ERR there is no such request, or its lease has ended");
    }
    (void)kept_write();
}

void cmd_first(struct tarn_call_context *c, const struct span *argv, size_t argc) {
    struct conductor_told args = {0};
    if (!conductor_bind(c, CONDUCTOR_FIRST, argv, argc, &args)) return;
    reply_told(c, argv[args.request],
               route_first(conductor_route, argv[args.request], conductor_now_us()));
}

void cmd_done(struct tarn_call_context *c, const struct span *argv, size_t argc) {
    struct conductor_told args = {0};
    if (!conductor_bind(c, CONDUCTOR_DONE, argv, argc, &args)) return;
    struct span request = argv[args.request];
    uint64_t now_us = conductor_now_us();
    if (args.decode && !args.failed) {
        conductor_fail(c, "DECODE says which engine failed: it comes with FAILED");
        return;
    }
    reply_told(c, request,
               args.decode ? route_failed_decode(conductor_route, request, now_us)
                           : route_done(conductor_route, request, (uint32_t)args.output,
                                        args.failed, now_us));
}

/* --- MATCH --- */

void cmd_match(struct tarn_call_context *c, const struct span *argv, size_t argc) {
    struct conductor_ask args = {0};
    struct asking a;
    if (!conductor_bind(c, CONDUCTOR_MATCH, argv, argc, &args)) return;
    const struct prompt_said said = prompt_said_of(&args, argv);
    if (!prompt_read(c, &said)) return;
    asking_fill(&a, &args, argv);
    (void)asking_pool(&a, &said);
    size_t cap = route_figures_get(conductor_route)->route_workers;
    struct route_matched *m = xcalloc(cap + 1, sizeof(*m));
    size_t n = min_u64(route_match(conductor_route, &a.request, m, cap), cap);
    conductor_services->reply_array(c, n);
    for (size_t i = 0; i < n; i++) {
        conductor_services->reply_map(c, 6);
        field_text(c, "id", m[i].engine);
        field_int(c, "rank", m[i].rank);
        field_int(c, "device", m[i].tokens[ROUTE_TIER_DEVICE]);
        field_int(c, "host", m[i].tokens[ROUTE_TIER_HOST]);
        field_int(c, "disk", m[i].tokens[ROUTE_TIER_DISK]);
        field_int(c, "pool", m[i].pool_tokens);
    }
    free(m);
}
