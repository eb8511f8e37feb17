#include "base/slot.h"

#include "base/crc16.h"

struct span slot_tag(struct span key) {
    const char *open = key.len > 0 ? memchr(key.data, '{', key.len) : NULL;
    if (open == NULL) return key;
    size_t rest = key.len - (size_t)(open + 1 - key.data);
    const char *close = rest > 0 ? memchr(open + 1, '}', rest) : NULL;
    return close == NULL || close == open + 1 ? key : span_of(open + 1, (size_t)(close - open - 1));
}

uint32_t slot_of_other(struct slot_last *last, struct span key) {
    struct span tag = slot_tag(key);
    size_t before = (size_t)(tag.data - key.data), len = before + tag.len + 1;
    last->len = before == 0 || len > SLOT_HEAD_MAX ? 0 : (uint8_t)len;
    if (last->len > 0) memcpy(last->head, key.data, len);
    last->slot = (uint16_t)(crc16(tag) & (SLOT_COUNT - 1));
    return last->slot;
}

uint32_t slot_of_key(struct span key) {
    return crc16(slot_tag(key)) & (SLOT_COUNT - 1);
}
