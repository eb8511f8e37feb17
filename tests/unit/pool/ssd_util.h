/* What the tests of the ssd tier share. */
#ifndef TARN_TESTS_POOL_SSD_UTIL_H
#define TARN_TESTS_POOL_SSD_UTIL_H

#include "tier_util.h"

#include "pool/ssd_format.h"
#include "pool/ssd_io.h"

UNUSED static struct tier_config config(uint64_t size) {
    return (struct tier_config){.path = test_dir, .size = size, .direct = true, .create = true};
}

UNUSED static struct tier *open_tier(const struct tier_config *c) {
    struct tier *t = NULL;
    const char *why = "";
    tarn_status s = tier_open("ssd", c, &t, &why);
    if (s != TARN_OK) fprintf(stderr, "%s\n", why);
    CHECK_EQ(s, TARN_OK);
    return t;
}

UNUSED static struct tier *reopen(struct tier *t, const struct tier_config *c) {
    tier_close(&t);
    return open_tier(c);
}

UNUSED static int open_disk(int flags) {
    char path[300];
    snprintf(path, sizeof(path), "%s/tarn.ssd", test_dir);
    int fd = open(path, flags | O_CLOEXEC);
    CHECK(fd >= 0);
    return fd;
}

#endif
