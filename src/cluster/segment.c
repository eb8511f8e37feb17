/* Segments of nodes: how they come in, what state the books shall have them in, and how they go.
 *
 * A segment that a node mounts again with the same content keeps its id and epoch, and so its
 * replicas. Whatever else comes under its name is a new segment; the old one leaves. */
#include "cluster/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"

#define SEGMENT_SIZE_MAX (UINT64_C(1) << 50)

struct node_segment *segment_at(uint32_t id) {
    return id < cluster.segment_cap ? cluster.segments[id] : NULL;
}

const uint8_t *cluster_grant_key(uint32_t segment) {
    const struct node_segment *g = segment_at(segment);
    return g != NULL && g->node != NULL ? g->node->key : NULL;
}

bool segment_usable(const struct node_segment *g) {
    return !g->leaving && g->node != NULL && g->node->serving;
}

bool segment_stays(const struct node_segment *g) {
    return segment_usable(g) && g->drain == NULL && !g->drained;
}

/* --- states --- */

static enum store_segment_state wanted_state(const struct node_segment *g) {
    if (g->leaving) return SEGMENT_LEAVING;
    if (!g->node->serving) return SEGMENT_DOWN;
    return g->node->maintenance || g->drain != NULL || g->drained ? SEGMENT_READONLY : SEGMENT_UP;
}

void segment_refresh(struct node_segment *g) {
    struct store_segment_info info;
    enum store_segment_state want = wanted_state(g);
    if (store_segment_get(cluster.store, g->id, &info) && info.state != want)
        store_segment_set_state(cluster.store, g->id, want);
}

void segment_detach(struct node_segment *g) {
    TAILQ_REMOVE(&g->node->segments, g, of_node);
    g->node->n_segments--;
    g->node = NULL;
}

void segment_free(struct node_segment *g) {
    TARN_ASSERT(g->drain == NULL);
    timer_clear(&g->pace.timer);
    if (g->node != NULL) segment_detach(g);
    offload_stop(g);
    offload_count(g, false);
    keys_clear(g);
    for (size_t i = 0; i < g->n_endpoints; i++) free(g->endpoint[i]);
    free(g->directory);
    free(g->node_gone);
    machine_put(&g->machine);
    cluster.segments[g->id] = NULL;
    g->magic = 0;
    free(g);
}

/* g may be gone afterwards: an empty segment goes at once. */
void segment_leave(struct node_segment *g) {
    if (g->leaving) return;
    drain_stop(g);
    g->leaving = true;
    keys_clear(g);
    offload_stop(g); /* the whole segment goes */
    offload_count(g, false);
    if (g->node != NULL) offload_refresh_node(g->node); /* they may have been copied there */
    store_segment_set_state(cluster.store, g->id, SEGMENT_LEAVING);
}

/* Called from inside the books. */
void cluster_on_segment_gone(uint32_t id) {
    struct node_segment *g = segment_at(id);
    if (g == NULL) return;
    MAGIC_CHECK(g, SEGMENT_MAGIC);
    if (cluster.following) {
        segment_free(g);
        return;
    }
    TARN_ASSERT(g->leaving);
    struct cluster_node *n = g->node;
    if (n != NULL) node_unmount_later(n, g);
    segment_free(g);
    if (n != NULL) node_check_empty(n);
}

void segments_settle(struct cluster_node *n) {
    struct node_segment *g, *next;
    TAILQ_FOREACH_SAFE(g, &n->segments, of_node, next) {
        if (g->join == n->joins || g->leaving) continue;
        log_notice("Segment %s of node %s did not come back: it leaves the pool", g->name, n->name);
        segment_leave(g);
    }
}

void segments_orphan(struct cluster_node *n) {
    for (struct node_segment *g; (g = TAILQ_FIRST(&n->segments)) != NULL;) {
        segment_detach(g);
        if (!n->embedded) g->node_gone = xstrdup(n->name);
        if (g->drain != NULL) drain_stop(g);
        segment_leave(g);
    }
}

void segments_deinit(void) {
    for (uint32_t id = 0; id < cluster.segment_cap; id++)
        if (cluster.segments[id] != NULL) segment_free(cluster.segments[id]);
    free(cluster.segments);
}

