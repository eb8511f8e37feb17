/* The server's own pool: src/server/embedded.c sets it up, rooms between look at it. */
#ifndef TARN_FRONT_EMBEDDED_H
#define TARN_FRONT_EMBEDDED_H

#include <stdbool.h>
#include <stdint.h>
#include "host/host.h"

struct embedded {
    struct host *host;     /* NULL when pool-size is 0 */
    uint8_t grant_key[16]; /* of its grants */
    struct {
        bool on;                                /* at the start, while nothing is put or read yet */
        uint64_t began_s, done, total, left_ms; /* wall time, bytes, an estimate */
    } populating;
};
extern struct embedded embedded;

#endif
