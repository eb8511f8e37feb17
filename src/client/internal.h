/* What the files of libtarn share. Nothing here is exported.
 *
 *   tarn_client ── lanes[] ── lane ──┬── ctl      control connection (RESP)
 *        │                           ├── engine   data connections
 *        │                           └── segments what SEGMENT INFO said, per id
 *        ├── outages: hosts that could not be reached a moment ago
 *        └── direct: one more lane, for views and writers. Its leases are counted by view, so
 *                    that a get of the same key through another lane (another connection) never
 *                    ends them.
 *
 * Locks, in this order: tarn_async.mutex, tarn_client.direct_mutex, tarn_client.mutex. A lane that
 * is taken belongs to its taker; nothing in it is locked. */
#ifndef TARN_CLIENT_INTERNAL_H
#define TARN_CLIENT_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include "base/assert.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/hist.h"
#include "base/iov.h"
#include "base/rng.h"
#include "base/thread.h"
#include "client/request.h"
#include "engine/engine.h"
#include "engine/placed.h"
#include "tarn.h"
#include "tls/tls.h"
#include "transport/transport.h"

#define CRC_BLOCK     PLACED_BLOCK
#define INLINE_MAX    64u
#define VALUE_MAX     (UINT64_C(1) << 40)
#define EXTENTS_MAX   8u
#define REGISTER_MAX  1024u
#define DEADLINE_NONE UINT64_MAX
/* What a transfer may take beyond the timeout of its call: 100 MB/s, the rate put-timeout
 * assumes. */
#define BYTES_PER_MS UINT64_C(100000)

/* --- error.c: the thread's last error --- */

/* Notes the text and returns status, so that callers write: return fail(TARN_EINVAL, "...",
 * ...). */
