/* The types inside this room. Rooms above see store.h only. */
#ifndef TARN_STORE_BOOKS_H
#define TARN_STORE_BOOKS_H

#include "base/assert.h"
#include "base/htab.h"
#include "base/queue.h"
#include "base/rng.h"
#include "base/wheel.h"
#include "store/index.h"
#include "store/placement.h"
#include "store/policy.h"
#include "store/space.h"
#include "store/effect.h"
#include "store/figures.h"
#include "store/story.h"

#define STORE_MAGIC    0x5a0be5u
#define DOMAINS        256u /* 0: keys without a quota */
#define WANT_NAMES_MAX 16u
#define BATCH_ENDS     2048u

/* --- what few objects have (extra.c, group.c) --- */

/* A group, or a boundary. */
struct object_group {
    struct htab_node node; /* by kind and name */
    /* of a boundary in the order of their last use, the latest first */
    TAILQ_HEAD(group_members, extra) members;
    uint32_t count;
    bool boundary;
    uint32_t name_len;
    char name[];
};

struct hard_sum { /* bytes that are hard-pinned */
    uint64_t pool, books;
};

struct extra {
    struct htab_node node; /* by object reference */
    object_ref object;
    enum store_pin pin;
    uint64_t expire; /* wall ms, 0: never */
    struct wheel_node expire_node;
    uint64_t pin_ms;      /* of a soft pin, each read renews it by this; of a hard one its owner */
    uint32_t unread;      /* copies that came to memory ahead (copy.c), and no read since */
    struct hard_sum hard; /* counted for it */
    struct wheel_node pin_node;
    struct object_group *group;
    TAILQ_ENTRY(extra) of_group;
    uint32_t n_crcs;
    uint32_t *crcs; /* objects larger than STORE_CRC_BLOCK */
};

/* --- where an object lies, when that is not one block (places.c) --- */

#define PLACES_BLOCKS_MAX (STORE_REPLICAS_MAX * STORE_EXTENTS_MAX)

struct far { /* a replica on an ssd or file segment */
    uint64_t offset;
    uint32_t segment;
};

/* Everything, unpacked: read with places_read, changed, written back with places_write. A memory
 * replica lies in one segment. */
struct places {
    uint64_t size;
    unsigned domain;
    uint32_t n_far, n_memory;
    uint8_t extents[STORE_REPLICAS_MAX]; /* blocks of each memory replica */
    /* not beside n_memory: both would be read in one piece, which waits where they were just set */
    uint32_t n_blocks;
    block_id block[PLACES_BLOCKS_MAX]; /* of all memory replicas, each in order of the value */
    struct far far[STORE_REPLICAS_MAX];
};

/* --- leases, holds, quarantine (lease.c) --- */

LIST_HEAD(lease_list, lease);

/* Leases of one session that were taken or extended together and end at the same time; it goes with
 * the last of them. */
struct lease_batch {
    struct htab_node node; /* by id, unless that is 0: then nobody can name it */
    uint64_t id;
    struct session *session;
    struct wheel_node wheel;
    struct lease_list leases;
};

struct lease {
    struct htab_node node; /* by session and version; not the refs' own */
    struct refs *refs;
    struct lease_batch *batch; /* NULL: the refs' own, and there is none */
    LIST_ENTRY(lease) link;    /* of the same refs, or free */
    LIST_ENTRY(lease) in_batch;
    uint64_t seq; /* of the last lot when it began */
};

/* All that keeps one object version's space from being used again. Lives while count > 0. */
struct refs {
    struct htab_node node; /* by version */
    uint64_t version;
    object_ref object; /* 0: it is gone, blocks are in quarantine */
    uint32_t count;    /* leases, holds, and the guard */
    struct lease_list leases;
    struct lease own; /* the first one of most; further ones are in store.leases */
    uint32_t n_blocks;
    block_id *blocks;
    uint64_t guard_units; /* counted in guarded_units */
    /* until the grants of leases that were released are over; see store_release */
    struct wheel_node guard;
};

/* Space of a replica that an object under leases or holds has lost. Free when the last of those has
 * ended that were there. */
struct lot {
    struct htab_node node; /* by version */
    struct wheel_node wheel;
    uint64_t version, seq;
    uint32_t leases, holds; /* from before, that have not ended */
    /* the time of those leases; they may have been extended, for the other replicas */
    bool over;
    bool guarded;  /* grants of leases that were released earlier: only time ends it */
    uint64_t walk; /* the last one that met it */
    uint32_t n_blocks;
    block_id blocks[STORE_EXTENTS_MAX];
};

