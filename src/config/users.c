/* Users in the configuration: `user` lines. */
#include <stdlib.h>
#include <string.h>
#include "acl/acl.h"
#include "base/assert.h"
#include "config/table.h"

static char *fault_text(const struct acl_fault *f, struct span name) {
    return config_text("Error in user declaration '%.*s': %s", (int)min_u64(name.len, 128),
                       name.data,
                       f->unmatched ? "Unmatched parenthesis in selector definition." : f->why);
}

/* Which commands there are is not known yet: modules come later. */
static char *check(struct span name, const struct span *rules, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (rules[i].len > 0 && memchr(rules[i].data, '\0', rules[i].len) != NULL)
            return config_text("Error in user declaration '%.*s': its rules must not hold NUL; "
                               "give a password that does by "
                               "its hash",
                               (int)min_u64(name.len, 128), name.data);
    struct acl *nobody = acl_create();
    struct acl_fault f = {0};
    char *why = acl_set(nobody, name, rules, n, &f) == NULL ? fault_text(&f, name) : NULL;
    acl_fault_free(&f);
    acl_destroy(&nobody);
    return why;
}

static void forget(struct config_user *u) {
    for (size_t k = 0; k < u->rules; k++) free(u->rule[k]);
    free(u->rule);
    free(u->name);
}

static struct config_user *find(const struct config *c, struct span name) {
    for (size_t i = 0; i < c->users; i++)
        if (span_eq(name, span_str(c->user[i].name))) return &c->user[i];
    return NULL;
}

bool config_user_add(struct config *c, unsigned source, const struct span *words, size_t n,
                     char **why_p) {
    struct config_user *u = n > 0 ? find(c, words[0]) : NULL;
    *why_p = NULL;
    if (n == 0)
        *why_p = config_text("user must name a user, and may have rules for it");
    else if (u != NULL && u->source == source)
        *why_p = config_text("Error in user declaration '%s': Duplicate user found. A user can "
                             "only be defined once in config "
                             "files",
                             u->name);
    else if (u == NULL && c->users == ACL_USERS_MAX)
        *why_p = config_text("user may be given %u times", ACL_USERS_MAX);
    else
        *why_p = check(words[0], words + 1, n - 1);
    if (*why_p != NULL) return false;
    if (u != NULL) {
        forget(u);
    } else {
        c->user = xrealloc(c->user, (c->users + 1) * sizeof(*c->user));
        u = &c->user[c->users++];
    }
    *u = (struct config_user){.name = span_dup(words[0]), .rules = n - 1, .source = source};
    u->rule = xcalloc(n, sizeof(char *));
    for (size_t i = 0; i < u->rules; i++) u->rule[i] = span_dup(words[i + 1]);
    return true;
}

void config_users_free(struct config *c) {
    for (size_t i = 0; i < c->users; i++) forget(&c->user[i]);
    free(c->user);
    c->user = NULL;
    c->users = 0;
}
