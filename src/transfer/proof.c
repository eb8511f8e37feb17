/* Who knows the secret. The three passes of ISO/IEC 9798-4 for mutual authentication, in the form
 * of SKID3 (Bosselaers and Preneel, RIPE, LNCS 1007, 1995; Handbook of Applied Cryptography,
 * 10.3.2), as Basin, Cremers and Meier have repaired and proved it ("Provably Repairing the ISO/IEC
 * 9798 Standard for Entity Authentication", POST 2012): every proof says which one it is, who makes
 * it and for whom, and holds both nonces, the prover's first. The MAC is libsodium's keyed BLAKE2b
 * (RFC 7693).
 *
 *   client                                     server
 *   nonce, identity, name  --------------->
 *                          <---------------   nonce, identity, name, proof("server proves", ...)
 *   proof("client proves", ...)  --------->
 *
 * An identity is made at random with each end. So what an end is told to prove to itself, or what
 * one end proves to another, is of no use to a third that passes it on as its own. It does not hide
 * or protect what follows: who passes everything on, both ways and unchanged, sits on the wire
 * between two ends that know the secret, and reads along as anybody does who sits there. */
#include <sodium.h>

#include "base/assert.h"
#include "client/client.h"
#include "transfer/transfer.h"

static_assert(TRANSFER_PROOF >= crypto_generichash_BYTES_MIN &&
                  TRANSFER_PROOF <= crypto_generichash_BYTES_MAX,
              "proof");

void transfer_proof_key(const char *secret, uint8_t key[32]) {
    (void)crypto_generichash(key, 32, (const unsigned char *)secret, strlen(secret), NULL, 0);
}

static void mac_add(crypto_generichash_state *state, const void *data, size_t len) {
    (void)crypto_generichash_update(state, data, len);
}

static void mac_add_text(crypto_generichash_state *state, const char *text) {
    mac_add(state, text, strlen(text) + 1); /* its end is part of it */
}

void transfer_proof_make(const uint8_t key[32], enum transfer_role prover,
                         const struct transfer_party p[2], uint8_t out[TRANSFER_PROOF]) {
    static const char *const labels[] = {[TRANSFER_CLIENT] = "tarn-transfer 2: client proves",
                                         [TRANSFER_SERVER] = "tarn-transfer 2: server proves"};
    const struct transfer_party *order[] = {&p[prover], &p[!prover]};
    crypto_generichash_state state;
    (void)crypto_generichash_init(&state, key, 32, TRANSFER_PROOF);
    mac_add_text(&state, labels[prover]);
    for (int i = 0; i < 2; i++) mac_add(&state, order[i]->nonce, TRANSFER_NONCE);
    for (int i = 0; i < 2; i++) mac_add(&state, order[i]->identity, TRANSFER_IDENTITY);
    for (int i = 0; i < 2; i++) mac_add_text(&state, order[i]->name);
    (void)crypto_generichash_final(&state, out, TRANSFER_PROOF);
}

bool transfer_proof_same(const uint8_t a[TRANSFER_PROOF], const void *b, size_t len) {
    return len == TRANSFER_PROOF && sodium_memcmp(a, b, TRANSFER_PROOF) == 0;
}

void transfer_party_init(struct transfer_party *p, const struct tarn_transfer *t) {
    *p = (struct transfer_party){0};
    randombytes_buf(p->nonce, TRANSFER_NONCE);
    memcpy(p->identity, t->identity, TRANSFER_IDENTITY);
    if (t->options.name != NULL) memcpy(p->name, t->options.name, strlen(t->options.name));
}

bool transfer_party_take(struct transfer_party *p, struct span nonce, struct span identity,
                         struct span name) {
    if (nonce.len != TRANSFER_NONCE || identity.len != TRANSFER_IDENTITY ||
        (name.len > 0 && !span_is_name(name, TARN_TRANSFER_NAME_MAX)))
        return false;
    *p = (struct transfer_party){0};
    memcpy(p->nonce, nonce.data, nonce.len);
    memcpy(p->identity, identity.data, identity.len);
    memcpy(p->name, name.data, name.len);
    return true;
}

bool transfer_party_same(const struct transfer_party *a, const struct transfer_party *b) {
    return memcmp(a->identity, b->identity, TRANSFER_IDENTITY) == 0;
}
