/* Commands that need more than one slice, or wait. Runnable ones take turns within one work quota per turn of the loop;
 * sleeping ones lie in a timing wheel or wait for job_wake only. */
#include "cmd/client.h"

#include <stdlib.h>
#include "base/assert.h"
#include "cmd/stats.h"

static struct job *head, *tail; /* runnable */
static struct wheel *timers;
static size_t count, sleeping;
static struct job *stepping; /* its step is running; it says itself what comes next */

void jobs_init(void) {
    timers = wheel_create(server.mono_ms);
}
void jobs_deinit(void) {
    wheel_destroy(&timers);
}
bool jobs_any_runnable(void) {
    return head != NULL;
}
size_t jobs_count(void) {
    return count;
}
size_t jobs_sleeping(void) {
    return sleeping;
}
unsigned job_quota(void) {
    return (unsigned)server.config->loop_work_quota;
}

uint64_t jobs_next_ms(uint64_t limit_ms) {
    return wheel_next_ms(timers, server.mono_ms, limit_ms);
}

static void enqueue(struct job *job) {
    job->queued = true;
    job->next = NULL;
    job->prev = tail;
    if (tail != NULL)
        tail->next = job;
    else
        head = job;
    tail = job;
}

static void dequeue(struct job *job) {
    job->queued = false;
    if (job->prev != NULL)
        job->prev->next = job->next;
    else
        head = job->next;
    if (job->next != NULL)
        job->next->prev = job->prev;
    else
        tail = job->prev;
    job->prev = job->next = NULL;
}

/* After a slice: into the queue or to sleep. */
static void place(struct job *job) {
    if (job->runnable) {
        wheel_remove(timers, &job->timer);
        enqueue(job);
        return;
    }
    sleeping++;
    if (job->deadline_ms != 0)
        wheel_set(timers, &job->timer, job->deadline_ms);
    else
        wheel_remove(timers, &job->timer);
}

static void end(struct client *c, struct job *job) {
    wheel_remove(timers, &job->timer);
    count--;
    c->job = NULL;
    job->destroy(c, job);
}

static bool step(struct client *c, struct job *job, unsigned *budget) {
    TARN_ASSERT(stepping == NULL);
    stepping = job;
    bool done = job->step(c, job, budget);
    stepping = NULL;
    return done;
}

void job_start(struct client *c, struct job *job) {
    TARN_ASSERT(c->job == NULL);
    job->client = c;
    job->prev = job->next = NULL;
    job->timer = (struct wheel_node){NULL, NULL, 0};
    job->queued = job->stalled = false;
    c->job = job;
    count++;
    stats.jobs_started++;
    if (job->runnable) {
        unsigned budget = job_quota();
        if (step(c, job, &budget)) {
            end(c, job);
            return;
        }
    }
    place(job);
}

void job_wake(struct job *job) {
    if (job->runnable) return;
    if (job == stepping) {
        job->runnable = true;
        return;
    }
    sleeping--;
    job->stalled = false;
    job->runnable = true;
    wheel_remove(timers, &job->timer);
    enqueue(job);
}

void job_cancel(struct client *c) {
    struct job *job = c->job;
    if (job == NULL) return;
    if (job->queued)
        dequeue(job);
    else if (!job->runnable)
        sleeping--;
    end(c, job);
}

void job_output_drained(struct client *c) {
    if (c->job != NULL && c->job->stalled) job_wake(c->job);
}

bool job_unblock(struct client *c, bool error) {
    struct job *job = c->job;
    if (job == NULL || job->runnable || job->stalled || job->deadline_ms == 0) return false;
    if (!error) {
        job->deadline_ms = server.mono_ms;
        job_wake(job);
        return true;
    }
    job_cancel(c);
    client_output_begin(c);
    reply_error(c, "-UNBLOCKED client unblocked via CLIENT UNBLOCK");
    dispatch_job_done(c);
    client_request_done(c);
    client_output_end(c);
    client_ready(c);
    return true;
}

static void slice(struct job *job, unsigned *budget) {
    struct client *c = job->client;
    uint64_t start = core_stamp();
    bool off = (c->io->flags & (CLIENT_REPLY_OFF | CLIENT_REPLY_SKIP)) != 0;
    stats.job_slices++;
    client_output_begin(c);
    client_output_mark(c);
    c->io->flags |= CLIENT_RUNNING;
    bool done = step(c, job, budget);
    c->io->flags &= ~CLIENT_RUNNING;
    if (off) client_output_rewind(c);
    c->io->job_ns += core_stamp() - start;
    if (done) {
        end(c, job);
        dispatch_job_done(c);
        client_request_done(c);
        client_ready(c);
    } else {
        place(job);
    }
    client_output_end(c);
}

/* Replies that are not being read must not pile up; but an array whose header waits for its end has to get there. */
static bool must_wait(const struct client *c) {
    const struct client_out *o = &c->io->out;
    if (client_unsent(c) <= server.config->output_pause) return false;
    for (unsigned i = o->first_insert; i < o->inserts; i++)
        if (o->insert[i].pending) return false;
    return true;
}

void jobs_run(void) {
    unsigned budget = 64; /* the wheel's own steps */
    bool more;
    for (struct wheel_node *n; (n = wheel_pop(timers, server.mono_ms, &budget, &more)) != NULL;)
        job_wake(CONTAINER_OF(n, struct job, timer));
    unsigned left = job_quota(), share = left / 4 + 1;
    struct job *last = tail;
    while (head != NULL && left > 0) {
        struct job *job = head;
        bool end_of_round = job == last;
        dequeue(job);
        if (must_wait(job->client)) {
            job->runnable = false;
            job->stalled = true;
            sleeping++;
        } else {
            unsigned mine = share < left ? share : left, before = mine;
            slice(job, &mine);
            unsigned used = before - mine;
            left -= used < left ? (used > 0 ? used : 1) : left;
        }
        if (end_of_round) break;
    }
}
