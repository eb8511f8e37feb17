/* The types inside this room. One cluster per process: its state is the struct `cluster` below. */
#ifndef TARN_CLUSTER_INTERNAL_H
#define TARN_CLUSTER_INTERNAL_H

#include "base/assert.h"
#include "base/htab.h"
#include "base/progress.h"
#include "base/queue.h"
#include "base/rng.h"
#include "base/wheel.h"
#include "cluster/cluster.h"
#include "transport/uri.h"

#define NODE_MAGIC    0x4e6f6465u
#define SEGMENT_MAGIC 0x5365676du
#define TASK_MAGIC    0x5461736bu

/* Something that is due at a time. */
struct timer {
    struct wheel_node wheel;
    void (*due)(struct timer *timer);
};
void timer_set(struct timer *t, uint64_t due_ms);
void timer_clear(struct timer *t);

/* --- what is said, and words for what is wrong with it --- */

static inline tarn_status cluster_refuse(const char **why_p, tarn_status status, const char *why) {
    *why_p = why;
    return status;
}
bool bytes_within(struct span s, unsigned char least, unsigned char most);
bool valid_name(struct span s, size_t max);  /* 1 to max of A-Z a-z 0-9 . _ - */
bool valid_label(struct span s, size_t max); /* shown in lists: no blanks, no special characters */
bool valid_text(struct span s, size_t max);  /* no control characters */
/* Terminated, the rest of to is zero. s fits. */
void text_set(char *to, size_t size, struct span s);
/* That version of key; NULL: it cannot be read. */
struct object *object_readable(struct span key, uint64_t version);

/* --- machines --- */

struct machine {
    struct htab_node node;
    uint32_t number, refs; /* of nodes and segments */
    char name[CLUSTER_LABEL_MAX + 1];
};
/* Takes a reference. NULL: there are too many. */
struct machine *machine_get(struct span name);
void machine_put(struct machine **machine_p);
void machine_ref(struct machine *m);

/* --- segments --- */

/* Drops that wait to be sent, the oldest first. */
struct drop_queue {
    struct cluster_drop *ring;
    size_t cap, first, n;
};

/* An object on its way to a task: what it was, not where it is; it may be gone meanwhile. */
struct weak {
    STAILQ_ENTRY(weak) link;
    uint64_t version;
    uint32_t key_len;
    char key[];
};
struct weak_queue {
    STAILQ_HEAD(, weak) all;
    size_t n;
};

/* How fast a far segment takes what is to be copied there, and what puts were told because of
 * it. */
struct pace {
    uint64_t rate; /* bytes per second, 0: not known yet */
    uint64_t window_ms, window_bytes, progress_ms;
    uint64_t evicted_ms;            /* when it let go of something last, 0: never */
    uint64_t promised, promised_ms; /* bytes whose puts wait */
    unsigned failures;              /* in a row */
    uint64_t rest_until_ms;
    struct timer timer; /* then */
};

struct drain {
    TAILQ_ENTRY(drain) link; /* of cluster.drains */
    struct node_segment *segment;
    struct store_walk *walk; /* NULL: between two passes */
    uint64_t due_ms;         /* of the next pass */
    uint64_t pending;        /* tasks of it */
    uint64_t settled;        /* of this pass: moved or dropped */
    bool rested;             /* after a pass that got nowhere */
    uint64_t objects, bytes; /* moved or dropped so far */
    struct progress progress;
    tarn_status error;
};

