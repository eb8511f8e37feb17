#include "base/mapping.h"

#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

static size_t to_pages(size_t size) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (size + page - 1) / page * page;
}

/* NULL: there is no room. Of what is reserved around it nothing is left. */
static void *mapping_align(int fd, size_t size, int rights) {
    size_t whole = to_pages(size);
    char *room = mmap(NULL, whole + HUGE_PAGE, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) return NULL;
    size_t before = -(uintptr_t)room % HUGE_PAGE;
    if (mmap(room + before, size, rights, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
        munmap(room, whole + HUGE_PAGE);
        return NULL;
    }
    if (before > 0) munmap(room, before);
    if (before < HUGE_PAGE) munmap(room + before + whole, HUGE_PAGE - before);
    return room + before;
}

void *mapping_shared(int fd, size_t size, int rights) {
    void *map = mmap(NULL, size, rights, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED || size < HUGE_PAGE || (uintptr_t)map % HUGE_PAGE == 0) return map;
    void *aligned = mapping_align(fd, size, rights);
    if (aligned == NULL) return map;
    munmap(map, size);
    return aligned;
}
