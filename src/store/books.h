/* The types inside this room. Rooms above see store.h only. */
#ifndef TARN_STORE_BOOKS_H
#define TARN_STORE_BOOKS_H

#include "base/assert.h"
#include "base/htab.h"
#include "base/rng.h"
#include "base/wheel.h"
#include "store/index.h"
#include "store/policy.h"
#include "store/space.h"
#include "store/store.h"

#define STORE_MAGIC 0x5a0be5u
#define DOMAINS     256u /* 0: keys without a quota */

/* --- what few objects have (extra.c) ------------------------------------------------------------------------------------ */

struct group {
    struct htab_node node; /* by name */
    struct extra *members;
    uint32_t count;
    uint32_t name_len;
    char name[];
};

struct extra {
    struct htab_node node; /* by object reference */
    object_ref object;
    enum store_pin pin;
    uint64_t expire; /* wall ms, 0: never */
    struct wheel_node expire_node;
    uint64_t pin_ms; /* of a soft pin, each read renews it by this */
    struct wheel_node pin_node;
    struct group *group;
    struct extra *group_prev, *group_next;
    uint32_t n_blocks, n_crcs;
    block_id *blocks; /* OBJECT_MULTI: all of them, in order of the value */
    uint32_t *crcs;   /* objects larger than STORE_CRC_BLOCK */
};

/* --- leases, holds, quarantine (lease.c) ------------------------------------------------------------------------------------ */

/* All that keeps one object version's space from being used again. Lives while count > 0. */
struct refs {
    struct htab_node node; /* by version */
    uint64_t version;
    object_ref object; /* 0: it is gone, blocks are in quarantine */
    uint32_t count;    /* leases and holds */
    struct lease *leases;
    uint32_t n_blocks;
    block_id blocks[STORE_EXTENTS_MAX];
};

struct lease {
    struct htab_node node; /* by session and version */
    struct wheel_node wheel;
    struct refs *refs;
    struct session *session;
    struct lease *prev, *next; /* of the same refs */
};

/* --- sessions and puts (put.c) ---------------------------------------------------------------------------------------------- */

/* Life: made by the first lease or put of a connection, goes with the last of them after the connection closed. */
struct session {
    struct htab_node node;
    uint64_t id;
    uint64_t leases, puts; /* puts: open and zombie */
    struct store_put *list;
    bool closed, fencing, fenced;
};

enum put_state {
    PUT_ROOM,   /* room is being made */
    PUT_OPEN,   /* the writer writes */
    PUT_ZOMBIE, /* over without PUTEND; the space waits until the writer cannot write any more */
    PUT_DEAD,   /* superseded while room was being made: its owner is told at store_put_continue */
};

/* How far making room has come (room.c). */
struct run {
    uint64_t start, len; /* units */
    block_id block;      /* where the run began when it was found */
};
struct plan {
    enum { PLAN_SCAN, PLAN_CLEAR } phase;
    bool soft;        /* soft-pinned objects may go */
    bool wrapped;     /* the scan went on at the start of the segment */
    unsigned rounds;  /* scans that were overtaken by events */
    uint64_t changes; /* store.room_changes when the first scan of this round began */
    uint32_t segment;
    block_id cursor; /* scan: the next block; clear: the block at which the current run begins */
    uint64_t stop;   /* scan: where it began (units) */
    struct run run;  /* the run of usable space the scan is in, len 0: none */
    struct run best[STORE_EXTENTS_MAX]; /* the longest runs seen; then those to clear */
    unsigned n_best;
    unsigned clearing; /* index into best */
    block_id reserved; /* what of best[clearing] is cleared already */
};

struct store_put {
    struct htab_node node; /* by key while room or open, by token while zombie */
    enum put_state state;
    uint64_t token, size, units;
    struct session *session;
    struct store_put *prev, *next; /* of the session */
    struct wheel_node wheel;       /* put time-out, then release time-out */
    uint64_t deadline_ms;
    uint64_t expire_wall_ms, pin_ms;
    enum store_pin pin;
    bool replace, local, in_line;
    struct policy_event event;
    struct group *group; /* counted member-to-be, NULL: none */
    uint32_t n_blocks;
    block_id blocks[STORE_EXTENTS_MAX];
    struct plan *plan;      /* while this put is the planner */
    struct store_put *walk; /* scratch of walks over tables */
    uint32_t key_len;
    char key[];
};

/* --- quotas (quota.c) --------------------------------------------------------------------------------------------------------- */

struct domain {
    bool used;    /* slot is taken */
    bool leaving; /* deleted: its objects are being moved to where they belong now */
    char *prefix;
    size_t prefix_len;
    uint64_t limit, bytes, objects;
    struct policy policy[2]; /* objects with space, objects in the books */
    object_ref soft[2];      /* soft-pinned ones, least recently used at the back */
    object_ref legacy[2];    /* left by the previous policy, next to go at the back */
};

/* --- the books ------------------------------------------------------------------------------------------------------------------ */

