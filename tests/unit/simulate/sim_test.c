/* Whole runs: nothing gets lost, the same seed gives the same, known numbers come out. */
#include "simulate/sim.h"

#include <math.h>

#include "base/assert.h"
#include "route/route.h"
#include "simulate/gaps.h"

#include "../test.h"

static struct trace made;
static uint64_t made_ids;

static const struct trace *make(enum trace_kind kind, size_t requests, double rate) {
    const struct trace_recipe recipe = {
        .kind = kind, .requests = requests, .rate = rate, .seed = 11};
    trace_free(&made);
    const char *why;
    CHECK_EQ(trace_generate(&made, &recipe, &why), TARN_OK);
    made_ids = trace_number(&made);
    return &made;
}

static struct sim_config small_config(void) {
    struct sim_config c;
    sim_config_init(&c);
    c.engines = 4;
    c.speed.model = sim_model_find("Llama-3-8B");
    c.speed.gpus = 1;
    return c;
}

static struct sim_result run_on(const struct sim_config *c, const struct trace *t) {
    struct sim_result r;
    CHECK(sim_config_check(c, t) == NULL);
    sim_run(c, t, made_ids, NULL, &r);
    CHECK_EQ(r.requests, t->n);
    CHECK_EQ(r.done + r.refused + r.too_long + r.lost, t->n);
    return r;
}

