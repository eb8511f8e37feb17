/* The data subcommand: shared by data.c (moving) and data_rows.c (memcpy beside it, and the
 * table). */
#ifndef TARN_BENCHMARK_DATA_H
#define TARN_BENCHMARK_DATA_H

#include "benchmark/bench.h"

#define DATA_KEY       64
#define ROTATION_BYTES (UINT64_C(256) << 20) /* what sources and destinations rotate through */

enum data_op { DATA_GET, DATA_PUT, DATA_MIX, DATA_OPS };
extern const char *const data_op_names[];

struct data_run {
    const struct bench *b;
    const char *transport;
    enum data_op op;
    bool resp, verify, check;
    uint64_t block_size, batch, threads;
    double seconds, warm_seconds;
    bool warm; /* atomic: from here on it counts */
    struct bench_crew all;
    uint64_t id;        /* of this row: part of its keys */
    uint64_t preloaded; /* blocks that gets rotate through */
    uint64_t next_put;
};

struct data_worker {
    struct bench_thread t;
    struct data_run *run;
    uint64_t index;
    tarn_client *client;
    struct wire *wire;
    char *memory;
    uint64_t slots;
    char (*names)[DATA_KEY + 1];
    tarn_item *items;
    bool warm;
};

struct data_row {
    const char *transport, *op;
    uint64_t block_size, batch;
    double gb_per_s, memcpy_gb_per_s;
    struct bench_thread sum;
};

/* Copies block by block between two regions of that many bytes, shows the row, returns GB/s. */
double data_memcpy_row(const struct data_run *run, uint64_t region_bytes);
void data_print_head(const struct bench *b);
void data_print_row(const struct bench *b, const struct data_row *row);
void data_print_tail(const struct bench *b, const struct data_run *run);

#endif
