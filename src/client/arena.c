/* Memory that lives as long as one call: answers, parts, slices. Blocks double; a reset keeps one
 * of ordinary size, so that a lane settles without malloc. */
#include <stdlib.h>

#include "base/assert.h"
#include "client/arena.h"
#include "client/client.h"

#define BLOCK_MIN  (64u << 10)
#define BLOCK_KEEP (4u << 20)

void arena_grow(struct arena *a, size_t size) {
    size_t cap = a->head == NULL ? BLOCK_MIN : a->head->cap * 2;
    if (cap > BLOCK_KEEP) cap = BLOCK_KEEP;
    if (cap < size) cap = size;
    struct arena_block *b = xmalloc(sizeof(*b) + cap);
    b->used = 0;
    b->cap = cap;
    b->next = a->head;
    a->head = b;
    a->total += cap;
}

struct arena_mark arena_mark(const struct arena *a) {
    return (struct arena_mark){.head = a->head, .used = a->head != NULL ? a->head->used : 0};
}

void arena_rewind(struct arena *a, struct arena_mark mark) {
    struct arena_block *last = a->head;
    if (last == mark.head) {
        if (last != NULL) last->used = mark.used;
        return;
    }
    while (last->next != mark.head) { /* the newest is the largest: it stays, for what comes next */
        struct arena_block *b = last->next;
        last->next = b->next;
        a->total -= b->cap;
        free(b);
    }
    last->used = 0;
}

void arena_reset(struct arena *a) {
    struct arena_block *keep = NULL;
    for (struct arena_block *b = a->head, *next; b != NULL; b = next) {
        next = b->next;
        if (keep == NULL && b->cap <= BLOCK_KEEP) {
            keep = b;
        } else {
            free(b);
        }
    }
    a->head = keep;
    a->total = keep == NULL ? 0 : keep->cap;
    if (keep != NULL) {
        keep->next = NULL;
        keep->used = 0;
    }
}

void arena_free(struct arena *a) {
    arena_reset(a);
    free(a->head);
    *a = (struct arena){0};
}
