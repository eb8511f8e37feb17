/* A host ties three things together: segments (src/pool), the gate that says who may touch them (gate.c), and one listener
 * per transport that asks it. It has no thread of its own.
 *
 *   host_create -> host_segment_add ... -> host_start -> (host_poll, host_fence ...) -> host_destroy */
#include "host/host.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/log.h"
#include "host/host_internal.h"

#define POLL_BUDGET (64u << 10)

static void kick(struct host *h) {
    uint64_t one = 1;
    ssize_t n = write(h->kick_fd, &one, sizeof(one));
    (void)n; /* full means awake already */
}

static bool watch(struct host *h, int fd) {
    struct epoll_event ev = {.events = EPOLLIN, .data.fd = fd};
    if (epoll_ctl(h->epoll_fd, EPOLL_CTL_ADD, fd, &ev) == 0) return true;
    log_warning("epoll_ctl for a host: %s", strerror(errno));
    return false;
}

static tarn_status path_open(struct host *h, const char *scheme) {
    struct host_path *p = &h->paths[h->n_paths];
    p->ops = transport_find(scheme);
    TARN_ASSERT(p->ops != NULL && h->n_paths < HOST_PATHS_MAX);
    struct transport_domain_config config = {0};
    tarn_status s = p->ops->domain_open(&config, &p->domain);
    if (s != TARN_OK) return s;
    h->n_paths++;
    int fd;
    return p->ops->arm(p->domain, &fd) == TARN_OK && watch(h, fd) ? TARN_OK : TARN_EIO;
}

/* ":port" behind an address, brackets around a v6 one. "-" in front stays in front. */
static char *data_uri(const char *bind, uint16_t port) {
    char uri[300];
    bool may_fail = bind[0] == '-';
    const char *addr = bind + may_fail;
    bool brackets = strchr(addr, ':') != NULL && addr[0] != '[';
    snprintf(uri, sizeof(uri), brackets ? "tcp://%s[%s]:%u" : "tcp://%s%s:%u", may_fail ? "-" : "", addr,
             port);
    return xstrdup(uri);
}

tarn_status host_create(const struct host_config *config, struct host **host_p) {
    transport_register_builtin();
    struct host *h = xcalloc(1, sizeof(*h));
    h->magic = HOST_MAGIC;
    host_gate_init(&h->gate);
    h->threads = config->threads > 0 ? config->threads : 1;
    h->max_connections = config->max_connections;
    h->idle_timeout_ms = config->idle_timeout_ms;
    h->shm_mode = config->shm_mode;
    h->arg = config->arg;
    h->fenced = config->fenced;
    h->fenced_before = config->fenced_before;
    static const char *const any[] = {"*"};
    const char *const *bind = config->binds > 0 ? config->bind : any;
    h->n_uris = config->binds > 0 ? config->binds : 1;
    h->uris = xcalloc(h->n_uris, sizeof(*h->uris));
    for (size_t i = 0; i < h->n_uris; i++) h->uris[i] = data_uri(bind[i], config->data_port);
    if (config->shm_path != NULL && config->shm_path[0] != '\0') {
        size_t size = strlen(config->shm_path) + sizeof("shm://");
        h->shm_uri = xmalloc(size);
        snprintf(h->shm_uri, size, "shm://%s", config->shm_path);
    }

    tarn_status s = TARN_OK;
    h->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    h->kick_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (h->epoll_fd < 0 || h->kick_fd < 0 || !watch(h, h->kick_fd)) s = TARN_EIO;
    if (s == TARN_OK) s = path_open(h, "tcp");
    if (s == TARN_OK && h->shm_uri != NULL) s = path_open(h, "shm");
    if (s != TARN_OK) {
        host_destroy(&h);
        return s;
    }
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
    for (unsigned i = 0; i < h->n_paths; i++) {
        struct host_path *p = &h->paths[i];
        for (unsigned k = 0; k < h->gate.n_segments; k++) {
            if (p->memory[k] != NULL) p->ops->memory_deregister(&p->memory[k]);
        }
        p->ops->domain_close(&p->domain);
    }
    for (unsigned k = 0; k < h->gate.n_segments; k++) pool_close(&h->gate.segments[k].pool);
    host_gate_deinit(&h->gate);
    if (h->epoll_fd >= 0) close(h->epoll_fd);
    if (h->kick_fd >= 0) close(h->kick_fd);
    for (size_t i = 0; i < h->n_uris; i++) free(h->uris[i]);
    free(h->uris);
    free(h->shm_uri);
    free(h->fences);
    h->magic = 0;
    free(h);
}

