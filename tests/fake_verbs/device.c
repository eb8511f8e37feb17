/* Devices with one port each, contexts on them, and what a context reports by itself. */
#include "fake.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#undef ibv_query_port

/* --- the table --- */

struct fake_device *fake_device_named(const char *name) {
    for (unsigned i = 0; i < fake.devices; i++)
        if (strcmp(fake.device[i]->ibv.name, name) == 0) return fake.device[i];
    return NULL;
}

bool fake_same_host(const struct sockaddr *a, const struct sockaddr *b) {
    if (a->sa_family != b->sa_family) return false;
    if (a->sa_family == AF_INET)
        return ((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr ==
               ((const struct sockaddr_in *)(const void *)b)->sin_addr.s_addr;
    if (a->sa_family == AF_INET6)
        return memcmp(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr,
                      &((const struct sockaddr_in6 *)(const void *)b)->sin6_addr, 16) == 0;
    return false;
}

struct fake_device *fake_device_at(const struct sockaddr *address) {
    for (unsigned i = 0; i < fake.devices; i++)
        if (!fake.device[i]->gone && fake_same_host(address, (void *)&fake.device[i]->address))
            return fake.device[i];
    return NULL;
}

struct fake_device *fake_device_create(const char *name, const char *address) {
    if (fake.devices == FAKE_DEVICES_MAX) return NULL;
    struct fake_device *d = calloc(1, sizeof(*d));
    char usual[32];
    snprintf(usual, sizeof(usual), "127.0.0.%u", fake.devices + 1);
    if (address == NULL) address = usual;
    struct sockaddr_in *v4 = (void *)&d->address;
    struct sockaddr_in6 *v6 = (void *)&d->address;
    if (inet_pton(AF_INET, address, &v4->sin_addr) == 1)
        v4->sin_family = AF_INET;
    else if (inet_pton(AF_INET6, address, &v6->sin6_addr) == 1)
        v6->sin6_family = AF_INET6;
    else {
        free(d);
        return NULL;
    }
    d->up = true;
    d->ibv.node_type = IBV_NODE_CA;
    d->ibv.transport_type = IBV_TRANSPORT_IB;
    snprintf(d->ibv.name, sizeof(d->ibv.name), "%s", name);
    snprintf(d->ibv.dev_name, sizeof(d->ibv.dev_name), "uverbs%u", fake.devices);
    const char *sysfs =
        fake.limits.sysfs[0] != '\0' ? fake.limits.sysfs : "/nonexistent/infiniband";
    snprintf(d->ibv.ibdev_path, sizeof(d->ibv.ibdev_path), "%s/%s", sysfs, name);
    snprintf(d->ibv.dev_path, sizeof(d->ibv.dev_path), "%s/uverbs%u", sysfs, fake.devices);
    fake.device[fake.devices++] = d;
    return d;
}

void fake_devices_free(void) {
    for (unsigned i = 0; i < fake.devices; i++) {
        struct fake_device *d = fake.device[i];
        if (d->cm != NULL) fake_context_close(d->cm);
        if (!LIST_EMPTY(&d->contexts)) fake_die("configured while a device is open");
        free(d);
    }
    fake.devices = 0;
}

void fake_device_add(const char *name, const char *address) {
    fake_lock();
    if (fake_device_create(name, address) == NULL) fake_die("fake_device_add: no such address");
    fake_unlock();
}

static void raise_everywhere(struct fake_device *d, enum ibv_event_type type) {
    struct ibv_async_event event = {.event_type = type, .element.port_num = 1};
    struct fake_context *c;
    LIST_FOREACH(c, &d->contexts, link) fake_async_raise(c, &event);
}

static void recheck_links(const struct fake_device *d) {
    struct fake_link *l;
    LIST_FOREACH(l, &fake.links, link)
        if (l->device == d) fake_link_recheck(l);
    fake_nic_kick();
}

void fake_port(const char *name, bool up) {
    fake_lock();
    struct fake_device *d = fake_device_named(name);
    if (d != NULL && !d->gone && d->up != up) {
        d->up = up;
        raise_everywhere(d, up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR);
        recheck_links(d);
    }
    fake_unlock();
}

void fake_device_remove(const char *name, bool silent) {
    fake_lock();
    struct fake_device *d = fake_device_named(name);
    if (d != NULL && !d->gone) {
        d->gone = true;
        d->silent = silent;
        recheck_links(d);
        struct fake_qp *qp;
        if (!silent)
            LIST_FOREACH(qp, &fake.qps, link)
                if (fake_context_of(qp->ibv.context)->device == d) fake_qp_fail(qp, IBV_WC_SUCCESS);
        raise_everywhere(d, IBV_EVENT_DEVICE_FATAL);
        if (!silent) fake_cm_device_gone(d);
    }
    fake_unlock();
}

/* --- lists --- */

struct ibv_device **ibv_get_device_list(int *num_devices) {
    fake_lock();
    struct ibv_device **list = calloc(fake.devices + 1, sizeof(*list));
    int n = 0;
    for (unsigned i = 0; i < fake.devices; i++)
        if (!fake.device[i]->gone) list[n++] = &fake.device[i]->ibv;
    fake_unlock();
    if (num_devices != NULL) *num_devices = n;
    return list;
}

void ibv_free_device_list(struct ibv_device **list) {
    free(list);
}

const char *ibv_get_device_name(struct ibv_device *device) {
    return device->name;
}

static int index_of(const struct ibv_device *device) {
    for (unsigned i = 0; i < fake.devices; i++)
        if (&fake.device[i]->ibv == device) return (int)i;
    return -1;
}

int ibv_get_device_index(struct ibv_device *device) {
    fake_lock();
    int index = index_of(device);
    fake_unlock();
    return index;
}

__be64 ibv_get_device_guid(struct ibv_device *device) {
    return htobe64(UINT64_C(0xfa4e000000000000) | (uint64_t)ibv_get_device_index(device));
}

struct ibv_context **rdma_get_devices(int *num_devices) {
    fake_lock();
    struct ibv_context **list = calloc(fake.devices + 1, sizeof(*list));
    int n = 0;
    for (unsigned i = 0; i < fake.devices; i++) {
        struct fake_context *c = fake.device[i]->gone ? NULL : fake_cm_context(fake.device[i]);
        if (c != NULL) list[n++] = &c->verbs.context;
    }
    fake_unlock();
    if (num_devices != NULL) *num_devices = n;
    if (n > 0) return list;
    free(list);
    errno = ENODEV;
    return NULL;
}

void rdma_free_devices(struct ibv_context **list) {
    free(list);
}

/* --- contexts --- */

static int query_port(struct ibv_context *context, uint8_t port_num, struct ibv_port_attr *attr,
                      size_t len);

struct fake_context *fake_context_open(struct fake_device *d) {
    struct fake_context *c = calloc(1, sizeof(*c));
    c->device = d;
    TAILQ_INIT(&c->events);
    struct ibv_context *v = &c->verbs.context;
    v->device = &d->ibv;
    v->async_fd = fake_new_fd();
    v->cmd_fd = -1;
    v->num_comp_vectors = 1;
    v->abi_compat = (void *)UINTPTR_MAX;
    v->ops.poll_cq = fake_poll_cq;
    v->ops.req_notify_cq = fake_req_notify_cq;
    v->ops.post_send = fake_post_send;
    v->ops.post_recv = fake_post_recv;
    c->verbs.sz = sizeof(c->verbs);
    c->verbs.query_port = query_port;
    if (v->async_fd < 0) {
        free(c);
        return NULL;
    }
    LIST_INSERT_HEAD(&d->contexts, c, link);
    return c;
}

void fake_context_close(struct fake_context *c) {
    if (c->users != 0) fake_die("a device is closed while something of it is alive");
    struct fake_async *a;
    while ((a = TAILQ_FIRST(&c->events)) != NULL) {
        TAILQ_REMOVE(&c->events, a, link);
        free(a);
    }
    close(c->verbs.context.async_fd);
    if (c->device->cm == c) c->device->cm = NULL;
    LIST_REMOVE(c, link);
    free(c);
}

/* librdmacm opens every device once, and keeps it. */
struct fake_context *fake_cm_context(struct fake_device *d) {
    if (d->cm == NULL) d->cm = fake_context_open(d);
    return d->cm;
}

struct ibv_context *ibv_open_device(struct ibv_device *device) {
    fake_lock();
    struct fake_device *d = CONTAINER_OF(device, struct fake_device, ibv);
    struct fake_context *c = d->gone ? NULL : fake_context_open(d);
    fake_unlock();
    if (c == NULL) errno = EIO;
    return c != NULL ? &c->verbs.context : NULL;
}

int ibv_close_device(struct ibv_context *context) {
    fake_lock();
    struct fake_context *c = fake_context_of(context);
    if (c->device->cm == c) fake_die("librdmacm's own context is closed");
    fake_context_close(c);
    fake_unlock();
    return 0;
}

/* --- what they are --- */

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr) {
    fake_lock();
    const struct fake_limits *l = &fake.limits;
    bool fails = fake_fails(FAKE_QUERY_DEVICE);
    int error = fails ? errno : fake_context_of(context)->device->gone ? EIO : 0;
    if (error == 0)
        *attr = (struct ibv_device_attr){
            .fw_ver = "fake",
            .max_mr_size = l->max_mr_size,
            .page_size_cap = 0xfffff000,
            .max_qp = (int)l->max_qp,
            .max_qp_wr = (int)l->max_qp_wr,
            .max_sge = (int)l->max_sge,
            .max_sge_rd = (int)l->max_sge,
            .max_cq = 4096,
            .max_cqe = (int)l->max_cqe,
            .max_mr = (int)l->max_mr,
            .max_pd = (int)l->max_pd,
            .max_qp_rd_atom = (int)l->max_rd_atom,
            .max_res_rd_atom = (int)(l->max_rd_atom * l->max_qp),
            .max_qp_init_rd_atom = (int)l->max_rd_atom,
            .phys_port_cnt = 1,
        };
    fake_unlock();
    if (error == 0) attr->node_guid = attr->sys_image_guid = ibv_get_device_guid(context->device);
    return error;
}

static int query_port(struct ibv_context *context, uint8_t port_num, struct ibv_port_attr *attr,
                      size_t len) {
    if (port_num != 1) return EINVAL;
    fake_lock();
    const struct fake_device *d = fake_context_of(context)->device;
    bool fails = fake_fails(FAKE_QUERY_PORT);
    int error = fails ? errno : d->gone ? EIO : 0;
    struct ibv_port_attr a = {
        .state = d->up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN,
        .max_mtu = IBV_MTU_4096,
        .active_mtu = fake.limits.mtu,
        .gid_tbl_len = 8,
        .max_msg_sz = fake.limits.max_msg,
        .pkey_tbl_len = 1,
        .active_width = (uint8_t)fake.limits.width,
        .active_speed = (uint8_t)fake.limits.speed,
        .phys_state = d->up ? 5 : 3,
        .link_layer = IBV_LINK_LAYER_ETHERNET,
    };
    fake_unlock();
    if (error == 0) memcpy(attr, &a, len < sizeof(a) ? len : sizeof(a));
    return error;
}

int ibv_query_port(struct ibv_context *context, uint8_t port_num,
                   struct _compat_ibv_port_attr *attr) {
    /* The old layout is the head of the new one. */
    return query_port(context, port_num, (struct ibv_port_attr *)attr,
                      offsetof(struct ibv_port_attr, port_cap_flags2));
}

/* The table: 0 a link-local GID, 1 the device's address as RoCE v1, 2 as RoCE v2. */
static int gid_locked(struct ibv_context *context, uint32_t index, struct ibv_gid_entry *e) {
    const struct fake_device *d = fake_context_of(context)->device;
    const struct sockaddr_in *v4 = (const void *)&d->address;
    const struct sockaddr_in6 *v6 = (const void *)&d->address;
    memset(e, 0, sizeof(*e));
    e->gid_index = index;
    e->port_num = 1;
    e->ndev_ifindex = if_nametoindex("lo");
    if (d->gone) return EIO;
    if (index >= 8) return EINVAL;
    if (index > 2 || (index > 0 && !d->up)) return ENODATA;
    e->gid_type = index == 1 ? IBV_GID_TYPE_ROCE_V1 : IBV_GID_TYPE_ROCE_V2;
    if (index == 0) {
        e->gid.raw[0] = 0xfe;
        e->gid.raw[1] = 0x80;
        e->gid.raw[15] = (uint8_t)(index_of(context->device) + 1);
    } else if (v4->sin_family == AF_INET) {
        e->gid.raw[10] = e->gid.raw[11] = 0xff;
        memcpy(e->gid.raw + 12, &v4->sin_addr, 4);
    } else
        memcpy(e->gid.raw, &v6->sin6_addr, 16);
    return 0;
}

static int gid_entry(struct ibv_context *context, uint32_t index, struct ibv_gid_entry *e) {
    fake_lock();
    int error = gid_locked(context, index, e);
    fake_unlock();
    return error;
}

int ibv_query_gid(struct ibv_context *context, uint8_t port_num, int index, union ibv_gid *gid) {
    struct ibv_gid_entry e;
    int error = port_num != 1 || index < 0 ? EINVAL : gid_entry(context, (uint32_t)index, &e);
    if (error == 0 || error == ENODATA) { /* an empty entry is all zeros */
        *gid = e.gid;
        return 0;
    }
    errno = error;
    return -1;
}

int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port_num, uint32_t gid_index,
                      struct ibv_gid_entry *entry, uint32_t flags, size_t entry_size) {
    if (port_num != 1 || flags != 0 || entry_size != sizeof(*entry)) return EINVAL;
    struct ibv_gid_entry e;
    int error = gid_entry(context, gid_index, &e);
    if (error == 0) *entry = e;
    return error;
}

ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries,
                             size_t max_entries, uint32_t flags, size_t entry_size) {
    if (flags != 0 || entry_size != sizeof(*entries)) return -EINVAL;
    ssize_t n = 0;
    for (uint32_t i = 0; i < 8; i++) {
        struct ibv_gid_entry e;
        int error = gid_entry(context, i, &e);
        if (error == EIO) return -EIO;
        if (error != 0) continue;
        if ((size_t)n == max_entries) return -EINVAL;
        entries[n++] = e;
    }
    return n;
}

