/* What comes of a registration that somebody asks for, by a command or over HTTP: the same rules,
 * the same table (kept.h). */
#ifndef TARN_CONDUCTOR_ENROLL_H
#define TARN_CONDUCTOR_ENROLL_H

#include "conductor/engines.h"
#include "tarn_status.h"

/* Why not. */
struct refusal {
    const char *code;        /* of the error: "ERR", "LIMIT", "READONLY" */
    enum engine_field field; /* that is wrong; ENGINE_FIELDS: it is about none */
    tarn_status status;
    char text[1600];
};

/* The registration of that rank, or of another one of the engine; two_ranks_p: it is of another.
 * Borrowed until something is kept. false: there is none. */
bool enroll_find(struct span id, uint32_t rank, struct registration *x, bool *two_ranks_p);
/* It is registered, or it was and is heard again. false: why says what is wrong. */
bool enroll(const struct registration *x, struct refusal *why);
/* What could not be kept. */
void enroll_refuse_kept(struct refusal *why, tarn_status status);

#endif