/* --- sessions and puts (put.c) --- */

/* Life: made by the first lease or put of a connection, goes with the last of them; the latest
 * stays, empty, until there is another one or its connection closes. */
struct session {
    struct htab_node node;
    uint64_t id;
    uint64_t leases, puts; /* puts: open and zombie */
    LIST_HEAD(, store_put) list;
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
    uint32_t first,
        /* segments are scanned from this one on: segment = (first + step) modulo their number */
        step;
    block_id cursor; /* scan: the next block; clear: the block at which the current run begins */
    uint64_t stop;   /* scan: where it began (units) */
    struct run run;  /* the run of usable space the scan is in, len 0: none */
    struct run best[STORE_EXTENTS_MAX]; /* the longest runs seen; then those to clear */
    unsigned n_best;
    unsigned clearing; /* index into best */
    block_id reserved; /* what of best[clearing] is cleared already */
};

/* Room that is wanted for one replica. */
struct room_want {
    uint64_t units;
    uint32_t n_blocks; /* found */
    struct plan *plan; /* while it is the planner */
    /* where */
    uint32_t only;    /* segment, or STORE_SEGMENT_ANY */
    uint32_t host;    /* preferred by local-first, or STORE_HOST_NONE */
    uint32_t never;   /* segment, or STORE_SEGMENT_ANY for none */
    bool free_only;   /* nothing may be evicted for it */
    unsigned n_taken; /* hosts that may not be used: they have a replica */
    unsigned n_prefer, n_avoid;
    uint64_t ahead_ms; /* of store_copy_options */
    float worth;       /* only what is worth less may go for it; 0: whatever is next */
    /* as many as these numbers say, the rest is not set */
    block_id blocks[STORE_EXTENTS_MAX];
    uint32_t taken[STORE_REPLICAS_MAX];
    uint32_t prefer[WANT_NAMES_MAX], avoid[WANT_NAMES_MAX]; /* segment ids */
};

struct spot { /* space of one replica in the making */
    uint32_t n_blocks;
    block_id blocks[STORE_EXTENTS_MAX];
};

/* What an object gets besides its value. */
struct put_wishes {
    uint64_t expire_wall_ms, pin_ms;
    enum store_pin pin;
    struct object_group *group; /* counted for it, NULL: none */
};

struct store_put {
    struct htab_node node; /* by key while room or open, by token while zombie */
    enum put_state state;
    uint64_t token, size;
    struct session *session;
    LIST_ENTRY(store_put) link; /* of the session */
    struct wheel_node wheel;    /* put time-out, then release time-out */
    uint64_t deadline_ms;
    struct put_wishes wishes;
    struct hard_sum hard; /* reserved, as long as `reserved` */
    bool reserved;
    bool replace, local, in_line;
    bool vacant; /* nothing has stood under its key since it began, seen or not */
    /* its writer is held to a grant that hosts seal; its space is not to be had before its time
     * unless they did */
    bool once, moves;
    struct policy_event event;
    uint32_t replicas, missing; /* wanted, and given up */
    uint64_t evict_ns;          /* spent on making room by eviction */
    struct put_batch *batch;    /* NULL: of none */
    uint32_t place;             /* ... its place there */
    uint32_t key_len, n_spots;
    struct room_want want;                 /* of the next spot; from its lists on not set */
    struct spot spots[STORE_REPLICAS_MAX]; /* from n_spots on not set */
    char key[];
};

/* Puts that one request opened, in its order: it goes with the last of them. */
struct put_batch {
    struct htab_node node; /* by id */
    uint64_t id, session;
    uint32_t n, cap, left;  /* places; those in use */
    struct store_put **put; /* NULL: that one is over */
};

/* Space of what went while somebody may still have had a lease on it that these books do not know
 * (ghost.c). */
struct ghost {
    struct wheel_node wheel;
    LIST_ENTRY(ghost) link;
    /* by what the books were told when it went: all leases on it end until then */
    uint64_t told_ms;
    bool written; /* not readers are waited for, but a writer */
    uint32_t n_blocks;
    block_id blocks[];
};

