/* The RDMA devices of this machine, once per process. A thread takes what they report: a port that
 * comes or goes, addresses that change, a device that dies. It writes the state down and wakes the
 * domains, which draw the consequences.
 *
 *   DOWN <--port events--> UP          both --fatal, removed--> GONE
 *
 * The table is filled when the devices are opened and stays: a device that is plugged in later
 * needs the module loaded anew. */
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"
#include "base/thread.h"
#include "rdma/rdma.h"

/* Some kernels pass bits of their own on, which ibv_modify_qp does not take. */
#define QP_ATTR_KNOWN ((int)(IBV_QP_DEST_QPN << 1) - 1)

#define LOOK_MS        3000 /* how often a device without an address is looked at again */
#define CANDIDATES_MAX 64u
#define EVENTS_MAX     64
#define GIDS_MAX       64 /* of a table; a port has some, and the rest are empty */

static struct {
    pthread_mutex_t lock; /* devices_lock */
    LIST_HEAD(, transport_domain) domains;
    struct rdma_device device[RDMA_DEVICES_MAX];
    unsigned count; /* set once, before the thread starts */
    struct ibv_context **list;
    bool open, watched, thread_started;
    pthread_t thread;
    int stop_fd;
} devices = {.lock = PTHREAD_MUTEX_INITIALIZER, .stop_fd = -1};

struct rdma_totals rdma_totals;

/* --- ports --- */

static uint32_t speed_mbps(const struct ibv_port_attr *p) {
    static const struct {
        unsigned code;
        uint32_t mbps; /* per lane */
    } speeds[] = {{1, 2500},   {2, 5000},   {4, 10000},  {8, 10000},
                  {16, 14000}, {32, 25000}, {64, 50000}, {128, 100000}};
    unsigned lanes = p->active_width == 2    ? 4
                     : p->active_width == 4  ? 8
                     : p->active_width == 8  ? 12
                     : p->active_width == 16 ? 2
                                             : 1;
    for (size_t i = 0; i < ARRAY_LEN(speeds); i++) {
        if (speeds[i].code == p->active_speed) return speeds[i].mbps * lanes;
    }
    return 0;
}

/* true: something is another than before. */
static bool port_figure_set(uint32_t *at, uint32_t value) {
    return __atomic_exchange_n(at, value, __ATOMIC_RELAXED) != value;
}

static bool device_look_at_ports(struct rdma_device *d) {
    struct ibv_port_attr best = {0};
    for (unsigned port = 1; port <= d->attr.phys_port_cnt; port++) {
        struct ibv_port_attr p = {0};
        if (ibv_query_port(d->verbs, (uint8_t)port, &p) != 0) continue;
        if (best.max_msg_sz == 0 || p.state == IBV_PORT_ACTIVE) best = p;
        if (p.state == IBV_PORT_ACTIVE) break;
    }
    bool up = best.state == IBV_PORT_ACTIVE;
    bool changed = port_figure_set(&d->speed_mbps, speed_mbps(&best));
    changed |= port_figure_set(
        &d->mtu, best.active_mtu >= 1 && best.active_mtu <= 5 ? 128u << best.active_mtu : 0);
    changed |= port_figure_set(&d->max_message, best.max_msg_sz);
    unsigned was = up ? RDMA_DEVICE_DOWN : RDMA_DEVICE_UP;
    if (!__atomic_compare_exchange_n(&d->state, &was, up ? RDMA_DEVICE_UP : RDMA_DEVICE_DOWN, false,
                                     __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
        return changed; /* no news, or gone */
    }
    if (up) __atomic_fetch_add(&d->ups, 1, __ATOMIC_RELEASE);
    if (devices.watched) log_notice("RDMA device %s: its port is %s", d->name, up ? "up" : "down");
    return true;
}

void rdma_device_lost(struct rdma_device *d) {
    if (__atomic_exchange_n(&d->state, RDMA_DEVICE_GONE, __ATOMIC_ACQ_REL) == RDMA_DEVICE_GONE)
        return;
    log_warning("RDMA device %s is gone: what it did goes other ways", d->name);
    rdma_domains_kick();
}

/* --- addresses --- */

static size_t from_options(struct rdma_address out[CANDIDATES_MAX]) {
    for (size_t i = 0; i < rdma_options.binds; i++)
        TARN_ASSERT(rdma_address_parse(rdma_options.bind[i], &out[i]));
    return rdma_options.binds;
}

/* Loopback is no device's, whatever rdma_bind_addr may say; link-local addresses mean nothing
 * elsewhere. */
static bool worth_a_try(const struct ifaddrs *i) {
    if (i->ifa_addr == NULL || (i->ifa_flags & IFF_LOOPBACK) != 0) return false;
    if (i->ifa_addr->sa_family == AF_INET) return true;
    return i->ifa_addr->sa_family == AF_INET6 &&
           !IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)i->ifa_addr)->sin6_addr);
}

