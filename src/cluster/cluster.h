/* The pool of many machines, as the master sees it: storage nodes and their segments, who is alive,
 * what they are asked to do, and the tasks that copy, move and store replicas. Plans only: the
 * bytes go from host to host.
 *
 * Knows the books (src/store) and nothing of RESP: src/commands translates NODE, SEGMENT and
 * REPLICA commands into calls here, and hands out work when a heartbeat asks for it. One thread,
 * the master's event loop; there is one cluster per process. Time is an argument (cluster_tick),
 * nothing blocks, and every walk goes in slices of a work budget (cluster_background).
 *
 * Life of a node:
 *
 *   JOIN ─> joining ─(1)─> up ──(silent for node-timeout)──> down ─(forget)─> gone
 *              ^           │ ^                                │
 *              │           │ └──── JOIN ... UP ───────────────┘
 *              └───────────┤  JOIN again (connection lost)
 *                          │  DRAIN: draining, then empty
 *                          └─(LEAVE)─> leaving ─(segments gone)─> left ─> gone
 *
 *   (1) segments are mounted, fences confirmed, UP
 *
 * Machines have numbers: the books never put two replicas of an object on one. 0 is this process'
 * own machine. Nodes have numbers of their own, several may run on one machine. The embedded
 * segment belongs to this process, a node named "local" that is not in the list and whose work is
 * done by callbacks instead of heartbeats.
 *
 * Borrowed pointers (struct cluster_node *, strings, spans) are valid until the next call that may
 * change the cluster. */
#ifndef TARN_CLUSTER_CLUSTER_H
#define TARN_CLUSTER_CLUSTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/figures.h"
#include "base/status.h"
#include "store/store.h"
#include "transport/grant.h"

#define CLUSTER_NODE_NAME_MAX  48u
#define CLUSTER_LABEL_MAX      63u /* machine names, racks */
#define CLUSTER_INSTANCE_SIZE  16u
#define CLUSTER_CONTENT_SIZE   16u
#define CLUSTER_ENDPOINTS_MAX  8u
#define CLUSTER_DIRECTORY_MAX  1000u
#define CLUSTER_NODE_SEGMENTS  64u
#define CLUSTER_DROPS_PER_ITEM 512u
#define CLUSTER_NODE_STATS_MAX 128u
#define CLUSTER_KEYS_MAX       4u /* of a segment */
#define CLUSTER_KEY_MAX        (64u << 10)
#define CLUSTER_REPORTS_MAX    4u /* of a node */
#define CLUSTER_REPORT_MAX     (32u << 10)
#define CLUSTER_SCHEME_MAX     15u
#define CLUSTER_TOLD_MAX       (UINT64_C(128) << 20) /* bytes of all keys and reports */

/* --- configuration, life --- */

enum cluster_offload { CLUSTER_OFFLOAD_NONE, CLUSTER_OFFLOAD_SECOND_HIT, CLUSTER_OFFLOAD_ALL };

struct cluster_config {
    uint64_t node_timeout_ms; /* silence after which a node is down */
    /* between heartbeats; also how long a node whose connection closed may take to come back */
    uint64_t heartbeat_ms;
    uint64_t forget_timeout_ms; /* after which a node that is down is given up */
    uint64_t max_nodes;
    uint64_t max_tasks;      /* not finished */
    uint64_t tasks_per_node; /* copies that one node makes at a time */
    uint64_t task_retries;
    uint64_t task_timeout_ms; /* of one try; plus size at task_rate */
    uint64_t task_rate;       /* bytes per second */
    uint64_t hot_replicas;    /* a hot object gets up to so many; 0: none */
    uint64_t hot_window_ms;
    uint64_t hot_threshold; /* accesses in a window that make an object hot */
    /* objects that have a copy on a far tier and may wait for one on another, per far segment */
    uint64_t offload_queue;
    /* a put waits at most so long for a disk; then what has no copy is evicted for it */
    uint64_t offload_wait_ms;
    enum cluster_offload offload;
};
void cluster_config_init(struct cluster_config *c); /* the defaults */

