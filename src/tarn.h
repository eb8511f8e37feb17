/* libtarn: put, get and match blocks of bytes in a tarn pool.
 *
 *     #include <stdio.h>
 *     #include <tarn.h>
 *
 *     int main(void) {
 *         tarn_client *pool = NULL;
 *         char value[64];
 *         size_t len = 0;
 *         tarn_status status = tarn_connect("tarn://127.0.0.1:6479", NULL, &pool);
 *         if (status == TARN_OK) status = tarn_put(pool, "key", 3, "a block", 7, NULL);
 *         if (status == TARN_OK || status == TARN_EEXISTS)
 *             status = tarn_get(pool, "key", 3, value, sizeof(value), &len, NULL);
 *         puts(status == TARN_OK ? "the bytes that were put are in value" : tarn_last_error());
 *         tarn_close(&pool);
 *         return status != TARN_OK;
 *     }
 *
 * docs/LIBTARN.md is the guide; this header is the reference.
 *
 * Results. Every function returns TARN_OK (0) or a negative tarn_status; tarn_last_error() has a
 * sentence about the last failure of the calling thread and what to do about it. Outputs are
 * written only on TARN_OK unless said otherwise. A missing key is TARN_ENOTFOUND, which is not a
 * failure. Batches return TARN_OK when every key was tried; each item has its own status.
 *
 * What a get promises. TARN_OK means: these are exactly the bytes that were put under that key,
 * checked (CRC-32C, lease, epoch) after they arrived. After anything else the output buffers may
 * hold junk: do not read them.
 *
 * Keys are 1 to 1024 bytes of any kind, values 0 to 2^40 bytes. A value never changes: a put of a
 * key that exists does nothing (TARN_EEXISTS), unless it says replace.
 *
 * Threads. A tarn_client may be used from any number of threads at once. It keeps up to max_lanes
 * lanes; a lane is one control connection and the data connections beside it, and serves one call
 * at a time. A call waits for a free lane, and prefers the one that its thread used last.
 * tarn_close must be the last call. Views, puts in place and async queues belong to one thread at a
 * time. Nothing here survives fork(): a child gets TARN_ECLOSED and must connect anew.
 *
 * Signals: no function is async-signal-safe; sockets never raise SIGPIPE.
 *
 * Structs that may grow start with their size, set by their init function (or by hand: sizeof). */
#ifndef TARN_H
#define TARN_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>
#include "tarn_status.h"

#ifndef TARN_API
#if defined(__GNUC__)
#define TARN_API __attribute__((visibility("default")))
#else
#define TARN_API
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define TARN_KEY_MAX     1024
#define TARN_SESSION_MAX 128        /* bytes of a session's id, in hints */
#define TARN_RETURN_MAX  86400000   /* ms of the other hint: 24 hours */
#define TARN_NO_TIMEOUT  UINT64_MAX /* as a timeout_ms: wait for ever */

typedef struct tarn_client tarn_client;
typedef struct tarn_view tarn_view;
typedef struct tarn_mapping tarn_mapping;
typedef struct tarn_writer tarn_writer;
typedef struct tarn_async tarn_async;
struct tarn_span;

/* --- the library --- */

/* "0.2.0", static. */
TARN_API const char *tarn_version(void);
/* The text of a status, static, never NULL (tarn_status_text for callers that have only the
 * number). */
TARN_API const char *tarn_strerror(int status);
/* Why this thread's last failed call failed, with advice; "" if none has. Valid until the
 * thread's next call into the library. */
TARN_API const char *tarn_last_error(void);
/* Frees memory that tarn_get_alloc or tarn_command returned. NULL is fine. */
TARN_API void tarn_free(void *memory);
/* Where log lines go: fn(arg, level 0 debug .. 3 warning, text), possibly from several threads.
 * NULL: warnings to stderr (the default). Process-wide. */
TARN_API void tarn_set_log(void (*fn)(void *arg, int level, const char *text), void *arg);

/* --- connecting ---
 *
 * Structs of options are filled by their ..._init(&options). libtarn may be newer than the program,
 * whose structs are smaller then: so that is a macro, which tells the size. Who has no macros calls
 * ..._init_sized. The function beneath is for programs that were built with tarn 0.1. */

