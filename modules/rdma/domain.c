/* A domain: one epoll set over the rdma_cm channel, the channels of completion queues, an eventfd
 * by which other threads wake it, and a timer. All that happens in it happens in progress. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "rdma/rdma.h"

#define DOMAIN_MAGIC  0x52444f4du /* "RDOM" */
#define EVENTS_MAX    (3 + RDMA_DEVICES_MAX)
#define CM_EVENTS_MAX 64    /* of rdma_cm, per progress; more wait for the next one */
#define CQ_ENTRIES    8192u /* enough for 64 rails with the default send queue */

static bool domain_watch(struct transport_domain *d, int fd, struct rdma_tag *tag) {
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = tag};
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0 &&
           epoll_ctl(d->epoll_fd, EPOLL_CTL_ADD, fd, &ev) == 0;
}

tarn_status rdma_domain_open(const struct transport_domain_config *config,
                             struct transport_domain **domain_p) {
    (void)config; /* devices are chosen for the process: options.c */
    struct transport_domain *d = xcalloc(1, sizeof(*d));
    d->magic = DOMAIN_MAGIC;
    d->channel_tag.kind = RDMA_TAG_CHANNEL;
    d->kick_tag.kind = RDMA_TAG_KICK;
    d->timer_tag.kind = RDMA_TAG_TIMER;
    LIST_INIT(&d->memories);
    LIST_INIT(&d->listeners);
    TAILQ_INIT(&d->endpoints);
    LIST_INIT(&d->keys);
    d->now_ms = clock_boot_ms();
    d->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    d->kick_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    d->timer_fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    /* Without a device there is no channel either, and nothing that would need one. */
    if (rdma_devices_count() > 0) d->channel = rdma_create_event_channel();
    rdma_domains_add(d);
    if (d->epoll_fd < 0 || d->kick_fd < 0 || d->timer_fd < 0 ||
        !domain_watch(d, d->kick_fd, &d->kick_tag) ||
        !domain_watch(d, d->timer_fd, &d->timer_tag) ||
        (rdma_devices_count() > 0 &&
         (d->channel == NULL || !domain_watch(d, d->channel->fd, &d->channel_tag)))) {
        log_warning("The rdma transport cannot start: %s", strerror(errno));
        rdma_domain_close(&d);
        return TARN_EIO;
    }
    *domain_p = d;
    return TARN_OK;
}

static void close_cq(struct transport_domain *d, struct rdma_cq *cq) {
    if (cq->cq == NULL) return;
    TARN_ASSERT(cq->reserved == 0);
    if (cq->unacked > 0) ibv_ack_cq_events(cq->cq, cq->unacked);
    ibv_destroy_cq(cq->cq);
    (void)epoll_ctl(d->epoll_fd, EPOLL_CTL_DEL, cq->channel->fd, NULL);
    ibv_destroy_comp_channel(cq->channel);
    *cq = (struct rdma_cq){0};
}

void rdma_domain_close(struct transport_domain **domain_p) {
    struct transport_domain *d = *domain_p;
    if (d == NULL) return;
    MAGIC_CHECK(d, DOMAIN_MAGIC);
    TARN_ASSERT(LIST_EMPTY(&d->memories) && LIST_EMPTY(&d->listeners) &&
                TAILQ_EMPTY(&d->endpoints) && LIST_EMPTY(&d->keys));
    *domain_p = NULL;
    rdma_work_close(d);
    for (unsigned i = 0; i < RDMA_DEVICES_MAX; i++) close_cq(d, &d->cqs[i]);
    rdma_domains_remove(d); /* from here on nobody kicks */
    if (d->channel != NULL) rdma_destroy_event_channel(d->channel);
    if (d->epoll_fd >= 0) close(d->epoll_fd);
    if (d->kick_fd >= 0) close(d->kick_fd);
    if (d->timer_fd >= 0) close(d->timer_fd);
    d->magic = 0;
    free(d);
}

