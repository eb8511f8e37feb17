/* Writing an in-band value: SET, APPEND, INCR and their kin are one machine with different plans.
 *
 *   plan ─> small: into the books ──────────────────────────────────────> answer
 *     ^ └─> put (making room, in slices) ─> copy (in slices) ─> commit ─> answer
 *     └───────── the key changed meanwhile (base_version) ─────────┘
 *
 * Room that will come is waited for (STRING_LATER, later.h), and then it is planned again.
 *
 * A plan looks at the key as it is now and says what the new value is made of; it answers itself when nothing is to be
 * written. It may run again, so all it needs is in the arguments or in the state.
 *
 * Where bytes of the old or the new value are not in this process' memory there is more to it (struct string_far):
 *
 *   plan ─> text: a short old value is fetched, to plan with ─> plan
 *     ├─> turn ─> claim ─> session ─> probe ─> put ─> copy (streams of old and new) ─> sent ─> commit ─> reply (streams the old value)
 *     ^                                                                         │ its host failed: once more, elsewhere
 *     └─────────────────────────────────────────────────────────────────────────┘ */
#ifndef TARN_CMD_STRING_WRITE_H
#define TARN_CMD_STRING_WRITE_H

#include <sys/queue.h>
#include "cmd/cmd.h"
#include "cmd/later.h"
#include "cmd/pool_writer.h"
#include "cmd/remote_write.h"
#include "cmd/value_reply.h"

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
    STRING_CHECK = 16,   /* commit only if the key's version is still base_version */
    STRING_TAKETTL = 64, /* the new value gets the time of the one in old_arg */
    STRING_SINK = 32,    /* the value lies in the pool already: client's sink */
};

struct string_write;
typedef bool (*string_plan_fn)(struct client *c, struct string_write *w);
typedef void (*string_answer_fn)(struct client *c, struct string_write *w);

enum { STRING_TEXT_MAX = 256 };

/* What it takes to have bytes elsewhere. */
struct string_far {
    struct string_write *write;
    struct remote_claim *claim;
    struct remote_session session;
    struct value_reply reply; /* the old value, for the client; open from the probe on */
    bool probed;
    struct value_read *read; /* the old value, for a plan or as part of the new one */
    size_t read_part;        /* which part */
    struct value_piece piece;
    size_t piece_at;
    struct remote_write *out; /* the new value */
    /* these outlive a plan: */
    struct key_turn *turn; /* of those who write to the key; NULL: not in the queue */
    TAILQ_ENTRY(string_far) turn_link;
    bool turn_waits;
    char text[STRING_TEXT_MAX];
    uint64_t text_from;
    size_t text_len;
    uint64_t text_version; /* 0: none was fetched */
    char avoid[64];        /* a segment that failed */
    unsigned tries;
};

struct string_write {
    struct job job;
    string_plan_fn plan;
    string_answer_fn answer;
    const char *event; /* of class STRING, for notifications when it is written; NULL: answer tells */
    size_t key_arg, value_arg;
    size_t old_arg;       /* the old value is that of another key (COPY); 0: of key_arg */
    uint64_t old_version; /* then: which one. It must still be there at the commit */
    unsigned flags;
    int64_t number;          /* the plan's: increment, offset */
    uint64_t expire_wall_ms; /* 0: never */
    /* the plan's result */
    uint64_t size, base_version; /* 0: the key was not there */
    size_t parts;
    struct string_part part[STRING_PARTS];
    bool wants_text; /* bytes of the old value, which are not here */
    uint64_t text_from;
    size_t text_len;
    bool only_old; /* nothing is written, the old value is the answer */
    /* the value before, when the plan asked for it */
    struct store_hold *old;
    size_t old_pieces; /* 0: there was none */
    struct span old_piece[STORE_EXTENTS_MAX];
    char old_small[STORE_INLINE_MAX]; /* of a value in the books */
    uint64_t old_size;
    bool old_there, old_in_small;
    bool old_far; /* elsewhere: one piece without data */
    char small[128];
    struct big_sink *sink; /* taken from the client */
    /* progress */
    enum string_phase {
        STRING_PLAN,
        STRING_TEXT,
        STRING_TURN,
        STRING_CLAIM,
        STRING_SESSION,
        STRING_PROBE,
        STRING_OPEN,
        STRING_ROOM,
        STRING_COPY,
        STRING_SENT,
        STRING_REPLY,
        STRING_LATER,
        STRING_OVER,
    } phase;
    struct store_put *put;
    size_t part_at, part_done;
    unsigned tries;
    bool elsewhere; /* space for the new value is looked for on other machines, too */
    bool failed;    /* an error was answered in place of what answer would have said */
    bool local_out; /* STRING_COPY: writer is open */
    struct pool_writer writer;
    struct job *
        owner; /* that runs it, and sleeps until it is woken when waits is set. NULL: it may still move in memory */
    bool waits;
    struct later later;     /* there is no room yet */
    struct string_far *far; /* NULL: not needed so far */
};

/* Runs it; state is the caller's (on its stack) and is copied if the first slice does not do it. */
void string_write_run(struct client *c, struct string_write *w);
/* One step of it inside another job (MSET), its owner: true when it has answered. false with waits: the owner should sleep. */
bool string_write_step(struct client *c, struct string_write *w, unsigned *budget);
void string_write_clean(struct client *c, struct string_write *w);
/* For plans: keeps the bytes of o until the write is over. */
void string_write_keep_old(struct string_write *w, const struct object *o);
void string_write_reply_old(struct client *c, struct string_write *w); /* nil when there was none */
/* o's value as text with a zero behind it, for plans. 1: here it is. 0: it has STRING_TEXT_MAX bytes or more. -1: it will be
 * fetched; the plan says true and runs again. */
