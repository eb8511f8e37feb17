/* Writing an in-band value: SET, APPEND, INCR and their kin are one machine with different plans.
 *
 *   plan ─┬─> small: into the books ───────────────────────────────────────────────> answer
 *    ^ ^  ├─> ready ─> old value: its bytes, which are elsewhere, are fetched ─┐
 *    | └──|─────────────────────────────────────────────────────────────────────┘
 *    |    └─> ready ─> open (making room, in slices) ─> copy (in slices) ─> commit ─> answer
 *    └────────── the key changed meanwhile (base_version), or the host of the new bytes failed
 *
 * Room that will come is waited for (STRING_LATER, later.h), and then it is planned again.
 *
 * A plan looks at the key as it is now and says what the new value is made of; it answers itself
 * when nothing is to be written. It may run again, so all it needs is in the arguments or in the
 * state.
 *
 * ready: what it takes to have bytes elsewhere, in this order. A turn, since one at a time writes
 * to a key there, or each would take the key from the one before; a claim on buffers; a session for
 * the write (struct string_far). */
#ifndef TARN_INBAND_STRING_WRITE_H
#define TARN_INBAND_STRING_WRITE_H

#include <sys/queue.h>
#include "inband/big_sink.h"
#include "inband/later.h"
#include "inband/value_read.h"
#include "inband/value_write.h"
#include "wire/options.h"

/* Part of a new value. By reference to what does not move between slices. */
struct string_part {
    enum {
        PART_ARG,
        PART_OLD,
        PART_SMALL,
        PART_ZERO
    } from;       /* PART_OLD, PART_SMALL: of old.piece[index], of small[] */
    size_t index; /* of the argument or piece */
    size_t offset, len;
};
enum { STRING_PARTS = 2 * STORE_EXTENTS_MAX + 2 };

/* A value that lies elsewhere is taken into memory to make another of it, or to be answered: not
 * one of any size. */
#define STRING_FETCH_MAX (UINT64_C(64) << 20)

enum string_flag {
    STRING_NX = 1,
    STRING_XX = 2,
    STRING_GET = 4, /* the old value is the answer; one that cannot be had is none */
    STRING_KEEPTTL = 8,
    STRING_CHECK = 16,   /* commit only if the key's version is still base_version */
    STRING_SINK = 32,    /* the value lies in the pool already: client's sink */
    STRING_TAKETTL = 64, /* the new value gets the time of the one in old_arg */
};

struct string_write;
typedef bool (*string_plan_fn)(struct client *c, struct string_write *w);
typedef void (*string_answer_fn)(struct client *c, struct string_write *w);

/* The value before, as far as the plan asked for it. */
struct string_old {
    bool there;
    bool wanted; /* its bytes are elsewhere: the plan runs again when they are here */
    uint64_t size, version;
    size_t pieces;
    struct span piece[STORE_EXTENTS_MAX];
    struct store_hold *hold;      /* of pieces in the pool */
    char small[STORE_INLINE_MAX]; /* of a value in the books */
};

/* What it takes to have bytes elsewhere. */
struct string_far {
    /* these outlive a plan: */
    TAILQ_ENTRY(string_write) turn_link; /* of those who write to the key there */
    uint64_t hash;                       /* of the key, once linked */
    bool turn_waits;
    char avoid[64]; /* a segment that failed */
    unsigned tries;
    /* these outlive a plan that asked for the old value: */
    struct remote_claim *claim;
    struct value_read *read;
    char *old; /* old_size bytes, of which fetched are there */
    uint64_t old_size, fetched, version;
    bool lost; /* no replica gave it */
    /* the new value's, until value_write has taken it */
    struct remote_session session;
};