static size_t from_interfaces(struct rdma_address out[CANDIDATES_MAX]) {
    struct ifaddrs *list;
    size_t n = 0;
    if (getifaddrs(&list) != 0) return 0;
    for (const struct ifaddrs *i = list; i != NULL && n < CANDIDATES_MAX; i = i->ifa_next) {
        if (worth_a_try(i)) out[n++] = rdma_address_of_sockaddr(i->ifa_addr);
    }
    freeifaddrs(list);
    return n;
}

static bool is_listed(const struct rdma_address *list, size_t n, const struct rdma_address *a) {
    for (size_t i = 0; i < n; i++) {
        if (rdma_address_same(&list[i], a)) return true;
    }
    return false;
}

/* What the devices themselves know, besides interfaces: a GID of RoCE is an IP address. */
static size_t from_gids(struct rdma_address out[CANDIDATES_MAX], size_t n) {
    for (unsigned k = 0; k < devices.count; k++) {
        const struct rdma_device *d = &devices.device[k];
        struct ibv_port_attr p = {0};
        if (rdma_device_gone(d) || ibv_query_port(d->verbs, 1, &p) != 0 ||
            p.link_layer != IBV_LINK_LAYER_ETHERNET) {
            continue;
        }
        for (int i = 0; i < p.gid_tbl_len && i < GIDS_MAX && n < CANDIDATES_MAX; i++) {
            union ibv_gid gid;
            if (ibv_query_gid(d->verbs, 1, i, &gid) != 0) continue;
            out[n] = rdma_address_of(gid.raw);
            n += !IN6_IS_ADDR_UNSPECIFIED(&out[n].ip) && !IN6_IS_ADDR_LINKLOCAL(&out[n].ip) &&
                 !is_listed(out, n, &out[n]);
        }
    }
    return n;
}

/* Whose address is it? librdmacm knows, once an id is bound to it. */
static struct rdma_device *owner_of(struct rdma_event_channel *channel,
                                    const struct rdma_address *a) {
    struct sockaddr_storage sa = rdma_address_sockaddr(a, 0);
    struct rdma_cm_id *id;
    struct rdma_device *d = NULL;
    if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) != 0) return NULL;
    if (rdma_bind_addr(id, (struct sockaddr *)&sa) == 0 && id->verbs != NULL)
        d = rdma_device_of(id->verbs);
    rdma_destroy_id(id);
    return d;
}

struct device_found {
    struct rdma_address address[RDMA_ADDRESSES_MAX];
    size_t n;
};

/* A port that is down has lost its addresses for a while: they are most likely the same when it
 * comes up. */
static bool device_take_addresses(struct rdma_device *d, const struct device_found *f) {
    if (f->n == 0 && !rdma_device_usable(d)) return false;
    pthread_mutex_lock(&devices.lock);
    bool same = d->addresses == f->n;
    for (size_t i = 0; same && i < f->n; i++)
        same = rdma_address_same(&d->address[i], &f->address[i]);
    memcpy(d->address, f->address, f->n * sizeof(f->address[0]));
    d->addresses = f->n;
    pthread_mutex_unlock(&devices.lock);
    return !same;
}

