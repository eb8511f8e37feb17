/* SEGMENT MOUNT, KEYS, UNMOUNT, LIST, INFO, DRAIN: what the pool consists of, and how to reach its
 * bytes. libtarn fetches INFO once per segment and epoch. */
#include "cmd/families.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "base/hex.h"
#include "cmd/acl_users.h"
#include "cmd/client.h"
#include "cmd/config.h"
#include "cmd/core.h"
#include "cmd/keys.h"
#include "cmd/location.h"
#include "cmd/nodes.h"
#include "cmd/reach.h"
#include "host/host.h"

enum { KEY_ARGS = 3 };   /* uri, read-key, write-key */
enum { LIST_UNITS = 8 }; /* of work, for a segment in a list */
enum { GONE_CHECK_MS = 50 };

static uint64_t free_bytes(const struct store_segment_info *s) {
    uint64_t taken = s->used + s->quarantined;
    return s->size > taken ? s->size - taken : 0;
}

static const char *state_name(const struct store_segment_info *s, const struct cluster_segment *g) {
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
    field_str(c, "state", state_name(s, g));
    field_str(c, "directory", g->directory != NULL ? g->directory : "");
}

struct list_job {
    struct job job;
    uint32_t next;
    size_t n;
    void *cookie;
};

static bool list_step(struct client *c, struct job *job, unsigned *budget) {
    struct list_job *l = CONTAINER_OF(job, struct list_job, job);
    if (l->cookie == NULL) l->cookie = reply_deferred(c);
    for (; l->next < store_segment_limit(server.store); l->next++) {
        struct store_segment_info s;
        struct cluster_segment g;
        if (*budget == 0) return false;
        spend(budget, LIST_UNITS);
        if (!store_segment_get(server.store, l->next, &s) || !cluster_segment_get(l->next, &g))
            continue;
        reply_map(c, COMMON_FIELDS);
        common_fields(c, &s, &g);
        l->n++;
    }
    reply_deferred_array(c, l->cookie, l->n);
    return true;
}

void cmd_segment_list(struct client *c) {
    struct list_job *l = xcalloc(1, sizeof(*l));
    l->job = (struct job){.step = list_step, .runnable = true};
    job_start(c, &l->job);
}

/* --- INFO --- */

