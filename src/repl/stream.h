/* The bytes between master and replica. What a replica reads may come from anybody.
 *
 * stream:    *2 $7 EFFECTS $n records | *1 $4 PING | *3 $8 REPLCONF $6 GETACK $1 *
 * snapshot:  $EOF:mark\r\n, head record, records, offset record, mark */
#ifndef TARN_REPL_STREAM_H
#define TARN_REPL_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "store/effect.h"

#define REPL_VERSION      1u
#define REPL_CAPA         "tarn1"         /* who does not say so in REPLCONF cannot read this, */
#define REPL_CAPA_MODERN  "tarn2"         /* who does not say this is of tarn 0.1 */
#define REPL_CAPA_VERSION "tarn-version:" /* what follows is the replica's */
#define REPL_MARK_LEN     40              /* repl_new_id */
#define REPL_EFFECTS_MAX  (UINT32_C(1) << 24) /* bytes of records in one command */

/* Kinds of records that only stand in a snapshot on its way. */
enum {
    REPL_RECORD_HEAD = 96, /* "TARNSYNC", u32 REPL_VERSION */
    /* u64: what came before is the state at this offset of the stream. The last one */
    REPL_RECORD_OFFSET = 97,
};

/* --- writing --- */

/* The bytes before n bytes of records; after them comes "\r\n". */
void repl_write_effects_header(struct buf *out, size_t n);
#define REPL_PING   SPAN("*1\r\n$4\r\nPING\r\n")
#define REPL_GETACK SPAN("*3\r\n$8\r\nREPLCONF\r\n$6\r\nGETACK\r\n$1\r\n*\r\n")
void repl_write_head(struct buf *out);
void repl_write_offset(struct buf *out, uint64_t offset);

/* --- reading --- */

enum repl_command { REPL_COMMAND_EFFECTS, REPL_COMMAND_PING, REPL_COMMAND_GETACK };

struct repl_read {
    enum repl_command command;
    size_t used;         /* bytes of the whole command */
    struct span records; /* of EFFECTS */
};
/* The first command of data. TARN_EAGAIN: there is not all of it yet. TARN_EPROTO with *why_p
 * (static): nonsense. */
tarn_status repl_stream_read(struct span data, struct repl_read *read_p, const char **why_p);

/* A record of a snapshot on its way; record as of effect_next. TARN_OK. TARN_EPROTO with *why_p
 * (static). */
tarn_status repl_read_head(struct span record, const char **why_p);
tarn_status repl_read_offset(struct span record, uint64_t *offset_p, const char **why_p);

#endif