static bool look_at_addresses(void) {
    struct rdma_address candidate[CANDIDATES_MAX];
    struct device_found found[RDMA_DEVICES_MAX] = {0};
    size_t n = rdma_options.binds > 0 ? from_options(candidate)
                                      : from_gids(candidate, from_interfaces(candidate));
    struct rdma_event_channel *channel = rdma_create_event_channel();
    if (channel == NULL) return false;
    for (size_t i = 0; i < n; i++) {
        struct rdma_device *d = owner_of(channel, &candidate[i]);
        if (d == NULL || found[d->index].n == RDMA_ADDRESSES_MAX) continue;
        found[d->index].address[found[d->index].n++] = candidate[i];
    }
    rdma_destroy_event_channel(channel);
    bool changed = false;
    for (unsigned i = 0; i < devices.count; i++)
        changed |= device_take_addresses(&devices.device[i], &found[i]);
    return changed;
}

size_t rdma_device_addresses(const struct rdma_device *d,
                             struct rdma_address out[RDMA_ADDRESSES_MAX]) {
    pthread_mutex_lock(&devices.lock);
    size_t n = d->addresses;
    memcpy(out, d->address, n * sizeof(out[0]));
    pthread_mutex_unlock(&devices.lock);
    return n;
}

/* --- what devices report --- */

/* true: its port or its addresses may have changed. */
static bool handle_event(struct rdma_device *d, const struct ibv_async_event *e) {
    __atomic_fetch_add(&d->events, 1, __ATOMIC_RELAXED);
    switch (e->event_type) {
    case IBV_EVENT_DEVICE_FATAL: rdma_device_lost(d); return false;
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
    case IBV_EVENT_GID_CHANGE: return true;
    case IBV_EVENT_CQ_ERR:
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_PATH_MIG_ERR:
        __atomic_fetch_add(&d->errors, 1, __ATOMIC_RELAXED);
        log_verbose("RDMA device %s: %s", d->name, ibv_event_type_str(e->event_type));
        return false;
    default: return false;
    }
}

/* A burst of events is one reason to look. */
static void device_take_events(struct rdma_device *d) {
    bool look = false;
    struct ibv_async_event e;
    int error = 0;
    for (int i = 0; i < EVENTS_MAX && error == 0; i++) {
        errno = 0;
        if (ibv_get_async_event(d->verbs, &e) != 0) {
            error = errno != 0 ? errno : ENODEV;
            continue;
        }
        look |= handle_event(d, &e);
        ibv_ack_async_event(&e);
    }
    if (error != 0 && error != EAGAIN && error != EINTR) {
        rdma_device_lost(d);
    } else if (look) {
        bool ports = device_look_at_ports(d);
        if (look_at_addresses() || ports) rdma_domains_kick();
    }
}

static bool some_lack_an_address(void) {
    bool lacking = false;
    pthread_mutex_lock(&devices.lock);
    for (unsigned i = 0; i < devices.count; i++) {
        const struct rdma_device *d = &devices.device[i];
        lacking |= d->addresses == 0 && !rdma_device_gone(d);
    }
    pthread_mutex_unlock(&devices.lock);
    return lacking;
}

static void *devices_watch(void *arg) {
    (void)arg;
    for (;;) {
        struct pollfd p[1 + RDMA_DEVICES_MAX] = {{.fd = devices.stop_fd, .events = POLLIN}};
        for (unsigned i = 0; i < devices.count; i++) {
            struct rdma_device *d = &devices.device[i];
            bool gone = rdma_device_gone(d);
            p[1 + i] = (struct pollfd){.fd = gone ? -1 : d->verbs->async_fd, .events = POLLIN};
        }
        int n = poll(p, 1 + devices.count, some_lack_an_address() ? LOOK_MS : -1);
        if (p[0].revents != 0) return NULL;
        if (n == 0 && look_at_addresses()) rdma_domains_kick();
        for (unsigned i = 0; n > 0 && i < devices.count; i++) {
            if (p[1 + i].revents != 0) device_take_events(&devices.device[i]);
        }
    }
}

/* --- fork: a child goes without, for neither verbs nor librdmacm survive in it --- */

static void devices_before_fork(void) {
    pthread_mutex_lock(&devices.lock);
}

static void devices_after_fork(void) {
    pthread_mutex_unlock(&devices.lock);
}

static void devices_in_child(void) {
    devices.count = 0;
    devices.thread_started = false;
    LIST_INIT(&devices.domains);
    rdma_totals = (struct rdma_totals){0};
    rdma_jobs_forget();
    devices_after_fork();
}

static void devices_set_up_fork(void) {
    (void)pthread_atfork(devices_before_fork, devices_after_fork, devices_in_child);
}