/* --- segments --- */

tarn_status host_segment_add(struct host *h, const struct host_segment_config *config, uint32_t id,
                             uint32_t segment_epoch, const char **why_p) {
    MAGIC_CHECK(h, HOST_MAGIC);
    TARN_ASSERT(!h->started);
    if (h->gate.n_segments == HOST_SEGMENTS_MAX || host_gate_segment(&h->gate, id) != NULL ||
        segment_epoch == 0) {
        *why_p = segment_epoch == 0                        ? "a segment epoch is never 0"
                 : h->gate.n_segments == HOST_SEGMENTS_MAX ? "too many segments on one host"
                                                           : "the host has a segment of that id";
        return TARN_EINVAL;
    }
    struct pool_config pool = {
        .name = config->name,
        .id = id,
        .segment_epoch = segment_epoch,
        .size = config->size,
        .path = config->pool_path,
        .numa_node = config->numa_node,
        .huge = config->huge == HOST_HUGE_TRY,
        .populate = config->populate,
    };
    unsigned at = h->gate.n_segments;
    struct host_segment *seg = &h->gate.segments[at];
    tarn_status s = pool_open(&pool, &seg->pool, why_p);
    if (s != TARN_OK) return s;
    seg->id = id;
    seg->epoch = segment_epoch;
    h->gate.n_segments++;
    struct transport_memory_config memory = {
        .addr = pool_base(seg->pool),
        .length = config->size,
        .fd = pool_fd(seg->pool, true),
        .fd_read = pool_fd(seg->pool, false),
        .header_size = SEGMENT_HEADER_SIZE,
        .segment = id,
        .remote = true,
    };
    for (unsigned i = 0; i < h->n_paths; i++) {
        struct host_path *p = &h->paths[i];
        s = p->ops->memory_register(p->domain, &memory, &p->memory[at]);
        if (s != TARN_OK) {
            *why_p = "a transport cannot serve its memory";
            for (unsigned k = 0; k < i; k++) h->paths[k].ops->memory_deregister(&h->paths[k].memory[at]);
            h->gate.n_segments--;
            pool_close(&seg->pool);
            return s;
        }
    }
    return TARN_OK;
}

void *host_segment_base(struct host *h, uint32_t id) {
    struct host_segment *seg = host_gate_segment(&h->gate, id);
    return seg != NULL ? pool_base(seg->pool) : NULL;
}

bool host_segment_get(const struct host *h, uint32_t id, struct host_segment_info *info_p) {
    const struct host_segment *seg = host_gate_segment(&h->gate, id);
    if (seg == NULL) return false;
    const struct pool_info *p = pool_get_info(seg->pool);
    *info_p = (struct host_segment_info){
        .size = p->size,
        .backing = p->backing,
        .huge = p->huge,
        .numa_node = p->numa_node,
        .warm = p->warm,
        .same_boot = p->same_boot,
        .old_segment_epoch = p->old_segment_epoch,
        .old_master_epoch = p->old_master_epoch,
    };
    return true;
}

void host_set_authority(struct host *h, const uint8_t key[GRANT_KEY_SIZE], uint32_t master_epoch) {
    MAGIC_CHECK(h, HOST_MAGIC);
    host_gate_set_authority(&h->gate, key, master_epoch);
}

void host_set_clock_offset(struct host *h, int64_t offset_ms) {
    __atomic_store_n(&h->gate.clock_offset_ms, offset_ms, __ATOMIC_RELAXED);
}

/* --- serving --- */

tarn_status host_start(struct host *h) {
    MAGIC_CHECK(h, HOST_MAGIC);
    TARN_ASSERT(!h->started);
    h->started = true; /* what fails here is for host_destroy to clean up */
    for (unsigned i = 0; i < h->n_paths; i++) {
        struct host_path *p = &h->paths[i];
        bool shm = strcmp(p->ops->scheme, "shm") == 0;
        struct transport_listen_config config = {
            .uris = shm ? (const char *const *)&h->shm_uri : (const char *const *)h->uris,
            .n_uris = shm ? 1 : h->n_uris,
            .threads = h->threads,
            .max_connections = h->max_connections,
            .idle_timeout_ms = h->idle_timeout_ms,
            .mode = h->shm_mode,
            .gate = {.arg = &h->gate, .check = host_gate_check, .recheck = host_gate_recheck},
        };
        tarn_status s = p->ops->listen(p->domain, &config, &p->listener);
        if (s != TARN_OK) return s;
    }
    return TARN_OK;
}

