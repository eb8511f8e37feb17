/* Transactions, and messages between clients. */

COMMAND(multi, "MULTI", EARLY, "Begins a transaction: commands are kept until EXEC.", TX("1.2.0"),
        REPLY("OK"))
COMMAND(exec, "EXEC", N | CMD_SKIP_SLOWLOG,
        "Runs the commands of a transaction, unless a watched key was written.", TX("1.2.0"),
        REPLY("an array of the replies; nil: a watched key was written"), ERRORS("EXECABORT"))
COMMAND(discard, "DISCARD", EARLY, "Forgets the commands of a transaction.", TX("2.0.0"),
        REPLY("OK"))
COMMAND(watch, "WATCH", EARLY, "Lets the next EXEC do nothing if one of the keys is written.",
        TX("2.2.0"), TAKES(KEY("key", KEY_RO, MANY)), REPLY("OK"))
COMMAND(unwatch, "UNWATCH", EARLY, "Watches no key any more.", TX("2.2.0"), REPLY("OK"))
COMMAND(subscribe, "SUBSCRIBE", CMD_PUBSUB | N, "Listens to channels.", PUBSUB("2.0.0"),
        TAKES(ARG(WORD, "channel", MANY)), REPLY("[subscribe, channel, how many] for each"))
COMMAND(unsubscribe, "UNSUBSCRIBE", CMD_PUBSUB | N, "Listens to channels, or all of them, no more.",
        PUBSUB("2.0.0"), TAKES(MAYBE(WORD, "channel", MANY)),
        REPLY("[unsubscribe, channel, how many] for each"))
SHARED(psubscribe, subscribe, "PSUBSCRIBE", CMD_PUBSUB | N,
       "Listens to all channels that match a pattern.", PUBSUB("2.0.0"),
       TAKES(ARG(WORD, "pattern", MANY)), REPLY("[psubscribe, pattern, how many] for each"))
SHARED(punsubscribe, unsubscribe, "PUNSUBSCRIBE", CMD_PUBSUB | N,
       "Listens to patterns, or all of them, no more.", PUBSUB("2.0.0"),
       TAKES(MAYBE(WORD, "pattern", MANY)), REPLY("[punsubscribe, pattern, how many] for each"))
COMMAND(publish, "PUBLISH", CMD_PUBSUB | L | F | CMD_MAY_REPLICATE,
        "Sends a message to those who listen.", PUBSUB("2.0.0"),
        TAKES(ARG(WORD, "channel"), ARG(WORD, "message")), REPLY("how many got it"))
SHARED(ssubscribe, subscribe, "SSUBSCRIBE", CMD_PUBSUB | N, "Listens to shard channels.",
       PUBSUB("7.0.0"), TAKES(ARG(WORD, "shardchannel", MANY)),
       REPLY("[ssubscribe, channel, how many] for each"))
SHARED(sunsubscribe, unsubscribe, "SUNSUBSCRIBE", CMD_PUBSUB | N,
       "Listens to shard channels, or all of them, no more.", PUBSUB("7.0.0"),
       TAKES(MAYBE(WORD, "shardchannel", MANY)),
       REPLY("[sunsubscribe, channel, how many] for each"))
SHARED(spublish, publish, "SPUBLISH", CMD_PUBSUB | L | F | CMD_MAY_REPLICATE,
       "Sends a message to those who listen to a shard channel.", PUBSUB("7.0.0"),
       TAKES(ARG(WORD, "shardchannel"), ARG(WORD, "message")), REPLY("how many got it"))
CONTAINER(pubsub, "PUBSUB", "Looks at channels.", GROUP(NULL, "pubsub", "2.8.0"))
COMMAND(pubsub_channels, "PUBSUB|CHANNELS", CMD_PUBSUB | L,
        "Lists the channels that somebody listens to.", PUBSUB("2.8.0"),
        TAKES(MAYBE(WORD, "pattern")), REPLY("an array of channels"))
COMMAND(pubsub_numsub, "PUBSUB|NUMSUB", CMD_PUBSUB | L, "Counts who listens to channels.",
        PUBSUB("2.8.0"), TAKES(MAYBE(WORD, "channel", MANY)),
        REPLY("an array of channel and number, by turns"))
COMMAND(pubsub_numpat, "PUBSUB|NUMPAT", CMD_PUBSUB | L,
        "Counts the patterns that somebody listens to.", PUBSUB("2.8.0"), REPLY("how many"))
SHARED(pubsub_shardchannels, pubsub_channels, "PUBSUB|SHARDCHANNELS", CMD_PUBSUB | L,
       "Lists the shard channels that somebody listens to.", PUBSUB("7.0.0"),
       TAKES(MAYBE(WORD, "pattern")), REPLY("an array of channels"))
SHARED(pubsub_shardnumsub, pubsub_numsub, "PUBSUB|SHARDNUMSUB", CMD_PUBSUB | L,
       "Counts who listens to shard channels.", PUBSUB("7.0.0"),
       TAKES(MAYBE(WORD, "shardchannel", MANY)), REPLY("an array of channel and number, by turns"))
HELP(pubsub_help, "PUBSUB|HELP", GROUP(NULL, "pubsub", "6.2.0"))
