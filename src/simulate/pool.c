#include "simulate/pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/htab.h"
#include "base/rng.h"
#include "base/stretch.h"
#include "store/figures.h"

#define PAGE     4096u /* of the books: what a block takes there */
#define BIRTH_MS UINT64_C(1000)
#define WALL_MS  UINT64_C(1000000)
#define SLOTS    16384u /* of Redis Cluster */

static struct span pool_key(uint64_t id, char out[16]) {
    for (unsigned i = 0; i < 8; i++) out[i] = (char)(id >> (56 - 8 * i));
    return span_of(out, 8);
}

static void segment_mount(struct sim_pool *p, struct pool_master *m, uint32_t host) {
    char name[32];
    snprintf(name, sizeof(name), "host%u-%u", host, p->epochs[host]);
    const struct store_segment_config c = {.name = name,
                                           .epoch = p->epochs[host],
                                           .tier = STORE_TIER_MEMORY,
                                           .size = p->host_blocks * PAGE,
                                           .host = host};
    uint32_t id;
    tarn_status status = store_segment_add(m->store, &c, &id);
    TARN_ASSERT(status == TARN_OK && id < POOL_SEGMENTS_MAX);
    m->segments[host] = id;
    m->host_of[id] = host;
}

static bool master_open(struct sim_pool *p, struct pool_master *m, const char *policy) {
    struct store_config config;
    store_config_init(&config);
    config.high_watermark = 1; /* all of it is used */
    config.seed = 1;
    m->store = store_create(&config, NULL, policy, "offset", BIRTH_MS, WALL_MS);
    m->segments = xcalloc(p->hosts, sizeof(*m->segments));
    m->host_of = xcalloc(POOL_SEGMENTS_MAX, sizeof(*m->host_of));
    return m->store != NULL;
}

struct sim_pool *pool_open(uint32_t masters, uint32_t hosts, uint64_t blocks, const char *policy) {
    TARN_ASSERT(masters > 0 && masters <= SIM_MASTERS_MAX);
    hash_set_seed(1); /* the same run, each time */
    struct sim_pool *p = xcalloc(1, sizeof(*p));
    uint64_t parts = (uint64_t)hosts * masters;
    p->masters = masters;
    p->hosts = hosts;
    p->host_blocks = (blocks + parts - 1) / parts;
    p->epochs = xcalloc(hosts, sizeof(*p->epochs));
    bool ok = true;
    for (uint32_t m = 0; m < masters; m++) ok = master_open(p, &p->master[m], policy) && ok;
    for (uint32_t h = 0; ok && h < hosts; h++) pool_host_back(p, h);
    if (!ok) pool_close(&p);
    return p;
}

void pool_close(struct sim_pool **pool_p) {
    struct sim_pool *p = *pool_p;
    for (uint32_t m = 0; m < p->masters; m++) {
        if (p->master[m].store != NULL) store_destroy(&p->master[m].store);
        free(p->master[m].segments);
        free(p->master[m].host_of);
    }
    free(p->epochs);
    free(p);
    *pool_p = NULL;
}

void pool_time(struct sim_pool *p, double now_s) {
    if (now_s < p->now_s + 0.001) return;
    p->now_s = now_s;
    uint64_t ms = (uint64_t)(now_s * 1000);
    for (uint32_t m = 0; m < p->masters; m++) {
        struct store *store = p->master[m].store;
        store_tick(store, BIRTH_MS + ms, WALL_MS + ms);
        unsigned budget = 1000;
        store_background(store, &budget);
    }
}

/* Which master has the slot of block number at of a prompt. */
static struct pool_master *master_of(struct sim_pool *p, const uint64_t *ids, uint32_t at) {
    if (p->masters == 1) return &p->master[0];
    return &p->master[(mix64(ids[stretch_first(at)]) % SLOTS) * p->masters / SLOTS];
}

/* Keys of a prompt, and what was brought near of each. */
struct pool_keys {
    struct span key[32];
    char text[32][16];
    uint64_t hash[32];
};

/* Of those from number at on. */
static uint32_t keys_fetch(struct sim_pool *p, const uint64_t *ids, uint32_t at, uint32_t n,
                           struct pool_keys *k) {
    n = n - at > 32 ? 32 : n - at;
    for (uint32_t i = 0; i < n; i++) k->key[i] = pool_key(ids[at + i], k->text[i]);
    if (p->masters == 1) {
        store_prefetch(p->master[0].store, k->key, n, k->hash);
        return n;
    }
    for (uint32_t i = 0; i < n; i++)
        store_prefetch(master_of(p, ids, at + i)->store, &k->key[i], 1, &k->hash[i]);
    return n;
}

uint32_t pool_match(struct sim_pool *p, const uint64_t *ids, uint32_t n) {
    struct pool_keys k;
    for (uint32_t at = 0; at < n;) {
        uint32_t m = keys_fetch(p, ids, at, n, &k);
        for (uint32_t i = 0; i < m; i++, at++) {
            struct pool_master *master = master_of(p, ids, at);
            if (master->away > 0 || store_find_hashed(master->store, k.key[i], k.hash[i]) == NULL)
                return at;
        }
    }
    return n;
}

/* How many of the keys from `from` to n are of each master. */
static void keys_count(struct sim_pool *p, const uint64_t *ids, uint32_t from, uint32_t n,
                       uint32_t count[SIM_MASTERS_MAX]) {
    memset(count, 0, p->masters * sizeof(*count));
    for (uint32_t i = from; i < n; i++) count[master_of(p, ids, i) - p->master]++;
}

