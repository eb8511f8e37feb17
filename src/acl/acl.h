/* Users: who may log in with what, and which commands, keys and channels each may use. The rules,
 * their grammar and the texts of its errors are those of Redis 7.0's ACL; what belongs to which
 * category is told from above.
 *
 *   acl ── users, sorted by name; "default" is always there
 *           └─ user: on or off, passwords (SHA-256 only), selectors
 *                     └─ selector: rules of commands in their order, key patterns, channel
 *                        patterns. The first one is the user's own, the others are those in
 *                        parentheses
 *
 * A request is allowed when one selector allows all of it. Which commands a selector allows is
 * worked out when its rules or the table of commands change, so that a check is one bit; the rules
 * themselves are kept as they were given, for a command that a module brings later.
 *
 * One thread. No I/O and no clock: files and connections are for the caller. Everything is
 * bounded. */
#ifndef TARN_ACL_ACL_H
#define TARN_ACL_ACL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/status.h"

#define ACL_USERS_MAX     4096u
#define ACL_NAME_MAX      256u  /* bytes of a user's name */
#define ACL_PASSWORDS_MAX 64u   /* of one user */
#define ACL_SELECTORS_MAX 64u   /* of one user, its own included */
#define ACL_PATTERNS_MAX  1024u /* of keys, and of channels, in one selector */
#define ACL_RULES_MAX     1024u /* of commands in one selector */
#define ACL_WORD_MAX                                                                               \
    4097u /* bytes of a rule (> and 4096 of requirepass); of a selector in () 16 times that */

/* --- the commands --- */

/* Bit i of a mask of categories. Redis' own, in its order, tarn's, and then those that were
 * added. */
#define ACL_CATEGORIES 23u /* without those */
unsigned acl_categories(void);
/* One more, for the commands of a module; rules may name it from now on, until the end of the
 * process. One that was added before is that one again. TARN_EEXISTS: there is one that was not.
 * TARN_ELIMIT: the mask is full. */
tarn_status acl_category_add(const char *name);
#define ACL_CATEGORY_NAME_MAX 32u
/* Without the @. NULL: there is none of that number. */
const char *acl_category_name(unsigned i);
/* Any case, without the @. false: no such category. */
bool acl_category_find(struct span name, unsigned *i_p);

/* A command of Redis that is not there, "xinfo" or "xinfo|stream"; any case. */
bool acl_absent(struct span name);
/* One of them has subcommands that are known. name is not empty. */
bool acl_absent_container(struct span name);

/* The number of a command is its place in the list. */
struct acl_command {
    const char *name; /* "get", "config", "config|get" */
    uint32_t categories;
    int parent;     /* number of the container, -1: none */
    bool container; /* has subcommands */
};

/* --- users --- */

struct acl;
struct acl_user;

/* With the default user, who may do everything without a password. */
struct acl *acl_create(void);
void acl_destroy(struct acl **acl_p);

/* The commands that exist; borrowed until the next call. Everything that follows from rules is
 * worked out anew; rules about commands that are not there have no effect. NULL: names of commands
 * are not checked, and nobody is ever allowed anything. */
void acl_set_commands(struct acl *acl, const struct acl_command *list, size_t n);

/* New users and selectors, and those that are reset, may use all channels (Redis:
 * acl-pubsub-default). False at first. */
void acl_set_new_channels(struct acl *acl, bool all);

/* Pointers to users stay valid until the user is deleted, whatever happens to its rules. */
struct acl_user *acl_find(const struct acl *acl, struct span name);
struct acl_user *acl_default(const struct acl *acl);
size_t acl_count(const struct acl *acl);
struct acl_user *acl_at(const struct acl *acl, size_t i); /* by name */
const char *acl_user_name(const struct acl_user *u);
bool acl_user_on(const struct acl_user *u);
bool acl_user_nopass(const struct acl_user *u);
/* One of its selectors allows everything: nothing else has to be asked. */
bool acl_user_unrestricted(const struct acl_user *u);
/* The right password of a user that is on. Takes the same time for every wrong one. */
bool acl_user_login(const struct acl_user *u, struct span password);
/* One of its passwords is this one. */
bool acl_user_has_password(const struct acl_user *u, struct span password);

