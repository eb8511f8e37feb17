/* What a client makes of the keys in SEGMENT INFO: of good ones, of late ones, of nonsense. The
 * transport moves nothing, so that values come by tcp whatever happens. */
#include "pool.h"

#include "base/assert.h"
#include "base/buf.h"
#include "base/clock.h"
#include "client/client.h"
#include "fake_transport.h"

static bool registered;

static void begin_with(const char *options) {
    begin(options);
    if (registered) transport_unregister(&transport_far); /* a test has failed */
    registered = true;
    far_register("rdma");
    dev_set(1, false);
    CHECK_EQ(put_n("k", 20000, 1), TARN_OK); /* one lane has asked */
}

static void end_all(void) {
    end();
    registered = false;
    transport_unregister(&transport_far);
}

static void add_bulk(struct buf *b, const void *data, size_t len) {
    buf_printf(b, "$%zu\r\n", len);
    buf_append(b, data, len);
    buf_append_str(b, "\r\n");
}

static void add_keys(struct buf *b, const char *uri, const char *read_key, const char *write_key) {
    buf_append_str(b, "*3\r\n");
    add_bulk(b, uri, strlen(uri));
    add_bulk(b, read_key, strlen(read_key));
    add_bulk(b, write_key, strlen(write_key));
}

static void info(struct buf *b, unsigned fields) {
    pool_info(fields, b->data, b->len);
    buf_free(b);
}

/* SEGMENT INFO is asked anew by a new client. */
static void reconnect(const char *options) {
    tarn_close(&client);
    CHECK_EQ(tarn_connect(pool_url(options), NULL, &client), TARN_OK);
}

/* What the transport was shown since the last look. */
static const char *shown(void) {
    static char text[sizeof(dev.unpacked)];
    pthread_mutex_lock(&dev.mutex);
    memcpy(text, dev.unpacked, sizeof(text));
    dev.unpacked[0] = '\0';
    pthread_mutex_unlock(&dev.mutex);
    return text;
}

static const char *was_shown(const char *uri, const char *key) {
    static char text[200];
    snprintf(text, sizeof(text), "%s %u %s; ", uri, pool_segment(0), key);
    return text;
}

TEST(the_key_for_what_is_to_be_done_is_used) {
    begin_with("");
    struct buf b = {NULL, 0, 0};
    add_bulk(&b, "keys", 4);
    buf_append_str(&b, "*2\r\n");
    add_keys(&b, "other://h:1", "other-read", "other-write");
    add_keys(&b, "rdma://10.9.0.1:33", "the-read-key", "the-write-key");
    info(&b, 1);
    reconnect("");
    CHECK_EQ(get("k", 20000), TARN_OK);
    CHECK_STR(shown(), was_shown("rdma://10.9.0.1:33", "r the-read-key"));
    reconnect("");
    CHECK_EQ(put_n("k2", 20000, 1), TARN_OK);
    CHECK(strstr(shown(), was_shown("rdma://10.9.0.1:33", "w the-write-key")) != NULL);
    CHECK_EQ(figures().rdma_bytes_written, 0);
    CHECK_EQ(figures().tcp_bytes_written, 20000);
    end_all();
}

TEST(who_may_not_write_has_a_key_to_read_with) {
    begin_with("");
    struct buf b = {NULL, 0, 0};
    add_bulk(&b, "keys", 4);
    buf_append_str(&b, "*1\r\n");
    add_keys(&b, "rdma://h:33", "read-only", "");
    info(&b, 1);
    reconnect("");
    CHECK_EQ(get("k", 20000), TARN_OK);
    CHECK_STR(shown(), was_shown("rdma://h:33", "r read-only"));
    reconnect("");
    CHECK_EQ(put_n("k2", 20000, 1), TARN_OK);
    CHECK(strstr(shown(), " w ") == NULL);
    end_all();
}

TEST(transport_tcp_looks_at_no_key) {
    begin_with("");
    struct buf b = {NULL, 0, 0};
    add_bulk(&b, "keys", 4);
    buf_append_str(&b, "*1\r\n");
    add_keys(&b, "rdma://h:33", "r", "w");
    info(&b, 1);
    reconnect("transport=tcp");
    CHECK_EQ(get("k", 20000), TARN_OK);
    CHECK_STR(shown(), "");
    end_all();
}

