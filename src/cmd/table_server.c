/* The server: figures, configuration, the table itself. */
#include "cmd/families.h"
#include "cmd/table.h"

#define L     (CMD_LOADING | CMD_STALE)
#define N     (CMD_NOSCRIPT | CMD_LOADING | CMD_STALE)
#define AL    (CMD_ADMIN | CMD_LOADING | CMD_STALE)
#define A     (CMD_ADMIN | CMD_NOSCRIPT | CMD_LOADING | CMD_STALE)
#define F     CMD_FAST
#define SRV   NULL, "server"
#define CONN  "@connection", "server"
#define CONN_ "@connection", "generic"

static struct cmd config_sub[] = {
    {"get", cmd_config_get, -3, A, SRV, "2.0.0", "Tells the options that match.",
     "parameter [parameter ...]", NO_KEYS, NULL, 0},
    {"set", cmd_config_set, -4, A, SRV, "2.0.0", "Changes options, all of them or none.",
     "parameter value [parameter value ...]", NO_KEYS, NULL, 0},
    {"rewrite", cmd_config_rewrite, 2, A, SRV, "2.8.0",
     "Writes the options in force to the configuration file.", "", NO_KEYS, NULL, 0},
    {"resetstat", cmd_config_resetstat, 2, A, SRV, "2.0.0", "Sets the counters of INFO to zero.",
     "", NO_KEYS, NULL, 0},
    HELP_ROW("server"),
    TABLE_END,
};

static struct cmd command_sub[] = {
    {"count", cmd_command_count, 2, L, CONN, "2.8.13", "Counts the commands.", "", NO_KEYS, NULL,
     0},
    {"list", cmd_command_list, -2, L, CONN, "7.0.0", "Lists the names of commands.",
     "[FILTERBY <MODULE module-name | ACLCAT category | PATTERN pattern>]", NO_KEYS, NULL, 0},
    {"info", cmd_command_info, -2, L, CONN, "2.8.13", "Describes commands to programs.",
     "[command-name [command-name ...]]", NO_KEYS, NULL, 0},
    {"docs", cmd_command_docs, -2, L, CONN, "7.0.0", "Describes commands to people.",
     "[command-name [command-name ...]]", NO_KEYS, NULL, 0},
    {"getkeys", cmd_command_getkeys, -3, L, CONN, "2.8.13", "Finds the keys in a command.",
     "command [arg [arg ...]]", NO_KEYS, NULL, 0},
    {"getkeysandflags", cmd_command_getkeysandflags, -3, L, CONN, "7.0.0",
     "Finds the keys in a command and what is done to them.", "command [arg [arg ...]]", NO_KEYS,
     NULL, 0},
    {"help", cmd_help, 2, L, CONN, "5.0.0", "Lists the subcommands.", "", NO_KEYS, NULL, 0},
    TABLE_END,
};

static struct cmd slowlog_sub[] = {
    {"get", cmd_slowlog_get, -2, AL, SRV, "2.2.12", "Tells the latest slow commands.", "[count]",
     NO_KEYS, NULL, 0},
    {"len", cmd_slowlog_len, 2, AL, SRV, "2.2.12", "Counts the entries.", "", NO_KEYS, NULL, 0},
    {"reset", cmd_slowlog_reset, 2, AL, SRV, "2.2.12", "Forgets the entries.", "", NO_KEYS, NULL,
     0},
    HELP_ROW("server"),
    TABLE_END,
};

static struct cmd latency_sub[] = {
    {"history", cmd_latency_history, 3, A, SRV, "2.8.13",
     "Tells the samples of an event: time, milliseconds.", "event", NO_KEYS, NULL, 0},
    {"latest", cmd_latency_latest, 2, A, SRV, "2.8.13",
     "Tells the latest sample of every event, and the worst.", "", NO_KEYS, NULL, 0},
    {"reset", cmd_latency_reset, -2, A, SRV, "2.8.13",
     "Forgets the samples of some events, or of all.", "[event [event ...]]", NO_KEYS, NULL, 0},
    {"graph", cmd_latency_graph, 3, A, SRV, "2.8.13", "Draws the samples of an event.", "event",
     NO_KEYS, NULL, 0},
    {"doctor", cmd_latency_doctor, 2, A, SRV, "2.8.13", "Says in words what held the server up.",
     "", NO_KEYS, NULL, 0},
    {"histogram", cmd_latency_histogram, -2, A, SRV, "7.0.0", "Tells how long commands took.",
     "[command [command ...]]", NO_KEYS, NULL, 0},
    {"help", cmd_help, 2, L, SRV, "2.8.13", "Lists the subcommands.", "", NO_KEYS, NULL, 0},
    TABLE_END,
};