/* One more replica in the making (copy.c). */
struct store_copy {
    LIST_ENTRY(store_copy) link; /* all of them */
    struct room_want want;
    uint64_t version;
    uint32_t from;
    bool open;
    uint32_t key_len;
    char key[];
};

/* --- quotas (quota.c) --- */

#define FAR_REQUESTS 256u

struct domain {
    bool used;    /* slot is taken */
    bool leaving; /* deleted: its objects are being moved to where they belong now */
    char *prefix;
    size_t prefix_len;
    uint64_t limit, bytes, objects, awaiting; /* awaiting: objects that wait for a copy on a disk */
    uint64_t hits, missed[STORE_MISSES], evicted; /* counted while there is more than one */
    struct policy policy[2];                      /* objects with space, objects in the books */
    /* soft-pinned ones, least recently used at the back */
    object_ref soft[2];
    struct policy legacy[2]; /* the previous one, as long as it has objects; see order_migrate */
    object_ref far;          /* those without space in memory, least recently used at the back */
    object_ref far_at;       /* of these, the one that was used last; 0: nobody */
    /* by request: of these, one that it was the last to use; or anything */
    object_ref far_of[FAR_REQUESTS];
};

/* --- the books --- */

#define STORE_TABLES(X)                                                                            \
    X(extras), X(groups), X(places), X(refs), X(lots), X(leases), X(batches), X(sessions),         \
        X(puts), X(zombies), X(put_batches), X(chains), X(hard_owners)
#define STORE_TABLE_MEMBER(name) name

/* What ends by itself, in the order in which it is looked at; books that follow have ghosts. */
enum { WHEEL_GHOST, WHEEL_LEASE, WHEEL_GUARD, WHEEL_LOT, WHEEL_PUT, WHEEL_PIN, WHEELS };

