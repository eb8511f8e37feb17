/* The interface between tarn and the modules it loads at run time: modules/NAME.so.
 *
 * A module exports one data symbol, tarn_module_v1 (a struct tarn_module). The loader (src/module)
 * opens the file, checks sizes and versions before it calls anything, and calls load(); load()
 * registers what the module offers, through the struct tarn_services it is given. If load() fails,
 * everything it registered is undone and the file is closed. Modules run in tarn-server, in
 * tarn-node, and in any program that uses libtarn: a service that a program lacks (commands outside
 * the server) returns TARN_ENOTSUP, and a module goes on without it.
 *
 * Growing: both structs start with their size. Members are only ever appended, under the same
 * version; before reading a member of the other side's struct, ask TARN_HAS. Any other change gets
 * a new version, which is another symbol name.
 *
 * A module links its own copy of the parts of src/base it needs (hidden), and no other room. It
 * includes this file and, if it offers a transport, transport/transport.h, whose own TRANSPORT_ABI
 * must be the program's. malloc and free are shared.
 *
 * Threads: load and unload are called from the program's main thread, or from the thread that calls
 * libtarn, one at a time; commands run on the server's loop and must not block it. log may be
 * called from any thread. */
#ifndef TARN_MODULE_H
#define TARN_MODULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "tarn_status.h"

#define TARN_MODULE_VERSION 1u
#define TARN_MODULE_SYMBOL  "tarn_module_v1"
/* Does the struct that p points to, which may come from an older build, reach to the end of
 * member? */
#define TARN_HAS(p, member)                                                                        \
    ((p)->size >= offsetof(__typeof__(*(p)), member) + sizeof(((__typeof__(p))0)->member))

struct figure_walk; /* base/figures.h */
struct transport_ops;
struct tarn_call_context; /* one call of a command, and where its reply goes */
struct tarn_durable;      /* what a module keeps */

/* --- what a program offers its modules --- */

enum tarn_program { TARN_PROGRAM_SERVER, TARN_PROGRAM_NODE, TARN_PROGRAM_CLIENT };
enum tarn_log_level { TARN_LOG_DEBUG, TARN_LOG_VERBOSE, TARN_LOG_NOTICE, TARN_LOG_WARNING };

enum tarn_command_flag {
    TARN_COMMAND_ADMIN = 1,
    TARN_COMMAND_FAST = 2,
    /* The others are for command_declare. */
    TARN_COMMAND_WRITE = 4,      /* changes something: else it only reads */
    TARN_COMMAND_DENYOOM = 8,    /* takes memory: refused where the books may have none */
    TARN_COMMAND_MASTER = 16,    /* only reads, but a replica cannot answer it */
    TARN_COMMAND_LOADING = 32,   /* also while the pool or the books are being made ready */
    TARN_COMMAND_STALE = 64,     /* also on a replica whose master is away */
    TARN_COMMAND_ALL_KEYS = 128, /* concerns every key when it names none: users need all of them */
};

/* A command of the server that only reads and takes no keys. The struct and its texts must live as
 * long as the module is loaded; its size is fixed, see tarn_command_declaration. */
struct tarn_command {
    const char *name; /* "rdma.devices": lower case, the module's name and a dot in front */
    int arity;        /* counts the name; negative: a minimum */
    unsigned flags;   /* of enum tarn_command_flag: _ADMIN, _FAST */
    const char *summary, *syntax;
    void (*run)(struct tarn_call_context *c, const struct span *argv, size_t argc);
};

/* What a command does with its keys; users' rules (~pattern, %R~, %W~) are held against that. 0: it
 * only says whether they are there. */
enum tarn_key_flag { TARN_KEY_READ = 1, TARN_KEY_WRITE = 2, TARN_KEY_DELETE = 4 };