enum cluster_node_state {
    CLUSTER_NODE_JOINING,
    CLUSTER_NODE_UP,
    CLUSTER_NODE_DOWN,
    CLUSTER_NODE_LEAVING, /* its segments go */
    CLUSTER_NODE_LEFT,    /* they are gone */
};

struct cluster_options {
    struct store *store;
    uint32_t master_epoch;
    const char *machine;       /* this process' own, as gethostname says */
    const uint8_t *cluster_id; /* 16 bytes, NULL: random */
    uint64_t mono_ms;
    bool following; /* made by records, until cluster_lead */
    /* Nodes or segments have changed (store/effect.h). */
    void (*effect)(void *arg, const void *record, size_t len);
    /* A node's state has changed. NULL: nobody cares. Not to call back from inside. */
    void (*node_changed)(const char *name, enum cluster_node_state state);
};
void cluster_init(const struct cluster_options *options, const struct cluster_config *config);
/* After the last command, before the store goes. */
void cluster_deinit(void);
/* To be changed at any time; cluster_config_changed afterwards. */
struct cluster_config *cluster_config(void);
void cluster_config_changed(void);
/* This process did nothing for so long: what nodes have said meanwhile is still to be read, so it
 * is no silence of theirs. */
void cluster_stood_still(uint64_t ms);
const uint8_t *cluster_id(void); /* 16 bytes */

/* Are changes told through effect? Not at first. */
void cluster_tell(bool on);
/* Everything, as records. Segments must be known to the books of who is told before. */
void cluster_snapshot(void (*emit)(void *arg, const void *record, size_t len), void *arg);
/* A cluster that leads follows from now on, with the nodes and segments that it knows. Tasks,
 * drains and fences end: whoever leads next begins them. Before store_step_down; no client waits
 * for work of a node. */
void cluster_step_down(void);
/* A record of its kind (EFFECT_OTHERS to 63), while following. TARN_EPROTO with *why_p (static). */
tarn_status cluster_effect_apply(struct span record, const char **why_p);
/* An embedded segment with that content, as the records know it, with its size there;
 * STORE_SEGMENT_ANY: none. */
uint32_t cluster_local_known(const uint8_t content[CLUSTER_CONTENT_SIZE], uint64_t *size_p);
/* As store_segment_resize. */
tarn_status cluster_segment_resize(uint32_t id, uint64_t size, bool force, uint64_t *objects_p);
/* Greater than every epoch of segments and masters that these records know. */
uint32_t cluster_next_epoch(void);
/* After store_lead. alive: as there; cluster_local_segment must follow. */
void cluster_lead(uint32_t master_epoch, uint32_t alive);
/* Nodes that the records know have not joined yet, and node-timeout is not over since cluster_lead:
 * objects of theirs will be readable in a moment. */
bool cluster_awaits_nodes(void);

/* Sets the time for all that follows. Cheap. */
void cluster_tick(uint64_t mono_ms);
/* Due work, in slices. true: more is waiting. */
bool cluster_background(unsigned *budget);
/* How long the loop may sleep before cluster_background has something to do, at most limit_ms. */
uint64_t cluster_next_ms(uint64_t limit_ms);

/* --- the embedded segment and its host --- */

struct cluster_local_ops {
    void *arg;
    /* Fills a new replica in the embedded segment: reads that version of the key from one of its
     * other replicas, checks it, and writes it to the extents of *to. Answers with
     * cluster_local_done, later or at once. key is borrowed for this call. TARN_EAGAIN: busy, try
     * again a little later. Anything else: it will not be done. NULL: no copies to the segment. */
    tarn_status (*start_copy)(void *arg, uint64_t task, struct span key, uint64_t version,
                              uint64_t size, const struct store_replica *to);
    /* Give it up if that is possible; cluster_local_done comes anyway. NULL: it ends as it may. */
    void (*cancel)(void *arg, uint64_t task);
    /* Cut this session off from the segment; then cluster_local_fenced. NULL: nobody can write
     * there. */
    void (*fence)(void *arg, uint64_t session);
};
/* There is an embedded segment, with that id in the books and that key for its grants. */
void cluster_local_segment(uint32_t id, const uint8_t key[GRANT_KEY_SIZE],
                           const struct cluster_local_ops *ops);
