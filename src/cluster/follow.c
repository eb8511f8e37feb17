/* What a replica of the master must know of nodes and segments beside the books, as records
 * (store/effect.h), and how a cluster that was made of them leads.
 *
 * A cluster that follows has nodes that are down and segments that belong to them. When it leads
 * they stay down until the nodes join it: with the same content a segment keeps its id and epoch,
 * and so its replicas, as after any other absence. */
#include "cluster/internal.h"

#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "store/effect.h"
#include "store/effect_codec.h"

enum {
    EFFECT_CLUSTER = EFFECT_OTHERS,
    EFFECT_NODE,
    EFFECT_NODE_GONE,
    EFFECT_NODE_SEGMENT,
};
enum { NODE_MAINTENANCE = 1, NODE_DRAINING = 2 };
enum { SEGMENT_HUGE = 1, SEGMENT_DRAIN_WANTED = 2, SEGMENT_DRAINED = 4, SEGMENT_EMBEDDED = 8 };

void cluster_tell(bool on) {
    cluster.telling = on && cluster.effect != NULL;
}

/* --- records --- */

_Static_assert(sizeof(cluster.id) == 16 && CLUSTER_CONTENT_SIZE == 16, "as put_id");
#define CLUSTER_FIELDS(X) X(id, id) X(u32, next_epoch)
#define NODE_FIELDS(X)    X(span, name) X(span, machine) X(span, rack) X(span, version) X(u8, flags)

#define NODE_GONE_FIELDS(X) X(span, name)
#define NODE_SEGMENT_FIELDS(X)                                                                     \
    X(u32, id)                                                                                     \
    X(span, node)                                                                                  \
    X(span, machine)                                                                               \
    X(id, content) X(span, backing) X(span, directory) X(u32, numa_node) X(u8, flags)

CODEC_RECORD(cluster_record, EFFECT_CLUSTER, CLUSTER_FIELDS)
CODEC_RECORD(node_record, EFFECT_NODE, NODE_FIELDS)
CODEC_RECORD(node_gone_record, EFFECT_NODE_GONE, NODE_GONE_FIELDS)
CODEC_RECORD(node_segment_record, EFFECT_NODE_SEGMENT, NODE_SEGMENT_FIELDS)

/* --- telling --- */

static struct span record_told(void) {
    return span_of(cluster.record.data, cluster.record.len);
}

static struct span encode_cluster(void) {
    put_cluster_record(&cluster.record, &(struct cluster_record){cluster.id, cluster.next_epoch});
    return record_told();
}

static struct span encode_node(const struct cluster_node *n) {
    put_node_record(&cluster.record,
                    &(struct node_record){span_str(n->name), span_str(n->machine->name),
                                          span_str(n->rack), span_str(n->version),
                                          (n->maintenance ? NODE_MAINTENANCE : 0u) |
                                              (n->draining ? NODE_DRAINING : 0u)});
    return record_told();
}

static struct span encode_segment(const struct node_segment *g) {
    unsigned flags = (g->huge ? SEGMENT_HUGE : 0u) | (g->drain_wanted ? SEGMENT_DRAIN_WANTED : 0u) |
                     (g->drained ? SEGMENT_DRAINED : 0u) |
                     (g->node == &cluster.local ? SEGMENT_EMBEDDED : 0u);
    put_node_segment_record(
        &cluster.record,
        &(struct node_segment_record){g->id, span_str(g->node != NULL ? g->node->name : ""),
                                      span_str(g->machine->name), g->content, span_str(g->backing),
                                      span_str(g->directory != NULL ? g->directory : ""),
                                      (uint32_t)g->numa_node, flags});
    return record_told();
}

static void record_tell(struct span record) {
    cluster.effect(NULL, record.data, record.len);
}

void effect_node(const struct cluster_node *n) {
    if (cluster.telling && !n->embedded) record_tell(encode_node(n));
}

void effect_node_gone(const struct cluster_node *n) {
    if (!cluster.telling || n->embedded) return;
    put_node_gone_record(&cluster.record, &(struct node_gone_record){span_str(n->name)});
    record_tell(record_told());
}

void effect_node_segment(const struct node_segment *g) {
    if (!cluster.telling) return;
    record_tell(encode_cluster()); /* its epoch is taken */
    record_tell(encode_segment(g));
}

void cluster_snapshot(void (*emit)(void *arg, const void *record, size_t len), void *arg) {
    struct span r = encode_cluster();
    emit(arg, r.data, r.len);
    struct cluster_node *n;
    for (uint32_t at = 0; (n = cluster_node_next(&at)) != NULL;) {
        r = encode_node(n);
        emit(arg, r.data, r.len);
    }
    for (uint32_t id = 0; id < cluster.segment_cap; id++) {
        if (cluster.segments[id] == NULL) continue;
        r = encode_segment(cluster.segments[id]);
        emit(arg, r.data, r.len);
    }
}

