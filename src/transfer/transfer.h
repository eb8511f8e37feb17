/* What the files of the transfer interface (src/tarn_transfer.h) share.
 *
 *   tarn_transfer ── host       serves its memory: each region is a slot, named (region id, epoch)
 *        ├── conns[]            control connections from peers: each is a session, which is fenced
 *        │                      when it ends
 *        ├── labels, events     what peers wait for, and what became of it
 *        ├── peers[] ── ctl     control connections to peers
 *        │           └── lanes[]  engines, one for each batch that runs at the moment
 *        └── queue of batches, workers
 *
 * Threads. One mutex for all of it, held for short: never while bytes move or a connection is made.
 * The control thread answers peers, receives their answers, and alone closes connections. A worker
 * owns the lane that it runs a batch on. The announcer, in an end that has a name, talks to the
 * master. */
#ifndef TARN_TRANSFER_TRANSFER_H
#define TARN_TRANSFER_TRANSFER_H

#include "base/crew.h"
#include "base/htab.h"
#include "base/queue.h"
#include "base/wheel.h"
#include "client/answer.h"
#include "client/arena.h"
#include "client/client.h"
#include "client/ctl.h"
#include "client/lane.h"
#include "engine/engine.h"
#include "host/host.h"
#include "resp/resp.h"
#include "tarn_transfer.h"
#include "transport/transport.h"

#define TRANSFER_MAGIC       0x7a12f3e2u
#define TRANSFER_PEER_MAGIC  0x7a12f3e3u
#define TRANSFER_BATCH_MAGIC 0x7a12f3e4u

#define TRANSFER_VERSION      2u
#define TRANSFER_KEY_PREFIX   "tarn:transfer:"
#define TRANSFER_BINDS_MAX    8u
#define TRANSFER_REGIONS_MAX  256u
#define TRANSFER_LABELS_MAX   65536u
#define TRANSFER_EVENTS_MAX   65536u /* from peers; what is the owner's own comes on top */
#define TRANSFER_NOTE_BYTES   (64u << 20)
#define TRANSFER_BATCHES_MAX  4096u
#define TRANSFER_WORKERS_MAX  64u
#define TRANSFER_PEERS_MAX    4096u
#define TRANSFER_WAITS_MAX    1024u /* per connection */
#define TRANSFER_NONCE        16u
#define TRANSFER_IDENTITY     16u
#define TRANSFER_PROOF        32u
#define TRANSFER_HANDSHAKE_MS 5000u
#define TRANSFER_OUT_MAX      (16u << 20) /* bytes that a peer does not take */
#define TRANSFER_MASTER_EPOCH 1u

struct tarn_transfer;

/* In the end's wheel; fires in the control thread, under the mutex. Zero-initialised is none. */
struct transfer_timer {
    struct wheel_node node;
    void (*fire)(struct transfer_timer *timer);
};

/* --- memory: region.c --- */

struct transfer_region {
    LIST_ENTRY(transfer_region) link;
    struct engine_buffer memory; /* fd: ours */
    int rights;
    uint32_t id;   /* 0: peers do not reach it */
    unsigned slot; /* of the host, when id is not 0 */
    bool ours;     /* tarn_transfer_alloc's */
    bool closing;
    char name[64];
};
void transfer_regions_free(struct tarn_transfer *t);

/* --- who knows the secret: proof.c --- */

enum transfer_role { TRANSFER_CLIENT, TRANSFER_SERVER };
struct transfer_party { /* what one side says of itself before it proves anything */
    uint8_t nonce[TRANSFER_NONCE], identity[TRANSFER_IDENTITY];
    char name[TARN_TRANSFER_NAME_MAX + 1]; /* "": it has none */
};
/* Our own, with a new nonce. */
void transfer_party_init(struct transfer_party *p, const struct tarn_transfer *t);
/* The other one's, as it came; false: it makes no sense. */
bool transfer_party_take(struct transfer_party *p, struct span nonce, struct span identity,
                         struct span name);
/* Are they the same end? */
bool transfer_party_same(const struct transfer_party *a, const struct transfer_party *b);
/* The secret itself is not kept. */
void transfer_proof_key(const char *secret, uint8_t key[32]);
/* p: by role. */
void transfer_proof_make(const uint8_t key[32], enum transfer_role prover,
                         const struct transfer_party p[2], uint8_t out[TRANSFER_PROOF]);
/* in constant time */
bool transfer_proof_same(const uint8_t a[TRANSFER_PROOF], const void *b, size_t len);

/* --- control connections from peers: serve.c --- */

