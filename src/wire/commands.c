/* The declarations as a table. What stands in commands_*.h is put together of the words below. */
#include "wire/options.h"
#include "wire/wire.h"

/* --- flags --- */

#define W     CMD_WRITE
#define R     CMD_READONLY
#define D     CMD_DENYOOM
#define F     CMD_FAST
#define B     CMD_BLOCKING
#define L     (CMD_LOADING | CMD_STALE)
#define N     (CMD_NOSCRIPT | L)
#define A     (CMD_ADMIN | N)
#define EARLY (N | CMD_FAST | CMD_ALLOW_BUSY)
/* a paused pool must not lose its nodes */
#define NODES (CMD_ADMIN | L | CMD_ALLOW_BUSY | CMD_NO_MULTI | CMD_MASTER)

/* --- groups, with their category and the version that brought the command --- */

#define GROUP(c, g, v) .categories = (c), .group = (g), .since = (v)
#define STRING(v)      GROUP("@string", "string", v)
#define GENERIC(v)     GROUP("@keyspace", "generic", v)
#define CONNECTION(v)  GROUP("@connection", "connection", v)
#define TX(v)          GROUP("@transaction", "transactions", v)
#define PUBSUB(v)      GROUP("@pubsub", "pubsub", v)
#define SCRIPTING(v)   GROUP("@scripting", "scripting", v)
#define SERVER(v)      GROUP(NULL, "server", v)
/* Everybody's; what is about single objects; the operator's. */
#define POOL       GROUP("@pool", "pool", "0.1.0")
#define POOL_KEYS  GROUP("@pool @keyspace", "pool", "0.1.0")
#define POOL_ADMIN GROUP("@pool @admin @dangerous", "pool", "0.1.0")

/* --- arguments --- */

#define ARGS(...)                                                                                  \
    (const struct wire_arg[]) {                                                                    \
        __VA_ARGS__, {                                                                             \
            .kind = WIRE_END                                                                       \
        }                                                                                          \
    }
