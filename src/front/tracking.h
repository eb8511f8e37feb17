/* CLIENT TRACKING: a client that keeps what it has read hears when that is no longer true. The
 * server remembers the keys that a connection has read, tells of each of them once (a push message
 * `invalidate`), and of all at once when they become too many.
 *
 * Told late rather than early: a message follows the reply that it is about, never the other way
 * round. */
#ifndef TARN_FRONT_TRACKING_H
#define TARN_FRONT_TRACKING_H

#include "front/client.h"
#include "store/store.h"

/* Keys of one connection. One more, and it is told to forget them all; so are others when all of
 * them have tracking-table-max-keys. */
#define TRACKING_KEYS_MAX 10000u
/* Keys of one command. More are not remembered: behind its reply it is told to forget them. */
#define TRACKING_COMMAND_MAX 1000u

void tracking_on(struct client *c);
void tracking_off(struct client *c);
/* Of a client with tracking on: cmd is about to run with c->argv. */
void tracking_note_keys(struct client *c, const struct cmd *cmd);
static inline void tracking_note(struct client *c, const struct cmd *cmd) {
    if (__builtin_expect(c->io->tracker != NULL, 0)) tracking_note_keys(c, cmd);
}

/* Wants news from the books. */
bool tracking_listens(void);
void tracking_news(const struct store_news *news);
/* The books go, or follow: whoever relied on them is cut off, and asks anew. */
void tracking_end(void);

size_t tracking_count(void); /* clients */
size_t tracking_keys(void);  /* of all of them */
size_t tracking_memory(const struct client *c);

#endif
