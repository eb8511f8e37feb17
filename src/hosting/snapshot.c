#include "hosting/snapshot.h"

#include <stdio.h>

#include "base/assert.h"

/* --- taking --- */

static void take_segment(struct snapshot_segment *to, const struct tarn_host *h,
                         const struct hosted *seg) {
    struct host_segment_info info = {.backing = "directory", .numa_node = -1};
    if (seg->kind != HOSTED_FILE) host_slot_get(h->host, seg->slot, &info);
    *to = (struct snapshot_segment){.kind = seg->kind,
                                    .id = seg->id,
                                    .epoch = seg->epoch,
                                    .size = seg->size,
                                    .mounted = seg->mounted,
                                    .huge = info.huge,
                                    .numa_node = info.numa_node,
                                    .backing = info.backing};
    snprintf(to->name, sizeof(to->name), "%s", seg->name);
}

static bool take_tier(struct snapshot_tier *to, struct hosting_far *f) {
    if (far_tier(f) == NULL) return false;
    f->figures.offering = f->offering.active;
    *to = (struct snapshot_tier){
        .kind = f->segment->kind, .far = f->figures, .evictions = f->n_evictions};
    tier_get_stats(f->tier, &to->tier);
    tier_get_times(f->tier, &to->times);
    return true;
}

void snapshot_take(struct hosting_snapshot *s, struct tarn_host *h) {
    const char *shm = host_shm_path(h->host);
    s->any = true;
    s->taken_ms = now_ms();
    snprintf(s->name, sizeof(s->name), "%s", h->name);
    snprintf(s->machine, sizeof(s->machine), "%s", h->machine);
    snprintf(s->rack, sizeof(s->rack), "%s", h->rack != NULL ? h->rack : "");
    snprintf(s->shm, sizeof(s->shm), "%s", shm != NULL ? shm : "");
    s->data_port = host_data_port(h->host);
    s->up = h->session.phase == PHASE_UP;
    s->has_standing = h->session.has_standing;
    s->draining = s->up && (h->session.draining || h->session.drain_sent);
    s->maintenance = s->up && h->session.maintenance;
    s->used = h->session.used;
    stats_gather(h, &s->host);
    s->node = h->figures;
    host_get_times(h->host, &s->times);
    s->copy_ns = h->copy_ns;
    s->n_segments = s->n_tiers = 0;
    for (unsigned i = 0; i < h->n_segments; i++) {
        if (h->segments[i].gone) continue;
        take_segment(&s->segments[s->n_segments++], h, &h->segments[i]);
    }
    for (unsigned i = 0; i < h->n_fars; i++)
        s->n_tiers += take_tier(&s->tiers[s->n_tiers], &h->fars[i]);
}

/* --- showing --- */

static void show_standing(const struct hosting_snapshot *s, struct figure_walk *f) {
    FIGURE(f, GAUGE, draining, "1: what only it has is moved away", s->draining);
    FIGURE(f, GAUGE, maintenance, "1: nothing new goes there", s->maintenance);
    FIGURE(f, BYTES, lent_memory_used,
           "of lent_memory, in objects and open puts, as the master said", s->used);
}

static void show_node(const struct hosting_snapshot *s, struct figure_walk *f) {
    uint64_t lent = 0;
    for (unsigned i = 0; i < s->n_segments; i++)
        if (s->segments[i].kind == HOSTED_MEMORY) lent += s->segments[i].size;
    FIGURE(f, TEXT, node_name, "that it has in the pool", s->name);
    FIGURE(f, TEXT, machine, "it runs on", s->machine);
    FIGURE(f, TEXT, rack, "of the machine", s->rack);
    FIGURE(f, GAUGE, joined, "1: the master has let it in, and is not away", s->up);
    if (s->has_standing) show_standing(s, f);
    FIGURE(f, BYTES, lent_memory, "that it lends to the pool", lent);
    FIGURE(f, MEAN, machine_load, "over a minute, 1: one core", (double)s->node.load_percent / 100);
    FIGURES(f, node_figures, s->node, memory_available, copy_bytes);
    FIGURE_HIST(f, HIST_NS, copy_duration, "of replicas made, from when their turn came",
                &s->copy_ns);
}

static void show_data(const struct hosting_snapshot *s, struct figure_walk *f) {
    FIGURE(f, GAUGE, data_port, "for the bytes of objects", s->data_port);
    FIGURE(f, TEXT, shm_socket, "for shared memory", s->shm);
    FIGURES(f, host_figures, s->host, connections, bytes_written);
    host_show_programs(f, &s->host);
    host_show_refused(f, &s->host);
    FIGURES(f, host_figures, s->host, bad_frames, puts);
    FIGURES(f, host_node_figures, s->host, staged_reads, staging_waits);
    host_show_times(f, &s->times);
}

static void show_segments(const struct hosting_snapshot *s, struct figure_walk *f) {
    FIGURE(f, GAUGE, segments, "that the node lends", s->n_segments);
    for (unsigned i = 0; i < s->n_segments; i++) {
        const struct snapshot_segment *g = &s->segments[i];
        figures_group(f, "segment", "segment", g->name);
        FIGURE(f, GAUGE, id, "at the master", g->id);
        FIGURE(f, GAUGE, epoch, "grows when its content is lost or replaced", g->epoch);
        FIGURE(f, BYTES, size, "of the segment", g->size);
        FIGURE(f, GAUGE, mounted, "1: the master has it", g->mounted);
        FIGURE(f, TEXT, backing, "memfd, file, memory, reader, directory", g->backing);
        FIGURE(f, GAUGE, huge, "1: in huge pages", g->huge);
        FIGURE(f, GAUGE, numa_node, "that it is bound to, -1: none", g->numa_node);
        FIGURE(f, TEXT, tier, "memory, ssd, file", hosted_tiers[g->kind]);
        figures_group_end(f);
    }
}

static void show_tiers(const struct hosting_snapshot *s, struct figure_walk *f) {
    uint64_t size = 0, used = 0;
    for (unsigned i = 0; i < s->n_tiers; i++) {
        const struct snapshot_tier *t = &s->tiers[i];
        size += t->tier.size;
        used += t->tier.used;
        figures_group(f, "tier", "tier", hosted_tiers[t->kind]);
        FIGURES(f, tier_figures, t->tier, size, queued_bytes);
        FIGURES(f, far_figures, t->far, stored, store_bytes);
        FIGURES(f, tier_figures, t->tier, queue_full, read_only);
        FIGURES(f, far_figures, t->far, offering, offering);
        FIGURE_HIST(f, HIST_NS, read_duration, "reads of it, as the disk answers", &t->times.read);
        FIGURE_HIST(f, HIST_NS, write_duration,
                    "values stored there, from when they were taken until they were on disk",
                    &t->times.write);
        FIGURE(f, GAUGE, evictions_pending, "parts of it on their way out", t->evictions);
        figures_group_end(f);
    }
    if (s->n_tiers == 0) return;
    FIGURE(f, BYTES, disk_size, "of all tiers that are not memory", size);
    FIGURE(f, BYTES, disk_used, "... in entries and what has not been reclaimed", used);
}

const char *snapshot_show(const struct hosting_snapshot *s, unsigned part,
                          struct figure_walk *walk) {
    static const struct {
        const char *section;
        void (*show)(const struct hosting_snapshot *s, struct figure_walk *f);
    } parts[] = {
        {"node", show_node}, {"data", show_data}, {"pool", show_segments}, {"disks", show_tiers}};
    if (part >= ARRAY_LEN(parts)) return NULL;
    if (s->any) parts[part].show(s, walk);
    return parts[part].section;
}