tarn_status fail(tarn_status status, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void log_default_once(void);

/* A number among options, from 1 on. */
struct option_range {
    const char *name;
    uint64_t value, max; /* UINT64_MAX: no limit */
};
/* TARN_EINVAL, with what is allowed. init: the function that sets the defaults. */
tarn_status check_ranges(const struct option_range *ranges, size_t n, const char *init);

/* --- arena.c: memory that lives as long as one call --- */

struct arena_block;
struct arena {
    struct arena_block *head;
    size_t total;
};
void *arena_alloc(struct arena *a, size_t size); /* 16-byte aligned */
void arena_reset(struct arena *a);               /* keeps one block of ordinary size */
/* What was allocated since the mark goes. The same memory serves chunk after chunk of a batch,
 * while it is in the cache. */
struct arena_mark {
    struct arena_block *head;
    size_t used;
};
struct arena_mark arena_mark(const struct arena *a);
void arena_rewind(struct arena *a, struct arena_mark mark);
void arena_free(struct arena *a);

/* --- answer.c: replies as trees in an arena --- */

enum answer_type {
    ANSWER_NIL,
    ANSWER_INTEGER,
    ANSWER_STRING,
    ANSWER_SIMPLE,
    ANSWER_ERROR,
    ANSWER_ARRAY
};
struct answer {
    enum answer_type type;
    int64_t integer;
    size_t len;             /* of str, or number of elements */
    const char *str;        /* terminated */
    struct answer *element; /* contiguous */
    size_t room;            /* answer.c: elements there is memory for, while they arrive */
};
struct redisReader;
struct redisReader *answer_reader_create(void);
void answer_reader_set_arena(struct redisReader *reader, struct arena *arena);
/* TARN_OK unless the answer is an error: its status, noted with what ("PUTSTART") as last error. */
tarn_status answer_check(const struct answer *a, const char *what);
tarn_status answer_error_status(const char *text);
/* What a TRYAGAIN asks for, else 0. */
uint64_t answer_later_ms(const struct answer *a);
/* The index'th element or NULL. */
const struct answer *answer_at(const struct answer *a, size_t index);
bool answer_u64(const struct answer *a, uint64_t *value_p);
/* n bytes from 2 n digits, no more and no fewer. */
bool answer_hex(const struct answer *a, uint8_t *out, size_t n);
/* The value of a field in a flat map of name, value, name, value. */
const struct answer *answer_field(const struct answer *map, const char *name);

/* --- secure.c: TLS --- */

/* A user without a password is one who needs none, not the default user. */
static inline bool logs_in(const tarn_options *o) {
    return o->password != NULL || (o->user != NULL && o->user[0] != '\0');
}
static inline const char *password_of(const tarn_options *o) {
    return o->password != NULL ? o->password : "";
}

/* What all connections of a client or host share. */
struct secure {
    bool on;                     /* else they are plain */
    struct tls_context *context; /* by secure_take only: another may take its place at any time */
};
/* From the options of a tarns:// URL, which must outlive it. Reads the files. */
tarn_status secure_open(const tarn_options *o, struct secure *s);
/* A context from the same files, as they are now. */
tarn_status secure_read(const tarn_options *o, struct tls_context **context_p);
/* What the next connection is made with, the caller puts it; and takes another in its place, from
 * now on. NULL: none. Any thread. */
struct tls_context *secure_take(struct tls_context *const *context_p);
void secure_swap(struct tls_context **context_p, struct tls_context *other);
void secure_close(struct secure *s);

/* --- ctl.c: the control connection --- */

/* Requests are numbered as they are sent and answered in that order. An answer nobody waits for is
 * skipped: its number is in the skip ring, or not above skip_until (requests that a failed call
 * left behind). */
#define CTL_SKIP_MAX 256
#define ANSWER_MAX   (UINT64_C(1) << 30) /* of a server: no value that it sends in-band is larger */
struct ctl {
    int fd;                 /* -1: closed */
    struct tls_stream *tls; /* NULL: plain */
    struct redisReader *reader;
    struct buf out;
    struct buf args;   /* of the request that is being built, as RESP */
    size_t argc;       /* so many */
    const char *begun; /* its name, for texts */
    uint64_t sent, received;
    uint64_t skip[CTL_SKIP_MAX]; /* ring, ascending */
    size_t skip_head, skip_count;
    uint64_t skip_until;
    uint64_t answer_max;      /* bytes of an unfinished answer; after ctl_open it is ANSWER_MAX */
    bool loopback;            /* the peer is this machine */
    char host[256], port[16]; /* of the peer, as it was opened */
    const char *what;         /* the last request's name, for texts */
};
struct secure;
void ctl_init(struct ctl *c);
/* Connects, and shakes hands where secure has a context (NULL: none). */
tarn_status ctl_open(struct ctl *c, const struct secure *secure, const char *host, const char *port,
                     uint64_t deadline);
void ctl_close(struct ctl *c);
/* Is there something that the socket did not take yet? */
bool ctl_wants_to_send(const struct ctl *c);
/* Building a request: begin, its arguments (they are copied), commit. what is its name in texts,
 * and static. */
void ctl_begin(struct ctl *c, const char *what);
void ctl_arg(struct ctl *c, const void *data, size_t len);
void ctl_arg_u64(struct ctl *c, uint64_t v);
void ctl_arg_i64(struct ctl *c, int64_t v);
static inline void ctl_arg_str(struct ctl *c, const char *s) {
    ctl_arg(c, s, strlen(s));
}
/* Queues it and sends what the socket takes. skip: nobody will ask for the answer; TARN_EAGAIN (and
 * not sent) when CTL_SKIP_MAX such answers are on their way. */
tarn_status ctl_commit(struct ctl *c, bool skip);
/* All of these at once. argv[0] must be static. lens NULL: the arguments are terminated strings. */
tarn_status ctl_send(struct ctl *c, size_t argc, const char **argv, const size_t *lens, bool skip);
/* AUTH, if the options have a user or a password. */
tarn_status ctl_login(struct ctl *c, const tarn_options *o, bool skip);
/* The next answer that is not skipped. TARN_ETIMEOUT: not until then; it may still come. Any other
 * failure closes the connection. */
tarn_status ctl_await(struct ctl *c, struct arena *arena, struct answer **answer_p, uint64_t until);
/* The same, and a deadline that passes is a failure. Any failure closes the connection. Deadline on
 * CLOCK_BOOTTIME ms. */
tarn_status ctl_receive(struct ctl *c, struct arena *arena, struct answer **answer_p,
                        uint64_t deadline);
/* The same without waiting: TARN_EAGAIN while no answer is whole. Sends what the socket takes, too.
 * A half answer stays in the arena, so that one is to be reset right after an answer, and only
 * then. */
tarn_status ctl_try_receive(struct ctl *c, struct arena *arena, struct answer **answer_p);
/* What is unanswered now will be skipped. */
void ctl_abandon(struct ctl *c);

/* What is said first on a connection, in one round trip: AUTH, CLIENT SETINFO, CLIENT SETNAME, ROLE
 * and a last request. */
struct greeting {
    const char *info[5][2]; /* name and value; NULL: not said */
    size_t n_info;
    const char *name;    /* NULL: not said */
    bool role;           /* it has to lead */
    const char *last[2]; /* what must be answered; [1] may be NULL */
    bool strict;         /* ... and without an error */
    const char *whom;    /* for texts */
};
tarn_status ctl_greet(struct ctl *c, struct arena *arena, const tarn_options *o,
                      const struct greeting *g, uint64_t deadline, struct answer **last_p);

/* --- master.c --- */

#define SENTINELS_MAX   16u
#define SERVERS_MAX     8u /* that a URL names without Sentinels */
#define MASTER_HOST_MAX 256u

struct scouts;
struct whereabouts {
    char *host, *port; /* of the only server; NULL: one of those below knows */
    char *name;        /* by which Sentinels know the master; NULL: those below are the servers */
    struct {
        char *host, *port;
    } sentinel[SENTINELS_MAX];
    unsigned n;
    const tarn_options *options; /* of url_parse */
    bool tls;                    /* the URL says so */
    struct secure secure;        /* how all of them are connected to, once secure_open was called */
    unsigned first;              /* to be asked; atomic */
    uint32_t met;                /* number of the master that was met last; atomic */
    uint64_t met_hash;           /* of its address; atomic: two at once are two changes */
    uint32_t epoch;              /* the highest of those met, 0: none told; atomic */
    struct scouts *scouts;       /* where the master may change */
};
void master_free(struct whereabouts *m);
/* Where it is; may ask over the network. Any thread. */
tarn_status master_find(struct whereabouts *m, uint64_t deadline, char host[MASTER_HOST_MAX],
                        char port[16]);
/* Some Sentinel names another master, and none this one; or servers_moved. Takes up to a second for
 * each Sentinel that does not answer. */
bool master_moved(const struct whereabouts *m, const char *host, const char *port);
/* What was said was wrong: another Sentinel is asked next time. */
void master_asked(struct whereabouts *m, const char *host, const char *port);
/* What an answer to INFO says of the master's epoch, 0: nothing. */
uint32_t master_epoch_of(const struct answer *info);
/* A master of this epoch (0: not told) was met. TARN_ECLOSED: one with a higher epoch was met
 * before, this one is deposed. */
tarn_status master_check_epoch(struct whereabouts *m, uint32_t epoch, const char *host,
                               const char *port);
/* A connection to host:port was made, and it is a master. Returns the number of that, which changes
 * when it is another one than before: connections with another number are to be left, a deposed
 * master may still serve them. Any thread. */
uint32_t master_met(struct whereabouts *m, const char *host, const char *port);
static inline bool master_is_other(const struct whereabouts *m, uint32_t number) {
    return __atomic_load_n(&m->met, __ATOMIC_RELAXED) != number;
}
/* The answer to ROLE. TARN_ECLOSED: it is none. */
tarn_status master_check_role(const struct answer *role, const char *host, const char *port);

/* --- servers.c: the URL names the servers themselves --- */

/* The number of the one that leads. May take up to a second for each that does not answer. */
tarn_status servers_find(const struct whereabouts *m, uint64_t deadline, unsigned *index_p);
/* Another one leads, with a higher epoch than any that was met. */
bool servers_moved(const struct whereabouts *m, const char *host, const char *port);

/* --- scout.c: who leads before the Sentinels say so. s may be NULL --- */

struct scouts *scouts_create(void);
void scouts_destroy(struct scouts **scouts_p);
/* The master is away: until then, but no longer than until another one is known. Any thread. */
void scout_wait(struct whereabouts *m, const tarn_options *o, uint64_t until);
/* Who was found, as long as that counts. */
bool scout_known(struct scouts *s, char host[MASTER_HOST_MAX], char port[16]);
/* What the Sentinels say; that who is there is no master; and whether they have just not heard of
 * host:port yet. */
void scout_named(struct scouts *s, const char *host, const char *port);
void scout_wrong(struct scouts *s, const char *host, const char *port);
bool scout_is_ahead(struct scouts *s, const char *host, const char *port, const char *named_host,
                    const char *named_port);
/* Connections are closed: there is a master. */
void scout_rest(struct scouts *s);

/* --- lane.c --- */

/* A lane counts in a tarn_stats of its own, by slot of transport, and leaves 0 there what is of the
 * client. One writer (the lane's taker), any reader: relaxed words. */
#define COUNT(lane, field, n)                                                                      \
    __atomic_store_n(&(lane)->counters.field, (lane)->counters.field + (uint64_t)(n),              \
                     __ATOMIC_RELAXED)

struct segment_entry {
    bool known;
    uint32_t epoch;
    bool write_attached;
    uint64_t fetched_ms;
    uint64_t again_ms; /* its host may have a key by then, 0: no need to ask */
    unsigned asked;    /* ... in vain, since there was one */
    /* These stay when the rest is forgotten. */
    uint64_t home;    /* of its host, the same for all segments of one; 0: never fetched */
    uint64_t address; /* hash of it */
    char name[64];
    /* Its host offers no way that we have or may use. */
    struct unreachable {
        uint64_t until_ms; /* the master is not asked again before; 0: there is a way */
        uint32_t epoch;    /* of when that was so */
        tarn_status status;
        char *why;
    } unreachable;
};

/* An engine stays as long as somebody looks at memory that it has mapped: its lane, views,
 * writers. */
struct engine_ref {
    struct engine *engine;
    unsigned users; /* under direct_mutex once the direct lane has it */
    unsigned writers;
};

struct lane {
    struct tarn_client *client;
    struct transport_tls tls; /* of its engine */
    char no_tls[TLS_WHY_MAX +
                /* " (why)" when a host was not reached for it, since the lane was taken; else "" */
                200];
    struct ctl ctl;
    struct engine_ref *ref;
    struct engine *engine; /* ref->engine */
    struct arena arena;
    struct rng rng;
    struct segment_entry *segment; /* by id */
    size_t segments;
    struct ctl_request request;
    uint64_t later_ms; /* of the last answer, a TRYAGAIN; else 0 */
    uint64_t window;   /* bytes per engine_run: adapts to the speed of the path */
    bool connected_before;
    uint32_t master_number;        /* master_met, of its connection */
    uint64_t registered_seen;      /* client->registered_gen this lane's engine knows */
    struct registered *registered; /* what its engine knows, REGISTER_MAX */
    size_t n_registered;
    tarn_stats counters;
    struct hist hist[TARN_HISTS];
    /* of the pool, under client->mutex */
    bool busy;
    pthread_t last_user;
};

/* Keys per request of a call on n keys. A batch is cut into several, so that the server looks up
 * one while the bytes of another move; not into too small ones, each of which is a turn of both
 * sides. */
size_t lane_chunk_keys(const struct lane *lane, size_t n);

struct lane *lane_create(struct tarn_client *client, tarn_status *status_p);
void lane_destroy(struct lane **lane_p);
void engine_ref_drop(struct engine_ref **ref_p);
/* Takes a free lane; waits for one until the deadline. */
tarn_status lane_take(struct tarn_client *client, uint64_t deadline, struct lane **lane_p);
/* What was registered and unregistered since it was last used; under the client's mutex, not in a
 * call. */
void lane_sync_registered(struct lane *lane);
void lane_give(struct lane *lane);
/* Connects, if that is needed. */
tarn_status lane_ready(struct lane *lane, uint64_t deadline);

/* A request of a command that is not built from its declaration. */
static inline void lane_begin(struct lane *lane, const char *name) {
    ctl_begin(&lane->ctl, name);
    ctl_arg_str(&lane->ctl, name);
}
static inline void lane_arg(struct lane *lane, const void *data, size_t len) {
    ctl_arg(&lane->ctl, data, len);
}
static inline void lane_arg_str(struct lane *lane, const char *s) {
    ctl_arg_str(&lane->ctl, s);
}
tarn_status lane_send(struct lane *lane, bool skip);
tarn_status lane_receive(struct lane *lane, struct answer **answer_p, uint64_t deadline);
tarn_status lane_call(struct lane *lane, struct answer **answer_p,
                      uint64_t deadline); /* send, receive, check */

/* answer_check of an answer to the whole request, for lane_retry: it keeps what a TRYAGAIN asks
 * for. */
tarn_status lane_check(struct lane *lane, const struct answer *a, const char *what);

/* Tells the server that bytes of this version do not match their CRC. It looks for itself and
 * removes what is bad; else every get would come across it, and a key without a good replica would
 * miss at every get and be there for every put. Nobody waits for the answer, and a failure shows at
 * the next request. */
void lane_report(struct lane *lane, const void *key, size_t key_len, uint64_t version);

/* How a call goes on after a failure of the connection or a lost lease. Zero-initialised is the
 * first try. */
struct attempts {
    /* later: after LOADING or TRYAGAIN, which are no failures of the connection */
    unsigned made, later;
};
/* true: status may get better; the back-off has been slept. false: give up (also when the deadline
 * is near). */
bool lane_retry(struct lane *lane, struct attempts *attempts, tarn_status status,
                uint64_t deadline);
/* For what is not now, but will be: sleeps ms, or (0) for what comes before try number `made` + 1.
 * false: the deadline is nearer, or nothing is tried again (retries=0). */
bool lane_later(struct lane *lane, unsigned made, uint64_t ms, uint64_t deadline);
/* The same without the sleep, which takes *ms_p. */
bool lane_later_time(struct lane *lane, unsigned made, uint64_t ms, uint64_t deadline,
                     uint64_t *ms_p);
/* Sleeps for what comes before try number `made` + 1. false: the deadline is nearer. */
bool lane_pause(struct lane *lane, unsigned made, uint64_t deadline);

/* --- segment.c --- */

/* Makes the engine know the segment, by SEGMENT INFO if need be. Nothing
 * may be unanswered on the lane. */
tarn_status segment_ensure(struct lane *lane, uint32_t id, uint32_t epoch, bool write,
                           uint64_t deadline);
void segment_forget(struct lane *lane, uint32_t id);
void segment_forget_all(struct lane *lane);
void segment_free_all(struct lane *lane);
/* TARN_ENOTSUP when the memory segments that are up are known and none offers this transport. */
tarn_status segment_require(struct lane *lane, const char *scheme, uint64_t deadline);
/* "host name|boot id" as servers report it. */
void segment_host_name(char *out, size_t cap);
bool segment_host_is(const char *reported, size_t len, const char *own);

/* What is known of a segment whose info was fetched, NULL: it never was. */
const struct segment_entry *segment_find(const struct lane *lane, uint32_t id);
/* For errors: its name, "?" when its info was never fetched. */
const char *segment_name(const struct lane *lane, uint32_t id);

/* --- outage.c: hosts that could not be reached a moment ago --- */

#define OUTAGES_MAX      64u
#define OUTAGE_NAMES_MAX 8u

struct outage {
    uint64_t home; /* as in segment_entry */
    uint64_t noted_ms, until_ms;
    unsigned failures;
    char name[OUTAGE_NAMES_MAX][64]; /* of its segments, as far as they were met */
    unsigned names;
};
/* All lanes share it: what one learned at the cost of a time-out the others need not. Under
 * client->mutex, but for the two counters, which are also read without it. */
struct outages {
    unsigned n;
    uint64_t changes; /* grows when a host is added */
    struct outage list[OUTAGES_MAX];
};
/* The host of this segment did not let us connect, fell silent, broke the protocol, or takes no
 * bytes of ours. */
void outage_note(struct lane *lane, uint32_t segment);
/* It has served something. */
void outage_over(struct lane *lane, uint32_t segment);
/* Its host is better left alone. Its name is remembered for outage_names. */
bool outage_listed(struct lane *lane, uint32_t segment);
/* It was noted since then, and has not served since. */
bool outage_noted(struct lane *lane, uint32_t segment, uint64_t since_ms);
/* As outage_listed, but when the time has come to try that host again, the first one who asks is
 * told so (false). */
bool outage_probe(struct lane *lane, uint32_t segment);
/* Names of segments on such hosts that were noted since then (0: on all), in the lane's arena. */
size_t outage_names(struct lane *lane, uint64_t since_ms, const char **names, size_t max);
static inline bool outages_any(const struct outages *o) {
    return __atomic_load_n(&o->n, __ATOMIC_RELAXED) > 0;
}
static inline uint64_t outages_changes(const struct outages *o) {
    return __atomic_load_n(&o->changes, __ATOMIC_RELAXED);
}

/* --- placement.c: what PUTSTART and GETREPLICAS answer --- */

#define REPLICAS_MAX PLACED_REPLICAS_MAX /* a server sends fewer */

enum replica_tier { REPLICA_MEMORY, REPLICA_SSD, REPLICA_FILE };
struct replica {
    enum replica_tier tier;
    struct engine_part *parts;
    size_t n_parts;
    const char *path; /* REPLICA_FILE: the value is what this file begins with */
};

struct placement {
    uint64_t version, size;
    uint64_t lease_ms, lease_end; /* lease_end: CLOCK_BOOTTIME ms, already shortened; 0: no lease */
    int64_t crc;                  /* -1: none */
    /* its memory may have been given to others without the server knowing */
    bool suspect;
    bool must_verify; /* that, or it may come from a disk: whatever the options say */
    uint64_t token;
    struct replica *replica; /* nearest first */
    unsigned replicas;
    const char *value;   /* inline */
    const uint8_t *crcs; /* packed, NULL: none */
    size_t n_crcs;
};
/* The end of a lease granted by an answer to a request that was sent at sent_ns
 * (CLOCK_BOOTTIME). */
uint64_t placement_lease_end(uint64_t sent_ns, uint64_t lease_ms);
/* TARN_ENOTFOUND for nil. Replicas that make no sense to us are left out; if there are no others,
 * it says why. */
tarn_status placement_of_get(struct arena *arena, const struct answer *a, uint64_t sent_ns,
                             struct placement *p);
/* TARN_EEXISTS for nil. All replicas, in the server's numbering. */
tarn_status placement_of_put(struct arena *arena, const struct answer *a, uint64_t size,
                             struct placement *p);
/* Room, zeroes, for the hosts' word on the grants of a put that are to be sealed:
 * GRANT_RECEIPT_SIZE for each extent. NULL: they need not be. */
uint8_t *placement_receipts(struct arena *arena, const struct placement *p, size_t *n_p);
uint8_t *placement_receipts_of(const struct placement *p, uint8_t *receipts, unsigned replica);

/* --- replica.c: all parts of one --- */

/* Makes the engine know its segments, as segment_ensure. */
tarn_status replica_ensure(struct lane *lane, const struct replica *r, bool write,
                           uint64_t deadline);
/* Pointers into its segments, which were ensured. false: not all of it can be mapped here. */
bool replica_map(struct lane *lane, const struct replica *r, bool write,
                 struct iovec pieces[EXTENTS_MAX]);
/* Is any of its segments like that? */
bool replica_is(struct lane *lane, const struct replica *r,
                bool (*is)(struct lane *lane, uint32_t segment));
/* It has served something, or has failed; away: so that its host is better left alone. */
void replica_worked(struct lane *lane, const struct replica *r);
void replica_failed(struct lane *lane, const struct replica *r, tarn_status status, bool away);

/* --- get.c, put.c, lookup.c: what runs on a lane --- */

/* Its memory; one is for an item without iovecs. */
const struct iovec *item_iov(const tarn_item *item, struct iovec *one, size_t *n_p);
struct get_options {
    uint64_t deadline;    /* DEADLINE_NONE: none */
    bool extend_deadline; /* by the time the bytes take */
    uint64_t lease_ms, wait_ms;
    bool allocate; /* give items without memory a block of their own */
};
tarn_status get_run(struct lane *lane, tarn_item *items, size_t n,
                    const struct get_options *options);
tarn_status put_run(struct lane *lane, tarn_item *items, size_t n, const tarn_put_options *options,
                    uint64_t deadline);
/* The options of PUTSTART behind the keys; segments of hosts noted as out of reach since then (0:
 * at all) are to be avoided. */
tarn_status put_options_check(const tarn_put_options *o);
void put_options_fill(struct lane *lane, const tarn_put_options *o, uint64_t since_ms,
                      struct wire_put *put);
tarn_status wait_for_keys(struct lane *lane, const tarn_key *keys, size_t n, uint64_t wait_ms,
                          uint64_t deadline, size_t *length_p);

/* --- client.c --- */

#define CLIENT_MAGIC 0x7a12c11eu

struct registered {
    void *address;
    size_t len;
    uint64_t identity; /* never given twice in this process */
    bool device;       /* only a NIC may touch it */
    int fd;            /* of a device's: its dma-buf, ours */
    uint64_t offset;
};

struct tarn_client {
    uint32_t magic;
    pid_t pid;
    tarn_options options; /* strings owned */
    struct whereabouts master;
    char own_host[192]; /* what SEGMENT INFO must say for shm */
    char *node;         /* the storage node it reads for, whose look-ups are no uses; NULL */
    pthread_mutex_t mutex;
    pthread_cond_t freed; /* a lane became free */
    struct lane **lanes;
    size_t n_lanes;
    struct registered registered[REGISTER_MAX];
    size_t n_registered;
    unsigned n_devices; /* of these, memory of a device; atomic */
    uint64_t registered_gen;
    pthread_mutex_t direct_mutex;
    struct lane *direct;
    struct tarn_view *views;       /* open ones, under direct_mutex */
    struct tarn_mapping *mappings; /* likewise */
    struct outages outages;
    bool told_no_shm; /* atomic: why memory of this machine is not mapped */
    const char *only; /* the transport of options; NULL: any */
    char hint[120];   /* ... for errors of moving bytes: "", or that no other was allowed */
    /* schemes whose modules could not be loaded, and are not tried again; under mutex */
    char no_module[TRANSPORTS_MAX][TRANSPORT_SCHEME_MAX + 1];
    uint64_t n_views, n_writers;
    uint64_t async_pending; /* atomic */
};

/* Is any of it memory of a device, which the CPU must not touch? */
bool client_is_device(struct tarn_client *client, const struct iovec *iov, size_t n_iov);
/* tarn_connect for a storage node of that name (NULL: for anybody), which makes its copies through
 * it. */
tarn_status client_connect(const char *url, const tarn_options *options, const char *node,
                           tarn_client **client_p);
/* NULL or of another process: the status to return, noted. */
tarn_status client_usable(const struct tarn_client *client);
/* For a registration of memory: never given twice in this process. */
uint64_t client_identity(void);
tarn_status client_check_key(const void *key, size_t key_len);
uint64_t client_deadline(const struct tarn_client *client, uint64_t timeout_ms, uint64_t bytes);
void client_call_copy(tarn_call *to, const tarn_call *from); /* from may be NULL or older */
void client_put_options_copy(tarn_put_options *to, const tarn_put_options *from);
/* The direct lane, connected and locked; direct_give unlocks. */
tarn_status direct_take(struct tarn_client *client, uint64_t deadline, struct lane **lane_p);
void direct_give(struct tarn_client *client);
/* lane_retry for the direct lane: others have it while this call waits for what is not now. */
bool direct_retry(struct tarn_client *client, struct attempts *attempts, tarn_status status,
                  uint64_t deadline);

/* --- stats.c --- */

/* What is kept by slot, of one transport. */
uint64_t client_bytes_of(const uint64_t by_slot[TRANSPORTS_MAX], const char *scheme);

/* --- module_load.c: what libtarn loads by itself --- */

/* Is this transport there, for a client that may use it? Loads its module, NAME.so, at the first
 * call, and remembers a failure for this client. For when a host offers it. */
bool client_module_has(struct tarn_client *client, const char *scheme);
/* Loads what is not there. Where it was looked for, and what was wrong there: a failure for who
 * insists. */
tarn_status client_module_require(const char *scheme, const char *module_path);
#define CLIENT_MODULE_USUAL "rdma" /* for who has to know before a host offers something */
/* The option transport: *only_p is a scheme, NULL for "auto". TARN_EINVAL, or as above. */
tarn_status client_module_choose(const char *name, const char *module_path, const char **only_p);
/* The only transport that may be used, if hosts have to announce it. NULL: it is not so. */
const char *client_module_wanted(const struct tarn_client *client);

/* url.c */
tarn_status url_parse(const char *url, tarn_options *options, struct whereabouts *master_p);
void url_options_free(tarn_options *options);
/* For errors of moving bytes: "", or what TLS did not like, or that only one transport was
 * allowed. */
static inline const char *lane_hint(const struct lane *lane) {
    return lane->no_tls[0] != '\0' ? lane->no_tls : lane->client->hint;
}
/* Owned copies of the strings of from (may be NULL, may be of an older size). */
void url_options_copy(tarn_options *to, const tarn_options *from);

static inline uint64_t now_ms(void) {
    return clock_boot_ms();
}
static inline uint64_t add_sat(uint64_t a, uint64_t b) {
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

#endif
