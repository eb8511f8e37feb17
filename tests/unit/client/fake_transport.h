/* A transport, as of a module, that moves no byte: its host is ready when a test says so, a
 * client's keys are noted, and whatever is to be moved fails. */
#ifndef TARN_TESTS_FAKE_TRANSPORT_H
#define TARN_TESTS_FAKE_TRANSPORT_H

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/assert.h"
#include "client/client.h"
#include "transport/transport.h"

static struct {
    pthread_mutex_t mutex;
    int wake_fd;         /* of the domain, -1: none */
    unsigned generation; /* 0: nothing is ready */
    bool unplugged;
    char report[48u << 10];
    char uri[300], unpacked[1000]; /* where a client connected to, and what it showed there */
} dev = {.mutex = PTHREAD_MUTEX_INITIALIZER, .wake_fd = -1};

struct transport_domain {
    int fd;
};
struct transport_memory {
    uint32_t segment;
};
struct transport_listener {
    int unused;
};
struct transport_endpoint {
    int unused;
};
struct transport_key {
    int unused;
};

static inline void dev_set(unsigned generation, bool unplugged) {
    pthread_mutex_lock(&dev.mutex);
    dev.generation = generation;
    dev.unplugged = unplugged;
    if (dev.wake_fd >= 0) eventfd_write(dev.wake_fd, 1);
    pthread_mutex_unlock(&dev.mutex);
}

static inline void dev_report(const char *text) {
    pthread_mutex_lock(&dev.mutex);
    snprintf(dev.report, sizeof(dev.report), "%s", text);
    pthread_mutex_unlock(&dev.mutex);
}