struct transfer_conn {
    LIST_ENTRY(transfer_conn) link;
    struct tarn_transfer *end;
    int fd;
    enum { CONN_NEW, CONN_GREETED, CONN_OPEN } state;
    bool doomed;  /* closed at the end of the turn */
    bool granted; /* its session must be fenced when it ends */
    /* asked for the regions, and has not been told since that they have changed */
    bool wants_changes;
    uint64_t session;
    char address[80];
    struct transfer_party party[2]; /* by role */
    struct buf in, out;
    struct resp_parser parser;
    unsigned n_waits;
    struct transfer_timer handshake;
    size_t polled; /* where in the control thread's set; 0: not */
};

static inline const char *transfer_conn_name(const struct transfer_conn *c) {
    return c->party[TRANSFER_CLIENT].name;
}
/* Bytes that came from the peer. Appends the answers to c->out; false: the connection must be
 * closed. */
bool transfer_serve_bytes(struct transfer_conn *c, const void *data, size_t len);
struct transfer_conn *transfer_conn_create(struct tarn_transfer *t, int fd, const char *address);
void transfer_conn_destroy(struct transfer_conn **conn_p);
void transfer_answer(struct transfer_conn *c, uint64_t id, tarn_status status, const void *text,
                     size_t len);
/* Tells everybody who wants to know. */
void transfer_regions_changed(struct tarn_transfer *t);
/* Appends the answer to REGIONS. */
void transfer_write_regions(struct tarn_transfer *t, uint64_t session, struct buf *out);

/* --- labels: label.c --- */

struct transfer_wait { /* a peer that waits for a label */
    LIST_ENTRY(transfer_wait) link;
    struct transfer_label *label;
    struct transfer_conn *conn;
    uint64_t id; /* of its request */
    struct transfer_timer due;
};

struct transfer_holder { /* a session that was told */
    SLIST_ENTRY(transfer_holder) link;
    uint64_t session;
    unsigned told; /* so often, and is not done */
    char peer[TARN_TRANSFER_NAME_MAX + 1];
};

/*   WANTED ─ready─> READY ─all done─> gone          WANTED: only waited for
 *      └─abort─> ABORTED <─abort, keep─┘
 *
 * Holders that are cut: the event comes when their fences are through. */
struct transfer_label {
    struct htab_node node;
    char name[TARN_TRANSFER_LABEL_MAX + 1];
    enum { LABEL_WANTED, LABEL_READY, LABEL_ABORTED } state;
    char *info; /* or why it was aborted */
    size_t info_len;
    unsigned peers_left;
    bool cut;
    bool event_due; /* ABORTED, and holders are being fenced */
    SLIST_HEAD(, transfer_holder) holders;
    LIST_HEAD(, transfer_wait) waits;
    struct tarn_transfer *end;
    struct transfer_timer due; /* READY: keep; ABORTED: until it is forgotten */
};
tarn_status transfer_label_check(const char *label);
void transfer_label_wait(struct transfer_conn *c, uint64_t id, const char *label,
                         uint64_t timeout_ms);
tarn_status transfer_label_done(struct transfer_conn *c, const char *label, bool gave_up,
                                const void *data, size_t len);
/* The connection ends: its waits go. What it held is given up at once, or, with fence, by
 * transfer_labels_fenced. */
void transfer_labels_conn_ended(struct transfer_conn *c, bool fence);
void transfer_labels_fenced(struct tarn_transfer *t, uint64_t session);
void transfer_labels_free(struct tarn_transfer *t);

/* --- events: event.c --- */

struct transfer_note {
    STAILQ_ENTRY(transfer_note) link;
    int kind;
    char peer[TARN_TRANSFER_NAME_MAX + 1], label[TARN_TRANSFER_LABEL_MAX + 1];
    char *data;
    size_t len;
};
void transfer_event_add(struct tarn_transfer *t, int kind, const char *peer, const char *label,
                        const void *data, size_t len);
bool transfer_events_full(const struct tarn_transfer *t);

/* --- peers: peer.c, dial.c --- */

struct transfer_far { /* a region of a peer */
    uint32_t id, epoch;
    int rights;
    bool file, device; /* shm can map it; only RDMA reaches it */
    uint64_t address, length;
    char name[64];
    uint8_t grant[2][GRANT_SIZE], attach[2][GRANT_SIZE]; /* to read, to write; by rights */
    char *key_uri; /* of a transport that announces itself; NULL: none serves it */
    void *key[2];
    size_t key_len[2];
};
struct transfer_map { /* what a peer said of its regions; shared by its batches */
    unsigned refs;
    struct transfer_far *regions; /* by address */
    size_t n;
    bool same_host;
    char *data_uri, *shm_uri; /* shm_uri NULL: none, or another machine */
};
void transfer_map_put(struct transfer_map **map_p); /* under the mutex */
/* From the answer to REGIONS; own: this machine, as transfer_host_id says. TARN_EPROTO. */
tarn_status transfer_map_parse(const struct answer *a, const char *own, const char *host,
                               struct transfer_map **map_p);

