/* What tarn adds: puts in two steps, look-ups that tell where the bytes lie, leases, prefixes,
 * eviction, quotas; segments, nodes and replicas. What several of them have in common is in
 * commands.c. */

/* --- puts --- */

COMMAND(putstart, "PUTSTART", W | D, "Opens a put: makes room and tells where to write.", POOL_KEYS,
        TAKES(ONCE(put, PUT_KEY), PUT_OPTIONS, ANY_OF(PUT_TOGETHER),
              OPTION("INSTEAD", NUMBER, "token", RANGE(1, INT64_MAX), IN(put, instead)),
              FLAG("NOGRANT", IN(put, no_grant))),
        REPLY("[token, [replica, ...]], and how many replicas are missing if any; nil: it exists"),
        ERRORS("TRYAGAIN NOSPACE PUTBUSY QUOTA NOSEGMENT OOM LIMIT"))
COMMAND(putend, "PUTEND", W | F, "Makes what was put visible.", POOL_KEYS,
        TAKES(ONCE(end, END_KEY),
              OPTION("FAILED", BITS, "replica-index", MANY, UP_TO(7), IN(end, failed)),
              OPTION("VALUE", VALUES, "bytes", IN(end, values)),
              OPTION("CRCS", VALUES, "bytes", IN(end, crcs)),
              OPTION("RECEIPTS", VALUES, "bytes", IN(end, receipts))),
        REPLY("OK"), ERRORS("BADTOKEN STALE"))
COMMAND(putrevoke, "PUTREVOKE", W | F, "Gives a put up.", POOL_KEYS,
        TAKES(ONCE(end, REVOKE_KEY), OPTION("RECEIPTS", VALUES, "bytes", IN(end, receipts))),
        REPLY("OK"), ERRORS("BADTOKEN"))
COMMAND(mputstart, "MPUTSTART", W | D, "Opens many puts, of a prefix in order.", POOL_KEYS,
        TAKES(BATCH(put, PUT_KEY), SPREAD(put), PUT_OPTIONS,
              ANY_OF(PUT_TOGETHER, PUT_TOGETHER_EACH), FLAG("PACKED", IN(put, packed)),
              FLAG("NOGRANT", IN(put, no_grant)), FLAG("BATCH", IN(put, batch))),
        REPLY("an array of the replies of PUTSTART; PACKED: of 88 bytes each, where it fits; "
              "BATCH: then the batch of puts, for MPUTEND"),
        ERRORS("TRYAGAIN NOSPACE PUTBUSY QUOTA NOSEGMENT OOM LIMIT"))
COMMAND(mputend, "MPUTEND", W, "Makes many puts visible.", POOL_KEYS,
        TAKES(ARG(BLOCK, NULL, COUNTED("n"), UP_TO(WIRE_MAX_BATCH), END_KEY, IN(end, keys)),
              OPTION("VALUES", VALUES, "value", MANY, IN(end, values)),
              OPTION("CRCS", VALUES, "crcs", MANY, IN(end, crcs)),
              OPTION("FAILEDS", VALUES, "mask", MANY, IN(end, faileds)),
              OPTION("RECEIPTS", VALUES, "receipts", MANY, IN(end, receipts)),
              OPTION("BATCH", NUMBER, "id", RANGE(1, INT64_MAX), IN(end, batch)),
              OPTION("BATCHCRCS", WORD, "bytes", IN(end, batch_crcs))),
        REPLY("an array of the replies of PUTEND; BATCH: OK, if all of them are"),
        ERRORS("BADTOKEN STALE"))
COMMAND(mputrevoke, "MPUTREVOKE", W, "Gives many puts up.", POOL_KEYS,
        TAKES(BATCH(end, REVOKE_KEY),
              OPTION("RECEIPTS", VALUES, "receipts", MANY, IN(end, receipts))),
        REPLY("an array of the replies of PUTREVOKE"), ERRORS("BADTOKEN"))

/* --- look-ups --- */