#define LONE_SETS 64
#define LONE_WAYS 32

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
    struct htab STORE_TABLES(STORE_TABLE_MEMBER);
    LIST_HEAD(, store_copy) copies;
    LIST_HEAD(, store_walk) walks;
    /* segments that are DOWN or LEAVING: while there are some, look-ups must look twice */
    unsigned hidden;
    struct story story;
    enum store_eviction evicting_for;
    unsigned leaving;
    const struct placement_ops *placement;
    struct placement_table placement_table;
    struct lease_list free_leases;
    struct htab_node *free_refs;
    LIST_HEAD(, store_put) spare_puts;
    unsigned n_spare_puts;
    struct put_batch *put_batch;     /* the last one that was looked for, NULL: it is gone */
    struct lease_batch *batch;       /* the one that was last added to, while it lasts */
    struct lease_batch *spare_batch; /* memory for the next one, or NULL */
    struct session *session;         /* the latest, perhaps empty; NULL: it is gone */
    uint64_t batch_ids;
    struct wheel *wheel[WHEELS]; /* monotonic time */
    struct wheel *ttl_wheel;     /* wall time */
    uint64_t lot_seq, lot_walks;
    struct rng rng;
    uint64_t next_version;
    uint32_t next_request;
    /* Where the puts of a request go on, by the hash of their first key or by session, in a table
     * that forgets: see batch.c. */
    struct batch_end {
        uint64_t key;
        uint32_t request, depth; /* request 0: none */
        uint32_t end;            /* of its prompt */
    } ends[BATCH_ENDS];
    struct policy_event batch_last; /* of the batch that was last gone on with */
    bool batch_open;                /* its end was not told yet */
    /* sweeps, each going on in slices of store_background */
    /* objects up to this version are gone; how many are still in the index */
    uint64_t flush_version, stale;
    uint64_t sweep_cursor;
    unsigned sweeps; /* of memory segments that leave, under way */
    bool recount;    /* quotas changed: objects are being moved to their domains */
    bool recount_again;
    uint64_t recount_cursor;
    const struct policy_ops *policy;
    uint32_t gen;          /* OBJECT_GEN or 0: what objects linked by the current policy carry */
    uint64_t legacy_count; /* objects that are still the previous policy's */
    bool migrating;
    uint64_t migrate_cursor;
    struct object *evicting; /* leaves its policy by eviction, when it does */
    struct ahead {           /* who most likely is evicted next; it may be another one by then */
        struct object *object;
        uint64_t version, hash;
        block_id block;
    } ahead;
    struct room_want *planner; /* the one that may scan and clear windows; see room.c */
    /* segment whose host is not told of what goes: it said so itself, or has lost it */
    uint32_t far_silent;
    uint64_t *superseded; /* far.c; NULL: no far segment was ever there */
    bool telling;         /* store_tell */
    bool listening;       /* store_listen */
    uint64_t changes;
    bool following;          /* the books are made by records (follow.c) */
    bool keeps_expired;      /* store_keep_expired */
    uint64_t empty_memory;   /* what the books took when nothing was in them */
    bool leading;            /* in store_lead: what it drops is told */
    uint64_t ghost_until_ms; /* leases of an earlier master may be in force until then */
    LIST_HEAD(, ghost) ghosts;
    uint64_t ghosts_read;                  /* of these, not those of writers */
    uint64_t written_units, guarded_units; /* of ghosts of writers; of versions with a guard */
    uint64_t ghost_units;
    /* of the last one, which its blocks carry as their owner; 0: to be let go */
    uint32_t ghost_age;
    /* every lease of ours ends until then; told to whoever comes after us (effect_leases) */
    uint64_t lease_promise_ms;
    /* the last promise of the one before, while following; UINT64_MAX: none, or on another clock */
    uint64_t told_ms;
    bool told_elsewhere;     /* it was on another clock */
    uint64_t suspect_below;  /* versions that were not put under these books' own lead */
    struct buf record;       /* scratch of effect.c */
    uint64_t evict_began_ns; /* of this call; 0: nothing had to go yet. See room_evicts */
    uint64_t room_changes;   /* grows whenever space became free or evictable */
    struct {
        struct buf notes; /* keys that went, until store_settle */
        bool settling;
        uint64_t until_ms; /* of the last one that is lone */
        struct lone {      /* of a pair, the other part of which has just been evicted */
            uint64_t hash, until_ms;
            unsigned missing;         /* suffix of that part */
        } lone[LONE_SETS][LONE_WAYS]; /* by hash, the latest first */
    } together;
    unsigned copying;                  /* memory segments whose objects are copied to a disk */
    uint64_t awaiting, awaiting_units; /* what waits for that: objects, and their space in memory */
    uint64_t later_ms;                 /* of the last put that was told to come later */
    bool later_for_disk;               /* it waits for copies to a disk */
    uint64_t evict_left;               /* objects it still wants */
    uint64_t evictable_units, quarantine_units, zombie_units;
    struct hard_sum hard;
    uint64_t hard_pins, soft_pins, expires, inline_count, extra_bytes, places_bytes, put_bytes,
        unread, lease_count, batch_count, lease_pool, refs_pool, hold_count, far_objects,
        far_replicas, copies_open, boundaries;
    struct store_stats stat; /* the counting half */
};

/* store.c, object.c */
void book_insert(struct store *s, struct object *o, uint64_t hash, const struct policy_event *e);
/* Out of the index, the policy, the quotas; its space goes free or to quarantine; the record is
 * freed. */
void book_remove(struct store *s, struct object *o, enum store_news_kind why);
/* The same, counted as what it is; disks must not bring it back. */
void book_drop(struct store *s, struct object *o, enum store_news_kind why);
bool book_stale(const struct store *s, const struct object *o);
/* What look-ups see of o, which may be NULL: o, or NULL. An expired one is gone then. */
struct object *book_seen(struct store *s, struct object *o);
/* Leased, held or hard-pinned, or waiting for its copy on a disk. */
bool book_protected(const struct store *s, const struct object *o);
size_t book_record_size(const struct object *o);
uint64_t book_units(const struct store *s, const struct object *o); /* of its space in memory */
uint64_t blocks_units(const struct store *s, const block_id *blocks, uint32_t n);
/* Of all its replicas in memory. */
const block_id *book_blocks(const struct store *s, const struct object *o, uint32_t *n_p);
static inline bool book_far_only(const struct object *o) {
    return o->block == 0 && !(o->bits & OBJECT_INLINE);
}
/* What it counts against its quota: size times replicas in memory, or in the books. */
uint64_t book_charge(const struct store *s, const struct object *o);
/* Some replica can be read. Only asked while store.hidden. */
bool book_readable(const struct store *s, const struct object *o);
/* What is evictable in each segment changes with what becomes of o: sign -1 before, 1 after.
 * Nothing for protected ones. */
void book_count_evictable(struct store *s, const struct object *o, int sign);