/* What it holds: it is found again by that (cluster_local_known). */
void cluster_local_content(uint32_t id, const uint8_t content[CLUSTER_CONTENT_SIZE]);
/* on: nothing new goes to it, until off: processes of an earlier life may still write there. */
void cluster_local_hold(bool on);
void cluster_local_done(uint64_t task, tarn_status status);
void cluster_local_fenced(uint64_t session);

/* --- news from the books (store_events): they are noted down --- */

void cluster_on_awaits(uint32_t far);
uint64_t cluster_disk_wait(uint32_t far, uint64_t hash, uint64_t bytes);
/* Every host that could hold a write of this session cuts it off; then the books are told
 * (store_session_fenced). */
void cluster_on_fence(uint64_t session);
void cluster_on_far_gone(struct span key, uint64_t version, uint32_t segment, uint64_t offset);
void cluster_on_segment_gone(uint32_t id);

/* --- what every look-up asks; must be fast --- */

/* The key that grants for this segment are sealed with; NULL: no such segment. */
const uint8_t *cluster_grant_key(uint32_t segment);
/* The number of the machine of that name; STORE_HOST_NONE. For local-first and nearness. */
uint32_t cluster_host_of(struct span machine);
/* Changes when an answer of cluster_host_of may have changed. */
uint32_t cluster_machines_version(void);
/* Orders a layout for a client: memory, ssd, file; inside these same machine, same rack, others;
 * inside these at random. */
void cluster_order(struct store_layout *layout, uint32_t client_host, struct span client_rack);

/* Somebody uses o: its heat is counted, a far one is fetched near on its second use. ahead: a
 * prefix that is about to be read covers it, so it is fetched at once. Not for look-ups of
 * nodes. */
extern bool cluster_counts_hits; /* private to the next function */
void cluster_hit_slow(struct object *o, bool ahead);
static inline void cluster_hit(struct object *o, bool ahead) {
    if (cluster_counts_hits) cluster_hit_slow(o, ahead);
}

/* --- segments --- */

struct cluster_node;

struct cluster_segment {
    uint32_t id, epoch, host; /* host: number of its machine */
    const char *name;
    const char *node, *machine,
        *rack; /* node: "" of the embedded segment; machine as in gethostname; rack may be "" */
    const char *const
        /* URIs "tcp://10.0.0.2:16479", "shm:///run/x.sock"; a wildcard host is replaced */
        *endpoints;
    const uint16_t *wildcard_port; /* of each: the port, where the node gave no host; else 0 */
    size_t n_endpoints;            /* the embedded segment's are known elsewhere: 0 */
    const uint8_t *content;        /* its name, CLUSTER_CONTENT_SIZE bytes */
    const char *directory;         /* file tier; NULL */
    const char *backing;           /* "memfd", "file", "ssd" */
    bool huge;
    int numa_node;
    bool embedded, draining, drained; /* drained: empty, but it stays (the embedded one) */
    /* its node came over the loopback interface: other machines need another address */
    bool loopback;
    uint64_t moved_objects, moved_bytes, waiting; /* draining: so far; tasks under way */
    const char *drain_error;                      /* why the last object could not be moved; "" */
};
bool cluster_segment_get(uint32_t id, struct cluster_segment *segment_p);

/* What a node tells of a way to its segment that needs more than an address: transport.h,
 * key_pack. */
struct cluster_key_told {
    struct span uri;    /* as of an endpoint */
    struct span key[2]; /* to read and to write with; may be empty */
};

struct cluster_mount {
    struct span name;
    enum store_tier tier;
    uint64_t size;
    uint8_t content[CLUSTER_CONTENT_SIZE];
    struct span backing, directory;
    bool huge;
    int numa_node;
    const struct span *endpoints;
    size_t n_endpoints;
    const struct cluster_key_told *keys;
    size_t n_keys;
};
struct cluster_mounted {
    uint32_t id, epoch;
    bool kept; /* the same content as before: its replicas are taken back */
};
/* A segment of node. TARN_EINVAL and TARN_EBUSY (another node's), TARN_ELIMIT with *why_p
 * (static). */
tarn_status cluster_segment_mount(struct cluster_node *node, const struct cluster_mount *mount,
                                  struct cluster_mounted *mounted_p, const char **why_p);
