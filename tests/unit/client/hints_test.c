/* Hints of calls and puts: what goes over the wire of them, and what is wrong with them. */
#include "pool.h"

#define KEYS 3
static const tarn_key keys[KEYS] = {{"a", 1}, {"b", 1}, {"c", 1}};
static const tarn_key hashes[1] = {{"h0", 2}};
static const tarn_kv_group group = {"f@", 2, TARN_KV_FULL, 0, 16, 0, 0};
static const tarn_kv_query query = {sizeof(query), hashes, 1, 16, 16, &group, 1};
static char byte[1];
static size_t n;

static tarn_status put_one(const char *key, size_t len, const tarn_put_options *o) {
    return tarn_put(client, key, strlen(key), "0123456789", len, o);
}

static tarn_item *place_one(void *arg, uint64_t tokens, const tarn_kv_parts *parts,
                            size_t parts_n) {
    static tarn_item item;
    (void)arg, (void)tokens, (void)parts, (void)parts_n;
    item = (tarn_item){.buffer = byte, .buffer_len = 1};
    return &item;
}

/* By each function that takes a tarn_call; how many of them say so. */
static unsigned call_all(const tarn_call *call, tarn_status expected) {
    tarn_view *view = NULL;
    tarn_kv_parts parts;
    uint64_t tokens;
    tarn_item item = {.key = "a", .key_len = 1, .buffer = byte, .buffer_len = 1};
    unsigned as_expected = 0;
    as_expected += tarn_get(client, "a", 1, byte, 1, NULL, call) == expected;
    as_expected += tarn_get_many(client, &item, 1, call, NULL) == expected;
    as_expected += tarn_prefix_length(client, keys, KEYS, call, &n) == expected;
    as_expected += tarn_kv_prefix(client, &query, call, &tokens, &parts) == expected;
    as_expected +=
        tarn_kv_get(client, &query, call, place_one, NULL, &tokens, &parts, NULL) == expected;
    as_expected += tarn_view_open(client, "a", 1, call, &view) == expected;
    tarn_view_release(&view);
    return as_expected;
}

TEST(they_go_with_look_ups) {
    tarn_call call;
    begin("");
    CHECK_EQ(put_one("a", 1, NULL), TARN_OK);
    CHECK_EQ(put_one("f@h0", 1, NULL), TARN_OK);
    tarn_call_init(&call);
    CHECK_EQ(call_all(NULL, TARN_OK), 6);
    CHECK_EQ(call_all(&call, TARN_OK), 6);
    CHECK_EQ(pool_count("*HINT*"), 0); /* what is not used no older server sees */
    pool_forget_commands();
    call.session = "chat";
    call.session_len = 4;
    call.return_ms = TARN_RETURN_MAX;
    CHECK_EQ(call_all(&call, TARN_OK), 6);
    CHECK_EQ(pool_count("MGETREPLICAS 1 a *HINT SESSION chat HINT RETURN 86400000*"), 2);
    CHECK_EQ(pool_count("PREFIXLEN 3 *HINT SESSION chat HINT RETURN 86400000*"), 1);
    CHECK_EQ(pool_count("PREFIXLEN 1 h0 *KVGROUPS*HINT SESSION chat HINT RETURN 86400000*"), 1);
    CHECK_EQ(pool_count("MGETREPLICAS 1 h0 *KVGROUPS*HINT SESSION chat HINT RETURN 86400000*"), 1);
    CHECK_EQ(pool_count("GETREPLICAS a *HINT SESSION chat HINT RETURN 86400000*"), 1);
    pool_forget_commands();
    call.return_ms = 0;
    call.session = "chatter";
    CHECK_EQ(call_all(&call, TARN_OK), 6); /* as many bytes of it as session_len says */
    CHECK_EQ(pool_count("*HINT SESSION chat*"), 6);
    CHECK_EQ(pool_count("*HINT SESSION chatter*"), 0);
    CHECK_EQ(pool_count("*HINT RETURN*"), 0);
    end();
}

