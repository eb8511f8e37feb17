#include "ha/older.h"

#include <stdint.h>
#include <string.h>

#include "persist/persist.h"
#include "repl/stream.h"
#include "store/effect.h"

#define NODE_GONE 34 /* u32 length of the name, the name */
#define NAME_AT   9u /* behind length, kind, length of the name */

bool older_records(char *records, size_t len) {
    enum effect_kind kind;
    struct span record;
    for (size_t at = 0; at < len; at += record.len) {
        if (effect_next(span_of(records + at, len - at), &kind, &record) != TARN_OK) return false;
        if (persist_kind_in_0_1(kind)) continue;
        if (record.len < NAME_AT) return false;
        uint32_t name = (uint32_t)(record.len - NAME_AT);
        records[at + 4] = NODE_GONE;
        memcpy(records + at + 5, &name, sizeof(name));
        memset(records + at + NAME_AT, 0, name);
    }
    return true;
}

bool older_commands(char *commands, size_t len) {
    struct repl_read r;
    const char *why;
    for (size_t at = 0; at < len; at += r.used) {
        if (repl_stream_read(span_of(commands + at, len - at), &r, &why) != TARN_OK) return false;
        if (r.command == REPL_COMMAND_EFFECTS &&
            !older_records(commands + (r.records.data - commands), r.records.len))
            return false;
    }
    return true;
}
