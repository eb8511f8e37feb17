/* Shared mappings where huge pages fit. */
#include "../test.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/mapping.h"

#define PAGE ((size_t)sysconf(_SC_PAGESIZE))

static int memory_file(size_t size) {
    int fd = memfd_create("mapping-test", MFD_CLOEXEC);
    CHECK(fd >= 0);
    CHECK_EQ(ftruncate(fd, (off_t)size), 0);
    return fd;
}

static void check_mapping(size_t size) {
    int fd = memory_file(size);
    char *a = mapping_shared(fd, size, PROT_READ | PROT_WRITE), *b;
    b = mapping_shared(fd, size, PROT_READ);
    CHECK(a != MAP_FAILED && b != MAP_FAILED && a != b);
    CHECK(size < HUGE_PAGE || (uintptr_t)a % HUGE_PAGE == 0);
    CHECK(size < HUGE_PAGE || (uintptr_t)b % HUGE_PAGE == 0);
    a[0] = 1;
    a[size - 1] = 2;
    CHECK(b[0] == 1 && b[size - 1] == 2);
    CHECK_EQ(munmap(a, size), 0);
    CHECK_EQ(munmap(b, size), 0);
    close(fd);
}

TEST(what_is_large_begins_with_a_huge_page) {
    check_mapping(PAGE);
    check_mapping(HUGE_PAGE);
    check_mapping(HUGE_PAGE + PAGE);
    check_mapping(10 * HUGE_PAGE + 3 * PAGE);
}

static size_t mapped_bytes(void) {
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    CHECK(f != NULL && fscanf(f, "%lu", &pages) == 1);
    fclose(f);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

TEST(nothing_stays_reserved) {
    size_t size = 4 * HUGE_PAGE + PAGE;
    int fd = memory_file(size);
    size_t before = mapped_bytes();
    void *known = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(known != MAP_FAILED);
    if (mapped_bytes() != before + size) SKIP("an emulator counts its own memory");
    CHECK_EQ(munmap(known, size), 0);
    enum { MAPS = 8 };
    void *map[MAPS];
    for (size_t i = 0; i < MAPS; i++) map[i] = mapping_shared(fd, size, PROT_READ);
    CHECK_EQ(mapped_bytes(), before + MAPS * size);
    for (size_t i = 0; i < MAPS; i++) CHECK_EQ(munmap(map[i], size), 0);
    CHECK_EQ(mapped_bytes(), before);
    close(fd);
}

TEST(what_cannot_be_mapped_says_so) {
    CHECK(mapping_shared(-1, HUGE_PAGE + PAGE, PROT_READ) == MAP_FAILED);
    CHECK_EQ(errno, EBADF);
}

TEST_MAIN()