/* Nothing is handed out any more; it is gone when its last lease is over (cluster_segment_get says
 * false, or another epoch). TARN_EPERM: the embedded one. */
tarn_status cluster_segment_unmount(uint32_t id);
/* on: moves what is only there, then unmounts (the embedded one stays, empty). TARN_EEXISTS: it is
 * so already. */
tarn_status cluster_segment_drain(uint32_t id, bool on);

/* The keys of a mounted memory segment of node, instead of those that were known: n 0: none.
 * TARN_ENOSEGMENT: there is no such segment of it. TARN_EINVAL, TARN_ELIMIT with *why_p. */
tarn_status cluster_segment_keys_set(struct cluster_node *node, struct span name,
                                     const struct cluster_key_told *keys, size_t n,
                                     const char **why_p);
/* Known until the segment goes, its node is down, or it joins anew; longer for who holds a
 * reference. Never changed. */
struct cluster_key {
    const char *uri; /* a wildcard host is replaced */
    struct span key[2];
    uint16_t wildcard_port; /* the port, where the node gave no host; else 0 */
    size_t scheme_len;      /* private, from here on */
    unsigned refs;
};
/* Both are none for the embedded segment, whose host knows (host_slot_key). */
size_t cluster_segment_keys(uint32_t id, const struct cluster_key *keys[CLUSTER_KEYS_MAX]);
const struct cluster_key *cluster_segment_key(uint32_t id, const char *scheme); /* NULL: none */
bool cluster_key_is_of(const struct cluster_key *key, const char *scheme);
struct cluster_key *cluster_key_ref(const struct cluster_key *key);
void cluster_key_unref(struct cluster_key **key_p); /* NULL is fine */
/* All of a scheme. each returns false to stop. */
void cluster_each_key(const char *scheme,
                      bool (*each)(void *arg, uint32_t segment, const struct cluster_key *key),
                      void *arg);

/* --- nodes --- */

const char *cluster_node_state_name(enum cluster_node_state state);

struct cluster_join {
    struct span name; /* 1 to 48 of [A-Za-z0-9._-] */
    uint8_t instance[CLUSTER_INSTANCE_SIZE];
    struct span machine, rack, version; /* rack, version: may be empty */
    const char *address;                /* where its connection comes from, without port */
    uint64_t session;                   /* the connection that keeps it alive */
};
/* TARN_EBUSY: a living node of another instance has that name. TARN_ELIMIT: max-nodes. TARN_EINVAL.
 * All with *why_p. Tasks of the node are planned anew: it says that it runs none. */
tarn_status cluster_node_join(const struct cluster_join *join, struct cluster_node **node_p,
                              const char **why_p);
/* All segments are mounted. TARN_EAGAIN: fences have to be confirmed first. TARN_ESTALE: it is
 * leaving. */
tarn_status cluster_node_up(struct cluster_node *node);
/* NULL: no such node. */
struct cluster_node *cluster_node_find(struct span name);
/* The node of that name if this instance of it may speak (not while it is down): a sign of life.
 * NULL: it has to join. */
struct cluster_node *cluster_node_alive(struct span name,
                                        const uint8_t instance[CLUSTER_INSTANCE_SIZE]);
/* The same, but no sign of life. */
struct cluster_node *cluster_node_check(struct span name,
                                        const uint8_t instance[CLUSTER_INSTANCE_SIZE]);
/* Figures it sent along; names and values are checked by the caller. */
struct cluster_stat {
    char name[32];
    uint64_t value;
};
void cluster_node_stats(struct cluster_node *n, const struct cluster_stat *stats, size_t count);
/* What it has to say of a transport (transport.h: describe), instead of what it said before; empty:
 * nothing. TARN_EINVAL with *why_p. */
tarn_status cluster_node_report(struct cluster_node *node, struct span scheme, struct span text,
                                const char **why_p);
struct cluster_report {
    const char *node, *machine, *scheme;
    uint64_t age_ms;
    struct span text; /* printable characters and line ends */
};
/* Its report i, from 0 on; false: no more. */
bool cluster_node_report_get(const struct cluster_node *node, size_t i,
                             struct cluster_report *report_p);
