/* What the engines tell: blocks that are there now, and blocks that are gone. An event is taken in
 * pieces of 64 blocks; the memory that a piece will touch is fetched before its first is placed. */
#include <string.h>

#include "route/hash.h"
#include "route/index_run.h"

#define FORGET_BLOCKS 256u /* of a holder that has all it may have */

/* --- own hashes --- */

/* From `pos` on the first block of that name of which the holder has something, in lane `lane` or,
 * when that is 0, in any. Names that are left over lead elsewhere or nowhere. */
static route_pos own_skip(const struct route_index *ix, uint32_t life, uint32_t print,
                          uint32_t lane, struct route_spot *place, route_pos pos) {
    for (; pos != 0; pos = route_table_next(place, print)) {
        const struct route_run *r = route_run_live(ix, pos / RUN_BLOCKS);
        if (r == NULL) continue;
        uint64_t bits = lane != 0 ? route_lane_bits(r, lane) : route_life_bits(r, life, 0);
        if (bits >> pos % RUN_BLOCKS & 1) break;
    }
    return pos;
}

static route_pos own_find(const struct route_index *ix, uint32_t life, uint32_t print,
                          uint32_t lane, struct route_spot *place) {
    route_pos pos = route_table_find(&ix->life[life].names, print, place);
    return own_skip(ix, life, print, lane, place, pos);
}

/* The one block of that name, of which the holder has something; 0: there is none, or two. */
static route_pos own_find_one(struct route_index *ix, uint32_t life, uint32_t print) {
    struct route_spot place;
    route_pos pos = own_find(ix, life, print, 0, &place);
    if (pos == 0) return 0;
    if (own_skip(ix, life, print, 0, &place, route_table_next(&place, print)) == 0) return pos;
    ix->figures.route_alike++;
    return 0;
}

/* The name leads there, already or from now on. false: no room. */
static bool own_add(struct route_index *ix, uint32_t life, uint32_t print, route_pos pos) {
    struct route_life *l = &ix->life[life];
    struct route_spot place;
    route_pos found = route_table_find(&l->names, print, &place);
    while (found != 0 && found != pos) found = route_table_next(&place, print);
    if (found == pos) return true;
    if (l->names.n >= l->quota && !route_forget_of(ix, life, FORGET_BLOCKS)) return false;
    return route_table_add(&l->names, &ix->memory, print, pos);
}

/* --- stored --- */

struct placing {
    uint32_t life, lane;
    uint32_t id, at;       /* the last block placed; 0: there is none */
    struct route_run *run; /* of it */
    uint64_t unmarked;     /* blocks of that run that are placed */
    uint32_t marked;       /* blocks of the piece */
};

/* What was placed in one run is marked at once. */
static bool placing_flush(struct route_index *ix, struct placing *p) {
    uint64_t new = 0, mask = p->unmarked;
    p->unmarked = 0;
    if (mask == 0) return true;
    if (!route_run_mark(ix, p->run, p->lane, mask, &new)) {
        route_run_trim(ix, p->id); /* it may have been made for this */
        return false;
    }
    p->marked += (uint32_t)__builtin_popcountll(mask);
    ix->figures.route_repeated += (uint64_t)__builtin_popcountll(mask & ~new);
    return true;
}

static bool placing_enter(struct route_index *ix, struct placing *p, uint32_t id) {
    if (!placing_flush(ix, p)) return false;
    p->id = id;
    p->at = 0;
    p->run = route_run_at(ix, id);
    p->run->stamp = ix->tick;
    return true;
}

/* Behind the last block of the run. */
static bool placing_append(struct route_index *ix, struct placing *p, uint64_t hash,
                           uint32_t left) {
    uint32_t len = (uint32_t)min_u64(p->run->len + left, RUN_BLOCKS);
    if (!route_run_reserve(ix, p->run, len) || !route_run_append(ix, p->run, hash)) return false;
    p->at++;
    return true;
}

static bool placing_make(struct route_index *ix, struct placing *p, uint64_t hash, uint32_t left) {
    uint32_t id = route_run_make(ix, hash, p->run != NULL ? p->id * RUN_BLOCKS + p->at : 0);
    if (id == 0) return false;
    if (placing_enter(ix, p, id)) return route_run_reserve(ix, p->run, (uint32_t)min_u64(left, 64));
    route_run_trim(ix, id);
    return false;
}

/* Moves on to the block of that hash; `left` of the piece follow, this one among them. */
static bool placing_next(struct route_index *ix, struct placing *p, uint64_t hash, uint32_t left) {
    struct route_run *r = p->run;
    if (r != NULL && p->at + 1 < r->len && route_run_hash(r, p->at + 1) == hash) {
        p->at++;
        return true;
    }
    bool appends = r != NULL && p->at + 1 == r->len && r->len < RUN_BLOCKS;
    if (appends && r->children == 0 && ix->loose == 0) return placing_append(ix, p, hash, left);
    uint32_t id = route_run_find(ix, hash);
    if (id != 0) {
        route_run_adopt(ix, route_run_at(ix, id), r != NULL ? p->id * RUN_BLOCKS + p->at : 0);
        return placing_enter(ix, p, id);
    }
    return appends ? placing_append(ix, p, hash, left) : placing_make(ix, p, hash, left);
}

