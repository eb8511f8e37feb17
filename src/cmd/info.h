/* The sections of INFO. */
#ifndef TARN_CMD_INFO_H
#define TARN_CMD_INFO_H

#include <stdbool.h>
#include "base/buf.h"

struct info_section {
    const char *name;                   /* as asked for, lower case */
    const char *title;                  /* as shown */
    enum { INFO_DEFAULT, INFO_ALL } in; /* where it is shown unasked: by INFO alone, by INFO all */
    bool of_tarn;                       /* none of Redis': INFO tarn shows it */
    void (*write)(struct buf *out);
};
extern const struct info_section info_sections[]; /* ended by a NULL name */

void info_pool(struct buf *out), info_cache(struct buf *out), info_eviction(struct buf *out),
    info_data(struct buf *out), info_inband(struct buf *out), info_kv_events(struct buf *out);
void info_nodes(struct buf *out), info_tasks(struct buf *out), info_modules(struct buf *out);
void info_replication(struct buf *out);
void info_line(struct buf *out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* "1.50M" as Redis shows sizes. */
const char *info_human(uint64_t bytes, char text[32]);

#endif