struct node_segment {
    uint32_t magic, id, epoch;
    enum store_tier tier;
    struct cluster_node *node; /* NULL: it is leaving, and its node is gone */
    char *node_gone;           /* what that was called; NULL: it is there, or was this process */
    TAILQ_ENTRY(node_segment) of_node;
    struct machine *machine;
    uint64_t size;
    uint8_t content[CLUSTER_CONTENT_SIZE];
    char name[64], backing[16];
    uint64_t join;                             /* the node's join in which it was mounted last */
    bool leaving, huge, drained, drain_wanted; /* drain_wanted: by itself, not with its node */
    int numa_node;
    char *endpoint[CLUSTER_ENDPOINTS_MAX];
    uint16_t wildcard_port[CLUSTER_ENDPOINTS_MAX];
    size_t n_endpoints;
    struct cluster_key *key[CLUSTER_KEYS_MAX];
    size_t n_keys;
    char *directory;
    struct drain *drain; /* NULL: not draining */
    struct drop_queue drops;
    uint64_t drops_lost;
    /* far (offload.c): objects that have a copy in the node's other far segment and shall have one
     * here; of cluster.offloading: something may wait for it, there or in the books; tasks of that,
     * and their bytes */
    struct weak_queue offload;
    TAILQ_ENTRY(node_segment) offloading;
    bool far_usable; /* counted in cluster.far_usable */
    uint64_t storing, storing_bytes;
    struct pace pace;
};

struct node_segment *segment_at(uint32_t id); /* NULL: none */
void directory_set(struct node_segment *g, struct span directory);
/* The state that the books shall have, after something it depends on has changed. */
void segment_refresh(struct node_segment *g);
/* Its content is given up: it goes as soon as nobody reads it any more. */
void segment_leave(struct node_segment *g);
/* At NODE UP: what was not mounted in this join is lost. */
void segments_settle(struct cluster_node *n);
void segments_orphan(struct cluster_node *n); /* the node goes, its segments are leaving */
void segments_deinit(void);
static inline bool segment_is_far(const struct node_segment *g) {
    return g->tier != STORE_TIER_MEMORY;
}
/* Handed out, and not about to go. */
bool segment_stays(const struct node_segment *g);
bool segment_usable(
    /* its node is up and not leaving: may be asked to do something with it */
    const struct node_segment *g);

/* --- addresses and keys (segment.c, keys.c) --- */

/* Where a host that binds to all addresses is reached: where its connection comes from. */
const char *node_host(const struct cluster_node *n);

tarn_status keys_check(const struct cluster_key_told *keys, size_t n, const char **why_p);
/* in CLUSTER_TOLD_MAX */
bool keys_fit(const struct cluster_key_told *keys, size_t n);
void keys_set(struct node_segment *g, const struct cluster_key_told *keys,
              size_t n); /* checked ones */
void keys_clear(struct node_segment *g);
/* Of all its segments, and its reports. */
void keys_of_node_clear(struct cluster_node *n);
struct node_report {
    uint64_t at_ms;
    char scheme[CLUSTER_SCHEME_MAX + 1];
    size_t len;
    char text[];
};

/* --- telling and following (follow.c) --- */

/* Nothing where nobody listens. */
void effect_node(const struct cluster_node *n);
void effect_node_gone(const struct cluster_node *n);
void effect_node_segment(const struct node_segment *g);
/* Of a cluster that follows: a node that is down, made or found; NULL: there are too many
 * machines. */
struct cluster_node *node_told(struct span name, struct span machine);
void node_untold(struct cluster_node *n);
struct node_segment *segment_told(uint32_t id, struct cluster_node *n); /* n: NULL, or its node */
void segment_free(struct node_segment *g);
void segment_detach(struct node_segment *g); /* from its node */
void nodes_lead(void);
void nodes_step_down(void);

/* --- fences --- */

/* A session to be cut off, until all hosts have confirmed. */
struct fence {
    struct htab_node node;    /* by session */
    STAILQ_ENTRY(fence) done; /* of cluster.fences_done */
    uint64_t session;
    uint32_t left; /* hosts that have not confirmed */
};
struct fence_link {
    TAILQ_ENTRY(fence_link) link; /* of node->fences_new or fences_sent */
    struct fence *fence;
    uint64_t join; /* the node's join when it came up */
};
TAILQ_HEAD(fence_list, fence_link);
void fences_init(void);
void fences_deinit(void);
/* The next one that n is to be told of; it counts as told. NULL: none. */
const struct fence *fence_send(struct cluster_node *n);
void fences_resend(struct cluster_node *n);
/* Confirms all: nothing can be written there any more. */
void fences_lost(struct cluster_node *n);
bool fences_before_join(const struct cluster_node *n);
bool fences_background(unsigned *budget);

/* --- nodes --- */

