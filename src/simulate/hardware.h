/* How long an engine takes: for a prefill, for a step of decoding, and how much KV fits into it.
 *
 *   flops of a prefill of n tokens       l (a n^2 d + b n d^2)                (Mooncake, FAST 2025)
 *   of n tokens behind a prefix of p     flops(p + n) - flops(p)
 *   a step                               max(flops / (G u), weights / (B e)) + KV read / (B e) + c
 *
 * with G and B the peak of all its GPUs, u and e the shares of it that are reached, c what each
 * step costs besides (launches, all-reduces: 2 a layer). Every number of the tables is there with
 * its source; docs/SIMULATION.md shows them. Instead of the formula a quadratic may be given, or a
 * table that somebody measured. */
#ifndef TARN_SIMULATE_HARDWARE_H
#define TARN_SIMULATE_HARDWARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/status.h"

struct sim_gpu {
    const char *name;
    double flops;     /* of 16-bit numbers, dense, a second */
    double bandwidth; /* of its memory, bytes a second */
    double memory;    /* bytes */
    const char *source;
};

struct sim_model {
    const char *name;
    double layers, width; /* l and d */
    double a, b;          /* of the formula */
    double kv_bytes;      /* of a token, all layers */
    double weights;       /* bytes */
    double experts;       /* of these, of experts among which each token chooses */
    double expert_share;  /* that one token uses */
    const char *source;
};

extern const struct sim_gpu sim_gpus[];     /* ended by a NULL name */
extern const struct sim_model sim_models[]; /* ended by a NULL name */
/* Names are compared without case. NULL: unknown. */
const struct sim_gpu *sim_gpu_find(const char *name);
const struct sim_model *sim_model_find(const char *name);

/* A measured prefill: rows "tokens,milliseconds", between which lines are drawn. */
#define SIM_TABLE_MAX 256u
struct sim_table {
    double tokens[SIM_TABLE_MAX], ms[SIM_TABLE_MAX];
    size_t n;
};
/* Two rows at least, tokens and times that grow. TARN_EINVAL: *why_p has file, line and column. */
tarn_status sim_table_load(struct sim_table *t, const char *path, const char **why_p);

struct sim_speed {
    const struct sim_gpu *gpu;
    const struct sim_model *model;
    unsigned gpus;       /* of an engine; with stages or parts, of each of its hosts */
    double utilization;  /* u */
    double efficiency;   /* e */
    double layer_us;     /* of each layer in each step: all-reduces */
    double step_us;      /* of each step: launches, scheduling */
    uint32_t chunk;      /* tokens of a prefill in one step */
    unsigned stages;     /* chunked pipeline parallelism over so many hosts, 1: none */
    unsigned parts;      /* sequence parallelism over so many hosts, 1: none */
    double network;      /* bytes a second of a host, for these two */
    double memory_share; /* of the GPUs' memory that weights and KV may take */
    bool quadratic;      /* of a prompt's tokens t: q[0] t^2 + q[1] t + q[2], in ms */
    double q[3];
    const struct sim_table *table; /* NULL: none */
};
void sim_speed_init(struct sim_speed *s);

/* Of the formula. */
double sim_flops(const struct sim_model *m, double tokens);
/* Seconds of n new tokens behind a prefix of p, alone on the engine, in chunks. */
double sim_prefill_s(const struct sim_speed *s, double n, double p);
/* What computing n tokens behind p in one step takes, without what a step costs besides. */
double sim_chunk_s(const struct sim_speed *s, double n, double p);
/* One step: chunks of `tokens` in all, of which each takes sim_chunk_s and all `chunks_s`, beside
 * `batch` sequences that decode with `context` tokens in all. */
double sim_step_s(const struct sim_speed *s, double chunks_s, double tokens, double batch,
                  double context);
/* What each sequence more in a step takes, but for its context. */
double sim_sequence_s(const struct sim_speed *s);
/* What a decoding step takes longer for each token of context. */
double sim_context_s(const struct sim_speed *s);
/* Tokens whose KV fits beside the weights; below 1 where the weights alone do not fit. */
double sim_kv_tokens(const struct sim_speed *s);
/* Bytes a second from where on loading a prefix of p tokens is faster than computing it. */
double sim_break_even(const struct sim_speed *s, double p);

#endif
