/* The books: which objects exist, where their bytes lie, who may read or write them until when, and
 * who goes first when room is needed. No I/O, no threads, no clock of its own: time is an argument
 * (store_tick).
 *
 * Life of a put and of an object:
 *
 *   PUTSTART ─> put (making room: TARN_EAGAIN, store_put_continue)
 *                │
 *                v
 *              put (open: token, layout) ── PUTEND ──> object
 *                │ revoked, superseded                   │ removed, replaced, expired, evicted
 *                v                                       v
 *              space: free at once when the writer     object gone for look-ups; space in
 *              said so, else held until its session    quarantine until leases and holds end
 *              is fenced
 *
 * Guarantee 2 (a put that fits succeeds) is kept by room.c, but with the policy noeviction;
 * eviction order by policy.h; space by space.h.
 *
 * Borrowed pointers: a struct object * is valid until the next call that may change the books. */
#ifndef TARN_STORE_STORE_H
#define TARN_STORE_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/status.h"

#define STORE_KEY_MAX      1024u
#define STORE_INLINE_MAX   64u
#define STORE_SUFFIXES_MAX 16u
#define STORE_SUFFIX_MAX   255u
#define STORE_SIZE_MAX     (UINT64_C(1) << 40)
#define STORE_EXTENTS_MAX  8u
#define STORE_REPLICAS_MAX 8u
/* objects larger than this carry one CRC per block */
#define STORE_CRC_BLOCK (UINT64_C(1) << 20)

struct store;
struct object;
struct store_news;

/* --- places --- */

/* Space of memory segments is given out here, block by block (space.h). On ssd and file segments
 * the host decides where an object goes and tells (store_far_add): a far replica is one extent
 * whose offset means something to that host only. */
enum store_tier { STORE_TIER_MEMORY, STORE_TIER_SSD, STORE_TIER_FILE };

struct store_extent {
    uint32_t segment; /* id */
    uint32_t segment_epoch;
    uint64_t offset; /* bytes from the start of the advertised segment */
    uint64_t length; /* bytes of value in this extent (not rounded up) */
};

struct store_replica {
    enum store_tier tier;
    /* 1 .. STORE_EXTENTS_MAX; 0: the value is in the books (store_object_inline) */
    uint32_t extents;
    struct store_extent extent[STORE_EXTENTS_MAX];
};

struct store_layout {
    uint32_t replicas;
    struct store_replica replica[STORE_REPLICAS_MAX];
};

/* --- configuration: change fields at any time through store_config(); policy and allocator by
 * their functions --- */

struct store_suffix {
    unsigned len; /* at least 1 */
    char text[STORE_SUFFIX_MAX];
};

struct store_config {
    uint64_t max_objects; /* 0: no limit. When reached, puts evict */
    uint64_t max_memory;  /* bytes of books, 0: no limit. When reached, puts evict */
    uint64_t max_leases_per_session;
    uint64_t max_puts_per_session; /* open puts */
    uint64_t max_lease_ms;
    uint64_t soft_pin_ms; /* renewed to at least its own time by every read */
    /* share of the pool, and of max_memory, that hard pins may hold together; 1: all */
    double hard_pin_ratio;
    double hard_pin_user_ratio;      /* ... those of one owner */
    uint64_t put_timeout_ms;         /* base; plus size at put_timeout_rate */
    uint64_t put_timeout_rate;       /* bytes per second */
    uint64_t put_release_timeout_ms; /* starts the fencing of a live writer */
    double high_watermark;           /* 0..1; 1: no background eviction */
    double eviction_ratio;           /* share of the objects a background pass frees */
    /* bytes per second: of KV that an engine computes, and that a read of an object from a disk
     * gets (0: nobody has measured it) */
    double prefill_rate, disk_read_rate;
    /* keys that differ in these ends only go together, see together.c; fewer than 2: none do */
    unsigned n_together;
    struct store_suffix together[STORE_SUFFIXES_MAX];
    unsigned lfu_log_factor;
    unsigned lfu_decay_minutes;
    /* what is put in a memory segment with a disk (store_segment_copies) waits for its copy there
     */
    bool copies_all;
    /* what is past its time is left to store_expire_due; store_background does not remove it */
    bool expire_apart;
    /* At birth only. Above all that an earlier master gave out, or disks may offer what they hold
     * of another object under the same number. */
    uint64_t first_version;
    /* Tells the clock that mono_ms is on from those of other machines, and of this one before it
     * was last started. 0: unknown */
    uint64_t clock_id;
    /* At birth only. Of what is drawn at random; 0: another one each time */
    uint64_t seed;
};

/* News for the rooms above. Called from inside store functions: note it down, do not call the store
 * back. */
