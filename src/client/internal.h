/* What the files of libtarn share. Nothing here is exported.
 *
 *   tarn_client ── lanes[] ── lane ──┬── ctl      control connection (RESP)
 *        │                           ├── engine   data connections
 *        │                           └── segments what SEGMENT INFO said, per id
 *        └── direct: one more lane, for views and writers. Its leases are counted by view, so that a get of the same key
 *                    through another lane (another connection) never ends them.
 *
 * Locks, in this order: tarn_async.mutex, tarn_client.direct_mutex, tarn_client.mutex. A lane that is taken belongs to
 * its taker; nothing in it is locked. */
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
#include "base/rng.h"
#include "engine/engine.h"
#include "tarn.h"

#define CRC_BLOCK     (UINT64_C(1) << 20) /* one CRC per so many bytes, for values larger than it */
#define INLINE_MAX    64u
#define VALUE_MAX     (UINT64_C(1) << 40)
#define EXTENTS_MAX   8u
#define REGISTER_MAX  1024u
#define DEADLINE_NONE UINT64_MAX
/* What a transfer may take beyond the timeout of its call: 100 MB/s, the rate put-timeout assumes. */
#define BYTES_PER_MS UINT64_C(100000)

/* --- error.c: the thread's last error ------------------------------------------------------------------------------ */

