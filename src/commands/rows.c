/* Lists that are longer than INFO shows: nodes, segments with their maps, tasks, clients, prefixes,
 * alarms, what the doctor says, and the last lines of the log. */
#include "commands/rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "base/clock.h"
#include "cluster/cluster.h"
#include "commands/alarms.h"
#include "commands/info.h"
#include "commands/nodes.h"
#include "front/acl_users.h"
#include "front/client.h"
#include "front/table.h"
#include "module/events.h"
#include "store/figures.h"
#include "store/map.h"
#include "store/top.h"

enum {
    NODES_A_CALL = 32,
    SEGMENTS_A_CALL = 16,
    TASKS_A_CALL = 64,
    CLIENTS_A_CALL = 64,
    MAP_STEP = 16384, /* blocks in a call */
    MAP_KEPT_MS = 1000,
    MAP_SHARE = 50 /* of the loop's time at most one part in so many is for maps */
};

static enum tarn_rows rows_of_nodes(uint64_t *from, struct figure_walk *f) {
    uint32_t cursor = (uint32_t)*from;
    bool more = info_each_node(f, &cursor, NODES_A_CALL);
    *from = cursor;
    return more ? TARN_ROWS_MORE : TARN_ROWS_OVER;
}

/* --- segments, with a map of each --- */

static struct {
    struct store_map *shown, *making; /* NULL: none */
    const struct store *of;
    uint64_t made_ms, stepped_ms, took_ns, taking_ns;
} map;

static bool map_is_fresh(void) {
    if (map.of != books) {
        store_map_destroy(&map.shown);
        store_map_destroy(&map.making);
        map.of = books;
    }
    uint64_t keep_ms = max_u64(MAP_KEPT_MS, map.took_ns / 1000000 * MAP_SHARE);
    return map.shown != NULL && map.making == NULL && turn.mono_ms - map.made_ms < keep_ms;
}

/* true: there is one. */
static bool map_make(void) {
    if (map_is_fresh()) return true;
    uint64_t begin = clock_mono_ns();
    /* What somebody began and did not wait for tells of what was then. */
    if (turn.mono_ms - map.stepped_ms > MAP_KEPT_MS) store_map_destroy(&map.making);
    map.stepped_ms = turn.mono_ms;
    if (map.making == NULL) {
        map.making = store_map_create(books, MAP_BLOCKS);
        map.taking_ns = 0;
    }
    bool made = store_map_step(map.making, books, MAP_STEP);
    map.taking_ns += clock_mono_ns() - begin;
    if (!made) return false;
    store_map_destroy(&map.shown);
    map.shown = map.making;
    map.making = NULL;
    map.made_ms = turn.mono_ms;
    map.took_ns = map.taking_ns;
    return true;
}

/* Two hexadecimal digits for each bucket. false: nothing of that kind. */
static bool map_text(const struct store_segment_info *g, enum map_kind kind, char *text,
                     uint64_t *bytes_p) {
    static const char digits[] = "0123456789abcdef";
    uint8_t share[MAP_BUCKETS_MAX];
    unsigned n =
        map.shown != NULL ? store_map_row(map.shown, g->id, g->epoch, kind, share, bytes_p) : 0;
    if (n == 0 || *bytes_p == 0) return false;
    for (unsigned i = 0; i < n; i++) {
        text[2 * i] = digits[share[i] >> 4];
        text[2 * i + 1] = digits[share[i] & 15];
    }
    text[2 * n] = '\0';
    return true;
}

static void show_map(struct figure_walk *f, const struct store_segment_info *g) {
    static const char *const names[MAP_KINDS] = {"used", "leased", "quarantined", "written"};
    char text[2 * MAP_BUCKETS_MAX + 1];
    uint64_t bytes;
    if (map.shown != NULL && store_map_one_in(map.shown) > 1)
        FIGURE(f, GAUGE, map_one_in, "the map is an estimate from one block in so many",
               store_map_one_in(map.shown));
    for (int kind = 0; kind < MAP_KINDS; kind++) {
        if (!map_text(g, (enum map_kind)kind, text, &bytes)) continue;
        FIGURE_OF(f, BYTES, bytes_, "in objects that nobody reads, leased, quarantined, written",
                  "kind", names[kind], bytes);
        FIGURE_OF(f, TEXT, map_, "... by place: two digits for each part, ff is all of it", "kind",
                  names[kind], (const char *)text);
    }
}

