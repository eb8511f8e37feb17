/* Users as text, and an ACL file. */
#include <stdlib.h>
#include <string.h>

#include "acl/internal.h"
#include "base/assert.h"

static void append_pattern(struct buf *out, const struct acl_pattern *p, bool key) {
    if (!key)
        buf_append_char(out, '&');
    else if (p->rights == (ACL_READ | ACL_WRITE))
        buf_append_char(out, '~');
    else
        buf_append_str(out, p->rights & ACL_READ ? "%R~" : "%W~");
    buf_append(out, p->text, p->len);
}

static void append_patterns(struct buf *out, const struct acl_patterns *p, bool key) {
    for (size_t i = 0; i < p->n; i++) {
        if (i > 0) buf_append_char(out, ' ');
        append_pattern(out, &p->at[i], key);
    }
}

void acl_describe_keys(const struct acl_user *u, size_t selector, struct buf *out) {
    const struct acl_selector *s = &u->selector[selector];
    if (s->all_keys)
        buf_append_str(out, "~*");
    else
        append_patterns(out, &s->keys, true);
}

void acl_describe_channels(const struct acl_user *u, size_t selector, struct buf *out) {
    const struct acl_selector *s = &u->selector[selector];
    if (s->all_channels)
        buf_append_str(out, "&*");
    else
        append_patterns(out, &s->channels, false);
}

void acl_describe_commands(const struct acl_user *u, size_t selector, struct buf *out) {
    const struct acl_selector *s = &u->selector[selector];
    buf_append_str(out, s->base_all ? "+@all" : "-@all");
    for (size_t i = 0; i < s->rules; i++) {
        buf_append_char(out, ' ');
        buf_append_str(out, s->rule[i]);
    }
}

static void describe_selector(const struct acl_user *u, size_t i, struct buf *out) {
    const struct acl_selector *s = &u->selector[i];
    acl_describe_keys(u, i, out);
    if (s->all_keys || s->keys.n > 0) buf_append_char(out, ' ');
    if (!s->all_channels) buf_append_str(out, "resetchannels ");
    acl_describe_channels(u, i, out);
    if (s->all_channels || s->channels.n > 0) buf_append_char(out, ' ');
    acl_describe_commands(u, i, out);
}

void acl_describe(const struct acl_user *u, struct buf *out) {
    MAGIC_CHECK(u, ACL_USER_MAGIC);
    buf_append_str(out, u->on ? "on " : "off ");
    if (u->nopass) buf_append_str(out, "nopass ");
    if (u->skip_sanitize) buf_append_str(out, "skip-sanitize-payload ");
    for (size_t i = 0; i < u->passwords; i++) {
        char hex[65];
        acl_password_hex(u, i, hex);
        buf_printf(out, "#%s ", hex);
    }
    describe_selector(u, 0, out);
    for (size_t i = 1; i < u->selectors; i++) {
        buf_append_str(out, " (");
        describe_selector(u, i, out);
        buf_append_char(out, ')');
    }
}

/* --- files --- */

void acl_write_file(const struct acl *acl, struct buf *out) {
    for (size_t i = 0; i < acl_count(acl); i++) {
        const struct acl_user *u = acl_at(acl, i);
        buf_printf(out, "user %s ", u->name);
        acl_describe(u, out);
        buf_append_char(out, '\n');
    }
}

/* Words between blanks; nothing is quoted, for no rule can hold a blank. -1: too many. */
static long line_split(struct span line, struct span *words, size_t max) {
    size_t n = 0;
    for (size_t at = 0; at < line.len;) {
        while (at < line.len && (line.data[at] == ' ' || line.data[at] == '\t')) at++;
        size_t from = at;
        while (at < line.len && line.data[at] != ' ' && line.data[at] != '\t') at++;
        if (at == from) break;
        if (n == max) return -1;
        words[n++] = span_of(line.data + from, at - from);
    }
    return (long)n;
}

enum { FILE_WORDS_MAX = 16384 };

static void user_line_read(struct acl *acl, const char *name, size_t number, struct span line,
                           struct span *words, struct buf *errors) {
    long n = line_split(line, words, FILE_WORDS_MAX);
    if (n == 0) return;
    if (n < 0) {
        buf_printf(errors, "%s:%zu: %s. ", name, number, acl_too_many);
        return;
    }
    if (n < 2 || !span_eq(words[0], SPAN("user"))) {
        buf_printf(errors, "%s:%zu should start with user keyword followed by the username. ", name,
                   number);
        return;
    }
    struct acl_user *there = acl_find(acl, words[1]);
    if (there != NULL && (there != acl_default(acl) || acl->default_read)) {
        buf_printf(errors, "WARNING: Duplicate user '%s' found on line %zu. ", there->name, number);
        return;
    }
    struct acl_fault f = {0};
    struct span first = words[1];
    if (there != NULL) { /* the default user, as the file says and no otherwise */
        acl->default_read = true;
        words[1] = SPAN("reset");
        if (acl_set(acl, first, words + 1, (size_t)n - 1, &f) != NULL) return;
    } else if (acl_set(acl, first, words + 2, (size_t)n - 2, &f) != NULL) {
        return;
    }
    if (f.unmatched)
        buf_printf(errors, "%s:%zu: Unmatched parenthesis in selector definition. ", name, number);
    else if (f.unknown)
        buf_printf(errors, "%s:%zu: Error in applying operation '%.*s': %s. ", name, number,
                   (int)f.rule.len, f.rule.data, f.why);
    else
        buf_printf(errors, "%s:%zu: %s. ", name, number, f.why);
    acl_fault_free(&f);
}

bool acl_read_file(struct acl *acl, const char *name, struct span text, struct buf *errors) {
    struct span *words = xcalloc(FILE_WORDS_MAX, sizeof(*words));
    size_t number = 0, before = errors->len;
    acl->default_read = false;
    for (size_t at = 0; at < text.len;) {
        const char *lf = memchr(text.data + at, '\n', text.len - at);
        size_t n = lf != NULL ? (size_t)(lf - text.data) - at : text.len - at;
        struct span line = span_of(text.data + at, n);
        while (line.len > 0 && strchr(" \t\r", line.data[line.len - 1]) != NULL) line.len--;
        if (errors->len - before < ACL_WORD_MAX)
            user_line_read(acl, name, ++number, line, words, errors);
        at += n + 1;
    }
    free(words);
    return errors->len == before;
}
