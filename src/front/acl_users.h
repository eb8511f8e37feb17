/* Users and the clients that are them: who a connection is, what it may do, and what happens when
 * that changes. The rules themselves are in src/acl.
 *
 * A client whose user may do everything has `unrestricted` set, and dispatch asks nothing else. For
 * all others each request is held against the selectors of the user: the command, its keys by the
 * specs of the command table, its channels. */
#ifndef TARN_FRONT_ACL_USERS_H
#define TARN_FRONT_ACL_USERS_H

#include "acl/acl.h"
#include "front/client.h"

extern struct acl *acl_users;

/* After table_init, and before table_free. */
void acl_users_init(void);
void acl_users_deinit(void);
/* Users of the configuration or the ACL file. false: logged; the server must not start. */
bool acl_users_load(void);
/* What begins as this server's users do: its commands, the password of requirepass for the default
 * user. */
void acl_users_begin(struct acl *fresh);
/* fresh takes the place of what there is, and is freed. me: the client that asked, NULL: none. */
void acl_users_replace(struct acl **fresh_p, struct client *me);
/* Would these rules alone make a user that is as u? */
bool acl_users_same(const struct acl_user *u, const struct span *rules, size_t n);
/* Commands came or went. */
void acl_users_table_changed(void);
/* The default user gets the password of requirepass, or none. */
void acl_users_requirepass(void);
/* acl-pubsub-default has changed. */
void acl_users_pubsub_default(void);
/* requirepass is forgotten when it is not the default user's password any more. */
void acl_users_settle(void);

/* --- clients --- */

/* As new: the default user, logged in where that needs no password. */
void acl_client_reset(struct client *c);
/* false: wrong user or password. */
bool acl_client_login(struct client *c, struct span user, struct span password);
/* The request under way is refused whatever its user may do in the end: a part of it was not taken.
 * false: it is over. */
void acl_client_refuse(struct client *c, bool refuse);
/* Of everyone who is u, after its rules have changed: what they may do, and subscriptions that are
 * theirs no more. */
void acl_user_changed(struct acl_user *u);
/* What grants follow from: whether u is on, its commands and keys. Appends. Before a change; and
 * then with what there was: when u may do less than before, its clients that hold grants are
 * closed, and the grants end at every host. */
void acl_user_rights(const struct acl_user *u, struct buf *out);
void acl_user_rights_changed(const struct acl_user *u, const struct buf *before,
                             const struct client *me);
/* u is about to go: who is it is nobody, and closed. me: the client that asked, NULL: none. */
void acl_user_gone(struct acl_user *u, struct client *me);

/* --- checks --- */

/* Of two refusals the larger one is told, as in Redis. */
enum acl_verdict {
    ACL_GRANTED,
    ACL_DENIED_COMMAND,
    ACL_DENIED_KEY,
    ACL_DENIED_AUTH,
    ACL_DENIED_CHANNEL
};

/* May u run this? The arity is right. *at_p: the argument that is the reason, when it is a key or a
 * channel; argc: all keys. */
enum acl_verdict acl_check(const struct acl_user *u, const struct cmd *cmd, const struct span *argv,
                           size_t argc, size_t *at_p);
/* The name of what u may not run there: the command's, or "pinhard" where that is what he lacks. */
const char *acl_denied_name(const struct acl_user *u, const struct cmd *cmd,
                            const struct span *argv, size_t argc);
/* Whose share of the hard pins this client uses: the same number for the same user in every
 * process. */
uint64_t acl_pin_owner(const struct client *c);
/* A large argument is about to come behind argv: false when the request will be refused whatever
 * else it says, and needs no bytes of it for that. */
bool acl_check_early(const struct acl_user *u, const struct span *argv, size_t argc);
/* May this client run the command of that name ("segment|attach"), whatever the arguments? */
bool acl_client_may(const struct client *c, const char *name);

/* --- the log of refusals: acl_log.c --- */

/* cmd NULL: a wrong password for that user. */
void acl_log_note(const struct client *c, enum acl_verdict verdict, const struct cmd *cmd,
                  size_t at, struct span user);
void acl_log_trim(void);
void acl_log_reset(void);

/* --- the configuration: users.c --- */

/* "Error in user declaration ...", "Error loading ACLs ...": freed by the caller. NULL: done. */
char *acl_file_read(const char *path, struct acl *into);
char *acl_file_write(const char *path, const struct acl *acl);
/* Is the default user what requirepass says, and nothing else? */
bool acl_default_is_plain(void);

/* For config_users. */
extern const struct config_users_ops acl_users_rewrite;

#endif
