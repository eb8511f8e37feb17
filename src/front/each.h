/* Work in slices: the keys of a request one by one, or the steps of a walk. The command says what
 * is done with one of them; the loop around it, the work it may do in a slice, the prefetching of
 * the books' cache lines and the way to the heap, for those that need a second slice, are here.
 *
 *   each_run ─> one(at 0) ─ ON ─> one(at 1) ─ ON ─> ... ─ at n, or OVER ─> end
 *                   ^   └─ AGAIN, or no work left: the next slice, or asleep (job.runnable) */
#ifndef TARN_FRONT_EACH_H
#define TARN_FRONT_EACH_H

#include "front/cmd.h"
#include "wire/options.h"

/* What one says: at is done; it needs more, of this slice nothing; it was the last. */
enum each_next { EACH_ON, EACH_AGAIN, EACH_OVER };

#define EACH_ENDLESS SIZE_MAX /* n of a walk: until one says that it is over */
enum { EACH_WINDOW = 32 };

/* The first member of the command's own state, which holds no span of the arguments: they move
 * between slices. */
struct each {
    struct job job; /* close is the command's */
    /* Number at of n. It costs a unit of work, and what it takes from the budget itself. */
    enum each_next (*one)(struct client *c, struct each *each, unsigned *budget);
    void (*end)(struct client *c, struct each *each); /* NULL: all has been answered */
    size_t n, at;
    size_t first, width; /* key i is argv[first + i * width]; width 0: these are not keys */
    /* private: the hashes of the next keys, with their cache lines on the way */
    size_t from, count;
    uint64_t hash[EACH_WINDOW];
};

/* As the last act of a command. The state of size bytes lies on its stack: job_run. */
void each_run(struct client *c, struct each *each, size_t size);
/* The same for a state on the heap, which others may point to from the start. */
void each_start(struct client *c, struct each *each);

/* Its keys: each is the first of width arguments. */
static inline void each_keys(struct each *each, struct wire_list keys, size_t width) {
    each->n = keys.n;
    each->first = keys.at;
    each->width = width;
}
/* Where the arguments of the one it is at begin: an index, or there. */
static inline size_t each_index(const struct each *each) {
    return each->first + each->at * each->width;
}
static inline const struct span *each_args(const struct client *c, const struct each *each) {
    return &c->argv[each_index(each)];
}
void each_prefetch(const struct client *c, struct each *each, size_t i);
/* The hash of key i. */
static inline uint64_t each_hash(const struct client *c, struct each *each, size_t i) {
    if (i - each->from >= each->count) each_prefetch(c, each, i);
    return each->hash[i - each->from];
}

#endif
