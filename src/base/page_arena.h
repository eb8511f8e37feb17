/* A reserved range of addresses that becomes memory as it is needed and never moves: what lets
 * books name records and blocks by 32-bit numbers. Reserved without access, made accessible in
 * steps. */
#ifndef TARN_BASE_PAGE_ARENA_H
#define TARN_BASE_PAGE_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include "base/crew.h"

/* Does not move between init and free. */
struct page_arena {
    char *base;
    size_t reserved, ready; /* bytes */
    size_t quiet;           /* to grow so far needs nothing done */
    bool ahead;             /* PAGES_AHEAD */
    /* Up to here a thread was told to touch pages; the piece it is at. */
    size_t touched, touch_from, touch_to;
    struct crew_job touching;
};

enum {
    /* in large pages where the system has them; the last one may be more than is usable */
    PAGES_HUGE = 1,
    /* One that has grown to 8 MiB has a quarter more, up to 8 MiB, touched ahead, by a thread that
     * all of a program share: what is written first finds its page there, which takes a virtual
     * machine milliseconds where the page is a large one. It is not to be freed in a child that was
     * forked meanwhile. */
    PAGES_AHEAD = 2,
};

/* how: PAGES_*. Of an address space that is limited (ulimit -v) at most a sixteenth is reserved,
 * so that others find room in it. */
bool page_arena_init(struct page_arena *a, size_t reserve, unsigned how);
void page_arena_free(struct page_arena *a);
/* Makes the first size bytes usable (zero-filled at first). false: no memory, or beyond the
 * reservation. */
bool page_arena_grow(struct page_arena *a, size_t size);
/* Gives the pages of a range back to the system; all of it reads as zero afterwards. */
void page_arena_discard(struct page_arena *a, size_t offset, size_t size);

#endif
