/* Ciphertext that a test has in hand, to a stream. */
#ifndef TARN_TESTS_TLS_FEED_H
#define TARN_TESTS_TLS_FEED_H

#include <string.h>

#include "tls/tls.h"

/* Returns how many bytes were taken. */
static inline size_t tls_feed(struct tls_stream *s, const void *data, size_t len) {
    size_t done = 0;
    while (done < len) {
        void *at;
        size_t space = tls_in_space(s, &at);
        if (space == 0) break;
        if (space > len - done) space = len - done;
        memcpy(at, (const char *)data + done, space);
        tls_in_added(s, space);
        done += space;
    }
    return done;
}

#endif
