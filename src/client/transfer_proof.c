/* Who knows the secret. Both sides prove it by a MAC (BLAKE2b, keyed) over their role and two nonces: what goes over the wire is of
 * no use to who listens, and of none elsewhere. It does not hide what follows. */
#include <sodium.h>

#include "client/transfer.h"

static_assert(TRANSFER_PROOF >= crypto_generichash_BYTES_MIN &&
                  TRANSFER_PROOF <= crypto_generichash_BYTES_MAX,
              "proof");

void transfer_proof_key(const char *secret, uint8_t key[32]) {
    (void)crypto_generichash(key, 32, (const unsigned char *)secret, strlen(secret), NULL, 0);
}

void transfer_proof_make(const uint8_t key[32], const char *role, const uint8_t nonces[2 * TRANSFER_NONCE],
                         uint8_t out[TRANSFER_PROOF]) {
    crypto_generichash_state state;
    (void)crypto_generichash_init(&state, key, 32, TRANSFER_PROOF);
    (void)crypto_generichash_update(&state, (const unsigned char *)role, strlen(role) + 1);
    (void)crypto_generichash_update(&state, nonces, 2 * (unsigned long long)TRANSFER_NONCE);
    (void)crypto_generichash_final(&state, out, TRANSFER_PROOF);
}

bool transfer_proof_same(const uint8_t a[TRANSFER_PROOF], const void *b, size_t len) {
    return len == TRANSFER_PROOF && sodium_memcmp(a, b, TRANSFER_PROOF) == 0;
}
