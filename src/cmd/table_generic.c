/* Keys, whatever their values. */
#include "cmd/families.h"
#include "cmd/table.h"

#define W          CMD_WRITE
#define R          CMD_READONLY
#define F          CMD_FAST
#define GRP        "@keyspace", "generic"
#define EXPIRE_KEY ONE_KEY(KEY_RW | KEY_UPDATE)

static struct cmd object_sub[] = {
    {"encoding", cmd_object_encoding, 3, R, GRP, "2.2.3", "Tells how a value is kept.", "key",
     SUB_KEY(KEY_RO), NULL, 0},
    {"freq", cmd_object_freq, 3, R, GRP, "4.0.0", "Tells the access counter of the eviction policy.", "key",
     SUB_KEY(KEY_RO), NULL, 0},
    {"idletime", cmd_object_idletime, 3, R, GRP, "2.2.3", "Tells the seconds since the last access.", "key",
     SUB_KEY(KEY_RO), NULL, 0},
    {"refcount", cmd_object_refcount, 3, R, GRP, "2.2.3", "Tells how many references an object has.", "key",
     SUB_KEY(KEY_RO), NULL, 0},
    {"help", cmd_help, 2, CMD_LOADING | CMD_STALE, GRP, "6.2.0", "Lists the subcommands.", "", NO_KEYS, NULL,
     0},
    TABLE_END,
};

struct cmd table_generic[] = {
    {"exists", cmd_exists, -2, R | F, GRP, "1.0.0",
     "Counts how many of the keys are readable. Takes no lease.", "key [key ...]", ALL_KEYS(KEY_RO), NULL, 0},
    {"del", cmd_del, -2, W, GRP, "1.0.0", "Removes keys.", "key [key ...]", ALL_KEYS(KEY_RM | KEY_DELETE),
     NULL, 0},
    {"unlink", cmd_del, -2, W | F, GRP, "4.0.0", "Removes keys, as DEL does.", "key [key ...]",
     ALL_KEYS(KEY_RM | KEY_DELETE), NULL, 0},
    {"touch", cmd_touch, -2, R | F | CMD_MASTER, GRP, "3.2.1", "Counts an access to each key that is there.",
     "key [key ...]", ALL_KEYS(KEY_RO), NULL, 0},
    {"ttl", cmd_ttl, 2, R | F, GRP, "1.0.0", "Tells the seconds until a key expires.", "key",
     ONE_KEY(KEY_RO | KEY_ACCESS), NULL, 0},
    {"pttl", cmd_pttl, 2, R | F, GRP, "2.6.0", "Tells the milliseconds until a key expires.", "key",
     ONE_KEY(KEY_RO | KEY_ACCESS), NULL, 0},
    {"expire", cmd_expire, -3, W | F, GRP, "1.0.0", "Lets a key expire after some seconds.",
     "key seconds [NX | XX | GT | LT]", EXPIRE_KEY, NULL, 0},
    {"pexpire", cmd_pexpire, -3, W | F, GRP, "2.6.0", "Lets a key expire after some milliseconds.",
     "key milliseconds [NX | XX | GT | LT]", EXPIRE_KEY, NULL, 0},
    {"expireat", cmd_expireat, -3, W | F, GRP, "1.2.0", "Lets a key expire at a Unix time.",
     "key unix-time-seconds [NX | XX | GT | LT]", EXPIRE_KEY, NULL, 0},
    {"pexpireat", cmd_pexpireat, -3, W | F, GRP, "2.6.0", "Lets a key expire at a Unix time in milliseconds.",
     "key unix-time-milliseconds [NX | XX | GT | LT]", EXPIRE_KEY, NULL, 0},
    {"expiretime", cmd_expiretime, 2, R | F, GRP, "7.0.0", "Tells the Unix time at which a key expires.",
     "key", ONE_KEY(KEY_RO | KEY_ACCESS), NULL, 0},
    {"pexpiretime", cmd_pexpiretime, 2, R | F, GRP, "7.0.0",
     "Tells the Unix time in milliseconds at which a key expires.", "key", ONE_KEY(KEY_RO | KEY_ACCESS), NULL,
     0},
    {"persist", cmd_persist, 2, W | F, GRP, "2.2.0", "Takes the expiry from a key.", "key", EXPIRE_KEY, NULL,
     0},
    {"copy", cmd_copy, -3, W | CMD_DENYOOM, GRP, "6.2.0", "Writes the value of a key under another one.",
     "source destination [DB destination-db] [REPLACE]", TWO_KEYS(KEY_RO | KEY_ACCESS, KEY_OW | KEY_UPDATE),
     NULL, 0},
    {"rename", cmd_rename, 3, W, GRP, "1.0.0", "Moves a value to another key.", "key newkey",
     TWO_KEYS(KEY_RW | KEY_ACCESS | KEY_DELETE, KEY_OW | KEY_UPDATE), NULL, 0},
    {"renamenx", cmd_renamenx, 3, W | F, GRP, "1.0.0", "Moves a value to another key if that one is free.",
     "key newkey", TWO_KEYS(KEY_RW | KEY_ACCESS | KEY_DELETE, KEY_OW | KEY_INSERT), NULL, 0},
    {"type", cmd_type, 2, R | F, GRP, "1.0.0", "Tells the type of a key: string or none.", "key",
     ONE_KEY(KEY_RO), NULL, 0},
    {"keys", cmd_keys, 2, R | CMD_ALL_KEYS, "@keyspace @dangerous", "generic", "1.0.0",
     "Lists the keys that match a pattern.", "pattern", NO_KEYS, NULL, 0},
    {"scan", cmd_scan, -2, R | CMD_ALL_KEYS, GRP, "2.8.0", "Walks over the keys, a part each time.",
     "cursor [MATCH pattern] [COUNT count] [TYPE type]", NO_KEYS, NULL, 0},
    {"randomkey", cmd_randomkey, 1, R | CMD_ALL_KEYS, GRP, "1.0.0", "Answers one of the keys.", "", NO_KEYS,
     NULL, 0},
    {"object", NULL, -2, 0, NULL, "generic", "2.2.3", "Looks at how an object is kept.", "", NO_KEYS,
     object_sub, 0},
    {"dbsize", cmd_dbsize, 1, R | F, "@keyspace", "server", "1.0.0", "Counts the keys.", "", NO_KEYS, NULL,
     0},
    {"flushall", cmd_flushall, -1, W | CMD_ALL_KEYS, "@keyspace @dangerous", "server", "1.0.0",
     "Removes all keys.", "[ASYNC | SYNC]", NO_KEYS, NULL, 0},
    {"flushdb", cmd_flushdb, -1, W | CMD_ALL_KEYS, "@keyspace @dangerous", "server", "1.0.0",
     "Removes all keys: there is one database.", "[ASYNC | SYNC]", NO_KEYS, NULL, 0},
    TABLE_END,
};
