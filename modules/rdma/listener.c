/* The passive side: where this host can be connected to, and who is to be cut off. An id listens at
 * every address of every device that may be used; addresses and devices come and go. The rest of a
 * client's life is in peer.c.
 *
 * Everything happens in the thread that drives the domain. The CPU moves no byte of a segment. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>

#include "base/log.h"
#include "rdma/passive.h"

#define LISTENER_MAGIC 0x524c5354u /* "RLST" */
#define BACKLOG        128
#define RETRY_MS       3000u /* an address that could not be had is tried again */

/* --- addresses --- */

/* Who finds nobody listening takes it that whatever came by this address is over (rail.c), so it
 * is, before. */
static void listening_close(struct rdma_listening *at) {
    struct rdma_peer *p, *next;
    TAILQ_FOREACH_SAFE(p, &at->listener->peers, link, next) {
        if (p->at == at) rdma_peer_destroy(p);
    }
    rdma_destroy_id(at->id);
    TAILQ_REMOVE(&at->listener->listening, at, link);
    free(at);
}

/* A new id each time: one that could not be bound is of no more use. */
static struct rdma_cm_id *bind_id(struct rdma_listening *at, uint16_t port) {
    struct rdma_cm_id *id;
    if (rdma_create_id(at->listener->domain->channel, &id, &at->tag, RDMA_PS_TCP) != 0) return NULL;
    struct sockaddr_storage sa = rdma_address_sockaddr(&at->address, port);
    if (rdma_bind_addr(id, (struct sockaddr *)&sa) == 0 &&
        rdma_device_of(id->verbs) == at->device && rdma_listen(id, BACKLOG) == 0) {
        return id;
    }
    int error = errno;
    rdma_destroy_id(id);
    errno = error;
    return NULL;
}

static bool listening_open(struct transport_listener *l, struct rdma_device *device,
                           const struct rdma_address *address) {
    struct rdma_listening *at = xcalloc(1, sizeof(*at));
    *at = (struct rdma_listening){
        .tag.kind = RDMA_TAG_LISTEN, .listener = l, .device = device, .address = *address};
    uint16_t port = l->port != 0 ? l->port : rdma_options.port;
    at->id = bind_id(at, port);
    /* packed keys name the port of each */
    if (at->id == NULL && port != 0) at->id = bind_id(at, 0);
    if (at->id == NULL) {
        if (!l->warned)
            log_warning("RDMA device %s: nobody can connect to %s: %s", device->name, address->text,
                        strerror(errno));
        l->warned = true;
        free(at);
        return false;
    }
    at->port = ntohs(rdma_get_src_port(at->id));
    if (rdma_options.port != 0 && at->port != rdma_options.port)
        log_warning("RDMA: port %u of %s is taken; it is %u", rdma_options.port, address->text,
                    at->port);
    if (l->port == 0) l->port = at->port;
    TAILQ_INSERT_TAIL(&l->listening, at, link);
    log_verbose("RDMA device %s: listening at %s, port %u", device->name, address->text, at->port);
    return true;
}

static bool has_address(const struct rdma_address *list, size_t n, const struct rdma_address *a) {
    for (size_t i = 0; i < n; i++) {
        if (rdma_address_same(&list[i], a)) return true;
    }
    return false;
}

static bool drop_lost(struct transport_listener *l) {
    bool changed = false;
    struct rdma_listening *at, *next;
    TAILQ_FOREACH_SAFE(at, &l->listening, link, next) {
        struct rdma_address list[RDMA_ADDRESSES_MAX];
        size_t n = rdma_device_addresses(at->device, list);
        if (!at->broken && !rdma_device_gone(at->device) && has_address(list, n, &at->address))
            continue;
        listening_close(at);
        changed = true;
    }
    struct rdma_peer *p, *next_peer;
    TAILQ_FOREACH_SAFE(p, &l->peers, link, next_peer) {
        if (rdma_device_gone(p->device)) rdma_peer_destroy(p);
    }
    return changed;
}

static bool listens_at(const struct transport_listener *l, const struct rdma_device *device,
                       const struct rdma_address *address) {
    const struct rdma_listening *at;
    TAILQ_FOREACH(at, &l->listening, link) {
        if (at->device == device && rdma_address_same(&at->address, address)) return true;
    }
    return false;
}

