/* Values of the stress tests: the first bytes say which key, generation and size it is, and all
 * others follow from those, so that any byte of any value can be checked without knowing what was
 * written when. */
#ifndef TARN_TESTS_STRESS_VALUE_H
#define TARN_TESTS_STRESS_VALUE_H

#include <stddef.h>
#include <stdint.h>

#define VALUE_HEAD 24u /* key, generation, size */

uint64_t value_mix(uint64_t x);
void value_fill(char *data, uint64_t key, uint64_t generation, size_t size);
/* Looks at bytes [offset, offset + len) of a value of that size: where the first wrong word is, -1:
 * nowhere. */
int64_t value_wrong_at(const char *data, uint64_t key, uint64_t generation, size_t size,
                       size_t offset, size_t len);

#endif