struct store_put;
struct store_events {
    void *arg;
    /* an object became readable: wake those who WAIT for it */
    void (*complete)(void *arg, struct span key);
    /* cut this writer off, then call store_session_fenced */
    void (*fence)(void *arg, uint64_t session);
    /* A put whose grants are to be sealed is over. true: nothing more is written to this extent of
     * it. false, or NULL: not before its deadline. */
    bool (*put_close)(void *arg, const struct store_put *put, const struct store_extent *extent);
    /* A far replica is no longer in the books though its host did not say so: it may forget it.
     * NULL: nobody cares. */
    void (*far_gone)(void *arg, struct span key, uint64_t version, uint32_t segment,
                     uint64_t offset);
    /* How long the put of a key with that hash, which needs so many bytes, shall wait for that far
     * segment to take what waits for it, in ms; 0: not at all, and some of that is evicted. NULL:
     * always so. */
    uint64_t (*disk_wait)(void *arg, uint32_t far, uint64_t hash, uint64_t bytes);
    /* Something waits for a copy on that far segment, which did not before. */
    void (*awaits)(void *arg, uint32_t far);
    /* A segment that was leaving is empty and gone; its id may be used again. */
    void (*segment_gone)(void *arg, uint32_t id);
    /* The books have changed (effect.h, store_tell). */
    void (*effect)(void *arg, const void *record, size_t len);
    /* A clock for the figure of what eviction costs puts; nothing else goes by it. NULL: that
     * figure stays empty. */
    uint64_t (*clock_ns)(void *arg);
    /* What became of an object or a segment (store_listen). */
    void (*news)(void *arg, const struct store_news *news);
};

/* Told in the order in which it happens. Whoever keeps a set of objects with their replicas by it
 * has the same as the books: a put sets all replicas of its key, whatever was known of it; lost
 * replicas are told one by one, but for the last, with which the object goes. Segments that are
 * down keep their replicas; one that was never spoken of is up. */
enum store_news_kind {
    STORE_NEWS_NONE,
    STORE_NEWS_PUT,     /* the object is there, with this value */
    STORE_NEWS_REMOVED, /* is going: somebody said so */
    STORE_NEWS_EVICTED,
    STORE_NEWS_EXPIRED,
    STORE_NEWS_LOST, /* with its last replica */
    STORE_NEWS_REPLICA_ADDED,
    STORE_NEWS_REPLICA_GONE,
    STORE_NEWS_PROMOTED, /* has a replica in memory again */
    STORE_NEWS_DEMOTED,  /* has none in memory any more */
    STORE_NEWS_FLUSHED,  /* all objects that were there are gone */
    STORE_NEWS_SEGMENT_UP,
    STORE_NEWS_SEGMENT_DOWN, /* what lies in it cannot be read */
    STORE_NEWS_SEGMENT_GONE, /* for good: its id may be used again */
};
struct store_news {
    enum store_news_kind kind;
    const struct object *object; /* NULL: it concerns none */
    uint32_t segment;            /* of SEGMENT_ and REPLICA_ */
    bool replaced;               /* PUT: another value of the key was readable until now */
};
/* Is news told? Not at first, and never while the books follow. */
void store_listen(struct store *s, bool on);

/* The eviction policies: their structs are policy_NAME (store/policy.h), the option eviction-policy
 * takes their names, and noeviction. */
#define STORE_POLICIES(X) X(lru) X(fifo) X(lfu) X(sieve) X(s3fifo) X(chain)

/* Everything with its default; mono_ms and wall_ms are the time of birth. policy: "lru" ...;
 * allocator: "offset" | "slab". */
void store_config_init(struct store_config *c);
struct store *store_create(const struct store_config *c, const struct store_events *events,
                           const char *policy, const char *allocator, uint64_t mono_ms,
                           uint64_t wall_ms);
void store_destroy(struct store **store_p);
struct store_config *store_config(struct store *s);

/* Sets the time for all that follows. Call it once per turn of the loop and before each command.
 * Cheap. */
void store_tick(struct store *s, uint64_t mono_ms, uint64_t wall_ms);
/* Removes what goes together with what has gone. To be called before each command, so that none
 * sees half of it. Cheap. */
void store_settle(struct store *s);
/* Due work, in slices: ended leases and pins, TTLs, put time-outs, background eviction, policy
 * migration, flush sweep. budget: work units (about one object each), counted down. true: more is
 * waiting. */
bool store_background(struct store *s, unsigned *budget);
/* How long the loop may sleep before store_background has something to do, at most limit_ms. */
uint64_t store_next_ms(const struct store *s, uint64_t limit_ms);
/* The same for what is past its time, with expire_apart. Books that follow remove nothing by
 * themselves. */
bool store_expire_due(struct store *s, unsigned *budget);
uint64_t store_expire_next_ms(const struct store *s, uint64_t limit_ms);
/* Of about n objects that have a time, drawn at random. */
struct store_ttl_sample {
    uint64_t seen, stale; /* stale: past it, and still there */
    uint64_t left_ms;     /* sum over the others */
};
void store_sample_ttl(struct store *s, unsigned n, struct store_ttl_sample *sample_p);

/* --- segments --- */

