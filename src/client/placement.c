/* Where a value's bytes lie, as PUTSTART and GETREPLICAS answer it. What comes from the network is checked here, so that
 * the engine may rely on it: whole extents, in order, exactly the value's size, grants of the right length. */
#include "client/internal.h"

uint64_t placement_lease_end(uint64_t sent_ns, uint64_t lease_ms) {
    uint64_t margin = 1 + (lease_ms + 999) / 1000;
    return lease_ms > margin ? sent_ns / 1000000 + lease_ms - margin : 0;
}

static tarn_status broken(const char *what) {
    return fail(TARN_EPROTO, "the server's answer makes no sense: %s (is it of another version?)", what);
}

static bool decode_extent(const struct answer *e, struct engine_part *part) {
    uint64_t segment, epoch, offset, length;
    if (!answer_u64(answer_at(e, 0), &segment) || !answer_u64(answer_at(e, 1), &epoch) ||
        !answer_u64(answer_at(e, 2), &offset) || !answer_u64(answer_at(e, 3), &length)) {
        return false;
    }
    const struct answer *grant = answer_at(e, 4);
    bool granted = grant != NULL && grant->type == ANSWER_STRING && grant->len == GRANT_SIZE;
    if (segment > UINT32_MAX || epoch > UINT32_MAX || length == 0 || length > VALUE_MAX || !granted)
        return false;
    *part = (struct engine_part){
        .extent = {(uint32_t)segment, (uint32_t)epoch, offset, length},
        .grant = (const uint8_t *)grant->str,
        .sub_offset = 0,
        .sub_length = length,
    };
    return true;
}

/* One replica: ["memory", [extent, ...]]. */
static tarn_status decode_replica(struct arena *arena, const struct answer *replica, uint64_t size,
                                  struct placement *p) {
    const struct answer *tier = answer_at(replica, 0), *extents = answer_at(replica, 1);
    if (tier == NULL || tier->type != ANSWER_STRING || extents == NULL || extents->type != ANSWER_ARRAY) {
        return broken("a replica is [tier, [extent, ...]]");
    }
    if (strcmp(tier->str, "memory") != 0)
        return fail(TARN_ENOTFOUND, "replicas of tier %s cannot be read yet", tier->str);
    if (extents->len == 0 || extents->len > EXTENTS_MAX) return broken("number of extents");
    struct engine_part *parts = arena_alloc(arena, extents->len * sizeof(*parts));
    uint64_t total = 0;
    for (size_t i = 0; i < extents->len; i++) {
        if (!decode_extent(&extents->element[i], &parts[i])) return broken("an extent");
        total += parts[i].extent.length;
    }
    if (total != size) return broken("the extents do not add up to the size");
    p->parts = parts;
    p->n_parts = extents->len;
    return TARN_OK;
}

tarn_status placement_replica(struct arena *arena, struct placement *p, unsigned index) {
    tarn_status status = decode_replica(arena, answer_at(p->all, index), p->size, p);
    if (status == TARN_OK) p->replica = index;
    return status;
}

static tarn_status choose_replica(struct arena *arena, unsigned prefer, struct placement *p) {
    tarn_status status = TARN_ENOTFOUND;
    for (unsigned i = 0; i < p->replicas && status != TARN_OK; i++) {
        status = placement_replica(arena, p, (prefer + i) % p->replicas);
    }
    return status;
}

static tarn_status decode_inline(const struct answer *value, struct placement *p) {
    if (value == NULL || value->type != ANSWER_STRING || value->len != p->size) {
        return broken("neither a replica nor a value");
    }
    p->value = value->str;
    return TARN_OK;
}

tarn_status placement_of_get(struct arena *arena, const struct answer *a, uint64_t sent_ns, unsigned prefer,
                             struct placement *p) {
    *p = (struct placement){.crc = -1};
    if (a->type == ANSWER_NIL) return TARN_ENOTFOUND;
    tarn_status status = answer_check(a, "GETREPLICAS");
    if (status != TARN_OK) return status;
    const struct answer *crc = answer_at(a, 3), *replicas = answer_at(a, 4), *crcs = answer_at(a, 6);
    if (!answer_u64(answer_at(a, 0), &p->version) || !answer_u64(answer_at(a, 1), &p->size) ||
        !answer_u64(answer_at(a, 2), &p->lease_ms) || crc == NULL || crc->type != ANSWER_INTEGER ||
        replicas == NULL || replicas->type != ANSWER_ARRAY || p->size > VALUE_MAX ||
        crc->integer > UINT32_MAX) {
        return broken("GETREPLICAS");
    }
    p->crc = crc->integer < 0 ? -1 : crc->integer;
    p->lease_end = placement_lease_end(sent_ns, p->lease_ms);
    if (crcs != NULL && crcs->type == ANSWER_STRING &&
        crcs->len == (p->size + CRC_BLOCK - 1) / CRC_BLOCK * 4) {
        p->crcs = (const uint8_t *)crcs->str;
        p->n_crcs = crcs->len / 4;
    }
    if (replicas->len == 0) return decode_inline(answer_at(a, 5), p);
    p->all = replicas;
    p->replicas = (unsigned)replicas->len;
    return choose_replica(arena, prefer, p);
}

tarn_status placement_of_put(struct arena *arena, const struct answer *a, uint64_t size,
                             struct placement *p) {
    *p = (struct placement){.crc = -1, .size = size};
    if (a->type == ANSWER_NIL) return TARN_EEXISTS;
    tarn_status status = answer_check(a, "PUTSTART");
    if (status != TARN_OK) return status;
    const struct answer *replicas = answer_at(a, 1);
    if (!answer_u64(answer_at(a, 0), &p->token) || replicas == NULL || replicas->type != ANSWER_ARRAY) {
        return broken("PUTSTART");
    }
    p->all = replicas;
    p->replicas = (unsigned)replicas->len;
    if (p->replicas == 0) return size <= INLINE_MAX ? TARN_OK : broken("PUTSTART gave no space");
    return placement_replica(arena, p, 0);
}

size_t placement_slice(const struct engine_part *parts, size_t n_parts, uint64_t from, uint64_t len,
                       struct engine_part *out) {
    size_t used = 0;
    for (size_t i = 0; i < n_parts && len > 0; i++) {
        uint64_t whole = parts[i].extent.length;
        if (from >= whole) {
            from -= whole;
            continue;
        }
        out[used] = parts[i];
        out[used].sub_offset = from;
        out[used].sub_length = min_u64(whole - from, len);
        len -= out[used++].sub_length;
        from = 0;
    }
    return used;
}