struct transfer_pending { /* a request that somebody waits for */
    LIST_ENTRY(transfer_pending) link;
    uint64_t id;
    bool over;
    tarn_status status;
    struct buf text; /* of the answer, terminated */
    pthread_cond_t changed;
};

struct transfer_known { /* memory of our own */
    struct engine_buffer memory;
    bool unusable; /* a device's, and no transport can have it */
};
struct transfer_lane { /* an engine; its worker's while busy */
    LIST_ENTRY(transfer_lane) link;
    struct engine *engine;
    bool busy;
    bool stop; /* atomic: ends what runs on it */
    uint64_t registered_seen;
    struct transfer_known *registered; /* with its engine */
    size_t n_registered;
    struct transfer_map *told; /* what its engine was told last */
    size_t stale;              /* regions that it was told of and that are no more */
};

struct tarn_transfer_peer {
    uint32_t magic;
    LIST_ENTRY(tarn_transfer_peer) link;
    struct tarn_transfer *end;
    struct ctl ctl;
    struct arena arena; /* of half an answer */
    char *host, *port;
    char name[TARN_TRANSFER_NAME_MAX + 1];
    size_t polled;
    tarn_status broken; /* TARN_OK: it is up */
    char why[200];
    bool closing, closed; /* asked of the control thread, done by it */
    uint64_t last_id;
    LIST_HEAD(, transfer_pending) pending;
    struct transfer_map *map; /* NULL: to be asked for */
    unsigned running;         /* batches that workers have */
    unsigned batches;         /* all that are not released */
    LIST_HEAD(, transfer_lane) lanes;
};
tarn_status transfer_peer_usable(const struct tarn_transfer_peer *p);
/* Queues a request: its name, which is static, its number, n arguments. */
tarn_status transfer_request(struct ctl *c, const char *name, uint64_t id, const struct span *args,
                             size_t n);
/* One request and its answer, under the mutex, which is given up meanwhile. answer (NULL: not
 * wanted): the caller frees. stop (may be NULL): set by who then calls transfer_peer_nudge:
 * TARN_ECANCELED. */
tarn_status transfer_peer_call(struct tarn_transfer_peer *p, const char *name,
                               const struct span *args, size_t n, uint64_t deadline,
                               const bool *stop, struct buf *answer);
void transfer_peer_nudge(struct tarn_transfer_peer *p);
/* The control thread's: what has arrived. */
void transfer_peer_turn(struct tarn_transfer_peer *p);
void transfer_peer_break(struct tarn_transfer_peer *p, tarn_status status, const char *why);
void transfer_peer_free(struct tarn_transfer_peer *p);
/* p->map, asked for (again) when it is not there, with a reference of the caller's. Under the
 * mutex, as above. */
tarn_status transfer_peer_map(struct tarn_transfer_peer *p, uint64_t deadline, const bool *stop,
                              struct transfer_map **map_p);
/* Connects and says hello, without the mutex. */
tarn_status transfer_dial(struct tarn_transfer *t, struct tarn_transfer_peer *p, uint64_t deadline);
/* "host:port", "[v6]:port" */
bool transfer_split_address(struct span text, char **host_p, char **port_p);

/* --- batches: batch.c, run.c --- */

struct batch_run { /* tasks that move as one */
    size_t first, n;
    const struct transfer_far *region;
    uint64_t offset, length;
};

struct tarn_transfer_batch {
    uint32_t magic;
    STAILQ_ENTRY(tarn_transfer_batch) link; /* in the queue */
    struct crew_job job;
    struct tarn_transfer_peer *peer;
    tarn_transfer_task *tasks;
    size_t n_tasks;
    uint64_t deadline;
    int state; /* TARN_TRANSFER_QUEUED .. */
    bool cancelled;
    tarn_status status;
    char why[200];
    uint64_t operations, failed, bytes;
    /* the same bytes: read, written; by slot of the transport */
    uint64_t moved[2], by[TRANSPORTS_MAX];
    char transport[8];
    char *done, *message;
    size_t message_len;
    struct transfer_lane *lane; /* while it runs */
    pthread_cond_t changed;
};
/* Do the tasks lead anywhere? UNKNOWN: one names what is not on the map; LATER: one must go by
 * RDMA, and the peer has not said how. devices: our own memory that nothing else reaches. Outside
 * the mutex. */
enum transfer_way { TRANSFER_LEADS, TRANSFER_UNKNOWN, TRANSFER_LATER };
enum transfer_way transfer_batch_way(const struct tarn_transfer_batch *b,
                                     const struct transfer_map *map,
                                     const struct engine_buffer *devices, size_t n_devices);
