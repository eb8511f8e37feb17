/* Chunks go where they are needed, one at a time, and shares come and go with the map.
 *
 * The need of a master is how young what it evicts is: chunks go from the one whose evictions are
 * the oldest, or that has room, to the one whose are the youngest. Every node sees the same
 * figures: so it takes a difference by a factor to move anything, and each node waits for a time
 * of its own before its next move, in which the figures follow what all have done. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/log.h"
#include "base/thread.h"
#include "client/error.h"
#include "hosting/shares.h"

#define NEED_FACTOR    2     /* between the ages of what two masters evict */
#define INTERVAL_MS    30000 /* between moves by need, in the mean; also lend_interval_ms */
#define TURN_MS        200u
#define LEAVE_MS       15000u  /* for readers, where a shard leaves the map */
#define AGAIN_MS       10000u  /* after what has failed */
#define DISK_AGAIN_MS  600000u /* ... and takes a disk away for a moment each time */
#define MAP_AGAIN_MS   1000u   /* between questions for a newer map */
#define MAP_TIMEOUT_MS 5000u

/* --- who needs it --- */

bool need_choose(const struct share_need need[SLOT_SHARDS_MAX], unsigned *from_p, unsigned *to_p) {
    const struct share_need *from = NULL, *to = NULL;
    for (const struct share_need *n = need; n < need + SLOT_SHARDS_MAX; n++)
        if (n->up && n->idle_ms >= 0 && n->chunks + FARS_MAX < HOSTED_MAX &&
            (to == NULL || n->idle_ms < to->idle_ms))
            to = n;
    if (to == NULL) return false;
    for (const struct share_need *n = need; n < need + SLOT_SHARDS_MAX; n++) {
        if (!n->up || n == to || n->chunks < 2) continue;
        if (n->idle_ms >= 0 && (uint64_t)n->idle_ms <= NEED_FACTOR * (uint64_t)to->idle_ms)
            continue;
        bool older = from != NULL && from->idle_ms >= 0 && n->idle_ms > from->idle_ms;
        bool roomier = from != NULL && from->idle_ms < 0 && n->idle_ms < 0 &&
                       n->bytes - n->used > from->bytes - from->used;
        bool first = from == NULL || (n->idle_ms < 0 && from->idle_ms >= 0);
        if (first || older || roomier) from = n;
    }
    if (from == NULL) return false;
    *from_p = (unsigned)(from - need);
    *to_p = (unsigned)(to - need);
    return true;
}

static void needs_gather(struct shares *s, struct share_need need[SLOT_SHARDS_MAX]) {
    for (unsigned i = 0; i < SLOT_SHARDS_MAX; i++) {
        const struct hosting_standing *now = &s->share[i].now;
        need[i] = (struct share_need){.chunks = chunks_count(&s->chunks, i), .idle_ms = -1};
        if (s->share[i].host == NULL) continue;
        need[i].up = now->up && s->share[i].move == MOVE_NONE;
        need[i].bytes = max_u64(chunks_bytes(&s->chunks, i), now->used);
        need[i].used = now->used;
        need[i].idle_ms = now->evicted_idle_ms;
    }
}

/* --- a chunk changes hands --- */

/* The one with the highest number; CHUNKS_MAX: it has none. */
static unsigned chunk_last(const struct shares *s, unsigned share) {
    unsigned last = CHUNKS_MAX;
    for (unsigned i = 0; i < s->chunks.n; i++) {
        const struct node_chunk *c = &s->chunks.chunk[i];
        if (c->shard == share && (last == CHUNKS_MAX || c->number > s->chunks.chunk[last].number))
            last = i;
    }
    return last;
}

static void chunk_forget(const struct shares *s, const struct node_chunk *c, const char *shard) {
    char *path = chunk_path(&s->o, c, shard);
    if (path != NULL) chunk_file_remove(path, "its master does not have it any more");
    free(path);
}

/* Can it be given one now? */
static bool share_takes(const struct shares *s, unsigned i, uint64_t now) {
    const struct node_share *share = &s->share[i];
    if (share->slots < 0 || share->row.servers == 0 || share->left) return false;
    return share->host != NULL ? share->now.up && share->move == MOVE_NONE : now >= share->retry_ms;
}

