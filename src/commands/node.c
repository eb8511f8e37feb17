/* NODE JOIN, UP, LIST, INFO, DRAIN, MAINTENANCE, LEAVE: who is in the pool. What nodes and master
 * have to say to each other all the time is in node_work.c. */
#include "front/families.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "base/clock.h"
#include "base/hex.h"
#include "front/client.h"
#include "config/config.h"
#include "front/each.h"
#include "front/shard.h"
#include "inband/later.h"
#include "commands/nodes.h"
#include "front/waiters.h"
#include "wire/options.h"

enum { LIST_UNITS = 16 }; /* of work, for a node in a list */
#define UP_AGAIN_MS 50u   /* for a node that has fences to confirm */

/* --- JOIN and UP --- */

/* Where this connection comes from, without the port; "" for a unix socket. */
static void peer_address(struct client *c, char *out, size_t size) {
    char peer[128];
    struct span host = {"", 0};
    uint16_t port;
    client_peer(c, peer, sizeof(peer));
    if (!(c->io->flags & CLIENT_UNIX)) span_to_address(span_str(peer), &host, &port);
    snprintf(out, size, "%.*s", (int)host.len, host.data);
}

void cmd_node_join(struct client *c) {
    char address[64], id[33];
    const char *why = "";
    struct cluster_node *n;
    struct cluster_node_info info;
    struct wire_join args = {0};
    if (!arg_bind(c, &args)) return;
    if (shard_awaits()) { /* what its disks have may be another master's by now */
        reply_error(c, SHARD_AWAITS);
        return;
    }
    struct cluster_join j = {.name = c->argv[args.node.name],
                             .address = address,
                             .session = c->id,
                             .machine = c->argv[args.machine],
                             .rack = arg_word(c, args.rack),
                             .version = arg_word(c, args.version)};
    hex_decode(c->argv[args.node.instance], j.instance, sizeof(j.instance));
    peer_address(c, address, sizeof(address));
    tarn_status status = cluster_node_join(&j, &n, &why);
    if (status != TARN_OK) {
        reply_why(c, status, why);
        return;
    }
    c->of_node = true;
    cluster_node_get(n, &info);
    sodium_bin2hex(id, sizeof(id), cluster_id(), 16);
    reply_map(c, 8);
    field_int(c, "node-id", info.id);
    field_int(c, "master-epoch", server.master_epoch);
    reply_bulk_str(c, "grant-key");
    reply_bulk(c, span_of(info.key, GRANT_KEY_SIZE));
    /* fresh: what a node derives from it must not be late */
    field_int(c, "clock", clock_mono_ms());
    field_int(c, "heartbeat", config->node_heartbeat_ms);
    field_int(c, "node-timeout", config->node_timeout_ms);
    field_int(c, "max-lease", config->max_lease_ms);
    field_str(c, "cluster-id", id);
}

void cmd_node_up(struct client *c) {
    struct wire_node args = {0};
    struct cluster_node *n = arg_bind(c, &args) ? node_arg(c) : NULL;
    if (n == NULL) return;
    if (cluster_node_up(n) != TARN_OK) {
        reply_later(c, UP_AGAIN_MS, "there is something to do before: NODE HEARTBEAT tells");
        return;
    }
    later_wake();
    waiters_wake_all(); /* for keys that are readable again */
    reply_ok(c);
}

/* --- LIST and INFO --- */

static const char *shown_state(const struct cluster_node_info *n) {
    if (n->state != CLUSTER_NODE_UP) return cluster_node_state_name(n->state);
    return n->draining ? "draining" : n->maintenance ? "maintenance" : "up";
}

/* Sums over the segments of a node. */
struct node_space {
    uint64_t segments, size, used, quarantined, ssd_size, ssd_used, file_size, file_used, replicas;
    uint64_t left_objects, left_bytes, moved_objects, moved_bytes;
};

static void sum_segments(const struct cluster_node_info *n, struct node_space *sum) {
    *sum = (struct node_space){.segments = n->n_segments};
    for (size_t i = 0; i < n->n_segments; i++) {
        struct store_segment_info s;
        struct cluster_segment g;
        if (!store_segment_get(books, n->segments[i], &s) || !cluster_segment_get(s.id, &g))
            continue;
        uint64_t *size = s.tier == STORE_TIER_MEMORY ? &sum->size
                         : s.tier == STORE_TIER_SSD  ? &sum->ssd_size
                                                     : &sum->file_size;
        uint64_t *used = s.tier == STORE_TIER_MEMORY ? &sum->used
                         : s.tier == STORE_TIER_SSD  ? &sum->ssd_used
                                                     : &sum->file_used;
        *size += s.size;
        *used += s.used;
        sum->quarantined += s.quarantined;
        sum->replicas += s.replicas;
        if (!g.draining) continue;
        sum->left_objects += s.replicas;
        sum->left_bytes += s.used;
        sum->moved_objects += g.moved_objects;
        sum->moved_bytes += g.moved_bytes;
    }
}

