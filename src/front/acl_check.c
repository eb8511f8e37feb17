/* A request against the rules of its user. */
#include "base/assert.h"
#include "front/acl_users.h"
#include "front/table.h"
#include "wire/options.h"

/* --- keys --- */

static unsigned rights_of(unsigned flags) {
    return (flags & KEY_ACCESS ? ACL_READ : 0u) |
           (flags & (KEY_INSERT | KEY_DELETE | KEY_UPDATE) ? ACL_WRITE : 0u);
}

struct keys_denied {
    const struct acl_user *user;
    size_t selector;
    const struct span *argv;
    size_t denied; /* the first one; 0: none */
};

static void see_key(void *arg, struct cmd_key_ref key) {
    struct keys_denied *k = arg;
    if (k->denied == 0 &&
        !acl_allows_key(k->user, k->selector, k->argv[key.index], rights_of(key.flags)))
        k->denied = key.index;
}

/* The same for what the names of KV groups begin. */
static size_t deny_names(const struct acl_user *u, size_t selector, const struct span *argv,
                         size_t at, size_t n) {
    for (; n > 0; n--, at += WIRE_KV_GROUP_WORDS)
        if (!acl_allows_beginning(u, selector, argv[at], ACL_READ)) return at;
    return 0;
}

/* 0: granted; else the argument, or argc. */
static size_t deny_keys(const struct acl_user *u, size_t selector, const struct cmd *cmd,
                        const struct span *argv, size_t argc) {
    struct keys_denied k = {u, selector, argv, 0};
    if (acl_allows_all_keys(u, selector) ||
        (cmd->keys[0].flags == 0 && !(cmd->flags & CMD_ALL_KEYS)))
        return 0;
    size_t groups, at = table_kv_groups(cmd, argv, argc, &groups);
    if (at > 0) return at == argc ? argc : deny_names(u, selector, argv, at, groups);
    int64_t n = table_keys(cmd, argv, argc, see_key, &k);
    if (n < 0) return argc; /* what its keys are nobody can say */
    if (n == 0 && cmd->flags & CMD_ALL_KEYS) {
        bool may = acl_allows_every_key(u, selector, cmd->flags & CMD_WRITE ? ACL_WRITE : ACL_READ);
        return may ? 0 : argc;
    }
    return k.denied;
}

/* --- channels --- */

/* 0: granted. */
static size_t deny_channels(const struct acl_user *u, size_t selector, const struct cmd *cmd,
                            const struct span *argv, size_t argc) {
    bool publish = cmd->id == WIRE_publish || cmd->id == WIRE_spublish,
         pattern = cmd->id == WIRE_psubscribe;
    bool listen = pattern || cmd->id == WIRE_subscribe || cmd->id == WIRE_ssubscribe;
    size_t end = publish ? 2 : argc;
    if (!(publish || listen) || acl_allows_all_channels(u, selector)) return 0;
    for (size_t i = 1; i < end; i++)
        if (!acl_allows_channel(u, selector, argv[i], pattern)) return i;
    return 0;
}

/* --- the whole --- */

/* Where the options of a command that can pin begin; 0: it cannot. */
static size_t pin_options_at(const struct cmd *cmd, const struct span *argv, size_t argc) {
    uint64_t n;
    if (cmd->id == WIRE_putstart) return 3;
    if (cmd->id != WIRE_mputstart || argc < 2 || !span_to_u64(argv[1], &n) || n > argc) return 0;
    return 2 + 2 * (size_t)n;
}

/* PIN key HARD, PUTSTART and MPUTSTART with PIN HARD. What has these words in another meaning is no
 * request that succeeds, or names groups so. */
static bool pins_hard(const struct cmd *cmd, const struct span *argv, size_t argc) {
    if (cmd->id == WIRE_pin) return argc > 2 && span_case_eq(argv[2], "hard");
    size_t at = pin_options_at(cmd, argv, argc);
    for (; at > 0 && at + 1 < argc; at++)
        if (span_case_eq(argv[at], "pin") && span_case_eq(argv[at + 1], "hard")) return true;
    return false;
}

