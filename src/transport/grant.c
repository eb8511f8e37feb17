/* Grants: 24 bytes of fields, 16 bytes of MAC. The MAC covers the fields exactly as they travel and
 * the extent the grant stands beside, so a flipped bit in either is one and the same refusal. */
#include "transport/grant.h"

#include <sodium.h>
#include <stddef.h>
#include <string.h>

#include "base/assert.h"

/* As it travels. Little-endian, as every format of tarn; the machines tarn builds for are, and the
 * assert says so. */
struct grant_wire {
    uint8_t op;
    uint8_t version; /* 1 */
    uint16_t put_low;
    uint32_t master_epoch;
    uint64_t session;
    /* 44 bits of milliseconds, which last for 557 years; above them 20 more of the put */
    uint64_t expiry_put;
    uint8_t mac[crypto_shorthash_siphashx24_BYTES];
};
_Static_assert(sizeof(struct grant_wire) == GRANT_SIZE, "grant layout");
_Static_assert(crypto_shorthash_siphashx24_KEYBYTES == GRANT_KEY_SIZE, "grant key");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "big-endian machines need conversions here and in the frames");

#define GRANT_VERSION 1
#define EXPIRY_BITS   44
#define EXPIRY_MAX    ((UINT64_C(1) << EXPIRY_BITS) - 1)

/* What is MACed: the wire fields, then the extent. */
struct grant_mac_input {
    uint8_t fields[offsetof(struct grant_wire, mac)];
    struct grant_extent extent;
};
_Static_assert(sizeof(struct grant_mac_input) == 48, "no padding in the MAC's input");

static void compute_mac(const uint8_t key[GRANT_KEY_SIZE], const void *fields,
                        const struct grant_extent *e,
                        uint8_t mac[crypto_shorthash_siphashx24_BYTES]) {
    struct grant_mac_input in;
    memcpy(in.fields, fields, sizeof(in.fields));
    in.extent = *e;
    crypto_shorthash_siphashx24(mac, (const unsigned char *)&in, sizeof(in), key);
}

const char *grant_verdict_name(enum grant_verdict v) {
    static const char *const names[GRANT_VERDICTS] = {
        [GRANT_OK] = "ok",
        [GRANT_BAD_MAC] = "bad-mac",
        [GRANT_BAD_OP] = "bad-op",
        [GRANT_BAD_RANGE] = "bad-range",
        [GRANT_BAD_EPOCH] = "bad-epoch",
        [GRANT_EXPIRED] = "expired",
        [GRANT_FENCED] = "fenced",
        [GRANT_OVER] = "over",
        [GRANT_LATER] = "later",
    };
    return (unsigned)v < GRANT_VERDICTS ? names[v] : "unknown";
}

static struct grant_wire wire_of(const struct grant *g) {
    TARN_ASSERT(g->put <= GRANT_PUT_MASK);
    return (struct grant_wire){
        .op = (uint8_t)g->op,
        .version = GRANT_VERSION,
        .put_low = (uint16_t)g->put,
        .master_epoch = g->master_epoch,
        .session = g->session,
        .expiry_put = min_u64(g->expiry_ms, EXPIRY_MAX) | g->put >> 16 << EXPIRY_BITS,
    };
}

void grant_seal(const uint8_t key[GRANT_KEY_SIZE], const struct grant *g,
                const struct grant_extent *e, uint8_t out[GRANT_SIZE]) {
    struct grant_wire w = wire_of(g);
    compute_mac(key, &w, e, w.mac);
    memcpy(out, &w, GRANT_SIZE);
}

enum grant_verdict grant_check(const uint8_t key[GRANT_KEY_SIZE], const uint8_t in[GRANT_SIZE],
                               const struct grant_extent *e, enum grant_op want,
                               uint64_t sub_offset, uint64_t sub_length, uint32_t master_epoch,
                               uint32_t segment_epoch, uint64_t now_ms, struct grant *g_p) {
    struct grant_wire w;
    memcpy(&w, in, GRANT_SIZE);
    uint8_t mac[crypto_shorthash_siphashx24_BYTES];
    compute_mac(key, &w, e, mac);
    if (sodium_memcmp(mac, w.mac, sizeof(mac)) != 0) return GRANT_BAD_MAC;
    /* From here on the fields are the master's own words. */
    *g_p = (struct grant){
        .op = (enum grant_op)w.op,
        .master_epoch = w.master_epoch,
        .session = w.session,
        .expiry_ms = w.expiry_put & EXPIRY_MAX,
        .put = w.expiry_put >> EXPIRY_BITS << 16 | w.put_low,
    };
    bool once = want == GRANT_WRITE && w.op == GRANT_WRITE_ONCE;
    if (w.version != GRANT_VERSION || (w.op != (uint8_t)want && !once)) return GRANT_BAD_OP;
    if (w.master_epoch != master_epoch || e->segment_epoch != segment_epoch) return GRANT_BAD_EPOCH;
    if (now_ms >= g_p->expiry_ms) return GRANT_EXPIRED;
    if (sub_offset > e->length || sub_length > e->length - sub_offset) return GRANT_BAD_RANGE;
    return GRANT_OK;
}

void grant_receipt(const uint8_t key[GRANT_KEY_SIZE], const struct grant *g,
                   const struct grant_extent *e, bool whole, uint8_t out[GRANT_RECEIPT_SIZE]) {
    struct {
        struct grant_mac_input grant;
        uint64_t whole;
    } in = {.grant.extent = *e, .whole = whole};
    struct grant_wire w = wire_of(g);
    _Static_assert(sizeof(in) != sizeof(struct grant_mac_input), "told apart by their length");
    memcpy(in.grant.fields, &w, sizeof(in.grant.fields));
    crypto_shorthash_siphashx24(out, (const unsigned char *)&in, sizeof(in), key);
}

bool grant_receipt_check(const uint8_t key[GRANT_KEY_SIZE], const struct grant *g,
                         const struct grant_extent *e, bool whole,
                         const uint8_t in[GRANT_RECEIPT_SIZE]) {
    uint8_t right[GRANT_RECEIPT_SIZE];
    grant_receipt(key, g, e, whole, right);
    return sodium_memcmp(right, in, sizeof(right)) == 0;
}

bool grant_is_once(const uint8_t in[GRANT_SIZE]) {
    return in[offsetof(struct grant_wire, op)] == GRANT_WRITE_ONCE;
}

uint32_t grant_claimed_epoch(const uint8_t in[GRANT_SIZE]) {
    uint32_t epoch;
    memcpy(&epoch, in + offsetof(struct grant_wire, master_epoch), sizeof(epoch));
    return epoch;
}
