/* The tcp transport: its domain and table. There is no memory to register: the kernel copies, and
 * the listener asks its gate where to. */
#include "transport/tcp/tcp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/log.h"

#define DOMAIN_MAGIC 0x54444f4du /* "TDOM" */

static void tcp_domain_close(struct transport_domain **domain_p) {
    struct transport_domain *d = *domain_p;
    if (d == NULL) return;
    MAGIC_CHECK(d, DOMAIN_MAGIC);
    TARN_ASSERT(TAILQ_EMPTY(&d->endpoints) && d->listeners == 0);
    *domain_p = NULL;
    if (d->epoll_fd >= 0) close(d->epoll_fd);
    if (d->notify_fd >= 0) close(d->notify_fd);
    d->magic = 0;
    free(d);
}

static tarn_status tcp_domain_open(const struct transport_domain_config *config,
                                   struct transport_domain **domain_p) {
    struct transport_domain *d = xcalloc(1, sizeof(*d));
    d->magic = DOMAIN_MAGIC;
    d->tls = config->tls;
    d->notify_tag.kind = TCP_TAG_NOTIFY;
    TAILQ_INIT(&d->endpoints);
    TAILQ_INIT(&d->runnable);
    d->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    d->notify_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = &d->notify_tag};
    if (d->epoll_fd < 0 || d->notify_fd < 0 ||
        epoll_ctl(d->epoll_fd, EPOLL_CTL_ADD, d->notify_fd, &ev) != 0) {
        log_warning("The tcp transport cannot start: %s", strerror(errno));
        tcp_domain_close(&d);
        return TARN_EIO;
    }
    *domain_p = d;
    return TARN_OK;
}

const struct transport_ops transport_tcp = {
    .abi = TRANSPORT_ABI,
    .flags = TRANSPORT_GRANTED | TRANSPORT_STREAMS | TRANSPORT_REMOTE,
    .cost = 30,
    .scheme = "tcp",
    .secure_scheme = "tcps",
    .domain_open = tcp_domain_open,
    .domain_close = tcp_domain_close,
    .listen = tcp_listen,
    .listener_port = tcp_listener_port,
    .listener_stats = tcp_listener_stats,
    .listener_times = tcp_listener_times,
    .listener_programs = tcp_listener_programs,
    .listener_fence = tcp_listener_fence,
    .listener_close = tcp_listener_close,
    .listener_read = tcp_listener_read,
    .connect = tcp_connect,
    .endpoint_status = tcp_endpoint_status,
    .endpoint_close = tcp_endpoint_close,
    .submit = tcp_submit,
    .progress = tcp_progress,
    .arm = tcp_arm,
};
