/* RDMA.DOCTOR: what keeps RDMA from working, or from working well, on this machine. One finding per
 * line: "ok ...", "warning ..." or "error ...: what to do". It only looks; what it cannot see it
 * does not mention. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "rdma/rdma.h"

#define FINDINGS_MAX     64u
#define CAP_IPC_LOCK_BIT 14
#define GIDS_LOOKED_AT   64
#define MTU_OVERHEAD     64u /* headers of RoCE v2 around the payload of a packet, rounded up */
#define SYSFS_DEVICES    "/sys/class/infiniband"
#define SYSFS_NETDEVS    "/sys/class/net"

struct findings {
    struct buf line[FINDINGS_MAX];
    size_t n;
};

static void finding_add(struct findings *f, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
static void finding_add(struct findings *f, const char *fmt, ...) {
    if (f->n == FINDINGS_MAX) return;
    va_list ap;
    va_start(ap, fmt);
    buf_vprintf(&f->line[f->n++], fmt, ap);
    va_end(ap);
}

static bool path_exists(const char *path) {
    return access(path, F_OK) == 0;
}

/* --- the machine --- */

static void look_at_kernel(struct findings *f) {
    static const struct {
        const char *path, *text;
    } parts[] = {
        {"/sys/module/ib_uverbs", "ib_uverbs (verbs for programs)"},
        {"/sys/module/rdma_cm", "rdma_cm (connections)"},
        {"/sys/module/rdma_ucm", "rdma_ucm (connections for programs)"},
    };
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        const char *name = strrchr(parts[i].path, '/') + 1;
        if (!path_exists(parts[i].path))
            finding_add(f, "error kernel: %s is not loaded: modprobe %s", parts[i].text, name);
    }
}

static void look_at_nodes(struct findings *f) {
    DIR *dir = opendir("/dev/infiniband");
    if (dir == NULL) {
        finding_add(
            f,
            "error /dev/infiniband: %s: load ib_uverbs and rdma_ucm, or give the container its "
            "devices",
            strerror(errno));
        return;
    }
    for (const struct dirent *e; (e = readdir(dir)) != NULL;) {
        char path[sizeof(e->d_name) + 32];
        if (strncmp(e->d_name, "uverbs", 6) != 0 && strcmp(e->d_name, "rdma_cm") != 0) continue;
        snprintf(path, sizeof(path), "/dev/infiniband/%s", e->d_name);
        if (access(path, R_OK | W_OK) != 0)
            finding_add(f, "error %s: %s: let this user read and write it (group rdma, mode 0666)",
                        path, strerror(errno));
    }
    closedir(dir);
}

/* Names of devices that the kernel has and this process has not. */
static void look_at_unused(struct findings *f) {
    DIR *dir = opendir(SYSFS_DEVICES);
    if (dir == NULL) return;
    for (const struct dirent *e; (e = readdir(dir)) != NULL;) {
        bool used = e->d_name[0] == '.';
        for (unsigned k = 0; k < rdma_devices_count(); k++)
            used |= strcmp(rdma_device_at(k)->name, e->d_name) == 0;
        if (used) continue;
        if (rdma_options.devices > 0)
            finding_add(f, "warning device %s: it is not used: 'device' names others", e->d_name);
        else
            finding_add(
                f,
                "warning device %s: it is not used: it came after the module, or its library is "
                "missing "
                "(rdma-core's providers): load the module anew",
                e->d_name);
    }
    closedir(dir);
}

static bool may_lock_all(void) {
    char line[128];
    unsigned long long caps = 0;
    FILE *f = fopen("/proc/self/status", "re");
    if (f == NULL) return false;
    while (fgets(line, sizeof(line), f) != NULL && sscanf(line, "CapEff: %llx", &caps) != 1) {
    }
    fclose(f);
    return (caps >> CAP_IPC_LOCK_BIT & 1) != 0;
}

