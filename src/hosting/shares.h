/* A node of a pool of many masters: for each of them a host of its own (hosting.h), which has a
 * share of the node's memory and disks, its own data port and its own session, and knows nothing of
 * the others. A master that is away costs its share and nothing else, and what is fenced, leased
 * and counted is as with one master.
 *
 *   tarn_host (front) ── shares ──┬── pool    a client, which knows the map of the masters
 *                                 ├── chunks  which share has each
 *                                 ├── share ── tarn_host ── one master
 *                                 └── thread  moves chunks, follows the map (balance.c)
 *
 * A chunk that changes hands:
 *
 *   at one share ─> MOVE_TAKING ─(emptied, unmapped)─> nobody's ─> MOVE_ADDING ─> at another
 *
 * A disk that gets smaller or larger is unmounted for a moment (MOVE_DISK); first some get smaller,
 * so that there is room for those that have none yet.
 *
 * One at a time. A move at a share whose master is away goes on when that is back, and holds up
 * nobody meanwhile.
 *
 * Threads: balance.c's owns all of it while it runs. Callers see share.host under the mutex.
 * Locks: shares.mutex, then those of a host; view.h's come after both. */
#ifndef TARN_HOSTING_SHARES_H
#define TARN_HOSTING_SHARES_H

#include "client/shards.h"
#include "hosting/chunks.h"
#include "hosting/hosting.h"

struct node_share {
    struct slot_shard row;  /* of the map; name "": a free place */
    int slots;              /* that it has; -1: none, it is not in the map */
    struct tarn_host *host; /* NULL: none yet. Changed under the mutex */
    struct tarn_host *ends; /* it was, until its shard left the map: readers have a while yet */
    struct hosting_view *view;
    uint64_t retry_ms; /* host NULL: not before */
    bool left;         /* its master let go of the node: it gets nothing more */
    /* balance.c's */
    struct hosting_standing now; /* this turn's */
    enum { MOVE_NONE, MOVE_TAKING, MOVE_ADDING, MOVE_DISK } move;
    uint64_t disk, disk_to; /* bytes of a disk that it has; is to have */
    unsigned chunk, to;     /* that moves; who is to have what is taken, CHUNK_FREE: anybody */
};

struct shares {
    struct tarn_client *pool;
    tarn_options options; /* with user and password of the URL; strings owned */
    tarn_host_options o;  /* strings and arrays owned */
    struct hosting_view *view;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool stopping, draining; /* under mutex */
    bool wanted;             /* ... some master of the map has not let go of the node */
    pthread_t thread;
    bool thread_runs;
    struct shard_map *map;     /* that shares go by */
    struct node_chunks chunks; /* shard: the place of the share */
    struct node_share share[SLOT_SHARDS_MAX];
    /* balance.c's */
    struct rng rng;
    uint64_t next_ms, asked_ms; /* a chunk may move by need; the map was asked for */
    uint64_t free_ms;           /* chunks that are nobody's are given out */
    uint64_t disk_ms;           /* disks change again */
};

/* Opens the host of a share, which has what it is to begin with; it tries to join from now on. */
tarn_status share_begin(struct shares *s, unsigned i);
/* Has its host end as tarn_host_close does: asks it to, and waits for it. */
void share_end_begin(struct shares *s, unsigned i, bool keep, uint64_t deadline);
void share_end(struct shares *s, unsigned i);
/* What each share has of the disk. */
uint64_t share_disk_bytes(const struct shares *s);
/* Where it has it: the directory is made; for free. NULL: it cannot be, as the log says. */
char *share_disk_make(const struct shares *s, const char *shard);
/* What it had of the disk, once it is ended. */
void share_disk_remove(const struct shares *s, const char *shard);
char *share_url(const struct shares *s, const struct slot_shard *row);

/* --- balance.c --- */

/* What is known of the need of one share; bytes of memory. */
struct share_need {
    bool up;
    unsigned chunks;
    uint64_t bytes, used;
    int64_t idle_ms; /* its master evicts what was not used for so long; -1: it evicts nothing */
};
/* Which gives a chunk to which. false: it is well as it is. */
bool need_choose(const struct share_need need[SLOT_SHARDS_MAX], unsigned *from_p, unsigned *to_p);
tarn_status balance_start(struct shares *s);
void balance_stop(struct shares *s);

/* --- shares.c --- */

/* pool: connected, with a map; taken. */
tarn_status shares_open(struct tarn_client *pool, const struct hosting_plan *plan,
                        struct tarn_host **host_p);
void shares_close(struct tarn_host **front_p, bool keep, uint64_t timeout_ms);
void shares_get_info(struct shares *s, tarn_host_info *info);
bool shares_wait(struct shares *s, uint64_t timeout_ms);
void shares_drain(struct shares *s);
tarn_status shares_reload_tls(struct shares *s);

#endif
