/* Memory that lives as long as one call. */
#ifndef TARN_CLIENT_ARENA_H
#define TARN_CLIENT_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>
#include "base/iov.h"
#include "tarn.h"

struct arena_block {
    struct arena_block *next;
    size_t used, cap;
    _Alignas(16) char data[];
};
struct arena {
    struct arena_block *head;
    size_t total;
};
void arena_grow(struct arena *a, size_t size); /* by a block with room for it */
/* 16-byte aligned. */
static inline void *arena_alloc(struct arena *a, size_t size) {
    size = (size + 15) & ~(size_t)15;
    if (a->head == NULL || a->head->cap - a->head->used < size) arena_grow(a, size);
    void *p = a->head->data + a->head->used;
    a->head->used += size;
    return p;
}
void arena_reset(struct arena *a); /* keeps one block of ordinary size */
/* What was allocated since the mark goes. The same memory serves chunk after chunk of a batch,
 * while it is in the cache. */
struct arena_mark {
    struct arena_block *head;
    size_t used;
};
struct arena_mark arena_mark(const struct arena *a);
void arena_rewind(struct arena *a, struct arena_mark mark);
void arena_free(struct arena *a);

#endif
