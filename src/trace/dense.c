#include "trace/dense.h"

#include <stdlib.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/rng.h"

/* The slot that has key, or where it would go. */
static struct dense_slot *dense_probe(const struct dense *d, uint64_t key) {
    size_t at = (size_t)mix64(key) & (d->cap - 1);
    while (d->slots[at].number != 0 && d->slots[at].key != key) at = (at + 1) & (d->cap - 1);
    return &d->slots[at];
}

static void dense_grow(struct dense *d) {
    struct dense old = *d;
    d->cap = old.cap == 0 ? 64 : 2 * old.cap;
    d->slots = xcalloc(d->cap, sizeof(*d->slots));
    for (size_t i = 0; i < old.cap; i++)
        if (old.slots[i].number != 0) *dense_probe(d, old.slots[i].key) = old.slots[i];
    free(old.slots);
}

uint32_t dense_of(struct dense *d, uint64_t key, bool *new_p) {
    if (2 * ((size_t)d->n + 1) > d->cap) dense_grow(d); /* at most half of the slots are taken */
    struct dense_slot *slot = dense_probe(d, key);
    *new_p = slot->number == 0;
    if (*new_p) {
        TARN_ASSERT(d->n < UINT32_MAX - 2);
        *slot = (struct dense_slot){.key = key, .number = ++d->n};
    }
    return slot->number - 1;
}

uint32_t dense_find(const struct dense *d, uint64_t key) {
    if (d->cap == 0) return UINT32_MAX;
    const struct dense_slot *slot = dense_probe(d, key);
    return slot->number == 0 ? UINT32_MAX : slot->number - 1;
}

void dense_free(struct dense *d) {
    free(d->slots);
    *d = (struct dense){0};
}
