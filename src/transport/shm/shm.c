/* The shm transport's domain and table. */
#include "transport/shm/shm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/log.h"

#define DOMAIN_MAGIC 0x53444f4du /* "SDOM" */

bool shm_address(const char *uri, struct sockaddr_un *addr_p, const char **path_p) {
    if (strncmp(uri, "shm://", 6) != 0) return false;
    const char *path = uri + 6;
    *addr_p = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (*path == '\0' || strlen(path) >= sizeof(addr_p->sun_path)) {
        log_warning("A shm socket's path has 1 to %zu bytes: %s", sizeof(addr_p->sun_path) - 1,
                    uri);
        return false;
    }
    memcpy(addr_p->sun_path, path, strlen(path));
    *path_p = path;
    return true;
}

static tarn_status shm_domain_open(const struct transport_domain_config *config,
                                   struct transport_domain **domain_p) {
    (void)config;
    struct transport_domain *d = xcalloc(1, sizeof(*d));
    d->magic = DOMAIN_MAGIC;
    LIST_INIT(&d->memories);
    LIST_INIT(&d->listeners);
    TAILQ_INIT(&d->runnable);
    d->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (d->epoll_fd < 0) {
        log_warning("The shm transport cannot start: %s", strerror(errno));
        free(d);
        return TARN_EIO;
    }
    *domain_p = d;
    return TARN_OK;
}

static void shm_domain_close(struct transport_domain **domain_p) {
    struct transport_domain *d = *domain_p;
    if (d == NULL) return;
    MAGIC_CHECK(d, DOMAIN_MAGIC);
    TARN_ASSERT(LIST_EMPTY(&d->memories) && LIST_EMPTY(&d->listeners) && d->n_endpoints == 0);
    *domain_p = NULL;
    close(d->epoll_fd);
    d->magic = 0;
    free(d);
}

static tarn_status shm_memory_register(struct transport_domain *d,
                                       const struct transport_memory_config *config,
                                       struct transport_memory **memory_p) {
    /* Plain memory needs nothing: our own loads and stores reach it. Peers need a file. */
    bool has_file = config->fd >= 0 && config->fd_read >= 0 && config->header_size > 0;
    if (config->dmabuf || (config->remote && !has_file)) return TARN_ENOTSUP;
    struct transport_memory *m = xcalloc(1, sizeof(*m));
    m->domain = d;
    m->config = *config;
    LIST_INSERT_HEAD(&d->memories, m, link);
    *memory_p = m;
    return TARN_OK;
}

static void shm_memory_deregister(struct transport_memory **memory_p) {
    struct transport_memory *m = *memory_p;
    if (m == NULL) return;
    *memory_p = NULL;
    shm_forget_memory(m);
    LIST_REMOVE(m, link);
    free(m);
}

static size_t shm_progress(struct transport_domain *d, uint64_t budget) {
    MAGIC_CHECK(d, DOMAIN_MAGIC);
    d->completed = 0;
    if (!LIST_EMPTY(&d->listeners)) shm_serve(d);
    shm_run(d, budget);
    return d->completed;
}

static tarn_status shm_arm(struct transport_domain *d, int *fd_p) {
    if (!TAILQ_EMPTY(&d->runnable)) return TARN_EAGAIN;
    *fd_p = d->epoll_fd;
    return TARN_OK;
}

const struct transport_ops transport_shm = {
    .abi = TRANSPORT_ABI,
    .flags = TRANSPORT_MAP,
    .cost = 10,
    .scheme = "shm",
    .domain_open = shm_domain_open,
    .domain_close = shm_domain_close,
    .memory_register = shm_memory_register,
    .key_unpack = shm_key_unpack,
    .key_map = shm_key_map,
    .key_check = shm_key_check,
    .key_close = shm_key_close,
    .memory_deregister = shm_memory_deregister,
    .listen = shm_listen,
    .listener_stats = shm_listener_stats,
    .listener_programs = shm_listener_programs,
    .listener_fence = shm_listener_fence,
    .listener_lent = shm_listener_lent,
    .listener_close = shm_listener_close,
    .connect = shm_connect,
    .endpoint_status = shm_endpoint_status,
    .endpoint_close = shm_endpoint_close,
    .submit = shm_submit,
    .progress = shm_progress,
    .arm = shm_arm,
};