/* Those of a scheme. each returns false to stop. */
void cluster_each_report(const char *scheme,
                         bool (*each)(void *arg, const struct cluster_report *report), void *arg);
void cluster_node_fenced(struct cluster_node *node, uint64_t session);
/* This connection is gone. */
void cluster_session_closed(uint64_t session);
/* TARN_ESTALE: it is leaving */
tarn_status cluster_node_maintenance(struct cluster_node *node, bool on);
/* on: moves what is only there, then the node leaves. TARN_ESTALE: it is leaving. */
tarn_status cluster_node_drain(struct cluster_node *node, bool on);
void cluster_node_leave(struct cluster_node *node);

struct cluster_node_info {
    uint32_t id;
    const char *name, *machine, *rack, *version, *address;
    const uint8_t *instance, *key;
    enum cluster_node_state state;
    bool maintenance, draining, connected;
    uint64_t joins, seen_ms, since_ms; /* since_ms: in this state */
    uint64_t tasks_sent, tasks_waiting, fences_pending, drops_pending, drops_lost;
    const uint32_t *segments; /* ids */
    size_t n_segments;
    const struct cluster_stat *stats;
    size_t n_stats;
};
void cluster_node_get(const struct cluster_node *node, struct cluster_node_info *info_p);
/* By number: those from *cursor on; *cursor is where to go on. NULL: the end. */
struct cluster_node *cluster_node_next(uint32_t *cursor);

/* --- work: what a node is asked to do --- */

struct cluster_drop {
    uint64_t version, offset;
};
struct cluster_work {
    enum {
        CLUSTER_WORK_FENCE,   /* session */
        CLUSTER_WORK_COPY,    /* task, key, version, size, at */
        CLUSTER_WORK_STORE,   /* task, key, version, size, crc, crcs, at, far, prompt */
        CLUSTER_WORK_DROP,    /* far, drops */
        CLUSTER_WORK_UNMOUNT, /* segment, epoch */
        CLUSTER_WORK_LEAVE,
        CLUSTER_WORK_CANCEL, /* task */
    } kind;
    uint64_t session, task, version, size;
    uint32_t segment, epoch, far;
    uint32_t prompt; /* those with the same number were put as one, in this order */
    struct span key;
    struct store_replica at; /* of the node's own memory */
    int64_t crc;             /* -1: none */
    const uint32_t *crcs;
    size_t n_crcs;
    const struct cluster_drop *drops;
    size_t n_drops;
};
/* The next thing to do; it counts as handed out. false: nothing now. *budget is counted down. */
bool cluster_work_next(struct cluster_node *node, struct cluster_work *work_p, unsigned *budget);

/* Tells when there is work. One per node: a new one takes the place of the old one, which is
 * woken. */
struct cluster_waiter {
    void (*wake)(
        /* once; it is out of the node then. Do not call back from inside */
        struct cluster_waiter *waiter);
    struct cluster_node *node; /* private; NULL: not waiting */
};
void cluster_wait(struct cluster_node *node, struct cluster_waiter *waiter);
void cluster_unwait(struct cluster_waiter *waiter);

/* The answer to a COPY or STORE. offset: where the far tier has it. true: the books have it now;
 * false: forget the bytes. */
bool cluster_task_done(struct cluster_node *node, uint64_t task, tarn_status status,
                       uint64_t offset, int64_t crc); /* crc: of a stored value, -1 */
/* The far tier of that segment lets these go. How many were known is counted by the caller. */
bool cluster_far_evicted(struct cluster_node *node, uint32_t segment, struct span key,
                         uint64_t version);
/* How much is lost when its copy of this goes; 0: nothing is known under that name, -1: nobody
 * knows. */
int64_t cluster_far_worth(const struct cluster_node *node, uint32_t segment, struct span key,
                          uint64_t version);
struct cluster_offer {
    struct span key;
    uint64_t version, size, offset;
    int64_t crc;
    const uint32_t *crcs;
    size_t n_crcs;
};
/* It found this on its disk. The version under which it is known from now on, 0: it may forget
 * it. */
uint64_t cluster_far_offered(struct cluster_node *node, uint32_t segment,
                             const struct cluster_offer *offer);
/* Is this a far segment of the node? */
bool cluster_far_of(const struct cluster_node *node, uint32_t segment);

