/* A value on its way from wherever it lies to a client, inside a job: pieces go out as they arrive,
 * and no more are fetched than the client takes.
 *
 * Nothing is said before the first piece is there and right; so a value that cannot be had is a
 * miss. Once the header is out there is no way back: if no replica is left then, the connection is
 * closed. */
#ifndef TARN_INBAND_VALUE_REPLY_H
#define TARN_INBAND_VALUE_REPLY_H

#include "inband/value_read.h"

struct value_reply { /* zero-initialised is closed */
    struct value_read *read;
    struct job *job; /* is woken when there is more to do */
    uint64_t len, sent;
    bool begun; /* the header is out */
};
/* The bytes [from, from + len) of o, len > 0. claim as in value_read_options. */
void value_reply_open(struct client *c, struct value_reply *v, struct object *o, uint64_t from,
                      uint64_t len, struct remote_claim *claim, struct job *job);
enum value_reply_state {
    VALUE_REPLY_WAIT, /* the job should sleep */
    VALUE_REPLY_DONE,
    VALUE_REPLY_MISS,   /* nothing was said */
    VALUE_REPLY_BROKEN, /* the client is about to be closed: sleep */
};
enum value_reply_state value_reply_step(struct client *c, struct value_reply *v);
/* Has the first piece arrived, or is it certain that none will? Before value_reply_step, for those
 * who want to know first. */
bool value_reply_known(struct value_reply *v);
void value_reply_close(struct value_reply *v);

#endif