struct task_list {
    TAILQ_HEAD(task_list_heads, cluster_task) all;
    size_t n;
};
struct unmount {
    STAILQ_ENTRY(unmount) link;
    uint32_t id, epoch;
};

struct cluster_node {
    uint32_t magic, id;
    struct htab_node by_name, by_session;
    char name[CLUSTER_NODE_NAME_MAX + 1];
    char rack[CLUSTER_LABEL_MAX + 1], version[32], address[64];
    uint8_t instance[CLUSTER_INSTANCE_SIZE], key[GRANT_KEY_SIZE];
    struct machine *machine;
    enum cluster_node_state state;
    bool embedded, maintenance, draining;
    bool serving; /* the process that has the content is there, as far as one knows */
    bool awaited; /* its segments are known from records, and it has not joined this master */
    bool leave_sent;
    bool hopeless;    /* too many fences are not confirmed: it is given up */
    uint64_t session; /* 0: its connection is closed */
    uint64_t joins;   /* number of the last one */
    uint64_t seen_ms, closed_ms, since_ms;
    struct timer timer; /* down, or forgotten */
    TAILQ_HEAD(, node_segment) segments;
    struct fence_list fences_new, fences_sent;
    size_t n_segments, n_fences;
    struct task_list copies, stores; /* planned tasks, to be handed out */
    struct task_list sent;           /* tasks that were */
    size_t sent_copies, sent_stores;
    STAILQ_HEAD(, unmount) unmounts;
    TAILQ_HEAD(, cluster_task)
    cancels; /* of the sent ones, by their `cancel_link`: it has to be told */
    struct cluster_waiter *waiter;
    struct cluster_stat *stats;
    size_t n_stats;
    struct node_report *report[CLUSTER_REPORTS_MAX]; /* in no order, holes are NULL */
};
void nodes_init(void);
void node_wake(struct cluster_node *n);
void node_unmount_later(struct cluster_node *n, const struct node_segment *g);
void node_unmount_forget(struct cluster_node *n, uint32_t id);
/* After a segment of it is gone. */
void node_check_empty(struct cluster_node *n);
void nodes_deinit(void);
/* The present time-outs count from now on, for silence that has begun, too. */
void nodes_config_changed(void);
bool node_loopback(const struct cluster_node *n);
/* --- tasks --- */

struct cluster_task {
    uint32_t magic;
    struct htab_node by_id, by_key;
    TAILQ_ENTRY(cluster_task) all; /* of cluster.tasks, newest last */
    /* of the list `in`: cluster.ready, ready_use, ready_stores, ready_ahead, rooms, one of its
     * node's; NULL: waits for its timer */
    TAILQ_ENTRY(cluster_task) link;
    struct task_list *in;
    uint64_t id, version, size;
    enum cluster_task_kind kind;
    enum cluster_task_reason reason;
    enum cluster_task_state state;
    uint32_t from, to, asked_to; /* to: as it is now; asked_to: as it was asked for */
    uint32_t to_epoch, from_epoch;
    struct store_copy *copy;
    struct store_hold *hold;   /* STORE of an object without a CRC */
    struct store_replica at;   /* COPY, MOVE: where to; STORE: where from */
    struct cluster_node *node; /* who does it; NULL: not known yet */
    struct timer timer;        /* backoff, or time-out of a try */
    unsigned tries;
    tarn_status error;
    TAILQ_ENTRY(cluster_task) cancel_link;
    bool cancel, timed_out; /* its end is wanted, by somebody or because it takes too long */
    bool counted;           /* in cluster.copies */
    bool ahead;             /* of PREFETCH, and nobody has read the object since */
    uint64_t created_ms;
    uint32_t key_len;
    char key[];
};

/* TARN_ELIMIT; TARN_EEXISTS: one for the key, reason and destination is under way (users may ask
 * twice). */
tarn_status task_create(enum cluster_task_kind kind, enum cluster_task_reason reason,
                        const struct object *o, uint32_t from, uint32_t to,
                        struct cluster_task **task_p);
/* Of those that are not over; NULL: none. */
struct cluster_task *task_for(struct span key, uint64_t version, enum cluster_task_reason reason,
                              uint32_t to);
