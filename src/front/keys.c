#include "front/keys.h"

#include "base/assert.h"

bool key_valid(struct client *c, struct span key) {
    if (LIKELY(key.len - 1 < STORE_KEY_MAX)) return true;
    reply_error(c, "key must be 1 to %u bytes", STORE_KEY_MAX);
    return false;
}
