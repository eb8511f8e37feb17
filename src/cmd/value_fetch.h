/* Bytes of a value into memory of the command, wherever they lie. For commands that compute with a value rather than
 * send it; the caller bounds the length. Inside a job. */
#ifndef TARN_CMD_VALUE_FETCH_H
#define TARN_CMD_VALUE_FETCH_H

#include "cmd/value_read.h"

struct value_fetch {         /* zero-initialised is closed, and has fetched nothing */
    struct value_read *read; /* from elsewhere; NULL: from here, or all is there */
    struct store_hold *hold; /* from here: keeps the pieces */
    struct span pieces[STORE_EXTENTS_MAX];
    size_t n_pieces, piece, piece_at;
    char *bytes;
    uint64_t len, at;
    struct job *job;
    bool failed;
    bool runnable; /* after a step: there is more to do at once */
};
/* The bytes [from, from + len) of o, len > 0. job is woken when there is more to do. */
void value_fetch_open(struct value_fetch *f, const struct client *c, struct object *o, uint64_t from,
                      uint64_t len, struct job *job);
/* true: it is over. */
bool value_fetch_step(struct value_fetch *f, unsigned *budget);
/* What was fetched; empty when the value could not be had. */
struct span value_fetch_bytes(const struct value_fetch *f);
void value_fetch_close(struct value_fetch *f);

#endif
