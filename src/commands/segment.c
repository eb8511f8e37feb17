/* SEGMENT MOUNT, KEYS, UNMOUNT, LIST, INFO, DRAIN: what the pool consists of, and how to reach its
 * bytes. libtarn fetches INFO once per segment and epoch. */
#include "front/families.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "base/hex.h"
#include "front/acl_users.h"
#include "front/client.h"
#include "config/config.h"
#include "front/core.h"
#include "front/each.h"
#include "front/location.h"
#include "commands/nodes.h"
#include "front/reach.h"
#include "host/host.h"
#include "wire/options.h"
#include "front/embedded.h"

static_assert(WIRE_ENDPOINTS_MAX == CLUSTER_ENDPOINTS_MAX && WIRE_KEYS_MAX == CLUSTER_KEYS_MAX,
              "what is bound fits");
enum { KEY_ARGS = 3 };   /* uri, read-key, write-key */
enum { LIST_UNITS = 8 }; /* of work, for a segment in a list */
enum { GONE_CHECK_MS = 50 };

static uint64_t free_bytes(const struct store_segment_info *s) {
    uint64_t taken = s->used + s->quarantined;
    return s->size > taken ? s->size - taken : 0;
}

const char *segment_state_name(const struct store_segment_info *s,
                               const struct cluster_segment *g) {
    switch (s->state) {
    case SEGMENT_UP: return "up";
    case SEGMENT_READONLY: return g->drained ? "drained" : g->draining ? "draining" : "readonly";
    case SEGMENT_DOWN: return "down";
    case SEGMENT_LEAVING: return "leaving";
    }
    return "";
}

/* --- LIST --- */

/* What LIST and INFO both say. */
enum { COMMON_FIELDS = 16 };
static void common_fields(struct client *c, const struct store_segment_info *s,
                          const struct cluster_segment *g) {
    field_str(c, "name", s->name);
    field_int(c, "id", s->id);
    field_int(c, "epoch", s->epoch);
    field_int(c, "size", s->size);
    field_int(c, "used", s->used);
    field_int(c, "free", free_bytes(s));
    field_int(c, "largest_free", s->largest_free);
    field_int(c, "quarantined", s->quarantined);
    field_int(c, "evictable", s->evictable);
    field_int(c, "replicas", s->replicas);
    field_str(c, "tier", location_tier_name(s->tier));
    field_str(c, "host", g->machine);
    field_str(c, "node", g->node);
    field_str(c, "rack", g->rack);
    field_str(c, "state", segment_state_name(s, g));
    field_str(c, "directory", g->directory != NULL ? g->directory : "");
}

struct segment_list {
    struct each each;
    size_t n;
    void *cookie;
};

static enum each_next segment_list_one(struct client *c, struct each *each, unsigned *budget) {
    struct segment_list *l = CONTAINER_OF(each, struct segment_list, each);
    struct store_segment_info s;
    struct cluster_segment g;
    uint32_t id = (uint32_t)each->at;
    if (id >= store_segment_limit(books)) return EACH_OVER;
    spend(budget, LIST_UNITS - 1);
    if (!store_segment_get(books, id, &s) || !cluster_segment_get(id, &g)) return EACH_ON;
    reply_map(c, COMMON_FIELDS);
    common_fields(c, &s, &g);
    l->n++;
    return EACH_ON;
}

static void segment_list_end(struct client *c, struct each *each) {
    struct segment_list *l = CONTAINER_OF(each, struct segment_list, each);
    reply_deferred_array(c, l->cookie, l->n);
}

void cmd_segment_list(struct client *c) {
    struct segment_list l = {
        .each = {.one = segment_list_one, .end = segment_list_end, .n = EACH_ENDLESS},
        .cookie = reply_deferred(c)};
    each_run(c, &l.each, sizeof(l));
}

/* --- INFO --- */

