/* What the files of this room share. */
#ifndef TARN_HOST_HOST_INTERNAL_H
#define TARN_HOST_HOST_INTERNAL_H

#include <pthread.h>

#include "base/htab.h"
#include "host/host.h"
#include "pool/pool.h"
#include "transport/transport.h"

#define HOST_MAGIC        0x484f5354u /* "HOST" */
#define HOST_SEGMENTS_MAX 64u
#define HOST_PATHS_MAX    4u

/* Key and epoch grants are valid under. Data threads read it without a lock: a change makes a new one, and the old ones stay
 * until the host goes (one per failover). */
struct host_authority {
    struct host_authority *older;
    uint8_t key[GRANT_KEY_SIZE];
    uint32_t master_epoch;
};

struct host_path { /* one transport's passive side */
    const struct transport_ops *ops;
    struct transport_domain *domain;
    struct transport_listener *listener;
    struct transport_memory *memory[HOST_SEGMENTS_MAX];
};

struct host_segment {
    struct pool *pool;
    uint32_t id;
    uint32_t epoch;
};

struct host_fence {   /* asked for, not yet true */
    uint64_t session; /* 0: all below below_epoch */
    uint32_t below_epoch;
    uint32_t paths_done; /* bit per path */
};

/* Everything a grant is checked against. The control thread writes, data threads read. */
struct host_gate {
    struct host_segment segments[HOST_SEGMENTS_MAX]; /* fixed from host_start on */
    unsigned n_segments;
    struct host_authority *authority; /* atomic */
    int64_t clock_offset_ms;          /* atomic */
    pthread_mutex_t authority_lock;   /* between writers */

    /* Sessions that were cut off. An entry outlives one change of the master epoch, so that a data thread which still
     * works by the old authority finds it; grants of the epoch before that are refused for their epoch. */
    pthread_rwlock_t fenced_lock;
    struct htab fenced;
    size_t n_fenced; /* atomic copy of fenced.count */
};

void host_gate_init(struct host_gate *g);
void host_gate_deinit(struct host_gate *g);
struct host_segment *host_gate_segment(const struct host_gate *g, uint32_t id);
void host_gate_set_authority(struct host_gate *g, const uint8_t key[GRANT_KEY_SIZE], uint32_t master_epoch);
void host_gate_fence(struct host_gate *g, uint64_t session);
/* For struct transport_gate; arg is the host_gate. */
enum grant_verdict host_gate_check(void *arg, const uint8_t grant[GRANT_SIZE],
                                   const struct grant_extent *extent, enum grant_op want, uint64_t sub_offset,
                                   uint64_t sub_length, struct grant *g_p, void **addr_p);
enum grant_verdict host_gate_recheck(void *arg, const struct grant *g, const struct grant_extent *extent);

struct host {
    uint32_t magic;
    struct host_gate gate;
    struct host_path paths[HOST_PATHS_MAX];
    unsigned n_paths;
    int epoll_fd, kick_fd;
    bool started;

    char **uris; /* of the data port */
    size_t n_uris;
    char *shm_uri;
    unsigned threads, max_connections, shm_mode;
    uint64_t idle_timeout_ms;
    void *arg;
    void (*fenced)(void *arg, uint64_t session);
    void (*fenced_before)(void *arg, uint32_t master_epoch);

    struct host_fence *fences;
    size_t n_fences, cap_fences;
};

#endif