/* One batch at each master. */
static void batches_begin(struct sim_pool *p, struct store_batch *batch, struct store_chain *chain,
                          enum store_batch_kind kind, const uint64_t *ids, uint32_t from,
                          uint32_t n) {
    uint32_t count[SIM_MASTERS_MAX];
    keys_count(p, ids, from, n, count);
    for (uint32_t m = 0; m < p->masters; m++) {
        if (count[m] == 0 || p->master[m].away > 0) continue;
        store_settle(p->master[m].store);
        store_batch_begin(p->master[m].store, &batch[m], &chain[m], kind, count[m]);
    }
}

/* Each master looks up to the first key that it does not have. */
uint32_t pool_read(struct sim_pool *p, struct store_chain *chain, const uint64_t *ids, uint32_t n,
                   uint32_t *hosts) {
    struct pool_keys k;
    struct store_batch batch[SIM_MASTERS_MAX];
    struct store_layout layout;
    bool ended[SIM_MASTERS_MAX] = {false};
    uint32_t found = n, open = p->masters;
    batches_begin(p, batch, chain, STORE_BATCH_READ, ids, 0, n);
    for (uint32_t at = 0; at < n && open > 0;) {
        uint32_t some = keys_fetch(p, ids, at, n, &k);
        for (uint32_t i = 0; i < some && open > 0; i++, at++) {
            struct pool_master *master = master_of(p, ids, at);
            ptrdiff_t m = master - p->master;
            if (ended[m]) continue;
            struct object *o = NULL;
            if (master->away == 0) o = store_find_hashed(master->store, k.key[i], k.hash[i]);
            if (o == NULL) {
                if (master->away == 0)
                    store_batch_miss(master->store, &batch[m], k.key[i], k.hash[i]);
                if (at < found) found = at;
                ended[m] = true;
                open--;
                continue;
            }
            store_batch_hit(master->store, &batch[m], o, k.hash[i]);
            if (at >= found) continue;
            store_object_layout(master->store, o, &layout);
            hosts[at] = master->host_of[layout.replica[0].extent[0].segment];
        }
    }
    return found;
}

void pool_write(struct sim_pool *p, struct store_chain *chain, const uint64_t *ids, uint32_t n,
                uint32_t had, uint32_t host) {
    struct store_batch batch[SIM_MASTERS_MAX];
    struct store_put_options options = {.replicas = 1, .host = host, .local = true};
    batches_begin(p, batch, chain, STORE_BATCH_PUT, ids, had, n);
    for (uint32_t i = had; i < n; i++) {
        struct pool_master *m = master_of(p, ids, i);
        char text[16];
        struct span key = pool_key(ids[i], text);
        struct store_put *put;
        unsigned budget = 1000000;
        if (m->away > 0 || store_put_start(m->store, &batch[m - p->master], key, PAGE, &options, 1,
                                           &budget, &put) != TARN_OK)
            continue; /* it is there already, or nothing may go for it */
        store_put_end(m->store, key, store_put_token(put), -1, 0, NULL, 0, NULL);
    }
}

/* --- masters --- */

static double master_answers(struct pool_master *m, double at, double work_s) {
    if (m->busy_until < at) m->busy_until = at;
    return m->busy_until += work_s;
}

double pool_lookup_s(struct sim_pool *p, const uint64_t *ids, uint32_t n, double now, double rtt_s,
                     double key_s) {
    uint32_t count[SIM_MASTERS_MAX];
    double last = now + rtt_s / 2;
    keys_count(p, ids, 0, n, count);
    for (uint32_t m = 0; m < p->masters; m++) {
        if (count[m] == 0 || p->master[m].away > 0) continue;
        double at = master_answers(&p->master[m], now + rtt_s / 2, count[m] * key_s);
        if (at > last) last = at;
    }
    return last + rtt_s / 2 - now;
}

void pool_put_load(struct sim_pool *p, const uint64_t *ids, uint32_t n, uint32_t had, double now,
                   double key_s) {
    uint32_t count[SIM_MASTERS_MAX];
    keys_count(p, ids, had, n, count);
    for (uint32_t m = 0; m < p->masters; m++)
        if (p->master[m].away == 0) master_answers(&p->master[m], now, count[m] * key_s);
}

void pool_master_gone(struct sim_pool *p, uint32_t master) {
    p->master[master].away++;
}

void pool_master_back(struct sim_pool *p, uint32_t master) {
    p->master[master].away--;
}

uint64_t pool_count(const struct sim_pool *p) {
    uint64_t n = 0;
    for (uint32_t m = 0; m < p->masters; m++) n += store_count(p->master[m].store);
    return n;
}

uint64_t pool_evictions(const struct sim_pool *p) {
    uint64_t n = 0;
    for (uint32_t m = 0; m < p->masters; m++) n += store_evictions(p->master[m].store);
    return n;
}

/* --- hosts --- */

void pool_host_gone(struct sim_pool *p, uint32_t host) {
    for (uint32_t m = 0; m < p->masters; m++) {
        struct pool_master *master = &p->master[m];
        store_segment_set_state(master->store, master->segments[host], SEGMENT_LEAVING);
        unsigned budget;
        do {
            budget = 1000000;
        } while (store_background(master->store, &budget) && budget == 0);
    }
}

void pool_host_back(struct sim_pool *p, uint32_t host) {
    p->epochs[host]++;
    for (uint32_t m = 0; m < p->masters; m++) segment_mount(p, &p->master[m], host);
}
