#include "base/heap.h"

#include <malloc.h>
#include <stdint.h>
#include <stdio.h>

/* Of jemalloc's manual; weak, so that a program without it links. */
extern int mallctl(const char *name, void *oldp, size_t *oldlenp, void *newp, size_t newlen)
    __attribute__((weak));
extern void malloc_stats_print(void (*write)(void *arg, const char *text), void *arg,
                               const char *opts) __attribute__((weak));
#define JEMALLOC_ALL_ARENAS 4096u /* MALLCTL_ARENAS_ALL */

/* AddressSanitizer's allocator answers mallinfo with zeroes. */
extern size_t __sanitizer_get_current_allocated_bytes(void) __attribute__((weak));

static size_t figure(const char *name) {
    size_t v = 0, n = sizeof(v);
    return mallctl(name, &v, &n, NULL, 0) == 0 ? v : 0;
}

void heap_get_figures(struct heap_figures *figures_p) {
    if (mallctl != NULL) {
        uint64_t epoch = 1;
        size_t n = sizeof(epoch);
        mallctl("epoch", &epoch, &n, &epoch, n); /* its figures are snapshots; take a new one */
        figures_p->allocated = figure("stats.allocated");
        figures_p->active = figure("stats.active");
        figures_p->resident = figure("stats.resident");
        return;
    }
    size_t bytes;
    if (__sanitizer_get_current_allocated_bytes != NULL) {
        bytes = __sanitizer_get_current_allocated_bytes();
    } else {
        struct mallinfo2 m = mallinfo2();
        bytes = m.uordblks + m.hblkhd;
    }
    figures_p->allocated = figures_p->active = figures_p->resident = bytes;
}

const char *heap_allocator(void) {
    static char text[64];
    const char *version = NULL;
    size_t n = sizeof(version);
    if (mallctl == NULL || mallctl("version", &version, &n, NULL, 0) != 0) return "libc";
    snprintf(text, sizeof(text), "jemalloc-%.*s", (int)strcspn(version, "-"), version);
    return text;
}

static void add_text(void *arg, const char *text) {
    buf_append_str(arg, text);
}

void heap_report(struct buf *out) {
    if (malloc_stats_print != NULL)
        malloc_stats_print(add_text, out, NULL);
    else
        buf_append_str(out, "No figures: this build has the C library's allocator.");
}

bool heap_background(bool on) {
    if (mallctl == NULL) return !on;
    return mallctl("background_thread", NULL, NULL, &on, sizeof(on)) == 0;
}

bool heap_purge(void) {
    char name[32];
    if (mallctl == NULL) return malloc_trim(0) >= 0;
    snprintf(name, sizeof(name), "arena.%u.purge", JEMALLOC_ALL_ARENAS);
    return mallctl(name, NULL, NULL, NULL, 0) == 0;
}
