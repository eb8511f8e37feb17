/* In-band values: what any Redis client may do with strings. */
#include "cmd/families.h"
#include "cmd/table.h"

#define W   CMD_WRITE
#define R   CMD_READONLY
#define D   CMD_DENYOOM
#define F   CMD_FAST
#define GRP "@string", "string"

#define EXPIRY                                                                                     \
    "[EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | "

struct cmd table_string[] = {
    {"get", cmd_get, 2, R | F | CMD_MASTER, GRP, "1.0.0", "Reads the value of a key.", "key",
     ONE_KEY(KEY_RO | KEY_ACCESS), NULL, 0},
    {"set", cmd_set, -3, W | D, GRP, "1.0.0", "Writes a value, in place of whatever the key had.",
     "key value [NX | XX] [GET] " EXPIRY "KEEPTTL]",
     ONE_KEY(KEY_RW | KEY_ACCESS | KEY_UPDATE | KEY_VARIABLE), NULL, 0},
    {"mget", cmd_mget, -2, R | F | CMD_MASTER, GRP, "1.0.0", "Reads several values.",
     "key [key ...]", ALL_KEYS(KEY_RO | KEY_ACCESS), NULL, 0},
    {"mset", cmd_mset, -3, W | D, GRP, "1.0.1", "Writes several values.",
     "key value [key value ...]", KEY_VALUES(KEY_OW | KEY_UPDATE), NULL, 0},
    {"msetnx", cmd_msetnx, -3, W | D, GRP, "1.0.1",
     "Writes several values if none of the keys exists.", "key value [key value ...]",
     KEY_VALUES(KEY_OW | KEY_INSERT), NULL, 0},
    {"setnx", cmd_setnx, 3, W | D | F, GRP, "1.0.0", "Writes a value if the key does not exist.",
     "key value", ONE_KEY(KEY_OW | KEY_INSERT), NULL, 0},
    {"setex", cmd_setex, 4, W | D, GRP, "2.0.0", "Writes a value that lasts for some seconds.",
     "key seconds value", ONE_KEY(KEY_OW | KEY_UPDATE), NULL, 0},
    {"psetex", cmd_psetex, 4, W | D, GRP, "2.6.0",
     "Writes a value that lasts for some milliseconds.", "key milliseconds value",
     ONE_KEY(KEY_OW | KEY_UPDATE), NULL, 0},
    {"getset", cmd_getset, 3, W | D | F, GRP, "1.0.0", "Writes a value and answers the one before.",
     "key value", ONE_KEY(KEY_RW | KEY_ACCESS | KEY_UPDATE), NULL, 0},
    {"getdel", cmd_getdel, 2, W | F, GRP, "6.2.0", "Reads the value of a key and removes it.",
     "key", ONE_KEY(KEY_RW | KEY_ACCESS | KEY_DELETE), NULL, 0},
    {"getex", cmd_getex, -2, W | F, GRP, "6.2.0",
     "Reads the value of a key and changes when it expires.", "key " EXPIRY "PERSIST]",
     ONE_KEY(KEY_RW | KEY_ACCESS | KEY_UPDATE), NULL, 0},
    {"getrange", cmd_getrange, 4, R | CMD_MASTER, GRP, "2.4.0", "Reads a part of a value.",
     "key start end", ONE_KEY(KEY_RO | KEY_ACCESS), NULL, 0},
    {"substr", cmd_substr, 4, R | CMD_MASTER, GRP, "1.0.0",
     "Reads a part of a value: GETRANGE's old name.", "key start end", ONE_KEY(KEY_RO | KEY_ACCESS),
     NULL, 0},
    {"setrange", cmd_setrange, 4, W | D, GRP, "2.2.0", "Writes a new value that differs in a part.",
     "key offset value", ONE_KEY(KEY_RW | KEY_UPDATE), NULL, 0},
    {"strlen", cmd_strlen, 2, R | F, GRP, "2.2.0", "Tells the length of a value.", "key",
     ONE_KEY(KEY_RO), NULL, 0},
    {"append", cmd_append, 3, W | D | F, GRP, "2.0.0",
     "Writes a new value that is longer at the end.", "key value", ONE_KEY(KEY_RW | KEY_INSERT),
     NULL, 0},
    {"incr", cmd_incr, 2, W | D | F, GRP, "1.0.0", "Adds one to an integer.", "key",
     ONE_KEY(KEY_RW | KEY_ACCESS | KEY_UPDATE), NULL, 0},
    {"decr", cmd_decr, 2, W | D | F, GRP, "1.0.0", "Takes one from an integer.", "key",
     ONE_KEY(KEY_RW | KEY_ACCESS | KEY_UPDATE), NULL, 0},
    {"incrby", cmd_incrby, 3, W | D | F, GRP, "1.0.0", "Adds to an integer.", "key increment",
     ONE_KEY(KEY_RW | KEY_ACCESS | KEY_UPDATE), NULL, 0},
    {"decrby", cmd_decrby, 3, W | D | F, GRP, "1.0.0", "Takes from an integer.", "key decrement",
     ONE_KEY(KEY_RW | KEY_ACCESS | KEY_UPDATE), NULL, 0},
    {"incrbyfloat", cmd_incrbyfloat, 3, W | D | F, GRP, "2.6.0", "Adds to a decimal number.",
     "key increment", ONE_KEY(KEY_RW | KEY_ACCESS | KEY_UPDATE), NULL, 0},
    TABLE_END,
};
