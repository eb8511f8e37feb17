/* The declarations: what is made of them is what a client sees, a request that was built is bound
 * to the same struct, and errors name what is wrong. */
#include <stdlib.h>
#include "base/assert.h"
#include "base/rng.h"
#include "wire/options.h"
#include "wire/wire.h"

#include "../test.h"

static const struct wire_limits limits = {1000, 60000};
static char error[WIRE_ERROR_SIZE];

static const struct wire_command *command(const char *name) {
    for (size_t i = 0; i < WIRE_COMMANDS; i++)
        if (strcmp(wire_commands[i].name, name) == 0) return &wire_commands[i];
    CHECK(!"a command");
    return NULL;
}

/* --- requests as text, words between blanks --- */

static size_t split(const char *line, struct span *argv) {
    size_t argc = 0;
    for (const char *p = line; *p != '\0';) {
        size_t n = strcspn(p, " ");
        argv[argc++] = span_of(p, n);
        p += n + (p[n] == ' ');
    }
    return argc;
}

/* "" or the error. */
static const char *bind(const char *line, void *options, size_t size) {
    static struct span argv[64];
    size_t argc = split(line, argv);
    char name[64];
    snprintf(name, sizeof(name), "%.*s", (int)argv[0].len, argv[0].data);
    bool sub = strcmp(name, "SEGMENT") == 0 || strcmp(name, "NODE") == 0 ||
               strcmp(name, "REPLICA") == 0 || strcmp(name, "QUOTA") == 0 ||
               strcmp(name, "KVEVENTS") == 0;
    if (sub)
        snprintf(name, sizeof(name), "%.*s|%.*s", (int)argv[0].len, argv[0].data, (int)argv[1].len,
                 argv[1].data);
    memset(options, 0, size);
    error[0] = '\0';
    bool ok = wire_bind(command(name), NULL, argv, argc, &limits, options, error);
    CHECK_EQ(ok, error[0] == '\0');
    return error;
}

TEST(options_in_any_order) {
    struct wire_put p;
    CHECK_STR(bind("PUTSTART k 10", &p, sizeof(p)), "");
    CHECK(p.keys.at == 1 && p.keys.n == 1 && p.replicas == 0 && p.group == 0);
    CHECK_STR(bind("PUTSTART k 10 ttl 5 PIN soft 7 PREFER a REPLACE PREFER b REPLICAS 3 GROUP g",
                   &p, sizeof(p)),
              "");
    CHECK(p.ttl_ms == 5 && p.pin == WIRE_PIN_SOFT && p.pin_ms == 7 && p.replace && p.replicas == 3);
    CHECK(p.prefer.n == 2 && p.prefer.at[0] == 9 && p.prefer.at[1] == 12 && p.group == 16);
    CHECK_STR(bind("MPUTSTART 2 a 1 b 2 PACKED PIN HARD", &p, sizeof(p)), "");
    CHECK(p.keys.at == 2 && p.keys.n == 2 && p.packed && p.pin == WIRE_PIN_HARD);
    CHECK_STR(bind("MPUTSTART 2 a 1 b 2 BOUNDARIES x y PACKED", &p, sizeof(p)), "");
    CHECK(p.boundaries == 7 && p.groups == 0 && p.boundary == 0 && p.group == 0 && p.packed);
    struct wire_end e;
    CHECK_STR(bind("PUTEND k 1 -1 FAILED 0 FAILED 3 VALUE v", &e, sizeof(e)), "");
    CHECK(e.failed == 9 && e.values == 9 && e.crcs == 0);
    CHECK_STR(bind("MPUTEND 2 a 1 2 b 3 4 FAILEDS 1 2 VALUES x y", &e, sizeof(e)), "");
    CHECK(e.faileds == 9 && e.values == 12);
    struct wire_mount m;
    CHECK_STR(bind("SEGMENT MOUNT n 0123456789abcdef0123456789ABCDEF s CONTENT "
                   "0123456789abcdef0123456789abcdef SIZE 4096 TIER ssd KEYS 1 u r w ENDPOINTS 0",
                   &m, sizeof(m)),
              "");
    CHECK(m.tier == 2 && m.size == 4096 && m.numa == -1 && m.keys.n == 1 && m.node.name == 2);
    struct wire_evict v;
    CHECK_STR(bind("EVICT KEYS 2 a b RATIO 0.5", &v, sizeof(v)), "");
    CHECK(v.keys.at == 3 && v.keys.n == 2 && v.ratio == 6);
}

