/* A selector: its rules, and what they come to. */
#include <stdlib.h>
#include <string.h>

#include "acl/internal.h"
#include "base/assert.h"

const char acl_syntax[] = "Syntax error";
const char acl_unknown[] = "Unknown command or category name in ACL";
const char acl_keys_closed[] =
    "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid "
    "and does not have any effect. Try "
    "'resetkeys' to start with an empty list of patterns";
const char acl_channels_closed[] =
    "Adding a pattern after the * pattern (or the 'allchannels' flag) is not "
    "valid and does not have any effect. Try "
    "'resetchannels' to start with an empty list of channels";
const char acl_first_of_sub[] = "Allowing first-arg of a subcommand is not supported";
const char acl_too_many[] = "There are too many of these rules";
const char acl_too_long[] = "This rule is too long";

/* --- memory --- */

static void patterns_free(struct acl_patterns *p) {
    for (size_t i = 0; i < p->n; i++) {
        free(p->at[i].text);
        glob_destroy(&p->at[i].glob);
    }
    free(p->at);
    *p = (struct acl_patterns){NULL, 0};
}

/* All of them, or none that was given before. */
static void patterns_set(struct acl_patterns *p, bool *all_p, bool all) {
    patterns_free(p);
    *all_p = all;
}

static void patterns_add(struct acl_patterns *p, struct span text, unsigned rights) {
    p->at = xrealloc(p->at, (p->n + 1) * sizeof(*p->at));
    struct acl_pattern *k = &p->at[p->n++];
    *k = (struct acl_pattern){
        .text = xmemdup(text.len > 0 ? text.data : "", text.len + (text.len == 0)),
        .len = text.len,
        .rights = rights};
    k->glob = glob_create(span_of(k->text, k->len), false);
}

static void patterns_copy(struct acl_patterns *to, const struct acl_patterns *from) {
    for (size_t i = 0; i < from->n; i++)
        patterns_add(to, span_of(from->at[i].text, from->at[i].len), from->at[i].rights);
}

static void rules_free(struct acl_selector *s) {
    for (size_t i = 0; i < s->rules; i++) free(s->rule[i]);
    free(s->rule);
    s->rule = NULL;
    s->rules = 0;
}

void acl_selector_free(struct acl_selector *s) {
    rules_free(s);
    patterns_free(&s->keys);
    patterns_free(&s->channels);
    free(s->bits);
    free(s->first);
    *s = (struct acl_selector){0};
}

void acl_selector_copy(struct acl_selector *to, const struct acl_selector *from) {
    *to = (struct acl_selector){
        .base_all = from->base_all, .all_keys = from->all_keys, .all_channels = from->all_channels};
    to->rule = xcalloc(from->rules + 1, sizeof(char *));
    for (; to->rules < from->rules; to->rules++)
        to->rule[to->rules] = xstrdup(from->rule[to->rules]);
    patterns_copy(&to->keys, &from->keys);
    patterns_copy(&to->channels, &from->channels);
}

/* --- rules of commands --- */

int acl_command_find(const struct acl *acl, struct span name) {
    for (size_t i = 0; i < acl->commands; i++)
        if (span_case_eq(name, acl->command[i].name)) return (int)i;
    return -1;
}

/* A new rule makes older ones about the same command, or its subcommands, pointless; and it is so
 * itself where nothing was said that it could change. text is taken. */
static const char *add_rule(struct acl_selector *s, char *text) {
    size_t kept = 0, len = strlen(text + 1);
    bool changes = (text[0] == '+') != s->base_all;
    for (size_t i = 0; i < s->rules; i++) {
        const char *old = s->rule[i] + 1;
        bool same = strncmp(old, text + 1, len) == 0 &&
                    (old[len] == '\0' || (old[len] == '|' && text[1] != '@'));
        if (same) {
            free(s->rule[i]);
        } else {
            changes |= s->rule[i][0] != text[0];
            s->rule[kept++] = s->rule[i];
        }
    }
    s->rules = kept;
    if (!changes || kept == ACL_RULES_MAX) {
        free(text);
        return changes ? acl_too_many : NULL;
    }
    s->rule = xrealloc(s->rule, (kept + 1) * sizeof(char *));
    s->rule[s->rules++] = text;
    return NULL;
}

