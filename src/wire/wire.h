/* The declarations of what is on the wire: each command once, with its arguments, keys, flags,
 * reply and errors. Everything else that tells of a command is made from its declaration: arity and
 * key specs, the synopsis, COMMAND DOCS, the reading of a request into a struct (wire_bind) and
 * the writing of one (wire_build).
 *
 * The declarations are in commands_*.h, the structs in options.h. No state, any thread. */
#ifndef TARN_WIRE_WIRE_H
#define TARN_WIRE_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/status.h"

enum cmd_flag {
    CMD_WRITE = 1 << 0,
    CMD_READONLY = 1 << 1,
    CMD_DENYOOM = 1 << 2,
    CMD_ADMIN = 1 << 3,
    CMD_NOSCRIPT = 1 << 4,
    CMD_LOADING = 1 << 5,
    CMD_STALE = 1 << 6,
    CMD_FAST = 1 << 7,
    CMD_NO_AUTH = 1 << 8,
    CMD_BLOCKING = 1 << 9,
    CMD_SKIP_MONITOR = 1 << 10,
    CMD_SKIP_SLOWLOG = 1 << 11,
    CMD_MOVABLE_KEYS = 1 << 12,
    CMD_ALLOW_BUSY = 1 << 13,
    CMD_PUBSUB = 1 << 14,
    CMD_NO_MULTI = 1 << 15,
    CMD_MODULE = 1 << 16, /* of a module: front/modules.h */
    /* no write, but held back with the writes by CLIENT PAUSE; no flag that COMMAND shows */
    CMD_MAY_REPLICATE = 1 << 17,
    /* no write, but replicas refuse it: values, leases, nodes; not shown either */
    CMD_MASTER = 1 << 18,
    /* concerns every key when it names none: users need all of them; not shown either */
    CMD_ALL_KEYS = 1 << 19,
};

enum cmd_key_flag {
    KEY_RO = 1,
    KEY_RW = 2,
    KEY_OW = 4,
    KEY_RM = 8,
    KEY_ACCESS = 16,
    KEY_UPDATE = 32,
    KEY_INSERT = 64,
    KEY_DELETE = 128,
    KEY_VARIABLE = 256,
};

#define WIRE_KEY_MAX  1024u
#define WIRE_SIZE_MAX (INT64_C(1) << 40)

/* --- arguments --- */

enum wire_kind {
    WIRE_END,
    WIRE_KEY,      /* 1 to WIRE_KEY_MAX bytes */
    WIRE_WORD,     /* bytes, min to max of them; max 0: any number */
    WIRE_HEX,      /* max hex digits */
    WIRE_NUMBER,   /* min to max; 0 to 0: any */
    WIRE_LATE,     /* a number that the command reads itself, if it comes to that */
    WIRE_UNSIGNED, /* of 64 bits: what a walk answered */
    WIRE_SIZE,     /* bytes, as 1000000 or 10gb */
    WIRE_RATIO,    /* a decimal number above 0, up to 1 */
    WIRE_BITS,     /* many numbers, of which each is a bit of the member */
    WIRE_FLAG,     /* its token, and nothing more; max: the bits that it sets in the member */
    /* one of args, many: some, each behind the token if there is one; the member says which (the
     * last), from 1 on */
    WIRE_ONEOF,
    /* all of args. A single one without a member is bound with the command: what must be there in
     * order, then its options. Of others each argument is one word, and they are bound one block at
     * a time */
    WIRE_BLOCK,
    WIRE_VALUES, /* one word for each block of the command's counted block; without one, the rest */
};

/* Where the bound of a number is the server's configuration. */
enum { WIRE_MAX_BATCH = -2, WIRE_MAX_WAIT = -3 };
struct wire_limits {
    uint64_t batch, wait_ms;
};

/* The member that an argument is bound to, by kind:
 *
 *   KEY, WORD, LATE, HEX, RATIO, VALUES
 *                             uint32_t: the index of the (first) word in argv, 0: not given
 *   NUMBER, SIZE, BITS        uint32_t or 64-bit; UNSIGNED: 64-bit
 *   FLAG                      bool; of bits uint32_t
 *   ONEOF                     uint32_t
 *   BLOCK, and what is the rest of the request       struct wire_list
 *   what has a token and may be given several times  struct wire_many (as large as it likes)
 *
 * They are indices because the bytes of a request may move while it is under way. */
struct wire_list {
    uint32_t at, n; /* the first word; how many blocks */
};
struct wire_many {
    uint32_t n, at[];
};
#define WIRE_MANY(max)                                                                             \
    struct {                                                                                       \
        uint32_t n, at[max];                                                                       \
    }

