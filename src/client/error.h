/* The thread's last error, and what is checked of options. */
#ifndef TARN_CLIENT_ERROR_H
#define TARN_CLIENT_ERROR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/status.h"
#include "tarn.h"

/* Notes the text and returns status, so that callers write: return fail(TARN_EINVAL, "...",
 * ...). */
tarn_status fail(tarn_status status, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void log_default_once(void);
/* A line that the program asked for: to its tarn_set_log as a notice, else to stderr. */
void log_asked(const char *text);

/* Fills a caller's struct, which begins with its size: with defaults, as far as they are known. */
void init_sized(void *to, size_t size, const void *defaults, size_t known);

/* A number among options, from 1 on. */
struct option_range {
    const char *name;
    uint64_t value, max; /* UINT64_MAX: no limit */
};
/* TARN_EINVAL, with what is allowed. init: the function that sets the defaults. */
tarn_status check_ranges(const struct option_range *ranges, size_t n, const char *init);

#endif
