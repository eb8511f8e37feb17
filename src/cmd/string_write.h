/* Writing an in-band value: SET, APPEND, INCR and their kin are one machine with different plans.
 *
 *   plan ─> small: into the books ──────────────────────────────────────> answer
 *     ^ └─> put (making room, in slices) ─> copy (in slices) ─> commit ─> answer
 *     └───────── the key changed meanwhile (base_version) ─────────┘
 *
 * A plan looks at the key as it is now and says what the new value is made of; it answers itself when nothing is to be
 * written. It may run again, so all it needs is in the arguments or in the state. */
#ifndef TARN_CMD_STRING_WRITE_H
#define TARN_CMD_STRING_WRITE_H

#include "cmd/cmd.h"
#include "cmd/pool_writer.h"

/* Part of a new value. By reference to what does not move between slices. */
struct string_part {
    enum {
        PART_ARG,
        PART_OLD,
        PART_SMALL,
        PART_ZERO
    } from;       /* PART_OLD, PART_SMALL: of old_piece[index], of small[] */
    size_t index; /* of the argument or piece */
    size_t offset, len;
};
enum { STRING_PARTS = 2 * STORE_EXTENTS_MAX + 2 };

enum string_flag {
    STRING_NX = 1,
    STRING_XX = 2,
    STRING_GET = 4,
    STRING_KEEPTTL = 8,
    STRING_CHECK = 16, /* commit only if the key's version is still base_version */
    STRING_SINK = 32,  /* the value lies in the pool already: client's sink */
};

struct string_write;
typedef bool (*string_plan_fn)(struct client *c, struct string_write *w);
typedef void (*string_answer_fn)(struct client *c, struct string_write *w);

struct string_write {
    struct job job;
    string_plan_fn plan;
    string_answer_fn answer;
    size_t key_arg, value_arg;
    unsigned flags;
    int64_t number;          /* the plan's: increment, offset */
    uint64_t expire_wall_ms; /* 0: never */
    /* the plan's result */
    uint64_t size, base_version; /* 0: the key was not there */
    size_t parts;
    struct string_part part[STRING_PARTS];
    /* the value before, when the plan asked for it */
    struct store_hold *old;
    size_t old_pieces; /* 0: there was none */
    struct span old_piece[STORE_EXTENTS_MAX];
    char old_small[STORE_INLINE_MAX]; /* of a value in the books */
    uint64_t old_size;
    bool old_there, old_in_small;
    char small[128];
    struct big_sink *sink; /* taken from the client */
    /* progress */
    enum { STRING_PLAN, STRING_ROOM, STRING_COPY } phase;
    struct store_put *put;
    size_t part_at, part_done;
    unsigned tries;
    bool failed; /* an error was answered in place of what answer would have said */
    struct pool_writer writer;
};

/* Runs it; state is the caller's (on its stack) and is copied if the first slice does not do it. */
void string_write_run(struct client *c, struct string_write *w);
/* One step of it inside another job (MSET): true when it has answered. */
bool string_write_step(struct client *c, struct string_write *w, unsigned *budget);
void string_write_clean(struct client *c, struct string_write *w);
/* For plans: keeps the bytes of o until the write is over. */
void string_write_keep_old(struct string_write *w, const struct object *o);
void string_write_reply_old(struct client *c, struct string_write *w); /* nil when there was none */
void string_write_part(struct string_write *w, struct string_part part);
/* A write of the whole argument value_arg. */
void string_write_whole(struct client *c, struct string_write *w);
/* The answer to a value that could not be written. */
void string_write_failed(struct client *c, tarn_status status, uint64_t size);
/* Bytes of argument i, of the sink if they are there. */
uint64_t string_arg_len(const struct client *c, const struct string_write *w, size_t i);

/* --- values that came straight from the socket: cmd_string_big.c ------------------------------------------------------ */

uint64_t big_sink_size(const struct big_sink *sink);
/* Makes it the value of its key, which must be the one it was begun with. Frees the sink. TARN_ETOKEN: superseded. */
tarn_status big_sink_commit(struct big_sink **sink_p, struct span key);

/* --- reading: cmd_string.c ------------------------------------------------------------------------------------------------- */

/* Sends the bytes [from, from + len) of o. */
void reply_value(struct client *c, struct object *o, uint64_t from, uint64_t len);
/* Finds a key and counts the access for the policy. */
struct object *string_read(struct span key);

/* EX, PX, EXAT, PXAT at argv[at]: the time in wall ms. The error has been answered on false. */
enum expire_unit { EXPIRE_SECONDS = 1000, EXPIRE_MS = 1 };
bool expire_time(struct client *c, size_t at, enum expire_unit unit, bool absolute, uint64_t *wall_ms_p);
/* "[EX seconds | PX ... ]" at *at_p: 1 read, 0 not one of them, -1 the error has been answered. */
int expire_option(struct client *c, size_t *at_p, uint64_t *wall_ms_p);

#endif