/* --- being told --- */

static tarn_status apply_cluster(struct reader *r, const char **why_p) {
    struct cluster_record x;
    if (!take_cluster_record(r, &x))
        return cluster_refuse(why_p, TARN_EPROTO, "the record of the cluster has a wrong length");
    memcpy(cluster.id, x.id, sizeof(cluster.id));
    if (x.next_epoch > cluster.next_epoch) cluster.next_epoch = x.next_epoch;
    return TARN_OK;
}

static tarn_status apply_node(struct reader *r, const char **why_p) {
    struct node_record x;
    if (!take_node_record(r, &x) || !valid_name(x.name, CLUSTER_NODE_NAME_MAX) ||
        x.machine.len == 0 || !valid_label(x.machine, CLUSTER_LABEL_MAX) ||
        !valid_label(x.rack, CLUSTER_LABEL_MAX) ||
        !valid_label(x.version, sizeof(((struct cluster_node *)0)->version) - 1))
        return cluster_refuse(why_p, TARN_EPROTO, "the record of a node makes no sense");
    struct cluster_node *n = node_told(x.name, x.machine);
    if (n == NULL) return cluster_refuse(why_p, TARN_EPROTO, "there are too many machines");
    text_set(n->rack, sizeof(n->rack), x.rack);
    text_set(n->version, sizeof(n->version), x.version);
    n->maintenance = (x.flags & NODE_MAINTENANCE) != 0;
    n->draining = (x.flags & NODE_DRAINING) != 0;
    return TARN_OK;
}

static tarn_status apply_node_gone(struct reader *r, const char **why_p) {
    struct node_gone_record x;
    if (!take_node_gone_record(r, &x))
        return cluster_refuse(why_p, TARN_EPROTO, "the record of a node's end has a wrong length");
    struct cluster_node *n = cluster_node_find(x.name);
    if (n != NULL) node_untold(n);
    return TARN_OK;
}

static void fill_from_books(struct node_segment *g) {
    struct store_segment_info info;
    bool known = store_segment_get(cluster.store, g->id, &info);
    TARN_ASSERT(known);
    g->epoch = info.epoch;
    g->tier = info.tier;
    g->size = info.size;
    memcpy(g->name, info.name, sizeof(g->name));
}

static tarn_status apply_node_segment(struct reader *r, const char **why_p) {
    struct node_segment_record x;
    if (!take_node_segment_record(r, &x) || x.id >= STORE_SEGMENTS_MAX || x.machine.len == 0 ||
        !valid_label(x.machine, CLUSTER_LABEL_MAX) ||
        !valid_text(x.backing, sizeof(((struct node_segment *)0)->backing) - 1) ||
        !valid_text(x.directory, CLUSTER_DIRECTORY_MAX) || (int)x.numa_node < -1 ||
        (int)x.numa_node > 1023)
        return cluster_refuse(why_p, TARN_EPROTO, "the record of a node's segment makes no sense");
    struct store_segment_info info;
    if (!store_segment_get(cluster.store, x.id, &info))
        return cluster_refuse(why_p, TARN_EPROTO,
                              "a node has a segment that the books do not know");
    struct cluster_node *owner = cluster_node_find(x.node);
    bool embedded = (x.flags & SEGMENT_EMBEDDED) != 0;
    if (embedded && info.tier != STORE_TIER_MEMORY)
        return cluster_refuse(why_p, TARN_EPROTO, "the server's own segment is no memory");
    if (owner == NULL && !embedded && x.node.len > 0)
        return cluster_refuse(why_p, TARN_EPROTO, "a segment belongs to a node that is not known");
    struct machine *m = machine_get(x.machine);
    if (m == NULL) return cluster_refuse(why_p, TARN_EPROTO, "there are too many machines");
    struct node_segment *g = segment_at(x.id);
    struct cluster_node *n = embedded ? &cluster.local : owner;
    if (g != NULL && g->node != n) {
        segment_free(g);
        g = NULL;
    }
    if (g == NULL) g = segment_told(x.id, n);
    machine_put(&g->machine);
    g->machine = m;
    memcpy(g->content, x.content, sizeof(g->content));
    text_set(g->backing, sizeof(g->backing), x.backing);
    directory_set(g, x.directory);
    g->numa_node = (int)x.numa_node;
    g->huge = (x.flags & SEGMENT_HUGE) != 0;
    g->drain_wanted = (x.flags & SEGMENT_DRAIN_WANTED) != 0;
    g->drained = (x.flags & SEGMENT_DRAINED) != 0;
    fill_from_books(g);
    return TARN_OK;
}