/* Now somebody reads the object: a task of PREFETCH lets other copies go first no more, and of what
 * is promoted it is the next. */
void task_hurry(struct cluster_task *t);
bool task_promotes(const struct cluster_task *t);
void tasks_init(void);
void tasks_deinit(void);
bool tasks_background(unsigned *budget); /* true: more to do now */
uint64_t tasks_next_ms(uint64_t limit_ms);
void tasks_count(uint64_t by_state[CLUSTER_TASK_STATES]);
/* None of its tasks is the node's any more: it joins and says that it runs none, or it is down. */
void tasks_replan(struct cluster_node *n);
/* A planned task goes to its node. false: it came to nothing meanwhile (and is over). */
bool task_send(struct cluster_task *t, struct cluster_work *work_p);
bool task_next_cancel(struct cluster_node *n, struct cluster_work *work_p);

/* --- drain, heat, far tiers --- */

void drains_deinit(void);
void drain_begin(struct node_segment *g);
void drain_stop(struct node_segment *g);
bool drains_background(unsigned *budget);
uint64_t drains_next_ms(uint64_t limit_ms);
void drain_task_ended(struct cluster_task *t, tarn_status status);

void heat_init(void);
void heat_deinit(void);
void heat_hit(struct object *o, uint64_t hash);
bool heat_background(unsigned *budget);
uint64_t heat_next_ms(uint64_t limit_ms);
void heat_task_ended(struct cluster_task *t, tarn_status status);
void heat_config_changed(void);
size_t heat_objects(void);

void offload_init(void);
void offload_deinit(void);
bool offload_background(unsigned *budget);
bool offload_runnable(void);
void offload_task_ended(struct cluster_task *t, tarn_status status);
void offload_stop(struct node_segment *g); /* it goes, or waits for its node */
/* Segments came, went or changed: of that node, all. */
void offload_refresh_node(struct cluster_node *n);
void offload_refresh(void);
/* Whether it counts as a far segment that may be used. */
void offload_count(struct node_segment *g, bool usable);
void drops_free(struct node_segment *g);

/* --- all of it --- */

struct cluster {
    struct store *store;
    void (*effect)(void *arg, const void *record, size_t len);
    void (*node_changed)(const char *name, enum cluster_node_state state);
    bool telling, following;
    struct buf record; /* scratch of follow.c */
    struct cluster_config config;
    uint32_t master_epoch, next_epoch; /* of segments */
    uint8_t id[16];
    uint64_t now_ms;
    struct wheel *wheel;
    struct rng rng;
    /* machines */
    struct htab machines;
    struct machine **machine_by_number;
    size_t machine_cap;
    uint32_t machines_version;
    /* nodes */
    struct htab nodes, sessions;
    struct cluster_node **node_by_id; /* by id - 1, holes are NULL */
    size_t node_cap;
    size_t up, awaited;
    uint64_t awaited_until_ms;
    struct cluster_node local;
    struct cluster_local_ops ops;
    /* segments, by id */
    struct node_segment **segments;
    size_t segment_cap;
    size_t far_usable;
    /* keys and reports */
    uint64_t keys, reports, told_bytes;
    /* fences */
    struct htab fences;
    STAILQ_HEAD(, fence) fences_done;
    /* tasks */
    struct htab tasks_by_id, tasks_by_key;
    TAILQ_HEAD(task_heads, cluster_task) tasks;
    struct task_list ready, ready_use, ready_stores, ready_ahead, rooms; /* ahead: of PREFETCH */
    uint64_t next_task;
    size_t copies;       /* tasks that hold room or make it */
    size_t copies_ahead; /* of these, those of PREFETCH */
    uint64_t use_bytes;  /* ... and what promotions hold */
    uint64_t local_due_ms;
    TAILQ_HEAD(drain_heads, drain) drains;
    TAILQ_HEAD(offloading_heads, node_segment) offloading;
    uint64_t by_reason[CLUSTER_REASONS]; /* tasks that are not over */
    struct cluster_figures figures;
};
extern struct cluster cluster;

#endif
