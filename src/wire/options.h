/* The structs that requests are bound to and built from. One for a single command and its M form,
 * where they have the same options. Members are explained in wire.h; what an option means, in
 * docs/COMMANDS.md. */
#ifndef TARN_WIRE_OPTIONS_H
#define TARN_WIRE_OPTIONS_H

#include "wire/wire.h"

/* --- puts, look-ups --- */

enum wire_pin_kind { WIRE_PIN_SOFT = 1, WIRE_PIN_HARD, WIRE_PIN_NONE };
enum { WIRE_PREFERS = 16 };

/* What a request tells the eviction policy. */
enum { WIRE_SESSION_MAX = 128, WIRE_RETURN_MAX = 24 * 3600 * 1000 };
struct wire_hint {
    uint32_t session, return_ms; /* 0: not said */
};

/* Of a batch whose other keys are at other masters: the position of each, and how many there
 * are. */
struct wire_spread {
    uint32_t at, of;
};

/* PUTSTART, MPUTSTART */
struct wire_put {
    struct wire_list keys;
    uint32_t replicas; /* 0: not said */
    uint32_t pin;      /* enum wire_pin_kind */
    uint64_t pin_ms, ttl_ms, instead;
    uint32_t group, boundary, groups, boundaries; /* one of them at most */
    WIRE_MANY(WIRE_PREFERS) prefer, avoid;
    struct wire_hint hint;
    struct wire_spread spread;
    bool replace, packed, no_grant, moving, batch;
};
struct wire_put_key {
    uint32_t key;
    uint64_t size;
};

/* PUTEND, MPUTEND, PUTREVOKE, MPUTREVOKE */
struct wire_end {
    struct wire_list keys;
    uint32_t failed; /* bit i: replica i */
    uint32_t values, crcs, faileds, receipts;
    uint64_t batch; /* 0: by their keys */
    uint32_t batch_crcs;
};
struct wire_end_key {
    uint32_t key;
    uint64_t token;
    int64_t crc;
};

/* GETREPLICAS, MGETREPLICAS, PREFIXLEN, EXISTS, MEXISTS. With KV groups the keys are hashes. */
struct wire_look {
    struct wire_list keys, kv_groups;
    uint32_t unit, align; /* tokens */
    uint64_t lease_ms, wait_ms;
    struct wire_hint hint;
    struct wire_spread spread;
    bool crcs, packed, no_grant, batch;
};
enum { WIRE_KV_GROUPS_MAX = 1024, WIRE_KV_GROUP_WORDS = 6 };
enum wire_kv_kind { WIRE_KV_FULL = 1, WIRE_KV_WINDOW, WIRE_KV_STATE };
struct wire_kv_group {
    uint32_t name, kind; /* enum wire_kv_kind */
    uint32_t block, unit, window, drop;
};

struct wire_release {
    struct wire_list keys;
    uint64_t batch; /* 0: none */
};

struct wire_prefetch {
    struct wire_list keys;
    uint32_t segment;
};

/* --- making room --- */

struct wire_evict {
    uint64_t bytes;
    uint32_t ratio;
    struct wire_list keys;
};

enum wire_match_kind { WIRE_MATCH_GLOB = 1, WIRE_MATCH_REGEX };
/* REMOVEMATCH */
struct wire_match {
    uint32_t kind, pattern;
    uint64_t count; /* 0: all */
};

struct wire_pin {
    uint32_t key, kind; /* enum wire_pin_kind */
    uint64_t ms;
};

/* QUOTA SET */
struct wire_quota {
    uint32_t prefix;
    uint64_t bytes;
};

/* --- segments, nodes, replicas --- */

enum { WIRE_ENDPOINTS_MAX = 8, WIRE_KEYS_MAX = 4, WIRE_STATS_MAX = 128, WIRE_REPORTS_MAX = 16 };

/* What every command of a node begins with; FENCED, DONE, EVICTED, OFFER. */
struct wire_node {
    uint32_t name, instance;
    uint32_t segment; /* its id */
    uint64_t session;
    struct wire_list keys; /* or tasks */
};

/* Of NODE DONE: what became of a task. */
struct wire_done {
    uint64_t task, offset;
    int64_t status, crc;
};
/* Of NODE EVICTED, NODE WEIGH, NODE OFFER: an object on a disk. */
struct wire_far {
    uint32_t key, crcs;
    uint64_t version, size, offset;
    int64_t crc;
};

enum wire_yes { WIRE_YES = 1, WIRE_NO };
/* SEGMENT MOUNT, SEGMENT KEYS */
struct wire_mount {
    struct wire_node node;
    uint32_t segment, content, backing, directory;
    uint32_t tier; /* 1 + enum store_tier */
    uint32_t huge; /* enum wire_yes */
    uint64_t size;
    int64_t numa; /* -1: none */
    struct wire_list endpoints, keys;
};

