/* Keys, whatever their values. */

COMMAND(exists, "EXISTS", R | F, "Counts how many of the keys are readable. Takes no lease.",
        GENERIC("1.0.0"), TAKES(KEY("key", KEY_RO, MANY)),
        REPLY("how many, one given twice counts twice"))
COMMAND(del, "DEL", W, "Removes keys.", GENERIC("1.0.0"),
        TAKES(KEY("key", KEY_RM | KEY_DELETE, MANY, IN(look, keys))), REPLY("how many there were"))
SHARED(unlink, del, "UNLINK", W | F, "Removes keys, as DEL does.", GENERIC("4.0.0"),
       TAKES(KEY("key", KEY_RM | KEY_DELETE, MANY)), REPLY("how many there were"))
COMMAND(touch, "TOUCH", R | F | CMD_MASTER, "Counts an access to each key that is there.",
        GENERIC("3.2.1"), TAKES(KEY("key", KEY_RO, MANY)), REPLY("how many there were"))
COMMAND(ttl, "TTL", R | F, "Tells the seconds until a key expires.", GENERIC("1.0.0"),
        TAKES(KEY("key", KEY_RO | KEY_ACCESS)),
        REPLY("seconds; -1: it does not expire; -2: no such key"))
COMMAND(pttl, "PTTL", R | F, "Tells the milliseconds until a key expires.", GENERIC("2.6.0"),
        TAKES(KEY("key", KEY_RO | KEY_ACCESS)),
        REPLY("milliseconds; -1: it does not expire; -2: no such key"))
COMMAND(expire, "EXPIRE", W | F, "Lets a key expire after some seconds.", GENERIC("1.0.0"),
        TAKES(KEY("key", KEY_RW | KEY_UPDATE), ARG(NUMBER, "seconds"),
              ANY_OF(TOKEN("NX"), TOKEN("XX"), TOKEN("GT"), TOKEN("LT"))),
        REPLY("1; 0: no such key, or the condition did not hold"))
COMMAND(pexpire, "PEXPIRE", W | F, "Lets a key expire after some milliseconds.", GENERIC("2.6.0"),
        TAKES(KEY("key", KEY_RW | KEY_UPDATE), ARG(NUMBER, "milliseconds"),
              ANY_OF(TOKEN("NX"), TOKEN("XX"), TOKEN("GT"), TOKEN("LT"))),
        REPLY("1; 0: no such key, or the condition did not hold"))
COMMAND(expireat, "EXPIREAT", W | F, "Lets a key expire at a Unix time.", GENERIC("1.2.0"),
        TAKES(KEY("key", KEY_RW | KEY_UPDATE), ARG(NUMBER, "unix-time-seconds"),
              ANY_OF(TOKEN("NX"), TOKEN("XX"), TOKEN("GT"), TOKEN("LT"))),
        REPLY("1; 0: no such key, or the condition did not hold"))
COMMAND(pexpireat, "PEXPIREAT", W | F, "Lets a key expire at a Unix time in milliseconds.",
        GENERIC("2.6.0"),
        TAKES(KEY("key", KEY_RW | KEY_UPDATE), ARG(NUMBER, "unix-time-milliseconds"),
              ANY_OF(TOKEN("NX"), TOKEN("XX"), TOKEN("GT"), TOKEN("LT"))),
        REPLY("1; 0: no such key, or the condition did not hold"))
COMMAND(expiretime, "EXPIRETIME", R | F, "Tells the Unix time at which a key expires.",
        GENERIC("7.0.0"), TAKES(KEY("key", KEY_RO | KEY_ACCESS)),
        REPLY("seconds since 1970; -1: it does not expire; -2: no such key"))
COMMAND(pexpiretime, "PEXPIRETIME", R | F,
        "Tells the Unix time in milliseconds at which a key expires.", GENERIC("7.0.0"),
        TAKES(KEY("key", KEY_RO | KEY_ACCESS)),
        REPLY("milliseconds since 1970; -1: it does not expire; -2: no such key"))
COMMAND(persist, "PERSIST", W | F, "Takes the expiry from a key.", GENERIC("2.2.0"),
        TAKES(KEY("key", KEY_RW | KEY_UPDATE)), REPLY("1; 0: no such key, or it did not expire"))