/*                 ┌── host back, same content ──┐
 *                 v                             │
 *   mounted ──> UP <──> READONLY ──host away──> DOWN ──content lost──> LEAVING ──> gone
 *               └────────── unmounted, drained ──────────────────────────^
 *
 * Gone: store_events.segment_gone.
 *
 *             gives out space   replicas are handed out
 *   UP              yes                yes
 *   READONLY        no                 yes       maintenance, draining
 *   DOWN            no                 no        everything is kept; objects with no other replica
 *                                                are misses
 *   LEAVING         no                 no        store_background drops its replicas; gone when the
 *                                                last lease, hold and put on it are over */
enum store_segment_state { SEGMENT_UP, SEGMENT_READONLY, SEGMENT_DOWN, SEGMENT_LEAVING };

#define STORE_SEGMENTS_MAX 65535u
#define STORE_HOSTS_MAX    65535u
#define STORE_HOST_NONE    UINT32_MAX

struct store_segment_config {
    const char *name; /* at most 63 bytes, unique among those that are not LEAVING */
    uint32_t epoch;
    enum store_tier tier;
    uint64_t size; /* rounded down to 4 KiB */
    uint32_t host; /* number of the host; two replicas of an object never share one */
};
struct store_segment_info {
    uint32_t id, epoch, host;
    enum store_tier tier;
    enum store_segment_state state;
    char name[64];
    /* memory. used: in objects and open puts, rounded up, without quarantine. evictable: of used,
     * what an eviction could free now. Far segments: used is the bytes of values that the books
     * know there. */
    uint64_t size, used, quarantined, evictable, largest_free;
    uint64_t free_runs;
    uint64_t replicas; /* in it; exact for far segments, blocks in objects for memory */
};
/* id is chosen by the store (small); of a segment that is gone it is used again, for which the
 * caller must bring a larger epoch. TARN_EEXISTS: the name is taken. TARN_ELIMIT. */
tarn_status store_segment_add(struct store *s, const struct store_segment_config *config,
                              uint32_t *id_p);
/* Any change but out of LEAVING. To LEAVING: open puts lose their replicas there (PUTEND treats
 * them as FAILED). */
void store_segment_set_state(struct store *s, uint32_t id, enum store_segment_state state);
/* Its host has another number now. */
void store_segment_set_host(struct store *s, uint32_t id, uint32_t host);
/* A memory segment that has become larger or smaller, with the bytes that it had. TARN_EBUSY:
 * something lies beyond, or is still read there. Of books that follow, force: what lies beyond
 * goes. *objects_p: how many that concerns, or would. */
tarn_status store_segment_resize(struct store *s, uint32_t id, uint64_t size, bool force,
                                 uint64_t *objects_p);
/* Ids in use are below this; some below may be gone. */
uint32_t store_segment_limit(const struct store *s);
size_t store_segment_count(const struct store *s); /* that are there, LEAVING ones too */
bool store_segment_get(const struct store *s, uint32_t id, struct store_segment_info *info_p);
/* The part of it that takes no time. name is borrowed. */
bool store_segment_label(const struct store *s, uint32_t id, const char **name_p,
                         enum store_tier *tier_p, uint32_t *epoch_p, bool *readable_p);
/* Of the one that is not LEAVING, if there is one. */
bool store_segment_by_name(const struct store *s, struct span name,
                           struct store_segment_info *info_p);

/* A walk over the objects that have a replica in a segment, in slices between which anything may
 * happen. Objects that come behind the walk's back are not seen. At most 8 at a time; begin returns
 * NULL beyond. */
struct store_walk;
struct store_walk *store_walk_begin(struct store *s, uint32_t segment);
/* fn may do to o what it likes, and to nothing else. true: the walk is over (also when the segment
 * is gone). */
bool store_walk_step(struct store *s, struct store_walk *w, void (*fn)(void *arg, struct object *o),
                     void *arg, unsigned *budget);
void store_walk_end(struct store *s, struct store_walk **walk_p);

/* --- placement: which segments a new replica tries first (placement.c) --- */

/* "random": by capacity. "free-ratio-first": the emptiest of a few that were drawn by capacity.
 * "local-first": those of the writer's host, then as free-ratio-first. Preferred segments come
 * first with all of them. When free space is found nowhere, eviction order decides, not the
 * strategy. */
tarn_status store_set_placement(struct store *s, const char *name); /* TARN_EINVAL: unknown */
const char *store_placement_name(const struct store *s);            /* "local-first" at first */

/* --- requests: what the eviction policy learns of a batch --- */

/* One per connection, zero-initialised: lets the puts of a prefix go on where its look-up ended, or
 * where they were told to wait. Puts over another connection go on with the look-up, too, when they
 * begin with its first miss, or are told to be of its session, and it was not long ago. */
