/* RELEASE: a reader that is done gives its leases back early, pipelined behind its gets. */
#include "front/families.h"

#include "base/assert.h"
#include "front/each.h"
#include "front/location.h"
#include "wire/options.h"

struct release {
    struct each each;
    uint64_t released;
    bool guarded;
};

static enum each_next release_one(struct client *c, struct each *each, unsigned *budget) {
    struct release *r = CONTAINER_OF(each, struct release, each);
    const struct span *key = each_args(c, each);
    uint64_t version;
    /* What is no version is one that nobody has a lease on. */
    if (span_to_u64(key[1], &version))
        r->released += store_release(books, key[0], c->id, version, r->guarded);
    return EACH_ON;
}

static void release_end(struct client *c, struct each *each) {
    reply_int(c, (int64_t)CONTAINER_OF(each, struct release, each)->released);
}

void cmd_release(struct client *c) {
    struct wire_release args = {0};
    if (!arg_bind(c, &args)) return;
    struct release r = {.each = {.one = release_one, .end = release_end},
                        .guarded = !location_trusted(c)};
    each_keys(&r.each, args.keys, 2);
    each_run(c, &r.each, sizeof(r));
}
