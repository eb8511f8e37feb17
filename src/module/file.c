/* A look at the file before the dynamic linker gets it: it maps what the program headers promise,
 * and a file that is shorter than that ends the process with SIGBUS. */
#include "module/loader.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEADERS_MAX 256u

#if defined(__x86_64__)
#define OWN_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define OWN_MACHINE EM_AARCH64
#else
#define OWN_MACHINE EM_NONE /* the dynamic linker will tell */
#endif

static bool read_at(int fd, void *to, size_t len, uint64_t offset) {
    return pread(fd, to, len, (off_t)offset) == (ssize_t)len;
}

/* NULL: as it should be. */
static const char *elf_fault(int fd, uint64_t size) {
    ElfW(Ehdr) e;
    bool whole = read_at(fd, &e, sizeof(e), 0);
    if (size < SELFMAG || (whole && memcmp(e.e_ident, ELFMAG, SELFMAG) != 0))
        return "is no shared object";
    if (!whole) return "is no shared object, or was cut off";
    if (e.e_ident[EI_CLASS] != (__ELF_NATIVE_CLASS == 64 ? ELFCLASS64 : ELFCLASS32) ||
        (OWN_MACHINE != EM_NONE && e.e_machine != OWN_MACHINE))
        return "was built for another kind of machine";
    if (e.e_type != ET_DYN) return "is no shared object";
    if (e.e_phentsize != sizeof(ElfW(Phdr)) || e.e_phnum == 0 || e.e_phnum > HEADERS_MAX)
        return "is a damaged shared object";
    for (unsigned i = 0; i < e.e_phnum; i++) {
        ElfW(Phdr) p;
        if (!read_at(fd, &p, sizeof(p), e.e_phoff + (uint64_t)i * sizeof(p))) return "was cut off";
        if (p.p_type != PT_LOAD && p.p_type != PT_DYNAMIC) continue;
        if (p.p_filesz > size || p.p_offset > size - p.p_filesz) return "was cut off";
    }
    return NULL;
}

bool module_file_check(const char *path, char *error, size_t error_cap) {
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) != 0) {
        snprintf(error, error_cap, "%s: %s", path, strerror(errno));
        if (fd >= 0) close(fd);
        return false;
    }
    const char *fault =
        S_ISREG(st.st_mode) ? elf_fault(fd, (uint64_t)st.st_size) : "is no regular file";
    close(fd);
    if (fault != NULL) snprintf(error, error_cap, "%s %s", path, fault);
    return fault == NULL;
}