static bool listener_add_new(struct transport_listener *l) {
    bool changed = false, failed = false;
    for (unsigned k = 0; k < rdma_devices_count(); k++) {
        struct rdma_device *device = rdma_device_at(k);
        struct rdma_address list[RDMA_ADDRESSES_MAX];
        size_t n = rdma_device_gone(device) ? 0 : rdma_device_addresses(device, list);
        for (size_t i = 0; i < n; i++) {
            if (listens_at(l, device, &list[i])) continue;
            bool opened = listening_open(l, device, &list[i]);
            changed |= opened;
            failed |= !opened;
        }
    }
    l->look_ms = failed ? l->domain->now_ms + RETRY_MS : 0;
    if (!failed) l->warned = false;
    return changed;
}

/* What packed keys say of devices, besides addresses. */
static uint64_t print_of_devices(void) {
    uint64_t h = 1;
    for (unsigned k = 0; k < rdma_devices_count(); k++) {
        const struct rdma_device *d = rdma_device_at(k);
        h = (h ^ __atomic_load_n(&d->speed_mbps, __ATOMIC_RELAXED)) * UINT64_C(0x9e3779b97f4a7c15);
        h = (h ^ __atomic_load_n(&d->mtu, __ATOMIC_RELAXED)) * UINT64_C(0x9e3779b97f4a7c15);
        h = (h ^ rdma_device_gone(d)) * UINT64_C(0x9e3779b97f4a7c15);
    }
    return h;
}

static void listener_look(struct transport_listener *l) {
    l->kicks = l->domain->kicks;
    l->look = false;
    uint64_t print = print_of_devices();
    bool changed = drop_lost(l);
    changed |= l->domain->channel != NULL && listener_add_new(l);
    changed |= print != l->print;
    l->print = print;
    if (changed) l->domain->reach++;
}

void rdma_listener_turn(struct transport_domain *d) {
    struct transport_listener *l;
    LIST_FOREACH(l, &d->listeners, link) {
        if (l->look || l->kicks != d->kicks || (l->look_ms != 0 && d->now_ms >= l->look_ms))
            listener_look(l);
        if (l->look_ms != 0) rdma_domain_wake_at(d, l->look_ms);
        rdma_peers_turn(l);
    }
}

void rdma_listener_event(struct rdma_cm_event *event) {
    struct rdma_tag *tag = event->id->context;
    enum rdma_cm_event_type type = event->event;
    if (tag->kind == RDMA_TAG_PEER) {
        rdma_ack_cm_event(event);
        rdma_peer_event(CONTAINER_OF(tag, struct rdma_peer, tag), type);
        return;
    }
    struct rdma_listening *at = CONTAINER_OF(tag, struct rdma_listening, tag);
    if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
        rdma_peer_request(at, event);
        return;
    }
    rdma_ack_cm_event(event);
    if (type == RDMA_CM_EVENT_DEVICE_REMOVAL) rdma_device_lost(at->device);
    at->broken = at->listener->look = true; /* rdma_listener_turn follows */
}

/* --- where --- */

uint16_t rdma_listener_port(const struct transport_listener *l) {
    MAGIC_CHECK(l, LISTENER_MAGIC);
    return l->port;
}

tarn_status rdma_listener_uri(const struct transport_listener *l, struct buf *out) {
    MAGIC_CHECK(l, LISTENER_MAGIC);
    const struct rdma_listening *at = TAILQ_FIRST(&l->listening);
    if (at == NULL) return TARN_EAGAIN;
    buf_printf(out, rdma_address_is_v4(&at->address) ? "rdma://%s:%u" : "rdma://[%s]:%u",
               at->address.text, at->port);
    return TARN_OK;
}

const struct rdma_address *rdma_listener_address(const struct transport_domain *d,
                                                 const struct rdma_device *device,
                                                 uint16_t *port_p) {
    const struct transport_listener *l;
    const struct rdma_listening *at;
    LIST_FOREACH(l, &d->listeners, link) {
        TAILQ_FOREACH(at, &l->listening, link) {
            if (at->device != device) continue;
            *port_p = at->port;
            return &at->address;
        }
    }
    return NULL;
}

