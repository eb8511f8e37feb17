/* RELEASE: a reader that is done gives its leases back early, pipelined behind its gets. */
#include "cmd/families.h"

#include <stdlib.h>
#include "base/assert.h"
#include "cmd/keys.h"
#include "cmd/location.h"

struct release_job {
    struct job job;
    size_t n, pos;
    uint64_t released;
    bool guarded;
    struct key_window window;
};

static bool release_step(struct client *c, struct job *job, unsigned *budget) {
    struct release_job *r = CONTAINER_OF(job, struct release_job, job);
    for (; r->pos < r->n; r->pos++) {
        if (*budget == 0) return false;
        spend(budget, 1);
        key_window_hash(&r->window, c, 2, 2, r->pos, r->n); /* for its prefetching */
        uint64_t version;
        /* What is no version is one that nobody has a lease on. */
        if (!span_to_u64(c->argv[2 + r->pos * 2 + 1], &version)) continue;
        r->released +=
            store_release(server.store, c->argv[2 + r->pos * 2], c->id, version, r->guarded);
    }
    reply_int(c, (int64_t)r->released);
    return true;
}

void cmd_release(struct client *c) {
    size_t n;
    if (!batch_count(c, 2, &n)) return;
    if (c->argc > 2 + 2 * n) {
        option_unknown(c, 2 + 2 * n);
        return;
    }
    struct release_job *r = xcalloc(1, sizeof(*r));
    r->job = (struct job){.step = release_step, .runnable = true};
    r->n = n;
    r->guarded = !location_trusted(c);
    job_start(c, &r->job);
}
