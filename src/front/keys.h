/* What commands on many keys share: prefetching look-ups in groups. */
#ifndef TARN_FRONT_KEYS_H
#define TARN_FRONT_KEYS_H

#include "front/cmd.h"

/* --- keys --- */

/* 1 .. STORE_KEY_MAX bytes; answers the error otherwise (in its place in an array). */
bool key_valid(struct client *c, struct span key);
/* The key at argv[2], without an access; nil is answered when it is not there. */
struct object *object_argument(struct client *c);

/* Counts work down; a slice that is over budget by its last step is no error. */
static inline void spend(unsigned *budget, size_t units) {
    *budget = units < *budget ? *budget - (unsigned)units : 0;
}

#endif
