/* What an engine with several KV groups puts for a prompt, and where the parts end. Pure. */
#ifndef TARN_BENCHMARK_KV_PLAN_H
#define TARN_BENCHMARK_KV_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "tarn.h"

#define KV_PLAN_GROUPS 8u

struct kv_plan {
    tarn_kv_group group[KV_PLAN_GROUPS];
    char name[KV_PLAN_GROUPS][48];
    uint64_t bytes[KV_PLAN_GROUPS]; /* of a part */
    size_t n;
    uint32_t unit, align; /* greatest common divisor and least common multiple of the blocks */
    /* tokens; windows and states are put at these boundaries, too, and not only at the last one of
     * a prompt; 0: only there */
    uint64_t interval;
};

/* "KIND:BLOCK:BYTES[:WINDOW][,...]", of which KIND is full, window or state. NULL, or what is wrong
 * with it (static). interval is rounded up to a boundary. */
const char *kv_plan_parse(struct kv_plan *p, const char *spec, uint64_t interval);
/* The last boundary of a prompt of so many tokens. */
uint64_t kv_plan_boundary(const struct kv_plan *p, uint64_t tokens);
/* Is there a part of group g that ends there, and is put for a prompt with that last boundary? */
bool kv_plan_puts(const struct kv_plan *p, size_t g, uint64_t end, uint64_t boundary);

#endif
