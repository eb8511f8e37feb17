/* rdma_cm: ids and their events. A port is a unix socket in the abstract name space,
 * "fake-verbs/ADDRESS/PORT": a port space apart from TCP's, one per network namespace, and gone
 * with its process. Queue pairs are the program's own (id->qp stays NULL). */
#include "fake.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/un.h>
#include <unistd.h>

#define REQ_DATA 56u
#define REP_DATA 196u
#define REJ_DATA 148u

#define REJ_INVALID_SERVICE_ID 8 /* nobody listens */
#define REJ_CONSUMER           28

static struct fake_id *id_of(struct rdma_cm_id *id) {
    return CONTAINER_OF(id, struct fake_id, ibv);
}
static struct fake_channel *channel_of(struct rdma_event_channel *channel) {
    return CONTAINER_OF(channel, struct fake_channel, ibv);
}

static int failed(int error) {
    errno = error;
    return -1;
}

/* --- events --- */

static void tell_conn(struct fake_id *id, struct fake_id *listener, enum rdma_cm_event_type type,
                      int status, const struct fake_greeting *g, uint8_t len) {
    struct fake_channel *channel =
        channel_of(listener != NULL ? listener->ibv.channel : id->ibv.channel);
    struct fake_event *e = calloc(1, sizeof(*e));
    e->ibv.id = &id->ibv;
    e->ibv.listen_id = listener != NULL ? &listener->ibv : NULL;
    e->ibv.event = type;
    e->ibv.status = status;
    e->counted = listener != NULL ? listener : id;
    e->channel = channel;
    if (g != NULL) {
        memcpy(e->data, g->data, len);
        e->ibv.param.conn = (struct rdma_conn_param){
            .private_data = e->data,
            .private_data_len = len,
            .responder_resources = g->responder_resources,
            .initiator_depth = g->initiator_depth,
            .retry_count = g->retry_count,
            .qp_num = g->qp_num,
        };
    }
    TAILQ_INSERT_TAIL(&channel->events, e, link);
    fake_fd_raise(channel->ibv.fd);
}

static void tell(struct fake_id *id, enum rdma_cm_event_type type, int status) {
    tell_conn(id, NULL, type, status, NULL, 0);
}

struct rdma_event_channel *rdma_create_event_channel(void) {
    fake_lock();
    struct fake_channel *channel = NULL;
    if (!fake_fails(FAKE_CREATE_EVENT_CHANNEL)) {
        channel = calloc(1, sizeof(*channel));
        channel->ibv.fd = fake_new_fd();
        TAILQ_INIT(&channel->events);
        LIST_INSERT_HEAD(&fake.channels, channel, link);
        fake.count[FAKE_EVENT_CHANNELS]++;
    }
    fake_unlock();
    return channel != NULL ? &channel->ibv : NULL;
}

void rdma_destroy_event_channel(struct rdma_event_channel *ibv) {
    struct fake_channel *channel = channel_of(ibv);
    fake_lock();
    if (channel->ids != 0) fake_die("an event channel is destroyed before its ids");
    TARN_ASSERT(TAILQ_EMPTY(&channel->events));
    LIST_REMOVE(channel, link);
    fake.count[FAKE_EVENT_CHANNELS]--;
    close(ibv->fd);
    free(channel);
    fake_unlock();
}

int rdma_get_cm_event(struct rdma_event_channel *ibv, struct rdma_cm_event **event) {
    struct fake_channel *channel = channel_of(ibv);
    for (;;) {
        if (fake_fd_take(ibv->fd) != 0) return -1;
        fake_lock();
        struct fake_event *e = TAILQ_FIRST(&channel->events);
        if (e != NULL) {
            TAILQ_REMOVE(&channel->events, e, link);
            e->counted->unacked++;
            if (e->ibv.event == RDMA_CM_EVENT_CONNECT_REQUEST) e->counted->waiting--;
            *event = &e->ibv;
        }
        fake_unlock();
        if (e != NULL) return 0;
    }
}

int rdma_ack_cm_event(struct rdma_cm_event *event) {
    struct fake_event *e = (struct fake_event *)event;
    fake_lock();
    e->counted->unacked--;
    pthread_cond_broadcast(&fake.acked);
    free(e);
    fake_unlock();
    return 0;
}

