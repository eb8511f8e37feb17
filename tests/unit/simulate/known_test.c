/* Numbers that others have published or measured, as ranges: docs/SIMULATION.md has each beside its
 * source, and with what had to be assumed. */
#include "base/assert.h"
#include "simulate/sim.h"

#include "../test.h"

static struct sim_config config_of(const char *model, const char *gpu, unsigned gpus) {
    struct sim_config c;
    sim_config_init(&c);
    c.speed.model = sim_model_find(model);
    c.speed.gpu = sim_gpu_find(gpu);
    c.speed.gpus = gpus;
    return c;
}

static struct sim_result run_made(const struct sim_config *c, enum trace_kind kind, size_t requests,
                                  double rate) {
    const struct trace_recipe recipe = {
        .kind = kind, .requests = requests, .rate = rate, .seed = 1};
    struct trace t = {0};
    struct sim_result r;
    const char *why;
    CHECK_EQ(trace_generate(&t, &recipe, &why), TARN_OK);
    sim_run(c, &t, trace_number(&t), NULL, &r);
    trace_free(&t);
    return r;
}

/* Three prompts of n tokens, one after the other, of which the first p tokens are the same: the
 * first finds nothing, the second comes to another engine, the third to the first one again.
 * Returns their times to the first token, in ms. */
struct three {
    double cold, remote, local;
};
static struct three run_three(struct sim_config *c, uint32_t n, uint32_t p) {
    enum { BLOCK = 16 };
    uint32_t blocks = n / BLOCK, shared = p / BLOCK, next = blocks;
    struct trace_request q[3];
    struct trace t = {.block = BLOCK, .requests = q, .n = 3, .longest = blocks};
    t.ids = xcalloc(3 * (size_t)blocks, sizeof(*t.ids));
    for (uint32_t i = 0; i < 3; i++) {
        q[i] = (struct trace_request){.timestamp_ms = i * 60000,
                                      .first = i * (uint64_t)blocks,
                                      .n = blocks,
                                      .input = blocks * BLOCK,
                                      .output = 1,
                                      .session = TRACE_SESSION_NONE};
        for (uint32_t k = 0; k < blocks; k++)
            t.ids[q[i].first + k] = i == 0 || k < shared ? k : next++;
    }
    t.n_ids = 3 * (size_t)blocks;
    struct sim_result r;
    c->engines = 2;
    c->pool_blocks = 1u << 20;
    c->overlap = false;
    sim_run(c, &t, next, NULL, &r);
    free(t.ids);
    double sum = 3 * r.ttft.mean * 1e3, high = r.ttft.p99 * 1e3, middle = r.ttft.p50 * 1e3;
    return (struct three){high, middle, sum - high - middle};
}

/* "2322 ms cold, 739 ms local hit, 948 ms remote hit" */
TEST(a_small_cluster_cold_remote_local) {
    struct sim_config c = config_of("Llama-3-8B", "A800", 1);
    c.nic = 56e9 / 8;
    struct three t = run_three(&c, 15008, 11168);
    CHECK_WITHIN(t.cold, 2322 * 0.97, 2322 * 1.03);
    CHECK_WITHIN(t.remote, 948 * 0.95, 948 * 1.05);
    CHECK_WITHIN(t.local, 739 * 0.95, 739 * 1.05);
}

/* "397 ms with the KV in Redis, 271 by RDMA" */
TEST(the_same_hit_over_a_slow_and_a_fast_network) {
    struct sim_config c = config_of("Llama-3-8B", "A800", 1);
    c.nic = 100e9 / 8;
    double fast = run_three(&c, 9392, 8192).remote;
    c.nic = 40e9 / 8;
    double slow = run_three(&c, 9392, 8192).remote;
    CHECK_WITHIN(fast, 271 * 0.93, 271 * 1.07);
    CHECK_WITHIN(slow, 397 * 0.93, 397 * 1.07);
}

/* "P99 inter-token 19.7 against 294.9 ms" of one prefill and one decode engine, and two mixed
 * ones. */
TEST(apart_the_gaps_between_tokens_stay_short) {
    struct sim_config c = config_of("Llama-3-8B", "A800", 1);
    c.engines = 2;
    struct sim_result mixed = run_made(&c, TRACE_DOCUMENTS, 600, 0.11);
    c.prefill = c.decode = 1;
    struct sim_result apart = run_made(&c, TRACE_DOCUMENTS, 600, 0.11);
    CHECK_WITHIN(mixed.gap.p99 * 1e3, 200, 400);
    CHECK_WITHIN(apart.gap.p99 * 1e3, 15, 30);
}

/* "a pool on eight NPUs: TTFT -52 %, tokens/s +81 %" */
TEST(a_pool_on_eight_npus) {
    struct sim_config c = config_of("Qwen3-32B", "910B", 8);
    c.engines = 1;
    c.kv_blocks = 285;
    c.pace = 120; /* all at once, but for the order */
    struct sim_result bare = run_made(&c, TRACE_AGENTS, 500, 1);
    c.pool_blocks = 200000;
    struct sim_result pool = run_made(&c, TRACE_AGENTS, 500, 1);
    CHECK_WITHIN(pool.ttft.mean / bare.ttft.mean, 0.40, 0.60);
    CHECK_WITHIN(pool.tokens_s / bare.tokens_s, 1.6, 2.2);
}

/* "66.7 % hits" of a prompt that three ask for, one after the other */
TEST(a_toy_pool_hits_two_of_three) {
    struct sim_config c = config_of("Llama-3-8B", "H100", 1);
    struct three t = run_three(&c, 8192, 8192);
    CHECK(t.local < t.cold / 10);
    CHECK(t.remote < t.cold);
}

/* The order of policies on the trace of conversations (Mooncake, FAST 2025): random, by load, by
 * cache, by the estimated time with copies of prefixes. Here on made ones. */
TEST(the_order_of_policies) {
    static const char *const worst_first[] = {"random", "least-loaded", "prefix-tree", "mooncake"};
    double before = 1e9;
    struct sim_config c = config_of("Llama-3-70B", "A800", 8);
    c.prefill = 16;
    c.decode = 8;
    for (size_t i = 0; i < ARRAY_LEN(worst_first); i++) {
        c.route = worst_first[i];
        double mean = run_made(&c, TRACE_CHAT, 4000, 12).ttft.mean;
        CHECK(mean < before);
        before = mean;
    }
}

TEST_MAIN()
