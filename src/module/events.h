/* The last lines of the program's log, as the rows "events" of module.h. For every program that
 * has called log_keep. */
#ifndef TARN_MODULE_EVENTS_H
#define TARN_MODULE_EVENTS_H

#include "base/figures.h"
#include "module.h"

#define MODULE_EVENTS_KEPT 256u /* what a program gives to log_keep */

/* *from: the number of the last one that was seen, 0: none. */
enum tarn_rows module_events_next(uint64_t *from, struct figure_walk *walk);

#endif
