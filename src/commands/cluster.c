/* CLUSTER: who has which keys, in the words of Redis Cluster's clients and as the map itself; the
 * map is given, and taken away; keys that move. ASKING, READONLY, READWRITE. */
#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "front/client.h"
#include "front/core.h"
#include "front/each.h"
#include "front/families.h"
#include "front/notify.h"
#include "front/shard.h"
#include "ha/peers.h"
#include "ha/replication.h"
#include "slots/map.h"
#include "wire/options.h"

#define DISABLED "This instance has cluster support disabled"

/* false: answered. */
static bool map_there(struct client *c) {
    if (shard_map != NULL) return true;
    reply_error(c, shard_awaits() ? SHARD_AWAITS : DISABLED);
    return false;
}

/* --- who there is --- */

/* Which of its shard's servers this is: the first leads. SLOT_NOBODY: nobody can say, as several
 * have this port. */
static unsigned own_server(void) {
    const struct slot_shard *s = &shard_map->shard[shard_self];
    unsigned found = SLOT_NOBODY;
    if (!replication_is_replica()) return 0;
    for (unsigned i = 0; i < s->servers; i++) {
        if (s->server[i].port != core_endpoints.port &&
            s->server[i].port != core_endpoints.tls_port)
            continue;
        if (found != SLOT_NOBODY) return SLOT_NOBODY;
        found = i;
    }
    return found;
}

static void server_id(const struct slot_shard *s, unsigned i, char id[SLOT_ID_LEN + 1]) {
    slot_id(s, i == 0 ? NULL : &s->server[i], id);
}

static bool is_me(unsigned shard, unsigned server) {
    return shard == shard_self && own_server() == server;
}

/* The replica of this server that is reached there; NULL: none is online. */
static const struct replica *replica_at(const struct slot_server *s) {
    const struct replica *r;
    char ip[64];
    uint16_t port;
    LIST_FOREACH(r, &replication.replicas, link) {
        replica_address(r, ip, &port);
        if (r->state == REPLICA_ONLINE && port == s->port && strcmp(ip, s->host) == 0) return r;
    }
    return NULL;
}

/* As far as this server has seen itself. */
static enum peer_state server_state(unsigned shard, unsigned i) {
    const struct slot_server *s = &shard_map->shard[shard].server[i];
    uint16_t port;
    const char *master = replication_master(&port);
    if (is_me(shard, i)) return PEER_ANSWERS;
    if (shard != shard_self) return peers_state(s);
    if (master == NULL) return replica_at(s) != NULL ? PEER_ANSWERS : PEER_UNKNOWN;
    if (port != s->port || strcmp(master, s->host) != 0) return PEER_UNKNOWN;
    return replication_link_up() ? PEER_ANSWERS : PEER_SILENT;
}

void cmd_cluster_myid(struct client *c) {
    char id[SLOT_ID_LEN + 1];
    if (!map_there(c)) return;
    unsigned me = own_server();
    if (me == SLOT_NOBODY) {
        reply_bulk_str(c, server.run_id);
        return;
    }
    server_id(&shard_map->shard[shard_self], me, id);
    reply_bulk_str(c, id);
}

void cmd_cluster_myshardid(struct client *c) {
    char id[SLOT_ID_LEN + 1];
    if (!map_there(c)) return;
    slot_id(&shard_map->shard[shard_self], NULL, id);
    reply_bulk_str(c, id);
}

void cmd_cluster_keyslot(struct client *c) {
    if (map_there(c)) reply_int(c, slot_of_key(c->argv[2]));
}

/* --- INFO --- */

static void info_line(struct buf *out, const char *name, uint64_t value) {
    buf_printf(out, "%s:%" PRIu64 "\r\n", name, value);
}

void cmd_cluster_info(struct client *c) {
    struct buf out = {NULL, 0, 0};
    unsigned assigned = 0, reached = 0, nodes = 0, size = 0;
    if (!map_there(c)) return;
    for (unsigned i = 0; i < shard_map->shards; i++) {
        unsigned owned = slot_map_owned(shard_map, i);
        assigned += owned;
        size += owned > 0;
        nodes += shard_map->shard[i].servers;
        if (shard_map->shard[i].servers > 0) reached += owned;
    }
    buf_printf(&out, "cluster_state:%s\r\n",
               reached == SLOT_COUNT && !shard_awaits() ? "ok" : "fail");
    info_line(&out, "cluster_slots_assigned", assigned);
    info_line(&out, "cluster_slots_ok", reached);
    info_line(&out, "cluster_slots_fail", assigned - reached);
    info_line(&out, "cluster_known_nodes", nodes);
    info_line(&out, "cluster_size", size);
    info_line(&out, "cluster_current_epoch", shard_map->epoch);
    info_line(&out, "cluster_my_epoch", shard_map->shard[shard_self].master_epoch);
    reply_verbatim(c, "txt", span_of(out.data, out.len));
    buf_free(&out);
}

