#include "front/latency.h"

#include "front/cmd.h"
#include "config/config.h"

uint64_t latency_threshold_ns = UINT64_MAX;

static struct latency_series all[LATENCY_EVENTS] = {
    [LATENCY_COMMAND] = {.name = "command"},
    [LATENCY_FAST_COMMAND] = {.name = "fast-command"},
    [LATENCY_EXPIRE_CYCLE] = {.name = "expire-cycle"},
    [LATENCY_EVICTION_CYCLE] = {.name = "eviction-cycle"},
    [LATENCY_BOOKS_CYCLE] = {.name = "books-cycle"},
    [LATENCY_SNAPSHOT_CYCLE] = {.name = "snapshot-cycle"},
    [LATENCY_AOF_WRITE] = {.name = "aof-write"},
    [LATENCY_AOF_WRITE_PENDING_FSYNC] = {.name = "aof-write-pending-fsync"},
    [LATENCY_AOF_WRITE_ACTIVE_CHILD] = {.name = "aof-write-active-child"},
    [LATENCY_AOF_WRITE_ALONE] = {.name = "aof-write-alone"},
    [LATENCY_AOF_FSYNC_ALWAYS] = {.name = "aof-fsync-always"},
    [LATENCY_AOF_RENAME] = {.name = "aof-rename"},
    [LATENCY_RDB_RENAME] = {.name = "rdb-rename"},
};

void latency_apply_config(void) {
    int64_t ms = config->latency_monitor_threshold_ms;
    latency_threshold_ns = ms > 0 ? (uint64_t)ms * 1000000 : UINT64_MAX;
}

/* One sample a second, the worst. */
void latency_add_at(enum latency_event event, uint64_t ns, uint64_t now_s) {
    struct latency_series *s = &all[event];
    uint64_t ms = ns / 1000000;
    struct latency_sample *last = &s->sample[(s->next + LATENCY_SAMPLES - 1) % LATENCY_SAMPLES];
    s->max_ms = max_u64(s->max_ms, ms);
    if (s->n > 0 && last->wall_s == now_s) {
        last->ms = max_u64(last->ms, ms);
        return;
    }
    s->sample[s->next] = (struct latency_sample){now_s, ms};
    s->next = (s->next + 1) % LATENCY_SAMPLES;
    if (s->n < LATENCY_SAMPLES) s->n++;
}

void latency_add(enum latency_event event, uint64_t ns) {
    latency_add_at(event, ns, clock_wall_ms() / 1000);
}

const struct latency_series *latency_series(enum latency_event event) {
    return &all[event];
}

const struct latency_series *latency_find(struct span name) {
    for (size_t i = 0; i < LATENCY_EVENTS; i++)
        if (span_case_eq(name, all[i].name)) return &all[i];
    return NULL;
}

struct latency_sample latency_sample(const struct latency_series *s, size_t i) {
    TARN_ASSERT(i < s->n);
    return s->sample[(s->next + LATENCY_SAMPLES - s->n + i) % LATENCY_SAMPLES];
}

bool latency_reset(const struct latency_series *s) {
    struct latency_series *own = &all[s - all];
    bool any = own->n > 0;
    *own = (struct latency_series){.name = own->name};
    return any;
}
