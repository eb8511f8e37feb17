/* The server: figures, configuration, the table itself. */

COMMAND(info, "INFO", L, "Tells the state of the server in figures.",
        GROUP("@dangerous", "server", "1.0.0"), TAKES(MAYBE(WORD, "section", MANY)),
        REPLY("lines of text"))
CONTAINER(config, "CONFIG", "Reads and changes the configuration.", SERVER("2.0.0"))
COMMAND(config_get, "CONFIG|GET", A, "Tells the options that match.", SERVER("2.0.0"),
        TAKES(ARG(WORD, "parameter", MANY)), REPLY("a map"))
COMMAND(config_set, "CONFIG|SET", A, "Changes options, all of them or none.", SERVER("2.0.0"),
        TAKES(ARG(BLOCK, NULL, OF(ARG(WORD, "parameter"), ARG(WORD, "value")), MANY)), REPLY("OK"))
COMMAND(config_rewrite, "CONFIG|REWRITE", A,
        "Writes the options in force to the configuration file.", SERVER("2.8.0"), REPLY("OK"))
COMMAND(config_resetstat, "CONFIG|RESETSTAT", A, "Sets the counters of INFO to zero.",
        SERVER("2.0.0"), REPLY("OK"))
HELP(config_help, "CONFIG|HELP", SERVER("5.0.0"))
COMMAND(command, "COMMAND", L, "Describes all commands.", GROUP("@connection", "server", "2.8.13"),
        TAKES(WORDS), REPLY("an array as of COMMAND INFO"))
COMMAND(command_count, "COMMAND|COUNT", L, "Counts the commands.",
        GROUP("@connection", "server", "2.8.13"), REPLY("how many"))
COMMAND(command_list, "COMMAND|LIST", L, "Lists the names of commands.",
        GROUP("@connection", "server", "7.0.0"),
        TAKES(OPTION("FILTERBY", ONEOF, NULL,
                     OF(NAMED("MODULE", WORD, "module-name", IN(filtered, word)),
                        NAMED("ACLCAT", WORD, "category", IN(filtered, word)),
                        NAMED("PATTERN", WORD, "pattern", IN(filtered, word))),
                     IN(filtered, by))),
        EACH_ONCE, REPLY("an array of names"))
COMMAND(command_info, "COMMAND|INFO", L, "Describes commands to programs.",
        GROUP("@connection", "server", "2.8.13"), TAKES(MAYBE(WORD, "command-name", MANY)),
        REPLY("an array of [name, arity, flags, first key, last key, step, categories, tips, key "
              "specs, subcommands], nil for unknown ones"))
COMMAND(
    command_docs, "COMMAND|DOCS", L, "Describes commands to people.",
    GROUP("@connection", "server", "7.0.0"), TAKES(MAYBE(WORD, "command-name", MANY)),
    REPLY("a map of maps: summary, since, group, arguments, synopsis, reply, errors, subcommands"))
COMMAND(command_getkeys, "COMMAND|GETKEYS", L, "Finds the keys in a command.",
        GROUP("@connection", "server", "2.8.13"), TAKES(ARG(WORD, "command"), WORDS),
        REPLY("an array of keys"))
COMMAND(command_getkeysandflags, "COMMAND|GETKEYSANDFLAGS", L,
        "Finds the keys in a command and what is done to them.",
        GROUP("@connection", "server", "7.0.0"), TAKES(ARG(WORD, "command"), WORDS),
        REPLY("an array of [key, flags]"))
HELP(command_help, "COMMAND|HELP", GROUP("@connection", "server", "5.0.0"))
COMMAND(monitor, "MONITOR", A, "Shows every command that the server runs.", SERVER("1.0.0"),
        REPLY("OK, then a line for each command"))
CONTAINER(slowlog, "SLOWLOG", "Looks at the slow commands.", SERVER("2.2.12"))
COMMAND(slowlog_get, "SLOWLOG|GET", CMD_ADMIN | L, "Tells the latest slow commands.",
        SERVER("2.2.12"),
        TAKES(MAYBE(NUMBER, "count", RANGE(-1, INT64_MAX), IN(count, n), NONE_IS(10),
                    ELSE("count should be greater than or equal to -1"))),
        REPLY("an array of [id, time, microseconds, arguments, client, name]"))