/* --- NODES, REPLICAS --- */

static void node_slots(struct buf *out, unsigned shard) {
    char id[SLOT_ID_LEN + 1];
    for (uint32_t from = 0, to; slot_map_run(shard_map->owner, shard, &from, &to); from = to + 1)
        buf_printf(out, from == to ? " %u" : " %u-%u", from, to);
    if (shard != shard_self) return;
    for (uint32_t slot = 0; slot < SLOT_COUNT; slot++) {
        unsigned owner = shard_map->owner[slot], target = shard_map->target[slot];
        if (target == SLOT_NOBODY || (owner != shard && target != shard)) continue;
        slot_id(&shard_map->shard[owner == shard ? target : owner], NULL, id);
        buf_printf(out, " [%u-%c-%s]", slot, owner == shard ? '>' : '<', id);
    }
}

/* As Redis 7 has it; there is no bus of the cluster, so its port is 0. */
static void node_line(struct buf *out, unsigned shard, unsigned i) {
    const struct slot_shard *s = &shard_map->shard[shard];
    enum peer_state state = server_state(shard, i);
    char id[SLOT_ID_LEN + 1], master[SLOT_ID_LEN + 1];
    server_id(s, i, id);
    server_id(s, 0, master);
    buf_printf(out, "%s %s:%u@0 %s%s%s %s 0 0 %" PRIu64 " %s", id, s->server[i].host,
               s->server[i].port, is_me(shard, i) ? "myself," : "", i == 0 ? "master" : "slave",
               state == PEER_SILENT ? ",fail?" : "", i == 0 ? "-" : master, s->master_epoch,
               state == PEER_ANSWERS ? "connected" : "disconnected");
    if (i == 0) node_slots(out, shard);
}

void cmd_cluster_nodes(struct client *c) {
    struct buf out = {NULL, 0, 0};
    if (!map_there(c)) return;
    for (unsigned k = 0; k < shard_map->shards; k++)
        for (unsigned i = 0; i < shard_map->shard[k].servers; i++) {
            node_line(&out, k, i);
            buf_append_char(&out, '\n');
        }
    reply_verbatim(c, "txt", span_of(out.data, out.len));
    buf_free(&out);
}

void cmd_cluster_replicas(struct client *c) {
    char id[SLOT_ID_LEN + 1];
    if (!map_there(c)) return;
    for (unsigned k = 0; k < shard_map->shards; k++) {
        const struct slot_shard *s = &shard_map->shard[k];
        for (unsigned i = 0; i < s->servers; i++) {
            server_id(s, i, id);
            if (!span_eq(c->argv[2], span_str(id))) continue;
            if (i > 0) {
                reply_error(c, "The specified node is not a master");
                return;
            }
            reply_array(c, s->servers - 1);
            for (unsigned r = 1; r < s->servers; r++) {
                struct buf out = {NULL, 0, 0};
                node_line(&out, k, r);
                reply_bulk(c, span_of(out.data, out.len));
                buf_free(&out);
            }
            return;
        }
    }
    reply_error(c, "Unknown node %.*s", (int)min_u64(c->argv[2].len, 64),
                c->argv[2].data != NULL ? c->argv[2].data : "");
}

/* --- SLOTS, SHARDS --- */

static void slots_server(struct client *c, const struct slot_shard *s, unsigned i) {
    char id[SLOT_ID_LEN + 1];
    server_id(s, i, id);
    reply_array(c, 4);
    reply_bulk_str(c, s->server[i].host);
    reply_int(c, s->server[i].port);
    reply_bulk_str(c, id);
    reply_array(c, 0);
}

void cmd_cluster_slots(struct client *c) {
    size_t n = 0;
    if (!map_there(c)) return;
    void *cookie = reply_deferred(c);
    for (uint32_t from = 0, to = 0; from < SLOT_COUNT; from = to + 1) {
        unsigned owner = shard_map->owner[from];
        for (to = from; to + 1 < SLOT_COUNT && shard_map->owner[to + 1] == owner;) to++;
        const struct slot_shard *s = &shard_map->shard[owner == SLOT_NOBODY ? 0 : owner];
        if (owner == SLOT_NOBODY || s->servers == 0) continue;
        reply_array(c, 2 + s->servers);
        reply_int(c, from);
        reply_int(c, to);
        for (unsigned i = 0; i < s->servers; i++) slots_server(c, s, i);
        n++;
    }
    reply_deferred_array(c, cookie, n);
}

