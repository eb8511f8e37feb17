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

/* --- together --- */

void snapshot_clear(struct hosting_snapshot *s) {
    memset(s, 0, sizeof(*s));
}

static void add_times(struct host_times *sum, const struct host_times *one) {
    for (unsigned i = 0; i < one->n; i++) {
        unsigned k = 0;
        while (k < sum->n && strcmp(sum->of[k].scheme, one->of[i].scheme) != 0) k++;
        if (k == HOST_TIMED_MAX) continue;
        if (k == sum->n) sum->of[sum->n++].scheme = one->of[i].scheme;
        transport_times_add(&sum->of[k].times, &one->of[i].times);
    }
}

#define ADD_HOST(type, name, info_name, help) sum->name += one->name;
static void add_host(struct host_stats *sum, const struct host_stats *one) {
    HOST_FIGURES(ADD_HOST, ADD_HOST, ADD_HOST)
    sum->module_peers += one->module_peers;
    sum->staged_bytes += one->staged_bytes;
    for (unsigned i = 0; i < GRANT_VERDICTS; i++) sum->refused[i] += one->refused[i];
    for (unsigned i = 0; i < ARRAY_LEN(one->programs.of); i++)
        if (one->programs.of[i].peers > 0)
            program_add(&sum->programs, one->programs.of[i].program, one->programs.of[i].peers);
}

#define ADD(type, name, help) sum->name += one->name;
static void add_node(struct node_figures *sum, const struct node_figures *one) {
    NODE_FIGURES(ADD)
    sum->load_percent = one->load_percent; /* the machine is one */
    sum->memory_available = one->memory_available;
}

static void add_tier_stats(struct tier_stats *sum, const struct tier_stats *one) {
    TIER_FIGURES(ADD)
}

static void add_far(struct far_figures *sum, const struct far_figures *one) {
    FAR_FIGURES(ADD)
}

static void add_tier(struct hosting_snapshot *s, const struct snapshot_tier *one) {
    unsigned i = 0;
    while (i < s->n_tiers && s->tiers[i].kind != one->kind) i++;
    struct snapshot_tier *sum = &s->tiers[i];
    if (i == s->n_tiers) s->tiers[s->n_tiers++].kind = one->kind;
    add_tier_stats(&sum->tier, &one->tier);
    add_far(&sum->far, &one->far);
    sum->evictions += one->evictions;
    hist_merge(&sum->times.read, &one->times.read);
    hist_merge(&sum->times.write, &one->times.write);
}

static uint64_t snapshot_lent(const struct hosting_snapshot *s) {
    uint64_t lent = 0;
    for (unsigned i = 0; i < s->n_segments; i++)
        if (s->segments[i].kind == HOSTED_MEMORY) lent += s->segments[i].size;
    return lent;
}

void snapshot_add(struct hosting_snapshot *sum, const struct hosting_snapshot *one,
                  const char *shard) {
    if (!one->any) return;
    if (!sum->any) {
        memcpy(sum->name, one->name, sizeof(sum->name));
        memcpy(sum->machine, one->machine, sizeof(sum->machine));
        memcpy(sum->rack, one->rack, sizeof(sum->rack));
        memcpy(sum->shm, one->shm, sizeof(sum->shm));
        sum->data_port = one->data_port;
        sum->up = true;
    }
    sum->any = true;
    sum->taken_ms = max_u64(sum->taken_ms, one->taken_ms);
    sum->up = sum->up && one->up;
    sum->has_standing = sum->has_standing || one->has_standing;
    sum->draining = sum->draining || one->draining;
    sum->maintenance = sum->maintenance || one->maintenance;
    sum->used += one->used;
    add_node(&sum->node, &one->node);
    add_host(&sum->host, &one->host);
    add_times(&sum->times, &one->times);
    hist_merge(&sum->copy_ns, &one->copy_ns);
    for (unsigned i = 0; i < one->n_segments && sum->n_segments < SNAPSHOT_SEGMENTS; i++)
        sum->segments[sum->n_segments++] = one->segments[i];
    for (unsigned i = 0; i < one->n_tiers; i++) add_tier(sum, &one->tiers[i]);
    struct snapshot_share *share = &sum->shares[sum->n_shares++];
    *share = (struct snapshot_share){.data_port = one->data_port,
                                     .up = one->up,
                                     .has_standing = one->has_standing,
                                     .lent = snapshot_lent(one),
                                     .used = one->used};
    snprintf(share->shard, sizeof(share->shard), "%s", shard);
}

/* --- showing --- */

static void show_standing(const struct hosting_snapshot *s, struct figure_walk *f) {
    FIGURE(f, GAUGE, draining, "1: what only it has is moved away", s->draining);
    FIGURE(f, GAUGE, maintenance, "1: nothing new goes there", s->maintenance);
    FIGURE(f, BYTES, lent_memory_used,
           "of lent_memory, in objects and open puts, as the master said", s->used);
}

static void show_node(const struct hosting_snapshot *s, struct figure_walk *f) {
    FIGURE(f, TEXT, node_name, "that it has in the pool", s->name);
    FIGURE(f, TEXT, machine, "it runs on", s->machine);
    FIGURE(f, TEXT, rack, "of the machine", s->rack);
    FIGURE(f, GAUGE, joined, "1: the master has let it in, and is not away; of several: all",
           s->up);
    if (s->has_standing) show_standing(s, f);
    FIGURE(f, BYTES, lent_memory, "that it lends to the pool", snapshot_lent(s));
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
    FIGURES(f, host_node_figures, s->host, staged_reads, staging_shared);
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

/* Of each master, by the name of its shard. */
static void show_shares(const struct hosting_snapshot *s, struct figure_walk *f) {
    for (unsigned i = 0; i < s->n_shares; i++) {
        const struct snapshot_share *share = &s->shares[i];
        figures_group(f, "share", "shard", share->shard);
        FIGURE(f, GAUGE, up, "1: this master has let it in, and is not away", share->up);
        FIGURE(f, GAUGE, port, "for the bytes of its objects", share->data_port);
        FIGURE(f, BYTES, lent, "memory that this master has of the node", share->lent);
        if (share->has_standing)
            FIGURE(f, BYTES, used, "... in objects and open puts, as it said", share->used);
        figures_group_end(f);
    }
}

const char *snapshot_show(const struct hosting_snapshot *s, unsigned part,
                          struct figure_walk *walk) {
    static const struct {
        const char *section;
        void (*show)(const struct hosting_snapshot *s, struct figure_walk *f);
    } parts[] = {{"node", show_node},
                 {"data", show_data},
                 {"pool", show_segments},
                 {"masters", show_shares},
                 {"disks", show_tiers}};
    if (part >= ARRAY_LEN(parts)) return NULL;
    if (s->any) parts[part].show(s, walk);
    return parts[part].section;
}
