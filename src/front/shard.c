#include "front/shard.h"

#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "base/log.h"
#include "front/above.h"
#include "front/client.h"
#include "front/module_durable.h"
#include "front/multi.h"
#include "front/table.h"
#include "front/waiters.h"
#include "wire/options.h"

#define MAP_NAME SPAN("map")

const struct slot_map *shard_map;
unsigned shard_self;
bool shard_asks;

static bool awaited; /* a map, or a newer one */
static struct slot_server successor;
static bool succeeded;
static struct slot_last last_seen; /* of the keys that were asked for */
static uint64_t changes;           /* in what was said of keys */
static bool sweeping;              /* keys may be here whose slots are not */
static uint64_t sweep_cursor;
static struct buf swept; /* keys of one step: length (u32) and bytes */

/* --- one key --- */

enum shard_where { KEY_HERE, KEY_MOVED, KEY_ASK, KEY_LATER, KEY_NOWHERE };

struct shard_verdict {
    enum shard_where where;
    uint32_t slot;
    const struct slot_server *at; /* of MOVED and ASK */
    struct slot_server other;     /* what at points to when that is in no map */
};

static bool key_is_here(struct span key) {
    return store_find(books, key) != NULL || store_is_away(books, key);
}

/* A mover has the bytes of a key here, and it has left the source, or is about to. */
static bool key_arrives(struct span key) {
    bool moves;
    return store_put_under_way(books, key, &moves) && moves;
}

static void refer_to(struct shard_verdict *v, enum shard_where where, unsigned shard) {
    const struct slot_shard *s = &shard_map->shard[shard];
    v->where = s->servers > 0 ? where : KEY_NOWHERE;
    v->at = &s->server[0];
}

/* A replica answers look-ups, of clients that said READONLY; who decides is whom it follows. */
static void refer_to_master(struct shard_verdict *v, const char *host, uint16_t port) {
    v->where = KEY_MOVED;
    span_to_text(span_str(host), v->other.host, sizeof(v->other.host));
    v->other.port = port;
    v->at = &v->other;
}

/* All of it, and for whatever command. */
static bool slot_is_here(uint32_t slot) {
    return shard_map != NULL && !shard_awaits() && !succeeded &&
           shard_map->owner[slot] == shard_self && shard_map->target[slot] == SLOT_NOBODY &&
           above.master(NULL) == NULL;
}

static void key_judge(const struct client *c, const struct cmd *cmd, struct span key, uint32_t slot,
                      struct shard_verdict *v) {
    const struct slot_map *m = shard_map;
    uint16_t port;
    v->slot = slot;
    v->where = shard_awaits() ? KEY_NOWHERE : KEY_HERE;
    if (m == NULL || v->where == KEY_NOWHERE) return;
    unsigned owner = m->owner[v->slot], target = m->target[v->slot];
    const char *master = above.master(&port);
    bool reads = cmd->flags & CMD_READONLY && !(cmd->flags & CMD_MASTER);
    if (owner == SLOT_NOBODY)
        v->where = KEY_NOWHERE;
    else if (owner == shard_self && master != NULL && !(reads && c->io->flags & CLIENT_READONLY))
        refer_to_master(v, master, port);
    else if (owner == shard_self && succeeded && master == NULL)
        refer_to_master(v, successor.host, successor.port);
    else if (owner == shard_self && target != SLOT_NOBODY && !key_is_here(key))
        refer_to(v, KEY_ASK, target);
    else if (owner != shard_self && (target != shard_self || master != NULL))
        refer_to(v, KEY_MOVED, owner);
    else if (owner != shard_self && cmd->id != WIRE_putend && cmd->id != WIRE_mputend) {
        if (!c->asking)
            refer_to(v, KEY_MOVED, owner);
        else if (key_arrives(key))
            v->where = KEY_LATER;
    }
}

