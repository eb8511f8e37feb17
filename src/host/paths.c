/* The transports of a host: those it was told URIs of, from the start, and those that announce
 * themselves, which modules bring at any time. One of these may fail where the others serve: it is
 * logged, and the segment goes on without. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/assert.h"
#include "base/log.h"
#include "host/host_internal.h"

bool host_watch(struct host *h, int fd) {
    struct epoll_event ev = {.events = EPOLLIN, .data.fd = fd};
    if (epoll_ctl(h->epoll_fd, EPOLL_CTL_ADD, fd, &ev) == 0) return true;
    log_warning("epoll_ctl for a host: %s", strerror(errno));
    return false;
}

static struct host_path *path_find(const struct host *h, const char *scheme) {
    for (unsigned i = 0; i < h->n_paths; i++) {
        if (strcmp(h->paths[i].ops->scheme, scheme) == 0)
            return (struct host_path *)(uintptr_t)&h->paths[i];
    }
    return NULL;
}

static bool path_announces(const struct host_path *p) {
    return (p->ops->flags & TRANSPORT_ANNOUNCES) != 0;
}

tarn_status host_path_open(struct host *h, const char *const *uris, size_t n_uris) {
    struct host_path *p = &h->paths[h->n_paths];
    TARN_ASSERT(h->n_paths < TRANSPORTS_MAX);
    const struct transport_ops *ops = transport_find(uris[0]);
    if (ops == NULL) return TARN_ENOTFOUND;
    *p = (struct host_path){.uris = uris, .n_uris = n_uris};
    struct transport_domain_config config = {0};
    tarn_status s = transport_open(ops->scheme, &config, &p->ops, &p->domain);
    if (s != TARN_OK) return s;
    int fd;
    if (p->ops->arm(p->domain, &fd) != TARN_OK || !host_watch(h, fd)) {
        transport_close(p->ops, &p->domain);
        return TARN_EIO;
    }
    if (path_announces(p)) p->n_uris = 0; /* its module knows by its own options where to listen */
    h->n_paths++;
    return TARN_OK;
}

tarn_status host_path_listen(struct host *h, struct host_path *p) {
    struct transport_listen_config config = {
        .uris = p->uris,
        .n_uris = p->n_uris,
        .threads = h->config.threads,
        .max_connections = h->config.max_connections,
        .idle_timeout_ms = h->config.idle_timeout_ms,
        .busy_poll_us = h->config.busy_poll_us,
        .mode = h->config.shm_mode,
        .staging_bytes = h->config.staging_bytes,
        .tls = h->config.tls,
        .gate = {.arg = &h->gate,
                 .check = host_gate_check,
                 .recheck = host_gate_recheck,
                 .put_begin = host_puts_begin,
                 .put_end = host_puts_end,
                 .put_seal = host_puts_seal,
                 .stage = host_gate_stage,
                 .mark = host_gate_mark},
    };
    return p->ops->listen(p->domain, &config, &p->listener);
}

static void path_close(struct host *h, struct host_path *p) {
    if (p->listener != NULL) p->ops->listener_close(&p->listener);
    for (unsigned i = 0; i < h->gate.n_slots; i++) {
        if (p->memory[i] != NULL) p->ops->memory_deregister(&p->memory[i]);
    }
    transport_close(p->ops, &p->domain);
}

tarn_status host_path_register(struct host *h, struct host_path *p, unsigned slot, uint32_t id) {
    const struct host_slot *s = &h->gate.slots[slot];
    struct transport_memory_config memory = {
        .addr = s->base,
        .length = s->size,
        .fd = -1,
        .fd_read = -1,
        .segment = id,
        .remote = true,
    };
    if (s->pool != NULL) {
        memory.fd = pool_fd(s->pool, true);
        memory.fd_read = pool_fd(s->pool, false);
        memory.header_size = SEGMENT_HEADER_SIZE;
    }
    if (s->device) {
        memory.dmabuf = true;
        memory.fd = s->fd;
        memory.dmabuf_offset = s->fd_offset;
    }
    if (p->ops->memory_register == NULL) return TARN_OK;
    tarn_status status = p->ops->memory_register(p->domain, &memory, &p->memory[slot]);
    /* there is no file to hand out, or nothing for a CPU: peers come by another way */
    if (status == TARN_ENOTSUP && !path_announces(p)) return TARN_OK;
    if (status != TARN_OK)
        log_warning("Segment %u: %s cannot serve its memory: %s", id, p->ops->scheme,
                    tarn_status_text(status));
    return path_announces(p) ? TARN_OK : status;
}