typedef struct tarn_options {
    size_t size;
    /* "auto" (default: shm on the same machine, else what a module brings (rdma) where both ends
     * have it, else tcp), "shm", "tcp", "rdma", or NAME of another NAME.so: only that one */
    const char *transport;
    /* 1 (default): check CRCs. 0: leases and epochs are still checked */
    int verify;
    unsigned max_lanes;          /* 8: calls that run at the same time */
    unsigned streams;            /* 2: tcp data connections per lane and host, for large values */
    uint64_t connect_timeout_ms; /* 5000 */
    /* 10000: of a call without its own; plus the time its bytes take at 100 MB/s */
    uint64_t timeout_ms;
    uint64_t lease_ms; /* 5000: the lease that gets ask for */
    /* 3: how often a broken connection, a lost lease, a put elsewhere is tried again */
    unsigned retries;
    uint64_t backoff_min_ms; /* 100: doubles with every try, with jitter */
    uint64_t backoff_max_ms; /* 5000 */
    /* 4096: keys per request, at most; batches go in requests of up to 512 */
    size_t batch_keys;
    /* 64 MiB: larger values go in pieces, with the lease renewed in between */
    uint64_t piece_bytes;
    unsigned workers; /* 2: threads of an async queue */
    /* this machine, for shm and for "nearest first"; NULL: gethostname() */
    const char *host_name;
    const char *user, *password; /* NULL: those of the URL */
    const char *name;            /* CLIENT SETNAME, NULL: none */
    /* label of the rack this machine is in, for "nearest first"; NULL: none */
    const char *rack;
    /* 1000: a host that takes so long to connect, or is silent for so long, is passed over where
     * another has the bytes or can take them (writes wait twice as long), and then left alone for
     * five times as long, more if it stays away. */
    uint64_t failover_ms;
    /* Directories, joined by ":", in which modules/rdma.so is searched for when a host first offers
     * RDMA. NULL: those of the environment's TARN_MODULE_PATH, then modules/, ../modules/, tarn/
     * and ../lib/tarn/ beside libtarn's own file, then where `make install` puts it. Without the
     * module, or a device, auto goes on with tcp. */
    const char *module_path;
    /* With a URL that begins with tarns:// or tarns+sentinel:// (docs/TLS.md). Files are PEM.
     * ca_file, ca_dir: trusted authorities; NULL for both: the system's. cert_file, key_file: our
     * own certificate, for servers that ask for one; NULL: none. server_name: the name that the
     * certificates of the server, of Sentinels and of all hosts must have; NULL: the names or
     * addresses that we connect to. verify: 1 (default); 0 accepts any certificate, which stops
     * only passive eavesdroppers. verify_name: 1 (default); 0 accepts a certificate of those
     * authorities for any name: then anyone who has one, even a client, can pose as the master or a
     * host. */
    const char *tls_ca_file, *tls_ca_dir, *tls_cert_file, *tls_key_file, *tls_server_name;
    int tls_verify, tls_verify_name;
    /* label of the pool in figures: cluster="..." in Prometheus' text, and in the summary. 1 to 128
     * bytes, none of them below a blank. NULL: none */
    const char *cluster;
    uint64_t log_figures_s; /* 0; else the summary of tarn_figures_text is logged so often */
    /* Hears of each call that has ended, and of its stages, which come before it: see tarn_span.
     * From the thread that called, a worker of an async queue, or a thread of a tarn_host, without
     * any lock: so possibly from several at once. The call returns when it does, so it must not
     * block; it must not call libtarn. NULL: nobody does, which costs nothing. */
    void (*on_span)(void *arg, const struct tarn_span *span);
    void *span_arg;
    /* 100: a call that waits for an answer looks for it for so long, at most, before it sleeps;
     * only where answers have come sooner of late, and nobody else wants the processor. 0: it
     * sleeps at once. A host's data threads do likewise */
    uint64_t busy_poll_us;
} tarn_options;
TARN_API void tarn_options_init_sized(tarn_options *options, size_t size);
TARN_API void tarn_options_init(tarn_options *options);
#define tarn_options_init(options) tarn_options_init_sized((options), sizeof(*(options)))

/* tarn://[user:pass@]host[:port][/][?name=value[&...]]: host may be a name, an IPv4 address or [an
 * IPv6 address]; the port is 6479 by default; user and password are percent-decoded; ":pass@"
 * means the default user, "user@" a user without a password.
 * The names are those of tarn_options: transport, verify, max_lanes, streams, connect_timeout_ms,
 * timeout_ms, lease_ms, retries, backoff_min_ms, backoff_max_ms, batch_keys, piece_bytes, workers,
 * host_name, name, rack, failover_ms, module_path; and with tarns://, which is the same over TLS,
 * tls_ca_file, tls_ca_dir, tls_cert_file, tls_key_file, tls_server_name, tls_verify,
 * tls_verify_name (yes or no); and cluster, log_figures_s, busy_poll_us.
 * tarn+sentinel://[user:pass@]host[:port][,host[:port]...]/name asks these Redis Sentinels (port
 * 26379; tarns+sentinel://: over TLS, as is the master) where the master of that name is, and asks
 * again whenever that one is gone or has become a replica: calls keep trying until their timeout.
 * tarn://host[:port],host[:port]... names up to 8 servers, one of them the master: the same,
 * without Sentinels. Where the pool has several masters (docs/CLUSTER.md), any of them will do, and
 * any name that Sentinels know, or several: name,name...: the server's slot map tells of the
 * others. The URL wins over options (which may be NULL).
 * Connects and authenticates at once. TARN_EINVAL: a bad URL; TARN_EIO, TARN_ETIMEOUT: no server;
 * TARN_EPERM: wrong password, or a certificate that one side does not accept; TARN_EPROTO: not a
 * tarn server, or TLS on one side only. */
TARN_API tarn_status tarn_connect(const char *url, const tarn_options *options,
                                  tarn_client **client_p);
/* Close all views, writers and queues first. Nulls the pointer; NULL inside is fine. */
TARN_API void tarn_close(tarn_client **client_p);
/* One round trip. */
TARN_API tarn_status tarn_ping(tarn_client *client);

/* How one call differs from the client's options. NULL means all defaults. */
typedef struct tarn_call {
    size_t size;
    uint64_t timeout_ms; /* 0: the client's. The call ends by then, with TARN_ETIMEOUT */
    uint64_t lease_ms;   /* gets, views: 0: the client's. Prefix length: 0: no lease */
    uint64_t wait_ms;    /* gets, prefix length: how long to wait for missing keys; 0: do not */
    /* Hints for the eviction policy, of gets, views, prefix length. session: up to
     * TARN_SESSION_MAX bytes, borrowed like keys; NULL or session_len 0: none. The same id: the
     * same conversation or request, whose later batches go on where the earlier ones ended, over
     * whatever connection. return_ms: it is expected back about so long after this call (a tool
     * call, a pause to read), up to TARN_RETURN_MAX; 0: not known. They change no result. Servers
     * from before hints refuse calls that have some: TARN_ERR, "unknown option 'HINT'". */
    const void *session;
    size_t session_len;
    uint64_t return_ms;
} tarn_call;
TARN_API void tarn_call_init_sized(tarn_call *call, size_t size);
TARN_API void tarn_call_init(tarn_call *call);
#define tarn_call_init(call) tarn_call_init_sized((call), sizeof(*(call)))