static void verdict_answer(struct client *c, const struct shard_verdict *v) {
    switch (v->where) {
    case KEY_HERE: break;
    case KEY_MOVED: reply_error(c, "-MOVED %u %s:%u", v->slot, v->at->host, v->at->port); break;
    case KEY_ASK: reply_error(c, "-ASK %u %s:%u", v->slot, v->at->host, v->at->port); break;
    case KEY_LATER: reply_later(c, 1, "the key is on its way here from another master"); break;
    case KEY_NOWHERE:
        reply_error(c, shard_awaits() ? SHARD_AWAITS : "-CLUSTERDOWN Hash slot not served");
        break;
    }
}

static __attribute__((noinline)) bool key_refuse(struct client *c, struct span key, uint32_t slot) {
    struct shard_verdict v;
    key_judge(c, c->cmd, key, slot, &v);
    verdict_answer(c, &v);
    return v.where != KEY_HERE;
}

bool shard_key_refuse(struct client *c, struct span key) {
    uint32_t slot = slot_of_next(&last_seen, key);
    return UNLIKELY(!slot_is_here(slot)) && key_refuse(c, key, slot);
}

bool shard_owns(struct span key) {
    if (shard_awaits() || succeeded) return false;
    if (shard_map == NULL) return true;
    uint32_t slot = slot_of_key(key);
    return shard_map->owner[slot] == shard_self && shard_map->target[slot] == SLOT_NOBODY;
}

bool shard_leaves(struct span key) {
    if (shard_map == NULL) return false;
    uint32_t slot = slot_of_key(key);
    return shard_map->owner[slot] == shard_self && shard_map->target[slot] != SLOT_NOBODY;
}

bool shard_lost(struct span key) {
    if (UNLIKELY(awaited || succeeded)) return true;
    if (LIKELY(shard_map == NULL)) return false;
    uint32_t slot = slot_of_key(key);
    if (shard_map->target[slot] == shard_self) return false;
    return shard_map->owner[slot] != shard_self ||
           (shard_map->target[slot] != SLOT_NOBODY && !key_is_here(key));
}

/* --- a request --- */

/* What its keys come to together. */
struct shard_keys {
    const struct client *client;
    const struct cmd *cmd;
    const struct span *argv;
    size_t groups_at, groups; /* table_kv_groups */
    size_t here, elsewhere;
    bool crosses;
    struct shard_verdict first; /* of those that are not here; LATER and NOWHERE before others */
};

static void keys_add(struct shard_keys *k, struct span key) {
    struct shard_verdict v;
    uint32_t slot = slot_of_next(&last_seen, key);
    v.where = KEY_HERE;
    if (UNLIKELY(!slot_is_here(slot))) key_judge(k->client, k->cmd, key, slot, &v);
    if (v.where == KEY_HERE) {
        k->here++;
        return;
    }
    if (k->elsewhere++ == 0 || (v.where > KEY_ASK && k->first.where <= KEY_ASK)) {
        k->first = v;
        if (v.at == &v.other) k->first.at = &k->first.other;
    } else if (v.where <= KEY_ASK && k->first.where <= KEY_ASK) {
        k->crosses |= v.where != k->first.where || !slot_server_same(v.at, k->first.at);
    }
}

static void keys_note(void *arg, struct cmd_key_ref key) {
    struct shard_keys *k = arg;
    keys_add(k, k->argv[key.index]);
}

/* Of a slot that moves, too. */
static bool part_is_here(struct span key) {
    return shard_map != NULL && shard_map->owner[slot_of_key(key)] == shard_self &&
           above.master(NULL) == NULL && !succeeded && !awaited;
}

/* Of groups of KV the keys are made of names and hashes. A part that has moved already is a miss:
 * the prefix is shorter for a while. */
static void keys_add_part(struct shard_keys *k, struct span name, struct span hash) {
    char text[STORE_KEY_MAX];
    if (name.len + hash.len > sizeof(text)) return;
    memcpy(text, name.data, name.len);
    memcpy(text + name.len, hash.data, hash.len);
    struct span key = span_of(text, name.len + hash.len);
    if (part_is_here(key))
        k->here++;
    else
        keys_add(k, key);
}

