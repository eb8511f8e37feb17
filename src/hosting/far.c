/* Slow tiers of this host: stores go there from own memory, reads come from the data port (src/host
 * asks far_read).
 *
 * A store takes a thread of its own, because a full queue makes it wait. It has two users from the
 * moment the tier accepts it: that thread, which still has to note the CRC, and the tier's, which
 * says how it ended. The last one posts it. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/assert.h"
#include "base/log.h"
#include "base/thread.h"
#include "client/client.h"
#include "client/outage.h"
#include "hosting/hosting.h"

/* A store that waits for room looks at least so often whether it should give up. */
#define ROOM_POLL_MS 100

void far_init(struct hosting_far *f, struct tarn_host *h, struct hosted *segment, const char *path,
              uint64_t bytes) {
    *f = (struct hosting_far){.host = h, .segment = segment, .path = xstrdup(path), .bytes = bytes};
    segment->far = f;
    TAILQ_INIT(&f->evictions);
    pthread_mutex_init(&f->room_mutex, NULL);
    thread_cond_init(&f->room);
}

void far_stop(struct hosting_far *f) {
    __atomic_store_n(&f->closing, true, __ATOMIC_RELAXED);
    crew_cancel(&f->stores, NULL, NULL);
    crew_stop(&f->stores);
}

void far_deinit(struct hosting_far *f) {
    TARN_ASSERT(f->tier == NULL);
    evict_free(f);
    buf_free(&f->offering.entries);
    buf_free(&f->orphans);
    pthread_cond_destroy(&f->room);
    pthread_mutex_destroy(&f->room_mutex);
    free(f->path);
}

tarn_status far_open(struct hosting_far *f, const uint8_t cluster[16], const char **why_p) {
    tier_close(&f->tier);
    if (cluster != NULL) memcpy(f->cluster, cluster, sizeof(f->cluster));
    struct tier_config config = {
        .path = f->path,
        .size = f->bytes,
        .queue_bytes = f->host->queue_bytes,
        .cluster = cluster != NULL ? f->cluster : NULL,
        .mode = f->mode,
        .create = f->create,
        .direct = true,
        .populate = f->host->populate,
    };
    tarn_status status = tier_open(hosted_tiers[f->segment->kind], &config, &f->tier, why_p);
    if (status == TARN_EBUSY) status = TARN_EIO; /* to our callers that is a name that is taken */
    /* What was stored last before our former life ended, the master may never have heard of. */
    f->offering.needed = status == TARN_OK;
    f->renewed = false;
    return status;
}

/* --- the file tier belongs to a cluster --- */

struct reopen {
    struct hosting_job job;
    struct hosting_far *far;
    uint8_t cluster[16];
    tarn_status status;
    char why[200];
};

static bool reopen_run(struct crew_job *job) {
    struct reopen *r = CONTAINER_OF(job, struct reopen, job.crew);
    const char *why = NULL;
    r->status = far_open(r->far, r->cluster, &why);
    if (r->status != TARN_OK)
        snprintf(r->why, sizeof(r->why), "%s", why != NULL ? why : tarn_status_text(r->status));
    return true;
}

static void reopen_done(struct tarn_host *h, struct hosting_job *job) {
    struct reopen *r = CONTAINER_OF(job, struct reopen, job);
    struct hosting_far *f = r->far;
    f->opening = false;
    if (job->crew.cancelled) r->status = TARN_ECANCELED;
    if (r->status == TARN_OK) {
        const struct tier_info *info = tier_get_info(f->tier);
        TARN_ASSERT(info->directory != NULL);
        f->segment->size = info->size;
    }
    session_far_opened(h, f, r->status, r->why);
    free(r);
}

bool far_reopen(struct hosting_far *f, const uint8_t cluster[16]) {
    if (f->segment->kind != HOSTED_FILE || f->segment->gone || f->opening) return false;
    /* open, or known not to open */
    if (memcmp(f->cluster, cluster, sizeof(f->cluster)) == 0) return false;
    evict_free(f);
    buf_clear(&f->orphans);
    struct reopen *r = xcalloc(1, sizeof(*r));
    r->job = (struct hosting_job){.crew.run = reopen_run, .done = reopen_done};
    r->far = f;
    memcpy(r->cluster, cluster, sizeof(r->cluster));
    f->opening = true;
    crew_add(&f->stores, &r->job.crew);
    return true;
}

/* --- a disk may become larger and smaller --- */

struct resize {
    struct hosting_job job;
    struct hosting_far *far;
    uint64_t bytes;
    tarn_status status; /* of what is open now */
    char why[200];      /* it has not that size; "": it has */
};

static tarn_status resize_open(struct resize *r, uint64_t bytes) {
    const char *why = NULL;
    r->far->bytes = bytes;
    tarn_status status = far_open(r->far, NULL, &why);
    if (status != TARN_OK && r->why[0] == '\0')
        snprintf(r->why, sizeof(r->why), "%s", why != NULL ? why : tarn_status_text(status));
    return status;
}

/* What is on a disk is not lost because it cannot become larger: then it is as it was. */
static bool resize_run(struct crew_job *job) {
    struct resize *r = CONTAINER_OF(job, struct resize, job.crew);
    uint64_t before = r->far->bytes;
    r->status = resize_open(r, r->bytes);
    if (r->status != TARN_OK && r->far->served) r->status = resize_open(r, before);
    return true;
}

