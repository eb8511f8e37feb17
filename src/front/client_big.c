/* Memory of large arguments that go to no place of their own (the pool): one piece, for commands
 * want it so, which grows as their bytes come. It is mapped and not allocated, because growing then
 * moves page tables and no bytes, and what is given back goes in slices: pages of hundreds of
 * megabytes take longer than others should wait. */
#include <stdlib.h>
#include <sys/mman.h>
#include "base/assert.h"
#include "front/client.h"

#define BIG_FIRST   (64u * 1024)
#define UNMAP_SLICE (8u * 1024 * 1024)

static struct leftover {
    struct leftover *next;
    char *data;
    size_t len;
} * leftovers;
static uint64_t mapped; /* leftovers too */

static bool is_mapped(const struct big_arg *b) {
    return b->len > BIG_FIRST;
}

size_t client_big_next(const struct big_arg *b) {
    size_t cap = b->cap == 0 ? BIG_FIRST : b->cap * 2;
    return cap < b->len ? cap : b->len;
}

bool client_big_grow(struct big_arg *b) {
    size_t cap = client_big_next(b);
    if (!is_mapped(b)) {
        b->heap = xrealloc(b->heap, cap);
        b->cap = cap;
        return true;
    }
    void *p = b->cap == 0
                  ? mmap(NULL, cap, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                  : mremap(b->heap, b->cap, cap, MREMAP_MAYMOVE);
    if (p == MAP_FAILED) return false;
    mapped += cap - b->cap;
    b->heap = p;
    b->cap = cap;
    return true;
}

/* true: all of it is gone. */
static bool unmap_slice(char *data, size_t *len_p) {
    size_t n = min_u64(*len_p, UNMAP_SLICE), at = *len_p - n;
    int rc = munmap(data + at, n); /* from its end: what stays begins where it did */
    TARN_ASSERT(rc == 0);
    mapped -= n;
    *len_p = at;
    return at == 0;
}

void client_big_release(struct big_arg *b) {
    size_t len = b->cap;
    if (!is_mapped(b)) {
        free(b->heap);
    } else if (len > 0) {
        if (len > UNMAP_SLICE) {
            size_t odd = len % UNMAP_SLICE;
            struct leftover *l = xmalloc(sizeof(*l));
            if (odd > 0 && munmap(b->heap + (len - odd), odd) == 0) mapped -= odd;
            *l = (struct leftover){leftovers, b->heap, len - odd};
            leftovers = l;
        } else {
            unmap_slice(b->heap, &len);
        }
    }
    b->heap = NULL;
    b->cap = 0;
}

bool client_big_turn(void) {
    struct leftover *l = leftovers;
    if (LIKELY(l == NULL)) return false;
    if (unmap_slice(l->data, &l->len)) {
        leftovers = l->next;
        free(l);
    }
    return leftovers != NULL;
}

uint64_t client_big_mapped(void) {
    return mapped;
}
