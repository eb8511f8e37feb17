/* What goes over the wire: written and read again, in pieces, and read when it is nonsense. */
#include "../test.h"
#include "repl/history.h"
#include "repl/stream.h"

static struct span text(const char *s) {
    return span_of(s, strlen(s));
}

static void record(struct buf *b, unsigned kind, const char *body) {
    uint32_t n = (uint32_t)strlen(body) + 1;
    buf_append(b, &n, 4);
    buf_append_char(b, (char)kind);
    buf_append_str(b, body);
}

TEST(commands_are_read_as_they_were_written) {
    struct buf out = {NULL, 0, 0}, records = {NULL, 0, 0};
    struct repl_read r;
    const char *why;
    record(&records, 1, "some object");
    record(&records, 2, "");
    repl_write_effects_header(&out, records.len);
    buf_append(&out, records.data, records.len);
    buf_append_str(&out, "\r\n");
    size_t effects = out.len;
    struct span ping = REPL_PING, getack = REPL_GETACK;
    buf_append(&out, ping.data, ping.len);
    buf_append(&out, getack.data, getack.len);
    for (size_t n = 0; n < effects; n++)
        CHECK_EQ(repl_stream_read(span_of(out.data, n), &r, &why), TARN_EAGAIN);
    CHECK_EQ(repl_stream_read(span_of(out.data, out.len), &r, &why), TARN_OK);
    CHECK_EQ(r.command, REPL_COMMAND_EFFECTS);
    CHECK_EQ(r.used, effects);
    CHECK(span_eq(r.records, span_of(records.data, records.len)));
    struct span rest = span_of(out.data + effects, out.len - effects);
    for (size_t n = 0; n < ping.len; n++)
        CHECK_EQ(repl_stream_read(span_of(rest.data, n), &r, &why), TARN_EAGAIN);
    CHECK_EQ(repl_stream_read(rest, &r, &why), TARN_OK);
    CHECK_EQ(r.command, REPL_COMMAND_PING);
    rest = span_of(rest.data + r.used, rest.len - r.used);
    for (size_t n = 0; n < getack.len; n++)
        CHECK_EQ(repl_stream_read(span_of(rest.data, n), &r, &why), TARN_EAGAIN);
    CHECK_EQ(repl_stream_read(rest, &r, &why), TARN_OK);
    CHECK_EQ(r.command, REPL_COMMAND_GETACK);
    CHECK_EQ(r.used, rest.len);
    buf_free(&out);
    buf_free(&records);
}

TEST(nonsense_is_told_at_once) {
    static const char *const bad[] = {
        "x",
        "PING\r\n",
        "*0\r\n",
        "*4\r\n",
        "*-1\r\n",
        "*01\r\n",
        "*1\n",
        "*1\rx",
        "*99999999999",
        "*1\r\n+PING\r\n",
        "*1\r\n$17\r\n",
        "*1\r\n$4\r\nPINGxx",
        "*1\r\n$4\r\nPONG\r\n",
        "*2\r\n$4\r\nPING\r\n$1\r\nx\r\n",
        "*2\r\n$7\r\nEFFECTS\r\n$16777217\r\n",
        "*3\r\n$7\r\nEFFECTS\r\n$1\r\nx\r\n$1\r\nx\r\n",
        "*3\r\n$8\r\nREPLCONF\r\n$3\r\nACK\r\n$1\r\n1\r\n",
        "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n",
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct repl_read r;
        const char *why = NULL;
        CHECK_EQ(repl_stream_read(text(bad[i]), &r, &why), TARN_EPROTO);
        CHECK(why != NULL);
    }
}

TEST(the_frame_of_a_snapshot) {
    struct buf out = {NULL, 0, 0};
    enum effect_kind kind;
    struct span got;
    const char *why;
    uint64_t offset = 0;
    char mark[REPL_MARK_LEN + 1], other[REPL_MARK_LEN + 1];
    repl_write_head(&out);
    CHECK_EQ(effect_next(span_of(out.data, out.len), &kind, &got), TARN_OK);
    CHECK_EQ(repl_read_head(got, &why), TARN_OK);
    out.data[13]++; /* the version */
    CHECK_EQ(repl_read_head(got, &why), TARN_EPROTO);
    CHECK(strstr(why, "version") != NULL);
    out.data[13]--;
    out.data[5] = 'X';
    CHECK_EQ(repl_read_head(got, &why), TARN_EPROTO);
    CHECK_EQ(repl_read_head(span_of(got.data, 10), &why), TARN_EPROTO);
    buf_clear(&out);
    repl_write_offset(&out, UINT64_C(0x123456789abc));
    CHECK_EQ(effect_next(span_of(out.data, out.len), &kind, &got), TARN_OK);
    CHECK_EQ(kind, REPL_RECORD_OFFSET);
    CHECK_EQ(repl_read_offset(got, &offset, &why), TARN_OK);
    CHECK_EQ(offset, UINT64_C(0x123456789abc));
    CHECK_EQ(repl_read_offset(span_of(got.data, got.len - 1), &offset, &why), TARN_EPROTO);
    repl_new_id(mark);
    repl_new_id(other);
    CHECK_EQ(strlen(mark), REPL_MARK_LEN);
    CHECK(strcmp(mark, other) != 0);
    buf_free(&out);
}

TEST_MAIN()
