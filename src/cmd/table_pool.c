/* What tarn adds: puts in two steps, look-ups that tell where the bytes lie, leases, prefixes,
 * eviction, quotas. */
#include "cmd/families.h"
#include "cmd/table.h"

#define W CMD_WRITE
#define R CMD_READONLY
#define D CMD_DENYOOM
#define F CMD_FAST
#define B CMD_BLOCKING
#define N                                                                                          \
    (CMD_ADMIN | CMD_LOADING | CMD_STALE | CMD_ALLOW_BUSY | CMD_NO_MULTI |                         \
     CMD_MASTER) /* a paused pool must not lose its nodes */
/* Everybody's; the operator's; what is about single objects is in @keyspace, too. */
#define POOL  "@pool", "pool", "0.1.0"
#define ADMIN "@pool @admin @dangerous", "pool", "0.1.0"
#define GRP   "@pool @keyspace", "pool", "0.1.0"
#define FAR_KEYS(f, step)                                                                          \
    {                                                                                              \
        { (f), 5, true, 0, (step), 0, NULL }                                                       \
    }

#define PUT_OPTIONS                                                                                \
    "[REPLICAS replicas] [PREFER segment [PREFER segment ...]] [AVOID segment [AVOID segment "     \
    "...]] [PIN "                                                                                  \
    "<SOFT pin-milliseconds | HARD>] [GROUP "                                                      \
    "group] "                                                                                      \
    "[TTL milliseconds] [REPLACE]"
#define LOOK_OPTIONS "[LEASE lease-milliseconds] [WAIT wait-milliseconds]"

static struct cmd quota_sub[] = {
    {"set", cmd_quota_set, 4, W | CMD_ADMIN, ADMIN, "Bounds the bytes of all keys with a prefix.",
     "prefix bytes", NO_KEYS, NULL, 0},
    {"get", cmd_quota_get, 3, R, ADMIN, "Tells limit, use and objects of a prefix.", "prefix",
     NO_KEYS, NULL, 0},
    {"list", cmd_quota_list, 2, R, ADMIN, "Lists all quotas.", "", NO_KEYS, NULL, 0},
    {"del", cmd_quota_del, 3, W | CMD_ADMIN, ADMIN, "Takes the bound from a prefix.", "prefix",
     NO_KEYS, NULL, 0},
    HELP_ROW("pool"),
    TABLE_END,
};

static struct cmd segment_sub[] = {
    {"mount", cmd_segment_mount, -11, N, ADMIN,
     "A node adds a segment to the pool, or brings it back.",
     "node instance segment TIER <memory | ssd | file> SIZE bytes CONTENT content-id [BACKING "
     "backing] "
     "[HUGE <yes | no>] [NUMA numa-node] [DIRECTORY directory] [ENDPOINTS count [uri [uri ...]]] "
     "[KEYS count [uri read-key write-key [uri read-key write-key ...]]]",
     NO_KEYS, NULL, 0},
    {"keys", cmd_segment_keys, -6, N, ADMIN,
     "A node tells how its segment is reached by transports of modules.",
     "node instance segment count [uri read-key write-key [uri read-key write-key ...]]", NO_KEYS,
     NULL, 0},
    {"unmount", cmd_segment_unmount, 3, N | B, ADMIN,
     "Takes a segment out of the pool; answers when its last lease is over.", "segment", NO_KEYS,
     NULL, 0},
    {"list", cmd_segment_list, 2, R | CMD_LOADING, ADMIN, "Lists the segments of the pool.", "",
     NO_KEYS, NULL, 0},
    {"info", cmd_segment_info, 3, R | CMD_LOADING, POOL,
     "Tells where a segment is and how full, by name or id.", "segment", NO_KEYS, NULL, 0},
    {"attach", cmd_segment_attach, 3, CMD_LOADING, "@pool @direct", "pool", "0.1.0",
     "Tells how to reach the bytes of a segment without its host: shared memory and RDMA.",
     "segment", NO_KEYS, NULL, 0},
    {"drain", cmd_segment_drain, -3, N, ADMIN,
     "Moves what is only in a segment, then takes it out of the pool.", "segment [CANCEL]", NO_KEYS,
     NULL, 0},
    HELP_ROW("pool"),
    TABLE_END,
};

