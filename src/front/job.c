/* Commands that need more than one slice, or wait. Runnable ones take turns within one work quota
 * per turn of the loop; sleeping ones lie in a timing wheel or wait for job_wake only. */
#include "front/client.h"

#include <stdlib.h>
#include "base/assert.h"
#include "front/effects.h"
#include "front/latency.h"
#include "front/stats.h"
#include "config/config.h"

static TAILQ_HEAD(jobs, job) runnable = TAILQ_HEAD_INITIALIZER(runnable);
static struct wheel *timers;
static size_t count, sleeping;
static struct job *stepping;  /* its step is running; it says itself what comes next */
static unsigned *step_budget; /* of stepping */

void jobs_init(void) {
    timers = wheel_create(turn.mono_ms);
}
void jobs_deinit(void) {
    wheel_destroy(&timers);
}
bool jobs_any_runnable(void) {
    return !TAILQ_EMPTY(&runnable);
}
size_t jobs_count(void) {
    return count;
}
size_t jobs_sleeping(void) {
    return sleeping;
}
unsigned job_quota(void) {
    return (unsigned)config->loop_work_quota;
}

uint64_t jobs_next_ms(uint64_t limit_ms) {
    return wheel_next_ms(timers, turn.mono_ms, limit_ms);
}

static void job_enqueue(struct job *job) {
    job->queued = true;
    TAILQ_INSERT_TAIL(&runnable, job, link);
}

static void job_dequeue(struct job *job) {
    job->queued = false;
    TAILQ_REMOVE(&runnable, job, link);
}

/* After a slice: into the queue or to sleep. */
static void job_place(struct job *job) {
    if (job->runnable) {
        wheel_remove(timers, &job->timer);
        job_enqueue(job);
        return;
    }
    sleeping++;
    if (job->deadline_ms != 0)
        wheel_set(timers, &job->timer, job->deadline_ms);
    else
        wheel_remove(timers, &job->timer);
}

static void job_end(struct client *c, struct job *job) {
    struct job *outer = job->outer;
    wheel_remove(timers, &job->timer);
    /* What it gives back may be what another part of it waits for: job_wake leaves it alone. */
    job->runnable = true;
    c->job = outer;
    if (job->close != NULL) job->close(c, job);
    free(job);
    if (outer != NULL) {
        if (outer != stepping) job_wake(outer);
        return;
    }
    count--;
    if (UNLIKELY(c->io->late.len > 0)) client_flush_later(c);
}

/* A step may start a job of the same client: the commands within EXEC do. */
static bool job_step_run(struct client *c, struct job *job, unsigned *budget) {
    TARN_ASSERT(stepping == job->outer);
    unsigned *outer_budget = step_budget;
    stepping = job;
    step_budget = budget;
    bool done = job->step(c, job, budget);
    stepping = job->outer;
    step_budget = outer_budget;
    return done;
}

static void job_enter(struct client *c, struct job *job) {
    TARN_ASSERT(c->job == NULL || c->job == stepping);
    job->client = c;
    job->outer = c->job;
    job->timer = (struct wheel_node){NULL, NULL, 0};
    job->queued = job->stalled = false;
    c->job = job;
    if (job->outer == NULL) count++;
}

void job_start(struct client *c, struct job *job) {
    job_enter(c, job);
    if (job->runnable) {
        unsigned own = job_quota(), *budget = job->outer != NULL ? step_budget : &own;
        if (job_step_run(c, job, budget)) {
            job_end(c, job);
            return;
        }
    }
    stats.jobs_started++;
    job_place(job);
}

void job_run(struct client *c, struct job *job, size_t size) {
    unsigned own = job_quota(), *budget = c->job != NULL ? step_budget : &own;
    unsigned outer = c->io->flags & CLIENT_ANSWERS;
    c->io->flags |= CLIENT_ANSWERS;
    bool done = job->step(c, job, budget);
    c->io->flags = (c->io->flags & ~CLIENT_ANSWERS) | outer;
    if (!done) {
        struct job *kept = xmemdup(job, size);
        job_enter(c, kept);
        stats.jobs_started++;
        job_place(kept);
    } else if (job->close != NULL) {
        job->close(c, job);
    }
}