TEST(a_key_that_comes_late_is_asked_for_now_and_then) {
    begin_with("");
    struct buf b = {NULL, 0, 0};
    add_bulk(&b, "keys", 4);
    buf_append_str(&b, "*0\r\n");
    add_bulk(&b, "transports", 10);
    buf_append_str(&b, "*2\r\n");
    add_bulk(&b, "other", 5);
    add_bulk(&b, "rdma", 4);
    info(&b, 2);
    reconnect("");
    pool_forget_commands();
    uint64_t until = clock_mono_ms() + TEST_PATIENCE_MS;
    unsigned gets = 0;
    for (; pool_count("SEGMENT INFO *") < 3 && clock_mono_ms() < until; gets++) {
        CHECK_EQ(get("k", 20000), TARN_OK);
        usleep(10000);
    }
    CHECK_EQ(pool_count("SEGMENT INFO *"), 3);
    CHECK(gets > 6); /* not at every turn */
    CHECK_STR(shown(), "");
    add_bulk(&b, "keys", 4);
    buf_append_str(&b, "*1\r\n");
    add_keys(&b, "rdma://h:33", "late", "late");
    info(&b, 1);
    bool found = false;
    while (!found && clock_mono_ms() < until) {
        CHECK_EQ(get("k", 20000), TARN_OK);
        found = strstr(shown(), was_shown("rdma://h:33", "r late")) != NULL;
        usleep(10000);
    }
    CHECK(found);
    end_all();
}

TEST(where_no_key_will_come_nobody_asks_again) {
    begin_with("");
    reconnect("");
    pool_forget_commands();
    uint64_t until = clock_mono_ms() + 1200;
    while (clock_mono_ms() < until) {
        CHECK_EQ(get("k", 20000), TARN_OK);
        usleep(20000);
    }
    CHECK_EQ(pool_count("SEGMENT INFO *"), 1);
    end_all();
}

TEST(nonsense_is_no_key) {
    static const char *const texts[] = {
        "$4\r\nkeys\r\n$3\r\nabc\r\n",
        "$4\r\nkeys\r\n:5\r\n",
        "$4\r\nkeys\r\n$-1\r\n",
        "$4\r\nkeys\r\n*3\r\n:1\r\n$-1\r\n*0\r\n",
        "$4\r\nkeys\r\n*1\r\n*1\r\n$10\r\nrdma://h:1\r\n",
        "$4\r\nkeys\r\n*1\r\n*3\r\n$10\r\nrdma://h:1\r\n:7\r\n$-1\r\n",
        "$4\r\nkeys\r\n*1\r\n*3\r\n$10\r\nrdma://h:1\r\n$0\r\n\r\n$0\r\n\r\n",
        "$4\r\nkeys\r\n*1\r\n*3\r\n:7\r\n$1\r\nr\r\n$1\r\nw\r\n",
        "$4\r\nkeys\r\n*1\r\n*3\r\n$4\r\nrdma\r\n$1\r\nr\r\n$1\r\nw\r\n",
        "$10\r\ntransports\r\n$4\r\nrdma\r\n",
        "$10\r\ntransports\r\n*2\r\n:4\r\n*1\r\n$4\r\nrdma\r\n",
    };
    begin_with("");
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        pool_info(1, texts[i], strlen(texts[i]));
        reconnect("");
        CHECK_EQ(get("k", 20000), TARN_OK);
        CHECK_STR(shown(), "");
    }
    static const char nul[] =
        "$4\r\nkeys\r\n*1\r\n*3\r\n$12\r\nrdma://h\0:1\0\r\n$1\r\nr\r\n$1\r\nw\r\n";
    pool_info(1, nul, sizeof(nul) - 1);
    reconnect("");
    CHECK_EQ(get("k", 20000), TARN_OK);
    CHECK_STR(shown(), "");
    end_all();
}

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
