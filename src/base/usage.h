/* What this process has taken of the machine. Of any thread; system calls that do not block. */
#ifndef TARN_BASE_USAGE_H
#define TARN_BASE_USAGE_H

#include <stdint.h>
#include "base/figures.h"

/* Bytes that are resident, without shared memory and program files; 0: unknown. */
uint64_t usage_resident_memory(void);
/* INFO cpu; "the loop" is the thread that asks. */
void usage_cpu_figures(struct figure_walk *f);

#endif
