/* Connecting to the master, on a thread of its own: names are resolved and packets lost there,
 * while the control thread goes on serving. */
#include <stdio.h>
#include <stdlib.h>

#include "base/assert.h"
#include "base/log.h"
#include "client/answer.h"
#include "client/arena.h"
#include "client/client.h"
#include "client/ctl.h"
#include "client/master.h"
#include "client/secure.h"
#include "hosting/hosting.h"

#define SCOUT_WAIT_MS 100u

struct dial {
    struct hosting_job job;
    struct tarn_host *host;
    bool wait; /* the master was away a moment ago */
    struct ctl ctl[2];
    struct arena arena;
    tarn_status status;
    char why[256];
};

static tarn_status dial_greet(struct dial *d, struct ctl *c, uint64_t deadline) {
    const struct tarn_host *h = d->host;
    const struct greeting g = {
        .info = {{"LIB-NAME", "tarn-node"}, {"LIB-VER", tarn_version()}, {"tarn-host", h->machine}},
        .n_info = 3,
        .map_epoch = master_map_epoch(&h->master),
        .name = h->name,
        .role = master_may_change(&h->master),
        .last = {"PING"},
        .strict = true,
        .whom = "master"};
    struct answer *a;
    return ctl_greet(c, &d->arena, &h->options, &g, deadline, &a);
}

static tarn_status dial_both(struct dial *d) {
    struct tarn_host *h = d->host;
    tarn_status status = TARN_OK;
    struct address at = {.host = ""};
    for (unsigned i = 0; i < ARRAY_LEN(d->ctl) && status == TARN_OK; i++) {
        uint64_t deadline = add_sat(now_ms(), h->options.connect_timeout_ms);
        status = master_find(&h->master, deadline, &at);
        if (status == TARN_OK)
            status = ctl_open(&d->ctl[i], &h->master.secure, at.host, at.port, deadline);
        if (status == TARN_OK) status = dial_greet(d, &d->ctl[i], deadline);
    }
    if (status == TARN_OK) return status;
    master_asked(&h->master, &at);
    for (unsigned i = 0; i < ARRAY_LEN(d->ctl); i++) ctl_close(&d->ctl[i]);
    return status;
}

static bool dial_run(struct crew_job *job) {
    struct dial *d = CONTAINER_OF(job, struct dial, job.crew);
    struct tarn_host *h = d->host;
    if (d->wait) scout_wait(&h->master, &h->options, add_sat(now_ms(), SCOUT_WAIT_MS));
    d->status = dial_both(d);
    if (d->status == TARN_OK && master_may_change(&h->master)) scout_rest(h->master.scouts);
    if (d->status != TARN_OK) snprintf(d->why, sizeof(d->why), "%s", tarn_last_error());
    return true;
}

static void dial_done(struct tarn_host *h, struct hosting_job *job) {
    struct dial *d = CONTAINER_OF(job, struct dial, job);
    if (job->crew.cancelled) d->status = TARN_ECANCELED;
    session_dialled(h, d->status, d->why, d->ctl);
    for (unsigned i = 0; i < ARRAY_LEN(d->ctl); i++) ctl_close(&d->ctl[i]);
    arena_free(&d->arena);
    free(d);
}

/* --- is it still the master? --- */

/* A master that was cut off from its Sentinels and replicas only does not know that it is
 * deposed. */
struct hosting_look {
    struct hosting_job job;
    struct tarn_host *host;
    struct address at;
    bool moved;
};

static bool look_at_sentinels(struct crew_job *job) {
    struct hosting_look *l = CONTAINER_OF(job, struct hosting_look, job.crew);
    l->moved = master_moved(&l->host->master, &l->at);
    return true;
}

static void look_done(struct tarn_host *h, struct hosting_job *job) {
    struct hosting_look *l = CONTAINER_OF(job, struct hosting_look, job);
    session_looked(h, l->moved && !job->crew.cancelled, l->at.host, l->at.port);
    free(l);
}

void look_start(struct tarn_host *h, const char *at, const char *port) {
    struct hosting_look *l = xcalloc(1, sizeof(*l));
    l->job = (struct hosting_job){.crew.run = look_at_sentinels, .done = look_done};
    l->host = h;
    snprintf(l->at.host, sizeof(l->at.host), "%s", at);
    snprintf(l->at.port, sizeof(l->at.port), "%s", port);
    crew_add(&h->dialler, &l->job.crew);
}

/* --- where the master is said to be --- */

void hosting_set_url(struct tarn_host *h, const char *url) {
    pthread_mutex_lock(&h->mutex);
    free(h->new_url);
    h->new_url = xstrdup(url);
    pthread_mutex_unlock(&h->mutex);
}

void hosting_set_map(struct tarn_host *h, uint64_t epoch) {
    __atomic_store_n(&h->map_epoch, epoch, __ATOMIC_RELAXED);
}

/* Nobody uses the old one now: no copy is under way, and the dialler rests. */
static void url_take(struct tarn_host *h) {
    struct whereabouts fresh;
    pthread_mutex_lock(&h->mutex);
    char *url = h->new_url;
    h->new_url = NULL;
    pthread_mutex_unlock(&h->mutex);
    if (url == NULL) return;
    tarn_status status = url_parse(url, &h->options, &fresh);
    if (status == TARN_OK && fresh.tls) status = secure_open(&h->options, &fresh.secure);
    if (status != TARN_OK) {
        log_warning("Where the master is said to be now cannot be used: %s", tarn_last_error());
        free(url);
        return;
    }
    pthread_mutex_lock(&h->reader_mutex);
    tarn_close(&h->reader);
    master_free(&h->master);
    h->master = fresh;
    free(h->url);
    h->url = url;
    pthread_mutex_unlock(&h->reader_mutex);
}

/* --- dialling --- */

void dial_start(struct tarn_host *h) {
    uint64_t map_epoch = __atomic_load_n(&h->map_epoch, __ATOMIC_RELAXED);
    if (!h->session.looking) url_take(h);
    __atomic_store_n(&h->master.map_epoch, map_epoch, __ATOMIC_RELAXED);
    struct dial *d = xcalloc(1, sizeof(*d));
    d->job = (struct hosting_job){.crew.run = dial_run, .done = dial_done};
    d->host = h;
    d->wait = master_may_change(&h->master) && h->session.failures > 0;
    for (unsigned i = 0; i < ARRAY_LEN(d->ctl); i++) ctl_init(&d->ctl[i]);
    crew_add(&h->dialler, &d->job.crew);
}
