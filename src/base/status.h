/* tarn_status, for the rooms. See ../tarn_status.h. */
#ifndef TARN_BASE_STATUS_H
#define TARN_BASE_STATUS_H
#include "../tarn_status.h"

/* *why_p becomes that text, which is this thread's own and stays until its next call. Returns
 * status. */
tarn_status status_fail(tarn_status status, const char **why_p, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
