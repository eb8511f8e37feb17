/* REPLICA REPORT key version: a reader found bytes that do not match their CRC. The server does not take its word for it:
 * it reads the bytes itself, in slices, and removes the object when they are bad. Without this the key would answer every
 * get with a miss and every put with "it is there". */
#include "cmd/families.h"

#include <stdlib.h>
#include "base/assert.h"
#include "base/crc32c.h"
#include "cmd/stats.h"
#include "host/host.h"

#define PIECE       (UINT64_C(256) << 10)
#define PIECE_UNITS 16u /* of work: about 10 us */

struct report_job {
    struct job job;
    struct store_hold *hold;
    struct store_layout layout;
    uint64_t version, pos; /* pos: in extent */
    uint32_t extent, crc;
};

static void report_destroy(struct client *c, struct job *job) {
    struct report_job *r = (struct report_job *)job;
    store_unhold(server.store, &r->hold);
    free(r);
}

static bool report_step(struct client *c, struct job *job, unsigned *budget) {
    struct report_job *r = (struct report_job *)job;
    const struct store_replica *replica = &r->layout.replica[0];
    while (r->extent < replica->extents) {
        if (*budget == 0) return false;
        const struct store_extent *x = &replica->extent[r->extent];
        const char *base = host_segment_base(server.host, x->segment);
        uint64_t n = min_u64(PIECE, x->length - r->pos);
        r->crc = crc32c(r->crc, base + x->offset + r->pos, n);
        r->pos += n;
        *budget -= min_u64(*budget, PIECE_UNITS);
        if (r->pos == x->length) r->extent++, r->pos = 0;
    }
    uint32_t want;
    struct object *o = store_find(server.store, c->argv[2]);
    bool bad = o && store_object_version(o) == r->version && store_object_crc(o, &want) && want != r->crc;
    if (bad) {
        store_remove_object(server.store, o);
        stats.replicas_bad++;
    }
    reply_int(c, bad);
    return true;
}

void cmd_replica_report(struct client *c) {
    uint64_t version;
    uint32_t crc;
    struct span value;
    if (!arg_key(c, 2) || !arg_range(c, 3, "version", 0, INT64_MAX, &version)) return;
    stats.replica_reports++;
    struct object *o = store_find(server.store, c->argv[2]);
    if (!o || store_object_version(o) != version || !store_object_crc(o, &crc) ||
        store_object_inline(o, &value)) {
        reply_int(c, 0); /* gone or replaced meanwhile, or nothing to compare with */
        return;
    }
    struct report_job *r = calloc(1, sizeof(*r));
    if (!r) {
        reply_status(c, TARN_ENOMEM, NULL);
        return;
    }
    r->job = (struct job){.step = report_step, .destroy = report_destroy, .runnable = true};
    r->version = version;
    r->hold = store_hold(server.store, o);
    store_object_layout(server.store, o, &r->layout);
    job_start(c, &r->job);
}
