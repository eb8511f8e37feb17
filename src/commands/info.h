/* The sections of INFO. */
#ifndef TARN_COMMANDS_INFO_H
#define TARN_COMMANDS_INFO_H

#include "base/figures.h"

struct info_section {
    const char *name;                   /* as asked for, lower case */
    const char *title;                  /* as shown */
    enum { INFO_DEFAULT, INFO_ALL } in; /* where it is shown unasked: by INFO alone, by INFO all */
    bool of_tarn;                       /* none of Redis': INFO tarn shows it */
    void (*write)(struct figure_walk *f);
};
extern const struct info_section info_sections[]; /* ended by a NULL name */

void info_pool(struct figure_walk *f), info_cache(struct figure_walk *f),
    info_eviction(struct figure_walk *f), info_data(struct figure_walk *f),
    info_inband(struct figure_walk *f);
void info_nodes(struct figure_walk *f), info_tasks(struct figure_walk *f);

#endif
