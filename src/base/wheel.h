/* A hierarchical timing wheel (Varghese and Lauck 1987): O(1) add, move and remove; one tick is one
 * millisecond of whatever clock the caller passes. Five levels of 64, 32, 32, 32 and 32 slots;
 * later dues are parked in the last level. */
#ifndef TARN_BASE_WHEEL_H
#define TARN_BASE_WHEEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct wheel_node {
    struct wheel_node *prev, *next; /* NULL when not in a wheel */
    uint64_t due;                   /* ms */
};

struct wheel;

struct wheel *wheel_create(uint64_t now_ms);
void wheel_destroy(struct wheel **wheel_p); /* nodes still in it are not touched, only lost */
/* Adds or moves node. A due in the past fires at the next wheel_pop. */
void wheel_set(struct wheel *w, struct wheel_node *node, uint64_t due_ms);
void wheel_remove(struct wheel *w, struct wheel_node *node); /* no-op when not in it */
static inline bool wheel_pending(const struct wheel_node *node) {
    return node->next != NULL;
}
/* The next node due at now_ms or before, taken out of the wheel; NULL when none is left. Work per
 * call is bounded by budget slot steps and cascaded nodes; when it runs out NULL comes back with
 * *more_p = true. Never fires early. The order of dues is kept only roughly. A clock that steps
 * back (wall time) is followed: by more than a second at the price of placing all nodes anew. */
struct wheel_node *wheel_pop(struct wheel *w, uint64_t now_ms, unsigned *budget, bool *more_p);
/* A lower bound of the time until the next due, at most limit_ms. */
uint64_t wheel_next_ms(const struct wheel *w, uint64_t now_ms, uint64_t limit_ms);
size_t wheel_count(const struct wheel *w);

#endif