static void shard_slots(struct client *c, unsigned shard) {
    size_t n = 0;
    reply_bulk_str(c, "slots");
    void *cookie = reply_deferred(c);
    for (uint32_t from = 0, to; slot_map_run(shard_map->owner, shard, &from, &to); from = to + 1) {
        reply_int(c, from);
        reply_int(c, to);
        n += 2;
    }
    reply_deferred_array(c, cookie, n);
}

/* What is not known is left out. */
static void shard_server(struct client *c, unsigned shard, unsigned i) {
    const struct slot_shard *s = &shard_map->shard[shard];
    const struct replica *r = shard == shard_self ? replica_at(&s->server[i]) : NULL;
    enum peer_state state = server_state(shard, i);
    bool me = is_me(shard, i), offset = me || r != NULL;
    const char *health = state == PEER_SILENT ? "failed" : "online";
    char id[SLOT_ID_LEN + 1];
    server_id(s, i, id);
    reply_map(c, 5 + offset + (state != PEER_UNKNOWN));
    reply_bulk_str(c, "id");
    reply_bulk_str(c, id);
    reply_bulk_str(c, "port");
    reply_int(c, s->server[i].port);
    reply_bulk_str(c, "ip");
    reply_bulk_str(c, s->server[i].host);
    reply_bulk_str(c, "endpoint");
    reply_bulk_str(c, s->server[i].host);
    reply_bulk_str(c, "role");
    reply_bulk_str(c, i == 0 ? "master" : "replica");
    if (offset) {
        reply_bulk_str(c, "replication-offset");
        reply_int(c, (int64_t)(me ? replication.history.offset : r->ack_offset));
    }
    if (state == PEER_UNKNOWN) return;
    reply_bulk_str(c, "health");
    reply_bulk_str(c, me && replication_loading() ? "loading" : health);
}

void cmd_cluster_shards(struct client *c) {
    if (!map_there(c)) return;
    reply_array(c, shard_map->shards);
    for (unsigned k = 0; k < shard_map->shards; k++) {
        reply_map(c, 2);
        shard_slots(c, k);
        reply_bulk_str(c, "nodes");
        reply_array(c, shard_map->shard[k].servers);
        for (unsigned i = 0; i < shard_map->shard[k].servers; i++) shard_server(c, k, i);
    }
}

/* --- the keys of a slot: a walk over all --- */

struct slot_walk {
    struct each each;
    struct client *client;
    void *reply; /* GETKEYSINSLOT; NULL: they are counted */
    uint32_t slot;
    uint64_t cursor, count, found;
    unsigned seen;
};

static void slot_see(void *arg, struct object *o) {
    struct slot_walk *w = arg;
    struct span key = store_object_key(o);
    w->seen++;
    if (slot_of_key(key) != w->slot || w->found == w->count) return;
    w->found++;
    if (w->reply != NULL) reply_bulk(w->client, key);
}

static enum each_next slot_one(struct client *c, struct each *each, unsigned *budget) {
    struct slot_walk *w = CONTAINER_OF(each, struct slot_walk, each);
    w->seen = 0;
    w->cursor = store_scan(books, w->cursor, slot_see, w);
    spend(budget, w->seen);
    return w->cursor == 0 || w->found == w->count ? EACH_OVER : EACH_ON;
}

static void slot_end(struct client *c, struct each *each) {
    struct slot_walk *w = CONTAINER_OF(each, struct slot_walk, each);
    if (w->reply != NULL)
        reply_deferred_array(c, w->reply, w->found);
    else
        reply_int(c, (int64_t)w->found);
}

static void slot_walk(struct client *c, bool keys) {
    struct wire_slot args = {0};
    if (!map_there(c) || !arg_bind(c, &args)) return;
    if (keys && args.count == 0) {
        reply_array(c, 0);
        return;
    }
    struct slot_walk w = {.each = {.one = slot_one, .end = slot_end, .n = EACH_ENDLESS},
                          .client = c,
                          .slot = (uint32_t)args.slot,
                          .count = keys ? args.count : UINT64_MAX};
    if (keys) w.reply = reply_deferred(c);
    each_run(c, &w.each, sizeof(w));
}

void cmd_cluster_countkeysinslot(struct client *c) {
    slot_walk(c, false);
}
void cmd_cluster_getkeysinslot(struct client *c) {
    slot_walk(c, true);
}

/* --- keys that move --- */

static const char *const pin_words[] = {"NONE", "SOFT", "HARD"};

/* What a part of the walk found: copies, for the cursor goes out before them. */
struct moving_key {
    uint64_t version, size, pin_ms, expire_ms;
    uint32_t key_len, group_len, depth;
    uint8_t pin;
    bool boundary;
};

struct scanslots {
    struct each each;
    uint64_t cursor, count, turns;
    struct buf found; /* struct moving_key, key, group */
    size_t n, sent;
    unsigned seen;
};

