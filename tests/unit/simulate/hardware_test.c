/* The models of time, beside numbers that are known. */
#include "simulate/hardware.h"

#include "../test.h"

static struct sim_speed speed_of(const char *model, const char *gpu) {
    struct sim_speed s;
    sim_speed_init(&s);
    s.model = sim_model_find(model);
    s.gpu = sim_gpu_find(gpu);
    CHECK(s.model != NULL && s.gpu != NULL);
    return s;
}
/* Mooncake, FAST 2025, section 3: 6 GB/s on eight A800, 19 GB/s on eight H800 at 8192 tokens. */
TEST(reuse_pays_from_the_published_bandwidths_on) {
    struct sim_speed a = speed_of("Llama-3-70B", "A800"), h = speed_of("Llama-3-70B", "H800");
    CHECK_WITHIN(sim_break_even(&a, 8192) / 1e9, 5.7, 6.3);
    CHECK_WITHIN(sim_break_even(&h, 8192) / 1e9, 18, 19.5);
}

TEST(bytes_of_a_token) {
    CHECK_EQ(sim_model_find("llama-3-8b")->kv_bytes, 128.0 * 1024);
    CHECK_EQ(sim_model_find("Llama-3-70B")->kv_bytes, 320.0 * 1024);
    CHECK_EQ(sim_model_find("Qwen3-32B")->kv_bytes, 256.0 * 1024);
    CHECK_WITHIN(sim_model_find("DeepSeek-V3")->kv_bytes, 70000, 70400);
    CHECK(sim_model_find("GPT-2") == NULL);
    CHECK(sim_gpu_find("T4") == NULL);
}

TEST(every_preset_has_a_source_and_makes_sense) {
    for (const struct sim_gpu *g = sim_gpus; g->name != NULL; g++) {
        CHECK(strlen(g->source) > 10);
        for (const struct sim_model *m = sim_models; m->name != NULL; m++) {
            CHECK(strlen(m->source) > 10);
            struct sim_speed s = speed_of(m->name, g->name);
            double prefill = sim_prefill_s(&s, 8192, 0), step = sim_step_s(&s, 0, 0, 16, 16 * 4096);
            CHECK_WITHIN(prefill, 0.01, 30);
            CHECK_WITHIN(step, 0.002, 0.2);
            CHECK(sim_prefill_s(&s, 4096, 4096) < prefill);
            CHECK(sim_prefill_s(&s, 4096, 4096) > sim_prefill_s(&s, 4096, 0));
        }
    }
}

TEST(a_prefix_saves_what_it_would_take) {
    struct sim_speed s = speed_of("Llama-3-70B", "A800");
    s.step_us = s.layer_us = 0;
    double whole = sim_prefill_s(&s, 16384, 0);
    double parts = sim_prefill_s(&s, 8192, 0) + sim_prefill_s(&s, 8192, 8192);
    CHECK_WITHIN(parts / whole, 0.999, 1.001);
    /* l (a p^2 d + b p d^2) / (G u) */
    double flops = 80 * (4 * 8192.0 * 8192 * 8192 + 22 * 8192.0 * 8192 * 8192);
    CHECK_WITHIN((whole - sim_prefill_s(&s, 8192, 8192)) / (flops / (312e12 * 8 * 0.5)), 0.999,
                 1.001);
}

TEST(decoding_reads_weights_and_context) {
    struct sim_speed s = speed_of("Llama-3-70B", "H100");
    s.step_us = s.layer_us = 0;
    double bandwidth = 3.35e12 * 8 * 0.7;
    CHECK_WITHIN(sim_step_s(&s, 0, 0, 1, 0) / (141.1e9 / bandwidth), 0.999, 1.001);
    double more = sim_step_s(&s, 0, 0, 1, 100000) - sim_step_s(&s, 0, 0, 1, 0);
    CHECK_WITHIN(more / (100000 * 327680.0 / bandwidth), 0.999, 1.001);
    /* A chunk beside it takes its own time: the weights are read once. */
    CHECK(sim_step_s(&s, sim_chunk_s(&s, 2048, 0), 2048, 1, 0) <
          sim_prefill_s(&s, 2048, 0) + sim_step_s(&s, 0, 0, 1, 0));
    /* Of experts few tokens read few. */
    struct sim_speed moe = speed_of("DeepSeek-V3", "H200");
    CHECK(sim_step_s(&moe, 0, 0, 1, 0) < sim_step_s(&moe, 0, 0, 64, 0) / 2);
}

TEST(what_fits) {
    struct sim_speed s = speed_of("Llama-3-70B", "H100");
    CHECK_WITHIN(sim_kv_tokens(&s), 1.2e6, 1.5e6);
    s.gpus = 1;
    CHECK(sim_kv_tokens(&s) < 1);
}

TEST(long_prompts_over_several_hosts) {
    struct sim_speed one = speed_of("Llama-3-70B", "A800"), pipe = one, ring = one;
    pipe.stages = 4;
    ring.parts = 4;
    double t = sim_prefill_s(&one, 131072, 0);
    /* A long prompt gains nearly all, a short one nothing of a pipeline. */
    CHECK_WITHIN(t / sim_prefill_s(&pipe, 131072, 0), 3, 4);
    CHECK_WITHIN(sim_prefill_s(&one, 1024, 0) / sim_prefill_s(&pipe, 1024, 0), 0.8, 1.1);
    CHECK_WITHIN(t / sim_prefill_s(&ring, 131072, 0), 3, 4);
}

TEST(a_fitted_quadratic_and_a_measured_table) {
    struct sim_speed s = speed_of("Llama-3-8B", "H100");
    s.quadratic = true;
    s.q[0] = 4.21e-7; /* Dynamo's mocker */
    s.q[1] = 1.518e-2;
    s.q[2] = 16.5;
    CHECK_WITHIN(sim_prefill_s(&s, 8192, 0) * 1e3, 169, 170);
    char path[] = "/tmp/tarn-table-XXXXXX";
    int fd = mkstemp(path);
    FILE *f = fdopen(fd, "w");
    fputs("# tokens,ms\n1000,100\n2000,200\n4000,600\n", f);
    fclose(f);
    struct sim_table table;
    const char *why;
    CHECK_EQ(sim_table_load(&table, path, &why), TARN_OK);
    s.quadratic = false;
    s.table = &table;
    s.step_us = s.layer_us = 0;
    CHECK_WITHIN(sim_prefill_s(&s, 3000, 0) * 1e3, 399, 401);
    CHECK_WITHIN(sim_prefill_s(&s, 2000, 2000) * 1e3, 399, 401);
    f = fopen(path, "w");
    fputs("1000,100\n900,200\n", f);
    fclose(f);
    CHECK_EQ(sim_table_load(&table, path, &why), TARN_EINVAL);
    CHECK(strstr(why, ":2: tokens: must grow") != NULL);
    remove(path);
    CHECK_EQ(sim_table_load(&table, path, &why), TARN_EIO);
}

TEST_MAIN()