/* As table_keys_part. */
static size_t keys_add_groups(struct shard_keys *k, size_t argc, size_t from, size_t most) {
    uint64_t n;
    if (k->groups_at >= argc || !span_to_u64(k->argv[1], &n)) return 0;
    size_t all = k->groups * (size_t)n, to = from + min_u64(most, all - from);
    for (size_t i = from; i < to; i++)
        keys_add_part(k, k->argv[k->groups_at + i / n * WIRE_KV_GROUP_WORDS], k->argv[2 + i % n]);
    return all;
}

/* Those of a node, and those that end what this master gave: they concern nobody else. */
static bool is_local(const struct cmd *cmd) {
    switch (cmd->id) {
    case WIRE_release:
    case WIRE_putrevoke:
    case WIRE_mputrevoke:
    case WIRE_node_evicted:
    case WIRE_node_weigh:
    case WIRE_node_offer:
    case WIRE_cluster_relinquish: return true;
    default: return cmd->keys[0].flags == 0;
    }
}

/* shard_refuses is asked for each key; PUTSTART, as it may be a mover's. */
static bool answers_each(const struct cmd *cmd) {
    switch (cmd->id) {
    case WIRE_putstart:
    case WIRE_mputstart:
    case WIRE_putend:
    case WIRE_mputend:
    case WIRE_mgetreplicas:
    case WIRE_mexists: return true;
    default: return false;
    }
}

/* The next request. */
static void keys_begin(struct shard_keys *k, const struct cmd *cmd, const struct span *argv,
                       size_t argc) {
    k->cmd = cmd;
    k->argv = argv;
    k->groups_at = table_kv_groups(cmd, argv, argc, &k->groups);
}

/* Of its keys n, from the one numbered from on. Returns how many it has. */
static size_t keys_of(struct shard_keys *k, size_t argc, size_t from, size_t n) {
    if (is_local(k->cmd)) return 0;
    if (k->groups_at > 0) return keys_add_groups(k, argc, from, n);
    if (answers_each(k->cmd)) return 0;
    int64_t all = table_keys_part(k->cmd, k->argv, argc, from, n, keys_note, k);
    return all > 0 ? (size_t)all : 0;
}

size_t shard_keys_most(const struct cmd *cmd, const struct span *argv, size_t argc) {
    size_t groups;
    uint64_t n;
    if (is_local(cmd) || cmd->flags & CMD_MODULE) return 0;
    if (table_kv_groups(cmd, argv, argc, &groups) > 0)
        return span_to_u64(argv[1], &n) ? (size_t)n * groups : 0;
    return answers_each(cmd) ? 0 : argc;
}

/* ASKING is for the next command, or the next transaction. */
static void asking_take(struct client *c, const struct cmd *cmd) {
    unsigned *flags = &c->io->flags;
    c->asking = (*flags & CLIENT_ASKING) != 0;
    bool goes_on = cmd->id == WIRE_multi ||
                   (*flags & CLIENT_MULTI && cmd->id != WIRE_exec && cmd->id != WIRE_discard);
    if (!goes_on) *flags &= ~(unsigned)CLIENT_ASKING;
}

/* Commands of modules may go with them. */
static uint64_t all_changes(void) {
    return changes + table_changes;
}

/* false: answered. */
static bool keys_admitted(struct client *c, const struct shard_keys *k) {
    if (LIKELY(k->elsewhere == 0)) return true;
    if (k->first.where > KEY_ASK || (k->here == 0 && !k->crosses))
        verdict_answer(c, &k->first);
    else if (k->first.where == KEY_ASK && !k->crosses)
        reply_later(c, REPLY_LATER_MS, "some of the keys have moved to another master already");
    else
        reply_error(c, "-CROSSSLOT Keys in request don't hash to the same slot: they are of "
                       "several masters. Ask each for its own, or give keys that belong together "
                       "one {tag}");
    return false;
}

