/* What the commands on many keys share: prefetching look-ups in groups, options, text that goes to
 * the client in one piece. */
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

/* --- options --- */

/* argv[1] as the number of groups of step arguments that follow; the error has been answered on
 * false. */
bool batch_count(struct client *c, size_t step, size_t *n_p);
/* The value of the keyword at argv[index]: "ERR LEASE needs a value" when the arguments end
 * there. */
bool option_has_value(struct client *c, size_t index, const char *name);
/* A number behind a keyword; moves *at_p behind it. */
bool option_number(struct client *c, size_t *at_p, const char *name, uint64_t min, uint64_t max,
                   uint64_t *value_p);
/* Bytes as 2 * n hex digits of any case, and back (2 * n + 1 characters). false: it is something
 * else. */
/* "ERR unknown option '...'" */
void option_unknown(struct client *c, size_t index);

#endif
