/* The users of this server, and who is which. */
#include "front/acl_users.h"

#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "base/log.h"
#include "cluster/cluster.h"
#include "front/channels.h"
#include "front/table.h"
#include "config/config.h"

struct acl *acl_users;
static struct acl_command *commands;

/* --- the table of commands, for the rules --- */

static void add_category(void *arg, const char *name) {
    unsigned i;
    bool known = acl_category_find(span_str(name + 1), &i);
    TARN_ASSERT(known);
    *(uint32_t *)arg |= UINT32_C(1) << i;
}

/* By stat_index. */
static void describe_table(void) {
    size_t n = table_stat_count();
    commands = xrealloc(commands, n * sizeof(*commands));
    for (size_t i = 0; i < n; i++) {
        const struct cmd_stat *s = table_stat_at(i);
        commands[i] =
            (struct acl_command){.name = s->name,
                                 .parent = s->parent != NULL ? (int)s->parent->stat_index : -1,
                                 .container = s->cmd->sub != NULL};
        table_categories(s->cmd, add_category, &commands[i].categories);
    }
    acl_set_commands(acl_users, commands, n);
}

void acl_users_table_changed(void) {
    if (acl_users == NULL) return;
    describe_table();
    for (size_t i = 0; i < acl_count(acl_users); i++) acl_user_changed(acl_at(acl_users, i));
}

/* --- from start to end --- */

void acl_users_init(void) {
    acl_users = acl_create();
    describe_table();
    acl_users_pubsub_default();
    acl_users_requirepass();
}

void acl_users_deinit(void) {
    acl_log_reset();
    acl_destroy(&acl_users);
    free(commands);
    commands = NULL;
}

/* The default user of an acl gets the password of requirepass, or none. */
static void set_default(struct acl *acl) {
    const struct config_binary *password = &config->requirepass;
    struct acl_fault f = {0};
    struct span rules[] = {SPAN("resetpass"), SPAN("nopass")};
    struct buf rule = {NULL, 0, 0};
    buf_append_char(&rule, '>');
    buf_append(&rule, password->data, password->len);
    if (password->len > 0) rules[1] = span_of(rule.data, rule.len);
    bool ok = acl_set(acl, SPAN("default"), rules, ARRAY_LEN(rules), &f) != NULL;
    TARN_ASSERT(ok); /* the option is no longer than a rule may be */
    acl_fault_free(&f);
    buf_free(&rule);
}

void acl_users_requirepass(void) {
    set_default(acl_users);
    acl_user_changed(acl_default(acl_users));
}

void acl_users_begin(struct acl *fresh) {
    acl_set_commands(fresh, commands, table_stat_count());
    acl_set_new_channels(fresh, config->acl_pubsub_default == CONFIG_ALL_CHANNELS);
    set_default(fresh);
}

/* Everybody logs in again, as in Redis 7.0; the default user stays who it is. */
void acl_users_replace(struct acl **fresh_p, struct client *me) {
    for (size_t i = 0; i < acl_count(acl_users); i++) {
        struct acl_user *u = acl_at(acl_users, i);
        if (u != acl_default(acl_users)) acl_user_gone(u, me);
    }
    struct buf before = {NULL, 0, 0};
    acl_user_rights(acl_default(acl_users), &before);
    acl_replace(acl_users, fresh_p);
    acl_user_changed(acl_default(acl_users));
    acl_user_rights_changed(acl_default(acl_users), &before, me);
    buf_free(&before);
    acl_users_settle();
}

bool acl_users_same(const struct acl_user *u, const struct span *rules, size_t n) {
    struct acl *scratch = acl_create();
    struct acl_fault f = {0};
    struct buf a = {NULL, 0, 0}, b = {NULL, 0, 0};
    acl_set_commands(scratch, commands, table_stat_count());
    acl_set_new_channels(scratch, config->acl_pubsub_default == CONFIG_ALL_CHANNELS);
    const struct acl_user *other =
        acl_set(scratch, SPAN("-"), rules, n, &f); /* a new one, whatever its name */
    if (other != NULL) acl_describe(other, &a);
    acl_describe(u, &b);
    bool same = other != NULL && span_eq(span_of(a.data, a.len), span_of(b.data, b.len));
    acl_fault_free(&f);
    buf_free(&a);
    buf_free(&b);
    acl_destroy(&scratch);
    return same;
}

void acl_users_pubsub_default(void) {
    acl_set_new_channels(acl_users, config->acl_pubsub_default == CONFIG_ALL_CHANNELS);
}

void acl_users_settle(void) {
    struct config_binary *password = &config->requirepass;
    const struct acl_user *u = acl_default(acl_users);
    if (password->len > 0 && !acl_user_has_password(u, span_of(password->data, password->len)))
        config_binary_set(password, SPAN(""));
}

/* --- clients --- */

static void client_rights_settle(struct client *c) {
    c->unrestricted =
        c->authenticated && acl_user_unrestricted(c->user) && !(c->io->flags & CLIENT_REFUSED);
}