TEST(hints_each_once_in_any_order) {
    struct wire_put p;
    struct wire_look l;
    CHECK_STR(bind("PUTSTART k 10 HINT RETURN 86400000 TTL 5 hint session s", &p, sizeof(p)), "");
    CHECK(p.hint.return_ms == 86400000 && p.hint.session == 10 && p.ttl_ms == 5);
    CHECK_STR(bind("MPUTSTART 1 k 10 HINT SESSION s PACKED", &p, sizeof(p)), "");
    CHECK(p.hint.return_ms == 0 && p.hint.session == 6 && p.packed);
    CHECK_STR(bind("PUTSTART k 10 NOGRANT INSTEAD 4", &p, sizeof(p)), "");
    CHECK(p.no_grant && p.instead == 4);
    CHECK_STR(bind("PREFIXLEN 1 k HINT RETURN 7 LEASE 5", &l, sizeof(l)), "");
    CHECK(l.hint.return_ms == 7 && l.hint.session == 0 && l.lease_ms == 5);
    CHECK_STR(bind("MGETREPLICAS 1 k HINT SESSION SESSION HINT RETURN 7", &l, sizeof(l)), "");
    CHECK(l.hint.return_ms == 7 && l.hint.session == 5);
    CHECK_STR(bind("GETREPLICAS k HINT SESSION s", &l, sizeof(l)), "");
    CHECK(l.hint.session == 4);
}

TEST(kv_groups_are_bound_one_at_a_time) {
    struct wire_look l;
    struct wire_kv_group g = {0};
    static struct span argv[64];
    const char *line = "MGETREPLICAS 2 a b WAIT 7 UNIT 16 ALIGN 32 KVGROUPS 2 f@ FULL 32 16 0 0 "
                       "w@ window 16 16 1024 1 PACKED LEASE 5";
    CHECK_STR(bind(line, &l, sizeof(l)), "");
    CHECK(l.keys.at == 2 && l.keys.n == 2 && l.unit == 16 && l.align == 32);
    CHECK(l.kv_groups.at == 12 && l.kv_groups.n == 2 && l.lease_ms == 5 && l.packed);
    const struct wire_arg *block = wire_named(command("MGETREPLICAS"), "KVGROUPS");
    CHECK_EQ(wire_block_words(block), (size_t)WIRE_KV_GROUP_WORDS);
    split(line, argv);
    CHECK(wire_bind_block(block, argv, 12 + WIRE_KV_GROUP_WORDS, &g, error));
    CHECK(g.name == 18 && g.kind == WIRE_KV_WINDOW && g.block == 16 && g.unit == 16);
    CHECK(g.window == 1024 && g.drop == 1);
    CHECK(wire_named(command("PREFIXLEN"), "nonsense") == NULL);
    CHECK_STR(bind("PREFIXLEN 1 a", &l, sizeof(l)), "");
    CHECK(l.kv_groups.n == 0 && l.unit == 0);
}