/* Notes the text and returns status, so that callers write: return fail(TARN_EINVAL, "...", ...). */
tarn_status fail(tarn_status status, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void log_default_once(void);

/* --- arena.c: memory that lives as long as one call ------------------------------------------------------------------- */

struct arena_block;
struct arena {
    struct arena_block *head;
    size_t total;
};
void *arena_alloc(struct arena *a, size_t size); /* 16-byte aligned */
void arena_reset(struct arena *a);               /* keeps one block of ordinary size */
void arena_free(struct arena *a);

/* --- answer.c: replies as trees in an arena ------------------------------------------------------------------------------ */

enum answer_type { ANSWER_NIL, ANSWER_INTEGER, ANSWER_STRING, ANSWER_SIMPLE, ANSWER_ERROR, ANSWER_ARRAY };
struct answer {
    enum answer_type type;
    int64_t integer;
    size_t len;             /* of str, or number of elements */
    const char *str;        /* terminated */
    struct answer *element; /* contiguous */
};
struct redisReader;
struct redisReader *answer_reader_create(void);
void answer_reader_set_arena(struct redisReader *reader, struct arena *arena);
/* TARN_OK unless the answer is an error: its status, noted with what ("PUTSTART") as last error. */
tarn_status answer_check(const struct answer *a, const char *what);
tarn_status answer_error_status(const char *text);
/* The index'th element or NULL. */
const struct answer *answer_at(const struct answer *a, size_t index);
bool answer_u64(const struct answer *a, uint64_t *value_p);
/* The value of a field in a flat map of name, value, name, value. */
const struct answer *answer_field(const struct answer *map, const char *name);

/* --- ctl.c: the control connection ------------------------------------------------------------------------------------------ */

/* Requests are numbered as they are sent and answered in that order. An answer nobody waits for is skipped: its number
 * is in the skip ring, or not above skip_until (requests that a failed call left behind). */
#define CTL_SKIP_MAX 256
struct ctl {
    int fd; /* -1: closed */
    struct redisReader *reader;
    struct buf out;
    uint64_t sent, received;
    uint64_t skip[CTL_SKIP_MAX]; /* ring, ascending */
    size_t skip_head, skip_count;
    uint64_t skip_until;
    bool loopback;    /* the peer is this machine */
    const char *what; /* the last request's name, for texts */
};
void ctl_init(struct ctl *c);
tarn_status ctl_open(struct ctl *c, const char *host, const char *port, uint64_t deadline);
void ctl_close(struct ctl *c);
/* Queues one request and sends what the socket takes. skip: nobody will ask for the answer; TARN_EAGAIN (and not sent)
 * when CTL_SKIP_MAX such answers are on their way. argv[0] must be static. */
tarn_status ctl_send(struct ctl *c, size_t argc, const char **argv, const size_t *lens, bool skip);
/* The next answer that is not skipped. Any failure closes the connection. Deadline on CLOCK_BOOTTIME ms. */
tarn_status ctl_receive(struct ctl *c, struct arena *arena, struct answer **answer_p, uint64_t deadline);
/* What is unanswered now will be skipped. */
void ctl_abandon(struct ctl *c);

/* --- lane.c ------------------------------------------------------------------------------------------------------------------- */

struct counters { /* one writer (the lane's taker), any reader: relaxed words */
    uint64_t gets, get_hits, get_misses, get_failures, puts, put_stored, put_existed, put_failures, lookups,
        removes;
    uint64_t bytes_read, bytes_written, requests, round_trips, connects, reconnects, retries, timeouts;
    uint64_t leases, lease_renewals, lease_misses, epoch_misses, crc_mismatches, unverified, segment_fetches;
    uint64_t shm_bytes_read, shm_bytes_written, tcp_bytes_read,
        tcp_bytes_written; /* copied from the engine */
};
#define COUNT(lane, field, n)                                                                                \
    __atomic_store_n(&(lane)->counters.field, (lane)->counters.field + (uint64_t)(n), __ATOMIC_RELAXED)

struct segment_entry {
    bool known;
    uint32_t epoch;
    bool write_attached;
    uint64_t fetched_ms;
};

/* An engine stays as long as somebody looks at memory that it has mapped: its lane, views, writers. */
struct engine_ref {
    struct engine *engine;
    unsigned users; /* under direct_mutex once the direct lane has it */
    unsigned writers;
};

struct lane {
    struct tarn_client *client;
    struct ctl ctl;
    struct engine_ref *ref;
    struct engine *engine; /* ref->engine */
    struct arena arena;
    struct rng rng;
    struct segment_entry *segment; /* by id */
    size_t segments;
    /* the request being built */
    const char **argv;
    size_t *lens;
    size_t argc, argv_cap;
    uint64_t window; /* bytes per engine_run: adapts to the speed of the path */
    bool connected_before;
    uint64_t registered_seen; /* client->registered_gen this lane's engine knows */
    void *registered[REGISTER_MAX];
    size_t n_registered;
    struct counters counters;
    struct hist hist[TARN_HISTS];
    /* of the pool, under client->mutex */
    bool busy;
    pthread_t last_user;
};

struct lane *lane_create(struct tarn_client *client, tarn_status *status_p);
void lane_destroy(struct lane **lane_p);
void engine_ref_drop(struct engine_ref **ref_p);
/* Takes a free lane; waits for one until the deadline. */
tarn_status lane_take(struct tarn_client *client, uint64_t deadline, struct lane **lane_p);
void lane_give(struct lane *lane);
/* Connects, if that is needed. */
tarn_status lane_ready(struct lane *lane, uint64_t deadline);

/* Building a request; the bytes of arguments are borrowed until lane_send. */
void lane_begin(struct lane *lane, const char *name);
void lane_arg(struct lane *lane, const void *data, size_t len);
void lane_arg_str(struct lane *lane, const char *s);
void lane_arg_u64(struct lane *lane, uint64_t v);
tarn_status lane_send(struct lane *lane, bool skip);
tarn_status lane_receive(struct lane *lane, struct answer **answer_p, uint64_t deadline);
tarn_status lane_call(struct lane *lane, struct answer **answer_p,
                      uint64_t deadline); /* send, receive, check */

/* How a call goes on after a failure of the connection or a lost lease. Zero-initialised is the first try. */
struct attempts {
    unsigned made;
};
/* true: status may get better; the back-off has been slept. false: give up (also when the deadline is near). */
bool lane_retry(struct lane *lane, struct attempts *attempts, tarn_status status, uint64_t deadline);

/* --- segment.c ------------------------------------------------------------------------------------------------------------------- */

/* Makes the engine know the segment, by SEGMENT INFO if need be. Nothing
 * may be unanswered on the lane. */
tarn_status segment_ensure(struct lane *lane, uint32_t id, uint32_t epoch, bool write, uint64_t deadline);
void segment_forget(struct lane *lane, uint32_t id);
void segment_forget_all(struct lane *lane);
/* "host name|boot id" as servers report it. */
void segment_host_name(char *out, size_t cap);
bool segment_host_is(const char *reported, size_t len, const char *own);

/* --- placement.c: what PUTSTART and GETREPLICAS answer ------------------------------------------------------------------------------ */

struct placement {
    uint64_t version, size;
    uint64_t lease_ms, lease_end; /* lease_end: CLOCK_BOOTTIME ms, already shortened; 0: no lease */
    int64_t crc;                  /* -1: none */
    uint64_t token;
    struct engine_part *parts; /* of the chosen replica */
    size_t n_parts;
    unsigned replicas, replica; /* how many, and which one parts belong to */
    const struct answer *all;   /* of the others, for puts */
    const char *value;          /* inline */
    const uint8_t *crcs;        /* packed, NULL: none */
    size_t n_crcs;
};
/* The end of a lease granted by an answer to a request that was sent at sent_ns (CLOCK_BOOTTIME). */
uint64_t placement_lease_end(uint64_t sent_ns, uint64_t lease_ms);
/* TARN_ENOTFOUND for nil. prefer: index of the replica to use (modulo their number). */
tarn_status placement_of_get(struct arena *arena, const struct answer *a, uint64_t sent_ns, unsigned prefer,
                             struct placement *p);
/* TARN_EEXISTS for nil. Sets replica 0; placement_replica switches to another. */
tarn_status placement_of_put(struct arena *arena, const struct answer *a, uint64_t size, struct placement *p);
tarn_status placement_replica(struct arena *arena, struct placement *p, unsigned index);
/* Sub-range [from, from + len) of the parts: *out gets up to EXTENTS_MAX parts, returns how many. */
size_t placement_slice(const struct engine_part *parts, size_t n_parts, uint64_t from, uint64_t len,
                       struct engine_part *out);

/* --- iovec helpers (arena.c) ------------------------------------------------------------------------------------------------------------ */

uint64_t iov_total(const struct iovec *iov, size_t n);
/* The pieces of [from, from + len) go to out (room for n); returns how many. */
size_t iov_slice(const struct iovec *iov, size_t n, uint64_t from, uint64_t len, struct iovec *out);
void iov_write(const struct iovec *iov, size_t n, const char *data, size_t len);

/* --- get.c, put.c, lookup.c: what runs on a lane ------------------------------------------------------------------------------------------ */

struct get_options {
    uint64_t deadline;    /* DEADLINE_NONE: none */
    bool extend_deadline; /* by the time the bytes take */
    uint64_t lease_ms, wait_ms;
    bool allocate; /* give items without memory a block of their own */
};
tarn_status get_run(struct lane *lane, tarn_item *items, size_t n, const struct get_options *options);
tarn_status put_run(struct lane *lane, tarn_item *items, size_t n, const tarn_put_options *options,
                    uint64_t deadline);
/* The options of PUTSTART behind the keys. */
void put_options_append(struct lane *lane, const tarn_put_options *o);
tarn_status wait_for_keys(struct lane *lane, const tarn_key *keys, size_t n, uint64_t wait_ms,
                          uint64_t deadline, size_t *length_p);

/* --- client.c --------------------------------------------------------------------------------------------------------------------------------- */

#define CLIENT_MAGIC 0x7a12c11eu

struct registered {
    void *address;
    size_t len;
};

struct tarn_client {
    uint32_t magic;
    pid_t pid;
    tarn_options options; /* strings owned */
    char *host, *port;
    char own_host[192]; /* what SEGMENT INFO must say for shm */
    pthread_mutex_t mutex;
    pthread_cond_t freed; /* a lane became free */
    struct lane **lanes;
    size_t n_lanes;
    struct registered registered[REGISTER_MAX];
    size_t n_registered;
    uint64_t registered_gen;
    pthread_mutex_t direct_mutex;
    struct lane *direct;
    struct tarn_view *views; /* open ones, under direct_mutex */
    uint64_t n_views, n_writers;
    uint64_t async_pending; /* atomic */
};

/* NULL or of another process: the status to return, noted. */
tarn_status client_usable(const struct tarn_client *client);
tarn_status client_check_key(const void *key, size_t key_len);
uint64_t client_deadline(const struct tarn_client *client, uint64_t timeout_ms, uint64_t bytes);
void client_call_copy(tarn_call *to, const tarn_call *from); /* from may be NULL or older */
void client_put_options_copy(tarn_put_options *to, const tarn_put_options *from);
/* The direct lane, connected and locked; direct_give unlocks. */
tarn_status direct_take(struct tarn_client *client, uint64_t deadline, struct lane **lane_p);
void direct_give(struct tarn_client *client);

/* url.c */
tarn_status url_parse(const char *url, tarn_options *options, char **host_p, char **port_p);
void url_options_free(tarn_options *options);
/* Owned copies of the strings of from (may be NULL, may be of an older size). */
void url_options_copy(tarn_options *to, const tarn_options *from);

static inline uint64_t now_ms(void) {
    return clock_boot_ms();
}
static inline uint64_t add_sat(uint64_t a, uint64_t b) {
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

#endif