static struct node_segment *segment_create(uint32_t id, struct cluster_node *n) {
    if (id >= cluster.segment_cap) {
        size_t cap = cluster.segment_cap > 0 ? cluster.segment_cap : 16;
        while (cap <= id) cap *= 2;
        cluster.segments = xrealloc(cluster.segments, cap * sizeof(struct node_segment *));
        memset(cluster.segments + cluster.segment_cap, 0,
               (cap - cluster.segment_cap) * sizeof(struct node_segment *));
        cluster.segment_cap = cap;
    }
    TARN_ASSERT(cluster.segments[id] == NULL);
    struct node_segment *g = xcalloc(1, sizeof(*g));
    g->magic = SEGMENT_MAGIC;
    g->id = id;
    g->node = n;
    g->machine = n->machine;
    g->numa_node = -1;
    machine_ref(g->machine);
    TAILQ_INSERT_TAIL(&n->segments, g, of_node);
    n->n_segments++;
    STAILQ_INIT(&g->offload.all);
    cluster.segments[id] = g;
    return g;
}

struct node_segment *segment_told(uint32_t id, struct cluster_node *n) {
    struct node_segment *g = segment_create(id, n != NULL ? n : &cluster.local);
    if (n != NULL) return g;
    segment_detach(g); /* it is leaving, and its node is gone */
    return g;
}

void cluster_local_hold(bool on) {
    cluster.local.maintenance = on;
    struct node_segment *g;
    TAILQ_FOREACH(g, &cluster.local.segments, of_node) segment_refresh(g);
}

void cluster_local_content(uint32_t id, const uint8_t content[CLUSTER_CONTENT_SIZE]) {
    struct node_segment *g = segment_at(id);
    TARN_ASSERT(g != NULL && g->node == &cluster.local);
    memcpy(g->content, content, sizeof(g->content));
    effect_node_segment(g);
}

/* --- the embedded one --- */

void cluster_local_segment(uint32_t id, const uint8_t key[GRANT_KEY_SIZE],
                           const struct cluster_local_ops *ops) {
    struct store_segment_info info;
    bool there = store_segment_get(cluster.store, id, &info);
    TARN_ASSERT(there);
    struct cluster_node *n = &cluster.local;
    memcpy(n->key, key, GRANT_KEY_SIZE);
    cluster.ops = *ops;
    n->serving = true;
    struct node_segment *g = segment_create(id, n);
    g->epoch = info.epoch;
    g->size = info.size;
    g->tier = STORE_TIER_MEMORY;
    snprintf(g->name, sizeof(g->name), "%s", info.name);
    cluster.next_epoch = (uint32_t)max_u64(cluster.next_epoch, (uint64_t)info.epoch + 1);
}

/* --- endpoints --- */

const char *node_host(const struct cluster_node *n) {
    return n->address[0] == '\0' || n->address[0] == '/' ? "127.0.0.1" : n->address;
}

static bool endpoints_valid(const struct cluster_mount *m) {
    struct uri u;
    if (m->n_endpoints > CLUSTER_ENDPOINTS_MAX) return false;
    for (size_t i = 0; i < m->n_endpoints; i++)
        if (!uri_parse(m->endpoints[i], &u)) return false;
    return true;
}

static void set_endpoints(struct node_segment *g, const struct cluster_mount *m) {
    for (size_t i = 0; i < g->n_endpoints; i++) free(g->endpoint[i]);
    g->n_endpoints = m->n_endpoints;
    for (size_t i = 0; i < m->n_endpoints; i++) {
        struct uri u;
        uri_parse(m->endpoints[i], &u);
        g->endpoint[i] = uri_resolve(m->endpoints[i], &u, node_host(g->node));
        g->wildcard_port[i] = uri_is_wildcard(&u) ? u.port : 0;
    }
}

/* --- MOUNT --- */