/* One that must be there; that may be; behind a token; behind a token, and may be. */
#define ARG(k, n, ...)                                                                             \
    { .kind = WIRE_##k, .name = (n), __VA_ARGS__ }
#define MAYBE(k, n, ...)                                                                           \
    { .kind = WIRE_##k, .name = (n), .optional = true, __VA_ARGS__ }
#define NAMED(t, k, n, ...)                                                                        \
    { .kind = WIRE_##k, .name = (n), .token = (t), __VA_ARGS__ }
#define OPTION(t, k, n, ...) NAMED(t, k, n, .optional = true, __VA_ARGS__)
#define KEY(n, f, ...)                                                                             \
    { .kind = WIRE_KEY, .name = (n), .keys = (f), __VA_ARGS__ }
#define FLAG(t, ...)                                                                               \
    { .kind = WIRE_FLAG, .token = (t), .optional = true, __VA_ARGS__ }
#define TOKEN(t)                                                                                   \
    { .kind = WIRE_FLAG, .token = (t) }
#define ONE_OF(...)                                                                                \
    { .kind = WIRE_ONEOF, .args = ARGS(__VA_ARGS__) }
#define ANY_OF(...)                                                                                \
    { .kind = WIRE_ONEOF, .optional = true, .args = ARGS(__VA_ARGS__) }
/* The same, and which of them goes to a member. */
#define ONE_OF_IN(s, m, ...)                                                                       \
    { .kind = WIRE_ONEOF, .args = ARGS(__VA_ARGS__), IN(s, m) }
#define ANY_OF_IN(s, m, ...)                                                                       \
    { .kind = WIRE_ONEOF, .optional = true, .args = ARGS(__VA_ARGS__), IN(s, m) }
/* What else is said of one. */
#define MANY        .many = true
#define COUNTED(n)  .counted = (n), .many = true
#define OF(...)     .args = ARGS(__VA_ARGS__)
#define RANGE(a, b) .min = (a), .max = (b)
#define UP_TO(n)    .max = (n)
#define SETS(bits)  .max = (bits)
#define ELSE(text)  .error = (text)

/* Where it goes. */
#define IN(s, m) .offset = offsetof(struct wire_##s, m), .size = sizeof(((struct wire_##s *)0)->m)

/* Words that are not looked at here. */
#define WORDS         MAYBE(WORD, "arg", MANY)
#define TAKES(...)    .args = ARGS(__VA_ARGS__)
#define REPLY(text)   .reply = (text)
#define ERRORS(codes) .errors = (codes)
#define UNKNOWN(text) .unknown = (text)
#define EACH_ONCE     .once = true
#define GIVEN_ONCE    .once = true

/* --- what commands of the pool have in common --- */

#define POOL_CONTAINER GROUP(NULL, "pool", "0.1.0")
#define POOL_HELP      GROUP(NULL, "pool", "5.0.0")
#define EXACT          .exact = true
#define NONE_IS(n)     .absent = (n)

/* One block; n with n before them; the same, and nothing behind them. */
#define ONCE(s, block)  ARG(BLOCK, NULL, block, IN(s, keys))
#define BATCH(s, block) ARG(BLOCK, NULL, COUNTED("n"), RANGE(1, WIRE_MAX_BATCH), block, IN(s, keys))
#define GROUPS(block)                                                                              \
    ARG(BLOCK, NULL, COUNTED("n"), RANGE(1, WIRE_MAX_BATCH), EXACT, block, IN(node, keys))

#define PIN_SOFT(s, m) NAMED("SOFT", NUMBER, "ms", RANGE(1, INT64_C(31536000000)), IN(s, m))
#define HINTS(s)                                                                                   \
    OPTION("HINT", ONEOF, NULL, MANY,                                                              \
           OF(NAMED("SESSION", WORD, "id", RANGE(1, WIRE_SESSION_MAX), GIVEN_ONCE,                 \
                    IN(s, hint.session)),                                                          \
              NAMED("RETURN", NUMBER, "ms", RANGE(1, WIRE_RETURN_MAX), GIVEN_ONCE,                 \
                    IN(s, hint.return_ms))))
#define PUT_KEY                                                                                    \
    OF(KEY("key", KEY_OW | KEY_INSERT, IN(put_key, key)),                                          \
       ARG(NUMBER, "size", UP_TO(WIRE_SIZE_MAX), IN(put_key, size)))
/* What it goes together with: one for all keys of a batch, or one for each. */
#define PUT_TOGETHER                                                                               \
    NAMED("GROUP", WORD, "id", RANGE(1, 1024), IN(put, group)),                                    \
        NAMED("BOUNDARY", WORD, "id", RANGE(1, 1024), IN(put, boundary))
#define PUT_TOGETHER_EACH                                                                          \
    NAMED("GROUPS", VALUES, "id", MANY, IN(put, groups)),                                          \
        NAMED("BOUNDARIES", VALUES, "id", MANY, IN(put, boundaries))
#define SPREAD(s)                                                                                  \
    MAYBE(BLOCK, NULL,                                                                             \
          OF(NAMED("AT", VALUES, "position", MANY, IN(s, spread.at)),                              \
             NAMED("OF", NUMBER, "length", RANGE(1, INT32_MAX), IN(s, spread.of))))
#define PUT_OPTIONS                                                                                \
    OPTION("REPLICAS", NUMBER, "n", RANGE(1, 8), IN(put, replicas)),                               \
        OPTION("PREFER", WORD, "segment", MANY, IN(put, prefer)),                                  \
        OPTION("AVOID", WORD, "segment", MANY, IN(put, avoid)),                                    \
        OPTION("PIN", ONEOF, NULL, OF(PIN_SOFT(put, pin_ms), TOKEN("HARD")), IN(put, pin)),        \
        OPTION("TTL", NUMBER, "ms", RANGE(1, INT64_C(1000000000000000)), IN(put, ttl_ms)),         \
        FLAG("REPLACE", IN(put, replace)), FLAG("MOVING", IN(put, moving)), HINTS(put)
#define END_KEY                                                                                    \
    OF(KEY("key", KEY_OW | KEY_UPDATE, IN(end_key, key)),                                          \
       ARG(NUMBER, "token", UP_TO(INT64_MAX), IN(end_key, token)),                                 \
       ARG(NUMBER, "crc", RANGE(-1, UINT32_MAX), IN(end_key, crc)))
#define REVOKE_KEY                                                                                 \
    OF(KEY("key", KEY_RM | KEY_DELETE, IN(end_key, key)),                                          \
       ARG(NUMBER, "token", UP_TO(INT64_MAX), IN(end_key, token)))
#define LOOK_KEY OF(KEY("key", KEY_RO | KEY_ACCESS))
#define LOOK_OPTIONS                                                                               \
    OPTION("LEASE", NUMBER, "ms", RANGE(1, INT64_MAX), IN(look, lease_ms)),                        \
        OPTION("WAIT", NUMBER, "ms", UP_TO(WIRE_MAX_WAIT), IN(look, wait_ms)), HINTS(look)
#define TOKENS(n, least, m) ARG(NUMBER, n, RANGE(least, INT32_MAX), IN(kv_group, m))
#define KV_GROUP                                                                                   \
    OF(ARG(WORD, "name", RANGE(1, WIRE_KEY_MAX - 1), IN(kv_group, name)),                          \
       ARG(ONEOF, "kind", OF(TOKEN("FULL"), TOKEN("WINDOW"), TOKEN("STATE")), IN(kv_group, kind)), \
       TOKENS("block", 1, block), TOKENS("unit", 1, unit), TOKENS("window", 0, window),            \
       ARG(NUMBER, "drop", UP_TO(1), IN(kv_group, drop)))
#define LOOK_KV_GROUPS                                                                             \
    MAYBE(BLOCK, NULL,                                                                             \
          OF(NAMED("UNIT", NUMBER, "tokens", RANGE(1, INT32_MAX), IN(look, unit)),                 \
             NAMED("ALIGN", NUMBER, "tokens", RANGE(1, INT32_MAX), IN(look, align)),               \
             NAMED("KVGROUPS", BLOCK, NULL, COUNTED("m"), RANGE(1, WIRE_KV_GROUPS_MAX), KV_GROUP,  \
                   IN(look, kv_groups))))
#define NODE_NAME                                                                                  \
    ARG(WORD, "node", IN(node, name)), ARG(HEX, "instance", UP_TO(32), IN(node, instance))
#define NODE_SEGMENT ARG(WORD, "name", IN(mount, segment))
#define FAR_SEGMENT  ARG(NUMBER, "segment", UP_TO(UINT32_MAX), IN(node, segment))
#define SEGMENT_KEY  OF(ARG(WORD, "uri"), ARG(WORD, "read-key"), ARG(WORD, "write-key"))
#define REPLICA_KEY  KEY("key", KEY_RW | KEY_UPDATE, IN(replica, key))
#define REPLICA_FROM NAMED("FROM", WORD, "segment", IN(replica, from))
#define REPLICA_TO   OPTION("TO", WORD, "segment", IN(replica, to))
#define REPLICA_WAIT OPTION("WAIT", NUMBER, "ms", UP_TO(WIRE_MAX_WAIT), IN(replica, wait_ms))
#define EVENTS_COUNT OPTION("COUNT", NUMBER, "n", RANGE(1, 100000), IN(events, count))
#define EVENTS_MATCH OPTION("MATCH", WORD, "prefix", IN(events, prefix))

/* --- what Redis' commands have in common --- */

#define SET_EXPIRY(other)                                                                          \
    ANY_OF_IN(set, expiry, NAMED("EX", LATE, "seconds", IN(set, time)),                            \
              NAMED("PX", LATE, "milliseconds", IN(set, time)),                                    \
              NAMED("EXAT", LATE, "unix-time-seconds", IN(set, time)),                             \
              NAMED("PXAT", LATE, "unix-time-milliseconds", IN(set, time)), TOKEN(other))
#define CLIENT_TYPE                                                                                \
    NAMED("TYPE", ONEOF, NULL,                                                                     \
          OF(TOKEN("NORMAL"), TOKEN("MASTER"), TOKEN("REPLICA"), TOKEN("SLAVE"), TOKEN("PUBSUB")), \
          ELSE("Unknown client type '*'"), IN(clients, type))
#define HOST_AND_PORT                                                                              \
    ONE_OF(ARG(BLOCK, NULL,                                                                        \
               OF(ARG(WORD, "host", IN(master, host)), ARG(WORD, "port", IN(master, port)))),      \
           ARG(BLOCK, NULL, OF(TOKEN("NO"), TOKEN("ONE"))))

/* --- the table --- */

#define SHARED(id, run, n, f, s, ...)                                                              \
    [WIRE_##id] = {.name = (n), .flags = (f), .summary = (s), __VA_ARGS__},
#define COMMAND(id, ...)      SHARED(id, , __VA_ARGS__)
#define CONTAINER(id, n, ...) SHARED(id, , n, 0, __VA_ARGS__, .container = true)

const struct wire_command wire_commands[WIRE_COMMANDS] = {
#include "wire/commands.h"
};