/* Where keys are among the arguments, as Redis' key specifications have it. */
struct tarn_key_spec {
    unsigned flags; /* of enum tarn_key_flag */
    /* The argument where they begin, 1 or more. With a keyword: where that is looked for from; they
     * begin behind it, and there are none without it. */
    int first;
    const char *keyword; /* NULL: none */
    /* true: argv[first] says how many there are, and they begin behind it. Else a range: */
    bool counted;
    int last; /* arguments from the first key to the last, 0: it is one; -1: to the end, -2: but one
               */
    int step; /* from key to key: 1, or 2 where each has a value */
};
#define TARN_KEY_SPECS_MAX 2u

/* A command of the server, with all there is to say. Texts and keys must live as long as the module
 * is loaded. */
struct tarn_command_declaration {
    uint32_t size; /* of this struct when the module was compiled; members are only appended */
    /* as in struct tarn_command; flags: all of enum tarn_command_flag */
    unsigned flags;
    const char *name;
    int arity;
    unsigned n_keys; /* up to TARN_KEY_SPECS_MAX */
    const struct tarn_key_spec *keys;
    const char *summary, *syntax;
    void (*run)(struct tarn_call_context *c, const struct span *argv, size_t argc);
    /* For COMMAND DOCS: the module's version that brought it, "O(1)". NULL: not told. */
    const char *since, *complexity;
    /* Categories of users' rules beyond those that follow from the flags: "@string @dangerous";
     * NULL: none. A module's commands are in @NAME of the module, too. */
    const char *categories;
    /* For COMMAND DOCS, which then tells the syntax as a synopsis, too: the reply's shape, "a map";
     * codes of errors beside ERR and those of any command, "LIMIT STALE". NULL: not told, none. */
    const char *reply, *errors;
};

/* --- the loop, and what there is to measure --- */

enum { TARN_WATCH_READ = 1, TARN_WATCH_WRITE = 2 };
struct tarn_watch;
struct tarn_timer;

struct tarn_figures_at {
    uint32_t part, item;
    const char *section; /* of what was walked last, as INFO has it: "pool" */
};

enum tarn_state {
    TARN_STATE_SERVING,
    TARN_STATE_POPULATING, /* touching the pool's memory */
    TARN_STATE_LOADING, /* the books, from a master; or it is away and its replica may not answer */
    TARN_STATE_AWAITING, /* nodes that were there before a restart */
    TARN_STATE_STOPPING
};

enum tarn_rows { TARN_ROWS_NO_TABLE, TARN_ROWS_MORE, TARN_ROWS_OVER };

/* A memory segment of the pool as the master knows it. Borrowed for the call. */
struct tarn_segment {
    uint32_t id, epoch;
    uint64_t size;
    const char *name, *node, *machine; /* node "" : the master's own */
    const char *uri;                   /* by the transport that was asked for */
    struct span key[2];                /* packed, to read and to write with; may be empty */
};

/* --- what the pool has of a prompt: PREFIXLEN with KVGROUPS (docs/COMMANDS.md), for modules --- */

enum tarn_pool_kind { TARN_POOL_FULL, TARN_POOL_STATE, TARN_POOL_WINDOW };
/* Tokens; as the words of KVGROUPS. */
struct tarn_pool_group {
    enum tarn_pool_kind kind;
    uint32_t block, unit, window;
    bool drop;
};
struct tarn_pool_question {
    uint32_t size;        /* sizeof */
    uint32_t unit, align; /* tokens; hash i ends at token (i + 1) * unit */
    size_t n_hashes;
    const struct span *hashes;
    /* Makes the first n hashes, before they are read: those behind the first gap are not needed.
     * NULL: all are there. */
    void (*make)(void *arg, size_t n);
    void *arg;
    size_t n_groups; /* at least 1 */
    const struct span *names;
    const struct tarn_pool_group *groups;
    bool prefetch; /* of the prefix, what lies only on disks is to come to memory: PREFETCH */
};
/* Parts of the prefix that lie in one place, of groups of one kind. */
struct tarn_pool_run {
    enum tarn_pool_kind kind;
    uint32_t begin, tokens; /* from the first of them to the end of the last */
    bool disk;              /* an ssd or a file; else memory */
    /* Where: as NODE LIST has it; borrowed until the command is over. NULL: not told. */
    const char *machine, *rack;
    uint64_t bytes;
};
#define TARN_POOL_LOOKUPS_MAX 16384u