static void set_base(struct acl_selector *s, bool all) {
    rules_free(s);
    s->base_all = all;
}

static bool is_known(const struct acl *acl, struct span name) {
    return acl->command == NULL || acl_command_find(acl, name) >= 0 || acl_absent(name);
}

/* "+get", "+config|get", "+select|0". */
static const char *check_plus(const struct acl *acl, struct span name) {
    const char *bar = name.len > 0 ? memrchr(name.data, '|', name.len) : NULL;
    if (bar == NULL) return is_known(acl, name) ? NULL : acl_unknown;
    struct span before = span_of(name.data, (size_t)(bar - name.data));
    bool nothing = bar + 1 == name.data + name.len;
    if (acl->command == NULL) return nothing ? acl_syntax : NULL;
    int i = acl_command_find(acl, before);
    if (i < 0 && !acl_absent(before)) return acl_unknown;
    if (i >= 0 ? acl->command[i].parent >= 0 : memchr(before.data, '|', before.len) != NULL)
        return acl_first_of_sub;
    if (nothing) return acl_syntax;
    bool container = i >= 0 ? acl->command[i].container : acl_absent_container(before);
    return container && !is_known(acl, name) ? acl_unknown : NULL;
}

static const char *apply_command(struct acl_selector *s, const struct acl *acl, struct span rule) {
    struct span name = span_of(rule.data + 1, rule.len - 1);
    bool plus = rule.data[0] == '+', category = name.len > 0 && name.data[0] == '@';
    unsigned i;
    if (acl_has_blank(name))
        return acl_syntax; /* a first argument could have one, and no file could tell it */
    if (category && span_case_eq(name, "@all")) {
        set_base(s, plus);
        return NULL;
    }
    if (category) {
        if (!acl_category_find(span_of(name.data + 1, name.len - 1), &i)) return acl_unknown;
    } else if (plus) {
        const char *why = check_plus(acl, name);
        if (why != NULL) return why;
    } else if (!is_known(acl, name)) {
        return acl_unknown;
    }
    char *text = xmalloc(rule.len + 1);
    for (size_t k = 0; k < rule.len; k++)
        text[k] =
            (char)(rule.data[k] >= 'A' && rule.data[k] <= 'Z' ? rule.data[k] + 32 : rule.data[k]);
    text[rule.len] = '\0';
    return add_rule(s, text);
}

/* --- patterns --- */

static const char *add_pattern(struct acl_patterns *p, struct span text, unsigned rights) {
    if (acl_has_blank(text)) return acl_syntax;
    for (size_t i = 0; i < p->n; i++)
        if (span_eq(span_of(p->at[i].text, p->at[i].len), text)) {
            p->at[i].rights |= rights;
            return NULL;
        }
    if (p->n == ACL_PATTERNS_MAX) return acl_too_many;
    patterns_add(p, text, rights);
    return NULL;
}

/* ~pattern, %R~pattern, %W~pattern, %RW~pattern */
static const char *apply_keys(struct acl_selector *s, struct span rule) {
    if (s->all_keys) return acl_keys_closed;
    size_t at = 1;
    unsigned rights = 0;
    if (rule.data[0] == '~') {
        rights = ACL_READ | ACL_WRITE;
    } else {
        for (bool end = false; !end && at < rule.len; at++) {
            char ch = rule.data[at];
            if ((ch == 'R' || ch == 'r') && !(rights & ACL_READ))
                rights |= ACL_READ;
            else if ((ch == 'W' || ch == 'w') && !(rights & ACL_WRITE))
                rights |= ACL_WRITE;
            else if (ch == '~' && rights != 0)
                end = true;
            else
                return acl_syntax;
        }
        if (rights == 0) return acl_syntax;
    }
    struct span text = span_of(rule.data + at, rule.len - at);
    if (rights == (ACL_READ | ACL_WRITE) && span_eq(text, SPAN("*"))) { /* as ~* */
        patterns_set(&s->keys, &s->all_keys, true);
        return NULL;
    }
    return add_pattern(&s->keys, text, rights);
}

