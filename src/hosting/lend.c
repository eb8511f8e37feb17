/* Memory that this host gets, or gives back, while it runs. One segment at a time:
 *
 *   LEND_ADD  ─> opened ─> populated ─> mounted and served ─> LEND_DONE
 *   LEND_TAKE ─> SEGMENT DRAIN ─(empty)──> the master unmounts it ─> unmapped ─> LEND_DONE
 *                     └─(LEND_DRAIN_MS are over: what is left goes)─> SEGMENT UNMOUNT
 *   LEND_DISK ─> SEGMENT UNMOUNT ─> opened with its new size ─> mounted, what fits is offered
 *                                        └─(that cannot be)─> opened as before ─> mounted
 *
 * A session that ends meanwhile costs time only: what was asked for is asked for again. */
#include <stdio.h>
#include <stdlib.h>

#include "base/assert.h"
#include "base/log.h"
#include "client/answer.h"
#include "hosting/hosting.h"

#define LEND_DRAIN_MS 30000u /* for a segment to be emptied: copies need room elsewhere */
#define LEND_LOOK_MS  20u

/* --- from other threads --- */

static void lend_set(struct tarn_host *h, enum lend_state state, unsigned number,
                     const tarn_host_segment *segment) {
    pthread_mutex_lock(&h->mutex);
    free((void *)(uintptr_t)h->lend.segment.path);
    h->lend = (struct hosting_lend){.state = state, .number = number};
    if (segment != NULL) {
        h->lend.segment = *segment;
        h->lend.segment.path = xstrdup(segment->path);
    }
    pthread_mutex_unlock(&h->mutex);
    hosting_wake(h);
}

void lend_add(struct tarn_host *h, unsigned number, const tarn_host_segment *segment) {
    lend_set(h, LEND_ADD, number, segment);
}

void lend_take(struct tarn_host *h, unsigned number) {
    lend_set(h, LEND_TAKE, number, NULL);
}

void lend_disk(struct tarn_host *h, const char *path, uint64_t bytes) {
    lend_set(h, LEND_DISK, 0, &(tarn_host_segment){.path = path, .bytes = bytes});
}

enum lend_state lend_look(struct tarn_host *h, char *why, size_t cap) {
    pthread_mutex_lock(&h->mutex);
    enum lend_state state = h->lend.state;
    snprintf(why, cap, "%s", h->lend.why);
    pthread_mutex_unlock(&h->mutex);
    return state;
}

void lend_standing(struct tarn_host *h, struct hosting_standing *standing_p) {
    pthread_mutex_lock(&h->mutex);
    *standing_p = h->standing;
    pthread_mutex_unlock(&h->mutex);
}

/* --- on the control thread --- */

static void lend_over(struct tarn_host *h, enum lend_state state, const char *why) {
    pthread_mutex_lock(&h->mutex);
    h->lend.state = state;
    snprintf(h->lend.why, sizeof(h->lend.why), "%s", why);
    pthread_mutex_unlock(&h->mutex);
}

static struct hosted *segment_numbered(struct tarn_host *h, unsigned number) {
    for (unsigned i = 0; i < h->n_segments; i++) {
        struct hosted *s = &h->segments[i];
        if (s->kind == HOSTED_MEMORY && s->number == number && !s->closed) return s;
    }
    return NULL;
}

static bool segment_fits(const struct tarn_host *h) {
    unsigned n = h->n_segments;
    for (unsigned i = 0; i < h->n_segments; i++) n -= h->segments[i].closed;
    return n < HOSTED_MAX;
}

/* It never was a segment of the pool. */
static void add_failed(struct tarn_host *h, struct hosted *s, const char *why) {
    if (!s->closed) (void)host_slot_close(h->host, s->slot); /* nobody was ever let in */
    s->populating = false;
    s->gone = s->closed = true;
    lend_over(h, LEND_FAILED, why);
}