bool job_look_again(struct job *job, uint64_t ms) {
    job->runnable = false;
    job->polls = true;
    job->deadline_ms = turn.mono_ms + ms;
    return false;
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
    job_enqueue(job);
}

void job_cancel(struct client *c) {
    for (struct job *job; (job = c->job) != NULL;) {
        if (job->queued)
            job_dequeue(job);
        else if (!job->runnable)
            sleeping--;
        job_end(c, job);
    }
}

void job_output_drained(struct client *c) {
    if (c->job != NULL && c->job->stalled) job_wake(c->job);
}

bool job_awaits(const struct client *c) {
    const struct job *job = c->job;
    return job != NULL && (job->outer == NULL || job->outer->wraps) && !job->runnable &&
           !job->stalled && !job->polls && job->deadline_ms != 0;
}

bool job_unblock(struct client *c, bool error) {
    struct job *job = c->job;
    if (!job_awaits(c)) return false;
    if (!error) {
        job->deadline_ms = turn.mono_ms;
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

static void job_slice(struct job *job, unsigned *budget) {
    struct client *c = job->client;
    uint64_t start = core_stamp(), noted = effects_noted;
    bool off = (c->io->flags & (CLIENT_REPLY_OFF | CLIENT_REPLY_SKIP)) != 0;
    stats.job_slices++;
    client_output_begin(c);
    client_output_mark(c);
    c->io->flags |= CLIENT_RUNNING;
    stepping = job->outer; /* which sleeps */
    bool done = job_step_run(c, job, budget);
    stepping = NULL;
    c->io->flags &= ~CLIENT_RUNNING;
    uint64_t ns = core_stamp() - start;
    latency_note(c->cmd->flags & CMD_FAST ? LATENCY_FAST_COMMAND : LATENCY_COMMAND, ns);
    if (c->job == job) c->io->job_ns += ns;
    if (effects_noted != noted && !(c->cmd->flags & CMD_READONLY)) c->io->flags |= CLIENT_CHANGED;
    if (c->io->flags & CLIENT_CHANGED) client_unwritten_mark(c); /* in an earlier slice, perhaps */
    if (done && job->outer != NULL) {
        if (!job->outer->wraps) dispatch_queued_done(c);
        job_end(c, job);
    } else if (done) {
        job_end(c, job);
        dispatch_job_done(c);
        client_request_done(c);
        client_ready(c);
    } else {
        job_place(job);
    }
    if (off) client_output_rewind(c); /* may wake the job: what it lent for the reply comes back */
    if (done) client_push_due(c);
    client_output_end(c);
}

/* Replies that are not being read must not pile up; but an array whose header waits for its end has
 * to get there. */
static bool job_must_wait(const struct client *c) {
    const struct client_out *o = &c->io->out;
    if (client_unsent(c) <= config->output_pause) return false;
    for (unsigned i = o->first_insert; i < o->inserts; i++)
        if (o->insert[i].pending) return false;
    return true;
}

void jobs_run(void) {
    unsigned budget = 64; /* the wheel's own steps */
    bool more;
    for (struct wheel_node *n; (n = wheel_pop(timers, turn.mono_ms, &budget, &more)) != NULL;)
        job_wake(CONTAINER_OF(n, struct job, timer));
    unsigned left = job_quota(), share = left / 4 + 1;
    const struct job *last = TAILQ_LAST(&runnable, jobs);
    for (struct job *job; left > 0 && (job = TAILQ_FIRST(&runnable)) != NULL;) {
        bool end_of_round = job == last;
        job_dequeue(job);
        if (job_must_wait(job->client)) {
            job->runnable = false;
            job->stalled = true;
            sleeping++;
        } else {
            unsigned mine = share < left ? share : left, before = mine;
            job_slice(job, &mine);
            unsigned used = before - mine;
            left -= used < left ? (used > 0 ? used : 1) : left;
        }
        if (end_of_round) break;
    }
}