struct wire_join {
    struct wire_node node;
    uint32_t machine, rack, version;
};

/* NODE HEARTBEAT */
struct wire_beat {
    struct wire_node node;
    uint64_t wait_ms;
    struct wire_list stats;
    WIRE_MANY(WIRE_REPORTS_MAX) reports;
};
struct wire_stat {
    uint32_t field;
    uint64_t value;
};

/* SEGMENT INFO, SEGMENT DRAIN, NODE DRAIN, NODE MAINTENANCE, NODE LEAVE */
struct wire_drain {
    uint32_t name;
    uint32_t maintenance; /* enum wire_yes */
    bool cancel;
};

/* REPLICA COPY, REPLICA MOVE, REPLICA DROP */
struct wire_replica {
    uint32_t key, from, to;
    uint64_t wait_ms;
};

/* REPLICA TASKS */
struct wire_tasks {
    uint64_t count;
    uint32_t state; /* 1 + enum cluster_task_state */
};

/* REPLICA REPORT */
struct wire_report {
    uint32_t key;
    uint64_t version;
};

/* --- Redis' commands --- */

/* What SET's KEEPTTL and GETEX' PERSIST stand for is WIRE_EXPIRY_OTHER. */
enum wire_expiry { WIRE_EX = 1, WIRE_PX, WIRE_EXAT, WIRE_PXAT, WIRE_EXPIRY_OTHER };
enum wire_condition { WIRE_NX = 1, WIRE_XX };
/* SET, GETEX */
struct wire_set {
    uint32_t condition, expiry; /* enum wire_condition, wire_expiry */
    uint32_t time;              /* its number */
    bool get;
};

struct wire_copy {
    int64_t db;
    bool replace;
};

struct wire_scan {
    uint64_t cursor;
    int64_t count;
    uint32_t match, type;
};

enum wire_async { WIRE_ASYNC = 1, WIRE_SYNC };
enum wire_on { WIRE_ON = 1, WIRE_OFF, WIRE_SKIP };
/* A number, and one of some words: FLUSHALL, CLIENT PAUSE, UNBLOCK, REPLY, NO-EVICT, NO-TOUCH, ACL
 * GENPASS, BGSAVE. */
struct wire_choice {
    int64_t number;
    uint32_t which;
};

/* CLIENT LIST, CLIENT KILL */
enum wire_client_type {
    WIRE_CLIENT_NORMAL = 1,
    WIRE_CLIENT_MASTER,
    WIRE_CLIENT_REPLICA,
    WIRE_CLIENT_SLAVE,
    WIRE_CLIENT_PUBSUB
};
struct wire_clients {
    uint32_t type, ids;             /* enum wire_client_type */
    uint32_t alone;                 /* of KILL: an address, and nothing else */
    uint32_t user, addr, laddr, me; /* me, enum wire_yes: this one is skipped */
    uint64_t id;
};

/* COMMAND LIST */
enum wire_filter { WIRE_BY_MODULE = 1, WIRE_BY_CATEGORY, WIRE_BY_PATTERN };
struct wire_filtered {
    uint32_t by, word; /* enum wire_filter */
};

struct wire_hello {
    int64_t proto;
    uint32_t user, password, name;
};

/* REPLICAOF */
struct wire_master {
    uint32_t host, port;
};

struct wire_failover {
    uint32_t host;
    int64_t port, timeout_ms; /* INT64_MAX: none */
    bool force, abort;
};

/* CLUSTER COUNTKEYSINSLOT, GETKEYSINSLOT */
struct wire_slot {
    uint64_t slot, count;
};
/* CLUSTER SCANSLOTS */
struct wire_scanslots {
    uint64_t cursor, count;
};
/* CLUSTER ANNOUNCE */
struct wire_announce {
    uint32_t shard, master_epoch, servers;
};
/* CLUSTER SETMAP, RESET */
struct wire_setmap {
    uint32_t shard, map;
    bool force;
};

struct wire_shutdown {
    uint32_t save; /* 1: NOSAVE, 2: SAVE */
    bool now, force, abort;
};

/* KVEVENTS */
struct wire_events {
    uint32_t epoch, prefix;
    uint64_t seq, cursor;
    uint64_t count;   /* 0: not said */
    int64_t block_ms; /* -1: not at all; 0: as long as may be */
};

/* SLOWLOG GET, ACL LOG */
enum wire_count_or_reset { WIRE_COUNT = 1, WIRE_RESET };
struct wire_count {
    int64_t n;
    uint32_t which; /* enum wire_count_or_reset */
};

#endif