tarn_status cluster_effect_apply(struct span record, const char **why_p) {
    TARN_ASSERT(cluster.following && record.len >= 5);
    struct reader r = record_reader(record);
    switch ((uint8_t)record.data[4]) {
    case EFFECT_CLUSTER: return apply_cluster(&r, why_p);
    case EFFECT_NODE: return apply_node(&r, why_p);
    case EFFECT_NODE_GONE: return apply_node_gone(&r, why_p);
    case EFFECT_NODE_SEGMENT: return apply_node_segment(&r, why_p);
    default: return cluster_refuse(why_p, TARN_EPROTO, "a record is of an unknown kind");
    }
}

/* --- no longer leading --- */

/* What waits for its node. The state in the books stays: it is what was told last. */
static void segment_step_down(struct node_segment *g) {
    keys_clear(g);
    offload_stop(g);
    timer_clear(&g->pace.timer);
    g->pace = (struct pace){0};
    g->storing = g->storing_bytes = 0;
}

void cluster_step_down(void) {
    TARN_ASSERT(!cluster.following);
    cluster.following = true;
    tasks_deinit();
    drains_deinit();
    heat_deinit();
    offload_deinit();
    nodes_step_down();
    fences_lost(&cluster.local);
    for (uint32_t id = 0; id < cluster.segment_cap; id++)
        if (cluster.segments[id] != NULL) segment_step_down(cluster.segments[id]);
    fences_deinit();
    fences_init();
    tasks_init();
    heat_init();
    offload_init();
    heat_config_changed();
    offload_refresh();
}

/* --- leading --- */

uint32_t cluster_local_known(const uint8_t content[CLUSTER_CONTENT_SIZE], uint64_t *size_p) {
    struct store_segment_info info;
    for (uint32_t id = 0; id < cluster.segment_cap; id++) {
        const struct node_segment *g = cluster.segments[id];
        if (g == NULL || g->node != &cluster.local ||
            memcmp(g->content, content, sizeof(g->content)) != 0)
            continue;
        if (!store_segment_get(cluster.store, id, &info) || info.state == SEGMENT_LEAVING) continue;
        *size_p = info.size;
        return id;
    }
    return STORE_SEGMENT_ANY;
}

/* Machines have other numbers here. */
static void lead_segment(struct node_segment *g) {
    struct store_segment_info info;
    bool known = store_segment_get(cluster.store, g->id, &info);
    TARN_ASSERT(known);
    store_segment_set_host(cluster.store, g->id, g->machine->number);
    cluster.next_epoch = (uint32_t)max_u64(cluster.next_epoch, (uint64_t)g->epoch + 1);
    if (info.state == SEGMENT_LEAVING)
        g->leaving = true;
    else if (g->node == NULL || g->node->embedded)
        segment_leave(g); /* the memory of a process that is no more */
    else if (g->drain_wanted || g->node->draining)
        drain_begin(g);
    else
        segment_refresh(g);
}

uint32_t cluster_next_epoch(void) {
    return cluster.next_epoch;
}

void cluster_lead(uint32_t master_epoch, uint32_t alive) {
    TARN_ASSERT(cluster.following);
    cluster.following = false;
    cluster.master_epoch = master_epoch;
    cluster.next_epoch = (uint32_t)max_u64(cluster.next_epoch, (uint64_t)master_epoch + 1);
    for (uint32_t id = 0; id < store_segment_limit(cluster.store); id++) {
        struct store_segment_info info;
        struct node_segment *g = segment_at(id);
        if (!store_segment_get(cluster.store, id, &info)) continue;
        if (id == alive) {
            if (g != NULL) segment_free(g); /* cluster_local_segment follows */
            continue;
        }
        if (g == NULL) g = segment_told(id, NULL); /* nobody knows whose it is */
        fill_from_books(g);
        lead_segment(g);
    }
    for (uint32_t id = 0; id < cluster.segment_cap; id++) {
        struct store_segment_info info;
        if (cluster.segments[id] != NULL && !store_segment_get(cluster.store, id, &info))
            segment_free(cluster.segments[id]);
    }
    /* whoever leads after us raises the epoch above ours */
    if (cluster.telling) record_tell(encode_cluster());
    nodes_lead();
    offload_refresh();
    log_notice("The pool is led from here, master epoch %u: %zu nodes are expected to join",
               master_epoch, cluster.nodes.count);
}