COMMAND(slowlog_len, "SLOWLOG|LEN", CMD_ADMIN | L, "Counts the entries.", SERVER("2.2.12"),
        REPLY("how many"))
COMMAND(slowlog_reset, "SLOWLOG|RESET", CMD_ADMIN | L, "Forgets the entries.", SERVER("2.2.12"),
        REPLY("OK"))
HELP(slowlog_help, "SLOWLOG|HELP", SERVER("5.0.0"))
CONTAINER(latency, "LATENCY", "Looks at what took long.", SERVER("2.8.13"))
COMMAND(latency_history, "LATENCY|HISTORY", A, "Tells the samples of an event: time, milliseconds.",
        SERVER("2.8.13"), TAKES(ARG(WORD, "event")), REPLY("an array of [time, milliseconds]"))
COMMAND(latency_latest, "LATENCY|LATEST", A,
        "Tells the latest sample of every event, and the worst.", SERVER("2.8.13"),
        REPLY("an array of [event, time, milliseconds, worst]"))
COMMAND(latency_reset, "LATENCY|RESET", A, "Forgets the samples of some events, or of all.",
        SERVER("2.8.13"), TAKES(MAYBE(WORD, "event", MANY)), REPLY("how many there were"))
COMMAND(latency_graph, "LATENCY|GRAPH", A, "Draws the samples of an event.", SERVER("2.8.13"),
        TAKES(ARG(WORD, "event")), REPLY("lines of text"))
COMMAND(latency_doctor, "LATENCY|DOCTOR", A, "Says in words what held the server up.",
        SERVER("2.8.13"), REPLY("text"))
COMMAND(latency_histogram, "LATENCY|HISTOGRAM", A, "Tells how long commands took.", SERVER("7.0.0"),
        TAKES(MAYBE(WORD, "command", MANY)), REPLY("a map of command to calls and histogram_usec"))
HELP(latency_help, "LATENCY|HELP", SERVER("2.8.13"))
CONTAINER(memory, "MEMORY", "Looks at what memory is used for.", SERVER("4.0.0"))
COMMAND(memory_usage, "MEMORY|USAGE", CMD_READONLY, "Tells the bytes of books that a key takes.",
        SERVER("4.0.0"), TAKES(KEY("key", KEY_RO), OPTION("SAMPLES", NUMBER, "count")),
        REPLY("bytes; nil: no such key"))
COMMAND(memory_stats, "MEMORY|STATS", 0, "Tells what the memory is used for.", SERVER("4.0.0"),
        REPLY("a map"))
COMMAND(memory_doctor, "MEMORY|DOCTOR", 0, "Says in words whether memory is a worry.",
        SERVER("4.0.0"), REPLY("text"))
COMMAND(memory_malloc_stats, "MEMORY|MALLOC-STATS", 0, "Tells what the memory allocator reports.",
        SERVER("4.0.0"), REPLY("text"))
COMMAND(memory_purge, "MEMORY|PURGE", 0, "Asks the memory allocator to give free pages back.",
        SERVER("4.0.0"), REPLY("OK"))
HELP(memory_help, "MEMORY|HELP", SERVER("5.0.0"))
CONTAINER(acl, "ACL", "Looks at users.", SERVER("6.0.0"))
COMMAND(acl_whoami, "ACL|WHOAMI", N, "Tells the name of this connection's user.", SERVER("6.0.0"),
        REPLY("the name"))
COMMAND(acl_setuser, "ACL|SETUSER", A, "Changes a user, or makes one.", SERVER("6.0.0"),
        TAKES(ARG(WORD, "username"), MAYBE(WORD, "rule", MANY)), REPLY("OK"))
COMMAND(acl_getuser, "ACL|GETUSER", A, "Tells the rules of a user.", SERVER("6.0.0"),
        TAKES(ARG(WORD, "username")), REPLY("a map; nil: no such user"))
COMMAND(acl_deluser, "ACL|DELUSER", A, "Deletes users, and closes their connections.",
        SERVER("6.0.0"), TAKES(ARG(WORD, "username", MANY)), REPLY("how many there were"))
COMMAND(acl_list, "ACL|LIST", A, "Lists all users with their rules, as an ACL file has them.",
        SERVER("6.0.0"), REPLY("an array of lines"))
COMMAND(acl_users, "ACL|USERS", A, "Lists the names of all users.", SERVER("6.0.0"),
        REPLY("an array of names"))
