/* Where a value's bytes lie, as PUTSTART and GETREPLICAS answer it. What comes from the network is
 * checked here, so that the engine may rely on it: whole extents, in order, exactly the value's
 * size, grants of the right length. */
#include <limits.h>

#include "base/assert.h"
#include "client/client.h"
#include "client/placement.h"
#include "transport/place.h"

uint64_t placement_lease_end(uint64_t sent_ns, uint64_t lease_ms) {
    uint64_t margin = 1 + (lease_ms + 999) / 1000;
    return lease_ms > margin ? sent_ns / 1000000 + lease_ms - margin : 0;
}

static tarn_status answer_broken(const char *what) {
    return fail(TARN_EPROTO, "the server's answer makes no sense: %s (is it of another version?)",
                what);
}

static bool decode_extent(const struct answer *e, bool no_grant, struct engine_part *part) {
    uint64_t segment, epoch, offset, length;
    if (!answer_u64(answer_at(e, 0), &segment) || !answer_u64(answer_at(e, 1), &epoch) ||
        !answer_u64(answer_at(e, 2), &offset) || !answer_u64(answer_at(e, 3), &length)) {
        return false;
    }
    const struct answer *grant = answer_at(e, 4);
    if (grant == NULL || grant->type != ANSWER_STRING) return false;
    bool granted = grant->len == GRANT_SIZE, without = no_grant && grant->len == 0;
    if (segment > UINT32_MAX || epoch > UINT32_MAX || length == 0 || length > VALUE_MAX ||
        (!granted && !without))
        return false;
    *part = (struct engine_part){
        .extent = {(uint32_t)segment, (uint32_t)epoch, offset, length},
        .grant = granted ? (const uint8_t *)grant->str : NULL,
        .sub_offset = 0,
        .sub_length = length,
    };
    return true;
}

/* ["memory", [extent, ...]]; "ssd" is the same with one extent. */
static tarn_status decode_extents(struct arena *arena, const struct answer *extents, bool no_grant,
                                  uint64_t size, struct placed_replica *r) {
    if (extents->len == 0 || extents->len > EXTENTS_MAX) return answer_broken("number of extents");
    struct engine_part *parts = arena_alloc(arena, extents->len * sizeof(*parts));
    uint64_t total = 0;
    for (size_t i = 0; i < extents->len; i++) {
        if (!decode_extent(&extents->element[i], no_grant, &parts[i]) ||
            (parts[i].grant == NULL) != (parts[0].grant == NULL))
            return answer_broken("an extent");
        total += parts[i].extent.length;
    }
    if (total != size) return answer_broken("the extents do not add up to the size");
    r->parts = parts;
    r->n_parts = extents->len;
    return TARN_OK;
}

/* A server says which file; it shall not lead us astray in ours. */
static bool is_plain_path(const struct answer *path) {
    return path != NULL && path->type == ANSWER_STRING && path->len < PATH_MAX &&
           strlen(path->str) == path->len && path->str[0] == '/' &&
           strstr(path->str, "/../") == NULL;
}

/* ["file", [[path, size]]] */
static tarn_status decode_file(const struct answer *files, uint64_t size,
                               struct placed_replica *r) {
    const struct answer *file = answer_at(files, 0), *path = answer_at(file, 0);
    uint64_t bytes;
    if (files->len != 1 || !is_plain_path(path) || !answer_u64(answer_at(file, 1), &bytes)) {
        return answer_broken("a file is [path, size]");
    }
    if (bytes != size) return answer_broken("a file of another size");
    r->path = path->str;
    return TARN_OK;
}

static tarn_status decode_replica(struct arena *arena, const struct answer *answer, bool no_grant,
                                  uint64_t size, struct placed_replica *r) {
    const struct answer *tier = answer_at(answer, 0), *places = answer_at(answer, 1);
    if (tier == NULL || tier->type != ANSWER_STRING || places == NULL ||
        places->type != ANSWER_ARRAY) {
        return answer_broken("a replica is [tier, [place, ...]]");
    }
    *r = (struct placed_replica){.tier = REPLICA_MEMORY};
    if (strcmp(tier->str, "file") == 0) {
        r->tier = REPLICA_FILE;
        return decode_file(places, size, r);
    }
    if (strcmp(tier->str, "ssd") == 0) {
        r->tier = REPLICA_SSD;
    } else if (strcmp(tier->str, "memory") != 0) {
        return fail(TARN_ENOTFOUND, "replicas of tier %s cannot be read by this version",
                    tier->str);
    }
    return decode_extents(arena, places, no_grant, size, r);
}