/* --- opening --- */

bool rdma_read_line(const char *path, char *out, size_t cap) {
    FILE *f = fopen(path, "re");
    bool got = f != NULL && fgets(out, (int)cap, f) != NULL;
    if (f != NULL) fclose(f);
    out[got ? strcspn(out, "\n") : 0] = '\0';
    return got;
}

static void device_find_place(struct rdma_device *d) {
    char path[IBV_SYSFS_PATH_MAX + 32], text[300];
    snprintf(path, sizeof(path), "%s/device/numa_node", d->verbs->device->ibdev_path);
    d->numa_node = rdma_read_line(path, text, sizeof(text)) ? atoi(text) : -1;
    snprintf(path, sizeof(path), "%s/device", d->verbs->device->ibdev_path);
    ssize_t n = readlink(path, text, sizeof(text) - 1);
    text[n > 0 ? n : 0] = '\0';
    const char *base = strrchr(text, '/');
    unsigned a, b, c, f;
    if (base != NULL && sscanf(base + 1, "%x:%x:%x.%x", &a, &b, &c, &f) == 4)
        snprintf(d->pci, sizeof(d->pci), "%.31s", base + 1);
}

static bool takes_relaxed_ordering(const struct rdma_device *d) {
    if (!rdma_options.relaxed_ordering) return false;
    void *page;
    if (posix_memalign(&page, 4096, 4096) != 0) return false;
    unsigned access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING;
    struct ibv_mr *mr = ibv_reg_mr(d->pd, page, 4096, access);
    if (mr != NULL) ibv_dereg_mr(mr);
    free(page);
    return mr != NULL;
}

static bool device_wanted(const char *name) {
    for (size_t i = 0; i < rdma_options.devices; i++) {
        if (strcmp(rdma_options.device[i], name) == 0) return true;
    }
    return rdma_options.devices == 0;
}

static void device_close(struct rdma_device *d) {
    if (d->passive_cq != NULL) ibv_destroy_cq(d->passive_cq);
    if (d->pd != NULL) ibv_dealloc_pd(d->pd);
    *d = (struct rdma_device){0};
}

static void device_open(struct ibv_context *verbs) {
    const char *name = ibv_get_device_name(verbs->device);
    if (!device_wanted(name)) return;
    if (devices.count == RDMA_DEVICES_MAX) {
        log_warning("RDMA device %s is left out: %u are the most", name, RDMA_DEVICES_MAX);
        return;
    }
    struct rdma_device *d = &devices.device[devices.count];
    *d = (struct rdma_device){.index = devices.count, .verbs = verbs};
    snprintf(d->name, sizeof(d->name), "%.31s", name);
    int flags = fcntl(verbs->async_fd, F_GETFL);
    if (ibv_query_device(verbs, &d->attr) != 0 || (d->pd = ibv_alloc_pd(verbs)) == NULL ||
        (d->passive_cq = ibv_create_cq(verbs, 1, NULL, NULL, 0)) == NULL || flags < 0 ||
        fcntl(verbs->async_fd, F_SETFL, flags | O_NONBLOCK) != 0) {
        log_warning("RDMA device %s cannot be used: %s", name, strerror(errno));
        device_close(d);
        return;
    }
    device_find_place(d);
    d->relaxed_ordering = takes_relaxed_ordering(d);
    (void)device_look_at_ports(d);
    devices.count++;
}

static void warn_of_missing(void) {
    for (size_t i = 0; i < rdma_options.devices; i++) {
        bool found = false;
        for (unsigned k = 0; k < devices.count; k++)
            found |= strcmp(devices.device[k].name, rdma_options.device[i]) == 0;
        if (!found)
            log_warning("RDMA device %s: there is none of that name", rdma_options.device[i]);
    }
}

void rdma_devices_open(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (devices.open) return;
    pthread_once(&once, devices_set_up_fork);
    devices.open = true;
    int n = 0;
    devices.list = rdma_get_devices(&n);
    for (int i = 0; devices.list != NULL && i < n; i++) device_open(devices.list[i]);
    warn_of_missing();
    if (devices.count == 0) return;
    (void)look_at_addresses();
    rdma_jobs_begin();
    devices.watched = true; /* what changes from here on is news */
    devices.stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    devices.thread_started = devices.stop_fd >= 0 &&
                             thread_start(&devices.thread, "tarn-rdma", devices_watch, NULL) == 0;
    if (!devices.thread_started)
        log_warning("RDMA: no thread for what devices report: %s", strerror(errno));
}

