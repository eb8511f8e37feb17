#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

int file_open_new(const char *path, mode_t mode) {
    for (int i = 0; i < 2; i++) {
        int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
        if (fd >= 0 || errno != EEXIST) return fd;
        if (i == 0 && unlink(path) != 0 && errno != ENOENT) return -1;
    }
    return -1;
}