COMMAND(copy, "COPY", W | CMD_DENYOOM, "Writes the value of a key under another one.",
        GENERIC("6.2.0"),
        TAKES(KEY("source", KEY_RO | KEY_ACCESS), KEY("destination", KEY_OW | KEY_UPDATE),
              OPTION("DB", NUMBER, "destination-db", IN(copy, db)),
              FLAG("REPLACE", IN(copy, replace))),
        REPLY("1; 0: no such key, or the destination exists"), ERRORS("OOM QUOTA"))
COMMAND(rename, "RENAME", W, "Moves a value to another key.", GENERIC("1.0.0"),
        TAKES(KEY("key", KEY_RW | KEY_ACCESS | KEY_DELETE), KEY("newkey", KEY_OW | KEY_UPDATE)),
        REPLY("OK"), ERRORS("OOM QUOTA"))
COMMAND(renamenx, "RENAMENX", W | F, "Moves a value to another key if that one is free.",
        GENERIC("1.0.0"),
        TAKES(KEY("key", KEY_RW | KEY_ACCESS | KEY_DELETE), KEY("newkey", KEY_OW | KEY_INSERT)),
        REPLY("1; 0: newkey exists"), ERRORS("OOM QUOTA"))
COMMAND(type, "TYPE", R | F, "Tells the type of a key: string or none.", GENERIC("1.0.0"),
        TAKES(KEY("key", KEY_RO)), REPLY("string or none"))
COMMAND(keys, "KEYS", R | CMD_ALL_KEYS, "Lists the keys that match a pattern.",
        GROUP("@keyspace @dangerous", "generic", "1.0.0"), TAKES(ARG(WORD, "pattern")),
        REPLY("an array of keys"))
COMMAND(scan, "SCAN", R | CMD_ALL_KEYS, "Walks over the keys, a part each time.", GENERIC("2.8.0"),
        TAKES(ARG(UNSIGNED, "cursor", ELSE("invalid cursor"), IN(scan, cursor)),
              OPTION("MATCH", WORD, "pattern", IN(scan, match)),
              OPTION("COUNT", NUMBER, "count", NONE_IS(10), IN(scan, count)),
              OPTION("TYPE", WORD, "type", IN(scan, type))),
        REPLY("[cursor, [key, ...]]"))
COMMAND(randomkey, "RANDOMKEY", R | CMD_ALL_KEYS, "Answers one of the keys.", GENERIC("1.0.0"),
        REPLY("a key; nil: there is none"))
CONTAINER(object, "OBJECT", "Looks at how an object is kept.", GROUP(NULL, "generic", "2.2.3"))
COMMAND(object_encoding, "OBJECT|ENCODING", R, "Tells how a value is kept.", GENERIC("2.2.3"),
        TAKES(KEY("key", KEY_RO)), REPLY("raw, int or embstr; nil: no such key"))
COMMAND(object_freq, "OBJECT|FREQ", R, "Tells the access counter of the eviction policy.",
        GENERIC("4.0.0"), TAKES(KEY("key", KEY_RO)), REPLY("a number; nil: no such key"))
COMMAND(object_idletime, "OBJECT|IDLETIME", R, "Tells the seconds since the last access.",
        GENERIC("2.2.3"), TAKES(KEY("key", KEY_RO)), REPLY("seconds; nil: no such key"))
COMMAND(object_refcount, "OBJECT|REFCOUNT", R, "Tells how many references an object has.",
        GENERIC("2.2.3"), TAKES(KEY("key", KEY_RO)), REPLY("how many; nil: no such key"))
HELP(object_help, "OBJECT|HELP", GENERIC("6.2.0"))
COMMAND(dbsize, "DBSIZE", R | F, "Counts the keys.", GROUP("@keyspace", "server", "1.0.0"),
        REPLY("how many"))
COMMAND(flushall, "FLUSHALL", W | CMD_ALL_KEYS, "Removes all keys.",
        GROUP("@keyspace @dangerous", "server", "1.0.0"),
        TAKES(ANY_OF_IN(choice, which, TOKEN("ASYNC"), TOKEN("SYNC"))), EACH_ONCE, REPLY("OK"))
COMMAND(flushdb, "FLUSHDB", W | CMD_ALL_KEYS, "Removes all keys: there is one database.",
        GROUP("@keyspace @dangerous", "server", "1.0.0"),
        TAKES(ANY_OF_IN(choice, which, TOKEN("ASYNC"), TOKEN("SYNC"))), EACH_ONCE, REPLY("OK"))
