/* Becoming a daemon. Who started the program gets the prompt back when there is something to use:
 *
 *   daemon_begin ─┬─ parent: waits ─┬─ told ──────> ends with 0
 *                 │                 └─ child gone ─> ends with the child's status
 *                 └─ child: goes on, on the same terminal ─> daemon_ready: own session, /dev/null
 *
 * Until then Ctrl-C ends both, and what the child says is seen. */
#ifndef TARN_BASE_DAEMON_H
#define TARN_BASE_DAEMON_H

#include <stdbool.h>

/* Before there is a thread; returns in the child only. log: the file that has its words ("" or
 * NULL: the terminal), named when it takes long or fails. false: errno says why, and there is no
 * child. */
bool daemon_begin(const char *log);
/* Nothing where daemon_begin was not called. SIGPIPE must be ignored. */
void daemon_ready(void);

#endif