struct store_chain {
    /* number of the connection's last look-up batch, or of its puts that wait */
    uint32_t request;
    uint32_t hits;   /* its leading hits */
    uint32_t depth;  /* of its first missing key */
    uint32_t length; /* its keys */
    uint32_t read;   /* of the hits so many were read since */
    /* the last get was spread, of so many in all, and long enough to be cut: its other requests,
     * which begin at that depth, too. 0: it was not */
    uint32_t read_spread, read_depth;
    bool gets;           /* it was a get itself: another one is another request */
    uint64_t first_hash; /* of its first key: gets of its hits are the same request */
    uint64_t next_hash;  /* hash of its first missing key, 0: none */
    /* the request of the connection's last puts, where they have come to, and are to come to */
    uint32_t put_request, put_depth, put_end;
    uint32_t put_spread; /* that batch was spread, of so many in all */
    uint32_t put_last;   /* its last place, or that of the spread batch since */
    uint32_t put_keys;   /* of that batch here, */
    uint64_t put_bytes;  /* and their sizes */
};
enum store_batch_kind {
    /* no lease: seen by the books (depth, request), but no access for the policy */
    STORE_BATCH_LOOK,
    /* a look-up under leases: an access; the get of what it finds is none more */
    STORE_BATCH_LEASE,
    STORE_BATCH_READ, /* an access */
    STORE_BATCH_PUT,
};
struct store_batch {
    struct store_chain *chain;
    enum store_batch_kind kind;
    uint32_t request;    /* this batch's number */
    uint32_t base_depth; /* depth of key 0 */
    uint32_t length;     /* keys in the batch */
    uint32_t own;        /* of these here, in this request */
    uint32_t pos;        /* of the next key */
    uint32_t hits;       /* leading hits so far */
    uint64_t bytes;      /* of the puts so far, with the next */
    bool open;           /* no miss so far */
    bool spread;         /* only some of its keys are here: store_batch_at */
    uint32_t last;       /* a look-up without an access: its last hit, and which version that was */
    uint64_t last_version;
    /* request is set: it is known whether this batch goes on where the last one ended */
    bool numbered;
    bool later; /* a put of it had no room yet: where the next one is to go on is noted */
    /* Hints, which the policy may use, set after store_batch_begin. The session that the batch
     * belongs to, as store_session tells it: its later batches go on where the earlier ended. 0:
     * not told */
    uint32_t session;
    uint32_t return_ms; /* it comes back so many ms from now; 0: not told */
};
/* The number of a session, from its id; never 0. Two sessions may have the same. */
uint32_t store_session(struct span id);
/* chain may be NULL. Then one store_batch_* per key, in order: store_batch_hit, store_batch_miss,
 * or (puts) store_put_start, which counts its key itself. hash: store_hash of the key. */
void store_batch_begin(struct store *s, struct store_batch *b, struct store_chain *chain,
                       enum store_batch_kind kind, uint32_t length);
/* Other masters have other keys of the batch, which has length of them in all: before each key it
 * is said which one it is, from 0 on, upwards. */
void store_batch_at(struct store_batch *b, uint32_t position, uint32_t length);
void store_batch_hit(struct store *s, struct store_batch *b, struct object *o, uint64_t hash);
/* n keys behind the first miss of a prefix, which nobody looks for. */
void store_batch_gap(struct store *s, uint64_t n);
/* Leading hits of a look-up that leaves their objects alone. */
void store_batch_seen(struct store *s, struct store_batch *b, uint32_t hits);
void store_batch_miss(struct store *s, struct store_batch *b, struct span key, uint64_t hash);

/* --- look-ups --- */

uint64_t store_hash(struct span key);
enum { STORE_PREFETCH_MAX = 32 };
/* Brings the cache lines of coming look-ups near; up to so many keys at once pay. hashes[n] is
 * written. */
void store_prefetch(const struct store *s, const struct span *keys, size_t n, uint64_t *hashes);
/* Of hits far from each other also what an access looks at. */
void store_prefetch_single(struct store *s, const struct span *keys, size_t n, uint64_t *hashes);
/* The readable object, or NULL. No access, no lease. An object past its TTL is removed on the
 * way. */
struct object *store_find(struct store *s, struct span key);
/* That version, also while its hosts are away; NULL: it is gone. */
struct object *store_find_version(const struct store *s, struct span key, uint64_t version);
struct object *store_find_hashed(struct store *s, struct span key, uint64_t hash);
/* It is known, and none of its replicas can be read at present. */
bool store_is_away(const struct store *s, struct span key);

enum store_pin { STORE_PIN_NONE, STORE_PIN_SOFT, STORE_PIN_HARD };

struct span store_object_key(const struct object *o);
uint64_t store_object_version(const struct object *o);
uint64_t store_object_size(const struct store *s, const struct object *o);
bool store_object_crc(const struct object *o, uint32_t *crc_p); /* false: it has none */
/* Of one that has none; the bytes must have been held while they were summed. */
void store_object_set_crc(struct store *s, struct object *o, uint32_t crc);
bool store_object_inline(const struct object *o,
                         struct span *value_p); /* true: the value lies in the books */