COMMAND(
    getreplicas, "GETREPLICAS", R | B | CMD_MASTER,
    "Tells where a value lies, and protects it for a time.", POOL_KEYS,
    TAKES(ONCE(look, LOOK_KEY), LOOK_OPTIONS, FLAG("CRCS", IN(look, crcs)),
          FLAG("NOGRANT", IN(look, no_grant))),
    REPLY("[version, size, lease-ms, crc, [replica, ...], value, crcs, flags]; nil: no such key"),
    ERRORS("LIMIT"))
COMMAND(mgetreplicas, "MGETREPLICAS", R | B | CMD_MASTER,
        "Tells where many values lie, and protects them for a time.", POOL_KEYS,
        TAKES(BATCH(look, LOOK_KEY), SPREAD(look), LOOK_KV_GROUPS, LOOK_OPTIONS,
              FLAG("CRCS", IN(look, crcs)), FLAG("PACKED", IN(look, packed)),
              FLAG("NOGRANT", IN(look, no_grant)), FLAG("BATCH", IN(look, batch))),
        REPLY("an array of the replies of GETREPLICAS; PACKED: of 88 bytes each, where it fits; "
              "BATCH: then the batch of leases, for RELEASE; "
              "KVGROUPS: [boundary, [[first, blocks, tail], ...], [reply, ...]]"),
        ERRORS("LIMIT"))
COMMAND(release, "RELEASE", R | CMD_MASTER, "Ends leases of this connection early.", POOL_KEYS,
        TAKES(ARG(BLOCK, NULL, COUNTED("n"), UP_TO(WIRE_MAX_BATCH),
                  OF(KEY("key", KEY_RO), ARG(NUMBER, "version")), IN(release, keys)),
              OPTION("BATCH", NUMBER, "id", RANGE(1, INT64_MAX), IN(release, batch))),
        REPLY("how many there were"))
COMMAND(mexists, "MEXISTS", R, "Tells of each key whether it is readable. Takes no lease.",
        POOL_KEYS, TAKES(BATCH(look, OF(KEY("key", KEY_RO)))), REPLY("an array of 0 and 1"))
COMMAND(prefixlen, "PREFIXLEN", R | B, "Counts the leading keys that are readable.", POOL_KEYS,
        TAKES(BATCH(look, LOOK_KEY), SPREAD(look), LOOK_KV_GROUPS, LOOK_OPTIONS),
        REPLY("how many; KVGROUPS: [boundary, [[first, blocks, tail], ...]]"), ERRORS("LIMIT"))
COMMAND(prefetch, "PREFETCH", R | CMD_MASTER,
        "Brings what will be read soon from disks to memory, or to a segment.", POOL_KEYS,
        TAKES(BATCH(prefetch, LOOK_KEY), OPTION("SEGMENT", WORD, "segment", IN(prefetch, segment))),
        REPLY("[taken, there, unknown, refused]"), ERRORS("NOSEGMENT"))

/* --- making room --- */

COMMAND(evict, "EVICT", W | CMD_ALL_KEYS,
        "Frees space now, in the order of the policy or of the keys given.", POOL_ADMIN,
        TAKES(ANY_OF(NAMED("BYTES", NUMBER, "n", RANGE(1, INT64_MAX), IN(evict, bytes)),
                     NAMED("RATIO", RATIO, "r", IN(evict, ratio))),
              OPTION("KEYS", BLOCK, NULL, COUNTED("n"), RANGE(1, WIRE_MAX_BATCH),
                     OF(KEY("key", KEY_RM | KEY_DELETE)), IN(evict, keys))),
        REPLY("[objects, bytes]"))
COMMAND(removematch, "REMOVEMATCH", W | CMD_ALL_KEYS, "Removes the keys that match a pattern.",
        GROUP("@pool @keyspace @dangerous", "pool", "0.1.0"),
        TAKES(ARG(ONEOF, "kind", OF(TOKEN("GLOB"), TOKEN("REGEX")), IN(match, kind)),
              ARG(WORD, "pattern", UP_TO(4096), IN(match, pattern)),
              OPTION("COUNT", NUMBER, "n", RANGE(1, INT64_MAX), IN(match, count))),
        REPLY("how many"))
