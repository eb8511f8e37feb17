/* Engines' batches, in every shape that they have sent; what is wrong with others; bounds. */
#include "../test.h"

#include "../../kvevents_pack.h"
#include "kvevents/decode.h"
#include "route/hash.h"
#include "samples.h"

#define SEED  UINT64_C(1337)
#define BYTES (UINT64_C(1) << 20)

static struct kvevents_batch *batch;
static const char *why;

static tarn_status decode(struct span payload) {
    struct kvevents_decoder *d = kvevents_decoder_create(SEED, BYTES);
    kvevents_batch_destroy(&batch);
    why = NULL;
    /* Exactly as long as it is: sanitizers see a read past its end. */
    char *copy = xmemdup(payload.data, payload.len);
    tarn_status rc = kvevents_decode(d, span_of(copy, payload.len), &batch, &why);
    free(copy);
    kvevents_decoder_destroy(&d);
    return rc;
}

#define DECODE(literal) CHECK_EQ(decode(SPAN(literal)), TARN_OK)

static bool says(struct span text, const char *expected) {
    return span_eq(text, span_str(expected));
}

static const struct kvevents_event *event(size_t i, enum kvevents_kind kind, size_t n) {
    CHECK(i < batch->n);
    const struct kvevents_event *e = &batch->events[i];
    CHECK_EQ(e->kind, kind);
    CHECK_EQ(e->n, n);
    return e;
}

static uint64_t local(const uint32_t *tokens, size_t n, const char *extra, size_t extra_len) {
    return route_hash_local(tokens, n, extra, extra_len, SEED);
}

/* --- shapes --- */

TEST(vllm_map_as_recorded) {
    static const uint32_t tokens[] = {151644, 872, 198,    9064, 374,    279,   6722, 315,
                                      5616,   30,  151645, 198,  151644, 77091, 198,  151667};
    DECODE(vllm_0_26_map);
    CHECK_EQ(batch->n, 1);
    CHECK_EQ(batch->rank, 0);
    CHECK_EQ(batch->blocks, 1);
    CHECK_EQ(batch->unknown + batch->left_out, 0);
    const struct kvevents_event *e = event(0, KVEVENTS_STORED, 1);
    CHECK_EQ(e->own[0], UINT64_C(15760518052499183552));
    CHECK_EQ(e->local[0], local(tokens, 16, NULL, 0));
    CHECK(!e->has_parent && !e->elsewhere);
    CHECK_EQ(e->tier, ROUTE_TIER_DEVICE);
    CHECK_EQ(e->spec, KVEVENTS_SPEC_FULL);
    CHECK_EQ(e->block, 16);
    CHECK_EQ(e->lora.len + e->salt.len, 0);
}

TEST(vllm_arrays) {
    static const uint32_t tokens[] = {1, 2, 3, 4};
    DECODE(vllm_0_9_array);
    CHECK_EQ(batch->n, 3);
    CHECK_EQ(batch->rank, -1);
    const struct kvevents_event *e = event(0, KVEVENTS_STORED, 2);
    CHECK_EQ(e->own[0], 7);
    CHECK_EQ(e->own[1], 8);
    CHECK_EQ(e->local[0], local(tokens, 2, NULL, 0));
    CHECK_EQ(e->local[1], local(tokens + 2, 2, NULL, 0));
    CHECK_EQ(e->spec, KVEVENTS_SPEC_NONE);
    e = event(1, KVEVENTS_REMOVED, 1);
    CHECK_EQ(e->own[0], 7);
    CHECK_EQ(e->tier, ROUTE_TIER_DEVICE);
    event(2, KVEVENTS_CLEARED, 0);
}

/* vLLM makes an integer of 32 bytes by the last eight of them: so do we. */
TEST(hashes_of_bytes) {
    DECODE(vllm_0_11_bytes);
    const struct kvevents_event *e = event(0, KVEVENTS_STORED, 2);
    CHECK_EQ(e->own[0], UINT64_C(0x18191a1b1c1d1e1f));
    CHECK_EQ(e->own[1], UINT64_C(0x38393a3b3c3d3e3f));
    CHECK(e->has_parent);
    CHECK_EQ(e->parent, UINT64_C(0x58595a5b5c5d5e5f));
    CHECK(says(e->lora, "5"));
    CHECK_EQ(batch->rank, 3);
    e = event(1, KVEVENTS_REMOVED, 1);
    CHECK_EQ(e->own[0], UINT64_C(0x18191a1b1c1d1e1f));
    CHECK_EQ(e->tier, ROUTE_TIER_HOST);
}

