/* The names with the most hits, misses and bytes, of any number of names, in bounded memory:
 * Space-Saving (Metwally, Agrawal, El Abbadi, "Efficient Computation of Frequent and Top-k Elements
 * in Data Streams", ICDT 2005). Each of TOP_SLOTS places counts a name; a name without a place
 * takes that of the smallest, with its count as the error it may be over by. So a name that has
 * more than total / TOP_SLOTS has a place for sure, and no count is too low or over by more than
 * its error.
 *
 * Counts are halved every TOP_HALF_MS, so that what was popular yesterday makes room.
 * One thread. Time is an argument. */
#ifndef TARN_STORE_TOP_H
#define TARN_STORE_TOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"

#define TOP_SLOTS    64u
#define TOP_NAME_MAX 64u
#define TOP_HALF_MS  600000u

struct top;

struct top_entry {
    char name[TOP_NAME_MAX]; /* its first bytes; not terminated */
    uint32_t name_len;
    uint64_t count, error; /* count - error <= its true count <= count */
};

struct top *top_create(void);
void top_destroy(struct top **top_p);
/* name: the part of it behind TOP_NAME_MAX bytes does not count. */
void top_add(struct top *t, struct span name, uint64_t n, uint64_t now_ms);
/* Up to max of them, the largest first; returns how many. */
size_t top_get(const struct top *t, struct top_entry *entries, size_t max);
uint64_t top_total(const struct top *t); /* of all names, halved as they are */
void top_reset(struct top *t);
uint64_t top_memory(void); /* bytes that one takes */

#endif