static bool reply_attach(struct client *c, const char *name, enum grant_op op,
                         const struct store_segment_info *s, bool may) {
    uint8_t sealed[GRANT_SIZE];
    struct grant_extent whole = {s->id, s->epoch, 0, s->size};
    bool granted = may && s->tier == STORE_TIER_MEMORY && s->state != SEGMENT_LEAVING &&
                   location_seal(op, c->id, server.mono_ms + LOCATION_ATTACH_MS, &whole, sealed);
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
    if (direct)
        reach_reply_keys(c, g, may_read, may_write);
    else
        reply_array(c, 0);
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
    if (g.embedded && server.host != NULL) {
        host_segment_get(server.host, s.id, &h);
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

static bool tier_option(struct client *c, size_t *at_p, enum store_tier *tier_p) {
    if (!option_has_value(c, *at_p, "TIER")) return false;
    for (int tier = STORE_TIER_MEMORY; tier <= STORE_TIER_FILE; tier++) {
        if (!arg_is(c, *at_p + 1, location_tier_name((enum store_tier)tier))) continue;
        *tier_p = (enum store_tier)tier;
        *at_p += 2;
        return true;
    }
    reply_error(c, "TIER must be memory, ssd or file");
    return false;
}

static bool content_option(struct client *c, size_t *at_p, uint8_t out[CLUSTER_CONTENT_SIZE]) {
    if (!option_has_value(c, *at_p, "CONTENT")) return false;
    if (!hex_decode(c->argv[*at_p + 1], out, CLUSTER_CONTENT_SIZE)) {
        reply_error(c, "CONTENT must be 32 hex digits, chosen at random when the content is made");
        return false;
    }
    *at_p += 2;
    return true;
}

static bool word_option(struct client *c, size_t *at_p, const char *name, struct span *out) {
    if (!option_has_value(c, *at_p, name)) return false;
    *out = c->argv[*at_p + 1];
    *at_p += 2;
    return true;
}

static bool yes_no_option(struct client *c, size_t *at_p, const char *name, bool *out) {
    if (!option_has_value(c, *at_p, name)) return false;
    *out = arg_is(c, *at_p + 1, "yes");
    if (!*out && !arg_is(c, *at_p + 1, "no")) {
        reply_error(c, "%s must be yes or no", name);
        return false;
    }
    *at_p += 2;
    return true;
}

static bool endpoints_option(struct client *c, size_t *at_p, struct cluster_mount *m) {
    uint64_t n;
    if (!option_number(c, at_p, "ENDPOINTS", 0, CLUSTER_ENDPOINTS_MAX, &n)) return false;
    if (c->argc - *at_p < n) {
        reply_error(c, "ENDPOINTS is %llu, but fewer URIs follow", (unsigned long long)n);
        return false;
    }
    m->endpoints = &c->argv[*at_p];
    m->n_endpoints = n;
    *at_p += n;
    return true;
}

/* n groups of uri, read-key and write-key from argv[at] on. */
static void keys_args(const struct client *c, size_t at, size_t n, struct cluster_key_told *keys) {
    for (size_t i = 0; i < n; i++, at += KEY_ARGS)
        keys[i] = (struct cluster_key_told){.uri = c->argv[at],
                                            .key = {c->argv[at + 1], c->argv[at + 2]}};
}

static bool keys_option(struct client *c, size_t *at_p, struct cluster_mount *m,
                        struct cluster_key_told keys[CLUSTER_KEYS_MAX]) {
    uint64_t n;
    if (!option_number(c, at_p, "KEYS", 0, CLUSTER_KEYS_MAX, &n)) return false;
    if ((c->argc - *at_p) / KEY_ARGS < n) {
        reply_error(c, "KEYS is %llu, but fewer URIs with a read-key and a write-key follow",
                    (unsigned long long)n);
        return false;
    }
    keys_args(c, *at_p, n, keys);
    m->keys = keys;
    m->n_keys = n;
    *at_p += n * KEY_ARGS;
    return true;
}

static bool mount_options(struct client *c, size_t at, struct cluster_mount *m,
                          struct cluster_key_told keys[CLUSTER_KEYS_MAX]) {
    bool tier = false, size = false, content = false;
    uint64_t numa;
    m->numa_node = -1;
    while (at < c->argc) {
        bool ok;
        if (arg_is(c, at, "tier")) {
            ok = tier = tier_option(c, &at, &m->tier);
        } else if (arg_is(c, at, "size")) {
            ok = size = option_number(c, &at, "SIZE", 4096, INT64_MAX, &m->size);
        } else if (arg_is(c, at, "content")) {
            ok = content = content_option(c, &at, m->content);
        } else if (arg_is(c, at, "backing")) {
            ok = word_option(c, &at, "BACKING", &m->backing);
        } else if (arg_is(c, at, "directory")) {
            ok = word_option(c, &at, "DIRECTORY", &m->directory);
        } else if (arg_is(c, at, "huge")) {
            ok = yes_no_option(c, &at, "HUGE", &m->huge);
        } else if (arg_is(c, at, "numa")) {
            ok = option_number(c, &at, "NUMA", 0, 1023, &numa);
            if (ok) m->numa_node = (int)numa;
        } else if (arg_is(c, at, "endpoints")) {
            ok = endpoints_option(c, &at, m);
        } else if (arg_is(c, at, "keys")) {
            ok = keys_option(c, &at, m, keys);
        } else {
            option_unknown(c, at);
            return false;
        }
        if (!ok) return false;
    }
    if (tier && size && content) return true;
    reply_error(c, "SEGMENT MOUNT needs TIER, SIZE and CONTENT");
    return false;
}

/* SEGMENT MOUNT node instance name TIER t SIZE bytes CONTENT hex ... */
void cmd_segment_mount(struct client *c) {
    struct cluster_mount m = {.name = c->argv[4]};
    struct cluster_mounted mounted;
    struct cluster_key_told keys[CLUSTER_KEYS_MAX];
    const char *why = "";
    struct cluster_node *n = node_arg(c, 2);
    if (n == NULL || !mount_options(c, 5, &m, keys)) return;
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

/* SEGMENT KEYS node instance name n [uri read-key write-key ...] */
void cmd_segment_keys(struct client *c) {
    struct cluster_key_told keys[CLUSTER_KEYS_MAX];
    uint64_t n;
    const char *why = "";
    struct cluster_node *node = node_arg(c, 2);
    if (node == NULL || !arg_range(c, 5, "n", 0, CLUSTER_KEYS_MAX, &n)) return;
    if (c->argc - 6 != n * KEY_ARGS) {
        reply_error(c, "n is %llu: %llu arguments must follow, and %zu do", (unsigned long long)n,
                    (unsigned long long)(n * KEY_ARGS), c->argc - 6);
        return;
    }
    keys_args(c, 6, n, keys);
    tarn_status status = cluster_segment_keys_set(node, c->argv[4], keys, n, &why);
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
    job->runnable = false;
    job->polls = true;
    job->deadline_ms = server.mono_ms + GONE_CHECK_MS;
    return false;
}

static bool refuse_embedded(struct client *c, tarn_status status) {
    if (status != TARN_EPERM) return false;
    reply_error(
        c, "the embedded segment is there as long as the server: start it with pool-size 0, or "
           "SEGMENT DRAIN it");
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
    struct unmount_job *u = xcalloc(1, sizeof(*u));
    u->job = (struct job){.step = unmount_step, .runnable = true};
    u->id = s.id;
    u->epoch = s.epoch;
    job_start(c, &u->job);
}

void cmd_segment_drain(struct client *c) {
    struct store_segment_info s;
    bool cancel = c->argc > 3 && arg_is(c, 3, "cancel");
    if (c->argc > 4 || (c->argc == 4 && !cancel)) {
        option_unknown(c, cancel ? 4 : 3);
        return;
    }
    if (!segment_arg(c, 2, &s)) return;
    tarn_status status = cluster_segment_drain(s.id, !cancel);
    if (status == TARN_OK || status == TARN_EEXISTS) /* it is so already */
        reply_ok(c);
    else
        reply_status(c, status, NULL);
}