uint16_t host_data_port(const struct host *h) {
    for (unsigned i = 0; i < h->n_paths; i++) {
        const struct host_path *p = &h->paths[i];
        uint16_t port = p->listener != NULL ? p->ops->listener_port(p->listener) : 0;
        if (port != 0) return port;
    }
    return 0;
}

/* --- fences --- */

static void fence_add(struct host *h, uint64_t session, uint32_t below_epoch) {
    for (size_t i = 0; i < h->n_fences; i++) {
        if (h->fences[i].session == session && h->fences[i].below_epoch == below_epoch) return;
    }
    if (h->n_fences == h->cap_fences) {
        h->cap_fences = h->cap_fences == 0 ? 16 : 2 * h->cap_fences;
        h->fences = xrealloc(h->fences, h->cap_fences * sizeof(*h->fences));
    }
    h->fences[h->n_fences++] = (struct host_fence){.session = session, .below_epoch = below_epoch};
    kick(h);
}

void host_fence(struct host *h, uint64_t session) {
    MAGIC_CHECK(h, HOST_MAGIC);
    TARN_ASSERT(session != 0);
    host_gate_fence(&h->gate, session); /* first: what is refused from here on need not be looked for */
    fence_add(h, session, 0);
}

void host_fence_before(struct host *h, uint32_t master_epoch) {
    MAGIC_CHECK(h, HOST_MAGIC);
    fence_add(h, 0, master_epoch);
}

static bool fence_is_done(struct host *h, struct host_fence *f) {
    for (unsigned i = 0; i < h->n_paths; i++) {
        struct host_path *p = &h->paths[i];
        if (p->listener == NULL || (f->paths_done & 1u << i) != 0) continue;
        if (p->ops->listener_fence(p->listener, f->session, f->below_epoch) == TARN_OK)
            f->paths_done |= 1u << i;
    }
    for (unsigned i = 0; i < h->n_paths; i++) {
        if (h->paths[i].listener != NULL && (f->paths_done & 1u << i) == 0) return false;
    }
    return true;
}

static void report_fences(struct host *h) {
    for (size_t i = 0; i < h->n_fences;) {
        struct host_fence f = h->fences[i];
        if (!fence_is_done(h, &h->fences[i])) {
            i++;
            continue;
        }
        h->fences[i] = h->fences[--h->n_fences];
        /* Last: the callback may fence others. */
        if (f.session != 0) {
            if (h->fenced != NULL) h->fenced(h->arg, f.session);
        } else if (h->fenced_before != NULL) {
            h->fenced_before(h->arg, f.below_epoch);
        }
    }
}

int host_event_fd(const struct host *h) {
    return h->epoll_fd;
}

void host_poll(struct host *h) {
    MAGIC_CHECK(h, HOST_MAGIC);
    uint64_t ignored;
    ssize_t got = read(h->kick_fd, &ignored, sizeof(ignored));
    (void)got;
    for (unsigned i = 0; i < h->n_paths; i++) h->paths[i].ops->progress(h->paths[i].domain, POLL_BUDGET);
    report_fences(h);
}

/* --- statistics --- */

void host_get_stats(const struct host *h, struct host_stats *stats_p) {
    struct host_stats sum = {.fences_pending = h->n_fences};
    for (unsigned i = 0; i < h->n_paths; i++) {
        const struct host_path *p = &h->paths[i];
        if (p->listener == NULL) continue;
        struct transport_listener_stats s;
        p->ops->listener_stats(p->listener, &s);
        if (strcmp(p->ops->scheme, "shm") == 0) {
            sum.shm_peers += s.connections;
        } else {
            sum.connections += s.connections;
            sum.connections_total += s.connections_total;
        }
        sum.connections_refused += s.connections_refused;
        sum.shm_attaches_total += s.attaches_total;
        sum.reads += s.reads;
        sum.writes += s.writes;
        sum.bytes_read += s.bytes_read;
        sum.bytes_written += s.bytes_written;
        sum.bad_frames += s.bad_frames;
        sum.timeouts += s.timeouts;
        for (int v = 0; v < GRANT_VERDICTS; v++) sum.refused[v] += s.refused[v];
    }
    *stats_p = sum;
}

void host_stats_reset(struct host *h) {
    for (unsigned i = 0; i < h->n_paths; i++) {
        if (h->paths[i].listener != NULL) h->paths[i].ops->listener_stats_reset(h->paths[i].listener);
    }
}