static tarn_status far_domain_open(const struct transport_domain_config *config,
                                   struct transport_domain **d_p) {
    struct transport_domain *d = xcalloc(1, sizeof(*d));
    d->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_lock(&dev.mutex);
    if (dev.wake_fd < 0) dev.wake_fd = d->fd;
    pthread_mutex_unlock(&dev.mutex);
    *d_p = d;
    return TARN_OK;
}
static void far_domain_close(struct transport_domain **d_p) {
    pthread_mutex_lock(&dev.mutex);
    if (dev.wake_fd == (*d_p)->fd) dev.wake_fd = -1;
    pthread_mutex_unlock(&dev.mutex);
    close((*d_p)->fd);
    free(*d_p);
    *d_p = NULL;
}
static tarn_status far_memory_register(struct transport_domain *d,
                                       const struct transport_memory_config *config,
                                       struct transport_memory **memory_p) {
    *memory_p = xcalloc(1, sizeof(**memory_p));
    (*memory_p)->segment = config->segment;
    return TARN_OK;
}
static uint64_t far_memory_version(const struct transport_memory *m) {
    pthread_mutex_lock(&dev.mutex);
    uint64_t version = dev.generation;
    pthread_mutex_unlock(&dev.mutex);
    return version;
}
static tarn_status far_key_pack(struct transport_memory *m, bool writable, struct buf *out) {
    unsigned version = (unsigned)far_memory_version(m);
    if (version == 0) return TARN_EAGAIN;
    buf_printf(out, "%s-%u-%u", writable ? "write" : "read", m->segment, version);
    return TARN_OK;
}
static tarn_status far_key_unpack(struct transport_endpoint *e,
                                  const struct transport_key_config *config,
                                  struct transport_key **key_p) {
    char text[500];
    snprintf(text, sizeof(text), "%s %u %s %.*s; ", dev.uri, config->segment,
             config->writable ? "w" : "r", (int)min_u64(config->packed_len, 80),
             (const char *)config->packed);
    pthread_mutex_lock(&dev.mutex);
    if (strlen(dev.unpacked) + strlen(text) < sizeof(dev.unpacked)) strcat(dev.unpacked, text);
    pthread_mutex_unlock(&dev.mutex);
    *key_p = xcalloc(1, sizeof(**key_p));
    return TARN_OK;
}
static tarn_status far_key_check(struct transport_key *k) {
    return TARN_OK;
}
static void far_key_close(struct transport_key **key_p) {
    free(*key_p);
    *key_p = NULL;
}
static void far_memory_deregister(struct transport_memory **memory_p) {
    free(*memory_p);
    *memory_p = NULL;
}
static tarn_status far_listen(struct transport_domain *d,
                              const struct transport_listen_config *config,
                              struct transport_listener **l_p) {
    *l_p = xcalloc(1, sizeof(**l_p));
    return TARN_OK;
}
static tarn_status far_listener_uri(const struct transport_listener *l, struct buf *out) {
    if (dev.unplugged) return TARN_EAGAIN;
    buf_append_str(out, "far://*:5");
    return TARN_OK;
}
static void far_listener_stats(const struct transport_listener *l,
                               struct transport_listener_stats *stats_p) {
    *stats_p = (struct transport_listener_stats){0};
}
static tarn_status far_listener_fence(struct transport_listener *l,
                                      const struct transport_fence *fence) {
    return TARN_OK;
}
static bool far_listener_lent(const struct transport_listener *l, const struct transport_memory *m,
                              uint32_t below_epoch) {
    return false;
}
static void far_listener_close(struct transport_listener **l_p) {
    free(*l_p);
    *l_p = NULL;
}
static tarn_status far_connect(struct transport_domain *d, const char *uri,
                               uint64_t deadline_boot_ms, struct transport_endpoint **endpoint_p) {
    pthread_mutex_lock(&dev.mutex);
    snprintf(dev.uri, sizeof(dev.uri), "%s", uri);
    pthread_mutex_unlock(&dev.mutex);
    *endpoint_p = xcalloc(1, sizeof(**endpoint_p));
    return TARN_OK;
}
static tarn_status far_endpoint_status(const struct transport_endpoint *e) {
    return TARN_OK;
}
static void far_endpoint_close(struct transport_endpoint **endpoint_p) {
    free(*endpoint_p);
    *endpoint_p = NULL;
}
static tarn_status far_submit(struct transport_endpoint *e, struct transport_op *const *ops,
                              size_t n, size_t *accepted_p) {
    return TARN_ECLOSED;
}
static size_t far_progress(struct transport_domain *d, uint64_t budget) {
    eventfd_t ignored;
    eventfd_read(d->fd, &ignored);
    return 0;
}
static tarn_status far_arm(struct transport_domain *d, int *fd_p) {
    *fd_p = d->fd;
    return TARN_OK;
}
static void far_describe(const struct transport_domain *d, struct buf *out) {
    pthread_mutex_lock(&dev.mutex);
    buf_append_str(out, dev.report);
    pthread_mutex_unlock(&dev.mutex);
}

static struct transport_ops transport_far = {
    .abi = TRANSPORT_ABI,
    .flags = TRANSPORT_REMOTE | TRANSPORT_ANNOUNCES,
    .cost = 20,
    .domain_open = far_domain_open,
    .domain_close = far_domain_close,
    .memory_register = far_memory_register,
    .key_pack = far_key_pack,
    .memory_version = far_memory_version,
    .key_unpack = far_key_unpack,
    .key_check = far_key_check,
    .key_close = far_key_close,
    .memory_deregister = far_memory_deregister,
    .listen = far_listen,
    .listener_uri = far_listener_uri,
    .listener_stats = far_listener_stats,
    .listener_fence = far_listener_fence,
    .listener_lent = far_listener_lent,
    .listener_close = far_listener_close,
    .connect = far_connect,
    .endpoint_status = far_endpoint_status,
    .endpoint_close = far_endpoint_close,
    .submit = far_submit,
    .progress = far_progress,
    .arm = far_arm,
    .describe = far_describe,
};

static inline void far_register(const char *scheme) {
    transport_far.scheme = scheme;
    dev.unpacked[0] = '\0';
    CHECK_EQ(transport_register(&transport_far), TARN_OK);
}

#endif
