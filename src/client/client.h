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
#ifndef TARN_CLIENT_CLIENT_H
#define TARN_CLIENT_CLIENT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>
#include "base/clock.h"
#include "base/thread.h"
#include "client/error.h"
#include "client/lane.h"
#include "client/master.h"
#include "client/outage.h"
#include "client/placement.h"
#include "client/timing.h"
#include "client/trace.h"
#include "engine/placed.h"
#include "tarn.h"
#include "wire/options.h"

#define CRC_BLOCK     PLACED_BLOCK
#define DEADLINE_NONE UINT64_MAX
/* What a transfer may take beyond the timeout of its call: 100 MB/s, the rate put-timeout
 * assumes. */
#define BYTES_PER_MS UINT64_C(100000)

#define CLIENT_MAGIC 0x7a12c11eu

struct shards;

/* What lies on a disk of this very process needs no connection. Functions are called from the
 * thread of the call. read NULL: there is no such disk. */
struct client_home {
    void *arg;
    bool (*has)(void *arg, const struct grant_extent *extent);
    tarn_status (*read)(void *arg, struct transport_op *op, uint64_t deadline_boot_ms);
};

struct tarn_client {
    uint32_t magic;
    pid_t pid;
    struct shards *shards;     /* of a pool of many masters, for which it has no lanes; or NULL */
    struct tarn_client *front; /* whose one of these masters it is for; NULL: for a program */
    tarn_options options;      /* strings owned */
    struct whereabouts master;
    char own_host[192];      /* what SEGMENT INFO must say for shm */
    char *node;              /* the storage node it reads for, whose look-ups are no uses; NULL */
    struct client_home home; /* that node's; set before the first call */
    pthread_mutex_t mutex;
    pthread_cond_t freed; /* a lane became free */
    struct lane **lanes;
    size_t n_lanes;
    struct engine_buffer registered[REGISTER_MAX]; /* fd: ours */
    size_t n_registered;
    unsigned n_devices; /* of these, memory of a device; atomic */
    uint64_t registered_gen;
    pthread_mutex_t direct_mutex;
    struct lane *direct;
    LIST_HEAD(, tarn_view) views;       /* open ones, under direct_mutex */
    LIST_HEAD(, tarn_mapping) mappings; /* likewise */
    struct outages outages;
    bool told_no_shm; /* atomic: why memory of this machine is not mapped */
    const char *only; /* the transport of options; NULL: any */
    char hint[120];   /* ... for errors of moving bytes: "", or that no other was allowed */
    /* schemes whose modules could not be loaded, and are not tried again; under mutex */
    char no_module[TRANSPORTS_MAX][TRANSPORT_SCHEME_MAX + 1];
    uint64_t n_views, n_writers;
    uint64_t async_pending; /* atomic */
    struct reporter reporter;
};

bool client_meets_device(struct tarn_client *client, const struct iovec *iov, size_t n_iov);
/* Is any of it memory of a device, which the CPU must not touch? */
static inline bool client_is_device(struct tarn_client *client, const struct iovec *iov,
                                    size_t n_iov) {
    return __atomic_load_n(&client->n_devices, __ATOMIC_RELAXED) > 0 &&
           client_meets_device(client, iov, n_iov);
}
/* tarn_connect for a storage node of that name (NULL: for anybody), which makes its copies through
 * it. */
tarn_status client_connect(const char *url, const tarn_options *options, const char *node,
                           tarn_client **client_p);
/* What that consists of: all but where the master is; then all but a connection; then the first
 * connection. tarn_close ends each. */
