/* Connecting to the master, on a thread of its own: names are resolved and packets lost there,
 * while the control thread goes on serving. */
#include <stdio.h>
#include <stdlib.h>

#include "client/hosting.h"

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

static tarn_status send_greeting(struct dial *d, struct ctl *c, unsigned *sent_p) {
    const struct tarn_host *h = d->host;
    const tarn_options *o = &h->options;
    const char *auth[3] = {"AUTH"};
    size_t n = 1;
    if (o->user != NULL) auth[n++] = o->user;
    auth[n++] = password_of(o);
    const char *info[][4] = {{"CLIENT", "SETINFO", "LIB-NAME", "tarn-node"},
                             {"CLIENT", "SETINFO", "LIB-VER", tarn_version()},
                             {"CLIENT", "SETINFO", "tarn-host", h->machine},
                             {"CLIENT", "SETNAME", h->name, NULL},
                             {"ROLE", NULL, NULL, NULL},
                             {"PING", NULL, NULL, NULL}};
    *sent_p = 0;
    tarn_status status = TARN_OK;
    if (logs_in(o)) {
        status = ctl_send(c, n, auth, NULL, false);
        *sent_p += 1;
    }
    for (size_t i = 0; i < ARRAY_LEN(info) && status == TARN_OK; i++) {
        size_t argc = 1;
        while (argc < 4 && info[i][argc] != NULL) argc++;
        status = ctl_send(c, argc, info[i], NULL, false);
        *sent_p += 1;
    }
    return status;
}

/* Refusals of CLIENT do no harm; the last answers tell whether we may talk to it, and whether it is
 * who Sentinel says. */
static tarn_status greet(struct dial *d, struct ctl *c, uint64_t deadline) {
    unsigned sent;
    tarn_status status = send_greeting(d, c, &sent);
    for (unsigned i = 0; i < sent && status == TARN_OK; i++) {
        struct answer *a = NULL;
        status = ctl_receive(c, &d->arena, &a, deadline);
        if (status == TARN_OK && i + 2 == sent && d->host->master.n > 0)
            status = master_check_role(a, c->host, c->port);
        if (status != TARN_OK || a->type != ANSWER_ERROR) continue;
        if (i == 0 && logs_in(&d->host->options))
            return fail(TARN_EPERM,
                        "the master refused user and password: %s (tarn://user:password@host:port)",
                        a->str);
        if (i + 1 == sent || strncmp(a->str, "DENIED", 6) == 0)
            status = answer_check(a, "connecting");
    }
    return status;
}

static tarn_status dial_both(struct dial *d) {
    struct tarn_host *h = d->host;
    tarn_status status = TARN_OK;
    char host[MASTER_HOST_MAX] = "", port[16] = "";
    for (unsigned i = 0; i < ARRAY_LEN(d->ctl) && status == TARN_OK; i++) {
        uint64_t deadline = add_sat(now_ms(), h->options.connect_timeout_ms);
        status = master_find(&h->master, deadline, host, port);
        if (status == TARN_OK)
            status = ctl_open(&d->ctl[i], &h->master.secure, host, port, deadline);
        if (status == TARN_OK) status = greet(d, &d->ctl[i], deadline);
    }
    if (status == TARN_OK) return status;
    master_asked(&h->master, host, port);
    for (unsigned i = 0; i < ARRAY_LEN(d->ctl); i++) ctl_close(&d->ctl[i]);
    return status;
}

static bool dial_run(struct crew_job *job) {
    struct dial *d = CONTAINER_OF(job, struct dial, job.crew);
    struct tarn_host *h = d->host;
    if (d->wait) scout_wait(&h->master, &h->options, add_sat(now_ms(), SCOUT_WAIT_MS));
    d->status = dial_both(d);
    if (d->status == TARN_OK) scout_rest(h->master.scouts);
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
    char at[MASTER_HOST_MAX], port[16];
    bool moved;
};

static bool look_run(struct crew_job *job) {
    struct hosting_look *l = CONTAINER_OF(job, struct hosting_look, job.crew);
    l->moved = master_moved(&l->host->master, l->at, l->port);
    return true;
}

static void look_done(struct tarn_host *h, struct hosting_job *job) {
    struct hosting_look *l = CONTAINER_OF(job, struct hosting_look, job);
    session_looked(h, l->moved && !job->crew.cancelled, l->at, l->port);
    free(l);
}

void look_start(struct tarn_host *h, const char *at, const char *port) {
    struct hosting_look *l = xcalloc(1, sizeof(*l));
    l->job = (struct hosting_job){.crew.run = look_run, .done = look_done};
    l->host = h;
    snprintf(l->at, sizeof(l->at), "%s", at);
    snprintf(l->port, sizeof(l->port), "%s", port);
    crew_add(&h->dialler, &l->job.crew);
}

/* --- dialling --- */

void dial_start(struct tarn_host *h) {
    struct dial *d = xcalloc(1, sizeof(*d));
    d->job = (struct hosting_job){.crew.run = dial_run, .done = dial_done};
    d->host = h;
    d->wait = h->master.n > 0 && h->session.failures > 0;
    for (unsigned i = 0; i < ARRAY_LEN(d->ctl); i++) ctl_init(&d->ctl[i]);
    crew_add(&h->dialler, &d->job.crew);
}
