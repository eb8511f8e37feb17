#include "base/json_text.h"

#include <stdbool.h>

static bool is_plain(unsigned char c) {
    return c >= ' ' && c < 0x7f && c != '"' && c != '\\';
}

void json_text_put(struct buf *out, struct span text) {
    buf_append_char(out, '"');
    for (size_t at = 0; at < text.len;) {
        size_t start = at;
        while (at < text.len && is_plain((unsigned char)text.data[at])) at++;
        buf_append(out, text.data + start, at - start); /* nearly always all of it */
        if (at == text.len) break;
        unsigned char c = (unsigned char)text.data[at];
        size_t len = span_utf8_len(span_of(text.data + at, text.len - at));
        if (len == 0) {
            buf_append_str(out, "\\ufffd");
        } else if (c < ' ' || c == 0x7f) {
            buf_printf(out, "\\u%04x", c);
        } else {
            if (c == '"' || c == '\\') buf_append_char(out, '\\');
            buf_append(out, text.data + at, len);
        }
        at += len == 0 ? 1 : len;
    }
    buf_append_char(out, '"');
}