/* Requests one by one: the time to the first token is that of the prefill, the gaps are steps. */
TEST(an_idle_engine_takes_what_the_model_says) {
    struct trace t = {.block = 512};
    struct trace_request q[2] = {
        {.timestamp_ms = 0, .first = 0, .n = 8, .input = 4096, .output = 101, .session = 0},
        {.timestamp_ms = 60000, .first = 8, .n = 12, .input = 6144, .output = 1, .session = 0}};
    uint64_t ids[20] = {0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    t.requests = q;
    t.n = 2;
    t.ids = ids;
    t.n_ids = 20;
    t.longest = 12;
    struct sim_config c = small_config();
    c.engines = 1;
    made_ids = 12;
    struct sim_result r = run_on(&c, &t);
    double first = sim_prefill_s(&c.speed, 4096, 0), second = sim_prefill_s(&c.speed, 2048, 4096);
    CHECK_WITHIN(r.ttft.p90, first * 0.999, first * 1.001);
    CHECK_WITHIN(r.ttft.mean * 2 - first, second * 0.998, second * 1.002);
    CHECK_WITHIN(r.tbt.mean, sim_step_s(&c.speed, 0, 0, 1, 4096) * 0.999,
                 sim_step_s(&c.speed, 0, 0, 1, 4200) * 1.001);
    CHECK_WITHIN(r.device, 0.3999, 0.4001); /* 4096 of 10240 tokens */
    CHECK_EQ(r.kept, 2);
}

/* Beside one that decodes, two prompts of one beginning start in one step: the second one computes
 * what is its own. */
TEST(prompts_of_one_step_share_their_prefix) {
    struct trace t = {.block = 512};
    struct trace_request q[3] = {
        {.timestamp_ms = 0, .first = 0, .n = 1, .input = 512, .output = 1000, .session = 0},
        {.timestamp_ms = 1000, .first = 1, .n = 2, .input = 1024, .output = 1, .session = 1},
        {.timestamp_ms = 1000, .first = 3, .n = 3, .input = 1536, .output = 1, .session = 2}};
    uint64_t ids[6] = {0, 1, 2, 1, 2, 3};
    t.requests = q;
    t.n = 3;
    t.ids = ids;
    t.n_ids = 6;
    t.longest = 3;
    struct sim_config c = small_config();
    c.engines = 1;
    made_ids = 4;
    struct sim_result r = run_on(&c, &t);
    CHECK_WITHIN(r.device, 0.333, 0.334); /* 1024 of 3072 tokens */
}

TEST(the_same_seed_gives_the_same) {
    const struct trace *t = make(TRACE_CHAT, 1500, 6);
    struct sim_config c = small_config();
    c.pool_blocks = 2000;
    c.route = "random";
    struct sim_result a = run_on(&c, t), b = run_on(&c, t);
    CHECK(memcmp(&a, &b, sizeof(a)) == 0);
    c.seed = 2;
    b = run_on(&c, t);
    CHECK(memcmp(&a, &b, sizeof(a)) != 0);
}

TEST(every_policy_in_every_deployment_serves_every_request) {
    const struct trace *t = make(TRACE_AGENTS, 600, 4);
    for (unsigned i = 0; route_policies[i] != NULL; i++) {
        for (unsigned how = 0; how < 4; how++) {
            struct sim_config c = small_config();
            c.route = route_policies[i];
            if (how & 1) c.prefill = c.decode = 2;
            if (how & 2) c.pool_blocks = 500;
            c.overlap = how != 3;
            struct sim_result r = run_on(&c, t);
            CHECK_EQ(r.done, t->n);
            CHECK(r.ttft.mean > 0 && r.ttft.p50 <= r.ttft.p90 && r.ttft.p90 <= r.ttft.p99);
            CHECK_WITHIN(r.device + r.host + r.pool, 0.0, 1.0);
            CHECK((how & 2) || r.pool == 0 || r.moved_bytes > 0);
        }
    }
}

TEST(a_pool_and_host_memory_save_prefill) {
    const struct trace *t = make(TRACE_CHAT, 1500, 6);
    struct sim_config c = small_config();
    c.kv_blocks = 400;
    struct sim_result bare = run_on(&c, t);
    c.host_blocks = 2000;
    struct sim_result host = run_on(&c, t);
    c.host_blocks = 0;
    c.pool_blocks = 20000;
    struct sim_result pool = run_on(&c, t);
    CHECK_EQ(bare.host, 0.0);
    CHECK_EQ(bare.pool, 0.0);
    CHECK(host.host > 0.05 && pool.pool > 0.2);
    CHECK(pool.saved_s > bare.saved_s && host.saved_s > bare.saved_s);
    CHECK(pool.ttft.mean < bare.ttft.mean);
    CHECK(pool.moved_bytes > 0);
}

/* One document becomes hot, and a policy that keeps to where it is: copies spread it. */
TEST(hot_prefixes_are_copied) {
    const struct trace *t = make(TRACE_HOT, 800, 1.6);
    struct sim_config c = small_config();
    c.route = "prefix-tree";
    struct sim_result without = run_on(&c, t);
    CHECK_EQ(without.copies, 0);
    CHECK(without.copied_bytes == 0 && without.moved_bytes == 0);
    c.copies = true;
    struct sim_result with = run_on(&c, t);
    CHECK(with.copies > 0);
    CHECK(with.copied_bytes > 0 && with.copied_bytes == with.moved_bytes);
    /* No copy is larger than the document. */
    CHECK(with.copied_bytes <= (double)with.copies * 32768 * c.speed.model->kv_bytes);
    CHECK(with.ttft.mean < 0.96 * without.ttft.mean);
    struct sim_result again = run_on(&c, t);
    CHECK(memcmp(&with, &again, sizeof(with)) == 0);
    /* Engines fail while something is copied to them or from them. */
    c.nic = 1e8;
    for (uint32_t i = 0; i < 40; i++)
        c.failures[c.n_failures++] =
            (struct sim_failure){.at_s = 180 + 7 * i, .for_s = 5, .who = i % 4};
    CHECK_EQ(run_on(&c, t).done, 800);
}

TEST(prefills_beside_decodes_lengthen_gaps_and_apart_they_do_not) {
    const struct trace *t = make(TRACE_DOCUMENTS, 400, 0.4);
    struct sim_config c;
    sim_config_init(&c);
    c.engines = 2;
    struct sim_result mixed = run_on(&c, t);
    c.prefill = c.decode = 1;
    struct sim_result apart = run_on(&c, t);
    CHECK(apart.gap.p99 < mixed.gap.p99 / 4);
}

TEST(requests_survive_engines_and_hosts_that_fail) {
    const struct trace *t = make(TRACE_CHAT, 800, 6);
    struct sim_config c = small_config();
    c.pool_blocks = 2000;
    c.failures[0] = (struct sim_failure){.at_s = 20, .for_s = 30, .who = 1};
    c.failures[1] = (struct sim_failure){.at_s = 25, .what = SIM_FAILS_HOST, .for_s = 20, .who = 2};
    c.failures[2] = (struct sim_failure){.at_s = 60, .what = SIM_FAILS_HOST, .who = 0};
    c.n_failures = 3;
    struct sim_result r = run_on(&c, t);
    CHECK_EQ(r.done, t->n);
    CHECK(r.restarted > 0);
    c.prefill = c.decode = 2;
    r = run_on(&c, t);
    CHECK_EQ(r.done, t->n);
    c.n_failures = 0;
    for (uint32_t e = 0; e < 4; e++)
        c.failures[c.n_failures++] = (struct sim_failure){.at_s = 30, .who = e};
    r = run_on(&c, t);
    CHECK(r.lost > 0 && r.done > 0);
}

/* A master that is away costs its part of the hits until its replica is there, and nothing else. */
TEST(masters_of_the_pool_fail) {
    const struct trace *t = make(TRACE_CHAT, 1500, 6);
    struct sim_config c = small_config();
    c.pool_blocks = 3000;
    struct sim_result free_of_cost = run_on(&c, t);
    CHECK(free_of_cost.lookup.mean == 0);
    c.masters = 1;
    struct sim_result one = run_on(&c, t);
    CHECK_WITHIN(one.lookup.mean, c.lookup_s, 1.1 * c.lookup_s);
    CHECK_WITHIN(one.pool, 0.95 * free_of_cost.pool, 1.05 * free_of_cost.pool);
    c.masters = 4;
    struct sim_result four = run_on(&c, t), again = run_on(&c, t);
    CHECK(memcmp(&four, &again, sizeof(four)) == 0);
    CHECK_WITHIN(four.pool, 0.95 * one.pool, 1.05 * one.pool);
    c.failures[c.n_failures++] =
        (struct sim_failure){.at_s = 50, .what = SIM_FAILS_MASTER, .who = 1};
    struct sim_result short_while = run_on(&c, t);
    c.failures[0].for_s = 1000;
    struct sim_result for_long = run_on(&c, t);
    CHECK_EQ(for_long.done, t->n);
    CHECK_EQ(short_while.restarted + for_long.restarted, 0);
    CHECK(short_while.pool > 0.9 * four.pool);
    CHECK(for_long.pool < 0.8 * four.pool);
    c.engines = 2; /* some fail while requests wait for a look-up */
    c.lookup_s = 5;
    for (uint32_t i = 0; i < 20; i++)
        c.failures[c.n_failures++] =
            (struct sim_failure){.at_s = 20 + 3 * i, .for_s = 1, .who = i % 2};
    CHECK_EQ(run_on(&c, t).done, t->n);
    c.failures[0].who = 4;
    CHECK_STR(sim_config_check(&c, t), "--fail: there is no master 4, they are 0 to 3");
}

/* Who is to decode there is no longer, before its prompt is computed: another engine for decoding
 * takes it, and prefills stay apart from decodes. */
TEST(an_engine_that_decodes_fails_and_prefill_engines_do_not_decode) {
    const struct trace *t = make(TRACE_DOCUMENTS, 400, 2);
    struct sim_config c = small_config();
    c.prefill = c.decode = 2;
    c.failures[c.n_failures++] = (struct sim_failure){.at_s = 30, .who = 3};
    struct sim_result r = run_on(&c, t);
    CHECK_EQ(r.done, t->n);
    CHECK_WITHIN(r.tbt.p99, 0, 0.1);
    c.failures[c.n_failures++] = (struct sim_failure){.at_s = 60, .who = 2};
    r = run_on(&c, t);
    CHECK(r.lost > 0);
    CHECK_WITHIN(r.tbt.p90, 0, 0.1);
}

TEST(without_room_for_kv_requests_are_preempted_and_end_all_the_same) {
    const struct trace *t = make(TRACE_CHAT, 300, 8);
    struct sim_config c = small_config();
    c.engines = 1;
    c.kv_blocks = 80;
    struct sim_result r = run_on(&c, t);
    CHECK(r.preempted > 0);
    CHECK(r.done > t->n / 2);
    c.kv_blocks = 3; /* no prompt fits */
    r = run_on(&c, t);
    CHECK(r.too_long > t->n / 2);
}

/* Nobody waits for ever for room that another has who waits. */
TEST(apart_without_room_for_kv_all_come_to_an_end) {
    for (enum trace_kind kind = TRACE_CHAT; kind <= TRACE_AGENTS; kind++) {
        const struct trace *t = make(kind, 300, 20);
        for (unsigned how = 0; how < 8; how++) {
            struct sim_config c = small_config();
            c.kv_blocks = how & 1 ? 40 : 80;
            c.prefill = how & 2 ? 1 : 2;
            c.decode = 1;
            c.nic = 2.5e9;
            c.n_failures = how & 4 ? 1 : 0;
            c.failures[0] = (struct sim_failure){.at_s = 15, .who = c.prefill};
            run_on(&c, t);
        }
    }
}

TEST(admission_refuses_what_cannot_be_kept) {
    const struct trace *t = make(TRACE_DOCUMENTS, 500, 20);
    struct sim_config c = small_config();
    c.slo_ttft_s = 2;
    struct sim_result all = run_on(&c, t);
    c.admit = true;
    struct sim_result some = run_on(&c, t);
    CHECK_EQ(all.refused, 0);
    CHECK(some.refused > 0);
    CHECK(some.kept > all.kept);
}

TEST(the_limit_of_round_robin_is_one) {
    const struct trace *t = make(TRACE_CHAT, 1500, 4);
    struct sim_config c = small_config();
    c.slo_ttft_s = 1;
    double pace = sim_pace_limit(&c, t, made_ids, 0);
    CHECK(pace > 0);
    c.pace = pace * 0.7;
    struct sim_result below = run_on(&c, t);
    c.pace = pace * 1.5;
    struct sim_result above = run_on(&c, t);
    CHECK((double)below.kept >= SIM_KEPT_SHARE * (double)t->n);
    CHECK((double)above.kept < SIM_KEPT_SHARE * (double)t->n);
    CHECK_EQ(sim_pace_limit(&c, t, made_ids, 50), INFINITY); /* all at once take no second */
    c.slo_tbt_s = 1e-6;
    CHECK_EQ(sim_pace_limit(&c, t, made_ids, 50), 0.0);
}

TEST(what_cannot_be_is_refused_with_words) {
    const struct trace *t = make(TRACE_CHAT, 10, 1);
    struct sim_config c;
    sim_config_init(&c);
    c.speed.gpus = 1;
    CHECK_STR(sim_config_check(&c, t), "Llama-3-70B does not fit into 1 x H100 (--gpus, --gpu)");
    c.speed.gpus = 8;
    c.failures[c.n_failures++] = (struct sim_failure){.who = 99};
    CHECK_STR(sim_config_check(&c, t), "--fail: there is no engine 99, they are 0 to 7");
}

TEST(the_longest_tenth) {
    struct gaps g = {0};
    CHECK_EQ(gaps_worst_tenth(&g), 0.0);
    for (unsigned i = 0; i < 100; i++) gaps_add(&g, (double)((i * 37) % 100), 1);
    CHECK_WITHIN(gaps_worst_tenth(&g), 94.5, 94.5); /* 90 to 99 */
    g.n = 0;
    gaps_add(&g, 1, 95);
    gaps_add(&g, 3, 5);
    CHECK_WITHIN(gaps_worst_tenth(&g), 2, 2);
    free(g.v);
    struct samples s = {0};
    for (int i = 1; i <= 100; i++) samples_add(&s, 101 - i);
    struct sim_times times = samples_times(&s);
    CHECK_EQ(times.p50, 50.0);
    CHECK_EQ(times.p99, 99.0);
    samples_free(&s);
}

TEST_MAIN()
