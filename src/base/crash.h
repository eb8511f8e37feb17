/* What a process leaves behind when it dies of a signal that it did not ask for. */
#ifndef TARN_BASE_CRASH_H
#define TARN_BASE_CRASH_H

#include <stdbool.h>

/* From now on SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT write a report to the log, and then end
 * the process as they would have; off: they just end it. Any thread may call it again. Under a
 * sanitizer, which reports better, it does nothing. */
void crash_catch(bool on);
/* fn says more about the process, line by line with log_warning: it is called once, in the handler,
 * after the stack was written. What it reads may be in any state. NULL: nothing. */
void crash_tell(void (*fn)(void));

#endif
