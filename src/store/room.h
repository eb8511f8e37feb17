/* What room.c (the steps), window.c (the third one) and run.c share. */
#ifndef TARN_STORE_ROOM_H
#define TARN_STORE_ROOM_H

#include "store/books.h"

/* --- run.c --- */

/* Units of the run that values of this alignment can use, and from where. */
uint64_t run_aligned(const struct run *r, uint32_t align, uint64_t *start_p);
/* The block that contains address at, looking onwards from block id, whose offset is not behind it;
 * 0: the books have changed too much. */
block_id run_block_at(const struct store *s, block_id id, uint64_t at);
/* Keeps the n longest (by what is usable of them), longest first. */
void runs_keep_longest(struct run *best, unsigned *n, struct run r, uint32_t align);
uint64_t runs_total(const struct run *best, unsigned n, uint32_t align);
/* Cuts the runs down to exactly units. Returns how many are used. */
unsigned runs_cut(struct run *best, unsigned n, uint32_t align, uint64_t units);
/* Takes a run that is all free by now. 0: no memory for the block. */
block_id run_take(struct store *s, const struct run *r);
/* o has space inside one of the runs. */
bool runs_hold(const struct store *s, const struct object *o, uint32_t segment,
               const struct run *runs, unsigned n);

/* --- room.c --- */

/* w may use that segment, and what is free or evictable there would be enough if it lay well. */
bool room_could_fit(const struct store *s, const struct room_want *w, uint32_t id);

/* --- window.c --- */

/* w becomes the planner. */
tarn_status window_begin(struct store *s, struct room_want *w, unsigned *budget);
tarn_status window_step(struct store *s, struct room_want *w, unsigned *budget);

#endif
