#include "benchmark/kv_plan.h"

#include <stdio.h>
#include <string.h>
#include "benchmark/bench.h"

#define TOKENS_MAX (1u << 20)

static uint64_t gcd_of(uint64_t a, uint64_t b) {
    while (b != 0) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static uint64_t round_up(uint64_t n, uint64_t to) {
    return (n + to - 1) / to * to;
}

/* The next field of a group, which ends before ":" or with the group. */
static struct span plan_field(const char **at_p, const char *end) {
    const char *at = *at_p;
    size_t len = 0;
    while (at + len < end && at[len] != ':') len++;
    *at_p = at + len + (at + len < end);
    return span_of(at, len);
}

static bool plan_tokens(struct span field, uint32_t *tokens_p) {
    uint64_t n;
    if (!span_to_u64(field, &n) || n == 0 || n > TOKENS_MAX) return false;
    *tokens_p = (uint32_t)n;
    return true;
}

static const char *plan_group(struct kv_plan *p, const char *at, const char *end) {
    static const char *const kinds[] = {
        [TARN_KV_FULL] = "full", [TARN_KV_WINDOW] = "window", [TARN_KV_STATE] = "state"};
    if (p->n == KV_PLAN_GROUPS) return "more than 8 KV groups";
    tarn_kv_group *g = &p->group[p->n];
    struct span kind = plan_field(&at, end), block = plan_field(&at, end),
                bytes = plan_field(&at, end), window = plan_field(&at, end);
    for (int k = TARN_KV_FULL; k <= TARN_KV_STATE; k++)
        if (span_eq(kind, span_str(kinds[k]))) g->kind = k;
    if (g->kind == 0) return "a KV group is full, window or state";
    if (!plan_tokens(block, &g->block)) return "a block has 1 to 1048576 tokens";
    if (!parse_block_size(bytes.data, bytes.len, &p->bytes[p->n]) || p->bytes[p->n] == 0 ||
        p->bytes[p->n] > UINT64_C(1) << 30)
        return "a part has 1 byte to 1g";
    if ((g->kind == TARN_KV_WINDOW) != (window.len > 0) || at != end)
        return "of KIND:BLOCK:BYTES:WINDOW the last is for kind window, and only for it";
    if (window.len > 0 && (!plan_tokens(window, &g->window) || g->window < 2))
        return "a window has 2 to 1048576 tokens";
    snprintf(p->name[p->n], sizeof(p->name[0]), "replay@%s%zu.%u@", kinds[g->kind], p->n, g->block);
    g->name = p->name[p->n];
    g->name_len = strlen(p->name[p->n]);
    p->n++;
    return NULL;
}

const char *kv_plan_parse(struct kv_plan *p, const char *spec, uint64_t interval) {
    *p = (struct kv_plan){0};
    uint64_t align = 1;
    for (const char *at = spec;;) {
        const char *end = at + strcspn(at, ","), *why = plan_group(p, at, end);
        if (why != NULL) return why;
        uint32_t block = p->group[p->n - 1].block;
        p->unit = (uint32_t)gcd_of(p->unit, block);
        align = align / gcd_of(align, block) * block;
        if (align > TOKENS_MAX) return "blocks without a common multiple of up to 1048576 tokens";
        if (*end == '\0') break;
        at = end + 1;
    }
    p->align = (uint32_t)align;
    p->interval = round_up(interval, align);
    return NULL;
}

uint64_t kv_plan_boundary(const struct kv_plan *p, uint64_t tokens) {
    return tokens - tokens % p->align;
}

bool kv_plan_puts(const struct kv_plan *p, size_t g, uint64_t end, uint64_t boundary) {
    const tarn_kv_group *group = &p->group[g];
    uint64_t block = group->block, next = boundary, last = block;
    if (end % block != 0 || end > boundary) return false;
    if (group->kind == TARN_KV_FULL) return true;
    if (p->interval != 0 && round_up(end, p->interval) < boundary)
        next = round_up(end, p->interval);
    if (group->kind == TARN_KV_WINDOW) last = round_up(group->window - 1, block);
    return next - end < last;
}