static struct cmd node_sub[] = {
    {"join", cmd_node_join, -6, N, ADMIN, "A storage node enters the pool.",
     "node instance MACHINE machine [RACK rack] [VERSION version]", NO_KEYS, NULL, 0},
    {"up", cmd_node_up, 4, N, ADMIN, "Its segments are mounted: they may be used.", "node instance",
     NO_KEYS, NULL, 0},
    {"heartbeat", cmd_node_heartbeat, -4, N | B, ADMIN,
     "Shows that a node lives, and asks for work.",
     "node instance [WAIT milliseconds] [STATS count field value [field value ...]] [REPORT scheme "
     "report "
     "[REPORT scheme report ...]]",
     NO_KEYS, NULL, 0},
    {"fenced", cmd_node_fenced, 5, N, ADMIN, "A session can no longer write to this node.",
     "node instance session", NO_KEYS, NULL, 0},
    {"done", cmd_node_done, -9, N, ADMIN, "What became of tasks.",
     "node instance count task status offset crc [task status offset crc ...]", NO_KEYS, NULL, 0},
    {"evicted", cmd_node_evicted, -8, N, ADMIN, "A node's disk lets objects go.",
     "node instance segment numkeys key version [key version ...]",
     FAR_KEYS(KEY_RM | KEY_DELETE, 2), NULL, 0},
    {"offer", cmd_node_offer, -12, N, ADMIN, "A node found objects on its disk.",
     "node instance segment numkeys key version size crc offset crcs [key version size crc offset "
     "crcs ...]",
     FAR_KEYS(KEY_OW | KEY_INSERT, 6), NULL, 0},
    {"list", cmd_node_list, 2, R | CMD_LOADING, ADMIN, "Lists the nodes of the pool.", "", NO_KEYS,
     NULL, 0},
    {"info", cmd_node_info, 3, R | CMD_LOADING, ADMIN, "Tells all that is known of a node.", "node",
     NO_KEYS, NULL, 0},
    {"drain", cmd_node_drain, -3, N, ADMIN,
     "Moves what is only on a node; then it leaves the pool.", "node [CANCEL]", NO_KEYS, NULL, 0},
    {"maintenance", cmd_node_maintenance, 4, N, ADMIN,
     "A node gets no new objects, or does so again; what it has stays readable.", "node <ON | OFF>",
     NO_KEYS, NULL, 0},
    {"leave", cmd_node_leave, 3, N, ADMIN, "A node leaves the pool at once; nothing is moved.",
     "node", NO_KEYS, NULL, 0},
    HELP_ROW("pool"),
    TABLE_END,
};

static struct cmd replica_sub[] = {
    {"copy", cmd_replica_copy, -3, W | B, ADMIN, "Plans one more replica of a key.",
     "key [TO segment] [WAIT milliseconds]", SUB_KEY(KEY_RW | KEY_UPDATE), NULL, 0},
    {"move", cmd_replica_move, -5, W | B, ADMIN, "Plans a replica of a key in another place.",
     "key FROM segment [TO segment] [WAIT milliseconds]", SUB_KEY(KEY_RW | KEY_UPDATE), NULL, 0},
    {"drop", cmd_replica_drop, 5, W, ADMIN, "Takes one replica of a key away.", "key FROM segment",
     SUB_KEY(KEY_RW | KEY_UPDATE), NULL, 0},
    {"list", cmd_replica_list, 3, R, ADMIN, "Lists the replicas of a key.", "key", SUB_KEY(KEY_RO),
     NULL, 0},
    {"tasks", cmd_replica_tasks, -2, R | CMD_ALL_KEYS, ADMIN,
     "Lists what is on its way, and what lately was.",
     "[COUNT count] [STATE <queued | room | sent | done | failed | canceled>]", NO_KEYS, NULL, 0},
    {"cancel", cmd_replica_cancel, 3, W, ADMIN, "Gives a task up.", "task-id", NO_KEYS, NULL, 0},
    {"report", cmd_replica_report, 4, W, "@pool @read", "pool", "0.1.0",
     "Tells that the bytes of a version do not match their CRC: they are checked, and removed if "
     "they are "
     "bad.",
     "key version", SUB_KEY(KEY_RO | KEY_ACCESS), NULL, 0},
    HELP_ROW("pool"),
    TABLE_END,
};

/* Readers see the keys that they may read, so they need not be allowed all. */
#define EVENTS "@pool @keyspace", "pool", "0.1.0"

static struct cmd kvevents_sub[] = {
    {"read", cmd_kvevents_read, -4, R | B | CMD_MASTER, EVENTS,
     "Answers what became of keys, replicas and segments since an event.",
     "epoch seq [COUNT count] [BLOCK milliseconds] [MATCH prefix]", NO_KEYS, NULL, 0},
    {"walk", cmd_kvevents_walk, -3, R | CMD_MASTER, EVENTS,
     "Walks over the keys with their sizes and places, a part each time.",
     "cursor [COUNT count] [MATCH prefix]", NO_KEYS, NULL, 0},
    {"info", cmd_kvevents_info, 2, R | CMD_MASTER, EVENTS,
     "Tells the epoch, the events that are there, and the segments that are down.", "", NO_KEYS,
     NULL, 0},
    HELP_ROW("pool"),
    TABLE_END,
};