/* --- TLS --- */

struct tarn_tls; /* the connections of one port of a module */

struct tarn_tls_options {
    uint32_t size; /* sizeof */
    unsigned connections_max;
    /* What is said, in plain text, to who speaks no TLS. Lives as long as the module; NULL:
     * nothing. */
    const char *plain_answer;
};
struct tarn_tls_figures {
    uint32_t size, open;
    uint64_t failed; /* handshakes */
};

/* --- HTTP paths: modules/http.so serves them, whichever of the modules is there first --- */

enum tarn_http_method {
    TARN_HTTP_GET = 1, /* HEAD, too */
    TARN_HTTP_POST = 2,
    TARN_HTTP_PUT = 4,
    TARN_HTTP_DELETE = 8
};
enum tarn_http_flag {
    TARN_HTTP_OPEN = 1,  /* who only reads needs no token, as for a probe */
    TARN_HTTP_READS = 2, /* it changes nothing, whatever the method; else only GET is taken for
                          * that. What changes something wants the token, and is refused where
                          * http.so has no token-file */
};

/* Borrowed for the call of its handler. */
struct tarn_http_request {
    uint32_t size;
    enum tarn_http_method method;
    uint64_t id;      /* names it in http_answer, then or later; no other has it */
    const char *path; /* decoded, without the query */
    struct span body;
    /* Of the query, decoded, and of the head; NULL: it has none of that name. */
    const char *(*argument)(const struct tarn_http_request *r, const char *name);
    const char *(*header)(const struct tarn_http_request *r, const char *name);
};

struct tarn_http_path {
    const char *path; /* "/query"; with a / at its end, all that is below it, too */
    unsigned methods, flags;
    uint32_t body_max; /* bytes, up to TARN_HTTP_BODY_MAX; who sends more gets 413 */
    /* On the loop, once the body is there; must not block. It answers now, or keeps the id. */
    void (*run)(const struct tarn_http_request *r);
};
#define TARN_HTTP_BODY_MAX     (16u << 20)
#define TARN_HTTP_DEADLINE_MAX 300000u

/* Some paths, and where they are. All of it must live as long as the module is loaded. */
struct tarn_http_site {
    uint32_t size;
    uint32_t deadline_ms;   /* who has no answer by then gets 504; 0: 10 s */
    unsigned under_way_max; /* who comes while so many answers are awaited gets 503; 0: 64 */
    unsigned paths;
    const struct tarn_http_path *path;
    /* NULL: on http.so's own port. Else on a port of these paths' own; port 0: any free one, which
     * http.so tells in INFO modules. */
    const char *bind;
    uint16_t port;
    bool open;            /* there: nobody is asked for the token. Only by the operator's word */
    bool tls;             /* there */
    unsigned connections; /* there; 0: 64 */
};

struct tarn_http_answer {
    uint32_t size;
    unsigned status;        /* 200 to 599 */
    unsigned retry_after_s; /* 0: it says nothing of that */
    const char *type;       /* "application/json"; NULL: plain text */
    struct span body;       /* copied; or */
    struct buf *taken;      /* its memory is http.so's then, and it is left empty; or */
    /* in pieces, as the connection takes them: appends some of it, 16 KiB or so, to out. false:
     * that was the last of it. */
    bool (*next)(void *arg, struct buf *out);
    /* NULL, or called once: all is sent, or nobody wants it any more, or the module has unloaded */
    void (*drop)(void *arg);
    void *arg;
};

