/* ACL: users, their rules, categories. ACL LOG is in acl_log.c. */
#include <sodium.h>
#include <stdlib.h>
#include "base/assert.h"
#include "base/log.h"
#include "front/acl_users.h"
#include "front/families.h"
#include "front/table.h"
#include "config/config.h"
#include "wire/options.h"

static int word_shown(struct span s) {
    return s.data != NULL ? (int)min_u64(s.len, 128) : 0;
}

static void reply_buf(struct client *c, struct buf *b) {
    reply_bulk(c, span_of(b->data != NULL ? b->data : "", b->len));
    buf_clear(b);
}

void cmd_acl_whoami(struct client *c) {
    reply_bulk_str(c, acl_user_name(c->user));
}

/* --- changes --- */

void cmd_acl_setuser(struct client *c) {
    struct acl_fault f = {0};
    const char *why = acl_name_fault(c->argv[2]);
    if (why != NULL) {
        reply_error(c, "%s", why);
        return;
    }
    struct buf before = {NULL, 0, 0};
    struct acl_user *u = acl_find(acl_users, c->argv[2]);
    if (u != NULL) acl_user_rights(u, &before);
    u = acl_set(acl_users, c->argv[2], c->argv + 3, c->argc - 3, &f);
    if (u != NULL) {
        acl_user_changed(u);
        acl_user_rights_changed(u, &before, c);
        acl_users_settle();
        reply_ok(c);
    } else if (f.unmatched) {
        reply_error(c, "Unmatched parenthesis in acl selector starting at '%.*s'.", (int)f.rule.len,
                    f.rule.data);
    } else {
        reply_error(c, "Error in ACL SETUSER modifier '%.*s': %s", (int)f.rule.len,
                    f.rule.data != NULL ? f.rule.data : "", f.why);
    }
    buf_free(&before);
    acl_fault_free(&f);
}

void cmd_acl_deluser(struct client *c) {
    int64_t n = 0;
    for (size_t i = 2; i < c->argc; i++)
        if (span_eq(c->argv[i], SPAN("default"))) {
            reply_error(c, "The 'default' user cannot be removed");
            return;
        }
    for (size_t i = 2; i < c->argc; i++) {
        struct acl_user *u = acl_find(acl_users, c->argv[i]);
        if (u == NULL) continue;
        acl_user_gone(u, c);
        n += acl_delete(acl_users, c->argv[i]);
    }
    reply_int(c, n);
}

/* --- users as they are --- */

static void reply_selector(struct client *c, const struct acl_user *u, size_t i) {
    struct buf b = {NULL, 0, 0};
    reply_bulk_str(c, "commands");
    acl_describe_commands(u, i, &b);
    reply_buf(c, &b);
    reply_bulk_str(c, "keys");
    acl_describe_keys(u, i, &b);
    reply_buf(c, &b);
    reply_bulk_str(c, "channels");
    acl_describe_channels(u, i, &b);
    reply_buf(c, &b);
    buf_free(&b);
}

void cmd_acl_getuser(struct client *c) {
    const struct acl_user *u = acl_find(acl_users, c->argv[2]);
    if (u == NULL) {
        reply_null(c);
        return;
    }
    reply_map(c, 6);
    reply_bulk_str(c, "flags");
    reply_set(c, 1 + (size_t)acl_user_nopass(u) + acl_user_skips_sanitize(u));
    reply_bulk_str(c, acl_user_on(u) ? "on" : "off");
    if (acl_user_nopass(u)) reply_bulk_str(c, "nopass");
    if (acl_user_skips_sanitize(u)) reply_bulk_str(c, "skip-sanitize-payload");
    reply_bulk_str(c, "passwords");
    reply_array(c, acl_passwords(u));
    for (size_t i = 0; i < acl_passwords(u); i++) {
        char hex[65];
        acl_password_hex(u, i, hex);
        reply_bulk_str(c, hex);
    }
    reply_selector(c, u, 0);
    reply_bulk_str(c, "selectors");
    reply_array(c, acl_selectors(u) - 1);
    for (size_t i = 1; i < acl_selectors(u); i++) {
        reply_map(c, 3);
        reply_selector(c, u, i);
    }
}

void cmd_acl_list(struct client *c) {
    struct buf b = {NULL, 0, 0};
    reply_array(c, acl_count(acl_users));
    for (size_t i = 0; i < acl_count(acl_users); i++) {
        const struct acl_user *u = acl_at(acl_users, i);
        buf_printf(&b, "user %s ", acl_user_name(u));
        acl_describe(u, &b);
        reply_buf(c, &b);
    }
    buf_free(&b);
}

void cmd_acl_users(struct client *c) {
    reply_array(c, acl_count(acl_users));
    for (size_t i = 0; i < acl_count(acl_users); i++)
        reply_bulk_str(c, acl_user_name(acl_at(acl_users, i)));
}

/* --- categories --- */

struct wanted {
    const char *name; /* without the @ */
    bool found;
};

static void category_match(void *arg, const char *name) {
    struct wanted *w = arg;
    w->found |= strcmp(name + 1, w->name) == 0;
}