enum { TARN_PIN_NONE, TARN_PIN_SOFT, TARN_PIN_HARD };

struct tarn_item;

typedef struct tarn_put_options {
    size_t size;
    uint64_t timeout_ms; /* as in tarn_call */
    /* 1: an existing value is replaced; it stays readable until the new one is whole */
    int replace;
    /* 1: single puts of an existing key return TARN_OK (items still say TARN_EEXISTS) */
    int exists_ok;
    /* on this many machines, or on all if there are fewer; 0: the server's default */
    unsigned replicas;
    int pin;           /* TARN_PIN_* */
    uint64_t pin_ms;   /* of a soft pin, 0: the server's default */
    uint64_t ttl_ms;   /* 0: none */
    const void *group; /* name of an eviction group, NULL: none */
    size_t group_len;
    const char *const *prefer; /* names of segments, best first; NULL: none */
    size_t prefers;
    /* In place of group, one for each item of a batch (of a single put one); an empty one: none,
     * NULL: none at all. Of groups, or of boundaries: of the parts of a hybrid model's KV cache
     * that end at one boundary, those that were not used since go with one that is evicted. */
    const struct tarn_key *groups, *boundaries;
    const void *session; /* hints, as in tarn_call */
    size_t session_len;
    uint64_t return_ms;
    /* 1: of a mover between masters (tarn-cluster): keys of slots that are on their way are put at
     * the master they go to. */
    int moving;
    /* Called, NULL: not, when the values of n of the items are in their places, and before anybody
     * sees them: those with keep[i] 0 (it is 1 at first) are given up, as TARN_ECANCELED. It may be
     * called again for an item, when the server has lost its put; by several threads at once, when
     * there are several masters. It makes no call of this client. */
    void (*written)(void *arg, const struct tarn_item *const *items, size_t n, int *keep);
    void *written_arg;
    /* Of a mover, NULL: not told: how many blocks are before each item in its prompt, upwards. */
    const uint32_t *depths;
} tarn_put_options;
TARN_API void tarn_put_options_init_sized(tarn_put_options *options, size_t size);
TARN_API void tarn_put_options_init(tarn_put_options *options);
#define tarn_put_options_init(options) tarn_put_options_init_sized((options), sizeof(*(options)))

/* --- one key --- */

/* TARN_OK: readable by all from now on; at least one replica is whole (an item's replicas says how
 * many). TARN_EEXISTS: the key exists already, nothing was sent. TARN_EBUSY: another writer is
 * putting it. TARN_ENOSPACE, TARN_EQUOTA, TARN_EOOM: no room. */
TARN_API tarn_status tarn_put(tarn_client *client, const void *key, size_t key_len,
                              const void *data, size_t len, const tarn_put_options *options);
TARN_API tarn_status tarn_putv(tarn_client *client, const void *key, size_t key_len,
                               const struct iovec *iov, size_t n_iov,
                               const tarn_put_options *options);
/* The whole value; *len_p (may be NULL) is its size. TARN_ELIMIT: it does not fit into cap bytes;
 * *len_p is still written. */
TARN_API tarn_status tarn_get(tarn_client *client, const void *key, size_t key_len, void *buffer,
                              size_t cap, size_t *len_p, const tarn_call *call);
/* Fills the pieces in order; they must hold the value. */
TARN_API tarn_status tarn_getv(tarn_client *client, const void *key, size_t key_len,
                               const struct iovec *iov, size_t n_iov, size_t *len_p,
                               const tarn_call *call);
/* Bytes [offset, offset + len) of the value, fewer if it ends before: *got_p. TARN_EINVAL: offset
 * is beyond the end. Objects over 1 MiB carry a CRC per MiB, and whole MiBs are read to verify a
 * range; smaller ones are read whole. */
TARN_API tarn_status tarn_get_range(tarn_client *client, const void *key, size_t key_len,
                                    uint64_t offset, void *buffer, size_t len, size_t *got_p,
                                    const tarn_call *call);
/* A value of unknown size, in newly allocated memory (64-byte aligned, never NULL): tarn_free. */
TARN_API tarn_status tarn_get_alloc(tarn_client *client, const void *key, size_t key_len,
                                    void **data_p, size_t *len_p, const tarn_call *call);
/* TARN_OK or TARN_ENOTFOUND. Takes no lease and does not count as a use. */
TARN_API tarn_status tarn_exists(tarn_client *client, const void *key, size_t key_len);
/* TARN_OK or TARN_ENOTFOUND. */
TARN_API tarn_status tarn_remove(tarn_client *client, const void *key, size_t key_len);
/* Waits until the key is readable: TARN_OK; not within timeout_ms: TARN_ETIMEOUT. */
TARN_API tarn_status tarn_wait(tarn_client *client, const void *key, size_t key_len,
                               uint64_t timeout_ms);
/* kind: TARN_PIN_*; ms of a soft pin. TARN_OK or TARN_ENOTFOUND. */
TARN_API tarn_status tarn_pin(tarn_client *client, const void *key, size_t key_len, int kind,
                              uint64_t ms);

/* --- many keys: a constant number of round trips --- */

typedef struct tarn_key {
    const void *data;
    size_t len;
} tarn_key;

/* One key of a batch and its memory: iov, or (n_iov 0) buffer and buffer_len. */
typedef struct tarn_item {
    const void *key;
    size_t key_len;
    void *buffer; /* puts only read it */
    size_t buffer_len;
    const struct iovec *iov;
    size_t n_iov;
    uint64_t offset; /* gets: first byte wanted */
    /* gets: bytes wanted, fewer if the value ends before; 0: all from offset on, which must fit */
    uint64_t want;
    /* results */
    uint64_t got;        /* bytes delivered or stored */
    uint64_t value_size; /* gets: of the whole value (also with TARN_ELIMIT) */
    uint64_t version;    /* gets: grows with every value the server stores */
    int32_t status;      /* tarn_status. Puts: TARN_EEXISTS counts as done */
    uint32_t replicas;   /* puts: whole copies made; 0: in the books, or put by others */
} tarn_item;

