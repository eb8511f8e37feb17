/* The last bytes of the stream, in a ring: a replica that was away for a moment gets what it
 * missed. */
#ifndef TARN_REPL_BACKLOG_H
#define TARN_REPL_BACKLOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

struct repl_backlog {
    char *ring; /* NULL: there is none */
    size_t size, len;
    size_t head; /* where the next byte goes */
};

/* Zero-initialised is none. size > 0; where there is no memory for that, it is smaller. */
void repl_backlog_create(struct repl_backlog *b, size_t size);
void repl_backlog_free(struct repl_backlog *b);
/* What fits stays: the newest. false: there is no memory for that, and nothing has changed. */
bool repl_backlog_resize(struct repl_backlog *b, size_t size);
void repl_backlog_clear(struct repl_backlog *b);
void repl_backlog_feed(struct repl_backlog *b, struct span bytes);
/* offset: of the stream, whose last bytes these are. Is every byte from number next on (the first
 * of a stream is 1) here? True also for the one that comes next. */
bool repl_backlog_holds(const struct repl_backlog *b, uint64_t offset, uint64_t next);
/* The newest n <= len bytes, in up to two pieces. Valid until the next feed. */
void repl_backlog_tail(const struct repl_backlog *b, size_t n, struct span piece[2]);

#endif
