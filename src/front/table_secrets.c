/* Which arguments of which command nobody else may see: the one place that says so. MONITOR, the
 * slow log and the report of a crash ask here. Where a request is not as it should be, too much is
 * hidden rather than too little: a password in the wrong place is a password. */
#include "base/assert.h"
#include "config/table.h"
#include "front/table.h"

/* base: how far argv is from the beginning of the request, for a command within another. */
typedef void (*secrets_fn)(struct table_secrets *s, const struct span *argv, size_t argc,
                           size_t base);

static void secrets_from(struct table_secrets *s, size_t index) {
    if (index < s->from) s->from = index;
}

static void secrets_one(struct table_secrets *s, size_t index) {
    if (index < 64)
        s->one |= UINT64_C(1) << index;
    else
        secrets_from(s, index);
}

static void find_secrets(struct table_secrets *s, const struct span *argv, size_t argc,
                         size_t base);

static void all_arguments(struct table_secrets *s, const struct span *argv, size_t argc,
                          size_t base) {
    (void)argv, (void)argc;
    secrets_from(s, base + 1);
}

static void after_subcommand(struct table_secrets *s, const struct span *argv, size_t argc,
                             size_t base) {
    (void)argv, (void)argc;
    secrets_from(s, base + 2);
}

/* Arguments of a module. */
static void after_path(struct table_secrets *s, const struct span *argv, size_t argc, size_t base) {
    (void)argv, (void)argc;
    secrets_from(s, base + 3);
}

/* [protover [AUTH username password] [SETNAME name]]: all but a version and a name, wherever the
 * word AUTH is, or is not. */
static void of_hello(struct table_secrets *s, const struct span *argv, size_t argc, size_t base) {
    uint64_t version;
    size_t i = argc > 1 && span_to_u64(argv[1], &version) && version < 100 ? 2 : 1;
    while (i + 1 < argc && span_case_eq(argv[i], "setname")) i += 2;
    if (i < argc) secrets_from(s, base + i + (span_case_eq(argv[i], "auth") ? 1 : 0));
}

/* Values of options that hide them, and of what is no option: it may be the name of one that was
 * mistyped. */
static void of_config_set(struct table_secrets *s, const struct span *argv, size_t argc,
                          size_t base) {
    if (argc % 2 != 0) secrets_from(s, base + 3); /* a name or a value is missing */
    for (size_t i = 2; i + 1 < argc; i += 2) {
        const struct config_row *row = config_row_find(argv[i]);
        if (row == NULL || row->flags & CONFIG_SECRET) secrets_one(s, base + i + 1);
    }
}

/* What peers reach memory by, past every grant. */
static void of_segment_mount(struct table_secrets *s, const struct span *argv, size_t argc,
                             size_t base) {
    for (size_t i = 5; i + 1 < argc; i++)
        if (span_case_eq(argv[i], "keys")) secrets_from(s, base + i + 1);
}

static void of_segment_keys(struct table_secrets *s, const struct span *argv, size_t argc,
                            size_t base) {
    (void)argv, (void)argc;
    secrets_from(s, base + 6);
}

static void of_getkeys(struct table_secrets *s, const struct span *argv, size_t argc, size_t base) {
    if (argc > 2) find_secrets(s, argv + 2, argc - 2, base + 2);
}

static void of_dryrun(struct table_secrets *s, const struct span *argv, size_t argc, size_t base) {
    if (argc > 3) find_secrets(s, argv + 3, argc - 3, base + 3);
}

static const struct {
    enum wire_id id;
    secrets_fn find;
} rules[] = {
    {WIRE_auth, all_arguments},           {WIRE_hello, of_hello},
    {WIRE_acl_setuser, after_subcommand}, {WIRE_acl_dryrun, of_dryrun},
    {WIRE_command_getkeys, of_getkeys},   {WIRE_command_getkeysandflags, of_getkeys},
    {WIRE_config_set, of_config_set},     {WIRE_module_load, after_path},
    {WIRE_module_loadex, after_path},     {WIRE_segment_mount, of_segment_mount},
    {WIRE_segment_keys, of_segment_keys},
};

static void find_secrets(struct table_secrets *s, const struct span *argv, size_t argc,
                         size_t base) {
    if (base >= TABLE_SECRETS_DEPTH) { /* a command within a command within ... */
        secrets_from(s, base);
        return;
    }
    const struct cmd *cmd = table_find(argv[0]);
    if (cmd == NULL) cmd = table_declared(argv[0]); /* its name before it was renamed */
    if (cmd != NULL && cmd->sub != NULL && argc > 1) {
        const struct cmd *sub = table_find_sub(cmd, argv[1]);
        if (sub == NULL) secrets_from(s, base + 2); /* ACL SETUSR name >password */
        cmd = sub;
    }
    if (cmd == NULL) {
        /* Within another command: what it would take is not known. A request of an unknown command
         * itself is shown nowhere. */
        secrets_from(s, base + 1);
        return;
    }
    for (size_t i = 0; i < ARRAY_LEN(rules); i++)
        if (rules[i].id == cmd->id) rules[i].find(s, argv, argc, base);
}

struct table_secrets table_secrets(const struct span *argv, size_t argc) {
    struct table_secrets s = {SIZE_MAX, 0};
    if (argc > 0) find_secrets(&s, argv, argc, 0);
    return s;
}