COMMAND(pin, "PIN", W | F, "Keeps a key from eviction, or no longer.", POOL_KEYS,
        TAKES(KEY("key", KEY_RW | KEY_UPDATE, IN(pin, key)),
              ARG(ONEOF, "PIN", OF(PIN_SOFT(pin, ms), TOKEN("HARD"), TOKEN("NONE")),
                  IN(pin, kind))),
        REPLY("1; 0: no such key"), ERRORS("QUOTA"))
COMMAND(pinhard, "PINHARD", W | F,
        "Keeps a key from eviction for good. The right to run it is the right to PIN HARD, in puts "
        "too.",
        GROUP("@keyspace @admin @dangerous", "pool", "0.1.0"),
        TAKES(KEY("key", KEY_RW | KEY_UPDATE)), REPLY("1; 0: no such key"), ERRORS("QUOTA"))
CONTAINER(quota, "QUOTA", "Bounds the pool's bytes by key prefix.", POOL_CONTAINER)
COMMAND(quota_set, "QUOTA|SET", W | CMD_ADMIN, "Bounds the bytes of all keys with a prefix.",
        POOL_ADMIN,
        TAKES(ARG(WORD, "prefix", IN(quota, prefix)), ARG(SIZE, "bytes", IN(quota, bytes))),
        REPLY("OK"))
COMMAND(quota_get, "QUOTA|GET", R, "Tells limit, use and objects of a prefix.", POOL_ADMIN,
        TAKES(ARG(WORD, "prefix")), REPLY("a map; nil: there is none"))
COMMAND(quota_list, "QUOTA|LIST", R, "Lists all quotas.", POOL_ADMIN, REPLY("an array of maps"))
COMMAND(quota_del, "QUOTA|DEL", W | CMD_ADMIN, "Takes the bound from a prefix.", POOL_ADMIN,
        TAKES(ARG(WORD, "prefix")), REPLY("1; 0: there was none"))
HELP(quota_help, "QUOTA|HELP", POOL_HELP)
CONTAINER(cache, "CACHE", "Tells where hits went, and what would bring more.", POOL_CONTAINER)
COMMAND(cache_curve, "CACHE|CURVE", R, "Tells the hit ratio that pools of other sizes would have.",
        POOL_ADMIN, REPLY("a map"))
COMMAND(cache_doctor, "CACHE|DOCTOR", R, "Says in words where hits went, and what to do.",
        POOL_ADMIN, REPLY("text"))
COMMAND(cache_prefixes, "CACHE|PREFIXES", R,
        "Tells which names of keys have the most hits, misses and bytes.", POOL_ADMIN,
        TAKES(OPTION("COUNT", NUMBER, "n", RANGE(1, 64), NONE_IS(16), IN(count, n))),
        REPLY("a map of arrays"))
COMMAND(cache_tenants, "CACHE|TENANTS", R, "Tells what the keys of each quota hit and missed.",
        POOL_ADMIN, REPLY("an array of maps"))
HELP(cache_help, "CACHE|HELP", POOL_HELP)

/* --- segments --- */

CONTAINER(segment, "SEGMENT", "The segments of the pool.", POOL_CONTAINER)
COMMAND(segment_mount, "SEGMENT|MOUNT", NODES,
        "A node adds a segment to the pool, or brings it back.", POOL_ADMIN,
        TAKES(NODE_NAME, NODE_SEGMENT,
              NAMED("TIER", ONEOF, NULL, OF(TOKEN("memory"), TOKEN("ssd"), TOKEN("file")),
                    IN(mount, tier)),
              NAMED("SIZE", NUMBER, "bytes", RANGE(4096, INT64_MAX), IN(mount, size)),
              NAMED("CONTENT", HEX, "id", UP_TO(32), IN(mount, content)),
              OPTION("BACKING", WORD, "backing", IN(mount, backing)),
              OPTION("HUGE", ONEOF, NULL, OF(TOKEN("yes"), TOKEN("no")), IN(mount, huge)),
              OPTION("NUMA", NUMBER, "n", UP_TO(1023), NONE_IS(-1), IN(mount, numa)),
              OPTION("DIRECTORY", WORD, "path", IN(mount, directory)),
              OPTION("ENDPOINTS", BLOCK, NULL, COUNTED("n"), UP_TO(WIRE_ENDPOINTS_MAX),
                     OF(ARG(WORD, "uri")), IN(mount, endpoints)),
              OPTION("KEYS", BLOCK, NULL, COUNTED("n"), UP_TO(WIRE_KEYS_MAX), SEGMENT_KEY,
                     IN(mount, keys))),
        REPLY("a map of id, epoch and kept"), ERRORS("STALE"))
