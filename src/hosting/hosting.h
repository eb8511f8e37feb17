/* A storage node inside this process, of one master: what the files of this room share. Of many
 * masters it has one of these for each (shares.h).
 *
 *   tarn_host ── host        src/host: data port, segments, grants
 *       │     ── segments[]  what this node offers: memory, a disk (ssd), a shared directory (file)
 *       │     ── fars[]      the slow tiers among them, with what they owe the master: stores,
 *       │                    evictions, offers
 *       │     ── beats       connection to the master: NODE JOIN, then heartbeats that wait there
 *       │                    for work
 *       └     ── reports     connection to the master: mounts, and what came of the work
 *
 * The session with the master (session.c):
 *
 *   AWAY ─> DIALING ─> JOINING ─> FENCING ─> OPENING ─> MOUNTING ─> MOUNTED
 *    ^                                                                 │ NODE UP
 *    │                                                                 v
 *    └── connection lost, -STALE, refused: tasks are cancelled ─────── UP ─("leave")─> LEFT
 *        and awaited; then, after a pause, once more
 *
 * Whatever the phase, the data port serves what there are grants for. FENCING is there for a master
 * of a new epoch: until no session of the old one can write any more, nothing is mounted. OPENING:
 * the file tier needs the cluster's id.
 *
 * Threads. One control thread owns all of this but what is said to be shared; it blocks in poll
 * only. Crews of threads run jobs: dialling (1), copies (config.copies), stores (1 a slow tier). A
 * job goes to a crew by crew_add and comes back to the control thread by hosting_post. Callers of
 * the public functions see what is under tarn_host.mutex. No lock is taken while another is held,
 * but a crew's, under which its jobs are posted. */
#ifndef TARN_HOSTING_HOSTING_H
#define TARN_HOSTING_HOSTING_H

#include "base/crew.h"
#include "base/hist.h"
#include "base/segment_header.h"
#include "client/answer.h"
#include "client/arena.h"
#include "client/client.h"
#include "client/ctl.h"
#include "client/lane.h"
#include "client/master.h"
#include "client/placement.h"
#include "client/request.h"
#include "host/host.h"
#include "host/node_figures.h"
#include "host/place.h"
#include "hosting/view.h"
#include "pool/pool.h"
#include "pool/tier.h"
#include "wire/options.h"

#define HOSTING_MAGIC    0x7a1205edu
#define HOSTED_MAX       64u /* segments of a node */
#define FARS_MAX         2u  /* ssd, file */
#define NODE_NAME_MAX    48u
#define TASKS_MAX        8192u /* given to this node and not yet reported; more are refused */
#define FENCES_MAX       65536u
#define DONE_BATCH       256u
#define EVICTIONS_MAX    1024u /* parts of a tier on their way out */
#define LINK_PENDING_MAX 128u

/* --- loop.c: jobs that come back from the crews --- */

/* A job that is cancelled before its turn comes back without having run. One whose run says false
 * is hosting_posted by whoever ends it. */
struct hosting_job {
    struct crew_job crew;
    /* On the control thread; frees it. */
    void (*done)(struct tarn_host *h, struct hosting_job *job);
};
/* From any thread: job->done will be called on the control thread. */
void hosting_post(struct tarn_host *h, struct hosting_job *job);
/* Calls done of what was posted. */
void hosting_run_posted(struct tarn_host *h);
/* Wakes the control thread. From any thread. */
void hosting_wake(struct tarn_host *h);
tarn_status hosting_crew_start(struct tarn_host *h, struct crew *c, const char *name,
                               unsigned threads);

/* --- clock.c: how far the master's clock is ahead, at most --- */

struct hosting_clock {
    bool known;
    int64_t best;     /* master's ms - CLOCK_BOOTTIME ms, at most, */
    uint64_t best_at; /* when it was measured */
};
/* A reply said master_ms; its request was sent at sent_ms, it is now (both CLOCK_BOOTTIME). */
void hosting_clock_feed(struct hosting_clock *c, uint64_t master_ms, uint64_t sent_ms,
                        uint64_t now);