void acl_client_refuse(struct client *c, bool refuse) {
    c->io->flags = (c->io->flags & ~(unsigned)CLIENT_REFUSED) | (refuse ? CLIENT_REFUSED : 0u);
    client_rights_settle(c);
}

/* Its grants stay those of whom it was. */
static void client_become(struct client *c, struct acl_user *u) {
    if (c->io->flags & CLIENT_GRANTED && c->user != u) c->io->flags |= CLIENT_GRANTED_OTHER;
    c->user = u;
}

void acl_client_reset(struct client *c) {
    client_become(c, acl_default(acl_users));
    c->authenticated = acl_user_on(c->user) && acl_user_nopass(c->user);
    client_rights_settle(c);
}

bool acl_client_login(struct client *c, struct span user, struct span password) {
    struct acl_user *u = acl_find(acl_users, user);
    /* An unknown user takes as long as a wrong password. */
    if (!acl_user_login(u != NULL ? u : acl_default(acl_users), password) || u == NULL)
        return false;
    client_become(c, u);
    c->authenticated = true;
    client_rights_settle(c);
    return true;
}

struct lost {
    const struct acl_user *user;
    bool pattern, any;
};

static void lost_channel_note(void *arg, struct span name) {
    struct lost *l = arg;
    bool may = false;
    for (size_t i = 0; !may && i < acl_selectors(l->user); i++)
        may = acl_allows_channel(l->user, i, name, l->pattern);
    l->any |= !may;
}

/* Listens to what its user may not hear any more. */
static bool lost_channels(const struct client *c) {
    struct lost l = {.user = c->user};
    if (c->io->subscriber == NULL) return false;
    for (size_t i = 0; i < acl_selectors(c->user); i++)
        if (acl_allows_all_channels(c->user, i)) return false;
    for (int kind = 0; kind < CHANNEL_KINDS && !l.any; kind++) {
        l.pattern = kind == CHANNEL_PATTERN;
        channel_each(c->io->subscriber, (enum channel_kind)kind, lost_channel_note, &l);
    }
    return l.any;
}

/* Its grants are over at every host, and so is the session that they were for. */
static void cut_off(struct client *c, const struct client *me) {
    if (c->io->flags & CLIENT_GRANTED) cluster_on_fence(c->id);
    if (c == me)
        client_close_after_reply(c);
    else
        client_close_soon(c);
}

/* A line for each selector: for every command whether it may be run, then the patterns of keys. */
void acl_user_rights(const struct acl_user *u, struct buf *out) {
    for (size_t i = 0; acl_user_on(u) && i < acl_selectors(u); i++) {
        for (unsigned k = 0; k < table_stat_count(); k++)
            buf_append_char(out, acl_allows_command(u, i, k, span_of(NULL, 0)) ? '1' : '0');
        acl_describe_keys(u, i, out);
        buf_append_char(out, '\n');
    }
}

static struct span next_line(struct span *rest) {
    const char *end = rest->len > 0 ? memchr(rest->data, '\n', rest->len) : NULL;
    struct span line = span_of(rest->data, end == NULL ? rest->len : (size_t)(end - rest->data));
    size_t taken = line.len + (end != NULL);
    *rest = span_of(rest->data + taken, rest->len - taken);
    return line;
}

/* What was there is there, selector by selector; new patterns stand behind the old ones. */
static bool rights_kept(struct span before, struct span now) {
    size_t commands_n = table_stat_count();
    while (before.len > 0) {
        struct span b = next_line(&before), n = next_line(&now);
        if (n.len < b.len ||
            memcmp(n.data + commands_n, b.data + commands_n, b.len - commands_n) != 0)
            return false;
        /* another pattern */
        if (b.len > commands_n && n.len > b.len && n.data[b.len] != ' ') return false;
        for (size_t k = 0; k < commands_n; k++)
            if (b.data[k] == '1' && n.data[k] == '0') return false;
    }
    return true;
}

void acl_user_rights_changed(const struct acl_user *u, const struct buf *before,
                             const struct client *me) {
    struct buf now = {NULL, 0, 0};
    acl_user_rights(u, &now);
    bool kept = rights_kept(span_of(before->data, before->len), span_of(now.data, now.len));
    buf_free(&now);
    if (kept) return;
    CLIENTS_EACH(c)
        if (c->io->flags & CLIENT_GRANTED && (c->user == u || c->io->flags & CLIENT_GRANTED_OTHER))
            cut_off(c, me);
}

void acl_user_changed(struct acl_user *u) {
    bool open = u == acl_default(acl_users) && acl_user_on(u) && acl_user_nopass(u);
    CLIENTS_EACH(c) {
        if (c->user != u) continue;
        c->authenticated |= open;
        client_rights_settle(c);
        if (lost_channels(c)) client_close_soon(c);
    }
}

void acl_user_gone(struct acl_user *u, struct client *me) {
    CLIENTS_EACH(c) {
        if (c->user != u) {
            if (c->io->flags & CLIENT_GRANTED_OTHER) cut_off(c, me);
            continue;
        }
        c->user = acl_default(acl_users);
        c->authenticated = c->unrestricted = false;
        cut_off(c, me);
    }
}
