/* Transactions: what a client said between MULTI and EXEC, and the keys that it watches.
 *
 *   none ─ MULTI ─> queueing (CLIENT_MULTI) ─┬─ EXEC ─> running (CLIENT_EXEC) ─> none
 *     │                │ a command is refused ├─ EXEC after a watched key was written ─> none
 *   WATCH              v                      └─ DISCARD, RESET, end of the client ─> none
 *     │             failed: EXEC answers EXECABORT
 *
 * The arguments of queued commands are copied; those that arrived in memory of their own come along
 * with it. Together they have the same bound as any request: client-query-buffer-limit. EXEC is a
 * job (job.c), and the commands that are jobs themselves run inside of it. */
#ifndef TARN_FRONT_MULTI_H
#define TARN_FRONT_MULTI_H

#include "front/client.h"
#include "front/watch.h"

struct queued;
struct multi_chunk;

struct multi {
    struct watcher watcher;
    struct queued *first, *last;
    struct multi_chunk *chunk; /* the one being filled; older ones behind it */
    size_t count, bytes;
    size_t keys;    /* of all commands, at most */
    unsigned flags; /* of all commands queued: CMD_* */
    unsigned lacks; /* those that one of them has not */
    bool failed;    /* one could not be queued */
};

/* From dispatch, of a client in MULTI. cmd is queued and answered; false: it runs at once (EXEC and
 * its kin). */
bool multi_take(struct client *c, const struct cmd *cmd);
/* A command was refused before it could be queued. */
void multi_fail(struct client *c);
/* Would an argument of len bytes be too much for its queue? */
bool multi_over(const struct client *c, size_t len);
/* EXEC that cannot run ends the transaction, too, and is answered with why. */
void multi_abort(struct client *c, const char *why);
/* What was queued, with the commands of that time: the first (*at_p NULL), or the next. false:
 * there is none. */
bool multi_next(const struct client *c, const struct queued **at_p, const struct cmd **cmd_p,
                const struct span **argv_p, size_t *argc_p);
/* Commands and keys are forgotten. */
void multi_reset(struct client *c);
size_t multi_memory(const struct client *c);
/* What the queued commands do: for CLIENT PAUSE. */
unsigned multi_flags(const struct client *c);
/* How many keys they have, at most. */
size_t multi_keys_most(const struct client *c);
/* The flags that all of them have: what EXEC may do while the books are not all there. */
unsigned multi_common(const struct client *c);

#endif
