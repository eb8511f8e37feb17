/* Batches as columns: arrays of numbers in, items out, and results back into arrays. Pure copying
 * of numbers; what a caller with ctypes or the like would do key by key, and slowly. */
#include "client/client.h"

/* What newer callers know and we do not is past the end of our struct; what we know and older
 * callers do not is zero. */
static tarn_status copy_columns(const tarn_columns *in, tarn_columns *out) {
    *out = (tarn_columns){0};
    if (in == NULL || in->size < offsetof(tarn_columns, pieces))
        return fail(TARN_EINVAL,
                    "columns: no struct, or its size is not set (sizeof(tarn_columns))");
    memcpy(out, in, in->size < sizeof(*out) ? in->size : sizeof(*out));
    if (out->n > 0 && (out->keys == NULL || out->key_lens == NULL))
        return fail(TARN_EINVAL, "columns: %zu keys, but no keys or no key_lens", out->n);
    return TARN_OK;
}

/* Lengths are summed before anything is pointed at: a wrong one would have keys run over the
 * end. */
static tarn_status columns_check_keys(const tarn_columns *c) {
    uint64_t sum = 0;
    for (size_t i = 0; i < c->n; i++) {
        if (c->key_lens[i] == 0 || c->key_lens[i] > TARN_KEY_MAX)
            return fail(TARN_EINVAL, "columns: key %zu has %llu bytes; a key has 1 to %d", i,
                        (unsigned long long)c->key_lens[i], TARN_KEY_MAX);
        sum += c->key_lens[i];
    }
    if (sum != c->keys_len)
        return fail(TARN_EINVAL, "columns: key_lens add up to %llu, keys_len says %zu",
                    (unsigned long long)sum, c->keys_len);
    return TARN_OK;
}

static tarn_status columns_check_memory(const tarn_columns *c, const struct iovec *iov) {
    if (c->n_pieces == 0 && c->pieces == NULL) return TARN_OK;
    if (c->n_pieces > 0 && (c->addresses == NULL || c->sizes == NULL))
        return fail(TARN_EINVAL, "columns: %zu pieces, but no addresses or no sizes", c->n_pieces);
    for (size_t i = 0; i < c->n_pieces; i++) {
        if (c->addresses[i] == 0 && c->sizes[i] > 0)
            return fail(TARN_EINVAL, "columns: piece %zu has %llu bytes at address 0", i,
                        (unsigned long long)c->sizes[i]);
    }
    if (c->pieces == NULL) {
        if (c->n_pieces == c->n) return TARN_OK;
        return fail(TARN_EINVAL,
                    "columns: %zu pieces for %zu keys: one each, or pieces says how many",
                    c->n_pieces, c->n);
    }
    if (iov == NULL && c->n_pieces > 0)
        return fail(TARN_EINVAL, "columns: pieces need room in iov, %zu of them", c->n_pieces);
    uint64_t sum = 0;
    for (size_t i = 0; i < c->n; i++) sum = add_sat(sum, c->pieces[i]);
    if (sum != c->n_pieces)
        return fail(TARN_EINVAL, "columns: pieces add up to %llu, n_pieces says %zu",
                    (unsigned long long)sum, c->n_pieces);
    return TARN_OK;
}

static void *address_at(uint64_t address) {
    return (void *)(uintptr_t)address;
}

/* The memory of item i: a single piece in the item itself, several in iov from next on. Returns the
 * next free one. */
static size_t item_memory(const tarn_columns *c, size_t i, tarn_item *item, struct iovec *iov,
                          size_t next) {
    size_t count = c->pieces == NULL ? c->n_pieces > 0 : (size_t)c->pieces[i];
    if (count == 1) {
        item->buffer = address_at(c->addresses[next]);
        item->buffer_len = (size_t)c->sizes[next];
    } else if (count > 1) {
        for (size_t k = next; k < next + count; k++)
            iov[k] = (struct iovec){address_at(c->addresses[k]), (size_t)c->sizes[k]};
        item->iov = iov + next;
        item->n_iov = count;
    }
    return next + count;
}

tarn_status tarn_columns_items(const tarn_columns *columns, tarn_item *items, struct iovec *iov) {
    tarn_columns c;
    tarn_status status = copy_columns(columns, &c);
    if (status == TARN_OK) status = columns_check_keys(&c);
    if (status == TARN_OK) status = columns_check_memory(&c, iov);
    if (status != TARN_OK) return status;
    if (items == NULL && c.n > 0) return fail(TARN_EINVAL, "columns: no room for %zu items", c.n);
    const char *key = c.keys;
    size_t next = 0;
    for (size_t i = 0; i < c.n; i++) {
        items[i] = (tarn_item){.key = key, .key_len = (size_t)c.key_lens[i]};
        key += c.key_lens[i];
        if (c.offsets != NULL) items[i].offset = c.offsets[i];
        if (c.wants != NULL) items[i].want = c.wants[i];
        next = item_memory(&c, i, &items[i], iov, next);
    }
    return TARN_OK;
}

tarn_status tarn_columns_keys(const tarn_columns *columns, tarn_key *keys) {
    tarn_columns c;
    tarn_status status = copy_columns(columns, &c);
    if (status == TARN_OK) status = columns_check_keys(&c);
    if (status != TARN_OK) return status;
    if (keys == NULL && c.n > 0) return fail(TARN_EINVAL, "columns: no room for %zu keys", c.n);
    const char *key = c.keys;
    for (size_t i = 0; i < c.n; i++) {
        keys[i] = (tarn_key){key, (size_t)c.key_lens[i]};
        key += c.key_lens[i];
    }
    return TARN_OK;
}

void tarn_items_columns(const tarn_item *items, size_t n, int64_t *results, int32_t *statuses,
                        uint64_t *value_sizes, uint64_t *versions) {
    for (size_t i = 0; i < n; i++) {
        const tarn_item *item = &items[i];
        if (results != NULL)
            results[i] = item->status == TARN_OK ? (int64_t)item->got : item->status;
        if (statuses != NULL) statuses[i] = item->status;
        if (value_sizes != NULL) value_sizes[i] = item->value_size;
        if (versions != NULL) versions[i] = item->version;
    }
}
