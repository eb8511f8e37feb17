/* What commands on many keys share: prefetching look-ups in groups. */
#ifndef TARN_CMD_KEYS_H
#define TARN_CMD_KEYS_H

#include "cmd/cmd.h"

/* --- look-ups in groups --- */

/* The hashes of the next keys of a batch, with their cache lines on the way. Zero-initialised is
 * ready. It holds no span: the arguments move between slices. */
enum { KEY_WINDOW = 32 };
struct key_window {
    size_t from, count;
    uint64_t hash[KEY_WINDOW];
};
/* Loads the group that starts at key pos of n; key i is argv[first + i * step]. */
void key_window_load(struct key_window *w, const struct client *c, size_t first, size_t step,
                     size_t pos, size_t n);
/* The hash of key pos. */
static inline uint64_t key_window_hash(struct key_window *w, const struct client *c, size_t first,
                                       size_t step, size_t pos, size_t n) {
    if (pos - w->from >= w->count) key_window_load(w, c, first, step, pos, n);
    return w->hash[pos - w->from];
}
/* 1 .. STORE_KEY_MAX bytes; answers the error otherwise (in its place in an array). */
bool key_valid(struct client *c, struct span key);
/* The key at argv[2], without an access; nil is answered when it is not there. */
struct object *object_argument(struct client *c);

/* Counts work down; a slice that is over budget by its last step is no error. */
static inline void spend(unsigned *budget, size_t units) {
    *budget = units < *budget ? *budget - (unsigned)units : 0;
}

#endif
