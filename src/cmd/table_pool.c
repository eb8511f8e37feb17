/* What tarn adds: puts in two steps, look-ups that tell where the bytes lie, leases, prefixes, eviction,
 * quotas. */
#include "cmd/families.h"
#include "cmd/table.h"

#define W   CMD_WRITE
#define R   CMD_READONLY
#define D   CMD_DENYOOM
#define F   CMD_FAST
#define B   CMD_BLOCKING
#define GRP "@pool @keyspace", "pool", "0.1.0"

#define PUT_OPTIONS                                                                                          \
    "[REPLICAS replicas] [PREFER segment [PREFER segment ...]] [PIN <SOFT pin-milliseconds | HARD>] [GROUP " \
    "group] "                                                                                                \
    "[TTL milliseconds] [REPLACE]"
#define LOOK_OPTIONS "[LEASE lease-milliseconds] [WAIT wait-milliseconds]"

static struct cmd quota_sub[] = {
    {"set", cmd_quota_set, 4, W | CMD_ADMIN, GRP, "Bounds the bytes of all keys with a prefix.",
     "prefix bytes", NO_KEYS, NULL, 0},
    {"get", cmd_quota_get, 3, R, GRP, "Tells limit, use and objects of a prefix.", "prefix", NO_KEYS, NULL,
     0},
    {"list", cmd_quota_list, 2, R, GRP, "Lists all quotas.", "", NO_KEYS, NULL, 0},
    {"del", cmd_quota_del, 3, W | CMD_ADMIN, GRP, "Takes the bound from a prefix.", "prefix", NO_KEYS, NULL,
     0},
    HELP_ROW("pool"),
    TABLE_END,
};

static struct cmd segment_sub[] = {
    {"list", cmd_segment_list, 2, R | CMD_LOADING, GRP, "Lists the segments of the pool.", "", NO_KEYS, NULL,
     0},
    {"info", cmd_segment_info, 3, R | CMD_LOADING, GRP,
     "Tells where a segment is and how full, by name or id.", "segment", NO_KEYS, NULL, 0},
    HELP_ROW("pool"),
    TABLE_END,
};

static struct cmd replica_sub[] = {
    {"report", cmd_replica_report, 4, W, GRP,
     "Tells that the bytes of a version do not match their CRC: they are checked, and removed if they are "
     "bad.",
     "key version", SUB_KEY(KEY_RM | KEY_DELETE), NULL, 0},
    HELP_ROW("pool"),
    TABLE_END,
};

struct cmd table_pool[] = {
    {"putstart", cmd_putstart, -3, W | D, GRP, "Opens a put: makes room and tells where to write.",
     "key size " PUT_OPTIONS, ONE_KEY(KEY_OW | KEY_INSERT), NULL, 0},
    {"putend", cmd_putend, -4, W | F, GRP, "Makes what was put visible.",
     "key token crc [FAILED replica-index [FAILED replica-index ...]] [VALUE value] [CRCS crcs]",
     ONE_KEY(KEY_OW | KEY_UPDATE), NULL, 0},
    {"putrevoke", cmd_putrevoke, 3, W | F, GRP, "Gives a put up.", "key token", ONE_KEY(KEY_RM | KEY_DELETE),
     NULL, 0},
    {"mputstart", cmd_mputstart, -4, W | D, GRP, "Opens many puts, of a prefix in order.",
     "numkeys key size [key size ...] " PUT_OPTIONS, COUNTED(KEY_OW | KEY_INSERT, 2), NULL, 0},
    {"mputend", cmd_mputend, -5, W, GRP, "Makes many puts visible.",
     "numkeys key token crc [key token crc ...] [VALUES value [value ...]] [CRCS crcs [crcs ...]]",
     COUNTED(KEY_OW | KEY_UPDATE, 3), NULL, 0},
    {"mputrevoke", cmd_mputrevoke, -4, W, GRP, "Gives many puts up.", "numkeys key token [key token ...]",
     COUNTED(KEY_RM | KEY_DELETE, 2), NULL, 0},
    {"getreplicas", cmd_getreplicas, -2, R | B, GRP, "Tells where a value lies, and protects it for a time.",
     "key " LOOK_OPTIONS " [CRCS]", ONE_KEY(KEY_RO | KEY_ACCESS), NULL, 0},
    {"mgetreplicas", cmd_mgetreplicas, -3, R | B, GRP,
     "Tells where many values lie, and protects them for a time.",
     "numkeys key [key ...] " LOOK_OPTIONS " [CRCS]", COUNTED(KEY_RO | KEY_ACCESS, 1), NULL, 0},
    {"release", cmd_release, -4, R, GRP, "Ends leases of this connection early.",
     "numkeys key version [key version ...]", COUNTED(KEY_RO, 2), NULL, 0},
    {"mexists", cmd_mexists, -3, R, GRP, "Tells of each key whether it is readable. Takes no lease.",
     "numkeys key [key ...]", COUNTED(KEY_RO, 1), NULL, 0},
    {"prefixlen", cmd_prefixlen, -3, R | B, GRP, "Counts the leading keys that are readable.",
     "numkeys key [key ...] " LOOK_OPTIONS, COUNTED(KEY_RO | KEY_ACCESS, 1), NULL, 0},
    {"evict", cmd_evict, -1, W, GRP, "Frees space now, in the order of the policy or of the keys given.",
     "[BYTES bytes | RATIO ratio] [KEYS numkeys key [key ...]]", COUNTED_AFTER(KEY_RM | KEY_DELETE, "KEYS"),
     NULL, 0},
    {"removematch", cmd_removematch, -3, W, "@pool @keyspace @dangerous", "pool", "0.1.0",
     "Removes the keys that match a pattern.", "<GLOB | REGEX> pattern [COUNT count]", NO_KEYS, NULL, 0},
    {"pin", cmd_pin, -3, W | F, GRP, "Keeps a key from eviction, or no longer.",
     "key <SOFT pin-milliseconds | HARD | NONE>", ONE_KEY(KEY_RW | KEY_UPDATE), NULL, 0},
    {"quota", NULL, -2, 0, NULL, "pool", "0.1.0", "Bounds the pool's bytes by key prefix.", "", NO_KEYS,
     quota_sub, 0},
    {"segment", NULL, -2, 0, NULL, "pool", "0.1.0", "Looks at the segments of the pool.", "", NO_KEYS,
     segment_sub, 0},
    {"replica", NULL, -2, 0, NULL, "pool", "0.1.0", "Concerns single copies of an object.", "", NO_KEYS,
     replica_sub, 0},
    TABLE_END,
};
