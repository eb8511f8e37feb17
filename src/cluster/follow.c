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

/* --- telling --- */

static void begin(unsigned kind) {
    buf_clear(&cluster.record);
    put_u32(&cluster.record, 0);
    put_u8(&cluster.record, kind);
}

static struct span end(void) {
    uint32_t len = (uint32_t)cluster.record.len - 4;
    memcpy(cluster.record.data, &len, 4);
    return span_of(cluster.record.data, cluster.record.len);
}

static struct span encode_cluster(void) {
    begin(EFFECT_CLUSTER);
    buf_append(&cluster.record, cluster.id, sizeof(cluster.id));
    put_u32(&cluster.record, cluster.next_epoch);
    return end();
}

static struct span encode_node(const struct cluster_node *n) {
    begin(EFFECT_NODE);
    put_span(&cluster.record, span_str(n->name));
    put_span(&cluster.record, span_str(n->machine->name));
    put_span(&cluster.record, span_str(n->rack));
    put_span(&cluster.record, span_str(n->version));
    put_u8(&cluster.record,
           (n->maintenance ? NODE_MAINTENANCE : 0) | (n->draining ? NODE_DRAINING : 0));
    return end();
}

static struct span encode_segment(const struct segment *g) {
    begin(EFFECT_NODE_SEGMENT);
    put_u32(&cluster.record, g->id);
    put_span(&cluster.record, span_str(g->node != NULL ? g->node->name : ""));
    put_span(&cluster.record, span_str(g->machine->name));
    buf_append(&cluster.record, g->content, sizeof(g->content));
    put_span(&cluster.record, span_str(g->backing));
    put_span(&cluster.record, span_str(g->directory != NULL ? g->directory : ""));
    put_u32(&cluster.record, (uint32_t)g->numa_node);
    put_u8(&cluster.record, (g->huge ? SEGMENT_HUGE : 0) |
                                (g->drain_wanted ? SEGMENT_DRAIN_WANTED : 0) |
                                (g->drained ? SEGMENT_DRAINED : 0) |
                                (g->node == &cluster.local ? SEGMENT_EMBEDDED : 0));
    return end();
}

static void tell(struct span record) {
    cluster.effect(NULL, record.data, record.len);
}

void effect_node(const struct cluster_node *n) {
    if (cluster.telling && !n->embedded) tell(encode_node(n));
}

void effect_node_gone(const struct cluster_node *n) {
    if (!cluster.telling || n->embedded) return;
    begin(EFFECT_NODE_GONE);
    put_span(&cluster.record, span_str(n->name));
    tell(end());
}