struct tarn_client *client_create(const tarn_options *options, const char *node);
tarn_status client_prepare(struct tarn_client *client);
tarn_status client_connect_first(struct tarn_client *client);
/* NULL or of another process: the status to return, noted. */
tarn_status client_usable(const struct tarn_client *client);
/* For a registration of memory: never given twice in this process. */
uint64_t client_identity(void);
tarn_status client_check_key(const void *key, size_t key_len);
uint64_t client_deadline(const struct tarn_client *client, uint64_t timeout_ms, uint64_t bytes);
void client_call_copy(tarn_call *to, const tarn_call *from); /* from may be NULL or older */
void client_put_options_copy(tarn_put_options *to, const tarn_put_options *from);
/* lane_run on the direct lane, which is locked meanwhile. trace: of the call. */
tarn_status direct_run(struct tarn_client *client, struct call_trace *trace, uint64_t deadline,
                       lane_fn fn, void *arg);

/* --- trace.c, where most calls have nothing to do --- */

static inline void trace_begin(struct call_trace *t, struct tarn_client *client, const char *name,
                               size_t keys) {
    t->on = false;
    if (UNLIKELY(client->options.on_span != NULL || __atomic_load_n(&trace_used, __ATOMIC_RELAXED)))
        trace_begin_full(t, client, name, keys);
}
static inline void trace_end(struct call_trace *t, tarn_status status, size_t done,
                             uint64_t bytes) {
    if (UNLIKELY(t->on)) trace_end_full(t, status, done, bytes);
}

/* --- get.c, put.c, lookup.c: what runs on a lane --- */

/* Its memory; one is for an item without iovecs. */
static inline const struct iovec *item_iov(const tarn_item *item, struct iovec *one, size_t *n_p) {
    if (item->n_iov > 0) {
        *n_p = item->n_iov;
        return item->iov;
    }
    *one = (struct iovec){item->buffer, item->buffer_len};
    *n_p = item->buffer_len > 0 ? 1 : 0;
    return one;
}
/* What MGETREPLICAS has answered already, by item, to a request that was sent at sent_ns. */
struct get_located {
    const struct answer **of;
    uint64_t sent_ns;
    bool no_grant; /* they were asked for without grants */
};
/* Of a call, or of the options of a put, from which it borrows. */
struct call_hint {
    const void *session;
    size_t session_len;
    uint64_t return_ms;
};
#define HINT_OF(o) ((struct call_hint){(o)->session, (o)->session_len, (o)->return_ms})
tarn_status hint_check(struct call_hint hint);
void hint_fill(struct ctl_request *r, struct call_hint hint, struct wire_hint *wire);
/* Of a part of a batch whose other keys are other masters': the place of each in the whole, which
 * has so many. at NULL: it is no part. */
struct call_spread {
    const uint32_t *at;
    size_t of;
};
/* Tells the places of n keys: of order[k], or (NULL) of the first n. */
void spread_fill(struct ctl_request *r, const struct call_spread *spread, const size_t *order,
                 size_t n, struct wire_spread *wire);
struct get_options {
    const struct get_located *located; /* for the first pass; NULL: ask */
    uint64_t deadline;                 /* DEADLINE_NONE: none */
    bool extend_deadline;              /* by the time the bytes take */
    uint64_t lease_ms, wait_ms;
    bool allocate; /* give items without memory a block of their own */
    bool asking;   /* what moves to this master, and is not its own yet */
    struct call_hint hint;
    struct call_spread spread;
};
tarn_status get_run(struct lane *lane, tarn_item *items, size_t n,
                    const struct get_options *options);
/* Puts in the making (put.h), in the lane's arena; then all of it, or what is left of it. */
struct putting *put_open(struct lane *lane, tarn_item *items, size_t n,
                         const tarn_put_options *options, struct call_spread spread,
                         uint64_t deadline);
tarn_status put_run(struct putting *p);
/* Before put_run, on a lane that is ready: asks for all of it, which must be one chunk; then, when
 * the answer comes, writes it and begins to end it. false: nothing is awaited, and put_run does the
 * rest. */
bool put_ask_ahead(struct putting *p);
bool put_write_ahead(struct putting *p);
bool put_is_over(const struct putting *p);
/* The question where items lie: order[k], or (NULL) the first n. batch: their leases are
 * to be one. true: it asks for places without grants. */
