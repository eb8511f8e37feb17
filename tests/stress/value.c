#include "value.h"

#include <string.h>

uint64_t value_mix(uint64_t x) {
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static uint64_t word_of(uint64_t key, uint64_t generation, size_t size, size_t at) {
    uint64_t head[VALUE_HEAD / 8] = {key, generation, size};
    if (at < VALUE_HEAD) return head[at / 8];
    return value_mix(key * UINT64_C(0x9e3779b97f4a7c15) +
                     generation * UINT64_C(0xd1b54a32d192ed03) + at / 8);
}

void value_fill(char *data, uint64_t key, uint64_t generation, size_t size) {
    for (size_t at = 0; at < size; at += 8) {
        uint64_t w = word_of(key, generation, size, at);
        memcpy(data + at, &w, size - at < 8 ? size - at : 8);
    }
}

int64_t value_wrong_at(const char *data, uint64_t key, uint64_t generation, size_t size,
                       size_t offset, size_t len) {
    for (size_t i = 0; i < len;) {
        size_t at = offset + i, in_word = at % 8, n = 8 - in_word < len - i ? 8 - in_word : len - i;
        uint64_t w = word_of(key, generation, size, at);
        if (memcmp(data + i, (char *)&w + in_word, n) != 0) return (int64_t)at;
        i += n;
    }
    return -1;
}
