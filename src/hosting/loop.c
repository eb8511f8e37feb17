/* The control thread: takes turns until the host is closed. A turn does what can be done now and
 * never waits; then poll waits for the first of: an answer, an event of the data port or of a tier,
 * a finished job, a caller, a time. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/log.h"
#include "client/client.h"
#include "client/ctl.h"
#include "client/error.h"
#include "hosting/hosting.h"

#define TURN_MS 1000u /* at least a turn in so long */

bool hosting_opened(struct tarn_host *h, tarn_status status) {
    pthread_mutex_lock(&h->mutex);
    bool waited_for = h->opening;
    if (waited_for || h->open_status != TARN_OK) {
        h->opening = false;
        h->open_status = status;
        free(h->open_error);
        h->open_error = status != TARN_OK ? xstrdup(tarn_last_error()) : NULL;
        pthread_cond_broadcast(&h->changed);
    }
    pthread_mutex_unlock(&h->mutex);
    return waited_for;
}

/* --- jobs --- */

void hosting_wake(struct tarn_host *h) {
    eventfd_write(h->wake_fd, 1); /* full means awake already */
}

void hosting_post(struct tarn_host *h, struct hosting_job *job) {
    pthread_mutex_lock(&h->mutex);
    TAILQ_INSERT_TAIL(&h->posted, &job->crew, link);
    pthread_mutex_unlock(&h->mutex);
    hosting_wake(h);
}

static void post_finished(void *h, struct crew_job *job) {
    hosting_post(h, CONTAINER_OF(job, struct hosting_job, crew));
}

tarn_status hosting_crew_start(struct tarn_host *h, struct crew *c, const char *name,
                               unsigned threads) {
    int error = crew_start(c, name, threads, post_finished, h);
    return error == 0 ? TARN_OK : fail(TARN_EIO, "cannot start a thread: %s", strerror(error));
}

void hosting_run_posted(struct tarn_host *h) {
    struct crew_jobs posted = TAILQ_HEAD_INITIALIZER(posted);
    struct crew_job *job;
    pthread_mutex_lock(&h->mutex);
    TAILQ_CONCAT(&posted, &h->posted, link);
    pthread_mutex_unlock(&h->mutex);
    while ((job = TAILQ_TAKE(&posted, link)) != NULL) {
        struct hosting_job *j = CONTAINER_OF(job, struct hosting_job, crew);
        j->done(h, j);
    }
}

/* --- turns --- */

static void wait_for_events(struct tarn_host *h) {
    struct pollfd p[4 + FARS_MAX];
    nfds_t n = 0;
    p[n++] = (struct pollfd){.fd = h->wake_fd, .events = POLLIN};
    p[n++] = (struct pollfd){.fd = host_event_fd(h->host), .events = POLLIN};
    const struct hosting_link *links[] = {&h->beats, &h->reports};
    for (size_t i = 0; i < ARRAY_LEN(links); i++) {
        if (!link_is_up(links[i])) continue;
        short out = ctl_wants_to_send(&links[i]->ctl) ? POLLOUT : 0;
        p[n++] = (struct pollfd){.fd = links[i]->ctl.fd, .events = (short)(POLLIN | out)};
    }
    for (unsigned i = 0; i < h->n_fars; i++) {
        const struct hosting_far *f = &h->fars[i];
        if (far_wants_poll(f))
            p[n++] = (struct pollfd){.fd = tier_event_fd(f->tier), .events = POLLIN};
    }
    uint64_t now = now_ms();
    int ms = h->next_wake_ms <= now ? 0 : (int)min_u64(h->next_wake_ms - now, TURN_MS);
    if (poll(p, n, ms) < 0 && errno != EINTR) {
        log_warning("poll of a host: %s", strerror(errno));
        usleep(10000); /* rather slow than hot */
    }
    eventfd_t ignored;
    eventfd_read(h->wake_fd, &ignored);
}

static bool hosting_turn(struct tarn_host *h) {
    h->next_wake_ms = now_ms() + TURN_MS;
    hosting_run_posted(h);
    host_poll(h->host);
    link_progress(h, &h->beats);
    link_progress(h, &h->reports);
    bool goes_on = session_turn(h);
    for (unsigned i = 0; i < h->n_fars; i++) far_turn(&h->fars[i]);
    lend_turn(h);
    reports_turn(h);
    keys_turn(h);
    stats_publish(h);
    view_turn(h);
    return goes_on;
}

void *hosting_control(void *arg) {
    struct tarn_host *h = arg;
    while (hosting_turn(h)) wait_for_events(h);
    view_attach(h->view, NULL);
    hosting_opened(h, fail(TARN_ECLOSED, "the host was closed"));
    pthread_mutex_lock(&h->mutex);
    h->finished = true;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->mutex);
    return NULL;
}
