/* Options of Redis that tune what tarn does not have. Nothing changes without most of them, so a
 * file may have them, and the log names them once. Without the others a promise would be broken:
 * they are refused, with what to do instead. */
#include <string.h>
#include "base/assert.h"
#include "config/table.h"

static const char no_type[] = "tarn has strings and blocks of a pool, no other data types";
static const char no_slots[] = "tarn has no slots; one server leads, and Sentinels look after it";
static const char no_script[] = "tarn runs no scripts";
static const char no_child[] = "tarn forks no child processes";
static const char no_defrag[] = "tarn does not move memory while it runs";
static const char for_tests[] = "it exists for tests of Redis";
static const char no_pinning[] = "tarn-server does not choose its processors: start it with "
                                 "taskset, numactl or systemd's CPUAffinity";

static const struct {
    const char *name, *why;
    bool matters;
} absent[] = {
    {"hash-max-listpack-entries", no_type, false},
    {"hash-max-listpack-value", no_type, false},
    {"hash-max-ziplist-entries", no_type, false},
    {"hash-max-ziplist-value", no_type, false},
    {"list-max-listpack-size", no_type, false},
    {"list-max-ziplist-size", no_type, false},
    {"list-max-ziplist-entries", no_type, false},
    {"list-max-ziplist-value", no_type, false},
    {"list-compress-depth", no_type, false},
    {"set-max-intset-entries", no_type, false},
    {"set-max-listpack-entries", no_type, false},
    {"set-max-listpack-value", no_type, false},
    {"zset-max-listpack-entries", no_type, false},
    {"zset-max-listpack-value", no_type, false},
    {"zset-max-ziplist-entries", no_type, false},
    {"zset-max-ziplist-value", no_type, false},
    {"hll-sparse-max-bytes", no_type, false},
    {"stream-node-max-bytes", no_type, false},
    {"stream-node-max-entries", no_type, false},
    {"sanitize-dump-payload", "tarn has no RESTORE", false},
    {"cluster-allow-pubsubshard-when-down", no_slots, false},
    {"cluster-allow-reads-when-down", no_slots, false},
    {"cluster-allow-replica-migration", no_slots, false},
    {"cluster-announce-bus-port", no_slots, false},
    {"cluster-announce-hostname", no_slots, false},
    {"cluster-announce-human-nodename", no_slots, false},
    {"cluster-announce-ip", no_slots, false},
    {"cluster-announce-port", no_slots, false},
    {"cluster-announce-tls-port", no_slots, false},
    {"cluster-config-file", no_slots, false},
    {"cluster-link-sendbuf-limit", no_slots, false},
    {"cluster-migration-barrier", no_slots, false},
    {"cluster-node-timeout", no_slots, false},
    {"cluster-port", no_slots, false},
    {"cluster-preferred-endpoint-type", no_slots, false},
    {"cluster-replica-no-failover", no_slots, false},
    {"cluster-replica-validity-factor", no_slots, false},
    {"cluster-require-full-coverage", no_slots, false},
    {"cluster-slave-no-failover", no_slots, false},
    {"cluster-slave-validity-factor", no_slots, false},
    {"tls-cluster", no_slots, false},
    {"lua-time-limit", no_script, false},
    {"busy-reply-threshold", no_script, false},
    {"locale-collate", no_script, false},
    {"bgsave_cpulist", no_child, false},
    {"aof_rewrite_cpulist", no_child, false},
    {"server_cpulist", no_pinning, true},
    {"bio_cpulist", no_pinning, true},
    {"active-defrag-cycle-max", no_defrag, false},
    {"active-defrag-cycle-min", no_defrag, false},
    {"active-defrag-ignore-bytes", no_defrag, false},
    {"active-defrag-max-scan-fields", no_defrag, false},
    {"active-defrag-threshold-lower", no_defrag, false},
    {"active-defrag-threshold-upper", no_defrag, false},
    {"maxmemory-eviction-tenacity",
     "evictions take their turn with everything else: loop-work-quota", false},
    {"ignore-warnings", "tarn has no warning that could be ignored", false},
    {"aof-disable-auto-gc", "an append-only file is one file: nothing is left to collect", false},
    {"watchdog-period", "LATENCY shows what held the loop up: latency-monitor-threshold", false},
    {"rdb-key-save-delay", for_tests, false},
    {"key-load-delay", for_tests, false},
    {"loading-process-events-interval-bytes", for_tests, false},
    {"use-exit-on-panic", for_tests, false},
};

const char *config_absent(struct span name, bool *matters_p) {
    for (size_t i = 0; i < ARRAY_LEN(absent); i++) {
        if (!span_case_eq(name, absent[i].name)) continue;
        *matters_p = absent[i].matters;
        return absent[i].why;
    }
    return NULL;
}
