/* A module that keeps something, and has commands with keys: notes. It counts what it is told.
 * Words: "tick N": N notes are changed each millisecond while this server leads; "strange" tries to
 * declare what must be refused. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/figures.h"
#include "plain.h"

static const struct tarn_services *services;
static struct tarn_durable *notes;
static struct tarn_timer *timer;
static unsigned long ticks, tick_n, late, told, told_gone, told_all, roles;
static char last[64];

/* --- commands --- */

static const char *why_not(tarn_status status) {
    switch (status) {
    case TARN_EREADONLY: return "READONLY only the master takes notes";
    case TARN_EPERM: return "this command only reads";
    case TARN_ELATER: return "TRYAGAIN 100 writes are held back";
    case TARN_EINVAL: return "a note has 1 to 1024 bytes of name and up to 65536";
    case TARN_ELIMIT: return "NOSPACE there are too many notes";
    default: return "it failed";
    }
}

static void set_answer(struct tarn_call_context *c, struct span name, struct span value) {
    tarn_status status = services->durable_set(notes, name, value);
    if (status == TARN_OK)
        services->reply_simple(c, "OK");
    else
        services->reply_error(c, why_not(status));
}

static void cmd_set(struct tarn_call_context *c, const struct span *argv, size_t argc) {
    set_answer(c, argv[1], argv[2]);
}

static void get_answer(struct tarn_call_context *c, struct span name) {
    struct span value;
    if (services->durable_get(notes, name, &value) == TARN_OK)
        services->reply_text(c, value);
    else
        services->reply_null(c);
}

static void cmd_get(struct tarn_call_context *c, const struct span *argv, size_t argc) {
    get_answer(c, argv[1]);
}

static void cmd_mget(struct tarn_call_context *c, const struct span *argv, size_t argc) {
    services->reply_array(c, argc - 2);
    for (size_t i = 2; i < argc; i++) get_answer(c, argv[i]);
}

static void cmd_del(struct tarn_call_context *c, const struct span *argv, size_t argc) {
    int64_t n = 0;
    for (size_t i = 1; i < argc; i++) {
        tarn_status status = services->durable_delete(notes, argv[i]);
        if (status != TARN_OK && status != TARN_ENOTFOUND) {
            services->reply_error(c, why_not(status));
            return;
        }
        n += status == TARN_OK;
    }
    services->reply_int(c, n);
}

/* The value of one note becomes that of another, which may be the same. */
static void cmd_copy(struct tarn_call_context *c, const struct span *argv, size_t argc) {
    struct span value;
    if (services->durable_get(notes, argv[2], &value) == TARN_OK)
        set_answer(c, argv[4], value);
    else
        services->reply_error(c, "no such note");
}

static bool count_each(void *arg, struct span name, struct span value) {
    ++*(size_t *)arg;
    return true;
}

struct listing {
    struct tarn_call_context *c;
    size_t left;
};

static bool list_each(void *arg, struct span name, struct span value) {
    struct listing *l = arg;
    if (l->left-- == 0) return false;
    services->reply_text(l->c, name);
    services->reply_text(l->c, value);
    return true;
}

static void cmd_list(struct tarn_call_context *c, const struct span *argv, size_t argc) {
    size_t n = 0;
    services->durable_each(notes, count_each, &n);
    if (argc > 1 && n > (size_t)atoi(argv[1].data)) n = (size_t)atoi(argv[1].data);
    services->reply_map(c, n);
    services->durable_each(notes, list_each, &(struct listing){c, n});
}

static void cmd_sly(struct tarn_call_context *c, const struct span *argv, size_t argc) {
    set_answer(c, argv[1], SPAN("changed by a command that only reads"));
}

/* Every kind of reply, within each other. */
static void cmd_replies(struct tarn_call_context *c, const struct span *argv, size_t argc) {
    services->reply_array(c, 4);
    services->reply_simple(c, "PONG");
    services->reply_map(c, 2);
    services->reply_text(c, SPAN("half"));
    services->reply_double(c, 0.5);
    services->reply_text(c, SPAN("yes"));
    services->reply_bool(c, true);
    services->reply_array(c, 2);
    services->reply_null(c);
    services->reply_array(c, 0);
    services->reply_error(c, "OVERLOADED 250 come back later");
}