static void look_at_memlock(struct findings *f) {
    struct rlimit limit;
    uint64_t need = 2 * rdma_total(&rdma_totals.segment_bytes);
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return;
    if (limit.rlim_cur == RLIM_INFINITY || may_lock_all()) {
        finding_add(f, "ok memory: %llu bytes are registered; there is no limit of locked memory",
                    (unsigned long long)rdma_total(&rdma_totals.bytes));
    } else if (limit.rlim_cur < need) {
        finding_add(
            f,
            "error memory: the limit of locked memory is %llu bytes, segments need %llu (every "
            "page counts "
            "twice): ulimit -l unlimited, or LimitMEMLOCK=infinity for a service",
            (unsigned long long)limit.rlim_cur, (unsigned long long)need);
    } else if (need == 0 && limit.rlim_cur < UINT64_C(1) << 30) {
        finding_add(
            f,
            "warning memory: the limit of locked memory is %llu bytes: ulimit -l unlimited, or "
            "LimitMEMLOCK=infinity for a service",
            (unsigned long long)limit.rlim_cur);
    } else {
        finding_add(f, "ok memory: the limit of locked memory is %llu bytes, segments need %llu",
                    (unsigned long long)limit.rlim_cur, (unsigned long long)need);
    }
}

static void look_at_peer_memory(struct findings *f) {
    static const char *const gpus[] = {"/sys/module/nvidia", "/sys/module/amdgpu"};
    static const char *const peers[] = {"/sys/module/nvidia_peermem", "/sys/module/nv_peer_mem"};
    bool gpu = false, peer = false;
    for (size_t i = 0; i < ARRAY_LEN(gpus); i++) gpu |= path_exists(gpus[i]);
    for (size_t i = 0; i < ARRAY_LEN(peers); i++) peer |= path_exists(peers[i]);
    if (gpu && !peer)
        finding_add(
            f,
            "warning GPU memory: only as a dma-buf: load nvidia-peermem if its addresses are to be "
            "registered as they are");
}

/* --- a device --- */

/* The driver is asked with a descriptor that is none: it says so where it would take a good one. */
static void look_at_dmabuf(struct findings *f, const struct rdma_device *d) {
    struct ibv_mr *mr = ibv_reg_dmabuf_mr(d->pd, 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE);
    if (mr != NULL) {
        ibv_dereg_mr(mr);
    } else if (errno == EOPNOTSUPP || errno == EPROTONOSUPPORT || errno == ENOSYS) {
        finding_add(
            f, "warning device %s: no dma-buf: memory of GPUs goes by way of the host's memory",
            d->name);
        return;
    }
    finding_add(f, "ok device %s: takes dma-buf", d->name);
}

static void look_at_gids(struct findings *f, const struct rdma_device *d,
                         const struct ibv_port_attr *p, uint8_t port) {
    unsigned found = 0, routable = 0;
    for (int i = 0; i < p->gid_tbl_len && i < GIDS_LOOKED_AT; i++) {
        union ibv_gid gid;
        if (ibv_query_gid(d->verbs, port, i, &gid) != 0) continue;
        if (gid.global.subnet_prefix == 0 && gid.global.interface_id == 0) continue;
        found++;
        routable += !(gid.raw[0] == 0xfe && gid.raw[1] == 0x80);
    }
    if (found == 0)
        finding_add(f, "error device %s: its table of GIDs is empty: give its interface an address",
                    d->name);
    else if (routable == 0 && p->link_layer == IBV_LINK_LAYER_ETHERNET)
        finding_add(f, "warning device %s: only link-local GIDs: give its interface an IP address",
                    d->name);
}

/* The interface under a RoCE port. */
static bool netdev_of(const struct rdma_device *d, uint8_t port, char *name, size_t cap) {
    char path[200];
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof(path), SYSFS_DEVICES "/%s/ports/%u/gid_attrs/ndevs/%d", d->name, port,
                 i);
        if (rdma_read_line(path, name, cap) && name[0] != '\0' && strchr(name, '/') == NULL)
            return true;
    }
    return false;
}

static void look_at_mtu(struct findings *f, const struct rdma_device *d,
                        const struct ibv_port_attr *p, uint8_t port) {
    char name[64], path[160], text[32];
    unsigned active = p->active_mtu >= 1 && p->active_mtu <= 5 ? 128u << p->active_mtu : 0;
    unsigned most = p->max_mtu >= 1 && p->max_mtu <= 5 ? 128u << p->max_mtu : 0;
    if (active >= most) return;
    if (!netdev_of(d, port, name, sizeof(name))) {
        finding_add(f, "warning device %s: its MTU is %u of %u", d->name, active, most);
        return;
    }
    snprintf(path, sizeof(path), SYSFS_NETDEVS "/%s/mtu", name);
    if (!rdma_read_line(path, text, sizeof(text))) snprintf(text, sizeof(text), "?");
    finding_add(
        f,
        "warning device %s: its MTU is %u of %u, as %s has one of %s: ip link set %s mtu %u, on "
        "every "
        "machine",
        d->name, active, most, name, text, name, most + MTU_OVERHEAD);
}

