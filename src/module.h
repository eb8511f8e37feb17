/* The interface between tarn and what it loads at run time: modules/NAME.so.
 *
 * A module exports one data symbol, tarn_module_v1 (a struct tarn_module). The loader (src/module) opens the file, checks
 * sizes and versions before it calls anything, and calls load(); load() registers what the module brings, through the struct
 * tarn_services it is given. If load() fails, everything it registered is taken back and the file is closed. Modules live in
 * tarn-server, in tarn-node, and in any program that uses libtarn: what a program does not have (commands outside the
 * server) answers TARN_ENOTSUP, and a module goes on without.
 *
 * Growing: both structs start with their size. Members are only ever appended, under the same version; who reads a struct of
 * the other side first asks TARN_HAS. What cannot be appended gets another version, which is another symbol name.
 *
 * A module links its own copy of what it needs of src/base (hidden), and no other room. It includes this file and, when it
 * brings a transport, transport/transport.h, whose own TRANSPORT_ABI must be the program's. malloc and free are shared.
 *
 * Threads: load and unload are called from the program's main thread, or from the thread that calls libtarn, one at a time;
 * commands run on the server's loop and must not block it. log may be called from any thread. */
#ifndef TARN_MODULE_H
#define TARN_MODULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "tarn_status.h"

#define TARN_MODULE_VERSION 1u
#define TARN_MODULE_SYMBOL  "tarn_module_v1"
/* Does the struct p points to, which may come from an older compilation, reach to the end of member? */
#define TARN_HAS(p, member)                                                                                  \
    ((p)->size >= offsetof(__typeof__(*(p)), member) + sizeof(((__typeof__(p))0)->member))

struct transport_ops;
struct tarn_call_context; /* one call of a command: whom to answer */

/* --- what a program gives its modules --- */

enum tarn_program { TARN_PROGRAM_SERVER, TARN_PROGRAM_NODE, TARN_PROGRAM_CLIENT };
enum tarn_log_level { TARN_LOG_DEBUG, TARN_LOG_VERBOSE, TARN_LOG_NOTICE, TARN_LOG_WARNING };

enum tarn_command_flag { TARN_COMMAND_ADMIN = 1, TARN_COMMAND_FAST = 2 };

/* A command of the server. All but context lives as long as the module is loaded. */
struct tarn_command {
    const char *name; /* "rdma.devices": lower case, the module's name and a dot in front */
    int arity;        /* counts the name; negative: a minimum */
    unsigned flags;   /* of enum tarn_command_flag. Commands of modules read only, and take no keys */
    const char *summary, *syntax;
    void (*run)(struct tarn_call_context *c, const struct span *argv, size_t argc);
};

/* A memory segment of the pool as the master knows it. Borrowed for the call. */
struct tarn_segment {
    uint32_t id, epoch;
    uint64_t size;
    const char *name, *node, *machine; /* node "" : the master's own */
    const char *uri;                   /* by the transport that was asked for */
    struct span key[2];                /* packed, to read and to write with; may be empty */
};

struct tarn_services {
    uint32_t size, version;
    enum tarn_program program;
    const char *program_version; /* "0.1.0" */

    void (*log)(enum tarn_log_level level, const char *text);

    /* From load() only; others find it when load() has succeeded. Taken back by the loader, not before every domain is closed.
     * TARN_EEXISTS: there is one of its scheme. TARN_EPROTO: another TRANSPORT_ABI. */
    tarn_status (*transport_register)(const struct transport_ops *ops);
    /* From load() only. TARN_EEXISTS, TARN_EINVAL (its name is not the module's), TARN_ENOTSUP: no commands in this program. */
    tarn_status (*command_register)(const struct tarn_command *command);

    /* Replies, as in RESP; a command gives exactly one, arrays and maps being followed by their elements. error: "ERR text", or
     * "CODE text" with a code in capitals. */
    void (*reply_error)(struct tarn_call_context *c, const char *text);
    void (*reply_text)(struct tarn_call_context *c, struct span text);
    void (*reply_int)(struct tarn_call_context *c, int64_t value);
    void (*reply_array)(struct tarn_call_context *c, size_t elements);
    void (*reply_map)(struct tarn_call_context *c, size_t pairs);

    /* The pool, for commands. each returns false to stop. Segments that scheme ("rdma") reaches; and what every host of the pool
     * last reported of that transport (transport.h: describe), with its age. NULL where there is no pool. */
    void (*each_segment)(const char *scheme, bool (*each)(void *arg, const struct tarn_segment *segment),
                         void *arg);
    void (*each_report)(const char *scheme,
                        bool (*each)(void *arg, const char *node, const char *machine, uint64_t age_ms,
                                     struct span report),
                        void *arg);
};

/* --- what a module is --- */

struct tarn_module {
    uint32_t size, version; /* sizeof and TARN_MODULE_VERSION when it was compiled */
    uint32_t transport_abi; /* TRANSPORT_ABI when it was compiled; 0: it brings none */
    const char *name;       /* "rdma": lower case letters, digits */
    const char *module_version;
    const char *summary; /* one line */
    /* argv: the words behind the file name. Not TARN_OK: error has a text that names the argument. services stays valid. */
    tarn_status (*load)(const struct tarn_services *services, size_t argc, const char *const *argv,
                        char *error, size_t error_cap);
    /* Everything it holds is let go. TARN_EBUSY: somebody uses it still; nothing has changed. NULL: it cannot be unloaded. */
    tarn_status (*unload)(char *error, size_t error_cap);
    /* What INFO modules says of it, as it is now. NULL: nothing. */
    void (*info)(void (*field)(void *arg, const char *name, const char *value), void *arg);
};

#endif
