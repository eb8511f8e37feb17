#include "inband/later.h"

#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "base/errors.h"
#include "base/log.h"
#include "cluster/cluster.h"
#include "front/above.h"
#include "front/client.h"
#include "config/config.h"
#include "front/families.h"
#include "front/table.h"

#define LOOK_MS 50u /* those who wait look again so often, if nobody wakes them */

static LIST_HEAD(, later) sleepers;
static struct later_figures figures;

/* --- what the books say --- */

tarn_status room_status(tarn_status status) {
    return status == TARN_ENOSPACE && cluster_awaits_nodes() ? TARN_ELOADING : status;
}

bool later_is(tarn_status status) {
    return error_act(status) == ERROR_LATER;
}

void later_reply(struct client *c, tarn_status status) {
    if (status == TARN_ELOADING)
        reply_status(c, status, "the nodes of this pool have not all joined this master yet");
    else
        reply_later(c, store_later_ms(books), "room comes soon: %s", store_later_why(books));
}

/* --- sleeping --- */

bool later_waits(void) {
    return config->inband_wait_timeout_ms > 0;
}

static bool later_over(struct client *c, struct job *job) {
    char peer[80];
    client_peer(c, peer, sizeof(peer));
    figures.timeouts++;
    log_warning(
        "Client id=%llu addr=%s closed: what '%s' needs did not come within inband-wait-timeout",
        (unsigned long long)c->id, peer, c->cmd->name);
    job->deadline_ms = 0;
    job->runnable = false;
    client_close_soon(c);
    return false;
}

bool later_sleep(struct later *l, struct client *c, struct job *job) {
    TARN_ASSERT(l->job == NULL);
    uint64_t ms = store_later_ms(books);
    if (l->until_ms == 0) {
        l->until_ms = turn.mono_ms + config->inband_wait_timeout_ms;
        figures.waits++;
    }
    if (turn.mono_ms >= l->until_ms) return later_over(c, job);
    if (ms == 0 || ms > LOOK_MS) ms = LOOK_MS;
    l->job = job;
    LIST_INSERT_HEAD(&sleepers, l, link);
    figures.waiting++;
    job->deadline_ms = min_u64(turn.mono_ms + ms, l->until_ms);
    job->polls = true;
    job->runnable = false;
    return true;
}

void later_end(struct later *l) {
    if (l->job == NULL) return;
    l->job->deadline_ms = 0;
    l->job->polls = false;
    l->job = NULL;
    LIST_REMOVE(l, link);
    figures.waiting--;
}

void later_wake(void) {
    struct later *l;
    LIST_FOREACH(l, &sleepers, link) job_wake(l->job);
}

struct later_figures later_figures(void) {
    return figures;
}

/* --- commands that cannot run yet --- */

struct early {
    struct job job;
    struct later later;
    bool within; /* the command runs, as a job within this one */
};

static bool early_step(struct client *c, struct job *job, unsigned *budget) {
    struct early *e = CONTAINER_OF(job, struct early, job);
    if (e->within || c->io->flags & CLIENT_CLOSE_SOON) return e->within;
    later_end(&e->later);
    spend(budget, 1);
    if (above.is_early(c, c->cmd)) {
        later_sleep(&e->later, c, job);
        return false;
    }
    const char *why = above.refusal(c, c->cmd);
    if (why != NULL) {
        reply_error(c, "%s", why); /* its role has changed */
        return true;
    }
    job->runnable = true;
    store_settle(books); /* as before any command */
    c->cmd->run(c);
    e->within = c->job != job;
    job->runnable = !e->within; /* the end of the one within wakes it */
    return !e->within;
}

static void early_close(struct client *c, struct job *job) {
    struct early *e = CONTAINER_OF(job, struct early, job);
    later_end(&e->later);
}

bool later_begin(struct client *c, const struct cmd *cmd) {
    if (!later_waits() || c->big != NULL || c->io->flags & (CLIENT_MULTI | CLIENT_EXEC) ||
        !above.is_early(c, cmd))
        return false;
    struct early *e = xcalloc(1, sizeof(*e));
    e->job =
        (struct job){.step = early_step, .close = early_close, .runnable = true, .wraps = true};
    table_stat(cmd)->calls++;
    c->io->last_cmd = c->cmd = cmd;
    c->io->job_ns = 0;
    job_start(c, &e->job);
    return true;
}
