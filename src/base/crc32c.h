/* CRC-32C (Castagnoli, reflected 0x82F63B78, initial and final complement), chosen at run time from
 * the CPU's instructions: on x86-64 VPCLMULQDQ on 512-bit vectors or SSE4.2 in three streams, on
 * arm64 crc32c in three streams or one; else a table. Every form takes and returns the finished
 * value, so crc32c(crc32c(0, a), b) is the CRC of a followed by b. Any alignment. Thread-safe. */
#ifndef TARN_BASE_CRC32C_H
#define TARN_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

uint32_t crc32c(uint32_t crc, const void *data, size_t len);
/* Copies len bytes and returns the CRC of what was written to dst, reading src once. No overlap.
 * Uses non-temporal stores for large copies. */
uint32_t crc32c_copy(uint32_t crc, void *dst, const void *src, size_t len);
/* The same for one of many that are copied together: from a page on it goes past the cache, which
 * all of them would not fit into. Other threads may be told of them after crc32c_past_end, which
 * waits for their stores: once for all, as for each page it takes a quarter of the copy's time.
 * next: what is copied then, about as long, which comes into the cache meanwhile; NULL: nothing, or
 * too much for that. */
uint32_t crc32c_copy_past(uint32_t crc, void *dst, const void *src, size_t len, const void *next);
void crc32c_past_end(void);
/* CRC of A followed by B from crc(A), crc(B) and the length of B. O(log len). */
uint32_t crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t len_b);
/* "vpclmulqdq", "sse4.2", "pmull", "crc32" or "table". */
const char *crc32c_impl(void);
/* Tests: use a given implementation; 0 when this CPU lacks it. */
int crc32c_force(const char *impl);

#endif