static void move_take(struct shares *s, unsigned from, unsigned chunk, unsigned to) {
    struct node_share *share = &s->share[from];
    share->chunk = chunk;
    share->to = to;
    share->move = MOVE_TAKING;
    lend_take(share->host, s->chunks.chunk[chunk].number);
}

/* A share that has no host yet begins with it. */
static void give_first(struct shares *s, struct node_chunk *c, unsigned to) {
    c->shard = to;
    if (share_begin(s, to) == TARN_OK) {
        log_notice("Shard %s has a share of this node's memory now%s", s->share[to].row.name,
                   s->o.file_path != NULL
                       ? ", and will have one of its files when the node starts anew"
                       : "");
        return;
    }
    chunk_forget(s, c, s->share[to].row.name);
    c->shard = CHUNK_FREE;
    s->free_ms = s->share[to].retry_ms = add_sat(now_ms(), AGAIN_MS);
    log_warning("Shard %s gets nothing of this node yet: %s", s->share[to].row.name,
                tarn_last_error());
}

/* The chunk is nobody's. */
static void move_add(struct shares *s, unsigned chunk, unsigned to) {
    struct node_chunk *c = &s->chunks.chunk[chunk];
    struct node_share *share = &s->share[to];
    chunk_forget(s, c, share->row.name); /* what an earlier life has left there */
    if (share->host == NULL) {
        give_first(s, c, to);
        return;
    }
    tarn_host_segment segment = s->o.segments[c->of];
    char *path = chunk_path(&s->o, c, share->row.name);
    segment.bytes = c->bytes;
    segment.path = path;
    c->shard = to;
    share->chunk = chunk;
    share->move = MOVE_ADDING;
    lend_add(share->host, c->number, &segment);
    free(path);
}

/* Nothing is left of it at the share. */
static void chunk_free(struct shares *s, struct node_chunk *c) {
    chunk_forget(s, c, s->share[c->shard].row.name);
    c->shard = CHUNK_FREE;
}

static void disk_over(struct shares *s, struct node_share *share, bool done, const char *why) {
    share->move = MOVE_NONE;
    if (done) {
        log_notice("Shard %s has %llu MiB of the disk", share->row.name,
                   (unsigned long long)share->disk_to >> 20);
        share->disk = share->disk_to;
        return;
    }
    uint64_t pause_ms = share->disk > 0 ? DISK_AGAIN_MS : AGAIN_MS;
    log_warning("Shard %s cannot have %llu MiB of the disk: %s; it is tried again in %llu s",
                share->row.name, (unsigned long long)share->disk_to >> 20, why,
                (unsigned long long)pause_ms / 1000);
    s->disk_ms = add_sat(now_ms(), pause_ms);
}

static void move_over(struct shares *s, unsigned i, bool done, const char *why) {
    struct node_share *share = &s->share[i];
    if (share->move == MOVE_DISK) {
        disk_over(s, share, done, why);
        return;
    }
    struct node_chunk *c = &s->chunks.chunk[share->chunk];
    bool taking = share->move == MOVE_TAKING;
    unsigned long long mb = c->bytes >> 20;
    uint64_t now = now_ms();
    share->move = MOVE_NONE;
    if (!done) {
        log_warning("Chunk %u of %llu MiB cannot be %s shard %s: %s", c->number, mb,
                    taking ? "taken from" : "lent to", share->row.name, why);
        s->free_ms = add_sat(now, AGAIN_MS);
    } else if (!taking) {
        log_notice("Chunk %u of %llu MiB is lent to shard %s", c->number, mb, share->row.name);
    }
    if (taking == done) chunk_free(s, c);
    if (taking && done && share->to != CHUNK_FREE && share_takes(s, share->to, now))
        move_add(s, share->chunk, share->to);
}

