/* INFO inband: values of GET, SET and their kin that live on other machines or on disks. */
#include "cmd/config.h"
#include "cmd/info.h"
#include "cmd/later.h"
#include "cmd/remote.h"

typedef unsigned long long ull;

void info_inband(struct buf *out) {
    const struct remote_stats *s = &remote_stats;
    struct remote_figures f;
    remote_get_figures(&f);
    info_line(out, "inband_buffer:%llu", (ull)server.config->inband_buffer);
    info_line(out, "inband_buffer_used:%llu", (ull)f.claimed);
    info_line(out, "inband_values:%llu", (ull)f.claims);
    info_line(out, "inband_later_clients:%llu", (unsigned long long)later_figures().waiting);
    info_line(out, "inband_later_waits:%llu", (unsigned long long)later_figures().waits);
    info_line(out, "inband_later_timeouts:%llu", (unsigned long long)later_figures().timeouts);
    info_line(out, "inband_waiting:%llu", (ull)f.claims_waiting);
    info_line(out, "inband_waits:%llu", (ull)s->waits);
    info_line(out, "inband_stalled_clients:%llu", (ull)s->stalled);
    info_line(out, "inband_write_sessions:%llu", (ull)f.sessions);
    info_line(out, "inband_reads:%llu", (ull)s->reads);
    info_line(out, "inband_read_bytes:%llu", (ull)s->read_bytes);
    info_line(out, "inband_writes:%llu", (ull)s->writes);
    info_line(out, "inband_write_bytes:%llu", (ull)s->write_bytes);
    info_line(out, "inband_shm_bytes:%llu", (ull)s->bytes_by[ENGINE_SHM]);
    info_line(out, "inband_rdma_bytes:%llu", (ull)s->bytes_by[ENGINE_RDMA]);
    info_line(out, "inband_tcp_bytes:%llu", (ull)s->bytes_by[ENGINE_TCP]);
    info_line(out, "inband_failures:%llu", (ull)s->failures);
    info_line(out, "inband_failovers:%llu", (ull)s->failovers);
    info_line(out, "inband_misses:%llu", (ull)s->misses);
    info_line(out, "inband_broken:%llu", (ull)s->broken);
    info_line(out, "inband_corrupt:%llu", (ull)s->corrupt);
    info_line(out, "inband_write_retries:%llu", (ull)s->write_retries);
    info_line(out, "inband_write_fenced:%llu", (ull)s->write_failures);
    info_line(out, "inband_threads:%lld", (long long)server.config->inband_threads);
    info_line(out, "inband_queued:%llu", (ull)f.mover.queued);
    info_line(out, "inband_running:%llu", (ull)f.mover.running);
    info_line(out, "inband_batches:%llu", (ull)f.mover.batches);
    info_line(out, "inband_engines:%llu", (ull)f.mover.sessions);
}