static struct placed_replica *replicas_alloc(struct arena *arena, const struct answer *list) {
    return arena_alloc(arena, min_u64(list->len, REPLICAS_MAX) * sizeof(struct placed_replica));
}

/* Those that can be read, in the server's order. A file has neither lease nor epoch: without a CRC
 * nobody could tell what is in it. */
static tarn_status decode_readable(struct arena *arena, const struct answer *list, bool no_grant,
                                   struct placement *p) {
    tarn_status why = TARN_ENOTFOUND;
    p->replica = replicas_alloc(arena, list);
    for (size_t i = 0; i < list->len && p->replicas < REPLICAS_MAX; i++) {
        struct placed_replica *r = &p->replica[p->replicas];
        tarn_status status = decode_replica(arena, &list->element[i], no_grant, p->size, r);
        if (status == TARN_OK && r->tier == REPLICA_FILE && p->crc < 0) {
            status = fail(TARN_ENOTFOUND, "the value is on file, and has no CRC");
        }
        if (status == TARN_OK) p->replicas++;
        if (status != TARN_OK) why = status;
    }
    return p->replicas > 0 ? TARN_OK : why;
}

static tarn_status decode_inline(const struct answer *value, struct placement *p) {
    if (value == NULL || value->type != ANSWER_STRING || value->len != p->size ||
        p->size > INLINE_MAX) {
        return answer_broken("neither a replica nor a value");
    }
    p->value = value->str;
    return TARN_OK;
}

/* The short form: one replica, one extent. */
struct packed_replica {
    struct placed_replica replica;
    struct engine_part part;
};

static inline tarn_status decode_packed(struct arena *arena, const struct answer *a, bool no_grant,
                                        struct placement *p, struct place_packed *place) {
    bool granted = a->len == sizeof(*place);
    if (!granted && !(no_grant && a->len == PLACE_NO_GRANT_SIZE))
        return answer_broken("a packed place");
    memcpy(place, a->str, PLACE_NO_GRANT_SIZE);
    if (place->zero != 0 || (place->flags & ~(PLACE_HAS_CRC | PLACE_SUSPECT)) != 0 ||
        place->number > INT64_MAX || place->extent.length == 0 ||
        place->extent.length > VALUE_MAX) {
        return answer_broken("a packed place");
    }
    struct packed_replica *r = arena_alloc(arena, sizeof(*r));
    r->replica = (struct placed_replica){.tier = REPLICA_MEMORY, .parts = &r->part, .n_parts = 1};
    r->part = (struct engine_part){.extent = place->extent,
                                   .grant = granted ? (const uint8_t *)a->str + PLACE_NO_GRANT_SIZE
                                                    : NULL,
                                   .sub_length = place->extent.length};
    p->replica = &r->replica;
    p->replicas = 1;
    return TARN_OK;
}

/* What another master, or another life of this one, put there may have been overwritten without
 * these books knowing; and disks rot. Only the CRC tells, whatever the caller asked for. */
static tarn_status placement_judge(struct placement *p, bool suspect) {
    p->suspect = p->must_verify = suspect;
    for (unsigned i = 0; i < p->replicas; i++)
        p->must_verify |= p->replica[i].tier != REPLICA_MEMORY;
    if (!suspect || p->crc >= 0) return TARN_OK;
    return fail(TARN_ENOTFOUND, "the value was put under another master, and has no CRC");
}

static tarn_status packed_of_get(struct arena *arena, const struct answer *a, bool no_grant,
                                 uint64_t sent_ns, struct placement *p) {
    struct place_packed place;
    tarn_status status = decode_packed(arena, a, no_grant, p, &place);
    if (status != TARN_OK) return status;
    p->version = place.number;
    p->size = place.extent.length;
    p->lease_ms = place.lease_ms;
    p->lease_end = placement_lease_end(sent_ns, place.lease_ms);
    if (place.flags & PLACE_HAS_CRC) p->crc = place.crc;
    if (LIKELY((place.flags & PLACE_SUSPECT) == 0)) return TARN_OK;
    return placement_judge(p, true);
}