/* Stores n values. The order of the items is the order of the prefix. *failed_p (may be NULL):
 * items whose status is neither TARN_OK nor TARN_EEXISTS. */
TARN_API tarn_status tarn_put_many(tarn_client *client, tarn_item *items, size_t n,
                                   const tarn_put_options *options, size_t *failed_p);
/* Reads n values or ranges. *hits_p (may be NULL): items with TARN_OK. Items are independent: a
 * miss in the middle does not stop the others. */
TARN_API tarn_status tarn_get_many(tarn_client *client, tarn_item *items, size_t n,
                                   const tarn_call *call, size_t *hits_p);
/* found[i] is 1 or 0. */
TARN_API tarn_status tarn_exists_many(tarn_client *client, const tarn_key *keys, size_t n,
                                      uint8_t *found);
/* How many leading keys are readable. With a lease (call->lease_ms) they stay readable for that
 * time, or until this thread's next get of them through this client, which ends it; over several
 * masters so does its next prefix length that has them behind its first gap. */
TARN_API tarn_status tarn_prefix_length(tarn_client *client, const tarn_key *keys, size_t n,
                                        const tarn_call *call, size_t *length_p);

/* What became of the keys of a prefetch. */
typedef struct tarn_prefetched {
    uint64_t taken;   /* they come, in the background */
    uint64_t there;   /* in memory already, or on their way */
    uint64_t unknown; /* not in the pool */
    uint64_t refused; /* too many are on their way */
} tarn_prefetched;
/* These will be read soon: what lies only on disks comes to memory before. segment (may be NULL):
 * to this memory segment, by name or id. Returns at once; nobody waits for the bytes, and what is
 * in use is not evicted for them. Keys in the order of the prefix. *result_p may be NULL.
 * TARN_ENOSEGMENT: no such segment, or not one of memory that takes new objects. TARN_EPROTO: a
 * server from before this. Of call only timeout_ms counts. */
TARN_API tarn_status tarn_prefetch(tarn_client *client, const tarn_key *keys, size_t n,
                                   const char *segment, const tarn_call *call,
                                   tarn_prefetched *result_p);
TARN_API tarn_status tarn_remove_many(tarn_client *client, const tarn_key *keys, size_t n,
                                      size_t *removed_p);

/* --- models with several KV groups --- */

/* A KV group: layers with blocks of one size and one kind, of one rank. What of it is read for a
 * boundary, the first tokens of a prompt, depends on the kind: every block from the start; the last
 * blocks, as far as the window of the next token reaches back; the one state at the boundary. */
enum { TARN_KV_FULL = 1, TARN_KV_WINDOW = 2, TARN_KV_STATE = 3 };

typedef struct tarn_kv_group {
    const void *name; /* what its keys begin with; behind it stands the hash at a part's end */
    size_t name_len;
    int kind;       /* TARN_KV_* */
    int drops_last; /* 1: the last part is there, and computed again all the same (EAGLE, MTP) */
    uint32_t block; /* tokens */
    /* tokens from one place where a part may end to the next; 0: block, as only whole blocks are
     * put; less, and dividing block, where unfinished blocks or states inside a block are, too */
    uint32_t unit;
    uint32_t window; /* tokens; 0 where kind is another */
} tarn_kv_group;

typedef struct tarn_kv_query {
    size_t size;
    const tarn_key *hashes; /* as they stand in keys; hash i is of (i + 1) * unit tokens */
    size_t n_hashes;
    uint32_t unit, align; /* tokens; boundaries are multiples of align */
    const tarn_kv_group *groups;
    size_t n_groups;
} tarn_kv_query;

/* The parts of a KV group that are read: whole blocks (block b ends at token (b + 1) * block), and
 * behind them the part that ends at token tail (0: none): an unfinished block, or a state inside
 * one. */
typedef struct tarn_kv_parts {
    uint64_t first, blocks, tail;
} tarn_kv_parts;

/* The longest boundary at which every group has what it needs: *tokens_p, 0: none; and what is to
 * be read of each group: parts, of n_groups. One round trip. call->lease_ms, wait_ms: as in
 * tarn_prefix_length, for these parts alone. TARN_EINVAL: groups that cannot be; TARN_ELIMIT: more
 * of them, or of hashes, than the server takes. */
TARN_API tarn_status tarn_kv_prefix(tarn_client *client, const tarn_kv_query *query,
                                    const tarn_call *call, uint64_t *tokens_p,
                                    tarn_kv_parts *parts);

/* The items for the n parts of a boundary, group by group and in order, with their memory (and
 * offset, want, as in tarn_get_many); NULL: it is not to be read. */
typedef tarn_item *(*tarn_kv_place_fn)(void *arg, uint64_t tokens, const tarn_kv_parts *parts,
                                       size_t n);
/* tarn_kv_prefix, and the bytes of those parts, located by the same round trip: for a process that
 * both asks and reads. Ranges of values that are verified take a second one. place is called at
 * most once, by this thread, and not without a boundary; it must not call the client. Its items
 * stay the caller's: their keys are set while the call lasts (NULL afterwards), and their results
 * as by tarn_get_many. *failed_p (may be NULL): those that are not TARN_OK. TARN_ECANCELED: place
 * gave NULL. */
TARN_API tarn_status tarn_kv_get(tarn_client *client, const tarn_kv_query *query,
                                 const tarn_call *call, tarn_kv_place_fn place, void *arg,
                                 uint64_t *tokens_p, tarn_kv_parts *parts, size_t *failed_p);