/* What modules/http.so gives the loader, for the sites of others. */
struct tarn_http_server {
    uint32_t size;
    tarn_status (*site_add)(const char *module, const struct tarn_http_site *site, char *error,
                            size_t error_cap);
    /* Who waits for an answer of it gets 503, and nothing of it is called from then on. */
    void (*site_remove)(const struct tarn_http_site *site);
    tarn_status (*answer)(uint64_t request, const struct tarn_http_answer *answer);
};

struct tarn_services {
    uint32_t size, version;
    enum tarn_program program;
    const char *program_version; /* "0.2.0" */

    void (*log)(enum tarn_log_level level, const char *text);

    /* From load() only; others find it once load() has succeeded. The loader unregisters it, but
     * not before every domain is closed. TARN_EEXISTS: its scheme has a transport already.
     * TARN_EPROTO: another TRANSPORT_ABI. */
    tarn_status (*transport_register)(const struct transport_ops *ops);
    /* From load() only. TARN_EEXISTS, TARN_EINVAL (its name is not the module's), TARN_ENOTSUP: no
     * commands in this program. */
    tarn_status (*command_register)(const struct tarn_command *command);

    /* Replies, as in RESP; a command gives exactly one; an array or map is followed by its
     * elements. error: "ERR text", or "CODE text" with a code in capitals. */
    void (*reply_error)(struct tarn_call_context *c, const char *text);
    void (*reply_text)(struct tarn_call_context *c, struct span text);
    void (*reply_int)(struct tarn_call_context *c, int64_t value);
    void (*reply_array)(struct tarn_call_context *c, size_t elements);
    void (*reply_map)(struct tarn_call_context *c, size_t pairs);

    /* The pool, for commands. each returns false to stop. each_segment: segments that scheme
     * ("rdma") reaches. each_report: what every host of the pool last reported about that transport
     * (transport.h: describe), with its age. NULL in programs without a pool. */
    void (*each_segment)(const char *scheme,
                         bool (*each)(void *arg, const struct tarn_segment *segment), void *arg);
    void (*each_report)(const char *scheme,
                        bool (*each)(void *arg, const char *node, const char *machine,
                                     uint64_t age_ms, struct span report),
                        void *arg);

    /* The program's loop; all of it from the loop's thread, whose callbacks must not block. NULL
     * where a program has none. A watch is level-triggered, and destroyed before its descriptor is
     * closed; also from inside fn. */
    tarn_status (*watch_create)(int fd, void (*fn)(void *arg, unsigned events), void *arg,
                                struct tarn_watch **watch_p);
    /* of TARN_WATCH_READ and _WRITE; 0: none */
    tarn_status (*watch_set)(struct tarn_watch *watch, unsigned events);
    void (*watch_destroy)(struct tarn_watch **watch_p);
    struct tarn_timer *(*timer_create)(void (*fn)(void *arg), void *arg);
    void (*timer_start)(struct tarn_timer *timer, uint64_t ms); /* once; moves a pending one */
    void (*timer_destroy)(struct tarn_timer **timer_p);         /* also from inside fn */
    /* A listening, non-blocking socket, as the server's own are made. TARN_ENOTFOUND: this machine
     * has no such address. *why_p: static text. */
    tarn_status (*listen)(const char *address, uint16_t port, int *fd_p, const char **why_p);

    /* All that INFO shows, and histograms. at begins zeroed; a call walks one part, a section or
     * some segments or nodes, and that takes well under a millisecond. false: there is no more. */
    bool (*figures_next)(struct tarn_figures_at *at, struct figure_walk *walk);
    /* May it be asked now? text: the reason for people, "" when it serves. */
    enum tarn_state (*state)(char *text, size_t cap);