void cmd_acl_cat(struct client *c) {
    unsigned i;
    if (c->argc > 3) {
        reply_error(c, "unknown subcommand or wrong number of arguments for '%.*s'. Try ACL HELP.",
                    word_shown(c->argv[1]), c->argv[1].data);
        return;
    }
    if (c->argc == 2) {
        reply_array(c, acl_categories());
        for (i = 0; i < acl_categories(); i++) reply_bulk_str(c, acl_category_name(i));
        return;
    }
    if (!acl_category_find(c->argv[2], &i)) {
        reply_error(c, "Unknown category '%.*s'", word_shown(c->argv[2]),
                    c->argv[2].data != NULL ? c->argv[2].data : "");
        return;
    }
    size_t n = 0;
    void *cookie = reply_deferred(c);
    for (size_t k = 0; k < table_stat_count(); k++) {
        struct wanted w = {acl_category_name(i), false};
        table_categories(table_stat_at(k)->cmd, category_match, &w);
        if (!w.found) continue;
        reply_bulk_str(c, table_stat_at(k)->name);
        n++;
    }
    reply_deferred_array(c, cookie, n);
}

/* --- passwords --- */

#define GENPASS_MAX 4096

/* ACL GENPASS [bits]: hex digits, as many as hold them. */
void cmd_acl_genpass(struct client *c) {
    uint8_t bytes[GENPASS_MAX / 8];
    char hex[GENPASS_MAX / 4 + 1];
    struct wire_choice args = {0};
    if (!arg_bind(c, &args)) return;
    size_t digits = (size_t)(args.number + 3) / 4;
    randombytes_buf(bytes, sizeof(bytes));
    sodium_bin2hex(hex, sizeof(hex), bytes, sizeof(bytes));
    reply_bulk(c, span_of(hex, digits));
    sodium_memzero(bytes, sizeof(bytes));
    sodium_memzero(hex, sizeof(hex));
}

/* --- the file --- */

static bool has_file(struct client *c) {
    if (config->aclfile[0] != '\0') return true;
    reply_error(
        c, "This Redis instance is not configured to use an ACL file. You may want to specify "
           "users via the ACL SETUSER command and then issue a CONFIG REWRITE (assuming you have a "
           "Redis configuration file set) in order to store users in the Redis configuration.");
    return false;
}

void cmd_acl_load(struct client *c) {
    if (!has_file(c)) return;
    struct acl *next = acl_create();
    char *why = acl_file_read(config->aclfile, next);
    if (why != NULL) {
        reply_error(c, "%s", why);
        acl_destroy(&next);
        free(why);
        return;
    }
    acl_users_replace(&next, c);
    reply_ok(c);
}

void cmd_acl_save(struct client *c) {
    if (!has_file(c)) return;
    char *why = acl_file_write(config->aclfile, acl_users);
    if (why == NULL) {
        reply_ok(c);
        return;
    }
    log_warning("ACL SAVE: %s", why);
    reply_error(c, "There was an error trying to save the ACLs. Please check the server logs for "
                   "more information");
    free(why);
}

/* --- DRYRUN --- */

static void reply_verdict(struct client *c, enum acl_verdict v, const char *name,
                          struct span object) {
    struct buf b = {NULL, 0, 0};
    if (v == ACL_GRANTED) {
        reply_ok(c);
        return;
    }
    if (v == ACL_DENIED_COMMAND)
        buf_printf(&b, "This user has no permissions to run the '%s' command", name);
    else
        buf_printf(&b, "This user has no permissions to access the '%.*s' %s", word_shown(object),
                   object.data != NULL ? object.data : "", v == ACL_DENIED_KEY ? "key" : "channel");
    reply_buf(c, &b);
    buf_free(&b);
}

/* ACL DRYRUN username command [arg ...] */
void cmd_acl_dryrun(struct client *c) {
    const struct acl_user *u = acl_find(acl_users, c->argv[2]);
    const struct span *argv = c->argv + 3;
    size_t argc = c->argc - 3, at;
    if (u == NULL) {
        reply_error(c, "User '%.*s' not found", word_shown(c->argv[2]),
                    c->argv[2].data != NULL ? c->argv[2].data : "");
        return;
    }
    const struct cmd *cmd = table_find(argv[0]);
    if (cmd != NULL && cmd->sub != NULL && argc > 1) cmd = table_find_sub(cmd, argv[1]);
    if (cmd == NULL) {
        reply_error(c, "Command '%.*s' not found", word_shown(argv[0]),
                    argv[0].data != NULL ? argv[0].data : "");
        return;
    }
    if (cmd->arity > 0 ? argc != (size_t)cmd->arity : argc < (size_t)-cmd->arity) {
        reply_error(c, "wrong number of arguments for '%s' command", table_stat(cmd)->name);
        return;
    }
    enum acl_verdict v = acl_check(u, cmd, argv, argc, &at);
    reply_verdict(c, v, acl_denied_name(u, cmd, argv, argc), at < argc ? argv[at] : SPAN("*"));
}
