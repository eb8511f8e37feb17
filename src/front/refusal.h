/* Why a value was not taken, in words: what is there, what holds it, what was asked for, and what
 * to do about it. */
#ifndef TARN_FRONT_REFUSAL_H
#define TARN_FRONT_REFUSAL_H
#include "front/cmd.h"

/* TARN_ENOSPACE. code: "OOM" of in-band commands, else "NOSPACE". */
void refusal_no_room(struct client *c, const char *code, uint64_t size);

/* TARN_EQUOTA of a put. owner: of its hard pin. */
struct refusal_put {
    struct span key;
    uint64_t size;
    uint32_t replicas;
    bool pinned_hard;
    uint64_t owner;
};
void refusal_quota(struct client *c, const struct refusal_put *put);
/* TARN_EQUOTA of store_pin. */
void refusal_pin(struct client *c, struct span key, uint64_t owner);

#endif
