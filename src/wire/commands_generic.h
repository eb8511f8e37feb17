/* Keys, whatever their values. */

COMMAND(exists, "EXISTS", R | F, "Counts how many of the keys are readable. Takes no lease.",
        GENERIC("1.0.0"), TAKES(KEY("key", KEY_RO, MANY)))
COMMAND(del, "DEL", W, "Removes keys.", GENERIC("1.0.0"),
        TAKES(KEY("key", KEY_RM | KEY_DELETE, MANY, IN(look, keys))))
SHARED(unlink, del, "UNLINK", W | F, "Removes keys, as DEL does.", GENERIC("4.0.0"),
       TAKES(KEY("key", KEY_RM | KEY_DELETE, MANY)))
COMMAND(touch, "TOUCH", R | F | CMD_MASTER, "Counts an access to each key that is there.",
        GENERIC("3.2.1"), TAKES(KEY("key", KEY_RO, MANY)))
COMMAND(ttl, "TTL", R | F, "Tells the seconds until a key expires.", GENERIC("1.0.0"),
        TAKES(KEY("key", KEY_RO | KEY_ACCESS)))
COMMAND(pttl, "PTTL", R | F, "Tells the milliseconds until a key expires.", GENERIC("2.6.0"),
        TAKES(KEY("key", KEY_RO | KEY_ACCESS)))
COMMAND(expire, "EXPIRE", W | F, "Lets a key expire after some seconds.", GENERIC("1.0.0"),
        TAKES(KEY("key", KEY_RW | KEY_UPDATE), ARG(NUMBER, "seconds"),
              ANY_OF(TOKEN("NX"), TOKEN("XX"), TOKEN("GT"), TOKEN("LT"))))
COMMAND(pexpire, "PEXPIRE", W | F, "Lets a key expire after some milliseconds.", GENERIC("2.6.0"),
        TAKES(KEY("key", KEY_RW | KEY_UPDATE), ARG(NUMBER, "milliseconds"),
              ANY_OF(TOKEN("NX"), TOKEN("XX"), TOKEN("GT"), TOKEN("LT"))))
COMMAND(expireat, "EXPIREAT", W | F, "Lets a key expire at a Unix time.", GENERIC("1.2.0"),
        TAKES(KEY("key", KEY_RW | KEY_UPDATE), ARG(NUMBER, "unix-time-seconds"),
              ANY_OF(TOKEN("NX"), TOKEN("XX"), TOKEN("GT"), TOKEN("LT"))))
COMMAND(pexpireat, "PEXPIREAT", W | F, "Lets a key expire at a Unix time in milliseconds.",
        GENERIC("2.6.0"),
        TAKES(KEY("key", KEY_RW | KEY_UPDATE), ARG(NUMBER, "unix-time-milliseconds"),
              ANY_OF(TOKEN("NX"), TOKEN("XX"), TOKEN("GT"), TOKEN("LT"))))
COMMAND(expiretime, "EXPIRETIME", R | F, "Tells the Unix time at which a key expires.",
        GENERIC("7.0.0"), TAKES(KEY("key", KEY_RO | KEY_ACCESS)))
COMMAND(pexpiretime, "PEXPIRETIME", R | F,
        "Tells the Unix time in milliseconds at which a key expires.", GENERIC("7.0.0"),
        TAKES(KEY("key", KEY_RO | KEY_ACCESS)))
COMMAND(persist, "PERSIST", W | F, "Takes the expiry from a key.", GENERIC("2.2.0"),
        TAKES(KEY("key", KEY_RW | KEY_UPDATE)))
COMMAND(copy, "COPY", W | CMD_DENYOOM, "Writes the value of a key under another one.",
        GENERIC("6.2.0"),
        TAKES(KEY("source", KEY_RO | KEY_ACCESS), KEY("destination", KEY_OW | KEY_UPDATE),
              OPTION("DB", WORD, "destination-db"), FLAG("REPLACE")))
COMMAND(rename, "RENAME", W, "Moves a value to another key.", GENERIC("1.0.0"),
        TAKES(KEY("key", KEY_RW | KEY_ACCESS | KEY_DELETE), KEY("newkey", KEY_OW | KEY_UPDATE)))
COMMAND(renamenx, "RENAMENX", W | F, "Moves a value to another key if that one is free.",
        GENERIC("1.0.0"),
        TAKES(KEY("key", KEY_RW | KEY_ACCESS | KEY_DELETE), KEY("newkey", KEY_OW | KEY_INSERT)))
COMMAND(type, "TYPE", R | F, "Tells the type of a key: string or none.", GENERIC("1.0.0"),
        TAKES(KEY("key", KEY_RO)))
COMMAND(keys, "KEYS", R | CMD_ALL_KEYS, "Lists the keys that match a pattern.",
        GROUP("@keyspace @dangerous", "generic", "1.0.0"), TAKES(ARG(WORD, "pattern")))
COMMAND(scan, "SCAN", R | CMD_ALL_KEYS, "Walks over the keys, a part each time.", GENERIC("2.8.0"),
        TAKES(ARG(NUMBER, "cursor"), OPTION("MATCH", WORD, "pattern"),
              OPTION("COUNT", NUMBER, "count"), OPTION("TYPE", WORD, "type")))
COMMAND(randomkey, "RANDOMKEY", R | CMD_ALL_KEYS, "Answers one of the keys.", GENERIC("1.0.0"))
CONTAINER(object, "OBJECT", "Looks at how an object is kept.", GROUP(NULL, "generic", "2.2.3"))
COMMAND(object_encoding, "OBJECT|ENCODING", R, "Tells how a value is kept.", GENERIC("2.2.3"),
        TAKES(KEY("key", KEY_RO)))
COMMAND(object_freq, "OBJECT|FREQ", R, "Tells the access counter of the eviction policy.",
        GENERIC("4.0.0"), TAKES(KEY("key", KEY_RO)))
COMMAND(object_idletime, "OBJECT|IDLETIME", R, "Tells the seconds since the last access.",
        GENERIC("2.2.3"), TAKES(KEY("key", KEY_RO)))
COMMAND(object_refcount, "OBJECT|REFCOUNT", R, "Tells how many references an object has.",
        GENERIC("2.2.3"), TAKES(KEY("key", KEY_RO)))
HELP(object_help, "OBJECT|HELP", GENERIC("6.2.0"))
COMMAND(dbsize, "DBSIZE", R | F, "Counts the keys.", GROUP("@keyspace", "server", "1.0.0"))
COMMAND(flushall, "FLUSHALL", W | CMD_ALL_KEYS, "Removes all keys.",
        GROUP("@keyspace @dangerous", "server", "1.0.0"),
        TAKES(ANY_OF(TOKEN("ASYNC"), TOKEN("SYNC"))))
COMMAND(flushdb, "FLUSHDB", W | CMD_ALL_KEYS, "Removes all keys: there is one database.",
        GROUP("@keyspace @dangerous", "server", "1.0.0"),
        TAKES(ANY_OF(TOKEN("ASYNC"), TOKEN("SYNC"))))