/* The bound now: it grows by 0.1 % of the time since it was measured, for clocks that do not run
 * alike. */
int64_t hosting_clock_bound(const struct hosting_clock *c, uint64_t now);

/* --- link.c: a connection with requests under way --- */

/* a NULL: the connection broke before the answer came; nothing may be sent then. sent_ms:
 * CLOCK_BOOTTIME. */
typedef void (*hosting_answer_fn)(struct tarn_host *h, const struct answer *a, void *arg,
                                  uint64_t sent_ms);

struct hosting_link {
    struct ctl ctl;
    struct arena arena;
    struct ctl_request request;
    struct {
        hosting_answer_fn fn;
        void *arg;
        uint64_t sent_ms, deadline;
    } pending[LINK_PENDING_MAX]; /* ring */
    size_t head, count;
};
void link_init(struct hosting_link *l);
/* Closes, and tells whoever waits. */
void link_close(struct tarn_host *h, struct hosting_link *l);
void link_deinit(struct tarn_host *h, struct hosting_link *l);
/* Takes a connection that the dialler made. */
void link_take(struct hosting_link *l, struct ctl *ctl);
static inline bool link_is_up(const struct hosting_link *l) {
    return l->ctl.fd >= 0;
}
static inline size_t link_room(const struct hosting_link *l) {
    return link_is_up(l) ? LINK_PENDING_MAX - l->count : 0;
}
/* Begins a request, in l->request, with what every command of a node says first. */
struct wire_node link_node(struct tarn_host *h, struct hosting_link *l);
/* For words of a request that do not last until it is sent. */
uint32_t link_word(struct hosting_link *l, const void *data, size_t len);
/* Needs link_room. Its answer is due within the timeout of the options, and wait_ms. A failure
 * breaks the session (session_broken). */
void link_send_waiting(struct tarn_host *h, struct hosting_link *l, enum wire_id id,
                       const void *options, uint64_t wait_ms, hosting_answer_fn fn, void *arg);
static inline void link_send(struct tarn_host *h, struct hosting_link *l, enum wire_id id,
                             const void *options, hosting_answer_fn fn, void *arg) {
    link_send_waiting(h, l, id, options, 0, fn, arg);
}
/* Sends and receives what is possible now, calls back. */
void link_progress(struct tarn_host *h, struct hosting_link *l);

/* --- dial.c --- */

/* From any thread: from the next time it is dialled, the master is there. */
void hosting_set_url(struct tarn_host *h, const char *url);
/* From any thread: which map of slots is known now. A server that does not know it is no master. */
void hosting_set_map(struct tarn_host *h, uint64_t epoch);
/* Connects both links on the dialler's thread; session_dialled follows. */
void dial_start(struct tarn_host *h);
/* Asks the Sentinels on that thread whether the master is still there; session_looked follows. */
void look_start(struct tarn_host *h, const char *host, const char *port);

/* --- far.c, evict.c, offer.c: slow tiers --- */

enum hosted_kind { HOSTED_MEMORY, HOSTED_SSD, HOSTED_FILE };
extern const char *const hosted_tiers[]; /* what the master calls them */

/* What the master is told of objects on a disk is kept packed: this, the key, its CRCs as they go
 * on the wire. */
struct far_entry {
    uint64_t version, size, offset;
    uint32_t crc, key_len, n_crcs;
};
void entries_add(struct buf *entries, const struct tier_item *item);
/* The entry at *at_p, which goes on behind it. *key_p: its key, and behind that its CRCs. */
struct far_entry entries_next(const struct buf *entries, size_t *at_p, const char **key_p);