COMMAND(segment_keys, "SEGMENT|KEYS", NODES,
        "A node tells how its segment is reached by transports of modules.", POOL_ADMIN,
        TAKES(NODE_NAME, NODE_SEGMENT,
              ARG(BLOCK, NULL, COUNTED("n"), UP_TO(WIRE_KEYS_MAX), EXACT, SEGMENT_KEY,
                  IN(mount, keys))),
        REPLY("OK"), ERRORS("NOSEGMENT LIMIT STALE"))
COMMAND(segment_unmount, "SEGMENT|UNMOUNT", NODES | B,
        "Takes a segment out of the pool; answers when its last lease is over.", POOL_ADMIN,
        TAKES(ARG(WORD, "name")), REPLY("OK"), ERRORS("NOSEGMENT"))
COMMAND(segment_list, "SEGMENT|LIST", R | CMD_LOADING, "Lists the segments of the pool.",
        POOL_ADMIN, REPLY("an array of maps"))
COMMAND(segment_info, "SEGMENT|INFO", R | CMD_LOADING,
        "Tells where a segment is and how full, by name or id.", POOL,
        TAKES(ARG(WORD, "name|id", IN(drain, name))), REPLY("a map"), ERRORS("NOSEGMENT"))
COMMAND(segment_attach, "SEGMENT|ATTACH", CMD_LOADING,
        "Tells how to reach the bytes of a segment without its host: shared memory and RDMA.",
        GROUP("@pool @direct", "pool", "0.1.0"), TAKES(ARG(WORD, "name|id")), REPLY("a map"),
        ERRORS("NOSEGMENT"))
COMMAND(segment_drain, "SEGMENT|DRAIN", NODES,
        "Moves what is only in a segment, then takes it out of the pool.", POOL_ADMIN,
        TAKES(ARG(WORD, "name", IN(drain, name)), FLAG("CANCEL", IN(drain, cancel))), REPLY("OK"),
        ERRORS("NOSEGMENT"))
HELP(segment_help, "SEGMENT|HELP", POOL_HELP)

/* --- nodes --- */

CONTAINER(node, "NODE", "The storage nodes of the pool.", POOL_CONTAINER)
COMMAND(node_join, "NODE|JOIN", NODES, "A storage node enters the pool.", POOL_ADMIN,
        TAKES(NODE_NAME, NAMED("MACHINE", WORD, "machine", IN(join, machine)),
              OPTION("RACK", WORD, "rack", IN(join, rack)),
              OPTION("VERSION", WORD, "version", IN(join, version))),
        REPLY("a map"), ERRORS("BUSY LIMIT"))
COMMAND(node_up, "NODE|UP", NODES, "Its segments are mounted: they may be used.", POOL_ADMIN,
        TAKES(NODE_NAME), REPLY("OK"), ERRORS("TRYAGAIN STALE"))
COMMAND(node_heartbeat, "NODE|HEARTBEAT", NODES | B, "Shows that a node lives, and asks for work.",
        POOL_ADMIN,
        TAKES(NODE_NAME, OPTION("WAIT", NUMBER, "ms", UP_TO(INT64_MAX), IN(beat, wait_ms)),
              OPTION("STATS", BLOCK, NULL, COUNTED("n"), UP_TO(WIRE_STATS_MAX),
                     OF(ARG(WORD, "field", IN(stat, field)),
                        ARG(NUMBER, "value", UP_TO(INT64_MAX), IN(stat, value))),
                     IN(beat, stats)),
              OPTION("REPORT", BLOCK, NULL, MANY, OF(ARG(WORD, "scheme"), ARG(WORD, "text")),
                     IN(beat, reports))),
        REPLY("[clock-ms, [item, ...], max-lease, map]"), ERRORS("STALE"))