/* --- cutting off --- */

static bool fence_hits_peer(const struct transport_fence *f, const struct rdma_peer *p) {
    if (f->kind == TRANSPORT_FENCE_SEGMENT) return p->memory->config.segment == f->segment;
    return transport_fence_hits(f, p->session, p->master_epoch);
}

tarn_status rdma_listener_fence(struct transport_listener *l, const struct transport_fence *fence) {
    MAGIC_CHECK(l, LISTENER_MAGIC);
    struct rdma_peer *p, *next;
    TAILQ_FOREACH_SAFE(p, &l->peers, link, next) {
        if (!fence_hits_peer(fence, p)) continue;
        l->fenced++;
        rdma_peer_destroy(p);
    }
    if (fence->kind == TRANSPORT_FENCE_BEFORE) {
        struct transport_memory *m;
        LIST_FOREACH(m, &l->domain->memories, link) rdma_memory_renew(m);
    }
    return TARN_OK;
}

void rdma_listener_drop_memory(struct transport_memory *m) {
    struct transport_listener *l;
    LIST_FOREACH(l, &m->domain->listeners, link) {
        struct rdma_peer *p, *next;
        TAILQ_FOREACH_SAFE(p, &l->peers, link, next) {
            if (p->memory == m) rdma_peer_destroy(p);
        }
    }
}

bool rdma_listener_lent(const struct transport_listener *l, const struct transport_memory *m,
                        uint32_t below_epoch) {
    const struct rdma_peer *p;
    TAILQ_FOREACH(p, &l->peers, link) {
        if (p->memory == m && p->right == RDMA_WRITE && p->master_epoch < below_epoch) return true;
    }
    return false;
}

/* --- the listener --- */

tarn_status rdma_listener_open(struct transport_domain *d,
                               const struct transport_listen_config *config,
                               struct transport_listener **listener_p) {
    if (config->n_uris != 0) {
        log_warning("Where rdma listens is said to the module, by 'bind' and 'port'");
        return TARN_EINVAL;
    }
    struct transport_listener *l = xcalloc(1, sizeof(*l));
    l->magic = LISTENER_MAGIC;
    l->domain = d;
    l->gate = config->gate;
    l->max_peers = rdma_options.max_connections;
    if (config->max_connections != 0)
        l->max_peers = (unsigned)min_u64(l->max_peers, config->max_connections);
    TAILQ_INIT(&l->listening);
    TAILQ_INIT(&l->peers);
    TAILQ_INIT(&l->pending);
    LIST_INSERT_HEAD(&d->listeners, l, link);
    listener_look(l);
    if (l->look_ms != 0) rdma_domain_wake_at(d, l->look_ms);
    *listener_p = l;
    return TARN_OK;
}

void rdma_listener_close(struct transport_listener **listener_p) {
    struct transport_listener *l = *listener_p;
    if (l == NULL) return;
    MAGIC_CHECK(l, LISTENER_MAGIC);
    *listener_p = NULL;
    while (!TAILQ_EMPTY(&l->peers)) rdma_peer_destroy(TAILQ_FIRST(&l->peers));
    while (!TAILQ_EMPTY(&l->listening)) listening_close(TAILQ_FIRST(&l->listening));
    LIST_REMOVE(l, link);
    l->domain->reach++;
    l->magic = 0;
    free(l);
}

void rdma_listener_stats(const struct transport_listener *l,
                         struct transport_listener_stats *stats_p) {
    MAGIC_CHECK(l, LISTENER_MAGIC);
    *stats_p = l->stats;
}

void rdma_listener_programs(const struct transport_listener *l, struct program_counts *sum) {
    MAGIC_CHECK(l, LISTENER_MAGIC);
    program_add_all(sum, &l->programs);
}

void rdma_listener_describe(const struct transport_domain *d, struct buf *out) {
    const struct transport_listener *l;
    const struct rdma_peer *p;
    LIST_FOREACH(l, &d->listeners, link) {
        TAILQ_FOREACH(p, &l->peers, link) rdma_peer_describe(p, out);
    }
}