/* --- ids --- */

static struct fake_id *id_make(struct rdma_event_channel *channel, void *context) {
    struct fake_id *id = calloc(1, sizeof(*id));
    id->ibv.channel = channel;
    id->ibv.context = context;
    id->ibv.ps = RDMA_PS_TCP;
    id->ibv.qp_type = IBV_QPT_RC;
    id->listen_fd = -1;
    id->ack_timeout = 18;
    channel_of(channel)->ids++;
    fake.count[FAKE_IDS]++;
    LIST_INSERT_HEAD(&fake.ids, id, link);
    return id;
}

int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id_p, void *context,
                   enum rdma_port_space ps) {
    if (channel == NULL || ps != RDMA_PS_TCP) return failed(EINVAL);
    fake_nic_start();
    fake_lock();
    struct fake_id *id = fake_fails(FAKE_CREATE_ID) ? NULL : id_make(channel, context);
    fake_unlock();
    if (id == NULL) {
        int error = errno;
        fake_nic_rest();
        return failed(error);
    }
    *id_p = &id->ibv;
    return 0;
}

static void id_on_device(struct fake_id *id, struct fake_device *d) {
    id->device = d;
    id->ibv.verbs = &fake_cm_context(d)->verbs.context;
    id->ibv.port_num = 1;
}

static void farewell(struct fake_id *id) {
    struct fake_link *l = id->conn;
    struct fake_greeting g = {.reason = REJ_CONSUMER};
    if (l == NULL) return;
    switch (id->state) {
    case FAKE_REQ_RCVD:
    case FAKE_REP_SENT:
    case FAKE_REP_RCVD: fake_link_send(l, FAKE_REJ, &g); break;
    case FAKE_ESTABLISHED: fake_link_send(l, FAKE_DREQ, NULL); break;
    case FAKE_DREQ_RCVD: fake_link_send(l, FAKE_DREP, NULL); break;
    default: break;
    }
    l->id = NULL;
    id->conn = NULL;
    fake_link_leave(l);
}

static void forget_events(struct fake_id *id) {
    struct fake_channel *channel = channel_of(id->ibv.channel);
    struct fake_event *e, *next;
    unsigned n = 0;
    for (e = TAILQ_FIRST(&channel->events); e != NULL; e = next) {
        next = TAILQ_NEXT(e, link);
        if (e->counted != id && e->ibv.id != &id->ibv) continue;
        TAILQ_REMOVE(&channel->events, e, link);
        n++;
        if (e->counted == id && e->ibv.id != &id->ibv) { /* a request that nobody has seen */
            e->counted = NULL;
            TAILQ_INSERT_TAIL(&fake.orphans, e, link);
            continue;
        }
        free(e);
    }
    fake_fd_lower(channel->ibv.fd, n);
}

static void id_free(struct fake_id *id) {
    forget_events(id);
    farewell(id);
    if (id->listen_fd >= 0) {
        struct fake_link *l, *next;
        for (l = LIST_FIRST(&fake.links); l != NULL; l = next) {
            next = LIST_NEXT(l, link);
            if (l->listener != id) continue;
            l->listener = NULL;
            fake_link_leave(l);
        }
        if (id->watched != 0) fake_watch(id->listen_fd, id->slot, &id->watched, 0);
        if (id->state == FAKE_LISTENING) fake_slot_give(id->slot);
        close(id->listen_fd);
    }
    channel_of(id->ibv.channel)->ids--;
    fake.count[FAKE_IDS]--;
    LIST_REMOVE(id, link);
    free(id);
}

int rdma_destroy_id(struct rdma_cm_id *ibv) {
    struct fake_id *id = id_of(ibv);
    unsigned ids = 1;
    fake_lock();
    FAKE_AWAIT(id->unacked == 0, "an id is destroyed and its events were never acknowledged");
    TAILQ_INIT(&fake.orphans);
    id_free(id);
    struct fake_event *e;
    while ((e = TAILQ_FIRST(&fake.orphans)) != NULL) {
        TAILQ_REMOVE(&fake.orphans, e, link);
        id_free(id_of(e->ibv.id));
        free(e);
        ids++;
    }
    fake_unlock();
    for (; ids > 0; ids--) fake_nic_rest();
    return 0;
}

