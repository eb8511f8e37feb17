/* Mappings of memory files that several processes share. */
#ifndef TARN_BASE_MAPPING_H
#define TARN_BASE_MAPPING_H

#include <stddef.h>

#define HUGE_PAGE ((size_t)2 << 20)

/* All of a file, from its beginning, as mmap(MAP_SHARED) does it, but so that huge pages of the
 * file can be huge pages of this mapping, too: it begins at a multiple of their size if there are
 * addresses for that. MAP_FAILED, and errno. */
void *mapping_shared(int fd, size_t size, int rights);

#endif
