/* Transactions, and messages between clients. */
#include "cmd/families.h"
#include "cmd/table.h"

#define L     (CMD_LOADING | CMD_STALE)
#define T     (CMD_NOSCRIPT | CMD_LOADING | CMD_STALE)
#define EARLY (T | CMD_FAST | CMD_ALLOW_BUSY)
#define TX    "@transaction", "transactions"
#define PS    "@pubsub", "pubsub"
#define S     (CMD_PUBSUB | CMD_NOSCRIPT | CMD_LOADING | CMD_STALE)
#define P     (CMD_PUBSUB | CMD_LOADING | CMD_STALE)
#define SEND  (P | CMD_FAST | CMD_MAY_REPLICATE)

static struct cmd pubsub_sub[] = {
    {"channels", cmd_pubsub_channels, -2, P, PS, "2.8.0",
     "Lists the channels that somebody listens to.", "[pattern]", NO_KEYS, NULL, 0},
    {"numsub", cmd_pubsub_numsub, -2, P, PS, "2.8.0", "Counts who listens to channels.",
     "[channel [channel ...]]", NO_KEYS, NULL, 0},
    {"numpat", cmd_pubsub_numpat, 2, P, PS, "2.8.0",
     "Counts the patterns that somebody listens to.", "", NO_KEYS, NULL, 0},
    {"shardchannels", cmd_pubsub_shardchannels, -2, P, PS, "7.0.0",
     "Lists the shard channels that somebody listens to.", "[pattern]", NO_KEYS, NULL, 0},
    {"shardnumsub", cmd_pubsub_shardnumsub, -2, P, PS, "7.0.0",
     "Counts who listens to shard channels.", "[shardchannel [shardchannel ...]]", NO_KEYS, NULL,
     0},
    {"help", cmd_help, 2, L, NULL, "pubsub", "6.2.0", "Lists the subcommands.", "", NO_KEYS, NULL,
     0},
    TABLE_END,
};

struct cmd table_transaction[] = {
    {"multi", cmd_multi, 1, EARLY, TX, "1.2.0",
     "Begins a transaction: commands are kept until EXEC.", "", NO_KEYS, NULL, 0},
    {"exec", cmd_exec, 1, T | CMD_SKIP_SLOWLOG, TX, "1.2.0",
     "Runs the commands of a transaction, unless a watched key was written.", "", NO_KEYS, NULL, 0},
    {"discard", cmd_discard, 1, EARLY, TX, "2.0.0", "Forgets the commands of a transaction.", "",
     NO_KEYS, NULL, 0},
    {"watch", cmd_watch, -2, EARLY, TX, "2.2.0",
     "Lets the next EXEC do nothing if one of the keys is written.", "key [key ...]",
     ALL_KEYS(KEY_RO), NULL, 0},
    {"unwatch", cmd_unwatch, 1, EARLY, TX, "2.2.0", "Watches no key any more.", "", NO_KEYS, NULL,
     0},
    {"subscribe", cmd_subscribe, -2, S, PS, "2.0.0", "Listens to channels.",
     "channel [channel ...]", NO_KEYS, NULL, 0},
    {"unsubscribe", cmd_unsubscribe, -1, S, PS, "2.0.0",
     "Listens to channels, or all of them, no more.", "[channel [channel ...]]", NO_KEYS, NULL, 0},
    {"psubscribe", cmd_psubscribe, -2, S, PS, "2.0.0",
     "Listens to all channels that match a pattern.", "pattern [pattern ...]", NO_KEYS, NULL, 0},
    {"punsubscribe", cmd_punsubscribe, -1, S, PS, "2.0.0",
     "Listens to patterns, or all of them, no more.", "[pattern [pattern ...]]", NO_KEYS, NULL, 0},
    {"publish", cmd_publish, 3, SEND, PS, "2.0.0", "Sends a message to those who listen.",
     "channel message", NO_KEYS, NULL, 0},
    {"ssubscribe", cmd_ssubscribe, -2, S, PS, "7.0.0", "Listens to shard channels.",
     "shardchannel [shardchannel ...]", NO_KEYS, NULL, 0},
    {"sunsubscribe", cmd_sunsubscribe, -1, S, PS, "7.0.0",
     "Listens to shard channels, or all of them, no more.", "[shardchannel [shardchannel ...]]",
     NO_KEYS, NULL, 0},
    {"spublish", cmd_spublish, 3, SEND, PS, "7.0.0",
     "Sends a message to those who listen to a shard channel.", "shardchannel message", NO_KEYS,
     NULL, 0},
    {"pubsub", NULL, -2, 0, NULL, "pubsub", "2.8.0", "Looks at channels.", "", NO_KEYS, pubsub_sub,
     0},
    TABLE_END,
};
