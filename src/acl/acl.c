/* All users. */
#include "acl/acl.h"

#include <stdlib.h>
#include <string.h>

#include "acl/internal.h"
#include "base/assert.h"

#define DEFAULT SPAN("default")

/* --- the list: sorted, found by halving --- */

static int user_compare(const struct acl_user *u, struct span name) {
    size_t n = u->name_len < name.len ? u->name_len : name.len;
    int order = n > 0 ? memcmp(u->name, name.data, n) : 0;
    return order != 0 ? order : (u->name_len > name.len) - (u->name_len < name.len);
}

/* Where it is, or would be. */
static size_t user_place(const struct acl *acl, struct span name, bool *there_p) {
    size_t low = 0, high = acl->n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (user_compare(acl->user[middle], name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    *there_p = low < acl->n && user_compare(acl->user[low], name) == 0;
    return low;
}

static void user_insert(struct acl *acl, struct acl_user *u) {
    bool there;
    size_t i = user_place(acl, span_of(u->name, u->name_len), &there);
    TARN_ASSERT(!there);
    acl->user = xrealloc(acl->user, (acl->n + 1) * sizeof(struct acl_user *));
    memmove(acl->user + i + 1, acl->user + i, (acl->n - i) * sizeof(struct acl_user *));
    acl->user[i] = u;
    acl->n++;
}

static void remove_at(struct acl *acl, size_t i) {
    acl_user_free(&acl->user[i]);
    acl->n--;
    memmove(acl->user + i, acl->user + i + 1, (acl->n - i) * sizeof(struct acl_user *));
}

struct acl_user *acl_find(const struct acl *acl, struct span name) {
    bool there;
    if (name.data == NULL || name.len == 0) return NULL;
    size_t i = user_place(acl, name, &there);
    return there ? acl->user[i] : NULL;
}

struct acl_user *acl_default(const struct acl *acl) {
    struct acl_user *u = acl_find(acl, DEFAULT);
    TARN_ASSERT(u != NULL);
    return u;
}

size_t acl_count(const struct acl *acl) {
    return acl->n;
}
struct acl_user *acl_at(const struct acl *acl, size_t i) {
    TARN_ASSERT(i < acl->n);
    return acl->user[i];
}

/* --- from the beginning to the end --- */

struct acl *acl_create(void) {
    struct acl *acl = xcalloc(1, sizeof(*acl));
    acl->magic = ACL_MAGIC;
    struct acl_user *u = acl_user_create(DEFAULT);
    u->on = u->nopass = true;
    u->selector[0].base_all = u->selector[0].all_keys = u->selector[0].all_channels = true;
    acl_user_compile(u, acl);
    user_insert(acl, u);
    return acl;
}

void acl_destroy(struct acl **acl_p) {
    struct acl *acl = *acl_p;
    if (acl == NULL) return;
    MAGIC_CHECK(acl, ACL_MAGIC);
    for (size_t i = 0; i < acl->n; i++) acl_user_free(&acl->user[i]);
    free(acl->user);
    acl->magic = 0;
    free(acl);
    *acl_p = NULL;
}

void acl_set_commands(struct acl *acl, const struct acl_command *list, size_t n) {
    acl->command = list;
    acl->commands = list != NULL ? n : 0;
    for (size_t i = 0; i < acl->n; i++) acl_user_compile(acl->user[i], acl);
}

void acl_set_new_channels(struct acl *acl, bool all) {
    acl->new_channels = all;
}

/* --- changes --- */

const char *acl_name_fault(struct span name) {
    if (name.data == NULL || name.len == 0 || acl_has_blank(name))
        return "Usernames can't contain spaces or null characters";
    return name.len > ACL_NAME_MAX ? "Usernames have up to 256 bytes" : NULL;
}

void acl_fault_free(struct acl_fault *f) {
    buf_free(&f->rule);
}

static void fault_note(struct acl_fault *f, const char *why, struct span rule) {
    f->why = why;
    f->unknown = why == acl_unknown;
    f->unmatched = why == NULL;
    buf_clear(&f->rule);
    if (rule.len > 0 && (rule.data[0] == '>' || rule.data[0] == '<')) {
        buf_append(&f->rule, rule.data, 1);
        buf_append_str(&f->rule, "(redacted)");
        return;
    }
    buf_append(&f->rule, rule.data, min_u64(rule.len, 256));
}

/* A selector goes from a word that begins with ( to the one that ends with ). Its words end up in
 * joined. NULL: applied. */
static bool rules_apply(struct acl_user *u, const struct acl *acl, const struct span *rules,
                        size_t n, struct acl_fault *f) {
    struct buf joined = {NULL, 0, 0};
    const char *why = NULL;
    for (size_t i = 0; i < n && why == NULL; i++) {
        struct span rule = rules[i];
        if (rule.len == 0 || rule.data == NULL || rule.data[0] != '(' ||
            rule.data[rule.len - 1] == ')') {
            why = acl_user_apply(u, acl, rule);
            if (why != NULL) fault_note(f, why, rule);
            continue;
        }
        size_t first = i;
        buf_clear(&joined);
        for (; i < n && joined.len <= 16 * ACL_WORD_MAX; i++) {
            if (i > first) buf_append_char(&joined, ' ');
            if (rules[i].data != NULL) buf_append(&joined, rules[i].data, rules[i].len);
            if (rules[i].len > 0 && rules[i].data != NULL && rules[i].data[rules[i].len - 1] == ')')
                break;
        }
        if (i == n) {
            fault_note(f, NULL, rules[first]);
            why = acl_syntax;
            break;
        }
        why = acl_user_apply(u, acl, span_of(joined.data, joined.len));
        if (why != NULL) fault_note(f, why, span_of(joined.data, joined.len));
    }
    buf_free(&joined);
    return why == NULL;
}

struct acl_user *acl_user_try(const struct acl *acl, struct span name, const struct span *rules,
                              size_t n, struct acl_fault *f) {
    const struct acl_user *there = acl_find(acl, name);
    struct acl_user *u = there != NULL ? acl_user_clone(there) : acl_user_create(name);
    if (there == NULL) u->selector[0].all_channels = acl->new_channels;
    *f = (struct acl_fault){0};
    if (there == NULL && acl->n == ACL_USERS_MAX)
        fault_note(f, acl_too_many, name);
    else if (rules_apply(u, acl, rules, n, f)) {
        acl_user_compile(u, acl);
        return u;
    }
    acl_user_free(&u);
    return NULL;
}

struct acl_user *acl_set(struct acl *acl, struct span name, const struct span *rules, size_t n,
                         struct acl_fault *f) {
    const char *why = acl_name_fault(name);
    if (why != NULL) {
        *f = (struct acl_fault){0};
        fault_note(f, why, SPAN(""));
        return NULL;
    }
    struct acl_user *next = acl_user_try(acl, name, rules, n, f), *there = acl_find(acl, name);
    if (next == NULL) return NULL;
    if (there == NULL) {
        user_insert(acl, next);
        return next;
    }
    acl_user_take(there, next);
    acl_user_free(&next);
    return there;
}

bool acl_delete(struct acl *acl, struct span name) {
    bool there;
    if (name.data == NULL || span_eq(name, DEFAULT)) return false;
    size_t i = user_place(acl, name, &there);
    if (there) remove_at(acl, i);
    return there;
}

void acl_replace(struct acl *acl, struct acl **from_p) {
    struct acl *from = *from_p;
    for (size_t i = acl->n; i-- > 0;) {
        struct acl_user *u = acl->user[i], *next = acl_find(from, span_of(u->name, u->name_len));
        if (next != NULL)
            acl_user_take(u, next);
        else
            remove_at(acl, i);
    }
    for (size_t i = 0; i < from->n; i++) {
        struct acl_user *u = from->user[i];
        if (u->selectors == 0) continue; /* taken */
        from->user[i] = NULL;
        user_insert(acl, u);
    }
    for (size_t i = 0; i < acl->n; i++) acl_user_compile(acl->user[i], acl);
    acl_destroy(from_p);
}
