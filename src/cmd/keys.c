#include "cmd/keys.h"

#include "base/assert.h"

void key_window_load(struct key_window *w, const struct client *c, size_t first, size_t step,
                     size_t pos, size_t n) {
    TARN_ASSERT(pos < n);
    w->from = pos;
    w->count = min_u64(n - pos, KEY_WINDOW);
    struct span keys[KEY_WINDOW];
    for (size_t i = 0; i < w->count; i++) keys[i] = c->argv[first + (pos + i) * step];
    store_prefetch(server.store, keys, w->count, w->hash);
}

bool key_valid(struct client *c, struct span key) {
    if (LIKELY(key.len - 1 < STORE_KEY_MAX)) return true;
    reply_error(c, "key must be 1 to %u bytes", STORE_KEY_MAX);
    return false;
}