/* --- batches as columns: for languages with fast arrays of numbers and slow structs --- */

/* The same batch with one array per member instead of one struct per key. Only numbers are copied:
 * items and keys made from it point into its key bytes and its memory, which stay borrowed. */
typedef struct tarn_columns {
    size_t size;
    size_t n;                  /* keys */
    const void *keys;          /* their bytes, one key after the other, nothing in between */
    size_t keys_len;           /* of all of them; must be the sum of key_lens */
    const uint64_t *key_lens;  /* n */
    size_t n_pieces;           /* of memory; 0: no memory, for look-ups */
    const uint64_t *addresses; /* n_pieces */
    const uint64_t *sizes;     /* n_pieces, bytes */
    const uint64_t *pieces;    /* n: how many belong to each key, in order; NULL: one each */
    const uint64_t *offsets;   /* n, gets: first byte wanted; NULL: 0 */
    const uint64_t *wants;     /* n, gets: bytes wanted; NULL: 0, all */
} tarn_columns;

/* Fills n items, and n_pieces of iov for keys with several pieces (pieces NULL: iov is not used and
 * may be NULL). Needs no client and does not block. TARN_EINVAL: sums that do not agree, a missing
 * column, a key of 0 or over 1024 bytes, a piece at address 0. */
TARN_API tarn_status tarn_columns_items(const tarn_columns *columns, tarn_item *items,
                                        struct iovec *iov);
/* Fills n keys, for look-ups. TARN_EINVAL as above. */
TARN_API tarn_status tarn_columns_keys(const tarn_columns *columns, tarn_key *keys);
/* The results of n items as columns of n; NULL for unwanted ones. results: bytes (got) where the
 * status is TARN_OK, else the status. */
TARN_API void tarn_items_columns(const tarn_item *items, size_t n, int64_t *results,
                                 int32_t *statuses, uint64_t *value_sizes, uint64_t *versions);

/* --- leased views: read in place --- */

/* A value in the pool's own memory, on the machine that holds it. You may read through the pointers
 * until the lease ends, and a result counts only if tarn_view_check still says TARN_OK afterwards:
 * after the lease the space may be given to others at any moment. So open, work, check, and only
 * then use the result; renew in time.
 *
 *   open ──> valid ──(renew)──> valid ──> lease over: check says TARN_ELEASE ──> release
 *
 * TARN_ESTALE from open: the bytes are on another machine, shm is not allowed here, or their host
 * was silent; use a get. With verify on, open checks the CRC once. */
TARN_API tarn_status tarn_view_open(tarn_client *client, const void *key, size_t key_len,
                                    const tarn_call *call, tarn_view **view_p);
TARN_API uint64_t tarn_view_size(const tarn_view *view);
TARN_API uint64_t tarn_view_version(const tarn_view *view);
/* The whole value, or NULL when it lies in several pieces. */
TARN_API const void *tarn_view_data(const tarn_view *view);
/* 0 to 8 pieces in order; the array belongs to the view. */
TARN_API size_t tarn_view_pieces(const tarn_view *view, const struct iovec **pieces_p);
/* Milliseconds left of the lease (CLOCK_BOOTTIME); 0: it is over. */
TARN_API uint64_t tarn_view_valid_ms(const tarn_view *view);
/* TARN_OK: everything read through the view until now is right. TARN_ELEASE, TARN_ESTALE: it may
 * not be. */
TARN_API tarn_status tarn_view_check(tarn_view *view);
/* Computes the CRC of the bytes as they are now, then does tarn_view_check. TARN_ECORRUPT: they
 * changed. */
TARN_API tarn_status tarn_view_verify(tarn_view *view);
/* Extends the lease, in one round trip; lease_ms 0: the client's. TARN_ENOTFOUND: this version is
 * gone (the pointers stay good until the present lease ends). */
TARN_API tarn_status tarn_view_renew(tarn_view *view, uint64_t lease_ms);
/* Ends the lease early and nulls the pointer; NULL inside is fine. */
TARN_API void tarn_view_release(tarn_view **view_p);

/* The memory that holds a piece of a view: the whole segment, as this process has it mapped for
 * reading. Use it to register memory with a device, which costs too much to be done for every view.
 * The memory stays mapped, at the same address, until tarn_mapping_close, even after the view's
 * release: close it before the client. It has nothing to do with leases: only views say what may be
 * read, and for how long. TARN_EINVAL: there is no such piece. TARN_ENOTSUP: values of up to 64
 * bytes are copies. */
TARN_API tarn_status tarn_mapping_open(const tarn_view *view, size_t piece,
                                       tarn_mapping **mapping_p);
/* The start of a page. Two open mappings with the same address are the same memory. */
TARN_API const void *tarn_mapping_address(const tarn_mapping *mapping);
TARN_API size_t tarn_mapping_size(const tarn_mapping *mapping);
/* TARN_OK: views opened from now on may be in it. TARN_ESTALE: a newer mapping has taken its place
 * (the host was restarted, or another server became master); close it as soon as its views are
 * released. */
TARN_API tarn_status tarn_mapping_check(tarn_mapping *mapping);
/* Any thread, one at a time. Nulls the pointer; NULL inside is fine. */
TARN_API void tarn_mapping_close(tarn_mapping **mapping_p);

/* --- puts in place: write into the pool --- */

/* Space for a value of size bytes: write the pieces, then commit. On the same machine they are pool
 * memory; elsewhere they are private memory that commit sends. Nobody sees the value before commit.
 * The server takes the space back only when it knows that this process cannot write any more, so
 * always commit or abort. TARN_EEXISTS, TARN_EBUSY, TARN_ENOSPACE as in tarn_put. */
