/* The server: figures, configuration, the table itself. */
#include "cmd/families.h"
#include "cmd/table.h"

#define L    (CMD_LOADING | CMD_STALE)
#define N    (CMD_NOSCRIPT | CMD_LOADING | CMD_STALE)
#define AL   (CMD_ADMIN | CMD_LOADING | CMD_STALE)
#define A    (CMD_ADMIN | CMD_NOSCRIPT | CMD_LOADING | CMD_STALE)
#define F    CMD_FAST
#define SRV  NULL, "server"
#define CONN "@connection", "server"

static struct cmd config_sub[] = {
    {"get", cmd_config_get, -3, A, SRV, "2.0.0", "Tells the options that match.", "parameter [parameter ...]",
     NO_KEYS, NULL, 0},
    {"set", cmd_config_set, -4, A, SRV, "2.0.0", "Changes options, all of them or none.",
     "parameter value [parameter value ...]", NO_KEYS, NULL, 0},
    {"rewrite", cmd_config_rewrite, 2, A, SRV, "2.8.0",
     "Writes the options in force to the configuration file.", "", NO_KEYS, NULL, 0},
    {"resetstat", cmd_config_resetstat, 2, A, SRV, "2.0.0", "Sets the counters of INFO to zero.", "", NO_KEYS,
     NULL, 0},
    HELP_ROW("server"),
    TABLE_END,
};

static struct cmd command_sub[] = {
    {"count", cmd_command_count, 2, L, CONN, "2.8.13", "Counts the commands.", "", NO_KEYS, NULL, 0},
    {"list", cmd_command_list, -2, L, CONN, "7.0.0", "Lists the names of commands.",
     "[FILTERBY <MODULE module-name | ACLCAT category | PATTERN pattern>]", NO_KEYS, NULL, 0},
    {"info", cmd_command_info, -2, L, CONN, "2.8.13", "Describes commands to programs.",
     "[command-name [command-name ...]]", NO_KEYS, NULL, 0},
    {"docs", cmd_command_docs, -2, L, CONN, "7.0.0", "Describes commands to people.",
     "[command-name [command-name ...]]", NO_KEYS, NULL, 0},
    {"getkeys", cmd_command_getkeys, -3, L, CONN, "2.8.13", "Finds the keys in a command.",
     "command [arg [arg ...]]", NO_KEYS, NULL, 0},
    {"getkeysandflags", cmd_command_getkeysandflags, -3, L, CONN, "7.0.0",
     "Finds the keys in a command and what is done to them.", "command [arg [arg ...]]", NO_KEYS, NULL, 0},
    {"help", cmd_help, 2, L, CONN, "5.0.0", "Lists the subcommands.", "", NO_KEYS, NULL, 0},
    TABLE_END,
};

static struct cmd slowlog_sub[] = {
    {"get", cmd_slowlog_get, -2, AL, SRV, "2.2.12", "Tells the latest slow commands.", "[count]", NO_KEYS,
     NULL, 0},
    {"len", cmd_slowlog_len, 2, AL, SRV, "2.2.12", "Counts the entries.", "", NO_KEYS, NULL, 0},
    {"reset", cmd_slowlog_reset, 2, AL, SRV, "2.2.12", "Forgets the entries.", "", NO_KEYS, NULL, 0},
    HELP_ROW("server"),
    TABLE_END,
};

static struct cmd memory_sub[] = {
    {"usage", cmd_memory_usage, -3, CMD_READONLY, SRV, "4.0.0", "Tells the bytes of books that a key takes.",
     "key [SAMPLES count]", SUB_KEY(KEY_RO), NULL, 0},
    {"stats", cmd_memory_stats, 2, 0, SRV, "4.0.0", "Tells what the memory is used for.", "", NO_KEYS, NULL,
     0},
    {"doctor", cmd_memory_doctor, 2, 0, SRV, "4.0.0", "Says in words whether memory is a worry.", "", NO_KEYS,
     NULL, 0},
    {"malloc-stats", cmd_memory_malloc_stats, 2, 0, SRV, "4.0.0", "Tells what the memory allocator reports.",
     "", NO_KEYS, NULL, 0},
    {"purge", cmd_memory_purge, 2, 0, SRV, "4.0.0", "Asks the memory allocator to give free pages back.", "",
     NO_KEYS, NULL, 0},
    HELP_ROW("server"),
    TABLE_END,
};

static struct cmd acl_sub[] = {
    {"whoami", cmd_acl_whoami, 2, N, SRV, "6.0.0", "Tells the name of this connection's user.", "", NO_KEYS,
     NULL, 0},
    HELP_ROW("server"),
    TABLE_END,
};

static struct cmd module_sub[] = {
    {"list", cmd_module_list, 2, CMD_ADMIN | CMD_NOSCRIPT, SRV, "4.0.0", "Lists the modules.", "", NO_KEYS,
     NULL, 0},
    HELP_ROW("server"),
    TABLE_END,
};

static struct cmd function_sub[] = {
    {"flush", cmd_function_flush, -2, CMD_WRITE | CMD_NOSCRIPT, "@scripting", "scripting", "7.0.0",
     "Accepted: there are no functions.", "[ASYNC | SYNC]", NO_KEYS, NULL, 0},
    {"help", cmd_help, 2, L, "@scripting", "scripting", "7.0.0", "Lists the subcommands.", "", NO_KEYS, NULL,
     0},
    TABLE_END,
};

struct cmd table_server[] = {
    {"info", cmd_info, -1, L, "@dangerous", "server", "1.0.0", "Tells the state of the server in figures.",
     "[section [section ...]]", NO_KEYS, NULL, 0},
    {"config", NULL, -2, 0, SRV, "2.0.0", "Reads and changes the configuration.", "", NO_KEYS, config_sub, 0},
    {"command", cmd_command, -1, L, CONN, "2.8.13", "Describes all commands.", "", NO_KEYS, command_sub, 0},
    {"monitor", cmd_monitor, 1, A, SRV, "1.0.0", "Shows every command that the server runs.", "", NO_KEYS,
     NULL, 0},
    {"slowlog", NULL, -2, 0, SRV, "2.2.12", "Looks at the slow commands.", "", NO_KEYS, slowlog_sub, 0},
    {"memory", NULL, -2, 0, SRV, "4.0.0", "Looks at what memory is used for.", "", NO_KEYS, memory_sub, 0},
    {"acl", NULL, -2, 0, SRV, "6.0.0", "Looks at users.", "", NO_KEYS, acl_sub, 0},
    {"module", NULL, -2, 0, SRV, "4.0.0", "Looks at modules.", "", NO_KEYS, module_sub, 0},
    {"function", NULL, -2, 0, NULL, "scripting", "7.0.0", "For clients that flush functions: there are none.",
     "", NO_KEYS, function_sub, 0},
    {"shutdown", cmd_shutdown, -1, A | CMD_NO_MULTI | CMD_ALLOW_BUSY, SRV, "1.0.0", "Stops the server.",
     "[NOSAVE | SAVE] [NOW] [FORCE] [ABORT]", NO_KEYS, NULL, 0},
    {"debug", cmd_debug, -2, A, SRV, "1.0.0", "For tests.", "<SLEEP seconds | CHECK | JMAP>", NO_KEYS, NULL,
     0},
    {"time", cmd_time, 1, L | F, SRV, "2.6.0", "Tells the server's time.", "", NO_KEYS, NULL, 0},
    {"role", cmd_role, 1, N | F, "@admin @dangerous", "server", "2.8.12",
     "Tells that this server is a master.", "", NO_KEYS, NULL, 0},
    TABLE_END,
};
