/* What the files of this room share. */
#ifndef TARN_ACL_INTERNAL_H
#define TARN_ACL_INTERNAL_H

#include "acl/acl.h"
#include "base/glob.h"

#define ACL_MAGIC      0x61636c73u
#define ACL_USER_MAGIC 0x61636c75u
#define ACL_HASH_LEN   32u

/* Why a rule is refused: Redis' texts. */
extern const char acl_syntax[], acl_unknown[], acl_keys_closed[], acl_channels_closed[],
    acl_no_password[], acl_bad_hash[], acl_first_of_sub[], acl_too_many[], acl_too_long[];

struct acl_pattern {
    char *text;
    size_t len;
    unsigned rights; /* of keys */
    struct glob *glob;
};

struct acl_patterns {
    struct acl_pattern *at;
    size_t n;
};

/* The only first arguments with which a command may be called. */
struct acl_first {
    unsigned command;
    const char *arg; /* within a rule */
};

struct acl_selector {
    bool base_all; /* the rules take from everything; else they add to nothing */
    bool all_keys, all_channels;
    char **rule; /* "+get", "-@string", "+config|get", "+select|0": lower case */
    size_t rules;
    struct acl_patterns keys, channels;
    /* worked out of the rules and the table */
    bool all_commands;
    uint64_t *bits;
    struct acl_first *first;
    size_t firsts;
};

struct acl_user {
    uint32_t magic;
    char *name;
    size_t name_len;
    bool on, nopass, skip_sanitize, unrestricted;
    uint8_t (*password)[ACL_HASH_LEN];
    size_t passwords;
    struct acl_selector *selector; /* the first is the user's own */
    size_t selectors;
};

struct acl {
    uint32_t magic;
    struct acl_user **user; /* by name */
    size_t n;
    bool new_channels;                 /* selectors begin with all of them */
    bool default_read;                 /* a file had a line for the default user */
    const struct acl_command *command; /* NULL: not known */
    size_t commands;
};

/* --- selector.c --- */

void acl_selector_free(struct acl_selector *s);
void acl_selector_copy(struct acl_selector *to, const struct acl_selector *from);
/* One rule about commands, keys or channels. NULL: done; else why not. */
const char *acl_selector_apply(struct acl_selector *s, const struct acl *acl, struct span rule);
/* bits, first and all_commands. */
void acl_selector_compile(struct acl_selector *s, const struct acl *acl);
/* -1: no such command. */
int acl_command_find(const struct acl *acl, struct span name);

/* --- user.c --- */

struct acl_user *acl_user_create(struct span name);
struct acl_user *acl_user_clone(const struct acl_user *u);
/* One whole rule; a selector in parentheses is one rule. */
const char *acl_user_apply(struct acl_user *u, const struct acl *acl, struct span rule);
void acl_user_compile(struct acl_user *u, const struct acl *acl);
/* What from has becomes u's; from keeps its name only. */
void acl_user_take(struct acl_user *u, struct acl_user *from);
bool acl_has_blank(struct span s);

#endif
