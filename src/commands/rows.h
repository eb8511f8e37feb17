/* Lists for modules: module.h, rows_next. */
#ifndef TARN_COMMANDS_ROWS_H
#define TARN_COMMANDS_ROWS_H

#include "base/figures.h"
#include "module.h"

enum tarn_rows rows_next(const char *table, uint64_t *from, struct figure_walk *walk);

#endif
