/* Replies that bypass the writer, for families that compose many fields by hand. */
#ifndef TARN_FRONT_REPLY_H
#define TARN_FRONT_REPLY_H

#include "front/cmd.h"

/* Appends finished RESP. */
void reply_raw(struct client *c, const void *data, size_t len);
/* So many bytes of the reply, for the caller to write at once. */
char *reply_room(struct client *c, size_t len);

/* Bytes within a reply that leave without a copy (short ones are copied, and released at once).
 * release(owner) is called once, when they are sent or never will be. */
void reply_lent(struct client *c, struct span bytes, void (*release)(void *owner), void *owner);
void reply_bulk_header(struct client *c, size_t len);

/* What a command changed is counted here: errors by code, for INFO. */
void reply_errorstats(void (*fn)(void *arg, const char *code, uint64_t count), void *arg);
void reply_errorstats_reset(void);
/* Error replies since start. */
uint64_t reply_errors(void);

#endif