/* --- tasks --- */

/*   queued ─> room ─> sent ─> done
 *     ^        │        │ ├─> failed
 *     └─ again, a little later  (canceled: from any of them) */
enum cluster_task_state {
    CLUSTER_TASK_QUEUED,
    CLUSTER_TASK_ROOM, /* room is being made, or is there and the node has not asked for work yet */
    CLUSTER_TASK_SENT,
    CLUSTER_TASK_DONE,
    CLUSTER_TASK_FAILED,
    CLUSTER_TASK_CANCELED,
    CLUSTER_TASK_STATES,
};
const char *cluster_task_state_name(enum cluster_task_state state);
enum cluster_task_kind { CLUSTER_TASK_COPY, CLUSTER_TASK_MOVE, CLUSTER_TASK_STORE };
enum cluster_task_reason {
    CLUSTER_BY_USER,
    CLUSTER_BY_DRAIN,
    CLUSTER_BY_HEAT,     /* more replicas of a hot object */
    CLUSTER_BY_USE,      /* a far object back to memory */
    CLUSTER_BY_OFFLOAD,  /* memory to a far tier */
    CLUSTER_BY_PREFETCH, /* to memory, or to a segment, before it is read */
    CLUSTER_REASONS,
};
const char *cluster_task_kind_name(enum cluster_task_kind kind);
const char *cluster_task_reason_name(enum cluster_task_reason reason);

/* One more memory replica of o, in segment to (STORE_SEGMENT_ANY: where there is room on a machine
 * without one). */
tarn_status cluster_replica_copy(struct object *o, uint32_t to, uint64_t *task_p);
/* The same, then the replica in from goes. TARN_ENOTFOUND: it has none there. Both: TARN_EINVAL
 * (the value lies in the books, or segments that do not fit), TARN_ENOSEGMENT, TARN_EEXISTS (there
 * is one, or a task for that), TARN_ELIMIT (max-tasks). */
tarn_status cluster_replica_move(struct object *o, uint32_t from, uint32_t to, uint64_t *task_p);
/* Somebody will read o soon: it comes to memory, to: to that memory segment, of that epoch
 * (STORE_SEGMENT_ANY: next to where it is, 0), behind all other copies, and where nothing that is
 * in use has to go for it. NULL: the key is not there. */
enum cluster_prefetch {
    CLUSTER_PREFETCH_TAKEN,
    CLUSTER_PREFETCH_THERE, /* or on its way; with to: in memory of the machine of that segment */
    CLUSTER_PREFETCH_UNKNOWN,
    CLUSTER_PREFETCH_REFUSED, /* too many are on their way, the segment has gone, or it follows */
    CLUSTER_PREFETCHES,
};
enum cluster_prefetch cluster_prefetch(const struct object *o, uint32_t to, uint32_t epoch);
/* false: no such task, or it is over. One that was sent ends as it may. */
bool cluster_task_cancel(uint64_t task);

#define CLUSTER_TASK_KEY_SHOWN 256u
struct cluster_task_info {
    uint64_t id, version, bytes, age_ms;
    enum cluster_task_kind kind;
    enum cluster_task_reason reason;
    enum cluster_task_state state;
    const char *key; /* its first CLUSTER_TASK_KEY_SHOWN bytes */
    size_t key_len;
    uint32_t from, to; /* segments; STORE_SEGMENT_ANY: not known yet, or any */
    const char *node;  /* who does it; "" */
    unsigned tries;
    tarn_status error; /* of the last try */
};
/* false: it is not known, or was over so long ago that it is forgotten. Borrowed until the next
 * call here. */
bool cluster_task_get(uint64_t task, struct cluster_task_info *info_p);
/* Newest first: those that are not over, then the last ones that are (storing tasks only if they
 * failed). The first `skip` are passed over. fn returns false to stop. */
void cluster_tasks_each(uint64_t skip, bool (*fn)(void *arg, const struct cluster_task_info *info),
                        void *arg);

/* --- figures --- */

