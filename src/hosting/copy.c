/* Copies: an object is read from wherever it is, verified as any get is, straight into the place
 * that the master chose in our own memory; from our own disk without a connection. */
#include <stdlib.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "client/client.h"
#include "hosting/hosting.h"

/* --- what lies on our own disk --- */

static bool home_has(void *arg, const struct grant_extent *extent) {
    const struct tarn_host *h = arg;
    return host_reads(h->host, extent);
}

static tarn_status home_read(void *arg, struct transport_op *op, uint64_t deadline_boot_ms) {
    const struct tarn_host *h = arg;
    return host_read(h->host, op, deadline_boot_ms);
}

/* --- copies --- */

/* One client for all copies of this host, connected when the first is made. */
static tarn_status reader_of(struct tarn_host *h, tarn_client **client_p) {
    tarn_status status = TARN_OK;
    pthread_mutex_lock(&h->reader_mutex);
    if (h->reader == NULL) {
        tarn_options o = h->options;
        o.max_lanes = h->copies.max_threads;
        o.host_name = h->machine;
        o.name = h->name;
        o.rack = h->rack;
        status = client_connect(h->url, &o, h->name, &h->reader);
        if (status == TARN_OK)
            h->reader->home = (struct client_home){.arg = h, .has = home_has, .read = home_read};
    }
    *client_p = h->reader;
    pthread_mutex_unlock(&h->reader_mutex);
    return status;
}

static tarn_status copy_object(struct hosting_task *t, struct tarn_host *h) {
    tarn_client *client;
    tarn_status status = reader_of(h, &client);
    if (status != TARN_OK) return status;
    tarn_item item = {.key = t->key, .key_len = t->key_len, .iov = t->iov, .n_iov = t->n_iov};
    status = tarn_get_many(client, &item, 1, NULL, NULL);
    if (status == TARN_OK) status = (tarn_status)item.status;
    if (status == TARN_ELIMIT) return TARN_ESTALE; /* a larger value: not the one that was meant */
    if (status == TARN_OK && (item.version != t->version || item.got != t->size))
        return TARN_ESTALE;
    return status;
}

static bool copy_run(struct crew_job *job) {
    struct hosting_task *t = CONTAINER_OF(job, struct hosting_task, job.crew);
    uint64_t began_ns = clock_mono_ns();
    t->status = copy_object(t, t->host);
    t->took_ns = clock_mono_ns() - began_ns;
    if (t->status != TARN_OK)
        log_verbose("A copy of %llu bytes failed: %s", (unsigned long long)t->size,
                    tarn_last_error());
    return true;
}

static void copy_done(struct tarn_host *h, struct hosting_job *job) {
    struct hosting_task *t = CONTAINER_OF(job, struct hosting_task, job);
    h->copies_out--;
    if (job->crew.cancelled) {
        t->status = TARN_ECANCELED;
    } else if (t->status == TARN_OK) {
        h->figures.copies_done++;
        hist_add(&h->copy_ns, t->took_ns);
        h->figures.copy_bytes += t->size;
    } else {
        h->figures.copies_failed++;
    }
    task_done(h, t);
}

void copy_start(struct tarn_host *h, struct hosting_task *t) {
    t->job = (struct hosting_job){.crew.run = copy_run, .done = copy_done};
    t->host = h;
    h->copies_out++;
    crew_add(&h->copies, &t->job.crew);
}
