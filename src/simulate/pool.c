#include "simulate/pool.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/assert.h"
#include "base/htab.h"

#define PAGE     4096u /* of the books: what a block takes there */
#define BIRTH_MS UINT64_C(1000)
#define WALL_MS  UINT64_C(1000000)

static struct span pool_key(uint64_t id, char out[16]) {
    for (unsigned i = 0; i < 8; i++) out[i] = (char)(id >> (56 - 8 * i));
    return span_of(out, 8);
}

static void segment_mount(struct sim_pool *p, uint32_t host) {
    char name[32];
    snprintf(name, sizeof(name), "host%u-%u", host, ++p->epochs[host]);
    const struct store_segment_config c = {.name = name,
                                           .epoch = p->epochs[host],
                                           .tier = STORE_TIER_MEMORY,
                                           .size = p->host_blocks * PAGE,
                                           .host = host};
    uint32_t id;
    tarn_status status = store_segment_add(p->store, &c, &id);
    TARN_ASSERT(status == TARN_OK && id < POOL_SEGMENTS_MAX);
    p->segments[host] = id;
    p->host_of[id] = host;
}

struct sim_pool *pool_open(uint32_t hosts, uint64_t blocks, const char *policy) {
    hash_set_seed(1); /* the same run, each time */
    struct store_config config;
    store_config_init(&config);
    config.high_watermark = 1; /* all of it is used */
    config.seed = 1;
    struct store *store = store_create(&config, NULL, policy, "offset", BIRTH_MS, WALL_MS);
    if (store == NULL) return NULL;
    struct sim_pool *p = xcalloc(1, sizeof(*p));
    p->store = store;
    p->hosts = hosts;
    p->host_blocks = (blocks + hosts - 1) / hosts;
    p->segments = xcalloc(hosts, sizeof(*p->segments));
    p->epochs = xcalloc(hosts, sizeof(*p->epochs));
    p->host_of = xcalloc(POOL_SEGMENTS_MAX, sizeof(*p->host_of));
    for (uint32_t h = 0; h < hosts; h++) segment_mount(p, h);
    return p;
}

void pool_close(struct sim_pool **pool_p) {
    struct sim_pool *p = *pool_p;
    store_destroy(&p->store);
    free(p->segments);
    free(p->epochs);
    free(p->host_of);
    free(p);
    *pool_p = NULL;
}

void pool_time(struct sim_pool *p, double now_s) {
    if (now_s < p->now_s + 0.001) return;
    p->now_s = now_s;
    uint64_t ms = (uint64_t)(now_s * 1000);
    store_tick(p->store, BIRTH_MS + ms, WALL_MS + ms);
    unsigned budget = 1000;
    store_background(p->store, &budget);
}

/* Brings near what is looked up next. */
static uint32_t pool_fetch_keys(const struct sim_pool *p, const uint64_t *ids, uint32_t n,
                                struct span keys[32], char text[32][16], uint64_t hashes[32]) {
    if (n > 32) n = 32;
    for (uint32_t i = 0; i < n; i++) keys[i] = pool_key(ids[i], text[i]);
    store_prefetch(p->store, keys, n, hashes);
    return n;
}

uint32_t pool_match(struct sim_pool *p, const uint64_t *ids, uint32_t n) {
    struct span keys[32];
    char text[32][16];
    uint64_t hashes[32];
    for (uint32_t at = 0; at < n;) {
        uint32_t m = pool_fetch_keys(p, ids + at, n - at, keys, text, hashes);
        for (uint32_t i = 0; i < m; i++, at++)
            if (store_find_hashed(p->store, keys[i], hashes[i]) == NULL) return at;
    }
    return n;
}

uint32_t pool_read(struct sim_pool *p, struct store_chain *chain, const uint64_t *ids, uint32_t n,
                   uint32_t *hosts) {
    struct span keys[32];
    char text[32][16];
    uint64_t hashes[32];
    struct store_batch batch;
    struct store_layout layout;
    store_settle(p->store);
    store_batch_begin(p->store, &batch, chain, STORE_BATCH_READ, n);
    for (uint32_t at = 0; at < n;) {
        uint32_t m = pool_fetch_keys(p, ids + at, n - at, keys, text, hashes);
        for (uint32_t i = 0; i < m; i++, at++) {
            struct object *o = store_find_hashed(p->store, keys[i], hashes[i]);
            if (o == NULL) {
                store_batch_miss(p->store, &batch, keys[i], hashes[i]);
                return at;
            }
            store_batch_hit(p->store, &batch, o, hashes[i]);
            store_object_layout(p->store, o, &layout);
            hosts[at] = p->host_of[layout.replica[0].extent[0].segment];
        }
    }
    return n;
}

void pool_write(struct sim_pool *p, struct store_chain *chain, const uint64_t *ids, uint32_t n,
                uint32_t had, uint32_t host) {
    struct store_batch batch;
    struct store_put_options options = {.replicas = 1, .host = host, .local = true};
    store_settle(p->store);
    store_batch_begin(p->store, &batch, chain, STORE_BATCH_PUT, n - had);
    for (uint32_t i = had; i < n; i++) {
        char text[16];
        struct span key = pool_key(ids[i], text);
        struct store_put *put;
        unsigned budget = 1000000;
        if (store_put_start(p->store, &batch, key, PAGE, &options, 1, &budget, &put) != TARN_OK)
            continue; /* it is there already, or nothing may go for it */
        store_put_end(p->store, key, store_put_token(put), -1, 0, NULL, 0, NULL);
    }
}

void pool_host_gone(struct sim_pool *p, uint32_t host) {
    store_segment_set_state(p->store, p->segments[host], SEGMENT_LEAVING);
    unsigned budget;
    do {
        budget = 1000000;
    } while (store_background(p->store, &budget) && budget == 0);
}

void pool_host_back(struct sim_pool *p, uint32_t host) {
    segment_mount(p, host);
}
