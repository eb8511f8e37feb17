#include "base/json_text.h"

#include <stdlib.h>
#include "../test.h"

/* Until the next call. Of a copy of just its bytes: what is read behind it shows. */
static const char *put(struct span text) {
    static struct buf out;
    char *exact = text.len > 0 ? xmemdup(text.data, text.len) : NULL;
    buf_free(&out);
    json_text_put(&out, span_of(exact, text.len));
    buf_append_char(&out, '\0');
    free(exact);
    return out.data;
}

TEST(characters) {
    CHECK_STR(put(SPAN("")), "\"\"");
    CHECK_STR(put(SPAN("plain")), "\"plain\"");
    CHECK_STR(put(SPAN("a\"\\b")), "\"a\\\"\\\\b\"");
    CHECK_STR(put(SPAN("\n\x1f\x7f")), "\"\\u000a\\u001f\\u007f\"");
    CHECK_STR(put(SPAN("a\0b")), "\"a\\u0000b\"");
    CHECK_STR(put(SPAN("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80")),
              "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"");
}

TEST(what_is_no_character) {
    CHECK_STR(put(SPAN("a\xff")), "\"a\\ufffd\"");
    CHECK_STR(put(SPAN("\xc0\x80z")), "\"\\ufffd\\ufffdz\"");
    CHECK_STR(put(SPAN("\xed\xa0\x80")), "\"\\ufffd\\ufffd\\ufffd\"");
    CHECK_STR(put(SPAN("\xe2\x82")), "\"\\ufffd\\ufffd\"");
    CHECK_STR(put(SPAN("\xf0\x9f\x98\"")), "\"\\ufffd\\ufffd\\ufffd\\\"\"");
}

TEST_MAIN()