/* The CRCs per STORE_CRC_BLOCK, NULL when there are none. Borrowed. */
const uint32_t *store_object_crcs(const struct store *s, const struct object *o, size_t *n_p);
/* The replicas that can be read now. */
void store_object_layout(const struct store *s, const struct object *o,
                         struct store_layout *layout_p);
/* All of them, on segments that are DOWN or LEAVING, too. */
void store_object_replicas(const struct store *s, const struct object *o,
                           struct store_layout *layout_p);
/* What it has beside its value. Borrowed until the books change. */
struct store_bonds {
    enum store_pin pin;
    uint64_t pin_ms;         /* of a soft pin; of a hard one its owner */
    uint64_t expire_wall_ms; /* 0: never */
    struct span group;       /* len 0: none */
    bool boundary;
};
void store_object_bonds(const struct store *s, const struct object *o, struct store_bonds *bonds_p);
uint64_t store_object_expire(const struct store *s, const struct object *o); /* wall ms, 0: never */
uint64_t store_object_idle_ms(const struct store *s, const struct object *o);
unsigned store_object_freq(const struct store *s,
                           const struct object *o); /* the policy's counter, 0 where it has none */
bool store_policy_counts(const struct store *s);    /* it has one */
uint32_t store_object_depth(const struct object *o);
uint32_t store_object_request(const struct store *s, const struct object *o);
/* bytes of books it takes */
uint64_t store_object_memory(const struct store *s, const struct object *o);
/* leases and holds on it */
unsigned store_object_refs(const struct store *s, const struct object *o);
struct object *store_random(struct store *s); /* NULL: empty */
/* A flush took it; look-ups do not see it any more, but store_scan_all does. */
bool store_object_flushed(const struct store *s, const struct object *o);
/* SCAN: one step from cursor; fn gets each readable object of one bucket. 0 comes back at the
 * end. */
uint64_t store_scan(struct store *s, uint64_t cursor, void (*fn)(void *arg, struct object *o),
                    void *arg);
/* The same with those that are no longer, or at present not, readable. */
uint64_t store_scan_all(struct store *s, uint64_t cursor, void (*fn)(void *arg, struct object *o),
                        void *arg);

/* --- leases and holds --- */

/* Grants or extends session's lease on o; *granted_ms_p <= ms and <= max_lease_ms. TARN_ELIMIT: too
 * many leases. Inline objects need none: granted all the same, nothing is kept. Renews the soft pin
 * and, in a group, the session's leases on its other members. */
tarn_status store_lease(struct store *s, struct object *o, uint64_t session, uint64_t ms,
                        uint64_t *granted_ms_p);
/* The same for many that session will release together: all that it asked for in the batch of that
 * id, unless another batch did since. The id is one of store_batch_id; 0: none. */
tarn_status store_lease_in(struct store *s, struct object *o, uint64_t session, uint64_t batch,
                           uint64_t ms, uint64_t *granted_ms_p);
uint64_t store_batch_id(struct store *s); /* a new one, of leases or of puts */
/* Whether session has a lease on it. */
bool store_leased(const struct store *s, const struct object *o, uint64_t session);
/* Ends one of which session was not told yet, if it is not over. */
void store_lease_undo(struct store *s, uint64_t session, uint64_t version);
/* Ends session's lease on that version (also of an object that is gone already). false: it had
 * none. guarded: hosts still honour what was granted with it, so that the space is not given to
 * others before the time that was granted is over. */
bool store_release(struct store *s, struct span key, uint64_t session, uint64_t version,
                   bool guarded);
/* The same for all that are still of a batch. Returns for how many; it is not over when budget
 * is. */
uint64_t store_release_batch(struct store *s, uint64_t session, uint64_t batch, bool guarded,
                             unsigned *budget);
/* A reference without a time: in-band replies. The space stays until store_unhold, which any order
 * and any time may do. */
struct store_hold;
struct store_hold *store_hold(struct store *s, struct object *o);
void store_unhold(struct store *s, struct store_hold **hold_p);

/* --- puts --- */

struct store_put_options {
    uint64_t hash; /* store_hash of the key, of a caller that has it; 0: it is computed */
    /* >= 1; as many as there are hosts with room are made, at least one */
    uint32_t replicas;
    const struct span *prefer; /* segment names, NULL: none */
    size_t prefers;
    /* segment names that are tried only when no other has room; unknown ones do not matter */
    const struct span *avoid;
    size_t avoids;
    /* the writer's, for local-first; STORE_HOST_NONE: unknown. (0 is a host: set it.) */
    uint32_t host;
    enum store_pin pin;
    /* of a soft pin; 0: soft_pin_ms. Of a hard one: its owner, 0 for nobody in particular */
    uint64_t pin_ms;
    struct span group;       /* len 0: none */
    bool boundary;           /* group names a boundary: group.c */
    uint64_t expire_wall_ms; /* 0: never */
    bool replace;            /* a current object stays readable until PUTEND */
    bool supersede;          /* SET: cancel another put of the key instead of TARN_EBUSY */
    /* the same for the put with this token only, which its writer gave up; 0: none */
    uint64_t instead;
    /* a mover's: its object is about to leave another master (store_put_under_way). Once its
     * session is closed it gives way to any other put of the key */
    bool moves;
    /* its grants end when they are sealed: space that was not is nobody's before its deadline */
    bool once;
    /* the writer is this process: no time-out; its space is its own until PUTEND or PUTREVOKE */
    bool local;
};

