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

/* --- what a program offers its modules --- */

enum tarn_program { TARN_PROGRAM_SERVER, TARN_PROGRAM_NODE, TARN_PROGRAM_CLIENT };
enum tarn_log_level { TARN_LOG_DEBUG, TARN_LOG_VERBOSE, TARN_LOG_NOTICE, TARN_LOG_WARNING };

enum tarn_command_flag { TARN_COMMAND_ADMIN = 1, TARN_COMMAND_FAST = 2 };

/* A command of the server. The struct and its texts must live as long as the module is loaded. */
struct tarn_command {
    const char *name; /* "rdma.devices": lower case, the module's name and a dot in front */
    int arity;        /* counts the name; negative: a minimum */
    unsigned flags;   /* of enum tarn_command_flag. Modules' commands only read, and take no keys */
    const char *summary, *syntax;
    void (*run)(struct tarn_call_context *c, const struct span *argv, size_t argc);
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
    void (*drop)(void *arg); /* NULL, or called once: all is sent, or nobody wants it any more */
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
    const char *program_version; /* "0.1.0" */

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
     * goodbye to the peer, as soon as what was written is sent, and is cut off after 2 s. TARN_ELIMIT:
     * there are connections_max. tls_close cuts off what is left; *tls_p may be NULL. */
    tarn_status (*tls_open)(const struct tarn_tls_options *options, struct tarn_tls **tls_p,
                            const char **why_p);
    tarn_status (*tls_accept)(struct tarn_tls *tls, int fd, int *plain_p);
    void (*tls_figures)(const struct tarn_tls *tls, struct tarn_tls_figures *figures_p);
    void (*tls_close)(struct tarn_tls **tls_p);

    /* Lists that INFO has no place for, a row as a group of figures: "nodes", "segments" (with a
     * map of each), "tasks", "clients", "prefixes", "alarms", "doctor", "events"; a program has
     * those that it can have. A call shows some rows from *from on (0: the first), which takes well
     * under a millisecond, and moves *from to where the next call goes on; it may show none and
     * have more. Events are numbered: *from is the last one that was seen. NULL where a program has
     * no lists. */
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
     * cannot be unloaded. */
    tarn_status (*unload)(char *error, size_t error_cap);
    /* Its current fields for INFO modules. NULL: none. */
    void (*info)(void (*field)(void *arg, const char *name, const char *value), void *arg);
};

#endif
