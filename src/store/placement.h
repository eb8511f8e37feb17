/* Which segments a new replica tries, in which order: strategies behind one interface. They order
 * candidates only; whether a segment may be used (state, host, AVOID) and has room is room.c's. */
#ifndef TARN_STORE_PLACEMENT_H
#define TARN_STORE_PLACEMENT_H

#include <stdbool.h>
#include <stdint.h>

struct store;
struct room_want;

#define PLACEMENT_DRAWS 8u

/* Segments in memory that give out space, for drawing by capacity. Made anew when segments
 * change. */
struct placement_table {
    bool valid;
    uint32_t n;
    uint32_t *id;
    uint64_t *upto; /* running sum of units */
    /* By machine: where its first one is, and where the next of the same, both + 1; 0: none */
    uint32_t hosts, *first, *next;
};

struct placement_ops {
    const char *name;
    bool local; /* the writer's host first */
    /* Orders the ids drawn, best first. */
    void (*order)(const struct store *s, uint32_t *id, unsigned n);
};

/* A run through the candidates: preferred, local, drawn, and at last all of them, or `most` from
 * anywhere on. Some come more than once. */
struct placement_iter {
    enum { PLACEMENT_PREFER, PLACEMENT_LOCAL, PLACEMENT_DRAWN, PLACEMENT_ALL, PLACEMENT_END } phase;
    uint32_t at, start, most, local; /* local: + 1, 0: none */
    unsigned n_drawn;
    uint32_t drawn[PLACEMENT_DRAWS];
};
void placement_begin(struct store *s, uint32_t most, struct placement_iter *it);
bool placement_next(struct store *s, const struct room_want *w, struct placement_iter *it,
                    uint32_t *id_p);
void placement_changed(struct store *s);
void placement_free(struct store *s);
const struct placement_ops *placement_find(const char *name);

#endif