/* order.c */
void book_access(struct store *s, struct object *o, const struct policy_event *e);
/* Of one that is on disks only: the next block of its prompt that is; NULL: none is known. */
struct object *book_far_next(struct store *s, const struct object *o);
/* It is where what a look-up without an access has found ends; the event: of the first miss. */
void book_found(struct store *s, struct object *o, const struct policy_event *e);
/* Into the order of eviction as one that is new there; what is to be copied to a disk first waits
 * for that (await.c). */
void book_enter_order(struct store *s, struct object *o, const struct policy_event *e);
/* The same, waiting or not. */
void book_enter_policy(struct store *s, struct object *o, const struct policy_event *e);
/* Takes o out of the order of eviction, and of the hands of its policy; or brings it in as the next
 * to go. Not what waits: it is in none. */
void book_unlink(struct store *s, struct object *o);
void book_relink(struct store *s, struct object *o);
/* The same as book_unlink for one that stays in memory, but not in the order. */
void book_park(struct store *s, struct object *o);
/* One that was popped is in use and stays out, or it is the next to go again. */
void book_hold(struct store *s, struct object *o);
void book_give_back(struct store *s, struct object *o);
/* Of two that were popped: the first is behind the other one in its chain. */
bool book_behind(struct store *s, const struct object *o, const struct object *other);
/* As book_pop, the last one behind o in its chain, as far as its policy finds one; NULL: none. */
struct object *book_pop_behind(struct store *s, const struct object *o, unsigned *budget);
/* The number of the request it was last used in, 0: none. */
uint32_t book_request(const struct store *s, const struct object *o);
/* For one that is in no policy and comes into one without a batch. */
struct policy_event order_event(const struct store *s, const struct object *o);
struct object *order_pop(struct policy *p, uint64_t now_ms); /* NULL: nobody, or no policy */
/* Recomputes the share of evictable space after what protects o changed. */
void book_protect(struct store *s, struct object *o, bool was_protected);
unsigned book_domain(const struct store *s, const struct object *o);
/* Uses that an object may expect for each request for which it is kept; < 0: its policy does not
 * know. */
float book_worth(const struct store *s, const struct object *o);
/* What one on a disk would be worth in memory, by the request that used it last; < 0: the policy
 * does not know. */
float book_far_worth(struct store *s, const struct object *o);
struct policy *order_policy(struct store *s, const struct object *o);
/* To a new policy. Until that is over, victims are the previous one's. */
bool order_migrate(struct store *s, unsigned *budget);
tarn_status order_set_policy(struct store *s, const struct policy_ops *ops);

/* evict.c */
/* The next to go among objects with space (inl 0) or in the books (inl 1), from one domain or
 * (domain < 0) from all; unlinked. soft: soft-pinned ones when there are no others. space: only who
 * makes room where it can be used now. Protected ones are taken out on the way. */
struct object *book_pop(struct store *s, int domain, int inl, bool soft, bool space,
                        unsigned *budget);
void book_evict(struct store *s, struct object *o, unsigned *budget);
/* The same to make room in the pool: values in the books that were unused for longer go as well.
 * next: it was next to go; else it is in the way. */
void book_evict_space(struct store *s, struct object *o, bool next, unsigned *budget);
/* It alone, whatever belongs to it. true: it is gone; else it is there, with a copy on a disk. */
bool book_evict_alone(struct store *s, struct object *o);
void book_count_evicted(struct store *s, const struct object *o);

bool evict_background(struct store *s, unsigned *budget);
/* What it takes to evict who is next comes near, in two steps with other work between them. */
void evict_ahead(struct store *s);
void evict_soon(const struct store *s);
/* store_hash of the key of one that may be that. */
static inline uint64_t book_hash(const struct store *s, const struct object *o) {
    bool ahead = o == s->ahead.object && object_version(o) == s->ahead.version;
    return ahead ? s->ahead.hash : store_hash(store_object_key(o));
}

/* together.c: an object has gone, or come. */
void together_gone(struct store *s, struct span key, enum store_news_kind why);
void together_came(struct store *s, struct span key, uint64_t hash);
/* What it goes together with cannot be read now. Only asked while store.hidden. */
bool together_away(const struct store *s, const struct object *o);

