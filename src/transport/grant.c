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

/* --- sealing: SipHash that goes on from a state, which libsodium's cannot --- */

static inline uint64_t rotate(uint64_t v, unsigned by) {
    return v << by | v >> (64 - by);
}

static inline void sip_rounds(uint64_t v[4], unsigned n) {
    for (; n > 0; n--) {
        v[0] += v[1];
        v[2] += v[3];
        v[1] = rotate(v[1], 13) ^ v[0];
        v[3] = rotate(v[3], 16) ^ v[2];
        v[0] = rotate(v[0], 32) + v[3];
        v[2] += v[1];
        v[1] = rotate(v[1], 17) ^ v[2];
        v[3] = rotate(v[3], 21) ^ v[0];
        v[2] = rotate(v[2], 32);
    }
}

static inline void sip_words(uint64_t v[4], const void *words, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint64_t m;
        memcpy(&m, (const char *)words + i * sizeof(m), sizeof(m));
        v[3] ^= m;
        sip_rounds(v, 2);
        v[0] ^= m;
    }
}

void grant_sealer_init(struct grant_sealer *s, const uint8_t key[GRANT_KEY_SIZE],
                       const struct grant *g) {
    struct grant_wire w = wire_of(g);
    uint64_t k[2];
    memcpy(k, key, sizeof(k));
    memcpy(s->fields, &w, sizeof(s->fields));
    s->state[0] = k[0] ^ UINT64_C(0x736f6d6570736575);
    s->state[1] = k[1] ^ UINT64_C(0x646f72616e646f6d) ^ 0xee; /* 128 bits of result */
    s->state[2] = k[0] ^ UINT64_C(0x6c7967656e657261);
    s->state[3] = k[1] ^ UINT64_C(0x7465646279746573);
    sip_words(s->state, s->fields, sizeof(s->fields) / 8);
}

void grant_sealer_seal(const struct grant_sealer *s, const struct grant_extent *e,
                       uint8_t out[GRANT_SIZE]) {
    uint64_t v[4], end = (uint64_t)sizeof(struct grant_mac_input) << 56, mac[2];
    memcpy(v, s->state, sizeof(v));
    sip_words(v, e, sizeof(*e) / 8);
    sip_words(v, &end, 1);
    v[2] ^= 0xee;
    sip_rounds(v, 4);
    mac[0] = v[0] ^ v[1] ^ v[2] ^ v[3];
    v[1] ^= 0xdd;
    sip_rounds(v, 4);
    mac[1] = v[0] ^ v[1] ^ v[2] ^ v[3];
    memcpy(out, s->fields, sizeof(s->fields));
    memcpy(out + sizeof(s->fields), mac, sizeof(mac));
}

void grant_seal(const uint8_t key[GRANT_KEY_SIZE], const struct grant *g,
                const struct grant_extent *e, uint8_t out[GRANT_SIZE]) {
    struct grant_sealer s;
    grant_sealer_init(&s, key, g);
    grant_sealer_seal(&s, e, out);
}

/* --- checking --- */

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
