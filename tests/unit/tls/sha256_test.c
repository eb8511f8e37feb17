/* SHA-256: known answers of FIPS 180, in pieces, one after the other. */
#include "tls/sha256.h"
#include "../test.h"

static const char *hex_of(struct sha256 *h) {
    static char text[2 * SHA256_BYTES + 1];
    uint8_t out[SHA256_BYTES];
    sha256_end(h, out);
    for (size_t i = 0; i < sizeof(out); i++) snprintf(text + 2 * i, 3, "%02x", out[i]);
    return text;
}

TEST(known_answers) {
    struct sha256 *h = sha256_create();
    CHECK(h != NULL);
    sha256_begin(h);
    CHECK_STR(hex_of(h), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    sha256_begin(h);
    sha256_add(h, "forgotten", 9);
    sha256_begin(h);
    sha256_add(h, "a", 1);
    sha256_add(h, "", 0);
    sha256_add(h, "bc", 2);
    CHECK_STR(hex_of(h), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    sha256_destroy(&h);
    CHECK(h == NULL);
    sha256_destroy(&h);
}

TEST_MAIN()