static struct cmd memory_sub[] = {
    {"usage", cmd_memory_usage, -3, CMD_READONLY, SRV, "4.0.0",
     "Tells the bytes of books that a key takes.", "key [SAMPLES count]", SUB_KEY(KEY_RO), NULL, 0},
    {"stats", cmd_memory_stats, 2, 0, SRV, "4.0.0", "Tells what the memory is used for.", "",
     NO_KEYS, NULL, 0},
    {"doctor", cmd_memory_doctor, 2, 0, SRV, "4.0.0", "Says in words whether memory is a worry.",
     "", NO_KEYS, NULL, 0},
    {"malloc-stats", cmd_memory_malloc_stats, 2, 0, SRV, "4.0.0",
     "Tells what the memory allocator reports.", "", NO_KEYS, NULL, 0},
    {"purge", cmd_memory_purge, 2, 0, SRV, "4.0.0",
     "Asks the memory allocator to give free pages back.", "", NO_KEYS, NULL, 0},
    HELP_ROW("server"),
    TABLE_END,
};

static struct cmd acl_sub[] = {
    {"whoami", cmd_acl_whoami, 2, N, SRV, "6.0.0", "Tells the name of this connection's user.", "",
     NO_KEYS, NULL, 0},
    {"setuser", cmd_acl_setuser, -3, A, SRV, "6.0.0", "Changes a user, or makes one.",
     "username [rule [rule ...]]", NO_KEYS, NULL, 0},
    {"getuser", cmd_acl_getuser, 3, A, SRV, "6.0.0", "Tells the rules of a user.", "username",
     NO_KEYS, NULL, 0},
    {"deluser", cmd_acl_deluser, -3, A, SRV, "6.0.0",
     "Deletes users, and closes their connections.", "username [username ...]", NO_KEYS, NULL, 0},
    {"list", cmd_acl_list, 2, A, SRV, "6.0.0",
     "Lists all users with their rules, as an ACL file has them.", "", NO_KEYS, NULL, 0},
    {"users", cmd_acl_users, 2, A, SRV, "6.0.0", "Lists the names of all users.", "", NO_KEYS, NULL,
     0},
    {"cat", cmd_acl_cat, -2, N, SRV, "6.0.0", "Lists the categories, or the commands of one.",
     "[category]", NO_KEYS, NULL, 0},
    {"genpass", cmd_acl_genpass, -2, N, SRV, "6.0.0",
     "Makes a random password of 256 bits, or as many as told.", "[bits]", NO_KEYS, NULL, 0},
    {"log", cmd_acl_log, -2, A, SRV, "6.0.0", "Tells what was refused lately, or forgets it.",
     "[count | RESET]", NO_KEYS, NULL, 0},
    {"load", cmd_acl_load, 2, A, SRV, "6.0.0", "Reads the ACL file again.", "", NO_KEYS, NULL, 0},
    {"save", cmd_acl_save, 2, A, SRV, "6.0.0", "Writes the users to the ACL file.", "", NO_KEYS,
     NULL, 0},
    {"dryrun", cmd_acl_dryrun, -4, A, SRV, "7.0.0",
     "Tells whether a user may run a command, without running it.",
     "username command [arg [arg ...]]", NO_KEYS, NULL, 0},
    HELP_ROW("server"),
    TABLE_END,
};

