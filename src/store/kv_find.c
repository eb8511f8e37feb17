#include "store/kv_find.h"

#include <string.h>
#include "base/assert.h"

static uint64_t hash_at(const struct kv_finder *f, size_t group, uint32_t place) {
    return ((uint64_t)place + 1) * f->groups[group].unit / f->hash_unit - 1;
}

struct span kv_find_key(const struct kv_finder *f, size_t group, uint32_t place,
                        char out[STORE_KEY_MAX]) {
    const char *at = (const char *)f->names + group * f->names_step;
    struct span name = *(const struct span *)(const void *)at;
    struct span hash = f->hashes[hash_at(f, group, place)];
    TARN_ASSERT(name.len + hash.len <= STORE_KEY_MAX);
    memcpy(out, name.data, name.len);
    memcpy(out + name.len, hash.data, hash.len);
    return span_of(out, name.len + hash.len);
}

static void row_prefetch(struct kv_finder *f, const struct store *s, const struct kv_want *w) {
    static char text[KV_FIND_AHEAD][STORE_KEY_MAX];
    struct span keys[KV_FIND_AHEAD];
    uint32_t n = 0;
    for (int64_t place = w->place;
         n < KV_FIND_AHEAD && n < w->row && place >= 0 && place < f->groups[w->group].places;
         place += w->step, n++) {
        if (f->make != NULL) f->make(f->arg, hash_at(f, w->group, (uint32_t)place) + 1);
        keys[n] = kv_find_key(f, w->group, (uint32_t)place, text[n]);
    }
    store_prefetch(s, keys, n, f->hash);
    f->ahead = *w;
    f->ahead_n = n;
}

struct object *kv_find_part(struct kv_finder *f, struct store *s, const struct kv_want *w,
                            struct span *key_p, uint64_t *hash_p) {
    static char text[STORE_KEY_MAX];
    int64_t at = (int64_t)w->place - f->ahead.place;
    bool known = f->ahead_n > 0 && w->group == f->ahead.group && w->step == f->ahead.step &&
                 at % w->step == 0 && at / w->step >= 0 && at / w->step < f->ahead_n;
    if (!known) row_prefetch(f, s, w);
    *hash_p = f->hash[known ? at / w->step : 0];
    *key_p = kv_find_key(f, w->group, w->place, text);
    return store_find_hashed(s, *key_p, *hash_p);
}