int ibv_query_pkey(struct ibv_context *context, uint8_t port_num, int index, __be16 *pkey) {
    if (port_num != 1 || index != 0) return -1;
    *pkey = htobe16(0xffff);
    return 0;
}

int ibv_fork_init(void) {
    return 0;
}

enum ibv_fork_status ibv_is_fork_initialized(void) {
    return IBV_FORK_UNNEEDED;
}

/* --- what a context reports --- */

void fake_async_raise(struct fake_context *c, const struct ibv_async_event *event) {
    struct fake_async *a = calloc(1, sizeof(*a));
    a->event = *event;
    TAILQ_INSERT_TAIL(&c->events, a, link);
    fake_fd_raise(c->verbs.context.async_fd);
}

/* Of a queue pair or completion queue that is going away. */
void fake_async_forget(struct fake_context *c, const void *element) {
    struct fake_async *a, *next;
    unsigned n = 0;
    for (a = TAILQ_FIRST(&c->events); a != NULL; a = next) {
        next = TAILQ_NEXT(a, link);
        bool of_object = a->event.event_type <= IBV_EVENT_PATH_MIG_ERR;
        if (!of_object || a->event.element.qp != element) continue;
        TAILQ_REMOVE(&c->events, a, link);
        free(a);
        n++;
    }
    fake_fd_lower(c->verbs.context.async_fd, n);
}