TEST(errors_name_what_is_wrong) {
    static const char *const rows[][2] = {
        {"PUTSTART k 10 TTL", "TTL needs a value"},
        {"PUTSTART k 10 REPLICAS 9", "REPLICAS must be a number from 1 to 8"},
        {"PUTSTART k 10 nonsense", "unknown option 'nonsense'"},
        {"PUTSTART k 10 REPLCAS 2", "unknown option 'REPLCAS', did you mean 'REPLICAS'?"},
        {"PUTSTART k 10 PIN NONE", "PIN must be SOFT ms or HARD"},
        {"PIN k", "PIN must be SOFT ms, HARD or NONE"},
        {"PUTSTART k 10 PACKED", "unknown option 'PACKED'"},
        {"PREFIXLEN 1 k NOGRANT", "unknown option 'NOGRANT'"},
        {"MPUTSTART 1001 k 10", "n must be a number from 1 to 1000"},
        {"MPUTSTART 2 k 10", "n is 2, but fewer than 4 arguments follow"},
        {"MPUTEND 2 a 1 2 b 3 4 VALUES x", "VALUES needs 2 values"},
        {"SEGMENT MOUNT n 0 s", "instance must be 32 hex digits, chosen at random"},
        {"EVICT BYTES 5 RATIO 0.1", "BYTES and RATIO exclude each other"},
        {"EVICT RATIO 2", "RATIO must be a number above 0 and up to 1"},
        {"QUOTA SET p x", "bytes must be a size, as 1000000 or 10gb"},
        {"REPLICA MOVE k WAIT 5", "REPLICA MOVE needs FROM"},
        {"PREFIXLEN 1 a KVGROUPS 1 f@ FULL 16 16 0 0", "UNIT must stand before KVGROUPS"},
        {"PREFIXLEN 1 a LEASE 5 UNIT 16 KVGROUPS 1", "ALIGN is missing"},
        {"PREFIXLEN 1 a UNIT 16 ALIGN 16", "KVGROUPS is missing"},
        {"PREFIXLEN 1 a UNIT 16 ALIGN 16 KVGROUPS 2 f@ FULL 16 16 0 0",
         "KVGROUPS is 2, but fewer than 12 arguments follow"},
        {"PREFIXLEN 1 a UNIT 1 ALIGN 1 KVGROUPS 1 f@ FULL 1 1 0 0 UNIT 1 ALIGN 1 KVGROUPS 1 g@ "
         "FULL "
         "1 1 0 0",
         "KVGROUPS may be given once"},
        {"PUTSTART k 10 HINT", "HINT must be SESSION id or RETURN ms"},
        {"PUTSTART k 10 HINT USER u", "HINT must be SESSION id or RETURN ms"},
        {"PUTSTART k 10 SESSION s", "unknown option 'SESSION'"},
        {"PUTSTART k 10 HINT SESSION s RETURN 5", "unknown option 'RETURN'"},
        {"MPUTSTART 1 k 10 HINT SESSION", "SESSION needs a value"},
        {"PREFIXLEN 1 k HINT RETURN", "RETURN needs a value"},
        {"PREFIXLEN 1 k HINT RETURN 0", "RETURN must be a number from 1 to 86400000"},
        {"PREFIXLEN 1 k HINT RETURN 86400001", "RETURN must be a number from 1 to 86400000"},
        {"MGETREPLICAS 1 k HINT SESSION s HINT SESSION s", "HINT SESSION may be given once"},
        {"MGETREPLICAS 1 k HINT RETURN 5 LEASE 5 HINT RETURN 5", "HINT RETURN may be given once"},
        {"KVEVENTS READ e 0 BLOCK 60001", "BLOCK must be a number from 0 to 60000"},
    };
    union {
        struct wire_put put;
        char room[4096];
    } any;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        CHECK_STR(bind(rows[i][0], &any, sizeof(any)), rows[i][1]);
}

/* --- as Redis' commands are declared --- */

struct toy {
    uint64_t cursor;
    uint32_t flags, condition, host, type, rest;
    int64_t port, seconds;
    bool any;
};
#define TOY(m) .offset = offsetof(struct toy, m), .size = sizeof(((struct toy *)0)->m)
#define GROUPED(...)                                                                               \
    (const struct wire_arg[]) {                                                                    \
        __VA_ARGS__, {                                                                             \
            .kind = WIRE_END                                                                       \
        }                                                                                          \
    }

