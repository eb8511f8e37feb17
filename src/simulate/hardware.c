#include "simulate/hardware.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/assert.h"

#define GIGA 1e9
#define TERA 1e12

const struct sim_gpu sim_gpus[] = {
    {"A800", 312 * TERA, 2.039 * TERA, 80 * GIGA,
     "NVIDIA A100 80GB SXM data sheet (the A800 differs in its NVLink)"},
    {"H800", 989 * TERA, 3.35 * TERA, 80 * GIGA,
     "NVIDIA H100 SXM data sheet (the H800 differs in its NVLink)"},
    {"H100", 989 * TERA, 3.35 * TERA, 80 * GIGA, "NVIDIA H100 SXM data sheet"},
    {"H200", 989 * TERA, 4.8 * TERA, 141 * GIGA, "NVIDIA H200 data sheet"},
    {"910B", 320 * TERA, 1.6 * TERA, 64 * GIGA,
     "Huawei's statements to the press (320 TFLOPS of FP16, 64 GB); no data sheet is public"},
    {NULL, 0, 0, 0, NULL},
};

/* KV: 2 (K and V) x layers x KV heads x head size x 2 bytes. b: 2 x active parameters / (l d^2),
 * but for the 70B, where the paper says 22. a: 4 x heads x head size / d. */
const struct sim_model sim_models[] = {
    {"Llama-3-8B", 32, 4096, 4, 29.9, 131072, 16.06 * GIGA, 0, 0,
     "config.json: 32 layers, d 4096, 8 KV heads of 128; 8.03e9 parameters"},
    {"Llama-3-70B", 80, 8192, 4, 22, 327680, 141.1 * GIGA, 0, 0,
     "Mooncake, FAST 2025, table 2 (l, d, a, b, gqa 8); 70.55e9 parameters"},
    {"Qwen3-32B", 64, 5120, 6.4, 39.1, 262144, 65.5 * GIGA, 0, 0,
     "config.json: 64 layers, d 5120, 64 heads and 8 KV heads of 128; 32.8e9 parameters"},
    {"DeepSeek-V3", 61, 7168, 11.4, 23.6, 70272, 671 * GIGA, 653 * GIGA, 8.0 / 256,
     "config.json: 61 layers, d 7168, 128 heads of 192 and 128, latent of 512 + 64 in 2 bytes; "
     "671e9 "
     "parameters of 1 byte, 37e9 active, 8 of 256 experts"},
    {NULL, 0, 0, 0, 0, 0, 0, 0, 0, NULL},
};

const struct sim_gpu *sim_gpu_find(const char *name) {
    const struct sim_gpu *g = sim_gpus;
    while (g->name != NULL && strcasecmp(g->name, name) != 0) g++;
    return g->name != NULL ? g : NULL;
}

const struct sim_model *sim_model_find(const char *name) {
    const struct sim_model *m = sim_models;
    while (m->name != NULL && strcasecmp(m->name, name) != 0) m++;
    return m->name != NULL ? m : NULL;
}

void sim_speed_init(struct sim_speed *s) {
    *s = (struct sim_speed){.gpu = sim_gpu_find("H100"),
                            .model = sim_model_find("Llama-3-70B"),
                            .gpus = 8,
                            .utilization = 0.5,
                            .efficiency = 0.7,
                            .layer_us = 20,
                            .step_us = 2000,
                            .chunk = 2048,
                            .stages = 1,
                            .parts = 1,
                            .network = 12.5e9,
                            .memory_share = 0.9};
}

double sim_flops(const struct sim_model *m, double tokens) {
    return m->layers * (m->a * tokens * tokens * m->width + m->b * tokens * m->width * m->width);
}

static double table_ms(const struct sim_table *t, double tokens) {
    size_t i = 1;
    while (i + 1 < t->n && t->tokens[i] < tokens) i++;
    double slope = (t->ms[i] - t->ms[i - 1]) / (t->tokens[i] - t->tokens[i - 1]);
    double ms = t->ms[i - 1] + slope * (tokens - t->tokens[i - 1]);
    return ms > 0 ? ms : 0;
}

/* Of a whole prompt, by what was measured, without what its first token costs alone. */
static double measured_s(const struct sim_speed *s, double tokens) {
    if (s->table != NULL) return table_ms(s->table, tokens) / 1e3;
    return (s->q[0] * tokens * tokens + s->q[1] * tokens) / 1e3;
}

static double compute_s(const struct sim_speed *s, double n, double p) {
    if (s->table != NULL || s->quadratic) return measured_s(s, p + n) - measured_s(s, p);
    double flops = sim_flops(s->model, p + n) - sim_flops(s->model, p);
    return flops / (s->gpu->flops * s->gpus * s->utilization);
}

static double bandwidth_of(const struct sim_speed *s) {
    return s->gpu->bandwidth * s->gpus * s->efficiency * s->stages * s->parts;
}