int string_write_text(struct string_write *w, const struct object *o, char text[STRING_TEXT_MAX],
                      size_t *len_p);
/* So many bytes of it, less than STRING_TEXT_MAX, from there on. 1: here they are. -1: they will be fetched, as above. */
int string_write_range(struct string_write *w, const struct object *o, uint64_t from, size_t len, char *to);
/* The bytes [from, to) of the old value, as parts of the new. */
void string_write_take_old(struct string_write *w, uint64_t from, uint64_t to);
/* The value to start from, with its version, for a new one that keeps the time to live and is written only if the key has not
 * changed; NULL when there is none. */
struct object *string_write_edit(struct client *c, struct string_write *w);
/* false: it would be larger than a string may be; answered. */
bool string_size_allowed(struct client *c, uint64_t size);
void string_write_part(struct string_write *w, struct string_part part);
/* A write of the whole argument value_arg. */
void string_write_whole(struct client *c, struct string_write *w);
/* The answer to a value that could not be written. */
void string_write_failed(struct client *c, tarn_status status, struct span key, uint64_t size);
/* Bytes of argument i, of the sink if they are there. */
uint64_t string_arg_len(const struct client *c, const struct string_write *w, size_t i);

/* --- between string_write.c, string_copy.c and string_far.c --------------------------------------------------------------- */

enum string_flow {
    STRING_GO_ON,
    STRING_WAIT,
    STRING_AGAIN,
    STRING_FAILED
}; /* FAILED: the error was answered */
/* string_copy.c. Moves the bytes of the parts, from wherever they are to wherever they go. GO_ON: all are on their way. WAIT:
 * also when the budget is used up. */
enum string_flow string_copy_parts(struct client *c, struct string_write *w, unsigned *budget);
/* All parts of a short value, none of which is elsewhere. */
void string_gather(const struct client *c, const struct string_write *w, char *to);
/* string_far.c */
bool string_far_needed(const struct string_write *w);
enum string_flow string_far_text(struct client *c, struct string_write *w);
/* One at a time writes to a key, or each would take the key from the one before. AGAIN (not a failure): it had to wait, so that
 * the plan is out of date. */
enum string_flow string_far_turn(const struct client *c, struct string_write *w);
enum string_flow string_far_claim(struct client *c, struct string_write *w);
enum string_flow string_far_session(struct string_write *w);
enum string_flow string_far_probe(struct client *c, struct string_write *w);
enum string_flow string_far_reply(struct client *c, struct string_write *w);
/* The next bytes of the part of the old value that is being copied; GO_ON: *bytes_p. */
enum string_flow string_far_old(struct client *c, struct string_write *w, struct span *bytes_p);
void string_far_old_used(struct string_write *w, size_t n);
/* For opening the put; avoid is what the options may point to. */
enum { STRING_AVOID_MAX = REMOTE_AVOID_MAX + 1 };
struct store_put_options string_far_options(const struct string_write *w, uint64_t wall_ms,
                                            struct span avoid[STRING_AVOID_MAX]);
void string_far_open(struct client *c, struct string_write *w, const struct store_put *put);
enum string_flow string_far_sent(struct client *c, struct string_write *w);
/* GO_ON: *status_p is what became of the put. */
enum string_flow string_far_end(struct client *c, struct string_write *w, tarn_status *status_p);
struct string_far *string_far_get(struct string_write *w);
/* Everything but what outlives a plan. */
void string_far_reset(struct string_write *w);
void string_far_free(struct string_write *w);

/* --- values that came straight from the socket: cmd_string_big.c ------------------------------------------------------ */

/* The last new value found its space elsewhere: a sink would probably be in vain. */
bool string_write_elsewhere(void);
uint64_t big_sink_size(const struct big_sink *sink);
/* Makes it the value of its key, which must be the one it was begun with. Frees the sink. TARN_ETOKEN: superseded. */
tarn_status big_sink_commit(struct big_sink **sink_p, struct span key);

/* --- reading: cmd_string.c ------------------------------------------------------------------------------------------------- */

/* Finds a key and counts the access for the policy. */
struct object *string_read(struct span key);

/* EX, PX, EXAT, PXAT at argv[at]: the time in wall ms. The error has been answered on false. */
enum expire_unit { EXPIRE_SECONDS = 1000, EXPIRE_MS = 1 };
bool expire_time(struct client *c, size_t at, enum expire_unit unit, bool absolute, uint64_t *wall_ms_p);
/* EX, PX, EXAT or PXAT among options, and where its number is. Zero-initialised is none. */
struct expire_option {
    size_t number_arg; /* 0: none */
    enum expire_unit unit;
    bool absolute;
};
/* "EX seconds", "PX ..." at *at_p: read, and *at_p is behind it. The number is looked at later: whatever is wrong with the words
 * comes first. The same option may come again, another may not. */
bool expire_option(struct client *c, size_t *at_p, struct expire_option *e);
/* The number, if there is one. The error has been answered on false. */
bool expire_option_time(struct client *c, const struct expire_option *e, uint64_t *wall_ms_p);

#endif
