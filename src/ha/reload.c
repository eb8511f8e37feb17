/* DEBUG RELOAD and LOADAOF: the books are written, forgotten, and made again from the file, as a
 * restart would, but in the same process, with the pool's bytes where they are.
 *
 *   command (a job that sleeps) ─> end of the turn: all is in the file
 *     ─> clients that hold something of the books are closed ─> books of the file
 *     ─> they lead, under a new epoch ─> the job answers
 *
 * Nothing is dropped before the file is whole. */
#include "ha/reload.h"

#include <stdlib.h>
#include <unistd.h>
#include "base/assert.h"
#include "base/log.h"
#include "ha/books.h"
#include "front/client.h"
#include "front/core.h"
#include "front/effects.h"
#include "ha/persistence.h"
#include "ha/replication.h"

struct reload {
    struct job job;
    bool append, nosave, done;
    const char *error; /* NULL: it went well */
};

static struct reload *wanted; /* one at a time */

/* There are no books any more: as a start that fails. */
static void reload_give_up(const char *what) {
    log_warning("DEBUG forgot the books, and %s cannot be had again: this process ends", what);
    _exit(1);
}

static const char *books_reload(const struct reload *r, const struct client *asker) {
    const char *why = NULL;
    if (!r->nosave && !persistence_complete(r->append, &why)) return why;
    log_notice("The books are loaded again, because DEBUG asks for it");
    replication_let_go(asker);
    replicas_drop_all("the books are loaded again");
    replication_free_backlog();
    client_free_closed_now();
    TARN_ASSERT(wanted == r);
    persistence_pause();
    replication_drop_work();
    effects_turn();
    store_tell(books, false); /* what goes now is no change */
    cluster_tell(false);
    books_destroy();
    if (!persistence_load_again(r->append)) reload_give_up("the file of the books");
    repl_history_renew(&replication.history);
    if (core_endpoints.reload == NULL)
        books_lead(STORE_SEGMENT_ANY, false);
    else if (!core_endpoints.reload())
        reload_give_up("the pool");
    replication_listen();
    persistence_resume();
    return NULL;
}

void reload_settle(void) {
    struct reload *r = wanted;
    if (LIKELY(r == NULL) || r->done) return;
    /* values of these books are on their way to it */
    if (r->job.client->io->out.insert_bytes > 0) return;
    r->error = books_reload(r, r->job.client);
    r->done = true;
    job_wake(&r->job);
}

static bool reload_step(struct client *c, struct job *job, unsigned *budget) {
    struct reload *r = CONTAINER_OF(job, struct reload, job);
    job->runnable = false;
    if (!r->done) return false;
    if (r->error != NULL)
        reply_error(c, "%s", r->error);
    else
        reply_ok(c);
    return true;
}

static void reload_close(struct client *c, struct job *job) {
    wanted = NULL;
}

static void reload_start(struct client *c, bool append, bool nosave) {
    const char *why = NULL;
    if (replication_is_replica())
        why = "The books are the master's: this server is a replica";
    else if (c->io->flags & CLIENT_EXEC)
        why = "The books cannot be loaded within a transaction";
    else if (c->io->flags & CLIENT_REPLICA)
        why = "The books cannot be loaded by a replica's connection, which ends with them";
    else if (wanted != NULL)
        why = "The books are being loaded already";
    else if (append && !persistence_appends())
        why = "There is no append-only file: CONFIG SET appendonly yes begins one";
    else if (nosave && !persistence_there())
        why = "There is no snapshot: SAVE makes one";
    if (why != NULL) {
        reply_error(c, "%s", why);
        return;
    }
    wanted = xcalloc(1, sizeof(*wanted));
    wanted->job = (struct job){.step = reload_step, .close = reload_close};
    wanted->append = append;
    wanted->nosave = nosave;
    job_start(c, &wanted->job);
}

void debug_reload(struct client *c) {
    bool nosave = c->argc == 3 && arg_is(c, 2, "nosave");
    if (c->argc == 3 && !nosave)
        reply_syntax(c);
    else
        reload_start(c, false, nosave);
}

void debug_loadaof(struct client *c) {
    reload_start(c, true, false);
}