static const struct wire_arg toy_args[] = {
    {.kind = WIRE_UNSIGNED, .name = "cursor", .error = "invalid cursor", TOY(cursor)},
    {.kind = WIRE_BLOCK,
     .optional = true,
     .args = GROUPED({.kind = WIRE_WORD, .token = "TO", .name = "host", TOY(host)},
                     {.kind = WIRE_NUMBER, .name = "port", TOY(port)},
                     {.kind = WIRE_FLAG, .token = "FORCE", .optional = true, TOY(any)})},
    {.kind = WIRE_FLAG, .token = "NOW", .optional = true, .max = 4, TOY(flags)},
    {.kind = WIRE_FLAG, .token = "LATER", .optional = true, .max = 8, TOY(flags)},
    {.kind = WIRE_ONEOF,
     .optional = true,
     .args = GROUPED({.kind = WIRE_NUMBER, .token = "EX", .name = "seconds", TOY(seconds)},
                     {.kind = WIRE_FLAG, .token = "KEEPTTL"}),
     TOY(condition)},
    {.kind = WIRE_ONEOF,
     .token = "TYPE",
     .optional = true,
     .args = GROUPED({.kind = WIRE_FLAG, .token = "string"}, {.kind = WIRE_FLAG, .token = "list"}),
     .error = "unknown type '*'",
     TOY(type)},
    {.kind = WIRE_VALUES, .token = "ID", .name = "id", .many = true, .optional = true, TOY(rest)},
    {.kind = WIRE_END}};

static const char *toy_bind(const char *line, struct toy *t) {
    static struct span argv[64];
    static const struct wire_command toy = {
        .name = "TOY", .group = "generic", .args = toy_args, .unknown = "Unsupported option *"};
    *t = (struct toy){0};
    error[0] = '\0';
    CHECK_EQ(wire_bind(&toy, NULL, argv, split(line, argv), &limits, t, error), error[0] == '\0');
    return error;
}

TEST(groups_bits_and_choices) {
    struct toy t;
    CHECK_STR(toy_bind("TOY 18446744073709551615", &t), "");
    CHECK(t.cursor == UINT64_MAX && t.flags == 0 && t.host == 0 && t.condition == 0);
    CHECK_STR(toy_bind("TOY 0 now to h -6 FORCE later KEEPTTL type LIST ID 1 2", &t), "");
    CHECK(t.flags == 12 && t.host == 4 && t.port == -6 && t.any && t.condition == 2);
    CHECK(t.type == 2 && t.rest == 12);
    CHECK_STR(toy_bind("TOY 0 TO h 5 EX -9", &t), "");
    CHECK(t.condition == 1 && t.seconds == -9 && t.port == 5 && !t.any);
}

TEST(errors_of_redis) {
    static const char *const rows[][2] = {
        {"TOY x", "invalid cursor"},
        {"TOY -1", "invalid cursor"},
        {"TOY 0 TO h", "Unsupported option TO"},
        {"TOY 0 TO h x", "value is not an integer or out of range"},
        {"TOY 0 EX", "Unsupported option EX"},
        {"TOY 0 EX x", "value is not an integer or out of range"},
        {"TOY 0 EX 5 KEEPTTL", "syntax error"},
        {"TOY 0 FORCE", "Unsupported option FORCE"},
        {"TOY 0 TYPE hash", "unknown type 'hash'"},
        {"TOY 0 TYPE", "syntax error"},
        {"TOY 0 ID", "Unsupported option ID"},
    };
    struct toy t;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        CHECK_STR(toy_bind(rows[i][0], &t), rows[i][1]);
}

static const struct wire_arg of_args[] = {
    {.kind = WIRE_ONEOF,
     .args = GROUPED({.kind = WIRE_BLOCK,
                      .args = GROUPED({.kind = WIRE_WORD, .name = "host", TOY(host)},
                                      {.kind = WIRE_NUMBER, .name = "port", TOY(port)})},
                     {.kind = WIRE_BLOCK,
                      .args = GROUPED({.kind = WIRE_FLAG, .token = "NO"},
                                      {.kind = WIRE_FLAG, .token = "ONE"})}),
     TOY(condition)},
    {.kind = WIRE_END}};

/* "NO ONE" is no host, though any word may be one. */
TEST(a_token_comes_before_any_word) {
    static const struct wire_command cmd = {.name = "OF", .group = "server", .args = of_args};
    struct span argv[4];
    struct toy t = {0};
    CHECK(wire_bind(&cmd, NULL, argv, split("OF no one", argv), &limits, &t, error));
    CHECK(t.condition == 2 && t.host == 0);
    t = (struct toy){0};
    CHECK(wire_bind(&cmd, NULL, argv, split("OF here 7", argv), &limits, &t, error));
    CHECK(t.condition == 1 && t.host == 1 && t.port == 7);
    CHECK(!wire_bind(&cmd, NULL, argv, split("OF here 7 8", argv), &limits, &t, error));
    CHECK_STR(error, "syntax error");
}

