/* Figures: for the master with every other heartbeat (NODE INFO shows them), and for
 * tarn_host_get_info. */
#include <stdio.h>
#include <stdlib.h>

#include "client/hosting.h"

struct figures {
    struct {
        char name[32];
        uint64_t value;
    } of[64]; /* as many as the master keeps */
    size_t n;
};

static void add(struct figures *f, const char *prefix, const char *name, uint64_t value) {
    TARN_ASSERT(f->n < ARRAY_LEN(f->of));
    snprintf(f->of[f->n].name, sizeof(f->of[f->n].name), "%s%s", prefix, name);
    f->of[f->n++].value = min_u64(value, INT64_MAX);
}

static void add_host(struct figures *f, struct tarn_host *h) {
    struct host_stats s;
    host_get_stats(h->host, &s);
    uint64_t refused = 0;
    for (int v = GRANT_OK + 1; v < GRANT_VERDICTS; v++) refused += s.refused[v];
    add(f, "", "connections", s.connections);
    add(f, "", "connections-total", s.connections_total);
    add(f, "", "connections-refused", s.connections_refused);
    add(f, "", "shm-peers", s.shm_peers);
    add(f, "", "shm-attaches", s.shm_attaches);
    add(f, "", "reads", s.reads);
    add(f, "", "writes", s.writes);
    add(f, "", "bytes-read", s.bytes_read);
    add(f, "", "bytes-written", s.bytes_written);
    add(f, "", "refused-grants", refused);
    add(f, "", "refused-expired", s.refused[GRANT_EXPIRED]);
    add(f, "", "refused-epoch", s.refused[GRANT_BAD_EPOCH]);
    add(f, "", "bad-frames", s.bad_frames);
    add(f, "", "timeouts", s.timeouts);
    add(f, "", "fences-pending", s.fences_pending);
    add(f, "", "fenced-sessions", s.fenced_sessions);
    add(f, "", "puts", s.puts);
    add(f, "", "staged-reads", s.staged_reads);
    add(f, "", "staged-failures", s.staged_failures);
    add(f, "", "staging-used", s.staging_used);
    add(f, "", "staging-waits", s.staging_waits);
}

static void add_far(struct figures *f, const struct far *far) {
    char p[8];
    struct tier_stats s;
    if (far_tier(far) == NULL) return;
    tier_get_stats(far->tier, &s);
    snprintf(p, sizeof(p), "%s-", far->kind);
    add(f, p, "size", s.size);
    add(f, p, "used", s.used);
    add(f, p, "entries", s.entries);
    add(f, p, "queued-bytes", s.queued_bytes);
    add(f, p, "stored", far->stored);
    add(f, p, "store-failures", far->store_failures);
    add(f, p, "store-bytes", far->store_bytes);
    add(f, p, "queue-full", s.put_refused);
    add(f, p, "reads", s.reads);
    add(f, p, "read-bytes", s.read_bytes);
    add(f, p, "read-failures", s.read_failures);
    add(f, p, "evicted", s.evicted);
    add(f, p, "dropped", s.dropped);
    add(f, p, "damaged", s.damaged);
    add(f, p, "read-only", s.read_only);
    add(f, p, "offering", far->offering.active);
}

void stats_args(struct tarn_host *h, struct hosting_link *l) {
    struct figures f = {.n = 0};
    double load = 0;
    if (getloadavg(&load, 1) == 1) add(&f, "", "load-percent", (uint64_t)(load * 100));
    add(&f, "", "memory-available",
        pool_memory_available("/proc", "/sys/fs/cgroup", &(const char *){NULL}));
    add_host(&f, h);
    add(&f, "", "segments-with-keys", keys_count(h));
    add(&f, "", "joins", h->joins);
    add(&f, "", "heartbeats", h->heartbeats);
    add(&f, "", "heartbeat-failures", h->heartbeat_failures);
    add(&f, "", "tasks", h->n_tasks);
    add(&f, "", "copies-running", h->copies_out);
    add(&f, "", "copies-done", h->copies_done);
    add(&f, "", "copies-failed", h->copies_failed);
    add(&f, "", "copy-bytes", h->copy_bytes);
    for (unsigned i = 0; i < h->n_fars; i++) add_far(&f, &h->fars[i]);
    link_str(l, "STATS");
    link_u64(l, f.n);
    for (size_t i = 0; i < f.n; i++) {
        char *name = arena_alloc(&l->args, sizeof(f.of[i].name));
        memcpy(name, f.of[i].name, sizeof(f.of[i].name));
        link_str(l, name);
        link_u64(l, f.of[i].value);
    }
}

static int state_of(const struct tarn_host *h) {
    const struct session *s = &h->session;
    if (s->phase == PHASE_LEFT) return TARN_HOST_LEFT;
    if (s->drain_sent || s->closing == CLOSE_LEAVE) return TARN_HOST_LEAVING;
    return s->phase == PHASE_UP ? TARN_HOST_UP : TARN_HOST_JOINING;
}

static void fill(struct tarn_host *h, tarn_host_info *info) {
    struct host_stats s;
    host_get_stats(h->host, &s);
    *info = (tarn_host_info){
        .size = sizeof(*info),
        .state = state_of(h),
        .data_port = host_data_port(h->host),
        .joins = h->joins,
        .heartbeats = h->heartbeats,
        .heartbeat_failures = h->heartbeat_failures,
        .copies_done = h->copies_done,
        .copies_failed = h->copies_failed,
        .copy_bytes = h->copy_bytes,
        .reads = s.reads,
        .writes = s.writes,
        .bytes_read = s.bytes_read,
        .bytes_written = s.bytes_written,
    };
    for (unsigned i = 0; i < h->n_segments; i++) {
        if (h->segments[i].kind != HOSTED_MEMORY || h->segments[i].gone) continue;
        info->segments++;
        info->bytes += h->segments[i].size;
    }
    for (unsigned i = 0; i < h->n_fars; i++) {
        const struct far *f = &h->fars[i];
        struct tier_stats t = {0};
        if (far_tier(f) != NULL) tier_get_stats(f->tier, &t);
        info->stored += f->stored;
        info->store_failures += f->store_failures;
        info->store_bytes += f->store_bytes;
        if (f->segment->kind == HOSTED_SSD) {
            info->ssd_used = t.used;
            info->ssd_entries = t.entries;
            info->ssd_reads = t.reads;
        } else {
            info->file_used = t.used;
            info->file_entries = t.entries;
        }
    }
    snprintf(info->last_error, sizeof(info->last_error), "%s", h->session.why);
}

void stats_publish(struct tarn_host *h) {
    pthread_mutex_lock(&h->mutex);
    uint64_t wanted = h->info_wanted;
    bool stale = wanted != h->info_made || h->info.state != state_of(h);
    pthread_mutex_unlock(&h->mutex);
    if (!stale) return;
    tarn_host_info info;
    fill(h, &info);
    pthread_mutex_lock(&h->mutex);
    h->info = info;
    h->info_made = wanted;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->mutex);
}
