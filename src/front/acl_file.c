/* Users in files: at start, in an ACL file of their own, and what CONFIG REWRITE writes of them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "base/file.h"
#include "base/log.h"
#include "front/acl_users.h"
#include "config/config.h"
#include "resp/resp.h"

#define FILE_MAX (64u * 1024 * 1024)

/* --- at start --- */

static bool acl_line_load(const struct config_line *u) {
    struct acl_fault f = {0};
    struct span *rules = xcalloc(u->n, sizeof(*rules));
    const char *name = u->word[0];
    size_t n = 0;
    if (strcmp(name, "default") == 0) rules[n++] = SPAN("reset");
    for (size_t i = 1; i < u->n; i++) rules[n++] = span_str(u->word[i]);
    bool ok = acl_set(acl_users, span_str(name), rules, n, &f) != NULL;
    if (!ok)
        log_warning("Error loading ACL rule '%.*s' for the user named '%s': %s", (int)f.rule.len,
                    f.rule.data, name, f.why != NULL ? f.why : "Unmatched parenthesis");
    acl_fault_free(&f);
    free(rules);
    return ok;
}

static bool acl_file_load(const char *path) {
    struct acl *next = acl_create();
    char *why = acl_file_read(path, next);
    if (why != NULL) {
        log_warning("Aborting startup because of ACL errors: %s", why);
        acl_destroy(&next);
        free(why);
        return false;
    }
    acl_users_replace(&next, NULL);
    return true;
}

bool acl_users_load(void) {
    bool ok = true;
    for (size_t i = 0; ok && i < config->users.n; i++) ok = acl_line_load(&config->users.line[i]);
    if (!ok) log_warning("Critical error while loading ACLs. Exiting.");
    if (ok && config->aclfile[0] != '\0') ok = acl_file_load(config->aclfile);
    if (ok) acl_users_settle();
    return ok;
}

/* --- the file --- */

char *acl_file_read(const char *path, struct acl *into) {
    struct buf text = {NULL, 0, 0}, errors = {NULL, 0, 0};
    char *why = NULL;
    FILE *f = fopen(path, "re");
    acl_users_begin(into);
    if (f == NULL || !file_read_all(f, FILE_MAX, &text)) {
        why = config_text("Error loading ACLs, opening file '%s': %s", path, strerror(errno));
    } else if (!acl_read_file(into, path, span_of(text.data, text.len), &errors)) {
        buf_append_str(&errors, "WARNING: ACL errors detected, no change to the previously active "
                                "ACL rules was performed");
        why = span_dup(span_of(errors.data, errors.len));
    }
    if (f != NULL) fclose(f);
    buf_free(&text);
    buf_free(&errors);
    return why;
}

char *acl_file_write(const char *path, const struct acl *acl) {
    struct buf text = {NULL, 0, 0};
    acl_write_file(acl, &text);
    bool ok = config_write_beside(path, &text);
    char *why = ok ? NULL : config_text("%s: %s", path, strerror(errno));
    buf_free(&text);
    return why;
}

/* --- CONFIG REWRITE --- */

bool acl_default_is_plain(void) {
    struct buf b = {NULL, 0, 0};
    const struct acl_user *u = acl_default(acl_users);
    const struct config_binary *password = &config->requirepass;
    const char *all = " ~* &* +@all";
    acl_describe(u, &b);
    bool plain = b.len > strlen(all) && memcmp(b.data + b.len - strlen(all), all, strlen(all)) == 0;
    if (password->len == 0)
        plain = plain && span_eq(span_of(b.data, b.len), SPAN("on nopass ~* &* +@all"));
    else
        plain = plain && acl_user_on(u) && acl_passwords(u) == 1 && !acl_user_skips_sanitize(u) &&
                acl_selectors(u) == 1 &&
                acl_user_has_password(u, span_of(password->data, password->len));
    buf_free(&b);
    return plain;
}

static bool user_is_written(const struct acl_user *u) {
    return config->aclfile[0] == '\0' && (u != acl_default(acl_users) || !acl_default_is_plain());
}

/* Words between blanks; what a configuration file would read differently is quoted. */
static void append_user(struct buf *out, const struct acl_user *u) {
    struct buf b = {NULL, 0, 0};
    buf_printf(&b, "%s ", acl_user_name(u));
    acl_describe(u, &b);
    buf_append_str(out, "user");
    for (size_t at = 0; at < b.len;) {
        const char *blank = memchr(b.data + at, ' ', b.len - at);
        size_t n = blank != NULL ? (size_t)(blank - b.data) - at : b.len - at;
        struct span word = span_of(b.data + at, n);
        buf_append_char(out, ' ');
        if (at > 0 && word.len > 1 && word.data[0] == '#')
            buf_append(out, word.data, word.len); /* a hash; a name may be anything */
        else
            config_append_word(out, word);
        at += n + 1;
    }
    buf_append_char(out, '\n');
    buf_free(&b);
}

struct config_users_now {
    size_t n;
    bool *written; /* by number of the user */
};

static struct config_users_now *users_now(void) {
    struct config_users_now *now = xcalloc(1, sizeof(*now));
    now->n = acl_users != NULL ? acl_count(acl_users) : 0;
    now->written = xcalloc(now->n + 1, sizeof(bool));
    return now;
}

static void users_line(struct config_users_now *now, const struct span *words, size_t n,
                       struct span line, struct buf *out) {
    for (size_t i = 0; n > 0 && i < now->n; i++) {
        const struct acl_user *u = acl_at(acl_users, i);
        if (!span_eq(words[0], span_str(acl_user_name(u))) || now->written[i] ||
            !user_is_written(u))
            continue;
        now->written[i] = true;
        if (acl_users_same(u, words + 1, n - 1)) {
            buf_append(out, line.data, line.len);
            buf_append_char(out, '\n');
        } else {
            append_user(out, u);
        }
    }
}

static void users_rest(struct config_users_now *now, struct buf *out,
                       void (*before)(struct buf *out)) {
    for (size_t i = 0; i < now->n; i++) {
        const struct acl_user *u = acl_at(acl_users, i);
        if (now->written[i] || !user_is_written(u)) continue;
        before(out);
        append_user(out, u);
    }
}

static void users_now_free(struct config_users_now **now_p) {
    free((*now_p)->written);
    free(*now_p);
    *now_p = NULL;
}

const struct config_users_ops acl_users_rewrite = {users_now, users_line, users_rest,
                                                   users_now_free};