/* true: a chunk moves, which is to be awaited. */
static bool moves_turn(struct shares *s) {
    bool busy = false;
    for (unsigned i = 0; i < SLOT_SHARDS_MAX; i++) {
        char why[256];
        if (s->share[i].move == MOVE_NONE) continue;
        enum lend_state state = lend_look(s->share[i].host, why, sizeof(why));
        if (state == LEND_DONE || state == LEND_FAILED) move_over(s, i, state == LEND_DONE, why);
    }
    for (unsigned i = 0; i < SLOT_SHARDS_MAX; i++)
        busy = busy || (s->share[i].move != MOVE_NONE && s->share[i].now.up);
    return busy;
}

/* --- what is to be done next --- */

/* What a master has unmounted for reasons of its own is nobody's. */
static bool take_back(struct shares *s) {
    for (unsigned i = 0; i < SLOT_SHARDS_MAX; i++) {
        const struct node_share *share = &s->share[i];
        if (share->host == NULL || share->move != MOVE_NONE || !share->now.up || !share->now.gone)
            continue;
        for (unsigned k = 0; k < s->chunks.n; k++) {
            const struct node_chunk *c = &s->chunks.chunk[k];
            if (c->shard != i || c->number != share->now.gone_number) continue;
            move_take(s, i, k, CHUNK_FREE);
            return true;
        }
    }
    return false;
}

/* What nobody has: of shards that left, or after a failure. */
static bool give_free(struct shares *s, uint64_t now) {
    int slots[SLOT_SHARDS_MAX];
    if (now < s->free_ms) return false;
    for (unsigned i = 0; i < SLOT_SHARDS_MAX; i++)
        slots[i] = share_takes(s, i, now) ? s->share[i].slots : -1;
    for (unsigned i = 0; i < s->chunks.n; i++) {
        if (s->chunks.chunk[i].shard != CHUNK_FREE) continue;
        unsigned to = chunks_poorest(&s->chunks, slots);
        if (to == CHUNK_FREE) return false;
        move_add(s, i, to);
        return true;
    }
    return false;
}

static void move_disk(struct shares *s, struct node_share *share, uint64_t bytes, uint64_t now) {
    char *path = share_disk_make(s, share->row.name);
    if (path == NULL) {
        s->disk_ms = add_sat(now, AGAIN_MS);
        return;
    }
    share->disk_to = bytes;
    share->move = MOVE_DISK;
    lend_disk(share->host, path, bytes);
    free(path);
}

/* Equal parts of the disk, also when there are more or fewer masters than before. */
static bool give_disk(struct shares *s, const struct share_need *need, uint64_t now) {
    uint64_t each = share_disk_bytes(s), sum = 0;
    unsigned larger = CHUNK_FREE, smaller = CHUNK_FREE;
    if (each == 0 || now < s->disk_ms) return false;
    for (unsigned i = 0; i < SLOT_SHARDS_MAX; i++) {
        const struct node_share *share = &s->share[i];
        sum += share->move == MOVE_DISK ? max_u64(share->disk, share->disk_to) : share->disk;
        if (!need[i].up || share->slots < 0) continue;
        if (share->disk > each) larger = i;
        if (share->disk < each) smaller = i;
    }
    unsigned which = larger != CHUNK_FREE ? larger : smaller;
    if (which == CHUNK_FREE) return false;
    if (which == smaller && sum - s->share[which].disk + each > s->o.ssd_bytes) return false;
    move_disk(s, &s->share[which], each, now);
    return true;
}

/* A shard that came into the map has nothing yet. */
static bool give_newcomer(struct shares *s, const struct share_need *need, uint64_t now) {
    unsigned from = CHUNK_FREE;
    for (unsigned i = 0; i < SLOT_SHARDS_MAX; i++)
        if (need[i].up && need[i].chunks > 1 &&
            (from == CHUNK_FREE || need[i].chunks > need[from].chunks))
            from = i;
    for (unsigned i = 0; i < SLOT_SHARDS_MAX; i++) {
        const struct node_share *share = &s->share[i];
        if (share->host != NULL || !share_takes(s, i, now) || need[i].chunks > 0 ||
            from == CHUNK_FREE)
            continue;
        log_notice("Shard %s is new, and gets a chunk of shard %s", share->row.name,
                   s->share[from].row.name);
        move_take(s, from, chunk_last(s, from), i);
        return true;
    }
    return false;
}

