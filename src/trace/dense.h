/* Numbers of any size become 0, 1, 2 ... in the order in which they are first seen. An open table
 * that only grows; zeroed is empty. */
#ifndef TARN_TRACE_DENSE_H
#define TARN_TRACE_DENSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dense_slot {
    uint64_t key;
    uint32_t number; /* plus 1; 0: free */
};
struct dense {
    struct dense_slot *slots;
    size_t cap; /* a power of two */
    uint32_t n;
};

/* The number of key, a new one if it was not seen before. At most UINT32_MAX - 2 of them. */
uint32_t dense_of(struct dense *d, uint64_t key, bool *new_p);
/* UINT32_MAX: it was not seen. */
uint32_t dense_find(const struct dense *d, uint64_t key);
void dense_free(struct dense *d);

#endif
