/* Forgetting: what a holder told of long ago and nobody has asked for since, to make room; and what
 * was of holders that left. Both go through the entries of a holder's own hashes in turn, a hand
 * that comes round. It takes those whose runs are older than most of a sample, so that a run goes
 * as a whole within one round. Runs of the event in hand stay: somebody is at work on them. */
#include "route/index_run.h"

#define SAMPLE        32u
#define ROUNDS        8u
#define ENTRIES_EACH  16u /* looked at for each that is wanted */
#define GLOBAL_BLOCKS 512u

static uint32_t run_age(const struct route_index *ix, route_pos pos) {
    const struct route_run *r = route_run_live(ix, pos / RUN_BLOCKS);
    return r != NULL ? ix->tick - r->stamp : UINT32_MAX;
}

/* The entry under the hand, which moves on; 0: there is none. */
static uint64_t hand_entry(struct route_life *l, uint32_t shards_to_see) {
    while (shards_to_see > 0) {
        struct route_shard *s = &l->names.shard[l->hand_shard];
        uint32_t end = s->n > 0 ? route_shard_slots(s) : 0;
        while (l->hand_slot < end) {
            uint64_t entry = s->slot[l->hand_slot++];
            if (entry != 0) return entry;
        }
        l->hand_shard = (l->hand_shard + 1) & ((UINT32_C(1) << l->names.bits) - 1);
        l->hand_slot = 0;
        shards_to_see--;
    }
    return 0;
}

static uint64_t hand_next(struct route_life *l) {
    return hand_entry(l, (UINT32_C(1) << l->names.bits) + 1);
}

/* The entry that the hand has just passed, and what the holder has there. */
static void hand_forget(struct route_index *ix, uint32_t life, route_pos pos) {
    struct route_life *l = &ix->life[life];
    struct route_spot place = {&l->names.shard[l->hand_shard], --l->hand_slot};
    route_table_remove(&l->names, &ix->memory, place);
    if (route_run_live(ix, pos / RUN_BLOCKS) != NULL)
        route_run_unmark_life(ix, pos / RUN_BLOCKS, life, UINT64_C(1) << pos % RUN_BLOCKS);
}

/* Of that age and older is about a quarter; 0: nothing is old. */
static uint32_t age_to_forget(const struct route_index *ix, struct route_life *l) {
    uint32_t age[SAMPLE] = {0}, n = 0, shard = l->hand_shard, slot = l->hand_slot;
    uint32_t shards = UINT32_C(1) << l->names.bits, step = shards / SAMPLE | 1;
    for (uint32_t i = 0; i < SAMPLE; i++) {
        uint64_t entry = hand_next(l);
        if (entry == 0) break;
        uint32_t a = run_age(ix, (route_pos)entry), at = n++;
        for (; at > 0 && age[at - 1] < a; at--) age[at] = age[at - 1];
        age[at] = a;
        /* from shard to shard, or on in the only one */
        uint32_t skip = shards > 1 ? 0 : (uint32_t)(l->names.n / SAMPLE);
        if (shards > 1) l->hand_shard = (l->hand_shard + step) & (shards - 1);
        l->hand_slot = shards > 1 ? (ix->tick * 61 + i * 97) % 1024 : l->hand_slot + skip;
    }
    l->hand_shard = shard;
    l->hand_slot = slot;
    return n > 0 ? age[n / 4] : 0;
}

bool route_forget_of(struct route_index *ix, uint32_t life, uint32_t want) {
    struct route_life *l = &ix->life[life];
    uint32_t forgotten = 0;
    for (uint32_t round = 0; round < ROUNDS && forgotten < want && l->names.n > 0; round++) {
        uint32_t old = age_to_forget(ix, l);
        if (old == 0) old = 1;
        for (uint32_t i = 0; i < want * ENTRIES_EACH && forgotten < want; i++) {
            uint64_t entry = hand_next(l);
            if (entry == 0) break;
            if (run_age(ix, (route_pos)entry) < old) continue;
            hand_forget(ix, life, (route_pos)entry);
            forgotten++;
        }
    }
    ix->figures.route_forgotten += forgotten;
    return forgotten > 0;
}

bool route_life_sweep(struct route_index *ix, uint32_t life, size_t *budget_p) {
    struct route_life *l = &ix->life[life];
    for (; *budget_p > 0 && l->names.n > 0; --*budget_p)
        hand_forget(ix, life, (route_pos)hand_next(l));
    if (l->names.n > 0) return false;
    route_table_deinit(&l->names, &ix->memory);
    *l = (struct route_life){0};
    ix->lives_dead--;
    return true;
}

bool route_index_sweep(struct route_index *ix, size_t budget) {
    for (uint32_t i = 1; i < ix->lives && ix->lives_dead > 0 && budget > 0; i++)
        if (ix->life[i].dead) route_life_sweep(ix, i, &budget);
    return ix->lives_dead > 0;
}

static uint32_t life_largest(const struct route_index *ix) {
    uint32_t largest = 0;
    uint64_t most = 0;
    for (uint32_t i = 1; i < ix->lives; i++) {
        if (ix->life[i].holder == 0 || ix->life[i].names.n <= most) continue;
        most = ix->life[i].names.n;
        largest = i;
    }
    return largest;
}

/* Runs are in chunks that are given back only when all of one are gone. Free ones are room, too,
 * until something else is refused for lack of it. */
static bool memory_is_short(const struct route_index *ix, uint64_t margin) {
    const struct route_memory *m = &ix->memory;
    uint64_t room = m->max - m->bytes;
    if (!m->starved) room += ix->runs_free * sizeof(struct route_run);
    return room < margin;
}

void route_forget_for(struct route_index *ix) {
    uint64_t margin = min_u64(ix->memory.max / 16, UINT64_C(1) << 20);
    for (uint32_t round = 0; round < ROUNDS && memory_is_short(ix, margin); round++) {
        ix->memory.starved = false;
        if (ix->lives_dead > 0) {
            route_index_sweep(ix, GLOBAL_BLOCKS);
            continue;
        }
        uint32_t life = life_largest(ix);
        if (life == 0 || !route_forget_of(ix, life, GLOBAL_BLOCKS)) break;
    }
}
