/* What is not now, but will be: room that ghosts or a disk's queue hold back (TARN_ELATER of the
 * books), nodes that are awaited.
 *
 * PUTSTART answers TRYAGAIN or LOADING, and its client comes again. In-band commands have no such
 * answer (an error instead of a value puts some clients out of step for good): they wait, their
 * client blocked, until it is there; after inband-wait-timeout the connection is closed.
 *
 *   the books say TARN_ELATER, or TARN_ENOSPACE while nodes are awaited ─> room_status
 *      ├─ PUTSTART ───────────────────> later_reply
 *      └─ string_write, and reads ────> later_sleep ─┬─ later_wake, or the time that
 *                                                    │  store_later_ms says ─> tries again
 *                                                    └─ inband-wait-timeout ─> closed
 *
 * So whoever finds another reason to hold a put back returns TARN_ELATER from store_put_start or
 * _continue, makes store_later_ms say for how long, and calls later_wake when it is over
 * earlier. */
#ifndef TARN_INBAND_LATER_H
#define TARN_INBAND_LATER_H
#include <sys/queue.h>
#include "front/cmd.h"

/* A job that waits. Zero-initialised: it has not begun to. */
struct later {
    struct job *job; /* NULL: not asleep */
    LIST_ENTRY(later) link;
    uint64_t until_ms; /* of all its sleeps; 0: none so far */
};

/* What becomes of a put that the books refused. */
tarn_status room_status(tarn_status status);
/* Is it one that will be over (LOADING, TRYAGAIN)? */
bool later_is(tarn_status status);
/* Answers it, with the time that the books know. */
void later_reply(struct client *c, tarn_status status);

/* In-band commands wait at all: inband-wait-timeout is not 0. */
bool later_waits(void);
/* From its step, which then says false: the job sleeps until the time that the books know, or
 * later_wake. false: it has waited for inband-wait-timeout, and c is closed at the end of the turn;
 * it sleeps until then. */
bool later_sleep(struct later *l, struct client *c, struct job *job);
/* It is awake, or goes. No-op for one that does not sleep. */
void later_end(struct later *l);
/* Room or readiness may have come: all look again. */
void later_wake(void);

/* A command that cannot run yet, as replication_refusal says: it runs when it can. false: it is not
 * one that waits. */
bool later_begin(struct client *c, const struct cmd *cmd);

/* For INFO. */
struct later_figures {
    uint64_t waiting, waits, timeouts;
};
struct later_figures later_figures(void);

#endif