tarn_status host_transport_add(struct host *h, const char *scheme) {
    MAGIC_CHECK(h, HOST_MAGIC);
    if (path_find(h, scheme) != NULL) return TARN_EEXISTS;
    const struct transport_ops *t = transport_find(scheme);
    if (t == NULL || (t->flags & TRANSPORT_ANNOUNCES) == 0) {
        log_warning("This host does not serve by %s: it would have to be told where to listen "
                    "(TRANSPORT_ANNOUNCES)",
                    scheme);
        return TARN_ENOTSUP;
    }
    tarn_status status = host_path_open(h, &scheme, 1);
    if (status != TARN_OK) return status;
    struct host_path *p = &h->paths[h->n_paths - 1];
    if (h->config.tls != NULL)
        log_warning("The data port speaks TLS, but what goes by %s is not encrypted: do without "
                    "that module "
                    "where it has to be",
                    scheme);
    if (h->started) status = host_path_listen(h, p);
    if (status != TARN_OK) {
        log_warning("This host does not serve by %s: %s", scheme, tarn_status_text(status));
        path_close(h, p);
        h->n_paths--;
        return status;
    }
    for (unsigned i = 0; i < h->gate.n_slots; i++) {
        if (h->gate.slots[i].registered)
            (void)host_path_register(h, p, i, (uint32_t)(h->gate.slots[i].last_name >> 32));
    }
    return TARN_OK;
}

void host_transport_remove(struct host *h, const char *scheme) {
    MAGIC_CHECK(h, HOST_MAGIC);
    struct host_path *p = path_find(h, scheme);
    if (p == NULL) return;
    TARN_ASSERT(path_announces(p));
    bool had_key[HOST_SLOTS_MAX] = {false};
    for (unsigned i = 0; i < h->gate.n_slots; i++) had_key[i] = p->version[i] != 0;
    path_close(h, p);
    *p = h->paths[--h->n_paths];
    /* their bits are others' now */
    for (size_t i = 0; i < h->n_fences; i++) h->fences[i].paths_done = 0;
    for (unsigned i = 0; i < h->gate.n_slots; i++) {
        if (had_key[i] && h->config.key_changed != NULL) h->config.key_changed(h->config.arg, i);
    }
}

void host_paths_add_all(struct host *h) {
    const struct transport_ops *t;
    for (size_t i = 0; (t = transport_at(i)) != NULL; i++) {
        if ((t->flags & TRANSPORT_ANNOUNCES) != 0) (void)host_transport_add(h, t->scheme);
    }
}

/* --- keys --- */

void host_paths_turn(struct host *h) {
    for (unsigned i = 0; i < h->n_paths; i++) {
        struct host_path *p = &h->paths[i];
        for (unsigned slot = 0; path_announces(p) && slot < h->gate.n_slots; slot++) {
            uint64_t version =
                p->memory[slot] != NULL ? p->ops->memory_version(p->memory[slot]) : 0;
            if (version == p->version[slot]) continue;
            p->version[slot] = version;
            if (h->config.key_changed != NULL) h->config.key_changed(h->config.arg, slot);
        }
    }
}

tarn_status host_slot_key(struct host *h, unsigned slot, const char *scheme, struct buf *uri,
                          struct buf *read_key, struct buf *write_key) {
    MAGIC_CHECK(h, HOST_MAGIC);
    TARN_ASSERT(slot < h->gate.n_slots);
    struct host_path *p = path_find(h, scheme);
    if (p == NULL || !path_announces(p) || p->listener == NULL || p->memory[slot] == NULL ||
        __atomic_load_n(&h->gate.slots[slot].name, __ATOMIC_RELAXED) == 0) {
        return TARN_ENOTFOUND;
    }
    size_t lens[] = {uri->len, read_key->len, write_key->len};
    if (p->ops->listener_uri(p->listener, uri) == TARN_OK &&
        p->ops->key_pack(p->memory[slot], false, read_key) == TARN_OK &&
        p->ops->key_pack(p->memory[slot], true, write_key) == TARN_OK) {
        return TARN_OK;
    }
    uri->len = lens[0];
    read_key->len = lens[1];
    write_key->len = lens[2];
    return TARN_ENOTFOUND;
}

void host_describe(const struct host *h, const char *scheme, struct buf *out) {
    MAGIC_CHECK(h, HOST_MAGIC);
    const struct host_path *p = path_find(h, scheme);
    if (p != NULL && p->ops->describe != NULL) p->ops->describe(p->domain, out);
}
