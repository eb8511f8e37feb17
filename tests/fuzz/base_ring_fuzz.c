/* A ring whose other side is written by whoever: positions, flags and bytes. Ours reads and writes
 * in between: it stays within its memory, and what it gives is never more than there can be. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/ring.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The next number of the input, 0 behind its end. */
static uint32_t next(const uint8_t **data, size_t *size) {
    uint32_t v = 0;
    size_t n = min_u64(*size, sizeof(v));
    memcpy(&v, *data, n);
    *data += n;
    *size -= n;
    return v;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct ring r;
    int fd;
    if (!ring_create(&r, &fd)) abort();
    close(fd);
    while (size > 0) {
        uint32_t what = next(&data, &size), v = next(&data, &size);
        size_t len = v % (2 * RING_BYTES + 1);
        char *bytes = malloc(len + 1); /* so that one byte too many is seen */
        memset(bytes, 1, len);
        struct iovec iov[] = {{bytes, len / 3}, {bytes + len / 3, len - len / 3}};
        ssize_t n = 0;
        switch (what % 12) {
        case 0: r.in->head = v; break;
        case 1: r.in->head = r.in_at + v % (RING_BYTES + 2); break;
        case 2: r.out->tail = v; break;
        case 3: r.out->tail = r.out_at - v % (RING_BYTES + 2); break;
        case 4: r.in->full = r.out->sleeps = v; break;
        case 5: r.in->tail = r.out->head = r.in->sleeps = r.out->full = v; break; /* ours */
        case 6: r.in->bytes[v % RING_BYTES] = 7; break;
        case 7: n = ring_read(&r, iov, 2); break;
        case 8: n = ring_write(&r, iov, 2); break;
        case 9: (void)ring_calls(&r, v & 1 ? RING_READ : RING_WRITE); break;
        case 10: TARN_ASSERT((ring_sleep(&r, v % 4) & ~(v % 4)) == 0); break;
        default: ring_wake(&r);
        }
        TARN_ASSERT(n <= RING_BYTES && n <= (ssize_t)len);
        TARN_ASSERT(n >= 0 || errno == EAGAIN || errno == EPROTO);
        TARN_ASSERT(r.out_at - r.out_tail <= RING_BYTES);
        free(bytes);
    }
    ring_close(&r);
    return 0;
}