/* Opens a put. On TARN_OK and TARN_EAGAIN *put_p is set; on TARN_EAGAIN room is still being made:
 * call store_put_continue in a later slice until it says otherwise (or store_put_abandon).
 * TARN_EEXISTS (counts as an access), TARN_EBUSY, TARN_ENOSPACE, TARN_EQUOTA (also of hard pins),
 * TARN_EOOM, TARN_ELIMIT, TARN_EINVAL (key length, size, option; also an unknown preferred segment:
 * TARN_ENOSEGMENT). budget is counted down by the work done. */
tarn_status store_put_start(struct store *s, struct store_batch *b, struct span key, uint64_t size,
                            const struct store_put_options *options, uint64_t session,
                            unsigned *budget, struct store_put **put_p);
tarn_status store_put_continue(struct store *s, struct store_put *put, unsigned *budget);
/* Either may say TARN_ELATER, with *put_p as it was: room will come, as ghosts go or a disk takes
 * more. For how long, at least 1. */
uint64_t store_later_ms(const struct store *s);
/* What the last of them waits for, in words. */
const char *store_later_why(const struct store *s);
/* A put whose client went away while room was being made. */
void store_put_abandon(struct store *s, struct store_put **put_p);
/* Of an open put. */
uint64_t store_put_token(const struct store_put *put);
void store_put_layout(const struct store *s, const struct store_put *put,
                      struct store_layout *layout_p);
uint64_t
/* mono ms: put-timeout, to which grants are limited */
store_put_deadline_ms(const struct store_put *put);
uint64_t store_put_session(const struct store_put *put);
bool store_put_once(const struct store_put *put); /* as it was started, and not sealed since */
/* The open put of that key (hash: its store_hash) and token; NULL: there is none. */
struct store_put *store_put_find(const struct store *s, struct span key, uint64_t hash,
                                 uint64_t token);
/* Is there a put of the key that may still become an object? *moves_p: a mover's who is there. */
bool store_put_under_way(const struct store *s, struct span key, bool *moves_p);
/* An open put becomes number `place` of those that one request of its session opened, for
 * store_put_at. id: one of store_batch_id. */
void store_put_join(struct store *s, struct store_put *put, uint64_t id, uint32_t place);
/* The places of such a batch; 0: it is not that session's, or all of its puts are over. */
uint32_t store_put_batch_size(struct store *s, uint64_t session, uint64_t id);
/* The open put at one of them. NULL: it is over, as PUTEND of an old token says that it is. */
struct store_put *store_put_at(struct store *s, uint64_t session, uint64_t id, uint32_t place);
struct span store_put_key(const struct store_put *put); /* lives as long as the put */
/* All its hosts said that they write nothing more by its grants. */
void store_put_sealed(struct store_put *put);
/* Replicas that were asked for and not made: fewer hosts than that have room. */
uint32_t store_put_missing(const struct store_put *put);
/* For puts of up to STORE_INLINE_MAX bytes: the writer hands the value with PUTEND's value, there
 * is no extent. */
bool store_put_is_inline(const struct store_put *put);

/* crc < 0: none. failed: bit i, replica i failed (all failed: the put is revoked, TARN_EIO). crcs:
 * one per STORE_CRC_BLOCK, or NULL. value: of inline puts (others: NULL or empty). TARN_ETOKEN when
 * this is not the token of the open put or of the current object; repeating a successful one is
 * TARN_OK. */
tarn_status store_put_end(struct store *s, struct span key, uint64_t token, int64_t crc,
                          uint32_t failed, const uint32_t *crcs, size_t n_crcs,
                          const struct span *value);
/* The same for one that store_put_find or store_put_at found. */
tarn_status store_put_end_found(struct store *s, struct store_put *put, int64_t crc,
                                uint32_t failed, const uint32_t *crcs, size_t n_crcs,
                                const struct span *value);
tarn_status store_put_revoke(struct store *s, struct span key, uint64_t token);

/* Writes a value of up to STORE_INLINE_MAX bytes in one step (SET and friends). */
tarn_status store_set_inline(struct store *s, struct store_batch *b, struct span key,
                             struct span value, uint32_t crc,
                             const struct store_put_options *options, unsigned *budget);

/* --- more and fewer replicas --- */

/* A copy in the making: room for one more memory replica of an object. Somebody fills it from
 * another replica.
 *
 *   store_copy_start ─┬─ TARN_EAGAIN ─> store_copy_continue ... ─┬─> open ─> store_copy_end
 *                     └──────────────────────────────────────────┘ */
