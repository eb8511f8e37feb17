/* An ACL file: any text is either refused with a message, or the users that it makes, written out
 * and read again, are the same users; and no question about them does harm. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "acl/acl.h"
#include "base/assert.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { ALL = 0x7fffff };

static const struct acl_command commands[] = {
    {"get", 1u << 1 | 1u << 7 | 1u << 14, -1, false},
    {"set", 1u << 2 | 1u << 7 | 1u << 15, -1, false},
    {"config", 1u << 15, -1, true},
    {"config|get", 1u << 13 | 1u << 15, 2, false},
    {"config|set", 1u << 13 | 1u << 15, 2, false},
    {"select", 1u << 18, -1, false},
    {"auth", 1u << 18, -1, false},
    {"everything", ALL, -1, false},
};

static void ask(const struct acl_user *u, struct span word) {
    bool all = false;
    for (size_t i = 0; i < acl_selectors(u); i++) {
        bool whole = acl_allows_all_keys(u, i) && acl_allows_all_channels(u, i);
        for (unsigned c = 0; c < ARRAY_LEN(commands); c++)
            whole &= acl_allows_command(u, i, c, span_of(NULL, 0));
        for (unsigned need = 0; need < 4; need++) {
            bool one = acl_allows_key(u, i, word, need);
            TARN_ASSERT(one || !acl_allows_every_key(u, i, need));
        }
        (void)acl_allows_channel(u, i, word, true);
        (void)acl_allows_channel(u, i, word, false);
        (void)acl_allows_command(u, i, 5, word);
        all |= whole;
    }
    TARN_ASSERT(all || !acl_user_unrestricted(u));
    (void)acl_user_login(u, word);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct span text = span_of(data, size);
    if (size > 65536) return 0;
    struct acl *first = acl_create(), *second = acl_create();
    struct buf errors = {NULL, 0, 0}, a = {NULL, 0, 0}, b = {NULL, 0, 0};
    acl_set_commands(first, commands, ARRAY_LEN(commands));
    acl_set_commands(second, commands, ARRAY_LEN(commands));
    bool good = acl_read_file(first, "fuzz", text, &errors);
    TARN_ASSERT(good == (errors.len == 0));
    for (size_t i = 0; i < acl_count(first); i++)
        ask(acl_at(first, i), span_of(data, size < 64 ? size : 64));
    acl_write_file(first, &a);
    TARN_ASSERT(acl_read_file(second, "again", span_of(a.data, a.len), &errors) || !good);
    if (good) {
        acl_write_file(second, &b);
        TARN_ASSERT(span_eq(span_of(a.data, a.len), span_of(b.data, b.len)));
    }
    buf_free(&errors);
    buf_free(&a);
    buf_free(&b);
    acl_destroy(&first);
    acl_destroy(&second);
    return 0;
}