struct string_write {
    struct job job;
    string_plan_fn plan;
    string_answer_fn answer;
    /* of class STRING, for notifications when it is written; NULL: answer tells */
    const char *event;
    size_t key_arg, value_arg;
    /* the old value is that of another key (COPY), which must still be there at the commit; 0: of
     * key_arg */
    size_t old_arg;
    unsigned flags;
    int64_t number;          /* the plan's: increment, offset */
    uint64_t expire_wall_ms; /* 0: never */
    /* the plan's result */
    uint64_t size, base_version; /* 0: the key was not there */
    size_t parts;
    struct string_part part[STRING_PARTS];
    struct string_old old;
    char small[128];
    struct value_write *sink; /* taken from the client */
    /* progress */
    enum string_phase {
        STRING_PLAN,
        STRING_READY,
        STRING_FETCH,
        STRING_OPEN,
        STRING_COPY,
        STRING_LATER,
        STRING_OVER,
    } phase;
    struct store_put *put; /* room is being made for it */
    size_t part_at, part_done;
    unsigned tries;
    bool elsewhere;          /* space for the new value is looked for on other machines, too */
    bool failed;             /* an error was answered in place of what answer would have said */
    struct value_write *out; /* from STRING_COPY on */
    /* that runs it, and sleeps until it is woken when waits is set. NULL: it may still move in
     * memory */
    struct job *owner;
    bool waits;
    struct later later; /* there is no room yet */
    struct string_far far;
};

/* Runs it; state is the caller's (on its stack) and is copied if the first slice does not do it. */
void string_write_run(struct client *c, struct string_write *w);
/* One step of it inside another job (MSET), its owner: true when it has answered. false with waits:
 * the owner should sleep. */
bool string_write_step(struct client *c, struct string_write *w, unsigned *budget);
void string_write_clean(struct client *c, struct string_write *w);
/* For plans: o, or NULL, is the value before, whose bytes stay until the write is over. false: they
 * have to be fetched; the plan says true, and runs again when they are there. */
bool string_write_keep_old(struct string_write *w, struct object *o);
void string_write_reply_old(struct client *c, struct string_write *w); /* nil when there was none */
/* The bytes [from, to) of the old value, as parts of the new. */
void string_write_take_old(struct string_write *w, uint64_t from, uint64_t to);
/* The old value as text with a zero behind it. false: it has STRING_TEXT_MAX bytes or more. */
enum { STRING_TEXT_MAX = 256 };
bool string_write_old_text(const struct string_write *w, char text[STRING_TEXT_MAX], size_t *len_p);
/* The value to start from, NULL when there is none, for a new one that keeps the time to live and
 * is written only if the key has not changed. */
struct object *string_write_edit(struct client *c, struct string_write *w);
/* false: it would be larger than a string may be; answered. */
bool string_size_allowed(struct client *c, uint64_t size);
void string_write_part(struct string_write *w, struct string_part part);
/* A write of the whole argument value_arg. */
void string_write_whole(struct client *c, struct string_write *w);
/* The answer to a value that could not be written. */
void string_write_failed(struct client *c, tarn_status status, struct span key, uint64_t size);

/* --- between string_write.c and string_far.c --- */

#define STRING_BYTES_PER_UNIT UINT64_C(8192) /* about a microsecond of copying and summing */

enum string_flow {
    STRING_GO_ON,
    STRING_WAIT,
    STRING_AGAIN,
    STRING_FAILED
}; /* FAILED: the error was answered */
bool string_far_needed(const struct string_write *w);
/* AGAIN (not a failure): it had to wait for its turn, so that the plan is out of date. */
enum string_flow string_far_ready(struct client *c, struct string_write *w);
enum string_flow string_far_fetch(struct client *c, struct string_write *w, unsigned *budget);
/* The value of that version was fetched, or has turned out not to be had. */
bool string_far_knows(const struct string_write *w, uint64_t version);
/* For opening the put; avoid is what the options then point to. */
enum { STRING_AVOID_MAX = REMOTE_AVOID_MAX + 1 };
void string_far_options(const struct string_write *w, struct store_put_options *options,
                        struct span avoid[STRING_AVOID_MAX]);
struct value_way string_far_way(struct string_write *w);
/* All bytes were taken, or it takes no more. GO_ON: they have arrived. */
enum string_flow string_far_sent(struct client *c, struct string_write *w);
/* The host of the new value failed: once more elsewhere, or never. */
enum string_flow string_far_failed(struct client *c, struct string_write *w, tarn_status status);
/* What was fetched; and all of it. */
void string_far_forget_old(struct string_write *w);
void string_far_end(struct string_write *w);

/* The last new value found its space elsewhere: a sink would probably be in vain. */
bool string_write_elsewhere(void);

/* --- reading --- */

/* Finds a key and counts the access for the policy. */
struct object *string_read(struct span key);

/* The number of such an option at argv[at]: the time in wall ms. The error has been answered on
 * false. */
bool expire_time(struct client *c, size_t at, enum wire_expiry kind, uint64_t *wall_ms_p);

#endif
