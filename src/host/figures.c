/* What a host shows of itself beyond the counters of host.h. */
#include <stdio.h>

#include "base/assert.h"
#include "host/host_internal.h"

void host_get_times(const struct host *h, struct host_times *times_p) {
    memset(times_p, 0, sizeof(*times_p));
    for (unsigned i = 0; i < h->n_paths && times_p->n < HOST_TIMED_MAX; i++) {
        const struct host_path *p = &h->paths[i];
        if (p->listener == NULL || p->ops->listener_times == NULL) continue;
        times_p->of[times_p->n].scheme = p->ops->scheme;
        p->ops->listener_times(p->listener, &times_p->of[times_p->n++].times);
    }
}

void host_show_times(struct figure_walk *f, const struct host_times *times) {
    for (unsigned i = 0; i < times->n; i++) {
        const struct transport_times *t = &times->of[i].times;
        figures_group(f, "transport", "transport", times->of[i].scheme);
        FIGURE_HIST(f, HIST_NS, read_duration,
                    "reads of memory, from when the host had the request until all was sent",
                    &t->read);
        FIGURE_HIST(f, HIST_NS, write_duration,
                    "writes, from when the host had the request until its last byte had come",
                    &t->write);
        FIGURE_HIST(f, HIST_NS, staged_read_duration,
                    "reads of values on disk, until the last piece was handed on", &t->staged);
        figures_group_end(f);
    }
}

/* INFO has an underscore wherever the name of a verdict has none of a-z 0-9. */
void host_show_refused(struct figure_walk *f, const struct host_stats *stats) {
    for (int v = GRANT_OK + 1; v < GRANT_VERDICTS; v++) {
        char name[32];
        snprintf(name, sizeof(name), "%s", grant_verdict_name((enum grant_verdict)v));
        for (char *p = name; *p != '\0'; p++)
            if (!((*p >= 'a' && *p <= 'z') || (*p >= '0' && *p <= '9'))) *p = '_';
        FIGURE_OF(f, COUNTER, grants_refused_, "grants that were no good, by why", "verdict", name,
                  stats->refused[v]);
    }
}

void host_show_programs(struct figure_walk *f, const struct host_stats *stats) {
    for (unsigned i = 0; i < ARRAY_LEN(stats->programs.of); i++) {
        const struct program_count *c = &stats->programs.of[i];
        char version[PROGRAM_TEXT];
        if (c->peers == 0) continue;
        program_write(c->program, version);
        FIGURE_OF(f, GAUGE, data_peers_,
                  "connections of clients (data port, shared memory, RDMA) by their version",
                  "version", (const char *)version, c->peers);
    }
}