COMMAND(node_fenced, "NODE|FENCED", NODES, "A session can no longer write to this node.",
        POOL_ADMIN,
        TAKES(NODE_NAME, ARG(NUMBER, "session", RANGE(1, INT64_MAX), IN(node, session))),
        REPLY("OK"), ERRORS("STALE"))
COMMAND(node_done, "NODE|DONE", NODES, "What became of tasks.", POOL_ADMIN,
        TAKES(NODE_NAME, GROUPS(OF(ARG(NUMBER, "task", UP_TO(INT64_MAX), IN(done, task)),
                                   ARG(NUMBER, "status", RANGE(-127, 0), IN(done, status)),
                                   ARG(NUMBER, "offset", UP_TO(INT64_MAX), IN(done, offset)),
                                   ARG(NUMBER, "crc", RANGE(-1, UINT32_MAX), IN(done, crc))))),
        REPLY("an array of 0 and 1"), ERRORS("STALE"))
COMMAND(node_evicted, "NODE|EVICTED", NODES, "A node's disk lets objects go.", POOL_ADMIN,
        TAKES(NODE_NAME, FAR_SEGMENT,
              GROUPS(OF(KEY("key", KEY_RM | KEY_DELETE, IN(far, key)),
                        ARG(NUMBER, "version", UP_TO(INT64_MAX), IN(far, version))))),
        REPLY("how many were known"), ERRORS("NOSEGMENT STALE"))
COMMAND(node_weigh, "NODE|WEIGH", NODES, "What objects on a node's disk are worth.", POOL_ADMIN,
        TAKES(NODE_NAME, FAR_SEGMENT,
              GROUPS(OF(KEY("key", KEY_RO, IN(far, key)),
                        ARG(NUMBER, "version", UP_TO(INT64_MAX), IN(far, version))))),
        REPLY("an array of numbers, -1: nobody knows"), ERRORS("NOSEGMENT STALE"))
COMMAND(node_offer, "NODE|OFFER", NODES, "A node found objects on its disk.", POOL_ADMIN,
        TAKES(NODE_NAME, FAR_SEGMENT,
              GROUPS(OF(KEY("key", KEY_OW | KEY_INSERT, IN(far, key)),
                        ARG(NUMBER, "version", UP_TO(INT64_MAX), IN(far, version)),
                        ARG(NUMBER, "size", UP_TO(INT64_MAX), IN(far, size)),
                        ARG(NUMBER, "crc", RANGE(-1, UINT32_MAX), IN(far, crc)),
                        ARG(NUMBER, "offset", UP_TO(INT64_MAX), IN(far, offset)),
                        ARG(WORD, "crcs", IN(far, crcs))))),
        REPLY("an array of versions, 0: not taken"), ERRORS("NOSEGMENT STALE"))
COMMAND(node_list, "NODE|LIST", R | CMD_LOADING, "Lists the nodes of the pool.", POOL_ADMIN,
        REPLY("an array of maps"))
COMMAND(node_info, "NODE|INFO", R | CMD_LOADING, "Tells all that is known of a node.", POOL_ADMIN,
        TAKES(ARG(WORD, "name")), REPLY("a map"))
COMMAND(node_drain, "NODE|DRAIN", NODES, "Moves what is only on a node; then it leaves the pool.",
        POOL_ADMIN, TAKES(ARG(WORD, "name", IN(drain, name)), FLAG("CANCEL", IN(drain, cancel))),
        REPLY("OK"))
COMMAND(node_maintenance, "NODE|MAINTENANCE", NODES,
        "A node gets no new objects, or does so again; what it has stays readable.", POOL_ADMIN,
        TAKES(ARG(WORD, "name", IN(drain, name)),
              ARG(ONEOF, "MAINTENANCE", OF(TOKEN("ON"), TOKEN("OFF")), IN(drain, maintenance))),
        REPLY("OK"))
COMMAND(node_leave, "NODE|LEAVE", NODES, "A node leaves the pool at once; nothing is moved.",
        POOL_ADMIN, TAKES(ARG(WORD, "name", IN(drain, name))), REPLY("OK"))
HELP(node_help, "NODE|HELP", POOL_HELP)

/* --- events: readers see the keys that they may read, so they need not be allowed all --- */

