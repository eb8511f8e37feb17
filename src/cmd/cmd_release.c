/* RELEASE: a reader that is done gives its leases back early, pipelined behind its gets. */
#include "cmd/families.h"

#include <stdlib.h>
#include "base/assert.h"
#include "cmd/keys.h"
#include "cmd/location.h"
#include "wire/options.h"

struct release_job {
    struct job job;
    struct wire_list keys;
    size_t pos;
    uint64_t released;
    bool guarded;
    struct key_window window;
};

static bool release_step(struct client *c, struct job *job, unsigned *budget) {
    struct release_job *r = CONTAINER_OF(job, struct release_job, job);
    for (; r->pos < r->keys.n; r->pos++) {
        if (*budget == 0) return false;
        spend(budget, 1);
        /* for its prefetching */
        key_window_hash(&r->window, c, r->keys.at, 2, r->pos, r->keys.n);
        const struct span *key = &c->argv[r->keys.at + 2 * r->pos];
        uint64_t version;
        /* What is no version is one that nobody has a lease on. */
        if (!span_to_u64(key[1], &version)) continue;
        r->released += store_release(server.store, key[0], c->id, version, r->guarded);
    }
    reply_int(c, (int64_t)r->released);
    return true;
}

void cmd_release(struct client *c) {
    struct wire_release args = {0};
    if (!arg_bind(c, &args)) return;
    struct release_job *r = xcalloc(1, sizeof(*r));
    r->job = (struct job){.step = release_step, .runnable = true};
    r->keys = args.keys;
    r->guarded = !location_trusted(c);
    job_start(c, &r->job);
}