tarn_status rdma_devices_close(void) {
    if (!devices.open) return TARN_OK;
    pthread_mutex_lock(&devices.lock);
    bool busy = !LIST_EMPTY(&devices.domains);
    pthread_mutex_unlock(&devices.lock);
    if (busy) return TARN_EBUSY;
    if (devices.thread_started) {
        eventfd_write(devices.stop_fd, 1);
        pthread_join(devices.thread, NULL);
        devices.thread_started = false;
    }
    rdma_jobs_end();
    if (devices.stop_fd >= 0) close(devices.stop_fd);
    devices.stop_fd = -1;
    for (unsigned i = 0; i < devices.count; i++) device_close(&devices.device[i]);
    devices.count = 0;
    devices.watched = false;
    if (devices.list != NULL) rdma_free_devices(devices.list);
    devices.list = NULL;
    devices.open = false;
    return TARN_OK;
}

/* --- looking --- */

unsigned rdma_devices_count(void) {
    return devices.count;
}

struct rdma_device *rdma_device_at(unsigned index) {
    TARN_ASSERT(index < devices.count);
    return &devices.device[index];
}

struct rdma_device *rdma_device_of(const struct ibv_context *verbs) {
    for (unsigned i = 0; verbs != NULL && i < devices.count; i++) {
        if (devices.device[i].verbs == verbs) return &devices.device[i];
    }
    return NULL;
}

unsigned rdma_device_distance(const struct rdma_device *d, int numa_node) {
    if (d->numa_node < 0 || numa_node < 0) return 1;
    return d->numa_node == numa_node ? 0 : 2;
}

int rdma_numa_node_of(const void *addr) {
    void *page = (void *)((uintptr_t)addr & ~(uintptr_t)4095);
    int node = -1;
    if (syscall(SYS_move_pages, 0, 1UL, &page, NULL, &node, 0) != 0) return -1;
    return node >= 0 ? node : -1; /* negative: nothing is there yet */
}

bool rdma_qp_move(struct rdma_cm_id *id, struct ibv_qp *qp, enum ibv_qp_state state,
                  unsigned access, uint8_t reads) {
    struct ibv_qp_attr attr = {.qp_state = state};
    int mask = 0;
    if (rdma_init_qp_attr(id, &attr, &mask) != 0) return false;
    mask &= QP_ATTR_KNOWN & ~IBV_QP_ACCESS_FLAGS; /* librdmacm would have everybody write */
    if (state == IBV_QPS_INIT) {
        attr.qp_access_flags = access;
        mask |= IBV_QP_ACCESS_FLAGS;
    } else if (state == IBV_QPS_RTR && reads > 0) {
        attr.max_dest_rd_atomic = reads;
        mask |= IBV_QP_MAX_DEST_RD_ATOMIC;
    } else if (state == IBV_QPS_RTS) {
        attr.timeout = (uint8_t)rdma_options.qp_timeout;
        attr.retry_cnt = (uint8_t)min_u64(rdma_options.qp_retry, 7);
    }
    return ibv_modify_qp(qp, &attr, mask) == 0;
}

/* --- domains --- */

void rdma_domains_kick(void) {
    const struct transport_domain *d;
    pthread_mutex_lock(&devices.lock);
    LIST_FOREACH(d, &devices.domains, link) (void)eventfd_write(d->kick_fd, 1);
    pthread_mutex_unlock(&devices.lock);
}

void rdma_domains_add(struct transport_domain *d) {
    pthread_mutex_lock(&devices.lock);
    LIST_INSERT_HEAD(&devices.domains, d, link);
    pthread_mutex_unlock(&devices.lock);
    RDMA_TOTAL(domains, 1);
}

void rdma_domains_remove(struct transport_domain *d) {
    pthread_mutex_lock(&devices.lock);
    LIST_REMOVE(d, link);
    pthread_mutex_unlock(&devices.lock);
    RDMA_TOTAL(domains, -1);
}