static struct cmd module_sub[] = {
    {"list", cmd_module_list, 2, CMD_ADMIN | CMD_NOSCRIPT, SRV, "4.0.0", "Lists the modules.", "",
     NO_KEYS, NULL, 0},
    {"load", cmd_module_load, -3, CMD_ADMIN | CMD_NOSCRIPT, SRV, "4.0.0", "Loads a module.",
     "path [arg [arg ...]]", NO_KEYS, NULL, 0},
    {"loadex", cmd_module_loadex, -3, CMD_ADMIN | CMD_NOSCRIPT, SRV, "7.0.0", "Loads a module.",
     "path [ARGS arg [arg ...]]", NO_KEYS, NULL, 0},
    {"unload", cmd_module_unload, 3, CMD_ADMIN | CMD_NOSCRIPT, SRV, "4.0.0", "Unloads a module.",
     "name", NO_KEYS, NULL, 0},
    HELP_ROW("server"),
    TABLE_END,
};

static struct cmd function_sub[] = {
    {"flush", cmd_function_flush, -2, CMD_WRITE | CMD_NOSCRIPT, "@scripting", "scripting", "7.0.0",
     "Accepted: there are no functions.", "[ASYNC | SYNC]", NO_KEYS, NULL, 0},
    {"help", cmd_help, 2, L, "@scripting", "scripting", "7.0.0", "Lists the subcommands.", "",
     NO_KEYS, NULL, 0},
    TABLE_END,
};

static struct cmd script_sub[] = {
    {"kill", cmd_script_kill, 2, CMD_NOSCRIPT | CMD_ALLOW_BUSY, "@scripting", "scripting", "2.6.0",
     "Tells that no script runs.", "", NO_KEYS, NULL, 0},
    {"flush", cmd_function_flush, -2, CMD_NOSCRIPT, "@scripting", "scripting", "2.6.0",
     "Accepted: there are no scripts.", "[ASYNC | SYNC]", NO_KEYS, NULL, 0},
    {"exists", cmd_script_exists, -3, CMD_NOSCRIPT, "@scripting", "scripting", "2.6.0",
     "Tells of each script that it is not there.", "sha1 [sha1 ...]", NO_KEYS, NULL, 0},
    {"help", cmd_help, 2, L, "@scripting", "scripting", "5.0.0", "Lists the subcommands.", "",
     NO_KEYS, NULL, 0},
    TABLE_END,
};

/* What clients ask to find out whether this is a cluster. */
#define CLUSTER_ROW(name, since, summary)                                                          \
    { name, cmd_cluster_off, -2, L, NULL, "cluster", since, summary, "", NO_KEYS, NULL, 0 }

static struct cmd cluster_sub[] = {
    CLUSTER_ROW("info", "3.0.0", "Tells that there is no cluster."),
    CLUSTER_ROW("nodes", "3.0.0", "Tells that there is no cluster."),
    CLUSTER_ROW("slots", "3.0.0", "Tells that there is no cluster."),
    CLUSTER_ROW("shards", "7.0.0", "Tells that there is no cluster."),
    CLUSTER_ROW("myid", "3.0.0", "Tells that there is no cluster."),
    {"help", cmd_help, 2, L, NULL, "cluster", "5.0.0", "Lists the subcommands.", "", NO_KEYS, NULL,
     0},
    TABLE_END,
};

