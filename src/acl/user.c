/* One user: passwords, and the rules that are not a selector's. */
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "acl/internal.h"
#include "base/assert.h"

const char acl_no_password[] = "The password you are trying to remove from the user does not exist";
const char acl_bad_hash[] = "The password hash must be exactly 64 characters and contain only "
                            "lowercase hexadecimal characters";
static_assert(ACL_HASH_LEN == crypto_hash_sha256_BYTES, "a hash is SHA-256");

bool acl_has_blank(struct span s) {
    for (size_t i = 0; i < s.len; i++)
        if (s.data[i] == ' ' || s.data[i] == '\0' || (s.data[i] >= '\t' && s.data[i] <= '\r'))
            return true;
    return false;
}

/* --- memory --- */

struct acl_user *acl_user_create(struct span name) {
    struct acl_user *u = xcalloc(1, sizeof(*u));
    u->magic = ACL_USER_MAGIC;
    u->name = xmalloc(name.len + 1);
    if (name.len > 0) memcpy(u->name, name.data, name.len);
    u->name[name.len] = '\0';
    u->name_len = name.len;
    u->selector = xcalloc(1, sizeof(*u->selector));
    u->selectors = 1;
    return u;
}

static void forget_passwords(struct acl_user *u) {
    free(u->password);
    u->password = NULL;
    u->passwords = 0;
}

static void free_rules(struct acl_user *u) {
    forget_passwords(u);
    for (size_t i = 0; i < u->selectors; i++) acl_selector_free(&u->selector[i]);
    free(u->selector);
    u->selector = NULL;
    u->selectors = 0;
}

void acl_user_free(struct acl_user **u_p) {
    if (*u_p == NULL) return;
    MAGIC_CHECK(*u_p, ACL_USER_MAGIC);
    free_rules(*u_p);
    free((*u_p)->name);
    (*u_p)->magic = 0;
    free(*u_p);
    *u_p = NULL;
}

struct acl_user *acl_user_clone(const struct acl_user *from) {
    struct acl_user *u = acl_user_create(span_of(from->name, from->name_len));
    struct acl_user copy = *from;
    copy.password =
        from->passwords > 0 ? xmemdup(from->password, from->passwords * ACL_HASH_LEN) : NULL;
    copy.selector = xcalloc(from->selectors, sizeof(*copy.selector));
    for (size_t i = 0; i < from->selectors; i++)
        acl_selector_copy(&copy.selector[i], &from->selector[i]);
    acl_user_take(u, &copy);
    return u;
}

void acl_user_take(struct acl_user *u, struct acl_user *from) {
    char *name = u->name;
    size_t name_len = u->name_len;
    free_rules(u);
    *u = *from;
    u->name = name;
    u->name_len = name_len;
    from->password = NULL;
    from->selector = NULL;
    from->passwords = from->selectors = 0;
}

void acl_user_compile(struct acl_user *u, const struct acl *acl) {
    u->unrestricted = false;
    for (size_t i = 0; i < u->selectors; i++) {
        struct acl_selector *s = &u->selector[i];
        acl_selector_compile(s, acl);
        u->unrestricted |= s->all_commands && s->all_keys && s->all_channels;
    }
}

/* --- passwords --- */

static void hash_of(struct span password, uint8_t out[ACL_HASH_LEN]) {
    crypto_hash_sha256(out, (const unsigned char *)password.data, password.len);
}

/* All of them are looked at, whichever it is. Its number, or passwords: none. */
static size_t find_password(const struct acl_user *u, const uint8_t hash[ACL_HASH_LEN]) {
    size_t found = u->passwords;
    for (size_t i = 0; i < u->passwords; i++)
        if (sodium_memcmp(u->password[i], hash, ACL_HASH_LEN) == 0) found = i;
    return found;
}

bool acl_user_has_password(const struct acl_user *u, struct span password) {
    uint8_t hash[ACL_HASH_LEN];
    hash_of(password, hash);
    bool found = find_password(u, hash) < u->passwords;
    sodium_memzero(hash, sizeof(hash));
    return found;
}

bool acl_user_login(const struct acl_user *u, struct span password) {
    bool right = acl_user_has_password(u, password);
    return u->on && (u->nopass || right);
}