TARN_API tarn_status tarn_writer_open(tarn_client *client, const void *key, size_t key_len,
                                      uint64_t size, const tarn_put_options *options,
                                      tarn_writer **writer_p);
TARN_API size_t tarn_writer_pieces(const tarn_writer *writer, const struct iovec **pieces_p);
/* The whole space, or NULL when it lies in several pieces. */
TARN_API void *tarn_writer_data(const tarn_writer *writer);
/* 1: pool memory, 0: private memory. */
TARN_API int tarn_writer_in_place(const tarn_writer *writer);
/* Both end the writer and null the pointer, whatever they return. No write through the pieces may
 * follow. */
TARN_API tarn_status tarn_writer_commit(tarn_writer **writer_p);
TARN_API tarn_status tarn_writer_abort(tarn_writer **writer_p);

/* --- registered buffers --- */

/* Registers memory that will be used often: RDMA needs this; with shm and tcp it has no effect. It
 * must stay mapped until it is unregistered or the client is closed. Up to 1024 per client
 * (TARN_ELIMIT). TARN_EEXISTS, TARN_ENOTFOUND. */
TARN_API tarn_status tarn_register(tarn_client *client, void *address, size_t len);
/* Registers memory of a device such as a GPU, as a dma-buf: len bytes of it from offset on, which
 * gets and puts name by address. The CPU does not touch it: its bytes move by RDMA, or the call
 * fails with TARN_ENOTSUP (no module, no device that takes it, a value of up to 64 bytes, which
 * travels with the reply), and CRCs are neither computed nor checked: such a put stores a value
 * without one, and a get relies on leases and epochs. fd may be closed afterwards. */
TARN_API tarn_status tarn_register_dmabuf(tarn_client *client, void *address, size_t len, int fd,
                                          uint64_t offset);
/* No call may be using the memory. You may unmap it once this has returned and no other call is
 * under way. */
TARN_API tarn_status tarn_unregister(tarn_client *client, void *address);

/* --- asynchronous calls --- */

/* A bounded queue of batches that worker threads run, and a queue of their completions. Items, keys
 * and buffers stay borrowed until the completion has been collected. Every accepted submission
 * completes exactly once, cancelled ones with TARN_ECANCELED. */
enum { TARN_OP_GET = 1, TARN_OP_PUT = 2, TARN_OP_EXISTS = 3, TARN_OP_REMOVE = 4 };

typedef struct tarn_completion {
    uint64_t id;
    void *user;
    int32_t op;     /* TARN_OP_* */
    int32_t status; /* of the batch; each item has its own */
    tarn_item *items;
    size_t n;
    size_t done; /* items that are TARN_OK (puts: or TARN_EEXISTS) */
} tarn_completion;

/* capacity: submissions whose completions are not yet collected, 1 to 65536. */
TARN_API tarn_status tarn_async_open(tarn_client *client, size_t capacity, tarn_async **queue_p);
/* Cancels batches not started, waits for running ones, drops completions. Nulls the pointer. */
TARN_API void tarn_async_close(tarn_async **queue_p);
/* TARN_EAGAIN: capacity reached; collect completions. options are copied (but not what they point
 * to). *id_p may be NULL. EXISTS sets an item's status to TARN_OK or TARN_ENOTFOUND. */
TARN_API tarn_status tarn_async_get(tarn_async *queue, tarn_item *items, size_t n,
                                    const tarn_call *call, void *user, uint64_t *id_p);
TARN_API tarn_status tarn_async_put(tarn_async *queue, tarn_item *items, size_t n,
                                    const tarn_put_options *options, void *user, uint64_t *id_p);
TARN_API tarn_status tarn_async_exists(tarn_async *queue, tarn_item *items, size_t n, void *user,
                                       uint64_t *id_p);
TARN_API tarn_status tarn_async_remove(tarn_async *queue, tarn_item *items, size_t n, void *user,
                                       uint64_t *id_p);
/* An eventfd, readable while completions are waiting: for poll, epoll or asyncio. Never read it. */
TARN_API int tarn_async_fd(const tarn_async *queue);
/* Collects up to max completions; waits up to timeout_ms for the first (0: does not wait). Returns
 * how many. */
TARN_API size_t tarn_async_poll(tarn_async *queue, tarn_completion *completions, size_t max,
                                uint64_t timeout_ms);
/* TARN_OK: it will complete with TARN_ECANCELED. TARN_EAGAIN: it is running, and completes
 * normally. TARN_ENOTFOUND. */
TARN_API tarn_status tarn_async_cancel(tarn_async *queue, uint64_t id);

/* --- hosting: lending memory to the pool --- */

/* A storage node inside this process: joins the master, mounts segments, serves their bytes from
 * threads of its own, copies replicas when the master tells it to, keeps objects on disk. tarn-node
 * is little more than this. When the master goes away and comes back, it joins again by itself. In
 * a pool of many masters, each of them has a share of it (docs/CLUSTER.md).
 *
 *   tarn_host_open ─> up ─(master away)─> joining ─> up ─(NODE DRAIN, NODE LEAVE)─> left
 *                                                                     ─> tarn_host_close */
typedef struct tarn_host tarn_host;

typedef struct tarn_host_segment {
    uint64_t bytes;   /* rounded down to 4 KiB */
    int numa_node;    /* -1: any */
    const char *path; /* NULL: anonymous memory. A file keeps its bytes over a restart */
    int huge_pages;   /* 1: try */
} tarn_host_segment;

