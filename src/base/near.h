/* "Did you mean ...": of a list of words the one that is nearest to what was typed, by how many
 * letters are missing, surplus, wrong or swapped with their neighbour (optimal string alignment).
 * One in short words, up to three in long ones; case does not count.
 *
 * Safe to use on what a client sent: the typed word is copied up to NEAR_LEN_MAX bytes, longer
 * ones are near to nothing, and a word that is offered costs at most 7 x NEAR_LEN_MAX steps,
 * most of them less than 20. */
#ifndef TARN_BASE_NEAR_H
#define TARN_BASE_NEAR_H

#include "base/buf.h"

#define NEAR_LEN_MAX 40u

struct near {
    char typed[NEAR_LEN_MAX];
    size_t len;
    unsigned limit;   /* only what is nearer than this is taken */
    const char *word; /* the nearest so far; NULL: none */
};

void near_begin(struct near *n, struct span typed);
/* word is borrowed for as long as n->word is used. Of two that are as near the first one stays. */
void near_offer(struct near *n, const char *word);

#endif