static void resize_done(struct tarn_host *h, struct hosting_job *job) {
    struct resize *r = CONTAINER_OF(job, struct resize, job);
    r->far->opening = false;
    if (job->crew.cancelled) r->status = TARN_ECANCELED;
    if (r->status == TARN_OK) r->status = far_serve(r->far);
    if (r->status != TARN_OK && r->why[0] == '\0')
        snprintf(r->why, sizeof(r->why), "%s", tarn_status_text(r->status));
    lend_disk_opened(h, r->far, r->status == TARN_OK, r->why);
    free(r);
}

void far_resize(struct hosting_far *f, uint64_t bytes) {
    struct resize *r = xcalloc(1, sizeof(*r));
    evict_free(f);
    offer_stop(f);
    buf_clear(&f->orphans); /* they are among those that are offered then */
    r->job = (struct hosting_job){.crew.run = resize_run, .done = resize_done};
    r->far = f;
    r->bytes = bytes;
    f->opening = true;
    crew_add(&f->stores, &r->job.crew);
}

/* --- reads --- */

tarn_status far_read(void *arg, uint64_t offset, uint64_t length, void *buffer,
                     void (*done)(void *done_arg, tarn_status status), void *done_arg) {
    struct hosting_far *f = arg;
    return tier_read(f->tier, offset, length, buffer, done, done_arg);
}

static uint64_t far_mark(void *arg, uint64_t offset, uint64_t length) {
    struct hosting_far *f = arg;
    return tier_mark(f->tier, offset, length);
}

tarn_status far_serve(struct hosting_far *f) {
    struct host_reader reader = {.arg = f, .read = far_read, .mark = far_mark};
    struct hosted *s = f->segment;
    s->size = tier_get_info(f->tier)->size;
    if (f->served) return host_reader_resize(f->host->host, s->slot, s->size);
    tarn_status status = host_reader_open(f->host->host, s->size, &reader, &s->slot);
    f->served = status == TARN_OK;
    return status;
}

/* --- stores --- */

static bool is_last_user(struct hosting_task *t) {
    return __atomic_sub_fetch(&t->users, 1, __ATOMIC_ACQ_REL) == 0;
}

/* On the tier's thread. */
static void store_ended(void *arg, tarn_status status, uint64_t offset) {
    struct hosting_task *t = arg;
    struct hosting_far *f = t->far;
    t->status = status;
    t->offset = offset;
    if (is_last_user(t)) hosting_post(f->host, &t->job);
    pthread_mutex_lock(&f->room_mutex);
    __atomic_add_fetch(&f->puts_ended, 1, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&f->room);
    pthread_mutex_unlock(&f->room_mutex);
}

static void wait_for_room(struct hosting_far *f, uint64_t seen) {
    pthread_mutex_lock(&f->room_mutex);
    if (f->puts_ended == seen) thread_cond_wait(&f->room, &f->room_mutex, ROOM_POLL_MS);
    pthread_mutex_unlock(&f->room_mutex);
}

static bool store_run(struct crew_job *job) {
    struct hosting_task *t = CONTAINER_OF(job, struct hosting_task, job.crew);
    struct hosting_far *f = t->far;
    struct tier_item item = {.key = span_of(t->key, t->key_len),
                             .version = t->version,
                             .size = t->size,
                             .crc = t->crc,
                             .crcs = t->crcs,
                             .n_crcs = t->n_crcs,
                             .prompt = (uint32_t)t->prompt};
    for (;;) {
        if (__atomic_load_n(&f->closing, __ATOMIC_RELAXED)) {
            t->status = TARN_ECANCELED;
            return true;
        }
        uint64_t seen = __atomic_load_n(&f->puts_ended, __ATOMIC_ACQUIRE);
        t->users = 2;
        tarn_status status = tier_put(f->tier, &item, t->check, t->iov, t->n_iov, store_ended, t);
        if (status == TARN_OK) {
            t->crc = item.crc;
            return is_last_user(t);
        }
        if (status != TARN_EAGAIN) {
            t->status = status;
            return true;
        }
        wait_for_room(f, seen);
    }
}

static void store_done(struct tarn_host *h, struct hosting_job *job) {
    struct hosting_task *t = CONTAINER_OF(job, struct hosting_task, job);
    h->stores_out--;
    t->far->stores_out--;
    if (job->crew.cancelled) {
        t->status = TARN_ECANCELED;
    } else if (t->status == TARN_OK) {
        t->far->figures.stored++;
        t->far->figures.store_bytes += t->size;
    } else {
        t->far->figures.store_failures++;
    }
    task_done(h, t);
}

void far_store(struct hosting_far *f, struct hosting_task *t) {
    t->job = (struct hosting_job){.crew.run = store_run, .done = store_done};
    t->host = f->host;
    t->far = f;
    f->host->stores_out++;
    f->stores_out++;
    crew_add(&f->stores, &t->job.crew);
}

/* --- a turn --- */

bool far_wants_poll(const struct hosting_far *f) {
    return far_tier(f) != NULL && f->n_evictions < EVICTIONS_MAX && f->weighing == 0;
}

void far_turn(struct hosting_far *f) {
    if (far_tier(f) == NULL) return;
    offer_turn(f);
    evict_turn(f);
}