struct store_copy_options {
    /* STORE_SEGMENT_ANY: on a host that has no replica of it, by the placement strategy */
    uint32_t segment;
    uint32_t host; /* with STORE_SEGMENT_ANY: tried first; STORE_HOST_NONE */
    /* a MOVE: a replica in this segment does not keep the copy from its host; STORE_SEGMENT_ANY */
    uint32_t from;
    bool evict; /* may evict for it; else free space only */
    /* Nobody reads it yet: when somebody asked for it ahead, 0: it is not so. It gets free space,
     * or that of what is next to go and was not used since; figures tell whether it was read. */
    uint64_t ahead_ms;
    /* Where the policy knows what objects are worth, nothing goes for it that is worth more. */
    bool by_worth;
};
#define STORE_SEGMENT_ANY UINT32_MAX
struct store_copy;
/* TARN_ENOTFOUND: no such version. TARN_EEXISTS: its host has one (or STORE_REPLICAS_MAX are
 * there). TARN_ENOSPACE. TARN_ENOSEGMENT: not a memory segment that gives out space. */
tarn_status store_copy_start(struct store *s, struct span key, uint64_t version,
                             const struct store_copy_options *options, unsigned *budget,
                             struct store_copy **copy_p);
tarn_status store_copy_continue(struct store *s, struct store_copy *copy,
                                unsigned *budget); /* nulls nothing; on an error the copy is gone */
void store_copy_layout(const struct store *s, const struct store_copy *copy,
                       struct store_replica *replica_p);
/* ok: its bytes are whole; the replica is readable from now on. !ok, or the object is gone
 * meanwhile (TARN_ENOTFOUND), or its segment is leaving (TARN_ENOSEGMENT): the space is free again,
 * so nobody may be writing to it any more. Also ends one that is still making room. */
tarn_status store_copy_end(struct store *s, struct store_copy **copy_p, bool ok);

/* Takes away the replica of o in that segment; its space waits for the leases there are now.
 * TARN_ENOTFOUND: has none there. TARN_EBUSY: it is the last one that can be read (force: then the
 * object goes). */
tarn_status store_replica_drop(struct store *s, struct object *o, uint32_t segment, bool force);
/* The host has a copy of o on its ssd or file segment. TARN_EEXISTS: known there already;
 * TARN_ELIMIT: too many replicas. */
tarn_status store_far_add(struct store *s, struct object *o, uint32_t segment, uint64_t offset);
/* The host has no copy any more, or will have none soon. No far_gone event. An object with no
 * replica left goes. false: not known. */
bool store_far_drop(struct store *s, struct span key, uint64_t version, uint32_t segment);
/* A host found this on its disk again. Known under that version: the replica is noted (again). Key
 * unknown: it becomes a far object with a version of its own. Key known with another version, or
 * this one superseded: TARN_EEXISTS, the host may forget it. *version_p: the version it has now.
 * crc: as in store_put_end. */
tarn_status store_far_offer(struct store *s, struct span key, uint64_t size, int64_t crc,
                            const uint32_t *crcs, size_t n_crcs, uint64_t version, uint32_t segment,
                            uint64_t offset, uint64_t *version_p);
/* Versions of key up to this one are not taken from hosts that offer them, unless the books know
 * them still. Far replicas that go see to it by themselves; this is for copies whose host has not
 * said whether they were made. */
void store_far_supersede(struct store *s, struct span key, uint64_t version);
/* --- waiting for a copy on a disk: what has none is not evicted while the disk keeps up (await.c)
 * --- */

#define STORE_TAKEN_MAX 512u
/* What lies in a memory segment is copied to that far segment; STORE_SEGMENT_ANY: to none. With
 * copies_all whatever is put there waits from its PUTEND on. */
void store_segment_copies(struct store *s, uint32_t memory, uint32_t far);
/* o waits as well. false: it need not (it has a copy, a TTL, no disk beside it), or does
 * already. */
bool store_await(struct store *s, struct object *o);
bool store_object_awaits(const struct object *o);
/* The next one to be copied to far: of the oldest request first, in the order of its puts. It goes
 * on waiting, until store_far_add. At most STORE_TAKEN_MAX should be under way. NULL: none. */
struct object *store_await_take(struct store *s, uint32_t far);
bool store_await_waiting(struct store *s, uint32_t far); /* there are some to be taken */
/* The copy came to nothing for now: it is the next to be taken; or: it will never be made, and o
 * may be evicted. */
void store_await_again(struct store *s, struct object *o, uint32_t far);
void store_await_end(struct store *s, struct object *o);

bool store_object_in_memory(
    const struct store *s,
    const struct object *o); /* has a memory replica that can be read, or lies in the books */
/* Accesses while it had no memory replica, 255 at most. */
unsigned store_object_far_hits(const struct object *o);
/* One more replica of it in memory is worth more there than who is next to go, or nobody has to.
 * otherwise: the answer where the policy knows no worth. */