static void add_begin(struct tarn_host *h, const struct hosting_lend *lend) {
    const char *why = "";
    struct hosted *s;
    if (!segment_fits(h)) {
        lend_over(h, LEND_FAILED, "a node has at most 64 segments at one master");
        return;
    }
    tarn_status status = memory_open(h, &lend->segment, lend->number, false, true, &s, &why);
    s->populating = true;
    if (status == TARN_OK)
        pool_populate_start(host_segment_pool(h->host, s->slot));
    else
        add_failed(h, s, why);
}

/* Now, or at the next join; or once there is room for the request. */
static void add_mount(struct tarn_host *h, struct hosted *s) {
    enum phase phase = h->session.phase;
    bool joined = session_joined(&h->session) && phase >= PHASE_MOUNTING;
    if (joined && link_room(&h->reports) == 0) return;
    s->populating = false;
    if (joined) mount_one(h, s);
}

static void add_turn(struct tarn_host *h, const struct hosting_lend *lend) {
    struct hosted *s = segment_numbered(h, lend->number);
    struct pool_progress progress;
    tarn_status status;
    if (s == NULL) {
        add_begin(h, lend);
    } else if (s->populating &&
               pool_populate_look(host_segment_pool(h->host, s->slot), &progress, &status)) {
        if (status != TARN_OK)
            add_failed(h, s, tarn_status_text(status));
        else
            add_mount(h, s);
    } else if (s->gone || (s->mounted && s->serve_until == 0)) {
        lend_over(h, LEND_DONE, "");
        return;
    } else if (s->mounted) {
        mount_turn(h);
    }
    hosting_wake_at(h, now_ms() + LEND_LOOK_MS);
}

static void take_end(struct tarn_host *h, enum lend_state state, const char *why) {
    h->session.lend_until = 0;
    h->session.lend_unmounting = h->session.lend_opened = false;
    lend_over(h, state, why);
}

/* Whoever may not ask for it keeps the segment. Without one there is nothing to wait for but its
 * end. */
static void take_answered(struct tarn_host *h, const struct answer *a, void *arg,
                          uint64_t sent_ms) {
    if (a == NULL || a->type != ANSWER_ERROR || answer_is(a, TARN_ENOSEGMENT)) return;
    char why[200];
    snprintf(why, sizeof(why), "%s: %.150s", (const char *)arg, a->str);
    take_end(h, LEND_FAILED, why);
}

static void take_ask(struct tarn_host *h, const struct hosted *s, uint64_t now) {
    struct hosting_session *session = &h->session;
    struct hosting_link *l = &h->reports;
    struct wire_drain drain = {0};
    if (session->phase != PHASE_UP || link_room(l) == 0 || !s->mounted) return;
    if (session->lend_until == 0) {
        session->lend_until = add_sat(now, LEND_DRAIN_MS);
        link_node(h, l);
        drain.name = request_str(&l->request, s->name);
        link_send(h, l, WIRE_segment_drain, &drain, take_answered, "SEGMENT DRAIN");
    } else if (now >= session->lend_until && !session->lend_unmounting) {
        session->lend_unmounting = true;
        log_notice("Segment %s could not be emptied within %u s: what is left in it goes", s->name,
                   LEND_DRAIN_MS / 1000);
        link_node(h, l);
        drain.name = request_str(&l->request, s->name);
        link_send_waiting(h, l, WIRE_segment_unmount, &drain, session->max_lease_ms, take_answered,
                          "SEGMENT UNMOUNT");
    }
}

static void take_turn(struct tarn_host *h, const struct hosting_lend *lend) {
    struct hosted *s = segment_numbered(h, lend->number);
    uint64_t now = now_ms();
    if (s == NULL) {
        lend_over(h, LEND_DONE, "");
    } else if (!s->gone) {
        take_ask(h, s, now);
    } else if (s->users == 0 && host_slot_close(h->host, s->slot) == TARN_OK) {
        s->closed = true;
        take_end(h, LEND_DONE, "");
        return;
    }
    hosting_wake_at(h, now + (s != NULL && s->gone ? LEND_LOOK_MS : 10 * LEND_LOOK_MS));
}

/* --- a disk --- */

static struct hosting_far *disk_of(struct tarn_host *h) {
    for (unsigned i = 0; i < h->n_fars; i++)
        if (h->fars[i].segment->kind == HOSTED_SSD) return &h->fars[i];
    return NULL;
}