struct eviction { /* a part of the tier that is to go */
    TAILQ_ENTRY(eviction) link;
    uint64_t ticket;
    struct buf entries;
    size_t told;         /* bytes of entries that the master knows of */
    uint64_t wait_until; /* all told: nobody may read it any more from then on; 0: not all told */
};

struct offering { /* of what is on disk, after a mount that kept nothing */
    bool active, in_flight;
    bool needed;            /* all of it, and that was not finished yet */
    uint64_t pass, passes;  /* 0 passes: only the orphans */
    struct buf entries;     /* collected for this pass */
    size_t at;              /* bytes of entries that are answered */
    size_t sent_n;          /* number of those that are under way */
    uint64_t offered, kept; /* figures */
};

struct hosting_far {
    struct tarn_host *host;
    struct hosted *segment;
    char *path;
    uint64_t bytes;
    unsigned mode;     /* of the files of a file tier */
    bool create;       /* path may be made where it is not there */
    struct tier *tier; /* NULL: not open */
    bool opening;      /* a job has the tier now */
    bool served;       /* its segment has a slot of host */
    bool renewed;      /* what it found at the start has another name by now */
    bool closing;      /* atomic: stores that wait for room give up */
    uint8_t cluster[16];
    struct crew stores;
    uint64_t stores_out;        /* of all of the host's, those that go here */
    pthread_mutex_t room_mutex; /* shared with the stores' thread and the tier's */
    pthread_cond_t room;
    uint64_t puts_ended; /* changed under room_mutex; atomic */
    struct offering offering;
    struct buf orphans; /* entries whose DONE was never answered: offered at the next chance */
    TAILQ_HEAD(, eviction) evictions;
    size_t n_evictions;
    struct eviction *telling; /* NODE EVICTED about it is under way, */
    size_t telling_bytes;     /* for so many bytes of its entries */
    uint64_t weighing; /* ticket of the part that NODE WEIGH under way is about; 0: none is */
    struct far_figures figures;
};
/* NULL: there is none now. For the control thread; a job may be closing and opening it. */
static inline struct tier *far_tier(const struct hosting_far *f) {
    return f->opening ? NULL : f->tier;
}
void far_init(struct hosting_far *f, struct tarn_host *h, struct hosted *segment, const char *path,
              uint64_t bytes);
/* Blocks; from tarn_host_open or a job. */
tarn_status far_open(struct hosting_far *f, const uint8_t cluster[16], const char **why_p);
/* No store reads memory any more afterwards. */
void far_stop(struct hosting_far *f);
void far_deinit(struct hosting_far *f);
/* One more, which is not open yet. */
tarn_status far_add(struct tarn_host *h, enum hosted_kind kind, const char *path, uint64_t bytes,
                    bool create, struct hosting_far **far_p);
/* It is open: the data port serves it. */
tarn_status far_serve(struct hosting_far *f);
/* Opens a disk that nobody reads or stores to, in the background, with another size, or, if that
 * cannot be, with the one it had: then lend_disk_opened. */
void far_resize(struct hosting_far *f, uint64_t bytes);
/* Opens the file tier of this session's cluster, in the background: session_far_opened. false: it
 * is open already. */
bool far_reopen(struct hosting_far *f, const uint8_t cluster[16]);
tarn_status far_read(void *arg, uint64_t offset, uint64_t length, void *buffer,
                     void (*done)(void *done_arg, tarn_status status), void *done_arg);
struct hosting_task;
void far_store(struct hosting_far *f, struct hosting_task *t);
/* Whatever there is to do now: evictions to ask for, to report, to end; offers. */
void far_turn(struct hosting_far *f);
bool far_wants_poll(const struct hosting_far *f);
void evict_turn(struct hosting_far *f);
void evict_restart(struct hosting_far *f);
void evict_free(struct hosting_far *f);
/* everything: all that is on disk, else only the orphans. */
void offer_start(struct hosting_far *f, bool everything);
void offer_turn(struct hosting_far *f);
void offer_stop(struct hosting_far *f);
void offer_add_orphan(struct hosting_far *f, const struct hosting_task *t);

