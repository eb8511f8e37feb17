/* What a host shows of itself beyond the counters of host.h. */
#include <stdio.h>

#include "host/host.h"

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
