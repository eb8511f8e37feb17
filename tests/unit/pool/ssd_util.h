/* What the tests of the ssd tier share. */
#ifndef TARN_TESTS_POOL_SSD_UTIL_H
#define TARN_TESTS_POOL_SSD_UTIL_H

#define TIER_KIND "ssd"
#include "tier_util.h"

#include "pool/ssd_format.h"
#include "pool/ssd_io.h"

UNUSED static struct tier_config config(uint64_t size) {
    return (struct tier_config){.path = test_dir, .size = size, .direct = true, .create = true};
}

UNUSED static int open_disk(int flags) {
    char path[300];
    snprintf(path, sizeof(path), "%s/tarn.ssd", test_dir);
    int fd = open(path, flags | O_CLOEXEC);
    CHECK(fd >= 0);
    return fd;
}

#endif