size_t acl_passwords(const struct acl_user *u) {
    return u->passwords;
}

void acl_password_hex(const struct acl_user *u, size_t i, char out[65]) {
    TARN_ASSERT(i < u->passwords);
    sodium_bin2hex(out, 65, u->password[i], ACL_HASH_LEN);
}

/* false: not 64 digits of lower case. */
static bool hash_parse(struct span hex, uint8_t out[ACL_HASH_LEN]) {
    if (hex.len != 2 * ACL_HASH_LEN) return false;
    for (size_t i = 0; i < hex.len; i++)
        if (!((hex.data[i] >= '0' && hex.data[i] <= '9') ||
              (hex.data[i] >= 'a' && hex.data[i] <= 'f')))
            return false;
    return sodium_hex2bin(out, ACL_HASH_LEN, hex.data, hex.len, NULL, NULL, NULL) == 0;
}

static const char *password_apply(struct acl_user *u, char op, struct span text) {
    uint8_t hash[ACL_HASH_LEN];
    if (op == '#' || op == '!') {
        if (!hash_parse(text, hash)) return acl_bad_hash;
    } else {
        hash_of(text, hash);
    }
    size_t i = find_password(u, hash);
    if (op == '<' || op == '!') {
        if (i == u->passwords) return acl_no_password;
        u->passwords--;
        memmove(u->password[i], u->password[i + 1], (u->passwords - i) * ACL_HASH_LEN);
        return NULL;
    }
    if (i == u->passwords) {
        if (u->passwords == ACL_PASSWORDS_MAX) return acl_too_many;
        u->password = xrealloc(u->password, (u->passwords + 1) * ACL_HASH_LEN);
        memcpy(u->password[u->passwords++], hash, ACL_HASH_LEN);
    }
    u->nopass = false;
    return NULL;
}

/* --- rules --- */

static void clear_selectors(struct acl_user *u) {
    for (size_t i = 1; i < u->selectors; i++) acl_selector_free(&u->selector[i]);
    u->selectors = 1;
}

static void user_reset(struct acl_user *u, const struct acl *acl) {
    forget_passwords(u);
    u->nopass = u->on = u->skip_sanitize = false;
    clear_selectors(u);
    acl_selector_free(&u->selector[0]); /* leaves one that allows nothing */
    u->selector[0].all_channels = acl->new_channels;
}

/* "(~key* +get)" */
static const char *selector_apply_words(struct acl_user *u, const struct acl *acl,
                                        struct span rule) {
    if (rule.len < 2 || rule.data[rule.len - 1] != ')') return acl_syntax;
    if (u->selectors == ACL_SELECTORS_MAX) return acl_too_many;
    struct acl_selector s = {.all_channels = acl->new_channels};
    const char *why = NULL;
    for (size_t at = 1, end = rule.len - 1; at < end && why == NULL;) {
        const char *blank = memchr(rule.data + at, ' ', end - at);
        size_t n = blank != NULL ? (size_t)(blank - rule.data) - at : end - at;
        if (n > ACL_WORD_MAX)
            why = acl_too_long;
        else if (n > 0 && rule.data[at + n - 1] == ')')
            why = acl_syntax; /* in a file it would look like the end */
        else if (n > 0)
            why = acl_selector_apply(&s, acl, span_of(rule.data + at, n));
        at += n + 1;
    }
    if (why != NULL) {
        acl_selector_free(&s);
        return why;
    }
    u->selector = xrealloc(u->selector, (u->selectors + 1) * sizeof(*u->selector));
    u->selector[u->selectors++] = s;
    return NULL;
}

static const struct {
    const char *word;
    size_t flag;
    bool on;
} flag_words[] = {{"on", offsetof(struct acl_user, on), true},
                  {"off", offsetof(struct acl_user, on), false},
                  {"nopass", offsetof(struct acl_user, nopass), true},
                  {"resetpass", offsetof(struct acl_user, nopass), false},
                  {"skip-sanitize-payload", offsetof(struct acl_user, skip_sanitize), true},
                  {"sanitize-payload", offsetof(struct acl_user, skip_sanitize), false}};