static void scanslots_see(void *arg, struct object *o) {
    struct scanslots *s = arg;
    struct store_bonds bonds;
    struct span key = store_object_key(o);
    s->seen++;
    if (!shard_leaves(key) || store_object_flushed(books, o)) return;
    store_object_bonds(books, o, &bonds);
    struct moving_key x = {.version = store_object_version(o),
                           .size = store_object_size(books, o),
                           .pin_ms = bonds.pin_ms,
                           .expire_ms = bonds.expire_wall_ms,
                           .key_len = (uint32_t)key.len,
                           .group_len = (uint32_t)bonds.group.len,
                           .depth = store_object_depth(o),
                           .pin = (uint8_t)bonds.pin,
                           .boundary = bonds.boundary};
    buf_append(&s->found, &x, sizeof(x));
    buf_append(&s->found, key.data, key.len);
    if (bonds.group.len > 0) buf_append(&s->found, bonds.group.data, bonds.group.len);
    s->n++;
}

static enum each_next scanslots_send(struct client *c, struct each *each, unsigned *budget) {
    struct scanslots *s = CONTAINER_OF(each, struct scanslots, each);
    struct moving_key x;
    memcpy(&x, s->found.data + s->sent, sizeof(x));
    const char *key = s->found.data + s->sent + sizeof(x);
    reply_array(c, 9);
    reply_bulk(c, span_of(key, x.key_len));
    reply_int(c, (int64_t)x.version);
    reply_int(c, (int64_t)x.size);
    reply_bulk_str(c, pin_words[x.pin]);
    reply_int(c, x.pin == STORE_PIN_SOFT ? (int64_t)x.pin_ms : 0);
    reply_int(c, (int64_t)x.expire_ms);
    reply_bulk(c, span_of(key + x.key_len, x.group_len));
    reply_int(c, x.boundary);
    reply_int(c, x.depth);
    s->sent += sizeof(x) + x.key_len + x.group_len;
    return s->sent < s->found.len ? EACH_ON : EACH_OVER;
}

/* As SCAN does: until COUNT were found, but at most 1000 COUNT steps. */
static enum each_next scanslots_walk(struct client *c, struct each *each, unsigned *budget) {
    struct scanslots *s = CONTAINER_OF(each, struct scanslots, each);
    char cursor[24];
    s->seen = 0;
    s->cursor = store_scan_all(books, s->cursor, scanslots_see, s);
    spend(budget, s->seen);
    if (s->cursor != 0 && --s->turns > 0 && s->n < s->count) return EACH_ON;
    reply_array(c, 2);
    reply_bulk(c, span_of(cursor, u64_to_dec(s->cursor, cursor)));
    reply_array(c, s->n);
    each->one = scanslots_send;
    return s->n > 0 ? EACH_ON : EACH_OVER;
}

static void scanslots_close(struct client *c, struct job *job) {
    buf_free(&CONTAINER_OF(job, struct scanslots, each.job)->found);
}

void cmd_cluster_scanslots(struct client *c) {
    struct wire_scanslots args = {0};
    struct scanslots s = {
        .each = {.job.close = scanslots_close, .one = scanslots_walk, .n = EACH_ENDLESS}};
    if (!map_there(c) || !arg_bind(c, &args)) return;
    s.cursor = args.cursor;
    s.count = args.count;
    s.turns = args.count * 1000;
    each_run(c, &s.each, sizeof(s));
}

/* A put that is under way may change it once more: the mover comes again. */
static enum each_next relinquish_one(struct client *c, struct each *each, unsigned *budget) {
    const struct span *args = each_args(c, each);
    uint64_t version;
    bool moves;
    struct object *o = span_to_u64(args[1], &version) && shard_leaves(args[0]) &&
                               !store_put_under_way(books, args[0], &moves)
                           ? store_find_version(books, args[0], version)
                           : NULL;
    if (o != NULL) {
        store_remove_object(books, o);
        shard_key_left();
    }
    reply_int(c, o != NULL);
    return EACH_ON;
}

void cmd_cluster_relinquish(struct client *c) {
    struct wire_release args = {0};
    struct each each = {.one = relinquish_one};
    if (!map_there(c) || !arg_bind(c, &args)) return;
    reply_array(c, args.keys.n);
    each_keys(&each, args.keys, 2);
    each_run(c, &each, sizeof(each));
}

void cmd_asking(struct client *c) {
    if (!map_there(c)) return;
    c->io->flags |= CLIENT_ASKING;
    reply_ok(c);
}

void cmd_readonly(struct client *c) {
    if (!map_there(c)) return;
    c->io->flags |= CLIENT_READONLY;
    reply_ok(c);
}

void cmd_readwrite(struct client *c) {
    if (!map_there(c)) return;
    c->io->flags &= ~(unsigned)CLIENT_READONLY;
    reply_ok(c);
}
