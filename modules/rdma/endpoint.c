/* The host as its clients name it: rdma://host:port. Connections belong to keys, which know the
 * addresses of each of the host's devices; an endpoint only gathers the operations that are given
 * up together. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "rdma/work.h"

static bool is_uri(const char *uri) {
    static const char scheme[] = "rdma://";
    if (strncmp(uri, scheme, sizeof(scheme) - 1) != 0) return false;
    const char *host = uri + sizeof(scheme) - 1, *colon = strrchr(host, ':');
    if (colon == NULL || colon == host) return false;
    if ((host[0] == '[') != (colon[-1] == ']')) return false;
    char *end;
    errno = 0;
    unsigned long port = strtoul(colon + 1, &end, 10);
    return errno == 0 && end != colon + 1 && *end == '\0' && port > 0 && port <= 65535;
}

static bool have_device(void) {
    for (unsigned i = 0; i < rdma_devices_count(); i++) {
        if (rdma_device_usable(rdma_device_at(i))) return true;
    }
    return false;
}

tarn_status rdma_connect_to(struct transport_domain *d, const char *uri, uint64_t deadline_boot_ms,
                            struct transport_endpoint **endpoint_p) {
    (void)deadline_boot_ms; /* the network is not touched before there is an operation */
    if (!is_uri(uri)) return TARN_EINVAL;
    if (d->channel == NULL || !have_device()) return TARN_ECLOSED;
    (void)rdma_work_of(d);
    struct transport_endpoint *e = xcalloc(1, sizeof(*e));
    e->magic = RDMA_ENDPOINT_MAGIC;
    e->domain = d;
    TAILQ_INIT(&e->tasks);
    TAILQ_INSERT_TAIL(&d->endpoints, e, link);
    *endpoint_p = e;
    return TARN_OK;
}

tarn_status rdma_endpoint_status(const struct transport_endpoint *e) {
    MAGIC_CHECK(e, RDMA_ENDPOINT_MAGIC);
    return have_device() ? TARN_OK : TARN_ECLOSED;
}

/* What is posted gets a moment to end by itself: that leaves no doubt about a PUT, and costs nobody
 * else a queue pair. */
void rdma_endpoint_close(struct transport_endpoint **endpoint_p) {
    struct transport_endpoint *e = *endpoint_p;
    if (e == NULL) return;
    MAGIC_CHECK(e, RDMA_ENDPOINT_MAGIC);
    struct rdma_work *w = e->domain->work;
    uint64_t now_ms = e->domain->now_ms = clock_boot_ms();
    struct rdma_task *t;
    if (e->cancel_ms == 0) {
        e->cancel_ms = now_ms + RDMA_CANCEL_MS;
        TAILQ_FOREACH(t, &e->tasks, end_link) e->domain->counters.cancelled += !t->finished;
        for (struct rdma_task *next = TAILQ_FIRST(&e->tasks); (t = next) != NULL;) {
            next = TAILQ_NEXT(t, end_link);
            rdma_task_fail(t, TARN_ECANCELED);
        }
    } else if (now_ms >= e->cancel_ms) {
        TAILQ_FOREACH(t, &e->tasks, end_link) rdma_task_tear(t);
        rdma_rails_bury(w);
    }
    rdma_work_deliver(w, e);
    if (!TAILQ_EMPTY(&e->tasks)) return;
    *endpoint_p = NULL;
    TAILQ_REMOVE(&e->domain->endpoints, e, link);
    e->magic = 0;
    free(e);
}
