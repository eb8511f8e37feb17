/* How far something is that takes more than a moment, told at a pace that a reader likes: on a
 * terminal a line that is written over, elsewhere lines in the log, after two seconds for the first
 * time. One call in the loop that does the work; it may come often, and from any thread.
 *
 *   progress_log | progress_bar ─> progress_say ... ─> progress_end */
#ifndef TARN_BASE_PROGRESS_H
#define TARN_BASE_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
    char what[96];
    bool bar, silent;
    uint64_t began_ms, next_ms; /* next_ms: atomic */
    bool shown;                 /* there is a line to wipe */
};

/* For servers: lines "WHAT: TEXT (37 %), about 12 s left" at level notice, each second where the
 * log is a terminal, else every ten. */
void progress_log(struct progress *p, const char *what_fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* For programs: a bar on standard error, if that is a terminal; else, or with silent, nothing. */
void progress_bar(struct progress *p, bool silent);
/* total 0: not known, and the text says how far it is. */
void progress_say(struct progress *p, uint64_t done, uint64_t total, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Takes the bar away. */
void progress_end(struct progress *p);

#endif