/* Moves the bytes of a batch by a lane, outside the mutex. fresh: the lane has not been told of
 * this map. */
void transfer_batch_move(struct tarn_transfer_batch *b, struct transfer_lane *lane,
                         const struct transfer_map *map, bool fresh);
/* Ends what is queued and stops what runs. */
void transfer_batches_stop(struct tarn_transfer_peer *p, tarn_status status, const char *why);

/* lane.c: one that nobody uses, or a new one. Under the mutex. */
tarn_status transfer_lane_get(struct tarn_transfer_peer *p, struct transfer_lane **lane_p);
void transfer_lane_free(struct transfer_lane *lane);
/* What is to be told of our own memory; NULL: nothing new. Under the mutex; telling is done without
 * it. */
struct transfer_known *transfer_lane_news(struct tarn_transfer *t, struct transfer_lane *lane,
                                          size_t *n_p);
void transfer_lane_tell(struct transfer_lane *lane, struct transfer_known *news, size_t n);
/* The map that the next batch goes by; true: another than before. Under the mutex. */
bool transfer_lane_map(struct transfer_lane *lane, struct transfer_map *map);
/* Would the CPU touch memory of a device that way? */
bool transfer_lane_refuses(const struct transfer_lane *lane, const void *address, uint64_t len);
/* Connections that nobody has used for a while. Under the mutex. */
void transfer_lanes_rest(struct tarn_transfer *t);
/* Lanes that rest let go of memory that is about to be unregistered. Under the mutex. */
void transfer_lanes_forget(struct tarn_transfer *t, uint64_t identity);

/* --- the master: name.c --- */

tarn_status transfer_announce_start(struct tarn_transfer *t);
void transfer_announce_stop(struct tarn_transfer *t);
tarn_status transfer_name_find(struct tarn_transfer *t, const char *name, uint64_t deadline,
                               char **host_p, char **port_p);

/* --- the end: transfer.c, loop.c --- */

struct tarn_transfer {
    uint32_t magic;
    pid_t pid;
    tarn_transfer_options options; /* strings owned */
    pthread_mutex_t mutex;
    pthread_cond_t changed; /* events, fences, peers that are closed */
    pthread_t thread, announcer;
    bool threaded, announcing;
    bool stopping;
    int wake_fd, event_fd;
    int listen_fd[TRANSFER_BINDS_MAX];
    size_t n_listen;
    uint64_t accept_after_ms, accept_trouble_ms; /* out of descriptors */
    uint16_t port;
    char *endpoint, *shm_path;
    char host_id[192];                   /* this machine, as peers compare it */
    uint8_t identity[TRANSFER_IDENTITY]; /* of this end, as long as it lives */
    bool has_secret;
    uint8_t secret[32], grant_key[GRANT_KEY_SIZE];
    uint32_t epoch, last_region;
    const char *transport; /* of options; NULL: any */
    struct host *host;
    struct wheel *wheel;

    LIST_HEAD(, transfer_region) regions;
    size_t n_regions, n_closing;
    uint64_t registered_gen; /* grows with every change of regions */
    LIST_HEAD(, transfer_conn) conns;
    size_t n_conns;
    LIST_HEAD(, tarn_transfer_peer) peers;
    size_t n_peers;
    uint64_t rested_ms;
    struct htab labels;
    STAILQ_HEAD(, transfer_note) notes;
    size_t n_notes;
    uint64_t note_bytes;
    STAILQ_HEAD(, tarn_transfer_batch) queue;
    size_t n_batches;
    struct crew workers;
    unsigned running;          /* batches that they have */
    tarn_transfer_stats stats; /* the totals in it */

    struct tarn_client *master;
    char *announced; /* the value under our name, NULL: none yet */
    pthread_cond_t announce;
};

void transfer_timer_set(struct tarn_transfer *t, struct transfer_timer *timer, uint64_t due_ms,
                        void (*fire)(struct transfer_timer *timer));
void transfer_timer_stop(struct tarn_transfer *t, struct transfer_timer *timer);
tarn_status transfer_usable(const struct tarn_transfer *t);
void transfer_wake(struct tarn_transfer *t);
void *transfer_control(void *arg);
/* The end of one that was never started, or whose thread has ended. */
void transfer_free(struct tarn_transfer *t);
uint64_t transfer_deadline(const struct tarn_transfer *t, uint64_t timeout_ms, uint64_t bytes);
/* Under the mutex. false: the deadline (CLOCK_BOOTTIME ms) has come. */
bool transfer_cond_wait(struct tarn_transfer *t, pthread_cond_t *cond, uint64_t deadline);

#endif