bool get_locate_build(struct lane *lane, const tarn_item *items, const size_t *order, size_t n,
                      const struct get_options *o, bool batch);
/* The same on a free lane of a client that has one master; o is whole. In two steps, so that
 * several masters are asked before the first answer is awaited: what is set here is client, items,
 * n and o. */
struct get_call {
    struct tarn_client *client;
    tarn_item *items;
    size_t n;
    struct get_options o;
    /* private */
    struct call_trace trace;
    struct lane *lane; /* NULL: there was none, and status says why */
    tarn_status status;
    uint64_t started_us, sent_ns;
    bool asked, no_grant;
};
/* ahead: asks where the items lie, which are one request's, if the lane is connected and nothing
 * but memory of this machine was read or written through it. */
void client_get_begin(struct get_call *g, bool ahead);
tarn_status client_get_end(struct get_call *g);
tarn_status client_get(struct tarn_client *client, tarn_item *items, size_t n,
                       const struct get_options *o);
/* Likewise: what is set here is client to asking, of which o is borrowed until the end. */
struct put_call {
    struct tarn_client *client;
    tarn_item *items;
    size_t n;
    const tarn_put_options *o;
    struct call_spread spread;
    uint64_t deadline;
    bool asking;
    /* private */
    struct call_trace trace;
    struct lane *lane; /* NULL: there was none, and status says why */
    struct putting *putting;
    tarn_status status;
    uint64_t started_us;
    bool asked; /* an answer is awaited */
    bool written;
};
/* ahead: asks for places, likewise. */
void client_put_begin(struct put_call *p, bool ahead);
/* The answer has come: the bytes are written. true: nothing is left to be waited for. */
bool client_put_write(struct put_call *p);
tarn_status client_put_end(struct put_call *p);
tarn_status put_options_check(const tarn_put_options *o, size_t i); /* of item i */
/* By the depths of a mover's items. */
struct call_spread put_spread(const tarn_put_options *o, size_t n);
/* The options of PUTSTART behind the keys; segments of hosts noted as out of reach since then (0:
 * at all) are to be avoided. */
void put_options_fill(struct lane *lane, const tarn_put_options *o, uint64_t since_ms,
                      struct wire_put *put);
/* ... and what item i goes together with. */
void put_together_one(struct lane *lane, const tarn_put_options *o, size_t i, struct wire_put *put);
tarn_status wait_for_keys(struct lane *lane, const tarn_key *keys, size_t n, uint64_t wait_ms,
                          uint64_t deadline, size_t *length_p);

/* --- module_load.c, url.c --- */

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

/* --- replica.c: all parts of one --- */

/* Makes the engine know its segments, as segment_ensure. */
tarn_status replica_ensure(struct lane *lane, const struct placed_replica *r, bool write,
                           uint64_t deadline);
/* Pointers into its segments, which were ensured. false: not all of it can be mapped here. */
bool replica_map(struct lane *lane, const struct placed_replica *r, bool write,
                 struct iovec pieces[EXTENTS_MAX]);
/* Is any of its segments like that? */
bool replica_is(struct lane *lane, const struct placed_replica *r,
                bool (*is)(struct lane *lane, uint32_t segment));
/* Where the engine says that it needs grants: has it none? */
bool replica_lacks_grant(const struct placed_replica *r);
/* It has served something, or has failed; away: so that its host is better left alone. */
void replica_worked(struct lane *lane, const struct placed_replica *r);
void replica_failed(struct lane *lane, const struct placed_replica *r, tarn_status status,
                    bool away);

/* --- stats.c --- */

/* Of a client that goes: adds its counters, and how long its requests took. */
void stats_keep(struct tarn_client *client, tarn_stats *counters, struct hist *requests);
/* What is kept by slot, of one transport. */
uint64_t client_bytes_of(const uint64_t by_slot[TRANSPORTS_MAX], const char *scheme);

#endif
