/* The commands: declared with the words of src/wire, from which their synopsis, their arity and the
 * reading of a request follow, and handed to the server. */
#include "conductor/command.h"
#include "conductor/prompt.h"
#include "kvevents/follow.h"
#include "wire/options.h"
#include "scrape/scraper.h"

/* --- the words of a declaration --- */

#define ARGS(...)                                                                                  \
    (const struct wire_arg[]) {                                                                    \
        __VA_ARGS__, {                                                                             \
            .kind = WIRE_END                                                                       \
        }                                                                                          \
    }
#define IN(s, m)                                                                                   \
    .offset = offsetof(struct conductor_##s, m), .size = sizeof(((struct conductor_##s *)0)->m)
#define ARG(k, n, ...)                                                                             \
    { .kind = WIRE_##k, .name = (n), __VA_ARGS__ }
#define OPTION(t, k, n, ...)                                                                       \
    { .kind = WIRE_##k, .name = (n), .token = (t), .optional = true, __VA_ARGS__ }
#define NEEDED(t, k, n, ...)                                                                       \
    { .kind = WIRE_##k, .name = (n), .token = (t), __VA_ARGS__ }
#define FLAG(t, ...)                                                                               \
    { .kind = WIRE_FLAG, .token = (t), .optional = true, __VA_ARGS__ }
#define RANGE(a, b) .min = (a), .max = (b)
#define NAMES       RANGE(1, ROUTE_NAME_MAX)
#define NONE_IS(n)  .absent = (n)
#define UNTOLD      NONE_IS(-1)

#define ENGINE_ID(s)   ARG(WORD, "id", NAMES, IN(s, id))
#define COUNT(t, n, m) OPTION(t, NUMBER, n, RANGE(0, INT64_C(1) << 40), UNTOLD, IN(load, m))
#define REQUEST(s)     ARG(WORD, "request", NAMES, IN(s, request))
#define TIME(t, m)     OPTION(t, NUMBER, "ms", RANGE(1, 86400000), IN(ask, m))
#define TOKEN(t)                                                                                   \
    { .kind = WIRE_FLAG, .token = (t) }

/* As PREFIXLEN has them. */
#define TOKENS(n, least, m)                                                                        \
    ARG(NUMBER, n, RANGE(least, INT32_MAX), .offset = offsetof(struct wire_kv_group, m),           \
        .size = sizeof(uint32_t))
#define KV_GROUP                                                                                   \
    ARGS(ARG(WORD, "name", RANGE(1, WIRE_KEY_MAX - 2 * 32), IN_GROUP(name)),                       \
         ARG(ONEOF, "kind", .args = ARGS(TOKEN("FULL"), TOKEN("WINDOW"), TOKEN("STATE")),          \
             IN_GROUP(kind)),                                                                      \
         TOKENS("block", 1, block), TOKENS("unit", 1, unit), TOKENS("window", 0, window),          \
         ARG(NUMBER, "drop", RANGE(0, 1), IN_GROUP(drop)))
#define IN_GROUP(m) .offset = offsetof(struct wire_kv_group, m), .size = sizeof(uint32_t)

/* What ROUTE and MATCH have of a prompt. */
#define PROMPT                                                                                     \
    NEEDED("MODEL", WORD, "m", NAMES, IN(ask, model)),                                             \
        OPTION("LORA", WORD, "l", NAMES, IN(ask, lora)),                                           \
        OPTION("SALT", WORD, "s", NAMES, IN(ask, salt)),                                           \
        {.kind = WIRE_ONEOF,                                                                       \
         .optional = true,                                                                         \
         .args = ARGS(                                                                             \
             NEEDED("TOKENS", WORD, "blob", RANGE(4, 4 * PROMPT_TOKENS_MAX), IN(ask, tokens)),     \
             NEEDED("HASHES", BLOCK, NULL, .counted = "n", .many = true,                           \
                    RANGE(1, PROMPT_BLOCKS_MAX), .args = ARGS(ARG(UNSIGNED, "hash")),              \
                    IN(ask, hashes)))},                                                            \
        OPTION("LENGTH", NUMBER, "tokens", RANGE(1, ROUTE_TOKENS_MAX), IN(ask, length)),           \
        OPTION("BLOCK", NUMBER, "tokens", RANGE(1, 1 << 20), IN(ask, block)),                      \
        OPTION("EXTRA", WORD, "blob", RANGE(1, 1 << 20), IN(ask, extra))

/* --- the commands --- */

#define READS  0u
#define WRITES TARN_COMMAND_WRITE
#define FAST   TARN_COMMAND_FAST
#define ADMIN  TARN_COMMAND_ADMIN

#define COMMAND(id, its_run, its_flags, cost, text, its_reply, its_errors, ...)                    \
    [CONDUCTOR_##id] = {.wire = {.name = "CONDUCTOR." #id,                                         \
                                 .group = "pool",                                                  \
                                 .summary = text,                                                  \
                                 .reply = its_reply,                                               \
                                 .errors = its_errors,                                             \
                                 .args = __VA_ARGS__},                                             \
                        .flags = its_flags,                                                        \
                        .complexity = cost,                                                        \
                        .run = its_run}

static const struct declaration commands[CONDUCTOR_COMMANDS] = {
    COMMAND(
        ADD, cmd_add, WRITES | ADMIN | TARN_COMMAND_DENYOOM, "O(1)",
        "Registers an engine, or one rank of it; the same again renews it.", "OK", "LIMIT",
        ARGS(ENGINE_ID(add), ARG(WORD, "url", RANGE(1, ROUTE_URL_MAX), IN(add, url)),
             NEEDED("MODEL", WORD, "m", NAMES, IN(add, model)),
             OPTION("ROLE", ONEOF, NULL,
                    .args = ARGS(TOKEN("BOTH"), TOKEN("PREFILL"), TOKEN("DECODE")), IN(add, role)),
             OPTION("LORA", WORD, "l", NAMES, IN(add, lora)),
             OPTION("TENANT", WORD, "t", NAMES, IN(add, tenant)),
             OPTION("SALT", WORD, "s", NAMES, IN(add, salt)),
             OPTION("BLOCK", NUMBER, "tokens", RANGE(1, 1 << 20), NONE_IS(16), IN(add, block)),
             OPTION("RANK", NUMBER, "n", RANGE(0, ROUTE_RANKS_MAX - 1), IN(add, rank)),
             OPTION("EVENTS", WORD, "endpoint", RANGE(1, KVEVENTS_ENDPOINT - 1), IN(add, events)),
             OPTION("REPLAY", WORD, "endpoint", RANGE(1, KVEVENTS_ENDPOINT - 1), IN(add, replay)),
             OPTION("METRICS", WORD, "url", RANGE(1, SCRAPER_URL - 1), IN(add, metrics)),
             OPTION("KVBLOCKS", NUMBER, "n", RANGE(0, UINT32_MAX), IN(add, kv_blocks)),
             OPTION("HOST", WORD, "h", NAMES, IN(add, host)),
             OPTION("RACK", WORD, "r", NAMES, IN(add, rack)),
             OPTION("BYTES", NUMBER, "per-token", RANGE(0, UINT32_MAX), IN(add, bytes)))),
    COMMAND(REMOVE, cmd_remove, WRITES | ADMIN, "O(N) with N requests that it has",
            "Forgets an engine, or one rank of it.", "OK", NULL,
            ARGS(ENGINE_ID(engine), OPTION("RANK", NUMBER, "n", RANGE(0, ROUTE_RANKS_MAX - 1),
                                           UNTOLD, IN(engine, rank)))),
    COMMAND(DRAIN, cmd_drain, WRITES | ADMIN, "O(1)",
            "Sends an engine nothing new; CANCEL: it takes part again.", "OK", "LIMIT",
            ARGS(ENGINE_ID(engine), FLAG("CANCEL", IN(engine, cancel)))),
    COMMAND(LIST, cmd_list, READS, "O(N) with N ranks",
            "Lists the engines with their load, a rank at a time.", "an array of maps", NULL, NULL),
    COMMAND(INFO, cmd_info, READS, "O(1)", "Tells all that is known of an engine.", "a map", NULL,
            ARGS(ENGINE_ID(engine))),
    COMMAND(LOAD, cmd_load, WRITES | FAST, "O(1)",
            "An engine, or its agent, says how loaded it is, and that it is alive.", "OK", NULL,
            ARGS(ENGINE_ID(load),
                 OPTION("RANK", NUMBER, "n", RANGE(0, ROUTE_RANKS_MAX - 1), IN(load, rank)),
                 COUNT("PREFILL", "tokens", prefill), COUNT("WAITING", "n", waiting),
                 COUNT("RUNNING", "n", running), COUNT("KVUSED", "n", kv_used),
                 COUNT("KVBLOCKS", "n", kv_blocks))),
    COMMAND(
        KEYS, cmd_keys, WRITES | ADMIN | TARN_COMMAND_DENYOOM, "O(N) with N KV groups",
        "Says how an engine calls its blocks in the pool; no more: it has none there.", "OK",
        "LIMIT",
        ARGS(ENGINE_ID(keys),
             {.kind = WIRE_BLOCK,
              .optional = true,
              .args = ARGS(
                  NEEDED("HASH", ONEOF, NULL, .args = ARGS(TOKEN("TARN"), TOKEN("SGLANG")),
                         IN(keys, hash)),
                  NEEDED("UNIT", NUMBER, "tokens", RANGE(1, 1 << 20), IN(keys, unit)),
                  NEEDED("ALIGN", NUMBER, "tokens", RANGE(1, INT32_MAX), IN(keys, align)),
                  NEEDED("KVGROUPS", BLOCK, NULL, .counted = "m", .many = true,
                         RANGE(1, WIRE_KV_GROUPS_MAX), .args = KV_GROUP, IN(keys, kv_groups)),
                  OPTION("REVISION", WORD, "r", RANGE(0, ROUTE_NAME_MAX), IN(keys, revision)))})),
    COMMAND(
        ROUTE, cmd_route, WRITES, "O(N+M) with N blocks of the prompt and M ranks",
        "Chooses the engine for a request, and reserves it.",
        "[prefill-engine, decode-engine, [device, host, disk], pool, ttft-ms, tbt-ms, lease-ms]",
        "OVERLOADED LIMIT",
        ARGS(REQUEST(ask), PROMPT,
             OPTION("OUTPUT", NUMBER, "tokens", RANGE(1, ROUTE_TOKENS_MAX), IN(ask, output)),
             OPTION("SESSION", WORD, "s", NAMES, IN(ask, session)),
             OPTION("TENANT", WORD, "t", NAMES, IN(ask, tenant)),
             OPTION("PRIORITY", NUMBER, "p", IN(ask, priority)), TIME("TTFT", ttft_ms),
             TIME("TBT", tbt_ms),
             OPTION("EXCLUDE", WORD, "id", NAMES, .many = true, IN(ask, exclude)),
             OPTION("POLICY", WORD, "name", RANGE(1, 31), IN(ask, policy)))),
    COMMAND(FIRST, cmd_first, WRITES | FAST, "O(1)", "Says that a request has its first token.",
            "OK", NULL, ARGS(REQUEST(told))),
    COMMAND(DONE, cmd_done, WRITES | FAST, "O(1)",
            "Says that a request is over; its engine is free of it.", "OK", NULL,
            ARGS(REQUEST(told),
                 OPTION("OUTPUT", NUMBER, "n", RANGE(0, ROUTE_TOKENS_MAX), IN(told, output)),
                 FLAG("FAILED", IN(told, failed)), FLAG("DECODE", IN(told, decode)))),
    COMMAND(MATCH, cmd_match, READS, "O(N+M) with N blocks of the prompt and M ranks",
            "Tells which engine has how much of a prompt.", "an array of maps", NULL, ARGS(PROMPT)),
    COMMAND(EXPLAIN, cmd_explain, READS, "O(N) with N candidates",
            "Tells why a request was sent where it was.", "a map", NULL, ARGS(REQUEST(told))),
    COMMAND(DOCTOR, cmd_doctor, READS, "O(N) with N ranks",
            "Says why hits are few, and what else is amiss.", "text", NULL, NULL),
};

/* --- to the server --- */

static struct tarn_command_declaration declared[CONDUCTOR_COMMANDS];
static struct { char name[32], syntax[512]; } texts[CONDUCTOR_COMMANDS];

/* The server borrows them, and wants names in lower case. */
static void texts_make(size_t i) {
    struct buf syntax = {NULL, 0, 0};
    const struct wire_command *wire = &commands[i].wire;
    for (size_t k = 0; wire->name[k] != '\0'; k++) texts[i].name[k] = ascii_lower(wire->name[k]);
    wire_synopsis(wire, &syntax);
    TARN_ASSERT(syntax.len < sizeof(texts[i].syntax));
    if (syntax.len > 0) memcpy(texts[i].syntax, syntax.data, syntax.len);
    buf_free(&syntax);
}

tarn_status conductor_commands_declare(void) {
    tarn_status status = TARN_OK;
    for (size_t i = 0; status == TARN_OK && i < CONDUCTOR_COMMANDS; i++) {
        const struct declaration *cmd = &commands[i];
        texts_make(i);
        declared[i] = (struct tarn_command_declaration){.size = sizeof(declared[i]),
                                                        .name = texts[i].name,
                                                        .arity = wire_arity(&cmd->wire),
                                                        .flags = cmd->flags,
                                                        .summary = cmd->wire.summary,
                                                        .syntax = texts[i].syntax,
                                                        .complexity = cmd->complexity,
                                                        .since = "0.2.0",
                                                        .reply = cmd->wire.reply,
                                                        .errors = cmd->wire.errors,
                                                        .run = cmd->run};
        status = conductor_services->command_declare(&declared[i]);
    }
    return status;
}

const struct wire_arg *conductor_group_words(void) {
    return wire_named(&commands[CONDUCTOR_KEYS].wire, "KVGROUPS");
}

bool conductor_bind(struct tarn_call_context *c, enum conductor_command id, const struct span *argv,
                    size_t argc, void *args) {
    static const struct wire_limits limits = {0, 0};
    char error[WIRE_ERROR_SIZE];
    if (wire_bind(&commands[id].wire, NULL, argv, argc, &limits, args, error)) return true;
    conductor_fail(c, "%s", error);
    return false;
}
