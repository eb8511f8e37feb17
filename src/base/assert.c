/* The end of a process that broke its own promise: a line in the log, a backtrace on standard
 * error, abort().
 */
#include "base/assert.h"

#include <execinfo.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"

void assert_failed(const char *expr, const char *file, int line, const char *func) {
    log_warning("assertion failed: %s (%s:%d, %s)", expr, file, line, func);
    /* The log may be a file, silent or a host program's sink; whoever looks at the terminal should
     * know as well. */
    fprintf(stderr, "tarn: assertion failed: %s (%s:%d, %s)\n", expr, file, line, func);
    void *frames[32];
    int n = backtrace(frames, 32);
    backtrace_symbols_fd(frames, n, STDERR_FILENO);
    abort();
}