struct store {
    uint32_t magic;
    struct store_config config;
    struct store_events events;
    uint64_t now_ms, wall_ms;
    struct records records;
    struct index index;
    struct space space;
    struct domain domains[DOMAINS];
    unsigned n_domains; /* highest used slot + 1 */
    unsigned n_quotas;
    struct htab extras, groups, refs, leases, sessions, puts, zombies;
    struct lease *free_leases;
    struct wheel *lease_wheel, *pin_wheel, *put_wheel; /* monotonic time */
    struct wheel *ttl_wheel;                           /* wall time */
    struct rng rng;
    uint64_t next_version;
    uint32_t next_request;
    /* sweeps, each going on in slices of store_background */
    uint64_t flush_version, stale; /* objects up to this version are gone; how many are still in the index */
    uint64_t sweep_cursor;
    bool recount; /* quotas changed: objects are being moved to their domains */
    bool recount_again;
    uint64_t recount_cursor;
    const struct policy_ops *policy;
    uint32_t gen;              /* OBJECT_GEN or 0: what objects linked by the current policy carry */
    uint64_t legacy_count;     /* objects that the previous policy left, not yet moved */
    struct store_put *planner; /* the one put that may scan and clear windows; see room.c */
    uint64_t room_changes;     /* grows whenever space became free or evictable */
    bool evicting;             /* a background pass is under way */
    uint64_t evict_left;       /* objects it still wants */
    uint64_t evictable_units, held_units, quarantine_units, zombie_units;
    uint64_t hard_pins, soft_pins, expires, inline_count, extra_bytes, put_bytes, lease_pool, hold_count,
        zombie_count;
    struct store_stats stat; /* the counting half */
};

/* store.c */
void book_insert(struct store *s, struct object *o, uint64_t hash, const struct policy_event *e);
/* Out of the index, the policy, the quotas; its space goes free or to quarantine; the record is freed. */
void book_remove(struct store *s, struct object *o);
bool book_stale(const struct store *s, const struct object *o);
/* Leased, held or hard-pinned, or already in somebody's plan. */
bool book_protected(const struct store *s, const struct object *o);
bool book_evictable(const struct store *s, const struct object *o);
size_t book_record_size(const struct object *o);
uint64_t book_units(const struct store *s, const struct object *o); /* of its space, 0: inline */
const block_id *book_blocks(const struct store *s, const struct object *o, uint32_t *n_p);
void book_access(struct store *s, struct object *o, const struct policy_event *e);
/* Takes o out of the order of eviction, or puts it back as the next to go. */
void book_unlink(struct store *s, struct object *o);
void book_relink(struct store *s, struct object *o);
/* Recomputes the share of evictable space after what protects o changed. */
void book_protect(struct store *s, struct object *o, bool was_protected);
unsigned book_domain(const struct store *s, const struct object *o);
/* The next to go among objects with space (inl 0) or in the books (inl 1), from one domain or (domain < 0) from all;
 * unlinked. soft: soft-pinned ones when there are no others. Protected ones are taken out on the way. */
struct object *book_pop(struct store *s, int domain, int inl, bool soft, unsigned *budget);
void book_evict(struct store *s, struct object *o, unsigned *budget);
void book_give_back(struct store *s, struct object *o);

/* extra.c */
struct extra *extra_find(const struct store *s, const struct object *o);
struct extra *extra_get(struct store *s, struct object *o); /* makes it */
void extra_trim(struct store *s, struct extra *x);          /* frees it when nothing is left in it */
void extra_drop(struct store *s, struct object *o);         /* the object goes */
void extra_set_expire(struct store *s, struct object *o, uint64_t wall_ms);
void extra_set_pin(struct store *s, struct object *o, enum store_pin kind, uint64_t ms);
void extra_renew_pin(struct store *s, struct object *o);
struct group *group_get(struct store *s, struct span name);
void group_unref(struct store *s, struct group *g);
void group_join(struct store *s, struct object *o, struct group *g);
enum store_pin object_pin(const struct store *s, const struct object *o);
bool extra_due(struct store *s, unsigned *budget); /* TTLs that are over; true: more */
void extra_pin_over(struct store *s, struct wheel_node *node);
bool extra_expired(const struct store *s, const struct object *o);

/* lease.c */
struct refs *refs_find(const struct store *s, uint64_t version);
void refs_object_gone(struct store *s, struct object *o, const block_id *blocks, uint32_t n);
void lease_over(struct store *s, struct wheel_node *node);
void lease_free_all(struct store *s);

/* put.c */
struct session *session_get(struct store *s, uint64_t id);
struct session *session_find(const struct store *s, uint64_t id);
void session_trim(struct store *s, struct session *ss);
void put_over(struct store *s, struct wheel_node *node);
void put_free_all(struct store *s);
struct store_put *put_by_key(const struct store *s, struct span key, uint64_t hash);

/* room.c */
/* o lies where space is being cleared: it is gone already for everybody else. */
bool room_clearing(const struct store *s, const struct object *o);
/* Finds put->blocks, evicting what it must. TARN_EAGAIN: call again in a later slice. */
tarn_status room_make(struct store *s, struct store_put *put, unsigned *budget);
void room_abandon(struct store *s, struct store_put *put);
/* Makes sure that an object of so many bytes in domain keeps the limits (objects, memory, quota). coming: objects that are
 * not counted among the puts yet. */
tarn_status room_limits(struct store *s, unsigned domain, uint64_t bytes, unsigned coming, unsigned *budget);

/* quota.c */
unsigned quota_domain(const struct store *s, struct span key);
void domain_open(struct store *s, unsigned n);
void quota_free_all(struct store *s);
bool quota_recount(struct store *s, unsigned *budget);

#endif
