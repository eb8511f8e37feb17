/* What there is to say of RDMA in this process: one line for the log and INFO, and the report that
 * the master gets of each host: lines of "kind field=value ...", which commands.c takes apart
 * again. */
#include <stdlib.h>

#include "base/clock.h"
#include "rdma/passive.h"

static const char *const state_name[] = {"down", "up", "gone"};

void rdma_summary(struct buf *out) {
    unsigned n = rdma_devices_count(), up = 0;
    if (n == 0) {
        buf_append_str(out, "no device that can be used; tcp serves (RDMA.DOCTOR tells more)");
        return;
    }
    size_t addresses = 0;
    buf_printf(out, "%u device%s:", n, n == 1 ? "" : "s");
    for (unsigned k = 0; k < n; k++) {
        const struct rdma_device *d = rdma_device_at(k);
        struct rdma_address list[RDMA_ADDRESSES_MAX];
        size_t found = rdma_device_addresses(d, list);
        buf_printf(out, "%s %s %s", k > 0 ? "," : "", d->name, state_name[rdma_device_state(d)]);
        for (size_t i = 0; i < found; i++) buf_printf(out, " %s", list[i].text);
        addresses += found;
        up += rdma_device_usable(d);
    }
    if (up == 0)
        buf_append_str(out, "; no port is up, tcp serves");
    else if (addresses == 0)
        buf_append_str(out, "; none has a network address, tcp serves");
}

/* --- describe --- */

/* ibv_query_gid may ask the kernel: only the first ones, which are enough to recognise a device
 * by. */
static void append_gid(const struct rdma_device *d, struct buf *out) {
    union ibv_gid gid;
    for (int i = 3; i >= 0; i--) { /* of RoCE, the later ones are made of IP addresses */
        if (rdma_device_gone(d) || ibv_query_gid(d->verbs, 1, i, &gid) != 0) continue;
        if (gid.global.interface_id == 0 && gid.global.subnet_prefix == 0) continue;
        for (unsigned b = 0; b < 16; b++) buf_printf(out, "%02x", gid.raw[b]);
        return;
    }
    buf_append_char(out, '-');
}

static void describe_device(const struct transport_domain *d, const struct rdma_device *device,
                            struct buf *out) {
    struct rdma_address list[RDMA_ADDRESSES_MAX];
    size_t n = rdma_device_addresses(device, list);
    uint16_t port = 0;
    (void)rdma_listener_address(d, device, &port);
    buf_printf(
        out, "device name=%s state=%s numa=%d pci=%s speed_mbps=%u mtu=%u address=%s port=%u gid=",
        device->name, state_name[rdma_device_state(device)], device->numa_node,
        device->pci[0] != '\0' ? device->pci : "-",
        __atomic_load_n(&device->speed_mbps, __ATOMIC_RELAXED),
        __atomic_load_n(&device->mtu, __ATOMIC_RELAXED), n > 0 ? list[0].text : "-", port);
    append_gid(device, out);
    buf_printf(out, " relaxed_ordering=%s events=%llu errors=%llu\n",
               device->relaxed_ordering ? "yes" : "no",
               (unsigned long long)__atomic_load_n(&device->events, __ATOMIC_RELAXED),
               (unsigned long long)__atomic_load_n(&device->errors, __ATOMIC_RELAXED));
}

static void describe_memory(const struct transport_memory *m, struct buf *out) {
    uint64_t age = m->generation != 0 ? (clock_boot_ms() - m->registered_ms) / 1000 : 0;
    for (unsigned k = 0; k < rdma_devices_count(); k++) {
        const char *state = m->region[k].whole && m->generation != 0 ? "ready"
                            : m->job != NULL                         ? "registering"
                                                                     : "failed";
        buf_printf(
            out,
            "region segment=%u generation=%016llx state=%s chunks=%zu chunk_size=%llu bytes=%llu "
            "device=%s numa=%d registrations=%llu failures=%llu age_s=%llu\n",
            m->config.segment, (unsigned long long)m->generation, state, m->n_chunks,
            (unsigned long long)m->chunk_size, (unsigned long long)m->config.length,
            rdma_device_at(k)->name, m->numa_node, (unsigned long long)m->registrations,
            (unsigned long long)m->failures, (unsigned long long)age);
    }
}

static void describe_stats(const struct transport_domain *d, struct buf *out) {
    struct transport_listener_stats sum = {0};
    uint64_t fenced = 0;
    const struct transport_listener *l;
    LIST_FOREACH(l, &d->listeners, link) { /* one, as a rule */
        transport_stats_add(&sum, &l->stats);
        fenced += l->fenced;
    }
    buf_printf(out,
               "stats connections=%llu connections_total=%llu refused=%llu bad_requests=%llu "
               "connects_abandoned=%llu fenced=%llu regions=%llu registered_bytes=%llu",
               (unsigned long long)sum.connections, (unsigned long long)sum.connections_total,
               (unsigned long long)sum.connections_refused, (unsigned long long)sum.bad_frames,
               (unsigned long long)sum.timeouts, (unsigned long long)fenced,
               (unsigned long long)rdma_total(&rdma_totals.regions),
               (unsigned long long)rdma_total(&rdma_totals.bytes));
#define COUNTER(name) buf_printf(out, " " #name "=%llu", (unsigned long long)d->counters.name)
    RDMA_COUNTERS(COUNTER);
#undef COUNTER
    buf_append_char(out, '\n');
}

/* The most telling first; what does not fit is left out, in whole lines. */
void rdma_domain_describe(const struct transport_domain *d, struct buf *out) {
    struct buf all = {0};
    const struct transport_memory *m;
    describe_stats(d, &all);
    for (unsigned k = 0; k < rdma_devices_count(); k++) describe_device(d, rdma_device_at(k), &all);
    LIST_FOREACH(m, &d->memories, link) {
        if (m->config.remote && all.len < TRANSPORT_REPORT_MAX / 2) describe_memory(m, &all);
    }
    rdma_listener_describe(d, &all);
    rdma_work_describe(d, &all);
    size_t len = min_u64(all.len, TRANSPORT_REPORT_MAX);
    while (len > 0 && all.data[len - 1] != '\n') len--;
    buf_append(out, all.data, len);
    buf_free(&all);
}