static void show_more(struct figure_walk *f, const struct store_segment_info *g,
                      const struct cluster_segment *at) {
    FIGURE(f, TEXT, machine, "of its host", at->machine);
    FIGURE(f, TEXT, rack, "of its host", at->rack);
    FIGURE(f, BYTES, evictable, "of used, what an eviction could free now", g->evictable);
    FIGURE(f, GAUGE, replicas, "in it", g->replicas);
    if (at->draining) {
        FIGURE(f, GAUGE, drain_moved_objects, "moved away since its drain began",
               at->moved_objects);
        FIGURE(f, BYTES, drain_moved_bytes, "... their bytes", at->moved_bytes);
        FIGURE(f, GAUGE, drain_waiting, "tasks of its drain under way", at->waiting);
        FIGURE(f, TEXT, drain_error, "why the last object could not be moved", at->drain_error);
    }
    show_map(f, g);
}

static enum tarn_rows rows_of_segments(uint64_t *from, struct figure_walk *f) {
    /* The first call waits for it, the others show the same. */
    if (*from == 0 && !map_make()) return TARN_ROWS_MORE;
    uint32_t id = (uint32_t)*from, limit = store_segment_limit(books);
    for (unsigned n = 0; id < limit && n < SEGMENTS_A_CALL; id++) {
        struct store_segment_info g;
        struct cluster_segment at;
        if (!store_segment_get(books, id, &g) || !cluster_segment_get(id, &at)) continue;
        info_segment(f, &g, &at, show_more);
        n++;
    }
    *from = id;
    return id < limit ? TARN_ROWS_MORE : TARN_ROWS_OVER;
}

/* --- tasks --- */

struct task_rows {
    struct figure_walk *walk;
    unsigned n;
    bool more;
};

static const char *task_segment(uint32_t id) {
    struct cluster_segment g;
    return id != STORE_SEGMENT_ANY && cluster_segment_get(id, &g) ? g.name : "";
}

static bool one_task_row(void *arg, const struct cluster_task_info *t) {
    struct task_rows *rows = arg;
    struct figure_walk *f = rows->walk;
    char id[24], key[CLUSTER_TASK_KEY_SHOWN + 1];
    rows->more = rows->n == TASKS_A_CALL;
    if (rows->more) return false;
    rows->n++;
    snprintf(id, sizeof(id), "%llu", (unsigned long long)t->id);
    snprintf(key, sizeof(key), "%.*s", (int)t->key_len, t->key);
    figures_group(f, "task", "task", id);
    FIGURE(f, TEXT, kind, "copy, move, store", cluster_task_kind_name(t->kind));
    FIGURE(f, TEXT, reason, "it was begun for", cluster_task_reason_name(t->reason));
    FIGURE(f, TEXT, state, "queued, room, sent, done, failed, canceled",
           cluster_task_state_name(t->state));
    FIGURE(f, TEXT, key, "of the object, its first bytes", (const char *)key);
    FIGURE(f, BYTES, bytes, "of the object", t->bytes);
    FIGURE(f, TEXT, from, "segment", task_segment(t->from));
    FIGURE(f, TEXT, to, "segment", task_segment(t->to));
    FIGURE(f, TEXT, node, "that does it", t->node);
    FIGURE(f, GAUGE, tries, "so far", t->tries);
    FIGURE(f, MS, age, "since it was begun", t->age_ms);
    FIGURE(f, TEXT, error, "of the last try", t->error == TARN_OK ? "" : task_error_text(t->error));
    figures_group_end(f);
    return true;
}