/* Of experts those are read that any of the tokens chose. */
static double weights_s(const struct sim_speed *s, double tokens) {
    const struct sim_model *m = s->model;
    double chosen = m->experts > 0 ? 1 - pow(1 - m->expert_share, tokens) : 0;
    return (m->weights - m->experts * (1 - chosen)) / bandwidth_of(s);
}

static double fixed_s(const struct sim_speed *s) {
    if (s->quadratic) return s->q[2] / 1e3;
    return (s->step_us + s->layer_us * s->model->layers) / 1e6;
}

double sim_context_s(const struct sim_speed *s) {
    return s->model->kv_bytes / bandwidth_of(s);
}

/* In a pipeline of chunks all hosts work at once, but for its filling: the first chunk's way
 * through the others. In sequence parallelism each host has its part of the tokens, and passes the
 * KV of it on to the others while it computes, so that the longer of both counts. */
static double spread_s(const struct sim_speed *s, double compute, double chunk, double n) {
    if (s->stages > 1) {
        double hop = chunk * s->model->width * 2 / s->network;
        double first = compute * (chunk < n ? chunk / n : 1) / s->stages;
        compute = compute / s->stages + (s->stages - 1) * (first + hop);
    }
    if (s->parts > 1) {
        double ring = n * s->model->kv_bytes * (s->parts - 1) / s->parts / s->network;
        compute /= s->parts;
        if (ring > compute) compute = ring;
    }
    return compute;
}

double sim_prefill_s(const struct sim_speed *s, double n, double p) {
    if (n <= 0) return 0;
    double chunks = ceil(n / s->chunk);
    double compute = spread_s(s, compute_s(s, n, p), n < s->chunk ? n : s->chunk, n);
    double least = chunks * weights_s(s, n / chunks);
    return (compute > least ? compute : least) + (s->quadratic ? 1 : chunks) * fixed_s(s);
}

double sim_chunk_s(const struct sim_speed *s, double n, double p) {
    return n > 0 ? spread_s(s, compute_s(s, n, p), n, n) : 0;
}

double sim_sequence_s(const struct sim_speed *s) {
    const struct sim_model *m = s->model;
    return m->layers * m->b * m->width * m->width /
           (s->gpu->flops * s->gpus * s->utilization * s->stages * s->parts);
}

double sim_step_s(const struct sim_speed *s, double chunks_s, double tokens, double batch,
                  double context) {
    double compute = chunks_s + batch * sim_sequence_s(s);
    double least = weights_s(s, tokens + batch);
    return (compute > least ? compute : least) + context * sim_context_s(s) + fixed_s(s);
}

double sim_kv_tokens(const struct sim_speed *s) {
    double memory = s->gpu->memory * s->gpus * s->memory_share * s->stages * s->parts;
    return (memory - s->model->weights * s->parts) / s->model->kv_bytes;
}

double sim_break_even(const struct sim_speed *s, double p) {
    return p * s->model->kv_bytes / (sim_flops(s->model, p) / (s->gpu->flops * s->gpus));
}

/* --- a table of measurements --- */

static const char *table_row(struct sim_table *t, char *line) {
    char *end;
    double tokens = strtod(line, &end);
    if (end == line || *end != ',' || !(tokens >= 1) || !(tokens <= 1e9))
        return "tokens: no number from 1 on and a comma";
    char *ms_text = end + 1;
    double ms = strtod(ms_text, &end);
    if (end == ms_text || end[strspn(end, " \t\r\n")] != '\0' || !(ms > 0) || !(ms <= 1e9))
        return "milliseconds: no number above 0";
    if (t->n == SIM_TABLE_MAX) return "too many rows";
    if (t->n > 0 && tokens <= t->tokens[t->n - 1]) return "tokens: must grow from row to row";
    if (t->n > 0 && ms < t->ms[t->n - 1]) return "milliseconds: must not fall";
    t->tokens[t->n] = tokens;
    t->ms[t->n++] = ms;
    return NULL;
}

tarn_status sim_table_load(struct sim_table *t, const char *path, const char **why_p) {
    FILE *f = fopen(path, "re");
    if (f == NULL) return status_fail(TARN_EIO, why_p, "%s: %s", path, strerror(errno));
    char line[256];
    unsigned number = 0;
    tarn_status status = TARN_OK;
    t->n = 0;
    while (status == TARN_OK && fgets(line, sizeof(line), f) != NULL) {
        number++;
        if (line[strspn(line, " \t\r\n")] == '\0' || line[0] == '#') continue;
        const char *error = table_row(t, line);
        if (error != NULL)
            status = status_fail(TARN_EINVAL, why_p, "%s:%u: %s", path, number, error);
    }
    fclose(f);
    if (status == TARN_OK && t->n < 2)
        status =
            status_fail(TARN_EINVAL, why_p, "%s: two rows tokens,milliseconds are needed", path);
    return status;
}