/* extra.c */
struct extra *extra_find(const struct store *s, const struct object *o);
struct extra *extra_get(struct store *s, struct object *o); /* makes it */
/* frees it when nothing is left in it */
void extra_trim(struct store *s, struct extra *x);
void extra_drop(struct store *s, struct object *o); /* the object goes */
void extra_set_expire(struct store *s, struct object *o, uint64_t wall_ms);
void extra_set_pin(struct store *s, struct object *o, enum store_pin kind, uint64_t ms);
/* Renews its pin, too. put: by somebody who would have put it. */
void extra_used(struct store *s, struct object *o, bool put);
/* Objects that were brought to memory before anybody read them: one is there; it leaves memory. */
void extra_brought(struct store *s, struct object *o);
void extra_in_vain(struct store *s, struct object *o);
bool extra_unread(const struct store *s, const struct object *o);
enum store_pin extra_pin(const struct store *s, const struct object *o);
static inline enum store_pin object_pin(const struct store *s, const struct object *o) {
    return LIKELY(!(o->bits & OBJECT_EXTRA)) ? STORE_PIN_NONE : extra_pin(s, o);
}
bool extra_due(struct store *s, unsigned *budget); /* TTLs that are over; true: more */
void extra_pin_over(struct store *s, struct wheel_node *node);
bool extra_expired(const struct store *s, const struct object *o);

/* group.c */
/* One reference more; made when it is new. */
struct object_group *group_get(struct store *s, struct span name, bool boundary);
void group_unref(struct store *s, struct object_group *g);
/* Takes the caller's reference. */
void group_join(struct store *s, struct object *o, struct object_group *g);
void group_leave(struct store *s, struct extra *x);
void group_used(struct extra *x);
/* One that is being evicted, with what is to be known of it when it is gone. group NULL: it belongs
 * to nothing. */
struct group_victim {
    struct object_group *group;
    uint64_t idle_ms;
    uint32_t request;
    unsigned uses;
    bool soft;
    struct extra *before, *behind; /* in the order of a boundary */
};
struct group_victim group_victim(const struct store *s, const struct object *o);
/* It has left memory; lost: in its turn, and no disk has it. Those that go with it do. Ends v. */
void group_follow(struct store *s, struct group_victim *v, bool lost, unsigned *budget);

/* hardpin.c */
struct hard_sum hard_of(const struct store *s, const struct object *o);
bool hard_allowed(const struct store *s, uint64_t owner, const struct hard_sum *sum);
void hard_add(struct store *s, uint64_t owner, const struct hard_sum *sum);
void hard_take(struct store *s, uint64_t owner, const struct hard_sum *sum);

/* places.c */
void places_read(const struct store *s, const struct object *o, struct places *p);
/* Packs p as what is known of o. The blocks must be assigned to o, or be: their state and owner are
 * set. The order of eviction, quotas and counters follow. */
void places_write(struct store *s, struct object *o, const struct places *p);
/* The same for an object that is not in the books yet. */
void places_first(struct store *s, struct object *o, const struct places *p);
/* Before the object goes: forgets its places. The blocks are the caller's. */
void places_drop(struct store *s, struct object *o);
void places_fill_spot(const struct store *s, const struct spot *spot, uint64_t size,
                      struct store_replica *r);
void places_drop_memory(struct places *p, uint32_t replica);
void places_drop_far(struct places *p, uint32_t index);
uint64_t places_memory(const struct store *s, const struct object *o);
uint64_t places_size(const struct store *s, const struct object *o);
const block_id *places_blocks(const struct store *s, const struct object *o, uint32_t *n_p);
unsigned places_domain(const struct store *s, const struct object *o);
void places_set_domain(struct store *s, struct object *o, unsigned domain);
bool segment_readable(const struct segment *seg);
bool object_lies_in(const struct store *s, const struct object *o, uint32_t segment);
bool object_has_far(const struct store *s, const struct object *o);
/* While there is such a segment, look-ups must look twice. */
static inline unsigned segment_hides(enum store_segment_state state) {
    return state == SEGMENT_DOWN || state == SEGMENT_LEAVING;
}
static inline uint32_t replica_segment(const struct store *s, block_id first) {
    return block_segment(block_get(&s->space, first));
}
#define SUPERSEDED_SLOTS (UINT64_C(1) << 16)
/* far.c: tells the hosts that they may forget their far replicas of o. */
void far_announce_gone(struct store *s, const struct object *o);
void far_leave(struct store *s, struct object *o);
/* There is a far segment: what goes from such is remembered from now on. */
void far_remember(struct store *s);