static tarn_status check_mount(const struct cluster_mount *m, const char **why_p) {
    if (!valid_name(m->name, sizeof(((struct node_segment *)0)->name) - 1))
        return cluster_refuse(why_p, TARN_EINVAL,
                              "a segment's name must be 1 to 63 of A-Z a-z 0-9 . _ -");
    if (m->size < 4096 || m->size > SEGMENT_SIZE_MAX)
        return cluster_refuse(why_p, TARN_EINVAL, "SIZE must be from 4096 bytes to 1 PiB");
    if (!endpoints_valid(m))
        return cluster_refuse(
            why_p, TARN_EINVAL,
            "ENDPOINTS must be up to 8 of scheme://host:port or scheme:///path, 255 "
            "characters each");
    if (!valid_text(m->backing, sizeof(((struct node_segment *)0)->backing) - 1))
        return cluster_refuse(why_p, TARN_EINVAL, "BACKING must be a word of up to 15 characters");
    tarn_status status = keys_check(m->keys, m->n_keys, why_p);
    if (status != TARN_OK) return status;
    if (m->n_keys > 0 && m->tier != STORE_TIER_MEMORY)
        return cluster_refuse(why_p, TARN_EINVAL, "KEYS belong to segments of TIER memory");
    bool has = m->directory.len > 0;
    if (has != (m->tier == STORE_TIER_FILE))
        return cluster_refuse(why_p, TARN_EINVAL,
                              "DIRECTORY belongs to segments of TIER file, and only to them");
    if (has && (m->directory.data[0] != '/' || !valid_text(m->directory, CLUSTER_DIRECTORY_MAX)))
        return cluster_refuse(why_p, TARN_EINVAL,
                              "DIRECTORY must be an absolute path of up to 1000 bytes");
    return TARN_OK;
}

tarn_status cluster_segment_resize(uint32_t id, uint64_t size, bool force, uint64_t *objects_p) {
    struct node_segment *g = segment_at(id);
    TARN_ASSERT(g != NULL);
    tarn_status status = store_segment_resize(cluster.store, id, size, force, objects_p);
    if (status == TARN_OK) g->size = size;
    return status;
}

/* A file that has grown has what it had; one that was cut, too, if nothing is missed. */
static bool same_content(const struct node_segment *g, const struct cluster_mount *m) {
    uint64_t objects;
    if (g->tier != m->tier || memcmp(g->content, m->content, sizeof(g->content)) != 0) return false;
    if (g->size == m->size) return true;
    if (g->tier != STORE_TIER_MEMORY || g->join == g->node->joins) return false;
    uint64_t before = g->size;
    bool fits = cluster_segment_resize(g->id, m->size, false, &objects) == TARN_OK;
    log_notice("Segment %s was %llu bytes and is %llu%s", g->name, (unsigned long long)before,
               (unsigned long long)m->size, fits ? "" : ": something lay beyond, it begins empty");
    return fits;
}

/* The segment of that name that is not leaving; NULL: none. */
static struct node_segment *segment_named(struct span name) {
    struct store_segment_info info;
    return store_segment_by_name(cluster.store, name, &info) ? segment_at(info.id) : NULL;
}

static tarn_status add_segment(struct cluster_node *n, const struct cluster_mount *m,
                               struct node_segment **segment_p, const char **why_p) {
    uint32_t id;
    char name[64];
    if (n->n_segments >= CLUSTER_NODE_SEGMENTS)
        return cluster_refuse(why_p, TARN_ELIMIT, "a node may have 64 segments");
    memcpy(name, m->name.data, m->name.len);
    name[m->name.len] = '\0';
    struct store_segment_config config = {.name = name,
                                          .epoch = cluster.next_epoch,
                                          .tier = m->tier,
                                          .size = m->size,
                                          .host = n->machine->number};
    tarn_status status = store_segment_add(cluster.store, &config, &id);
    if (status != TARN_OK)
        return cluster_refuse(why_p, status,
                              status == TARN_EEXISTS ? "another segment has this name"
                              : status == TARN_ELIMIT
                                  ? "a pool has 65535 segments at most: let nodes have fewer, "
                                    "larger ones"
                                  : "the books have no room for it");
    cluster.next_epoch++;
    struct node_segment *g = segment_create(id, n);
    g->epoch = config.epoch;
    g->tier = m->tier;
    g->size = m->size;
    memcpy(g->name, name, sizeof(name));
    memcpy(g->content, m->content, sizeof(g->content));
    node_unmount_forget(n, id);
    *segment_p = g;
    return TARN_OK;
}

void directory_set(struct node_segment *g, struct span directory) {
    free(g->directory);
    g->directory = directory.len > 0 ? span_dup(directory) : NULL;
}

