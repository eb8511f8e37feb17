/* Everything that must hold of an index, for tests: it walks all of it, and is slow. */
#include <stdlib.h>

#include "base/buf.h"
#include "route/index_run.h"

static void check_table(const struct route_table *t) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < UINT32_C(1) << t->bits; i++) {
        const struct route_shard *s = &t->shard[i];
        uint32_t in_shard = 0, last = 0, slots = s->slot != NULL ? route_shard_slots(s) : 0;
        bool gap = true;
        for (uint32_t at = 0; at < slots; at++) {
            uint32_t print = (uint32_t)(s->slot[at] >> 32), home;
            if (s->slot[at] == 0) {
                gap = true;
                continue;
            }
            home = route_shard_home(t, s, print);
            TARN_ASSERT(route_table_shard(t, print) == s && print >= last);
            TARN_ASSERT(home == at || (home < at && !gap));
            last = print;
            gap = false;
            in_shard++;
        }
        TARN_ASSERT(in_shard == s->n);
        n += in_shard;
    }
    TARN_ASSERT(n == t->n);
}

static void check_run(const struct route_index *ix, uint32_t id, uint64_t *of_life,
                      uint64_t *loose_p) {
    const struct route_run *r = route_run_at(ix, id);
    const struct route_lane *lane = route_run_lanes(r);
    uint64_t all = 0;
    TARN_ASSERT(r->len > 0 && r->len <= RUN_BLOCKS && r->lanes > 0);
    TARN_ASSERT(r->hash != NULL ? r->cap >= r->len : r->len <= 2);
    TARN_ASSERT(r->hash == NULL || (r->hash[0] == r->first && r->hash[r->len - 1] == r->last));
    TARN_ASSERT(route_run_find(ix, r->first) == id);
    for (uint32_t i = 0; i < r->lanes; i++) {
        uint32_t life = lane[i].key >> 16;
        TARN_ASSERT(i == 0 || lane[i - 1].key < lane[i].key);
        TARN_ASSERT((lane_bits(&lane[i]) & ~route_mask(r->len)) == 0);
        TARN_ASSERT(life > 0 && life < ix->lives && (lane[i].key & 0xff) < ROUTE_TIERS);
        all |= lane_bits(&lane[i]);
        if (i > 0 && lane[i - 1].key >> 16 == life) continue;
        of_life[life] += (uint64_t)__builtin_popcountll(route_life_bits(r, life, 0));
    }
    TARN_ASSERT(all != 0);
    TARN_ASSERT(r->children == 0 || r->fork < r->len);
    *loose_p += r->parent != 0 && route_run_parent(ix, r) == NULL;
}

static int pos_order(const void *a, const void *b) {
    route_pos x = *(const route_pos *)a, y = *(const route_pos *)b;
    return x < y ? -1 : x > y;
}

/* Different blocks to which the life's names lead. */
static uint64_t check_names(const struct route_index *ix, uint32_t life) {
    const struct route_table *t = &ix->life[life].names;
    route_pos *pos = xmalloc((t->n + 1) * sizeof(*pos));
    uint64_t n = 0, different = 0;
    for (uint32_t i = 0; i < UINT32_C(1) << t->bits; i++) {
        const struct route_shard *s = &t->shard[i];
        for (uint32_t at = 0; s->slot != NULL && at < route_shard_slots(s); at++) {
            route_pos p = (route_pos)s->slot[at];
            const struct route_run *r = p != 0 ? route_run_live(ix, p / RUN_BLOCKS) : NULL;
            if (r != NULL && (route_life_bits(r, life, 0) >> p % RUN_BLOCKS & 1)) pos[n++] = p;
        }
    }
    qsort(pos, n, sizeof(*pos), pos_order);
    for (uint64_t i = 0; i < n; i++) different += i == 0 || pos[i] != pos[i - 1];
    free(pos);
    return different;
}

static uint64_t check_runs(const struct route_index *ix, uint64_t *of_life) {
    uint64_t bytes = 0, runs = 0, blocks = 0, loose = 0;
    for (uint32_t c = 1; c <= ix->chunks; c++) {
        const struct route_chunk *k = &ix->chunk[c];
        if (k->free != UINT64_MAX) bytes += CHUNK_BYTES;
        for (uint64_t used = ~k->free; used != 0; used &= used - 1) {
            uint32_t id = c * CHUNK_RUNS + (uint32_t)__builtin_ctzll(used);
            check_run(ix, id, of_life, &loose);
            bytes += route_run_memory(route_run_at(ix, id));
            blocks += route_run_at(ix, id)->len;
            runs++;
        }
    }
    TARN_ASSERT(runs == ix->figures.route_runs && runs == ix->firsts.n);
    TARN_ASSERT(blocks == ix->figures.route_blocks && loose <= ix->loose);
    return bytes;
}

uint64_t route_index_check(const struct route_index *ix) {
    uint64_t *of_life = xcalloc(ix->lives, sizeof(*of_life));
    uint64_t bytes = check_runs(ix, of_life) + ix->fixed_bytes;
    check_table(&ix->firsts);
    bytes += route_table_memory(&ix->firsts);
    uint32_t dead = 0;
    for (uint32_t i = 1; i < ix->lives; i++) {
        const struct route_life *l = &ix->life[i];
        dead += l->dead;
        TARN_ASSERT(ix->brief[i].holder == l->holder && !(l->dead && l->holder != 0));
        TARN_ASSERT(l->names.shard != NULL || of_life[i] == 0);
        if (l->names.shard == NULL) continue;
        check_table(&l->names);
        TARN_ASSERT(check_names(ix, i) == of_life[i] && l->names.n <= l->quota);
        bytes += route_table_memory(&l->names);
    }
    TARN_ASSERT(dead == ix->lives_dead);
    TARN_ASSERT(bytes == ix->memory.bytes && bytes <= ix->memory.max);
    free(of_life);
    return bytes;
}
