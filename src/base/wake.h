/* A number in an eventfd, for those who wait until there is one. */
#ifndef TARN_BASE_WAKE_H
#define TARN_BASE_WAKE_H

#include <errno.h>
#include <stdint.h>
#include <unistd.h>

static inline void wake_say(int fd) {
    uint64_t one = 1;
    while (write(fd, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
}

static inline void wake_empty(int fd) {
    uint64_t number;
    while (read(fd, &number, sizeof(number)) < 0 && errno == EINTR) {
    }
}

#endif