/* --- work.c, copy.c: what the master asks for --- */

enum task_kind { TASK_COPY, TASK_STORE };
struct hosting_task {
    struct hosting_job job;
    enum task_kind kind;
    struct tarn_host *host;
    uint64_t id, generation; /* generation: the session it was given in */
    char *key;
    size_t key_len;
    uint64_t version, size, prompt;
    struct iovec iov[EXTENTS_MAX]; /* own memory, exactly size bytes, */
    struct hosted *segment;        /* of this one; NULL: none yet */
    size_t n_iov;
    struct hosting_far *far; /* stores */
    unsigned users;          /* atomic: who still works on a store, its thread, the tier's */
    bool check;              /* crc was given */
    uint32_t crc;
    uint32_t *crcs;
    size_t n_crcs;
    uint64_t offset;  /* where it was stored */
    uint64_t took_ns; /* copies */
    tarn_status status;
};
/* An item of a heartbeat's answer. Peers' mistakes are logged and skipped. */
void work_item(struct tarn_host *h, const struct answer *item);
/* The task has ended (any status): NODE DONE, or, of an earlier session, whatever is right then.
 * Takes it. */
void task_done(struct tarn_host *h, struct hosting_task *t);
/* Those with this id that have not begun; NULL: all. */
void tasks_cancel(struct tarn_host *h, const uint64_t *id);
/* DONE and FENCED that wait for room. */
void reports_turn(struct tarn_host *h);
/* The session is over: what was to be reported will not be. */
void reports_forget(struct tarn_host *h);
void copy_start(struct tarn_host *h, struct hosting_task *t);

/* --- session.c --- */

enum phase {
    PHASE_AWAY,
    PHASE_DIALING,
    PHASE_JOINING,
    PHASE_FENCING,
    PHASE_OPENING,
    PHASE_MOUNTING,
    PHASE_MOUNTED,
    PHASE_UP,
    PHASE_LEFT,
};

enum closing { CLOSE_NO, CLOSE_KEEP, CLOSE_LEAVE };