/* Returns how many are known now. A name whose block could not be marked is left over. */
static uint32_t piece_place(struct route_index *ix, struct placing *p, const uint64_t *hash,
                            const uint32_t *print, uint32_t n) {
    const struct route_table *names = &ix->life[p->life].names;
    for (uint32_t i = 0; i < n; i++) route_table_prefetch(names, print[i]);
    for (uint32_t i = 0; i < n && ix->loose > 0; i++)
        route_table_prefetch(&ix->firsts, route_print(hash[i]));
    p->marked = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!placing_next(ix, p, hash[i], n - i)) break;
        p->unmarked |= UINT64_C(1) << p->at;
        if (!own_add(ix, p->life, print[i], p->id * RUN_BLOCKS + p->at)) {
            p->unmarked &= ~(UINT64_C(1) << p->at);
            break;
        }
    }
    placing_flush(ix, p);
    if (p->marked < n && p->run != NULL && route_run_live(ix, p->id) == p->run)
        route_run_trim(ix, p->id);
    return p->marked;
}

/* false: nothing is known of the parent. */
static bool placing_begin(struct route_index *ix, struct placing *p, const struct route_stored *e,
                          uint32_t block) {
    *p = (struct placing){.life = ix->holder[e->holder].life};
    p->lane = LANE_KEY(p->life, e->group, e->tier);
    if (!e->has_parent) return true;
    route_pos pos = own_find_one(ix, p->life, route_name_print(e->parent, block));
    if (pos == 0) return false;
    p->id = pos / RUN_BLOCKS;
    p->at = pos % RUN_BLOCKS;
    p->run = route_run_at(ix, p->id);
    p->run->stamp = ix->tick;
    return true;
}

/* Tokens; 0: there is no such holder or group. */
static uint32_t group_block(const struct route_index *ix, uint32_t holder, uint32_t group) {
    if (holder == 0 || holder > ix->config.holders_max || ix->holder[holder].life == 0 ||
        group >= ROUTE_GROUPS_MAX)
        return 0;
    return ix->holder[holder].group[group].block;
}

static bool event_strays(struct route_index *ix, uint32_t holder, uint32_t group,
                         enum route_tier tier, size_t n) {
    if (group_block(ix, holder, group) != 0 && (unsigned)tier < ROUTE_TIERS) return false;
    ix->figures.route_strays += n;
    return true;
}

/* Its blocks are placed already. */
static size_t stored_by_name(struct route_index *ix, const struct route_stored *e, uint32_t block) {
    uint32_t life = ix->holder[e->holder].life, lane = LANE_KEY(life, e->group, e->tier);
    size_t known = 0;
    for (size_t i = 0; i < e->n; i++) {
        uint64_t new, mask;
        route_forget_for(ix);
        route_pos pos = own_find_one(ix, life, route_name_print(e->own[i], block));
        if (pos == 0) {
            ix->figures.route_orphans++;
            continue;
        }
        struct route_run *r = route_run_at(ix, pos / RUN_BLOCKS);
        mask = UINT64_C(1) << pos % RUN_BLOCKS;
        r->stamp = ix->tick;
        if (!route_run_mark(ix, r, lane, mask, &new)) {
            ix->figures.route_refused++;
            continue;
        }
        ix->figures.route_repeated += new == 0;
        known++;
    }
    ix->figures.route_stored += known;
    return known;
}

size_t route_index_stored(struct route_index *ix, const struct route_stored *e) {
    uint64_t hash[PIECE_BLOCKS], rolling = 0;
    uint32_t print[PIECE_BLOCKS];
    struct placing p;
    size_t done = 0;
    if (event_strays(ix, e->holder, e->group, e->tier, e->n)) return 0;
    uint32_t block = ix->holder[e->holder].group[e->group].block;
    ix->tick++;
    if (e->local == NULL && e->rolling == NULL) return stored_by_name(ix, e, block);
    if (!placing_begin(ix, &p, e, block)) {
        ix->figures.route_orphans += e->n;
        return 0;
    }
    if (p.run != NULL) rolling = route_run_hash(p.run, p.at) ^ e->scope;
    size_t most = min_u64(e->n, ix->life[p.life].quota);
    for (uint32_t n, placed; done < most; done += placed) {
        n = (uint32_t)min_u64(most - done, PIECE_BLOCKS);
        if (e->rolling != NULL)
            memcpy(hash, e->rolling + done, n * sizeof(*hash));
        else
            route_hash_chain(p.run != NULL || done > 0 ? &rolling : NULL, e->local + done, n,
                             ix->config.seed, hash);
        rolling = hash[n - 1];
        for (uint32_t i = 0; i < n; i++) {
            print[i] = route_name_print(e->own != NULL ? e->own[done + i] : hash[i], block);
            hash[i] ^= e->scope;
        }
        route_forget_for(ix);
        placed = piece_place(ix, &p, hash, print, n);
        if (placed < n) {
            done += placed;
            break;
        }
    }
    ix->figures.route_stored += done;
    ix->figures.route_refused += e->n - done;
    return done;
}

