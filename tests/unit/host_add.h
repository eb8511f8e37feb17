/* A segment of a host, opened and served in one step. */
#ifndef TARN_TESTS_HOST_ADD_H
#define TARN_TESTS_HOST_ADD_H

#include "host/host.h"

static inline tarn_status host_segment_add(struct host *h, const struct host_segment_config *config,
                                           uint32_t id, uint32_t segment_epoch,
                                           const char **why_p) {
    unsigned slot;
    tarn_status s = host_segment_open(h, config, &slot, why_p);
    return s == TARN_OK ? host_segment_serve(h, slot, id, segment_epoch) : s;
}

#endif
