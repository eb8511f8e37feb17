/* CLUSTER MAP, SETMAP, ANNOUNCE, RESET: the map of slots is told, given, in part corrected, taken
 * away. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/log.h"
#include "front/each.h"
#include "front/families.h"
#include "front/shard.h"
#include "ha/peers.h"
#include "slots/map.h"
#include "wire/options.h"

/* Those of servers have 32 bits. */
#define EPOCH_STEP_MAX ((uint64_t)UINT32_MAX)

typedef unsigned long long ull;

void cmd_cluster_map(struct client *c) {
    struct buf text = {NULL, 0, 0};
    if (shard_map == NULL && shard_awaits()) { /* who asks must not take it for one alone */
        reply_error(c, SHARD_AWAITS);
        return;
    }
    if (shard_map == NULL) {
        reply_null(c);
        return;
    }
    slot_map_write(shard_map, &text);
    reply_bulk(c, span_of(text.data, text.len));
    buf_free(&text);
}

/* --- SETMAP --- */

/* A map that is to be taken; before that, a walk looks whether keys of slots that would go to
 * others are here. */
struct setmap {
    struct each each;
    struct slot_map *map;
    unsigned self;
    bool force;
    uint64_t cursor;
    unsigned seen;
    int64_t left; /* a slot with a key, -1: none */
};

/* Does it fit what is known here? false: answered. */
static bool map_fits(struct client *c, const struct slot_map *map, unsigned self) {
    if (shard_map == NULL) return true;
    const char *name = shard_map->shard[shard_self].name;
    if (strcmp(name, map->shard[self].name) != 0)
        reply_error(c, "this server is shard %s: CLUSTER RESET first", name);
    else if (map->epoch < shard_map->epoch)
        reply_error(c, "-STALE the map's epoch is %llu, and that of the map here %llu",
                    (ull)map->epoch, (ull)shard_map->epoch);
    else if (map->epoch == shard_map->epoch && !slot_map_same_slots(map, shard_map))
        reply_error(c, "-STALE another map of epoch %llu is here", (ull)map->epoch);
    else
        return true;
    return false;
}

/* Would the slot be another's, which may be this one's now? */
static bool slot_goes(const struct setmap *s, uint32_t slot) {
    bool mine = shard_map == NULL || shard_map->owner[slot] == shard_self;
    return mine && s->map->owner[slot] != s->self && s->map->target[slot] != s->self;
}

static void setmap_see(void *arg, struct object *o) {
    struct setmap *s = arg;
    uint32_t slot = slot_of_key(store_object_key(o));
    s->seen++;
    if (slot_goes(s, slot)) s->left = slot;
}

static enum each_next setmap_one(struct client *c, struct each *each, unsigned *budget) {
    struct setmap *s = CONTAINER_OF(each, struct setmap, each);
    s->seen = 0;
    s->cursor = store_scan_all(books, s->cursor, setmap_see, s);
    spend(budget, s->seen);
    return s->cursor == 0 || s->left >= 0 ? EACH_OVER : EACH_ON;
}

static void setmap_take(struct client *c, struct setmap *s) {
    struct buf text = {NULL, 0, 0};
    if (!map_fits(c, s->map, s->self)) return; /* another one may have come meanwhile */
    if (shard_map != NULL) (void)slot_map_merge(s->map, shard_map);
    slot_map_write(s->map, &text);
    if (text.len > SLOT_MAP_TEXT_MAX) {
        reply_error(c, "the map is longer than %u bytes", SLOT_MAP_TEXT_MAX);
    } else {
        log_notice("Map of slots, epoch %llu: this is shard %s, with %u slots", (ull)s->map->epoch,
                   s->map->shard[s->self].name, slot_map_owned(s->map, s->self));
        shard_set(s->map, s->self);
        peers_told();
        reply_ok(c);
    }
    buf_free(&text);
}

static void setmap_end(struct client *c, struct each *each) {
    struct setmap *s = CONTAINER_OF(each, struct setmap, each);
    if (s->left >= 0)
        reply_error(c,
                    "slot %lld would be another's, and keys of it are here: move them first "
                    "(tarn-cluster move), or say FORCE, and they are removed",
                    (long long)s->left);
    else
        setmap_take(c, s);
}

static void setmap_close(struct client *c, struct job *job) {
    slot_map_destroy(&CONTAINER_OF(job, struct setmap, each.job)->map);
}

void cmd_cluster_setmap(struct client *c) {
    struct wire_setmap args = {0};
    char error[SLOT_MAP_ERROR_SIZE];
    struct setmap s = {.each = {.job.close = setmap_close,
                                .one = setmap_one,
                                .end = setmap_end,
                                .n = EACH_ENDLESS},
                       .left = -1};
    if (!arg_bind(c, &args)) return;
    s.map = slot_map_read(c->argv[args.map], error);
    if (s.map == NULL) {
        reply_error(c, "%s", error);
        return;
    }
    s.self = slot_map_shard(s.map, c->argv[args.shard]);
    if (s.self == SLOT_NOBODY) {
        reply_error(c, "the map has no shard of that name");
        slot_map_destroy(&s.map);
        return;
    }
    if (!map_fits(c, s.map, s.self)) {
        slot_map_destroy(&s.map);
        return;
    }
    bool goes = false;
    for (uint32_t slot = 0; slot < SLOT_COUNT && !goes; slot++) goes = slot_goes(&s, slot);
    if (!goes || args.force) s.each.n = 0;
    each_run(c, &s.each, sizeof(s));
}

void cmd_cluster_announce(struct client *c) {
    struct wire_announce args = {0};
    struct slot_shard row;
    if (!arg_bind(c, &args)) return;
    if (shard_map == NULL) {
        reply_error(c, shard_awaits() ? SHARD_AWAITS
                                      : "there is no map of slots here (CLUSTER SETMAP)");
        return;
    }
    unsigned shard = slot_map_shard(shard_map, c->argv[args.shard]);
    if (shard == SLOT_NOBODY) {
        reply_error(c, "the map here has no shard of that name");
        return;
    }
    if (!slot_servers_read(c->argv[args.master_epoch], c->argv[args.servers], &row) ||
        row.servers == 0) {
        reply_error(
            c, "it must be a master epoch, a number, and servers as host:port[,host:port ...]");
        return;
    }
    uint64_t known = shard_map->shard[shard].master_epoch;
    if (row.master_epoch > known && row.master_epoch - known > EPOCH_STEP_MAX) {
        reply_error(c,
                    "master epoch %llu is too far above %llu, which is known of this shard: no "
                    "later one could be told any more",
                    (ull)row.master_epoch, (ull)known);
        return;
    }
    (void)peers_learn(shard, &row);
    cmd_cluster_map(c);
}

void cmd_cluster_reset(struct client *c) {
    struct wire_setmap args = {0};
    if (!arg_bind(c, &args)) return;
    if (!args.force && shard_map != NULL && store_count(books) > 0) {
        reply_error(c, "CLUSTER RESET can't be called with master nodes containing keys: FORCE "
                       "does it all the same");
        return;
    }
    if (shard_map != NULL) {
        log_notice("The map of slots was taken away: this server is a master of its own");
        shard_set(NULL, 0);
        peers_told();
    }
    reply_ok(c);
}