/* It is of no use to its master until it is open. */
static tarn_status disk_add(struct tarn_host *h, const struct hosting_lend *lend,
                            struct hosting_far **far_p) {
    if (!segment_fits(h)) return TARN_ELIMIT;
    tarn_status status =
        far_add(h, HOSTED_SSD, lend->segment.path, lend->segment.bytes, false, far_p);
    (*far_p)->segment->gone = true;
    return status;
}

static void disk_unmount(struct tarn_host *h, const struct hosted *s) {
    struct hosting_session *session = &h->session;
    struct hosting_link *l = &h->reports;
    struct wire_drain drain = {0};
    if (session->phase != PHASE_UP || session->lend_unmounting || link_room(l) == 0 || !s->mounted)
        return;
    session->lend_unmounting = true;
    link_node(h, l);
    drain.name = request_str(&l->request, s->name);
    link_send_waiting(h, l, WIRE_segment_unmount, &drain, session->max_lease_ms, take_answered,
                      "SEGMENT UNMOUNT");
}

/* Nobody reads it, and nothing is stored there. */
static bool disk_rests(struct tarn_host *h, const struct hosting_far *f, uint64_t bytes) {
    if (f->stores_out > 0 || f->offering.in_flight) return false;
    return !f->served || host_reader_resize(h->host, f->segment->slot, bytes) == TARN_OK;
}

static void disk_turn(struct tarn_host *h, const struct hosting_lend *lend) {
    struct hosting_far *f = disk_of(h);
    struct hosted *s = f != NULL ? f->segment : NULL;
    if (f == NULL) {
        tarn_status status = disk_add(h, lend, &f);
        if (status != TARN_OK) lend_over(h, LEND_FAILED, tarn_status_text(status));
    } else if (f->opening) {
        return; /* its end wakes us */
    } else if (!h->session.lend_opened && !s->gone) {
        disk_unmount(h, s);
    } else if (!h->session.lend_opened) {
        if (disk_rests(h, f, lend->segment.bytes)) far_resize(f, lend->segment.bytes);
    } else if (s->populating) {
        add_mount(h, s);
    } else if (s->gone || (s->mounted && s->serve_until == 0)) {
        take_end(h, lend->why[0] != '\0' ? LEND_FAILED : LEND_DONE, lend->why);
        return;
    } else if (s->mounted) {
        mount_turn(h);
    }
    hosting_wake_at(h, now_ms() + LEND_LOOK_MS);
}

void lend_disk_opened(struct tarn_host *h, struct hosting_far *f, bool open, const char *why) {
    if (!open) {
        take_end(h, LEND_FAILED, why);
        return;
    }
    lend_over(h, LEND_DISK, why); /* once it is mounted */
    f->segment->gone = false;
    f->segment->populating = true;
    h->session.lend_opened = true;
}

static const struct hosted *segment_gone(const struct tarn_host *h) {
    for (unsigned i = 0; i < h->n_segments; i++) {
        const struct hosted *s = &h->segments[i];
        if (s->kind == HOSTED_MEMORY && s->gone && !s->closed) return s;
    }
    return NULL;
}

void lend_turn(struct tarn_host *h) {
    const struct hosting_session *s = &h->session;
    const struct hosted *gone = segment_gone(h);
    pthread_mutex_lock(&h->mutex);
    h->standing = (struct hosting_standing){
        .up = s->phase == PHASE_UP && s->closing == CLOSE_NO && !s->draining && !s->maintenance,
        .used = s->used,
        .evicted_idle_ms = s->has_standing ? s->evicted_idle_ms : -1,
        .map_epoch = s->map_epoch,
        .gone = gone != NULL,
        .gone_number = gone != NULL ? gone->number : 0};
    struct hosting_lend lend = h->lend;
    pthread_mutex_unlock(&h->mutex);
    if (s->closing != CLOSE_NO) return;
    if (lend.state == LEND_ADD) add_turn(h, &lend);
    if (lend.state == LEND_TAKE) take_turn(h, &lend);
    if (lend.state == LEND_DISK) disk_turn(h, &lend);
}