static void cmd_told(struct tarn_call_context *c, const struct span *argv, size_t argc) {
    uint64_t max;
    const struct {
        const char *name;
        uint64_t value;
    } figure[] = {{"leads", services->leads()},
                  {"roles", roles},
                  {"changed", told},
                  {"gone", told_gone},
                  {"all", told_all},
                  {"late", late},
                  {"ticks", ticks},
                  {"bytes", services->durable_bytes(notes, &max)}};
    services->reply_map(c, sizeof(figure) / sizeof(*figure) + 1);
    for (size_t i = 0; i < sizeof(figure) / sizeof(*figure); i++) {
        services->reply_text(c, span_str(figure[i].name));
        services->reply_int(c, (int64_t)figure[i].value);
    }
    services->reply_text(c, SPAN("last"));
    services->reply_text(c, span_str(last));
}

static const struct tarn_key_spec
    key_written = {.flags = TARN_KEY_WRITE, .first = 1, .step = 1},
    key_read = {.flags = TARN_KEY_READ, .first = 1, .step = 1},
    keys_counted = {.flags = TARN_KEY_READ, .first = 1, .counted = true, .step = 1},
    keys_deleted = {.flags = TARN_KEY_DELETE, .first = 1, .last = -1, .step = 1},
    from_to[] = {{.flags = TARN_KEY_READ, .first = 1, .keyword = "FROM", .step = 1},
                 {.flags = TARN_KEY_READ | TARN_KEY_WRITE, .first = 3, .keyword = "TO", .step = 1}};

#define DECLARED(its_name, its_arity, its_flags, its_summary, its_syntax, its_run)                 \
    .size = sizeof(struct tarn_command_declaration), .name = its_name, .arity = its_arity,         \
    .flags = its_flags, .summary = its_summary, .syntax = its_syntax, .run = its_run
#define KEYS(spec) .keys = &(spec), .n_keys = 1

static const struct tarn_command_declaration commands[] = {
    {DECLARED("notes.set", 3, TARN_COMMAND_WRITE | TARN_COMMAND_DENYOOM | TARN_COMMAND_FAST,
              "Takes a note.", "name text", cmd_set),
     KEYS(key_written), .since = "1.2.0", .complexity = "O(1)", .categories = "@string",
     .reply = "OK", .errors = "NOSPACE"},
    {DECLARED("notes.get", 2, TARN_COMMAND_FAST, "Reads a note.", "name", cmd_get), KEYS(key_read)},
    {DECLARED("notes.mget", -3, 0, "Reads notes.", "numnames name [name ...]", cmd_mget),
     KEYS(keys_counted)},
    {DECLARED("notes.del", -2, TARN_COMMAND_WRITE, "Drops notes.", "name [name ...]", cmd_del),
     KEYS(keys_deleted)},
    {DECLARED("notes.copy", 5, TARN_COMMAND_WRITE, "Copies a note.", "FROM name TO name", cmd_copy),
     .keys = from_to, .n_keys = 2},
    {DECLARED("notes.list", -1, TARN_COMMAND_ALL_KEYS, "Reads all notes.", "[max]", cmd_list)},
    {DECLARED("notes.sly", 2, 0, "Tries to write.", "name", cmd_sly), KEYS(key_read)},
    {DECLARED("notes.replies", 1, TARN_COMMAND_LOADING | TARN_COMMAND_STALE, "Replies.", "",
              cmd_replies)},
    {DECLARED("notes.told", 1, TARN_COMMAND_ADMIN, "What it was told.", "", cmd_told)},
    {DECLARED("notes.led", 1, TARN_COMMAND_MASTER, "Reads on the master only.", "", cmd_told)},
};

/* --- what it is told --- */

static void on_changed(const struct span *name, const struct span *value) {
    if (name == NULL) {
        told_all++;
        return;
    }
    told += value != NULL;
    told_gone += value == NULL;
    snprintf(last, sizeof(last), "%.*s", (int)name->len, name->data);
}

static void on_role(bool leads) {
    roles++;
}