/* The name of the LoRA is in the scope; what else a block depends on is in its hash. */
TEST(extra_keys) {
    static const uint32_t tokens[] = {1, 2, 3, 4};
    static const char image[] = "\x91\x92\xa3img\x05", salt[] = "\x91\xa4salt";
    DECODE(vllm_0_15_extra);
    const struct kvevents_event *e = event(0, KVEVENTS_STORED, 2);
    CHECK(says(e->lora, "lora-a"));
    CHECK_EQ(e->local[0], local(tokens, 2, NULL, 0));
    CHECK_EQ(e->local[1], local(tokens + 2, 2, image, sizeof(image) - 1));
    DECODE(vllm_0_22_group);
    e = event(0, KVEVENTS_STORED, 1);
    CHECK_EQ(e->local[0], local(tokens, 2, salt, sizeof(salt) - 1));
}

TEST(groups_and_windows) {
    DECODE(vllm_0_22_group);
    const struct kvevents_event *e = event(0, KVEVENTS_STORED, 1);
    CHECK_EQ(e->group, 3);
    CHECK_EQ(e->spec, KVEVENTS_SPEC_WINDOW);
    CHECK_EQ(e->window, 128);
    CHECK_EQ(event(1, KVEVENTS_REMOVED, 1)->group, 3);
}

TEST(stores_and_localities) {
    DECODE(vllm_0_29_locality);
    CHECK_EQ(batch->n, 3);
    const struct kvevents_event *e = event(0, KVEVENTS_STORED, 1);
    CHECK_EQ(e->tier, ROUTE_TIER_DISK);
    CHECK(!e->elsewhere);
    CHECK(e->local == NULL);
    CHECK(event(1, KVEVENTS_REMOVED, 1)->elsewhere);
    event(2, KVEVENTS_CLEARED, 0);
}

TEST(batch_as_map) {
    DECODE(vllm_batch_map);
    CHECK_EQ(batch->rank, 2);
    event(0, KVEVENTS_CLEARED, 0);
}

TEST(sglang_arrays) {
    DECODE(sglang_array);
    const struct kvevents_event *e = event(0, KVEVENTS_STORED, 1);
    CHECK_EQ(e->own[0], (uint64_t)-5);
    CHECK_EQ(e->parent, (uint64_t)-2);
    CHECK_EQ(e->tier, ROUTE_TIER_HOST);
    e = event(1, KVEVENTS_STORED, 1);
    CHECK_EQ(e->parent, (uint64_t)-5);
    CHECK(says(e->salt, "tenant-a"));
    CHECK_EQ(e->lora.len, 0);
    CHECK_EQ(event(2, KVEVENTS_REMOVED, 1)->tier, ROUTE_TIER_DISK);
}

TEST(sglang_maps) {
    DECODE(sglang_map);
    const struct kvevents_event *e = event(0, KVEVENTS_STORED, 1);
    CHECK(e->elsewhere); /* EXTERNAL: a pool that all engines share */
    CHECK(says(e->salt, "salt-a"));
    CHECK(says(e->lora, "3"));
}

TEST(mooncake_maps) {
    DECODE(mooncake_map);
    CHECK_EQ(batch->n, 2);
    const struct kvevents_event *e = event(0, KVEVENTS_STORED, 1);
    CHECK_EQ(e->own[0], 77);
    CHECK_EQ(e->tier, ROUTE_TIER_HOST);
    CHECK(e->local != NULL && !e->has_parent);
    CHECK_EQ(event(1, KVEVENTS_REMOVED, 1)->tier, ROUTE_TIER_DISK);
}

/* Fields and events of times to come are passed over; events are counted. */
TEST(what_is_not_known_yet) {
    DECODE(future);
    CHECK_EQ(batch->n, 1);
    CHECK_EQ(batch->unknown, 3);
    CHECK_EQ(batch->rank, 0);
    CHECK(event(0, KVEVENTS_STORED, 1)->local != NULL);
}

/* --- what is wrong --- */

static struct buf made;