COMMAND(acl_cat, "ACL|CAT", N, "Lists the categories, or the commands of one.", SERVER("6.0.0"),
        TAKES(MAYBE(WORD, "category")), REPLY("an array of names"))
COMMAND(acl_genpass, "ACL|GENPASS", N, "Makes a random password of 256 bits, or as many as told.",
        SERVER("6.0.0"),
        TAKES(MAYBE(NUMBER, "bits", RANGE(1, 4096), NONE_IS(256), IN(choice, number),
                    ELSE("ACL GENPASS argument must be the number of bits for the output password, "
                         "a positive number up to 4096"))),
        REPLY("hex digits"))
COMMAND(acl_log, "ACL|LOG", A, "Tells what was refused lately, or forgets it.", SERVER("6.0.0"),
        TAKES(ANY_OF_IN(count, which, ARG(NUMBER, "count", IN(count, n)), TOKEN("RESET"))),
        REPLY("an array of maps; OK of RESET"))
COMMAND(acl_load, "ACL|LOAD", A, "Reads the ACL file again.", SERVER("6.0.0"), REPLY("OK"))
COMMAND(acl_save, "ACL|SAVE", A, "Writes the users to the ACL file.", SERVER("6.0.0"), REPLY("OK"))
COMMAND(acl_dryrun, "ACL|DRYRUN", A, "Tells whether a user may run a command, without running it.",
        SERVER("7.0.0"), TAKES(ARG(WORD, "username"), ARG(WORD, "command"), WORDS),
        REPLY("OK, or why not"))
HELP(acl_help, "ACL|HELP", SERVER("5.0.0"))
CONTAINER(module, "MODULE", "Loads and lists modules.", SERVER("4.0.0"))
COMMAND(module_list, "MODULE|LIST", CMD_ADMIN | CMD_NOSCRIPT, "Lists the modules.", SERVER("4.0.0"),
        REPLY("an array of maps"))
COMMAND(module_load, "MODULE|LOAD", CMD_ADMIN | CMD_NOSCRIPT, "Loads a module.", SERVER("4.0.0"),
        TAKES(ARG(WORD, "path"), WORDS), REPLY("OK"))
COMMAND(module_loadex, "MODULE|LOADEX", CMD_ADMIN | CMD_NOSCRIPT, "Loads a module.",
        SERVER("7.0.0"), TAKES(ARG(WORD, "path"), OPTION("ARGS", VALUES, "arg", MANY)), REPLY("OK"))
COMMAND(module_unload, "MODULE|UNLOAD", CMD_ADMIN | CMD_NOSCRIPT, "Unloads a module.",
        SERVER("4.0.0"), TAKES(ARG(WORD, "name")), REPLY("OK"))
HELP(module_help, "MODULE|HELP", SERVER("5.0.0"))
CONTAINER(function, "FUNCTION", "For clients that flush functions: there are none.",
          GROUP(NULL, "scripting", "7.0.0"))
COMMAND(function_flush, "FUNCTION|FLUSH", CMD_WRITE | CMD_NOSCRIPT,
        "Accepted: there are no functions.", SCRIPTING("7.0.0"),
        TAKES(ANY_OF(TOKEN("ASYNC"), TOKEN("SYNC"))), REPLY("OK"))
HELP(function_help, "FUNCTION|HELP", SCRIPTING("7.0.0"))
CONTAINER(script, "SCRIPT", "For Sentinels and clients that ask about scripts: there are none.",
          GROUP(NULL, "scripting", "2.6.0"))
COMMAND(script_kill, "SCRIPT|KILL", CMD_NOSCRIPT | CMD_ALLOW_BUSY, "Tells that no script runs.",
        SCRIPTING("2.6.0"), REPLY("an error"), ERRORS("NOTBUSY"))
SHARED(script_flush, function_flush, "SCRIPT|FLUSH", CMD_NOSCRIPT,
       "Accepted: there are no scripts.", SCRIPTING("2.6.0"),
       TAKES(ANY_OF(TOKEN("ASYNC"), TOKEN("SYNC"))), REPLY("OK"))
COMMAND(script_exists, "SCRIPT|EXISTS", CMD_NOSCRIPT, "Tells of each script that it is not there.",
        SCRIPTING("2.6.0"), TAKES(ARG(WORD, "sha1", MANY)), REPLY("an array of 0"))