struct hosting_session {
    enum phase phase;
    enum closing closing;
    uint64_t generation;   /* counts sessions that were dropped */
    tarn_status broken;    /* not TARN_OK: to be dropped at the next turn */
    char why[256];         /* ... because of that; "" while it is up */
    uint64_t retry_at;     /* AWAY */
    unsigned failures;     /* in a row */
    uint64_t lend_until;   /* the segment that is taken empties itself until then; 0: it was not
                            * asked to */
    bool lend_unmounting;  /* its time is over, or it is a disk */
    bool lend_opened;      /* the disk has its new size, and is to be mounted */
    char told[256];        /* what the log was told last */
    uint32_t served_epoch; /* 0: none yet */
    uint32_t epoch;        /* of the master joined now */
    uint8_t cluster[16];
    uint64_t heartbeat_ms, node_timeout_ms, max_lease_ms; /* as JOIN said */
    bool beating;                                         /* a heartbeat is under way */
    uint64_t next_beat_ms, last_fresh_ms, last_stats_ms;
    uint64_t patient_until; /* with who does not let go of a segment */
    bool mounted_once;
    unsigned opening, mounting; /* tiers and answers that are missing */
    uint64_t next_up_ms;
    bool asking_up;
    bool drain_sent, leave_sent;
    /* as the last heartbeat said, if it did: older masters do not tell */
    bool has_standing, draining, maintenance;
    uint64_t used; /* bytes of our memory */
    int64_t evicted_idle_ms;
    uint64_t map_epoch;
    bool map_told;    /* the log was, of a map that came later than the host */
    uint64_t look_at; /* when Sentinels are asked whether the master is still there */
    bool looking;
    bool let_go; /* the master has no more use for us, after a leave of our own */
};
/* The master or the connection to it fails; noted once, acted upon at the next turn. */
void session_broken(struct tarn_host *h, tarn_status status);
/* With a text of its own: fmt. */
void session_fail(struct tarn_host *h, tarn_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* What trying again cannot mend, at the start, where there is somebody to tell. */
bool session_is_fatal(const struct tarn_host *h, tarn_status status);
/* true: a is an answer that is no error. Else it has been seen to: -STALE and all other errors
 * break the session. */
bool session_accepts(struct tarn_host *h, const struct answer *a, const char *what);
static inline bool answer_is(const struct answer *a, tarn_status status) {
    return a != NULL && a->type == ANSWER_ERROR && answer_error_status(a->str) == status;
}
/* false: the control thread may end. */
bool session_turn(struct tarn_host *h);
void session_dialled(struct tarn_host *h, tarn_status status, const char *why, struct ctl ctl[2]);
void session_looked(struct tarn_host *h, bool moved, const char *host, const char *port);
void session_fenced_before(struct tarn_host *h, uint32_t master_epoch);
void session_far_opened(struct tarn_host *h, struct hosting_far *f, tarn_status status,
                        const char *why);
/* "leave": the master has let go of the node. */
void session_left(struct tarn_host *h);
/* FENCING and later: the master knows this node. */
static inline bool session_joined(const struct hosting_session *s) {
    return s->phase >= PHASE_FENCING && s->phase != PHASE_LEFT && s->broken == TARN_OK;
}
/* mount.c: SEGMENT MOUNT of all; session_mounted when all are answered and served. */
void mount_all(struct tarn_host *h);
void mount_one(struct tarn_host *h, struct hosted *seg);
void mount_turn(struct tarn_host *h);
void session_mounted(struct tarn_host *h);
/* Gives the segment other memory, which is other content, as others will not let go of what it
 * has. */
void session_new_memory(struct tarn_host *h, const struct hosted *seg);

/* --- keys.c: transports of modules --- */

struct hosted;
/* struct host has other keys for that slot. */
void keys_changed(void *arg, unsigned slot);
/* KEYS of SEGMENT MOUNT; SEGMENT KEYS of those that have changed since. */
struct wire_list keys_of_mount(struct tarn_host *h, struct hosting_link *l, struct hosted *seg);
void keys_turn(struct tarn_host *h);
/* Segments that the master has keys of. */
size_t keys_count(const struct tarn_host *h);
/* REPORT of NODE HEARTBEAT, where it differs from the last one. */
struct reported {
    char scheme[16]; /* "": a free place */
    uint64_t hash;
};
void keys_report(struct tarn_host *h, struct hosting_link *l, struct wire_beat *beat);
/* The session is over. */
void keys_forget(struct tarn_host *h);

/* --- lend.c: memory that comes and goes while the host runs --- */

enum lend_state {
    LEND_NOTHING,
    LEND_ADD,    /* wanted: a segment more */
    LEND_TAKE,   /* wanted: one less, emptied as far as there is room elsewhere */
    LEND_DISK,   /* wanted: a disk, or the one that is there with another size */
    LEND_DONE,   /* as was wanted; what was taken is unmapped */
    LEND_FAILED, /* why says it */
};
struct hosting_lend { /* under tarn_host.mutex */
    enum lend_state state;
    unsigned number;           /* of the segment, in its name */
    tarn_host_segment segment; /* LEND_ADD; LEND_DISK: path and bytes. path owned */
    char why[256];
};
/* How its master is. */
struct hosting_standing {
    bool up;
    uint64_t used;           /* bytes of our memory */
    int64_t evicted_idle_ms; /* what it evicts had not been used for so long; -1: it evicts nothing,
                              * or does not say */
    uint64_t map_epoch;      /* of its slot map; 0: it has none */
    bool gone;               /* it has unmounted a segment that is here still, */
    unsigned gone_number;    /* which lend_take ends */
};
/* From any thread: something else than before; what was wanted before is over. */
void lend_add(struct tarn_host *h, unsigned number, const tarn_host_segment *segment);
void lend_take(struct tarn_host *h, unsigned number);
void lend_disk(struct tarn_host *h, const char *path, uint64_t bytes);
enum lend_state lend_look(struct tarn_host *h, char *why, size_t cap);
void lend_standing(struct tarn_host *h, struct hosting_standing *standing_p);
/* open: it is to be mounted. why: it has not got its new size; "": it has. */
void lend_disk_opened(struct tarn_host *h, struct hosting_far *f, bool open, const char *why);
/* Whatever there is to do now. */
void lend_turn(struct tarn_host *h);

/* --- stats.c --- */

extern const struct figure tier_figures[], node_figures[], far_figures[];
/* What there is now: h->figures as well. */
void stats_gather(struct tarn_host *h, struct host_stats *stats_p);
/* STATS of NODE HEARTBEAT. */
struct wire_list stats_put(struct tarn_host *h, struct hosting_link *l);
void stats_publish(struct tarn_host *h);

/* --- view.c: nothing happens where there is no view --- */

#define VIEW_TEXT_MAX  320u
#define VIEW_PARTS_MAX 64u
/* From whoever sets the host up or down. */
void view_tell(struct hosting_view *v, enum hosting_stage stage, const char *text);
/* From now on h is asked for figures; NULL: nobody is. */
void view_attach(struct hosting_view *v, struct tarn_host *h);
void view_turn(struct tarn_host *h);
/* What is shown from now on is that of all parts together: of a node that has several masters, the
 * name is the shard's. part is not shown alone; it is there until it is removed. */
void view_part_add(struct hosting_view *v, const char *name, struct hosting_view *part);
void view_part_remove(struct hosting_view *v, struct hosting_view *part);

/* --- tls.c --- */

/* Of the data port: what its options say, if they want any. */
tarn_status hosting_tls_open(struct tarn_host *h, const tarn_host_options *o);
void hosting_tls_close(struct tarn_host *h);

/* --- hosting.c, loop.c: a host of one master --- */

/* Do the options make sense? */
tarn_status hosting_check(const tarn_host_options *o);
/* Sets everything up; the control thread runs. */
tarn_status hosting_begin(const struct hosting_plan *plan, struct tarn_host **h_p);
/* Waits until the first join has ended. If it has failed, the host tries on. */
tarn_status hosting_await(struct tarn_host *h, const struct hosting_plan *plan);
/* How the last join has ended, TARN_OK: well once, or none has ended. */
tarn_status hosting_joined(struct tarn_host *h);
void hosting_info(struct tarn_host *h, tarn_host_info *info);
/* true: it has left the pool. */
bool hosting_wait(struct tarn_host *h, uint64_t timeout_ms);
void hosting_drain(struct tarn_host *h);
tarn_status hosting_reload_tls(struct tarn_host *h);
/* Opens memory; *s_p, which is not mounted yet. why: thread-local text. */
tarn_status memory_open(struct tarn_host *h, const tarn_host_segment *want, unsigned number,
                        bool shrink, bool later, struct hosted **s_p, const char **why_p);
/* Asks it to end; hosting_end then waits for that, and frees. */
void hosting_end_begin(struct tarn_host *h, bool keep, uint64_t deadline);
/* hosting_end would not have to wait. */
bool hosting_is_over(struct tarn_host *h);
void hosting_end(struct tarn_host **h_p);

struct hosted {
    char name[SEGMENT_NAME_MAX + 1];
    enum hosted_kind kind;
    unsigned slot; /* of host; the file tier has none */
    uint32_t id, epoch;
    uint64_t size;
    bool mounted;         /* in this session */
    bool gone;            /* unmounted by the master: not offered again */
    bool populating;      /* not offered yet */
    bool closed;          /* ... and its memory is; another may have its place */
    unsigned number;      /* in its name */
    unsigned users;       /* tasks that have their bytes there */
    bool keys_due;        /* they may have changed */
    uint64_t keys_told;   /* hash of what the master has, 0: none */
    uint32_t mount_epoch; /* of the master that mounted it last */
    /* mounted, but not served: somebody still writes to it under its old name. 0: not so */
    uint64_t serve_until;
    struct hosting_far *far;
};

struct tarn_host {
    uint32_t magic;
    pid_t pid;
    struct shares *shares; /* of a pool of many masters, and there is nothing else; or NULL */
    bool one_of_many;      /* ... and it is one of these hosts */
    bool patient;          /* it opens when its master lets it in, whenever that is */
    /* fixed once it is open */
    char *url;
    struct whereabouts master;
    tarn_options options; /* strings owned */
    char name[NODE_NAME_MAX + 1], machine[192], instance[33];
    char *rack, *shm_path;
    struct tls_context *data_tls; /* of the data port; NULL: it is plain; by secure_take only */
    struct transport_tls data_tls_of;
    struct tls_options data_tls_files;   /* to read them again; strings owned */
    char **endpoints;                    /* of memory: "tcp://...", "shm://..." */
    size_t n_endpoints, n_tcp_endpoints; /* tcp first */
    uint64_t queue_bytes;                /* of each far tier's queue */
    bool populate; /* what memory there is to be is touched before it is used */
    struct host *host;
    struct hosted segments[HOSTED_MAX];
    unsigned n_segments;
    struct reported reported[4]; /* in this session */
    struct hosting_far fars[FARS_MAX];
    unsigned n_fars;
    struct crew dialler, copies;
    struct hosting_view *view; /* NULL: none */
    int wake_fd;
    pthread_t thread;
    bool thread_runs;
    /* the control thread's */
    struct hosting_session session;
    struct hosting_clock clock;
    struct hosting_link beats, reports;
    struct rng rng;
    uint64_t next_wake_ms; /* lowered by whoever has something to do later */
    uint64_t n_tasks;      /* given and not yet freed */
    uint64_t copies_out, stores_out;
    struct crew_jobs done_tasks; /* to be reported */
    struct crew_jobs done_told;  /* NODE DONE about them is under way */
    uint64_t *fenced;            /* sessions to be reported */
    size_t n_fenced, cap_fenced;
    struct hist copy_ns;         /* of copies that were made, from when their thread began */
    struct node_figures figures; /* counters; the rest is filled in when they are told */
    /* shared with the copies' threads */
    pthread_mutex_t reader_mutex;
    tarn_client *reader;
    /* shared with callers, and with everybody who posts */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct crew_jobs posted;
    bool opening;            /* the first join has not ended yet */
    tarn_status open_status; /* how it ended; until one has ended well, how the last one did */
    char *open_error;
    bool drain_wanted;
    enum closing closing;
    uint64_t open_deadline, close_deadline;
    bool finished; /* the control thread has ended its work */
    tarn_host_info info;
    uint64_t info_wanted, info_made;
    char *new_url;      /* hosting_set_url; NULL: taken */
    uint64_t map_epoch; /* hosting_set_map; atomic */
    struct hosting_lend lend;
    struct hosting_standing standing;
};
/* At the latest then, the control thread takes another turn. */
static inline void hosting_wake_at(struct tarn_host *h, uint64_t ms) {
    if (ms < h->next_wake_ms) h->next_wake_ms = ms;
}
struct hosted *hosting_segment(struct tarn_host *h, uint64_t id);
/* The first join has ended, or a later one of a host that has never joined. false: nobody waits for
 * it. */
bool hosting_opened(struct tarn_host *h, tarn_status status);
/* Names an own piece of memory, checked; false: no such bytes here. */
bool hosting_iov(struct tarn_host *h, const struct hosted *s, const struct answer *extents,
                 uint64_t size, struct iovec *iov, size_t *n_p);
void *hosting_control(void *arg);

#endif