typedef struct tarn_host_options {
    size_t size;
    const char *name; /* of the node, unique: 1 to 48 of [A-Za-z0-9._-]. NULL: machine and pid */
    const char *rack; /* label for "nearest first", NULL: none */
    const tarn_host_segment *segments;
    size_t n_segments;
    const char *const *bind; /* addresses of the data port, NULL: all */
    size_t binds;
    uint16_t data_port; /* 0: any */
    /* host (or host:port) that clients are told; NULL: as the master sees this node */
    const char *announce;
    /* unix socket for clients on this machine; "": none; NULL: by the name, in
     * $RUNTIME_DIRECTORY, /run/tarn, $XDG_RUNTIME_DIR or TMPDIR/tarn-UID, or none where that
     * cannot be */
    const char *shm_socket;
    unsigned shm_mode;        /* its permissions; 0: 0600 */
    unsigned threads;         /* data threads; 0: 2 */
    unsigned max_connections; /* of the data port; 0: 4096 */
    int populate;             /* 1 (default): touch every page at the start */
    /* directory, file or block device for copies of objects; NULL: none */
    const char *ssd_path;
    uint64_t ssd_bytes;
    /* directory of a shared file system, for copies that every client reads; NULL: none */
    const char *file_path;
    uint64_t file_bytes;
    uint64_t queue_bytes; /* write-behind queue of each of these; 0: 256 MiB */
    unsigned copies;      /* copies this node makes at a time; 0: 4 */
    /* 1: the data port speaks TLS only and is offered as tcps://; shm and RDMA do not change. Only
     * with a tarns:// URL, as grants could be read on a plain connection. Its certificate (NULL:
     * that of the URL), and the authorities it trusts for clients (both NULL: those of the URL).
     * auth_clients: "yes" (NULL): they must show one; "optional": if they show one, it must be
     * trusted; "no". Files are PEM, read by tarn_host_open. */
    int tls_data;
    const char *tls_cert_file, *tls_key_file, *tls_ca_file, *tls_ca_dir, *tls_auth_clients;
    /* 1: a path that holds a larger segment is cut to bytes; else TARN_EEXISTS. A smaller one
     * grows and keeps its content */
    int shrink;
    /* permissions of the files under file_path, 0: 0600; 0644 for clients that run as other
     * users */
    unsigned file_mode;
    /* 1: creates a missing ssd_path (a file), file_path (a directory); else TARN_EINVAL */
    int ssd_create, file_create;
    /* of many masters: memory moves to where it is needed so often, a chunk at a time; 0: 30000 */
    uint64_t lend_interval_ms;
} tarn_host_options;
TARN_API void tarn_host_options_init_sized(tarn_host_options *options, size_t size);
TARN_API void tarn_host_options_init(tarn_host_options *options);
#define tarn_host_options_init(options) tarn_host_options_init_sized((options), sizeof(*(options)))

/* url and options as in tarn_connect: they are for the connection to the master (host_name is this
 * machine's name). Returns once all segments are mounted; of many masters, when one has its share
 * and the others have it or are away. TARN_EBUSY: a living node has that name. TARN_ENOMEM,
 * TARN_EINVAL, TARN_EIO. */
TARN_API tarn_status tarn_host_open(const char *url, const tarn_options *options,
                                    const tarn_host_options *host_options, tarn_host **host_p);

enum { TARN_HOST_JOINING, TARN_HOST_UP, TARN_HOST_LEAVING, TARN_HOST_LEFT };
typedef struct tarn_host_info { /* of many masters: sums */
    size_t size;
    int state;          /* TARN_HOST_*; of many masters: UP as soon as it is at one */
    uint16_t data_port; /* of many masters: the first one's */
    uint64_t segments, bytes;
    uint64_t joins, heartbeats, heartbeat_failures;
    uint64_t copies_done, copies_failed, copy_bytes;
    uint64_t reads, writes, bytes_read, bytes_written; /* by tcp */
    uint64_t stored, store_failures, store_bytes;
    uint64_t ssd_used, ssd_entries, ssd_reads, file_used, file_entries;
    char last_error[256]; /* of the connection to the master; "" when it is up */
} tarn_host_info;
TARN_API tarn_status tarn_host_get_info(tarn_host *host, tarn_host_info *info);
/* Waits until it has left the pool (TARN_OK) or timeout_ms are over (TARN_ETIMEOUT). */
TARN_API tarn_status tarn_host_wait(tarn_host *host, uint64_t timeout_ms);
/* Asks the master to move the objects that only this host has, then leaves: state LEFT. Returns at
 * once. */
TARN_API tarn_status tarn_host_drain(tarn_host *host);
/* Reads its TLS files again, after a certificate was renewed. New connections, to it and by it, use
 * them; open ones go on. TARN_EINVAL: a file cannot be used, or its certificate has expired:
 * nothing changes. Without TLS it does nothing. */
TARN_API tarn_status tarn_host_reload_tls(tarn_host *host);
/* Leaves without moving anything, waits up to timeout_ms for leases of readers to end, closes,
 * frees. With a pool file or a disk and keep != 0 it disconnects without leaving, so that a restart
 * finds its replicas again. Nulls. */
TARN_API tarn_status tarn_host_close(tarn_host **host_p, int keep, uint64_t timeout_ms);

/* --- figures --- */

