/* Columns become items and keys, and results become columns. */
#include "client/client.h"
#include "client/error.h"

#include "../test.h"

static const uint64_t lens[] = {1, 3, 2};

static tarn_columns three(void) {
    return (tarn_columns){
        .size = sizeof(tarn_columns), .n = 3, .keys = "abbbcc", .keys_len = 6, .key_lens = lens};
}

TEST(keys_follow_one_another) {
    tarn_columns c = three();
    tarn_key keys[3];
    CHECK_EQ(tarn_columns_keys(&c, keys), TARN_OK);
    CHECK(keys[0].len == 1 && memcmp(keys[0].data, "a", 1) == 0);
    CHECK(keys[1].len == 3 && memcmp(keys[1].data, "bbb", 3) == 0);
    CHECK(keys[2].len == 2 && memcmp(keys[2].data, "cc", 2) == 0);
}

TEST(items_without_memory) {
    tarn_columns c = three();
    tarn_item items[3];
    memset(items, 0xff, sizeof(items));
    CHECK_EQ(tarn_columns_items(&c, items, NULL), TARN_OK);
    CHECK(items[2].key_len == 2 && memcmp(items[2].key, "cc", 2) == 0);
    CHECK(items[2].buffer == NULL && items[2].buffer_len == 0 && items[2].n_iov == 0);
    CHECK_EQ(items[2].status, TARN_OK);
    CHECK_EQ(items[2].offset + items[2].want + items[2].got + items[2].value_size, 0);
}

TEST(one_piece_each) {
    tarn_columns c = three();
    char memory[60];
    uint64_t addresses[3], sizes[3] = {10, 0, 30}, offsets[3] = {5, 0, 7}, wants[3] = {1, 2, 3};
    for (int i = 0; i < 3; i++) addresses[i] = (uintptr_t)(memory + 20 * i);
    addresses[1] = 0; /* of no bytes */
    c.n_pieces = 3, c.addresses = addresses, c.sizes = sizes, c.offsets = offsets, c.wants = wants;
    tarn_item items[3];
    CHECK_EQ(tarn_columns_items(&c, items, NULL), TARN_OK);
    CHECK(items[0].buffer == memory && items[0].buffer_len == 10 && items[0].n_iov == 0);
    CHECK(items[1].buffer == NULL && items[1].buffer_len == 0);
    CHECK(items[2].buffer == memory + 40 && items[2].buffer_len == 30);
    CHECK(items[0].offset == 5 && items[2].offset == 7 && items[2].want == 3);
}

TEST(several_pieces) {
    tarn_columns c = three();
    char memory[50];
    uint64_t addresses[5], sizes[5], pieces[3] = {3, 0, 2};
    for (int i = 0; i < 5; i++)
        addresses[i] = (uintptr_t)(memory + 10 * i), sizes[i] = (uint64_t)(i + 1);
    c.n_pieces = 5, c.addresses = addresses, c.sizes = sizes, c.pieces = pieces;
    tarn_item items[3];
    struct iovec iov[5];
    CHECK_EQ(tarn_columns_items(&c, items, iov), TARN_OK);
    CHECK(items[0].iov == iov && items[0].n_iov == 3);
    CHECK(items[1].n_iov == 0 && items[1].buffer_len == 0);
    CHECK(items[2].iov == iov + 3 && items[2].n_iov == 2);
    for (int i = 0; i < 5; i++)
        CHECK(iov[i].iov_base == memory + 10 * i && iov[i].iov_len == (size_t)i + 1);
    pieces[0] = 1, pieces[1] = 2; /* one of one: in the item itself */
    CHECK_EQ(tarn_columns_items(&c, items, iov), TARN_OK);
    CHECK(items[0].buffer == memory && items[0].n_iov == 0 && items[1].iov == iov + 1);
}

static void refused(tarn_columns *c, struct iovec *iov, const char *word) {
    tarn_item items[3];
    CHECK_EQ(tarn_columns_items(c, items, iov), TARN_EINVAL);
    CHECK(strstr(tarn_last_error(), word) != NULL);
}

TEST(what_does_not_add_up_is_refused) {
    tarn_columns c = three();
    struct iovec iov[4];
    uint64_t addresses[4] = {16, 16, 16, 16}, sizes[4] = {1, 1, 1, 1}, pieces[3] = {1, 1, 1},
             bad[3] = {1, 0, 2};
    c.keys_len = 7;
    refused(&c, NULL, "add up");
    c = three(), c.key_lens = bad;
    refused(&c, NULL, "key 1");
    c = three(), c.keys = NULL;
    refused(&c, NULL, "no keys");
    c = three(), c.size = 8;
    refused(&c, NULL, "size");
    refused(NULL, NULL, "no struct");
    c = three(), c.n_pieces = 2, c.addresses = addresses, c.sizes = sizes;
    refused(&c, NULL, "2 pieces for 3 keys");
    c.n_pieces = 3, c.sizes = NULL;
    refused(&c, NULL, "no sizes");
    c.n_pieces = 4, c.sizes = sizes, c.pieces = pieces;
    refused(&c, iov, "pieces add up");
    refused(&c, NULL, "iov");
    pieces[0] = UINT64_MAX;
    refused(&c, iov, "pieces add up");
    pieces[0] = 2, addresses[3] = 0;
    refused(&c, iov, "address 0");
    c = three();
    CHECK_EQ(tarn_columns_keys(&c, NULL), TARN_EINVAL);
    CHECK_EQ(tarn_columns_items(&c, NULL, NULL), TARN_EINVAL);
}

TEST(an_older_caller_s_shorter_struct) {
    tarn_columns c = three();
    c.size = offsetof(tarn_columns, pieces);
    c.pieces = c.offsets = c.wants = (const uint64_t *)8; /* must not be looked at */
    tarn_item items[3];
    CHECK_EQ(tarn_columns_items(&c, items, NULL), TARN_OK);
}

TEST(results_as_columns) {
    tarn_item items[3] = {{.status = TARN_OK, .got = 5, .value_size = 9, .version = 1},
                          {.status = TARN_ENOTFOUND, .got = 77},
                          {.status = TARN_ELIMIT, .value_size = 100, .version = 3}};
    int64_t results[3];
    int32_t statuses[3];
    uint64_t sizes[3], versions[3];
    tarn_items_columns(items, 3, results, statuses, sizes, versions);
    CHECK(results[0] == 5 && results[1] == TARN_ENOTFOUND && results[2] == TARN_ELIMIT);
    CHECK(statuses[0] == 0 && statuses[1] == TARN_ENOTFOUND && statuses[2] == TARN_ELIMIT);
    CHECK(sizes[0] == 9 && sizes[2] == 100 && versions[0] == 1 && versions[2] == 3);
    tarn_items_columns(items, 3, NULL, NULL, NULL, NULL);
}

TEST_MAIN()
