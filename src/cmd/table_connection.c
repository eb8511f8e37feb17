/* The connection itself. */
#include "cmd/families.h"
#include "cmd/table.h"

#define L     (CMD_LOADING | CMD_STALE)
#define N     (CMD_NOSCRIPT | CMD_LOADING | CMD_STALE)
#define A     (CMD_ADMIN | CMD_NOSCRIPT | CMD_LOADING | CMD_STALE)
#define F     CMD_FAST
#define EARLY (CMD_NOSCRIPT | CMD_LOADING | CMD_STALE | CMD_FAST | CMD_NO_AUTH | CMD_ALLOW_BUSY)
#define GRP   "@connection", "connection"

static struct cmd client_sub[] = {
    {"id", cmd_client_id, 2, N, GRP, "5.0.0", "Tells the number of this connection.", "", NO_KEYS,
     NULL, 0},
    {"info", cmd_client_info, 2, N, GRP, "6.2.0", "Describes this connection.", "", NO_KEYS, NULL,
     0},
    {"list", cmd_client_list, -2, A, GRP, "2.4.0", "Describes all connections.",
     "[TYPE <NORMAL | MASTER | REPLICA | PUBSUB>] [ID client-id [client-id ...]]", NO_KEYS, NULL,
     0},
    {"kill", cmd_client_kill, -3, A, GRP, "2.4.0", "Closes connections.",
     "<ip:port | <ID client-id | TYPE <NORMAL | MASTER | REPLICA | PUBSUB> | USER username | ADDR "
     "ip:port | "
     "LADDR ip:port | SKIPME yes/no> ...>",
     NO_KEYS, NULL, 0},
    {"getname", cmd_client_getname, 2, N, GRP, "2.6.9", "Tells the name of this connection.", "",
     NO_KEYS, NULL, 0},
    {"setname", cmd_client_setname, 3, N, GRP, "2.6.9", "Names this connection.", "connection-name",
     NO_KEYS, NULL, 0},
    {"setinfo", cmd_client_setinfo, 4, N, GRP, "7.2.0",
     "Tells about this client: library, version, host.",
     "<LIB-NAME libname | LIB-VER libver | TARN-HOST hostname>", NO_KEYS, NULL, 0},
    {"pause", cmd_client_pause, -3, A, GRP, "3.0.0",
     "Holds the commands of all clients back for a time.", "timeout [WRITE | ALL]", NO_KEYS, NULL,
     0},
    {"unpause", cmd_client_unpause, 2, A, GRP, "6.2.0", "Ends a pause.", "", NO_KEYS, NULL, 0},
    {"reply", cmd_client_reply, 3, N | CMD_NO_MULTI, GRP, "3.2.0",
     "Says whether this client wants replies.", "<ON | OFF | SKIP>", NO_KEYS, NULL, 0},
    {"no-evict", cmd_client_no_evict, 3, A, GRP, "7.0.0",
     "Keeps this connection where others would be closed for room.", "<ON | OFF>", NO_KEYS, NULL,
     0},
    {"no-touch", cmd_client_no_touch, 3, N, GRP, "7.2.0",
     "Accepted; reads by this client count as accesses all the same.", "<ON | OFF>", NO_KEYS, NULL,
     0},
    {"getredir", cmd_client_getredir, 2, N, GRP, "6.0.0",
     "Tells that messages of tracking go to this connection (0), or that it is off (-1).", "",
     NO_KEYS, NULL, 0},
    {"tracking", cmd_client_tracking, -3, N, GRP, "6.0.0",
     "Says whether this connection hears of changes to keys that it has read.", "<ON | OFF>",
     NO_KEYS, NULL, 0},
    {"trackinginfo", cmd_client_trackinginfo, 2, N, GRP, "6.2.0", "Tells whether tracking is on.",
     "", NO_KEYS, NULL, 0},
    {"caching", cmd_client_caching, 3, N, GRP, "6.0.0",
     "Refused: there is neither OPTIN nor OPTOUT.", "<YES | NO>", NO_KEYS, NULL, 0},
    {"unblock", cmd_client_unblock, -3, A, GRP, "5.0.0", "Ends the wait of another connection.",
     "client-id [TIMEOUT | ERROR]", NO_KEYS, NULL, 0},
    {"help", cmd_help, 2, L, GRP, "5.0.0", "Lists the subcommands.", "", NO_KEYS, NULL, 0},
    TABLE_END,
};

struct cmd table_connection[] = {
    {"ping", cmd_ping, -1, F, GRP, "1.0.0", "Answers.", "[message]", NO_KEYS, NULL, 0},
    {"echo", cmd_echo, 2, L | F, GRP, "1.0.0", "Answers with the message.", "message", NO_KEYS,
     NULL, 0},
    {"auth", cmd_auth, -2, EARLY, GRP, "1.0.0", "Shows the password.", "[username] password",
     NO_KEYS, NULL, 0},
    {"hello", cmd_hello, -1, EARLY, GRP, "6.0.0", "Chooses the protocol, and tells who is there.",
     "[protover [AUTH username password] [SETNAME clientname]]", NO_KEYS, NULL, 0},
    {"select", cmd_select, 2, L | F, GRP, "1.0.0",
     "Chooses a number below databases; all name the one keyspace.", "index", NO_KEYS, NULL, 0},
    {"quit", cmd_quit, -1, EARLY, GRP, "1.0.0", "Closes the connection.", "", NO_KEYS, NULL, 0},
    {"reset", cmd_reset, 1, EARLY, GRP, "6.2.0", "Makes the connection as new.", "", NO_KEYS, NULL,
     0},
    {"client", NULL, -2, 0, NULL, "connection", "2.4.0", "Looks at connections and changes them.",
     "", NO_KEYS, client_sub, 0},
    TABLE_END,
};