bool store_object_worth_memory(struct store *s, const struct object *o, bool otherwise);
/* What would be lost with its copy on a disk, to be compared with that of others there: expected
 * uses for each request, times bytes; < 0: the policy does not know. */
float store_object_far_loss(struct store *s, const struct object *o);

/* --- removal, TTL, pins, quotas, eviction --- */

/* Whether it was readable. One that is not, because its hosts are away, goes as well: it does not
 * come back with them. */
bool store_remove(struct store *s, struct span key);
void store_remove_object(struct store *s, struct object *o);
/* All objects are gone at once for look-ups; store_background sweeps the space. */
void store_flush(struct store *s);
bool store_flush_pending(const struct store *s);

void store_expire(struct store *s, struct object *o, uint64_t wall_ms); /* 0: never */
/* max_memory is less than books without a single object take: no put can succeed, whatever is
 * evicted. */
bool store_takes_nothing(const struct store *s);
/* While keep is set, objects whose time is over are not found, but nothing is removed by itself,
 * and nothing is told (CLIENT PAUSE). */
void store_keep_expired(struct store *s, bool keep);

/* ms as pin_ms above. TARN_ENOTFOUND: no such key. TARN_EQUOTA: hard pins have their share; nothing
 * has changed. An object that is hard-pinned already keeps its owner. */
tarn_status store_pin(struct store *s, struct span key, enum store_pin kind, uint64_t ms);

/* The share that a hard pin would go beyond. */
struct store_pin_share {
    bool of_owner;              /* hard_pin_user_ratio; else hard_pin_ratio */
    bool of_books;              /* of max_memory; else of the pool */
    uint64_t limit, used, more; /* bytes */
};
/* Of a put of so many bytes in memory, or (STORE_PIN_OBJECT) of the object that key has. false:
 * none, it may be pinned. */
#define STORE_PIN_OBJECT UINT64_MAX
bool store_pin_refused(struct store *s, struct span key, uint64_t bytes, uint64_t owner,
                       struct store_pin_share *share_p);

struct store_quota {
    struct span prefix;
    uint64_t limit, used, objects;
    bool counting; /* older objects are still being counted in */
};
tarn_status store_quota_set(struct store *s, struct span prefix,
                            uint64_t bytes); /* TARN_ELIMIT: 255 are there */
bool store_quota_del(struct store *s, struct span prefix);
bool store_quota_get(const struct store *s, struct span prefix, struct store_quota *quota_p);
/* The one that key counts against; false: none. */
bool store_quota_of(const struct store *s, struct span key, struct store_quota *quota_p);
size_t store_quota_list(const struct store *s, struct store_quota *quotas,
                        size_t cap); /* returns how many there are */

struct store_evict_job {
    uint64_t want_bytes;     /* 0: any */
    uint64_t want_objects;   /* 0: any; both 0: nothing to do */
    uint64_t objects, bytes; /* freed so far */
};
/* Evicts in policy order. true: done (also when nothing more may be evicted). */
bool store_evict_step(struct store *s, struct store_evict_job *job, unsigned *budget);
/* Evicts one object unless leased, held or hard-pinned. false: it may not. *bytes_p: what its space
 * held. */
bool store_evict_object(struct store *s, struct object *o, uint64_t *bytes_p);

/* Evicts what is beyond max_objects and max_memory, after they were lowered: else only puts look.
 * Also what could not go then, under leases, under noeviction, while these books followed others.
 * true: more to do. */
bool store_shrink(struct store *s, unsigned *budget);

/* TARN_EINVAL: unknown name. TARN_EBUSY: the last change is still migrating objects. */
tarn_status store_set_policy(struct store *s, const char *name);
const char *store_policy_name(const struct store *s);
bool store_policy_keeps(const struct store *s); /* noeviction */

/* --- sessions --- */

uint64_t store_session_leases(const struct store *s, uint64_t session); /* it holds */
/* The control connection is gone: its leases run out by themselves, its open puts at their
 * put-timeout. */
void store_session_closed(struct store *s, uint64_t session);
/* The host confirms that this session can no longer write anywhere: its unfinished space is
 * free. */
void store_session_fenced(struct store *s, uint64_t session);
/* For how long a grant of its puts that are under way, or over without an end, may still be
 * good. */
uint64_t store_session_grants_ms(const struct store *s, uint64_t session);

/* --- how much there is; what else is counted is in figures.h --- */

/* What is in use: max_memory counts this, so that what goes makes room wherever it lay. */
uint64_t store_memory(const struct store *s);
/* Of that, what lies past the allocator. */
uint64_t store_mapped_memory(const struct store *s);
uint64_t store_evictions(const struct store *s); /* evicted_objects of store_stats */
uint64_t store_count(const struct store *s);     /* readable objects */
/* Walks everything and asserts what must hold; tests and DEBUG only. */
void store_check(const struct store *s);

#endif
