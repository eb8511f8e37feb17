/* RELEASE: a reader that is done gives its leases back early, pipelined behind its gets. */
#include "front/families.h"

#include "base/assert.h"
#include "front/each.h"
#include "front/location.h"
#include "wire/options.h"

/* The keys, then the batch. */
struct release {
    struct each each;
    struct wire_release args;
    uint64_t released;
    bool guarded;
};

static enum each_next release_batch(struct client *c, struct release *r, unsigned *budget) {
    r->released += store_release_batch(books, c->id, r->args.batch, r->guarded, budget);
    return *budget == 0 ? EACH_AGAIN : EACH_OVER;
}

static uint64_t version_of(struct span key) {
    const struct object *o = store_find(books, key);
    return o != NULL ? store_object_version(o) : 0;
}

static enum each_next release_one(struct client *c, struct each *each, unsigned *budget) {
    struct release *r = CONTAINER_OF(each, struct release, each);
    if (each->at == r->args.keys.n) return release_batch(c, r, budget);
    const struct span *key = &c->argv[r->args.keys.at + 2 * each->at];
    uint64_t version;
    /* What is no version is one that nobody has a lease on. */
    if (!span_to_u64(key[1], &version)) return EACH_ON;
    if (version == 0) version = version_of(key[0]);
    if (version != 0) r->released += store_release(books, key[0], c->id, version, r->guarded);
    return EACH_ON;
}

static void release_end(struct client *c, struct each *each) {
    reply_int(c, (int64_t)CONTAINER_OF(each, struct release, each)->released);
}

void cmd_release(struct client *c) {
    struct release r = {.each = {.one = release_one, .end = release_end},
                        .guarded = !location_trusted(c)};
    if (!arg_bind(c, &r.args)) return;
    r.each.n = r.args.keys.n + (r.args.batch != 0); /* which need no look-up */
    each_run(c, &r.each, sizeof(r));
}