static bool keys_all_admitted(struct client *c, const struct cmd *cmd) {
    struct shard_keys k = {.client = c};
    const struct queued *at = NULL;
    const struct span *argv = c->argv;
    size_t argc = c->argc;
    if (cmd->id != WIRE_exec) {
        keys_begin(&k, cmd, argv, argc);
        (void)keys_of(&k, argc, 0, SIZE_MAX);
        return keys_admitted(c, &k);
    }
    while (multi_next(c, &at, &cmd, &argv, &argc)) {
        keys_begin(&k, cmd, argv, argc);
        (void)keys_of(&k, argc, 0, SIZE_MAX);
    }
    c->shard_changes = all_changes();
    return keys_admitted(c, &k);
}

bool shard_admits(struct client *c, const struct cmd *cmd) {
    if (!(c->io->flags & CLIENT_EXEC))
        asking_take(c, cmd);
    else if (c->shard_changes == all_changes() && shard_is_long(c, cmd))
        return true; /* EXEC was told so */
    return keys_all_admitted(c, cmd);
}

/* --- a request with many keys --- */

struct shard_look {
    struct client *client;
    const struct cmd *cmd;
    struct shard_keys keys;
    const struct queued *queued; /* EXEC's; argc of it */
    size_t argc, from;
    uint64_t changes; /* when it began; once there are others, all of it is looked at anew */
};

bool shard_is_long(const struct client *c, const struct cmd *cmd) {
    size_t most =
        cmd->id == WIRE_exec ? multi_keys_most(c) : shard_keys_most(cmd, c->argv, c->argc);
    return most > job_quota();
}

/* Arguments move between slices. */
static void look_argv(struct shard_look *l) {
    if (l->cmd->id == WIRE_exec) return;
    l->keys.argv = l->client->argv;
    l->argc = l->client->argc;
}

/* false: there is nothing more. */
static bool look_next(struct shard_look *l) {
    const struct cmd *cmd;
    const struct span *argv;
    if (l->cmd->id != WIRE_exec || !multi_next(l->client, &l->queued, &cmd, &argv, &l->argc))
        return false;
    keys_begin(&l->keys, cmd, argv, l->argc);
    l->from = 0;
    return true;
}

struct shard_look *shard_look_begin(struct client *c, const struct cmd *cmd) {
    struct shard_look *l = xcalloc(1, sizeof(*l));
    asking_take(c, cmd);
    *l = (struct shard_look){
        .client = c, .cmd = cmd, .keys.client = c, .argc = c->argc, .changes = all_changes()};
    if (cmd->id != WIRE_exec)
        keys_begin(&l->keys, cmd, c->argv, c->argc);
    else
        (void)look_next(l);
    return l;
}

bool shard_look_step(struct shard_look *l, unsigned *budget) {
    look_argv(l);
    while (*budget > 0 && l->changes == all_changes()) {
        size_t all = keys_of(&l->keys, l->argc, l->from, *budget);
        size_t n = min_u64(*budget, all - l->from);
        l->from += n;
        spend(budget, (unsigned)n + (n == 0));
        if (l->from == all && !look_next(l)) return true;
    }
    return l->changes != all_changes();
}

bool shard_look_admits(const struct shard_look *l) {
    struct client *c = l->client;
    if (l->changes != all_changes()) return keys_all_admitted(c, l->cmd);
    c->shard_changes = all_changes();
    return keys_admitted(c, &l->keys);
}

void shard_look_end(struct shard_look **l_p) {
    free(*l_p);
    *l_p = NULL;
}

void shard_key_left(void) {
    changes++;
}

/* --- the map --- */

static void asks_set(void) {
    shard_asks = shard_map != NULL || awaited;
    changes++;
}