    /* TLS for connections that a module accepts, with the program's own certificate and demands
     * (tls-cert-file, tls-auth-clients and so on), of which modules see nothing; connections take
     * what CONFIG SET made of them last. From the loop's thread. NULL: the program has no such
     * settings. tls_open: anything but TARN_OK: *why_p (static) names what is missing or wrong.
     * tls_accept takes fd, a non-blocking socket, and gives its plain text, a non-blocking stream
     * socket, in *plain_p. That one ends when the peer or the handshake fails; who closes it says
     * goodbye to the peer, as soon as what was written is sent, and after 2 s in any case.
     * TARN_ELIMIT: there are connections_max. tls_close cuts off what is left; *tls_p may be
     * NULL. */
    tarn_status (*tls_open)(const struct tarn_tls_options *options, struct tarn_tls **tls_p,
                            const char **why_p);
    tarn_status (*tls_accept)(struct tarn_tls *tls, int fd, int *plain_p);
    void (*tls_figures)(const struct tarn_tls *tls, struct tarn_tls_figures *figures_p);
    void (*tls_close)(struct tarn_tls **tls_p);

    /* Lists that INFO has no place for, a row as a group of figures: "nodes", "segments" (with a
     * map of each), "tasks", "clients", "prefixes", "alarms", "doctor", "events"; a program has
     * those that it can have. A call shows some rows from *from on (0: the first), which takes well
     * under a millisecond, and moves *from to where the next call goes on; it may show none and
     * have more. Events are numbered: *from is the last one that was seen. "NAME/TABLE" is one of
     * the module of that name (struct tarn_module: rows). NULL where a program has no lists. */
    enum tarn_rows (*rows_next)(const char *table, uint64_t *from, struct figure_walk *walk);

    /* From load() only, and taken back when the module goes. TARN_EINVAL, TARN_EEXISTS: error says
     * which path, and why; or what a listening socket says. */
    tarn_status (*http_register)(const struct tarn_http_site *site, char *error, size_t error_cap);
    /* From the loop's thread, at any time. TARN_ECLOSED: nobody waits for it any more: its deadline
     * has passed, or http.so has gone. What is to be taken is taken, and drop called, whatever
     * comes of it. */
    tarn_status (*http_answer)(uint64_t request, const struct tarn_http_answer *answer);
    /* modules/http.so, from load(): it is asked for all sites that there are, and those to come.
     * TARN_EEXISTS: there is another; or what site_add said. */
    tarn_status (*http_serve)(const struct tarn_http_server *server, char *error, size_t error_cap);

    /* As command_register, for what writes or has keys. TARN_EINVAL also: arity does not reach the
     * first key, a flag, category or key specification that does not exist. A command that is not
     * declared to write must change nothing. */
    tarn_status (*command_declare)(const struct tarn_command_declaration *command);

    /* More replies, each one element. simple: a word as OK, without line ends. double and bool are
     * of RESP3; clients of RESP2 get text, 1 and 0. */
    void (*reply_simple)(struct tarn_call_context *c, const char *text);
    void (*reply_null)(struct tarn_call_context *c);
    void (*reply_double)(struct tarn_call_context *c, double value);
    void (*reply_bool)(struct tarn_call_context *c, bool value);

    /* --- what a module keeps: names of 1 to 1024 bytes with values of up to 64 KiB ---
     *
     * It is written down and replicated with the books, under the module's name, also where the
     * module is not loaded, and is there again after a restart, a failover, a full synchronisation.
     * A change is told before the replies of the same turn leave, and takes a time that does not
     * grow with what there is. FLUSHALL leaves it. From the loop's thread; when unload() is called
     * because the program ends, all has been saved, and changes are refused. */

