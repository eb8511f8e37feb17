/* REPLICA REPORT key version: a reader found bytes that do not match their CRC. The server does not
 * take its word for it: it reads every replica of that version itself, and drops exactly those that
 * are bad. Without this the key would answer every get with a miss and every put with "it is
 * there". */
#include "front/families.h"
#include "wire/options.h"

#include <stdlib.h>
#include "base/assert.h"
#include "inband/replica_check.h"
#include "front/stats.h"

struct report_job {
    struct job job;
    struct replica_check *check; /* NULL: it is over */
    unsigned dropped;
};

static void on_checked(void *arg, unsigned dropped) {
    struct report_job *r = arg;
    r->check = NULL;
    r->dropped = dropped;
    job_wake(&r->job);
}

static bool report_step(struct client *c, struct job *job, unsigned *budget) {
    struct report_job *r = CONTAINER_OF(job, struct report_job, job);
    if (r->check) {
        job->runnable = false;
        return false;
    }
    reply_int(c, r->dropped > 0);
    return true;
}

static void report_close(struct client *c, struct job *job) {
    struct report_job *r = CONTAINER_OF(job, struct report_job, job);
    replica_check_forget(&r->check);
}

void cmd_replica_report(struct client *c) {
    struct wire_report args = {0};
    uint32_t crc;
    struct span value;
    if (!arg_bind(c, &args)) return;
    stats.replica_reports++;
    struct object *o = store_find(books, c->argv[args.key]);
    if (!o || store_object_version(o) != args.version || !store_object_crc(o, &crc) ||
        store_object_inline(o, &value)) {
        reply_int(c, 0); /* gone or replaced meanwhile, or nothing to compare with */
        return;
    }
    struct report_job *r = xcalloc(1, sizeof(*r));
    r->job = (struct job){.step = report_step, .close = report_close};
    r->check = replica_check_start(o, on_checked, r);
    job_start(c, &r->job);
}