/* As leases end and begin: many small changes. */
static void on_tick(void *arg) {
    char name[32], value[32];
    for (unsigned long i = 0; i < tick_n && services->leads(); i++) {
        snprintf(name, sizeof(name), "tick%lu", ticks % 1000);
        snprintf(value, sizeof(value), "%lu", ticks);
        tarn_status status = services->durable_set(notes, span_str(name), span_str(value));
        late += status == TARN_ELATER;
        if (status != TARN_OK) break;
        ticks++;
    }
    services->timer_start(timer, 1);
}

static void on_figures(struct figure_walk *walk) {
    FIGURE(walk, COUNTER, notes_told, "changes of others", told + told_gone);
    FIGURE(walk, RATIO, notes_half, "always a half", 0.5);
}

/* --- the module --- */

/* NULL: everything was refused as it should be. */
static const char *try_strange(void) {
    static const struct tarn_key_spec late_key = {.flags = TARN_KEY_READ, .first = 2, .step = 1},
                                      still = {.flags = TARN_KEY_READ, .first = 1},
                                      zero = {.flags = TARN_KEY_READ, .step = 1},
                                      flag = {.flags = 64, .first = 1, .step = 1};
    const struct tarn_command_declaration bad[] = {
        {DECLARED("notes.late", 2, 0, "", "", cmd_get), KEYS(late_key)},
        {DECLARED("notes.still", 2, 0, "", "", cmd_get), KEYS(still)},
        {DECLARED("notes.zero", 2, 0, "", "", cmd_get), KEYS(zero)},
        {DECLARED("notes.flag", 2, 0, "", "", cmd_get), KEYS(flag)},
        {DECLARED("notes.many", 2, 0, "", "", cmd_get), .keys = from_to, .n_keys = 3},
        {DECLARED("notes.none", 2, 0, "", "", cmd_get), .n_keys = 1},
        {DECLARED("notes.bits", 2, 1u << 20, "", "", cmd_get)},
        {DECLARED("notes.class", 2, 0, "", "", cmd_get), .categories = "@nothing"},
        {DECLARED("other.name", 2, 0, "", "", cmd_get)},
        {.size = 8, .name = "notes.small"},
    };
    const struct tarn_command writes = {"notes.plain", 1, TARN_COMMAND_WRITE, "", "", cmd_list};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        if (services->command_declare(&bad[i]) != TARN_EINVAL) return bad[i].name;
    if (services->command_register(&writes) != TARN_EINVAL) return writes.name;
    return NULL;
}

static tarn_status load(const struct tarn_services *given, size_t argc, const char *const *argv,
                        char *error, size_t error_cap) {
    services = given;
    ticks = tick_n = late = told = told_gone = told_all = roles = 0;
    last[0] = '\0';
    tarn_status status = services->durable_open(&notes);
    if (status == TARN_ENOTSUP) return TARN_OK; /* no server */
    for (size_t i = 0; status == TARN_OK && i < sizeof(commands) / sizeof(*commands); i++)
        status = services->command_declare(&commands[i]);
    for (size_t i = 0; status == TARN_OK && i < argc; i++) {
        const char *taken = strcmp(argv[i], "strange") == 0 ? try_strange() : NULL;
        if (strcmp(argv[i], "tick") == 0 && i + 1 < argc) tick_n = (unsigned long)atol(argv[++i]);
        if (taken == NULL) continue;
        snprintf(error, error_cap, "%s was not refused", taken);
        return TARN_EINVAL;
    }
    if (status == TARN_OK && tick_n > 0) {
        timer = services->timer_create(on_tick, NULL);
        services->timer_start(timer, 1);
    }
    return status;
}

static tarn_status unload(char *error, size_t error_cap) {
    if (timer != NULL) services->timer_destroy(&timer);
    return TARN_OK;
}

SHOWN extern const struct tarn_module tarn_module_v1;
const struct tarn_module tarn_module_v1 = {.size = sizeof(struct tarn_module),
                                           .version = TARN_MODULE_VERSION,
                                           .name = "notes",
                                           .module_version = "1.2.3",
                                           .summary = "for tests",
                                           .load = load,
                                           .unload = unload,
                                           .durable_changed = on_changed,
                                           .role_changed = on_role,
                                           .figures = on_figures};