tarn_status rdma_domain_cq(struct transport_domain *d, struct rdma_device *device,
                           struct rdma_cq **cq_p) {
    struct rdma_cq *cq = &d->cqs[device->index];
    *cq_p = cq;
    if (cq->cq != NULL) return TARN_OK;
    uint64_t most = (uint64_t)rdma_options.send_queue * rdma_options.max_rails;
    uint64_t entries = min_u64(max_u64(CQ_ENTRIES, 4u * rdma_options.send_queue), most);
    if (device->attr.max_cqe > 0) entries = min_u64(entries, (uint64_t)device->attr.max_cqe);
    cq->tag.kind = RDMA_TAG_CQ;
    cq->device = device;
    cq->entries = (unsigned)entries;
    cq->channel = ibv_create_comp_channel(device->verbs);
    if (cq->channel != NULL && domain_watch(d, cq->channel->fd, &cq->tag) &&
        (cq->cq = ibv_create_cq(device->verbs, (int)entries, cq, cq->channel, 0)) != NULL) {
        return TARN_OK;
    }
    log_warning("RDMA device %s: no completion queue of %u entries: %s", device->name, cq->entries,
                strerror(errno));
    if (cq->channel != NULL) {
        (void)epoll_ctl(d->epoll_fd, EPOLL_CTL_DEL, cq->channel->fd, NULL);
        ibv_destroy_comp_channel(cq->channel);
    }
    *cq = (struct rdma_cq){0};
    return TARN_ENOMEM;
}

void rdma_domain_wake_at(struct transport_domain *d, uint64_t boot_ms) {
    if (d->wake_ms != 0 && d->wake_ms <= boot_ms) return;
    d->wake_ms = boot_ms != 0 ? boot_ms : 1;
    struct itimerspec at = {.it_value = {.tv_sec = (time_t)(d->wake_ms / 1000),
                                         .tv_nsec = (long)(d->wake_ms % 1000) * 1000000}};
    TARN_ASSERT(timerfd_settime(d->timer_fd, TFD_TIMER_ABSTIME, &at, NULL) == 0);
}

/* --- progress --- */

static void cm_dispatch(struct rdma_cm_event *event) {
    const struct rdma_tag *tag = event->id->context; /* a new id has that of the one that listens */
    if (tag != NULL && tag->kind == RDMA_TAG_RAIL) {
        rdma_rail_event(event);
    } else if (tag != NULL && (tag->kind == RDMA_TAG_LISTEN || tag->kind == RDMA_TAG_PEER)) {
        rdma_listener_event(event);
    } else {
        rdma_ack_cm_event(event);
    }
}

static void take_cm_events(struct transport_domain *d) {
    struct rdma_cm_event *event;
    for (int i = 0; i < CM_EVENTS_MAX && rdma_get_cm_event(d->channel, &event) == 0; i++)
        cm_dispatch(event);
}

size_t rdma_domain_progress(struct transport_domain *d, uint64_t budget) {
    MAGIC_CHECK(d, DOMAIN_MAGIC);
    d->completed = 0;
    d->now_ms = clock_boot_ms();
    struct epoll_event events[EVENTS_MAX];
    bool kicked = false, cm = false;
    int n = epoll_wait(d->epoll_fd, events, EVENTS_MAX, 0);
    for (int i = 0; i < n; i++) {
        const struct rdma_tag *tag = events[i].data.ptr;
        eventfd_t ignored;
        if (tag->kind == RDMA_TAG_KICK) {
            (void)eventfd_read(d->kick_fd, &ignored);
            kicked = true;
        } else if (tag->kind == RDMA_TAG_TIMER) {
            (void)eventfd_read(d->timer_fd, &ignored);
            d->wake_ms = 0; /* who needs it asks again, in this turn */
        } else if (tag->kind == RDMA_TAG_CHANNEL) {
            cm = true;
        }
    }
    d->kicks += kicked;
    if (cm) take_cm_events(d);
    rdma_listener_turn(d);
    if (kicked) rdma_memory_poll(d);
    rdma_cq_poll(d, budget);
    rdma_work_turn(d, budget);
    return d->completed;
}

tarn_status rdma_domain_arm(struct transport_domain *d, int *fd_p) {
    MAGIC_CHECK(d, DOMAIN_MAGIC);
    if (rdma_work_waiting(d)) return TARN_EAGAIN;
    tarn_status s = rdma_cq_arm(d);
    if (s != TARN_OK) return s;
    *fd_p = d->epoll_fd;
    return TARN_OK;
}
