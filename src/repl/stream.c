#include "repl/stream.h"

#include <string.h>
#include <sodium.h>

#include "resp/resp.h"

#define NUMBER_MAX 10u /* digits of a count or length */
static const char magic[8] = "TARNSYNC";

/* --- writing --- */

void repl_write_effects_header(struct buf *out, size_t n) {
    buf_append_str(out, "*2\r\n$7\r\nEFFECTS\r\n");
    resp_write_bulk_header(out, n);
}

static void record_write(struct buf *out, unsigned kind, const void *data, size_t len) {
    uint32_t n = (uint32_t)len + 1;
    buf_append(out, &n, sizeof(n));
    buf_append_char(out, (char)kind);
    buf_append(out, data, len);
}

void repl_write_head(struct buf *out) {
    char body[sizeof(magic) + 4];
    uint32_t version = REPL_VERSION;
    memcpy(body, magic, sizeof(magic));
    memcpy(body + sizeof(magic), &version, sizeof(version));
    record_write(out, REPL_RECORD_HEAD, body, sizeof(body));
}

void repl_write_offset(struct buf *out, uint64_t offset) {
    record_write(out, REPL_RECORD_OFFSET, &offset, sizeof(offset));
}

/* --- reading --- */

/* "*12\r\n" with that first character. Moves *pos_p behind it. */
static tarn_status read_count(struct span data, size_t *pos_p, char first, uint64_t *value_p) {
    size_t pos = *pos_p, from = pos + 1;
    if (pos == data.len) return TARN_EAGAIN;
    if (data.data[pos] != first) return TARN_EPROTO;
    for (pos = from; pos < data.len && data.data[pos] != '\r'; pos++)
        if (data.data[pos] < '0' || data.data[pos] > '9' || pos - from >= NUMBER_MAX)
            return TARN_EPROTO;
    if (pos == data.len) return TARN_EAGAIN;
    if (!span_to_u64(span_of(data.data + from, pos - from), value_p)) return TARN_EPROTO;
    if (pos + 1 == data.len) return TARN_EAGAIN;
    if (data.data[pos + 1] != '\n') return TARN_EPROTO;
    *pos_p = pos + 2;
    return TARN_OK;
}

static tarn_status read_bulk(struct span data, size_t *pos_p, uint64_t max, struct span *arg_p) {
    size_t pos = *pos_p;
    uint64_t len;
    tarn_status s = read_count(data, &pos, '$', &len);
    if (s != TARN_OK) return s;
    if (len > max) return TARN_EPROTO;
    if (data.len - pos < len + 2) return TARN_EAGAIN;
    if (memcmp(data.data + pos + len, "\r\n", 2) != 0) return TARN_EPROTO;
    *arg_p = span_of(data.data + pos, (size_t)len);
    *pos_p = pos + (size_t)len + 2;
    return TARN_OK;
}

tarn_status repl_stream_read(struct span data, struct repl_read *read_p, const char **why_p) {
    struct span arg[3] = {{NULL, 0}};
    uint64_t n;
    size_t pos = 0;
    *why_p = "the stream is not a list of commands";
    tarn_status s = read_count(data, &pos, '*', &n);
    if (s == TARN_OK && (n < 1 || n > 3)) s = TARN_EPROTO;
    for (uint64_t i = 0; s == TARN_OK && i < n; i++) {
        bool effects = i == 1 && span_case_eq(arg[0], "effects");
        s = read_bulk(data, &pos, effects ? REPL_EFFECTS_MAX : 16, &arg[i]);
    }
    if (s != TARN_OK) return s;
    struct repl_read r = {.used = pos};
    if (n == 2 && span_case_eq(arg[0], "effects")) {
        r.command = REPL_COMMAND_EFFECTS;
        r.records = arg[1];
    } else if (n == 1 && span_case_eq(arg[0], "ping")) {
        r.command = REPL_COMMAND_PING;
    } else if (n == 3 && span_case_eq(arg[0], "replconf") && span_case_eq(arg[1], "getack") &&
               span_eq(arg[2], SPAN("*"))) {
        r.command = REPL_COMMAND_GETACK;
    } else {
        *why_p = "the stream has a command that is not known here";
        return TARN_EPROTO;
    }
    *read_p = r;
    return TARN_OK;
}

tarn_status repl_read_head(struct span record, const char **why_p) {
    uint32_t version;
    *why_p = "the snapshot is not tarn's";
    if (record.len < 5 + sizeof(magic) + sizeof(version) ||
        (unsigned char)record.data[4] != REPL_RECORD_HEAD ||
        memcmp(record.data + 5, magic, sizeof(magic)) != 0)
        return TARN_EPROTO;
    memcpy(&version, record.data + 5 + sizeof(magic), sizeof(version));
    *why_p = "the master's version speaks another replication format";
    return version == REPL_VERSION ? TARN_OK : TARN_EPROTO;
}

tarn_status repl_read_offset(struct span record, uint64_t *offset_p, const char **why_p) {
    *why_p = "the end of the snapshot makes no sense";
    if (record.len != 5 + sizeof(*offset_p)) return TARN_EPROTO;
    memcpy(offset_p, record.data + 5, sizeof(*offset_p));
    return TARN_OK;
}
