/* A pool of many masters: what Redis Cluster's clients ask, and what makes the map of slots. */

#define CLUSTER(v)    GROUP(NULL, "cluster", v)
#define CLUSTER_ADMIN GROUP("@admin @dangerous", "cluster", "0.2.0")
#define SLOT          ARG(NUMBER, "slot", UP_TO(16383), IN(slot, slot), ELSE("Invalid slot"))

CONTAINER(cluster, "CLUSTER", "A pool of many masters: who has which keys.", CLUSTER("3.0.0"))
COMMAND(cluster_info, "CLUSTER|INFO", L, "Tells how the masters are, in figures.", CLUSTER("3.0.0"),
        REPLY("lines of text"))
COMMAND(cluster_nodes, "CLUSTER|NODES", L, "Lists the servers of all shards, as Redis' nodes.conf.",
        CLUSTER("3.0.0"), REPLY("lines of text"))
COMMAND(cluster_slots, "CLUSTER|SLOTS", L, "Tells which servers have which slots.",
        CLUSTER("3.0.0"), REPLY("an array of [first, last, [ip, port, id, []], ...]"))
COMMAND(cluster_shards, "CLUSTER|SHARDS", L, "Tells which slots and servers each shard has.",
        CLUSTER("7.0.0"), REPLY("an array of maps: slots, nodes"))
COMMAND(cluster_replicas, "CLUSTER|REPLICAS", CMD_ADMIN | L, "Lists the replicas of a master.",
        CLUSTER("5.0.0"), TAKES(ARG(WORD, "node-id")), REPLY("an array of lines"))
SHARED(cluster_slaves, cluster_replicas, "CLUSTER|SLAVES", CMD_ADMIN | L,
       "CLUSTER REPLICAS' old name.", CLUSTER("3.0.0"), TAKES(ARG(WORD, "node-id")),
       REPLY("an array of lines"))
COMMAND(cluster_myid, "CLUSTER|MYID", L, "Tells the id of this server.", CLUSTER("3.0.0"),
        REPLY("40 hex digits"))
COMMAND(cluster_myshardid, "CLUSTER|MYSHARDID", L, "Tells the id of this server's shard.",
        CLUSTER("7.2.0"), REPLY("40 hex digits"))
COMMAND(cluster_keyslot, "CLUSTER|KEYSLOT", L, "Tells the slot of a key.", CLUSTER("3.0.0"),
        TAKES(ARG(WORD, "key")), REPLY("a number from 0 to 16383"))
COMMAND(cluster_countkeysinslot, "CLUSTER|COUNTKEYSINSLOT", 0,
        "Counts the keys of a slot that are here; walks over all keys.", CLUSTER("3.0.0"),
        TAKES(SLOT), REPLY("how many"))
COMMAND(cluster_getkeysinslot, "CLUSTER|GETKEYSINSLOT", 0,
        "Tells some keys of a slot that are here; walks over the keys until there are so many.",
        CLUSTER("3.0.0"),
        TAKES(SLOT, ARG(NUMBER, "count", UP_TO(1000000), IN(slot, count),
                        ELSE("Invalid slot or number of keys"))),
        REPLY("an array of keys"))
COMMAND(cluster_map, "CLUSTER|MAP", L, "Tells the map of slots, of all shards.",
        GROUP(NULL, "cluster", "0.2.0"), REPLY("lines of text; nil: there is none"))
COMMAND(cluster_setmap, "CLUSTER|SETMAP", W | CMD_ADMIN | CMD_NO_MULTI,
        "Makes this server a shard of a cluster, or gives it another map of slots.", CLUSTER_ADMIN,
        TAKES(ARG(WORD, "shard", IN(setmap, shard)), ARG(WORD, "map", IN(setmap, map)),
              FLAG("FORCE", IN(setmap, force))),
        REPLY("OK"), ERRORS("STALE"))
COMMAND(cluster_announce, "CLUSTER|ANNOUNCE", W | CMD_ADMIN | CMD_NO_MULTI,
        "A master tells another one which servers its shard has, the leader first.", CLUSTER_ADMIN,
        TAKES(ARG(WORD, "shard", IN(announce, shard)),
              ARG(WORD, "master-epoch", IN(announce, master_epoch)),
              ARG(WORD, "servers", IN(announce, servers))),
        REPLY("the map that is here, with what is right of the two"))
COMMAND(cluster_reset, "CLUSTER|RESET", W | CMD_ADMIN | CMD_NO_MULTI,
        "Takes the map away: this server is a master of its own.", CLUSTER("3.0.0"),
        TAKES(ANY_OF(TOKEN("HARD"), TOKEN("SOFT")), FLAG("FORCE", IN(setmap, force))), REPLY("OK"))
COMMAND(cluster_scanslots, "CLUSTER|SCANSLOTS", CMD_READONLY | CMD_ADMIN | CMD_MASTER,
        "Walks over the keys of slots that move away, a part each time.", CLUSTER_ADMIN,
        TAKES(ARG(UNSIGNED, "cursor", ELSE("invalid cursor"), IN(scanslots, cursor)),
              OPTION("COUNT", NUMBER, "n", RANGE(1, 100000), NONE_IS(100), IN(scanslots, count))),
        REPLY("[cursor, [[key, version, size, pin, pin-ms, expire-ms, group, boundary, depth], "
              "...]]"))
COMMAND(cluster_relinquish, "CLUSTER|RELINQUISH", W | CMD_ADMIN,
        "A mover has the bytes of these keys: removes those of moving slots that are still of "
        "that version.",
        CLUSTER_ADMIN,
        TAKES(BATCH(release, OF(KEY("key", KEY_RM | KEY_DELETE), ARG(NUMBER, "version")))),
        REPLY("an array of 1, and 0 for those that stay"))
HELP(cluster_help, "CLUSTER|HELP", CLUSTER("5.0.0"))
COMMAND(asking, "ASKING", F, "The next command may concern slots that are on their way here.",
        GROUP("@connection", "cluster", "3.0.0"), REPLY("OK"))
COMMAND(readonly, "READONLY", L | F, "Replicas may answer this connection's look-ups.",
        GROUP("@connection", "cluster", "3.0.0"), REPLY("OK"))
COMMAND(readwrite, "READWRITE", L | F, "Replicas refer this connection to their master.",
        GROUP("@connection", "cluster", "3.0.0"), REPLY("OK"))

#undef CLUSTER
#undef CLUSTER_ADMIN
#undef SLOT
