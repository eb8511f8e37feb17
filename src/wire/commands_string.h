/* In-band values: what any Redis client may do with strings. */

COMMAND(get, "GET", R | F | CMD_MASTER, "Reads the value of a key.", STRING("1.0.0"),
        TAKES(KEY("key", KEY_RO | KEY_ACCESS)), REPLY("the value; nil: no such key"))
COMMAND(set, "SET", W | D, "Writes a value, in place of whatever the key had.", STRING("1.0.0"),
        TAKES(KEY("key", KEY_RW | KEY_ACCESS | KEY_UPDATE | KEY_VARIABLE), ARG(WORD, "value"),
              ANY_OF_IN(set, condition, TOKEN("NX"), TOKEN("XX")), FLAG("GET", IN(set, get)),
              SET_EXPIRY("KEEPTTL")),
        REPLY("OK; nil: NX or XX did not hold; with GET the value before, or nil"),
        ERRORS("OOM QUOTA"))
COMMAND(mget, "MGET", R | F | CMD_MASTER, "Reads several values.", STRING("1.0.0"),
        TAKES(KEY("key", KEY_RO | KEY_ACCESS, MANY)),
        REPLY("an array of values, nil for keys that are missing"))
COMMAND(mset, "MSET", W | D, "Writes several values.", STRING("1.0.1"),
        TAKES(ARG(BLOCK, NULL, OF(KEY("key", KEY_OW | KEY_UPDATE), ARG(WORD, "value")), MANY)),
        REPLY("OK"), ERRORS("OOM QUOTA"))
COMMAND(msetnx, "MSETNX", W | D, "Writes several values if none of the keys exists.",
        STRING("1.0.1"),
        TAKES(ARG(BLOCK, NULL, OF(KEY("key", KEY_OW | KEY_INSERT), ARG(WORD, "value")), MANY)),
        REPLY("1; 0: one of the keys exists"), ERRORS("OOM QUOTA"))
COMMAND(setnx, "SETNX", W | D | F, "Writes a value if the key does not exist.", STRING("1.0.0"),
        TAKES(KEY("key", KEY_OW | KEY_INSERT), ARG(WORD, "value")), REPLY("1; 0: the key exists"),
        ERRORS("OOM QUOTA"))
COMMAND(setex, "SETEX", W | D, "Writes a value that lasts for some seconds.", STRING("2.0.0"),
        TAKES(KEY("key", KEY_OW | KEY_UPDATE), ARG(NUMBER, "seconds"), ARG(WORD, "value")),
        REPLY("OK"), ERRORS("OOM QUOTA"))
COMMAND(psetex, "PSETEX", W | D, "Writes a value that lasts for some milliseconds.",
        STRING("2.6.0"),
        TAKES(KEY("key", KEY_OW | KEY_UPDATE), ARG(NUMBER, "milliseconds"), ARG(WORD, "value")),
        REPLY("OK"), ERRORS("OOM QUOTA"))
COMMAND(getset, "GETSET", W | D | F, "Writes a value and answers the one before.", STRING("1.0.0"),
        TAKES(KEY("key", KEY_RW | KEY_ACCESS | KEY_UPDATE), ARG(WORD, "value")),
        REPLY("the value before, or nil"), ERRORS("OOM QUOTA"))
COMMAND(getdel, "GETDEL", W | F, "Reads the value of a key and removes it.", STRING("6.2.0"),
        TAKES(KEY("key", KEY_RW | KEY_ACCESS | KEY_DELETE)), REPLY("the value; nil: no such key"))
COMMAND(getex, "GETEX", W | F, "Reads the value of a key and changes when it expires.",
        STRING("6.2.0"), TAKES(KEY("key", KEY_RW | KEY_ACCESS | KEY_UPDATE), SET_EXPIRY("PERSIST")),
        REPLY("the value; nil: no such key"))
COMMAND(getrange, "GETRANGE", R | CMD_MASTER, "Reads a part of a value.", STRING("2.4.0"),
        TAKES(KEY("key", KEY_RO | KEY_ACCESS), ARG(NUMBER, "start"), ARG(NUMBER, "end")),
        REPLY("the bytes, none of a missing key"))
COMMAND(substr, "SUBSTR", R | CMD_MASTER, "Reads a part of a value: GETRANGE's old name.",
        STRING("1.0.0"),
        TAKES(KEY("key", KEY_RO | KEY_ACCESS), ARG(NUMBER, "start"), ARG(NUMBER, "end")),
        REPLY("the bytes, none of a missing key"))
COMMAND(setrange, "SETRANGE", W | D, "Writes a new value that differs in a part.", STRING("2.2.0"),
        TAKES(KEY("key", KEY_RW | KEY_UPDATE), ARG(NUMBER, "offset"), ARG(WORD, "value")),
        REPLY("the new length"), ERRORS("OOM QUOTA TRYAGAIN"))
COMMAND(strlen, "STRLEN", R | F, "Tells the length of a value.", STRING("2.2.0"),
        TAKES(KEY("key", KEY_RO)), REPLY("the length; 0: no such key"))
COMMAND(append, "APPEND", W | D | F, "Writes a new value that is longer at the end.",
        STRING("2.0.0"), TAKES(KEY("key", KEY_RW | KEY_INSERT), ARG(WORD, "value")),
        REPLY("the new length"), ERRORS("OOM QUOTA TRYAGAIN"))
COMMAND(incr, "INCR", W | D | F, "Adds one to an integer.", STRING("1.0.0"),
        TAKES(KEY("key", KEY_RW | KEY_ACCESS | KEY_UPDATE)), REPLY("the new number"),
        ERRORS("OOM QUOTA TRYAGAIN"))
COMMAND(decr, "DECR", W | D | F, "Takes one from an integer.", STRING("1.0.0"),
        TAKES(KEY("key", KEY_RW | KEY_ACCESS | KEY_UPDATE)), REPLY("the new number"),
        ERRORS("OOM QUOTA TRYAGAIN"))
COMMAND(incrby, "INCRBY", W | D | F, "Adds to an integer.", STRING("1.0.0"),
        TAKES(KEY("key", KEY_RW | KEY_ACCESS | KEY_UPDATE), ARG(WORD, "increment")),
        REPLY("the new number"), ERRORS("OOM QUOTA TRYAGAIN"))
COMMAND(decrby, "DECRBY", W | D | F, "Takes from an integer.", STRING("1.0.0"),
        TAKES(KEY("key", KEY_RW | KEY_ACCESS | KEY_UPDATE), ARG(NUMBER, "decrement")),
        REPLY("the new number"), ERRORS("OOM QUOTA TRYAGAIN"))
COMMAND(incrbyfloat, "INCRBYFLOAT", W | D | F, "Adds to a decimal number.", STRING("2.6.0"),
        TAKES(KEY("key", KEY_RW | KEY_ACCESS | KEY_UPDATE), ARG(WORD, "increment")),
        REPLY("the new number, as text"), ERRORS("OOM QUOTA TRYAGAIN"))
