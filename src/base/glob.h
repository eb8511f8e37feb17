/* Glob patterns as Redis reads them: * ? [abc] [^abc] [a-z] and \ to escape. Keys of KEYS, SCAN and
 * REMOVEMATCH, names of CONFIG GET, channels, rules of users.
 *
 * The textbook matcher recurses at every star and takes exponential time for "a*a*a*...b". Here a
 * pattern is compiled once; matching goes back to the last star only, which is enough because every
 * other element takes exactly one byte: at most length of the string x length of the pattern steps,
 * and no recursion. */
#ifndef TARN_BASE_GLOB_H
#define TARN_BASE_GLOB_H

#include <stdbool.h>
#include <stddef.h>
#include "base/buf.h"

struct glob;

/* Never fails: what is no valid class is taken as Redis takes it (an open '[' ends with the
 * pattern). */
struct glob *glob_create(struct span pattern, bool nocase);
void glob_destroy(struct glob **glob_p);
/* work_p may be NULL; the steps taken are added to it. */
bool glob_match(const struct glob *g, struct span s, size_t *work_p);
/* Matches everything: "*". */
bool glob_is_all(const struct glob *g);
/* What it matches it matches with anything behind that, too: "...*". */
bool glob_is_open(const struct glob *g);
/* For patterns that are used once. */
bool glob_match_once(struct span pattern, struct span s, bool nocase);

#endif