static void pause_begin(struct shares *s, uint64_t now) {
    uint64_t ms = s->o.lend_interval_ms > 0 ? s->o.lend_interval_ms : INTERVAL_MS;
    s->next_ms = now + ms / 2 + rng_below(&s->rng, ms + 1);
}

static void give_by_need(struct shares *s, const struct share_need *need, uint64_t now) {
    unsigned from, to;
    if (now < s->next_ms) return;
    pause_begin(s, now);
    if (!need_choose(need, &from, &to)) return;
    char idle[64] = "nothing";
    if (need[from].idle_ms >= 0)
        snprintf(idle, sizeof(idle), "what was not used for %lld s",
                 (long long)need[from].idle_ms / 1000);
    log_notice("A chunk goes from shard %s to shard %s, which evicts what was not used for %lld s; "
               "%s evicts %s",
               s->share[from].row.name, s->share[to].row.name, (long long)need[to].idle_ms / 1000,
               s->share[from].row.name, idle);
    move_take(s, from, chunk_last(s, from), to);
}

/* --- the map --- */

static unsigned place_of(const struct shares *s, const char *name) {
    for (unsigned i = 0; i < SLOT_SHARDS_MAX; i++)
        if (s->share[i].slots >= 0 && strcmp(s->share[i].row.name, name) == 0) return i;
    return CHUNK_FREE;
}

static void share_give_up(struct shares *s, unsigned i) {
    share_end(s, i);
    s->share[i].move = MOVE_NONE;
    for (unsigned k = 0; k < s->chunks.n; k++)
        if (s->chunks.chunk[k].shard == i) chunk_free(s, &s->chunks.chunk[k]);
}

/* It is not in the map any more, and has no keys. Its host may take its time to end. */
static void share_leave(struct shares *s, unsigned i) {
    log_notice("Shard %s has left the map: its share goes to the others", s->share[i].row.name);
    share_end_begin(s, i, false, add_sat(now_ms(), LEAVE_MS));
    s->share[i].move = MOVE_NONE;
    s->share[i].slots = -1;
    for (unsigned k = 0; k < SLOT_SHARDS_MAX; k++)
        if (s->share[k].to == i) s->share[k].to = CHUNK_FREE;
}

static bool share_is_gone(const struct node_share *share) {
    return share->slots < 0 && (share->ends == NULL || hosting_is_over(share->ends));
}

/* Its place is free. */
static void share_forget(struct shares *s, unsigned i) {
    log_notice("Shard %s has nothing of this node any more", s->share[i].row.name);
    share_give_up(s, i);
    share_disk_remove(s, s->share[i].row.name);
    s->share[i] = (struct node_share){.slots = -1};
}

/* Not before one of its name, or all that is in its way, is gone; the map is applied again then. */
static void share_enter(struct shares *s, const struct slot_shard *row) {
    unsigned at = SLOT_SHARDS_MAX;
    for (unsigned i = SLOT_SHARDS_MAX; i-- > 0;) {
        if (strcmp(s->share[i].row.name, row->name) == 0) return;
        if (s->share[i].row.name[0] == '\0') at = i;
    }
    if (at < SLOT_SHARDS_MAX) s->share[at] = (struct node_share){.row = *row, .slots = 0};
}

static void map_apply(struct shares *s) {
    const struct slot_map *m = s->map->slots;
    for (unsigned i = 0; i < SLOT_SHARDS_MAX; i++)
        if (s->share[i].slots >= 0 &&
            slot_map_shard(m, span_str(s->share[i].row.name)) == SLOT_NOBODY)
            share_leave(s, i);
    for (unsigned k = 0; k < m->shards; k++) {
        unsigned i = place_of(s, m->shard[k].name);
        if (i == CHUNK_FREE) share_enter(s, &m->shard[k]);
        if (i == CHUNK_FREE) i = place_of(s, m->shard[k].name);
        if (i == CHUNK_FREE) continue;
        struct node_share *share = &s->share[i];
        share->slots = (int)slot_map_owned(m, k);
        bool moved = memcmp(&share->row, &m->shard[k], sizeof(share->row)) != 0;
        share->row = m->shard[k];
        if (share->host != NULL) hosting_set_map(share->host, m->epoch);
        if (!moved || share->host == NULL) continue;
        char *url = share_url(s, &share->row);
        hosting_set_url(share->host, url);
        free(url);
    }
}