static bool reply_attach(struct client *c, const char *name, enum grant_op op,
                         const struct store_segment_info *s, bool may) {
    uint8_t sealed[GRANT_SIZE];
    struct grant_extent whole = {s->id, s->epoch, 0, s->size};
    bool granted = may && s->tier == STORE_TIER_MEMORY && s->state != SEGMENT_LEAVING &&
                   location_seal(op, c->id, turn.mono_ms + LOCATION_ATTACH_MS, &whole, sealed);
    if (granted) c->io->flags |= CLIENT_GRANTED;
    reply_bulk_str(c, name);
    reply_bulk(c, span_of(sealed, granted ? sizeof(sealed) : 0));
    return granted;
}

/* Grants for the whole segment and keys to its memory. They go around the host and the keys of
 * single objects, so they are for users with the category @direct, and for what such a user may do
 * with values in the first place. */
static void reply_direct(struct client *c, const struct store_segment_info *s,
                         const struct cluster_segment *g, bool direct) {
    bool read = direct && acl_client_may(c, "getreplicas"),
         write = direct && acl_client_may(c, "putstart");
    bool may_read = reply_attach(c, "attach_read", GRANT_ATTACH_READ, s, read);
    bool may_write = reply_attach(c, "attach_write", GRANT_ATTACH_WRITE, s, write);
    reply_bulk_str(c, "keys");
    reach_reply_keys(c, g, direct, may_read, may_write);
}

static void field_content(struct client *c, const struct cluster_segment *g) {
    char hex[2 * CLUSTER_CONTENT_SIZE + 1];
    field_str(c, "content", sodium_bin2hex(hex, sizeof(hex), g->content, CLUSTER_CONTENT_SIZE));
}

void cmd_segment_info(struct client *c) {
    struct store_segment_info s;
    struct cluster_segment g;
    struct host_segment_info h = {.backing = "memfd", .numa_node = -1};
    if (!segment_arg(c, 2, &s)) return;
    if (!cluster_segment_get(s.id, &g)) {
        reply_status(c, TARN_ENOSEGMENT, NULL);
        return;
    }
    if (g.embedded && embedded.host != NULL) {
        host_segment_get(embedded.host, s.id, &h);
        g.backing = h.backing;
        g.huge = h.huge;
        g.numa_node = h.numa_node;
    }
    reply_map(c, COMMON_FIELDS + 15);
    common_fields(c, &s, &g);
    field_content(c, &g);
    field_int(c, "master_epoch", server.master_epoch);
    field_int(c, "free_runs", s.free_runs);
    field_str(c, "backing", g.backing);
    field_str(c, "huge_pages", g.huge ? "yes" : "no");
    reply_bulk_str(c, "numa_node");
    reply_int(c, g.numa_node);
    field_int(c, "moved_objects", g.moved_objects);
    field_int(c, "moved_bytes", g.moved_bytes);
    field_int(c, "moving", g.waiting);
    field_str(c, "drain_error", g.drain_error);
    bool direct = acl_client_may(c, "segment|attach");
    reply_bulk_str(c, "endpoints");
    reach_reply_endpoints(c, &g, direct);
    reply_direct(c, &s, &g, direct);
    reply_bulk_str(c, "transports");
    reach_reply_transports(c, &g, direct);
}

/* SEGMENT ATTACH segment: the part of INFO that is for users with @direct, who may be others than
 * those with @read. */
void cmd_segment_attach(struct client *c) {
    struct store_segment_info s;
    struct cluster_segment g;
    if (!segment_arg(c, 2, &s)) return;
    if (!cluster_segment_get(s.id, &g)) {
        reply_status(c, TARN_ENOSEGMENT, NULL);
        return;
    }
    reply_map(c, 7);
    field_int(c, "id", s.id);
    field_int(c, "epoch", s.epoch);
    field_content(c, &g);
    reply_bulk_str(c, "endpoints");
    reach_reply_endpoints(c, &g, true);
    reply_direct(c, &s, &g, true);
}

/* --- MOUNT --- */

/* Groups of uri, read-key and write-key. */
static void keys_args(const struct client *c, struct wire_list list,
                      struct cluster_key_told keys[CLUSTER_KEYS_MAX]) {
    for (size_t i = 0, at = list.at; i < list.n; i++, at += KEY_ARGS)
        keys[i] = (struct cluster_key_told){.uri = c->argv[at],
                                            .key = {c->argv[at + 1], c->argv[at + 2]}};
}