    /* From load() only. The same handle until it is unloaded, whatever happens to the books.
     * TARN_ENOTSUP: not in this program. TARN_ELIMIT: too many modules have kept something. */
    tarn_status (*durable_open)(struct tarn_durable **durable_p);
    /* TARN_EREADONLY: this server does not lead. TARN_EPERM: the command that runs is not declared
     * to write. TARN_ELATER: not from a command, and writes are held back (CLIENT PAUSE, FAILOVER):
     * try again. Of set: TARN_EINVAL, a length; TARN_ELIMIT: it would be more than
     * module-state-max. Of delete: TARN_ENOTFOUND. */
    tarn_status (*durable_set)(struct tarn_durable *d, struct span name, struct span value);
    tarn_status (*durable_delete)(struct tarn_durable *d, struct span name);
    /* TARN_ENOTFOUND. The value is borrowed until something changes. */
    tarn_status (*durable_get)(struct tarn_durable *d, struct span name, struct span *value_p);
    /* In no order; each changes nothing, and returns false to stop. */
    void (*durable_each)(struct tarn_durable *d,
                         bool (*each)(void *arg, struct span name, struct span value), void *arg);
    /* How much it is, and may be: names, values and some 100 bytes each. */
    uint64_t (*durable_bytes)(struct tarn_durable *d, uint64_t *max_p);
    /* Does this server decide? Else another one does, or it is still starting. */
    bool (*leads)(void);

    /* The longest prefix that the pool can serve, in tokens, as it is at this moment, and what is
     * to be read for it: *n_runs_p is how many runs there is room for (at least 1), and then how
     * many there are; where there are more places, the last run has what lies in all others, and
     * does not tell where that is. Of several replicas the one in memory counts. Nothing is leased,
     * counted as used or missed, or (but for prefetch) fetched near. Prefixes are looked at as far
     * as TARN_POOL_LOOKUPS_MAX parts reach, which must be from one boundary to the next at least.
     * TARN_EINVAL: *why_p (static) says what is wrong; also with no hashes. From the loop's thread,
     * on replicas, too. NULL where a program has no books. */
    tarn_status (*pool_prefix)(const struct tarn_pool_question *q, uint64_t *tokens_p,
                               struct tarn_pool_run *runs, size_t *n_runs_p, const char **why_p);

    /* For what changes something and is no command, as a request over HTTP: why a command that
     * writes would be refused now, as clients are told it, "NOREPLICAS text"; NULL: it would not.
     * Static. */
    const char *(*write_refusal)(void);
};

/* --- what a module is --- */

struct tarn_module {
    uint32_t size, version; /* sizeof and TARN_MODULE_VERSION when it was compiled */
    uint32_t transport_abi; /* TRANSPORT_ABI when it was compiled; 0: it has no transport */
    const char *name;       /* "rdma": lower case letters, digits */
    const char *module_version;
    const char *summary; /* one line */
    /* argv: the words after the file name. On failure, error gets a text that names the argument.
     * services stays valid. */
    tarn_status (*load)(const struct tarn_services *services, size_t argc, const char *const *argv,
                        char *error, size_t error_cap);
    /* Releases everything it holds. TARN_EBUSY: it is still in use; nothing has changed. NULL: it
     * cannot be unloaded. Only the drop of answers that are being sent may be called after it. */
    tarn_status (*unload)(char *error, size_t error_cap);
    /* Its current fields for INFO modules. NULL: none. */
    void (*info)(void (*field)(void *arg, const char *name, const char *value), void *arg);
    /* From the loop, after load(); NULL: it need not know. durable_changed: something of what it
     * keeps was changed by others, a master or a file; borrowed for the call. value NULL: that name
     * is gone. name NULL: all of it may be another, look at it. */
    void (*durable_changed)(const struct span *name, const struct span *value);
    /* leads() is another now. What it keeps is whole then. */
    void (*role_changed)(bool leads);
    /* Its figures, with types, units and help (base/figures.h): in INFO modules, in /metrics, and
     * alone in "INFO NAME" of its name. At any time after load(), and in well under a millisecond.
     * NULL: none. */
    void (*figures)(struct figure_walk *walk);
    /* Lists of its own, as services.rows_next has those of the program; modules/http.so shows them
     * as /api/NAME/TABLE, whose TABLE may have more parts ("candidates/7"). From the loop, at any
     * time after load(). NULL: none. */
    enum tarn_rows (*rows)(const char *table, uint64_t *from, struct figure_walk *walk);
};

#endif