#define CLUSTER_FIGURES(X)                                                                         \
    X(GAUGE, nodes, "nodes that the master knows")                                                 \
    X(GAUGE, nodes_maintenance, "... in maintenance")                                              \
    X(GAUGE, nodes_draining, "... being emptied")                                                  \
    X(GAUGE, max_nodes, "bound of nodes (max-nodes)")                                              \
    X(GAUGE, machines, "machines that they are on")                                                \
    X(GAUGE, memory_segments_up, "segments in memory whose host is there")                         \
    X(GAUGE, far_segments, "segments on ssd or file")                                              \
    X(COUNTER, far_evicted, "objects that disks said they let go")                                 \
    X(COUNTER, far_offered, "objects that disks offered after a restart")                          \
    X(COUNTER, far_refused, "... that nobody wanted")                                              \
    X(COUNTER, node_joins, "times a node joined")                                                  \
    X(COUNTER, node_downs, "times a node was lost")                                                \
    X(COUNTER, nodes_forgotten, "nodes that were away for too long")                               \
    X(COUNTER, node_heartbeats, "signs of life from nodes")                                        \
    X(COUNTER, node_stale, "nodes told to join anew")                                              \
    X(COUNTER, node_fences, "sessions that nodes were asked to cut off")                           \
    X(GAUGE, node_fences_pending, "... and have not yet")                                          \
    X(GAUGE, segment_keys, "keys of other transports than shm and tcp")                            \
    X(COUNTER, segment_keys_dropped, "... for which there was no room")                            \
    X(GAUGE, node_reports, "what nodes said of such transports")                                   \
    X(COUNTER, node_reports_dropped, "... for which there was no room")                            \
    X(BYTES, keys_and_reports_bytes, "memory of both")                                             \
    X(GAUGE, tasks, "copies and moves under way")                                                  \
    X(GAUGE, max_tasks, "bound of tasks (max-tasks)")                                              \
    X(COUNTER, tasks_canceled, "tasks canceled")                                                   \
    X(COUNTER, tasks_retried, "tasks tried again")                                                 \
    X(COUNTER, tasks_timed_out, "tasks that took too long")                                        \
    X(COUNTER, tasks_refused, "tasks beyond max-tasks or another bound")                           \
    X(GAUGE, drains, "segments being emptied")                                                     \
    X(COUNTER, drained_objects, "objects moved for that")                                          \
    X(COUNTER_BYTES, drained_bytes, "... their bytes")                                             \
    X(COUNTER, drain_dropped, "replicas dropped for that, as there are others")                    \
    X(GAUGE, hot_objects, "objects with more replicas because they are read often")                \
    X(COUNTER, offload_rests, "pauses of a disk that was offered too much")                        \
    X(COUNTER, offload_overflow, "objects beyond offload-queue: no copy on disk")                  \
    X(GAUGE, promote_waiting, "objects on their way from disk to memory")                          \
    X(COUNTER, promote_overflow, "... for which the queue was full")                               \
    X(GAUGE, prefetch_waiting, "objects on their way to memory because of PREFETCH")               \
    X(COUNTER, prefetch_asked, "keys of PREFETCH")                                                 \
    X(COUNTER, prefetch_there, "... whose object was in memory, or on its way")                    \
    X(COUNTER, prefetch_unknown, "... that were not in the pool")                                  \
    X(COUNTER, prefetch_refused, "... for which the queue was full")                               \
    X(GAUGE, drops_waiting, "far replicas that their hosts shall forget")                          \
    X(COUNTER, drops_sent, "... that they were told of")                                           \
    X(COUNTER, drops_lost, "... that they will find out")

struct cluster_figures {
    CLUSTER_FIGURES(FIGURE_MEMBER)
    /* now; by state of tasks: not finished ones */
    uint64_t nodes_by_state[CLUSTER_NODE_LEFT + 1], tasks_by_state[CLUSTER_TASK_STATES];
    uint64_t offload_waiting;
    /* since start */
    uint64_t tasks_created[CLUSTER_REASONS], tasks_done[CLUSTER_REASONS],
        tasks_failed[CLUSTER_REASONS], bytes_done[CLUSTER_REASONS];
};
extern const struct figure cluster_figures[];
void cluster_get_figures(struct cluster_figures *figures_p);
void cluster_figures_reset(void);
/* Asserts what must hold; tests only. */
void cluster_check(void);

#endif
