/* The stream of a master: however the bytes are cut, the commands in it and the end of sense are
 * the same; and what was read, written again, is what was there. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/buf.h"
#include "repl/stream.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void records(struct span all) {
    enum effect_kind kind;
    struct span record;
    const char *why;
    uint64_t offset;
    while (effect_next(all, &kind, &record) == TARN_OK) {
        TARN_ASSERT(record.len >= 5 && record.len <= all.len);
        (void)repl_read_head(record, &why);
        (void)repl_read_offset(record, &offset, &why);
        all = span_of(all.data + record.len, all.len - record.len);
    }
}

static void write_again(const struct repl_read *r, struct buf *out) {
    struct span ping = REPL_PING, getack = REPL_GETACK, plain = {NULL, 0};
    buf_clear(out);
    switch (r->command) {
    case REPL_COMMAND_EFFECTS:
        repl_write_effects_header(out, r->records.len);
        plain = r->records;
        break;
    case REPL_COMMAND_PING: plain = ping; break;
    case REPL_COMMAND_GETACK: plain = getack; break;
    }
    buf_append(out, plain.data, plain.len);
    if (r->command == REPL_COMMAND_EFFECTS) buf_append_str(out, "\r\n");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct buf out = {NULL, 0, 0};
    const char *why;
    for (size_t pos = 0; pos < size;) {
        struct repl_read r, part;
        char *copy = xmemdup(data + pos, size - pos); /* as long as that and no longer */
        tarn_status s = repl_stream_read(span_of(copy, size - pos), &r, &why);
        size_t whole = s == TARN_OK ? r.used : size - pos;
        TARN_ASSERT(s == TARN_OK || s == TARN_EAGAIN || s == TARN_EPROTO);
        /* Nothing is read of a part, and sense does not come back with more bytes. */
        for (size_t n = 0; n < whole && n < 200; n++) {
            tarn_status t = repl_stream_read(span_of(copy, n), &part, &why);
            TARN_ASSERT(t == TARN_EAGAIN || (t == TARN_EPROTO && s == TARN_EPROTO));
        }
        if (s == TARN_OK) {
            records(r.records);
            write_again(&r, &out);
            TARN_ASSERT(out.len == r.used); /* names of commands may be in any case */
        } else {
            records(span_of(copy, size - pos));
        }
        free(copy);
        if (s != TARN_OK) break;
        pos += r.used;
    }
    buf_free(&out);
    return 0;
}