struct cmd table_pool[] = {
    {"putstart", cmd_putstart, -3, W | D, GRP, "Opens a put: makes room and tells where to write.",
     "key size " PUT_OPTIONS, ONE_KEY(KEY_OW | KEY_INSERT), NULL, 0},
    {"putend", cmd_putend, -4, W | F, GRP, "Makes what was put visible.",
     "key token crc [FAILED replica-index [FAILED replica-index ...]] [VALUE value] [CRCS crcs] "
     "[RECEIPTS "
     "receipts]",
     ONE_KEY(KEY_OW | KEY_UPDATE), NULL, 0},
    {"putrevoke", cmd_putrevoke, -3, W | F, GRP, "Gives a put up.", "key token [RECEIPTS receipts]",
     ONE_KEY(KEY_RM | KEY_DELETE), NULL, 0},
    {"mputstart", cmd_mputstart, -4, W | D, GRP, "Opens many puts, of a prefix in order.",
     "numkeys key size [key size ...] " PUT_OPTIONS " [PACKED]", COUNTED(KEY_OW | KEY_INSERT, 2),
     NULL, 0},
    {"mputend", cmd_mputend, -5, W, GRP, "Makes many puts visible.",
     "numkeys key token crc [key token crc ...] [VALUES value [value ...]] [CRCS crcs [crcs ...]] "
     "[RECEIPTS receipts [receipts ...]]",
     COUNTED(KEY_OW | KEY_UPDATE, 3), NULL, 0},
    {"mputrevoke", cmd_mputrevoke, -4, W, GRP, "Gives many puts up.",
     "numkeys key token [key token ...] [RECEIPTS receipts [receipts ...]]",
     COUNTED(KEY_RM | KEY_DELETE, 2), NULL, 0},
    {"getreplicas", cmd_getreplicas, -2, R | B | CMD_MASTER, GRP,
     "Tells where a value lies, and protects it for a time.", "key " LOOK_OPTIONS " [CRCS]",
     ONE_KEY(KEY_RO | KEY_ACCESS), NULL, 0},
    {"mgetreplicas", cmd_mgetreplicas, -3, R | B | CMD_MASTER, GRP,
     "Tells where many values lie, and protects them for a time.",
     "numkeys key [key ...] " LOOK_OPTIONS " [CRCS] [PACKED]", COUNTED(KEY_RO | KEY_ACCESS, 1),
     NULL, 0},
    {"release", cmd_release, -4, R | CMD_MASTER, GRP, "Ends leases of this connection early.",
     "numkeys key version [key version ...]", COUNTED(KEY_RO, 2), NULL, 0},
    {"mexists", cmd_mexists, -3, R, GRP,
     "Tells of each key whether it is readable. Takes no lease.", "numkeys key [key ...]",
     COUNTED(KEY_RO, 1), NULL, 0},
    {"prefixlen", cmd_prefixlen, -3, R | B, GRP, "Counts the leading keys that are readable.",
     "numkeys key [key ...] " LOOK_OPTIONS, COUNTED(KEY_RO | KEY_ACCESS, 1), NULL, 0},
    {"evict", cmd_evict, -1, W | CMD_ALL_KEYS, ADMIN,
     "Frees space now, in the order of the policy or of the keys given.",
     "[BYTES bytes | RATIO ratio] [KEYS numkeys key [key ...]]",
     COUNTED_AFTER(KEY_RM | KEY_DELETE, "KEYS"), NULL, 0},
    {"removematch", cmd_removematch, -3, W | CMD_ALL_KEYS, "@pool @keyspace @dangerous", "pool",
     "0.1.0", "Removes the keys that match a pattern.", "<GLOB | REGEX> pattern [COUNT count]",
     NO_KEYS, NULL, 0},
    {"pin", cmd_pin, -3, W | F, GRP, "Keeps a key from eviction, or no longer.",
     "key <SOFT pin-milliseconds | HARD | NONE>", ONE_KEY(KEY_RW | KEY_UPDATE), NULL, 0},
    {"pinhard", cmd_pinhard, 2, W | F, "@keyspace @admin @dangerous", "pool", "0.1.0",
     "Keeps a key from eviction for good. The right to run it is the right to PIN HARD, in puts "
     "too.",
     "key", ONE_KEY(KEY_RW | KEY_UPDATE), NULL, 0},
    {"quota", NULL, -2, 0, NULL, "pool", "0.1.0", "Bounds the pool's bytes by key prefix.", "",
     NO_KEYS, quota_sub, 0},
    {"segment", NULL, -2, 0, NULL, "pool", "0.1.0", "The segments of the pool.", "", NO_KEYS,
     segment_sub, 0},
    {"node", NULL, -2, 0, NULL, "pool", "0.1.0", "The storage nodes of the pool.", "", NO_KEYS,
     node_sub, 0},
    {"kvevents", NULL, -2, 0, NULL, "pool", "0.1.0", "What changes in the pool, for routers.", "",
     NO_KEYS, kvevents_sub, 0},
    {"replica", NULL, -2, 0, NULL, "pool", "0.1.0", "Concerns single copies of an object.", "",
     NO_KEYS, replica_sub, 0},
    TABLE_END,
};