/* effect.c: nothing where nobody listens */
void effect_object(struct store *s, const struct object *o);
void effect_gone(struct store *s, const struct object *o);
void effect_flush(struct store *s);
void effect_segment(struct store *s, const struct segment *seg);
void effect_segment_gone(struct store *s, uint32_t id);
void effect_quota(struct store *s, struct span prefix, uint64_t bytes);
void effect_superseded(struct store *s, uint32_t slot, uint64_t version);

/* news.c: nothing where nobody listens */
void news_tell(struct store *s, enum store_news_kind kind, const struct object *o,
               uint32_t segment);
void news_put_tell(struct store *s, const struct object *o, bool replaced);
void news_places_tell(struct store *s, const struct object *o, const struct places *before,
                      const struct places *after);
static inline void news_object(struct store *s, enum store_news_kind kind, const struct object *o) {
    if (UNLIKELY(s->listening)) news_tell(s, kind, o, STORE_SEGMENT_ANY);
}
static inline void news_segment(struct store *s, enum store_news_kind kind, uint32_t segment) {
    if (UNLIKELY(s->listening)) news_tell(s, kind, NULL, segment);
}
static inline void news_put(struct store *s, const struct object *o, bool replaced) {
    if (UNLIKELY(s->listening)) news_put_tell(s, o, replaced);
}
static inline void news_places(struct store *s, const struct object *o, const struct places *before,
                               const struct places *after) {
    if (UNLIKELY(s->listening)) news_places_tell(s, o, before, after);
}

/* ghost.c */
/* Blocks that readers could have read: free at once, or, while leases may be in force that are not
 * known here, later. */
void space_part(struct store *s, const block_id *blocks, uint32_t n);
/* Blocks that a writer may write to until then. */
void space_hold_written(struct store *s, const block_id *blocks, uint32_t n, uint64_t until_ms);
void ghost_over(struct store *s, struct wheel_node *node);
void effect_leases(struct store *s);
void ghosts_free_all(struct store *s);
/* Space that is a ghost will be free, and what is evicted now would not be free now: puts for which
 * there is no room wait. */
bool ghosts_hold(const struct store *s);
/* Blocks of that segment are nobody's any more: all of them, it is gone and its memory with it, or
 * those that were marked. */
void ghosts_leave(struct store *s, uint32_t segment, bool all);
/* What went before a promise that is over by now is free. Promises grow, and whoever leads begins
 * with one for what it does not know: the last one covers all. */
void ghosts_told(struct store *s, uint64_t end_ms);
/* An object is told of again (its blocks are, too: same), or its readers are owed some time. */
void book_forget(struct store *s, struct object *o, bool same);
/* Those that do not lie below units of a segment wholly are over. */
void ghosts_beyond(struct store *s, uint32_t segment, uint64_t units);

/* copy.c */
void copy_free_all(struct store *s);

/* segment.c */
void segment_free_walks(struct store *s);
void segment_end_sweeps(struct store *s);
bool segment_sweep(struct store *s, unsigned *budget);
bool segment_sweeping(const struct store *s); /* there is something to sweep at once */
/* units: whole pages. As store_segment_resize, of books that are told. */
tarn_status segment_resize(struct store *s, struct segment *seg, uint64_t units, bool force,
                           uint64_t *objects_p);

/* lease.c */
struct refs *refs_find(const struct store *s, uint64_t version);
/* The blocks wait until the leases and holds of o have ended. */
void refs_object_gone(struct store *s, struct object *o, const block_id *blocks, uint32_t n);
/* The same when o stays: new leases and holds do not matter. */
void refs_replica_gone(struct store *s, const struct object *o, const block_id *blocks, uint32_t n);
void lot_over(struct store *s, struct wheel_node *node);
/* One of the batch ends, and the next one in another call. */
void lease_over(struct store *s, struct wheel_node *node);
void guard_over(struct store *s, struct wheel_node *node);
void lease_free_all(struct store *s);
/* Of books that follow from now on; there are no holds. What went meanwhile waits for max-lease. */
void lease_end_all(struct store *s);