static bool may_pin_hard(const struct acl_user *u, size_t selector) {
    return acl_allows_command(u, selector, table_declared(SPAN("pinhard"))->stat_index,
                              span_of(NULL, 0));
}

static bool command_allowed(const struct acl_user *u, size_t selector, const struct cmd *cmd,
                            const struct span *argv, size_t argc) {
    struct span first = argc > 1 ? argv[1] : span_of(NULL, 0);
    if (cmd->flags & CMD_NO_AUTH) return true;
    return acl_allows_command(u, selector, cmd->stat_index, first) &&
           (!pins_hard(cmd, argv, argc) || may_pin_hard(u, selector));
}

const char *acl_denied_name(const struct acl_user *u, const struct cmd *cmd,
                            const struct span *argv, size_t argc) {
    struct span first = argc > 1 ? argv[1] : span_of(NULL, 0);
    bool may = false;
    for (size_t i = 0; pins_hard(cmd, argv, argc) && i < acl_selectors(u); i++)
        may |= acl_allows_command(u, i, cmd->stat_index, first);
    return may ? "pinhard" : table_stat(cmd)->name;
}

/* FNV-1a: Fowler, Noll, Vo. Hashes of tables are of a seed of the process. */
uint64_t acl_pin_owner(const struct client *c) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (const char *at = acl_user_name(c->user); *at != '\0'; at++)
        hash = (hash ^ (unsigned char)*at) * UINT64_C(0x100000001b3);
    return hash != 0 ? hash : 1;
}

static enum acl_verdict check_selector(const struct acl_user *u, size_t selector,
                                       const struct cmd *cmd, const struct span *argv, size_t argc,
                                       size_t *at_p) {
    if (!command_allowed(u, selector, cmd, argv, argc)) return ACL_DENIED_COMMAND;
    if ((*at_p = deny_keys(u, selector, cmd, argv, argc)) != 0) return ACL_DENIED_KEY;
    if ((*at_p = deny_channels(u, selector, cmd, argv, argc)) != 0) return ACL_DENIED_CHANNEL;
    return ACL_GRANTED;
}

/* Of several refusals the one that came furthest. */
enum acl_verdict acl_check(const struct acl_user *u, const struct cmd *cmd, const struct span *argv,
                           size_t argc, size_t *at_p) {
    enum acl_verdict worst = ACL_DENIED_COMMAND;
    *at_p = 0;
    for (size_t i = 0; i < acl_selectors(u); i++) {
        size_t at = 0;
        enum acl_verdict v = check_selector(u, i, cmd, argv, argc, &at);
        if (v == ACL_GRANTED) return v;
        if (v < worst || (v == worst && at <= *at_p)) continue;
        worst = v;
        *at_p = at;
    }
    return worst;
}

bool acl_check_early(const struct acl_user *u, const struct span *argv, size_t argc) {
    /* names of commands are looked up by their bytes, which have to be there */
    if (argc == 0) return true;
    const struct cmd *cmd = table_find(argv[0]);
    if (cmd != NULL && cmd->sub != NULL) {
        if (argc == 1) return true;
        cmd = table_find_sub(cmd, argv[1]);
    }
    if (cmd == NULL) return false;
    const struct cmd_key_spec *k = &cmd->keys[0];
    bool key = k->flags != 0 && k->begin_index == 1 && !k->keynum && k->keyword == NULL && argc > 1;
    for (size_t i = 0; i < acl_selectors(u); i++) {
        if (!command_allowed(u, i, cmd, argv, argc)) continue;
        if (!key || acl_allows_key(u, i, argv[1], rights_of(k->flags) & ACL_WRITE)) return true;
    }
    return false;
}

bool acl_client_may(const struct client *c, const char *name) {
    if (c->unrestricted) return true;
    const struct cmd *cmd = table_declared(span_str(name));
    TARN_ASSERT(cmd != NULL);
    for (size_t i = 0; i < acl_selectors(c->user); i++)
        if (acl_allows_command(c->user, i, cmd->stat_index, span_of(NULL, 0))) return true;
    return false;
}
