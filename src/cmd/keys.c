#include "cmd/keys.h"

#include <inttypes.h>
#include "base/assert.h"
#include "cmd/config.h"

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

bool batch_count(struct client *c, size_t step, size_t *n_p) {
    uint64_t n;
    if (!arg_range(c, 1, "n", 1, server.config->max_batch_keys, &n)) return false;
    if ((c->argc - 2) / step < n) {
        reply_error(c, "n is %" PRIu64 ", but fewer than %" PRIu64 " arguments follow", n,
                    n * step);
        return false;
    }
    *n_p = n;
    return true;
}

bool option_has_value(struct client *c, size_t index, const char *name) {
    if (index + 1 < c->argc) return true;
    reply_error(c, "%s needs a value", name);
    return false;
}

bool option_number(struct client *c, size_t *at_p, const char *name, uint64_t min, uint64_t max,
                   uint64_t *value_p) {
    if (!option_has_value(c, *at_p, name)) return false;
    if (!arg_range(c, *at_p + 1, name, min, max, value_p)) return false;
    *at_p += 2;
    return true;
}

void option_unknown(struct client *c, size_t index) {
    struct span s = c->argv[index];
    reply_error(c, "unknown option '%.*s'", (int)min_u64(s.len, 64), s.data);
}