HELP(script_help, "SCRIPT|HELP", SCRIPTING("5.0.0"))
COMMAND(shutdown, "SHUTDOWN", A | CMD_NO_MULTI | CMD_ALLOW_BUSY, "Stops the server.",
        SERVER("1.0.0"),
        TAKES(ANY_OF_IN(shutdown, save, TOKEN("NOSAVE"), TOKEN("SAVE")),
              FLAG("NOW", IN(shutdown, now)), FLAG("FORCE", IN(shutdown, force)),
              FLAG("ABORT", IN(shutdown, abort))),
        REPLY("none when it stops; OK of ABORT"))
COMMAND(save, "SAVE", A | CMD_NO_MULTI, "Writes a snapshot of the books; everybody waits.",
        SERVER("1.0.0"), REPLY("OK"))
COMMAND(bgsave, "BGSAVE", A, "Writes a snapshot of the books beside everything else.",
        SERVER("1.0.0"), TAKES(FLAG("SCHEDULE", SETS(1), IN(choice, which))), EACH_ONCE,
        REPLY("a line that says that it began, or will"))
COMMAND(bgrewriteaof, "BGREWRITEAOF", A, "Writes the append-only file anew.", SERVER("1.0.0"),
        REPLY("a line that says that it began, or will"))
COMMAND(lastsave, "LASTSAVE", L | F, "Tells when the last snapshot was written.",
        GROUP("@admin @dangerous", "server", "1.0.0"), REPLY("seconds since 1970"))
COMMAND(debug, "DEBUG", A, "For tests, and for those who look for faults.", SERVER("1.0.0"),
        TAKES(ONE_OF(TOKEN("HELP"), ARG(BLOCK, NULL, OF(ARG(WORD, "subcommand"), WORDS)))),
        REPLY("by subcommand"), ERRORS("NOSPACE"))
COMMAND(lolwut, "LOLWUT", CMD_READONLY | F, "Tells the version, without a picture.",
        SERVER("5.0.0"), TAKES(OPTION("VERSION", NUMBER, "version")), REPLY("text"))
COMMAND(time, "TIME", L | F, "Tells the server's time.", SERVER("2.6.0"),
        REPLY("[seconds, microseconds]"))
COMMAND(role, "ROLE", N | F, "Tells whether this server is a master or a replica, and of whom.",
        GROUP("@admin @dangerous", "server", "2.8.12"),
        REPLY("[master, offset, [replica, ...]] or [slave, host, port, state, offset]"))
COMMAND(replicaof, "REPLICAOF", A, "Makes this server a replica of another, or a master.",
        SERVER("5.0.0"), TAKES(HOST_AND_PORT), REPLY("OK"))
SHARED(slaveof, replicaof, "SLAVEOF", A, "REPLICAOF's old name.", SERVER("1.0.0"),
       TAKES(HOST_AND_PORT), REPLY("OK"))
COMMAND(failover, "FAILOVER", CMD_ADMIN | CMD_NOSCRIPT | CMD_STALE,
        "Hands the role of the master over to a replica.", SERVER("6.2.0"),
        TAKES(MAYBE(BLOCK, NULL,
                    OF(NAMED("TO", WORD, "host", IN(failover, host)),
                       ARG(NUMBER, "port", IN(failover, port)))),
              FLAG("FORCE", IN(failover, force)), FLAG("ABORT", IN(failover, abort)),
              OPTION("TIMEOUT", NUMBER, "milliseconds", NONE_IS(INT64_MAX),
                     IN(failover, timeout_ms))),
        EACH_ONCE, REPLY("OK"))
COMMAND(psync, "PSYNC", A | CMD_NO_MULTI, "A replica asks for the stream.", SERVER("2.8.0"),
        TAKES(ARG(WORD, "replicationid"), ARG(NUMBER, "offset"), WORDS), REPLY("the stream"),
        ERRORS("NOMASTERLINK"))
COMMAND(replconf, "REPLCONF", A | CMD_ALLOW_BUSY, "A replica tells about itself.", SERVER("3.0.0"),
        TAKES(WORDS), REPLY("OK; none of ACK"))
COMMAND(wait, "WAIT", CMD_NOSCRIPT, "Waits until replicas have all that was written before.",
        GROUP("@connection", "generic", "3.0.0"),
        TAKES(ARG(NUMBER, "numreplicas"), ARG(NUMBER, "timeout")),
        REPLY("how many replicas have it"))