CONTAINER(kvevents, "KVEVENTS", "What changes in the pool, for routers.", POOL_CONTAINER)
COMMAND(kvevents_read, "KVEVENTS|READ", R | B | CMD_MASTER,
        "Answers what became of keys, replicas and segments since an event.", POOL_KEYS,
        TAKES(ARG(WORD, "epoch", IN(events, epoch)),
              ARG(NUMBER, "seq", UP_TO(INT64_MAX - 1), IN(events, seq),
                  ELSE("seq must be the number of the last event that was read, 0 at first")),
              EVENTS_COUNT,
              OPTION("BLOCK", NUMBER, "ms", UP_TO(WIRE_MAX_WAIT), NONE_IS(-1),
                     IN(events, block_ms)),
              EVENTS_MATCH),
        REPLY("[seq, [event, ...]]"), ERRORS("EPOCH GAP"))
COMMAND(kvevents_walk, "KVEVENTS|WALK", R | CMD_MASTER,
        "Walks over the keys with their sizes and places, a part each time.", POOL_KEYS,
        TAKES(ARG(UNSIGNED, "cursor", ELSE("invalid cursor"), IN(events, cursor)), EVENTS_COUNT,
              EVENTS_MATCH),
        REPLY("[cursor, [object, ...]]"))
COMMAND(kvevents_info, "KVEVENTS|INFO", R | CMD_MASTER,
        "Tells the epoch, the events that are there, and the segments that are down.", POOL_KEYS,
        REPLY("a map"))
HELP(kvevents_help, "KVEVENTS|HELP", POOL_HELP)

/* --- replicas --- */

CONTAINER(replica, "REPLICA", "Concerns single copies of an object.", POOL_CONTAINER)
COMMAND(replica_copy, "REPLICA|COPY", W | B, "Plans one more replica of a key.", POOL_ADMIN,
        TAKES(REPLICA_KEY, REPLICA_TO, REPLICA_WAIT), REPLY("the number of a task"),
        ERRORS("NOSEGMENT LIMIT BUSY"))
COMMAND(replica_move, "REPLICA|MOVE", W | B, "Plans a replica of a key in another place.",
        POOL_ADMIN, TAKES(REPLICA_KEY, REPLICA_FROM, REPLICA_TO, REPLICA_WAIT),
        REPLY("the number of a task"), ERRORS("NOSEGMENT LIMIT BUSY"))
COMMAND(replica_drop, "REPLICA|DROP", W, "Takes one replica of a key away.", POOL_ADMIN,
        TAKES(REPLICA_KEY, REPLICA_FROM), REPLY("OK"), ERRORS("NOSEGMENT BUSY"))
COMMAND(replica_list, "REPLICA|LIST", R, "Lists the replicas of a key.", POOL_ADMIN,
        TAKES(KEY("key", KEY_RO)), REPLY("an array of maps"))
COMMAND(replica_tasks, "REPLICA|TASKS", R | CMD_ALL_KEYS,
        "Lists what is on its way, and what lately was.", POOL_ADMIN,
        TAKES(OPTION("COUNT", NUMBER, "n", RANGE(1, 1000), IN(tasks, count)),
              OPTION("STATE", ONEOF, NULL,
                     OF(TOKEN("queued"), TOKEN("room"), TOKEN("sent"), TOKEN("done"),
                        TOKEN("failed"), TOKEN("canceled")),
                     IN(tasks, state))),
        REPLY("an array of maps"))
COMMAND(replica_cancel, "REPLICA|CANCEL", W, "Gives a task up.", POOL_ADMIN,
        TAKES(ARG(NUMBER, "task-id")), REPLY("1; 0: there is none, or it is over"))
COMMAND(
    replica_report, "REPLICA|REPORT", W,
    "Tells that the bytes of a version do not match their CRC: they are checked, and removed if "
    "they are bad.",
    GROUP("@pool @read", "pool", "0.1.0"),
    TAKES(KEY("key", KEY_RO | KEY_ACCESS, IN(report, key)),
          ARG(NUMBER, "version", UP_TO(INT64_MAX), IN(report, version))),
    REPLY("1: something was dropped; 0"))
HELP(replica_help, "REPLICA|HELP", POOL_HELP)