void effect_node_segment(const struct segment *g) {
    if (!cluster.telling) return;
    tell(encode_cluster()); /* its epoch is taken */
    tell(encode_segment(g));
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

static bool over(const struct reader *r) {
    return !r->bad && r->at == r->end;
}

static tarn_status apply_cluster(struct reader *r, const char **why_p) {
    const char *id = take_bytes(r, sizeof(cluster.id));
    uint32_t next_epoch = take_u32(r);
    if (!over(r))
        return cluster_refuse(why_p, TARN_EPROTO, "the record of the cluster has a wrong length");
    memcpy(cluster.id, id, sizeof(cluster.id));
    if (next_epoch > cluster.next_epoch) cluster.next_epoch = next_epoch;
    return TARN_OK;
}

static tarn_status apply_node(struct reader *r, const char **why_p) {
    struct span name = take_span(r), machine = take_span(r), rack = take_span(r),
                version = take_span(r);
    unsigned flags = take_u8(r);
    if (!over(r) || !valid_name(name, CLUSTER_NODE_NAME_MAX) || machine.len == 0 ||
        !valid_label(machine, CLUSTER_LABEL_MAX) || !valid_label(rack, CLUSTER_LABEL_MAX) ||
        !valid_label(version, sizeof(((struct cluster_node *)0)->version) - 1))
        return cluster_refuse(why_p, TARN_EPROTO, "the record of a node makes no sense");
    struct cluster_node *n = node_told(name, machine);
    if (n == NULL) return cluster_refuse(why_p, TARN_EPROTO, "there are too many machines");
    text_set(n->rack, sizeof(n->rack), rack);
    text_set(n->version, sizeof(n->version), version);
    n->maintenance = (flags & NODE_MAINTENANCE) != 0;
    n->draining = (flags & NODE_DRAINING) != 0;
    return TARN_OK;
}

static tarn_status apply_node_gone(struct reader *r, const char **why_p) {
    struct span name = take_span(r);
    if (!over(r))
        return cluster_refuse(why_p, TARN_EPROTO, "the record of a node's end has a wrong length");
    struct cluster_node *n = cluster_node_find(name);
    if (n != NULL) node_untold(n);
    return TARN_OK;
}

static void fill_from_books(struct segment *g) {
    struct store_segment_info info;
    bool known = store_segment_get(cluster.store, g->id, &info);
    TARN_ASSERT(known);
    g->epoch = info.epoch;
    g->tier = info.tier;
    g->size = info.size;
    memcpy(g->name, info.name, sizeof(g->name));
}

static tarn_status apply_segment(struct reader *r, const char **why_p) {
    uint32_t id = take_u32(r);
    struct span name = take_span(r), machine = take_span(r);
    const char *content = take_bytes(r, CLUSTER_CONTENT_SIZE);
    struct span backing = take_span(r), directory = take_span(r);
    int numa_node = (int)take_u32(r);
    unsigned flags = take_u8(r);
    if (!over(r) || id >= STORE_SEGMENTS_MAX || machine.len == 0 ||
        !valid_label(machine, CLUSTER_LABEL_MAX) ||
        !valid_text(backing, sizeof(((struct segment *)0)->backing) - 1) ||
        !valid_text(directory, CLUSTER_DIRECTORY_MAX) || numa_node < -1 || numa_node > 1023)
        return cluster_refuse(why_p, TARN_EPROTO, "the record of a node's segment makes no sense");
    struct store_segment_info info;
    if (!store_segment_get(cluster.store, id, &info))
        return cluster_refuse(why_p, TARN_EPROTO,
                              "a node has a segment that the books do not know");
    struct cluster_node *owner = cluster_node_find(name);
    bool embedded = (flags & SEGMENT_EMBEDDED) != 0;
    if (embedded && info.tier != STORE_TIER_MEMORY)
        return cluster_refuse(why_p, TARN_EPROTO, "the server's own segment is no memory");
    if (owner == NULL && !embedded && name.len > 0)
        return cluster_refuse(why_p, TARN_EPROTO, "a segment belongs to a node that is not known");
    struct machine *m = machine_get(machine);
    if (m == NULL) return cluster_refuse(why_p, TARN_EPROTO, "there are too many machines");
    struct segment *g = segment_at(id);
    struct cluster_node *n = embedded ? &cluster.local : owner;
    if (g != NULL && g->node != n) {
        segment_free(g);
        g = NULL;
    }
    if (g == NULL) g = segment_told(id, n);
    machine_put(&g->machine);
    g->machine = m;
    memcpy(g->content, content, sizeof(g->content));
    text_set(g->backing, sizeof(g->backing), backing);
    directory_set(g, directory);
    g->numa_node = numa_node;
    g->huge = (flags & SEGMENT_HUGE) != 0;
    g->drain_wanted = (flags & SEGMENT_DRAIN_WANTED) != 0;
    g->drained = (flags & SEGMENT_DRAINED) != 0;
    fill_from_books(g);
    return TARN_OK;
}

tarn_status cluster_effect_apply(struct span record, const char **why_p) {
    TARN_ASSERT(cluster.following && record.len >= 5);
    struct reader r = {record.data + 5, record.data + record.len, false};
    switch ((uint8_t)record.data[4]) {
    case EFFECT_CLUSTER: return apply_cluster(&r, why_p);
    case EFFECT_NODE: return apply_node(&r, why_p);
    case EFFECT_NODE_GONE: return apply_node_gone(&r, why_p);
    case EFFECT_NODE_SEGMENT: return apply_segment(&r, why_p);
    default: return cluster_refuse(why_p, TARN_EPROTO, "a record is of an unknown kind");
    }
}

/* --- no longer leading --- */

/* What waits for its node. The state in the books stays: it is what was told last. */
static void segment_step_down(struct segment *g) {
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
        const struct segment *g = cluster.segments[id];
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
static void lead_segment(struct segment *g) {
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
        struct segment *g = segment_at(id);
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
    if (cluster.telling) tell(encode_cluster());
    nodes_lead();
    offload_refresh();
    log_notice("The pool is led from here, master epoch %u: %zu nodes are expected to join",
               master_epoch, cluster.nodes.count);
}
