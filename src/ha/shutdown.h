/* The way to the end of the process: SHUTDOWN and signals, and what is done before.
 *
 *   asked ─> replicas lag? ── no ───────────────> last snapshot, files to the disk ─> the loop ends
 *              │ yes, and not NOW: writes wait       ^         │ failed, and not FORCE
 *              └─> shutdown-timeout or they have all ┘         v
 *                       └─ SHUTDOWN ABORT ───────────────> as before: who asked gets an error */
#ifndef TARN_HA_SHUTDOWN_H
#define TARN_HA_SHUTDOWN_H

#include <stdbool.h>
#include <stdint.h>

/* SIGTERM or SIGINT, with the flags of shutdown-on-sigterm or -sigint (CONFIG_SHUTDOWN_*). A second
 * one does not wait. */
void shutdown_by_signal(int signo);
/* Every 1/hz second. */
void shutdown_cron(void);
/* Milliseconds until it no longer waits for replicas; 0: it does not wait. */
uint64_t shutdown_left_ms(void);

#endif
