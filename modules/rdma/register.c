/* Threads for what takes long: pinning gigabytes. One thread takes jobs in order; what a job does
 * to many chunks at a time is spread over some more, for as long as it takes. */
#include <sys/eventfd.h>

#include "base/log.h"
#include "base/thread.h"
#include "rdma/rdma.h"

static struct crew crew; /* from rdma_jobs_begin to rdma_jobs_end */

/* --- many at once --- */

struct share {
    void (*fn)(void *arg, size_t i);
    void *arg;
    size_t n, next; /* atomic */
};

static void *work_share(void *arg) {
    struct share *s = arg;
    for (size_t i; (i = __atomic_fetch_add(&s->next, 1, __ATOMIC_RELAXED)) < s->n;)
        s->fn(s->arg, i);
    return NULL;
}

void rdma_parallel(void (*fn)(void *arg, size_t i), void *arg, size_t n) {
    struct share s = {.fn = fn, .arg = arg, .n = n};
    thread_run_together((unsigned)min_u64(n, rdma_options.register_threads), "tarn-register",
                        work_share, &s);
}

/* --- one after another --- */

/* Under the crew's lock: who finds it done may free it, and close the descriptor. */
static void job_kick(void *arg, struct crew_job *job) {
    eventfd_write(CONTAINER_OF(job, struct rdma_job, crew)->kick_fd, 1);
}

void rdma_jobs_begin(void) {
    int error = crew_start(&crew, "tarn-rdma-jobs", 1, job_kick, NULL);
    if (error != 0)
        log_warning("RDMA: no thread for registering memory (%s): it is done at once, and waited "
                    "for",
                    strerror(error));
}

void rdma_job_start(struct rdma_job *t) {
    if (crew.n_threads > 0) {
        crew_add(&crew, &t->crew);
        return;
    }
    t->crew.run(&t->crew);
    t->crew.state = CREW_DONE;
    job_kick(NULL, &t->crew);
}

bool rdma_job_done(const struct rdma_job *t) {
    return crew_job_state(&crew, &t->crew) == CREW_DONE;
}

static bool is_job(const struct crew_job *job, const void *arg) {
    return job == arg;
}

void rdma_job_stop(struct rdma_job *t) {
    if (crew_cancel(&crew, is_job, &t->crew) == 0) crew_wait(&crew, &t->crew);
}

void rdma_jobs_end(void) {
    crew_stop(&crew);
}

void rdma_jobs_forget(void) {
    crew = (struct crew){0};
}
