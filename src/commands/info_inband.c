/* INFO inband: values of GET, SET and their kin that live on other machines or on disks. */
#include <stdio.h>

#include "config/config.h"
#include "commands/info.h"
#include "inband/later.h"
#include "inband/remote.h"

static void show_by_transport(struct figure_walk *f) {
    const struct transport_ops *t;
    for (size_t i = 0; (t = transport_at(i)) != NULL; i++) {
        char name[sizeof("inband__bytes") + TRANSPORT_SCHEME_MAX];
        snprintf(name, sizeof(name), "inband_%s_bytes", t->scheme);
        struct figure by = {name, "... by this transport", FIGURE_COUNTER_BYTES, 0};
        f->show(f, &by, figure_number(remote_stats.bytes_by[transport_slot(t)]));
    }
}

void info_inband(struct figure_walk *f) {
    struct remote_figures now;
    remote_get_figures(&now);
    struct later_figures later = later_figures();
    FIGURE(f, BYTES, inband_buffer, "bound of their memory", config->inband_buffer);
    FIGURE(f, BYTES, inband_buffer_used, "... in use", now.claimed);
    FIGURE(f, GAUGE, inband_values, "values that have some of it", now.claims);
    FIGURE(f, GAUGE, inband_later_clients, "writers that wait for room", later.waiting);
    FIGURE(f, COUNTER, inband_later_waits, "... that had to", later.waits);
    FIGURE(f, COUNTER, inband_later_timeouts, "... in vain", later.timeouts);
    FIGURE(f, GAUGE, inband_waiting, "values that wait for buffers", now.claims_waiting);
    FIGURES(f, remote_stats_figures, remote_stats, inband_waits, inband_stalled_clients);
    FIGURE(f, GAUGE, inband_write_sessions, "sessions that write", now.sessions);
    FIGURES(f, remote_stats_figures, remote_stats, inband_reads, inband_write_bytes);
    show_by_transport(f);
    FIGURES(f, remote_stats_figures, remote_stats, inband_failures, inband_write_fenced);
    FIGURE(f, GAUGE, inband_threads, "that move bytes", config->inband_threads);
    FIGURE(f, GAUGE, inband_queued, "pieces that wait for a thread", now.mover.queued);
    FIGURE(f, GAUGE, inband_running, "pieces on their way", now.mover.running);
    FIGURE(f, COUNTER, inband_batches, "pieces that went together count as one", now.mover.batches);
    FIGURE(f, GAUGE, inband_engines, "sets of connections to hosts", now.mover.sessions);
}
