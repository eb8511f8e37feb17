/* The sections of INFO. */
#ifndef TARN_COMMANDS_INFO_H
#define TARN_COMMANDS_INFO_H

#include "base/figures.h"
#include "module.h"

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

void info_tenants(struct figure_walk *f);
void info_pool_sums(struct figure_walk *f); /* without the segments */
/* From that segment on, at most n of them; returns where to go on, store_segment_limit: the end. */
uint32_t info_segments(struct figure_walk *f, uint32_t from, size_t n);
/* A group of one: name, size, state and the like, then what `more` adds to it (NULL: nothing). */
struct store_segment_info;
struct cluster_segment;
typedef void (*info_segment_fn)(struct figure_walk *f, const struct store_segment_info *g,
                                const struct cluster_segment *at);
void info_segment(struct figure_walk *f, const struct store_segment_info *g,
                  const struct cluster_segment *at, info_segment_fn more);
/* What CACHE DOCTOR says; the caller frees it. */
void info_doctor(struct buf *out);
/* At most n nodes from *cursor on; false: there are no more. */
bool info_each_node(struct figure_walk *f, uint32_t *cursor, size_t n);

/* What modules ask for: module.h. */
bool info_figures_next(struct tarn_figures_at *at, struct figure_walk *walk);
enum tarn_state info_state(char *text, size_t cap);

#endif
