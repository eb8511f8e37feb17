/* All figures of a storage node, in parts: those of the process, of its modules, and of its host
 * (hosting/view.h). */
#ifndef TARN_NODE_FIGURES_H
#define TARN_NODE_FIGURES_H

#include "hosting/view.h"

/* The process begins now. */
void node_figures_begin(void);
/* From the main thread. The section that the part belongs to; NULL: there are no more. */
const char *node_figures_show(struct hosting_view *view, unsigned part, struct figure_walk *walk);

#endif