typedef struct tarn_transport_stats {
    char name[16];
    uint64_t bytes_read, bytes_written;
} tarn_transport_stats;
typedef struct tarn_stats {
    size_t size;
    uint64_t gets, get_hits, get_misses, get_failures; /* by key */
    uint64_t puts, put_stored, put_existed, put_failures;
    uint64_t lookups, removes;
    uint64_t bytes_read, bytes_written;
    uint64_t shm_bytes_read, shm_bytes_written, tcp_bytes_read, tcp_bytes_written;
    uint64_t requests;    /* control requests sent; pipelined ones count each */
    uint64_t round_trips; /* times a call waited for the server */
    uint64_t connects, reconnects, retries, timeouts;
    uint64_t leases, lease_renewals;
    uint64_t lease_misses;   /* bytes thrown away because the lease was over */
    uint64_t epoch_misses;   /* ... because the segment had changed */
    uint64_t crc_mismatches; /* ... because they did not match their CRC */
    uint64_t unverified;     /* gets of values without a CRC while verify was on */
    uint64_t segment_fetches;
    uint64_t lanes, lanes_busy, views_open, writers_open, async_pending; /* now */
    uint64_t failovers;           /* reads that went on with another replica */
    uint64_t replica_reports;     /* damaged replicas reported to the server */
    uint64_t put_replicas_failed; /* replicas that puts went on without */
    uint64_t put_restarts;        /* puts that started again elsewhere */
    uint64_t outages;             /* hosts passed over, now */
    uint64_t rdma_bytes_read, rdma_bytes_written;
    /* times a segment of this machine was found whose socket cannot be opened: tcp instead */
    uint64_t shm_unreachable;
    /* by transport, those of shm, tcp and rdma again; an empty name: no more */
    tarn_transport_stats transport[8];
} tarn_stats;
/* Fills at most stats->size bytes. */
TARN_API tarn_status tarn_get_stats(tarn_client *client, tarn_stats *stats);

enum {
    TARN_HIST_GET,
    TARN_HIST_PUT,
    TARN_HIST_LOOKUP,
    TARN_HIST_REQUEST,
    /* of these calls, those on more than one key */
    TARN_HIST_GET_BATCH,
    TARN_HIST_PUT_BATCH,
    TARN_HIST_LOOKUP_BATCH,
    TARN_HISTS
};
#define TARN_HIST_BOUNDS 32

/* Latencies of whole calls (a batch is one) in microseconds; REQUEST: of single control round
 * trips. */
typedef struct tarn_histogram {
    size_t size;
    uint64_t count, sum_us, min_us, max_us;
    uint64_t p50_us, p90_us, p95_us, p99_us, p999_us;
    uint64_t n_bounds;
    uint64_t bound_us[TARN_HIST_BOUNDS]; /* 125 .. 1000000 */
    uint64_t upto[TARN_HIST_BOUNDS];     /* how many calls took bound_us or less */
} tarn_histogram;
TARN_API tarn_status tarn_get_histogram(tarn_client *client, int kind, tarn_histogram *histogram);

enum { TARN_FIGURES_PROMETHEUS, TARN_FIGURES_SUMMARY };
/* All counters and histograms as text, in newly allocated memory, with a zero byte behind *len_p
 * (may be NULL): tarn_free. PROMETHEUS: its text format, metrics tarn_client_*, for a scrape of the
 * program. SUMMARY: a few lines for people. Asks nobody; from any thread, while others work. */
TARN_API tarn_status tarn_figures_text(tarn_client *client, int format, char **text_p,
                                       size_t *len_p);

/* --- traces: W3C Trace Context --- */

/* What the calls of this thread are done for, from now on, through any client:
 * "00-TRACE-SPAN-FLAGS" as the header traceparent has it; NULL or "": nothing any more (as at the
 * start). Batches handed to a queue keep what their submitter's thread had then. The server shows
 * it in SLOWLOG, MONITOR and CLIENT LIST (the connection's user needs +client|setinfo). A context
 * that differs from the one before it on the same connection costs a small request that nobody
 * waits for; none costs nothing. TARN_EINVAL: not of that form; nothing changes. */
TARN_API tarn_status tarn_set_traceparent(const char *traceparent);

/* A call that has ended, or a stage of one: for tarn_options.on_span. Strings are static, or last
 * as long as that call of it. Ids are hex digits, as OTLP's JSON has them.
 *
 * A call's parent is the thread's traceparent; without one it begins a trace of its own, of which
 * the server is not told. With one, the server is told the call's own id as the parent: a line of
 * SLOWLOG or MONITOR names the call that it was part of. A traceparent whose flags say that it is
 * not sampled has no spans.
 *
 * Calls: get, put, lookup, remove, pin, ping, command, view_open, view_renew, writer_open,
 * writer_commit, writer_abort. Their stages: queue (of an async queue), lane (all were busy),
 * connect, request (an answer of the server was waited for), read, write (bytes moved; CRCs are
 * computed meanwhile), verify (of a view), pause (before another try). */
typedef struct tarn_span {
    size_t size;
    const char *name;
    const char *detail; /* of a request: its command; else NULL */
    int stage;          /* 0: a call; 1: a stage of the call that parent_id names */
    char trace_id[33], span_id[17];
    char parent_id[17];       /* "": it has none */
    uint64_t start_ns;        /* since 1970, by the wall clock */
    uint64_t duration_ns;     /* by the monotonic one */
    uint64_t keys, done;      /* of a call: asked for; and found, stored or there already */
    uint64_t bytes;           /* delivered or stored; of read and write: moved */
    int32_t status;           /* tarn_status. Of a batch TARN_OK: every key was tried */
    uint32_t stages_left_out; /* of a call: beyond the first 256 */
    const char *transport;    /* that moved its bytes; "mixed"; NULL: none did */
    /* of connect and request the server, of read and write the segment; else NULL */
    const char *host;
    const char *cluster; /* the option; NULL: none */
} tarn_span;

/* Any command, for tools: argv[i] of lens[i] bytes (lens NULL: strings). *text_p is the reply as
 * text (bulk strings as they are, numbers in decimal, arrays one element a line, nil empty), with a
 * terminator that *len_p (may be NULL) does not count: tarn_free. An error reply is its status,
 * with the text in tarn_last_error(). */
TARN_API tarn_status tarn_command(tarn_client *client, size_t argc, const char *const *argv,
                                  const size_t *lens, char **text_p, size_t *len_p);

#ifdef __cplusplus
}
#endif
#endif