enum { NODE_FIELDS = 29 };
static void node_fields(struct client *c, const struct cluster_node_info *n) {
    struct node_space s;
    char instance[2 * CLUSTER_INSTANCE_SIZE + 1];
    sum_segments(n, &s);
    sodium_bin2hex(instance, sizeof(instance), n->instance, CLUSTER_INSTANCE_SIZE);
    field_str(c, "name", n->name);
    field_int(c, "id", n->id);
    field_str(c, "state", shown_state(n));
    field_str(c, "machine", n->machine);
    field_str(c, "rack", n->rack);
    field_str(c, "address", n->address);
    field_str(c, "version", n->version);
    field_str(c, "instance", instance);
    field_int(c, "segments", s.segments);
    field_int(c, "size", s.size);
    field_int(c, "used", s.used);
    field_int(c, "free", s.size > s.used + s.quarantined ? s.size - s.used - s.quarantined : 0);
    field_int(c, "ssd-size", s.ssd_size);
    field_int(c, "ssd-used", s.ssd_used);
    field_int(c, "file-size", s.file_size);
    field_int(c, "file-used", s.file_used);
    field_int(c, "replicas", s.replicas);
    field_int(c, "maintenance", n->maintenance);
    field_int(c, "draining", n->draining);
    field_int(c, "drain-left-objects", s.left_objects);
    field_int(c, "drain-left-bytes", s.left_bytes);
    field_int(c, "drain-moved-objects", s.moved_objects);
    field_int(c, "drain-moved-bytes", s.moved_bytes);
    field_int(c, "tasks", n->tasks_sent + n->tasks_waiting);
    field_int(c, "fences-pending", n->fences_pending);
    field_int(c, "joins", n->joins);
    field_int(c, "state-ms", turn.mono_ms - n->since_ms);
    field_int(c, "silent-ms", turn.mono_ms - n->seen_ms);
    field_int(c, "connected", n->connected);
}

struct node_list {
    struct each each;
    uint32_t cursor;
    void *cookie;
};

static enum each_next node_list_one(struct client *c, struct each *each, unsigned *budget) {
    struct cluster_node_info info;
    struct cluster_node *n = cluster_node_next(&CONTAINER_OF(each, struct node_list, each)->cursor);
    spend(budget, LIST_UNITS - 1);
    if (n == NULL) return EACH_OVER;
    cluster_node_get(n, &info);
    reply_map(c, NODE_FIELDS);
    node_fields(c, &info);
    return EACH_ON;
}

static void node_list_end(struct client *c, struct each *each) {
    reply_deferred_array(c, CONTAINER_OF(each, struct node_list, each)->cookie, each->at);
}

void cmd_node_list(struct client *c) {
    struct node_list l = {.each = {.one = node_list_one, .end = node_list_end, .n = EACH_ENDLESS},
                          .cookie = reply_deferred(c)};
    each_run(c, &l.each, sizeof(l));
}

static void reply_segment_names(struct client *c, const struct cluster_node_info *n) {
    struct cluster_segment g;
    void *cookie = reply_deferred(c);
    size_t count = 0;
    for (size_t i = 0; i < n->n_segments; i++) {
        if (!cluster_segment_get(n->segments[i], &g)) continue;
        reply_bulk_str(c, g.name);
        count++;
    }
    reply_deferred_array(c, cookie, count);
}

/* The lines of a report that begin so. */
static void reply_lines(struct client *c, struct span text, struct span begin) {
    void *cookie = reply_deferred(c);
    size_t n = 0;
    while (text.len > 0) {
        const char *end = memchr(text.data, '\n', text.len);
        size_t len = end != NULL ? (size_t)(end - text.data) : text.len, used = len + (end != NULL);
        if (len >= begin.len && memcmp(text.data, begin.data, begin.len) == 0) {
            reply_bulk(c, span_of(text.data, len));
            n++;
        }
        text = span_of(text.data + used, text.len - used);
    }
    reply_deferred_array(c, cookie, n);
}

/* What it has said last of transports of modules, in short. The whole is for the modules'
 * commands. */
static void reply_transports(struct client *c, const struct cluster_node *node) {
    struct cluster_report r;
    void *cookie = reply_deferred(c);
    size_t n = 0;
    for (; cluster_node_report_get(node, n, &r); n++) {
        reply_map(c, 3);
        field_str(c, "transport", r.scheme);
        field_int(c, "age-ms", r.age_ms);
        reply_bulk_str(c, "devices");
        reply_lines(c, r.text, SPAN("device "));
    }
    reply_deferred_array(c, cookie, n);
}

void cmd_node_info(struct client *c) {
    struct cluster_node_info n;
    struct cluster_node *node = node_named(c);
    if (node == NULL) return;
    cluster_node_get(node, &n);
    reply_map(c, NODE_FIELDS + 7);
    node_fields(c, &n);
    field_int(c, "tasks-sent", n.tasks_sent);
    field_int(c, "tasks-waiting", n.tasks_waiting);
    field_int(c, "drops-pending", n.drops_pending);
    field_int(c, "drops-lost", n.drops_lost);
    reply_bulk_str(c, "segment-names");
    reply_segment_names(c, &n);
    reply_bulk_str(c, "transports");
    reply_transports(c, node);
    reply_bulk_str(c, "stats");
    reply_map(c, n.n_stats);
    for (size_t i = 0; i < n.n_stats; i++) field_int(c, n.stats[i].name, n.stats[i].value);
}

/* --- what administrators want --- */

static void reply_done(struct client *c, tarn_status status) {
    if (status == TARN_OK)
        reply_ok(c);
    else
        reply_error(c, "the node is leaving the pool already");
}

void cmd_node_drain(struct client *c) {
    struct wire_drain args = {0};
    struct cluster_node *n = arg_bind(c, &args) ? node_named(c) : NULL;
    if (n != NULL) reply_done(c, cluster_node_drain(n, !args.cancel));
}

void cmd_node_maintenance(struct client *c) {
    struct wire_drain args = {0};
    struct cluster_node *n = arg_bind(c, &args) ? node_named(c) : NULL;
    if (n != NULL) reply_done(c, cluster_node_maintenance(n, args.maintenance == WIRE_YES));
}

void cmd_node_leave(struct client *c) {
    struct cluster_node *n = node_named(c);
    if (n == NULL) return;
    cluster_node_leave(n);
    reply_ok(c);
}