/* put.c */
struct session *session_get(struct store *s, uint64_t id);
struct session *session_find(const struct store *s, uint64_t id);
/* If it is empty it goes, or soon. */
void session_trim(struct store *s, struct session *ss);
void put_over(struct store *s, struct wheel_node *node);
void put_free_all(struct store *s);
void put_end_all(struct store *s); /* the books stay: sessions are new from now on */
/* Neither linked nor in the index; value: of one that lies in the books, else NULL. NULL: no
 * memory. */
struct object *record_new(struct store *s, struct span key, const struct span *value,
                          uint64_t version, const struct policy_event *e);
/* It is in the books from now on, with what its writer wished: told, whoever waits is woken. */
void object_appear(struct store *s, struct object *o, uint64_t hash, const struct policy_event *e,
                   const struct put_wishes *wishes, bool replaced);
bool crcs_fit(uint64_t size, size_t n_crcs); /* one for each STORE_CRC_BLOCK, or none */
/* The common overwrite in place: same size class, nothing special about o; else false, and nothing
 * has changed. Its CRC is the caller's. */
bool book_rewrite_inline(struct store *s, struct object *o, struct span value, uint64_t version,
                         const struct policy_event *e);
void object_set_crcs(struct store *s, struct object *o, const uint32_t *crcs, size_t n_crcs);
struct store_put *put_by_key(const struct store *s, struct span key, uint64_t hash);
/* An object appears under the key without a put. */
void put_key_taken(const struct store *s, struct span key, uint64_t hash);
/* Is it open, and may it become an object? */
bool put_ends(const struct store *s, const struct store_put *p);

/* put_batch.c */
void put_batch_leave(struct store *s, struct store_put *p);

/* room.c */
/* o lies where space is being cleared: it is gone already for everybody else. */
bool room_clearing(const struct store *s, const struct object *o);
/* May w take space in that segment at all? */
bool room_may_use(const struct room_want *w, const struct segment *seg);
/* Finds w->blocks, evicting what it must. TARN_EAGAIN: call again in a later slice. */
tarn_status room_make(struct store *s, struct room_want *w, unsigned *budget);
/* next, who is next to go, is a smaller loss than worth is a gain. */
bool evict_worth_less(const struct store *s, const struct object *next, float worth);
/* From here on the call is about eviction. */
static inline void room_evicts(struct store *s) {
    if (s->evict_began_ns == 0 && s->events.clock_ns)
        s->evict_began_ns = s->events.clock_ns(s->events.arg);
}
/* What was found for it so far is free again. */
void room_abandon(struct store *s, struct room_want *w);
/* Makes sure that an object of so many bytes in domain keeps the limits (objects, memory, quota).
 * coming: objects that are not counted among the puts yet. */
tarn_status room_limits(struct store *s, unsigned domain, uint64_t bytes, unsigned coming,
                        unsigned *budget);

/* await.c */
/* The far segment that o is to be copied to; STORE_SEGMENT_ANY: none. */
uint32_t await_disk(const struct store *s, const struct object *o);
/* It would have to wait. */
bool await_due(const struct store *s, const struct object *o);
/* o, which is due and in no order, waits from now on. */
void await_enter(struct store *s, struct object *o);
/* It waits no more, and goes into the order of eviction; await_leave: into none. */
void await_end(struct store *s, struct object *o);
void await_leave(struct store *s, struct object *o);
/* What waits for a far segment that leaves waits no more. false: some still do. */
bool await_sweep(struct store *s, struct segment *far, unsigned *budget);
void await_end_all(struct store *s);
void await_segment_gone(struct store *s, struct segment *seg); /* it is empty */
/* For a put that has no room, or is beyond its quota, because of what waits. TARN_OK: some of that
 * may be evicted now. TARN_ELATER: the disk will have taken it in later_ms. TARN_EAGAIN: in a later
 * slice. */
tarn_status await_room(struct store *s, const struct store_put *p, unsigned *budget);
tarn_status await_quota(struct store *s, const struct store_put *p, unsigned *budget);
bool await_let_go_any(struct store *s, unsigned *budget); /* true: one may be evicted now */

/* quota.c */
unsigned quota_find_domain(const struct store *s, struct span key);
static inline unsigned quota_domain(const struct store *s, struct span key) {
    return LIKELY(s->n_domains == 1) ? 0 : quota_find_domain(s, key);
}
void domain_open(struct store *s, unsigned n);
void quota_free_all(struct store *s);
void quota_stats_reset(struct store *s);
bool quota_recount(struct store *s, unsigned *budget);

#endif
