/* The tcp transport: its domain, and the parts of the table that need no bytes on a wire. There is
 * no memory to register: the kernel copies, and the listener asks its gate where to. */
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

struct transport_memory {
    struct transport_domain *domain;
};
struct transport_key {
    struct transport_endpoint *endpoint;
};

static void domain_close(struct transport_domain **domain_p) {
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

static tarn_status domain_open(const struct transport_domain_config *config,
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
        domain_close(&d);
        return TARN_EIO;
    }
    *domain_p = d;
    return TARN_OK;
}

static tarn_status memory_register(struct transport_domain *d,
                                   const struct transport_memory_config *config,
                                   struct transport_memory **memory_p) {
    if (config->dmabuf) return TARN_ENOTSUP;
    *memory_p = xcalloc(1, sizeof(**memory_p));
    (*memory_p)->domain = d;
    return TARN_OK;
}
static void memory_deregister(struct transport_memory **memory_p) {
    free(*memory_p);
    *memory_p = NULL;
}
static bool listener_lent(const struct transport_listener *l, const struct transport_memory *m,
                          uint32_t below_epoch) {
    (void)l, (void)m, (void)below_epoch; /* peers ask for every transfer */
    return false;
}
static tarn_status key_pack(struct transport_memory *m, bool writable, struct buf *out) {
    (void)m, (void)writable, (void)out;
    return TARN_OK;
}
static uint64_t memory_version(const struct transport_memory *m) {
    (void)m;
    return 0;
}
static tarn_status listener_uri(const struct transport_listener *l, struct buf *out) {
    (void)l, (void)out; /* it may be bound to every address, or be reached by a name */
    return TARN_ENOTSUP;
}
static void describe(const struct transport_domain *d, struct buf *out) {
    (void)d, (void)out; /* its counters say all */
}
static tarn_status key_unpack(struct transport_endpoint *e,
                              const struct transport_key_config *config,
                              struct transport_key **key_p) {
    (void)config;
    *key_p = xcalloc(1, sizeof(**key_p));
    (*key_p)->endpoint = e;
    return TARN_OK;
}
static void *key_map(struct transport_key *k, uint64_t offset, uint64_t length) {
    (void)k, (void)offset, (void)length;
    return NULL;
}
static tarn_status key_check(struct transport_key *k) {
    (void)k;
    return TARN_OK;
}
static void key_close(struct transport_key **key_p) {
    free(*key_p);
    *key_p = NULL;
}

const struct transport_ops transport_tcp = {
    .abi = TRANSPORT_ABI,
    .flags = TRANSPORT_GRANTED | TRANSPORT_STREAMS | TRANSPORT_REMOTE,
    .cost = 30,
    .scheme = "tcp",
    .secure_scheme = "tcps",
    .domain_open = domain_open,
    .domain_close = domain_close,
    .memory_register = memory_register,
    .key_pack = key_pack,
    .memory_version = memory_version,
    .key_unpack = key_unpack,
    .key_map = key_map,
    .key_check = key_check,
    .key_close = key_close,
    .memory_deregister = memory_deregister,
    .listen = tcp_listen,
    .listener_port = tcp_listener_port,
    .listener_uri = listener_uri,
    .listener_stats = tcp_listener_stats,
    .listener_stats_reset = tcp_listener_stats_reset,
    .listener_fence = tcp_listener_fence,
    .listener_lent = listener_lent,
    .listener_close = tcp_listener_close,
    .connect = tcp_connect,
    .endpoint_status = tcp_endpoint_status,
    .endpoint_close = tcp_endpoint_close,
    .submit = tcp_submit,
    .progress = tcp_progress,
    .arm = tcp_arm,
    .describe = describe,
};
