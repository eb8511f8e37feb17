/* A host ties three things together: segments (src/pool), the gate that says who may touch them
 * (gate.c), and one listener per transport that asks it. It has no thread of its own.
 *
 *   host_create -> (segments come and go: slots.c) -> host_start
 *               -> (host_poll, host_fence: fences.c) -> host_destroy */
#include "host/host.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/log.h"
#include "host/host_internal.h"
#include "transport/uri.h"

#define POLL_BUDGET (64u << 10)

const char *host_data_scheme(const struct host *h) {
    return h->config.tls != NULL ? transport_tcp.secure_scheme : transport_tcp.scheme;
}

tarn_status host_create(const struct host_config *config, struct host **host_p) {
    struct host *h = xcalloc(1, sizeof(*h));
    h->magic = HOST_MAGIC;
    host_gate_init(&h->gate);
    h->config = *config;
    h->config.threads = config->threads > 0 ? config->threads : 1;
    static const char *const any[] = {"*"};
    const char *const *bind = config->binds > 0 ? config->bind : any;
    h->n_uris = config->binds > 0 ? config->binds : 1;
    h->uris = xcalloc(h->n_uris, sizeof(*h->uris));
    for (size_t i = 0; i < h->n_uris; i++)
        h->uris[i] = uri_make(span_str(host_data_scheme(h)), bind[i], config->data_port);
    if (config->shm_path != NULL && config->shm_path[0] != '\0') {
        h->shm_uri = uri_of_path(transport_shm.scheme, config->shm_path);
    }

    tarn_status s = TARN_OK;
    h->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    h->kick_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    h->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (h->epoll_fd < 0 || h->kick_fd < 0 || h->timer_fd < 0 || !host_watch(h, h->kick_fd) ||
        !host_watch(h, h->timer_fd)) {
        s = TARN_EIO;
    }
    if (s == TARN_OK) s = host_path_open(h, (const char *const *)h->uris, h->n_uris);
    if (s == TARN_OK && h->shm_uri != NULL)
        s = host_path_open(h, (const char *const *)&h->shm_uri, 1);
    if (s != TARN_OK) {
        host_destroy(&h);
        return s;
    }
    host_paths_add_all(h);
    *host_p = h;
    return TARN_OK;
}

void host_destroy(struct host **host_p) {
    struct host *h = *host_p;
    if (h == NULL) return;
    MAGIC_CHECK(h, HOST_MAGIC);
    *host_p = NULL;
    /* Listeners first: their threads use the segments. */
    for (unsigned i = 0; i < h->n_paths; i++) {
        if (h->paths[i].listener != NULL) h->paths[i].ops->listener_close(&h->paths[i].listener);
    }
    host_close_slots(h);
    for (unsigned i = 0; i < h->n_paths; i++) transport_close(h->paths[i].ops, &h->paths[i].domain);
    host_gate_deinit(&h->gate);
    if (h->epoll_fd >= 0) close(h->epoll_fd);
    if (h->kick_fd >= 0) close(h->kick_fd);
    if (h->timer_fd >= 0) close(h->timer_fd);
    for (size_t i = 0; i < h->n_uris; i++) free(h->uris[i]);
    free(h->uris);
    free(h->shm_uri);
    free(h->fences);
    h->magic = 0;
    free(h);
}

void host_set_authority(struct host *h, const uint8_t key[GRANT_KEY_SIZE], uint32_t master_epoch) {
    MAGIC_CHECK(h, HOST_MAGIC);
    host_gate_set_authority(&h->gate, key, master_epoch);
}

void host_set_clock_offset(struct host *h, int64_t offset_ms) {
    __atomic_store_n(&h->gate.clock_offset_ms, offset_ms, __ATOMIC_RELAXED);
}

/* --- serving --- */

void host_move_shm(struct host *h, const char *path) {
    MAGIC_CHECK(h, HOST_MAGIC);
    TARN_ASSERT(!h->started && h->shm_uri != NULL);
    free(h->shm_uri);
    h->shm_uri = uri_of_path(transport_shm.scheme, path);
}

static bool is_shm(const struct host *h, const struct host_path *p) {
    return p->uris == (const char *const *)&h->shm_uri;
}

tarn_status host_start(struct host *h) {
    MAGIC_CHECK(h, HOST_MAGIC);
    TARN_ASSERT(!h->started);
    h->started = true; /* what fails here is for host_destroy to clean up */
    for (unsigned i = 0; i < h->n_paths; i++) {
        struct host_path *p = &h->paths[i];
        tarn_status s = host_path_listen(h, p);
        if (s == TARN_OK) continue;
        if (is_shm(h, p) ? !h->config.shm_optional : p->n_uris > 0) return s;
        log_warning("This host does not serve by %s: %s", p->ops->scheme, tarn_status_text(s));
    }
    return TARN_OK;
}