/* Masters say with heartbeats which map they have. One that is away may be so because its servers
 * are others now. */
static void map_turn(struct shares *s, uint64_t now) {
    struct shard *newer = NULL; /* one that has a newer map */
    const struct slot_map *m = s->map->slots;
    bool away = false;
    for (unsigned i = 0; i < SLOT_SHARDS_MAX; i++) {
        const struct node_share *share = &s->share[i];
        if (share->slots < 0) continue;
        unsigned shard = slot_map_shard(m, span_str(share->row.name));
        if (share->now.map_epoch > m->epoch && shard != SLOT_NOBODY) newer = s->map->shard[shard];
        away = away || (!share->now.up && !share->left);
    }
    uint64_t pause_ms = newer != NULL ? MAP_AGAIN_MS : AGAIN_MS;
    if ((newer == NULL && !away) || now - s->asked_ms < pause_ms) return;
    s->asked_ms = now;
    if (shards_renew(s->pool, &s->map, newer, add_sat(now, MAP_TIMEOUT_MS))) map_apply(s);
}

/* --- the thread --- */

/* How all masters are. One that was told NODE LEAVE, or has drained the node, has let go of all. */
static void shares_look(struct shares *s) {
    bool any = false, gone = false;
    for (unsigned i = 0; i < SLOT_SHARDS_MAX; i++) {
        struct node_share *share = &s->share[i];
        share->now = (struct hosting_standing){.up = false};
        if (share->host != NULL && hosting_wait(share->host, 0)) {
            log_notice("Shard %s has let go of this node: its share goes to the others",
                       share->row.name);
            share_end_begin(s, i, true, 0);
            share_give_up(s, i);
            share->left = true;
        }
        if (share->row.name[0] != '\0' && share_is_gone(share)) {
            share_forget(s, i);
            gone = true;
        }
        if (share->host != NULL) lend_standing(share->host, &share->now);
        any = any || (share->slots >= 0 && !share->left &&
                      (share->host != NULL || s->chunks.n > 0)); /* else it never gets any */
    }
    if (gone) map_apply(s);
    pthread_mutex_lock(&s->mutex);
    s->wanted = any;
    pthread_mutex_unlock(&s->mutex);
    if (!any) view_tell(s->view, HOSTING_LEFT, "it has left the pool");
}

static void balance_turn(struct shares *s) {
    uint64_t now = now_ms();
    struct share_need need[SLOT_SHARDS_MAX];
    shares_look(s);
    map_turn(s, now);
    if (moves_turn(s)) return;
    needs_gather(s, need);
    if (take_back(s) || give_free(s, now) || give_newcomer(s, need, now)) return;
    if (give_disk(s, need, now)) return;
    give_by_need(s, need, now);
}

static void *balance_run(void *arg) {
    struct shares *s = arg;
    pthread_mutex_lock(&s->mutex);
    while (!s->stopping) {
        bool draining = s->draining;
        pthread_mutex_unlock(&s->mutex);
        if (!draining) balance_turn(s);
        pthread_mutex_lock(&s->mutex);
        if (!s->stopping) (void)thread_cond_wait(&s->changed, &s->mutex, TURN_MS);
    }
    pthread_mutex_unlock(&s->mutex);
    return NULL;
}

tarn_status balance_start(struct shares *s) {
    rng_seed(&s->rng, clock_mono_ns() ^ (uint64_t)(uintptr_t)s);
    pause_begin(s, now_ms());
    int err = thread_start(&s->thread, "tarn-shares", balance_run, s);
    if (err != 0) return fail(TARN_EIO, "cannot start a thread: %s", strerror(err));
    s->thread_runs = true;
    return TARN_OK;
}

void balance_stop(struct shares *s) {
    if (!s->thread_runs) return;
    pthread_mutex_lock(&s->mutex);
    s->stopping = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
    pthread_join(s->thread, NULL);
}
