/* Threads that move bytes for an owner who must not block: each has engines; jobs go in from the
 * owner's thread and come back there. Used by the server for in-band values that live elsewhere,
 * and for checks of remote replicas.
 *
 *   mover_submit ─> queue (bounded) ─> a thread: engine_run ─> mover_poll ─> done
 *                      └── mover_cancel ────────────────────────^
 *
 * A host that does not answer keeps a thread waiting until the jobs' deadline, but never all of
 * them: one thread is left for the others. Small jobs that go to the same host share an engine_run.
 *
 * Every session has engines of its own, so that connections and mappings are never shared between
 * sessions and one of them can be fenced without harm to the rest. What is not used for
 * idle_close_ms of the engine's configuration is closed. */
#ifndef TARN_ENGINE_MOVER_H
#define TARN_ENGINE_MOVER_H

#include "base/queue.h"
#include "engine/engine.h"

struct mover;

struct mover_job {
    /* One transfer. parts, grants, iov and crcs are borrowed until done. */
    struct engine_op op;
    /* Whose grants these are; not 0, except for jobs with file_path. */
    uint64_t session;
    /* What the engine must know of each segment in op.parts, by part; borrowed like the rest. NULL
     * for jobs with file_path. */
    const struct engine_segment *const *segments;
    /* Instead of an extent: this file, from file_offset on (reads only; TARN_ENOTFOUND, TARN_EIO,
     * TARN_ECORRUPT where it is too short). */
    const char *file_path;
    /* NULL, or its directory: where that is missing the file is not to be reached, TARN_EIO */
    const char *file_root;
    uint64_t file_offset;
    uint64_t deadline_boot_ms;
    /* From mover_poll. op.status and the rest of the results are set. The job may be freed or
     * submitted again in it. */
    void (*done)(struct mover_job *job);
    void *arg;
    /* private */
    TAILQ_ENTRY(mover_job) link;
    uint64_t bytes;
    /* zero-initialised is right */
    enum { MOVER_IDLE, MOVER_QUEUED, MOVER_RUNNING, MOVER_DONE } state;
};

struct mover_config {
    unsigned threads; /* started with the first job */
    size_t queue;     /* jobs accepted and not yet done */
    struct engine_config engine;
};
#define MOVER_THREADS_MAX 64u

tarn_status mover_create(const struct mover_config *config, struct mover **mover_p);
/* Waits for what runs; what is queued is done with TARN_ECANCELED, from inside. */
void mover_destroy(struct mover **mover_p);
/* TARN_EAGAIN: the queue is full. TARN_ECLOSED: the mover is being destroyed. TARN_ENOMEM: no
 * thread could be started. */
tarn_status mover_submit(struct mover *m, struct mover_job *job);
/* Its done still comes, soon: TARN_ECANCELED if it had not started. */
void mover_cancel(struct mover *m, struct mover_job *job);
/* Nothing more comes for this session: its connections are closed and its writable mappings given
 * up, so that hosts can fence it. Soon, not at once; none of its jobs may be queued or running. */
void mover_session_end(struct mover *m, uint64_t session);
/* Readable when mover_poll has something to do. */
int mover_event_fd(const struct mover *m);
void mover_poll(struct mover *m);

struct mover_stats {
    uint64_t queued, running, done, failed, refused, bytes_read, bytes_written;
    uint64_t batches;  /* engine_runs: done / batches jobs went together */
    uint64_t sessions; /* engines there are */
};
void mover_get_stats(struct mover *m, struct mover_stats *stats_p);

#endif