static void segment_describe(struct node_segment *g, const struct cluster_mount *m) {
    set_endpoints(g, m);
    if (keys_fit(m->keys, m->n_keys)) {
        keys_set(g, m->keys, m->n_keys);
    } else { /* tcp leads there all the same */
        keys_clear(g);
        cluster.figures.segment_keys_dropped++;
    }
    text_set(g->backing, sizeof(g->backing), m->backing);
    directory_set(g, m->directory);
    g->huge = m->huge;
    g->numa_node = m->numa_node;
    g->join = g->node->joins;
    effect_node_segment(g);
}

tarn_status cluster_segment_mount(struct cluster_node *n, const struct cluster_mount *m,
                                  struct cluster_mounted *mounted_p, const char **why_p) {
    tarn_status status = check_mount(m, why_p);
    if (status != TARN_OK) return status;
    struct node_segment *g = segment_named(m->name);
    if (g != NULL && g->node != n)
        return cluster_refuse(why_p, TARN_EBUSY, "another node has a segment of this name");
    bool kept = g != NULL && same_content(g, m) && g->machine == n->machine;
    if (g != NULL && !kept) segment_leave(g);
    if (!kept && (status = add_segment(n, m, &g, why_p)) != TARN_OK) return status;
    segment_describe(g, m);
    *mounted_p = (struct cluster_mounted){.id = g->id, .epoch = g->epoch, .kept = kept};
    log_notice("Segment %s of node %s: %s, id %u, epoch %u, %llu bytes", g->name, n->name,
               kept ? "its content is still there" : "new", g->id, g->epoch,
               (unsigned long long)g->size);
    if (n->draining) drain_begin(g);
    segment_refresh(g);
    offload_refresh_node(n);
    if (n->state == CLUSTER_NODE_LEAVING || n->state == CLUSTER_NODE_LEFT) segment_leave(g);
    return TARN_OK;
}

/* --- UNMOUNT, DRAIN --- */

tarn_status cluster_segment_unmount(uint32_t id) {
    struct node_segment *g = segment_at(id);
    if (g == NULL || g->leaving) return TARN_ENOSEGMENT;
    if (g->node->embedded) return TARN_EPERM;
    log_notice("Segment %s is unmounted", g->name);
    segment_leave(g);
    return TARN_OK;
}

tarn_status cluster_segment_drain(uint32_t id, bool on) {
    struct node_segment *g = segment_at(id);
    if (g == NULL || g->leaving) return TARN_ENOSEGMENT;
    if (g->drain_wanted == on) return TARN_EEXISTS;
    g->drain_wanted = on;
    effect_node_segment(g);
    log_notice("Segment %s: drain %s", g->name, on ? "begins" : "is canceled");
    if (on) {
        drain_begin(g);
    } else if (!g->node->draining) {
        drain_stop(g);
        g->drained = false;
    }
    segment_refresh(g);
    offload_refresh_node(g->node);
    return TARN_OK;
}

static const char *node_name(const struct node_segment *g) {
    if (g->node == NULL) return g->node_gone != NULL ? g->node_gone : "";
    return g->node->embedded ? "" : g->node->name;
}

bool cluster_segment_get(uint32_t id, struct cluster_segment *out) {
    const struct node_segment *g = segment_at(id);
    if (g == NULL) return false;
    *out = (struct cluster_segment){.id = id,
                                    .epoch = g->epoch,
                                    .host = g->machine->number,
                                    .name = g->name,
                                    .node = node_name(g),
                                    .machine = g->machine->name,
                                    .rack = g->node != NULL ? g->node->rack : "",
                                    .endpoints = (const char *const *)g->endpoint,
                                    .wildcard_port = g->wildcard_port,
                                    .n_endpoints = g->n_endpoints,
                                    .content = g->content,
                                    .directory = g->directory,
                                    .backing = g->backing,
                                    .huge = g->huge,
                                    .numa_node = g->numa_node,
                                    .embedded = g->node != NULL && g->node->embedded,
                                    .draining = g->drain != NULL,
                                    .drained = g->drained,
                                    .loopback = g->node != NULL && !g->node->embedded &&
                                                node_loopback(g->node),
                                    .drain_error = ""};
    if (g->drain != NULL) {
        out->moved_objects = g->drain->objects;
        out->moved_bytes = g->drain->bytes;
        out->waiting = g->drain->pending;
        if (g->drain->error != TARN_OK) out->drain_error = tarn_status_text(g->drain->error);
    }
    return true;
}