const char *acl_selector_apply(struct acl_selector *s, const struct acl *acl, struct span rule) {
    if (span_case_eq(rule, "allkeys") || span_eq(rule, SPAN("~*"))) {
        patterns_set(&s->keys, &s->all_keys, true);
    } else if (span_case_eq(rule, "resetkeys")) {
        patterns_set(&s->keys, &s->all_keys, false);
    } else if (span_case_eq(rule, "allchannels") || span_eq(rule, SPAN("&*"))) {
        patterns_set(&s->channels, &s->all_channels, true);
    } else if (span_case_eq(rule, "resetchannels")) {
        patterns_set(&s->channels, &s->all_channels, false);
    } else if (span_case_eq(rule, "allcommands")) {
        set_base(s, true);
    } else if (span_case_eq(rule, "nocommands")) {
        set_base(s, false);
    } else if (rule.len == 0) {
        return acl_syntax;
    } else if (rule.data[0] == '~' || rule.data[0] == '%') {
        return apply_keys(s, rule);
    } else if (rule.data[0] == '&') {
        if (s->all_channels) return acl_channels_closed;
        return add_pattern(&s->channels, span_of(rule.data + 1, rule.len - 1), 0);
    } else if (rule.data[0] == '+' || rule.data[0] == '-') {
        return apply_command(s, acl, rule);
    } else {
        return acl_syntax;
    }
    return NULL;
}

/* --- what they come to --- */

static void set_bit(struct acl_selector *s, unsigned i, bool on) {
    if (on)
        s->bits[i / 64] |= UINT64_C(1) << i % 64;
    else
        s->bits[i / 64] &= ~(UINT64_C(1) << i % 64);
    size_t kept = 0;
    for (size_t k = 0; k < s->firsts; k++)
        if (s->first[k].command != i) s->first[kept++] = s->first[k];
    s->firsts = kept;
}

/* The command, and the subcommands of a container. */
static void command_change(struct acl_selector *s, const struct acl *acl, unsigned i, bool on) {
    set_bit(s, i, on);
    for (size_t k = 0; acl->command[i].container && k < acl->commands; k++)
        if (acl->command[k].parent == (int)i) set_bit(s, (unsigned)k, on);
}

static void compile_rule(struct acl_selector *s, const struct acl *acl, const char *rule) {
    bool on = rule[0] == '+';
    const char *name = rule + 1, *bar = strrchr(name, '|');
    unsigned category;
    if (name[0] == '@') {
        if (!acl_category_find(span_str(name + 1), &category)) return;
        for (size_t i = 0; i < acl->commands; i++)
            if (acl->command[i].categories & UINT32_C(1) << category)
                command_change(s, acl, (unsigned)i, on);
        return;
    }
    int i = acl_command_find(acl, span_str(name));
    if (i >= 0) {
        command_change(s, acl, (unsigned)i, on);
    } else if (bar != NULL && on) {
        i = acl_command_find(acl, span_of(name, (size_t)(bar - name)));
        if (i < 0 || acl->command[i].container) return; /* not there any more */
        s->first = xrealloc(s->first, (s->firsts + 1) * sizeof(*s->first));
        s->first[s->firsts++] = (struct acl_first){(unsigned)i, bar + 1};
    }
}

void acl_selector_compile(struct acl_selector *s, const struct acl *acl) {
    size_t words = (acl->commands + 63) / 64;
    free(s->bits);
    free(s->first);
    s->first = NULL;
    s->firsts = 0;
    s->bits = xcalloc(words + 1, sizeof(uint64_t));
    memset(s->bits, s->base_all ? 0xff : 0, words * sizeof(uint64_t));
    s->all_commands = s->base_all && acl->command != NULL;
    for (size_t i = 0; i < s->rules; i++) {
        compile_rule(s, acl, s->rule[i]);
        s->all_commands = s->all_commands && s->rule[i][0] == '+';
    }
}
