/* What the memory allocator says of itself. jemalloc is linked to the binaries, not to tests and
 * sanitizer builds, so its functions are looked for when they are needed. */
#ifndef TARN_BASE_HEAP_H
#define TARN_BASE_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include "base/buf.h"

struct heap_figures {
    size_t allocated, active, resident; /* bytes; equal where the allocator tells one figure only */
};
void heap_get_figures(struct heap_figures *figures_p);
/* "jemalloc-5.3.0" or "libc". */
const char *heap_allocator(void);
/* Appends the allocator's own report. */
void heap_report(struct buf *out);
/* Its own thread gives free pages back, and not who frees. false: it has none. */
bool heap_background(bool on);
/* Gives free pages back to the system. */
bool heap_purge(void);

#endif