void cmd_segment_mount(struct client *c) {
    struct wire_mount args = {0};
    struct cluster_mounted mounted;
    struct cluster_key_told keys[CLUSTER_KEYS_MAX];
    const char *why = "";
    struct cluster_node *n = arg_bind(c, &args) ? node_arg(c) : NULL;
    if (n == NULL) return;
    struct cluster_mount m = {.name = c->argv[args.segment],
                              .tier = (enum store_tier)(args.tier - 1),
                              .size = args.size,
                              .backing = arg_word(c, args.backing),
                              .huge = args.huge == WIRE_YES,
                              .numa_node = (int)args.numa,
                              .directory = arg_word(c, args.directory),
                              .endpoints = &c->argv[args.endpoints.at],
                              .n_endpoints = args.endpoints.n,
                              .keys = keys,
                              .n_keys = args.keys.n};
    hex_decode(c->argv[args.content], m.content, CLUSTER_CONTENT_SIZE);
    keys_args(c, args.keys, keys);
    tarn_status status = cluster_segment_mount(n, &m, &mounted, &why);
    if (status != TARN_OK) {
        reply_why(c, status, why);
        return;
    }
    reply_map(c, 3);
    field_int(c, "id", mounted.id);
    field_int(c, "epoch", mounted.epoch);
    field_int(c, "kept", mounted.kept);
}

/* --- KEYS --- */

void cmd_segment_keys(struct client *c) {
    struct cluster_key_told keys[CLUSTER_KEYS_MAX];
    struct wire_mount args = {0};
    const char *why = "";
    struct cluster_node *node = arg_bind(c, &args) ? node_arg(c) : NULL;
    if (node == NULL) return;
    keys_args(c, args.keys, keys);
    tarn_status status =
        cluster_segment_keys_set(node, c->argv[args.segment], keys, args.keys.n, &why);
    if (status == TARN_OK)
        reply_ok(c);
    else if (status == TARN_ENOSEGMENT)
        reply_error(
            c, "-NOSEGMENT this is not a mounted memory segment of the node: SEGMENT MOUNT first");
    else
        reply_why(c, status, why);
}

/* --- UNMOUNT and DRAIN --- */

/* Waits until the last lease is over. It goes on without the client, too. */
struct unmount_job {
    struct job job;
    uint32_t id, epoch;
};

static bool unmount_step(struct client *c, struct job *job, unsigned *budget) {
    struct unmount_job *u = CONTAINER_OF(job, struct unmount_job, job);
    struct cluster_segment g;
    spend(budget, 1);
    if (!cluster_segment_get(u->id, &g) || g.epoch != u->epoch) {
        reply_ok(c);
        return true;
    }
    return job_look_again(job, GONE_CHECK_MS);
}

static bool refuse_embedded(struct client *c, tarn_status status) {
    if (status != TARN_EPERM) return false;
    reply_error(c, "the embedded segment is there as long as the server: start it with pool-size "
                   "0, or SEGMENT DRAIN it");
    return true;
}

void cmd_segment_unmount(struct client *c) {
    struct store_segment_info s;
    if (!segment_arg(c, 2, &s)) return;
    tarn_status status = cluster_segment_unmount(s.id);
    if (refuse_embedded(c, status)) return;
    if (status != TARN_OK && s.state != SEGMENT_LEAVING) {
        reply_status(c, status, NULL);
        return;
    }
    struct unmount_job u = {.job.step = unmount_step, .id = s.id, .epoch = s.epoch};
    job_run(c, &u.job, sizeof(u));
}

void cmd_segment_drain(struct client *c) {
    struct store_segment_info s;
    struct wire_drain args = {0};
    if (!arg_bind(c, &args) || !segment_arg(c, args.name, &s)) return;
    tarn_status status = cluster_segment_drain(s.id, !args.cancel);
    if (status == TARN_OK || status == TARN_EEXISTS) /* it is so already */
        reply_ok(c);
    else
        reply_status(c, status, NULL);
}