const char *acl_user_apply(struct acl_user *u, const struct acl *acl, struct span rule) {
    if (rule.data == NULL || rule.len == 0) return acl_syntax;
    if (rule.data[0] == '(')
        return rule.len > 16 * ACL_WORD_MAX ? acl_too_long : selector_apply_words(u, acl, rule);
    if (rule.len > ACL_WORD_MAX) return acl_too_long;
    for (size_t i = 0; i < ARRAY_LEN(flag_words); i++) {
        if (!span_case_eq(rule, flag_words[i].word)) continue;
        *(bool *)((char *)u + flag_words[i].flag) = flag_words[i].on;
        if (flag_words[i].flag == offsetof(struct acl_user, nopass)) forget_passwords(u);
        return NULL;
    }
    if (span_case_eq(rule, "clearselectors")) {
        clear_selectors(u);
    } else if (span_case_eq(rule, "reset")) {
        user_reset(u, acl);
    } else if (strchr("><#!", rule.data[0]) != NULL) {
        return password_apply(u, rule.data[0], span_of(rule.data + 1, rule.len - 1));
    } else {
        return acl_selector_apply(&u->selector[0], acl, rule);
    }
    return NULL;
}

/* --- facts and checks --- */

const char *acl_user_name(const struct acl_user *u) {
    return u->name;
}
bool acl_user_on(const struct acl_user *u) {
    return u->on;
}
bool acl_user_nopass(const struct acl_user *u) {
    return u->nopass;
}
bool acl_user_skips_sanitize(const struct acl_user *u) {
    return u->skip_sanitize;
}
bool acl_user_unrestricted(const struct acl_user *u) {
    return u->unrestricted;
}
size_t acl_selectors(const struct acl_user *u) {
    return u->selectors;
}

bool acl_allows_command(const struct acl_user *u, size_t selector, unsigned command,
                        struct span first) {
    const struct acl_selector *s = &u->selector[selector];
    if (s->all_commands || s->bits[command / 64] >> command % 64 & 1) return true;
    for (size_t i = 0; i < s->firsts && first.data != NULL; i++)
        if (s->first[i].command == command && span_case_eq(first, s->first[i].arg)) return true;
    return false;
}

bool acl_allows_all_keys(const struct acl_user *u, size_t selector) {
    return u->selector[selector].all_keys;
}
bool acl_allows_all_channels(const struct acl_user *u, size_t selector) {
    return u->selector[selector].all_channels;
}

bool acl_allows_key(const struct acl_user *u, size_t selector, struct span key, unsigned need) {
    const struct acl_selector *s = &u->selector[selector];
    if (s->all_keys) return true;
    if (key.data == NULL && key.len > 0) return false;
    for (size_t i = 0; i < s->keys.n; i++)
        if ((s->keys.at[i].rights & need) == need && glob_match(s->keys.at[i].glob, key, NULL))
            return true;
    return false;
}

bool acl_allows_beginning(const struct acl_user *u, size_t selector, struct span beginning,
                          unsigned need) {
    const struct acl_selector *s = &u->selector[selector];
    if (s->all_keys) return true;
    if (beginning.data == NULL && beginning.len > 0) return false;
    for (size_t i = 0; i < s->keys.n; i++)
        if ((s->keys.at[i].rights & need) == need && glob_is_open(s->keys.at[i].glob) &&
            glob_match(s->keys.at[i].glob, beginning, NULL))
            return true;
    return false;
}

bool acl_allows_every_key(const struct acl_user *u, size_t selector, unsigned need) {
    const struct acl_selector *s = &u->selector[selector];
    if (s->all_keys) return true;
    for (size_t i = 0; i < s->keys.n; i++)
        if ((s->keys.at[i].rights & need) == need && glob_is_all(s->keys.at[i].glob)) return true;
    return false;
}

bool acl_allows_channel(const struct acl_user *u, size_t selector, struct span name, bool pattern) {
    const struct acl_selector *s = &u->selector[selector];
    if (s->all_channels) return true;
    if (name.data == NULL && name.len > 0) return false;
    for (size_t i = 0; i < s->channels.n; i++) {
        const struct acl_pattern *p = &s->channels.at[i];
        if (pattern ? span_eq(span_of(p->text, p->len), name) : glob_match(p->glob, name, NULL))
            return true;
    }
    return false;
}