tarn_status placement_of_get(struct arena *arena, const struct answer *a, bool no_grant,
                             uint64_t sent_ns, struct placement *p) {
    *p = (struct placement){.crc = -1};
    if (LIKELY(a->type == ANSWER_STRING)) return packed_of_get(arena, a, no_grant, sent_ns, p);
    if (a->type == ANSWER_NIL) return TARN_ENOTFOUND;
    tarn_status status = answer_check(a, "GETREPLICAS");
    if (status != TARN_OK) return status;
    const struct answer *crc = answer_at(a, 3), *replicas = answer_at(a, 4),
                        *crcs = answer_at(a, 6);
    if (!answer_u64(answer_at(a, 0), &p->version) || !answer_u64(answer_at(a, 1), &p->size) ||
        !answer_u64(answer_at(a, 2), &p->lease_ms) || crc == NULL || crc->type != ANSWER_INTEGER ||
        replicas == NULL || replicas->type != ANSWER_ARRAY || p->size > VALUE_MAX ||
        crc->integer > UINT32_MAX) {
        return answer_broken("GETREPLICAS");
    }
    p->crc = crc->integer < 0 ? -1 : crc->integer;
    p->lease_end = placement_lease_end(sent_ns, p->lease_ms);
    if (crcs != NULL && crcs->type == ANSWER_STRING &&
        crcs->len == (p->size + CRC_BLOCK - 1) / CRC_BLOCK * 4) {
        p->crcs = (const uint8_t *)crcs->str;
        p->n_crcs = crcs->len / 4;
    }
    if (replicas->len == 0) return decode_inline(answer_at(a, 5), p);
    const struct answer *flags = answer_at(a, 7); /* an older server says none */
    bool suspect =
        flags != NULL && flags->type == ANSWER_INTEGER && (flags->integer & PLACE_SUSPECT) != 0;
    status = decode_readable(arena, replicas, no_grant, p);
    return status == TARN_OK ? placement_judge(p, suspect) : status;
}

tarn_status placement_of_put(struct arena *arena, const struct answer *a, bool no_grant,
                             uint64_t size, struct placement *p) {
    *p = (struct placement){.crc = -1, .size = size};
    if (a->type == ANSWER_NIL) return TARN_EEXISTS;
    if (a->type == ANSWER_STRING) {
        struct place_packed place;
        tarn_status packed = decode_packed(arena, a, no_grant, p, &place);
        if (packed == TARN_OK && place.extent.length != size)
            packed = answer_broken("space of another size");
        p->replicas = packed == TARN_OK ? 1 : 0;
        if (packed == TARN_OK) p->token = place.number;
        return packed;
    }
    tarn_status status = answer_check(a, "PUTSTART");
    if (status != TARN_OK) return status;
    const struct answer *replicas = answer_at(a, 1);
    if (!answer_u64(answer_at(a, 0), &p->token) || replicas == NULL ||
        replicas->type != ANSWER_ARRAY) {
        return answer_broken("PUTSTART");
    }
    if (replicas->len == 0)
        return size <= INLINE_MAX ? TARN_OK : answer_broken("PUTSTART gave no space");
    if (replicas->len > REPLICAS_MAX) return answer_broken("too many replicas");
    p->replica = replicas_alloc(arena, replicas);
    for (size_t i = 0; i < replicas->len && status == TARN_OK; i++) {
        status = decode_replica(arena, &replicas->element[i], no_grant, size, &p->replica[i]);
        if (status == TARN_OK && p->replica[i].tier != REPLICA_MEMORY)
            status = answer_broken("space is memory");
    }
    p->replicas = status == TARN_OK ? (unsigned)replicas->len : 0;
    return status;
}

uint8_t *placement_receipts(struct arena *arena, const struct placement *p, size_t *n_p) {
    *n_p = 0;
    if (!placement_is_once(p)) return NULL;
    for (unsigned r = 0; r < p->replicas; r++) *n_p += p->replica[r].n_parts;
    uint8_t *receipts = arena_alloc(arena, *n_p * GRANT_RECEIPT_SIZE);
    memset(receipts, 0, *n_p * GRANT_RECEIPT_SIZE);
    return receipts;
}

uint8_t *placement_receipts_of(const struct placement *p, uint8_t *receipts, unsigned replica) {
    for (unsigned r = 0; r < replica; r++) receipts += p->replica[r].n_parts * GRANT_RECEIPT_SIZE;
    return receipts;
}