void shard_await(bool awaits) {
    awaited = awaits;
    asks_set();
    waiters_wake_all();
}

bool shard_awaits(void) {
    return awaited;
}

void shard_succeed(const struct slot_server *leader) {
    succeeded = leader != NULL;
    if (leader != NULL) successor = *leader;
    changes++;
    waiters_wake_all();
}

const struct slot_server *shard_successor(void) {
    return succeeded ? &successor : NULL;
}

bool shard_is_ignorant(uint64_t epoch) {
    if (shard_map == NULL) return true;
    return shard_map->epoch < epoch && shard_map->shards == 1;
}

static void map_take(struct slot_map *map, unsigned self) {
    struct slot_map *old = (struct slot_map *)(uintptr_t)shard_map; /* made below */
    bool loses = false;
    for (uint32_t slot = 0; map != NULL && slot < SLOT_COUNT && !loses; slot++)
        loses = map->owner[slot] != self && (old == NULL || old->owner[slot] == shard_self);
    shard_map = map;
    shard_self = self;
    asks_set();
    slot_map_destroy(&old);
    sweeping = map != NULL && (sweeping || loses);
    sweep_cursor = 0;
    waiters_wake_all(); /* what they wait for may come elsewhere */
}

void shard_set(const struct slot_map *map, unsigned self) {
    struct buf text = {NULL, 0, 0};
    if (map != NULL) {
        buf_printf(&text, "%s\n", map->shard[self].name);
        slot_map_write(map, &text);
    }
    struct slot_map *copy = map != NULL ? xmemdup(map, sizeof(*map)) : NULL;
    module_durable_own_set(MAP_NAME, span_of(text.data, text.len));
    map_take(copy, self);
    buf_free(&text);
}

void shard_load(void) {
    struct span value = module_durable_own(MAP_NAME), name;
    char error[SLOT_MAP_ERROR_SIZE] = "it does not begin with the name of a shard";
    const char *end = value.len > 0 ? memchr(value.data, '\n', value.len) : NULL;
    if (value.len == 0) {
        map_take(NULL, 0);
        return;
    }
    name = span_of(value.data, end != NULL ? (size_t)(end - value.data) : 0);
    struct slot_map *map =
        end != NULL ? slot_map_read(span_of(end + 1, value.len - name.len - 1), error) : NULL;
    unsigned self = map != NULL ? slot_map_shard(map, name) : SLOT_NOBODY;
    if (self == SLOT_NOBODY) {
        log_warning("The slot map of this server makes no sense: %s", error);
        slot_map_destroy(&map);
    }
    map_take(map, self);
}

/* --- what was left behind --- */

static void sweep_see(void *arg, struct object *o) {
    unsigned *budget = arg;
    struct span key = store_object_key(o);
    uint32_t len = (uint32_t)key.len, slot = slot_of_key(key);
    spend(budget, 1);
    if (shard_map->owner[slot] == shard_self || shard_map->target[slot] == shard_self) return;
    buf_append(&swept, &len, sizeof(len));
    buf_append(&swept, key.data, key.len);
}

bool shard_background(unsigned *budget) {
    if (LIKELY(!sweeping) || above.master(NULL) != NULL) return false;
    while (sweeping && *budget > 0) {
        sweep_cursor = store_scan_all(books, sweep_cursor, sweep_see, budget);
        for (size_t at = 0; at < swept.len;) {
            uint32_t len;
            memcpy(&len, swept.data + at, sizeof(len));
            (void)store_remove(books, span_of(swept.data + at + sizeof(len), len));
            at += sizeof(len) + len;
        }
        buf_clear(&swept);
        sweeping = sweep_cursor != 0;
    }
    return sweeping;
}

void shard_deinit(void) {
    struct slot_map *old = (struct slot_map *)(uintptr_t)shard_map;
    shard_map = NULL;
    slot_map_destroy(&old);
    buf_free(&swept);
    sweeping = awaited = succeeded = false;
    asks_set();
}