struct wire_arg {
    uint8_t kind; /* enum wire_kind */
    bool optional, many;
    bool exact;            /* of a counted BLOCK: nothing may follow it */
    bool once;             /* of what has a token, and a member: an error to give it again */
    uint16_t keys;         /* of KEY: enum cmd_key_flag */
    uint16_t offset, size; /* of the member; size 0: the argument is described, but not bound */
    const char *token;     /* in front of it, NULL: none */
    const char *name;      /* for people: "segment" */
    const char *counted;   /* of BLOCK: the name of the number of blocks, which goes before them */
    int64_t min, max;      /* of NUMBER; of WORD, its length; of a counted BLOCK, how many */
    int64_t absent;        /* the NUMBER that stands for none */
    const char *error;     /* in place of what else is said when it is wrong; * is its word */
    const struct wire_arg *args; /* of ONEOF and BLOCK, ended by WIRE_END */
};

/* --- commands --- */

struct wire_command {
    const char *name;       /* "PUTSTART", "SEGMENT|MOUNT" */
    unsigned flags;         /* enum cmd_flag */
    bool container;         /* it has subcommands, and does nothing without one */
    bool once;              /* an option that is given again is an error of syntax */
    const char *categories; /* beyond those that follow from the flags: "@string"; NULL: none */
    const char *group;      /* "string", "generic", "server", "connection", "pool" */
    const char *since;
    const char *summary;
    const char *reply; /* its shape; NULL: of a container */
    /* "STALE LIMIT": codes (base/errors.h), beside ERR and those of any command with such flags:
     * LOADING, READONLY, MASTERDOWN, NOREPLICAS, NOAUTH, NOPERM; NULL: none */
    const char *errors;
    const struct wire_arg *args; /* ended by WIRE_END; NULL: none */
    const char *unknown; /* what is said of a word that is no option, as in wire_arg.error */
};

enum wire_id {
#define COMMAND(id, ...)     WIRE_##id,
#define SHARED(id, run, ...) WIRE_##id,
#define CONTAINER(id, ...)   WIRE_##id,
#include "wire/commands.h"
#undef COMMAND
#undef SHARED
#undef CONTAINER
    WIRE_COMMANDS
};
/* By id. A container stands before its subcommands. */
extern const struct wire_command wire_commands[WIRE_COMMANDS];

/* --- what follows from a declaration --- */

/* As in Redis: negative is a minimum; counts the name, of a subcommand also the container's. */
int wire_arity(const struct wire_command *cmd);

struct cmd_key_spec {
    unsigned flags;  /* 0: no (more) specs */
    int begin_index; /* > 0 */
    /* true: argv[begin_index] says how many, the first is the next argument; else a range */
    bool keynum;
    /* range: last relative to begin (or negative from the end); keynum: step between keys */
    int last, step, limit;
    /* begin right after this keyword, searched from begin_index on; NULL: at begin_index */
    const char *keyword;
};
enum { WIRE_KEY_SPECS = 2 };
void wire_keys(const struct wire_command *cmd, struct cmd_key_spec keys[WIRE_KEY_SPECS]);

/* "key size [REPLICAS n] [PREFER segment [PREFER segment ...]]": appended, without the name. */
void wire_synopsis(const struct wire_command *cmd, struct buf *out);

/* --- binding --- */

enum { WIRE_ERROR_SIZE = 192 };

/* What binding would look for in a declaration each time, found once. Bit i is the i-th argument
 * behind those that come first, in order. */
struct wire_plan {
    uint16_t begins[32];   /* that a word may begin, by the low bits of its first letter */
    uint16_t ends;         /* that matter where they are not given */
    uint8_t token_len[16]; /* 0: none */
    uint8_t first, fixed;  /* the first word behind the name; how many come first, in order */
};
void wire_plan(const struct wire_command *cmd, struct wire_plan *plan);

/* Reads a request into the struct of its command, which is all zero before; what was not given
 * stays zero, or is `absent`. false: error says what is wrong, and the struct may be half full.
 * Options may come in any order; of one that is given twice the later counts, but a counted block,
 * and those of a command that says so (once), may be given once. plan: of the command, or NULL,
 * which takes longer. */
bool wire_bind(const struct wire_command *cmd, const struct wire_plan *plan,
               const struct span *argv, size_t argc, const struct wire_limits *limits,
               void *options, char error[WIRE_ERROR_SIZE]);
/* The same for one block, whose first word is argv[at]: all its words are there. */
bool wire_bind_block(const struct wire_arg *block, const struct span *argv, size_t at,
                     void *element, char error[WIRE_ERROR_SIZE]);
/* The first block among the arguments of a command. */
const struct wire_arg *wire_block(const struct wire_command *cmd);
/* What stands behind that token, also in a group of arguments; NULL: the command has none. */
const struct wire_arg *wire_named(const struct wire_command *cmd, const char *token);
/* How many words one has. */
size_t wire_block_words(const struct wire_arg *block);
/* The number of a WIRE_RATIO; false: it is none. */
bool wire_ratio(struct span word, double *ratio_p);

/* --- building --- */

/* Where a request goes, word by word. Words are borrowed until it is sent. */
struct wire_sink {
    void *arg;
    void (*word)(void *arg, struct span word);
    void (*number)(void *arg, int64_t value);
};
/* The inverse of wire_bind: indices in options count in words. The command must be bound. */
void wire_build(const struct wire_command *cmd, const void *options, const struct span *words,
                const struct wire_sink *sink);

#endif