static const char *port_state(enum ibv_port_state s) {
    switch (s) {
    case IBV_PORT_DOWN: return "down";
    case IBV_PORT_INIT: return "initialising (is there a subnet manager?)";
    case IBV_PORT_ARMED: return "armed";
    case IBV_PORT_ACTIVE: return "active";
    case IBV_PORT_ACTIVE_DEFER: return "active, deferred";
    default: return "unknown";
    }
}

static void look_at_port_states(struct findings *f, const struct rdma_device *d) {
    for (unsigned n = 1; n <= d->attr.phys_port_cnt; n++) {
        struct ibv_port_attr p = {0};
        uint8_t port = (uint8_t)n;
        if (ibv_query_port(d->verbs, port, &p) != 0) continue;
        if (p.state != IBV_PORT_ACTIVE) {
            finding_add(
                f, "error device %s: port %u is %s: look at the cable, ip link set up, the switch",
                d->name, n, port_state(p.state));
            continue;
        }
        look_at_gids(f, d, &p, port);
        look_at_mtu(f, d, &p, port);
    }
}

static bool is_loopback_address(const struct rdma_address *a) {
    return rdma_address_is_v4(a) ? a->ip.s6_addr[12] == 127 : IN6_IS_ADDR_LOOPBACK(&a->ip);
}

/* Returns how many addresses others can use. */
static size_t look_at_device(struct findings *f, const struct rdma_device *d) {
    struct rdma_address list[RDMA_ADDRESSES_MAX];
    size_t n = rdma_device_addresses(d, list), outside = 0;
    if (rdma_device_gone(d)) {
        finding_add(
            f, "error device %s: it broke or was taken away: load the module anew when it is back",
            d->name);
        return 0;
    }
    for (size_t i = 0; i < n; i++) outside += !is_loopback_address(&list[i]);
    if (n == 0)
        finding_add(f,
                    "error device %s: no network address belongs to it: give its interface one%s",
                    d->name, rdma_options.binds > 0 ? ", or correct 'bind'" : "");
    else
        finding_add(f, "ok device %s: %s, port %s, %u Mbit/s", d->name, list[0].text,
                    rdma_device_usable(d) ? "up" : "down",
                    __atomic_load_n(&d->speed_mbps, __ATOMIC_RELAXED));
    look_at_port_states(f, d);
    look_at_dmabuf(f, d);
    return outside;
}

void rdma_doctor(struct tarn_call_context *c, const struct span *argv, size_t argc) {
    (void)argv, (void)argc;
    struct findings *f = xcalloc(1, sizeof(*f));
    if (rdma_devices_count() == 0) {
        finding_add(f, "error no RDMA device can be used, tcp serves: %s",
                    path_exists(SYSFS_DEVICES)
                        ? "see below"
                        : "this kernel has none: load the driver of the card, or rdma_rxe");
        look_at_kernel(f);
    }
    /* Without the kernel's own list the devices are not the kernel's. */
    if (path_exists(SYSFS_DEVICES)) look_at_nodes(f);
    look_at_unused(f);
    size_t outside = 0;
    for (unsigned k = 0; k < rdma_devices_count(); k++)
        outside += look_at_device(f, rdma_device_at(k));
    if (rdma_devices_count() > 0 && outside == 0)
        finding_add(f,
                    "warning addresses: nobody outside this machine can connect: no device has an "
                    "address but "
                    "loopback");
    look_at_memlock(f);
    look_at_peer_memory(f);
    rdma_services->reply_array(c, f->n);
    for (size_t i = 0; i < f->n; i++) {
        rdma_services->reply_text(c, span_of(f->line[i].data, f->line[i].len));
        buf_free(&f->line[i]);
    }
    free(f);
}