TEST(they_go_with_puts) {
    tarn_put_options o;
    tarn_item items[2] = {{.key = "m1", .key_len = 2, .buffer = byte, .buffer_len = 1},
                          {.key = "m2", .key_len = 2, .buffer = byte, .buffer_len = 1}};
    tarn_writer *w;
    char session[] = "chat";
    begin("");
    tarn_put_options_init(&o);
    CHECK_EQ(put_one("before", 1, &o), TARN_OK);
    CHECK_EQ(pool_count("*HINT*"), 0);
    o.session = session;
    o.session_len = 4;
    o.return_ms = 7;
    CHECK_EQ(put_one("k", 10, &o), TARN_OK);
    CHECK_EQ(tarn_put_many(client, items, 2, &o, NULL), TARN_OK);
    CHECK_EQ(tarn_writer_open(client, "w", 1, 1, &o, &w), TARN_OK);
    memcpy(tarn_writer_data(w), "v", 1);
    session[0] = 'x'; /* a writer has its own */
    CHECK_EQ(tarn_writer_commit(&w), TARN_OK);
    CHECK_EQ(pool_count("MPUTSTART 1 k 10 *HINT SESSION chat HINT RETURN 7*"), 1);
    CHECK_EQ(pool_count("MPUTSTART 2 m1 1 m2 1 *HINT SESSION chat HINT RETURN 7*"), 1);
    CHECK_EQ(pool_count("PUTSTART w 1 *HINT SESSION chat HINT RETURN 7*"), 1);
    end();
}

/* One that was built before there were hints. */
TEST(an_older_caller) {
    tarn_call call;
    tarn_put_options o;
    begin("");
    memset(&call, 0xff, sizeof(call));
    call = (tarn_call){.size = offsetof(tarn_call, session),
                       .session = (const void *)1,
                       .session_len = 1000,
                       .return_ms = UINT64_MAX};
    CHECK_EQ(put_one("a", 1, NULL), TARN_OK);
    CHECK_EQ(tarn_get(client, "a", 1, byte, 1, NULL, &call), TARN_OK);
    o = (tarn_put_options){.size = offsetof(tarn_put_options, session), .session_len = 1000};
    CHECK_EQ(put_one("b", 1, &o), TARN_OK);
    CHECK_EQ(pool_count("*HINT*"), 0);
    end();
}

/* A server from before hints. */
TEST(an_older_server) {
    tarn_call call;
    begin("");
    tarn_call_init(&call);
    call.session = "s";
    call.session_len = 1;
    pool_script("PREFIXLEN", 0, POOL_SAY, "-ERR unknown option 'HINT'\r\n");
    CHECK_EQ(tarn_prefix_length(client, keys, KEYS, &call, &n), TARN_ERR);
    CHECK(strstr(tarn_last_error(), "HINT") != NULL);
    CHECK_EQ(tarn_prefix_length(client, keys, KEYS, NULL, &n), TARN_OK);
    end();
}

TEST(what_is_wrong_with_them) {
    static char longest[TARN_SESSION_MAX + 1];
    tarn_call call;
    tarn_put_options o;
    begin("");
    memset(longest, 's', sizeof(longest));
    CHECK_EQ(put_one("a", 1, NULL), TARN_OK);
    CHECK_EQ(put_one("f@h0", 1, NULL), TARN_OK);
    for (int i = 0; i < 4; i++) {
        tarn_call_init(&call);
        tarn_put_options_init(&o);
        call.session = o.session = i == 1 ? NULL : longest;
        call.session_len = o.session_len = i == 1 ? 1 : i == 2 ? TARN_SESSION_MAX + 1 : 0;
        call.return_ms = o.return_ms = i == 3 ? TARN_RETURN_MAX + 1 : 0;
        CHECK_EQ(call_all(&call, i == 0 ? TARN_OK : TARN_EINVAL), 6);
        CHECK_EQ(strstr(tarn_last_error(), i == 3 ? "return_ms" : "session") != NULL, i > 0);
        CHECK_EQ(put_one(i == 0 ? "b" : "c", 1, &o), i == 0 ? TARN_OK : TARN_EINVAL);
    }
    CHECK_EQ(pool_count("*HINT*"), 0);
    call.return_ms = 0;
    call.session_len = TARN_SESSION_MAX;
    CHECK_EQ(call_all(&call, TARN_OK), 6);
    end();
}

TEST_MAIN()
