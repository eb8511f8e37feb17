#include "base/slot.h"

#include <string.h>

#include "base/crc16.h"

struct span slot_tag(struct span key) {
    const char *open = key.len > 0 ? memchr(key.data, '{', key.len) : NULL;
    if (open == NULL) return key;
    size_t rest = key.len - (size_t)(open + 1 - key.data);
    const char *close = rest > 0 ? memchr(open + 1, '}', rest) : NULL;
    return close == NULL || close == open + 1 ? key : span_of(open + 1, (size_t)(close - open - 1));
}

uint32_t slot_of_key(struct span key) {
    return crc16(slot_tag(key)) & (SLOT_COUNT - 1);
}