static enum tarn_rows rows_of_tasks(uint64_t *from, struct figure_walk *f) {
    struct task_rows rows = {.walk = f};
    cluster_tasks_each(*from, one_task_row, &rows);
    *from += rows.n;
    return rows.more ? TARN_ROWS_MORE : TARN_ROWS_OVER;
}

/* --- clients --- */

static const char *client_kind(const struct client *c) {
    if (c->of_node) return "node";
    if (c->io->flags & CLIENT_REPLICA) return "replica";
    if (c->io->flags & CLIENT_MONITOR) return "monitor";
    return c->io->flags & CLIENT_PUBSUB ? "pubsub" : "client";
}

static const char *text_or_none(const char *text) {
    return text != NULL ? text : "";
}

static void show_client(struct figure_walk *f, const struct client *c) {
    const struct client_io *io = c->io;
    char id[24], peer[128];
    snprintf(id, sizeof(id), "%llu", (unsigned long long)c->id);
    client_peer(c, peer, sizeof(peer));
    figures_group(f, "client", "client", id);
    FIGURE(f, TEXT, kind, "client, node, replica, pubsub, monitor", client_kind(c));
    FIGURE(f, TEXT, addr, "it connects from", (const char *)peer);
    FIGURE(f, TEXT, name, "it gave itself (CLIENT SETNAME)", text_or_none(io->name));
    FIGURE(f, TEXT, user, "it is", acl_user_name(c->user));
    FIGURE(f, TEXT, library, "its library", text_or_none(io->lib_name));
    FIGURE(f, TEXT, library_version, "of the library", text_or_none(io->lib_ver));
    FIGURE(f, TEXT, host, "name of the segments' host that it is", (const char *)c->host_name);
    FIGURE(f, TEXT, rack, "it is in", (const char *)c->rack);
    FIGURE(f, GAUGE, tls, "1: encrypted", io->tls != NULL);
    FIGURE(f, SECONDS, age, "since it connected", (turn.mono_ms - io->created_ms) / 1000);
    FIGURE(f, SECONDS, idle, "since its last command", (turn.mono_ms - io->last_ms) / 1000);
    FIGURE(f, COUNTER, commands, "it has sent", io->commands);
    FIGURE(f, TEXT, last_command, "by name",
           io->last_cmd != NULL ? table_stat(io->last_cmd)->name : "");
    FIGURE(f, GAUGE, waits, "1: for the end of a command", c->job != NULL);
    FIGURE(f, COUNTER_BYTES, bytes_in, "received from it", io->bytes_in);
    FIGURE(f, COUNTER_BYTES, bytes_out, "sent to it", io->bytes_out);
    FIGURE(f, GAUGE, leases, "it holds", store_session_leases(books, c->id));
    FIGURE(f, BYTES, unread, "of its requests, not run yet", client_input_held(c));
    FIGURE(f, BYTES, unsent, "of replies it has not taken", client_unsent(c));
    FIGURE(f, BYTES, memory, "that it takes here", client_memory(c));
    figures_group_end(f);
}