/* --- addresses --- */

static uint16_t port_of(const struct sockaddr *a) {
    return ntohs(a->sa_family == AF_INET6
                     ? ((const struct sockaddr_in6 *)(const void *)a)->sin6_port
                     : ((const struct sockaddr_in *)(const void *)a)->sin_port);
}

static void port_set(struct sockaddr *a, uint16_t port) {
    if (a->sa_family == AF_INET6)
        ((struct sockaddr_in6 *)(void *)a)->sin6_port = htons(port);
    else
        ((struct sockaddr_in *)(void *)a)->sin_port = htons(port);
}

static socklen_t size_of(const struct sockaddr *a) {
    return a->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

static bool is_any(const struct sockaddr *a) {
    static const struct in6_addr any6 = IN6ADDR_ANY_INIT;
    if (a->sa_family == AF_INET)
        return ((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr == INADDR_ANY;
    return memcmp(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr, &any6, 16) == 0;
}

static socklen_t socket_name(struct sockaddr_un *un, const struct sockaddr *a, bool any,
                             uint16_t port) {
    char text[INET6_ADDRSTRLEN] = "*";
    const void *bits =
        a->sa_family == AF_INET6
            ? (const void *)&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr
            : (const void *)&((const struct sockaddr_in *)(const void *)a)->sin_addr;
    if (!any && !is_any(a)) inet_ntop(a->sa_family, bits, text, sizeof(text));
    memset(un, 0, sizeof(*un));
    un->sun_family = AF_UNIX;
    int n = snprintf(un->sun_path + 1, sizeof(un->sun_path) - 1, "fake-verbs/%s/%u", text, port);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static int socket_bind(const struct sockaddr *a, uint16_t *port_p) {
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    uint16_t port = port_of(a);
    for (int i = 0; i < 2000; i++) {
        struct sockaddr_un un;
        uint16_t p =
            port != 0 ? port : (uint16_t)(20000 + (fake_now() / 7 + (uint64_t)i * 7919) % 40000);
        socklen_t len = socket_name(&un, a, false, p);
        if (bind(fd, (void *)&un, len) == 0) {
            *port_p = p;
            return fd;
        }
        if (port != 0 || errno != EADDRINUSE) break;
    }
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

/* Under the lock. */
static int bind_to(struct fake_id *id, const struct sockaddr *addr) {
    struct fake_device *d = NULL;
    if (id->state != FAKE_IDLE || (addr->sa_family != AF_INET && addr->sa_family != AF_INET6))
        return failed(EINVAL);
    if (!is_any(addr) && (d = fake_device_at(addr)) == NULL) return failed(ENODEV);
    uint16_t port = 0;
    int fd = socket_bind(addr, &port);
    if (fd < 0) return -1;
    id->listen_fd = fd;
    id->state = FAKE_BOUND;
    memcpy(&id->ibv.route.addr.src_storage, addr, size_of(addr));
    port_set(&id->ibv.route.addr.src_addr, port);
    if (d != NULL) id_on_device(id, d);
    return 0;
}

int rdma_bind_addr(struct rdma_cm_id *ibv, struct sockaddr *addr) {
    fake_lock();
    int rc = fake_fails(FAKE_BIND_ADDR) ? -1 : bind_to(id_of(ibv), addr);
    fake_unlock();
    return rc;
}

__be16 rdma_get_src_port(struct rdma_cm_id *id) {
    fake_lock();
    uint16_t port = port_of(&id->route.addr.src_addr);
    fake_unlock();
    return htons(port);
}

__be16 rdma_get_dst_port(struct rdma_cm_id *id) {
    fake_lock();
    uint16_t port = port_of(&id->route.addr.dst_addr);
    fake_unlock();
    return htons(port);
}

/* Which device the routing table would say. */
static struct fake_device *route(const struct sockaddr *dst) {
    struct fake_device *d = fake_device_at(dst);
    for (unsigned i = 0; i < fake.devices && (d == NULL || !d->up); i++)
        if (!fake.device[i]->gone && fake.device[i]->address.ss_family == dst->sa_family)
            d = fake.device[i];
    return d;
}

int rdma_resolve_addr(struct rdma_cm_id *ibv, struct sockaddr *src, struct sockaddr *dst,
                      int timeout_ms) {
    struct fake_id *id = id_of(ibv);
    fake_lock();
    int rc = fake_fails(FAKE_RESOLVE_ADDR) ? -1 : 0;
    if (rc == 0 && id->state != FAKE_IDLE && id->state != FAKE_BOUND) rc = failed(EINVAL);
    struct fake_device *d = id->device;
    if (rc == 0 && d == NULL) {
        bool given = src != NULL && !is_any(src);
        d = given ? fake_device_at(src) : route(dst);
        if (given && d == NULL) rc = failed(ENODEV);
    }
    if (rc == 0) {
        memcpy(&ibv->route.addr.dst_storage, dst, size_of(dst));
        if (d == NULL) {
            tell(id, RDMA_CM_EVENT_ADDR_ERROR, -ENODEV);
        } else if (!d->up || d->gone || d->address.ss_family != dst->sa_family) {
            tell(id, RDMA_CM_EVENT_ADDR_ERROR, -EHOSTUNREACH);
        } else {
            uint16_t port = port_of(&ibv->route.addr.src_addr);
            if (port == 0) port = (uint16_t)(60000 + fake_now() % 5000);
            memcpy(&ibv->route.addr.src_storage, &d->address, sizeof(d->address));
            port_set(&ibv->route.addr.src_addr, port);
            id_on_device(id, d);
            id->state = FAKE_RESOLVED;
            tell(id, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
        }
    }
    fake_unlock();
    return rc;
}

int rdma_resolve_route(struct rdma_cm_id *ibv, int timeout_ms) {
    struct fake_id *id = id_of(ibv);
    fake_lock();
    int rc = fake_fails(FAKE_RESOLVE_ROUTE) ? -1 : id->state != FAKE_RESOLVED ? failed(EINVAL) : 0;
    if (rc == 0) {
        bool good = id->device->up && !id->device->gone;
        if (good) id->state = FAKE_ROUTED;
        tell(id, good ? RDMA_CM_EVENT_ROUTE_RESOLVED : RDMA_CM_EVENT_ROUTE_ERROR,
             good ? 0 : -EHOSTUNREACH);
    }
    fake_unlock();
    return rc;
}

/* --- the passive side --- */

int rdma_listen(struct rdma_cm_id *ibv, int backlog) {
    struct fake_id *id = id_of(ibv);
    struct sockaddr_in any = {.sin_family = AF_INET};
    fake_lock();
    int rc = fake_fails(FAKE_LISTEN) ? -1 : 0;
    if (rc == 0 && id->state == FAKE_IDLE) rc = bind_to(id, (struct sockaddr *)&any);
    if (rc == 0 && id->state != FAKE_BOUND) rc = failed(EINVAL);
    if (rc == 0) rc = listen(id->listen_fd, 1024);
    if (rc == 0) {
        id->backlog = backlog > 0 ? backlog : 1024;
        id->state = FAKE_LISTENING;
        id->slot = fake_slot_take(FAKE_SLOT_LISTEN, id);
        fake_watch(id->listen_fd, id->slot, &id->watched, EPOLLIN);
    }
    fake_unlock();
    return rc;
}

void fake_cm_accept(struct fake_id *listener) {
    int fd;
    while ((fd = accept4(listener->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        struct fake_device *d = listener->device;
        for (unsigned i = 0; i < fake.devices && d == NULL; i++)
            if (!fake.device[i]->gone) d = fake.device[i];
        if (d == NULL || d->gone) {
            close(fd);
            continue;
        }
        struct fake_link *l = fake_link_create(fd, d);
        l->listener = listener;
        fake_link_dirty(l);
    }
}

static void request_arrives(struct fake_link *l, const struct fake_greeting *g) {
    struct fake_id *listener = l->listener;
    struct fake_greeting no = {.reason = REJ_CONSUMER};
    l->listener = NULL;
    if (listener == NULL || listener->waiting >= listener->backlog || g->qp_num == 0) {
        fake_link_send(l, FAKE_REJ, &no); /* closed when they have read it */
        return;
    }
    fake.starting++;
    struct fake_id *id = id_make(listener->ibv.channel, listener->ibv.context);
    struct fake_greeting seen = *g;
    id_on_device(id, l->device);
    id->state = FAKE_REQ_RCVD;
    id->conn = l;
    l->id = id;
    l->remote_qpn = id->remote_qpn = g->qp_num;
    /* What they may have under way to us, and the other way round. */
    seen.responder_resources = id->responder_resources = g->initiator_depth;
    seen.initiator_depth = id->initiator_depth = g->responder_resources;
    id->retry_count = g->retry_count;
    memcpy(&id->ibv.route.addr.src_storage, &listener->ibv.route.addr.src_storage,
           sizeof(struct sockaddr_storage));
    if (is_any(&id->ibv.route.addr.src_addr)) {
        uint16_t port = port_of(&id->ibv.route.addr.src_addr);
        memcpy(&id->ibv.route.addr.src_storage, &l->device->address,
               sizeof(struct sockaddr_storage));
        port_set(&id->ibv.route.addr.src_addr, port);
    }
    memcpy(&id->ibv.route.addr.dst_storage, &g->src, sizeof(struct sockaddr_storage));
    listener->waiting++;
    tell_conn(id, listener, RDMA_CM_EVENT_CONNECT_REQUEST, 0, &seen, REQ_DATA);
}

/* What librdmacm makes of the two depths; false: more than the device has. */
static bool depths(struct fake_id *id, const struct rdma_conn_param *p, bool accepts) {
    uint8_t most = (uint8_t)min_u64(fake.limits.max_rd_atom, 254);
    uint8_t resources = p != NULL ? p->responder_resources : RDMA_MAX_RESP_RES;
    uint8_t depth = p != NULL ? p->initiator_depth : RDMA_MAX_INIT_DEPTH;
    if (resources != RDMA_MAX_RESP_RES && resources > most) return false;
    if (depth != RDMA_MAX_INIT_DEPTH && depth > most) return false;
    if (resources == RDMA_MAX_RESP_RES)
        resources = accepts ? (uint8_t)min_u64(id->responder_resources, most) : most;
    if (depth == RDMA_MAX_INIT_DEPTH)
        depth = accepts ? (uint8_t)min_u64(id->initiator_depth, most) : most;
    id->responder_resources = resources;
    id->initiator_depth = depth;
    return true;
}

static int accept_with(struct fake_id *id, const struct rdma_conn_param *p) {
    struct fake_greeting g = {.reason = 0};
    if (id->state != FAKE_REQ_RCVD || p == NULL || p->private_data_len > REP_DATA)
        return failed(EINVAL);
    if (p->qp_num == 0 || !depths(id, p, true)) return failed(EINVAL);
    if (id->device->gone) return failed(EIO);
    g.qp_num = p->qp_num;
    g.responder_resources = id->responder_resources;
    g.initiator_depth = id->initiator_depth;
    if (p->private_data_len > 0) memcpy(g.data, p->private_data, p->private_data_len);
    id->conn->local_qpn = p->qp_num;
    fake_qp_bind(id->conn);
    id->state = FAKE_REP_SENT;
    id->deadline_ns = fake_now() + fake.limits.cm_ms * 1000000;
    fake_link_send(id->conn, FAKE_REP, &g);
    return 0;
}

int rdma_accept(struct rdma_cm_id *ibv, struct rdma_conn_param *p) {
    fake_lock();
    int rc = fake_fails(FAKE_ACCEPT) ? -1 : accept_with(id_of(ibv), p);
    fake_unlock();
    return rc;
}

int rdma_reject(struct rdma_cm_id *ibv, const void *private_data, uint8_t private_data_len) {
    struct fake_id *id = id_of(ibv);
    struct fake_greeting g = {.reason = REJ_CONSUMER};
    fake_lock();
    int rc = id->state != FAKE_REQ_RCVD || private_data_len > REJ_DATA ? failed(EINVAL) : 0;
    if (rc == 0) {
        if (private_data_len > 0) memcpy(g.data, private_data, private_data_len);
        fake_link_send(id->conn, FAKE_REJ, &g);
        id->state = FAKE_OVER;
    }
    fake_unlock();
    return rc;
}

/* --- the active side --- */

static void refused(struct fake_id *id, int reason, const struct fake_greeting *g) {
    struct fake_greeting none = {.reason = 0};
    id->state = FAKE_OVER;
    id->deadline_ns = 0;
    tell_conn(id, NULL, RDMA_CM_EVENT_REJECTED, reason, g != NULL ? g : &none, REJ_DATA);
}

/* EAGAIN: the other side's queue is full, which a lost message would look like; tried again until
 * the deadline. */
static void try_connect(struct fake_id *id) {
    const struct sockaddr *dst = &id->ibv.route.addr.dst_addr;
    int rc = -1, fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return;
    for (int any = 0; any < 2 && rc != 0; any++) {
        struct sockaddr_un un;
        socklen_t len = socket_name(&un, dst, any != 0, port_of(dst));
        rc = connect(fd, (void *)&un, len);
        if (rc != 0 && errno != ECONNREFUSED) break;
    }
    if (rc != 0) {
        bool nobody = errno == ECONNREFUSED;
        close(fd);
        if (nobody) refused(id, REJ_INVALID_SERVICE_ID, NULL);
        return;
    }
    struct fake_link *l = fake_link_create(fd, id->device);
    l->id = id;
    l->local_qpn = id->hello.qp_num;
    id->conn = l;
    fake_link_send(l, FAKE_REQ, &id->hello);
}

static int connect_with(struct fake_id *id, const struct rdma_conn_param *p) {
    if (id->state != FAKE_ROUTED || p == NULL || p->private_data_len > REQ_DATA)
        return failed(EINVAL);
    if (p->qp_num == 0 || p->retry_count > 7 || p->rnr_retry_count > 7) return failed(EINVAL);
    if (!depths(id, p, false)) return failed(EINVAL);
    if (id->device->gone) return failed(ENODEV);
    id->retry_count = p->retry_count;
    id->hello = (struct fake_greeting){
        .qp_num = p->qp_num,
        .responder_resources = id->responder_resources,
        .initiator_depth = id->initiator_depth,
        .retry_count = p->retry_count,
        .src = id->ibv.route.addr.src_storage,
    };
    if (p->private_data_len > 0) memcpy(id->hello.data, p->private_data, p->private_data_len);
    id->state = FAKE_REQ_SENT;
    id->deadline_ns = fake_now() + fake.limits.cm_ms * 1000000;
    if (id->device->up) try_connect(id);
    return 0;
}

int rdma_connect(struct rdma_cm_id *ibv, struct rdma_conn_param *p) {
    fake_lock();
    int rc = fake_fails(FAKE_CONNECT) ? -1 : connect_with(id_of(ibv), p);
    fake_unlock();
    return rc;
}

int rdma_establish(struct rdma_cm_id *ibv) {
    struct fake_id *id = id_of(ibv);
    fake_lock();
    int rc = fake_fails(FAKE_ESTABLISH) ? -1 : id->state != FAKE_REP_RCVD ? failed(EINVAL) : 0;
    if (rc == 0) {
        id->state = FAKE_ESTABLISHED;
        fake_link_send(id->conn, FAKE_RTU, NULL);
    }
    fake_unlock();
    return rc;
}

/* --- both --- */

int rdma_disconnect(struct rdma_cm_id *ibv) {
    struct fake_id *id = id_of(ibv);
    fake_lock();
    int rc = 0;
    if (id->state == FAKE_ESTABLISHED) {
        id->state = FAKE_DREQ_SENT;
        id->deadline_ns = fake_now() + fake.limits.cm_ms * 1000000;
        if (id->conn != NULL && !id->conn->dead)
            fake_link_send(id->conn, FAKE_DREQ, NULL);
        else
            fake_cm_disconnected(id);
    } else if (id->state == FAKE_DREQ_RCVD) {
        id->state = FAKE_OVER;
        if (id->conn != NULL) fake_link_send(id->conn, FAKE_DREP, NULL);
        tell(id, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
    } else
        rc = failed(EINVAL);
    fake_unlock();
    return rc;
}

void fake_cm_disconnected(struct fake_id *id) {
    bool asked = id->state == FAKE_DREQ_SENT;
    if (!asked && id->state != FAKE_ESTABLISHED && id->state != FAKE_REP_SENT &&
        id->state != FAKE_REP_RCVD)
        return;
    id->deadline_ns = 0;
    id->state = asked ? FAKE_OVER : FAKE_DREQ_RCVD;
    tell(id, RDMA_CM_EVENT_DISCONNECTED, 0);
    if (asked) tell(id, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
}

void fake_cm_frame(struct fake_link *l, uint8_t kind, const struct fake_greeting *g) {
    struct fake_id *id = l->id;
    if (kind == FAKE_REQ && id == NULL && l->listener != NULL) request_arrives(l, g);
    if (id == NULL) return;
    if (kind == FAKE_REP && id->state == FAKE_REQ_SENT) {
        struct fake_greeting seen = *g;
        l->remote_qpn = id->remote_qpn = g->qp_num;
        seen.responder_resources = id->responder_resources = g->initiator_depth;
        seen.initiator_depth = id->initiator_depth = g->responder_resources;
        id->state = FAKE_REP_RCVD;
        id->deadline_ns = 0;
        tell_conn(id, NULL, RDMA_CM_EVENT_CONNECT_RESPONSE, 0, &seen, REP_DATA);
    } else if (kind == FAKE_REJ && (id->state == FAKE_REQ_SENT || id->state == FAKE_REP_RCVD ||
                                    id->state == FAKE_REP_SENT || id->state == FAKE_REQ_RCVD)) {
        refused(id, g->reason, g);
    } else if (kind == FAKE_RTU && id->state == FAKE_REP_SENT) {
        id->state = FAKE_ESTABLISHED;
        id->deadline_ns = 0;
        tell(id, RDMA_CM_EVENT_ESTABLISHED, 0);
    } else if (kind == FAKE_DREQ || (kind == FAKE_DREP && id->state == FAKE_DREQ_SENT)) {
        fake_cm_disconnected(id);
    }
}

void fake_cm_gone(struct fake_link *l) {
    struct fake_id *id = l->id;
    l->listener = NULL;
    if (id == NULL) return;
    switch (id->state) {
    case FAKE_REQ_SENT:
    case FAKE_REP_RCVD:
    case FAKE_REQ_RCVD:
    case FAKE_REP_SENT: refused(id, REJ_CONSUMER, NULL); break;
    case FAKE_ESTABLISHED:
    case FAKE_DREQ_SENT: fake_cm_disconnected(id); break;
    default: break;
    }
}

void fake_cm_timers(uint64_t now) {
    struct fake_id *id;
    LIST_FOREACH(id, &fake.ids, link) {
        if (id->deadline_ns == 0) continue;
        if (now >= id->deadline_ns) {
            bool asked = id->state == FAKE_DREQ_SENT;
            id->deadline_ns = 0;
            if (asked) {
                fake_cm_disconnected(id);
            } else {
                id->state = FAKE_OVER;
                tell(id, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
            }
        } else if (id->state == FAKE_REQ_SENT && id->conn == NULL && id->device->up &&
                   !id->device->gone) {
            try_connect(id);
        }
    }
}

void fake_cm_device_gone(struct fake_device *d) {
    struct fake_id *id;
    LIST_FOREACH(id, &fake.ids, link) {
        if (id->device != d) continue;
        id->deadline_ns = 0;
        tell(id, RDMA_CM_EVENT_DEVICE_REMOVAL, 0);
    }
}

int rdma_set_option(struct rdma_cm_id *ibv, int level, int optname, void *optval, size_t optlen) {
    if (level != RDMA_OPTION_ID) return failed(ENOSYS);
    if (optname == RDMA_OPTION_ID_ACK_TIMEOUT) {
        if (optlen != 1) return failed(EINVAL);
        fake_lock();
        id_of(ibv)->ack_timeout = *(const uint8_t *)optval;
        fake_unlock();
    } else if (optname != RDMA_OPTION_ID_TOS && optname != RDMA_OPTION_ID_REUSEADDR &&
               optname != RDMA_OPTION_ID_AFONLY)
        return failed(ENOSYS);
    return 0;
}

/* --- attributes for a queue pair of the program's own --- */

static int init_attr(const struct fake_id *id, struct ibv_qp_attr *a, int *mask) {
    bool known = id->remote_qpn != 0 && id->state >= FAKE_REP_RCVD && id->state <= FAKE_ESTABLISHED;
    const struct sockaddr *dst = &id->ibv.route.addr.dst_addr;
    if (id->device == NULL) return failed(EINVAL);
    a->port_num = 1;
    switch (a->qp_state) {
    case IBV_QPS_INIT:
        a->pkey_index = 0;
        /* Once the connection is known: what anyone may do, in doubt. */
        a->qp_access_flags =
            !known ? 0
            : id->responder_resources > 0
                ? IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC
                : IBV_ACCESS_REMOTE_WRITE;
        *mask = IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
        return 0;
    case IBV_QPS_RTR:
        if (!known) return failed(EINVAL);
        memset(&a->ah_attr, 0, sizeof(a->ah_attr));
        a->ah_attr.is_global = 1;
        a->ah_attr.port_num = 1;
        a->ah_attr.grh.sgid_index = 2;
        a->ah_attr.grh.hop_limit = 64;
        if (dst->sa_family == AF_INET) {
            a->ah_attr.grh.dgid.raw[10] = a->ah_attr.grh.dgid.raw[11] = 0xff;
            memcpy(a->ah_attr.grh.dgid.raw + 12,
                   &((const struct sockaddr_in *)(const void *)dst)->sin_addr, 4);
        } else
            memcpy(a->ah_attr.grh.dgid.raw,
                   &((const struct sockaddr_in6 *)(const void *)dst)->sin6_addr, 16);
        a->path_mtu = fake.limits.mtu;
        a->dest_qp_num = id->remote_qpn;
        a->rq_psn = id->remote_qpn & 0xffff;
        a->max_dest_rd_atomic = id->responder_resources;
        a->min_rnr_timer = 0;
        *mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
        return 0;
    case IBV_QPS_RTS:
        if (!known) return failed(EINVAL);
        a->sq_psn = 1;
        a->timeout = id->ack_timeout;
        a->retry_cnt = id->retry_count;
        a->rnr_retry = 7;
        a->max_rd_atomic = id->initiator_depth;
        *mask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
        return 0;
    default: return failed(EINVAL);
    }
}

int rdma_init_qp_attr(struct rdma_cm_id *ibv, struct ibv_qp_attr *attr, int *mask) {
    fake_lock();
    int rc = fake_fails(FAKE_INIT_QP_ATTR) ? -1 : init_attr(id_of(ibv), attr, mask);
    fake_unlock();
    return rc;
}

const char *rdma_event_str(enum rdma_cm_event_type event) {
    static const char *const text[] = {
        "RDMA_CM_EVENT_ADDR_RESOLVED",   "RDMA_CM_EVENT_ADDR_ERROR",
        "RDMA_CM_EVENT_ROUTE_RESOLVED",  "RDMA_CM_EVENT_ROUTE_ERROR",
        "RDMA_CM_EVENT_CONNECT_REQUEST", "RDMA_CM_EVENT_CONNECT_RESPONSE",
        "RDMA_CM_EVENT_CONNECT_ERROR",   "RDMA_CM_EVENT_UNREACHABLE",
        "RDMA_CM_EVENT_REJECTED",        "RDMA_CM_EVENT_ESTABLISHED",
        "RDMA_CM_EVENT_DISCONNECTED",    "RDMA_CM_EVENT_DEVICE_REMOVAL",
        "RDMA_CM_EVENT_MULTICAST_JOIN",  "RDMA_CM_EVENT_MULTICAST_ERROR",
        "RDMA_CM_EVENT_ADDR_CHANGE",     "RDMA_CM_EVENT_TIMEWAIT_EXIT",
    };
    return (unsigned)event < ARRAY_LEN(text) ? text[event] : "UNKNOWN EVENT";
}