const char *host_shm_uri(const struct host *h) {
    for (unsigned i = 0; i < h->n_paths; i++) {
        const struct host_path *p = &h->paths[i];
        if (p->listener != NULL && is_shm(h, p)) return h->shm_uri;
    }
    return NULL;
}

const char *host_shm_path(const struct host *h) {
    const char *uri = host_shm_uri(h);
    return uri != NULL ? strstr(uri, "://") + 3 : "";
}

uint16_t host_data_port(const struct host *h) {
    for (unsigned i = 0; i < h->n_paths; i++) {
        const struct host_path *p = &h->paths[i];
        if (p->listener != NULL && p->ops->listener_port != NULL)
            return p->ops->listener_port(p->listener);
    }
    return 0;
}

int host_event_fd(const struct host *h) {
    return h->epoll_fd;
}

void host_poll(struct host *h) {
    MAGIC_CHECK(h, HOST_MAGIC);
    eventfd_t ignored;
    (void)eventfd_read(h->kick_fd, &ignored);
    (void)eventfd_read(h->timer_fd, &ignored);
    for (unsigned i = 0; i < h->n_paths; i++)
        h->paths[i].ops->progress(h->paths[i].domain, POLL_BUDGET);
    host_report_fences(h);
    host_paths_turn(h);
}

/* --- for this process --- */

bool host_reads(const struct host *h, const struct grant_extent *extent) {
    MAGIC_CHECK(h, HOST_MAGIC);
    return host_gate_reads(&h->gate, extent);
}

tarn_status host_read(struct host *h, struct transport_op *op, uint64_t deadline_boot_ms) {
    MAGIC_CHECK(h, HOST_MAGIC);
    const struct host_path *p = &h->paths[0]; /* the data port, as long as there is a host */
    uint64_t length = 0;
    for (size_t i = 0; i < op->n_parts; i++) {
        const struct transport_part *part = &op->parts[i];
        if (part->sub_offset > part->extent.length ||
            part->sub_length > part->extent.length - part->sub_offset)
            return TARN_EINVAL;
        if (!host_reads(h, &part->extent)) return TARN_ENOTFOUND;
        length += part->sub_length;
    }
    if (length != iov_total(op->iov, op->n_iov)) return TARN_EINVAL;
    return p->ops->listener_read(p->listener, op, deadline_boot_ms);
}

/* --- statistics --- */

#define NO_ROW(...)
#define INFO_ROW(type, member, name, help)                                                         \
    FIGURE_ROW_NAMED(struct host_stats, type, member, name, help)
#define NODE_ROW(type, name, info_name, help) FIGURE_ROW(struct host_stats, type, name, help)
const struct figure host_figures[] = {HOST_FIGURES(INFO_ROW, INFO_ROW, NO_ROW){.name = NULL}};
const struct figure host_node_figures[] = {HOST_FIGURES(NODE_ROW, NO_ROW, NODE_ROW){.name = NULL}};

void host_get_stats(const struct host *h, struct host_stats *stats_p) {
    struct host_stats sum = {.max_connections = h->config.max_connections,
                             .fences_pending = host_fences_pending(h),
                             .fenced_sessions =
                                 __atomic_load_n(&h->gate.n_fenced, __ATOMIC_RELAXED),
                             .puts = __atomic_load_n(&h->gate.puts.count, __ATOMIC_RELAXED)};
    for (unsigned i = 0; i < h->n_paths; i++) {
        const struct host_path *p = &h->paths[i];
        if (p->listener == NULL) continue;
        struct transport_listener_stats s = {0};
        p->ops->listener_stats(p->listener, &s);
        if (p->ops->listener_programs != NULL)
            p->ops->listener_programs(p->listener, &sum.programs);
        if ((p->ops->flags & TRANSPORT_GRANTED) != 0) {
            sum.connections += s.connections;
            sum.connections_total += s.connections_total;
        } else if ((p->ops->flags & TRANSPORT_MAP) != 0) {
            sum.shm_peers += s.connections;
            sum.shm_attaches += s.attaches_total;
        } else {
            sum.module_peers += s.connections;
        }
#define ADD(member) sum.member += s.member
        ADD(connections_refused), ADD(connections_new), ADD(connections_ousted);
        ADD(reads), ADD(writes), ADD(bytes_read), ADD(bytes_written), ADD(bad_frames);
        ADD(timeouts), ADD(staged_reads), ADD(staged_bytes), ADD(staged_failures);
        ADD(staging_used), ADD(staging_waits), ADD(staging_shared);
#undef ADD
        for (int v = 0; v < GRANT_VERDICTS; v++) sum.refused[v] += s.refused[v];
    }
    *stats_p = sum;
}