static int compare_ids(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The lowest ids so far, a heap with the highest on top. */
struct lowest {
    uint64_t id[CLIENTS_A_CALL];
    unsigned n;
};

static void lowest_add(struct lowest *l, uint64_t id) {
    unsigned at = l->n++;
    for (; at > 0 && l->id[(at - 1) / 2] < id; at = (at - 1) / 2) l->id[at] = l->id[(at - 1) / 2];
    l->id[at] = id;
}

/* In place of the highest. */
static void lowest_replace(struct lowest *l, uint64_t id) {
    unsigned at = 0;
    for (unsigned child; (child = 2 * at + 1) < l->n; at = child) {
        child += child + 1 < l->n && l->id[child + 1] > l->id[child];
        if (l->id[child] <= id) break;
        l->id[at] = l->id[child];
    }
    l->id[at] = id;
}

/* Those that come next: the list is in another order, which changes. true: there are more. */
static bool clients_next(uint64_t from, struct lowest *l) {
    bool more = false;
    CLIENTS_EACH(c) {
        if (c->id <= from || c->io->flags & CLIENT_CLOSE_SOON) continue;
        if (l->n < CLIENTS_A_CALL) {
            lowest_add(l, c->id);
            continue;
        }
        more = true;
        if (c->id < l->id[0]) lowest_replace(l, c->id);
    }
    qsort(l->id, l->n, sizeof(*l->id), compare_ids);
    return more;
}

static enum tarn_rows rows_of_clients(uint64_t *from, struct figure_walk *f) {
    struct lowest l = {.n = 0};
    bool more = clients_next(*from, &l);
    for (unsigned i = 0; i < l.n; i++) show_client(f, client_find(l.id[i]));
    if (l.n > 0) *from = l.id[l.n - 1];
    return more ? TARN_ROWS_MORE : TARN_ROWS_OVER;
}

/* --- prefixes, alarms, the doctor --- */

static enum tarn_rows rows_of_prefixes(uint64_t *from, struct figure_walk *f) {
    struct top_entry top[TOP_SLOTS];
    char prefix[TOP_NAME_MAX + 1];
    if (*from >= STORE_TOPS) return TARN_ROWS_OVER;
    const char *by = store_top_name((enum store_top) * from);
    size_t n = store_get_top(books, (enum store_top)(*from)++, top, TOP_SLOTS);
    for (size_t i = 0; i < n; i++) {
        snprintf(prefix, sizeof(prefix), "%.*s", (int)top[i].name_len, top[i].name);
        figures_group(f, "prefix", "prefix", prefix);
        FIGURE(f, TEXT, by, "hits, misses, bytes", by);
        FIGURE(f, GAUGE, count, "of those, halved every ten minutes", top[i].count);
        FIGURE(f, GAUGE, error, "by which count may be too high", top[i].error);
        figures_group_end(f);
    }
    return *from < STORE_TOPS ? TARN_ROWS_MORE : TARN_ROWS_OVER;
}

static void one_alarm(void *arg, const char *name, const char *text, uint64_t since_ms) {
    struct figure_walk *f = arg;
    figures_group(f, "alarm", "alarm", name);
    FIGURE(f, TEXT, text, "what is wrong, and what to do", text);
    FIGURE(f, MS, since, "it began", turn.mono_ms - since_ms);
    figures_group_end(f);
}

static enum tarn_rows rows_of_alarms(uint64_t *from, struct figure_walk *f) {
    (void)from;
    alarms_each(one_alarm, f);
    return TARN_ROWS_OVER;
}

static enum tarn_rows rows_of_doctor(uint64_t *from, struct figure_walk *f) {
    struct buf text;
    char number[24];
    (void)from;
    info_doctor(&text);
    buf_append_char(&text, '\0');
    unsigned n = 0;
    for (char *line = text.data, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        *end = '\0';
        snprintf(number, sizeof(number), "%u", ++n);
        figures_group(f, "line", "line", number);
        FIGURE(f, TEXT, text, "a sentence of CACHE DOCTOR", (const char *)line);
        figures_group_end(f);
    }
    buf_free(&text);
    return TARN_ROWS_OVER;
}

/* --- all of them --- */

static const struct table {
    const char *name;
    bool of_books;
    enum tarn_rows (*next)(uint64_t *from, struct figure_walk *f);
} tables[] = {
    {"nodes", true, rows_of_nodes},       {"segments", true, rows_of_segments},
    {"tasks", true, rows_of_tasks},       {"clients", true, rows_of_clients},
    {"prefixes", true, rows_of_prefixes}, {"alarms", true, rows_of_alarms},
    {"doctor", true, rows_of_doctor},     {"events", false, module_events_next},
};

enum tarn_rows rows_next(const char *table, uint64_t *from, struct figure_walk *walk) {
    for (size_t i = 0; i < ARRAY_LEN(tables); i++) {
        if (strcmp(table, tables[i].name) != 0) continue;
        return tables[i].of_books && books == NULL ? TARN_ROWS_OVER : tables[i].next(from, walk);
    }
    return TARN_ROWS_NO_TABLE;
}
