/* Options of Redis that tune what tarn does not have: there is nothing to set, and whoever brings a file of Redis should hear why. */
#include <string.h>
#include "base/assert.h"
#include "cmd/config_table.h"

static const char no_type[] = "tarn has strings and blocks of a pool, no other data types";
static const char no_slots[] = "tarn has no slots; one server leads, and Sentinels look after it";
static const char no_script[] = "tarn runs no scripts";
static const char no_child[] = "tarn forks no child processes";
static const char no_defrag[] = "tarn does not move memory while it runs";

/* A prefix ends with '*'. */
static const struct {
    const char *name, *why;
} absent[] = {
    {"hash-max-*", no_type},
    {"list-*", no_type},
    {"set-max-*", no_type},
    {"zset-max-*", no_type},
    {"hll-*", no_type},
    {"stream-node-*", no_type},
    {"sanitize-dump-payload", "tarn has no RESTORE"},
    {"cluster-*", no_slots},
    {"lua-time-limit", no_script},
    {"busy-reply-threshold", no_script},
    {"bgsave_cpulist", no_child},
    {"aof_rewrite_cpulist", no_child},
    {"server_cpulist", "start it with taskset or numactl; numa-node is about the memory of the pool"},
    {"bio_cpulist", "start it with taskset or numactl; numa-node is about the memory of the pool"},
    {"active-defrag-*", no_defrag},
    {"maxmemory-eviction-tenacity", "evictions take their turn with everything else: loop-work-quota"},
    {"tracking-table-max-keys", "tarn has no CLIENT TRACKING; a lease tells how long a place may be read"},
    {"ignore-warnings", "tarn has no warning that could be ignored"},
    {"aof-disable-auto-gc", "an append-only file is one file: nothing is left to collect"},
    {"watchdog-period", "LATENCY shows what held the loop up: latency-monitor-threshold"},
    {"rdb-key-save-delay", "it exists for tests of Redis"},
    {"key-load-delay", "it exists for tests of Redis"},
    {"loading-process-events-interval-bytes", "it exists for tests of Redis"},
    {"use-exit-on-panic", "it exists for tests of Redis"},
};

const char *config_absent(struct span name) {
    for (size_t i = 0; i < ARRAY_LEN(absent); i++) {
        size_t len = strlen(absent[i].name);
        bool prefix = absent[i].name[len - 1] == '*';
        struct span shown = prefix && name.len >= len ? span_of(name.data, len - 1) : name;
        struct span known = span_of(absent[i].name, prefix ? len - 1 : len);
        if (shown.len != known.len) continue;
        size_t k = 0;
        while (k < known.len &&
               (shown.data[k] | (shown.data[k] >= 'A' && shown.data[k] <= 'Z' ? 0x20 : 0)) == known.data[k])
            k++;
        if (k == known.len) return absent[i].why;
    }
    return NULL;
}
