/* Requests of a trace as an engine with several KV groups makes them: one look-up for the longest
 * boundary at which every group is served, gets of exactly the parts that it needs, and puts of
 * those behind it, up to the prompt's last boundary. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "benchmark/replay.h"

/* A prefix of a trace shares its ids: whatever ends at this token follows from the id of the block
 * that the token is in. */
static uint64_t id_at(const uint64_t *ids, uint64_t end) {
    return ids[(end - 1) / TRACE_BLOCK];
}

static uint64_t kv_seed(const uint64_t *ids, size_t group, uint64_t end) {
    return mix64(mix64(id_at(ids, end)) + end) + group;
}

static void name_hash(char out[REPLAY_KEY_SIZE + 1], const uint64_t *ids, uint64_t end) {
    snprintf(out, REPLAY_KEY_SIZE + 1, "%016" PRIx64 "%08" PRIx64, mix64(id_at(ids, end)), end);
}

/* The part of that group that ends there is the next item. */
static void kv_item_add(struct replay_worker *k, const uint64_t *ids, size_t group, uint64_t end,
                        size_t *n_p, uint64_t *bytes_p) {
    const struct kv_plan *p = &k->r->plan;
    size_t i = (*n_p)++;
    char *name = k->names[i];
    memcpy(name, p->group[group].name, p->group[group].name_len);
    name_hash(name + p->group[group].name_len, ids, end);
    k->items[i] = (tarn_item){.key = name,
                              .key_len = strlen(name),
                              .buffer = k->memory + *bytes_p,
                              .buffer_len = p->bytes[group]};
    k->seeds[i] = kv_seed(ids, group, end);
    k->boundaries[i] = k->keys[end / p->unit - 1];
    *bytes_p += p->bytes[group];
}

static uint64_t kv_look_up(struct replay_worker *k, size_t n_hashes, tarn_kv_parts *parts) {
    const struct kv_plan *p = &k->r->plan;
    const tarn_kv_query query = {.size = sizeof(query),
                                 .hashes = k->keys,
                                 .n_hashes = n_hashes,
                                 .unit = p->unit,
                                 .align = p->align,
                                 .groups = p->group,
                                 .n_groups = p->n};
    const tarn_call call = replay_call(k);
    uint64_t tokens = 0, start = clock_mono_us();
    if (tarn_kv_prefix(k->client, &query, &call, &tokens, parts) != TARN_OK) {
        k->f.failed_lookups++;
        replay_note(k, "look-up");
    }
    hist_add(&k->f.prefix, clock_mono_us() - start);
    return tokens;
}

static void kv_get_parts(struct replay_worker *k, const uint64_t *ids, const tarn_kv_parts *parts) {
    const struct kv_plan *p = &k->r->plan;
    size_t n = 0;
    uint64_t bytes = 0;
    for (size_t g = 0; g < p->n; g++) {
        for (uint64_t b = parts[g].first; b < parts[g].first + parts[g].blocks; b++)
            kv_item_add(k, ids, g, (b + 1) * p->group[g].block, &n, &bytes);
        k->f.group_blocks[g] += parts[g].blocks;
    }
    replay_get(k, k->seeds, n);
    k->f.hit_blocks += n;
}

bool replay_kv_together(const char *way, const tarn_key *ids, tarn_put_options *options) {
    if (strcmp(way, "nothing") == 0) return true;
    bool boundaries = strcmp(way, "boundaries") == 0;
    if (!boundaries && strcmp(way, "groups") != 0) return false;
    if (options != NULL) *(boundaries ? &options->boundaries : &options->groups) = ids;
    return true;
}

/* In the order of the prefix, which is that of eviction from its end. */
static size_t kv_put_parts(struct replay_worker *k, const uint64_t *ids, uint64_t from,
                           uint64_t boundary) {
    const struct kv_plan *p = &k->r->plan;
    size_t n = 0;
    uint64_t bytes = 0;
    for (uint64_t end = from + p->unit; end <= boundary; end += p->unit)
        for (size_t g = 0; g < p->n; g++)
            if (kv_plan_puts(p, g, end, boundary)) kv_item_add(k, ids, g, end, &n, &bytes);
    for (size_t i = 0; i < n; i++)
        pattern_fill(k->seeds[i], k->items[i].buffer, k->items[i].buffer_len);
    tarn_put_options options;
    tarn_put_options_init(&options);
    replay_kv_together(k->r->together, k->boundaries, &options);
    if (n > 0) replay_put(k, n, &options);
    return n;
}

void replay_kv_request(struct replay_worker *k, const struct trace_request *q) {
    const struct kv_plan *p = &k->r->plan;
    const uint64_t *ids = k->r->trace.ids + q->first;
    uint64_t tokens = q->n * TRACE_BLOCK, boundary = kv_plan_boundary(p, tokens);
    size_t n_hashes = boundary / p->unit;
    tarn_kv_parts parts[KV_PLAN_GROUPS];
    for (size_t i = 0; i < n_hashes; i++) {
        name_hash(k->hashes[i], ids, (i + 1) * p->unit);
        k->keys[i] = (tarn_key){k->hashes[i], strlen(k->hashes[i])};
    }
    uint64_t hit = n_hashes == 0 ? 0 : kv_look_up(k, n_hashes, parts), before = k->f.hit_blocks;
    if (hit > 0) kv_get_parts(k, ids, parts);
    k->f.blocks += k->f.hit_blocks - before + kv_put_parts(k, ids, hit, boundary);
    k->f.tokens += tokens;
    __atomic_store_n(&k->f.hit_tokens, k->f.hit_tokens + hit, __ATOMIC_RELAXED);
}

/* What the longest request of all would put into an empty pool: no other moves more. */
void replay_kv_open(struct replay_worker *k) {
    const struct kv_plan *p = &k->r->plan;
    uint64_t boundary = kv_plan_boundary(p, k->r->trace.longest * TRACE_BLOCK), bytes = 0;
    size_t n = 0, hashes = boundary / p->unit;
    for (uint64_t end = p->unit; end <= boundary; end += p->unit)
        for (size_t g = 0; g < p->n; g++) {
            if (!kv_plan_puts(p, g, end, boundary)) continue;
            n++;
            bytes += p->bytes[g];
        }
    k->keys = xcalloc(hashes + 1, sizeof(*k->keys));
    k->hashes = xcalloc(hashes + 1, sizeof(*k->hashes));
    k->items = xcalloc(n + 1, sizeof(*k->items));
    k->names = xcalloc(n + 1, sizeof(*k->names));
    k->seeds = xcalloc(n + 1, sizeof(*k->seeds));
    k->boundaries = xcalloc(n + 1, sizeof(*k->boundaries));
    if (posix_memalign((void **)&k->memory, 4096, bytes + 1) != 0)
        die("no memory for %zu parts", n);
}

void replay_kv_close(struct replay_worker *k) {
    free(k->hashes);
    free(k->seeds);
    free(k->boundaries);
}