static bool is_letter(char c) {
    return (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
}

/* Tokens of all lengths: a word may differ in the case of letters, and in nothing else. */
TEST(options_in_any_case) {
    static const char *const tokens[] = {"X",       "nx",       "TTL",       "KEEP",
                                         "LIB-VER", "EIGHTEEN", "TARN-HOST", "TARN-TRACEPARENT"};
    for (size_t i = 0; i < ARRAY_LEN(tokens); i++) {
        struct wire_arg args[] = {
            {.kind = WIRE_FLAG, .token = tokens[i], .optional = true, TOY(any)},
            {.kind = WIRE_END}};
        const struct wire_command cmd = {.name = "CASE", .group = "server", .args = args};
        size_t len = strlen(tokens[i]);
        for (size_t bit = 0; bit <= 8 * len; bit++) {
            struct toy t = {0};
            char *word = malloc(len); /* a sanitizer knows its end */
            memcpy(word, tokens[i], len);
            bool fits = bit == 8 * len || (bit % 8 == 5 && is_letter(word[bit / 8]));
            if (bit < 8 * len) word[bit / 8] = (char)(word[bit / 8] ^ 1 << bit % 8);
            struct span argv[] = {SPAN("CASE"), span_of(word, len)};
            CHECK_EQ(wire_bind(&cmd, NULL, argv, 2, &limits, &t, error), fits);
            CHECK_EQ(t.any, fits);
            argv[1].len--;
            CHECK(!wire_bind(&cmd, NULL, argv, 2, &limits, &t, error));
            free(word);
        }
    }
}

/* What Redis says of the same requests. */
TEST(errors_of_declared_commands) {
    static const struct {
        enum wire_id id;
        const char *line, *error;
    } rows[] = {
        {WIRE_hello, "HELLO 3 AUTH", "Syntax error in HELLO option 'AUTH'"},
        {WIRE_hello, "HELLO 3 SETNAME a AUTH b", "Syntax error in HELLO option 'AUTH'"},
        {WIRE_hello, "HELLO 3 SETNAME", "Syntax error in HELLO option 'SETNAME'"},
        {WIRE_hello, "HELLO 3 AUTH a b AUTH c d SETNAME e", ""},
        {WIRE_client_kill, "CLIENT KILL ID 1 FOO bar", "syntax error"},
        {WIRE_client_kill, "CLIENT KILL 1.2.3.4:5 ID 1", "syntax error"},
        {WIRE_client_list, "CLIENT LIST TYPE normal TYPE normal", "syntax error"},
        {WIRE_flushall, "FLUSHALL SYNC SYNC", "syntax error"},
        {WIRE_bgsave, "BGSAVE SCHEDULE SCHEDULE", "syntax error"},
        {WIRE_failover, "FAILOVER FORCE FORCE", "syntax error"},
        {WIRE_failover, "FAILOVER TO a 1 TO b 2", "syntax error"},
        {WIRE_command_list, "COMMAND LIST FILTERBY PATTERN a FILTERBY PATTERN b", "syntax error"},
        {WIRE_set, "SET k v NX NX EX 1 EX 2", ""},
        {WIRE_copy, "COPY a b DB 0 DB 0 REPLACE REPLACE", ""},
        {WIRE_info, "INFO a b", ""},
        {WIRE_ping, "PING a b", "wrong number of arguments for 'ping' command"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct span argv[16];
        uint64_t options[16] = {0};
        size_t argc = split(rows[i].line, argv);
        error[0] = '\0';
        (void)wire_bind(&wire_commands[rows[i].id], NULL, argv, argc, &limits, options, error);
        CHECK_STR(error, rows[i].error);
    }
}

TEST(elements_have_their_own_errors) {
    struct span argv[] = {SPAN("MPUTSTART"), SPAN("2"), SPAN("a"), SPAN("10"), SPAN(""), SPAN("1")};
    struct wire_put_key k;
    const struct wire_arg *block = wire_block(command("MPUTSTART"));
    CHECK_EQ(wire_block_words(block), (size_t)2);
    CHECK(wire_bind_block(block, argv, 2, &k, error) && k.key == 2 && k.size == 10);
    CHECK(!wire_bind_block(block, argv, 4, &k, error));
    CHECK_STR(error, "key must be 1 to 1024 bytes");
    argv[3] = SPAN("1099511627777");
    CHECK(!wire_bind_block(block, argv, 2, &k, error));
    CHECK_STR(error, "size must be a number from 0 to 1099511627776");
}

/* --- built and bound again --- */

enum { WORDS = 512, ROOM = 4096 };

struct request {
    struct span word[WORDS];
    size_t n;
    char digits[WORDS][24];
};
static void add_word(void *arg, struct span word) {
    struct request *r = arg;
    CHECK(r->n < WORDS);
    r->word[r->n++] = word;
}
static void add_number(void *arg, int64_t value) {
    struct request *r = arg;
    char *digits = r->digits[r->n];
    add_word(r, span_of(digits, i64_to_dec(value, digits)));
}

static bool is_bound(const struct wire_arg *args) {
    for (const struct wire_arg *a = args; a != NULL && a->kind != WIRE_END; a++) {
        bool group = a->kind == WIRE_ONEOF || a->kind == WIRE_BLOCK;
        if (group && a->size == 0 ? !is_bound(a->args) : a->size == 0) return false;
    }
    return args != NULL;
}

static struct span pool[WORDS];
static struct rng rng;

static uint64_t below(uint64_t n) {
    return rng_below(&rng, n);
}

static void set(char *options, const struct wire_arg *a, uint64_t v) {
    uint32_t half = (uint32_t)v;
    if (a->size == 8)
        memcpy(options + a->offset, &v, 8);
    else if (a->size == 4)
        memcpy(options + a->offset, &half, 4);
    else
        *(bool *)(options + a->offset) = v != 0;
}

static void fill(char *options, const struct wire_arg *a);

static void fill_value(char *options, const struct wire_arg *a) {
    int64_t max = a->max == WIRE_MAX_BATCH ? 5 : a->max == WIRE_MAX_WAIT ? 60000 : a->max;
    uint32_t list[2] = {2,
                        a->counted != NULL ? (uint32_t)(1 + below(min_u64((uint64_t)max, 5))) : 1};
    if (a->kind == WIRE_ONEOF && a->many) {
        for (size_t i = 0; a->args[i].kind != WIRE_END; i++)
            if (i == 0 || below(2) == 0) fill_value(options, &a->args[i]);
    } else if (a->kind == WIRE_ONEOF) {
        size_t n = 0;
        while (a->args[n].kind != WIRE_END) n++;
        size_t which = below(n);
        if (a->size != 0) set(options, a, which + 1);
        if (a->args[which].kind != WIRE_FLAG) fill_value(options, &a->args[which]);
    } else if (a->kind == WIRE_NUMBER) {
        set(options, a, (uint64_t)a->min + below(((uint64_t)max - (uint64_t)a->min) | 1));
    } else if (a->kind == WIRE_SIZE || a->kind == WIRE_BITS) {
        set(options, a, 1 + below(255));
    } else if (a->kind == WIRE_FLAG) {
        set(options, a, 1);
    } else if (a->many && a->token != NULL && a->counted == NULL && a->kind != WIRE_VALUES) {
        struct wire_many *many = (struct wire_many *)(options + a->offset);
        many->n = 1 + (uint32_t)below((a->size - sizeof(*many)) / 4);
        for (uint32_t i = 0; i < many->n; i++) many->at[i] = 2 + 4 * i;
    } else if (a->kind == WIRE_BLOCK || a->counted != NULL || (a->many && a->token == NULL)) {
        memcpy(options + a->offset, list, sizeof(list));
    } else {
        set(options, a, a->kind == WIRE_RATIO ? 1 : 2 + below(100));
    }
}

static void fill(char *options, const struct wire_arg *a) {
    if (a->absent != 0) set(options, a, (uint64_t)a->absent);
    if (a->optional && below(2) == 0) return;
    fill_value(options, a);
}

static void check_round_trip(const struct wire_command *cmd) {
    static _Alignas(16) char first[ROOM], second[ROOM];
    static struct request built, again;
    memset(first, 0, ROOM);
    memset(second, 0, ROOM);
    for (const struct wire_arg *a = cmd->args; a->kind != WIRE_END; a++) fill(first, a);
    struct wire_sink sink = {&built, add_word, add_number};
    built.n = again.n = 0;
    wire_build(cmd, first, pool, &sink);
    error[0] = '\0';
    if (!wire_bind(cmd, NULL, built.word, built.n, &limits, second, error))
        printf("# %s: %s\n", cmd->name, error);
    CHECK_STR(error, "");
    int arity = wire_arity(cmd);
    CHECK(arity > 0 ? built.n == (size_t)arity : built.n >= (size_t)-arity);
    sink.arg = &again;
    wire_build(cmd, second, built.word, &sink);
    CHECK_EQ(built.n, again.n);
    for (size_t i = 0; i < built.n; i++) CHECK(span_eq(built.word[i], again.word[i]));
}

TEST(what_is_built_is_bound_again) {
    size_t bound = 0;
    rng_seed(&rng, 7);
    for (size_t i = 0; i < WORDS; i++) pool[i] = SPAN("00112233445566778899aabbccddeeff");
    pool[1] = SPAN("0.25");
    for (size_t i = 0; i < WIRE_COMMANDS; i++) {
        if (!is_bound(wire_commands[i].args)) continue;
        bound++;
        for (int k = 0; k < 200; k++) check_round_trip(&wire_commands[i]);
    }
    CHECK(bound > 20);
}

/* --- the table --- */

/* As options are compared. */
static void check_tokens(const struct wire_arg *args) {
    size_t n = 0;
    for (const struct wire_arg *a = args; a != NULL && a->kind != WIRE_END; a++, n++) {
        CHECK(a->token == NULL || strlen(a->token) <= 16);
        for (const char *c = a->token; c != NULL && *c != '\0'; c++)
            CHECK(is_letter(*c) || (*c >= '0' && *c <= '9') || *c == '-');
        check_tokens(a->args);
    }
    CHECK(n <= 16);
}

TEST(every_command_is_whole) {
    for (size_t i = 0; i < WIRE_COMMANDS; i++) {
        const struct wire_command *w = &wire_commands[i];
        CHECK(w->name != NULL && w->summary[0] != '\0' && w->group[0] != '\0' && w->since != NULL);
        check_tokens(w->args);
        CHECK_EQ(w->reply != NULL, !w->container);
    }
}

static const char *synopsis(const char *name) {
    static struct buf out;
    buf_clear(&out);
    wire_synopsis(command(name), &out);
    buf_append_char(&out, '\0');
    return out.data;
}

TEST(synopses) {
    CHECK_STR(synopsis("MPUTEND"),
              "n [key token crc [key token crc ...]] [VALUES value [value ...]] [CRCS crcs [crcs "
              "...]] [FAILEDS mask [mask ...]] [RECEIPTS receipts [receipts ...]] [BATCH id] "
              "[BATCHCRCS bytes]");
    CHECK_STR(synopsis("EVICT"), "[BYTES n | RATIO r] [KEYS n key [key ...]]");
    CHECK_STR(synopsis("SEGMENT|KEYS"),
              "node instance name n [uri read-key write-key [uri read-key write-key ...]]");
    CHECK_STR(synopsis("GETREPLICAS"),
              "key [LEASE ms] [WAIT ms] [HINT SESSION id] [HINT RETURN ms] [CRCS] [NOGRANT]");
    CHECK_STR(synopsis("PIN"), "key <SOFT ms | HARD | NONE>");
    CHECK_STR(synopsis("MSET"), "key value [key value ...]");
    CHECK_STR(synopsis("INFO"), "[section [section ...]]");
    CHECK_STR(synopsis("PING"), "[message]");
}

TEST_MAIN()