/* Why rules were refused. */
struct acl_fault {
    const char *why; /* static text of Redis, "Syntax error" */
    bool unknown;    /* a command or category that does not exist */
    bool unmatched;  /* a parenthesis is not closed: why is NULL */
    struct buf rule; /* which one; freed by the caller. A password is not in it */
};
void acl_fault_free(struct acl_fault *f);

/* Changes the user, or makes one that may do nothing and changes that: all rules, or none. NULL: *f
 * says why. Parentheses may be spread over several words. Rules come as words of a command or a
 * file. */
struct acl_user *acl_set(struct acl *acl, struct span name, const struct span *rules, size_t n,
                         struct acl_fault *f);
/* Can names be those of users? "..." of the error text, or NULL. */
const char *acl_name_fault(struct span name);
/* false: there is none, or it is the default user. */
bool acl_delete(struct acl *acl, struct span name);
/* What acl_set would make of them, without the others' knowledge: for a look at what will be lost.
 * Freed by acl_user_free. */
struct acl_user *acl_user_try(const struct acl *acl, struct span name, const struct span *rules,
                              size_t n, struct acl_fault *f);
void acl_user_free(struct acl_user **u_p);

/* Makes acl's users those of *from_p, which is freed. Users that stay keep their address; who is
 * not in there is freed. */
void acl_replace(struct acl *acl, struct acl **from_p);

/* --- checks --- */

enum { ACL_READ = 1, ACL_WRITE = 2 };

/* Selectors are numbered; a request needs one that allows all of it. */
size_t acl_selectors(const struct acl_user *u);
/* first: the argument after the name, data NULL: none. */
bool acl_allows_command(const struct acl_user *u, size_t selector, unsigned command,
                        struct span first);
/* Keys and channels need no look at all. */
bool acl_allows_all_keys(const struct acl_user *u, size_t selector);
bool acl_allows_all_channels(const struct acl_user *u, size_t selector);
/* need: ACL_READ, ACL_WRITE, both, or 0: any right (Redis asks no more of EXISTS, TYPE and their
 * like). */
bool acl_allows_key(const struct acl_user *u, size_t selector, struct span key, unsigned need);
/* Every key that begins so, as one pattern shows: "...*". */
bool acl_allows_beginning(const struct acl_user *u, size_t selector, struct span beginning,
                          unsigned need);
/* Every key that is there or could be: a pattern "*" with these rights. */
bool acl_allows_every_key(const struct acl_user *u, size_t selector, unsigned need);
/* pattern: the name is one itself, and must have been given literally. */
bool acl_allows_channel(const struct acl_user *u, size_t selector, struct span name, bool pattern);

/* --- text --- */

/* "on #hash ~* &* +@all (...)": what ACL LIST shows after the name; acl_set understands it. */
void acl_describe(const struct acl_user *u, struct buf *out);
/* The parts of it. */
void acl_describe_commands(const struct acl_user *u, size_t selector, struct buf *out);
void acl_describe_keys(const struct acl_user *u, size_t selector, struct buf *out);
void acl_describe_channels(const struct acl_user *u, size_t selector, struct buf *out);
size_t acl_passwords(const struct acl_user *u);
void acl_password_hex(const struct acl_user *u, size_t i, char out[65]);
bool acl_user_skips_sanitize(const struct acl_user *u);

/* An ACL file: one "user NAME rules ..." a line. The whole of it, as text. */
void acl_write_file(const struct acl *acl, struct buf *out);
/* Reads one into an acl that is as acl_create made it. false: errors has a text for each line that
 * is wrong; name is for that. */
bool acl_read_file(struct acl *acl, const char *name, struct span text, struct buf *errors);

#endif