static bool of_qp(enum ibv_event_type type) {
    return type == IBV_EVENT_QP_FATAL || type == IBV_EVENT_QP_REQ_ERR ||
           type == IBV_EVENT_QP_ACCESS_ERR || type == IBV_EVENT_COMM_EST ||
           type == IBV_EVENT_SQ_DRAINED;
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event) {
    struct fake_context *c = fake_context_of(context);
    for (;;) {
        if (fake_fd_take(context->async_fd) != 0) return -1;
        fake_lock();
        struct fake_async *a = TAILQ_FIRST(&c->events);
        if (a != NULL) {
            TAILQ_REMOVE(&c->events, a, link);
            *event = a->event;
            if (of_qp(event->event_type))
                CONTAINER_OF(event->element.qp, struct fake_qp, ibv)->got++;
            free(a);
        }
        fake_unlock();
        if (a != NULL) return 0;
    }
}

void ibv_ack_async_event(struct ibv_async_event *event) {
    fake_lock();
    if (of_qp(event->event_type)) {
        event->element.qp->events_completed++;
        pthread_cond_broadcast(&fake.acked);
    }
    fake_unlock();
}

/* --- names --- */

const char *ibv_node_type_str(enum ibv_node_type node_type) {
    return node_type == IBV_NODE_CA ? "InfiniBand channel adapter" : "unknown";
}

const char *ibv_port_state_str(enum ibv_port_state port_state) {
    static const char *const text[] = {"no state change (NOP)", "down", "init", "armed", "active",
                                       "in an unknown state"};
    return text[port_state <= IBV_PORT_ACTIVE ? port_state : 5];
}

const char *ibv_event_type_str(enum ibv_event_type event) {
    switch (event) {
    case IBV_EVENT_CQ_ERR: return "CQ error";
    case IBV_EVENT_QP_FATAL: return "local work queue catastrophic error";
    case IBV_EVENT_QP_REQ_ERR: return "invalid request local work queue error";
    case IBV_EVENT_QP_ACCESS_ERR: return "local access violation work queue error";
    case IBV_EVENT_DEVICE_FATAL: return "local catastrophic error";
    case IBV_EVENT_PORT_ACTIVE: return "port active";
    case IBV_EVENT_PORT_ERR: return "port error";
    default: return "event";
    }
}