/* A batch of one event of vLLM's last arrays, of which one field is another value. */
static void make_stored(int field, void (*value)(struct buf *)) {
    static const uint32_t tokens[] = {1, 2, 3, 4};
    static const uint64_t hashes[] = {5, 6};
    buf_clear(&made);
    pack_batch(&made, 1, 2, false);
    pack_array(&made, 12);
    for (int i = 0; i < 12; i++) {
        if (i == field)
            value(&made);
        else if (i == 0)
            pack_str(&made, "BlockStored");
        else if (i == 1)
            pack_hashes(&made, hashes, 2);
        else if (i == 3)
            pack_tokens(&made, tokens, 4);
        else if (i == 4)
            pack_uint(&made, 2);
        else
            pack_nil(&made);
    }
    pack_cleared(&made);
}

static void value_pairs(struct buf *b) { /* bigrams, as some speculative decoders have them */
    pack_array(b, 4);
    for (unsigned i = 0; i < 4; i++) pack_array(b, 2), pack_uint(b, i), pack_uint(b, i + 1);
}
static void value_float(struct buf *b) {
    pack_float(b, 1);
}
static void value_big(struct buf *b) {
    pack_uint(b, UINT64_C(1) << 32);
}
static void value_three(struct buf *b) {
    pack_uint(b, 3);
}
static void value_empty(struct buf *b) {
    pack_array(b, 0);
}
static void value_text(struct buf *b) {
    pack_str(b, "what");
}

/* A stored event that makes no sense is left out, and the rest of its batch is not. */
TEST(stored_events_left_out) {
    static const struct {
        int field;
        void (*value)(struct buf *);
        const char *why;
    } wrong[] = {
        {1, value_empty, "a stored event names no block"},
        {1, value_text, "block_hashes has a value of a wrong kind"},
        {1, value_pairs, "block_hashes has a value of a wrong kind"},
        {2, value_float, "parent_block_hash has a value of a wrong kind"},
        {3, value_pairs, "token_ids has a value of a wrong kind"},
        {3, value_text, "token_ids has a value of a wrong kind"},
        {4, value_three, "token_ids are not as many as the blocks have"},
        {4, value_big, "block_size has a value of a wrong kind"},
        {4, pack_nil, "token_ids are not as many as the blocks have"},
        {5, value_float, "lora_id has a value of a wrong kind"},
        {6, value_three, "medium has a value of a wrong kind"},
        {7, value_three, "lora_name has a value of a wrong kind"},
        {8, value_text, "extra_keys has a value of a wrong kind"},
        {8, value_empty, "extra_keys are not one for each block"},
        {8, value_pairs, "extra_keys are not one for each block"},
        {9, value_big, "group_idx has a value of a wrong kind"},
        {9, value_text, "group_idx has a value of a wrong kind"},
        {10, value_three, "kv_cache_spec_kind has a value of a wrong kind"},
        {11, value_big, "kv_cache_spec_sliding_window has a value of a wrong kind"},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        make_stored(wrong[i].field, wrong[i].value);
        CHECK_EQ(decode(span_of(made.data, made.len)), TARN_OK);
        CHECK_EQ(batch->n, 1);
        CHECK_EQ(batch->left_out, 1);
        CHECK_STR(batch->why_left_out, wrong[i].why);
        event(0, KVEVENTS_CLEARED, 0);
    }
    make_stored(-1, NULL);
    CHECK_EQ(decode(span_of(made.data, made.len)), TARN_OK);
    event(0, KVEVENTS_STORED, 2);
}

/* A removed event that cannot be read refuses its batch. */
TEST(removed_events_refuse) {
    static void (*const values[])(struct buf *) = {value_empty, value_text, value_pairs, pack_nil};
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        buf_clear(&made);
        pack_batch(&made, 1, 2, false);
        pack_cleared(&made);
        pack_array(&made, 2), pack_str(&made, "BlockRemoved"), values[i](&made);
        CHECK_EQ(decode(span_of(made.data, made.len)), TARN_EPROTO);
        CHECK(strstr(why, i == 0 || i == 3 ? "names no block" : "block_hashes") != NULL);
    }
}

/* --- bytes that are no batch, or claim what is not there --- */