/* --- removed --- */

/* One name may stand for several blocks when 32 bits do not tell its like apart. */
static uint32_t own_remove(struct route_index *ix, uint32_t life, uint32_t lane, uint32_t print) {
    struct route_spot place;
    route_pos pos;
    uint32_t n = 0;
    while ((pos = own_find(ix, life, print, lane, &place)) != 0) {
        uint64_t elsewhere = route_life_bits(route_run_at(ix, pos / RUN_BLOCKS), life, lane);
        if (!(elsewhere >> pos % RUN_BLOCKS & 1))
            route_table_remove(&ix->life[life].names, &ix->memory, place);
        route_run_unmark(ix, pos / RUN_BLOCKS, lane, UINT64_C(1) << pos % RUN_BLOCKS);
        n++;
    }
    return n;
}

size_t route_index_removed(struct route_index *ix, uint32_t holder, uint32_t group,
                           enum route_tier tier, const uint64_t *own, size_t n) {
    uint32_t print[PIECE_BLOCKS];
    size_t removed = 0;
    if (event_strays(ix, holder, group, tier, n)) return 0;
    uint32_t life = ix->holder[holder].life, block = ix->holder[holder].group[group].block;
    for (size_t done = 0; done < n; done += PIECE_BLOCKS) {
        size_t piece = min_u64(n - done, PIECE_BLOCKS);
        for (size_t i = 0; i < piece; i++) {
            print[i] = route_name_print(own[done + i], block);
            route_table_prefetch(&ix->life[life].names, print[i]);
        }
        for (size_t i = 0; i < piece; i++) {
            uint32_t gone = own_remove(ix, life, LANE_KEY(life, group, tier), print[i]);
            if (gone > 1) ix->figures.route_alike++;
            if (gone == 0) ix->figures.route_unknown++;
            removed += gone > 0;
        }
    }
    ix->figures.route_removed += removed;
    return removed;
}

/* --- several events ---
 *
 * An event of one block is three misses, each of which leads to the next: the entry of a name, the
 * run, and its lanes and hashes. So some events go through them together before they are applied.
 * Whatever changes in between costs a miss. */

#define TOGETHER 32u /* events */

struct outlook {
    const struct route_table *names; /* NULL: there is nothing to fetch */
    uint32_t print;
    const struct route_run *run; /* where it goes on, or something goes */
};

/* What an event calls its block i; false: only its hash will tell. */
static bool event_name(const struct route_event *event, size_t i, uint64_t *name_p) {
    const struct route_stored *e = &event->what;
    const uint64_t *names = e->own != NULL ? e->own : e->rolling;
    if (names != NULL && i < e->n) *name_p = names[i];
    return names != NULL && i < e->n;
}

static void outlook_entries(const struct route_index *ix, const struct route_event *event,
                            struct outlook *o) {
    const struct route_stored *e = &event->what;
    uint32_t block = group_block(ix, e->holder, e->group);
    uint64_t name;
    o->names = NULL;
    if (block == 0) return;
    const struct route_table *names = &ix->life[ix->holder[e->holder].life].names;
    bool known = event_name(event, 0, &name);
    if (known) {
        o->names = names;
        o->print = route_name_print(name, block);
        route_table_prefetch(names, o->print);
    }
    if (event->removed || !e->has_parent) return;
    o->names = names;
    o->print = route_name_print(e->parent, block);
    route_table_prefetch(names, o->print);
}

static void outlook_run(const struct route_index *ix, struct outlook *o) {
    struct route_spot place;
    o->run = NULL;
    route_pos pos = o->names != NULL ? route_table_find(o->names, o->print, &place) : 0;
    if (pos != 0) o->run = route_run_live(ix, pos / RUN_BLOCKS);
    if (o->run != NULL) route_prefetch(o->run);
}

static void outlook_inside(const struct outlook *o) {
    const struct route_run *r = o->run;
    if (r == NULL) return;
    if (r->lanes > 2) route_prefetch(r->out);
    if (r->hash != NULL) route_prefetch(r->hash + r->len);
}

void route_index_apply(struct route_index *ix, const struct route_event *events, size_t n) {
    struct outlook outlook[TOGETHER];
    for (size_t at = 0; at < n; at += TOGETHER) {
        size_t end = min_u64(n - at, TOGETHER);
        for (size_t i = 0; i < end; i++) outlook_entries(ix, &events[at + i], &outlook[i]);
        for (size_t i = 0; i < end; i++) outlook_run(ix, &outlook[i]);
        for (size_t i = 0; i < end; i++) outlook_inside(&outlook[i]);
        for (size_t i = 0; i < end; i++) {
            const struct route_stored *e = &events[at + i].what;
            if (events[at + i].removed)
                route_index_removed(ix, e->holder, e->group, e->tier, e->own, e->n);
            else
                route_index_stored(ix, e);
        }
    }
}
