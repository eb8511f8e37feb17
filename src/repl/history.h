/* Which stream this is, and how far it has come. As in Redis: a stream has an id of 40 hex digits
 * and counts its bytes; who becomes master begins a new id, and remembers up to where the old one
 * is the same stream. */
#ifndef TARN_REPL_HISTORY_H
#define TARN_REPL_HISTORY_H

#include <stdbool.h>
#include <stdint.h>

#include "repl/backlog.h"

#define REPL_ID_LEN 40

struct repl_history {
    char id[REPL_ID_LEN + 1];
    char id2[REPL_ID_LEN + 1]; /* zeroes: none */
    uint64_t offset;           /* bytes so far */
    int64_t second;            /* the first offset that is not id2's; -1 */
};

/* A new id, no old one; the offset stays. */
void repl_history_renew(struct repl_history *h);
/* The stream goes on under this id (NULL: a new one, of who becomes master), and is known so far by
 * the old one, too. */
void repl_history_shift(struct repl_history *h, const char *id);
/* This is the stream of a master from now on. */
void repl_history_adopt(struct repl_history *h, const char *id, uint64_t offset);

/* May somebody who has everything of the stream id before byte number next (the first one is 1) go
 * on with this one? */
bool repl_history_continues(const struct repl_history *h, const struct repl_backlog *b,
                            const char *id, uint64_t next);
/* A random one; the mark of a snapshot, too. */
void repl_new_id(char id[REPL_ID_LEN + 1]);
bool repl_id_valid(const char *id, unsigned len);

#endif