TEST(no_batches) {
    static const struct {
        struct span bytes;
        const char *why;
    } wrong[] = {
        {SPAN(""), "no batch of events: neither a list nor a map"},
        {SPAN("\xc1"), "no batch of events: neither a list nor a map"},
        {SPAN("\xc0"), "no batch of events: neither a list nor a map"},
        {SPAN("\x90"), "the batch has no events"},
        {SPAN("\x80"), "the batch has no events"},
        {SPAN("\x92\x01\x02"), "the events are no list"},
        {SPAN("\x92\x01\x91"), "the batch is no msgpack, or is cut short"},
        {SPAN("\x92\x01\x90\x00"), "something follows the batch"},
        {SPAN("\x93\x01\x90\x91"), "the batch is no msgpack, or is cut short"},
        {SPAN("\x92\x01\x91\x92\xa3"), "an event is no msgpack, or is cut short"},
        /* a billion events, blocks, bytes, pairs, and none of them */
        {SPAN("\x92\x01\xdd\x40\x00\x00\x00\xc0"), "the batch is no msgpack, or is cut short"},
        {SPAN("\x92\x01\x91\x92\xab"
              "BlockStored\xdd\x40\x00\x00\x00\x01"),
         "an event is no msgpack, or is cut short"},
        {SPAN("\x92\x01\x91\x92\xdb\x40\x00\x00\x00xx"), "an event is no msgpack, or is cut short"},
        {SPAN("\x92\x01\x91\xdf\x40\x00\x00\x00\x01"), "an event is no msgpack, or is cut short"},
        {SPAN("\x93\x01\x90\xc6\xff\xff\xff\xff"), "the batch is no msgpack, or is cut short"},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        CHECK_EQ(decode(wrong[i].bytes), TARN_EPROTO);
        CHECK_STR(why, wrong[i].why);
    }
}

/* Every beginning of every shape is refused, and reads no further than it goes. */
TEST(cut_short_anywhere) {
    static const struct span all[] = {
        SPAN(vllm_0_26_map),   SPAN(vllm_0_9_array),     SPAN(vllm_0_11_bytes),
        SPAN(vllm_0_15_extra), SPAN(vllm_0_29_locality), SPAN(sglang_array),
        SPAN(sglang_map),      SPAN(mooncake_map),       SPAN(future),
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        for (size_t len = 0; len < all[i].len; len++)
            CHECK_EQ(decode(span_of(all[i].data, len)), TARN_EPROTO);
}

TEST(nesting_without_end) {
    buf_clear(&made);
    pack_batch(&made, 1, 1, true);
    for (int i = 0; i < 500000; i++) buf_append_char(&made, (char)0x91);
    pack_nil(&made);
    pack_nil(&made);
    CHECK_EQ(decode(span_of(made.data, made.len)), TARN_OK);
    CHECK_EQ(batch->unknown, 1);
}

TEST(bounds) {
    buf_clear(&made);
    pack_batch(&made, 1, KVEVENTS_EVENTS_MAX + 1, false);
    for (unsigned i = 0; i <= KVEVENTS_EVENTS_MAX; i++) {
        pack_array(&made, 2), pack_str(&made, "removed");
        pack_array(&made, 1), pack_uint(&made, 1);
    }
    CHECK_EQ(decode(span_of(made.data, made.len)), TARN_EPROTO);
    CHECK_STR(why, "more events in one batch than may be");
    buf_clear(&made);
    buf_reserve(&made, BYTES + 1);
    memset(made.data, 0xc0, BYTES + 1);
    made.len = BYTES + 1;
    CHECK_EQ(decode(span_of(made.data, made.len)), TARN_EPROTO);
    CHECK_STR(why, "longer than a message may be");
}

/* A decoder that goes on: what was refused leaves nothing behind. */
TEST(batches_in_a_row) {
    struct kvevents_decoder *d = kvevents_decoder_create(SEED, BYTES);
    struct kvevents_batch *b = NULL;
    for (int i = 0; i < 3; i++) {
        size_t cut = sizeof(vllm_0_11_bytes) - 10;
        CHECK_EQ(kvevents_decode(d, span_of(vllm_0_11_bytes, cut), &b, &why), TARN_EPROTO);
        CHECK(b == NULL);
        CHECK_EQ(kvevents_decode(d, SPAN(vllm_0_9_array), &b, &why), TARN_OK);
        CHECK_EQ(b->n, 3);
        CHECK_EQ(b->blocks, 3);
        CHECK(b->bytes <= KVEVENTS_BLOWUP * sizeof(vllm_0_9_array) + sizeof(*b));
        kvevents_batch_destroy(&b);
    }
    kvevents_decoder_destroy(&d);
    kvevents_batch_destroy(&batch);
    buf_free(&made);
}

TEST_MAIN()