struct cmd table_server[] = {
    {"info", cmd_info, -1, L, "@dangerous", "server", "1.0.0",
     "Tells the state of the server in figures.", "[section [section ...]]", NO_KEYS, NULL, 0},
    {"config", NULL, -2, 0, SRV, "2.0.0", "Reads and changes the configuration.", "", NO_KEYS,
     config_sub, 0},
    {"command", cmd_command, -1, L, CONN, "2.8.13", "Describes all commands.", "", NO_KEYS,
     command_sub, 0},
    {"monitor", cmd_monitor, 1, A, SRV, "1.0.0", "Shows every command that the server runs.", "",
     NO_KEYS, NULL, 0},
    {"slowlog", NULL, -2, 0, SRV, "2.2.12", "Looks at the slow commands.", "", NO_KEYS, slowlog_sub,
     0},
    {"latency", NULL, -2, 0, SRV, "2.8.13", "Looks at what took long.", "", NO_KEYS, latency_sub,
     0},
    {"memory", NULL, -2, 0, SRV, "4.0.0", "Looks at what memory is used for.", "", NO_KEYS,
     memory_sub, 0},
    {"acl", NULL, -2, 0, SRV, "6.0.0", "Looks at users.", "", NO_KEYS, acl_sub, 0},
    {"module", NULL, -2, 0, SRV, "4.0.0", "Loads and lists modules.", "", NO_KEYS, module_sub, 0},
    {"function", NULL, -2, 0, NULL, "scripting", "7.0.0",
     "For clients that flush functions: there are none.", "", NO_KEYS, function_sub, 0},
    {"script", NULL, -2, 0, NULL, "scripting", "2.6.0",
     "For Sentinels and clients that ask about scripts: there are none.", "", NO_KEYS, script_sub,
     0},
    {"cluster", NULL, -2, 0, NULL, "cluster", "3.0.0",
     "For clients that look for a cluster: there is none.", "", NO_KEYS, cluster_sub, 0},
    {"shutdown", cmd_shutdown, -1, A | CMD_NO_MULTI | CMD_ALLOW_BUSY, SRV, "1.0.0",
     "Stops the server.", "[NOSAVE | SAVE] [NOW] [FORCE] [ABORT]", NO_KEYS, NULL, 0},
    {"save", cmd_save, 1, A | CMD_NO_MULTI, SRV, "1.0.0",
     "Writes a snapshot of the books; everybody waits.", "", NO_KEYS, NULL, 0},
    {"bgsave", cmd_bgsave, -1, A, SRV, "1.0.0",
     "Writes a snapshot of the books beside everything else.", "[SCHEDULE]", NO_KEYS, NULL, 0},
    {"bgrewriteaof", cmd_bgrewriteaof, 1, A, SRV, "1.0.0", "Writes the append-only file anew.", "",
     NO_KEYS, NULL, 0},
    {"lastsave", cmd_lastsave, 1, L | F, "@admin @dangerous", "server", "1.0.0",
     "Tells when the last snapshot was written.", "", NO_KEYS, NULL, 0},
    {"debug", cmd_debug, -2, A, SRV, "1.0.0", "For tests, and for those who look for faults.",
     "<HELP | subcommand [arg [arg ...]]>", NO_KEYS, NULL, 0},
    {"lolwut", cmd_lolwut, -1, CMD_READONLY | F, SRV, "5.0.0",
     "Tells the version, without a picture.", "[VERSION version]", NO_KEYS, NULL, 0},
    {"time", cmd_time, 1, L | F, SRV, "2.6.0", "Tells the server's time.", "", NO_KEYS, NULL, 0},
    {"role", cmd_role, 1, N | F, "@admin @dangerous", "server", "2.8.12",
     "Tells whether this server is a master or a replica, and of whom.", "", NO_KEYS, NULL, 0},
    {"replicaof", cmd_replicaof, 3, A, SRV, "5.0.0",
     "Makes this server a replica of another, or a master.", "<host port | NO ONE>", NO_KEYS, NULL,
     0},
    {"slaveof", cmd_replicaof, 3, A, SRV, "1.0.0", "REPLICAOF's old name.", "<host port | NO ONE>",
     NO_KEYS, NULL, 0},
    {"failover", cmd_failover, -1, CMD_ADMIN | CMD_NOSCRIPT | CMD_STALE, SRV, "6.2.0",
     "Hands the role of the master over to a replica.",
     "[TO host port [FORCE]] [ABORT] [TIMEOUT milliseconds]", NO_KEYS, NULL, 0},
    {"psync", cmd_psync, -3, A | CMD_NO_MULTI, SRV, "2.8.0", "A replica asks for the stream.",
     "replicationid offset", NO_KEYS, NULL, 0},
    {"replconf", cmd_replconf, -1, A | CMD_ALLOW_BUSY, SRV, "3.0.0",
     "A replica tells about itself.", "", NO_KEYS, NULL, 0},
    {"wait", cmd_wait, 3, CMD_NOSCRIPT, CONN_, "3.0.0",
     "Waits until replicas have all that was written before.", "numreplicas timeout", NO_KEYS, NULL,
     0},
    TABLE_END,
};
